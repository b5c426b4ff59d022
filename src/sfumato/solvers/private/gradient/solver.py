"""Private gradient descent: clipped gradients of random batches, with Gaussian noise.

Two kinds of questions are put to the data:

1. counts and sums of every level, once: they give the mean, the biases, how far values lie from
   them, and about how many entries each row has;
2. steps, in which each unit takes part independently with probability ``rate``. Its gradients of all
   parameters, at the same iterate, are clipped jointly, and noise goes on every coordinate.

Everything else comes from public numbers and from what was released before: the step of a row is
about one over its noisy count, the metric in which gradients are clipped evens out the modes, and
the ridge grows with the known noise, so that with little budget a fit falls back to the biases and
these to a constant. What is private, for whom and why: proofs/gradient.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from math import inf, log1p, sqrt
from typing import Any, ClassVar, NamedTuple

import numpy as np

from sfumato.checks import (
    MOST_ROUNDS,
    check_count,
    check_kind,
    check_number,
    check_positive,
    check_share,
)
from sfumato.data.tensor import find_mode
from sfumato.errors import SettingError
from sfumato.kernels.numba.private_steps import (
    Memory,
    Moves,
    Scale,
    entry_steps,
    make_memory,
    make_paces,
    noise_after,
    unit_steps,
    unit_sums,
)
from sfumato.kernels.numba.simd import aligned_zeros
from sfumato.kernels.numba.threads import run
from sfumato.models.multilinear import Multilinear
from sfumato.privacy.clipping import Clipped, check_range
from sfumato.privacy.ledger import Charge, Draw
from sfumato.privacy.mechanisms import Gaussian, Noisy, PoissonGaussian
from sfumato.privacy.units import PrivacyUnit, Unit, UnitValues
from sfumato.sites.memory import Site
from sfumato.solvers.least_squares.own_rows import OwnPrior, RowNoise
from sfumato.solvers.protocol import MOST_MEAN, Info, PublicShape, start_generator
from sfumato.types import Array

_TOTALS = 2.0  # weight of the three totals among the sums of levels
_CELLS = 4096  # public random cells at which designs are measured
_LEAST_SHARE = 1e-9  # of the budget: with less, noise leaves the range of double precision
_LEAST_POWER = 0.01  # variance of a component, in residual variances, that shrinking starts from


class Start(NamedTuple):
    """What is known before the first step, all of it released: a bias predictor, and counts.

    ``mean``, ``biases`` and ``spread`` (of what these leave unexplained) are in the values' unit.
    ``counts`` holds the noisy number of entries of each level, mode after mode, each entry weighted
    as its gradient will be; ``bias_variance`` how far the true biases of each mode spread.
    """

    mean: float
    biases: Array
    counts: Array
    spread: float
    bias_variance: Array


class LevelsQuery(NamedTuple):
    """Ask for counts and sums of all levels."""

    shape: PublicShape


class Levels(NamedTuple):
    """Noisy totals and sums of levels; their counts in ``noisy`` too, or exact where public."""

    noisy: Noisy
    counts: Array | None


class StepsQuery(NamedTuple):
    """Make steps with the given model, in place. ``own_ridge``: of a local row, of its bias."""

    shape: PublicShape
    model: Multilinear
    moves: Moves
    scale: Scale
    own_ridge: tuple[float, float]
    memory: Memory


@dataclass(frozen=True)
class State:
    shape: PublicShape
    seed: int
    model: Multilinear  # explains (value - mean) / spread
    start: Start | None = None
    cells: Array | None = None
    moves: Moves | None = None  # of the coming pass; at the end, of the last one
    variance: Array | None = None  # of the noise in each row, in the metric of ``moves``
    memory: Memory | None = None
    done: int = 0  # passes


@dataclass(frozen=True)
class Settings:
    """What a fit's public numbers lead to; see :func:`derive`."""

    passes: int
    rate: float
    clip: float
    step: float
    last_step: float
    levels_share: float
    bias_share: float
    typical: float

    @property
    def steps_per_pass(self) -> int:
        return max(1, round(1 / self.rate))


