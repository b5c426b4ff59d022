"""Alternating private fits: budget, what is released, the mathematics of a move, and accuracy."""

from copy import deepcopy
from dataclasses import replace
from math import inf, nan

import numpy as np
import pytest

import sfumato as sf
from sfumato.data.tensor import Mode, SparseTensor
from sfumato.engines.local import Local
from sfumato.errors import SettingError
from sfumato.kernels.numba.alternating import CORE
from sfumato.models.shape import Shape
from sfumato.privacy.accounting import epsilon_of, gaussian_multiplier
from sfumato.privacy.budgets import Budget
from sfumato.privacy.entropy import Entropy
from sfumato.privacy.events import Composed, GaussianEvent
from sfumato.privacy.facts import Facts
from sfumato.privacy.ledger import Draw, Ledger
from sfumato.privacy.units import Entry, Unit, UnitValues, Value
from sfumato.records import same
from sfumato.sites.memory import Site
from sfumato.solvers.least_squares.own_rows import solve_own
from sfumato.solvers.private.alternating.moves import Block, Move, coordinates_of, weighted_moment
from sfumato.solvers.private.alternating.queries import (
    BlockQuery,
    OwnQuery,
    ScatterQuery,
    UnitBlockQuery,
)
from sfumato.solvers.private.alternating.settings import sloped_mode
from sfumato.solvers.private.alternating.solver import PrivateAlternating
from sfumato.solvers.private.alternating.state import State
from sfumato.solvers.private.biases import PrivateBiases
from sfumato.solvers.private.constant import PrivateConstant
from sfumato.solvers.protocol import Run

BOUNDS = (1.0, 5.0)
NAMES = ("user", "item", "day", "hour")
UNITS = [Value(), Entry(), Unit("user")]
EACH_UNIT = pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.key)
KIND = pytest.mark.parametrize("kind", ["cp", "tucker"])
WITH_LOCAL = pytest.mark.parametrize(
    ("unit", "local"), [(Value(), None), (Value(), 0), (Entry(), None), (Entry(), 0), (Unit("user"), 0)]
)


def planted(sizes=(150, 100), entries=8000, seed=0, rank=2, times=()):
    """Ratings with biases and a planted product that explains more than they do."""
    rng = np.random.default_rng(seed)
    cells = np.stack([rng.integers(n, size=entries) for n in sizes])
    factors = [rng.normal(size=(n, rank)) for n in sizes[:2]]
    factors += [rng.choice([-1.0, 1.0], (n, rank)) for n in sizes[2:]]
    values = 3 + 0.55 * np.prod([f[c] for f, c in zip(factors, cells, strict=True)], axis=0).sum(axis=1)
    for n, levels in list(zip(sizes, cells, strict=True))[:2]:
        values += 0.3 * rng.normal(size=n)[levels]
    values = np.clip(values + 0.4 * rng.normal(size=entries), *BOUNDS)
    modes = tuple(mode_of(name, n, name in times) for name, n in zip(NAMES, sizes, strict=False))
    return SparseTensor(cells, values, modes, BOUNDS)


def mode_of(name, size, timed=False):
    labels = np.array([f"1998-04-{day + 1:02}" for day in range(size)], object) if timed else None
    return Mode(name, size, labels, "day" if timed else None)


def facts_of(tensor, unit, kind="cp", rank=2, **settings):
    local = 0 if isinstance(unit, Unit) else None
    public = {"local": local, "entries": tensor.n_entries, **settings}
    return Facts(Shape.of(tensor.modes, (rank,) * tensor.order, kind), unit, BOUNDS, **public)


def fit(solver, facts, site, seed=0):
    """The loop: the last state, and all that was released on the way."""
    state, answers = solver.init(Run(), facts), []
    with Ledger(facts.unit).reserve(solver.charges(facts), Entropy(seed)) as reservation:
        for _ in range(solver.rounds(facts)):
            query = solver.ask(state)
            answers.append(reservation.ask(lambda draw, q=query: Local(site).released(q, draw)))
            state, _ = solver.update(state, answers[-1])
    return state, answers


