"""Privacy curves: which epsilon holds at which delta, in three ways.

========  ==========================  ================================================
curve     for                         how
========  ==========================  ================================================
Gaussian  Gaussians alone             exactly
loss      almost everything           privacy loss distributions (dp-accounting)
Renyi     what has no loss            moments of all orders, a few percent wider
          distribution
========  ==========================  ================================================

Each is an upper bound. Parts are events that are no compositions, with how often each occurs.
Proofs: ``proofs/accounting.md``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from functools import lru_cache
from math import ceil, erfc, exp, expm1, floor, inf, log, log1p, pi, sinh, sqrt
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from sfumato.privacy.events import (
    ApproximateEvent,
    Event,
    GaussianEvent,
    LaplaceEvent,
    PureEvent,
    RepeatAndSelect,
    SampledGaussianEvent,
    ZCDPEvent,
    flattened,
)
from sfumato.privacy.roots import crossing

Parts = Mapping[Event, int]
Orders = NDArray[np.float64]

_FINENESS = 0.05  # interval over the spread of one event's loss: about 2e-4 of epsilon too much
_COARSEST = 0.01  # largest interval
_POINTS = 50_000  # most points for one event's loss
_ROUNDING = 2.0**-51  # of delta, by Fourier transforms, for each composed event
_CANCELLED = 1e-5  # of delta, where it is asked for at many epsilons at once
_WIDEST = 500.0  # largest privacy loss that is worth a distribution
_COMPOSED = 10**6  # more events than this are not composed one by one
_FEW_PURE = 32  # so many pure events are composed here
_DISTINCT = 32  # more kinds of events than this are rounded to a geometric grid
_STEP = 1.01  # of that grid


class Curve(Protocol):
    """Upper bounds on epsilon at delta, and on delta at epsilon."""

    def epsilon(self, delta: float) -> float: ...

    def delta(self, epsilon: float) -> float: ...

    def deltas(self, rising: Orders) -> Orders:
        """At many epsilons that rise."""
        return np.array([self.delta(float(epsilon)) for epsilon in rising])


def counted(event: Event) -> Parts:
    """The parts of a composition."""
    counts: Counter[Event] = Counter()
    for part, times in flattened(event):
        counts[part] += times
    return counts


def curve_of(parts: Parts, delta: float = 1.0) -> Curve:
    """The tightest curve that these parts have, down to a delta above zero."""
    merged = _merged(parts)
    single = next(iter(merged), None)
    if len(merged) == 1 and isinstance(single, GaussianEvent):
        return GaussianCurve(single.noise_multiplier)
    times = sum(merged.values())
    too_small = delta < 10 * _ROUNDING * times
    if times > _COMPOSED or too_small or any(_largest_loss(part) > _WIDEST for part in merged):
        return RenyiCurve(merged)
    return LossCurve(_few(merged))


def _merged(parts: Parts) -> Parts:
    """All Gaussians as one that costs exactly as much (Dong, Roth and Su 2022)."""
    inverse = sum(n / p.noise_multiplier**2 for p, n in parts.items() if isinstance(p, GaussianEvent))
    merged: dict[Event, int] = {p: n for p, n in parts.items() if not isinstance(p, GaussianEvent)}
    if inverse > 0:
        merged[GaussianEvent(1 / sqrt(inverse))] = 1
    return merged


def _few(parts: Parts) -> Parts:
    """Rounded to the safe side where there are many kinds: each needs a distribution of its own."""
    if len(parts) <= _DISTINCT:
        return parts
    rounded: Counter[Event] = Counter()
    for part, times in parts.items():
        rounded[_rounded(part)] += times
    return rounded


def _rounded(event: Event) -> Event:
    def down(value: float) -> float:
        return _STEP ** floor(log(value) / log(_STEP) - 1e-9)

    if isinstance(event, LaplaceEvent):
        return LaplaceEvent(down(event.noise_multiplier))
    if isinstance(event, PureEvent) and event.epsilon > 0:
        return PureEvent(1 / down(1 / event.epsilon))
    if isinstance(event, ApproximateEvent) and min(event.epsilon, event.delta) > 0:
        return ApproximateEvent(
            1 / down(1 / event.epsilon), max(event.delta, min(0.999, 1 / down(1 / event.delta)))
        )
    if isinstance(event, SampledGaussianEvent):
        rate = min(1.0, 1 / down(1 / event.rate))
        return SampledGaussianEvent(down(event.noise_multiplier), rate, event.replaces)
    return event


# -- Gaussians ------------------------------------------------------------------------------------

_FAR = 30.0  # from where on the tail has a series that is exact to rounding


def gaussian_delta(noise_multiplier: float, epsilon: float) -> float:
    """Exact delta of the Gaussian mechanism (Balle and Wang 2018, Theorem 8)."""
    mu = 1 / noise_multiplier
    second = exp(min(700.0, epsilon + _log_tail(epsilon / mu + mu / 2)))
    return max(0.0, erfc((epsilon / mu - mu / 2) / sqrt(2)) / 2 - second)


def _log_tail(x: float) -> float:
    """Logarithm of the probability that a normal number is above x >= 0.

    Here and not from SciPy, which takes longer to import than all else that a small fit needs.
    """
    if x < _FAR:
        return log(erfc(x / sqrt(2)) / 2)
    # The series of the tail over the density, whose terms fall to 1e-16 there before they grow.
    total = term = 1.0
    for n in range(1, 8):
        term *= -(2 * n - 1) / x**2
        total += term
    return -(x**2) / 2 - log(x * sqrt(2 * pi)) + log(total)


@lru_cache(maxsize=4096)
def gaussian_epsilon(noise_multiplier: float, delta: float) -> float:
    """Least epsilon of the Gaussian mechanism at delta."""
    if gaussian_delta(noise_multiplier, 0.0) <= delta:
        return 0.0
    high = 1.0
    while gaussian_delta(noise_multiplier, high) > delta:
        high *= 2
    root = crossing(lambda e: gaussian_delta(noise_multiplier, e) - delta, 0.0, high, 1e-12)
    return root * (1 + 1e-9) + 1e-12


class GaussianCurve(Curve):
    """One Gaussian mechanism, exactly."""

    def __init__(self, noise_multiplier: float) -> None:
        self.noise_multiplier = noise_multiplier

    def epsilon(self, delta: float) -> float:
        return gaussian_epsilon(self.noise_multiplier, delta)

    def delta(self, epsilon: float) -> float:
        return gaussian_delta(self.noise_multiplier, epsilon)


# -- privacy loss distributions -------------------------------------------------------------------


class LossCurve(Curve):
    """The composed privacy loss distribution, discretised so that it can only cost more.

    Fourier transforms round, which dp-accounting leaves out: for many events a delta around 1e-12
    would come out too small. What they can add up to is put back here.
    """

    def __init__(self, parts: Parts) -> None:
        interval = _interval(parts)
        losses = [_loss(part, times, interval) for part, times in parts.items()]
        self._loss = losses[0]
        for loss in losses[1:]:
            self._loss = self._loss.compose(loss)
        self._rounding = _ROUNDING * sum(parts.values())

    def epsilon(self, delta: float) -> float:
        if delta <= self._rounding:
            return inf
        return float(self._loss.get_epsilon_for_delta(delta - self._rounding))

    def delta(self, epsilon: float) -> float:
        return min(1.0, float(self._loss.get_delta_for_epsilon(epsilon)) + self._rounding)

    def deltas(self, rising: Orders) -> Orders:
        found: Orders = self._loss.get_delta_for_epsilon(rising)
        # It is a difference of running sums of up to a million numbers, and may lose so many digits.
        return np.minimum(1.0, found * (1 + _CANCELLED) + self._rounding)


def change_over_noise(event: GaussianEvent | SampledGaussianEvent) -> float:
    """Change between neighbours over noise, as if every unit took part."""
    twice = isinstance(event, SampledGaussianEvent) and event.replaces
    return (2 if twice else 1) / event.noise_multiplier


def _interval(parts: Parts) -> float:
    """How finely losses are discretised. Each event adds about the interval squared to the variance.

    So many events with small losses need a fine grid, and a few with large ones do with a coarse one.
    """
    spread = sqrt(loss_variance(parts) / sum(parts.values()))
    needed = max(_FINENESS * spread, max(map(_largest_loss, parts)) / _POINTS)
    return min(_COARSEST, needed or _COARSEST)  # nothing is needed where losses are zero or infinite


def loss_variance(parts: Parts) -> float:
    """About the variance of the composed privacy loss."""
    return sum(times * _part_variance(part) for part, times in parts.items())


def _part_variance(event: Event) -> float:
    if isinstance(event, SampledGaussianEvent):
        inverse = min(20.0, 1 / event.noise_multiplier) ** 2
        sampled = 4 * sinh(inverse) if event.replaces else expm1(inverse)
        return min(change_over_noise(event) ** 2, event.rate**2 * sampled)
    if isinstance(event, GaussianEvent | LaplaceEvent):
        return event.noise_multiplier**-2
    if isinstance(event, PureEvent | ApproximateEvent):
        return event.epsilon**2
    if isinstance(event, ZCDPEvent):
        return 2 * event.rho
    if isinstance(event, RepeatAndSelect):  # the choice costs about as much as one run again
        return 4 * max(loss_variance(counted(run)) for run in event.events)
    raise TypeError(f"a composition is not a part: {event!r}")


def _largest_loss(event: Event) -> float:
    """About the largest privacy loss that can be met; infinite where its law is not known."""
    if isinstance(event, GaussianEvent | SampledGaussianEvent):
        inverse = change_over_noise(event)
        whole = inverse * (inverse / 2 + 10)
        rate = event.rate if isinstance(event, SampledGaussianEvent) else 1.0
        return log1p(rate * expm1(whole)) if whole < 100 else whole
    if isinstance(event, LaplaceEvent):
        return 1 / event.noise_multiplier
    if isinstance(event, PureEvent | ApproximateEvent):
        return event.epsilon
    return inf


@lru_cache(maxsize=32)
def _loss(event: Event, times: int, interval: float) -> Any:
    from dp_accounting.pld import privacy_loss_distribution as pld
    from dp_accounting.privacy_accountant import NeighboringRelation

    settings: dict[str, Any] = {"value_discretization_interval": interval}
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
        loss = _response_loss(event, interval)
    else:
        raise TypeError(f"no privacy loss distribution is known for {event!r}")
    return loss.self_compose(times) if times > 1 else loss


def _response_loss(event: PureEvent | ApproximateEvent, interval: float) -> Any:
    """Of randomised response, the worst of all (epsilon, delta)-private mechanisms.

    dp-accounting's own function rounds epsilon up to the interval; connecting the dots of the curve
    keeps the variance instead (Doroshenko et al. 2022).
    """
    from dp_accounting.pld import pld_pmf
    from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution

    dots, deltas = _response_dots(event, interval)
    return PrivacyLossDistribution(pld_pmf.create_pmf_pessimistic_connect_dots(interval, dots, deltas))


def _response_dots(
    event: PureEvent | ApproximateEvent, interval: float
) -> tuple[list[int], list[float]]:
    """Losses around which randomised response has some, over the interval, and delta at each of them."""
    epsilon, fails = event.epsilon, event.delta if isinstance(event, ApproximateEvent) else 0.0

    def response(at: float) -> float:
        if at <= -epsilon:
            return -expm1(at)
        return max(0.0, -expm1(at - epsilon)) / (1 + exp(-epsilon))

    ends = (-epsilon / interval, epsilon / interval)
    dots = sorted({way(end) for end in ends for way in (floor, ceil)})
    return dots, [fails + (1 - fails) * response(dot * interval) for dot in dots]


def surpasses(parts: Parts, epsilon: float, delta: float) -> bool:
    """Whether the loss curve of a few pure parts is known to lie above delta at epsilon.

    It says no less than epsilon then, and need not be made: dp-accounting takes a second to import.
    """
    pure = [(part, times) for part, times in parts.items() if isinstance(part, PureEvent)]
    times = sum(parts.values())
    if len(pure) < len(parts) or times > _FEW_PURE or delta < 10 * _ROUNDING * times:
        return False
    if any(part.epsilon > _WIDEST for part, _ in pure):
        return False
    interval, composed, lowest = _interval(parts), np.ones(1), 0
    for part, number in pure:
        dots, masses = _response_masses(part, interval)
        for _ in range(number):
            spread = np.zeros(composed.size + dots[-1] - dots[0])
            for dot, mass in zip(dots, masses, strict=True):
                spread[dot - dots[0] :][: composed.size] += mass * composed
            composed, lowest = spread, lowest + dots[0]
    losses = (lowest + np.arange(composed.size)) * interval
    beyond = composed @ np.maximum(0.0, -np.expm1(epsilon - losses))
    return bool(beyond > (1 + 1e-6) * delta)  # more than sums of so few numbers are rounded by


def _response_masses(event: PureEvent, interval: float) -> tuple[list[int], list[float]]:
    """Probabilities of the same dots: delta is straight between them, as a function of e^epsilon."""
    dots, deltas = _response_dots(event, interval)
    ends = np.exp(np.array(dots) * interval)
    slopes = np.append(np.diff(deltas) / np.diff(ends), 0.0)
    masses = (ends[1:] * np.diff(slopes)).tolist()
    return dots, [1 - sum(masses), *masses]


# -- Renyi divergences ----------------------------------------------------------------------------


class RenyiCurve(Curve):
    """Renyi divergences of many orders, which add up (Mironov 2017).

    Turned into epsilon and delta by Canonne, Kamath and Steinke (2020), Proposition 12.
    """

    def __init__(self, parts: Parts) -> None:
        self._orders = _orders_for(parts)
        self._divergences = np.zeros_like(self._orders)
        for part, times in parts.items():
            self._divergences += times * _divergence(part, self._orders)
        # A mechanism that is (epsilon, delta)-private is epsilon-private but for a chance of delta.
        self._fails = sum(n * p.delta for p, n in parts.items() if isinstance(p, ApproximateEvent))

    def epsilon(self, delta: float) -> float:
        if delta <= self._fails:
            return inf
        a = self._orders
        room = log(delta - self._fails)
        bounds = self._divergences + np.log1p(-1 / a) - (room + np.log(a)) / (a - 1)
        return max(0.0, float(bounds.min()))

    def delta(self, epsilon: float) -> float:
        a = self._orders
        logs = (a - 1) * (self._divergences - epsilon) + a * np.log1p(-1 / a) - np.log(a - 1)
        return min(1.0, self._fails + exp(min(0.0, float(logs.min()))))


def _orders_for(parts: Parts) -> Orders:
    """Whole orders for sampled events; fewer where each of them takes a curve's delta."""
    runs = [run for part in parts if isinstance(part, RepeatAndSelect) for run in part.events]
    inner = {part for run in runs for part in counted(run)}
    if any(isinstance(part, SampledGaussianEvent) for part in {*parts, *inner}):
        return np.unique(np.rint(np.geomspace(2, 2000, 200)))
    return 1 + np.geomspace(1e-3, 1e6, 600 if runs else 3000)


