"""Whether a tensor is symmetric, and how one is made of one that is not."""

from itertools import permutations

import numpy as np
import pytest

from sfumato.data import symmetric
from sfumato.data.tensor import Mode, SparseTensor
from sfumato.errors import DataError


def sparse(dense, shape=None):
    """All cells that are not zero."""
    modes = tuple(Mode(f"m{i}", size) for i, size in enumerate(shape or dense.shape))
    return SparseTensor(np.stack(np.nonzero(dense)), dense[np.nonzero(dense)], modes)


def dense_of(coordinates, values, shape):
    dense = np.zeros(shape)
    np.add.at(dense, tuple(coordinates), values)
    return dense


def some(shape, seed=0, share=0.4):
    rng = np.random.default_rng(seed)
    return np.where(rng.random(shape) < share, rng.standard_normal(shape), 0.0)


def averaged(dense):
    return np.mean([dense.transpose(order) for order in permutations(range(dense.ndim))], axis=0)


@pytest.mark.parametrize("shape", [(4, 4, 4), (3, 3, 3, 3)])
def test_symmetrised_dense_and_sparse(shape):
    dense = some(shape)
    wanted = averaged(dense)
    np.testing.assert_allclose(symmetric.symmetrise(dense), wanted, atol=1e-15)
    made = symmetric.symmetrise(sparse(dense))
    np.testing.assert_allclose(dense_of(made.coordinates, made.values, shape), wanted, atol=1e-15)
    symmetric.check_symmetric(wanted)
    symmetric.check_symmetric(made)


def test_entries_of_one_cell_are_added_up():
    modes = tuple(Mode(name, 2) for name in "abc")
    cells = np.array([[1, 0, 1, 0], [0, 0, 0, 0], [1, 0, 1, 1]])
    coordinates, values = symmetric.merged(SparseTensor(cells, np.array([1.0, 2, 3, 4]), modes))
    np.testing.assert_array_equal(coordinates, [[0, 0, 1], [0, 0, 0], [0, 1, 1]])
    np.testing.assert_array_equal(values, [2, 4, 4])


def test_shapes_too_large_to_number_cells_are_merged_too():
    modes = tuple(Mode(name, 3_000_000) for name in "abc")  # 2.7e19 cells
    cells = np.array([[2_999_999] * 3, [0, 5, 5], [0, 5, 5]]).T
    coordinates, values = symmetric.merged(SparseTensor(cells, np.array([1.0, 2, 3]), modes))
    np.testing.assert_array_equal(values, [5, 1])
    np.testing.assert_array_equal(coordinates[:, 1], [2_999_999] * 3)


@pytest.mark.parametrize("make", [np.asarray, sparse], ids=["dense", "sparse"])
@pytest.mark.parametrize("alike", [(0, 1), (1, 2), (0, 2)])
def test_symmetric_in_two_modes_is_not_symmetric(make, alike):
    dense = some((4, 4, 4), share=1.0)
    half = dense + np.swapaxes(dense, *alike)
    with pytest.raises(DataError, match=r"not symmetric: \S+ at \(\d, \d, \d\), \S+ at \(\d, \d, \d\)"):
        symmetric.check_symmetric(make(half))


def test_the_cells_named_are_the_ones_that_differ():
    dense = np.zeros((3, 3, 3))
    dense[0, 1, 2] = 7.0
    for given in (dense, sparse(dense)):
        with pytest.raises(DataError, match=r"7 at \(0, 1, 2\), 0 at \(1, 0, 2\)|0 at .*, 7 at"):
            symmetric.check_symmetric(given)


def test_rounding_is_not_taken_for_asymmetry():
    dense = averaged(some((5, 5, 5), share=1.0)) * 1e9
    nudged = dense + 1e-10 * np.abs(dense).max() * some((5, 5, 5), 1, share=1.0)
    symmetric.check_symmetric(nudged)
    symmetric.check_symmetric(sparse(nudged))


@pytest.mark.parametrize("make", [np.asarray, sparse], ids=["dense", "sparse"])
def test_modes_of_different_sizes(make):
    tensor = make(some((3, 4, 3)))
    for check in (symmetric.check_symmetric, symmetric.symmetrise):
        with pytest.raises(DataError, match="modes of one size, got 3 x 4 x 3; decompose it as it is"):
            check(tensor)


def test_more_levels_than_can_be_numbered():
    modes = tuple(Mode(name, 3_000_000) for name in "abc")
    tensor = SparseTensor(np.zeros((3, 1), np.int32), np.ones(1), modes)
    with pytest.raises(DataError, match=r"order 3 may have up to 1,664,510 levels, got 3,000,000"):
        symmetric.check_symmetric(tensor)


def kept(values):
    return np.where(np.isfinite(values), values, 0.0)


@pytest.mark.parametrize("shape", [(4, 4, 4), (3, 3, 3, 3)])
def test_mirrored_from_ascending_cells_alone(shape):
    """Private tensors: what is in other cells, NaN included, changes nothing and says nothing."""
    dense = some(shape, share=0.7)
    dense[0, 1, 2] = np.nan
    wanted = np.zeros(shape)
    for cell in np.ndindex(shape):
        value = dense[tuple(sorted(cell))]
        wanted[cell] = value if np.isfinite(value) else 0.0
    other = dense.copy()
    ascending = np.array([list(cell) == sorted(cell) for cell in np.ndindex(shape)]).reshape(shape)
    other[~ascending] = np.inf
    for given in (dense, other):
        made = kept(symmetric.mirrored_array(given))
        np.testing.assert_array_equal(made, wanted)
        tensor = sparse(given)
        cells, values = symmetric.mirrored_cells(tensor.coordinates, tensor.values, tensor.shape)
        made = dense_of(cells, kept(values), shape)
        np.testing.assert_array_equal(made, wanted)


def test_values_out_of_range_are_cut_without_a_word():
    given = np.array([np.nan, np.inf, -np.inf, 1e200, -1e200, 3.0])
    np.testing.assert_array_equal(symmetric.whole_steps(given, 0.5, 100), [0, 0, 0, 100, -100, 6])


def test_nothing_mirrored_is_nothing():
    modes = tuple(Mode(name, 3) for name in "abc")
    tensor = SparseTensor(np.array([[2], [1], [0]]), np.ones(1), modes)  # descends
    coordinates, values = symmetric.mirrored_cells(tensor.coordinates, tensor.values, tensor.shape)
    assert coordinates.shape == (3, 0)
    assert not values.size
