"""What is asked of a relation beside others, and the clipped answers. Proofs: ``sides.md``.

Other relations say something of the levels of a mode: public numbers, or released ones (*features* of
levels); or numbers that each owner makes of its own entries there and keeps (*own* features).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf, sqrt
from typing import Any

import numpy as np

from sfumato.kernels.grid import BELOW_ONE, cut, grid
from sfumato.kernels.numba.cells import Cells, OwnMap, Shortening, cross_cells, own_numbers
from sfumato.kernels.numba.ordering import scatter
from sfumato.models.multilinear import Multilinear
from sfumato.models.own_means import OwnMeans, OwnNumbers, OwnSource
from sfumato.models.own_prior import OwnPrior
from sfumato.privacy.clipping import Clipped
from sfumato.privacy.facts import Facts
from sfumato.records import record
from sfumato.sites.memory import Site
from sfumato.solvers.least_squares.own_rows import own_squares
from sfumato.solvers.private.contributions import owned_entries, taken_off_owned
from sfumato.solvers.protocol import SumQuery
from sfumato.types import Array


def holder_of(site: Any, part: int | None) -> Site:
    """Where a relation's entries are: one of several that lie together, or the only one."""
    held: Site = site if part is None else site.parts[part]
    return held


# -- what owners know from elsewhere -------------------------------------------------------------------


def numbers_of(numbers: OwnNumbers, site: Any) -> Array:
    """A row for each owner, no longer than the reach; at the data, where they stay."""
    return site.kept(numbers, lambda: _numbers(numbers, site))  # type: ignore[no-any-return]


def _numbers(numbers: OwnNumbers, site: Any) -> Array:
    reach = numbers.reach / sqrt(len(numbers.sources))
    return np.hstack(
        [
            _numbers_of_source(source, turn, numbers, reach, holder_of(site, source.part))
            for source, turn in zip(numbers.sources, numbers.turns, strict=True)
        ]
    )


def _numbers_of_source(
    source: OwnSource, turn: Array, numbers: OwnNumbers, reach: float, held: Site
) -> Array:
    entries = owned_entries(held, source.bounds, source.own)
    taken = taken_off_owned(source.bounds, source.own, source.mean, source.biases)
    turn, longest = np.ascontiguousarray(turn), numbers.longest
    how = OwnMap(source.rows, source.offsets, turn, source.clip, longest, numbers.ridge, reach)
    return own_numbers(entries, taken, how, held.threads)


def prior_with_means(means: OwnMeans, prior: OwnPrior, model: Multilinear, site: Any) -> OwnPrior:
    """The prior with what other relations say of rows; at the data, where that stays."""
    numbers = means.columns if means.own is None else numbers_of(means.own, site)
    rows = np.zeros((model.shape[prior.mode], model.ranks[prior.mode]))
    if numbers is not None:
        repeated = np.tile(numbers, means.times)
        rows[:, means.at : means.at + repeated.shape[1]] = means.strength * repeated
    return replace(prior, means=rows)


@record
@dataclass(frozen=True)
class OwnMomentQuery(SumQuery):
    """Ask for the second moment of owners' numbers: their products two by two, the diagonal included.

    Off the diagonal times sqrt(2), so that the products of one owner are as long as the square of its
    numbers.
    """

    numbers: OwnNumbers
    whole_units: bool

    def clipped(self, site: Any) -> Clipped:
        rows, most = numbers_of(self.numbers, site), self.numbers.reach**2
        first, second = np.triu_indices(rows.shape[1])
        step = grid(most)
        products = rows[:, first] * rows[:, second] * np.where(first == second, 1.0, sqrt(2))
        sums = cut(products, step).sum(axis=0)
        return Clipped(sums, inf, self.bound(step, first.size), step)

    def bound(self, step: float, numbers: int) -> float:
        """What a unit adds; or, of two rows that are apart by the shift, what their products are."""
        most = self.numbers.reach**2
        if self.whole_units:
            return most
        apart = min(2 * self.numbers.reach * self.numbers.shift, sqrt(2) * most)
        return apart / BELOW_ONE + 2 * step * sqrt(numbers)


