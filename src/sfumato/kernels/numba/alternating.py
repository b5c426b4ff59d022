"""Clipped statistics of one block of a model, for alternating private fits.

A *block* is the rows of one mode, each with its bias, or the core, which is one row by itself. At an
entry with design d, the block's row has the *features* x = (W'd, k): the design in coordinates in which
it has about unit variance in every direction, and the public weight k of the bias. An entry adds its
gradient r x, where r is the residual, the value less its prediction. The length of W'd is clipped, and
r, so that what an entry adds has a bounded length. Two kinds of sums over the entries of each level:

- *by entry*: each entry adds what it has to one level;
- *by unit*: a unit adds up what its entries have, weighted by level, and the whole vector over all
  levels is shortened to one bound.

What is added is first cut to whole steps of a grid (``kernels/grid.py``), so that sums are exact
whatever their order, and threads can share the work.
"""

from __future__ import annotations

from functools import partial
from itertools import pairwise
from math import sqrt
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from sfumato.kernels.grid import BELOW_ONE, grid
from sfumato.kernels.numba.compiler import inlined, kernel
from sfumato.kernels.numba.entrywise import bias_sum, design, dot, evaluate, row_width, workspace
from sfumato.kernels.numba.simd import (
    add,
    add_whole,
    aligned_zeros,
    element,
    line_length,
    load,
    multiply,
    padded_width,
    prefetch,
    spread,
    spread_from,
    store,
    total,
)
from sfumato.kernels.numba.threads import balanced_cuts, longest, run, scratch
from sfumato.records import record
from sfumato.types import Array

if TYPE_CHECKING:
    from sfumato.models.multilinear import Multilinear
    from sfumato.sites.memory import ByMode

_SIDE = 4  # designs that are turned into features at a time
_AHEAD = 12  # entries between asking for rows and using them
CORE = -1  # the block that is no mode


@record
class Features(NamedTuple):
    """How a block's designs become features, and what is clipped to what.

    ``metric`` is W, one padded row for each coordinate of the design, or one row alone that holds the
    diagonal of W. It has room for one more column than W: that of the bias.
    """

    metric: Array
    length: float  # that W'd is shortened to
    target: float  # that residuals are clipped to
    bias: float  # its weight k, zero where there is none

    @property
    def bound(self) -> float:
        """Length of what an entry adds."""
        return self.target * sqrt(self.length**2 + self.bias**2)


@record
class Weighting(NamedTuple):
    """How much a unit's entries count by level, and what its whole contribution is shortened to.

    A unit with k_j entries at level j has the weight (ridge + sum_j (weight_j k_j)^2)^(-1/2).
    """

    levels: Array
    ridge: float
    bound: float


def padded_metric(matrix: Array) -> Array:
    """W as kernels read it, with room for the bias."""
    width = padded_width(matrix.shape[1] + 1, np.float64)
    metric = aligned_zeros((matrix.shape[0], width), np.float64)
    metric[:, : matrix.shape[1]] = matrix
    return metric


# -- one entry ----------------------------------------------------------------------------------


# Functions without branches: one with branches that is given arrays counts references to them at every
# call, which takes longer than all the rest.


@inlined
def _turn(designs: Array, metric: Array, rank: int, depth: int, x: Array) -> None:
    """``W'd`` of ``_SIDE`` designs, whose rows have ``depth``.

    Side by side, since a sum over r has to wait for each of its terms.
    """
    width = metric.shape[1]
    for b in range(0, width, line_length(x)):
        x0 = x1 = x2 = x3 = spread(x, x.dtype.type(0))
        for r in range(rank):
            line = load(metric, r * width + b)
            x0 = add(x0, multiply(spread_from(designs, r), line))
            x1 = add(x1, multiply(spread_from(designs, depth + r), line))
            x2 = add(x2, multiply(spread_from(designs, 2 * depth + r), line))
            x3 = add(x3, multiply(spread_from(designs, 3 * depth + r), line))
        store(x, b, x0)
        store(x, width + b, x1)
        store(x, 2 * width + b, x2)
        store(x, 3 * width + b, x3)


@inlined
def _scale(designs: Array, metric: Array, rank: int, depth: int, x: Array) -> None:
    """The same where W is a diagonal."""
    width = metric.shape[1]
    for e in range(_SIDE):
        for r in range(rank):
            x[e * width + r] = metric[0, r] * designs[e * depth + r]


@inlined
def _squares(x: Array, at: int, width: int) -> Any:
    """Squared length of a padded row."""
    squares = multiply(load(x, at), load(x, at))
    for b in range(line_length(x), width, line_length(x)):
        squares = add(squares, multiply(load(x, at + b), load(x, at + b)))
    return total(squares)


@inlined
def _clear(x: Array, at: int, width: int) -> None:
    for b in range(0, width, line_length(x)):
        store(x, at + b, spread(x, x.dtype.type(0)))


