"""``sfumato update``: a private model goes on with the entries of a new period."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sfumato.cli import options
from sfumato.cli.command import command
from sfumato.cli.common import console, notes_unless, reading, save_or_rescue, say_what_was_written
from sfumato.cli.privacy import Promise, Spending
from sfumato.errors import SettingError

if TYPE_CHECKING:
    from sfumato.estimators.base import TensorEstimator
    from sfumato.fit.request import Privacy

_Model = Annotated[Path, typer.Argument(help="Folder of a private model.", show_default=False)]
_New = Annotated[Path, typer.Argument(help="File of the new entries.", show_default=False)]


@dataclass(frozen=True)
class When:
    """Which part of the data the new entries are."""

    period: options.Period = None
    by: Annotated[
        str | None,
        typer.Option(
            metavar="MODE", help="Use entries at new levels of this mode alone: none was used before."
        ),
    ] = None


@command(
    "Go on with a private model: new entries of a new period, under one ledger.",
    "sfumato update model april.csv --modes user item --value rating --period 2026-04 --epsilon 1 "
    "--delta 1e-6 --unit entry --labels-are-public --ledger data.ledger",
    page="docs/updates.md",
)
def update(
    model: _Model,
    file: _New,
    *,
    out: Annotated[
        Path | None, typer.Option(help="Folder for the updated model; by default in place.")
    ] = None,
    columns: options.Columns,
    when: When,
    promise: Promise,
    release: Spending,
    threads: options.Threads = None,
    quiet: options.Quiet = False,
    as_json: options.Json = False,
) -> None:
    """Fit what the release in MODEL leaves of the new entries in FILE, and add it to the model.

    Old entries are not needed. The budget is charged to the ledger that the model was fitted with,
    under the name of the period. Where one entry or value is protected, it counts in its own period
    alone, so every entry has to be given in one period only; with --by that is made sure of. Where all
    entries of a person are protected, periods add up, and the guarantee says to how much.

    Labels that are new have to be listed with --public-labels, or those in the data declared to be
    public; entries with other labels are left out.
    """
    from sfumato.estimators.loading import load
    from sfumato.report.progress import FitProgress
    from sfumato.store import check_destination

    notes, place = notes_unless(quiet), out or model
    estimator = _loaded(load(model), model)
    estimator.threads = threads
    bounds = columns.bounds or estimator.bounds_
    privacy = _asked(promise, release, when, bounds)
    check_destination(place)
    with reading(file.name, notes):
        tensor = replace(columns, bounds=bounds).read(file)
    with release.told(), FitProgress(notes) as progress:
        progress.begin(f"update, {when.period}")
        estimator.progress = progress
        estimator.partial_fit(tensor, privacy=privacy, by=when.by)
    written = save_or_rescue(partial(estimator.save, force=release.force), place)
    _tell(estimator, written, as_json)


def _loaded(estimator: Any, folder: Path) -> TensorEstimator:
    from sfumato.estimators.base import TensorEstimator

    if not isinstance(estimator, TensorEstimator) or estimator.guarantee_ is None:
        raise SettingError(f"{folder} is no private completion: only these are updated")
    return estimator


def _asked(
    promise: Promise, release: Spending, when: When, bounds: tuple[float, float] | None
) -> Privacy:
    """Whatever is wrong with it is said before the file is read."""
    if promise.epsilon is None or when.period is None or release.ledger is None:
        raise SettingError("an update needs a budget, --epsilon, its --period and the model's --ledger")
    privacy = promise.settings(bounds, release)
    if privacy is None:
        raise SettingError("an update needs a budget: give --epsilon")
    return replace(privacy, period=when.period)


def _tell(estimator: TensorEstimator, written: Path, as_json: bool) -> None:
    from dataclasses import asdict

    guarantee = estimator.guarantee_
    periods = [asdict(period) for period in estimator.periods_]
    if as_json:
        told = None if guarantee is None else guarantee.to_json()
        typer.echo(json.dumps({"written": str(written), "periods": periods, "guarantee": told}))
        return
    screen = console()
    screen.print(str(guarantee))
    for period in estimator.periods_:
        screen.print(period.in_words())
    say_what_was_written(screen, [written])
