"""Reading tensors and tables from files and from objects in memory."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import scipy.sparse
from numpy.typing import NDArray

from sfumato.checks import as_names, check_kind, check_text, given
from sfumato.data import arrays, tables
from sfumato.data.labels import LabelEncoder, bin_times
from sfumato.data.tables import EntryCollector, Selection
from sfumato.data.tensor import Mode, SparseTensor, check_bounds
from sfumato.errors import DataError, SettingError


def read(
    source: Any,
    modes: Sequence[str] | None = None,
    value: str | None = None,
    *,
    bounds: tuple[float, float] | None = None,
    bins: Mapping[str, str] | None = None,
    variable: str | None = None,
) -> SparseTensor:
    """Read a sparse tensor.

    ``source`` is the path of a .csv, .tsv, .parquet, .tns, .npz, .npy or .mat file, a table of
    pandas, polars or pyarrow, a NumPy array in which NaN means missing, a SciPy sparse matrix or
    array of which the stored entries count as observed, or a tensor.

    For a table ``modes`` and ``value`` name its columns; an array has no columns, and ``modes``
    may name its modes. ``bins`` cuts columns of times to "hour", "day", "week" or "month".
    ``variable`` chooses one array of a .npz or .mat file. ``bounds`` are the lowest and the
    highest value possible; they are recorded, and judged when a model is fitted, as are
    duplicates and missing values.
    """
    check_text(**given(value=value, variable=variable))
    check_kind(Mapping | None, "bins by the names of columns", bins=bins)
    names = None if modes is None else tuple(as_names("modes", modes))
    selection = Selection(names, value, dict(bins or {}))
    bounds = check_bounds(bounds)
    if isinstance(source, str | os.PathLike):
        path = tables.existing_file(source)
        kind = tables.file_kind(path)
        if variable is not None and kind not in ("npz", "mat"):
            raise SettingError(f"variable chooses an array of a .npz or .mat file, not {path.name}")
        if kind in tables.TABLE_KINDS:
            return _collect(
                tables.stream_file(path, kind, selection), selection, bounds, kind != "parquet"
            )
        if kind == "tns":
            _refuse_bins(selection)
            return arrays.read_tns(path, selection.modes, bounds)
        source = arrays.load_array(path, kind, variable, selection)
    return _read_object(source, selection, bounds)


def _read_object(source: Any, selection: Selection, bounds: tuple[float, float] | None) -> SparseTensor:
    if isinstance(source, SparseTensor):
        if selection != Selection():
            raise SettingError("a tensor has its modes already: only bounds can be given with it")
        return source if bounds is None else replace(source, bounds=bounds)
    if isinstance(source, np.ndarray):
        _refuse_bins(selection)
        return arrays.from_dense(source, selection.modes, bounds)
    if scipy.sparse.issparse(source):
        _refuse_bins(selection)
        return arrays.from_sparse(source, selection.modes, bounds)
    table = tables.table_in_memory(source, selection)
    return _collect(table.to_batches(tables.BATCH_ROWS), selection, bounds)


def _collect(
    batches: Any,
    selection: Selection,
    bounds: tuple[float, float] | None,
    is_csv: bool = False,
) -> SparseTensor:
    collector: EntryCollector | None = None
    for batch in batches:
        # Only now is it known that modes and value are given and are columns.
        *names, value = selection.columns(batch.schema.names)
        if collector is None:
            collector = EntryCollector(names, value, selection.bins, is_csv=is_csv)
        collector.add([batch.column(name) for name in names], batch.column(value))
    if collector is None:
        raise DataError("there are no entries: the table is empty")
    return collector.finish(bounds)


def _refuse_bins(selection: Selection) -> None:
    if selection.bins:
        raise SettingError("bins cut columns of times: an array has no such columns")


def read_table(
    source: Any, columns: Sequence[str] | None = None, *, as_text: Sequence[str] = ()
) -> pa.Table:
    """Read a whole table: a CSV, TSV or Parquet file, or an object in memory.

    Types of CSV columns are inferred, but the columns in ``as_text`` stay as they are written.
    """
    if isinstance(source, str | os.PathLike):
        path = tables.existing_file(source)
        kind = tables.file_kind(path)
        if kind not in tables.TABLE_KINDS:
            raise DataError(f"{path.name} is not a table: use .csv, .tsv or .parquet")
        with tables.reading(path):
            table = pq.read_table(path) if kind == "parquet" else _read_csv(path, kind, as_text)
    else:
        table = tables.table_in_memory(source)
    if columns is None:
        return table
    tables.check_columns(columns, table.column_names)
    return table.select(list(columns))


def _read_csv(path: os.PathLike[str], kind: str, as_text: Sequence[str]) -> pa.Table:
    options = pacsv.ConvertOptions(column_types=dict.fromkeys(as_text, pa.string()))
    with pa.input_stream(path, compression="detect") as stream:
        return pacsv.read_csv(stream, parse_options=tables.csv_format(kind), convert_options=options)


def read_entries(source: Any, modes: Sequence[Mode], value: str | None = None) -> SparseTensor:
    """Own entries with a model's modes, their labels as they come.

    ``source`` is a tensor, or a table or file of one. The values are in the column ``value``, or in the
    only one that is no mode.
    """
    names = [mode.name for mode in modes]
    if isinstance(source, SparseTensor):
        if source.mode_names != tuple(names):
            raise SettingError(
                f"own entries need the modes {', '.join(names)}, got {', '.join(source.mode_names)}"
            )
        return source
    columns = read_table(source, as_text=names).column_names
    tables.check_columns(names, columns)
    rest = [name for name in columns if name not in names]
    if not rest:
        raise SettingError(f"own entries need a column of values beside {', '.join(names)}")
    if value is None and len(rest) > 1:
        raise SettingError(
            "own entries have several columns beside the modes: say which holds the values, "
            f"own_value or --own-value: {', '.join(rest)}"
        )
    bins = {mode.name: mode.bin for mode in modes if mode.bin is not None}
    return read(source, names, value or rest[0], bins=bins)


def labels_of(table: pa.Table, modes: Sequence[Mode]) -> dict[str, NDArray[Any]]:
    """Labels of a table's rows for each mode, as :func:`sfumato.data.tensor.find_levels` takes.

    Where the labels of a mode are time bins, the column may hold times or such labels.
    """
    tables.check_columns([mode.name for mode in modes], table.column_names)
    return {mode.name: _labels(table.column(mode.name), mode) for mode in modes}


def _labels(column: Any, mode: Mode) -> NDArray[Any]:
    encoder = LabelEncoder(mode.name, numbers_as_text=True)
    codes = [np.empty(0, np.int32)]
    for part in column.chunks:
        binned = part if mode.bin is None else bin_times(part, mode.bin, column=mode.name)
        codes.append(encoder.encode(binned))
    labels, remap = encoder.finish()
    return labels[remap[np.concatenate(codes)]]
