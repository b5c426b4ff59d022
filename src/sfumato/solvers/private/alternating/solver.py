"""Alternating private fits: noisy statistics of one block after the other, in their best coordinates.

First come private biases (``biases.py``), with noisy counts of every level, and how far values
lie from them. Then, round after round, each block (the rows of a released mode with their biases, or
the core) is asked for the sums of its clipped gradients, and moves by them:

- designs are taken to coordinates in which they have unit variance in every direction, as far as what
  was released says: there clipping and noise hurt all directions alike;
- noisy counts stand for the Hessian, so that a step of one would replace the block by its least-squares
  solution. The step falls over the rounds: noise averages out instead of each round replacing the last;
- the ridge of a row is that of the best linear guess, from the variance of the residuals, that of the
  noise in the row, and that of the rows themselves, learnt from the rows released before. Where noise
  is large, rows fall back to their prior mean and the fit to the biases.

Units: ``Value`` and ``Entry`` by entry, all modes noised, a local mode solved at the end and never fed
back. ``Unit`` where its rows are local: every unit solves its own rows before it answers, and its whole
contribution is clipped. Proofs: ``proofs/alternating.md``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import sqrt
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np

from sfumato.checks import (
    LEAST_SIZE,
    MOST_ROUNDS,
    check_count,
    check_number,
    check_positive,
    wrong,
)
from sfumato.errors import SettingError
from sfumato.kernels.grid import MOST_NUMBERS
from sfumato.kernels.numba.alternating import CORE, Features, Weighting, padded_metric
from sfumato.models.multilinear import Multilinear
from sfumato.privacy.ledger import Charge, Draw
from sfumato.privacy.mechanisms import Gaussian, Noisy
from sfumato.privacy.units import Unit, UnitValues
from sfumato.sites.memory import Site
from sfumato.solvers.least_squares.own_rows import OwnPrior
from sfumato.solvers.private.alternating.moves import (
    Block,
    Coordinates,
    Move,
    Moved,
    coordinates_of,
    weighted_moment,
)
from sfumato.solvers.private.alternating.queries import (
    BlockQuery,
    Owners,
    OwnQuery,
    ScatterQuery,
    block_statistics,
    own_statistics,
    scatter_statistics,
    symmetric,
)
from sfumato.solvers.private.biases import BiasRelease, BiasState, Known, PrivateBiases, entry_weight
from sfumato.solvers.private.gradient.solver import thinness
from sfumato.solvers.protocol import MOST_MEAN, DivergedError, Info, PublicShape, start_generator
from sfumato.surface import setting
from sfumato.types import Array

# Chosen on invented data of several shapes; errors are flat around them, and close to the best that a
# search finds (benchmarks/settings.py). Those of time modes were settled with MovieLens 100K in view.
_CALM = 0.02  # thinness at which settings are half-way between those for little and for much noise
_LOCAL_SHARE = 0.7  # of another mode's, for rows that are solved again by their owners in the end
_TIME_SHARE = 0.4  # the same for a time mode, which starts near its end
_CORE_SHARE = 0.2  # of an average mode's, for a core, which has few numbers
_LEAST_SHARE = 1e-9  # of the budget: with less, noise leaves the range of double precision
_SCATTER_SHARE, _OWN_SHARE = 0.005, 0.02  # of the budget, for residuals and for own rows' moments
_FIRST_POWER, _LEAST_POWER = 0.03, 0.004  # variance that a component explains, over that of the values
_TIME_POWER = 0.1  # of another mode's, of what a time mode's rows differ from one by
_WEIGHT_POWER = 0.4  # units' entries weigh less at popular levels: by count^-0.4
_TAIL = 3.0  # a product with one more factor has a fourth moment this many times as large


@dataclass(frozen=True)
class Settings:
    """What a fit's public numbers lead to; see :func:`derive`."""

    sweeps: int
    held_sweeps: int
    last_step: float
    residual_clip: float
    feature_clip: float
    unit_clip: float
    bias_weight: float
    bias_share: float
    growth: float


