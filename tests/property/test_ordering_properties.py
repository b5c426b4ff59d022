"""Counting sorts, held against NumPy's: the same bits for any number of threads."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sfumato.kernels.numba import ordering
from sfumato.kernels.numba.ordering import (
    row_starts,
    scatter,
    slots_by,
    slots_in_order,
    sort_entries,
)

examples = settings(max_examples=60, deadline=None, database=None)
SEEDS = st.integers(0, 2**32)
THREADS = st.integers(1, 4)


@pytest.fixture(autouse=True, scope="module")
def _pieces_of_few_entries():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ordering, "_WORTH_A_THREAD", 3)
        yield


@st.composite
def level_arrays(draw):
    size, n = draw(st.integers(1, 30)), draw(st.integers(0, 60))
    rng = np.random.default_rng(draw(SEEDS))
    return rng.integers(0, size, n).astype(np.int32), size


def inverse(order):
    slots = np.empty_like(order)
    slots[order] = np.arange(order.size)
    return slots


@examples
@given(level_arrays(), THREADS, st.sampled_from([np.int32, np.float32, np.float64]))
def test_entries_go_where_a_stable_sort_puts_them(given, threads, dtype):
    levels, size = given
    order = np.argsort(levels, kind="stable")
    slots = slots_by(levels, size, threads)
    np.testing.assert_array_equal(slots, inverse(order))
    numbers = np.arange(levels.size).astype(dtype)
    np.testing.assert_array_equal(scatter(numbers, slots, threads=threads), numbers[order])


@examples
@given(level_arrays(), SEEDS, st.booleans())
def test_entries_of_a_level_may_have_another_order(given, seed, in_place):
    levels, size = given
    order = np.random.default_rng(seed).permutation(levels.size).astype(np.int32)
    expected = inverse(order[np.argsort(levels[order], kind="stable")])
    starts = row_starts(levels, size)
    slots = slots_in_order(order, levels, starts, out=levels if in_place else None)
    np.testing.assert_array_equal(slots, expected)


@examples
@given(st.lists(st.integers(1, 6), min_size=1, max_size=4), st.integers(0, 60), SEEDS, THREADS)
def test_cells_are_sorted_by_all_modes_and_equal_ones_stay_in_order(shape, n, seed, threads):
    rng = np.random.default_rng(seed)
    coordinates = np.stack([rng.integers(0, size, n) for size in shape]).astype(np.int32)
    values = rng.normal(size=n)
    order = np.lexsort(coordinates[::-1])
    expected = coordinates[:, order], values[order]
    sort_entries(coordinates, values, tuple(shape), threads)
    np.testing.assert_array_equal(coordinates, expected[0])
    np.testing.assert_array_equal(values, expected[1])


def test_levels_that_are_far_more_than_entries_are_not_counted():
    coordinates = np.array([[2**30, 5, 5], [0, 2**30, 1]], np.int32)
    values = np.array([1.0, 2.0, 3.0])
    sort_entries(coordinates, values, (2**31 - 1, 2**31 - 1))
    assert coordinates.tolist() == [[5, 5, 2**30], [1, 2**30, 0]]
    assert values.tolist() == [3.0, 2.0, 1.0]
