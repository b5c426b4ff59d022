"""Readable twin of ``kernels/numba/private_passes.py``, step by step."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

import numpy as np

from sfumato.kernels.numba.private_passes import GRID, MOST_VALUE, Settings
from sfumato.kernels.reference.vector_noise import vector_noise_reference
from sfumato.types import Array

if TYPE_CHECKING:
    from sfumato.models.multilinear import Multilinear


def noisy_pass_reference(
    model: Multilinear,
    means: Array,
    coordinates: Array,
    targets: Array,
    settings: Settings,
    noise: Array,
    stream: np.random.Generator,
) -> None:
    """Readable twin of the kernel, in the given order, in place; it draws the same numbers."""
    for number, (cell, target) in enumerate(zip(coordinates.T, targets, strict=True)):
        here = 0 if settings.vector else int(noise[number])
        move = settings.step * noisy_gradient(model, cell, float(target), settings, here, stream)
        j = direction_at(model, cell, settings.fit_biases)
        move /= 1 + settings.step * (j @ j)
        pull, at = settings.step * settings.ridge, 0
        for m, level in enumerate(cell):
            row = model.factors[m][level]
            row += move[at : at + len(row)] + pull * (means[m] - row)
            at += len(row)
            if settings.fit_biases:
                bias = model.mode_biases[m]
                bias[level] += move[at] - pull * bias[level]
                at += 1
        core = model.free_core
        core += move[at:] - pull * core


def direction_at(model: Multilinear, cell: Array, fit_biases: bool) -> Array:
    """Gradient of the value at one cell by everything that it touches: J."""
    entry = cell[:, None]
    parts = []
    for m in range(model.order):
        parts += [model.design(m, entry)[0], np.ones(1 if fit_biases else 0)]
    return np.concatenate([*parts, model.kronecker(entry)[0]])


def noisy_gradient(
    model: Multilinear,
    cell: Array,
    target: float,
    settings: Settings,
    noise: int,
    stream: np.random.Generator,
) -> Array:
    """Steps 6 to 8: the clipped gradient at one entry, with its noise."""
    j = direction_at(model, cell, settings.fit_biases)
    length = float(np.linalg.norm(j))
    reach = settings.clip / length if length > 0 else inf
    value = float(model.with_mean(0.0).predict_reference(cell[:, None])[0])
    most = MOST_VALUE * settings.width
    error = float(np.clip(np.clip(target, -most, most) - np.clip(value, -most, most), -reach, reach))
    change = min(2 * reach, settings.width)
    if settings.vector:
        scale = change * length / settings.epsilon
        return error * j + vector_noise_reference(len(j), scale, stream)
    noisy: Array = change * GRID * (int(error / change / GRID) + noise) * j
    return noisy
