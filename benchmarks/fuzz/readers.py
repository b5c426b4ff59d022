"""Damaged and hostile data for the readers: files of every kind, and objects handed over in Python.

A case is a small right table or array, made wrong in one of two ways: what it says (impossible
numbers, odd labels, pointers that point nowhere, headers that claim too much), or the bytes that it is
written in.
"""

from __future__ import annotations

import gzip
import io
import zipfile
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import scipy.io
import scipy.sparse
from numpy.random import Generator

from benchmarks.fuzz.harness import Subject
from benchmarks.fuzz.xlsx import workbook
from sfumato.data.io.read import labels_of, read, read_table
from sfumato.data.samples import open_samples
from sfumato.data.tensor import Mode, SparseTensor

MODES, VALUE = ["user", "item", "day"], "rating"
CALL = {"modes": MODES, "value": VALUE}

EXTREMES = [
    0,
    -1,
    1,
    127,
    255,
    2**15,
    2**31 - 1,
    2**31,
    2**32 + 5,
    2**53 + 1,
    2**63 - 1,
    -(2**63),
    2**64 - 1,
]
ODD_TEXT = [
    "", " ", "nan", "inf", "-0", "1e400", "9" * 400, "0x10", "1_000", "3,5", '"', '""', "'",
    "\0", "\ufeff", "é", "\U0001f600", "a" * 5000, "=1+1", "2^31", "4294967301", "1.5e-320", "True",
    "None", "01/02/2020", "31/02/2020", "2020-13-01", "2020-W60", "-1", "#", ";", "\t", "|",
]  # fmt: skip
DATE_FORMATS = ["%d/%m/%Y", "%Y", "%%", "%q", "%d/%m/%Y %H:%M:%S", "%s", "%d %B %Y", "%j"]


# -- what a table says ----------------------------------------------------------------------------


def _columns(rng: Generator) -> dict[str, list[Any]]:
    """A right table of a few rows."""
    rows = int(rng.integers(1, 30))
    return {
        "user": rng.integers(0, 8, rows).tolist(),
        "item": [f"i{number}" for number in rng.integers(0, 6, rows)],
        "day": [f"2020-01-{day:02}" for day in rng.integers(1, 29, rows)],
        "rating": (rng.integers(1, 11, rows) / 2).tolist(),
    }


def _texts(rng: Generator) -> list[list[str]]:
    """The lines of a table as fields, a few of them odd."""
    columns = _columns(rng)
    lines = [
        list(columns),
        *([str(cell) for cell in row] for row in zip(*columns.values(), strict=True)),
    ]
    for _ in range(rng.choice([0, 1, 3], p=[0.4, 0.4, 0.2])):
        line = lines[rng.integers(len(lines))]
        edit = rng.integers(5)
        if edit == 0:
            line.append("more")
        elif edit == 1 and line:
            line.pop()
        elif line:
            odd = str(rng.choice(EXTREMES)) if edit == 2 else ODD_TEXT[rng.integers(len(ODD_TEXT))]
            line[rng.integers(len(line))] = odd
    return lines


def _delimited(rng: Generator, separator: str) -> bytes:
    ends = ["\n", "\r\n", "\r", "\n\n"][min(int(rng.integers(12)), 3)]
    quote = '"' if rng.random() < 0.3 else ""
    lines = (separator.join(f"{quote}{field}{quote}" for field in line) for line in _texts(rng))
    encoding = ["utf-8", "latin-1", "utf-16", "utf-8-sig"][max(int(rng.integers(-8, 4)), 0)]
    return (ends.join(lines) + ends).encode(encoding, "replace")


# -- what bytes say -------------------------------------------------------------------------------


def _damaged(data: bytes, rng: Generator) -> bytes:
    """The same bytes with a few of them wrong; now and then all of them right."""
    wrong = bytearray(data)
    for _ in range(rng.choice([0, 1, 2, 5], p=[0.3, 0.4, 0.2, 0.1])):
        if not wrong:
            break
        place = int(rng.integers(len(wrong)))
        edit = rng.integers(7)
        if edit == 0:
            wrong[place] ^= 1 << int(rng.integers(8))
        elif edit == 1:
            del wrong[place:]
        elif edit == 2:
            del wrong[place : place + int(rng.integers(1, 40))]
        elif edit == 3:
            wrong[place:place] = rng.bytes(int(rng.integers(1, 40)))
        elif edit == 4:
            other, length = int(rng.integers(len(wrong))), int(rng.integers(1, 40))
            wrong[place : place + length], wrong[other : other + length] = (
                wrong[other : other + length],
                wrong[place : place + length],
            )
        elif edit == 5:  # a size or an offset, as large as it can be
            number = EXTREMES[rng.integers(len(EXTREMES))] % 2**64
            width = int(rng.choice([1, 2, 4, 8]))
            wrong[place : place + width] = number.to_bytes(8, "little")[:width]
        else:
            wrong[place : place + 1] = wrong[place : place + 20] * int(rng.integers(2, 200))
    return bytes(wrong)


