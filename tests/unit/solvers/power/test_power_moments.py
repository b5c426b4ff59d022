"""Moments of samples and of documents against their definitions, and what one sample can move."""

from itertools import permutations

import numpy as np
import pytest
import scipy.sparse

from sfumato.errors import DataError, SettingError
from sfumato.solvers.power.iteration import Query
from sfumato.solvers.power.moments import (
    DocumentMoment,
    SampleMoment,
    check_sums,
    make_moment,
    raised,
    shortened,
)


def drawn(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape)


def asked(moment, batch, kind, directions, basis=None):
    query = Query(kind, directions, basis)
    return moment.summed(moment.prepared(batch, basis), query)


def contracted(tensor, directions, kind):
    """T(I, u, ..., u) or T(u, ..., u), a column at a time."""
    columns = []
    for u in directions.T:
        part = tensor
        for _ in range(tensor.ndim - (kind == "directions")):
            part = part @ u
        columns.append(part)
    return np.stack(columns, axis=-1)


# -- samples --------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["directions", "weights"])
@pytest.mark.parametrize("order", [3, 4, 5])
@pytest.mark.parametrize("make", [np.asarray, scipy.sparse.csr_array], ids=["dense", "sparse"])
@pytest.mark.parametrize("basis", [None, drawn(4, 3, seed=5)], ids=["plain", "whitened"])
def test_samples_sum_to_their_moment(make, order, kind, basis):
    samples = np.where(drawn(9, 4) > 0, drawn(9, 4, seed=1), 0.0)
    used = samples if basis is None else samples @ basis
    letters = "abcde"[:order]
    terms = ",".join(f"n{a}" for a in letters)
    tensor = np.einsum(f"{terms}->{letters}", *[used] * order)
    directions = drawn(used.shape[1], 2, seed=2)
    got = asked(SampleMoment(order), make(samples), kind, directions, basis)
    np.testing.assert_allclose(got, contracted(tensor, directions, kind), rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("make", [np.asarray, scipy.sparse.csr_array], ids=["dense", "sparse"])
def test_samples_second_moment(make):
    samples, directions = drawn(9, 4), drawn(4, 2)
    got = asked(SampleMoment(), make(samples), "second moment", directions)
    np.testing.assert_allclose(got, samples.T @ samples @ directions)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("kind", ["directions", "weights", "second moment"])
def test_the_callers_samples_are_left_alone(dtype, kind):
    samples, directions = drawn(9, 4).astype(dtype), drawn(4, 2)
    before = samples.copy(), directions.copy()
    asked(SampleMoment(), samples, kind, directions)
    asked(SampleMoment(norm=0.5), samples, kind, directions)
    np.testing.assert_array_equal(samples, before[0])
    np.testing.assert_array_equal(directions, before[1])


@pytest.mark.parametrize("kind", ["directions", "weights", "second moment"])
@pytest.mark.parametrize("order", [3, 4])
def test_one_sample_moves_no_more_than_the_bound(kind, order):
    rng = np.random.default_rng(0)
    moment = SampleMoment(order, norm=2.0)
    for size, columns in [(3, 1), (3, 2), (6, 4)]:
        directions = rng.standard_normal((size, columns))
        if kind == "second moment":
            directions = np.linalg.qr(directions).Q
        directions /= np.linalg.norm(directions, axis=0)
        bound = moment.sensitivity(Query(kind, directions))
        samples = np.vstack([10 * rng.standard_normal((300, size)), 10 * directions.T])
        moved = [np.linalg.norm(asked(moment, row[None], kind, directions)) for row in samples]
        assert max(moved) <= bound * (1 + 1e-12)
        if columns == 1:  # a sample along the direction attains it
            np.testing.assert_allclose(max(moved), bound)


def test_whitened_samples_are_shortened_again():
    basis = np.diag([100.0, 1.0])
    moment = SampleMoment(3, norm=1.0, whitened_norm=2.0)
    rows = moment.prepared(np.array([[5.0, 0.0], [0.0, 0.5]]), basis)
    np.testing.assert_allclose(rows, [[2.0, 0.0], [0.0, 0.5]])


# -- shortened ------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [np.asarray, scipy.sparse.csr_array], ids=["dense", "sparse"])
def test_long_samples_are_shortened_and_short_ones_kept(make):
    rows = shortened(make(np.array([[3.0, 4.0], [0.3, 0.4], [0.0, 0.0]])), 1.0)
    rows = rows.toarray() if scipy.sparse.issparse(rows) else rows
    np.testing.assert_allclose(rows, [[0.6, 0.8], [0.3, 0.4], [0.0, 0.0]])


@pytest.mark.parametrize("make", [np.asarray, scipy.sparse.csr_array], ids=["dense", "sparse"])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_samples_that_are_not_finite_are_zero(make, bad):
    rows = shortened(make(np.array([[bad, 1.0], [1.0, 0.0]])), 2.0)
    rows = rows.toarray() if scipy.sparse.issparse(rows) else rows
    np.testing.assert_allclose(rows, [[0.0, 0.0], [1.0, 0.0]])


@pytest.mark.parametrize("size", [1e-300, 1e160, 1e308])
@pytest.mark.parametrize("make", [np.asarray, scipy.sparse.csr_array], ids=["dense", "sparse"])
def test_no_sample_is_longer_than_its_norm_however_large(make, size):
    rows = shortened(make(size * np.array([[1.0, 1.0, 0.5]])), 2.0)
    rows = rows.toarray() if scipy.sparse.issparse(rows) else rows
    assert np.isfinite(rows).all()
    assert np.linalg.norm(rows) <= 2.0 * (1 + 1e-15)


# -- documents ------------------------------------------------------------------------------------

DOCUMENTS = np.array(
    [[2, 0, 1, 0], [1, 1, 1, 1], [0, 4, 0, 0], [1, 0, 2, 3], [2, 0, 0, 0], [0, 0, 0, 0]]
)


def brute_force(documents, choices):
    """The average over ordered choices of different words of a document, summed over documents."""
    size = documents.shape[1]
    total = np.zeros((size,) * choices)
    for counts in documents:
        words = np.repeat(np.arange(size), counts)
        if len(words) < 3:
            continue
        places = list(permutations(range(len(words)), choices))
        for chosen in places:
            total[tuple(words[list(chosen)])] += 1 / len(places)
    return total


@pytest.mark.parametrize("kind", ["directions", "weights"])
@pytest.mark.parametrize("make", [np.asarray, scipy.sparse.csr_array], ids=["dense", "sparse"])
def test_documents_sum_over_triples_of_words(make, kind):
    tensor, directions = brute_force(DOCUMENTS, 3), drawn(4, 3)
    got = asked(DocumentMoment(), make(DOCUMENTS), kind, directions)
    np.testing.assert_allclose(got, contracted(tensor, directions, kind), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("kind", ["directions", "weights"])
def test_whitened_documents(kind):
    basis, directions = drawn(4, 2, seed=7), drawn(2, 3)
    tensor = np.einsum("abc,ax,by,cz->xyz", brute_force(DOCUMENTS, 3), basis, basis, basis)
    got = asked(DocumentMoment(), DOCUMENTS, kind, directions, basis)
    np.testing.assert_allclose(got, contracted(tensor, directions, kind), rtol=1e-12, atol=1e-12)


def test_documents_sum_over_pairs_of_words():
    directions = drawn(4, 2)
    got = asked(DocumentMoment(), DOCUMENTS, "second moment", directions)
    np.testing.assert_allclose(got, brute_force(DOCUMENTS, 2) @ directions, rtol=1e-12)


def test_documents_of_fewer_than_three_words_do_not_count():
    moment = DocumentMoment()
    assert moment.counted(moment.prepared(DOCUMENTS, None)) == 4


@pytest.mark.parametrize(
    ("kind", "basis"),
    [
        ("second moment", None),
        ("directions", None),
        ("weights", None),
        ("directions", drawn(4, 2, seed=7)),
        ("weights", drawn(4, 2, seed=7)),
    ],
)
def test_one_document_moves_no_more_than_the_bound(kind, basis):
    moment, directions = DocumentMoment(private=True), drawn(4 if basis is None else 2, 3)
    directions /= np.linalg.norm(directions, axis=0)
    documents = np.random.default_rng(0).poisson(0.8, (300, 4))
    documents = np.vstack([documents, 3 * np.eye(4)])
    moved = [np.linalg.norm(asked(moment, row[None], kind, directions, basis)) for row in documents]
    bound = moment.sensitivity(Query(kind, directions, basis))
    assert max(moved) <= bound * (1 + 1e-12)
    if kind == "weights":  # a document of one word alone attains it
        np.testing.assert_allclose(max(moved), bound)


@pytest.mark.parametrize("bad", [-1.0, 0.5, np.nan, np.inf])
def test_counts_are_whole_numbers(bad):
    with pytest.raises(DataError, match=f"rows of word counts, whole numbers from 0 on; got {bad:g}"):
        DocumentMoment().prepared(np.array([[1.0, bad, 3.0]]), None)


@pytest.mark.parametrize("bad", [-1.0, np.nan, np.inf, -np.inf])
def test_private_counts_that_are_none_are_zero_without_a_word(bad):
    prepared = DocumentMoment(private=True).prepared(np.array([[2.0, bad, 3.7]]), None)
    np.testing.assert_array_equal(prepared.toarray(), [[2.0, 0.0, 3.0]])


def test_private_counts_however_large_stay_within_the_bound():
    moment, directions = DocumentMoment(private=True), np.eye(3)[:, :1]
    moved = asked(moment, np.array([[1e200, 1.0, 1e300]]), "directions", directions)
    assert np.linalg.norm(moved) <= moment.sensitivity(Query("directions", directions))


# -- the rest -------------------------------------------------------------------------------------


@pytest.mark.parametrize("power", [2, 3, 4])
def test_powers(power):
    values = drawn(3, 2)
    np.testing.assert_allclose(raised(values.copy(), power), values**power)


@pytest.mark.parametrize("make", [np.asarray, scipy.sparse.csr_array], ids=["dense", "sparse"])
def test_the_sample_that_is_not_finite_is_named(make):
    batch = np.zeros((4, 3))
    batch[2, 1] = batch[3, 0] = np.nan
    with pytest.raises(DataError, match=r"sample 102 .* holds NaN or infinity, at feature 1: leave"):
        check_sums(np.array([np.nan]), make(batch), 100)


def test_samples_too_large():
    with pytest.raises(DataError, match=r"among samples 100 to 103 .* too large to be multiplied"):
        check_sums(np.array([np.inf]), np.ones((4, 3)), 100)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"name": "words", "order": 3}, "moment must be one of samples, documents, got 'words'"),
        ({"name": "documents", "order": 4}, "moment of order 3 here, got order 4"),
        ({"name": "documents", "order": 3, "norm": 1.0}, "documents need no bound"),
        ({"name": "samples", "order": 3, "private": True}, "say how long a sample may be"),
    ],
)
def test_moments_that_there_are_not(arguments, message):
    with pytest.raises(SettingError, match=message):
        make_moment(**arguments)
