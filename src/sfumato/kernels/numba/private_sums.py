"""Clipped gradient sums of one step that all units take part in, as whole numbers of a public grid.

What a unit adds is clipped to a length as a whole, as in ``private_steps.py``, in the coordinates of the
metric. Each of its numbers is then cut towards zero to a multiple of the grid's step
(``kernels/grid.py``). Whole numbers add up without rounding, in any order: a unit more or less changes
the sums by what it adds and by nothing else, and threads and holders of data share the work.
Readable twin: ``kernels/reference/private_sums.py``.
"""

from __future__ import annotations

from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from sfumato.kernels.grid import BELOW_ONE, grid
from sfumato.kernels.numba.compiler import inlined, kernel
from sfumato.kernels.numba.entrywise import (
    add_kronecker,
    bias_sum,
    evaluate,
    locate,
    row_width,
    workspace,
)
from sfumato.kernels.numba.private_gradients import (
    clipping,
    fit_own,
    kronecker_size,
    locate_own,
    measured,
    unit_gradient,
)
from sfumato.kernels.numba.private_moves import Moves, Scale, make_memory, standardised
from sfumato.kernels.numba.simd import (
    add_whole,
    aligned_zeros,
    element,
    line_length,
    load,
    multiply,
    spread,
)
from sfumato.kernels.numba.threads import balanced_cuts, run, scratch
from sfumato.types import Array

if TYPE_CHECKING:
    from sfumato.models.multilinear import Multilinear
    from sfumato.sites.memory import ByMode


class Sums(NamedTuple):
    """Sums of gradients, laid out like the parameters: whole numbers of the grid's step."""

    rows: Array
    biases: Array
    core: Array


@inlined
def _add_cut(
    vector: Array, at: int, metric: Array, metric_at: int, factor: Any, width: int, out: Array, to: int
) -> None:
    """``out += factor metric vector``, cut towards zero to whole numbers."""
    along = spread(vector, factor)
    for b in range(0, width, line_length(vector)):
        change = multiply(along, multiply(load(vector, at + b), load(metric, metric_at + b)))
        add_whole(out, to + b, change)


@kernel
def _sum_entries(
    p: Any,
    moves: Any,
    scale: Any,
    clip: float,
    step: float,
    fit_biases: bool,
    coordinates: Array,
    values: Array,
    first: int,
    beyond: int,
    sums: Any,
) -> None:
    order, width, square, bias_square = len(p.offsets), row_width(p), moves.square, moves.bias_square
    low, high, middle, unit = scale
    rows, biases, core = sums
    core_square, metric = moves.core[3], np.sqrt(square)
    bias_metric, core_metric = np.sqrt(bias_square), np.sqrt(core_square)
    index, work, kronecker = scratch(order, np.int64), workspace(p), np.zeros(core.shape[0])
    for entry in range(first, beyond):
        locate(p, coordinates, entry, index)
        error = standardised(element(values, entry), low, high, middle, unit)
        error -= evaluate(p, index, work)
        size = measured(work, square, order * width)
        if fit_biases:
            error -= bias_sum(p, index)
            size += order * bias_square
        if core.shape[0] > 0:
            size += core_square * kronecker_size(p, index)
        factor = clipping(abs(error) * np.sqrt(size), clip)
        if factor == 0:
            continue
        error *= factor / step
        for m in range(order):
            _add_cut(work, m * width, metric, m * width, error, width, rows, index[m] * width)
            if fit_biases:
                biases[index[m]] += np.int64(error * bias_metric)
        if core.shape[0] > 0:
            kronecker[:] = 0
            add_kronecker(p, work, error * core_metric, kronecker)
            for q in range(core.shape[0]):
                core[q] += np.int64(kronecker[q])