def derive(shape: PublicShape, noise: float) -> Settings:
    """Settings from public numbers alone.

    The thinner the data lie under the noise, the sooner entries are clipped, the fewer rounds there are,
    and the more goes to the biases. Products of three and more factors that may all change take long to
    find their direction from a random start: the step is then held at one for most of the sweeps, and
    there are more. They also have longer tails, which carry what there is to learn, and are clipped
    later.
    """
    calm = 1 / (1 + thinness(shape, noise) / _CALM)
    free = sum(mean == 0 for mean in shape.prior_means(None))
    many, whole_units = free > 2, isinstance(shape.unit, Unit)
    return Settings(
        sweeps=30 if many else 12 if whole_units else round(12 + 8 * calm),
        held_sweeps=20 if many else 1,
        last_step=0.15,
        residual_clip=2.0 if whole_units else 0.7 + 0.6 * calm,
        feature_clip=(0.7 + 0.35 * calm) * sqrt(_TAIL) ** max(0, free - 2),
        unit_clip=0.6,
        bias_weight=1.4 - 0.4 * calm,
        bias_share=0.05 + 0.4 * (1 - calm),
        growth=0.0 if many else 2.0,
    )


class Settled(NamedTuple):
    """Variances of the noise in the sums of levels: of a row's coordinate, and of the bias."""

    rows: Array
    biases: Array


class Step(NamedTuple):
    """One draw: a question and its share of the budget; ``block`` where it is about one."""

    asks: Literal["biases", "scatter", "own", "block"]
    block: int
    share: float
    round: int = 0


@dataclass(frozen=True)
class State:
    """Where a fit is. From the first block on all of it is known, and all of it was released."""

    shape: PublicShape
    known: Known
    steps: tuple[Step, ...]
    biases: BiasState
    model: Multilinear
    blocks: tuple[Block, ...]  # by mode, then the core's
    start: BiasRelease | None = None
    scatter: float = 0.0
    own_turn: Array | None = None  # T: own rows have the covariance T T'
    next_turn: Array | None = None  # the same, from the next round on
    own_key: object = None  # another one in each round
    own_moment: Array | None = None  # of the rows that units solve
    done: int = 0

    @property
    def step(self) -> Step:
        return self.steps[self.done]

    def counts(self, mode: int) -> Array:
        """Entries of each level, as far as is known; weighted where units are clipped as a whole.

        Those of a mode that was not asked about are taken to be equal.
        """
        assert self.start is not None
        counts, size = self.start.counts[mode], self.shape.sizes[mode]
        if counts is not None:
            return counts
        return np.full(size, max(float(c.sum()) for c in self.start.counts if c is not None) / size)

    def bias_variances(self, mode: int) -> Array:
        """Variances of a mode's biases given all that was released of them."""
        assert self.start is not None
        deviations = self.start.deviations[mode]
        asked = np.where(np.isfinite(deviations), deviations, sqrt(self.known.assumed(mode)))
        variances: Array = np.maximum(asked**2, 1e-12 * self.known.spread**2)
        return variances


