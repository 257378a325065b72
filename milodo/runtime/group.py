"""Joining: processes meet at a store, say what they are, and agree or are refused by name; and how they leave.

The store (torch's TCPStore) is the meeting point: addresses for the first connection, a few facts before the first iteration,
signs of life, and who stopped why. No iterate and no data go through it.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch.distributed import PrefixStore, Store  # pyright: ignore[reportPrivateImportUsage]

from milodo.errors import InvalidInput, Stopped, shortened
from milodo.network.distributed import TIMEOUT, PeerLost, never_free
from milodo.network.greeting import GREETINGS, Greeting
from milodo.runtime.meeting import (
    PARTING,
    PAUSE,
    WAITING,
    RollCall,
    all_here,
    kept_meeting_point,
    loopback_interface,
    master_address,
    meeting_point,
    number,
    within,
)
from milodo.runtime.rank_claims import NAMED
from milodo.runtime.sealed import read_table
from milodo.secret import PUBLIC, Secret, given_secret, run_secret
from milodo.version import __version__

GRACE = 1.0
"""Seconds in which a process that lost a neighbour looks whether that one only stopped because of another."""
LAUNCHED = "MILODO_LAUNCHED"
"""Set by `milodo run` for the processes it starts."""
T = TypeVar("T")


@dataclass
class Group:
    """The processes that compute together, seen from one of them."""

    rank: int
    world: int
    store: Store
    timeout: float
    restarted: bool = False
    """Whether torchrun has started this process again."""
    beats: dict[int, tuple[str, float]] = field(default_factory=dict)
    """When each process last gave a new sign of life, as seen from here."""

    def _ask(self, call: Callable[[], T]) -> T:
        return _asked(self.timeout, call)

    def tell(self, key: str, content: dict[str, Any]) -> None:
        self._ask(lambda: self.store.set(key, json.dumps(content)))

    def _knows(self, *keys: str) -> bool:
        return self._ask(lambda: self.store.check(list(keys)))

    def _read(self, key: str) -> dict[str, Any]:
        return self._ask(lambda: read_table(self.store, key))

    def hear(self, key: str, of: int = 0) -> dict[str, Any]:
        """What process `of` tells; waits for it as long as that one lives, and stops if anybody stops meanwhile."""
        while not self._knows(key):
            self.heed()
            self._check_life(of)
            time.sleep(PAUSE)
        return self._read(key)

    def _check_life(self, rank: int) -> None:
        now, key = time.monotonic(), f"beat/{rank}"
        beat = self._ask(lambda: self.store.get(key)).decode() if self._knows(key) else ""
        if rank not in self.beats or self.beats[rank][0] != beat:
            self.beats[rank] = (beat, now)
        elif now - self.beats[rank][1] > self.timeout and rank != self.rank:
            sentence = f"rank {rank} gave no sign of life for {self.timeout:g} s. If it is only slow, allow a longer timeout"
            self.stop(sentence, blames=rank)
            raise Stopped(sentence, said=not self.first_to_speak())

    def beat(self, until: threading.Event) -> None:
        """Signs of life, from a thread of their own; a process that is stopped gives none."""
        count = 0
        while not until.wait(max(0.05, self.timeout / 8)):
            count += 1
            with contextlib.suppress(RuntimeError):
                self.store.set(f"beat/{self.rank}", str(count))

    def heed(self) -> None:
        """Stops here if somebody has stopped elsewhere."""
        if self._knows("stopped"):
            notice = self._read(f"stopped/{self._ask(lambda: self.store.get('stopped')).decode()}")
            raise Stopped(notice["sentence"], said=notice["host"] == socket.gethostname())

    def meet(self, where: str) -> None:
        """Returns when all have come here; stops if anybody stops instead. Before the first message: who never connected cannot
        be seen to have gone."""
        self.tell(f"{where}/{self.rank}", {})
        for rank in range(self.world):
            self.hear(f"{where}/{rank}", rank)

    def agree(self, facts: dict[str, Any], called_by: Callable[[int], str]) -> list[dict[str, Any]]:
        """Everybody's facts, those under 'same' being the same everywhere: who differs from process 0 is named."""
        mine = {"same": {"milodo": __version__, "torch": torch.__version__, **facts.pop("same", {})}, **facts}
        self.tell(f"facts/{self.rank}", {**mine, "restarted": self.restarted})
        everybody = [self.hear(f"facts/{rank}", rank) for rank in range(self.world)]
        for rank, other in enumerate(everybody):
            for what, value in everybody[0]["same"].items():
                if (theirs := other["same"].get(what)) != value:
                    here, there = f"{called_by(0)} has {shortened(value)}", f"its {what} is {shortened(theirs)}"
                    raise InvalidInput(f"{called_by(rank)} is refused: {there}, but {here}. Start all with the same.")
        self.restarted = any(other["restarted"] for other in everybody)
        return everybody

    def stop(self, sentence: str, blames: int | None = None) -> None:
        """Leaves word that this process ends, and why."""
        with contextlib.suppress(Stopped):
            self.tell(f"stopped/{self.rank}", {"sentence": sentence, "blames": blames, "host": socket.gethostname()})
            self._ask(lambda: self.store.compare_set("stopped", "", str(self.rank)))  # the first one counts

    def culprit(self, lost: PeerLost) -> int | None:
        """Who really stopped: the neighbour, unless it blames its own neighbour, and so on. None if it said so itself."""
        rank, until, seen = lost.rank, time.monotonic() + GRACE, {self.rank}
        while rank not in seen:
            while not self._knows(f"stopped/{rank}"):
                if time.monotonic() > until:
                    return rank
                time.sleep(PAUSE)
            blames = self._read(f"stopped/{rank}")["blames"]
            if blames is None:
                return None
            seen.add(rank)
            rank = blames
        return rank

    def first_to_speak(self) -> bool:
        """Whether nobody on this host has reported the end yet: one message a host is enough."""
        try:
            own, key = f"{self.rank}/{os.getpid()}", f"said/{socket.gethostname()}"
            return self._ask(lambda: self.store.compare_set(key, "", own)).decode() == own
        except (Stopped, InvalidInput):
            return True

    def leave(self, *, stays: float) -> None:
        """Says good-bye; the process that holds the meeting point stays until all others have, or had time to."""
        self.tell(f"left/{self.rank}", {})
        until = time.monotonic() + stays
        while time.monotonic() < until and not self._knows(*(f"left/{other}" for other in range(self.world))):
            time.sleep(PAUSE)


