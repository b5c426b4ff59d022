"""Streams of samples: rows of numbers from memory, files or iterators, a bounded piece at a time."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, islice
from numbers import Integral
from pathlib import Path
from typing import Any, NoReturn, TypeAlias

import narwhals as nw
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import scipy.sparse
from numpy.typing import NDArray

from sfumato.data.io import npy, sparse, tables
from sfumato.data.io.files import existing_file, file_kind, reading
from sfumato.errors import DataError, SettingError

# Rows of samples, float32 or float64: a C-contiguous array, or a csr_array without duplicate entries.
# Either may be a view of the caller's and is not to be written to.
Batch: TypeAlias = "NDArray[Any] | scipy.sparse.csr_array[Any]"

BATCH_NUMBERS = 1 << 20
FEWEST_ROWS = 256
MOST_ROWS = 8192


@dataclass(frozen=True, eq=False)
class Samples:
    """Samples with ``size`` features each, read in batches of bounded memory.

    ``count`` is the number of samples, or None where only reading them would tell. ``rereadable``
    says whether the samples can be read again. ``given_blocks`` says that the caller gave them as
    several arrays, each a block.
    """

    size: int
    count: int | None
    rereadable: bool
    given_blocks: bool
    _open: Callable[[], Iterator[Iterator[Batch]]] = field(repr=False)

    def batches(self) -> Iterator[Batch]:
        """All samples in order, from the first. None of the batches is empty."""
        return chain.from_iterable(self._open())

    def blocks(self) -> Iterator[Iterator[Batch]]:
        """The batches of each array that the caller gave; an array without rows has none."""
        if not self.given_blocks:
            raise SettingError(
                "these samples come as one table, which has no blocks: read their batches, or give "
                "an iterator, a list or a function of several arrays"
            )
        return self._open()


def open_samples(
    source: Any,
    columns: Sequence[str] | None = None,
    *,
    batch_rows: int | None = None,
    may_be_empty: bool = False,
    features: int | None = None,
) -> Samples:
    """Samples, one a row, from any source that has them.

    ``source`` is a two-dimensional NumPy array or memory map, a SciPy sparse matrix or array, a
    table of pandas, polars or pyarrow, the path of a .npy or Parquet file or of a folder of Parquet
    files (read in order of their names), a list or an iterator of arrays or sparse matrices, or a
    function without arguments that returns a new iterator of them at each call.

    Every column of a table is a feature, or those that ``columns`` names; a single column of lists
    of numbers is the samples themselves. Nulls are NaN, and NaN and infinity are not judged here.
    Numbers keep float32 or float64; others become float64, batch by batch. ``batch_rows`` sets the
    most rows in a batch. That there is not a single row is an error, unless it ``may_be_empty``:
    where samples are private, an error would say that there are none. ``features`` is how many there
    are, where it is known: a source without a single array or list says nothing of it.
    """
    samples = _opened(source, columns, batch_rows, may_be_empty, features)
    if samples.count == 0 and not may_be_empty:
        _refuse_none()
    if features is not None and samples.size != features:
        raise DataError(f"samples have {samples.size} features here, but {features} are expected")
    return samples


def _opened(
    source: Any,
    columns: Sequence[str] | None,
    batch_rows: int | None,
    may_be_empty: bool,
    features: int | None,
) -> Samples:
    names = _check_columns_setting(columns)
    if batch_rows is not None and (not isinstance(batch_rows, Integral) or batch_rows < 1):
        raise SettingError(f"batch_rows is a whole number from 1 upwards, got {batch_rows!r}")
    if isinstance(source, str | os.PathLike):
        return _open_path(Path(source).expanduser(), names, batch_rows, features)
    if nw.dependencies.is_into_dataframe(source):
        return _open_part(_table_part(source, names, features), batch_rows)
    _refuse_columns(names)
    if isinstance(source, np.ndarray) or scipy.sparse.issparse(source):
        return _open_part(_part(source, "the array"), batch_rows)
    if isinstance(source, list | tuple):
        return _open_list(source, batch_rows, features)
    if isinstance(source, Iterator):
        return _open_stream(source, None, batch_rows, may_be_empty, features)
    if callable(source) or isinstance(source, Iterable):
        return _open_stream(_new_iterator(source), source, batch_rows, may_be_empty, features)
    raise DataError(
        f"cannot read samples from a {type(source).__name__}: give an array, a sparse matrix, a table, "
        "the path of a .npy or Parquet file, or an iterator of arrays"
    )


def _check_columns_setting(columns: Sequence[str] | None) -> tuple[str, ...] | None:
    if columns is None:
        return None
    if isinstance(columns, str):
        raise SettingError(f"columns is a list of column names, got the text {columns!r}")
    if not columns:
        raise SettingError("columns is empty: name one column or more, or leave it out")
    tables.check_distinct(columns, SettingError)
    return tuple(columns)


def _refuse_columns(columns: tuple[str, ...] | None) -> None:
    if columns is not None:
        raise SettingError("columns chooses from a table: an array has no names of columns")


def _rows_for(numbers: int, batch_rows: int | None) -> int:
    """How many rows make a batch of samples that hold so many numbers each."""
    if batch_rows is not None:
        return int(batch_rows)
    return min(max(BATCH_NUMBERS // max(numbers, 1), FEWEST_ROWS), MOST_ROWS)


# -- parts: samples of known number with rows that can be cut out ---------------------------------


@dataclass(frozen=True, eq=False)
class _Part:
    size: int
    count: int
    rows: Callable[[int, int], Batch]  # from the first up to the second
    numbers: int  # that a row holds, of sparse ones on average

    def cut(self, batch_rows: int | None) -> Iterator[Batch]:
        step = _rows_for(self.numbers, batch_rows)
        for start in range(0, self.count, step):
            yield self.rows(start, min(start + step, self.count))


def _open_part(part: _Part, batch_rows: int | None) -> Samples:
    return Samples(part.size, part.count, True, False, lambda: iter([part.cut(batch_rows)]))


def _refuse_none() -> NoReturn:
    raise DataError("there are no samples: not a single row")


def _known(features: int | None) -> int:
    """How many features there are, where nothing but the caller can say so."""
    if features is None:
        raise DataError(
            "there are no samples, and nothing that says how many features they have: give an array "
            "with columns, if without a row, or say how many (features=...)"
        )
    return features


def _part(source: Any, what: str) -> _Part:
    """An array or a sparse matrix as a part; ``what`` names it in messages."""
    is_sparse = scipy.sparse.issparse(source)
    if not is_sparse and not isinstance(source, np.ndarray):
        raise DataError(
            f"{what} is a {type(source).__name__}: a two-dimensional NumPy array or a SciPy sparse "
            "matrix is needed, one sample a row"
        )
    if isinstance(source, np.ma.MaskedArray):
        raise DataError(f"{what} is masked: put numbers in place of what is masked with filled()")
    if source.ndim != 2:
        hint = " or, if it is one sample, use reshape(1, -1)" if source.ndim == 1 else ""
        raise DataError(
            f"{what} has {source.ndim} dimensions and shape {source.shape}: give two, samples in rows "
            f"and features in columns{hint}"
        )
    count, size = map(int, source.shape)
    if size == 0:
        raise DataError(f"{what} has no columns: a sample needs one feature or more")
    dtype = _float_type(source.dtype, what)
    if is_sparse:
        # Batches hold as many numbers as dense ones: short ones would cost more than their products.
        with reading(what):
            rows = scipy.sparse.csr_array(sparse.checked(source))
        return _Part(size, count, partial(_sparse_rows, rows, dtype), -(-rows.nnz // max(count, 1)))
    return _Part(size, count, partial(_dense_rows, np.asarray(source), dtype), size)


def _float_type(dtype: np.dtype[Any], what: str) -> np.dtype[Any]:
    if dtype.kind not in "biuf":
        raise DataError(f"{what} must hold real numbers, but its type is {dtype}")
    return np.dtype(np.float32 if dtype.kind == "f" and dtype.itemsize == 4 else np.float64)


def _dense_rows(array: NDArray[Any], dtype: np.dtype[Any], start: int, stop: int) -> NDArray[Any]:
    return np.ascontiguousarray(array[start:stop], dtype)


def _sparse_rows(matrix: Any, dtype: np.dtype[Any], start: int, stop: int) -> Any:
    """Rows cut out by hand: slicing would copy them, which takes as long as multiplying them does."""
    first, last = matrix.indptr[start], matrix.indptr[stop]
    stored = (
        matrix.data[first:last],
        matrix.indices[first:last],
        matrix.indptr[start : stop + 1] - first,
    )
    rows: Any = scipy.sparse.csr_array(stored, shape=(stop - start, matrix.shape[1]))
    rows = rows.astype(dtype, copy=False)
    if not rows.has_canonical_format:
        rows = rows.copy()  # the caller's matrix stays as it is
        rows.sum_duplicates()
    return rows


# -- blocks: arrays that come one after the other -------------------------------------------------


def _open_list(arrays: Sequence[Any], batch_rows: int | None, features: int | None) -> Samples:
    parts = [_part(array, f"array {number} of the list") for number, array in enumerate(arrays, 1)]
    count = sum(part.count for part in parts)
    size = parts[0].size if parts else _known(features)
    for number, part in enumerate(parts, 1):
        _check_width(part, size, number)
    return Samples(size, count, True, True, lambda: (part.cut(batch_rows) for part in parts))


def _check_width(part: _Part, size: int, number: int) -> None:
    if part.size != size:
        raise DataError(
            f"array {number} has {part.size} columns but array 1 has {size}: every sample needs the "
            "same number of features"
        )


def _open_stream(
    first: Iterator[Any],
    again: Any,
    batch_rows: int | None,
    may_be_empty: bool,
    features: int | None,
) -> Samples:
    """Samples of an iterator, and of new ones from ``again`` unless that is None."""
    head = list(islice(first, 1))
    size = _part(head[0], "array 1 of the stream").size if head else _known(features)
    unread = [_put_back(head, first)]

    def blocks() -> Iterator[Iterator[Batch]]:
        if unread:
            return _cut_stream(unread.pop(), size, batch_rows, may_be_empty)
        if again is None:
            raise DataError(
                "a one-shot stream cannot be read again: give an array, a file, a list of arrays, or a "
                "function that returns a new iterator"
            )
        return _cut_stream(_new_iterator(again, first), size, batch_rows, may_be_empty)

    return Samples(size, None, again is not None, True, blocks)


def _put_back(head: list[Any], rest: Iterator[Any]) -> Iterator[Any]:
    # Popped, so that nothing holds on to the array while the others are read.
    while head:
        yield head.pop()
    yield from rest


def _new_iterator(source: Any, old: Iterator[Any] | None = None) -> Iterator[Any]:
    arrays = source() if callable(source) else source
    is_one = isinstance(arrays, np.ndarray) or scipy.sparse.issparse(arrays)
    if is_one or not isinstance(arrays, Iterable):
        raise DataError(
            f"the function of samples must return an iterator of arrays, not a {type(arrays).__name__}"
        )
    iterator = iter(arrays)
    if iterator is old:
        raise DataError(
            "the function of samples returned the same iterator again: it must make a new one at "
            "each call"
        )
    return iterator


def _cut_stream(
    arrays: Iterator[Any], size: int, batch_rows: int | None, may_be_empty: bool
) -> Iterator[Iterator[Batch]]:
    count = 0
    for number, array in enumerate(arrays, 1):
        part = _part(array, f"array {number} of the stream")
        _check_width(part, size, number)
        count += part.count
        yield part.cut(batch_rows)
    if count == 0 and not may_be_empty:
        _refuse_none()


# -- tables in memory -----------------------------------------------------------------------------


def _table_part(source: Any, columns: tuple[str, ...] | None, features: int | None) -> _Part:
    with reading("the table"):
        table = tables.table_in_memory(source)
    names = _features(table.schema, columns, "the table")
    table = table.select(list(names))
    size = _width(table.schema, names)
    if size is None:
        # Without a row, nothing says how long a list is.
        size = _first_length([table], names[0], "the table") if table.num_rows else _known(features)

    def rows(start: int, stop: int) -> NDArray[Any]:
        return _matrix(table.slice(start, stop - start), names, size, "the table")

    return _Part(size, table.num_rows, rows, size)


def _features(schema: Any, columns: tuple[str, ...] | None, what: str) -> tuple[str, ...]:
    """Names of the columns that are features: numbers all, or one of lists of numbers."""
    available = schema.names
    tables.check_distinct(available)
    if columns is None:
        index = (schema.pandas_metadata or {}).get("index_columns", ())
        columns = tuple(name for name in available if name not in index)
        if not columns:
            raise DataError(f"{what} has no columns: a sample needs one feature or more")
    else:
        try:
            tables.check_columns(columns, available)
        except SettingError as error:
            raise SettingError(f"{what}: {error}") from error
    _check_types(columns, [schema.field(name).type for name in columns], what)
    return columns


def _check_types(columns: Sequence[str], types: Sequence[Any], what: str) -> None:
    typed = list(zip(columns, types, strict=True))
    numeric = [name for name, kind in typed if _is_number(kind)]
    vectors = [name for name, kind in typed if _is_vector(kind)]
    if len(numeric) == len(columns) or (vectors and len(columns) == 1):
        return
    choice = vectors[:1] or numeric
    hint = f"; choose columns, such as columns={_shortened(choice)}" if choice else ""
    if vectors:
        raise DataError(f"{what}: a column of lists, {vectors[0]!r}, must be the only feature{hint}")
    wrong, kind = next((name, kind) for name, kind in typed if not _is_number(kind))
    raise DataError(f"{what}: column {wrong!r} must hold numbers, but its type is {kind}{hint}")


def _shortened(names: Sequence[str]) -> str:
    return f"[{', '.join([*map(repr, names[:3]), *(['...'] if len(names) > 3 else [])])}]"


def _is_number(type: Any) -> bool:
    kinds = pa.types
    # A column in which every value is missing has the type null.
    return bool(
        kinds.is_integer(type)
        or kinds.is_floating(type)
        or kinds.is_decimal(type)
        or kinds.is_boolean(type)
        or kinds.is_null(type)
    )


def _is_vector(type: Any) -> bool:
    kinds = pa.types
    is_list = kinds.is_fixed_size_list(type) or kinds.is_list(type) or kinds.is_large_list(type)
    return bool(is_list and _is_number(type.value_type))


def _width(schema: Any, names: Sequence[str]) -> int | None:
    """How many features there are; None where only the lists themselves tell."""
    type = schema.field(names[0]).type
    if not _is_vector(type):
        return len(names)
    return int(type.list_size) if pa.types.is_fixed_size_list(type) else None


def _first_length(pieces: Iterable[Any], name: str, what: str) -> int:
    for piece in pieces:
        lengths = pc.list_value_length(piece.column(name)).drop_null()
        if len(lengths):
            if length := int(lengths[0].as_py()):
                return length
            break
    raise DataError(f"{what}: the first list in column {name!r} must hold one number or more")


def _matrix(table: pa.Table, names: Sequence[str], size: int, what: str) -> NDArray[Any]:
    """The features of a piece of a table, one row for each of its rows."""
    types = [table.schema.field(name).type for name in names]
    if _is_vector(types[0]):
        return _stacked(table.column(names[0]).combine_chunks(), size, f"{what}: column {names[0]!r}")
    is_single = all(pa.types.is_float32(type) for type in types)
    matrix = np.empty((table.num_rows, size), np.float32 if is_single else np.float64)
    for position, name in enumerate(names):
        matrix[:, position] = _numbers(table.column(name))
    return matrix


def _stacked(lists: Any, size: int, what: str) -> NDArray[Any]:
    lengths = np.asarray(pc.list_value_length(lists).fill_null(-1))
    present = lengths >= 0  # a list that is null is a row of NaN
    wrong = lengths[present & (lengths != size)]
    if len(wrong):
        raise DataError(f"{what} has a list of {wrong[0]} numbers, but the first has {size}")
    numbers = _numbers(lists.flatten()).reshape(-1, size)  # of lists that are not null
    if present.all():
        return numbers
    matrix = np.full((len(lists), size), np.nan, numbers.dtype)
    matrix[present] = numbers
    return matrix


def _numbers(array: Any) -> NDArray[Any]:
    dtype = pa.float32() if pa.types.is_float32(array.type) else pa.float64()
    return np.asarray(array.cast(dtype, safe=False).fill_null(np.nan))


# -- files ----------------------------------------------------------------------------------------


def _open_path(
    path: Path, columns: tuple[str, ...] | None, batch_rows: int | None, features: int | None
) -> Samples:
    if path.is_dir():
        files = sorted(file for file in path.iterdir() if _is_parquet(file))
        if not files:
            raise DataError(f"there are no Parquet files (.parquet or .pq) in the folder {path}")
        return _open_parquet(files, columns, batch_rows, features)
    kind = file_kind(existing_file(path))
    if kind == "parquet":
        return _open_parquet([path], columns, batch_rows, features)
    if kind != "npy":
        raise DataError(f"{path.name}: samples are read from .npy and Parquet files only")
    _refuse_columns(columns)
    return _open_part(_part(_memory_map(path), str(path)), batch_rows)


def _is_parquet(file: Path) -> bool:
    hidden = file.name.startswith((".", "_"))  # what other programs leave beside their files
    return not hidden and file.suffix.lower() in (".parquet", ".pq") and file.is_file()


def _memory_map(path: Path) -> NDArray[Any]:
    npy.check_npy(path)
    with reading(path):
        return np.asarray(np.load(path, mmap_mode="r", allow_pickle=False))


def _open_parquet(
    files: Sequence[Path],
    columns: tuple[str, ...] | None,
    batch_rows: int | None,
    features: int | None,
) -> Samples:
    """Samples of all files; what they hold is looked at now, from their footers."""
    count = 0
    names: tuple[str, ...] = ()
    widths: dict[Path, int | None] = {}
    for path in files:
        with reading(path), pq.ParquetFile(path) as file:
            count += file.metadata.num_rows
            found = _features(file.schema_arrow, columns, str(path))
            names = names or found
            _check_same_columns(path, found, files[0], names)
            widths[path] = _width(file.schema_arrow, names)
    size = next((width for width in widths.values() if width is not None), None)
    if size is None:
        size = _first_list_length(files, names[0]) if count else _known(features)
    for path, width in widths.items():
        if width not in (size, None):
            raise DataError(f"{path} has {width} features but others in the folder have {size}")
    step = _rows_for(size, batch_rows)
    return Samples(
        size, count, True, False, lambda: (_read_parquet(path, names, size, step) for path in files)
    )


def _check_same_columns(path: Path, found: Sequence[str], first: Path, names: Sequence[str]) -> None:
    differing = sorted(set(found) ^ set(names))
    if differing:
        raise DataError(
            f"{path} and {first.name} have different columns, {differing[0]!r} among them: name those "
            "that all files have with columns"
        )


def _parquet_pieces(path: Path, names: Sequence[str], rows: int) -> Iterator[pa.Table]:
    # A row group may be the whole file, and Arrow would hold its bytes until the last row is read.
    # Of a mapped file it holds only the pages that it decodes.
    with reading(path), pq.ParquetFile(path, memory_map=True, pre_buffer=False) as file:
        for batch in file.iter_batches(rows, columns=list(names)):
            yield pa.Table.from_batches([batch])


def _first_list_length(files: Sequence[Path], name: str) -> int:
    pieces = chain.from_iterable(_parquet_pieces(path, [name], FEWEST_ROWS) for path in files)
    return _first_length(pieces, name, str(files[0]))


def _read_parquet(path: Path, names: Sequence[str], size: int, step: int) -> Iterator[Batch]:
    for piece in _parquet_pieces(path, names, step):
        if piece.num_rows:
            yield _matrix(piece, names, size, str(path))
