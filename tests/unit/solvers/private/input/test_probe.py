"""The probe of mean and spread: its bound, its noise, and what it finds."""

from dataclasses import replace
from itertools import product
from math import sqrt

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sfumato import wire
from sfumato.data.channels import Response
from sfumato.data.tensor import Mode, SparseTensor
from sfumato.engines.local import Local
from sfumato.models.shape import Shape
from sfumato.privacy.accounting import epsilon_of
from sfumato.privacy.entropy import Entropy
from sfumato.privacy.events import Composed, GaussianEvent
from sfumato.privacy.facts import Facts
from sfumato.privacy.ledger import Ledger
from sfumato.privacy.mechanisms import Gaussian, Laplace, Noisy, RandomisedResponse
from sfumato.privacy.units import Entry, Value
from sfumato.sites.memory import Site
from sfumato.solvers.private.input.probe import (
    CHANGE_L1,
    CHANGE_L2,
    Located,
    ProbeQuery,
    located,
    probe_share,
)
from sfumato.solvers.private.input.solver import InputPerturbation, ValuesQuery
from sfumato.solvers.protocol import Run

MODES = (Mode("a", 50), Mode("b", 40))


def facts_of(entries, bounds=(-60.0, 180.0), **settings):
    return Facts(Shape.of(MODES, (2, 2), "cp", **settings), Value(), bounds, entries)


def tensor_of(values, seed=0):
    cells = np.random.default_rng(seed).permutation(2000)[: len(values)]
    return SparseTensor(np.stack(np.unravel_index(cells, (50, 40))), np.asarray(values, float), MODES)


def sums_of(values, bounds):
    return ProbeQuery(facts_of(len(values), bounds)).clipped(Site(tensor_of(values), 1))


# -- privacy --------------------------------------------------------------------------------------


def test_replacing_a_value_moves_the_probe_by_no_more_than_the_bound():
    """Every pair of 41 values, beside the same others; and the bound is no larger than it has to be."""
    grid, worst = np.linspace(-60, 180, 41), [0.0, 0.0]
    answers = [sums_of([3.0, value, -70.0], (-60.0, 180.0)) for value in (*grid, np.nan, np.inf, -1e300)]
    for one, other in product(answers, repeat=2):
        change = one.numbers - other.numbers
        lengths = np.abs(change).sum(), sqrt((change**2).sum())
        assert lengths[0] <= one.l1 == CHANGE_L1
        assert lengths[1] <= one.l2 == CHANGE_L2
        worst = np.maximum(worst, lengths)
    np.testing.assert_allclose(worst, [2.25, 2.0], rtol=1e-6)


@settings(max_examples=60, deadline=None, database=None, derandomize=True)
@given(
    st.lists(st.floats(width=64), min_size=1, max_size=20),
    st.floats(width=64),
    st.floats(-1e6, 1e6),
    st.floats(1e-3, 1e6),
)
def test_whatever_the_values_are_the_bound_holds(values, other, low, width):
    bounds = (low, low + width)
    first, second = sums_of(values, bounds), sums_of([other, *values[1:]], bounds)
    change = first.numbers - second.numbers
    assert np.abs(change).sum() <= first.l1
    assert sqrt((change**2).sum()) <= first.l2


@pytest.mark.parametrize("law", ["auto", "response", "laplace", "gaussian"])
def test_probe_and_values_cost_what_one_question_does(law):
    solver = InputPerturbation(0.4, law)
    for entries in (10, 2_000, 100_000):
        events = [charge.mechanism.event for charge in solver.charges(facts_of(entries))]
        assert len(events) == (1 if entries == 10 else 2)
        if law == "gaussian":
            whole = sum(event.noise_multiplier**-2 for event in events)
            assert whole == pytest.approx(0.4**-2)
            assert all(isinstance(event, GaussianEvent) for event in events)
        else:
            assert epsilon_of(Composed(tuple(events)), 0.0) == pytest.approx(2.5)


def deviations(solver, claimed, entries, number=400):
    """The probe's noise over what was claimed, in standard errors of its mean absolute (square) size."""
    facts, site = facts_of(entries), Site(tensor_of(np.zeros(entries)), 1)
    query, drawn = ProbeQuery(facts), []
    for seed in range(number):
        with Ledger(facts.unit).reserve(solver.charges(facts)[:1], Entropy(seed)) as reservation:
            drawn.append(reservation.ask(lambda draw: Local(site).released(query, draw)).values)
    noise = np.concatenate(drawn) - np.tile(query.clipped(site).numbers, number)
    mechanism = claimed.charges(facts)[0].mechanism
    if isinstance(mechanism, Gaussian):
        return abs((noise**2).mean() / (mechanism.noise_multiplier * 2) ** 2 - 1) / sqrt(2 / noise.size)
    return abs(np.abs(noise).mean() / (mechanism.noise_multiplier * 2.25) - 1) / sqrt(1 / noise.size)


