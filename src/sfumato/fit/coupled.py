"""Private fits of several relations: planned from public numbers, carried out through a ledger."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from sfumato.data.tensor import Mode, SparseTensor
from sfumato.engines.local import Local
from sfumato.errors import SettingError
from sfumato.fit.admit import Protected, labels_of, public_facts
from sfumato.fit.choose import OpenRank, chosen_solver, make_facts
from sfumato.fit.completion import Completion, OwnEntriesQuery, draw_all, owner_of, released_of
from sfumato.fit.loop import Progress
from sfumato.fit.plan import PrivatePlan, Promise, model_in_words
from sfumato.fit.planner import multiplier
from sfumato.fit.public_tables import public_columns
from sfumato.fit.request import Privacy
from sfumato.models.several import Several
from sfumato.models.shape import Kind, Shape, usual_rank
from sfumato.privacy.budgets import ZCDP, Budget
from sfumato.privacy.entropy import Entropy
from sfumato.privacy.facts import CoupledFacts, Facts
from sfumato.privacy.ledger import Charge, Ledger
from sfumato.privacy.mechanisms import Gaussian
from sfumato.privacy.units import PrivacyUnit, Unit, parse_unit
from sfumato.records import record
from sfumato.sites.several import RelationSites
from sfumato.solvers import registry
from sfumato.solvers.least_squares.own_rows import solve_own
from sfumato.solvers.private.biases import PrivateBiases
from sfumato.solvers.private.constant import PrivateConstant
from sfumato.solvers.private.coupled import PrivateCoupled
from sfumato.solvers.private.intervals import WithIntervals
from sfumato.solvers.private.moments.solver import PrivateMoments
from sfumato.solvers.private.pairs.solver import PrivatePairs
from sfumato.solvers.private.sides.queries import prior_with_means
from sfumato.solvers.private.sides.solver import BesideOthers, LevelFeatures
from sfumato.solvers.protocol import Info, Run
from sfumato.surface import either, setting
from sfumato.types import Array

LANGEVIN = "langevin"
# Calm of fits under so much noise that what tables tell each other is no reason for more of it: beside
# public tables, and without.
_LOUD, _LOUD_APART = 0.005, 0.03
_TUCKER_RANK = 4  # where none is given
# Methods of one relation beside others.
_BESIDE = ("bias", "pairs", "moments", "alternating", "constant")


class Structure(NamedTuple):
    """What is asked for of one relation's model."""

    kind: Kind = "cp"
    rank: int | None = None


# -- what is protected ----------------------------------------------------------------------------


def check_relations(privacy: Privacy, given: Sequence[str]) -> tuple[str, ...]:
    """The relations that are protected, of all; at least one."""
    unknown = sorted(set(privacy.public.relations) - set(given))
    if unknown:
        raise SettingError(f"public relations name {unknown}, but there are {', '.join(given)}")
    known = [name for name in given if privacy.public.relations.get(name) is not True]
    if not known:
        raise SettingError("all relations are declared public: there is nothing to protect")
    return tuple(known)


def protections(
    privacy: Privacy, tensors: Mapping[str, SparseTensor], protected: Sequence[str]
) -> dict[str, Protected]:
    """What is protected of each relation that is."""
    every = list(dict.fromkeys(name for t in tensors.values() for name in t.mode_names))
    unit = parse_unit(privacy.unit, every, privacy.max_entries)
    found = {}
    for name in protected:
        modes = tensors[name].modes
        names = [mode.name for mode in modes]
        if unit.mode is not None and unit.mode not in names:
            raise SettingError(
                f"{name!r} has no mode {unit.mode!r}: what is protected is {unit}, which says nothing "
                "of it. If everyone may know it, declare it public, "
                + either(f"Public(relations={{{name!r}: True}})", f"--public-relation {name}")
            )
        public = privacy.public.of_relation(name, several=len(protected) > 1)
        own = replace(privacy, public=_of_modes(public, names), unit=unit, max_entries=None)
        if own.local not in (None, "auto", *names):
            if own.local not in every:
                raise SettingError(f"there is no mode {own.local!r}; there are {', '.join(every)}")
            own = replace(own, local=None, public=replace(own.public, units=None))
        found[name] = Protected.by(own, modes)
        if found[name].local is None and own.public.units is not None:
            found[name] = replace(found[name], public=replace(own.public, units=None))
    return found


