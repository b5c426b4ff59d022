"""Private Langevin dynamics for relations that share modes: noisy steps of all factors together.

Every mode has one factor, whichever relations have it; every relation a mean and biases. In turn:

1. private biases of each relation, and about how many entries each level has (``beginning.py``);
2. steps of stochastic gradient Langevin dynamics (B. Ermis, "Bayesian approaches for privacy preserving
   data sharing", Chapter 4), in which every unit takes part independently with probability ``rate``. Its
   gradients by all released parameters of all relations are clipped together, once; noise goes on every
   row of every mode in every step. By default all units take part: sums of whole numbers, with noise
   from exact samplers.

The prior is added outside of the clip, once. Steps are those of a data-independent metric, made of noisy
counts and released iterates. The noise of a row is what privacy asks for, or what samples from the
posterior need where that is more; never both. The ratio of the two is the temperature of a row's chain.
The ridge grows with the known noise, so that with little budget a fit falls back to the biases. The
model is the average of the last steps' iterates. What is private, for whom and why: proofs/langevin.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import log1p, sqrt
from typing import Any, ClassVar, get_args

import numpy as np

from sfumato.checks import (
    MOST_ROUNDS,
    check_choice,
    check_count,
    check_number,
    check_positive,
    check_share,
    given,
)
from sfumato.errors import SettingError
from sfumato.kernels.grid import MOST_NUMBERS
from sfumato.kernels.numba.private_langevin import Owned
from sfumato.models.own_prior import OwnPrior, RowNoise
from sfumato.models.posterior import Family
from sfumato.models.several import Several
from sfumato.privacy.accounting import gaussian_multiplier
from sfumato.privacy.budgets import Budget
from sfumato.privacy.facts import CoupledFacts
from sfumato.privacy.ledger import Charge
from sfumato.privacy.mechanisms import Gaussian, Mechanism, PoissonGaussian
from sfumato.privacy.units import UnitValues
from sfumato.records import record
from sfumato.solvers.private.biases import prefers_laplace
from sfumato.solvers.private.langevin.beginning import Beginning, Begun, First, entry_weight
from sfumato.solvers.private.langevin.joint import Joint
from sfumato.solvers.private.langevin.kept_iterates import PrivateSamples
from sfumato.solvers.private.langevin.langevin_steps import (
    RandomStepsQuery,
    SlopeQuery,
    Slopes,
    extra_shaking,
)
from sfumato.solvers.private.langevin.pace import (
    Pace,
    Stepping,
    draw_cells,
    make_pace,
    moved,
)
from sfumato.solvers.private.langevin.settings import Settings, derive, thinness
from sfumato.solvers.private.langevin.state import (
    Average,
    State,
    averaged,
    own_precision,
    started,
    with_own_rows,
)
from sfumato.solvers.private.of_relation import OfRelation
from sfumato.solvers.protocol import DivergedError, Finished, Info, Run, Wish
from sfumato.types import Array

_LEAST_SHARE = 1e-9  # of the budget: with less, noise leaves the range of double precision
_THIN = 0.06  # thinness from which on biases are nearly all that is to be had
_LAPLACE_SHARE = 0.95  # of the budget for them, where noise is Laplace's
_MOST_BYTES = 1 << 30  # of iterates that are kept


@record
@dataclass(frozen=True)
class PrivateLangevin:
    """Settings of private Langevin dynamics. Those that are None follow from public numbers.

    Parameters
    ----------
    noise : float
        Scales all noise: one Gaussian query that spent the whole budget would have this noise
        multiplier. Found by calibration.
    model : str
        "normal", or "poisson" for counts: rows are not negative then, and iterates mirrored at zero.
    passes : int or None
        Expected visits to each unit.
    rate : float or None
        Probability with which a unit takes part in a step; a pass has 1 / rate steps.
    clip : float or None
        Norm to which a unit's gradient is clipped, in the metric: about one entry's usual gradient.
    step, last_step : float or None
        Of a pass, as shares of a Newton step; it falls geometrically.
    bias_share : float or None
        Of the budget for means, biases and counts; the steps get the rest.
    bias_part : float or None
        Of a typical gradient's squared length for the biases.
    typical : float or None
        Units (not entries) with more entries than this weigh theirs by sqrt(typical / entries).
    tail : float or None
        Part of the passes, the last ones, whose iterates are averaged.
    keep : int or None
        How many iterates of these are kept beside their average.
    laplace : float or None
        For biases with Laplace noise, its scale over ``noise`` if they had the whole budget.

    Examples
    --------
    >>> import sfumato as sf
    >>> modes = {"visits": ("user", "place"), "likes": ("user", "genre")}
    >>> made = sf.synthetic.coupled(
    ...     modes, {"user": 50, "place": 15, "genre": 9}, rank=1, missing=0.3
    ... )
    >>> tables = {k: sf.prepare.clip(v.tensor, (-3, 3)) for k, v in made.items()}
    >>> labels = {"user": range(50), ...: True}
    >>> public = sf.Public(
    ...     labels=labels, relations={k: sf.Public(entries=300) for k in modes}
    ... )
    >>> solver = sf.PrivateLangevin(passes=5)
    >>> privacy = sf.Privacy(
    ...     3, 1e-6, unit="user", local=None, public=public, method=solver
    ... )
    >>> plan = sf.Coupled(1, privacy=privacy).plan(tables)
    >>> print(plan.explain())
    visits (user 50 x place 15: CP of rank 1 with a mean and biases, float64);
        likes (user 50 x genre 9: CP of rank 1 with a mean and biases, float64);
        langevin, within epsilon 3, delta 1e-06 for all entries of one user, their
        presence included, in visits and likes together.
      5 Langevin steps with all units, gradients clipped to 1.71, noise of 10.2
      temperature of an average row from 0.61 down to 0.12; one would be that of
          the posterior, below it noise is added
      the last 1 of 5 passes are averaged
      1 x constant of visits: Gaussian, noise multiplier 2.83; 0.3 of the budget
      1 x entries by place of visits: Gaussian, noise multiplier 26.8; 0.0033 of
          the budget
      6 x residuals by place of visits: Gaussian, noise multiplier 22.9; 0.027 of
          the budget
      1 x residuals by user of visits: Gaussian, noise multiplier 31.1; 0.0025 of
          the budget
      1 x constant of likes: Gaussian, noise multiplier 2.83; 0.3 of the budget
      1 x entries by genre of likes: Gaussian, noise multiplier 26.8; 0.0033 of
          the budget
      6 x residuals by genre of likes: Gaussian, noise multiplier 23.5; 0.026 of
          the budget
      1 x residuals by user of likes: Gaussian, noise multiplier 24.7; 0.0039 of
          the budget
      5 x Langevin steps: Gaussian, noise multiplier 5.95; 0.34 of the budget
    """

    noise: float = 1.0
    model: Family = "normal"
    passes: int | None = None
    rate: float | None = None
    clip: float | None = None
    step: float | None = None
    last_step: float | None = None
    bias_share: float | None = None
    bias_part: float | None = None
    typical: float | None = None
    tail: float | None = None
    keep: int | None = None
    laplace: float | None = None

    name: ClassVar[str] = "langevin"
    proof: ClassVar[str] = "proofs/langevin.md"
    proven: ClassVar[bool] = True
    always_fits: ClassVar[tuple[str, ...]] = ("mean", "biases")

    @property
    def exact(self) -> bool:
        """Whether steps are of all units, so that their noise is drawn outside of kernels."""
        return self.rate in (None, 1)  # a rate that is not given is one, see derive

    @property
    def poisson(self) -> bool:
        """Whether it is about counts."""
        return self.model == "poisson"

    # -- what will be done: never sees data -----------------------------------------------------

    def settings(self, facts: CoupledFacts) -> Settings:
        """The settings of a fit: those given, and the others as derived."""
        derived = derive(facts, self.noise, self.model)
        given = {name: getattr(self, name) for name in derived.__dataclass_fields__}
        return replace(derived, **{name: value for name, value in given.items() if value is not None})

    def check(self, facts: CoupledFacts) -> None:
        check_choice(get_args(Family), model=self.model)
        check_positive(noise=self.noise)
        if isinstance(facts.unit, UnitValues):
            raise SettingError("private Langevin dynamics protects 'value', 'entry' or a mode")
        joint = Joint(facts)
        joint.check()
        if self.poisson and any(part.bounds[0] < 0 for part in facts.parts):
            raise SettingError("Poisson values are counts: their lower bound is zero or more")
        s = self.settings(facts)
        check_count(1, MOST_ROUNDS, passes=s.passes)
        check_count(0, MOST_ROUNDS, keep=s.keep)
        check_positive(clip=s.clip, typical=s.typical)
        check_number(1e-9, 1, rate=s.rate)
        check_share(step=s.step, last_step=s.last_step, tail=s.tail)
        check_number(_LEAST_SHARE, 1 - _LEAST_SHARE, bias_share=s.bias_share)
        check_share(True, bias_part=s.bias_part)
        check_positive(**given(laplace=self.laplace))
        if joint.n_rows * joint.rank + joint.n_biases > MOST_NUMBERS:
            raise SettingError(
                f"models of more than {MOST_NUMBERS:,} numbers are more than the proof covers: use a "
                "smaller rank"
            )
        if not self.poisson:
            for v, part in enumerate(facts.parts):
                self._first(facts).biases(v).check(part)

    def _first(self, facts: CoupledFacts) -> First:
        return First(facts, self.noise, self.settings(facts).bias_share, self.model, self.laplace)

    def step_multiplier(self, facts: CoupledFacts) -> float:
        """Noise multiplier of a step, so that all of them cost about what the beginning leaves.

        Without sampling that is exact. With it, by the central limit theorem of Gaussian differential
        privacy (Bu, Dong, Long and Su 2020); calibration makes up for what that leaves out.
        """
        s = self.settings(facts)
        share, change = 1 - s.bias_share, 2 if facts.unit.replaces else 1
        steps = s.passes * s.steps_per_pass
        if s.rate == 1:
            return change * self.noise * sqrt(steps / share)
        return 1 / sqrt(log1p(share / (steps * (change * s.rate * self.noise) ** 2)))

    def charges(self, facts: CoupledFacts) -> tuple[Charge, ...]:
        s, replaces = self.settings(facts), facts.unit.replaces
        multiplier = self.step_multiplier(facts)
        step: Mechanism
        if self.exact:  # the multiplier is that of one contribution; a replaced one changes twice that
            step = Gaussian(multiplier / (2 if replaces else 1))
        else:
            step = PoissonGaussian(multiplier, s.rate, s.steps_per_pass, replaces)
        first = [asked.charge for asked in self._first(facts).draws()]
        return (*first, *(Charge("Langevin steps", step),) * s.passes)

    def rounds(self, facts: CoupledFacts) -> int:
        return len(self.charges(facts))

    def adds_up(self, facts: CoupledFacts) -> bool:
        return self.settings(facts).rate == 1  # samples are drawn, and noised, as a kernel goes

    def assumes(self, facts: CoupledFacts) -> tuple[str, ...]:  # noqa: ARG002
        return ()

    def in_words(self, facts: CoupledFacts) -> tuple[str, ...]:
        """The settings, for a person."""
        s, noise = self.settings(facts), self.step_multiplier(facts)
        who = "all units" if s.rate == 1 else f"each unit with probability {s.rate:g}"
        low, high = (self._temperature(facts, step) for step in (s.last_step, s.step))
        return (
            f"{s.passes * s.steps_per_pass} Langevin steps with {who}, gradients clipped to "
            f"{s.clip:.3g}, noise of {noise * s.clip:.3g}",
            f"temperature of an average row from {high:.2g} down to {low:.2g}; one would be that of the "
            "posterior, below it noise is added",
            f"the last {s.averaged} of {s.passes} passes are averaged",
        )

    def _temperature(self, facts: CoupledFacts, pass_step: float) -> float:
        """Of a row of an average mode, from public numbers: noise over what samples need."""
        s, joint = self.settings(facts), Joint(facts)
        step = pass_step / s.steps_per_pass
        share = (1 - s.bias_part) / (max(map(len, joint.blocks)) * joint.rank)
        entries = sum(part.expected_entries for part in facts.parts)
        information = entries * len(joint.sizes) / sum(joint.sizes) * share
        noise = self.step_multiplier(facts) * s.clip / s.rate
        return step * noise**2 / ((2 - step) * information)

    # -- the loop -------------------------------------------------------------------------------

    def init(self, run: Run, facts: CoupledFacts) -> Beginning:
        self.check(facts)
        return self._first(facts).init(run)

    def ask(self, state: Beginning | State) -> OfRelation | SlopeQuery | RandomStepsQuery:
        if isinstance(state, Beginning):
            return self._first(state.facts).ask(state)
        facts = state.joint.facts
        slopes = self._slopes(state)
        if self.exact:
            return SlopeQuery(slopes, facts.unit.replaces)
        return RandomStepsQuery(slopes, self.settings(facts).rate)

    def update(self, state: Beginning | State, released: Any) -> tuple[Beginning | State, Info]:
        if isinstance(state, Beginning):
            state = self._first(state.facts).update(state, released)
            return (state if state.done < len(state.draws) else self._begun(state)), Info(0)
        facts = state.joint.facts
        s, done, rows, biases = self.settings(facts), state.done + 1, state.rows, state.biases
        noise = self.step_multiplier(facts) * s.clip
        if self.exact:
            sums = self._slopes(state).unflat(released.values)
            generator = np.random.default_rng([state.seed, 3, done])
            more = extra_shaking(state.pace, noise, generator)
            sums = sums[0] + more[0], sums[1] + more[1]
            rows, biases = moved(state.joint, state.pace, rows, biases, sums, self.poisson)
        else:
            rows, biases = released
        if not (np.isfinite(rows).all() and np.isfinite(biases).all()):
            raise DivergedError("Langevin dynamics left the range of numbers: use a smaller step")
        average = averaged(state, rows, biases, noise, s)
        kept = state.kept
        if self._keeps(state.joint, s, done):
            kept = (*kept, (rows, biases))
        state = replace(state, rows=rows, biases=biases, average=average, kept=kept, done=done)
        if done < s.passes:
            made = state.joint, state.begun, rows, state.cells, done, average.variance
            state = replace(state, pace=self._pace(*made))
        return state, Info(done, noise=self.step_multiplier(facts))

    def _keeps(self, joint: Joint, s: Settings, done: int) -> bool:
        """Whether the iterate after so many passes is kept; as many as asked for, evenly."""
        numbers = joint.n_rows * joint.rank + joint.n_biases
        keep = min(s.keep, s.averaged, _MOST_BYTES // (8 * numbers))
        into = done - (s.passes - s.averaged)
        return into > 0 and into * keep // s.averaged > (into - 1) * keep // s.averaged

    def _slopes(self, state: State) -> Slopes:
        facts, joint = state.joint.facts, state.joint
        s = self.settings(facts)
        scale = np.array(
            [
                [*part.bounds, 0.0 if self.poisson else begun.mean, 1 / begun.scatter]
                for part, begun in zip(facts.parts, state.begun, strict=True)
            ]
        )
        what = joint, state.rows, state.biases, state.pace, scale
        return Slopes(*what, self._owned(state, s), self.poisson, s.clip)

    def _owned(self, state: State, s: Settings) -> Owned:
        joint, relations = state.joint, len(state.begun)
        if joint.own is None:
            return Owned(-1, np.zeros(relations, np.int64), 0.0, 1.0, np.ones(relations), s.typical)
        modes = np.array([blocks.index(joint.own) for blocks in joint.blocks])
        home = float(state.pace.homes[joint.own])
        ridge = own_precision(home, self.poisson)
        biases = np.array([1.0 if self.poisson else 1 / begun.own_variance for begun in state.begun])
        return Owned(joint.own, modes, home, ridge, biases, s.typical)

    def _begun(self, beginning: Beginning) -> State:
        """Go on from what is known of the relations."""
        facts, joint = beginning.facts, Joint(beginning.facts)
        s = self.settings(facts)
        weight = 1.0
        if joint.unit_block is not None:
            entries = sum(part.expected_entries for part in facts.parts)
            weight = entry_weight([entries / joint.sizes[joint.unit_block]], s.typical)
        begun = self._first(facts).begun(beginning, weight)
        rows = started(joint, begun, beginning.seed, self.poisson)
        biases = np.concatenate([each for relation in begun for each in relation.biases])
        cells = draw_cells(begun, beginning.seed)
        nothing = np.zeros(joint.n_rows)
        pace = self._pace(joint, begun, rows, cells, 0, nothing)
        average = Average(np.zeros(rows.shape), np.zeros(biases.shape), nothing, nothing, nothing)
        return State(joint, beginning.seed, begun, cells, rows, biases, pace, average)

    def _pace(
        self,
        joint: Joint,
        begun: Sequence[Begun],
        rows: Array,
        cells: tuple[Array, ...],
        done: int,
        shaken: Array,
    ) -> Pace:
        s = self.settings(joint.facts)
        burn_in = max(1, s.passes - s.averaged)
        pass_step = s.step * (s.last_step / s.step) ** min(1.0, done / burn_in)
        noise = self.step_multiplier(joint.facts) * s.clip
        seen = with_own_rows(joint, begun, rows, self.poisson)
        stepping = Stepping(pass_step / s.steps_per_pass, s.rate, noise)
        return make_pace(joint, begun, seen, cells, stepping, s.bias_part, self.poisson, shaken)

    # -- what was found -------------------------------------------------------------------------

    def finish(self, state: State) -> Finished[Several]:
        average = state.average
        mean = average.rows / average.number, average.biases / average.number
        made, facts = self._several(state, *mean), state.joint.facts
        s = self.settings(facts)
        posterior = None
        if state.kept:
            found = state.pace.temperatures(self.step_multiplier(facts) * s.clip)
            least, middle, most = (float(x) for x in np.quantile(found, [0, 0.5, 1]))
            models = tuple(self._several(state, *kept) for kept in state.kept)
            posterior = PrivateSamples(models, (least, middle, most))
        return Finished(made, posterior=posterior)

    def _several(self, state: State, rows: Array, biases: Array) -> Several:
        """Models of all relations, rows that stay with their owners left out."""
        joint, models, priors = state.joint, [], []
        for v, part in enumerate(joint.facts.parts):
            model = part.shape.zeros().with_mean(0.0 if self.poisson else state.begun[v].mean)
            for m, block in enumerate(joint.blocks[v]):
                if m != part.local:
                    model.factors[m][:] = rows[joint.span(block)]
                    model.mode_biases[m][:] = biases[joint.bias_spans[v][m]]
            models.append(model)
            priors.append(None if part.local is None else self._own_prior(state, v, part.local, rows))
        return Several(tuple(models), tuple(priors))

    def _own_prior(self, state: State, v: int, mode: int, rows: Array) -> OwnPrior:
        joint, begun, average = state.joint, state.begun[v], state.average
        block = joint.blocks[v][mode]
        home, noise = float(state.pace.homes[block]), average.whole / average.number**2
        power = np.full(joint.rank, 1 / own_precision(home, self.poisson))
        if joint.own is None:  # trained with noise: how large rows are is known
            there = state.cells[v][mode]
            there = rows[joint.span(block)][there], noise[joint.span(block)][there]
            power = np.mean((there[0] - home) ** 2, axis=0)
            power = np.maximum(power - np.mean(there[1]) * state.pace.metric[block] ** 2, 0.1 * power)
        row_noise = tuple(
            None if m == mode else RowNoise(noise[joint.span(b)], state.pace.metric[b] ** 2)
            for m, b in enumerate(joint.blocks[v])
        )
        if self.poisson:
            return OwnPrior(
                mode=mode,
                precisions=1 / np.maximum(power, 1e-9 * home**2),
                mean=home,
                scatter=begun.scatter,
                row_noise=row_noise,
            )
        return OwnPrior(
            mode=mode,
            precisions=1 / np.maximum(power, 1e-9),
            mean=home,
            bias_precision=1 / begun.own_variance,
            scatter=begun.scatter,
            doubts=tuple(None if m == mode else d for m, d in enumerate(begun.bias_variances)),
            row_noise=row_noise,
        )


def make_langevin(facts: CoupledFacts, wish: Wish) -> PrivateLangevin:
    """The solver of the method "langevin".

    Where noise is so large that little is to be learnt beyond biases, these get nearly all of the
    budget, with Laplace noise where that is less.
    """
    budget = wish.budget
    if budget.pure:
        raise SettingError(
            "private Langevin dynamics gives no pure epsilon: name a delta, such as 1e-6, or use the "
            "method 'bias'"
        )
    if not isinstance(budget, Budget) or isinstance(facts.unit, UnitValues):
        return PrivateLangevin()
    gaussian = gaussian_multiplier(budget)
    if thinness(facts, gaussian) > _THIN and all(prefers_laplace(p, budget) for p in facts.parts):
        return PrivateLangevin(bias_share=_LAPLACE_SHARE, laplace=1 / (budget.epsilon * gaussian))
    return PrivateLangevin()
