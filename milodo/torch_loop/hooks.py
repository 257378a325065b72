"""Gossip in an ordinary torch loop: hooks on the optimizer's step, messages between neighbours, nothing wrapped."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager
from typing import Any, Self

import networkx as nx
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from milodo.algorithms import Ahead
from milodo.errors import InvalidInput, quoted
from milodo.loop import advance
from milodo.metrics import consensus_error
from milodo.network import DistributedNetwork, Network, Traffic, TreeObserver, degraded
from milodo.network.distributed import TIMEOUT
from milodo.runtime.group import among_others
from milodo.synchronise import after_step, begin, own_state
from milodo.topology import Topology
from milodo.torch_loop.common_start import agreed, graph_of, same_start
from milodo.torch_loop.flat import Flat, Floats
from milodo.torch_loop.loop_state import from_stored, stored
from milodo.torch_loop.optimizer_reader import Local, Reader
from milodo.types import NodeTensor

AMP = "_step_supports_amp_scaling"
"""What a GradScaler asks of an optimizer: whether it may call `step` although gradients are not finite, with `found_inf` and
`grad_scale` on the optimizer, instead of skipping it. Without, nobody could tell the neighbours that a step was skipped."""
OPEN: list[int] = []
"""The channel of each gossip of this process: messages may travel during the next gradient, and must not meet another's."""
PARTING = 5.0
"""Seconds that messages under way have when the loop has failed."""


