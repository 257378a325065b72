"""Experiments: TOML files, validated before anything runs. A typo gets the file, table, key and the nearest right word."""

from __future__ import annotations

import difflib
import tomllib
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from milodo.algorithms import METHODS
from milodo.algorithms.published import published
from milodo.errors import InvalidInput, unknown
from milodo.learned import LEARNED
from milodo.problems import FAMILIES, REGULARIZERS, Family, Regularizer
from milodo.topology import WEIGHTS, Topology, topology, weights

Count = Annotated[int, Field(ge=1)]
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
    """[problem]: which family, and its shape (n, d, N, lam) as the paper writes it."""

    family: str
    n: Count
    d: Count
    N: Count
    lam: NonNegativeNumber = 0.1
    regularizer: RegularizerTable | None = None

    @model_validator(mode="after")
    def _one_penalty(self) -> ProblemTable:
        if self.regularizer is not None and "lam" in self.model_fields_set:
            raise ValueError("[problem] has both lam and [problem.regularizer]; put lam into the regularizer's table.")
        return self

    def build(self) -> Family:
        if self.family not in FAMILIES:
            raise unknown("family", self.family, FAMILIES)
        reg = self.regularizer.build() if self.regularizer else None
        return FAMILIES[self.family](self.n, self.d, self.N, self.lam, reg)


class NetworkTable(Table):
    """[network]: who talks to whom, and with which weights."""

    topology: str
    weights: str = "metropolis"

    def build(self) -> Topology:
        if self.weights not in WEIGHTS:
            raise unknown("weights", self.weights, WEIGHTS)
        return topology(self.topology)


class RunTable(Table):
    """[run]: how long, on how many unseen instances."""

    iterations: Count
    instances: Count = 32
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
            raise ValueError(f"device {device!r} is not to be had here. Use 'cpu'.") from error
        return device


class TuningTable(Table):
    """[tuning]: on instances that are never tested on."""

    instances: Count = 8
    iterations: Count = 2000
    target: Positive = 1e-3
    cost: Literal["iterations", "rounds"] = "iterations"
    points: Annotated[int, Field(ge=3)] = 13
    points_each: Annotated[int, Field(ge=3)] = 7
    refinements: Annotated[int, Field(ge=0)] = 3


class MethodTable(Table):
    """[[methods]]: a method and where its parameters come from."""

    name: str
    label: str | None = None
    """Told apart by this when one method races several times."""
    use: Literal["tuned", "published", "given"] = "tuned"
    parameters: dict[str, int | float] = {}
    """With use = 'given'."""
    weights: str | None = None
    """Of a learned method: a shipped name (`milodo optimizers`) or a path."""
    iterations: Count | None = None
    """Fewer than [run]'s, for a method whose steps are costly."""

    @model_validator(mode="after")
    def _known(self) -> MethodTable:
        if self.name not in METHODS and self.name not in LEARNED:
            raise ValueError(str(unknown("method", self.name, [*METHODS, *LEARNED])))
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
        if self.use != "given" and self.parameters:
            raise ValueError(f"{self.name}: parameters are given, but use = {self.use!r} would ignore them. Write use = 'given'.")
        if self.use == "given":
            space = METHODS[self.name].space
            for key in self.parameters:
                if key not in space:
                    raise ValueError(f"{self.name}: {unknown('parameter', key, space)}")
            try:
                METHODS[self.name](**self.parameters)  # type: ignore[arg-type]
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
    def remark(self) -> str:
        return self.label or ("" if self.use == "tuned" else self.use)


class StageTable(Table):
    """[[training.stages]]: `epochs` times over the training set, K iterations in segments of K_T, one Adam step a segment."""

    K_T: Count
    K: Count
    epochs: Count
    lr: Positive
    batch: Count = 32

    @model_validator(mode="after")
    def _divides(self) -> StageTable:
        if self.K % self.K_T:
            raise ValueError(f"[[training.stages]]: K = {self.K} is not a multiple of K_T = {self.K_T}. Change one of them.")
        return self


PAPER_STAGES = [
    StageTable(K_T=5, K=10, epochs=20, lr=5e-4),
    StageTable(K_T=10, K=20, epochs=10, lr=1e-4),
    StageTable(K_T=20, K=40, epochs=10, lr=5e-5),
    StageTable(K_T=40, K=80, epochs=10, lr=1e-5),
    StageTable(K_T=20, K=100, epochs=5, lr=1e-5),
]
"""Section 5, Experimental setup."""
Range = Annotated[list[Positive], Field(min_length=2, max_length=2)]


