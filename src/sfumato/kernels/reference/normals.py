"""Readable twins of the random words and numbers of kernels: the same bits, one number at a time."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from sfumato.kernels.numba.chacha import DOUBLE_ROUNDS, SIDE, Words
from sfumato.kernels.numba.normals import HEIGHT, LAYERS, TAIL, WIDTH

_ROTATIONS = (16, 12, 8, 7)


def block_reference(state: list[int], double_rounds: int = DOUBLE_ROUNDS) -> list[int]:
    """One block of ChaCha: sixteen words of 32 bits."""
    x = list(state)
    for _ in range(double_rounds):
        for turned in (0, 1):  # columns, then diagonals
            for i in range(4):
                a, b, c, d = (4 * row + (i + turned * row) % 4 for row in range(4))
                for (to, by, mixed), bits in zip(((a, b, d), (c, d, b)) * 2, _ROTATIONS, strict=True):
                    x[to] = (x[to] + x[by]) % 2**32
                    x[mixed] ^= x[to]
                    x[mixed] = (x[mixed] << bits | x[mixed] >> (32 - bits)) % 2**32
    return [(one + other) % 2**32 for one, other in zip(x, state, strict=True)]


def words_reference(words: Words) -> Iterator[int]:
    """The words of a stream: of ``SIDE`` blocks the first words of all, then the second, and so on."""
    state: list[int] = words.state.tolist()
    counter = state[12] + (state[13] << 32)
    while True:
        blocks = []
        for k in range(counter, counter + SIDE):
            state[12:14] = k % 2**32, k >> 32
            blocks.append(block_reference(state))
        for word in zip(*blocks, strict=True):
            yield from (low + (high << 32) for low, high in zip(word[::2], word[1::2], strict=True))
        counter += SIDE


def between_reference(word: int) -> float:
    return ((word >> 11) + 0.5) * 2.0**-53


def exponentials_reference(generator: np.random.Generator) -> Iterator[float]:
    """Exponential numbers, equal to those of kernels up to rounding."""
    for word in words_reference(Words.keyed(generator)):
        yield -np.log(between_reference(word))


def normals_reference(generator: np.random.Generator) -> Iterator[float]:
    """Normal numbers from a ziggurat."""
    words, more = (words_reference(Words.keyed(generator)) for _ in range(2))
    for word in words:
        number = None
        while number is None:
            number = _point_reference(word, more)
            word = word if number is not None else next(more)  # noqa: PLW2901
        yield number


def _point_reference(word: int, more: Iterator[int]) -> float | None:
    """The number of a word, or None where its point lies above the density."""
    layer = word % LAYERS
    signed = word - 2**64 if word >= 2**63 else word
    x = ((signed >> 10) | 1) * 2.0**-53 * WIDTH[layer]
    if abs(x) < WIDTH[layer + 1]:
        return float(x)
    if layer == 0:
        while True:
            beyond = -np.log(between_reference(next(more))) / TAIL
            if -2 * np.log(between_reference(next(more))) > beyond * beyond:
                return float(np.copysign(TAIL + beyond, x))
    low, high = HEIGHT[layer - 1], HEIGHT[layer]
    under = low + (high - low) * between_reference(next(more)) < np.exp(-x * x / 2)
    return float(x) if under else None
