"""``sfumato reproduce``: what it writes, and what it refuses before it works. The fits are pretended."""

import csv
import json
from dataclasses import replace

import command_line
import pytest

from sfumato.papers import wang, wei
from sfumato.papers.runner import Point
from sfumato.papers.wang_noise import Scan


def run(*args):
    return command_line.run("reproduce", *args)


@pytest.fixture
def pretended(monkeypatch):
    """Series that are a formula, counted as they are asked for."""
    calls = []

    def pretend(name):
        def fits(problem, epsilons):
            calls.append((name, problem.seed))
            height = 0.1 if name == "constant" else 0.2
            return [Point(e, height / e) for e in epsilons] or [Point(None, height)]

        return fits

    monkeypatch.setattr(wei, "SERIES", {name: pretend(name) for name in wei.SERIES})
    return calls


def written(folder):
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("figure", [2, 3])
def test_a_figure_is_two_pictures_two_tables_and_the_settings(figure, tmp_path, pretended):
    out = tmp_path / "new" / "folder"
    result = run("wei", "--figure", figure, "--quick", "--out", out, "--processes", 1)
    assert result.exit_code == 0, result.stderr
    assert written(out) == [
        "as-printed.png",
        "jobs.jsonl",
        "ours.png",
        "results.csv",
        "settings.json",
        "summary.csv",
    ]
    for picture in ("as-printed.png", "ours.png"):
        content = (out / picture).read_bytes()
        assert content.startswith(b"\x89PNG")
        assert len(content) > 10_000
    settings = json.loads((out / "settings.json").read_text())
    assert settings["data_seeds"] == [100, 101]
    assert settings["bounds"] == [0.0, 1.0]
    assert settings["models"]["tucker"]["as printed"]["ridge_per_entry"] == 0.001
    assert settings["command"].startswith("sfumato reproduce wei --figure ")
    assert "…" not in result.stdout  # tables fit into a terminal
    assert "printed gradient" in result.stdout


def test_it_goes_on_and_extends_what_is_there(tmp_path, pretended):
    order = ["wei", "--figure", 2, "--quick", "--out", tmp_path / "f", "--processes", 1]
    assert run(*order).exit_code == 0
    once = len(pretended)
    assert once == 2 * 2 * len(wei.SERIES)  # two repetitions of two models
    result = run(*order, "--repetitions", 3, "--json")
    assert result.exit_code == 0, result.stderr
    assert len(pretended) == once * 3 // 2
    assert {seed for _, seed in pretended} == {100, 101, 102}
    found = {(row["series"], row["epsilon"]) for row in json.loads(result.stdout)["summary"]}
    assert {("auto", 10.0), ("constant", None), ("printed gradient", 1e-5)} <= found
    assert run(*order, "--scaling", "magnitude").exit_code == 0
    assert len(pretended) == once * 3 // 2 + once


def test_auto_is_what_the_method_stands_for(tmp_path, pretended):
    assert run("wei", "--figure", 2, "--quick", "--out", tmp_path / "f", "--processes", 1).exit_code == 0
    with (tmp_path / "f" / "results.csv").open() as file:
        rows = list(csv.DictReader(file))
    auto, noisy = (
        [(row["model"], row["epsilon"], row["rmse"]) for row in rows if row["series"] == name]
        for name in ("auto", "input")
    )
    assert auto == noisy  # no biases are wanted here: at every epsilon it is input perturbation


TINY = {
    "noise": replace(
        wang.QUICK_NOISE,
        scans=(
            Scan("gaussian", (10, 20), (2,), (0.3, 3.0)),
            Scan("uncorrelated aside", (20,), (2, 4), (0.01, 3.0)),
        ),
    ),
    "stream": replace(
        wang.QUICK_STREAM, dimensions=(5, 8), samples=(100, 3000), fresh_samples=(100, 9000)
    ),
    "private": replace(wang.QUICK_PRIVATE, dimensions=(10, 15), epsilons=(0.1, 100.0)),
    "topics": replace(wang.QUICK_TOPICS, documents=(300,), epsilons=(5.0,), private_documents=3000),
}


