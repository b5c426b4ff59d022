"""Updates: new data come in, and what was released is public already.

An update is a private fit of what the last release leaves of the new entries: mean, biases and rows of
shared modes are taken off, the rest is fitted by whatever private method serves it, and the two are
added up. The new fit shrinks what it finds towards zero, by its noise, so that the last release is its
prior mean. Only new entries are looked at. What owners keep is never taken off: a row that knows their
entries of one period must not touch what is asked in another.

Who was given which entries when is what the ledger is told by the name of a *period*. Proof:
``proofs/updates.md``.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Any, NamedTuple

import numpy as np

from sfumato.data.tensor import Mode, SparseTensor
from sfumato.errors import SettingError
from sfumato.fit.admit import Protected, labels_of
from sfumato.fit.request import Privacy
from sfumato.models.multilinear import CPModel, Multilinear, TuckerModel
from sfumato.models.own_prior import OwnPrior, Pull
from sfumato.models.told import Told
from sfumato.privacy.account import Account
from sfumato.privacy.accounting import epsilon_of, rho_of
from sfumato.privacy.budgets import rounded_up
from sfumato.privacy.guarantee import Guarantee
from sfumato.privacy.ledger import Ledger
from sfumato.privacy.odds import worst_points
from sfumato.privacy.units import Public
from sfumato.sites.memory import Site
from sfumato.solvers.least_squares.own_rows import solve_own
from sfumato.surface import either, setting
from sfumato.types import Array

PROOF = "proofs/updates.md"


@dataclass(frozen=True)
class Period:
    """One fit of a model's history: of which period, and what it spent.

    ``total_epsilon`` is what the ledger had then for one unit; None where that cannot be told. ``by``
    names the mode whose levels tell this period's entries from all others', where there is one. ``fit``
    is its number in the ledger; folders of earlier versions do not say it.
    """

    label: str
    method: str
    epsilon: float
    delta: float
    total_epsilon: float | None = None
    by: str | None = None
    fit: int | None = None

    @classmethod
    def of(cls, guarantee: Guarantee, by: str | None = None) -> Period:
        """Of the guarantee of a single fit."""
        epsilon, delta, total = guarantee.epsilon, guarantee.delta, guarantee.total_epsilon
        return cls(guarantee.period or "", guarantee.method, epsilon, delta, total, by, guarantee.fits)

    def in_words(self) -> str:
        total = "no total" if self.total_epsilon is None else f"{rounded_up(self.total_epsilon)} in all"
        spent = f"epsilon {rounded_up(self.epsilon)}, then {total}"
        return f"period {self.label or 'without a name'}: {self.method}, {spent}"


class Last(NamedTuple):
    """A private model as it was last released, with owners' rows where they are at hand."""

    model: Multilinear
    modes: tuple[Mode, ...]
    bounds: tuple[float, float]
    local: int | None
    own_prior: OwnPrior | None
    guarantee: Guarantee
    told: Told | None = None


# -- what can be updated --------------------------------------------------------------------------


def check_update(last: Last, privacy: Privacy, tensor: SparseTensor, by: str | None) -> None:
    """Refuse what would not be the same promise; nothing here depends on entries."""
    guarantee = last.guarantee
    if privacy.period is None or privacy.ledger is None:
        raise SettingError(
            "an update is charged to the ledger of the model, under the name of its period: give "
            f"{setting('ledger')} and {setting('period')}"
        )
    if not guarantee.proven or privacy.analysis != "proven":
        raise SettingError("privacy that is only claimed cannot be gone on with: fit anew, proven")
    if guarantee.seeded and privacy.seed is None:
        raise SettingError(
            "the noise of this model came from a seed, and no update takes that back: fit anew "
            + either("with seed=None", "without --noise-seed")
        )
    if guarantee.ledger is None:
        raise SettingError(
            "this model was charged to no ledger, so that nothing can be added up: fit it with "
            f"{setting('ledger')} to be updated later"
        )
    if privacy.intervals:
        raise SettingError(
            "what intervals are made of is asked of one fit, and an update adds to another: leave "
            f"{setting('intervals')} out"
        )
    privacy.check_one_owner("an update")
    names = [mode.name for mode in last.modes]
    if list(tensor.mode_names) != names:
        raise SettingError(
            f"the model has the modes {', '.join(names)}, and the new entries "
            f"{', '.join(tensor.mode_names)}: give the same, in the same order"
        )
    for old, new in zip(last.modes, tensor.modes, strict=True):
        if old.bin != new.bin:
            raise SettingError(f"times of {old.name} are cut to {old.bin}: cut the new ones alike")
    if tensor.bounds not in (None, last.bounds):
        raise SettingError(
            f"the bounds of the model are {last.bounds}, and those of the new entries "
            f"{tensor.bounds}: they have to be the same"
        )
    if by is not None and (by not in names or names.index(by) == last.local):
        raise SettingError(f"{setting('by', by)}: there is no mode of that name whose rows are released")
    _check_same_promise(last, Protected.by(privacy, last.modes))


