"""What moved over the links: counted by `Network` whenever nodes send."""

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

    def count(self, *, messages: int, numbers: int, size: int) -> None:
        """One round of messages, each with so many numbers in so many bytes."""
        self.rounds += 1
        self.messages += messages
        self.floats += messages * numbers
        self.bytes += messages * size

    def widen(self, since: Traffic, instances: int) -> None:
        """Counts what was sent since then for every one of so many instances: they travelled in the same messages, and were no
        simulation but work that one user needs."""
        sent = self - since
        self.floats += (instances - 1) * sent.floats
        self.bytes += (instances - 1) * sent.bytes

    def snapshot(self) -> Traffic:
        return replace(self)

    def __sub__(self, start: Traffic) -> Traffic:
        return Traffic(
            self.rounds - start.rounds,
            self.messages - start.messages,
            self.floats - start.floats,
            self.bytes - start.bytes,
        )
