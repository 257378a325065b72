"""Work on many blocks of samples, on as many threads as torch may use.

torch divides one operation at a time among its threads, and they wait for each other after each: on blocks that fit the cache
that takes longer than the work. Here every thread has blocks of its own, and computes alone.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

import torch

AHEAD = 2
"""Results for each thread that may wait until they are asked for."""
KERNEL, WASTE = 12, 1.35
"""Products of matrices are fastest where this divides the number of columns (36 take two thirds of the time of 31), and by what
part columns of zeros may widen a block for it."""
Item = TypeVar("Item")
Result = TypeVar("Result")


def spread(work: Callable[[Item], Result], items: Sequence[Item]) -> Iterator[Result]:
    """work(item) of each, in the order of the items: sums of them do not depend on how many threads there are.

    Where gradients flow, one thread makes them all.
    """
    threads = torch.get_num_threads()
    if min(threads, len(items)) < 2 or torch.is_grad_enabled():
        yield from map(work, items)
        return
    waiting = deque[Future[Result]]()
    try:
        # set_num_threads is about the thread that calls it, and about those that begin later: hence the last line.
        with ThreadPoolExecutor(min(threads, len(items)), initializer=torch.set_num_threads, initargs=(1,)) as pool:
            for item in items:
                waiting.append(pool.submit(_alone, work, item))
                if len(waiting) > AHEAD * threads:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
    finally:
        torch.set_num_threads(threads)


@torch.no_grad()
def _alone(work: Callable[[Item], Result], item: Item) -> Result:
    return work(item)


def padded(columns: int) -> int:
    """Columns of a block, with those of zeros."""
    wide = -(-columns // KERNEL) * KERNEL
    return wide if wide <= WASTE * columns else columns
