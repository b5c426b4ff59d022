"""The likelihood of what was released, as a function of the entries' means.

A clean value is that of a normal law, clipped to the bounds and, where values have a public spacing, the
nearest of those that occur. What a fit is about, and what is scored, is the mean of the *clipped* value:
tables are by that mean, so that what the bounds cut off is in the likelihood and nowhere else. With
nodes e_j of weight w (half-way between values; very many where there is no spacing),

    mean = low + w sum_j P(x > e_j),    E (value - low)^2 = 2 w sum_j (e_j - low) P(x > e_j).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import ceil, floor, hypot, log, sqrt
from typing import NamedTuple, Protocol

import numpy as np
from scipy.special import expit, ndtr

from sfumato.data.channels import LEAST, Channel, Law, law_of
from sfumato.records import record
from sfumato.types import Array

_MEANS = 401  # grid of the likelihood's table
_MOST_TABLES = 8  # that are kept
_NODES = 1024  # values that a range without a spacing is taken to have
_LATENT = 801  # means of the normal law, from which those of clipped values are found
_DEVIATIONS = 32  # noise levels of the clean values that are told apart
_SMALLEST, _LARGEST = 0.012, 0.6  # of the bounds' width: noise levels, where the spread is not known
_LEAST_PART, _MOST_PART = 0.03, 2.5  # of the spread, where it is
_REACH = 10.0  # spreads from the mean, beyond which no mean is looked for
_LEAST_SHARE = 1e-3  # of the largest information


@record
@dataclass(frozen=True)
class Located:
    """Mean and spread of the values, as they were found.

    ``mean_error`` is that of the mean, ``square_error`` the relative one of the spread's square.
    """

    mean: float
    spread: float
    mean_error: float
    square_error: float


class Terms(NamedTuple):
    """Per entry: log-likelihood, its derivative by the mean, and the expected information (not 0)."""

    log: Array
    score: Array
    information: Array


class Evidence(Protocol):
    """Released data as a function of the entries' means and the noise level of the clean values.

    Means are cut to ``bounds``. A global mean is taken to lie about ``centre``, with precision
    ``mean_precision``, and is looked for from ``guess`` on.
    """

    bounds: tuple[float, float]
    deviations: Array
    centre: float
    mean_precision: float
    guess: float

    def terms(self, level: int, means: Array) -> Terms:
        """At the noise level ``deviations[level]``."""

    def about_spread(self, level: int, means: Array, variances: Array) -> float:
        """Log-likelihood of the spread that was asked for, if any, given means and their variances."""

    @property
    def start(self) -> Evidence:
        """What to begin a fit with: a likelihood that is not blind to what is far from its mean."""


def mean_precision(bounds: tuple[float, float]) -> float:
    """One over the square of a quarter of the bounds' width."""
    return 16 / (bounds[1] - bounds[0]) ** 2


def _widened(bounds: tuple[float, float]) -> tuple[float, float]:
    """A fitted mean may lie a little beyond the bounds."""
    low, high = bounds
    return low - 0.1 * (high - low), high + 0.1 * (high - low)


class Range(NamedTuple):
    """Between which numbers clean values lie, and how far from each other they are."""

    low: float
    high: float
    step: float

    @classmethod
    def of(cls, bounds: tuple[float, float], step: float | None, known: Located | None) -> Range:
        """The bounds, or what is near the values where bounds are far away."""
        low, high = bounds
        if known is not None:
            low = max(low, known.mean - _REACH * known.spread)
            high = min(high, known.mean + _REACH * known.spread)
        if step is not None and (high - low) / step <= _NODES:
            low = bounds[0] + step * floor((low - bounds[0]) / step + 1e-9)
            high = bounds[0] + step * ceil((high - bounds[0]) / step - 1e-9)
            return cls(low, high, step)
        return cls(low, high, (high - low) / _NODES)

    @property
    def means(self) -> Array:
        """The grid of a table."""
        return np.linspace(self.low, self.high, _MEANS)

    def moments(self, means: Array, deviation: float) -> tuple[Array, Array, Array]:
        """Of a clipped value: mean, the mean's derivative by that of the normal law, variance."""
        nodes = self.low + self.step * (np.arange(round((self.high - self.low) / self.step)) + 0.5)
        t = (means[:, None] - nodes) / deviation
        above = ndtr(t)
        mean = self.step * above.sum(1)
        slope = self.step * np.exp(-0.5 * t * t).sum(1) / (deviation * sqrt(2 * np.pi))
        square = 2 * self.step * (above @ (nodes - self.low))
        return self.low + mean, slope, square - mean**2


