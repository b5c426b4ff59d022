"""Output perturbation that is proven: one mode solved row by row from private features, then noised.

Paper W's Algorithm 3, changed so that its guarantee holds. The other factors come from a private stage
of their own, or are public; with them fixed, a row of the chosen mode has a convex problem:

    1.     c = argmin over |c| <= R of  sum_e (t_e - f_e . c)^2 + lambda |c|^2
    2, 3.  every row + noise, empty ones included

f_e is the design of the chosen mode at entry e, whitened over all cells and clipped to length B; t_e is
what the released model leaves of the value, clipped to [-Y, Y], so that c is the row's change. How far c
moves between neighbours is in ``proofs/output.md``; with h(n) = sqrt(n) g(sqrt(n) B) and

    g(b) = b / (lambda + b^2) if b^2 <= lambda, else 1 / (2 sqrt(lambda))

it is W h(N) where up to N values are replaced (W their range) and (Y + B R) h(N) where up to N entries
come or go. ``Value`` has an exact bound for each row, W max_e |H^-1 f_e|, since positions are public; it
holds without |c| <= R only, so that there R is infinite.

4.  What noise may have put in is taken out again: the posterior mean of each row's change under the
    known noise, its prior variance the one that makes the release likeliest. Free post-processing.

lambda, R, B and Y come from public numbers and from what was released before.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf, sqrt
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np

from sfumato.checks import check_choice, check_positive
from sfumato.data.prepare import cap
from sfumato.data.tensor import find_mode
from sfumato.errors import SettingError
from sfumato.kernels.numba.private_output import (
    Equations,
    RidgePlan,
    longest_responses,
    row_equations,
)
from sfumato.models.multilinear import Multilinear
from sfumato.privacy.accounting import calibrate, gaussian_multiplier
from sfumato.privacy.budgets import Budget
from sfumato.privacy.clipping import Clipped, check_range, clip_values
from sfumato.privacy.events import Composed
from sfumato.privacy.ledger import Charge, Draw
from sfumato.privacy.mechanisms import Gaussian, Noisy, RowwiseVectorLaplace
from sfumato.privacy.units import Unit, UnitValues, Value
from sfumato.sites.memory import ByMode, Site
from sfumato.solvers.private.passes import spread_of
from sfumato.solvers.protocol import Info, PrivateSolver, PublicShape, check_solver
from sfumato.surface import either, setting
from sfumato.types import Array

_SAMPLE = 4096  # cells at which designs are looked at, to whiten them
_EVIDENCE = 4.0  # log-likelihood by which a prior variance above zero has to beat zero


# -- sensitivities ----------------------------------------------------------------------------------


def gain(bound: float, ridge: float) -> float:
    """g: largest change of a ridge row per unit of residual, features no longer than ``bound``."""
    return bound / (ridge + bound**2) if bound**2 <= ridge else 1 / (2 * sqrt(ridge))


def joint_gain(entries: float, bound: float, ridge: float) -> float:
    """h: the same where up to so many entries change, in the L2 norm over all rows."""
    return sqrt(entries) * gain(sqrt(entries) * bound, ridge)


def rowwise_gain(entries: int, rows: int, bound: float, ridge: float) -> float:
    """The sum of the rows' changes: largest where the entries are spread over all rows they can be."""
    touched = min(entries, rows)
    return touched * joint_gain(entries / touched, bound, ridge)


# -- a row's problem ----------------------------------------------------------------------------------


def constrained_ridge(sums: Equations, ridge: float, radius: float) -> Array:
    """Rows that minimise c'(G + ridge)c - 2 b.c over |c| <= radius.

    Inside the ball that is the ridge solution. On its surface it is the ridge solution with a larger
    ridge, the one that makes it ``radius`` long; its length falls with the ridge, so bisection finds it.
    """
    values, vectors = np.linalg.eigh(sums.gram)
    along = np.einsum("krs,kr->ks", vectors, sums.rhs)
    base = np.maximum(values, 0.0) + ridge

    def rows_at(extra: Array) -> Array:
        rows: Array = along / (base + extra[:, None])
        return rows

    low, high = np.zeros(len(base)), np.linalg.norm(sums.rhs, axis=1) / radius
    outside = np.linalg.norm(rows_at(low), axis=1) > radius
    for _ in range(80):
        middle = (low + high) / 2
        long = np.linalg.norm(rows_at(middle), axis=1) > radius
        low, high = np.where(long, middle, low), np.where(long, high, middle)
    solved: Array = np.einsum("krs,ks->kr", vectors, rows_at(np.where(outside, high, 0.0)))
    return solved


