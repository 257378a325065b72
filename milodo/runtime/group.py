"""Joining: processes meet at a store, say what they are, and agree or are refused by name; and how they leave.

The store (torch's TCPStore) is the meeting point: addresses for the first connection, a few facts before the first iteration,
and who stopped why. No iterate and no data go through it.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import PrefixStore, Store, TCPStore  # pyright: ignore[reportPrivateImportUsage]

import milodo
from milodo.errors import InvalidInput
from milodo.network.distributed import TIMEOUT, PeerLost, called

GRACE = 1.0
"""Seconds in which a process that lost a neighbour looks whether that one only stopped because of another."""
LAUNCHED = "MILODO_LAUNCHED"
"""Set by `milodo run` for the processes it starts."""


class Stopped(Exception):
    """This process ends because another one did; `said` tells whether somebody on this host has already said why."""

    def __init__(self, sentence: str, said: bool) -> None:
        super().__init__(sentence)
        self.said = said


@dataclass
class Group:
    """The processes that compute together, seen from one of them."""

    rank: int
    world: int
    store: Store
    timeout: float

    def tell(self, key: str, content: dict[str, Any]) -> None:
        self.store.set(key, json.dumps(content))

    def hear(self, key: str, *, patience: float | None = None, missing: str = "") -> dict[str, Any]:
        """What somebody told; waits for it, and stops if anybody stops meanwhile."""
        until = time.monotonic() + patience if patience is not None else float("inf")
        while not self.store.check([key]):
            self.heed()
            if time.monotonic() > until:
                raise InvalidInput(f"{missing} within {patience:g} s. Start it, or wait longer with --timeout.")
            time.sleep(0.02)
        content = json.loads(self.store.get(key))
        if not isinstance(content, dict):
            raise InvalidInput(f"what stands under {key!r} at the meeting point was not written by milodo. Use another port.")
        return content

    def heed(self) -> None:
        """Stops here if somebody has stopped elsewhere."""
        if self.store.check(["stopped"]):
            rank = int(self.store.get("stopped"))
            notice = self._notice(rank)
            raise Stopped(notice["sentence"], said=notice["host"] == socket.gethostname())

    def meet(self, where: str) -> None:
        """Returns when all have come here; stops if anybody stops instead. Before the first message: who never connected cannot
        be seen to have gone."""
        self.tell(f"{where}/{self.rank}", {})
        for rank in range(self.world):
            self.hear(f"{where}/{rank}")

    def agree(self, facts: dict[str, Any], called_by: Callable[[int], str]) -> list[dict[str, Any]]:
        """Everybody's facts, those under 'same' being the same everywhere: who differs from process 0 is named."""
        mine = {"same": {"milodo": milodo.__version__, "torch": torch.__version__, **facts.pop("same", {})}, **facts}
        self.tell(f"facts/{self.rank}", mine)
        everybody = [
            self.hear(f"facts/{rank}", patience=self.timeout, missing=f"{called_by(rank)} did not appear")
            for rank in range(self.world)
        ]
        for rank, other in enumerate(everybody):
            for what, value in everybody[0]["same"].items():
                if other["same"].get(what) != value:
                    raise InvalidInput(
                        f"{called_by(rank)} is refused: its {what} is {_short(other['same'].get(what))}, but {called_by(0)} has "
                        f"{_short(value)}. Start all with the same."
                    )
        return everybody

    def stop(self, sentence: str, blames: int | None = None) -> None:
        """Leaves word that this process ends, and why."""
        self.tell(f"stopped/{self.rank}", {"sentence": sentence, "blames": blames, "host": socket.gethostname()})
        self.store.compare_set("stopped", "", str(self.rank))  # the first one counts

    def leave(self, *, stays: bool) -> None:
        """Says good-bye; the process that holds the meeting point stays until all others have, or had time to."""
        self.tell(f"left/{self.rank}", {})
        until = time.monotonic() + self.timeout
        while stays and time.monotonic() < until:
            if self.store.check([f"left/{other}" for other in range(self.world)]):
                return
            time.sleep(0.02)

    def _notice(self, rank: int) -> dict[str, Any]:
        return json.loads(self.store.get(f"stopped/{rank}"))

    def culprit(self, lost: PeerLost) -> int | None:
        """Who really stopped: the neighbour, unless it blames its own neighbour, and so on. None if it said so itself."""
        rank, until, seen = lost.rank, time.monotonic() + GRACE, {self.rank}
        while rank not in seen:
            while not self.store.check([f"stopped/{rank}"]):
                if time.monotonic() > until:
                    return rank
                time.sleep(0.02)
            blames = self._notice(rank)["blames"]
            if blames is None:
                return None
            seen.add(rank)
            rank = blames
        return rank

    def first_to_speak(self) -> bool:
        """Whether nobody on this host has reported the end yet: one message a host is enough."""
        return self.store.add(f"said/{socket.gethostname()}", 1) == 1


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 40 else text[:12] + "..."


