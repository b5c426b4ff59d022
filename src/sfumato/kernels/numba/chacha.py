"""Random words inside compiled kernels: ChaCha12, a stream cipher, sixteen blocks at a time.

A generator that is asked for one number at a time, through a pointer, takes longer for it than a kernel
for the arithmetic around it. Here a kernel has a stream of its own, keyed by 256 bits of a generator:
where these come from the operating system its words cannot be told from random ones, and where they
come from a seed it is repeated. Additions, exclusive ors and rotations of whole vectors: every processor
has them, and no cipher in hardware is needed.
Readable twin: ``kernels/reference/normals.py``.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir
from numba.core import cgutils, types

from sfumato.kernels.numba.compiler import inlined, kernel
from sfumato.kernels.numba.simd import intrinsic
from sfumato.types import Array

SIDE = 16  # blocks that are computed side by side, one in each lane of a vector
WORDS = 8 * SIDE  # of 64 bits, that they hold
DOUBLE_ROUNDS = 6  # half of the rounds: no attack is known on more than seven of them
CONSTANTS = (0x61707865, 0x3320646E, 0x79622D32, 0x6B206574)  # "expand 32-byte k"


class Words(NamedTuple):
    """A stream of random words: the cipher's state, the words at hand, and how many of them are used."""

    state: Array  # constants, key (8), counter (2), nonce (2)
    words: Array
    used: Array

    @classmethod
    def keyed(cls, generator: np.random.Generator) -> Words:
        """A stream whose key is drawn from a generator."""
        state = np.zeros(16, np.uint32)
        state[:4] = CONSTANTS
        state[4:12] = generator.integers(0, 2**32, 8, np.uint32)
        return cls(state, np.empty(WORDS, np.uint64), np.array([WORDS]))


def _quarter_round(builder: Any, rotate: Any, x: list[Any], a: int, b: int, c: int, d: int) -> None:
    for to, by, turned, bits in ((a, b, d, 16), (c, d, b, 12), (a, b, d, 8), (c, d, b, 7)):
        x[to] = builder.add(x[to], x[by])
        x[turned] = rotate(builder.xor(x[turned], x[to]), bits)


@intrinsic
def _blocks(typingctx: Any, state: Any, words: Any, double_rounds: Any) -> Any:  # noqa: ARG001
    """The key stream of ``SIDE`` blocks from the state's counter on, each vector as it lies."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        number, long = ir.IntType(32), ir.IntType(64)
        vector = ir.VectorType(number, SIDE)
        given, out = (
            context.make_array(kind)(context, builder, array).data
            for kind, array in zip(signature.args[:2], args[:2], strict=True)
        )
        turn = cgutils.get_or_insert_function(
            builder.module, ir.FunctionType(vector, [vector] * 3), f"llvm.fshl.v{SIDE}i32"
        )

        def rotate(x: Any, bits: int) -> Any:
            return builder.call(turn, [x, x, ir.Constant(vector, [bits] * SIDE)])

        def everywhere(x: Any) -> Any:
            nothing = ir.Constant(vector, ir.Undefined)
            first = builder.insert_element(nothing, x, ir.Constant(number, 0))
            return builder.shuffle_vector(first, nothing, ir.Constant(vector, [0] * SIDE))

        start = [everywhere(builder.load(builder.gep(given, [ir.Constant(long, i)]))) for i in range(16)]
        lane = ir.Constant(vector, list(range(SIDE)))
        start[12] = builder.add(start[12], lane)
        carried = builder.icmp_unsigned("<", start[12], lane)
        start[13] = builder.add(start[13], builder.zext(carried, vector))

        before, rounds = builder.block, builder.append_basic_block("rounds")
        builder.branch(rounds)
        builder.position_at_end(rounds)
        done, x = builder.phi(number), [builder.phi(vector) for _ in range(16)]
        begun = list(zip([done, *x], [ir.Constant(number, 0), *start], strict=True))
        for value, first in begun:
            value.add_incoming(first, before)
        for turned in (0, 1):  # columns, then diagonals
            for i in range(4):
                places = (4 * row + (i + turned * row) % 4 for row in range(4))
                _quarter_round(builder, rotate, x, *places)
        after = builder.add(done, ir.Constant(number, 1))
        for (value, _), last in zip(begun, [after, *x], strict=True):
            value.add_incoming(last, rounds)
        ended = builder.append_basic_block("ended")
        more = builder.icmp_unsigned("<", after, builder.trunc(args[2], number))
        builder.cbranch(more, rounds, ended)
        builder.position_at_end(ended)
        for i in range(16):
            place = builder.gep(out, [ir.Constant(long, i * SIDE // 2)])
            line = builder.add(x[i], start[i])
            builder.store(line, builder.bitcast(place, vector.as_pointer()), align=8)
        return context.get_dummy_value()

    return types.void(state, words, types.int64), generate


@kernel
def refill(state: Array, words: Array, double_rounds: int = DOUBLE_ROUNDS) -> None:
    """The next ``WORDS`` words of the stream."""
    _blocks(state, words, double_rounds)
    counter = np.uint64(state[12]) + np.uint64(SIDE)
    state[12] = np.uint32(counter & np.uint64(0xFFFFFFFF))
    state[13] += np.uint32(counter >> np.uint64(32))


@inlined
def next_word(stream: Any) -> Any:
    """64 random bits."""
    if stream.used[0] == WORDS:
        refill(stream.state, stream.words)
        stream.used[0] = 0
    word = stream.words[stream.used[0]]
    stream.used[0] += 1
    return word


@inlined
def between(word: Any) -> Any:
    """A number of (0, 1], nearly in the middle of one of 2^53 equal parts of the unit interval."""
    return (np.float64(word >> np.uint64(11)) + 0.5) * 2.0**-53
