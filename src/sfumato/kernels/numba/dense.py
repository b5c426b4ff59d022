"""Sums of clipped gradients of dense networks, on processors.

The functions of ``kernels/jax/dense.py``, which says what is computed and why it is bounded, under the
same names: the two differ by how single precision rounds products of matrices. On a processor JAX
multiplies matrices slowly, and copies inputs to single and double precision. Here products read whole
numbers of 16 bits as they are: those of wide layers by tiles (``products.py``), those of narrow ones,
whose inputs are most of what moves through memory, row by row.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import sqrt
from typing import Any, Literal, NamedTuple

import numpy as np
from scipy.special import softmax

from sfumato.kernels.grid import BELOW_ONE, ERROR_STEP, INPUT_STEP, MOST_INPUT
from sfumato.kernels.numba.compiler import inlined, kernel, ordered_kernel
from sfumato.kernels.numba.products import add_exact_sums, product
from sfumato.kernels.numba.threads import scratch, share
from sfumato.types import Array

Activation = Literal["relu", "tanh"]
Loss = Literal["classes", "numbers"]
Factors = Sequence[Array] | None  # of dropout, for what goes into each layer
Layers = Sequence[Any]  # pairs of weights and intercepts, in single precision

ONE_SIZE = False  # of chunks: rows of nothing would be multiplied for nothing
_NARROW = 16  # outputs of a layer that tiles are not worth laying out for
_COLUMNS = 512  # of inputs that are in double precision at once


class _Passed(NamedTuple):
    """What goes into every layer, in whole steps, the same without dropout, and what comes out.

    ``squares``: of the length of what goes into a layer, with the intercept's one.
    """

    into: list[Array]
    bent: list[Array]
    squares: list[Array]
    last: Array


def norms(layers: Layers, chunk: Any, factors: Factors, activation: Activation, loss: Loss) -> Array:
    """Norm of every example's gradient, or a hair more."""
    with np.errstate(all="ignore"):
        passed = _forward(layers, chunk, factors, activation)
        return _norms(passed, _errors(layers, passed, chunk.targets, factors, activation, loss))


def add_clipped_sums(
    totals: list[Array],
    layers: Layers,
    chunk: Any,
    factors: Factors,
    clip: float,
    activation: Activation,
    loss: Loss,
    lengths: Array | None = None,
    shares: Array | None = None,
) -> None:
    """Add what examples' gradients come to, in steps of 2^-36 of the clip: weights, then intercepts.

    Rows that are not ``present`` add nothing. Where an example does not count by itself, ``lengths`` are
    what gradients are divided by, and ``shares`` how long what is left of each may be, in clips.
    """
    with np.errstate(all="ignore"):  # what is not finite adds nothing
        passed = _forward(layers, chunk, factors, activation)
        errors = _errors(layers, passed, chunk.targets, factors, activation, loss)
        if lengths is None:
            lengths = np.maximum(_norms(passed, errors), np.float32(clip))
        scale = chunk.present / lengths / np.float32(ERROR_STEP)
        steps = [_in_steps(d, scale) for d in errors]
        most = 1.0 if shares is None else shares * shares
        # In clips, and in double precision of whole numbers; not where anything is NaN.
        fits = _together(passed, steps) * ERROR_STEP**2 <= BELOW_ONE * most
    for number, (a, whole) in enumerate(zip(passed.into, steps, strict=True)):
        whole[~fits] = 0.0
        _add_exact_product(a, whole, totals[2 * number])
        totals[2 * number + 1] += (_column_sums(whole) / INPUT_STEP).astype(np.int64)


# -- through the network and back ---------------------------------------------------------------------


def _forward(layers: Layers, chunk: Any, factors: Factors, activation: Activation) -> _Passed:
    last = chunk.inputs
    passed = _Passed([], [], [], last)
    for number, (weights, intercepts) in enumerate(layers):
        bent = whole = _bent(last, activation) if number else last
        if factors is not None:
            whole = _rounded(bent * factors[number])
        known = number == 0 and factors is None
        squares = chunk.squares.astype(np.float64) if known else _row_squares(whole) * INPUT_STEP**2 + 1
        passed.bent.append(bent)
        passed.into.append(whole)
        passed.squares.append(squares)
        last = _product(whole, weights)
        last *= np.float32(INPUT_STEP)
        last += intercepts
    return passed._replace(last=last)


