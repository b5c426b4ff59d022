"""Designs where parameters are uncertain: their means, and the variances of their coordinates.

They are asked for at many entries, in one mode: what depends on the mode alone is made once, in the
workspace.
"""

from __future__ import annotations

from typing import Any

from sfumato.kernels.numba.compiler import inlined
from sfumato.kernels.numba.entrywise import (
    CPArrays,
    TuckerArrays,
    by_model,
    design,
    grow_kronecker,
    kronecker,
    only_compiled,
    row_width,
)
from sfumato.kernels.numba.simd import add, line_length, load, multiply, spread, spread_from, store
from sfumato.kernels.numba.threads import scratch
from sfumato.types import Array

# -- CP ---------------------------------------------------------------------------------------


def _cp_moments_workspace(p: CPArrays, core_variances: Array, mode: int) -> Any:  # noqa: ARG001
    return scratch(1, p.rows.dtype)


def _cp_design_moments(
    p: CPArrays,
    variances: Array,
    core_variances: Array,  # noqa: ARG001
    index: Array,
    mode: int,
    work: Array,
    out: Array,
    at: int,
    spread_out: Array,
) -> None:
    design(p, index, mode, work, out, at)
    if variances.shape[0] == 0:
        return
    # Independent factors: E[prod a^2] - prod E[a]^2, exactly.
    width = row_width(p)
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
        store(spread_out, b, add(second, multiply(minus, first)))


# -- Tucker -----------------------------------------------------------------------------------
#
# The core is laid out with the mode's coordinates along lines, one line (or several) for each cell of
# the other modes, and contracted with the other modes' rows, the last first. With S[b, s] what is left
# once the modes after n are gone, and left[b] the Kronecker product of those before, J[s] = sum_b
# left[b] S[b, s] is the derivative of the design by coordinate s of mode n's row. `work` holds `left`,
# the core, its variances, and what is left.


@inlined
def _lay_out(core: Array, ranks: Any, mode: int, width: int, work: Array, at: int) -> None:
    before, rank, after = 1, ranks[mode], 1
    for m in range(len(ranks)):
        if m < mode:
            before *= ranks[m]
        elif m > mode:
            after *= ranks[m]
    for k in range(before):
        for r in range(rank):
            for t in range(after):
                work[at + (k * after + t) * width + r] = core[(k * rank + r) * after + t]


@inlined
def _contract_last(
    rows: Array,
    row: int,
    rank: int,
    squared: bool,
    work: Array,
    source: int,
    count: int,
    width: int,
    target: int,
) -> None:
    """Sum ``count`` groups of ``rank`` cells, weighted with a row; in place where source is target."""
    for k in range(count):
        for b in range(0, width, line_length(work)):
            result = spread(work, work.dtype.type(0))
            for s in range(rank):
                weight = rows[row, s] * rows[row, s] if squared else rows[row, s]
                line = load(work, source + (k * rank + s) * width + b)
                result = add(result, multiply(spread(work, weight), line))
            store(work, target + k * width + b, result)


@inlined
def _add_variance_along(
    variances: Array,
    row: int,
    rank: int,
    work: Array,
    source: int,
    count: int,
    width: int,
    spread_out: Array,
) -> None:
    """Add the squared derivatives by one mode's row, times the variances of its coordinates."""
    for b in range(0, width, line_length(work)):
        result = load(spread_out, b)
        for s in range(rank):
            derivative = spread(work, work.dtype.type(0))
            for k in range(count):
                line = load(work, source + (k * rank + s) * width + b)
                derivative = add(derivative, multiply(spread_from(work, k), line))
            square = multiply(derivative, derivative)
            result = add(result, multiply(spread(work, variances[row, s]), square))
        store(spread_out, b, result)


def _tucker_moments_workspace(p: TuckerArrays, core_variances: Array, mode: int) -> Any:
    width, cells = p.rows.shape[1], p.core.shape[0] // p.ranks[mode]
    work = scratch(cells + 3 * cells * width, p.rows.dtype)
    _lay_out(p.core, p.ranks, mode, width, work, cells)
    if core_variances.shape[0] > 0:
        _lay_out(core_variances, p.ranks, mode, width, work, cells + cells * width)
    return work


def _tucker_design_moments(
    p: TuckerArrays,
    variances: Array,
    core_variances: Array,  # noqa: ARG001
    index: Array,
    mode: int,
    work: Array,
    out: Array,
    at: int,
    spread_out: Array,
) -> None:
    # To first order in the variances, each row's coordinate n, s and core entry q by itself:
    # var d_m[r] = sum_ns (d d_m[r] / d a_n[s])^2 var a_n[s] + sum_q (d d_m[r] / d g_q)^2 var g_q
    order, width, cells = len(p.offsets), p.rows.shape[1], p.core.shape[0] // p.ranks[mode]
    rows, ranks, line = p.rows, p.ranks, line_length(p.rows)
    uncertain, rest = variances.shape[0] > 0, cells + 2 * cells * width
    if uncertain:  # the core's part: everything squared
        source, count = cells + cells * width, cells
        for m in range(order - 1, -1, -1):
            if m != mode:
                count //= ranks[m]
                _contract_last(rows, index[m], ranks[m], True, work, source, count, width, rest)
                source = rest
        for b in range(0, width, line):
            store(spread_out, b, load(work, source + b))
    source, count = cells, cells
    for m in range(order - 1, -1, -1):
        if m != mode:
            count //= ranks[m]
            if uncertain:
                size = kronecker(rows, index, ranks, 0, min(m, mode), work, 0)
                grow_kronecker(rows, index, ranks, mode + 1, m, work, 0, size)
                _add_variance_along(
                    variances, index[m], ranks[m], work, source, count, width, spread_out
                )
            _contract_last(rows, index[m], ranks[m], False, work, source, count, width, rest)
            source = rest
    for b in range(0, width, line):
        store(out, at + b, load(work, source + b))


# -- what kernels call ------------------------------------------------------------------------


def moments_workspace(p: Any, core_variances: Array, mode: int) -> Array:
    """Scratch memory for :func:`design_moments` in one mode; holds for as long as the core does."""
    return only_compiled(p, core_variances, mode)  # type: ignore[no-any-return]


def design_moments(
    p: Any,
    variances: Array,
    core_variances: Array,
    index: Array,
    mode: int,
    work: Array,
    out: Array,
    at: int,
    spread_out: Array,
) -> None:
    """The design of one mode, and where the parameters have variances, that of each coordinate.

    The latter is written to ``spread_out``; without variances that is left as it is.
    """
    only_compiled(p, variances, core_variances, index, mode, work, out, at, spread_out)


by_model(moments_workspace, _cp_moments_workspace, _tucker_moments_workspace)
by_model(design_moments, _cp_design_moments, _tucker_design_moments)
