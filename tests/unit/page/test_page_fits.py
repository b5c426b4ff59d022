"""Fits from the page: the command's own, once for each permit, within the ledger, ended for certain."""

import io
import json
import re
import shlex
import subprocess
import sys
import time
import zipfile
from contextlib import suppress
from pathlib import Path

import pytest
from command_line import run
from paging import FILE, Visitor, fields, write_table, wrong_in

import sfumato as sf
from sfumato import store
from sfumato.cli import beside
from sfumato.page import results
from sfumato.page.choices import Form
from sfumato.page.expected import room_in
from sfumato.page.jobs import Job
from sfumato.page.scripts import notebook, script
from sfumato.page.wording import Places, words, write_labels
from sfumato.report.records import Result

COLUMNS = ("patient", "drug", "day", "score", "note")


@pytest.fixture
def visitor(tmp_path):
    write_table(tmp_path / FILE)
    return Visitor(tmp_path).enter()


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    """A fit that was carried out, with entries held out; tests look at it and change nothing."""
    folder = tmp_path_factory.mktemp("page")
    write_table(folder / FILE)
    visitor = Visitor(folder).enter()
    asked = {"test": "0.2", "limit": "5"}
    page, ordered = visitor.ended(visitor.start(**asked))
    assert ordered.job.state == "done", ordered.job.notes("error")
    return visitor, page, ordered


def address_of(ordered):
    return f"/job/{ordered.job.id}"


def ledger_of(visitor):
    return visitor.shop.folder.kept / "ledgers" / f"{FILE}.ledger"


def spent(visitor):
    """Epsilon and the number of fits of the ledger."""
    account = sf.read_ledger(ledger_of(visitor))
    return account.epsilon(1e-6), account.fits


def test_the_page_shows_the_guarantee_and_marks_what_is_not_for_release(fitted):
    visitor, page, ordered = fitted
    guarantee = store.guarantee_of(ordered.places.out)
    assert guarantee.epsilon == pytest.approx(2, abs=0.01)
    for line in ("all entries of one patient, their presence included", "epsilon 2, delta 1e-06"):
        assert line in page.text
    assert page.text.index("NOT FOR RELEASE") < page.text.index("constant, not private")
    assert "nothing spent" in page.text
    assert spent(visitor) == (pytest.approx(2, abs=0.01), 1)


def test_the_fit_is_what_the_command_line_makes(fitted):
    _, _, ordered = fitted
    found = ordered.job.result
    assert found["private"]
    assert found["entries"] > found["fitted_entries"]
    assert [each["name"].split(",")[0] for each in found["held_out"]][:2] == ["constant", "biases"]


def test_the_release_is_downloaded_and_nothing_else(fitted):
    visitor, _, ordered = fitted
    answer = visitor.get(f"{address_of(ordered)}/get/release.zip")
    assert answer.headers["content-disposition"] == 'attachment; filename="release.zip"'
    with zipfile.ZipFile(io.BytesIO(answer.content)) as archive:
        packed = {name.removeprefix("release/"): archive.read(name) for name in archive.namelist()}
    release = ordered.places.out / "release"
    assert packed == {path.name: path.read_bytes() for path in release.iterdir()}
    assert "owner" not in " ".join(packed)


def test_the_report_is_about_the_release_alone(fitted, tmp_path):
    visitor, _, ordered = fitted
    answer = visitor.get(f"{address_of(ordered)}/get/report.html")
    assert answer.headers["content-disposition"] == 'attachment; filename="report.html"'
    model = sf.load(ordered.places.out / "release")
    expected = model.report(tmp_path / "expected.html", release=True)
    assert answer.text == expected.read_text(encoding="utf-8")
    assert "not for release" not in answer.text.lower()


