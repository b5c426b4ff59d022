"""Answers of tensors that are there: dense in pieces, sparse on several threads, brought down to few."""

import numpy as np
import pytest

from sfumato.kernels.numba.power import compress_sparse
from sfumato.kernels.reference.power import reference_power
from sfumato.solvers.power import tensors as power_tensors
from sfumato.solvers.power.iteration import Query
from sfumato.solvers.power.tensors import DenseBlocks, DenseSymmetric, Sparse, answered, compress_dense


def drawn(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape)


def symmetric_tensor(size, order, components=3):
    vectors, letters = drawn(components, size), "abcde"[:order]
    return np.einsum(",".join(f"z{a}" for a in letters) + f"->{letters}", *[vectors] * order)


def test_the_reference_is_the_definition():
    tensor, u = drawn(2, 3, 4), [drawn(size, 2, seed=size) for size in (2, 3, 4)]
    first, second, third = reference_power(tensor, u)
    for column in range(2):
        a, b, c = (matrix[:, column] for matrix in u)
        np.testing.assert_allclose(first[:, column], tensor @ c @ b)
        np.testing.assert_allclose(second[:, column], a @ (tensor @ c))
        np.testing.assert_allclose(third[:, column], b @ np.tensordot(a, tensor, axes=1))


@pytest.mark.parametrize("piece", [1, 7, 40, 10**6])
@pytest.mark.parametrize("order", [3, 4])
def test_pieces_of_a_dense_tensor_add_up(order, piece, monkeypatch):
    monkeypatch.setattr(power_tensors, "_PIECE", piece)
    tensor, u = symmetric_tensor(5, order), drawn(5, 3)
    wanted = reference_power(tensor, [u] * order)[0]
    np.testing.assert_allclose(DenseSymmetric(tensor).power(u), wanted, rtol=1e-12)


@pytest.mark.parametrize("piece", [1, 7, 40, 10**6])
@pytest.mark.parametrize("shape", [(5, 3, 4), (5, 2, 3, 4), (2, 3, 2, 3, 2)])
def test_pieces_of_a_tensor_of_different_modes_add_up(shape, piece, monkeypatch):
    monkeypatch.setattr(power_tensors, "_PIECE", piece)
    tensor, u = drawn(*shape), [drawn(size, 3, seed=size) for size in shape]
    wanted = np.concatenate(reference_power(tensor, u))
    np.testing.assert_allclose(DenseBlocks(tensor).power(np.concatenate(u)), wanted, atol=1e-12)


def test_weights_are_the_whole_product():
    tensor, u = symmetric_tensor(5, 4), drawn(5, 3)
    wanted = np.einsum("abcd,az,bz,cz,dz->z", tensor, u, u, u, u)
    np.testing.assert_allclose(answered(DenseSymmetric(tensor), Query("weights", u)), wanted)
    other, v = drawn(3, 4, 2), drawn(9, 3)
    wanted = np.einsum("abc,az,bz,cz->z", other, v[:3], v[3:7], v[7:])
    np.testing.assert_allclose(answered(DenseBlocks(other), Query("weights", v)), wanted)


def test_a_dense_tensor_is_not_copied():
    tensor = symmetric_tensor(6, 3)
    source = DenseSymmetric(tensor)
    assert source._tensor is tensor


@pytest.mark.parametrize("symmetric", [True, False])
def test_threads_give_the_same(symmetric):
    """25,000 entries are enough for two threads."""
    rng, size = np.random.default_rng(0), 40
    coordinates = rng.integers(0, size, (3, 25_000)).astype(np.int32)
    values, u = rng.standard_normal(25_000), rng.standard_normal((size if symmetric else 3 * size, 4))
    one, two = (
        Sparse(coordinates, values, (size,) * 3, symmetric=symmetric, threads=threads)
        for threads in (1, 2)
    )
    assert (one._threads, two._threads) == (1, 2)
    np.testing.assert_allclose(two.power(u), one.power(u), rtol=1e-10, atol=1e-10)


def test_few_entries_get_one_thread():
    source = Sparse(np.zeros((3, 5), np.int32), np.ones(5), (2, 2, 2), symmetric=True, threads=8)
    assert source._threads == 1


def test_no_entries_answer_zero():
    source = Sparse(np.zeros((3, 0), np.int32), np.ones(0), (2, 2, 2), symmetric=True, threads=2)
    assert not source.power(drawn(2, 3)).any()


@pytest.mark.parametrize("order", [3, 4, 5])
def test_brought_down_to_fewer_dimensions(order):
    tensor, basis = symmetric_tensor(4, order), drawn(4, 2)
    letters, small = "abcde"[:order], "vwxyz"[:order]
    terms = ",".join(a + b for a, b in zip(letters, small, strict=True))
    wanted = np.einsum(f"{letters},{terms}->{small}", tensor, *[basis] * order, optimize=True)
    np.testing.assert_allclose(compress_dense(tensor, basis), wanted, rtol=1e-10)
    cells = np.stack(np.nonzero(tensor)).astype(np.int32)
    made = compress_sparse(cells, tensor[tuple(cells)], basis, order)
    np.testing.assert_allclose(made, wanted, rtol=1e-10)
