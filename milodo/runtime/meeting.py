"""The meeting point: finding the store at MASTER_ADDR and MASTER_PORT, and who has come there for this start."""

from __future__ import annotations

import os
import socket
import threading
import time
import uuid
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, TypeVar

from torch.distributed import PrefixStore, Store, TCPStore  # pyright: ignore[reportPrivateImportUsage]

from milodo.errors import InvalidInput

PARTING = 3.0
"""Seconds the process that holds the meeting point stays for the others after something went wrong."""
PAUSE = 0.02
"""Seconds between two looks at the meeting point."""
KNOCK = 0.2
"""Seconds between two attempts to reach a meeting point that is not there yet."""
WAITING = "milodo-waits"
"""Name of the threads that may still wait in torch's C++ when the program ends."""
T = TypeVar("T")


def within(seconds: float, call: Callable[[], T]) -> T:
    """The call's result; TimeoutError if it takes longer. The store's own calls wait for ever for a host that hangs."""
    result = Future[T]()

    def work() -> None:
        try:
            result.set_result(call())
        except Exception as error:
            result.set_exception(error)

    threading.Thread(target=work, name=WAITING, daemon=True).start()
    return result.result(seconds)


def still_waiting() -> bool:
    """Whether a call that took too long is still under way; Python would abort if it ended the ordinary way meanwhile."""
    return any(thread.name == WAITING for thread in threading.enumerate())


def number(name: str) -> int:
    try:
        return int(os.environ[name])
    except KeyError:
        raise InvalidInput(
            f"{name} is not set, but RANK is: start with torchrun, or set RANK, WORLD_SIZE, MASTER_PORT."
        ) from None
    except ValueError:
        raise InvalidInput(f"{name} is {os.environ[name]!r}, but it must be a whole number.") from None


def launcher_holds_it() -> bool:
    """Whether torchrun or `milodo run` holds the meeting point, which then outlives the processes that meet there."""
    return os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"


def meeting_point(rank: int, timeout: float) -> tuple[Store, bool]:
    """The store at MASTER_ADDR and MASTER_PORT, and whether it lives in this process."""
    port, address = number("MASTER_PORT"), os.environ.get("MASTER_ADDR") or "127.0.0.1"
    if not 0 < port < 65536:
        raise InvalidInput(f"MASTER_PORT is {port}, but ports go from 1 to 65535.")
    hosts, limit = rank == 0 and not launcher_holds_it(), timedelta(seconds=timeout)
    try:
        _try_until(timeout, lambda left: socket.getaddrinfo(address, port) if hosts else _knock(address, port, left))
    except (OSError, ValueError) as error:
        raise _unreachable(address, port, timeout, hosts, error) from error
    try:
        make = lambda: TCPStore(address, port, None, is_master=hosts, timeout=limit, wait_for_workers=False)  # noqa: E731
        return within(timeout + PARTING, make), hosts
    except (RuntimeError, TimeoutError) as error:
        if not hosts:
            said = f"something listens at {address}:{port}, but it is no meeting point of milodo. Choose another MASTER_PORT."
        elif "EADDRINUSE" in str(error):
            said = f"port {port} is in use on this machine. Choose another MASTER_PORT."
        else:
            raise _unreachable(address, port, timeout, hosts, error) from error
        raise InvalidInput(said) from error


KEPT: dict[tuple[str, str], tuple[Store, bool]] = {}
"""By address and port."""


def kept_meeting_point(rank: int, timeout: float) -> tuple[Store, bool]:
    """The same, there until this program ends: who met there once may meet there again, and not in one that is just going."""
    where = os.environ.get("MASTER_ADDR", ""), os.environ.get("MASTER_PORT", "")
    if where not in KEPT:
        KEPT[where] = meeting_point(rank, timeout)
    return KEPT[where]


def _try_until(timeout: float, attempt: Callable[[float], Any]) -> None:
    """Until it succeeds, or time is up. torch's own client would report every attempt with a page of C++ frames."""
    until = time.monotonic() + timeout
    while True:
        left = max(until - time.monotonic(), KNOCK)
        try:
            within(left, lambda: attempt(left))  # noqa: B023  # called before the next round
            return
        except OSError:
            if time.monotonic() + KNOCK > until:
                raise
        time.sleep(KNOCK)


def _knock(address: str, port: int, seconds: float) -> None:
    with socket.create_connection((address, port), timeout=seconds) as line:
        if line.getsockname()[1] == port:  # a call to a free port of this machine may be given this very port, and reach itself
            raise ConnectionRefusedError


