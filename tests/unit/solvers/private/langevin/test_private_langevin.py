"""Private Langevin dynamics as a solver: settings, charges, what is shared, released, and kept."""

from dataclasses import replace

import numpy as np
import pytest

import sfumato as sf
from sfumato.data.tensor import Mode, SparseTensor
from sfumato.engines.local import Local
from sfumato.errors import SettingError
from sfumato.models.shape import Shape
from sfumato.privacy.accounting import calibrate, epsilon_of
from sfumato.privacy.budgets import ZCDP, Budget
from sfumato.privacy.entropy import Entropy
from sfumato.privacy.events import Composed
from sfumato.privacy.facts import CoupledFacts, Facts
from sfumato.privacy.ledger import Ledger
from sfumato.privacy.mechanisms import Gaussian, PoissonGaussian
from sfumato.privacy.units import Entry, Unit, UnitValues, Value
from sfumato.sites.memory import Site
from sfumato.sites.several import RelationSites
from sfumato.solvers.least_squares.own_rows import solve_own
from sfumato.solvers.private.biases import PrivateBiases
from sfumato.solvers.private.langevin.langevin_steps import RandomStepsQuery, SlopeQuery
from sfumato.solvers.private.langevin.settings import derive
from sfumato.solvers.private.langevin.solver import PrivateLangevin, make_langevin
from sfumato.solvers.private.langevin.state import State
from sfumato.solvers.protocol import DivergedError, Run, SumQuery, Wish, check_solver

BOUNDS = (1.0, 5.0)
COUNTS = (0.0, 20.0)
UNITS = {
    "value": (Value(), None),
    "entry": (Entry(), None),
    "entry, local": (Entry(), "user"),
    "user": (Unit("user"), None),
    "user, local": (Unit("user"), "user"),
}
EVERY_UNIT = pytest.mark.parametrize(("unit", "local"), UNITS.values(), ids=UNITS)


def facts_of(tensors, unit=None, local=None, rank=2, bounds=BOUNDS, entries=True):
    parts = []
    for tensor in tensors:
        shape = Shape.of(tensor.modes, (rank,) * tensor.order, "cp")
        number = tensor.n_entries if entries else None
        where = tensor.mode_names.index(local) if local in tensor.mode_names else None
        parts.append(Facts(shape, unit or Entry(), bounds, number, local=where))
    return CoupledFacts(tuple(f"table {v}" for v in range(len(parts))), tuple(parts))


def event(solver, facts):
    return Composed(tuple(charge.mechanism.event for charge in solver.charges(facts)))


def calibrated(solver, facts, budget):
    noise = calibrate(lambda x: event(replace(solver, noise=x), facts), budget)
    return replace(solver, noise=noise)


def fit(solver, facts, tensors, seed=0, threads=1):
    """What was finished, and the last state."""
    sites, state, charges = (
        RelationSites(tensors, threads),
        solver.init(Run(seed), facts),
        solver.charges(facts),
    )
    assert solver.rounds(facts) == len(charges)
    with Ledger(facts.unit).reserve(charges, Entropy(seed)) as reservation:
        for _ in charges:
            query = solver.ask(state)
            answer = reservation.ask(lambda draw, query=query: Local(sites).released(query, draw))
            state, info = solver.update(state, answer)
    assert info.completed == solver.settings(facts).passes
    return solver.finish(state), state


def rmse(several, tests, trained, bounds=BOUNDS):
    errors = []
    for model, prior, test, own in zip(several.models, several.own_priors, tests, trained, strict=True):
        full = model if prior is None else solve_own(model, prior, Site(own, 1))
        predicted = np.clip(full.predict(test.coordinates), *bounds)
        errors.append(float(np.sqrt(np.mean(np.square(predicted - test.values)))))
    return errors


def cut(tensor, modes):
    """The tensor without some of its modes."""
    at = [tensor.mode_names.index(mode) for mode in modes]
    return SparseTensor(tensor.coordinates[at], tensor.values, tuple(tensor.modes[m] for m in at))


@pytest.fixture(scope="module")
def ratings():
    return sf.synthetic.ratings_like(300, 200, 12, entries=40_000).astype(np.float64).split(0.2, seed=0)


@pytest.fixture(scope="module")
def tables(ratings):
    """Users by items, users by items and days, and users by days: all share modes."""
    return [cut(ratings[0], ["user", "item"]), ratings[0], cut(ratings[0], ["user", "day"])]


@pytest.fixture(scope="module")
def small():
    rng = np.random.default_rng(0)
    cells = np.stack([rng.integers(0, 20, 300), rng.integers(0, 15, 300)])
    one = SparseTensor(cells, rng.uniform(1, 5, 300), (Mode("user", 20), Mode("item", 15)))
    cells = np.stack([rng.integers(0, 20, 200), rng.integers(0, 4, 200)])
    two = SparseTensor(cells, rng.uniform(1, 5, 200), (Mode("user", 20), Mode("kind", 4)))
    return [one, two]


