"""What entries or units add to the sums of a mode's levels, clipped so that the change has a bound.

Two kinds of sums, for the two kinds of units:

- *by entry*: each entry adds its residual, clipped, to one level;
- *by unit*: a unit (a user, say) takes its own mean off its residuals, and adds one vector over the
  levels of the mode, shortened to one bound whatever the number of its entries.

Everything that is added is first cut, towards zero, to multiples of a power of two. Sums of such
numbers are exact in float64 for as many entries as a tensor can have, in any order: adding a unit
changes the sums by its contribution and by nothing else. With rounded sums the bound would hold up to
rounding only.
"""

from __future__ import annotations

from math import floor, log2
from typing import Any, NamedTuple

import numpy as np

from sfumato.kernels.numba.ordering import level_counts
from sfumato.kernels.numba.parallel import kernel
from sfumato.privacy.clipping import clip_values
from sfumato.sites.memory import Site
from sfumato.types import Array

_GRID_BITS = 21  # numbers below 2^22, of which 2^31 add up to less than 2^53
MOST_NUMBERS = 2**32  # in what one unit adds
BELOW_ONE = 1 - 2.0**-20  # lengths of so many numbers are rounded by less: stay below the bound


class Arranged(NamedTuple):
    """Entries in the order of the units: unit u has the entries ``starts[u]`` to ``starts[u + 1]``."""

    levels: tuple[Array, ...]  # by mode
    values: Array  # within the bounds
    starts: Array


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


def grid(bound: float) -> float:
    """The power of two that contributions of this size are cut to multiples of."""
    return float(2.0 ** (floor(log2(bound)) - _GRID_BITS))


def arrange(site: Site, unit_mode: int | None, bounds: tuple[float, float]) -> Arranged:
    """A site's entries by the levels of the units' mode; as they are where entries are the units."""
    return site.kept(("private", unit_mode, bounds), lambda: _arranged(site, unit_mode, bounds))


def _arranged(site: Site, unit_mode: int | None, bounds: tuple[float, float]) -> Arranged:
    tensor = site.tensor
    if unit_mode is None:
        values = clip_values(tensor.values.astype(np.float64), *bounds).values
        return Arranged(tuple(tensor.coordinates), values, np.empty(0, np.int64))
    ordered = site.by_mode(unit_mode)
    own = np.repeat(np.arange(tensor.shape[unit_mode], dtype=np.int32), ordered.counts)
    own.flags.writeable = False  # like the other modes' levels, or kernels would be compiled twice
    levels = list(ordered.others)
    levels.insert(unit_mode, own)
    values = clip_values(ordered.values.astype(np.float64), *bounds).values
    return Arranged(tuple(levels), values, ordered.starts)


def cut(values: Any, step: float) -> Any:
    """Towards zero to multiples of a power of two: sums are then exact."""
    return np.trunc(values / step) * step


def unit_totals(numbers: Array, starts: Array) -> tuple[Array, Array]:
    """The sum of each unit's numbers and how many it has, of the units that have some.

    Where entries are the units, the numbers themselves and ones.
    """
    if not starts.size:
        return numbers, np.ones(numbers.shape[0])
    counts = np.diff(starts)
    there = counts > 0
    # Sums between starts; a unit without entries would be given its successor's.
    return np.add.reduceat(numbers, starts[:-1][there]), counts[there]


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


def unit_sums_reference(
    levels: Array, starts: Array, residuals: Array, weights: Array, made: Contribution
) -> Array:
    """Slow twin of :func:`unit_sums`: one unit after the other."""
    step, out = grid(made.bound), np.zeros(weights.shape[0])
    for unit in range(starts.shape[0] - 1):
        mine = slice(starts[unit], starts[unit + 1])
        rest = residuals[mine]
        if made.centred:
            rest = rest - rest.sum() / (rest.shape[0] + made.ridge)
        here, size = levels[mine], weights.shape[0]
        number = weights * np.bincount(here, minlength=size)
        total = weights * np.bincount(here, np.clip(rest, -made.clip, made.clip), size)
        total *= ((number**made.norm).sum() + made.ridge) ** (-1 / made.norm)
        length, most = np.linalg.norm(total, made.norm), made.bound * BELOW_ONE
        out += np.trunc(total * (most / length if length > most else 1.0) / step) * step
    return out
