"""Writing tables, completed cells and factors. A file appears whole or not at all."""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
from numpy.typing import NDArray

from sfumato.checks import (
    as_list,
    as_path,
    check_choice,
    check_kind,
    check_text,
    given,
    wrong,
)
from sfumato.data.io import delimited
from sfumato.data.io.delimited import check_separator
from sfumato.data.io.files import DELIMITED_KINDS, existing_file, file_kind
from sfumato.data.tensor import Mode
from sfumato.errors import DataError, SettingError

_DELIMITERS = {".csv": ",", ".tsv": "\t"}
_NOT_IN_FILE_NAMES = re.compile(r"[^\w-]+")


def check_file(path: Path) -> None:
    """Refuse a path that no file can be written to."""
    if not path.parent.is_dir():
        raise DataError(f"cannot write {path}: there is no folder {path.parent}")
    if not path.name or path.is_dir():
        raise DataError(f"cannot write {path}: it is a folder, so name a file in it")


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """A file to write to that takes the place of ``path`` once it is complete and on disk.

    If anything goes wrong the file that was there stays, and nothing else is left behind.
    """
    path = as_path("path", path)
    check_file(path)
    draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    try:
        with draft.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(draft, path)
    finally:
        draft.unlink(missing_ok=True)


def write_table(table: pa.Table, path: str | os.PathLike[str]) -> None:
    """Write a table as .csv, .tsv or .parquet, by the suffix of the path."""
    suffix = _known_suffix(as_path("path", path))
    with replacing(path) as file:
        if suffix == ".parquet":
            pq.write_table(table, file)
        else:
            pacsv.write_csv(table, file, pacsv.WriteOptions(delimiter=_DELIMITERS[suffix]))


def _known_suffix(path: str | os.PathLike[str]) -> str:
    suffix = Path(path).suffix.lower()
    if suffix not in (*_DELIMITERS, ".parquet"):
        raise SettingError(f"cannot write {Path(path).name}: use .csv, .tsv or .parquet")
    return suffix


def write_added(
    source: Path,
    table: pa.Table,
    added: Mapping[str, NDArray[Any] | list[Any]],
    out: Path | BinaryIO,
    separator: str | None = None,
) -> None:
    """Write the table of a file with more columns, of numbers or words, to a path or to an open stream.

    What a .csv or .tsv file holds is not written anew where the same kind is asked for, but copied, with
    the new columns at the end of its lines. A stream gets what the file is, or else CSV.
    """
    source = existing_file(source)
    kind = file_kind(source)
    if kind in DELIMITED_KINDS and (not isinstance(out, Path) or _known_suffix(out) == f".{kind}"):
        lines = delimited.with_columns(source, kind, check_separator(separator), added)
        with replacing(out) if isinstance(out, Path) else nullcontext(out) as file:
            file.writelines(lines)
        return
    for name, values in added.items():
        table = table.append_column(name, pa.array(values))
    if isinstance(out, Path):
        write_table(table, out)
    else:
        pacsv.write_csv(table, out)


def write_completed(
    path: str | os.PathLike[str],
    coordinates: NDArray[np.integer[Any]],
    values: NDArray[Any],
    modes: Sequence[Mode],
    value_name: str = "prediction",
) -> None:
    """Write cells: a column of labels for each mode, then the values.

    Parameters
    ----------
    path : path
        A .csv, .tsv, .parquet, .arrow or .feather file.
    coordinates : array
        A row for each mode, a column for each cell.
    values : array
        One for each cell.
    modes : sequence of Mode
        With the labels that are written.
    value_name : str
        What the column of values is called.

    Examples
    --------
    >>> import pathlib, sfumato as sf
    >>> tensor = sf.synthetic.ratings_like(4, 3, 2, 5)
    >>> sf.write_completed(
    ...     "cells.csv", tensor.coordinates[:, :2], tensor.values[:2], tensor.modes
    ... )
    >>> print(pathlib.Path("cells.csv").read_text())
    "user","item","day","prediction"
    "u001","i002","1998-04-02",3
    "u002","i003","1998-04-01",2
    """
    write_table(cells_table(coordinates, values, modes, value_name), path)


def cells_table(
    coordinates: NDArray[np.integer[Any]],
    values: NDArray[Any],
    modes: Sequence[Mode],
    value_name: str,
) -> pa.Table:
    """Cells as a table: a column of labels for each mode, then the values."""
    check_text(value_name=value_name)
    _check_cells(coordinates, values, modes)
    columns = {
        mode.name: _label_column(mode, levels) for mode, levels in zip(modes, coordinates, strict=True)
    }
    if value_name in columns:
        raise SettingError(f"value_name {value_name!r} is the name of a mode: choose another")
    columns[value_name] = pa.array(np.ascontiguousarray(values))
    return pa.table(columns)


