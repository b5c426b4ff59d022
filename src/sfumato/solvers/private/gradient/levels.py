"""Counts and sums of every level, in one question: a bias predictor to start gradient steps from."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, sqrt
from typing import NamedTuple

import numpy as np

from sfumato.kernels.grid import cut, grid
from sfumato.kernels.numba.private_levels import level_sums
from sfumato.kernels.numba.private_moves import Scale
from sfumato.privacy.clipping import Clipped, clip_values
from sfumato.privacy.facts import Facts
from sfumato.privacy.mechanisms import Noisy
from sfumato.records import record
from sfumato.sites.memory import Site
from sfumato.solvers.protocol import SumQuery
from sfumato.types import Array

_TOTALS = 2  # weight of the three totals among the sums of levels


@record
class Start(NamedTuple):
    """What is known before the first step, all of it released: a bias predictor, and counts.

    ``mean``, ``biases`` and ``spread`` (of what these leave unexplained) are in the values' unit.
    ``counts`` holds the noisy number of entries of each level, mode after mode, each entry weighted
    as its gradient will be; ``bias_variance`` how far the true biases of each mode spread.
    """

    mean: float
    biases: Array
    counts: Array
    spread: float
    bias_variance: Array


@record
@dataclass(frozen=True)
class LevelsQuery(SumQuery):
    """Ask for totals, counts and sums of all levels; for ``typical`` see :class:`PrivateSGD`."""

    facts: Facts
    typical: float

    def clipped(self, site: Site) -> Clipped:
        if self.facts.unit_mode is None:
            return entry_levels(self.facts, site)
        return unit_levels(self.facts, self.facts.unit_mode, site, self.typical)


def entry_levels(facts: Facts, site: Site) -> Clipped:
    """Totals, counts and sums of levels where one entry, or one value, is the unit.

    Counts are public where positions are.

    Values are taken from the middle of the bounds, in half ranges. An entry is then at most one in
    each sum that it is in; a replaced value moves its sums by at most two, its square by one.
    """
    tensor, (low, high), step = site.tensor, facts.bounds, grid(1.0)
    y = (clip_values(tensor.values, low, high) - (low + high) / 2) * 2 / (high - low)
    y = np.clip(y, -1.0, 1.0)  # far from zero the middle of the bounds is rounded
    whole, squares = cut(y, step), cut(np.square(y), step)
    order, levels = tensor.order, list(zip(tensor.coordinates, tensor.shape, strict=True))
    counts = np.concatenate([np.bincount(at, minlength=n) for at, n in levels])
    sums = [_level_sums(at, whole, n) for at, n in levels] if facts.shape.fit_biases else []
    one = cut(1.0, step)
    if facts.unit.hides_presence:
        totals = _TOTALS * np.array([one * y.size, whole.sum(), squares.sum()])
        bound = sqrt(3 * _TOTALS**2 + order * (1 + facts.shape.fit_biases))
        return Clipped(np.concatenate([totals, one * counts, *sums]), inf, bound, step)
    totals = _TOTALS * np.array([whole.sum(), squares.sum()])
    bound = sqrt(5 * _TOTALS**2 + 4 * order * facts.shape.fit_biases)
    return Clipped(np.concatenate([totals, *sums]), inf, bound, step, public=(counts,))


def _level_sums(levels: Array, whole: Array, size: int) -> Array:
    """Sums of whole numbers by level."""
    sums = np.zeros(size, np.int64)
    np.add.at(sums, levels, whole)
    return sums


def unit_levels(facts: Facts, mode: int, site: Site, typical: float) -> Clipped:
    """Totals, counts and sums of the levels of the other modes, each unit's part clipped as a whole."""
    low, high = facts.bounds
    sizes = [size for m, size in enumerate(facts.sizes) if m != mode]
    counts, sums, totals = (np.zeros(size, np.int64) for size in (sum(sizes), sum(sizes), 3))
    entries = site.by_mode(mode)
    clip = sqrt(1.3 * typical * len(sizes))
    level_sums(
        np.cumsum([0, *sizes[:-1]]),
        entries.others,
        entries.values,
        entries.starts,
        Scale(low, high, (low + high) / 2, 2 / (high - low)),
        typical,
        facts.local == mode and facts.shape.fit_biases,
        clip,
        grid(clip),
        counts,
        sums,
        totals,
    )
    whole = np.concatenate([totals, counts, sums])
    return Clipped(whole, inf, sqrt(clip**2 + 3 * typical), grid(clip))


