"""Which private method serves a unit and a budget, from public numbers alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from sfumato.checks import plain
from sfumato.data.profile import Profile
from sfumato.data.tensor import Mode, find_mode
from sfumato.errors import SettingError
from sfumato.fit.admit import check_labels, public_facts, public_modes
from sfumato.fit.planner import forecast, multiplier, serves_factors
from sfumato.fit.private import PrivatePlan
from sfumato.fit.request import Privacy
from sfumato.privacy.budgets import ZCDP, Budget
from sfumato.privacy.ledger import Ledger
from sfumato.privacy.units import AnyUnit, PrivacyUnit, Unit, UnitValues, Value, parse_unit
from sfumato.solvers import (
    InputPerturbation,
    PaperGradient,
    PaperInput,
    PaperOutput,
    PrivateAlternating,
    PrivateBiases,
    PrivateConstant,
    PrivateOutput,
    PrivatePasses,
    PrivateSGD,
)
from sfumato.solvers.private.biases import prefers_laplace
from sfumato.solvers.private.gradient.solver import thinness
from sfumato.solvers.protocol import MakeModel, PrivateSolver, PublicShape, check_solver

_JOINT = ("auto", "alternating", "gradient", "bias", "constant")  # can leave rows with their owners
_RELEASES_ALL = (str, InputPerturbation, PrivateOutput, PrivatePasses)  # those that cannot


_METHOD_OF: dict[str, str] = {
    PrivateConstant.name: "constant",
    PrivateBiases.name: "bias",
    PrivateAlternating.name: "alternating",
    **dict.fromkeys((InputPerturbation.name, PaperInput.name), "input"),
    **dict.fromkeys((PrivateSGD.name, PrivatePasses.name, PaperGradient.name), "gradient"),
    **dict.fromkeys((PrivateOutput.name, PaperOutput.name), "output"),
}


def method_named(solver: str) -> str:
    """A private solver's method as :class:`Privacy` takes it; of a foreign solver its own name."""
    return _METHOD_OF.get(solver, solver)


class OpenRank(NamedTuple):
    """A rank that the plan may choose: at most which, if the caller said so, and models of any."""

    most: int | None
    models: Callable[[int], MakeModel]


def make_plan(
    shape: PublicShape,
    privacy: Privacy,
    method: Any,
    bounds: tuple[float, float] | None,
    entries: int | None,
    seed: int,
    rank: OpenRank | None = None,
) -> PrivatePlan:
    """The calibrated plan of a private fit; never sees data."""
    if bounds is None:
        raise SettingError("a private plan needs the public bounds of the values")
    unit = parse_unit(privacy.unit, [mode.name for mode in shape.modes], privacy.max_entries)
    local = local_mode(privacy, unit, shape.modes)
    check_labels(shape.modes, unit, privacy.public, local)
    shape = replace(
        shape,
        unit=unit,
        bounds=bounds,
        entries=privacy.public.entries if unit.hides_presence else entries,
        spread=privacy.public.spread,
        local=local,
    )
    if privacy.analysis == "proven":
        chosen = _choice(method, shape, privacy, rank)
        method = chosen.method
        if rank is not None and chosen.rank is not None:
            shape = replace(shape, make_model=rank.models(chosen.rank))
    if isinstance(method, str):
        solver = _solver(method, privacy, shape)
    else:
        check_solver("method", method, private=True)
        solver = plain(method)
    facts = public_facts(shape.modes, unit, privacy.public, local)
    return PrivatePlan(shape, solver, privacy.budget, seed, facts).calibrated()


def modes_of_fit(modes: Sequence[Mode], privacy: Privacy) -> tuple[Mode, ...]:
    """Modes with their public sizes, which are all that settings may depend on."""
    unit = parse_unit(privacy.unit, [mode.name for mode in modes], privacy.max_entries)
    return public_modes(modes, privacy.public, local_mode(privacy, unit, modes))


def open_ledger(privacy: Privacy, unit: AnyUnit) -> Ledger:
    """The ledger that a fit is charged to: the caller's file, or one that lives as long as the fit."""
    if privacy.ledger is not None:
        return Ledger(unit, privacy.limit, privacy.ledger)
    return Ledger(unit, privacy.budget)


def local_mode(privacy: Privacy, unit: PrivacyUnit, modes: Sequence[Mode]) -> int | None:
    """The mode whose rows stay with their owners."""
    if privacy.local is None:
        return None
    if privacy.local == "auto":
        joint = isinstance(unit, Unit) and privacy.analysis == "proven"
        able = privacy.method in _JOINT or not isinstance(privacy.method, _RELEASES_ALL)
        return find_mode(modes, unit.mode) if isinstance(unit, Unit) and joint and able else None
    if not unit.hides_presence:
        raise SettingError(
            "rows stay with their owners where presence is protected: use the unit 'entry' or a mode"
        )
    if isinstance(unit, Unit) and privacy.local != unit.mode:
        raise SettingError(f"the unit is one {unit.mode}: only rows of {unit.mode} can be its own")
    return find_mode(modes, privacy.local)


# -- from a method's name to its solver ----------------------------------------------------------


def _solver(method: str, privacy: Privacy, shape: PublicShape) -> PrivateSolver[Any]:
    """The solver of a method, before calibration."""
    if privacy.analysis == "paper":
        return _paper_solver(method)
    _check_noise(privacy.noise, method)
    budget = privacy.budget
    if method == "constant":
        return PrivateConstant(pure=_is_pure(budget))
    if method == "bias":
        return PrivateBiases(pure=isinstance(budget, Budget) and prefers_laplace(shape, budget))
    if method == "input":
        return _input_solver(privacy, shape)
    if method == "alternating":
        return _alternating_solver(budget)
    if method == "gradient":
        return _gradient_solver(privacy.noise, shape, budget)
    return _output_solver(shape, budget)


