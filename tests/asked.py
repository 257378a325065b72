"""A fit asked for in one line."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from milodo.fit import Listeners, Request, Samples, Task
from milodo.network import Network, Observer


def asked(
    features: Sequence[Tensor], targets: Sequence[Tensor], task: Task, net: Network, observer: Observer,
    listeners: Listeners | None = None, **more: Any,
) -> Request:  # fmt: skip
    """`more` are further fields of Samples."""
    samples = Samples(features=features, targets=targets, **more)
    return Request(samples, task, net, observer, listeners or Listeners())
