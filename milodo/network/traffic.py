"""What moved over the links: counted by `Network` whenever every node talks to its neighbours (swap, pull)."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass
class Traffic:
    """Sent by the nodes held here, for one instance of the problem (a batch of instances is a simulation, not a message)."""

    rounds: int = 0
    """Times every node talked to its neighbours."""
    messages: int = 0
    """One per directed edge and round."""
    floats: int = 0
    bytes: int = 0

    def count(self, *, edges: int, d: int, itemsize: int) -> None:
        self.rounds += 1
        self.messages += edges
        self.floats += edges * d
        self.bytes += edges * d * itemsize

    def recount(self, *, floats: int, of: int) -> None:
        """The floats just counted were `of` bytes of a packed message that holds so many."""
        self.floats += floats - of

    def snapshot(self) -> Traffic:
        return replace(self)

    def __sub__(self, start: Traffic) -> Traffic:
        return Traffic(
            self.rounds - start.rounds,
            self.messages - start.messages,
            self.floats - start.floats,
            self.bytes - start.bytes,
        )
