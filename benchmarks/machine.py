"""What the machine itself allows, measured in the same run as the library."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numba
import numpy as np

from benchmarks.timing import Action, timed
from sfumato.kernels.numba.simd import add, aligned_zeros, lanes, load, multiply, prefetch, store
from sfumato.types import Array

_AHEAD = 8
_CHAIN_STEPS = 50_000_000


@numba.njit(nogil=True)
def _chains(steps: int, lines: Array) -> None:
    """Eight independent chains of multiply-adds on whole lines: all that a core's vector units do.

    Cores that share their units with a neighbour show it here; scalar chains would not.
    """
    factor, one = load(lines, 0), load(lines, 16)
    a, b, c, d, e, f, g, h = one, one, one, one, one, one, one, one
    for _ in range(steps):
        a, b = add(multiply(a, factor), one), add(multiply(b, factor), one)
        c, d = add(multiply(c, factor), one), add(multiply(d, factor), one)
        e, f = add(multiply(e, factor), one), add(multiply(f, factor), one)
        g, h = add(multiply(g, factor), one), add(multiply(h, factor), one)
    store(lines, 32, add(add(add(a, b), add(c, d)), add(add(e, f), add(g, h))))


@numba.njit(nogil=True)
def _traffic(rows: Array, coordinates: Array, begin: int, end: int) -> None:
    """Read and write one row of 64 bytes per mode at each entry."""
    order, width, last = coordinates.shape[0], rows.shape[1], coordinates.shape[1] - 1
    for entry in range(begin, end):
        ahead = min(entry + _AHEAD, last)
        for m in range(order):
            prefetch(rows, np.int64(coordinates[m, ahead]) * width)
        for m in range(order):
            at = np.int64(coordinates[m, entry]) * width
            line = load(rows, at)
            store(rows, at, add(line, line))


def _on_threads(work: Callable[[int], None], threads: int, pool: ThreadPoolExecutor) -> None:
    for future in [pool.submit(work, thread) for thread in range(threads)]:
        future.result()


def compute_actions(pool: ThreadPoolExecutor) -> dict[str, Action]:
    """The same chains on one thread, and once on each of two: twice the work."""
    lines = [aligned_zeros((48,), np.float32) for _ in range(2)]
    for each in lines:
        each[:16], each[16:32] = 0.5, 1.0
        _chains(10, each)

    def work(thread: int) -> None:
        _chains(_CHAIN_STEPS, lines[thread])

    return {f"chains {n}": partial(timed, partial(_on_threads, work, n, pool)) for n in (1, 2)}


def compute_scaling(seconds: dict[str, list[float]]) -> float:
    """Speed of two threads over that of one in pure computation: the machine's own limit."""
    return 2 * min(seconds["chains 1"]) / min(seconds["chains 2"])


def traffic_action(shape: Sequence[int], entries: int, pool: ThreadPoolExecutor) -> Action:
    """Two threads that read and write, for each entry, a random row of every mode.

    Each thread keeps to its own half of every mode, so that no cache line is shared: as in SGD.
    """
    rows = aligned_zeros((sum(shape), lanes(np.float32)), np.float32)
    generator = np.random.default_rng(0)
    half, offsets = entries // 2, np.cumsum((0, *shape[:-1]))
    coordinates = np.empty((len(shape), 2 * half), np.int32)
    for m, (size, offset) in enumerate(zip(shape, offsets, strict=True)):
        for thread, (low, high) in enumerate(((0, size // 2), (size // 2, size))):
            drawn = generator.integers(low, high, half, dtype=np.int32)
            coordinates[m, thread * half : (thread + 1) * half] = drawn + np.int32(offset)
    _traffic(rows, coordinates, 0, 1)

    def work(thread: int) -> None:
        _traffic(rows, coordinates, thread * half, (thread + 1) * half)

    return partial(timed, partial(_on_threads, work, 2, pool))
