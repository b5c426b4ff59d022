"""Alternating least squares: what it recovers, what it minimises, what it must not depend on."""

from itertools import pairwise

import numpy as np
import pytest

import sfumato as sf
from sfumato.data.tensor import Mode, SparseTensor
from sfumato.engines.local import Local
from sfumato.errors import SettingError
from sfumato.fit.completion import carry_out, training_rmse
from sfumato.fit.plan import Plan
from sfumato.models.shape import Shape
from sfumato.sites.memory import Site
from sfumato.solvers.least_squares.als import ALS
from sfumato.solvers.least_squares.questions import Rows
from sfumato.solvers.protocol import DivergedError, Run

TINY = {"ridge": 1e-6, "core_ridge": 1e-6}


def held_out_error(planted, estimator):
    """Error at the cells that were not observed, where the truth has standard deviation one."""
    model = estimator.fit(planted.tensor)
    seen = planted.tensor.to_dense()
    cells = np.stack(np.nonzero(np.isnan(seen)))
    misses = model.model_.predict(cells) - planted.truth(cells)
    return float(np.sqrt(np.mean(misses**2)))


@pytest.mark.parametrize(
    ("shape", "entries"), [((25, 20), 350), ((15, 14, 13), 1200), ((9, 8, 7, 8), 1800)]
)
@pytest.mark.parametrize("settings", [{}, TINY], ids=["learnt", "plain"])
def test_a_noiseless_cp_tensor_is_recovered(shape, entries, settings):
    planted = sf.synthetic.cp(shape, 2, entries=entries, snr=None, seed=2)
    solver = ALS(sweeps=60, init_scale=1.0, **settings)
    error = held_out_error(planted, sf.CP(2, solver=solver, mean=False, biases=False, seed=3))
    assert error < 1e-3


@pytest.mark.parametrize("settings", [{}, TINY], ids=["learnt", "plain"])
def test_a_noiseless_tucker_tensor_is_recovered(settings):
    planted = sf.synthetic.tucker((14, 13, 12), (2, 3, 2), entries=1300, snr=None, seed=2)
    solver = ALS(sweeps=60, init_scale=1.0, **settings)
    # Learning may drop a component for good: of several starts one keeps them all.
    estimator = sf.Tucker((2, 3, 2), solver=solver, mean=False, biases=False, starts=4)
    assert held_out_error(planted, estimator) < 1e-3


def test_with_noise_the_learnt_penalty_beats_none():
    planted = sf.synthetic.cp((30, 25, 20), 2, entries=1500, snr=1.0, seed=4)
    errors = [
        held_out_error(planted, sf.CP(5, solver=ALS(sweeps=25, **settings), seed=1))
        for settings in ({}, {"ridge": 1e-3, "bias_ridge": 1e-3})
    ]
    assert errors[0] < 0.8 < 1.5 < errors[1]


def objective(state, tensor, solver, shape):
    model = state.model
    total = float(np.square(tensor.values - model.predict(tensor.coordinates)).sum())
    for m, ridge in enumerate(state.ridges):
        counts = tensor.counts(shape.modes[m].name)
        away = np.square(model.factors[m] - ridge.mean).sum(axis=1)
        total += float(((ridge.constant[0] + ridge.per_entry * counts) * away).sum())
        total += float(ridge.bias_constant * np.square(model.mode_biases[m]).sum())
    return total + solver.core_ridge * float(np.square(model.free_core).sum())


@pytest.mark.parametrize(("kind", "ranks"), [("cp", (2, 2, 2)), ("tucker", (2, 3, 2))])
def test_no_step_of_plain_als_raises_the_objective(kind, ranks):
    tensor = sf.synthetic.cp((9, 8, 7), 3, entries=200, snr=1.0, seed=0, shift=2.0).tensor
    solver = ALS(
        sweeps=6,
        ridge={"mode0": 0.5, "mode1": 2.0},
        ridge_per_entry={"mode2": 0.1},
        prior_mean={"mode1": 1.0},
    )
    shape = Shape(tensor.modes, ranks, kind)
    state, site = solver.init(Run(), shape), Site(tensor, 1)
    values = []
    for _ in range(solver.rounds(shape)):
        query = solver.ask(state)
        state, _ = solver.update(state, query.answer(site))
        values.append(objective(state, tensor, solver, shape))
    values = values[1:]  # before, the mean was not set
    assert all(b <= a * (1 + 1e-10) for a, b in pairwise(values))
    assert values[-1] < 0.5 * values[0]


