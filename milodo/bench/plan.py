"""What each method of an experiment runs with: learned, given, published, safe or tuned. Nothing is tuned twice."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cached_property

import torch

from milodo.algorithms import METHODS, Algorithm
from milodo.algorithms.auto import Facts, choose, learn
from milodo.bench import cache
from milodo.bench.run_file import MethodFacts, TuningFacts, WeightsFacts
from milodo.bench.runtimes import Chunk
from milodo.bench.tuning import Parameters, tune
from milodo.config import Experiment, MethodTable
from milodo.config.tables import AUTO, NetworkTable
from milodo.errors import InvalidInput
from milodo.learned import Learned
from milodo.learned.checkpoint import load_optimizer
from milodo.network import Network, message_format
from milodo.problems import Problem, Reference, instance_seeds, optimum
from milodo.words import brief

Progress = Callable[[str, float, str], None]
"""Called with a task's name, the fraction of it that is done, and a word on where it is."""


def chunks(experiment: Experiment) -> list[Chunk]:
    """Instances that are held, and advance, together."""
    run = experiment.run
    size = run.batch or run.instances
    return [(start, min(start + size, run.instances)) for start in range(0, run.instances, size)]


def run_seeds(experiment: Experiment, chunk: Chunk) -> list[int]:
    return instance_seeds("test", experiment.run.instances, experiment.seed)[slice(*chunk)]


def certified(problem: Problem, what: str, progress: Progress) -> Reference | None:
    """The optimum of every instance; None where the problem does not know what it takes to look for one."""
    if not problem.knows_lipschitz:
        return None
    task = f"certified optimum, {what}"
    progress(task, 0.0, "")
    found = optimum(problem, progress=lambda worst: progress(task, 0.5, f"largest certificate {worst:.0e}"))
    progress(task, 1.0, f"{found.kind} <= {float(found.certificate.max()):.0e}")
    return found


def _can_run(method: MethodTable, parameters: Parameters) -> bool:
    """Whether they are such as the method can run with: they come from a file."""
    try:
        method.handcrafted(parameters)
    except (TypeError, KeyError, InvalidInput):
        return False
    return True


