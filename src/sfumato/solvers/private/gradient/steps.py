"""What a step of private gradient descent asks the data, and how the parameters move by the answer.

Where all units take part in every step, the data are asked for clipped sums, which get noise on the way
out like any others. Where steps are of random batches, a kernel clips, adds up and draws noise: it saves
the noise of rows that no batch touches, which has to stay where the data are.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import inf
from typing import Any, NamedTuple

import numpy as np

from sfumato.kernels.grid import grid
from sfumato.kernels.numba.private_moves import KEEP, OF_BIAS, PACE, Moves, Scale
from sfumato.kernels.numba.private_steps import entry_steps, unit_steps
from sfumato.kernels.numba.private_sums import entry_gradients, unit_gradients
from sfumato.models.multilinear import Multilinear
from sfumato.privacy.clipping import Clipped
from sfumato.privacy.facts import Facts
from sfumato.privacy.ledger import Draw
from sfumato.records import record
from sfumato.sites.memory import Site
from sfumato.solvers.private.gradient.levels import Start
from sfumato.solvers.protocol import NoisyQuery, SumQuery
from sfumato.types import Array


@record
@dataclass(frozen=True)
class Gradients:
    """Whose gradients are taken, at which model, and what they are clipped to.

    ``unit_mode`` is that of the units, None where entries are; where rows of the mode ``local`` are
    solved by units themselves, they are so with the ridges ``own_ridge`` of a row and of its bias.
    """

    model: Multilinear
    moves: Moves
    scale: Scale
    unit_mode: int | None
    local: int | None
    fit_biases: bool
    clip: float
    typical: float
    own_ridge: tuple[float, float]

    @property
    def own(self) -> int | None:
        """The mode whose rows units solve for themselves, and take no gradient of."""
        return self.local if self.local == self.unit_mode else None


# -- all units in every step ----------------------------------------------------------------------


@record
@dataclass(frozen=True)
class GradientQuery(SumQuery):
    """Ask for the sum of all units' clipped gradients; ``replaces``: neighbours replace a unit."""

    of: Gradients
    replaces: bool

    def clipped(self, site: Site) -> Clipped:
        of, mode = self.of, self.of.unit_mode
        how = of.clip, of.fit_biases, site.threads
        if mode is None:
            data = of.scale, site.tensor.coordinates, site.tensor.values
            sums = entry_gradients(of.model, of.moves, *data, *how)
        else:
            own, model = of.own, of.model if of.own is None else of.model.copy()
            units = of.scale, site.by_mode(mode), mode, of.typical, own is not None, of.own_ridge
            sums = unit_gradients(model, of.moves, *units, *how)
        spans = list(_spans(of.model, of.own))
        rows = [sums.rows[span, : of.model.ranks[m]].ravel() for m, span in spans]
        biases = [sums.biases[span] for _, span in spans if of.fit_biases]
        whole = np.concatenate([*rows, *biases, sums.core])
        # One unit more or less adds what it has; one replaced by another, at most twice that.
        bound = of.clip * (2 if self.replaces else 1)
        return Clipped(whole, inf, bound, grid(of.clip))


def moved(
    model: Multilinear, moves: Moves, answer: Array, own: int | None, fit_biases: bool
) -> Multilinear:
    """The model after a step by the noisy sums that a :class:`GradientQuery` asked for."""
    model, taken = model.copy(), 0

    def take(*shape: int) -> Array:
        nonlocal taken
        first, taken = taken, taken + int(np.prod(shape))
        return answer[first:taken].reshape(shape)

    paces = moves.paces
    for m, span in _spans(model, own):
        factor, rank = model.factors[m], model.ranks[m]
        metric, home = np.sqrt(moves.square[m, :rank]), moves.home[m, :rank]
        keep, pace = paces[span, KEEP, None], paces[span, PACE, None]
        factor[:] = home + keep * (factor + pace * metric * take(*factor.shape) - home)
    for _, span in _spans(model, own) if fit_biases else ():
        biases, home = model.biases[span], moves.bias_home[span]
        pull = paces[span, OF_BIAS + PACE] * np.sqrt(moves.bias_square) * take(biases.size)
        biases[:] = home + paces[span, OF_BIAS + KEEP] * (biases + pull - home)
    keep, pace, _, square = moves.core
    core = model.free_core
    core[:] = keep * (core + pace * np.sqrt(square) * take(core.size))
    return model


def _spans(model: Multilinear, own: int | None) -> Iterator[tuple[int, slice]]:
    """The modes that take a gradient, and their rows."""
    return ((m, model.span(m)) for m in range(model.order) if m != own)


# -- random batches -------------------------------------------------------------------------------


@record
class Stepped(NamedTuple):
    """The model after some steps."""

    model: Multilinear


@record
@dataclass(frozen=True)
class StepsQuery(NoisyQuery):
    """Make steps from the given model, in which each unit takes part with probability ``rate``."""

    of: Gradients
    rate: float

    def noisy(self, site: Site, draw: Draw) -> Stepped:
        of, mode, stream = self.of, self.of.unit_mode, draw.stream()
        model = of.model.copy()
        how: tuple[Any, ...] = (
            *(self.rate, draw.mechanism.steps, of.clip, of.fit_biases),
            *(stream, stream, site.threads),
        )
        if mode is None:
            data = site.tensor.coordinates, site.tensor.values
            entry_steps(model, of.moves, of.scale, *data, *how)
        else:
            units = site.by_mode(mode), mode, of.typical, of.own is not None, of.own_ridge
            unit_steps(model, of.moves, of.scale, *units, *how)
        return Stepped(model)


def scale_of(facts: Facts, start: Start, number: Any) -> Scale:
    """Values as the model explains them: in spreads from the released mean."""
    low, high = facts.bounds
    return Scale(number(low), number(high), number(start.mean), number(1 / start.spread))
