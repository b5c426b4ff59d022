"""Clipped sums of a mode by entry, on a GPU: as ``kernels/numba/alternating.py``, in other words.

One thread does all arithmetic of one entry, in single precision and always in the same order, so that
what an entry adds does not depend on its place. It is cut to whole steps of the grid, and the bound that
privacy rests on is taken from these numbers themselves: an entry whose squares come to more than the
bound's, less what their sum may be wrong by, adds nothing. Sums are of 64-bit whole numbers.
"""

from __future__ import annotations

import math
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numba import cuda

from sfumato.kernels.cuda.arrays import LINED_UP, Held
from sfumato.kernels.cuda.entrywise import TILE, TILES, Entries, parameters, width_of
from sfumato.kernels.cuda.indices import FOUR, ONE, THREE, TWO, ZERO, unsigned
from sfumato.kernels.jax.alternating import clips
from sfumato.types import Array

if TYPE_CHECKING:
    from sfumato.kernels.numba.alternating import Features
    from sfumato.models.multilinear import Multilinear

_NONE, _ONE, _MOST = np.float32(0), np.float32(1), np.float32(2**30)
_NOWHERE = np.int32(-1)


@cache
def _kernel(order: int, width: int) -> Any:
    """For tensors of an order, and rows of a width.

    Loops are as long as they are known to be, and written out where they are short.
    """
    tiled = TILE, width + 1  # one column more: no two threads meet at a bank
    indexed, square = (order - 1, TILE), (width, width)
    columns, fours, others_there = unsigned(width), unsigned(width // 4), unsigned(order - 1)
    at_once = unsigned(TILE // width)  # entries whose rows a block reads together

    @cuda.jit
    def kernel(  # type: ignore[no-untyped-def]
        rows, biases, mean, firsts, others, values, levels, present, metric, limits, out
    ):
        design = cuda.shared.array(tiled, np.float32)
        whole = cuda.shared.array(tiled, np.float32)  # features first, then their steps
        turn = cuda.shared.array(square, np.float32, LINED_UP)
        index = cuda.shared.array(indexed, np.int32)
        at = cuda.shared.array(TILE, np.int32)
        thread = unsigned(cuda.threadIdx.x)
        column, group = thread % columns, thread // columns
        length, most, bias, step, limit = limits[0], limits[1], limits[2], limits[3], limits[4]
        rank = unsigned(out.shape[1] - 1)  # columns of features; those after them are zero
        for k in range(group, columns, at_once):
            turn[k, column] = metric[k, column]
        level, total, of_biases = _NOWHERE, np.int64(0), np.int64(0)
        begin = cuda.blockIdx.x * TILES * TILE
        for tile in range(TILES):
            entry = begin + tile * TILE + cuda.threadIdx.x
            there = entry < present
            entry = min(entry, present - 1)
            cuda.syncthreads()  # the tile before has been added up
            at[thread] = levels[entry] if there else _NOWHERE
            for m in range(others_there):
                index[m, thread] = firsts[m] + others[m, entry]
            cuda.syncthreads()
            # Neighbouring threads read neighbouring columns of a row.
            for k in range(columns):
                e = k * at_once + group
                product = rows[unsigned(index[ZERO, e]), column]
                for m in range(ONE, others_there):
                    product *= rows[unsigned(index[m, e]), column]
                design[e, column] = product
            cuda.syncthreads()
            # From here on a thread has an entry of its own.
            own = unsigned(firsts[others_there] + levels[entry])
            residual = values[entry] - mean - biases[own]
            for m in range(others_there):
                residual -= biases[unsigned(index[m, thread])]
            for c in range(columns):
                residual -= design[thread, c] * rows[own, c]
            target = min(max(residual, -most), most) if not math.isnan(residual) else _NONE
            squares = _NONE
            for four in range(fours):
                first = four * FOUR
                x0 = x1 = x2 = x3 = _NONE
                for r in range(columns):
                    d = design[thread, r]
                    x0 += d * turn[r, first]
                    x1 += d * turn[r, first + ONE]
                    x2 += d * turn[r, first + TWO]
                    x3 += d * turn[r, first + THREE]
                whole[thread, first], whole[thread, first + ONE] = x0, x1
                whole[thread, first + TWO], whole[thread, first + THREE] = x2, x3
                squares += x0 * x0 + x1 * x1 + x2 * x2 + x3 * x3
            norm = math.sqrt(squares)
            scale = (length / norm if norm > length else _ONE) * target / step
            squares = _NONE
            for c in range(columns):
                number = whole[thread, c] * scale
                if abs(number) < _MOST:
                    number = np.float32(np.int32(number))
                whole[thread, c] = number
                squares += number * number
            number = bias * target / step
            if abs(number) < _MOST:
                number = np.float32(np.int32(number))
            whole[thread, columns] = number
            squares += number * number
            if not (there and squares <= limit):  # nor where any is NaN
                for c in range(columns + ONE):
                    whole[thread, c] = _NONE
            cuda.syncthreads()
            # A thread adds up a column of some neighbouring entries, level by level.
            for k in range(columns):
                e = group * columns + k
                if at[e] != level:
                    if level >= 0 and column < rank:
                        cuda.atomic.add(out, (unsigned(level), column), total)
                        if column == ZERO:
                            cuda.atomic.add(out, (unsigned(level), rank), of_biases)
                    level, total, of_biases = at[e], np.int64(0), np.int64(0)
                total += np.int64(whole[e, column])
                if column == ZERO:
                    of_biases += np.int64(whole[e, columns])
        if level >= 0 and column < rank:
            cuda.atomic.add(out, (unsigned(level), column), total)
            if column == ZERO:
                cuda.atomic.add(out, (unsigned(level), rank), of_biases)

    return kernel


def sums_there(given: Any, how: Any, entries: Entries, order: int, levels: int, rank: int) -> Held:
    """The sums, being made on the device: of parameters and clips that are there."""
    out = entries.memory.held("sums", (levels, rank + 1), np.int64)
    sums, kernel = out.cleared(), _kernel(order, width_of(rank))
    for chunk in entries:
        kernel[chunk.blocks, TILE](*given, *chunk, *how, sums)
    return out


def put(model: Multilinear, mode: int, features: Features, entries: Entries) -> tuple[Any, Any]:
    """A model and how features are clipped, as :func:`sums_there` takes them."""
    rank, width = model.ranks[mode], width_of(model.ranks[mode])
    given = features.metric[:, :rank]
    metric = entries.memory.held("metric", (width, width), np.float32)
    limits = np.array(clips(features))
    how = (
        metric.put(np.diag(given[0]) if given.shape[0] == 1 else given),
        entries.memory.held("limits", limits.shape, np.float32).put(limits),
    )
    return parameters(model, mode, entries), how


def entry_sums(model: Multilinear, mode: int, features: Features, entries: Entries) -> Array:
    """Sums by entry for each level of the mode, in steps of the bound's grid."""
    rank, levels = model.ranks[mode], model.shape[mode]
    given = put(model, mode, features, entries)
    sums = sums_there(*given, entries, model.order, levels, rank).fetched()
    return sums if features.bias else sums[:, :rank]
