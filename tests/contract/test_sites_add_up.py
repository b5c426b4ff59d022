"""Several holders of data answer as one would: private sums to the last bit, open ones to rounding."""

from dataclasses import fields, is_dataclass, replace
from functools import cache, partial
from itertools import product
from typing import NamedTuple

import numpy as np
import pytest

import sfumato as sf
from sfumato.data.tensor import Mode, SparseTensor
from sfumato.engines.local import Local
from sfumato.errors import BudgetError, SettingError
from sfumato.fit.completion import Completion, Drawn, carry_out, draw_all
from sfumato.fit.plan import Plan, PrivatePlan
from sfumato.models.shape import Shape
from sfumato.privacy.budgets import Budget
from sfumato.privacy.clipping import combine
from sfumato.privacy.entropy import Entropy
from sfumato.privacy.facts import Facts
from sfumato.privacy.ledger import Draw, Ledger
from sfumato.privacy.trust import ONE_OWNER
from sfumato.privacy.units import Entry, Unit, UnitValues, Value
from sfumato.records import parts_of, same
from sfumato.sites.coupled import CoupledSite
from sfumato.sites.memory import Site
from sfumato.solvers.coupled.shape import CoupledShape
from sfumato.solvers.least_squares.backfitting import Backfitting
from sfumato.solvers.protocol import ChainQuery, Run, SumQuery, Wish
from sfumato.solvers.registry import names, private_solver, solver_class

MODES = (Mode("user", 12), Mode("item", 7), Mode("day", 4, None, "day"))


@cache
def ratings():
    """Ratings on no grid, some beyond the bounds."""
    generator, sizes = np.random.default_rng(0), [mode.size for mode in MODES]
    cells = np.array(np.unravel_index(generator.permutation(np.prod(sizes))[:150], sizes))
    return SparseTensor(cells, generator.normal(3.0, 1.5, 150), MODES, (1.0, 5.0))


def divided(tensor, *, by_user):
    """Three tensors of the same modes that make up the whole."""
    levels = tensor.coordinates[0] if by_user else np.arange(tensor.n_entries)
    holder = np.random.default_rng(1).integers(0, 3, levels.max() + 1)[levels]
    parts = [tensor.take(holder == number) for number in range(3)]
    assert all(part.n_entries for part in parts)
    assert sum(part.n_entries for part in parts) == tensor.n_entries
    assert {part.shape for part in parts} == {tensor.shape}
    return parts


def short(solver):
    """The same solver with few rounds, and so the solvers that it is made of."""
    few = {"sweeps": 3, "passes": 2, "starts": 1, "samples": 2, "burn_in": 2, "thin": 1}
    parts = {part.name: getattr(solver, part.name) for part in fields(solver)}
    changes = {name: number for name, number in few.items() if name in parts}
    changes |= {name: short(part) for name, part in parts.items() if is_dataclass(part)}
    return replace(solver, **changes)


class Watched(Local):
    """An engine that keeps the questions."""

    def __init__(self, *sites):
        super().__init__(*sites)
        self.asked = []

    def answer(self, query):
        self.asked.append(query)
        return super().answer(query)

    def released(self, query, draw, trust=ONE_OWNER):
        self.asked.append(query)
        return super().released(query, draw, trust)


# -- private --------------------------------------------------------------------------------------


class Case(NamedTuple):
    method: str
    unit: object
    local: int | None
    kind: str = "cp"
    delta: float = 1e-6

    def __str__(self):
        unit = type(self.unit).__name__.lower()
        words = (self.method, unit, "local" * (self.local == 0), self.kind, "" if self.delta else "pure")
        return "-".join(word for word in words if word)

    def plan(self, threads=1):
        # One column of each kind, or of each level of item and day.
        ranks = (11, 11, 11) if self.method in ("moments", "pairs") else (2, 2, 2)
        facts = Facts(Shape(MODES, ranks, self.kind), self.unit, (1.0, 5.0), 150, None, self.local)
        budget = Budget(4.0, self.delta)
        solver = short(private_solver(self.method, facts, Wish(budget)))
        return PrivatePlan(Completion(solver, facts), budget, Run(3, threads)).calibrated()

    def sites(self, threads=1):
        """The whole, and its parts: all that is a user's at one of them, where users are protected or
        solve their own rows.
        """
        parts = divided(ratings(), by_user=self.unit.mode == "user" or self.local == 0)
        return Site(ratings(), threads), [Site(part, threads) for part in parts]


