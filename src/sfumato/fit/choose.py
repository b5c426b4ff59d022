"""Which private method serves a unit and a budget, from public numbers alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from sfumato.checks import plain
from sfumato.data.profile import Profile
from sfumato.errors import SettingError
from sfumato.fit.admit import Protected, check_labels, public_facts
from sfumato.fit.completion import Completion
from sfumato.fit.plan import PrivatePlan
from sfumato.fit.request import Privacy
from sfumato.models.shape import Shape
from sfumato.models.told import Told
from sfumato.privacy.budgets import ZCDP, Budget
from sfumato.privacy.facts import Facts
from sfumato.privacy.ledger import Ledger
from sfumato.privacy.units import AnyUnit, UnitValues, Value
from sfumato.solvers.private.intervals import WithIntervals
from sfumato.solvers.protocol import PrivateSolver, Run, Wish, check_solver
from sfumato.solvers.registry import has_factors, names, private_solver, solver_class


class OpenRank(NamedTuple):
    """A rank that the plan may choose: at most which, if the caller said so."""

    most: int | None


def make_facts(
    shape: Shape,
    protected: Protected,
    bounds: tuple[float, float] | None,
    entries: int | None,
    before: Told | None = None,
) -> Facts:
    """What is public of a fit, every default settled: the one place where that is done.

    Where positions are public, so is how many ``entries`` there are, and in an update what the periods
    ``before`` have told.
    """
    if bounds is None:
        raise SettingError("a private plan needs the public bounds of the values")
    unit, public = protected.unit, protected.public
    public.check_single()
    check_labels(shape.modes, protected)
    known = public.entries if unit.hides_presence else entries
    kept = protected.local, protected.trust
    return Facts(shape, unit, bounds, known, public.spread, *kept, protected.part, before)


def make_plan(
    facts: Facts,
    protected: Protected,
    privacy: Privacy,
    method: Any,
    run: Run,
    rank: OpenRank | None = None,
) -> PrivatePlan[Completion]:
    """The calibrated plan of a private fit; never sees data."""
    solver, facts = chosen_solver(facts, privacy, method, rank)
    if privacy.intervals:
        solver = WithIntervals(solver)  # type: ignore[assignment]
    stated = public_facts(facts.modes, protected)
    return PrivatePlan(Completion(solver, facts, stated), privacy.budget, run).calibrated()


def chosen_solver(
    facts: Facts, privacy: Privacy, method: Any, rank: OpenRank | None
) -> tuple[PrivateSolver[Any], Facts]:
    """The solver of a method, or of what it leaves open, and the facts with the rank that suits it."""
    if privacy.analysis == "proven":
        chosen = _choice(method, facts, privacy, rank)
        method = chosen.method
        if rank is not None and chosen.rank is not None:
            facts = replace(facts, shape=facts.shape.with_rank(chosen.rank))
    return _solver(method, privacy, facts), facts


def _solver(method: Any, privacy: Privacy, facts: Facts) -> PrivateSolver[Any]:
    """The solver of a method, by its name or as it was given, before calibration."""
    if not isinstance(method, str):
        check_solver("method", method, private=True)
        return plain(method)
    if privacy.analysis == "proven":
        return private_solver(method, facts, Wish(privacy.budget, privacy.noise, privacy.public.step))
    if method not in names("as printed"):
        known = ", ".join(names("as printed"))
        raise SettingError(f"the paper has no method {method!r}; it has {known}")
    made: PrivateSolver[Any] = solver_class(method, "as printed")()
    return made


def open_ledger(privacy: Privacy, unit: AnyUnit) -> Ledger:
    """The ledger that a fit is charged to: the caller's file, or one that lives as long as the fit."""
    if privacy.ledger is not None:
        return Ledger(unit, privacy.limit, privacy.ledger)
    return Ledger(unit, privacy.budget)


# -- what "auto" stands for ------------------------------------------------------------------------


class Choice(NamedTuple):
    """A method, by name or as a solver, and the rank that suits it; None for the one asked for."""

    method: Any
    rank: int | None = None