class BoundsTable(Table):
    """[training.bounds]: between which p_i (m), p~_ij,1 (s) and p_ij,2 (u) stay; Theorem 2 needs such bounds."""

    m: Range = [1e-3, 0.25]
    s: Range = [0.05, 30.0]
    u: Range = [1e-3, 0.45]


class TrainingTable(Table):
    """[training]: what `milodo train` makes."""

    optimizer: str = "milodo"
    good_for: str = ""
    """One sentence for `milodo optimizers`."""
    initial: Literal["special", "random"] = "special"
    gamma: Positive = 0.03
    """Step size of the method that special initialisation mimics."""
    hidden: Count | None = None
    layers: Annotated[int, Field(ge=1, le=100)] = 100
    """Of LPG-EXTRA."""
    activations: Literal["bounded", "plain"] = "bounded"
    bounds: BoundsTable = BoundsTable()
    loss: Literal["objective", "log-gap"] = "objective"
    """'objective' is the paper's f(x) + r(x) at the average; 'log-gap' its logarithmic distance from the certified optimum."""
    consensus: NonNegativeNumber = 0.0
    """Weight of the consensus error in the loss; the paper's loss sees only the average."""
    instances: Count = 512
    """Of each shape."""
    d: Count | None = None
    """Of the training problems; [problem]'s unless given."""
    N: Annotated[list[Count], Field(min_length=1)] | None = None
    """Shapes of a meta training set, one for each number of samples a node; [problem]'s unless given."""
    clip: Positive | None = 1.0
    """Largest norm of the meta-gradient."""
    recompute: bool = False
    """Forget what a step computed and compute it again for the gradient: a third more time, far less memory."""
    validation_instances: Count = 8
    validation_iterations: Count = 500
    validate_every: Count = 3000
    """Unrolled iterations between two validations; every stage ends with one."""
    stages: Annotated[list[StageTable], Field(min_length=1)] = PAPER_STAGES

    @model_validator(mode="after")
    def _known(self) -> TrainingTable:
        if self.optimizer not in LEARNED:
            raise ValueError(str(unknown("optimizer", self.optimizer, LEARNED)))
        for name, (low, high) in self.bounds.model_dump().items():
            if low >= high:
                raise ValueError(f"[training.bounds] {name} = [{low}, {high}]: the first must be smaller.")
        longest = max(stage.K for stage in self.stages)
        if self.optimizer == "lpg-extra" and longest > self.layers:
            raise ValueError(f"a stage unrolls {longest} iterations, but LPG-EXTRA has {self.layers} layers. Shorten K.")
        return self


class ReportTable(Table):
    """[report]: which gaps the speed-up table asks for, and against whom."""

    gaps: Annotated[list[Positive], Field(min_length=1)] = [1e-1, 1e-2, 1e-3]
    baseline: str | None = None


class Experiment(Table):
    """One TOML file."""

    name: Annotated[str, Field(pattern=r"^[\w][\w.+-]*$")]
    """Of the run's folder, runs/NAME; the file's name unless given."""
    title: str = ""
    description: str = ""
    seed: Annotated[int, Field(ge=0)] = 0
    problem: ProblemTable
    network: NetworkTable
    run: RunTable = RunTable(iterations=10_000)
    tuning: TuningTable = TuningTable()
    methods: list[MethodTable] = []
    """What races; an experiment with [training] needs none."""
    training: TrainingTable | None = None
    report: ReportTable = ReportTable()

    @model_validator(mode="after")
    def _fits(self) -> Experiment:
        if self.training is None:
            for needed in ("run", "methods"):
                if not getattr(self, needed) or needed not in self.model_fields_set:
                    raise ValueError(f"needs [{needed}]; experiments/demo.toml shows a complete file.")
        family, graph = self.problem.build(), self.network.build()
        if self.network.weights == "third":
            weights(graph, "third")
        if graph.n != family.n:
            raise ValueError(f"the topology {graph} has {graph.n} nodes, but [problem] says n = {family.n}. Change one of them.")
        keys = [method.key for method in self.methods]
        for key in keys:
            if keys.count(key) > 1:
                raise ValueError(f"the method {key!r} is listed twice. Remove one, or tell them apart with `label`.")
        for method in self.methods:
            if method.use == "published":
                published(method.name, family.name)
        if self.report.baseline is not None and self.report.baseline not in keys:
            raise ValueError(f"[report] baseline: {unknown('method', self.report.baseline, keys)}")
        return self