def test_lists_are_the_models_and_marked_where_they_use_own_rows(fitted):
    visitor, _, ordered = fitted
    model = sf.load(ordered.places.out)
    patient = next(label for label in model.modes_[0].labels if str(label).startswith("p"))
    form = {"mode": "drug", "label-0": str(patient)}
    page = visitor.shown(f"{address_of(ordered)}/top", form)
    shown = re.findall(r"<td>(\w+)</td><td>([\d.]+)</td>", page.text)[-10:]
    assert [label for label, _ in shown] == [
        str(label) for label, _ in model.top("drug", patient=patient)
    ]
    assert page.text.count("NOT FOR RELEASE.") == 2


@pytest.mark.parametrize(
    "asked",
    [{}, {"mode": "patient"}, {"mode": "drug", "label-0": "<i>nobody"}, {"mode": "x", "label-9": "y"}],
)
def test_lists_of_what_is_not_there_say_so(fitted, asked):
    visitor, _, ordered = fitted
    page = visitor.shown(f"{address_of(ordered)}/top", asked)
    assert page.status_code == 200
    assert len(wrong_in(page)) == 1 or "keep" in page.text
    assert "<i>" not in page.text


def test_the_holders_report_has_all_there_is_and_says_that_it_is_not_for_release(fitted):
    visitor, _, ordered = fitted
    answer = visitor.get(f"{address_of(ordered)}/get/report-not-for-release.html")
    disposition = 'attachment; filename="report-not-for-release.html"'
    assert answer.headers["content-disposition"] == disposition
    assert "Not for release" in answer.text
    for each in ordered.job.result["held_out"]:
        assert f"{each['rmse']:.4f}" in answer.text
    assert "The whole ledger" in answer.text


def test_what_was_expected_stands_beside_what_came(fitted):
    _, page, ordered = fitted
    came = ordered.job.result["held_out"]
    said = re.search(
        r"Expected: ([\d.]+), .*?\. Came: ([\d.]+); with one average for all ([\d.]+)\.", page.text
    )
    assert float(said[1]) == pytest.approx(ordered.told.error, rel=0.01)
    assert float(said[2]) == pytest.approx(came[-1]["rmse"], rel=0.01)
    assert float(said[3]) == pytest.approx(came[0]["rmse"], rel=0.01)
    assert page.text.index("NOT FOR RELEASE.") < page.text.index("Expected: ")


def errors_of(**found):
    return [Result(name.replace("_", " "), rmse, 0.0) for name, rmse in found.items()]


def test_a_fit_that_does_not_pay_is_told_as_on_the_command_line():
    open_ones = errors_of(**{"constant, not private": 1.0, "biases, not private": 0.8})
    private = errors_of(private_constant=1.1, private_biases=0.9)
    (fit,) = errors_of(moments=0.95)
    said = results.does_not_pay([*open_ones, *private, fit])
    assert said == beside.Comparison(open_ones, private, fit).lines[0]
    assert results.does_not_pay([*open_ones, *private[:1], fit]) is None
    assert results.does_not_pay([*open_ones, fit]) is None
    (worse,) = errors_of(moments=1.2)
    assert "constant, not private here" in results.does_not_pay([*open_ones, worse])
    assert results.does_not_pay([*open_ones, *errors_of(private_constant=1.2)]) is None
    assert results.does_not_pay([]) is None


def test_the_page_of_a_fit_that_does_not_pay_says_so(fitted, monkeypatch):
    visitor, _, ordered = fitted
    result, errors = ordered.job.result, [each["rmse"] for each in ordered.job.result["held_out"]]
    for found in (sorted(errors, reverse=True), sorted(errors)):
        changed = [{**each, "rmse": rmse} for each, rmse in zip(result["held_out"], found, strict=True)]
        monkeypatch.setattr(Job, "result", {**result, "held_out": changed})
        page = visitor.get(address_of(ordered)).text
        assert ("does not beat" in page) == (found == sorted(errors))
    assert page.index("NOT FOR RELEASE.") < page.index("The fit does not beat constant, not private")
    report = visitor.get(f"{address_of(ordered)}/get/report-not-for-release.html").text
    assert "The fit does not beat constant, not private" in report
    assert "does not beat" not in visitor.get(f"{address_of(ordered)}/get/report.html").text


