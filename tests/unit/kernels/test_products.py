"""Products of matrices: the same wherever a row lies, and exact where they are of whole numbers."""

import numpy as np
import pytest

from sfumato.kernels.numba.products import COLUMNS, ROWS, add_exact_sums, product

SHAPES = [(1, 1, 1), (ROWS + 1, 5, COLUMNS + 1), (300, 70, 33), (97, 3, 2 * COLUMNS)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("kind", [np.int16, np.float32])
def test_a_rows_product_is_a_chain_in_the_order_of_its_columns(shape, kind):
    rows, depth, width = shape
    generator = np.random.default_rng(sum(shape))
    a = generator.integers(-(2**14), 2**14, (rows, depth)).astype(kind)
    weights = generator.standard_normal((depth, width)).astype(np.float32)
    chain = np.zeros((rows, width), np.float32)
    for column in range(depth):  # a fused step: exact in double precision, rounded once
        exact = a[:, column, None].astype(np.float64) * weights[column].astype(np.float64)
        chain = (exact + chain).astype(np.float32)
    found = product(a, weights)
    assert np.mean(found == chain) > 0.999  # a step may lie halfway between two numbers, rounded twice
    np.testing.assert_allclose(found, chain, rtol=1e-4, atol=1e-1)


@pytest.mark.parametrize("rows", [1, 5, ROWS, 95, 97, 193, 1000])
def test_what_is_made_of_a_row_does_not_depend_on_where_it_lies(rows):
    generator = np.random.default_rng(rows)
    a = generator.standard_normal((rows, 131)).astype(np.float32)
    weights = generator.standard_normal((131, 77)).astype(np.float32)
    whole, order = product(a, weights), generator.permutation(rows)
    assert (product(a[order], weights) == whole[order]).all()
    some = order[: rows // 2 + 1]
    assert (product(a[some], weights) == whole[some]).all()


def test_what_is_not_finite_stays_in_its_row():
    a = np.ones((40, 9), np.float32)
    a[7], a[8] = np.nan, np.inf
    found = product(a, np.ones((9, 50), np.float32))
    assert (np.delete(found, [7, 8], axis=0) == 9).all()


def exact_sums(rows, whole, before=0):
    out = np.full((rows.shape[1], whole.shape[1]), before, np.int64)
    add_exact_sums(rows, whole, out)
    return out


@pytest.mark.parametrize("rows", [1, 2, 127, 128, 129, 1000])
@pytest.mark.parametrize("largest", [1, 2**7, 2**14, 2**15 - 1, 2**15, 2**20])
@pytest.mark.parametrize("most", [1, 2**9 - 1, 2**9, 2**15 - 1, 2**15, 2**22])
def test_sums_are_exact_up_to_the_ends_of_digits(rows, largest, most):
    """All numbers as large as they may be and of one sign, and any numbers up to there."""
    generator = np.random.default_rng(rows + largest + most)
    kind = np.int16 if largest < 2**15 else np.float32
    whole = generator.integers(-most, most + 1, (rows, 19)).astype(np.float32)
    a = generator.integers(-largest, largest + 1, (rows, 7)).astype(kind)
    for left, right in (
        (a, whole),
        (np.full_like(a, largest), np.full_like(whole, most)),
        (np.full_like(a, -largest), np.full_like(whole, most)),
        (np.full_like(a, largest), np.full_like(whole, -most)),
    ):
        expected = left.astype(np.int64).T @ right.astype(np.int64)
        np.testing.assert_array_equal(exact_sums(left, right), expected)


def test_the_least_short_number_is_none_too_small():
    a, whole = np.full((256, 3), -(2**15), np.int16), np.full((256, 20), 2**22, np.float32)
    assert (exact_sums(a, whole) == -(2**15) * 2**22 * 256).all()


@pytest.mark.parametrize("largest", [1, 2**20])
def test_sums_are_added_to_what_is_there(largest):
    a, whole = np.full((5, 7), largest, np.float32), np.ones((5, COLUMNS + 3), np.float32)
    assert (exact_sums(a, whole, before=2**60) == 2**60 + 5 * largest).all()