# -- settings and charges -------------------------------------------------------------------------


def test_it_is_a_private_solver(small):
    check_solver("solver", PrivateLangevin(), private=True)
    solver, facts = PrivateLangevin(), facts_of(small)
    assert (solver.name, solver.proof, solver.proven) == ("langevin", "proofs/langevin.md", True)
    assert solver.exact
    assert solver.adds_up(facts)
    assert not PrivateLangevin(rate=0.1).exact
    assert not PrivateLangevin(rate=0.1).adds_up(facts)
    assert any("temperature" in line for line in solver.in_words(facts))


@pytest.mark.parametrize(
    "wrong",
    [
        {"noise": 0.0},
        {"model": "gamma"},
        {"passes": 0},
        {"rate": 0.0},
        {"rate": 1.5},
        {"clip": -1.0},
        {"step": 0.0},
        {"last_step": 1.5},
        {"bias_share": 1.0},
        {"bias_part": -0.1},
        {"typical": 0.0},
        {"tail": 0.0},
        {"keep": -1},
        {"laplace": 0.0},
    ],
    ids=str,
)
def test_impossible_settings_are_refused(wrong, small):
    with pytest.raises(SettingError):
        PrivateLangevin(**wrong).check(facts_of(small))


def test_relations_that_do_not_fit_together_are_refused(small):
    other = SparseTensor(small[1].coordinates, small[1].values, (Mode("user", 21), Mode("kind", 4)))
    with pytest.raises(SettingError, match="other levels"):
        PrivateLangevin().check(facts_of([small[0], other]))
    ranks = CoupledFacts(("a", "b"), (*facts_of(small[:1]).parts, *facts_of(small[1:], rank=3).parts))
    with pytest.raises(SettingError, match="one rank"):
        PrivateLangevin().check(ranks)
    local, released = facts_of(small, local="user").parts[0], facts_of(small).parts[1]
    with pytest.raises(SettingError, match="stay with their owners"):
        PrivateLangevin().check(CoupledFacts(("a", "b"), (local, released)))
    with pytest.raises(SettingError, match="protects"):
        PrivateLangevin().check(facts_of(small, UnitValues("user", 5)))
    with pytest.raises(SettingError, match="counts"):
        PrivateLangevin(model="poisson").check(facts_of(small, bounds=(-1.0, 5.0)))


def test_a_pure_budget_is_refused_and_others_are_not(small):
    facts = facts_of(small)
    with pytest.raises(SettingError, match="name a delta"):
        make_langevin(facts, Wish(Budget(1.0)))
    assert make_langevin(facts, Wish(ZCDP(0.5))) == PrivateLangevin()
    assert make_langevin(facts, Wish(Budget(50.0, 1e-6))) == PrivateLangevin()


@EVERY_UNIT
@pytest.mark.parametrize("rate", [None, 0.25])
@pytest.mark.parametrize("model", ["normal", "poisson"])
def test_charges_cost_less_the_larger_the_noise_and_fill_the_budget(unit, local, rate, model, small):
    facts = facts_of(small, unit, local)
    solver = PrivateLangevin(rate=rate, passes=3, model=model)
    costs = [epsilon_of(event(replace(solver, noise=x), facts), 1e-5) for x in (0.6, 1.0, 3.0, 20.0)]
    assert costs == sorted(costs, reverse=True)
    if rate is None:  # shares of Gaussian questions add up to one
        found = calibrated(solver, facts, Budget(1.0, 1e-5))
        assert epsilon_of(event(found, facts), 1e-5) == pytest.approx(1.0, rel=1e-3)
        multipliers = [charge.mechanism.noise_multiplier for charge in found.charges(facts)]
        assert sum(m**-2 for m in multipliers) == pytest.approx(found.noise**-2)


@pytest.mark.parametrize(("unit", "change"), [(Entry(), 1), (Value(), 2)], ids=["entry", "value"])
def test_steps_are_charged_relative_to_what_neighbours_change(unit, change, small):
    facts = facts_of(small, unit)
    solver = PrivateLangevin(passes=4)
    step = solver.charges(facts)[-1].mechanism
    assert step == Gaussian(solver.step_multiplier(facts) / change)
    sampled = PrivateLangevin(passes=4, rate=0.25)
    step = sampled.charges(facts)[-1].mechanism
    assert step == PoissonGaussian(sampled.step_multiplier(facts), 0.25, 4, change == 2)