def test_results_depend_neither_on_the_threads_nor_on_the_order_of_the_input():
    planted = sf.synthetic.cp((40, 30, 20), 3, entries=4000, snr=1.0, seed=1)
    tensor = planted.tensor
    order = np.random.default_rng(0).permutation(tensor.n_entries)
    shuffled = SparseTensor(tensor.coordinates[:, order], tensor.values[order], tensor.modes)
    first, *others = (
        sf.CP(3, solver=ALS(sweeps=4, **settings), threads=threads).fit(entries).model_
        for settings in ({},)
        for entries, threads in ((tensor, 1), (tensor, 2), (shuffled, 2))
    )
    for other in others:
        np.testing.assert_array_equal(first.rows, other.rows)
        np.testing.assert_array_equal(first.biases, other.biases)


def test_blocks_of_rows_do_not_change_the_result():
    tensor = sf.synthetic.cp((200, 70, 20), 2, entries=3000, seed=1).tensor
    whole = sf.CP(2, solver=ALS(sweeps=2)).fit(tensor).model_
    solver, shape = ALS(sweeps=2, block_bytes=1), Shape(tensor.modes, (2, 2, 2))
    blocks = [(s.mode, s.low, s.high) for s in solver._sweep(shape) if isinstance(s, Rows)]
    assert blocks[:4] == [(0, 0, 64), (0, 64, 128), (0, 128, 192), (0, 192, 200)]
    np.testing.assert_array_equal(sf.CP(2, solver=solver).fit(tensor).model_.rows, whole.rows)


def days_tensor(per_day):
    """A matrix observed on many days, with ``per_day`` entries each and no effect of the day."""
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(12, 1)), rng.normal(size=(10, 1))
    cells = np.array([(i, j) for i in range(12) for j in range(10) if rng.random() < 0.7])
    days = np.arange(len(cells)) // per_day
    labels = np.array(
        [f"20{d // 336:02d}-{d // 28 % 12 + 1:02d}-{d % 28 + 1:02d}" for d in range(days[-1] + 1)],
        object,
    )
    values = (a @ b.T)[tuple(cells.T)] + 0.1 * rng.normal(size=len(cells))
    modes = (Mode("i", 12), Mode("j", 10), Mode("day", len(labels), labels, "day"))
    tensor = SparseTensor(np.vstack([cells.T, days]), values, modes)
    return tensor, SparseTensor(cells.T, values, modes[:2])


@pytest.mark.parametrize(
    "solver", [ALS(sweeps=20), ALS(sweeps=20, ridge={"i": 0.1, "j": 0.1, "day": 50})]
)
def test_with_hardly_any_data_per_day_the_days_drop_out(solver):
    tensor, matrix = days_tensor(per_day=1)
    with_days = sf.CP(1, solver=solver, biases=False, mean=False).fit(tensor)
    if not solver.learns:
        solver = ALS(sweeps=20, ridge=0.1)
    without = sf.CP(1, solver=solver, biases=False, mean=False).fit(matrix)
    assert np.abs(with_days.model_.factors[2] - 1).max() < 0.15
    gap = with_days.predict(tensor) - without.predict(matrix)
    assert np.sqrt(np.mean(gap**2)) < 0.1 * matrix.values.std()


def test_a_penalty_pulls_its_own_mode_only():
    tensor = sf.synthetic.cp((9, 8, 7), 2, entries=300, seed=0, snr=None).tensor
    loose = sf.CP(2, solver=ALS(sweeps=5, ridge=0.01), biases=False).fit(tensor).model_
    tight = sf.CP(2, solver=ALS(sweeps=5, ridge={"mode1": 1e9}), biases=False).fit(tensor).model_
    assert np.abs(tight.factors[1]).max() < 1e-5 < np.abs(loose.factors[1]).max()
    with pytest.raises(SettingError, match=r"ridge names \['item'\], but the modes are mode0"):
        sf.CP(2, solver=ALS(ridge={"item": 1.0})).fit(tensor)


def test_a_penalty_per_entry_is_one_for_rows_with_as_many_entries():
    dense = sf.synthetic.cp((9, 8), 2, missing=0.0, seed=0, snr=1.0).tensor
    fits = [
        sf.CP(2, solver=ALS(sweeps=5, ridge=ridge, ridge_per_entry=each)).fit(dense).model_.rows
        for ridge, each in (({"mode0": 1 + 8 * 0.25, "mode1": 1 + 9 * 0.25}, 0.0), (1.0, 0.25))
    ]
    np.testing.assert_allclose(fits[0], fits[1], rtol=1e-10, atol=1e-13)


