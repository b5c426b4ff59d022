"""What private biases ask about the levels of a mode: how often each occurs, and what is left there.

Proof: ``proofs/biases.md``.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import erf, inf, sqrt

from sfumato.kernels.grid import BELOW_ONE, cut, grid
from sfumato.kernels.numba.cells import Centring
from sfumato.kernels.numba.contributions import Contribution
from sfumato.kernels.numba.ordering import level_counts
from sfumato.privacy.clipping import Clipped
from sfumato.records import record
from sfumato.sites.memory import Site
from sfumato.solvers.private.constant import COUNTED, count
from sfumato.solvers.private.contributions import (
    entries_of,
    owners_change,
    owners_rests,
    row_of,
    taken_off,
)
from sfumato.solvers.private.known import Known
from sfumato.solvers.protocol import SumQuery
from sfumato.types import Array

_USUAL_LENGTH = 0.9  # of an average unit's contribution, over the spread of values
_OWNERS_RIDGE = 10.0  # entries that an owner's own mean of zero counts as much as


@record
@dataclass(frozen=True)
class CountsQuery(SumQuery):
    """Ask how often each level of a mode occurs.

    An entry changes one number by one, a unit all of them by a vector of length one.
    """

    known: Known
    mode: int

    def clipped(self, site: Site) -> Clipped:
        known, own = self.known, self.known.owners
        if own is None:
            counts = count(known, self.mode, site)
        else:  # entries of an owner at one level count once
            levels = site.cells(own, self.mode).levels
            counts = level_counts(levels, known.facts.sizes[self.mode]) * cut(1.0, COUNTED)
        if known.facts.unit_mode is None:
            return Clipped(counts, 1.0, 1.0, COUNTED, single=True)
        return Clipped(counts, 1.0 if known.pure else inf, 1.0, COUNTED)


@record
@dataclass(frozen=True)
class SumsQuery(SumQuery):
    """Ask for what a model's mean and biases leave, at each level of a mode.

    Residuals are clipped to ``clip``. Where units are levels of a mode, each one's contribution is
    then shortened to ``bound``, the levels weighted: where there are few entries, noise hurts most.
    Where entries are protected and rows are local, owners take their own means off
    (``proofs/moments.md``).
    """

    known: Known
    mode: int
    mean: float
    biases: tuple[Array, ...]  # by mode
    clip: float
    bound: float
    weights: Array | None

    @property
    def change(self) -> float:
        """How much neighbours change the sums, by entry or by unit."""
        hidden = self.known.facts.unit.hides_presence
        if self.weights is not None:
            return self.bound if hidden else 2 * self.bound
        if self.known.owners is not None:
            cuts = 2 * grid(self.clip) * sqrt(self.known.facts.sizes[self.mode])
            return owners_change(self._centring) / BELOW_ONE + cuts
        return self.clip if hidden else 2 * (min(self.clip, self.known.facts.half) + grid(self.clip))

    @property
    def _centring(self) -> Centring:
        return Centring(self.clip, _OWNERS_RIDGE)

    def unclipped(self) -> float:
        """Share of a level's mean that clipping leaves, where what own means leave is normal."""
        if self.weights is not None:
            return min(1.0, self.bound / (_USUAL_LENGTH * self.known.facts.spread))
        if self.known.owners is None:
            return 1.0
        return erf(self.clip / sqrt(2 * self.known.facts.scatter))

    def _by_owners(self, site: Site, own: int) -> Clipped:
        """What is left at owners' cells beside their own means."""
        facts, mode, step = self.known.facts, self.mode, grid(self.clip)
        rests = owners_rests(site, facts, own, mode, self.mean, self.biases, self._centring)
        sums = site.owned.sum_of_cells(
            site.cells(own, mode), rests, facts.sizes[mode], step, site.threads
        )
        return Clipped(sums, inf, self.change, step)

    def clipped(self, site: Site) -> Clipped:
        known, facts, mode, change = self.known, self.known.facts, self.mode, self.change
        if known.owners is not None:
            return self._by_owners(site, known.owners)
        entries, row, own = entries_of(site, facts), row_of(facts, mode), facts.unit_mode
        # A unit that takes its own mean off does not need its own bias.
        used = [m for m in range(facts.shape.order) if m != own or mode == own]
        taken = taken_off(facts, self.mean, self.biases, used)
        if self.weights is None:
            sums = site.contributions.entry_sums(
                entries, taken, row, self.clip, facts.sizes[mode], site.threads
            )
            return Clipped(sums, change, change, grid(self.clip), single=True)
        made = Contribution(self.clip, self.bound, known.ridge, mode != own, known.norm)
        sums = site.contributions.unit_sums(entries, taken, row, self.weights, made, site.threads)
        return Clipped(sums, change if known.pure else inf, change, grid(self.bound))
