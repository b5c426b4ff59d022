"""What a private fit can be expected to reach, and the settings that reach most: public numbers alone.

Nothing here sees data, so that planning costs nothing. What data are like is assumed
(:class:`Profile`); how much noise a solver adds is read off the solver itself.

For a level with n entries, signal of variance t, residuals of variance s, and noise of variance v in
its sum, the best linear guess of the signal loses the share (s n + v) / (t n^2 + s n + v). Biases lose
that; a component of the interactions has to be found in all modes at once, and what a mode can find of
it depends on how much the others have found: a fixed point, zero where the data are too thin. See
``docs/planner.md`` for the formulas and how close they come.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache, lru_cache
from math import floor, inf, log2, sqrt
from typing import NamedTuple

import numpy as np

from sfumato.data.profile import Profile
from sfumato.fit.outlook import Outlook
from sfumato.privacy.accounting import gaussian_multiplier
from sfumato.privacy.budgets import ZCDP, Budget
from sfumato.privacy.facts import Facts
from sfumato.privacy.mechanisms import Gaussian, Laplace
from sfumato.privacy.trust import Trust
from sfumato.privacy.units import Entry, Unit, Value
from sfumato.solvers.private.alternating.settings import slopes
from sfumato.solvers.private.alternating.solver import PrivateAlternating
from sfumato.solvers.private.biases import PrivateBiases, prefers_laplace
from sfumato.solvers.private.constant import PrivateConstant, constant_deviation
from sfumato.solvers.private.known import Known
from sfumato.solvers.private.moments.settings import STEPS, column_modes, layout, usual_rank
from sfumato.solvers.private.moments.solver import PrivateMoments
from sfumato.types import Array

_PRESENCE = 0.1  # variance of how much likelier somebody is to have an entry, by component that shows
_START = 0.03  # what a random start has found of a component, in each mode
_SWEEPS, _SETTLED = 300, 1e-6  # towards a fixed point
_FOUND = 0.01  # share of the variance that factors have to explain
_WORTH = 2e-3  # by how much factors have to be better than biases
_TIE = 1e-3  # expected errors that differ by less count as equal: the simpler fit is chosen


class Efficiency(NamedTuple):
    """By how much the noise of real fits is worse than its variance says: clipping cuts signal too.

    Fitted by ``python -m benchmarks.planner --fit``, on invented data.
    """

    biases: float
    entries: float
    units: float
    moments: float


EFFICIENCY = Efficiency(biases=1.8, entries=6.8, units=5.6, moments=12.0)
# Twice the root mean square of how far fits lay from what was expected of them, from the same run and
# rounded up. With three modes or more a random start does not find all that is there to be found.
_BIAS_BAND, _FACTOR_BAND, _TENSOR_BAND = 0.02, 0.03, 0.04


# -- what to expect -------------------------------------------------------------------------------


class Outcome(NamedTuple):
    """Expected square error, and what products of factors explain, over the variance of the values."""

    error: float
    explained: float = 0.0


def expected_constant(outlook: Outlook, solver: PrivateConstant) -> Outcome:
    """What to expect of the private constant."""
    return Outcome(1 + _constant_error(outlook, solver, 1.0))


def expected_biases(
    outlook: Outlook, solver: PrivateBiases, efficiency: Efficiency = EFFICIENCY
) -> Outcome:
    """What to expect of private biases."""
    lost = _lost_biases(outlook, _bias_noise(outlook, solver, efficiency))
    share = solver.steps(outlook.facts)[0].share
    return Outcome(outlook.unexplained(lost) + _constant_error(outlook, solver, share))


def expected_alternating(
    outlook: Outlook, solver: PrivateAlternating, rank: int, efficiency: Efficiency = EFFICIENCY
) -> Outcome:
    """What to expect of an alternating fit of this rank."""
    biases = solver.biases(outlook.facts)
    start = replace(outlook, facts=solver.bias_facts(outlook.facts))
    first = _bias_noise(start, biases, efficiency)
    scatter = start.unexplained(_lost_biases(start, first))  # what later noise is in proportion to
    noise = _row_noise(outlook, solver, rank, scatter, first, efficiency)
    lost, explained = _settled(outlook, noise, rank)
    share = biases.steps(start.facts)[0].share
    error = outlook.unexplained(lost) - explained + _constant_error(outlook, biases, share)
    return Outcome(error, explained)


def expected_moments(
    outlook: Outlook, solver: PrivateMoments, efficiency: Efficiency = EFFICIENCY
) -> Outcome:
    """What to expect of a fit by moments, of the rank of its facts.

    Columns are found in ratings, given what owners make of them, and in presence, as far as components
    show there; owners' slopes are solved without noise.
    """
    facts, biases = outlook.facts, solver.biases(outlook.facts)
    lost = _lost_biases(outlook, _bias_noise(outlook, biases, efficiency))
    share, rest = biases.steps(facts)[0].share, outlook.unexplained(lost)
    error = rest + _constant_error(outlook, biases, share)
    noise = solver.settled_noise(facts, outlook.counts)
    if len(noise) != 1:  # slopes alone, or products of three modes, which two at a time do not show
        return Outcome(error)
    (mode, left), local = noise.popitem(), facts.local or 0
    rows = efficiency.moments * rest * outlook.by_group(mode, left.ratings)
    seen = outlook.kept(mode, _PRESENCE, 1.0, efficiency.moments * outlook.by_group(mode, left.presence))
    strengths = outlook.profile.strengths[: layout(facts, mode, STEPS).ratings]
    shown = outlook.profile.presence * seen
    own = found = np.full(strengths.shape, max(_START, float(shown)))
    for _ in range(_SWEEPS):
        before = found
        own = outlook.kept(local, strengths * found, rest, 0.0)
        found = 1 - (1 - outlook.kept(mode, strengths * own, rest, rows)) * (1 - shown)
        if np.abs(found - before).max() < _SETTLED:
            break
    explained = float(strengths @ (own * found))
    return Outcome(error - explained, explained)


def expected_open(outlook: Outlook) -> Outcome:
    """What to expect of a fit without privacy, of all components: the limit of no noise.

    Where there are owners' rows and columns of one other mode, presence shows columns as it does to
    moments.
    """
    outlook = _opened(outlook)
    still = dict.fromkeys(range(len(outlook.levels)), np.zeros(1))
    shown = np.zeros(len(outlook.levels))
    if len(outlook.timeless) == 2:
        shown = np.array(
            [outlook.profile.presence * outlook.kept(m, _PRESENCE, 1.0, 0.0) for m in still]
        )
    lost, explained = _settled(outlook, _Noise(still, still), outlook.profile.components, shown)
    return Outcome(outlook.unexplained(lost) - explained, explained)


def expected_open_biases(outlook: Outlook) -> Outcome:
    """What to expect of biases without privacy."""
    outlook = _opened(outlook)
    still = dict.fromkeys(range(len(outlook.levels)), np.zeros(1))
    return Outcome(outlook.unexplained(_lost_biases(outlook, still)))


def _opened(outlook: Outlook) -> Outlook:
    """The same data where nothing is protected."""
    return replace(outlook, facts=replace(outlook.facts, unit=Entry(), local=None, trust=Trust()))


def _constant_error(outlook: Outlook, solver: PrivateConstant | PrivateBiases, share: float) -> float:
    known = Known(outlook.facts, solver.noise, solver.pure)
    number = outlook.entries
    if known.facts.unit_mode is not None:
        units = outlook.levels[known.facts.unit_mode]
        number = float(units.number @ np.minimum(units.entries / known.full_entries, 1.0))
    error = (constant_deviation(known, share) / (number * known.facts.spread)) ** 2
    local = known.facts.local
    if local is not None and isinstance(solver, PrivateBiases):  # owners make up for most of it
        prior = known.ridge / (known.ridge + outlook.levels[local].entries)
        error *= float(outlook.shares[local] @ prior**2)
    return error / (1 + error)  # shrunk towards the middle of the bounds


def _bias_noise(outlook: Outlook, solver: PrivateBiases, efficiency: Efficiency) -> dict[int, Array]:
    """Noise in a level's sums, by mode that is asked about and group of levels."""
    left = solver.settled_noise(outlook.facts, outlook.counts)
    scale = efficiency.biases / outlook.facts.spread**2
    return {mode: scale * outlook.by_group(mode, noise) for mode, noise in left.items()}


