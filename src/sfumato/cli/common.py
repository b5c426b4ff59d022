"""What several commands do: print, look at the columns of a file, write tables of factors."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sfumato.errors import SettingError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from sfumato.data.tensor import Mode


def console(*, stderr: bool = False) -> Console:
    from rich.console import Console

    return Console(stderr=stderr, highlight=False, markup=False, soft_wrap=True)


def notes_unless(quiet: bool) -> Console:
    """Where progress and notes go; nowhere, warnings neither, where they are not wanted."""
    notes = console(stderr=True)
    notes.quiet = quiet
    if quiet:
        logging.getLogger("sfumato").setLevel(logging.ERROR)
    return notes


def refuse_model(file: Path) -> None:
    """Say what is wrong where the folder of a model is given for a file of data."""
    from sfumato.store import is_model

    if is_model(file):
        raise SettingError(
            f"{file} is the folder of a model, and what is needed here is a file of data: a model's "
            f"privacy is what `sfumato explain {file}` says"
        )


def columns_of(file: Path, separator: str | None = None, variable: str | None = None) -> list[str]:
    """Names of a table's columns; none for other kinds of files."""
    from sfumato.data import read

    refuse_model(file)
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
    from sfumato.data.write import write_factors

    folder = out.with_name(f"{out.absolute().name}-factors")
    for stale in [*folder.glob("*.csv"), *folder.glob("*.parquet")]:
        stale.unlink()  # an earlier fit's factors must not be taken for this one's
    return write_factors(folder, factors, modes, format, biases)
