"""Clipped statistics of one block of a model, for alternating private fits: kernels and their twin.

A *block* is the rows of one mode, each with its bias, or the core, which is one row by itself. At an
entry with design d, the block's row has the *features* x = (W'd, k): the design in coordinates in which
it has about unit variance in every direction, and the public weight k of the bias. An entry adds

- as a *gradient*: r x, where r is the residual, the value less its prediction;
- as *normal equations*: x x' and y x, where y is what the rest of the model leaves to the row. The
  matrix as its upper triangle, off the diagonal times sqrt(2), so that lengths are kept.

The length of W'd is clipped, and r or y, so that what an entry adds has a bounded length. Two kinds of
sums over the entries of each level:

- *by entry*: each entry adds what it has to one level;
- *by unit*: a unit adds up what its entries have, weighted by level, and the whole vector over all
  levels is shortened to one bound.

As in ``contributions.py``, what is added is first cut towards zero to multiples of a power of two, so
that sums are exact whatever their order, and threads can share the work.
"""

from __future__ import annotations

from functools import partial
from itertools import pairwise
from math import sqrt
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sfumato.data.layout import ByMode, balanced_cuts
from sfumato.models.entrywise import bias_sum, evaluate, workspace
from sfumato.models.multilinear import Multilinear
from sfumato.parallel import inlined, kernel, run, scratch
from sfumato.simd import (
    add,
    aligned_zeros,
    element,
    line_length,
    load,
    multiply,
    padded_width,
    spread,
    spread_from,
    store,
    total,
    truncate,
)
from sfumato.solvers.contributions import grid

Array = NDArray[Any]
_BELOW_ONE = 1 - 2.0**-30  # lengths are computed with rounding: stay below the bound
CORE = -1  # the block that is no mode


class Features(NamedTuple):
    """How a block's designs become features, and what is clipped to what.

    ``metric`` is W, one padded row for each coordinate of the design, or one row alone that holds the
    diagonal of W. It has room for one more column than W: that of the bias.
    """

    metric: Array
    length: float  # that W'd is shortened to
    target: float  # that residuals, or what is left to a row, are clipped to
    bias: float  # its weight k, zero where there is none
    normal: bool  # normal equations instead of gradients

    @property
    def right_hand(self) -> float:
        """Weight of y x beside x x', so that the longest of both are equally long."""
        return sqrt(self.length**2 + self.bias**2) / self.target

    @property
    def bound(self) -> float:
        """Length of what an entry adds."""
        squared = self.length**2 + self.bias**2
        return sqrt(2) * squared if self.normal else self.target * sqrt(squared)


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


def triangle(size: int) -> int:
    """Numbers on and above the diagonal of a square matrix."""
    return size * (size + 1) // 2


# -- one entry ----------------------------------------------------------------------------------


@inlined
def _read_features(
    work: Array, at: int, rank: int, metric: Array, length: float, bias: float, x: Array
) -> None:
    """``x = (W'd, k)`` with ``W'd`` shortened to ``length``, from the design at ``work[at:]``."""
    width = x.shape[0]
    squares = spread(x, x.dtype.type(0))
    for b in range(0, width, line_length(x)):
        line = spread(x, x.dtype.type(0))
        if metric.shape[0] > 1:
            for r in range(rank):
                line = add(line, multiply(spread_from(work, at + r), load(metric, r * width + b)))
        else:
            line = multiply(load(metric, b), load(work, at + b))
        store(x, b, line)
        squares = add(squares, multiply(line, line))
    norm = np.sqrt(total(squares))
    if norm > length * _BELOW_ONE:
        factor = spread(x, length * _BELOW_ONE / norm)
        for b in range(0, width, line_length(x)):
            store(x, b, multiply(factor, load(x, b)))
    x[rank] = bias


@inlined
def _residual(
    p: Any, mean: float, lead: int, others: Array, values: Array, entry: int, index: Array, work: Array
) -> Any:
    """Value less prediction at an entry of row ``index[lead]``; fills in ``index`` and ``work``."""
    for j in range(len(p.offsets) - 1):
        m = j if j < lead else j + 1
        index[m] = p.offsets[m] + element(others, j * values.shape[0] + entry)
    return element(values, entry) - mean - bias_sum(p, index) - evaluate(p, index, work)


@inlined
def _left_to_row(p: Any, mode: int, at: int, rank: int, index: Array, work: Array) -> Any:
    """What the row itself explains of the entry: its residual without it, less its residual."""
    row, explained = index[mode], element(p.biases, index[mode])
    for r in range(rank):
        explained += work[at + r] * p.rows[row, r]
    return explained


@inlined
def _fill(x: Array, size: int, target: float, normal: bool, right_hand: float, out: Array) -> None:
    """What an entry adds, from its ``size`` features."""
    if not normal:
        times = spread(x, target)
        for b in range(0, x.shape[0], line_length(x)):
            store(out, b, multiply(times, load(x, b)))
    else:
        at = 0
        for r in range(size):
            out[at] = x[r] * x[r]
            for c in range(r + 1, size):
                out[at + c - r] = np.sqrt(2.0) * x[r] * x[c]
            at += size - r
        for r in range(size):
            out[at + r] = right_hand * target * x[r]


