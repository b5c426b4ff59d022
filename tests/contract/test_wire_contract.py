"""Plans, queries, statistics and releases of every solver are plain data: sent, they come to the same.

To the last bit. Solvers are those of the registry, each with all settings here that it accepts: a new
one is tested by its row.
"""

import pickle
from dataclasses import fields, is_dataclass, replace
from functools import cache, partial
from itertools import product
from typing import NamedTuple

import numpy as np
import pytest
from posting import POSTS, Posted, by_wire

import sfumato as sf
from sfumato.data.tensor import Mode, SparseTensor
from sfumato.engines.local import Local
from sfumato.errors import BudgetError, SettingError
from sfumato.estimators import base, sources
from sfumato.fit import power
from sfumato.fit.completion import Completion, carry_out, draw_all
from sfumato.fit.plan import Plan, PrivatePlan
from sfumato.models.own_prior import OwnPrior, RowNoise
from sfumato.models.shape import Shape
from sfumato.privacy.budgets import Budget
from sfumato.privacy.entropy import Entropy
from sfumato.privacy.facts import Facts
from sfumato.privacy.ledger import Ledger
from sfumato.privacy.units import Entry, Unit, UnitValues, Value
from sfumato.records import same
from sfumato.sites.coupled import CoupledSite
from sfumato.sites.memory import Site
from sfumato.solvers.coupled.shape import CoupledShape
from sfumato.solvers.least_squares.backfitting import Backfitting
from sfumato.solvers.least_squares.own_rows import solve_own
from sfumato.solvers.power import iteration
from sfumato.solvers.private.constant import ConstantQuery
from sfumato.solvers.private.known import Known
from sfumato.solvers.protocol import Run, Wish
from sfumato.solvers.registry import METHODS, names, private_solver, solver_class
from sfumato.wire import to_wire

posts = pytest.mark.parametrize("post", POSTS.values(), ids=POSTS)
one_at_a_time = partial(pytest.mark.parametrize, ids=str)
MODES = (Mode("user", 8), Mode("item", 6), Mode("day", 4, None, "day"))


@cache
def tensor(order):
    """A few ratings of 1 to 5; those of order 3 have times."""
    sizes = [mode.size for mode in MODES[:order]]
    generator = np.random.default_rng(order)
    cells = np.array(np.unravel_index(generator.permutation(np.prod(sizes))[:40], sizes))
    return SparseTensor(cells, generator.integers(1, 6, 40) + 0.0, MODES[:order], (1.0, 5.0))


def short(solver):
    """The same solver with few rounds, and so the solvers that it is made of."""
    few = {"levels": 4, "sweeps": 3, "passes": 2, "starts": 1, "samples": 2, "burn_in": 2, "thin": 1}
    parts = {part.name: getattr(solver, part.name) for part in fields(solver)}
    changes = {name: number for name, number in few.items() if name in parts}
    changes |= {name: short(part) for name, part in parts.items() if is_dataclass(part)}
    return replace(solver, **changes)


# -- open -----------------------------------------------------------------------------------------

SHAPES = [
    Shape(MODES[:order], (2,) * order, kind, fit_mean=extras, fit_biases=extras)
    for order, kind, extras in product((2, 3), ("cp", "tucker"), (True, False))
]
SETTINGS = [{}, {"ridge": {"user": 2.0}, "prior_mean": {"item": 0.5}}, {"model": "poisson"}]


def open_solvers(family):
    for name in names(family):
        solver = short(solver_class(name, family)())
        there = {part.name for part in fields(solver)}
        yield from (replace(solver, **some) for some in SETTINGS if set(some) <= there)
    if family == "open":
        yield Backfitting(2)


def relations(family):
    """Three tensors that share modes; the last has none for itself, and so weights."""
    generator = np.random.default_rng(0)

    def counts(letters):
        sizes = [{"u": 6, "l": 5, "a": 4, "f": 3}[letter] for letter in letters]
        modes = tuple(Mode(letter, size) for letter, size in zip(letters, sizes, strict=True))
        cells = np.stack(np.nonzero(generator.random(sizes) < 0.7))
        return SparseTensor(cells, generator.poisson(2.0, cells.shape[1]) + 1.0, modes)

    divergence, absent = (0.0 if family == "normal" else 1.0), "zero" if family == "zeros" else "missing"
    tensors = {name: counts(letters) for name, letters in (("x", "ula"), ("y", "lf"), ("z", "ul"))}
    return sf.Relations(tensors, structure={"x": "tucker"}, divergence=divergence, absent=absent)


def send(post, messages, plain):
    messages.append(plain)
    return post(plain)


def planned(solver, shape):
    """The plan; None where the solver refuses the shape."""
    try:
        return Plan(shape, solver, Run(seed=3))
    except SettingError:
        return None


