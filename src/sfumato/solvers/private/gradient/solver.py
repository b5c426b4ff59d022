"""Private gradient descent: clipped gradients of random batches, with Gaussian noise.

Two kinds of questions are put to the data:

1. counts and sums of every level, once: they give the mean, the biases, how far values lie from
   them, and about how many entries each row has;
2. steps, in which each unit takes part independently with probability ``rate``. Its gradients of all
   parameters, at the same iterate, are clipped jointly, and noise goes on every coordinate. By
   default all units take part: sums of whole numbers, with noise from exact samplers.

Everything else comes from public numbers and from what was released before: the step of a row is
about one over its noisy count, the metric in which gradients are clipped evens out the modes, and
the ridge grows with the known noise, so that with little budget a fit falls back to the biases and
these to a constant. What is private, for whom and why: proofs/gradient.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import inf, log1p, sqrt
from typing import Any, ClassVar

import numpy as np

from sfumato.checks import (
    MOST_ROUNDS,
    check_count,
    check_kind,
    check_number,
    check_positive,
    check_share,
)
from sfumato.errors import SettingError
from sfumato.kernels.grid import MOST_NUMBERS
from sfumato.kernels.numba.private_moves import Moves, make_paces, noise_after
from sfumato.kernels.numba.simd import aligned_zeros
from sfumato.models.multilinear import Multilinear
from sfumato.models.own_prior import OwnPrior, RowNoise
from sfumato.models.shape import Shape
from sfumato.privacy.facts import Facts
from sfumato.privacy.ledger import Charge
from sfumato.privacy.mechanisms import Gaussian, Mechanism, PoissonGaussian
from sfumato.privacy.units import UnitValues, Value
from sfumato.records import record
from sfumato.solvers.private.gradient.levels import LevelsQuery, Start, read_levels
from sfumato.solvers.private.gradient.pacing import LEAST_POWER, Pacing, core_moves
from sfumato.solvers.private.gradient.steps import (
    GradientQuery,
    Gradients,
    StepsQuery,
    moved,
    scale_of,
)
from sfumato.solvers.private.passes import PrivatePasses
from sfumato.solvers.protocol import MOST_MEAN, Finished, Info, Run, Silent, Wish, start_generator
from sfumato.types import Array

_CELLS = 4096  # public random cells at which designs are measured
_LEAST_SHARE = 1e-9  # of the budget: with less, noise leaves the range of double precision


@dataclass(frozen=True)
class Beginning:
    """Before anything is known of the levels."""

    facts: Facts
    seed: int
    model: Multilinear


@dataclass(frozen=True)
class State:
    """From the first step on; all of it was released.

    ``moves`` are those of the coming pass, at the end of the last one. ``variance`` is that of the noise
    in each row, in their metric.
    """

    facts: Facts
    seed: int
    model: Multilinear  # explains (value - mean) / spread
    start: Start
    cells: Array
    moves: Moves
    variance: Array
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


def derive(facts: Facts, noise: float) -> Settings:
    """Settings from public numbers alone, found on invented ratings.

    The thinner the data under the noise (see :meth:`Facts.thinness`), the smaller the steps, the sooner
    gradients are clipped, and the more goes to mean and biases. A pass is one step with all units: at
    the same cost in privacy smaller batches have as much noise in them, and the variance of the choice
    besides. They take fewer visits to come as far, so a rate may be given.

    Shares may depend on the noise because more noise still means more noise in every question.
    """
    entries, thin, calm = facts.expected_entries, facts.thinness(noise), facts.calm(noise)
    return Settings(
        passes=60,
        rate=1.0,
        clip=0.8 + 0.6 * calm,
        step=min(0.5, 1.5 / len(facts.sizes)) * calm**0.75,
        last_step=0.1 * calm**0.75,
        levels_share=0.08 + 0.5 * thin / (thin + 0.1),
        bias_share=0.15 + 0.25 * (1 - calm) if facts.shape.fit_biases else 0.0,
        typical=max(4.0, entries / facts.expected_units / 4),
    )


@record
@dataclass(frozen=True)
class PrivateSGD(Silent):
    """Settings of private gradient descent. Those that are None follow from public numbers.

    Parameters
    ----------
    noise : float
        Scales all noise: one Gaussian query that spent the whole budget would have this noise
        multiplier. Found by calibration.
    passes : int or None
        Expected visits to each entry.
    rate : float or None
        Probability with which a unit takes part in a step; a pass has 1 / rate steps.
    clip : float or None
        Norm to which a unit's gradient is clipped, in spreads of what the biases leave.
    step, last_step : float or None
        Of a pass, as shares of a Newton step; it falls geometrically.
    levels_share : float or None
        Of the budget for counts and sums of levels; the steps get the rest.
    bias_share : float or None
        Of a typical gradient's squared length for the biases.
    typical : float or None
        Units (not entries) with more entries than this weigh theirs by sqrt(typical / entries).
    prior_mean : mapping or None
        What factors shrink towards, by mode; by default 1 for a time mode, else 0.
    start : model or None
        A released bias predictor to start from; its own stage is then left out.

    Examples
    --------
    >>> import sfumato as sf
    >>> modes = [sf.Mode("user", 1000), sf.Mode("item", 200)]
    >>> public = sf.Public(labels=True, units=1000, entries=50_000)
    >>> method = sf.PrivateSGD(passes=4, rate=0.5)
    >>> privacy = sf.Privacy(3, 1e-6, unit="user", public=public, method=method)
    >>> plan = sf.CP(rank=2, privacy=privacy).plan(modes, bounds=(1, 5))
    >>> print(plan.explain())
    user 1,000 x item 200: CP of rank 2 with a mean and biases, float64; gradient
        perturbation, within epsilon 3, delta 1e-06 for all entries of one user,
        their presence included.
      1 x levels: Gaussian, noise multiplier 3.19
      4 x gradient steps: Poisson Gaussian, noise multiplier 2.81, rate 0.5, steps 2
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

    @property
    def exact(self) -> bool:
        """Whether steps are of all units, so that their noise is drawn outside of kernels."""
        return self.rate in (None, 1)  # a rate that is not given is one, see derive

    # -- what will be done: never sees data -----------------------------------------------------

    def settings(self, facts: Facts) -> Settings:
        """The settings of a fit: those given, and the others as derived."""
        derived = derive(facts, self.noise)
        given = {name: getattr(self, name) for name in derived.__dataclass_fields__}
        return replace(derived, **{name: value for name, value in given.items() if value is not None})

    def check(self, facts: Facts) -> None:
        if isinstance(facts.unit, UnitValues):
            raise SettingError(
                "private gradient descent protects 'value', 'entry' or a mode; for several values of a "
                "level use input perturbation, or the mode itself"
            )
        check_positive(noise=self.noise)
        s = self.settings(facts)
        check_count(1, MOST_ROUNDS, passes=s.passes)
        check_positive(clip=s.clip, typical=s.typical)
        check_number(1e-9, 1, rate=s.rate)
        check_share(step=s.step, last_step=s.last_step)
        check_number(_LEAST_SHARE, 1 - _LEAST_SHARE, levels_share=s.levels_share)
        check_share(True, bias_share=s.bias_share)
        facts.shape.prior_means(self.prior_mean, MOST_MEAN)
        numbers = sum(n * (r + 1) for n, r in zip(facts.sizes, facts.shape.ranks, strict=True))
        if numbers > MOST_NUMBERS:
            raise SettingError(
                f"a model of more than {MOST_NUMBERS:,} numbers is more than the proof covers: use a "
                "smaller rank"
            )
        if self.start is not None:
            check_kind(Start, "the Start of a released bias predictor", start=self.start)

    def step_multiplier(self, facts: Facts) -> float:
        """Noise multiplier of a step, so that all of them cost about what the levels leave.

        Without sampling that is exact. With it, by the central limit theorem of Gaussian differential
        privacy (Bu, Dong, Long and Su 2020); calibration makes up for what that leaves out.
        """
        s = self.settings(facts)
        share = 1.0 if self.start is not None else 1 - s.levels_share
        change = 2 if facts.unit.replaces else 1
        steps = s.passes * s.steps_per_pass
        if s.rate == 1:
            return change * self.noise * sqrt(steps / share)
        information = share / (steps * (change * s.rate * self.noise) ** 2)
        return 1 / sqrt(log1p(information))

    def charges(self, facts: Facts) -> tuple[Charge, ...]:
        s = self.settings(facts)
        multiplier, replaces = self.step_multiplier(facts), facts.unit.replaces
        step: Mechanism
        if self.exact:  # the multiplier is that of one contribution; a replaced one changes twice that
            step = Gaussian(multiplier / (2 if replaces else 1))
        else:
            step = PoissonGaussian(multiplier, s.rate, s.steps_per_pass, replaces)
        steps = (Charge("gradient steps", step),) * s.passes
        if self.start is not None:
            return steps
        return Charge("levels", Gaussian(self.noise / sqrt(s.levels_share))), *steps

    def rounds(self, facts: Facts) -> int:
        return len(self.charges(facts))

    def adds_up(self, facts: Facts) -> bool:
        return self.settings(facts).rate == 1  # samples are drawn, and noised, as a kernel goes

    def assumes(self, facts: Facts) -> tuple[str, ...]:  # noqa: ARG002
        if self.start is None:
            return ()
        return ("the bias predictor that it starts from is public, or was paid for elsewhere",)

    # -- the loop -------------------------------------------------------------------------------

    def init(self, run: Run, facts: Facts) -> Beginning | State:
        self.check(facts)
        # Sums are exact in double precision, whatever a model is to be kept in.
        shape = replace(facts.shape, dtype="float64") if self.exact else facts.shape
        model, own = shape.zeros(), facts.own
        generator = start_generator(run.seed)
        means = facts.shape.prior_means(self.prior_mean)
        free = [m for m in range(model.order) if means[m] == 0 and m != own] or [0]
        for m, factor in enumerate(model.factors):
            # One factor starts near zero: the product does, and the metric evens out the scales.
            scale = 0.03 if m == free[0] else 1.0 if m in free else 0.1
            if own is not None:  # own rows, of size one, are solved from the others
                scale = 0.0 if m == own else 0.2 if m in free else 0.1
            factor[:] = means[m] + scale * generator.standard_normal(factor.shape)
        model.free_core[:] = generator.standard_normal(model.free_core.shape)
        beginning = Beginning(facts, run.seed, model)
        return beginning if self.start is None else self._begun(beginning, self.start)

    def ask(self, state: Beginning | State) -> LevelsQuery | GradientQuery | StepsQuery:
        facts = state.facts
        s = self.settings(facts)
        if isinstance(state, Beginning):
            return LevelsQuery(facts, s.typical)
        start, own = state.start, facts.own
        bias_ridge = 1.0 if own is None else start.spread**2 / float(start.bias_variance[own])
        gradients = Gradients(
            state.model,
            state.moves,
            scale_of(facts, start, state.model.dtype.type),
            facts.unit_mode,
            facts.local,
            facts.shape.fit_biases,
            s.clip,
            s.typical,
            (1.0, bias_ridge),
        )
        if self.exact:
            return GradientQuery(gradients, facts.unit.replaces)
        return StepsQuery(gradients, s.rate)

    def update(self, state: Beginning | State, released: Any) -> tuple[State, Info]:
        facts = state.facts
        if isinstance(state, Beginning):
            return self._begun(state, read_levels(facts, released)), Info(0)
        s, done, model = self.settings(facts), state.done + 1, state.model
        if self.exact:
            model = moved(model, state.moves, released.values, facts.own, facts.shape.fit_biases)
        else:
            model = released.model
        variance = noise_after(state.moves.paces, s.steps_per_pass, state.variance)
        state = replace(state, model=model, variance=variance, done=done)
        if done < s.passes:
            state = self._prepared(state)
        return state, Info(done, noise=self.step_multiplier(facts))

    def finish(self, state: State) -> Finished[Multilinear]:
        start, local = state.start, state.facts.local
        model = state.model.copy().with_mean(start.mean)
        model.rows[model.span(_unit_carrier(state.facts))] *= start.spread
        model.biases[:] *= start.spread
        if local is not None:
            model.rows[model.span(local)] = 0
            model.biases[model.span(local)] = 0
        own_prior = None if local is None else self._own_prior(state, local)
        return Finished(_in_precision(model, state.facts.shape), own_prior=own_prior)

    def _own_prior(self, state: State, mode: int) -> OwnPrior:
        facts, start, model = state.facts, state.start, state.model
        home = facts.shape.prior_means(self.prior_mean)[mode]
        power = np.ones(model.ranks[mode])
        if not facts.whole_units:  # trained with noise: how large rows are is known
            power = np.mean((model.factors[mode][state.cells[mode]] - home) ** 2, axis=0)
        fits_biases = facts.shape.fit_biases
        return OwnPrior(
            mode=mode,
            precisions=1 / np.maximum(power, 1e-6),
            mean=home,
            bias_precision=1 / float(start.bias_variance[mode]) if fits_biases else inf,
            scatter=start.spread**2,
            row_noise=_row_noise(state, mode),
        )

    # -- steps ----------------------------------------------------------------------------------

    def _begun(self, beginning: Beginning, start: Start) -> State:
        """Go on from a bias predictor: choose the cells at which designs will be measured."""
        generator, model = np.random.default_rng([beginning.seed, 1]), beginning.model
        cells = []
        for m, size in enumerate(model.shape):
            share = np.maximum(start.counts[model.span(m)], 1e-9)
            cells.append(generator.choice(size, _CELLS, p=share / share.sum()))
        model.biases[:] = start.biases / start.spread
        at = np.array(cells)
        moves = self._moves(beginning.facts, beginning.seed, model, start, at, 0)
        variance = np.zeros(model.rows.shape[0])
        return State(beginning.facts, beginning.seed, model, start, at, moves, variance)

    def _prepared(self, state: State) -> State:
        """Settle how the parameters move in the next pass; post-processing of what was released."""
        parts = state.facts, state.seed, state.model, state.start, state.cells, state.done
        return replace(state, moves=self._moves(*parts))

    def _moves(
        self, facts: Facts, seed: int, model: Multilinear, start: Start, cells: Array, done: int
    ) -> Moves:
        s, own = self.settings(facts), facts.own
        part = done / max(1, s.passes - 1)
        pass_step = s.step * (s.last_step / s.step) ** part
        pacing = Pacing(pass_step / s.steps_per_pass, s.rate, self.step_multiplier(facts) * s.clip)
        means = facts.shape.prior_means(self.prior_mean)
        seen = model if own is None else _with_own_rows(model, cells, start, own, means, seed)
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
            power = max(LEAST_POWER, float(np.mean(size * curvature)))
            home[m, :rank] = means[m]
            square[m, :rank] = block_share / rank / curvature
            row[:, span] = pacing.paces(start.counts[span], block_share / rank, power)
            if facts.shape.fit_biases:
                spread = float(start.bias_variance[m]) / start.spread**2
                bias[:, span] = pacing.paces(start.counts[span], bias_square, spread)
        bias_home = (start.biases / start.spread).astype(number)
        core = core_moves(seen, cells, start, pacing, block_share)
        paces = make_paces(row, bias)
        return Moves(paces, square, home, bias_home, number.type(bias_square), core)


