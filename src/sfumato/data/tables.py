"""Tables, on file or in memory, as streams of Arrow batches, and entries collected from them."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import narwhals as nw
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
from numpy.typing import NDArray

from sfumato.checks import as_path
from sfumato.data.labels import LabelEncoder, bin_times, check_bin, first_refused, is_text
from sfumato.data.ordering import gather, lexicographic_order
from sfumato.data.tensor import MAX_ENTRIES, Mode, SparseTensor, check_bounds
from sfumato.errors import DataError, SettingError

# Large batches: the labels known so far are hashed once for each.
BATCH_ROWS = 1 << 21
CSV_BLOCK_BYTES = 1 << 25

_SUFFIXES = {
    ".csv": "csv",
    ".tsv": "tsv",
    ".tab": "tsv",
    ".parquet": "parquet",
    ".pq": "parquet",
    ".tns": "tns",
    ".npz": "npz",
    ".npy": "npy",
    ".mat": "mat",
}
_COMPRESSED = {
    ".gz": ("csv", "tsv", "tns"),
    ".bz2": ("csv", "tsv"),
    ".zst": ("csv", "tsv"),
    ".lz4": ("csv", "tsv"),
}
TABLE_KINDS = ("csv", "tsv", "parquet")
_DELIMITERS = {"csv": ",", "tsv": "\t"}
_NO_VALUE = ["", "NA", "N/A", "NaN", "nan", "null", "NULL", "None"]


class MissingFileError(DataError, FileNotFoundError):
    """A file that is to be read is not there."""


# -- which file ---------------------------------------------------------------------------------


def existing_file(source: str | os.PathLike[str]) -> Path:
    """The path of a file that is there."""
    path = Path(os.path.expanduser(as_path("the file to read", source)))
    if os.path.isdir(path):
        raise DataError(f"{path} is a folder: name a file in it")
    if not os.path.exists(path):  # nor can a name be that is too long
        raise MissingFileError(f"there is no file {path} (looked from {Path.cwd()})")
    return path


def file_kind(path: Path) -> str:
    """What kind of file this is, by its suffix."""
    suffix = path.suffix.lower()
    if suffix in _SUFFIXES:
        return _SUFFIXES[suffix]
    if suffix in _COMPRESSED:
        kind = _SUFFIXES.get(Path(path.stem).suffix.lower())
        if kind in _COMPRESSED[suffix]:
            return str(kind)
    raise DataError(
        f"{path.name}: unknown file format. Known are {', '.join(_SUFFIXES)}; .csv and .tsv also "
        f"with {', '.join(_COMPRESSED)}, and .tns with .gz"
    )


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn what a library says of a damaged file into an error that names the file."""
    try:
        yield
    except (pa.ArrowException, OSError, EOFError) as error:
        raise DataError(f"{path} cannot be read: {error}") from error


# -- which columns ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Selection:
    """The columns of a table that make a tensor."""

    modes: tuple[str, ...] | None = None
    value: str | None = None
    bins: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        names = (*(self.modes or ()), *(() if self.value is None else (self.value,)))
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise SettingError(f"column {twice[0]!r} is named twice among the modes and the value")
        for column, name in self.bins.items():
            check_bin(name)
            if column not in (self.modes or ()):
                raise SettingError(f"bins names {column!r}, which is not one of the modes")

    def columns(self, available: Sequence[str]) -> list[str]:
        """Names of the columns to read: the modes, then the value. All of them are there."""
        if not available:
            raise DataError("the table is empty: it has no columns")
        if self.modes is None or self.value is None:
            some = ", ".join(repr(name) for name in available[:2])
            raise SettingError(
                f"say which columns are the modes and which holds the value: "
                f"read(..., modes=[{some}, ...], value={available[-1]!r}). "
                f"The columns are {', '.join(available)}"
            )
        names = [*self.modes, self.value]
        check_columns(names, available)
        return names


def check_columns(wanted: Sequence[str], available: Sequence[str]) -> None:
    """Refuse a column that is not there, with the nearest name that is."""
    for name in wanted:
        if name not in available:
            near = difflib.get_close_matches(name, available, 1)
            hint = f" (did you mean {near[0]!r}?)" if near else ""
            raise SettingError(
                f"there is no column {name!r}{hint}; the columns are {', '.join(available)}"
            )


# -- streams of batches -------------------------------------------------------------------------


def stream_file(path: Path, kind: str, selection: Selection) -> Iterator[pa.RecordBatch]:
    """Batches with the selected columns of a CSV, TSV or Parquet file, read once."""
    with reading(path):
        if kind == "parquet":
            with pq.ParquetFile(path) as file:
                columns = selection.columns(file.schema_arrow.names)
                yield from file.iter_batches(BATCH_ROWS, columns=columns)
        else:
            with pa.input_stream(path, compression="detect") as stream:
                yield from _open_csv(stream, path, kind, selection)


def _open_csv(stream: Any, path: Path, kind: str, selection: Selection) -> Any:
    if selection.modes is None or selection.value is None:
        selection.columns(_csv_columns(stream, kind))
    names = [*(selection.modes or ()), str(selection.value)]
    options = pacsv.ConvertOptions(
        include_columns=names,
        # Values too are read as text, so that a wrong one can be shown.
        column_types=dict.fromkeys(names, pa.string()),
        null_values=[""],
        strings_can_be_null=True,
    )
    try:
        return pacsv.open_csv(
            stream,
            pacsv.ReadOptions(block_size=CSV_BLOCK_BYTES),
            csv_format(kind),
            options,
        )
    except KeyError:
        # The header is read again only to say which columns there are.
        with pa.input_stream(path, compression="detect") as again:
            selection.columns(_csv_columns(again, kind))
        raise


