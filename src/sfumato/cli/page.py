"""``sfumato page``: a local page on which a private fit is made without writing code."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sfumato.cli.command import command
from sfumato.errors import MissingExtraError


@command(
    "Make a private fit on a local page, without writing code.",
    "sfumato page --folder data --ledger data.ledger",
)
def page(
    *,
    folder: Annotated[
        Path,
        typer.Option(
            metavar="DIR",
            help="Files are opened below it alone; uploads and fits go to sfumato-page in it.",
        ),
    ] = Path(),
    ledger: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Record all spending there; by default a ledger for each file's name."
        ),
    ] = None,
    port: Annotated[
        int, typer.Option(min=0, max=65535, metavar="N", help="Of 127.0.0.1; 0 takes any that is free.")
    ] = 0,
    no_browser: Annotated[
        bool, typer.Option("--no-browser", help="Only print the address; open no browser.")
    ] = False,
) -> None:
    """Serve a page to a browser on this machine: open a file, say what to protect, and fit.

    The address holds a token: whoever has it can use the page while it runs. Nothing is sent anywhere,
    and no other machine can open it. Before anything is spent the page asks, and shows the ledger.
    """
    try:
        from sfumato.page.serving import serve
    except ModuleNotFoundError as error:
        if error.name not in ("starlette", "uvicorn", "jinja2", "multipart", "python_multipart"):
            raise
        raise MissingExtraError("page", "sfumato page") from error
    serve(folder, ledger, port, browser=not no_browser, tell=lambda said: typer.echo(said, err=True))