def test_how_much_a_fit_may_still_have_is_said(fitted):
    visitor, page, _ = fitted
    room = room_in(sf.read_ledger(ledger_of(visitor)))
    assert 2 < room < 5  # squares of epsilons add up, about
    assert f"one more fit may have up to about epsilon {room:g}" in page.text
    assert "% is left" not in page.text
    again = visitor.step("budget", epsilon="5", limit="5")
    said = re.sub(r"\s+", " ", again.text)
    assert "would pass the limit" in said
    assert f"choose a smaller epsilon in step 5, {room:g} at most" in said


def test_what_is_not_there_is_not_found(fitted):
    visitor, _, ordered = fitted
    for address in (
        "/job/x",
        "/job/x/part",
        f"{address_of(ordered)}/get/model.json",
        "/static/../app.py",
    ):
        assert visitor.get(address).status_code == 404, address
    assert visitor.post("/job/x/cancel", {}).status_code == 404


def test_a_fit_can_be_changed_and_made_again(fitted):
    visitor, _, ordered = fitted
    again = visitor.get("/fit", params={"again": ordered.job.id})
    assert again.status_code == 200
    assert "epsilon 2 by 1 fit" in re.sub(r"\s+", " ", again.text)


# -- spending -------------------------------------------------------------------------------------


@pytest.fixture
def counted(monkeypatch):
    """Fits that are started, of which none computes anything."""
    started = []

    def start(job):
        started.append(job)

    monkeypatch.setattr(Job, "start", start)
    return started


def test_nothing_starts_without_the_permit_of_the_last_step(visitor, counted):
    for nonce in ("", "wrong"):
        answer = visitor.start(nonce)
        assert answer.status_code == 400
        assert "Nothing was spent" in wrong_in(answer)[0]
    assert not counted


def test_two_tabs_do_not_spend_twice(visitor, counted, monkeypatch):
    first, second = visitor.nonce(), visitor.nonce()
    assert visitor.start(first).status_code == 303
    assert "Another fit is running" in wrong_in(visitor.start(second))[0]
    monkeypatch.setattr(Job, "state", "done")
    for nonce in (first, second):
        assert "This confirmation has been used" in wrong_in(visitor.start(nonce))[0]
    assert len(counted) == 1


def test_a_permit_is_for_what_was_shown(visitor, counted):
    for changed in (
        {"epsilon": "9"},
        {"high": "6"},
        {"size_0": "70"},
        {"unit": "entry", "known_0": "file"},
    ):
        answer = visitor.start(visitor.nonce(), **changed)
        assert answer.status_code == 400, changed
    assert not counted
    assert visitor.start(visitor.nonce()).status_code == 303


def test_a_permit_ends_when_the_ledger_goes_on(visitor, counted):
    nonce = visitor.nonce()
    charged_elsewhere(visitor)
    assert "ledger has changed" in wrong_in(visitor.start(nonce))[0]
    assert not counted


def charged_elsewhere(visitor, limit=None):
    """What another fit of the same data has spent: 1 of the budget."""
    path = ledger_of(visitor)
    path.parent.mkdir(parents=True, exist_ok=True)
    public = sf.Public(labels={"drug": [str(n) for n in range(1, 21)]}, units=80, entries=900)
    bounded = None if limit is None else sf.Budget(limit, 1e-6)
    kept = {"ledger": path, "limit": bounded, "public": public, "method": "constant"}
    privacy = sf.Privacy(1.0, 1e-6, unit="patient", **kept)
    file = visitor.shop.folder.path / FILE
    sf.CP(privacy=privacy).fit(sf.read(file, modes=["patient", "drug"], value="score", bounds=(1, 5)))


