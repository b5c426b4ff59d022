"""``python -m benchmarks.compare BEFORE.json AFTER.json``: two runs side by side.

Both files were written by ``python -m benchmarks PART --json FILE``.
"""

from __future__ import annotations

import argparse
import json
import re
from decimal import Decimal
from pathlib import Path
from typing import Any

from benchmarks.report import aligned, say

_NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?(?:e[+-]?\d+)?")
_NONE = "—"


def compared(before: dict[str, Any], after: dict[str, Any]) -> list[tuple[str, ...]]:
    """A line for each figure of either file, in the order of the first; the last cell marks a change."""
    first, second = ({figure["what"]: figure for figure in part["figures"]} for part in (before, after))
    return [_line(what, first.get(what), second.get(what)) for what in {**first, **second}]


def _line(what: str, before: dict[str, Any] | None, after: dict[str, Any] | None) -> tuple[str, ...]:
    if before is None or after is None:
        only = "only after" if before is None else "only before"
        return what, *(figure["text"] if figure else _NONE for figure in (before, after)), _NONE, only
    ratio = f"{after['measured'] / before['measured']:.3f}" if before["measured"] else _NONE
    mark = "differs" if differ(before["text"], after["text"]) else ""
    return what, before["text"], after["text"], ratio, mark


def differ(before: str, after: str) -> bool:
    """Whether the first numbers of two texts differ in more than their last digit; else the texts."""
    found = [_NUMBER.search(text) for text in (before, after)]
    if found[0] is None or found[1] is None:
        return before != after
    numbers = [Decimal(match.group().replace(",", "")) for match in found if match is not None]
    last_digit = min(Decimal((0, (1,), number.as_tuple().exponent)) for number in numbers)
    return abs(numbers[0] - numbers[1]) > last_digit


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.compare", description=__doc__)
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    chosen = parser.parse_args()
    before, after = (json.loads(path.read_text("utf-8")) for path in (chosen.before, chosen.after))
    if before["quick"] != after["quick"]:
        say("One of the runs was quick, the other full: their sizes differ.")
    lines = compared(before, after)
    say(aligned([("what", "before", "after", "after / before", ""), *lines]))
    say(f"\n{sum(bool(line[-1]) for line in lines)} of {len(lines)} differ in more than the last digit.")


if __name__ == "__main__":
    main()
