"""The code in the documentation runs as it stands."""

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

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


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
@pytest.mark.parametrize("page", ["docs/coupled.md"])
def test_commands_run(page, tmp_path):
    """In an empty folder, with the Python and the package that run the tests."""
    blocks = blocks_of(page, "bash")
    assert blocks
    ours = (
        f'python() {{ {shlex.quote(sys.executable)} "$@"; }}\n'
        "sfumato() { python -c 'from sfumato.cli import main; main()' \"$@\"; }\n"
    )
    script = ours + "\n".join(blocks)
    done = subprocess.run(
        ["bash", "-e", "-c", script], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


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
