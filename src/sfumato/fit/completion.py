"""Completions carried out: an open plan, from one start or several; a private one, through a ledger."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from sfumato.engines.protocol import Engine
from sfumato.fit.loop import Progress, Rounds, loop
from sfumato.fit.plan import Plan, PrivatePlan, Promise, model_in_words
from sfumato.models.doubts import Errors
from sfumato.models.multilinear import Multilinear
from sfumato.models.own_prior import OwnPrior
from sfumato.models.protocol import Model
from sfumato.models.told import Told
from sfumato.privacy.clipping import NotFiniteError
from sfumato.privacy.entropy import Entropy
from sfumato.privacy.facts import Facts
from sfumato.privacy.ledger import Charge, Ledger, Reservation
from sfumato.privacy.trust import PROOF as SHARES_PROOF
from sfumato.privacy.units import PrivacyUnit, Unit
from sfumato.records import record
from sfumato.sites.memory import Site
from sfumato.solvers.private.sides.queries import prior_with_means
from sfumato.solvers.protocol import DivergedError, Finished, Info, PrivateQuery, PrivateSolver
from sfumato.surface import either
from sfumato.types import Array


def _check_finite(model: Model, what: str, advice: str = "") -> None:
    if not all(np.isfinite(part).all() for part in model.parameters):
        raise DivergedError(f"{what} left the range of floating-point numbers{advice}")


# -- openly ---------------------------------------------------------------------------------------


class Fit(NamedTuple):
    """A fitted model, and what each completed sweep or pass reported.

    ``posterior`` is what a Bayesian solver knows beyond the model.
    """

    model: Any  # of the kind that the solver makes
    history: tuple[Info, ...]
    posterior: Any = None


def carry_out(plan: Plan[Any], engine: Engine, progress: Progress | None = None) -> Fit:
    """Fit the plan's model to an engine's entries; ``progress(round, rounds, info)`` is told of each."""
    engine.check_shape(plan.shape)
    fits = []
    for start in range(plan.starts):
        try:
            fits.append(_one_start(plan, start, engine, progress))
        except DivergedError:
            if start == plan.starts - 1 and not fits:
                raise
    return min(fits, key=lambda fit: _remaining(fit, engine)) if len(fits) > 1 else fits[0]


def _one_start(plan: Plan[Any], start: int, engine: Engine, progress: Progress | None) -> Fit:
    solver, run = plan.solver, replace(plan.run, seed=plan.run.seed + start)
    state = solver.init(run, plan.shape)  # which checks the settings
    number = int(solver.rounds(plan.shape))
    rounds = Rounds(number, number, progress, start * number, plan.rounds)
    done = loop(solver, state, rounds, engine.answer, _settles(solver.tolerance))
    made = solver.finish(done.state)
    _check_finite(
        made.model,
        "the fit",
        "; "
        + either(
            "raise the penalties, lower the step, or use float64", "use a lower rank, or --solver als"
        ),
    )
    return Fit(made.model, done.history, made.posterior)


def _settles(tolerance: float | None) -> Callable[[list[Info]], bool]:
    """Whether the last sweep has gained less than a tolerance."""

    def settled(history: list[Info]) -> bool:
        pairs = [(info.objective, info.train_rmse) for info in history[-2:]]
        errors = [error if objective is None else objective for objective, error in pairs]
        if tolerance is None or len(errors) < 2 or errors[0] is None or errors[1] is None:
            return False
        return errors[0] - errors[1] < tolerance * abs(errors[0])

    return settled


def _remaining(fit: Fit, engine: Engine) -> float:
    """What a fit could not lower any further: its objective, or the error of a single tensor's."""
    objective = fit.history[-1].objective if fit.history else None
    if objective is None and isinstance(fit.model, Multilinear):
        return training_rmse(fit.model, engine)
    return np.inf if objective is None else objective


