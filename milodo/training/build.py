"""From an experiment's [training] to an optimizer with its first weights."""

from __future__ import annotations

import torch

from milodo.config import Experiment
from milodo.learned import PLAIN, Activations, BaseRules, Bounded, Learned, LPGExtra, MiLoDo, special_initialisation
from milodo.learned.base_rules import HIDDEN as BASE_HIDDEN
from milodo.learned.optimizer import HIDDEN
from milodo.network import StackedNetwork


def build_optimizer(experiment: Experiment, net: StackedNetwork) -> Learned:
    """In fp32. Weights depend on the experiment's seed alone; torch's own stream of numbers is left as it was."""
    table = experiment.training
    assert table is not None
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(experiment.seed)
        if table.optimizer == "lpg-extra":
            return LPGExtra(net.topology, layers=table.layers, gamma=table.gamma)
        if table.optimizer == "base-rules":
            return BaseRules(
                net.topology, d=table.d or experiment.problem.d, hidden=table.hidden or BASE_HIDDEN, seed=experiment.seed
            )
        bounds = table.bounds
        bounded = Activations(*(Bounded(low, high) for low, high in (bounds.m, bounds.s, bounds.u)))
        activations = PLAIN if table.activations == "plain" else bounded
        optimizer = MiLoDo(
            net.topology, hidden=table.hidden or HIDDEN, activations=activations, seed=experiment.seed, every=table.every
        )
        return special_initialisation(optimizer, net, table.gamma) if table.initial == "special" else optimizer
