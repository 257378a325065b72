"""Damage, reproducibly: texts, bytes and trees as editors, disks and strangers leave them."""

from __future__ import annotations

import copy
import json
import random
import re
from typing import Any

NESTED = "stands for lists within lists within lists"
DEEP = 8
"""Levels below which nothing more is damaged."""

ODD: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 2, 7, 2.5, -0.0, 1e-320, 1e308, -1e308, float("nan"), float("inf"), float("-inf"),
    10**9, 10**13, 10**25, -(10**400), 10**400, "", " ", "x", "0", "1_000", "nan", "x" * 300, "y" * 9000, "a\nb", "a\x00b", "\ud800",
    "../up", "no/such/file.txt", "[/b]", "{{ 7 * 7 }}", "ring(10)", "ring(100000)", "complete(100000)", "erdos_renyi(99999,0.5)",
    "ring(1e9)", "grid(3x3)", "star(10)", "prox-ed", "milodo", "float32", "cuda:7", "meta", "third", "fastest", "top-200%",
    [], {}, [None], [[]], [1, "x"], ["x"], {"x": "y"}, {"": 0}, [10**400], [float("nan")], {"x" * 300: 1}, NESTED,
)  # fmt: skip
"""What may stand in the place of anything."""
WORDS = (
    "", '"', "'", "=", "[", "]", "[[", "]]", "{", "}", ",", ";", "\n", "\r", "\t", "#", "\\", "\x00", "\ufeff", "é", "９", "_", "-", "1e999",
    "inf", "nan", "true", "99999999999999999999", "[methods]", "[run]", "[[run]]", "'''", '"""', "1979-05-27", "[" * 300, "9" * 5000,
    "z" * 9000, "1,5", "0x1F", "\u202e",
)  # fmt: skip
NUMBERS = ("-1", "0", "1e400", "1e308", "-1e308", "1e-320", "inf", "-inf", "nan", "10000000000000", "9223372036854775807")


def mutated_tree(rng: random.Random, tree: Any) -> Any:
    """A copy with one to three of its places deleted, replaced, renamed, doubled or moved deeper."""
    tree = copy.deepcopy(tree)
    for _ in range(rng.randint(1, 3)):
        place = rng.choice(_places(tree)) if _places(tree) else None
        if place is not None:
            _mutate(rng, *place)
    return tree


def _odd(rng: random.Random) -> Any:
    value = rng.choice(ODD)
    return json.loads("[" * 400 + "]" * 400) if value is NESTED else copy.deepcopy(value)


def _places(tree: Any, deepest: int = DEEP) -> list[tuple[Any, Any]]:
    """(container, key or index) of everything in it; of a long list only the ends, which are what its other entries are."""
    if isinstance(tree, dict):
        pairs = list(tree.items())
    elif isinstance(tree, list):
        pairs = [(k, tree[k]) for k in sorted({*range(min(3, len(tree))), *range(max(0, len(tree) - 2), len(tree))})]
    else:
        return []
    here = [(tree, key) for key, _ in pairs]
    return here + [place for _, value in pairs if deepest for place in _places(value, deepest - 1)]


def _mutate(rng: random.Random, container: Any, key: Any) -> None:
    kind = rng.choice(("delete", "replace", "replace", "replace", "other", "rename", "double", "wrap"))
    if kind == "delete":
        del container[key]
    elif kind == "replace":
        container[key] = _odd(rng)
    elif kind == "other":
        container[key] = _scaled(rng, container[key])
    elif kind == "wrap":
        container[key] = rng.choice(([container[key]], {"x": container[key]}))
    elif isinstance(container, list):
        container.insert(key, container[key] if kind == "double" else _odd(rng))
    else:
        container[rng.choice(("x", f"{key}s", str(key)[:-1], "int", "z" * 900, "", "\x00"))] = container[key]
        if kind == "rename":
            container.pop(key)


def _scaled(rng: random.Random, value: Any) -> Any:
    """Something of the same kind."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float) and abs(value) < 1e300:
        return rng.choice((-value, value + 1, value * 1000, value / 7, value * 10**12))
    if isinstance(value, str):
        return mutated_text(rng, value)
    return copy.copy(value)[:1] if isinstance(value, list) else value


def mutated_text(rng: random.Random, text: str) -> str:
    """Cut, doubled, shuffled, with odd words in it."""
    for _ in range(rng.randint(1, 3)):
        a, b = sorted((rng.randint(0, len(text)), rng.randint(0, len(text))))
        b = min(b, a + rng.choice((1, 4, 40, 4000)))
        lines = text.split("\n")
        kind = rng.choice(("cut", "insert", "insert", "over", "double", "line", "swap", "number", "number", "end"))
        if kind == "cut":
            text = text[:a] + text[b:]
        elif kind == "insert":
            text = text[:a] + rng.choice(WORDS) + text[a:]
        elif kind == "over":
            text = text[:a] + chr(rng.choice((rng.randrange(128), rng.randrange(0xD000)))) + text[a + 1 :]
        elif kind == "double":
            text = text[:b] + text[a:b] + text[b:]
        elif kind == "line":
            lines.pop(rng.randrange(len(lines)))
            text = "\n".join(lines)
        elif kind == "swap":
            rng.shuffle(lines)
            text = "\n".join(lines)
        elif kind == "number":
            numbers = [*re.finditer(r"[0-9][0-9.e-]*", text)]
            if numbers:
                match = rng.choice(numbers)
                text = text[: match.start()] + rng.choice((*WORDS, *NUMBERS)) + text[match.end() :]
        else:
            text = text[:a]
    return text


def mutated_bytes(rng: random.Random, content: bytes) -> bytes:
    """Bits flipped, a part cut out or filled with one byte, the end cut off."""
    changed = bytearray(content)
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(changed)) if changed else 0
        kind = rng.choice(("flip", "flip", "cut", "fill", "end", "insert"))
        if kind == "flip" and changed:
            changed[at] ^= 1 << rng.randrange(8)
        elif kind == "cut":
            del changed[at : at + rng.choice((1, 8, 500))]
        elif kind == "fill":
            length = min(len(changed) - at, rng.choice((1, 8, 500)))
            changed[at : at + length] = bytes([rng.choice((0, 0xFF, 0x22, 0x39))]) * length
        elif kind == "insert":
            changed[at:at] = bytes(rng.randrange(256) for _ in range(rng.choice((1, 8))))
        elif rng.random() < 0.3:
            del changed[at:]
    return bytes(changed)
