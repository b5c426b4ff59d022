"""SparseTensor and Mode: what they keep, what they refuse, and in which words."""

import numpy as np
import pytest

from sfumato.data.tensor import Mode, SparseTensor, check_bounds, passing_times
from sfumato.errors import DataError, SettingError, UnknownLabelError

MODES = (
    Mode("user", 3, np.array(["ann", "bob", "7"], dtype=object)),
    Mode("item", 4, np.array([10, 20, 30, 40])),
    Mode("day", 2),
)
CELLS = np.array([[2, 0, 1, 0], [3, 1, 0, 1], [1, 0, 0, 1]])
VALUES = np.array([5.0, 1.0, 3.0, 2.0])


def table(cells=CELLS, values=VALUES, modes=MODES, bounds=None):
    return SparseTensor(cells, values, modes, bounds)


def test_entries_are_sorted_whatever_their_order():
    tensor = table()
    np.testing.assert_array_equal(tensor.coordinates, [[0, 0, 1, 2], [1, 1, 0, 3], [0, 1, 0, 1]])
    np.testing.assert_array_equal(tensor.values, [1, 2, 3, 5])
    for order in ([3, 2, 1, 0], [1, 3, 0, 2]):
        again = table(CELLS[:, order], VALUES[order])
        np.testing.assert_array_equal(again.coordinates, tensor.coordinates)
        np.testing.assert_array_equal(again.values, tensor.values)


@pytest.mark.parametrize("dtype", [np.int64, np.uint64])
def test_levels_are_checked_as_they_are_given(dtype):
    cells = CELLS.astype(dtype)
    cells[0, 0] = 2**32 + 2  # which in 32 bits is 2
    with pytest.raises(DataError, match="level 4294967298 is outside mode 'user'"):
        table(cells)
    for wrong in (CELLS.astype(float), CELLS.astype(object), CELLS.astype(bool)):
        with pytest.raises(DataError, match="coordinates must be whole numbers"):
            table(wrong)
    with pytest.raises(DataError, match=r"mode 'day' has 2,147,483,648 levels"):
        table(modes=(*MODES[:2], Mode("day", 2**31)))


@pytest.mark.parametrize("wrong", [[["ann"]], [["ann", "bob"], ["7"]], "ann", 7])
def test_labels_that_are_no_row_of_labels(wrong):
    for mode in (MODES[0], MODES[2]):
        with pytest.raises(DataError, match=f"labels of mode '{mode.name}'"):
            mode.find(wrong)


def test_duplicates_keep_the_order_they_came_in():
    tensor = table(np.array([[1, 0, 1], [0, 0, 0], [0, 0, 0]]), np.array([9.0, 5.0, 1.0]))
    np.testing.assert_array_equal(tensor.values, [5, 9, 1])


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize("in_order", [True, False])
def test_tensor_is_immutable_and_leaves_the_arrays_it_was_given_alone(dtype, in_order):
    order = np.lexsort(CELLS[::-1]) if in_order else slice(None)
    cells, values = CELLS[:, order].astype(dtype), VALUES[order].copy()
    tensor = table(cells, values)
    with pytest.raises(ValueError, match="read-only"):
        tensor.values[0] = 0
    with pytest.raises(ValueError, match="read-only"):
        tensor.coordinates[0, 0] = 0
    with pytest.raises(AttributeError):
        tensor.values = values
    values[:] = -1
    cells[:] = 0
    np.testing.assert_array_equal(tensor.values, [1, 2, 3, 5])
    assert tensor.coordinates.max() == 3


def test_what_it_says_about_itself():
    tensor = table(bounds=(1, 5))
    assert tensor.shape == (3, 4, 2)
    assert (tensor.order, tensor.n_entries, len(tensor)) == (3, 4, 4)
    assert tensor.mode_names == ("user", "item", "day")
    assert tensor.density == 4 / 24
    assert tensor.bounds == (1.0, 5.0)
    assert repr(tensor) == (
        "SparseTensor(user 3 x item 4 x day 2; 4 entries, density 0.167, float64, values in [1, 5])"
    )
    assert repr(table()).endswith("float64)")
    np.testing.assert_array_equal(tensor.counts("user"), [2, 1, 1])
    np.testing.assert_array_equal(tensor.counts("item"), [1, 2, 0, 1])


@pytest.mark.parametrize(
    ("given", "kept"), [(np.float32, np.float32), (np.int64, np.float64), (np.float16, np.float64)]
)
def test_values_are_float32_or_float64(given, kept):
    assert table(values=VALUES.astype(given)).values.dtype == kept


def test_take_by_mask_and_by_numbers():
    tensor = table(bounds=(1, 5))
    by_mask = tensor.take(np.array([True, False, False, True]))
    by_number = tensor.take(np.array([-1, 0]))
    for part in (by_mask, by_number):
        np.testing.assert_array_equal(part.values, [1, 5])
        np.testing.assert_array_equal(part.coordinates, tensor.coordinates[:, [0, 3]])
        assert part.modes == tensor.modes
        assert part.bounds == tensor.bounds
    with pytest.raises(IndexError):
        tensor.take(np.array([True]))


def test_with_values_and_astype():
    tensor = table(bounds=(1, 5))
    assert tensor.with_values([1, 2, 3, 4]).bounds is None
    assert tensor.with_values([1, 2, 3, 4], (0, 9)).bounds == (0, 9)
    assert tensor.astype(np.float32).values.dtype == np.float32
    assert tensor.astype(np.float32).bounds == (1, 5)
    with pytest.raises(DataError, match=r"4 values are needed, got shape \(2,\)"):
        tensor.with_values([1, 2])


