"""Steps of private gradient descent: a pass of a kernel that clips, adds up and draws noise."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from sfumato.kernels.numba.private_moves import Moves, Scale, make_memory
from sfumato.kernels.numba.private_steps import entry_steps, unit_steps
from sfumato.kernels.numba.threads import run
from sfumato.models.multilinear import Multilinear
from sfumato.privacy.facts import Facts
from sfumato.privacy.ledger import Draw
from sfumato.records import record
from sfumato.sites.memory import Site
from sfumato.solvers.private.gradient.levels import Start
from sfumato.solvers.protocol import NoisyQuery


@record
class Stepped(NamedTuple):
    """The model after some steps."""

    model: Multilinear


@record
@dataclass(frozen=True)
class StepsQuery(NoisyQuery):
    """Make steps from the given model.

    ``unit_mode`` is that of the units, None where entries are; rows of the mode ``local`` are solved by
    their owners, with the ridges ``own_ridge`` of a row and of its bias.
    """

    model: Multilinear
    moves: Moves
    scale: Scale
    unit_mode: int | None
    local: int | None
    fit_biases: bool
    rate: float
    clip: float
    typical: float
    own_ridge: tuple[float, float]

    def noisy(self, site: Site, draw: Draw) -> Stepped:
        model, mode = self.model.copy(), self.unit_mode
        stream, number = draw.stream(), model.dtype.type
        parameters = (
            *(model.arrays, model.free_core, self.moves),
            *(make_memory(model, mode is not None), self.scale),
        )
        how: tuple[Any, ...] = (
            *(np.array(model.ranks), self.rate, draw.mechanism.steps, number(self.clip)),
            *(self.fit_biases, stream, stream),
        )
        if mode is None:
            tensor = site.tensor
            run([partial(entry_steps, *parameters, tensor.coordinates, tensor.values, *how)], 1)
        else:
            entries = site.by_mode(mode)
            own = mode, self.typical, self.local == mode, self.own_ridge
            data = entries.others, entries.values, entries.starts
            run([partial(unit_steps, *parameters, *data, *own, *how)], 1)
        return Stepped(model)


def scale_of(facts: Facts, start: Start, number: Any) -> Scale:
    """Values as the model explains them: in spreads from the released mean."""
    low, high = facts.bounds
    return Scale(number(low), number(high), number(start.mean), number(1 / start.spread))
