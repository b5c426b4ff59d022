"""Odds on the command line: of a model, and beside what an audit has found."""

import json

import command_line
import pytest

import sfumato as sf

PROMISE = {
    "epsilon": 1.0,
    "delta": 1e-6,
    "accounted": 1.0,
    "unit": "all entries of one user, their presence included",
    "neighbours": "all entries of one user are added or removed",
    "method": "moments",
    "proven": True,
}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    modes = [sf.Mode("user", 40), sf.Mode("item", 30)]
    tensor = sf.synthetic.typical(modes, 500).tensor
    privacy = sf.Privacy(1.0, 1e-6, unit="user", public=sf.Public(labels=True, entries=500, units=60))
    fitted = sf.CP(privacy=privacy).fit(tensor)
    folder = tmp_path_factory.mktemp("odds") / "release"
    fitted.release(folder)
    return folder


def audit_file(folder, **changed):
    said = {"promise": PROMISE, "measured": 0.4, "confidence": 0.95, "verdict": "consistent"} | changed
    file = folder / "audit.json"
    file.write_text(json.dumps(said))
    return file


def test_a_release_says_its_odds(model):
    shown = " ".join(command_line.run("explain", model).stdout.split())
    assert "a belief that the data hold all entries of one user can rise from 10% to" in shown
    odds = json.loads(command_line.run("explain", model, "--json").stdout)["odds"]
    assert len(odds["sentences"]) == 2
    assert 0.01 < odds["true_positives"] < 0.0272
    assert odds["posterior"]["0.5"] < 0.78


def test_what_an_audit_has_found_is_said_beside_it(model, tmp_path):
    file = audit_file(tmp_path)
    shown = " ".join(command_line.run("explain", model, "--audit", file).stdout.split())
    assert "that odds can grow 1.49-fold, which the promise allows" in shown
    told = json.loads(command_line.run("explain", model, "--audit", file, "--json").stdout)
    assert "1.49-fold" in told["odds"]["sentences"][-1]
    refuted = command_line.run("explain", model, "--audit", audit_file(tmp_path, measured=2.0))
    assert "REFUTES" in refuted.stdout


@pytest.mark.parametrize(
    "changed",
    [
        {"promise": None},
        {"promise": {}},
        {"promise": {**PROMISE, "epsilon": "one"}},
        {"promise": {**PROMISE, "unit": "one entry"}},
        {"promise": {**PROMISE, "epsilon": 20.0}},
        {"promise": {**PROMISE, "delta": 1e-3}},
        {"measured": None},
        {"measured": -1.0},
        {"confidence": 1.0},
        {"confidence": "high"},
    ],
)
def test_what_is_no_record_of_this_audit_is_refused(model, tmp_path, changed):
    result = command_line.run("explain", model, "--audit", audit_file(tmp_path, **changed))
    assert result.exit_code == 1
    assert "audit" in result.stderr
    assert not result.stdout


@pytest.mark.parametrize("content", [b"", b"[]", b"{", b"\xff\xfe", b"null", b"3"])
def test_what_is_no_json_is_refused(model, tmp_path, content):
    file = tmp_path / "audit.json"
    file.write_bytes(content)
    result = command_line.run("explain", model, "--audit", file)
    assert result.exit_code == 1
    assert "audit" in result.stderr
    missing = command_line.run("explain", model, "--audit", tmp_path / "none.json")
    assert missing.exit_code == 1
