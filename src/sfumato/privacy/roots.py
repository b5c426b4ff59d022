"""Where a function crosses zero, by Brent's method: interpolation where that is quick, else bisection.

R. P. Brent, "Algorithms for Minimization without Derivatives" (1973), chapter 4. SciPy has the same to
the last bit, and a test holds the two together; but to import it takes longer than to plan a fit.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import NamedTuple

_ROUNDING = 2.0**-50  # of a root: no closer than floating-point numbers lie
_MOST_STEPS = 100


class _Point(NamedTuple):
    at: float
    value: float


def crossing(function: Callable[[float], float], low: float, high: float, tolerance: float) -> float:
    """A root between two places at which the function has different signs."""
    last, best = _Point(low, function(low)), _Point(high, function(high))
    if last.value == 0:
        return low
    if best.value != 0 and (last.value > 0) == (best.value > 0):
        raise ValueError(f"the function has the same sign at {low} and at {high}")
    across, step, previous = last, 0.0, 0.0  # the root lies between the best point and the one across
    for _ in range(_MOST_STEPS):
        if best.value != 0 and (last.value > 0) != (best.value > 0):
            across, step, previous = last, best.at - last.at, best.at - last.at
        if abs(across.value) < abs(best.value):
            last, best, across = best, across, best
        near = (tolerance + _ROUNDING * abs(best.at)) / 2
        half = (across.at - best.at) / 2
        if best.value == 0 or abs(half) < near:
            return best.at
        tried = half
        if abs(previous) > near and abs(best.value) < abs(last.value):
            tried = _interpolated(last, best, across)
            if not 2 * abs(tried) < min(abs(previous), 3 * abs(half) - near):
                tried = half
        previous, step = (half, half) if tried == half else (step, tried)
        last = best
        at = best.at + (step if abs(step) > near else near if half > 0 else -near)
        best = _Point(at, function(at))
    raise ArithmeticError(f"no root was found between {low} and {high}")


def _interpolated(last: _Point, best: _Point, across: _Point) -> float:
    """The step from the best point to where a line, or a hyperbola, through the points is zero."""
    if last.at == across.at:
        return -best.value * (best.at - last.at) / (best.value - last.value)
    to_last = (last.value - best.value) / (last.at - best.at)
    to_across = (across.value - best.value) / (across.at - best.at)
    flat = to_across * to_last * (across.value - last.value)
    if flat == 0:  # rounded down to it: no step that would be taken
        return inf
    return -best.value * (across.value * to_across - last.value * to_last) / flat
