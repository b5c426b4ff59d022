"""Arrays on file or in memory as tensors: NumPy, SciPy sparse, MATLAB and FROSTT."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv
from numpy.typing import NDArray

from sfumato.data.io import apart, npy, sparse
from sfumato.data.io.files import open_text
from sfumato.data.io.labels import first_refused
from sfumato.data.io.tables import EntryCollector, RowEncoder, Selection
from sfumato.data.tensor import Mode, SparseTensor, check_levels
from sfumato.errors import DataError, SettingError
from sfumato.surface import setting

TNS_BYTES = 1 << 24  # of lines that are taken at a time
_TNS_COMMENT = re.compile(rb"#[^\r\n]*+")
_TNS_BLANKS = bytes.maketrans(b"\r\t\v\f", b"\n   ")


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
    if isinstance(array, np.ma.MaskedArray):
        raise DataError("the array is masked: put NaN where a value is missing, with filled(np.nan)")
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
    coordinates, values = sparse.entries(matrix)
    if values.dtype.kind not in "iuf":
        raise DataError(f"a matrix of numbers is needed, got one of type {values.dtype}")
    return _positional(coordinates, values, matrix.shape, names, bounds)


def _positional(
    coordinates: Sequence[NDArray[Any]],
    values: NDArray[Any],
    shape: Sequence[int],
    names: Sequence[str] | None,
    bounds: tuple[float, float] | None,
) -> SparseTensor:
    named = mode_names(len(shape), names)
    modes = tuple(Mode(name, int(size)) for name, size in zip(named, shape, strict=True))
    for mode, row in zip(modes, coordinates, strict=True):
        check_levels(mode, row)
    levels = [np.asarray(row, np.int32) for row in coordinates]
    return SparseTensor(np.stack(levels), values, modes, bounds)


# -- NumPy and MATLAB files ---------------------------------------------------------------------


def load_array(path: Path, kind: str, variable: str | None, selection: Selection) -> Any:
    """What a .npy, .npz or .mat file holds: a dense array, a sparse one, or an Arrow table."""
    if kind == "mat":
        return apart.load_mat(path, variable)
    if kind == "npy":
        return npy.load_npy(path)
    return _load_npz(npy.Npz(path), variable, selection)


def _load_npz(arrays: npy.Npz, variable: str | None, selection: Selection) -> Any:
    names = arrays.names
    if variable is not None:
        if variable not in names:
            raise SettingError(f"there is no array {variable!r}; there are {', '.join(names)}")
        return arrays[variable]
    if {"format", "shape", "data"} <= set(names):
        return _load_sparse(arrays)
    if len(names) == 1:
        return arrays[names[0]]
    return _table_of(arrays, selection.columns(names))


def _load_sparse(arrays: npy.Npz) -> Any:
    """A matrix as ``scipy.sparse.save_npz`` writes it. It is not yet checked."""
    import scipy.sparse

    named = arrays["format"].item()
    format = named.decode("ascii") if isinstance(named, bytes) else str(named)
    shape = tuple(int(size) for size in arrays["shape"])
    if format in ("csr", "csc", "bsr"):
        parts: Any = (arrays["data"], arrays["indices"], arrays["indptr"])
    elif format == "dia":
        parts = (arrays["data"], arrays["offsets"])
    elif format == "coo":
        where = arrays["coords"] if "coords" in arrays.names else (arrays["row"], arrays["col"])
        parts = (arrays["data"], tuple(where))
    else:
        raise DataError(f"a sparse matrix of the format {format!r} is not known")
    return getattr(scipy.sparse, f"{format}_array")(parts, shape=shape)


def _table_of(arrays: npy.Npz, names: Sequence[str]) -> pa.Table:
    columns = {name: arrays[name] for name in names}
    shapes = {name: column.shape for name, column in columns.items()}
    if any(len(shape) != 1 for shape in shapes.values()) or len(set(shapes.values())) > 1:
        listed = ", ".join(f"{name} {shape}" for name, shape in shapes.items())
        raise DataError(
            f"arrays that make a table have one dimension and the same length, got {listed}; "
            f"choose one dense array with {setting('variable')}"
        )
    return pa.table(columns)


# -- FROSTT files -------------------------------------------------------------------------------


def read_tns(
    path: Path, names: Sequence[str] | None, bounds: tuple[float, float] | None
) -> SparseTensor:
    """A FROSTT file: on each line the coordinates, counted from 1, and the value."""
    collector: EntryCollector | None = None
    for *coordinates, values in _tns_columns(path):
        if collector is None:
            collector = EntryCollector(RowEncoder(mode_names(len(coordinates), names), "value", {}))
        collector.add([_tns_levels(column, path) for column in coordinates], values)
    if collector is None:
        raise DataError(f"{path}: there are no entries")
    return collector.finish(bounds)


def _tns_levels(column: Any, path: Path) -> Any:
    """Coordinates, as whole numbers from their text: a float would run large ones together."""
    try:
        levels = column.cast(pa.int64())
    except pa.ArrowInvalid:  # 12.0 may stand for 12
        levels = _levels_with_point(column, path)
    low = pc.min(levels).as_py()
    if low < 1:
        raise DataError(f"{path}: coordinates must be whole numbers from 1 upwards, got {low}")
    return levels


def _levels_with_point(column: Any, path: Path) -> Any:
    digits = pc.replace_substring_regex(column, pattern=r"^(\d+)\.0*$", replacement=r"\1")
    try:
        return digits.cast(pa.int64())
    except pa.ArrowInvalid as error:
        wrong = first_refused(digits, lambda part: part.cast(pa.int64()))
        raise DataError(
            f"{path}: coordinates must be whole numbers from 1 upwards, got {wrong!r}"
        ) from error


def _tns_columns(path: Path) -> Iterator[list[Any]]:
    """The fields of many lines at a time, as columns of text."""
    count = 0
    for lines in _tns_lines(path):
        first = lines.partition(b"\n")[0]
        count = count or first.count(b" ") + 1
        if count < 3:
            raise DataError(
                f"{path} is not a FROSTT tensor: a line needs two coordinates or more and a value"
            )
        names = [str(place) for place in range(count)]
        try:
            table = pacsv.read_csv(
                pa.BufferReader(lines),
                pacsv.ReadOptions(column_names=names, block_size=len(lines) + 1),
                pacsv.ParseOptions(delimiter=" ", quote_char=False),
                pacsv.ConvertOptions(column_types=dict.fromkeys(names, pa.string())),
            )
        except pa.ArrowInvalid as error:
            raise DataError(
                f"{path} is not a FROSTT tensor: every line needs the same number of coordinates, and a "
                f"value ({error})"
            ) from error
        yield [column.combine_chunks() for column in table.columns]


def _tns_lines(path: Path) -> Iterator[bytes]:
    """Whole lines, many at a time, without comments, and with single blanks between fields."""
    with open_text(path) as file:
        while block := file.read(TNS_BYTES):
            rest = file.readline(TNS_BYTES)
            if len(rest) == TNS_BYTES and not rest.endswith(b"\n"):
                raise DataError(f"{path} is not a FROSTT tensor: a line has over {TNS_BYTES:,} bytes")
            if tidy := _tidy(block + rest):
                yield tidy


def _tidy(lines: bytes) -> bytes:
    """Lines without comments and without blanks but for single ones between fields."""
    if b"#" in lines:
        lines = _TNS_COMMENT.sub(b"", lines)
    lines = lines.translate(_TNS_BLANKS)
    for many, one in ((b"  ", b" "), (b" \n", b"\n"), (b"\n ", b"\n"), (b"\n\n", b"\n")):
        while many in lines:  # replacing is far faster than a pattern, and most files are tidy
            lines = lines.replace(many, one)
    return lines.strip(b" \n")