@inlined
def _add_cut(x: Array, x_at: int, scale: float, step: float, width: int, out: Array, at: int) -> None:
    """``out[at:] += scale x``, cut towards zero to multiples of ``step``."""
    times, back = spread(x, scale / step), spread(x, step)
    for b in range(0, width, line_length(x)):
        cut = multiply(back, truncate(multiply(times, load(x, x_at + b))))
        store(out, at + b, add(load(out, at + b), cut))


@inlined
def _add_scaled(x: Array, scale: float, width: int, out: Array, at: int) -> None:
    times = spread(x, scale)
    for b in range(0, width, line_length(x)):
        store(out, at + b, add(load(out, at + b), multiply(times, load(x, b))))


# -- by entry -----------------------------------------------------------------------------------


@kernel
def _by_entry(
    p: Any,
    mean: float,
    lead: int,
    at: int,
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
    normal: bool,
    right_hand: float,
    step: float,
    one_row: bool,
    out: Array,
) -> None:
    """Entries come sorted by the mode ``lead``: the block's own, or for the core any."""
    width = out.shape[1]
    work, index = workspace(p), scratch(len(p.offsets), np.int64)
    x, added = scratch(metric.shape[1], p.rows.dtype), scratch(width, p.rows.dtype)
    for row in range(first, last):
        index[lead] = p.offsets[lead] + row
        here = 0 if one_row else row * width
        for entry in range(starts[row], starts[row + 1]):
            target = _residual(p, mean, lead, others, values, entry, index, work)
            if normal:
                target += _left_to_row(p, lead, at, rank, index, work)
            target = min(most, max(-most, target))
            _read_features(work, at, rank, metric, length, bias, x)
            _fill(x, rank + 1, target, normal, right_hand, added)
            _add_cut(added, 0, 1.0, step, width, out, here)


def entry_sums(
    model: Multilinear, block: int, features: Features, entries: ByMode, threads: int
) -> Array:
    """Sums by entry for each level; ``entries`` sorted by the block's mode (the core: by the first)."""
    lead = max(block, 0)
    cuts = balanced_cuts(entries.starts, 0, model.shape[lead], threads)
    # Threads have rows of their own; the one row of a core is summed up afterwards.
    outs = [_zeros(model, block, features) for _ in range(threads if block == CORE else 1)]
    tasks = []
    for number, (first, last) in enumerate(pairwise(cuts)):
        data = entries.others, entries.values, entries.starts, first, last
        how = *features, features.right_hand, grid(features.bound), block == CORE
        where = lead, *_design_position(model, block)
        out = outs[number if block == CORE else 0]
        tasks.append(partial(_by_entry, model.arrays, model.mean, *where, *data, *how, out))
    run(tasks, threads)
    return _without_padding(outs, model, block, features)


# -- by unit ------------------------------------------------------------------------------------


@inlined
def _longest(starts: Array, first: int, last: int) -> Any:
    longest = 0
    for unit in range(first, last):
        longest = max(longest, starts[unit + 1] - starts[unit])
    return longest


@inlined
def _length_of(
    here: Array, count: int, weights: Array, number: Array, sums: Array, width: int
) -> tuple[float, float]:
    """Squares of a unit's weighted counts, and of its contribution; marks levels as counted."""
    size = squares = 0.0
    for e in range(count):
        level = here[e]
        if number[level] > 0:
            size += (weights[level] * number[level]) ** 2
            for r in range(level * width, (level + 1) * width):
                squares += sums[r] * sums[r]
            number[level] = -1
    return size, squares


@kernel
def _by_unit(
    p: Any,
    mean: float,
    lead: int,
    mode: int,
    at: int,
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
    normal: bool,
    right_hand: float,
    weights: Array,
    ridge: float,
    bound: float,
    step: float,
    out: Array,
) -> None:
    """Entries come sorted by the units' mode ``lead``; ``mode`` is the block's, -1 for the core."""
    levels, width = out.shape
    work, index = workspace(p), scratch(len(p.offsets), np.int64)
    x, added = scratch(metric.shape[1], p.rows.dtype), scratch(width, p.rows.dtype)
    sums, number = scratch(levels * width, p.rows.dtype), scratch(levels, np.int64)
    here = scratch(_longest(starts, first, last), np.int64)
    for unit in range(first, last):
        begin, count = starts[unit], starts[unit + 1] - starts[unit]
        index[lead] = p.offsets[lead] + unit
        for e in range(count):
            target = _residual(p, mean, lead, others, values, begin + e, index, work)
            if normal:
                target += _left_to_row(p, mode, at, rank, index, work)
            target = min(most, max(-most, target))
            level = 0 if mode < 0 else index[mode] - p.offsets[mode]
            _read_features(work, at, rank, metric, length, bias, x)
            _fill(x, rank + 1, target, normal, right_hand, added)
            _add_scaled(added, weights[level], width, sums, level * width)
            here[e] = level
            number[level] += 1
        size, squares = _length_of(here, count, weights, number, sums, width)
        factor = 1 / np.sqrt(size + ridge)
        if factor * np.sqrt(squares) > bound * _BELOW_ONE:
            factor = bound * _BELOW_ONE / np.sqrt(squares)
        for e in range(count):  # each level once: its number is set back
            level = here[e]
            if number[level] < 0:
                _add_cut(sums, level * width, factor, step, width, out, level * width)
                sums[level * width : (level + 1) * width] = 0
                number[level] = 0


