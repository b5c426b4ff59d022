"""Commands about records: facts of people put into a release, and how it conforms to a standard."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from sfumato.cli import options
from sfumato.cli.command import command
from sfumato.errors import SettingError

_FACTS = "What people say of the release, as `sfumato record --template` asks for it."


@command(
    "Put what people say of a release into its label and its record.",
    "sfumato record --template people.toml",
    "sfumato record model --facts people.toml",
    page="docs/records.md",
)
def record(
    folder: Annotated[
        Path | None,
        typer.Argument(
            metavar="DIR", help="A release, the folder of a private fit, or a file of privatised values."
        ),
    ] = None,
    *,
    facts: Annotated[Path | None, typer.Option(metavar="FILE", help=_FACTS)] = None,
    template: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write a file to fill in; none may be there.")
    ] = None,
) -> None:
    """Put what only people know into a release: LABEL.md and deployment.yaml, and nothing else of it.

    The record is one for OpenDP's registry of deployments, at tier 3. What it still lacks is printed.
    The folder is replaced whole; a signature is lost by it, so sign afterwards. Of a file of privatised
    values label and record are written beside it.
    """
    from sfumato.standards.people import missing, read_people
    from sfumato.standards.people import template as written
    from sfumato.store import signed_by, write_record

    if template is not None and folder is None and facts is None:
        try:
            with template.open("x", encoding="utf-8") as file:
                file.write(written())
        except FileExistsError as error:
            raise SettingError(f"{template} is there already, and is not written over") from error
        typer.echo(f"wrote {template}: fill it in, then sfumato record MODEL --facts {template}")
    elif template is None and folder is not None and facts is not None:
        people = read_people(facts)
        signed = signed_by(folder) if folder.is_dir() else None
        refused = write_record(folder, people)
        typer.echo(f"wrote LABEL.md and deployment.yaml of {folder}")
        for fact in missing(people):
            typer.echo(f"  missing  {fact.name}: {fact.asks}")
        for problem in refused:
            typer.echo(f"  refused  {problem}")
        valid = (
            "a DRAFT that the registry's schema refuses" if refused else "valid by the registry's schema"
        )
        typer.echo(f"the record is {valid}")
        if signed is not None:
            typer.echo(f"the signature by {signed} was of the release before: sign it again")
    else:
        raise typer.BadParameter("give a folder and --facts FILE, or --template FILE alone")


@command(
    "Say how a model conforms to NIST SP 800-226.",
    "sfumato conformance model/release",
    "sfumato conformance model --facts people.toml --audit audited --ledger data.ledger",
    page="docs/records.md#conformance",
)
def conformance(
    folder: Annotated[
        Path,
        typer.Argument(
            metavar="DIR", help="A release, the folder of a private fit, or a file of privatised values."
        ),
    ],
    *,
    facts: Annotated[Path | None, typer.Option(metavar="FILE", help=_FACTS)] = None,
    audit: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="What `sfumato audit --out` wrote; not of a release alone."),
    ] = None,
    ledger: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The ledger of the data; not of a release alone.")
    ] = None,
    as_json: options.Json = False,
) -> None:
    """Answer the questions of NIST SP 800-226, block by block, and say which are unanswered.

    Of a release nothing is said but what it says itself, and what people say. With an audit or a ledger
    the page is for whoever holds the data.
    """
    from sfumato.store import conformance as conformance_of

    found = conformance_of(folder, facts, audit=audit, ledger=ledger)
    typer.echo(json.dumps(found.to_json()) if as_json else str(found))
