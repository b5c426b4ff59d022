"""What private pairs ask the data, and the clipped answers. Proofs: ``pairs.md``."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, sqrt

import numpy as np

from sfumato.kernels.grid import BELOW_ONE, cut, grid
from sfumato.privacy.clipping import Clipped, clip_values
from sfumato.privacy.facts import Facts
from sfumato.records import record
from sfumato.sites.memory import ByMode, Site
from sfumato.solvers.private.known import Known
from sfumato.solvers.private.pairs.settings import (
    alike_change,
    own_modes,
    owners_change,
    pairs_of_modes,
)
from sfumato.solvers.protocol import SumQuery, WholeQuery
from sfumato.types import Array

OWN_NUMBERS = 2  # that owners tell of each mode
MOST_MORE = 2.0  # of the values' variance, that these may differ by either way, times two
_MOST_BIAS = 2.0**10  # in half widths
_COARSE = 2.0**15  # steps of a grid: squares of 2^31 residuals add up to less than 2^61 then
_ROUNDED = 1 + 2.0**-18  # what rounding makes of the number of a pair with up to 2^31 entries


@record
@dataclass(frozen=True)
class Released:
    """Mean and biases, which residuals are about."""

    mean: float
    biases: tuple[Array, ...]  # by mode

    def rests(self, facts: Facts, levels: Array, values: Array, modes: list[int]) -> Array:
        """What they leave of entries with these levels of some modes."""
        rests = clip_values(values, *facts.bounds) - self.mean
        most = _MOST_BIAS * facts.half
        for mode, at in zip(modes, levels, strict=True):
            rests -= np.clip(np.asarray(self.biases[mode], np.float64), -most, most)[at]
        return np.where(np.isfinite(rests), rests, 0.0)

    def of_site(self, facts: Facts, site: Site, clip: float) -> Array:
        """Of all entries of a site, clipped."""
        tensor = site.tensor
        every = list(range(facts.shape.order))
        rests = self.rests(facts, tensor.coordinates, tensor.values, every)
        clipped: Array = np.clip(rests, -clip, clip)
        return clipped


# -- owners ----------------------------------------------------------------------------------------


@record
@dataclass(frozen=True)
class OwnAlikeQuery(SumQuery):
    """Ask owners how much further all their entries lie from each other than those at one level.

    Of each mode two numbers: the difference of the variances of all its entries and of those within
    levels, over ``MOST_MORE`` times the values' variance, at most half of one either way; and half the
    share of its pairs of entries that are at different levels. Owners tell of modes at whose levels they
    have been twice, and at two levels at least.
    """

    known: Known
    released: Released

    def clipped(self, site: Site) -> Clipped:
        known, facts, own = self.known, self.known.facts, self.known.facts.local or 0
        entries = site.by_mode(own)
        others = [m for m in range(facts.shape.order) if m != own]
        rests = self.released.rests(facts, entries.others, entries.values, others)
        made = [
            _alike_of_owners(entries, site.cells(own, mode).of_entry, rests / facts.spread)
            for mode in own_modes(facts)
        ]
        step, change = grid(1.0), owners_change(known)
        sums = cut(np.concatenate(made, 1), step).sum(0)
        return Clipped(sums, change if known.pure else inf, change, step)


def _alike_of_owners(entries: ByMode, cell: Array, rests: Array) -> Array:
    """The two numbers of each owner; ``cell`` is that of each entry, sorted by owner."""
    counts = entries.counts.astype(np.float64)
    owner = np.repeat(np.arange(counts.shape[0]), entries.counts)
    here = np.bincount(cell, minlength=1).astype(np.float64)
    of_cell = np.zeros(here.shape[0], np.int64)
    of_cell[cell] = owner
    cells = np.bincount(of_cell, here > 0, counts.shape[0])

    def summed(numbers: Array) -> Array:
        return np.bincount(owner, numbers, counts.shape[0])

    centred = rests - (summed(rests) / np.maximum(counts, 1))[owner]
    within = rests - (np.bincount(cell, rests, here.shape[0]) / np.maximum(here, 1))[cell]
    more = summed(centred**2) / np.maximum(counts - 1, 1)
    more -= summed(within**2) / np.maximum(counts - cells, 1)
    together = np.bincount(of_cell, here * (here - 1), counts.shape[0])
    apart = 1 - together / np.maximum(counts * (counts - 1), 1)
    made = np.stack([np.clip(more / MOST_MORE, -0.5, 0.5), np.clip(apart, 0.0, 1.0) / 2], 1)
    twice = (counts > cells) & (cells > 1)
    kept: Array = np.where(twice[:, None], made, 0.0)
    return kept


# -- what is released ------------------------------------------------------------------------------


@record
@dataclass(frozen=True)
class AlikeQuery(WholeQuery):
    """Ask how alike entries are that share the levels of two modes; a number for each two.

    A pair of levels with n entries and residuals r, clipped, adds (sum(r)^2 - sum(r^2)) / n: the mean
    product of two of them, times n - 1.
    """

    known: Known
    released: Released
    clip: float

    def clipped(self, site: Site) -> Clipped:
        known, facts, step = self.known, self.known.facts, grid(self.clip**2)
        coarse = grid(self.clip) * _COARSE
        whole = cut(self.released.of_site(facts, site, self.clip), coarse)
        pairs = pairs_of_modes(facts)
        cells = (_cells(facts, site, pair) for pair in pairs)
        sums = np.array([cut(_alike(at, whole) * coarse**2, step).sum() for at in cells], np.int64)
        # A pair's number is rounded and cut, before and after.
        change = alike_change(known, self.clip) * _ROUNDED + 2 * step * len(pairs)
        return Clipped(sums, change if known.pure else inf, change, step)


def _cells(facts: Facts, site: Site, pair: tuple[int, int]) -> Array:
    """The pair of each entry."""
    small, large = pair
    levels = site.tensor.coordinates
    cells: Array = levels[small].astype(np.int64) * facts.sizes[large] + levels[large]
    return cells


def _alike(cells: Array, whole: Array) -> Array:
    """(sum(r)^2 - sum(r^2)) / n of each pair that has entries; the sums are whole numbers, and exact."""
    there, number = np.unique(cells, return_inverse=True)
    sums, squares = np.zeros((2, there.shape[0]), np.int64)
    np.add.at(sums, number, whole)
    np.add.at(squares, number, whole**2)
    entries = np.bincount(number, minlength=there.shape[0])
    products: Array = sums * (sums / entries) - squares / entries
    return products


@record
@dataclass(frozen=True)
class PairSumsQuery(SumQuery):
    """Ask for what is left at the pairs of two modes' levels: an entry changes one of these sums."""

    known: Known
    released: Released
    pair: tuple[int, int]
    clip: float

    def clipped(self, site: Site) -> Clipped:
        facts, step = self.known.facts, grid(self.clip)
        small, large = self.pair
        whole = cut(self.released.of_site(facts, site, self.clip), step)
        sums = np.zeros(facts.sizes[small] * facts.sizes[large], np.int64)
        np.add.at(sums, _cells(facts, site, self.pair), whole)
        return Clipped(sums, self.clip, self.clip, step, single=True)


