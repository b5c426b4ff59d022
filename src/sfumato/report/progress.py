"""A bar on the terminal or in a notebook while something takes long, and lines for who watches."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, ClassVar, Self

from sfumato.fit.loop import Progress, Watch
from sfumato.solvers.protocol import Info

if TYPE_CHECKING:
    from rich.console import Console

_BETWEEN = 0.1  # seconds between two pictures in a notebook


WATCHED = "SFUMATO_PROGRESS"  # names a file that gets a line of JSON for each step


class _Lines:
    """How far it is, for another program to read: in a file, where the environment names one."""

    def __init__(self) -> None:
        self._path = os.environ.get(WATCHED)
        self._what = ""

    def begin(self, what: str) -> None:
        self._what = what
        self.show(0, None)

    def show(self, done: int, whole: int | None) -> None:
        if self._path:
            said = {"what": self._what, "done": done, "whole": whole, "at": time.time()}
            with open(self._path, "a", encoding="utf-8") as file:
                file.write(json.dumps(said) + "\n")


class _Bar:
    """A bar on the terminal, and a context; where there is no terminal, nothing is shown there."""

    def __init__(self, console: Console) -> None:
        from rich.progress import (
            BarColumn,
            Progress,
            TextColumn,
            TimeElapsedColumn,
            TimeRemainingColumn,
        )

        self._bar = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TextColumn("{task.fields[beside]}"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(compact=True),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._lines = _Lines()

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def begin(self, what: str) -> None:
        """Replace the bar by an empty one."""
        for task in self._bar.task_ids:
            self._bar.remove_task(task)
        self._bar.add_task(what, total=None, beside="")
        self._lines.begin(what)

    def _show(self, done: int, whole: int | None, beside: str) -> None:
        self._bar.update(self._bar.task_ids[-1], completed=done, total=whole, beside=beside)
        self._lines.show(done, whole)


class FitProgress(_Bar):
    """A bar that follows fits: the ``progress`` of an estimator."""

    def __call__(self, done: int, rounds: int, info: Info) -> None:
        error = "" if info.train_rmse is None else f"training RMSE {info.train_rmse:.4f}"
        self._show(done, rounds, error)


class _NotebookBar:
    """A bar in a notebook: plain HTML that is written anew, so that no widgets have to be installed."""

    def __init__(self, what: str) -> None:
        from IPython.display import HTML, display

        self._html, self._what, self._said = HTML, what, f"{what}: not begun"
        self._begin = self._shown = time.monotonic()
        self._place = display(HTML(self._said), display_id=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        seconds = time.monotonic() - self._begin
        self._place.update(self._html(f"{self._said}, {seconds:.1f} s"))

    def __call__(self, done: int, rounds: int, info: Info) -> None:
        error = "" if info.train_rmse is None else f", training RMSE {info.train_rmse:.4f}"
        self._said = f"{self._what}: {done:,} of {rounds:,}{error}"
        if time.monotonic() > self._shown + _BETWEEN:
            self._shown = time.monotonic()
            bar = f'<progress value="{done}" max="{rounds}"></progress>'
            self._place.update(self._html(f"{bar} {self._said}"))


def _in_notebook() -> bool:
    """Whether IPython runs this in a kernel, whose output is a page."""
    ipython = sys.modules.get("IPython")
    return ipython is not None and hasattr(ipython.get_ipython(), "kernel")


@contextmanager
def watching(progress: Watch, what: str) -> Iterator[Progress | None]:
    """What is told of progress while something lasts; a bar where that is wanted."""
    if not isinstance(progress, bool):
        yield progress
    elif not progress:
        yield None
    elif _in_notebook():
        with _NotebookBar(what) as notebook:
            yield notebook
    else:
        from rich.console import Console

        with FitProgress(Console(stderr=True)) as bar:
            bar.begin(what)
            yield bar


class ShardProgress(_Bar):
    """A bar that follows how a tensor is cut: the ``progress`` of ``make_shards``."""

    _WORDS: ClassVar = {"read": "reading", "cut": "cutting", "sort": "sorting"}

    def __init__(self, console: Console) -> None:
        super().__init__(console)
        self._step = ""

    def __call__(self, step: str, done: int, whole: int | None) -> None:
        if step != self._step:
            self._step = step
            self.begin(self._WORDS[step])
        of = f" of {whole:,}" if whole else ""
        self._show(done, whole, f"{done:,}{of} {'shards' if step == 'sort' else 'entries'}")
