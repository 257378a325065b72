"""The paper's synthetic families: normal data, a truth that is three quarters zero."""

from benchopt import BaseDataset

import milodo

FAMILIES = {"lasso": milodo.Lasso, "logistic": milodo.Logistic}


class Dataset(BaseDataset):
    name = "synthetic"
    requirements = ["pip::milodo"]  # noqa: RUF012

    parameters = {"family": ["lasso", "logistic"], "n, d, N, lam": [(10, 300, 10, 0.1)], "seed": [0]}  # noqa: RUF012
    test_parameters = {"family": ["lasso"], "n, d, N, lam": [(10, 20, 10, 0.1)]}  # noqa: RUF012

    def get_data(self):
        return {"problem": FAMILIES[self.family](self.n, self.d, self.N, self.lam).sample([self.seed])}