@dataclass(frozen=True)
class PrivateAlternating:
    """Settings of alternating private fits. Those that are None follow from public numbers.

    Parameters
    ----------
    noise : noise multiplier of all draws together, found from the budget.
    sweeps : times that each block is asked about.
    held_sweeps, last_step : the step is one in the first sweeps, then falls in a line to the last.
    residual_clip : of residuals, in their standard deviations.
    feature_clip : of a design's length, over its root mean square.
    unit_clip : of a unit's whole contribution, over the length of an average one.
    bias_weight : of a bias among the coordinates of a row.
    bias_share : of the budget for the biases before the first sweep.
    growth : share of the last sweep over that of the first, less one.
    prior_mean : what factors shrink towards, by mode; by default 1 for a time mode, else 0.
    """

    noise: float = 1.0
    sweeps: int | None = None
    held_sweeps: int | None = None
    last_step: float | None = None
    residual_clip: float | None = None
    feature_clip: float | None = None
    unit_clip: float | None = None
    bias_weight: float | None = None
    bias_share: float | None = None
    growth: float | None = None
    prior_mean: Mapping[str, float] | None = None

    name: ClassVar[str] = "alternating"
    proof: ClassVar[str] = "proofs/alternating.md"
    proven: ClassVar[bool] = True
    exact: ClassVar[bool] = True

    # -- what will be done: never sees data -----------------------------------------------------

    def settings(self, shape: PublicShape) -> Settings:
        """The settings of a fit: those given, and the others as derived."""
        derived = derive(shape, self.noise)
        given = {name: getattr(self, name) for name in derived.__dataclass_fields__}
        return replace(derived, **{name: value for name, value in given.items() if value is not None})

    def check(self, shape: PublicShape) -> None:
        if isinstance(shape.unit, UnitValues):
            raise SettingError("an alternating fit protects 'value', 'entry' or a mode; use 'bias'")
        if isinstance(shape.unit, Unit) and shape.local is None:
            raise SettingError(
                f"an alternating fit that protects {shape.unit} leaves rows of {shape.unit.mode} with "
                f"their owners: leave {setting('local')} at 'auto', or use the method 'gradient'"
            )
        if not (shape.fit_mean and shape.fit_biases):
            raise SettingError("an alternating fit starts from mean and biases: use method 'gradient'")
        if np.dtype(shape.dtype) != np.float64:
            raise SettingError("an alternating fit computes in float64: leave the dtype out")
        check_positive(noise=self.noise)
        s = self.settings(shape)
        check_count(1, MOST_ROUNDS, sweeps=s.sweeps)
        check_count(0, held_sweeps=s.held_sweeps)
        check_positive(residual_clip=s.residual_clip, feature_clip=s.feature_clip)
        check_positive(unit_clip=s.unit_clip, bias_weight=s.bias_weight)
        check_number(LEAST_SIZE, 1, last_step=s.last_step)
        check_number(growth=s.growth)
        if s.growth <= -1:
            raise wrong("growth", "a number above -1", s.growth)
        check_number(_LEAST_SHARE, 1 - 2 * (_SCATTER_SHARE + _OWN_SHARE), bias_share=s.bias_share)
        shape.prior_means(self.prior_mean, MOST_MEAN)
        model = shape.make_model(shape.sizes, shape.dtype)
        if max(model.shape) * (max(model.ranks) + 1) > MOST_NUMBERS:
            raise SettingError(
                f"a block of more than {MOST_NUMBERS:,} numbers is more than the proof covers: use a "
                "smaller rank"
            )
        self.biases(shape).check(shape)

    def biases(self, shape: PublicShape) -> PrivateBiases:
        """The first part of the fit."""
        return PrivateBiases(self.noise / sqrt(self.settings(shape).bias_share))

    def bias_shape(self, shape: PublicShape) -> PublicShape:
        """As the biases see it: where entries are protected, a local mode is noised like the others."""
        return shape if isinstance(shape.unit, Unit) else replace(shape, local=None)

    def steps(self, shape: PublicShape) -> tuple[Step, ...]:
        """The draws in order, their shares adding up to one."""
        s, own = self.settings(shape), _own(shape) is not None
        first = self.biases(shape).steps(self.bias_shape(shape))
        steps = [Step("biases", 0, s.bias_share * step.share) for step in first]
        steps.append(Step("scatter", 0, _SCATTER_SHARE))
        rest = 1 - s.bias_share - _SCATTER_SHARE - _OWN_SHARE * own
        shares = _block_shares(shape, shape.prior_means(self.prior_mean))
        rounds = 1 + s.growth * np.linspace(0, 1, s.sweeps)
        for number, weight in enumerate(rounds / rounds.sum()):
            if own:
                steps.append(Step("own", 0, _OWN_SHARE / s.sweeps, number))
            steps += [Step("block", b, rest * weight * f, number) for b, f in shares.items()]
        return tuple(steps)

    def charges(self, shape: PublicShape) -> tuple[Charge, ...]:
        steps, biases = self.steps(shape), self.biases(shape).charges(self.bias_shape(shape))
        rest = [
            Charge(_label(shape, step), Gaussian(self.noise / sqrt(step.share)))
            for step in steps[len(biases) :]
        ]
        return (*biases, *rest)

    def rounds(self, shape: PublicShape) -> int:
        return len(self.steps(shape))

    def assumes(self, shape: PublicShape) -> tuple[str, ...]:  # noqa: ARG002
        return ()

    def in_words(self, shape: PublicShape) -> tuple[str, ...]:
        """The settings, for a person."""
        s = self.settings(shape)
        clipped = f"residuals clipped at {s.residual_clip:.2g} of their spread"
        if isinstance(shape.unit, Unit):
            clipped = f"what one {shape.unit.mode} adds clipped at {s.unit_clip:.2g} of its usual length"
        return (f"{s.sweeps} rounds, steps falling from 1 to {s.last_step:.2g}; {clipped}",)

    def settled_noise(
        self, shape: PublicShape, counts: Sequence[Array], rank: int
    ) -> dict[int, Settled]:
        """Variances of the noise that the rounds leave in each level's sums, were these the counts.

        By mode that is asked about, over the variance of the residuals. ``counts`` are weighted as
        those of :class:`PrivateBiases`, and their noise is what these leave in them.
        """
        s, whole = self.settings(shape), isinstance(shape.unit, Unit)
        change = s.residual_clip * sqrt(s.feature_clip**2 * rank + s.bias_weight**2)
        if whole:
            change = s.unit_clip * sqrt(rank + s.bias_weight**2)
        elif shape.unit is not None and shape.unit.replaces:
            change *= 2
        asked = {
            step.mode: self.noise / sqrt(step.share * s.bias_share)
            for step in self.biases(shape).steps(self.bias_shape(shape))
            if step.asks == "counts"
        }
        variances = dict.fromkeys(
            [b for b in _block_shares(shape, shape.prior_means(self.prior_mean)) if b != CORE], 0.0
        )
        for step in self.steps(shape):
            if step.asks == "block" and step.block in variances:
                length = self._step_length(shape, step.round)
                noise = (length * self.noise * change) ** 2 / step.share
                variances[step.block] = (1 - length) ** 2 * variances[step.block] + noise
        left = {}
        for mode, variance in variances.items():
            weights = (
                _level_weights(counts[mode], asked.get(mode, 0.0))
                if whole
                else np.ones(shape.sizes[mode])
            )
            left[mode] = Settled(variance / weights**2, variance / (weights * s.bias_weight) ** 2)
        return left

    # -- the loop -------------------------------------------------------------------------------

    def init(self, seed: int, shape: PublicShape) -> State:
        self.check(shape)
        biases = self.biases(shape).init(seed, self.bias_shape(shape))
        model = _start(shape, seed, shape.prior_means(self.prior_mean))
        blocks = (Block(),) * (model.order + 1)
        own = _own(shape)
        turn = None if own is None else np.eye(model.ranks[own])
        return State(
            shape,
            biases.known,
            self.steps(shape),
            biases,
            model,
            blocks,
            own_turn=turn,
            own_key=object(),
        )

    def ask(self, state: State) -> Any:
        step = state.step
        if step.asks == "biases":
            return self.biases(state.shape).ask(state.biases)
        if step.asks == "scatter":
            return ScatterQuery(state.known, state.model, _most_scatter(state.known))
        if step.asks == "own":
            return OwnQuery(state.model, _owners(state), sqrt(state.model.ranks[state.shape.local or 0]))
        assert state.shape.unit is not None
        owners = None if _own(state.shape) is None else _owners(state)
        _, features, weighting = self._query(state, step.block)
        return BlockQuery(state.shape.unit, state.model, step.block, features, weighting, owners)

    def answer(self, query: Any, site: Site, draw: Draw) -> Any:
        if isinstance(query, ScatterQuery):
            return draw.release(scatter_statistics(query, site))
        if isinstance(query, OwnQuery):
            return draw.release(own_statistics(query, site))
        if isinstance(query, BlockQuery):
            return draw.release(block_statistics(query, site))
        return PrivateBiases().answer(query, site, draw)

    def update(self, state: State, released: Any) -> tuple[State, Info]:
        step = state.step
        if step.asks == "biases":
            biases, info = self.biases(state.shape).update(state.biases, released)
            state = replace(state, biases=biases)
            if state.steps[state.done + 1].asks != "biases":
                state = _begin(state)
            return replace(state, done=state.done + 1), replace(info, completed=0)
        if step.asks == "scatter":
            state = replace(state, scatter=_read_scatter(state, released))
        elif step.asks == "own":
            state = _read_own_moment(state, released)
        else:
            state = self._moved(state, step, released)
        done = state.done + 1
        finished = step.round + (done == len(state.steps) or state.steps[done].round > step.round)
        info = Info(finished if step.asks == "block" else step.round, noise=released.deviation)
        return replace(state, done=done), info

    def finish(self, state: State) -> Multilinear:
        model, local = state.model.copy(), state.shape.local
        if local is not None:
            model.rows[model.span(local)] = 0
            model.biases[model.span(local)] = 0
        return model

    def own_prior(self, state: State) -> OwnPrior | None:
        local = state.shape.local
        if local is None:
            return None
        doubts = [block.level_doubts for block in state.blocks[:-1]]
        doubts[local] = None
        if _own(state.shape) is None:
            state = replace(state, own_turn=_root(_moments(state)[local]))
        return replace(_own_prior(state), doubts=tuple(doubts))

    # -- blocks ---------------------------------------------------------------------------------

    def _step_length(self, shape: PublicShape, number: int) -> float:
        s = self.settings(shape)
        falling = max(0, number + 1 - s.held_sweeps) / max(1, s.sweeps - s.held_sweeps)
        return 1 - (1 - s.last_step) * min(1.0, falling)

    def _query(self, state: State, block: int) -> tuple[Coordinates | None, Features, Weighting | None]:
        """How a block is asked: in which coordinates, clipped and weighted how."""
        s, model, shape = self.settings(state.shape), state.model, state.shape
        spread = sqrt(state.scatter)
        if block == CORE:  # rows are white when it is asked, and so is their product
            coordinates, size = None, model.free_core.size
            metric, bias = np.ones((1, size)), 0.0
        else:
            moment, size = model.design_moment(block, _moments(state)), model.ranks[block]
            rows = model.factors[block] - shape.prior_means(self.prior_mean)[block]
            coordinates = coordinates_of(moment, rows, state.counts(block))
            metric, bias = coordinates.designs, s.bias_weight
        target = s.residual_clip * spread
        features = Features(padded_metric(metric), s.feature_clip * sqrt(size), target, bias)
        if _own(shape) is None:
            return coordinates, features, None
        usual = sqrt(size + bias**2) * spread
        levels = np.ones(1)
        if block != CORE:
            assert state.start is not None
            levels = _level_weights(state.counts(block), state.start.count_deviations[block])
        return coordinates, features, Weighting(levels, state.known.ridge, s.unit_clip * usual)

    def _moved(self, state: State, step: Step, noisy: Noisy) -> State:
        """The state with a block moved by its noisy sums."""
        coordinates, features, weighting = self._query(state, step.block)
        blocks, model = list(state.blocks), state.model
        weights = np.ones(noisy.values.shape[0]) if weighting is None else weighting.levels
        sums, noise = noisy.values / weights[:, None], (noisy.deviation / weights) ** 2
        length = self._step_length(state.shape, step.round)
        if coordinates is None:
            moved = _moved_core(state, length, sums, noise)
            model.free_core[:] = moved.rows[0]
        else:
            mode = step.block
            home = state.shape.prior_means(self.prior_mean)[mode]
            rows = (model.factors[mode] - home) @ coordinates.rows
            move = _move(state, mode, length, rows, noise, features.bias, timed=home != 0)
            biases = model.mode_biases[mode]
            moved = move.by_gradients(rows, biases, sums, blocks[mode])
            model.factors[mode][:] = home + moved.rows @ coordinates.designs.T
            biases[:] = moved.biases
        if not (np.isfinite(model.rows).all() and np.isfinite(model.free_core).all()):
            raise DivergedError("the private fit left the range of floating-point numbers")
        blocks[step.block] = moved.block
        state = replace(state, model=_white_for_core(state, model), blocks=tuple(blocks))
        last = state.done + 1 == len(state.steps) or state.steps[state.done + 1].round > step.round
        return replace(state, own_turn=state.next_turn, own_key=object()) if last else state


