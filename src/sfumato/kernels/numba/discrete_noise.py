"""Discrete Gaussian and geometric numbers from random words, exactly, on all threads.

See ``kernels/discrete.py`` for the laws, and for what decides a comparison that doubles cannot.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

import numpy as np

from sfumato.kernels.discrete import ATTEMPT, MOST_NUMBER, DiscreteLaw, Table, attempt, table
from sfumato.kernels.numba.compiler import ordered_kernel
from sfumato.kernels.numba.threads import run
from sfumato.types import Array

PIECE = 1 << 14  # numbers that come from one stream of words: they stay in the cache
_HAIR = 2.0**-44  # more than doubles err by here
_MOST_TERMS = 24  # of the exponential series: what is left is below the hair
_REJECTED = 1.08  # attempts for a number, about
_MADE, _SHORT, _UNDECIDED = 0, 1, 2


class Words(Protocol):
    """Independent streams of random words, by number."""

    def stream(self, number: int) -> Callable[[int], Array]: ...


@ordered_kernel
def fill(out: Array, begin: int, words: Array, use: int, law: Any) -> Any:
    """Write numbers to ``out`` from ``begin`` on, from the words from ``use`` on.

    Gives where both have come to, and whether all numbers are made, words are missing, or the attempt
    that begins with the next word is undecided.
    """
    cuts, guide, slopes, curve, place_bits = law
    bits = np.uint64(place_bits)
    places = (np.uint64(1) << bits) - np.uint64(1)
    beyond = np.uint64(MOST_NUMBER) >> bits  # strips of numbers that are too large
    while begin < out.shape[0]:
        if use + ATTEMPT > words.shape[0]:
            return begin, use, _SHORT
        which, where, chance = words[use], words[use + 1], words[use + 2]
        strip = guide[which >> np.uint64(56)]
        while cuts[strip] < which:
            strip += 1
        if cuts[strip] == which:
            return begin, use, _UNDECIDED
        place, negative = where & places, where >> np.uint64(63)
        if strip == 0 and place == 0 and negative:  # zero has one sign
            use += ATTEMPT
            continue
        u = np.float64(place)
        exponent = (slopes[strip] + curve * u) * u
        # The series of exp(-exponent) has bounds from both sides in turn.
        p, bound, term, number = np.float64(chance) * 2.0**-64, 1.0, 1.0, 0
        kept = rejected = False
        while not (kept or rejected) and number < _MOST_TERMS:
            term *= exponent / (number + 1)
            bound -= term
            kept = p < bound - _HAIR
            term *= exponent / (number + 2)
            bound += term
            rejected = p > bound + _HAIR
            number += 2
        if kept:
            size = np.int64(MOST_NUMBER)
            if np.uint64(strip) < beyond:
                size = np.int64((np.uint64(strip) << bits) + place)
            out[begin] = -size if negative else size
            begin += 1
        elif not rejected:
            return begin, use, _UNDECIDED
        use += ATTEMPT
    return begin, use, _MADE


def draw(law: DiscreteLaw, size: int, words: Words, threads: int) -> Array:
    """So many independent numbers of a law; the same for any number of threads."""
    out, read = np.empty(size, np.int64), table(law)
    pieces = range(0, size, PIECE)
    tasks = [
        partial(_draw_piece, law, read, out[first : first + PIECE], words, number)
        for number, first in enumerate(pieces)
    ]
    if len(tasks) == 1:
        tasks[0]()
    elif tasks:
        run(tasks, threads)
    return out


def _draw_piece(law: DiscreteLaw, read: Table, out: Array, words: Words, number: int) -> None:
    """Streams come in pairs: one for attempts, one for what decides those that are undecided."""
    stream, made = words.stream(2 * number), 0
    more: Callable[[], int] | None = None
    while made < out.shape[0]:
        batch, use = stream(ATTEMPT * (int(_REJECTED * (out.shape[0] - made)) + 4)), 0
        state = _UNDECIDED
        while state == _UNDECIDED:
            made, use, state = fill(out, made, batch, use, read)
            if state == _UNDECIDED:
                more = more or _one_by_one(words.stream(2 * number + 1))
                which, where, chance = (int(word) for word in batch[use : use + ATTEMPT])
                decided = attempt(law, (which, where, chance), more)
                use += ATTEMPT
                if decided is not None:
                    out[made] = decided
                    made += 1


def _one_by_one(stream: Callable[[int], Array]) -> Callable[[], int]:
    return lambda: int(stream(1)[0])