@inlined
def _add_cut(x: Array, x_at: int, scale: float, step: float, width: int, out: Array, at: int) -> None:
    """``out[at:] += scale x`` in whole steps, cut towards zero."""
    times = spread(x, scale / step)
    for b in range(0, width, line_length(x)):
        add_whole(out, at + b, multiply(times, load(x, x_at + b)))


@inlined
def _add_scaled(x: Array, x_at: int, scale: float, width: int, out: Array, at: int) -> None:
    times = spread(x, scale)
    for b in range(0, width, line_length(x)):
        store(out, at + b, add(load(out, at + b), multiply(times, load(x, x_at + b))))


@inlined
def _depth(p: Any, rank: int) -> Any:
    """Room for a design: a padded row's, or more for a core's."""
    return max(row_width(p), rank)


# -- by entry -----------------------------------------------------------------------------------


@kernel
def _by_entry(
    p: Any,
    mean: float,
    lead: int,
    block: int,
    rank: int,
    others: Array,
    values: Array,
    starts: Array,
    first: int,
    last: int,
    metric: Array,
    length: float,
    most: float,
    bias: float,
    step: float,
    out: Array,
) -> None:
    """Entries come sorted by the mode ``lead``: the block's own, or for the core any."""
    width, order, wide, depth = out.shape[1], len(p.offsets), metric.shape[1], _depth(p, rank)
    work, index, entries, row = workspace(p), scratch(order, np.int64), values.shape[0], row_width(p)
    behind = order * p.rows.shape[1]  # in the workspace, behind the modes' designs
    designs, targets = scratch(_SIDE * depth, p.rows.dtype), scratch(_SIDE, p.rows.dtype)
    x = scratch(_SIDE * wide, p.rows.dtype)
    for level in range(first, last):
        index[lead] = p.offsets[lead] + level
        here = 0 if block < 0 else level
        for begin in range(starts[level], starts[level + 1], _SIDE):
            count = min(_SIDE, starts[level + 1] - begin)
            for e in range(count):
                ahead = min(begin + e + _AHEAD, entries - 1)
                for j in range(order - 1):
                    m = j if j < lead else j + 1
                    index[m] = p.offsets[m] + element(others, j * entries + begin + e)
                    prefetch(p.rows, (p.offsets[m] + element(others, j * entries + ahead)) * row)
                if block < 0:
                    value = evaluate(p, index, work)
                    for q in range(rank):
                        designs[e * depth + q] = work[behind + q]
                else:
                    design(p, index, block, work, designs, e * depth)
                    value = dot(designs, e * depth, p.rows, index[block] * row, row)
                target = element(values, begin + e) - mean - bias_sum(p, index)
                target -= value
                # What is no number lets nothing through.
                targets[e] = 0.0 if np.isnan(target) else min(most, max(-most, target))
            if metric.shape[0] > 1:
                _turn(designs, metric, rank, depth, x)
            else:
                _scale(designs, metric, rank, depth, x)
            for e in range(count):
                norm = np.sqrt(_squares(x, e * wide, wide))
                factor = length * BELOW_ONE / norm if norm > length * BELOW_ONE else 1.0
                if norm < np.inf:  # a design beyond all numbers lets nothing through
                    _add_cut(x, e * wide, factor * targets[e], step, width, out, here * width)
                out[here, rank] += np.int64(bias * targets[e] / step)


def entry_sums(
    model: Multilinear, block: int, features: Features, entries: ByMode, threads: int
) -> Array:
    """Sums by entry for each level, in steps of the bound's grid.

    ``entries`` are sorted by the block's mode; for the core, by the first.
    """
    lead = max(block, 0)
    cuts = balanced_cuts(entries.starts, 0, model.shape[lead], threads)
    # Threads have rows of their own; the one row of a core is summed up afterwards.
    outs = [_zeros(model, block, features) for _ in range(threads if block == CORE else 1)]
    tasks = []
    for number, (first, last) in enumerate(pairwise(cuts)):
        data = entries.others, entries.values, entries.starts, first, last
        how = *features, grid(features.bound)
        where = lead, block, _design_size(model, block)
        out = outs[number if block == CORE else 0]
        tasks.append(partial(_by_entry, model.arrays, model.mean, *where, *data, *how, out))
    run(tasks, threads)
    return _without_padding(outs, model, block, features)


# -- by unit ------------------------------------------------------------------------------------


