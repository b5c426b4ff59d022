"""Minibatch gradient descent with momentum.

Every entry of a batch is seen at the same parameters. With g the sum over the batch's entries of
``e d_m - ridge (row_m - prior mean)`` a row moves by

    velocity = momentum velocity + g / max(1, expected entries of the row in a batch)
    row     += step velocity

so that a row with many entries takes their average and a row with few takes plain steps. The error e
is divided by ``1 + step / (1 - momentum) sum_m |d_m|^2``, the factor by which a full step along all
designs would overshoot; this keeps a large step or start from diverging.

Rows that a batch does not touch only coast. Their moves are made up in closed form when they are
next read, and at the end of a pass, so that a step costs as much as its batch, not as the model.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, NamedTuple

import numpy as np

from sfumato.checks import check_count, check_share, given
from sfumato.kernels.numba.entrywise import (
    add_kronecker,
    bias_sum,
    dot,
    evaluate,
    locate,
    row_width,
    workspace,
)
from sfumato.kernels.numba.parallel import inlined, kernel, run
from sfumato.kernels.numba.simd import add, aligned_zeros, line_length, load, multiply, spread, store
from sfumato.models.multilinear import Multilinear
from sfumato.models.shape import Shape
from sfumato.records import record
from sfumato.sites.memory import Site, make_grid
from sfumato.solvers.gradient.passes import PassQuery, PassResult, PassSolver, Penalty
from sfumato.types import Array


@record
class Motion(NamedTuple):
    """Velocities, and the gradients of the batch in hand, laid out like the parameters."""

    rows: Array
    biases: Array
    core: Array
    row_gradient: Array
    bias_gradient: Array
    core_gradient: Array
    last: Array  # step at which a row was last brought up to date
    batch: Array  # batch in which a row was last touched


def motion_at_rest(model: Multilinear) -> Motion:
    rows, dtype = model.rows.shape, model.dtype
    n, core = rows[0], model.free_core.shape
    return Motion(
        aligned_zeros(rows, dtype),
        np.zeros(n, dtype),
        np.zeros(core, dtype),
        aligned_zeros(rows, dtype),
        np.zeros(n, dtype),
        np.zeros(core, dtype),
        np.zeros(n, np.int64),
        np.full(n, -1, np.int64),
    )


@inlined
def _coast(
    rows: Array,
    biases: Array,
    speed: Array,
    bias_speed: Array,
    row: int,
    steps: int,
    step: Any,
    momentum: Any,
) -> None:
    """Moves of a row over steps in which no entry touched it."""
    width = rows.shape[1]
    left = momentum ** rows.dtype.type(steps)
    way = step * momentum * (1 - left) / (1 - momentum)
    for r in range(width):
        rows[row, r] += way * speed[row, r]
        speed[row, r] *= left
    biases[row] += way * bias_speed[row]
    bias_speed[row] *= left


@kernel
def _batches(
    p: Any,
    core: Array,
    motion: Any,
    mean: Any,
    unit: Any,
    coordinates: Array,
    values: Array,
    begins: Array,
    ends: Array,
    expected: Array,
    step: Any,
    momentum: Any,
    uniform: Array,
    by_row: Array,
    means: Array,
    bias_ridge: Any,
    core_ridge: Any,
    fit_biases: bool,
    out: Array,
) -> None:
    order, width, line = len(p.offsets), row_width(p), line_length(p.rows)
    number = p.rows.dtype.type
    rows, biases = p.rows, p.biases
    speed, bias_speed, core_speed = motion.rows, motion.biases, motion.core
    gradient, bias_gradient = motion.row_gradient, motion.bias_gradient
    core_gradient, last, batch_of = motion.core_gradient, motion.last, motion.batch
    index, work = np.empty(order, np.int64), workspace(p)
    touched = np.empty((ends - begins).max() * order, np.int64)
    reach = step / (1 - momentum)
    squares = 0.0
    for now in range(begins.shape[0]):
        begin, end = begins[now], ends[now]
        count = 0
        for entry in range(begin, end):
            locate(p, coordinates, entry, index)
            for m in range(order):
                row = index[m]
                if batch_of[row] != now:
                    batch_of[row] = now
                    if now > last[row]:
                        _coast(rows, biases, speed, bias_speed, row, now - last[row], step, momentum)
                    touched[count] = row
                    count += 1
        for entry in range(begin, end):
            locate(p, coordinates, entry, index)
            error = (values[entry] - mean) * unit - evaluate(p, index, work)
            if fit_biases:
                error -= bias_sum(p, index)
            squares += error * error
            length = number(order) if fit_biases else number(0)
            for m in range(order):
                length += dot(work, m * width, work, m * width, width)
            error /= 1 + reach * length
            along = spread(rows, error)
            for m in range(order):
                row, at = index[m], index[m] * width
                pull = by_row[row] if by_row.shape[0] > 0 else uniform[m]
                back, home = spread(rows, -pull), spread(rows, pull)
                for b in range(0, width, line):
                    change = multiply(along, load(work, m * width + b))
                    change = add(change, multiply(back, load(rows, at + b)))
                    change = add(change, multiply(home, load(means, m * width + b)))
                    store(gradient, at + b, add(load(gradient, at + b), change))
                if fit_biases:
                    bias_gradient[row] += error - bias_ridge * biases[row]
            add_kronecker(p, work, error, core_gradient)
        for k in range(count):
            row = touched[k]
            share = 1 / expected[row]
            for r in range(width):
                speed[row, r] = momentum * speed[row, r] + share * gradient[row, r]
                rows[row, r] += step * speed[row, r]
                gradient[row, r] = 0
            bias_speed[row] = momentum * bias_speed[row] + share * bias_gradient[row]
            biases[row] += step * bias_speed[row]
            bias_gradient[row] = 0
            last[row] = now + 1
        for q in range(core.shape[0]):
            mean_gradient = core_gradient[q] / (end - begin) - core_ridge * core[q]
            core_speed[q] = momentum * core_speed[q] + mean_gradient
            core[q] += step * core_speed[q]
            core_gradient[q] = 0
    for row in range(rows.shape[0]):
        steps = begins.shape[0] - last[row]
        if steps > 0:
            _coast(rows, biases, speed, bias_speed, row, steps, step, momentum)
        last[row], batch_of[row] = 0, -1
    out[0] = squares


def batches_reference(
    model: Multilinear,
    velocity: tuple[Array, Array, Array],
    coordinates: Array,
    values: Array,
    begins: Array,
    ends: Array,
    expected: Array,
    step: float,
    momentum: float,
    penalty: Penalty,
    fit_biases: bool,
) -> None:
    """Readable twin of the kernel: dense velocities, every row moved at every step."""
    rows_speed, bias_speed, core_speed = velocity
    for begin, end in zip(begins, ends, strict=True):
        cells, x = coordinates[:, begin:end], values[begin:end]
        designs = [model.design(m, cells) for m in range(model.order)]
        length = sum((d**2).sum(axis=1) for d in designs) + model.order * fit_biases
        error = (x - model.predict_reference(cells)) / (1 + step / (1 - momentum) * length)
        gradient, bias_gradient = np.zeros_like(model.rows), np.zeros_like(model.biases)
        for m, levels in enumerate(cells):
            at = levels + model.offsets[m]
            pull = penalty.by_row[at] if penalty.by_row.size else np.full(len(at), penalty.uniform[m])
            change = error[:, None] * designs[m]
            change -= pull[:, None] * (model.factors[m][levels] - penalty.means[m, : model.ranks[m]])
            np.add.at(gradient[:, : model.ranks[m]], at, change)
            if fit_biases:
                np.add.at(bias_gradient, at, error - penalty.bias * model.biases[at])
        core_gradient = error @ model.kronecker(cells) / len(x) - penalty.core * model.free_core
        rows_speed *= momentum
        rows_speed += gradient / expected[:, None]
        bias_speed *= momentum
        bias_speed += bias_gradient / expected
        core_speed *= momentum
        core_speed += core_gradient
        model.rows[:] += step * rows_speed
        model.biases[:] += step * bias_speed
        model.free_core[:] += step * core_speed


@record
@dataclass(frozen=True)
class MinibatchSGD(PassSolver):
    """Settings of minibatch gradient descent.

    Parameters
    ----------
    passes : passes over the data.
    step : first step; it falls to zero along half a cosine over the passes.
    batch : entries in a batch; by default a two-hundredth of the data, at least 16, at most 4096.
    momentum : share of a row's velocity that is left after a step.
    ridge_per_entry, ridge, bias_ridge, core_ridge, prior_mean, init_scale, tolerance : as in SGD.
    """

    passes: int = 60
    step: float = 0.02
    ridge_per_entry: Any = 0.06
    batch: int | None = None
    momentum: float = 0.9
    name: ClassVar[str] = "minibatch"

    def check(self, shape: Shape) -> None:
        super().check(shape)
        check_share(True, momentum=self.momentum)
        check_count(**given(batch=self.batch))

    def step_at(self, done: int) -> float:
        return self.step * 0.5 * (1 + float(np.cos(np.pi * done / self.passes)))

    def make_pass(self, query: PassQuery, site: Site) -> PassResult:
        model, n = query.model, site.tensor.n_entries
        size = min(n, self.batch or min(4096, max(16, n // 200)))
        grid = site.kept(("shuffled",), lambda: make_grid(site.tensor, 1, 0, seed=0))
        penalty = self.penalty(query, site)
        motion = Motion(*map(np.copy, query.memory)) if query.memory else motion_at_rest(model)
        number = model.dtype.type
        squares = np.zeros(1)
        task = partial(
            _batches,
            model.arrays,
            model.free_core,
            motion,
            number(query.mean),
            number(1 / query.spread),
            grid.coordinates,
            grid.values,
            *batch_edges(n, size, query.seed),
            np.maximum(1, site.counts * (size / n)).astype(model.dtype),
            number(query.step),
            number(self.momentum),
            *penalty[:3],
            penalty.bias,
            penalty.core,
            query.shape.fit_biases,
            squares,
        )
        run([task], 1)
        return PassResult(model, float(squares[0]), n, motion)


def batch_edges(entries: int, size: int, seed: int) -> tuple[Array, Array]:
    """First entries of a pass's batches, in random order, and the entries past their last ones.

    Where the batches are cut is random as well; the first and the last may be short.
    """
    generator = np.random.default_rng(seed)
    cuts = np.arange(int(generator.integers(0, size)), entries, size)
    edges = np.unique(np.concatenate([[0], cuts, [entries]]))
    order = generator.permutation(edges.shape[0] - 1)
    return edges[order], edges[order + 1]
