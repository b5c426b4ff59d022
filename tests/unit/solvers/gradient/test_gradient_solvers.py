"""SGD, minibatches and the paper's algorithm: recovery, seeds, units, divergence."""

import numpy as np
import pytest

import sfumato as sf
from sfumato.data.tensor import Mode, SparseTensor
from sfumato.errors import SettingError
from sfumato.fit import completion
from sfumato.models.shape import Shape
from sfumato.sites import memory as layout
from sfumato.solvers.gradient import sgd as sgd_module
from sfumato.solvers.gradient.minibatch import MinibatchSGD
from sfumato.solvers.gradient.sequential import SequentialSGD
from sfumato.solvers.gradient.sgd import SGD
from sfumato.solvers.protocol import DivergedError, Run

NOISY = sf.synthetic.cp((30, 25, 20), 2, entries=4000, snr=4.0, seed=3, shift=3.0)
FREE = {"ridge_per_entry": 1e-5, "core_ridge": 1e-5}
SOLVERS = {
    "sgd": SGD(passes=60, step=0.1, decay=0.98, init_scale=0.6, **FREE),
    "minibatch": MinibatchSGD(passes=80, step=0.1, init_scale=0.6, **FREE),
    "sequential": SequentialSGD(passes=200, step=0.01, init_scale=0.6, **FREE),
}


def held_out_error(planted, estimator):
    model = estimator.fit(planted.tensor)
    cells = np.stack(np.nonzero(np.isnan(planted.tensor.to_dense())))
    return float(np.sqrt(np.mean((model.model_.predict(cells) - planted.truth(cells)) ** 2)))


@pytest.mark.parametrize("solver", list(SOLVERS))
def test_a_noiseless_cp_tensor_is_recovered(solver):
    planted = sf.synthetic.cp((15, 14, 13), 2, entries=1800, snr=None, seed=2)
    estimator = sf.CP(2, solver=SOLVERS[solver], mean=False, biases=False, seed=1)
    assert held_out_error(planted, estimator) < 0.02


@pytest.mark.parametrize("solver", list(SOLVERS))
def test_a_noiseless_tucker_tensor_is_recovered(solver):
    planted = sf.synthetic.tucker((15, 14, 13), (2, 2, 2), entries=1800, snr=None, seed=2)
    estimator = sf.Tucker(2, solver=SOLVERS[solver], mean=False, biases=False, seed=1)
    assert held_out_error(planted, estimator) < 0.05


def fitted(solver, seed=0, tensor=NOISY.tensor, **settings):
    return sf.CP(2, solver=solver, seed=seed, **settings).fit(tensor).model_


@pytest.mark.parametrize("kind", [SGD, MinibatchSGD, SequentialSGD])
def test_the_seed_decides(kind):
    solver = kind(passes=3)
    first, same, other = (fitted(solver, seed) for seed in (1, 1, 2))
    np.testing.assert_array_equal(first.rows, same.rows)
    np.testing.assert_array_equal(first.biases, same.biases)
    assert (first.rows[:, 0] != other.rows[:, 0]).all()


@pytest.mark.parametrize("make", [lambda **s: sf.CP(2, **s), lambda **s: sf.Tucker((2, 3, 2), **s)])
def test_threads_work_side_by_side_and_change_nothing_between_runs(monkeypatch, make):
    monkeypatch.setattr(sgd_module, "_SMALL", 0)
    monkeypatch.setattr(layout, "_BLOCK_ENTRIES", 100)
    solver = SGD(passes=30)
    runs = [make(solver=solver, threads=2, seed=1).fit(NOISY.tensor) for _ in range(3)]
    alone = make(solver=solver, threads=1, seed=1).fit(NOISY.tensor)
    for again in runs[1:]:
        np.testing.assert_array_equal(runs[0].model_.rows, again.model_.rows)
        np.testing.assert_array_equal(runs[0].model_.free_core, again.model_.free_core)
    assert (runs[0].model_.rows != alone.model_.rows).any()  # there were two blocks
    errors = [model.history_[-1].train_rmse for model in (runs[0], alone)]
    assert errors[0] == pytest.approx(errors[1], rel=0.1)


@pytest.mark.parametrize("kind", [SGD, MinibatchSGD])
def test_values_in_another_unit_give_predictions_in_that_unit(kind):
    plain, scaled = (
        fitted(kind(passes=5), tensor=NOISY.tensor.with_values(c * NOISY.tensor.values + d))
        for c, d in ((1.0, 0.0), (1000.0, -70.0))
    )
    cells = NOISY.tensor.coordinates
    np.testing.assert_allclose(
        scaled.predict(cells), 1000 * plain.predict(cells) - 70, rtol=1e-7, atol=1e-5
    )


@pytest.mark.parametrize("kind", [SGD, MinibatchSGD, SequentialSGD])
def test_the_order_of_the_input_does_not_matter(kind):
    order = np.random.default_rng(0).permutation(NOISY.tensor.n_entries)
    shuffled = SparseTensor(
        NOISY.tensor.coordinates[:, order], NOISY.tensor.values[order], NOISY.tensor.modes
    )
    here, there = (fitted(kind(passes=2), tensor=tensor) for tensor in (NOISY.tensor, shuffled))
    np.testing.assert_array_equal(here.rows, there.rows)


