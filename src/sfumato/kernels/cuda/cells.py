"""What owners have at the levels of a mode, on a GPU: as ``kernels/numba/cells.py``, in other words.

All arithmetic of one owner is in double precision and in the order of its cells: by one thread, or where
it is long by some, each of which does the same steps for numbers of its own. What an owner adds does not
depend on the others. It is cut to whole steps, and sums are of 64-bit whole numbers.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import cuda

from sfumato.kernels.cuda.arrays import there, there_once, zeros
from sfumato.kernels.cuda.contributions import THREADS, blocks_for, clipped, put, rest_of, steps_of
from sfumato.kernels.grid import BELOW_ONE
from sfumato.kernels.numba import cells as here
from sfumato.kernels.numba.cells import Cells, Centring, Shortening
from sfumato.kernels.numba.contributions import Entries, Taken
from sfumato.types import Array

COLUMNS = 128  # of coordinates that the threads of a block share, at most
OWNERS_THREADS = 64  # of a block that has one owner


# -- numbers of cells ------------------------------------------------------------------------------


@cuda.jit
def _centred(  # type: ignore[no-untyped-def]
    levels, values, low, high, mean, biases, offsets, begins, starts, of_entry, clip, ridge, number, out
):
    owner = cuda.grid(1)
    if owner < starts.shape[0] - 1:
        for e in range(begins[owner], begins[owner + 1]):
            rest = rest_of(levels, values, low, high, mean, biases, offsets, e)
            out[of_entry[e]] += clipped(rest, clip)
            number[of_entry[e]] += 1
        middle = 0.0
        for c in range(starts[owner], starts[owner + 1]):
            out[c] /= number[c]
            middle += out[c]
        middle /= starts[owner + 1] - starts[owner] + ridge
        for c in range(starts[owner], starts[owner + 1]):
            out[c] = clipped(out[c] - middle, clip)


def centred_rests(entries: Entries, taken: Taken, cells: Cells, how: Centring, threads: int) -> Array:
    """What is left of each cell beside the owner's own mean."""
    given, size = put(entries, taken), max(1, cells.levels.shape[0])
    laid = [there_once(part) for part in (entries.starts, cells.starts, cells.of_entry)]
    number = zeros((size,), np.int32)
    out = zeros((size,), np.float64, reads=(given, laid, number))
    owners = cells.starts.shape[0] - 1
    _centred[blocks_for(owners), THREADS](*given, *laid, *how, number.seen, out.seen)
    return out.on_host(cells.levels.shape)


@cuda.jit
def _add_up(levels, numbers, step, out):  # type: ignore[no-untyped-def]
    c = cuda.grid(1)
    if c < levels.shape[0]:
        cuda.atomic.add(out, levels[c], steps_of(numbers[c], step))


def sum_of_cells(cells: Cells, numbers: Array, size: int, step: float, threads: int) -> Array:
    """Sum of the numbers at each of ``size`` levels, in whole steps."""
    given = there_once(cells.levels), *there(numbers)
    out = zeros((size,), np.int64, reads=given)
    _add_up[blocks_for(cells.levels.shape[0]), THREADS](*given, step, out.seen)
    return out.on_host((size,))


# -- moments -----------------------------------------------------------------------------------------


@cuda.jit
def _moment(starts, places, numbers, kept, power, step, out):  # type: ignore[no-untyped-def]
    """One block for each owner, whose threads share the products of each of its numbers."""
    begin, end = starts[cuda.blockIdx.x], starts[cuda.blockIdx.x + 1]
    square = 0.0
    for c in range(begin, end):
        square += numbers[c] * numbers[c]
    if square > 0:
        factor = 1 / square if power == 2 else 1 / math.sqrt(square)
        for i in range(begin, end):
            at = np.int64(places[i])
            row = at * (2 * kept - at - 1) // 2 - at - 1
            mine = factor * numbers[i]
            for j in range(i + 1 + cuda.threadIdx.x, end, cuda.blockDim.x):
                cuda.atomic.add(out, row + places[j], steps_of(mine * numbers[j], step))


def moment_of_cells(
    cells: Cells, numbers: Array, places: Array, power: float, step: float, threads: int
) -> Array:
    """Sum over owners of y y' / |y|^power, above the diagonal, in whole steps; the power is 1 or 2."""
    if power not in (1.0, 2.0):
        return here.moment_of_cells(cells, numbers, places, power, step, threads)
    kept, at = int(places.max(initial=-1)) + 1, places[cells.levels]
    chosen = at >= 0
    before = np.concatenate([np.zeros(1, np.int64), np.cumsum(chosen)])
    size, owners = kept * (kept - 1) // 2, cells.starts.shape[0] - 1
    if not size or not owners:
        return np.zeros(size, np.int64)
    given = there(before[cells.starts], at[chosen], numbers[chosen].astype(np.float64))
    out = zeros((size,), np.int64, reads=given)
    _moment[owners, OWNERS_THREADS](*given, kept, power, step, out.seen)
    return out.on_host((size,))


# -- projections -------------------------------------------------------------------------------------


@cuda.jit
def _project(  # type: ignore[no-untyped-def]
    starts, levels, numbers, weights, directions, reach, ridge, most, step, out
):
    """One block for each owner; a thread has a column, and all of them make what they share."""
    s = cuda.shared.array(COLUMNS, np.float64)
    begin, end, rank = starts[cuda.blockIdx.x], starts[cuda.blockIdx.x + 1], directions.shape[1]
    square = 0.0
    weight = 0.0
    for c in range(begin, end):
        w = weights[levels[c]]
        square += (w * numbers[c]) * (w * numbers[c])
        weight += w * w
    size = math.sqrt(square)
    for k in range(cuda.threadIdx.x, rank, cuda.blockDim.x):
        total = 0.0
        for c in range(begin, end):
            total += weights[levels[c]] * numbers[c] * directions[levels[c], k]
        s[k] = total / size if square > 0 else 0.0
    cuda.syncthreads()
    along = 0.0
    for k in range(rank):
        along += s[k] * s[k]
    along = math.sqrt(along)
    factor = reach * BELOW_ONE / along if along > reach * BELOW_ONE else 1.0
    if most < math.inf:
        scale = 1 / math.sqrt(ridge + weight)
        if size * scale > most * BELOW_ONE:
            scale = most * BELOW_ONE / size
        factor *= scale
    if square > 0:
        for k in range(cuda.threadIdx.x, rank, cuda.blockDim.x):
            mine = s[k] * factor
            for c in range(begin, end):
                added = steps_of(weights[levels[c]] * numbers[c] * mine, step)
                cuda.atomic.add(out, (levels[c], k), added)


def project_cells(
    cells: Cells,
    numbers: Array,
    weights: Array,
    directions: Array,
    reach: float,
    how: Shortening,
    step: float,
    threads: int,
) -> Array:
    """Sum over owners of x s', in whole steps: a row for each level."""
    owners, (levels, rank) = cells.starts.shape[0] - 1, directions.shape
    if rank > COLUMNS or not owners or not rank:
        return here.project_cells(cells, numbers, weights, directions, reach, how, step, threads)
    laid: list[Any] = [there_once(cells.starts), there_once(cells.levels)]
    laid += there(*(np.ascontiguousarray(each, np.float64) for each in (numbers, weights, directions)))
    out = zeros((levels, rank), np.int64, reads=laid)
    _project[owners, OWNERS_THREADS](*laid, reach, how.ridge, how.most, step, out.seen)
    return out.on_host((levels, rank))