def _check_same_promise(last: Last, protected: Protected) -> None:
    if str(protected.unit) != last.guarantee.unit:
        raise SettingError(
            f"the model protects {last.guarantee.unit}, and this update {protected.unit}: they cannot "
            "add up"
        )
    if protected.local != last.local:
        kept = "none" if last.local is None else last.modes[last.local].name
        raise SettingError(
            f"whose rows stay with their owners cannot change: {setting('local')} was {kept}"
        )


def check_ledger(last: Last, ledger: Ledger) -> None:
    """It has to be the one that knows of the model's earlier fits, with all of its lines."""
    name, mark = "" if ledger.path is None else ledger.path.name, last.guarantee.ledger_mark
    known = name == last.guarantee.ledger and ledger.fits >= (last.guarantee.fits or 1)
    if not known or (mark is not None and mark not in ledger.account.marks):
        raise SettingError(
            f"{name or 'this ledger'} does not hold the charges of this model, which were made to "
            f"{last.guarantee.ledger}: give that file, as it was left"
        )


def check_apart(last: Last, ledger: Ledger, history: Sequence[Period], period: str) -> None:
    """That nobody has gone on from this model for another period since: its entries at new levels would
    look new here too.
    """
    mark, account = last.guarantee.ledger_mark, ledger.account
    if mark is None:
        return
    named = {each.label for each in history} | {period}
    since = account.charges[account.marks.index(mark) + 1 :]
    others = sorted({charge.period for charge in since} - named)
    if others:
        which = ", ".join(others) or "fits without a period"
        raise SettingError(
            f"since this model was made its ledger was charged for {which}: go on from the model that "
            f"has these entries, or, if these are the same, name the period likewise "
            f"({setting('by')} cannot tell)"
        )


# -- labels ---------------------------------------------------------------------------------------


def grown_public(last: Last, tensor: SparseTensor, protected: Protected) -> Public:
    """What is public with all labels listed: those of the model, then new ones.

    New ones are those listed now; and those in the data, where they are public, which those of owners
    never are. Of owners whose rows stay with them it says what it said.
    """
    public, listed = protected.public, dict[object, Sequence[object] | bool]()
    owners = protected.owners([mode.name for mode in last.modes])
    if not isinstance(public.labels, bool):
        listed |= public.labels
    for m, (old, new) in enumerate(zip(last.modes, tensor.modes, strict=True)):
        if m == last.local:
            continue
        more: Sequence[object] = ()
        declared = public.labels_of(old.name) is True and old.name not in owners
        if public.lists(old.name):
            more = public.listed(old.name)
        elif declared or not protected.unit.hides_presence:
            more = labels_of(new)
        listed[old.name] = _united(old, new, more)
    return replace(public, labels=listed)


def _united(old: Mode, new: Mode, more: Sequence[object]) -> Sequence[object]:
    if old.labels is None and new.labels is None and isinstance(more, range | tuple):
        return range(max(old.size, len(more)))
    known = labels_of(old)
    seen = {str(label) for label in known}
    added = [label for label in more if str(label) not in seen]
    return [*known, *added]


def new_levels_alone(last: Last, tensor: SparseTensor, by: str) -> SparseTensor:
    """Entries at levels that the model did not have: no entry of an earlier period is among them."""
    mode = tensor.mode_names.index(by)
    if tensor.modes[mode].size == last.modes[mode].size:
        raise SettingError(
            f"{by} has no new levels, and these are to tell the new entries from those before: "
            + either(f"Public(labels={{{by!r}: [...]}})", f"--public-labels {by}=FILE")
        )
    return tensor.take(tensor.coordinates[mode] >= last.modes[mode].size)


