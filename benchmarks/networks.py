"""milodo-networks, untuned, on networks, graphs and splits that it has not seen, against methods tuned for each.

    python benchmarks/networks.py                     all cases (an hour of one core; the residual network takes half of it)
    python benchmarks/networks.py cnn                 those whose names begin so
    python benchmarks/networks.py --out docs/records/networks      where results are kept: what is there is not run again

Each rival's step size and momentum are searched over a grid (LEPDO with c_s = 0.3 and c_u = 1.5; the residual network's step
size alone, in factors of two), for the lowest loss at the end on one instance of the case. Then all run on other instances.
Iterations are to the loss at which the best tuned rival ends, the mean over the instances deciding which that is; a rival's own
are counted so, too. Goal: at most 1.1x of the best rival's. Losses are of the average model on the training images of all nodes
(some of them where a case says so), accuracies on the test part.
Untrained is the same method whose network says nothing. One thread; needs MNIST and CIFAR-10 (docs/data.md).
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median
from typing import Any

import torch
from _adam import DAdam
from _harness import Kept, verdict

from milodo.algorithms import LEPDO, Algorithm, DSGDm, ProxED, QGDSGDm
from milodo.files import write_json
from milodo.learned import Shared
from milodo.learned.checkpoint import load_optimizer, shipped
from milodo.loop import iterate
from milodo.metrics import mean_point
from milodo.network import StackedNetwork, StackedObserver
from milodo.problems import FAMILIES, Problem, instance_seeds
from milodo.problems.neural_families import NeuralFamily

GOAL = 1.1
LOOKS = 20
GAMMAS = (0.0125, 0.025, 0.05, 0.1, 0.2, 0.4)
CLIMB = {"lepdo": 0.2, "qg-dsgdm": 0.4, "dsgdm": 0.2, "prox-ed": 0.4, "d-adam": 0.004}
"""Where a coarse case begins to search a step size."""
OBSERVER = StackedObserver()
UNLIKE = "dirichlet(0.3)"
MLP = ("milodo-mlp-ring10-paper", "milodo-mlp-ring10")
RESNET = ("milodo-resnet-ring5",)


@dataclass(frozen=True)
class Case:
    family: NeuralFamily
    graph: str
    iterations: int
    instances: int = 2
    coarse: bool = False
    """Whether iterations take long: step sizes are doubled or halved as long as that helps, one momentum must do, and nothing
    untrained runs."""
    own: tuple[str, ...] = ()
    """Optimizers that were made for such a network on this graph."""


def family(name: str, **options: Any) -> NeuralFamily:
    return FAMILIES[name](**options)


CASES = {
    "cnn-ring8-dirichlet": Case(family("cnn", n=8, N=2000, split=UNLIKE, evaluate=250), "ring(8)", 200),
    "cnn-grid9-dirichlet": Case(family("cnn", n=9, N=2000, split=UNLIKE, evaluate=250), "grid(3x3)", 200),
    "mlp-ring10-uniform": Case(family("mlp", n=10, N=5000, evaluate=500), "ring(10)", 300, own=MLP),
    "mlp-ring10-dirichlet": Case(family("mlp", n=10, N=5000, split=UNLIKE, evaluate=500), "ring(10)", 300, own=MLP),
    "cnn-ring8-uniform": Case(family("cnn", n=8, N=2000, evaluate=250), "ring(8)", 200),
    "digits-grid9-label": Case(family("digits-mlp", n=9, N=150, split="label"), "grid(3x3)", 200),
    "resnet-ring5-uniform": Case(family("resnet", n=5, N=5000, evaluate=300), "ring(5)", 60, 2, True, RESNET),
    "resnet-ring5-dirichlet": Case(family("resnet", n=5, N=5000, split=UNLIKE, evaluate=300), "ring(5)", 60, 1, True, RESNET),
}

Constants = dict[str, float]


def lepdo(gamma: float, alpha: float) -> LEPDO:
    return LEPDO(gamma=gamma, alpha=alpha, c_s=0.3, c_u=1.5)


RIVALS: dict[str, tuple[Callable[..., Algorithm], dict[str, tuple[float, ...]]]] = {
    "lepdo": (lepdo, {"gamma": GAMMAS, "alpha": (0.1, 0.05)}),
    "qg-dsgdm": (QGDSGDm, {"gamma": GAMMAS, "alpha": (0.1, 0.3)}),
    "dsgdm": (DSGDm, {"gamma": GAMMAS, "alpha": (0.1, 0.3)}),
    "prox-ed": (ProxED, {"gamma": (0.1, 0.2, 0.4, 0.8)}),
    "d-adam": (DAdam, {"gamma": (0.001, 0.003, 0.01, 0.03)}),
}


def loss(x: torch.Tensor, problem: Problem) -> float:
    value = float(problem.objective(mean_point(x, OBSERVER), OBSERVER))
    return value if math.isfinite(value) else math.inf


@torch.no_grad()
def run(method: Algorithm, case: Case, seed: int, iterations: int, looks: int) -> tuple[list[float], float]:
    """The loss at so many looks, evenly spaced, and the accuracy after the case's iterations."""
    problem, net = case.family.sample([seed]), StackedNetwork(case.graph, dtype=torch.float32)
    every, losses, accuracy = iterations // looks, [], math.nan
    for k, state in enumerate(itertools.islice(iterate(method, problem, net), iterations + 1)):
        if k and k % every == 0:
            losses.append(loss(state.x, problem))
        if k == case.iterations:
            accuracy = float(problem.metrics(state.x, OBSERVER)["test_accuracy"])
    return losses, accuracy


