"""Stable counting sorts of entries by their coordinates."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from sfumato.kernels.numba.compiler import kernel


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


@kernel
def _scatter(
    levels: NDArray[np.int32],
    previous: NDArray[np.int32],
    next_free: NDArray[np.int64],
    order: NDArray[np.int32],
) -> None:
    for position in range(previous.shape[0]):
        entry = previous[position]
        slot = next_free[levels[entry]]
        next_free[levels[entry]] = slot + 1
        order[slot] = entry


def refine_order(
    order: NDArray[np.int32], levels: NDArray[np.int32], n_levels: int
) -> NDArray[np.int32]:
    """Sort ``order`` by level, keeping the given order among entries of one level."""
    refined = np.empty_like(order)
    _scatter(levels, order, row_starts(levels, n_levels)[:-1].copy(), refined)
    return refined


def order_by(levels: NDArray[np.int32], n_levels: int) -> NDArray[np.int32]:
    """Entries sorted by level, in their given order within a level."""
    return refine_order(np.arange(levels.shape[0], dtype=np.int32), levels, n_levels)


_LEVELS_COUNTED = 1 << 20
_LEVELS_PER_ENTRY = 16


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


def lexicographic_order(
    coordinates: NDArray[np.int32], shape: tuple[int, ...]
) -> NDArray[np.int32] | None:
    """Entries sorted by the first mode, then the second, and so on; None if they are already."""
    if _is_sorted(coordinates):
        return None
    if max(shape) > _LEVELS_COUNTED + _LEVELS_PER_ENTRY * coordinates.shape[1]:
        return np.lexsort(coordinates[::-1]).astype(np.int32)  # to count levels would cost more
    order = np.arange(coordinates.shape[1], dtype=np.int32)
    for mode in reversed(range(len(shape))):
        order = refine_order(order, coordinates[mode], shape[mode])
    return order


@kernel
def _gather(source: NDArray[Any], order: NDArray[np.int32], out: NDArray[Any]) -> None:
    for position in range(order.shape[0]):
        out[position] = source[order[position]]


def gather(
    source: NDArray[Any], order: NDArray[np.int32], out: NDArray[Any] | None = None
) -> NDArray[Any]:
    """``source[order]`` without NumPy's copies of the order in 64 bits and of the result."""
    result = np.empty(order.shape[0], source.dtype) if out is None else out
    _gather(source, order, result)
    return result
