"""A private fit: a plan that is calibrated before any data is seen, and the loop that carries it out."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Hashable
from dataclasses import dataclass, fields, replace
from functools import cached_property
from math import inf
from numbers import Real
from typing import Any, NamedTuple

import numpy as np

from sfumato.data.tensor import find_mode
from sfumato.errors import BudgetError
from sfumato.fit.plan import Progress, check_site, model_in_words
from sfumato.models.multilinear import Multilinear
from sfumato.privacy.accounting import calibrate, covers, epsilon_of, rho_of
from sfumato.privacy.budgets import ZCDP, Budget
from sfumato.privacy.caveats import REPORTED_DELTA, caveats
from sfumato.privacy.clipping import NotFiniteError
from sfumato.privacy.entropy import Entropy
from sfumato.privacy.events import Composed, Event, GaussianEvent
from sfumato.privacy.guarantee import Guarantee
from sfumato.privacy.ledger import Charge, Ledger, Reservation
from sfumato.privacy.units import Unit
from sfumato.sites.memory import Site
from sfumato.solvers.least_squares.own_rows import OwnPrior, solve_own
from sfumato.solvers.protocol import DivergedError, Info, PrivateSolver, PublicShape


@dataclass(frozen=True)
class PrivatePlan:
    """What will be fitted, with how much noise, and what that costs: everything but the data.

    The noise that is drawn and the guarantee that is printed both derive from ``charges``. ``facts`` are
    what the caller declared to be public, in words.
    """

    shape: PublicShape
    solver: PrivateSolver[Any]
    budget: Budget | ZCDP
    seed: int = 0
    facts: tuple[str, ...] = ()

    def calibrated(self) -> PrivatePlan:
        """The same plan with the least noise that its budget covers."""
        self.solver.check(self.shape)
        # What a plan charges is all that calibration sees of it; a name or a setting may lie.
        key = (self.budget, *map(self._event_at, _PROBES))
        noise = _CALIBRATED.get(key)
        if noise is None or not covers(self.budget, self._event_at(noise)):
            noise = _CALIBRATED[key] = calibrate(self._event_at, self.budget)
        plan = self._with_noise(noise)
        check_covered(self.budget, plan.event)
        return plan

    def _event_at(self, noise: float) -> Event:
        return self._with_noise(noise).event

    def _with_noise(self, noise: float) -> PrivatePlan:
        return replace(self, solver=replace(self.solver, noise=noise))  # type: ignore[type-var]

    @cached_property
    def charges(self) -> tuple[Charge, ...]:
        return self.solver.charges(self.shape)

    @property
    def event(self) -> Event:
        return _composed(self.charges)

    @property
    def rounds(self) -> int:
        return self.solver.rounds(self.shape)

    def explain(self) -> str:
        """The plan in words."""
        lines = [
            f"{model_in_words(self.shape)}; {self.solver.name}, within {self.budget} for "
            f"{self.shape.unit}."
        ]
        # Solvers with settings of their own may say them.
        lines += [f"  {line}" for line in getattr(self.solver, "in_words", lambda _: ())(self.shape)]
        drawn: defaultdict[tuple[str, type], list[tuple[Any, float]]] = defaultdict(list)
        for charge, share in zip(self.charges, _budget_shares(self.charges), strict=True):
            drawn[charge.label, type(charge.mechanism)].append((charge.mechanism, share))
        for (label, _), draws in drawn.items():
            share = sum(share for _, share in draws)
            part = f"; {share:.2g} of the budget" if share and len(drawn) > 1 else ""
            noise = _noise_in_words(draws[0][0], draws[-1][0])
            lines.append(f"  {len(draws)} x {label}: {noise}{part}")
        return "\n".join(lines)

    def guarantee(self, ledger: Ledger, *, seeded: bool) -> Guarantee:
        """What the release promises."""
        shape, solver = self.shape, self.solver
        unit = shape.unit
        assert unit is not None
        owner = None if shape.local is None else shape.modes[shape.local].name
        return Guarantee(
            **spending(self.event, self.budget, ledger),
            unit=str(unit),
            neighbours=unit.neighbours,
            cap=unit.max_entries if isinstance(unit, Unit) else None,
            released=_released(shape),
            kept=() if owner is None else (f"rows of {owner}",),
            owner=owner,
            method=solver.name,
            proven=solver.proven,
            proof=solver.proof,
            exact=solver.exact,
            seeded=seeded,
            assumptions=(*self.assumptions(), *ledger.account.assumptions),
            warnings=self.caveats,
        )

    @property
    def caveats(self) -> tuple[str, ...]:
        """What to warn of before the fit, from public numbers alone."""
        return caveats_within(self.budget, self.shape)

    def assumptions(self) -> tuple[str, ...]:
        """What has to be true for the guarantee to hold."""
        unit = self.shape.unit
        assert unit is not None
        given = ["the bounds of the values are public, not taken from the data", *self.facts]
        if isinstance(unit, Unit):
            given.append(f"no two levels of {unit.mode} belong to the same one")
        if self.shape.local is not None:
            own = self.shape.modes[self.shape.local].name
            given.append(f"rows of {own} are shown to their owners alone")
        return (*given, *self.solver.assumes(self.shape))


def caveats_within(budget: Budget | ZCDP, shape: PublicShape) -> tuple[str, ...]:
    """What to warn of where a budget is to protect the unit of a shape."""
    assert shape.unit is not None
    mode = shape.unit.mode
    levels = None if mode is None else shape.sizes[find_mode(shape.modes, mode)]
    return caveats(budget, shape.unit, levels)


_PROBES = (1.0, 7.0)  # noise at which two plans are compared
_CALIBRATED: dict[Hashable, float] = {}  # fits that charge the same need the same noise


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
    return {
        **alone,
        "ledger": ledger.path.name,
        "fits": account.fits,
        "total_epsilon": total if total < inf else None,
        "odometer_epsilon": account.telling_odometer(delta) if account.fits > 1 else None,
        "ledger_limit": str(account.limit) if account.kept else None,
    }


class PrivateFit(NamedTuple):
    """The model with local rows filled in, and what each round reported.

    ``own_prior`` says how local rows were solved, and is part of the release.
    """

    model: Multilinear
    history: tuple[Info, ...]
    own_prior: OwnPrior | None


def carry_out_private(
    plan: PrivatePlan, site: Site, ledger: Ledger, entropy: Entropy, progress: Progress | None = None
) -> PrivateFit:
    """Fit a calibrated plan's model; every draw is charged to the ledger before it is made."""
    check_site(plan.shape, site)
    with ledger.reserve(plan.charges, entropy, proven=plan.solver.proven) as reservation:
        drawn = draw_all(plan, site, reservation, progress)
    return PrivateFit(drawn.localised(site), drawn.history, drawn.own_prior)


