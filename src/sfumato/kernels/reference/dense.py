"""Readable twin of ``kernels/jax/dense.py``: every example's gradient formed, by itself.

Outputs and errors are computed in double precision, lengths and scales are rounded to single precision
as the kernel's are: where single precision makes no error, both give the same whole numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt
from typing import TYPE_CHECKING

import numpy as np

from sfumato.kernels.grid import BELOW_ONE, ERROR_STEP, INPUT_STEP, MOST_INPUT
from sfumato.types import Array

if TYPE_CHECKING:
    from sfumato.kernels.jax.dense import Given

Layers = Sequence[tuple[Array, Array]]  # weights and intercepts
Factors = Sequence[Array] | None  # of dropout
Pairs = list[tuple[Array, Array]]  # what goes into each layer, with a one, and the error that comes back


def _rounded(values: Array) -> Array:
    steps = np.where(np.isnan(values), 0.0, np.rint(values / INPUT_STEP))
    return np.asarray(np.clip(steps, -MOST_INPUT, MOST_INPUT) * INPUT_STEP)


def _pairs(
    layers: Layers,
    inputs: Array,
    target: Array,
    factors: Factors,
    activation: str,
    loss: str,
) -> Pairs:
    """Of one example."""
    into, slopes, values = [], [], inputs * INPUT_STEP
    for number, (weights, intercepts) in enumerate(layers):
        if factors is not None:
            values = _rounded(values * factors[number])
        into.append(np.append(values, 1.0))
        values = into[-1] @ np.vstack([weights, intercepts]).astype(np.float64)
        if number < len(layers) - 1:
            bent = np.maximum(values, 0) if activation == "relu" else np.tanh(values)
            values = _rounded(bent / sqrt(bent.size))
            own = values * sqrt(bent.size)  # the slope is taken where the rounded number says
            slopes.append((own > 0) if activation == "relu" else 1 - own**2)
    if loss == "classes":
        chances = np.exp(values - values.max())
        errors = [chances / chances.sum() - np.eye(values.size)[target]]
    else:
        errors = [values - target]
    for number in range(len(layers) - 1, 0, -1):
        back = layers[number][0].astype(np.float64) @ errors[0]
        if factors is not None:
            back = back * factors[number]
        errors.insert(0, back * slopes[number - 1] / sqrt(back.size))
    return list(zip(into, errors, strict=True))


def _norm(pairs: Pairs) -> np.float32:
    """Of all layers' gradients together, or a hair more."""
    numbers = sum(a.size - 1 + d.size + 16 for a, d in pairs)
    gradient = np.concatenate([np.outer(a, d).ravel() for a, d in pairs])
    single = np.float32(np.sqrt(np.float32(gradient @ gradient)))
    return np.float32(single * np.float32(1 + numbers * 2.0**-23))


def _each(layers: Layers, chunk: Given, factors: Factors, activation: str, loss: str) -> list[Pairs]:
    return [
        _pairs(
            layers,
            chunk.inputs[n].astype(np.float64),
            chunk.targets[n],
            None if factors is None else [own[n].astype(np.float64) for own in factors],
            activation,
            loss,
        )
        for n in range(len(chunk.inputs))
    ]


def norms_reference(layers: Layers, chunk: Given, factors: Factors, activation: str, loss: str) -> Array:
    """Twin of :func:`norms`."""
    return np.array([_norm(pairs) for pairs in _each(layers, chunk, factors, activation, loss)])


def clipped_sums_reference(
    layers: Layers,
    chunk: Given,
    factors: Factors,
    clip: float,
    activation: str,
    loss: str,
    lengths: Array | None = None,
    shares: Array | None = None,
) -> list[Array]:
    """What :func:`add_clipped_sums` adds."""
    sums = [np.zeros(part.shape, np.int64) for layer in layers for part in layer]
    for n, pairs in enumerate(_each(layers, chunk, factors, activation, loss)):
        length = max(_norm(pairs), np.float32(clip)) if lengths is None else np.float32(lengths[n])
        scale = np.float32(chunk.present[n]) / length / np.float32(ERROR_STEP)
        gradient = [_whole(a, d, scale) for a, d in pairs]
        most = 1.0 if shares is None else shares[n]
        square = sum(float((part.astype(np.float64) ** 2).sum()) for part in gradient)
        if square * (INPUT_STEP * ERROR_STEP) ** 2 <= BELOW_ONE * most**2:
            for number, part in enumerate(gradient):
                sums[2 * number] += part[:-1]
                sums[2 * number + 1] += part[-1]
    return sums


def _whole(a: Array, d: Array, scale: np.float32) -> Array:
    """A layer's scaled gradient: whole steps of what goes in, and of the one, times those of errors."""
    steps = np.rint(a / INPUT_STEP).astype(np.int64)
    return np.outer(steps, np.trunc(d.astype(np.float32) * scale).astype(np.int64))
