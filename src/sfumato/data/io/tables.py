"""Tables, on file or in memory, as streams of Arrow batches, and entries collected from them."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from sfumato.data.io import apart, delimited
from sfumato.data.io.arrow import filled, to_numpy
from sfumato.data.io.files import reading
from sfumato.data.io.labels import (
    LabelEncoder,
    bin_times,
    check_bin,
    check_date_format,
    first_refused,
    is_text,
)
from sfumato.data.tensor import MAX_ENTRIES, Mode, SparseTensor, check_bounds
from sfumato.errors import DataError, SettingError
from sfumato.kernels.numba.ordering import sort_entries
from sfumato.kernels.numba.threads import available_threads
from sfumato.surface import either, setting

# Large batches: the labels known so far are hashed once for each.
BATCH_ROWS = 1 << 21

_DECIMAL_COMMA = re.compile(r"\s*[+-]?\d+,\d+\s*$")
_NO_VALUE = ["", "NA", "N/A", "NaN", "nan", "null", "NULL", "None"]


# -- which columns ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Selection:
    """The columns of a table that make a tensor."""

    modes: tuple[str, ...] | None = None
    value: str | None = None
    bins: Mapping[str, str] = field(default_factory=dict)
    date_format: str | None = None  # of the times that are binned

    def __post_init__(self) -> None:
        names = (*(self.modes or ()), *(() if self.value is None else (self.value,)))
        for name in names:
            if not isinstance(name, str):
                raise SettingError(f"columns are named by text, got {name!r}")
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise SettingError(f"column {twice[0]!r} is named twice among the modes and the value")
        for column, name in self.bins.items():
            check_bin(name)
            if column not in (self.modes or ()):
                raise SettingError(
                    f"{either('bins', '--bin')} names {column!r}, which is not one of the modes"
                )
        if self.date_format is not None:
            check_date_format(self.date_format)
            if not self.bins:
                raise SettingError(
                    f"{setting('date_format')} says how times are written: say with "
                    f"{either('bins', '--bin')} which columns hold times, such as time=day"
                )

    def columns(self, available: Sequence[str]) -> list[str]:
        """Names of the columns to read: the modes, then the value. All of them are there."""
        if not available:
            raise DataError("the table is empty: it has no columns")
        if self.modes is None or self.value is None:
            some = ", ".join(repr(name) for name in available[:2])
            how = either(f"modes=[{some}, ...], value={available[-1]!r}", "--modes and --value")
            raise SettingError(
                f"say which columns are the modes and which holds the value: {how}. "
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
            alone = _alone() if len(available) == 1 else ""
            raise SettingError(
                f"there is no column {name!r}{hint}; the columns are {', '.join(available)}{alone}"
            )
        check_distinct([each for each in available if each == name])


def _alone() -> str:
    return (
        ". That is one alone: if something unusual separates the columns, say what with "
        f"{setting('separator')}"
    )


# -- tables ---------------------------------------------------------------------------------------


def column_names(path: Path, kind: str, separator: str | None, sheet: str | None) -> list[str]:
    """The names of a table's columns."""
    with reading(path):
        if kind == "parquet":
            import pyarrow.parquet as pq

            return list(pq.read_schema(path).names)
        if kind == "arrow":
            with pa.memory_map(str(path)) as source:
                return list(pa.ipc.open_file(source).schema.names)
        if kind == "xlsx":
            return list(apart.load_xlsx(path, sheet).column_names)
        return delimited.column_names(path, kind, separator)


def stream_file(
    path: Path,
    kind: str,
    selection: Selection,
    separator: str | None,
    sheet: str | None,
    rows: int = BATCH_ROWS,
) -> Iterator[pa.RecordBatch]:
    """Batches with the selected columns of a file with a table, read once.

    Files of Parquet and Arrow are read ``rows`` at a time, text by blocks of bytes.
    """
    if kind == "parquet":
        import pyarrow.parquet as pq

        with pq.ParquetFile(path) as file:
            columns = selection.columns(file.schema_arrow.names)
            yield from file.iter_batches(rows, columns=columns)
    elif kind == "arrow":
        yield from _stream_arrow(path, selection, rows)
    elif kind == "xlsx":
        table = apart.load_xlsx(path, sheet)
        yield from table.select(selection.columns(table.column_names)).to_batches(BATCH_ROWS)
    else:
        yield from delimited.stream(path, kind, separator, selection.columns)


def _stream_arrow(path: Path, selection: Selection, rows: int) -> Iterator[pa.RecordBatch]:
    """Batches of a file in Arrow's own format, small ones of the file together."""
    with pa.memory_map(str(path)) as source:
        file = pa.ipc.open_file(source)
        columns = selection.columns(file.schema.names)
        held, waiting = 0, list[pa.RecordBatch]()
        for number in range(file.num_record_batches):
            batch = file.get_batch(number).select(columns)
            batch.validate(full=True)  # or what is no text, or lies beyond the file, would be followed
            waiting.append(batch)
            held += batch.num_rows
            if held >= rows or number == file.num_record_batches - 1:
                table = pa.Table.from_batches(waiting).combine_chunks()
                yield from table.to_batches(rows)
                held, waiting = 0, []