@lru_cache(maxsize=64)
def _by_mean(values: Range, deviation: float) -> tuple[Array, Array, Array]:
    """The normal law's mean, with slope and variance, for each mean of a clipped value on the grid."""
    # Further out a mean hardly moves, whatever the normal law's does.
    latent = np.linspace(values.low - deviation, values.high + deviation, _LATENT)
    latent = np.interp(values.means, values.moments(latent, deviation)[0], latent)
    _, slope, variance = values.moments(latent, deviation)
    return latent, slope, variance


class _Table(NamedTuple):
    """By mean (rows), set of cuts and output: log-probability and score.

    By mean and set: information.
    """

    logs: Array
    score: Array
    information: Array


class NormalEvidence:
    """Numbers with normal noise, and nothing of bounds: a sum of squares, which has one minimum.

    An entry that lies far from its mean may be a lie, and the likelihood of a response takes it for one:
    rows that are far out would never be found from the constant.
    """

    def __init__(self, numbers: Array, noise: float, frame: Frame) -> None:
        self._numbers, self._noise = numbers, noise
        self.bounds, self.deviations = (frame.range.low, frame.range.high), frame.deviations
        self.centre, self.mean_precision, self.guess = frame.centre, frame.mean_precision, frame.guess

    def about_spread(self, level: int, means: Array, variances: Array) -> float:  # noqa: ARG002
        return 0.0

    @property
    def start(self) -> Evidence:
        return self

    def terms(self, level: int, means: Array) -> Terms:
        variance = float(self.deviations[level]) ** 2 + self._noise
        miss = self._numbers - means
        return Terms(
            -0.5 * (log(variance) + miss**2 / variance),
            miss / variance,
            np.full(miss.shape, 1 / variance),
        )


class Frame(NamedTuple):
    """What all entries of a fit share, whatever channel they have passed.

    ``deviations`` are the noise levels of clean values that are told apart, ``spread`` a guess at how
    far these lie apart. ``asked`` is a spread that noise level and means have to make up, where a probe
    has asked for it: few bins say little of the noise level, two nothing.
    """

    range: Range
    deviations: Array
    centre: float
    mean_precision: float
    guess: float
    spread: float
    asked: Located | None = None

    @classmethod
    def within(
        cls,
        bounds: tuple[float, float],
        step: float | None = None,
        asked: Located | None = None,
        resolution: float = 0.0,
    ) -> Frame:
        """From the bounds, and what a probe has found, if there was one."""
        if asked is not None:
            frame = cls.about(asked, bounds, step, resolution)
            sure = asked.mean_error**-2
            return frame._replace(asked=asked, centre=asked.mean, mean_precision=sure)
        low, high = bounds
        levels = _noise_levels(_SMALLEST * (high - low), _LARGEST * (high - low), resolution)
        centre, spread = (low + high) / 2, (high - low) / 4
        sure = mean_precision(bounds)
        return cls(Range.of(bounds, step, None), levels, centre, sure, centre, spread)

    @classmethod
    def about(
        cls, found: Located, bounds: tuple[float, float], step: float | None, resolution: float
    ) -> Frame:
        """From where the values themselves were found to lie: of their mean the bounds alone tell."""
        levels = _noise_levels(_LEAST_PART * found.spread, _MOST_PART * found.spread, resolution)
        centre = (bounds[0] + bounds[1]) / 2
        sure = mean_precision(bounds)
        return cls(Range.of(bounds, step, found), levels, centre, sure, found.mean, found.spread)

    def variances(self, level: int, means: Array) -> Array:
        """Of clean values with some means."""
        return np.interp(means, self.range.means, _by_mean(self.range, float(self.deviations[level]))[2])

    def about_spread(self, level: int, means: Array, variances: Array) -> float:
        """Log-likelihood of the spread that was asked for, given means and their variances."""
        if self.asked is None:
            return 0.0
        inside = np.clip(means, self.range.low, self.range.high)
        square = self.variances(level, inside).mean() + inside.var() + variances.mean()
        miss = log(square / self.asked.spread**2) / self.asked.square_error
        return -0.5 * miss * miss


def _noise_levels(smallest: float, largest: float, resolution: float) -> Array:
    smallest = max(smallest, 0.35 * resolution)
    return np.geomspace(smallest, max(largest, 1.1 * smallest), _DEVIATIONS)