def tuned(name: str, case: Case) -> Constants:
    """The constants with the lowest loss in the end, on an instance for tuning."""
    make, grid = RIVALS[name]
    (seed,) = instance_seeds("tuning", 1)

    def end(constants: Constants) -> float:
        return run(make(**constants), case, seed, case.iterations, 1)[0][-1]

    if case.coarse:
        return climbed(end, {key: values[0] for key, values in grid.items()} | {"gamma": CLIMB[name]})
    return min((dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())), key=end)


def climbed(end: Callable[[Constants], float], start: Constants) -> Constants:
    """From these constants up, or down, in factors of two as long as the end is lower."""
    best, least = start, end(start)
    for factor in (2.0, 0.5):
        while (now := end(next_one := best | {"gamma": factor * best["gamma"]})) < least:
            best, least = next_one, now
        if best != start:
            break
    return best


def race(method: Algorithm, case: Case, iterations: int) -> list[dict[str, Any]]:
    looks = LOOKS * iterations // case.iterations
    runs = [run(method, case, seed, iterations, looks) for seed in instance_seeds("test", case.instances)]
    return [{"losses": losses, "test_accuracy": accuracy} for losses, accuracy in runs]


def needed(losses: list[float], target: float, every: int) -> float:
    """Iterations to a loss; between two looks it falls geometrically."""
    before = math.inf
    for look, value in enumerate(losses):
        if value <= target:
            share = 1.0 if not look or before <= value else math.log(before / target) / math.log(before / value)
            return every * (look + share)
        before = value
    return math.inf


def ratios(methods: dict[str, list[dict[str, Any]]], rival: str, case: Case) -> dict[str, tuple[float, float]]:
    """Median iterations to the loss at which a rival ends, and that over its own."""
    every = case.iterations // LOOKS
    targets = [run["losses"][LOOKS - 1] for run in methods[rival]]
    each = {
        method: [needed(run["losses"], target, every) for run, target in zip(runs, targets, strict=True)]
        for method, runs in methods.items()
    }
    return {m: (median(k), median(a / b for a, b in zip(k, each[rival], strict=True))) for m, k in each.items()}


def report(name: str, case: Case, methods: dict[str, list[dict[str, Any]]], constants: dict[str, Constants]) -> None:
    best = min(constants, key=lambda rival: mean(run["losses"][LOOKS - 1] for run in methods[rival]))
    to_best, to_plain = ratios(methods, best, case), ratios(methods, "prox-ed", case)
    print(f"\n{name}: {case.family.name} on {case.graph}; to the losses at which {best} and prox-ed end after {case.iterations}")
    for method, runs in methods.items():
        (k, ratio), (k_plain, _) = to_best[method], to_plain[method]
        end, accuracy = median(run["losses"][LOOKS - 1] for run in runs), median(run["test_accuracy"] for run in runs)
        said = ", ".join(f"{key} {value:g}" for key, value in constants.get(method, {}).items())
        judged = f" {verdict(ratio <= GOAL)}" if method == "milodo-networks" else ""
        print(f"  {method:24} {k:5.0f} {ratio:5.2f}x{judged}, {k_plain:5.0f}; loss {end:.4f}, accuracy {accuracy:.3f} {said}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=[""])
    parser.add_argument("--out", type=Path, default=Path("runs/networks"))
    parser.add_argument("--rivals-only", action="store_true", help="what needs no milodo-networks")
    parser.add_argument("--cards", action="store_true", help="put the results onto the cards of shipped optimizers, too")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    for name, case in CASES.items():
        if not name.startswith(tuple(asked.names)):
            continue
        kept = Kept(asked.out / f"{name}.json", {"iterations": case.iterations, "instances": case.instances})
        constants, methods = {}, {}
        for rival, (make, _) in RIVALS.items():
            constants[rival] = kept.get(f"{rival}: tuned", lambda rival=rival, case=case: tuned(rival, case))
            method = make(**constants[rival])
            methods[rival] = kept.get(f"{rival}: runs", lambda m=method, case=case: race(m, case, case.iterations))
        if asked.rivals_only:
            continue
        longer = 6 * case.iterations // 5 if case.coarse else 3 * case.iterations // 2
        learned: dict[str, Algorithm] = {} if case.coarse else {"untrained": Shared(case.graph)}
        learned |= {each: load_optimizer(each)[0] for each in (*case.own, "milodo-networks")}
        for label, method in learned.items():
            methods[label] = kept.get(f"{label}: runs", lambda m=method, case=case, most=longer: race(m, case, most))
        report(name, case, methods, constants)
        if asked.cards:
            for label in (*case.own, "milodo-networks"):
                note(label, name, case, methods, constants)


def whole(iterations: float) -> int | None:
    return round(iterations) if math.isfinite(iterations) else None


def note(label: str, name: str, case: Case, methods: dict[str, list[dict[str, Any]]], constants: dict[str, Constants]) -> None:
    """Puts what this case measured onto the card of a shipped optimizer."""
    best = min(constants, key=lambda rival: mean(run["losses"][LOOKS - 1] for run in methods[rival]))
    found = {
        "command": "python benchmarks/networks.py",
        "problem": f"{case.family.name}, {case.family.split}, on {case.graph}",
        "unseen_instances": len(methods[label]),
        "iterations_of_tuned_rivals": case.iterations,
        "strongest_tuned_rival": best,
        "iterations_to_where_it_ended": whole(ratios(methods, best, case)[label][0]),
        "iterations_to_where_tuned_prox_ed_ended": whole(ratios(methods, "prox-ed", case)[label][0]),
        "test_accuracy": median(run["test_accuracy"] for run in methods[label]),
    }
    path = shipped()[label].with_suffix(".json")
    card = json.loads(path.read_text(encoding="utf-8"))
    card["results"] = {**card["results"], name: found}
    write_json(path, card)
    load_optimizer(label)


if __name__ == "__main__":
    main()
