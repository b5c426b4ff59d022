"""Alternating least squares, plain or Bayesian, for any multilinear model.

One sweep solves each mode's rows (with their biases) given all else, then the free part of the core.

- Plain: minimises ``sum (x - value)^2 + sum_rows (constant + per_entry n) |row - prior mean|^2``.
- Bayesian (``ridge="learn"``): mean-field variational inference. Every parameter has a normal
  posterior; the variances of the other modes add to the diagonal of a row's Gram matrix, and the
  prior precision of each column of each mode and the noise are set by empirical Bayes after each
  sweep, so that nothing is left to tune but the rank.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np

from sfumato.checks import check_count, check_number, check_positive, given
from sfumato.errors import SettingError
from sfumato.kernels.numba.normal import (
    NormalEquations,
    Ridge,
    Uncertainty,
    normal_equations,
    solve_rows,
)
from sfumato.kernels.numba.residuals import residual_sums
from sfumato.kernels.numba.simd import aligned_zeros
from sfumato.models.multilinear import Multilinear
from sfumato.models.shape import Shape
from sfumato.records import record
from sfumato.sites.memory import Site
from sfumato.solvers.protocol import (
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

_BLOCK_BYTES = 4 << 20  # Gram matrices of one query
_CORE_LIMIT = 4096
_WARM_SWEEPS = 2  # before precisions are learnt, so that a random start is not taken for the truth
_SLOW_SWEEPS = 5  # the same for modes that shrink towards another value than zero
_FIRST_NOISE = 10.0  # precision to start with, relative to the values: a lower one prunes too early


@record
class Rows(NamedTuple):
    """Some rows of a mode."""

    mode: int
    low: int
    high: int


class Core(NamedTuple):
    """The free part of the core."""


class Look(NamedTuple):
    """How good the fit is."""


class First(NamedTuple):
    """The values' moments."""


Step = First | Rows | Core | Look


@record
@dataclass(frozen=True)
class Residuals:
    """Sum of squared residuals, sum of the predictions' variances, number of entries."""

    squares: float
    variances: float
    entries: int

    def __add__(self, other: Residuals) -> Residuals:
        return Residuals(
            self.squares + other.squares,
            self.variances + other.variances,
            self.entries + other.entries,
        )


@record
@dataclass(frozen=True, eq=False)
class CoreEquations:
    """Gram matrix and right-hand side."""

    gram: Array
    rhs: Array

    def __add__(self, other: CoreEquations) -> CoreEquations:
        return CoreEquations(self.gram + other.gram, self.rhs + other.rhs)


@record
@dataclass(frozen=True)
class RowsQuery:
    """Ask for the normal equations of some rows of a mode."""

    model: Multilinear
    uncertainty: Uncertainty
    rows: Rows

    def answer(self, site: Site) -> NormalEquations:
        entries = site.by_mode(self.rows.mode)
        return normal_equations(self.model, self.uncertainty, entries, *self.rows, site.threads)


@record
@dataclass(frozen=True)
class CoreQuery:
    """Ask for the normal equations of the core."""

    model: Multilinear
    uncertainty: Uncertainty

    def answer(self, site: Site) -> CoreEquations:
        return core_equations(self.model, self.uncertainty, site)


@record
@dataclass(frozen=True)
class ResidualQuery:
    """Ask how far the model is from the entries."""

    model: Multilinear
    uncertainty: Uncertainty

    def answer(self, site: Site) -> Residuals:
        return residuals(self.model, self.uncertainty, site)


@dataclass(frozen=True)
class State:
    """The model, how sure of it we are, the penalties in force, and where in the schedule we are."""

    model: Multilinear
    uncertainty: Uncertainty
    ridges: tuple[Ridge, ...]
    core_precision: float
    schedule: tuple[Step, ...]
    position: int = 0
    sweep: int = 0
    fit_mean: bool = True
    threads: int = 1
    power: float = 1.0  # mean square of what there is to explain: the unit of learnt precisions


