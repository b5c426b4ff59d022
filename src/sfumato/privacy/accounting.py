"""Accounting: what a composition of events costs, and how much noise a budget needs.

Compositions of Gaussians alone and of pure mechanisms alone have exact formulas. Everything else
goes through privacy loss distributions, or Renyi divergences where there are none: the epsilon that
comes out is an upper bound (see :mod:`sfumato.privacy.curves`).

A trap, and why the accountant class of dp-accounting is not used: its relation is one for all
events, and not every event treats it alike. Here an unsampled event's multiplier already refers to
the change between neighbours, so that it is composed as "added or removed" whatever the unit; a
sampled Gaussian says itself whether units are replaced, and then its multiplier refers to the norm
of one contribution, not of a difference.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, lru_cache
from math import exp, expm1, fsum, inf, log, sqrt, tanh

import numpy as np
from numpy.typing import NDArray

from sfumato.errors import SettingError
from sfumato.privacy.budgets import ZCDP, Budget
from sfumato.privacy.curves import (
    Parts,
    change_over_noise,
    counted,
    curve_of,
    gaussian_delta,
    gaussian_epsilon,
    loss_variance,
    surpasses,
)
from sfumato.privacy.events import (
    ApproximateEvent,
    Event,
    GaussianEvent,
    LaplaceEvent,
    PureEvent,
    RepeatAndSelect,
    SampledGaussianEvent,
    ZCDPEvent,
)
from sfumato.privacy.roots import crossing

__all__ = [
    "ROUNDING",
    "advanced",
    "basic",
    "calibrate",
    "covers",
    "delta_of",
    "deltas_of",
    "epsilon_of",
    "gaussian_delta",
    "gaussian_epsilon",
    "gaussian_multiplier",
    "rho_of",
    "rounds_of_noise",
]

_TOLERANCE = 2e-4  # part of the budget that calibrated noise may leave unspent
ROUNDING = 1e-12  # by which sums of floating-point numbers may pass a budget
_FURTHEST = log(1e9)  # noise is sought from one billionth to one billion


def epsilon_of(event: Event, delta: float) -> float:
    """An upper bound on epsilon at delta; infinite where there is none."""
    if not 0 <= delta < 1:
        raise SettingError(f"delta must be at least 0 and below 1, got {delta}")
    return _epsilon(event, delta)


@lru_cache(maxsize=1024)  # a fit's charges are accounted by its plan, its ledger and its guarantee
def _epsilon(event: Event, delta: float) -> float:
    parts = counted(event)
    pure = _pure_epsilon(parts)
    if delta == 0 or pure == 0 or surpasses(parts, pure, delta):
        return pure
    return min(pure, curve_of(parts, delta).epsilon(delta))


def delta_of(event: Event, epsilon: float) -> float:
    """An upper bound on delta at epsilon."""
    parts = counted(event)
    if _pure_epsilon(parts) <= epsilon:
        return 0.0
    return curve_of(parts).delta(epsilon)


def deltas_of(event: Event, rising: Sequence[float]) -> NDArray[np.float64]:
    """Upper bounds on delta at many epsilons that rise."""
    parts, at = counted(event), np.asarray(rising, np.float64)
    found = np.zeros_like(at)
    short = at < _pure_epsilon(parts)
    if short.any():
        found[short] = curve_of(parts).deltas(at[short])
    return found


def rho_of(event: Event) -> float:
    """zCDP of a composition; sampled Gaussians have none that is better than unsampled ones."""
    return fsum(times * _rho(part) for part, times in counted(event).items())


def covers(budget: Budget | ZCDP, event: Event) -> bool:
    """Whether the event stays within the budget, but for the last digit of a sum."""
    return _share(budget, event) <= 1 + ROUNDING


def calibrate(
    event_of: Callable[[float], Event], budget: Budget | ZCDP, start: float | None = None
) -> float:
    """The least noise whose event the budget covers, rounded to the safe side.

    ``event_of(noise)`` must cost less the larger the noise. ``start`` is where to look first.
    """
    rough = start or _least_noise(lambda noise: _rough_share(budget, event_of(noise)), 1.0)
    noise = _least_noise(lambda noise: _share(budget, event_of(noise)), rough or 1.0)
    if noise is None:
        hint = "; name a delta, such as 1e-6" if budget.pure else ""
        raise SettingError(f"no amount of noise keeps this within {budget}{hint}")
    return noise


def gaussian_multiplier(budget: Budget) -> float:
    """Least noise multiplier of one Gaussian mechanism within the budget."""
    return calibrate(GaussianEvent, budget)


# -- classical compositions, as the papers use them -----------------------------------------------


def basic(budgets: Sequence[Budget]) -> Budget:
    """Epsilons and deltas add up (Dwork et al. 2006)."""
    return Budget(sum(b.epsilon for b in budgets), sum(b.delta for b in budgets))


def advanced(each: Budget, times: int, slack: float) -> Budget:
    """Advanced composition with slack delta' (Dwork, Rothblum and Vadhan 2010)."""
    if not 0 < slack < 1:
        raise SettingError(f"the slack must lie between 0 and 1, got {slack}")
    spread = sqrt(2 * times * log(1 / slack)) * each.epsilon
    return Budget(spread + times * each.epsilon * expm1(each.epsilon), times * each.delta + slack)


