"""What a fit by moments asks the data, and the clipped answers. Proofs: ``moments.md``."""

from __future__ import annotations

from dataclasses import dataclass
from math import hypot, inf, sqrt

import numpy as np

from sfumato.kernels.grid import BELOW_ONE, grid
from sfumato.kernels.numba.cells import Cells, Centring, Shortening
from sfumato.models.multilinear import Multilinear
from sfumato.models.own_prior import OwnPrior
from sfumato.privacy.clipping import Clipped
from sfumato.privacy.facts import Facts
from sfumato.records import record
from sfumato.sites.memory import Site
from sfumato.solvers.least_squares.own_rows import own_squares
from sfumato.solvers.private.contributions import (
    owners_change,
    owners_rests,
    owners_shift,
)
from sfumato.solvers.protocol import SumQuery
from sfumato.types import Array


@record
@dataclass(frozen=True)
class Residuals:
    """What mean and biases leave at owners' cells, beside the owners' own means."""

    mean: float
    biases: tuple[Array, ...]  # by mode
    clip: float
    ridge: float

    @property
    def how(self) -> Centring:
        return Centring(self.clip, self.ridge)


@record
@dataclass(frozen=True)
class Levels:
    """Which numbers owners have at the levels of a mode: one at each, or residuals; times weights."""

    facts: Facts
    own: int
    mode: int
    weights: Array
    residuals: Residuals | None

    def cells(self, site: Site) -> Cells:
        return site.cells(self.own, self.mode)

    def numbers(self, site: Site) -> Array:
        """Of all cells, before they are weighted."""
        seen = self.residuals
        if seen is None:
            return np.ones(self.cells(site).levels.shape[0])
        how = seen.how
        return owners_rests(site, self.facts, self.own, self.mode, seen.mean, seen.biases, how)

    @property
    def whole_units(self) -> bool:
        return self.facts.whole_units

    @property
    def change(self) -> float:
        """Length of what one entry changes of its owner's numbers, all weights being one."""
        return 1.0 if self.residuals is None else owners_change(self.residuals.how)

    @property
    def shift(self) -> float:
        """What of this is at other cells than the entry's own."""
        return 0.0 if self.residuals is None else owners_shift(self.residuals.how)

    @property
    def most(self) -> float:
        """What an entry's own cell changes by."""
        return 1.0 if self.residuals is None else self.residuals.clip


@record
@dataclass(frozen=True)
class MomentQuery(SumQuery):
    """Ask for products of owners' numbers at some levels, two by two, above the diagonal.

    An owner's numbers y add y y' / |y| where entries are the units, y y' / |y|^2 where owners are.
    """

    levels: Levels
    places: Array  # of the levels that are asked about, in order; -1 for the others

    def clipped(self, site: Site) -> Clipped:
        levels = self.levels
        cells, kept = levels.cells(site), int(self.places.max(initial=-1)) + 1
        numbers = levels.numbers(site)
        if levels.whole_units:
            numbers = numbers * levels.weights[cells.levels]
            bound = sqrt(0.5)
        else:
            bound = levels.change
        step = grid(bound)
        sums = site.owned.moment_of_cells(cells, numbers, self.places, self._power, step, site.threads)
        return Clipped(sums, inf, self._grown(bound, step, kept * (kept - 1) // 2), step)

    @property
    def _power(self) -> float:
        return 2.0 if self.levels.whole_units else 1.0

    def _grown(self, bound: float, step: float, numbers: int) -> float:
        return bound / BELOW_ONE if self.levels.whole_units else grown(bound, step, numbers)


@record
@dataclass(frozen=True)
class ProjectionQuery(SumQuery):
    """Ask for owners' numbers at each level, times the owners' coordinates along some directions.

    Coordinates are shortened to ``reach``. Where units are owners, their numbers are weighted by
    level and shortened to ``length``.
    """

    levels: Levels
    directions: Array
    reach: float
    ridge: float
    length: float

    def clipped(self, site: Site) -> Clipped:
        levels, size = self.levels, self.directions.size
        weights = levels.weights if levels.whole_units else np.ones_like(levels.weights)
        how = Shortening(self.ridge, self.length if levels.whole_units else inf)
        bound = self.bound
        step = grid(bound)
        sums = site.owned.project_cells(
            levels.cells(site),
            levels.numbers(site),
            weights,
            contracted(self.directions, self.furthest),
            self.reach,
            how,
            step,
            site.threads,
        )
        if levels.whole_units:
            return Clipped(sums, inf, bound, step)
        # Coordinates are sums over all cells: rounded in proportion to their number, not to the reach.
        rounding = 2.0**-50 * levels.weights.shape[0] * levels.most * sqrt(size)
        return Clipped(sums, inf, grown(bound, step, size) + rounding, step)

    @property
    def furthest(self) -> float:
        """That rows of the directions are shortened to; any length will do where units are owners."""
        return inf if self.levels.whole_units else self.reach / 2

    @property
    def bound(self) -> float:
        """What neighbours change, before it is cut to the grid."""
        levels = self.levels
        if levels.whole_units:
            return self.length * self.reach
        along = self.furthest * levels.most + levels.shift
        return hypot(self.reach * levels.change, along)


def contracted(directions: Array, furthest: float) -> Array:
    """The directions with rows no longer than this, and then no vector made longer by them."""
    lengths = np.linalg.norm(directions, axis=1, keepdims=True)
    short = directions * np.minimum(1.0, furthest * BELOW_ONE / np.maximum(lengths, 1e-300))
    longest = float(np.linalg.norm(short, 2)) if short.size else 0.0
    contraction: Array = short * (BELOW_ONE / max(longest, BELOW_ONE))
    return contraction


def grown(bound: float, step: float, numbers: int) -> float:
    """A bound with room for rounding, where one contribution takes another's place: both are cut."""
    return bound / BELOW_ONE + 2 * step * sqrt(numbers)


@record
@dataclass(frozen=True)
class OwnQuery(SumQuery):
    """Ask how large own rows are, over what was expected, and how well they are known, by group.

    Rows are solved by their owners (``own_squares``). No number is negative: what takes another's place
    is at most sqrt(2) times as far from it as either is long.
    """

    facts: Facts
    model: Multilinear
    prior: OwnPrior
    groups: Array  # of each column, from zero
    length: float

    def clipped(self, site: Site) -> Clipped:
        step = grid(self.length)
        sums = own_squares(self.model, self.prior, site, self.groups, self.length, step)
        change = self.length * (1 if self.facts.whole_units else sqrt(2))
        return Clipped(sums, inf, change, step)
