"""How a threshold grows with a size: where a curve passes a level, and slopes between logarithms."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import exp, inf, log
from typing import NamedTuple

import numpy as np

from sfumato.types import Array

_DRAWS = 400


def crossing(at: Sequence[float], values: Sequence[float], level: float) -> float:
    """Where a curve first leaves the side of ``level`` on which it begins.

    Between two places it is a straight line over the logarithm of the axis. Infinite where it stays, and
    at the first place where the curve begins at the level itself.
    """
    side = values[0] > level
    for k in range(1, len(at)):
        if (values[k] > level) != side:
            part = (values[k - 1] - level) / (values[k - 1] - values[k])
            return exp(log(at[k - 1]) + part * log(at[k] / at[k - 1]))
    return inf


class Slope(NamedTuple):
    """Of log y against log x, with 5% and 95% quantiles over repetitions drawn anew."""

    slope: float
    low: float
    high: float


def slope_of(x: Sequence[float], y: Sequence[float]) -> float:
    """Least squares in logarithms, of the points that have a finite y; NaN for fewer than two."""
    known = [(log(a), log(b)) for a, b in zip(x, y, strict=True) if 0 < b < inf]
    if len(known) < 2:
        return float("nan")
    across, up = np.transpose(known)
    return float(np.polyfit(across, up, 1)[0])


def bootstrapped(
    x: Sequence[float], runs: Sequence[Array], threshold: Callable[[Array], float]
) -> tuple[list[float], Slope]:
    """Thresholds, each from the repetitions (first axis) of its runs; their slope, and its spread."""
    generator = np.random.default_rng(0)
    drawn = [
        slope_of(x, [threshold(of[generator.integers(len(of), size=len(of))]) for of in runs])
        for _ in range(_DRAWS)
    ]
    finite = [slope for slope in drawn if np.isfinite(slope)] or [float("nan")]
    low, high = np.quantile(finite, (0.05, 0.95))
    thresholds = [threshold(of) for of in runs]
    return thresholds, Slope(slope_of(x, thresholds), float(low), float(high))