def _lost_biases(outlook: Outlook, noise: dict[int, Array]) -> Array:
    """Share of each mode's biases that is lost; what one mode loses is noise to the others."""
    prior, lost = outlook.bias_variances, np.zeros(len(outlook.levels))
    for _ in range(_SWEEPS):
        before = lost.copy()
        for mode in range(lost.shape[0]):
            rest = outlook.unexplained(lost) - prior[mode] * lost[mode]
            lost[mode] = 1 - outlook.kept(mode, prior[mode], rest, noise.get(mode, inf))
        if np.abs(lost - before).max() < _SETTLED:
            break
    return lost


class _Noise(NamedTuple):
    rows: dict[int, Array]
    biases: dict[int, Array]


def _row_noise(
    outlook: Outlook,
    solver: PrivateAlternating,
    rank: int,
    scatter: float,
    first: dict[int, Array],
    efficiency: Efficiency,
) -> _Noise:
    """Noise in the sums of rows and of biases; those of biases were asked for twice."""
    scale = scatter * (efficiency.units if outlook.facts.unit_mode is not None else efficiency.entries)
    rows, biases = {}, dict(first)
    for mode, left in solver.settled_noise(outlook.facts, outlook.counts, rank).items():
        rows[mode] = scale * outlook.by_group(mode, left.rows)
        again = scale * outlook.by_group(mode, left.biases)
        biases[mode] = 1 / (1 / again + 1 / first[mode]) if mode in first else again
    return _Noise(rows, biases)


