"""A private fit: a plan that is calibrated before any data is seen, and the loop that carries it out."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, replace
from functools import cached_property
from math import inf
from typing import Any, NamedTuple

import numpy as np

from sfumato.data.layout import Site
from sfumato.fit.plan import Progress, check_site, model_in_words
from sfumato.models.multilinear import Multilinear
from sfumato.privacy.accounting import calibrate, epsilon_of, rho_of
from sfumato.privacy.budget import ZCDP, Budget
from sfumato.privacy.entropy import Entropy
from sfumato.privacy.events import Composed, Event, GaussianEvent
from sfumato.privacy.guarantee import Guarantee
from sfumato.privacy.ledger import Charge, Ledger, Reservation
from sfumato.privacy.unit import Unit
from sfumato.solvers.base import DivergedError, Info, PrivateSolver, PublicShape
from sfumato.solvers.own_rows import OwnPrior, solve_own


@dataclass(frozen=True)
class PrivatePlan:
    """What will be fitted, with how much noise, and what that costs: everything but the data.

    The noise that is drawn and the guarantee that is printed both derive from ``charges``.
    """

    shape: PublicShape
    solver: PrivateSolver[Any]
    budget: Budget | ZCDP
    seed: int = 0
    labels_assumed: bool = False

    def calibrated(self) -> PrivatePlan:
        """The same plan with the least noise that its budget covers."""
        self.solver.check(self.shape)
        key = self._public_numbers()
        if key not in _CALIBRATED:
            _CALIBRATED[key] = calibrate(self._event_at, self.budget)
        return self._with_noise(_CALIBRATED[key])

    def _event_at(self, noise: float) -> Event:
        return self._with_noise(noise).event

    def _with_noise(self, noise: float) -> PrivatePlan:
        return replace(self, solver=replace(self.solver, noise=noise))  # type: ignore[type-var]

    def _public_numbers(self) -> str:
        """All that calibration depends on."""
        shape = self.shape
        model = shape.make_model(shape.sizes, shape.dtype)
        modes = [(mode.name, mode.size, mode.bin) for mode in shape.modes]
        known = (shape.unit, shape.bounds, shape.entries, shape.spread, shape.local)
        wants = (shape.fit_mean, shape.fit_biases, str(shape.dtype))
        kind = (type(model).__name__, model.ranks)
        return repr((self._with_noise(1.0).solver, self.budget, modes, known, wants, kind))

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
        counted = Counter((charge.label, str(charge.mechanism)) for charge in self.charges)
        shares: defaultdict[tuple[str, str], float] = defaultdict(float)
        for charge, share in zip(self.charges, _budget_shares(self.charges), strict=True):
            shares[charge.label, str(charge.mechanism)] += share
        for (label, mechanism), times in counted.items():
            share = shares[label, mechanism]
            part = f", {share:.2g} of the budget" if share and len(counted) > 1 else ""
            lines.append(f"  {times} x {label}: {mechanism}{part}")
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
            assumptions=self.assumptions(),
        )

    def assumptions(self) -> tuple[str, ...]:
        """What has to be true for the guarantee to hold."""
        unit = self.shape.unit
        assert unit is not None
        given = ["the bounds of the values are public, not taken from the data"]
        if not unit.hides_presence:
            given.append("which cells were observed is public")
        elif self.labels_assumed:
            given.append(
                "the labels of the released modes are public, though they were read off the data"
            )
        else:
            given.append("the labels given as public are")
        if unit.hides_presence and self.shape.entries is not None:
            given.append(f"the number of entries, about {self.shape.entries:,}, is public")
        if unit.hides_presence and self.shape.local is not None:
            own = self.shape.modes[self.shape.local]
            given.append(f"that {own.name} has at most {own.size:,} levels is public")
        if isinstance(unit, Unit):
            given.append(f"no two levels of {unit.mode} belong to the same one")
        if self.shape.spread is not None:
            given.append(f"the spread of the values, about {self.shape.spread:g}, is public")
        return (*given, *self.solver.assumes(self.shape))


_CALIBRATED: dict[str, float] = {}  # fits that differ in nothing public need the same noise
_REPORTED_DELTA = 1e-6  # at which a zCDP budget is also told as epsilon


def spending(event: Event, budget: Budget | ZCDP, ledger: Ledger) -> dict[str, Any]:
    """What a guarantee says of epsilon and delta: of this fit, and of all in the ledger."""
    delta = budget.delta if isinstance(budget, Budget) else _REPORTED_DELTA
    on_file = ledger.path is not None
    return {
        "epsilon": epsilon_of(event, delta),
        "delta": delta,
        "rho": rho_of(event) if isinstance(budget, ZCDP) else None,
        "ledger": ledger.path.name if ledger.path is not None else None,
        "fits": ledger.fits if on_file else None,
        "total_epsilon": ledger.epsilon(delta) if on_file and not ledger.doubtful else None,
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
    except np.linalg.LinAlgError as error:
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
        raise DivergedError("the private fit left the range of floating-point numbers; use float64")
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


def _released(shape: PublicShape) -> tuple[str, ...]:
    model = shape.make_model(shape.sizes, shape.dtype)
    parts = ["mean"]
    parts += [f"rows of {mode.name}" for m, mode in enumerate(shape.modes) if m != shape.local]
    return (*parts, "core") if model.free_core.size else tuple(parts)
