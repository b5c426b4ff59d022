"""SciPy's sparse matrices, looked over before their arrays are trusted.

SciPy's compiled code follows ``indptr`` and ``indices`` wherever they point: numbers that point outside
their arrays read and write foreign memory. So nothing of SciPy's touches a matrix before its check.
"""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Integral
from typing import Any

import numpy as np

from sfumato.errors import DataError
from sfumato.types import Array


def checked(matrix: Any) -> Any:
    """The same matrix, once its arrays are found to agree with each other and with its shape."""
    format = str(getattr(matrix, "format", None))
    check = _CHECKS.get(format)
    if check is None:
        raise DataError(f"a sparse matrix of the format {format!r} is not known")
    try:
        shape = tuple(int(size) for size in matrix.shape)
        wrong = "its shape" if min(shape, default=0) < 0 else check(matrix, shape)
    except (AttributeError, TypeError, ValueError, IndexError, OverflowError) as error:
        wrong = f"its arrays ({error})"
    if wrong:
        raise DataError(
            f"the sparse matrix is damaged: {wrong} cannot be right. Make it anew from its entries, as "
            "scipy.sparse.coo_array((values, (rows, columns)), shape) does"
        )
    return matrix


def entries(matrix: Any) -> tuple[Sequence[Array], Array]:
    """Coordinates and values of the stored entries, stored zeros among them."""
    import scipy.sparse

    if hasattr(checked(matrix), "indptr") and int(matrix.indptr[-1]) < len(matrix.indices):
        matrix = matrix.copy()  # the caller's stays as it is
        matrix.prune()  # room for entries to come, which SciPy would take for entries
    made = scipy.sparse.coo_array(matrix)
    return made.coords, made.data


def _is_whole(array: Any, dimensions: int = 1) -> bool:
    return isinstance(array, np.ndarray) and array.ndim == dimensions and array.dtype.kind in "iu"


def _within(array: Array, low: int, high: int) -> bool:
    """Whether all numbers are at least ``low`` and below ``high``."""
    return not array.size or (int(array.min()) >= low and int(array.max()) < high)


def _pointers(matrix: Any, rows: int, columns: int) -> str:
    """What is wrong with rows (or columns, or blocks) that are stored one after another."""
    indptr, indices, data = matrix.indptr, matrix.indices, matrix.data
    if not _is_whole(indptr) or len(indptr) != rows + 1 or int(indptr[0]) != 0:
        return "indptr"
    if not _within(indptr, 0, len(indices) + 1) or bool(np.any(indptr[1:] < indptr[:-1])):
        return "indptr"
    if not _is_whole(indices) or not _within(indices, 0, columns):
        return "indices"
    return "" if isinstance(data, np.ndarray) and len(data) == len(indices) else "data"


def _rows(matrix: Any, shape: tuple[int, ...]) -> str:
    rows, columns = (1, *shape)[-2:]  # one of a single dimension is a row
    return _pointers(matrix, rows, columns) or _flat(matrix.data)


def _columns(matrix: Any, shape: tuple[int, ...]) -> str:
    return "its shape" if len(shape) != 2 else _pointers(matrix, *shape[::-1]) or _flat(matrix.data)


def _flat(data: Array) -> str:
    return "" if data.ndim == 1 else "data"


def _blocks(matrix: Any, shape: tuple[int, ...]) -> str:
    if len(shape) != 2 or matrix.data.ndim != 3:
        return "data"
    height, width = matrix.data.shape[1:]
    if not height or not width or shape[0] % height or shape[1] % width:
        return "its size of blocks"
    return _pointers(matrix, shape[0] // height, shape[1] // width)


def _coordinates(matrix: Any, shape: tuple[int, ...]) -> str:
    coords, data = matrix.coords, matrix.data
    if not isinstance(data, np.ndarray) or data.ndim != 1:
        return "data"
    right = len(coords) == len(shape) and all(
        _is_whole(row) and len(row) == len(data) and _within(row, 0, size)
        for row, size in zip(coords, shape, strict=True)
    )
    return "" if right else "its coordinates"


def _diagonals(matrix: Any, shape: tuple[int, ...]) -> str:
    offsets, data = matrix.offsets, matrix.data
    if len(shape) != 2 or not _is_whole(offsets):
        return "offsets"
    if not isinstance(data, np.ndarray) or data.ndim != 2 or len(data) != len(offsets):
        return "data"
    distinct = len(np.unique(offsets)) == len(offsets)
    return "" if distinct and _within(offsets, -shape[0] + 1, shape[1]) else "offsets"


def _lists(matrix: Any, shape: tuple[int, ...]) -> str:
    rows, data = matrix.rows, matrix.data
    if len(shape) != 2 or not all(isinstance(each, np.ndarray) for each in (rows, data)):
        return "its lists"
    if rows.shape != (shape[0],) or data.shape != (shape[0],):
        return "its lists"
    for row, values in zip(rows, data, strict=True):
        if type(row) is not list or type(values) is not list or len(row) != len(values):
            return "its lists"
        columns = np.asarray(row)
        if row and not (_is_whole(columns) and _within(columns, 0, shape[1])):
            return "its columns"
    return ""


def _dictionary(matrix: Any, shape: tuple[int, ...]) -> str:
    for key in list(matrix.keys()):  # a matrix itself gives its rows
        places = key if isinstance(key, tuple) else (key,)
        if len(places) != len(shape):
            return "its keys"
        if not all(isinstance(place, Integral) for place in places):
            return "its keys"
        if any(not 0 <= place < size for place, size in zip(places, shape, strict=True)):
            return "its keys"
    return ""


_CHECKS = {
    "csr": _rows,
    "csc": _columns,
    "bsr": _blocks,
    "coo": _coordinates,
    "dia": _diagonals,
    "lil": _lists,
    "dok": _dictionary,
}