# -- what the last release leaves -----------------------------------------------------------------


def left_of(last: Last, tensor: SparseTensor, threads: int) -> SparseTensor:
    """The new entries less what was released says of them, within bounds as wide as those of values.

    Each value changes by a public number of its cell, and is clipped: neighbours stay neighbours.
    """
    low, high = last.bounds
    told = np.clip(_shared(last, tensor.shape).predict(tensor.coordinates, threads=threads), low, high)
    mean = float(np.clip(last.model.mean, low, high))
    bounds = low - mean, high - mean
    return tensor.with_values(np.clip(tensor.values - told, *bounds), bounds)


def _shared(last: Last, shape: Sequence[int]) -> Multilinear:
    """What was released of the model, with rows of zeros for levels that are new, and for all owners."""
    model = last.model
    for m, size in enumerate(shape):
        rows, biases = np.zeros((size, model.ranks[m])), np.zeros(size)
        if m != last.local:
            rows[: model.shape[m]], biases[: model.shape[m]] = model.factors[m], model.mode_biases[m]
        model = model.with_rows(m, rows, biases)
    return model


# -- adding up ------------------------------------------------------------------------------------


class Places(NamedTuple):
    """Where components of the last release and of what was found are in the model of both.

    Those of the last release come first, then those found. Components that follow from biases and counts
    (``Told.free``) are not added but take the ``places`` of those that followed from fewer periods.
    """

    last: Array
    found: Array
    again: tuple[int, ...] = ()  # of what was found: what takes a place
    places: tuple[int, ...] = ()  # of those

    def joined(self, last: Array, found: Array) -> Array:
        """Numbers of components, along the last axis."""
        whole: Array = np.concatenate([last[..., self.last], found[..., self.found]], axis=-1)
        whole[..., list(self.places)] = found[..., list(self.again)]
        return whole

    def told(self, found: Told | None) -> Told | None:
        """What was told, its components where they are now."""
        if found is None or self.places:
            return found if found is None else replace(found, free=self.places)
        added = {int(column): self.last.shape[0] + at for at, column in enumerate(self.found)}
        return replace(found, free=tuple(added[column] for column in found.free if column in added))


def places_of(last: Last, found: Multilinear, told: Told | None) -> Places:
    """Side by side, without components that are zero; at least one of each is kept."""
    columns = [np.flatnonzero(_used(model, last.local)) for model in (last.model, found)]
    before = () if last.told is None else last.told.free
    again = () if told is None else told.free
    if not again or len(again) != len(before):
        return Places(columns[0], columns[1])
    kept = np.union1d(columns[0], before).astype(np.int64)
    added = np.setdiff1d(columns[1], again)
    return Places(kept, added, again, tuple(int(at) for at in np.searchsorted(kept, before)))


def _used(model: Multilinear, local: int | None) -> Array:
    """Which components can be other than zero; at least one is kept, and of a Tucker model all."""
    used = np.ones(model.ranks[0], bool)
    for m, factor in enumerate(model.factors):
        if m != local and isinstance(model, CPModel):
            used &= factor.any(axis=0)
    used[0] |= not used.any()
    return used


def added(last: Last, found: Multilinear, places: Places) -> Multilinear:
    """What was released, and what a fit found of the rest: one model.

    Rows that stay with their owners are left zero.
    """
    before = _shared(last, found.shape)
    biases = [a + b for a, b in zip(before.mode_biases, found.mode_biases, strict=True)]
    mean, pairs = before.mean + found.mean, list(zip(before.factors, found.factors, strict=True))
    tucker = isinstance(before, TuckerModel) and isinstance(found, TuckerModel)
    factors = [np.hstack(pair) if tucker else places.joined(*pair) for pair in pairs]
    if last.local is not None:
        factors[last.local], biases[last.local] = 0 * factors[last.local], 0 * biases[last.local]
    if isinstance(before, TuckerModel) and isinstance(found, TuckerModel):
        return TuckerModel.from_factors(factors, _blocks(before, found), mean=mean, biases=biases)
    return CPModel.from_factors(factors, mean=mean, biases=biases)


