"""Estimators: scikit-learn's conventions, prediction by label, and errors that say what to do."""

import subprocess
import sys

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from sklearn.base import clone, is_regressor
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.utils.validation import check_is_fitted

import sfumato as sf
from sfumato.errors import DataError, NotFittedError, SettingError, UnknownLabelError

QUICK = sf.ALS(sweeps=2, ridge=1.0)


def ratings(seed=0, n=240):
    """Every user rates some items; half of the labels are text."""
    rng = np.random.default_rng(seed)
    pairs = rng.permutation(20 * 15)[:n]
    user, item = pairs // 15, pairs % 15
    value = np.clip(3 + rng.normal(size=20)[user] + rng.normal(size=15)[item], 1, 5)
    frame = pd.DataFrame({"user": [f"u{u:02d}" for u in user], "item": item * 10})
    return frame, value


FRAME, VALUES = ratings()
TENSOR = sf.read(FRAME.assign(x=VALUES), ["user", "item"], "x", bounds=(1, 5))
FITTED = sf.CP(2, solver=QUICK).fit(TENSOR)


# -- scikit-learn -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "estimator", [sf.CP(3, solver=QUICK, seed=7), sf.Tucker((2, 3)), sf.Biases(ridge=2.0)]
)
def test_clone_and_parameters(estimator):
    copy = clone(estimator)
    assert type(copy) is type(estimator)
    assert copy is not estimator
    assert copy.get_params() == estimator.get_params()
    assert repr(copy) == repr(estimator)
    assert copy.set_params(unseen="bias") is copy
    assert (copy.unseen, estimator.unseen) == ("bias", "error")
    assert is_regressor(estimator)
    with pytest.raises(SettingError, match=r"has no setting 'depth'; it has "):
        copy.set_params(depth=3)


def test_a_clone_is_not_fitted_and_fitting_changes_no_setting():
    settings = FITTED.get_params()
    check_is_fitted(FITTED)
    with pytest.raises(NotFittedError, match="CP is not fitted yet; call fit first"):
        clone(FITTED).predict(TENSOR)
    with pytest.raises(NotFittedError, match="call fit first"):
        clone(FITTED).save("nowhere")
    assert FITTED.get_params() == settings


def test_search_and_cross_validation_over_a_table():
    model = sf.CP(1, solver=QUICK, unseen="bias", threads=1)
    search = GridSearchCV(
        model, {"rank": np.array([1, 2]), "solver": [QUICK, sf.ALS(sweeps=2, ridge=50.0)]}, cv=3
    )
    search.fit(FRAME, VALUES)
    scores = search.cv_results_["mean_test_score"]
    assert search.best_score_ == scores.max() < 0
    assert search.best_estimator_.predict(FRAME).shape == VALUES.shape
    assert len(cross_val_score(model, FRAME, VALUES, cv=3)) == 3
    # The score of a fold is minus its RMSE.
    half = len(FRAME) // 2
    model.fit(FRAME[:half], VALUES[:half])
    misses = model.predict(FRAME[half:]) - VALUES[half:]
    assert model.score(FRAME[half:], VALUES[half:]) == pytest.approx(-np.sqrt(np.mean(misses**2)))


def test_cross_validation_over_folds_of_a_tensor():
    errors = sf.cross_validate(sf.CP(1, solver=QUICK), TENSOR, folds=3, seed=4)
    expected = [sf.CP(1, solver=QUICK).fit(train).rmse(test) for train, test in TENSOR.folds(3, seed=4)]
    assert errors == expected
    assert FITTED.score(TENSOR) == -FITTED.rmse(TENSOR)


# -- prediction ---------------------------------------------------------------------------------


def test_labels_one_by_one_and_many():
    one = FITTED.predict(user="u03", item=40)
    assert type(one) is float
    many = FITTED.predict(user=["u03", "u04"], item=40)
    assert many.shape == (2,)
    assert many[0] == one
    assert FITTED.predict(user=np.array(["u03"]), item=np.array([40])).shape == (1,)
    level = TENSOR.locate({"user": ["u03"], "item": [40]})
    assert one == np.clip(FITTED.model_.predict(level)[0], 1, 5)
    assert FITTED.predict(user="u03", item="40") == one  # as a CSV would have it


@pytest.mark.parametrize(
    "as_table",
    [
        lambda frame: frame,
        lambda frame: frame[["item", "user"]],
        pl.from_pandas,
        lambda frame: pa.Table.from_pandas(frame, preserve_index=False),
        lambda frame: frame.assign(other=1),
        lambda frame: frame.to_dict("list"),
        lambda frame: frame.to_numpy(),
    ],
)
def test_tables_of_every_kind(as_table):
    expected = FITTED.predict(user=FRAME["user"].to_numpy(), item=FRAME["item"].to_numpy())
    np.testing.assert_array_equal(FITTED.predict(as_table(FRAME)), expected)


