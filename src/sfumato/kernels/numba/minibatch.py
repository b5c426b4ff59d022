"""Steps of minibatch gradient descent with momentum; rows that no entry touches are made up later."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from sfumato.kernels.numba.compiler import inlined, kernel
from sfumato.kernels.numba.entrywise import (
    add_kronecker,
    bias_sum,
    dot,
    evaluate,
    locate,
    row_width,
    workspace,
)
from sfumato.kernels.numba.sgd import Penalty
from sfumato.kernels.numba.simd import add, aligned_zeros, line_length, load, multiply, spread, store
from sfumato.kernels.numba.threads import run
from sfumato.records import record
from sfumato.types import Array

if TYPE_CHECKING:
    from sfumato.models.multilinear import Multilinear
    from sfumato.sites.memory import Grid


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


def run_batches(
    model: Multilinear,
    motion: Motion,
    grid: Grid,
    mean: float,
    deviation: float,
    edges: tuple[Array, Array],
    expected: Array,
    step: float,
    momentum: float,
    penalty: Penalty,
    fit_biases: bool,
) -> float:
    """One step for each batch, writing to model and motion; returns the sum of squared errors met.

    ``edges``: first entries of the batches in a grid's order, and those past their last ones;
    ``expected``: entries of each row in a batch, at least one. The model explains
    ``(value - mean) / deviation``.
    """
    number, squares = model.dtype.type, np.zeros(1)
    task = partial(
        _batches,
        model.arrays,
        model.free_core,
        motion,
        number(mean),
        number(1 / deviation),
        grid.coordinates,
        grid.values,
        *edges,
        expected.astype(model.dtype),
        number(step),
        number(momentum),
        *penalty[:3],
        penalty.bias,
        penalty.core,
        fit_biases,
        squares,
    )
    run([task], 1)
    return float(squares[0])