# -- from public numbers ------------------------------------------------------------------------------


def ridge_plan(shape: PublicShape, model: Multilinear, mode: int, entries: int) -> RidgePlan:
    """Whitening, bounds and ridge from the released model and the public numbers.

    With whitened features a row's Gram matrix is about its number of entries. A ridge as large as that
    halves the row, which step 4 makes up for, and costs at most twice the noise of the largest ridge.
    """
    spread, rank = spread_of(shape), model.ranks[mode]
    cells = np.random.default_rng(0).integers(0, np.array(model.shape)[:, None], (model.order, _SAMPLE))
    designs = model.design(mode, cells).astype(np.float64)
    values, vectors = np.linalg.eigh(designs.T @ designs / _SAMPLE)
    alive = values > 1e-9 * max(float(values[-1]), 1e-300)
    scale = np.where(alive, 1 / np.sqrt(np.where(alive, values, 1.0)), 0.0)
    whiten = (vectors * scale) @ vectors.T
    bound = max(float(np.quantile(np.linalg.norm(designs @ whiten, axis=1), 0.9)), 1e-6)
    assert shape.bounds is not None
    reach = min(2.5 * spread, shape.bounds[1] - shape.bounds[0])
    expected = max(entries / model.shape[mode], 1.0)
    radius = inf if isinstance(shape.unit, Value) else spread
    prior = spread**2 / (4 * rank)
    return RidgePlan(mode, whiten, bound, reach, radius, expected, prior, spread, expected)


def clipped_rows(
    shape: PublicShape, plan: RidgePlan, model: Multilinear, entries: ByMode, values: Array
) -> tuple[Clipped, Array]:
    """The rows' changes, each divided by a public scale, with their bounds; and the scales."""
    unit, (low, high) = shape.unit, shape.bounds or (0.0, 0.0)
    sums = row_equations(model, plan, entries, values)
    rows, n_rows = constrained_ridge(sums, plan.ridge, plan.radius), model.shape[plan.mode]
    width = min(high - low, 2 * plan.reach)
    if isinstance(unit, Value):
        # Positions are public, hence so is how far each row can move; a row without entries cannot.
        scales = width * longest_responses(model, plan, entries, sums.gram)
        steady = np.where(scales > 0, scales, 1.0)
        return Clipped(rows / steady[:, None], inf, 1.0, rowwise=1.0), scales
    most = unit.max_entries if isinstance(unit, Unit | UnitValues) else 1
    assert unit is not None
    assert most is not None
    span = width if unit.replaces else plan.reach + plan.bound * plan.radius
    touched = 1 if unit.mode == shape.modes[plan.mode].name else n_rows
    l2 = span * joint_gain(most, plan.bound, plan.ridge)
    rowwise = span * rowwise_gain(most, touched, plan.bound, plan.ridge)
    return Clipped(rows, inf, l2, rowwise=rowwise), np.ones(n_rows)


# -- after the release --------------------------------------------------------------------------------


def posterior_rows(noisy: Array, deviations: Array, gram: Array, plan: RidgePlan) -> Array:
    """Posterior means of the rows' changes: noisy = A c + noise, A = (G + lambda)^-1 G.

    The prior variance is the likeliest of a grid up to ``plan.prior``, and zero unless that is clearly
    less likely: what is left then is the model without this step.
    """
    size = gram.shape[1]
    response = np.linalg.solve(gram + plan.ridge * np.eye(size), gram)
    # Noise of the data that the ridge lets through, and the noise of the release.
    inner = np.linalg.inv(gram + plan.ridge * np.eye(size))
    noise = plan.spread**2 * response @ inner + deviations[:, None, None] ** 2 * np.eye(size)
    squared = response @ np.swapaxes(response, 1, 2)
    best, chosen = 0.0, 0.0
    nothing = _log_likelihood(noisy, noise)
    for variance in plan.prior * 2.0 ** -np.arange(12.0):
        better = _log_likelihood(noisy, variance * squared + noise) - nothing
        if better > best:
            best, chosen = better, float(variance)
    if best < _EVIDENCE:
        return np.zeros_like(noisy)
    weights = np.linalg.solve(chosen * squared + noise, noisy[..., None])
    mean: Array = chosen * (np.swapaxes(response, 1, 2) @ weights)[..., 0]
    return mean


