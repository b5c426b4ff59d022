"""Commands that show something: what a file holds, what a model promises, and how all of it works."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sfumato.cli import options
from sfumato.cli.command import command
from sfumato.cli.common import console, reading
from sfumato.cli.options import DEFAULT_RANK
from sfumato.errors import SettingError

if TYPE_CHECKING:
    from sfumato.privacy.odds import Shown


@command(
    "Show what a file holds.",
    "sfumato describe ratings.csv --modes user item --value rating --bounds 1 5",
    page="docs/cli.md#files-of-data",
)
def describe(
    file: options.File,
    *,
    columns: options.Columns,
    rank: Annotated[int, typer.Option(help="For the estimate of memory.")] = DEFAULT_RANK,
    as_json: options.Json = False,
) -> None:
    """Show shape, values, duplicates and how entries spread, and the memory a fit needs."""
    from sfumato.report import records, text

    with reading(file.name, console(stderr=True)):
        described = records.describe(columns.read(file), rank)
    if as_json:
        typer.echo(json.dumps(asdict(described)))
    else:
        console().print(text.description_text(described))


@command(
    "Say what a model's privacy is.",
    "sfumato explain model",
    "sfumato explain model/release --groups item",
    "sfumato explain model --groups item --held-out test.csv",
    page="docs/promise.md",
)
def explain(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="Folder of a model, or a file of privatised values.")
    ],
    audit: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="What sfumato audit has found, audit.json: said beside odds."),
    ] = None,
    groups: Annotated[
        str | None,
        typer.Option(
            metavar="MODE",
            help="Instead, errors to expect by popularity of a mode's levels, from released numbers.",
        ),
    ] = None,
    relation: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="With --groups: which table of a coupled model is meant."),
    ] = None,
    held_out: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="With --groups: entries that were not fitted, a table of labels and values, to measure "
            "errors on. What is measured is not releasable.",
        ),
    ] = None,
    as_json: options.Json = False,
) -> None:
    """Print the guarantee of a model: what it protects, from whom, and on which grounds.

    Odds are what somebody who suspects something can learn from it at most. A file that
    `sfumato privatise` wrote has a guarantee as well.

    Every file is held against the manifest first. That shows accidents, not forgery: who a release
    comes from is what `sfumato verify` says.
    """
    from sfumato.data.io.privatised_files import is_privatised, read_privatised
    from sfumato.privacy.guarantee import Guarantee
    from sfumato.report.text import NOT_PRIVATE
    from sfumato.store import guarantee_of, has_manifest, signed_by

    if groups is None and (held_out is not None or relation is not None):
        raise SettingError("--held-out and --relation say of which groups errors are: give --groups too")
    if groups is not None:
        _show_groups(folder, groups, relation, held_out, as_json)
        return
    if is_privatised(folder):
        said = read_privatised(folder)
        promised = Guarantee.from_json(dict(said.promises[0]))
        typer.echo(json.dumps(promised.told()) if as_json else str(promised))
        if not as_json:
            typer.echo(f"{'values':15}{said.passed[0].in_words}")
        return
    guarantee, key = guarantee_of(folder), signed_by(folder)
    shown = None if audit is None or guarantee is None else guarantee.odds().sentences(_found(audit))
    if as_json:
        told = None if guarantee is None else guarantee.told()
        if told is not None and shown is not None:
            told["odds"]["sentences"] = list(shown)
        typer.echo(json.dumps(told))
        return
    typer.echo(NOT_PRIVATE if guarantee is None else str(guarantee))
    if shown is not None:
        typer.echo(f"{'audit':15}{shown[-1]}")
    typer.echo(f"{'files':15}{_WHOLE if has_manifest(folder) else _UNKNOWN}")
    typer.echo(f"{'signature':15}{_NOT_SIGNED if key is None else _SIGNED.format(key, folder)}")


def _found(file: Path) -> Shown:
    """What an audit of the same unit has found."""
    from sfumato.auditing.verdict import Reported
    from sfumato.errors import DataError

    try:
        return Reported.from_json(json.loads(file.read_bytes()))
    except (OSError, ValueError) as error:
        raise DataError(f"{file} is not what sfumato audit has written: {error}") from error


def _show_groups(
    folder: Path, mode: str, relation: str | None, held_out: Path | None, as_json: bool
) -> None:
    from sfumato.data.io.read import read_entries
    from sfumato.estimators.base import TensorEstimator
    from sfumato.estimators.by_popularity import groups_of
    from sfumato.estimators.coupled import Coupled
    from sfumato.estimators.groups import groups_text, told_of
    from sfumato.estimators.loading import load

    estimator = load(folder)
    if not isinstance(estimator, TensorEstimator | Coupled):
        raise SettingError(f"{folder} is no model of tables: groups are those of their levels")
    told = told_of(estimator, relation)
    entries = None if held_out is None else read_entries(held_out, told.modes, None)
    found = groups_of(told, mode, entries)
    typer.echo(json.dumps(asdict(found)) if as_json else groups_text(found))


_WHOLE = "as the manifest says, which shows accidents and not forgery: that takes a signature"
_UNKNOWN = "without a manifest, so that no change to them can be noticed"
_NOT_SIGNED = "none"
_SIGNED = "by the key {}, NOT VERIFIED here: sfumato verify {} --key PUBLIC"


@command(
    "Say what a ledger has spent.",
    "sfumato ledger data.ledger",
    page="docs/cli.md#what-was-spent",
)
def ledger(
    file: Annotated[Path, typer.Argument(help="File that --ledger named.", show_default=False)],
    delta: Annotated[
        float | None, typer.Option(metavar="D", help="At which epsilon is told; the limit's by default.")
    ] = None,
    as_json: options.Json = False,
) -> None:
    """Print which fits spent what, what they add up to, and what is left of the limit."""
    from sfumato.privacy.account import read_ledger

    account = read_ledger(file)
    typer.echo(json.dumps(account.to_json(delta)) if as_json else account.in_words(delta))


@command(
    "Complete invented ratings.",
    "sfumato demo --out sfumato-demo",
)
def demo(
    out: Annotated[
        Path,
        typer.Option(
            metavar="DIR",
            callback=options.folder_for_files,
            help="Folder for the picture and the model.",
        ),
    ] = Path("sfumato-demo"),
) -> None:
    """Complete ratings that come with the package; takes well under two minutes."""
    from sfumato.demo import run_demo

    run_demo(out, console())