@pytest.mark.parametrize("as_table", [lambda f: f, pl.from_pandas, pa.Table.from_pandas])
def test_fitting_a_table_is_fitting_its_tensor(as_table):
    model = sf.CP(2, solver=QUICK).fit(as_table(FRAME), VALUES)
    np.testing.assert_array_equal(model.model_.rows, FITTED.model_.rows)
    numbered = sf.CP(2, solver=QUICK).fit(FRAME.to_numpy(), VALUES)
    assert [mode.name for mode in numbered.modes_] == ["mode1", "mode2"]


def test_a_tensor_with_other_levels_is_found_by_its_labels():
    part = FRAME[FRAME["user"] < "u05"]
    other = sf.read(part.assign(x=1.0), ["item", "user"], "x")
    labels = {
        mode.name: mode.labels[levels]
        for mode, levels in zip(other.modes, other.coordinates, strict=True)
    }
    np.testing.assert_array_equal(FITTED.predict(other), FITTED.predict(**labels))


def test_unseen_labels_are_named_or_fall_back_to_the_biases():
    with pytest.raises(UnknownLabelError, match=r"mode 'user' has no level 'zoe'.*unseen=\"bias\""):
        FITTED.predict(user="zoe", item=40)
    model = FITTED.model_
    item = model.mode_biases[1][4]
    value = FITTED.predict(user="zoe", item=40, unseen="bias")
    assert value == pytest.approx(np.clip(model.mean + item, 1, 5))
    mixed = FITTED.predict(user=["zoe", "u03"], item=[999, 40], unseen="bias")
    np.testing.assert_allclose(mixed, [np.clip(model.mean, 1, 5), FITTED.predict(user="u03", item=40)])
    with pytest.raises(SettingError, match="unseen must be one of error, bias, got 'zero'"):
        FITTED.predict(user="u03", item=40, unseen="zero")
    with pytest.raises(SettingError, match="unseen must be one of"):
        sf.CP(2, unseen="zero").fit(TENSOR)


def test_top():
    dense = np.clip(FITTED.model_.along(1, [3, 0]), 1, 5)
    best = FITTED.top("item", 4, user="u03")
    order = np.argsort(-dense, kind="stable")[:4]
    assert best == [(int(TENSOR.modes[1].labels[i]), float(dense[i])) for i in order]
    assert len(FITTED.top("item", 99, user="u03")) == 15
    with pytest.raises(SettingError, match="k must be"):
        FITTED.top("item", 0, user="u03")
    with pytest.raises(SettingError, match="there is no mode 'film'"):
        FITTED.top("film", user="u03")
    with pytest.raises(SettingError, match="no labels for mode 'user'"):
        FITTED.top("item")
    with pytest.raises(SettingError, match="one label per mode"):
        FITTED.top("item", user=["u03", "u04"])
    with pytest.raises(UnknownLabelError, match="zoe"):
        FITTED.top("item", user="zoe")


def test_predictions_stay_within_the_bounds():
    wild = sf.CP(2, solver=sf.ALS(sweeps=1, ridge=1e-9)).fit(TENSOR)
    wild.model_.rows[:, :2] *= 5
    values = wild.predict(TENSOR)
    assert (values.min(), values.max()) == (1, 5)
    free = sf.CP(2, solver=QUICK).fit(TENSOR.with_values(TENSOR.values))
    free.model_.rows[:, :2] *= 5
    assert free.bounds_ is None
    assert free.predict(TENSOR).max() > 5


def test_times_may_be_given_raw_or_as_bins():
    times = pd.date_range("1998-04-02", periods=6, freq="5D")
    frame = pd.DataFrame({"who": list("ababab"), "time": times, "x": [1.0, 2.0, 4.0, 3.0, 5.0, 2.0]})
    tensor = sf.read(frame, ["who", "time"], "x", bins={"time": "week"})
    model = sf.Biases(ridge=0.1).fit(tensor)
    expected = model.predict(frame)
    assert len(set(expected.tolist())) > 3
    label = tensor.modes[1].label(0)
    assert label == "1998-W14"
    raw = [times[0], str(times[0]), times[0].to_datetime64(), int(times[0].timestamp()), label]
    for time in raw:
        assert model.predict(who="a", time=time) == expected[0], time
    seconds = frame.assign(time=[int(time.timestamp()) for time in times])
    for table in (
        frame.drop(columns="x"),
        seconds,
        {"who": list("ababab"), "time": seconds["time"].to_numpy()},
    ):
        np.testing.assert_array_equal(model.predict(table), expected)
    with pytest.raises(UnknownLabelError, match="1999-W"):
        model.predict(who="a", time="1999-04-02")
    with pytest.raises(DataError, match="'soon' is not a time"):
        model.predict(who="a", time="soon")


# -- refusals -----------------------------------------------------------------------------------


def with_value(value, bounds=None):
    return sf.read(FRAME.assign(x=[value, *VALUES[1:]]), ["user", "item"], "x", bounds=bounds)


