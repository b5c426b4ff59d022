"""Input perturbation: what is released has the noise that was charged, and the fit stays sensible."""

from dataclasses import replace
from math import exp, sqrt

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import sfumato as sf
from sfumato.data.channels import Response
from sfumato.data.tensor import Mode, SparseTensor
from sfumato.engines.local import Local
from sfumato.errors import SettingError
from sfumato.models.shape import Shape
from sfumato.privacy.accounting import calibrate, covers
from sfumato.privacy.budgets import Budget
from sfumato.privacy.entropy import Entropy
from sfumato.privacy.facts import Facts
from sfumato.privacy.ledger import Ledger
from sfumato.privacy.mechanisms import Gaussian, Laplace, RandomisedResponse
from sfumato.privacy.units import Entry, Unit, UnitValues, Value
from sfumato.sites.memory import Site
from sfumato.solvers.private.input.solver import CellsQuery, InputPerturbation
from sfumato.solvers.protocol import Run

BOUNDS = (-1.0, 1.0)


def public(tensor, unit, kind="cp", bounds=BOUNDS, **settings):
    of_shape = {"fit_mean": False, "fit_biases": False, **settings}
    return Facts(Shape.of(tensor.modes, (2,) * tensor.order, kind, **of_shape), unit, bounds)


def draw_once(solver, facts, tensor, seed=0):
    """What leaves the data; ``seed=None`` draws with the exact samplers."""
    site = Site(tensor, 1)
    with Ledger(facts.unit).reserve(solver.charges(facts), Entropy(seed)) as reservation:
        query = solver.ask(solver.init(Run(), facts))
        return reservation.ask(lambda draw: Local(site).released(query, draw))


def fit(solver, facts, tensor, seed=0):
    released, state, reports = draw_once(solver, facts, tensor, seed), solver.init(Run(), facts), []
    for number in range(solver.rounds(facts)):
        state, info = solver.update(state, released if number == 0 else None)
        reports.append(info)
    made = solver.finish(state)
    assert made.own_prior is None
    return made.model, reports


def calibrated(solver, facts, budget):
    noise = calibrate(lambda x: replace(solver, noise=x).charges(facts)[0].mechanism.event, budget)
    return replace(solver, noise=noise)


def easy(kind="cp", entries=900, snr=9.0):
    plant = sf.synthetic.cp if kind == "cp" else sf.synthetic.tucker
    rank = 2 if kind == "cp" else (2, 2, 2)
    return plant((14, 12, 10), rank, entries=entries, snr=snr, scale=0.25, seed=1)


def cells_of(sizes, n, seed=0):
    rng = np.random.default_rng(seed)
    modes = tuple(Mode(f"m{i}", size) for i, size in enumerate(sizes))
    cells = np.stack([rng.integers(0, size, n) for size in sizes])
    return SparseTensor(cells, rng.uniform(-1, 1, n), modes)


# -- the noise --------------------------------------------------------------------------------------


def standard_errors(kind, solver, claimed):
    """How far the released noise is from what is claimed, in standard errors of its estimate."""
    tensor = cells_of((30, 20), 6000)
    facts = public(tensor, {"values": UnitValues("m0", 4), "entry": Entry()}.get(kind, Value()))
    released = draw_once(solver, facts, tensor, seed=3)
    if kind == "response":
        channel = claimed.channel(facts)
        told = released.values == channel.bins(
            np.clip(tensor.values, *BOUNDS), np.zeros(tensor.n_entries)
        )
        truth = exp(channel.epsilon) / (exp(channel.epsilon) + channel.categories - 1)
        return abs(told.mean() - truth) / sqrt(truth * (1 - truth) / told.size)
    if kind == "entry":
        noise = released.values - CellsQuery(facts, 0).clipped(Site(tensor, 1)).numbers
        scale = claimed.noise * 1.5
    else:
        channel = claimed.channel(facts)
        low, high = solver.channel(facts).low, solver.channel(facts).high
        noise = released.values + (low + high) / 2 - np.clip(tensor.values, low, high)
        scale = claimed.noise * (high - low)
        scale *= {"values": 4.0}.get(kind, 1.0)
    if kind == "gaussian":
        return abs((noise**2).mean() / scale**2 - 1) / sqrt(2 / noise.size)
    return abs(np.abs(noise).mean() / scale - 1) / sqrt(1 / noise.size)


