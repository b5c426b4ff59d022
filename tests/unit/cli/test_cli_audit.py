"""``sfumato audit``: exit codes, what is printed and written, and errors that come before any fit."""

from __future__ import annotations

import json

import command_line
import pytest

from sfumato.estimators.base import TensorEstimator

pytestmark = pytest.mark.usefixtures("few_trees")
PROMISE = ["--shape", "6", "5", "5", "--unit", "value", "--rank", "1", "--processes", "1"]
PROVEN = ["--epsilon", "4", "--method", "gradient", "--noise", "residual", *PROMISE]
PRINTED = ["--epsilon", "0.1", "--method", "gradient", "--analysis", "paper", *PROMISE]


def run(*args):
    return command_line.run("audit", *args)


def test_a_promise_that_is_kept_exits_with_zero_and_a_broken_one_with_one():
    kept = run(*PROVEN, "--runs", 40, "--canary", "least")
    assert kept.exit_code == 0
    assert "consistent with epsilon = 4" in kept.stdout
    broken = run(*PRINTED, "--runs", 40, "--canary", "least")
    assert broken.exit_code == 1
    assert "VIOLATED: measured >= " in broken.stdout
    assert "against a promise of epsilon = 0.1" in broken.stdout


def test_json_says_what_was_measured_with_which_canaries():
    found = json.loads(run(*PROVEN, "--runs", 40, "--canary", "least", "edge", "--json").stdout)
    assert {finding["canary"] for finding in found["findings"]} == {"least", "edge"}
    assert found["measured"] == max(finding["epsilon_at_least"] for finding in found["findings"])
    assert found["promise"]["epsilon"] == 4
    assert found["violated"] is False
    assert found["runs"] == 40


def test_a_folder_keeps_the_runs_and_an_audit_goes_on_there(tmp_path, monkeypatch):
    out = tmp_path / "audit"
    first = run(*PROVEN, "--runs", 40, "--canary", "least", "--out", out)
    assert first.exit_code == 0
    assert (out / "roc.png").read_bytes().startswith(b"\x89PNG")
    measured = json.loads((out / "audit.json").read_text())["measured"]

    def refuse(self, X, y=None):
        raise AssertionError("all runs are there")

    monkeypatch.setattr(TensorEstimator, "fit", refuse)
    again = run(*PROVEN, "--runs", 40, "--canary", "least", "--out", out, "--json")
    assert json.loads(again.stdout)["measured"] == measured


def test_a_folder_with_something_else_is_left_alone(tmp_path):
    (tmp_path / "notes.txt").write_text("keep me")
    refused = run(*PROVEN, "--runs", 40, "--out", tmp_path)
    assert refused.exit_code == 1
    assert "holds something else than an audit" in refused.output
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_an_audit_of_a_file_attacks_its_own_neighbours(tmp_path):
    file = tmp_path / "ratings.csv"
    lines = [f"u{u},m{i},{1 + (u * i) % 5}" for u in range(6) for i in range(5) if (u + i) % 4]
    file.write_text("\n".join(["user,item,rating", *lines]))
    table = [file, "--modes", "user", "item", "--value", "rating", "--bounds", 1, 5]
    promise = ["--epsilon", 1, "--delta", 1e-6, "--unit", "user", "--method", "bias"]
    public = ["--labels-are-public", "--public-units", 10, "--public-entries", 20]
    public += ["--runs", 40, "--processes", 1, "--json"]
    done = run(*table, *promise, *public)
    assert done.exit_code == 0
    found = json.loads(done.stdout)
    assert {finding["canary"] for finding in found["findings"]} == {"least", "most", "full"}
    assert found["promise"]["unit"] == "all entries of one user, their presence included"


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--unit", "value"], "say what is promised: --epsilon"),
        ([], "say what is promised: --epsilon"),
        (["--epsilon", "1"], "--unit"),
        (["--epsilon", "1", "--unit", "value", "--runs", "10"], "a whole number from 40 on"),
        (["--epsilon", "1", "--unit", "value", "--confidence", "2"], "between 0 and 1"),
        (["--epsilon", "1", "--unit", "value", "--canary", "yellow"], "no canary 'yellow'"),
        (["--epsilon", "1", "--unit", "value", "--canary", "full"], "a unit that is a mode"),
        (["--epsilon", "1", "--unit", "value", "--shape", "2", "9"], "3 levels or more"),
        (["--epsilon", "1", "--unit", "value", "--modes", "user"], "one for each size"),
        (["--epsilon", "1", "--unit", "film"], "not a mode"),
        (["--epsilon", "1", "--unit", "value", "--one-run", "50", "--sees", "core"], "--one-run"),
    ],
)
def test_bad_input_is_refused_before_any_fit(args, message, monkeypatch):
    def refuse(self, X, y=None):
        raise AssertionError("nothing may be fitted")

    monkeypatch.setattr(TensorEstimator, "fit", refuse)
    refused = run(*args)
    assert refused.exit_code in (1, 2)
    assert message in refused.output


def test_a_file_and_a_shape_are_one_too_many(tmp_path):
    refused = run(tmp_path / "x.csv", *PROVEN, "--bounds", 0, 1)
    assert refused.exit_code == 1
    assert "not both" in refused.output