def open_plans():
    for solver, shape in product(open_solvers("open"), SHAPES):
        yield planned(solver, shape), partial(Site, tensor(shape.order), 1)
    for solver, family in product(open_solvers("coupled"), ("poisson", "normal", "zeros")):
        made = relations(family)
        yield planned(solver, CoupledShape.of(made, 2)), partial(CoupledSite, made, 1, np.dtype(float))


OPEN = [(plan, site) for plan, site in open_plans() if plan is not None]


def said(plan):
    """A plan's solver and shape, for the names of tests."""
    shape = plan.shape
    kind = f"{shape.kind}{shape.order}" if isinstance(shape, Shape) else f"p{shape.divergences[0]:g}"
    return f"{plan.solver.name}-{kind}"


def test_every_open_solver_accepts_some_shape():
    for family, shape in (("open", Shape), ("coupled", CoupledShape)):
        accepted = {plan.solver.name for plan, _ in OPEN if isinstance(plan.shape, shape)}
        assert set(names(family)) <= accepted


@pytest.mark.parametrize(("plan", "site"), OPEN, ids=[said(plan) for plan, _ in OPEN])
def test_an_open_fit_is_the_same_when_everything_is_sent(plan, site):
    expected = carry_out(plan, Local(site()))
    for post in POSTS.values():
        sent = post(plan)
        assert same(sent, plan)
        messages = []
        found = carry_out(sent, Posted(partial(send, post, messages), site()))
        assert len(messages) >= 2 * len(expected.history)
        assert same(found.model, expected.model)
        assert same(found.posterior, expected.posterior)
        assert same(found.history, expected.history)


# -- private --------------------------------------------------------------------------------------


class Case(NamedTuple):
    """A private method with all that it is asked for."""

    method: str
    unit: object
    local: int | None = None
    kind: str = "cp"
    order: int = 3
    law: str = "auto"
    delta: float = 1e-6
    settings: str = ""  # "as printed", or other settings than the usual ones

    def __str__(self):
        unit = {Value: "value", UnitValues: "values", Entry: "entry", Unit: "user"}[type(self.unit)]
        words = (self.method, unit, "local" * (self.local == 0), self.kind + str(self.order))
        more = (self.law * (self.law != "auto"), "" if self.delta else "pure", self.settings)
        return "-".join(word for word in (*words, *more) if word)

    @property
    def facts(self):
        rank = 40 if self.method == "pairs" else 2  # a column for each level
        shape = Shape(MODES[: self.order], (rank,) * self.order, self.kind)
        return Facts(shape, self.unit, (1.0, 5.0), 40, None, self.local)

    def plan(self):
        budget = Budget(4.0, self.delta)
        if self.settings == "as printed":
            solver = solver_class(self.method, "as printed")()
        else:
            solver = private_solver(self.method, self.facts, Wish(budget, self.law, 1.0))
        if self.settings == "prior mean":
            if not hasattr(solver, "prior_mean"):
                raise SettingError(f"{solver.name} has no prior mean")
            solver = replace(solver, prior_mean={"item": 0.5})
        task = Completion(short(solver), self.facts, ("what was stated",))
        return PrivatePlan(task, budget, Run(seed=3)).calibrated()


UNITS = (Value(), UnitValues("user", 2), Entry(), Unit("user", 4))
CASES = [Case(*each) for each in product(names("private"), UNITS, (None, 0))]
CASES += [
    Case(name, unit, local, kind, order)
    for name in names("private")
    for unit, local in ((Value(), None), (Entry(), 0), (Unit("user", 4), None), (Unit("user", 4), 0))
    for kind, order in (("tucker", 3), ("tucker", 2), ("cp", 2))
    if order == 3 or local == 0 or not unit.hides_presence
]
CASES += [Case(name, unit, delta=0.0) for name in names("private") for unit in UNITS]
CASES += [Case(name, Entry(), settings="prior mean") for name in names("private")]
CASES += [
    Case(row.name, Value(), law=law, delta=delta)
    for row, delta in product(METHODS, (1e-6, 0.0))
    for law in row.laws[1:]
    if "private" in row.families
]
CASES += [
    Case(name, Value(), kind=kind, delta=0.0, settings="as printed")
    for name, kind in product(names("as printed"), ("cp", "tucker"))
]


@cache
def plan_of(case):
    """The plan of a case, or the reason why there is none."""
    try:
        return case.plan()
    except (SettingError, BudgetError) as error:
        return str(error)


