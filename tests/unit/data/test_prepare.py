"""Checks, duplicates and random parts of a tensor."""

import numpy as np
import pytest

from sfumato.data import prepare, synthetic
from sfumato.data.tensor import Mode, SparseTensor
from sfumato.errors import DataError, SettingError

NAMES = np.array(["ann", "bob", "cat"], dtype=object)


def table(users, items, values, bounds=None):
    modes = (Mode("user", 3, NAMES), Mode("item", 10))
    return SparseTensor(np.array([users, items]), np.asarray(values), modes, bounds)


@pytest.fixture(scope="module")
def many():
    return synthetic.cp((50, 40, 30), 2, entries=5000, modes=("user", "item", "day")).tensor


def cells(tensor):
    return set(zip(*tensor.coordinates.tolist(), strict=True))


def test_clip_sets_the_bounds():
    clipped = prepare.clip(table([0, 1, 2], [0, 1, 2], [0.0, 3.0, 9.0]), (1, 5))
    np.testing.assert_array_equal(clipped.values, [1, 3, 5])
    assert clipped.bounds == (1, 5)
    prepare.check_values(clipped)
    with pytest.raises(SettingError, match="lowest < highest"):
        prepare.clip(clipped, (5, 1))


def test_clipped_float32_values_are_within_bounds_that_float32_cannot_hold():
    values = np.array([0.0, 1.0, 0.2], np.float32)
    clipped = prepare.clip(table([0, 1, 2], [0, 1, 2], values), (0.05, 0.1))
    assert clipped.values.dtype == np.float32
    prepare.check_values(clipped)


def test_values_that_are_not_finite_are_refused():
    tensor = table([0, 1, 2], [4, 5, 6], [1.0, np.nan, np.inf])
    with pytest.raises(DataError, match=r"2 of 3 values are not finite .* nan at user 'bob', item"):
        prepare.check_values(tensor)


def test_values_outside_the_bounds_are_refused():
    tensor = table([0, 1, 2], [4, 5, 6], [1.0, 7.0, 0.5], (1, 5))
    with pytest.raises(DataError, match=r"2 of 3 .* \[1, 5\]; the first is 7 at .*'bob'.* Clip"):
        prepare.check_values(tensor)
    prepare.check_values(tensor.with_values(tensor.values))


def test_modes_with_one_level_are_refused():
    modes = (Mode("user", 2), Mode("item", 2), Mode("shop", 1))
    tensor = SparseTensor(np.array([[0, 1], [0, 1], [0, 0]]), np.ones(2), modes)
    with pytest.raises(DataError, match=r"mode 'shop' has only one level.*drop it"):
        prepare.check_modes(tensor)
    prepare.check_modes(table([0], [0], [1.0]))


@pytest.mark.parametrize(
    ("policy", "expected"), [("mean", [4, 2, 1]), ("last", [6, 2, 1]), ("sum", [12, 2, 1])]
)
def test_duplicates_are_merged(policy, expected):
    tensor = table([1, 2, 1, 0, 1], [0, 0, 0, 0, 0], [5.0, 1.0, 1.0, 2.0, 6.0])
    merged = prepare.merge_duplicates(tensor, policy)
    assert merged.n_entries == 3
    np.testing.assert_array_equal(merged.values[[1, 0, 2]], expected)


def test_duplicates_are_an_error_unless_a_policy_is_chosen():
    tensor = table([0, 1, 1, 2, 2, 2], [0, 3, 3, 4, 4, 4], np.ones(6))
    message = (
        "2 cells are given more than once; the first is user 'bob', item 3.*duplicates=.mean., .last"
    )
    with pytest.raises(DataError, match=message):
        prepare.merge_duplicates(tensor)
    with pytest.raises(SettingError, match="one of error, mean, last, sum, got 'first'"):
        prepare.merge_duplicates(tensor, "first")


def test_nothing_to_merge_gives_the_same_tensor(many):
    assert all(prepare.merge_duplicates(many, policy) is many for policy in prepare.POLICIES)


def test_a_mean_stays_within_the_bounds_in_spite_of_rounding():
    tensor = table([0, 0, 0], [0, 0, 0], [0.1, 0.1, 0.1], (0, 0.1))
    merged = prepare.merge_duplicates(tensor, "mean")
    assert merged.values[0] == 0.1
    prepare.check_values(merged)


