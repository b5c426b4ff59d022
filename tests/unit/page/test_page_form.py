"""The form: errors beside fields, nothing read off the file, labels as text and never as markup."""

import html
import json
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from paging import FILE, Visitor, fields, write_table, wrong_in

from sfumato.page.choices import STEPS, Form
from sfumato.page.wording import Places, Settings, command_line, plan_order, words

COLUMNS = ("patient", "drug", "day", "score", "note")


@pytest.fixture(scope="module")
def visitor(tmp_path_factory):
    folder = tmp_path_factory.mktemp("page")
    write_table(folder / FILE)
    return Visitor(folder).enter()


def choices(**changed):
    form = Form(FILE, COLUMNS, fields(**changed))
    assert form.checked("budget") is None, form.errors
    return form.choices()


def said(tmp_path, **changed):
    return words(choices(**changed), 1.5, Places(tmp_path / FILE, tmp_path / "model"))


def test_steps_open_one_after_another(visitor):
    shown = [visitor.get("/fit", params={"file": FILE}), *(visitor.step(step) for step in STEPS)]
    titles = ["What the columns are", "What nobody may find out", "What everyone may know"]
    titles += ["How private, and how accurate", "Try it, and confirm"]
    for number, answer in enumerate(shown):
        assert answer.status_code == 200
        assert [title in answer.text for title in titles] == [m <= number for m in range(len(titles))]


def test_rows_are_shown_only_when_asked_for(visitor):
    for answer in (visitor.get("/fit", params={"file": FILE}), *(visitor.step(step) for step in STEPS)):
        assert "2024-01-" not in answer.text
    rows = visitor.shown("/fit", {"file": FILE, "rows": "1"})
    assert "2024-01-" in rows.text
    assert "Do not choose public numbers by them" in rows.text


def test_columns_are_told_with_what_they_hold(visitor):
    page = visitor.get("/fit", params={"file": FILE}).text
    table = re.sub(r"\s+", " ", re.sub("<select.*?</select>", "", page, flags=re.DOTALL))
    cells = re.findall(r'<th scope="row">(\w+)</th> <td>([\w ]+)</td>', table)
    kinds = ["text", "whole numbers", "dates or times", "whole numbers", "text"]
    assert cells == list(zip(COLUMNS, kinds, strict=True))


def test_public_numbers_are_never_filled_in_from_the_file(visitor):
    answer = visitor.shown("/fit", {**_first_steps(), "step": "protect"})
    values = dict(re.findall(r'<input id="([\w-]+)" name="[\w-]+" value="([^"]*)"', answer.text))
    assert set(values) >= {"low", "high", "size-0", "size-1", "entries", "spread"}
    assert not any(values.values()), values


def _first_steps():
    return {name: fields()[name] for name in ("file", "role-0", "role-1", "role-3", "unit")}


