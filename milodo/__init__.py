"""milodo: decentralised optimization, handcrafted and learned, raced fairly on any graph.

Data sit at n sites joined by a network; a site talks only to its neighbours; together they solve
min_x (1/n) Σ f_i(x) + r(x), with f_i private to site i and r shared.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from milodo.version import __version__ as __version__

if TYPE_CHECKING:
    from milodo.algorithms import (
        ADMM,
        APAPC,
        DAPG,
        DPSGD,
        LEPDO,
        METHODS,
        ODAPG,
        AcceleratedED,
        Algorithm,
        DecentLaM,
        DSGDm,
        GradientTracking,
        PGExtra,
        PrimalDual,
        ProxATC,
        ProxDGD,
        ProxED,
        QGDSGDm,
        TreeAPG,
    )
    from milodo.algorithms.auto import Facts, Link, choose, learn
    from milodo.errors import InvalidInput
    from milodo.learned import LEARNED, BaseRules, Learned, LPGExtra, MiLoDo
    from milodo.learned.checkpoint import load_optimizer, save_optimizer
    from milodo.loop import Result, Stop, iterate, solve
    from milodo.network import (
        Bits,
        Cast,
        DistributedNetwork,
        Levels,
        Network,
        Observer,
        Outage,
        StackedNetwork,
        StackedObserver,
        TopK,
        Traffic,
        TreeObserver,
        degraded,
    )
    from milodo.problems import (
        L1,
        Box,
        CustomProblem,
        ElasticNet,
        Family,
        Lasso,
        LeastSquares,
        Logistic,
        LogisticRegression,
        Neural,
        NonNegative,
        Problem,
        Reference,
        Regularizer,
        Softmax,
        Zero,
        instance_seeds,
        optimum,
    )
    from milodo.status import Status
    from milodo.topology import Topology
    from milodo.torch_loop import Gossip, gossip

__all__ = [
    "ADMM", "APAPC", "DAPG", "DPSGD", "L1", "LEARNED", "LEPDO", "METHODS", "ODAPG", "AcceleratedED", "Algorithm", "BaseRules",
    "Bits", "Box", "Cast", "CustomProblem", "DSGDm", "DecentLaM", "DistributedNetwork", "ElasticNet", "Facts", "Family",
    "Gossip", "GradientTracking", "InvalidInput", "LPGExtra", "Lasso", "Learned", "LeastSquares",
    "Levels", "Link", "Logistic", "LogisticRegression", "MiLoDo", "Network", "Neural", "NonNegative", "Observer", "Outage",
    "PGExtra", "PrimalDual", "Problem", "ProxATC", "ProxDGD", "ProxED", "QGDSGDm", "Reference", "Regularizer",
    "Result", "Softmax", "StackedNetwork", "StackedObserver", "Status", "Stop", "TopK", "Topology", "Traffic",
    "TreeAPG", "TreeObserver", "Zero", "choose", "degraded", "gossip", "instance_seeds", "iterate", "learn", "load_optimizer",
    "optimum", "save_optimizer", "solve",
]  # fmt: skip

ROOMS = (
    "errors", "status", "topology", "network", "problems", "algorithms", "algorithms.auto", "learned", "learned.checkpoint",
    "loop", "torch_loop",
)  # fmt: skip
"""Where these names live, the lightest first: each room is imported when the first of its names is asked for."""

if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        for room in ROOMS if name in __all__ else ():
            module = import_module(f"milodo.{room}")
            if hasattr(module, name):
                return globals().setdefault(name, getattr(module, name))
        if name in ROOMS:
            return import_module(f"milodo.{name}")
        raise AttributeError(f"module 'milodo' has no attribute {name!r}")

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
