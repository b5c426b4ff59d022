"""Who takes part in private steps, and which rows they read: independent of the parameters.

So the choice of the next steps can be made, and their noise drawn, while the steps before are carried
out (``private_steps.py``).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from sfumato.kernels.numba.chacha import WORDS
from sfumato.kernels.numba.compiler import kernel
from sfumato.kernels.numba.exponentials import fill_exponentials
from sfumato.kernels.numba.private_moves import standardised
from sfumato.kernels.numba.simd import element, prefetch
from sfumato.types import Array

_AHEAD = 64  # entries: far enough for memory to answer, near enough to stay in the cache


class Touched(NamedTuple):
    """Rows that steps read, by step and mode, and the steps since they were last brought up to date.

    ``row`` and ``behind`` of step s and mode m lie from ``ends[s order + m]`` to the next of ``ends``.
    """

    ends: Array
    row: Array
    behind: Array


class Batches(NamedTuple):
    """Entries of some steps: where each step's end, the rows of each entry, and its target."""

    ends: Array
    places: Array
    targets: Array


@kernel
def _some(drawn: Array, used: int, mean: float, unit: int, units: int, found: Array, size: int) -> Any:
    """Go on from a unit to those that exponential numbers at hand lead to, or beyond the last one."""
    while used < WORDS and unit < units:
        unit += 1 + int(element(drawn, used) * mean)
        used += 1
        found[size] = unit
        size += unit < units
    return used, unit, size


@kernel
def chosen(units: int, rate: float, steps: int, sampler: Any) -> Any:
    """Units that take part in each of some steps, independently with probability ``rate``.

    Units that are passed over before the next that takes part are geometric: an exponential number times
    a mean, cut to a whole one; zero where all take part.
    """
    mean = -1 / np.log1p(-rate)
    ends = np.zeros(steps + 1, np.int64)
    found = np.empty(int(1.1 * rate * steps * units) + 1000, np.int32)
    drawn, used, size = np.empty(WORDS), WORDS, 0
    for s in range(steps):
        unit = -1
        while unit < units:
            if used == WORDS:
                fill_exponentials(sampler, drawn)
                used = 0
            if size + WORDS > found.shape[0]:
                found = np.concatenate((found, np.empty_like(found)))
            used, unit, size = _some(drawn, used, mean, unit, units, found, size)
        ends[s + 1] = size
    return ends, found[:size]


@kernel
def batches_of(p: Any, coordinates: Array, values: Array, scale: Any, batch: Array) -> Any:
    """Rows and targets of the entries that were chosen."""
    order, entries, size = len(p.offsets), values.shape[0], batch.shape[0]
    low, high, middle, unit = scale
    places, targets = np.empty((size, order), np.int32), np.empty(size, p.rows.dtype)
    for k in range(size):
        if k + _AHEAD < size:
            prefetch(values, batch[k + _AHEAD])
            for m in range(order):
                prefetch(coordinates, m * entries + batch[k + _AHEAD])
        for m in range(order):
            places[k, m] = p.offsets[m] + element(coordinates, m * entries + batch[k])
        targets[k] = standardised(element(values, batch[k]), low, high, middle, unit)
    return places, targets


@kernel
def touched_by_entries(order: int, ends: Array, places: Array, now: int, last: Array) -> Any:
    """Rows that batches read from step ``now`` on; ``last`` is the step at which each was last read."""
    steps, count = ends.shape[0] - 1, 0
    found, behind = np.empty(places.size + 1, np.int32), np.empty(places.size + 1, np.int32)
    cuts = np.zeros(steps * order + 1, np.int64)
    for s in range(steps):
        for m in range(order):
            for k in range(ends[s], ends[s + 1]):
                # No branch: whether a row was read before cannot be foreseen.
                row = places[k, m]
                before = last[row]
                found[count], behind[count] = row, now + s - max(before, 0)
                last[row] = now + s
                count += before != now + s
            cuts[s * order + m + 1] = count
    return cuts, found[:count], behind[:count]


@kernel
def touched_by_units(
    p: Any,
    others: Array,
    starts: Array,
    mode: int,
    local: bool,
    ends: Array,
    levels: Array,
    now: int,
    last: Array,
) -> Any:
    """The same of units, which are levels of ``mode``; ``local``: their own rows are not read."""
    order, steps, count = len(p.offsets), ends.shape[0] - 1, 0
    entries = 0
    for k in range(levels.shape[0]):
        entries += starts[levels[k] + 1] - starts[levels[k]]
    most = min(order * entries, steps * p.rows.shape[0])
    found, behind = np.empty(most, np.int32), np.empty(most, np.int32)
    cuts = np.zeros(steps * order + 1, np.int64)
    for s in range(steps):
        other = 0
        for m in range(order):
            if m == mode and local:
                cuts[s * order + m + 1] = count
                continue
            for k in range(ends[s], ends[s + 1]):
                level = levels[k]
                for entry in range(starts[level], starts[level + 1]):
                    row = p.offsets[m] + (level if m == mode else others[other, entry])
                    if last[row] != now + s:
                        found[count], behind[count] = row, now + s - max(last[row], 0)
                        last[row] = now + s
                        count += 1
            cuts[s * order + m + 1] = count
            other += m != mode
    return cuts, found[:count], behind[:count]
