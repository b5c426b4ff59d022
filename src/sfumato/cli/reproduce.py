"""``sfumato reproduce``: a paper's figures, tables or experiments, made again."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import isfinite
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sfumato.cli import options
from sfumato.cli.command import command
from sfumato.cli.common import console, say_what_was_written
from sfumato.errors import SettingError

if TYPE_CHECKING:
    from rich.console import Console

    from sfumato.papers.paper import Experiment, Paper
    from sfumato.papers.runner import Done

FINDINGS_FILE = "findings.json"


@dataclass(frozen=True)
class Order:
    """What to reproduce, as asked for on the command line.

    ``given`` are those options of a paper's own that were named, such as ``figure``.
    """

    name: str
    given: Mapping[str, str] = field(default_factory=dict)
    quick: bool = False
    out: Path | None = None
    repetitions: int | None = None
    processes: int | None = None

    @property
    def paper(self) -> Paper:
        from sfumato.papers import ermis, wang, wei

        papers = {paper.name: paper for paper in (wei.PAPER, wang.PAPER, ermis.PAPER)}
        if self.name not in papers:
            raise SettingError(f"there is no paper {self.name!r} here; there is {', '.join(papers)}")
        return papers[self.name]

    def find(self) -> Experiment:
        """What is asked for; what is wrong with the order is said here."""
        paper = self.paper
        if self.repetitions is not None and self.repetitions < 1:
            raise SettingError(f"--repetitions must be 1 or more, got {self.repetitions}")
        if self.processes is not None and self.processes < 1:
            raise SettingError(f"--processes must be 1 or more, got {self.processes}")
        return paper.find(self.given, quick=self.quick, repetitions=self.repetitions)

    def folder(self, experiment: Experiment) -> Path:
        title = experiment.title.replace(" ", "-")
        return Path(f"{self.name}-{title}") if self.out is None else self.out

    def command(self, folder: Path) -> str:
        """The command line that asks for this."""
        paper = self.paper
        kind, name = paper.asked(self.given)
        words = ["sfumato", "reproduce", self.name, f"--{kind}", name]
        words += ["--quick"] if self.quick else []
        for option, value in paper.chosen(self.given).items():
            words += [f"--{option}", value]
        words += ["--out", str(folder)]
        words += [] if self.repetitions is None else ["--repetitions", str(self.repetitions)]
        return shlex.join(words)


@dataclass(frozen=True)
class Outcome:
    """Where the files are, and what they say."""

    experiment: Experiment
    files: list[Path]
    results: list[Done]
    findings: dict[str, Any]
    seconds: float


def _carry_out(order: Order, notes: Console) -> Outcome:
    """Do what is not done yet, and write tables, settings and pictures."""
    from sfumato.data.io.write import replacing
    from sfumato.kernels.numba.threads import available_threads
    from sfumato.papers import runner

    experiment = order.find()
    folder = order.folder(experiment)
    # Where data are missing, this says so before any work.
    shared = experiment.shared_settings()
    kept = runner.JobsFile(folder, f"{order.name} {experiment.title}", shared)
    begin = perf_counter()
    done = runner.run_jobs(experiment.jobs(), experiment.do_job, kept, notes, order.processes)
    results = experiment.complete(done)
    seconds = perf_counter() - begin
    settings = {
        "paper": order.name,
        "command": order.command(folder),
        **experiment.settings(),
        "versions": runner.versions(),
        "processes": order.processes or available_threads(),
        "seconds": round(seconds, 1),
        "processor_seconds": round(sum(done.seconds for done in results), 1),
    }
    runner.write_results(folder, results, settings, experiment.headings)
    files = [folder / n for n in (runner.RESULTS_FILE, runner.SUMMARY_FILE, runner.SETTINGS_FILE)]
    findings = experiment.findings(results)
    if findings:
        files.append(folder / FINDINGS_FILE)
        with replacing(files[-1]) as file:
            file.write(json.dumps(findings, indent=2).encode())
    files += experiment.draw(folder, results)
    return Outcome(experiment, files, results, findings, seconds)


def _to_json(outcome: Outcome) -> dict[str, Any]:
    from sfumato.papers import runner

    headings = outcome.experiment.headings
    return {
        "files": [str(path) for path in outcome.files],
        "seconds": round(outcome.seconds, 1),
        **({"findings": outcome.findings} if outcome.findings else {}),
        "summary": [
            {
                "series": cell.series,
                **({"model": cell.model} if cell.model else {}),
                **dict(cell.data),
                headings.at: cell.at,
                **({} if headings.part is None else {headings.part: cell.part}),
                "mean": found.mean if isfinite(found.mean) else None,
                "deviation": found.deviation if isfinite(found.deviation) else None,
                "repetitions": found.repetitions,
                "diverged": found.diverged,
            }
            for cell, found in runner.summarise(outcome.results).items()
        ],
    }


@command(
    "Make a paper's figures and tables again.",
    "sfumato reproduce wei --figure 2 --quick --out wei-figure-2",
    page="docs/cli.md#a-papers-figures-again",
)
def reproduce(
    paper: Annotated[str, typer.Argument(help="Which paper: wei, wang or ermis.")],
    figure: Annotated[
        str | None,
        typer.Option(metavar="N", help="Which of its figures: 2, 3, 4 for wei; 6.3 to 8.6 for ermis."),
    ] = None,
    table: Annotated[
        str | None,
        typer.Option(metavar="N", help="Which of its tables: 6.1, 6.2, 6.5, 7.1 to 7.8, 8.1 for ermis."),
    ] = None,
    experiment: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Of wang: noise, stream, private or topics."),
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Few repetitions and budgets: within two minutes.")
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            callback=options.folder_for_files,
            help="Folder for pictures and tables; wei-figure-2 for example.",
        ),
    ] = None,
    processes: Annotated[
        int | None, typer.Option(metavar="N", help="Fits side by side; as many as cores by default.")
    ] = None,
    repetitions: Annotated[
        int | None, typer.Option(metavar="N", help="By default the paper's, such as 10.")
    ] = None,
    scaling: Annotated[
        str | None,
        typer.Option(help="Of wei's invented truth: minmax, to [0, 1], as by default, or magnitude."),
    ] = None,
    as_json: options.Json = False,
) -> None:
    """Make a paper's figures, tables or experiments again: as printed, and beside them what we get.

    Fits that are done are kept in the folder: a run that was interrupted goes on where it ended.
    """
    named = {"figure": figure, "table": table, "experiment": experiment, "scaling": scaling}
    given = {name: value for name, value in named.items() if value is not None}
    order = Order(paper, given, quick, out, repetitions, processes)
    outcome = _carry_out(order, console(stderr=True))
    if as_json:
        typer.echo(json.dumps(_to_json(outcome)))
        return
    screen = console()
    for part in outcome.experiment.tables(outcome.results):
        screen.print(part)
    for file in outcome.files:
        say_what_was_written(screen, [file])
