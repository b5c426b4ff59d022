"""A bar on the terminal while a fit runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from sfumato.solvers.protocol import Info

if TYPE_CHECKING:
    from rich.console import Console


class FitProgress:
    """A bar on the terminal that follows fits; where there is no terminal, nothing is shown.

    It is a context, and the ``progress`` of an estimator.
    """

    def __init__(self, console: Console) -> None:
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

        self._bar = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TextColumn("{task.fields[error]}"),
            TimeElapsedColumn(),
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
        self._bar.add_task(what, total=None, error="")

    def __call__(self, done: int, rounds: int, info: Info) -> None:
        error = "" if info.train_rmse is None else f"training RMSE {info.train_rmse:.4f}"
        self._bar.update(self._bar.task_ids[-1], completed=done, total=rounds, error=error)