def test_cap_keeps_at_most_so_many_and_all_of_smaller_levels(many):
    capped = prepare.cap(many, "user", 90, seed=3)
    np.testing.assert_array_equal(capped.counts("user"), np.minimum(many.counts("user"), 90))
    assert cells(capped) < cells(many)
    assert cells(capped) != cells(prepare.cap(many, "user", 90, seed=4))
    assert prepare.cap(many, "user", 10_000) is many
    with pytest.raises(SettingError, match="from 1 on, got 0"):
        prepare.cap(many, "user", 0)


def test_cap_is_uniform_also_among_duplicates():
    tensor = table([0] * 6, [0, 0, 0, 1, 2, 3], np.arange(6.0))
    chosen = np.concatenate([prepare.cap(tensor, "user", 2, seed).values for seed in range(3000)])
    share = np.bincount(chosen.astype(int), minlength=6) / 3000
    np.testing.assert_allclose(share, 2 / 6, atol=0.04)


def test_cap_does_not_depend_on_level_numbers():
    rng = np.random.default_rng(0)
    items = rng.permutation(200)[:50]

    def chosen(users, item_labels):
        modes = (
            Mode("user", len(users), np.array(users, dtype=object)),
            Mode("item", item_labels.size, item_labels),
        )
        levels = np.searchsorted(item_labels, items)
        bob = np.full(50, users.index("bob"))
        capped = prepare.cap(SparseTensor(np.array([bob, levels]), np.ones(50), modes), "user", 5)
        return set(item_labels[capped.coordinates[1]].tolist())

    assert chosen(["bob", "cat"], np.sort(items)) == chosen(["ann", "bob"], np.arange(200))


def test_split_by_entry(many):
    train, test = prepare.split(many, 0.3, seed=1)
    assert test.n_entries == 1500
    assert cells(train) | cells(test) == cells(many)
    assert not cells(train) & cells(test)
    assert cells(prepare.split(many, 0.3, seed=1)[1]) == cells(test)
    assert cells(prepare.split(many, 0.3, seed=2)[1]) != cells(test)


def test_split_by_unit_keeps_units_together():
    tensor = table([0, 0, 1, 1, 1], [0, 1, 0, 1, 2], np.ones(5))
    train, test = prepare.split(tensor, 0.5, by="user")
    assert np.count_nonzero(train.counts("user")) == 1
    assert np.count_nonzero(test.counts("user")) == 1
    assert not (train.counts("user") * test.counts("user")).any()


@pytest.mark.parametrize("share", [0, 1, -0.5, 1.5, float("nan")])
def test_split_needs_a_share(many, share):
    with pytest.raises(SettingError, match="between 0 and 1"):
        prepare.split(many, share)


def test_split_leaves_no_side_empty():
    tensor = table([0, 0, 1], [0, 1, 0], np.ones(3))
    with pytest.raises(SettingError, match=r"0\.1 of 3 entries leaves test empty"):
        prepare.split(tensor, 0.1)
    with pytest.raises(SettingError, match=r"0\.9 of 2 levels of mode 'user' leaves train empty"):
        prepare.split(tensor, 0.9, by="user")


def test_leave_out(many):
    train, test = prepare.leave_out(many, "user", 2, seed=5)
    np.testing.assert_array_equal(test.counts("user"), 2)
    assert train.n_entries + test.n_entries == many.n_entries
    tensor = table([0, 0, 0, 1, 1, 2], [0, 1, 2, 0, 1, 0], np.ones(6))
    train, test = prepare.leave_out(tensor, "user", 2)
    np.testing.assert_array_equal(test.counts("user"), [2, 0, 0])
    np.testing.assert_array_equal(train.counts("user"), [1, 2, 1])
    with pytest.raises(SettingError, match="no level of mode 'user' has more than 3"):
        prepare.leave_out(tensor, "user", 3)
    with pytest.raises(SettingError, match="k must be a whole number from 1 on"):
        prepare.leave_out(tensor, "user", 0)


def test_folds_are_even_and_checked_at_once(many):
    sizes = [test.n_entries for _, test in prepare.folds(many, 7)]
    assert len(sizes) == 7
    assert sum(sizes) == 5000
    assert max(sizes) - min(sizes) <= 1
    for k in (1, 5001):
        with pytest.raises(SettingError, match=f"between 2 and the 5000 entries, got {k}"):
            prepare.folds(many, k)