def test_little_budget_goes_to_biases_with_laplace_noise(tables):
    facts = facts_of(tables[:1])
    solver = make_langevin(facts, Wish(Budget(0.1, 1e-6)))
    assert solver.laplace is not None
    found = calibrated(solver, facts, Budget(0.1, 1e-6))
    biases = found._first(facts).biases(0)
    assert biases.pure
    assert biases.charges(facts.parts[0]) == found.charges(facts)[: len(biases.steps(facts.parts[0]))]
    alone = calibrated(PrivateBiases(pure=True), facts.parts[0], Budget(0.1, 1e-6))
    assert 1 < biases.noise / alone.noise < 1.2
    assert derive(facts, 30.0).bias_share > derive(facts, 1.0).bias_share


# -- what is released -----------------------------------------------------------------------------


def shared_factors(several, tensors):
    found = {}
    for model, tensor in zip(several.models, tensors, strict=True):
        for name, factor in zip(tensor.mode_names, model.factors, strict=True):
            found.setdefault(name, []).append(factor)
    return found


@EVERY_UNIT
@pytest.mark.parametrize("rate", [1.0, 0.3])
@pytest.mark.parametrize("model", ["normal", "poisson"])
def test_shared_modes_share_their_factors_and_local_rows_are_left_out(unit, local, rate, model, small):
    facts = facts_of(small, unit, local)
    solver = PrivateLangevin(noise=0.5, passes=4, rate=rate, model=model, keep=2, tail=0.5)
    finished, _ = fit(solver, facts, small)
    several = finished.model
    for name, factors in shared_factors(several, small).items():
        for factor in factors:
            np.testing.assert_array_equal(factor, factors[0])
            assert factor.any() == (name != local)
            assert model == "normal" or (factor >= 0).all()
    assert len(finished.posterior.models) == 2
    least, middle, most = finished.posterior.temperatures
    assert 0 < least <= middle <= most
    for each, prior, tensor in zip(several.models, several.own_priors, small, strict=True):
        assert (prior is None) == (local is None)
        if prior is not None:
            prior.check(each.shape, each.ranks)
            assert not each.mode_biases[prior.mode].any()
            assert np.isfinite(solve_own(each, prior, Site(tensor, 1)).rows).all()
        assert each.biases.any() == (model == "normal")
    cells = small[0].coordinates[:, :5]
    expected = np.mean([kept.predict(0, cells) for kept in finished.posterior.models], axis=0)
    np.testing.assert_allclose(finished.posterior.predict(0, cells), expected)


@EVERY_UNIT
@pytest.mark.parametrize("rate", [1.0, 0.3])
def test_a_seed_gives_the_same_fit_on_any_number_of_threads(unit, local, rate, small):
    facts, solver = facts_of(small, unit, local), PrivateLangevin(noise=0.5, passes=3, rate=rate)
    one, two, other = (
        fit(solver, facts, small, seed, threads)[0].model.parameters
        for seed, threads in ((1, 1), (1, 3), (2, 1))
    )
    assert all(np.array_equal(a, b) for a, b in zip(one, two, strict=True))
    assert not all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))


def test_answers_add_up_over_sites(small):
    facts, solver = facts_of(small), PrivateLangevin(passes=2)
    whole = RelationSites(small, 1)
    parts = [RelationSites([_every(t, 2, k) for t in small], 1) for k in (0, 1)]
    state = solver.init(Run(0), facts)
    with Ledger(facts.unit).reserve(solver.charges(facts), Entropy(0)) as reservation:
        for _ in solver.charges(facts):
            query = solver.ask(state)
            assert isinstance(query, SumQuery)
            together = sum(query.clipped(part).values for part in parts)
            np.testing.assert_array_equal(query.clipped(whole).values, together)
            answer = reservation.ask(lambda draw, query=query: Local(whole).released(query, draw))
            state, _ = solver.update(state, answer)


def _every(tensor, number, first):
    keep = slice(first, None, number)
    return SparseTensor(tensor.coordinates[:, keep], tensor.values[keep], tensor.modes)


def test_states_follow_from_answers_and_hold_no_own_rows(small):
    facts, solver = facts_of(small, Unit("user"), "user"), PrivateLangevin(passes=2)
    sites, states = RelationSites(small, 1), [solver.init(Run(0), facts)] * 2
    with Ledger(facts.unit).reserve(solver.charges(facts), Entropy(0)) as reservation:
        for _ in solver.charges(facts):
            query = solver.ask(states[0])
            answer = reservation.ask(lambda draw, query=query: Local(sites).released(query, draw))
            states = [solver.update(state, answer)[0] for state in states]
    assert np.array_equal(states[0].rows, states[1].rows)
    assert not states[0].rows[states[0].joint.span(0)].any()  # own rows are nowhere in a state


