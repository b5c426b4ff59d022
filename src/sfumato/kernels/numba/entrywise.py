"""What a model computes at one entry, inside compiled kernels.

Solvers are written once, against the functions of this file; which model they work on is settled
by the type of the arrays when a kernel is compiled. For an entry with rows ``a_0 .. a_{N-1}``:

- the *design* of mode m is the vector ``d_m`` with ``value = a_m . d_m``: CP, the product of the
  other rows; Tucker, the core contracted with the other rows;
- the *Kronecker product* of all rows is the design of a Tucker core.

Rows of all modes lie in one matrix, mode after mode, padded with zeros to whole cache lines.
``work`` is scratch memory from ``workspace``: the designs of all modes first, one padded row each.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numba.extending import overload

from sfumato.kernels.numba.compiler import REORDERED_SUMS, inlined, kernel
from sfumato.kernels.numba.simd import (
    add,
    element,
    line_length,
    load,
    multiply,
    spread,
    store,
    total,
)
from sfumato.kernels.numba.threads import scratch
from sfumato.types import Array


class CPArrays(NamedTuple):
    """A CP model as kernels see it."""

    rows: Array
    biases: Array
    offsets: tuple[int, ...]
    lines: tuple[int, ...]  # as many zeros as a row has lines: kernels are compiled for the number


class TuckerArrays(NamedTuple):
    """A Tucker model as kernels see it; the core is flat, in C order."""

    rows: Array
    biases: Array
    offsets: tuple[int, ...]
    ranks: tuple[int, ...]
    core: Array


def by_model(stub: Callable[..., Any], cp: Callable[..., Any], tucker: Callable[..., Any]) -> None:
    """Let kernels call ``stub``; the model's type picks what is compiled."""

    @overload(
        stub,
        strict=False,
        jit_options={"fastmath": REORDERED_SUMS, "error_model": "numpy", "forceinline": True},
    )
    def choose(p: Any, *args: Any) -> Any:  # noqa: ARG001
        return {CPArrays: cp, TuckerArrays: tucker}[p.instance_class]


def only_compiled(*_: Any) -> Any:
    raise TypeError("this function can be called from compiled kernels only")


@inlined
def locate(p: Any, coordinates: Array, entry: int, index: Array) -> None:
    """Row numbers of an entry, one per mode."""
    for m in range(len(p.offsets)):
        index[m] = p.offsets[m] + element(coordinates, m * coordinates.shape[1] + entry)


@inlined
def bias_sum(p: Any, index: Array) -> Any:
    """Sum of the biases of an entry's rows."""
    result = element(p.biases, index[0])
    for m in range(1, len(p.offsets)):
        result += element(p.biases, index[m])
    return result


@inlined
def dot(left: Array, left_at: int, right: Array, right_at: int, width: int) -> Any:
    """Inner product of two padded rows."""
    result = multiply(load(left, left_at), load(right, right_at))
    for b in range(line_length(left), width, line_length(left)):
        result = add(result, multiply(load(left, left_at + b), load(right, right_at + b)))
    return total(result)


# -- CP ---------------------------------------------------------------------------------------


def _cp_row_width(p: CPArrays) -> Any:
    return len(p.lines) * line_length(p.rows)


def _cp_workspace(p: CPArrays) -> Any:
    return scratch(len(p.offsets) * p.rows.shape[1], p.rows.dtype)


def _cp_evaluate(p: CPArrays, index: Array, work: Array) -> Any:
    order, width = len(p.offsets), row_width(p)
    value = spread(p.rows, p.rows.dtype.type(0))
    for b in range(0, width, line_length(p.rows)):
        # Products of the rows before each mode, then times the rows after it.
        before = load(p.rows, index[0] * width + b)
        for m in range(1, order):
            store(work, m * width + b, before)
            before = multiply(before, load(p.rows, index[m] * width + b))
        value = add(value, before)
        after = load(p.rows, index[order - 1] * width + b)
        for m in range(order - 2, 0, -1):
            store(work, m * width + b, multiply(after, load(work, m * width + b)))
            after = multiply(after, load(p.rows, index[m] * width + b))
        store(work, b, after)
    return total(value)


