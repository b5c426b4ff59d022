"""What a step of private Langevin dynamics asks the data.

Where all units take part in every step, the data are asked for clipped sums, which get noise on the way
out like any others. Where steps are of random units, a kernel chooses them and draws the noise of all
rows, in every step.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from math import inf
from typing import NamedTuple

import numpy as np

from sfumato.kernels.grid import grid
from sfumato.kernels.numba.chacha import WORDS, Words
from sfumato.kernels.numba.normals import fill_normals, make_normals
from sfumato.kernels.numba.private_choice import chosen
from sfumato.kernels.numba.private_langevin import LangevinSums, Owned, Point, entry_sums, unit_sums
from sfumato.kernels.numba.threads import run
from sfumato.privacy.clipping import Clipped
from sfumato.privacy.ledger import Draw
from sfumato.records import record
from sfumato.sites.several import RelationSites
from sfumato.solvers.private.langevin.joint import Joint
from sfumato.solvers.private.langevin.pace import Pace, moved
from sfumato.solvers.protocol import NoisyQuery, SumQuery
from sfumato.types import Array

_AT_A_TIME = 1 << 20  # units, about, of the steps that are chosen at a time


@record
@dataclass(frozen=True, eq=False)
class Slopes:
    """Whose gradients are taken, where, and what they are clipped to.

    ``scale`` has a line for each relation: bounds, mean, and precision of what is left of a value.
    """

    joint: Joint
    rows: Array
    biases: Array
    pace: Pace
    scale: Array
    own: Owned
    poisson: bool
    clip: float

    def point(self, rows: Array, biases: Array) -> Point:
        how = self.scale, self.pace.metric, self.pace.bias_metric, self.poisson
        return Point(rows, biases, *how, self.clip, grid(self.clip))

    def sums(
        self, sites: RelationSites, rows: Array, biases: Array, some: Array | None = None
    ) -> LangevinSums:
        """Sums over all units or some, at these parameters."""
        joint, threads = self.joint, sites.threads if some is None else 1
        packed = joint.packed(sites)
        if joint.unit_block is None:
            return entry_sums(joint.layout, self.point(rows, biases), packed, some, threads)
        if joint.own is not None:  # own rows are written over
            rows, biases = rows.copy(), biases.copy()
        at = self.point(rows, biases)
        return unit_sums(joint.layout, at, packed, self.own, some, threads)

    def flat(self, rows: Array, biases: Array) -> Array:
        """All that is released of arrays like the parameters, one after the other."""
        parts = [rows[self.joint.span(block)].ravel() for block in self.joint.released()]
        return np.concatenate([*parts, *(biases[span] for span in self._bias_spans())])

    def unflat(self, flat: Array) -> tuple[Array, Array]:
        """Arrays like the parameters, zero where nothing is released."""
        rows, biases, taken = np.zeros(self.rows.shape), np.zeros(self.biases.shape), 0
        for block in self.joint.released():
            part = rows[self.joint.span(block)]
            part[:] = flat[taken : taken + part.size].reshape(part.shape)
            taken += part.size
        for span in self._bias_spans():
            part = biases[span]
            part[:] = flat[taken : taken + part.size]
            taken += part.size
        return rows, biases

    def _bias_spans(self) -> Iterator[slice]:
        return iter(() if self.poisson else self.joint.released_biases())


@record
@dataclass(frozen=True, eq=False)
class SlopeQuery(SumQuery):
    """Ask for the sum of all units' clipped gradients; ``replaces``: neighbours replace a unit."""

    of: Slopes
    replaces: bool

    def clipped(self, site: RelationSites) -> Clipped:
        of = self.of
        sums = of.sums(site, of.rows, of.biases)
        # One unit more or less adds what it has; one replaced by another, at most twice that.
        bound = of.clip * (2 if self.replaces else 1)
        return Clipped(of.flat(*sums), inf, bound, grid(of.clip))


@record
class Stepped(NamedTuple):
    """The parameters after some steps."""

    rows: Array
    biases: Array


@record
@dataclass(frozen=True, eq=False)
class RandomStepsQuery(NoisyQuery):
    """Make steps from the given parameters, in which each unit takes part with probability ``rate``."""

    of: Slopes
    rate: float

    def noisy(self, site: RelationSites, draw: Draw) -> Stepped:
        of, stream, mechanism = self.of, draw.stream(), draw.mechanism
        words, noise = Words.keyed(stream), _Noise(of, mechanism.noise_multiplier * of.clip, stream)
        rows, biases, unit = of.rows.copy(), of.biases.copy(), grid(of.clip)
        for some in self._chosen(site, words, mechanism.steps):
            sums = of.sums(site, rows, biases, some)
            numbers = noise.added(sums.rows * unit, sums.biases * unit)
            rows, biases = moved(of.joint, of.pace, rows, biases, numbers, of.poisson)
        return Stepped(rows, biases)

    def _chosen(self, site: RelationSites, words: Words, steps: int) -> Iterator[Array]:
        """Who takes part in each step."""
        joint = self.of.joint
        units = joint.packed(site).values.size
        if joint.unit_block is not None:
            units = joint.sizes[joint.unit_block]
        at_a_time = max(1, min(steps, int(_AT_A_TIME / max(1.0, self.rate * units))))
        for first in range(0, steps, at_a_time):
            ends, found = chosen(units, self.rate, min(at_a_time, steps - first), words)
            yield from (found[begin:end] for begin, end in pairwise(ends))


class _Noise:
    """Normal noise on all that is released of sums, new in every step.

    Of the deviation that privacy asks for, or of that of Langevin dynamics where it is larger.
    """

    def __init__(self, of: Slopes, deviation: float, stream: np.random.Generator) -> None:
        self._normals, self._of = make_normals(stream), of
        needed = of.flat(of.rows, of.biases).size
        self._room, self._needed = np.empty(-(-needed // WORDS) * WORDS), needed
        rows, biases = of.pace.rows, of.pace.biases
        metric = np.ones(of.rows.shape[1])
        self._deviation = of.flat(
            np.outer(np.maximum(deviation, _over(rows.shake, rows.length)), metric),
            np.maximum(deviation, _over(biases.shake, biases.length)),
        )

    def added(self, rows: Array, biases: Array) -> tuple[Array, Array]:
        run([lambda: fill_normals(*self._normals, self._room)], 1)
        noise = self._deviation * self._room[: self._needed]
        return self._of.unflat(self._of.flat(rows, biases) + noise)


def _over(shake: Array, length: Array) -> Array:
    """Shaking of parameters as noise in the sums that move them."""
    found: Array = np.divide(shake, length, out=np.zeros_like(shake), where=length > 0)
    return found


def extra_shaking(pace: Pace, noise: float, generator: np.random.Generator) -> tuple[Array, Array]:
    """What is left of Langevin noise, in the sums' own unit, where privacy has added so much already."""
    made = list[Array]()
    for line, width in ((pace.rows, pace.metric.shape[1]), (pace.biases, 1)):
        more = np.sqrt(np.maximum(_over(line.shake, line.length) ** 2 - noise**2, 0.0))
        made.append(more[:, None] * generator.standard_normal((more.size, width)))
    return made[0], made[1][:, 0]
