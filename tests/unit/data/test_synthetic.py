"""Planted data: the truth, the noise, and which cells are observed."""

import numpy as np
import pytest

from sfumato.data import prepare, synthetic
from sfumato.data.profile import Profile
from sfumato.data.tensor import Mode, SparseTensor
from sfumato.errors import SettingError


def grid(shape):
    return np.indices(shape).reshape(len(shape), -1)


def rmse(errors):
    return float(np.sqrt(np.mean(errors**2)))


def test_cp_truth_is_the_sum_of_products():
    planted = synthetic.cp((5, 6, 7), 3, missing=0.2, scale=2, shift=10, biases=0.5)
    dense = np.einsum("ir,jr,kr->ijk", *planted.factors)
    a, b, c = planted.biases
    dense = planted.shift + planted.scale * (dense + a[:, None, None] + b[:, None] + c)
    np.testing.assert_allclose(planted.truth(grid((5, 6, 7))), dense.ravel())
    assert planted.core is None


def test_tucker_truth_is_the_multilinear_product():
    planted = synthetic.tucker((5, 6, 7, 4), (2, 3, 1, 2), missing=0.2, modes=list("abcd"))
    dense = np.einsum("ip,jq,kr,ls,pqrs->ijkl", *planted.factors, planted.core) * planted.scale
    np.testing.assert_allclose(planted.truth(grid((5, 6, 7, 4))), dense.ravel())
    assert planted.tensor.mode_names == ("a", "b", "c", "d")


def test_truth_does_not_depend_on_the_chunks(monkeypatch):
    for planted in (
        synthetic.cp((9, 8), 3, missing=0.0, snr=None),
        synthetic.tucker((9, 8), (3, 2), missing=0.0, snr=np.inf),
    ):
        monkeypatch.setattr(synthetic, "CHUNK_NUMBERS", 7)
        np.testing.assert_allclose(planted.truth(grid((9, 8))), planted.tensor.values)
        monkeypatch.undo()


@pytest.mark.parametrize("snr", [0.5, 4.0])
def test_signal_to_noise_ratio_at_the_observed_cells(snr):
    planted = synthetic.cp((80, 60, 40), 3, entries=40_000, snr=snr)
    truth = planted.truth(planted.tensor.coordinates)
    noise = planted.tensor.values - truth
    assert truth.var() / noise.var() == pytest.approx(snr, rel=0.05)
    assert abs(np.corrcoef(truth, noise)[0, 1]) < 0.03


def test_scale_is_the_deviation_of_the_low_rank_part():
    planted = synthetic.cp((300, 300, 300), 40, entries=50_000, scale=2, shift=5, snr=None)
    assert planted.tensor.values.std() == pytest.approx(2, rel=0.2)
    assert planted.tensor.values.mean() == pytest.approx(5, abs=0.2)


@pytest.mark.parametrize("small_grid", [1, 1 << 22])
@pytest.mark.parametrize("zipf", [None, (1.0, 0.5, 0.0), {0: 1.0}])
def test_cells_are_distinct_and_as_many_as_asked_for(monkeypatch, small_grid, zipf):
    monkeypatch.setattr(synthetic, "SMALL_GRID", small_grid)
    tensor = synthetic.cp((60, 50, 40), 2, entries=30_000, zipf=zipf, seed=2).tensor
    assert tensor.n_entries == 30_000
    assert prepare.merge_duplicates(tensor) is tensor
    spread = tensor.counts("mode0").std() / tensor.counts("mode0").mean()
    assert (spread > 0.3) == (zipf is not None)


def test_missing_is_a_share_of_the_cells():
    assert synthetic.cp((10, 10, 10), 2, missing=0.9).tensor.n_entries == 100
    assert synthetic.cp((10, 10), 2, missing=0.0).tensor.n_entries == 100


def test_same_seed_same_data():
    def values(seed):
        return synthetic.cp((10, 10, 10), 2, entries=100, seed=seed).tensor.values

    np.testing.assert_array_equal(values(1), values(1))
    assert not np.array_equal(values(1), values(2))


