"""Noisy channels: what a released value says about the value itself.

A clean value of an entry is clipped to bounds and passes a channel. Channels here are tables: the line
of clean values is cut into cells, and ``matrix[c, z]`` is the probability of output z for a clean value
in cell c. Whatever law a model has for clean values, that of outputs follows. Of a normal law,
``x ~ N(m, s^2)``,

    P(z | m, s) = sum_c (Phi((e_{c+1} - m) / s) - Phi((e_c - m) / s)) matrix[c, z]

with its derivatives by m and log s, and the Fisher information of m, sum_z (dP/dm)^2 / P.
Noise on real numbers is put into fine bins after the release, which is post-processing: the
likelihood of the bins is exact, and a clamp of the noisy values is two bins more.

===========  =========================================================================================
a channel    is
===========  =========================================================================================
Response     which of some bins a value lies in, by randomised response
Geometric    two-sided geometric noise on values that are a step apart
Additive     Laplace or Gaussian noise on real numbers
===========  =========================================================================================
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from itertools import cycle
from math import ceil, exp, inf, sqrt
from typing import Literal, NamedTuple, Protocol

import numpy as np
from scipy.special import ndtr

from sfumato.records import record
from sfumato.types import Array

Law = Literal["laplace", "gaussian"]
LEAST = 1e-30  # probability: below it is rounding error

_CELLS = 96  # of the clean range, for noise on real numbers
_BINS = 256  # of its noisy values
_TAIL = 8.0  # scales beyond the range that get bins of their own
_MOST_LEVELS = 256  # of values with geometric noise that are told apart
_TURNS = tuple(sqrt(prime) for prime in (2, 3, 5, 7, 11, 13, 17, 19))  # no two share a period


class Channel(Protocol):
    """A table of probabilities, and the numbers of the outputs that were released."""

    @property
    def edges(self) -> tuple[Array, ...]:
        """Where the cells of clean values meet, at one entry or another; the outer cells are open."""

    @property
    def matrix(self) -> Array:
        """Probability of each output for each cell."""

    @property
    def resolution(self) -> float:
        """Width of the cells that it cannot tell apart: no noise level far below can be seen."""

    def outputs(self, released: Array) -> Array:
        """Numbers of the outputs."""

    def unbiased(self, released: Array, which: Array, spread: float) -> tuple[Array, float]:
        """Numbers whose means are the clean values, up to bins, and the variance of their noise."""


@record
@dataclass(frozen=True)
class Response:
    """k-ary randomised response on which of k bins a value lies in.

    Cuts between bins are not the same at all entries: ``others`` are some more sets of them. Values that
    are more or less discrete, nobody knows how, would else lie on one side of a cut all together, and
    a fit that takes them for continuous would be off by as much.
    """

    cuts: tuple[float, ...]
    epsilon: float
    others: tuple[tuple[float, ...], ...] = ()

    @property
    def categories(self) -> int:
        return len(self.cuts) + 1

    @property
    def edges(self) -> tuple[Array, ...]:
        return tuple(np.array(cuts) for cuts in (self.cuts, *self.others))

    @property
    def matrix(self) -> Array:
        lie = exp(-self.epsilon)
        table = np.full((self.categories, self.categories), lie)
        np.fill_diagonal(table, 1.0)
        return table / (1 + (self.categories - 1) * lie)

    @property
    def resolution(self) -> float:
        return float(np.diff(self.cuts).min(initial=inf)) if len(self.cuts) > 1 else 0.0

    def bins(self, values: Array, which: Array) -> Array:
        """Bin of each clean value; ``which`` of the cuts are those of its entry."""
        bins = np.zeros(values.shape, np.int64)
        for number, edges in enumerate(self.edges):
            here = which == number
            bins[here] = np.searchsorted(edges, values[here], side="right")
        return bins

    def outputs(self, released: Array) -> Array:
        return released

    def unbiased(self, released: Array, which: Array, spread: float) -> tuple[Array, float]:
        """Middles of the bins, outer ones like the others (of two, a normal law's), from lies' mean."""
        width = self.cuts[1] - self.cuts[0] if len(self.cuts) > 1 else sqrt(8 / np.pi) * spread
        ends = [[edges[0] - width, *edges, edges[-1] + width] for edges in self.edges]
        middles = np.diff(ends) / 2 + np.array(ends)[:, :-1]
        told, lies, matrix = middles[which, released], middles.mean(1)[which], self.matrix
        more = 1 / (matrix[0, 0] - matrix[0, 1])
        noise = matrix @ middles[0] ** 2 - (matrix @ middles[0]) ** 2
        return lies + more * (told - lies), float(more**2 * noise[released].mean())


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
    def edges(self) -> tuple[Array, ...]:
        return (np.linspace(self.low, self.high, _CELLS + 1),)

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
        (edges,) = self.edges
        middles = (edges[1:] + edges[:-1]) / 2
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
        return np.searchsorted(self._bins, self._values(released), side="right")

    def _values(self, released: Array) -> Array:
        """From numbers that count from the middle of the range."""
        values = released + (self.low / 2 + self.high / 2)
        return values if self.clamp is None else np.clip(values, *self.clamp)

    def unbiased(self, released: Array, which: Array, spread: float) -> tuple[Array, float]:  # noqa: ARG002
        return self._values(released), self.scale**2 * (2.0 if self.law == "laplace" else 1.0)


@record
@dataclass(frozen=True)
class Geometric:
    """Whole steps of noise on a value clipped to ``low`` and ``high``: P(n) ~ exp(-|n| / scale).

    Noisy values beyond the range say no more than those at its ends, since the odds of any two clean
    values are the same there: they are cut to it. Without a ``high`` nothing bounds values, and a fit
    takes as much room as the released ones need (:meth:`within`).
    """

    low: float
    high: float | None
    step: float
    scale: float

    @property
    def ratio(self) -> float:
        """Of the probabilities of noise that is one step larger."""
        return exp(-1 / self.scale)

    def within(self, released: Array) -> Geometric:
        """With a range, where it has none: beyond it, values are less likely than one in a thousand."""
        if self.high is not None:
            return self
        steps = ceil((float(released.max(initial=self.low)) - self.low) / self.step + 7 * self.scale)
        return replace(self, high=self.low + self.step * max(steps, 1))

    @cached_property
    def _levels(self) -> Array:
        """Values that are told apart: all of them, or groups of neighbours where there are many."""
        if self.high is None:
            raise ValueError("levels are known within a range")
        steps = round((self.high - self.low) / self.step)
        group = ceil((steps + 1) / _MOST_LEVELS)
        return np.asarray(self.low + self.step * np.arange(0, steps + 1, group))

    @property
    def edges(self) -> tuple[Array, ...]:
        return ((self._levels[1:] + self._levels[:-1]) / 2,)

    @property
    def matrix(self) -> Array:
        levels = self._levels
        if len(levels) == 1:
            return np.ones((1, 1))
        width = levels[1] - levels[0]
        r = exp(-width / (self.step * self.scale))
        table = r ** (np.abs(levels[:, None] - levels) / width) * ((1 - r) / (1 + r))
        table[:, 0] /= 1 - r  # all that lies beyond
        table[:, -1] /= 1 - r
        return np.asarray(table)

    @property
    def resolution(self) -> float:
        return self.step

    def outputs(self, released: Array) -> Array:
        return np.searchsorted(self.edges[0], released, side="right")

    def unbiased(self, released: Array, which: Array, spread: float) -> tuple[Array, float]:  # noqa: ARG002
        r = self.ratio
        return released, self.step**2 * 2 * r / (1 - r) ** 2


def probabilities(channel: Channel, values: Array, which: int = 0) -> Array:
    """Of every output (columns) for some clean values (rows), clipped as the channel does."""
    return channel.matrix[np.searchsorted(channel.edges[which], values, side="right")]


def which_cuts(channel: Channel, coordinates: Array) -> Array:
    """Which of a channel's edges are those of each entry: by where it is, evenly spread over any row."""
    turns = np.zeros(coordinates.shape[1])
    for levels, turn in zip(coordinates, cycle(_TURNS), strict=False):
        turns += levels * (turn % 1)
    return (len(channel.edges) * (turns % 1)).astype(np.int64)


class OutputLaw(NamedTuple):
    """Probability of each output by mean, with its derivatives by the mean and by log s."""

    probability: Array
    by_mean: Array
    by_log_deviation: Array


def law_of(channel: Channel, means: Array, deviation: float, which: int = 0) -> OutputLaw:
    """What is released of an entry with each of these means (rows) when x ~ N(mean, deviation^2)."""
    t = (channel.edges[which] - means[:, None]) / deviation
    density = np.exp(-0.5 * t * t) / sqrt(2 * np.pi)
    matrix = channel.matrix
    inside = np.diff(ndtr(t), axis=1, prepend=0.0, append=1.0)
    rises = -np.diff(density, axis=1, prepend=0.0, append=0.0) / deviation
    widens = -np.diff(t * density, axis=1, prepend=0.0, append=0.0)
    return OutputLaw(inside @ matrix, rises @ matrix, widens @ matrix)