def _of_modes(public: Any, names: Sequence[str]) -> Any:
    """What is public of the modes of one relation."""
    if isinstance(public.labels, bool):
        return public
    return replace(public, labels={n: v for n, v in public.labels.items() if n in (*names, ...)})


# -- plans ------------------------------------------------------------------------------------------


@record
@dataclass(frozen=True)
class Coupling:
    """A private solver of several relations with the facts that it is for."""

    solver: Any
    facts: CoupledFacts
    stated: tuple[str, ...] = ()

    @property
    def noise(self) -> float:
        return float(self.solver.noise)

    def with_noise(self, noise: float) -> Coupling:
        return replace(self, solver=replace(self.solver, noise=noise))

    def check(self) -> None:
        self.solver.check(self.facts)

    @property
    def charges(self) -> tuple[Charge, ...]:
        made: tuple[Charge, ...] = self.solver.charges(self.facts)
        return made

    @property
    def rounds(self) -> int:
        return int(self.solver.rounds(self.facts))

    @property
    def unit(self) -> PrivacyUnit:
        return self.facts.unit

    @property
    def units(self) -> int | None:
        mode = self.facts.parts[0].unit_mode
        return None if mode is None else self.facts.parts[0].sizes[mode]

    @property
    def in_words(self) -> str:
        models = [
            f"{name} ({model_in_words(part.shape)})"
            for name, part in zip(self.facts.names, self.facts.parts, strict=True)
        ]
        return f"{'; '.join(models)}; {self.solver.name}"

    @property
    def settings_in_words(self) -> tuple[str, ...]:
        lines: tuple[str, ...] = self.solver.in_words(self.facts)
        return lines

    @property
    def promise(self) -> Promise:
        facts, solver = self.facts, self.solver
        parts = list(zip(facts.names, facts.parts, strict=True))
        owners = [owner for _, part in parts if (owner := owner_of(part)) is not None]
        return Promise(
            unit=_unit_in_words(facts),
            neighbours=_neighbours_in_words(facts),
            released=tuple(
                f"{line} ({name})"
                for name, part in parts
                for line in released_of(part, solver.always_fits)
            ),
            kept=tuple(f"rows of {owner}" for owner in dict.fromkeys(owners)),
            owner=owners[0] if owners else None,
            method=solver.name,
            proven=solver.proven,
            proof=solver.proof,
            exact=solver.exact,
            assumptions=self._assumptions(owners),
            trust=facts.trust.in_words(),
        )

    def _assumptions(self, owners: Sequence[str]) -> tuple[str, ...]:
        given = ["the bounds of the values are public, not taken from the data", *self.stated]
        if isinstance(self.unit, Unit):
            given.append(f"no two levels of {self.unit.mode} belong to the same one")
        if owners:
            given.append(f"rows of {owners[0]} are shown to their owners alone")
        return (*given, *self.solver.assumes(self.facts))


def _unit_in_words(facts: CoupledFacts) -> str:
    names = " and ".join(facts.names)
    return (
        f"{facts.unit}, in {names} together" if facts.unit.mode else f"{facts.unit}, in one of {names}"
    )


def _neighbours_in_words(facts: CoupledFacts) -> str:
    where = "in all of these relations at once" if facts.unit.mode else "in one of these relations"
    return f"{facts.unit.neighbours}, {where}"


class Relation(NamedTuple):
    """What is planned for: the public side of one relation."""

    name: str
    modes: tuple[Mode, ...]
    protected: Protected
    bounds: tuple[float, float]
    entries: int
    structure: Structure


def make_coupled_plan(
    relations: Sequence[Relation], tables: Mapping[str, SparseTensor], privacy: Privacy, run: Run
) -> PrivatePlan[Any]:
    """The calibrated plan of a private fit of several relations; of data it sees public tables alone."""
    stated = [f"the relation {name} is public with all its entries" for name in tables]
    if at_once(privacy):
        return _plan_at_once(relations, tables, privacy, run)
    features = [_features(relation.modes, tables, run) for relation in relations]
    planned = [
        _planned(relation, privacy, _Place(number == 0, len(relations) == 1))
        for number, relation in enumerate(relations)
    ]
    facts = tuple(each.facts for each in planned)
    for relation, each in zip(relations, facts, strict=True):
        stated += [f"{line} ({relation.name})" for line in public_facts(each.modes, relation.protected)]
    inner = tuple(each.solver for each in planned)
    if not _better_pure(planned, features, privacy.budget):
        inner = tuple(replace(each, pure=False) if hasattr(each, "pure") else each for each in inner)
    task: Any
    if len(relations) == 1:
        beside: Any = BesideOthers(inner[0], features[0])
        solver: Any = WithIntervals(beside) if privacy.intervals else beside
        task = Completion(solver, facts[0], tuple(stated))
    else:
        privacy.check_one_owner("a fit of several protected relations")
        several = PrivateCoupled(inner, tuple(features), privacy.intervals)
        names = tuple(relation.name for relation in relations)
        task = Coupling(several, CoupledFacts(names, facts), tuple(stated))
    return PrivatePlan(task, privacy.budget, run).calibrated()