def thinness(shape: PublicShape, noise: float) -> float:
    """Noise over the entries of an average row: how thinly the data lie under the noise.

    For one query that spends the whole budget it is about 0.003 for a million ratings at epsilon 10,
    0.03 at 1, 0.2 at 0.1. Units of many entries are clipped harder: as if there were more noise.
    """
    rows = sum(shape.sizes) / len(shape.modes)
    return noise * rows / _entries(shape) * (3 if isinstance(shape.unit, Unit) else 1)


def _entries(shape: PublicShape) -> float:
    """How many entries there are, or a guess where that is not public."""
    return shape.entries or 100 * sum(shape.sizes) / len(shape.modes)


def derive(shape: PublicShape, noise: float) -> Settings:
    """Settings from public numbers alone, found on invented ratings.

    The thinner the data under the noise (see :func:`thinness`), the smaller the steps, the sooner
    gradients are clipped, and the more goes to mean and biases. A pass is one step with all units: at
    the same cost in privacy smaller batches have as much noise in them, and the variance of the choice
    besides. They take fewer visits to come as far, so a rate may be given.

    Shares may depend on the noise because more noise still means more noise in every question.
    """
    entries = _entries(shape)
    whole_units = isinstance(shape.unit, Unit)
    thin = thinness(shape, noise)
    calm = 1 / (1 + thin / 0.02)
    units = shape.sizes[unit_mode(shape)] if whole_units else entries
    return Settings(
        passes=60,
        rate=1.0,
        clip=0.8 + 0.6 * calm,
        step=min(0.5, 1.5 / len(shape.sizes)) * calm**0.75,
        last_step=0.1 * calm**0.75,
        levels_share=0.08 + 0.5 * thin / (thin + 0.1),
        bias_share=0.15 + 0.25 * (1 - calm) if shape.fit_biases else 0.0,
        typical=max(4.0, entries / units / 4),
    )


