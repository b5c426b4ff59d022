"""Paper E's tables and figures as pictures, from the results of ``ermis``."""

from __future__ import annotations

from collections.abc import Mapping
from math import floor
from pathlib import Path
from typing import TYPE_CHECKING

from sfumato.papers.picture import COLOURS, FAINT, Band, Line, Panel, Scale, draw_panels
from sfumato.papers.picture import Row as PanelRow
from sfumato.papers.runner import Cell, Summary

if TYPE_CHECKING:
    from sfumato.papers.ermis import Study

Row = tuple[str, str]
Summaries = Mapping[Cell, Summary]
_SIMPLE = {"means": "--", "visited, then means": ":"}  # how they are drawn
_MODELS = {"cp": "CP", "tucker": "Tucker"}
_AXES = {
    "missing": "part of the cells that is missing",
    "training": "part of the entries for training",
    "users": "users without any cell",
    "p": "p",
}


def draw(path: Path, study: Study, summaries: Summaries) -> Path:
    """A panel for each model, or for single and coupled ones; crosses are the printed values."""
    measure = study.shown[0]
    rows = [row for row in study.rows if row[0] not in _SIMPLE]
    names = list(dict.fromkeys(_name(row) for row in rows))
    titles = list(dict.fromkeys(_title(row) for row in rows))
    panels = list[Panel]()
    for title in titles:
        lines = list[Line]()
        for row in rows:
            if _title(row) == title:
                lines += _lines(study, summaries, row, names.index(_name(row)))
        panels.append(Panel(title, (*lines, *_simple(study, summaries)), ()))
    heights = [band.mean for panel in panels for line in panel.lines for band in line.bands]
    repetitions = max(found.repetitions for found in summaries.values())
    top = 1.0 if measure == "auc" else min(1.0, 1.05 * max(heights))
    bottom = max(0.0, floor(20 * min(heights) - 0.2) / 20)
    scale = Scale(measure.upper(), bottom, top, linear=True)
    return draw_panels(
        path,
        [PanelRow(tuple(panels), scale, _AXES[study.axis], even=True)],
        title=f"Paper E, {study.name}, UCLAF",
        note=f"mean and standard deviation of {repetitions} repetitions; crosses: printed",
    )


def _title(row: Row) -> str:
    series, model = row
    single, _, _ = series.partition("-")
    return {"TF": "CP, one tensor", "CTF": "CP, coupled"}.get(single, _MODELS[model])


def _name(row: Row) -> str:
    return row[0].removeprefix("CTF-").removeprefix("TF-")


def _lines(study: Study, summaries: Summaries, row: Row, number: int) -> list[Line]:
    measure = study.shown[0]
    colour, style = COLOURS[number % len(COLOURS)], "-" if number < len(COLOURS) else "--"
    printed = [(at, study.printed(row, at, measure)) for at in study.places]
    crosses = tuple(Band(at, value, 0.0) for at, value in printed if value is not None)
    lines = [Line(_name(row), _bands(study, summaries, row), colour, style)]
    if crosses:
        lines.append(Line("_printed", crosses, colour, " ", "x"))  # names with _ are not in the key
    return lines


def _simple(study: Study, summaries: Summaries) -> list[Line]:
    return [
        Line(row[0], _bands(study, summaries, row), FAINT, _SIMPLE[row[0]], "")
        for row in study.rows
        if row[0] in _SIMPLE
    ]


def _bands(study: Study, summaries: Summaries, row: Row) -> tuple[Band, ...]:
    found = [(at, study.found(summaries, row, at, study.shown[0])) for at in study.places]
    return tuple(Band(at, each.mean, each.deviation) for at, each in found if each is not None)