def _plan_at_once(
    relations: Sequence[Relation], tables: Mapping[str, SparseTensor], privacy: Privacy, run: Run
) -> PrivatePlan[Any]:
    """Of methods that fit all relations at once, on shared factors."""
    privacy.check_one_owner("a private fit by Langevin dynamics")
    if privacy.intervals:
        raise SettingError(
            "Langevin dynamics do not tell how much noise their rows have, which intervals need: leave "
            f"{setting('method')} out, or {setting('intervals')}"
        )
    if tables:
        raise SettingError(
            f"Langevin dynamics take no public tables, here {', '.join(tables)}: "
            f"leave {setting('method')} out, or the tables"
        )
    parts = tuple(_facts(relation) for relation in relations)
    facts = CoupledFacts(tuple(relation.name for relation in relations), parts)
    stated = tuple(
        f"{line} ({relation.name})"
        for relation, part in zip(relations, parts, strict=True)
        for line in public_facts(part.modes, relation.protected)
    )
    solver = _solver_at_once(facts, privacy)
    return PrivatePlan(Coupling(solver, facts, stated), privacy.budget, run).calibrated()


def _solver_at_once(facts: CoupledFacts, privacy: Privacy) -> Any:
    from sfumato.solvers.as_printed.ermis_coupled import PaperCoupled
    from sfumato.solvers.private.langevin.solver import make_langevin
    from sfumato.solvers.protocol import Wish

    if not isinstance(privacy.method, str):
        return privacy.method
    if privacy.analysis == "paper":
        budget = privacy.budget
        return PaperCoupled(delta=budget.delta if isinstance(budget, Budget) else 0.0)
    return make_langevin(facts, Wish(privacy.budget, privacy.noise))


def at_once(privacy: Privacy) -> bool:
    """Whether all relations are fitted at once by Langevin dynamics: proven, or as printed."""
    if privacy.analysis == "paper":
        return privacy.method not in registry.names("as printed")
    return LANGEVIN in (privacy.method, getattr(privacy.method, "name", None))


def _better_pure(
    planned: Sequence[_Planned], features: Sequence[tuple[LevelFeatures, ...]], budget: Budget | ZCDP
) -> bool:
    """Whether Laplace noise is the better one for all: nothing can be asked about columns then."""
    if not all(getattr(each.solver, "pure", False) for each in planned):
        return False
    if any(_releases_pairs(*each) for each in planned):
        return True
    loud = _LOUD if any(features) else _LOUD_APART
    return budget.pure or max(each.facts.calm(multiplier(budget)) for each in planned) < loud


class _Planned(NamedTuple):
    facts: Facts
    solver: Any


class _Place(NamedTuple):
    """Of a relation among those that are protected."""

    first: bool  # and fitted last: no other relation makes anything of its columns
    alone: bool


def _facts(relation: Relation) -> Facts:
    sizes, (kind, rank) = [mode.size for mode in relation.modes], relation.structure
    if rank is None:
        rank = usual_rank(sizes) if kind == "cp" else _TUCKER_RANK
    ranks = [min(rank, size) if kind == "tucker" and size else rank for size in sizes]
    shape = Shape.of(relation.modes, ranks, kind)
    return make_facts(shape, relation.protected, relation.bounds, relation.entries)