@pytest.mark.parametrize(
    ("step", "changed", "field"),
    [
        ("columns", {"role_1": ""}, "columns"),
        ("columns", {"role_3": ""}, "columns"),
        ("columns", {"role_4": "value"}, "columns"),
        ("columns", {"role_0": "<x>"}, "role-0"),
        ("columns", {"bin_0": "second"}, "bin-0"),
        ("protect", {"unit": ""}, "unit"),
        ("protect", {"unit": "mode:2"}, "unit"),
        ("protect", {"unit": "mode:x"}, "unit"),
        ("protect", {"unit": "values:0"}, "most"),
        ("protect", {"unit": "entry", "local": "score"}, "local"),
        ("public", {"low": ""}, "low"),
        ("public", {"low": "nan"}, "low"),
        ("public", {"high": "1"}, "high"),
        ("public", {"high": "inf"}, "high"),
        ("public", {"loss": "x"}, "loss"),
        ("public", {"size_0": ""}, "size-0"),
        ("public", {"size_0": "1"}, "size-0"),
        ("public", {"size_0": "4.5"}, "size-0"),
        ("public", {"size_0": "٣٣"}, "size-0"),
        ("public", {"size_1": "-3"}, "size-1"),
        ("public", {"known_1": ""}, "known-1"),
        ("public", {"known_1": "list", "labels_1": "a"}, "labels-1"),
        ("public", {"known_1": "list", "labels_1": "a\na\nb"}, "labels-1"),
        ("public", {"entries": "1601"}, "entries"),
        ("public", {"entries": "9" * 400}, "entries"),
        ("public", {"spread": "0"}, "spread"),
        ("public", {"duplicates": "first"}, "duplicates"),
        ("budget", {"goal": "x"}, "goal"),
        ("budget", {"epsilon": "0"}, "epsilon"),
        ("budget", {"epsilon": "much"}, "epsilon"),
        ("budget", {"goal": "odds", "odds": "1"}, "odds"),
        ("budget", {"goal": "error", "error": "-1"}, "error"),
        ("budget", {"delta": "0.5"}, "delta"),
        ("budget", {"limit": "0"}, "limit"),
        ("budget", {"test": "2"}, "test"),
    ],
)
def test_what_is_wrong_stands_beside_its_field(visitor, step, changed, field):
    answer = visitor.step("budget", **changed)
    assert answer.status_code == 400
    assert f'id="wrong-{field}"' in answer.text
    assert 'name="nonce"' not in answer.text
    place = [
        f'value="{each}" formaction="{visitor.shop.known.base}/fit#now"' in answer.text for each in STEPS
    ]
    assert place.count(True) == STEPS.index(step) + 1  # later steps wait until this is right


def test_fields_of_later_steps_are_kept_while_an_earlier_one_is_wrong(visitor):
    answer = visitor.step("columns", at="confirm", role_1="")
    hidden = dict(re.findall(r'<input type="hidden" name="([\w-]+)" value="([^"]*)">', answer.text))
    assert hidden["epsilon"] == "2"
    assert hidden["size-0"] == "80"


def test_a_target_that_nothing_reaches_is_said_beside_the_targets(visitor):
    answer = visitor.step("budget", goal="error", error="0.0001")
    assert answer.status_code == 400
    assert "not expected to be reached" in wrong_in(answer)[0]


def test_the_page_of_a_file_with_markup_in_it_has_none_of_it(tmp_path):
    bad = "<script>alert(1)</script>"
    lines = [f'"{bad}","""q"" & \'x\'",score', *(f'"{bad}{n}",{n % 7},{n % 5}' for n in range(60))]
    (tmp_path / "<i>.csv").write_text("\n".join(lines) + "\n")
    visitor = Visitor(tmp_path).enter()
    form = {"file": "<i>.csv", "role-0": "mode", "role-1": "mode", "role-2": "value", "unit": "mode:1"}
    pages = [visitor.get("/"), visitor.shown("/fit", {**form, "rows": "1"})]
    pages += [visitor.shown("/fit", {**form, "step": step}) for step in ("columns", "protect")]
    pages += [visitor.shown("/fit", {**form, "low": bad, "size-0": bad, "step": "public"})]
    pages += [visitor.shown("/open", {"path": bad}), visitor.post("/expect", {**form, "low": bad})]
    for page in pages:
        assert "<script>alert" not in page.text
        assert "<i>" not in page.text
    assert html.escape(bad) in pages[1].text


NAMES = [*fields(), "labels-1", "local", "most", "spread", "error", "odds", "limit", "test"]
NAMES += ["step", "at", "rows", "nonce", "bin-0", "role-9"]
ODD = [
    "-1",
    "0",
    "1e308",
    "nan",
    "1" * 30,
    "\0",
    "list",
    "file",
    "mode:0",
    "mode:-1",
    "values:1",
    "entry",
]
ODD += ["logistic", "poisson", "confirm", "budget", "columns", "odds", "<b>"]