def _asked(seconds: float, call: Callable[[], T]) -> T:
    """Of the meeting point."""
    try:
        return within(seconds, call)
    except (TimeoutError, RuntimeError) as error:
        raise Stopped("the meeting point (rank 0, or torchrun's) is gone, or hangs") from error


def launched() -> bool:
    """Whether this process was started as one of several (torchrun, milodo run, or by hand with RANK and WORLD_SIZE)."""
    return "RANK" in os.environ and "WORLD_SIZE" in os.environ


@contextmanager
def joined(
    timeout: float = TIMEOUT, device: str = "cpu", *, again: bool = False, secret: Secret | None = None,
    warn: Callable[[str], None] = warnings.warn,
) -> Iterator[Group]:  # fmt: skip
    """Meets the others where MASTER_ADDR and MASTER_PORT say, as RANK of WORLD_SIZE; `again` if a program may do so twice.

    Only processes that know the secret take part: the one given, that in MILODO_SECRET, or, if all processes are on this machine,
    the user's own. Process 0 warns of others who tried. Connections are opened only when two processes first talk
    (TORCH_GLOO_LAZY_INIT), so only between neighbours.
    """
    rank, world = number("RANK"), number("WORLD_SIZE")
    secret = secret or run_secret(master_address(), all_here=all_here())
    if not 0 <= rank < world:
        _warn_the_others(rank, world, secret)
        raise InvalidInput(f"RANK is {rank} and WORLD_SIZE is {world}: ranks go from 0 to {world - 1}.")
    os.environ.setdefault("TORCH_GLOO_LAZY_INIT", "1")
    bare, hosts = kept_meeting_point(rank, timeout) if again else meeting_point(rank, timeout)
    roll = RollCall(PrefixStore("milodo", bare), rank, world, timeout, secret)
    store = _asked(timeout + PARTING, roll.take)
    group = Group(rank, world, store, timeout, restarted=int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0)
    over, stays = threading.Event(), PARTING if hosts else 0.0
    threading.Thread(target=group.beat, args=(over,), name=WAITING, daemon=True).start()
    try:
        if roll.verdict:
            raise InvalidInput(roll.verdict)
        refused = _refused(roll, warn)
        _start_torch(group, device, Greeting(secret, roll.life))
        yield group
        _refused(roll, warn, refused)
        stays = timeout if hosts else 0.0
    except InvalidInput as error:
        group.stop(f"rank {rank} cannot go on; its own message says why")  # in full only here: it may quote data
        if not group.first_to_speak():
            raise Stopped(str(error), said=True) from error
        raise
    except PeerLost as lost:
        raise _blamed(group, lost) from lost
    except KeyboardInterrupt:
        group.stop(f"rank {rank} was stopped by its user")
        raise
    except Stopped as stopped:
        stopped.said = stopped.said or not group.first_to_speak()
        raise
    except Exception:
        group.stop(f"rank {rank} failed; its own message says why")
        raise
    finally:
        if (error := sys.exc_info()[1]) is not None:
            never_free(error)  # with its traceback, and what the functions in it had posted
        over.set()
        with contextlib.suppress(Stopped):
            group.leave(stays=stays)
        if dist.is_initialized():
            dist.destroy_process_group()