def unit_sums(
    model: Multilinear,
    block: int,
    features: Features,
    weighting: Weighting,
    entries: ByMode,
    unit_mode: int,
    threads: int,
) -> Array:
    """Sums by unit for each level; ``entries`` sorted by the units' mode."""
    cuts = balanced_cuts(entries.starts, 0, model.shape[unit_mode], threads)
    outs, tasks = [], []
    for first, last in pairwise(cuts):
        outs.append(_zeros(model, block, features))
        data = entries.others, entries.values, entries.starts, first, last
        how = *features, features.right_hand, *weighting, grid(weighting.bound)
        where = unit_mode, block, *_design_position(model, block)
        tasks.append(partial(_by_unit, model.arrays, model.mean, *where, *data, *how, outs[-1]))
    run(tasks, threads)
    return _without_padding(outs, model, block, features)


# -- what both share ----------------------------------------------------------------------------


def _design_position(model: Multilinear, block: int) -> tuple[int, int]:
    """Where ``evaluate`` leaves the block's design (the modes' first, then the core's), and its size."""
    width = model.rows.shape[1]
    if block == CORE:
        return model.order * width, model.free_core.size
    return block * width, model.ranks[block]


def _zeros(model: Multilinear, block: int, features: Features) -> Array:
    levels, width = 1 if block == CORE else model.shape[block], features.metric.shape[1]
    if features.normal:
        size = _design_position(model, block)[1] + 1
        width = padded_width(triangle(size) + size, np.float64)
    return aligned_zeros((levels, width), np.float64)


def _without_padding(outs: list[Array], model: Multilinear, block: int, features: Features) -> Array:
    """The threads' sums together, as far as they are asked for; those of a bias come last."""
    sums: Array = np.sum(outs, axis=0)
    size = _design_position(model, block)[1] + 1
    if features.normal:
        return sums[:, : triangle(size) + size]
    return sums[:, : size if features.bias else size - 1]


# -- the readable twin --------------------------------------------------------------------------


def sums_reference(
    model: Multilinear,
    block: int,
    features: Features,
    coordinates: Array,
    values: Array,
    weighting: Weighting | None = None,
    unit_mode: int = 0,
) -> Array:
    """Slow twin of :func:`entry_sums`, or with a weighting of :func:`unit_sums`."""
    units = np.arange(values.shape[0]) if weighting is None else coordinates[unit_mode]
    levels = np.zeros(values.shape[0], int) if block == CORE else coordinates[block]
    size = 1 if block == CORE else model.shape[block]
    each = np.array(
        [
            _one_entry(model, block, features, cell, v)
            for cell, v in zip(coordinates.T, values, strict=True)
        ]
    )
    bound = features.bound if weighting is None else weighting.bound
    out, step = np.zeros((size, each.shape[1])), grid(bound)
    for unit in np.unique(units):
        mine = units == unit
        vector, counts = np.zeros_like(out), np.bincount(levels[mine], minlength=size)
        if weighting is None:
            np.add.at(vector, levels[mine], each[mine])
        else:
            np.add.at(vector, levels[mine], each[mine] * weighting.levels[levels[mine], None])
            vector *= (((weighting.levels * counts) ** 2).sum() + weighting.ridge) ** -0.5
            vector *= min(1.0, bound * _BELOW_ONE / max(float(np.linalg.norm(vector)), 1e-300))
        out += np.trunc(vector / step) * step
    return out


def _one_entry(model: Multilinear, block: int, features: Features, cell: Array, value: float) -> Array:
    here = cell[:, None]
    d = (model.kronecker(here) if block == CORE else model.design(block, here))[0]
    rank, metric = d.shape[0], features.metric
    x = metric[:, :rank].T @ d if metric.shape[0] > 1 else metric[0, :rank] * d
    x = x * min(1.0, features.length * _BELOW_ONE / max(float(np.linalg.norm(x)), 1e-300))
    x = np.append(x, features.bias)
    target = value - model.predict_reference(here)[0]
    if features.normal:
        target += model.mode_biases[block][cell[block]] + d @ model.factors[block][cell[block]]
    target = np.clip(target, -features.target, features.target)
    if not features.normal:
        gradient: Array = target * (x if features.bias else x[:-1])
        return gradient
    rows, columns = np.triu_indices(rank + 1)
    matrix = x[rows] * x[columns] * np.where(rows == columns, 1.0, sqrt(2))
    return np.concatenate([matrix, features.right_hand * target * x])