def _bent(values: Array, activation: Activation) -> Array:
    """What comes out of hidden units, over the root of their number, in whole steps."""
    low = 0.0
    if activation == "tanh":
        values, low = np.tanh(values), -MOST_INPUT
    whole = np.empty_like(values)
    scale = np.float32(1 / sqrt(values.shape[1]) / INPUT_STEP)
    share(len(values), values.size, partial(_round_rows, values, scale, low, MOST_INPUT, whole))
    return whole


def _rounded(values: Array) -> Array:
    """Whole steps, finite whatever comes: NaN in one example's row would be in all sums."""
    whole = np.empty(values.shape, np.float32)
    work = partial(_round_rows, values, np.float32(1), -MOST_INPUT, MOST_INPUT, whole)
    share(len(values), values.size, work)
    return whole


def _errors(
    layers: Layers,
    passed: _Passed,
    targets: Array,
    factors: Factors,
    activation: Activation,
    loss: Loss,
) -> list[Array]:
    """Derivatives of an example's loss by what comes out of each layer, before it is bent."""
    last = passed.last
    if loss == "classes":
        error = softmax(last, axis=1) - (targets[:, None] == np.arange(last.shape[1]))
    else:
        error = last - targets
    errors = [error.astype(np.float32)]
    for number in range(len(layers) - 1, 0, -1):
        back = _product(errors[-1], layers[number][0].T)
        if factors is not None:
            back *= factors[number]
        bent, root = passed.bent[number], sqrt(back.shape[1])
        curve = np.float32(0.0 if activation == "relu" else (INPUT_STEP * root) ** 2)
        work = partial(_slope_rows, back, bent, curve, np.float32(root))
        share(len(back), back.size, work)
        errors.append(back)
    return errors[::-1]


def _norms(passed: _Passed, errors: list[Array]) -> Array:
    """Norms of all layers' gradients together."""
    numbers = sum(a.shape[1] + d.shape[1] + 16 for a, d in zip(passed.into, errors, strict=True))
    # In single precision, and a hair more: nothing rests on it.
    return np.sqrt(_together(passed, errors).astype(np.float32)) * np.float32(1 + numbers * 2.0**-23)


def _together(passed: _Passed, errors: list[Array]) -> Array:
    """Squared lengths of what examples add, all layers together."""
    total = np.zeros(len(passed.last))
    for squares, d in zip(passed.squares, errors, strict=True):
        total += squares * _row_squares(d)
    return total


def _row_squares(values: Array) -> Array:
    out = np.empty(len(values))
    share(len(values), values.size, partial(_square_rows, values, out))
    return out


def _in_steps(d: Array, scale: Array) -> Array:
    """Scaled errors as whole numbers of their steps."""
    whole = np.empty(d.shape, np.float32)
    share(len(d), d.size, partial(_cut_rows, d, scale.astype(np.float32), whole))
    return whole


def _column_sums(whole: Array) -> Array:
    """Of whole numbers, without rounding."""
    out = np.zeros(whole.shape[1])
    share(whole.shape[1], whole.size, partial(_add_rows, whole, out))
    return out


@kernel
def _add_rows(values: Array, out: Array, first: int, last: int) -> None:
    for row in range(values.shape[0]):
        mine, sums = values[row, first:last], out[first:last]
        for place in range(last - first):
            sums[place] += mine[place]


@kernel
def _square_rows(values: Array, out: Array, first: int, last: int) -> None:
    for row in range(first, last):
        total, mine = 0.0, values[row]
        for place in range(mine.shape[0]):
            total += np.float64(mine[place]) * np.float64(mine[place])
        out[row] = total