def test_float32_throughout():
    planted = synthetic.tucker((10, 10, 10), (2, 2, 2), entries=100, biases=1, dtype=np.float32)
    assert planted.tensor.values.dtype == np.float32
    assert planted.truth(planted.tensor.coordinates).dtype == np.float32
    assert {factor.dtype for factor in planted.factors} == {np.dtype(np.float32)}


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({}, "either entries"),
        ({"entries": 5, "missing": 0.5}, "either entries"),
        ({"entries": 65}, "between 1 and the 64 cells, got 65"),
        ({"missing": 1.0}, "at least 0 and below 1"),
        ({"entries": 5, "snr": 0}, "snr must be a number above zero"),
        ({"entries": 5, "zipf": {3: 1.0}}, r"modes 0 to 2, got \[3\]"),
        ({"entries": 5, "zipf": (-1.0,)}, "number from 0 to 100"),
        ({"entries": 5, "modes": ("a", "b")}, "3 mode names are needed, got 2"),
        ({"entries": 5, "rank": 0}, "rank must be a whole number from 1 on"),
        ({"entries": 5, "shape": (4,)}, "two sizes or more"),
    ],
)
def test_impossible_settings_are_refused(setting, message):
    with pytest.raises(SettingError, match=message):
        synthetic.cp(**{"shape": (4, 4, 4), "rank": 2, **setting})


def test_exhausted_popular_cells_are_reported(monkeypatch):
    monkeypatch.setattr(synthetic, "SMALL_GRID", 1)
    with pytest.raises(SettingError, match="popular ones are used up"):
        synthetic.cp((100, 100), 2, entries=5000, zipf=(8.0, 8.0))


def test_coupled_tensors_share_factors_by_mode_name():
    planted = synthetic.coupled(
        {"ratings": ("user", "item", "day"), "features": ("item", "feature")},
        {"user": 20, "item": 15, "day": 6, "feature": 5},
        3,
        entries={"ratings": 400, "features": 50},
        zipf={"item": 1.0},
        snr=None,
    )
    ratings, features = planted["ratings"], planted["features"]
    assert ratings.factors[1] is features.factors[0]
    assert (ratings.tensor.shape, features.tensor.shape) == ((20, 15, 6), (15, 5))
    assert (ratings.tensor.n_entries, features.tensor.n_entries) == (400, 50)
    for one in planted.values():
        np.testing.assert_allclose(one.truth(one.tensor.coordinates), one.tensor.values)
    with pytest.raises(SettingError, match="no size is given for mode 'item'"):
        synthetic.coupled({"a": ("user", "item")}, {"user": 3}, 2, missing=0.5)


@pytest.mark.parametrize("kind", ["cp", "tucker"])
@pytest.mark.parametrize("scaling", ["magnitude", "minmax"])
def test_wei_data_has_the_printed_sizes_ranges_and_noise(kind, scaling):
    data = synthetic.wei(kind, scaling=scaling, seed=1)
    assert data.truth.shape == (20, 20, 20)
    assert (data.train.n_entries, data.test.n_entries) == (3200, 800)
    if scaling == "magnitude":
        assert np.abs(data.truth).max() == 1
        power = np.mean(data.truth**2)
    else:
        assert (data.truth.min(), data.truth.max()) == (0, 1)
        power = data.truth.var()
    noise = data.train.values - data.truth_at(data.train)
    assert noise.var() == pytest.approx(power, rel=0.1)
    both = np.concatenate([data.train.coordinates, data.test.coordinates], axis=1)
    assert np.unique(both, axis=1).shape[1] == 4000


def test_wei_truth_has_the_planted_rank_and_the_published_size():
    unfolded = synthetic.wei("tucker", order=4, size=6, missing=0.9).truth.reshape(6, -1)
    assert np.linalg.matrix_rank(unfolded) == 3
    draws = [synthetic.wei("cp", seed=seed) for seed in range(20)]
    # Predicting zero has RMSE 0.132 on this data, mean over 20 draws.
    assert np.mean([rmse(d.truth_at(d.test)) for d in draws]) == pytest.approx(0.132, abs=0.002)