class Gossip:
    """The node of this process in a loop, inside `with milodo.gossip(...) as g`."""

    net: Network
    observer: TreeObserver

    def __init__(self, model: nn.Module, optimizer: Optimizer, reader: Reader, network: dict[str, Any], timeout: float) -> None:
        self.model, self.optimizer, self._reader, self._flat = model, optimizer, reader, reader.flat
        self._network, self.timeout = network, timeout
        self.k = 0
        """Steps so far."""
        self._state: Any = None
        self._sent = Traffic()
        """By the steps so far, without what is under way for the next."""
        self._taken: tuple[NodeTensor, NodeTensor | None, list[Tensor | None]] | None = None
        self._heard: Future[Any] | None = None
        self._stack, self._thread, self._evaluating = ExitStack(), ThreadPoolExecutor(1, "milodo-gossip"), False

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            group = stack.enter_context(among_others(self.timeout, self._flat.device.type))
            graph, how = graph_of(self._network["graph"], group.world), self._network
            real = DistributedNetwork(
                graph, how["weights"], timeout=self.timeout, dtype=self._flat.dtype, device=self._flat.device,
                channel=self._channel(stack),
            )  # fmt: skip
            self.net = degraded(real, schedule=how["schedule"], seed=how["seed"])
            self.observer = TreeObserver(real.peers, graph.n, self._flat.device)
            agreed(group, self.observer, self.facts)
            same_start(self.observer, self.node, Floats([*self.model.parameters(), *self.model.buffers()]))
            self._state = begin(self._reader.unread, self._flat.read(), Local(torch.zeros_like(self._flat.read())), self.net)
            for handle in (
                self.optimizer.register_step_pre_hook(self._before),
                self.optimizer.register_step_post_hook(self._after),
            ):
                stack.callback(handle.remove)
            if not getattr(self.optimizer, AMP, False):
                setattr(self.optimizer, AMP, True)
                stack.callback(delattr, self.optimizer, AMP)
                self._unscales = True
            else:  # a fused optimizer, which unscales and skips by itself
                self._unscales = False
            self._stack = stack.pop_all()
        return self

    def _channel(self, stack: ExitStack) -> int:
        """One that no other gossip uses; all processes open theirs in the same order, and so find the same."""
        channel = next(k for k in itertools.count() if k not in OPEN)
        OPEN.append(channel)
        stack.callback(OPEN.remove, channel)
        return channel

    def __exit__(self, *failure: Any) -> bool | None:
        if not any(failure):
            try:
                self._settled()
                self.observer.barrier()  # nobody leaves while a neighbour still waits for what it says
            except BaseException as error:
                self._thread.shutdown(wait=False)
                if not self._stack.__exit__(type(error), error, error.__traceback__):
                    raise
        elif self._heard is not None:
            wait([self._heard], PARTING)
        self._thread.shutdown(wait=False)
        return self._stack.__exit__(*failure)

    @property
    def node(self) -> int:
        """Which node this process is."""
        return self.net.nodes[0]

    @property
    def traffic(self) -> Traffic:
        """What this node has sent: rounds, messages, numbers, bytes; also what is under way for the next step. Evaluation is not
        counted."""
        return self.net.traffic

    @property
    def facts(self) -> dict[str, str]:
        """What must be the same at all nodes."""
        return {
            "method": self._reader.name, "messages": str(self._reader.form or "full"), "graph": self.net.topology.fingerprint,
            "schedule": "" if self.net.schedule is None else self.net.schedule.fingerprint,
            "weights": str(self._network["weights"]), "number of parameters": str(self._flat.d), "dtype": str(self._flat.dtype),
        }  # fmt: skip

    # In every step of the optimizer

    def _before(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any] | None:
        if self._evaluating:
            raise InvalidInput("a step inside `with g.average()` would be undone at its end. Train outside of it.")
        self._flat.check(optimizer)
        told, closure = None, args[1] if len(args) > 1 else kwargs.get("closure")
        if closure is not None and not self._reader.loop.whole:
            with torch.enable_grad():
                loss = closure()
            told = (optimizer, lambda: loss), {}  # the gradient is there now, and taken once
        x, skipped = self._flat.read(), self._skipped(optimizer)
        if self._reader.loop.whole:
            self._taken = x, None, self._flat.hidden() if skipped else []
        else:
            g = torch.zeros_like(x) if skipped else self._flat.gradient(x, self._reader.decay(optimizer))
            self._taken = x, g, self._flat.hidden()
        return told

    def _skipped(self, optimizer: Optimizer) -> bool:
        """Whether a GradScaler would have left this step out; if not, gradients are unscaled now."""
        if self._reader.loop.whole and not self._unscales:
            return False
        found_inf, scale = getattr(optimizer, "found_inf", None), getattr(optimizer, "grad_scale", None)
        skipped = found_inf is not None and float(found_inf) > 0
        if scale is not None and not skipped:
            self._flat.unscale(scale)
        if found_inf is not None:  # it is done, and nothing is left for the optimizer, which may not know of it
            optimizer.found_inf = optimizer.grad_scale = None  # type: ignore[attr-defined]
        return skipped

    def _after(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        assert self._taken is not None
        (x, g, grads), self._taken = self._taken, None
        if grads:
            self._flat.shown(grads)
        self._moved(x, x - self._flat.read() if g is None else g)

    def skip(self) -> None:
        """For a node that leaves a step out while the others make theirs: it mixes, and its own part is 0."""
        x = self._flat.read()
        self._moved(x, torch.zeros_like(x))

    @torch.no_grad()
    def _moved(self, x: NodeTensor, g: NodeTensor) -> None:
        """One iteration of the method, from where the model is now, with this node's gradient."""
        self.k += 1
        method, problem, state = self._reader.method(self.optimizer, self.k), Local(g), _placed(self._state, x)
        if isinstance(method, Ahead):
            heard = self._hear(method, state, self.k) if self._heard is None else self._heard.result()
            moved = method.move(own_state(state), heard, problem)
            self._state = after_step(method, state, moved, problem, self.net.at_step(self.k))
        else:
            self._state = advance(method, state, problem, self.net, self.k)
        self._flat.write(self._state.x)
        self._sent = self.traffic.snapshot()
        if isinstance(method, Ahead):  # neighbours hear of it while the next gradient is computed
            self._heard = self._thread.submit(self._hear, method, self._state, self.k + 1)

    def _hear(self, method: Ahead, state: Any, k: int) -> Any:
        with torch.no_grad():
            return method.hear(own_state(state), self.net.at_step(k))

    def _settled(self) -> None:
        """No message is under way."""
        if self._heard is not None:
            self._heard.result()

    # For all nodes together: each must ask

    @contextmanager
    def average(self) -> Iterator[nn.Module]:
        """The model with the mean of all nodes' weights, and of those buffers that hold real numbers, for as long as the block
        lasts. Sums go over a spanning tree of neighbours; all processes must enter it."""
        self._settled()
        floats = Floats(self.model.buffers())
        kept = [(part, part.read()) for part in (self._flat, floats)]
        for part, own in kept:
            if own.numel():
                part.write(self.observer.mean(own, dim=-2).unsqueeze(0))
        self._evaluating = True
        try:
            yield self.model
        finally:
            self._evaluating = False
            for part, own in kept:
                part.write(own)

    def consensus_error(self) -> float:
        """(1/n) Σ_i ‖x_i - x̄‖, the same number at all nodes; all processes must ask."""
        self._settled()
        return float(consensus_error(self._flat.read(), self.observer))

    # Going on later

    def state_dict(self) -> dict[str, Any]:
        """All that the method remembers at this node, its weights included; save it beside the model's and the optimizer's."""
        return stored(self.facts, self.node, self.k, self._sent, _placed(self._state, self._flat.read()))

    def load_state_dict(self, found: dict[str, Any]) -> None:
        """Goes on exactly where `state_dict` was taken; all processes must load theirs."""
        self._settled()
        self._heard = None
        self.k, self._state = from_stored(found, self.facts, self.node, self.traffic, self._state)
        self._flat.write(self._state.x)
        self._sent = self.traffic.snapshot()


def _placed(state: Any, x: NodeTensor) -> Any:
    """The state, with x where the model is: it may have been changed between two steps."""
    return state._replace(x=x, inner=_placed(state.inner, x)) if "inner" in state._fields else state._replace(x=x)


def gossip(
    model: nn.Module, optimizer: Optimizer, graph: str | Topology | nx.Graph = "ring", method: str = "qg-dsgdm",
    *, schedule: str | Sequence[str] | None = None, weights: str = "metropolis", messages: str = "full", seed: int = 0,
    timeout: float = TIMEOUT,
) -> Gossip:  # fmt: skip
    """Makes a loop one node of several, each in a process of its own with data of its own, e.g. under torchrun:

        with milodo.gossip(model, optimizer, graph="ring", method="qg-dsgdm") as g:
            for batch in loader: ...; loss.backward(); optimizer.step(); optimizer.zero_grad()

    Every optimizer.step() is one iteration of the method: a message to each neighbour and one from each. All processes must make
    the same number of steps. Nodes begin with the weights of node 0.

    method     'prox-dgd', 'd-psgd': the optimizer's own step, whichever it is, and mixing after or beside it
               'dsgdm', 'qg-dsgdm', 'decentlam', 'd2', 'gradient-tracking': their own update; lr, momentum and weight_decay are
               read from torch.optim.SGD, group by group, in every step (momentum is their β; the last two have none)
    graph      a family's name for as many nodes as there are processes, a full name such as 'grid(2x4)', a file, a networkx graph
    schedule   which of its links an iteration uses: 'one-peer' (graph = 'exponential'), 'matchings', ...; all unless given
    messages   'full', or differences from what was said before: '8-bit', 'float16', 'top-10%'
    timeout    seconds to wait for a neighbour before it counts as lost
    """
    if not isinstance(model, nn.Module) or not isinstance(optimizer, Optimizer):
        raise InvalidInput(f"gossip needs a torch module and its optimizer, but got {quoted(model)} and {quoted(optimizer)}.")
    reader = Reader(method, messages, Flat(model, optimizer), optimizer)
    return Gossip(model, optimizer, reader, {"graph": graph, "schedule": schedule, "weights": weights, "seed": seed}, timeout)
