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
from numpy.typing import NDArray

from sfumato.parallel import REORDERED_SUMS, inlined, kernel
from sfumato.simd import add, line_length, load, multiply, spread, store, total

Array = NDArray[Any]


class CPArrays(NamedTuple):
    """A CP model as kernels see it."""

    rows: Array
    biases: Array
    offsets: tuple[int, ...]


class TuckerArrays(NamedTuple):
    """A Tucker model as kernels see it; the core is flat, in C order."""

    rows: Array
    biases: Array
    offsets: tuple[int, ...]
    ranks: tuple[int, ...]
    core: Array


def _by_model(stub: Callable[..., Any], cp: Callable[..., Any], tucker: Callable[..., Any]) -> None:
    """Let kernels call ``stub``; the model's type picks what is compiled."""

    @overload(
        stub,
        strict=False,
        jit_options={"fastmath": REORDERED_SUMS, "error_model": "numpy", "forceinline": True},
    )
    def choose(p: Any, *args: Any) -> Any:  # noqa: ARG001
        return {CPArrays: cp, TuckerArrays: tucker}[p.instance_class]


def _only_compiled(*_: Any) -> Any:
    raise TypeError("this function can be called from compiled kernels only")


@inlined
def locate(p: Any, coordinates: Array, entry: int, index: Array) -> None:
    """Row numbers of an entry, one per mode."""
    for m in range(len(p.offsets)):
        index[m] = p.offsets[m] + coordinates[m, entry]


@inlined
def bias_sum(p: Any, index: Array) -> Any:
    """Sum of the biases of an entry's rows."""
    result = p.biases[index[0]]
    for m in range(1, len(p.offsets)):
        result += p.biases[index[m]]
    return result


@inlined
def dot(left: Array, left_at: int, right: Array, right_at: int, width: int) -> Any:
    """Inner product of two padded rows."""
    result = multiply(load(left, left_at), load(right, right_at))
    for b in range(line_length(left), width, line_length(left)):
        result = add(result, multiply(load(left, left_at + b), load(right, right_at + b)))
    return total(result)


# -- CP ---------------------------------------------------------------------------------------


def _cp_workspace(p: CPArrays) -> Array:
    return np.zeros(len(p.offsets) * p.rows.shape[1], p.rows.dtype)


def _cp_evaluate(p: CPArrays, index: Array, work: Array) -> Any:
    order, width = len(p.offsets), p.rows.shape[1]
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


def _cp_design(p: CPArrays, index: Array, mode: int, work: Array, out: Array, at: int) -> None:  # noqa: ARG001
    width = p.rows.shape[1]
    for b in range(0, width, line_length(p.rows)):
        product = spread(p.rows, p.rows.dtype.type(1))
        for m in range(len(p.offsets)):
            if m != mode:
                product = multiply(product, load(p.rows, index[m] * width + b))
        store(out, at + b, product)


def _cp_design_variance(
    p: CPArrays,
    variances: Array,
    core_variances: Array,  # noqa: ARG001
    index: Array,
    mode: int,
    work: Array,  # noqa: ARG001
    out: Array,
    at: int,
) -> None:
    # Independent factors: E[prod a^2] - prod E[a]^2, exactly.
    width = p.rows.shape[1]
    minus = spread(p.rows, p.rows.dtype.type(-1))
    for b in range(0, width, line_length(p.rows)):
        second = spread(p.rows, p.rows.dtype.type(1))
        first = spread(p.rows, p.rows.dtype.type(1))
        for m in range(len(p.offsets)):
            if m != mode:
                row = load(p.rows, index[m] * width + b)
                square = multiply(row, row)
                first = multiply(first, square)
                second = multiply(second, add(square, load(variances, index[m] * width + b)))
        store(out, at + b, add(second, multiply(minus, first)))


def _cp_step_core(p: CPArrays, work: Array, keep: Any, scale: Any) -> None:  # noqa: ARG001
    return


# -- Tucker -----------------------------------------------------------------------------------
#
# With the modes before m gathered in `left` (their Kronecker product) and those after m in `right`,
# the core is a matrix stack core[l, r, t] and d_m[r] = sum_l left[l] sum_t core[l, r, t] right[t].
# Behind the designs `work` holds the right products of all modes, then the left one.