def test_wei_refuses_other_kinds():
    with pytest.raises(SettingError, match="kind must be one of cp, tucker, got 'pca'"):
        synthetic.wei("pca")
    with pytest.raises(SettingError, match="scaling must be one of magnitude, minmax, got 'log'"):
        synthetic.wei("cp", scaling="log")


@pytest.fixture(scope="module")
def ratings():
    return synthetic.ratings_like()


def test_ratings_look_like_ratings(ratings):
    assert ratings.shape == (600, 400, 60)
    assert ratings.bounds == (1, 5)
    np.testing.assert_array_equal(np.unique(ratings.values), [1, 2, 3, 4, 5])
    assert [mode.label(1) for mode in ratings.modes] == ["u002", "i002", "1998-04-02"]
    assert ratings.modes[2].bin == "day"
    prepare.check_values(ratings)
    assert prepare.merge_duplicates(ratings) is ratings


def test_ratings_have_more_structure_than_biases(ratings):
    train, test = prepare.split(ratings, 0.2)
    residual = {True: train.values - train.values.mean(), False: test.values - train.values.mean()}
    constant = rmse(residual[False])
    for _ in range(5):
        for mode in ("user", "item"):
            m = train.mode_index(mode)
            sums = np.bincount(train.coordinates[m], residual[True], ratings.shape[m])
            bias = sums / (train.counts(mode) + 5)
            residual[True] = residual[True] - bias[train.coordinates[m]]
            residual[False] = residual[False] - bias[test.coordinates[m]]
    assert constant == pytest.approx(1.09, abs=0.03)
    assert rmse(residual[False]) == pytest.approx(0.96, abs=0.03)
    # A rank-3 matrix over users and items, taken from the residuals' crude averages, is enough
    # to see that more is there.
    assert _explained_by_matrix(train, residual[True], test, residual[False]) > 0.03


def _explained_by_matrix(train: SparseTensor, fit, test: SparseTensor, held_out):
    """Share of the held-out residuals' variance that a truncated SVD explains."""
    shape = train.shape[:2]
    cell = np.ravel_multi_index(tuple(train.coordinates[:2]), shape)
    sums = np.bincount(cell, fit, minlength=shape[0] * shape[1]).reshape(shape)
    left, values, right = np.linalg.svd(sums, full_matrices=False)
    low_rank = (left[:, :3] * values[:3]) @ right[:3]
    predicted = low_rank[test.coordinates[0], test.coordinates[1]]
    return np.corrcoef(predicted, held_out)[0, 1] ** 2


def test_typical_data_have_the_variances_of_their_profile():
    modes = (Mode("user", 300), Mode("item", 200), Mode("day", 30, bin="day"))
    profile = Profile(biases=0.3, interactions=0.2)
    planted = synthetic.typical(modes, 60_000, profile, half=6.0, seed=1)
    levels = planted.tensor.coordinates
    biases = [bias[here] for bias, here in zip(planted.biases, levels, strict=True)]
    for drawn, wanted in zip(biases, profile.bias_variances(modes), strict=True):
        assert np.var(drawn) == pytest.approx(wanted)
    assert profile.bias_variances(modes)[2] < 0.1 * 0.3
    products = planted.truth(levels) - np.sum(biases, axis=0)
    # Exactly so only where levels of different modes are drawn independently.
    assert np.var(products) == pytest.approx(0.2, rel=0.1)
    assert np.var(planted.tensor.values) == pytest.approx(1, rel=0.1)


def test_typical_data_are_cut_off_at_their_bounds_and_skewed():
    modes = (Mode("user", 300), Mode("item", 200))
    tensor = synthetic.typical(modes, 10_000, half=1.5).tensor
    assert tensor.bounds == (-1.5, 1.5)
    assert np.abs(tensor.values).max() == 1.5
    assert tensor.counts("item").max() > 4 * np.median(tensor.counts("item"))
