"""Clipping: what is released has to have a bound, and the bound travels with it.

A mechanism takes a :class:`Clipped` and nothing else, so that no noise is ever sized by a number
that nobody enforced. ``clip_values`` makes one from data; solvers whose kernels clip on the way
state the bound that they enforced, and its proof is in the note that the solver names.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce
from math import frexp, inf, isfinite

import numpy as np

from sfumato.checks import LEAST_SIZE, MOST_SIZE, is_number, shown
from sfumato.errors import SettingError, SfumatoError
from sfumato.records import record
from sfumato.types import Array

_LEAST_RELATIVE_WIDTH = 2.0**-50  # of bounds beside their size: four numbers of double precision


class NotFiniteError(SfumatoError, ArithmeticError):
    """Numbers that were to be released have left the range of floating-point numbers.

    A sampler would give the largest number there is for them, without noise. Values are clipped before
    they are added up, whatever the data hold: where this happens, what was released before has diverged.
    """


@record
@dataclass(frozen=True, eq=False)
class Clipped:
    """Numbers, and how much they can change between neighbours, in the L1 and in the L2 norm.

    Parameters
    ----------
    values : the numbers, which have to be finite.
    l1, l2 : by how much neighbours change all of them together at most.
    single : whether one coordinate changes and no other.
    rowwise : bounds the sum over rows of the lengths of their changes: where one row changes and no
        other, it is the L2 bound.
    step : the numbers are whole multiples of this power of two, so that they add up without rounding;
        None where they are not on a grid.
    public : what neighbours cannot change, such as counts where positions are public. It is released
        as it is.
    """

    values: Array
    l1: float
    l2: float
    single: bool = False
    rowwise: float = inf
    step: float | None = None
    public: tuple[Array, ...] = ()

    def __post_init__(self) -> None:
        if not np.isfinite(self.values).all():
            raise NotFiniteError(
                "the private fit left the range of floating-point numbers: nothing was drawn for it"
            )
        positive = self.l1 > 0 and self.l2 > 0 and self.rowwise > 0
        if not (positive and min(self.l1, self.l2) < inf):
            raise SettingError(f"a bound must be above zero and finite, got {self.l1}, {self.l2}")
        if self.step is not None and not (isfinite(self.step) and frexp(self.step)[0] == 0.5):
            raise SettingError(f"the step of a grid is a power of two, got {self.step}")

    @property
    def bounds(self) -> tuple[float | bool | None, ...]:
        return self.l1, self.l2, self.single, self.rowwise, self.step

    @property
    def shapes(self) -> list[tuple[int, ...]]:
        return [array.shape for array in (self.values, *self.public)]


def combine(parts: Sequence[Clipped]) -> Clipped:
    """The sum over holders of data, each unit's entries at one of them: its bound is that of each.

    Numbers on a grid add up without rounding, in any order.
    """
    first, *others = parts
    for other in others:
        if other.bounds != first.bounds or other.shapes != first.shapes:
            raise SettingError("holders of data have answered different questions: they do not add up")
    if not others:
        return first
    if first.step is None:
        raise SettingError("numbers that are not on a grid would be rounded when they are added up")
    public = tuple(reduce(np.add, each) for each in zip(*(part.public for part in parts), strict=True))
    return replace(first, values=reduce(np.add, [part.values for part in parts]), public=public)


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
    # In double precision: a bound rounded to fewer digits may lie outside the range.
    wide = np.asarray(values, np.float64)
    kept = np.where(np.isnan(wide), low / 2 + high / 2, np.clip(wide, low, high))
    width = float(np.nextafter(high - low, inf))  # the difference may have been rounded down
    return Clipped(kept, width, width, single=True)


def check_range(low: float, high: float) -> None:
    """Public bounds that values can be clipped to, and computed with in double precision."""
    if not (is_number(low) and is_number(high) and low < high):
        raise SettingError(
            f"bounds must be two finite numbers, the lower one first, got {shown(low)}, {shown(high)}"
        )
    size, width = max(abs(low), abs(high)), high - low
    if not (width >= LEAST_SIZE and size <= MOST_SIZE):
        raise SettingError(
            f"bounds must lie at least {LEAST_SIZE:g} apart and within {MOST_SIZE:g} of zero, got "
            f"{low:g} and {high:g}: give the values in other units"
        )
    if width < _LEAST_RELATIVE_WIDTH * size:
        raise SettingError(
            f"bounds of {low!r} and {high!r} are so close beside their size that double precision has "
            "only a few numbers between them: subtract a public constant from the values first"
        )
