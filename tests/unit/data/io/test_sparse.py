"""Sparse matrices whose arrays do not agree are refused before SciPy follows them."""

import numpy as np
import pytest
import scipy.sparse

from sfumato.data.io.read import read
from sfumato.data.samples import open_samples
from sfumato.errors import DataError

FORMATS = ("csr", "csc", "bsr", "coo", "dia", "lil", "dok")


def matrix(format, kind="array"):
    dense = np.zeros((4, 6))
    dense[[0, 1, 2, 3], [1, 0, 5, 2]] = [1.0, 2.0, 3.0, 4.0]
    return getattr(scipy.sparse, f"csr_{kind}")(dense).asformat(format)


@pytest.mark.parametrize("kind", ["array", "matrix"])
@pytest.mark.parametrize("format", FORMATS)
def test_right_ones_of_every_format_are_read(format, kind):
    whole = matrix(format, kind)
    found = np.nan_to_num(read(whole).to_dense())
    np.testing.assert_array_equal(found, matrix("csr").toarray())
    batches = [batch.toarray() for batch in open_samples(whole).batches()]
    np.testing.assert_array_equal(np.concatenate(batches), matrix("csr").toarray())


def changed(format, name, change):
    wrong = matrix(format)
    setattr(wrong, name, change(getattr(wrong, name)))
    return wrong


def put(place, number):
    def change(array):
        new = array.astype(np.int64)
        new[place] = number
        return new

    return change


WRONG = [
    ("csr", "indptr", put(0, 1), "indptr"),
    ("csr", "indptr", put(2, 2**40), "indptr"),
    ("csr", "indptr", put(2, -5), "indptr"),
    ("csr", "indptr", put(1, 3), "indptr"),  # falls afterwards
    ("csr", "indptr", put(-1, 99), "indptr"),
    ("csr", "indptr", lambda a: a[:-1], "indptr"),
    ("csr", "indptr", lambda a: a.astype(float), "indptr"),
    ("csr", "indices", put(0, 6), "indices"),
    ("csr", "indices", put(0, -1), "indices"),
    ("csr", "indices", put(0, 2**32 + 1), "indices"),
    ("csr", "indices", lambda a: a.astype(object), "indices"),
    ("csr", "data", lambda a: a[:2], "data"),
    ("csr", "_shape", lambda a: (2**40, 6), "indptr"),
    ("csc", "indices", put(0, 4), "indices"),
    ("csc", "indptr", put(3, 2**31), "indptr"),
    ("bsr", "indices", put(0, 6), "indices"),
    ("bsr", "data", lambda a: a[:, :, 0], "data"),
    ("bsr", "_shape", lambda a: (4, 3), "indices"),
    ("coo", "coords", lambda a: (a[0], a[1].astype(np.int64) + 2**32), "coordinates"),
    ("coo", "coords", lambda a: (a[0][:1], a[1]), "coordinates"),
    ("coo", "coords", lambda a: (a[0],), "coordinates"),
    ("dia", "offsets", put(0, 2**40), "offsets"),
    ("dia", "offsets", np.zeros_like, "offsets"),
    ("dia", "data", lambda a: a[:1], "data"),
    ("lil", "rows", lambda a: a[:2], "lists"),
    ("lil", "rows", lambda a: np.array([[9], [0], [5], [2]], object), "lists|columns"),
]


@pytest.mark.parametrize(("format", "name", "change", "message"), WRONG)
def test_wrong_arrays_are_named(format, name, change, message):
    for use in (read, lambda wrong: list(open_samples(wrong).batches())):
        with pytest.raises(DataError, match=f"the sparse matrix is damaged: .*({message})"):
            use(changed(format, name, change))


def test_lists_and_keys_that_are_no_places():
    wrong = matrix("lil")
    wrong.rows[0] = [1.5]
    with pytest.raises(DataError, match="its columns"):
        read(wrong)
    wrong.rows[0] = [1, 2]
    with pytest.raises(DataError, match="its lists"):
        read(wrong)
    wrong = matrix("dok")
    wrong._dict[(0, 77)] = 1.0
    with pytest.raises(DataError, match="its keys"):
        read(wrong)


def test_room_for_more_entries_is_no_entry():
    roomy = matrix("csr")
    roomy.data, roomy.indices = np.append(roomy.data, 9.0), np.append(roomy.indices, 3)
    assert read(roomy).n_entries == 4
    assert len(roomy.data) == 5


def test_types_that_are_no_numbers():
    for dtype in (complex, bool):
        with pytest.raises(DataError, match="a matrix of numbers is needed"):
            read(matrix("csr").astype(dtype))


def test_more_levels_than_32_bits_number():
    row = np.array([5, 2**32 + 5])
    wide = scipy.sparse.coo_array((np.ones(2), (row, np.zeros(2, int))), shape=(2**33, 2))
    with pytest.raises(DataError, match=r"8,589,934,592 levels, and at most 2,147,483,647"):
        read(wide)


def test_few_entries_of_very_many_levels_cost_what_they_are():
    place = np.array([2**31 - 2, 0, 5])
    tensor = read(scipy.sparse.coo_array((np.arange(3.0), (place, place)), shape=(2**31 - 1,) * 2))
    assert tensor.coordinates[0].tolist() == [0, 5, 2**31 - 2]
    assert tensor.values.tolist() == [1, 2, 0]
