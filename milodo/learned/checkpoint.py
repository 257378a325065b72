"""Trained optimizers on disk: NAME.safetensors holds the weights, NAME.json (the card) everything else. Never pickle.

A file is not trusted: the card is validated, the weights must be those the card speaks of, and every tensor must have the name,
shape and type the architecture asks for.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any, Literal

import torch
from pydantic import BaseModel, ConfigDict, ValidationError
from safetensors import SafetensorError
from safetensors.torch import load, save

from milodo.errors import InvalidInput, quoted, shortened, unknown
from milodo.files import FORMAT, atomic, is_file, read_versioned_json, write_json
from milodo.learned import LEARNED, Learned
from milodo.topology import Topology, topology

PRETRAINED = Path(__file__).resolve().parent.parent / "pretrained"
"""What is shipped with the package."""
BESIDE = PRETRAINED.parent.parent / "pretrained"
"""In a source tree: optimizers too large for an installation."""
LARGEST = 1 << 28
"""Bytes of a weights file that is still read."""
LARGEST_CARD = 1 << 22
LICENCE = "Apache-2.0"


class Graph(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)
    name: str
    n: int
    edges: list[tuple[int, int]]
    fingerprint: str


class Weights(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)
    sha256: str
    parameters: int
    dtype: Literal["float32", "float64"]


class Card(BaseModel):
    """What a trained optimizer says of itself."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    format: int = FORMAT
    name: str
    kind: str
    good_for: str
    """One sentence for `milodo optimizers`."""
    settings: dict[str, Any]
    """Of the architecture."""
    topology: Graph
    weights: Weights
    training: dict[str, Any]
    """The experiment it was trained by, and what happened."""
    results: dict[str, Any] = {}
    """Measured on unseen instances, with the command that did."""
    licence: str = LICENCE
    made_with: dict[str, Any] = {}
    """Versions and commit."""


def save_optimizer(
    optimizer: Learned,
    path: Path,
    *,
    good_for: str,
    training: dict[str, Any],
    results: dict[str, Any] | None = None,
    made_with: dict[str, Any] | None = None,
) -> Card:
    """Writes path (NAME.safetensors), then the card beside it; a stop in between is noticed by the checksum."""
    path = path.with_suffix(".safetensors")
    tensors = {name: value.detach().cpu().contiguous() for name, value in optimizer.state_dict().items()}
    content = save(tensors)
    graph = optimizer.topology
    card = Card(
        name=path.stem,
        kind=optimizer.kind,
        good_for=good_for,
        settings=optimizer.settings().model_dump(mode="json", exclude_none=True),
        topology=Graph(name=graph.name, n=graph.n, edges=list(graph.edges), fingerprint=graph.fingerprint),
        weights=Weights(
            sha256=hashlib.sha256(content).hexdigest(),
            parameters=sum(t.numel() for t in tensors.values()),
            dtype=str(optimizer.dtype).removeprefix("torch."),  # type: ignore[arg-type]  # pydantic checks it
        ),
        training=training,
        results=results or {},
        made_with=made_with or {},
    )
    with atomic(path) as part:
        part.write_bytes(content)
    write_json(path.with_suffix(".json"), card.model_dump(mode="json"))
    return card


def shipped() -> dict[str, Path]:
    """Names of the optimizers that come with milodo, here and in its source tree."""
    folders = [PRETRAINED, *([BESIDE] if is_file(BESIDE.parent / "pyproject.toml") else [])]
    return {path.stem: path for folder in folders for path in sorted(folder.glob("*.safetensors"))}


def find_optimizer(name: str | Path) -> Path:
    """A path as it is, with or without .safetensors; a bare name is one of the shipped ones."""
    if not isinstance(name, str | Path):
        raise InvalidInput(f"{quoted(name)} is not the name of an optimizer. Give a shipped name, or the path of its weights.")
    path = Path(name)
    if path.suffix in (".safetensors", ".json"):
        return path.with_suffix(".safetensors")
    if len(path.parts) > 1:
        return path.with_name(path.name + ".safetensors")
    if str(name) not in shipped():
        raise unknown("optimizer", str(name), shipped())
    return shipped()[str(name)]


