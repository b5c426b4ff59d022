"""What the gradient solvers share: moments first, then passes over the data.

While it is fitted a model explains ``(value - mean) / spread``, so that steps and penalties mean the
same whatever unit the values are in; ``finish`` puts the unit back.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from sfumato.checks import check_count, check_number, check_positive, given
from sfumato.kernels.numba.sgd import Penalty
from sfumato.kernels.numba.simd import aligned_zeros
from sfumato.models.multilinear import Multilinear
from sfumato.models.shape import Shape
from sfumato.records import record
from sfumato.sites.memory import Site
from sfumato.solvers.protocol import (
    ChainQuery,
    DivergedError,
    Finished,
    Info,
    Moments,
    MomentsQuery,
    Run,
    random_start,
)
from sfumato.surface import either
from sfumato.types import Array


@record
@dataclass(frozen=True)
class PassQuery(ChainQuery):
    """Make one pass from the given model; ``mean`` and ``spread`` are the values' unit.

    Passes of several holders of data do not add up, as each visit depends on those before: a pass goes
    from one to the next, in a random order. ``counts`` are entries of each row at all holders together,
    where a penalty needs them.
    """

    solver: PassSolver
    shape: Shape
    model: Multilinear
    mean: float
    spread: float
    step: float
    seed: int
    memory: Any  # what a solver carries from pass to pass beside the model
    counts: Any = None

    def answer(self, site: Site) -> PassResult:
        """The query stays what it was: the pass is made with a copy."""
        return self.solver.make_pass(replace(self, model=self.model.copy()), site)

    def order(self, holders: int) -> list[int]:
        generator = np.random.default_rng([self.seed, 0x5EA])  # apart from what the pass itself draws
        return [int(holder) for holder in generator.permutation(holders)]

    def after(self, answer: PassResult) -> PassQuery:
        return replace(self, model=answer.model, memory=answer.memory)

    def joined(self, before: PassResult, answer: PassResult) -> PassResult:
        squares, entries = before.squares + answer.squares, before.entries + answer.entries
        return replace(answer, squares=squares, entries=entries)


@record
@dataclass(frozen=True, eq=False)
class PassResult:
    """The model after a pass, and the sum of squared errors met on the way."""

    model: Multilinear
    squares: float
    entries: int
    memory: Any = None


@record
@dataclass(frozen=True, eq=False)
class Counted:
    """The values' moments, and the entries of each row."""

    moments: Moments
    counts: Array

    def __add__(self, other: Counted) -> Counted:
        return Counted(self.moments + other.moments, self.counts + other.counts)


@record
@dataclass(frozen=True)
class CountedQuery:
    """Ask for both."""

    def answer(self, site: Site) -> Counted:
        return Counted(MomentsQuery().answer(site), site.counts)


@dataclass(frozen=True)
class State:
    shape: Shape
    model: Multilinear
    seed: int
    done: int = -1  # passes; -1 while the values' moments are not known
    mean: float = 0.0
    spread: float = 1.0
    memory: Any = None  # what a solver carries from pass to pass beside the model
    counts: Array | None = None


