"""Runs the tutorials and puts what they print, and the pictures they draw, where they show it.

``python docs/tutorials/run.py [PAGE ...]``. The tests run the same blocks and compare all but numbers.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shutil
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
BLOCK = re.compile(r"```python\n(?P<code>.*?)```\n(\n```text\n(?P<printed>.*?)```\n)?", re.DOTALL)


def printed_by(page: Path) -> list[str]:
    """What each block of a page prints; blocks go on where the one before has ended."""
    names: dict[str, object] = {"__name__": "tutorial"}
    printed = []
    for block in BLOCK.finditer(page.read_text(encoding="utf-8")):
        with contextlib.redirect_stdout(io.StringIO()) as out:
            exec(compile(block["code"], str(page), "exec"), names)
        printed.append(out.getvalue())
    return printed


def shown_in(page: Path) -> list[str]:
    """What the page says that each block prints."""
    return [block["printed"] or "" for block in BLOCK.finditer(page.read_text(encoding="utf-8"))]


def renew(page: Path) -> None:
    """Write into a page what its blocks print now; pictures go to the folder of images."""
    back = Path.cwd()
    with tempfile.TemporaryDirectory() as empty:
        os.chdir(empty)
        try:
            printed = iter(printed_by(page))
            for picture in Path().glob("*.png"):
                shutil.copy(picture, HERE.parent / "images" / f"tutorial-{picture.name}")
        finally:
            os.chdir(back)

    def with_output(block: re.Match[str]) -> str:
        said = next(printed)
        return f"```python\n{block['code']}```\n" + (f"\n```text\n{said}```\n" if said else "")

    page.write_text(BLOCK.sub(with_output, page.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    import matplotlib

    matplotlib.use("Agg")
    for each in sys.argv[1:] or sorted(map(str, HERE.glob("*.md"))):
        renew(Path(each).resolve())