def test_values_in_another_unit_give_predictions_in_that_unit():
    tensor = sf.synthetic.cp((15, 14, 13), 2, entries=900, seed=5, snr=2.0, shift=1.0).tensor
    plain, scaled = (
        sf.CP(2, solver=ALS(sweeps=8)).fit(tensor.with_values(c * tensor.values)).predict(tensor)
        for c in (1.0, 1000.0)
    )
    np.testing.assert_allclose(scaled, 1000 * plain, rtol=1e-6, atol=1e-4)


def test_float32_agrees_with_float64():
    tensor = sf.synthetic.cp((15, 14, 13), 2, entries=900, seed=5, snr=2.0).tensor
    double, single = (
        sf.CP(2, solver=ALS(sweeps=8), dtype=dtype).fit(tensor).predict(tensor)
        for dtype in (np.float64, np.float32)
    )
    assert single.dtype == np.float32
    np.testing.assert_allclose(single, double, rtol=0, atol=2e-3)


def test_a_tolerance_stops_early():
    tensor = sf.synthetic.cp((15, 14, 13), 2, entries=900, seed=5, snr=2.0).tensor
    model = sf.CP(2, solver=ALS(sweeps=50, ridge=1.0, tolerance=1e-3)).fit(tensor)
    errors = [info.train_rmse for info in model.history_]
    assert 2 <= len(errors) < 50
    drops = [(a - b) / a for a, b in pairwise(errors)]
    assert drops[-1] < 1e-3 <= min(drops[:-1], default=1)
    for wrong in (0.0, -1.0, float("nan")):
        with pytest.raises(SettingError, match="tolerance must be a number above zero"):
            sf.CP(2, solver=ALS(tolerance=wrong)).fit(tensor)


def test_of_several_starts_the_best_is_kept():
    tensor = sf.synthetic.cp((12, 11, 10), 3, entries=400, seed=7, snr=None).tensor
    shape = Shape(tensor.modes, (3, 3, 3), fit_biases=False)
    solver, site = ALS(sweeps=3, ridge=0.01, init_scale=2.0), Local(Site(tensor, 1))
    single = [carry_out(Plan(shape, solver, Run(seed=s)), site).model for s in (4, 5, 6)]
    errors = [training_rmse(model, site) for model in single]
    assert len({round(e, 9) for e in errors}) == 3
    best = carry_out(Plan(shape, solver, Run(seed=4), starts=3), site).model
    assert training_rmse(best, site) == min(errors)
    np.testing.assert_array_equal(best.rows, single[int(np.argmin(errors))].rows)


def test_a_fit_out_of_range_is_an_error_not_a_nan():
    tensor = sf.synthetic.cp((9, 8, 7), 2, entries=300, seed=0, scale=1e25).tensor
    with pytest.raises(DivergedError, match="range of floating-point numbers"):
        sf.CP(2, solver=ALS(sweeps=3, ridge=1.0), dtype=np.float32).fit(tensor)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"sweeps": 0}, "sweeps must be a whole number from 1 on"),
        ({"ridge": 0.0}, "ridge must be a number above zero"),
        ({"ridge": "lern"}, "ridge is a number, a mapping or"),
        ({"ridge": 1.0, "ridge_per_entry": -1.0}, "ridge_per_entry must be a number from 0"),
        ({"ridge_per_entry": 0.1}, "ridge_per_entry needs a ridge of your own"),
        ({"bias_ridge": -5.0}, "bias_ridge must be a number above zero"),
        ({"init_scale": 0.0}, "init_scale must be a number above zero"),
        ({"prior_mean": {"day": 1.0}}, "prior_mean names"),
    ],
)
def test_impossible_settings_are_refused(settings, message):
    shape = Shape((Mode("a", 4), Mode("b", 5)), (2, 2))
    with pytest.raises(SettingError, match=message):
        ALS(**settings).init(Run(), shape)


def test_a_core_that_is_too_large_is_refused():
    modes = tuple(Mode(name, 20) for name in "abc")
    shape = Shape(modes, (17, 17, 17), "tucker")
    with pytest.raises(SettingError, match="core of at most 4096 entries, this one has 4913"):
        ALS().init(Run(), shape)