@kernel
def _contract(core: Array, left: Array, rank: int, right: Array, out: Array) -> None:
    after = right.shape[0]
    for r in range(rank):
        out[r] = 0
    for l in range(left.shape[0]):  # noqa: E741
        base = l * rank * after
        if after == 1:
            for r in range(rank):
                out[r] += left[l] * core[base + r]
        else:
            for r in range(rank):
                inner = out.dtype.type(0)
                for t in range(after):
                    inner += core[base + r * after + t] * right[t]
                out[r] += left[l] * inner


@kernel
def _extend_right(row: Array, right: Array, out: Array) -> None:
    size = right.shape[0]
    for r in range(row.shape[0]):
        for t in range(size):
            out[r * size + t] = row[r] * right[t]


@kernel
def _extend_left(left: Array, size: int, row: Array) -> None:
    # In place: from the end, since the product grows over what it reads.
    rank = row.shape[0]
    for l in range(size - 1, -1, -1):  # noqa: E741
        value = left[l]
        for r in range(rank):
            left[l * rank + r] = value * row[r]


@inlined
def _right_starts(p: TuckerArrays, starts: Array) -> int:
    # Where the right product of each mode lies in `work`; returns the end of them.
    order = len(p.offsets)
    position, size = order * p.rows.shape[1], 1
    for m in range(order - 1, -1, -1):
        starts[m] = position
        position += size
        size *= p.ranks[m]
    return position


@kernel
def _tucker_right(p: TuckerArrays, index: Array, work: Array, starts: Array) -> int:
    order = len(p.offsets)
    end = _right_starts(p, starts)
    work[starts[order - 1]] = 1
    size = 1
    for m in range(order - 1, 0, -1):
        rank = p.ranks[m]
        previous = work[starts[m] : starts[m] + size]
        size *= rank
        into = work[starts[m - 1] : starts[m - 1] + size]
        _extend_right(p.rows[index[m], :rank], previous, into)
    return end


def _tucker_workspace(p: TuckerArrays) -> Array:
    starts = np.empty(len(p.offsets), np.int64)
    end = _right_starts(p, starts)
    return np.zeros(end + 2 * p.core.shape[0], p.rows.dtype)


@kernel
def _tucker_all(p: TuckerArrays, index: Array, work: Array) -> Any:
    order, width = len(p.offsets), p.rows.shape[1]
    starts = np.empty(order, np.int64)
    end = _tucker_right(p, index, work, starts)
    left = work[end : end + p.core.shape[0]]
    left[0] = 1
    size, after = 1, p.core.shape[0]
    for m in range(order):
        rank = p.ranks[m]
        after //= rank
        right = work[starts[m] : starts[m] + after]
        _contract(p.core, left[:size], rank, right, work[m * width : m * width + rank])
        _extend_left(left, size, p.rows[index[m], :rank])
        size *= rank
    value = work.dtype.type(0)
    for r in range(p.ranks[0]):
        value += work[r] * p.rows[index[0], r]
    return value


def _tucker_evaluate(p: TuckerArrays, index: Array, work: Array) -> Any:
    return _tucker_all(p, index, work)


@kernel
def _left_of(p: TuckerArrays, index: Array, mode: int, left: Array) -> int:
    left[0] = 1
    size = 1
    for m in range(mode):
        rank = p.ranks[m]
        _extend_left(left, size, p.rows[index[m], :rank])
        size *= rank
    return size


