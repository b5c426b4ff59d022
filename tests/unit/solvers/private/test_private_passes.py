"""Gradient descent with pure epsilon per pass."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest

import sfumato as sf
from sfumato.engines.local import Local
from sfumato.errors import SettingError
from sfumato.models.shape import Shape
from sfumato.privacy.accounting import calibrate, epsilon_of
from sfumato.privacy.budgets import Budget
from sfumato.privacy.entropy import Entropy
from sfumato.privacy.events import Composed
from sfumato.privacy.facts import Facts
from sfumato.privacy.ledger import Ledger
from sfumato.privacy.units import Entry, Value
from sfumato.sites.memory import Site
from sfumato.solvers.private.passes import PrivatePasses
from sfumato.solvers.protocol import Run

KINDS = ["cp", "tucker"]
START = 50_000  # wei(seed) and a start of the same seed draw the same numbers: never use one for both


def facts_of(tensor, kind="cp", fit_mean=False, fit_biases=False, **rest):
    ranks = (3,) * tensor.order
    shape = Shape.of(tensor.modes, ranks, kind, fit_mean=fit_mean, fit_biases=fit_biases)
    return Facts(shape, Value(), **{"bounds": (-1.0, 1.0), "entries": tensor.n_entries, **rest})


def event(solver, facts):
    return Composed(tuple(charge.mechanism.event for charge in solver.charges(facts)))


def fitted(solver, facts, tensor, budget, seed):
    noise = calibrate(lambda x: event(replace(solver, noise=x), facts), budget)
    solver = replace(solver, noise=noise)
    local, state = Local(Site(tensor, 1)), solver.init(Run(START + seed), facts)
    ledger = Ledger(Value(), budget)
    with ledger.reserve(solver.charges(facts), Entropy(START + seed)) as reservation:
        for _ in range(solver.rounds(facts)):
            query = solver.ask(state)
            released = reservation.ask(partial(local.released, query))
            state, _ = solver.update(state, released)
    made = solver.finish(state)
    assert made.own_prior is None
    return made.model


def ratio(solver, kind, epsilon, seed, **rest):
    data = sf.synthetic.wei(kind, seed=seed)
    facts = facts_of(data.train, kind, **rest)
    model = fitted(solver, facts, data.train, Budget(epsilon), seed)
    truth = data.truth[tuple(data.test.coordinates)]
    miss = model.predict(data.test.coordinates) - truth
    return float(np.sqrt(np.mean(miss**2) / np.mean(truth**2)))


@pytest.mark.parametrize("law", ["residual", "vector"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("epsilon", [0.1, 0.5, 1.0, 2.0, 5.0, 10.0])
def test_never_far_beyond_predicting_zero(law, kind, epsilon):
    ratios = [ratio(PrivatePasses(noise_law=law), kind, epsilon, seed) for seed in range(100, 105)]
    assert np.mean(ratios) <= 1.03


def test_learns_where_epsilon_is_large():
    solver = PrivatePasses(passes=8, clip=3.0, step=0.2, init_scale=0.9)
    assert np.mean([ratio(solver, "cp", 1e5, seed, public_spread=0.2) for seed in range(100, 104)]) < 0.6


@pytest.mark.parametrize("fit_mean", [True, False])
@pytest.mark.parametrize("law", ["residual", "vector"])
def test_what_it_costs(law, fit_mean):
    facts = facts_of(sf.synthetic.wei("cp").train, fit_mean=fit_mean)
    costs = []
    for passes in (1, 2, 5):
        solver = PrivatePasses(passes=passes, noise_law=law, noise=0.5)
        assert epsilon_of(event(solver, facts), 0.0) == pytest.approx(2.0)
        assert solver.rounds(facts) == passes + 1 + fit_mean
        each = solver.shares(facts)[1]
        costs.append(passes * each)
    assert np.allclose(costs, costs[0])
    # More passes at the same noise never cost less; and with a delta they cost less than their sum.
    same = [PrivatePasses(passes=t, noise_law=law, noise=0.2 * t) for t in (1, 4, 16)]
    pure = [epsilon_of(event(s, facts), 0.0) * s.passes for s in same]
    assert pure == sorted(pure)
    many = PrivatePasses(passes=64, noise_law=law, noise=0.5)
    assert epsilon_of(event(many, facts), 1e-5) < 2.0


def test_calibrated_noise_stays_within_the_budget():
    facts = facts_of(sf.synthetic.wei("cp").train, fit_mean=True)
    for budget in (Budget(1.0), Budget(1.0, 1e-5)):
        noise = calibrate(lambda x: event(replace(PrivatePasses(passes=8), noise=x), facts), budget)
        assert epsilon_of(event(PrivatePasses(passes=8, noise=noise), facts), budget.delta) <= 1.0


def test_the_order_of_the_entries_does_not_depend_on_the_values():
    """With the same noise, a value that is changed leaves all rows of other levels as they were."""
    shape_data = sf.synthetic.wei("cp", seed=1).train
    cells = np.tile(np.arange(20), (3, 1))
    tensor = sf.SparseTensor(cells, np.linspace(-1, 1, 20), shape_data.modes)
    values = tensor.values.copy()
    values[7] = -values[7]
    results = []
    for data in (tensor, tensor.with_values(values)):
        facts = facts_of(data)
        solver = PrivatePasses(passes=1)
        query, local = solver.ask(solver.init(Run(3), facts)), Local(Site(data, 1))
        with Ledger(Value()).reserve(solver.charges(facts), Entropy(3)) as reservation:
            results.append(reservation.ask(partial(local.released, query)).rows)
    changed = np.flatnonzero((results[0] != results[1]).any(axis=1))
    assert changed.tolist() == [7, 27, 47]


def test_mean_and_biases_are_fitted_if_asked_for():
    data = sf.synthetic.cp((12, 10, 8), 2, entries=700, snr=9.0, biases=0.8, shift=3.0, seed=1).tensor
    facts = facts_of(data, fit_mean=True, fit_biases=True, bounds=(-2.0, 8.0))
    model = fitted(PrivatePasses(), facts, data, Budget(1e6), 0)
    assert model.mean == pytest.approx(data.values.mean(), abs=0.05)
    assert model.biases.any()
    assert np.std(data.values - model.predict(data.coordinates)) < 0.9 * np.std(data.values)


def test_what_it_cannot_do_is_refused():
    facts = facts_of(sf.synthetic.wei("cp").train)
    for changed, message in (
        ({"unit": Entry()}, "unit 'value'"),
        ({"local": 0}, "every factor"),
    ):
        with pytest.raises(SettingError, match=message):
            PrivatePasses().check(replace(facts, **changed))
    for settings in (
        {"passes": 0},
        {"clip": 0.0},
        {"noise_law": "normal"},
        {"ridge": -1.0},
        {"noise": 0.0},
    ):
        with pytest.raises(SettingError):
            PrivatePasses(**settings).check(facts)


@pytest.mark.parametrize("bounds", [(1e15, 1e15 + 2), (2.0**60, 2.0**60 + 4096), (-1.0, 1.0)], ids=str)
@pytest.mark.parametrize("stage", ["mean", "keep"])
def test_a_replaced_value_moves_mean_and_share_by_their_bounds_at_most(stage, bounds):
    """However far from zero values lie: sums are exact, one value moves them by its own change."""
    rng = np.random.default_rng(5)
    cells = np.array(np.unravel_index(rng.permutation(4000)[:1000], (20, 20, 10)))
    modes = tuple(sf.Mode(name, n) for name, n in zip("abc", (20, 20, 10), strict=True))
    values = rng.choice(bounds, 1000)
    tensor = sf.SparseTensor(cells, values, modes, bounds)
    facts = facts_of(tensor, bounds=bounds, fit_mean=True)
    start = PrivatePasses().init(Run(3), facts)
    state = replace(start, stage=stage, mean=bounds[0] / 2 + bounds[1] / 2)
    query = PrivatePasses().ask(state)
    most, farthest = 0.0, 0
    if stage == "keep":  # the entry that can move the sum furthest
        farthest = int(np.argmax(np.abs(query.model.with_mean(0.0).predict(tensor.coordinates))))
    for one in (*range(0, 1000, 50), farthest):
        changed = tensor.values.copy()
        changed[one] = bounds[0] + bounds[1] - changed[one]
        pair = [query.clipped(Site(tensor.with_values(v, bounds), 1)) for v in (tensor.values, changed)]
        moved = abs(float(pair[0].numbers[0]) - float(pair[1].numbers[0]))
        assert 0 < moved <= pair[0].l1 == pair[1].l1
        most = max(most, moved / pair[0].l1)
    assert most > 0.99