# -- what is public -------------------------------------------------------------------------------


def _own(shape: PublicShape) -> int | None:
    """The mode whose rows are solved by their owners in every round, if any."""
    return shape.local if isinstance(shape.unit, Unit) else None


def _block_shares(shape: PublicShape, means: list[float]) -> dict[int, float]:
    """Which blocks are asked about, in order, and their shares of a round.

    Modes with a prior mean come last: the first of the others starts at zero, where their designs are
    zero too and say nothing.
    """
    weights = {}
    for m in sorted(range(len(means)), key=lambda m: means[m] != 0):
        if m != _own(shape):
            timed = shape.modes[m].bin is not None
            weights[m] = _LOCAL_SHARE if m == shape.local else _TIME_SHARE if timed else 1.0
            weights[m] *= sqrt(shape.sizes[m])  # the more levels, the fewer entries each has
    if shape.make_model(shape.sizes, shape.dtype).free_core.size:
        weights[CORE] = _CORE_SHARE * float(np.mean(list(weights.values())))
    whole = sum(weights.values())
    return {block: weight / whole for block, weight in weights.items()}


def _label(shape: PublicShape, step: Step) -> str:
    if step.asks == "scatter":
        return "squared residuals"
    if step.asks == "own":
        return "second moment of own rows"
    return "sums of the core" if step.block == CORE else f"sums by {shape.modes[step.block].name}"