class Drawn(NamedTuple):
    """What a plan's draws have led to: the released model, and how local rows are solved from it."""

    released: Multilinear
    own_prior: OwnPrior | None
    history: tuple[Info, ...]

    def localised(self, site: Site) -> Multilinear:
        """The model with each local row solved from the release and its owner's entries."""
        return (
            self.released if self.own_prior is None else solve_own(self.released, self.own_prior, site)
        )


def draw_all(
    plan: PrivatePlan, site: Site, reservation: Reservation, progress: Progress | None = None
) -> Drawn:
    """The rounds of a plan, with draws that were reserved for it.

    Parameters that noise has driven out of range are a fit that diverged, wherever that shows: a search
    counts it as its worst run.
    """
    try:
        return _drawn(plan, site, reservation, progress)
    except (np.linalg.LinAlgError, NotFiniteError) as error:
        raise DivergedError(f"the private fit left the range of its arithmetic: {error}") from error


def _drawn(plan: PrivatePlan, site: Site, reservation: Reservation, progress: Progress | None) -> Drawn:
    solver, draws, history = plan.solver, len(plan.charges), list[Info]()
    state = solver.init(plan.seed, plan.shape)
    for number in range(plan.rounds):
        released = None
        if number < draws:
            query = solver.ask(state)
            released = reservation.ask(lambda draw, q=query: solver.answer(q, site, draw))  # type: ignore[misc]
        state, info = solver.update(state, released)
        if progress is not None:
            progress(number + 1, plan.rounds, info)
        if info.completed > len(history):
            history.append(info)
    model = solver.finish(state)
    if not all(np.isfinite(part).all() for part in (model.rows, model.biases, model.free_core)):
        raise DivergedError("the private fit left the range of floating-point numbers")
    return Drawn(model, solver.own_prior(state), tuple(history))


def _composed(charges: tuple[Charge, ...]) -> Event:
    return Composed(tuple(charge.mechanism.event for charge in charges))


def _budget_shares(charges: tuple[Charge, ...]) -> list[float]:
    """Share of the budget that each draw takes; zeros where their noise has no common measure."""
    events = [charge.mechanism.event for charge in charges]
    if all(isinstance(event, GaussianEvent) for event in events):
        parts = [event.noise_multiplier**-2 for event in events if isinstance(event, GaussianEvent)]
    else:
        parts = [epsilon_of(event, 0.0) for event in events]
    whole = sum(parts)
    return [part / whole if 0 < whole < inf else 0.0 for part in parts]


def _noise_in_words(first: Any, last: Any) -> str:
    """A mechanism with its settings, from the first draw to the last where they change."""
    named = [re.sub(r"(?<=[a-z])(?=[A-Z])", " ", type(first).__name__)]
    for field in fields(first):
        begin, end = (getattr(each, field.name) for each in (first, last))
        if isinstance(begin, Real) and not isinstance(begin, bool):
            value = f"{begin:.3g}" if begin == end else f"{begin:.3g} to {end:.3g}"
            named.append(f"{field.name.replace('_', ' ')} {value}")
    return ", ".join(named)


def _released(shape: PublicShape) -> tuple[str, ...]:
    model = shape.make_model(shape.sizes, shape.dtype)
    rows = "rows and biases" if shape.fit_biases else "rows"
    parts = ["mean"] if shape.fit_mean else []
    parts += [f"{rows} of {mode.name}" for m, mode in enumerate(shape.modes) if m != shape.local]
    parts += ["core"] if model.free_core.size else []
    if shape.local is not None:
        parts.append(f"how rows of {shape.modes[shape.local].name} are solved")
    return tuple(parts)
