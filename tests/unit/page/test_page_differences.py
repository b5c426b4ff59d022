"""What a file holds other than was said of it: told to the holder alone, and to no plan and no fit."""

import json

import pytest
from paging import FILE, Visitor, fields, write_table

from sfumato.page import workshop
from sfumato.page.choices import Form
from sfumato.page.differences import differences
from sfumato.page.jobs import Job

COLUMNS = ("patient", "drug", "day", "score", "note")
SLIPS = {
    "labels": (
        {"known_1": "list", "labels_1": "aspirin\niron", "entries": "160"},
        "0 of {n} entries have labels",
    ),
    "some": (
        {"size_1": "10", "entries": "700"},
        "entries have labels of drug from 1 to 10: the fit leaves all others out",
    ),
    "sizes": ({"known_1": "file", "size_1": "5", "entries": "400"}, "has 20 levels of drug, you said 5"),
    "owners": ({"size_0": "50"}, "has 60 levels of patient, more than the 50 that you said"),
    "many": ({"size_0": "5000"}, "has 60 levels of patient, you said 5,000"),
    "entries": ({"entries": "100"}, "the file has {n} entries, you said about 100"),
    "values": ({"high": "2"}, "{out} of {n} values lie outside 1 to 2: they are cut off there"),
    "missing": ({"role_3": "", "role_4": "value"}, "the file cannot be read like this"),
}


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    return write_table(tmp_path_factory.mktemp("differs") / FILE)


@pytest.fixture
def visitor(tmp_path):
    write_table(tmp_path / FILE)
    return Visitor(tmp_path).enter()


def choices(**changed):
    form = Form(FILE, COLUMNS, fields(**changed))
    assert form.checked("budget") is None, form.errors
    return form.choices()


def test_nothing_is_told_of_a_file_that_is_as_was_said(table):
    assert differences(table, choices()) == ()
    assert differences(table, choices(unit="value")) == ()


@pytest.mark.parametrize("slip", SLIPS)
def test_a_slip_is_told_with_its_numbers(table, slip):
    changed, expected = SLIPS[slip]
    rows = [line.split(",") for line in table.read_text().splitlines()[1:]]
    out = sum(int(row[3]) > 2 for row in rows)
    said = " ".join(differences(table, choices(**changed)))
    assert expected.format(n=len(rows), out=out) in said


def test_values_that_are_none_are_told(tmp_path):
    lines = [f"{n % 9},{n % 7},{'' if n % 10 == 0 else 3}" for n in range(60)]
    (tmp_path / "t.csv").write_text("patient,drug,score\n" + "\n".join(lines))
    changed = {"role_2": "value", "role_3": "", "size_0": "9", "size_1": "7", "entries": "60"}
    form = Form("t.csv", ("patient", "drug", "score"), fields(**changed))
    assert form.checked("budget") is None, form.errors
    said = " ".join(differences(tmp_path / "t.csv", form.choices()))
    assert "6 of 60 values are missing or no numbers: each counts as 3" in said


def test_a_file_that_changes_is_read_again(tmp_path):
    write_table(tmp_path / FILE)
    assert differences(tmp_path / FILE, choices()) == ()
    write_table(tmp_path / FILE, rows=120)
    assert "you said about 900" in " ".join(differences(tmp_path / FILE, choices()))


def test_the_holder_is_told_before_the_button_and_marked_as_not_for_release(visitor):
    page = visitor.step("budget", high="2").text
    place = [page.index(each) for each in ("NOT FOR RELEASE.", "lie outside 1 to 2", 'class="spend"')]
    assert place == sorted(place)
    assert "NOT FOR RELEASE" not in visitor.step("budget").text
    assert "lie outside" not in visitor.step("public", high="2").text


def test_nothing_of_it_is_planned_fitted_or_kept(visitor, monkeypatch):
    """With and without it the permit is the same, and so are the words, the settings and the plan."""
    found = []
    monkeypatch.setattr(Job, "start", lambda _: None)
    monkeypatch.setattr(Job, "state", "done")
    for told in ((), ("SECRET-7,311",)):
        monkeypatch.setattr(workshop, "differences", lambda *_, told=told: told)
        nonce = visitor.nonce(high="2")
        about = visitor.shop.confirmations._open[nonce]
        assert visitor.start(nonce, high="2").status_code == 303
        ordered = list(visitor.shop.ordered.values())[-1]
        words = [word.replace(str(ordered.job.folder), "") for word in ordered.job.words]
        found.append((about, words, ordered.settings.text(), ordered.choices, ordered.told))
        assert ordered.differs == told
        kept = [each.read_text() for each in ordered.job.folder.rglob("*") if each.is_file()]
        assert not any("SECRET" in text for text in kept)
    assert found[0] == found[1]
    assert "SECRET" not in json.dumps(found[1][:3])


@pytest.mark.parametrize("with_test", [False, True])
def test_results_tell_it_again_for_the_holder_alone(visitor, with_test):
    asked = {"high": "2", "epsilon": "4", **({"test": "0.3"} if with_test else {})}
    page, ordered = visitor.ended(visitor.start(**asked))
    assert ordered.job.state == "done", ordered.job.notes("error")
    assert page.text.index("NOT FOR RELEASE.") < page.text.index("lie outside 1 to 2")
    assert ("cut off there before errors are measured" in page.text) == with_test
    address = f"/job/{ordered.job.id}/get"
    assert "lie outside" not in visitor.get(f"{address}/report.html").text
    for name in ("command.sh", "fit.py", "settings.json"):
        assert "lie outside" not in visitor.get(f"{address}/{name}").text
    release = ordered.places.out / "release"
    assert not any(b"lie outside" in each.read_bytes() for each in release.rglob("*") if each.is_file())
    assert b"lie outside" not in ordered.places.ledger.read_bytes()
