"""The command line: one command for each thing that people do with sfumato.

What a command needs is imported when it runs, so that help comes at once.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from sfumato import __version__
from sfumato.cli import (
    audit,
    classify,
    complete,
    couple,
    page,
    plan,
    power,
    predict,
    privatise,
    record,
    report,
    reproduce,
    shard,
    show,
    sign,
    study,
    top,
    update,
)
from sfumato.cli.command import example, repeat_flags, where
from sfumato.cli.interrupt import heard_at_once
from sfumato.errors import OldFormatWarning, PrivacyWarning, SfumatoError
from sfumato.surface import command_line

__all__ = ["app", "main", "repeat_flags"]

_FOR_USERS = (OldFormatWarning, PrivacyWarning)
INTERRUPTED = 130  # what a shell reports of a program that Ctrl-C has ended


def _in_words(error: Exception) -> str:
    """What is wrong; of the system's own errors without their numbers."""
    if isinstance(error, OSError) and error.filename is not None and error.strerror is not None:
        return f"{error.filename}: {error.strerror}"
    return str(error)


@contextmanager
def _warnings_in_one_line() -> Iterator[None]:
    """Warnings that are for the user, without the place in the code that they come from."""
    usual = warnings.showwarning

    def show(message: Warning | str, category: type[Warning], *where: Any, **more: Any) -> None:
        if issubclass(category, _FOR_USERS):
            typer.echo(f"warning: {message}", err=True)
        else:
            usual(message, category, *where, **more)

    with warnings.catch_warnings():
        for category in _FOR_USERS:
            warnings.simplefilter("always", category)
        warnings.showwarning = show
        yield


class _Group(TyperGroup):
    def invoke(self, ctx: Any) -> Any:
        try:
            with command_line(), _warnings_in_one_line():
                return super().invoke(ctx)
        except BrokenPipeError:
            raise  # the reader, such as `head`, has seen enough; typer ends quietly
        except (SfumatoError, OSError) as error:
            typer.echo(f"error: {_in_words(error)}", err=True)
            if page := getattr(error, "page", ""):
                typer.echo(f"more: {where(page)}", err=True)
            raise typer.Exit(1) from error
        except KeyboardInterrupt as error:
            typer.echo("interrupted", err=True)
            raise typer.Exit(INTERRUPTED) from error


app = typer.Typer(
    name="sfumato",
    cls=_Group,
    add_completion=True,
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
    page.page,
    update.update,
    privatise.privatise,
    shard.shard,
    couple.couple,
    classify.classify,
    predict.predict,
    top.top,
    show.explain,
    report.report,
    record.conformance,
    record.record,
    sign.sign,
    sign.verify,
    show.ledger,
    power.power,
    plan.plan,
    audit.audit,
    show.describe,
    reproduce.reproduce,
    show.demo,
):
    _command.register(app)

_study = typer.Typer(no_args_is_help=True, rich_markup_mode=None)
for _command in study.COMMANDS:
    _command.register(_study)
app.add_typer(_study, name="study", help="Fits between owners who do not pool their data.")
