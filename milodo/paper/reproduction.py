"""Figures and tables of the paper, by name: their experiments at either size, and what is claimed of each."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from milodo.config.experiment import Content, Experiment, parse_experiment, read_content, validated
from milodo.errors import InvalidInput, quoted, unknown
from milodo.paper.claims import ExpectTable
from milodo.paper.panels import ReproductionTable, Size, panel_contents
from milodo.paper.step_sizes import with_published_steps
from milodo.shipped import find_experiment

NAMES = (
    "fig-lasso-300", "fig-lasso-30000", "fig-bsds", "fig-logistic-dims", "fig-mlp", "fig-resnet", "fig-topologies",
    "fig-50-nodes", "fig-base-rules", "table-runtime", "fig-logistic-trained", "fig-census", "fig-lasso-20000",
    "fig-linear-15000", "fig-100-nodes", "fig-mixing-matrices", "fig-fp32-robustness", "table-step-sizes",
)  # fmt: skip
"""In the order of the paper."""
TABLE = "reproduction"
"""The table of a TOML file that makes it a figure or table of the paper."""


@dataclass(frozen=True)
class Panel:
    """One run of a reproduction."""

    name: str
    """'' where there is only one."""
    experiment: Experiment
    expect: ExpectTable


@dataclass(frozen=True)
class Reproduction:
    name: str
    title: str
    description: str
    size: Size
    about: ReproductionTable
    expect: ExpectTable
    """Of the whole figure."""
    panels: tuple[Panel, ...]

    @property
    def weights(self) -> list[str]:
        """Of the learned methods of all panels."""
        methods = (method for panel in self.panels for method in panel.experiment.methods)
        return list(dict.fromkeys(method.weights for method in methods if method.weights is not None))


def load_reproduction(name: str | Path, size: Size = "laptop") -> Reproduction:
    """By its name, or from a file of one's own with a [reproduction]."""
    if isinstance(name, str) and not Path(name).suffix and name not in NAMES:
        raise unknown("reproduction", name, NAMES)
    path = find_experiment(name)
    where, content = str(path), read_content(path)
    if TABLE not in content:
        raise InvalidInput(
            f"{where} has no [reproduction], so it reproduces nothing of the paper. Race it: milodo bench {quoted(where)}."
        )
    table, contents = _panels(content, where, size)
    panels = []
    for panel, whole in contents:
        experiment = parse_experiment({key: value for key, value in whole.items() if key != "expect"}, where)
        panels.append(Panel(panel, experiment, _expected(whole["expect"], where)))
    title, description = (said if isinstance(said := content.get(key, ""), str) else "" for key in ("title", "description"))
    about = _expected(table.expect, where)
    return Reproduction(content["name"], title, description, size, table, about, tuple(panels))


def first_panel(content: Content, where: str) -> Content:
    """A file as an ordinary experiment: of a figure its first panel at laptop size, and any other file as it is."""
    if TABLE not in content:
        return content
    _, panels = _panels(content, where, "laptop")
    return {key: value for key, value in panels[0][1].items() if key != "expect"}


def _panels(content: Content, where: str, size: Size) -> tuple[ReproductionTable, list[tuple[str, Content]]]:
    """[reproduction] of a file, and what it makes of the rest: one experiment per panel, `expect` beside its tables."""
    try:
        table = validated(ReproductionTable, content[TABLE], [TABLE])
        rest = {key: value for key, value in content.items() if key != TABLE}
        return table, [(name, with_published_steps(whole)) for name, whole in panel_contents(rest, table, size)]
    except InvalidInput as error:
        raise InvalidInput(f"{where}: {error}") from error


def _expected(content: object, where: str) -> ExpectTable:
    try:
        return validated(ExpectTable, content, ["reproduction", "expect"])
    except InvalidInput as error:
        raise InvalidInput(f"{where}: {error}") from error