def _start(shape: PublicShape, seed: int, means: list[float]) -> Multilinear:
    """Random signs, since products of normal numbers would have long tails, and be clipped.

    Rows of the block that is solved first start at zero; own rows play no part.
    """
    model, generator, own = (
        shape.make_model(shape.sizes, shape.dtype),
        start_generator(seed),
        _own(shape),
    )
    free = [m for m in range(model.order) if m != own and means[m] == 0]
    for m, factor in enumerate(model.factors):
        drawn = generator.standard_normal(factor.shape)
        if m not in free:
            factor[:] = means[m]
        elif m != free[0] or own is not None:
            factor[:] = np.sign(drawn)
    core = model.free_core
    core[:] = generator.standard_normal(core.shape)
    core /= max(float(np.linalg.norm(core)), 1.0)
    if own is not None and free:  # own rows are taken to have variance one: others have the scale
        known = Known(shape, 1.0, pure=False)
        model.rows[model.span(free[0])] *= sqrt(_FIRST_POWER) * known.spread
    return model


# -- from biases to blocks ------------------------------------------------------------------------


def _begin(state: State) -> State:
    """Go on from the biases that were released."""
    start, own = state.biases.release, _own(state.shape)
    model = state.model.with_mean(start.mean)
    for m, biases in enumerate(start.biases):
        model.mode_biases[m][:] = 0 if m == own else biases
    return replace(state, start=start, model=model)