def shortened(columns: Array, reach: float) -> Array:
    """Rows no longer than this."""
    lengths = np.linalg.norm(columns, axis=1, keepdims=True)
    short: Array = columns * np.minimum(1.0, reach * BELOW_ONE / np.maximum(lengths, 1e-300))
    return short


# -- residuals beside features --------------------------------------------------------------------------


@record
@dataclass(frozen=True)
class CrossQuery(SumQuery):
    """Ask what a model leaves at the levels of a mode, times features of the levels of another.

    With r_ij the mean residual at levels i and j, clipped, the sums are those of r_ij s_i', over i, for
    every j. Features s_i are no longer than ``reach``: public or released ``columns``, or what owners i
    make of their own entries elsewhere. The residuals of one i are weighted by level and shortened to
    ``length``.

    Units that are levels i add at most ``length * reach``. An entry changes one r_ij by at most the
    clip, and where s_i is made of entries elsewhere, one of these changes it by its shift.
    """

    facts: Facts
    part: int | None
    model: Multilinear
    by: int  # the mode whose levels have features
    mode: int
    clip: float
    ridge: float
    length: float
    reach: float
    weights: Array
    columns: Array | None
    own: OwnNumbers | None

    def clipped(self, site: Any) -> Clipped:
        held = holder_of(site, self.part)
        features = self._features(site)
        cells = held.cells(self.by, self.mode)
        step, bound = grid(self.bound), self.bound
        sums = cross_cells(
            cells,
            self._residuals(held, cells),
            self.weights,
            features,
            Shortening(self.ridge, self.length),
            step,
            held.threads,
        )
        if not self.facts.whole_units:  # one contribution takes another's place, and both are cut
            bound = bound / BELOW_ONE + 2 * step * sqrt(sums.size)
        return Clipped(sums, inf, bound, step)

    def _features(self, site: Any) -> Array:
        if self.own is not None:
            return numbers_of(self.own, site)
        if self.columns is None:
            raise RuntimeError("features are known, or owners have them")
        return shortened(self.columns, self.reach)

    def _residuals(self, held: Site, cells: Cells) -> Array:
        """Mean residual of each cell, clipped."""
        tensor, (low, high) = held.tensor, self.facts.bounds
        values = np.where(np.isnan(tensor.values), (low + high) / 2, np.clip(tensor.values, low, high))
        left = values - self.model.predict(tensor.coordinates, threads=held.threads)
        left = np.clip(left, -self.clip, self.clip)
        if self.by:
            left = scatter(left, held.slots(self.by), threads=held.threads)
        number = cells.levels.shape[0]
        sums = np.bincount(cells.of_entry, left, number)
        means: Array = sums / np.maximum(np.bincount(cells.of_entry, minlength=number), 1)
        return means

    @property
    def bound(self) -> float:
        """What neighbours change, before it is cut to the grid."""
        if self.facts.whole_units:
            return self.length * self.reach
        here = self.clip * self.reach * (2 if self.facts.unit.replaces else 1)
        return here if self.own is None else max(here, self.length * self.own.shift)


@record
@dataclass(frozen=True)
class OwnSideQuery(SumQuery):
    """Ask how large own rows are along columns from other relations, and how far they go along with what
    these say of them (``own_squares``).

    No number is negative, and those of one owner are shortened together: what takes another's place is
    at most sqrt(2) times as far from it as either is long.
    """

    facts: Facts
    part: int | None
    model: Multilinear
    prior: OwnPrior
    means: OwnMeans | None
    groups: Array
    length: float

    def clipped(self, site: Any) -> Clipped:
        held, step, prior = holder_of(site, self.part), grid(self.length), self.prior
        if self.means is not None:
            prior = prior_with_means(self.means, prior, self.model, site)
        sums = own_squares(self.model, prior, held, self.groups, self.length, step)
        change = self.length * (1 if self.facts.whole_units else sqrt(2))
        return Clipped(sums, inf, change, step)