@dataclass(frozen=True)
class PrivateSGD:
    """Settings of private gradient descent. Those that are None follow from public numbers.

    Parameters
    ----------
    noise : scales all noise: one Gaussian query that spent the whole budget would have this noise
        multiplier. Found by calibration.
    passes : expected visits to each entry.
    rate : probability with which a unit takes part in a step; a pass has 1 / rate steps.
    clip : norm to which a unit's gradient is clipped, in spreads of what the biases leave.
    step, last_step : of a pass, as shares of a Newton step; it falls geometrically.
    levels_share : of the budget for counts and sums of levels; the steps get the rest.
    bias_share : of a typical gradient's squared length for the biases.
    typical : units (not entries) with more entries than this weigh theirs by sqrt(typical / entries).
    prior_mean : what factors shrink towards, by mode; by default 1 for a time mode, else 0.
    start : a released bias predictor to start from; its own stage is then left out.
    """

    noise: float = 1.0
    passes: int | None = None
    rate: float | None = None
    clip: float | None = None
    step: float | None = None
    last_step: float | None = None
    levels_share: float | None = None
    bias_share: float | None = None
    typical: float | None = None
    prior_mean: Mapping[str, float] | None = None
    start: Start | None = None

    name: ClassVar[str] = "gradient perturbation"
    proof: ClassVar[str] = "proofs/gradient.md"
    proven: ClassVar[bool] = True
    exact: ClassVar[bool] = False

    # -- what will be done: never sees data -----------------------------------------------------

    def settings(self, shape: PublicShape) -> Settings:
        """The settings of a fit: those given, and the others as derived."""
        derived = derive(shape, self.noise)
        given = {name: getattr(self, name) for name in derived.__dataclass_fields__}
        return replace(derived, **{name: value for name, value in given.items() if value is not None})

    def check(self, shape: PublicShape) -> None:
        if shape.unit is None or shape.bounds is None:
            raise SettingError("a private fit needs a unit of privacy and public bounds of the values")
        if isinstance(shape.unit, UnitValues):
            raise SettingError(
                "private gradient descent protects 'value', 'entry' or a mode; for several values of a "
                "level use input perturbation, or the mode itself"
            )
        check_range(*shape.bounds)
        if isinstance(shape.unit, Unit) and shape.local not in (None, unit_mode(shape)):
            raise SettingError(f"rows can stay with their owners for mode {shape.unit.mode!r} only")
        check_positive(noise=self.noise)
        s = self.settings(shape)
        check_count(1, MOST_ROUNDS, passes=s.passes)
        check_positive(clip=s.clip, typical=s.typical)
        check_number(1e-9, 1, rate=s.rate)
        check_share(step=s.step, last_step=s.last_step)
        check_number(_LEAST_SHARE, 1 - _LEAST_SHARE, levels_share=s.levels_share)
        check_share(True, bias_share=s.bias_share)
        shape.prior_means(self.prior_mean, MOST_MEAN)
        if self.start is not None:
            check_kind(Start, "the Start of a released bias predictor", start=self.start)

    def step_multiplier(self, shape: PublicShape) -> float:
        """Noise multiplier of a step, so that all of them cost about what the levels leave.

        Without sampling that is exact. With it, by the central limit theorem of Gaussian differential
        privacy (Bu, Dong, Long and Su 2020); calibration makes up for what that leaves out.
        """
        s = self.settings(shape)
        share = 1.0 if self.start is not None else 1 - s.levels_share
        change = 2 if _unit(shape).replaces else 1
        steps = s.passes * s.steps_per_pass
        if s.rate == 1:
            return change * self.noise * sqrt(steps / share)
        information = share / (steps * (change * s.rate * self.noise) ** 2)
        return 1 / sqrt(log1p(information))

    def charges(self, shape: PublicShape) -> tuple[Charge, ...]:
        s = self.settings(shape)
        multiplier, replaces = self.step_multiplier(shape), _unit(shape).replaces
        step = PoissonGaussian(multiplier, s.rate, s.steps_per_pass, replaces)
        steps = (Charge("gradient steps", step),) * s.passes
        if self.start is not None:
            return steps
        return Charge("levels", Gaussian(self.noise / sqrt(s.levels_share))), *steps

    def rounds(self, shape: PublicShape) -> int:
        return len(self.charges(shape))

    def assumes(self, shape: PublicShape) -> tuple[str, ...]:  # noqa: ARG002
        if self.start is None:
            return ()
        return ("the bias predictor that it starts from is public, or was paid for elsewhere",)

    # -- the loop -------------------------------------------------------------------------------

    def init(self, seed: int, shape: PublicShape) -> State:
        self.check(shape)
        model = shape.make_model(shape.sizes, shape.dtype)
        generator = start_generator(seed)
        means = shape.prior_means(self.prior_mean)
        free = [m for m in range(model.order) if means[m] == 0 and m != _own(shape)] or [0]
        for m, factor in enumerate(model.factors):
            # One factor starts near zero: the product does, and the metric evens out the scales.
            scale = 0.03 if m == free[0] else 1.0 if m in free else 0.1
            if _own(shape) is not None:  # own rows, of size one, are solved from the others
                scale = 0.0 if m == _own(shape) else 0.2 if m in free else 0.1
            factor[:] = means[m] + scale * generator.standard_normal(factor.shape)
        model.free_core[:] = generator.standard_normal(model.free_core.shape)
        state = State(shape, seed, model)
        return state if self.start is None else self._begin(state, self.start)

    def ask(self, state: State) -> LevelsQuery | StepsQuery:
        shape, start = state.shape, state.start
        if start is None:
            return LevelsQuery(shape)
        number = state.model.dtype.type
        low, high = _bounds(shape)
        scale = Scale(number(low), number(high), number(start.mean), number(1 / start.spread))
        own = _own(shape)
        bias_ridge = 1.0 if own is None else start.spread**2 / float(start.bias_variance[own])
        moves, memory = _known(state.moves), _known(state.memory)
        return StepsQuery(shape, state.model, moves, scale, (1.0, bias_ridge), memory)

    def answer(self, query: LevelsQuery | StepsQuery, site: Site, draw: Draw) -> Levels | Multilinear:
        if isinstance(query, LevelsQuery):
            return self._levels(query.shape, site, draw)
        shape, model, s = query.shape, query.model, self.settings(query.shape)
        steps, clip = draw.mechanism.steps, model.dtype.type(s.clip)
        ranks, stream = np.array(model.ranks), draw.stream()
        how: tuple[Any, ...] = (ranks, s.rate, steps, clip, shape.fit_biases, stream, stream)
        parameters = model.arrays, model.free_core, query.moves, query.memory, query.scale
        if isinstance(shape.unit, Unit):
            mode = unit_mode(shape)
            entries = site.by_mode(mode)
            own = mode, s.typical, shape.local == mode, query.own_ridge
            data = entries.others, entries.values, entries.starts
            run([partial(unit_steps, *parameters, *data, *own, *how)], 1)
        else:
            tensor = site.tensor
            run([partial(entry_steps, *parameters, tensor.coordinates, tensor.values, *how)], 1)
        return model

    def update(self, state: State, released: Levels | Multilinear) -> tuple[State, Info]:
        if isinstance(released, Levels):
            return self._begin(state, read_levels(state.shape, released)), Info(0)
        s, moves, done = self.settings(state.shape), _known(state.moves), state.done + 1
        variance = noise_after(moves.paces, s.steps_per_pass, _known(state.variance))
        state = replace(state, model=released, variance=variance, done=done)
        if done < s.passes:
            state = self._prepare(state)
        return state, Info(done, noise=self.step_multiplier(state.shape))

    def finish(self, state: State) -> Multilinear:
        start, local = _known(state.start), state.shape.local
        model = state.model.copy().with_mean(start.mean)
        model.rows[model.span(_unit_carrier(state.shape))] *= start.spread
        model.biases[:] *= start.spread
        if local is not None:
            model.rows[model.span(local)] = 0
            model.biases[model.span(local)] = 0
        return model

    def own_prior(self, state: State) -> OwnPrior | None:
        shape, start, mode = state.shape, _known(state.start), state.shape.local
        if mode is None:
            return None
        home, model = shape.prior_means(self.prior_mean)[mode], state.model
        power = np.ones(model.ranks[mode])
        if not isinstance(shape.unit, Unit):  # trained with noise: how large rows are is known
            power = np.mean((model.factors[mode][_known(state.cells)[mode]] - home) ** 2, axis=0)
        return OwnPrior(
            mode=mode,
            precisions=1 / np.maximum(power, 1e-6),
            mean=home,
            bias_precision=1 / float(start.bias_variance[mode]) if shape.fit_biases else inf,
            scatter=start.spread**2,
            row_noise=self._row_noise(state, mode),
        )

    def _row_noise(self, state: State, own: int) -> tuple[RowNoise | None, ...]:
        """Variances of the noise in the released rows; it adds to the penalty of own rows."""
        model, square, variance = state.model, _known(state.moves).square, _known(state.variance)
        spread, carrier = _known(state.start).spread, _unit_carrier(state.shape)
        return tuple(
            None
            if m == own
            else RowNoise(
                variance[model.span(m)],
                square[m, : model.ranks[m]] * (spread**2 if m == carrier else 1.0),
            )
            for m in range(model.order)
        )

    # -- levels ---------------------------------------------------------------------------------

    def _levels(self, shape: PublicShape, site: Site, draw: Draw) -> Levels:
        if isinstance(shape.unit, Unit):
            return Levels(draw.release(unit_levels(shape, site, self.settings(shape).typical)), None)
        clipped, counts = entry_levels(shape, site)
        return Levels(draw.release(clipped), None if _unit(shape).hides_presence else counts)

    # -- steps ----------------------------------------------------------------------------------

    def _begin(self, state: State, start: Start) -> State:
        """Go on from a bias predictor: choose the cells at which designs will be measured."""
        generator = np.random.default_rng([state.seed, 1])
        model = state.model
        cells = []
        for m, size in enumerate(model.shape):
            share = np.maximum(start.counts[model.span(m)], 1e-9)
            cells.append(generator.choice(size, _CELLS, p=share / share.sum()))
        model.biases[:] = start.biases / start.spread
        begun = replace(
            state,
            start=start,
            cells=np.array(cells),
            variance=np.zeros(model.rows.shape[0]),
            memory=make_memory(model, isinstance(state.shape.unit, Unit)),
        )
        return self._prepare(begun)

    def _prepare(self, state: State) -> State:
        """Settle how the parameters move in the next pass; post-processing of what was released."""
        shape, model, s = state.shape, state.model, self.settings(state.shape)
        start, cells, own = _known(state.start), _known(state.cells), _own(shape)
        part = state.done / max(1, s.passes - 1)
        pass_step = s.step * (s.last_step / s.step) ** part
        pacing = Pacing(pass_step / s.steps_per_pass, s.rate, self.step_multiplier(shape) * s.clip)
        means = shape.prior_means(self.prior_mean)
        seen = model if own is None else _with_own_rows(state, own, means)
        moved = [m for m in range(model.order) if m != own]
        block_share = (1 - s.bias_share) / (len(moved) + (model.free_core.size > 0))
        bias_square = s.bias_share / len(moved)

        n, width, number = *model.rows.shape, model.dtype
        square, home = (aligned_zeros((model.order, width), number) for _ in range(2))
        row, bias = (np.stack([np.ones(n), np.zeros(n), np.zeros(n)]) for _ in range(2))
        for m in moved:
            rank, span = model.ranks[m], model.span(m)
            curvature = np.mean(seen.design(m, cells).astype(np.float64) ** 2, axis=0)
            curvature = np.maximum(curvature, 1e-3 * curvature.mean() + 1e-12)
            size = np.mean((seen.factors[m][cells[m]] - means[m]).astype(np.float64) ** 2, axis=0)
            power = max(_LEAST_POWER, float(np.mean(size * curvature)))
            home[m, :rank] = means[m]
            square[m, :rank] = block_share / rank / curvature
            row[:, span] = pacing.paces(start.counts[span], block_share / rank, power)
            if shape.fit_biases:
                spread = float(start.bias_variance[m]) / start.spread**2
                bias[:, span] = pacing.paces(start.counts[span], bias_square, spread)
        paces = make_paces(row, bias)
        bias_home = (start.biases / start.spread).astype(number)
        core = _core_moves(seen, cells, start, pacing, block_share)
        moves = Moves(paces, square, home, bias_home, number.type(bias_square), core)
        return replace(state, moves=moves)


