"""Components: the tensor they make up, and how two sets of them are matched."""

from math import inf

import numpy as np
import pytest

import sfumato as sf
from sfumato.errors import DataError
from sfumato.models.components import Components


def unit_rows(shape, seed=0):
    drawn = np.random.default_rng(seed).standard_normal(shape)
    return drawn / np.linalg.norm(drawn, axis=1, keepdims=True)


def test_symmetric_components_make_a_tensor():
    vectors, weights = unit_rows((2, 4)), np.array([3.0, -1.0])
    found = Components(weights, (vectors,), order=4)
    assert found.symmetric
    assert len(found.factors) == 4
    wanted = np.einsum("k,ka,kb,kc,kd->abcd", weights, *[vectors] * 4)
    np.testing.assert_allclose(found.to_tensor(), wanted, rtol=1e-14)


def test_components_of_every_mode_make_a_tensor():
    vectors = tuple(unit_rows((2, size), size) for size in (3, 5, 4))
    found = Components(np.array([2.0, 0.5]), vectors, order=3)
    assert not found.symmetric
    assert found.factors is vectors
    wanted = np.einsum("k,ka,kb,kc->abc", found.weights, *vectors)
    np.testing.assert_allclose(found.to_tensor(), wanted, rtol=1e-14)


def test_matching_takes_out_order_signs_and_lengths():
    reference = unit_rows((4, 6))
    found = np.array([5.0, -1.0, 1.0, -0.1])[:, None] * reference[[2, 0, 3, 1]]
    order, signs, errors = sf.match_components(found, reference)
    np.testing.assert_array_equal(order, [1, 3, 0, 2])
    np.testing.assert_array_equal(signs[:, 0], [-1, -1, 1, 1])
    assert errors.max() < 1e-14
    np.testing.assert_allclose(
        signs * found[order] / np.linalg.norm(found[order], axis=1, keepdims=True), reference
    )


def test_errors_are_distances_of_unit_vectors():
    angle = 0.3
    found = np.array([[np.cos(angle), np.sin(angle)]])
    errors = sf.match_components(-found, np.array([[1.0, 0.0]])).errors
    np.testing.assert_allclose(errors, 2 * np.sin(angle / 2))


def test_matching_is_best_as_a_whole():
    """Greedily the first found would take the first of the reference, and leave a bad pair."""
    turned = lambda angle: [np.cos(angle), np.sin(angle)]  # noqa: E731
    reference = np.array([turned(0.0), turned(0.5)])
    found = np.array([turned(0.1), turned(-0.4)])  # both are nearest to the first
    np.testing.assert_array_equal(sf.match_components(found, reference).order, [1, 0])


def test_what_was_not_found_is_infinitely_far():
    reference = np.eye(4)
    order, _, errors = sf.match_components(reference[[3, 1]], reference)
    np.testing.assert_array_equal(order, [-1, 1, -1, 0])
    np.testing.assert_array_equal(errors, [inf, 0, inf, 0])


def test_what_was_found_besides_is_left_over():
    order, _, errors = sf.match_components(np.eye(4), np.eye(4)[[2, 0]])
    np.testing.assert_array_equal(order, [2, 0])
    assert not errors.any()


def test_a_component_that_vanished_matches_badly_and_is_no_error():
    found = np.array([[0.0, 0.0], [0.0, 2.0]])
    order, _, errors = sf.match_components(found, np.eye(2))
    np.testing.assert_array_equal(order, [0, 1])
    np.testing.assert_array_equal(errors, [1, 0])


def test_asymmetric_components_have_a_sign_for_every_mode():
    reference = [unit_rows((3, size), size) for size in (4, 5, 6)]
    flips = np.array([[1, -1, 1], [-1, 1, 1], [-1, -1, 1.0]])
    place = [2, 0, 1]
    found = [(matrix * flips[:, mode, None])[place] for mode, matrix in enumerate(reference)]
    order, signs, errors = sf.match_components(found, reference)
    np.testing.assert_array_equal(order, [1, 2, 0])
    np.testing.assert_array_equal(signs, flips)
    assert errors.max() < 1e-14


def test_asymmetric_errors_are_those_of_the_worst_mode():
    good, bad = np.eye(2), np.array([[1.0, 0.0], [np.sin(0.2), np.cos(0.2)]])
    errors = sf.match_components([good, bad, good], [good] * 3).errors
    np.testing.assert_allclose(errors, [0, 2 * np.sin(0.1)], atol=1e-15)


@pytest.mark.parametrize(
    ("found", "reference", "message"),
    [
        (np.eye(3), np.eye(4), "components of different sizes cannot be matched"),
        ([np.eye(3)] * 2, [np.eye(3)] * 3, "components of different sizes cannot be matched"),
        (np.ones(3), np.eye(3), r"rows of a matrix, got an array of shape \(3,\)"),
        (np.empty((0, 3)), np.eye(3), r"rows of a matrix, got an array of shape \(0, 3\)"),
    ],
)
def test_what_cannot_be_matched(found, reference, message):
    with pytest.raises(DataError, match=message):
        sf.match_components(found, reference)