def _divergence(event: Event, orders: Orders) -> Orders:
    a = orders
    if isinstance(event, GaussianEvent):
        return a / (2 * event.noise_multiplier**2)
    if isinstance(event, ZCDPEvent):
        return a * event.rho
    if isinstance(event, PureEvent | ApproximateEvent):  # randomised response
        true = -log1p(exp(-event.epsilon))
        false = true - event.epsilon
        return np.logaddexp(a * true + (1 - a) * false, a * false + (1 - a) * true) / (a - 1)
    if isinstance(event, LaplaceEvent):  # Mironov 2017, Proposition 6
        inverse = 1 / event.noise_multiplier
        near = np.log(a / (2 * a - 1)) + (a - 1) * inverse
        far = np.log((a - 1) / (2 * a - 1)) - a * inverse
        return np.logaddexp(near, far) / (a - 1)
    if isinstance(event, SampledGaussianEvent):
        if event.replaces or event.rate == 1:  # as if all took part: no better bound is proven
            return a * change_over_noise(event) ** 2 / 2
        return np.array([_sampled_moment(event, int(order)) for order in a]) / (a - 1)
    if isinstance(event, RepeatAndSelect):
        return _selection_divergence(event, a)
    raise TypeError(f"a composition is not a part: {event!r}")