# -- counts and sums of levels ------------------------------------------------------------------


def entry_levels(shape: PublicShape, site: Site) -> tuple[Clipped, Array]:
    """Totals, counts and sums of levels where one entry, or one value, is the unit; exact counts.

    Values are taken from the middle of the bounds, in half ranges. An entry is then at most one in
    each sum that it is in; a replaced value moves its sums by at most two, its square by one.
    """
    tensor, (low, high) = site.tensor, _bounds(shape)
    y = (np.clip(tensor.values.astype(np.float64), low, high) - (low + high) / 2) * 2 / (high - low)
    y = np.clip(y, -1.0, 1.0)  # far from zero the middle of the bounds is rounded
    order, levels = tensor.order, list(zip(tensor.coordinates, tensor.shape, strict=True))
    counts = np.concatenate([np.bincount(at, minlength=n) for at, n in levels])
    sums = [np.bincount(at, y, n) for at, n in levels] if shape.fit_biases else []
    if _unit(shape).hides_presence:
        totals = _TOTALS * np.array([y.size, y.sum(), np.square(y).sum()])
        bound = sqrt(3 * _TOTALS**2 + order * (1 + shape.fit_biases))
        return Clipped(np.concatenate([totals, counts, *sums]), inf, bound), counts
    totals = _TOTALS * np.array([y.sum(), np.square(y).sum()])
    bound = sqrt(5 * _TOTALS**2 + 4 * order * shape.fit_biases)
    return Clipped(np.concatenate([totals, *sums]), inf, bound), counts