@dataclass(frozen=True)
class Among:
    """The processes that were started together, as far as a training loop needs them."""

    world: int
    group: Group | None
    """None where the program itself has initialised torch.distributed."""

    def agree(self, facts: dict[str, str]) -> None:
        """That these are the same everywhere; who differs is named. Where the group is the program's own there is no place to
        compare them."""
        if self.group is not None:
            self.group.agree({"same": facts}, lambda rank: f"node {rank} (rank {rank})")


@contextmanager
def among_others(timeout: float = TIMEOUT, device: str = "cpu") -> Iterator[Among]:
    """In the group that the program has initialised, or else in one that lasts as long as this does."""
    if dist.is_initialized():
        GREETINGS.setdefault(dist.group.WORLD, Greeting(given_secret() or PUBLIC, ""))
        yield Among(dist.get_world_size(), None)
        return
    if not launched():
        raise InvalidInput(
            "this process was started alone, and gossip is one process a node. Start it with torchrun, as many "
            "processes as there are nodes; for all of them in one process see milodo.Neural."
        )
    with joined(timeout, device, again=True) as group:
        yield Among(group.world, group)


def _refused(roll: RollCall, warn: Callable[[str], None], before: Sequence[str] = ()) -> Sequence[str]:
    """Warns of strangers who have tried to take part, once of each; process 0 alone does."""
    strangers: Sequence[str] = ()
    if roll.rank == 0:
        with contextlib.suppress(Stopped):
            strangers = _asked(roll.timeout, roll.guests).strangers
    for sentence in [sentence for sentence in strangers if sentence not in before][:NAMED]:
        warn(sentence)
    return strangers


def _warn_the_others(rank: int, world: int, secret: Secret) -> None:
    """Those who are at the meeting point already would wait for a process that is about to be refused."""
    if rank > 0:
        with contextlib.suppress(InvalidInput, RuntimeError, TimeoutError):
            store = PrefixStore("milodo", meeting_point(rank, GRACE)[0])
            within(2 * GRACE, RollCall(store, rank, world, GRACE, secret).take)


@contextmanager
def _on_loopback() -> Iterator[None]:
    """Where all processes are on this machine, gloo listens at its loopback address only, unless its user says otherwise."""
    name, wanted = "GLOO_SOCKET_IFNAME", loopback_interface() if all_here() else None
    if wanted is None or name in os.environ:
        yield
        return
    os.environ[name] = wanted
    try:
        yield
    finally:
        del os.environ[name]


def _start_torch(group: Group, device: str, greeting: Greeting) -> None:
    limit, backend = timedelta(seconds=group.timeout), "nccl" if device.startswith("cuda") else "gloo"
    if backend == "nccl" and ":" not in device:
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    try:
        store = PrefixStore("group", group.store)
        with _on_loopback():
            dist.init_process_group(backend, store=store, rank=group.rank, world_size=group.world, timeout=limit)
        GREETINGS[dist.group.WORLD] = greeting
    except InvalidInput:
        raise
    except (RuntimeError, ValueError) as error:
        said = str(error).splitlines()[0]
        raise InvalidInput(
            f"torch.distributed cannot start ({said}). Is GLOO_SOCKET_IFNAME, if set, an interface here?"
        ) from error


def _blamed(group: Group, lost: PeerLost) -> Stopped:
    try:
        group.stop(str(lost), blames=lost.rank)
        guilty = group.culprit(lost)
        if guilty is None:
            group.heed()
        sentence = str(lost) if guilty in (None, lost.rank) else lost.because_of(guilty)
        return Stopped(sentence, said=not group.first_to_speak())
    except Stopped as stopped:
        if "meeting point" in str(stopped):
            return Stopped(f"{lost}; and {stopped}")
        return stopped


def flat(table: dict[str, Any], before: str = "") -> dict[str, str]:
    """{'run': {'iterations': 5}} -> {'run.iterations': '5'}: so that a difference can be named."""
    found = {}
    for key, value in table.items():
        found |= flat(value, f"{before}{key}.") if isinstance(value, dict) else {f"{before}{key}": str(value)}
    return found
