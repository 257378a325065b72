"""The tables of an experiment: problem, network, run, tuning, methods, report."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields, replace
from typing import Annotated, Any, Literal

import torch
from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from milodo.algorithms import METHODS, Algorithm
from milodo.algorithms.auto import Link, made
from milodo.algorithms.averages import Averages
from milodo.algorithms.base import requirements
from milodo.errors import LARGEST, InvalidInput, quoted, unknown
from milodo.learned import LEARNED
from milodo.network import Network, StackedNetwork, degraded, message_format
from milodo.network.exchange import EXCHANGES, Polynomial, named
from milodo.network.requirement import Conditions, Requirement
from milodo.network.stacked import CommonMixingNetwork
from milodo.problems import FAMILIES, REGULARIZERS, Family, Regularizer
from milodo.problems.base import MOST_INSTANCES
from milodo.topology import WEIGHTS, Topology, schedule, topology

AUTO = "auto"
"""Not a method, but the choice of one (milodo/algorithms/auto.py)."""
Count = Annotated[int, Field(ge=1, le=LARGEST)]
Instances = Annotated[int, Field(ge=1, le=MOST_INSTANCES)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NonNegativeNumber = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class RegularizerTable(Table):
    """[problem.regularizer]: any r instead of lam ‖x‖₁."""

    kind: str
    lam: NonNegativeNumber | None = None
    mu: NonNegativeNumber | None = None
    low: float | None = None
    high: float | None = None

    def build(self) -> Regularizer:
        if self.kind not in REGULARIZERS:
            raise unknown("regularizer", self.kind, REGULARIZERS)
        given = {name: value for name, value in self.model_dump(exclude={"kind"}).items() if value is not None}
        try:
            return REGULARIZERS[self.kind](**given)
        except TypeError as error:
            fields = ", ".join(REGULARIZERS[self.kind].__dataclass_fields__) or "none"  # type: ignore[attr-defined]
            raise InvalidInput(f"regularizer {self.kind!r} takes {fields}, but got {', '.join(given) or 'nothing'}.") from error


class ProblemTable(Table):
    """[problem]: which family, and its shape (n, d, N, lam) as the paper writes it; other keys are the family's own."""

    family: str
    n: Count
    d: Count | None = None
    """Unknowns; a family whose data or model decides it needs none."""
    N: Count | None = None
    lam: NonNegativeNumber | None = None
    regularizer: RegularizerTable | None = None
    split: str | None = None
    """Of data sets: how rows are dealt to nodes, 'uniform', 'label' or 'dirichlet(0.3)'."""
    minibatch: Count | None = None
    """Samples a node looks at in an iteration; all of them unless given."""
    norm: Literal["batch", "group"] | None = None
    """Of networks with normalisation layers."""
    evaluate: Count | None = None
    """Of networks: samples of each node, and of the test part, on which runs are judged; all of them unless given."""

    @model_validator(mode="after")
    def _one_penalty(self) -> ProblemTable:
        if self.regularizer is not None and self.lam is not None:
            raise ValueError("[problem] has both lam and [problem.regularizer]; put lam into the regularizer's table.")
        return self

    def build(self) -> Family:
        if self.family not in FAMILIES:
            raise unknown("family", self.family, FAMILIES)
        family = FAMILIES[self.family]
        takes = {field.name: field for field in fields(family)}
        given = {key: value for key, value in self if value is not None and key not in ("family", "regularizer")}
        if self.regularizer is not None:
            given["reg"] = self.regularizer.build()
        for key in given:
            if key not in takes:
                known = ", ".join(name for name in takes if name != "reg")
                raise InvalidInput(f"[problem]: the family {self.family!r} takes no {key!r}. It takes {known}.")
        for name, field in takes.items():
            if name not in given and field.default is MISSING:
                raise InvalidInput(f"[problem] needs {name!r}.")
        return family(**given)