def csv_format(kind: str) -> Any:
    """How CSV or TSV is cut into fields; text in quotes may run over several lines."""
    return pacsv.ParseOptions(delimiter=_DELIMITERS[kind], newlines_in_values=True)


def _csv_columns(stream: Any, kind: str) -> list[str]:
    return list(pacsv.open_csv(stream, parse_options=csv_format(kind)).schema.names)


def table_in_memory(source: Any, selection: Selection | None = None) -> pa.Table:
    """A pandas, polars, pyarrow or similar table as an Arrow table, selected columns only."""
    try:
        frame = nw.from_native(source, eager_only=True)
    except TypeError as error:
        raise DataError(
            f"cannot read a {type(source).__name__}: give a path, a NumPy or SciPy sparse array, "
            "or a table of pandas, polars or pyarrow (a lazy one must be collected first)"
        ) from error
    if selection is not None:
        frame = frame.select(selection.columns(frame.columns))
    try:
        return frame.to_arrow().select(frame.columns)  # a pandas index is no column
    except pa.ArrowException as error:
        raise DataError(f"a column of the table mixes types: {error}") from error


# -- entries ------------------------------------------------------------------------------------


class EntryCollector:
    """Builds a tensor from batches, of which only int32 codes and values are kept."""

    def __init__(
        self, modes: Sequence[str], value: str, bins: Mapping[str, str], *, is_csv: bool = False
    ) -> None:
        if len(modes) < 2:
            raise SettingError(f"a tensor needs two modes or more, got {', '.join(modes)}")
        self._modes = tuple(modes)
        self._value = value
        self._bins = bins
        self._encoders = [LabelEncoder(name, numbers_as_text=is_csv) for name in modes]
        self._codes: list[list[NDArray[np.int32]]] = [[] for _ in modes]
        self._values: list[NDArray[Any]] = []

    def add(self, labels: Sequence[Any], values: Any) -> None:
        """Take one batch: an Arrow array of labels per mode, and one of values."""
        for name, encoder, codes, column in zip(
            self._modes, self._encoders, self._codes, labels, strict=True
        ):
            bin = self._bins.get(name)
            codes.append(encoder.encode(bin_times(column, bin, column=name) if bin else column))
        self._values.append(as_values(values, self._value))

    def finish(self, bounds: tuple[float, float] | None) -> SparseTensor:
        """The tensor of everything added. The collector is empty afterwards."""
        n_entries = sum(len(part) for part in self._values)
        if not n_entries:
            raise DataError("there are no entries: the table is empty")
        if n_entries > MAX_ENTRIES:
            raise DataError(f"at most {MAX_ENTRIES:,} entries are supported, got {n_entries:,}")
        coordinates = np.empty((len(self._modes), n_entries), np.int32)
        modes = []
        for row, name, encoder, codes in zip(
            coordinates, self._modes, self._encoders, self._codes, strict=True
        ):
            labels, remap = encoder.finish()
            modes.append(Mode(name, len(labels), labels, self._bins.get(name)))
            _move_codes(codes, remap, row)
        values = np.concatenate(self._values)
        self._values.clear()
        _sort_in_place(coordinates, values, [mode.size for mode in modes])
        # Checked, that is sorted: the tensor would copy the arrays to be sure that they are its
        # own, which these are. Codes are in range by construction.
        return SparseTensor(coordinates, values, tuple(modes), check_bounds(bounds), _checked=True)


def _move_codes(
    codes: list[NDArray[np.int32]], remap: NDArray[np.int32], row: NDArray[np.int32]
) -> None:
    """Write final codes into ``row``; each part is freed as soon as it is copied."""
    end = row.shape[0]
    while codes:
        part = codes.pop()
        np.take(remap, part, out=row[end - len(part) : end])
        end -= len(part)


def _sort_in_place(coordinates: NDArray[np.int32], values: NDArray[Any], shape: Sequence[int]) -> None:
    order = lexicographic_order(coordinates, tuple(shape))
    if order is not None:
        for array in (*coordinates, values):
            array[:] = gather(array, order)


def as_values(array: Any, column: str) -> NDArray[Any]:
    """A column of numbers as float32 if it is that, else float64; null becomes NaN."""
    kind = array.type
    if is_text(kind):
        array = _numbers_from_text(array, column)
    elif pa.types.is_null(kind):
        array = array.cast(pa.float64())
    elif not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)):
        example = array[0].as_py() if len(array) else None
        raise DataError(
            f"column {column!r} is to hold the values but is not numeric: it has type {kind}, "
            f"for example {example!r}"
        )
    dtype = pa.float32() if pa.types.is_float32(array.type) else pa.float64()
    return np.asarray(array.cast(dtype, safe=False).fill_null(np.nan))


def _numbers_from_text(array: Any, column: str) -> Any:
    def convert(part: Any) -> Any:
        text = pc.utf8_trim_whitespace(part.cast(pa.string()))
        no_value = pc.is_in(text, value_set=pa.array(_NO_VALUE))
        return pc.if_else(no_value, pa.scalar(None, pa.string()), text).cast(pa.float64())

    try:
        return convert(array)
    except pa.ArrowInvalid as error:
        raise DataError(
            f"column {column!r} is to hold the values but is not numeric: it has "
            f"{first_refused(array, convert)!r}"
        ) from error
