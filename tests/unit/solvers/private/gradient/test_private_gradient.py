"""Private gradient descent as a solver: settings, charges, what is released, falling back."""

from dataclasses import replace

import numpy as np
import pytest

import sfumato as sf
from sfumato.engines.local import Local
from sfumato.errors import SettingError
from sfumato.fit.completion import Completion
from sfumato.models.shape import Shape
from sfumato.privacy.accounting import calibrate, epsilon_of
from sfumato.privacy.budgets import Budget
from sfumato.privacy.entropy import Entropy
from sfumato.privacy.events import Composed
from sfumato.privacy.facts import Facts
from sfumato.privacy.ledger import BudgetError, Draw, Ledger
from sfumato.privacy.mechanisms import Gaussian, Noisy, PoissonGaussian
from sfumato.privacy.units import Entry, Unit, UnitValues, Value
from sfumato.sites.memory import Site
from sfumato.solvers.least_squares.own_rows import solve_own
from sfumato.solvers.private.gradient.levels import Start, read_levels
from sfumato.solvers.private.gradient.solver import PrivateSGD, derive
from sfumato.solvers.protocol import Run, SumQuery

BOUNDS = (1.0, 5.0)
UNITS = {
    "value": (Value(), None),
    "entry": (Entry(), None),
    "entry, local": (Entry(), 0),
    "user": (Unit("user"), None),
    "user, local": (Unit("user"), 0),
}


def facts_of(tensor, unit, local=None, kind="cp", **others):
    dtype, ranks = str(tensor.values.dtype), (2,) * tensor.order
    shape = Shape.of(tensor.modes, ranks, kind, dtype=dtype, **others)
    return Facts(shape, unit, BOUNDS, tensor.n_entries, local=local)


def event(solver, facts):
    return Composed(tuple(charge.mechanism.event for charge in solver.charges(facts)))


def calibrated(solver, facts, budget):
    noise = calibrate(lambda x: event(replace(solver, noise=x), facts), budget)
    return replace(solver, noise=noise)


def fit(solver, facts, tensor, seed=0):
    """The released model, the model with local rows, and how these are solved."""
    site, state, charges = Site(tensor, 1), solver.init(Run(seed or 0), facts), solver.charges(facts)
    assert solver.rounds(facts) == len(charges)
    with Ledger(facts.unit).reserve(charges, Entropy(seed)) as reservation:
        for _ in charges:
            query = solver.ask(state)
            answer = reservation.ask(lambda draw, query=query: Local(site).released(query, draw))
            state, info = solver.update(state, answer)
    assert info.completed == solver.settings(facts).passes
    made = solver.finish(state)
    return made.model, with_own_rows(made.model, made.own_prior, site), made.own_prior


def with_own_rows(released, prior, site):
    return released if prior is None else solve_own(released, prior, site)


def rmse(model, tensor):
    predicted = np.clip(model.predict(tensor.coordinates), *BOUNDS)
    return float(np.sqrt(np.mean(np.square(predicted - tensor.values))))


@pytest.fixture(scope="module")
def ratings():
    tensor = sf.synthetic.ratings_like(300, 200, 12, entries=40_000).astype(np.float64)
    return tensor.split(0.2, seed=0)


@pytest.fixture(scope="module")
def small():
    return sf.synthetic.ratings_like(30, 20, 4, entries=600).astype(np.float64)


# -- accuracy -----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["cp", "tucker"])
@pytest.mark.parametrize("name", UNITS)
@pytest.mark.parametrize("epsilon", [0.1, 1.0, 10.0])
def test_a_fit_is_never_much_worse_than_a_constant(ratings, kind, name, epsilon):
    train, test = ratings
    unit, local = UNITS[name]
    if name == "user" and epsilon == 0.1:
        pytest.skip("for 300 users, even a constant is noise")
    facts = facts_of(train, unit, local, kind)
    solver = calibrated(PrivateSGD(passes=15), facts, Budget(epsilon, 1e-6))
    _, model, _ = fit(solver, facts, train)
    constant = float(np.sqrt(np.mean(np.square(test.values - train.values.mean()))))
    assert rmse(model, test) < 1.03 * constant