def _most_scatter(known: Known) -> float:
    return (2 * known.spread) ** 2


def _read_scatter(state: State, noisy: Noisy) -> float:
    """Variance of what biases leave: as released, or as assumed where noise drowns it."""
    known, sizes = state.known, state.shape.sizes
    if known.unit_mode is None:  # the counts with the least noise in their sum
        mode = int(np.argmin(sizes))
        number = float(state.counts(mode).sum())
    else:
        number = max(1.0, float(noisy.values[1]) / _most_scatter(known))
    error = noisy.deviation / number
    kept = known.scatter**2 / (known.scatter**2 + error**2)
    guess = known.scatter + kept * (float(noisy.values[0]) / number - known.scatter)
    return float(np.clip(guess, 0.05 * known.scatter, 3 * known.scatter))


# -- own rows -------------------------------------------------------------------------------------


def _own_prior(state: State) -> OwnPrior:
    """What rows of the local mode are expected to be."""
    local = state.shape.local
    assert local is not None
    return OwnPrior(
        mode=local,
        precisions=np.ones(state.model.ranks[local]),
        turn=state.own_turn,
        bias_precision=1 / state.known.assumed(local),
        scatter=state.scatter,
    )


def _owners(state: State) -> Owners:
    return Owners(_own_prior(state), state.own_key)


def _read_own_moment(state: State, noisy: Noisy) -> State:
    """Take over the second moment of own rows, and what it says about the rows themselves.

    A ridge solution is smaller than the row that it is a guess of, by what is not known of it. That is
    made up for, or rows would shrink from round to round: given its n entries, coordinates with prior
    variance one have the posterior variance (1 + n S / scatter)^-1.

    It comes into force with the next round: a round's blocks have the rows whose moment was asked for,
    and they are solved once.
    """
    own, turn = _own(state.shape), state.own_turn
    assert own is not None
    assert turn is not None
    rank = turn.shape[0]
    number = max(1.0, float(noisy.values[-1]) / rank)
    variances, axes = np.linalg.eigh(symmetric(noisy.values[:-1], rank) / number)
    # Of coordinates with variance one, known in part: beyond these limits it is noise.
    solved = (axes * np.clip(variances, 0.02, 2.0)) @ axes.T
    state = replace(state, own_moment=turn @ solved @ turn.T)
    design = turn.T @ state.model.design_moment(own, _moments(state)) @ turn
    unknown = np.linalg.inv(np.eye(rank) + _entries_of_unit(state) * design / state.scatter)
    return replace(state, next_turn=_limited(turn @ _root(solved + unknown)))