@pytest.mark.parametrize("name", TINY)
def test_an_experiment_is_a_picture_with_tables_and_settings(name, tmp_path, monkeypatch):
    monkeypatch.setitem(wang.PAPER.quick, name, TINY[name])
    order = ["wang", "--experiment", name, "--quick", "--processes", 1, "--repetitions", 1]
    result = run(*order, "--out", tmp_path)
    assert result.exit_code == 0, result.stderr
    assert "…" not in result.stdout
    always = {"jobs.jsonl", "results.csv", "settings.json", "summary.csv", f"{name}.png"}
    assert always <= set(written(tmp_path))
    assert (tmp_path / f"{name}.png").stat().st_size > 10_000
    with (tmp_path / "results.csv").open() as file:
        rows = list(csv.DictReader(file))
    part = "topic" if name == "topics" else "component"
    assert {"series", "repetition", part} <= set(rows[0])
    assert "model" not in rows[0]
    jobs = TINY[name].jobs()
    assert {row["series"] for row in rows} == {job.series for job in jobs}
    again = json.loads(run(*order, "--out", tmp_path, "--json").stdout)
    assert "seconds" in again
    assert ("findings" in again) == (name != "topics")
    settings = json.loads((tmp_path / "settings.json").read_text())
    assert settings["command"].startswith(f"sfumato reproduce wang --experiment {name} --quick --out")
    assert settings["first_seed"] == 100


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["hitchcock", "--figure", 2], "no paper 'hitchcock'"),
        (["wei", "--figure", 7], "figures 2, 3, 4; got 7"),
        (["wei"], "which figure of wei with --figure: 2, 3, 4"),
        (["wei", "--experiment", "noise"], "--experiment does not belong to wei, which has --figure"),
        (["wang"], "which experiment of wang with --experiment: noise, stream, private, topics"),
        (["wang", "--figure", 2], "--figure does not belong to wang, which has --experiment"),
        (["wang", "--experiment", "dance"], "experiments noise, stream, private, topics; got dance"),
        (["wang", "--experiment", "noise", "--scaling", "minmax"], "--scaling does not belong to wang"),
        (["wei", "--figure", 2, "--repetitions", 0], "--repetitions must be 1 or more"),
        (["wei", "--figure", 2, "--processes", 0], "--processes must be 1 or more"),
        (["wei", "--figure", 2, "--scaling", "log"], "--scaling is one of"),
    ],
)
def test_bad_orders_are_refused_before_anything_is_written(args, message, tmp_path, pretended):
    result = run(*args, "--out", tmp_path / "f")
    assert result.exit_code == 1
    assert message in result.stderr
    assert not (tmp_path / "f").exists()
    assert not pretended


def test_a_folder_that_holds_something_else_is_left_alone(tmp_path, pretended):
    (tmp_path / "notes.txt").write_text("mine")
    result = run("wei", "--figure", 2, "--out", tmp_path)
    assert (result.exit_code, written(tmp_path)) == (1, ["notes.txt"])
    assert "something else" in result.stderr
    assert not pretended


def test_without_movielens_it_says_so_before_work(tmp_path, pretended, monkeypatch):
    monkeypatch.setattr("sfumato.data.datasets._local_folder", lambda *_: None)
    monkeypatch.setattr("sfumato.data.datasets._movielens_files", _not_here)
    wei_data = pytest.importorskip("sfumato.papers.wei_data")
    wei_data._split.cache_clear()
    result = run("wei", "--figure", 4, "--quick", "--out", tmp_path / "f")
    assert result.exit_code == 1
    assert "SFUMATO_DATA" in result.stderr
    assert not (tmp_path / "f").exists()
    assert not pretended


def _not_here(*_):
    from sfumato.errors import DataError

    raise DataError("ml-100k is not here. Set SFUMATO_DATA to a folder that holds it")


def test_the_jobs_are_the_paper_s(monkeypatch):
    jobs = wei.FIGURES[2].jobs()
    assert len(jobs) == 50 * 2 * len(wei.SERIES)
    assert len({(job.series, job.model, job.repetition) for job in jobs}) == len(jobs)
    gradient = next(job for job in jobs if job.series == "printed gradient")
    assert min(gradient.at) == 1e-5
    ratios = {job.about["missing"] for job in wei.FIGURES[3].jobs()}
    assert ratios == {0.1, 0.3, 0.5, 0.7, 0.9}
    assert wei.FIGURES[4].repetitions == 10
    smaller = replace(wei.FIGURES[3], repetitions=1).jobs()
    assert set(smaller) < set(wei.FIGURES[3].jobs())
