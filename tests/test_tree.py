"""States are trees: mapped, cut off, selected, taken apart and put together again, whatever they hold."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
import torch

from milodo.tree import detached, leaves, rebuilt, selected, tree_map


class Inner(NamedTuple):
    h: torch.Tensor
    k: int


class Outer(NamedTuple):
    x: torch.Tensor
    memory: Any
    rest: Any = None


def make() -> Outer:
    return Outer(torch.ones(3, 2, requires_grad=True), Inner(torch.arange(6.0).reshape(3, 2), 4), Inner(torch.zeros(3, 1), 0))


def test_leaves_have_dotted_names_and_make_the_tree_again():
    tree = make()
    parts = leaves(tree)
    assert list(parts) == ["x", "memory.h", "memory.k", "rest.h", "rest.k"]
    again = rebuilt(tree, parts)
    assert type(again) is Outer and type(again.memory) is Inner
    assert all(a is b for a, b in zip(leaves(again).values(), parts.values(), strict=True))
    assert leaves(Outer(torch.ones(1), None))["memory"] is None


def test_what_is_selected_keeps_its_shape_and_what_is_no_tensor_stays():
    tree, rows = make(), torch.tensor([2, 0])
    found = selected(tree, rows)
    assert torch.equal(found.memory.h, tree.memory.h[rows]) and found.memory.k == 4 and found.x.shape == (2, 2)


def test_what_is_detached_needs_no_gradient_and_is_the_same():
    tree = make()
    found = detached(tree)
    assert not found.x.requires_grad and torch.equal(found.x, tree.x) and tree.x.requires_grad
    doubled = tree_map(lambda part: 2 * part, tree)
    assert torch.equal(doubled.rest.h, 2 * tree.rest.h) and doubled.rest.k == 0


def test_a_leaf_that_is_missing_is_noticed():
    parts = leaves(make())
    del parts["memory.h"]
    with pytest.raises(KeyError):
        rebuilt(make(), parts)
