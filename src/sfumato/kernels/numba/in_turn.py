"""What a model computes at one entry while its modes are updated in turn, inside compiled kernels.

Mode m's design is needed when the rows before it have moved already and those after it have not:

    d_m[r] = sum_k before[k] after_m[k, r]

with ``before`` the Kronecker product of the rows 0 .. m-1 as they are by then, and ``after_m`` the core
contracted with the rows m+1 .. N-1 as they were. Each ``after_m`` is a contraction of the next, so an
entry costs two passes over the core and one that updates it, where designs found one by one would cost
2N. For CP models a design is a product of rows, found as ever.

The core is kept with its last mode first, and the one before it padded to whole lines as rows are:

    core[t, k, s],  after_m[k, r],  product[k, s] = before[k] row[s]

with k over the modes up to N-3 (up to m-1), s over mode N-2. All loops then run over whole lines.
"""

from __future__ import annotations

from typing import Any

from sfumato.kernels.numba.compiler import inlined
from sfumato.kernels.numba.entrywise import CPArrays, TuckerArrays, by_model, design, dot, only_compiled
from sfumato.kernels.numba.simd import (
    add,
    line_length,
    load,
    multiply,
    spread,
    spread_from,
    store,
    total,
)
from sfumato.kernels.numba.threads import scratch
from sfumato.types import Array

# -- CP -------------------------------------------------------------------------------------------


def _cp_memory(p: CPArrays) -> Any:
    nothing = scratch(0, p.rows.dtype)
    return nothing, nothing, nothing, nothing


def _cp_begin(p: CPArrays, index: Array, core: Array, before: Array, after: Array) -> None:  # noqa: ARG001
    return


def _cp_design(
    p: CPArrays,
    index: Array,
    mode: int,
    core: Array,  # noqa: ARG001
    before: Array,
    after: Array,  # noqa: ARG001
    product: Array,  # noqa: ARG001
    out: Array,
    at: int,
) -> None:
    design(p, index, mode, before, out, at)


def _cp_moved(p: CPArrays, index: Array, mode: int, before: Array, product: Array) -> None:  # noqa: ARG001
    return


def _cp_step_core(
    p: CPArrays,  # noqa: ARG001
    index: Array,  # noqa: ARG001
    core: Array,  # noqa: ARG001
    product: Array,  # noqa: ARG001
    keep: Any,  # noqa: ARG001
    scale: Any,  # noqa: ARG001
) -> None:
    return


def _cp_put_back(p: CPArrays, core: Array) -> None:  # noqa: ARG001
    return


# -- Tucker ---------------------------------------------------------------------------------------


@inlined
def _blocks(p: TuckerArrays, mode: int) -> Any:
    """Number of combinations of the components of the modes before ``mode``."""
    count = 1
    for m in range(mode):
        count *= p.ranks[m]
    return count


def _tucker_memory(p: TuckerArrays) -> Any:
    order, width = len(p.ranks), p.rows.shape[1]
    blocks, last, inner = _blocks(p, order - 2), p.ranks[order - 1], p.ranks[order - 2]
    core = scratch(last * blocks * width, p.core.dtype)
    for k in range(blocks):
        for s in range(inner):
            for t in range(last):
                core[(t * blocks + k) * width + s] = p.core[(k * inner + s) * last + t]
    before, product = scratch(blocks, p.core.dtype), scratch(blocks * width, p.core.dtype)
    return core, before, scratch((order - 1) * blocks * width, p.core.dtype), product


def _tucker_put_back(p: TuckerArrays, core: Array) -> None:
    order, width = len(p.ranks), p.rows.shape[1]
    blocks, last, inner = _blocks(p, order - 2), p.ranks[order - 1], p.ranks[order - 2]
    for k in range(blocks):
        for s in range(inner):
            for t in range(last):
                p.core[(k * inner + s) * last + t] = core[(t * blocks + k) * width + s]


def _tucker_begin(p: TuckerArrays, index: Array, core: Array, before: Array, after: Array) -> None:
    order, width, line = len(p.ranks), p.rows.shape[1], line_length(p.rows)
    blocks, row = _blocks(p, order - 2), index[order - 1] * width
    wide = blocks * width
    before[0] = 1
    for b in range(0, wide, line):
        total_line = spread(core, core.dtype.type(0))
        for t in range(p.ranks[order - 1]):
            part = multiply(spread_from(p.rows, row + t), load(core, t * wide + b))
            total_line = add(total_line, part)
        store(after, (order - 2) * wide + b, total_line)
    for m in range(order - 3, -1, -1):
        rank, row = p.ranks[m], index[m + 1] * width
        for k in range(_blocks(p, m)):
            for r in range(rank):
                source = (m + 1) * wide + (k * rank + r) * width
                after[m * wide + k * width + r] = dot(after, source, p.rows, row, width)