def _blocks(first: TuckerModel, second: TuckerModel) -> Array:
    core = np.zeros([a + b for a, b in zip(first.ranks, second.ranks, strict=True)], first.dtype)
    core[tuple(slice(0, rank) for rank in first.ranks)] = first.core
    core[tuple(slice(rank, None) for rank in first.ranks)] = second.core
    return core


def added_prior(
    last: Last, found: Multilinear, prior: OwnPrior | None, places: Places, fits: int
) -> OwnPrior | None:
    """How own rows are solved beside components of all ``fits``, the new one included.

    Columns of several fits say the same again. What rows vary by along all of them is the mean over the
    fits: their sum would let own rows follow their few entries too far. Columns that were made anew are
    those of the new fit alone.
    """
    old = last.own_prior
    if last.local is None or (old is None and prior is None):
        return None
    local, weights = last.local, _weights(old, prior, fits)
    parts = [
        _for_columns(each, model.ranks[local])
        for each, model in zip((old, prior), (last.model, found), strict=True)
    ]
    if isinstance(found, TuckerModel):  # whose modes differ in their ranks
        first, second = (np.arange(part.precisions.shape[0]) for part in parts)
        places = Places(first, second)
    latest = prior or old
    assert latest is not None
    turns = _turned(parts, places) if any(part.turn is not None for part in parts) else None
    precisions = places.joined(*(part.precisions * w for part, w in zip(parts, weights, strict=True)))
    precisions[list(places.places)] = parts[1].precisions[list(places.again)]
    known = [each for each in (old, prior) if each is not None]
    doubts = latest.doubts if prior is not None else _longer(latest.doubts, found.shape)
    return OwnPrior(
        mode=local,
        precisions=precisions,
        mean=latest.mean,
        turn=turns,
        pull=Pull(
            places.joined(*(part.strengths for part in parts)),
            places.joined(*(part.centre for part in parts)),
        ),
        bias_precision=latest.bias_precision,
        scatter=latest.scatter if places.places else min(each.scatter for each in known),
        doubts=doubts,
        certainty=latest.certainty,
    )


def _weights(old: OwnPrior | None, new: OwnPrior | None, fits: int) -> tuple[float, float]:
    """Of precisions: a mean of variances over fits that is gone on with."""
    return (1.0, 1.0) if old is None or new is None else (fits / (fits - 1), float(fits))


class _Columns(NamedTuple):
    precisions: Array
    strengths: Array
    centre: Array
    turn: Array | None


def _for_columns(prior: OwnPrior | None, rank: int) -> _Columns:
    """What a prior says of columns; where there is none they stay near zero."""
    nothing = np.zeros(rank)
    if prior is None:
        return _Columns(np.full(rank, _NEAR_ZERO), nothing, nothing, None)
    strengths, centre = prior.pull or (nothing, nothing)
    return _Columns(prior.precisions, strengths, centre, prior.turn)


_NEAR_ZERO = 1e6  # precision of rows along components that nothing is known of


def _turned(parts: Sequence[_Columns], places: Places) -> Array:
    """Turns side by side; where there is none, none."""
    used = places.last, places.found
    whole, at = np.eye(sum(columns.shape[0] for columns in used)), 0
    for part, columns in zip(parts, used, strict=True):
        here = slice(at, at + columns.shape[0])
        if part.turn is not None:
            whole[here, here] = part.turn[np.ix_(columns, columns)]
        at = here.stop
    return whole


def _longer(doubts: tuple[Array | None, ...], sizes: Sequence[int]) -> tuple[Array | None, ...]:
    """Doubts for new levels too: as large as that of the level least known."""
    return tuple(
        doubt
        if doubt is None
        else np.concatenate([doubt, np.full(size - doubt.shape[0], doubt.max(initial=0.0))])
        for doubt, size in zip(doubts, sizes, strict=True)
    )


# -- what is promised -----------------------------------------------------------------------------


def promised(alone: Guarantee, last: Guarantee, history: Sequence[Period], ledger: Ledger) -> Guarantee:
    """What an update promises: of all that is released, whichever of its fits it comes from.

    ``alone`` is what its own fit promises, the last one of the history.
    """
    fits = [period.fit for period in history]
    numbers = None if None in fits else {fit for fit in fits if fit is not None}
    return replace(
        alone,
        **_spent_on_one_unit(alone, last, ledger.account, numbers),
        released=tuple(dict.fromkeys((*last.released, *alone.released))),
        proof=", ".join(dict.fromkeys(f"{last.proof}, {alone.proof}, {PROOF}".split(", "))),
        exact=last.exact and alone.exact,
        assumptions=tuple(dict.fromkeys((*alone.assumptions, *last.assumptions))),
        periods=len(history),
    )


