"""How a command is declared, and how the words after its name are read."""

from __future__ import annotations

import inspect
import sysconfig
from collections.abc import Callable, Collection, Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, NamedTuple, get_type_hints

import typer
from typer.core import TyperCommand

from sfumato.errors import SfumatoError

DEFAULT_PAGE = "docs/cli.md"
_WITH_THE_PACKAGE = Path("share") / "doc" / "sfumato"
TAKE_SEVERAL = (
    "--modes",
    "--ranks",
    "--bin",
    "--public-labels",
    "--shape",
    "--tune-rank",
    "--canary",
    "--sees",
)


def repeat_flags(args: Sequence[str], flags: Collection[str] = TAKE_SEVERAL) -> list[str]:
    """``--modes user item`` as ``--modes user --modes item``, which the parser understands."""
    repeated: list[str] = []
    flag = None
    for arg in args:
        if arg.startswith("--"):
            name = arg.partition("=")[0]
            flag = name if name in flags else None
        elif flag is not None and repeated[-1] != flag:
            repeated.append(flag)
        repeated.append(arg)
    return repeated


class _Command(TyperCommand):
    take_several: Collection[str] = TAKE_SEVERAL
    page: str = ""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except SfumatoError as error:
            error.page = error.page or self.page
            raise

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, repeat_flags(args, self.take_several))


class Command(NamedTuple):
    """A function with what the command line says of it.

    ``take_several`` are flags that take all words up to the next flag, beside the usual ones; ``page``
    is that of the documentation which explains the command, and errors without a page of their own.
    """

    function: Callable[..., None]
    short_help: str
    examples: tuple[str, ...]
    take_several: tuple[str, ...] = ()
    page: str = DEFAULT_PAGE

    def register(self, app: typer.Typer) -> None:
        flags = (*TAKE_SEVERAL, *self.take_several)
        reader = type("Command", (_Command,), {"take_several": flags, "page": self.page})
        end = f"More: {where(self.page)}\n\n{example(*self.examples)}"
        app.command(cls=reader, short_help=self.short_help, epilog=end)(with_groups(self.function))


def command(
    short_help: str, *examples: str, take_several: tuple[str, ...] = (), page: str = DEFAULT_PAGE
) -> Callable[[Callable[..., None]], Command]:
    """Declare a function to be a command; its parameters are options, or groups of them."""
    return lambda function: Command(function, short_help, examples, take_several, page)


def where(page: str) -> str:
    """A page as the file that was installed along with the package; in a checkout as it is named."""
    name, mark, anchor = page.partition("#")
    file = Path(sysconfig.get_path("data")) / _WITH_THE_PACKAGE / name
    return f"{file}{mark}{anchor}" if file.is_file() else page


def example(*lines: str) -> str:
    """What help ends with."""
    commands = sum(line.startswith("sfumato ") for line in lines)
    heading = "Examples:" if commands > 1 else "Example:"
    return "\n".join(["\b", heading, *(f"  {line}" for line in lines)])


def with_groups(function: Callable[..., None]) -> Callable[..., None]:
    """The function with each parameter that is a dataclass replaced by the dataclass's fields.

    So options that several commands share are written down once, together with what is done with them,
    and stand on the command line where the group stands among the parameters.
    """
    parameters = inspect.signature(function, eval_str=True).parameters.values()
    groups: dict[str, Any] = {
        each.name: each.annotation for each in parameters if is_dataclass(each.annotation)
    }
    spread = [
        option
        for each in parameters
        for option in (_options(groups[each.name]) if each.name in groups else [each])
    ]

    def call(**given: Any) -> None:
        for name, group in groups.items():
            given[name] = group(**{field.name: given.pop(field.name) for field in fields(group)})
        function(**given)

    call.__name__, call.__doc__ = function.__name__, function.__doc__
    call.__annotations__ = {option.name: option.annotation for option in spread}
    by_keyword = [option.replace(kind=inspect.Parameter.KEYWORD_ONLY) for option in spread]
    call.__signature__ = inspect.Signature(by_keyword)  # type: ignore[attr-defined]
    return call


def _options(group: Any) -> list[inspect.Parameter]:
    """The fields of a dataclass as parameters."""
    types = get_type_hints(group, include_extras=True)
    parameters = inspect.signature(group).parameters.values()
    return [each.replace(annotation=types[each.name]) for each in parameters]
