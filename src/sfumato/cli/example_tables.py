"""Tables of examples as commands read them, and what is said of their columns.

Every cell is read by itself: a word in one row does not change how others are read, for rows may belong
to people who are protected from each other's readers.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from sfumato.cli.common import refuse_folder

if TYPE_CHECKING:
    import pyarrow as pa

_WHOLE = re.compile(r"[+-]?\d+\.0*")  # as programs write whole numbers beside missing ones


def read_examples(file: Path, separator: str | None, variable: str | None) -> pa.Table:
    """A table whose cells are as they are written, in files of text."""
    from sfumato.data.io.read import read_table

    refuse_folder(file)
    return read_table(file, as_text=None, separator=separator, variable=variable)


def words_of(table: pa.Table, column: str) -> list[str | None]:
    """The cells of a column as words, one by one."""
    return [None if cell is None else word(cell) for cell in table.column(column).to_pylist()]


def word(cell: Any) -> str:
    """How a cell is spelt, whatever kind of file it comes from: 2.0 is 2."""
    if isinstance(cell, bool):
        return str(cell).lower()
    text = str(cell).strip()
    return text.partition(".")[0] if _WHOLE.fullmatch(text) else text


def with_words(table: pa.Table, columns: Sequence[str]) -> pa.Table:
    """The table with some columns as words."""
    import pyarrow as pa

    for name in columns:
        place = table.column_names.index(name)
        table = table.set_column(place, name, pa.array(words_of(table, name), pa.string()))
    return table


def with_categories(table: pa.Table, categories: Mapping[str, Sequence[str | int]]) -> pa.Table:
    """The table with categories as a model has them, which may be whole numbers."""
    import pyarrow as pa

    for name, listed in categories.items():
        if name not in table.column_names:
            continue  # which the model itself complains of
        words, known = words_of(table, name), {str(each): place for place, each in enumerate(listed)}
        numbers = all(isinstance(each, int) for each in listed)
        found = [None if each is None or each not in known else listed[known[each]] for each in words]
        cells = pa.array(found, pa.int64() if numbers else pa.string())
        table = table.set_column(table.column_names.index(name), name, cells)
    return table


# -- what is said of columns ----------------------------------------------------------------------


def bounds_of(given: Sequence[str] | None) -> dict[str | None, tuple[float, float]]:
    """``age=0:120`` by column; ``0:10`` alone is for all others, under None."""
    found: dict[str | None, tuple[float, float]] = {}
    for text in given or ():
        name, equals, ends = text.rpartition("=")
        low, colon, high = ends.partition(":")
        if not colon or (equals and not name):
            raise _wrong(text)
        if (name or None) in found:
            raise typer.BadParameter(f"{name or 'all columns'} is given twice", param_hint="--bounds")
        try:
            found[name or None] = float(low), float(high)
        except ValueError:
            raise _wrong(text) from None
    return found


def _wrong(text: str) -> typer.BadParameter:
    return typer.BadParameter(
        f"{text}: give a column with its lowest and highest value, as in age=0:120, or 0:10 for all",
        param_hint="--bounds",
    )


def categories_of(given: Sequence[str] | None) -> dict[str, list[str]]:
    """``sex=f,m`` by column."""
    found: dict[str, list[str]] = {}
    for text in given or ():
        name, _, listed = text.partition("=")
        words = [word(each) for each in listed.split(",")]
        if not name or not all(words) or len(set(words)) < len(words):
            raise typer.BadParameter(
                f"{text}: give a column and its categories, each once, as in sex=f,m",
                param_hint="--categories",
            )
        if name in found:
            raise typer.BadParameter(f"{name} is given twice", param_hint="--categories")
        found[name] = words
    return found
