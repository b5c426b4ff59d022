"""Readable twin of ``kernels/numba/sgd.py``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sfumato.kernels.numba.sgd import Penalty
from sfumato.types import Array

if TYPE_CHECKING:
    from sfumato.models.multilinear import Multilinear


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
