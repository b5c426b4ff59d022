"""Arrays on file or in memory as tensors: NumPy, SciPy sparse, MATLAB and FROSTT."""

from __future__ import annotations

import gzip
import zipfile
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, TextIO

import numpy as np
import pyarrow as pa
import scipy.io.matlab
import scipy.sparse
from numpy.typing import NDArray

from sfumato.data.tables import EntryCollector, Selection, reading
from sfumato.data.tensor import Mode, SparseTensor
from sfumato.errors import DataError, SettingError

_TNS_LINES = 1 << 20


def mode_names(order: int, names: Sequence[str] | None) -> tuple[str, ...]:
    """Names for the modes of an array: those given, else mode1, mode2 and so on."""
    if names is None:
        return tuple(f"mode{position + 1}" for position in range(order))
    if len(names) != order:
        raise SettingError(
            f"the array has {order} modes but {len(names)} names are given: {', '.join(names)}"
        )
    return tuple(names)


# -- in memory ----------------------------------------------------------------------------------


def from_dense(
    array: NDArray[Any], names: Sequence[str] | None, bounds: tuple[float, float] | None
) -> SparseTensor:
    """The entries of an array that are not NaN."""
    if array.dtype.kind not in "iuf":
        raise DataError(f"an array of numbers is needed, got one of type {array.dtype}")
    if array.ndim < 2:
        raise DataError(f"a tensor needs two modes or more, got an array of {array.ndim} dimensions")
    if array.dtype != np.float32:
        array = array.astype(np.float64, copy=False)
    observed = ~np.isnan(array)
    return _positional(np.nonzero(observed), array[observed], array.shape, names, bounds)


def from_sparse(
    matrix: Any, names: Sequence[str] | None, bounds: tuple[float, float] | None
) -> SparseTensor:
    """The stored entries of a SciPy sparse matrix or array, stored zeros among them."""
    entries = scipy.sparse.coo_array(matrix)
    if entries.dtype.kind not in "iuf":
        raise DataError(f"a matrix of numbers is needed, got one of type {entries.dtype}")
    return _positional(entries.coords, entries.data, entries.shape, names, bounds)


def _positional(
    coordinates: Sequence[NDArray[Any]],
    values: NDArray[Any],
    shape: Sequence[int],
    names: Sequence[str] | None,
    bounds: tuple[float, float] | None,
) -> SparseTensor:
    named = mode_names(len(shape), names)
    modes = tuple(Mode(name, int(size)) for name, size in zip(named, shape, strict=True))
    levels = [np.asarray(row, np.int32) for row in coordinates]
    return SparseTensor(np.stack(levels), values, modes, bounds)


# -- NumPy and MATLAB files ---------------------------------------------------------------------


def load_array(path: Path, kind: str, variable: str | None, selection: Selection) -> Any:
    """What a .npy, .npz or .mat file holds: a dense array, a sparse one, or an Arrow table."""
    if kind == "mat":
        return _load_mat(path, variable)
    with path.open("rb") as file:
        try:
            if kind == "npy":
                return np.load(file, allow_pickle=False)
            return _load_npz(file, variable, selection)
        except (DataError, SettingError):
            raise
        except (zipfile.BadZipFile, ValueError, OSError, EOFError) as error:
            raise DataError(f"{path} cannot be read: {error}") from error


def _load_npz(file: BinaryIO, variable: str | None, selection: Selection) -> Any:
    arrays = np.load(file, allow_pickle=False)
    if not isinstance(arrays, np.lib.npyio.NpzFile):
        raise DataError("not a .npz file, though it is named so")
    names = list(arrays.files)
    if variable is not None:
        if variable not in names:
            raise SettingError(f"there is no array {variable!r}; there are {', '.join(names)}")
        return arrays[variable]
    if {"format", "shape", "data"} <= set(names):
        file.seek(0)
        return scipy.sparse.load_npz(file)
    if len(names) == 1:
        return arrays[names[0]]
    return _table_of(arrays, selection.columns(names))


