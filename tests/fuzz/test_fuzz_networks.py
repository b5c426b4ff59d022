"""Networks take any examples and settings, or say what to do; of values of examples nothing is said."""

import json
import shutil
import warnings
from contextlib import suppress

import numpy as np
import pandas as pd
import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from model_folders import edit

import sfumato as sf
from sfumato.errors import SfumatoError

pytest.importorskip("jax")
pytestmark = pytest.mark.filterwarnings("ignore")

FAST = settings(
    max_examples=60,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
)
ROWS = 12


def private(**more):
    public = sf.Public(entries=50, units=50)
    asked = {"epsilon": 1, "delta": 1e-5, "unit": "example", "seed": 1, "public": public} | more
    return sf.Privacy(**asked)


def model(kind=sf.PrivateClassifier, **more):
    base = {"privacy": private(), "steps": 3, "bounds": (0, 1)}
    told = {"classes": [0, 1]} if kind is sf.PrivateClassifier else {"target_bounds": (0, 1)}
    return kind(**{**base, **told, **more})


CELLS = st.one_of(
    st.floats(allow_nan=True, allow_infinity=True),
    st.integers(),
    st.booleans(),
    st.none(),
    st.text(max_size=3),
    st.binary(max_size=2),
    st.complex_numbers(),
    st.sampled_from([pd.NA, pd.NaT, 1, 0, "1", "a", b"a", 10**400, object, [], (1, 2), {}]),
)


def column(cells):
    made = np.empty(len(cells), object)
    made[:] = cells
    return made


@FAST
@given(st.lists(CELLS, min_size=ROWS, max_size=ROWS), st.lists(CELLS, min_size=ROWS, max_size=ROWS))
@pytest.mark.parametrize("kind", [sf.PrivateClassifier, sf.PrivateRegressor])
@pytest.mark.parametrize("categories", [False, True])
def test_no_value_of_an_example_is_ever_complained_of(kind, categories, cells, targets):
    X = pd.DataFrame({"a": column(cells), "b": np.linspace(0, 1, ROWS)})
    bounds = {"a": ["a", 1] if categories else (0, 1), "b": (0, 1)}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", sf.PrivacyWarning)
        fitted = model(kind, bounds=bounds).fit(X, column(targets))
        assert len(fitted.predict(X)) == ROWS


@FAST
@given(CELLS, st.sampled_from(["X", "y", "groups"]))
def test_one_example_does_not_change_how_others_are_read(cell, where):
    """Lists, of which a word makes words of all numbers unless each is read by itself."""
    from sfumato.estimators.examples_in import as_table, targets_of
    from sfumato.models.features import places_of

    plain, odd = [0, 1.0, 2.5, True, 7], [0, 1.0, 2.5, True, cell]
    if where == "y":
        before, after = (places_of(targets_of(each, 5), [0, 1])[:4] for each in (plain, odd))
    elif where == "groups":
        X = np.zeros((5, 1))
        before, after = (as_table(X, column(each), None).owners[:4] for each in (plain, odd))
        before, after = ([a == b for a in x for b in x] for x in (before.tolist(), after.tolist()))
    else:
        if isinstance(cell, list | tuple):
            return  # another shape
        rows = (as_table([[value] for value in each], None, None).columns[0] for each in (plain, odd))
        before, after = (places_of(values, [0, 1])[:4] for values in rows)
    assert np.array_equal(before, after)


ANYTHING = st.one_of(
    CELLS,
    st.lists(CELLS, max_size=3),
    st.dictionaries(st.text(max_size=2), CELLS, max_size=2),
    st.sampled_from([np.nan, np.array([1]), np.zeros((2, 2)), (3, 4), [1, 0], "relu", range(3), print]),
)
NAMES = sorted(set(sf.PrivateClassifier().get_params()) | {"target_bounds"})


@FAST
@given(st.sampled_from(NAMES), ANYTHING, st.booleans())
def test_any_setting_is_used_or_refused(name, value, openly):
    kind = sf.PrivateRegressor if name == "target_bounds" else sf.PrivateClassifier
    made = model(kind, **({"privacy": None} if openly else {}))
    made.set_params(**{name: value})
    X = np.random.default_rng(0).random((ROWS, 3))
    with suppress(SfumatoError):
        made.fit(X, np.arange(ROWS) % 2)


SHAPES = st.one_of(
    st.tuples(),
    st.tuples(st.integers(0, 3)),
    st.tuples(st.integers(0, 3), st.integers(0, 3)),
    st.tuples(st.integers(0, 2), st.integers(0, 5), st.integers(0, 5)),
)


@FAST
@given(
    SHAPES, SHAPES, st.sampled_from([float, int, bool, object, "U2", "M8[D]", complex]), st.booleans()
)
def test_any_shape_is_used_or_refused(shape, targets, dtype, openly):
    made = model(**({"privacy": None} if openly else {}))
    with suppress(SfumatoError):
        made.fit(np.zeros(shape).astype(dtype), np.zeros(targets))


@pytest.mark.parametrize("kind", [sf.PrivateClassifier, sf.PrivateRegressor])
@pytest.mark.parametrize("rows", [0, 1, 2])
@pytest.mark.parametrize("frame", [pd.DataFrame, pl.DataFrame, None])
@pytest.mark.parametrize("unit", ["example", "who"])
def test_few_examples_do_not_show(kind, rows, frame, unit):
    cells = {"a": np.zeros(rows), "b": np.ones(rows)}
    X = np.stack(list(cells.values()), 1) if frame is None else frame(cells)
    fitted = model(kind, privacy=private(unit=unit))
    fitted.fit(X, [[0]] * rows if rows else np.zeros((0, 1)), groups=["me"] * rows)
    assert np.isfinite(fitted.network_.parameters).all()
    assert fitted.predict(X).shape == (rows,)


# -- on disk --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("networks")
    X = pd.DataFrame({"a": np.linspace(0, 1, ROWS), "b": ["x", "y"] * (ROWS // 2)})
    bounds = {"a": (0, 1), "b": ["x", "y"]}
    model(hidden=(2,), bounds=bounds).fit(X, np.arange(ROWS) % 2).release(folder / "c", force=True)
    numbers = model(sf.PrivateRegressor, bounds=bounds).fit(X, np.linspace(0, 1, ROWS))
    numbers.release(folder / "r", force=True)
    return folder, X


def places(value, path=()):
    yield path
    inside = (
        value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    )
    for key, each in inside:
        yield from places(each, (*path, key))


JSON = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=3),
    st.just([]),
    st.just({}),
    st.just([1]),
    st.just(-1),
    st.just(10**30),
    st.just("tanh"),
    st.just([[1, 2]]),
    st.just({"kind": "columns"}),
)


@settings(FAST, max_examples=300)
@given(st.sampled_from("cr"), st.integers(0, 10**6), JSON)
def test_damaged_folders_are_refused_or_work(saved, tmp_path_factory, which, place, value):
    folder, X = saved
    copy = tmp_path_factory.mktemp("damaged") / "model"
    shutil.copytree(folder / which, copy)
    whole = json.loads((copy / "model.json").read_text("utf-8"))
    paths = [path for path in places(whole) if path]
    *way, last = paths[place % len(paths)]
    at = whole
    for step in way:
        at = at[step]
    at[last] = value
    with suppress(SfumatoError):
        loaded = sf.load(edit(copy, **whole))
        loaded.predict(X), loaded.sample_posterior(X), loaded.temperature_, loaded.dropout_
        assert loaded.guarantee_ is not None
    shutil.rmtree(copy.parent)
