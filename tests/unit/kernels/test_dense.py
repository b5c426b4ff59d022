"""Products of matrices of networks on processors: exact where privacy rests on it."""

import numpy as np
import pytest

from sfumato.kernels.grid import INPUT_STEP, MOST_INPUT
from sfumato.kernels.numba import dense
from sfumato.kernels.numba.dense import _add_exact_product, _product

WIDTHS = [1, 10, 16, 17, 40]  # on both sides of what is narrow


@pytest.mark.parametrize("kind", [np.int16, np.float32])
@pytest.mark.parametrize("rows", [1, 7, 64])
@pytest.mark.parametrize("width", WIDTHS)
def test_sums_of_products_are_exact(width, rows, kind):
    """Against whole numbers of any length; products come to 2^36, as long as one clip."""
    generator = np.random.default_rng(width + rows)
    a = generator.integers(-(2**15), 2**15, (rows, 700)).astype(kind)
    d = generator.integers(-(2**21), 2**21, (rows, width)).astype(np.float64)
    whole = a.astype(np.int64).astype(object).T @ d.astype(np.int64).astype(object)
    sums = np.ones((700, width), np.int64)
    _add_exact_product(a, d, sums)
    np.testing.assert_array_equal(sums, 1 + whole.astype(np.int64))


@pytest.mark.parametrize("width", WIDTHS)
def test_products_are_those_of_matrices(width):
    generator = np.random.default_rng(width)
    a = generator.integers(-(2**14), 2**14, (33, 700)).astype(np.int16)
    weights = generator.standard_normal((700, width)).astype(np.float32)
    expected = a.astype(np.float64) @ weights
    np.testing.assert_allclose(_product(a, weights), expected, rtol=0, atol=1e-5 * 2**14 * 27)


@pytest.mark.parametrize("activation", ["relu", "tanh"])
def test_what_goes_into_a_hidden_layer_is_whole_and_finite(activation):
    values = np.array([[np.nan, np.inf, -np.inf, 3e38, -3e38, 0.3, -0.3, 0.0, 1e-9]], np.float32)
    whole = dense._bent(values, activation)
    assert (whole == np.rint(whole)).all()
    assert (abs(whole) <= MOST_INPUT).all()
    exact = values.astype(np.float64)
    expected = np.maximum(exact, 0) if activation == "relu" else np.tanh(exact)
    steps = np.nan_to_num(expected / 3 / INPUT_STEP, posinf=MOST_INPUT)
    np.testing.assert_allclose(whole, np.clip(steps, -MOST_INPUT, MOST_INPUT), atol=1)
    assert whole[0, 0] == 0
