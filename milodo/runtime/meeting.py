"""The meeting point: finding the store at MASTER_ADDR and MASTER_PORT, and who has come there for this start."""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import json
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Any, TypeVar

from torch.distributed import PrefixStore, Store, TCPStore  # pyright: ignore[reportPrivateImportUsage]

from milodo.errors import InvalidInput
from milodo.runtime.rank_claims import Claim, Guests, claims_of, enter, guests, twice
from milodo.runtime.sealed import Sealed, read_table
from milodo.secret import Secret

PARTING = 3.0
"""Seconds the process that holds the meeting point stays for the others after something went wrong."""
PAUSE = 0.02
"""Seconds between two looks at the meeting point."""
KNOCK = 0.2
"""Seconds between two attempts to reach a meeting point that is not there yet."""
SECOND_THOUGHT = 0.5
"""Seconds in which another process that has claimed a rank may answer, too: of an earlier start it cannot."""
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


def master_address() -> str:
    """MASTER_ADDR; this machine unless given."""
    address = os.environ.get("MASTER_ADDR") or "127.0.0.1"
    return "127.0.0.1" if address == "localhost" else address


def is_loopback(address: str) -> bool:
    """Whether it can be reached from this machine alone. Of a name this is not known: other machines may know it otherwise."""
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False


def all_here() -> bool:
    """Whether all processes are on this machine: they meet at its loopback address, or torchrun has started them all here."""
    world = os.environ.get("WORLD_SIZE")
    return is_loopback(master_address()) or (world is not None and os.environ.get("LOCAL_WORLD_SIZE", "1") == world)


def loopback_interface() -> str | None:
    """Its name, as GLOO_SOCKET_IFNAME wants it."""
    with contextlib.suppress(OSError, AttributeError):
        return next((name for _, name in socket.if_nameindex() if name in ("lo", "lo0")), None)
    return None


def loopback_store(address: str, port: int, limit: timedelta) -> TCPStore:
    """A store that listens at a loopback address only; torch's own listens wherever this machine can be reached."""
    with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as line:
        line.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        line.bind((address, port))
        line.listen()
        port = line.getsockname()[1]
        return TCPStore(
            address, port, None, is_master=True, timeout=limit, wait_for_workers=False, master_listen_fd=line.detach()
        )