USERS = (Unit("user", 5), Unit("user"))
ASKED = [
    *product((Value(), UnitValues("user", 2), Entry(), *USERS), (None, 0), ("cp",), (1e-6,)),
    *((unit, 0, "tucker", 1e-6) for unit in (Value(), Entry(), *USERS)),
    *((unit, 0, "cp", 0.0) for unit in (Value(), Unit("user"))),
    (Entry(), None, "cp", 0.0),
]
CASES = [Case(name, *each) for name, each in product(names("private"), ASKED)]


class Fitted(NamedTuple):
    plan: PrivatePlan
    asked: list
    found: Drawn

    @property
    def sums(self):
        return all(isinstance(query, SumQuery) for query in self.asked)


@cache
def fitted(case):
    """The fit to the whole, or why there is none."""
    try:
        plan = case.plan()
    except (SettingError, BudgetError) as error:
        return str(error)
    engine = Watched(case.sites()[0])
    return Fitted(plan, engine.asked, drawn(plan, engine))


def drawn(plan, engine):
    with Ledger(plan.task.unit).reserve(plan.charges, Entropy(7)) as reservation:
        return draw_all(plan, engine, reservation)


def fitted_with_sums(case):
    fit = fitted(case)
    if isinstance(fit, str):
        pytest.skip(fit)
    if not fit.sums:
        pytest.skip("asks for more than sums")
    return fit


every = pytest.mark.parametrize("case", CASES, ids=str)


def test_which_methods_add_up():
    """Those that ask for sums alone, whatever they protect."""
    fits = [(case, fitted(case)) for case in CASES]
    there = [(case, fit) for case, fit in fits if not isinstance(fit, str)]
    for method in ("alternating", "bias", "constant", "gradient"):
        mine = [(case, fit) for case, fit in there if case.method == method]
        assert all(fit.sums for _, fit in mine)
        units = {(type(case.unit), case.local) for case, _ in mine}
        assert units >= {(Value, None), (Entry, None), (Entry, 0), (Unit, 0)}
    moments = {
        (type(case.unit), case.local): fit.sums for case, fit in there if case.method == "moments"
    }
    assert moments == {(Entry, 0): True, (Unit, 0): True}
    pairs = {(type(case.unit), case.local): fit.sums for case, fit in there if case.method == "pairs"}
    assert pairs == {(Entry, None): False, (Entry, 0): True, (Unit, 0): True}
    assert {case.method for case, fit in there if not fit.sums} == {"input", "output", "pairs"}
    for case, fit in there:  # so that nothing is charged where it would end in an error
        solver, facts = fit.plan.task.solver, fit.plan.task.facts
        assert solver.adds_up(facts) == fit.sums, case


@every
def test_three_sites_release_what_one_does(case):
    """To the last bit, with one thread and with two."""
    plan, _, expected = fitted_with_sums(case)
    for threads in (1, 2):
        _, sites = case.sites(threads)
        found = drawn(replace(plan, run=Run(3, threads)), Local(*sites))
        assert same(found.made.model, expected.made.model)
        assert same(found.made.own_prior, expected.made.own_prior)
        assert same(found.history, expected.history)


@every
def test_numbers_are_on_their_grid_and_add_up(case):
    fit = fitted_with_sums(case)
    site, sites = case.sites()
    for query in fit.asked:
        whole, parts = query.clipped(site), [query.clipped(part) for part in sites]
        for clipped in (whole, *parts):
            assert np.frexp(clipped.step)[0] == 0.5  # a power of two
            assert clipped.values.dtype == np.int64
        assert same(combine(parts), whole)
        assert same(combine(parts[::-1]), whole)
        for number, public in enumerate(whole.public):
            assert same(sum(part.public[number] for part in parts), public)


