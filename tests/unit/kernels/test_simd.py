"""Lines of vectors: cutting towards zero, and adding as whole numbers."""

import numpy as np

from sfumato.kernels.numba.compiler import kernel
from sfumato.kernels.numba.simd import add_whole, aligned_zeros, lanes, load


@kernel
def _add(sums, numbers):
    add_whole(sums, 0, load(numbers, 0))


def test_numbers_are_cut_towards_zero_and_added_as_whole_ones():
    edge = [1.7, -1.7, -0.2, 0.0, -0.0, 2.0**51 - 1, -(2.0**51) + 1, np.nextafter(2.0, 0.0)]
    numbers = aligned_zeros((lanes(np.float64),), np.float64)
    numbers[: len(edge)] = edge
    sums = aligned_zeros(numbers.shape, np.int64)
    sums[:] = 2**61
    _add(sums, numbers)
    assert (sums - 2**61).tolist() == [int(number) for number in numbers]
    _add(sums, numbers)
    assert (sums - 2**61).tolist() == [2 * int(number) for number in numbers]


def test_random_numbers_are_cut_as_python_cuts_them():
    rng = np.random.default_rng(0)
    numbers = aligned_zeros((lanes(np.float64),), np.float64)
    for _ in range(300):
        numbers[:] = rng.normal(size=numbers.size) * 2.0 ** rng.integers(-3, 48, numbers.size)
        sums = aligned_zeros(numbers.shape, np.int64)
        _add(sums, numbers)
        assert sums.tolist() == [int(number) for number in numbers]
