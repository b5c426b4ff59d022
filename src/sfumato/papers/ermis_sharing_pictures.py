"""Paper E's tables over sites as pictures, from the lines of ``ermis_sharing``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from sfumato.papers import ermis_local
from sfumato.papers.ermis_claimed import is_claim
from sfumato.papers.ermis_sharing_printed import OTHER_DATA
from sfumato.papers.picture import COLOURS, FAINT, INK, Band, Line, Panel, Row, Scale, draw_panels

if TYPE_CHECKING:
    from sfumato.papers.ermis_sharing import Line as TableLine
    from sfumato.papers.ermis_sharing import Sharing

_TOP, _BOTTOM = 1.3, 0.8  # what is printed above is of no use: a constant has 1.12
_OPEN = {"alone, not private": "-", "alone, biases": "--", "alone, constant": ":"}
_UNITS = {"entry": "-", "user": "--", "value": "-."}  # how their lines are drawn


def draw(path: Path, table: Sharing, lines: Sequence[TableLine]) -> Path:
    """Panels by epsilon over sites; where there is one number of sites, one panel over epsilon."""
    lines = [line for line in lines if not any(other in line.name for other in OTHER_DATA)]
    names = list(dict.fromkeys(line.name for line in lines if line.unit and _shown(line)))
    if len(table.sites) > 1:
        panels = [
            Panel(
                f"epsilon {epsilon:g}",
                tuple(
                    _curve(line, names, _over_sites(table, line))
                    for line in lines
                    if _shown(line) and line.epsilon in (None, epsilon)
                ),
            )
            for epsilon in table.epsilons
        ]
    else:
        panels = [Panel(f"N = {table.sites[0]}", tuple(_over_epsilon(table, lines, names)))]
    panels = [Panel(p.title, _joined([line for line in p.lines if line.bands])) for p in panels]
    means = [band.mean for panel in panels for line in panel.lines for band in line.bands]
    scale = Scale("RMSE at site 1", min(_BOTTOM, 0.95 * min(means)), _TOP, linear=True)
    by_sites = len(table.sites) > 1
    return draw_panels(
        path,
        [Row(tuple(panels), scale, "sites" if by_sites else "epsilon", even=by_sites)],
        title=f"Paper E, {table.name}",
        note=f"MovieLens 1M, delta {table.delta:g}, seeded noise, runs: {table.repetitions}",
    )


def _joined(curves: Sequence[Line]) -> tuple[Line, ...]:
    """Marks of one name as one line, which has one lane for what lies beyond the top."""
    lines = [curve for curve in curves if not curve.loose]
    marks: dict[str, list[Band]] = {}
    for curve in curves:
        if curve.loose:
            marks.setdefault(curve.name, []).extend(curve.bands)
    last = {curve.name: curve for curve in curves if curve.loose}
    return (*lines, *(replace(last[name], bands=tuple(sorted(those))) for name, those in marks.items()))


def _shown(line: TableLine) -> bool:
    """Whether a line is drawn: not what is printed without privacy, which would look private.

    Of fits that know the noise on every value the best is enough.
    """
    if line.name == ermis_local.NOISY_MEAN or line.name.endswith(f", {ermis_local.GEOMETRIC}"):
        return False
    return line.epsilon is not None or line.name in _OPEN


def _over_sites(table: Sharing, line: TableLine) -> tuple[Band, ...]:
    return tuple(
        Band(n, value, 0.0)
        for (n, _), value in zip(table.columns, line.values, strict=True)
        if value is not None
    )


def _over_epsilon(table: Sharing, lines: Sequence[TableLine], names: Sequence[str]) -> list[Line]:
    """Site 1's errors; those without privacy are the same at every epsilon."""
    gathered: dict[tuple[str, str | None], list[TableLine]] = {}
    for line in lines:
        if _shown(line):
            gathered.setdefault((line.name, line.unit), []).append(line)
    curves = []
    for same in gathered.values():
        bands = [
            Band(epsilon, line.values[0], 0.0)
            for line in same
            if line.values[0] is not None
            for epsilon in (table.epsilons if line.epsilon is None else (line.epsilon,))
        ]
        curves.append(_curve(same[0], names, tuple(sorted(bands))))
    return curves


def _curve(line: TableLine, names: Sequence[str], bands: tuple[Band, ...]) -> Line:
    if line.printed:
        return Line("printed", bands, FAINT, " ", "x")
    if is_claim(line.name):
        return Line("the thesis' algorithm", bands, INK, " ", "+")
    if line.name.endswith(f", {ermis_local.NAIVE}"):
        return Line(f"LDP, {ermis_local.NAIVE}", bands, FAINT, " ", ".")
    if line.unit is None:
        return Line(line.name, bands, INK, _OPEN[line.name], "")
    colour = COLOURS[names.index(line.name) % len(COLOURS)]
    name = line.name if ermis_local.is_local(line.name) else f"{line.unit}: {line.name}"
    return Line(name, bands, colour, _UNITS[line.unit])