@record
@dataclass(frozen=True)
class LevelSumsQuery(SumQuery):
    """Ask for what is left at the levels of several modes at once, and how many entries are there.

    Those of each mode have a weight, and counts are in units of the clip. Weights add up to one in the
    norm of the noise, so that an entry changes all numbers together by the clip at most.
    """

    known: Known
    released: Released
    sums: tuple[float, ...]  # weights by mode, zero for those that are not asked about
    counts: tuple[float, ...]
    clip: float

    def clipped(self, site: Site) -> Clipped:
        known, facts, step = self.known, self.known.facts, grid(self.clip)
        rests = self.released.of_site(facts, site, self.clip) * BELOW_ONE
        ones = np.full(rests.shape, self.clip * BELOW_ONE)
        parts = []
        for weights, numbers in ((self.sums, rests), (self.counts, ones)):
            for mode in np.flatnonzero(weights):
                added = np.zeros(facts.sizes[mode], np.int64)
                np.add.at(added, site.tensor.coordinates[mode], cut(weights[mode] * numbers, step))
                parts.append(added)
        return Clipped(np.concatenate(parts), self.clip if known.pure else inf, self.clip, step)


@record
@dataclass(frozen=True)
class WeightQuery(SumQuery):
    """Ask how far released sums of pairs tell an entry that is not in them.

    An entry takes itself off the sum of its pair, which is then clipped to t, at most ``most``: it adds
    r t / (clip most) and (t / most)^2, of size one at most.
    """

    known: Known
    released: Released
    pair: tuple[int, int]
    clip: float
    sums: Array  # of pairs
    scales: Array  # what sums are divided by
    limits: Array  # what they are clipped to then
    most: float

    def clipped(self, site: Site) -> Clipped:
        facts, step = self.known.facts, grid(1.0)
        rests, cells = self.released.of_site(facts, site, self.clip), _cells(facts, site, self.pair)
        others = (self.sums[cells] - rests) / self.scales[cells]
        told = np.clip(others, -self.limits[cells], self.limits[cells]) / self.most
        parts = np.clip(np.stack([rests * told / self.clip, told**2]), -1, 1)
        return Clipped(cut(parts, step).sum(1), 2.0, sqrt(2), step)
