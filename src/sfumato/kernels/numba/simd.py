"""Short vectors inside compiled kernels: one cache line of a factor matrix at a time.

LLVM does not vectorise the small loops over a factor's row by itself, since it cannot know that
the rows of two modes do not overlap. Here a kernel says so by loading, computing and storing whole
lines. A vector holds 64 bytes: 16 float32 or 8 float64. Positions are element numbers into a
C-contiguous array and are not checked: rows are padded to whole lines (see ``padded_width``).
"""

from __future__ import annotations

import platform
from typing import Any

import numpy as np
from llvmlite import ir
from numba import extending
from numba.core import cgutils, types
from numpy.typing import DTypeLike, NDArray

LINE_BYTES = 64
intrinsic: Any = extending.intrinsic  # its own type hides the first argument


def lanes(dtype: DTypeLike) -> int:
    """Elements in one line."""
    return LINE_BYTES // np.dtype(dtype).itemsize


def padded_width(width: int, dtype: DTypeLike) -> int:
    """Smallest whole number of lines, in elements, that holds ``width`` elements."""
    per_line = lanes(dtype)
    return -(-width // per_line) * per_line


def aligned_zeros(shape: tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]:
    """Zeros that start on a line's boundary, so that a padded row never straddles one more line."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    memory = np.zeros(size + LINE_BYTES, np.uint8)
    start = -memory.ctypes.data % LINE_BYTES
    return memory[start : start + size].view(dtype).reshape(shape)


class Line(types.Type):
    """Numba type of a vector of one line."""

    def __init__(self, element: types.Float) -> None:
        self.element = element
        super().__init__(name=f"Line({element})")


@extending.register_model(Line)
class _LineModel(extending.models.PrimitiveModel):
    def __init__(self, dmm: Any, fe_type: Line) -> None:
        element = dmm.lookup(fe_type.element).get_value_type()
        super().__init__(
            dmm, fe_type, ir.VectorType(element, LINE_BYTES * 8 // fe_type.element.bitwidth)
        )


def address(context: Any, builder: Any, array_type: Any, array: Any, position: Any) -> Any:
    """Of an array's element, for intrinsics."""
    data = context.make_array(array_type)(context, builder, array).data
    return builder.gep(data, [position])


@intrinsic
def load(typingctx: Any, array: Any, position: Any) -> Any:  # noqa: ARG001
    """The line that starts at an element."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pointer = address(context, builder, signature.args[0], *args)
        vector = context.get_value_type(signature.return_type)
        return builder.load(
            builder.bitcast(pointer, vector.as_pointer()), align=array.dtype.bitwidth // 8
        )

    return Line(array.dtype)(array, types.int64), generate


@intrinsic
def store(typingctx: Any, array: Any, position: Any, line: Any) -> Any:  # noqa: ARG001
    """Write a line at an element."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pointer = address(context, builder, signature.args[0], args[0], args[1])
        builder.store(
            args[2],
            builder.bitcast(pointer, args[2].type.as_pointer()),
            align=array.dtype.bitwidth // 8,
        )
        return context.get_dummy_value()

    return types.void(array, types.int64, line), generate


def splat(builder: Any, vector: Any, number: Any) -> Any:
    """A vector with the same number in every lane, for intrinsics."""
    undefined = ir.Constant(vector, ir.Undefined)
    first = builder.insert_element(undefined, number, ir.Constant(ir.IntType(32), 0))
    zeros = ir.Constant(ir.VectorType(ir.IntType(32), vector.count), [0] * vector.count)
    return builder.shuffle_vector(first, undefined, zeros)


@intrinsic
def element(typingctx: Any, array: Any, position: Any) -> Any:  # noqa: ARG001
    """The array's element at a position (Numba's indexing would test for negative numbers)."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.load(address(context, builder, signature.args[0], *args))

    return array.dtype(array, types.int64), generate


@intrinsic
def spread(typingctx: Any, array: Any, number: Any) -> Any:  # noqa: ARG001
    """A line with the same number in every lane, of the array's type."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return splat(builder, context.get_value_type(signature.return_type), args[1])

    return Line(array.dtype)(array, array.dtype), generate


@intrinsic
def spread_from(typingctx: Any, array: Any, position: Any) -> Any:  # noqa: ARG001
    """A line with the array's element at a position in every lane."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        number = builder.load(address(context, builder, signature.args[0], *args))
        return splat(builder, context.get_value_type(signature.return_type), number)

    return Line(array.dtype)(array, types.int64), generate


def _elementwise(instruction: str, doc: str) -> Any:
    def build(typingctx: Any, left: Any, right: Any) -> Any:  # noqa: ARG001
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:  # noqa: ARG001
            return getattr(builder, instruction)(*args, flags=("contract",))

        return left(left, right), generate

    build.__doc__ = doc
    return intrinsic(build)


multiply = _elementwise("fmul", "Product, lane by lane.")
add = _elementwise("fadd", "Sum, lane by lane.")


@intrinsic
def add_whole(typingctx: Any, array: Any, position: Any, line: Any) -> Any:  # noqa: ARG001
    """Add every lane, cut towards zero, to the whole numbers that start at an element.

    A whole double below 2^51 becomes the last bits of its sum with 1.5 times 2^52: every processor can
    add up a line at a time, while few can turn one of doubles into 64-bit numbers.
    """

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pointer, vector = address(context, builder, signature.args[0], *args[:2]), args[2].type
        name = f"llvm.trunc.v{vector.count}{vector.element.intrinsic_name}"
        cut = cgutils.get_or_insert_function(builder.module, ir.FunctionType(vector, [vector]), name)
        whole = ir.VectorType(ir.IntType(64), vector.count)
        shift = splat(builder, vector, ir.Constant(vector.element, 1.5 * 2.0**52))
        shifted = builder.bitcast(builder.fadd(builder.call(cut, args[2:]), shift), whole)
        number = builder.sub(shifted, builder.bitcast(shift, whole))
        place = builder.bitcast(pointer, whole.as_pointer())
        builder.store(builder.add(builder.load(place, align=8), number), place, align=8)
        return context.get_dummy_value()

    return types.void(array, types.int64, line), generate


@intrinsic
def total(typingctx: Any, line: Any) -> Any:  # noqa: ARG001
    """Sum over the lanes, in a fixed tree order."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:  # noqa: ARG001
        vector, count = args[0], args[0].type.count
        while count > 1:
            count //= 2
            low, high = (
                builder.shuffle_vector(
                    vector,
                    ir.Constant(vector.type, ir.Undefined),
                    ir.Constant(ir.VectorType(ir.IntType(32), count), list(range(s, s + count))),
                )
                for s in (0, count)
            )
            vector = builder.fadd(low, high)
        return builder.extract_element(vector, ir.Constant(ir.IntType(32), 0))

    return line.element(line), generate


@intrinsic
def prefetch(typingctx: Any, array: Any, position: Any) -> Any:  # noqa: ARG001
    """Ask for the line at an element, so that it is in the cache when it is loaded."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pointer = builder.bitcast(address(context, builder, signature.args[0], *args), cgutils.voidptr_t)
        word = ir.IntType(32)
        function = cgutils.get_or_insert_function(
            builder.module,
            ir.FunctionType(ir.VoidType(), [cgutils.voidptr_t, word, word, word]),
            "llvm.prefetch.p0",
        )
        # for writing, keep in every cache, data
        builder.call(function, [pointer, *(ir.Constant(word, flag) for flag in (1, 3, 1))])
        return context.get_dummy_value()

    return types.void(array, types.int64), generate


@intrinsic
def line_length(typingctx: Any, array: Any) -> Any:  # noqa: ARG001
    """Elements in one line of the array's type, as a constant of the compiled code."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:  # noqa: ARG001
        return context.get_constant(types.int64, LINE_BYTES * 8 // array.dtype.bitwidth)

    return types.int64(array), generate


@intrinsic
def flush_denormals(typingctx: Any) -> Any:  # noqa: ARG001
    """Let the calling thread take numbers too small for full precision for zero.

    Components that a penalty shrinks away end as such numbers, which x86 computes with a hundred
    times more slowly. Other processors do not mind them and keep them.
    """

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:  # noqa: ARG001
        if platform.machine().lower() in ("x86_64", "amd64"):
            word = ir.IntType(32)
            register = cgutils.alloca_once(builder, word)
            pointer = builder.bitcast(register, cgutils.voidptr_t)
            kind = ir.FunctionType(ir.VoidType(), [cgutils.voidptr_t])
            read, write = (
                cgutils.get_or_insert_function(builder.module, kind, f"llvm.x86.sse.{name}")
                for name in ("stmxcsr", "ldmxcsr")
            )
            builder.call(read, [pointer])
            flags = ir.Constant(word, 0x8040)  # flush results to zero, take operands for zero
            builder.store(builder.or_(builder.load(register), flags), register)
            builder.call(write, [pointer])
        return context.get_dummy_value()

    return types.void(), generate