def _log_likelihood(rows: Array, covariance: Array) -> float:
    _, logs = np.linalg.slogdet(covariance)
    solved = np.linalg.solve(covariance, rows[..., None])[..., 0]
    return float(-0.5 * (logs.sum() + (rows * solved).sum()))


# -- the solver -----------------------------------------------------------------------------------


class OutputQuery(NamedTuple):
    """Solve the chosen mode's rows with this model's other factors."""

    shape: PublicShape
    model: Multilinear
    mode: int


class OutputAnswer(NamedTuple):
    """Noisy rows, the deviation of each one's noise, and the Gram matrices that they are read by."""

    rows: Array
    deviations: Array
    gram: Array
    plan: RidgePlan


@dataclass(frozen=True)
class State:
    shape: PublicShape
    inner: Any  # of the other factors' stage
    drawn: int  # of its charges
    model: Multilinear | None = None


@dataclass(frozen=True)
class PrivateOutput:
    """Other factors private or public, then one mode by noisy ridge.

    Parameters
    ----------
    others : the private solver of the first stage, or a public model.
    mode : the mode that is solved at the end; by default the last, as in the paper.
    noise_law : ``vector`` (pure epsilon) or ``gaussian``.
    output_noise : noise multiplier of the second stage where ``noise`` is one; ``balanced`` sets it.
    noise : scales the noise of both stages.
    """

    others: PrivateSolver[Any] | Multilinear
    mode: str | None = None
    noise_law: Literal["vector", "gaussian"] = "vector"
    output_noise: float = 1.0
    noise: float = 1.0

    name: ClassVar[str] = "output perturbation"
    proof: ClassVar[str] = "proofs/output.md"
    proven: ClassVar[bool] = True
    exact: ClassVar[bool] = False

    @property
    def stage(self) -> PrivateSolver[Any] | None:
        """The private first stage at this solver's noise; none where the other factors are public."""
        if isinstance(self.others, Multilinear):
            return None
        scaled: PrivateSolver[Any] = replace(self.others, noise=self.others.noise * self.noise)  # type: ignore[type-var]
        return scaled

    def check(self, shape: PublicShape) -> None:
        check_positive(noise=self.noise, output_noise=self.output_noise)
        check_choice(("vector", "gaussian"), noise_law=self.noise_law)
        if shape.unit is None or shape.bounds is None:
            raise SettingError("output perturbation needs a unit and public bounds of the values")
        check_range(*shape.bounds)
        if isinstance(shape.unit, Unit) and shape.unit.max_entries is None:
            raise SettingError(
                f"output perturbation needs a cap on the entries of one {shape.unit.mode}: "
                f"{setting('max_entries')}"
            )
        if shape.unit.hides_presence and shape.entries is None:
            raise SettingError(
                "output perturbation needs the public number of entries: "
                + either("Public(entries=...)", "--public-entries N")
            )
        if shape.local is not None:
            raise SettingError("this releases every factor: no mode can stay with its owners")
        self.noisy_mode(shape)
        if isinstance(self.others, Multilinear):
            if self.others.shape != shape.sizes:
                raise SettingError(f"the public model is for {self.others.shape}, not {shape.sizes}")
        else:
            check_solver("others", self.others, private=True)
            self.others.check(shape)
            if not self.others.proven:
                raise SettingError("the other factors' stage has to be proven for this to be")

    def noisy_mode(self, shape: PublicShape) -> int:
        return len(shape.modes) - 1 if self.mode is None else find_mode(shape.modes, self.mode)

    def assumes(self, shape: PublicShape) -> tuple[str, ...]:
        if self.stage is None:
            return ("the other factors are public",)
        return self.stage.assumes(shape)

    # -- the budget ---------------------------------------------------------------------------

    def balanced(self, shape: PublicShape, budget: Budget, share: float = 0.5) -> PrivateOutput:
        """The two stages' noise set so that the second spends ``share``, by the law with less of it."""
        if self.stage is None:
            mine, others = budget, self.others
        else:
            first, mine = budget.split(1 - share, share)
            stage: Any = self.others
            noise = calibrate(
                lambda x: Composed(
                    tuple(c.mechanism.event for c in replace(stage, noise=x).charges(shape))
                ),
                first,
            )
            others = replace(stage, noise=noise)
        rank = shape.make_model(shape.sizes, shape.dtype).ranks[self.noisy_mode(shape)]
        vector, law = 1 / mine.epsilon, "vector"
        multiplier = vector
        if not mine.pure and gaussian_multiplier(mine) < vector * sqrt(rank + 1):
            multiplier, law = gaussian_multiplier(mine), "gaussian"
        return replace(self, others=others, output_noise=multiplier, noise_law=law, noise=1.0)  # type: ignore[arg-type]

    def charges(self, shape: PublicShape) -> tuple[Charge, ...]:
        first = self.stage.charges(shape) if self.stage is not None else ()
        law = RowwiseVectorLaplace if self.noise_law == "vector" else Gaussian
        name = shape.modes[self.noisy_mode(shape)].name
        return (*first, Charge(f"every row of {name}", law(self.output_noise * self.noise)))

    def rounds(self, shape: PublicShape) -> int:
        return len(self.charges(shape))

    # -- the four functions -------------------------------------------------------------------

    def init(self, seed: int, shape: PublicShape) -> State:
        self.check(shape)
        if isinstance(self.others, Multilinear):
            return State(shape, None, 0, self.others.copy())
        assert self.stage is not None
        return State(shape, self.stage.init(seed, shape), 0)

    def ask(self, state: State) -> Any:
        if state.model is None:
            assert self.stage is not None
            return self.stage.ask(state.inner)
        return OutputQuery(state.shape, state.model, self.noisy_mode(state.shape))

    def answer(self, query: Any, site: Site, draw: Draw) -> Any:
        if not isinstance(query, OutputQuery):
            assert self.stage is not None
            return self.stage.answer(query, site, draw)
        shape, model, unit = query.shape, query.model, query.shape.unit
        if isinstance(unit, Unit) and unit.max_entries is not None:
            site = Site(cap(site.tensor, unit.mode, unit.max_entries), 1)
        public = not unit.hides_presence if unit is not None else False
        count = site.tensor.n_entries if public else shape.entries
        assert count is not None
        assert shape.bounds is not None
        plan = ridge_plan(shape, model, query.mode, count)
        entries = site.by_mode(query.mode)
        values = clip_values(entries.values, *shape.bounds).values.astype(np.float64)
        clipped, scales = clipped_rows(shape, plan, model, entries, values)
        noisy: Noisy = draw.release(clipped)
        if public:  # so are the features, and with them the Gram matrices
            gram = row_equations(model, plan, entries, values).gram
        else:
            gram = np.repeat(plan.expected * np.eye(len(plan.whiten))[None], len(scales), axis=0)
        return OutputAnswer(noisy.values * scales[:, None], noisy.deviation * scales, gram, plan)

    def update(self, state: State, released: Any) -> tuple[State, Info]:
        if isinstance(released, OutputAnswer):
            return replace(state, model=self._with_rows(state, released)), Info(1)
        assert self.stage is not None
        stage, shape, drawn = self.stage, state.shape, state.drawn + 1
        inner, info = stage.update(state.inner, released)
        if drawn < len(stage.charges(shape)):
            return replace(state, inner=inner, drawn=drawn), info
        for _ in range(stage.rounds(shape) - drawn):  # its post-processing, before the last question
            inner, info = stage.update(inner, None)
        return replace(state, inner=inner, drawn=drawn, model=stage.finish(inner)), info

    def _with_rows(self, state: State, released: OutputAnswer) -> Multilinear:
        assert state.model is not None
        plan, model = released.plan, state.model.copy()
        seen = released.deviations > 0  # rows without entries, where that is public, keep what they were
        change = np.zeros_like(released.rows)
        change[seen] = posterior_rows(
            released.rows[seen], released.deviations[seen], released.gram[seen], plan
        )
        rows = model.factors[plan.mode]
        rows += (change @ plan.whiten).astype(model.dtype)
        return model

    def finish(self, state: State) -> Multilinear:
        assert state.model is not None
        return state.model

    def own_prior(self, state: State) -> None:
        """Nothing: every row is released."""
