"""Sums of clipped gradients of dense networks, on a grid: whole numbers from the example to the release.

A layer's gradient for one example is ``a d^T``: what goes into the layer, with a one for the intercept,
times the error that comes back. Its norm is ``|a| |d|`` and the norm of all layers' together the root of
the sum of squares, so that no example's gradient is ever formed (ghost norms: I. Goodfellow, "Efficient
per-example gradient computations", 2015; X. Li et al., "Large language models can be strong
differentially private learners", 2022).

What goes into a layer is rounded to whole steps of 2^-14, and errors, once they are scaled so that all
layers together have norm ``clip`` at most, are cut towards zero to steps of ``clip`` 2^-22. The bound
that privacy rests on is then taken from these whole numbers themselves: what is longer, by whatever
overflow or rounding of single precision, adds nothing. Products of the two are whole numbers below 2^36
and sums of up to 2^16 of them are exact in double precision, in whatever order they are added.

One program makes the numbers and another checks and multiplies them: within one, a compiler may make a
number twice, once for the check and once for the sum, and round it in two ways. The twin that is easy to
read: ``kernels/reference/dense.py``.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import sqrt
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from sfumato.kernels.grid import BELOW_ONE, ERROR_STEP, INPUT_STEP, MOST_INPUT

Activation = Literal["relu", "tanh"]
Loss = Literal["classes", "numbers"]
Factors = Sequence[Any] | None  # of dropout, for what goes into each layer
Layers = Sequence[Any]  # pairs of weights and intercepts, in single precision
ONE_SIZE = True  # of chunks: programs are compiled for it


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
) -> tuple[list[jax.Array], list[jax.Array]]:
    """What goes into every layer, rounded to whole steps, and what comes out of the last.

    And the same without factors of dropout, which says how steep a unit is.
    """
    into = [inputs.astype(jnp.float32) * INPUT_STEP]
    bent = []
    for number, layer in enumerate(layers):
        if number > 0:
            out = jnp.maximum(into[-1], 0) if activation == "relu" else jnp.tanh(into[-1])
            into[-1] = _rounded(out / sqrt(out.shape[1]))
        bent.append(into[-1])
        if factors is not None:
            into[-1] = _rounded(into[-1] * factors[number])
        # A wish that this is not fused: products of matrices are fast where they take it as it is.
        into[-1] = jax.lax.optimization_barrier(into[-1])
        if factors is None:
            bent[-1] = into[-1]
        into.append(into[-1] @ layer[0] + layer[1])
    return into, bent


def _rounded(values: jax.Array) -> jax.Array:
    """Whole steps, finite whatever comes: NaN in one example's row would be in all sums."""
    steps = jnp.where(jnp.isnan(values), 0.0, jnp.rint(values / INPUT_STEP))
    return jnp.clip(steps, -MOST_INPUT, MOST_INPUT) * INPUT_STEP


def _errors(
    layers: Layers,
    passed: tuple[list[jax.Array], list[jax.Array]],
    targets: jax.Array,
    factors: Factors,
    activation: Activation,
    loss: Loss,
) -> list[jax.Array]:
    """Derivatives of an example's loss by what comes out of each layer, before it is bent."""
    into, bent = passed
    last = into[-1]
    if loss == "classes":
        error = jax.nn.softmax(last) - jax.nn.one_hot(targets, last.shape[1], dtype=jnp.float32)
    else:
        error = last - targets
    errors = [error]
    for number in range(len(layers) - 1, 0, -1):
        back, root = errors[-1] @ layers[number][0].T, sqrt(bent[number].shape[1])
        if factors is not None:
            back = back * factors[number]
        slope = (bent[number] > 0) if activation == "relu" else 1 - (bent[number] * root) ** 2
        errors.append(back * slope / root)
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
    into, bent = _forward(layers, chunk.inputs, factors, activation)
    errors = _errors(layers, (into, bent), chunk.targets, factors, activation, loss)
    return _norms(into, errors, chunk.squares if factors is None else None)


def add_clipped_sums(
    totals: Sequence[Any],
    layers: Layers,
    chunk: Given,
    factors: Factors,
    clip: float,
    activation: Activation,
    loss: Loss,
    lengths: jax.Array | None = None,
    shares: jax.Array | None = None,
) -> None:
    """Add what examples' gradients come to, in steps of 2^-36 of the clip: weights, then intercepts.

    ``totals`` are the host's. Rows that are not ``present`` add nothing. Where an example does not count
    by itself, ``lengths`` are what gradients are divided by, and ``shares`` how long what is left of
    each may be, in clips.
    """
    numbers = _numbers(layers, chunk, factors, clip, activation, loss, lengths)
    sums = _fitting_sums(numbers, chunk.squares if factors is None else None, shares)
    for total, part in zip(totals, sums, strict=True):
        np.add(total, part, out=total)


@partial(jax.jit, static_argnames=("activation", "loss"))
def _numbers(
    layers: Layers,
    chunk: Given,
    factors: Factors,
    clip: float,
    activation: Activation,
    loss: Loss,
    lengths: jax.Array | None,
) -> list[tuple[jax.Array, jax.Array]]:
    """For each layer what goes into it, and scaled errors in whole steps: single precision has both."""
    into, bent = _forward(layers, chunk.inputs, factors, activation)
    errors = _errors(layers, (into, bent), chunk.targets, factors, activation, loss)
    if lengths is None:
        known = chunk.squares if factors is None else None
        lengths = jnp.maximum(_norms(into, errors, known), clip)
    scale = (chunk.present / lengths / ERROR_STEP)[:, None]
    return [(a, _whole(d * scale)) for a, d in zip(into, errors, strict=False)]


def _whole(errors: jax.Array) -> jax.Array:
    return jnp.trunc(jnp.where(jnp.isfinite(errors), errors, 0.0))


@jax.jit
def _fitting_sums(
    numbers: list[tuple[jax.Array, jax.Array]], known: jax.Array | None, shares: jax.Array | None
) -> list[jax.Array]:
    """The sums of these very numbers, of examples that are no longer than they may be."""
    steps = [(a.astype(jnp.float64) / INPUT_STEP, d.astype(jnp.float64)) for a, d in numbers]
    most = 1.0 if shares is None else shares * shares
    fits = (_squares(steps, known) <= BELOW_ONE * most)[:, None]  # not where anything is NaN
    sums = []
    for a, d in steps:
        whole = jnp.where(fits, d, 0.0)
        sums.append((a.T @ whole).astype(jnp.int64))
        sums.append((whole.sum(0) / INPUT_STEP).astype(jnp.int64))
    return sums


def _squares(steps: list[Any], squares: jax.Array | None) -> jax.Array:
    """Squared lengths of what examples add, in clips: in double precision, of whole numbers."""
    total: Any = 0.0
    for number, (a, d) in enumerate(steps):
        known = squares if number == 0 else None
        length = (a * a).sum(1) * INPUT_STEP**2 + 1 if known is None else known.astype(jnp.float64)
        total = total + length * (d * d).sum(1) * ERROR_STEP**2
    return jnp.asarray(total)