@pytest.mark.parametrize("name", UNITS)
def test_much_budget_learns_more_than_biases(ratings, name):
    train, test = ratings
    unit, local = UNITS[name]
    facts = facts_of(train, unit, local)
    solver = calibrated(PrivateSGD(), facts, Budget(200.0, 1e-6))
    _, model, _ = fit(solver, facts, train)
    biases = sf.Biases().fit(train).model_
    if name != "user":  # a unit's own row with noise of its own is next to useless
        assert rmse(model, test) < 0.97 * rmse(biases, test)


def test_small_batches_learn_too(ratings):
    train, test = ratings
    facts = facts_of(train, Entry())
    scores = []
    for rate in (1.0, 0.05):
        solver = PrivateSGD(noise=0.3, passes=20, rate=rate)
        scores.append(rmse(fit(solver, facts, train)[0], test))
    assert scores[1] < 1.02 * scores[0]


# -- charges ------------------------------------------------------------------------------------


@pytest.mark.parametrize("unit", [Value(), Entry(), Unit("user")], ids=lambda unit: unit.key)
@pytest.mark.parametrize("rate", [1.0, 0.1])
def test_charges_are_as_planned(small, unit, rate):
    facts = facts_of(small, unit)
    solver = PrivateSGD(noise=1.5, passes=4, rate=rate)
    levels, *steps = solver.charges(facts)
    assert isinstance(levels.mechanism, Gaussian)
    assert len(steps) == 4
    for charge in steps:
        if rate == 1:  # plain noise, relative to what neighbours can change
            multiplier = solver.step_multiplier(facts) / (2 if unit.replaces else 1)
            assert charge.mechanism == Gaussian(multiplier)
            continue
        assert isinstance(charge.mechanism, PoissonGaussian)
        assert charge.mechanism.steps == round(1 / rate)
        assert charge.mechanism.replaces == unit.replaces
    # More steps are never cheaper, and more noise never dearer.
    parts = [Composed(tuple(c.mechanism.event for c in (levels, *steps[:k]))) for k in range(5)]
    costs = [epsilon_of(part, 1e-5) for part in parts]
    assert costs == sorted(costs)
    assert epsilon_of(event(replace(solver, noise=2.0), facts), 1e-5) < costs[-1]


def test_calibrated_noise_keeps_the_budget_and_no_more(small):
    for unit, rate in ((Entry(), 1.0), (Value(), 0.2)):
        facts = facts_of(small, unit)
        solver = calibrated(PrivateSGD(passes=2, rate=rate), facts, Budget(3.0, 1e-5))
        assert epsilon_of(event(solver, facts), 1e-5) <= 3.0
        assert epsilon_of(event(replace(solver, noise=solver.noise * 0.99), facts), 1e-5) > 3.0


def test_without_sampling_the_shares_make_up_the_whole(small):
    facts = facts_of(small, Value())
    solver = PrivateSGD(noise=1.7)
    assert epsilon_of(event(solver, facts), 1e-6) == pytest.approx(
        epsilon_of(Gaussian(1.7).event, 1e-6), rel=1e-6
    )


def test_all_units_at_rate_one_cost_what_plain_gaussians_cost():
    plain = Gaussian(2.0).event
    assert epsilon_of(PoissonGaussian(2.0, 1.0, 1, False).event, 1e-6) == epsilon_of(plain, 1e-6)
    # A replaced unit takes one contribution away and puts another there.
    assert epsilon_of(PoissonGaussian(4.0, 1.0, 1, True).event, 1e-6) == epsilon_of(plain, 1e-6)


