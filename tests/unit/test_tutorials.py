"""Every tutorial runs, and shows what it prints, but for numbers: noise and processors change them."""

import re
import sys
from pathlib import Path

import pytest

TUTORIALS = Path(__file__).parents[2] / "docs/tutorials"


@pytest.fixture
def run(monkeypatch):
    monkeypatch.syspath_prepend(TUTORIALS)
    monkeypatch.setenv("MPLBACKEND", "Agg")
    import run

    yield run
    del sys.modules["run"]


def without_numbers(text: str) -> str:
    return " ".join(re.sub(r"[-+]?\d[\d.,e+-]*", "#", text).split())


@pytest.mark.parametrize("name", ["local", "network", "owners", "ratings", "survey", "traffic"])
def test_tutorial_prints_what_it_shows(name, run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    page = TUTORIALS / f"{name}.md"
    shown = run.shown_in(page)
    assert any(shown)
    assert [*map(without_numbers, run.printed_by(page))] == [*map(without_numbers, shown)]


def test_no_tutorial_is_left_out(run):
    pages = {page.stem for page in TUTORIALS.glob("*.md")} - {"index"}
    assert pages == {"local", "network", "owners", "ratings", "survey", "traffic"}
