"""Files that the page may open: those below one folder, and what was uploaded to it."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

import pyarrow as pa

from sfumato.data.io.files import TABLE_KINDS, file_kind, identity
from sfumato.data.io.read import columns_of
from sfumato.data.io.tables import Selection, stream_file
from sfumato.errors import DataError, SfumatoError

KEPT = "sfumato-page"  # below the folder: uploads, fits and ledgers
UPLOADS = "uploads"
SHOWN_ROWS = 8
_LISTED = 200  # files in the list to choose from
_LOOKED_AT = 5_000  # names in the folder before the list is cut off
_DEEPEST = 3
_MOST_COLUMNS = 200
_MOST_LETTERS = 60  # of a cell that is shown


class Column(NamedTuple):
    """A column of a table: its name, and what its first rows hold."""

    name: str
    kind: str


@dataclass(frozen=True)
class Table:
    """What the holder sees of a file: columns, and the first rows where these are asked for."""

    columns: tuple[Column, ...]
    rows: tuple[tuple[str, ...], ...]

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(column.name for column in self.columns)


class Folder:
    """The folder that files are opened from; nothing outside it is ever touched."""

    def __init__(self, path: Path) -> None:
        self.path = path.resolve(strict=True)
        if not self.path.is_dir():
            raise DataError(f"{path} is no folder: name one with --folder")
        self.kept = self.path / KEPT

    def prepare(self) -> None:
        """Make the place for uploads, which nobody else may look into."""
        if self.kept.is_symlink():
            raise DataError(f"{self.kept} is a link: remove it, or name another folder with --folder")
        (self.kept / UPLOADS).mkdir(parents=True, exist_ok=True, mode=0o700)
        self.kept.chmod(0o700)

    def find(self, name: str) -> Path:
        """A file by its path below the folder; links may not lead out."""
        if not name.strip():
            raise DataError("name a file")
        asked = PurePosixPath(name.replace("\\", "/"))
        if asked.is_absolute() or ".." in asked.parts or "\0" in name:
            raise DataError(f"{name!r} is not a path below {self.path}: leave .. and a leading / out")
        try:
            found = (self.path / asked).resolve(strict=True)
        except (OSError, RuntimeError, ValueError):
            raise DataError(f"there is no file {name!r} below {self.path}") from None
        if not found.is_relative_to(self.path):
            raise DataError(f"{name!r} leads out of {self.path}, and only files below it are opened")
        if not found.is_file():
            raise DataError(f"{name!r} is not a file")
        return found

    def listed(self) -> list[str]:
        """Tables that can be chosen, by their paths below the folder; hidden ones are left out."""
        found = []
        for place, folders, names in os.walk(self.path):
            here = Path(place).relative_to(self.path)
            deep = len(here.parts) >= _DEEPEST
            folders[:] = [] if deep else sorted(n for n in folders if not n.startswith((".", KEPT)))
            tables = [str(here / name) for name in sorted(names)[:_LOOKED_AT] if _is_table(name)]
            found += [name for name in tables if self._opens(name)]
            if len(found) >= _LISTED:
                break
        return found[:_LISTED]

    def _opens(self, name: str) -> bool:
        try:
            self.find(name)
        except DataError:
            return False
        return True

    def place_for(self, name: str) -> Path:
        """Where an upload goes, under a name without surprises."""
        plain = re.sub(r"[^\w.,() -]", "_", PurePosixPath(name.replace("\\", "/")).name).strip(". ")
        plain = plain[-100:]
        if not _is_table(plain):
            raise DataError(
                f"{name!r} is no table by its name: upload a .csv, .tsv, .parquet, .arrow or .xlsx file"
            )
        return self.kept / UPLOADS / plain

    def name_of(self, path: Path) -> str:
        return path.relative_to(self.path).as_posix()


def _is_table(name: str) -> bool:
    if name.startswith("."):
        return False
    if name.lower().endswith(".zip"):  # what is in it is seen when it is opened
        return True
    try:
        return file_kind(Path(name)) in TABLE_KINDS
    except SfumatoError:
        return False


def look_at(path: Path) -> Table:
    """Columns of a table with what they seem to hold, and a few rows."""
    return _looked_at(path, identity(path))


@lru_cache(maxsize=16)
def _looked_at(path: Path, _: tuple[int, int, int]) -> Table:
    kind = file_kind(path)
    if kind not in TABLE_KINDS:
        raise DataError(f"{path.name} is not a table with named columns: read it by `sfumato complete`")
    names = columns_of(path)
    if len(set(names)) < len(names):
        raise DataError(f"{path.name} has two columns of one name: rename one of them")
    if not 2 < len(names) <= _MOST_COLUMNS:
        raise DataError(
            f"{path.name} has {len(names)} columns: a fit needs two modes and a value, and the page "
            f"shows up to {_MOST_COLUMNS} columns"
        )
    batches = stream_file(path, kind, Selection(tuple(names[:-1]), names[-1]), None, None)
    head = next(iter(batches), None)
    if head is None or not head.num_rows:
        raise DataError(f"{path.name} has no rows")
    few = head.slice(0, 1_000)
    columns = [Column(name, _kind_of(few.column(m))) for m, name in enumerate(names)]
    cells = [[_shown(cell) for cell in few.column(m)[:SHOWN_ROWS]] for m in range(len(names))]
    return Table(tuple(columns), tuple(zip(*cells, strict=True)))


def _shown(cell: Any) -> str:
    text = "" if cell.as_py() is None else str(cell.as_py())
    return text if len(text) <= _MOST_LETTERS else text[: _MOST_LETTERS - 1] + "…"


def _kind_of(column: pa.Array) -> str:
    """What a column holds, by its type; text is tried as numbers and dates."""
    kind = column.type
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    if pa.types.is_integer(kind):
        return "whole numbers"
    if pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        return "numbers"
    if pa.types.is_temporal(kind):
        return "dates or times"
    if not (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
        return str(kind)
    texts = [text for text in column.to_pylist() if text is not None]
    return _kind_of_texts(texts)


def _kind_of_texts(texts: list[str]) -> str:
    if not texts:
        return "nothing in its first rows"
    if all(re.fullmatch(r"\s*[+-]?\d{1,18}\s*", text) for text in texts):
        return "whole numbers"
    if all(_is_number(text) for text in islice(texts, 1_000)):
        return "numbers"
    if all(re.match(r"\d{4}-\d\d-\d\d", text) for text in texts):
        return "dates or times"
    return "text"


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