def unit_levels(shape: PublicShape, site: Site, typical: float) -> Clipped:
    """Totals, counts and sums of the levels of the other modes, each unit's part clipped as a whole."""
    mode, (low, high) = unit_mode(shape), _bounds(shape)
    sizes = [size for m, size in enumerate(shape.sizes) if m != mode]
    counts, sums, totals = np.zeros(sum(sizes)), np.zeros(sum(sizes)), np.zeros(3)
    entries = site.by_mode(mode)
    clip = sqrt(1.3 * typical * len(sizes))
    unit_sums(
        np.cumsum([0, *sizes[:-1]]),
        entries.others,
        entries.values,
        entries.starts,
        Scale(low, high, (low + high) / 2, 2 / (high - low)),
        typical,
        shape.local == mode and shape.fit_biases,
        clip,
        counts,
        sums,
        totals,
    )
    return Clipped(np.concatenate([totals, counts, sums]), inf, sqrt(clip**2 + 3 * typical))


def read_levels(shape: PublicShape, levels: Levels) -> Start:
    """A bias predictor from noisy sums: each estimate shrunk by what its noise is known to be."""
    low, high = _bounds(shape)
    half, noise = (high - low) / 2, levels.noisy.deviation
    own = unit_mode(shape) if isinstance(shape.unit, Unit) else None
    others = [m for m in range(len(shape.sizes)) if m != own]
    n, total, squares, counts, sums = _parts(shape, levels, sum(shape.sizes[m] for m in others))
    n = max(n, noise)
    average = total / n
    # Kept by as much as it stands out from its noise; without a mean, values are taken from zero.
    mean = average * max(0.0, 1 - (noise / n) ** 2 / max(average**2, 1e-30))
    if not shape.fit_mean:
        mean = -(low + high) / (high - low)
    variance = (squares + 0.25 * noise) / (n + noise) - 2 * mean * average + mean**2
    variance = min(max(variance, 0.01), (1 + abs(mean)) ** 2)

    every, biases, spreads = (
        np.ones(sum(shape.sizes)),
        np.zeros(sum(shape.sizes)),
        np.zeros(len(shape.sizes)),
    )
    starts, at = np.cumsum([0, *shape.sizes]), 0
    for m in others:
        size, here = shape.sizes[m], slice(starts[m], starts[m + 1])
        count = np.maximum(counts[at : at + size], 1.0)
        # A unit with local rows has taken its own mean off.
        centred = sums[at : at + size] - (0 if own is not None and shape.local == own else mean * count)
        every[here], at = count, at + size
        sum_noise = noise**2 * (1 + mean**2)
        # How far true biases spread: what is left of the sums' power, less two deviations. Where
        # that is nothing, a small guess does no harm: what it lets through is smaller still.
        expected = sum_noise + variance * count
        left = np.sum(centred**2 - expected) - 2 * sqrt(2 * np.sum(expected**2))
        spreads[m] = min(max(left / np.sum(count**2), 0.02 * variance), variance)
        if shape.fit_biases:
            share = count * spreads[m] / (count**2 * spreads[m] + variance * count + sum_noise)
            biases[here] = share * centred
    if own is not None:  # what is known of the units' own levels is public: an average one
        entries = every[starts[others[0]] : starts[others[0] + 1]].sum()
        every[starts[own] : starts[own + 1]] = max(1.0, entries / shape.sizes[own])
        spreads[own] = 0.2 * variance
    residual = max(variance - spreads.sum() * shape.fit_biases, 0.4 * variance)
    return Start(
        (low + high) / 2 + half * mean, half * biases, every, half * sqrt(residual), half**2 * spreads
    )


