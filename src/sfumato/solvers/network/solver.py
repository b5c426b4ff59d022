"""Noisy gradient steps: what is asked, and what is made of the answers."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, sqrt
from typing import ClassVar

import numpy as np

from sfumato.models.network import Architecture, Network
from sfumato.privacy.mechanisms import Noisy
from sfumato.solvers.network.queries import GradientQuery
from sfumato.solvers.network.settings import Training
from sfumato.solvers.protocol import DivergedError, Info
from sfumato.types import Array

_CHUNK = (
    2048  # examples at once, at most: what is made of them is small enough for memory to be used again
)
_WHOLE = 16  # chunks are multiples of so many
_KEPT = 16  # iterates of the last two fifths


@dataclass
class State:
    """Where training is: parameters, how fast they move, and their running average."""

    parameters: Array
    velocity: Array
    average: Array
    step: int = 0
    kept: tuple[Array, ...] = ()


@dataclass(frozen=True)
class GradientSteps:
    """Steps against the mean gradient of about ``units`` units, which is public."""

    architecture: Architecture
    training: Training
    units: int
    name: ClassVar[str] = "networks"

    def init(self, seed: int, constant: Array) -> State:
        """Where training begins: a public start, whose outputs are a constant."""
        start = self.architecture.start(seed)
        self.architecture.layers(start)[-1].intercepts[:] = constant
        return State(start, np.zeros_like(start), start.copy())

    def ask(self, state: State) -> GradientQuery:
        training = self.training
        parameters = state.parameters.astype(np.float32)
        return GradientQuery(self.architecture, parameters, training.clip, self._chunk, training.dropout)

    @property
    def _chunk(self) -> int:
        """From public numbers: a batch of about the size that is expected fills its chunks well."""
        batch = self.training.rate * self.units
        chunks = ceil(batch / _CHUNK)
        return min(_CHUNK, _WHOLE * ceil((batch + 4 * sqrt(batch)) / chunks / _WHOLE))

    def update(self, state: State, noisy: Noisy) -> tuple[State, Info]:
        training, step = self.training, state.step
        gradient = noisy.values * (training.clip / (training.rate * self.units))
        if training.prior_scale is not None:
            gradient += state.parameters / (training.prior_scale**2 * self.units)
        state.velocity *= training.momentum
        state.velocity += gradient
        state.parameters -= training.length(step) * state.velocity
        if not np.isfinite(state.parameters).all():
            raise DivergedError(
                "the network left the range of floating-point numbers: use shorter steps"
            )
        past = min(training.average, (1 + step) / (10 + step))
        state.average += (1 - past) * (state.parameters - state.average)
        if self._keeps(step):
            state.kept = (*state.kept, state.parameters.astype(np.float32))
        state.step += 1
        return state, Info(state.step, noise=noisy.deviation * training.clip)

    def _keeps(self, step: int) -> bool:
        """Whether parameters after a step are one of the samples: evenly over the last two fifths."""
        begin = int(0.6 * self.training.steps)
        every = max(1, (self.training.steps - begin) // _KEPT)
        return step >= begin and (self.training.steps - 1 - step) % every == 0

    def finish(self, state: State) -> Network:
        return Network(self.architecture, state.average.astype(np.float32))

    def samples(self, state: State) -> tuple[Network, ...]:
        """The iterates that were kept."""
        return tuple(Network(self.architecture, each) for each in state.kept[-_KEPT:])
