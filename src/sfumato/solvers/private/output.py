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
from typing import Any, ClassVar, Literal

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
from sfumato.privacy.clipping import Clipped, clip_values, rounded
from sfumato.privacy.events import Composed
from sfumato.privacy.facts import Facts
from sfumato.privacy.ledger import Charge
from sfumato.privacy.mechanisms import Gaussian, Noisy, RowwiseVectorLaplace
from sfumato.privacy.units import Unit, UnitValues, Value
from sfumato.records import record
from sfumato.sites.memory import ByMode, Site
from sfumato.solvers.private.gradient.solver import make as make_gradient
from sfumato.solvers.private.input.solver import InputPerturbation
from sfumato.solvers.protocol import (
    Finished,
    Info,
    PrivateQuery,
    PrivateSolver,
    Run,
    Silent,
    WholeQuery,
    Wish,
    check_solver,
)
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


def ridge_plan(facts: Facts, model: Multilinear, mode: int) -> RidgePlan:
    """Whitening, bounds and ridge from the released model and the public numbers.

    With whitened features a row's Gram matrix is about its number of entries. A ridge as large as that
    halves the row, which step 4 makes up for, and costs at most twice the noise of the largest ridge.
    """
    spread, rank = facts.spread, model.ranks[mode]
    cells = np.random.default_rng(0).integers(0, np.array(model.shape)[:, None], (model.order, _SAMPLE))
    designs = model.design(mode, cells).astype(np.float64)
    values, vectors = np.linalg.eigh(designs.T @ designs / _SAMPLE)
    alive = values > 1e-9 * max(float(values[-1]), 1e-300)
    scale = np.where(alive, 1 / np.sqrt(np.where(alive, values, 1.0)), 0.0)
    whiten = (vectors * scale) @ vectors.T
    bound = max(float(np.quantile(np.linalg.norm(designs @ whiten, axis=1), 0.9)), 1e-6)
    reach = min(2.5 * spread, facts.width)
    expected = max(facts.expected_entries / model.shape[mode], 1.0)
    radius = inf if isinstance(facts.unit, Value) else spread
    prior = spread**2 / (4 * rank)
    return RidgePlan(mode, whiten, bound, reach, radius, expected, prior, spread, expected)


def clipped_rows(
    facts: Facts, plan: RidgePlan, model: Multilinear, entries: ByMode, values: Array
) -> Clipped:
    """The rows' changes, each divided by a public scale, with their bounds.

    Where positions are public, so are the features, and with them the scales and the Gram matrices.
    """
    unit, sums = facts.unit, row_equations(model, plan, entries, values)
    rows, n_rows = constrained_ridge(sums, plan.ridge, plan.radius), model.shape[plan.mode]
    width = min(facts.width, 2 * plan.reach)
    if isinstance(unit, Value):
        # Positions are public, hence so is how far each row can move; a row without entries cannot.
        scales = width * longest_responses(model, plan, entries, sums.gram)
        steady = np.where(scales > 0, scales, 1.0)
        return rounded(rows / steady[:, None], 1.0, rowwise=1.0, public=(scales, sums.gram))
    most = unit.max_entries or 1
    span = width if unit.replaces else plan.reach + plan.bound * plan.radius
    touched = 1 if unit.mode == facts.modes[plan.mode].name else n_rows
    l2 = span * joint_gain(most, plan.bound, plan.ridge)
    rowwise = span * rowwise_gain(most, touched, plan.bound, plan.ridge)
    public = () if unit.hides_presence else (np.ones(n_rows), sums.gram)
    return rounded(rows, l2, rowwise=rowwise, public=public)


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


@record
@dataclass(frozen=True)
class OutputQuery(WholeQuery):
    """Solve the chosen mode's rows with this model's other factors."""

    facts: Facts
    model: Multilinear
    plan: RidgePlan

    def clipped(self, site: Site) -> Clipped:
        unit, plan = self.facts.unit, self.plan
        if isinstance(unit, Unit) and unit.max_entries is not None:
            site = Site(cap(site.tensor, unit.mode, unit.max_entries), 1)
        entries = site.by_mode(plan.mode)
        values = clip_values(entries.values, *self.facts.bounds)
        return clipped_rows(self.facts, plan, self.model, entries, values)


