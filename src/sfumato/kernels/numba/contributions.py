"""What entries or units add to sums, clipped so that the change has a bound.

Two kinds of sums, for the two kinds of units:

- *by entry*: each entry adds its residual, clipped, to one level;
- *by unit*: a unit (a user, say) takes its own mean off its residuals, and adds one vector over the
  levels of a mode, shortened to one bound whatever the number of its entries.

Everything that is added is first cut to whole steps of a grid (``kernels/grid.py``). With rounded sums
the bound would hold up to rounding only. Arithmetic is in the order in which it is written, so that what
an entry or a unit adds does not depend on where it stands among the others.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from sfumato.kernels.grid import BELOW_ONE, grid
from sfumato.kernels.numba.compiler import ordered_inlined, ordered_kernel
from sfumato.kernels.numba.ordering import level_counts
from sfumato.kernels.numba.threads import balanced_cuts, longest, run, scratch
from sfumato.types import Array

OWN = -1  # the row of levels that is not stored: a unit's own


class Entries(NamedTuple):
    """Entries as kernels read them, with the public bounds that values are clipped to.

    Where units are levels of a mode, unit u has the entries ``starts[u]`` to ``starts[u + 1]``, and that
    mode has no row of ``levels``; else ``starts`` is empty. NaN counts as the middle of the bounds.
    """

    levels: Array
    values: Array
    starts: Array
    low: float
    high: float

    @property
    def by_unit(self) -> bool:
        return self.starts.size > 0

    def cuts(self, threads: int) -> list[int]:
        """Where threads begin: at an entry, or at a unit."""
        if self.by_unit:
            return balanced_cuts(self.starts, 0, self.starts.shape[0] - 1, threads)
        number = self.values.shape[0]
        return [number * thread // threads for thread in range(threads + 1)]


class Taken(NamedTuple):
    """What is taken off values before they are clipped: a mean, and biases.

    Those of a row of levels begin at ``offsets``, which is negative where a row has none; ``own`` has
    one for each unit, or is empty.
    """

    mean: float
    biases: Array
    offsets: Array
    own: Array

    @classmethod
    def only(cls, mean: float, rows: int) -> Taken:
        """A mean, and no biases."""
        return cls(mean, np.zeros(0), np.full(rows, -1), np.zeros(0))


class Contribution(NamedTuple):
    """How a unit's contribution to the levels of a mode is made.

    A unit with k_j entries at level j has the weight (ridge + sum_j (weight_j k_j)^p)^(-1/p), so that
    units with many entries and those with few have contributions of about the same length, in the
    norm p that is clipped: 1 for pure privacy, else 2.
    """

    clip: float  # of one residual
    bound: float  # of the whole contribution
    ridge: float
    centred: bool  # the unit's own mean, sum / (entries + ridge), is taken off first
    norm: int


@ordered_inlined
def _clipped(values: Array, e: int, low: float, high: float) -> Any:
    value = np.float64(values[e])
    return low / 2 + high / 2 if np.isnan(value) else min(high, max(low, value))


@ordered_inlined
def rest_of(entries: Any, taken: Any, e: int) -> Any:
    """What a mean and biases leave of an entry's value."""
    levels, values, _, low, high = entries
    mean, biases, offsets, _ = taken
    rest = _clipped(values, e, low, high) - mean
    for row in range(levels.shape[0]):
        if offsets[row] >= 0:
            rest -= biases[offsets[row] + levels[row, e]]
    return rest


@ordered_inlined
def steps_of(number: float, step: float) -> Any:
    """Whole steps, towards zero; what is no finite number is nothing."""
    steps = number / step
    return np.int64(steps) if abs(steps) < np.inf else np.int64(0)


def _summed(kernel: Callable[..., None], entries: Entries, size: int, threads: int, *how: Any) -> Array:
    """What threads have added up, each to an array of its own."""
    outs = [np.zeros(size, np.int64) for _ in range(threads)]
    ends = pairwise(entries.cuts(threads))
    run([partial(kernel, entries, *how, *e, out) for e, out in zip(ends, outs, strict=True)], threads)
    total: Array = np.sum(outs, axis=0)
    return total


# -- to the levels of a mode -------------------------------------------------------------------------


@ordered_kernel
def _entries_to_levels(
    entries: Any, taken: Any, row: int, clip: float, step: float, first: int, last: int, out: Array
) -> None:
    for e in range(first, last):
        rest = rest_of(entries, taken, e)
        out[entries[0][row, e]] += steps_of(min(clip, max(-clip, rest)), step)


def entry_sums(entries: Entries, taken: Taken, row: int, clip: float, size: int, threads: int) -> Array:
    """Sum of clipped residuals at each level, in steps of ``grid(clip)``.

    An entry changes one of them, by ``clip`` at most.
    """
    return _summed(_entries_to_levels, entries, size, threads, taken, row, clip, grid(clip))


