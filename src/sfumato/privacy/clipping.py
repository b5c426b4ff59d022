"""Clipping: what is released has to have a bound, and the bound travels with it.

A mechanism takes a :class:`Clipped` and nothing else, so that no noise is ever sized by a number
that nobody enforced. ``clip_from_middle`` makes one from data; solvers whose kernels clip on the way
state the bound that they enforced, and its proof is in the note that the solver names.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil, floor, frexp, inf, isfinite, log2, sqrt

import numpy as np

from sfumato.checks import LEAST_SIZE, MOST_SIZE, is_number, shown
from sfumato.errors import SettingError, SfumatoError
from sfumato.kernels.grid import MOST_SUM, cut, grid
from sfumato.records import record
from sfumato.types import Array

_LEAST_RELATIVE_WIDTH = 2.0**-50  # of bounds beside their size: four numbers of double precision
_AT_ONCE = 1 << 15  # values that are clipped together: they stay in the cache
_FINE = 30  # bits that numbers are rounded to below their bound, where they are not on a grid


class NotFiniteError(SfumatoError, ArithmeticError):
    """Numbers that were to be released have left the range of floating-point numbers.

    Values are clipped before they are added up, whatever the data hold: where this happens, what was
    released before has diverged.
    """


@record
@dataclass(frozen=True, eq=False)
class Clipped:
    """Numbers on a grid, and how much they can change between neighbours, in the L1 and in the L2 norm.

    Whole numbers, so that they add up without rounding, and noise on the same grid hides them to the
    last digit.

    Parameters
    ----------
    values : the numbers, in whole steps.
    l1, l2 : by how much neighbours change all of them together at most, as numbers and not in steps.
    step : what the numbers are multiples of, a power of two.
    single : whether one coordinate changes and no other.
    rowwise : bounds the sum over rows of the lengths of their changes: where one row changes and no
        other, it is the L2 bound.
    public : what neighbours cannot change, such as counts where positions are public. It is released
        as it is.
    """

    values: Array
    l1: float
    l2: float
    step: float = 1.0
    single: bool = False
    rowwise: float = inf
    public: tuple[Array, ...] = ()

    def __post_init__(self) -> None:
        if self.values.dtype != np.int64:
            raise SettingError(f"what is released is in whole steps, got {self.values.dtype}")
        if self.values.size and not -MOST_SUM <= self.values.min() <= self.values.max() <= MOST_SUM:
            raise SettingError("sums of more than 2^31 entries are more than the proofs cover")
        positive = self.l1 > 0 and self.l2 > 0 and self.rowwise > 0
        if not (positive and min(self.l1, self.l2) < inf):
            raise SettingError(f"a bound must be above zero and finite, got {self.l1}, {self.l2}")
        if not (isfinite(self.step) and frexp(self.step)[0] == 0.5):
            raise SettingError(f"the step of a grid is a power of two, got {self.step}")

    @property
    def numbers(self) -> Array:
        """The numbers themselves."""
        return self.values * self.step

    @property
    def bounds(self) -> tuple[float | bool | None, ...]:
        return self.l1, self.l2, self.single, self.rowwise, self.step

    @property
    def shapes(self) -> list[tuple[int, ...]]:
        return [array.shape for array in (self.values, *self.public)]


def combine(parts: Sequence[Clipped]) -> Clipped:
    """The sum over holders of data, each unit's entries at one of them: its bound is that of each."""
    check_same_question(parts)
    total, *others = parts
    for other in others:  # one after the other: what is too large for a sum is told before it overflows
        public = tuple(map(np.add, total.public, other.public))
        total = replace(total, values=total.values + other.values, public=public)
    return total


def check_same_question(parts: Sequence[Clipped]) -> None:
    """That holders of data have answered with the same bounds, on the same grid."""
    first, *others = parts
    if any(other.bounds != first.bounds or other.shapes != first.shapes for other in others):
        raise SettingError("holders of data have answered different questions: they do not add up")


def rounded(
    values: Array,
    l2: float,
    *,
    rowwise: float = inf,
    most: float = 0.0,
    public: tuple[Array, ...] = (),
) -> Clipped:
    """Numbers that are not on a grid, rounded to one; their bounds have room for it.

    Rounding moves two numbers apart by one step at most. The grid is so fine that this hardly shows, but
    coarse enough for numbers up to the public ``most``; those beyond what a sum holds are cut off.
    """
    if not np.isfinite(values).all():
        raise NotFiniteError(
            "the private fit left the range of floating-point numbers: nothing was drawn for it"
        )
    fine, coarse = floor(log2(l2)) - _FINE, ceil(log2(most / MOST_SUM)) if most > 0 else -inf
    step = 2.0 ** max(fine, coarse)
    whole = np.rint(np.clip(values, -MOST_SUM * step, MOST_SUM * step) / step).astype(np.int64)
    rows = values.size // max(values.shape[-1], 1) if values.ndim else 1
    grown = rowwise + rows * sqrt(values.size / max(rows, 1)) * step
    return Clipped(whole, inf, l2 + sqrt(values.size) * step, step, rowwise=grown, public=public)


def clip_values(values: Array, low: float, high: float) -> Array:
    """Values clipped to public bounds.

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
    clipped, middle = np.empty(np.shape(values), np.float64), low / 2 + high / 2
    given, out = np.reshape(values, -1), clipped.reshape(-1)
    for begin in range(0, given.shape[0], _AT_ONCE):
        # Not in threads of kernels, for which the smallest numbers are zero.
        here = slice(begin, begin + _AT_ONCE)
        wide = np.asarray(given[here], np.float64)
        np.minimum(np.maximum(wide, low, out=out[here]), high, out=out[here])
        np.copyto(out[here], middle, where=np.isnan(wide))
    return clipped


def clip_from_middle(values: Array, low: float, high: float) -> Clipped:
    """How far values clipped to public bounds lie from the middle of these; one may be replaced."""
    half, middle = high / 2 - low / 2, low / 2 + high / 2
    step = grid(half)
    # Clipped once more, since the middle and the differences are rounded.
    whole = cut(np.clip(clip_values(values, low, high) - middle, -half, half), step)
    return Clipped(whole, 2 * half, 2 * half, step, single=True)


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