@ordered_kernel
def _round_rows(
    values: Array, scale: float, low: float, high: float, out: Array, first: int, last: int
) -> None:
    for row in range(first, last):
        mine, whole = values[row], out[row]
        for place in range(mine.shape[0]):
            steps = np.rint(mine[place] * scale)
            # A comparison with NaN is false.
            whole[place] = min(steps, np.float32(high)) if steps > low else np.float32(low)
            if np.isnan(steps):
                whole[place] = np.float32(0.0)


@ordered_kernel
def _slope_rows(back: Array, bent: Array, curve: float, root: float, first: int, last: int) -> None:
    """Errors that come back through hidden units; ``curve`` is zero for those of ReLU."""
    one = np.float32(1.0)
    for row in range(first, last):
        mine, steps = back[row], bent[row]
        for place in range(mine.shape[0]):
            if curve == 0:
                slope = one if steps[place] > 0 else np.float32(0.0)
            else:
                slope = one - steps[place] * steps[place] * curve
            mine[place] = mine[place] * slope / root


@ordered_kernel
def _cut_rows(d: Array, scale: Array, out: Array, first: int, last: int) -> None:
    for row in range(first, last):
        mine, whole, factor = d[row], out[row], scale[row]
        for place in range(mine.shape[0]):
            steps = mine[place] * factor
            whole[place] = np.trunc(steps) if np.isfinite(steps) else np.float32(0.0)


# -- products of matrices -----------------------------------------------------------------------------


def _product(rows: Array, weights: Array) -> Array:
    """Rows in whole steps times weights; a row's product does not depend on the others'."""
    if weights.shape[1] > _NARROW:
        return product(rows, weights)
    out = np.empty((len(rows), weights.shape[1]), np.float32)
    work = partial(_narrow_product, rows, np.ascontiguousarray(weights.T), out)
    share(len(rows), rows.size, work)
    return out


def _add_exact_product(rows: Array, whole: Array, out: Array) -> None:
    """Sums over rows of products of whole numbers; double precision adds them up without rounding."""
    if whole.shape[1] > _NARROW:
        add_exact_sums(rows, whole, out)
        return
    sums = np.zeros((whole.shape[1], rows.shape[1]))
    share(rows.shape[1], rows.size, partial(_narrow_sums, rows, whole, sums))
    out += sums.T.astype(np.int64)


@inlined
def _copy(values: Array, to: Array) -> None:
    """Whole numbers as floating-point ones."""
    for place in range(values.shape[0]):
        to[place] = values[place]


@kernel
def _narrow_product(rows: Array, weights: Array, out: Array, first: int, last: int) -> None:
    own = scratch(rows.shape[1], np.float32)
    for row in range(first, last):
        _copy(rows[row], own)
        for output in range(weights.shape[0]):
            total, mine = np.float32(0.0), weights[output]
            for place in range(own.shape[0]):
                total += own[place] * mine[place]
            out[row, output] = total


@kernel
def _narrow_sums(rows: Array, whole: Array, out: Array, first: int, last: int) -> None:
    """For some columns of the rows; four rows at a time, so that sums are written seldom."""
    some = np.zeros((4, _COLUMNS))
    a, b, c, d = some[0], some[1], some[2], some[3]
    for begin in range(first, last, _COLUMNS):
        end = min(last, begin + _COLUMNS)
        for row in range(0, rows.shape[0] - 3, 4):
            _copy(rows[row, begin:end], a)
            _copy(rows[row + 1, begin:end], b)
            _copy(rows[row + 2, begin:end], c)
            _copy(rows[row + 3, begin:end], d)
            for output in range(whole.shape[1]):
                e, f = whole[row, output], whole[row + 1, output]
                g, h = whole[row + 2, output], whole[row + 3, output]
                sums = out[output, begin:end]
                for place in range(end - begin):
                    sums[place] += (e * a[place] + f * b[place]) + (g * c[place] + h * d[place])
        for row in range(rows.shape[0] // 4 * 4, rows.shape[0]):
            _copy(rows[row, begin:end], a)
            for output in range(whole.shape[1]):
                e, sums = whole[row, output], out[output, begin:end]
                for place in range(end - begin):
                    sums[place] += e * a[place]