def _settled(
    outlook: Outlook, noise: _Noise, rank: int, shown: Array | None = None
) -> tuple[Array, float]:
    """Lost shares of the biases, and the variance that the components explain.

    Round by round, as a fit finds more and more. From the same start each step finds the more the
    less noise there is, and so does the fixed point. ``shown`` is what presence shows of each mode.
    """
    facts, prior, order = outlook.facts, outlook.bias_variances, len(outlook.levels)
    strengths, own = outlook.profile.strengths[:rank], outlook.facts.unit_mode
    found, lost = np.ones((order, strengths.shape[0])), np.zeros(order)
    found[outlook.timeless] = _START
    rest = outlook.profile.noise
    for _ in range(_SWEEPS):
        before = found.copy()
        for mode in outlook.timeless:
            signal = strengths * np.delete(found, mode, 0).prod(0)
            left = 0.0 if mode == own else noise.rows[mode]
            found[mode] = outlook.kept(mode, signal, rest, left, locally=mode == own)
            if shown is not None:
                found[mode] = 1 - (1 - found[mode]) * (1 - shown[mode])
        for mode in range(order):
            others = rest - prior[mode] * lost[mode]
            lost[mode] = 1 - outlook.kept(mode, prior[mode], others, noise.biases.get(mode, inf))
        rest = outlook.unexplained(lost) - float(strengths @ found.prod(0))
        if np.abs(found - before).max() < _SETTLED:
            break
    if facts.local in outlook.timeless:  # solved once more at the end, without noise
        signal = strengths * np.delete(found, facts.local, 0).prod(0)
        found[facts.local] = outlook.kept(facts.local, signal, rest, 0.0)
    return lost, float(strengths @ found.prod(0))


# -- what to choose -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Expectation:
    """What a method is expected to reach.

    ``rmse`` is over the standard deviation of the values, ``ratio`` over the private constant's;
    ``band`` is where the ratio of nearly all fits lay, to data that follow the profile. ``explained``
    is the share of the values' variance that products of factors explain.
    """

    method: str
    rank: int
    rmse: float
    ratio: float
    width: float
    explained: float = 0.0

    @property
    def band(self) -> tuple[float, float]:
        return self.ratio * (1 - self.width), self.ratio * (1 + self.width)


