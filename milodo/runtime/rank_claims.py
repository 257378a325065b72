"""Who says that it is which rank: the guest book of the meeting point, and those in it who do not belong to the run."""

from __future__ import annotations

import json
import os
import socket
import time
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Self

from torch.distributed import Store  # pyright: ignore[reportPrivateImportUsage]

from milodo.errors import quoted, shortened
from milodo.runtime.sealed import HEX, Altered, Sealed

GUESTS = "guests"
"""Lines of those who have come, in the order in which they did; entering one is a single operation of the store."""
NAMED = 3
"""Strangers that a message names."""


@dataclass(frozen=True)
class Claim:
    """A process that says it is this rank."""

    rank: int
    world: int
    name: str
    """Made up by the process now."""
    host: str
    pid: int
    start: str

    @classmethod
    def own(cls, rank: int, world: int) -> Self:
        now = time.strftime("%Y-%m-%d %H:%M:%S")
        return cls(rank, world, uuid.uuid4().hex, shortened(socket.gethostname()), os.getpid(), now)

    @classmethod
    def read(cls, content: Any) -> Self | None:
        """What somebody has written, if it is one."""
        kinds = {"rank": int, "world": int, "name": str, "host": str, "pid": int, "start": str}
        if not isinstance(content, dict) or set(content) != set(kinds):
            return None
        if not all(type(content[name]) is kind for name, kind in kinds.items()):
            return None
        found: dict[str, Any] = {name: shortened(value) if kinds[name] is str else value for name, value in content.items()}
        return cls(**found)

    @property
    def process(self) -> tuple[str, int]:
        return self.host, self.pid

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}, started {self.start}"


@dataclass(frozen=True)
class Guests:
    """Those whose entry carries a proof that they know the run's secret, and sentences about the others."""

    claims: tuple[Claim, ...]
    strangers: tuple[str, ...]

    def claiming(self, rank: int | None) -> str:
        """Those strangers who say that they are this rank; None for all."""
        found = [said for said in self.strangers if rank is None or f" rank {rank} " in said]
        return " ".join(found[:NAMED])


def enter(store: Store, hall: Sealed, own: Claim) -> None:
    """Between two ends of a line, so that what somebody else has left unfinished does not spoil it."""
    line = hall.seal(GUESTS, json.dumps(asdict(own))).decode()
    store.append(GUESTS, f"\n{line}\n")  # pyright: ignore[reportAttributeAccessIssue]  # missing in torch's stubs


def guests(store: Store, hall: Sealed) -> Guests:
    claims, strangers = list[Claim](), list[str]()
    for line in filter(None, store.get(GUESTS).split(b"\n")):
        try:
            claim = _claim(hall.unseal(GUESTS, line))
        except Altered:
            strangers.append(_stranger(line))
        else:
            if claim is not None:
                claims.append(claim)
    return Guests(tuple(claims), tuple(dict.fromkeys(strangers)))


def _claim(content: bytes) -> Claim | None:
    try:
        return Claim.read(json.loads(content))
    except (ValueError, RecursionError):
        return None


def _stranger(line: bytes) -> str:
    claim = _claim(line[HEX:])
    who = f"somebody who wrote {quoted(line)}" if claim is None else f"a process that says it is rank {claim.rank} ({claim})"
    return f"{who} does not know this run's secret and is refused."


def twice(claims: Iterable[Claim]) -> str | None:
    """That two processes say they are one rank, both of them named."""
    seen: dict[int, Claim] = {}
    for claim in claims:
        first = seen.setdefault(claim.rank, claim)
        if first != claim:
            return f"rank {claim.rank} is claimed twice: by {first}, and by {claim}. Start every rank once."
    return None


def claims_of(content: Any) -> tuple[Claim, ...]:
    """From a list of tables; what is none is left out."""
    found = [Claim.read(each) for each in content] if isinstance(content, Sequence) else []
    return tuple(claim for claim in found if claim is not None)
