"""Pages that commands write beside what they have fitted."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from sfumato.report.page.contents import Held

Report = Annotated[
    bool,
    typer.Option(
        "--report",
        help="Also write report.html, a page about it: of a private fit into its release, and one for "
        "you alone, report-not-for-release.html, beside it.",
    ),
]


def report_in(folder: Path, estimator: Any, held: Held | None = None) -> tuple[Path, ...]:
    """Write pages into the folder of a fit: what its release may show, and what else is known here."""
    from sfumato.store import put_reports

    mine = estimator._page(held=held)
    if estimator.guarantee_ is None:
        return put_reports(folder, None, mine.text)
    released = estimator._page(release=True, force=True)
    return put_reports(folder, released.text, None if mine.for_release else mine.text)


def measured(results: Any, remarks: Any = (), metric: str | None = None) -> Held:
    """Errors at held-out entries, as a page shows them."""
    from sfumato.report.page.contents import Held

    return Held(results=tuple(results), remarks=tuple(remarks), metric=metric)