@kernel
def _tucker_one(
    p: TuckerArrays, index: Array, mode: int, work: Array, out: Array, at: int
) -> None:
    starts = np.empty(len(p.offsets), np.int64)
    end = _tucker_right(p, index, work, starts)
    left = work[end : end + p.core.shape[0]]
    size = _left_of(p, index, mode, left)
    rank = p.ranks[mode]
    right = work[starts[mode] : starts[mode] + p.core.shape[0] // (size * rank)]
    _contract(p.core, left[:size], rank, right, out[at : at + rank])


def _tucker_design(
    p: TuckerArrays, index: Array, mode: int, work: Array, out: Array, at: int
) -> None:
    _tucker_one(p, index, mode, work, out, at)


@kernel
def _tucker_variance(
    p: TuckerArrays,
    variances: Array,
    core_variances: Array,
    index: Array,
    mode: int,
    work: Array,
    out: Array,
    at: int,
) -> None:
    # To first order in the variances, each factor's coordinate and core entry by itself:
    # var d_m[r] = sum_n sum_s (d d_m[r] / d a_n[s])^2 var a_n[s] + sum_q (d d_m[r] / d g_q)^2 var g_q
    order, rank = len(p.offsets), p.ranks[mode]
    kept = np.empty((order, p.rows.shape[1]), p.rows.dtype)
    for m in range(order):
        kept[m] = p.rows[index[m]]
    derivative = np.empty(rank, p.rows.dtype)
    own = np.arange(order)  # the kept rows, one per mode, stand in for the model's rows
    unit = TuckerArrays(kept, p.biases, p.offsets, p.ranks, p.core)
    out[at : at + rank] = 0
    for n in range(order):
        if n == mode:
            continue
        for s in range(p.ranks[n]):
            variance = variances[index[n], s]
            kept[n] = 0
            kept[n, s] = 1
            _tucker_one(unit, own, mode, work, derivative, 0)
            for r in range(rank):
                out[at + r] += variance * derivative[r] * derivative[r]
        kept[n] = p.rows[index[n]]
    for m in range(order):
        kept[m] *= kept[m]
    squared = TuckerArrays(kept, p.biases, p.offsets, p.ranks, core_variances)
    _tucker_one(squared, own, mode, work, derivative, 0)
    for r in range(rank):
        out[at + r] += derivative[r]


def _tucker_design_variance(
    p: TuckerArrays,
    variances: Array,
    core_variances: Array,
    index: Array,
    mode: int,
    work: Array,
    out: Array,
    at: int,
) -> None:
    _tucker_variance(p, variances, core_variances, index, mode, work, out, at)


def _tucker_step_core(p: TuckerArrays, work: Array, keep: Any, scale: Any) -> None:
    # `evaluate` has left the Kronecker product of all rows behind the right products.
    starts = np.empty(len(p.offsets), np.int64)
    end = _right_starts(p, starts)
    for q in range(p.core.shape[0]):
        p.core[q] = keep * p.core[q] + scale * work[end + q]


# -- what kernels call ------------------------------------------------------------------------


def workspace(p: Any) -> Array:
    """Scratch memory for the functions below."""
    return _only_compiled(p)  # type: ignore[no-any-return]


def evaluate(p: Any, index: Array, work: Array) -> Any:
    """Value at the entry, without mean and biases; leaves the designs of all modes in ``work``."""
    return _only_compiled(p, index, work)


def design(p: Any, index: Array, mode: int, work: Array, out: Array, at: int) -> None:
    """Write the design of one mode to ``out`` from position ``at``."""
    _only_compiled(p, index, mode, work, out, at)


def design_variance(
    p: Any,
    variances: Array,
    core_variances: Array,
    index: Array,
    mode: int,
    work: Array,
    out: Array,
    at: int,
) -> None:
    """Variance of each coordinate of a design when the parameters have the given variances."""
    _only_compiled(p, variances, core_variances, index, mode, work, out, at)


def step_core(p: Any, work: Array, keep: Any, scale: Any) -> None:
    """``core = keep core + scale kronecker`` after ``evaluate``; nothing for a CP model."""
    _only_compiled(p, work, keep, scale)


_by_model(workspace, _cp_workspace, _tucker_workspace)
_by_model(evaluate, _cp_evaluate, _tucker_evaluate)
_by_model(design, _cp_design, _tucker_design)
_by_model(design_variance, _cp_design_variance, _tucker_design_variance)
_by_model(step_core, _cp_step_core, _tucker_step_core)


@kernel
def predict_entries(
    p: Any, mean: Any, coordinates: Array, start: int, stop: int, out: Array
) -> None:
    """``out[e] = mean + biases + value`` for the entries from ``start`` to ``stop``."""
    index = np.empty(len(p.offsets), np.int64)
    work = workspace(p)
    for entry in range(start, stop):
        locate(p, coordinates, entry, index)
        out[entry] = mean + bias_sum(p, index) + evaluate(p, index, work)
