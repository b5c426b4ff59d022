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
from typing import ClassVar, Literal, NamedTuple

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
from sfumato.kernels.numba.private_passes import Settings, noisy_pass
from sfumato.models.multilinear import Multilinear
from sfumato.privacy.clipping import Clipped, check_range, clip_values
from sfumato.privacy.ledger import Charge, Draw
from sfumato.privacy.mechanisms import Laplace, Mechanism, PurePass
from sfumato.privacy.units import Value
from sfumato.sites.memory import Site
from sfumato.solvers.protocol import MOST_MEAN, Info, PublicShape, random_start

_MEAN_SHARE, _KEEP_SHARE = 0.05, 0.1  # of epsilon: for the mean, and for how much of the fit to keep
_DOUBT = 8.0  # scales of the last query's noise that are taken off it: keep nothing that noise may be


@dataclass(frozen=True)
class State:
    shape: PublicShape
    model: Multilinear
    seed: int
    stage: Literal["mean", "pass", "keep"]
    done: int = 0
    mean: float = 0.0
    keep: float = 1.0


class KeepAnswer(NamedTuple):
    """How much of the fit to keep."""

    share: float


@dataclass(frozen=True)
class PrivatePasses:
    """Settings of the pure-epsilon descent; all from public numbers.

    Parameters
    ----------
    passes : how often each value is looked at; each time costs its share of epsilon.
    clip : m, in the unit of the values' spread.
    step : the largest step. It falls along half a cosine, and is smaller where the noise is larger.
    ridge : pull of each touched parameter towards its prior, per visit.
    init_scale : size of the random start.
    noise_law : ``residual`` (default, less noise) or ``vector``.
    prior_mean : what a mode's factor shrinks towards, by name.
    noise : scales all noise; the whole costs 1 / noise.
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
    exact: ClassVar[bool] = False

    def check(self, shape: PublicShape) -> None:
        check_count(1, MOST_ROUNDS, passes=self.passes)
        check_positive(clip=self.clip, step=self.step, noise=self.noise)
        check_number(LEAST_SIZE, MOST_MEAN, init_scale=self.init_scale)
        check_number(0, 1 / self.step, ridge=self.ridge)  # more would push beyond what it pulls to
        check_choice(("vector", "residual"), noise_law=self.noise_law)
        shape.prior_means(self.prior_mean, MOST_MEAN)
        if not isinstance(shape.unit, Value):
            raise SettingError(
                "noise on single steps hides values, not whether entries are there: it needs the "
                "unit 'value'"
            )
        if shape.bounds is None:
            raise SettingError("this needs public bounds of the values")
        check_range(*shape.bounds)
        if shape.local is not None:
            raise SettingError("this releases every factor: no mode can stay with its owners")

    def assumes(self, shape: PublicShape) -> tuple[str, ...]:  # noqa: ARG002
        return ()

    # -- the budget ---------------------------------------------------------------------------

    def shares(self, shape: PublicShape) -> tuple[float, float, float]:
        """Epsilon of the mean, of each pass, and of how much to keep."""
        mean = _MEAN_SHARE if shape.fit_mean else 0.0
        each = (1 - mean - _KEEP_SHARE) / self.passes
        return mean / self.noise, each / self.noise, _KEEP_SHARE / self.noise

    def charges(self, shape: PublicShape) -> tuple[Charge, ...]:
        mean, each, keep = self.shares(shape)
        # A step's Laplace noise is that of one changed number: tighter in composition than pure.
        law: Mechanism = PurePass(each) if self.noise_law == "vector" else Laplace(1 / each, single=True)
        first = (Charge("mean of the values", Laplace(1 / mean, single=True)),) if shape.fit_mean else ()
        passes = (Charge(f"pass {t + 1} of {self.passes}", law) for t in range(self.passes))
        return (*first, *passes, Charge("share of the fit to keep", Laplace(1 / keep, single=True)))

    def rounds(self, shape: PublicShape) -> int:
        return len(self.charges(shape))

    # -- the four functions -------------------------------------------------------------------

    def init(self, seed: int, shape: PublicShape) -> State:
        self.check(shape)
        model = shape.make_model(shape.sizes, shape.dtype)
        random_start(model, shape.prior_means(self.prior_mean), self.init_scale, seed)
        return State(shape, model, seed, "mean" if shape.fit_mean else "pass")

    def ask(self, state: State) -> State:
        return state

    def answer(self, query: State, site: Site, draw: Draw) -> Multilinear | KeepAnswer | float:
        if query.stage == "mean":
            return self._noisy_mean(query, site, draw)
        if query.stage == "pass":
            return self._pass(query, site, draw)
        return KeepAnswer(self._share_to_keep(query, site, draw))

    def update(self, state: State, released: Multilinear | KeepAnswer | float) -> tuple[State, Info]:
        if isinstance(released, KeepAnswer):
            return replace(state, keep=released.share), Info(state.done)
        if isinstance(released, Multilinear):
            done = state.done + 1
            stage: Literal["pass", "keep"] = "pass" if done < self.passes else "keep"
            return replace(state, model=released, done=done, stage=stage), Info(done)
        return replace(state, mean=released, stage="pass"), Info(0)

    def finish(self, state: State) -> Multilinear:
        scale = state.keep * spread_of(state.shape)
        model = state.model.copy().with_mean(state.mean)
        model.rows[model.span(0)] *= scale
        model.biases[:] *= scale
        return model

    def own_prior(self, state: State) -> None:
        """Nothing: every row is released."""

    # -- what touches data --------------------------------------------------------------------

    def _noisy_mean(self, query: State, site: Site, draw: Draw) -> float:
        """Sum of the values from the middle of the bounds, over their number, which is public."""
        low, high = _bounds(query.shape)
        middle, half = low / 2 + high / 2, high / 2 - low / 2
        centred = clip_values(site.tensor.values, low, high).values - middle
        total = cut(np.clip(centred, -half, half), grid(half)).sum()
        noisy = draw.release(Clipped(np.array([total]), 2 * half, 2 * half, True))
        offset = float(noisy.values[0]) / max(site.tensor.n_entries, 1)
        return float(np.clip(middle + offset, low, high))

    def _pass(self, query: State, site: Site, draw: Draw) -> Multilinear:
        shape, model, tensor = query.shape, query.model, site.tensor
        low, high = _bounds(shape)
        spread = spread_of(shape)
        targets = (clip_values(tensor.values, low, high).values - query.mean) / spread
        order = np.random.default_rng([query.seed, query.done]).permutation(tensor.n_entries)
        settings = Settings(
            float(self.clip),
            (high - low) / spread,
            self.shares(shape)[1],
            self.noise_law == "vector",
            self.step_at(shape, query.done, tensor.n_entries),
            float(self.ridge),
            shape.fit_biases,
        )
        noisy_pass(
            model,
            np.array(shape.prior_means(self.prior_mean)),
            tensor.coordinates,
            targets,
            order,
            settings,
            draw.stream(),
        )
        return model

    def step_at(self, shape: PublicShape, done: int, entries: int) -> float:
        """The step of a pass: small enough that a row's noise, over all its visits, stays near one."""
        sizes = shape.sizes
        visits = self.passes * entries / min(sizes) / len(sizes)
        noise = 2 * sqrt(2) * self.clip / self.shares(shape)[1]
        largest = min(self.step, 1 / (noise * sqrt(max(visits, 1.0))))
        return largest * 0.5 * (1 + float(np.cos(pi * done / self.passes)))

    def _share_to_keep(self, query: State, site: Site, draw: Draw) -> float:
        """Regression of the values on the fit, less what its noise may have put in."""
        low, high = _bounds(query.shape)
        spread, tensor = spread_of(query.shape), site.tensor
        targets = (clip_values(tensor.values, low, high).values - query.mean) / spread
        fitted = query.model.with_mean(0.0).predict(tensor.coordinates).astype(np.float64)
        # The mean lies within the bounds: no target is further from it than the bounds are apart.
        most = float(np.abs(fitted).max(initial=1e-12)) * (high - low) / spread
        products = cut(np.clip(fitted * targets, -most, most), grid(most))
        change = most + 2 * grid(most)
        noisy = draw.release(Clipped(np.array([products.sum()]), change, change, True))
        scale = noisy.deviation / sqrt(2)
        power = max(float(fitted @ fitted), 1e-12)
        return float(np.clip((noisy.values[0] - _DOUBT * scale) / power, 0.0, 1.0))


def spread_of(shape: PublicShape) -> float:
    """How far values lie from their mean: public, or a quarter of the range."""
    low, high = _bounds(shape)
    return (high - low) / 4 if shape.spread is None else min(shape.spread, high - low)


def _bounds(shape: PublicShape) -> tuple[float, float]:
    assert shape.bounds is not None
    return shape.bounds
