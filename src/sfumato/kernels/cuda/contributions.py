"""What entries or units add to sums, on a GPU: as ``kernels/numba/contributions.py``, in other words.

One thread does all arithmetic of an entry, or of a unit, in double precision and in the order of its
entries: what it adds does not depend on the others. That is cut to whole steps of the same grid, and
sums are of 64-bit whole numbers, the same in any order. Functions are called as those of processors are;
the number of threads is the device's own.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numba import cuda

from sfumato.kernels.cuda.arrays import Written, there, there_once, zeros
from sfumato.kernels.grid import BELOW_ONE, grid
from sfumato.kernels.jax.kept import kept_for
from sfumato.kernels.numba.contributions import Contribution, Entries, Taken, entry_counts
from sfumato.types import Array

__all__ = [
    "entry_counts",  # as it is on processors: nothing is computed
    "entry_sums",
    "means_of_units",
    "scales_of_owners",
    "squares_of_entries",
    "squares_of_units",
    "total_of_entries",
    "unit_counts",
    "unit_sums",
]

THREADS = 128  # of a block
_AT_A_TIME = 256  # entries that one thread adds up, where all go to one sum


def blocks_for(number: int) -> int:
    return max(1, -(-number // THREADS))


# -- entries there -----------------------------------------------------------------------------------


class There(NamedTuple):
    """Entries, and what is taken off their values, as kernels take them."""

    levels: Any
    values: Any
    low: float
    high: float
    mean: float
    biases: Any
    offsets: Any


def put(entries: Entries, taken: Taken) -> There:
    """Entries stay on the device for as long as the host has them."""
    levels, values = there_once(entries.levels), there_once(entries.values)
    biases = taken.biases if taken.biases.size else np.zeros(1)
    return There(levels, values, entries.low, entries.high, taken.mean, *there(biases, taken.offsets))


@cuda.jit(device=True)
def rest_of(levels, values, low, high, mean, biases, offsets, e):  # type: ignore[no-untyped-def]
    """What a mean and biases leave of an entry's value."""
    value = np.float64(values[e])
    value = low / 2 + high / 2 if math.isnan(value) else min(high, max(low, value))
    rest = value - mean
    for row in range(levels.shape[0]):
        if offsets[row] >= 0:
            rest -= biases[offsets[row] + levels[row, e]]
    return rest


@cuda.jit(device=True)
def steps_of(number, step):  # type: ignore[no-untyped-def]
    """Whole steps, towards zero; what is no finite number is nothing."""
    steps = number / step
    return np.int64(steps) if abs(steps) < math.inf else np.int64(0)


@cuda.jit(device=True)
def clipped(number, most):  # type: ignore[no-untyped-def]
    return min(most, max(-most, number))


# -- to the levels of a mode -------------------------------------------------------------------------


@cuda.jit
def _entries_to_levels(  # type: ignore[no-untyped-def]
    levels, values, low, high, mean, biases, offsets, row, clip, step, out
):
    e = cuda.grid(1)
    if e < values.shape[0]:
        rest = rest_of(levels, values, low, high, mean, biases, offsets, e)
        cuda.atomic.add(out, levels[row, e], steps_of(clipped(rest, clip), step))


def entry_sums(entries: Entries, taken: Taken, row: int, clip: float, size: int, threads: int) -> Array:
    """Sum of clipped residuals at each level, in steps of ``grid(clip)``."""
    given = put(entries, taken)
    out = zeros((size,), np.int64, reads=given)
    blocks = blocks_for(entries.values.shape[0])
    _entries_to_levels[blocks, THREADS](*given, row, clip, grid(clip), out.seen)
    return out.on_host((size,))


class UnitCells(NamedTuple):
    """Cells of units in a mode: unit u has those from ``starts[u]`` to ``starts[u + 1]``.

    ``number`` are a cell's entries, and ``of_entry`` is the cell of each entry.
    """

    starts: Any
    levels: Any
    number: Any
    of_entry: Any


def _cells(entries: Entries, row: int) -> UnitCells:
    """The different levels that each unit's entries are at; with ``OWN`` one cell for each unit."""
    units = np.repeat(np.arange(entries.starts.shape[0] - 1, dtype=np.int64), np.diff(entries.starts))
    levels = units if row < 0 else entries.levels[row].astype(np.int64)
    size = int(levels.max(initial=0)) + 1
    keys, of_entry, number = np.unique(units * size + levels, return_inverse=True, return_counts=True)
    starts = np.searchsorted(keys, np.arange(entries.starts.shape[0]) * size)
    made = starts.astype(np.int64), (keys % size).astype(np.int32), number.astype(np.int32)
    return UnitCells(*there(*made, of_entry.astype(np.int32)))