def _limited(turn: Array) -> Array:
    """Within limits that no data reach: under much noise it would drift to where it has no inverse."""
    if not np.isfinite(turn).all():
        raise DivergedError("the private fit left the range of floating-point numbers")
    left, sizes, right = np.linalg.svd(turn)
    limited: Array = (left * np.clip(sizes, 1e-3, 1e3)) @ right
    return limited


def _root(moment: Array) -> Array:
    """A matrix T with T T' = moment, directions that hardly occur made up for."""
    variances, axes = np.linalg.eigh(moment)
    root: Array = axes * np.sqrt(np.maximum(variances, 1e-3 * variances[-1] + 1e-300))
    return root


def _entries_of_unit(state: State) -> float:
    """Entries of an average unit: public, or from its weighted counts, which add up to their root."""
    own = _own(state.shape)
    assert own is not None
    units, entries = state.shape.sizes[own], state.shape.entries
    if entries is not None:
        return entries / units
    return float(max(state.counts(m).sum() for m in state.known.shared) / units) ** 2


# -- blocks ---------------------------------------------------------------------------------------


def _moments(state: State) -> list[Array]:
    """Second moment of each mode's rows, by entry."""
    moments = [weighted_moment(f, state.counts(m)) for m, f in enumerate(state.model.factors)]
    own = _own(state.shape)
    if own is not None and state.own_moment is not None:
        moments[own] = state.own_moment
    return moments


def _level_weights(counts: Array, deviation: float) -> Array:
    """Less for popular levels, whose rows need less; an average entry's is one.

    Not above what noise of this deviation leaves visible of a count.
    """
    weights = np.maximum(counts, deviation) ** -_WEIGHT_POWER
    normed: Array = weights / sqrt(counts @ weights**2 / counts.sum())
    return normed


def _move(
    state: State, mode: int, length: float, rows: Array, noise: Array, bias_weight: float, *, timed: bool
) -> Move:
    """A step of a mode's rows. How much they explain is learnt from them.

    What is not known of them counts as well, or rows would shrink from round to round; but a time
    mode's are taken for one unless they stand out.
    """
    assert state.start is not None
    counts, block, unit = state.counts(mode), state.blocks[mode], state.known.spread**2
    scale = unit * (_TIME_POWER if timed else 1.0)
    power = np.full(rows.shape[1], _FIRST_POWER * scale)
    if block.doubts is not None:
        seen = counts @ rows**2 / counts.sum() + (0.0 if timed else block.doubts)
        power = np.maximum(seen, _LEAST_POWER * scale)
    return Move(
        step=length,
        counts=counts,
        scatter=state.scatter * entry_weight(state.known, counts),
        power=power,
        noise=noise,
        bias_weight=bias_weight,
        bias_means=state.start.biases[mode],
        bias_variances=state.bias_variances(mode),
    )


def _moved_core(state: State, length: float, sums: Array, noise: Array) -> Moved:
    """A core moves like the one row of a mode whose only level has all entries."""
    core, mode = state.model.free_core[None, :], int(np.argmin(state.shape.sizes))
    total = state.counts(mode).sum(keepdims=True)
    if _own(state.shape) is not None:  # each unit counts about once
        total = np.array([float(state.shape.sizes[_own(state.shape) or 0])])
    least = _LEAST_POWER * state.known.spread**2
    power = np.full(core.shape[1], max(float(np.mean(core**2)), least))
    none = np.zeros(1)
    move = Move(length, total, state.scatter, power, noise, 0.0, none, none)
    return move.by_gradients(core, none, sums, state.blocks[CORE])


def _white_for_core(state: State, model: Multilinear) -> Multilinear:
    """Before the core is asked about, rows of all modes are made white: then so is their product."""
    after = state.done + 1
    if after >= len(state.steps) or (state.steps[after].asks, state.steps[after].block) != (
        "block",
        CORE,
    ):
        return model
    moved = replace(state, model=model)
    for mode, moment in enumerate(_moments(moved)):
        if mode != _own(state.shape):
            model = model.turned(mode, np.linalg.inv(_root(moment)).T)
    return model