@dataclass(frozen=True)
class Forecast:
    """What a budget buys: the private constant, private biases, and factors where they are served.

    ``slopes`` is the rank of a fit by moments that has nothing but biases and owners' slopes on them,
    which takes the place of biases where owners keep their rows; zero where it is not served. ``worth``
    says whether factors are worth their noise: clearly better than biases, now and with more budget.
    """

    budget: Budget | ZCDP
    constant: Expectation
    biases: Expectation
    factors: Expectation | None
    worth: bool
    slopes: int = 0

    @property
    def best(self) -> Expectation:
        """The simplest method that no other is expected to beat clearly."""
        if self.factors is not None and self.worth:
            return self.factors
        if self.biases.rmse >= (1 - _TIE) * self.constant.rmse:
            return self.constant
        if self.slopes:
            return replace(self.biases, method="moments", rank=self.slopes)
        return self.biases


def serves_factors(facts: Facts, budget: Budget | ZCDP) -> bool:
    """Whether an alternating fit is to be had: by entry, or where units keep their own rows."""
    if budget.pure:
        return False
    unit, shape = facts.unit, facts.shape
    if isinstance(unit, Unit):
        return shape.fit_biases and shape.fit_mean and facts.local == facts.unit_mode
    return shape.fit_biases and shape.fit_mean and isinstance(unit, Value | Entry)


def serves_moments(facts: Facts, budget: Budget | ZCDP) -> bool:
    """Whether a fit by moments is to be had: of a CP model whose owners keep their rows."""
    return (
        serves_factors(facts, budget)
        and isinstance(facts.unit, Entry | Unit)
        and facts.local is not None
        and facts.shape.kind == "cp"
        and bool(column_modes(facts))
    )


def _factors(facts: Facts, budget: Budget | ZCDP) -> str:
    """The method that finds factors. Moments are those of two modes: not where products are of three."""
    several = len(column_modes(facts)) > 1
    return "moments" if serves_moments(facts, budget) and not several else "alternating"


@lru_cache(maxsize=256)  # asked for by who chooses a method, and by who says what to expect of it
def forecast(
    facts: Facts,
    budget: Budget | ZCDP,
    *,
    profile: Profile | None = None,
    most: int | None = None,
    efficiency: Efficiency = EFFICIENCY,
) -> Forecast:
    """What to expect of each method within a budget; ``most`` is the largest rank to consider."""
    outlook = Outlook(facts, profile or Profile())
    constant = sqrt(expected(outlook, budget, "constant", 0, efficiency).error)
    biases = sqrt(expected(outlook, budget, "bias", 0, efficiency).error)
    factors = _best_factors(outlook, budget, constant, most, efficiency)
    worth = factors is not None and all(
        _are_worth(outlook, each, factors.rank, most, efficiency) for each in (budget, *_larger(budget))
    )
    return Forecast(
        budget,
        Expectation("constant", 0, constant, 1.0, width=0.0),
        Expectation("bias", 0, biases, biases / constant, _BIAS_BAND),
        factors,
        worth,
        min(usual_rank(facts, 0), most or usual_rank(facts))
        if _factors(facts, budget) == "moments"
        else 0,
    )


def _are_worth(
    outlook: Outlook, budget: Budget | ZCDP, rank: int, most: int | None, efficiency: Efficiency
) -> bool:
    """Whether factors of this rank, or of twice as much, clearly beat biases and the constant.

    Only where they find something: else the shares of the budget that they happen to give to the
    biases would decide. Components that need not be found are left out of it: what they cost, which is
    little, is expected, and what they bring is not.
    """
    simple = min(expected(outlook, budget, name, 0, efficiency).error for name in ("constant", "bias"))
    method = _factors(outlook.facts, budget)
    if method == "moments":
        ranks = {rank}
    else:
        rank = max(1, rank - slopes(outlook.facts))
        ranks = {rank, min(2 * rank, most or 2 * rank)}
    found = [expected(outlook, budget, method, each, efficiency) for each in ranks]
    return any(each.explained >= _FOUND and each.error < (1 - _WORTH) ** 2 * simple for each in found)