def test_a_start_that_is_given_is_not_charged_for(small):
    facts, n = facts_of(small, Entry()), sum(small.shape)
    start = Start(3.2, np.zeros(n), np.full(n, 30.0), 0.8, np.full(3, 0.1))
    solver = PrivateSGD(noise=1.0, passes=3, start=start)
    assert [charge.label for charge in solver.charges(facts)] == ["gradient steps"] * 3
    model, _, _ = fit(solver, facts, small)
    assert model.mean == 3.2


def test_a_draw_is_used_once(small):
    facts = facts_of(small, Entry())
    solver = PrivateSGD(passes=1)
    draw = Draw(solver.charges(facts)[0], Entropy(0))
    query, local = solver.ask(solver.init(Run(), facts)), Local(Site(small, 1))
    local.released(query, draw)
    with pytest.raises(BudgetError, match="cannot be drawn twice"):
        local.released(query, draw)


# -- what is released ---------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["entry, local", "user, local"])
def test_local_rows_are_zero_in_the_release_and_filled_for_their_owners(small, name):
    unit, local = UNITS[name]
    facts = facts_of(small, unit, local)
    model, own, _ = fit(PrivateSGD(passes=3), facts, small)
    here = model.span(0)
    assert not model.rows[here].any()
    assert not model.biases[here].any()
    assert own.rows[here].any()
    np.testing.assert_array_equal(model.rows[here.stop :], own.rows[here.stop :])
    np.testing.assert_array_equal(model.biases[here.stop :], own.biases[here.stop :])


def test_a_local_row_depends_on_its_owners_entries_alone(small):
    unit, local = UNITS["user, local"]
    facts, solver = facts_of(small, unit, local), PrivateSGD(passes=3)
    model, own, prior = fit(solver, facts, small)
    other = small.values.copy()
    other[small.coordinates[0] != 4] = 1.0
    changed = sf.SparseTensor(small.coordinates, other, small.modes)
    again = with_own_rows(model, prior, Site(changed, 1))
    np.testing.assert_array_equal(own.rows[4], again.rows[4])
    assert not np.array_equal(own.rows[5], again.rows[5])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_seed_repeats_a_fit_and_no_seed_does_not(small, dtype):
    tensor = small.astype(dtype)
    facts, solver = facts_of(tensor, Entry()), PrivateSGD(passes=2, rate=0.5)
    one, two, three, four = (fit(solver, facts, tensor, seed)[0] for seed in (3, 3, None, None))
    np.testing.assert_array_equal(one.rows, two.rows)
    assert one.rows.dtype == dtype
    assert not np.array_equal(three.rows, four.rows)


def test_values_beyond_the_bounds_count_as_the_bounds(small):
    facts, solver = facts_of(small, Entry()), PrivateSGD(passes=2)
    wild = small.values.copy()
    wild[wild == 5] = 1e9
    tensor = sf.SparseTensor(small.coordinates, wild, small.modes)
    np.testing.assert_array_equal(fit(solver, facts, small)[0].rows, fit(solver, facts, tensor)[0].rows)


def test_exact_counts_are_used_only_where_positions_are_public(small):
    for unit, known in ((Value(), True), (Entry(), False)):
        facts, solver = facts_of(small, unit), PrivateSGD(passes=1)
        draw = Draw(solver.charges(facts)[0], Entropy(0))
        query = solver.ask(solver.init(Run(), facts))
        answer = Local(Site(small, 1)).released(query, draw)
        assert isinstance(answer, Noisy)
        assert len(answer.public) == known
        counts = read_levels(facts, answer).counts
        assert np.array_equal(counts, np.maximum(Site(small, 1).counts, 1)) == known


def test_without_a_mean_values_are_taken_from_zero(small):
    facts = facts_of(small, Value(), fit_mean=False)
    model, _, _ = fit(PrivateSGD(noise=1e-3, passes=2), facts, small)
    assert model.mean == pytest.approx(0, abs=1e-12)


# -- settings -----------------------------------------------------------------------------------


