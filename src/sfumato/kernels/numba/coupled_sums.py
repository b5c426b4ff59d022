"""Sums over entries of coupled relations: of x v^-p f and of v^(1-p) f, with designs f and values v."""

from __future__ import annotations

from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from sfumato.kernels.numba.compiler import inlined, kernel
from sfumato.kernels.numba.entrywise import (
    add_kronecker,
    design,
    dot,
    entry_value,
    locate,
    row_width,
    workspace,
)
from sfumato.kernels.numba.simd import add, line_length, load, multiply, spread, store
from sfumato.kernels.numba.threads import balanced_cuts, run, scratch
from sfumato.records import record
from sfumato.types import Array

if TYPE_CHECKING:
    from sfumato.sites.memory import ByMode

_AT_ONCE = 256  # entries that are added up in the model's type before they join sums of float64


@record
class Sums(NamedTuple):
    """Numerator and denominator, of the rows of a mode or of a flat core."""

    numerator: Array
    denominator: Array

    def __add__(self, other: Sums) -> Sums:  # type: ignore[override]
        return Sums(self.numerator + other.numerator, self.denominator + other.denominator)


@inlined
def _powers(value: Any, p: float) -> Any:
    """v^-p and v^(1-p)."""
    if p == 1.0:
        return 1.0 / value, 1.0
    if p == 0.0:
        return 1.0, value
    if p == 2.0:
        return 1.0 / (value * value), 1.0 / value
    power = value**-p
    return power, power * value


@kernel
def _of_levels(
    arrays: Any,
    mode: int,
    others: Array,
    values: Array,
    starts: Array,
    low: int,
    high: int,
    p: float,
    scale: float,
    least: float,
    numerator: Array,
    denominator: Array,
) -> None:
    """Entries of the levels ``low`` to ``high`` of a mode; an empty sum is left out.

    ``own`` holds the mode's design at an entry and two sums of some entries, a padded row each.
    """
    order, width = len(arrays.offsets), row_width(arrays)
    index, work, own = scratch(order, np.int64), workspace(arrays), scratch(3 * width, arrays.rows.dtype)
    for level in range(low, high):
        index[mode] = arrays.offsets[mode] + level
        for begin in range(starts[level], starts[level + 1], _AT_ONCE):
            for b in range(width, 3 * width, line_length(own)):
                store(own, b, spread(own, 0.0))
            for e in range(begin, min(begin + _AT_ONCE, starts[level + 1])):
                row = 0
                for m in range(order):
                    if m != mode:
                        index[m] = arrays.offsets[m] + others[row, e]
                        row += 1
                design(arrays, index, mode, work, own, 0)
                found = float(dot(arrays.rows, index[mode] * width, own, 0, width))
                inverse, weight = _powers(max(found, least), p)
                above, below = spread(own, inverse * values[e]), spread(own, weight)
                for b in range(0, width, line_length(own)):
                    f = load(own, b)
                    store(own, width + b, add(load(own, width + b), multiply(above, f)))
                    store(own, 2 * width + b, add(load(own, 2 * width + b), multiply(below, f)))
            if numerator.shape[0] > 0:
                for r in range(numerator.shape[1]):
                    numerator[level, r] += scale * own[width + r]
            if denominator.shape[0] > 0:
                for r in range(denominator.shape[1]):
                    denominator[level, r] += scale * own[2 * width + r]


@kernel
def _of_entries(
    arrays: Any,
    coordinates: Array,
    values: Array,
    low: int,
    high: int,
    p: float,
    scale: float,
    least: float,
    numerator: Array,
    denominator: Array,
) -> None:
    order = len(arrays.offsets)
    index, work = scratch(order, np.int64), workspace(arrays)
    for e in range(low, high):
        locate(arrays, coordinates, e, index)
        value = max(float(entry_value(arrays, index, work)), least)
        inverse, weight = _powers(value, p)
        add_kronecker(arrays, work, inverse * scale * values[e], numerator)
        add_kronecker(arrays, work, weight * scale, denominator)


def add_entries(
    arrays: Any,
    mode: int,
    entries: ByMode,
    p: float,
    scale: float,
    least: float,
    sums: Sums,
    threads: int,
) -> None:
    """Add entries, sorted by a mode, to sums for its rows; each counts ``scale``. Empty sums are not.

    ``least`` is what a value of the model counts as at least.
    """
    data = entries.others, entries.values, entries.starts
    cuts = balanced_cuts(entries.starts, 0, entries.starts.shape[0] - 1, threads)
    run(
        [
            partial(_of_levels, arrays, mode, *data, low, high, p, scale, least, *sums)
            for low, high in pairwise(cuts)
        ],
        threads,
    )


def add_core_entries(
    arrays: Any,
    coordinates: Array,
    values: Array,
    p: float,
    scale: float,
    least: float,
    sums: Sums,
    threads: int,
) -> None:
    """The same for a flat core. Threads have sums of their own, which are added up afterwards."""
    cuts = np.linspace(0, values.shape[0], threads + 1).astype(np.int64).tolist()
    own = [Sums(*(np.zeros_like(total) for total in sums)) for _ in range(threads)]
    run(
        [
            partial(_of_entries, arrays, coordinates, values, low, high, p, scale, least, *mine)
            for (low, high), mine in zip(pairwise(cuts), own, strict=True)
        ],
        threads,
    )
    for mine in own:
        sums.numerator[:] += mine.numerator
        sums.denominator[:] += mine.denominator
