"""Products of matrices that are the same whatever lies beside a row.

What a library of linear algebra makes of a row may depend on where it lies: on some processors the rows
at the end of a matrix, or at that of a thread's share, are added up in another order than the rest, and
one example more changes by a digit what is made of the others. Here every number of a product is one
chain of fused steps, in the order of the columns (``product``), or a whole number without any rounding
(``add_exact_sums``), of as many rows and on as many threads as there may be.

Both lay their matrices out for a tile that the registers hold. Whole numbers are cut into digits of so
few bits that a block of rows adds up in 32 bits, in pairs, for which processors have an instruction.
"""

from __future__ import annotations

from functools import partial
from math import ceil
from typing import Any

import numpy as np
from llvmlite import binding, ir
from numba.core import cgutils, types

from sfumato.kernels.numba.compiler import ordered_inlined, ordered_kernel
from sfumato.kernels.numba.simd import address, aligned_zeros, intrinsic, lanes, splat
from sfumato.kernels.numba.threads import share
from sfumato.types import Array

LANES = lanes(np.float32)
ROWS = 6  # of a tile
LINES = 4 if binding.get_host_cpu_features().get("avx512f") else 1  # as many as registers hold
COLUMNS = LINES * LANES
_BLOCK = 16 * ROWS  # rows that are laid out at once: they stay in the cache
_PAIRS = 64  # pairs of rows that are added up in 32 bits
_MOST = 2**15  # what goes in has to be below it, to be one digit
_SINGLE, _SHORT, _WORD, _LONG = ir.FloatType(), ir.IntType(16), ir.IntType(32), ir.IntType(64)


# -- tiles ---------------------------------------------------------------------------------------------


def _sums_of(builder: Any, vector: Any) -> list[list[Any]]:
    """A sum of zero for every line of a tile; they are in registers."""
    zero = ir.Constant(vector, None)
    sums = [[cgutils.alloca_once(builder, vector) for _ in range(LINES)] for _ in range(ROWS)]
    for lines in sums:
        for place in lines:
            builder.store(zero, place)
    return sums


def _line(builder: Any, start: Any, place: Any, vector: Any) -> Any:
    """The vector that begins so many numbers after the start."""
    number = builder.gep(start, [place])
    return builder.load(builder.bitcast(number, vector.as_pointer()), align=64)


def _written(context: Any, builder: Any, kind: Any, out: Any, sums: list[list[Any]]) -> Any:
    for row, lines in enumerate(sums):
        for line, place in enumerate(lines):
            found = builder.load(place)
            where = address(context, builder, kind, out, _LONG(row * COLUMNS + line * LANES))
            builder.store(found, builder.bitcast(where, found.type.as_pointer()), align=64)
    return context.get_dummy_value()


