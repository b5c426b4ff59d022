"""What is audited, made ready: an estimator, the data as a private fit sees them, and its plan."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import isfinite
from typing import Any

from sfumato.auditing.neighbours import Neighbours, bounds_of, built, neighbours, usual_canaries
from sfumato.auditing.trials import privacy_of
from sfumato.auditing.verdict import Promise
from sfumato.checks import check_count, check_flag, check_seed, check_share, given, wrong
from sfumato.data.tensor import SparseTensor
from sfumato.errors import SettingError
from sfumato.estimators.base import TensorEstimator
from sfumato.estimators.intake import admitted
from sfumato.fit.admit import Protected, with_labels_of
from sfumato.fit.completion import Completion
from sfumato.fit.plan import PrivatePlan
from sfumato.fit.request import Privacy
from sfumato.models.multilinear import Multilinear
from sfumato.privacy.accounting import epsilon_of
from sfumato.privacy.budgets import Budget, rounded_up
from sfumato.privacy.entropy import Entropy
from sfumato.privacy.events import GaussianEvent, flattened
from sfumato.privacy.units import PrivacyUnit, parse_unit
from sfumato.solvers.private.input.solver import InputPerturbation
from sfumato.solvers.private.output import PrivateOutput

_SHORT_SWEEPS = 12
_MOST_PROCESSES = 4096


def check_common(
    confidence: object, delta: object, seed: object, whole_fits: object, processes: object, tell: object
) -> None:
    """Settings of every kind of audit."""
    check_share(confidence=confidence)
    check_share(True, **given(delta=delta))
    check_seed(**given(seed=seed))
    check_flag(whole_fits=whole_fits)
    check_count(1, _MOST_PROCESSES, **given(processes=processes))
    if not callable(tell):
        raise wrong("tell", "a function of what is done", tell)


@dataclass(frozen=True, eq=False)
class Subject:
    """What is audited, made ready."""

    estimator: TensorEstimator
    tensor: SparseTensor
    plan: PrivatePlan[Completion]

    @classmethod
    def of(
        cls, estimator: TensorEstimator, data: Any, bounds: tuple[float, float], *, whole_fits: bool
    ) -> Subject:
        privacy, tensor = made_ready(estimator, data, bounds)
        return cls.on(estimator, privacy, tensor, whole_fits=whole_fits)

    @classmethod
    def on(
        cls, estimator: TensorEstimator, privacy: Privacy, tensor: SparseTensor, *, whole_fits: bool
    ) -> Subject:
        """The same for a privacy and data that are ready."""
        ready, entries = _with_privacy(estimator, privacy), tensor.n_entries
        plan = ready._private_plan(
            privacy, tensor.modes, tensor.values.dtype, bounds=tensor.bounds, entries=entries
        )
        solver = plan.task.solver
        if not whole_fits and _shortened(solver) is not solver:
            ready = _with_privacy(estimator, replace(privacy, method=_shortened(solver)))
        return cls(ready, tensor, plan)

    @property
    def privacy(self) -> Privacy:
        return privacy_of(self.estimator)

    @property
    def unit(self) -> PrivacyUnit:
        return unit_of(self.tensor, self.privacy)

    @property
    def start(self) -> Multilinear | None:
        """Where the rows of a fit start: public, since it follows from the seed of the start."""
        state = self.plan.task.solver.init(self.plan.run, self.plan.task.facts)
        state = getattr(state, "descending", state)
        model = getattr(state, "model", None)
        return model if isinstance(model, Multilinear) else None

    @property
    def gaussian(self) -> bool:
        """Whether all noise is Gaussian and none of it hidden by sampling."""
        return all(isinstance(part, GaussianEvent) for part, _ in flattened(self.plan.event))

    def promise(self, delta: float | None) -> Promise:
        return promised(self.plan, self.privacy, delta)

    def usual_canaries(self) -> list[str]:
        return list(usual_canaries(self.unit))

    def pair(self, canary: str) -> Neighbours:
        return neighbours(self.tensor, self.unit, canary)


def promised(plan: PrivatePlan[Any], privacy: Privacy, delta: float | None) -> Promise:
    """What a plan promises, at a delta."""
    said, budget = plan.task.promise, privacy.budget
    own = budget.delta if isinstance(budget, Budget) else 1e-6
    at = own if delta is None else delta
    accounted = epsilon_of(plan.event, at)
    if not isfinite(accounted):
        raise SettingError(f"nothing is promised at delta = {at:g}: name a larger delta")
    return Promise(
        # As it is printed, which may be less than the budget: that is what must not be exceeded.
        epsilon=float(rounded_up(accounted)),
        delta=at,
        accounted=accounted if said.proven else None,
        unit=said.unit,
        neighbours=said.neighbours,
        method=said.method,
        proven=said.proven,
    )


def made_ready(
    estimator: TensorEstimator, data: Any, bounds: tuple[float, float]
) -> tuple[Privacy, SparseTensor]:
    """The privacy without its ledger, and the data as a fit admits them; made up from a shape."""
    privacy = replace(privacy_of(estimator), ledger=None, limit=None)
    if not isinstance(data, SparseTensor):
        data = built(data, bounds)
        known = with_labels_of(data.modes, privacy.public)
        privacy = replace(privacy, public=replace(known, entries=known.entries or data.n_entries))
    bounds_of(data)
    protected = Protected.by(privacy, data.modes)
    return privacy, admitted(data, protected, estimator.duplicates, Entropy(0))


def unit_of(tensor: SparseTensor, privacy: Privacy) -> PrivacyUnit:
    return parse_unit(privacy.unit, tensor.mode_names, privacy.max_entries)


def _with_privacy(estimator: TensorEstimator, privacy: Privacy) -> TensorEstimator:
    return type(estimator)(**{**estimator.get_params(), "privacy": privacy})


def _shortened(solver: Any) -> Any:
    """The solver with as little post-processing as shows what was released."""
    if isinstance(solver, InputPerturbation) and solver.starts is None and solver.sweeps is None:
        return replace(solver, starts=1, sweeps=_SHORT_SWEEPS)
    if isinstance(solver, PrivateOutput) and _shortened(solver.others) is not solver.others:
        return replace(solver, others=_shortened(solver.others))
    return solver