def test_every_private_method_accepts_something():
    """Under each of the names that its solvers have in a guarantee."""
    plans = [plan_of(case) for case in CASES]
    accepted = {plan.task.solver.name for plan in plans if not isinstance(plan, str)}
    for row in METHODS:
        if "private coupled" not in row.families:  # those are in test_relations_wire.py
            assert set(row.labels) <= accepted, row


def drawn(plan, post=None):
    site = Site(tensor(len(plan.task.facts.modes)), 1)
    engine = Local(site) if post is None else Posted(post, site)
    reserve = Ledger(plan.task.unit).reserve(plan.charges, Entropy(7), proven=plan.proven)
    with reserve as reservation:
        return draw_all(plan, engine, reservation)


@one_at_a_time("case", CASES)
def test_a_private_fit_is_the_same_when_everything_is_sent(case):
    plan = plan_of(case)
    if isinstance(plan, str):
        pytest.skip(plan)
    expected = drawn(plan)
    site = Site(tensor(case.order), 1)
    for post in POSTS.values():
        sent = post(plan)
        assert same(sent, plan)
        assert sent.charges == plan.charges
        assert sent.explain() == plan.explain()
        found = drawn(sent, post)
        assert same(found.made.model, expected.made.model)
        assert same(found.made.own_prior, expected.made.own_prior)
        assert same(found.history, expected.history)
        if case.local is not None:  # from what was sent, owners solve the same rows
            made = replace(
                found.made, model=post(found.made.model), own_prior=post(found.made.own_prior)
            )
            assert same(
                found._replace(made=made).localised(Local(site)), expected.localised(Local(site))
            )


@posts
def test_the_prior_of_own_rows_is_the_same_when_it_is_sent(post):
    """With variances of released rows and doubts about levels, as a solver of somebody else may have."""
    generator, site = np.random.default_rng(0), Site(tensor(3), 1)
    model = Shape(MODES, (2, 2, 2), "tucker").zeros()
    for part in (model.rows[:, :2], model.free_core):
        part[:] = generator.standard_normal(part.shape)
    noise = RowNoise(generator.random(6), np.array([0.5, -0.0]))
    prior = OwnPrior(
        mode=0,
        precisions=np.array([1.0, 2.0]),
        turn=np.array([[1.0, 0.5], [0.0, 1.0]]),
        scatter=0.7,
        doubts=(None, generator.random(6), None),
        row_noise=(None, noise, None),
    )
    sent = post(prior)
    assert same(sent, prior)
    assert same(solve_own(post(model), sent, site), solve_own(model, prior, site))


@posts
def test_a_search_s_plan_is_the_same_when_it_is_sent(post):
    privacy = sf.Privacy(2.0, 1e-6, unit="entry", public=sf.Public(entries=40, labels=True), seed=1)
    search = sf.PrivateSearch([sf.CP(1), sf.CP(2)], privacy)
    plan = search.plan(MODES, bounds=(1.0, 5.0))
    sent = post(plan)
    assert same(sent, plan)
    assert sent.charges == plan.charges
    assert sent.explain() == plan.explain()


# -- the power method -----------------------------------------------------------------------------

GENERATOR = np.random.default_rng(5)
UNEVEN = 0.01 * GENERATOR.standard_normal((4, 4, 4))
CUBE = sum(weight * np.einsum("i,j,k", *[v] * 3) for weight, v in zip((3, 2), np.eye(4), strict=False))
SAMPLES = GENERATOR.exponential(size=(600, 4)) - 1.0
DOCUMENTS = GENERATOR.poisson(2.0, (50, 4)) + 4 * np.eye(4, dtype=int)[GENERATOR.integers(0, 4, 50)]
TWO = partial(sf.PowerMethod, 2, 3, 4, threads=1)


def private(unit, **more):
    return sf.Privacy(50.0, 1e-3, unit=unit, seed=1, **more)


def sparse(cube):
    cells = np.stack(np.nonzero(cube))
    return SparseTensor(cells, cube[tuple(cells)], tuple(Mode(name, 4) for name in "abc"))


POWER = {
    "tensor": lambda: TWO().fit(CUBE),
    "sparse": lambda: TWO().fit(sparse(CUBE)),
    "each mode": lambda: TWO(symmetric=False).fit(CUBE + UNEVEN),
    "whitened": lambda: TWO(whiten=CUBE.sum(axis=2)).fit(CUBE),
    "stream": lambda: TWO(whiten=True).fit_stream(SAMPLES),
    "documents": lambda: TWO(moment="documents", whiten=True).fit_stream(DOCUMENTS),
    "read once": lambda: TWO().fit_stream(SAMPLES, reuse=False),
    "private": lambda: TWO(privacy=private(sf.TensorEntry(0.1))).fit(CUBE),
    "private sparse": lambda: TWO(privacy=private(sf.TensorEntry(0.1))).fit(sparse(CUBE)),
    "as printed": lambda: TWO(privacy=private(sf.TensorEntry(0.1), analysis="paper")).fit(CUBE),
    "private stream": lambda: TWO(
        whiten=True, privacy=private(sf.Sample(2.0), public=sf.Public(entries=600))
    ).fit_stream(SAMPLES),
    "private blocks": lambda: TWO(samples=60, privacy=private(sf.Sample(2.0))).fit_stream(
        np.split(SAMPLES, 10), reuse=False
    ),
}