def entry_counts(entries: Entries, row: int, size: int) -> Array:
    """Number of entries at each level; an entry more or less changes one of them by one."""
    return level_counts(entries.levels[row], size)


@ordered_kernel
def _units_to_levels(
    entries: Any,
    taken: Any,
    row: int,
    counted: bool,
    weights: Array,
    made: Any,
    step: float,
    first: int,
    last: int,
    out: Array,
) -> None:
    levels, starts, own = entries[0], entries[2], taken[3]
    clip, bound, ridge, centred, norm = made
    number, total = np.zeros(out.shape[0]), np.zeros(out.shape[0])
    rest = scratch(longest(starts, first, last), np.float64)
    for unit in range(first, last):
        begin, count, mean = starts[unit], starts[unit + 1] - starts[unit], 0.0
        for k in range(count):
            rest[k] = 1.0 if counted else rest_of(entries, taken, begin + k)
            if own.shape[0] > 0:
                rest[k] -= own[unit]
        if centred:
            for k in range(count):
                mean += rest[k]
            mean /= count + ridge
        for k in range(count):
            j = unit if row < 0 else levels[row, begin + k]
            number[j] += 1
            total[j] += min(clip, max(-clip, rest[k] - mean))
        size = length = 0.0
        for k in range(count):  # each level once: its number is set back when it was counted
            j = unit if row < 0 else levels[row, begin + k]
            if number[j] > 0:
                size += (weights[j] * number[j]) ** norm
                length += (weights[j] * abs(total[j])) ** norm
                number[j] = 0
        factor = (size + ridge) ** (-1 / norm)
        length = factor * length ** (1 / norm)
        if length > bound * BELOW_ONE:
            factor *= bound * BELOW_ONE / length
        for k in range(count):
            j = unit if row < 0 else levels[row, begin + k]
            out[j] += steps_of(factor * weights[j] * total[j], step)
            total[j] = 0


def unit_sums(
    entries: Entries, taken: Taken, row: int, weights: Array, made: Contribution, threads: int
) -> Array:
    """Weighted sum of residuals at each level, in steps of the bound's grid.

    Each unit's contribution is at most ``bound``. ``row`` may be ``OWN``.
    """
    how = taken, row, False, weights, made, grid(made.bound)
    return _summed(_units_to_levels, entries, weights.shape[0], threads, *how)


def unit_counts(entries: Entries, row: int, size: int, ridge: float, norm: int, threads: int) -> Array:
    """Weighted number of entries at each level, in steps of ``grid(1)``.

    A unit changes them by a vector shorter than one.
    """
    made, taken = Contribution(1.0, 1.0, ridge, False, norm), Taken.only(0.0, entries.levels.shape[0])
    how = taken, row, True, np.ones(size), made, grid(1.0)
    return _summed(_units_to_levels, entries, size, threads, *how)


# -- to one sum ---------------------------------------------------------------------------------------


@ordered_kernel
def _entries_to_total(
    entries: Any, taken: Any, most: float, step: float, squared: bool, first: int, last: int, out: Array
) -> None:
    total = 0
    for e in range(first, last):
        rest = rest_of(entries, taken, e)
        total += steps_of(min(most, rest * rest) if squared else min(most, max(-most, rest)), step)
    out[0] = total


@ordered_kernel
def _units_to_mean(
    entries: Any, taken: Any, most: float, step: float, full: float, first: int, last: int, out: Array
) -> None:
    starts = entries[2]
    for unit in range(first, last):
        count, total = starts[unit + 1] - starts[unit], 0
        for e in range(starts[unit], starts[unit + 1]):
            # Cut before they are averaged: means of values far from zero would be rounded by what all
            # the others are.
            total += steps_of(min(most, max(-most, rest_of(entries, taken, e))), step)
        if count > 0:
            mean = total * step / max(float(count), full)
            out[0] += steps_of(min(most, max(-most, mean)), step)
            out[1] += steps_of(min(count / full, 1.0) * most, step)


@ordered_kernel
def _units_to_squares(
    entries: Any, taken: Any, most: float, step: float, ridge: float, first: int, last: int, out: Array
) -> None:
    starts = entries[2]
    rest = scratch(longest(starts, first, last), np.float64)
    for unit in range(first, last):
        begin, count, mean, squares = starts[unit], starts[unit + 1] - starts[unit], 0.0, 0.0
        for k in range(count):
            rest[k] = rest_of(entries, taken, begin + k)
            mean += rest[k]
        mean /= count + ridge
        for k in range(count):
            squares += min(most, (rest[k] - mean) ** 2)
        if count > 0:
            part = count / (count + ridge)
            out[0] += steps_of(min(part * (squares / count), most), step)
            out[1] += steps_of(part * most, step)


