"""Jobs of an experiment: kept as they end, gone on with, summed up honestly."""

import csv
import json
from math import inf

import pytest
from rich.console import Console

from sfumato.errors import SettingError
from sfumato.papers.runner import (
    JOBS_FILE,
    Cell,
    Done,
    Headings,
    Job,
    JobsFile,
    Point,
    run_jobs,
    summarise,
    versions,
    write_results,
)

QUIET = Console(quiet=True)
DATA = (("missing", 0.5),)
JOBS = [Job(series, "cp", (0.1, 1.0), r, DATA) for series in ("a", "b") for r in range(3)]
calls: list[Job] = []


def work(job):
    """An error for each epsilon; series b diverges at the small one in the last repetition."""
    calls.append(job)
    lost = job.series == "b" and job.repetition == 2
    return [Point(e, inf if lost and e < 1 else job.repetition + e) for e in job.at]


def importable_work(job):
    return [Point(e, job.repetition + e) for e in job.at]


@pytest.fixture(autouse=True)
def no_calls():
    calls.clear()


def keep(folder, settings=None):
    return JobsFile(folder, "test", settings or {"clip": 0.1})


def test_a_run_that_broke_off_goes_on_where_it_ended(tmp_path):
    def breaks_off(job):
        if len(calls) == 4:
            raise KeyboardInterrupt
        return work(job)

    with pytest.raises(KeyboardInterrupt):
        run_jobs(JOBS, breaks_off, keep(tmp_path), QUIET, 1)
    assert len(calls) == 4
    results = run_jobs(JOBS, work, keep(tmp_path), QUIET, 1)
    assert calls == JOBS  # each once, over both runs
    assert [done.job for done in results] == JOBS
    assert [done.points for done in results] == [tuple(work(job)) for job in JOBS]  # infinity, too


def test_a_line_that_was_cut_off_is_dropped_and_its_job_done_again(tmp_path):
    first = run_jobs(JOBS, work, keep(tmp_path), QUIET, 1)
    file = tmp_path / JOBS_FILE
    file.write_bytes(file.read_bytes()[:-9])
    calls.clear()
    again = run_jobs(JOBS, work, keep(tmp_path), QUIET, 1)
    assert calls == JOBS[-1:]
    assert [done.points for done in again] == [done.points for done in first]
    lines = file.read_text().splitlines()
    assert len([json.loads(line) for line in lines]) == 1 + len(JOBS)


def test_other_settings_are_done_anew_and_lose_nothing(tmp_path):
    run_jobs(JOBS, work, keep(tmp_path), QUIET, 1)
    run_jobs(JOBS, work, keep(tmp_path, {"clip": 0.2}), QUIET, 1)
    assert len(calls) == 2 * len(JOBS)
    run_jobs(JOBS, work, keep(tmp_path), QUIET, 1)
    assert len(calls) == 2 * len(JOBS)


def test_processes_give_what_one_gives(tmp_path):
    one, two = (run_jobs(JOBS, importable_work, keep(tmp_path / str(n)), QUIET, n) for n in (1, 2))
    assert [(done.job, done.points) for done in one] == [(done.job, done.points) for done in two]


def test_folders_that_hold_something_else_are_refused_and_left_alone(tmp_path):
    (tmp_path / "thesis.tex").write_text("mine")
    with pytest.raises(SettingError, match="something else"):
        keep(tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(SettingError, match="is a file"):
        keep(tmp_path / "file")
    run_jobs(JOBS[:1], work, keep(tmp_path / "run"), QUIET, 1)
    with pytest.raises(SettingError, match="another experiment"):
        JobsFile(tmp_path / "run", "wei figure 3", {})
    assert (tmp_path / "thesis.tex").read_text() == "mine"


def test_a_mean_over_a_fit_that_diverged_is_infinite():
    found = summarise(Done(job, tuple(work(job)), 0.0) for job in JOBS)
    assert found[Cell("a", "cp", DATA, 1.0)] == (2.0, 1.0, 3, 0)  # of 1, 2 and 3
    assert found[Cell("b", "cp", DATA, 0.1)] == (inf, inf, 3, 1)
    alone = summarise([Done(JOBS[0], (Point(None, 0.5),), 0.0)])
    assert alone[Cell("a", "cp", DATA, None)] == (0.5, 0.0, 1, 0)


def test_a_fit_may_have_several_errors_on_an_axis_of_its_own(tmp_path):
    def parted(job):
        return [Point(at, at / n, f"component {n}") for at in job.at for n in (1, 2)]

    results = run_jobs(JOBS[:2], parted, keep(tmp_path), QUIET, 1)
    again = run_jobs(JOBS[:2], work, keep(tmp_path), QUIET, 1)
    assert [done.points for done in again] == [done.points for done in results]
    assert not calls  # it was read from the disk
    assert summarise(results)[Cell("a", "cp", DATA, 1.0, "component 2")] == (0.5, 0.0, 2, 0)
    write_results(tmp_path, results, {}, Headings("noise", "distance", "component"))
    with (tmp_path / "results.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert (rows[3]["noise"], rows[3]["component"], rows[3]["distance"]) == ("1.0", "component 2", "0.5")
    with (tmp_path / "summary.csv").open() as file:
        assert [row["component"] for row in csv.DictReader(file)] == ["component 1", "component 2"] * 2


def test_tables_hold_every_fit(tmp_path):
    results = [Done(job, tuple(work(job)), 0.0) for job in JOBS]
    write_results(tmp_path, results, {"clip": 0.1, "versions": versions()})
    with (tmp_path / "results.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 2 * len(JOBS)
    assert rows[0] == {
        "series": "a",
        "model": "cp",
        "missing": "0.5",
        "repetition": "0",
        "epsilon": "0.1",
        "rmse": "0.1",
    }
    with (tmp_path / "summary.csv").open() as file:
        summary = list(csv.DictReader(file))
    assert [row["diverged"] for row in summary] == ["0", "0", "1", "0"]
    settings = json.loads((tmp_path / "settings.json").read_text())
    assert settings["clip"] == 0.1
    assert {"python", "sfumato", "numpy"} <= set(settings["versions"])