class NetworkTable(Table):
    """[network]: who talks to whom, and with which weights."""

    topology: str
    weights: str = "metropolis"
    outage: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Probability with which each link is down in each round."""
    schedule: str | list[str] | None = None
    """Which links an iteration uses: 'one-peer', 'matchings', 'alternating(2)', or a list of graphs by name or file; all unless
    given."""
    messages: str = "full"
    """How iterates travel: 'full', 'float32', 'float16', 'bfloat16', or the largest coordinates only, 'top-10%'."""
    latency: NonNegativeNumber | None = None
    """Seconds until a message of no length arrives."""
    bandwidth: Positive | None = None
    """Bytes a second over each link. Both are what auto with pay = 'seconds' must know in a simulation."""
    mixing: Literal["robust", "common"] = "robust"
    """'common' adds up w_ij x_j with W rounded: only to show what Appendix D warns of."""

    def build(self) -> Topology:
        if self.weights not in WEIGHTS:
            raise unknown("weights", self.weights, WEIGHTS)
        message_format(self.messages)
        graph = topology(self.topology)
        if self.schedule is not None:
            schedule(self.schedule, graph).mixing(1, self.weights)
        return graph

    @property
    def conditions(self) -> Conditions:
        """What requirements of methods are checked against."""
        form = message_format(self.messages)
        return Conditions(self.outage, self.schedule, form is not None and form.sparse)

    @property
    def link(self) -> Link | None:
        """Between any two neighbours, as far as it is given."""
        return None if self.latency is None or self.bandwidth is None else Link(self.latency, self.bandwidth)

    def network(
        self, graph: Topology | None = None, *, seed: int, make: Callable[..., Network] = StackedNetwork, **options: Any
    ) -> Network:
        """All of it: graph (`build()` unless given), weights, links that fail, short messages; simulated, or as `make` carries
        messages."""
        if self.mixing == "common":
            if make is not StackedNetwork:
                raise InvalidInput("[network] mixing = 'common' exists in simulation only. Remove it, or use `milodo bench`.")
            make = CommonMixingNetwork
        net = make(graph or self.build(), self.weights, **options)
        return degraded(net, outage=self.outage, messages=self.messages, schedule=self.schedule, seed=seed)


class RunTable(Table):
    """[run]: how long, on how many unseen instances."""

    iterations: Count
    instances: Instances = 32
    batch: Count | None = None
    """Instances simulated together; all of them unless memory is short."""
    stop_gap: Positive | None = None
    """An instance is done when its gap is below this."""
    seconds: Positive | None = None
    """Of steps, for one method and one batch."""
    samples_per_decade: Annotated[int, Field(ge=1, le=200)] = 30
    dtype: Literal["float64", "float32"] = "float64"
    device: str = "cpu"

    @field_validator("device")
    @classmethod
    def _exists(cls, device: str) -> str:
        try:
            torch.empty(1, device=device).item()
        except (RuntimeError, AssertionError) as error:
            raise ValueError(f"device {quoted(device)} is not to be had here. Use 'cpu'.") from error
        return device


class TuningTable(Table):
    """[tuning]: on instances that are never tested on."""

    instances: Instances = 8
    iterations: Count = 2000
    """Given to each candidate."""
    target: Positive = 1e-3
    """Mean gap over the tuning instances that a method should reach soonest. Where a problem knows no optimum, as those of
    networks, the lowest mean loss after `iterations` decides instead."""
    cost: Literal["iterations", "rounds", "bytes"] = "iterations"
    """What 'soonest' counts; bytes are those that candidates really send, where messages are coded in an iteration as many as the
    mean of all candidates."""
    points: Annotated[int, Field(ge=3, le=1000)] = 13
    """Grid points of a method's only parameter."""
    points_each: Annotated[int, Field(ge=3, le=100)] = 7
    """Grid points of each parameter where there are two."""
    refinements: Annotated[int, Field(ge=0, le=100)] = 3
    """Finer grids around the best."""
    wide: bool = False
    """Whether numbers of rounds are searched up to 2/√gap, gap being that of the mixing weights, and not only up to 3."""
    unit: Positive = 0.25
    """Step sizes are searched in units of 1/L; of this where a problem knows no L."""


