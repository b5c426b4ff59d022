"""Predicting for somebody who brings entries: from a fit, from a release, and what is refused."""

import json
from functools import cache

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
import pytest
from model_folders import as_of_format_1, edit

import sfumato as sf

BOUNDS = (1.0, 5.0)
ITEMS, DAYS = 30, 6


def planted(users=80, per_user=25, seed=0):
    """Ratings of a planted model of rank 2 with biases; every user has as many."""
    rng = np.random.default_rng(seed)
    shape = (users, ITEMS, DAYS)
    factors = [rng.normal(size=(n, 2)) for n in shape[:2]]
    biases = [0.5 * rng.normal(size=n) for n in shape[:2]]
    cells = np.concatenate(
        [
            [np.full(per_user, u), rng.permutation(ITEMS)[:per_user], rng.integers(DAYS, size=per_user)]
            for u in range(users)
        ],
        axis=1,
    )
    u, i, _ = cells
    values = 3 + 0.5 * np.sum(factors[0][u] * factors[1][i], axis=1) + biases[0][u] + biases[1][i]
    values = np.clip(values + 0.2 * rng.normal(size=values.shape), *BOUNDS)
    modes = (
        sf.Mode("user", users, np.array([f"u{number:02}" for number in range(users)], object)),
        sf.Mode("item", ITEMS),
        sf.Mode("day", DAYS, np.array([f"1998-04-0{day + 1}" for day in range(DAYS)], object), "day"),
    )
    return sf.SparseTensor(cells, values, modes, BOUNDS)


def renamed(tensor, prefix="new"):
    """The same entries, of users with other names."""
    users = tensor.modes[0]
    labels = np.array([f"{prefix} {label}" for label in users.labels], object)
    modes = (sf.Mode("user", users.size, labels), *tensor.modes[1:])
    return sf.SparseTensor(tensor.coordinates, tensor.values, modes, tensor.bounds)


DATA = planted()
KNOWN = DATA.take(DATA.coordinates[0] < 60)
KNOWN = sf.SparseTensor(
    KNOWN.coordinates,
    KNOWN.values,
    (sf.Mode("user", 60, DATA.modes[0].labels[:60]), *DATA.modes[1:]),
    BOUNDS,
)
NEW = DATA.take(DATA.coordinates[0] >= 60)
OWN, HELD_OUT = NEW.split(0.4, seed=0)


def table_of(tensor, value="rating", **more):
    columns = {
        mode.name: mode.labels_at(levels)
        for mode, levels in zip(tensor.modes, tensor.coordinates, strict=True)
    }
    return pa.table({**columns, value: tensor.values, **more})


@cache
def fitted(name="als", kind=sf.CP, dtype=None):
    return kind(2, solver=name, dtype=dtype).fit(KNOWN)


@cache
def private(method="bias", unit="user", local="user", kind=sf.CP):
    public = sf.Public(labels={"user": KNOWN.modes[0].labels, ...: True}, entries=KNOWN.n_entries)
    privacy = sf.Privacy(20, 1e-6, unit=unit, method=method, local=local, public=public, seed=3)
    return kind(2, privacy=privacy).fit(KNOWN)


def rmse(predicted, tensor):
    return float(np.sqrt(np.mean((predicted - tensor.values) ** 2)))


# -- what is predicted --------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["als", "sgd", "minibatch"])
@pytest.mark.parametrize("kind", [sf.CP, sf.Tucker])
def test_somebody_new_is_predicted_about_as_well_as_if_in_training(name, kind):
    model = fitted(name, kind)
    unknown = rmse(model.predict(HELD_OUT, unseen="bias"), HELD_OUT)
    own = rmse(model.predict(HELD_OUT, own=OWN), HELD_OUT)
    joint = kind(2, solver=name).fit(
        sf.SparseTensor(
            np.concatenate([KNOWN.coordinates, OWN.coordinates], axis=1),
            np.concatenate([KNOWN.values, OWN.values]),
            DATA.modes,
            BOUNDS,
        )
    )
    assert own < 0.7 * unknown
    assert own < 1.25 * rmse(joint.predict(HELD_OUT), HELD_OUT)


def test_bias_predictors_solve_a_bias():
    model = sf.Biases().fit(KNOWN)
    own = model.predict(HELD_OUT, own=OWN)
    assert rmse(own, HELD_OUT) < 0.95 * rmse(model.predict(HELD_OUT, unseen="bias"), HELD_OUT)


@pytest.mark.parametrize("method", ["bias", "gradient", "alternating"])
@pytest.mark.parametrize("unit", ["user", "entry"])
@pytest.mark.parametrize("kind", [sf.CP, sf.Tucker])
def test_a_release_and_own_entries_give_the_row_of_the_fit(method, unit, kind, tmp_path):
    model = private(method, unit, kind=kind)
    release = sf.load(model.release(tmp_path / "release", force=True))
    assert release.model_.shape[0] == 0
    expected = model.predict(KNOWN)
    np.testing.assert_allclose(release.predict(KNOWN, own=KNOWN), expected, rtol=1e-10)
    assert np.abs(release.predict(KNOWN) - expected).max() > 0.1
    anyone = renamed(KNOWN)  # in the release nobody is known: names do not matter
    np.testing.assert_allclose(release.predict(anyone, own=anyone), expected, rtol=1e-10)


