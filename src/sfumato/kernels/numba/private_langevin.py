"""Clipped gradient sums of several relations that share modes, as whole numbers of a public grid.

All relations' rows lie in one array, those of a mode once, however many relations have it. A unit is one
entry of one relation, or all entries of a level of a mode in all relations. What it adds is the gradient
of the log likelihood of its entries by all released parameters, in the coordinates of a metric: clipped
to a length as a whole, each number then cut towards zero to a multiple of the grid's step
(``kernels/grid.py``). Whole numbers add up without rounding, in any order and on any number of threads.

Values are normal around ``mean + biases + product of rows``, or Poisson with the product as mean.
Readable twin: ``kernels/reference/private_langevin.py``.
"""

from __future__ import annotations

from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from sfumato.kernels.grid import BELOW_ONE
from sfumato.kernels.numba.compiler import inlined, kernel
from sfumato.kernels.numba.private_gradients import clipping
from sfumato.kernels.numba.threads import balanced_cuts, run, scratch
from sfumato.records import record
from sfumato.types import Array

LOW, HIGH, MEAN, PRECISION = range(4)  # columns of a scale
_LEAST_POISSON = 1e-12  # below any Poisson mean that is told apart from zero
_LEAST_SQUARE = 1e-250  # of a length: in less, squares may be lost below the range of numbers


@record
class Layout(NamedTuple):
    """Where the parameters of relations lie.

    ``orders`` has the number of modes of each relation. ``first_rows``, ``first_biases`` and ``blocks``
    have a line for each relation, a number for each of its modes: the first of its rows and biases among
    all, and which of all modes it is. ``block_of`` says the same of every row.
    """

    orders: Array
    first_rows: Array
    first_biases: Array
    blocks: Array
    block_of: Array


class Packed(NamedTuple):
    """Entries of all relations: a line of levels for each, and values.

    Where entries are units those of relation v lie from ``starts[v]`` on. Where levels are, those of
    unit u in relation v of V from ``starts[u V + v]`` on.
    """

    levels: Array
    values: Array
    starts: Array


@record
class Point(NamedTuple):
    """Where gradients are taken, and how they are measured and clipped.

    ``scale`` has a line for each relation: bounds of its values, its mean, and the precision of what the
    model leaves of a value. ``metric`` has a line for each mode, ``bias_metric`` a number for each bias,
    which is zero where there are none.
    """

    rows: Array
    biases: Array
    scale: Array
    metric: Array
    bias_metric: Array
    poisson: bool
    clip: float
    step: float


@record
class Owned(NamedTuple):
    """How units solve their own rows: the mode (-1 for none), its place in each relation, and ridges.

    ``typical``: who has more entries weighs each by sqrt(typical / entries).
    """

    block: int
    modes: Array
    home: float
    ridge: float
    bias_ridges: Array
    typical: float


class LangevinSums(NamedTuple):
    """Sums of gradients, laid out like the parameters: whole numbers of the grid's step."""

    rows: Array
    biases: Array


class _Room(NamedTuple):
    """One thread's memory for the gradient of one unit, and which rows and biases it touches."""

    rows: Array
    biases: Array
    seen: Array
    seen_biases: Array
    found: Array
    found_biases: Array


def _room(at: Point) -> _Room:
    (n, _), k = at.rows.shape, at.biases.shape[0]
    marks = np.zeros(n, np.bool_), np.zeros(k, np.bool_)
    lists = np.zeros(n, np.int64), np.zeros(k, np.int64)
    return _Room(np.zeros(at.rows.shape), np.zeros(k), *marks, *lists)


# -- one entry ------------------------------------------------------------------------------------


@inlined
def _guess(layout: Any, at: Any, v: int, levels: Array, entry: int, index: Array, designs: Array) -> Any:
    """The model's value of an entry; fills in its rows, and what the value changes by with each."""
    rows, order = at.rows, layout.orders[v]
    guess = at.scale[v, MEAN]
    for m in range(order):
        index[m] = layout.first_rows[v, m] + levels[entry, m]
        guess += at.biases[layout.first_biases[v, m] + levels[entry, m]]
    for r in range(rows.shape[1]):
        product = 1.0
        for m in range(order):
            designs[m, r] = product
            product *= rows[index[m], r]
        guess += product
        product = 1.0
        for m in range(order - 1, -1, -1):
            designs[m, r] *= product
            product *= rows[index[m], r]
    return guess


@inlined
def _inside(value: Any, low: Any, high: Any) -> Any:
    """A value clipped to its bounds (NaN to the lower one)."""
    return min(value, high) if value > low else low


@inlined
def _slope(at: Any, v: int, value: Any, guess: Any) -> Any:
    """Derivative of the log likelihood by the model's value."""
    inside = _inside(value, at.scale[v, LOW], at.scale[v, HIGH])
    if at.poisson:
        return inside / max(guess, _LEAST_POISSON) - 1.0
    return (inside - guess) * at.scale[v, PRECISION]