@dataclass(frozen=True)
class Others:
    """While the other factors' stage is at work; ``drawn`` counts the charges behind it."""

    facts: Facts
    inner: Any
    drawn: int = 0


@dataclass(frozen=True)
class State:
    """When the other factors are there: the model that the chosen mode's rows are found with."""

    facts: Facts
    model: Multilinear


@record
@dataclass(frozen=True)
class PrivateOutput(Silent):
    """Other factors private or public, then one mode by noisy ridge.

    Parameters
    ----------
    others : private solver or model
        The private solver of the first stage, or a public model.
    mode : str or None
        The mode that is solved at the end; by default the last, as in the paper.
    noise_law : {'vector', 'gaussian'}
        ``vector`` (pure epsilon) or ``gaussian``.
    output_noise : float
        Noise multiplier of the second stage where ``noise`` is one; ``balanced`` sets it.
    noise : float
        Scales the noise of both stages.

    Examples
    --------
    >>> import sfumato as sf
    >>> modes = [sf.Mode("user", 1000), sf.Mode("item", 200)]
    >>> method = sf.PrivateOutput(sf.PrivatePasses())
    >>> privacy = sf.Privacy(3, 1e-6, unit="value", local=None, method=method)
    >>> plan = sf.CP(rank=2, privacy=privacy).plan(
    ...     modes, bounds=(1, 5), entries=50_000
    ... )
    >>> print(plan.explain())
    user 1,000 x item 200: CP of rank 2 with a mean and biases, float64; output
        perturbation, within epsilon 3, delta 1e-06 for one observed value.
      1 x mean of the values: Laplace, noise multiplier 13.3; 0.025 of the budget
      1 x pass 1 of 2: Laplace, noise multiplier 1.57; 0.21 of the budget
      1 x pass 2 of 2: Laplace, noise multiplier 1.57; 0.21 of the budget
      1 x share of the fit to keep: Laplace, noise multiplier 6.67; 0.05 of the
          budget
      1 x every row of item: Rowwise Vector Laplace, noise multiplier 0.667; 0.5
          of the budget
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

    def check(self, facts: Facts) -> None:
        check_positive(noise=self.noise, output_noise=self.output_noise)
        check_choice(("vector", "gaussian"), noise_law=self.noise_law)
        unit = facts.unit
        if isinstance(unit, Unit) and unit.max_entries is None:
            raise SettingError(
                f"output perturbation needs a cap on the entries of one {unit.mode}: "
                f"{setting('max_entries')}"
            )
        if unit.hides_presence and facts.entries is None:
            raise SettingError(
                "output perturbation needs the public number of entries: "
                + either("Public(entries=...)", "--public-entries N")
            )
        if facts.local is not None:
            raise SettingError("this releases every factor: no mode can stay with its owners")
        self.noisy_mode(facts)
        if isinstance(self.others, Multilinear):
            if self.others.shape != facts.sizes:
                raise SettingError(f"the public model is for {self.others.shape}, not {facts.sizes}")
        else:
            check_solver("others", self.others, private=True)
            self.others.check(facts)
            if not self.others.proven:
                raise SettingError("the other factors' stage has to be proven for this to be")

    def noisy_mode(self, facts: Facts) -> int:
        """The mode that is solved at the end, by number."""
        return len(facts.modes) - 1 if self.mode is None else find_mode(facts.modes, self.mode)

    def adds_up(self, facts: Facts) -> bool:  # noqa: ARG002
        return False

    def assumes(self, facts: Facts) -> tuple[str, ...]:
        if self.stage is None:
            return ("the other factors are public",)
        return self.stage.assumes(facts)

    # -- the budget ---------------------------------------------------------------------------

    def balanced(self, facts: Facts, budget: Budget, share: float = 0.5) -> PrivateOutput:
        """The two stages' noise set so that the second spends ``share``, by the law with less of it."""
        if self.stage is None:
            mine, others = budget, self.others
        else:
            first, mine = budget.split(1 - share, share)
            stage: Any = self.others
            noise = calibrate(
                lambda x: Composed(
                    tuple(c.mechanism.event for c in replace(stage, noise=x).charges(facts))
                ),
                first,
            )
            others = replace(stage, noise=noise)
        rank = facts.shape.ranks[self.noisy_mode(facts)]
        vector, law = 1 / mine.epsilon, "vector"
        multiplier = vector
        if not mine.pure and gaussian_multiplier(mine) < vector * sqrt(rank + 1):
            multiplier, law = gaussian_multiplier(mine), "gaussian"
        return replace(self, others=others, output_noise=multiplier, noise_law=law, noise=1.0)  # type: ignore[arg-type]

    def charges(self, facts: Facts) -> tuple[Charge, ...]:
        first = self.stage.charges(facts) if self.stage is not None else ()
        law = RowwiseVectorLaplace if self.noise_law == "vector" else Gaussian
        name = facts.modes[self.noisy_mode(facts)].name
        return (*first, Charge(f"every row of {name}", law(self.output_noise * self.noise)))

    def rounds(self, facts: Facts) -> int:
        return len(self.charges(facts))

    # -- the four functions -------------------------------------------------------------------

    def init(self, run: Run, facts: Facts) -> Others | State:
        self.check(facts)
        if isinstance(self.others, Multilinear):
            return State(facts, self.others.copy())
        return self._after(facts, self._first(), self._first().init(run, facts), 0, Info(0))[0]

    def ask(self, state: Others | State) -> PrivateQuery:
        if isinstance(state, Others):
            return self._first().ask(state.inner)
        plan = ridge_plan(state.facts, state.model, self.noisy_mode(state.facts))
        return OutputQuery(state.facts, state.model, plan)

    def update(self, state: Others | State, released: Any) -> tuple[Others | State, Info]:
        if isinstance(state, State):
            return replace(state, model=self._with_rows(state, released)), Info(1)
        stage = self._first()
        inner, info = stage.update(state.inner, released)
        return self._after(state.facts, stage, inner, state.drawn + 1, info)

    def _first(self) -> PrivateSolver[Any]:
        if self.stage is None:
            raise SettingError("the other factors are public: they have no stage of their own")
        return self.stage

    def _after(
        self, facts: Facts, stage: PrivateSolver[Any], inner: Any, drawn: int, info: Info
    ) -> tuple[Others | State, Info]:
        """After the first stage's last draw comes its post-processing, then the last question."""
        if drawn < len(stage.charges(facts)):
            return Others(facts, inner, drawn), info
        for _ in range(stage.rounds(facts) - drawn):
            inner, info = stage.update(inner, None)
        return State(facts, stage.finish(inner).model), info

    def _with_rows(self, state: State, released: Noisy) -> Multilinear:
        mode, model = self.noisy_mode(state.facts), state.model.copy()
        plan, n_rows = ridge_plan(state.facts, state.model, mode), model.shape[mode]
        if released.public:
            scales, gram = released.public
        else:  # what is expected of a row, since its features are not public
            scales = np.ones(n_rows)
            gram = np.repeat(plan.expected * np.eye(len(plan.whiten))[None], n_rows, axis=0)
        rows, deviations = released.values * scales[:, None], released.deviation * scales
        seen = deviations > 0  # rows without entries, where that is public, keep what they were
        change = np.zeros_like(rows)
        change[seen] = posterior_rows(rows[seen], deviations[seen], gram[seen], plan)
        model.factors[mode][:] += (change @ plan.whiten).astype(model.dtype)
        return model

    def finish(self, state: State) -> Finished[Multilinear]:
        """Every row is released."""
        return Finished(state.model)


def make(facts: Facts, wish: Wish) -> PrivateOutput:
    """The solver of the method "output": other factors by what suits the unit, on half of the budget."""
    if not isinstance(wish.budget, Budget):
        raise SettingError("output perturbation takes a budget of epsilon and delta, not rho")
    if isinstance(facts.unit, Value | UnitValues):
        others: PrivateSolver[Any] = InputPerturbation().suited(facts, wish.budget)
    else:
        others = make_gradient(facts, replace(wish, law="gaussian"))
    solver = PrivateOutput(others=others)
    solver.check(facts)
    return solver.balanced(facts, wish.budget)