def test_dense_array_has_nan_where_nothing_is_observed():
    dense = table().to_dense()
    assert dense.shape == (3, 4, 2)
    assert dense[2, 3, 1] == 5
    assert np.count_nonzero(~np.isnan(dense)) == 4


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"modes": MODES[:1], "cells": CELLS[:1]}, "two modes or more, got 1"),
        ({"modes": (MODES[0], MODES[1], MODES[1])}, "mode names must differ, got user, item, item"),
        ({"cells": CELLS[:2]}, r"shape \(3, entries\) and values \(entries,\), got \(2, 4\)"),
        ({"values": VALUES[:2]}, r"got \(3, 4\) and \(2,\)"),
        ({"values": VALUES[:, None]}, r"got \(3, 4\) and \(4, 1\)"),
        ({"cells": CELLS.astype(float)}, "whole numbers, got float64"),
        ({"cells": CELLS[:, :0], "values": VALUES[:0]}, "no entries: the table is empty"),
        ({"cells": CELLS - 1}, r"level -1 is outside mode 'user' \(0 to 2\)"),
        ({"cells": CELLS + 2**33}, r"level 8589934594 is outside mode 'user' \(0 to 2\)"),
    ],
)
def test_impossible_entries_are_refused(change, message):
    with pytest.raises(DataError, match=message):
        table(**change)


@pytest.mark.parametrize("bounds", [(5, 1), (1, 1), (0, np.inf), (np.nan, 1)])
def test_impossible_bounds_are_refused(bounds):
    with pytest.raises(SettingError, match="finite with lowest < highest"):
        table(bounds=bounds)
    with pytest.raises(SettingError, match="two numbers"):
        check_bounds((1, 2, 3))


def test_impossible_modes_are_refused():
    with pytest.raises(DataError, match="mode 'user' has 2 levels but 1 labels"):
        Mode("user", 2, np.array(["a"], dtype=object))
    with pytest.raises(DataError, match="mode 'user' has the same label twice"):
        Mode("user", 2, np.array(["a", "a"], dtype=object))
    with pytest.raises(SettingError, match=r"a time bin must be one of hour, day, .* got 'year'"):
        Mode("day", 2, bin="year")


def test_modes_are_equal_by_content():
    labels = np.array(["ann", "bob", "7"], dtype=object)
    assert Mode("user", 3, labels.copy()) == MODES[0]
    assert Mode("user", 3) != MODES[0]
    assert Mode("user", 3, labels[::-1]) != MODES[0]
    assert Mode("user", 3, labels, bin="day") != MODES[0]
    assert MODES[0] != "user"


@pytest.mark.parametrize(
    ("mode", "wanted", "levels"),
    [
        (MODES[0], ["bob", 7, "7", "eve", None], [1, 2, 2, -1, -1]),
        (MODES[1], [10, "20", 30.0, 30.5, 50], [0, 1, 2, -1, -1]),
        (MODES[1], np.array([40.0, np.nan, np.inf]), [3, -1, -1]),
        (MODES[1], ["10", "ten"], [0, -1]),
        (MODES[2], [0, 1, 2, -1], [0, 1, -1, -1]),
        (MODES[2], ["1", "x", None], [1, -1, -1]),
        (MODES[2], [0.5, 1.0], [-1, 1]),
    ],
)
def test_labels_are_found_as_numbers_or_text(mode, wanted, levels):
    wanted = wanted if isinstance(wanted, np.ndarray) else np.array(wanted, dtype=object)
    found = mode.find(wanted)
    assert found.dtype == np.int32
    np.testing.assert_array_equal(found, levels)


def test_labels_come_back_as_plain_values():
    assert [type(mode.label(0)) for mode in MODES] == [str, int, int]
    assert [mode.label(1) for mode in MODES] == ["bob", 20, 1]


def test_locate_and_its_errors():
    tensor = table()
    cells = tensor.locate({"day": [1, 0], "user": ["7", "ann"], "item": ["40", 20]})
    np.testing.assert_array_equal(cells, [[2, 0], [3, 1], [1, 0]])
    with pytest.raises(UnknownLabelError, match="'item' has no level 11, 12, 13 and 1 more: it"):
        tensor.locate({"user": ["ann"] * 4, "item": np.array([11, 12, 13, 14]), "day": [0] * 4})
    with pytest.raises(SettingError, match="no labels for mode 'day'; there is no mode 'week'"):
        tensor.locate({"user": [], "item": [], "week": []})
    with pytest.raises(DataError, match="different numbers of labels"):
        tensor.locate({"user": ["ann"], "item": [10, 20], "day": [0]})
    with pytest.raises(SettingError, match="no mode 'week'; the modes are user, item, day"):
        tensor.counts("week")


def test_split_and_folds_are_those_of_prepare():
    tensor = table()
    train, test = tensor.split(0.25, seed=1)
    assert (train.n_entries, test.n_entries) == (3, 1)
    assert sum(test.n_entries for _, test in tensor.folds(2)) == 4


@pytest.mark.parametrize(
    ("bins", "passing"),
    [
        ((None, None, "day"), (False, False, True)),
        ((None, "day"), (False, False)),
        (("hour", None, "day"), (False, False, False)),
        ((None, "hour", None, "day"), (False, True, False, True)),
    ],
)
def test_times_pass_beside_two_other_modes(bins, passing):
    modes = [Mode(f"m{number}", 3, bin=bin) for number, bin in enumerate(bins)]
    assert passing_times(modes) == passing
