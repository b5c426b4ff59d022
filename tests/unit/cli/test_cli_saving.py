"""Nothing paid for is lost: destinations are tried before the first charge, and models find a place."""

import os
import tempfile
from pathlib import Path

import command_line
import pyarrow as pa
import pyarrow.csv as pacsv
import pytest

import sfumato as sf
from sfumato.store import replacing

COLUMNS = ["--modes", "user", "item", "--value", "rating", "--bounds", "1", "5", "--quiet"]
PRIVATE = ["--epsilon", "3", "--unit", "value"]
HOW = {
    "biases": ["--method", "bias"],
    "search": ["--tune-rank", "1", "2", "--delta", "1e-3", "--method", "gradient"],
}


@pytest.fixture(scope="module")
def ratings(tmp_path_factory):
    tensor = sf.prepare.clip(sf.synthetic.cp((12, 10), 1, entries=60, seed=0).tensor, (1, 5))
    path = tmp_path_factory.mktemp("data") / "ratings.csv"
    user, item = tensor.coordinates
    pacsv.write_csv(pa.table({"user": user, "item": item, "rating": tensor.values}), path)
    return path


@pytest.fixture
def elsewhere(tmp_path, monkeypatch):
    """A folder to run in, and one for what is temporary."""
    for name in ("here", "temporary"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    return tmp_path / "here", tmp_path / "temporary"


def complete(ratings, *args):
    return command_line.run("complete", ratings, *COLUMNS, *args)


def charges(ledger):
    return len(ledger.read_text().splitlines()) - 1


def full(*_):
    raise OSError(28, "No space left on device")


def fail_below(monkeypatch, *folders):
    """No model can be put in place below these folders, once the destination was tried."""
    put = replacing.put_in_place

    def put_elsewhere(new, target, work):
        if any(folder in target.parents for folder in folders):
            full()
        put(new, target, work)

    monkeypatch.setattr(replacing, "put_in_place", put_elsewhere)


@pytest.mark.parametrize("how", list(HOW))
def test_no_charge_where_nothing_can_be_written(ratings, tmp_path, monkeypatch, how):
    (tmp_path / "file").write_text("")
    ledger = tmp_path / "ledger"
    for out, message in (
        (tmp_path / "file", "is a file"),
        (tmp_path / "file" / "model", "cannot be written: Not a directory"),
        (tmp_path, "holds no model"),
        (Path("/proc/nowhere/model"), "cannot be written"),
    ):
        said = complete(ratings, *PRIVATE, *HOW[how], "--ledger", ledger, "--out", out)
        assert said.exit_code == 1
        assert message in said.stderr
        assert not ledger.exists()
    monkeypatch.setattr(os, "fsync", full)
    said = complete(ratings, *PRIVATE, *HOW[how], "--ledger", ledger, "--out", tmp_path / "model")
    assert "cannot be written: No space left on device; name another folder" in said.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file"]


@pytest.mark.parametrize("how", list(HOW))
@pytest.mark.parametrize("place", [0, 1])
def test_a_model_that_cannot_be_saved_is_saved_elsewhere(
    ratings, tmp_path, monkeypatch, elsewhere, how, place
):
    out, ledger = tmp_path / "full" / "model", tmp_path / "ledger"
    fail_below(monkeypatch, tmp_path / "full", *elsewhere[:place])
    said = complete(ratings, *PRIVATE, *HOW[how], "--ledger", ledger, "--out", out)
    assert said.exit_code == 1
    assert f"{out} could not be written (No space left on device)" in said.stderr
    (rescued,) = elsewhere[place].iterdir()
    assert str(rescued / "model") in said.stderr
    assert rescued.stat().st_mode & 0o777 == 0o700
    assert sf.load(rescued / "model").guarantee_.epsilon <= 3
    assert charges(ledger) > 0
    assert list(elsewhere[1 - place].iterdir()) == []


def test_where_there_is_no_place_at_all(ratings, tmp_path, monkeypatch, elsewhere):
    fail_below(monkeypatch, tmp_path)
    said = complete(ratings, *PRIVATE, *HOW["biases"], "--out", tmp_path / "full" / "model")
    assert said.exit_code == 1
    assert "nowhere else either" in said.stderr
    assert [list(folder.iterdir()) for folder in elsewhere] == [[], []]


def test_a_model_without_privacy_is_not_lost_either(ratings, tmp_path, monkeypatch, elsewhere):
    fail_below(monkeypatch, tmp_path / "full")
    said = complete(ratings, "--rank", "1", "--out", tmp_path / "full" / "model")
    assert said.exit_code == 1
    assert "memory" not in said.stderr  # which ends with the command
    (rescued,) = elsewhere[0].iterdir()
    assert sf.load(rescued / "model").guarantee_ is None
