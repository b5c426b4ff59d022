"""The simple predictors that every fit is shown beside: a constant, and a sum of biases.

The bias predictor is ``mean + sum_m bias_m[i_m]``, fitted by backfitting: in turn, each mode's biases
become the ridge means of what the others leave unexplained.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple

import numpy as np

from sfumato.checks import check_count, check_positive
from sfumato.models.multilinear import Multilinear
from sfumato.sites.memory import Site
from sfumato.solvers.protocol import Info, Moments, MomentsQuery, PublicShape, moments
from sfumato.types import Array


class BiasQuery(NamedTuple):
    model: Multilinear
    mode: int


class ResidualSums(NamedTuple):
    """Per level of a mode: sum of what the rest of the model leaves, and number of entries."""

    sums: Array
    counts: Array


@dataclass(frozen=True)
class State:
    model: Multilinear
    round: int = 0


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

    def rounds(self, shape: PublicShape) -> int:
        return 1 + self.sweeps * len(shape.sizes)

    def check(self, shape: PublicShape) -> None:  # noqa: ARG002
        check_count(0, sweeps=self.sweeps)
        check_positive(ridge=self.ridge)

    def init(self, seed: int, shape: PublicShape) -> State:  # noqa: ARG002
        self.check(shape)
        return State(shape.make_model(shape.sizes, shape.dtype))

    def ask(self, state: State) -> MomentsQuery | BiasQuery:
        if state.round == 0:
            return MomentsQuery()
        return BiasQuery(state.model, (state.round - 1) % state.model.order)

    def answer(self, query: MomentsQuery | BiasQuery, site: Site) -> Moments | ResidualSums:
        if isinstance(query, MomentsQuery):
            return moments(site)
        model, mode, tensor = query.model, query.mode, site.tensor
        levels = tensor.coordinates[mode]
        rest = tensor.values - model.predict(tensor.coordinates, threads=site.threads)
        rest += model.mode_biases[mode][levels]
        size = model.shape[mode]
        sums = np.bincount(levels, weights=rest, minlength=size)
        return ResidualSums(sums, np.bincount(levels, minlength=size))

    def update(self, state: State, statistics: Moments | ResidualSums) -> tuple[State, Info]:
        model, order = state.model, state.model.order
        if isinstance(statistics, Moments):
            return State(model.with_mean(statistics.mean), 1), Info(0)
        mode = (state.round - 1) % order
        model.mode_biases[mode][:] = statistics.sums / (statistics.counts + self.ridge)
        return replace(state, round=state.round + 1), Info(state.round // order)

    def finish(self, state: State) -> Multilinear:
        return state.model