@kernel
def _sum_entries(
    layout: Any, at: Any, packed: Any, chosen: Array, first: int, beyond: int, sums: Any
) -> None:
    levels, values, starts = packed
    rank, width, metric = at.rows.shape[1], levels.shape[1], at.metric
    rows, biases = sums
    index, designs = scratch(width, np.int64), scratch(width * rank, np.float64).reshape(width, rank)
    v = 0
    for k in range(first, beyond):
        entry = chosen[k] if chosen.shape[0] > 0 else k
        while entry >= starts[v + 1]:
            v += 1
        slope = _slope(at, v, values[entry], _guess(layout, at, v, levels, entry, index, designs))
        size = 0.0
        for m in range(layout.orders[v]):
            block = layout.blocks[v, m]
            size += at.bias_metric[layout.first_biases[v, m] + levels[entry, m]] ** 2
            for r in range(rank):
                designs[m, r] *= metric[block, r]
                size += designs[m, r] * designs[m, r]
        factor = clipping(abs(slope) * np.sqrt(size), at.clip)
        if factor == 0 or not size > _LEAST_SQUARE:
            continue
        slope *= factor / at.step
        for m in range(layout.orders[v]):
            bias = layout.first_biases[v, m] + levels[entry, m]
            biases[bias] += np.int64(slope * at.bias_metric[bias])
            for r in range(rank):
                rows[index[m], r] += np.int64(slope * designs[m, r])


# -- all entries of a level -----------------------------------------------------------------------


@inlined
def _solve(a: Array, h: Array) -> None:
    """Solve a x = h for a symmetric positive ``a`` by elimination; x replaces ``h``."""
    size = h.shape[0]
    for j in range(size):
        for i in range(j + 1, size):
            share = a[i, j] / a[j, j]
            for k in range(j, size):
                a[i, k] -= share * a[j, k]
            h[i] -= share * h[j]
    for j in range(size - 1, -1, -1):
        for k in range(j + 1, size):
            h[j] -= a[j, k] * h[k]
        h[j] /= a[j, j]


@inlined
def _fit_own(
    layout: Any,
    at: Any,
    packed: Any,
    own: Any,
    unit: int,
    index: Array,
    designs: Array,
    x: Array,
    gram: Array,
    rhs: Array,
) -> None:
    """Ridge regression of a unit's own row, and of its own bias in each relation, on its own entries."""
    levels, values, starts = packed
    rank, relations = at.rows.shape[1], layout.orders.shape[0]
    here = layout.first_rows[0, own.modes[0]] + unit
    gram[:], rhs[:], x[:] = 0.0, 0.0, 0.0
    for i in range(rank):
        gram[i, i], rhs[i] = own.ridge, own.ridge * own.home
        at.rows[here, i] = 0.0
    for v in range(relations):
        m, s = own.modes[v], unit * relations + v
        gram[rank + v, rank + v] = own.bias_ridges[v]
        at.biases[layout.first_biases[v, m] + unit] = 0.0
        x[rank + v] = 0.0 if at.poisson else 1.0
        low, high, weight = at.scale[v, LOW], at.scale[v, HIGH], at.scale[v, PRECISION]
        for entry in range(starts[s], starts[s + 1]):
            rest = _inside(values[entry], low, high)
            rest -= _guess(layout, at, v, levels, entry, index, designs)
            for r in range(rank):
                x[r] = designs[m, r]
            for i in range(rank + relations):
                rhs[i] += weight * rest * x[i]
                for j in range(rank + relations):
                    gram[i, j] += weight * x[i] * x[j]
        x[rank + v] = 0.0
    _solve(gram, rhs)
    for i in range(rank):
        at.rows[here, i] = max(rhs[i], 0.0) if at.poisson else rhs[i]
    for v in range(relations):
        at.biases[layout.first_biases[v, own.modes[v]] + unit] = rhs[rank + v]


