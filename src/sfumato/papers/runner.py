"""Jobs of an experiment in processes of their own, kept on disk as they end, and what came of them.

An experiment is a list of *jobs*, records of plain settings, and a function that does one of them and
returns *points*: one error each, and where on the experiment's axis it lies. What is done is written to
the folder's ``jobs.jsonl``, a line a job, under all settings of the job: a run that was interrupted goes
on where it ended, and one with other settings does what is not there yet.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import os
import platform
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from math import inf, isfinite
from pathlib import Path
from statistics import mean, stdev
from time import process_time
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from sfumato.data.io.write import replacing
from sfumato.errors import SettingError
from sfumato.privacy.caveats import without_warnings
from sfumato.processes import each_done

if TYPE_CHECKING:
    from rich.console import Console

JOBS_FILE = "jobs.jsonl"
SETTINGS_FILE, RESULTS_FILE, SUMMARY_FILE = "settings.json", "results.csv", "summary.csv"
_PACKAGES = ("sfumato", "numpy", "numba", "scipy")


class Point(NamedTuple):
    """An error of one fit: infinite where it diverged.

    ``at`` is where the fit lies on the experiment's axis, such as an epsilon, and None for a fit that
    knows no such thing. ``part`` says which error it is where a fit has several: one of each component.
    """

    at: float | None
    error: float
    part: str | None = None


class Headings(NamedTuple):
    """What an experiment calls the fields of its points; where ``part`` is None it has no column."""

    at: str = "epsilon"
    error: str = "rmse"
    part: str | None = None


OVER_EPSILON = Headings()


@dataclass(frozen=True)
class Job:
    """All fits of one series to one data set: its name, the model, and which data.

    There is a fit for each place of the axis in ``at``; none for a series that knows no axis. ``data``
    names what the data set depends on beside the repetition, such as the missing ratio. ``model`` is
    empty where there is but one.
    """

    series: str
    model: str
    at: tuple[float, ...]
    repetition: int
    data: tuple[tuple[str, Any], ...] = ()

    @property
    def about(self) -> dict[str, Any]:
        return dict(self.data)


class Done(NamedTuple):
    """A job, its points, and how many seconds of a processor it took."""

    job: Job
    points: tuple[Point, ...]
    seconds: float


# -- keeping what is done -------------------------------------------------------------------------


class JobsFile:
    """The jobs of a folder that are done. Lines are added as jobs end; a broken last line is dropped.

    ``settings`` are those that all jobs share: what was done under others counts as not done.
    """

    def __init__(self, folder: Path, experiment: str, settings: Mapping[str, Any]) -> None:
        self._path, self._first = folder / JOBS_FILE, {"experiment": experiment}
        shared = json.dumps({**settings, "version": version("sfumato")}, sort_keys=True)
        self._settings = hashlib.sha256(shared.encode()).hexdigest()[:12]
        self._lines: dict[str, dict[str, Any]] = {}
        _check_folder(folder)
        if self._path.exists():
            self._read(folder)

    def _read(self, folder: Path) -> None:
        first, *rest = self._path.read_text(encoding="utf-8").split("\n")
        if _parsed(first) != self._first:
            raise SettingError(
                f"{folder} holds another experiment ({first[:60]}): choose another folder with --out"
            )
        for line in rest:
            parsed = _parsed(line)
            if parsed is not None:
                self._lines[parsed["key"]] = parsed

    def __enter__(self) -> Self:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(self._path) as file:  # without what an interruption left half-written
            for line in (self._first, *self._lines.values()):
                file.write(f"{json.dumps(line)}\n".encode())
        self._file = self._path.open("a", encoding="utf-8")
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def find(self, job: Job) -> Done | None:
        line = self._lines.get(self._key(job))
        if line is None:
            return None
        points = tuple(Point(a, inf if error is None else error, p) for a, error, p in line["points"])
        return Done(job, points, line["seconds"])

    def _key(self, job: Job) -> str:
        return json.dumps({**asdict(job), "settings": self._settings}, sort_keys=True)

    def keep(self, done: Done) -> None:
        """Write a job down; it is on disk when this returns."""
        points = [(p.at, p.error if isfinite(p.error) else None, p.part) for p in done.points]
        key = self._key(done.job)
        line = {"key": key, "points": points, "seconds": round(done.seconds, 3)}
        self._file.write(f"{json.dumps(line)}\n")
        self._file.flush()
        os.fsync(self._file.fileno())
        self._lines[key] = line


def _parsed(line: str) -> dict[str, Any] | None:
    try:
        found = json.loads(line)
    except json.JSONDecodeError:
        return None
    return found if isinstance(found, dict) else None


def _check_folder(folder: Path) -> None:
    if folder.exists() and not folder.is_dir():
        raise SettingError(f"{folder} is a file: name a folder with --out")
    if folder.is_dir() and any(folder.iterdir()) and not (folder / JOBS_FILE).exists():
        raise SettingError(f"{folder} holds something else: choose another folder with --out")


# -- doing it -------------------------------------------------------------------------------------


class _Timed:
    """A job's function with a clock; a class, since processes are sent it."""

    def __init__(self, function: Callable[[Job], Sequence[Point]]) -> None:
        self._function = function

    def __call__(self, job: Job) -> Done:
        begin = process_time()
        with without_warnings():  # budgets are the paper's
            points = tuple(self._function(job))
        return Done(job, points, process_time() - begin)


