"""Reading tensors and tables from files and from objects in memory."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from sfumato.checks import as_names, check_kind, check_text, given
from sfumato.data.io import arrays, tables
from sfumato.data.io.delimited import check_separator
from sfumato.data.io.files import DELIMITED_KINDS, TABLE_KINDS, existing_file, file_kind, reading
from sfumato.data.io.labels import LabelEncoder, bin_times, dates_from_text, is_text
from sfumato.data.io.privatised_files import is_privatised
from sfumato.data.io.tables import EntryCollector, RowEncoder, Selection
from sfumato.data.tensor import Mode, SparseTensor, check_bounds
from sfumato.errors import DataError, SettingError
from sfumato.surface import either, setting


def read(
    source: Any,
    modes: Sequence[str] | None = None,
    value: str | None = None,
    *,
    bounds: tuple[float, float] | None = None,
    bins: Mapping[str, str] | None = None,
    variable: str | None = None,
    separator: str | None = None,
    date_format: str | None = None,
    privatised: bool = False,
) -> SparseTensor:
    """Read a sparse tensor.

    Parameters
    ----------
    source
        The path of a .csv, .tsv, .parquet, .arrow, .feather, .xlsx, .tns, .npz, .npy or .mat file (.csv,
        .tsv and .tns also compressed: .gz, .bz2, .zst, .lz4, or alone in a .zip), a table of pandas,
        polars or pyarrow, a NumPy array in which NaN means missing, a SciPy sparse matrix or array of
        which the stored entries count as observed, or a tensor.
    modes : sequence of str or None
        Of a table the columns that are modes; an array has no columns, and its modes may be named.
    value : str or None
        Of a table the column of values.
    bounds : pair of float or None
        The lowest and the highest value possible; they are recorded, and judged when a model is fitted,
        as are duplicates and missing values.
    bins : mapping or None
        Cuts columns of times to "hour", "day", "week" or "month".
    variable : str or None
        One array of a .npz or .mat file, or one sheet of a .xlsx file.
    separator : str or None
        What stands between the columns of a .csv or .tsv file; by default what its header shows: a comma
        or tab, else one of ``;`` and ``|``.
    date_format : str or None
        How times are written if not in the ISO way, "%d/%m/%Y" say.
    privatised : bool
        Whether noisy values are to be taken as they are written. A file of them is refused else:
        :func:`sfumato.read_privatised` reads it.

    Returns
    -------
    SparseTensor
        With labels as they were read.

    Raises
    ------
    DataError
        Says what cannot be read, and where.

    Examples
    --------
    >>> import pandas as pd, sfumato as sf
    >>> rows = {
    ...     "user": ["ann", "ann", "bob"],
    ...     "film": ["X", "Y", "X"],
    ...     "stars": [5, 1, 4],
    ... }
    >>> sf.read(
    ...     pd.DataFrame(rows), modes=["user", "film"], value="stars", bounds=(1, 5)
    ... )
    SparseTensor(user 2 x film 2; 3 entries, density 0.75, float64, values in [1,
        5])
    """
    check_text(**given(value=value, variable=variable))
    check_kind(Mapping | None, "bins by the names of columns", bins=bins)
    names = None if modes is None else tuple(as_names("modes", modes))
    selection = Selection(names, value, dict(bins or {}), date_format)
    bounds, separator = check_bounds(bounds), check_separator(separator)
    if not isinstance(source, str | os.PathLike):
        _refuse_separator(separator, f"a {type(source).__name__}")
        with reading(f"the {type(source).__name__}"):
            return _read_object(source, selection, bounds)
    path, kind = _file(source, separator)
    if not privatised and is_privatised(path):
        raise DataError(
            f"{path.name} holds privatised values, which are not to be taken for clean: read it with "
            "sfumato.read_privatised, or fit it by sfumato complete"
        )
    if variable is not None and kind not in ("npz", "mat", "xlsx"):
        raise SettingError(
            f"{setting('variable')} chooses an array of a .npz or .mat file, not {path.name}"
        )
    with reading(path):
        if kind in TABLE_KINDS:
            batches = tables.stream_file(path, kind, selection, separator, variable)
            return _collect(batches, selection, bounds, kind in DELIMITED_KINDS)
        if kind == "tns":
            _refuse_bins(selection)
            return arrays.read_tns(path, selection.modes, bounds)
        return _read_object(arrays.load_array(path, kind, variable, selection), selection, bounds)


def _file(source: str | os.PathLike[str], separator: str | None) -> tuple[Path, str]:
    """The path and the kind of a file that is there."""
    path = existing_file(source)
    kind = file_kind(path)
    if kind not in DELIMITED_KINDS:
        _refuse_separator(separator, path.name)
    return path, kind


def _refuse_separator(separator: str | None, what: str) -> None:
    if separator is not None:
        raise SettingError(f"separator is for .csv and .tsv files: leave it out for {what}")


def _read_object(source: Any, selection: Selection, bounds: tuple[float, float] | None) -> SparseTensor:
    import scipy.sparse

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
            rows = RowEncoder(
                names, value, selection.bins, date_format=selection.date_format, is_csv=is_csv
            )
            collector = EntryCollector(rows)
        collector.add([batch.column(name) for name in names], batch.column(value))
    if collector is None:
        raise DataError("there are no entries: the table is empty")
    return collector.finish(bounds)


def _refuse_bins(selection: Selection) -> None:
    if selection.bins:
        raise SettingError(
            f"{either('bins', '--bin')} cuts columns of times: an array has no such columns"
        )


def read_table(
    source: Any,
    columns: Sequence[str] | None = None,
    *,
    as_text: Sequence[str] | None = (),
    separator: str | None = None,
    variable: str | None = None,
) -> pa.Table:
    """Read a whole table: a CSV, TSV, Parquet, Arrow or Excel file, or an object in memory.

    Types of CSV columns are inferred, but the columns in ``as_text``, all if it is None, stay as they
    are written. ``separator`` and ``variable`` are as for :func:`read`.
    """
    separator = check_separator(separator)
    if isinstance(source, str | os.PathLike):
        path, kind = _file(source, separator)
        if kind not in TABLE_KINDS:
            raise DataError(f"{path.name} is not a table: use .csv, .tsv, .parquet, .arrow or .xlsx")
        with reading(path):
            table = tables.read_file(path, kind, separator, variable, as_text)
            available = table.column_names  # which may be no text
    else:
        with reading(f"the {type(source).__name__}"):
            table = tables.table_in_memory(source)
            available = table.column_names
    if columns is None:
        return table
    tables.check_columns(columns, available)
    return table.select(list(columns))


def columns_of(
    source: str | os.PathLike[str], separator: str | None = None, variable: str | None = None
) -> list[str]:
    """Names of the columns of a file with a table; none for other kinds of files."""
    separator = check_separator(separator)
    path, kind = _file(source, separator)
    return tables.column_names(path, kind, separator, variable) if kind in TABLE_KINDS else []


def read_entries(
    source: Any,
    modes: Sequence[Mode],
    value: str | None = None,
    *,
    separator: str | None = None,
    date_format: str | None = None,
) -> SparseTensor:
    """Own entries with a model's modes, their labels as they come.

    ``source`` is a tensor, or a table or file of one. The values are in the column ``value``, or in the
    only one that is no mode. ``separator`` and ``date_format`` are as for :func:`read`.
    """
    names = [mode.name for mode in modes]
    if isinstance(source, SparseTensor):
        if source.mode_names != tuple(names):
            raise SettingError(
                f"own entries need the modes {', '.join(names)}, got {', '.join(source.mode_names)}"
            )
        return source
    columns = read_table(source, as_text=names, separator=separator).column_names
    tables.check_columns(names, columns)
    rest = [name for name in columns if name not in names]
    if not rest:
        raise SettingError(f"own entries need a column of values beside {', '.join(names)}")
    if value is None and len(rest) > 1:
        raise SettingError(
            "own entries have several columns beside the modes: say which holds the values, "
            f"{setting('own_value')}: {', '.join(rest)}"
        )
    bins = {mode.name: mode.bin for mode in modes if mode.bin is not None}
    return read(source, names, value or rest[0], bins=bins, separator=separator, date_format=date_format)


def labels_of(table: pa.Table, modes: Sequence[Mode]) -> dict[str, NDArray[Any]]:
    """Labels of a table's rows for each mode, as :func:`sfumato.data.tensor.find_levels` takes.

    Where the labels of a mode are time bins, the column may hold times or such labels.
    """
    tables.check_columns([mode.name for mode in modes], table.column_names)
    with reading("the table"):
        return {mode.name: _labels(table.column(mode.name), mode) for mode in modes}


def with_dates(table: pa.Table, modes: Sequence[Mode], date_format: str | None) -> pa.Table:
    """The table with dates that are written in a format as times, in the columns of modes of times."""
    if date_format is None:
        return table
    names = [mode.name for mode in modes if mode.bin is not None and mode.name in table.column_names]
    if not names:
        raise SettingError(f"{setting('date_format')} is for times, and none of the columns holds them")
    for name in names:
        column = table.column(name).combine_chunks()
        if is_text(column.type):
            dates = dates_from_text(column, date_format, name)
            table = table.set_column(table.column_names.index(name), name, dates)
    return table


def _labels(column: Any, mode: Mode) -> NDArray[Any]:
    encoder = LabelEncoder(mode.name, numbers_as_text=True)
    codes = [np.empty(0, np.int32)]
    for part in column.chunks:
        binned = part if mode.bin is None else bin_times(part, mode.bin, column=mode.name)
        codes.append(encoder.encode(binned))
    labels, remap = encoder.finish()
    return labels[remap[np.concatenate(codes)]]