@pytest.mark.parametrize("estimator", [sf.CP(2, solver=QUICK), sf.Biases()])
@pytest.mark.parametrize(
    ("tensor", "message"),
    [
        (lambda: with_value(np.nan), "1 of 240 values are not finite numbers"),
        (lambda: with_value(np.inf), "not finite numbers"),
        (lambda: with_value(7.0, (1, 5)), r"outside the bounds \[1, 5\]; the first is 7 at user"),
        (
            lambda: sf.read(pd.concat([FRAME, FRAME[:1]]).assign(x=1.0), ["user", "item"], "x"),
            "1 cells are given more than once",
        ),
        (
            lambda: sf.read(FRAME.assign(x=VALUES, day=1), ["user", "item", "day"], "x"),
            "mode 'day' has only one level",
        ),
    ],
)
def test_data_that_cannot_be_fitted(estimator, tensor, message):
    with pytest.raises(DataError, match=message):
        clone(estimator).fit(tensor())


@pytest.mark.parametrize(
    ("estimator", "message"),
    [
        (sf.CP(16), "rank 16 is larger than mode 'item' with its 15 levels"),
        (sf.CP(0), "whole number from 1 on"),
        (sf.CP(1.5), "whole number from 1 on"),
        (sf.Tucker((2, 2, 2)), "2 modes need 2 ranks, got 3"),
        (sf.CP(2, solver="adam"), "there is no solver 'adam'; there are als, sgd"),
        (sf.CP(2, dtype=np.float16), "dtype must be float32 or float64"),
        (sf.CP(2, starts=0), "starts must be a whole number"),
        (sf.CP(2, threads=-1), "threads must be a whole number from 1"),
        (sf.CP(2, duplicates="first"), "duplicates must be one of error, mean, last, sum, got 'first'"),
    ],
)
def test_settings_that_do_not_fit(estimator, message):
    with pytest.raises(SettingError, match=message):
        estimator.fit(TENSOR)


def test_one_rank_for_every_mode_of_tucker():
    for ranks in (2, np.int64(2), [2, 2], np.array([2, 2])):
        assert sf.Tucker(ranks, solver=QUICK).fit(TENSOR).model_.ranks == (2, 2)


def test_duplicates_are_merged_as_asked():
    twice = sf.read(
        pd.concat([FRAME, FRAME[:1]]).assign(x=[*VALUES, 5.0]), ["user", "item"], "x", bounds=(1, 5)
    )
    cell = {name: FRAME[name][0] for name in ("user", "item")}
    for policy, value in (("last", 5.0), ("mean", (VALUES[0] + 5) / 2)):
        model = sf.Biases(duplicates=policy, ridge=1e-9).fit(twice)
        once = sf.read(FRAME.assign(x=[value, *VALUES[1:]]), ["user", "item"], "x", bounds=(1, 5))
        assert model.n_entries_ == 240
        assert model.predict(**cell) == sf.Biases(ridge=1e-9).fit(once).predict(**cell)
    with pytest.raises(DataError, match=r"outside the bounds \[1, 5\]"):
        sf.Biases(duplicates="sum").fit(twice)


def test_wrong_calls():
    with pytest.raises(SettingError, match="either a tensor or table, or labels"):
        FITTED.predict()
    with pytest.raises(SettingError, match="either a tensor or table, or labels"):
        FITTED.predict(TENSOR, user="u03")
    with pytest.raises(SettingError, match="there is no mode 'film'"):
        FITTED.predict(user="u03", film=3)
    with pytest.raises(SettingError, match="there is no column 'item'"):
        FITTED.predict(FRAME[["user"]])
    with pytest.raises(DataError, match="different numbers of labels"):
        FITTED.predict(user=["u03", "u04", "u05"], item=[10, 20])
    with pytest.raises(DataError, match="expecting 2 features"):
        FITTED.predict(np.zeros((3, 3)))
    with pytest.raises(DataError, match="fit takes a SparseTensor"):
        sf.CP(2).fit(FRAME)
    with pytest.raises(DataError, match="240 rows need as many values y"):
        sf.CP(2).fit(FRAME, VALUES[:-1])
    with pytest.raises(DataError, match="give a SparseTensor, or Shards, or a table of labels"):
        FITTED.rmse(FRAME)


def test_the_plan_needs_no_data():
    plan = sf.CP(2, starts=3).plan(TENSOR.modes)
    assert plan.rounds == 3 * plan.solver.rounds(plan.shape)
    assert "user 20 x item 15: CP of rank 2 with a mean and biases" in plan.explain()


FORKED = """
import os, numpy as np, sfumato as sf
tensor = sf.synthetic.cp((8, 7), 2, entries=40, seed=0).tensor
model = sf.CP(2, solver=sf.ALS(sweeps=1, ridge=1.0), threads=2).fit(tensor)
child = os.fork()
if child == 0:
    model.predict(tensor)
    os._exit(7)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_a_forked_process_has_threads_of_its_own():
    command = [sys.executable, "-W", "ignore", "-c", FORKED]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.stdout.strip() == "7", done.stderr
