"""Alternating least squares, plain or Bayesian, for any multilinear model.

One sweep solves each mode's rows (with their biases) given all else, then the free part of the core.

- Plain: minimises ``sum (x - value)^2 + sum_rows (constant + per_entry n) |row - prior mean|^2``.
- Bayesian (``ridge="learn"``): mean-field variational inference. Every parameter has a normal
  posterior; the variances of the other modes add to the diagonal of a row's Gram matrix, and the
  prior precision of each column of each mode and the noise are set by empirical Bayes after each
  sweep, so that nothing is left to tune but the rank. Rows shrink towards a learnt map of where their
  entries are (``presence.py``), unless that is turned off.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np

from sfumato.checks import check_count, check_kind, check_number, check_positive, given
from sfumato.errors import SettingError
from sfumato.kernels.numba.normal import NormalEquations, Ridge, Uncertainty, solve_rows
from sfumato.kernels.numba.simd import aligned_zeros
from sfumato.models.multilinear import Multilinear
from sfumato.models.shape import Shape
from sfumato.records import record
from sfumato.sites.memory import Site
from sfumato.solvers.least_squares.core import CoreEquations, one_blas_thread
from sfumato.solvers.least_squares.presence import (
    SEARCH_ROUNDS,
    LevelSums,
    NeighboursQuery,
    Presence,
    Search,
)
from sfumato.solvers.least_squares.questions import (
    CoreQuery,
    ResidualQuery,
    Residuals,
    Rows,
    RowsQuery,
)
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

BLOCK_BYTES = 4 << 20  # Gram matrices of one query: they stay in a cache
_CORE_LIMIT = 4096
_WARM_SWEEPS = 2  # before precisions are learnt, so that a random start is not taken for the truth
_SLOW_SWEEPS = 5  # the same for modes that shrink towards another value than zero
_FIRST_NOISE = 10.0  # precision to start with, relative to the values: a lower one prunes too early


class Core(NamedTuple):
    """The free part of the core."""


class Look(NamedTuple):
    """How good the fit is."""


class First(NamedTuple):
    """The values' moments."""


class Together(NamedTuple):
    """Which levels occur together."""


Step = Together | First | Rows | Core | Look


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
    search: Search | None = None
    presence: Presence | None = None  # known once the search has ended