@pytest.mark.parametrize("rate", [1.0, 0.5])
def test_queries_are_those_of_the_rate(rate, small):
    facts, solver = facts_of(small), PrivateLangevin(passes=2, rate=rate)
    state = _at_first_step(solver, facts, small)
    assert isinstance(solver.ask(state), SlopeQuery if rate == 1 else RandomStepsQuery)


def _at_first_step(solver, facts, tensors):
    sites, state = RelationSites(tensors, 1), solver.init(Run(0), facts)
    with Ledger(facts.unit).reserve(solver.charges(facts), Entropy(0)) as reservation:
        while not isinstance(state, State):
            query = solver.ask(state)
            answer = reservation.ask(lambda draw, query=query: Local(sites).released(query, draw))
            state, _ = solver.update(state, answer)
    return state


def test_iterates_that_leave_the_range_of_numbers_are_told(small):
    facts, solver = facts_of(small), PrivateLangevin(passes=2)
    state = _at_first_step(solver, facts, small)
    state = replace(state, rows=state.rows * np.inf)
    sites = RelationSites(small, 1)
    charge = solver.charges(facts)[-1]
    with Ledger(facts.unit).reserve([charge], Entropy(0)) as reservation:
        query = solver.ask(state)
        answer = reservation.ask(lambda draw: Local(sites).released(query, draw))
        with pytest.raises(DivergedError, match="smaller step"):
            solver.update(state, answer)


# -- how well it predicts -------------------------------------------------------------------------


@pytest.fixture(scope="module")
def matrix(ratings):
    return [cut(part, ["user", "item"]) for part in ratings]


def bias_error(matrix, budget):
    facts = facts_of(matrix[:1], local="user").parts[0]
    solver = calibrated(PrivateBiases(pure=budget.epsilon < 0.5), facts, budget)
    state = solver.init(Run(0), facts)
    with Ledger(facts.unit).reserve(solver.charges(facts), Entropy(0)) as reservation:
        for _ in solver.charges(facts):
            query = solver.ask(state)
            answer = reservation.ask(
                lambda draw, query=query: Local(Site(matrix[0], 1)).released(query, draw)
            )
            state, _ = solver.update(state, answer)
    made = solver.finish(state)
    full = solve_own(made.model, made.own_prior, Site(matrix[0], 1))
    return float(np.sqrt(np.mean(np.square(full.predict(matrix[1].coordinates) - matrix[1].values))))


@pytest.mark.parametrize(("epsilon", "most"), [(30.0, 0.96), (0.1, 1.02)])
def test_it_gains_on_biases_or_falls_back_to_them(epsilon, most, matrix):
    budget, facts = Budget(epsilon, 1e-6), facts_of(matrix[:1], local="user", rank=3)
    solver = calibrated(make_langevin(facts, Wish(budget)), facts, budget)
    finished, _ = fit(solver, facts, matrix[:1])
    (error,) = rmse(finished.model, matrix[1:], matrix[:1])
    assert error < most * bias_error(matrix, budget)


def test_a_table_that_shares_a_mode_helps(matrix):
    # Other people's ratings of the same items: one factor for the items of both.
    def half(tensor, first):
        keep = (tensor.coordinates[0] < 150) == first
        cells = tensor.coordinates[:, keep] - np.array([[0 if first else 150], [0]])
        return SparseTensor(cells, tensor.values[keep], (Mode(f"user {first}", 150), tensor.modes[1]))

    train, test = ([half(each, first) for first in (True, False)] for each in matrix)
    budget, errors = Budget(30.0, 1e-6), []
    for number in (1, 2):
        facts = facts_of(train[:number], rank=3)
        solver = calibrated(PrivateLangevin(), facts, budget)
        finished, _ = fit(solver, facts, train[:number])
        errors.append(rmse(finished.model, test[:number], train[:number])[0])
    assert errors[1] < errors[0]


def test_counts_are_explained_by_poisson_products():
    rng = np.random.default_rng(2)
    factors = [rng.gamma(1.0, 1.0, (n, 2)) for n in (120, 80)]
    cells = np.stack(np.unravel_index(rng.choice(9600, 6000, replace=False), (120, 80)))
    means = np.prod([f[c] for f, c in zip(factors, cells, strict=True)], axis=0).sum(axis=1)
    modes = (Mode("user", 120), Mode("item", 80))
    train, test = SparseTensor(cells, rng.poisson(means).astype(float), modes).split(0.2, seed=0)
    facts = facts_of([train], rank=2, bounds=COUNTS)
    constant = float(np.sqrt(np.mean(np.square(test.values - train.values.mean()))))
    for noise, most in ((0.1, 0.8), (20.0, 1.03)):
        finished, _ = fit(PrivateLangevin(noise=noise, model="poisson"), facts, [train])
        (error,) = rmse(finished.model, [test], [train], COUNTS)
        assert error < most * constant