@pytest.mark.parametrize("kind", ["response", "laplace", "gaussian", "values", "entry"])
def test_the_noise_is_what_was_charged(kind):
    """False alarms: below one in a million (5 standard errors). 2/3 and 3/2 of the noise are found."""
    law = kind if kind in ("response", "laplace", "gaussian") else "laplace"
    claimed = InputPerturbation(noise=0.5, noise_law=law)
    assert standard_errors(kind, claimed, claimed) < 5
    for factor in (2 / 3, 3 / 2):
        assert standard_errors(kind, replace(claimed, noise=0.5 * factor), claimed) > 5


@pytest.mark.parametrize(
    ("unit", "law"),
    [
        (Value(), "response"),
        (Value(), "laplace"),
        (UnitValues("m0", 3), "gaussian"),
        (Entry(), "laplace"),
    ],
)
def test_without_a_seed_noise_is_drawn_anew(unit, law):
    tensor = cells_of((6, 5), 20)
    facts = public(tensor, unit)
    solver = InputPerturbation(noise=0.3, noise_law=law)
    first, second = (draw_once(solver, facts, tensor, seed=None).values for _ in range(2))
    assert first.shape == ((2, 30) if unit == Entry() else (20,))
    assert np.isfinite(first).all()
    if law != "response":
        assert (first != second).all()


# -- what a neighbour can change --------------------------------------------------------------------


@settings(max_examples=40, deadline=None, database=None, derandomize=True)
@given(st.data())
def test_neighbours_move_mask_and_values_by_no_more_than_the_bound(data):
    """Entries with any values, also duplicates, NaN and infinity, at a few cells."""
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    n = data.draw(st.integers(2, 30))
    modes = (Mode("user", 4), Mode("item", 3))
    cells = np.stack([rng.integers(0, 4, n), rng.integers(0, 3, n)])
    values = np.array(data.draw(st.lists(st.floats(width=32), min_size=n, max_size=n)))
    tensor = SparseTensor(cells, values, modes)
    unit = data.draw(st.sampled_from([Entry(), Unit("user", 2), Unit("user", 5)]))
    if unit == Entry():
        kept = np.arange(n) != data.draw(st.integers(0, n - 1))
    else:
        kept = tensor.coordinates[0] != tensor.coordinates[0, data.draw(st.integers(0, n - 1))]
        if not kept.any():
            return
    query = CellsQuery(public(tensor, unit), 0)
    whole, less = (query.clipped(Site(each, 1)) for each in (tensor, tensor.take(kept)))
    change = whole.numbers - less.numbers
    assert np.abs(change).sum() <= whole.l1 * (1 + 1e-12)
    assert sqrt((change**2).sum()) <= whole.l2 * (1 + 1e-12)


def test_values_beyond_the_bounds_and_nan_are_clipped():
    tensor = SparseTensor(
        np.array([[0, 1, 2, 3], [0, 1, 0, 1]]),
        np.array([np.nan, np.inf, -7.0, 0.2]),
        (Mode("a", 4), Mode("b", 2)),
    )
    for law in ("response", "laplace"):
        solver = InputPerturbation(noise=1e-3, noise_law=law)
        numbers = draw_once(solver, public(tensor, Value()), tensor).values
        channel = solver.channel(public(tensor, Value()))
        if isinstance(channel, Response):
            assert numbers.tolist() == channel.bins(np.array([0, 1, -1, 0.2]), np.zeros(4)).tolist()
        else:
            expected = np.clip([0, 1, -1, 0.2], channel.low, channel.high)
            np.testing.assert_allclose(numbers, expected, atol=0.05)


@pytest.mark.parametrize("unit", [Value(), UnitValues("m0", 2), Entry()])
@pytest.mark.parametrize("law", ["auto", "laplace"])
def test_no_clean_value_leaves_the_data(unit, law):
    tensor = cells_of((6, 5), 20)
    solver, facts = InputPerturbation(noise=0.3, noise_law=law), public(tensor, unit)
    released = draw_once(solver, facts, tensor)
    # Beside the noisy numbers nothing but where entries are, where that is public.
    positions = [] if unit.hides_presence else [tensor.coordinates]
    np.testing.assert_equal(list(released.public), positions)
    state, _ = solver.update(solver.init(Run(), facts), released)
    assert not state.work.site.tensor.values.any()


