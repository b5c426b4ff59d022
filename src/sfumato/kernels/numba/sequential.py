"""Steps of paper W's descent: an entry's modes one after the other, each from where the last led."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from sfumato.kernels.numba.compiler import kernel
from sfumato.kernels.numba.entrywise import bias_sum, dot, locate, row_width
from sfumato.kernels.numba.in_turn import (
    begin_turn,
    put_core_back,
    row_moved,
    turn_core,
    turn_design,
    turn_memory,
)
from sfumato.kernels.numba.sgd import Penalty
from sfumato.kernels.numba.threads import run
from sfumato.kernels.numba.vector_noise import add_vector_noise, clip_norm
from sfumato.records import record
from sfumato.types import Array

if TYPE_CHECKING:
    from sfumato.models.multilinear import Multilinear


@record
class Perturbation(NamedTuple):
    """Clip the gradient of one mode's row to ``clip``, then add vector noise of the given scale."""

    mode: int
    rank: int
    clip: float
    scale: float


UNPERTURBED = Perturbation(-1, 0, np.inf, 0.0)


@kernel
def _visit_in_turn(
    p: Any,
    core: Array,
    mean: Any,
    coordinates: Array,
    values: Array,
    sequence: Array,
    step: Any,
    penalty: Any,
    fit_biases: bool,
    perturbation: Any,
    stream: Any,
    out: Array,
) -> None:
    order, width = len(p.offsets), row_width(p)
    rows, biases, uniform, means = p.rows, p.biases, penalty.uniform, penalty.means
    index, (turned, before, after, product) = np.empty(order, np.int64), turn_memory(p)
    d = np.zeros(order * width, rows.dtype)  # by mode: with unequal ranks the padding differs
    gradient, direction = np.zeros(width, rows.dtype), np.zeros(width)
    squares, largest = 0.0, 0.0
    for entry in sequence:
        locate(p, coordinates, entry, index)
        begin_turn(p, index, turned, before, after)
        for m in range(order):
            turn_design(p, index, m, turned, before, after, product, d, m * width)
            value = mean + bias_sum(p, index) + dot(rows, index[m] * width, d, m * width, width)
            error = values[entry] - value
            if m == 0:
                squares += error * error
            for r in range(width):
                away = rows[index[m], r] - means[m, r]
                gradient[r] = 2 * (uniform[m] * away - error * d[m * width + r])
            if m == perturbation.mode:
                largest = max(largest, clip_norm(gradient, perturbation.rank, perturbation.clip))
                if perturbation.scale > 0:
                    add_vector_noise(gradient, perturbation.rank, perturbation.scale, direction, stream)
            for r in range(width):
                rows[index[m], r] -= step * gradient[r]
            if fit_biases:
                biases[index[m]] += 2 * step * (error - penalty.bias * biases[index[m]])
            row_moved(p, index, m, before, product)
        if core.shape[0] > 0:
            last = order - 1
            value = mean + bias_sum(p, index) + dot(rows, index[last] * width, d, last * width, width)
            scale = 2 * step * (values[entry] - value)
            turn_core(p, index, turned, product, 1 - 2 * step * penalty.core, scale)
    put_core_back(p, turned)
    out[0], out[1] = squares, largest


def run_in_turn(
    model: Multilinear,
    coordinates: Array,
    values: Array,
    sequence: Array,
    mean: float,
    step: float,
    penalty: Penalty,
    fit_biases: bool,
    perturbation: Perturbation,
    stream: np.random.Generator,
) -> tuple[float, float]:
    """One step for each entry of a sequence, writing to the model.

    Returns the sum of squared errors met, and the largest norm of the clipped gradients of the
    perturbation's mode.
    """
    number, met = model.dtype.type, np.zeros(2)
    task = partial(
        _visit_in_turn,
        model.arrays,
        model.free_core,
        number(mean),
        coordinates,
        values,
        sequence,
        number(step),
        penalty,
        fit_biases,
        perturbation,
        stream,
        met,
    )
    run([task], 1)
    return float(met[0]), float(met[1])
