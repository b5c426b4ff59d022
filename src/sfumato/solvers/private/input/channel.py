"""Noisy channels: what a released value says about the mean of its entry, and which channel to take.

A clean value x of an entry with mean m is taken for normal, ``x ~ N(m, s^2)``. It is clipped to a
public range, then passes a channel. Both channels here are tables: the line of clean values is cut
into cells, and ``matrix[c, z]`` is the probability of output z for a clean value in cell c. So

    P(z | m, s) = sum_c (Phi((e_{c+1} - m) / s) - Phi((e_c - m) / s)) matrix[c, z]

with its derivatives by m and log s, and the Fisher information of the mean sum_z (dP/dm)^2 / P.
Noise on real numbers is put into fine bins after the release, which is post-processing: the
likelihood of the bins is exact, and a clamp of the noisy values is two bins more.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from math import exp, inf, isfinite, log, sqrt
from typing import Literal, NamedTuple, Protocol

import numpy as np
from scipy.special import expit, ndtr

from sfumato.records import record
from sfumato.types import Array

Law = Literal["laplace", "gaussian"]

_CELLS = 96  # of the clean range, for noise on real numbers
_BINS = 256  # of its noisy values
_TAIL = 8.0  # scales beyond the range that get bins of their own
_MEANS = 201  # grid of the likelihood's table
_DEVIATIONS = 24  # noise levels of the clean values that are told apart
_SMALLEST = 0.012  # of the bounds' width: the least noise level
_LARGEST = 0.6
_LEAST_SHARE = 1e-3  # of the largest information
_LEAST = 1e-30  # probability: below it is rounding error


class Channel(Protocol):
    """A table of probabilities, and the numbers of the outputs that were released."""

    @property
    def edges(self) -> Array:
        """Where the cells of clean values meet; the outer cells are open."""

    @property
    def matrix(self) -> Array:
        """Probability of each output for each cell."""

    @property
    def resolution(self) -> float:
        """Width of the cells that it cannot tell apart: no noise level far below can be seen."""

    def outputs(self, released: Array) -> Array:
        """Numbers of the outputs."""


@record
@dataclass(frozen=True)
class Response:
    """k-ary randomised response on which of k bins a value lies in."""

    cuts: tuple[float, ...]
    epsilon: float

    @property
    def categories(self) -> int:
        return len(self.cuts) + 1

    @property
    def edges(self) -> Array:
        return np.array(self.cuts)

    @property
    def matrix(self) -> Array:
        lie = exp(-self.epsilon)
        table = np.full((self.categories, self.categories), lie)
        np.fill_diagonal(table, 1.0)
        return table / (1 + (self.categories - 1) * lie)

    @property
    def resolution(self) -> float:
        return float(np.diff(self.edges).min(initial=inf)) if len(self.cuts) > 1 else 0.0

    def bins(self, values: Array) -> Array:
        """Bin of each clean value."""
        return np.searchsorted(self.edges, values, side="right")

    def outputs(self, released: Array) -> Array:
        return released


@record
@dataclass(frozen=True)
class Additive:
    """Noise on a value clipped to ``low`` and ``high``; ``clamp`` cuts the noisy value, if given."""

    low: float
    high: float
    law: Law
    scale: float
    clamp: tuple[float, float] | None = None

    @property
    def edges(self) -> Array:
        return np.linspace(self.low, self.high, _CELLS + 1)

    @cached_property
    def _bins(self) -> Array:
        """Edges of the bins of noisy values; the outer bins are open."""
        reach = _TAIL * self.scale
        low, high = self.low - reach, self.high + reach
        if self.clamp is not None:
            # What was clamped gets the outer bins to itself.
            low, high = max(low, self.clamp[0]), min(high, self.clamp[1])
            low, high = np.nextafter(low, inf), np.nextafter(high, -inf)
        return np.linspace(low, high, _BINS - 1)

    @property
    def matrix(self) -> Array:
        middles = (self.edges[1:] + self.edges[:-1]) / 2
        clean = np.concatenate([[self.low], middles, [self.high]])  # the outer cells are clipped
        below = self._distribution((self._bins - clean[:, None]) / self.scale)
        return np.diff(below, axis=1, prepend=0.0, append=1.0)

    def _distribution(self, t: Array) -> Array:
        if self.law == "gaussian":
            return ndtr(t)
        tail = 0.5 * np.exp(-np.abs(t))
        return np.where(t < 0, tail, 1 - tail)

    @property
    def resolution(self) -> float:
        return 0.0

    def outputs(self, released: Array) -> Array:
        """Of numbers from the middle of the range."""
        values = released + (self.low / 2 + self.high / 2)
        if self.clamp is not None:
            values = np.clip(values, *self.clamp)
        return np.searchsorted(self._bins, values, side="right")


class OutputLaw(NamedTuple):
    """Probability of each output by mean, with its derivatives by the mean and by log s."""

    probability: Array
    by_mean: Array
    by_log_deviation: Array


def law_of(channel: Channel, means: Array, deviation: float) -> OutputLaw:
    """What is released of an entry with each of these means (rows) when x ~ N(mean, deviation^2)."""
    t = (channel.edges - means[:, None]) / deviation
    density = np.exp(-0.5 * t * t) / sqrt(2 * np.pi)
    matrix = channel.matrix
    inside = np.diff(ndtr(t), axis=1, prepend=0.0, append=1.0)
    rises = -np.diff(density, axis=1, prepend=0.0, append=0.0) / deviation
    widens = -np.diff(t * density, axis=1, prepend=0.0, append=0.0)
    return OutputLaw(inside @ matrix, rises @ matrix, widens @ matrix)


# -- the likelihood of what was released ----------------------------------------------------------


class Terms(NamedTuple):
    """Per entry: log-likelihood, its derivative by the mean, and the expected information (not 0)."""

    log: Array
    score: Array
    information: Array


class Evidence(Protocol):
    """Released data as a function of the entries' means and the noise level of the clean values.

    Means are cut to ``bounds``, a little wider than the public ones. A global mean is taken to lie
    about ``centre``, with precision ``mean_precision``.
    """

    bounds: tuple[float, float]
    deviations: Array
    centre: float
    mean_precision: float

    def terms(self, level: int, means: Array) -> Terms:
        """At the noise level ``deviations[level]``."""


def mean_precision(bounds: tuple[float, float]) -> float:
    """One over the square of a quarter of the bounds' width."""
    return 16 / (bounds[1] - bounds[0]) ** 2