def _archive(members: dict[str, bytes], rng: Generator) -> bytes:
    """A zip whose members, or whose own bytes, are damaged."""
    inside = rng.random() < 0.6
    file = io.BytesIO()
    with zipfile.ZipFile(
        file, "w", zipfile.ZIP_DEFLATED if rng.random() < 0.5 else zipfile.ZIP_STORED
    ) as zipped:
        for name, content in members.items():
            hit = inside and rng.random() < 1.5 / len(members)
            zipped.writestr(name, _damaged(content, rng) if hit else content)
    return file.getvalue() if inside else _damaged(file.getvalue(), rng)


# -- files ----------------------------------------------------------------------------------------


def _csv(rng: Generator) -> bytes:
    return _damaged(_delimited(rng, ","), rng)


def _tsv(rng: Generator) -> bytes:
    return _damaged(_delimited(rng, "\t"), rng)


def _semicolons(rng: Generator) -> bytes:
    return _damaged(_delimited(rng, ";|\t"[rng.integers(3)]), rng)


def _gzipped(rng: Generator) -> bytes:
    if rng.random() < 0.5:
        return gzip.compress(_csv(rng))
    return _damaged(gzip.compress(_delimited(rng, ",")), rng)


def _zip(rng: Generator) -> bytes:
    names = ["t.csv", "__MACOSX/._t.csv", "u.csv", "t.exe", "../t.csv", "t.tns", "a/", "t.csv.zip"]
    chosen = (
        ["t.csv"]
        if rng.random() < 0.7
        else rng.choice(names, rng.integers(0, 3), replace=False).tolist()
    )
    return _archive({name: _delimited(rng, ",;"[rng.integers(2)]) for name in chosen}, rng)


def _xlsx(rng: Generator) -> bytes:
    rows = [[_number_if_it_is(text) for text in line] for line in _texts(rng)]
    sheets = {"one": rows, "two": rows[:3]} if rng.random() < 0.1 else {"one": rows}
    files = workbook(sheets)
    if rng.random() < 0.1:  # one cell that is far from all others
        place = str(rng.choice(["XFD1048576", "A1048576", "A0", "ZZZZ9", "A99999999999", "1A", ""]))
        name = "xl/worksheets/sheet1.xml"
        files[name] = files[name].replace('r="B1"', f'r="{place}"', 1)
    return _archive({name: text.encode("utf-8", "replace") for name, text in files.items()}, rng)


def _number_if_it_is(text: str) -> str | float:
    try:
        return float(text)
    except ValueError:
        return text


def _parquet(rng: Generator) -> bytes:
    table = pa.table(_columns(rng))
    codec, rows = str(rng.choice(["none", "snappy", "zstd", "gzip"])), int(rng.integers(1, 20))
    if rng.random() < 0.4:
        place = int(rng.integers(5))  # the fifth is a column more
        name = [*MODES, VALUE, MODES[0]][place]
        odd = table.append_column(name, _odd_column(rng, len(table)))
        table = odd if place == 4 else odd.select([n for n in range(5) if n != place])
    file = pa.BufferOutputStream()
    try:
        pq.write_table(table, file, compression=codec, row_group_size=rows)
    except pa.ArrowException:  # a type that the format does not have
        pq.write_table(table.slice(0, 0), file := pa.BufferOutputStream())
    return _damaged(file.getvalue().to_pybytes(), rng)


def _tns(rng: Generator) -> bytes:
    columns = [rng.integers(1, 9, 20) for _ in range(4)]
    lines = [[str(cell) for cell in row] for row in zip(*columns, strict=True)]
    odd = [*map(str, EXTREMES), *ODD_TEXT, "1.0", "2.5", "3.", "# note", "1 2", "\n", "\r"]
    for _ in range(rng.integers(0, 3)):
        lines[rng.integers(20)][rng.integers(4)] = odd[rng.integers(len(odd))]
    blank = [" ", "\t", "  ", " \v"][rng.integers(4)]
    return _damaged("\n".join(blank.join(line) for line in lines).encode("utf-8", "replace"), rng)


