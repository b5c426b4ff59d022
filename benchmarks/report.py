"""Figures and the one table that they end in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Figure:
    """One measurement. ``bar`` is what it has to reach, if anything; ``text`` is what is printed."""

    what: str
    measured: float
    text: str
    bar: float | None = None
    higher_is_better: bool = False
    bar_text: str | None = None

    @property
    def reached(self) -> bool | None:
        if self.bar is None:
            return None
        better = self.measured >= self.bar if self.higher_is_better else self.measured <= self.bar
        return bool(better)

    def cells(self) -> tuple[str, str, str, str]:
        sign = ">=" if self.higher_is_better else "<="
        bar = "" if self.bar is None else self.bar_text or f"{sign} {self.bar:.4g}"
        reached = {None: "—", True: "yes", False: "no"}[self.reached]
        return self.what, self.text, bar or "—", reached

    def record(self) -> dict[str, Any]:
        names = ("what", "measured", "text", "bar", "higher_is_better", "reached")
        return {name: getattr(self, name) for name in names}


def say(line: str) -> None:
    """Progress, as it happens."""
    print(line, flush=True)


def table(figures: Sequence[Figure]) -> str:
    """All figures, one line each."""
    return aligned([("what", "measured", "bar", "reached"), *(figure.cells() for figure in figures)])


def aligned(rows: Sequence[Sequence[str]]) -> str:
    """Rows of cells under each other, the first one above a line."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)) for row in rows]
    lines.insert(1, "  ".join("-" * width for width in widths))
    return "\n".join(line.rstrip() for line in lines)