def error(solver, facts, train, test, seed=0):
    """On held-out entries, the rows of a local mode solved by their owners."""
    state, _ = fit(solver, facts, Site(train, 1), seed)
    made = solver.finish(state)
    model, prior = made.model, made.own_prior
    model = model if prior is None else solve_own(model, prior, Site(train, 1))
    predicted = np.clip(model.predict(test.coordinates), *BOUNDS)
    return float(np.sqrt(np.mean((predicted - test.values) ** 2)))


TENSOR = planted((30, 20, 8), 900, times=("day",))
SITE = Site(TENSOR, 1)


# -- the budget -------------------------------------------------------------------------------


@EACH_UNIT
@KIND
@pytest.mark.parametrize("times", [(), ("day",)], ids=["no times", "times"])
@pytest.mark.parametrize("noise", [0.05, 1.0, 40.0])
def test_all_draws_together_cost_what_one_with_this_noise_costs(unit, kind, times, noise):
    modes = tuple(mode_of(name, n, name in times) for name, n in zip(NAMES, (30, 20, 8), strict=False))
    facts = facts_of(TENSOR, unit, kind)
    facts = replace(facts, shape=replace(facts.shape, modes=modes))
    for solver in (PrivateAlternating(noise), PrivateAlternating(noise, sweeps=3, growth=-0.9)):
        steps, charges = solver.steps(facts), solver.charges(facts)
        assert sum(step.share for step in steps) == pytest.approx(1.0, rel=1e-12)
        assert min(step.share for step in steps) > 0
        assert len(steps) == len(charges) == solver.rounds(facts)
        for step, charge in zip(steps, charges, strict=True):
            multiplier = charge.mechanism.noise_multiplier
            assert step.share * multiplier**2 == pytest.approx(noise**2, rel=1e-12)
        event = Composed(tuple(charge.mechanism.event for charge in charges))
        assert epsilon_of(event, 1e-6) == pytest.approx(epsilon_of(GaussianEvent(noise), 1e-6))


@EACH_UNIT
@KIND
def test_every_released_block_is_asked_about_in_every_sweep_and_own_rows_never(unit, kind):
    solver = PrivateAlternating(sweeps=3)
    asked = [step for step in solver.steps(facts_of(TENSOR, unit, kind)) if step.asks == "block"]
    expected = {1, 2} if isinstance(unit, Unit) else {0, 1, 2}
    expected |= {CORE} if kind == "tucker" else set()
    for number in range(3):
        assert {step.block for step in asked if step.round == number} == expected
    assert len(asked) == 3 * len(expected)


@pytest.mark.parametrize("first", ["day", "user"])
def test_a_mode_with_a_prior_mean_is_asked_about_after_what_it_multiplies(first):
    # At the start its designs are zero: its rows would be nothing but magnified noise.
    swapped = SparseTensor(TENSOR.coordinates[::-1], TENSOR.values, TENSOR.modes[::-1], BOUNDS)
    tensor = swapped if first == "day" else TENSOR
    facts, solver = facts_of(tensor, Entry()), PrivateAlternating(0.2, sweeps=4)
    blocks = [step.block for step in solver.steps(facts) if step.asks == "block"]
    assert tensor.modes[blocks[2]].name == "day"
    state, _ = fit(solver, facts, Site(tensor, 1))
    days = state.model.factors[tensor.mode_index("day")]
    assert np.abs(days - 1).max() < 5
    given = PrivateAlternating(0.2, sweeps=4, prior_mean={"user": 1.0, "day": 0.0})
    blocks = [step.block for step in given.steps(facts) if step.asks == "block"]
    assert tensor.modes[blocks[2]].name == "user"