@ordered_kernel
def _owners_to_scales(
    entries: Any,
    taken: Any,
    unit: float,
    length: float,
    norm: int,
    step: float,
    first: int,
    last: int,
    out: Array,
) -> None:
    starts = entries[2]
    rest = scratch(longest(starts, first, last), np.float64)
    made = scratch(5, np.float64)
    for owner in range(first, last):
        begin, count, mean, squares = starts[owner], starts[owner + 1] - starts[owner], 0.0, 0.0
        if count == 0:
            continue
        for k in range(count):
            rest[k] = rest_of(entries, taken, begin + k)
            mean += rest[k]
        mean /= count
        for k in range(count):
            squares += (rest[k] - mean) ** 2
        made[0], made[1], made[2] = 0.5 if count > 1 else 0.0, 0.5, 0.5 / count
        made[3], made[4] = squares / (max(count - 1, 1) * unit), mean * mean / unit
        size = 0.0
        for k in range(5):
            size += made[k] ** norm
        size = size ** (1 / norm)
        factor = length * BELOW_ONE / size if size > length * BELOW_ONE else 1.0
        for k in range(5):
            out[k] += steps_of(factor * made[k], step) if size < np.inf else 0


def scales_of_owners(
    entries: Entries, taken: Taken, unit: float, length: float, norm: int, threads: int
) -> Array:
    """How far owners' entries lie from their mean, and the means from zero; sums over owners.

    An owner adds five numbers, none below zero: half of one if it has two entries or more, half of one,
    half of one over its entries, and in units the variance of what is left of its values and the square
    of their mean. They are shortened to ``length`` in a norm, and summed in steps of its grid.
    """
    how = taken, unit, length, norm, grid(length)
    return _summed(_owners_to_scales, entries, 5, threads, *how)


def total_of_entries(entries: Entries, taken: Taken, most: float, threads: int) -> Array:
    """Sum of residuals clipped to ``most`` either way, in steps of its grid."""
    return _summed(_entries_to_total, entries, 1, threads, taken, most, grid(most), False)


def squares_of_entries(entries: Entries, taken: Taken, most: float, threads: int) -> Array:
    """Sum of squared residuals, each at most ``most``, in steps of its grid."""
    return _summed(_entries_to_total, entries, 1, threads, taken, most, grid(most), True)


def means_of_units(entries: Entries, taken: Taken, most: float, full: float, threads: int) -> Array:
    """Sum of units' mean residuals, clipped to ``most``, and of ``most`` for each; in steps of its grid.

    A unit with fewer than ``full`` entries counts in part.
    """
    return _summed(_units_to_mean, entries, 2, threads, taken, most, grid(most), full)


def squares_of_units(entries: Entries, taken: Taken, most: float, ridge: float, threads: int) -> Array:
    """Sum of units' mean squares about their own means, and of ``most`` for each; in steps of its grid.

    A unit with few entries counts in part.
    """
    return _summed(_units_to_squares, entries, 2, threads, taken, most, grid(most), ridge)


# -- of rows -------------------------------------------------------------------------------------------


@ordered_kernel
def _rows_to_moment(
    rows: Array,
    counts: Array,
    turn: Array,
    length: float,
    step: float,
    first: int,
    last: int,
    out: Array,
) -> None:
    rank = turn.shape[0]
    x = scratch(rank, np.float64)
    for row in range(first, last):
        if counts[row] == 0:
            continue
        square = 0.0
        for j in range(rank):
            x[j] = 0.0
            for r in range(rank):
                x[j] += rows[row, r] * turn[r, j]
            square += x[j] * x[j]
        norm = np.sqrt(square)
        factor = length * BELOW_ONE / norm if norm > length * BELOW_ONE else 1.0
        k = 0
        for i in range(rank):
            for j in range(i, rank):
                product = (factor * x[i]) * (factor * x[j]) * (1.0 if i == j else np.sqrt(2.0))
                # What is no finite number would make factors of zero times infinity.
                out[k] += steps_of(product, step) if norm < np.inf else 0
                k += 1
        out[k] += steps_of(length * length, step)


def moment_of_rows(rows: Array, counts: Array, turn: Array, length: float, threads: int) -> Array:
    """Sum of products x x' of turned rows, each shortened to ``length``, and of its square for each.

    Of rows with entries, in steps of the grid of the squared length. Products are the upper triangle of
    a matrix, off the diagonal times sqrt(2).
    """
    size = turn.shape[0] * (turn.shape[0] + 1) // 2 + 1
    outs = [np.zeros(size, np.int64) for _ in range(threads)]
    number, what = rows.shape[0], (rows, counts, turn, length, grid(length**2))
    tasks = [
        partial(_rows_to_moment, *what, number * t // threads, number * (t + 1) // threads, outs[t])
        for t in range(threads)
    ]
    run(tasks, threads)
    total: Array = np.sum(outs, axis=0)
    return total
