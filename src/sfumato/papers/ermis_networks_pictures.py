"""Paper E's private networks as pictures, from what ``ermis_networks`` found."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from sfumato.papers.ermis_digits import AC, KINDS, MEANT, PRINTED, RUN, ZCDP, claim_of
from sfumato.papers.ermis_networks import (
    ALPHA,
    CONSTANT,
    NETWORK,
    OPEN_CLAIMS,
    OPEN_SCATTERING,
    SCATTERING,
)
from sfumato.papers.picture import (
    COLOURS,
    INK,
    Band,
    Level,
    Line,
    Panel,
    Row,
    Scale,
    Style,
    draw_panels,
)
from sfumato.papers.runner import Cell, Summary

if TYPE_CHECKING:
    from sfumato.papers.ermis_networks import Accuracies, ByPass, Effect
    from sfumato.papers.ermis_networks import Line as TableLine

_STYLES: dict[str, str] = {PRINTED: ":", MEANT: "--", RUN: "-"}
_UP = Scale("accuracy", 0.0, 1.0, linear=True)
_METHODS = (AC, ZCDP)


# As printed both methods are chance: dots of one lie between those of the other, and squares on circles.
_DOTS: tuple[Style, ...] = ((0, (1, 3)), (2, (1, 3)))
_SIZES = (7.0, 4.0)

_LEVELS = {
    CONSTANT: (INK, ":"),
    OPEN_CLAIMS[1]: (INK, "--"),
    OPEN_SCATTERING: (COLOURS[2], "-."),  # as what is proven has
}
_ROWS = (
    *(f"{kind}: {method}" for kind in ("printed", *KINDS) for method in _METHODS),
    NETWORK,
    SCATTERING,
)


def draw_table(path: Path, table: Accuracies, lines: Sequence[TableLine]) -> Path:
    """A panel for each data set, over epsilon, of the most important rows."""
    panels = []
    for each in table.thesis:
        own = {line.name: line.values for line in lines if line.data == each.name}
        levels = tuple(
            Level(name, value, colour, style)
            for name, (colour, style) in _LEVELS.items()
            if (value := own[name][0]) is not None
        )
        curves = tuple(_curve(name, table.epsilons, own[name]) for name in _ROWS if any(own[name]))
        panels.append(Panel(each.name, curves, levels))
    return draw_panels(
        path,
        [Row(tuple(panels), _UP, "claimed epsilon")],
        title=f"Paper E, {table.name}",
        note=f"seeded noise, {table.runs}",
    )


def _curve(name: str, places: Sequence[float], values: Sequence[float | None]) -> Line:
    bands = tuple(
        Band(at, value, 0.0)
        for at, value in sorted(zip(places, values, strict=True))
        if value is not None
    )
    kind, _, method = name.partition(": ")
    if not method:
        return Line(name, bands, COLOURS[4 if name == NETWORK else 2])
    number = _METHODS.index(method)
    colour = COLOURS[number]
    if kind == "printed":
        return Line(name, bands, colour, " ", "x")
    if kind == PRINTED:
        return Line(name, bands, colour, _DOTS[number], size=_SIZES[number])
    return Line(name, bands, colour, _STYLES[kind])


def draw_passes(path: Path, figure: ByPass, found: Mapping[Cell, Summary]) -> Path:
    """A row for each data set, a panel for each composition, over passes."""
    rows = []
    for each in figure.thesis:
        panels = tuple(
            Panel(f"{each.name}, {method}", tuple(_of_passes(figure, found, each.name, method)))
            for method in _METHODS
        )
        rows.append(Row(panels, _UP, "passes"))
    return draw_panels(
        path, rows, title=f"Paper E, {figure.name}", note=f"claimed epsilons, {figure.runs}"
    )


def _of_passes(figure: ByPass, found: Mapping[Cell, Summary], data: str, method: str) -> list[Line]:
    cells = [cell for cell in found if cell.model == data]
    curves: dict[tuple[str, float | None], list[Band]] = {}
    for cell in cells:
        claim = claim_of(cell.series)
        if claim.method in (method, "no privacy") and cell.at is not None:
            key = (cell.series, dict(cell.data).get("epsilon"))
            curves.setdefault(key, []).append(Band(cell.at, found[cell].mean, found[cell].deviation))
    lines = []
    for (series, epsilon), bands in curves.items():
        kind = claim_of(series).kind
        colour = INK if epsilon is None else COLOURS[figure.epsilons.index(epsilon)]
        about = "no privacy" if epsilon is None else f"epsilon {epsilon:g}"
        lines.append(Line(f"{kind}, {about}", tuple(sorted(bands)), colour, _STYLES[kind], ""))
    return lines


def draw_effect(path: Path, figure: Effect, found: Mapping[Cell, Summary]) -> Path:
    """A row for each data set, a panel for each setting that was changed."""
    (first, _), *others = figure.axes
    rows = []
    for each in figure.thesis:
        panels = tuple(
            Panel(f"{each.name}, by {axis}", tuple(_of_axis(figure, found, each.name, axis, places)))
            for axis, places in figure.axes
        )
        across = "setting" if others else first
        rows.append(Row(panels, _scale(figure, panels), across, even=first == "hidden layers"))
    return draw_panels(path, rows, title=f"Paper E, {figure.name}", note=f"seeded noise, {figure.runs}")


def _of_axis(
    figure: Effect,
    found: Mapping[Cell, Summary],
    data: str,
    axis: str,
    places: Sequence[float],
) -> list[Line]:
    lines = []
    for number, series in enumerate(figure.rows):
        cells = [(at, found.get(Cell(series, data, (("axis", axis),), at))) for at in places]
        bands = tuple(Band(at, each.mean, each.deviation) for at, each in cells if each is not None)
        if bands:
            lines.append(Line(series, bands, COLOURS[number]))
    return lines


def _scale(figure: Effect, panels: Sequence[Panel]) -> Scale:
    if figure.measure != ALPHA:
        return _UP
    heights = [band.mean for panel in panels for line in panel.lines for band in line.bands]
    return Scale("alpha", min(heights) / 2, max(heights) * 2)
