"""Whitening: from the tensor itself or by a given matrix, and the way back."""

import numpy as np
import pytest

from sfumato.errors import DataError
from sfumato.solvers.power.iteration import RankError, whiten
from sfumato.solvers.power.whitening import _soft_least, positive_moment, whiten_dense, whiten_sparse

RNG_SEED = 0


def slanted(size, rank, seed=RNG_SEED):
    """Unit vectors that are far from orthogonal."""
    vectors = np.random.default_rng(seed).standard_normal((rank, size)) + 1.0
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def tensor_of(weights, vectors, order):
    letters = "abcde"[:order]
    terms = ",".join(f"z{a}" for a in letters)
    return np.einsum(f"z,{terms}->{letters}", weights, *[vectors] * order, optimize=True)


def as_sparse(tensor):
    cells = np.stack(np.nonzero(tensor)).astype(np.int32)
    return cells, tensor[tuple(cells)], tensor.shape


WEIGHTS = {3: np.array([2.0, -1.0, 0.5]), 4: np.array([2.0, 1.0, 0.5]), 5: np.array([-2.0, 1.0, 0.5])}


@pytest.mark.parametrize("order", [3, 4, 5])
def test_the_moment_found_is_positive_and_made_of_the_components(order):
    vectors = slanted(3, 3)
    moment = positive_moment(tensor_of(WEIGHTS[order], vectors, order))
    shares = np.linalg.solve(vectors.T, np.linalg.solve(vectors.T, moment).T)
    np.testing.assert_allclose(shares, np.diag(np.diag(shares)), atol=1e-9)
    assert np.diag(shares).min() > 0


@pytest.mark.parametrize("order", [3, 4, 5])
@pytest.mark.parametrize("kind", ["dense", "sparse"])
@pytest.mark.parametrize("given", [False, True])
def test_whitened_components_are_orthogonal_and_come_back(order, kind, given):
    vectors, weights = slanted(5, 3), WEIGHTS[order]
    tensor = tensor_of(weights, vectors, order)
    moment = np.einsum("z,za,zb->ab", [0.2, 1.0, 3.0], vectors, vectors) if given else None
    if kind == "dense":
        whitened = whiten_dense(tensor, 3, moment)
    else:
        whitened = whiten_sparse(*as_sparse(tensor), 3, moment)
    inside = vectors @ whitened.whitening.basis
    cosines = inside @ inside.T / np.outer(*[np.linalg.norm(inside, axis=1)] * 2)
    np.testing.assert_allclose(cosines, np.eye(3), atol=1e-9)
    np.testing.assert_allclose(whitened.tensor, tensor_of(weights, inside, order), atol=1e-9)
    np.testing.assert_allclose(inside @ whitened.whitening.inverse.T, vectors, atol=1e-9)


@pytest.mark.parametrize("sharpness", [0.5, 5.0, 50.0])
def test_the_slope_of_the_smooth_least_eigenvalue(sharpness):
    tensor = tensor_of(WEIGHTS[3], slanted(3, 3), 3)
    towards = np.array([0.3, -1.2, 0.8])
    value, slope = _soft_least(towards, tensor, sharpness)
    step = 1e-6
    numeric = [
        (
            _soft_least(towards + step * e, tensor, sharpness)[0]
            - _soft_least(towards - step * e, tensor, sharpness)[0]
        )
        / (2 * step)
        for e in np.eye(3)
    ]
    np.testing.assert_allclose(slope, numeric, atol=1e-7)
    least = np.linalg.eigvalsh(tensor @ (towards / np.linalg.norm(towards)))[0]
    assert least - np.log(3) / sharpness <= -value <= least + 1e-12


def test_the_whitening_of_a_matrix():
    root = np.random.default_rng(0).standard_normal((4, 4))
    moment = root @ root.T
    basis, inverse = (lambda w: (w.basis, w.inverse))(whiten(moment))
    np.testing.assert_allclose(basis.T @ moment @ basis, np.eye(4), atol=1e-9)
    np.testing.assert_allclose(inverse @ inverse.T, moment, atol=1e-9)
    np.testing.assert_allclose(inverse.T @ basis, np.eye(4), atol=1e-9)


def test_eigenvalues_that_are_noise_are_lifted():
    whitening = whiten(np.diag([4.0, -0.3, 0.01]), floor=1.0)
    lengths = np.linalg.norm(whitening.basis, axis=0)
    np.testing.assert_allclose(np.sort(lengths), [0.5, 1.0, 1.0])


@pytest.mark.parametrize("kind", ["dense", "sparse"])
@pytest.mark.parametrize("size", [5, 40])
def test_more_components_than_the_tensor_has(kind, size):
    tensor = tensor_of(np.ones(2), slanted(size, 2), 3)
    with pytest.raises(RankError, match="the tensor has rank 2, below the 3 components"):
        whiten_dense(tensor, 3) if kind == "dense" else whiten_sparse(*as_sparse(tensor), 3)


def test_a_second_moment_of_too_low_a_rank():
    vectors = slanted(5, 2)
    tensor = tensor_of(np.ones(2), vectors, 3)
    with pytest.raises(RankError, match="the second moment has rank 2, below the 3 components"):
        whiten_dense(tensor, 3, vectors.T @ vectors)
    with pytest.raises(RankError, match="no positive eigenvalue"):
        whiten_dense(tensor, 3, -np.eye(5))


def test_negative_weights_at_an_even_order_need_a_second_moment():
    vectors = slanted(5, 2)
    tensor = tensor_of(np.array([1.0, -1.0]), vectors, 4)
    with pytest.raises(DataError, match=r"negative weights .* give a second moment \(whiten=...\)"):
        whiten_dense(tensor, 2)
    whitened = whiten_dense(tensor, 2, vectors.T @ vectors)
    assert whitened.tensor.shape == (2,) * 4