@record
@dataclass(frozen=True)
class ALS:
    """Settings of alternating least squares.

    Parameters
    ----------
    sweeps : number of sweeps over all modes.
    ridge : "learn" (Bayesian, the default), or a penalty: one number, or a mapping from mode names.
    ridge_per_entry : penalty of a row per entry that it has, on top of ``ridge``; number or mapping.
    bias_ridge : penalty of the biases, where ``ridge`` is not learnt; number or mapping.
    core_ridge : penalty of a Tucker core, where ``ridge`` is not learnt.
    prior_mean : what the factors of a mode shrink towards, by mode name; unnamed modes shrink
        towards zero, time modes (read with ``bins``) towards one.
    init_scale : size of the random start.
    tolerance : stop when the training RMSE falls by less than this share in a sweep. It looks at
        the data at a moment that the data choose: for non-private use only.
    """

    sweeps: int = 30
    ridge: float | Mapping[str, float] | Literal["learn"] = "learn"
    ridge_per_entry: float | Mapping[str, float] = 0.0
    bias_ridge: float | Mapping[str, float] = 5.0
    core_ridge: float = 1.0
    prior_mean: Mapping[str, float] | None = None
    init_scale: float = 0.3
    tolerance: float | None = None
    name: ClassVar[str] = "als"

    @property
    def learns(self) -> bool:
        return isinstance(self.ridge, str)

    def check(self, shape: Shape) -> None:
        check_count(sweeps=self.sweeps)
        check_positive(init_scale=self.init_scale, core_ridge=self.core_ridge)
        check_positive(**given(tolerance=self.tolerance))
        if isinstance(self.ridge, str):
            if self.ridge != "learn":
                raise SettingError(f'ridge is a number, a mapping or "learn", got {self.ridge!r}')
        else:
            check_positive(ridge=min(shape.per_mode(self.ridge, "ridge", 1.0)))
        per_entry = shape.per_mode(self.ridge_per_entry, "ridge_per_entry", 0.0)
        check_number(0, ridge_per_entry=min(per_entry))
        if self.learns and any(per_entry):
            raise SettingError('ridge_per_entry needs a ridge of your own: with "learn" it has no part')
        check_positive(bias_ridge=min(shape.per_mode(self.bias_ridge, "bias_ridge", 5.0)))
        shape.prior_means(self.prior_mean)
        core = shape.core_size
        if core > _CORE_LIMIT:
            raise SettingError(
                f"ALS solves for a core of at most {_CORE_LIMIT} entries, this one has {core}; "
                "use smaller ranks, or SGD"
            )

    # -- init / ask / update --------------------------------------------------------------------

    def rounds(self, shape: Shape) -> int:
        return 1 + self.sweeps * len(self._sweep(shape))

    def _sweep(self, shape: Shape) -> tuple[Step, ...]:
        """Queries of one sweep; their number depends on public sizes alone."""
        model = shape.zeros()
        width = model.rows.shape[1]
        block = max(64, _BLOCK_BYTES // (width * width * model.dtype.itemsize))
        steps: list[Step] = [
            Rows(mode, low, min(low + block, size))
            for mode, size in enumerate(shape.sizes)
            for low in range(0, size, block)
        ]
        if model.free_core.size:
            steps.append(Core())
        if self.learns or self.tolerance is not None:
            steps.append(Look())
        return tuple(steps)

    def init(self, run: Run, shape: Shape) -> State:
        self.check(shape)
        model = shape.zeros()
        prior_means = shape.prior_means(self.prior_mean)
        random_start(model, prior_means, self.init_scale, run.seed)
        return State(
            model,
            _uncertainty(model, self.learns),
            self._ridges(shape, model, prior_means),
            self.core_ridge,
            (First(), *self._sweep(shape)),
            fit_mean=shape.fit_mean,
            threads=run.threads,
        )

    def _ridges(self, shape: Shape, model: Multilinear, prior_means: list[float]) -> tuple[Ridge, ...]:
        width = model.rows.shape[1]
        if isinstance(self.ridge, str):
            constants = [1.0 if mean == 0 else 100.0 for mean in prior_means]
            per_entry = [0.0] * len(constants)
        else:
            constants = shape.per_mode(self.ridge, "ridge", 1.0)
            per_entry = shape.per_mode(self.ridge_per_entry, "ridge_per_entry", 0.0)
        biases = shape.per_mode(self.bias_ridge, "bias_ridge", 5.0)
        return tuple(
            Ridge(
                np.full(width, constant),
                each,
                mean,
                bias if shape.fit_biases else np.inf,
                0.0,
                1.0,
            )
            for constant, each, mean, bias in zip(constants, per_entry, prior_means, biases, strict=True)
        )

    def ask(self, state: State) -> MomentsQuery | RowsQuery | CoreQuery | ResidualQuery:
        step, known = state.schedule[state.position], (state.model, state.uncertainty)
        if isinstance(step, First):
            return MomentsQuery()
        if isinstance(step, Rows):
            return RowsQuery(*known, step)
        return CoreQuery(*known) if isinstance(step, Core) else ResidualQuery(*known)

    def update(self, state: State, statistics: Any) -> tuple[State, Info]:
        step = state.schedule[state.position]
        rmse = noise = None
        if isinstance(step, First):
            state = self.scaled(state, statistics)
        elif isinstance(step, Rows):
            solve_block(state, step, statistics)
        elif isinstance(step, Core):
            solve_core(state, statistics)
        else:
            rmse = float(np.sqrt(statistics.squares / statistics.entries))
            if not np.isfinite(rmse):
                raise DivergedError(
                    "ALS left the range of floating-point numbers; "
                    + either("raise the ridge", "use a lower rank")
                )
            if self.learns:
                state = _learn(state, statistics)
                noise = float(state.ridges[0].noise ** -0.5)
        position = state.position + 1
        if position < len(state.schedule):
            return replace(state, position=position), Info(state.sweep, rmse, noise)
        sweep = state.sweep + 1
        return replace(state, position=1, sweep=sweep), Info(sweep, rmse, noise)

    def finish(self, state: State) -> Finished[Multilinear]:
        return Finished(state.model)

    def scaled(self, state: State, seen: Moments) -> State:
        """Take the values' mean, and in the Bayesian case their spread as the unit of the priors."""
        model = state.model.with_mean(seen.mean) if state.fit_mean else state.model
        if not self.learns:
            return replace(state, model=model)
        power = seen.variance if state.fit_mean else seen.variance + seen.mean**2
        power = power or 1.0
        free = [ridge.mean == 0 for ridge in state.ridges]
        share = power ** (1 / max(1, sum(free)))
        ridges = []
        for mode, ridge in enumerate(state.ridges):
            if free[mode]:
                model.rows[model.span(mode)] *= np.sqrt(share)
                ridge = ridge._replace(constant=ridge.constant / share)  # noqa: PLW2901
            ridges.append(
                ridge._replace(bias_constant=ridge.bias_constant / power, noise=_FIRST_NOISE / power)
            )
        return replace(state, model=model, ridges=tuple(ridges), power=power)


def _uncertainty(model: Multilinear, learns: bool) -> Uncertainty:
    rows, biases, core = model.rows.shape, model.biases.shape, model.free_core.shape
    if not learns:
        rows, biases, core = (0, rows[1]), (0,), (0,)
    return Uncertainty(
        aligned_zeros(rows, model.dtype), np.zeros(biases, model.dtype), np.zeros(core, model.dtype)
    )


def solve_block(state: State, step: Rows, sums: NormalEquations) -> None:
    model, uncertainty = state.model, state.uncertainty
    start = model.offsets[step.mode]
    here = slice(start + step.low, start + step.high)
    solve_rows(
        sums,
        state.ridges[step.mode],
        model.ranks[step.mode],
        model.rows[here],
        model.biases[here],
        uncertainty.rows[here],
        uncertainty.biases[here],
        state.threads,
    )


def solve_core(state: State, sums: CoreEquations) -> None:
    noise = state.ridges[0].noise
    system = noise * sums.gram
    system[np.diag_indices_from(system)] += state.core_precision
    state.model.free_core[:] = np.linalg.solve(system, noise * sums.rhs)
    if state.uncertainty.present:
        state.uncertainty.core[:] = 1 / np.diag(system)


def _learn(state: State, seen: Residuals) -> State:
    """Empirical Bayes: each precision becomes one over the posterior second moment."""
    model, uncertainty = state.model, state.uncertainty
    if state.sweep < _WARM_SWEEPS:
        return state
    # Without noise in the data the precision would grow past what the arithmetic resolves.
    spread = (seen.squares + seen.variances) / seen.entries
    noise = 1 / max(spread, float(np.finfo(model.dtype).eps) * state.power)
    ridges = []
    for mode, ridge in enumerate(state.ridges):
        if ridge.mean == 0 or state.sweep >= _SLOW_SWEEPS:
            ridge = learn_ridge(ridge, model, uncertainty, mode)  # noqa: PLW2901
        ridges.append(ridge._replace(noise=noise))
    core = model.free_core
    core_precision = state.core_precision
    if core.size:
        core_precision = 1 / second_moment(core, uncertainty.core)
    return replace(state, ridges=tuple(ridges), core_precision=float(core_precision))


def learn_ridge(ridge: Ridge, model: Multilinear, uncertainty: Uncertainty, mode: int) -> Ridge:
    here, rank = model.span(mode), model.ranks[mode]
    constant = ridge.constant.copy()
    constant[:rank] = 1 / second_moment(
        model.rows[here, :rank] - ridge.mean, uncertainty.rows[here, :rank]
    )
    bias = ridge.bias_constant
    if np.isfinite(bias):
        bias = float(1 / second_moment(model.biases[here], uncertainty.biases[here]))
    return ridge._replace(constant=constant, bias_constant=bias)


def second_moment(means: Array, variances: Array) -> Any:
    """Average of mean^2 + variance down the columns, kept above what would overflow its inverse."""
    both = np.square(means, dtype=np.float64).mean(axis=0) + variances.mean(axis=0, dtype=np.float64)
    return np.maximum(both, 1e-12)


# -- statistics of the core and of the whole fit --------------------------------------------------


def core_equations(model: Multilinear, uncertainty: Uncertainty, site: Site) -> CoreEquations:
    """Gram matrix and right-hand side of the free core entries."""
    size = model.free_core.size
    tensor = site.tensor
    gram, rhs = np.zeros((size, size)), np.zeros(size)
    chunk = max(256, (1 << 22) // size)
    for start in range(0, tensor.n_entries, chunk):
        cells = tensor.coordinates[:, start : start + chunk]
        z = model.kronecker(cells)
        y = tensor.values[start : start + chunk] - model.mean - model.bias_sum(cells)
        w = site.weights[start : start + chunk] if site.weights.size else np.ones_like(y)
        if site.weights.size:
            roots = np.sqrt(w)
            z, y = roots[:, None] * z, roots * y
        gram += z.T @ z  # one matrix with itself: half the work of any other product
        rhs += z.T @ y
        if uncertainty.present:
            gram[np.diag_indices(size)] += _kronecker_variance(model, uncertainty, cells, w)
    return CoreEquations(gram, rhs)


def _kronecker_variance(
    model: Multilinear, uncertainty: Uncertainty, cells: Array, weights: Array
) -> Array:
    """Weighted sum of E[z^2] - E[z]^2, for independent rows with the given variances."""
    first = second = weights[:, None]
    for mode, levels in enumerate(cells):
        square = model.factors[mode] ** 2
        both = square + uncertainty.rows[model.span(mode), : model.ranks[mode]]
        squares, boths = square[levels], both[levels]
        if mode == model.order - 1:  # a product of matrices sums over the entries at once
            difference: Array = (second.T @ boths - first.T @ squares).ravel()
            return difference
        first = (first[:, :, None] * squares[:, None, :]).reshape(len(levels), -1)
        second = (second[:, :, None] * boths[:, None, :]).reshape(len(levels), -1)
    raise AssertionError("a model has modes")


def residuals(model: Multilinear, uncertainty: Uncertainty, site: Site) -> Residuals:
    """Fit to the training entries: squared residuals, and the variance that is still in the model."""
    squares, variances = residual_sums(model, uncertainty, site)
    return Residuals(squares, variances, site.tensor.n_entries)
