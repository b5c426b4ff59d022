"""The threads that run kernels, and how work is cut for them.

Kernels release the GIL and are handed out to a thread pool, one disjoint piece of work each. That
keeps compilation short, works from any thread of the caller, and makes results depend on how the
work is cut, never on which thread runs first.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sfumato.kernels.numba.compiler import inlined, kernel
from sfumato.kernels.numba.simd import flush_denormals

_WORTH_THREADS = 1 << 14  # numbers
_KEPT = (1 << 25) - (1 << 17)  # bytes: 32 MiB with what comes on top of an array
_MARGIN = 32  # elements: 128 bytes or more, since processors fetch lines in pairs


@inlined
def scratch(size: int, dtype: Any) -> Any:
    """Zeros for one thread's own use inside a kernel.

    Small arrays of two threads may come to lie in one cache line, which then goes back and forth at
    every write and halves the speed of both; a margin on either side prevents that.
    """
    return np.zeros(size + 2 * _MARGIN, dtype)[_MARGIN : _MARGIN + size]


@inlined
def longest(starts: Any, first: int, last: int) -> Any:
    """Entries of the level, from ``first`` to before ``last``, that has the most."""
    most = 0
    for level in range(first, last):
        most = max(most, starts[level + 1] - starts[level])
    return most


def available_threads() -> int:
    """Number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _keep_memory() -> None:
    """Let arrays of a few megabytes come from memory that others have left.

    glibc gives each of them back to the system, and gets it anew page by page, which takes as long as
    most kernels; but it keeps blocks up to the size of the largest that it has given back, of 32 MiB at
    most. Other libraries do as they do.
    """
    np.empty(_KEPT, np.uint8)


@kernel
def _prepare_thread() -> None:
    flush_denormals()


@cache
def _pool(threads: int) -> ThreadPoolExecutor:
    _keep_memory()
    return ThreadPoolExecutor(threads, "sfumato", initializer=_prepare_thread)


if hasattr(os, "register_at_fork"):
    # A forked process has the pools but not their threads: it would wait for them for ever.
    os.register_at_fork(after_in_child=_pool.cache_clear)


def run(tasks: Iterable[Callable[[], None]], threads: int) -> None:
    """Run tasks that write to disjoint memory, and wait for all of them.

    Even a single thread is one of ours: it is set up for kernels, the caller's is not touched.
    """
    pool = _pool(threads)
    try:
        futures = [pool.submit(task) for task in tasks]
    except BaseException:
        # Interrupted while a thread was being started, the pool does not know of it, and the program
        # would wait for it for ever when it ends.
        _pool.cache_clear()
        pool.shutdown(wait=False)
        raise
    for future in futures:
        future.result()


def share(number: int, size: int, work: Callable[[int, int], None]) -> None:
    """Work on so many rows, each thread on some; on one where there is not much to do.

    ``size`` is about how many numbers are worked on.
    """
    threads = available_threads() if size >= _WORTH_THREADS else 1
    cuts = np.linspace(0, number, threads + 1).astype(int).tolist()
    run([partial(work, *ends) for ends in pairwise(cuts)], threads)


def balanced_cuts(starts: NDArray[np.int64], low: int, high: int, parts: int) -> list[int]:
    """Cut the levels ``low`` to ``high`` into parts with about the same number of entries."""
    goals = np.linspace(starts[low], starts[high], parts + 1)[1:-1]
    inner = np.searchsorted(starts[low : high + 1], goals) + low
    return [low, *np.clip(inner, low, high).tolist(), high]
