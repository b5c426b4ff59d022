"""Clipping: what is released has to have a bound, and the bound travels with it.

A mechanism takes a :class:`Clipped` and nothing else, so that no noise is ever sized by a number
that nobody enforced. The functions here make one from data; solvers whose kernels clip on the way
state the bound that they enforced, and its proof is in the note that the solver names.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sfumato.errors import SettingError

Array = NDArray[Any]


@dataclass(frozen=True, eq=False)
class Clipped:
    """Numbers, and how much they can change between neighbours, in the L1 and in the L2 norm.

    ``single`` says that one coordinate changes and no other.
    """

    values: Array
    l1: float
    l2: float
    single: bool = False

    def __post_init__(self) -> None:
        if not (self.l1 > 0 and self.l2 > 0 and min(self.l1, self.l2) < inf):
            raise SettingError(f"a bound must be above zero and finite, got {self.l1}, {self.l2}")


def clip_values(values: Array, low: float, high: float) -> Clipped:
    """Values clipped to public bounds, of which one may be replaced.

    =================  ==================
    value              becomes
    =================  ==================
    within the bounds  itself
    beyond             the nearer bound
    infinite           the nearer bound
    NaN                the middle
    =================  ==================
    """
    check_range(low, high)
    kept = np.clip(np.nan_to_num(values, nan=(low + high) / 2, posinf=high, neginf=low), low, high)
    return Clipped(kept, high - low, high - low, single=True)


def clip_sum(contributions: Array, bound: float) -> Clipped:
    """Sum of rows, each shortened to length ``bound``; one row may be added or removed.

    =============  =========================
    row            becomes
    =============  =========================
    zero           zero
    shorter        itself
    longer         its direction, ``bound`` long
    not finite     zero
    no rows        the sum is zero
    =============  =========================
    """
    if not (bound > 0 and np.isfinite(bound)):
        raise SettingError(f"a bound must be above zero and finite, got {bound}")
    rows = np.asarray(contributions, np.float64)
    rows = np.where(np.isfinite(rows).all(axis=1, keepdims=True), rows, 0.0)
    # Scaled by the largest coordinate first: squares of large numbers would overflow.
    largest = np.abs(rows).max(axis=1, keepdims=True, initial=0.0)
    unit = np.divide(rows, largest, out=np.zeros_like(rows), where=largest > 0)
    length = largest * np.linalg.norm(unit, axis=1, keepdims=True)
    factor = np.divide(bound, length, out=np.ones_like(length), where=length > bound)
    return Clipped((rows * factor).sum(axis=0), inf, float(bound))


def check_range(low: float, high: float) -> None:
    """Public bounds that values can be clipped to."""
    if not (np.isfinite(low) and np.isfinite(high) and low < high):
        raise SettingError(f"bounds must be two finite numbers, the lower one first, got {low}, {high}")
