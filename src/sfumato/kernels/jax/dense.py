"""Sums of clipped gradients of dense networks, on a grid: whole numbers from the example to the release.

A layer's gradient for one example is ``a d^T``: what goes into the layer, with a one for the intercept,
times the error that comes back. Its norm is ``|a| |d|`` and the norm of all layers' together the root of
the sum of squares, so that no example's gradient is ever formed (ghost norms: I. Goodfellow, "Efficient
per-example gradient computations", 2015; X. Li et al., "Large language models can be strong
differentially private learners", 2022).

What goes into a layer is rounded to whole steps of 2^-14, and errors, once they are scaled so that all
layers together have norm ``clip`` at most, are cut towards zero to steps of ``clip`` 2^-22. Products of
the two are whole numbers below 2^36 and sums of up to 2^16 of them are exact in double precision, in
whatever order they are added. The twin that is easy to read: ``kernels/reference/dense.py``.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import sqrt
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp

from sfumato.kernels.grid import ERROR_STEP, INPUT_STEP, MOST_INPUT

Activation = Literal["relu", "tanh"]
Loss = Literal["classes", "numbers"]
Factors = Sequence[Any] | None  # of dropout, for what goes into each layer
Layers = Sequence[Any]  # pairs of weights and intercepts, in single precision


class Given(NamedTuple):
    """Some examples: inputs in whole steps, the squares of their lengths plus one, targets.

    Rows that are not ``present`` (zero) fill a chunk up.
    """

    inputs: Any
    squares: Any
    targets: Any
    present: Any


def _forward(
    layers: Layers, inputs: jax.Array, factors: Factors, activation: Activation
) -> list[jax.Array]:
    """What goes into every layer, rounded to whole steps, and what comes out of the last."""
    into = [inputs.astype(jnp.float32) * INPUT_STEP]
    for number, layer in enumerate(layers):
        if number > 0:
            bent = jnp.maximum(into[-1], 0) if activation == "relu" else jnp.tanh(into[-1])
            into[-1] = _rounded(bent / sqrt(bent.shape[1]))
        if factors is not None:
            into[-1] = _rounded(into[-1] * factors[number])
        # Not fused: products of matrices are fast where they take these as they are.
        into[-1] = jax.lax.optimization_barrier(into[-1])
        into.append(into[-1] @ layer[0] + layer[1])
    return into


def _rounded(values: jax.Array) -> jax.Array:
    return jnp.clip(jnp.rint(values / INPUT_STEP), -MOST_INPUT, MOST_INPUT) * INPUT_STEP


def _errors(
    layers: Layers,
    into: list[jax.Array],
    targets: jax.Array,
    factors: Factors,
    activation: Activation,
    loss: Loss,
) -> list[jax.Array]:
    """Derivatives of an example's loss by what comes out of each layer, before it is bent."""
    last = into[-1]
    if loss == "classes":
        error = jax.nn.softmax(last) - jax.nn.one_hot(targets, last.shape[1], dtype=jnp.float32)
    else:
        error = last - targets
    errors = [error]
    for number in range(len(layers) - 1, 0, -1):
        back, bent = errors[-1] @ layers[number][0].T, into[number]
        if factors is not None:
            back, bent = back * factors[number], bent / factors[number]
        bent = bent * sqrt(bent.shape[1])
        slope = (bent > 0) if activation == "relu" else 1 - bent**2
        errors.append(back * slope / sqrt(bent.shape[1]))
    return errors[::-1]


def _norms(into: list[jax.Array], errors: list[jax.Array], squares: jax.Array | None) -> jax.Array:
    """Norms of all layers' gradients together; ``squares`` are the inputs' with the intercept's one."""
    whole: Any = 0.0
    numbers = 0
    for number, (a, d) in enumerate(zip(into, errors, strict=False)):
        known = squares if number == 0 else None
        length = (a * a).sum(1) + 1 if known is None else known
        whole, numbers = whole + length * (d * d).sum(1), numbers + a.shape[1] + d.shape[1] + 16
    # Sums of so many squares in single precision may be too small by as many roundings.
    return jnp.sqrt(whole) * (1 + numbers * 2.0**-23)


@partial(jax.jit, static_argnames=("activation", "loss"))
def norms(
    layers: Layers, chunk: Given, factors: Factors, activation: Activation, loss: Loss
) -> jax.Array:
    """Norm of every example's gradient, or a hair more."""
    into = _forward(layers, chunk.inputs, factors, activation)
    errors = _errors(layers, into, chunk.targets, factors, activation, loss)
    return _norms(into, errors, chunk.squares if factors is None else None)


@partial(jax.jit, static_argnames=("activation", "loss"))
def clipped_sums(
    layers: Layers,
    chunk: Given,
    factors: Factors,
    clip: float,
    activation: Activation,
    loss: Loss,
    lengths: jax.Array | None = None,
) -> list[jax.Array]:
    """Sums over examples of their gradients, in steps of 2^-36 of the clip: weights, then intercepts.

    Rows that are not ``present`` add nothing. ``lengths`` are what gradients are divided by, where an
    example does not count by itself: at least its norm, and at least the clip.
    """
    into = _forward(layers, chunk.inputs, factors, activation)
    errors = _errors(layers, into, chunk.targets, factors, activation, loss)
    if lengths is None:
        known = chunk.squares if factors is None else None
        lengths = jnp.maximum(_norms(into, errors, known), clip)
    scale = chunk.present / lengths / ERROR_STEP
    sums = []
    for a, d in zip(into, errors, strict=False):
        steps = d * scale[:, None]
        whole = jnp.trunc(jnp.where(jnp.isfinite(steps), steps, 0.0)).astype(jnp.float64)
        into_steps, whole = jax.lax.optimization_barrier((a.astype(jnp.float64) / INPUT_STEP, whole))
        sums.append((into_steps.T @ whole).astype(jnp.int64))
        sums.append((whole.sum(0) / INPUT_STEP).astype(jnp.int64))
    return sums
