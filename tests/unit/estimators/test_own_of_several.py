"""Predicting for somebody who brings entries of several relations: from a fit and from its release."""

from functools import cache

import numpy as np
import pyarrow as pa
import pytest

import sfumato as sf

USERS, ITEMS, TAGS, COLD = 400, 30, 12, 40


def _tensor(values, known, second, bounds, prefix="u"):
    labels = np.array([f"{prefix}{n}" for n in range(values.shape[0])], object)
    modes = (sf.Mode("user", values.shape[0], labels), sf.Mode(second, values.shape[1]))
    return sf.SparseTensor(np.stack(np.nonzero(known)), values[known], modes, bounds)


@cache
def data():
    """Ratings and tags of the same tastes; the first users have rated nothing."""
    g = np.random.default_rng(0)
    users, items, tags = (g.standard_normal((n, 2)) for n in (USERS, ITEMS, TAGS))
    stars = np.clip(3 + 0.7 * users @ items.T + 0.3 * g.standard_normal((USERS, ITEMS)), 1, 5)
    likes = np.clip(users @ tags.T, -3, 3)
    known = g.random(stars.shape) < 0.4
    known[:COLD] = False
    ratings = _tensor(stars, known, "item", (1.0, 5.0))
    return ratings, _tensor(likes, g.random(likes.shape) < 0.8, "tag", (-3.0, 3.0)), stars


@cache
def fitted(unit="user", local="user", method="auto"):
    ratings, likes, _ = data()
    sizes = {"item": range(ITEMS), "tag": range(TAGS), "user": ratings.modes[0].labels}
    said = {"ratings": sf.Public(entries=4000), "likes": sf.Public(entries=4000)}
    privacy = sf.Privacy(
        10.0,
        1e-6,
        unit=unit,
        local=local,
        method=method,
        seed=0,
        public=sf.Public(labels=sizes, relations=said),
    )
    return sf.Coupled(privacy=privacy).fit({"ratings": ratings, "likes": likes})


def release_of(model, tmp_path):
    return sf.load(model.release(tmp_path / "release", force=True))


def as_table(tensor, value="value", **more):
    columns = {
        mode.name: mode.labels_at(levels)
        for mode, levels in zip(tensor.modes, tensor.coordinates, strict=True)
    }
    return pa.table({**columns, value: tensor.values, **more})


def of_users(tensor, first, end):
    return tensor.take(np.flatnonzero((tensor.coordinates[0] >= first) & (tensor.coordinates[0] < end)))


def renamed(tensor):
    users = tensor.modes[0]
    labels = np.array([f"new {label}" for label in users.labels], object)
    return sf.SparseTensor(
        tensor.coordinates,
        tensor.values,
        (sf.Mode("user", users.size, labels), tensor.modes[1]),
        tensor.bounds,
    )


@pytest.mark.parametrize("unit", ["user", "entry"])
@pytest.mark.parametrize("method", ["auto", "bias", "moments"])
def test_a_release_and_own_entries_give_the_rows_of_the_fit(unit, method, tmp_path):
    """Of those who have rated, and of those who have entries in the other relation alone."""
    ratings, likes, _ = data()
    model = fitted(unit, "user", method)
    release = release_of(model, tmp_path)
    own = {"ratings": ratings, "likes": likes}
    for name, tensor in own.items():
        expected = model.predict(name, tensor)
        assert np.allclose(release.predict(name, tensor, own=own), expected, atol=1e-9)
        fresh = release.predict(name, renamed(tensor), own={n: renamed(t) for n, t in own.items()})
        assert np.allclose(fresh, expected, atol=1e-9)
    cold = {"user": ["u3", "u7"], "item": [1, 2]}
    expected = model.predict("ratings", **cold)
    assert np.allclose(release.predict("ratings", own={"likes": likes}, **cold), expected, atol=1e-9)
    assert np.ptp(model.predict("ratings", user=[f"u{n}" for n in range(COLD)], item=1)) > 0.1


def test_one_table_is_of_the_relation_that_is_predicted(tmp_path):
    ratings, likes, _ = data()
    release = release_of(fitted(), tmp_path)
    mine = of_users(ratings, 50, 53)
    by_name = release.predict("ratings", mine, own={"ratings": mine})
    assert np.array_equal(release.predict("ratings", mine, own=mine), by_name)
    assert np.array_equal(release.predict("ratings", mine, own=as_table(mine)), by_name)
    also = release.predict("ratings", mine, own={"ratings": mine, "likes": of_users(likes, 50, 53)})
    assert not np.allclose(also, by_name)


