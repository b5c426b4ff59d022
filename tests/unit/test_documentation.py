"""The code in the documentation runs as it stands."""

import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from sfumato.cli import main

ROOT = Path(__file__).parents[2]


def blocks_of(page: str, language: str) -> list[str]:
    text = (ROOT / page).read_text(encoding="utf-8")
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


@pytest.fixture
def ratings_csv(tmp_path, monkeypatch):
    """The file that the examples read: labels and days as they use them."""
    rng = np.random.default_rng(0)
    users, items, days = (rng.integers(0, n, 800) for n in (40, 20, 10))
    cells = dict.fromkeys(zip(users.tolist(), items.tolist(), days.tolist(), strict=True))
    seconds = 891_302_400  # 1998-03-31
    lines = [f"u{u},m{i},{seconds + 86_400 * d},{rng.integers(1, 6)}" for u, i, d in cells]
    (tmp_path / "ratings.csv").write_text("\n".join(["user,item,timestamp,rating", *lines]))
    monkeypatch.chdir(tmp_path)


@pytest.mark.usefixtures("ratings_csv")
@pytest.mark.parametrize(
    "page",
    [
        "README.md",
        "docs/add-a-mechanism.md",
        "docs/add-a-solver.md",
        "docs/audit.md",
        "docs/coupled.md",
        "docs/engines.md",
        "docs/local.md",
        "docs/networks.md",
        "docs/owners.md",
        "docs/planner.md",
        "docs/power.md",
        "docs/promise.md",
    ],
)
def test_examples_run(page, capsys):
    blocks = blocks_of(page, "python")
    assert blocks
    for block in blocks:
        exec(compile(block, page, "exec"), {"__name__": "example"})
    assert capsys.readouterr().out.strip()


def commands_of(block: str) -> Iterator[tuple[list[str], str]]:
    """The commands of a block: words, and what a here-document feeds them."""
    lines = iter(block.replace("\\\n", " ").splitlines())
    for line in lines:
        words, fed = shlex.split(line, comments=True), ""
        if words and words[-1].startswith("<<"):
            end = words.pop().removeprefix("<<")
            fed = "\n".join(iter(lines.__next__, end))
            assert not re.search(r"[$`\\]", fed)  # a shell would put something else there
        if words:
            yield words, fed


@pytest.mark.parametrize("page", ["docs/coupled.md", "docs/engines.md", "docs/networks.md"])
def test_commands_run(page, tmp_path, monkeypatch, capsys):
    """In an empty folder and in this process, which has loaded what they need."""
    monkeypatch.chdir(tmp_path)
    commands = [each for block in blocks_of(page, "bash") for each in commands_of(block)]
    assert any(words[0] == "sfumato" for words, _ in commands)
    for words, fed in commands:
        match words:
            case ["python", "-"]:
                exec(compile(fed, page, "exec"), {"__name__": "__main__"})
            case ["cat", ">", name]:
                Path(name).write_text(f"{fed}\n", encoding="utf-8")
            case ["sfumato", *_]:
                monkeypatch.setattr(sys, "argv", words)
                with pytest.raises(SystemExit) as ended:
                    main()
                said = capsys.readouterr()
                assert ended.value.code == 0, said.err
                assert said.out.strip()
            case _:
                pytest.fail(f"{page} has a command that is not run here: {shlex.join(words)}")


def test_links_lead_somewhere():
    pages = [
        ROOT / "README.md",
        ROOT / "CONTRIBUTING.md",
        *ROOT.glob("docs/**/*.md"),
        *ROOT.glob("proofs/*.md"),
    ]
    broken = [
        f"{page.name}: {target}"
        for page in pages
        for target in re.findall(r"\]\((?!http)([^)#]+)\)", page.read_text(encoding="utf-8"))
        if not (page.parent / target).exists()
    ]
    assert not broken
