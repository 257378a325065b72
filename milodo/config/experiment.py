"""Experiments: TOML files, validated before anything runs. A typo gets the file, table, key and the nearest right word."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar

import torch
from pydantic import BaseModel, Field, PrivateAttr, ValidationError, model_validator

from milodo.config.tables import AUTO, MethodTable, NetworkTable, ProblemTable, ReportTable, RunTable, Table, TuningTable
from milodo.config.training import TrainingTable, recipe
from milodo.errors import LARGEST, QUOTE, InvalidInput, quoted, shortened, unknown
from milodo.extensions import import_modules, load_installed
from milodo.files import is_file, read_toml
from milodo.learned import LEARNED
from milodo.learned.base import Recipe
from milodo.memory import need_memory
from milodo.network import Network, StackedNetwork
from milodo.network.requirement import why_not
from milodo.problems import Family
from milodo.shipped import find_experiment
from milodo.topology import Topology, weights

Model = TypeVar("Model", bound=BaseModel)
Content = dict[str, Any]
"""What a TOML file says, not yet validated."""
UNIONS = ("int", "float", "str", "list[str]")
"""How pydantic calls what a value may be, where it may be several things."""
RESERVED = {"training", "resume", "optima", "run"}
"""Files of a run's folder that an optimizer must not be called after."""


class Experiment(Table):
    """One TOML file."""

    name: Annotated[str, Field(pattern=r"^[\w][\w.+-]*$")]
    """Of the run's folder, runs/NAME; the file's name unless given."""
    title: str = ""
    description: str = ""
    seed: Annotated[int, Field(ge=0, le=LARGEST)] = 0
    imports: list[str] = Field(default_factory=list)
    """Python modules, beside the file or installed, that register methods or problems of one's own."""
    problem: ProblemTable
    network: NetworkTable
    run: RunTable = RunTable(iterations=10_000)
    tuning: TuningTable = TuningTable()
    methods: Annotated[list[MethodTable], Field(default_factory=list)]
    """What races; an experiment with [training] needs none."""
    training: TrainingTable | None = None
    report: ReportTable = ReportTable()
    _family: tuple[ProblemTable, Family] | None = PrivateAttr(None)
    _graph: tuple[NetworkTable, Topology] | None = PrivateAttr(None)

    @property
    def family(self) -> Family:
        """What [problem] describes; built once, unless a copy of the experiment has another [problem]."""
        if self._family is None or self._family[0] is not self.problem:
            self._family = (self.problem, self.problem.build())
        return self._family[1]

    @property
    def graph(self) -> Topology:
        """The topology of [network]; built once, as `family` is."""
        if self._graph is None or self._graph[0] is not self.network:
            self._graph = (self.network, self.network.build())
        return self._graph[1]

    def connected(self, dtype: torch.dtype, make: Callable[..., Network] = StackedNetwork, **options: Any) -> Network:
        """A network on that graph, as [network] describes it and on [run]'s device; simulated, or as `make` carries messages."""
        options |= {"dtype": dtype, "device": self.run.device}
        return self.network.network(self.graph, seed=self.seed, make=make, **options)

    @model_validator(mode="after")
    def _fits(self) -> Experiment:
        if self.training is not None and self.name in RESERVED:
            raise ValueError(
                f"an optimizer called {quoted(self.name)} would overwrite a file of its own training. Choose another name."
            )
        if self.training is None:
            for needed in ("run", "methods"):
                if not getattr(self, needed) or needed not in self.model_fields_set:
                    raise ValueError(f"needs [{needed}]; experiments/demo/demo.toml shows a complete file.")
        family, graph = self.family, self.graph
        need_memory(family.memory(), f"one instance of {family.name}", "Make n, d or N smaller.")
        if self.network.weights == "third":
            weights(graph, "third")
        if graph.n != family.n:
            raise ValueError(f"the topology {graph} has {graph.n} nodes, but [problem] says n = {family.n}. Change one of them.")
        for method in self.methods:
            why = why_not(method.requires, self.network.conditions)
            if why is not None:
                raise ValueError(
                    f"{method.name} {why}. Remove outage, schedule or top-k messages from [network], or use a method that "
                    "gossips with one round: exchange = 'gossip', or accelerated-ed with K = 1."
                )
            if method.messages and self.network.messages != "full":
                raise ValueError(
                    f"{method.name} has messages = {quoted(method.messages)}, and [network] shortens them to "
                    f"{quoted(self.network.messages)} as well. Remove one of them."
                )
            if method.price == "seconds" and method.name == AUTO and self.network.link is None:
                raise ValueError("auto with pay = 'seconds' must know the links: give [network] latency and bandwidth.")
        keys = [method.key for method in self.methods]
        for key in keys:
            if keys.count(key) > 1:
                raise ValueError(f"the method {quoted(key)} is listed twice. Remove one, or tell them apart with `label`.")
        if self.report.baseline is not None and self.report.baseline not in keys:
            raise ValueError(f"[report] baseline: {unknown('method', self.report.baseline, keys)}")
        return self


