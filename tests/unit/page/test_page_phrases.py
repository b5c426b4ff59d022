"""Messages in the page's words: names stay as they are written, flags become names of fields."""

import re

import pytest
from paging import FILE, Visitor, fields, write_table, wrong_in

from sfumato.page.phrases import in_page_words, sentence


@pytest.mark.parametrize(
    ("said", "names", "shown"),
    [
        ("there is no file", [], "There is no file"),
        ("mark two columns or more", [], "Mark two columns or more"),
        ("no", [], "No"),
        ("link.csv has 2 columns", [], "link.csv has 2 columns"),
        ("my data.csv has 2 columns", ["my data.csv"], "my data.csv has 2 columns"),
        ("/tmp/x: permission denied", [], "/tmp/x: permission denied"),
        ("'a' is listed twice", [], "'a' is listed twice"),
        ("é is no label", [], "é is no label"),
        ("score is not numeric", ["score"], "score is not numeric"),
        ("", [""], ""),
    ],
)
def test_a_sentence_begins_with_a_capital_and_a_name_as_it_is(said, names, shown):
    assert sentence(said, names) == shown


def test_no_style_changes_letters(tmp_path):
    page = Visitor(tmp_path).enter()
    assert "text-transform" not in page.get("/static/page.css").text


@pytest.mark.parametrize("name", ["link.csv", "my data.csv"])
def test_names_of_files_stay_as_they_are_on_the_page(tmp_path, name):
    (tmp_path / name).write_text("a,b\n1,2\n")
    said = wrong_in(Visitor(tmp_path).enter().shown("/open", {"path": name}))
    assert said[0].startswith(f"{name} has 2 columns")


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("50: give a larger --public-units", "50: give a larger “How many there are at most” in step 4"),
        (
            "Merge them: --duplicates mean, last or sum",
            "Merge them: “If a cell is given more than once” ",
        ),
        ("say --public-units N, with N rounded", "say “How many there are at most” in step 4, with N"),
        (
            "say how, --bounds 1 5",
            "say how, “Lowest value possible” and “Highest value possible” in step 4",
        ),
        ("give --public-labels item=FILE; or", "give “List them” in step 4; or"),
        ("written with --date-format: %d", "written with --date-format on the command line: %d"),
        ("a -- b --- c", "a -- b --- c"),
        ("an epsilon of 2", "an epsilon of 2"),
    ],
)
def test_flags_become_names_of_fields(said, shown):
    assert in_page_words(said).startswith(shown)


def test_errors_of_the_page_have_no_flags(tmp_path):
    write_table(tmp_path / FILE)
    visitor = Visitor(tmp_path).enter()
    for changed in (
        {"size_0": "2", "size_1": "2", "entries": "4"},
        {"goal": "error", "error": "0.0001"},
    ):
        said = " ".join(wrong_in(visitor.step("budget", **changed)))
        assert not re.search(r"--[a-z]", said), said


def test_a_fit_that_ends_with_an_error_says_so_in_the_words_of_the_page(tmp_path):
    write_table(tmp_path / FILE)
    visitor = Visitor(tmp_path).enter()
    page, ordered = visitor.ended(visitor.start(size_0="50"))  # there are 60
    assert "--public-units" in ordered.job.notes("error")[0]
    assert "give a larger “How many there are at most” in step 4" in wrong_in(page)[0]
    assert fields()["unit"] == "mode:0"