def test_settings_follow_from_public_numbers_and_given_ones_stand():
    facts = facts_of(TENSOR, Entry())
    derived = PrivateAlternating(1.0).settings(facts)
    assert PrivateAlternating(1.0, unit_clip=0.9).settings(facts) == replace(derived, unit_clip=0.9)
    calm, noisy = (PrivateAlternating(noise).settings(facts) for noise in (0.01, 100.0))
    assert noisy.bias_share > calm.bias_share
    assert noisy.residual_clip < derived.residual_clip < calm.residual_clip


# -- what is refused --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("of_shape", "settings", "message"),
    [
        ({}, {"unit": UnitValues("user", 5)}, "'value', 'entry' or a mode"),
        ({}, {"unit": Unit("user"), "local": None}, "leave local at 'auto'"),
        ({"dtype": "float32"}, {}, "float64"),
        ({"fit_biases": False}, {}, "use method 'gradient'"),
        ({"fit_mean": False}, {}, "use method 'gradient'"),
    ],
    ids=str,
)
def test_what_cannot_be_done_is_said_before_any_draw(of_shape, settings, message):
    facts = facts_of(TENSOR, Entry())
    facts = replace(facts, shape=replace(facts.shape, **of_shape), **settings)
    for refuse in (PrivateAlternating().check, lambda facts: PrivateAlternating().init(Run(), facts)):
        with pytest.raises(SettingError, match=message):
            refuse(facts)


POSITIVE = ["noise", "residual_clip", "feature_clip", "unit_clip", "bias_weight", "last_step"]


@pytest.mark.parametrize(
    "settings",
    [
        *({name: wrong} for name in POSITIVE for wrong in (0.0, -1.0, nan, inf)),
        *({"sweeps": wrong} for wrong in (0, -3, 2.5, nan, inf)),
        *({"held_sweeps": wrong} for wrong in (-1, nan)),
        *({"growth": wrong} for wrong in (-1.0, -3.0, nan, inf)),
        *({"bias_share": wrong} for wrong in (0.0, -0.1, 0.96, 2.0, nan)),
        *({"prior_mean": {"day": wrong}} for wrong in (nan, inf, 1e8)),
        {"prior_mean": {"shop": 1.0}},
        {"last_step": 1.5},
    ],
    ids=str,
)
def test_impossible_settings_are_refused(settings):
    with pytest.raises(SettingError):
        PrivateAlternating(**settings).check(facts_of(TENSOR, Entry()))


def test_pure_budgets_and_missing_biases_are_refused_by_the_plan():
    def plan(delta=1e-6, unit="entry", local="auto", **model):
        public = sf.Public(labels={"user": range(30), ...: True}, entries=900)
        privacy = sf.Privacy(1.0, delta, unit=unit, method="alternating", public=public, local=local)
        return sf.CP(2, privacy=privacy, **model).plan(TENSOR.modes, bounds=BOUNDS)

    assert plan().task.solver.name == "alternating"
    with pytest.raises(SettingError, match="no pure epsilon"):
        plan(delta=0.0)
    with pytest.raises(SettingError, match="starts from mean and biases"):
        plan(biases=False)
    with pytest.raises(SettingError, match="leave local at 'auto'"):
        plan(unit="user", local=None)


def test_values_that_are_no_numbers_do_not_show():
    # NaN counts as the middle of the bounds, infinity as a bound; no error would be private.
    values = TENSOR.values.copy()
    values[:3] = nan, inf, -inf
    strange = SparseTensor(TENSOR.coordinates, values, TENSOR.modes, BOUNDS)
    plain = strange.with_values(np.concatenate([[3.0, 5.0, 1.0], values[3:]]), BOUNDS)
    public = sf.Public(labels={"user": range(30), ...: True}, entries=900)
    for unit in ("entry", "user"):
        privacy = sf.Privacy(3.0, 1e-6, unit=unit, method="alternating", public=public, seed=1)
        models = [sf.CP(2, privacy=privacy).fit(tensor).model_ for tensor in (strange, plain)]
        np.testing.assert_array_equal(models[0].rows, models[1].rows)