def _npy_bytes(array: Any, rng: Generator, chance: float = 0.15) -> bytes:
    """An array as a .npy file, whose header by chance claims what is not so."""
    file = io.BytesIO()
    np.save(file, array, allow_pickle=True)
    data = file.getvalue()
    if rng.random() > chance:
        return data
    size = int.from_bytes(data[8:10], "little")
    header = data[10 : 10 + size].decode("latin-1")
    shapes = [
        "(-1, 3)",
        "(1000000000000,)",
        f"({2**62}, 4)",
        "(0, 99999999999999999999)",
        "(2, 2.0)",
        "((2),)",
    ]
    shapes += ["(" + "1, " * 70 + ")", "(True, 4)", "('a',)", "None"]
    types = [
        "'|O'",
        "'|V0'",
        "'<U0'",
        "'<f16'",
        "'>f8'",
        "'|b1'",
        "'<M8[D]'",
        "'<c16'",
        "'z'",
        "[('a', '<f8')]",
    ]
    types += ["'<f2'", "'|S5'", "None", "'<i8,<i8'", "'<U99999999999'"]
    edits = {
        str(array.shape): shapes[rng.integers(len(shapes))],
        repr(array.dtype.str): types[rng.integers(len(types))],
        "False": str(rng.choice(["True", "1", "''"])),
        "{": str(rng.choice(["[" * 500, "{'a': 1, ", "", "#", "__import__('os')", "0o7L"])),
        "'shape'": "'shapes'",
    }
    old = list(edits)[rng.integers(len(edits))]
    edited = header.replace(old, edits[old]).encode("latin-1")[:65000]
    return data[:6] + data[6:8] + len(edited).to_bytes(2, "little") + edited + data[10 + size :]


def _dense(rng: Generator) -> Any:
    array = rng.integers(0, 5, tuple(rng.integers(1, 5, rng.integers(1, 5)))).astype(float)
    array[rng.random(array.shape) < 0.3] = np.nan
    kind = str(
        rng.choice(["f8", ">f8", "f4", "i4", "u8", "c16", "U3", "?", "O"], p=[0.5, *[0.0625] * 8])
    )
    with np.errstate(invalid="ignore"):
        return array.astype(kind)


def _npy(rng: Generator) -> bytes:
    return _damaged(_npy_bytes(_dense(rng), rng), rng)


def _npz(rng: Generator) -> bytes:
    arrays = {name: np.array(column) for name, column in _columns(rng).items()}
    if rng.random() < 0.3:
        arrays = {"x": _dense(rng)}
    return _archive({f"{name}.npy": _npy_bytes(array, rng) for name, array in arrays.items()}, rng)


def _npz_sparse(rng: Generator) -> bytes:
    matrix = _sparse(rng, formats=("csr", "csc", "coo", "bsr", "dia"))
    if rng.random() < 0.6:
        matrix = _tampered(matrix, rng)
    names = ("data", "indices", "indptr", "row", "col", "offsets")
    arrays = {name: np.asarray(getattr(matrix, name)) for name in names if hasattr(matrix, name)}
    arrays |= {"format": np.array(matrix.format.encode()), "shape": np.array(matrix.shape)}
    for name in list(arrays):
        if rng.random() < 0.02:
            del arrays[name]
    return _archive({f"{name}.npy": _npy_bytes(array, rng, 0.04) for name, array in arrays.items()}, rng)


def _mat(rng: Generator) -> bytes:
    content: dict[str, Any] = {
        "x": _sparse(rng, ("csc",)) if rng.random() < 0.5 else np.nan_to_num(_real(rng))
    }
    if rng.random() < 0.3:
        content |= {"note": "text", "cells": np.array([[1, "a"]], object), "s": {"a": 1.0}}
    file = io.BytesIO()
    scipy.io.savemat(
        file,
        content,
        do_compression=rng.random() < 0.3,
        format=str(rng.choice(["4", "5"], p=[0.1, 0.9])) if len(content) == 1 else "5",
    )
    return _damaged(file.getvalue(), rng)


def _real(rng: Generator) -> Any:
    return rng.integers(0, 5, tuple(rng.integers(2, 5, 2))).astype(float)


# -- objects --------------------------------------------------------------------------------------


