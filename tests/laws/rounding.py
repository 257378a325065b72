"""Processes that round differently, as threads of one process: all of milodo is the real code, only bytes move in memory.

Every thread is a rank with a wire of its own (`Mail`), and while it works the results of operations that machines may round
differently (sums, products of matrices, transcendental functions, eigenvalues) are off by one unit in the last place here and
there, in each thread at other places. What is exactly rounded everywhere (+, -, *, /, square roots, one by one) stays as it is.
"""

from __future__ import annotations

import math
import sys
import threading
from collections import defaultdict, deque
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from milodo.network import DistributedNetwork, TreeObserver
from milodo.network.distributed import Peers
from milodo.topology import topology

PATIENCE = 60.0
"""Seconds after which a message that does not come is missing: only a failing test waits for it."""
INEXACT = {
    "addmm", "mm", "bmm", "baddbmm", "addbmm", "mv", "addmv", "dot", "vdot", "sum", "mean", "norm", "linalg_vector_norm", "prod",
    "cumsum", "std", "var", "index_add", "scatter_add", "addcmul", "addcdiv", "lerp", "exp", "expm1", "log", "log1p", "log2",
    "pow", "sigmoid", "tanh", "erf", "softplus", "_softmax", "_log_softmax", "logsumexp", "log_sigmoid_forward", "logaddexp",
    "special_expit", "xlogy", "special_xlogy", "_linalg_eigh", "_linalg_svd", "_linalg_solve_ex", "linalg_inv_ex",
    "linalg_cholesky_ex", "linalg_qr", "linalg_lstsq", "linalg_pinv", "cholesky_solve", "triangular_solve",
    "linalg_solve_triangular",
}  # fmt: skip
"""Operations of torch that may round differently from one machine, number of threads or version to another."""
FUNCTIONS = {
    np: ("sum", "mean", "average", "std", "var", "dot", "exp", "log", "log2", "log10", "power", "cos", "geomspace", "logspace"),
    np.linalg: ("eigvalsh", "eigh", "norm", "solve", "lstsq", "inv"),
    math: ("exp", "log", "log2", "log10", "pow", "cos", "cosh", "acosh", "expm1", "log1p"),
}
"""Those of numpy and Python."""


PACKAGE, READS = "/milodo/", ("_local_scalar_dense", "equal", "is_nonzero", "allclose")
"""Operations by which a program learns what numbers a tensor holds, beside `tolist`."""


class Read(NamedTuple):
    """A number, or several, that a line of the package may decide by."""

    file: str
    function: str
    line: int
    value: Any


POOL = 1 << 12
"""Nudges that are drawn at once."""