def _cp_value(p: CPArrays, index: Array, work: Array) -> Any:  # noqa: ARG001
    width = row_width(p)
    value = spread(p.rows, p.rows.dtype.type(0))
    for b in range(0, width, line_length(p.rows)):
        product = load(p.rows, index[0] * width + b)
        for m in range(1, len(p.offsets)):
            product = multiply(product, load(p.rows, index[m] * width + b))
        value = add(value, product)
    return total(value)


def _cp_design(p: CPArrays, index: Array, mode: int, work: Array, out: Array, at: int) -> None:  # noqa: ARG001
    width = row_width(p)
    for b in range(0, width, line_length(p.rows)):
        product = spread(p.rows, p.rows.dtype.type(1))
        for m in range(len(p.offsets)):
            if m != mode:
                product = multiply(product, load(p.rows, index[m] * width + b))
        store(out, at + b, product)


def _cp_step_core(p: CPArrays, work: Array, keep: Any, scale: Any) -> None:  # noqa: ARG001
    return


def _cp_add_kronecker(p: CPArrays, work: Array, scale: Any, out: Array) -> None:  # noqa: ARG001
    return


# -- Tucker -----------------------------------------------------------------------------------
#
# With the modes before m gathered in a Kronecker product `left` and those after m in `right`, the
# core is a stack of matrices core[l, r, t] and d_m[r] = sum_l left[l] sum_t core[l, r, t] right[t].
# All products lie in `work` behind the designs: left, middle, right, each with room for a core, and
# are named by where they start. (Slices of arrays would take long to compile.)


@inlined
def grow_kronecker(
    rows: Array, index: Array, ranks: Any, first: int, last: int, work: Array, at: int, size: int
) -> Any:
    """Kronecker product of the ``size`` numbers at ``work[at:]`` and some modes' rows; its size."""
    for m in range(first, last):
        rank, row = ranks[m], index[m]
        # In place, from the end, since the product grows over what it reads.
        for k in range(size - 1, -1, -1):
            value = work[at + k]
            for r in range(rank):
                work[at + k * rank + r] = value * rows[row, r]
        size *= rank
    return size


@inlined
def kronecker(rows: Array, index: Array, ranks: Any, first: int, last: int, work: Array, at: int) -> Any:
    """Kronecker product of the rows of modes ``first`` to ``last`` at ``work[at:]``; its size."""
    work[at] = 1
    return grow_kronecker(rows, index, ranks, first, last, work, at, 1)


@inlined
def _contract(
    core: Array,
    work: Array,
    left: int,
    before: int,
    rank: int,
    right: int,
    after: int,
    out: Array,
    at: int,
) -> None:
    for r in range(rank):
        out[at + r] = 0
    for k in range(before):
        base, weight = k * rank * after, work[left + k]
        if after == 1:
            weight *= work[right]  # one, or the product of later modes of rank one
            for r in range(rank):
                out[at + r] += weight * core[base + r]
        else:
            for r in range(rank):
                inner = work.dtype.type(0)
                for t in range(after):
                    inner += core[base + r * after + t] * work[right + t]
                out[at + r] += weight * inner


def _tucker_row_width(p: TuckerArrays) -> Any:
    return p.rows.shape[1]


def _tucker_workspace(p: TuckerArrays) -> Any:
    return scratch(len(p.offsets) * p.rows.shape[1] + 3 * p.core.shape[0], p.rows.dtype)


@inlined
def _tucker_all(p: TuckerArrays, index: Array, work: Array) -> Any:
    order, width, size = len(p.offsets), p.rows.shape[1], p.core.shape[0]
    rows, core, ranks = p.rows, p.core, p.ranks
    left, right = order * width, order * width + 2 * size
    for m in range(order):
        before = kronecker(rows, index, ranks, 0, m, work, left)
        after = kronecker(rows, index, ranks, m + 1, order, work, right)
        _contract(core, work, left, before, ranks[m], right, after, work, m * width)
    kronecker(rows, index, ranks, 0, order, work, left)
    value = work.dtype.type(0)
    for r in range(ranks[0]):
        value += work[r] * rows[index[0], r]
    return value


