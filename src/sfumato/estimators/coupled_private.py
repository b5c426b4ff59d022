"""Private fits of :class:`~sfumato.Coupled`: several relations, or one, under one promise."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from sfumato.checks import shown
from sfumato.data.cells import labels_in
from sfumato.data.relations import Relations
from sfumato.data.tensor import Mode, SparseTensor
from sfumato.errors import DataError, SettingError
from sfumato.estimators.completion import CP, Tucker
from sfumato.estimators.predicting import (
    KnownModes,
    check_told,
    coordinates_of,
    interval_at,
    read_own,
    values_at,
    values_with_own,
    within,
)
from sfumato.estimators.sources import TensorSource
from sfumato.fit.admit import Protected, admit_several
from sfumato.fit.choose import open_ledger
from sfumato.fit.completion import carry_out_private
from sfumato.fit.coupled import (
    Relation,
    Structure,
    at_once,
    carry_out_coupled,
    check_relations,
    make_coupled_plan,
    protections,
)
from sfumato.fit.loop import Progress
from sfumato.fit.own import OwnRelation, OwnRows, solve_for_owners_of_several
from sfumato.fit.plan import PrivatePlan
from sfumato.fit.request import Privacy
from sfumato.models.doubts import Interval, check_level
from sfumato.models.several import Several
from sfumato.privacy.caveats import warn_of
from sfumato.privacy.entropy import Entropy
from sfumato.privacy.guarantee import Guarantee
from sfumato.solvers.protocol import Info, Run
from sfumato.surface import setting
from sfumato.types import Array


class PrivateRelation(NamedTuple):
    """What a private fit knows of one relation that it protects."""

    name: str
    modes: tuple[Mode, ...]
    bounds: tuple[float, float] | None
    local: int | None
    own_entries: Array | None = None  # how many each owner has, where intervals need it


class PrivateCoupledFit(NamedTuple):
    """What a private fit of relations has made."""

    model: Several
    relations: dict[str, PrivateRelation]
    guarantee: Guarantee
    history: tuple[Info, ...]
    posterior: Any = None


class Prepared(NamedTuple):
    """Relations as a private fit may see them, and its plan."""

    plan: PrivatePlan[Any]
    tensors: dict[str, SparseTensor]
    relations: dict[str, PrivateRelation]


def tensors_of(X: Any) -> tuple[dict[str, SparseTensor], dict[str, str]]:
    """Tensors by name, and how each is structured."""
    if isinstance(X, Relations):
        for relation in X.values():
            if relation.absent == "zero":
                raise SettingError(
                    f"absent cells of {relation.name!r} are zeros, which a private fit would have to "
                    "hide one by one: write the zeros out as entries, or take absent cells as missing"
                )
        return (
            {name: relation.tensor for name, relation in X.items()},
            {name: relation.structure for name, relation in X.items()},
        )
    if not isinstance(X, Mapping) or not X:
        raise SettingError('give tensors by name: fit({"ratings": tensor, ...})')
    for name, tensor in X.items():
        if not isinstance(name, str):
            raise SettingError(f"names of relations are text, got {name!r}")
        if not isinstance(tensor, SparseTensor):
            raise DataError(f"relation {name!r} is no SparseTensor: read it with sfumato.read")
    return dict(X), dict.fromkeys(X, "cp")


def fit_privately(
    X: Any, privacy: Privacy, rank: int | None, run: Run, progress: Progress | None
) -> PrivateCoupledFit:
    """Fit relations under one promise; one that is alone as :class:`~sfumato.CP` would."""
    tensors, structures = tensors_of(X)
    names = check_relations(privacy, list(tensors))
    if len(tensors) == 1 and not at_once(privacy):
        return _alone(names[0], tensors[names[0]], structures[names[0]], privacy, rank, run, progress)
    entropy = privacy.entropy()
    ready = prepared(tensors, structures, privacy, rank, run, entropy)
    warn_of(ready.plan.caveats)
    ledger = open_ledger(privacy, ready.plan.task.unit)
    if len(names) == 1 and not at_once(privacy):
        return _beside_tables(ready, names[0], ledger, entropy, progress)
    chosen = [ready.tensors[name] for name in names]
    made = carry_out_coupled(ready.plan, chosen, ledger, entropy, progress)
    guarantee = ready.plan.guarantee(ledger, entropy)
    relations = {
        name: known._replace(own_entries=entries)
        for (name, known), entries in zip(ready.relations.items(), made.own_entries, strict=True)
    }
    return PrivateCoupledFit(made.model, relations, guarantee, made.history, made.posterior)


def plan_privately(X: Any, privacy: Privacy, rank: int | None, run: Run) -> PrivatePlan[Any]:
    """What :func:`fit_privately` will do; nothing is drawn or charged."""
    tensors, structures = tensors_of(X)
    (first, *others) = check_relations(privacy, list(tensors))
    if len(tensors) > 1 or at_once(privacy) or others:
        return prepared(tensors, structures, privacy, rank, run, Entropy(0)).plan
    tensor, kind = tensors[first], Tucker if structures[first] == "tucker" else CP
    own = replace(privacy, public=privacy.public.of_relation(first, several=False))
    single = kind(rank, privacy=own, seed=run.seed, threads=run.threads)
    protected = Protected.by(own, tensor.modes)
    ready = TensorSource(tensor).admitted(protected, "error", Entropy(0))
    return single._private_plan(
        own, ready.modes, bounds=ready.bounds, entries=ready.n_entries, protected=protected
    )


def prepared(
    tensors: dict[str, SparseTensor],
    structures: dict[str, str],
    privacy: Privacy,
    rank: int | None,
    run: Run,
    entropy: Any,
) -> Prepared:
    """Admit the relations and plan for them."""
    names = check_relations(privacy, list(tensors))
    _check_connected(tensors)
    protected = protections(privacy, tensors, names)
    admitted = admit_several(tensors, protected, privacy.public, entropy)
    relations = [
        Relation(
            name,
            admitted[name].modes,
            protected[name],
            admitted[name].bounds or (0.0, 0.0),
            admitted[name].n_entries,
            Structure(structures[name], rank),  # type: ignore[arg-type]
        )
        for name in names
    ]
    tables = {name: tensor for name, tensor in tensors.items() if name not in names}
    plan = make_coupled_plan(relations, tables, privacy, run)
    known = {
        name: PrivateRelation(name, admitted[name].modes, admitted[name].bounds, protected[name].local)
        for name in names
    }
    return Prepared(plan, admitted, known)


def _check_connected(tensors: Mapping[str, SparseTensor]) -> None:
    """Relations that share no mode have nothing to say to each other; names of modes are public."""
    left = {name: set(tensor.mode_names) for name, tensor in tensors.items()}
    reached = left.pop(next(iter(left)))
    while left:
        near = [name for name, modes in left.items() if modes & reached]
        if not near:
            raise DataError(
                f"{', '.join(map(repr, left))} shares no mode with the others: fit it by itself, or "
                "give what they share the same mode name"
            )
        for name in near:
            reached |= left.pop(name)


def _alone(
    name: str,
    tensor: SparseTensor,
    structure: str,
    privacy: Privacy,
    rank: int | None,
    run: Run,
    progress: Progress | None,
) -> PrivateCoupledFit:
    """A single relation: the same fit, and the same bits, as that of its tensor."""
    own = replace(privacy, public=privacy.public.of_relation(name, several=False))
    settings: dict[str, Any] = {"seed": run.seed, "threads": run.threads, "progress": progress}
    kind = Tucker if structure == "tucker" else CP
    model = kind(rank, privacy=own, **settings).fit(tensor)
    if model.guarantee_ is None:
        raise RuntimeError("a private fit has a guarantee")
    known = PrivateRelation(name, model.modes_, model.bounds_, model.local_, model.own_entries_)
    several = Several((model.model_,), (model.own_prior_,), errors=(model.errors_,))
    return PrivateCoupledFit(several, {name: known}, model.guarantee_, model.history_)


def _beside_tables(
    ready: Prepared,
    name: str,
    ledger: Any,
    entropy: Any,
    progress: Progress | None,
) -> PrivateCoupledFit:
    """One protected relation beside public tables: its sites may be anybody's, as those of a tensor."""
    plan, known = ready.plan, ready.relations[name]
    facts = plan.task.facts
    source = TensorSource(ready.tensors[name].astype(np.float64))
    together = known.local if known.local is not None else facts.unit_mode or 0
    sites = 1 if facts.trust.kind == "one owner" else facts.trust.sites
    with source.engine(None, together, plan.run.threads, sites) as engine:
        made = carry_out_private(plan, engine, ledger, entropy, progress)
    guarantee = plan.guarantee(ledger, entropy)
    several = Several((made.model,), (made.own_prior,), errors=(made.errors,))
    known = known._replace(own_entries=made.own_entries)
    return PrivateCoupledFit(several, {name: known}, guarantee, made.history)