# -- charges ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("unit", [Value(), UnitValues("mode0", 5), Entry(), Unit("mode0", 5)])
@pytest.mark.parametrize("budget", [Budget(0.5), Budget(2.0, 1e-6)])
def test_calibrated_noise_is_within_the_budget_and_hardly_more_than_needed(unit, budget):
    facts = public(easy().tensor, unit)
    solver = calibrated(InputPerturbation().suited(facts, budget), facts, budget)
    (charge,) = solver.charges(facts)
    assert covers(budget, charge.mechanism.event)
    (less,) = replace(solver, noise=solver.noise * 0.99).charges(facts)
    assert not covers(budget, less.mechanism.event)


def test_which_mechanism_is_charged():
    tensor = easy().tensor

    def mechanism(unit, law="auto"):
        return InputPerturbation(0.5, law).charges(public(tensor, unit))[0].mechanism

    assert isinstance(mechanism(Value()), RandomisedResponse)
    assert mechanism(Value()).epsilon == 2
    assert mechanism(Value(), "laplace") == Laplace(0.5, single=True)
    assert mechanism(Value(), "gaussian") == Gaussian(0.5)
    assert mechanism(UnitValues("mode1", 7)) == Laplace(0.5)
    assert mechanism(Entry()) == Laplace(0.5)


def test_many_values_with_a_delta_get_gaussian_noise():
    tensor = easy().tensor
    solver = InputPerturbation()
    for unit, budget, law in (
        (UnitValues("mode0", 100), Budget(1.0, 1e-6), "gaussian"),
        (UnitValues("mode0", 2), Budget(1.0, 1e-6), "laplace"),
        (UnitValues("mode0", 100), Budget(1.0), "auto"),
        (Value(), Budget(1.0, 1e-6), "auto"),
    ):
        assert solver.suited(public(tensor, unit), budget).noise_law == law


@pytest.mark.parametrize(
    ("solver", "change", "message"),
    [
        (InputPerturbation(), {"unit": Unit("mode0")}, "max_entries"),
        (InputPerturbation(noise_law="response"), {"unit": Entry()}, "laplace"),
        (InputPerturbation(noise_law="cauchy"), {}, "noise_law"),
        (InputPerturbation(noise=0.0), {}, "noise"),
        (InputPerturbation(sweeps=0), {}, "sweeps"),
        (InputPerturbation(step=-1.0), {}, "step"),
        (InputPerturbation(step=0.3), {}, "lead"),
        (InputPerturbation(step=5.0), {}, "lead"),
        (InputPerturbation(clamp=(2.0, 1.0)), {}, "bounds"),
        (InputPerturbation(clamp=(0.5, 1.0)), {}, "middle"),
        (InputPerturbation(noise_law="response", clamp=(-1.0, 1.0)), {}, "clamped"),
        (InputPerturbation(clamp=(-1.0, 1.0)), {"unit": Entry()}, "clamped"),
        (
            InputPerturbation(),
            {"unit": Entry(), "shape": Shape((Mode("a", 10**4), Mode("b", 10**4)), (2, 2))},
            "gradient perturbation",
        ),
    ],
)
def test_what_it_cannot_do_is_said_before_data_are_seen(solver, change, message):
    facts = replace(public(easy().tensor, Value()), **change)
    with pytest.raises(SettingError, match=message):
        solver.init(Run(), facts)


def test_rounds_out_of_turn():
    facts = public(easy().tensor, Value())
    solver = InputPerturbation()
    for call in (lambda s: solver.update(s, None), solver.finish):
        with pytest.raises(SettingError, match="data"):
            call(solver.init(Run(), facts))


def test_it_says_what_it_assumes():
    facts = public(easy().tensor, Value())
    assert any("apart" in line for line in InputPerturbation(step=1.0).assumes(facts))
    assert InputPerturbation().assumes(replace(facts, unit=Entry())) == ()


# -- the fit ----------------------------------------------------------------------------------------


def error_ratio(model, planted):
    cells = np.stack(np.nonzero(np.isnan(planted.tensor.to_dense())))
    truth = planted.truth(cells)
    return float(np.sqrt(np.mean((model.predict(cells) - truth) ** 2) / np.mean(truth**2)))