@intrinsic
def _tile(  # type: ignore[no-untyped-def]
    typingctx,  # noqa: ARG001
    rows,
    first,  # noqa: ARG001
    weights,
    place,  # noqa: ARG001
    depth,  # noqa: ARG001
    out,
):
    """Products of ROWS rows with COLUMNS columns, from the first column of the rows on."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        vector, kinds = ir.VectorType(_SINGLE, LANES), signature.args
        step = ir.FunctionType(vector, [vector] * 3)
        fused = cgutils.get_or_insert_function(builder.module, step, f"llvm.fma.v{LANES}f32")
        left = address(context, builder, kinds[0], args[0], args[1])
        right = address(context, builder, kinds[2], args[2], args[3])
        sums = _sums_of(builder, vector)
        with cgutils.for_range(builder, args[4]) as loop:
            begin = builder.mul(loop.index, _LONG(COLUMNS))
            places = [builder.add(begin, _LONG(line * LANES)) for line in range(LINES)]
            lines = [_line(builder, right, each, vector) for each in places]
            numbers = builder.gep(left, [builder.mul(loop.index, _LONG(ROWS))])
            for row in range(ROWS):
                number = splat(builder, vector, builder.load(builder.gep(numbers, [_LONG(row)])))
                for line, to in zip(lines, sums[row], strict=True):
                    builder.store(builder.call(fused, [number, line, builder.load(to)]), to)
        return _written(context, builder, kinds[5], args[5], sums)

    return types.void(rows, types.int64, weights, types.int64, types.int64, out), generate


@intrinsic
def _whole_tile(  # type: ignore[no-untyped-def]
    typingctx,  # noqa: ARG001
    rows,
    first,  # noqa: ARG001
    digits,
    place,  # noqa: ARG001
    pairs,  # noqa: ARG001
    out,
):
    """The same of 16-bit numbers in pairs, which are multiplied and added up in 32 bits."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kinds, both = signature.args, 2 * LANES
        short, word = ir.VectorType(_SHORT, both), ir.VectorType(_WORD, LANES)
        wide = ir.VectorType(_WORD, both)
        nothing = ir.Constant(wide, ir.Undefined)
        evens, odds = (ir.Constant(word, list(range(side, both, 2))) for side in (0, 1))
        left = address(context, builder, kinds[0], args[0], args[1])
        right = address(context, builder, kinds[2], args[2], args[3])
        sums = _sums_of(builder, word)
        with cgutils.for_range(builder, args[4]) as loop:
            begin = builder.mul(loop.index, _LONG(COLUMNS))
            places = [builder.add(begin, _LONG(line * LANES)) for line in range(LINES)]
            lines = [builder.sext(_line(builder, right, each, short), wide) for each in places]
            numbers = builder.gep(left, [builder.mul(loop.index, _LONG(ROWS))])
            for row in range(ROWS):
                pair = builder.load(builder.gep(numbers, [_LONG(row)]))
                number = builder.sext(builder.bitcast(splat(builder, word, pair), short), wide)
                for line, to in zip(lines, sums[row], strict=True):
                    product = builder.mul(number, line)
                    halves = (builder.shuffle_vector(product, nothing, side) for side in (evens, odds))
                    builder.store(builder.add(builder.load(to), builder.add(*halves)), to)
        return _written(context, builder, kinds[5], args[5], sums)

    return types.void(rows, types.int64, digits, types.int64, types.int64, out), generate


# -- products of numbers -------------------------------------------------------------------------------