def read_file(
    path: Path, kind: str, separator: str | None, sheet: str | None, as_text: Sequence[str] | None
) -> pa.Table:
    """A whole table of a file."""
    if kind == "parquet":
        import pyarrow.parquet as pq

        return pq.read_table(path)
    if kind == "arrow":
        with pa.memory_map(str(path)) as source:
            table = pa.ipc.open_file(source).read_all()
            table.validate(full=True)
            return table
    if kind == "xlsx":
        return apart.load_xlsx(path, sheet)
    return delimited.read_whole(path, kind, separator, as_text)


def table_in_memory(source: Any, selection: Selection | None = None) -> pa.Table:
    """A pandas, polars, pyarrow or similar table as an Arrow table, selected columns only."""
    import narwhals as nw

    try:
        frame = nw.from_native(_with_text_names(source), eager_only=True)
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


def _with_text_names(source: Any) -> Any:
    """The same table with columns named by text: pandas has numbers there if it is told nothing."""
    import narwhals as nw

    if isinstance(source, pa.Table):
        check_distinct(source.column_names)
    if nw.dependencies.is_pandas_dataframe(source):
        names = [str(name) for name in source.columns]
        check_distinct(names)
        if names != list(source.columns):
            return source.set_axis(names, axis=1)
    return source


def check_distinct(names: Sequence[str], error: type[Exception] = DataError) -> None:
    """Refuse a name that stands for two columns."""
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise error(f"column {twice!r} is there twice: every column needs its own name")


def table_of(columns: Mapping[str, Any]) -> pa.Table:
    """Columns by name as a table."""
    with reading("the table"):
        return pa.table(dict(columns))


# -- entries ------------------------------------------------------------------------------------


class RowEncoder:
    """Numbers the labels of rows, batch after batch."""

    def __init__(
        self,
        modes: Sequence[str],
        value: str,
        bins: Mapping[str, str],
        *,
        date_format: str | None = None,
        is_csv: bool = False,
    ) -> None:
        if len(modes) < 2:
            raise SettingError(f"a tensor needs two modes or more, got {', '.join(modes)}")
        self.modes = tuple(modes)
        self._value = value
        self._bins = bins
        self._date_format = date_format
        self._encoders = [LabelEncoder(name, numbers_as_text=is_csv) for name in modes]

    def encode(self, labels: Sequence[Any], values: Any) -> tuple[list[NDArray[np.int32]], NDArray[Any]]:
        """Provisional codes for each mode, -1 where there is no label, and the values of one batch."""
        codes = []
        for name, encoder, given in zip(self.modes, self._encoders, labels, strict=True):
            column = given
            if bin := self._bins.get(name):
                column = bin_times(column, bin, column=name, date_format=self._date_format)
            codes.append(encoder.encode(column))
        return codes, as_values(values, self._value)

    def check_nulls(self) -> None:
        """Refuse rows without a label; ``finish`` does too."""
        for encoder in self._encoders:
            encoder.check_nulls()

    def finish(self) -> Iterator[tuple[Mode, NDArray[np.int32]]]:
        """The modes one by one, and for each provisional code its level."""
        for name, encoder in zip(self.modes, self._encoders, strict=True):
            labels, remap = encoder.finish()
            yield Mode(name, len(labels), labels, self._bins.get(name)), remap


class EntryCollector:
    """Builds a tensor from batches, of which only int32 codes and values are kept."""

    def __init__(self, rows: RowEncoder) -> None:
        self._rows = rows
        self._codes: list[list[NDArray[np.int32]]] = [[] for _ in rows.modes]
        self._values: list[NDArray[Any]] = []

    def add(self, labels: Sequence[Any], values: Any) -> None:
        """Take one batch: an Arrow array of labels per mode, and one of values."""
        batch, numbers = self._rows.encode(labels, values)
        for codes, part in zip(self._codes, batch, strict=True):
            codes.append(part)
        self._values.append(numbers)

    def finish(self, bounds: tuple[float, float] | None) -> SparseTensor:
        """The tensor of everything added. The collector is empty afterwards."""
        n_entries = sum(len(part) for part in self._values)
        if not n_entries:
            raise DataError("there are no entries: the table is empty")
        if n_entries > MAX_ENTRIES:
            raise DataError(f"at most {MAX_ENTRIES:,} entries are supported, got {n_entries:,}")
        coordinates = np.empty((len(self._codes), n_entries), np.int32)
        modes = []
        for row, codes, (mode, remap) in zip(coordinates, self._codes, self._rows.finish(), strict=True):
            modes.append(mode)
            _move_codes(codes, remap, row)
        values = np.concatenate(self._values)
        self._values.clear()
        shape = tuple(mode.size for mode in modes)
        sort_entries(coordinates, values, shape, available_threads())
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
    return to_numpy(filled(array.cast(dtype, safe=False), np.nan))


def _numbers_from_text(array: Any, column: str) -> Any:
    def convert(part: Any) -> Any:
        text = pc.utf8_trim_whitespace(part.cast(pa.string()))
        no_value = pc.is_in(text, value_set=pa.array(_NO_VALUE))
        return pc.if_else(no_value, pa.scalar(None, pa.string()), text).cast(pa.float64())

    try:
        return array.cast(pa.string()).cast(pa.float64())  # most are numbers and nothing else
    except pa.ArrowInvalid:
        pass
    try:
        return convert(array)
    except pa.ArrowInvalid as error:
        wrong = first_refused(array, convert)
        hint = ". Write decimals with a point" if _DECIMAL_COMMA.match(str(wrong)) else ""
        raise DataError(
            f"column {column!r} is to hold the values but is not numeric: it has {wrong!r}{hint}"
        ) from error
