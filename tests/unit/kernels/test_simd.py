"""Lines of vectors: cutting towards zero."""

import numpy as np
import pytest

from sfumato.kernels.numba.compiler import kernel
from sfumato.kernels.numba.simd import aligned_zeros, lanes, load, store, truncate


@kernel
def _cut(numbers):
    store(numbers, 0, truncate(load(numbers, 0)))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_truncate_cuts_towards_zero(dtype):
    edge = [1.7, -1.7, -0.2, 0.0, np.inf, -np.inf, np.nan, np.nextafter(dtype(2), dtype(0))]
    numbers = aligned_zeros((lanes(dtype),), dtype)
    numbers[: len(edge)] = edge
    expected = np.trunc(numbers)
    _cut(numbers)
    np.testing.assert_array_equal(numbers, expected)
    assert numbers[7] == 1


def test_truncate_leaves_large_numbers_as_they_are():
    numbers = aligned_zeros((8,), np.float64)
    numbers[:4] = 2.0**52 + 1, -(2.0**60), 1e300, 2.0**51 + 0.5
    _cut(numbers)
    assert numbers[:4].tolist() == [2.0**52 + 1, -(2.0**60), 1e300, 2.0**51]