@record
@dataclass(frozen=True)
class Squares:
    """Sum of the squares of what a model leaves, and of how many entries."""

    total: float
    entries: int

    def __add__(self, other: Squares) -> Squares:
        return Squares(self.total + other.total, self.entries + other.entries)


@record
@dataclass(frozen=True)
class SquaresQuery:
    """Ask how far a model is from the entries."""

    model: Multilinear

    def answer(self, site: Site) -> Squares:
        tensor = site.tensor
        misses = tensor.values - self.model.predict(tensor.coordinates, threads=site.threads)
        return Squares(float(np.square(misses, dtype=np.float64).sum()), tensor.n_entries)


def training_rmse(model: Multilinear, engine: Engine) -> float:
    """Error at the entries that the model was fitted to."""
    squares: Squares = engine.answer(SquaresQuery(model))
    return float(np.sqrt(squares.total / squares.entries))


# -- privately ------------------------------------------------------------------------------------


@record
@dataclass(frozen=True)
class Completion:
    """A private solver with the facts that it is for; ``stated`` are those that the caller declared."""

    solver: PrivateSolver[Any]
    facts: Facts
    stated: tuple[str, ...] = ()

    @property
    def noise(self) -> float:
        return self.solver.noise

    def with_noise(self, noise: float) -> Completion:
        return replace(self, solver=replace(self.solver, noise=noise))  # type: ignore[type-var]

    def check(self) -> None:
        self.solver.check(self.facts)

    @property
    def charges(self) -> tuple[Charge, ...]:
        """Of what a unit is charged; the solver's noise is that of sums over all sites."""
        charged = self.facts.trust.charged
        return tuple(Charge(c.label, charged(c.mechanism)) for c in self.solver.charges(self.facts))

    @property
    def rounds(self) -> int:
        return self.solver.rounds(self.facts)

    @property
    def unit(self) -> PrivacyUnit:
        return self.facts.unit

    @property
    def units(self) -> int | None:
        mode = self.facts.unit_mode
        return None if mode is None else self.facts.sizes[mode]

    @property
    def in_words(self) -> str:
        return f"{model_in_words(self.facts.shape)}; {self.solver.name}"

    @property
    def settings_in_words(self) -> tuple[str, ...]:
        return self.solver.in_words(self.facts)

    @property
    def promise(self) -> Promise:
        solver, facts, unit = self.solver, self.facts, self.facts.unit
        owner = owner_of(facts)
        alone = facts.trust.kind == "one owner"
        return Promise(
            unit=str(unit),
            neighbours=unit.neighbours,
            cap=unit.max_entries if isinstance(unit, Unit) else None,
            released=released_of(facts, solver.always_fits),
            kept=() if owner is None else (f"rows of {owner}",),
            owner=owner,
            method=solver.name,
            proven=solver.proven,
            proof=solver.proof if alone else f"{solver.proof}, {SHARES_PROOF}",
            exact=solver.exact,
            assumptions=self._assumptions(owner),
            trust=facts.trust.in_words(),
        )

    def _assumptions(self, owner: str | None) -> tuple[str, ...]:
        given = ["the bounds of the values are public, not taken from the data", *self.stated]
        if isinstance(self.unit, Unit):
            given.append(f"no two levels of {self.unit.mode} belong to the same one")
        if owner is not None:
            given.append(f"rows of {owner} are shown to their owners alone")
        return (*given, *self.facts.trust.assumptions, *self.solver.assumes(self.facts))


def owner_of(facts: Facts) -> str | None:
    """The mode whose rows stay with their owners."""
    return None if facts.local is None else facts.modes[facts.local].name


def released_of(facts: Facts, always: tuple[str, ...]) -> tuple[str, ...]:
    """What was asked for, and what a solver fits whether or not it was."""
    shape = facts.shape
    rows = "rows and biases" if shape.fit_biases or "biases" in always else "rows"
    parts = ["mean"] if shape.fit_mean or "mean" in always else []
    parts += [f"{rows} of {mode.name}" for m, mode in enumerate(shape.modes) if m != facts.local]
    parts += ["core"] if shape.core_size else []
    parts += ["how far values lie from predictions"] if "errors" in always else []
    if facts.local is not None:
        parts.append(f"how rows of {shape.modes[facts.local].name} are solved")
    return tuple(parts)


