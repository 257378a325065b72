"""What run.json says. It is a file that people edit and disks damage: what is of the wrong kind counts as missing."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, ValidatorFunctionWrapHandler, WrapValidator, field_validator
from pydantic_core import PydanticUseDefault

from milodo.errors import LARGEST, InvalidInput, quoted, shortened
from milodo.files import FORMAT, is_file, read_versioned_json, write_json
from milodo.topology import Topology

if TYPE_CHECKING:  # who only draws a graph need not wait for torch
    from milodo.config.tables import NetworkTable
    from milodo.network import Network

NAME = "run.json"
LOSS = "loss"
"""What tuning counts where no optimum is known: the mean loss of the average model in the end, not a cost."""
MOST_NODES, MOST_LINKS = 2_000, 10_000
"""Of a graph that is written down link by link, measured across and drawn; of a larger one the fingerprint is enough."""

Entries = TypeVar("Entries")
Count = Annotated[int, Field(ge=0, le=LARGEST)]
Number = Annotated[float, Field(allow_inf_nan=False)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
EachNode = Annotated[tuple[Positive, ...], Field(strict=False)]  # JSON has lists alone
Parameters = dict[str, Annotated[int, Field(ge=-LARGEST, le=LARGEST)] | Number | EachNode]
"""All of them or none: a method with half of its step sizes is another method."""


def _without_the_wrong(value: Any, handler: ValidatorFunctionWrapHandler) -> Any:
    try:
        return handler(value)
    except ValidationError as error:
        wrong = {place[0] for one in error.errors(include_url=False, include_input=False) if (place := one["loc"])}
        if not wrong:
            raise
        if isinstance(value, dict):
            return handler({key: entry for key, entry in value.items() if key not in wrong})
        return handler([entry for k, entry in enumerate(value) if k not in wrong])


Each = Annotated[Entries, WrapValidator(_without_the_wrong)]
"""A list or a table; an entry of another kind is left out, the others stay."""


class Part(BaseModel):
    """A table of the file. What else it holds is kept as it is."""

    model_config = ConfigDict(extra="allow", strict=True)

    @field_validator("*", mode="wrap")
    @classmethod
    def _missing_if_wrong(cls, value: Any, handler: ValidatorFunctionWrapHandler) -> Any:
        try:
            return handler(value)
        except ValidationError:
            raise PydanticUseDefault from None


class GraphFacts(Part):
    name: str = ""
    n: Count | None = None
    links: Count | None = None
    edges: list[Any] | None = None
    """Looked at by who draws it: a graph with some of its edges is another graph."""
    diameter: Count | None = None
    weights: str = ""
    contraction: Number | None = None
    fingerprint: str = ""
    outage: Number = 0.0
    schedule: str = ""
    """Of graphs that change: what stands for it in words."""
    messages: str = "full"

    @classmethod
    def of(cls, net: Network, table: NetworkTable) -> Self:
        graph = net.topology
        carried = table.model_dump(include={"weights", "outage", "messages"})
        carried |= {"contraction": net.contraction} if net.schedule is None else {"schedule": str(net.schedule)}
        facts = cls(name=graph.name, n=graph.n, links=len(graph.edges), fingerprint=graph.fingerprint, **carried)
        if not facts.is_large:
            facts.edges, facts.diameter = [list(edge) for edge in graph.edges], graph.diameter
        return facts

    @property
    def is_large(self) -> bool:
        return (self.n or 0) > MOST_NODES or max(self.links or 0, len(self.edges or ())) > MOST_LINKS

    def build(self) -> Topology | None:
        """The graph, where its edges are known, and few enough to be drawn."""
        n, edges, edited = self.n, self.edges, "The file was edited; run again."
        if n is None or edges is None:
            return None
        if not all(isinstance(e, list) and len(e) == 2 and all(isinstance(i, int) and 0 <= i < n for i in e) for e in edges):
            raise InvalidInput(f"the topology has edges that are not pairs of nodes 0 .. {n - 1}. {edited}")
        if len(edges) < n - 1:  # before so many nodes are made
            raise InvalidInput(f"the topology has {n} nodes, which {len(edges)} edges cannot join. {edited}")
        if self.is_large:
            return None
        said = Topology(n, tuple((i, j) for i, j in edges), self.name or "graph")
        try:
            return Topology.from_graph(said.graph, said.name)
        except InvalidInput as error:
            raise InvalidInput(f"the topology is none. {shortened(error, 300)}") from error


class WeightsFacts(Part):
    """Of a learned method."""

    name: str = ""
    sha256: str = ""
    trained_on: str = ""


class MethodFacts(Part):
    label: str = ""
    parameters: Parameters | None = None
    how: str = ""
    """Where the parameters come from."""
    needs: str = ""
    why: str = ""
    """Of 'auto': what it chose, and what the next best would cost."""
    prediction: dict[str, Any] | None = None
    """Of 'auto': iterations and cost of every candidate."""
    rounds_per_iteration: Count | None = None
    gradients_per_iteration: Count | None = None
    """At each node."""
    exact: bool | None = None
    weights: WeightsFacts | None = None


class TrialFacts(Part):
    parameters: Parameters = {}
    score: Number | None = None
    reached: bool = False
    gap: Number | None = None
    diverged: bool = False


class TuningFacts(Part):
    instances: Count | None = None
    iterations: Count | None = None
    target: Positive | None = None
    cost: str = "iterations"
    seeds: list[int] | None = None
    fixed: Parameters = {}
    cached: bool = False
    best: Parameters | None = None
    score: Number | None = None
    reached: bool | None = None
    candidates: Count | None = None
    grid: Each[list[TrialFacts]] = []


class ReferenceFacts(Part):
    """How well the optimum is known."""

    kind: str = ""
    largest: Number | None = None
    """Certificate of any instance."""
    values: list[Number | None] = []
    """f* of every instance; None where none was certified."""


class Provenance(Part):
    """Versions, commit and machine are kept as they come."""

    seed: int | None = None
    config: dict[str, Any] | None = None
    """The experiment."""


class RunFile(Part):
    format: int = FORMAT
    name: str = ""
    title: str = ""
    description: str = ""
    problem: str = ""
    instances: Count | None = None
    runtime: str = ""
    processes: Count | None = None
    topology: GraphFacts = GraphFacts()
    methods: Each[dict[str, MethodFacts]] = {}
    tuning: Each[dict[str, TuningFacts]] = {}
    gaps: Each[list[Positive]] = []
    baseline: str = ""
    reference: ReferenceFacts | None = None
    """None as long as nothing was certified."""
    provenance: Provenance = Provenance()
    merged: Each[list[str]] | None = None
    """The folders of a run that is several."""

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Of a run's folder."""
        if not is_file(folder / NAME):
            raise InvalidInput(f"no {NAME} in {quoted(str(folder), 200)}. Give the folder of a run, e.g. runs/demo.")
        return cls.model_validate(read_versioned_json(folder / NAME))

    def write(self, folder: Path) -> None:
        write_json(folder / NAME, self.model_dump(exclude_none=True))
