"""Fits, decided before any data is seen: an open plan, and a private one, whatever it is about."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Hashable
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from math import inf
from numbers import Real
from typing import Any, Generic, Protocol, Self, TypeVar

from sfumato.checks import check_count, check_seed
from sfumato.errors import BudgetError
from sfumato.markup import snippet
from sfumato.models.shape import Shape
from sfumato.privacy.accounting import calibrate, covers, epsilon_of, rho_of
from sfumato.privacy.budgets import ZCDP, Budget
from sfumato.privacy.caveats import REPORTED_DELTA, caveats
from sfumato.privacy.entropy import Entropy
from sfumato.privacy.events import Composed, Event, GaussianEvent, PureEvent
from sfumato.privacy.guarantee import HOLDER_IS_TRUSTED, Guarantee
from sfumato.privacy.ledger import Charge, Ledger
from sfumato.privacy.odds import Odds, curve_points
from sfumato.privacy.sampling import SAMPLERS
from sfumato.privacy.units import AnyUnit
from sfumato.records import record
from sfumato.solvers.coupled.shape import CoupledShape
from sfumato.solvers.protocol import Run, Solver

_Shape = TypeVar("_Shape", Shape, CoupledShape)


# -- open -----------------------------------------------------------------------------------------


@record
@dataclass(frozen=True)
class Plan(Generic[_Shape]):
    """What will be fitted and how: everything but the data.

    ``starts`` fits are made from different random starts and the one with the least training error
    is kept; like a solver's tolerance, that choice looks at the data and is for non-private use.
    """

    shape: _Shape
    solver: Solver[Any, Any]
    run: Run = field(default_factory=Run)
    starts: int = 1

    def __post_init__(self) -> None:
        check_count(starts=self.starts)
        check_seed(seed=self.run.seed)
        self.solver.check(self.shape)

    @property
    def rounds(self) -> int:
        """Questions put to the data, over all starts."""
        return self.starts * int(self.solver.rounds(self.shape))

    def _repr_html_(self) -> str:
        """For notebooks."""
        return snippet("Plan", [("will fit", self.explain())])

    def explain(self) -> str:
        """The plan in words."""
        tolerance = self.solver.tolerance
        stop = "" if tolerance is None else f", until it gains less than {tolerance:g}"
        again = "" if self.starts == 1 else f", from {self.starts} starts, the best one kept"
        return f"{model_in_words(self.shape)}; {self.solver}{stop}{again}. Not private."


def model_in_words(shape: Shape | CoupledShape) -> str:
    """What kind of model of what shape."""
    if isinstance(shape, CoupledShape):
        return _relations_in_words(shape)
    sizes = " x ".join(f"{mode.name} {mode.size:,}" for mode in shape.modes)
    ranks = "rank " + " x ".join(str(r) for r in dict.fromkeys(shape.ranks))
    parts = ["a mean" if shape.fit_mean else "", "biases" if shape.fit_biases else ""]
    extras = " and ".join(part for part in parts if part)
    name = {"cp": "CP", "tucker": "Tucker"}[shape.kind]
    return f"{sizes}: {name} of {ranks}{' with ' + extras if extras else ''}, {shape.dtype}"


def _relations_in_words(shape: CoupledShape) -> str:
    parts = "; ".join(
        f"{part.name} {'Tucker' if part.tucker else 'CP'} of "
        + " x ".join(f"{shape.modes[d].name} {shape.sizes[d]:,}" for d in part.modes[: part.order])
        for part in shape.parts
    )
    return f"{parts}: rank {shape.rank}, {shape.dtype}"


# -- private --------------------------------------------------------------------------------------


@record
@dataclass(frozen=True)
class Promise:
    """What a guarantee says beside numbers: what is protected, what is released, on which grounds."""

    unit: str
    neighbours: str
    released: tuple[str, ...]
    method: str
    proven: bool
    proof: str
    exact: bool
    assumptions: tuple[str, ...]
    kept: tuple[str, ...] = ()
    owner: str | None = None
    cap: int | None = None
    tuning: str | None = None
    trust: str = HOLDER_IS_TRUSTED
    claimed: float | None = None  # epsilon that a paper claims for the whole, where it is not accounted


class Task(Protocol):
    """What a private plan is about: a solver with its facts, components of a tensor, a search."""

    @property
    def noise(self) -> float:
        """Scales all noise at once."""

    @property
    def unit(self) -> AnyUnit: ...

    @property
    def units(self) -> int | None:
        """How many units there are, where they are the levels of a mode."""

    @property
    def charges(self) -> tuple[Charge, ...]:
        """All draws, in order. Noise and guarantee both derive from this list."""

    @property
    def rounds(self) -> int: ...

    @property
    def in_words(self) -> str:
        """What is fitted, and how."""

    @property
    def settings_in_words(self) -> tuple[str, ...]: ...

    @property
    def promise(self) -> Promise: ...

    def check(self) -> None:
        """Raise a ``SettingError`` for what cannot be done."""

    def with_noise(self, noise: float) -> Self: ...


_Task = TypeVar("_Task", bound=Task)


@record
@dataclass(frozen=True)
class PrivatePlan(Generic[_Task]):
    """What will be done, with how much noise, and what that costs: everything but the data.

    The noise that is drawn and the guarantee that is printed both derive from the task's charges.
    """

    task: _Task
    budget: Budget | ZCDP
    run: Run = field(default_factory=Run)

    def calibrated(self) -> PrivatePlan[_Task]:
        """The same plan with the least noise that its budget covers."""
        self.task.check()
        # What a plan charges is all that calibration sees of it; a name or a setting may lie.
        key = (self.budget, *map(self._event_at, _PROBES))
        noise = _CALIBRATED.get(key)
        if noise is None or not covers(self.budget, self._event_at(noise)):
            noise = _CALIBRATED[key] = calibrate(self._event_at, self.budget)
        plan = replace(self, task=self.task.with_noise(noise))
        check_covered(self.budget, plan.event)
        return plan

    def _event_at(self, noise: float) -> Event:
        return composed(self.task.with_noise(noise).charges)

    @cached_property
    def charges(self) -> tuple[Charge, ...]:
        return self.task.charges

    @property
    def event(self) -> Event:
        return composed(self.charges)

    @property
    def proven(self) -> bool:
        return self.task.promise.proven

    @property
    def caveats(self) -> tuple[str, ...]:
        """What to warn of before the fit, from public numbers alone."""
        return caveats(self.budget, self.task.unit, self.task.units)

    def _repr_html_(self) -> str:
        """For notebooks."""
        first, *rest = self.explain().splitlines()
        return snippet("Private plan", [("will fit", first), *(("", line.strip()) for line in rest)])

    def explain(self) -> str:
        """The plan in words."""
        lines = [f"{self.task.in_words}, within {self.budget} for {self.task.promise.unit}."]
        lines += [f"  {line}" for line in self.task.settings_in_words]
        return "\n".join([*lines, *_draws_in_words(self.charges)])

    @property
    def odds(self) -> Odds:
        """What somebody who suspects something of a unit could learn of it, with noise nobody knows."""
        return self.guarantee(Ledger(self.task.unit), Entropy()).odds()

    def guarantee(self, ledger: Ledger, entropy: Entropy) -> Guarantee:
        """What the release promises, with noise from there."""
        promise = self.task.promise
        said = {part.name: getattr(promise, part.name) for part in fields(Promise)}
        said["assumptions"] = (*promise.assumptions, *ledger.account.assumptions)
        spent, claimed = spending(self.event, self.budget, ledger), said.pop("claimed")
        spent["curve"] = curve_points(self.event, spent["delta"])
        spent["draws"] = _draws(self.charges)
        if claimed is not None:
            spent |= {"epsilon": claimed, "total_epsilon": None, "curve": ()}
        said |= {"seeded": entropy.seeded, "sampler": SAMPLERS[entropy.sampler]}
        return Guarantee(**spent, **said, warnings=self.caveats)


_PROBES = (1.0, 7.0)  # noise at which two plans are compared
_CALIBRATED: dict[Hashable, float] = {}  # fits that charge the same need the same noise


def composed(charges: tuple[Charge, ...]) -> Event:
    """All draws, one after the other."""
    return Composed(tuple(charge.mechanism.event for charge in charges))


def check_covered(budget: Budget | ZCDP, event: Event) -> None:
    """That a plan costs no more than was asked for, however its noise was found."""
    if not covers(budget, event):
        raise BudgetError(
            f"the charges of this fit are not within {budget}, though its noise was sized for it: its "
            "solver must charge the same whenever it is asked"
        )


def spending(event: Event, budget: Budget | ZCDP, ledger: Ledger) -> dict[str, Any]:
    """What a guarantee says of epsilon and delta: of this fit, and of all in the ledger."""
    delta = budget.delta if isinstance(budget, Budget) else REPORTED_DELTA
    alone = {
        "epsilon": epsilon_of(event, delta),
        "delta": delta,
        "rho": rho_of(event) if isinstance(budget, ZCDP) else None,
    }
    if ledger.path is None:
        return alone
    account = ledger.account
    total = inf if account.doubtful else account.epsilon(delta)
    last = account.charges[-1].period if account.charges else ""
    return {
        **alone,
        "ledger": ledger.path.name,
        "period": last or None,
        "apart": len(account.periods) or None,
        "fits": account.fits,
        "ledger_mark": account.marks[-1] if account.marks else None,
        "total_epsilon": total if total < inf else None,
        "odometer_epsilon": account.telling_odometer(delta) if account.fits > 1 else None,
        "ledger_limit": str(account.limit) if account.kept else None,
    }


# -- draws in words -------------------------------------------------------------------------------


def _draws(charges: tuple[Charge, ...]) -> tuple[tuple[str, int, float], ...]:
    """What is drawn for what, how often, and with which share of the budget."""
    drawn: defaultdict[str, list[float]] = defaultdict(list)
    for charge, share in zip(charges, _budget_shares(charges), strict=True):
        drawn[charge.label].append(share)
    return tuple((label, len(shares), float(f"{sum(shares):.4g}")) for label, shares in drawn.items())


_CHARGED = "charged"  # what a draw beside others costs, which its share of the budget says


def _draws_in_words(charges: tuple[Charge, ...]) -> list[str]:
    drawn: defaultdict[tuple[str, type], list[tuple[Any, float]]] = defaultdict(list)
    for charge, share in zip(charges, _budget_shares(charges), strict=True):
        drawn[charge.label, type(charge.mechanism)].append((charge.mechanism, share))
    lines = []
    for (label, _), draws in drawn.items():
        share = sum(share for _, share in draws)
        part = f"; {share:.2g} of the budget" if share and len(drawn) > 1 else ""
        lines.append(f"  {len(draws)} x {label}: {_noise_in_words(draws[0][0], draws[-1][0])}{part}")
    return lines


def _budget_shares(charges: tuple[Charge, ...]) -> list[float]:
    """Share of the budget that each draw takes; zeros where their noise has no common measure."""
    events = [charge.mechanism.event for charge in charges]
    if all(isinstance(event, GaussianEvent) or event == PureEvent(0.0) for event in events):
        parts = [
            event.noise_multiplier**-2 if isinstance(event, GaussianEvent) else 0.0 for event in events
        ]
    else:
        parts = [epsilon_of(event, 0.0) for event in events]
    whole = sum(parts)
    return [part / whole if 0 < whole < inf else 0.0 for part in parts]


def _noise_in_words(first: Any, last: Any) -> str:
    """A mechanism with its settings, from the first draw to the last where they change."""
    named = [re.sub(r"(?<=[a-z])(?=[A-Z])", " ", type(first).__name__)]
    for part in fields(first):
        begin, end = (getattr(each, part.name) for each in (first, last))
        if isinstance(begin, Real) and not isinstance(begin, bool) and part.name != _CHARGED:
            value = f"{begin:.3g}" if begin == end else f"{begin:.3g} to {end:.3g}"
            named.append(f"{part.name.replace('_', ' ')} {value}")
    return ", ".join(named)