def _sparse(
    rng: Generator, formats: tuple[str, ...] = ("csr", "csc", "coo", "bsr", "dia", "lil", "dok")
) -> Any:
    rows, columns, entries = (int(n) for n in rng.integers(2, 12, 3))
    places = (rng.integers(0, rows, entries), rng.integers(0, columns, entries))
    made = scipy.sparse.coo_array((rng.random(entries), places), shape=(rows, columns))
    made.sum_duplicates()
    kind = scipy.sparse.csr_matrix if rng.random() < 0.3 else scipy.sparse.csr_array
    return kind(made).asformat(formats[rng.integers(len(formats))])


def _tampered(matrix: Any, rng: Generator) -> Any:
    """A matrix with arrays that do not agree, as no constructor would let it be."""
    names = [
        n
        for n in ("indptr", "indices", "data", "offsets", "coords", "rows", "_shape")
        if hasattr(matrix, n)
    ]
    for _ in range(rng.integers(0, 3)):
        name = names[rng.integers(len(names))]
        if name == "_shape":
            matrix._shape = tuple(int(abs(EXTREMES[rng.integers(len(EXTREMES))])) for _ in matrix.shape)
        elif name == "coords":
            matrix.coords = tuple(_tampered_array(row, rng) for row in matrix.coords)
        else:
            setattr(matrix, name, _tampered_array(getattr(matrix, name), rng))
    return matrix