def test_a_budget_that_the_ledger_does_not_have_is_refused_before_it_can_be_asked_for(visitor, counted):
    charged_elsewhere(visitor, limit=2)
    page = visitor.step("budget", epsilon="4")
    said = re.sub(r"\s+", " ", page.text)
    assert "would pass the limit of the ledger" in said
    assert "choose a smaller epsilon in step 5" in said
    assert 'name="nonce"' not in page.text
    assert "epsilon 1 by 1 fit" in said
    assert 'name="nonce"' in visitor.step("budget", epsilon="0.5").text
    assert not counted


@pytest.mark.parametrize(
    ("changed", "why"), [({"unit": "mode:1", "known_0": "range"}, "is about"), ({"limit": "7"}, "limit")]
)
def test_a_ledger_of_another_promise_is_refused(visitor, changed, why):
    charged_elsewhere(visitor, limit=2)
    answer = visitor.step("budget", **changed)
    assert why in wrong_in(answer)[0]
    assert 'name="nonce"' not in answer.text


def test_a_damaged_ledger_is_refused(visitor):
    ledger_of(visitor).parent.mkdir(parents=True)
    ledger_of(visitor).write_text("no ledger\n")
    answer = visitor.step("budget")
    assert "refused" in wrong_in(answer)[0]
    assert 'name="nonce"' not in answer.text


def test_an_error_of_the_command_is_shown_and_nothing_is_spent(visitor):
    page, ordered = visitor.ended(visitor.start(size_0="50"))  # there are 60
    assert ordered.job.state == "failed"
    assert "There are more levels of patient than the public number, 50" in wrong_in(page)[0]
    assert "nothing spent" in page.text
    assert not ledger_of(visitor).exists() or not sf.read_ledger(ledger_of(visitor)).charges


# -- cancelling -----------------------------------------------------------------------------------


