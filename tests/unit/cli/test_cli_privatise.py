"""``sfumato privatise``, and ``sfumato complete`` of what it writes."""

import json

import numpy as np
import pytest
from command_line import run

import sfumato as sf

RNG = np.random.default_rng(1)


@pytest.fixture(autouse=True)
def files(tmp_path, monkeypatch):
    """Two owners' ratings, of different users."""
    monkeypatch.chdir(tmp_path)
    cells = np.unique(RNG.integers(0, [[20], [12]], (2, 200)), axis=1)
    for owner in "ab":
        rows = [f"{owner}{u},m{i},{RNG.integers(1, 6)}" for u, i in cells.T]
        (tmp_path / f"{owner}.csv").write_text("\n".join(["user,item,rating", *rows]))


COLUMNS = ("--modes", "user", "item", "--value", "rating", "--bounds", 1, 5)


def privatise(name, *more, out=None):
    return run("privatise", name, *COLUMNS, "--epsilon", 2, "--out", out or f"noisy-{name}", *more)


def test_a_file_is_privatised_and_fitted():
    done = privatise("a.csv")
    assert done.exit_code == 0, done.output
    assert "randomised response" in done.output
    assert "nobody: values are privatised" in done.output
    fit = run("complete", "noisy-a.csv", "--out", "model", "--rank", 1)
    assert fit.exit_code == 0, fit.output
    assert "promise        differential privacy, epsilon 2" in fit.output
    assert run("explain", "model").output.startswith("promise        differential privacy, epsilon 2")
    assert run("explain", "noisy-a.csv").output.startswith("promise        differential privacy")


def test_others_are_fitted_together_and_raw_data_keep_the_model_home(tmp_path):
    assert privatise("a.csv").exit_code == 0
    assert privatise("b.csv", out="noisy-b.parquet").exit_code == 0
    both = run("complete", "noisy-a.csv", "--others", "noisy-b.parquet", "--out", "both", "--json")
    assert both.exit_code == 0, both.output
    said = json.loads(both.stdout)
    assert said["private"]
    assert said["modes"] == {"user": 40, "item": 12}
    own = run("complete", "a.csv", *COLUMNS, "--others", "noisy-b.parquet", "--out", "own", "--rank", 1)
    assert own.exit_code == 0, own.output
    assert "NOT PRIVATE" in own.output
    assert [path.name for path in (tmp_path / "own").iterdir()] == ["owner"]
    assert run("explain", "own").output.startswith("not private")


def test_json_and_a_key_that_gives_the_same_noise_again(tmp_path):
    first = privatise("a.csv", "--key", "key", "--ledger", "spent.jsonl", "--json")
    assert first.exit_code == 0, first.output
    said = json.loads(first.stdout)
    assert said["channel"] == "response"
    assert said["guarantee"]["epsilon"] == pytest.approx(2, rel=1e-3)
    content = (tmp_path / "noisy-a.csv").read_bytes()
    assert (tmp_path / "key").stat().st_mode & 0o777 == 0o600
    again = privatise("a.csv", "--key", "key", "--ledger", "spent.jsonl")
    assert again.exit_code == 0
    assert (tmp_path / "noisy-a.csv").read_bytes() == content
    assert "1 fit," in run("ledger", "spent.jsonl").output


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("privatise", "a.csv", *COLUMNS, "--epsilon", 2, "--out", "x.txt"), "is to be a table"),
        (("privatise", "a.csv", *COLUMNS, "--epsilon", 2, "--out", "a.csv"), "take the place"),
        (("privatise", "a.csv", *COLUMNS, "--epsilon", 2, "--out", "no/x.csv"), "there is no folder"),
        (
            ("privatise", "a.csv", *COLUMNS, "--epsilon", 2, "--out", "x.csv", "--noise-seed", 1),
            "say --force",
        ),
        (("privatise", "a.csv", *COLUMNS[:5], "--epsilon", 2, "--out", "x.csv"), "--bounds"),
        (("privatise", "a.csv", *COLUMNS, "--epsilon", -2, "--out", "x.csv"), "epsilon"),
        (
            ("privatise", "a.csv", *COLUMNS, "--epsilon", 2, "--out", "x.csv", "--unit", "user"),
            "--max-entries",
        ),
        (("privatise", "a.csv", *COLUMNS, "--epsilon", 2, "--out", "x.csv", "--key", "a.csv"), "no key"),
        (("complete", "a.csv", *COLUMNS, "--others", "b.csv", "--out", "m"), "no privatised values"),
    ],
)
def test_mistakes_are_said_and_nothing_is_written(words, message, tmp_path):
    before = sorted(path.name for path in tmp_path.iterdir())
    done = run(*words)
    assert done.exit_code != 0
    assert message in done.output
    assert sorted(path.name for path in tmp_path.iterdir()) == before


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (("--epsilon", 1, "--unit", "value"), "need no budget"),
        (("--solver", "sgd"), "leave --solver"),
        (("--test", 0.2), "noisy values"),
        (("--engine", "ray"), "in this process"),
    ],
)
def test_a_fit_of_noisy_values_needs_no_budget(more, message):
    assert privatise("a.csv").exit_code == 0
    done = run("complete", "noisy-a.csv", "--out", "model", *more)
    assert done.exit_code != 0
    assert message in done.output


def test_a_grid_hides_which_cells_have_an_entry(tmp_path):
    (tmp_path / "items.txt").write_text("\n".join(f"m{i}" for i in range(12)))
    done = run(
        *("privatise", "a.csv", "--modes", "user", "item", "--value", "rating", "--bounds", 0, 5),
        *("--epsilon", 2, "--grid", "item=items.txt", "--out", "noisy.csv"),
    )
    assert done.exit_code == 0, done.output
    assert sf.read_privatised("noisy.csv").n_entries == 20 * 12
