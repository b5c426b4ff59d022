"""Accounting: what a composition of events costs, and how much noise a budget needs.

Compositions of Gaussians alone and of pure mechanisms alone have exact formulas. Everything else goes
through dp-accounting's privacy loss distributions, discretised pessimistically: the epsilon that
comes out is an upper bound.

A trap, and why the accountant class of dp-accounting is not used: its relation is one for all
events, and not every event treats it alike. Here an unsampled event's multiplier already refers to
the change between neighbours, so that it is composed as "added or removed" whatever the unit; a
sampled Gaussian says itself whether units are replaced, and then its multiplier refers to the norm
of one contribution, not of a difference.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import lru_cache
from math import exp, expm1, inf, log, sqrt
from typing import Any

import numpy as np
from scipy.optimize import brentq
from scipy.special import log_ndtr, ndtr

from sfumato.errors import SettingError
from sfumato.privacy.budget import ZCDP, Budget
from sfumato.privacy.events import (
    ApproximateEvent,
    Event,
    GaussianEvent,
    LaplaceEvent,
    PureEvent,
    SampledGaussianEvent,
    flattened,
)

_INTERVAL = 1e-4  # of the discretised privacy loss
_TOLERANCE = 1e-4  # relative, of calibrated noise


def epsilon_of(event: Event, delta: float) -> float:
    """An upper bound on epsilon at delta; infinite where there is none."""
    if not 0 <= delta < 1:
        raise SettingError(f"delta must be at least 0 and below 1, got {delta}")
    counts = _counted(event)
    if not counts:
        return 0.0
    pure = _pure_epsilon(counts)
    if delta == 0:
        return pure
    if all(isinstance(part, GaussianEvent) for part in counts):
        return gaussian_epsilon(_joint_multiplier(counts), delta)
    return min(pure, float(_loss(counts).get_epsilon_for_delta(delta)))


def delta_of(event: Event, epsilon: float) -> float:
    """An upper bound on delta at epsilon."""
    counts = _counted(event)
    if _pure_epsilon(counts) <= epsilon:
        return 0.0
    if all(isinstance(part, GaussianEvent) for part in counts):
        return gaussian_delta(_joint_multiplier(counts), epsilon)
    return float(_loss(counts).get_delta_for_epsilon(epsilon))


def rho_of(event: Event) -> float:
    """zCDP of a composition; sampled Gaussians have none that is better than unsampled ones."""
    total = 0.0
    for part, times in flattened(event):
        if isinstance(part, GaussianEvent | SampledGaussianEvent):
            total += times / (2 * _full_multiplier(part) ** 2)
        elif isinstance(part, PureEvent | LaplaceEvent):
            total += times * _pure_part(part) ** 2 / 2
        else:
            return inf
    return total


def covers(budget: Budget | ZCDP, event: Event) -> bool:
    """Whether the event stays within the budget."""
    if isinstance(budget, ZCDP):
        return rho_of(event) <= budget.rho
    counts = _counted(event)
    if budget.pure or _pure_epsilon(counts) <= budget.epsilon:
        return _pure_epsilon(counts) <= budget.epsilon
    return delta_of(event, budget.epsilon) <= budget.delta


def calibrate(event_of: Callable[[float], Event], budget: Budget | ZCDP) -> float:
    """The least noise whose event the budget covers, rounded to the safe side.

    ``event_of(noise)`` must cost less the larger the noise.
    """
    low, high = 0.0, 1.0
    while not covers(budget, event_of(high)):
        low, high = high, high * 4
        if high > 1e9:
            raise SettingError(
                f"no amount of noise keeps this within {budget}"
                + ("; name a delta, such as 1e-6" if getattr(budget, "pure", False) else "")
            )
    while low == 0.0:
        if covers(budget, event_of(high / 4)):
            high /= 4
        else:
            low = high / 4
        if high < 1e-9:
            return high
    while high / low - 1 > _TOLERANCE:
        middle = sqrt(low * high)
        low, high = (low, middle) if covers(budget, event_of(middle)) else (middle, high)
    return high


# -- Gaussian noise: closed forms -----------------------------------------------------------------


def gaussian_delta(noise_multiplier: float, epsilon: float) -> float:
    """Exact delta of the Gaussian mechanism (Balle and Wang 2018, Theorem 8)."""
    mu = 1 / noise_multiplier
    second = exp(min(700.0, epsilon + float(log_ndtr(-epsilon / mu - mu / 2))))
    return max(0.0, float(ndtr(mu / 2 - epsilon / mu)) - second)


@lru_cache(maxsize=4096)
def gaussian_epsilon(noise_multiplier: float, delta: float) -> float:
    """Least epsilon of the Gaussian mechanism at delta."""
    if gaussian_delta(noise_multiplier, 0.0) <= delta:
        return 0.0
    high = 1.0
    while gaussian_delta(noise_multiplier, high) > delta:
        high *= 2
    root = brentq(lambda e: gaussian_delta(noise_multiplier, e) - delta, 0.0, high, xtol=1e-12)
    return float(root) * (1 + 1e-9) + 1e-12


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


# -- how the parts are put together ---------------------------------------------------------------


def _counted(event: Event) -> dict[Event, int]:
    counts: dict[Event, int] = defaultdict(int)
    for part, times in flattened(event):
        counts[part] += times
    return dict(counts)


def _pure_part(event: Event) -> float:
    if isinstance(event, PureEvent):
        return event.epsilon
    if isinstance(event, LaplaceEvent):
        return 1 / event.noise_multiplier
    if isinstance(event, ApproximateEvent) and event.delta == 0:
        return event.epsilon
    return inf


def _pure_epsilon(counts: dict[Event, int]) -> float:
    return sum(times * _pure_part(part) for part, times in counts.items())


def _full_multiplier(event: GaussianEvent | SampledGaussianEvent) -> float:
    """Noise over the change between neighbours, as if every unit took part."""
    if isinstance(event, SampledGaussianEvent) and event.replaces:
        return event.noise_multiplier / 2
    return event.noise_multiplier


def _joint_multiplier(counts: dict[Event, int]) -> float:
    """One Gaussian that costs exactly as much as all of them (Dong, Roth and Su 2022)."""
    inverse = sum(
        times / part.noise_multiplier**2
        for part, times in counts.items()
        if isinstance(part, GaussianEvent)
    )
    return 1 / sqrt(inverse)


def _loss(counts: dict[Event, int]) -> Any:
    gaussians: dict[Event, int] = {p: n for p, n in counts.items() if isinstance(p, GaussianEvent)}
    rest = {part: n for part, n in counts.items() if part not in gaussians}
    if gaussians:
        rest[GaussianEvent(_joint_multiplier(gaussians))] = 1
    total = None
    for part, times in rest.items():
        loss = _part_loss(part, times)
        total = loss if total is None else total.compose(loss)
    return total


@lru_cache(maxsize=256)
def _part_loss(event: Event, times: int) -> Any:
    from dp_accounting.pld import common
    from dp_accounting.pld import privacy_loss_distribution as pld
    from dp_accounting.privacy_accountant import NeighboringRelation

    settings: dict[str, Any] = {"value_discretization_interval": _INTERVAL}
    if isinstance(event, GaussianEvent):
        loss = pld.from_gaussian_mechanism(event.noise_multiplier, **settings)
    elif isinstance(event, LaplaceEvent):
        loss = pld.from_laplace_mechanism(event.noise_multiplier, **settings)
    elif isinstance(event, SampledGaussianEvent):
        loss = pld.from_gaussian_mechanism(
            event.noise_multiplier,
            sampling_prob=event.rate,
            neighboring_relation=NeighboringRelation.REPLACE_ONE
            if event.replaces
            else NeighboringRelation.ADD_OR_REMOVE_ONE,
            **settings,
        )
    elif isinstance(event, PureEvent | ApproximateEvent):
        delta = event.delta if isinstance(event, ApproximateEvent) else 0.0
        parameters = common.DifferentialPrivacyParameters(event.epsilon, delta)
        loss = pld.from_privacy_parameters(parameters, **settings)
    else:
        raise TypeError(f"a composition is not a part: {event!r}")
    return loss.self_compose(times) if times > 1 else loss


def rounds_of_noise(total: float, shares: Sequence[float]) -> list[float]:
    """Noise multipliers of Gaussian queries that compose to ``total``, by shares of 1/sigma^2."""
    weights = np.asarray(shares, np.float64) / np.sum(shares)
    return [float(total / sqrt(w)) for w in weights]