def _spent_on_one_unit(
    alone: Guarantee, last: Guarantee, account: Account, fits: Collection[int] | None
) -> dict[str, Any]:
    """By the fits of a model together; where periods count apart, by the dearest."""
    events, delta = account.of_one_unit(fits), max(alone.delta, last.delta)
    total, odometer = account.epsilon(delta), account.telling_odometer(delta)
    known = not account.doubtful and total < inf
    return {
        "epsilon": max(epsilon_of(event, delta) for event in events),
        "delta": delta,
        "rho": None if None in (alone.rho, last.rho) else max(map(rho_of, events)),
        "curve": worst_points(events, delta),
        "total_epsilon": total if known else None,
        "odometer_epsilon": odometer,
    }


# -- own rows -------------------------------------------------------------------------------------


class Owned(NamedTuple):
    """A model with own rows, and the owners' mode that they are found by."""

    model: Multilinear
    owners: Mode


def with_owners(
    last: Last, model: Multilinear, prior: OwnPrior, places: Places, tensor: SparseTensor, threads: int
) -> Owned:
    """Own rows of all owners so far, those with new entries solved from these.

    Somebody who has a row already starts from it: what it leaves of the new entries is solved for, and
    added. Somebody new is solved as in a first fit, and who has no new entries keeps the row there is.
    """
    local = prior.mode
    owners, found = _all_owners(last.modes[local], tensor.modes[local])
    tensor = _at_places(tensor, local, owners, found)
    old_rows, old_biases = _old_rows(last, places, owners.size, model.ranks[local])
    had = old_rows.any(axis=1) | (old_biases != 0)
    fresh = solve_own(model.with_rows(local, 0 * old_rows, 0 * old_biases), prior, Site(tensor, threads))
    before = model.with_rows(local, old_rows, old_biases)
    left = tensor.values - before.predict(tensor.coordinates, threads=threads)
    bare = _bare(before)
    # Rows there are know already what their owners' designs say.
    again = solve_own(bare, replace(prior, pull=None, mean=0.0), Site(tensor.with_values(left), threads))
    rows = np.where(had[:, None], old_rows + again.factors[local], fresh.factors[local])
    biases = np.where(had, old_biases + again.mode_biases[local], fresh.mode_biases[local])
    return Owned(model.with_rows(local, rows, biases), owners)


def _all_owners(old: Mode, new: Mode) -> tuple[Mode, Array]:
    """Owners of a model and of new entries, and where the latter are among them."""
    names = [str(label) for label in labels_of(old)]
    at = {name: place for place, name in enumerate(names)}
    for label in labels_of(new):
        at.setdefault(str(label), len(at))
    places = np.array([at[str(label)] for label in labels_of(new)], np.int64)
    return Mode(old.name, len(at), np.array(list(at), object), old.bin), places


def _at_places(tensor: SparseTensor, mode: int, owners: Mode, places: Array) -> SparseTensor:
    coordinates = tensor.coordinates.copy()
    coordinates[mode] = places[coordinates[mode]]
    modes = tuple(owners if m == mode else other for m, other in enumerate(tensor.modes))
    return SparseTensor(coordinates, tensor.values.copy(), modes, tensor.bounds)


def _old_rows(last: Last, places: Places, owners: int, rank: int) -> tuple[Array, Array]:
    """Rows of the last model, which begin with the owners it has, along the components that it keeps."""
    local = last.local or 0
    rows, biases = np.zeros((owners, rank)), np.zeros(owners)
    kept = last.model.factors[local]
    kept = kept if isinstance(last.model, TuckerModel) else kept[:, places.last]
    rows[: kept.shape[0], : kept.shape[1]] = kept
    biases[: kept.shape[0]] = last.model.mode_biases[local]
    return rows, biases


def _bare(model: Multilinear) -> Multilinear:
    """The same components without mean and biases."""
    bare = model.copy().with_mean(0.0)
    bare.biases[:] = 0.0
    return bare
