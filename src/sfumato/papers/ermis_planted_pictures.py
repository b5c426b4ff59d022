"""Paper E's log-likelihoods of planted data as pictures, from the results of ``ermis_planted``."""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING

from sfumato.papers.picture import (
    COLOURS,
    FAINT,
    INK,
    Band,
    Level,
    Line,
    Panel,
    Row,
    Scale,
    draw_panels,
)
from sfumato.papers.runner import Cell, Summary

if TYPE_CHECKING:
    from sfumato.papers.ermis_planted import LogLikelihoods, Look

_LEVELS = {
    "truth": (INK, ":"),
    "constant": (FAINT, "--"),
    "as run: no privacy": (INK, "-"),
    "alone, not private": (FAINT, "-."),
    "all sites, not private": (INK, "-."),
}
_EVEN = ("sites", "pass", "passes", "rank", "clip")


def draw(path: Path, study: LogLikelihoods, summaries: Mapping[Cell, Summary]) -> Path:
    """A panel for each look; upwards what is lost against the truth, on a scale of logarithms."""
    rows = [
        Row((_panel(study, look, summaries),), _scale(), look.axis, look.axis in _EVEN)
        for look in study.looks
    ]
    if len({look.axis for look in study.looks}) == 1:
        panels = tuple(row.panels[0] for row in rows)
        rows = [Row(panels, _scale(), study.looks[0].axis, study.looks[0].axis in _EVEN)]
    return draw_panels(
        path,
        rows,
        title=f"Paper E, {study.name}",
        note=f"planted data, site 1, epsilons claimed, runs: {study.repetitions}",
    )


def _scale() -> Scale:
    return Scale("log-likelihood lost", 50.0, 1e6)


def _panel(study: LogLikelihoods, look: Look, summaries: Mapping[Cell, Summary]) -> Panel:
    best = study.value(summaries, look, "truth", None) or 0.0

    def lost(row: str, at: float | None) -> float | None:
        value = study.value(summaries, look, row, at)
        return None if value is None else best - value if isfinite(value) else 1e9

    lines = []
    for number, row in enumerate(look.rows):
        bands = [(at, lost(row, at)) for at in look.places]
        known = tuple(Band(at, value, 0.0) for at, value in bands if value is not None)
        style = "-" if row.startswith("as run") or row.endswith("geometric") else "--"
        if known:
            lines.append(Line(row, known, COLOURS[number // 2 % len(COLOURS)], style))
    levels = [(row, lost(row, None)) for row in _LEVELS if row != "truth"]
    drawn = tuple(Level(row, value, *_LEVELS[row]) for row, value in levels if value is not None)
    return Panel(look.name, tuple(lines), drawn)
