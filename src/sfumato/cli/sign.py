"""Commands that sign a release, and check who has signed one."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sfumato.cli.command import command

_WHICH = "A release, or the folder of a model."


@command(
    "Sign a release, or make a key to sign with.",
    "sfumato sign --new-key my-key",
    "sfumato sign model/release --key my-key",
    page="docs/cli.md#whose-a-release-is",
)
def sign(
    folder: Annotated[Path | None, typer.Argument(metavar="RELEASE", help=_WHICH)] = None,
    *,
    key: Annotated[
        Path | None, typer.Option(metavar="KEYFILE", help="The private key to sign with.")
    ] = None,
    new_key: Annotated[
        Path | None,
        typer.Option(
            metavar="KEYFILE",
            help="Make a new key: the private one, for you alone, and KEYFILE.pub, for everybody.",
        ),
    ] = None,
) -> None:
    """Sign a release, so that whoever has your public key can tell that it is yours and unchanged.

    The signature is a file of its own, signature.json; no other file is touched. Of the folder of a
    private fit, the release inside it is signed.
    """
    from sfumato import store

    if new_key is not None and folder is None and key is None:
        store.new_key(new_key)
        typer.echo(f"wrote {new_key}, which nobody else may see, and {new_key}.pub, for everybody")
    elif new_key is None and folder is not None and key is not None:
        typer.echo(f"signed {folder} by the key {store.sign(folder, key)}")
    else:
        raise typer.BadParameter("give a RELEASE and --key KEYFILE, or --new-key KEYFILE alone")


@command(
    "Check who has signed a release, and that it is unchanged.",
    "sfumato verify model/release --key their-key.pub",
    page="docs/cli.md#whose-a-release-is",
)
def verify(
    folder: Annotated[Path, typer.Argument(metavar="RELEASE", help=_WHICH)],
    *,
    key: Annotated[
        Path, typer.Option(metavar="PUBLIC", help="The public key of whom it should come from.")
    ],
) -> None:
    """Check that a release is whole, file by file, and was signed by the owner of a public key.

    Get the key from its owner, not from where the release came from. Where something is wrong, the exit
    code is 1.
    """
    from sfumato import store

    found = store.verify(folder, key)
    typer.echo(f"{folder} is whole, and was signed by the key {found}")