def _in_precision(model: Multilinear, shape: Shape) -> Multilinear:
    """The model in the precision that its shape asks for."""
    made = shape.zeros().with_mean(model.mean)
    for to, of in zip(made.factors, model.factors, strict=True):
        to[:] = of
    made.biases[:], made.free_core[:] = model.biases, model.free_core
    return made


def _row_noise(state: State, own: int) -> tuple[RowNoise | None, ...]:
    """Variances of the noise in the released rows; it adds to the penalty of own rows."""
    model, square, spread = state.model, state.moves.square, state.start.spread
    carrier = _unit_carrier(state.facts)
    return tuple(
        None
        if m == own
        else RowNoise(
            state.variance[model.span(m)],
            square[m, : model.ranks[m]] * (spread**2 if m == carrier else 1.0),
        )
        for m in range(model.order)
    )


def _with_own_rows(
    model: Multilinear, cells: Array, start: Start, own: int, means: list[float], seed: int
) -> Multilinear:
    """The model with made-up own rows, of the size that ridge solutions have on average."""
    others = [m for m in range(model.order) if m != own]
    powers = [np.mean((model.factors[m][cells[m]] - means[m]) ** 2) for m in others]
    per_unit = start.counts[model.span(others[0])].sum() / model.shape[own]
    known = per_unit * float(np.mean(powers))
    drawn = np.random.default_rng([seed, 2]).standard_normal(model.factors[own].shape)
    filled = model.copy()
    filled.factors[own][:] = means[own] + sqrt(known / (known + 1)) * drawn
    return filled


def _unit_carrier(facts: Facts) -> int:
    """The mode whose rows carry the values' unit in the finished model: the first that is released."""
    return 1 if facts.local == 0 else 0


def make(facts: Facts, wish: Wish) -> PrivateSGD | PrivatePasses:
    """The solver of the method "gradient": minibatches, or single steps for values and pure epsilon."""
    if wish.law in ("residual", "vector"):
        return PrivatePasses(noise_law=wish.law)  # type: ignore[arg-type]
    if not wish.budget.pure:
        return PrivateSGD()
    if isinstance(facts.unit, Value) and wish.law == "auto":
        return PrivatePasses()
    raise SettingError(
        "gradient perturbation of minibatches gives no pure epsilon: name a delta, such as 1e-6, or use "
        "the method 'bias'"
    )