@pytest.mark.filterwarnings("ignore::sfumato.PrivacyWarning")
@one_at_a_time("name", POWER)
def test_components_are_the_same_when_everything_is_sent(name, monkeypatch):
    expected = POWER[name]()
    for post in POSTS.values():
        with monkeypatch.context() as patch:
            asked = send_power(patch, post)
            found = POWER[name]()
        assert asked
        for part in ("weights_", "factors_", "weight_deviations_"):
            assert same(getattr(found, part), getattr(expected, part))


def send_power(patch, post):
    """Have questions, answers, tasks and what they clip go through ``post``; gives the questions."""
    asked, ask, update = [], iteration.ask, iteration.update
    released = power.Decomposition.released

    def sent_question(state):
        asked.append(post(ask(replace(state, settings=post(state.settings)))))
        return asked[-1]

    def sent_release(task, query, values, release):
        return post(released(post(task), query, values, lambda clipped: release(post(clipped))))

    for module in (iteration, power):
        patch.setattr(module, "ask", sent_question)
        patch.setattr(module, "update", lambda state, answer: update(state, post(answer)))
    patch.setattr(power.Decomposition, "released", sent_release)
    return asked


# -- small, and without secrets -------------------------------------------------------------------


@one_at_a_time("unit", UNITS)
def test_a_question_does_not_grow_with_the_labels_of_users(unit):
    labels = np.array([f"somebody {n}" for n in range(50_000)], object)
    modes = (Mode("user", 50_000, labels), Mode("item", 100))
    facts = Facts(Shape.of(modes, (2, 2), "cp"), unit, (1.0, 5.0), 10**6)
    message = to_wire(ConstantQuery(Known(facts, 1.0, False)))
    assert len(message) < 10_000
    assert b"somebody" not in message


NOISE_SEED = 8_675_309_123_457
SECRETS = (
    b"zz-secret-",
    str(NOISE_SEED).encode(),
    NOISE_SEED.to_bytes(8, "little"),
    np.float64(NOISE_SEED).tobytes(),
)


def labelled(order=3):
    """The ratings with labels that would be noticed."""
    modes = [
        Mode(
            mode.name,
            mode.size,
            np.array([f"zz-secret-{mode.name}-{n}" for n in range(mode.size)], object),
        )
        for mode in MODES[:order]
    ]
    plain = tensor(order)
    return SparseTensor(plain.coordinates, plain.values, tuple(modes), (1.0, 5.0))


@one_at_a_time("unit", ("value", "entry", "user"))
@one_at_a_time("method", names("private"))
def test_messages_hold_neither_labels_nor_the_seed_of_the_noise(method, unit, monkeypatch):
    of_seen = method in ("seen", "popularity")
    if (of_seen or method in ("moments", "pairs")) and unit == "value":
        pytest.skip("they protect presence")
    ratings = labelled(2 if of_seen else 3)
    messages = []

    def watched(plain):
        messages.extend((to_wire(plain), pickle.dumps(plain)))
        return by_wire(plain)

    carry_out_private = base.carry_out_private

    def carry_out_sent(plan, *rest, **settings):
        task = replace(plan.task, solver=short(plan.task.solver))
        return carry_out_private(watched(replace(plan, task=task)), *rest, **settings)

    monkeypatch.setattr(base, "carry_out_private", carry_out_sent)
    monkeypatch.setattr(sources, "Local", partial(Posted, watched))
    listed = {mode.name: mode.labels.tolist() for mode in ratings.modes}
    privacy = sf.Privacy(
        4.0,
        1e-6,
        unit=unit,
        max_entries=4 if unit == "user" and method in ("input", "output") else None,
        method=method,
        local="user" if of_seen or method == "moments" else "auto",
        public=sf.Public(entries=40, labels=listed),
        seed=NOISE_SEED,
    )
    loss = "seen" if of_seen else "squared"
    sf.CP(None if method == "pairs" else 2, loss=loss, privacy=privacy, threads=1).fit(ratings)
    assert len(messages) >= 6  # at least the plan, a question and what was released, both ways
    assert any(b"Facts" in message for message in messages)  # what is sent can be searched
    for secret in SECRETS:
        assert not any(secret in message for message in messages)
