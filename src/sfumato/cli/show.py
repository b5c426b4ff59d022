"""Commands that show something: what a file holds, what a model promises, and how all of it works."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from sfumato.cli import options
from sfumato.cli.command import command
from sfumato.cli.common import console, reading
from sfumato.cli.options import DEFAULT_RANK


@command(
    "Show what a file holds.",
    "sfumato describe ratings.csv --modes user item --value rating --bounds 1 5",
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
)
def explain(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="Folder of a model, or a file of privatised values.")
    ],
    as_json: options.Json = False,
) -> None:
    """Print the guarantee of a model: what it protects, from whom, and on which grounds.

    A file that `sfumato privatise` wrote has a guarantee as well.

    Every file is held against the manifest first. That shows accidents, not forgery: who a release
    comes from is what `sfumato verify` says.
    """
    from sfumato.data.io.privatised_files import is_privatised, read_privatised
    from sfumato.privacy.guarantee import Guarantee
    from sfumato.report.text import NOT_PRIVATE
    from sfumato.store import guarantee_of, has_manifest, signed_by

    if is_privatised(folder):
        said = read_privatised(folder)
        promised = Guarantee.from_json(dict(said.promises[0]))
        typer.echo(json.dumps(promised.to_json()) if as_json else str(promised))
        if not as_json:
            typer.echo(f"{'values':15}{said.passed[0].in_words}")
        return
    guarantee, key = guarantee_of(folder), signed_by(folder)
    if as_json:
        typer.echo(json.dumps(None if guarantee is None else guarantee.to_json()))
        return
    typer.echo(NOT_PRIVATE if guarantee is None else str(guarantee))
    typer.echo(f"{'files':15}{_WHOLE if has_manifest(folder) else _UNKNOWN}")
    typer.echo(f"{'signature':15}{_NOT_SIGNED if key is None else _SIGNED.format(key, folder)}")


_WHOLE = "as the manifest says, which shows accidents and not forgery: that takes a signature"
_UNKNOWN = "without a manifest, so that no change to them can be noticed"
_NOT_SIGNED = "none"
_SIGNED = "by the key {}, NOT VERIFIED here: sfumato verify {} --key PUBLIC"


@command(
    "Say what a ledger has spent.",
    "sfumato ledger data.ledger",
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
