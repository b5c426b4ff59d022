"""``sfumato report``: a model, privatised values or an audit as one page to look at."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sfumato.cli.command import command
from sfumato.cli.common import console, say_what_was_written
from sfumato.errors import SettingError

if TYPE_CHECKING:
    from sfumato.report.page.page import Page


@command(
    "Write a page about a model.",
    "sfumato report model/release --out report.html",
    "sfumato report model --held-out test.csv --ledger data.ledger --audit audit",
    page="docs/report.md",
)
def report(
    folder: Annotated[
        Path,
        typer.Argument(
            metavar="MODEL", help="Folder of a model or of an audit, or a file of privatised values."
        ),
    ],
    *,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="The page; by default report.html, or report-not-for-release.html where it holds more "
            "than a release.",
        ),
    ] = None,
    held_out: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Entries that were not fitted, to measure errors at."),
    ] = None,
    ledger: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The ledger that the fit was charged to.")
    ] = None,
    audit: Annotated[
        Path | None, typer.Option(metavar="FILE", help="What sfumato audit has written, or its folder.")
    ] = None,
) -> None:
    """Write one page of HTML that opens from disk, prints, and loads nothing.

    It says what is protected and from whom, what epsilon means, what was spent, and what the model has
    learnt: levels to search, a map of them, components, top lists. Of a `release` it holds what the
    guarantee covers and nothing else, and may be handed out. Of the folder of a private fit it has a
    second part for you alone: rows of owners, and what --held-out, --ledger and --audit say.
    """
    from sfumato.report.page.page import check_place, write_page

    check_place(out or Path("report.html"))
    made = _page(folder, held_out, ledger, audit)
    target = out or Path("report.html" if made.for_release else "report-not-for-release.html")
    say_what_was_written(console(), [write_page(target, made.text, private=not made.for_release)])


def _page(folder: Path, held_out: Path | None, ledger: Path | None, audit: Path | None) -> Page:
    from sfumato.data.io.privatised_files import is_privatised
    from sfumato.estimators.loading import load
    from sfumato.estimators.showing import audit_page_of, privatised_page

    alone = held_out is None and ledger is None and audit is None
    if (folder / "audit.json").is_file() or is_privatised(folder):
        if not alone:
            raise SettingError("--held-out, --ledger and --audit are about a model: leave them out")
        return privatised_page(folder) if is_privatised(folder) else audit_page_of(folder)
    fitted = load(folder)
    entries = None if held_out is None else _entries(fitted, held_out)
    made: Page = fitted._page(held_out=entries, ledger=ledger, audit=audit)
    return made


def _entries(fitted: Any, file: Path) -> Any:
    """Entries of a table with the model's modes."""
    from sfumato.data.io.read import read_entries
    from sfumato.estimators.base import TensorEstimator

    if not isinstance(fitted, TensorEstimator):
        raise SettingError("--held-out is for models of one table: leave it out")
    return read_entries(file, fitted.modes_, None)