class PrivateFit(NamedTuple):
    """The model with local rows filled in, and what each round reported.

    ``own_prior`` says how local rows were solved, and is part of the release; so is a ``posterior``,
    where a solver has one, ``errors``, where intervals were asked for, and ``told``, what an update goes
    on from. ``own_entries``, how many each owner has, stay with their owners.
    """

    model: Multilinear
    history: tuple[Info, ...]
    own_prior: OwnPrior | None
    posterior: Model | None = None
    errors: Errors | None = None
    own_entries: Array | None = None
    told: Told | None = None


@record
@dataclass(frozen=True)
class OwnEntriesQuery:
    """Ask how many entries each owner has: an answer that stays with the owners."""

    mode: int
    size: int

    def answer(self, site: Site) -> Array:
        return np.bincount(site.tensor.coordinates[self.mode], minlength=self.size)


def carry_out_private(
    plan: PrivatePlan[Completion],
    engine: Engine,
    ledger: Ledger,
    entropy: Entropy,
    progress: Progress | None = None,
    run: str = "",
    period: str = "",
) -> PrivateFit:
    """Fit a calibrated plan's model; every draw is charged to the ledger before it is made.

    ``run`` names a fit that can be broken off, and is gone on with under the same name; ``period`` the
    part of the data that it is about.
    """
    engine.check_shape(plan.task.facts.shape)
    engine.check_trust(plan.task.facts.trust)
    engine.check_adds_up(plan.task.solver, plan.task.facts)
    reserved = ledger.reserve(plan.charges, entropy, proven=plan.proven, run=run, period=period)
    with reserved as reservation:
        drawn = draw_all(plan, engine, reservation, progress)
    engine.forget()  # own rows take other memory
    return drawn.filled(engine, plan.task.facts.local)


class Drawn(NamedTuple):
    """What a plan's draws have led to, all of it released."""

    made: Finished[Any]
    history: tuple[Info, ...]

    def filled(self, engine: Engine, local: int | None) -> PrivateFit:
        """What was made, with what stays with owners."""
        made, model, entries = self.made, self.localised(engine), None
        if made.errors is not None and local is not None:
            entries = engine.answer(OwnEntriesQuery(local, model.shape[local]))
        released = made.own_prior, made.posterior, made.errors
        return PrivateFit(model, self.history, *released, entries, made.told)

    def localised(self, engine: Engine) -> Multilinear:
        """The model with each local row solved from the release and its owner's entries."""
        model: Multilinear
        model, prior = self.made.model, self.made.own_prior
        if prior is None:
            return model
        if self.made.own_means is not None:  # of public tables alone
            prior = prior_with_means(self.made.own_means, prior, model, None)
        return engine.with_own_rows(model, prior)


def draw_all(
    plan: PrivatePlan[Any],
    engine: Engine,
    reservation: Reservation,
    progress: Progress | None = None,
) -> Drawn:
    """The rounds of a plan, with draws that were reserved for it.

    Parameters that noise has driven out of range are a fit that diverged, wherever that shows: a search
    counts it as its worst run.
    """
    solver, trust = plan.task.solver, plan.task.facts.trust

    def answer(query: PrivateQuery) -> Any:
        engine.check(query)
        return reservation.ask(lambda draw: engine.released(query, draw, trust))

    try:
        state = solver.init(plan.run, plan.task.facts)
        rounds = Rounds(plan.task.rounds, len(plan.charges), progress)
        done = loop(solver, state, rounds, answer)
        made = solver.finish(done.state)
        _check_finite(made.model, "the private fit")
    except (np.linalg.LinAlgError, NotFiniteError) as error:
        raise DivergedError(f"the private fit left the range of its arithmetic: {error}") from error
    return Drawn(made, done.history)