@cuda.jit
def _units_to_levels(  # type: ignore[no-untyped-def]
    levels, values, low, high, mean, biases, offsets, own, begins, starts, at, number, of_entry,
    counted, weights, clip, bound, ridge, centred, norm, step, total, out,
):  # fmt: skip
    unit = cuda.grid(1)
    if unit < begins.shape[0] - 1:
        begin, end = begins[unit], begins[unit + 1]
        taken = own[unit] if own.shape[0] > 1 else own[0]
        centre = 0.0
        if centred:
            for e in range(begin, end):
                rest = rest_of(levels, values, low, high, mean, biases, offsets, e)
                centre += (1.0 if counted else rest) - taken
            centre /= end - begin + ridge
        for e in range(begin, end):
            rest = rest_of(levels, values, low, high, mean, biases, offsets, e)
            total[of_entry[e]] += clipped((1.0 if counted else rest) - taken - centre, clip)
        size = 0.0
        length = 0.0
        for c in range(starts[unit], starts[unit + 1]):
            weight = weights[at[c]]
            if norm == 1:
                size += weight * number[c]
                length += weight * abs(total[c])
            else:
                size += (weight * number[c]) ** 2
                length += (weight * total[c]) ** 2
        size += ridge
        factor = 1 / size if norm == 1 else 1 / math.sqrt(size)
        length = factor * (length if norm == 1 else math.sqrt(length))
        if length > bound * BELOW_ONE:
            factor *= bound * BELOW_ONE / length
        for c in range(starts[unit], starts[unit + 1]):
            cuda.atomic.add(out, at[c], steps_of(factor * weights[at[c]] * total[c], step))


def unit_sums(
    entries: Entries, taken: Taken, row: int, weights: Array, made: Contribution, threads: int
) -> Array:
    """Weighted sum of residuals at each level, in steps of the bound's grid."""
    return _by_unit(entries, taken, row, False, weights, made)


def unit_counts(entries: Entries, row: int, size: int, ridge: float, norm: int, threads: int) -> Array:
    """Weighted number of entries at each level, in steps of ``grid(1)``."""
    made, taken = Contribution(1.0, 1.0, ridge, False, norm), Taken.only(0.0, entries.levels.shape[0])
    return _by_unit(entries, taken, row, True, np.ones(size), made)


def _by_unit(
    entries: Entries, taken: Taken, row: int, counted: bool, weights: Array, made: Contribution
) -> Array:
    given, size = put(entries, taken), weights.shape[0]
    cells = kept_for(entries.starts, ("cells", row), lambda: _cells(entries, row))
    own, weighed = there(taken.own if taken.own.size else np.zeros(1), weights)
    total = zeros((max(1, cells.levels.shape[0]),), np.float64)
    out = zeros((size,), np.int64, reads=(given, cells, own, weighed, total))
    clip, bound, ridge, centred, norm = made
    units = entries.starts.shape[0] - 1
    _units_to_levels[blocks_for(units), THREADS](
        *given, own, there_once(entries.starts), *cells, counted, weighed, clip, bound, ridge, centred,
        norm, grid(bound), total.seen, out.seen,
    )  # fmt: skip
    return out.on_host((size,))


# -- to one sum ---------------------------------------------------------------------------------------


@cuda.jit
def _entries_to_total(  # type: ignore[no-untyped-def]
    levels, values, low, high, mean, biases, offsets, most, step, squared, out
):
    total = np.int64(0)
    for e in range(cuda.grid(1), values.shape[0], cuda.gridsize(1)):
        rest = rest_of(levels, values, low, high, mean, biases, offsets, e)
        total += steps_of(min(most, rest * rest) if squared else clipped(rest, most), step)
    cuda.atomic.add(out, 0, total)


@cuda.jit
def _units_to_mean(  # type: ignore[no-untyped-def]
    levels, values, low, high, mean, biases, offsets, begins, most, step, full, out
):
    unit = cuda.grid(1)
    if unit < begins.shape[0] - 1:
        count, total = begins[unit + 1] - begins[unit], np.int64(0)
        for e in range(begins[unit], begins[unit + 1]):
            rest = rest_of(levels, values, low, high, mean, biases, offsets, e)
            total += steps_of(clipped(rest, most), step)
        if count > 0:
            middle = total * step / max(np.float64(count), full)
            cuda.atomic.add(out, 0, steps_of(clipped(middle, most), step))
            cuda.atomic.add(out, 1, steps_of(min(count / full, 1.0) * most, step))


