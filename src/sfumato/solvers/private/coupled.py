"""A private fit of several relations that share modes: one after the other, each beside those before it.

Side tables come first, and the first relation that was named last: it takes in what all others say. A
relation is fitted by the method that would fit it alone; what was released of the others, what owners
make of their own entries there, and public tables add columns to it (``sides/``). Proofs: ``sides.md``.

What a unit is charged. A level of a mode is in all relations: their draws add up, and share one budget.
An entry (or a value) is in one relation alone, and is seen through that relation's draws and through
those that look at two: these of every relation add up to the budget, and what is charged is the largest
sum so far (:class:`~sfumato.privacy.mechanisms.Alongside`).

Where a budget is so small that Laplace noise is the less, or has no delta, relations are fitted by
themselves, with nothing to learn from each other under that much noise.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import inf, sqrt
from typing import Any, ClassVar, NamedTuple, cast

import numpy as np

from sfumato.errors import SettingError
from sfumato.models.multilinear import CPModel, Multilinear
from sfumato.models.own_means import OwnSource, ReleasedRelation
from sfumato.models.several import Several
from sfumato.privacy.facts import CoupledFacts, Facts
from sfumato.privacy.ledger import Charge
from sfumato.privacy.mechanisms import Alongside, Gaussian, Laplace, PureAlongside
from sfumato.records import record
from sfumato.solvers.private.constant import PrivateConstant
from sfumato.solvers.private.intervals import State as IntervalState
from sfumato.solvers.private.intervals import WithIntervals
from sfumato.solvers.private.of_relation import OfRelation
from sfumato.solvers.private.sides.columns import leading, spreads_of, white
from sfumato.solvers.private.sides.settings import MOST_FEATURES, side_share
from sfumato.solvers.private.sides.solver import (
    BesideOthers,
    LevelFeatures,
)
from sfumato.solvers.private.sides.solver import (
    State as SideState,
)
from sfumato.solvers.protocol import Finished, Info, PrivateQuery, Run
from sfumato.types import Array

_SIDE_WEIGHT = 0.06  # of the budget of a side table, over that of the first relation
_SOURCE_COLUMNS = 4  # of another relation, from which owners make numbers
_SOURCE_CLIP = 2.0  # of residuals there, over their deviation


class Drawn(NamedTuple):
    """One draw: of which relations it looks at entries, and its share of the noise."""

    part: int
    concerns: tuple[int, ...]
    charge: Charge


@dataclass(frozen=True, eq=False)
class State:
    facts: CoupledFacts
    run: Run
    place: int = 0  # among the relations, in the order in which they are fitted
    current: SideState | IntervalState | None = None
    solver: BesideOthers | WithIntervals | None = None
    done: int = 0  # draws of the relation at hand
    all_done: int = 0
    made: Mapping[int, Finished[Multilinear]] = field(default_factory=dict)
    states: Mapping[int, SideState] = field(default_factory=dict)

    @property
    def side(self) -> SideState:
        """Of the relation at hand, without what is asked for intervals."""
        current = self.current
        found: SideState | None = current.inner if isinstance(current, IntervalState) else current
        if found is None:
            raise RuntimeError("all relations are fitted")
        return found


@record
@dataclass(frozen=True)
class PrivateCoupled:
    """Private fits of several relations, each beside those before it.

    Parameters
    ----------
    inner : the method that fits each relation by itself, in the order of their names.
    features : of each relation, what public tables say of its levels.
    intervals : whether each relation is asked at the end how far values lie from its predictions.
    noise : noise multiplier of all draws together, found from the budget.
    """

    inner: tuple[Any, ...]
    features: tuple[tuple[LevelFeatures, ...], ...]
    intervals: bool = False
    noise: float = 1.0

    proven: ClassVar[bool] = True

    @property
    def always_fits(self) -> tuple[str, ...]:
        return ("mean", "biases", "errors") if self.intervals else ("mean", "biases")

    @property
    def name(self) -> str:
        inner = dict.fromkeys(each.name for each in self.inner)
        return f"relations one beside the others, by {' and '.join(inner)}"

    @property
    def proof(self) -> str:
        notes = [*(each.proof for each in self.inner), "proofs/sides.md"]
        notes += [WithIntervals.proof_note] if self.intervals else []
        return ", ".join(dict.fromkeys(notes))

    @property
    def exact(self) -> bool:
        return all(each.exact for each in self.inner)

    # -- what will be done: never sees data -------------------------------------------------------

    def order(self, facts: CoupledFacts) -> tuple[int, ...]:
        """Relations in the order in which they are fitted: the first that was named comes last."""
        return tuple(reversed(range(len(facts.parts))))

    def check(self, facts: CoupledFacts) -> None:
        for part in range(len(facts.parts)):
            solver = self._planned(facts, part)
            solver.check(facts.parts[part])
            if not solver.adds_up(facts.parts[part]):
                raise SettingError("several relations are fitted by methods that ask for sums alone")
            law = Laplace if self._pure else Gaussian
            if not all(isinstance(c.mechanism, law) for c in solver.charges(facts.parts[part])):
                raise SettingError("noise of one law adds up over several relations: choose one method")

    def shares(self, facts: CoupledFacts) -> tuple[float, ...]:
        """Of the budget, what the draws of each relation have: those of all, or of each by itself."""
        number = len(facts.parts)
        if facts.unit.mode is None:
            # An entry of a side table is seen by the questions of later relations too, whose shares
            # are settled before: the first relation has all that there is.
            found: list[float] = []
            for part in range(number):
                found.append(1 - sum(self._seen_by(facts, v, part) * found[v] for v in range(part)))
            return tuple(found)
        weights = [1.0, *[_SIDE_WEIGHT] * (number - 1)]
        return tuple(weight / sum(weights) for weight in weights)

    @property
    def _pure(self) -> bool:
        """Whether all noise is Laplace's: each relation is then fitted by itself."""
        return all(getattr(each, "pure", False) for each in self.inner)

    def _noise_of(self, facts: CoupledFacts, part: int) -> float:
        share = self.shares(facts)[part]
        return self.noise / (share if self._pure else sqrt(share))

    def _seen_by(self, facts: CoupledFacts, other: int, part: int) -> float:
        """Of another relation's share, what the questions have that look at a relation's entries."""
        if part not in self._sources(facts, other):
            return 0.0
        return sum(step.share for step in self._without(facts, other).steps(facts.parts[other]))

    def _sources(self, facts: CoupledFacts, part: int) -> list[int]:
        """Relations fitted before in which the owners of this one have entries."""
        mine, order = facts.parts[part], self.order(facts)
        if mine.local is None or self._pure:
            return []
        name = mine.modes[mine.local].name
        before = order[: order.index(part)]
        told = [v for v in before if not isinstance(self.inner[v], PrivateConstant)]
        return [v for v in told if _owner(facts.parts[v]) == name]

    def _known_modes(self, facts: CoupledFacts, part: int) -> list[int]:
        """Modes of a relation of whose levels something is known when it is fitted."""
        mine, order = facts.parts[part], self.order(facts)
        if self._pure:
            return []
        known = [each.mode for each in self.features[part]]
        for v in order[: order.index(part)]:
            if isinstance(self.inner[v], PrivateConstant):
                continue
            theirs = facts.parts[v]
            names = {m.name for n, m in enumerate(theirs.modes) if n != theirs.local}
            known += [n for n, m in enumerate(mine.modes) if m.name in names and n != mine.local]
        return sorted(set(known))

    def _planned(self, facts: CoupledFacts, part: int) -> BesideOthers | WithIntervals:
        """A relation's method as it is before others are fitted: it has the same charges."""
        return self._asked(self._without(facts, part), self._noise_of(facts, part))

    def _asked(self, beside: BesideOthers, noise: float) -> BesideOthers | WithIntervals:
        """With what intervals are made of, where they are wanted."""
        return WithIntervals(beside, noise) if self.intervals else replace(beside, noise=noise)

    def _without(self, facts: CoupledFacts, part: int) -> BesideOthers:
        """The same, but for intervals."""
        known, sources = self._known_modes(facts, part), self._sources(facts, part)
        features = tuple(LevelFeatures(mode, np.zeros((0, 0))) for mode in known)
        none = tuple(_no_source(v, facts.parts[v]) for v in sources)
        share = self._share(facts, part)
        return BesideOthers(self.inner[part], features, none, part, self.noise, share)

    def _share(self, facts: CoupledFacts, part: int) -> float:
        """Of a relation's budget, what is asked beside others with."""
        return side_share(self.inner[part], facts.parts[part], self.noise)

    def draws(self, facts: CoupledFacts) -> tuple[Drawn, ...]:
        """All draws in order."""
        found = []
        for part in self.order(facts):
            solver, own = self._planned(facts, part), facts.parts[part]
            charges, late = solver.charges(own), self._looks(facts, part)
            looked = [(part,)] * (len(charges) - len(late)) + late
            for charge, looks in zip(charges, looked, strict=True):
                named = Charge(f"{facts.names[part]}: {charge.label}", charge.mechanism)
                found.append(Drawn(part, looks, named))
        return tuple(found)

    def _looks(self, facts: CoupledFacts, part: int) -> list[tuple[int, ...]]:
        """Of which relations the last draws of one look at entries: those beside others. What is asked
        for intervals looks at own rows where units are levels, which are in all relations anyway.
        """
        sources = tuple(self._sources(facts, part))
        late: list[tuple[int, ...]] = [
            sources if sources and step.asks == "moment" else (part, *sources)
            for step in self._without(facts, part).steps(facts.parts[part])
        ]
        return [*late, (part,)] if self.intervals else late

    def charges(self, facts: CoupledFacts) -> tuple[Charge, ...]:
        drawn = self.draws(facts)
        if facts.unit.mode is not None:
            return tuple(each.charge for each in drawn)
        return alongside(drawn, len(facts.parts))

    def rounds(self, facts: CoupledFacts) -> int:
        return len(self.draws(facts))

    def assumes(self, facts: CoupledFacts) -> tuple[str, ...]:
        said = [self._planned(facts, v).assumes(part) for v, part in enumerate(facts.parts)]
        return tuple(dict.fromkeys(line for lines in said for line in lines))

    def in_words(self, facts: CoupledFacts) -> tuple[str, ...]:
        lines = []
        for part in self.order(facts):
            solver, sources = self._planned(facts, part), self._sources(facts, part)
            about = f"{facts.names[part]}: {self.inner[part].name}"
            if sources:
                owner, names = _owner(facts.parts[part]), [facts.names[v] for v in sources]
                about += f", beside what each {owner} has in {' and '.join(names)}"
            lines.append(about)
            lines += [f"  {line}" for line in solver.in_words(facts.parts[part])[1:]]
        return tuple(lines)

    def adds_up(self, facts: CoupledFacts) -> bool:  # noqa: ARG002
        return True

    # -- the loop ---------------------------------------------------------------------------------

    def init(self, run: Run, facts: CoupledFacts) -> State:
        self.check(facts)
        return self._begun(State(facts, run))

    def _begun(self, state: State) -> State:
        """The next relation, beside what is known of those before it."""
        facts = state.facts
        part = self.order(facts)[state.place]
        noise = self._noise_of(facts, part)
        features = (*self.features[part], *self._released_features(state, part))
        sources = tuple(
            _source(v, facts.parts[v], state.made[v], state.states[v])
            for v in self._sources(facts, part)
        )
        share = self._share(facts, part)
        beside = BesideOthers(self.inner[part], features, sources, part, noise, share)
        solver = self._asked(beside, noise)
        current: Any = solver.init(state.run, facts.parts[part])
        return replace(state, current=current, solver=solver, done=0)

    def ask(self, state: State) -> PrivateQuery:
        if state.solver is None:
            raise RuntimeError("all relations are fitted")
        query: Any = state.solver.ask(state.current)  # type: ignore[arg-type]
        if state.side.made is not None:  # questions beside others find their entries themselves
            return query  # type: ignore[no-any-return]
        return OfRelation(self.order(state.facts)[state.place], query)

    def update(self, state: State, released: Any) -> tuple[State, Info]:
        if state.solver is None:
            raise RuntimeError("all relations are fitted")
        part, solver = self.order(state.facts)[state.place], cast("Any", state.solver)
        current, info = solver.update(state.current, released)
        number = state.all_done + 1
        state = replace(state, current=current, done=state.done + 1, all_done=number)
        if state.done == solver.rounds(state.facts.parts[part]):
            made = {**state.made, part: solver.finish(current)}
            states = {**state.states, part: state.side}
            state = replace(state, made=made, states=states, place=state.place + 1, current=None)
            if state.place < len(state.facts.parts):
                state = self._begun(state)
        return state, Info(number, noise=info.noise)

    def finish(self, state: State) -> Finished[Several]:
        made = [state.made[part] for part in range(len(state.facts.parts))]
        models = tuple(each.model for each in made)
        priors = tuple(each.own_prior for each in made)
        means = tuple(each.own_means for each in made)
        errors = tuple(each.errors for each in made)
        return Finished(Several(models, priors, means, errors))

    def _released_features(self, state: State, part: int) -> list[LevelFeatures]:
        """What was released of the levels of other relations that this one has too."""
        mine, found = state.facts.parts[part], list[LevelFeatures]()
        if self._pure:
            return found
        for v, made in state.made.items():
            if isinstance(self.inner[v], PrivateConstant):
                continue
            theirs = state.facts.parts[v]
            for n, mode in enumerate(mine.modes):
                names = [m.name for m in theirs.modes]
                if n == mine.local or mode.name not in names or names.index(mode.name) == theirs.local:
                    continue
                columns = level_columns(made.model, names.index(mode.name))
                found.append(LevelFeatures(n, white(columns, np.ones(mode.size), MOST_FEATURES // 2)))
        return found


# -- charges -----------------------------------------------------------------------------------------


def alongside(drawn: tuple[Drawn, ...], relations: int) -> tuple[Charge, ...]:
    """Charges of draws of which a unit is seen through those of its own relation alone.

    Gaussian draws cost 1 / multiplier^2, Laplace ones 1 / multiplier, and either add up. Of each
    relation the sum so far is known; what is charged for a draw is by how much it raises the largest.
    """
    spent, charged, charges = [0.0] * relations, 0.0, []
    for each in drawn:
        mechanism: Any = each.charge.mechanism
        multiplier, pure = mechanism.noise_multiplier, isinstance(mechanism, Laplace)
        for part in each.concerns:
            spent[part] += 1 / multiplier if pure else multiplier**-2
        raised, charged = max(spent) - charged, max(spent)
        made: Alongside | PureAlongside
        if pure:
            made = PureAlongside(multiplier, charged=max(raised, 0.0))
        else:
            made = Alongside(multiplier, raised**-0.5 if raised > 0 else inf)
        charges.append(Charge(each.charge.label, made))
    return tuple(charges)


# -- what relations say of each other ----------------------------------------------------------------


def _owner(facts: Facts) -> str | None:
    return None if facts.local is None else facts.modes[facts.local].name


def level_columns(model: Multilinear, mode: int) -> Array:
    """All numbers that a model has for the levels of a mode."""
    return np.column_stack([model.mode_biases[mode], model.factors[mode]])


def _source(part: int, facts: Facts, made: Finished[Multilinear], state: SideState) -> OwnSource:
    """What owners make of a relation that was fitted: along columns that they differ in the most."""
    model, own = made.model, facts.local or 0
    others = [m for m in range(model.order) if m != own]
    if not isinstance(model, CPModel):  # designs of a core are no products of rows
        columns = [np.zeros((facts.sizes[m], 0)) for m in others]
    elif len(others) == 1:
        mode = others[0]
        scaled = model.factors[mode] * spreads_of(model, made.own_prior, mode)
        columns = [leading(scaled, np.ones(facts.sizes[mode]), _SOURCE_COLUMNS)]
    else:
        columns = _strongest(model, others, spreads_of(model, made.own_prior, others[0]))
    clip, rows = _SOURCE_CLIP * sqrt(state.scatter), np.ascontiguousarray(np.vstack(columns))
    return ReleasedRelation(model, facts.bounds, own).source(part, rows, clip)


def _strongest(model: Multilinear, modes: list[int], spreads: Array) -> list[Array]:
    """The columns whose products vary the most, each of size one; ``spreads`` are the first mode's."""
    factors = [model.factors[m] for m in modes]
    power = spreads**2 * np.mean(factors[0] ** 2, axis=0)
    best = np.argsort(-power, kind="stable")[:_SOURCE_COLUMNS]
    best = best[power[best] > 1e-6 * max(float(power.max(initial=0.0)), 1e-300)]
    return [f[:, best] / np.sqrt(np.mean(f[:, best] ** 2, axis=0)) for f in factors]


def _no_source(part: int, facts: Facts) -> OwnSource:
    """The same before the relation is fitted."""
    none = np.zeros(0)
    return OwnSource(part, facts.local or 0, facts.bounds, 0.0, (), np.zeros((0, 0)), none, 1.0)