@inlined
def _unit_gradient(
    layout: Any, at: Any, packed: Any, own: Any, unit: int, room: Any, index: Array, designs: Array
) -> Any:
    """Add up a unit's gradient in the metric; how many rows and biases it touches, and its length."""
    levels, values, starts = packed
    rank, relations = at.rows.shape[1], layout.orders.shape[0]
    entries = starts[(unit + 1) * relations] - starts[unit * relations]
    weight = min(1.0, np.sqrt(own.typical / entries))
    touched, touched_biases = 0, 0
    for v in range(relations):
        for entry in range(starts[unit * relations + v], starts[unit * relations + v + 1]):
            guess = _guess(layout, at, v, levels, entry, index, designs)
            slope = weight * _slope(at, v, values[entry], guess)
            for m in range(layout.orders[v]):
                block = layout.blocks[v, m]
                if block == own.block:
                    continue
                row, bias = index[m], layout.first_biases[v, m] + levels[entry, m]
                if not room.seen[row]:
                    room.seen[row], room.found[touched] = True, row
                    touched += 1
                if not room.seen_biases[bias]:
                    room.seen_biases[bias], room.found_biases[touched_biases] = True, bias
                    touched_biases += 1
                room.biases[bias] += slope * at.bias_metric[bias]
                for r in range(rank):
                    room.rows[row, r] += slope * at.metric[block, r] * designs[m, r]
    # Of the whole: entries that share a row have added up in it.
    size = 0.0
    for k in range(touched):
        for r in range(rank):
            size += room.rows[room.found[k], r] ** 2
    for k in range(touched_biases):
        size += room.biases[room.found_biases[k]] ** 2
    return touched, touched_biases, np.sqrt(size)


@kernel
def _sum_units(
    layout: Any,
    at: Any,
    packed: Any,
    own: Any,
    room: Any,
    chosen: Array,
    first: int,
    beyond: int,
    sums: Any,
) -> None:
    rank, width, relations = at.rows.shape[1], packed.levels.shape[1], layout.orders.shape[0]
    rows, biases = sums
    free = rank + relations
    index, designs = scratch(width, np.int64), scratch(width * rank, np.float64).reshape(width, rank)
    x, gram, rhs = np.zeros(free), np.zeros((free, free)), np.zeros(free)
    for k in range(first, beyond):
        unit = chosen[k] if chosen.shape[0] > 0 else k
        if packed.starts[unit * relations] == packed.starts[(unit + 1) * relations]:
            continue
        if own.block >= 0:
            _fit_own(layout, at, packed, own, unit, index, designs, x, gram, rhs)
        touched, touched_biases, length = _unit_gradient(
            layout, at, packed, own, unit, room, index, designs
        )
        factor = clipping(length, at.clip) / at.step
        for j in range(touched):
            row = room.found[j]
            for r in range(rank):
                if factor > 0:
                    rows[row, r] += np.int64(factor * room.rows[row, r])
                room.rows[row, r] = 0.0
            room.seen[row] = False
        for j in range(touched_biases):
            bias = room.found_biases[j]
            if factor > 0:
                biases[bias] += np.int64(factor * room.biases[bias])
            room.biases[bias], room.seen_biases[bias] = 0.0, False


# -- on several threads -----------------------------------------------------------------------------

ALL = np.zeros(0, np.int32)  # instead of those that were chosen
ALL.flags.writeable = False


def _nothing(at: Point) -> LangevinSums:
    """Where the sums of one thread go."""
    return LangevinSums(np.zeros(at.rows.shape, np.int64), np.zeros(at.biases.shape, np.int64))


def _total(parts: list[LangevinSums]) -> LangevinSums:
    if len(parts) == 1:
        return parts[0]
    return LangevinSums(*(np.sum(each, axis=0) for each in zip(*parts, strict=True)))


def entry_sums(
    layout: Layout, at: Point, packed: Packed, chosen: Array | None = None, threads: int = 1
) -> LangevinSums:
    """Sums over all entries or those chosen, in order; each adds a vector no longer than ``at.clip``."""
    some = ALL if chosen is None else chosen
    number = packed.values.shape[0] if chosen is None else chosen.shape[0]
    cuts = np.linspace(0, number, threads + 1).astype(int).tolist()
    what = layout, at._replace(clip=at.clip * BELOW_ONE), packed, some
    parts = [_nothing(at) for _ in range(threads)]
    if number > 0:
        pieces = zip(pairwise(cuts), parts, strict=True)
        run([partial(_sum_entries, *what, *ends, part) for ends, part in pieces], threads)
    return _total(parts)


def unit_sums(
    layout: Layout,
    at: Point,
    packed: Packed,
    own: Owned,
    chosen: Array | None = None,
    threads: int = 1,
) -> LangevinSums:
    """The same over all levels of the units' mode, or those chosen.

    Where units solve their own rows, these are written over in ``at``.
    """
    relations = layout.orders.shape[0]
    starts = np.ascontiguousarray(packed.starts[::relations])
    if chosen is None:
        cuts = balanced_cuts(starts, 0, starts.size - 1, threads)
    else:
        cuts = np.linspace(0, chosen.shape[0], threads + 1).astype(int).tolist()
    some = ALL if chosen is None else chosen
    parts = [_nothing(at) for _ in range(threads)]
    what = layout, at._replace(clip=at.clip * BELOW_ONE), packed, own
    if chosen is None or chosen.shape[0] > 0:
        pieces = zip(pairwise(cuts), parts, strict=True)
        run([partial(_sum_units, *what, _room(at), some, *ends, part) for ends, part in pieces], threads)
    return _total(parts)
