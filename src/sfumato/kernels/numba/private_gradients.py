"""Clipped gradients of private steps: of one entry, and of a unit with several."""

from __future__ import annotations

from typing import Any

import numpy as np

from sfumato.kernels.numba.compiler import inlined
from sfumato.kernels.numba.entrywise import add_kronecker, bias_sum, design, dot, evaluate, row_width
from sfumato.kernels.numba.private_moves import standardised
from sfumato.kernels.numba.simd import add, element, line_length, load, multiply, spread, store, total
from sfumato.types import Array


@inlined
def clipping(length: Any, clip: Any) -> Any:
    """Factor that makes a contribution of a length at most ``clip`` long.

    Zero where the length is no finite number: nothing unbounded gets through.
    """
    if not length < np.inf:
        return clip * 0
    return clip / max(length, clip)


@inlined
def add_measured(
    vector: Array, at: int, square: Array, square_at: int, factor: Any, width: int, out: Array, to: int
) -> None:
    """``out += factor metric^2 vector``, all of them padded rows."""
    along = spread(vector, factor)
    for b in range(0, width, line_length(vector)):
        change = multiply(along, multiply(load(vector, at + b), load(square, square_at + b)))
        store(out, to + b, add(load(out, to + b), change))


# -- one entry is a unit ------------------------------------------------------------------------


@inlined
def measured(vectors: Array, square: Array, size: int) -> Any:
    """Squared length in the metric of an entry's designs, which lie one after the other."""
    line = load(vectors, 0)
    result = multiply(multiply(line, line), load(square, 0))
    for b in range(line_length(vectors), size, line_length(vectors)):
        line = load(vectors, b)
        result = add(result, multiply(multiply(line, line), load(square, b)))
    return total(result)


@inlined
def kronecker_size(p: Any, index: Array) -> Any:
    """Squared length of the Kronecker product of an entry's rows: the product of theirs."""
    rows, width = p.rows, row_width(p)
    size = dot(rows, index[0] * width, rows, index[0] * width, width)
    for m in range(1, len(p.offsets)):
        size *= dot(rows, index[m] * width, rows, index[m] * width, width)
    return size


# -- a level of a mode is a unit ----------------------------------------------------------------


@inlined
def locate_own(p: Any, mode: int, others: Array, entry: int, own: int, index: Array) -> None:
    """Row numbers of an entry of a unit whose own row is ``own``."""
    j = 0
    for m in range(len(p.offsets)):
        if m == mode:
            index[m] = own
        else:
            index[m] = p.offsets[m] + element(others, j * others.shape[1] + entry)
            j += 1


@inlined
def _solve(a: Array, h: Array, size: int) -> None:
    """Solve a x = h by Cholesky: of ``a``, flat, the lower half is read; x replaces ``h``."""
    for j in range(size):
        pivot = np.sqrt(a[j * size + j])
        for i in range(j, size):
            a[i * size + j] /= pivot
        for k in range(j + 1, size):
            for i in range(k, size):
                a[i * size + k] -= a[i * size + j] * a[k * size + j]
    for j in range(size):
        for k in range(j):
            h[j] -= a[j * size + k] * h[k]
        h[j] /= a[j * size + j]
    for j in range(size - 1, -1, -1):
        for k in range(j + 1, size):
            h[j] -= a[k * size + j] * h[k]
        h[j] /= a[j * size + j]


@inlined
def fit_own(
    p: Any,
    scale: Any,
    mode: int,
    others: Array,
    values: Array,
    first: int,
    beyond: int,
    own: int,
    rank: int,
    home: Array,
    ridge: Any,
    fit_biases: bool,
    index: Array,
    work: Array,
    x: Array,
    gram: Array,
    rhs: Array,
) -> None:
    """Ridge regression of a unit's own row (and bias) on its own entries, in float64."""
    rows, biases = p.rows, p.biases
    low, high, middle, unit = scale
    free = rhs.shape[0]
    gram[:] = 0
    for i in range(free):
        gram[i * free + i] = ridge[0] if i < rank else ridge[1]
        rhs[i] = ridge[0] * home[mode, i] if i < rank else 0.0
    biases[own] = 0
    for entry in range(first, beyond):
        locate_own(p, mode, others, entry, own, index)
        design(p, index, mode, work, x, 0)
        target = standardised(element(values, entry), low, high, middle, unit)
        if fit_biases:
            x[rank] = 1
            target -= bias_sum(p, index)
        for i in range(free):
            rhs[i] += target * x[i]
            for j in range(i + 1):
                gram[i * free + j] += x[i] * x[j]
    _solve(gram, rhs, free)
    for r in range(rank):
        rows[own, r] = rhs[r]
    if fit_biases:
        biases[own] = rhs[rank]


@inlined
def unit_gradient(
    p: Any,
    memory: Any,
    scale: Any,
    mode: int,
    others: Array,
    values: Array,
    first: int,
    beyond: int,
    here: int,
    typical: float,
    local: bool,
    square: Array,
    bias_square: Any,
    core_square: Any,
    fit_biases: bool,
    index: Array,
    work: Array,
) -> Any:
    """Add up a unit's gradient in ``own``, ``own_bias``, ``own_core``; its length in the metric.

    Rows that it is in are marked by 2 from then on.
    """
    order, width, number = len(p.offsets), row_width(p), p.rows.dtype.type
    own, own_bias, own_core, mark = memory.own, memory.own_bias, memory.own_core, memory.mark
    low, high, middle, unit = scale
    weight = number(min(1.0, np.sqrt(typical / (beyond - first))))
    for entry in range(first, beyond):
        locate_own(p, mode, others, entry, here, index)
        error = standardised(element(values, entry), low, high, middle, unit)
        error -= evaluate(p, index, work)
        if fit_biases:
            error -= bias_sum(p, index)
        error *= weight
        along = spread(own, number(error))
        for m in range(order):
            row = index[m]
            if local and m == mode:
                continue
            mark[row] = 1
            for b in range(0, width, line_length(own)):
                at = row * width + b
                change = multiply(along, load(work, m * width + b))
                store(own, at, add(load(own, at), change))
            if fit_biases:
                own_bias[row] += error
        add_kronecker(p, work, error, own_core)
    # The length of the whole: entries that share a row add up in it, so rows count once.
    size = number(0)
    for q in range(own_core.shape[0]):
        size += core_square * own_core[q] * own_core[q]
    for entry in range(first, beyond):
        locate_own(p, mode, others, entry, here, index)
        for m in range(order):
            row = index[m]
            if mark[row] == 1:
                mark[row] = 2
                for b in range(0, width, line_length(own)):
                    line = load(own, row * width + b)
                    size += total(multiply(multiply(line, line), load(square, m * width + b)))
                size += bias_square * own_bias[row] * own_bias[row]
    return np.sqrt(size)