@pytest.mark.parametrize(
    ("law", "epsilon", "most"),
    [("auto", 10.0, 0.3), ("laplace", 20.0, 0.5), ("gaussian", 30.0, 0.65), ("response", 4.0, 0.7)],
)
def test_with_enough_budget_the_truth_is_found(law, epsilon, most):
    planted = easy()
    facts = public(planted.tensor, Value())
    budget = Budget(epsilon, 1e-6 if law == "gaussian" else 0.0)
    solver = InputPerturbation(noise_law=law, sweeps=50, starts=3)
    solver = calibrated(solver, facts, budget)
    fits = [fit(solver, facts, planted.tensor, seed) for seed in range(3)]
    assert np.mean([error_ratio(model, planted) for model, _ in fits]) < most
    model, reports = fits[0]
    assert [info.completed for info in reports] == list(range(151))
    assert len(reports) == solver.rounds(facts)
    assert model.mean == 0
    assert not model.biases.any()
    assert not model.rows[:, 2:].any()


@pytest.mark.parametrize(
    ("unit", "law"),
    [
        (Value(), "auto"),
        (Value(), "laplace"),
        (Value(), "gaussian"),
        (UnitValues("mode0", 5), "auto"),
        (Entry(), "auto"),
        (Entry(), "gaussian"),
        (Unit("mode0", 20), "gaussian"),
    ],
)
def test_without_budget_it_falls_back_to_the_constant(unit, law):
    planted = easy()
    facts = public(planted.tensor, unit)
    budget = Budget(0.1, 1e-6 if law == "gaussian" else 0.0)
    solver = calibrated(InputPerturbation(noise_law=law, sweeps=25, starts=2), facts, budget)
    ratios = [error_ratio(fit(solver, facts, planted.tensor, seed)[0], planted) for seed in (1, 2)]
    assert max(ratios) < 1.03


@pytest.mark.parametrize("unit", [Entry(), Unit("mode0", 100)])
def test_hidden_positions_with_a_large_budget(unit):
    planted = easy()
    facts = public(planted.tensor, unit)
    epsilon = 60.0 if unit == Entry() else 6000.0
    solver = calibrated(InputPerturbation(sweeps=40, starts=2), facts, Budget(epsilon))
    assert error_ratio(fit(solver, facts, planted.tensor)[0], planted) < 0.5


def test_tucker_and_single_precision():
    planted = easy("tucker")
    facts = public(planted.tensor, Value(), "tucker")
    solver = calibrated(InputPerturbation(sweeps=40, starts=3), facts, Budget(10.0))
    assert error_ratio(fit(solver, facts, planted.tensor)[0], planted) < 0.4
    single = public(easy().tensor, Value(), dtype="float32")
    model, _ = fit(solver, single, easy().tensor.astype(np.float32))
    assert model.dtype == np.float32
    assert error_ratio(model, easy()) < 0.4


def test_mean_and_biases_of_ratings():
    ratings = sf.synthetic.ratings_like(120, 80, 10, 5000, seed=2)
    train, test = ratings.split(0.2, seed=0)
    facts = public(train, Value(), bounds=(1.0, 5.0), fit_mean=True, fit_biases=True)
    constant = sf.Biases(sweeps=0).fit(train).rmse(test)
    errors = {}
    for step in (None, 1.0):
        solver = InputPerturbation(step=step, sweeps=30, starts=2)
        model, _ = fit(calibrated(solver, facts, Budget(4.0)), facts, train)
        errors[step] = np.sqrt(np.mean((model.predict(test.coordinates) - test.values) ** 2))
    assert errors[1.0] < errors[None] < constant
    assert errors[1.0] < 0.93 * constant


def test_a_clamp_is_part_of_the_likelihood():
    planted = easy()
    facts = public(planted.tensor, Value())
    solver = InputPerturbation(noise_law="laplace", clamp=(-0.5, 0.5), sweeps=40, starts=2)
    model, _ = fit(calibrated(solver, facts, Budget(20.0)), facts, planted.tensor)
    assert error_ratio(model, planted) < 0.5
    assert InputPerturbation(clamp=(-0.5, 0.5)).charges(facts)[0].mechanism == Laplace(1.0, single=True)


def test_the_same_seed_gives_the_same_model():
    planted = easy()
    facts = public(planted.tensor, Value())
    solver = InputPerturbation(noise=0.2, sweeps=5, starts=2)
    first, second = (fit(solver, facts, planted.tensor, seed=7)[0] for _ in range(2))
    np.testing.assert_array_equal(first.rows, second.rows)
