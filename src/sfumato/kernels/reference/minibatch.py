"""Readable twin of ``kernels/numba/minibatch.py``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from sfumato.kernels.numba.sgd import Penalty
from sfumato.types import Array

if TYPE_CHECKING:
    from sfumato.models.multilinear import Multilinear


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
