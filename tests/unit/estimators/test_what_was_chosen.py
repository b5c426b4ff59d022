"""``rank_`` and ``method_``: what was fitted, also where a plan has chosen it, and after loading."""

import numpy as np
import pytest

import sfumato as sf

TENSOR = sf.prepare.clip(sf.synthetic.cp((12, 10, 8), 2, entries=500, seed=0).tensor, (-3.0, 3.0))
LABELS = {name: range(size) for name, size in zip(TENSOR.mode_names, TENSOR.shape, strict=True)}


def privacy(method="auto", epsilon=20.0, unit="entry", profile=None, **more):
    public = sf.Public(entries=500, labels=LABELS, profile=profile)
    return sf.Privacy(epsilon, 1e-6, unit=unit, method=method, public=public, seed=0, **more)


def fitted(estimator):
    return estimator.set_params(threads=1).fit(TENSOR)


@pytest.mark.usefixtures("few_starts")
@pytest.mark.parametrize("method", ["constant", "bias", "alternating", "input", "gradient"])
def test_a_named_method_is_what_it_says(method, tmp_path):
    unit = "value" if method == "input" else "entry"
    model = fitted(sf.CP(2, privacy=privacy(method, unit=unit)))
    assert (model.method_, model.rank_) == (method, 2)
    again = sf.load(model.release(tmp_path / "release", force=True))
    assert (again.method_, again.rank_) == (method, 2)


CLEAR = sf.Profile(biases=0.1, interactions=0.85, components=2)


@pytest.mark.parametrize(
    ("epsilon", "profile", "kind", "method"),
    [
        (0.01, None, sf.CP, "constant"),
        (100.0, None, sf.CP, "pairs"),
        (100.0, CLEAR, sf.CP, "alternating"),
        (100.0, CLEAR, sf.Tucker, "alternating"),
    ],
)
def test_what_auto_chose_can_be_read(epsilon, profile, kind, method, tmp_path):
    model = fitted(kind(privacy=privacy(epsilon=epsilon, profile=profile)))
    plan = model.plan(TENSOR.modes, bounds=TENSOR.bounds)
    ranks = tuple(plan.task.facts.shape.zeros().ranks)
    assert model.rank_ == (ranks if kind is sf.Tucker else ranks[0])
    assert isinstance(model.rank_, tuple if kind is sf.Tucker else int)
    assert model.method_ == method
    again = sf.load(model.save(tmp_path / "model", force=True))
    assert (again.method_, again.rank_) == (model.method_, model.rank_)
    # Columns of pairs are levels, of which the smallest mode may have fewer than a rank asks for.
    rank = None if method == "pairs" else model.rank_
    repeated = fitted(kind(rank, privacy=privacy(model.method_, epsilon, profile=profile)))
    np.testing.assert_array_equal(repeated.predict(TENSOR), model.predict(TENSOR))


def test_open_fits_name_their_solver(tmp_path):
    model = fitted(sf.CP(3, solver=sf.ALS(sweeps=1)))
    assert (model.method_, model.rank_) == ("als", 3)
    again = sf.load(model.save(tmp_path / "model"))
    assert (again.method_, again.rank_) == ("als", 3)
    assert fitted(sf.Tucker((2, 3, 1), solver=sf.ALS(sweeps=1))).rank_ == (2, 3, 1)
    biases = fitted(sf.Biases(sweeps=1))
    assert (biases.method_, biases.rank_) == ("biases", 1)


def test_a_paper_s_method_has_the_name_it_was_asked_for_by():
    promise = sf.Privacy(1, unit="value", method="gradient", analysis="paper", seed=0)
    assert fitted(sf.CP(2, mean=False, biases=False, privacy=promise)).method_ == "gradient"


def test_a_search_tells_of_its_best():
    made = sf.PrivateSearch([sf.CP(1, threads=1), sf.CP(2, threads=1)], privacy("gradient")).fit(TENSOR)
    assert (made.method_, made.rank_) == ("gradient", made.best_index_ + 1)


def test_before_a_fit_there_is_neither():
    for name in ("rank_", "method_"):
        assert not hasattr(sf.CP(), name)
        with pytest.raises(sf.NotFittedError):
            getattr(sf.PrivateSearch([sf.CP(1), sf.CP(2)], privacy()), name)


def test_numpy_s_small_numbers_do_not_overflow():
    """30 sweeps of 5 steps are more than an int8 holds."""
    small = fitted(
        sf.CP(np.int8(2), solver=sf.ALS(sweeps=np.int8(60)), seed=np.int8(3), starts=np.int8(1))
    )
    usual = fitted(sf.CP(2, solver=sf.ALS(sweeps=60), seed=3))
    np.testing.assert_array_equal(small.predict(TENSOR), usual.predict(TENSOR))
    assert sf.Public(entries=np.int8(100)).entries * 2 == 200
    assert sf.Unit("user", np.uint8(200)).max_entries * 2 == 400


@pytest.mark.parametrize(("method", "listed"), [("constant", "mean"), ("bias", "biases")])
def test_what_a_method_fits_unasked_is_listed_as_released(method, listed):
    """Or a guarantee would be silent about numbers that are in the release."""
    tensor = sf.prepare.clip(sf.synthetic.cp((20, 15), 1, entries=200, seed=0).tensor, (-3, 3))
    privacy = sf.Privacy(5, unit="value", method=method, seed=0)
    fitted = sf.CP(1, mean=False, biases=False, privacy=privacy).fit(tensor)
    assert fitted.model_.mean != 0
    assert fitted.model_.biases.any() == (method == "bias")
    assert "mean" in fitted.guarantee_.released
    assert any(listed in part for part in fitted.guarantee_.released)
