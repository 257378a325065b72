"""A store in which every value carries a proof that a process of this run has written it, and under this key."""

from __future__ import annotations

import hmac
import json
from datetime import timedelta
from typing import Any

from torch.distributed import Store  # pyright: ignore[reportPrivateImportUsage]

from milodo.errors import InvalidInput
from milodo.secret import PROOF, Secret

HEX = 2 * PROOF
"""Characters of a proof."""


class Altered(InvalidInput):
    """A value without the proof that belongs to it."""

    def __init__(self, key: str) -> None:
        super().__init__(
            f"what stands under {key!r} at the meeting point was not written by a process that knows this run's secret: somebody "
            "has altered it, another run uses this port, or processes were given different secrets. Give all processes the same "
            "MILODO_SECRET, and keep strangers from the port.",
            "secret",
        )


class Sealed(Store):
    """Values are authenticated, not encrypted. torch itself writes addresses through it, and reads them, too.

    The proof covers the run, the key and the value: a value of another run, or of another key, is refused like an invented one.
    `check` says only that something is there, and `add` counts what anybody may count: neither decides anything.
    """

    def __init__(self, inner: Store, secret: Secret, run: str) -> None:
        super().__init__()
        self.inner, self.secret, self.run = inner, secret, run

    def seal(self, key: str, value: str | bytes) -> bytes:
        content = value.encode() if isinstance(value, str) else bytes(value)
        return self.secret.proof("value", self.run, key, content).hex().encode() + content

    def unseal(self, key: str, sealed: bytes) -> bytes:
        if not hmac.compare_digest(self.seal(key, sealed[HEX:]), sealed):
            raise Altered(key)
        return sealed[HEX:]

    def set(self, key: str, value: str | bytes) -> None:
        self.inner.set(key, self.seal(key, value))  # pyright: ignore[reportArgumentType]  # bytes are fine

    def get(self, key: str) -> bytes:
        return self.unseal(key, self.inner.get(key))

    def compare_set(self, key: str, expected: str | bytes, desired: str | bytes) -> bytes:
        before: Any = self.seal(key, expected) if expected else ""
        after: Any = self.seal(key, desired)
        return self.unseal(key, self.inner.compare_set(key, before, after))

    def check(self, keys: list[str]) -> bool:
        return self.inner.check(keys)

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        return self.inner.wait(keys) if timeout is None else self.inner.wait(keys, timeout)

    def add(self, key: str, amount: int) -> int:
        return self.inner.add(key, amount)


def read_table(store: Store, key: str) -> dict[str, Any]:
    """What a process has told under a key."""
    try:
        content = json.loads(store.get(key))
    except (ValueError, RecursionError) as error:
        if isinstance(error, InvalidInput):
            raise
        content = None
    if not isinstance(content, dict):
        raise InvalidInput(
            f"what stands under {key!r} at the meeting point was not written by milodo. Use another port, or one version."
        )
    return content