@kernel
def _sum_units(
    p: Any,
    moves: Any,
    scale: Any,
    clip: float,
    step: float,
    fit_biases: bool,
    memory: Any,
    rank: int,
    others: Array,
    values: Array,
    starts: Array,
    mode: int,
    typical: float,
    local: bool,
    ridge: Any,
    first_level: int,
    last_level: int,
    sums: Any,
) -> None:
    order, width, square, bias_square = len(p.offsets), row_width(p), moves.square, moves.bias_square
    rows, biases, core = sums
    own, own_bias, own_core, mark = memory.own, memory.own_bias, memory.own_core, memory.mark
    core_square, metric = moves.core[3], np.sqrt(square)
    bias_metric, core_metric = np.sqrt(bias_square), np.sqrt(core_square)
    index, work = scratch(order, np.int64), workspace(p)
    free = rank + 1 if fit_biases else rank
    gram, rhs, x = np.empty(free * free), np.empty(free), scratch(width + 1, p.rows.dtype)
    for level in range(first_level, last_level):
        first, beyond, here = starts[level], starts[level + 1], p.offsets[mode] + level
        if first == beyond:
            continue
        if local:
            fit_own(
                *(p, scale, mode, others, values, first, beyond, here, rank, moves.home, ridge),
                *(fit_biases, index, work, x, gram, rhs),
            )
        length = unit_gradient(
            *(p, memory, scale, mode, others, values, first, beyond, here, typical, local),
            *(square, bias_square, core_square, fit_biases, index, work),
        )
        factor = clipping(length, clip) / step
        for entry in range(first, beyond):
            locate_own(p, mode, others, entry, here, index)
            for m in range(order):
                row = index[m]
                if mark[row] == 2:
                    mark[row] = 0
                    if factor > 0:
                        _add_cut(
                            *(own, row * width, metric, m * width, factor, width),
                            *(rows, row * width),
                        )
                        biases[row] += np.int64(factor * bias_metric * own_bias[row])
                    for r in range(width):
                        own[row, r] = 0
                    own_bias[row] = 0
        for q in range(core.shape[0]):
            if factor > 0:
                core[q] += np.int64(factor * core_metric * own_core[q])
            own_core[q] = 0


# -- on several threads ---------------------------------------------------------------------------


def _nothing(model: Multilinear) -> Sums:
    """Where the sums of one thread go."""
    rows = aligned_zeros(model.rows.shape, np.int64)
    return Sums(rows, np.zeros(rows.shape[0], np.int64), np.zeros(model.free_core.size, np.int64))


def _total(parts: list[Sums]) -> Sums:
    return Sums(*(np.sum(each, axis=0) for each in zip(*parts, strict=True)))


def entry_gradients(
    model: Multilinear,
    moves: Moves,
    scale: Scale,
    coordinates: Array,
    values: Array,
    clip: float,
    fit_biases: bool,
    threads: int,
) -> Sums:
    """Sums over all entries, each of which adds a vector no longer than ``clip``.

    The model and how it moves have to be in double precision.
    """
    what = model.arrays, moves, scale, clip * BELOW_ONE, grid(clip), fit_biases, coordinates, values
    parts = [_nothing(model) for _ in range(threads)]
    cuts = np.linspace(0, values.size, threads + 1).astype(int).tolist()
    pieces = zip(pairwise(cuts), parts, strict=True)
    run([partial(_sum_entries, *what, *ends, part) for ends, part in pieces], threads)
    return _total(parts)


def unit_gradients(
    model: Multilinear,
    moves: Moves,
    scale: Scale,
    entries: ByMode,
    mode: int,
    typical: float,
    local: bool,
    ridge: tuple[float, float],
    clip: float,
    fit_biases: bool,
    threads: int,
) -> Sums:
    """Sums over all levels of ``mode``, each of which adds a vector no longer than ``clip``.

    The same precision; with ``local`` the own rows in ``model`` are written over.
    """
    what = model.arrays, moves, scale, clip * BELOW_ONE, grid(clip), fit_biases
    own = (
        *(model.ranks[mode], entries.others, entries.values, entries.starts),
        *(mode, typical, local, ridge),
    )
    cuts = balanced_cuts(entries.starts, 0, entries.starts.size - 1, threads)
    parts = [_nothing(model) for _ in range(threads)]
    run(
        [
            partial(_sum_units, *what, make_memory(model, True), *own, *ends, part)
            for ends, part in zip(pairwise(cuts), parts, strict=True)
        ],
        threads,
    )
    return _total(parts)
