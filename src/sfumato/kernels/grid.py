"""The grid on which contributions are added up without rounding, and how far lengths may be trusted.

What is added to a sum is first cut towards zero to multiples of a power of two. Sums of such numbers are
exact in float64 for as many entries as a tensor can have, in any order: one contribution more or less
changes them by itself and by nothing else. Kernels, their twins and all who state a bound share these
numbers; proofs rest on them.
"""

from __future__ import annotations

from math import floor, log2
from typing import Any

import numpy as np

_BITS = 21  # numbers below 2^22, of which 2^31 add up to less than 2^53
MOST_NUMBERS = 2**32  # in what one unit adds
BELOW_ONE = 1 - 2.0**-20  # lengths of so many numbers are rounded by less: stay below the bound


def grid(bound: float) -> float:
    """The power of two that contributions of this size are cut to multiples of."""
    return float(2.0 ** (floor(log2(bound)) - _BITS))


def cut(values: Any, step: float) -> Any:
    """Towards zero to multiples of a power of two: sums are then exact."""
    return np.trunc(values / step) * step
