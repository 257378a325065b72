"""One process of four: ordinary torch loops under gossip, beside what a race of the same methods in one process computes.

python loops.py OUT, with RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT set; rank 0 writes what was found to OUT.
"""

from __future__ import annotations

import itertools
import json
import sys
from pathlib import Path

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.utils import parameters_to_vector, vector_to_parameters

import milodo
from milodo.algorithms import DPSGD, DecentLaM, DSGDm, GradientTracking, ProxED, QGDSGDm
from milodo.metrics import consensus_error
from milodo.network import StackedNetwork, TreeObserver, degraded, message_format, replicas
from milodo.problems import Neural
from milodo.runtime.group import joined

N, STEPS, LR, BETA = 4, 50, 0.05, 0.8
RACED = {
    "d-psgd": DPSGD(gamma=LR),
    "prox-dgd": DSGDm(gamma=LR, alpha=1 - BETA),  # which SGD with momentum makes of it
    "dsgdm": DSGDm(gamma=LR, alpha=1 - BETA),
    "qg-dsgdm": QGDSGDm(gamma=LR, alpha=1 - BETA),
    "decentlam": DecentLaM(gamma=LR, alpha=1 - BETA),
    "d2": ProxED(gamma=LR),
    "gradient-tracking": GradientTracking(gamma=LR),
}
AHEAD = ("d-psgd", "gradient-tracking")
MOMENTUM = ("prox-dgd", "dsgdm", "qg-dsgdm", "decentlam")
SCALED = [(name, unscaled, None) for name in ("prox-dgd", "qg-dsgdm", "gradient-tracking") for unscaled in (True, False)]
SCALED += [(name, False, True) for name in ("prox-dgd", "qg-dsgdm")]
"""Method, whether gradients are unscaled before the step, and whether the optimizer is fused, which skips by itself."""
CASES = {
    **{name: (name, {}) for name in RACED},
    "one-peer": ("qg-dsgdm", {"graph": "exponential", "schedule": "one-peer"}),
    "one-peer, overlapped": ("gradient-tracking", {"graph": "exponential", "schedule": "one-peer"}),
    "matchings": ("d2", {"graph": "complete", "schedule": "matchings", "seed": 3}),
    "8-bit": ("qg-dsgdm", {"messages": "8-bit"}),
    "8-bit, overlapped": ("d-psgd", {"messages": "8-bit"}),
    "8-bit, one-peer": ("dsgdm", {"messages": "8-bit", "graph": "exponential", "schedule": "one-peer"}),
}
"""Method, and what else is said."""


def problem() -> Neural:
    """Four nodes with unlike data, minibatches of 8 of their 24 samples."""
    torch.manual_seed(1)
    inputs, labels = torch.randn(N, 24, 5, dtype=torch.float64), torch.randint(3, (N, 24))
    inputs += torch.arange(N, dtype=torch.float64)[:, None, None] / 2
    return Neural(module(), cross_entropy, (inputs, labels), minibatch=8, seed=0)


def module() -> nn.Sequential:
    return nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3)).double()


@torch.no_grad()
def raced(name: str, options: dict) -> tuple[torch.Tensor, int]:
    """x of all nodes after STEPS iterations in one process, and the bytes they sent; where messages for the next step travel
    before it comes, with those."""
    graph, form = f"{options.get('graph', 'ring')}({N})", message_format(options.get("messages", "full"))
    net = degraded(StackedNetwork(graph), schedule=options.get("schedule"), seed=options.get("seed", 0))
    method = RACED[name] if form is None else RACED[name].compressed(form)
    states = milodo.iterate(method, problem(), net)
    next(itertools.islice(states, 1, None))
    ahead = net.traffic.bytes if name in AHEAD else 0
    return next(itertools.islice(states, STEPS - 2, None)).x, net.traffic.bytes + ahead


def batches(rank: int, first: int = 1, last: int = STEPS):
    """Those that the race sees."""
    data = problem().at([rank])
    for k in range(first, last + 1):
        rows = data.at_step(k).rows[0]
        yield data.inputs[rows], data.targets[rows]


def prepared(rank: int, name: str = "qg-dsgdm", momentum: float = BETA, seed: int | None = None, fused: bool | None = None):
    """A model and its optimizer, as a person makes them; node 0 has the weights that the race begins with."""
    torch.manual_seed(rank if seed is None else seed)
    model = module()
    if rank == 0:
        vector_to_parameters(problem().start()[0], model.parameters())
    return model, torch.optim.SGD(model.parameters(), lr=LR, momentum=momentum if name in MOMENTUM else 0.0, fused=fused)


