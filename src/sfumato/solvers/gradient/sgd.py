"""Stochastic gradient descent, entry by entry, on strata of entries that threads share out.

At an entry with error ``e = x - value`` every row of the entry takes a step along its design d_m:

    row_m += step (e d_m - ridge (row_m - prior mean))

with all designs taken before the step. A pass visits every entry once: strata in a new random
order, in each the blocks side by side, tiles of a block in a new random order. Blocks of a stratum
share no row, so the result depends on the seed and on the number of blocks (one per thread), never
on timing. All of them would write to a Tucker core: each block steps its own copy, and the stratum's
core is their average, weighted by entries.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import numpy as np

from sfumato.checks import check_positive
from sfumato.kernels.numba.entrywise import bias_sum, evaluate, locate, row_width, step_core, workspace
from sfumato.kernels.numba.parallel import kernel, run, scratch
from sfumato.kernels.numba.simd import add, element, line_length, load, multiply, prefetch, spread, store
from sfumato.models.multilinear import Multilinear
from sfumato.models.shape import Shape
from sfumato.records import record
from sfumato.sites.memory import Grid, Site, make_grid
from sfumato.solvers.gradient.passes import PassQuery, PassResult, PassSolver, Penalty
from sfumato.types import Array

_AHEAD = 8  # entries between asking for a row and using it
_SMALL = 200_000  # entries below which a second thread costs more than it brings


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


def visit_reference(
    model: Multilinear,
    coordinates: Array,
    values: Array,
    step: float,
    penalty: Penalty,
    fit_biases: bool,
) -> float:
    """Readable twin of the kernel: one step per entry, in the given order, in place."""
    squares = 0.0
    for cell, x in zip(coordinates.T, values, strict=True):
        entry = cell[:, None]
        designs = [model.design(m, entry)[0] for m in range(model.order)]
        kronecker = model.kronecker(entry)[0]
        error = float(x) - float(model.predict_reference(entry)[0])
        squares += error**2
        for m, level in enumerate(cell):
            row, at = model.factors[m][level], model.offsets[m] + level
            pull = penalty.by_row[at] if penalty.by_row.size else penalty.uniform[m]
            row += step * (error * designs[m] - pull * (row - penalty.means[m, : len(row)]))
            if fit_biases:
                bias = model.mode_biases[m]
                bias[level] += step * (error - penalty.bias * bias[level])
        model.free_core[:] += step * (error * kronecker - penalty.core * model.free_core)
    return squares


def run_pass(query: PassQuery, grid: Grid, penalty: Penalty, fit_biases: bool, threads: int) -> float:
    """One pass over a grid, writing to the model; returns the sum of squared errors met."""
    model, number = query.model, query.model.dtype.type
    generator = np.random.default_rng(query.seed)
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
                    number(query.mean),
                    number(1 / query.spread),
                    grid.coordinates,
                    grid.values,
                    edges[tiles],
                    edges[tiles + 1],
                    number(query.step),
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


@record
@dataclass(frozen=True)
class SGD(PassSolver):
    """Settings of stochastic gradient descent.

    Parameters
    ----------
    passes : passes over the data.
    step, decay : the step of pass t is ``step * decay^t``.
    ridge_per_entry : penalty of a row at each of its entries; number or mapping from mode names.
    ridge : penalty of a row as a whole, as in ALS; number or mapping.
    bias_ridge, core_ridge : penalties of biases and of a Tucker core, per entry.
    prior_mean : as in ALS.
    init_scale : size of the random start.
    tolerance : as in ALS; for non-private use only.
    """

    decay: float = 0.95
    name: ClassVar[str] = "sgd"

    def check(self, shape: Shape) -> None:
        super().check(shape)
        check_positive(decay=self.decay)

    def step_at(self, done: int) -> float:
        return self.step * self.decay**done

    def make_pass(self, query: PassQuery, site: Site) -> PassResult:
        tensor = site.tensor
        blocks = site.threads if tensor.n_entries >= _SMALL else 1
        row_bytes = query.model.rows.strides[0]
        # The shuffle that every pass starts from depends on public numbers only.
        grid = site.kept(
            ("grid", blocks, row_bytes), lambda: make_grid(tensor, blocks, row_bytes, seed=0)
        )
        penalty = self.penalty(query, site)
        squares = run_pass(query, grid, penalty, query.shape.fit_biases, site.threads)
        return PassResult(query.model, squares, tensor.n_entries)
