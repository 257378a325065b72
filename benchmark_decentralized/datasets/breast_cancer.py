"""569 patients, 30 columns, two classes, dealt to the nodes; comes with scikit-learn."""

from benchopt import BaseDataset

from milodo.problems import BreastCancer


class Dataset(BaseDataset):
    name = "breast_cancer"
    requirements = ["pip::milodo", "pip::scikit-learn"]  # noqa: RUF012

    parameters = {"n, lam": [(10, 0.01)], "seed": [0]}  # noqa: RUF012

    def get_data(self):
        return {"problem": BreastCancer(n=self.n, lam=self.lam).sample([self.seed])}
