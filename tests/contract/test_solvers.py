"""What every solver keeps to; a new one is tested by being listed."""

import inspect
from dataclasses import fields, is_dataclass

import numpy as np
import pytest

import sfumato as sf
from sfumato.engines.local import Local
from sfumato.fit.completion import carry_out, training_rmse
from sfumato.fit.plan import Plan
from sfumato.models.multilinear import CPModel, Multilinear
from sfumato.models.shape import Shape
from sfumato.sites.memory import Site
from sfumato.solvers.least_squares.backfitting import Backfitting
from sfumato.solvers.protocol import Info, Run
from sfumato.solvers.registry import names, solver_class

# Easy data: biases, a component, little noise.
PLANTED = sf.synthetic.cp((14, 12, 10), 2, entries=900, snr=9.0, biases=0.8, shift=3.0, seed=1)
TENSOR = PLANTED.tensor
LENGTH = 12
# Solvers of non-negative factors, which coupled models share: see test_coupled_solvers.py.
NAMES = [*(name for name in names("open") if name not in names("coupled")), "biases"]
SHAPE = Shape(TENSOR.modes, (2, 2, 2))


def make(name, **settings):
    kind = Backfitting if name == "biases" else solver_class(name, "open")
    length = "passes" if any(f.name == "passes" for f in fields(kind)) else "sweeps"
    return kind(**{length: LENGTH, **settings})


def steps(solver, site, state=None):
    """The loop, by hand: every state, query and report."""
    state = solver.init(Run(), SHAPE) if state is None else state
    for _ in range(solver.rounds(SHAPE)):
        query = solver.ask(state)
        state, info = solver.update(state, query.answer(site))
        yield state, query, info


@pytest.mark.parametrize("name", NAMES)
def test_settings_are_a_frozen_record_that_only_stores(name):
    solver = make(name)
    assert is_dataclass(solver)
    assert solver.name == name
    assert solver == make(name)
    with pytest.raises(AttributeError):
        setattr(solver, fields(solver)[0].name, 1)


@pytest.mark.parametrize("name", NAMES)
def test_the_start_needs_no_data_and_is_that_of_the_seed(name):
    solver = make(name)
    assert list(inspect.signature(solver.init).parameters) == ["run", "shape"]
    first, same, other = (solver.init(Run(seed), SHAPE).model for seed in (1, 1, 2))
    assert isinstance(first, Multilinear)
    np.testing.assert_array_equal(first.rows, same.rows)
    assert not np.shares_memory(first.rows, same.rows)
    if name != "biases":
        assert (first.factors[0] != other.factors[0]).all()


@pytest.mark.parametrize("name", NAMES)
def test_rounds_are_the_questions_asked(name, monkeypatch):
    solver, site = make(name), Site(TENSOR, 1)
    answered = []
    answer = Local.answer

    def counting(engine, query):
        answered.append(query)
        return answer(engine, query)

    monkeypatch.setattr(Local, "answer", counting)
    reports = []
    plan = Plan(SHAPE, solver)
    fit = carry_out(
        plan, Local(site), lambda number, rounds, info: reports.append((number, rounds, info))
    )
    assert len(answered) == plan.rounds == solver.rounds(SHAPE)
    assert [number for number, _, _ in reports] == list(range(1, plan.rounds + 1))
    assert {rounds for _, rounds, _ in reports} == {plan.rounds}
    assert [info.completed for info in fit.history] == list(range(1, LENGTH + 1))
    assert reports[-1][2] == fit.history[-1]


@pytest.mark.parametrize("name", NAMES)
def test_types_stay_the_same_from_step_to_step(name):
    solver = make(name)
    kind = type(solver.init(Run(), SHAPE))
    for state, _, info in steps(solver, Site(TENSOR, 1)):
        assert type(state) is kind
        assert type(info) is Info
        assert info.train_rmse is None or info.train_rmse > 0
    assert type(solver.finish(state).model) is CPModel


@pytest.mark.parametrize("name", NAMES)
def test_easy_data_are_fitted_better_than_by_a_constant(name):
    site = Site(TENSOR, 1)
    model = carry_out(Plan(SHAPE, make(name)), Local(site)).model
    assert all(np.isfinite(part).all() for part in (model.rows, model.biases))
    share = {"biases": 0.9, "sequential": 0.9}.get(name, 0.75)
    assert training_rmse(model, Local(site)) < share * TENSOR.values.std()
    cells = np.stack(np.nonzero(np.isnan(TENSOR.to_dense())))
    misses = model.predict(cells) - PLANTED.truth(cells)
    assert np.sqrt(np.mean(misses**2)) < share * PLANTED.truth(cells).std()


@pytest.mark.parametrize("name", NAMES)
def test_the_same_plan_gives_the_same_model(name):
    plan = Plan(SHAPE, make(name), Run(seed=3))
    first, second = (carry_out(plan, Local(Site(TENSOR, 1))) for _ in range(2))
    shared = Site(TENSOR, 1)
    third, fourth = (carry_out(plan, Local(shared)) for _ in range(2))
    for other in (second, third, fourth):
        np.testing.assert_array_equal(first.model.rows, other.model.rows)
        np.testing.assert_array_equal(first.model.biases, other.model.biases)
        assert first.history == other.history
    assert not np.shares_memory(third.model.rows, fourth.model.rows)


@pytest.mark.parametrize("name", NAMES)
def test_finishing_can_be_asked_for_twice(name):
    solver = make(name)
    for state, _, _ in steps(solver, Site(TENSOR, 1)):
        last = state
    first = solver.finish(last).model.to_dense()
    np.testing.assert_array_equal(first, solver.finish(last).model.to_dense())


@pytest.mark.parametrize("name", NAMES)
def test_the_data_are_left_alone(name):
    cells, values = TENSOR.coordinates.copy(), TENSOR.values.copy()
    carry_out(Plan(SHAPE, make(name)), Local(Site(TENSOR, 2)))
    np.testing.assert_array_equal(TENSOR.coordinates, cells)
    np.testing.assert_array_equal(TENSOR.values, values)


@pytest.mark.parametrize("name", [name for name in NAMES if name != "biases"])
def test_mean_and_biases_can_be_left_out(name):
    shape = Shape(TENSOR.modes, SHAPE.ranks, fit_mean=False, fit_biases=False)
    model = carry_out(Plan(shape, make(name)), Local(Site(TENSOR, 1))).model
    assert model.mean == 0
    assert not model.biases.any()
    assert model.rows.any()


@pytest.mark.parametrize("name", NAMES)
def test_padding_stays_zero(name):
    prior = {} if name == "biases" else {"prior_mean": {"mode1": 1.0}}
    model = carry_out(Plan(SHAPE, make(name, **prior)), Local(Site(TENSOR, 1))).model
    assert model.rows.shape[1] > 2
    assert not model.rows[:, 2:].any()
