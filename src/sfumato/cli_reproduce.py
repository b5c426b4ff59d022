"""What ``sfumato reproduce`` does: a paper's figures, tables or experiments, made again."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import isfinite
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

from sfumato.data.write import replacing
from sfumato.errors import SettingError
from sfumato.experiments import ermis, runner, wang, wei
from sfumato.experiments.paper import Experiment, Paper
from sfumato.parallel import available_threads

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

PAPERS: dict[str, Paper] = {paper.name: paper for paper in (wei.PAPER, wang.PAPER, ermis.PAPER)}
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
        if self.name not in PAPERS:
            raise SettingError(f"there is no paper {self.name!r} here; there is {', '.join(PAPERS)}")
        return PAPERS[self.name]

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
    results: list[runner.Done]
    findings: dict[str, Any]
    seconds: float


def carry_out(order: Order, console: Console) -> Outcome:
    """Do what is not done yet, and write tables, settings and pictures."""
    experiment = order.find()
    folder = order.folder(experiment)
    # Where data are missing, this says so before any work.
    shared = experiment.shared_settings()
    kept = runner.JobsFile(folder, f"{order.name} {experiment.title}", shared)
    begin = perf_counter()
    done = runner.run_jobs(experiment.jobs(), experiment.do_job, kept, console, order.processes)
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


def to_json(outcome: Outcome) -> dict[str, Any]:
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


def tables(outcome: Outcome) -> list[Table | str]:
    return outcome.experiment.tables(outcome.results)
