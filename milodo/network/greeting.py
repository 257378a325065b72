"""Before two processes exchange their first message, each proves to the other that it knows the run's secret, and its rank."""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from milodo.errors import InvalidInput
from milodo.secret import PROOF, Secret

NONCE = 16
"""Bytes of a challenge."""


@dataclass
class Greeting:
    """Mutual challenge and response, once for each pair of neighbours of a group of processes."""

    secret: Secret
    run: str
    """Number of this start of all processes: a proof is of no use in another one."""
    known: set[int] = field(default_factory=set)
    """Who has been greeted."""

    def greet(
        self, rank: int, others: Sequence[int], swap: Callable[[list[tuple[int, Tensor]], list[tuple[int, Tensor]]], None],
        called: Callable[[int], str], device: str = "cpu",
    ) -> None:  # fmt: skip
        """All of these at once. `swap` sends and receives; `called` is how messages to people call a process."""
        own = {other: secrets.token_bytes(NONCE) for other in others}
        theirs = _swapped(own, NONCE, swap, device)
        proofs = {other: self._proof(rank, other, theirs[other], own[other]) for other in others}
        answers = _swapped(proofs, PROOF, swap, device)
        for other in others:
            if not hmac.compare_digest(answers[other], self._proof(other, rank, own[other], theirs[other])):
                raise InvalidInput(
                    f"{called(other)} is refused: it does not know this run's secret, or is not that rank. Give all processes "
                    "the same MILODO_SECRET, and each a RANK of its own.",
                    "secret",
                )
            self.known.add(other)

    def _proof(self, rank: int, to: int, challenge: bytes, own: bytes) -> bytes:
        """The answer to a challenge. It names both ends, so that nobody can be sent its own answer back."""
        return self.secret.proof("greeting", self.run, f"{rank} to {to}", challenge, own)


def _swapped(
    said: dict[int, bytes], size: int, swap: Callable[[list[tuple[int, Tensor]], list[tuple[int, Tensor]]], None], device: str
) -> dict[int, bytes]:
    sends = [(rank, torch.frombuffer(bytearray(content), dtype=torch.uint8).to(device)) for rank, content in said.items()]
    heard = {rank: torch.zeros(size, dtype=torch.uint8, device=device) for rank in said}
    swap(sends, [*heard.items()])
    return {rank: bytes(content.tolist()) for rank, content in heard.items()}


GREETINGS = WeakKeyDictionary[Any, Greeting]()
"""Of each group of processes whose members are to prove who they are."""
