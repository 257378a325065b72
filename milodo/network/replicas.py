"""Whether replicas are still the same at both ends: digests are compared now and then, and what differs is sent in full.

One altered bit in a difference, or a machine that rounds differently, leaves two replicas different for good, and with them what
the nodes add up. So every so many iterations neighbours compare digests of the exact bits of their replicas. Whether anything
follows must be known to all, or one would wait for what another does not send: a word that something differs goes to every node
before anybody acts on it.

Sums over a tree: one message up and one down each of its edges, in the same iteration. A child sends a digest of what it has sent
upwards so far, and of what all nodes must have alike: the total, and those parts of the method's state that are the same
everywhere, x for one. If any differs, the root's go down in full, and each child's go up.

Gossip: one digest over each link, and then one byte over each link in as many iterations as a word takes to reach everybody. If
any differed, every node sends each neighbour in full what it should have. Where links fail or come and go there is no moment in
which all of them work; there both ends forget what was sent, and all nodes begin anew.

A difference beyond rounding has been added up meanwhile: duals no longer sum to zero, and nodes hold different points. No
message repairs that, so `anew` says to all nodes at once to begin anew, from where they were when nothing differed, with
replicas of which nothing is left: those that were brought in step may hold what no later difference outweighs without rounding.
"""

from __future__ import annotations

import itertools
import logging
import math
import zlib
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from milodo.network.base import Network
from milodo.network.consensus import patient
from milodo.network.replica import ARCS, FLOOD, NODES, TOTAL, Replica
from milodo.topology import Schedule
from milodo.types import NodeTensor

log = logging.getLogger(__name__)

LINKS = (NODES, ARCS)
"""Routes over which every node talks to each of its neighbours."""
OF_SUMS = 64
"""Iterations between two comparisons over a tree. An iteration sends at least five bytes up and down each edge, and mostly more
than fifteen; a comparison sends five and one."""
OF_LINKS = 64
"""Iterations for each round of a comparison over links, and four times as many at least: with four bytes and a byte a round that
is less than a hundredth of messages of five bytes, which none is shorter than."""
DIGEST = 4
"""Bytes of a digest."""
ROUNDING = 256.0
"""Times the precision of the largest number in a replica: what machines that round differently may differ by."""


ANEW = "all nodes begin anew from where they were when nothing differed, and forget what was sent since"


class Compared(NamedTuple):
    """Replicas after a comparison."""

    replicas: list[Replica]
    alike: list[NodeTensor]
    """What else all nodes must have the same."""
    alarm: int = 0
    """What this process knows of differences between comparison and repair: 0 nothing, 1 there are some, 2 beyond rounding."""
    begun: bool = False
    """Whether a comparison has just begun."""
    agreed: bool = False
    """Whether one has ended, and when it began nothing differed beyond rounding."""
    anew: bool = False
    """Whether all nodes begin anew, from where they were when the last comparison began that ended so."""


def compared(net: Network, replicas: Sequence[Replica], alike: Sequence[NodeTensor], *, k: int, alarm: int) -> Compared:
    """Replicas k iterations after they were empty, and what else all nodes must have alike; brought in step, where it was their
    turn to be compared."""
    now = Compared(list(replicas), list(alike), alarm)
    if net.topology.n == 1:
        return now
    if any(replica.route not in LINKS for replica in replicas) and k % OF_SUMS == 0:
        now = _over_tree(net, now, k)
    if any(replica.route in LINKS for replica in replicas) and k >= 4 * OF_LINKS:
        now = _over_links(net, now, k)
    return now


def digest(rows: Tensor) -> Tensor:
    """CRC-32 of the exact bits of each row [*batch, rows, d] -> [*batch, rows, 4], as bytes."""
    exact = rows.detach().cpu().reshape(rows.shape[:-1].numel(), rows.shape[-1]).contiguous().view(torch.uint8).numpy()
    sums = np.array([zlib.crc32(row) for row in exact], dtype="<u4")
    return torch.from_numpy(sums.view(np.uint8).reshape(*rows.shape[:-1], DIGEST)).to(rows.device)


# Over links


def every(net: Network) -> int:
    """Iterations between two comparisons over links: a prime, so that each link of a schedule that repeats has its turn."""
    least = OF_LINKS * max(4, 1 + spreading(net, 0))
    return next(p for p in itertools.count(least) if all(p % q for q in range(2, math.isqrt(p) + 1)))


def spreading(net: Network, k: int) -> int:
    """Iterations after iteration k in which a word, passed on once in each, has reached every node."""
    return patient(net, net.topology.reach if net.schedule is None else _meetings(net.schedule, k))


@lru_cache(maxsize=64)
def _meetings(schedule: Schedule, k: int) -> int:
    known = np.eye(schedule.topology.n, dtype=bool)
    for count in itertools.count(1):
        i, j = schedule.topology.ends[:, schedule.links(k + count)]
        before = known.copy()
        np.logical_or.at(known, i, before[j])
        np.logical_or.at(known, j, before[i])
        if known.all():
            return count
    raise AssertionError


