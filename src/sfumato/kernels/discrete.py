"""Discrete laws in strips, and comparisons with real numbers that are really decided.

A law on whole numbers gives y a weight exp(-exponent(y)), where the exponent is rational and grows with
|y|: the discrete Gaussian, and the two-sided geometric law. A number is drawn in three steps:

1. the half-line is cut into strips of width T, a power of two of about a twelfth of the scale, and a
   strip v is drawn by the weight of its first number, exp(-exponent(v T));
2. a place U in it is drawn from as many random bits as T has, and a sign;
3. y = v T + U is kept with probability exp(exponent(v T) - exponent(y)), which is nearly one; and zero
   with one of its two signs only. Otherwise all three are drawn anew.

Steps 1 and 3 compare a uniform number of [0, 1), of which random words are the first bits, with a real
one. Kernels decide that by the first 64 bits and in doubles, unless these are too close to tell: then
the functions here decide it, by more bits and in whole numbers of as many digits as it takes. No
probability is rounded, no tail is cut off. Proof: ``proofs/sampling.md``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, lru_cache
from itertools import pairwise
from math import frexp, isfinite
from typing import Literal, NamedTuple

import numpy as np

from sfumato.types import Array

WORD = 64  # random bits that come at a time
ATTEMPT = 3  # words of an attempt: strip, place and sign, whether to keep it
MOST_SCALE = 2.0**59
MOST_NUMBER = 2**62  # larger numbers are drawn as this one
_GUIDE = 256
_STRIPS = 3  # the scale has 2^3 to 2^4 strips, or is smaller than that
_SPARE = 24  # bits beyond those that are asked for

Kind = Literal["gaussian", "geometric"]
MoreWords = Callable[[], int]


class Between(NamedTuple):
    """A real number in whole units of 2^-bits: not below ``low``, not above ``high``."""

    low: int
    high: int


@dataclass(frozen=True)
class DiscreteLaw:
    """P(y) proportional to exp(-y^2 / (2 scale^2)), or to exp(-|y| / scale), on all whole numbers.

    The scale is the number that the double stands for.
    """

    kind: Kind
    scale: float

    def __post_init__(self) -> None:
        if not (isfinite(self.scale) and 0 < self.scale <= MOST_SCALE):
            raise ValueError(f"the scale of a discrete law lies above 0, at most at 2^59: {self.scale}")

    def exponent(self, y: int) -> Fraction:
        if self.kind == "gaussian":
            return Fraction(y * y) / (2 * Fraction(self.scale) ** 2)
        return abs(y) / Fraction(self.scale)

    @cached_property
    def place_bits(self) -> int:
        """Of the places in a strip: its width is two to this power."""
        return max(0, frexp(self.scale)[1] - 1 - _STRIPS)


# -- in whole numbers --------------------------------------------------------------------------------


def exp_between(a: Fraction, bits: int) -> Between:
    """exp(-a) for a >= 0, in units of 2^-bits.

    The argument is halved until it is below 1/2, the series is added up in fixed point, and the result
    is squared as often, rounded outwards. Each term is rounded down by less than two units, and so is
    the first that is left out.
    """
    if a > bits:  # less than half of one unit
        return Between(0, 1)
    halvings = max(0, a.numerator.bit_length() - a.denominator.bit_length() + 2)
    unit = bits + halvings + _SPARE
    x = (a.numerator << unit) // (a.denominator << halvings)
    ends = []
    for argument in (x + 1, x):  # from above, from below: exp(-a) lies between
        total = term = 1 << unit
        number = 0
        while term:
            number += 1
            term = term * argument // (number << unit)
            total += -term if number % 2 else term
        ends.append((total, 2 * number + 2))
    (low, below), (high, above) = ends
    low, high = max(low - below, 0), min(high + above, 1 << unit)
    for _ in range(halvings):
        low, high = low * low >> unit, -(-high * high >> unit)
    shift = unit - bits
    return Between(low >> shift, -(-high >> shift))


def _weights(law: DiscreteLaw, bits: int) -> Iterator[tuple[Between, Between]]:
    """Weight of every strip's first number, and that of the next over it, in units of 2^-bits.

    Exponents of strips are a polynomial of degree two at most: the ratio changes by one factor.
    """
    width = 1 << law.place_bits
    once, twice = law.exponent(width), law.exponent(2 * width)
    weight = Between(1 << bits, 1 << bits)
    ratio, factor = exp_between(once, bits), exp_between(twice - 2 * once, bits)
    while True:
        yield weight, ratio
        weight, ratio = _times(weight, ratio, bits), _times(ratio, factor, bits)


def _times(a: Between, b: Between, bits: int) -> Between:
    return Between(a.low * b.low >> bits, -(-a.high * b.high >> bits))


@lru_cache(maxsize=8)
def thresholds(law: DiscreteLaw, bits: int) -> tuple[Between, ...]:
    """Probability of each strip and those before it, in units of 2^-bits, up to where one unit is left.

    What is behind the last strip counts in the whole: ratios never grow, so it is less than a geometric
    series.
    """
    unit = bits + _SPARE
    one, sums = 1 << unit, [Between(0, 0)]
    for weight, ratio in _weights(law, unit):
        behind = weight.high * one // max(one - ratio.high, 1) + 1  # of this strip and all behind it
        if len(sums) > 1 and behind < 1 << (_SPARE - 1):
            break
        sums.append(Between(sums[-1].low + weight.low, sums[-1].high + weight.high))
    least, most = sums[-1].low, sums[-1].high + behind
    return tuple(
        Between((s.low << bits) // most, min(-(-(s.high << bits) // least), 1 << bits)) for s in sums[1:]
    )


class _Uniform:
    """A uniform number of [0, 1), of which the first bits are known and more can be asked for."""

    def __init__(self, word: int, more: MoreWords) -> None:
        self.bits, self._number, self._more = WORD, word, more

    @property
    def between(self) -> Between:
        """The number, whatever its other bits, in units of one word more: bounds are as fine as that."""
        return Between(self._number << WORD, self._number + 1 << WORD)

    def extend(self) -> None:
        self._number = self._number << WORD | self._more()
        self.bits += WORD


def decide_strip(law: DiscreteLaw, word: int, more: MoreWords) -> int:
    """The strip whose share of [0, 1) the uniform number lies in, of which ``word`` is the beginning."""
    uniform = _Uniform(word, more)
    while True:
        low, high = uniform.between
        cuts = thresholds(law, uniform.bits + WORD)
        for strip, (before, here) in enumerate(pairwise((Between(0, 0), *cuts))):
            if before.high <= low and high <= here.low:
                return strip
        uniform.extend()


def decide_keep(exponent: Fraction, word: int, more: MoreWords) -> bool:
    """Whether the uniform number that begins with ``word`` is below exp(-exponent)."""
    uniform = _Uniform(word, more)
    while True:
        low, high = uniform.between
        chance = exp_between(exponent, uniform.bits + WORD)
        if high <= chance.low:
            return True
        if low >= chance.high:
            return False
        uniform.extend()


def attempt(law: DiscreteLaw, words: tuple[int, int, int], more: MoreWords) -> int | None:
    """What three random words are turned into, decided in whole numbers: a number, or nothing."""
    strip = decide_strip(law, words[0], more)
    width = 1 << law.place_bits
    place, negative = words[1] & (width - 1), words[1] >> (WORD - 1)
    number = strip * width + place
    if number == 0 and negative:
        return None
    if not decide_keep(law.exponent(number) - law.exponent(strip * width), words[2], more):
        return None
    size = min(number, MOST_NUMBER)
    return -size if negative else size


# -- as kernels read it --------------------------------------------------------------------------------


class Table(NamedTuple):
    """A law for kernels.

    ``cuts`` are the strips' thresholds rounded down to 64 bits, the last one all ones; ``guide`` says
    where to begin to look for a word, by its first eight bits. A number at the place U of the strip v is
    kept with probability exp(-(slopes[v] + curve U) U).
    """

    cuts: Array
    guide: Array
    slopes: Array
    curve: float
    place_bits: int


@lru_cache(maxsize=256)
def table(law: DiscreteLaw) -> Table:
    """Made once for each law."""
    bits, cuts = WORD + 64, list[int]()
    while not cuts:
        found = thresholds(law, bits)
        lows, highs = ([end >> (bits - WORD) for end in ends] for ends in zip(*found, strict=True))
        if lows == highs or lows == [min(high, 2**WORD - 1) for high in highs]:
            cuts = lows
        bits *= 2
    cuts = [*(cut for cut in cuts if cut < 2**WORD - 1), 2**WORD - 1]
    words = np.array(cuts, np.uint64)
    starts = np.arange(_GUIDE, dtype=np.uint64) << np.uint64(WORD - 8)
    return Table(words, np.searchsorted(words, starts), *_exponents(law, len(cuts)), law.place_bits)


def _exponents(law: DiscreteLaw, strips: int) -> tuple[Array, float]:
    """Slope of the exponent at each strip's beginning, and its curvature; rounded twice at most."""
    scale = Fraction(law.scale)
    if not law.place_bits:  # there is one place in a strip, and it is kept
        return np.zeros(strips), 0.0
    if law.kind == "geometric":
        return np.full(strips, float(1 / scale)), 0.0
    width = 1 << law.place_bits
    return np.arange(strips) * float(width / scale**2), float(1 / (2 * scale**2))
