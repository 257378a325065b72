"""Formats of messages by the names that experiments give them."""

from __future__ import annotations

import torch

from milodo.errors import InvalidInput, quoted, unknown
from milodo.network.channels import Bits, Cast, Format, Levels, TopK
from milodo.network.coded import Coded

CASTS = ("float32", "float16", "bfloat16")
FORMATS = ("full", *CASTS, "8-bit", "top-10%")
"""Names, by example."""


def message_format(name: str) -> Format | None:
    """'full' sends what there is; 'float16' and its like cast; '6-bit' packs numbers of six bits, '5-level' one of five levels;
    'top-5%' sends the largest twentieth of the coordinates; '5-level-coded' has frequent levels in fewer bits."""
    if not isinstance(name, str):
        raise unknown("kind of messages", name, FORMATS)
    if name == "full":
        return None
    if name in CASTS:
        return Cast(getattr(torch, name))
    if name.endswith("-coded"):
        inner = message_format(name.removesuffix("-coded"))
        if not isinstance(inner, Bits | Levels):
            raise InvalidInput(f"messages = {quoted(name)}: only bits and levels are coded, e.g. '5-level-coded'.")
        return Coded(inner)
    if name.endswith("-bit") and name[:-4].isdecimal():
        return Bits(int(name[:-4]))
    if name.endswith("-level") and name[:-6].isdecimal():
        return Levels(int(name[:-6]))
    if not (name.startswith("top-") and name.endswith("%")):
        raise unknown("kind of messages", name, FORMATS)
    try:
        percent = float(name[4:-1])
    except ValueError:
        percent = 0.0
    if not 0 < percent <= 100:
        raise InvalidInput(f"messages = {quoted(name)}: the percentage must lie above 0 and at most at 100, e.g. 'top-10%'.")
    return TopK(percent / 100)
