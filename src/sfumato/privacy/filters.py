"""Filters: sums that keep a limit even where fits are planned by what earlier ones released.

A sum of privacy loss distributions does not: whoever chooses the next fit by the last release can
pass it. What each fit costs a filter adds up to a total that was fixed before the first fit:

==========  ==============================================  ======================================
kind        a fit costs                                     total
==========  ==============================================  ======================================
epsilon     its epsilon at its share of the limit's delta   the limit's epsilon
gaussian    mu^2, where a Gaussian of change mu over noise  that of the largest Gaussian within
            tells as much, but for a share of delta         the limit
rho         its rho                                         the limit's rho
==========  ==============================================  ======================================

The odometer says what was spent so far, whatever the fits were planned by. Proofs: ``proofs/ledger.md``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import fsum, inf, log, sqrt, tanh
from statistics import NormalDist
from typing import Literal

import numpy as np

from sfumato.errors import SettingError
from sfumato.privacy.accounting import ROUNDING, epsilon_of, gaussian_multiplier, rho_of
from sfumato.privacy.budgets import ZCDP, Budget
from sfumato.privacy.curves import Orders, counted, curve_of, gaussian_epsilon
from sfumato.privacy.events import Composed, Event, GaussianEvent, PureEvent, Repeated

Kind = Literal["epsilon", "gaussian", "rho"]
_SET_ASIDE = 0.02  # of the limit's delta, for what is not quite Gaussian
_UNLIMITED = 1e-9  # the same where there is no limit
_WIDTH = 1e-3  # of the odometer's mixture: it is tightest where about as much or more was spent
_POINTS = 1000  # at which curves are compared


@dataclass(frozen=True)
class Filter:
    """What fits may cost together, in a currency that was fixed before the first of them.

    Parameters
    ----------
    kind : the currency.
    total : what may be spent; infinite where there is no limit.
    slack : delta that all fits share; the n-th has 1/(n (n + 1)) of it.
    """

    kind: Kind
    total: float
    slack: float

    def __post_init__(self) -> None:
        if self.kind not in _COSTS or not (self.total > 0 and 0 <= self.slack < 1):
            raise SettingError(f"such a filter cannot be: {self!r}")

    @classmethod
    def within(cls, limit: Budget | ZCDP | None, first: Sequence[Event]) -> Filter:
        """The filter that keeps the limit and of which the first fit takes the smallest part."""
        if limit is None:
            return cls("gaussian", inf, _UNLIMITED)
        if isinstance(limit, ZCDP):
            return cls("rho", limit.rho, 0.0)
        added = cls("epsilon", limit.epsilon, limit.delta)
        if limit.pure:
            return added
        slack = _SET_ASIDE * limit.delta
        try:
            widest = gaussian_multiplier(Budget(limit.epsilon, limit.delta - slack))
        except SettingError:  # no noise that can be drawn is enough
            return added
        squares = cls("gaussian", widest**-2, slack)

        def taken(each: Filter) -> float:
            return fsum(each.costs(first, 1)) / each.total

        # Told apart without a loss distribution, where that can be.
        if _least_square(first, slack) / squares.total > taken(added):
            return added
        return min(squares, added, key=taken)

    def costs(self, events: Sequence[Event], fit: int) -> list[float]:
        """What each draw of a fit costs; what only the fit as a whole has a price for is paid first."""
        return _COSTS[self.kind](events, self.slack / (fit * (fit + 1)))

    def allows(self, spent: float) -> bool:
        return spent <= self.total * (1 + ROUNDING)

    def odometer(self, spent: float, delta: float) -> float:
        """Epsilon at delta of what was spent, whatever it was spent on and why it was stopped."""
        if self.kind == "epsilon":
            return spent if delta >= self.slack else inf
        if spent == 0:
            return 0.0
        room = delta - self.slack
        if room <= 0:
            return inf
        variance = spent if self.kind == "gaussian" else 2 * spent
        wide = variance + _WIDTH
        return variance / 2 + sqrt(wide * (2 * log(1 / room) + log(wide / _WIDTH)))

    def largest_fit(self, spent: float, fit: int, delta: float) -> float:
        """Epsilon at delta of the largest next fit: pure, or of Gaussian noise alone."""
        left = max(0.0, self.total - spent)
        if self.kind == "epsilon":
            return left if delta >= self.slack / (fit * (fit + 1)) else 0.0
        variance = left if self.kind == "gaussian" else 2 * left
        if not 0 < variance < inf:
            return variance
        return gaussian_epsilon(variance**-0.5, delta) if delta > 0 else 0.0


def _added(events: Sequence[Event], slack: float) -> list[float]:
    """Epsilons: of each draw, or of the whole fit where that is less."""
    each = [epsilon_of(event, 0.0) for event in events]
    whole = epsilon_of(Composed(tuple(events)), slack)
    return each if fsum(each) <= whole else _at_once(whole, events)


def _squares(events: Sequence[Event], slack: float) -> list[float]:
    """Gaussian draws cost exactly what they are; all others are dominated together."""
    costs, others = list[float](), list[Event]()
    first_other = 0
    for place, event in enumerate(events):
        parts = counted(event)
        gaussian = [(p, n) for p, n in parts.items() if isinstance(p, GaussianEvent)]
        costs.append(fsum(times / part.noise_multiplier**2 for part, times in gaussian))
        if len(gaussian) < len(parts):
            first_other = first_other if others else place
            others += [Repeated(p, n) for p, n in parts.items() if not isinstance(p, GaussianEvent)]
    if others:
        costs[first_other] += dominating_gaussian(Composed(tuple(others)), slack) ** 2
    return costs


def _least_square(events: Sequence[Event], slack: float) -> float:
    """A part of what pure draws cost as squares, with at most this slack.

    A Gaussian that dominates them tells neighbours apart as well as the dearest of them does by itself,
    at epsilon 0, where randomised response has a delta of tanh(epsilon / 2).
    """
    parts = [part for event in events for part in counted(event)]
    dearest = max((part.epsilon for part in parts if isinstance(part, PureEvent)), default=0.0)
    told = max(0.0, (tanh(dearest / 2) - slack) / (1 - slack))
    half = (1 + told) / 2
    return inf if half >= 1 else (2 * NormalDist().inv_cdf(half)) ** 2


def _rhos(events: Sequence[Event], _slack: float) -> list[float]:
    return [rho_of(event) for event in events]


def _at_once(whole: float, events: Sequence[Event]) -> list[float]:
    return [whole, *[0.0] * (len(events) - 1)]


_COSTS = {"epsilon": _added, "gaussian": _squares, "rho": _rhos}


@lru_cache(maxsize=256)
def dominating_gaussian(event: Event, slack: float) -> float:
    """Change over noise of a Gaussian that tells at least as much, but for a probability of slack.

    That is: delta(epsilon) <= slack + (1 - slack) * that of the Gaussian, at every epsilon.
    """
    top = epsilon_of(event, slack)  # from here on delta is at most the slack
    if top in (0.0, inf):
        return top
    grid = top * np.linspace(0, 1, _POINTS + 1) ** 2
    curve = curve_of(counted(event), slack)
    # Both curves fall: the one at the left end of each interval, the other at its right end.
    wanted = (curve.deltas(grid[:-1]) - slack) / (1 - slack)
    low, high = 0.0, 1.0
    while not (wanted <= _gaussian_deltas(high, grid[1:])).all():
        low, high = high, 2 * high
    while high - low > 1e-6 * high:
        middle = (low + high) / 2
        enough = (wanted <= _gaussian_deltas(middle, grid[1:])).all()
        low, high = (low, middle) if enough else (middle, high)
    return high * (1 + 1e-9)


def _gaussian_deltas(change: float, epsilons: Orders) -> Orders:
    """Of the Gaussian mechanism (Balle and Wang 2018, Theorem 8), at many epsilons."""
    from scipy.special import log_ndtr, ndtr

    first = ndtr(change / 2 - epsilons / change)
    second = np.exp(np.minimum(700.0, epsilons + log_ndtr(-epsilons / change - change / 2)))
    deltas: Orders = np.maximum(0.0, first - second)
    return deltas