def _tucker_evaluate(p: TuckerArrays, index: Array, work: Array) -> Any:
    return _tucker_all(p, index, work)


def _tucker_value(p: TuckerArrays, index: Array, work: Array) -> Any:
    order, left = len(p.offsets), len(p.offsets) * p.rows.shape[1]
    kronecker(p.rows, index, p.ranks, 0, order, work, left)
    value = work.dtype.type(0)
    for q in range(p.core.shape[0]):
        value += p.core[q] * work[left + q]
    return value


@inlined
def _tucker_one(
    p: TuckerArrays, core: Array, index: Array, mode: int, work: Array, out: Array, at: int
) -> None:
    order, width, size = len(p.offsets), p.rows.shape[1], p.core.shape[0]
    left, right = order * width, order * width + 2 * size
    before = kronecker(p.rows, index, p.ranks, 0, mode, work, left)
    after = kronecker(p.rows, index, p.ranks, mode + 1, order, work, right)
    _contract(core, work, left, before, p.ranks[mode], right, after, out, at)


def _tucker_design(p: TuckerArrays, index: Array, mode: int, work: Array, out: Array, at: int) -> None:
    _tucker_one(p, p.core, index, mode, work, out, at)


# `evaluate` and `entry_value` leave the Kronecker product of all rows in `left`.


def _tucker_step_core(p: TuckerArrays, work: Array, keep: Any, scale: Any) -> None:
    start = len(p.offsets) * p.rows.shape[1]
    for q in range(p.core.shape[0]):
        p.core[q] = keep * p.core[q] + scale * work[start + q]


def _tucker_add_kronecker(p: TuckerArrays, work: Array, scale: Any, out: Array) -> None:
    start = len(p.offsets) * p.rows.shape[1]
    for q in range(out.shape[0]):
        out[q] += scale * work[start + q]


# -- what kernels call ------------------------------------------------------------------------


def row_width(p: Any) -> Any:
    """Elements of a padded row; for CP a constant of the compiled kernel."""
    return only_compiled(p)


def workspace(p: Any) -> Array:
    """Scratch memory for the functions below."""
    return only_compiled(p)  # type: ignore[no-any-return]


def evaluate(p: Any, index: Array, work: Array) -> Any:
    """Value at the entry, without mean and biases; leaves the designs of all modes in ``work``."""
    return only_compiled(p, index, work)


def entry_value(p: Any, index: Array, work: Array) -> Any:
    """The same value alone, without the designs."""
    return only_compiled(p, index, work)


def design(p: Any, index: Array, mode: int, work: Array, out: Array, at: int) -> None:
    """Write the design of one mode to ``out`` from position ``at``."""
    only_compiled(p, index, mode, work, out, at)


def step_core(p: Any, work: Array, keep: Any, scale: Any) -> None:
    """``core = keep core + scale kronecker`` after ``evaluate``; nothing for a CP model."""
    only_compiled(p, work, keep, scale)


def add_kronecker(p: Any, work: Array, scale: Any, out: Array) -> None:
    """``out += scale kronecker`` after ``evaluate`` or ``entry_value``; nothing for a CP model."""
    only_compiled(p, work, scale, out)


by_model(row_width, _cp_row_width, _tucker_row_width)
by_model(workspace, _cp_workspace, _tucker_workspace)
by_model(evaluate, _cp_evaluate, _tucker_evaluate)
by_model(entry_value, _cp_value, _tucker_value)
by_model(design, _cp_design, _tucker_design)
by_model(step_core, _cp_step_core, _tucker_step_core)
by_model(add_kronecker, _cp_add_kronecker, _tucker_add_kronecker)


@kernel
def predict_entries(p: Any, mean: Any, coordinates: Array, start: int, stop: int, out: Array) -> None:
    """``out[e] = mean + biases + value`` for the entries from ``start`` to ``stop``."""
    index = scratch(len(p.offsets), np.int64)
    work = workspace(p)
    for entry in range(start, stop):
        locate(p, coordinates, entry, index)
        out[entry] = mean + bias_sum(p, index) + entry_value(p, index, work)
