"""Stable counting sorts of entries by their coordinates.

Entries are not fetched in their new order, but sent to their new places (``slots``): they are read one
after the other, and written to as many places as there are levels, most of which are in the cache.
Threads take pieces of the entries; the result is the same for any number of them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sfumato.kernels.numba.compiler import kernel
from sfumato.kernels.numba.threads import run

_WORTH_A_THREAD = 1 << 16  # entries
_LEVELS_COUNTED = 1 << 20
_LEVELS_PER_ENTRY = 16


# -- levels ---------------------------------------------------------------------------------------


@kernel
def _count(levels: NDArray[np.int32], counts: NDArray[np.int64]) -> None:
    for level in levels:
        counts[level] += 1


def level_counts(levels: NDArray[np.int32], n_levels: int) -> NDArray[np.int64]:
    """Number of entries at each level (``np.bincount`` would copy the levels in 64 bits)."""
    counts = np.zeros(n_levels, np.int64)
    _count(levels, counts)
    return counts


def row_starts(levels: NDArray[np.int32], n_levels: int) -> NDArray[np.int64]:
    """Where each level starts when entries are sorted by level; one more item for the end."""
    starts = np.zeros(n_levels + 1, np.int64)
    np.cumsum(level_counts(levels, n_levels), out=starts[1:])
    return starts


# -- slots ----------------------------------------------------------------------------------------


@kernel
def _place(levels: NDArray[np.int32], next_free: NDArray[np.int64], slots: NDArray[np.int32]) -> None:
    for entry in range(levels.shape[0]):
        level = levels[entry]
        slots[entry] = next_free[level]
        next_free[level] += 1


def slots_by(levels: NDArray[np.int32], n_levels: int, threads: int = 1) -> NDArray[np.int32]:
    """The place of each entry among all, sorted by level, in their given order within a level."""
    n = levels.shape[0]
    pieces = _pieces(n, min(threads, n // max(1, 4 * n_levels)))  # each has counts of all levels
    counts = np.zeros((len(pieces), n_levels), np.int64)
    _in_pieces(pieces, lambda i, piece: _count(levels[piece], counts[i]))
    # Within a level, a piece's entries follow on those of the pieces before it.
    ends = np.cumsum(counts.T).reshape(n_levels, len(pieces)).T
    next_free, slots = np.ascontiguousarray(ends - counts), np.empty(n, np.int32)
    _in_pieces(pieces, lambda i, piece: _place(levels[piece], next_free[i], slots[piece]))
    return slots


@kernel
def _place_in_order(
    order: NDArray[np.int32],
    levels: NDArray[np.int32],
    next_free: NDArray[np.int64],
    slots: NDArray[np.int32],
) -> None:
    for position in range(order.shape[0]):
        entry = order[position]
        level = levels[entry]
        slots[entry] = next_free[level]  # which may lie where the level was
        next_free[level] += 1


def slots_in_order(
    order: NDArray[np.int32],
    levels: NDArray[np.int32],
    starts: NDArray[np.int64],
    out: NDArray[np.int32] | None = None,
) -> NDArray[np.int32]:
    """The same with entries of a level in another order; ``out`` may be the levels themselves."""
    slots = np.empty_like(order) if out is None else out
    _place_in_order(order, levels, starts[:-1].copy(), slots)
    return slots


@kernel
def _scatter(source: NDArray[Any], slots: NDArray[np.int32], out: NDArray[Any]) -> None:
    for entry in range(slots.shape[0]):
        out[slots[entry]] = source[entry]


def scatter(
    source: NDArray[Any],
    slots: NDArray[np.int32],
    out: NDArray[Any] | None = None,
    *,
    threads: int = 1,
) -> NDArray[Any]:
    """The numbers of all entries, sent to their slots."""
    result = np.empty(slots.shape[0], source.dtype) if out is None else out
    pieces = _pieces(slots.shape[0], threads)
    _in_pieces(pieces, lambda _, piece: _scatter(source[piece], slots[piece], result))
    return result


# -- all modes ------------------------------------------------------------------------------------


@kernel
def _is_sorted(coordinates: NDArray[np.int32]) -> bool:
    for entry in range(1, coordinates.shape[1]):
        for mode in range(coordinates.shape[0]):
            before, here = coordinates[mode, entry - 1], coordinates[mode, entry]
            if before > here:
                return False
            if before < here:
                break
    return True


def sort_entries(
    coordinates: NDArray[np.int32],
    values: NDArray[Any] | None,
    shape: tuple[int, ...],
    threads: int = 1,
) -> None:
    """Sort entries in place by the first mode, then the second, and so on; equal ones stay in order."""
    if _is_sorted(coordinates):
        return
    arrays = [*coordinates, *([] if values is None else [values])]
    if max(shape) > _LEVELS_COUNTED + _LEVELS_PER_ENTRY * coordinates.shape[1]:
        order = np.lexsort(coordinates[::-1])  # to count levels would cost more
        for array in arrays:
            array[:] = array[order]
        return
    pieces = _pieces(coordinates.shape[1], threads)
    for mode in reversed(range(len(shape))):
        slots = slots_by(coordinates[mode], shape[mode], threads)
        for array in arrays:
            moved = scatter(array, slots, threads=threads)
            _in_pieces(pieces, partial(_copy, moved, array))


def _copy(source: NDArray[Any], out: NDArray[Any], _: int, piece: slice) -> None:
    out[piece] = source[piece]


# -- threads --------------------------------------------------------------------------------------


def _pieces(n: int, threads: int) -> list[slice]:
    """Entries cut for threads, as many as it takes so long that they are worth it."""
    parts = max(1, min(threads, n // _WORTH_A_THREAD))
    return [slice(*ends) for ends in pairwise(np.linspace(0, n, parts + 1).astype(int).tolist())]


def _in_pieces(pieces: list[slice], task: Callable[[int, slice], None]) -> None:
    if len(pieces) == 1:
        task(0, pieces[0])
    else:
        run([partial(task, i, piece) for i, piece in enumerate(pieces)], len(pieces))
