"""Scalings and their inverses."""

import numpy as np
import pytest

from sfumato.data import synthetic
from sfumato.data.prepare import check_values
from sfumato.data.scaling import BiScale, Centre, MinMax
from sfumato.data.tensor import Mode, SparseTensor
from sfumato.errors import DataError, SettingError


@pytest.fixture(scope="module")
def ratings():
    return synthetic.ratings_like(40, 30, 5, 3000, seed=1)


def group_moments(tensor, *modes):
    """Mean and variance of each group of two entries or more."""
    shape = tuple(tensor.shape[m] for m in modes)
    ids = np.ravel_multi_index(tuple(tensor.coordinates[m] for m in modes), shape)
    counts = np.bincount(ids)
    large = counts > 1
    mean = np.bincount(ids, tensor.values)[large] / counts[large]
    return mean, np.bincount(ids, tensor.values**2)[large] / counts[large] - mean**2


def test_centre(ratings):
    scaling = Centre.fit(ratings)
    centred = scaling.transform(ratings)
    assert abs(centred.values.mean()) < 1e-12
    assert centred.bounds == (1 - scaling.mean, 5 - scaling.mean)
    back = scaling.inverse(centred.values, ratings.coordinates)
    np.testing.assert_allclose(back, ratings.values)
    with pytest.raises(SettingError, match="the mean must be a number"):
        Centre(float("nan"))


def test_min_max_from_public_constants(ratings):
    scaled = MinMax(0, 10, to=(-1, 1)).transform(ratings)
    np.testing.assert_allclose(scaled.values, ratings.values / 5 - 1)
    np.testing.assert_allclose(scaled.bounds, (-0.8, 0))
    assert MinMax(0, 10).transform(ratings.with_values(ratings.values)).bounds is None


def test_float32_values_stay_within_their_bounds(ratings):
    narrow = ratings.with_values(ratings.values.astype(np.float32) / 7, (1 / 7, 5 / 7))
    check_values(narrow)
    for scaling in (Centre(0.3), MinMax(0.1, 0.9), MinMax(1 / 7, 5 / 7, to=(-3, 0.7))):
        check_values(scaling.transform(narrow))


def test_min_max_from_the_data(ratings):
    scaling = MinMax.fit(ratings)
    assert (scaling.low, scaling.high, scaling.to) == (1, 5, (0, 1))
    scaled = scaling.transform(ratings)
    assert (scaled.values.min(), scaled.values.max()) == (0, 1)
    np.testing.assert_allclose(scaling.inverse([0, 0.25], ratings.coordinates[:, :2]), [1, 2])
    with pytest.raises(DataError, match="all values are 3"):
        MinMax.fit(ratings.with_values(np.full(ratings.n_entries, 3.0)))
    with pytest.raises(SettingError, match="lowest < highest"):
        MinMax(5, 1)


@pytest.mark.parametrize("slices", ["day", None])
def test_bi_scaling_standardises_rows_and_columns(ratings, slices):
    scaled = BiScale.fit(ratings, slices, iterations=60).transform(ratings)
    day = (2,) if slices else ()
    for mode in (0, 1) if slices else (0, 1, 2):
        mean, variance = group_moments(scaled, *day, mode)
        np.testing.assert_allclose(mean, 0, atol=1e-3)
        np.testing.assert_allclose(variance, 1, atol=1e-2)
    assert scaled.bounds is None


@pytest.mark.parametrize("slices", ["day", None])
def test_bi_scaling_can_be_undone(ratings, slices):
    scaling = BiScale.fit(ratings, slices)
    back = scaling.inverse(scaling.transform(ratings).values, ratings.coordinates)
    np.testing.assert_allclose(back, ratings.values)
    narrow = ratings.astype(np.float32)
    assert scaling.transform(narrow).values.dtype == np.float32
    assert scaling.inverse(narrow.values, narrow.coordinates).dtype == np.float32


def test_bi_scaling_of_a_matrix_finds_planted_centres_and_scales():
    rng = np.random.default_rng(0)
    row, column = rng.normal(size=(300, 1)), rng.normal(size=(1, 200))
    spread = np.exp(rng.normal(size=(300, 1)) / 2)
    dense = row + column + spread * rng.normal(size=(300, 200))
    cells = np.indices(dense.shape).reshape(2, -1)
    matrix = SparseTensor(cells, dense.ravel(), (Mode("row", 300), Mode("column", 200)))
    whole, rows, _ = BiScale.fit(matrix).groups
    assert np.corrcoef(rows.centres, row.ravel())[0, 1] > 0.97
    assert np.corrcoef(rows.scales, spread.ravel())[0, 1] > 0.97
    assert whole.centres[0] == pytest.approx(dense.mean())


def test_small_or_constant_groups_keep_scale_one():
    cells = np.array([[0, 0, 1, 2, 2], [0, 1, 0, 0, 1], [0, 0, 0, 0, 0]])
    modes = (Mode("user", 4), Mode("item", 2), Mode("day", 3))
    tensor = SparseTensor(cells, np.full(5, 2.0), modes)
    scaling = BiScale.fit(tensor, "day")
    assert all((groups.scales == 1).all() for groups in scaling.groups)
    np.testing.assert_array_equal(scaling.transform(tensor).values, 0)


def test_scales_stay_bounded_where_no_bi_scaling_exists():
    sparse = synthetic.cp((200, 300, 30), 3, entries=4000, modes=("user", "item", "day")).tensor
    sparse = sparse.with_values(np.rint(np.clip(sparse.values + 3, 1, 5)) * 1000)
    scaling = BiScale.fit(sparse, "day", iterations=200)
    assert scaling.groups[0].scales[0] > 500
    assert all(0.1 <= g.scales.min() <= g.scales.max() <= 10 for g in scaling.groups[1:])
    scaled = scaling.transform(sparse)
    assert np.abs(scaled.values).max() < 20
    np.testing.assert_allclose(scaling.inverse(scaled.values, sparse.coordinates), sparse.values)


def test_unseen_groups_go_back_by_what_is_known(ratings):
    kept = (ratings.coordinates[0] != 7) & (ratings.coordinates[2] != 3)
    train = ratings.take(kept)
    scaling = BiScale.fit(train, "day")
    whole, days, _, items = scaling.groups
    unseen_day, unseen_user = np.array([[0], [0], [3]]), np.array([[7], [0], [1]])
    assert scaling.inverse([0.0], unseen_day)[0] == pytest.approx(train.values.mean())
    assert scaling.inverse([1.0], unseen_day)[0] == pytest.approx(
        train.values.mean() + train.values.std()
    )
    known = sum(groups.at(unseen_user)[0][0] for groups in (whole, days, items))
    assert scaling.inverse([0.0], unseen_user)[0] == pytest.approx(known)


def test_impossible_bi_scaling_is_refused(ratings):
    with pytest.raises(SettingError, match="no mode 'week'"):
        BiScale.fit(ratings, "week")
    with pytest.raises(SettingError, match="iterations must be a whole number from 1 on"):
        BiScale.fit(ratings, "day", iterations=0)
    matrix = SparseTensor(ratings.coordinates[:2], ratings.values, ratings.modes[:2])
    with pytest.raises(SettingError, match="slices=None"):
        BiScale.fit(matrix, "user")