def run_jobs(
    jobs: Sequence[Job],
    function: Callable[[Job], Sequence[Point]],
    kept: JobsFile,
    console: Console,
    processes: int | None = None,
) -> list[Done]:
    """What all jobs come to, in their order; those that are not kept yet are done."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    found = [kept.find(job) for job in jobs]
    open_jobs = [job for job, done in zip(jobs, found, strict=True) if done is None]
    if len(open_jobs) < len(jobs):
        console.print(f"{len(jobs) - len(open_jobs)} of {len(jobs)} jobs were done before")
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )
    with kept, bar:
        task = bar.add_task("fits", total=len(jobs), completed=len(jobs) - len(open_jobs))
        for _, done in each_done(_Timed(function), open_jobs, processes):
            kept.keep(done)
            bar.update(
                task, advance=1, description=", ".join(filter(None, (done.job.model, done.job.series)))
            )
    return [done for done in (kept.find(job) for job in jobs) if done is not None]


# -- what came of it ------------------------------------------------------------------------------


class Cell(NamedTuple):
    """One series of one model at one place of the axis, on one kind of data; one part of its errors."""

    series: str
    model: str
    data: tuple[tuple[str, Any], ...]
    at: float | None
    part: str | None = None


class Summary(NamedTuple):
    """Mean and standard deviation over repetitions, and how many of them diverged.

    Where one has, the mean is infinite: that of the others would flatter.
    """

    mean: float
    deviation: float
    repetitions: int
    diverged: int


def summarise(results: Iterable[Done]) -> dict[Cell, Summary]:
    """Mean and spread of every series at every place of the axis."""
    errors: defaultdict[Cell, list[float]] = defaultdict(list)
    for job, points, _ in results:
        for at, error, part in points:
            errors[Cell(job.series, job.model, job.data, at, part)].append(error)
    return {cell: _summary(those) for cell, those in errors.items()}


def _summary(errors: Sequence[float]) -> Summary:
    diverged = sum(not isfinite(error) for error in errors)
    if diverged:
        return Summary(inf, inf, len(errors), diverged)
    return Summary(mean(errors), stdev(errors) if len(errors) > 1 else 0.0, len(errors), 0)


def write_results(
    folder: Path,
    results: Sequence[Done],
    settings: dict[str, Any],
    headings: Headings = OVER_EPSILON,
) -> None:
    """The flat table of all fits, their summary, and the exact settings, each written whole."""
    names = sorted({name for done in results for name in done.job.about})
    models = ("model",) if any(done.job.model for done in results) else ()
    parts = () if headings.part is None else (headings.part,)

    def about(of: Job | Cell) -> tuple[Any, ...]:
        return *(of.series, of.model)[: 1 + len(models)], *(dict(of.data).get(name) for name in names)

    def place(of: Point | Cell) -> tuple[Any, ...]:
        return (of.at, of.part)[: 1 + len(parts)]

    flat = [
        (*about(job), job.repetition, *place(point), point.error)
        for job, points, _ in results
        for point in points
    ]
    first = ("series", *models, *names)
    write_csv(folder / RESULTS_FILE, (*first, "repetition", headings.at, *parts, headings.error), flat)
    summary = [(*about(cell), *place(cell), *found) for cell, found in summarise(results).items()]
    write_csv(folder / SUMMARY_FILE, (*first, headings.at, *parts, *Summary._fields), summary)
    with replacing(folder / SETTINGS_FILE) as file:
        file.write(json.dumps(settings, indent=2).encode())


def write_csv(path: Path, heading: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """A table, written whole."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(heading)
    writer.writerows(rows)
    with replacing(path) as file:
        file.write(text.getvalue().encode())


def versions() -> dict[str, str]:
    """What the figures were computed with."""
    return {"python": platform.python_version(), **{name: version(name) for name in _PACKAGES}}