@record
@dataclass(frozen=True)
class ALS:
    """Settings of alternating least squares.

    Parameters
    ----------
    sweeps : int
        Number of sweeps over all modes.
    ridge : float, mapping or {'learn'}
        "learn" (Bayesian, the default), or a penalty: one number, or a mapping from mode names.
    ridge_per_entry : float or mapping
        Penalty of a row per entry that it has, on top of ``ridge``; number or mapping.
    bias_ridge : float or mapping
        Penalty of the biases, where ``ridge`` is not learnt; number or mapping.
    core_ridge : float
        Penalty of a Tucker core, where ``ridge`` is not learnt.
    prior_mean : mapping or None
        What the factors of a mode shrink towards, by mode name; unnamed modes shrink towards zero,
        time modes (read with ``bins``) towards one.
    presence : bool
        Where ``ridge`` is learnt, whether rows and biases shrink towards a learnt map of where their
        entries are instead: their number, with whom they occur, the sum of their designs. What says
        nothing is shrunk away.
    init_scale : float
        Size of the random start.
    tolerance : float or None
        Stop when the training RMSE falls by less than this share in a sweep. It looks at the data at
        a moment that the data choose: for non-private use only.
    block_bytes : int
        Of the Gram matrices that are made before they are solved; changes the time alone.

    Examples
    --------
    >>> import sfumato as sf
    >>> train, test = sf.synthetic.cp(
    ...     (60, 40, 5), 2, entries=6000, snr=10
    ... ).tensor.split(0.2)
    >>> model = sf.CP(rank=2, solver=sf.ALS(sweeps=10, ridge=1.0)).fit(train)
    >>> bool(model.rmse(test) < 0.5 * test.values.std())
    True
    """

    sweeps: int = 30
    ridge: float | Mapping[str, float] | Literal["learn"] = "learn"
    ridge_per_entry: float | Mapping[str, float] = 0.0
    bias_ridge: float | Mapping[str, float] = 5.0
    core_ridge: float = 1.0
    prior_mean: Mapping[str, float] | None = None
    presence: bool = True
    init_scale: float = 0.3
    tolerance: float | None = None
    block_bytes: int = BLOCK_BYTES
    name: ClassVar[str] = "als"

    @property
    def learns(self) -> bool:
        """Whether penalties are learnt."""
        return isinstance(self.ridge, str)

    @property
    def _prelude(self) -> tuple[Step, ...]:
        """What is asked before the first sweep."""
        together = (Together(),) * SEARCH_ROUNDS if self.learns and self.presence else ()
        return (*together, First())

    def check(self, shape: Shape) -> None:
        check_count(sweeps=self.sweeps)
        check_count(block_bytes=self.block_bytes)
        check_kind(bool, "True or False", presence=self.presence)
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
        return len(self._prelude) + self.sweeps * len(self._sweep(shape))

    def _sweep(self, shape: Shape) -> tuple[Step, ...]:
        """Queries of one sweep; their number depends on public sizes alone."""
        model = shape.zeros()
        width = model.rows.shape[1]
        block = max(64, self.block_bytes // (width * width * model.dtype.itemsize))
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
            (*self._prelude, *self._sweep(shape)),
            fit_mean=shape.fit_mean,
            threads=run.threads,
            search=Search.of(model, prior_means) if self.learns and self.presence else None,
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

    def ask(
        self, state: State
    ) -> NeighboursQuery | MomentsQuery | RowsQuery | CoreQuery | ResidualQuery:
        step, known = state.schedule[state.position], (state.model, state.uncertainty)
        if state.search is not None:
            return state.search.ask()
        if isinstance(step, First):
            return MomentsQuery()
        if isinstance(step, Rows):
            return RowsQuery(*known, step)
        return CoreQuery(*known) if isinstance(step, Core) else ResidualQuery(*known)

    def update(self, state: State, statistics: Any) -> tuple[State, Info]:
        step = state.schedule[state.position]
        rmse = noise = None
        if isinstance(step, Together):
            state = self._searched(state, statistics)
        elif isinstance(step, First):
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
        return replace(state, position=len(self._prelude), sweep=sweep), Info(sweep, rmse, noise)

    def finish(self, state: State) -> Finished[Multilinear]:
        return Finished(state.model)

    def searched(self, state: State, site: Site) -> State:
        """The whole search at once, for fits that have their data at hand."""
        while state.search is not None:
            state = self._searched(state, state.search.ask().answer(site))
        return state

    def _searched(self, state: State, seen: LevelSums) -> State:
        """Go on with the search; at its end, start from what was found."""
        if state.search is None:
            raise AssertionError("a search ends once")
        search = state.search.answered(seen)
        if search.round < SEARCH_ROUNDS:
            return replace(state, search=search)
        presence = Presence.found(search, state.model)
        presence.start(state.model, [ridge.mean for ridge in state.ridges], self.init_scale)
        return replace(state, search=None, presence=presence)

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
    if state.presence is not None:
        # Of the designs that the map was learnt from: with new ones, rows and designs would blow each
        # other up.
        expected = state.presence.expected(model, step.mode, here)
        state.presence.see(here, np.asarray(sums.design_sum))
        if expected is not None:
            sums = drawn_towards(sums, state.ridges[step.mode], expected)
    ridge, rank = state.ridges[step.mode], model.ranks[step.mode]
    where = (
        *(model.rows[here], model.biases[here]),
        *(uncertainty.rows[here], uncertainty.biases[here]),
    )
    if isinstance(sums.gram, np.ndarray):
        solve_rows(sums, ridge, rank, *where, state.threads)
    else:  # they were made on another device, and are solved there
        from sfumato.sites.device import solve_rows as solve_rows_there

        solve_rows_there(sums, ridge, rank, *where)


def drawn_towards(sums: NormalEquations, ridge: Ridge, expected: Array) -> NormalEquations:
    """The same equations for rows, and biases in a last column, that shrink towards more than ``mean``.

    As if entries had been seen whose right-hand sides are what the prior adds.
    """
    rank = expected.shape[1] - np.isfinite(ridge.bias_constant)
    rhs, target_sum = np.array(sums.rhs), np.asarray(sums.target_sum)
    rhs[:, :rank] += (ridge.constant[:rank] / ridge.noise) * expected[:, :rank]
    if np.isfinite(ridge.bias_constant):
        target_sum = target_sum + (ridge.bias_constant / ridge.noise) * expected[:, rank]
    return sums._replace(rhs=rhs, target_sum=target_sum.astype(rhs.dtype))


def solve_core(state: State, sums: CoreEquations) -> None:
    noise = state.ridges[0].noise
    system = noise * sums.gram
    system[np.diag_indices_from(system)] += state.core_precision
    with one_blas_thread():
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
    ridges, presence = [], state.presence
    for mode, ridge in enumerate(state.ridges):
        if ridge.mean == 0 or state.sweep >= _SLOW_SWEEPS:
            presence, ridge = learn_prior(presence, ridge, model, uncertainty, mode)  # noqa: PLW2901
        ridges.append(ridge._replace(noise=noise))
    core = model.free_core
    core_precision = state.core_precision
    if core.size:
        core_precision = 1 / second_moment(core, uncertainty.core)
    return replace(state, ridges=tuple(ridges), core_precision=float(core_precision), presence=presence)


def learn_prior(
    presence: Presence | None, ridge: Ridge, model: Multilinear, uncertainty: Uncertainty, mode: int
) -> tuple[Presence | None, Ridge]:
    """The precisions of a mode, and where there is one, first the map that its rows shrink towards."""
    if presence is None:
        return None, learn_ridge(ridge, model, uncertainty, mode)
    here, rank = model.span(mode), model.ranks[mode]
    beyond = np.asarray(model.rows[here, :rank], np.float64) - ridge.mean
    precisions = ridge.constant[:rank]
    if np.isfinite(ridge.bias_constant):
        beyond = np.column_stack([beyond, model.biases[here]])
        precisions = np.append(precisions, ridge.bias_constant)
    presence, expected, doubt = presence.learnt(model, mode, beyond, precisions)
    return presence, learn_ridge(ridge, model, uncertainty, mode, beyond - expected, doubt)


def learn_ridge(
    ridge: Ridge,
    model: Multilinear,
    uncertainty: Uncertainty,
    mode: int,
    beyond: Array | None = None,
    doubt: Array | None = None,
) -> Ridge:
    """Precisions of a mode.

    ``beyond`` is what rows, and biases in a last column, have beyond what the prior expects of them, and
    ``doubt`` the variance of that expectation; without, the prior mean is all that is expected.
    """
    here, rank = model.span(mode), model.ranks[mode]
    constant, bias = ridge.constant.copy(), ridge.bias_constant
    doubt = np.zeros(rank + 1) if doubt is None else doubt
    rows = model.rows[here, :rank] - ridge.mean if beyond is None else beyond[:, :rank]
    constant[:rank] = 1 / (second_moment(rows, uncertainty.rows[here, :rank]) + doubt[:rank])
    if np.isfinite(bias):
        biases = model.biases[here] if beyond is None else beyond[:, rank]
        bias = float(1 / (second_moment(biases, uncertainty.biases[here]) + doubt[rank]))
    return ridge._replace(constant=constant, bias_constant=bias)


def second_moment(means: Array, variances: Array) -> Any:
    """Average of mean^2 + variance down the columns, kept above what would overflow its inverse."""
    both = np.square(means, dtype=np.float64).mean(axis=0) + variances.mean(axis=0, dtype=np.float64)
    return np.maximum(both, 1e-12)