def rounds_of_noise(total: float, shares: Sequence[float]) -> list[float]:
    """Noise multipliers of Gaussian queries that compose to ``total``, by shares of 1/sigma^2."""
    weights = np.asarray(shares, np.float64) / np.sum(shares)
    return [float(total / sqrt(w)) for w in weights]


# -- what the parts cost --------------------------------------------------------------------------


def _pure_part(event: Event) -> float:
    if isinstance(event, PureEvent):
        return event.epsilon
    if isinstance(event, LaplaceEvent):
        return 1 / event.noise_multiplier
    if isinstance(event, ApproximateEvent) and event.delta == 0:
        return event.epsilon
    if isinstance(event, ZCDPEvent) and event.rho == 0:
        return 0.0
    if isinstance(event, RepeatAndSelect):  # proofs/tuning.md
        each = max(_pure_epsilon(counted(run)) for run in event.events)
        return each + event.rate * tanh(each / 2)
    return inf


def _pure_epsilon(parts: Parts) -> float:
    return fsum(times * _pure_part(part) for part, times in parts.items())


def _rho(event: Event) -> float:
    if isinstance(event, GaussianEvent | SampledGaussianEvent):
        return change_over_noise(event) ** 2 / 2
    if isinstance(event, ZCDPEvent):
        return event.rho
    return _pure_part(event) ** 2 / 2  # Bun and Steinke 2016, Proposition 1.4


def _share(budget: Budget | ZCDP, event: Event) -> float:
    """The part of the budget that the event spends."""
    if isinstance(budget, ZCDP):
        return rho_of(event) / budget.rho
    return epsilon_of(event, budget.delta) / budget.epsilon


def _rough_share(budget: Budget | ZCDP, event: Event) -> float:
    """Like it, but as if all events together were one Gaussian: where to start looking."""
    if isinstance(budget, ZCDP) or budget.pure:
        return _share(budget, event)
    variance = loss_variance(counted(event))
    if variance == 0:
        return 0.0
    return gaussian_epsilon(1 / sqrt(variance), budget.delta) / budget.epsilon


# -- the least noise that is enough ---------------------------------------------------------------


def _least_noise(share: Callable[[float], float], start: float) -> float | None:
    """Noise at which a falling share is at most 1 and hardly less; None where there is none."""
    enough: list[float] = []

    @cache
    def excess(at: float) -> float:
        """Logarithm of the share at noise e^at, seen from the middle of what is near enough."""
        spent = share(exp(at))
        if spent <= 1:
            enough.append(at)
        miss = min(100.0, log(max(spent, 1e-40))) + _TOLERANCE / 2
        return 0.0 if abs(miss) <= _TOLERANCE / 2 else miss

    # The share falls about like 1 / noise, or faster: a step of this length reaches across.
    at = log(start)
    step = 1.1 * max(-2.0, min(2.0, excess(at)))
    while abs(at + step) < _FURTHEST and excess(at) * excess(at + step) > 0:
        at, step = at + step, 2 * step
    if abs(at + step) < _FURTHEST and excess(at) != 0:
        crossing(excess, at, at + step, 1e-9)
    return exp(min(enough)) if enough else None
