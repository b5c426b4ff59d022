"""Clipped sums of a block by unit, on a GPU: as ``kernels/numba/alternating.py``, in other words.

One block of threads has one unit, and makes all that it adds in double precision and in an order that
follows from this unit's entries alone. Its threads are groups, each of which has a thread for each
column and takes one of the unit's *cells* after the other: what the unit has at one level, whatever the
number of its entries there. They go over them twice, for the length of all that the unit adds and then
to add it, so that nothing has to be kept of an entry but what it is multiplied by. Both times the
numbers are the same to the last bit: products that are added up are fused by name, none by a compiler.
"""

from __future__ import annotations

import math
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numba import cuda

from sfumato.kernels.cuda.arrays import Memory, there_once
from sfumato.kernels.cuda.contributions import clipped, steps_of
from sfumato.kernels.cuda.designs import design, kind_of, parameters, placed
from sfumato.kernels.cuda.entrywise import width_of
from sfumato.kernels.cuda.indices import ONE, ZERO, unsigned
from sfumato.kernels.grid import BELOW_ONE, grid
from sfumato.kernels.jax.entrywise import CORE
from sfumato.kernels.numba.ordering import row_starts, scatter, slots_by
from sfumato.types import Array

if TYPE_CHECKING:
    from sfumato.kernels.numba.alternating import Features, Weighting
    from sfumato.kernels.numba.cells import Cells
    from sfumato.models.multilinear import Multilinear
    from sfumato.sites.memory import ByMode

THREADS = 128  # of a block, and so the most columns that a unit adds


class InCells(NamedTuple):
    """Units' entries in the order of their cells.

    Unit u has the cells ``starts[u]`` to ``starts[u + 1]``; cell c is at ``levels[c]``, and has the
    entries ``firsts[c]`` to ``firsts[c + 1]``.
    """

    starts: Array
    levels: Array
    firsts: Array
    others: Array
    values: Array


def in_cells(entries: ByMode, cells: Cells, threads: int) -> InCells:
    """Entries sorted by units, in the order of the cells that these have in a mode."""
    number = cells.levels.shape[0]
    firsts = row_starts(cells.of_entry, number)
    if (cells.of_entry[1:] >= cells.of_entry[:-1]).all():
        return InCells(cells.starts, cells.levels, firsts, entries.others, entries.values)
    slots = slots_by(cells.of_entry, number, threads)
    others = np.stack([scatter(row, slots, threads=threads) for row in entries.others])
    values = scatter(entries.values, slots, threads=threads)
    return InCells(cells.starts, cells.levels, firsts, others, values)


def in_one_cell(entries: ByMode) -> InCells:
    """The same for the core: all entries of a unit are in one."""
    units = entries.starts.shape[0] - 1
    levels = np.zeros(max(1, units), np.int32)
    return InCells(np.arange(units + 1), levels, entries.starts, entries.others, entries.values)


