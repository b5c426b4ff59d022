"""The command line: complete, couple, predict, explain, plan, audit, describe, reproduce, demo.

What a command needs is imported when it runs, so that help comes at once.
"""

from __future__ import annotations

from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from sfumato import __version__
from sfumato.cli import audit, complete, couple, plan, predict, reproduce, show
from sfumato.cli.command import example, repeat_flags
from sfumato.cli.interrupt import heard_at_once
from sfumato.errors import SfumatoError

__all__ = ["app", "main", "repeat_flags"]

INTERRUPTED = 130  # what a shell reports of a program that Ctrl-C has ended


class _Group(TyperGroup):
    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            raise  # the reader, such as `head`, has seen enough; typer ends quietly
        except (SfumatoError, OSError) as error:
            typer.echo(f"error: {error}", err=True)
            raise typer.Exit(1) from error
        except KeyboardInterrupt as error:
            typer.echo("interrupted", err=True)
            raise typer.Exit(INTERRUPTED) from error


app = typer.Typer(
    name="sfumato",
    cls=_Group,
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


def main() -> None:
    """Entry point of the ``sfumato`` command."""
    with heard_at_once():
        app()


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"sfumato {__version__}")
        raise typer.Exit


@app.callback(epilog=example("sfumato demo"))
def _sfumato(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Complete and factorise sparse multi-way data."""


for _command in (
    complete.complete,
    couple.couple,
    predict.predict,
    show.explain,
    plan.plan,
    audit.audit,
    show.describe,
    reproduce.reproduce,
    show.demo,
):
    _command.register(app)