# -- predicting -------------------------------------------------------------------------------------


class PrivatePrediction(NamedTuple):
    """How a private fit of relations predicts, with rows of those who bring entries of their own."""

    model: Several
    relations: Mapping[str, PrivateRelation]
    threads: int
    unseen: str

    def answer(
        self, relation: str, cells: Any, own: Any, own_value: Any, level: float | None
    ) -> Array | Interval:
        """Values of cells of a relation, within its bounds; with a level, what lies about them."""
        known, part = self.relations[relation], list(self.relations).index(relation)
        model, errors, rows = self.model.models[part], self.model.errors_of(part), None
        if level is not None:
            check_level(level)
            check_told(errors)
        if own is not None:
            rows = self._own_rows(relation, part, own, own_value)
            self._check_owners(known, rows, cells)
            values = values_with_own(model, known.modes, rows, cells, self.unseen, self.threads)
        elif own_value is not None:
            raise SettingError(
                f"{setting('own_value')} says how own entries are read: give {setting('own')} as well"
            )
        else:
            empty = next((mode.name for mode in known.modes if not mode.size), None)
            if empty is not None and self.unseen == "error":
                raise SettingError(
                    f"rows of {empty} stay with their owners: this release has none of them. Bring "
                    f"entries of their own by {setting('own')}"
                )
            values = values_at(model, coordinates_of(cells, known.modes, self.unseen), self.threads)
        values = within(known.bounds, values)
        if level is None or errors is None:
            return values
        cell_modes = KnownModes(known.modes, known.bounds, known.local, known.own_entries)
        return interval_at(errors, cell_modes, cells, rows, self.unseen, values, float(level))

    def _own_rows(self, relation: str, part: int, own: Any, own_value: Any) -> OwnRows:
        """Rows of those who bring entries, solved from these and the release."""
        known = self.relations[relation]
        if known.local is None or self.model.own_priors[part] is None:
            raise SettingError(
                f"{relation!r} has no rows that own entries could solve: all of them were released, or "
                "what was fitted is the same for everyone"
            )
        if not isinstance(own, Mapping):
            own = {relation: own}
        self._check_named("own entries are", own)
        values = own_value if isinstance(own_value, Mapping) else dict.fromkeys(own, own_value)
        self._check_named(f"{setting('own_value')} is", values)
        brought = [
            OwnRelation(
                each.modes,
                each.local,
                read_own(own[name], values.get(name), each.modes, each.bounds, None)
                if name in own
                else None,
            )
            for name, each in self.relations.items()
        ]
        skip = self.unseen == "bias"
        return solve_for_owners_of_several(
            self.model, brought, part, skip_unknown=skip, threads=self.threads
        )

    def _check_named(self, what: str, named: Mapping[Any, Any]) -> None:
        unknown = [name for name in named if name not in self.relations]
        if unknown:
            raise SettingError(
                f"{what} given for {', '.join(map(shown, unknown))}, but the relations of this fit are "
                f"{', '.join(self.relations)}"
            )

    def _check_owners(self, known: PrivateRelation, rows: OwnRows, cells: Any) -> None:
        """From a release nothing is known of those who bring nothing."""
        owner = known.modes[rows.mode]
        if self.unseen == "error" and not owner.size:
            labels = labels_in(cells, known.modes)[owner.name]
            others = [str(x) for x in np.asarray(labels)[rows.modes[rows.mode].find(labels) < 0][:1]]
            if others:
                raise SettingError(
                    f"rows of {owner.name} stay with their owners: this release has none of "
                    f"{shown(others[0])}, and among the own entries that tell about this relation are "
                    f"none of theirs. Leave such cells out, or predict with {setting('unseen', 'bias')}"
                )
