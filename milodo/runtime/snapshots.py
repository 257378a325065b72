"""States on disk: one file a process and iteration, whole or absent, the same iterations in every process."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from milodo.errors import InvalidInput, quoted, shortened
from milodo.files import atomic
from milodo.network import Network
from milodo.tree import leaves, rebuilt

FORMAT = 4
"""Of a snapshot, since states are trees, links are drawn by the iteration, exchanges have replicas and checks are counted."""


class Snapshots:
    """A Keeper in a folder: rank 2 after 300 iterations is rank2-300.safetensors.

    Processes run ahead of each other by no more iterations than the graph is wide, so a few kept ones are enough for all to have
    one in common; `chosen` says which, once they have agreed.
    """

    def __init__(self, folder: Path, rank: int, net: Network, every: int, run: str) -> None:
        """`run` names what is computed; a snapshot of anything else is refused."""
        self.folder, self.rank, self.net, self.every, self.run = folder, rank, net, every, run
        self.kept = 2 + net.topology.reach // every
        self.chosen: int | None = None
        self.method = ""
        """Whose states these are: a fit may go on with another method, which does not begin from them."""
        self.notes: Callable[[], dict[str, Any]] = dict
        """What else to keep, asked for at every snapshot."""
        self.restored: Callable[[dict[str, Any] | None], object] = lambda notes: None
        """Told by `last` what was kept beside the state; None where there is nothing to go on from."""

    def available(self) -> list[int]:
        """Iterations of which this process has a snapshot."""
        return sorted(kept(self.folder).get(self.rank, []))

    def path(self, k: int) -> Path:
        return self.folder / f"rank{self.rank}-{k}.safetensors"

    def choose(self, available: list[list[int]]) -> None:
        """Goes on after the latest iteration that every process has, and forgets what lies beyond it."""
        self.chosen = common(available)
        self.forget(after=self.chosen or 0)

    def forget(self, after: int = 0) -> None:
        """Removes what this process has kept of later iterations."""
        for k in self.available():
            if k > after:
                self.path(k).unlink(missing_ok=True)
        if not after:
            with contextlib.suppress(OSError):  # others may still have theirs
                self.folder.rmdir()

    def keep(self, k: int, state: Any) -> None:
        if k == 0 or k % self.every:
            return
        parts = leaves(state)
        tensors = {n: v.detach().cpu().contiguous().clone() for n, v in parts.items() if isinstance(v, torch.Tensor)}
        others = {n: v for n, v in parts.items() if not isinstance(v, torch.Tensor)}
        facts = {**self._identity(k), "method": self.method, "others": others, "notes": self.notes()}
        facts |= {"traffic": self.net.traffic.to_json(), "checks": self.net.checks.to_json()}
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with atomic(self.path(k)) as part:
                save_file(tensors, part, metadata={"milodo": json.dumps(facts)})
        except (OSError, SafetensorError) as error:
            raise InvalidInput(*self._unwritten(k, error)) from error
        for old in self.available()[: -self.kept]:
            self.path(old).unlink(missing_ok=True)

    def _unwritten(self, k: int, error: Exception) -> tuple[str, ...]:
        """What to say, and the remedy."""
        why = error.strerror if isinstance(error, OSError) else shortened(str(error).rpartition("I/O error: ")[2])
        said = f"{self.path(k)}: the snapshot after {k} iterations cannot be written ({why})."
        if not (before := self.available()):
            return (f"{said} There is none before it. Free some space, and start again.",)
        return f"{said} That after {before[-1]} iterations is whole: free some space, and resume.", "resume"

    def _identity(self, k: int) -> dict[str, Any]:
        return {"format": FORMAT, "run": self.run, "k": k}

    def last(self, first: Any) -> tuple[int, Any] | None:
        if self.chosen is None:
            self.restored(None)
            return None
        path = self.path(self.chosen)
        try:
            with safe_open(path, framework="pt") as file:
                facts = json.loads((file.metadata() or {}).get("milodo", "null"))
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  # not a dict
        except (OSError, SafetensorError, ValueError, RecursionError) as error:
            raise InvalidInput(f"{path}: not a snapshot ({shortened(error)}). Start again without resuming.") from error
        if not isinstance(facts, dict) or not self._identity(self.chosen).items() <= facts.items():
            raise InvalidInput(f"{path}: a snapshot of another run. Start again without resuming, or in another folder.", "out")
        if facts.get("method", self.method) != self.method:
            self.restored(None)
            return None
        try:
            if not isinstance(others := facts["others"], dict):
                raise ValueError(f"its other parts are {quoted(others)}")
            parts = {name: _leaf(name, value, tensors, others) for name, value in leaves(first).items()}
            self.net.traffic.restore(facts["traffic"])
            self.net.checks.restore(facts["checks"])
            self.restored(facts["notes"])
        except InvalidInput:
            raise
        except (KeyError, TypeError, ValueError, ArithmeticError, LookupError, AttributeError, RuntimeError) as error:
            what = f"lacks {shortened(error)}" if isinstance(error, KeyError) else f"does not fit this run ({shortened(error)})"
            raise InvalidInput(f"{path}: {what}. Start again without resuming, or in another folder.", "out") from error
        return self.chosen, rebuilt(first, parts)


def _leaf(name: str, like: Any, tensors: dict[str, torch.Tensor], others: dict[str, Any]) -> Any:
    """Of a state, as it was kept, if it is of the kind that the state has there."""
    if not isinstance(like, torch.Tensor):
        found = others[name]
        numbers = (int, float) if isinstance(like, float) else type(like)
        if not isinstance(found, numbers) or isinstance(found, bool) != isinstance(like, bool):
            raise ValueError(f"{name} is {quoted(found)}")
        return None if like is None else type(like)(found)
    kept = tensors[name]
    if kept.shape != like.shape or kept.dtype != like.dtype:
        raise ValueError(f"{name} is {shortened(tuple(kept.shape))} in {kept.dtype}")
    return kept.to(like.device)


def kept(folder: Path) -> dict[int, list[int]]:
    """Iterations of which there is a snapshot, by rank."""
    found: dict[int, list[int]] = {}
    for path in folder.iterdir() if folder.is_dir() else ():
        if match := re.fullmatch(r"rank(\d+)-(\d+)\.safetensors", path.name):
            found.setdefault(int(match[1]), []).append(int(match[2]))
    return found


def forget_all(folder: Path, ranks: Callable[[int], bool]) -> None:
    """Removes all snapshots of these ranks, of whichever method and start, and what a kill left half-written of them."""
    for place in [*(path for path in folder.glob("*") if path.is_dir()), folder]:
        with contextlib.suppress(OSError):  # gone meanwhile, or others may still have theirs
            for path in place.iterdir():
                if (match := re.match(r"\.?rank(\d+)-\d+\.safetensors", path.name)) and ranks(int(match[1])):
                    path.unlink(missing_ok=True)
            place.rmdir()


def common(available: list[list[int]]) -> int | None:
    """The latest iteration of which every process has a snapshot."""
    shared = set(available[0]).intersection(*available[1:])
    return max(shared, default=None)


def latest(folder: Path, processes: int = 1) -> tuple[Path, int] | None:
    """The newest folder with snapshots of this many processes, and the latest iteration that all of them have."""
    newest: tuple[float, Path, int] | None = None
    for place in [folder, *(path for path in folder.glob("*") if path.is_dir())] if folder.is_dir() else []:
        found = list(kept(place).values())
        k = common(found) if len(found) >= processes else None
        if k is not None and (newest is None or place.stat().st_mtime > newest[0]):
            newest = (place.stat().st_mtime, place, k)
    return None if newest is None else newest[1:]
