"""What ``sfumato reproduce`` does: a paper's figures, made again."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, replace
from math import isfinite
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

from sfumato.errors import SettingError
from sfumato.experiments import runner, wei, wei_pictures
from sfumato.parallel import available_threads

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

PAPERS = ("wei",)
_SCALINGS = ("minmax", "magnitude")


@dataclass(frozen=True)
class Order:
    """What to reproduce, as asked for on the command line."""

    paper: str
    figure: int
    quick: bool = False
    out: Path | None = None
    repetitions: int | None = None
    scaling: str = "minmax"
    processes: int | None = None

    @property
    def folder(self) -> Path:
        return Path(f"{self.paper}-figure-{self.figure}") if self.out is None else self.out

    @property
    def command(self) -> str:
        """The command line that asks for this."""
        words = ["sfumato", "reproduce", self.paper, "--figure", str(self.figure)]
        words += ["--quick"] if self.quick else []
        words += ["--scaling", self.scaling, "--out", str(self.folder)]
        words += [] if self.repetitions is None else ["--repetitions", str(self.repetitions)]
        return shlex.join(words)

    def make_figure(self) -> wei.Figure:
        """The figure's plan; what is wrong with the order is said here."""
        if self.paper not in PAPERS:
            raise SettingError(f"there is no paper {self.paper!r} here; there is {', '.join(PAPERS)}")
        if self.figure not in wei.FIGURES:
            numbers = ", ".join(str(number) for number in wei.FIGURES)
            raise SettingError(f"of {self.paper} there are the figures {numbers}; got {self.figure}")
        if self.scaling not in _SCALINGS:
            raise SettingError(f"--scaling is one of {', '.join(_SCALINGS)}, got {self.scaling!r}")
        if self.repetitions is not None and self.repetitions < 1:
            raise SettingError(f"--repetitions must be 1 or more, got {self.repetitions}")
        if self.processes is not None and self.processes < 1:
            raise SettingError(f"--processes must be 1 or more, got {self.processes}")
        figure = (wei.QUICK if self.quick else wei.FIGURES)[self.figure]
        if self.repetitions is not None:
            figure = replace(figure, repetitions=self.repetitions)
        return figure if figure.scaling is None else replace(figure, scaling=self.scaling)


@dataclass(frozen=True)
class Outcome:
    """Where the files are, and what they say."""

    figure: wei.Figure
    files: list[Path]
    summaries: dict[runner.Cell, runner.Summary]
    seconds: float


def carry_out(order: Order, console: Console) -> Outcome:
    """Do what is not done yet, and write tables, settings and pictures."""
    figure = order.make_figure()
    # Where data are missing, this says so before any work.
    shared = figure.shared_settings()
    kept = runner.JobsFile(order.folder, f"{order.paper} figure {order.figure}", shared)
    begin = perf_counter()
    results = wei.with_auto(runner.run_jobs(figure.jobs(), wei.do_job, kept, console, order.processes))
    seconds = perf_counter() - begin
    settings = {
        "paper": order.paper,
        "command": order.command,
        **figure.settings(),
        "versions": runner.versions(),
        "processes": order.processes or available_threads(),
        "seconds": round(seconds, 1),
        "processor_seconds": round(sum(done.seconds for done in results), 1),
    }
    runner.write_results(order.folder, results, settings)
    summaries = runner.summarise(results)
    pictures = wei_pictures.draw(order.folder, figure, summaries)
    names = (runner.RESULTS_FILE, runner.SUMMARY_FILE, runner.SETTINGS_FILE)
    return Outcome(figure, [*(order.folder / n for n in names), *pictures], summaries, seconds)


def to_json(outcome: Outcome) -> dict[str, Any]:
    return {
        "files": [str(path) for path in outcome.files],
        "seconds": round(outcome.seconds, 1),
        "summary": [
            {
                "series": cell.series,
                "model": cell.model,
                **dict(cell.data),
                "epsilon": cell.epsilon,
                "mean": found.mean if isfinite(found.mean) else None,
                "deviation": found.deviation if isfinite(found.deviation) else None,
                "repetitions": found.repetitions,
                "diverged": found.diverged,
            }
            for cell, found in outcome.summaries.items()
        ],
    }


def tables(outcome: Outcome) -> list[Table | str]:
    """Mean errors of every series over epsilon, for each model and kind of data."""
    lines: list[Table | str] = []
    for data in outcome.figure.data():
        for model in wei.KINDS:
            about = ", ".join(f"{name} {value}" for name, value in data)
            lines += [f"{model}; {about}: mean RMSE at epsilon", _table(outcome, model, data), ""]
    return lines


def _table(outcome: Outcome, model: str, data: tuple[tuple[str, Any], ...]) -> Table:
    from sfumato.report import plain_table

    epsilons = outcome.figure.epsilons
    table = plain_table("", *(f"{epsilon:g}" for epsilon in epsilons), "none")
    for series in (*outcome.figure.series, wei.AUTO):
        found = [outcome.summaries.get(runner.Cell(series, model, data, e)) for e in epsilons]
        level = outcome.summaries.get(runner.Cell(series, model, data, None))
        table.add_row(series, *(_number(each) for each in found), _number(level))
    return table


def _number(found: runner.Summary | None) -> str:
    if found is None:
        return ""
    return f"{found.mean:.4f}" if found.mean < 10 else f"{found.mean:.3g}"