def _planned(relation: Relation, privacy: Privacy, place: _Place) -> _Planned:
    """A relation's own method, as if it were alone, with noise that adds up over all."""
    facts, own = _facts(relation), replace(privacy, public=relation.protected.public)
    rank = OpenRank(relation.structure.rank)
    solver, facts = chosen_solver(facts, own, privacy.method, rank)
    if not _serves(solver, facts, place):
        if privacy.method != "auto":
            if isinstance(solver, PrivatePairs):
                raise SettingError(
                    "of several relations, 'pairs' serves the first, where its rows are local; with "
                    "everything released, one relation beside public tables and with Laplace noise: "
                    f"leave {setting('method')} out"
                )
            raise SettingError(
                f"several relations are fitted by {', '.join(_BESIDE)}, each with Gaussian noise, or by "
                f"{LANGEVIN}: the method {privacy.method!r} is for one tensor"
            )
        solver, facts = chosen_solver(facts, own, "bias", rank)
    return _Planned(facts, solver)


def _serves(solver: Any, facts: Facts, place: _Place) -> bool:
    from sfumato.solvers.private.alternating.solver import PrivateAlternating

    if isinstance(solver, PrivatePairs):
        # Sums of pairs that are released have so much less noise where it is Laplace's that tables
        # rarely make up for it (docs/design.md): they are released by themselves, or not at all.
        return place.first if facts.local is not None else place.alone and solver.pure
    if isinstance(solver, PrivateBiases | PrivateMoments | PrivateConstant):
        return True
    gaussian = (isinstance(c.mechanism, Gaussian) for c in solver.charges(facts))
    return isinstance(solver, PrivateAlternating) and all(gaussian)


def _releases_pairs(facts: Facts, solver: Any) -> bool:
    return isinstance(solver, PrivatePairs) and facts.local is None


def _features(
    modes: Sequence[Mode], tables: Mapping[str, SparseTensor], run: Run
) -> tuple[LevelFeatures, ...]:
    """What public tables say of the levels of some modes.

    Tables are looked at by themselves, in their own numbering, and only then are their levels found
    among those of the modes: what is said of one level must not depend on which others there are.
    """
    names, found = [mode.name for mode in modes], []
    for table in tables.values():
        columns = public_columns(table, run)
        for mode, each in zip(table.modes, columns, strict=True):
            if mode.name in names and each.shape[1]:
                own = modes[names.index(mode.name)]
                found.append(LevelFeatures(names.index(mode.name), _placed(each, mode, own)))
    return tuple(found)


def _placed(columns: Array, mode: Mode, own: Mode) -> Array:
    """Rows of a table's levels at those of another mode, by their labels; zeros where it has none."""
    row_of = {str(label): row for row, label in enumerate(labels_of(mode))}
    rows = np.array([row_of.get(str(label), -1) for label in labels_of(own)])
    placed = np.zeros((own.size, columns.shape[1]))
    placed[rows >= 0] = columns[rows[rows >= 0]]
    return placed


# -- carrying out -------------------------------------------------------------------------------------


class CoupledFit(NamedTuple):
    """Models with local rows filled in, what each round reported, and a posterior where there is one.

    ``own_entries``, how many each owner has in each relation, stay with their owners; they are counted
    where intervals were asked for.
    """

    model: Several
    history: tuple[Info, ...]
    posterior: Any = None
    own_entries: tuple[Array | None, ...] = ()


def carry_out_coupled(
    plan: PrivatePlan[Coupling],
    tensors: Sequence[SparseTensor],
    ledger: Ledger,
    entropy: Entropy,
    progress: Progress | None = None,
) -> CoupledFit:
    """Fit a calibrated plan's models; every draw is charged to the ledger before it is made."""
    site = RelationSites(tensors, plan.run.threads)
    engine = Local(site)
    engine.check_shape(plan.task.facts)
    with ledger.reserve(plan.charges, entropy, proven=plan.proven) as reservation:
        drawn = draw_all(plan, engine, reservation, progress)
    site.forget()
    made = drawn.made
    several: Several = made.model
    models, entries = [], list[Array | None]()
    for part, (model, prior) in enumerate(zip(several.models, several.own_priors, strict=True)):
        entries.append(_own_entries(plan.task.facts.parts[part], several.errors_of(part), site, part))
        if prior is None:
            models.append(model)
            continue
        means = several.means_of(part)
        expected = prior if means is None else prior_with_means(means, prior, model, site)
        models.append(solve_own(model, expected, site.parts[part]))
    filled = replace(several, models=tuple(models))
    return CoupledFit(filled, drawn.history, made.posterior, tuple(entries))


def _own_entries(facts: Facts, errors: Any, site: RelationSites, part: int) -> Array | None:
    if errors is None or facts.local is None:
        return None
    return OwnEntriesQuery(facts.local, facts.sizes[facts.local]).answer(site.parts[part])