class MethodTable(Table):
    """[[methods]]: a method and where its parameters come from."""

    name: str
    label: str | None = None
    """Told apart by this when one method races several times."""
    use: Literal["tuned", "published", "given", "safe"] = "tuned"
    """'safe' are parameters that need no tuning: those the method itself derives from curvature and graph."""
    parameters: dict[str, int | float] = {}
    """With use = 'given' all of them; with 'published' those that were published, and the others are tuned."""
    weights: str | None = None
    """Of a learned method: a shipped name (`milodo optimizers`) or a path."""
    iterations: Count | None = None
    """Fewer than [run]'s, for a method whose steps are costly."""
    pay: Literal["bytes", "rounds", "seconds"] | None = None
    """Of 'auto': what it is to need least of; bytes unless given."""
    messages: str | None = None
    """It sends differences from what it said before, each end with a replica: '4-bit', '5-level-coded', 'float16', ..."""
    exchange: str | None = None
    """How a method that can choose brings the nodes together: 'fastmix', 'chebyshev', 'minimax', 'gossip', 'tree' or
    'all-gather'."""

    @model_validator(mode="after")
    def _known(self) -> MethodTable:
        if self.name not in (AUTO, *METHODS, *LEARNED):
            raise ValueError(str(unknown("method", self.name, [AUTO, *METHODS, *LEARNED])))
        if self.name == AUTO:
            if {"use", "parameters", "weights", "messages", "exchange"} & self.model_fields_set:
                raise ValueError("auto chooses its method, parameters and messages itself: it takes 'pay' and 'label' only.")
            return self
        if self.pay is not None:
            raise ValueError(f"{self.name}: 'pay' is for name = 'auto', which chooses a method by its price. Remove the key.")
        if self.messages is not None and message_format(self.messages) is None:
            raise ValueError(f"{self.name}: messages = {quoted(self.messages)} shortens nothing. Remove the key.")
        if self.exchange is not None:
            if self.name not in METHODS or not issubclass(METHODS[self.name], Averages):
                ways = ", ".join(name for name, method in METHODS.items() if issubclass(method, Averages))
                raise ValueError(f"{self.name} has no choice of exchange; {ways} have. Remove 'exchange'.")
            if self.exchange not in EXCHANGES:
                raise ValueError(f"{self.name}: {unknown('exchange', self.exchange, EXCHANGES)}")
        if self.learned:
            if self.weights is None:
                raise ValueError(
                    f"{self.name} is learned: name its weights, e.g. weights = 'milodo-lasso-ring10' "
                    "(`milodo optimizers` lists them; `milodo train` makes others)."
                )
            if "use" in self.model_fields_set or self.parameters:
                raise ValueError(f"{self.name} is learned: it takes weights, neither use nor parameters.")
            return self
        if self.weights is not None:
            raise ValueError(f"{self.name} is handcrafted and has no weights. Remove the key.")
        if self.use not in ("given", "published") and self.parameters:
            raise ValueError(f"{self.name}: parameters are given, but use = {self.use!r} would ignore them. Write use = 'given'.")
        space = METHODS[self.name].space
        for key, value in self.parameters.items():
            if key not in space:
                raise ValueError(f"{self.name}: {unknown('parameter', key, space)}")
            space[key].check(f"{METHODS[self.name].label}: {key}", value)
        if self.use == "published" and not self.parameters:
            raise ValueError(f"{self.name}: use = 'published' needs the published numbers. Give them in parameters.")
        if self.use == "given":
            try:
                self.handcrafted(self.parameters)
            except TypeError:
                needed = ", ".join(space)
                raise ValueError(f"{self.name}: give all of its parameters ({needed}) in [methods.parameters].") from None
        return self

    @property
    def key(self) -> str:
        """What records call it."""
        return f"{self.name} ({self.remark})" if self.remark else self.name

    @property
    def learned(self) -> bool:
        return self.name in LEARNED

    @property
    def price(self) -> str:
        """What 'auto' is to need least of."""
        return self.pay or "bytes"

    def handcrafted(self, parameters: Mapping[str, Any]) -> Algorithm:
        """With these parameters; 'auto' is what they say was chosen."""
        if self.name == AUTO:
            return made(dict(parameters))
        exchange = {} if self.exchange is None else {"exchange": named(self.exchange)}
        return self.saying(METHODS[self.name](**parameters, **exchange))

    def saying(self, method: Algorithm) -> Algorithm:
        """The method, with its messages as they are asked for."""
        form = message_format(self.messages) if self.messages is not None else None
        return method if form is None else method.compressed(form)

    @property
    def requires(self) -> frozenset[Requirement]:
        """Of the network, as far as the experiment says what will run."""
        if self.name == AUTO:
            return frozenset({Requirement.FIXED_GRAPH})
        if self.learned:
            return requirements(LEARNED[self.name])
        method = METHODS[self.name]
        exchange = method.exchange if self.exchange is None else named(self.exchange)
        if isinstance(exchange, Polynomial):
            exchange = replace(exchange, K=int(self.parameters.get("K", 1)))
        return method.requires | exchange.requires

    @property
    def remark(self) -> str:
        if self.name == AUTO:
            return self.label or self.price
        return self.label or ", ".join(word for word in (self.words, self.messages) if word)

    @property
    def words(self) -> str:
        """What figures say of it beside its name, which says already how its messages travel."""
        used = () if self.use == "tuned" else (self.use,)
        return self.label or ", ".join((*used, *([f"over {self.exchange}"] if self.exchange else ())))


class ReportTable(Table):
    """[report]: which gaps the speed-up table asks for, and against whom."""

    gaps: Annotated[list[Positive], Field(min_length=1)] = [1e-1, 1e-2, 1e-3]
    baseline: str | None = None