@cuda.jit
def _units_to_squares(  # type: ignore[no-untyped-def]
    levels, values, low, high, mean, biases, offsets, begins, most, step, ridge, out
):
    unit = cuda.grid(1)
    if unit < begins.shape[0] - 1:
        count, centre, squares = begins[unit + 1] - begins[unit], 0.0, 0.0
        for e in range(begins[unit], begins[unit + 1]):
            centre += rest_of(levels, values, low, high, mean, biases, offsets, e)
        centre /= count + ridge
        for e in range(begins[unit], begins[unit + 1]):
            rest = rest_of(levels, values, low, high, mean, biases, offsets, e) - centre
            squares += min(most, rest * rest)
        if count > 0:
            part = count / (count + ridge)
            cuda.atomic.add(out, 0, steps_of(min(part * (squares / count), most), step))
            cuda.atomic.add(out, 1, steps_of(part * most, step))


@cuda.jit
def _owners_to_scales(  # type: ignore[no-untyped-def]
    levels, values, low, high, mean, biases, offsets, begins, unit, length, norm, step, out
):
    owner = cuda.grid(1)
    if owner < begins.shape[0] - 1 and begins[owner + 1] > begins[owner]:
        count, centre, squares = begins[owner + 1] - begins[owner], 0.0, 0.0
        for e in range(begins[owner], begins[owner + 1]):
            centre += rest_of(levels, values, low, high, mean, biases, offsets, e)
        centre /= count
        for e in range(begins[owner], begins[owner + 1]):
            rest = rest_of(levels, values, low, high, mean, biases, offsets, e) - centre
            squares += rest * rest
        several = 0.5 if count > 1 else 0.0
        thin = 0.5 / count
        within = squares / (max(count - 1, 1) * unit)
        apart = centre * centre / unit
        if norm == 1:
            size = several + 0.5 + thin + within + apart
        else:
            size = math.sqrt(several * several + 0.25 + thin * thin + within * within + apart * apart)
        factor = length * BELOW_ONE / size if size > length * BELOW_ONE else 1.0
        if size < math.inf:
            cuda.atomic.add(out, 0, steps_of(factor * several, step))
            cuda.atomic.add(out, 1, steps_of(factor * 0.5, step))
            cuda.atomic.add(out, 2, steps_of(factor * thin, step))
            cuda.atomic.add(out, 3, steps_of(factor * within, step))
            cuda.atomic.add(out, 4, steps_of(factor * apart, step))


def scales_of_owners(
    entries: Entries, taken: Taken, unit: float, length: float, norm: int, threads: int
) -> Array:
    """How far owners' entries lie from their mean, and the means from zero; sums over owners."""
    return _of_units(_owners_to_scales, entries, taken, 5, unit, length, norm, grid(length))


def total_of_entries(entries: Entries, taken: Taken, most: float, threads: int) -> Array:
    """Sum of residuals clipped to ``most`` either way, in steps of its grid."""
    return _to_one(entries, taken, most, False)


def squares_of_entries(entries: Entries, taken: Taken, most: float, threads: int) -> Array:
    """Sum of squared residuals, each at most ``most``, in steps of its grid."""
    return _to_one(entries, taken, most, True)


def means_of_units(entries: Entries, taken: Taken, most: float, full: float, threads: int) -> Array:
    """Sums of units' mean residuals, clipped to ``most``, and of ``most`` for each."""
    return _of_units(_units_to_mean, entries, taken, 2, most, grid(most), full)


def squares_of_units(entries: Entries, taken: Taken, most: float, ridge: float, threads: int) -> Array:
    """Sums of units' mean squares about their own means, and of ``most`` for each."""
    return _of_units(_units_to_squares, entries, taken, 2, most, grid(most), ridge)


def _to_one(entries: Entries, taken: Taken, most: float, squared: bool) -> Array:
    given = put(entries, taken)
    out = zeros((1,), np.int64, reads=given)
    blocks = blocks_for(-(-entries.values.shape[0] // _AT_A_TIME))
    _entries_to_total[blocks, THREADS](*given, most, grid(most), squared, out.seen)
    return out.on_host((1,))


def _of_units(kernel: Any, entries: Entries, taken: Taken, size: int, *how: float) -> Array:
    given, begins = put(entries, taken), there_once(entries.starts)
    out: Written = zeros((size,), np.int64, reads=(given, begins))
    kernel[blocks_for(entries.starts.shape[0] - 1), THREADS](*given, begins, *how, out.seen)
    return out.on_host((size,))