# -- what is released -------------------------------------------------------------------------


def parts(model):
    return model.mean, model.rows.tobytes(), model.biases.tobytes(), model.free_core.tobytes()


def replayed(solver, facts, answers):
    """The fit once more, from what was released and without data."""
    state = solver.init(Run(), facts)
    for answer in answers:
        solver.ask(state)
        state, _ = solver.update(state, answer)
    return state


@WITH_LOCAL
@KIND
def test_all_that_is_released_follows_from_the_draws(unit, local, kind):
    solver = PrivateAlternating(0.3, sweeps=3)
    facts = facts_of(TENSOR, unit, kind, local=local)
    state, answers = fit(solver, facts, SITE)
    again = replayed(solver, facts, answers)
    made = [solver.finish(each) for each in (state, again)]
    assert parts(made[1].model) == parts(made[0].model)
    priors = [each.own_prior for each in made]
    assert (priors[0] is None) == (local is None)
    if local is not None:
        assert priors[0].to_json() == priors[1].to_json()
        tensors = [prior.tensors() for prior in priors]
        assert tensors[0].keys() == tensors[1].keys()
        assert "own_turn" in tensors[0]
        assert "own_doubts_0" not in tensors[0]
        for name, array in tensors[0].items():
            np.testing.assert_array_equal(array, tensors[1][name])
        priors[0].check(facts.sizes, state.model.ranks)


class Recorder(Draw):
    """A draw that keeps what was clipped."""

    def __init__(self, charge):
        super().__init__(charge, Entropy(0))
        self.given = []

    def release(self, clipped):
        self.given.append(clipped)
        return super().release(clipped)


@EACH_UNIT
def test_each_answer_is_one_draw_of_what_was_clipped_and_nothing_else(unit):
    solver, facts = PrivateAlternating(0.3, sweeps=2), facts_of(TENSOR, unit)
    state = solver.init(Run(), facts)
    for step, charge in zip(solver.steps(facts), solver.charges(facts), strict=True):
        query, draw = solver.ask(state), Recorder(charge)
        released = Local(SITE).released(query, draw)
        (clipped,) = draw.given
        if step.asks != "biases":
            assert released.values.shape == clipped.values.shape
            assert set(released.__dataclass_fields__) == {"values", "deviation", "public"}
            assert released.public == ()
            if step.asks == "block":
                width = facts.shape.ranks[step.block] + 1
                assert clipped.values.shape == (facts.sizes[step.block], width)
        state, info = solver.update(state, released)
        assert info.train_rmse is None
    assert info.completed == 2


@EACH_UNIT
@KIND
def test_an_update_leaves_the_state_and_what_was_asked_as_they_were(unit, kind):
    solver, facts = PrivateAlternating(0.3, sweeps=2), facts_of(TENSOR, unit, kind)
    state = solver.init(Run(), facts)
    for charge in solver.charges(facts):
        query = solver.ask(state)
        asked, released = deepcopy(query), Local(SITE).released(query, Draw(charge, Entropy(0)))
        following, _ = solver.update(state, released)
        assert same(query, asked)
        assert same(solver.ask(state), asked)
        state = following