def _widened(bounds: tuple[float, float]) -> tuple[float, float]:
    """A fitted mean may lie a little beyond the bounds."""
    low, high = bounds
    return low - 0.1 * (high - low), high + 0.1 * (high - low)


class TableEvidence:
    """Evidence from a channel with one output per entry, looked up in tables by mean and output."""

    def __init__(self, channel: Channel, released: Array, bounds: tuple[float, float]) -> None:
        low, high = bounds
        width = high - low
        smallest = max(_SMALLEST * width, 0.35 * channel.resolution)
        self.bounds = _widened(bounds)
        self.centre, self.mean_precision = (low + high) / 2, mean_precision(bounds)
        self.deviations = np.geomspace(smallest, max(_LARGEST * width, 1.1 * smallest), _DEVIATIONS)
        self._outputs = channel.outputs(released).astype(np.int64)
        self._means = np.linspace(*self.bounds, _MEANS)
        self._channel = channel
        self._tables: dict[int, tuple[Array, Array, Array]] = {}

    def _table(self, level: int) -> tuple[Array, Array, Array]:
        if level not in self._tables:
            law = law_of(self._channel, self._means, float(self.deviations[level]))
            probability = np.maximum(law.probability, _LEAST)
            score = law.by_mean / probability
            information = (score * law.by_mean).sum(axis=1)
            # Far outside the channel's range an entry says next to nothing.
            information = np.maximum(information, _LEAST_SHARE * information.max())
            self._tables[level] = np.log(probability), score, information
        return self._tables[level]

    def terms(self, level: int, means: Array) -> Terms:
        logs, score, information = self._table(level)
        step = self._means[1] - self._means[0]
        place = np.clip((means - self._means[0]) / step, 0, _MEANS - 1 - 1e-9)
        row = place.astype(np.int64)
        share, at = place - row, row * logs.shape[1] + self._outputs

        def between(table: Array) -> Array:
            first, second = table.ravel()[at], table.ravel()[at + table.shape[1]]
            mixed: Array = first + share * (second - first)
            return mixed

        spread = information[row] + share * (information[row + 1] - information[row])
        return Terms(between(logs), between(score), spread)