@dataclass(frozen=True)
class PassSolver(ABC):
    """Moments, then ``passes`` passes. A subclass says what a pass does and with which step."""

    passes: int = 35
    step: float = 0.02
    ridge_per_entry: float | Mapping[str, float] = 0.06
    ridge: float | Mapping[str, float] = 0.0
    bias_ridge: float = 0.02
    core_ridge: float = 0.001
    prior_mean: Mapping[str, float] | None = None
    init_scale: float = 0.2
    tolerance: float | None = None

    name: ClassVar[str]
    standardises: ClassVar[bool] = True
    chains: ClassVar[bool] = True  # passes go from one holder of data to the next

    @abstractmethod
    def step_at(self, done: int) -> float:
        """Step of the pass that follows ``done`` passes."""

    @abstractmethod
    def make_pass(self, query: PassQuery, site: Site) -> PassResult:
        """Visit all entries, changing the query's model in place: it is a copy made for this."""

    def check(self, shape: Shape) -> None:
        check_count(passes=self.passes)
        check_positive(step=self.step, init_scale=self.init_scale, **given(tolerance=self.tolerance))
        check_number(0, bias_ridge=self.bias_ridge, core_ridge=self.core_ridge)
        for what, penalty in (("ridge", self.ridge), ("ridge_per_entry", self.ridge_per_entry)):
            check_number(0, **{what: min(shape.per_mode(penalty, what, 0.0))})
        shape.prior_means(self.prior_mean)

    def rounds(self, shape: Shape) -> int:  # noqa: ARG002
        return 1 + self.passes

    def init(self, run: Run, shape: Shape) -> State:
        self.check(shape)
        model = shape.zeros()
        random_start(model, shape.prior_means(self.prior_mean), self.init_scale, run.seed)
        return State(shape, model, run.seed)

    def ask(self, state: State) -> MomentsQuery | CountedQuery | PassQuery:
        if state.done >= 0:
            return self.pass_query(state)
        # A penalty of a whole row is spread over its entries, wherever these are.
        by_row = any(state.shape.per_mode(self.ridge, "ridge", 0.0))
        return CountedQuery() if by_row else MomentsQuery()

    def pass_query(self, state: State) -> PassQuery:
        """The pass that comes next."""
        return PassQuery(
            self,
            state.shape,
            state.model,
            state.mean,
            state.spread,
            self.step_at(state.done),
            seed=_pass_seed(state.seed, state.done),
            memory=state.memory,
            counts=state.counts,
        )

    def update(self, state: State, statistics: Moments | Counted | PassResult) -> tuple[State, Info]:
        if isinstance(statistics, Counted):
            state, statistics = replace(state, counts=statistics.counts), statistics.moments
        if isinstance(statistics, Moments):
            mean = statistics.mean if state.shape.fit_mean else 0.0
            power = statistics.variance + (statistics.mean - mean) ** 2
            spread = float(np.sqrt(power)) if self.standardises and power > 0 else 1.0
            return replace(state, done=0, mean=mean, spread=spread), Info(0)
        rmse = state.spread * float(np.sqrt(statistics.squares / statistics.entries))
        if not np.isfinite(rmse):
            raise DivergedError(
                f"the fit diverged in pass {state.done + 1}: use "
                + either(f"a smaller step than {self.step}", "--solver als")
            )
        done = state.done + 1
        following = replace(state, model=statistics.model, done=done, memory=statistics.memory)
        return following, Info(done, rmse)

    def finish(self, state: State) -> Finished[Multilinear]:
        model = state.model.copy().with_mean(state.mean)
        model.rows[model.span(0)] *= state.spread
        model.biases[:] *= state.spread
        return Finished(model)

    def penalty(self, query: PassQuery, site: Site) -> Penalty:
        """Penalties per visit, in the model's floating-point type."""
        shape, model = query.shape, query.model
        dtype = model.dtype
        sizes = shape.sizes
        whole = shape.per_mode(self.ridge, "ridge", 0.0)
        each = shape.per_mode(self.ridge_per_entry, "ridge_per_entry", 0.0)
        by_row = np.empty(0)
        if any(whole):
            counts = site.counts if query.counts is None else query.counts
            by_row = np.repeat(whole, sizes) / np.maximum(counts, 1) + np.repeat(each, sizes)
        means = aligned_zeros((model.order, model.rows.shape[1]), dtype)
        for m, mean in enumerate(shape.prior_means(self.prior_mean)):
            means[m, : model.ranks[m]] = mean
        return Penalty(
            np.array(each, dtype),
            by_row.astype(dtype),
            means,
            dtype.type(self.bias_ridge),
            dtype.type(self.core_ridge),
        )


def _pass_seed(seed: int, done: int) -> int:
    return int(np.random.SeedSequence([seed, done]).generate_state(1, np.uint64)[0])