def meeting_point(rank: int, timeout: float) -> tuple[Store, bool]:
    """The store at MASTER_ADDR and MASTER_PORT, and whether it lives in this process."""
    port, address = number("MASTER_PORT"), master_address()
    if not 0 < port < 65536:
        raise InvalidInput(f"MASTER_PORT is {port}, but ports go from 1 to 65535.")
    hosts, limit = rank == 0 and not launcher_holds_it(), timedelta(seconds=timeout)
    try:
        _try_until(timeout, lambda left: socket.getaddrinfo(address, port) if hosts else _knock(address, port, left))
    except (OSError, ValueError) as error:
        raise _unreachable(address, port, timeout, hosts, error) from error
    try:
        make = lambda: TCPStore(address, port, None, is_master=hosts, timeout=limit, wait_for_workers=False)  # noqa: E731
        if hosts and is_loopback(address):
            make = lambda: loopback_store(address, port, limit)  # noqa: E731
        return within(timeout + PARTING, make), hosts
    except (RuntimeError, TimeoutError, OSError) as error:
        if not hosts:
            said = f"something listens at {address}:{port}, but it is no meeting point of milodo. Choose another MASTER_PORT."
        elif "EADDRINUSE" in str(error) or getattr(error, "errno", None) == errno.EADDRINUSE:
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

    Everybody enters a claim to its rank; process 0 calls all claims it finds; who hears its own answers. When everybody has
    answered, process 0 lets those go; when one has who was told another WORLD_SIZE, or two who claim one rank, it lets them go
    home: `verdict` says why. Who finds that another process took its rank and began stops that run, and names both.
    (torchrun counts restarts differently on every host, so its counter cannot tell; and only who answers is there now.)
    """

    store: Store
    rank: int
    world: int
    timeout: float
    secret: Secret
    verdict: str = ""
    life: str = ""
    called: tuple[Claim, ...] = ()
    """The claims last called."""
    since: float = 0.0
    """When they were."""

    def __post_init__(self) -> None:
        self.mine, self.hall = Claim.own(self.rank, self.world), Sealed(self.store, self.secret, "")

    def take(self) -> Sealed:
        """The part of the store that belongs to this start."""
        until = time.monotonic() + self.timeout
        enter(self.store, self.hall, self.mine)
        while not self._may_go():
            if time.monotonic() > until:
                raise self._too_late()
            time.sleep(PAUSE)
        return self.room

    def guests(self) -> Guests:
        return guests(self.store, self.hall)

    @property
    def room(self) -> Sealed:
        """Of this start."""
        return Sealed(PrefixStore(self.life, self.store), self.secret, self.life)

    def _may_go(self) -> bool:
        if self.rank == 0:
            self._lead()
        if not self.store.check(["life"]):
            return False
        call = read_table(self.hall, "life")
        self.life, self.called = str(call.get("life")), claims_of(call.get("claims"))
        named, room = self.mine in self.called, self.room
        if named:
            room.set(_answer(self.mine), "here")
        if not room.check(["go"]):
            return False
        go = read_table(room, "go")
        self.verdict, present = str(go.get("verdict", "")), claims_of(go.get("present"))
        if self.mine in present or (named and self.verdict):
            return True
        if not named and launcher_holds_it():  # words of an earlier start, perhaps
            return False
        return bool(self.verdict) or self._without_us(present)

    def _without_us(self, present: tuple[Claim, ...]) -> bool:
        """The others have begun; nothing is to be awaited, unless this very program met there before, or they are leaving."""
        if any(claim.world != self.world for claim in present):
            raise InvalidInput(_differ({0: present[0].world, self.rank: self.world}))
        holder, room = next((claim for claim in present if claim.rank == self.rank), None), self.room
        if holder is None or holder.process == self.mine.process or room.check(["stopped"]) or room.check([f"left/{self.rank}"]):
            return False
        said = str(twice([holder, self.mine]))
        room.set("stopped/claim", json.dumps({"sentence": said.removesuffix("."), "blames": None, "host": ""}))
        room.compare_set("stopped", "", "claim")
        raise InvalidInput(said)

    def _lead(self) -> None:
        claims = self.guests().claims
        leader = next((claim for claim in reversed(claims) if claim.rank == 0), None)
        if leader is None:
            raise InvalidInput(
                "somebody has replaced the list of processes at the meeting point. Use another port, and keep strangers from it."
            )
        if leader != self.mine:  # started again since; that one leads
            return
        if claims != self.called:
            self.life, self.since = uuid.uuid4().hex, time.monotonic()
            self.hall.set("life", json.dumps({"life": self.life, "claims": [asdict(claim) for claim in claims]}))
            return
        present = [claim for claim in claims if self._answered(claim)]
        worlds = {claim.rank: claim.world for claim in sorted(present, key=lambda claim: claim.rank)}
        if said := twice(present):
            self._let_go(present, said)
        elif any(world != self.world for world in worlds.values()):
            self._let_go(present, _differ(worlds))
        elif all(rank in worlds for rank in range(self.world)):
            alone = len({(claim.rank, claim.process) for claim in claims}) == len({claim.rank for claim in claims})
            if alone or time.monotonic() > self.since + SECOND_THOUGHT:
                self._let_go(present, "")

    def _let_go(self, present: list[Claim], verdict: str) -> None:
        self.room.set("go", json.dumps({"verdict": verdict, "present": [asdict(claim) for claim in present]}))

    def _answered(self, claim: Claim) -> bool:
        room, key = self.room, _answer(claim)
        return room.check([key]) and room.get(key) == b"here"

    def _too_late(self) -> InvalidInput:
        there = {*range(1, self.world)}
        if self.mine in self.called:
            there = {claim.rank for claim in self.called if self._answered(claim)}
        late = next((rank for rank in range(self.world) if rank not in there), None)
        who = "a process" if late is None else f"rank {late}"
        said = f"{who} did not appear within {self.timeout:g} s. "
        if strangers := self.guests().claiming(late):
            return InvalidInput(f"{said}{strangers} Give all processes the same MILODO_SECRET.", "secret")
        return InvalidInput(f"{said}Start it with WORLD_SIZE {self.world} as here, or allow a longer timeout.", "timeout")


def _answer(claim: Claim) -> str:
    return f"answer/{claim.name}"


def _differ(worlds: dict[int, int]) -> str:
    """{0: 4, 1: 3, 2: 3} -> WORLD_SIZE is 4 for rank 0, but 3 for rank 1 and rank 2."""
    who: dict[int, list[str]] = {}
    for rank, world in worlds.items():
        who.setdefault(world, []).append(f"rank {rank}")
    parts = [f"{world} for {' and '.join(ranks)}" for world, ranks in who.items()]
    return f"WORLD_SIZE is {', but '.join(parts)}. It is the number of processes: start all with the same."
