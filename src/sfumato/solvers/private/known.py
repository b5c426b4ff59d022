"""The numbers that a bias fit's settings are made of: public facts, and how much noise there is."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from math import sqrt
from typing import Literal

from sfumato.checks import check_flag, check_positive
from sfumato.data.tensor import passing_times
from sfumato.models.told import LevelsTold
from sfumato.privacy.facts import Facts
from sfumato.privacy.mechanisms import Gaussian, Laplace
from sfumato.privacy.units import Entry
from sfumato.records import record
from sfumato.types import Array

# Chosen on planted biases of many shapes, not on ratings that anybody would be scored on. Errors are
# flat around them: half or twice any of them raised no error there by more than 1.4%.
_ASSUMED = 0.2  # variance of biases, over that of the values
_ASSUMED_OF_TIMES = 0.025  # values differ less from day to day than from item to item
COUNTS_SHARE, PURE_COUNTS_SHARE = 0.1, 0.2  # of the budget, for how often levels occur


@record
@dataclass(frozen=True)
class Known:
    """Facts, with the noise multiplier of all questions together and the law of the noise."""

    facts: Facts
    noise: float
    pure: bool

    def check(self) -> None:
        check_positive(noise=self.noise)
        check_flag(pure=self.pure)

    def with_spread(self, spread: float) -> Known:
        """The same with what was learnt of how far values lie from their mean."""
        return replace(self, facts=replace(self.facts, public_spread=spread))

    def moved(self, mean: float) -> Known:
        """The same beside a mean that was changed: the first mode asked about makes up for it."""
        before = self.facts.before
        if before is None:
            return self
        moved = before.moved(self.shared[0], mean) if self.shared else before
        return replace(self, facts=replace(self.facts, before=moved))

    def told(self, mode: int) -> LevelsTold | None:
        """What earlier periods say of the levels of a mode."""
        return None if self.facts.before is None else self.facts.before.levels[mode]

    def assumed(self, mode: int) -> float:
        """Variance of a mode's biases, before anything is known."""
        return (
            _ASSUMED_OF_TIMES if passing_times(self.facts.modes)[mode] else _ASSUMED
        ) * self.facts.spread**2

    @property
    def ridge(self) -> float:
        """Entries that a unit's own mean of zero counts as much as."""
        return self.facts.scatter_share / _ASSUMED

    @cached_property
    def shared(self) -> list[int]:
        """Modes asked about in rounds: neither local nor the units' own, and worth it."""
        facts = self.facts
        modes = [m for m in range(len(facts.modes)) if m not in (facts.local, facts.unit_mode)]
        return [m for m in modes if self._worth_asking(m, modes)] or modes

    def _worth_asking(self, mode: int, modes: list[int]) -> bool:
        """Whether an average level would keep half of its mean; for times, which differ by little.

        (That times were to be left out like this was seen on MovieLens 100K by day.) Where rows of
        another mode are local and entries the units, a day is seen through the few people who are
        active then, and differs as they do; their own means, of few days, take it off with them.
        """
        facts = self.facts
        if not passing_times(facts.modes)[mode]:
            return True
        sizes, local = facts.sizes, facts.local
        share = (1 - COUNTS_SHARE) * sizes[mode] / sum(sizes[m] for m in modes)
        error = (self.mechanism(share).deviation(facts.spread) / self.likely_count(mode)) ** 2
        if facts.unit_mode is None and local is not None:
            error += self.assumed(local) * min(1.0, sizes[mode] / sizes[local])
        return error <= self.assumed(mode)

    def likely_count(self, mode: int) -> float:
        """Entries of an average level, cautiously; as units are counted where these are protected.

        A unit's weighted counts add up to about the root of its entries, or to one where pure.
        """
        sizes, own, entries = self.facts.sizes, self.facts.unit_mode, self.facts.least_entries
        if own is None:
            return entries / sizes[mode]
        of_unit = 1.0 if self.pure else sqrt(max(1.0, entries / sizes[own]))
        return sizes[own] * of_unit / sizes[mode]

    @property
    def owners(self) -> int | None:
        """Whose own means are taken off entries that are protected one by one: the local mode's.

        Not where noise is Laplace's: all cells of an owner change a little, which adds up.
        """
        return self.facts.local if isinstance(self.facts.unit, Entry) and not self.pure else None

    @property
    def norm(self) -> Literal[1, 2]:
        return 1 if self.pure else 2

    @property
    def full_entries(self) -> float:
        """Entries from which on a unit counts in full for the constant: what they have on average."""
        facts = self.facts
        if facts.unit_mode is None or facts.entries is None:
            return 1.0
        return max(1.0, facts.entries / facts.sizes[facts.unit_mode])

    def mechanism(self, share: float) -> Gaussian | Laplace:
        return Laplace(self.noise / share) if self.pure else Gaussian(self.noise / sqrt(share))

    def reliability(self, mode: int, counts: Array, unit_deviation: float) -> float:
        """Share of its own mean that an average level of a mode would keep, from 0 to 1."""
        signal = (counts.sum() / self.facts.sizes[mode]) ** 2 * self.assumed(mode)
        return float(signal / (signal + (unit_deviation * self.facts.spread) ** 2))
