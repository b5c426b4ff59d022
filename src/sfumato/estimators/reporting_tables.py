"""What a page shows of a model of one table, and what its holder may see besides."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from sfumato.data.profile import Profile
from sfumato.data.tensor import SparseTensor
from sfumato.errors import DataError
from sfumato.estimators.by_popularity import Told, all_groups
from sfumato.estimators.lists import empty_places
from sfumato.estimators.predicting import coordinates_of
from sfumato.estimators.reporting import part_of, rank_told, rounds_of, sizes_told
from sfumato.fit.completion import Completion
from sfumato.fit.plan import PrivatePlan
from sfumato.fit.planner import forecast
from sfumato.metrics import rmse
from sfumato.privacy.budgets import Budget
from sfumato.report.page.contents import Expected, Held, Part, Shown
from sfumato.report.records import Result
from sfumato.store import StoredModel, as_released
from sfumato.surface import either, setting
from sfumato.types import Array

if TYPE_CHECKING:
    from sfumato.estimators.base import TensorEstimator

_REFITTED = "This model was refitted with a site\u2019s raw data and is as secret as they are."
_BESIDE_RAW = (
    "This model was fitted to raw data beside noisy values of others, and is as secret as they are."
)
_MAYBE_FITTED = (
    "The entries given may be those that were fitted, at which errors are smaller than elsewhere"
)
YOURS = "These errors are for the holder of the data alone: no guarantee covers them."


def shown_of(estimator: TensorEstimator, stored: StoredModel) -> Shown:
    """Of a private model what its release holds, read as anybody would read it."""
    secret = _REFITTED if estimator.refit_ else _BESIDE_RAW if estimator.beside_raw_ else None
    promise = estimator.guarantee_
    seen = stored if promise is None else as_released(stored)
    kinds = {"CP": "CP model", "Tucker": "Tucker model", "Biases": "Mean and biases"}
    kind = kinds.get(type(estimator).__name__, "Model")
    names = " and ".join(mode.name for mode in seen.modes)
    told = Told(seen.modes, seen.local, seen.errors, lambda _: np.zeros(0))
    bounds = () if seen.bounds is None else (("values", f"{seen.bounds[0]:g} to {seen.bounds[1]:g}"),)
    facts = (("modes", sizes_told(seen.modes, seen.local)), ("rank", rank_told(seen.model)), *bounds)
    part = part_of(seen, predicts=estimator.loss == "squared")
    return Shown(
        f"{kind} of {names}",
        (*facts, ("method", estimator.method_)),
        promise,
        (part,) if part.levels else (),
        all_groups(told) if promise is not None else (),
        secret,
        expected=estimator._expected(),
    )


def held_of(estimator: TensorEstimator, held_out: Any) -> Held:
    """What is known of the data beside the model."""
    promise, local = estimator.guarantee_, estimator.local_
    entries = None if held_out is None else _as_entries(held_out)
    errors = (
        None if promise is None or estimator.errors_ is None or entries is None else estimator.errors_
    )
    told = Told(estimator.modes_, local, errors, lambda tensor: estimator.predict(tensor, unseen="bias"))
    return Held(
        results=() if entries is None else _results(estimator, entries),
        unmeasured=_unmeasured(estimator),
        remarks=() if entries is None else _remarks(estimator, entries),
        history=rounds_of(estimator.history_),
        groups=all_groups(told, entries),
        owners=_owners(estimator),
        facts=_facts(estimator),
    )


def _facts(estimator: TensorEstimator) -> tuple[tuple[str, str], ...]:
    """How many owners and entries there are."""
    facts, local = [], estimator.local_
    if estimator.guarantee_ is not None and local is not None and (mode := estimator.modes_[local]).size:
        empty = int(empty_places(mode).sum())
        said = f"{mode.size - empty:,}" + (f"; {empty:,} places are empty" if empty else "")
        facts.append((f"{mode.name}, with rows of their own", said))
    if estimator.n_entries_ is not None:
        facts.append(("entries that were fitted", f"{estimator.n_entries_:,}"))
    return tuple(facts)


def _unmeasured(estimator: TensorEstimator) -> str:
    """How to have errors on a page that has none."""
    said = f"Errors are kept in no file: give entries that were not fitted with {setting('held_out')}."
    if estimator.guarantee_ is not None and estimator.plan_ is None:
        how = either(
            "write the report before the model is saved", "fit with --report to keep a page of it"
        )
        said += f" How the fit went is known only right after it: {how}."
    return said


def _remarks(estimator: TensorEstimator, entries: SparseTensor) -> tuple[str, ...]:
    """Whom errors are for, and whether the entries may be those that were fitted."""
    remarks = () if estimator.guarantee_ is None else (YOURS,)
    fitted, own = estimator.n_entries_, estimator.own_entries_
    if fitted is None and own is not None:
        fitted = int(np.sum(own))
    if fitted is None:
        return (*remarks, f"{_MAYBE_FITTED}: how many were fitted is not known here.")
    if entries.n_entries < fitted:
        return remarks
    return (*remarks, f"{_MAYBE_FITTED}: there are {entries.n_entries:,}, and {fitted:,} were fitted.")


def _owners(estimator: TensorEstimator) -> tuple[Part, ...]:
    """All modes, of owners too, where their rows are here."""
    local = estimator.local_
    if estimator.guarantee_ is None or local is None or not estimator.modes_[local].size:
        return ()
    stored = estimator._stored(estimator.model_, {})
    part = part_of(stored, predicts=estimator.loss == "squared")
    return (replace(part, drawn=estimator.modes_[local].name),)


def _as_entries(held_out: Any) -> SparseTensor:
    if not isinstance(held_out, SparseTensor):
        raise DataError("entries that were held out are a SparseTensor, as sfumato.read makes one")
    return held_out


def _results(estimator: TensorEstimator, entries: SparseTensor) -> tuple[Result, ...]:
    """Errors of the model, and of its mean and its biases by themselves."""
    model = estimator.model_
    cells = coordinates_of(entries, estimator.modes_, "bias")
    biases = np.full(entries.n_entries, float(model.mean))
    for levels, own in zip(cells, model.mode_biases, strict=True):
        if own.size:
            biases += np.where(levels >= 0, own[levels], 0.0)

    def error(fitted: Array) -> float:
        return rmse(
            entries.values, estimator._loss.predicted(fitted, estimator.bounds_, estimator._excess)
        )

    return (
        Result(
            "constant: the model\u2019s mean", error(np.full(entries.n_entries, float(model.mean))), 0.0
        ),
        Result("the model\u2019s biases alone", error(biases), 0.0),
        Result("the model", rmse(entries.values, estimator.predict(entries, unseen="bias")), 0.0),
    )


def expected_of(plan: PrivatePlan[Completion], profile: Profile | None) -> Expected | None:
    """What the plan expected, over the private constant's error; None where no formula says it."""
    if not isinstance(plan.budget, Budget):
        return None
    facts, method = plan.task.facts, getattr(plan.task.solver, "name", "")
    found = forecast(facts, plan.budget, profile=profile)
    known = [found.best, found.constant, found.biases, found.factors]
    each = next((one for one in known if one is not None and one.method == method), None)
    return None if each is None else Expected(each.ratio, *each.band)