@pytest.mark.parametrize("kind", [SGD, MinibatchSGD, SequentialSGD])
def test_rows_without_entries_stay_where_they_started(kind):
    """So the start cannot depend on the data either: two data sets leave the same rows."""
    modes = (*NOISY.tensor.modes[:2], Mode("mode2", 22))
    rows = []
    for values in (NOISY.tensor.values, NOISY.tensor.values[::-1]):
        tensor = SparseTensor(NOISY.tensor.coordinates, values, modes)
        model = fitted(kind(passes=2), tensor=tensor)
        rows.append(model.factors[2][20:])
        assert not model.mode_biases[2][20:].any()
    np.testing.assert_array_equal(rows[0], rows[1])
    shape = Shape(modes, (2, 2, 2))
    np.testing.assert_array_equal(rows[0], kind().init(Run(), shape).model.factors[2][20:])


@pytest.mark.parametrize("solver", [SGD(step=5.0), SequentialSGD(step=5.0)])
def test_a_huge_step_is_named_as_the_cause(solver):
    with pytest.raises(DivergedError, match=r"diverged in pass \d+: use a smaller step than 5.0"):
        fitted(solver)


@pytest.mark.parametrize(
    "solver", [MinibatchSGD(passes=20, step=10.0), MinibatchSGD(passes=20, init_scale=30.0)]
)
def test_minibatches_survive_an_absurd_step_or_start(solver):
    assert np.isfinite(fitted(solver).rows).all()


@pytest.mark.parametrize("batch", [1, 7, 4000, 9999])
def test_batches_of_any_size(batch):
    tensor = sf.synthetic.cp((8, 7, 6), 2, entries=100, seed=1).tensor
    model = sf.CP(2, solver=MinibatchSGD(passes=3, batch=batch)).fit(tensor)
    assert len(model.history_) == 3
    assert np.isfinite(model.model_.rows).all()


@pytest.mark.parametrize("kind", [SGD, MinibatchSGD])
def test_the_first_reported_error_is_that_of_the_start(kind):
    # A step so small that nothing moves: what is met on the way is the error of the start, each
    # entry counted once.
    solver = kind(passes=1, step=1e-12)
    model = sf.CP(2, solver=solver).fit(NOISY.tensor)
    assert model.history_[0].train_rmse == pytest.approx(model.rmse(NOISY.tensor), rel=1e-6)


@pytest.mark.parametrize("kind", [SGD, MinibatchSGD, SequentialSGD])
def test_penalties_by_mode(kind):
    strong = kind(passes=10, ridge_per_entry={"mode1": 3.0}, prior_mean={"mode1": 2.0})
    assert np.abs(fitted(strong, biases=False).factors[1] - 2).max() < 0.4
    with pytest.raises(SettingError, match="prior_mean names"):
        fitted(kind(prior_mean={"day": 1.0}))


@pytest.mark.parametrize("kind", [SGD, MinibatchSGD])
def test_a_penalty_of_the_whole_row_is_spread_over_its_entries(kind):
    dense = sf.synthetic.cp((10, 10), 2, missing=0.0, seed=0).tensor
    whole, each = (
        sf.CP(2, solver=kind(passes=4, ridge=a, ridge_per_entry=b)).fit(dense).model_.rows
        for a, b in ((2.0, 0.0), (0.0, 0.2))
    )
    np.testing.assert_allclose(whole, each, rtol=1e-10, atol=1e-13)


def test_the_paper_has_no_penalty_of_a_whole_row():
    with pytest.raises(SettingError, match="use ridge_per_entry"):
        fitted(SequentialSGD(ridge=1.0))


@pytest.mark.parametrize("kind", [SGD, MinibatchSGD])
def test_a_tolerance_stops_early(kind):
    model = sf.CP(2, solver=kind(passes=60, tolerance=0.01)).fit(NOISY.tensor)
    errors = [info.train_rmse for info in model.history_]
    assert 2 <= len(errors) < 60
    assert errors[-2] - errors[-1] < 0.01 * errors[-2]


@pytest.mark.parametrize(
    ("solver", "message"),
    [
        (SGD(passes=0), "passes must be a whole number from 1 on"),
        (SGD(step=-1.0), "step must be a number above zero"),
        (SGD(decay=0.0), "decay must be a number above zero"),
        (SGD(ridge_per_entry=-0.1), "ridge_per_entry must be a number from 0"),
        (SGD(bias_ridge=float("nan")), "bias_ridge must be a number from 0"),
        (MinibatchSGD(momentum=1.0), "momentum must be a number at least 0 and below 1"),
        (MinibatchSGD(batch=0), "batch must be a whole number from 1 on"),
    ],
)
def test_impossible_settings_are_refused(solver, message):
    with pytest.raises(SettingError, match=message):
        fitted(solver)


def test_a_start_that_diverges_does_not_spoil_the_others(monkeypatch):
    tensor = sf.synthetic.cp((12, 10), 2, entries=80, seed=3).tensor
    one_start = completion._one_start

    def first_diverges(plan, start, site, progress):
        if start == 0:
            raise DivergedError("as if")
        return one_start(plan, start, site, progress)

    monkeypatch.setattr(completion, "_one_start", first_diverges)
    assert np.isfinite(sf.CP(2, solver="sgd", starts=2).fit(tensor).rmse(tensor))
    with pytest.raises(DivergedError, match="as if"):
        sf.CP(2, solver="sgd", starts=1).fit(tensor)
