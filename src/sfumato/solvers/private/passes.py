"""Gradient perturbation with pure epsilon, pass by pass, for the unit ``Value``.

Paper W's Algorithm 2, changed so that its guarantee holds for everything that is released. For each
entry, in an order that has nothing to do with the values, with J the gradient of the model's value by
*all* parameters that it touches (rows, biases, core), taken at one and the same iterate:

    6.     e <- residual, clipped so that |e J| <= m
    7, 8.  parameters <- parameters + step (e J + noise),    with noise one of
             vector    density proportional to exp(-eps |n| / D),  D = min(2 m, (hi - lo) |J|)
             residual  J times Laplace noise of scale D / (|J| eps)

A value enters one step of a pass, so a pass costs eps, iterates included (``proofs/passes.md``). All
that the data add to a step is one number along the direction J, which is known from earlier steps:
noise on that number alone suffices, and is smaller than vector noise.

Departures: the penalty is not clipped (it is free of data), the step is damped by 1 + step |J|^2 and
falls over the passes, and it shrinks with the known noise. At the end one noisy number, the inner
product of the fitted and the observed values, says how much of the fit to keep.

With one pass and little clipping this releases what input perturbation does, and input perturbation
makes more of it, since it may look at the released values again and again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import pi, sqrt
from typing import Any, ClassVar, Literal

import numpy as np

from sfumato.checks import (
    LEAST_SIZE,
    MOST_ROUNDS,
    check_choice,
    check_count,
    check_number,
    check_positive,
)
from sfumato.errors import SettingError
from sfumato.kernels.grid import cut, grid
from sfumato.kernels.numba.private_passes import GRID, Settings, noisy_pass
from sfumato.models.multilinear import Multilinear
from sfumato.privacy.clipping import Clipped, clip_from_middle, clip_values
from sfumato.privacy.facts import Facts
from sfumato.privacy.ledger import Charge, Draw
from sfumato.privacy.mechanisms import Laplace, Mechanism, Noisy, PurePass
from sfumato.privacy.units import Value
from sfumato.records import record
from sfumato.sites.memory import Site
from sfumato.solvers.protocol import (
    MOST_MEAN,
    Finished,
    Info,
    NoisyQuery,
    Run,
    Silent,
    SumQuery,
    WholeQuery,
    random_start,
)
from sfumato.types import Array

_MEAN_SHARE, _KEEP_SHARE = 0.05, 0.1  # of epsilon: for the mean, and for how much of the fit to keep
_UNUSED = np.random.default_rng(0)  # where no vector noise is drawn
# By how much a replaced value moves a residual over the most that it can change: rounding, and the cut
# to the grid, make up less than two steps.
_CHANGE = 1 + 2 * GRID
_DOUBT = 8.0  # scales of the last query's noise that are taken off it: keep nothing that noise may be


@record
@dataclass(frozen=True)
class MeanQuery(SumQuery):
    """Ask for the sum of the values from the middle of the bounds; their number is public."""

    facts: Facts

    def clipped(self, site: Site) -> Clipped:
        each = clip_from_middle(site.tensor.values, *self.facts.bounds)
        count = np.array([site.tensor.n_entries])
        return replace(each, values=each.values.sum(keepdims=True), public=(count,))


@record
@dataclass(frozen=True)
class PassQuery(NoisyQuery):
    """Make a pass from the given model; the order of the entries follows from ``seed``."""

    facts: Facts
    model: Multilinear
    mean: float
    means: Array  # what factors are pulled towards, by mode
    settings: Settings
    seed: tuple[int, int]

    def noisy(self, site: Site, draw: Draw) -> Multilinear:
        facts, model, tensor = self.facts, self.model.copy(), site.tensor
        targets = (clip_values(tensor.values, *facts.bounds) - self.mean) / facts.spread
        order = np.random.default_rng(self.seed).permutation(tensor.n_entries)
        steps = model, self.means, tensor.coordinates, targets, order, self.settings
        if self.settings.vector:
            noisy_pass(*steps, np.zeros(0, np.int64), draw.stream())
        else:
            noisy_pass(*steps, draw.noise(tensor.n_entries, _CHANGE, GRID), _UNUSED)
        return model


@record
@dataclass(frozen=True)
class KeepQuery(WholeQuery):
    """Ask for the inner product of the fitted and the observed values.

    Where entries are is public, and with it the power of the fitted values.
    """

    facts: Facts
    model: Multilinear
    mean: float

    def clipped(self, site: Site) -> Clipped:
        facts, tensor = self.facts, site.tensor
        low, high = facts.bounds
        targets = (clip_values(tensor.values, low, high) - self.mean) / facts.spread
        fitted = self.model.with_mean(0.0).predict(tensor.coordinates).astype(np.float64)
        # Where the mean lies within the bounds no target is further from it than these are apart.
        most = float(np.abs(fitted).max(initial=1e-12)) * (high - low) / facts.spread
        products = cut(np.clip(fitted * targets, -most, most), grid(most))
        change, power = most + 2 * grid(most), np.array([fitted @ fitted])
        sums = np.array([products.sum()])
        return Clipped(sums, change, change, grid(most), single=True, public=(power,))


@dataclass(frozen=True)
class State:
    facts: Facts
    model: Multilinear
    seed: int
    stage: Literal["mean", "pass", "keep"]
    done: int = 0
    mean: float = 0.0
    keep: float = 1.0


@record
@dataclass(frozen=True)
class PrivatePasses(Silent):
    """Settings of the pure-epsilon descent; all from public numbers.

    Parameters
    ----------
    passes : int
        How often each value is looked at; each time costs its share of epsilon.
    clip : float
        Paper W's m, in the unit of the values' spread.
    step : float
        The largest step. It falls along half a cosine, and is smaller where the noise is larger.
    ridge : float
        Pull of each touched parameter towards its prior, per visit.
    init_scale : float
        Size of the random start.
    noise_law : {'vector', 'residual'}
        ``residual`` (default, less noise) or ``vector``.
    prior_mean : mapping or None
        What a mode's factor shrinks towards, by name.
    noise : float
        Scales all noise; the whole costs 1 / noise.

    Examples
    --------
    >>> import sfumato as sf
    >>> modes = [sf.Mode("user", 1000), sf.Mode("item", 200)]
    >>> privacy = sf.Privacy(3, unit="value", method=sf.PrivatePasses(passes=1))
    >>> plan = sf.CP(rank=2, privacy=privacy).plan(
    ...     modes, bounds=(1, 5), entries=50_000
    ... )
    >>> print(plan.explain())
    user 1,000 x item 200: CP of rank 2 with a mean and biases, float64; gradient
        perturbation, pure passes, within epsilon 3 for one observed value.
      1 x mean of the values: Laplace, noise multiplier 6.67; 0.05 of the budget
      1 x pass 1 of 1: Laplace, noise multiplier 0.392; 0.85 of the budget
      1 x share of the fit to keep: Laplace, noise multiplier 3.33; 0.1 of the
          budget
    """

    passes: int = 2
    clip: float = 0.5
    step: float = 0.4
    ridge: float = 0.02
    init_scale: float = 0.4
    noise_law: Literal["vector", "residual"] = "residual"
    prior_mean: Mapping[str, float] | None = None
    noise: float = 1.0

    name: ClassVar[str] = "gradient perturbation, pure passes"
    proof: ClassVar[str] = "proofs/passes.md"
    proven: ClassVar[bool] = True

    @property
    def exact(self) -> bool:
        """For vector noise no exact sampler is known."""
        return self.noise_law == "residual"

    def check(self, facts: Facts) -> None:
        check_count(1, MOST_ROUNDS, passes=self.passes)
        check_positive(clip=self.clip, step=self.step, noise=self.noise)
        check_number(LEAST_SIZE, MOST_MEAN, init_scale=self.init_scale)
        check_number(0, 1 / self.step, ridge=self.ridge)  # more would push beyond what it pulls to
        check_choice(("vector", "residual"), noise_law=self.noise_law)
        facts.shape.prior_means(self.prior_mean, MOST_MEAN)
        if not isinstance(facts.unit, Value):
            raise SettingError(
                "noise on single steps hides values, not whether entries are there: it needs the "
                "unit 'value'"
            )
        if facts.local is not None:
            raise SettingError("this releases every factor: no mode can stay with its owners")
        if self.exact:
            Laplace(1 / self.shares(facts)[1], single=True).steps(_CHANGE, GRID)

    # -- the budget ---------------------------------------------------------------------------

    def shares(self, facts: Facts) -> tuple[float, float, float]:
        """Epsilon of the mean, of each pass, and of how much to keep."""
        mean = _MEAN_SHARE if facts.shape.fit_mean else 0.0
        each = (1 - mean - _KEEP_SHARE) / self.passes
        return mean / self.noise, each / self.noise, _KEEP_SHARE / self.noise

    def adds_up(self, facts: Facts) -> bool:  # noqa: ARG002
        return False

    def charges(self, facts: Facts) -> tuple[Charge, ...]:
        mean, each, keep = self.shares(facts)
        # A step's Laplace noise is that of one changed number: tighter in composition than pure.
        law: Mechanism = PurePass(each) if self.noise_law == "vector" else Laplace(1 / each, single=True)
        first = (
            (Charge("mean of the values", Laplace(1 / mean, single=True)),)
            if facts.shape.fit_mean
            else ()
        )
        passes = (Charge(f"pass {t + 1} of {self.passes}", law) for t in range(self.passes))
        return (*first, *passes, Charge("share of the fit to keep", Laplace(1 / keep, single=True)))

    def rounds(self, facts: Facts) -> int:
        return len(self.charges(facts))

    # -- the four functions -------------------------------------------------------------------

    def init(self, run: Run, facts: Facts) -> State:
        self.check(facts)
        model = facts.shape.zeros()
        random_start(model, facts.shape.prior_means(self.prior_mean), self.init_scale, run.seed)
        return State(facts, model, run.seed, "mean" if facts.shape.fit_mean else "pass")

    def ask(self, state: State) -> MeanQuery | PassQuery | KeepQuery:
        facts = state.facts
        if state.stage == "mean":
            return MeanQuery(facts)
        if state.stage == "keep":
            return KeepQuery(facts, state.model, state.mean)
        means = np.array(facts.shape.prior_means(self.prior_mean))
        seed = (state.seed, state.done)
        settings = self._settings(facts, state.done)
        return PassQuery(facts, state.model, state.mean, means, settings, seed)

    def _settings(self, facts: Facts, done: int) -> Settings:
        return Settings(
            float(self.clip),
            facts.width / facts.spread,
            self.shares(facts)[1],
            self.noise_law == "vector",
            self.step_at(facts, done),
            float(self.ridge),
            facts.shape.fit_biases,
        )

    def step_at(self, facts: Facts, done: int) -> float:
        """The step of a pass: small enough that a row's noise, over all its visits, stays near one."""
        sizes = facts.sizes
        visits = self.passes * facts.expected_entries / min(sizes) / len(sizes)
        noise = 2 * sqrt(2) * self.clip / self.shares(facts)[1]
        largest = min(self.step, 1 / (noise * sqrt(max(visits, 1.0))))
        return largest * 0.5 * (1 + float(np.cos(pi * done / self.passes)))

    def update(self, state: State, released: Any) -> tuple[State, Info]:
        if state.stage == "mean":
            return replace(state, mean=_noisy_mean(state.facts, released), stage="pass"), Info(0)
        if state.stage == "keep":
            return replace(state, keep=_share_to_keep(released)), Info(state.done)
        done = state.done + 1
        stage: Literal["pass", "keep"] = "pass" if done < self.passes else "keep"
        return replace(state, model=released, done=done, stage=stage), Info(done)

    def finish(self, state: State) -> Finished[Multilinear]:
        """Every row is released."""
        scale = state.keep * state.facts.spread
        model = state.model.copy().with_mean(state.mean)
        model.rows[model.span(0)] *= scale
        model.biases[:] *= scale
        return Finished(model)


def _noisy_mean(facts: Facts, noisy: Noisy) -> float:
    (count,) = noisy.public
    offset = float(noisy.values[0]) / max(int(count[0]), 1)
    return float(np.clip(facts.middle + offset, *facts.bounds))


def _share_to_keep(noisy: Noisy) -> float:
    """Regression of the values on the fit, less what its noise may have put in."""
    scale, power = noisy.deviation / sqrt(2), max(float(noisy.public[0][0]), 1e-12)
    return float(np.clip((noisy.values[0] - _DOUBT * scale) / power, 0.0, 1.0))
