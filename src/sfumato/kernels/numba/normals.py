"""Normal numbers for compiled kernels: a ziggurat of 1024 layers over words of a stream cipher.

The area under the density exp(-x^2/2), x > 0, is covered by layers of equal area (Marsaglia and Tsang
2000). One word picks a layer (10 bits) and a point in it (a sign and 52 bits): 995 times in 1000 the
point lies in the part of the layer that is wholly under the density, and is the number. Otherwise it is
held against the density itself, or, beyond the lowest layer, a tail is drawn by rejection from an
exponential law.

How near to the normal law: points are uniform on 2^53 places across a layer, each of which the density
accepts as often as it should, up to roundings of the widths and heights of layers and of the exponential
function: densities are right to some parts in 10^15. The tail is drawn to 12.6 standard deviations,
beyond which the normal law has 2e-36 of its mass. Floating point all the same: what rests on these
numbers is idealised arithmetic, as with any sampler that is not exact.
Readable twin: ``kernels/reference/normals.py``.
"""

from __future__ import annotations

from math import erfc, exp, log, pi, sqrt
from typing import Any, NamedTuple

import numpy as np

from sfumato.kernels.numba.chacha import WORDS, Words, between, next_word, refill
from sfumato.kernels.numba.compiler import inlined, kernel
from sfumato.kernels.numba.simd import element
from sfumato.types import Array

LAYERS = 1024
TAIL = 4.038849846109505  # where the last layer ends: found so that all layers have the same area


def ziggurat() -> tuple[Array, Array]:
    """Widths of the layers, from the base up, and then zero; and their upper edges.

    What of a layer is as wide as the next one lies wholly under the density. The base has the tail
    besides, and is as wide as a layer of its area and height would be.
    """
    area = TAIL * exp(-(TAIL**2) / 2) + sqrt(pi / 2) * erfc(TAIL / sqrt(2))
    widths, heights = [TAIL], [exp(-(TAIL**2) / 2)]
    for _ in range(LAYERS - 2):
        heights.append(heights[-1] + area / widths[-1])
        widths.append(sqrt(-2 * log(heights[-1])))
    return np.array([area / heights[0], *widths, 0.0]), np.array([*heights, 1.0])


WIDTH, HEIGHT = ziggurat()


class Normals(NamedTuple):
    """Where normal numbers come from: a word for each, and what one in two hundred takes besides."""

    words: Words
    more: Words


def make_normals(generator: np.random.Generator) -> Normals:
    """Normal numbers whose keys are drawn from a generator."""
    return Normals(Words.keyed(generator), Words.keyed(generator))


@inlined
def _layer(word: Any) -> Any:
    return np.int64(word & np.uint64(LAYERS - 1))


@inlined
def _point(word: Any, layer: int) -> Any:
    """A point across a layer: an odd number of 54 bits, sign included, of its parts."""
    return np.float64((np.int64(word) >> 10) | 1) * 2.0**-53 * element(WIDTH, layer)


@kernel
def _at_an_edge(more: Any, word: Any) -> Any:
    """The number of a word whose point is not wholly under the density."""
    while True:
        layer = _layer(word)
        x = _point(word, layer)
        if abs(x) < WIDTH[layer + 1]:
            return x
        if layer == 0:
            while True:
                beyond = -np.log(between(next_word(more))) / TAIL
                if -2 * np.log(between(next_word(more))) > beyond * beyond:
                    return TAIL + beyond if x > 0 else -TAIL - beyond
        low, high = HEIGHT[layer - 1], HEIGHT[layer]
        if low + (high - low) * between(next_word(more)) < np.exp(-x * x / 2):
            return x
        word = next_word(more)


@kernel
def fill_normals(words: Any, more: Any, out: Array) -> None:
    """Independent standard normal numbers, as many as there is room for: a multiple of ``WORDS``."""
    state, at_hand, edges = words.state, words.words, np.empty(WORDS, np.int64)
    for first in range(0, out.shape[0], WORDS):
        refill(state, at_hand)
        found = 0
        for i in range(WORDS):
            word = element(at_hand, i)
            layer = _layer(word)
            x = _point(word, layer)
            out[first + i] = x
            if not abs(x) < element(WIDTH, layer + 1):
                edges[found] = i
                found += 1
        for k in range(found):
            out[first + edges[k]] = _at_an_edge(more, at_hand[edges[k]])