def launched() -> bool:
    """Whether this process was started as one of several (torchrun, milodo run, or by hand with RANK and WORLD_SIZE)."""
    return "RANK" in os.environ and "WORLD_SIZE" in os.environ


def _number(name: str) -> int:
    try:
        return int(os.environ[name])
    except KeyError:
        raise InvalidInput(
            f"{name} is not set, but RANK is: start with torchrun, or set RANK, WORLD_SIZE and MASTER_PORT."
        ) from None
    except ValueError:
        raise InvalidInput(f"{name} is {os.environ[name]!r}, but it must be a whole number.") from None


@contextmanager
def joined(timeout: float = TIMEOUT, device: str = "cpu") -> Iterator[Group]:
    """Meets the others where MASTER_ADDR and MASTER_PORT say, as RANK of WORLD_SIZE.

    Connections are opened only when two processes first talk (TORCH_GLOO_LAZY_INIT), so only between neighbours.
    """
    rank, world, port = _number("RANK"), _number("WORLD_SIZE"), _number("MASTER_PORT")
    address = os.environ.get("MASTER_ADDR", "127.0.0.1")
    if not 0 <= rank < world:
        raise InvalidInput(f"RANK is {rank} and WORLD_SIZE is {world}: ranks go from 0 to {world - 1}.")
    os.environ.setdefault("TORCH_GLOO_LAZY_INIT", "1")
    hosts = rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
    limit = timedelta(seconds=timeout)
    try:
        bare = TCPStore(address, port, None, is_master=hosts, timeout=limit, wait_for_workers=False)
    except RuntimeError as error:
        if hosts and "EADDRINUSE" in str(error):
            raise InvalidInput(
                f"port {port} is in use on this machine. Choose another (MASTER_PORT, or --master-port)."
            ) from error
        raise InvalidInput(
            f"no meeting point at {address}:{port} within {timeout:g} s. Is rank 0 running, and reachable from here?"
        ) from error
    life = f"milodo/{os.environ.get('TORCHELASTIC_RUN_ID', '')}/{os.environ.get('TORCHELASTIC_RESTART_COUNT', 0)}"
    store = PrefixStore(life, bare)
    group = Group(rank, world, store, timeout)
    backend = "nccl" if device.startswith("cuda") else "gloo"
    try:
        dist.init_process_group(backend, store=PrefixStore("group", store), rank=rank, world_size=world, timeout=limit)
        yield group
    except InvalidInput as error:
        group.stop(str(error))
        if not group.first_to_speak():
            raise Stopped(str(error), said=True) from error
        raise
    except PeerLost as lost:
        raise _blamed(group, lost) from lost
    except KeyboardInterrupt:
        group.stop("stopped by the user")
        raise
    except Stopped as stopped:
        stopped.said = stopped.said or not group.first_to_speak()
        raise
    except Exception as error:
        group.stop(f"rank {rank} failed: {error}")
        raise
    finally:
        with contextlib.suppress(RuntimeError):  # the meeting point may be gone
            group.leave(stays=hosts)
        if dist.is_initialized():
            dist.destroy_process_group()


def _blamed(group: Group, lost: PeerLost) -> Stopped:
    try:
        group.stop(str(lost), blames=lost.rank)
        guilty = group.culprit(lost)
        if guilty is None:
            group.heed()
        sentence = str(lost) if guilty in (None, lost.rank) else lost.because_of(guilty)
        return Stopped(sentence, said=not group.first_to_speak())
    except Stopped as stopped:
        return stopped
    except RuntimeError:  # the meeting point is gone as well
        return Stopped(f"{lost}; and the meeting point (rank 0, or torchrun's) cannot be reached", said=False)


def node_names(held: list[tuple[int, ...]]) -> Callable[[int], str]:
    return lambda rank: called(held[rank], rank)
