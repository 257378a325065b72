"""The file a training goes on from: weights, Adam's moments, the best weights so far and the position, all in one."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save

from milodo.errors import LARGEST, InvalidInput, quoted, shortened
from milodo.files import FORMAT, atomic
from milodo.learned import Learned

MOMENTS = ("step", "exp_avg", "exp_avg_sq")
"""What torch's Adam knows of a parameter."""


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
    try:
        with atomic(path) as part:
            part.write_bytes(content)
    except OSError as error:
        said = f"{path}: where the training stands cannot be saved ({error.strerror or error})."
        before = "What was saved before is whole: free some space, and resume." if path.exists() else "Free some space."
        raise InvalidInput(f"{said} {before}", *["resume"] * path.exists()) from error


def load_position(path: Path, optimizer: Learned) -> tuple[Position, dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """The position, Adam's tensors and the best weights; the optimizer's own weights are put into it."""
    try:
        with safe_open(path, framework="pt") as file:
            said: dict[str, Any] = json.loads((file.metadata() or {}).get("milodo", "{}"))
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  # not a dict
    except FileNotFoundError:
        lacking = f"nothing to resume in {str(path.parent)!r}: it has no {path.name}. Overwrite it."
        raise InvalidInput(lacking, "overwrite") from None
    except (OSError, ValueError, RecursionError, SafetensorError) as error:
        raise InvalidInput(f"{path}: cannot be read ({shortened(error)}). Overwrite it.", "overwrite") from error
    names = {field.name for field in fields(Position)}
    if not isinstance(said, dict) or said.pop("format", None) != FORMAT or names != set(said):
        raise InvalidInput(f"{path}: not written by this milodo's `train`. Overwrite it.", "overwrite")
    if wrong := [name for name, value in said.items() if not _may_be(name, value)]:
        what = f"{wrong[0]} is {quoted(said[wrong[0]])}"
        raise InvalidInput(f"{path}: the file was edited or damaged: {what}. Overwrite it.", "overwrite")
    weights, best = _part("weights.", tensors), _part("best.", tensors)
    expected = {name: value.shape for name, value in optimizer.state_dict().items()}
    if any({name: value.shape for name, value in part.items()} != expected for part in (weights, best)):
        raise InvalidInput(f"{path}: holds another optimizer than this experiment trains. Overwrite it.", "overwrite")
    moments = {name: value for name, value in tensors.items() if name.startswith("adam.")}
    if not _are_moments(moments, optimizer):
        raise InvalidInput(f"{path}: its moments are not those of Adam on this optimizer. Overwrite it.", "overwrite")
    optimizer.load_state_dict(weights)
    return Position(**said), moments, best


def _may_be(name: str, value: Any) -> bool:
    """Whether a fact of a position has this value in some training."""
    if isinstance(value, bool):
        return False
    if name == "best":  # infinite as long as every validation has diverged
        return value is None or (isinstance(value, int | float) and (value == math.inf or abs(value) <= LARGEST))
    if isinstance(getattr(Position(), name), float):
        return isinstance(value, int | float) and 0 <= value <= LARGEST and (value > 0 or name != "lr_scale")
    return isinstance(value, int) and 0 <= value <= LARGEST


def _are_moments(moments: dict[str, torch.Tensor], optimizer: Learned) -> bool:
    """Whether there are all of them for each parameter that has any, in its shape."""
    left = set(moments)
    for name, parameter in optimizer.named_parameters():
        own = _part(f"adam.{name}.", moments)
        left -= {f"adam.{name}.{key}" for key in own}
        shapes = {key: () if key == "step" else tuple(parameter.shape) for key in MOMENTS}
        if own and {key: tuple(value.shape) for key, value in own.items()} != shapes:
            return False
    return not left


def _part(prefix: str, tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}
