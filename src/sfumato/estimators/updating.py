"""``partial_fit``: a private model goes on with the entries of a new period."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from sfumato.checks import check_kind, check_text, given
from sfumato.data.shards import Shards
from sfumato.data.tensor import Mode
from sfumato.errors import SettingError
from sfumato.estimators.devices import placed
from sfumato.estimators.intake import as_tensor
from sfumato.estimators.sources import TensorSource
from sfumato.fit.admit import Protected
from sfumato.fit.choose import open_ledger
from sfumato.fit.completion import PrivateFit, carry_out_private
from sfumato.fit.request import Privacy
from sfumato.fit.update import (
    Last,
    Period,
    added,
    added_prior,
    check_apart,
    check_ledger,
    check_update,
    grown_public,
    left_of,
    new_levels_alone,
    places_of,
    promised,
    with_owners,
)
from sfumato.privacy.caveats import warn_of
from sfumato.surface import setting

if TYPE_CHECKING:
    from sfumato.estimators.base import TensorEstimator


_LOST_INTERVALS = (
    "what was released for intervals tells of the fit before, and the updated model will have none: "
    "keep a copy of the model, or fit anew"
)


def asked(estimator: TensorEstimator, privacy: Privacy | None, period: str | None) -> Privacy:
    """The privacy of an update: the one given, or the estimator's own, with the period's name."""
    check_kind(Privacy | None, "a Privacy, or None", privacy=privacy)
    check_text(**given(period=period))
    chosen = privacy or estimator.privacy
    if chosen is None:
        raise SettingError(f"an update is a private fit: give {setting('privacy')}")
    return chosen if period is None else replace(chosen, period=period)


def update(estimator: TensorEstimator, X: Any, y: Any, privacy: Privacy, by: str | None) -> None:
    """Charge a period's budget, fit what the last release leaves of its entries, and add it up.

    The estimator stays as it was until all of that is done.
    """
    if isinstance(X, Shards) or estimator.engine is not None:
        raise SettingError("an update takes entries in memory: a tensor, or a table with values")
    if estimator.loss != "squared":
        raise SettingError(
            f"numbers that are fitted as they are can be updated, and this is a fit with "
            f"{setting('loss', estimator.loss)}: fit anew"
        )
    if estimator.errors_ is not None:
        warn_of((_LOST_INTERVALS,))
    last = _last(estimator)
    tensor = as_tensor(X, y)
    check_update(last, privacy, tensor, by)
    if tensor.bounds is None:
        tensor = tensor.with_values(tensor.values, last.bounds)
    protected = Protected.by(privacy, tensor.modes)
    public = grown_public(last, tensor, protected)
    declared, privacy = protected.public, replace(privacy, public=public)
    protected = replace(protected, public=public, declared=declared)
    entropy, ledger = privacy.entropy(), open_ledger(privacy, protected.unit)
    before = estimator.periods_ or (Period.of(last.guarantee),)  # a first fit may have no name
    check_ledger(last, ledger)
    if by is not None:
        check_apart(last, ledger, before, privacy.period or "")
    source = TensorSource(tensor).admitted(protected, estimator.duplicates, entropy).cast(float)
    entries = source.tensor if by is None else new_levels_alone(last, source.tensor, by)
    rest = TensorSource(left_of(last, entries, estimator._threads))
    told = None if last.told is None else last.told.grown(entries.shape)
    plan = estimator._plan_for(rest, privacy, protected, told)
    warn_of(plan.caveats)
    facts = plan.task.facts
    device, threads = estimator.device, estimator._threads
    about = facts.expected_entries
    there = placed(device, plan.task.solver, rest, facts.shape, whole=facts.whole_units, entries=about)
    answering = rest.engine(None, 0, threads) if there is None else there(threads)
    with answering as engine, estimator._watched() as progress:
        period = privacy.period or ""
        found = carry_out_private(plan, engine, ledger, entropy, progress, period=period)
    last = last._replace(told=told)
    places = places_of(last, found.model, found.told)
    made, modes = added(last, found.model, places), list(entries.modes)
    prior = added_prior(last, found.model, found.own_prior, places, len(before) + 1)
    if facts.local is not None and prior is not None:
        made, modes[facts.local] = with_owners(last, made, prior, places, entries, estimator._threads)
    alone = plan.guarantee(ledger, entropy)
    history = (*before, Period.of(alone, by))
    guarantee = promised(alone, last.guarantee, history, ledger)
    described = _Described(tuple(modes), last.bounds, entries.n_entries)
    fit = PrivateFit(made, found.history, prior, told=places.told(found.told))
    estimator.adopt(fit, described, guarantee, facts.local)
    estimator.periods_ = history


def _last(estimator: TensorEstimator) -> Last:
    model, guarantee = estimator._fitted(), estimator.guarantee_
    if guarantee is None or estimator.bounds_ is None:
        raise SettingError(
            "this model is not private, and only private models are updated: fit it with "
            f"{setting('privacy')}"
        )
    return Last(
        model,
        estimator.modes_,
        estimator.bounds_,
        estimator.local_,
        estimator.own_prior_,
        guarantee,
        estimator.told_,
    )


class _Described:
    def __init__(
        self, modes: tuple[Mode, ...], bounds: tuple[float, float] | None, n_entries: int | None
    ) -> None:
        self.modes, self.bounds, self.n_entries = modes, bounds, n_entries
