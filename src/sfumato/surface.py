"""How a message names a setting: to each reader in the words of the surface that they use.

The same error is met from Python, where a setting is an argument, and on the command line, where it is
a flag. Whoever writes the message says ``setting("unseen", "bias")``, which is ``unseen="bias"`` to the
one and ``--unseen bias`` to the other; what differs in more than that is said by ``either``.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_ON_COMMAND_LINE = ContextVar("on_command_line", default=False)


@contextmanager
def command_line() -> Iterator[None]:
    """While it lasts, messages are read on the command line."""
    token = _ON_COMMAND_LINE.set(True)
    try:
        yield
    finally:
        _ON_COMMAND_LINE.reset(token)


def either(python: str, command_line: str) -> str:
    """What is to be said from Python, or what is to be said on the command line."""
    return command_line if _ON_COMMAND_LINE.get() else python


def setting(name: str, *values: str) -> str:
    """A setting that has the same name on both surfaces, with the values that it may be given."""
    flag = f"--{name.replace('_', '-')}"
    if not values:
        return either(name, flag)
    quoted = [f'"{value}"' for value in values]
    return either(f"{name}={_alternatives(quoted)}", f"{flag} {_alternatives(values)}")


def _alternatives(values: list[str] | tuple[str, ...]) -> str:
    *first, last = values
    return f"{', '.join(first)} or {last}" if first else last