def _larger(budget: Budget | ZCDP) -> list[Budget | ZCDP]:
    """Larger budgets, the same for all that lie below them, up to 16 times the size."""
    size = budget.epsilon if isinstance(budget, Budget) else sqrt(budget.rho)
    first = floor(2 * log2(size)) + 1
    sizes = [2 ** (step / 2) for step in range(first, first + 8)]
    if isinstance(budget, Budget):
        return [replace(budget, epsilon=epsilon) for epsilon in sizes]
    return [ZCDP(root**2) for root in sizes]


def _best_factors(
    outlook: Outlook,
    budget: Budget | ZCDP,
    constant: float,
    most: int | None,
    efficiency: Efficiency,
) -> Expectation | None:
    """The least rank whose error is as good as the best."""
    if not serves_factors(outlook.facts, budget):
        return None
    if _factors(outlook.facts, budget) == "moments":
        rank = min(usual_rank(outlook.facts), most or usual_rank(outlook.facts))
        found = expected(outlook, budget, "moments", rank, efficiency)
        rmse = sqrt(found.error)
        return Expectation("moments", rank, rmse, rmse / constant, _FACTOR_BAND, found.explained)
    rank = _best_rank(outlook, budget, most, efficiency)
    outcome = expected(outlook, budget, "alternating", rank, efficiency)
    rmse = sqrt(outcome.error)
    width = _FACTOR_BAND if len(outlook.timeless) < 3 else _TENSOR_BAND
    return Expectation("alternating", rank, rmse, rmse / constant, width, outcome.explained)


def _best_rank(outlook: Outlook, budget: Budget | ZCDP, most: int | None, efficiency: Efficiency) -> int:
    """The least rank of an alternating fit that is as good as the best.

    Components that rest on released biases and counts come on top of those that have to be found: the
    profile does not know of them, and they start where they belong.
    """
    largest = min(outlook.profile.components, *(size for size in outlook.facts.sizes if size))
    most = min(largest, most or largest)
    errors = {
        rank: expected(outlook, budget, "alternating", rank, efficiency).error
        for rank in range(1, most + 1)
    }
    enough = (1 + _TIE) ** 2 * min(errors.values())
    rank = next(rank for rank, error in errors.items() if error <= enough)
    return min(rank + slopes(outlook.facts), most)


def alternating_rank(facts: Facts, budget: Budget | ZCDP, profile: Profile | None = None) -> int | None:
    """The rank that suits an alternating fit, where one is served."""
    if not serves_factors(facts, budget):
        return None
    return _best_rank(Outlook(facts, profile or Profile()), budget, None, EFFICIENCY)


def expected(
    outlook: Outlook,
    budget: Budget | ZCDP,
    method: str,
    rank: int,
    efficiency: Efficiency = EFFICIENCY,
) -> Outcome:
    """What to expect of a method within a budget: "constant", "bias", "moments" or "alternating"."""
    pure = budget.pure
    if method == "bias" and isinstance(budget, Budget):
        pure = prefers_laplace(outlook.facts, budget)
    noise = 1 / budget.epsilon if pure and isinstance(budget, Budget) else multiplier(budget)
    noise *= outlook.facts.trust.excess(Laplace(noise) if pure else Gaussian(noise))
    outlook = replace(outlook, pure=pure)
    if method == "constant":
        return expected_constant(outlook, PrivateConstant(noise, pure))
    if method == "bias":
        return expected_biases(outlook, PrivateBiases(noise, pure), efficiency)
    if method == "moments":
        facts = replace(outlook.facts, shape=outlook.facts.shape.with_rank(rank))
        return expected_moments(replace(outlook, facts=facts), PrivateMoments(noise), efficiency)
    return expected_alternating(outlook, PrivateAlternating(noise), rank, efficiency)


@cache
def multiplier(budget: Budget | ZCDP) -> float:
    """Noise multiplier of one Gaussian question that spends a budget."""
    return float((2 * budget.rho) ** -0.5) if isinstance(budget, ZCDP) else gaussian_multiplier(budget)