@kernel
def _by_unit(
    p: Any,
    mean: float,
    lead: int,
    block: int,
    rank: int,
    others: Array,
    values: Array,
    starts: Array,
    first: int,
    last: int,
    metric: Array,
    length: float,
    most: float,
    bias: float,
    weights: Array,
    ridge: float,
    bound: float,
    step: float,
    out: Array,
) -> None:
    """Entries come sorted by the units' mode ``lead``."""
    (levels, width), order, wide, depth = out.shape, len(p.offsets), metric.shape[1], _depth(p, rank)
    work, index, entries, row = workspace(p), scratch(order, np.int64), values.shape[0], row_width(p)
    behind = order * p.rows.shape[1]  # in the workspace, behind the modes' designs
    designs, targets = scratch(_SIDE * depth, p.rows.dtype), scratch(_SIDE, p.rows.dtype)
    x = scratch(_SIDE * wide, p.rows.dtype)
    # A unit's levels have slots, one after the other: its contribution then stays in the cache.
    most_slots = min(levels, longest(starts, first, last))
    sums, number = scratch(most_slots * width, p.rows.dtype), scratch(most_slots, np.int64)
    level_of, slot_of = scratch(most_slots, np.int64), np.full(levels, -1, np.int32)
    slots, offset = scratch(_SIDE, np.int64), 0 if block < 0 else p.offsets[block]
    for unit in range(first, last):
        index[lead] = p.offsets[lead] + unit
        used = 0
        for begin in range(starts[unit], starts[unit + 1], _SIDE):
            count = min(_SIDE, starts[unit + 1] - begin)
            for e in range(count):
                ahead = min(begin + e + _AHEAD, entries - 1)
                for j in range(order - 1):
                    m = j if j < lead else j + 1
                    index[m] = p.offsets[m] + element(others, j * entries + begin + e)
                    prefetch(p.rows, (p.offsets[m] + element(others, j * entries + ahead)) * row)
                if block < 0:
                    value = evaluate(p, index, work)
                    for q in range(rank):
                        designs[e * depth + q] = work[behind + q]
                else:
                    design(p, index, block, work, designs, e * depth)
                    value = dot(designs, e * depth, p.rows, index[block] * row, row)
                target = element(values, begin + e) - mean - bias_sum(p, index)
                target -= value
                # What is no number lets nothing through.
                targets[e] = 0.0 if np.isnan(target) else min(most, max(-most, target))
                level = 0 if block < 0 else index[block] - offset
                if slot_of[level] < 0:
                    slot_of[level], level_of[used], number[used] = used, level, 0
                    _clear(sums, used * width, width)
                    used += 1
                slots[e] = slot_of[level]
            if metric.shape[0] > 1:
                _turn(designs, metric, rank, depth, x)
            else:
                _scale(designs, metric, rank, depth, x)
            for e in range(count):
                slot = slots[e]
                number[slot] += 1
                scale = weights[level_of[slot]] * targets[e]
                norm = np.sqrt(_squares(x, e * wide, wide))
                factor = length * BELOW_ONE / norm if norm > length * BELOW_ONE else 1.0
                if norm < np.inf:  # a design beyond all numbers lets nothing through
                    _add_scaled(x, e * wide, factor * scale, width, sums, slot * width)
                sums[slot * width + rank] += bias * scale
        size = squares = 0.0
        for slot in range(used):
            size += (weights[level_of[slot]] * number[slot]) ** 2
            squares += _squares(sums, slot * width, width)
        factor = 1 / np.sqrt(size + ridge)
        if factor * np.sqrt(squares) > bound * BELOW_ONE:
            factor = bound * BELOW_ONE / np.sqrt(squares)
        for slot in range(used):
            level = level_of[slot]
            if squares < np.inf:
                _add_cut(sums, slot * width, factor, step, width, out, level * width)
            slot_of[level] = -1


def unit_sums(
    model: Multilinear,
    block: int,
    features: Features,
    weighting: Weighting,
    entries: ByMode,
    unit_mode: int,
    threads: int,
) -> Array:
    """Sums by unit for each level, in steps of the bound's grid.

    ``entries`` are sorted by the units' mode.
    """
    cuts = balanced_cuts(entries.starts, 0, model.shape[unit_mode], threads)
    outs, tasks = [], []
    for first, last in pairwise(cuts):
        outs.append(_zeros(model, block, features))
        data = entries.others, entries.values, entries.starts, first, last
        how = *features, *weighting, grid(weighting.bound)
        where = unit_mode, block, _design_size(model, block)
        tasks.append(partial(_by_unit, model.arrays, model.mean, *where, *data, *how, outs[-1]))
    run(tasks, threads)
    return _without_padding(outs, model, block, features)


# -- what both share ----------------------------------------------------------------------------


def _design_size(model: Multilinear, block: int) -> int:
    return model.free_core.size if block == CORE else model.ranks[block]


def _zeros(model: Multilinear, block: int, features: Features) -> Array:
    levels = 1 if block == CORE else model.shape[block]
    return aligned_zeros((levels, features.metric.shape[1]), np.int64)


def _without_padding(outs: list[Array], model: Multilinear, block: int, features: Features) -> Array:
    """The threads' sums together, as far as they are asked for; those of a bias come last."""
    sums: Array = np.sum(outs, axis=0)
    size = _design_size(model, block)
    return sums[:, : size + 1 if features.bias else size]
