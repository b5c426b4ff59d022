"""Steps of stochastic gradient descent, entry by entry, on strata of entries that threads share out."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from sfumato.kernels.numba.compiler import kernel
from sfumato.kernels.numba.entrywise import bias_sum, evaluate, locate, row_width, step_core, workspace
from sfumato.kernels.numba.simd import add, element, line_length, load, multiply, prefetch, spread, store
from sfumato.kernels.numba.threads import run, scratch
from sfumato.types import Array

if TYPE_CHECKING:
    from sfumato.models.multilinear import Multilinear
    from sfumato.sites.memory import Grid

_AHEAD = 8  # entries between asking for a row and using it


class Penalty(NamedTuple):
    """Pull of each row towards its mode's prior mean at each visit.

    ``means`` holds a padded row per mode, zero in the padding; ``uniform`` one number per mode. A
    penalty of a row as a whole is spread over the row's visits: ``by_row`` then holds one number per
    row and replaces ``uniform``.
    """

    uniform: Array
    by_row: Array
    means: Array
    bias: Any
    core: Any


@kernel
def _visit(
    p: Any,
    mean: Any,
    unit: Any,
    coordinates: Array,
    values: Array,
    begins: Array,
    ends: Array,
    step: Any,
    penalty: Any,
    by_row: Any,
    fit_biases: bool,
    out: Array,
) -> None:
    order, width = len(p.offsets), row_width(p)
    line = line_length(p.rows)
    index, work = scratch(order, np.int64), workspace(p)
    number = p.rows.dtype.type
    keep_bias, keep_core = number(1) - step * penalty.bias, number(1) - step * penalty.core
    # Arrays are taken out of their tuples once: inside the loop that would count references.
    rows, biases = p.rows, p.biases
    means = penalty.means
    keeps = scratch(order, rows.dtype)
    keeps[:] = number(1) - step * penalty.uniform
    pulls = scratch(order * width, rows.dtype).reshape((order, width))
    pulls[:] = step * penalty.uniform.reshape((order, 1)) * means
    squares = 0.0
    for tile in range(begins.shape[0]):
        for entry in range(begins[tile], ends[tile]):
            ahead = min(entry + _AHEAD, values.shape[0] - 1)
            for m in range(order):
                level = element(coordinates, m * values.shape[0] + ahead)
                prefetch(rows, (p.offsets[m] + level) * width)
            locate(p, coordinates, entry, index)
            error = (element(values, entry) - mean) * unit - evaluate(p, index, work)
            if fit_biases:
                error -= bias_sum(p, index)
            squares += error * error
            scale = step * error
            along = spread(rows, scale)
            for m in range(order):
                at = index[m] * width
                if by_row is not None:  # settled when the kernel is compiled
                    pull = step * by_row[index[m]]
                    keeps[m] = 1 - pull
                    for r in range(width):
                        pulls[m, r] = pull * means[m, r]
                keep = spread(rows, keeps[m])
                for b in range(0, width, line):
                    kept = add(multiply(keep, load(rows, at + b)), load(pulls, m * width + b))
                    store(rows, at + b, add(kept, multiply(along, load(work, m * width + b))))
                if fit_biases:
                    biases[index[m]] = keep_bias * biases[index[m]] + scale
            step_core(p, work, keep_core, scale)
    out[0] = squares


def run_pass(
    model: Multilinear,
    grid: Grid,
    mean: float,
    deviation: float,
    step: float,
    seed: int,
    penalty: Penalty,
    fit_biases: bool,
    threads: int,
) -> float:
    """One pass over a grid, writing to the model; returns the sum of squared errors met.

    The model explains ``(value - mean) / deviation``.
    """
    number, generator = model.dtype.type, np.random.default_rng(seed)
    squares = np.zeros((grid.strata, grid.blocks, 1))
    copies = [model] if grid.blocks == 1 else [model.with_own_core() for _ in range(grid.blocks)]
    for stratum in grid.random_strata(generator):
        tasks = []
        for block in range(grid.blocks):
            edges = grid.starts[stratum, block]
            tiles = grid.random_tiles(generator)
            copies[block].free_core[:] = model.free_core
            tasks.append(
                partial(
                    _visit,
                    copies[block].arrays,
                    number(mean),
                    number(1 / deviation),
                    grid.coordinates,
                    grid.values,
                    edges[tiles],
                    edges[tiles + 1],
                    number(step),
                    penalty,
                    penalty.by_row if penalty.by_row.size else None,
                    fit_biases,
                    squares[stratum, block],
                )
            )
        run(tasks, min(threads, grid.blocks))
        visits = grid.starts[stratum, :, -1] - grid.starts[stratum, :, 0]
        if grid.blocks > 1 and visits.any():
            model.free_core[:] = np.average([c.free_core for c in copies], axis=0, weights=visits)
    return float(squares.sum())