def trained(model, optimizer, samples) -> None:
    for inputs, targets in samples:
        loss = cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def flat(model) -> torch.Tensor:
    return parameters_to_vector(model.parameters()).detach().clone()


def compared(rank: int, case: str, observer: TreeObserver) -> dict:
    name, options = CASES[case]
    model, optimizer = prepared(rank, name)
    with milodo.gossip(model, optimizer, method=name, **options) as g:
        trained(model, optimizer, batches(rank))
        spread = g.consensus_error()
        with g.average() as mean:
            average = flat(mean)
        sent = torch.tensor([float(g.traffic.bytes)], dtype=torch.float64)
    d = sum(parameter.numel() for parameter in model.parameters())
    told = torch.zeros(N * d + 1, dtype=torch.float64)  # raced once, by the first
    if rank == 0:
        expected, simulated = raced(name, options)
        told = torch.cat((expected.flatten(), torch.tensor([simulated], dtype=torch.float64)))
    told = observer.total(told)
    expected, simulated = told[:-1].reshape(N, d), int(told[-1])
    worst = torch.stack(((flat(model) - expected[rank]).abs().max(), (average - expected.mean(0)).abs().max()))
    return {
        "worst": observer.total(worst).tolist(),
        "moved": float((expected - problem().start()).abs().max()),
        "spread": [spread, float(consensus_error(expected, milodo.StackedObserver()))],
        "bytes": [int(observer.total(sent)), simulated],
    }


def resumed(rank: int, observer: TreeObserver, name: str, options: dict, folder: Path) -> float:
    """Difference between a run that was kept in files after 20 steps and gone on from elsewhere, and one that was not."""
    whole, optimizer = prepared(rank, name)
    with milodo.gossip(whole, optimizer, method=name, **options) as g:
        trained(whole, optimizer, batches(rank, 1, 20))
        kept = {"model": whole.state_dict(), "optimizer": optimizer.state_dict(), "gossip": g.state_dict()}
        torch.save(kept, folder / f"{rank}.pt")
        trained(whole, optimizer, batches(rank, 21, 30))
        g.consensus_error()  # nothing is under way any more
        sent = g.traffic.bytes
    again, other = prepared(rank, name, seed=100 + rank)
    found = torch.load(folder / f"{rank}.pt", weights_only=True)
    with milodo.gossip(again, other, method=name, **options) as g:
        again.load_state_dict(found["model"])
        other.load_state_dict(found["optimizer"])
        g.load_state_dict(found["gossip"])
        trained(again, other, batches(rank, 21, 30))
        g.consensus_error()
        assert (g.k, g.traffic.bytes) == (30, sent)
    return float(observer.total((flat(whole) - flat(again)).abs().max().reshape(1)))


def scaled(rank: int, observer: TreeObserver, name: str, unscaled: bool, fused: bool | None = None) -> dict:
    """Node 1's gradient is not finite in step 3: its scaler leaves the step out, and nobody waits."""
    ends = []
    for broken in (True, False):
        model, optimizer = prepared(rank, name, fused=fused)
        scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=1000)
        with milodo.gossip(model, optimizer, method=name) as g:
            for k, (inputs, targets) in enumerate(batches(rank, 1, 6), 1):
                loss = cross_entropy(model(inputs), targets)
                if broken and (rank, k) == (1, 3):
                    loss = loss * torch.inf
                scaler.scale(loss).backward()
                if unscaled:
                    scaler.unscale_(optimizer)
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()
            ends.append(flat(model))
            steps = g.k
        assert getattr(optimizer, "_step_supports_amp_scaling", False) is bool(fused)  # as it was before
        assert scaler.get_scale() == (4.0 if broken and rank == 1 else 8.0)
    plain, optimizer = prepared(rank, name)
    with milodo.gossip(plain, optimizer, method=name):
        trained(plain, optimizer, batches(rank, 1, 6))
    skipping, optimizer = prepared(rank, name)
    with milodo.gossip(skipping, optimizer, method=name) as g:
        for k, sample in enumerate(batches(rank, 1, 6), 1):
            if (rank, k) == (1, 3):
                g.skip()
            else:
                trained(skipping, optimizer, [sample])
    gaps = [(ends[1] - flat(plain)).abs().max(), (ends[0] - flat(skipping)).abs().max(), (ends[0] - ends[1]).abs().max()]
    return {"steps": steps, "gaps": observer.total(torch.stack(gaps)).tolist()}


