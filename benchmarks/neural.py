"""What the neural problems cost.

    python benchmarks/neural.py gradient     the gradients of all nodes against one ordinary forward and backward pass
    python benchmarks/neural.py iteration    an iteration of Prox-ED and of MiLoDo (networks in each tenth iteration)
    python benchmarks/neural.py memory       the peak of training MiLoDo over segments of 20 iterations (needs 12 GB)

Goals: the gradients of ten MLPs take at most 2x, those of five ResNets at most 1.1x the time of one model on the same samples;
training stays within 12 GiB. Images are random, of the real sizes; mlp or resnet behind it restrict it. One thread; an iteration
is measured in seconds of the processor, which others on the machine do not lengthen.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from unittest.mock import patch

import numpy as np
import torch
from _measure import medians, verdict
from torch.nn.functional import cross_entropy

from milodo.algorithms import Algorithm, ProxED
from milodo.cli.process import keep_freed_memory
from milodo.config import load_experiment
from milodo.learned.milodo import MiLoDo, special_initialisation
from milodo.loop import iterate
from milodo.network import StackedNetwork
from milodo.problems import FAMILIES, Neural
from milodo.training import Trainer

GOALS = {"mlp": 2.0, "resnet": 1.1}
LARGEST = 12 << 30
BATCH = 100
SIZES = {"mlp": (60_000, 28, 28), "resnet": (30_000, 3, 32, 32)}
EXPERIMENTS = {"mlp": "milodo-mlp-ring10", "resnet": "milodo-resnet-ring5"}


def images(kind: str) -> Callable[[str], tuple[np.ndarray, np.ndarray]]:
    """In place of a data set's loader: noise, of its size."""
    rng = np.random.default_rng(0)
    both = rng.integers(0, 256, SIZES[kind], dtype=np.uint8), rng.integers(0, 10, SIZES[kind][0])
    return lambda part: both


def problem(kind: str) -> Neural:
    family = FAMILIES[kind](N=500)
    with patch.object(type(family), "images", lambda self, part: images(kind)(part)):
        return family.sample([0])


def gradient(kind: str) -> None:
    nodes = problem(kind)
    step, x = nodes.at_step(0), nodes.start()
    module = FAMILIES[kind]().module()
    inputs, targets = (
        part.flatten(0, 1) for part in (nodes.inputs[torch.stack(step.rows)], nodes.targets[torch.stack(step.rows)])
    )

    def ordinary() -> None:
        module.zero_grad()
        cross_entropy(module(inputs), targets).backward()

    with torch.no_grad():
        step.grad(x)  # gathers the minibatch
    took = medians({"ordinary": torch.enable_grad()(ordinary), "ours": lambda: step.grad(x)}, repeats=60 if kind == "mlp" else 9)
    ratio = took["ours"] / took["ordinary"]
    said = f"{1e3 * took['ours']:.2f} ms, one model on all of them {1e3 * took['ordinary']:.2f} ms: {ratio:.2f}x"
    goal = f"(goal: at most {GOALS[kind]}) {verdict(ratio <= GOALS[kind])}"
    print(f"{kind}: {nodes.n} nodes x {BATCH} samples: {said} {goal}")


def iteration(kind: str) -> None:
    nodes = problem(kind)
    net = StackedNetwork(f"ring({nodes.n})", "third", dtype=torch.float32)
    learned = special_initialisation(MiLoDo(net.topology, every=10), net, 0.05)
    methods: dict[str, Algorithm] = {"prox-ed": ProxED(gamma=0.05), "milodo": learned.requires_grad_(False)}
    states = {name: iterate(method, nodes, net) for name, method in methods.items()}
    for each in states.values():
        for _ in range(30 if kind == "mlp" else 21):  # past the iterations in which the networks always run
            next(each)
    tasks = {name: lambda each=each: next(each) for name, each in states.items()}
    with torch.no_grad():
        took = medians(tasks, repeats=5 if kind == "mlp" else 1, inner=10, clock=time.process_time)
    said = ", ".join(f"{name} {1e3 * seconds:.1f} ms" for name, seconds in took.items())
    print(f"{kind}: an iteration takes {said}: {took['milodo'] / took['prox-ed']:.2f}x")


def memory(kind: str) -> None:
    """One segment of training, in a process of its own."""
    done = subprocess.run([sys.executable, __file__, "segment", kind], capture_output=True, text=True, check=True)
    peak = int(done.stdout.split()[-1])
    print(
        f"{kind}: training with K_T = 20 needs {peak / 2**30:.2f} GiB (goal: at most {LARGEST >> 30}) {verdict(peak <= LARGEST)}"
    )


def segment(kind: str) -> None:
    table = load_experiment(EXPERIMENTS[kind])
    assert table.training is not None
    stage = table.training.stages[0].model_copy(update={"K": 20, "K_T": 20, "epochs": 1})
    short = {"instances": stage.batch, "validation_instances": 1, "validation_iterations": 20, "stages": [stage]}
    training = table.training.model_copy(update=short)
    with tempfile.TemporaryDirectory() as folder, patch.object(FAMILIES[kind], "images", lambda self, part: images(kind)(part)):
        Trainer(table.model_copy(update={"training": training}), Path(folder) / "run").run()
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024))


def main() -> None:
    torch.set_num_threads(1)
    keep_freed_memory()
    task, *chosen = sys.argv[1:] or [""]
    tasks = {"gradient": gradient, "iteration": iteration, "memory": memory, "segment": segment}
    if task not in tasks:
        sys.exit(__doc__)
    for kind in chosen or GOALS:
        tasks[task](kind)


if __name__ == "__main__":
    main()