def test_nobody_else_is_predicted_otherwise():
    ratings, likes, _ = data()
    model = fitted()
    own = {"ratings": renamed(of_users(ratings, 60, 70)), "likes": renamed(of_users(likes, 60, 70))}
    assert np.array_equal(model.predict("ratings", ratings, own=own), model.predict("ratings", ratings))


def test_who_brings_likes_is_predicted_better_than_by_biases(tmp_path):
    _, likes, stars = data()
    release = release_of(fitted(), tmp_path)
    cells = {
        "user": np.repeat([f"u{n}" for n in range(COLD)], ITEMS),
        "item": np.tile(range(ITEMS), COLD),
    }
    truth = stars[:COLD].ravel()
    errors = [
        np.sqrt(np.mean((release.predict("ratings", cells, **how) - truth) ** 2))
        for how in ({"own": {"likes": likes}}, {"unseen": "bias"})
    ]
    assert errors[0] < 0.8 * errors[1]


def test_values_are_named_and_labels_that_are_not_known_left_out(tmp_path):
    ratings, likes, _ = data()
    release = release_of(fitted(), tmp_path)
    mine, tags = of_users(ratings, 50, 51), of_users(likes, 50, 51)
    note = {"note": ["x"] * mine.n_entries}
    own = {"ratings": as_table(mine, "stars", **note), "likes": as_table(tags)}
    expected = release.predict("ratings", mine, own={"ratings": mine, "likes": tags})
    for value in ({"ratings": "stars"}, {"ratings": "stars", "likes": "value"}):
        assert np.array_equal(release.predict("ratings", mine, own=own, own_value=value), expected)
    with pytest.raises(sf.SettingError, match="own_value"):
        release.predict("ratings", mine, own=own)
    more = pa.table({"user": ["u50"], "item": ["unknown"], "stars": [5.0], "note": ["x"]})
    first = own["ratings"].set_column(1, "item", pa.array(map(str, mine.coordinates[1].tolist())))
    own["ratings"] = pa.concat_tables([first, more])
    with pytest.raises(sf.UnknownLabelError, match="among the own entries"):
        release.predict("ratings", mine, own=own, own_value={"ratings": "stars"})
    found = release.predict("ratings", mine, own=own, own_value={"ratings": "stars"}, unseen="bias")
    assert np.array_equal(found, expected)


@pytest.mark.parametrize(
    ("how", "named"),
    [
        ({"own": {"tags": None}}, "'tags'"),
        ({"own": {}}, "none of the own entries"),
        ({"own_value": "stars"}, "give own as well"),
        ({}, "stay with their owners"),
        ({"unseen": "guess"}, "unseen"),
    ],
)
def test_what_cannot_be_used_is_said(how, named, tmp_path):
    release = release_of(fitted(), tmp_path)
    with pytest.raises(sf.SettingError, match=named):
        release.predict("ratings", user=["u3"], item=[1], **how)


def test_whoever_brings_nothing_is_named(tmp_path):
    ratings, _, _ = data()
    release = release_of(fitted(), tmp_path)
    with pytest.raises(sf.SettingError, match="'u60'"):
        release.predict("ratings", user=["u50", "u60"], item=1, own=of_users(ratings, 50, 51))


def test_entries_that_tell_nothing_about_a_relation_are_no_help(tmp_path):
    """Likes were fitted first: what was rated says nothing about them."""
    ratings, _, _ = data()
    release = release_of(fitted(), tmp_path)
    with pytest.raises(sf.SettingError, match="none of the own entries"):
        release.predict("likes", user=["u50"], tag=[1], own={"ratings": ratings})


def test_models_without_own_rows_say_so():
    ratings, likes, _ = data()
    released = fitted("entry", None, "bias")
    with pytest.raises(sf.SettingError, match="no rows that own entries could solve"):
        released.predict("ratings", ratings, own=ratings)
    tables = {
        "ratings": ratings,
        "likes": likes.with_values(likes.values + 3, (0.0, 6.0)),
    }
    with pytest.raises(sf.SettingError, match="private fits"):
        sf.Coupled(2).fit(tables).predict("ratings", ratings, own=ratings)
