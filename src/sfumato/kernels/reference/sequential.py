"""Readable twin of ``kernels/numba/sequential.py``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from sfumato.kernels.numba.sequential import UNPERTURBED, Perturbation
from sfumato.kernels.numba.sgd import Penalty
from sfumato.kernels.reference.vector_noise import clipped_reference, vector_noise_reference
from sfumato.types import Array

if TYPE_CHECKING:
    from sfumato.models.multilinear import Multilinear


def visit_in_turn_reference(
    model: Multilinear,
    coordinates: Array,
    values: Array,
    step: float,
    penalty: Penalty,
    fit_biases: bool,
    perturbation: Perturbation = UNPERTURBED,
    stream: np.random.Generator | None = None,
) -> None:
    """Readable twin of the kernel, in the given order, in place."""
    for cell, x in zip(coordinates.T, values, strict=True):
        entry = cell[:, None]
        for m, level in enumerate(cell):
            error = float(x) - float(model.predict_reference(entry)[0])
            row = model.factors[m][level]
            gradient = -2 * error * model.design(m, entry)[0]
            gradient += 2 * penalty.uniform[m] * (row - penalty.means[m, : len(row)])
            if m == perturbation.mode:
                gradient = clipped_reference(gradient, perturbation.clip)
                if stream is not None:
                    gradient += vector_noise_reference(len(row), perturbation.scale, stream)
            row -= step * gradient
            if fit_biases:
                bias = model.mode_biases[m]
                bias[level] += 2 * step * (error - penalty.bias * bias[level])
        error = float(x) - float(model.predict_reference(entry)[0])
        core, kronecker = model.free_core, model.kronecker(entry)[0]
        core += 2 * step * (error * kronecker - penalty.core * core)
