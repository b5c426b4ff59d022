"""Losses and metrics on the command line."""

import json

import numpy as np
import pytest
from command_line import run

import sfumato as sf


@pytest.fixture
def table(tmp_path):
    rng = np.random.default_rng(0)
    chance = np.where(np.arange(60)[:, None] % 2 == np.arange(20) % 2, 0.5, 0.1)
    cells = np.argwhere(rng.random(chance.shape) < chance)
    lines = [f"u{u},i{i},{rng.integers(0, 2)}" for u, i in cells]
    path = tmp_path / "seen.csv"
    path.write_text("\n".join(["user,item,liked", *lines]))
    return path


COLUMNS = ["--modes", "user", "item", "--value", "liked"]
PRIVATE = [
    *("--epsilon", "8", "--delta", "1e-6", "--unit", "user", "--labels-are-public"),
    *("--public-units", "60"),
]


def test_lists_are_measured_and_leave_out_what_was_seen(table, tmp_path):
    out = tmp_path / "model"
    result = run("complete", table, *COLUMNS, "--loss", "seen", "--test", "0.2", "--out", out)
    assert result.exit_code == 0, result.output
    assert "ndcg@10" in result.output
    assert "popularity" in result.output
    loaded = sf.load(out)
    assert loaded.loss == "seen"
    assert len(loaded.top("item", 5, seen=sf.read(table, ["user", "item"], "liked"), user="u3")) == 5


@pytest.mark.parametrize(
    ("loss", "metric", "named"),
    [("seen", "recall@5", "recall@5"), ("logistic", None, "log-loss"), ("poisson", None, "deviance")],
)
def test_a_private_fit_is_shown_beside_its_baselines_by_the_metric(table, tmp_path, loss, metric, named):
    flags = ["--loss", loss, "--test", "0.2", *(["--bounds", "0", "5"] if loss == "poisson" else [])]
    flags += [] if metric is None else ["--metric", metric]
    result = run("complete", table, *COLUMNS, *PRIVATE, *flags, "--out", tmp_path / "m", "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout.splitlines()[-1])
    assert found["metric"] == named
    assert all(0 <= each["measured"] < 10 for each in found["held_out"][1:])
    assert found["guarantee"]["proven"]


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--metric", "ndcg"], "there is no --metric ndcg"),
        (["--metric", "recall@0"], "recall@K"),
        (["--loss", "logistic", "--bounds", "1", "5"], "--bounds 0 1"),
        (["--loss", "seen", *PRIVATE, "--method", "bias"], "--loss seen has no private method"),
        (["--bounds", "0", "1", *PRIVATE, "--method", "popularity"], "--loss seen"),
        (["--loss", "seen", *PRIVATE, "--tune-rank", "2", "3"], "leave --loss seen out"),
    ],
)
def test_what_cannot_be_is_said_in_flags_and_nothing_is_written(table, tmp_path, flags, words):
    result = run("complete", table, *COLUMNS, *flags, "--test", "0.2", "--out", tmp_path / "m")
    assert result.exit_code in (1, 2)
    assert words in " ".join(result.output.split())
    assert not (tmp_path / "m").exists()


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--metric", "ndcg@10"], "say --test as well"),
        (["--metric", "rmse"], "say --test as well"),
        (["--loss", "seen", "--metric", "deviance", "--test", "0.2"], "use recall@K or ndcg@K"),
        (["--loss", "seen", "--metric", "log-loss", "--test", "0.2"], "use recall@K or ndcg@K"),
        (["--loss", "poisson", "--bounds", "0", "5", *PRIVATE, "--intervals"], "leave --intervals out"),
        (["--loss", "logistic", *PRIVATE, "--intervals", "--test", "0.2"], "leave --intervals out"),
    ],
)
def test_what_would_be_measured_or_told_in_vain_is_refused_before_the_fit(table, tmp_path, flags, words):
    """With nothing written, nor charged."""
    ledger = ["--ledger", tmp_path / "l"] if "--epsilon" in flags else []
    result = run("complete", table, *COLUMNS, *flags, *ledger, "--out", tmp_path / "m")
    assert result.exit_code == 1
    assert words in " ".join(result.output.split())
    assert not (tmp_path / "m").exists()
    assert not ledger or not (tmp_path / "l").exists()


PLANNED = ["--shape", "60", "20", "--entries", "500", "--epsilon", "3", "--delta", "1e-6"]


def test_plans_are_made_on_the_scale_that_is_fitted():
    """A bound of 100 counts is one of 10 roots; yes and no need no bounds."""
    counts = run("plan", *PLANNED, "--loss", "poisson", "--bounds", "0", "100", "--json")
    roots = run("plan", *PLANNED, "--bounds", "0", "10", "--json")
    told, same = (json.loads(result.stdout) for result in (counts, roots))
    assert told.pop("loss") == "poisson"
    assert same.pop("loss") == "squared"
    assert told.pop("bounds") == [0, 100]
    assert same.pop("bounds") == [0, 10]
    assert told == same
    words = run("plan", *PLANNED, "--loss", "poisson", "--bounds", "0", "100").output
    assert "in roots of counts" in " ".join(words.split())
    assert json.loads(run("plan", *PLANNED, "--loss", "logistic", "--json").stdout)["spread"] == 0.25


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--loss", "seen"], "leave it out to plan for values"),
        (["--loss", "poisson"], "--bounds 0 100"),
        (["--loss", "poisson", "--bounds", "-1", "5"], "counts are not negative"),
        (["--loss", "logistic", "--bounds", "1", "5"], "--bounds 0 1"),
    ],
)
def test_what_cannot_be_planned_is_said(flags, words):
    result = run("plan", *PLANNED, *flags)
    assert result.exit_code in (1, 2)
    assert words in " ".join(result.output.split())
