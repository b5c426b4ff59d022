"""The code in the documentation runs as it stands."""

import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import sfumato as sf
from sfumato.cli import main

ROOT = Path(__file__).parents[2]
PAGES = [
    *ROOT.glob("*.md"),
    *(page for page in ROOT.glob("docs/**/*.md") if "generated" not in page.parts),
    *ROOT.glob("proofs/*.md"),
    ROOT / "benchmarks/README.md",
]


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
        "docs/counts-and-lists.md",
        "docs/coupled.md",
        "docs/decisions.md",
        "docs/engines.md",
        "docs/local.md",
        "docs/networks.md",
        "docs/owners.md",
        "docs/planner.md",
        "docs/power.md",
        "docs/promise.md",
        "docs/records.md",
        "docs/report.md",
        "docs/updates.md",
        "docs/without-privacy.md",
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


@pytest.mark.parametrize(
    "page",
    [
        "docs/choosing.md",
        "docs/coupled.md",
        "docs/engines.md",
        "docs/networks.md",
        "docs/power.md",
        "docs/report.md",
        "docs/start.md",
    ],
)
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
                assert said.out.strip() or "--out" in words  # a file and not a word
            case _:
                pytest.fail(f"{page} has a command that is not run here: {shlex.join(words)}")
    if page == "docs/start.md":  # where Python goes on with the files of the commands
        for block in blocks_of(page, "python"):
            exec(compile(block, page, "exec"), {"__name__": "example"})
        assert capsys.readouterr().out.strip()


def anchors_of(page: Path) -> set[str]:
    """What a link may end with after ``#``: headings, as code hosts and the site name them."""
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    headings = re.findall(r"^#+ +(.+?) *$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_links_lead_somewhere():
    broken = []
    for page in PAGES:
        text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
        for name, anchor in re.findall(r"\]\((?!https?:)([^)#]*)(?:#([^)]+))?\)", text):
            target = (page.parent / name).resolve() if name else page
            if not target.exists() or (anchor and anchor not in anchors_of(target)):
                broken.append(f"{page.relative_to(ROOT)}: {name}#{anchor}")
    assert not broken


def listed_in(page: Path) -> list[str]:
    """The entries of a page's lists of contents."""
    fences = re.findall(r"```\{toctree\}\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    lines = [line.strip() for fence in fences for line in fence.splitlines()]
    return [line for line in lines if line and not line.startswith(":")]


def test_contents_list_every_page_once():
    """Of ``docs/`` itself and the top folder the index lists the rest by itself (``docs/conf.py``)."""
    entries = []
    for index in [ROOT / "docs/index.md", *ROOT.glob("docs/*/index.md")]:
        entries += [index.parent / f"{entry}.md" for entry in listed_in(index)]
    rest = {ROOT / "docs/OTHER-PAGES.md", ROOT / "docs/OTHER-FILES.md"}
    pages = [entry.resolve() for entry in entries if entry not in rest]
    assert rest < set(entries)
    assert len(set(pages)) == len(pages)
    assert not [page for page in pages if not page.is_file()]
    below = {page for page in ROOT.glob("docs/*/*.md") if "generated" not in page.parts}
    assert not below - set(pages)


def test_reference_has_every_public_name():
    listed = re.findall(r"^   (\w[\w.]*)$", (ROOT / "docs/reference/index.md").read_text(), re.MULTILINE)
    assert sorted(name.split(".")[-1] for name in listed) == sorted(
        [*sf.__all__, "diagnostics", "metrics"]
    )