class Nudged(TorchDispatchMode):
    """One thread's rounding."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.numbers, self.read = np.random.default_rng(seed), list[Read]()
        self.nudges, self.units = 0, self._drawn(POOL)

    def _drawn(self, count: int) -> np.ndarray:
        """Units in the last place: 0 at half of the places, 1 and -1 at a quarter each."""
        return np.array([-1, 0, 0, 1])[self.numbers.integers(0, 4, count)]

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # nothing is compiled here, and asking costs more than the operations

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if func.overloadpacket.__name__ in READS:
            self.reads(out)
        elif func.overloadpacket.__name__.rstrip("_") in INEXACT:
            for part in out if isinstance(out, tuple | list) else (out,):
                if isinstance(part, torch.Tensor) and part.dtype in (torch.float64, torch.float32) and part.numel():
                    self._nudge(part)
        return out

    def reads(self, value: Any) -> None:
        """Keeps what the program learns about the numbers in a tensor, and which of its lines does."""
        frame = sys._getframe(2)
        while frame is not None and PACKAGE not in frame.f_code.co_filename:
            if "/tests/" in frame.f_code.co_filename:
                return
            frame = frame.f_back
        if frame is not None:
            file = frame.f_code.co_filename.partition(PACKAGE)[2]
            self.read.append(Read(file, frame.f_code.co_name, frame.f_lineno, value))

    def _nudge(self, x: torch.Tensor) -> None:
        """In place, at half of the places; whole numbers stay what they are, for sums of whole numbers are exact."""
        self.nudges += 1
        values = x.numpy()
        bits = values.view(np.int64 if values.itemsize == 8 else np.int32)
        units = self.units[self.nudges % 97 :][: values.size] if values.size < POOL - 97 else self._drawn(values.size)
        np.add(bits, units.reshape(values.shape), out=bits, where=values != np.rint(values), casting="unsafe")

    def like(self, value: Any) -> Any:
        """A result of numpy or Python, nudged."""
        if isinstance(value, tuple):
            return type(value)(*map(self.like, value)) if hasattr(value, "_fields") else tuple(map(self.like, value))
        if isinstance(value, float | np.floating) or (isinstance(value, np.ndarray) and value.dtype.kind == "f"):
            drawn = self.numbers.random(np.shape(value))
            away = np.where(drawn < 0.25, np.inf, np.where(drawn < 0.5, -np.inf, value))
            found = np.where(value != np.rint(value), np.nextafter(value, away), value)
            return found if isinstance(value, np.ndarray) else type(value)(found)
        return value


HERE = threading.local()
"""`rounding`: of the thread; None where it rounds as this machine does."""


def nudging(function: Any) -> Any:
    def nudged(*args: Any, **kwargs: Any) -> Any:
        found, rounding = function(*args, **kwargs), getattr(HERE, "rounding", None)
        return found if rounding is None else rounding.like(found)

    return nudged


@contextmanager
def nudged_functions():
    """numpy's and Python's functions round as their thread does."""
    own = [(module, name, getattr(module, name)) for module, names in FUNCTIONS.items() for name in names]
    tolist = torch.Tensor.tolist

    def listed(x: torch.Tensor) -> Any:
        found, rounding = tolist(x), getattr(HERE, "rounding", None)
        if rounding is not None:
            rounding.reads(found)
        return found

    torch.Tensor.tolist = listed  # type: ignore[method-assign]
    try:
        for module, name, function in own:
            setattr(module, name, nudging(function))
        yield
    finally:
        torch.Tensor.tolist = tolist  # type: ignore[method-assign]
        for module, name, function in own:
            setattr(module, name, function)


class Post:
    """What lies between the ranks: messages that nobody has asked for yet, and receives for which there is none."""

    def __init__(self) -> None:
        self.changed, self.failed = threading.Condition(), False
        self.waiting: dict[tuple[int, int, int], deque] = defaultdict(deque)
        self.sent: dict[tuple[int, int, int], deque] = defaultdict(deque)


class Work:
    def __init__(self, post: Post) -> None:
        self.post, self.done = post, False

    def wait(self, timeout: timedelta) -> None:
        with self.post.changed:
            if not self.post.changed.wait_for(lambda: self.done or self.post.failed, timeout.total_seconds()):
                raise RuntimeError("Timed out")
            if not self.done:
                raise RuntimeError("another rank has failed")


class Mail:
    """The wire of one rank: like gloo's, a message goes to the first receive with its tag, which must have room for it."""

    def __init__(self, post: Post, rank: int, world: int) -> None:
        self.post, self.rank, self.world, self.inboxes = post, rank, world, {}

    def send(self, message: torch.Tensor, rank: int, tag: int) -> Work:
        work, place = Work(self.post), (self.rank, rank, tag)
        work.done = True
        with self.post.changed:
            if self.post.waiting[place]:
                _deliver(message, *self.post.waiting[place].popleft())
            else:
                self.post.sent[place].append(message.clone())
            self.post.changed.notify_all()
        return work

    def receive(self, into: torch.Tensor, rank: int, tag: int) -> Work:
        work, place = Work(self.post), (rank, self.rank, tag)
        with self.post.changed:
            if self.post.sent[place]:
                _deliver(self.post.sent[place].popleft(), into, work)
            else:
                self.post.waiting[place].append((into, work))
        return work


def _deliver(message: torch.Tensor, into: torch.Tensor, work: Work) -> None:
    data, room = (part.detach().view(-1).view(torch.uint8) for part in (message, into))
    assert len(data) <= len(room), f"{len(data)} bytes for a receive of {len(room)}: gloo would abort"
    room[: len(data)] = data
    work.done = True


class Sent(NamedTuple):
    """One message: in which iteration, what, how many bytes as declared, to whom."""

    k: int
    kind: str
    most: int
    to: int


class Run(NamedTuple):
    """What a rank has sent, in order, what its work gave, the exchanges that it counted, and what it read of its tensors."""

    sent: list[Sent]
    found: Any
    exchanges: int
    read: list[Read]


@contextmanager
def recorded(sent: dict[int, list[Sent]]):
    """Every message that any rank sends."""
    own = Peers._sends

    def recording(self: Peers, messages: Any, kind: str) -> Any:
        sent[self.rank] += [Sent(self.k, kind, most, rank) for rank, _, most in messages]
        return own(self, messages, kind)

    Peers._sends = recording  # type: ignore[method-assign]
    try:
        yield
    finally:
        Peers._sends = own  # type: ignore[method-assign]


def ranks(work: Any, graph: str, *, world: int = 0, seed: int | None = None) -> list[Run]:
    """work(net, observer) in every rank, one node each unless told otherwise; without a seed all round as this machine does.

    Raises what the first rank that failed raised.
    """
    world = world or topology(graph).n
    post, sent, found, failures = Post(), defaultdict(list), {}, list[BaseException]()

    def one(rank: int) -> None:
        try:
            with ExitStack() as stack:
                stack.enter_context(torch.no_grad())
                if seed is not None:
                    HERE.rounding = stack.enter_context(Nudged(100 * seed + rank))
                net = DistributedNetwork(graph, timeout=PATIENCE, wire=Mail(post, rank, world))
                done = work(net, TreeObserver(net.peers, net.topology.n))
                found[rank] = done, net.peers.number, [] if seed is None else HERE.rounding.read
        except BaseException as error:
            with post.changed:
                failures.append(error)
                post.failed = True
                post.changed.notify_all()
        finally:
            HERE.rounding = None

    threads = [threading.Thread(target=one, args=(rank,)) for rank in range(world)]
    with recorded(sent), nudged_functions() if seed is not None else ExitStack():
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    if failures:
        raise failures[0]
    return [Run(sent[rank], *found[rank]) for rank in range(world)]