@pytest.mark.parametrize("unit", [Value(), Entry()], ids=lambda unit: unit.key)
def test_where_entries_are_protected_no_question_is_about_own_rows(unit):
    solver, facts = PrivateAlternating(0.3, sweeps=2), facts_of(TENSOR, unit, local=0)
    state, queries = solver.init(Run(), facts), []
    with Ledger(unit).reserve(solver.charges(facts), Entropy(0)) as reservation:
        for _ in range(solver.rounds(facts)):
            queries.append(solver.ask(state))
            released = reservation.ask(lambda draw: Local(SITE).released(queries[-1], draw))
            state, _ = solver.update(state, released)
    assert not any(isinstance(query, OwnQuery | UnitBlockQuery) for query in queries)
    assert not any({"owners", "weighting"} & vars(query).keys() for query in queries)
    blocks = [query for query in queries if isinstance(query, BlockQuery)]
    assert {query.block for query in blocks} == {0, 1, 2}  # the local mode under noise, like the others
    assert sum(isinstance(query, ScatterQuery) for query in queries) == 1


@EACH_UNIT
@KIND
def test_local_rows_are_zero_in_what_is_released_and_come_from_the_owner_alone(unit, kind):
    solver, facts = PrivateAlternating(0.3, sweeps=3), facts_of(TENSOR, unit, kind, local=0)
    state, _ = fit(solver, facts, SITE)
    made = solver.finish(state)
    released, prior = made.model, made.own_prior
    assert not released.factors[0].any()
    assert not released.mode_biases[0].any()
    assert released.factors[1].any()
    assert released.rows is not state.model.rows
    everybody = solve_own(released, prior, SITE)
    alone = solve_own(released, prior, Site(TENSOR.take(TENSOR.coordinates[0] == 7), 1))
    assert everybody.factors[0][7].any()
    np.testing.assert_array_equal(everybody.factors[0][7], alone.factors[0][7])
    for m in (1, 2):
        np.testing.assert_array_equal(everybody.factors[m], released.factors[m])


@KIND
def test_where_a_unit_stands_among_the_others_does_not_show(kind):
    # Somebody new comes between the others: all that is released stays, to the last bit.
    order = np.random.default_rng(3).permutation(TENSOR.shape[0])
    cells = np.stack([order[TENSOR.coordinates[0]], *TENSOR.coordinates[1:]])
    moved = SparseTensor(cells, TENSOR.values, TENSOR.modes, BOUNDS)
    solver, facts = PrivateAlternating(0.3, sweeps=3), facts_of(TENSOR, Unit("user"), kind)
    states = [fit(solver, facts, Site(each, 2))[0] for each in (TENSOR, moved)]
    models = [parts(solver.finish(state).model) for state in states]
    assert models[0] == models[1]


def test_a_fit_does_not_hang_on_threads_or_on_earlier_fits_of_the_same_site():
    for unit in UNITS:
        facts, solver = facts_of(TENSOR, unit), PrivateAlternating(0.3, sweeps=2)
        sites = SITE, SITE, Site(TENSOR, 2)
        models = [parts(solver.finish(fit(solver, facts, site)[0]).model) for site in sites]
        assert models[0] == models[1] == models[2]


def test_exact_noise_is_drawn_without_a_seed():
    facts, solver = facts_of(TENSOR, Entry()), PrivateAlternating(0.3, sweeps=1)
    first, second = (fit(solver, facts, SITE, None)[0].model for _ in range(2))
    for mode in range(3):
        assert (first.mode_biases[mode] != second.mode_biases[mode]).all()


# -- coordinates and moves --------------------------------------------------------------------


def test_coordinates_make_designs_white_and_rows_uncorrelated():
    rng = np.random.default_rng(0)
    mix, rows, counts = rng.normal(size=(4, 4)), rng.normal(size=(50, 4)), rng.uniform(1, 9, 50)
    moment = mix @ mix.T
    designs, turned, powers = coordinates_of(moment, weighted_moment(rows, counts))
    np.testing.assert_allclose(designs.T @ moment @ designs, np.eye(4), atol=1e-9)
    of_rows = weighted_moment(rows @ turned, counts)
    np.testing.assert_allclose(of_rows, np.diag(powers), atol=1e-9)
    np.testing.assert_allclose(turned @ designs.T, np.eye(4), atol=1e-9)  # a . d = b . x, and back
    np.testing.assert_allclose(of_rows.trace(), np.trace(moment @ weighted_moment(rows, counts)))