class PresenceEvidence:
    """Evidence from a noisy mask and a noisy masked value at every cell.

    With r the probability that a cell is observed, given its noisy mask alone, the noisy value y of
    a cell with mean f (from the centre, in half-widths) has mean r f exactly, and variance
    ``v = noise^2 + r s^2 + r (1 - r) f^2``. A normal quasi-likelihood with these two is used: its
    information r^2 / v is right both where masks are plain to see and where they drown.
    """

    def __init__(
        self,
        mask: Array,
        value: Array,
        law: Law,
        scales: tuple[float, float],
        bounds: tuple[float, float],
        entries: int | None,
    ) -> None:
        low, high = bounds
        self.bounds = _widened(bounds)
        self.centre, self.mean_precision = (low + high) / 2, mean_precision(bounds)
        self._half, self._value = (high - low) / 2, value
        self.deviations = np.geomspace(_SMALLEST, _LARGEST, _DEVIATIONS) * (high - low)
        self._noise = scales[1] ** 2 * (2.0 if law == "laplace" else 1.0)
        density = float(mask.mean()) if entries is None else entries / mask.size
        density = min(max(density, 1 / mask.size), 1 - 1 / mask.size)
        t = mask / scales[0]
        at_one = (mask - 1) / scales[0]
        odds = np.abs(t) - np.abs(at_one) if law == "laplace" else (t**2 - at_one**2) / 2
        # Not zero: a cell that is hardly there has a small weight, but has one.
        self._presence = np.maximum(expit(log(density / (1 - density)) + odds), 1e-9)

    def terms(self, level: int, means: Array) -> Terms:
        r, f = self._presence, (np.clip(means, *self.bounds) - self.centre) / self._half
        s = float(self.deviations[level]) / self._half
        variance = self._noise + r * s**2 + r * (1 - r) * f**2
        miss = self._value - r * f
        return Terms(
            -0.5 * (np.log(variance) + miss**2 / variance),
            r * miss / (variance * self._half),
            r**2 / (variance * self._half**2),
        )


# -- which channel to take ------------------------------------------------------------------------

_RANGES = tuple(np.geomspace(0.05, 1.0, 13).tolist())  # half-widths, as shares of the bounds'
_CATEGORIES = (3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 28, 32, 40, 48, 64, 96, 128)
_SPREADS = tuple(np.geomspace(0.04, 0.3, 7).tolist())  # of values, as shares of the width
_OFFSETS = np.linspace(-2.5, 2.5, 11)  # of an entry's mean from the centre, in spreads
_GRID = 1.03  # noise is rounded to its powers where a channel is looked for
_SHARED = 0.05  # weight of the noise level, which all entries share, beside the mean's


class Setting(NamedTuple):
    """Public numbers that a channel is chosen by; ``step`` is the spacing of the values, if any."""

    bounds: tuple[float, float]
    noise: float
    spread: float | None = None
    step: float | None = None
    values: int = 1
    clamp: tuple[float, float] | None = None


