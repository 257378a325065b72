"""What moved over the links: counted by `Network` whenever nodes send."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

COUNTS = ("rounds", "messages", "floats", "even")
"""Whole numbers of a Traffic."""


@dataclass(frozen=True)
class Spent:
    """By all nodes together."""

    rounds: int = 0
    bytes: int = 0


@dataclass(frozen=True)
class Ledger:
    """What a run sent, in three parts that add up to all of it."""

    setup: Spent = Spent()
    """What nodes have to know before the first step: sizes, scales, Lipschitz constants, folds."""
    method: Spent = Spent()
    checks: Spent = Spent()
    """What only the stopping rule, its certificate and the report asked for (`Observer`)."""

    @property
    def parts(self) -> dict[str, Spent]:
        """By the names that tables and files give them."""
        return {"set-up": self.setup, "method": self.method, "checks": self.checks}

    @property
    def rounds(self) -> int:
        return sum(part.rounds for part in self.parts.values())

    @property
    def bytes(self) -> int:
        return sum(part.bytes for part in self.parts.values())


@dataclass
class Traffic:
    """Sent by the nodes held here, for one instance of the problem (a batch of instances is a simulation, not a message)."""

    rounds: int = 0
    """Times every node talked to its neighbours."""
    messages: int = 0
    """One per directed edge and round."""
    floats: int = 0
    even: int = 0
    """Bytes of messages that are as long for one instance as for another."""
    varying: dict[torch.Size, Tensor] = field(default_factory=dict)
    """Those of the others, by the shape of the batch and then by instance."""

    @property
    def bytes(self) -> int:
        """Of all messages; where they vary in length, the mean over the instances of a batch."""
        return self.even + sum(round(float(each.double().mean())) for each in self.varying.values())

    def of(self, batch: Sequence[int]) -> Tensor:
        """Bytes for each instance of a batch of this shape."""
        own = self.varying.get(torch.Size(batch), torch.zeros(*batch, dtype=torch.int64))
        others = replace(self, varying={shape: each for shape, each in self.varying.items() if shape != own.shape})
        return own + others.bytes

    def count(self, *, messages: int, numbers: int, size: int, rounds: int = 1) -> None:
        """Messages of so many numbers in so many bytes each, in one round unless said."""
        self.rounds += rounds
        self.messages += messages
        self.floats += messages * numbers
        self.even += messages * size

    def weigh(self, each: Tensor) -> None:
        """Bytes of messages that vary in length, by instance [*batch]."""
        self.varying[each.shape] = self.varying[each.shape] + each if each.shape in self.varying else each

    def widen(self, since: Traffic, instances: int) -> None:
        """Counts what was sent since then for every one of so many instances: they travelled in the same messages, and were no
        simulation but work that one user needs."""
        sent = self - since
        self.floats += (instances - 1) * sent.floats
        self.even += (instances - 1) * sent.bytes

    def shared(self, instances: int) -> Traffic:
        """The part of one of so many instances, whose numbers travelled in the same messages."""
        return Traffic(self.rounds, self.messages, round(self.floats / instances), round(self.bytes / instances))

    def snapshot(self) -> Traffic:
        return replace(self, varying=dict(self.varying))

    def to_json(self) -> dict[str, Any]:
        varying = [[list(shape), each.flatten().tolist()] for shape, each in self.varying.items()]
        return {**{name: getattr(self, name) for name in COUNTS}, "varying": varying}

    def restore(self, kept: Any) -> None:
        """What `to_json` gave; ValueError where it did not."""
        if not isinstance(kept, dict) or set(kept) != {*COUNTS, "varying"}:
            raise ValueError("no counts of messages")
        counts = {name: int(kept[name]) for name in COUNTS}
        varying = {torch.Size(shape): torch.tensor(each, dtype=torch.int64).reshape(shape) for shape, each in kept["varying"]}
        for name, count in counts.items():
            setattr(self, name, count)
        self.varying = varying

    def __sub__(self, start: Traffic) -> Traffic:
        return Traffic(
            self.rounds - start.rounds,
            self.messages - start.messages,
            self.floats - start.floats,
            self.even - start.even,
            {shape: each - start.varying.get(shape, 0) for shape, each in self.varying.items()},
        )
