"""How far values lie from their mean, asked before anything is clipped to it.

Bounds are public, what lies between them is not: values may fill them, or a tenth of them far from the
middle. Clipping, priors and ridges are in proportion to the spread, so that it is worth a small part of
the budget. Asked for are absolute deviations, not squares: beside a bound they are larger, and the noise
in proportion to the bound hurts less. Proof: ``proofs/biases.md``.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import sqrt
from typing import NamedTuple

import numpy as np

from sfumato.kernels.grid import grid
from sfumato.privacy.clipping import Clipped
from sfumato.privacy.facts import Facts
from sfumato.privacy.ledger import Charge
from sfumato.privacy.mechanisms import Noisy
from sfumato.privacy.units import UnitValues
from sfumato.records import record
from sfumato.sites.memory import Site
from sfumato.solvers.private.contributions import entries_of, taken_off
from sfumato.solvers.private.known import Known
from sfumato.solvers.protocol import SumQuery

LABEL = "spread"  # of its draw in a plan
# Chosen on invented tables (benchmarks/planted_tables.py), but the first, which is that of a normal law:
# of a uniform one it is 1.15, of an exponential one 1.36.
_PER_DEVIATION = 1.25  # standard deviations, for each mean absolute deviation
_LIKELY = 0.5  # of the usual spread: what to plan for, and to be cautious with where it is not asked for
_ERROR = 0.25  # that it may have, over itself: settings are flat around the best
_LEAST, _MOST = 0.002, 0.15  # of the budget; where more would be needed it is not asked for
_DOUBT = 0.5  # of the spread that is assumed where none was asked for, over itself


@record
@dataclass(frozen=True)
class SpreadQuery(SumQuery):
    """Ask for the sum of how far values lie from a released mean, at most half the bounds' width each.

    A unit adds the mean of its values'; in part where it has few entries.
    """

    known: Known
    mean: float

    def clipped(self, site: Site) -> Clipped:
        known, facts, half = self.known, self.known.facts, self.known.facts.half
        entries = entries_of(site, facts)
        # What is no number stays none, and counts as the middle of what it can be.
        values = np.abs(np.clip(np.asarray(entries.values, np.float64), *facts.bounds) - self.mean)
        entries = entries._replace(values=values, low=0.0, high=half)
        taken = taken_off(facts, 0.0, (), ())
        if entries.by_unit:
            how = half, known.full_entries, site.threads
            sums = site.contributions.means_of_units(entries, taken, *how)[:1]
        else:
            sums = site.contributions.total_of_entries(entries, taken, half, site.threads)
        change = spread_change(known)
        return Clipped(sums, change, change, grid(half), single=True)


def spread_change(known: Known) -> float:
    """How much neighbours change the sum of deviations, which lie between zero and half the width."""
    unit, half = known.facts.unit, known.facts.half
    if unit.hides_presence:
        return half
    changed = unit.max_entries / known.full_entries if isinstance(unit, UnitValues) else 1.0
    return half * min(1.0, changed) + 2 * grid(half)  # both are cut to the grid


def likely_spread(facts: Facts) -> float:
    """What to plan for where the spread is not public.

    Taken for too large it does harm: noise is in proportion to it, and biases are believed that are not
    there. Taken for too small it makes of biases a constant.
    """
    return _LIKELY * facts.spread


def spread_share(known: Known) -> float:
    """Of the budget: what tells the spread well enough, or nothing where that would be much."""
    facts = known.facts
    if facts.public_spread is not None or (facts.before is not None and facts.before.spread is not None):
        return 0.0
    worth = facts.least_units * likely_spread(facts) / _PER_DEVIATION * _ERROR
    error = known.mechanism(1.0).deviation(facts.half) / worth
    share = error if known.pure else error**2
    return 0.0 if share > _MOST else max(share, _LEAST)


def knows_spread(facts: Facts, charges: Iterable[Charge]) -> bool:
    """Whether the spread is public, or is asked for by a fit with these charges."""
    return facts.public_spread is not None or any(charge.label == LABEL for charge in charges)


class Spread(NamedTuple):
    """How far values lie from their mean, and how far noise may have moved that."""

    spread: float
    error: float


def spread_from(known: Known, noisy: Noisy, number: float) -> Spread:
    """The best linear guess around the spread that is assumed."""
    facts = known.facts
    guess, error = _PER_DEVIATION * np.array([noisy.values[0], noisy.deviation]) / number
    doubt = (_DOUBT * facts.spread) ** 2
    kept = doubt / (doubt + error**2)
    spread = facts.spread + kept * (guess - facts.spread)
    spread = float(np.clip(spread, max(error, 1e-3 * facts.half), facts.half))
    return Spread(spread, sqrt(kept) * float(error))
