"""Numbers as messages, tables and pages write them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_PREFIXES = (
    (1e18, "E"), (1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, ""), (1e-3, "m"), (1e-6, "µ"), (1e-9, "n"),
)  # fmt: skip


def settings(parameters: Mapping[str, Any]) -> list[str]:
    """Of a method, one by one.

    >>> settings({"gamma": 0.03001, "K": 2})
    ['gamma = 0.03', 'K = 2']
    """
    return [f"{name} = {_short(value)}" for name, value in parameters.items()]


def _short(value: Any) -> str:
    if isinstance(value, tuple):  # one a node
        return f"{min(value):.3g} to {max(value):.3g}"
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def brief(parameters: Mapping[str, Any]) -> str:
    """gamma = 0.03, K = 2"""
    return ", ".join(settings(parameters))


def amount(value: float, unit: str = "B") -> str:
    """Three digits and a unit.

    >>> amount(21_300_000_000), amount(0.0123, "s")
    ('21.3 GB', '12.3 ms')
    """
    if value >= 999.5e18:
        return f"more than 1000 E{unit}"
    size, prefix = next(((size, prefix) for size, prefix in _PREFIXES if abs(value) >= 0.9995 * size), _PREFIXES[-1])
    return f"{value / size:.3g} {prefix}{unit}" if value else f"0 {unit}"