def read_levels(facts: Facts, noisy: Noisy) -> Start:
    """A bias predictor from noisy sums: each estimate shrunk by what its noise is known to be."""
    low, high = facts.bounds
    half, noise, own = (high - low) / 2, noisy.deviation, facts.unit_mode
    others = [m for m in range(len(facts.sizes)) if m != own]
    n, total, squares, counts, sums = _parts(facts, noisy, sum(facts.sizes[m] for m in others))
    n = max(n, noise)
    average = total / n
    # Kept by as much as it stands out from its noise; without a mean, values are taken from zero.
    mean = average * max(0.0, 1 - (noise / n) ** 2 / max(average**2, 1e-30))
    if not facts.shape.fit_mean:
        mean = -(low + high) / (high - low)
    variance = (squares + 0.25 * noise) / (n + noise) - 2 * mean * average + mean**2
    variance = min(max(variance, 0.01), (1 + abs(mean)) ** 2)

    every, biases, spreads = (
        np.ones(sum(facts.sizes)),
        np.zeros(sum(facts.sizes)),
        np.zeros(len(facts.sizes)),
    )
    starts, at = np.cumsum([0, *facts.sizes]), 0
    for m in others:
        size, here = facts.sizes[m], slice(starts[m], starts[m + 1])
        count = np.maximum(counts[at : at + size], 1.0)
        # A unit with local rows has taken its own mean off.
        centred = sums[at : at + size] - (0 if own is not None and facts.local == own else mean * count)
        every[here], at = count, at + size
        sum_noise = noise**2 * (1 + mean**2)
        # How far true biases spread: what is left of the sums' power, less two deviations. Where
        # that is nothing, a small guess does no harm: what it lets through is smaller still.
        expected = sum_noise + variance * count
        left = np.sum(centred**2 - expected) - 2 * sqrt(2 * np.sum(expected**2))
        spreads[m] = min(max(left / np.sum(count**2), 0.02 * variance), variance)
        if facts.shape.fit_biases:
            share = count * spreads[m] / (count**2 * spreads[m] + variance * count + sum_noise)
            biases[here] = share * centred
    if own is not None:  # what is known of the units' own levels is public: an average one
        entries = every[starts[others[0]] : starts[others[0] + 1]].sum()
        every[starts[own] : starts[own + 1]] = max(1.0, entries / facts.sizes[own])
        spreads[own] = 0.2 * variance
    residual = max(variance - spreads.sum() * facts.shape.fit_biases, 0.4 * variance)
    return Start(
        (low + high) / 2 + half * mean, half * biases, every, half * sqrt(residual), half**2 * spreads
    )


def _parts(facts: Facts, noisy: Noisy, size: int) -> tuple[float, float, float, Array, Array]:
    """Number of entries, sum and sum of squares, then counts and sums of levels."""
    values, weight = noisy.values, 1.0 if facts.whole_units else _TOTALS
    if not noisy.public:
        n, total, squares = values[:3] / weight
        counts, sums = values[3 : 3 + size], values[3 + size :]
    else:
        counts = noisy.public[0]
        n, (total, squares) = counts[: facts.sizes[0]].sum(), values[:2] / weight
        sums = values[2:]
    return n, total, squares, counts, sums if sums.size else np.zeros(size)