def product(rows: Array, weights: Array) -> Array:
    """Rows times weights, in single precision."""
    depth, width = weights.shape
    laid = aligned_zeros((ceil(width / COLUMNS), depth, COLUMNS), np.float32)
    share(len(laid), weights.size, partial(_lay_weights, weights, laid))
    out = np.empty((len(rows), width), np.float32)

    def work(first: int, last: int) -> None:
        block = aligned_zeros((_BLOCK // ROWS, depth, ROWS), np.float32)
        _product(rows, laid, out, first, last, block, aligned_zeros((ROWS, COLUMNS), np.float32))

    share(len(rows), rows.size, work)
    return out


@ordered_kernel
def _lay_weights(weights: Array, laid: Array, first: int, last: int) -> None:
    """Columns of a tile side by side; those beyond the last are zero."""
    for panel in range(first, last):
        for k in range(weights.shape[0]):
            mine, to = weights[k, panel * COLUMNS : (panel + 1) * COLUMNS], laid[panel, k]
            for column in range(mine.shape[0]):
                to[column] = mine[column]


@ordered_kernel
def _product(
    rows: Array, laid: Array, out: Array, first: int, last: int, block: Array, tile: Array
) -> None:
    depth, width = rows.shape[1], out.shape[1]
    for begin in range(first, last, _BLOCK):
        number = min(_BLOCK, last - begin)
        for row in range(number):
            mine, to, place = rows[begin + row], block[row // ROWS], row % ROWS
            for k in range(depth):
                to[k, place] = mine[k]
        for panel in range(laid.shape[0]):
            left = min(COLUMNS, width - panel * COLUMNS)
            for row in range(0, number, ROWS):
                _tile(block, row * depth, laid, panel * depth * COLUMNS, depth, tile)
                for other in range(min(ROWS, number - row)):
                    to = out[begin + row + other, panel * COLUMNS : panel * COLUMNS + left]
                    for column in range(left):
                        to[column] = tile[other, column]


# -- sums of products of whole numbers -----------------------------------------------------------------


def add_exact_sums(rows: Array, whole: Array, out: Array) -> None:
    """Add, for each column of the rows and of the others, the sum of products of whole numbers.

    Sums of sizes of products stay below 2^53, as those of clipped gradients do: rows of larger numbers
    are added up in double precision, without rounding as well.
    """
    largest, most = (max(-int(each.min(initial=0)), int(each.max(initial=0))) for each in (rows, whole))
    if largest >= _MOST:
        out += np.asarray(rows.astype(np.float64).T @ whole.astype(np.float64)).astype(np.int64)
        return
    # Digits lie between plus and minus half their range, and sums of so many pairs below 2^31.
    bits = min(16, 32 - (2 * _PAIRS).bit_length() + 1 - largest.bit_length())
    digits = ceil((most.bit_length() + 2) / bits)
    pairs = _PAIRS * ceil(len(rows) / (2 * _PAIRS))
    panels, tiles = ceil(whole.shape[1] / COLUMNS), ceil(rows.shape[1] / ROWS)
    # Of two numbers of 16 bits each.
    left = aligned_zeros((tiles, pairs, ROWS), np.int32)
    right = aligned_zeros((digits, panels, pairs, COLUMNS), np.int32)
    share(pairs, rows.size, partial(_lay_out, rows, whole, bits, left, right))

    def work(first: int, last: int) -> None:
        _add_tiles(left, right, bits, out, first, last, aligned_zeros((ROWS, COLUMNS), np.int32))

    share(tiles, rows.size, work)


@ordered_inlined
def _both(low: Any, high: Any) -> Any:
    """Two numbers of 16 bits side by side, the first one at the lower address."""
    return np.int32((np.int64(high) << 16) | (np.int64(low) & 0xFFFF))


@ordered_kernel
def _lay_out(
    rows: Array, whole: Array, bits: int, left: Array, right: Array, first: int, last: int
) -> None:
    """Some pairs of rows for tiles; digits of whole numbers, lowest first."""
    half, mask, shift = np.int64(1) << (bits - 1), (np.int64(1) << bits) - 1, np.int64(0)
    for digit in range(right.shape[0]):
        shift += half << (digit * bits)  # so that all digits are positive
    no_row, no_number = np.zeros(rows.shape[1], rows.dtype), np.zeros(whole.shape[1], whole.dtype)
    for pair in range(first, min(last, (rows.shape[0] + 1) // 2)):
        two = 2 * pair + 1 < rows.shape[0]
        one, other = rows[2 * pair], rows[2 * pair + 1] if two else no_row
        for begin in range(0, rows.shape[1], ROWS):
            to = left[begin // ROWS, pair]
            for place in range(min(ROWS, rows.shape[1] - begin)):
                to[place] = _both(one[begin + place], other[begin + place])
        low, high = whole[2 * pair], whole[2 * pair + 1] if two else no_number
        for begin in range(0, whole.shape[1], COLUMNS):
            mine, next_one = low[begin : begin + COLUMNS], high[begin : begin + COLUMNS]
            for digit in range(right.shape[0]):
                to, by = right[digit, begin // COLUMNS, pair], digit * bits
                for place in range(mine.shape[0]):
                    one_digit = ((np.int64(mine[place]) + shift) >> by & mask) - half
                    next_digit = ((np.int64(next_one[place]) + shift) >> by & mask) - half
                    to[place] = _both(one_digit, next_digit)


@ordered_kernel
def _add_tiles(
    left: Array, right: Array, bits: int, out: Array, first: int, last: int, tile: Array
) -> None:
    """Sums for some tiles of the rows' columns."""
    pairs, sums = left.shape[1], np.empty((ROWS, COLUMNS), np.int64)
    for panel in range(right.shape[1]):
        for number in range(first, last):
            sums[:] = 0
            for digit in range(right.shape[0]):
                start = (digit * right.shape[1] + panel) * pairs * COLUMNS
                for pair in range(0, pairs, _PAIRS):
                    at = (number * pairs + pair) * ROWS
                    _whole_tile(left, at, right, start + pair * COLUMNS, _PAIRS, tile)
                    for row in range(ROWS):
                        for column in range(COLUMNS):
                            sums[row, column] += np.int64(tile[row, column]) << (digit * bits)
            for row in range(min(ROWS, out.shape[0] - number * ROWS)):
                to = out[number * ROWS + row, panel * COLUMNS : (panel + 1) * COLUMNS]
                for column in range(to.shape[0]):
                    to[column] += sums[row, column]