def test_settings_follow_from_public_numbers_and_can_be_given(small):
    facts = facts_of(small, Entry())
    solver = PrivateSGD(noise=2.0, clip=0.7)
    assert solver.settings(facts) == replace(derive(facts, 2.0), clip=0.7)
    little, much = derive(facts, 0.1), derive(facts, 100.0)
    assert much.step < little.step
    assert much.clip < little.clip
    assert much.levels_share > little.levels_share
    assert derive(replace(facts, entries=None), 1.0).passes == little.passes


@pytest.mark.parametrize(
    ("solver", "changed", "says"),
    [
        (PrivateSGD(), {"unit": UnitValues("user", 3)}, "input perturbation"),
        (PrivateSGD(rate=1.5), {}, "rate must be a number from 1e-09 to 1"),
        (PrivateSGD(rate=0.0), {}, "rate must be"),
        (PrivateSGD(step=1.0), {}, "between 0 and 1"),
        (PrivateSGD(passes=0), {}, "passes"),
        (PrivateSGD(clip=-1.0), {}, "clip"),
        (PrivateSGD(levels_share=1.0), {}, "levels_share"),
        (PrivateSGD(noise=float("nan")), {}, "noise"),
        (PrivateSGD(prior_mean={"planet": 1.0}), {}, "planet"),
    ],
)
def test_settings_that_cannot_be_are_refused_before_any_draw(small, solver, changed, says):
    with pytest.raises(SettingError, match=says):
        solver.init(Run(), replace(facts_of(small, Entry()), **changed))


def test_a_pure_budget_is_refused_with_advice(small):
    facts = facts_of(small, Entry())
    with pytest.raises(SettingError, match="name a delta"):
        calibrated(PrivateSGD(), facts, Budget(1.0))


def test_a_start_that_is_given_is_an_assumption(small):
    facts = facts_of(small, Value())
    assert PrivateSGD().assumes(facts) == ()
    levels = np.ones(sum(facts.sizes))
    start = Start(3.0, 0 * levels, levels, 1.0, np.ones(3))
    (line,) = PrivateSGD(start=start).assumes(facts)
    assert "starts from is public" in line


# -- exact or idealised ---------------------------------------------------------------------------


def test_noise_is_exact_where_all_units_take_part():
    assert PrivateSGD().exact
    assert PrivateSGD(rate=1.0).exact
    assert not PrivateSGD(rate=0.5).exact


def test_a_promise_says_whether_noise_is_exact(small):
    facts = facts_of(small, Entry())
    for solver in (PrivateSGD(), PrivateSGD(rate=0.5)):
        assert Completion(solver, facts).promise.exact == solver.exact


@pytest.mark.parametrize("name", UNITS)
def test_steps_of_all_units_ask_for_sums_on_a_grid(small, name):
    unit, local = UNITS[name]
    facts, solver = facts_of(small, unit, local), PrivateSGD(passes=2)
    state, site = solver.init(Run(), facts), Site(small, 2)
    for charge in solver.charges(facts):
        query = solver.ask(state)
        assert isinstance(query, SumQuery)
        clipped = query.clipped(site)
        assert clipped.values.any()
        state, _ = solver.update(state, Draw(charge, Entropy(1)).release(clipped))
    # All that is released gets noise: rows of all modes but those that units solve, biases, no padding.
    own = facts.own
    rows = sum(size * 2 for m, size in enumerate(small.shape) if m != own)
    biases = sum(size for m, size in enumerate(small.shape) if m != own)
    assert clipped.values.shape == (rows + biases,)


def test_a_model_in_single_precision_is_computed_in_double(small):
    tensor = small.astype(np.float32)
    wide, narrow = (
        fit(PrivateSGD(passes=3), facts_of(each, Entry()), tensor)[0] for each in (small, tensor)
    )
    assert (wide.rows.dtype, narrow.rows.dtype) == (np.float64, np.float32)
    for one, other in zip(wide.factors, narrow.factors, strict=True):
        np.testing.assert_array_equal(one.astype(np.float32), other)
