"""The grid on which contributions are added up without rounding, and how far lengths may be trusted.

What is added to a sum is first cut towards zero to multiples of a power of two, and added as a whole
number of them. So one contribution more or less changes a sum by itself and by nothing else, in any
order, on any number of threads or machines. Kernels, their twins and all who state a bound share these
numbers; proofs rest on them.
"""

from __future__ import annotations

from math import floor, log2
from typing import Any

import numpy as np

_BITS = 29  # contributions are below 2^30 steps
MOST_SUM = 2**61  # steps: 2^31 contributions, as many as a tensor has entries
MOST_NUMBERS = 2**32  # in what one unit adds
BELOW_ONE = 1 - 2.0**-20  # lengths of so many numbers are rounded by less: stay below the bound

INPUT_STEP, ERROR_STEP = (
    2.0**-14,
    2.0**-22,
)  # of networks: what goes into layers, and errors over the clip
MOST_INPUT = (
    2.0**23
)  # steps that go into a layer: single precision has all whole numbers up to twice that
MOST_CHUNK = 2**16  # examples whose products are added up in double precision


def grid(bound: float) -> float:
    """The power of two that contributions of this size are cut to multiples of."""
    return float(2.0 ** (floor(log2(bound)) - _BITS))


def cut(values: Any, step: float) -> Any:
    """Whole steps, towards zero; what is no finite number is let through as nothing."""
    steps = np.asarray(values / step)
    return np.trunc(np.where(np.isfinite(steps), steps, 0.0)).astype(np.int64)
