"""Help, completion, and where errors send their readers."""

import os
import re
import shlex
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
import typer
from command_line import run

from sfumato import cli, errors
from sfumato.cli.command import where

DOCS = Path(__file__).parents[3]
ROOT = typer.main.get_command(cli.app)
STUDY = ROOT.commands["study"]
COMMANDS = {(name,): each for name, each in ROOT.commands.items() if name != "study"} | {
    ("study", name): each for name, each in STUDY.commands.items()
}


def examples(text):
    """Commands after the heading, those that take several lines as one."""
    said = re.split(r"^ *Examples?:\n", text, flags=re.MULTILINE)[1]
    return [shlex.split(line) for line in said.replace("\\\n", " ").splitlines() if line.strip()]


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_help_ends_with_examples_that_are_commands(command):
    result = run(*command, "--help")
    assert result.exit_code == 0
    found = examples(result.stdout)
    assert any(words[1 : 1 + len(command)] == list(command) for words in found)
    for program, *words in found:
        assert program == "sfumato"
        group, name = (STUDY, words[1:]) if words[0] == "study" else (ROOT, words)
        with group.commands[name[0]].make_context(name[0], name[1:], parent=typer.Context(ROOT)):
            pass


def anchors(page):
    headings = re.findall(r"^#+ (.*)$", (DOCS / page).read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", each.lower()).replace(" ", "-") for each in headings}


def every(kind):
    return [kind, *(each for child in kind.__subclasses__() for each in every(child))]


PAGES = {each.page for each in COMMANDS.values()} | {each.page for each in every(errors.SfumatoError)}


@pytest.mark.parametrize("page", sorted(PAGES - {""}))
def test_pages_that_errors_name_are_there(page):
    file, _, anchor = page.partition("#")
    assert (DOCS / file).is_file()
    assert not anchor or anchor in anchors(file)


def test_an_error_names_the_page_that_explains_it_or_that_of_the_command(tmp_path):
    (tmp_path / "ratings.csv").write_text("user,item,rating\na,x,1\nb,y,2\n")
    wrong = run("complete", tmp_path / "ratings.csv", "--out", tmp_path / "m")
    assert wrong.exit_code == 1
    assert wrong.stderr.splitlines()[-1] == "more: docs/cli.md"
    unsigned = run("plan", "--shape", 5, 5, "--entries", 9, "--unit", "user")
    assert unsigned.stderr.splitlines()[-1] == "more: docs/planner.md"
    ledger = tmp_path / "ledger"
    ledger.write_text("no ledger")
    broken = run("ledger", ledger)
    assert broken.stderr.splitlines()[-1] == "more: docs/promise.md#several-fits"
    assert run("--help").exit_code == 0


@pytest.mark.parametrize(
    ("words", "wanted"), [("sfumato comp", "complete"), ("sfumato complete --los", "--loss")]
)
def test_a_shell_completes_commands_and_flags(words, wanted):
    asked = {
        "COMP_WORDS": words,
        "COMP_CWORD": str(words.count(" ")),
        "_SFUMATO_COMPLETE": "complete_bash",
    }
    program = "import sys; sys.argv[0] = 'sfumato'; from sfumato.cli import main; main()"
    said = subprocess.run(
        [sys.executable, "-c", program],
        env=os.environ | asked,
        capture_output=True,
        text=True,
        check=False,
    )
    assert wanted in said.stdout.splitlines(), said.stderr


def test_pages_that_were_installed_are_named_by_where_they_lie(tmp_path, monkeypatch):
    monkeypatch.setattr(sysconfig, "get_path", lambda _: str(tmp_path))
    assert where("docs/cli.md") == "docs/cli.md"  # as in a checkout
    page = tmp_path / "share" / "doc" / "sfumato" / "docs" / "cli.md"
    page.parent.mkdir(parents=True)
    page.write_text("# Commands\n")
    assert where("docs/cli.md#for-somebody-new") == f"{page}#for-somebody-new"