def write_factors(
    directory: str | os.PathLike[str],
    factors: Sequence[NDArray[Any]],
    modes: Sequence[Mode],
    format: str = "csv",
    biases: Sequence[NDArray[Any] | None] | None = None,
) -> list[Path]:
    """Write one file per mode: the label, columns f1 to fr, and the bias where there is one.

    Parameters
    ----------
    directory : path
        Where to; it is made.
    factors : sequence of array
        A matrix for each mode, with a row for each level.
    modes : sequence of Mode
        With the labels that are written.
    format : str
        "csv", "tsv", "parquet" or "arrow".
    biases : sequence of (array or None)
        One for each level, of each mode that has them.

    Returns
    -------
    list of Path
        One file for each mode.

    Examples
    --------
    >>> import sfumato as sf
    >>> model = sf.CP(rank=2).fit(sf.synthetic.ratings_like(30, 20, 5, 400))
    >>> files = sf.write_factors("factors", model.model_.factors, model.modes_)
    >>> [file.name for file in files]
    ['user.csv', 'item.csv', 'day.csv']
    """
    check_choice(("csv", "parquet"), format=format)
    folder = as_path("directory", directory)
    _check_lists(modes, factors=factors, **given(biases=biases))
    paths = [folder / f"{_NOT_IN_FILE_NAMES.sub('_', mode.name)}.{format}" for mode in modes]
    if len(set(paths)) < len(paths):
        raise SettingError("two modes would be written to one file: rename one of them")
    tables = [
        _factor_table(mode, factor, bias)
        for mode, factor, bias in zip(modes, factors, biases or [None] * len(modes), strict=True)
    ]
    folder.mkdir(parents=True, exist_ok=True)
    for table, path in zip(tables, paths, strict=True):
        write_table(table, path)
    return paths


def _check_cells(coordinates: Any, values: Any, modes: Any) -> None:
    _check_lists(modes)
    check_kind(np.ndarray, "an array", coordinates=coordinates, values=values)
    if values.ndim != 1 or coordinates.shape != (len(modes), *values.shape):
        raise DataError(
            f"coordinates must have shape ({len(modes)}, cells) and values (cells,), got "
            f"{coordinates.shape} and {values.shape}"
        )


def _check_lists(modes: Any, **parts: Any) -> None:
    """Modes, and lists with something for each of them."""
    for mode in as_list("modes", modes, "a list of sfumato.Mode"):
        check_kind(Mode, "a sfumato.Mode", **{"each of modes": mode})
    for name, part in parts.items():
        if len(as_list(name, part, "a list of arrays, one for each mode")) != len(modes):
            raise wrong(name, f"a list of {len(modes)} arrays, one for each mode", part)


def _factor_table(mode: Mode, factor: NDArray[Any], bias: NDArray[Any] | None) -> pa.Table:
    check_kind(np.ndarray, "an array", **{f"the factor of {mode.name!r}": factor})
    if factor.ndim != 2 or factor.shape[0] != mode.size:
        raise DataError(f"mode {mode.name!r} has {mode.size} levels but factors of shape {factor.shape}")
    names = [mode.name, *(f"f{column + 1}" for column in range(factor.shape[1]))]
    columns = [_label_column(mode, np.arange(mode.size))]
    columns += [pa.array(np.ascontiguousarray(column)) for column in factor.T]
    if bias is not None:
        check_kind(np.ndarray, "an array", **{f"the biases of {mode.name!r}": bias})
        if bias.shape != (mode.size,):
            raise DataError(
                f"mode {mode.name!r} has {mode.size} levels but biases of shape {bias.shape}"
            )
        names.append("bias")
        columns.append(pa.array(np.ascontiguousarray(bias)))
    if mode.name in names[1:]:
        raise SettingError(f"the mode name {mode.name!r} is also a column of factors: rename it")
    return pa.Table.from_arrays(columns, names)


def _label_column(mode: Mode, levels: NDArray[Any]) -> Any:
    if mode.labels is None:
        return pa.array(np.ascontiguousarray(levels))
    # Through a dictionary no Python object is made for a row.
    codes = pa.array(np.ascontiguousarray(levels, np.int32))
    return pa.DictionaryArray.from_arrays(codes, pa.array(mode.labels)).dictionary_decode()
