"""The simple predictors that every fit is shown beside: a constant, and a sum of biases.

The bias predictor is ``mean + sum_m bias_m[i_m]``, fitted by backfitting: in turn, each mode's biases
become the ridge means of what the others leave unexplained. Unless it is given, the ridge is learnt as
Bayesian ALS learns its penalties: biases are normal, those of each mode with a precision of their own,
which is set to one over their posterior second moment as sweeps go on, and so is that of the noise.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import numpy as np

from sfumato.checks import check_count, check_positive, given
from sfumato.errors import SettingError
from sfumato.models.multilinear import Multilinear
from sfumato.models.shape import Shape
from sfumato.records import record
from sfumato.sites.memory import Site
from sfumato.solvers.protocol import Finished, Info, Moments, MomentsQuery, Run
from sfumato.types import Array

_FIRST_RIDGE = 5.0
_LEAST = 1e-12  # variance, of that of the values: below it is rounding


@record
@dataclass(frozen=True, eq=False)
class ResidualSums:
    """Per level of a mode: sum of what the rest of the model leaves, and number of entries.

    ``squares`` is the sum of all squares of what is left.
    """

    sums: Array
    counts: Array
    squares: float

    def __add__(self, other: ResidualSums) -> ResidualSums:
        return ResidualSums(
            self.sums + other.sums, self.counts + other.counts, self.squares + other.squares
        )


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
        squares = float(np.square(rest, dtype=np.float64).sum())
        return ResidualSums(sums, np.bincount(levels, minlength=size), squares)


@dataclass(frozen=True)
class State:
    """The model, and what goes with it where the ridge is learnt.

    ``precisions`` are those of each mode's biases, ``doubts`` what their variances add to the squared
    residuals; no variance is taken to be below ``least``.
    """

    model: Multilinear
    precisions: tuple[float, ...]
    doubts: tuple[float, ...]
    noise: float = 1.0
    least: float = 0.0
    round: int = 0


@record
@dataclass(frozen=True)
class Backfitting:
    """Settings of the bias predictor; ``sweeps=0`` gives the constant predictor.

    Parameters
    ----------
    sweeps : times that each mode's biases are fitted.
    ridge : penalty of a bias: a level with n entries keeps n / (n + ridge) of its mean. "learn" finds
        one for each mode, from the data.
    """

    sweeps: int = 10
    ridge: float | Literal["learn"] = "learn"
    tolerance: float | None = None
    name: ClassVar[str] = "biases"

    def rounds(self, shape: Shape) -> int:
        return 1 + self.sweeps * len(shape.sizes)

    def check(self, shape: Shape) -> None:  # noqa: ARG002
        check_count(0, sweeps=self.sweeps)
        check_positive(**given(tolerance=self.tolerance))
        if not isinstance(self.ridge, str):
            check_positive(ridge=self.ridge)
        elif self.ridge != "learn":
            raise SettingError(f'ridge is a number or "learn", got {self.ridge!r}')

    def init(self, run: Run, shape: Shape) -> State:  # noqa: ARG002
        self.check(shape)
        ridge = _FIRST_RIDGE if isinstance(self.ridge, str) else self.ridge
        return State(shape.zeros(), (ridge,) * shape.order, (0.0,) * shape.order)

    def ask(self, state: State) -> MomentsQuery | BiasQuery:
        if state.round == 0:
            return MomentsQuery()
        return BiasQuery(state.model, (state.round - 1) % state.model.order)

    def update(self, state: State, statistics: Moments | ResidualSums) -> tuple[State, Info]:
        model, order = state.model, state.model.order
        if isinstance(statistics, Moments):
            return self._scaled(state, statistics), Info(0)
        mode, info = (state.round - 1) % order, Info(state.round // order)
        ridge = state.precisions[mode] / state.noise
        model.mode_biases[mode][:] = statistics.sums / (statistics.counts + ridge)
        if isinstance(self.ridge, str):
            state = _learn(state, mode, statistics)
        return replace(state, round=state.round + 1), info

    def _scaled(self, state: State, seen: Moments) -> State:
        state = replace(state, model=state.model.with_mean(seen.mean), round=1)
        if not isinstance(self.ridge, str):
            return state
        power = seen.variance or 1.0
        precisions = tuple(precision / power for precision in state.precisions)
        return replace(state, precisions=precisions, noise=1 / power, least=_LEAST * power)

    def finish(self, state: State) -> Finished[Multilinear]:
        return Finished(state.model)


def _learn(state: State, mode: int, seen: ResidualSums) -> State:
    """Empirical Bayes, once a mode's biases are set; levels without entries tell nothing."""
    there = seen.counts > 0
    counts, biases = seen.counts[there], state.model.mode_biases[mode][there].astype(np.float64)
    variances = 1 / (state.noise * counts + state.precisions[mode])
    precisions, doubts = list(state.precisions), list(state.doubts)
    precisions[mode] = 1 / max(float(np.mean(biases**2 + variances)), state.least)
    doubts[mode] = float(counts @ variances)
    left = seen.squares - 2 * biases @ seen.sums[there] + counts @ biases**2
    spread = (max(float(left), 0.0) + sum(doubts)) / counts.sum()
    return replace(
        state, precisions=tuple(precisions), doubts=tuple(doubts), noise=1 / max(spread, state.least)
    )