def special(rank: int, observer: TreeObserver) -> dict[str, float]:
    """Models and optimizers that are not the plainest: how far each is from what it must be, summed over the nodes."""

    def run(method, make=None, *, model=None, closure=False, count=8):
        torch.manual_seed(rank)
        model = model or module()
        optimizer = (make or (lambda p: torch.optim.SGD(p, lr=LR)))(list(model.parameters()))
        with milodo.gossip(model, optimizer, method=method) as g:
            for inputs, targets in batches(rank, 1, count):

                def loss(inputs=inputs, targets=targets):
                    optimizer.zero_grad()
                    value = cross_entropy(model(inputs), targets)
                    value.backward()
                    return value

                if closure:
                    assert float(optimizer.step(loss)) > 0
                else:
                    loss()
                    optimizer.step()
            with g.average():
                mean = flat(model), [buffer.clone() for buffer in model.buffers()]
            return model, mean, g.consensus_error()

    def off(a, b):
        return (flat(a) - flat(b)).abs().max()

    def sgd(**options):
        return lambda p: torch.optim.SGD(p, lr=LR, **options)

    def groups(p):
        return torch.optim.SGD([{"params": p[:2], "lr": LR / 2}, {"params": p[2:], "momentum": 0.5}], lr=LR, momentum=BETA)

    found = {}
    plain = run("qg-dsgdm", sgd(momentum=BETA))[0]
    found["a closure"] = off(plain, run("qg-dsgdm", sgd(momentum=BETA), closure=True)[0])
    found["weight decay"] = off(run("qg-dsgdm", sgd(weight_decay=0.1))[0], run("prox-dgd", sgd(weight_decay=0.1))[0])
    sizes = [parameter.numel() for parameter in plain.parameters()]
    lr = torch.tensor([LR / 2] * sum(sizes[:2]) + [LR] * sum(sizes[2:]), dtype=torch.float64)
    beta = torch.tensor([BETA] * sum(sizes[:2]) + [0.5] * sum(sizes[2:]), dtype=torch.float64)
    torch.manual_seed(0)
    begin = flat(module()).expand(N, -1)  # what node 0 begins with
    race = milodo.iterate(QGDSGDm(gamma=lr, alpha=1 - beta), problem(), StackedNetwork(f"ring({N})"), x0=begin)
    with torch.no_grad():
        expected = next(itertools.islice(race, 8, None)).x[rank]
    found["groups"] = (flat(run("qg-dsgdm", groups)[0]) - expected).abs().max()
    frozen = module()
    frozen[0].requires_grad_(False)
    before = flat(frozen[0])
    frozen = run("prox-dgd", lambda p: torch.optim.Adam(p, lr=0.01), model=frozen)[0]
    told = observer.total(before if rank == 0 else torch.zeros_like(before))
    found["frozen, with Adam"] = (flat(frozen[0]) - told).abs().max()  # node 0's, and never moved
    lbfgs, _, spread = run("d-psgd", lambda p: torch.optim.LBFGS(p, lr=0.1, max_iter=2), closure=True)
    found["L-BFGS fails"] = torch.tensor(0.0 if 0 < spread < torch.inf and flat(lbfgs).isfinite().all() else 1.0).double()
    normed = nn.Sequential(nn.Linear(5, 7), nn.BatchNorm1d(7), nn.Linear(7, 3)).double()
    normed, (_, buffers), _ = run("prox-dgd", model=normed)
    own = torch.as_tensor(normed[1].running_mean)
    found["running statistics"] = (observer.mean(own.unsqueeze(0), dim=0) - buffers[0]).abs().max()
    found["own statistics are kept"] = (own - buffers[0]).abs().max()
    return {what: float(observer.total(gap.detach().reshape(1))) for what, gap in found.items()}


def main() -> None:
    torch.set_num_threads(1)
    replicas.OF_LINKS = 1  # so often that STEPS are enough for several comparisons
    out = Path(sys.argv[1])
    with joined(60) as group:
        rank = group.rank
        observer = TreeObserver(milodo.DistributedNetwork(f"ring({N})").peers, N)
        found = {
            "special": special(rank, observer),
            "cases": {case: compared(rank, case, observer) for case in CASES},
            "resumed": {
                case: resumed(rank, observer, *CASES[case], out.parent)
                for case in (
                    "prox-dgd",
                    "dsgdm",
                    "qg-dsgdm",
                    "d2",
                    "gradient-tracking",
                    "8-bit, one-peer",
                    "8-bit, overlapped",
                    "matchings",
                )
            },
            "scaled": {
                f"{name} {unscaled} {fused}": scaled(rank, observer, name, unscaled, fused) for name, unscaled, fused in SCALED
            },
        }
        observer.barrier()
    if rank == 0:
        out.write_text(json.dumps(found))


if __name__ == "__main__":
    main()
