"""States as trees: NamedTuples within NamedTuples, the leaves tensors, numbers or None. Who handles states knows no field.

The data of a problem is a tree, too: tensors in dicts. optree maps a tree of 36 leaves as fast (117 µs where this takes 133) and
names its leaves 18 times slower; no step does either.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from torch import Tensor

Tree = TypeVar("Tree", bound=tuple[Any, ...])


def tree_map(f: Callable[[Tensor], Tensor], tree: Any) -> Any:
    """The tree with f of every tensor; other leaves stay as they are."""
    if isinstance(tree, Tensor):
        return f(tree)
    if isinstance(tree, dict):
        return {name: tree_map(f, part) for name, part in tree.items()}
    return type(tree)(*(tree_map(f, part) for part in tree)) if _is_state(tree) else tree


def detached(tree: Tree) -> Tree:
    """Cut off from the computation that made it."""
    return tree_map(Tensor.detach, tree)


def selected(tree: Tree, rows: Tensor) -> Tree:
    """Of every tensor these rows of the first axis."""
    return tree_map(lambda part: part.index_select(0, rows), tree)


def leaves(tree: Any, name: str = "") -> dict[str, Any]:
    """By their dotted names, such as 'memory.h_m', in order."""
    if not (_is_state(tree) or isinstance(tree, dict)):
        return {name: tree}
    parts = tree if isinstance(tree, dict) else tree._asdict()
    return {at: leaf for field, part in parts.items() for at, leaf in leaves(part, f"{name}.{field}".lstrip(".")).items()}


def rebuilt(like: Tree, found: dict[str, Any], name: str = "") -> Tree:
    """A tree of the same shape with these leaves."""
    if not _is_state(like):
        return found[name]
    parts = zip(like._fields, like, strict=True)  # type: ignore[attr-defined]  # a NamedTuple
    return type(like)(*(rebuilt(part, found, f"{name}.{field}".lstrip(".")) for field, part in parts))


def _is_state(tree: Any) -> bool:
    return isinstance(tree, tuple) and hasattr(tree, "_fields")