def alive_in(group):
    """Processes of a group; those that have ended, and only wait to be asked how, do not count."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            state, _, of = path.read_text().rpartition(")")[2].split()[:3]
            if int(of) == group and state not in "ZX":
                found.append(path)
    return found


STUBBORN = "import signal, time; signal.signal(signal.SIGINT, signal.SIG_IGN); print('on', flush=True); "


@pytest.fixture
def stubborn(monkeypatch):
    """A command that does not listen to Ctrl-C, and has a child that does not either."""
    asleep = f"{STUBBORN}time.sleep(600)"
    child = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {asleep!r}])"
    monkeypatch.setattr("sfumato.page.jobs._COMMAND", f"{STUBBORN}{child}; time.sleep(600)")
    monkeypatch.setattr("sfumato.page.jobs.PATIENCE", 0.2)


@pytest.mark.usefixtures("stubborn")
def test_a_fit_that_is_cancelled_is_ended_for_certain_with_what_it_started(visitor):
    answer = visitor.start()
    page = visitor.get(answer.headers["location"])
    assert 'data-state="running"' in page.text
    ordered = visitor.shop.running
    group = ordered.job._process.pid
    cancelled = visitor.post(f"{address_of(ordered)}/cancel", {})
    page = visitor.get(cancelled.headers["location"])
    assert ordered.job.state == "cancelled"
    assert "What was charged until then stays charged" in page.text
    for _ in range(200):  # what was killed takes its time to go
        if not alive_in(group):
            break
        time.sleep(0.05)
    else:
        raise AssertionError("something that the fit has started is still there")
    assert visitor.shop.running is None


@pytest.mark.usefixtures("stubborn")
def test_fits_end_with_the_page(visitor):
    visitor.start()
    job = visitor.shop.running.job
    visitor.shop.close()
    assert job.state == "cancelled"


LIFELINE = """
import subprocess, sys, time
sys.stdout.write(str(subprocess.Popen(
    [sys.executable, "-c", sys.argv[1]], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL,
    start_new_session=True,
).pid) + chr(10))
sys.stdout.flush()
time.sleep(600)
"""
FIT = "from sfumato.page import lifeline; lifeline.PATIENCE = 0.2; lifeline.end_with_input(); "


def test_fits_end_with_a_page_that_is_killed():
    """Whatever has ended it, a terminal that was closed say: the process that waits for it goes too."""
    fit = f"{FIT}{STUBBORN}time.sleep(600)"
    with subprocess.Popen([sys.executable, "-c", LIFELINE, fit], stdout=subprocess.PIPE) as parent:
        group = int(parent.stdout.readline())
        assert alive_in(group)
        parent.kill()
    for _ in range(200):
        if not alive_in(group):
            break
        time.sleep(0.05)
    else:
        raise AssertionError("the fit goes on without its page")


def test_a_fit_that_has_ended_stays_as_it_is(fitted):
    visitor, _, ordered = fitted
    visitor.post(f"{address_of(ordered)}/cancel", {})
    assert ordered.job.state == "done"


# -- invented data --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "changed",
    [
        {},
        {
            "role_2": "mode",
            "bin_2": "week",
            "size_2": "8",
            "loss": "poisson",
            "high": "40",
        },
    ],
)
def test_a_preview_is_of_invented_data_and_spends_nothing(visitor, changed):
    file = visitor.shop.folder.path / FILE
    before = file.read_bytes()
    page, ordered = visitor.ended(visitor.post("/preview", fields(**changed)))
    assert ordered.job.state == "done", ordered.job.notes("error")
    assert "nothing was spent" in page.text
    assert not ledger_of(visitor).exists()
    assert str(file) not in ordered.job.words
    assert file.read_bytes() == before
    modes = ordered.job.result["modes"]
    assert modes["drug"] <= 20
    assert modes["patient"] <= 80
    assert visitor.get(f"{address_of(ordered)}/get/release.zip").status_code == 404


def test_a_preview_of_very_many_entries_is_not_made(visitor):
    answer = visitor.post("/preview", fields(size_0="9000000", entries="4000000"))
    assert answer.status_code == 400
    assert not visitor.shop.ordered


# -- the same by other means ----------------------------------------------------------------------

WAYS = {
    "patient": {"test": "0.2", "limit": "5"},
    "listed": {"known_1": "list", "labels_1": "\n".join(map(str, range(1, 21)))},
    "times": {"unit": "entry", "local": "patient", "role_2": "mode", "bin_2": "week", "size_2": "5"},
    "yes": {"loss": "logistic", "unit": "values:0", "most": "3"},
}


@pytest.mark.parametrize("way", WAYS)
def test_the_script_and_the_command_plan_the_same_fit(tmp_path, way):
    """Both really run; what they promise is the same, but for the ledger."""
    write_table(tmp_path / FILE)
    form = Form(FILE, COLUMNS, fields(**WAYS[way]))
    assert form.checked("budget") is None, form.errors
    choices, found = form.choices(), {}
    for how in ("command", "script"):
        folder = tmp_path / how
        folder.mkdir()
        places = Places(tmp_path / FILE, folder / "model", folder / "spent.ledger")
        write_labels(choices, places)
        if how == "command":
            answer = run(*words(choices, 2.0, places))
            assert answer.exit_code == 0, answer.output
        else:
            exec(compile(script(choices, 2.0, places), "fit.py", "exec"), {"__name__": "__main__"})
        guarantee = store.guarantee_of(places.out).told()
        found[how] = {name: said for name, said in guarantee.items() if name != "ledger"}
        assert sf.read_ledger(places.ledger).fits == 1
    assert found["command"] == found["script"]


def test_the_script_names_the_modes_whose_labels_are_known(tmp_path):
    form = Form(FILE, COLUMNS, fields(known_1="file"))
    assert form.checked("budget") is None, form.errors
    text = script(form.choices(), 2.0, Places(tmp_path / FILE, tmp_path / "model"))
    assert "labels={'drug': True}" in text
    assert "# True: labels that occur in the file are known to everyone" in text
    assert "..." not in text
    form = Form(FILE, COLUMNS, fields(unit="value"))
    assert form.checked("budget") is None, form.errors
    assert "labels=" not in script(form.choices(), 2.0, Places(tmp_path / FILE, tmp_path / "model"))


def test_downloads_run_as_they_are(fitted, tmp_path):
    """In another folder, with a ledger that goes on from the page's: each run charges it once more."""
    visitor, _, ordered = fitted
    here, ledger = (
        str(visitor.shop.folder.kept),
        ledger_of(visitor).relative_to(visitor.shop.folder.kept),
    )
    (tmp_path / ledger).parent.mkdir()
    (tmp_path / ledger).write_bytes(ledger_of(visitor).read_bytes())

    def downloaded(name):  # with what is left of the limit
        text = visitor.get(f"{address_of(ordered)}/get/{name}").text.replace(here, str(tmp_path))
        return text.replace("--epsilon 2.0", "--epsilon 0.5").replace("epsilon=2.0", "epsilon=0.5")

    name, *typed = shlex.split(downloaded("command.sh").replace("\\\n", " "))
    assert name == "sfumato"
    answer = run(*typed)
    assert answer.exit_code == 0, answer.output
    path = tmp_path / "fit.py"
    path.write_text(downloaded("fit.py"))
    done = subprocess.run([sys.executable, path], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "epsilon 0.5" in done.stdout
    assert sf.read_ledger(tmp_path / ledger).fits == 3


def test_the_notebook_is_the_script_in_parts(fitted):
    visitor, _, ordered = fitted
    found = json.loads(visitor.get(f"{address_of(ordered)}/get/fit.ipynb").text)
    assert found == json.loads(notebook(ordered.choices, ordered.epsilon, ordered.places))
    assert found["nbformat"] == 4
    code = ["".join(cell["source"]) for cell in found["cells"] if cell["cell_type"] == "code"]
    written = script(ordered.choices, ordered.epsilon, ordered.places)
    assert written.endswith("\n\n".join(code) + "\n")
    assert len({cell["id"] for cell in found["cells"]}) == len(found["cells"])


def test_code_that_lies_beside_the_data_is_not_run(tmp_path, monkeypatch):
    (tmp_path / "typer.py").write_text("import pathlib; pathlib.Path('run').touch()")
    monkeypatch.chdir(tmp_path)
    kept = tmp_path / "kept"
    kept.mkdir()
    job = Job(["plan", "--help"], kept)
    job.start()
    assert job.wait(60) != "running"
    assert not (tmp_path / "run").exists()


def test_how_far_a_fit_is_follows_from_its_lines(tmp_path):
    job = Job(["describe"], tmp_path)
    assert job.step() is None
    lines = [("reading", 0, None, 1.0), ("fit", 0, None, 2.0), ("fit", 5, 20, 4.0), ("fit", 10, 20, 6.0)]
    said = [json.dumps(dict(zip(("what", "done", "whole", "at"), line, strict=True))) for line in lines]
    (tmp_path / "progress.jsonl").write_text("\n".join(said) + '\n{"what": "fi')
    step = job.step()
    assert (step.what, step.done, step.whole) == ("fit", 10, 20)
    assert step.seconds_left == pytest.approx(4)


def test_a_fit_tells_a_watcher_how_far_it_is(fitted):
    _, _, ordered = fitted
    lines = [
        json.loads(line) for line in (ordered.job.folder / "progress.jsonl").read_text().splitlines()
    ]
    assert lines[0]["what"] == f"reading {FILE}"
    private = [line for line in lines if line["what"].endswith("private") and line["whole"]]
    assert any(line["done"] == line["whole"] for line in private)