def best_channel(setting: Setting, laws: tuple[str, ...]) -> Response | Additive:
    """The channel from which most is learnt, on average over how far values may spread.

    Deterministic, and a function of public numbers only. Ranges and cuts are looked for at a noise
    rounded to a few per cent, so that a calibration does not look for them at each of its steps.
    """
    rounded = float(_GRID ** round(log(setting.noise) / log(_GRID)))
    law, places = _best_places(setting._replace(noise=rounded), laws)
    return _make(setting, law, places)


@lru_cache(maxsize=1024)
def _best_places(setting: Setting, laws: tuple[str, ...]) -> tuple[str, tuple[float, ...]]:
    """Law and cuts, or law and the two ends of the range."""
    candidates = [(law, places) for law in laws for places in _candidates(setting, law)]
    return max(candidates, key=lambda candidate: efficiency(_make(setting, *candidate), setting))


def _candidates(setting: Setting, law: str) -> list[tuple[float, ...]]:
    low, high = setting.bounds
    centre, half = (low + high) / 2, (high - low) / 2
    if law != "response":
        return [(centre - share * half, centre + share * half) for share in _RANGES]
    # With more bins than e^epsilon most answers are lies.
    most = max(8.0, 2 * exp(min(1 / setting.noise, 10.0)))
    cuts = {
        _snapped(centre + share * half * np.linspace(-1, 1, k + 1)[1:-1], setting)
        for share in _RANGES
        for k in _CATEGORIES
        if k <= most
    }
    # At least three bins: two say nothing of the noise level. Unless there are but two values.
    return sorted(each for each in cuts if len(each) > 1) or sorted(cuts)


def _make(setting: Setting, law: str, places: tuple[float, ...]) -> Response | Additive:
    if law == "response":
        return Response(places, 1 / setting.noise)
    values = sqrt(setting.values) if law == "gaussian" else setting.values
    low, high = places
    kind: Law = "gaussian" if law == "gaussian" else "laplace"
    return Additive(low, high, kind, setting.noise * values * (high - low), setting.clamp)


def _snapped(cuts: Array, setting: Setting) -> tuple[float, ...]:
    """Cuts half-way between the values that occur, where these have a spacing."""
    if setting.step is None:
        return tuple(cuts.tolist())
    low, high = setting.bounds
    steps = round((high - low) / setting.step)
    halfway = np.clip(np.round((cuts - low) / setting.step - 0.5), 0, steps - 1) + 0.5
    return tuple((low + setting.step * np.unique(halfway)).tolist())


def efficiency(channel: Channel, setting: Setting) -> float:
    """How much of the clean values' information passes, averaged over a public prior.

    Values spread by tau (log-uniform, or the public spread): half of its square is noise, half lies
    in the entries' means, and the centre may be off by as much again. An entry's mean counts with
    its information s^2 I, and the noise level with what is left of its own when the mean is unknown;
    both are needed, so they are combined as errors add up.
    """
    low, high = setting.bounds
    width = high - low
    spreads = [max(share * width, (setting.step or 0.0) / 2) for share in _SPREADS]
    if setting.spread is not None and isfinite(setting.spread):
        spreads = [setting.spread * factor for factor in (0.75, 1.0, 1.33)]
    weights = np.exp(-0.5 * _OFFSETS**2)
    weights /= weights.sum()
    logs = 0.0
    for tau in spreads:
        s = tau / sqrt(2)
        p, m, v = law_of(channel, (low + high) / 2 + tau * _OFFSETS, s)
        p = np.maximum(p, _LEAST)
        mean, cross, level = (m * m / p).sum(1), (m * v / p).sum(1), (v * v / p).sum(1)
        left = np.maximum(level - cross**2 / np.maximum(mean, _LEAST), 0.0)
        of_mean, of_level = s * s * float(weights @ mean), float(weights @ left)
        logs -= log(1 / max(of_mean, 1e-12) + _SHARED / max(of_level, 1e-12))
    return exp(logs / len(spreads))
