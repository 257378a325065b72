"""What a loop needs to go on later exactly as it would have: plain dictionaries of tensors and numbers."""

from __future__ import annotations

from typing import Any

import torch

from milodo.errors import InvalidInput, quoted, shortened
from milodo.network import Traffic
from milodo.tree import leaves, rebuilt, tree_map

KEYS = ("facts", "node", "k", "traffic", "state")


def stored(facts: dict[str, str], node: int, k: int, traffic: Traffic, state: Any) -> dict[str, Any]:
    copied = leaves(tree_map(lambda leaf: leaf.detach().clone(), state))
    return dict(zip(KEYS, (dict(facts), node, k, traffic.to_json(), copied), strict=True))


def from_stored(found: dict[str, Any], facts: dict[str, str], node: int, traffic: Traffic, like: Any) -> tuple[int, Any]:
    """k and state; counters go on from where they were. Everything is looked at before anything is changed."""
    if not isinstance(found, dict) or set(found) != set(KEYS):
        raise InvalidInput(f"{quoted(found)} was not made by state_dict() of a gossip. Load what it returned.")
    for what, value in facts.items():
        if (other := found["facts"].get(what)) != value:
            raise InvalidInput(f"the state was kept with another {what}: {shortened(other)}, and here it is {shortened(value)}.")
    if found["node"] != node:
        raise InvalidInput(f"the state of node {found['node']} cannot be that of node {node}. Let each process load its own.")
    shapes = {name: leaf.shape if isinstance(leaf, torch.Tensor) else None for name, leaf in leaves(like).items()}
    state = found["state"]
    other = "the state does not have the parts that this method remembers. Load what state_dict() returned."
    if {name: getattr(leaf, "shape", None) for name, leaf in state.items()} != shapes:
        raise InvalidInput(other)
    try:
        traffic.restore(found["traffic"])
    except (TypeError, ValueError, RuntimeError) as error:
        raise InvalidInput(other) from error
    target = {name: leaf for name, leaf in leaves(like).items()}
    copied = {name: leaf.detach().clone().to(target[name]) if shapes[name] is not None else leaf for name, leaf in state.items()}
    return int(found["k"]), rebuilt(like, copied)
