"""Mechanisms to audit: a small one that is private, and others that are not and say that they are.

``RowSums`` protects single values. It releases, ``passes`` times, the sums of the values of every level
of the first mode, cut to public bounds, with Laplace noise; the means of these are the model's biases.
A value changes one sum by the width of the bounds, so that a pass costs one over the noise. Nothing
else is released: a canary that is alone in its row shows as much of epsilon as there is.
"""

from dataclasses import dataclass, fields
from typing import Any, ClassVar, NamedTuple

import numpy as np
from on_grid import on_grid

from sfumato.privacy.ledger import Charge
from sfumato.privacy.mechanisms import Laplace, PurePass
from sfumato.solvers.private.passes import PassQuery, PrivatePasses
from sfumato.solvers.protocol import Finished, Info, NoisyQuery, Silent


class State(NamedTuple):
    facts: Any
    total: Any = 0.0
    done: int = 0


@dataclass(frozen=True)
class Sums(NoisyQuery):
    """What a mechanism answers, whichever it is."""

    mechanism: Any
    state: State

    def noisy(self, site, draw):
        return self.mechanism.answer(self.state, site, draw)


@dataclass(frozen=True)
class RowSums(Silent):
    noise: float = 1.0
    passes: int = 1
    within: float = 1.0  # part of the range that values are cut to

    name: ClassVar[str] = "sums of rows"
    proof: ClassVar[str] = "the text above"
    proven: ClassVar[bool] = True
    exact: ClassVar[bool] = False

    def check(self, facts):
        pass

    def charges(self, facts):
        return (Charge("sums", Laplace(self.noise, single=True)),) * self.passes

    def rounds(self, facts):
        return self.passes

    def init(self, run, facts):
        return State(facts)

    def ask(self, state):
        return Sums(self, state)

    def bounds(self, state, values):
        middle, reach = state.facts.middle, self.within * state.facts.half
        return middle - reach, middle + reach

    def cut(self, state, values):
        return np.clip(values, *self.bounds(state, values))

    def noisy(self, sums, width, draw):
        return draw.release(on_grid(sums, width, width, single=True)).values

    def answer(self, state, site, draw):
        tensor = site.tensor
        low, high = self.bounds(state, tensor.values)
        sums = np.bincount(tensor.coordinates[0], self.cut(state, tensor.values), state.facts.sizes[0])
        return self.noisy(sums, high - low, draw)

    def update(self, state, released):
        return state._replace(total=state.total + released, done=state.done + 1), Info(state.done + 1)

    def finish(self, state):
        model = state.facts.shape.zeros()
        model.biases[model.span(0)] = state.total / self.passes
        return Finished(model)


@dataclass(frozen=True)
class HalfNoise(RowSums):
    """Noise of half the scale that was charged: the real epsilon is twice the promised one."""

    def noisy(self, sums, width, draw):
        return sums + draw.stream().laplace(0.0, self.noise * width / 2, sums.shape)


class Quieter:
    """The right to draw, and a quarter of what is drawn."""

    def __init__(self, draw):
        self._draw = draw

    def noise(self, *what):
        return self._draw.noise(*what) // 4


class QuieterPass(PassQuery):
    def noisy(self, site, draw):
        return super().noisy(site, Quieter(draw))


@dataclass(frozen=True)
class QuarterNoiseInPasses(PrivatePasses):
    """A quarter of the noise in the library's own gradient perturbation: a pass costs 3.4 times epsilon.

    It is to have 0.85 of epsilon, the mean and what is kept of the fit the rest.
    """

    passes: int = 1

    def ask(self, state):
        query = super().ask(state)
        if not isinstance(query, PassQuery):
            return query
        return QuieterPass(**{part.name: getattr(query, part.name) for part in fields(query)})


@dataclass(frozen=True)
class ClipNotEnforced(RowSums):
    """Noise for values cut to a quarter of their range, which are not cut: four times epsilon."""

    within: float = 0.25

    def cut(self, state, values):
        return values


@dataclass(frozen=True)
class NoiseReused(RowSums):
    """One Laplace number for all sums: their differences have none. Epsilon is infinite."""

    def noisy(self, sums, width, draw):
        return sums + draw.stream().laplace(0.0, self.noise * width)


@dataclass(frozen=True)
class BoundsOfTheData(RowSums):
    """Noise for the range of the data, and noisy sums cut to what that range allows.

    Whatever lies beyond the others' values says at which end the canary is: epsilon is infinite.
    """

    def bounds(self, state, values):
        return float(values.min()), float(values.max())

    def answer(self, state, site, draw):
        levels, values = site.tensor.coordinates[0], site.tensor.values
        low, high = self.bounds(state, values)
        counts = np.bincount(levels, minlength=state.facts.sizes[0])
        sums = np.bincount(levels, values, state.facts.sizes[0])
        noisy = sums + draw.stream().laplace(0.0, self.noise * (high - low), sums.shape)
        return np.clip(noisy, low * counts, high * counts)


@dataclass(frozen=True)
class PassesForgotten(RowSums):
    """Ten passes for the price of one: ten times epsilon."""

    passes: int = 10

    def charges(self, facts):
        first, *others = super().charges(facts)
        return first, *(Charge("forgotten", PurePass(1e-9)) for _ in others)

    def noisy(self, sums, width, draw):
        return sums + draw.stream().laplace(0.0, self.noise * width, sums.shape)


@dataclass(frozen=True)
class LeaksElsewhere(RowSums):
    """The value in the last row is added to the first row's sum: that one has three times its share.

    What an attack sees of the canary's own row is as private as it should be.
    """

    def answer(self, state, site, draw):
        levels, values = site.tensor.coordinates[0], site.tensor.values
        noisy = super().answer(state, site, draw)
        noisy[0] += 3 * values[levels == levels.max()].sum()
        return noisy
