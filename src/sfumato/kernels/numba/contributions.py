"""What entries or units add to the sums of a mode's levels, clipped so that the change has a bound.

Two kinds of sums, for the two kinds of units:

- *by entry*: each entry adds its residual, clipped, to one level;
- *by unit*: a unit (a user, say) takes its own mean off its residuals, and adds one vector over the
  levels of the mode, shortened to one bound whatever the number of its entries.

Everything that is added is first cut to a grid on which sums are exact (``kernels/grid.py``). With
rounded sums the bound would hold up to rounding only.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from sfumato.kernels.grid import BELOW_ONE, cut, grid
from sfumato.kernels.numba.compiler import kernel
from sfumato.kernels.numba.ordering import level_counts
from sfumato.types import Array


class Contribution(NamedTuple):
    """How a unit's contribution to the levels of a mode is made.

    A unit with k_j entries at level j has the weight (ridge + sum_j (weight_j k_j)^p)^(-1/p), so that
    units with many entries and those with few have contributions of about the same length, in the
    norm p that is clipped: 1 for pure privacy, else 2.
    """

    clip: float  # of one residual
    bound: float  # of the whole contribution
    ridge: float
    centred: bool  # the unit's own mean, sum / (entries + ridge), is taken off first
    norm: int


# -- by entry ---------------------------------------------------------------------------------


def entry_counts(levels: Array, size: int) -> Array:
    """Number of entries at each level; an entry more or less changes one of them by one."""
    return level_counts(levels, size)


def entry_sums(levels: Array, residuals: Array, clip: float, size: int) -> Array:
    """Sum of clipped residuals at each level; an entry changes one of them, by ``clip`` at most."""
    kept = cut(np.clip(residuals, -clip, clip), grid(clip))
    return np.bincount(levels, weights=kept, minlength=size)


# -- by unit ----------------------------------------------------------------------------------


def unit_counts(levels: Array, starts: Array, size: int, ridge: float, norm: int) -> Array:
    """Weighted number of entries at each level; a unit changes them by a vector shorter than one."""
    made = Contribution(1.0, 1.0, ridge, centred=False, norm=norm)
    return unit_sums(levels, starts, np.ones(levels.shape[0]), np.ones(size), made)


def unit_sums(
    levels: Array, starts: Array, residuals: Array, weights: Array, made: Contribution
) -> Array:
    """Weighted sum of residuals at each level, each unit's contribution at most ``bound``."""
    out = np.zeros(weights.shape[0])
    _add_units(levels, starts, residuals, weights, *made, grid(made.bound), out)
    return out


@kernel
def _add_units(
    levels: Array,
    starts: Array,
    residuals: Array,
    weights: Array,
    clip: float,
    bound: float,
    ridge: float,
    centred: bool,
    norm: int,
    step: float,
    out: Array,
) -> None:
    number, total = np.zeros(out.shape[0]), np.zeros(out.shape[0])
    for unit in range(starts.shape[0] - 1):
        first, last = starts[unit], starts[unit + 1]
        own = 0.0
        if centred:
            for e in range(first, last):
                own += residuals[e]
            own /= last - first + ridge
        for e in range(first, last):
            number[levels[e]] += 1
            total[levels[e]] += min(clip, max(-clip, residuals[e] - own))
        size = length = 0.0
        for e in range(first, last):  # each level once: its number is set back when it was counted
            j = levels[e]
            if number[j] > 0:
                size += (weights[j] * number[j]) ** norm
                length += (weights[j] * abs(total[j])) ** norm
                number[j] = 0
        factor = (size + ridge) ** (-1 / norm)
        length = factor * length ** (1 / norm)
        if length > bound * BELOW_ONE:
            factor *= bound * BELOW_ONE / length
        for e in range(first, last):
            j = levels[e]
            out[j] += np.trunc(factor * weights[j] * total[j] / step) * step
            total[j] = 0