@given(
    st.dictionaries(st.sampled_from(NAMES), st.text(max_size=30) | st.sampled_from(ODD), max_size=6),
    st.sampled_from(["/fit", "/expect", "/start", "/preview"]),
)
@settings(max_examples=120, deadline=None)
def test_no_field_makes_the_page_fail_or_spend(visitor, changed, address):
    sent = {**fields(), "step": "budget", **changed}
    if address == "/preview":
        sent["entries"] = "no"  # or one may begin
    answer = visitor.shown(address, sent)
    assert answer.status_code in (200, 400)
    assert not visitor.shop.ordered


# -- as a command, and as settings ----------------------------------------------------------------


def test_choices_become_the_words_of_the_command_line(tmp_path):
    text = " ".join(said(tmp_path, local=""))
    assert "--modes patient drug --value score --bounds 1.0 5.0 --duplicates mean" in text
    assert (
        "--epsilon 1.5 --delta 1e-06 --unit patient --public-labels drug=1..20 --public-units 80" in text
    )
    assert "--labels-are-public" not in text
    assert "--test" not in text


def test_who_is_known_depends_on_what_is_protected(tmp_path):
    declared = said(tmp_path, known_1="file")
    assert "--labels-are-public" in declared
    assert "--public-labels" not in declared
    value = said(tmp_path, unit="value")
    assert not {"--labels-are-public", "--public-labels", "--public-units"} & set(value)
    entry = said(tmp_path, unit="entry", local="patient")
    assert entry[entry.index("--local") + 1] == "patient"
    assert entry[entry.index("--public-units") + 1] == "80"
    some = said(tmp_path, unit="values:0", most="3")
    assert some[some.index("--unit") + 1] == "values:patient"
    times = said(tmp_path, role_2="mode", bin_2="week", size_2="5")
    assert times[times.index("--bin") + 1] == "day=week"
    assert "--labels-are-public" in times
    listed = said(tmp_path, known_1="list", labels_1="1\n2\n17", entries="200")
    assert listed[listed.index("--public-labels") + 1] == f"drug={tmp_path / 'labels-2.txt'}"


def test_the_command_line_can_be_pasted(tmp_path):
    form = Form("x", ("-p q", "d'r", "s"), fields(role_3="", role_2="value"))
    assert form.checked("budget") is None, form.errors
    text = command_line(words(form.choices(), 1.0, Places(tmp_path / "a b.csv", tmp_path / "m")))
    assert "'--modes=-p q'" in text
    assert "a b.csv'" in text
    assert text.endswith("\n")


@pytest.mark.parametrize("loss", ["squared", "poisson", "logistic"])
def test_the_plan_is_of_the_same_public_numbers(loss):
    order = plan_order(choices(loss=loss, high="9"))
    assert [mode.size for mode in order.modes] == [80, 20]
    assert order.entries == 900
    assert order.epsilon == 2


def test_targets_become_an_epsilon():
    assert (
        plan_order(choices(goal="odds", odds="3")).epsilon
        < plan_order(choices(goal="odds", odds="30")).epsilon
    )


def test_settings_are_opened_as_they_were_written(visitor):
    settings = Settings(FILE, COLUMNS, {**fields(epsilon="1.25"), "low": "-7"})
    again = Settings.of(settings.text().encode())
    assert again == settings
    answer = visitor.shown("/open", {}, files={"settings": ("settings.json", settings.text())})
    assert answer.status_code == 200
    assert 'value="1.25"' in answer.text
    assert 'value="-7"' in answer.text
    other = json.loads(settings.text()) | {"columns": ["a", "b", "c"]}
    answer = visitor.shown("/open", {}, files={"settings": ("settings.json", json.dumps(other))})
    assert "other columns" in wrong_in(answer)[0]


def test_what_a_promise_is_worth_is_said_before_it_is_paid_for(visitor):
    few = visitor.step("budget", size_0="40", entries="500")
    assert "patient has at most 40 levels, which are few" in few.text
    large = visitor.step("budget", epsilon="50")
    assert "promises next to nothing" in large.text
    assert "promises next to nothing" not in visitor.step("budget").text