def test_a_direction_that_no_design_has_stays_finite():
    designs, turned, _ = coordinates_of(np.diag([2.0, 0.0]), np.ones((2, 2)))
    assert np.isfinite(designs).all()
    np.testing.assert_allclose(turned @ designs.T, np.eye(2), atol=1e-9)


def white_designs(rng, rows, n, rank):
    """For each row n designs whose products add up to n in each direction and to zero elsewhere."""
    made = []
    for _ in range(rows):
        square = np.linalg.qr(np.column_stack([np.ones(n), rng.normal(size=(n, rank))]))[0]
        made.append(np.sqrt(n) * square[:, 1:])  # orthogonal to each other and to a constant
    return np.array(made)


def move_of(rows, n, rng, rank, **settings):
    usual = {
        "step": 1.0,
        "counts": np.full(rows, float(n)),
        "scatter": 0.7,
        "power": rng.uniform(0.1, 2.0, rank),
        "noise": np.zeros(rows),
        "bias_weight": 1.4,
        "bias_means": rng.normal(size=rows),
        "bias_variances": rng.uniform(0.2, 1.0, rows),
    }
    return Move(**{**usual, **settings})


def ridge_solution(move, row, x, y):
    """Row and bias by generalised ridge regression, written out."""
    design = np.column_stack([x, np.ones(len(y))])
    penalty = move.scatter / np.append(move.power, move.bias_variances[row])
    right = design.T @ y
    right[-1] += penalty[-1] * move.bias_means[row]
    return np.linalg.solve(design.T @ design + np.diag(penalty), right)


def test_a_whole_step_from_zero_without_noise_is_ridge_regression():
    rng = np.random.default_rng(1)
    rows, n, rank = 5, 12, 3
    x, y = white_designs(rng, rows, n, rank), rng.normal(size=(rows, n))
    move = move_of(rows, n, rng, rank)
    start = move.bias_means  # at its prior mean a bias is not pulled
    residuals = y - start[:, None]
    sums = np.column_stack([np.einsum("ln,lnr->lr", residuals, x), 1.4 * residuals.sum(axis=1)])
    moved = move.by_gradients(np.zeros((rows, rank)), start, sums, Block())
    for row in range(rows):
        expected = ridge_solution(move, row, x[row], y[row])
        np.testing.assert_allclose(moved.rows[row], expected[:-1], rtol=1e-12, atol=1e-14)
        assert moved.biases[row] == pytest.approx(expected[-1], rel=1e-12)