_FULL_VALUES = 3.0  # epsilon from which on noisy values beat biases, on invented ratings
_NO_VALUES = 1.0  # epsilon below which noisy values tell no more than a noisy mean, on paper W's data
_THIN = 0.02  # noise over an average row's entries, up to which gradients beat biases, on the same


class Choice(NamedTuple):
    """A method, by name or as a solver, and the rank that suits it; None for the one asked for."""

    method: Any
    rank: int | None = None


def choose(
    shape: PublicShape,
    budget: Budget | ZCDP,
    most: int | None = None,
    profile: Profile | None = None,
) -> Choice:
    """What ``auto`` stands for, from public numbers alone; ``most`` is the largest rank to choose.

    Where a value is protected by itself, noise on the values themselves is small at large epsilons,
    and all that is fitted to them after it is free. Where presence is protected, the planner says
    what each method can be expected to reach.
    """
    if isinstance(shape.unit, Value):
        epsilon = budget.epsilon if isinstance(budget, Budget) else None
        if shape.fit_biases and (epsilon is None or epsilon < _FULL_VALUES):
            return Choice("bias")
        bare = shape.fit_mean and epsilon is not None and epsilon < _NO_VALUES
        return Choice("constant" if bare else "input")
    if isinstance(shape.unit, UnitValues) or _is_pure(budget):
        return Choice("bias")
    if not serves_factors(shape, budget):  # everything is released, or no biases are wanted
        return Choice("gradient" if thinness(shape, multiplier(budget)) <= _THIN else "bias")
    best = forecast(shape, budget, profile=profile, most=most).best
    return Choice(best.method, best.rank or None)


def _choice(method: Any, shape: PublicShape, privacy: Privacy, rank: OpenRank | None) -> Choice:
    """The method and rank that were asked for, or what they leave open."""
    most, budget, profile = None if rank is None else rank.most, privacy.budget, privacy.public.profile
    if rank is None and method == "auto":  # several ranks were asked for: the middle one stands for them
        most = int(np.median(shape.make_model(shape.sizes, shape.dtype).ranks))
    open_rank = rank is not None and most is None
    if method == "auto":
        chosen = choose(shape, budget, most, profile)
        bare = open_rank and chosen.method in ("bias", "constant")  # one component that stays zero
        return chosen._replace(rank=1) if bare else chosen
    if open_rank and (method == "alternating" or isinstance(method, PrivateAlternating)):
        factors = forecast(shape, budget, profile=profile).factors
        return Choice(method, None if factors is None else factors.rank)
    return Choice(method)


_LAWS = {
    "input": ("response", "laplace", "gaussian"),
    "gradient": ("gaussian", "residual", "vector"),
}


def _check_noise(law: str, method: str) -> None:
    laws = ("auto", *_LAWS.get(method, ()))
    if law not in laws:
        raise SettingError(f"the noise of {method!r} is one of {', '.join(laws)}; got {law!r}")


def _is_pure(budget: Budget | ZCDP) -> bool:
    return isinstance(budget, Budget) and budget.pure


def _paper_solver(method: str) -> PrivateSolver[Any]:
    solvers: dict[str, Any] = {"input": PaperInput, "gradient": PaperGradient, "output": PaperOutput}
    if method not in solvers:
        raise SettingError(f"the paper has no method {method!r}; it has {', '.join(solvers)}")
    solver: PrivateSolver[Any] = solvers[method]()
    return solver


def _input_solver(privacy: Privacy, shape: PublicShape) -> PrivateSolver[Any]:
    law, budget = privacy.noise, privacy.budget
    if law == "gaussian" and _is_pure(budget):
        raise SettingError("Gaussian noise gives no pure epsilon: name a delta, such as 1e-6")
    if law == "auto" and isinstance(budget, ZCDP):
        law = "gaussian"
    solver = InputPerturbation(noise_law=law, step=privacy.public.step)  # type: ignore[arg-type]
    solver.check(shape)
    return solver.suited(shape, budget) if isinstance(budget, Budget) else solver


def _alternating_solver(budget: Budget | ZCDP) -> PrivateSolver[Any]:
    if _is_pure(budget):
        raise SettingError(
            "an alternating fit gives no pure epsilon: name a delta, such as 1e-6, or use "
            "the method 'bias'"
        )
    return PrivateAlternating()


def _gradient_solver(law: str, shape: PublicShape, budget: Budget | ZCDP) -> PrivateSolver[Any]:
    """Gaussian noise on minibatches; for values under pure epsilon, noise on single steps."""
    if law in ("residual", "vector"):
        return PrivatePasses(noise_law=law)  # type: ignore[arg-type]
    if not _is_pure(budget):
        return PrivateSGD()
    if isinstance(shape.unit, Value) and law == "auto":
        return PrivatePasses()
    raise SettingError(
        "gradient perturbation of minibatches gives no pure epsilon: name a delta, such as 1e-6, or use "
        "the method 'bias'"
    )


def _output_solver(shape: PublicShape, budget: Budget | ZCDP) -> PrivateSolver[Any]:
    """The other factors by the method that suits the unit, on half of the budget."""
    if not isinstance(budget, Budget):
        raise SettingError("output perturbation takes a budget of epsilon and delta, not rho")
    if isinstance(shape.unit, Value | UnitValues):
        others: Any = InputPerturbation().suited(shape, budget)
    else:
        others = _gradient_solver("gaussian", shape, budget)
    solver = PrivateOutput(others=others)
    solver.check(shape)
    return solver.balanced(shape, budget)
