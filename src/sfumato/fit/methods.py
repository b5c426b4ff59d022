"""Which private method serves a unit and a budget, from public numbers alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from sfumato.data.tensor import Mode, find_mode
from sfumato.errors import SettingError
from sfumato.fit.admit import check_labels
from sfumato.fit.private import PrivatePlan
from sfumato.privacy.budget import ZCDP, Budget
from sfumato.privacy.ledger import Ledger
from sfumato.privacy.settings import Privacy
from sfumato.privacy.unit import PrivacyUnit, Public, Unit, parse_unit
from sfumato.solvers.base import PrivateSolver, PublicShape
from sfumato.solvers.paper import PaperGradient, PaperInput, PaperOutput
from sfumato.solvers.private_biases import PrivateBiases, PrivateConstant, prefers_laplace

_JOINT = ("auto", "gradient", "bias")  # methods that can leave rows with their owners


def make_plan(
    shape: PublicShape,
    privacy: Privacy,
    method: Any,
    bounds: tuple[float, float] | None,
    entries: int | None,
    seed: int,
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
        units=_units(shape, local, privacy.public) if unit.hides_presence else None,
    )
    solver = method if not isinstance(method, str) else _solver(method, privacy, shape)
    return PrivatePlan(
        shape, solver, privacy.budget, seed, labels_assumed=privacy.public.labels is True
    ).calibrated()


def _units(shape: PublicShape, local: int | None, public: Public) -> int | None:
    """About how many rows a local mode has: the caller's word, or its public labels'."""
    if local is None:
        return None
    return public.units if public.units is not None else shape.modes[local].size


def open_ledger(privacy: Privacy, unit: PrivacyUnit, plan: PrivatePlan) -> Ledger:
    """The ledger that a fit is charged to: the caller's file, or one that lives as long as the fit."""
    if privacy.ledger is not None:
        return Ledger(unit, privacy.limit, privacy.ledger)
    return Ledger(unit, plan.budget if isinstance(plan.budget, Budget) else None)


def local_mode(privacy: Privacy, unit: PrivacyUnit, modes: Sequence[Mode]) -> int | None:
    """The mode whose rows stay with their owners."""
    if privacy.local is None:
        return None
    if privacy.local == "auto":
        joint = isinstance(unit, Unit) and privacy.analysis == "proven"
        able = not isinstance(privacy.method, str) or privacy.method in _JOINT
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
        return _paper_solver(method, shape)
    if method == "auto":
        method = choose(shape, privacy.budget)
    budget = privacy.budget
    pure = isinstance(budget, Budget) and budget.pure
    if method == "constant":
        return PrivateConstant(pure=pure)
    if method == "bias":
        return PrivateBiases(pure=isinstance(budget, Budget) and prefers_laplace(shape, budget))
    if method == "input":
        return _input_solver(privacy.noise, budget)
    if method == "gradient":
        return _gradient_solver(privacy.noise, shape, pure)
    return _output_solver(shape, budget)


def choose(shape: PublicShape, budget: Budget | ZCDP) -> str:
    """The method that ``auto`` stands for."""
    return "bias"


def _paper_solver(method: str, shape: PublicShape) -> PrivateSolver[Any]:
    solvers: dict[str, Any] = {"input": PaperInput, "gradient": PaperGradient, "output": PaperOutput}
    if method not in solvers:
        raise SettingError(f"the paper has no method {method!r}; it has {', '.join(solvers)}")
    solver: PrivateSolver[Any] = solvers[method]()
    return solver


def _gradient_solver(law: str, shape: PublicShape, pure: bool) -> PrivateSolver[Any]:
    """Noise on minibatches; for values under pure epsilon, noise on single steps."""
    if law in ("residual", "vector"):
        return PrivatePasses(noise_law=law)
    raise SettingError("gradient perturbation")
