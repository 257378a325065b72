"""Your own method: a State, init and step. It then runs, tunes, records and plots like every other.

python examples/own_method.py
"""

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import milodo
from milodo.algorithms import StepSize
from milodo.bench.tuning import Search, tune
from milodo.network.exchange import Gossip
from milodo.types import NodeTensor, Step


class State(NamedTuple):
    x: NodeTensor
    s: NodeTensor
    g: NodeTensor
    link_x: Any
    link_s: Any


@dataclass(frozen=True, kw_only=True)
class GradientTracking(milodo.Algorithm):
    """x⁺ = prox_{γr}(W x - γ s),  s⁺ = W s + ∇f(x⁺) - ∇f(x),  s⁰ = ∇f(x⁰): s tracks the average gradient."""

    gamma: Step
    exchange: Gossip = Gossip()

    label: ClassVar[str] = "Gradient tracking"
    exact: ClassVar[bool] = True
    space: ClassVar = {"gamma": StepSize(1 / 64, 4)}
    State = State

    def init(self, x0, problem, net):
        g = problem.grad(x0)
        return State(x0, g, g, self.exchange.init(x0, net), self.exchange.init(x0, net))

    def step(self, state, problem, net):
        mixed_x, link_x = self.exchange.mix(state.x, state.link_x, net)
        mixed_s, link_s = self.exchange.mix(state.s, state.link_s, net)
        x = problem.prox(mixed_x - self.gamma * state.s, self.gamma)
        g = problem.grad(x)
        return State(x, mixed_s + g - state.g, g, link_x, link_s)

    def sends(self, d):
        return ((d, 0), (d, 0))  # two messages of d numbers, none of which must arrive as it is


family, net = milodo.Lasso(n=10, d=20, N=40, lam=0.1), milodo.StackedNetwork("erdos_renyi(10,0.4,seed=1)")
training = family.sample(milodo.instance_seeds("tuning", 4))
search = Search(target=1e-6, iterations=500)
for method in (GradientTracking, milodo.ProxED):
    found = tune(method, training, net, milodo.optimum(training).value, search)
    unseen = family.sample(milodo.instance_seeds("test", 32))
    result = milodo.solve(method(**found.best), unseen, net, milodo.Stop(steps=round(found.score)))
    gaps = (result.objective - milodo.optimum(unseen).value).sort().values
    print(f"{method.label:18s} gamma = {found.best['gamma']:.3f}   median gap after {result.k} iterations: {gaps[16]:.1e}")
