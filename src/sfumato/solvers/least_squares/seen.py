"""Fits to what was seen, without privacy: every cell counts, those without an entry as zeros.

    sum over all cells of value^2 + weight * sum over seen cells of (1 - value)^2 + ridge |rows|^2

The first sum is never walked over. Given all other modes it is a quadratic form of a row, whose matrix
is the product, entry by entry, of the other modes' Gram matrices: a prior of every row of the mode.
(Y. Hu, Y. Koren, C. Volinsky, "Collaborative filtering for implicit feedback datasets", 2008.)
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from sfumato.checks import check_count, check_positive
from sfumato.errors import SettingError
from sfumato.kernels.numba.normal import NormalEquations, Ridge, Uncertainty, solve_rows
from sfumato.kernels.numba.ordering import level_counts
from sfumato.kernels.numba.simd import aligned_zeros
from sfumato.models.multilinear import Multilinear
from sfumato.models.own_prior import OwnPrior
from sfumato.models.shape import Shape
from sfumato.records import record
from sfumato.sites.memory import Site
from sfumato.solvers.least_squares.questions import Rows, RowsQuery
from sfumato.solvers.protocol import Finished, Info, Run, random_start
from sfumato.types import Array

_BLOCK_BYTES = 4 << 20  # Gram matrices of one query
_START = 0.1


def zeros_of(model: Multilinear, mode: int) -> Array:
    """What zeros at all cells add to the Gram matrix of a row of a mode."""
    others = [factor for m, factor in enumerate(model.factors) if m != mode]
    product = np.ones((model.ranks[mode],) * 2)
    for factor in others:
        product *= factor.T @ factor
    return product


def prior_with_zeros(mode: int, zeros: Array, ridge: float, weight: float) -> OwnPrior:
    """The prior of a row under zeros at all cells and a ridge; an entry counts ``weight`` times."""
    precision = zeros + ridge * np.eye(zeros.shape[0])
    turn = np.linalg.inv(np.linalg.cholesky(precision)).T
    return OwnPrior(mode=mode, precisions=np.ones(zeros.shape[0]), turn=turn, scatter=1 / weight)


@dataclass(frozen=True)
class SeenState:
    model: Multilinear
    schedule: tuple[Rows, ...]
    threads: int
    position: int = 0
    sweep: int = 0


@record
@dataclass(frozen=True)
class SeenALS:
    """Settings of alternating least squares for what was seen.

    Parameters
    ----------
    sweeps : int
        Number of sweeps over all modes.
    weight : float
        That a seen cell counts beside one that was not.
    ridge : float
        Of all rows.

    Examples
    --------
    >>> import sfumato as sf
    >>> seen = sf.synthetic.cp((60, 40), 2, entries=500, zipf=(0, 1)).tensor
    >>> model = sf.CP(rank=2, loss="seen", solver=sf.SeenALS(weight=5.0)).fit(seen)
    >>> len(model.top("mode1", 3, mode0=7))
    3
    """

    sweeps: int = 15
    weight: float = 2.0
    ridge: float = 10.0
    name: ClassVar[str] = "seen"
    tolerance: ClassVar[None] = None

    def check(self, shape: Shape) -> None:
        check_count(sweeps=self.sweeps)
        check_positive(weight=self.weight, ridge=self.ridge)
        if shape.kind != "cp":
            raise SettingError("a fit to what was seen is a CP model: use sfumato.CP")

    def rounds(self, shape: Shape) -> int:
        return self.sweeps * len(self._sweep(shape))

    def _sweep(self, shape: Shape) -> tuple[Rows, ...]:
        model = shape.zeros()
        width = model.rows.shape[1]
        block = max(64, _BLOCK_BYTES // (width * width * model.dtype.itemsize))
        return tuple(
            Rows(mode, low, min(low + block, size))
            for mode, size in enumerate(shape.sizes)
            for low in range(0, size, block)
        )

    def init(self, run: Run, shape: Shape) -> SeenState:
        self.check(shape)
        model = shape.zeros()
        random_start(model, [0.0] * shape.order, _START, run.seed)
        return SeenState(model, self._sweep(shape), run.threads)

    def ask(self, state: SeenState) -> RowsQuery:
        return RowsQuery(state.model, _certain(state.model), state.schedule[state.position])

    def update(self, state: SeenState, sums: NormalEquations) -> tuple[SeenState, Info]:
        model, (mode, low, high) = state.model, state.schedule[state.position]
        rank, none = model.ranks[mode], np.zeros((0, 0), model.dtype)
        sums.gram[:, :rank, :rank] += zeros_of(model, mode) / self.weight
        here = slice(model.offsets[mode] + low, model.offsets[mode] + high)
        ridge = Ridge(np.full(rank, self.ridge), 0.0, 0.0, np.inf, 0.0, self.weight)
        solve_rows(
            sums, ridge, rank, model.rows[here], model.biases[here], none, none.ravel(), state.threads
        )
        position = state.position + 1
        if position < len(state.schedule):
            return replace(state, position=position), Info(state.sweep)
        return replace(state, position=0, sweep=state.sweep + 1), Info(state.sweep + 1)

    def finish(self, state: SeenState) -> Finished[Multilinear]:
        return Finished(state.model)

    def own_prior(self, model: Multilinear, mode: int) -> OwnPrior:
        """How one more row of a mode is solved."""
        return prior_with_zeros(mode, zeros_of(model, mode), self.ridge, self.weight)


def _certain(model: Multilinear) -> Uncertainty:
    none = np.zeros(0, model.dtype)
    return Uncertainty(aligned_zeros((0, model.rows.shape[1]), model.dtype), none, none)


# -- popularity ------------------------------------------------------------------------------------


@record
@dataclass(frozen=True)
class CountsOfAll:
    """How often each level of each mode occurs."""

    counts: tuple[Array, ...]

    def __add__(self, other: CountsOfAll) -> CountsOfAll:
        return CountsOfAll(tuple(a + b for a, b in zip(self.counts, other.counts, strict=True)))


@record
@dataclass(frozen=True)
class CountsOfAllQuery:
    """Ask how often each level of each mode occurs."""

    def answer(self, site: Site) -> CountsOfAll:
        tensor = site.tensor
        made = zip(tensor.coordinates, tensor.shape, strict=True)
        return CountsOfAll(tuple(level_counts(levels, size) for levels, size in made))


@record
@dataclass(frozen=True)
class Popularity:
    """How often each level occurs, over the most that it could: everybody is shown the same list."""

    name: ClassVar[str] = "popularity"
    tolerance: ClassVar[None] = None

    def check(self, shape: Shape) -> None:
        """Any shape will do."""

    def rounds(self, shape: Shape) -> int:  # noqa: ARG002
        return 1

    def init(self, run: Run, shape: Shape) -> Multilinear:  # noqa: ARG002
        return shape.zeros()

    def ask(self, state: Multilinear) -> CountsOfAllQuery:  # noqa: ARG002
        return CountsOfAllQuery()

    def update(self, state: Multilinear, seen: CountsOfAll) -> tuple[Multilinear, Info]:
        cells = float(np.prod(state.shape))
        for mode, counts in enumerate(seen.counts):
            state.mode_biases[mode][:] = counts * (state.shape[mode] / cells)
        return state, Info(1)

    def finish(self, state: Multilinear) -> Finished[Multilinear]:
        return Finished(state)
