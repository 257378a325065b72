"""What a fit will cost, in words, before it begins: set-up, method and checks of all sites together, as they will be counted."""

from __future__ import annotations

from milodo.algorithms import Algorithm
from milodo.network import Network, Spent
from milodo.network.consensus import average_rounds, maximum_rounds
from milodo.problems.sampled import Sampled
from milodo.solvers.line_search import FIRST
from milodo.solvers.triangles import packed_size
from milodo.words import amount

NEWTON = 10
"""Iterations of Newton's method that are expected."""
LOOKS = 2.5
"""Closer looks at the stopping rule that are expected: one that says how far off short steps are, and one that is the last, or
nearly so."""
NUMBER = 8
"""Bytes of a number that is sent in full."""


def of_a_look(method: Algorithm, net: Network) -> float:
    """In iterations, by the rounds of both."""
    return 2 * net.topology.tree.height / max(1, method.cost(net, 1).rounds)


def tree_sums(net: Network, *numbers: float) -> Spent:
    """Sums over the spanning tree of so many numbers each."""
    n, height = net.topology.n, net.topology.tree.height
    return Spent(2 * height * len(numbers), round(2 * (n - 1) * NUMBER * sum(numbers)))


def scaling_cost(problem: Sampled, net: Network, *, reliable: bool) -> Spent:
    """Of counts, means and sizes of the columns."""
    outputs = max(1, problem.b.shape[-1] if problem.outputs else 1)
    features = (problem.d - problem.reg.unpenalized) // outputs
    numbers = (1 + features + outputs, features)
    if reliable:
        return tree_sums(net, *numbers)
    rounds = average_rounds(net) + maximum_rounds(net)
    return Spent(rounds * len(numbers), rounds * len(net.topology.arcs) * NUMBER * sum(numbers))


def of_curvatures(problem: Sampled, net: Network) -> str:
    """Moments, or Newton on sums: about all of it."""
    d, half = problem.d, packed_size(problem.d)
    once = 1 if problem.quadratic else NEWTON
    tried = 0 if problem.quadratic else FIRST
    each = (half, d + tried, d + 1)  # curvature; aims, with values on the way there; the gradient where that led, with f
    method = tree_sums(net, half + d, *each[1:], *each * (once - 1))
    # Whether columns have the same units everywhere; units of the problem; certificate; what was sent, and whether sums fit.
    checks = tree_sums(net, 1, 4, *_certificate(problem), 4)
    parts = {"set-up": scaling_cost(problem, net, reliable=True), "method": method, "checks": checks}
    said = ", ".join(f"{name} {amount(part.bytes)}" for name, part in parts.items())
    expected = "" if problem.quadratic else f", if it takes {NEWTON} iterations"
    total, rounds = sum(part.bytes for part in parts.values()), sum(part.rounds for part in parts.values())
    return f"about {amount(total)} in {rounds} rounds ({said}){expected}"


def of_iterations(each: str, problem: Sampled, net: Network, *, reliable: bool, alike: bool) -> str:
    """A method whose iterations cost `each`, and whose number nobody knows before."""
    look = (problem.d + 2) + (0 if alike else problem.d) + sum(_certificate(problem))
    once = scaling_cost(problem, net, reliable=reliable).bytes
    checks = tree_sums(net, LOOKS * look).bytes
    return f"{each}; beside that about {amount(once)} for set-up and {amount(checks)} for checks"


def _certificate(problem: Sampled) -> tuple[int, ...]:
    """Numbers of its sums."""
    if not problem.certifies:
        return ()
    if not problem.reg.unpenalized:
        return (1,)
    return (2 if problem.quadratic else 3, 1) if problem.reg.unpenalized == 1 else (2 * problem.reg.unpenalized, problem.d, 1)
