"""Exponential numbers for compiled kernels: minus the logarithms of uniform ones, in whole blocks."""

from __future__ import annotations

from typing import Any

import numpy as np

from sfumato.kernels.numba.chacha import WORDS, between, refill
from sfumato.kernels.numba.compiler import kernel
from sfumato.kernels.numba.simd import element
from sfumato.types import Array

_ONE, _EXPONENT = 0x3FF, np.uint64(52)  # how double precision writes one; bits below the exponent
_MANTISSA = np.uint64(2**52 - 1)
_LOG_TWO = float(np.log(2))


@kernel
def fill_exponentials(sampler: Any, out: Array) -> None:
    """``WORDS`` independent exponential numbers, right to some units in the last place.

    A logarithm that is called takes longer than all the rest. Here it is a series: with u = 2^e m, m
    within a factor of sqrt(2) of one, and s = (m - 1) / (m + 1), log m = 2 (s + s^3/3 + s^5/5 + ...).
    The first term that is left out is less than 1e-17.
    """
    words, bits = sampler.words, out.view(np.uint64)
    refill(sampler.state, words)
    for i in range(WORDS):
        out[i] = between(element(words, i))
    for i in range(WORDS):
        # Half a bit of the exponent more: m from the root of one half on.
        shifted = bits[i] + np.uint64(0x95F6400000000)
        exponent = np.int64(shifted >> _EXPONENT) - _ONE
        words[i] = np.uint64(exponent + 2048)
        bits[i] = (shifted & _MANTISSA) + np.uint64(0x3FE6A09C00000000)
    for i in range(WORDS):
        s = (out[i] - 1) / (out[i] + 1)
        q, series = s * s, 0.0
        for k in range(21, 0, -2):
            series = series * q + 1.0 / k
        out[i] = -(np.float64(np.int64(words[i]) - 2048) * _LOG_TWO + 2 * s * series)
