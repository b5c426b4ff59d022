"""The simple predictors that every fit is shown beside: a constant, and a sum of biases.

The bias predictor is ``mean + sum_m bias_m[i_m]``, fitted by backfitting: in turn, each mode's biases
become the ridge means of what the others leave unexplained.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from sfumato.checks import check_count, check_positive, given
from sfumato.models.multilinear import Multilinear
from sfumato.models.shape import Shape
from sfumato.records import record
from sfumato.sites.memory import Site
from sfumato.solvers.protocol import Finished, Info, Moments, MomentsQuery, Run
from sfumato.types import Array


@record
@dataclass(frozen=True, eq=False)
class ResidualSums:
    """Per level of a mode: sum of what the rest of the model leaves, and number of entries."""

    sums: Array
    counts: Array

    def __add__(self, other: ResidualSums) -> ResidualSums:
        return ResidualSums(self.sums + other.sums, self.counts + other.counts)


@record
@dataclass(frozen=True)
class BiasQuery:
    """Ask for what the model leaves at the levels of a mode, their own biases left out."""

    model: Multilinear
    mode: int

    def answer(self, site: Site) -> ResidualSums:
        model, mode, tensor = self.model, self.mode, site.tensor
        levels = tensor.coordinates[mode]
        rest = tensor.values - model.predict(tensor.coordinates, threads=site.threads)
        rest += model.mode_biases[mode][levels]
        size = model.shape[mode]
        sums = np.bincount(levels, weights=rest, minlength=size)
        return ResidualSums(sums, np.bincount(levels, minlength=size))


@dataclass(frozen=True)
class State:
    model: Multilinear
    round: int = 0


@record
@dataclass(frozen=True)
class Backfitting:
    """Settings of the bias predictor; ``sweeps=0`` gives the constant predictor.

    Parameters
    ----------
    sweeps : times that each mode's biases are fitted.
    ridge : penalty of a bias: a level with n entries keeps n / (n + ridge) of its mean.
    """

    sweeps: int = 10
    ridge: float = 5.0
    tolerance: float | None = None
    name: ClassVar[str] = "biases"

    def rounds(self, shape: Shape) -> int:
        return 1 + self.sweeps * len(shape.sizes)

    def check(self, shape: Shape) -> None:  # noqa: ARG002
        check_count(0, sweeps=self.sweeps)
        check_positive(ridge=self.ridge, **given(tolerance=self.tolerance))

    def init(self, run: Run, shape: Shape) -> State:  # noqa: ARG002
        self.check(shape)
        return State(shape.zeros())

    def ask(self, state: State) -> MomentsQuery | BiasQuery:
        if state.round == 0:
            return MomentsQuery()
        return BiasQuery(state.model, (state.round - 1) % state.model.order)

    def update(self, state: State, statistics: Moments | ResidualSums) -> tuple[State, Info]:
        model, order = state.model, state.model.order
        if isinstance(statistics, Moments):
            return State(model.with_mean(statistics.mean), 1), Info(0)
        mode = (state.round - 1) % order
        model.mode_biases[mode][:] = statistics.sums / (statistics.counts + self.ridge)
        return replace(state, round=state.round + 1), Info(state.round // order)

    def finish(self, state: State) -> Finished[Multilinear]:
        return Finished(state.model)
