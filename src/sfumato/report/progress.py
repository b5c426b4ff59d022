"""A bar on the terminal while something takes long."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Self

from sfumato.solvers.protocol import Info

if TYPE_CHECKING:
    from rich.console import Console


class _Bar:
    """A bar on the terminal, and a context; where there is no terminal, nothing is shown."""

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

    def _show(self, done: int, whole: int | None, beside: str) -> None:
        self._bar.update(self._bar.task_ids[-1], completed=done, total=whole, beside=beside)


class FitProgress(_Bar):
    """A bar that follows fits: the ``progress`` of an estimator."""

    def __call__(self, done: int, rounds: int, info: Info) -> None:
        error = "" if info.train_rmse is None else f"training RMSE {info.train_rmse:.4f}"
        self._show(done, rounds, error)


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
