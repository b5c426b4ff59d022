"""How entries lie over levels, as far as public numbers and a profile say: what expectations rest on."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from typing import Any, NamedTuple

import numpy as np

from sfumato.data.profile import Profile
from sfumato.data.tensor import passing_times
from sfumato.privacy.facts import Facts
from sfumato.privacy.roots import crossing
from sfumato.solvers.private.known import Known
from sfumato.types import Array

_GROUPS = 64  # of levels of like popularity


class Levels(NamedTuple):
    """A mode's levels in groups of like popularity: entries of one level, and number of levels."""

    entries: Array
    number: Array

    @property
    def share(self) -> Array:
        """Of all entries, by group."""
        weights: Array = self.entries * self.number
        return np.asarray(weights / weights.sum())

    @property
    def first(self) -> Array:
        """The first level of each group."""
        return np.concatenate([[0], np.cumsum(self.number)[:-1]]).astype(np.int64)

    def spread_out(self, by_group: Array) -> Array:
        return np.repeat(by_group, self.number.astype(np.int64))


def popular_levels(size: int, exponent: float, entries: float, cells: float) -> Levels:
    """Levels under a Zipf law, of which none has more entries than it has cells.

    Where cells are drawn without repetition, a level of popularity p has cells (1 - exp(-x p)) of
    them, x such that they add up.
    """
    edges = np.unique(np.round(np.geomspace(1, size + 1, _GROUPS + 1)).astype(np.int64))
    popularity = np.arange(1, size + 1, dtype=np.float64) ** -exponent
    number = np.diff(edges).astype(np.float64)
    popularity = np.add.reduceat(popularity, edges[:-1] - 1) / number
    popularity /= number @ popularity
    full = entries / (size * cells)
    if full >= 0.999:
        return Levels(np.full(number.shape, entries / size), number)

    def surplus(log_rate: float) -> float:
        return float(number @ -np.expm1(-np.exp(log_rate) * popularity)) / size - full

    start = np.log(entries / cells)
    high = start + 1.0
    while surplus(high) < 0:
        high += 1.0
    rate = np.exp(crossing(surplus, float(start) - 1e-9, float(high), 1e-12))
    drawn = cells * -np.expm1(-rate * popularity)
    return Levels(drawn * entries / (number @ drawn), number)


class Counted(NamedTuple):
    """What a level's sum is made of, by group: its entries' weights, and their squares, added up."""

    weights: Array
    squares: Array


@dataclass(frozen=True)
class Outlook:
    """The public numbers of a fit, and what is assumed beside them. Variances are over the values'."""

    facts: Facts
    profile: Profile = field(default_factory=Profile)
    pure: bool = False  # units' contributions are weighted for the norm of pure privacy

    @cached_property
    def known(self) -> Known:
        return Known(self.facts, 1.0, self.pure)

    @cached_property
    def entries(self) -> float:
        return self.facts.expected_entries

    @cached_property
    def people(self) -> int:
        """The mode whose levels are people: the unit's, the local one, or else the first."""
        for mode in (self.facts.unit_mode, self.facts.local):
            if mode is not None:
                return mode
        return 0

    @cached_property
    def levels(self) -> tuple[Levels, ...]:
        sizes = self.facts.sizes
        exponents = self.profile.exponents(self.facts.modes, self.people)
        return tuple(
            popular_levels(size, exponent, self.entries, prod(sizes) / size)
            for size, exponent in zip(sizes, exponents, strict=True)
        )

    @cached_property
    def shares(self) -> list[Array]:
        """Of all entries, by mode and group: asked for in every step towards a fixed point."""
        return [levels.share for levels in self.levels]

    @cached_property
    def counted(self) -> tuple[Counted, ...]:
        """By mode, as the solvers' questions count: entries, or units' contributions."""
        return tuple(self._counted(mode) for mode in range(len(self.levels)))

    def _counted(self, mode: int) -> Counted:
        """A unit with k_j entries at level j weighs each (ridge + sum_j k_j^p)^(-1/p), in the norm p."""
        entries, own = self.levels[mode].entries, self.facts.unit_mode
        if own is None:
            return Counted(entries, entries)
        if self.known.norm == 1:
            return self._counted_purely(mode, own)
        if mode == own:
            squares = entries**2 / (entries**2 + self.known.ridge)
            return Counted(np.sqrt(squares), squares / entries)
        units, here = self.levels[own], self.levels[mode]
        cells = prod(self.facts.sizes) / (self.facts.sizes[own] * self.facts.sizes[mode])
        twice = here.number @ (here.entries / self.entries) ** 2 * (1 - 1 / cells)
        squares = 1 / (units.entries + twice * units.entries**2 + self.known.ridge)
        return Counted(entries * (units.share @ np.sqrt(squares)), entries * (units.share @ squares))

    def _counted_purely(self, mode: int, own: int) -> Counted:
        units = self.levels[own]
        weights = 1 / (units.entries + self.known.ridge)
        if mode == own:
            return Counted(units.entries * weights, units.entries * weights**2)
        entries = self.levels[mode].entries
        return Counted(entries * (units.share @ weights), entries * (units.share @ weights**2))

    @cached_property
    def counts(self) -> list[Array]:
        """Weighted counts of all levels of each mode, as solvers take them."""
        pairs = zip(self.levels, self.counted, strict=True)
        return [levels.spread_out(counted.weights) for levels, counted in pairs]

    def by_group(self, mode: int, by_level: Array) -> Array:
        return np.asarray(by_level[self.levels[mode].first])

    @cached_property
    def bias_variances(self) -> Array:
        return np.array(self.profile.bias_variances(self.facts.modes))

    @cached_property
    def timeless(self) -> list[int]:
        """Modes whose factors have to be found; those of passing times are taken for one."""
        return [m for m, times in enumerate(passing_times(self.facts.modes)) if not times]

    def unexplained(self, lost: Array) -> float:
        """Variance that biases leave, where these shares of them are lost."""
        return float(1 - self.bias_variances @ (1 - lost))

    def kept(
        self, mode: int, signal: Any, rest: float, noise: Any, *, locally: bool | None = None
    ) -> Array:
        """Share of a signal's variance that a mode's levels keep, at an average entry.

        ``rest`` is the variance of an entry beside the signal, ``noise`` that of a level's sum. Rows
        that are solved by their owners (``locally``; by default the local mode's) have none.
        """
        entries, counted = self.levels[mode].entries, self.counted[mode]
        if locally is None:
            locally = mode == self.facts.local
        if locally:
            counted, noise = Counted(entries, entries), 0.0
        found = np.multiply.outer(np.asarray(signal, np.float64), counted.weights**2)
        kept = found / (found + rest * counted.squares + noise)
        return np.asarray(kept @ self.shares[mode])
