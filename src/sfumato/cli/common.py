"""What several commands do: print, look at the columns of a file, write tables of factors."""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
import warnings
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sfumato.errors import ModelFileError, PrivacyWarning, SaveError, SettingError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

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
    from sfumato.report.progress import FitProgress

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


def save_or_rescue(save: Callable[[Path], Path], out: Path) -> Path:
    """Save a model. Where that fails it is saved elsewhere, and the error says where.

    Time and, of a private fit, a budget were spent on it, which no second fit brings back.
    """
    try:
        return save(out)
    except OSError as error:
        reason = error.reason if isinstance(error, SaveError) else str(error)
    kept = _rescued(save, out.absolute().name)
    where = (
        "and nowhere else either" if kept is None else f"so the model is in {kept}: move it from there"
    )
    raise ModelFileError(f"{out} could not be written ({reason}), {where}")


def _rescued(save: Callable[[Path], Path], name: str) -> Path | None:
    """Where a model could be saved after all: in a folder for its owner alone, as it may hold rows."""
    for place in (os.getcwd, tempfile.gettempdir):
        with suppress(OSError):
            folder = Path(tempfile.mkdtemp(prefix="sfumato-rescued-", dir=place()))
            try:
                return save(folder / name)
            except BaseException:
                shutil.rmtree(folder, ignore_errors=True)
                raise
    return None


def refuse_folder(file: Path) -> None:
    """Say what is wrong where the folder of a model, or of shards, is given for a file of data."""
    from sfumato.data.io.shard_files import is_shards
    from sfumato.store import is_model

    if is_shards(file):
        raise SettingError(
            f"{file} is a folder of shards, which `sfumato complete` fits; what is needed here is a "
            "file of data"
        )
    if is_model(file):
        raise SettingError(
            f"{file} is the folder of a model, and what is needed here is a file of data: a model's "
            f"privacy is what `sfumato explain {file}` says"
        )


def columns_of(file: Path, separator: str | None = None, variable: str | None = None) -> list[str]:
    """Names of a table's columns; none for other kinds of files."""
    from sfumato.data.io import read

    refuse_folder(file)
    return read.columns_of(file, separator, variable)


def require_columns(columns: Sequence[str], modes: Sequence[str] | None, value: str | None) -> None:
    """Ask for the names of columns in the words of the command line, where they are missing."""
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
    from sfumato.data.io.write import write_factors

    folder = out.with_name(f"{out.absolute().name}-factors")
    for stale in [*folder.glob("*.csv"), *folder.glob("*.parquet")]:
        stale.unlink()  # an earlier fit's factors must not be taken for this one's
    return write_factors(folder, factors, modes, format, biases)
