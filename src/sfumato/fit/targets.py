"""The epsilon that a target asks for, from public numbers: an error to reach, or odds to stay within.

Budgets are looked at on one fixed grid, from below: a stricter target never has a smaller epsilon to
reach an error with, nor a larger one to stay within odds, whatever little bumps expectations have.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from decimal import ROUND_CEILING, ROUND_FLOOR, Context
from functools import lru_cache
from math import hypot, prod, sqrt
from typing import Any

from sfumato.checks import check_positive, given
from sfumato.data.profile import Profile
from sfumato.errors import SettingError
from sfumato.fit.choose import Choice, choose
from sfumato.fit.completion import Completion
from sfumato.fit.outlook import Outlook
from sfumato.fit.plan import PrivatePlan
from sfumato.fit.planner import (
    Expectation,
    Forecast,
    expected_open,
    expected_open_biases,
    forecast,
)
from sfumato.fit.values import best_for_values
from sfumato.privacy.budgets import Budget
from sfumato.privacy.caveats import LARGE_EPSILON
from sfumato.privacy.facts import Facts
from sfumato.privacy.units import Entry, Unit, Value
from sfumato.solvers.protocol import Wish
from sfumato.solvers.registry import private_solver
from sfumato.surface import setting

_GRID = (*(2 ** (step / 2) for step in range(-16, 9)), LARGE_EPSILON)
_FINE = 64  # steps between two of these
_DIGITS = 3
_NOISY_VALUES_BAND = 0.04  # of fits to noisy values: see docs/decisions.md
_HELD_OUT = 1 / 4  # of the entries that are fitted: a fifth of all
_MOST_TIMES = 1024  # the entries that there are: more is no advice
_USUAL_DELTA = 1e-6


@dataclass(frozen=True)
class Target:
    """What was wanted, and the epsilon that it takes.

    Where nothing reaches the target, an error is that of the largest epsilon that was looked at, and
    odds are those of the smallest.

    Parameters
    ----------
    wanted : str
        In words.
    epsilon : float or None
        None where no budget worth its name reaches it.
    delta : float
        Of the plan.
    method : str
        The private method that is expected to reach it.
    rmse, band
        What is expected with that epsilon, in the values' units, measured at a fifth of the entries.
    factor : float or None
        By how much odds can grow.
    helps : tuple of str
        What would, where nothing reaches the target.

    Examples
    --------
    >>> import sfumato as sf
    >>> privacy = sf.Privacy(
    ...     1, 1e-6, unit="user", public=sf.Public(labels=True, units=600)
    ... )
    >>> plan = sf.CP(privacy=privacy).plan(
    ...     [sf.Mode("user", 600), sf.Mode("item", 400)], bounds=(1, 5)
    ... )
    >>> sf.epsilon_for(
    ...     plan, rmse=0.5
    ... ).epsilon is None  # less than the noise of the data
    True
    """

    wanted: str
    epsilon: float | None
    delta: float
    method: str
    rmse: float | None
    band: tuple[float, float] | None
    factor: float | None = None
    helps: tuple[str, ...] = ()

    def in_words(self) -> str:
        """What was wanted and what it takes, in sentences."""
        expected = ""
        if self.rmse is not None and self.band is not None:
            low, high = self.band
            expected = f"an RMSE of {self.rmse:.4g} is expected, between {low:.4g} and {high:.4g}"
        if self.epsilon is None and self.factor is not None:
            return (
                f"{self.wanted}: no epsilon that is looked at keeps to it. With {_GRID[0]:.2g}, the "
                f"smallest, they grow {self.factor:.6g}-fold"
            )
        if self.epsilon is None:
            said = f"{self.wanted} is not expected to be reached"
            largest = f": with epsilon {LARGE_EPSILON:g} {expected}" if expected else ""
            return ". ".join([said + largest, *self.helps])
        if self.factor is not None:
            return (
                f"{self.wanted}: epsilon {self.epsilon:g} at most, with which they grow "
                f"{self.factor:.4g}-fold at most"
            )
        return f"{self.wanted}: epsilon {self.epsilon:g} at least, with which {expected}"


def epsilon_for(
    plan: PrivatePlan[Completion],
    *,
    rmse: float | None = None,
    share: float | None = None,
    odds: float | None = None,
    profile: Profile | None = None,
    most: int | None = None,
) -> Target:
    """The epsilon that a target asks for, for a fit like this plan's whose method is left open.

    Parameters
    ----------
    plan : PrivatePlan
        Of a completion, ``sf.CP(privacy=...).plan(modes, bounds=...)``, with any epsilon: its unit,
        delta and public numbers count.
    rmse : float or None
        The error at held-out entries that is to be reached, in the values' units: the least epsilon
        with which it is expected.
    share : float or None
        Instead, the share of the way from biases to a full fit, both without privacy.
    odds : float or None
        Instead, by how much the odds of a suspicion may grow, see :class:`sfumato.Odds`: the largest
        epsilon with which they cannot grow by more.
    profile, most
        What data are assumed to be like, and the largest rank, as for :class:`sfumato.CP`.

    Returns
    -------
    Target
        The epsilon, and what is expected with it.

    Examples
    --------
    >>> import sfumato as sf
    >>> privacy = sf.Privacy(
    ...     1, 1e-6, unit="user", public=sf.Public(labels=True, units=600)
    ... )
    >>> plan = sf.CP(privacy=privacy).plan(
    ...     [sf.Mode("user", 600), sf.Mode("item", 400)], bounds=(1, 5)
    ... )
    >>> print(sf.epsilon_for(plan, odds=3).in_words())
    odds that grow 3-fold at most: epsilon 0.912 at most, with which they grow
        2.998-fold at most
    """
    wanted = given(rmse=rmse, share=share, odds=odds)
    if len(wanted) != 1:
        raise SettingError("name one target: rmse, share or odds")
    check_positive(**{setting(f"target_{name}"): value for name, value in wanted.items()})
    if not isinstance(plan, PrivatePlan) or not isinstance(plan.task, Completion):
        raise SettingError("a target is for the plan of a private completion, sfumato.CP(...).plan(...)")
    if not isinstance(plan.budget, Budget):
        raise SettingError("a target asks for an epsilon: plan with epsilon and delta, not with rho")
    outlook = Outlook(plan.task.facts, profile or Profile())
    if odds is not None:
        return _within_odds(plan, odds, profile, most)
    aim = rmse if rmse is not None else _shared(outlook, float(share or 0))
    said = "" if share is None else f"{share:.3g} of the way from biases to a full fit, "
    found = _Search(outlook, plan.budget.delta, most, aim / outlook.facts.spread)
    return found.target(f"{said}an RMSE of {aim:.4g}")


# -- errors ---------------------------------------------------------------------------------------


def expectation(choice: Choice, found: Forecast) -> Expectation | None:
    """What to expect of a choice; None where there is no formula for it.

    Of pairs it is what is expected of the biases that they come with: at worst.
    """
    if choice.method == "pairs":
        return found.biases
    known = [found.best, found.constant, found.biases, found.factors]
    return next((each for each in known if each is not None and each.method == choice.method), None)


@dataclass(frozen=True)
class _Search:
    """For an error, over the spread of the values."""

    outlook: Outlook
    delta: float
    most: int | None
    aim: float

    def expected(self, epsilon: float) -> Expectation | None:
        facts, profile = self.outlook.facts, self.outlook.profile
        return expected_at(facts, Budget(epsilon, self.delta), profile, self.most)

    def reaches(self, epsilon: float) -> bool:
        found = self.expected(epsilon)
        return found is not None and found.rmse <= self.aim

    def least(self) -> float | None:
        return least_of(self.reaches)

    def target(self, wanted: str) -> Target:
        epsilon = self.least()
        found = self.expected(LARGE_EPSILON if epsilon is None else epsilon)
        scale = self.outlook.facts.spread
        band = None
        if found is not None:
            width = hypot(found.width, self._held_out_width())
            band = (scale * found.rmse * (1 - width), scale * found.rmse * (1 + width))
        return Target(
            wanted,
            epsilon,
            self.delta,
            "" if found is None else found.method,
            None if found is None else scale * found.rmse,
            band,
            helps=self._helps() if epsilon is None else (),
        )

    def _held_out_width(self) -> float:
        """Two relative deviations of an error that is measured at a fifth of the entries: where these
        are few, that alone hides where between the planner's bounds a fit lies.
        """
        return 2 / sqrt(2 * _HELD_OUT * self.outlook.facts.expected_entries)

    def _helps(self) -> tuple[str, ...]:
        """What would, with the numbers that are expected of it."""
        facts = self.outlook.facts
        without = facts.spread * sqrt(expected_open(self.outlook).error)
        said = [f"Without any privacy {without:.4g} is expected of these entries"]
        if self.delta == 0:
            said += self._other("a delta of 1e-6", replace(self, delta=_USUAL_DELTA))
        if isinstance(facts.unit, Unit):
            unit = replace(self.outlook, facts=replace(facts, unit=Entry()))
            said += self._other("entries protected one by one", replace(self, outlook=unit))
        times = 2
        while times <= _MOST_TIMES and times * facts.expected_entries <= prod(facts.sizes):
            entries = round(times * facts.expected_entries)
            more = replace(self.outlook, facts=replace(facts, entries=entries))
            what = f"{entries:,} entries of the same levels"
            if found := self._other(what, replace(self, outlook=more)):
                return (*said, *found)
            times *= 2
        return tuple(said)

    @staticmethod
    def _other(what: str, search: _Search) -> list[str]:
        if not search.reaches(LARGE_EPSILON):
            return []
        return [f"With {what} it is expected with epsilon {search.least() or LARGE_EPSILON:g}"]


@lru_cache(maxsize=1024)  # one grid for all targets: most of it is met again
def expected_at(
    facts: Facts, budget: Budget, profile: Profile | None = None, most: int | None = None
) -> Expectation | None:
    """What to expect of the method that ``auto`` takes within a budget."""
    choice = choose(facts, budget, most, profile)
    found = forecast(facts, budget, profile=profile, most=most)
    if isinstance(facts.unit, Value) and choice.method == "input":
        best, constant = best_for_values(facts, budget, most, profile), found.constant.rmse
        return Expectation(
            best.method, best.rank or 1, best.rmse, best.rmse / constant, _NOISY_VALUES_BAND
        )
    return expectation(choice, found)


def _shared(outlook: Outlook, share: float) -> float:
    if share > 1:
        raise SettingError(
            f"{setting('target_share')} is a share of the way to a fit without privacy, at most 1"
        )
    biases, whole = (sqrt(each(outlook).error) for each in (expected_open_biases, expected_open))
    return outlook.facts.spread * (biases + share * (whole - biases))


# -- odds -----------------------------------------------------------------------------------------


def _within_odds(
    plan: PrivatePlan[Completion], odds: float, profile: Profile | None, most: int | None
) -> Target:
    if odds <= 1:
        raise SettingError(
            f"{setting('target_odds')} is a factor above 1: odds can always grow a little"
        )

    def at(epsilon: float) -> PrivatePlan[Completion]:
        return _planned(plan, epsilon, profile, most)

    over = least_of(lambda epsilon: at(epsilon).odds.factor > odds, ROUND_FLOOR)
    epsilon = LARGE_EPSILON if over is None else over
    while epsilon >= _GRID[0] and at(epsilon).odds.factor > odds:  # odds may have little bumps, too
        epsilon = _in_digits(epsilon * (1 - 1 / _FINE), ROUND_FLOOR)
    within = epsilon >= _GRID[0]
    made = at(epsilon if within else _GRID[0])
    return Target(
        f"odds that grow {odds:.6g}-fold at most",
        epsilon if within else None,
        plan.budget.delta if isinstance(plan.budget, Budget) else 0.0,
        made.task.solver.name,
        None,
        None,
        factor=made.odds.factor,
    )


def _planned(
    plan: PrivatePlan[Completion], epsilon: float, profile: Profile | None, most: int | None
) -> PrivatePlan[Completion]:
    """The plan that ``auto`` would make within another budget."""
    facts, old = plan.task.facts, plan.budget
    budget = Budget(epsilon, old.delta if isinstance(old, Budget) else 0.0)
    choice = choose(facts, budget, most, profile)
    if choice.rank is not None:
        facts = replace(facts, shape=facts.shape.with_rank(choice.rank))
    solver: Any = private_solver(choice.method, facts, Wish(budget))
    return PrivatePlan(replace(plan.task, solver=solver, facts=facts), budget, plan.run).calibrated()


# -- one fixed grid -------------------------------------------------------------------------------


def least_of(holds: Callable[[float], bool], way: str = ROUND_CEILING) -> float | None:
    """The least epsilon at which something holds that does from there on; None where it does nowhere.

    Rounded up to where it holds, or down to where it does not. What holds less often is never found at
    a smaller epsilon: both searches go the same way until they part, and then it goes up.
    """
    high = next((epsilon for epsilon in _GRID if holds(epsilon)), None)
    if high is None:
        return None
    place = _GRID.index(high)
    if place == 0:
        return _in_digits(high, way)
    low, first, last = _GRID[place - 1], 0, _FINE
    while last - first > 1:
        middle = (first + last) // 2
        if holds(low * (high / low) ** (middle / _FINE)):
            last = middle
        else:
            first = middle
    step = last if way == ROUND_CEILING else first
    return min(LARGE_EPSILON, _in_digits(low * (high / low) ** (step / _FINE), way))


def _in_digits(epsilon: float, way: str) -> float:
    return float(Context(prec=_DIGITS, rounding=way).create_decimal(repr(epsilon)))