def choose(
    facts: Facts,
    budget: Budget | ZCDP,
    most: int | None = None,
    profile: Profile | None = None,
    *,
    intervals: bool = False,
) -> Choice:
    """What ``auto`` stands for, from public numbers alone; ``most`` is the largest rank to choose.

    Where a value is protected by itself, noise on the values themselves is small at large epsilons,
    and all that is fitted to them after it is free. What each method can be expected to reach decides;
    with ``intervals`` among those that tell how much noise their rows have.
    """
    from sfumato.fit.planner import forecast

    found = _best(facts, budget, most, profile)
    if not intervals or _knows_doubts(found.method, facts, budget):
        return found
    if not isinstance(facts.unit, Value):
        return Choice("bias")
    best = forecast(facts, budget, profile=profile, most=most).best
    return Choice(best.method, best.rank or None)


def _knows_doubts(method: str, facts: Facts, budget: Budget | ZCDP) -> bool:
    """Whether a method tells how much noise its rows have."""
    return bool(getattr(private_solver(method, facts, Wish(budget)), "knows_doubts", False))


def _best(facts: Facts, budget: Budget | ZCDP, most: int | None, profile: Profile | None) -> Choice:
    """Among all methods."""
    from sfumato.fit.planner import forecast, multiplier, serves_factors
    from sfumato.solvers.private.pairs.settings import columns
    from sfumato.solvers.private.pairs.solver import serves_pairs

    several = facts.trust.kind != "one owner"  # who can be asked for sums alone
    if isinstance(facts.unit, Value):
        from sfumato.fit.values import best_for_values

        method, rank, _ = best_for_values(facts, budget, most, profile)
        return Choice(method, rank)
    if isinstance(facts.unit, UnitValues) or budget.pure:
        return Choice("bias")
    if not serves_factors(facts, budget):  # everything is released, or no biases are wanted
        quiet = not several and facts.calm(multiplier(budget)) >= 0.5
        return Choice("gradient" if quiet else "bias")
    best = forecast(facts, budget, profile=profile, most=most).best
    if best.method == "alternating" and facts.before is not None:
        return Choice("bias")  # periods add up in biases, and in what follows from them
    if best.method == "bias" and serves_pairs(facts, budget, most):
        return Choice("pairs", columns(facts))
    return Choice(best.method, best.rank or None)


def _choice(method: Any, facts: Facts, privacy: Privacy, rank: OpenRank | None) -> Choice:
    """The method and rank that were asked for, or what they leave open."""
    # Open fits, which import this module too, do without both.
    from sfumato.fit.planner import alternating_rank, multiplier
    from sfumato.solvers.private.alternating.solver import PrivateAlternating
    from sfumato.solvers.private.moments.settings import usual_rank
    from sfumato.solvers.private.moments.solver import PrivateMoments
    from sfumato.solvers.private.pairs.settings import columns
    from sfumato.solvers.private.pairs.solver import PrivatePairs
    from sfumato.solvers.private.seen_together import PrivateSeen
    from sfumato.solvers.private.seen_together import usual_rank as seen_rank

    most, budget, profile = None if rank is None else rank.most, privacy.budget, privacy.public.profile
    if rank is None and method == "auto":  # several ranks were asked for: the middle one stands for them
        most = int(np.median(facts.shape.ranks))
    open_rank = rank is not None and most is None
    if method == "auto":
        chosen = choose(facts, budget, most, profile, intervals=privacy.intervals)
        bare = open_rank and not has_factors(chosen.method)  # one component that stays zero
        return chosen._replace(rank=1) if bare else chosen
    if open_rank and (method == "moments" or isinstance(method, PrivateMoments)):
        return Choice(method, usual_rank(facts))
    if open_rank and (method == "alternating" or isinstance(method, PrivateAlternating)):
        return Choice(method, alternating_rank(facts, budget, profile))
    if open_rank and (method == "seen" or isinstance(method, PrivateSeen)):
        ranked = replace(facts, shape=facts.shape.with_rank(seen_rank(facts)))
        heard = not budget.pure and PrivateSeen(multiplier(budget)).asked_levels(ranked)
        if method == "seen" and not heard:
            return Choice("popularity", 1)
        return Choice(method, ranked.shape.ranks[0])
    if open_rank and (method == "pairs" or isinstance(method, PrivatePairs)):
        return Choice(method, columns(facts) or None)
    return Choice(method)