def find_experiment(name: str | Path) -> Path:
    """A path as it is; a bare name such as 'demo' is looked up among the shipped experiments."""
    path = Path(name)
    if path.is_file() or path.suffix or len(path.parts) != 1:
        return path
    package = Path(__file__).resolve().parent
    folders = [package / "experiments", package.parent / "experiments"]  # installed; in a source tree
    shipped = {file.stem: file for folder in folders if folder.is_dir() for file in folder.glob("*.toml")}
    if str(name) not in shipped:
        raise unknown("experiment", str(name), shipped)
    return shipped[str(name)]


def load_experiment(path: str | Path, **overrides: Any) -> Experiment:
    """An experiment from a file; overrides such as seed=1, dtype='float32', device='cpu' replace what it says."""
    path = Path(path)
    try:
        content = tomllib.loads(path.read_text())
    except FileNotFoundError as error:
        near = difflib.get_close_matches(
            path.name, [p.name for p in path.parent.glob("*.toml")] if path.parent.is_dir() else [], n=1
        )
        hint = f"Did you mean {str(path.parent / near[0])!r}?" if near else "See experiments/ for some to start from."
        raise InvalidInput(f"no experiment {str(path)!r}. {hint}") from error
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput(f"{path}: cannot be read ({error}).") from error
    except tomllib.TOMLDecodeError as error:
        raise InvalidInput(f"{path}: not valid TOML: {error}.") from error
    content.setdefault("name", path.stem)
    network = content.get("network")
    if isinstance(network, dict) and isinstance(network.get("topology"), str):
        beside = path.parent / network["topology"]
        if beside.is_file():  # a graph file is named as seen from the experiment
            network["topology"] = str(beside)
    for key, value in overrides.items():
        if value is not None:
            (content if key == "seed" else content.setdefault("run", {}))[key] = value
    return parse_experiment(content, str(path))


def parse_experiment(content: dict[str, Any], where: str) -> Experiment:
    try:
        return Experiment.model_validate(content)
    except ValidationError as error:
        # A misspelt key is also a missing one; the misspelling is what to say.
        first = min(error.errors(), key=lambda e: e["type"] != "extra_forbidden")
        raise InvalidInput(f"{where}: {_sentence(dict(first))}") from error
    except InvalidInput as error:
        raise InvalidInput(f"{where}: {error}") from error


def _sentence(error: dict[str, Any]) -> str:
    """One sentence for the first thing wrong, in the words of the file."""
    # A union's members ('int', 'float') and places in a list are not words of the file.
    location = [part for part in error["loc"] if isinstance(part, str) and part not in ("int", "float")]
    tables, key = location[:-1], location[-1] if location else None
    table = f"[{'.'.join(tables)}]" if tables else "the file's first lines"
    if error["type"] == "extra_forbidden":
        known = _fields(location[:-1])
        near = difflib.get_close_matches(str(key), known, n=1, cutoff=0.5)
        hint = f"Did you mean {near[0]!r}?" if near else f"Known: {', '.join(known)}."
        return f"unknown key {key!r} in {table}. {hint}"
    if error["type"] == "missing":
        return f"{table} needs {key!r}." if tables else f"needs [{key}]; experiments/demo.toml shows a complete file."
    said = error["msg"].removeprefix("Value error, ")
    if error["type"] == "value_error":
        return said
    if error["type"] == "model_type":
        return f"[{'.'.join(location)}] must be one table."
    return f"{key!r} in {table} is {error['input']!r}: {said[0].lower()}{said[1:]}."


def _fields(location: list[Any]) -> list[str]:
    """Keys that are known in the table at this place."""
    model: Any = Experiment
    for part in location:
        annotation = model.model_fields[part].annotation
        candidates = [annotation, *getattr(annotation, "__args__", ())]
        model = next((c for c in candidates if isinstance(c, type) and issubclass(c, BaseModel)), model)
    return list(model.model_fields)
