"""The step sizes the paper calls optimal (its table "Optimal learning rates of baseline algorithms").

One number a method. What the table leaves out (α and K of DAPG, τ and K of ODAPG) is tuned with the published number held.
"""

from __future__ import annotations

from typing import Any

from milodo.config.experiment import Content, validated
from milodo.config.tables import ProblemTable
from milodo.errors import InvalidInput
from milodo.problems import BSDSLasso, Census, Family, Lasso, Logistic, MLPFamily, ResNetFamily

STEP_SIZES: dict[Family, dict[str, float]] = {
    Lasso(10, 300, 10, 0.1): {
        "prox-ed": 0.03, "pg-extra": 0.02, "prox-atc": 0.025, "prox-dgd": 0.04, "dapg": 0.01, "odapg": 0.02,
    },
    Lasso(10, 30000, 1000, 0.1): {
        "prox-ed": 0.03, "pg-extra": 0.02, "prox-atc": 0.025, "prox-dgd": 0.04, "dapg": 0.01, "odapg": 0.02,
    },
    Lasso(10, 200, 10, 0.1): {
        "prox-ed": 0.05, "pg-extra": 0.04, "prox-atc": 0.045, "prox-dgd": 0.05, "dapg": 0.02, "odapg": 0.03,
    },
    Lasso(10, 20000, 1000, 0.1): {"prox-ed": 0.05, "pg-extra": 0.04, "prox-atc": 0.045, "prox-dgd": 0.05},
    Lasso(10, 15000, 1000, 0): {"prox-ed": 0.08, "pg-extra": 0.05, "prox-atc": 0.085, "prox-dgd": 0.09},
    Logistic(10, 50, 100, 0.1): {"prox-ed": 1.0, "pg-extra": 0.8, "prox-atc": 0.4, "prox-dgd": 1.0},
    Logistic(10, 14, 100, 0.1): {"prox-ed": 1.9, "pg-extra": 1.7, "prox-atc": 1.8, "prox-dgd": 2.0},
    # The text says 0.05 of the patches of BSDS500, the table says 0.1.
    BSDSLasso(10, 200, 10, 0.05): {
        "prox-ed": 0.05, "pg-extra": 0.04, "prox-atc": 0.045, "prox-dgd": 0.05, "dapg": 0.02, "odapg": 0.03,
    },
    Census(10, 14, 100, 0.1): {"prox-ed": 1.9, "pg-extra": 1.7, "prox-atc": 1.8, "prox-dgd": 2.0},
    MLPFamily(10, 5000): {
        "prox-ed": 0.09, "pg-extra": 0.06, "prox-atc": 0.06, "prox-dgd": 0.05, "dapg": 0.03, "odapg": 0.055,
    },
    ResNetFamily(5, 5000): {
        "prox-ed": 0.1, "pg-extra": 0.07, "prox-atc": 0.08, "prox-dgd": 0.05, "dapg": 0.05, "odapg": 0.07,
    },
}  # fmt: skip

STEP_PARAMETER = {"dapg": "eta", "odapg": "eta"}
"""What the published number is called; gamma elsewhere."""


def published(method: str, family: Family) -> dict[str, float]:
    """The published step size of a method on a family of problems, as a parameter of its class."""
    try:
        return {STEP_PARAMETER.get(method, "gamma"): STEP_SIZES[family][method]}
    except KeyError:
        raise InvalidInput(
            f"the paper publishes no step size for {method!r} on {family.name}. Write use = 'tuned', "
            f"or give the numbers in parameters. It has some for {', '.join(known.name for known in STEP_SIZES)}."
        ) from None


def with_published_steps(content: Content) -> Content:
    """An experiment whose methods with use = "published" have the step size of this table, unless they say one themselves."""
    methods = content.get("methods")
    if not isinstance(methods, list) or not any(map(_lacks_its_step, methods)):
        return content
    family = validated(ProblemTable, content.get("problem", {}), ["problem"]).build()
    filled = [
        {**method, "parameters": published(method["name"], family)} if _lacks_its_step(method) else method for method in methods
    ]
    return {**content, "methods": filled}


def _lacks_its_step(method: Any) -> bool:
    """Of a table that has not been validated yet."""
    is_published = isinstance(method, dict) and method.get("use") == "published" and isinstance(method.get("name"), str)
    return is_published and not method.get("parameters")