def read_card(path: Path) -> Card:
    """The card beside a weights file."""
    file = path.with_suffix(".json")
    if not (is_file(path) and is_file(file)):
        raise InvalidInput(
            f"no trained optimizer {quoted(str(path))}: it needs {shortened(path.name)} and its card {shortened(file.name)}. "
            "`milodo optimizers` lists what is shipped; `milodo train` makes others."
        )
    if file.stat().st_size > LARGEST_CARD:
        raise InvalidInput(f"{file}: larger than {LARGEST_CARD >> 20} MiB, which no card is.")
    content = read_versioned_json(file)
    try:
        card = Card.model_validate(content)
    except ValidationError as error:
        raise InvalidInput(f"{file}: not the card of a trained optimizer ({_first(error)}).") from error
    if card.kind not in LEARNED:
        raise InvalidInput(f"{file}: {unknown('kind of optimizer', card.kind, LEARNED)}")
    return card


def load_optimizer(name: str | Path) -> tuple[Learned, Card]:
    """A trained optimizer by its shipped name or its path."""
    path = find_optimizer(name)
    card = read_card(path)
    try:
        if path.stat().st_size > LARGEST:
            raise InvalidInput(f"{path}: larger than {LARGEST >> 20} MiB, which no optimizer here is.")
        content = path.read_bytes()
    except OSError as error:
        raise InvalidInput(f"{path}: cannot be read ({error.strerror}).") from error
    if hashlib.sha256(content).hexdigest() != card.weights.sha256:
        raise InvalidInput(
            f"{path}: not the weights its card speaks of (the checksum differs): cut short, or from another optimizer. "
            "Copy both files again."
        )
    try:
        edges = card.topology.edges
        graph = Topology.from_edges(edges, card.topology.name) if edges else topology("ring(1)")  # a node alone has none
        if graph.n != card.topology.n or graph.fingerprint != card.topology.fingerprint:
            raise InvalidInput("its topology does not match its fingerprint")
        kind, dtype = LEARNED[card.kind], getattr(torch, card.weights.dtype)
        settings = kind.Settings.model_validate(card.settings)
        tensors = _checked(_tensors(content), _expected(kind, graph, settings, dtype))
        optimizer = kind.build(graph, settings).to(dtype)
        optimizer.load_state_dict(tensors)
    except ValidationError as error:
        raise InvalidInput(f"{path}: its card's settings do not describe a {card.kind} ({_first(error)}).") from error
    except InvalidInput as error:
        said = shortened(str(error).removesuffix("."), 300)
        raise InvalidInput(f"{path}: weights and card do not make an optimizer: {said}.") from error
    return optimizer.requires_grad_(False), card


def _first(error: ValidationError) -> str:
    """Where the first mistake is, and what it is."""
    first = error.errors(include_input=False)[0]
    return f"{shortened('.'.join(map(str, first['loc'])))}: {shortened(first['msg'].removeprefix('Value error, '), 200)}"


def _expected(kind: type[Learned], graph: Topology, settings: Any, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """Names and shapes only: a card cannot make us allocate more than its file is long."""
    try:
        with torch.device("meta"):
            return kind.build(graph, settings).to(dtype).state_dict()
    except RuntimeError as error:
        raise InvalidInput(f"its settings ask for more numbers than can be counted ({shortened(error)})") from error


def _tensors(content: bytes) -> dict[str, torch.Tensor]:
    try:
        return load(content)
    except (
        SafetensorError,
        ValueError,
        TypeError,
        KeyError,
        ArithmeticError,
        RuntimeError,
    ) as error:  # damage, types torch lacks
        raise InvalidInput(f"not a file of tensors ({shortened(error)})") from error


def _checked(tensors: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    if set(tensors) != set(expected):
        found = shortened(", ".join(tensors), 100) or "none"
        raise InvalidInput(f"expected tensors {shortened(', '.join(expected), 100)}, found {found}")
    for name, value in tensors.items():
        asked = expected[name]
        if value.shape != asked.shape or value.dtype != asked.dtype:
            found = f"{shortened(tuple(value.shape))} in {value.dtype}"
            raise InvalidInput(f"{name} is {found}, expected {tuple(asked.shape)} in {asked.dtype}")
        if not bool(torch.isfinite(value).all()):
            raise InvalidInput(f"{name} contains NaN or Inf")
    return tensors