def _tampered_array(array: Any, rng: Generator) -> Any:
    wrong = array.copy()
    edit = rng.integers(6)
    if edit == 0:
        return wrong[: len(wrong) // 2]
    if edit == 1:
        return np.concatenate([wrong, wrong])
    if edit == 2 and wrong.dtype != object:
        return wrong.astype(str(rng.choice(["f8", "u8", "i8", "?", "O", "U5"])))
    if wrong.size and wrong.dtype.kind == "i":
        wrong = wrong.astype(np.int64)
        wrong.flat[rng.integers(wrong.size)] = EXTREMES[rng.integers(11)]
        return wrong.astype(np.int32) if rng.random() < 0.5 else wrong
    return wrong[::-1] if edit == 3 else wrong


def _odd_column(rng: Generator, rows: int) -> Any:
    """A column of a type that labels and values rarely have."""
    makers: list[Callable[[], Any]] = [
        lambda: pa.array([[1, 2]] * rows),
        lambda: pa.array([{"a": 1}] * rows),
        lambda: pa.array([b"\xff\x00"] * rows),
        lambda: pa.array([None] * rows),
        lambda: pa.array([Decimal("1.50")] * rows),
        lambda: pa.array([True] * rows),
        lambda: pa.array([float("inf")] * rows),
        lambda: pa.array([2**63 - 1] * rows),
        lambda: pa.array([2**64 - 1] * rows, pa.uint64()),
        lambda: pa.array(["x"] * rows).dictionary_encode(),
        lambda: pa.array([10**15] * rows, pa.timestamp("us", "Europe/Berlin")),
        lambda: pa.array([2**62] * rows, pa.timestamp("s")),
        lambda: pa.array([5] * rows, pa.time32("s")),
        lambda: pa.array([5] * rows, pa.duration("ns")),
        lambda: pa.array([2**31 - 1] * rows, pa.date32()),
        lambda: pa.array([np.float16(1.5)] * rows, pa.float16()),
        lambda: pa.array([ODD_TEXT[rng.integers(len(ODD_TEXT))] for _ in range(rows)]),
        lambda: pa.array([f"{n}/02/2020" for n in range(rows)]),
    ]
    return makers[rng.integers(len(makers))]()


def _table(rng: Generator) -> Any:
    columns: dict[str, Any] = {name: pa.array(column) for name, column in _columns(rng).items()}
    rows = len(columns["user"])
    for _ in range(rng.integers(0, 3)):
        columns[str(rng.choice([*MODES, VALUE]))] = _odd_column(rng, rows)
    table = pa.table(columns)
    form = rng.integers(5)
    if form == 0:
        return table.append_column(str(rng.choice([*MODES, ""])), pa.array(range(rows)))
    if form == 1:
        return pl.from_arrow(table.cast(table.schema))
    if form == 2:
        return table.slice(0, int(rng.integers(rows)))
    try:
        frame = table.to_pandas()
    except ValueError:  # a time that pandas cannot hold
        return table
    if form == 3:
        frame = frame.astype(object)
        frame.iat[int(rng.integers(rows)), int(rng.integers(4))] = _odd_object(rng)
        if rng.random() < 0.2:
            frame.columns = [[*MODES, VALUE], [0, None, *MODES[:2]], ["user"] * 4][rng.integers(3)]
    return frame


def _odd_object(rng: Generator) -> Any:
    odd = [
        None,
        object(),
        [1],
        {"a": 1},
        1 + 2j,
        2**70,
        -(2**70),
        float("nan"),
        "x",
        b"\xff",
        True,
        Decimal("NaN"),
    ]
    odd += [
        np.datetime64("2020-01-01"),
        pd.Timestamp("1677-09-22"),
        pd.NA,
        pd.NaT,
        "\ud800",
        range(3),
        ...,
    ]
    return odd[rng.integers(len(odd))]


def _array(rng: Generator) -> Any:
    array = _dense(rng)
    form = rng.integers(8)
    if form == 0:
        return np.ma.masked_invalid(array) if array.dtype.kind == "f" else array
    if form == 1:
        return np.empty(tuple(rng.choice([0, 1, 3], 3)))
    if form == 2:
        return np.array(_odd_object(rng), object)
    if form == 3:
        return np.lib.stride_tricks.as_strided(np.ones(1), (2, 3), (0, 0))
    if form == 4:
        return np.zeros(3, [("a", "f8"), ("b", "i4")])
    return array


def _coordinates(rng: Generator) -> SparseTensor:
    """A tensor from coordinates, some of which are none."""
    levels = np.stack([rng.integers(0, 4, 6), rng.integers(0, 5, 6)])
    if rng.random() < 0.7:
        levels = _tampered_array(levels.ravel(), rng)
        levels = levels.reshape(2, -1) if len(levels) % 2 == 0 else levels
    return SparseTensor(levels, rng.random(6), (Mode("a", 4), Mode("b", 5)))


# -- use ------------------------------------------------------------------------------------------

_FILES: dict[str, tuple[str, Callable[[Generator], bytes]]] = {
    "csv": ("t.csv", _csv),
    "tsv": ("t.tsv", _tsv),
    "csv-semicolon": ("t.csv", _semicolons),
    "csv-gz": ("t.csv.gz", _gzipped),
    "zip": ("t.zip", _zip),
    "xlsx": ("t.xlsx", _xlsx),
    "parquet": ("t.parquet", _parquet),
    "tns": ("t.tns", _tns),
    "npz": ("t.npz", _npz),
    "npz-sparse": ("t.npz", _npz_sparse),
    "npy": ("t.npy", _npy),
    "mat": ("t.mat", _mat),
}
_OBJECTS: dict[str, Callable[[Generator], Any]] = {
    "sparse": lambda rng: _tampered(_sparse(rng), rng),
    "array": _array,
    "table": _table,
    "coordinates": _coordinates,
}
_TABLES = ("csv", "tsv", "csv-semicolon", "csv-gz", "zip", "xlsx", "parquet", "table", "npz")


def attempt(kind: str, seed: int, folder: Path) -> None:
    """Make the case of a seed, and read it in one of the ways that there are for its kind."""
    rng = np.random.default_rng([seed, *kind.encode()])
    if kind in _FILES:
        name, make = _FILES[kind]
        source: Any = folder / name
        source.write_bytes(make(rng))
    else:
        source = _OBJECTS[kind](rng)
    way = rng.random()
    if kind in ("npy", "parquet", "sparse", "table", "array") and way < 0.2:
        for batch in open_samples(source).batches():
            assert batch.ndim == 2
    elif kind in _TABLES and kind != "npz" and way < 0.35:
        labels_of(read_table(source), [Mode("user", 1), Mode("day", 1, None, "day")])
    else:
        _use(read(source, **(_call(rng) if kind in _TABLES else {})))


def _call(rng: Generator) -> dict[str, Any]:
    call: dict[str, Any] = dict(CALL)
    if rng.random() < 0.4:
        call["bins"] = {"day": str(rng.choice(["hour", "day", "week", "month"]))}
        if rng.random() < 0.3:
            call["date_format"] = DATE_FORMATS[rng.integers(len(DATE_FORMATS))]
    return call


def _use(tensor: SparseTensor) -> None:
    """What was read is a tensor whose levels are there."""
    for levels, mode in zip(tensor.coordinates, tensor.modes, strict=True):
        assert levels.dtype == np.int32
        assert 0 <= levels.min() <= levels.max() < mode.size
        assert mode.label(int(levels[0])) is not None
    assert repr(tensor)


SUBJECT = Subject("readers", (*_FILES, *_OBJECTS), attempt)