@pytest.mark.parametrize(
    ("method", "unit"),
    [
        ("bias", "entry"),
        ("gradient", "user"),
        ("alternating", "entry"),
        ("input", "value"),
        ("output", "value"),
    ],
)
def test_private_models_that_release_all_rows_serve_newcomers_too(method, unit, tmp_path):
    model = private(method, unit, None)
    release = sf.load(model.release(tmp_path / "release", force=True))
    assert release.own_prior_ is None
    own = release.predict(HELD_OUT, own=OWN)
    np.testing.assert_array_equal(own, model.predict(HELD_OUT, own=OWN))
    assert rmse(own, HELD_OUT) < rmse(release.predict(HELD_OUT, unseen="bias"), HELD_OUT)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_saved_model_predicts_the_same(dtype, tmp_path):
    for model in (fitted(dtype=dtype), sf.Biases(dtype=dtype).fit(KNOWN)):
        again = sf.load(model.save(tmp_path / "model"))
        own = model.predict(HELD_OUT, own=OWN)
        assert own.dtype == dtype
        np.testing.assert_array_equal(again.predict(HELD_OUT, own=OWN), own)


def test_owners_do_not_touch_each_other_nor_the_model():
    model = fitted()
    before = model.model_.rows.copy(), model.modes_, KNOWN.values.copy()
    together = model.predict(HELD_OUT, own=OWN)
    for user in (60, 71):
        own, cells = (part.take(part.coordinates[0] == user) for part in (OWN, HELD_OUT))
        alone = model.predict(cells, own=own)
        np.testing.assert_allclose(alone, together[HELD_OUT.coordinates[0] == user], rtol=1e-9)
    np.testing.assert_array_equal(model.model_.rows, before[0])
    assert model.modes_ == before[1]
    # Those who bring nothing are predicted as ever.
    np.testing.assert_array_equal(model.predict(KNOWN, own=OWN), model.predict(KNOWN))


def test_somebody_known_may_bring_entries():
    model, user = fitted(), KNOWN.coordinates[0] == 4
    lifted = KNOWN.take(user).with_values(np.full(user.sum(), 5.0), BOUNDS)
    with_own = model.predict(KNOWN, own=lifted)
    assert with_own[user].mean() > model.predict(KNOWN)[user].mean() + 0.3
    np.testing.assert_array_equal(with_own[~user], model.predict(KNOWN)[~user])


def test_other_modes_have_owners_too():
    """Items 25 and on are new: their rows are solved from what users of the model gave them."""
    old = KNOWN.coordinates[1] < 25
    train = sf.SparseTensor(
        KNOWN.coordinates[:, old],
        KNOWN.values[old],
        (KNOWN.modes[0], sf.Mode("item", 25), KNOWN.modes[2]),
    )
    own, held_out = KNOWN.take(~old).split(0.3, seed=0)
    model = sf.CP(2).fit(train)
    found = model.predict(held_out, own=own, own_mode="item")
    assert rmse(found, held_out) < 0.7 * rmse(model.predict(held_out, unseen="bias"), held_out)


def test_tables_files_and_tensors_mean_the_same(tmp_path):
    model, path = fitted(), tmp_path / "own.csv"
    expected = model.predict(HELD_OUT, own=OWN)
    table = table_of(OWN)
    pacsv.write_csv(table, path)
    times = np.array([f"{day}T13:05:00" for day in OWN.modes[2].labels_at(OWN.coordinates[2])], object)
    binned = table.set_column(2, "day", [times])
    for own in (table, table.to_pandas(), binned, path, str(path)):
        np.testing.assert_array_equal(model.predict(HELD_OUT, own=own), expected)
    more = table_of(OWN, "stars", note=["x"] * OWN.n_entries)
    np.testing.assert_array_equal(model.predict(HELD_OUT, own=more, own_value="stars"), expected)
    one = HELD_OUT.take(np.arange(1))
    label = one.modes[0].label(one.coordinates[0, 0])
    cell = {
        "user": label,
        "item": int(one.coordinates[1, 0]),
        "day": one.modes[2].label(one.coordinates[2, 0]),
    }
    assert model.predict(own=OWN, **cell) == pytest.approx(expected[0])


def test_own_values_are_clipped_to_the_bounds():
    model = fitted()
    wild = OWN.with_values(np.where(OWN.values > 3, 1e6, OWN.values))
    clipped = OWN.with_values(np.where(OWN.values > 3, 5.0, OWN.values))
    np.testing.assert_array_equal(
        model.predict(HELD_OUT, own=wild), model.predict(HELD_OUT, own=clipped)
    )