def _unreachable(address: str, port: int, timeout: float, hosts: bool, error: Exception) -> InvalidInput:
    if isinstance(error, (socket.gaierror, ValueError)):  # ValueError: no host could have such a name
        why = getattr(error, "strerror", None) or "no host can be called so"
        return InvalidInput(f"MASTER_ADDR is {address!r}, which is no address ({why}). Give the name or IP of rank 0's machine.")
    hint = "MASTER_ADDR must be this machine's for rank 0." if hosts else "Is rank 0 running, and reachable from here?"
    return InvalidInput(f"no meeting point at {address}:{port} within {timeout:g} s. {hint}")


@dataclass
class RollCall:
    """Who takes part in this start of all processes; earlier ones may have left their words in the store.

    Everybody enters a name made up now; process 0 calls all names it finds; who hears its own answers. When everybody has
    answered, process 0 lets them go; when one has who was told another WORLD_SIZE, it lets them go home: `verdict` says why.
    (torchrun counts restarts differently on every host, so its counter cannot tell; and only who answers is there now.)
    """

    store: Store
    rank: int
    world: int
    timeout: float
    verdict: str = ""
    life: str = ""
    called: dict[int, str] = field(default_factory=dict)
    """The names last called, by rank."""

    def __post_init__(self) -> None:
        self.mine = f"{self.rank}/{self.world}/{uuid.uuid4().hex}"

    def take(self) -> Store:
        """The part of the store that belongs to this start."""
        until = time.monotonic() + self.timeout
        self.store.append("guests", f"{self.mine},")  # pyright: ignore[reportAttributeAccessIssue]  # missing in torch's stubs
        while not self._may_go():
            if time.monotonic() > until:
                raise self._too_late()
            time.sleep(PAUSE)
        return PrefixStore(self.life, self.store)

    def _may_go(self) -> bool:
        if self.rank == 0:
            self._lead()
        if not self.store.check(["life"]):
            return False
        self.life, names = self.store.get("life").decode().split(" ", 1)
        self.called = _by_rank(names)
        named = self._is_named()
        if named:
            self.store.set(f"{self.life}/answer/{self.rank}", "")
        if not self.store.check([f"{self.life}/go"]):
            return False
        self.verdict = self.store.get(f"{self.life}/go").decode()
        if not named and not launcher_holds_it():  # rank 0 holds the store, so these are words of this start
            # The others have begun without us; if they were told another number, there is no place to wait for.
            theirs = _world(self.called[0])
            if theirs != self.world and not self.verdict:
                raise InvalidInput(_differ({0: theirs, self.rank: self.world}))
            return bool(self.verdict)
        return named

    def _is_named(self) -> bool:
        return self.mine in self.called.values()

    def _lead(self) -> None:
        guests = _by_rank(self.store.get("guests").decode())
        if guests[0] != self.mine:  # started again since; that one leads
            return
        if guests != self.called:
            self.life = uuid.uuid4().hex
            self.store.set("life", f"{self.life} {','.join(guests.values())}")
            return
        worlds = {rank: _world(guests[rank]) for rank in sorted(guests) if self._answered(rank)}
        if any(world != self.world for world in worlds.values()):
            self.store.set(f"{self.life}/go", _differ(worlds))
        elif all(rank in worlds for rank in range(self.world)):
            self.store.set(f"{self.life}/go", "")

    def _answered(self, rank: int) -> bool:
        return self.store.check([f"{self.life}/answer/{rank}"])

    def _too_late(self) -> InvalidInput:
        late = next((rank for rank in range(self.world) if not self._answered(rank)), None) if self._is_named() else 0
        who = "a process" if late is None else f"rank {late}"
        return InvalidInput(
            f"{who} did not appear within {self.timeout:g} s. Start it with WORLD_SIZE {self.world} as here, or allow a "
            "longer timeout.",
            "timeout",
        )


def _by_rank(names: str) -> dict[int, str]:
    """The last name entered for each rank."""
    return {int(name.split("/")[0]): name for name in names.split(",") if name}


def _world(name: str) -> int:
    return int(name.split("/")[1])


def _differ(worlds: dict[int, int]) -> str:
    """{0: 4, 1: 3, 2: 3} -> WORLD_SIZE is 4 for rank 0, but 3 for rank 1 and rank 2."""
    who: dict[int, list[str]] = {}
    for rank, world in worlds.items():
        who.setdefault(world, []).append(f"rank {rank}")
    parts = [f"{world} for {' and '.join(ranks)}" for world, ranks in who.items()]
    return f"WORLD_SIZE is {', but '.join(parts)}. It is the number of processes: start all with the same."