@inlined
def _last_design(rank: int, core: Array, product: Array, wide: int, out: Array, at: int) -> None:
    """Inner products of the core's parts with ``product``, four at a time: one sum waits for itself."""
    line, zero = line_length(core), spread(core, core.dtype.type(0))
    for t in range(0, rank - 3, 4):
        first, second, third, fourth = zero, zero, zero, zero
        for b in range(0, wide, line):
            known, here = load(product, b), t * wide + b
            first = add(first, multiply(known, load(core, here)))
            second = add(second, multiply(known, load(core, here + wide)))
            third = add(third, multiply(known, load(core, here + 2 * wide)))
            fourth = add(fourth, multiply(known, load(core, here + 3 * wide)))
        out[at + t], out[at + t + 1] = total(first), total(second)
        out[at + t + 2], out[at + t + 3] = total(third), total(fourth)
    for t in range(rank - rank % 4, rank):
        out[at + t] = dot(core, t * wide, product, 0, wide)


def _tucker_design(
    p: TuckerArrays,
    index: Array,  # noqa: ARG001
    mode: int,
    core: Array,
    before: Array,
    after: Array,
    product: Array,
    out: Array,
    at: int,
) -> None:
    order, width, line = len(p.ranks), p.rows.shape[1], line_length(p.rows)
    wide = product.shape[0]
    if mode == order - 1:
        _last_design(p.ranks[mode], core, product, wide, out, at)
        return
    blocks = _blocks(p, mode)
    for b in range(0, width, line):
        total_line = spread(out, out.dtype.type(0))
        for k in range(blocks):
            part = multiply(spread_from(before, k), load(after, mode * wide + k * width + b))
            total_line = add(total_line, part)
        store(out, at + b, total_line)


def _tucker_moved(p: TuckerArrays, index: Array, mode: int, before: Array, product: Array) -> None:
    order, width, line = len(p.ranks), p.rows.shape[1], line_length(p.rows)
    row = index[mode] * width
    if mode == order - 2:
        for k in range(before.shape[0]):
            for b in range(0, width, line):
                part = multiply(spread_from(before, k), load(p.rows, row + b))
                store(product, k * width + b, part)
    elif mode < order - 2:
        rank = p.ranks[mode]
        # In place, from the end, since the product grows over what it reads.
        for k in range(_blocks(p, mode) - 1, -1, -1):
            value = before[k]
            for r in range(rank):
                before[k * rank + r] = value * p.rows[index[mode], r]


def _tucker_step_core(
    p: TuckerArrays, index: Array, core: Array, product: Array, keep: Any, scale: Any
) -> None:
    order, wide, line = len(p.ranks), product.shape[0], line_length(p.rows)
    kept = spread(core, keep)
    for t in range(p.ranks[order - 1]):
        weight = spread(core, scale * p.rows[index[order - 1], t])
        for b in range(0, wide, line):
            moved = multiply(weight, load(product, b))
            store(core, t * wide + b, add(multiply(kept, load(core, t * wide + b)), moved))


# -- what kernels call ----------------------------------------------------------------------------


def turn_memory(p: Any) -> Any:
    """Core, ``before``, ``after`` and ``product``, as the functions below keep them."""
    return only_compiled(p)


def begin_turn(p: Any, index: Array, core: Array, before: Array, after: Array) -> None:
    """Start at an entry: contract the core with the rows as they are."""
    only_compiled(p, index, core, before, after)


def turn_design(
    p: Any,
    index: Array,
    mode: int,
    core: Array,
    before: Array,
    after: Array,
    product: Array,
    out: Array,
    at: int,
) -> None:
    """Write the design of ``mode`` to ``out`` from ``at``, the rows before it having moved."""
    only_compiled(p, index, mode, core, before, after, product, out, at)


def row_moved(p: Any, index: Array, mode: int, before: Array, product: Array) -> None:
    """Take note that the row of ``mode`` has moved."""
    only_compiled(p, index, mode, before, product)


def turn_core(p: Any, index: Array, core: Array, product: Array, keep: Any, scale: Any) -> None:
    """``core = keep core + scale kronecker`` of the rows as they are; nothing for a CP model."""
    only_compiled(p, index, core, product, keep, scale)


def put_core_back(p: Any, core: Array) -> None:
    """Write the core back to the model."""
    only_compiled(p, core)


by_model(turn_memory, _cp_memory, _tucker_memory)
by_model(begin_turn, _cp_begin, _tucker_begin)
by_model(turn_design, _cp_design, _tucker_design)
by_model(row_moved, _cp_moved, _tucker_moved)
by_model(turn_core, _cp_step_core, _tucker_step_core)
by_model(put_core_back, _cp_put_back, _tucker_put_back)
