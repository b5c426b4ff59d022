"""Paper E's models of UCLAF as pictures, from the lines of ``ermis_uclaf``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from sfumato.papers.picture import COLOURS, FAINT, INK, Band, Line, Panel, Row, Scale, draw_panels

if TYPE_CHECKING:
    from sfumato.papers.ermis_uclaf import Line as TableLine
    from sfumato.papers.ermis_uclaf import Models

_BOTTOM, _TOP = 0.3, 2.5
_STYLES = {"constant": ":", "alone, biases": "--", "alone, not private": "-"}


def draw(path: Path, table: Models, lines: Sequence[TableLine]) -> Path:
    """A panel for each model: over sites at the last epsilon but one, or over epsilon for one N."""
    over_sites = len(table.sites) > 1
    names = list(dict.fromkeys(line.name for line in lines if line.name not in _STYLES))
    epsilon = table.epsilons[len(table.epsilons) // 2]
    panels = []
    for model in table.models:
        own = [line for line in lines if line.model in ("", model)]
        curves = (
            _over_sites(table, own, names, epsilon) if over_sites else _over_epsilon(own, names, table)
        )
        panels.append(Panel(model, tuple(curve for curve in curves if curve.bands)))
    what = f"epsilon {epsilon:g}" if over_sites else f"N = {table.sites[0]}"
    return draw_panels(
        path,
        [
            Row(
                tuple(panels),
                Scale("RMSE", _BOTTOM, _TOP, linear=True),
                "sites" if over_sites else "epsilon",
                even=over_sites,
            )
        ],
        title=f"Paper E, {table.name}",
        note=f"UCLAF, {what}, seeded noise, runs: {table.repetitions}",
    )


def _over_sites(
    table: Models, lines: Sequence[TableLine], names: Sequence[str], epsilon: float
) -> list[Line]:
    return [
        _curve(
            line.name,
            names,
            [Band(n, v, 0.0) for n, v in zip(table.sites, line.values, strict=True) if v is not None],
        )
        for line in lines
        if line.epsilon == epsilon or not line.model
    ]


def _over_epsilon(lines: Sequence[TableLine], names: Sequence[str], table: Models) -> list[Line]:
    found: dict[str, list[Band]] = {}
    for line in lines:
        value = line.values[0]
        places = (line.epsilon,) if line.epsilon is not None else () if line.model else table.epsilons
        if value is not None:
            found.setdefault(line.name, []).extend(Band(at, value, 0.0) for at in places)
    return [_curve(name, names, sorted(bands)) for name, bands in found.items()]


def _curve(name: str, names: Sequence[str], bands: Sequence[Band]) -> Line:
    if name in _STYLES:
        return Line(name, tuple(bands), INK, _STYLES[name], "")
    if name == "printed":
        return Line(name, tuple(bands), FAINT, " ", "x")
    return Line(name, tuple(bands), COLOURS[names.index(name) % len(COLOURS)])