def _parts(shape: PublicShape, levels: Levels, size: int) -> tuple[float, float, float, Array, Array]:
    """Number of entries, sum and sum of squares, then counts and sums of levels."""
    values, weight = levels.noisy.values, 1.0 if isinstance(shape.unit, Unit) else _TOTALS
    if levels.counts is None:
        n, total, squares = values[:3] / weight
        counts, sums = values[3 : 3 + size], values[3 + size :]
    else:
        n, (total, squares) = levels.counts[: shape.sizes[0]].sum(), values[:2] / weight
        counts, sums = levels.counts, values[2:]
    return n, total, squares, counts, sums if sums.size else np.zeros(size)


# -- how parameters move ------------------------------------------------------------------------


@dataclass(frozen=True)
class Pacing:
    """Share of a Newton step, probability of taking part, and noise in a step's gradient."""

    step: float
    rate: float
    noise: float

    def paces(self, counts: Array, curvature: float, power: float) -> tuple[Array, Array, Array]:
        """Keep, pace and jitter of rows with the given counts, in the metric's coordinates.

        An entry adds ``curvature`` to a coordinate's Hessian; ``power`` is the variance that it
        explains, in residual variances. The ridge is the best linear one for what is known: the
        residuals' variance, and that of the noise in an iterate under steps of this length.
        """
        shaking = self.step / (2 - self.step) * (self.noise / self.rate) ** 2
        ridge = curvature / power + shaking / (counts * power)
        whole = counts * curvature + ridge
        keep = 1 - self.step * ridge / whole
        length = self.step / (self.rate * whole)
        return keep, length / keep, length * self.noise