class TableEvidence:
    """Evidence from a channel with one output per entry, looked up in tables by mean and output.

    ``which`` of the channel's edges are those of each entry.
    """

    def __init__(
        self, channel: Channel, released: Array, frame: Frame, which: Array | None = None
    ) -> None:
        which = np.zeros(released.shape, np.int64) if which is None else which
        self.deviations, self._frame, self._range = frame.deviations, frame, frame.range
        self.centre, self.mean_precision, self.guess = frame.centre, frame.mean_precision, frame.guess
        self._channel = channel
        self.bounds = self._range.low, self._range.high
        self._which = which
        self._outputs = channel.outputs(released) + channel.matrix.shape[1] * which
        self._means = self._range.means
        self._tables: dict[int, _Table] = {}
        self.start = NormalEvidence(*channel.unbiased(released, which, frame.spread), frame)

    def _table(self, level: int) -> _Table:
        if level not in self._tables:
            if len(self._tables) > _MOST_TABLES:
                self._tables.clear()
            deviation = float(self.deviations[level])
            latent, slope, _ = _by_mean(self._range, deviation)
            sets = range(len(self._channel.edges))
            laws = [law_of(self._channel, latent, deviation, which) for which in sets]
            probability = np.maximum(np.stack([law.probability for law in laws], 1), LEAST)
            by_mean = np.stack([law.by_mean for law in laws], 1) / slope[:, None, None]
            score = by_mean / probability
            information = (score * by_mean).sum(axis=2)
            # Far outside the channel's range an entry says next to nothing.
            information = np.maximum(information, _LEAST_SHARE * information.max())
            self._tables[level] = _Table(np.log(probability), score, information)
        return self._tables[level]

    def _places(self, means: Array) -> tuple[Array, Array]:
        """Rows of the table, and how far towards the next one."""
        step = self._means[1] - self._means[0]
        place = np.clip((means - self._means[0]) / step, 0, _MEANS - 1 - 1e-9)
        row = place.astype(np.int64)
        return row, place - row

    def terms(self, level: int, means: Array) -> Terms:
        table = self._table(level)
        row, share = self._places(means)

        def between(table: Array, columns: Array) -> Array:
            width = table[0].size
            first = row * width + columns
            here, next_row = table.ravel()[first], table.ravel()[first + width]
            mixed: Array = here + share * (next_row - here)
            return mixed

        return Terms(
            between(table.logs, self._outputs),
            between(table.score, self._outputs),
            between(table.information, self._which),
        )

    def about_spread(self, level: int, means: Array, variances: Array) -> float:
        return self._frame.about_spread(level, means, variances)


class MixedEvidence:
    """Evidence of entries that have passed different channels, or none: each part has its own.

    ``places`` are the entries that the parts are about.
    """

    def __init__(self, parts: list[tuple[Evidence, Array]], frame: Frame, entries: int) -> None:
        self._parts, self._frame, self._entries = parts, frame, entries
        self.bounds, self.deviations = (frame.range.low, frame.range.high), frame.deviations
        self.centre, self.mean_precision, self.guess = frame.centre, frame.mean_precision, frame.guess

    def terms(self, level: int, means: Array) -> Terms:
        whole = Terms(*np.empty((3, self._entries)))
        for evidence, places in self._parts:
            for all_of, some in zip(whole, evidence.terms(level, means[places]), strict=True):
                all_of[places] = some
        return whole

    def about_spread(self, level: int, means: Array, variances: Array) -> float:
        return self._frame.about_spread(level, means, variances)

    @property
    def start(self) -> Evidence:
        starts = [(evidence.start, places) for evidence, places in self._parts]
        return MixedEvidence(starts, self._frame, self._entries)


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
        self.centre = self.guess = (low + high) / 2
        self.mean_precision = mean_precision(bounds)
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

    def about_spread(self, level: int, means: Array, variances: Array) -> float:  # noqa: ARG002
        return 0.0

    @property
    def start(self) -> Evidence:
        return self

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


def located(numbers: Array, noise: Array, bounds: tuple[float, float]) -> Located:
    """Mean and spread of clean values, from numbers with noise of known variances.

    Where noise hides the spread it is no less than the noise could hide, and no more than bounds allow.
    """
    weights = 1 / (noise + ((bounds[1] - bounds[0]) / 4) ** 2)
    weights /= weights.sum()
    mean = float(weights @ numbers)
    squares = (numbers - mean) ** 2 - noise
    square = float(weights @ squares)
    doubt = float(sqrt(weights**2 @ (squares - square) ** 2))
    widest = (bounds[1] - bounds[0]) / 2
    square = min(max(square, doubt, (1e-6 * widest) ** 2), widest**2)
    mean_error = sqrt(float(weights**2 @ (noise + square)))
    inside = float(np.clip(mean, *bounds))
    return Located(inside, sqrt(square), mean_error, hypot(doubt / square, sqrt(2 / len(numbers))))