def _over_links(net: Network, now: Compared, k: int) -> Compared:
    between = every(net)
    phase = k % between
    hops = spreading(net, net.k - phase)
    if k < between or phase > 2 * hops or (phase > hops and not now.alarm):
        return now
    if phase == 0:
        return now._replace(alarm=int(_links_differ(net, now.replicas, k)), begun=True)
    now = now._replace(alarm=_passed_on(net, now.alarm, most=1 if phase <= hops else 2, batch=now.replicas[0].sent.shape[:-2]))
    if phase == hops and now.alarm:
        if not net.holds:
            _say(net, k, ANEW)
            return _begun(now)
        _say(net, k, "every node sends each neighbour in full what it should have of it")
        replicas, beyond = _links_in_full(net, now.replicas)
        return now._replace(replicas=replicas, alarm=1 + beyond)
    if phase == 2 * hops:
        if now.alarm == 2:
            _say(net, k, f"some of them beyond rounding, so {ANEW}")
            return _begun(now)
        return now._replace(alarm=0, agreed=True)
    return now._replace(agreed=phase == hops)


def _by_arc(net: Network, replicas: Sequence[Replica]) -> tuple[Tensor, Tensor]:
    """All that was said and heard over each arc [*batch, m, numbers]."""
    links = [replica for replica in replicas if replica.route in LINKS]
    said = torch.cat([net.spread(replica.sent) if replica.route == NODES else replica.sent for replica in links], dim=-1)
    return said, torch.cat([replica.received for replica in links if replica.received is not None], dim=-1)


def _links_differ(net: Network, replicas: Sequence[Replica], k: int) -> bool:
    """Whether what a node held here has of a neighbour is not what the neighbour has said."""
    route, up, (said, heard) = net.routes.of_arcs, net.working(), _by_arc(net, replicas)
    wrong = _anywhere((net.as_it_is(digest(said), route, up) != digest(heard)).any(-1))
    if up is not None:
        wrong &= up[route.edges]
    for place in wrong.nonzero().flatten().tolist():
        i, j = net.arcs[place]
        _differ(k, j, i)
    return bool(wrong.any())


def _passed_on(net: Network, alarm: int, most: int, batch: torch.Size) -> int:
    """The highest alarm here or at a neighbour; one for all instances, and sent with each of them, like all that is counted."""
    route, up = net.routes.of_nodes, net.working()
    came = net.as_it_is(torch.full((*batch, net.n, 1), alarm, dtype=torch.uint8, device=net.device), route, up)
    if up is not None:
        came = came[..., up[route.edges], :]
    return max(alarm, min(most, int(came.max()) if came.numel() else 0))


def _links_in_full(net: Network, replicas: Sequence[Replica]) -> tuple[list[Replica], bool]:
    """What neighbours have said, by their own replicas, and whether ours was off by more than rounding. What is not finite is not
    taken."""
    said, heard = _by_arc(net, replicas)
    came = net.as_it_is(said, net.routes.of_arcs)
    taken, beyond = _finite(came, heard)
    widths = [replica.sent.shape[-1] for replica in replicas if replica.route in LINKS]
    parts = iter(taken.split(widths, dim=-1))
    return [replica._replace(received=next(parts)) if replica.route in LINKS else replica for replica in replicas], bool(
        beyond.any()
    )


# Over a tree


def _over_tree(net: Network, now: Compared, k: int) -> Compared:
    alike = _of_all([digest(part).expand(*part.shape[:-2], net.n, DIGEST) for part in _shared(now)])
    wrong = torch.zeros_like(alike[..., :1])
    for number, hop in enumerate(net.routes.up):
        replicas = [replica for replica in now.replicas if replica.route == f"up{number}"]
        own = [*(digest(replica.sent) for replica in replicas), alike.index_select(-2, hop.senders)]
        due = [
            *(digest(replica.received) for replica in replicas if replica.received is not None),
            alike.index_select(-2, hop.receivers),
        ]
        came = net.as_it_is(torch.cat((_of_all(own), wrong.index_select(-2, hop.senders)), dim=-1), hop)
        differ = (came[..., :DIGEST] != _of_all(due)).any(-1, keepdim=True)
        for place in _anywhere(differ.squeeze(-1)).nonzero().flatten().tolist():
            _differ(k, *_arrivals(net, number)[place])
        wrong = _raised(wrong, hop.receivers, differ | (came[..., DIGEST:] != 0))
    if not _from_root(net, wrong):
        return now._replace(begun=True, agreed=True)
    _say(net, k, "what all nodes must have alike comes down the spanning tree in full, and what each has sent goes up again")
    now, beyond = _tree_in_full(net, now)
    for hop in net.routes.up:
        beyond = _raised(beyond, hop.receivers, net.as_it_is(beyond.index_select(-2, hop.senders), hop) != 0)
    if not _from_root(net, beyond):
        return now._replace(begun=True, agreed=True)
    _say(net, k, f"some of them beyond rounding, so {ANEW}")
    return _begun(now)