def _core_moves(
    model: Multilinear, cells: Array, start: Start, pacing: Pacing, block_share: float
) -> Array:
    """Keep, pace, jitter and square of a free core."""
    size = model.free_core.size
    if size == 0:
        return np.array([1.0, 0.0, 0.0, 0.0])
    curvature = float(np.mean(model.kronecker(cells).astype(np.float64) ** 2)) + 1e-12
    power = max(_LEAST_POWER, float(np.mean(model.free_core**2)) * curvature)
    entries = start.counts[model.span(0)].sum(keepdims=True)
    paces = pacing.paces(entries, block_share / size, power)
    return np.array([*(pace[0] for pace in paces), block_share / size / curvature])


def _with_own_rows(state: State, own: int, means: list[float]) -> Multilinear:
    """The model with made-up own rows, of the size that ridge solutions have on average."""
    model, cells, start = state.model, _known(state.cells), _known(state.start)
    others = [m for m in range(model.order) if m != own]
    powers = [np.mean((model.factors[m][cells[m]] - means[m]) ** 2) for m in others]
    per_unit = start.counts[model.span(others[0])].sum() / model.shape[own]
    known = per_unit * float(np.mean(powers))
    drawn = np.random.default_rng([state.seed, 2]).standard_normal(model.factors[own].shape)
    filled = model.copy()
    filled.factors[own][:] = means[own] + sqrt(known / (known + 1)) * drawn
    return filled


# -- what a shape says --------------------------------------------------------------------------


def unit_mode(shape: PublicShape) -> int:
    """The mode whose levels are the units."""
    assert isinstance(shape.unit, Unit)
    return find_mode(shape.modes, shape.unit.mode)


def _own(shape: PublicShape) -> int | None:
    """The mode whose rows are solved by their owners in every step, if any."""
    return shape.local if isinstance(shape.unit, Unit) else None


def _unit_carrier(shape: PublicShape) -> int:
    """The mode whose rows carry the values' unit in the finished model: the first that is released."""
    return 1 if shape.local == 0 else 0


def _unit(shape: PublicShape) -> PrivacyUnit:
    assert shape.unit is not None
    return shape.unit


def _bounds(shape: PublicShape) -> tuple[float, float]:
    assert shape.bounds is not None
    return shape.bounds


def _known(part: Any) -> Any:
    """A part of the state that is there from the first step on."""
    assert part is not None
    return part
