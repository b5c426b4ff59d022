"""Kernels of the power method against its readable form, and what holds whatever the tensor is."""

import numpy as np
import pytest
import scipy.sparse
from hypothesis import given, settings
from hypothesis import strategies as st

import sfumato as sf
from sfumato.data import symmetric
from sfumato.data.tensor import Mode, SparseTensor
from sfumato.fit.power import Online
from sfumato.kernels.numba.power import compress_sparse
from sfumato.kernels.reference.power import reference_power
from sfumato.solvers.power.iteration import PowerSettings, Query
from sfumato.solvers.power.moments import DocumentMoment, SampleMoment
from sfumato.solvers.power.tensors import DenseBlocks, DenseSymmetric, Sparse, compress_dense
from sfumato.solvers.protocol import Run

examples = settings(max_examples=25, deadline=None, database=None, derandomize=True)
ORDERS = [3, 4, 5]
seeds = st.integers(0, 2**32)


def scattered(rng, shape):
    """A tensor with some zeros, and the cells that are none."""
    tensor = np.where(rng.random(shape) < 0.5, rng.standard_normal(shape), 0.0)
    tensor.flat[0] = 1.0
    cells = np.stack(np.nonzero(tensor)).astype(np.int32)
    return tensor, cells, tensor[tuple(cells)]


def with_threads(source, threads):
    source._threads = threads  # however few entries there are
    return source


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("threads", [1, 2])
@examples
@given(seed=seeds, size=st.integers(1, 5), restarts=st.integers(1, 9))
def test_symmetric_tensors_answer_as_the_reference(order, threads, seed, size, restarts):
    rng = np.random.default_rng(seed)
    tensor = symmetric.symmetrise(scattered(rng, (size,) * order)[0])
    cells = np.stack(np.nonzero(tensor)).astype(np.int32)
    u = rng.standard_normal((size, restarts))
    wanted = reference_power(tensor, [u] * order)[0]
    np.testing.assert_allclose(DenseSymmetric(tensor).power(u), wanted, atol=1e-10)
    coo = Sparse(cells, tensor[tuple(cells)], tensor.shape, symmetric=True)
    np.testing.assert_allclose(with_threads(coo, threads).power(u), wanted, atol=1e-10)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("threads", [1, 2])
@examples
@given(seed=seeds, sizes=st.lists(st.integers(1, 4), min_size=5, max_size=5), restarts=st.integers(1, 9))
def test_blocks_answer_as_the_reference(order, threads, seed, sizes, restarts):
    rng, shape = np.random.default_rng(seed), tuple(sizes[:order])
    tensor, cells, values = scattered(rng, shape)
    u = [rng.standard_normal((size, restarts)) for size in shape]
    wanted, together = np.concatenate(reference_power(tensor, u)), np.concatenate(u)
    np.testing.assert_allclose(DenseBlocks(tensor).power(together), wanted, atol=1e-10)
    coo = Sparse(cells, values, shape, symmetric=False)
    np.testing.assert_allclose(with_threads(coo, threads).power(together), wanted, atol=1e-10)


@pytest.mark.parametrize("order", ORDERS)
@examples
@given(seed=seeds, size=st.integers(1, 4), columns=st.integers(1, 4))
def test_tensors_brought_down_as_by_einsum(order, seed, size, columns):
    rng = np.random.default_rng(seed)
    tensor, cells, values = scattered(rng, (size,) * order)
    basis = rng.standard_normal((size, columns))
    letters, small = "abcde"[:order], "vwxyz"[:order]
    terms = ",".join(a + b for a, b in zip(letters, small, strict=True))
    wanted = np.einsum(f"{letters},{terms}->{small}", tensor, *[basis] * order, optimize=True)
    np.testing.assert_allclose(compress_dense(tensor, basis), wanted, atol=1e-9)
    np.testing.assert_allclose(compress_sparse(cells, values, basis, order), wanted, atol=1e-9)


@pytest.mark.parametrize("kind", ["directions", "weights", "second moment"])
@examples
@given(seed=seeds, n=st.integers(1, 12), order=st.integers(3, 5), whitened=st.booleans())
def test_sparse_samples_answer_as_dense_ones(kind, seed, n, order, whitened):
    rng = np.random.default_rng(seed)
    samples = rng.poisson(1.0, (n, 4)).astype(float)
    whitened = whitened and kind != "second moment"
    basis = rng.standard_normal((4, 2)) if whitened else None
    query = Query(kind, rng.standard_normal((2 if whitened else 4, 3)), basis)
    for moment in (SampleMoment(order), SampleMoment(order, 1.5, 1.0), DocumentMoment()):
        dense, coo = (
            moment.summed(moment.prepared(make(samples), basis), query)
            for make in (np.asarray, scipy.sparse.csr_array)
        )
        np.testing.assert_allclose(coo, dense, atol=1e-8, rtol=1e-8)


@examples
@given(seed=seeds, cuts=st.lists(st.integers(0, 120), max_size=8), each=st.integers(1, 15))
def test_online_does_not_depend_on_how_a_stream_is_cut(seed, cuts, each):
    samples = np.random.default_rng(seed).exponential(size=(120, 3))
    whole, parts = (
        Online(PowerSettings((3,), 3, 2, 2, 3, average=True), Run(0), SampleMoment(), each)
        for _ in range(2)
    )
    whole.add([samples])
    for part in np.split(samples, sorted(cuts)):
        parts.add([part])
    assert parts.samples_seen == whole.samples_seen == 8 * each
    np.testing.assert_allclose(parts.state.found, whole.state.found, atol=1e-9)
    np.testing.assert_allclose(parts.state.weights, whole.state.weights, rtol=1e-9)


@examples
@given(seed=seeds, rank=st.integers(1, 4), data=st.data())
def test_matching_undoes_any_order_and_signs(seed, rank, data):
    rng = np.random.default_rng(seed)
    factors = [rng.standard_normal((rank, size)) for size in (5, 6)]
    place = data.draw(st.permutations(range(rank)))
    flips = rng.choice([-1.0, 1.0], (rank, 2))
    shuffled = [(f * flips[:, m, None])[place] for m, f in enumerate(factors)]
    order, signs, errors = sf.match_components(shuffled, factors)
    np.testing.assert_array_equal(np.array(place)[order], range(rank))
    np.testing.assert_array_equal(signs, flips)
    assert errors.max() < 1e-12


@pytest.mark.parametrize("order", [3, 4])
@examples
@given(seed=seeds, size=st.integers(1, 4))
def test_symmetrised_tensors_are_symmetric_and_answer_alike(order, seed, size):
    """T(u, ..., u) is all that a symmetric tensor keeps of another."""
    rng = np.random.default_rng(seed)
    tensor, cells, values = scattered(rng, (size,) * order)
    modes = tuple(Mode(f"m{i}", size) for i in range(order))
    dense = symmetric.symmetrise(tensor)
    symmetric.check_symmetric(dense)
    coo = symmetric.symmetrise(SparseTensor(cells, values, modes))
    again = np.zeros(tensor.shape)
    again[tuple(coo.coordinates)] = coo.values
    np.testing.assert_allclose(again, dense, atol=1e-14)
    u = rng.standard_normal((size, 2))
    for made in (dense, tensor):
        weights = (reference_power(made, [u] * order)[0] * u).sum(axis=0)
        np.testing.assert_allclose(weights, (reference_power(dense, [u] * order)[0] * u).sum(axis=0))
