"""What several commands do: print, look at the columns of a file, write tables of factors."""

from __future__ import annotations

import logging
import warnings
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sfumato.errors import PrivacyWarning, SettingError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rich.console import Console

    from sfumato.data.tensor import Mode


_UNCUT = 10_000  # columns where there is no screen: a file or another program has use for all of it


def console(*, stderr: bool = False) -> Console:
    from rich.console import Console

    made = Console(stderr=stderr, highlight=False, markup=False)
    if not made.is_terminal:
        made.width = _UNCUT
    return made


@contextmanager
def reading(what: str, notes: Console) -> Iterator[None]:
    """A sign of life while files are read: large ones take minutes."""
    from sfumato.report import FitProgress

    with FitProgress(notes) as progress:
        progress.begin(f"reading {what}")
        yield


def say_what_was_written(screen: Console, written: Sequence[Path]) -> None:
    """In one line, so that paths can be copied."""
    screen.print(f"wrote {', '.join(map(str, written))}", soft_wrap=True)


def notes_unless(quiet: bool) -> Console:
    """Where progress and notes go; nowhere, warnings neither, where they are not wanted."""
    notes = console(stderr=True)
    notes.quiet = quiet
    if quiet:
        logging.getLogger("sfumato").setLevel(logging.ERROR)
        warnings.simplefilter("ignore", PrivacyWarning)
    return notes


def columns_of(file: Path) -> list[str]:
    """Names of a table's columns; none for other kinds of files."""
    import pyarrow as pa
    import pyarrow.csv as pacsv
    import pyarrow.parquet as pq

    from sfumato.data import tables
    from sfumato.store import is_model

    if is_model(file):
        raise SettingError(
            f"{file} is the folder of a model, and what is needed here is a file of data: a model's "
            f"privacy is what `sfumato explain {file}` says"
        )
    path = tables.existing_file(file)
    kind = tables.file_kind(path)
    if kind not in tables.TABLE_KINDS:
        return []
    with tables.reading(path):
        if kind == "parquet":
            return list(pq.read_schema(path).names)
        with pa.input_stream(path, compression="detect") as stream:
            return list(pacsv.open_csv(stream, parse_options=tables.csv_format(kind)).schema.names)


def require_columns(file: Path, modes: Sequence[str] | None, value: str | None) -> None:
    """Ask for the names of columns in the words of the command line, where they are missing."""
    columns = columns_of(file)
    if columns and not (modes and value):
        raise SettingError(
            "say with --modes which columns hold labels and with --value which holds the values; "
            f"the columns are {', '.join(columns)}"
        )


def write_factors_beside(
    out: Path,
    factors: Sequence[Any],
    modes: Sequence[Mode],
    format: str,
    biases: Sequence[Any] | None = None,
) -> list[Path]:
    """A table of factors for each mode, in a folder beside that of the model."""
    from sfumato.data.write import write_factors

    folder = out.with_name(f"{out.absolute().name}-factors")
    for stale in [*folder.glob("*.csv"), *folder.glob("*.parquet")]:
        stale.unlink()  # an earlier fit's factors must not be taken for this one's
    return write_factors(folder, factors, modes, format, biases)
