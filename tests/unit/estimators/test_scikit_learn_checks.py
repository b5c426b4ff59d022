"""scikit-learn's own checks of estimators, and beside each one that does not apply the reason."""

import pickle
import warnings

import numpy as np
import pandas as pd
import pytest
import scipy.sparse
from sklearn.exceptions import DataConversionWarning
from sklearn.exceptions import NotFittedError as TheirNotFittedError
from sklearn.utils.estimator_checks import parametrize_with_checks

import sfumato as sf

pytest.importorskip("jax")

STEPS = 60  # of networks: enough for the checks that ask for some accuracy


def privacy():
    return sf.Privacy(50.0, 1e-5, "example", public=sf.Public(entries=200), seed=0)


_SINGLE = "networks predict in single precision, whose last digit depends on the examples beside"
_NAN_Y = "an error would tell that one example is unlike the others: it is left out, and nothing is said"
_EMPTY = "an error would tell that there is nobody among the examples"
_PUBLIC = "classes are public and given: those in the data are not looked at"
_UPDATE = "partial_fit is an update of a private fit with a new period: an open one is fitted anew"
_LABELS = "columns hold labels, and every number is a label of its own: nothing is learnt of a line"

OPEN = {"check_methods_sample_order_invariance": _SINGLE, "check_methods_subset_invariance": _SINGLE}
PRIVATE = OPEN | {
    "check_estimators_empty_data_messages": _EMPTY,
    "check_supervised_y_no_nan": _NAN_Y,
}
CLASSES = PRIVATE | {
    "check_classifiers_classes": _PUBLIC,
    "check_classifiers_train": _PUBLIC,
    "check_classifiers_regression_target": _NAN_Y,
}
NUMBERS = PRIVATE | {"check_regressors_train": "noise for 200 examples hides what ten columns say"}
TABLES = {
    "check_fit_score_takes_y": _UPDATE,
    "check_estimators_partial_fit_n_features": _UPDATE,
    "check_n_features_in_after_fitting": _UPDATE,
    "check_estimators_nan_inf": "infinity is a label like any other, and a row without one is refused",
    "check_regressors_train": _LABELS,
    "check_fit2d_1sample": "one entry has one level in each mode, which is what the error says",
    "check_fit2d_1feature": "a tensor has two modes or more, which is what the error says",
}

# Tucker takes tables by the code that CP does, and compiles anew for every number of columns.
ESTIMATORS = {
    sf.PrivateClassifier(steps=STEPS): OPEN,
    sf.PrivateRegressor(steps=STEPS): OPEN,
    sf.PrivateClassifier(steps=STEPS, privacy=privacy(), classes=[0, 1, 2], bounds=(-5, 5)): CLASSES,
    sf.PrivateRegressor(steps=STEPS, privacy=privacy(), bounds=(-3, 3), target_bounds=(-5, 5)): NUMBERS,
    sf.CP(1, duplicates="mean", unseen="bias"): TABLES,
    sf.Biases(duplicates="mean", unseen="bias"): TABLES,
}


with warnings.catch_warnings():  # it misses its own base class, which would take a second to import
    warnings.simplefilter("ignore", UserWarning)
    checks = parametrize_with_checks(list(ESTIMATORS), expected_failed_checks=ESTIMATORS.__getitem__)


@checks
def test_scikit_learns_checks(estimator, check):
    check(estimator)


@pytest.mark.parametrize("estimator", [sf.CP(), sf.PrivateClassifier()])
def test_who_expects_scikit_learns_error_before_a_fit_gets_it(estimator):
    with pytest.raises(TheirNotFittedError) as raised:
        estimator.predict(np.zeros((1, 2)))
    assert isinstance(raised.value, sf.NotFittedError)
    assert type(pickle.loads(pickle.dumps(raised.value))) is sf.NotFittedError
    assert not hasattr(estimator, "n_features_in_")


ROWS = [["a", 1], ["a", 2], ["b", 1], ["b", 2]]


def test_lists_and_a_column_of_values_are_taken():
    cells = sf.CP(1).fit(np.array(ROWS, object), [1.0, 2.0, 3.0, 5.0])
    with pytest.warns(DataConversionWarning, match="1d array was expected"):
        listed = sf.CP(1).fit(ROWS, [[1.0], [2.0], [3.0], [5.0]])
    np.testing.assert_array_equal(listed.predict(ROWS), cells.predict(ROWS))
    assert listed.n_features_in_ == 2
    named = sf.CP(1).fit(pd.DataFrame(ROWS, columns=["user", "item"]), [1.0, 2.0, 3.0, 5.0])
    assert named.feature_names_in_.tolist() == ["user", "item"]


def test_names_of_columns_are_there_after_loading(tmp_path):
    X = pd.DataFrame({"age": [1.0, 2.0] * 10, "sex": ["f", "m"] * 10})
    model = sf.PrivateClassifier(steps=1).fit(X, [0, 1] * 10)
    loaded = sf.PrivateClassifier.load(model.save(tmp_path / "model"))
    assert loaded.feature_names_in_.tolist() == model.feature_names_in_.tolist() == ["age", "sex"]


def test_columns_that_are_named_by_numbers_are_columns():
    X = np.random.default_rng(0).normal(size=(20, 3))
    y = X[:, 0] > 0
    framed = sf.PrivateClassifier(steps=5).fit(pd.DataFrame(X), y)
    np.testing.assert_array_equal(
        framed.predict_proba(X), sf.PrivateClassifier(steps=5).fit(X, y).predict_proba(X)
    )


@pytest.mark.parametrize(
    ("X", "y", "match"),
    [
        (np.array([[{"a": 1}, 2], [3, 4]], object), [0, 1], "neither a number nor a category"),
        (np.zeros((2, 2), complex), [0, 1], "Complex data not supported"),
        (np.zeros((2, 2)), np.zeros(2, complex), "Complex data not supported"),
        (scipy.sparse.eye_array(2).tocsr(), [0, 1], "toarray"),
        (np.zeros((2, 0)), [0, 1], "0 feature"),
        (np.zeros((2, 2)), None, "requires y"),
    ],
)
@pytest.mark.parametrize("kind", [sf.PrivateClassifier, sf.PrivateRegressor])
def test_input_that_no_network_learns_from_is_named(kind, X, y, match):
    with pytest.raises(sf.DataError, match=match):
        kind().fit(X, y)


@pytest.mark.parametrize(
    ("X", "match"),
    [
        (np.ones((3, 2), complex), "Complex data not supported"),
        ([["a", 1], ["b"]], "two dimensions"),
        (np.zeros((3, 0)), "0 feature"),
    ],
)
def test_input_that_is_no_table_of_labels_is_named(X, match):
    with pytest.raises(sf.DataError, match=match):
        sf.CP(1).fit(X, [1.0, 2.0, 3.0])