def _shared(now: Compared) -> list[Tensor]:
    """What all nodes must have alike, one row a node or one for all that are held here."""
    replicas = [replica for replica in now.replicas if replica.route in (TOTAL, FLOOD)]
    return [
        *(replica.sent if replica.received is None else replica.received.flatten(-2).unsqueeze(-2) for replica in replicas),
        *now.alike,
    ]


def _of_all(digests: Sequence[Tensor]) -> Tensor:
    """One digest of several [*batch, rows, 4]."""
    return digests[0] if len(digests) == 1 else digest(torch.cat(list(digests), dim=-1))


def _raised(flags: Tensor, rows: Tensor, also: Tensor) -> Tensor:
    """Flags [*batch, n, 1] as bytes, set at these rows, too, where these [*batch, rows, 1] are."""
    return flags.scatter_reduce(-2, rows.unsqueeze(-1).expand(also.shape), also.to(torch.uint8), "amax")


def _from_root(net: Network, flags: Tensor) -> bool:
    """Whether the root's are set, at every node."""
    for hop in net.routes.down:
        flags = flags.index_copy(-2, hop.receivers, net.as_it_is(flags.index_select(-2, hop.senders), hop))
    return bool(flags.any())


def _arrivals(net: Network, number: int) -> list[tuple[int, int]]:
    """(child, parent) of what arrives here in this hop of the tree, in order."""
    tree = net.topology.tree
    pairs = ((tree.parent[child], child) for child in tree.level(tree.height - number))
    return [(child, parent) for parent, child in sorted(pairs) if parent in net.nodes]


def _tree_in_full(net: Network, now: Compared) -> tuple[Compared, Tensor]:
    """What the root has, and what children have said, as far as it is finite; and which nodes [*batch, n, 1] were off by more
    than rounding."""
    parts = [part.expand(*part.shape[:-2], net.n, part.shape[-1]) for part in _shared(now)]
    came = torch.cat(parts, dim=-1)
    for hop in net.routes.down:
        came = came.index_copy(-2, hop.receivers, net.as_it_is(came.index_select(-2, hop.senders), hop))
    widths = [part.shape[-1] for part in parts]
    taken, off = zip(*map(_finite, came.split(widths, dim=-1), parts), strict=True)
    shared, beyond, replicas = iter(taken), torch.stack(off).amax(0), list[Replica]()
    for replica in now.replicas:
        if replica.route == TOTAL:
            replica = replica._replace(sent=next(shared))
        elif replica.route == FLOOD:
            assert replica.received is not None
            every = next(shared)[..., 0, :].reshape(replica.received.shape)
            replica = replica._replace(sent=every[..., net.nodes, :], received=every)
        elif replica.route not in LINKS:
            assert replica.received is not None
            hop = net.routes.up[int(replica.route.removeprefix("up"))]
            heard, off = _finite(net.as_it_is(replica.sent, hop), replica.received)
            beyond = _raised(beyond, hop.receivers, off)
            replica = replica._replace(received=heard)
        replicas.append(replica)
    return now._replace(replicas=replicas, alike=list(shared)), beyond


# For both


def _begun(now: Compared) -> Compared:
    return now._replace(alarm=0, anew=True)


def _finite(came: Tensor, had: Tensor) -> tuple[Tensor, Tensor]:
    """What came [*batch, rows, d] where it is finite, and else what we had; and which rows [*batch, rows, 1] were off by more
    than rounding, as bytes."""
    fine = came.isfinite().all(-1, keepdim=True)
    bound = ROUNDING * torch.finfo(came.dtype).eps * came.abs().amax(-1, keepdim=True)
    beyond = fine & ~((came - had).abs().amax(-1, keepdim=True) <= bound)  # also where what we had is not a number
    return torch.where(fine, came, had), beyond.to(torch.uint8)


def _anywhere(wrong: Tensor) -> Tensor:
    """Of rows [*batch, rows]: in any instance [rows]."""
    return wrong.reshape(wrong.shape[:-1].numel(), wrong.shape[-1]).any(0)


def _differ(k: int, sender: int, receiver: int) -> None:
    log.warning(
        "iteration %d: what node %d has sent to node %d so far is not what node %d has of it: a message was altered on its "
        "way, or their machines round differently.", k, sender, receiver, receiver,
    )  # fmt: skip


def _say(net: Network, k: int, what: str) -> None:
    """Once, where all nodes do the same."""
    if 0 in net.nodes:
        log.warning("iteration %d: copies of the same numbers differed between nodes: %s.", k, what)
