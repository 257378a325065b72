"""The file a training goes on from: weights, Adam's moments, the best weights so far and the position, all in one."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save

from milodo.errors import InvalidInput
from milodo.files import FORMAT, atomic
from milodo.learned import Learned


@dataclass
class Position:
    """Where a training stands; between two batches this and the weights are all there is to know."""

    stage: int = 0
    epoch: int = 0
    batch: int = 0
    update: int = 0
    """Adam steps done."""
    iterations: int = 0
    """Of the optimizer, unrolled in training."""
    validated: int = 0
    """Iterations at the last validation."""
    rows: int = 0
    """Written to training.csv."""
    rollbacks: int = 0
    failures: int = 0
    """Batches in a row that were rolled back."""
    lr_scale: float = 1.0
    best: float | None = None
    """The best validation score."""
    best_update: int = 0
    seconds: float = 0.0


def adam_state(optimizer: Learned, adam: torch.optim.Adam) -> dict[str, torch.Tensor]:
    """Adam's moments and counters by the names of their parameters; empty before the first step."""
    moments = {name: adam.state.get(parameter, {}) for name, parameter in optimizer.named_parameters()}
    return {f"adam.{name}.{key}": value.clone() for name, state in moments.items() for key, value in state.items()}


def restore_adam(optimizer: Learned, adam: torch.optim.Adam, tensors: dict[str, torch.Tensor]) -> None:
    adam.state.clear()
    for name, parameter in optimizer.named_parameters():
        if state := _part(f"adam.{name}.", tensors):
            adam.state[parameter] = {key: value.clone() for key, value in state.items()}


def save_position(
    path: Path, optimizer: Learned, adam: torch.optim.Adam, best: dict[str, torch.Tensor], position: Position
) -> None:
    tensors = {f"weights.{name}": value for name, value in optimizer.state_dict().items()}
    tensors |= adam_state(optimizer, adam) | {f"best.{name}": value for name, value in best.items()}
    tensors = {name: value.detach().cpu().contiguous() for name, value in tensors.items()}
    content = save(tensors, {"milodo": json.dumps({"format": FORMAT, **asdict(position)})})
    with atomic(path) as part:
        part.write_bytes(content)


def load_position(path: Path, optimizer: Learned) -> tuple[Position, dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """The position, Adam's tensors and the best weights; the optimizer's own weights are put into it."""
    try:
        with safe_open(path, framework="pt") as file:
            said: dict[str, Any] = json.loads((file.metadata() or {}).get("milodo", "{}"))
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  # not a dict
    except FileNotFoundError:
        lacking = f"nothing to resume in {str(path.parent)!r}: it has no {path.name}. Overwrite it."
        raise InvalidInput(lacking, "overwrite") from None
    except (OSError, ValueError, SafetensorError) as error:
        raise InvalidInput(f"{path}: cannot be read ({error}). Overwrite it.", "overwrite") from error
    if said.pop("format", None) != FORMAT or {field.name for field in fields(Position)} != set(said):
        raise InvalidInput(f"{path}: not written by this milodo's `train`. Overwrite it.", "overwrite")
    weights, best = _part("weights.", tensors), _part("best.", tensors)
    expected = {name: value.shape for name, value in optimizer.state_dict().items()}
    if any({name: value.shape for name, value in part.items()} != expected for part in (weights, best)):
        raise InvalidInput(f"{path}: holds another optimizer than this experiment trains. Overwrite it.", "overwrite")
    optimizer.load_state_dict(weights)
    return Position(**said), {name: value for name, value in tensors.items() if name.startswith("adam.")}, best


def _part(prefix: str, tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}