def test_own_entries_with_unknown_labels_are_refused_or_left_out():
    model = fitted()
    stranger = table_of(OWN.take(np.arange(1))).set_column(1, "item", [["i-none"]])
    both = pa.concat_tables([table_of(OWN).cast(stranger.schema), stranger])
    with pytest.raises(sf.UnknownLabelError, match=r"own entries.*'i-none'"):
        model.predict(HELD_OUT, own=both)
    np.testing.assert_array_equal(
        model.predict(HELD_OUT, own=both, unseen="bias"), model.predict(HELD_OUT, own=OWN)
    )
    with pytest.raises(sf.UnknownLabelError, match="none of the own entries"):
        model.predict(HELD_OUT, own=stranger, unseen="bias")
    nobody = renamed(HELD_OUT, "other")
    with pytest.raises(sf.UnknownLabelError, match="'other u60'"):
        model.predict(nobody, own=OWN)


def test_cells_given_twice_are_merged_as_in_the_fit_or_count_twice_under_privacy():
    twice = sf.SparseTensor(
        np.repeat(OWN.coordinates, 2, axis=1), np.repeat(OWN.values, 2), OWN.modes, BOUNDS
    )
    with pytest.raises(sf.DataError, match="more than once"):
        fitted().predict(HELD_OUT, own=twice)
    merging = sf.CP(2, duplicates="mean").fit(KNOWN)
    np.testing.assert_allclose(
        merging.predict(HELD_OUT, own=twice), fitted().predict(HELD_OUT, own=OWN), rtol=1e-12
    )
    once, counted = (private().predict(HELD_OUT, own=own) for own in (OWN, twice))
    assert np.abs(once - counted).max() > 1e-3


# -- what is refused ----------------------------------------------------------------------------


def broken(change):
    return lambda: change(table_of(OWN))


REFUSED = {
    "no column of a mode": (broken(lambda t: t.drop_columns(["item"])), {}, "no column 'item'"),
    "no values": (broken(lambda t: t.drop_columns(["rating"])), {}, "column of values"),
    "several columns": (broken(lambda t: t.append_column("x", t["rating"])), {}, "own_value"),
    "no such value": (lambda: table_of(OWN), {"own_value": "stars"}, "no column 'stars'"),
    "no entries": (broken(lambda t: t.slice(0, 0)), {}, "no entries"),
    "not a number": (
        lambda: OWN.with_values(np.where(np.arange(OWN.n_entries) == 3, np.nan, OWN.values)),
        {},
        "1 of .* not finite",
    ),
    "text": (broken(lambda t: t.set_column(3, "rating", [["good"] * len(t)])), {}, "'good'"),
    "no such mode": (lambda: OWN, {"own_mode": "planet"}, "planet"),
    "modes of others": (lambda: sf.synthetic.cp((4, 4), 1, entries=9, seed=0).tensor, {}, "modes user"),
}


@pytest.mark.parametrize("what", list(REFUSED))
@pytest.mark.parametrize("model", [fitted, private])
def test_bad_own_entries_are_named(what, model):
    own, more, message = REFUSED[what]
    if what == "no such mode" and model is private:
        message = "rows of user stay with their owners"
    with pytest.raises((sf.SettingError, sf.DataError), match=message):
        model().predict(HELD_OUT, own=own(), **more)


def test_settings_of_own_entries_need_some():
    with pytest.raises(sf.SettingError, match="give own"):
        fitted().predict(KNOWN, own_mode="user")


def test_constants_are_the_same_for_everyone():
    with pytest.raises(sf.SettingError, match="same for everyone"):
        sf.Biases(sweeps=0).fit(KNOWN).predict(HELD_OUT, own=OWN)
    with pytest.raises(sf.SettingError, match="constant"):
        private("constant").predict(HELD_OUT, own=OWN)


# -- older folders ------------------------------------------------------------------------------


def without(folder, *keys):
    path = folder / "model.json"
    described = json.loads(path.read_text())
    described["notes"].pop("scatter", None)
    path.write_text(json.dumps({k: v for k, v in described.items() if k not in keys}))
    return as_of_format_1(folder)


@pytest.mark.filterwarnings("ignore::sfumato.OldFormatWarning")
def test_folders_of_earlier_versions_still_load(tmp_path):
    release = sf.load(without(private().release(tmp_path / "r", force=True), "own_prior"))
    np.testing.assert_array_equal(release.predict(KNOWN), sf.load(tmp_path / "r").predict(KNOWN))
    saved = sf.load(without(fitted().save(tmp_path / "m")))
    np.testing.assert_array_equal(saved.predict(KNOWN), fitted().predict(KNOWN))
    for old in (release, saved):
        with pytest.raises(sf.SettingError, match="earlier version"):
            old.predict(HELD_OUT, own=OWN)


def test_a_damaged_prior_is_named(tmp_path):
    folder = private().release(tmp_path / "r", force=True)
    described = json.loads((folder / "model.json").read_text())
    described["own_prior"]["scatter"] = -1
    edit(folder, own_prior=described["own_prior"])
    with pytest.raises(sf.ModelFileError, match="numbers above zero"):
        sf.load(folder)