class Planner:
    """Finds the parameters of an experiment's methods."""

    def __init__(self, experiment: Experiment, net: Network, progress: Progress) -> None:
        self.experiment, self.net, self.progress = experiment, net, progress
        self.family, self.device = experiment.family, experiment.run.device
        self.loaded: dict[str, tuple[Learned, WeightsFacts]] = {}
        """Learned optimizers with their weights, by the name of the weights."""

    def plan(self, method: MethodTable) -> tuple[MethodFacts, TuningFacts | None]:
        """What a method runs with and, if any of it was searched, how."""
        if method.name == AUTO:
            return self._chosen(method), None
        parameters, tuning = ({}, None) if method.learned else self._parameters(method)
        algorithm, weights = self.algorithm(method, parameters)
        facts = MethodFacts(
            label=algorithm.label + (f" ({method.words})" if method.words else ""), parameters=parameters, weights=weights,
            how="learned" if method.learned else method.use if METHODS[method.name].space else "nothing",
            rounds_per_iteration=algorithm.cost(self.net, self.family.d).rounds, gradients_per_iteration=algorithm.gradients,
            exact=algorithm.exact, needs=algorithm.needs,
        )  # fmt: skip
        return facts, tuning

    def is_known(self, method: MethodTable, facts: MethodFacts) -> bool:
        """Whether the facts say with which parameters a method runs, and they are such as it can run with."""
        if facts.parameters is None or method.learned:
            return facts.parameters is not None
        return _can_run(method, facts.parameters)

    def algorithm(self, method: MethodTable, parameters: Parameters) -> tuple[Algorithm, WeightsFacts | None]:
        """The method, ready to run, and which weights it has if it is learned."""
        if not method.learned:
            return method.handcrafted(parameters), None
        optimizer, weights = self._optimizer(method)
        return method.saying(optimizer), weights

    def _optimizer(self, method: MethodTable) -> tuple[Learned, WeightsFacts]:
        assert method.weights is not None
        if method.weights in self.loaded:
            return self.loaded[method.weights]
        optimizer, card = load_optimizer(method.weights)
        if card.kind != method.name:
            raise InvalidInput(f"{method.weights!r} holds weights of {card.kind!r}, not of {method.name!r}. Change the name.")
        facts = WeightsFacts(name=card.name, sha256=card.weights.sha256, trained_on=card.good_for)
        self.loaded[method.weights] = optimizer.to(self.device), facts
        return self.loaded[method.weights]

    def weights(self, method: MethodTable) -> WeightsFacts | None:
        """Of a learned method, whose weights fit the graph."""
        if not method.learned:
            return None
        optimizer, weights = self._optimizer(method)
        optimizer.check_network(self.net)
        return weights

    def _parameters(self, method: MethodTable) -> tuple[Parameters, TuningFacts | None]:
        if method.use == "given":
            return dict(method.parameters), None
        if method.use == "safe":
            return self._safe(METHODS[method.name]), None
        fixed: Parameters = dict(method.parameters)  # those that were published
        if set(fixed) >= set(METHODS[method.name].space):
            return fixed, None
        tuning = self._tuned(method, fixed)
        return dict(tuning.best or {}), tuning

    def _tuned(self, method: MethodTable, fixed: Parameters, network: NetworkTable | None = None) -> TuningFacts:
        """On the experiment's network, or on another; from the cache, if it was ever found."""
        cls, table = METHODS[method.name], self.experiment.tuning
        network = network or self.experiment.network
        key = {
            "method": method.name, "fixed": fixed, "problem": self.family.name, "seeds": self._tuning_seeds,
            "topology": self.net.topology.fingerprint, "weights": network.weights,
            **network.model_dump(include={"outage", "schedule", "messages", "mixing"}, exclude_defaults=True),
            **{f"method's {key}": value for key in ("exchange", "messages") if (value := getattr(method, key)) is not None},
            "search": table.model_dump(mode="json", exclude={"unit", "wide"} - table.model_fields_set),
            "space": {name: repr(kind) for name, kind in cls.space.items()},
        }  # fmt: skip
        asked = {**table.model_dump(mode="json"), "seeds": self._tuning_seeds, "fixed": fixed}
        task = f"tune {cls.label}" + (f" ({method.remark})" if method.remark else "")
        found = cache.load(key, lambda said: self.progress(task, 0.0, said))
        kept = TuningFacts.model_validate({**asked, **(found or {}), "cached": True})
        if kept.best is not None and _can_run(method, kept.best):
            self.progress(task, 1.0, "from the cache")
            return kept
        start = self._uncompressed(method, fixed, network)
        problem, best = self._tuning_instances
        net = self._net_of(network)
        self.progress(task, 0.0, "")

        def progress(fraction: float, detail: str) -> None:
            self.progress(task, min(fraction, 0.99), detail)  # 1 is said with the result

        make = method.handcrafted
        found = tune(cls, problem, net, best, table, fixed=fixed, make=make, start=start, progress=progress).to_json()
        cache.store(key, found)
        tuning = TuningFacts.model_validate({**asked, **found})
        self.progress(task, 1.0, "every candidate diverged" if tuning.score is None else brief(tuning.best or {}))
        return tuning

    def _uncompressed(self, method: MethodTable, fixed: Parameters, network: NetworkTable) -> Parameters | None:
        """The best parameters of the same method with full messages, where its own are compressed; None where none work."""
        if method.messages is None and message_format(network.messages) is None:
            return None
        plain, full = method.model_copy(update={"messages": None}), network.model_copy(update={"messages": "full"})
        found = self._tuned(plain, fixed, full)
        return None if found.score is None else found.best

    def _net_of(self, network: NetworkTable) -> Network:
        """The experiment's network, or another one on the same graph, in the precision by which methods are judged."""
        if network == self.experiment.network:
            return self._judged_net
        dtype = self.family.judged_in
        return network.network(self.experiment.graph, seed=self.experiment.seed, dtype=dtype, device=self.device)

    @cached_property
    def _judged_net(self) -> Network:
        return self.net if self.net.dtype == self.family.judged_in else self.experiment.connected(self.family.judged_in)

    @property
    def _tuning_seeds(self) -> list[int]:
        return instance_seeds("tuning", self.experiment.tuning.instances, self.experiment.seed)

    def _problem(self, seeds: list[int]) -> Problem:
        return self.family.sample(seeds, dtype=self.family.judged_in, device=self.device)

    @cached_property
    def _tuning_instances(self) -> tuple[Problem, torch.Tensor | None]:
        """With their optima, where the problem can know them; built only if somebody needs them."""
        problem = self._problem(self._tuning_seeds)
        found = certified(problem, "tuning instances", self.progress)
        if found is not None and not bool(found.certified.all()):
            raise InvalidInput(
                f"no optimum could be certified for the tuning instances ({found.why}), so there is no gap to tune for. "
                "Give the parameters with use = 'given', or change the problem."
            )
        return problem, found.value if found else None

    def _chosen(self, method: MethodTable) -> MethodFacts:
        """What auto takes on this network, for the instances it will run on."""
        network = self.experiment.network
        net = self._net_of(network)
        every = [learn(problem, net) for problem in self._test_problems()]
        told = [each.curvatures for each in every]
        facts = Facts(
            *(max(getattr(each, key) for each in every) for key in ("L", "mean", "pooled", "sums")),
            reliable=not network.outage, newton=every[0].newton,
            curvatures=None if None in told else tuple(map(max, zip(*told, strict=True))),
        )  # fmt: skip
        chosen = choose(method.price, facts, self.net, self.family.d, network.link)
        self.progress(f"choose for {method.price}", 1.0, chosen.why)
        return MethodFacts(
            label=f"Auto for {method.remark}: {chosen.algorithm.label}", parameters=chosen.best.parameters, how="auto",
            why=chosen.why, prediction=chosen.prediction,
            rounds_per_iteration=chosen.algorithm.cost(self.net, self.family.d).rounds, exact=chosen.algorithm.exact,
            needs=chosen.algorithm.needs,
        )  # fmt: skip

    def _test_problems(self) -> Iterator[Problem]:
        return (self._problem(run_seeds(self.experiment, chunk)) for chunk in chunks(self.experiment))

    def _safe(self, method: type[Algorithm]) -> Parameters:
        """Parameters the method derives itself, from the largest curvature of any node of the instances it will run on."""
        L = torch.cat([problem.lipschitz() for problem in self._test_problems()])  # [instances, n]
        return method.safe(float(L.max()), self.net, float(L.mean(-1).max())).chosen