def load_experiment(path: str | Path, **overrides: Any) -> Experiment:
    """An experiment from a file, or a shipped one; overrides such as seed=1, dtype='float32' replace what it says."""
    path = find_experiment(path)
    return parse_experiment(read_content(path), str(path), **overrides)


def read_content(path: Path) -> Content:
    """What a file says, its name filled in; what it imports, and what installed packages register, is known from here on."""
    content = read_toml(path)
    content.setdefault("name", path.stem)
    load_installed()
    names = content.get("imports")
    if isinstance(names, list) and all(isinstance(name, str) for name in names):  # anything else is refused where it is validated
        import_modules(names, path.parent)
    network = content.get("network")
    if isinstance(network, dict):  # a graph file is named as seen from the experiment
        if isinstance(network.get("topology"), str):
            network["topology"] = _beside(path, network["topology"])
        if isinstance(network.get("schedule"), list):
            network["schedule"] = [_beside(path, word) if isinstance(word, str) else word for word in network["schedule"]]
    return content


def _beside(path: Path, word: str) -> str:
    beside = path.parent / word
    return str(beside) if is_file(beside) else word


def parse_experiment(content: Content, where: str, **overrides: Any) -> Experiment:
    """What a file says, validated; overrides as in `load_experiment`."""
    for key, value in overrides.items():
        if value is None:
            continue
        if key == "seed":
            content = {**content, key: value}
        elif isinstance(table := content.get("run", {}), dict):  # what is no table is refused below
            content = {**content, "run": {**table, key: value}}
    try:
        return validated(Experiment, _with_recipe(content))
    except InvalidInput as error:
        raise InvalidInput(f"{where}: {error}") from error


def _with_recipe(content: dict[str, Any]) -> dict[str, Any]:
    """[training.optimizer] read as the table of its kind; a word alone is the kind."""
    training = content.get("training")
    if not isinstance(training, dict) or isinstance(said := training.get("optimizer", {}), Recipe):
        return content
    table = {"kind": said} if isinstance(said, str) else said
    return {**content, "training": {**training, "optimizer": validated(recipe(said), table, ["training", "optimizer"])}}


def validated(model: type[Model], content: Any, place: Sequence[str] = ()) -> Model:
    try:
        return model.model_validate(content)
    except ValidationError as error:
        # A misspelt key is also a missing one; the misspelling is what to say.
        first = min(error.errors(), key=lambda e: e["type"] != "extra_forbidden")
        raise InvalidInput(_sentence(dict(first), model, place)) from error


def _sentence(error: dict[str, Any], model: type[BaseModel], place: Sequence[str]) -> str:
    """One sentence for the first thing wrong, in the words of the file; `place` is the table that the model stands for."""
    extra = error["type"] == "extra_forbidden"
    # A union's members ('int', 'float') and places in a list are not words of the file.
    location = [part for part in error["loc"] if isinstance(part, str) and (extra or part not in UNIONS)]
    inside, location = location[:-1], [*place, *location]
    tables, key = location[:-1], location[-1] if location else None
    table = f"[{shortened('.'.join(tables))}]" if tables else "the file's first lines"
    if extra:
        known = _fields(model, inside)
        near = difflib.get_close_matches(str(key)[:QUOTE], known, n=1, cutoff=0.5)
        hint = f"Did you mean {near[0]!r}?" if near else f"Known: {', '.join(known)}."
        if tables == ["training"] and any(key in kind.Recipe.model_fields for kind in LEARNED.values()):
            hint = "It belongs into [training.optimizer]."
        return f"unknown key {quoted(key)} in {table}. {hint}"
    if error["type"] == "missing":
        return f"{table} needs {key!r}." if tables else f"needs [{key}]; experiments/demo/demo.toml shows a complete file."
    said = error["msg"].removeprefix("Value error, ")
    if error["type"] == "value_error":
        return said
    if error["type"] == "model_type":
        return f"[{'.'.join(location)}] must be one table."
    return f"{quoted(key)} in {table} is {quoted(error['input'])}: {said[0].lower()}{said[1:]}."


def _fields(model: Any, location: list[Any]) -> list[str]:
    """Keys that are known in the table at this place."""
    for part in location:
        annotation = model.model_fields[part].annotation
        candidates = [annotation, *getattr(annotation, "__args__", ())]
        model = next((c for c in candidates if isinstance(c, type) and issubclass(c, BaseModel)), model)
    return list(model.model_fields)