def _selection_divergence(event: RepeatAndSelect, orders: Orders) -> Orders:
    """Papernot and Steinke 2022, Theorem 6, with at least one run: ``proofs/tuning.md``.

    What a run costs at each order is the most that any of its events does there.
    """
    runs = [counted(run) for run in event.events]
    costs = [
        sum((times * _divergence(part, orders) for part, times in run.items()), np.zeros_like(orders))
        for run in runs
    ]
    at = -np.log1p(-1 / orders)  # epsilon at which delta is wanted
    deltas = [_deltas(run, at) for run in runs]
    worst: Orders = np.max(costs, axis=0) + event.rate * np.max(deltas, axis=0)
    return worst + log(event.mean) / (orders - 1)


def _deltas(parts: Parts, epsilons: Orders) -> Orders:
    if not parts:
        return np.zeros_like(epsilons)
    curve = curve_of(parts)
    return np.array([curve.delta(float(epsilon)) for epsilon in epsilons])


def _sampled_moment(event: SampledGaussianEvent, order: int) -> float:
    """Mironov, Talwar and Zhang 2019, section 3.3, for a whole order."""
    from scipy.special import gammaln, logsumexp

    k = np.arange(order + 1)
    choose = gammaln(order + 1) - gammaln(k + 1) - gammaln(order - k + 1)
    taken = k * log(event.rate) + (order - k) * np.log1p(-event.rate)
    return float(logsumexp(choose + taken + k * (k - 1) / (2 * event.noise_multiplier**2)))