def test_ridge_regression_stays_where_it_is():
    # From any place a whole step leads to the same solution, and from there nowhere.
    rng = np.random.default_rng(2)
    rows, n, rank = 4, 10, 2
    x, y = white_designs(rng, rows, n, rank), rng.normal(size=(rows, n))
    move = move_of(rows, n, rng, rank)

    def step(at, biases):
        residuals = y - np.einsum("lnr,lr->ln", x, at) - biases[:, None]
        sums = np.column_stack([np.einsum("ln,lnr->lr", residuals, x), 1.4 * residuals.sum(axis=1)])
        return move.by_gradients(at, biases, sums, Block())

    one = step(np.zeros((rows, rank)), np.zeros(rows))
    other = step(rng.normal(size=(rows, rank)), rng.normal(size=rows))
    np.testing.assert_allclose(one.rows, other.rows, rtol=1e-10, atol=1e-12)
    again = step(one.rows, one.biases)
    np.testing.assert_allclose(again.rows, one.rows, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(again.biases, one.biases, rtol=1e-10)


def test_the_noise_of_a_level_is_that_of_its_sums_without_its_weight():
    # Units' entries count less at popular levels: taking that back magnifies the noise.
    solver, facts = PrivateAlternating(0.3, sweeps=3), facts_of(TENSOR, Unit("user"))
    state = solver.init(Run(), facts)
    for step, charge in zip(solver.steps(facts), solver.charges(facts), strict=True):
        query = solver.ask(state)
        released = Local(SITE).released(query, Draw(charge, Entropy(0)))
        state, _ = solver.update(state, released)
        if step.asks == "block":
            break
    weights = query.weighting.levels
    assert weights.std() > 0.01
    expected = (released.deviation / weights) ** 2  # the first step is a whole one
    np.testing.assert_allclose(state.blocks[step.block].noise, expected, rtol=1e-12)
    popular, rare = (np.argsort(state.counts(step.block))[place] for place in (-1, 0))
    assert weights[popular] < weights[rare]


def test_rows_under_much_noise_fall_back_to_their_prior():
    rng = np.random.default_rng(5)
    move = move_of(50, 10, rng, 2, noise=np.full(50, 1e12))
    sums = 1e6 * rng.normal(size=(50, 3))
    moved = move.by_gradients(rng.normal(size=(50, 2)), rng.normal(size=50), sums, Block())
    assert np.abs(moved.rows).max() < 1e-3
    np.testing.assert_allclose(moved.biases, move.bias_means, atol=1e-3)
    np.testing.assert_allclose(moved.block.doubts, move.power, rtol=1e-6)


# -- accuracy ---------------------------------------------------------------------------------


def noise_for(epsilon):
    """All draws together cost what one Gaussian with this noise costs."""
    return gaussian_multiplier(Budget(epsilon, 1e-6))


@pytest.mark.parametrize("unit", [Entry(), Value()], ids=lambda unit: unit.key)
@KIND
def test_better_than_biases_where_noise_is_thin(unit, kind):
    train, test = planted().split(0.2, seed=0)
    facts = facts_of(train, unit, kind)
    alternating, biases = (
        error(solver(noise_for(10)), facts, train, test)
        for solver in (PrivateAlternating, PrivateBiases)
    )
    assert alternating < 0.85 * biases


def test_better_than_biases_for_units_with_many_entries():
    train, test = planted((600, 60), 24_000).split(0.2, seed=0)
    facts = facts_of(train, Unit("user"))
    alternating, biases = (
        error(solver(noise_for(20)), facts, train, test)
        for solver in (PrivateAlternating, PrivateBiases)
    )
    assert alternating < 0.9 * biases


@WITH_LOCAL
def test_under_heavy_noise_hardly_worse_than_the_private_constant(unit, local):
    train, test = planted((60, 40), 2000).split(0.3, seed=0)
    facts = facts_of(train, unit, local=local)
    constant, alternating = (
        np.mean([error(solver(noise_for(0.05)), facts, train, test, seed) for seed in range(5)])
        for solver in (PrivateConstant, PrivateAlternating)
    )
    assert alternating < 1.05 * constant


@pytest.mark.parametrize(
    ("kind", "unit", "epsilon"), [("cp", Entry(), 10), ("tucker", Unit("user"), 100)]
)
def test_a_tensor_of_order_four_is_learnt(kind, unit, epsilon):
    train, test = planted((80, 50, 4, 3), 12_000, times=("day",)).split(0.2, seed=0)
    facts, noise = facts_of(train, unit, kind), noise_for(epsilon)
    alternating = error(PrivateAlternating(noise), facts, train, test)
    assert alternating < 0.95 * error(PrivateBiases(noise), facts, train, test)


@pytest.mark.parametrize("unit", [Entry(), Unit("user")], ids=lambda unit: unit.key)
def test_the_number_of_entries_need_not_be_public(unit):
    train, test = planted((300, 60), 12_000).split(0.2, seed=0)
    solver = PrivateAlternating(noise_for(20))
    with_it, without = (
        error(solver, facts_of(train, unit, entries=entries), train, test)
        for entries in (train.n_entries, None)
    )
    assert without < 1.1 * with_it


def test_what_own_rows_are_expected_to_be_stays_within_limits_under_much_noise():
    # Nothing in the data holds their scale: it would drift to where the prior has no inverse.
    facts = facts_of(TENSOR, Unit("user"), rank=3)
    solver, site = PrivateAlternating(100.0, sweeps=150), Site(TENSOR, 1)
    state, checked = solver.init(Run(), facts), 0
    ledger = Ledger(Unit("user"))
    with ledger.reserve(solver.charges(facts), Entropy(0), proven=True) as reservation:
        for _ in range(solver.rounds(facts)):
            query = solver.ask(state)
            released = reservation.ask(lambda draw, q=query: Local(site).released(q, draw))
            state, _ = solver.update(state, released)
            if isinstance(state, State):
                sizes = np.linalg.svd(state.owned.turn, compute_uv=False)
                assert sizes.max() <= 1.001e3
                assert sizes.min() >= 0.999e-3
                checked += 1
    assert checked == len([step for step in solver.steps(facts) if step.asks != "biases"]) + 1


# -- slopes ----------------------------------------------------------------------------------------


def sloped(order, seed=0, slopes=0.8):
    """Ratings whose only interaction is how much users go along with what everybody likes."""
    rng = np.random.default_rng(seed)
    users, items = 300, 80
    cells = np.stack([rng.integers(users, size=12_000), rng.integers(items, size=12_000)])
    bias, goes_along = 0.6 * rng.normal(size=items), 1 + slopes * rng.normal(size=users)
    values = 3 + goes_along[cells[0]] * bias[cells[1]] + 0.4 * rng.normal(size=12_000)
    modes = (Mode("user", users), Mode("item", items))
    cells, modes = (cells[::-1], modes[::-1]) if order else (cells, modes)
    return SparseTensor(cells, np.clip(values, 1, 5), modes, (1.0, 5.0)).split(0.2, seed=seed)


def over_biases(train, test, epsilon, rank):
    """The error of an alternating fit with everything released, over that of private biases."""
    public = sf.Public(entries=train.n_entries, labels=True)
    errors = []
    for method in ("alternating", "bias"):
        privacy = sf.Privacy(epsilon, 1e-6, unit="entry", method=method, public=public, seed=2)
        errors.append(sf.CP(rank, privacy=privacy).fit(train).rmse(test))
    return errors[0] / errors[1]


@pytest.mark.parametrize("order", [0, 1])
@pytest.mark.parametrize("epsilon", [3, 10])
def test_slopes_on_released_biases_need_not_be_found(order, epsilon):
    assert over_biases(*sloped(order), epsilon, 2) < 0.9


def test_columns_start_at_what_was_released():
    train, _ = sloped(0)
    facts = facts_of(train, Entry(), rank=3)
    state, _ = fit(PrivateAlternating(0.01), facts, Site(train, 1))
    home, biases = state.homes[1], state.start.biases[1]
    assert np.corrcoef(home[:, 0], biases)[0, 1] == pytest.approx(1)
    assert home[:, :2].std(axis=0) == pytest.approx(1, abs=0.1)
    assert not home[:, 2].any()
    assert state.homes[0] == 0


def test_slopes_do_no_harm_where_there_are_none():
    for epsilon in (0.3, 3):
        assert over_biases(*sloped(0, slopes=0.0), epsilon, 3) < 1.03


def test_slopes_are_those_of_two_modes_of_a_cp_model_whose_rows_are_noised():
    train, _ = sloped(0)
    assert sloped_mode(facts_of(train, Entry()), [0.0, 0.0]) == 1
    assert sloped_mode(facts_of(train, Entry()), [0.0, 1.0]) is None
    assert sloped_mode(facts_of(train, Entry(), kind="tucker"), [0.0, 0.0]) is None
    assert sloped_mode(facts_of(train, Unit("user")), [0.0, 0.0]) is None