@pytest.mark.parametrize(("law", "entries"), [("auto", 500), ("gaussian", 100)])
def test_the_noise_of_the_probe_is_what_was_charged(law, entries):
    """False alarms: below one in a million (5 standard errors). 2/3 and 3/2 of the noise are found."""
    claimed = InputPerturbation(0.4, law)
    assert probe_share(facts_of(entries), 0.25, gaussian=law == "gaussian") == 0.1  # whatever the noise
    assert deviations(claimed, claimed, entries) < 5
    for factor in (2 / 3, 3 / 2):
        assert deviations(replace(claimed, noise=0.4 * factor), claimed, entries) > 5


def test_the_order_of_questions_and_which_mechanisms_are_charged():
    facts, solver = facts_of(2000), InputPerturbation(0.4)
    probe, values = solver.charges(facts)
    assert isinstance(probe.mechanism, Laplace)
    assert not probe.mechanism.single  # both sums change
    assert isinstance(values.mechanism, RandomisedResponse)
    state = solver.init(Run(), facts)
    query = solver.ask(state)
    assert wire.from_wire(wire.to_wire(query)) == query
    state, _ = solver.update(state, Noisy(np.array([-1000.0, 600.0]), 1.0))
    query = solver.ask(state)
    assert isinstance(query, ValuesQuery)
    assert isinstance(query.channel, Response)
    assert query.channel.categories == values.mechanism.categories
    assert wire.from_wire(wire.to_wire(query)).channel == query.channel


# -- what it finds, and when it is asked -------------------------------------------------------------


def test_mean_and_spread_are_found():
    values = np.random.default_rng(1).normal(5, 20, 2000)
    sums = sums_of(values, (-60.0, 180.0)).numbers
    found = located(facts_of(2000), Noisy(sums, 1.0))
    assert found.mean == pytest.approx(values.mean(), abs=0.1)
    assert found.spread == pytest.approx(values.std(), rel=0.01)
    assert 0 < found.square_error < 0.1


def test_noise_does_not_make_a_spread_of_nothing():
    found = located(facts_of(2000), Noisy(np.array([10.0, -30.0]), 40.0))
    assert found.spread == pytest.approx(120 * sqrt(0.02), rel=0.01)
    assert found.square_error > 0.9
    wild = located(facts_of(2000), Noisy(np.array([1e9, -1e9]), 40.0))
    assert wild.mean == 180
    assert 0 < wild.spread < 120


@pytest.mark.parametrize("gaussian", [False, True])
def test_the_share_falls_with_the_entries_and_noise_is_not_asked_for(gaussian):
    shares = [probe_share(facts_of(n), 0.5, gaussian=gaussian) for n in (10, 1_000, 5_000, 10**7)]
    assert shares[0] == 0
    assert 0.1 >= shares[1] >= shares[2] >= shares[3] > 0
    assert probe_share(replace(facts_of(5_000), unit=Entry()), 0.5, gaussian=gaussian) == 0
    assert probe_share(facts_of(None), 0.5, gaussian=gaussian) == 0
    assert InputPerturbation(clamp=(0.0, 100.0)).charges(facts_of(5_000))[1:] == ()


@pytest.mark.parametrize("law", ["auto", "laplace", "gaussian"])
def test_values_at_one_end_of_their_bounds_are_told_apart(law):
    """Planted biases, in a twentieth of the bounds near an end: half of their variance is found."""
    rng = np.random.default_rng(0)
    rows, columns = rng.normal(0, 4, 50), rng.normal(0, 4, 40)
    cells = np.stack(np.unravel_index(rng.permutation(2000), (50, 40)))
    truth = -40 + rows[cells[0]] + columns[cells[1]]
    train = SparseTensor(cells[:, :1800], truth[:1800] + rng.normal(0, 2, 1800), MODES)
    facts = facts_of(1800, (-60.0, 180.0), fit_mean=True, fit_biases=True)
    solver = InputPerturbation(0.05 if law == "laplace" else 0.2, law, sweeps=30, starts=1)
    state = solver.init(Run(), facts)
    with Ledger(facts.unit).reserve(solver.charges(facts), Entropy(3)) as reservation:
        for number in range(solver.rounds(facts)):
            query, noisy = solver.ask(state), None
            if number < 2:
                noisy = reservation.ask(
                    lambda draw, query=query: Local(Site(train, 1)).released(query, draw)
                )
            state, _ = solver.update(state, noisy)
    assert isinstance(state.known, Located)
    assert state.known.mean == pytest.approx(-40, abs=3)
    predicted = solver.finish(state).model.predict(cells[:, 1800:])
    assert np.mean((predicted - truth[1800:]) ** 2) < 0.5 * truth.var()