@cache
def _kernel(order: int, ranks: tuple[int, ...], lead: int, block: int, rank: int, threads: int) -> Any:
    """For so many columns; threads of a group are filled up to a power of two, and some have none."""
    width, diagonal = width_of(rank), block == CORE
    column_of, place = design(order, ranks, block), placed(order, lead)
    turned, shared = (1 if diagonal else rank, rank), (threads // width, width)
    columns, wide, groups = unsigned(rank), unsigned(width), unsigned(threads // width)
    all_threads, modes_there, own, asked = map(unsigned, (threads, order, lead, max(block, 0)))

    @cuda.jit
    def kernel(  # type: ignore[no-untyped-def]
        rows, biases, core, mean, modes, starts, levels, firsts, others, values, metric, length, most,
        bias, weights, ridge, bound, step, scale, target, out,
    ):  # fmt: skip
        thread, unit = unsigned(cuda.threadIdx.x), unsigned(cuda.blockIdx.x)
        begin, end = unsigned(starts[unit]), unsigned(starts[unit + ONE])
        turn = cuda.shared.array(turned, np.float64)
        sums = cuda.shared.array(shared, np.float64)
        found = cuda.shared.array((2, threads), np.float64)
        index = cuda.local.array(order, np.uint64)
        line = cuda.local.array(rank, np.float64)
        row = unsigned(modes[own]) + unit
        for k in range(thread, columns * unsigned(metric.shape[0]), all_threads):
            turn[k // columns, k % columns] = metric[k // columns, k % columns]
        cuda.syncthreads()
        # Entry by entry: what its design is multiplied by, and what is left of its value.
        for e in range(unsigned(firsts[begin]) + thread, unsigned(firsts[end]), all_threads):
            place(modes, others, e, row, index)
            rest = np.float64(values[e]) - mean
            for m in range(modes_there):
                rest -= biases[index[m]]
            explained = 0.0
            squares = 0.0
            for c in range(columns):
                if diagonal:
                    of_design = column_of(rows, core, index, c)
                    explained += of_design * core[c]
                    squares += (of_design * turn[ZERO, c]) ** 2
                else:
                    line[c] = column_of(rows, core, index, c)
                    explained += line[c] * rows[index[asked], c]
            if not diagonal:
                for c in range(columns):
                    x = 0.0
                    for r in range(columns):
                        x += line[r] * turn[r, c]
                    squares += x * x
            rest -= explained
            # What is no number lets nothing through.
            rest = 0.0 if math.isnan(rest) else clipped(rest, most)
            norm = math.sqrt(squares)
            short = length * BELOW_ONE / norm if norm > length * BELOW_ONE else 1.0
            scale[e] = short * rest if norm < math.inf else 0.0
            target[e] = rest
        cuda.syncthreads()
        column, group = thread % wide, thread // wide
        squares = 0.0
        size = 0.0
        factor = 0.0
        for adding in range(2):
            for first in range(begin, end, groups):
                cell = first + group
                total = 0.0
                rest = 0.0
                number = ZERO
                if cell < end:
                    number = unsigned(firsts[cell + ONE] - firsts[cell])
                    for e in range(unsigned(firsts[cell]), unsigned(firsts[cell]) + number):
                        rest += target[e]
                        if column < columns and scale[e] != 0:
                            place(modes, others, e, row, index)
                            total = cuda.fma(scale[e], column_of(rows, core, index, column), total)
                sums[group, column] = total
                cuda.syncthreads()
                if cell < end:
                    level = unsigned(levels[cell])
                    weight = weights[level]
                    x = 0.0
                    if column < columns:
                        if diagonal:
                            x = total * turn[ZERO, column]
                        else:
                            for r in range(columns):
                                x = cuda.fma(sums[group, r], turn[r, column], x)
                    x *= weight
                    of_bias = bias * weight * rest
                    if adding:
                        if column < columns:
                            cuda.atomic.add(out, (level, column), steps_of(factor * x, step))
                        if column == ZERO:
                            cuda.atomic.add(out, (level, columns), steps_of(factor * of_bias, step))
                    else:
                        squares += x * x
                        if column == ZERO:
                            squares += of_bias * of_bias
                            size += (weight * np.float64(number)) ** 2
                cuda.syncthreads()
            if not adding:
                found[ZERO, thread], found[ONE, thread] = squares, size
                cuda.syncthreads()
                squares = 0.0
                size = ridge
                for t in range(all_threads):  # by each of the threads, in the same order
                    squares += found[ZERO, t]
                    size += found[ONE, t]
                factor = 1 / math.sqrt(size)
                if factor * math.sqrt(squares) > bound * BELOW_ONE:
                    factor = bound * BELOW_ONE / math.sqrt(squares)
                if not squares < math.inf:
                    factor = 0.0

    return kernel


def columns_of(model: Multilinear, block: int) -> int:
    """Columns of a block's design."""
    return model.free_core.size if block == CORE else model.ranks[block]


def unit_sums(
    model: Multilinear,
    block: int,
    features: Features,
    weighting: Weighting,
    entries: InCells,
    lead: int,
    memory: Memory,
) -> Array:
    """Sums by unit for each level, in steps of the bound's grid; units are levels of a mode."""
    rank, units = columns_of(model, block), entries.starts.shape[0] - 1
    levels = 1 if block == CORE else model.shape[block]
    metric = features.metric[:, :rank]
    if block != CORE and metric.shape[0] == 1:
        metric = np.diag(metric[0])
    laid, given, held = [there_once(part) for part in entries], parameters(model, memory), memory.held
    turn = held("metric", metric.shape, np.float64).put(metric)
    weights = held("weights", weighting.levels.shape, np.float64).put(weighting.levels)
    scale, target = (held(name, entries.values.shape, np.float64).seen for name in ("scale", "target"))
    out = held("sums", (levels, rank + 1), np.int64)
    kernel = _kernel(model.order, kind_of(model), lead, block, rank, THREADS)
    kernel[units, THREADS](
        *given, *laid, turn, features.length, features.target, features.bias, weights, weighting.ridge,
        weighting.bound, grid(weighting.bound), scale, target, out.cleared(),
    )  # fmt: skip
    sums = out.fetched()
    return sums if features.bias else sums[:, :rank]