@every
def test_other_questions_are_refused_before_anything_is_drawn(case):
    fit = fitted(case)
    if isinstance(fit, str):
        pytest.skip(fit)
    if fit.sums:
        pytest.skip("asks for sums alone")
    _, sites = case.sites()
    for query, charge in zip(fit.asked, fit.plan.charges, strict=True):
        if not isinstance(query, SumQuery):
            draw = Draw(charge, Entropy(7))
            with pytest.raises(SettingError, match="do not add up over 3 sites"):
                Local(*sites).released(query, draw)
            assert not draw.used


def test_holders_who_were_asked_something_else_do_not_add_up():
    fit = fitted(Case("bias", Entry(), None))
    _, sites = Case("bias", Entry(), None).sites()
    answers = [query.clipped(site) for query, site in zip(fit.asked, sites, strict=False)]
    with pytest.raises(SettingError, match="different questions"):
        combine(answers)


# -- open -----------------------------------------------------------------------------------------


def relations(divergence):
    """Three tensors that share modes; the last has none for itself, and so weights."""
    generator = np.random.default_rng(0)

    def counts(letters):
        sizes = [{"u": 8, "l": 6, "a": 5, "f": 4}[letter] for letter in letters]
        modes = tuple(Mode(letter, size) for letter, size in zip(letters, sizes, strict=True))
        cells = np.stack(np.nonzero(generator.random(sizes) < 0.8))
        return SparseTensor(cells, generator.poisson(2.0, cells.shape[1]) + 1.0, modes)

    tensors = {name: counts(letters) for name, letters in (("x", "ula"), ("y", "lf"), ("z", "ul"))}
    return sf.Relations(tensors, structure={"x": "tucker"}, divergence=divergence)


def open_fits():
    """Plans with the whole and its parts."""
    parts = divided(ratings(), by_user=False)
    sites = Site(ratings(), 1), [Site(part, 1) for part in parts]
    for name, kind in product((*names("open"), "biases"), ("cp", "tucker")):
        made = Backfitting() if name == "biases" else solver_class(name, "open")()
        yield partial(Plan, Shape(MODES, (2, 2, 2), kind), short(made)), *sites
    for name, p in product(names("coupled"), (0.0, 1.0)):
        whole = relations(p)
        halves = [divided(relation.tensor, by_user=False) for relation in whole.values()]
        settings = {"structure": {"x": "tucker"}, "divergence": p}
        several = [
            sf.Relations(dict(zip(whole, each, strict=True)), **settings)
            for each in zip(*halves, strict=True)
        ]
        sites = [CoupledSite(each, 1, np.dtype(float)) for each in (whole, *several)]
        solver = short(solver_class(name, "coupled")())
        yield partial(Plan, CoupledShape.of(whole, 2), solver), sites[0], sites[1:]


SUMMED = {
    *("Moments", "NormalEquations", "CoreEquations", "Residuals", "ResidualSums"),
    *("LevelSums", "Sums", "Divergences", "Losses", "float", "ndarray"),
}


def numbers_of(statistics):
    """All numbers of a record, a number, or a named tuple."""
    if isinstance(statistics, float | int | np.ndarray):
        return [np.asarray(statistics)]
    return [np.asarray(part) for part in parts_of(statistics).values()]


def test_open_statistics_with_a_sum_add_up_and_others_are_refused():
    """For relations where absent cells are missing: as zeros each holder would count all of them."""
    summed = set()
    for planned, whole, parts in open_fits():
        try:
            plan = planned()
        except SettingError:
            continue
        engine = Watched(whole)
        carry_out(plan, engine)
        for query in engine.asked:
            expected = query.answer(whole)
            if isinstance(query, ChainQuery):  # which goes from one to the next
                chained = Local(*parts).answer(query)
                assert (type(chained), chained.entries) == (type(expected), expected.entries)
                continue
            if type(expected).__name__ not in SUMMED:
                with pytest.raises(SettingError, match="do not add up over several sites"):
                    Local(*parts).answer(query)
                continue
            found = Local(*parts).answer(query)
            summed.add(type(expected).__name__)
            assert type(found) is type(expected)
            for mine, theirs in zip(numbers_of(found), numbers_of(expected), strict=True):
                size = np.abs(theirs).max(initial=1.0)
                np.testing.assert_allclose(mine, theirs, rtol=1e-10, atol=1e-10 * size)
    assert summed == SUMMED