def _table_of(arrays: Any, names: Sequence[str]) -> pa.Table:
    columns = {name: arrays[name] for name in names}
    shapes = {name: column.shape for name, column in columns.items()}
    if any(len(shape) != 1 for shape in shapes.values()) or len(set(shapes.values())) > 1:
        listed = ", ".join(f"{name} {shape}" for name, shape in shapes.items())
        raise DataError(
            f"arrays that make a table have one dimension and the same length, got {listed}; "
            "choose one dense array with variable="
        )
    return pa.table(columns)


def _load_mat(path: Path, variable: str | None) -> Any:
    wanted = None if variable is None else [variable]
    try:
        content = scipy.io.loadmat(path, variable_names=wanted)
    except NotImplementedError as error:  # what SciPy raises for HDF5
        raise DataError(
            f"{path} is a MATLAB 7.3 (HDF5) file, which is not supported: save it in MATLAB with "
            "save(..., '-v7')"
        ) from error
    except (scipy.io.matlab.MatReadError, ValueError, TypeError, OSError, EOFError) as error:
        raise DataError(f"{path} cannot be read as a MATLAB file: {error}") from error
    found = {name: array for name, array in content.items() if _may_be_tensor(array, variable)}
    if len(found) == 1:
        return next(iter(found.values()))
    if variable is not None:
        raise SettingError(f"{path.name} has no numeric array {variable!r}")
    listed = ", ".join(f"{name} {array.shape}" for name, array in found.items()) or "none"
    raise SettingError(
        f"say which array of {path.name} to read with variable=; those of two or more modes: {listed}"
    )


def _may_be_tensor(array: Any, variable: str | None) -> bool:
    if scipy.sparse.issparse(array):
        return True
    if not isinstance(array, np.ndarray) or array.dtype.kind not in "iuf":
        return False
    # To MATLAB numbers and vectors are matrices too: they count only when asked for by name.
    return variable is not None or sum(size > 1 for size in array.shape) >= 2


# -- FROSTT files -------------------------------------------------------------------------------


def read_tns(
    path: Path, names: Sequence[str] | None, bounds: tuple[float, float] | None
) -> SparseTensor:
    """A FROSTT file: on each line the coordinates, counted from 1, and the value."""
    collector: EntryCollector | None = None
    for rows in _tns_blocks(path):
        if collector is None:
            named = mode_names(rows.shape[1] - 1, names)
            collector = EntryCollector(named, "value", {})
        coordinates = rows[:, :-1].astype(np.int64)
        if np.any(coordinates != rows[:, :-1]) or np.any(coordinates < 1):
            raise DataError(f"{path}: coordinates must be whole numbers from 1 upwards")
        values = pa.array(np.ascontiguousarray(rows[:, -1]))
        collector.add([pa.array(np.ascontiguousarray(row)) for row in coordinates.T], values)
    if collector is None:
        raise DataError(f"{path}: there are no entries")
    return collector.finish(bounds)


def _open_text(path: Path) -> TextIO:
    return gzip.open(path, "rt") if path.suffix.lower() == ".gz" else path.open("rt")


def _tns_blocks(path: Path) -> Iterator[NDArray[np.float64]]:
    columns = 0
    with reading(path), _open_text(path) as file:
        while lines := list(islice(file, _TNS_LINES)):
            entries = [line for line in lines if line.split("#", 1)[0].strip()]
            if not entries:
                continue
            try:
                rows = np.loadtxt(entries, comments="#", ndmin=2)
            except ValueError as error:
                raise DataError(f"{path} is not a FROSTT tensor: {error}") from error
            columns = columns or rows.shape[1]
            if columns < 2 or rows.shape[1] != columns:
                raise DataError(f"{path}: every line needs the same number of coordinates")
            yield rows
