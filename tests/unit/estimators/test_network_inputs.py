"""Networks beside scikit-learn, and tables as people have them."""

import numpy as np
import pandas as pd
import polars as pl
import pytest
from sklearn.base import clone, is_classifier, is_regressor
from sklearn.datasets import load_diabetes, load_iris
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import sfumato as sf

pytest.importorskip("jax")


def privacy(epsilon=1.0, entries=40, **more):
    return sf.Privacy(epsilon, 1e-5, "example", public=sf.Public(entries=entries), **more)


def test_settings_are_cloned_and_validated_across_folds_as_in_scikit_learn():
    X, y = load_iris(return_X_y=True)
    model = sf.PrivateClassifier(steps=100)
    assert is_classifier(clone(model))
    assert clone(model.set_params(seed=3)).get_params() == model.get_params()
    for targets in (y, np.array(["a", "b", "c"])[y]):
        assert cross_val_score(model, X, targets, cv=3).mean() > 0.9
    X, y = load_diabetes(return_X_y=True)
    assert is_regressor(sf.PrivateRegressor())
    ridge = cross_val_score(make_pipeline(StandardScaler(), Ridge()), X, y, cv=3).mean()
    assert cross_val_score(sf.PrivateRegressor(), X, y, cv=3).mean() > ridge - 0.03


@pytest.mark.parametrize("kind", [sf.PrivateClassifier, sf.PrivateRegressor])
@pytest.mark.parametrize("call", ["predict", "sample_posterior", "save", "release"])
def test_nothing_is_done_before_a_fit(kind, call, tmp_path):
    with pytest.raises(sf.NotFittedError, match="call fit first"):
        getattr(kind(), call)(tmp_path if call in ("save", "release") else np.zeros((1, 1)))


CELLS = {"a": ["x", "y"] * 20, "b": [True, False] * 20, "c": [1, None] * 20, "d": ["u", None] * 20}
FRAMES = {
    "pandas": lambda: pd.DataFrame(CELLS).astype({"a": "category", "c": "Int64"}),
    "objects": lambda: pd.DataFrame(CELLS, dtype=object),
    "polars": lambda: pl.DataFrame(CELLS, schema_overrides={"a": pl.Categorical}),
}


@pytest.mark.parametrize("frame", FRAMES)
@pytest.mark.parametrize("private", [False, True])
def test_columns_of_every_kind_are_learnt_from(frame, private):
    X, y = FRAMES[frame](), [0, 1] * 20
    public = {"a": ["x", "y"], "b": (0, 1), "c": (0, 2), "d": ["u"]}
    told = {"privacy": privacy(epsilon=10.0), "bounds": public, "classes": [0, 1]} if private else {}
    model = sf.PrivateClassifier(**told).fit(X, y)
    assert model.score(X, y) == 1
    assert [column.bounds is None for column in model.features_.columns][::2] == [True, False]


def test_bounds_of_an_arrays_columns_are_by_place_in_whatever_order():
    X = np.array([[1.0, 100.0], [2.0, 300.0]])
    kind = {"privacy": privacy(), "classes": [0, 1], "steps": 1}
    model = sf.PrivateClassifier(bounds={1: (0, 500), 0: (0, 5)}, **kind).fit(X, [0, 1])
    assert [column.bounds for column in model.features_.columns] == [(0, 5), (0, 500)]


@pytest.mark.parametrize("seed", range(3))
def test_open_fits_are_about_as_good_as_logistic_regression_where_labels_are_noisy(seed):
    """Clips that are too hard make likely classes sure ones: the likelihood then falls behind."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(3000, 6))
    y = (rng.random(3000) < 1 / (1 + np.exp(-X[:, 0] + 0.5))).astype(int)
    a, b = slice(2000), slice(2000, None)

    def loss(model):
        return -np.log(model.fit(X[a], y[a]).predict_proba(X[b])[np.arange(1000), y[b]]).mean()

    best = loss(LogisticRegression())
    assert loss(sf.PrivateClassifier()) < best + 0.01
    asked = privacy(entries=2000, seed=seed)
    assert loss(sf.PrivateClassifier(privacy=asked, classes=[0, 1], bounds=(-6, 6))) < best + 0.04


@pytest.mark.parametrize("epsilon", [10.0, 1.0, 0.1])
def test_without_signal_a_private_fit_hardly_loses_to_the_constant(epsilon):
    rng = np.random.default_rng(5)
    X, y = rng.normal(size=(1000, 5)), rng.normal(size=1000)
    told = {"bounds": (-6, 6), "target_bounds": (-6, 6)}
    scores = [
        sf.PrivateRegressor(privacy=privacy(epsilon, 1000, seed=seed), **told).fit(X, y).score(X, y)
        for seed in range(3)
    ]
    assert np.mean(scores) > -0.15


@pytest.mark.parametrize(
    ("X", "y", "match"),
    [
        (np.zeros((3, 2)), [0, 1], "3 examples"),
        (np.zeros(3), [0, 1, 1], "a row for each example"),
        (np.zeros((3, 2)), [0.5, 1.5, 2], "PrivateRegressor"),
        (np.array(["2020-01-01"] * 3, "M8[D]")[:, None], [0, 1, 1], "days"),
        (pd.DataFrame([[1, 2]] * 3, columns=["a", "a"]), [0, 1, 1], "a"),
    ],
)
def test_what_cannot_be_learnt_from_is_refused(X, y, match):
    with pytest.raises(sf.SfumatoError, match=match):
        sf.PrivateClassifier().fit(X, y)
