"""A fit whose sites are processes of their own: what they agree upon before, and what they keep on the way."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from milodo.errors import FaultyNode, Stopped
from milodo.files import locked, make_writable
from milodo.fit import Choice, Fit, Listeners, PenaltyPath, Request, Site, Task, fit_model, fit_path, samples_of
from milodo.fit.sites import content_digest, facts_of, in_order, may_be_the_same, numeric_target, same_columns, twice, two_classes
from milodo.fit.task import SiteFacts
from milodo.learned.checkpoint import find_optimizer, read_card
from milodo.network import CheckedNetwork, TreeObserver
from milodo.runtime.group import Group, flat
from milodo.runtime.snapshots import Snapshots
from milodo.topology import Topology

SLOW = {"n": 1 << 14, "r": 8, "p": 1}
"""Of scrypt: some 50 ms a guess for whoever would guess the rows of a small site from their digest."""


@dataclass(frozen=True)
class Place:
    """Where a node saves what it found, and whether it can go on from there."""

    out: Path
    snapshot_every: int | None = None
    resume: bool = False

    def folder(self, rank: int) -> Path:
        """Node 0 in `out`, node r in out/node-r; {rank} in `out` stands for the number instead."""
        if "{rank}" in str(self.out):
            return Path(str(self.out).replace("{rank}", str(rank)))
        return self.out / f"node-{rank}" if rank else self.out

    def kept(self, rank: int) -> Path:
        """Where snapshots are."""
        return self.folder(rank) if "{rank}" in str(self.out) else self.out


def fit_with_others(
    site: Site, task: Task, group: Group, *, place: Place, listeners: Listeners, choice: Choice | None = None,
    write: Callable[[Fit, PenaltyPath | None, Path], None],
) -> tuple[Fit, PenaltyPath | None]:  # fmt: skip
    """This process's site, with the others of the group. Names of columns and classes are compared at the meeting point;
    columns are matched by name, in the order of node 0.

    With a choice the penalty is chosen first; snapshots are of the fit after it, and who resumes chooses again, the same.
    `write` saves the result into this node's folder before anybody forgets its snapshots.
    """
    graph = task.topology(group.world)
    if task.loss == "squared":
        numeric_target(site, task.target)  # refused here, before anybody waits for this site
    net = CheckedNetwork(graph, task.weights, processes=[(node,) for node in range(graph.n)], timeout=group.timeout)
    keeper = None
    if place.snapshot_every:
        keeper = Snapshots(place.kept(group.rank) / "snapshots", group.rank, net, place.snapshot_every, "")  # run: known below
    everybody = group.agree(_facts(site, task, choice, place, graph, keeper), lambda rank: f"node {rank} (rank {rank})")
    sites = [_named(rank, SiteFacts(**other["site"])) for rank, other in enumerate(everybody)]
    site = _matched(site, sites, everybody)
    if listeners.listing:
        listeners.listing(sites)
    refuse_copies(site, sites, group, everybody[0]["salt"])
    pair = two_classes([other.classes or () for other in sites], task.target) if task.loss == "logistic" else None
    if keeper is not None:
        run = f"{asdict(task)} {choice} {graph.fingerprint} {site.columns} {content_digest(site).hex()}"
        keeper.run = hashlib.sha256(run.encode()).hexdigest()
        keeper.choose([other["snapshots"] for other in everybody] if place.resume or group.restarted else [[]])
        make_writable(place.kept(group.rank))  # before the work, not after it
    observer = TreeObserver(net.peers, graph.n, checks=net.checks)
    group.meet("agreed")
    with locked(place.folder(group.rank)):
        group.meet("ready")
        request = Request(samples_of([site], task, pair, sites), task, net, observer, listeners, keeper)
        try:
            found, path = (fit_model(request), None) if choice is None else fit_path(request, choice)
        except FaultyNode as fault:
            group.stop(fault.at(sites[fault.node].name))
            raise Stopped(fault.at(sites[fault.node].name)) from fault
        found = replace(found, sites=tuple(sites))
        refuse_other_models(found, group)
        write(found, path, place.folder(group.rank))
    observer.barrier()
    if keeper is not None:
        keeper.forget()
    return found, path


def _facts(
    site: Site, task: Task, choice: Choice | None, place: Place, graph: Topology, keeper: Snapshots | None
) -> dict[str, Any]:
    """What this process says of itself, and what must be the same at all of them."""
    weights = read_card(find_optimizer(task.optimizer)).weights.sha256 if task.optimizer else None
    chosen = {"l1": "auto", "choice": asdict(choice)} if choice else {}
    same = {**asdict(task), **chosen, "graph": graph.fingerprint, "optimizer": weights}
    same |= {"snapshot-every": place.snapshot_every, "resume": place.resume}
    own = asdict(facts_of(replace(site, name=Path(site.name).name), task))
    return {
        "same": flat(same), "site": own, "columns": list(site.columns), "salt": secrets.token_hex(16),
        "snapshots": keeper.available() if keeper else [],
    }  # fmt: skip


def _matched(site: Site, sites: Sequence[SiteFacts], everybody: Sequence[dict[str, Any]]) -> Site:
    """The site with its columns in the order of node 0; all must have the same."""
    order = everybody[0]["columns"]
    for other, told in zip(sites, everybody, strict=True):
        same_columns(sites[0].name, order, other.name, told["columns"])
    return in_order(site, sites[0].name, order)


def _named(rank: int, facts: SiteFacts) -> SiteFacts:
    return replace(facts, name=f"node {rank}'s {facts.name}")


def refuse_copies(site: Site, sites: Sequence[SiteFacts], group: Group, salt: str) -> None:
    """Refuses two sites with the same rows. Only a site with as many rows (of each class) as another one publishes a digest of
    them, salted for this run and slow to compute."""
    alike = [rank for rank, other in enumerate(sites) if may_be_the_same(sites[group.rank], other)]
    if len(alike) == 1:
        return
    own = hashlib.scrypt(content_digest(site), salt=salt.encode(), **SLOW).hex()
    group.tell(f"content/{group.rank}", {"digest": own})
    for rank in alike:
        if rank != group.rank and group.hear(f"content/{rank}", rank).get("digest") == own:
            first, other = sorted((rank, group.rank))
            raise twice(sites[first].name, sites[other].name)


def refuse_other_models(found: Fit, group: Group) -> None:
    """All sites must have found the same model, to the bit, before any of them saves it."""
    group.tell(f"model/{group.rank}", {"sha256": found.sha256})
    told = [group.hear(f"model/{rank}", rank).get("sha256") for rank in range(group.world)]
    group.heed()
    for rank, sha256 in enumerate(told):
        if sha256 != told[0]:
            raise Stopped(
                f"node {rank} ended with another model than node 0 (sha256 {str(sha256)[:12]}... and {str(told[0])[:12]}...): "
                "one of them computed wrongly, and neither is saved"
            )
