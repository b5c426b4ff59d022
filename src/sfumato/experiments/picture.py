"""Pictures of experiments: panels of errors against epsilon, or whatever else, with bands over runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite, log10
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from sfumato.data.write import replacing

if TYPE_CHECKING:
    from matplotlib.axes import Axes

INK, FAINT = "#22303c", "#8a97a3"
COLOURS = ("#c8553d", "#2a6f97", "#6a994e", "#9c6ade", "#d19a2e", "#3aa6a0")
_DPI = 110
_KEY = 2.2  # inches for the key


class Band(NamedTuple):
    """Mean and standard deviation at one place of the axis; both infinite where a fit diverged."""

    at: float
    mean: float
    deviation: float


@dataclass(frozen=True)
class Line:
    """A curve over the axis."""

    name: str
    bands: tuple[Band, ...]
    colour: str
    style: str = "-"
    marker: str = "o"


@dataclass(frozen=True)
class Level:
    """Something that knows no axis, drawn from side to side."""

    name: str
    height: float
    colour: str = FAINT
    style: str = "--"


@dataclass(frozen=True)
class Panel:
    title: str
    lines: tuple[Line, ...]
    levels: tuple[Level, ...]


def draw_panels(
    path: Path,
    rows: Sequence[Sequence[Panel]],
    *,
    title: str,
    note: str,
    top: float,
    errors: str = "RMSE",
    axis: str = "epsilon",
) -> Path:
    """Rows of panels, all with one logarithmic range of errors, up to ``top``; one key for all of them.

    What lies beyond is a triangle at the top edge.
    """
    from matplotlib.figure import Figure

    wide = max(len(row) for row in rows)
    width, height = 0.75 + 2.9 * wide + _KEY, 1.15 + 2.75 * len(rows)  # inches
    figure = Figure(figsize=(width, height), dpi=_DPI)
    figure.subplots_adjust(
        left=0.7 / width,
        right=1 - _KEY / width,
        bottom=0.8 / height,
        top=1 - 0.75 / height,
        wspace=0.08,
        hspace=0.32,
    )
    axes = figure.subplots(len(rows), wide, squeeze=False, sharey=True)
    lowest = _lowest(rows)
    bottom = lowest * (0.8 if top > 3 * lowest else 0.95)
    for row, places in zip(rows, axes, strict=True):
        for panel, place in zip(row, places, strict=True):
            _draw(place, panel, (bottom, top))
        places[0].set_ylabel(errors, color=INK)
        for place in places[1:]:
            place.tick_params(labelleft=False)
    for place in axes[-1]:
        place.set_xlabel(axis, color=INK)
    at_left = {"x": 0.12 / width, "ha": "left"}
    figure.text(y=1 - 0.3 / height, s=title, color=INK, fontsize=12, fontweight="bold", **at_left)  # type: ignore[arg-type]
    figure.text(y=0.14 / height, s=note, color=FAINT, fontsize=9, **at_left)  # type: ignore[arg-type]
    named = {
        label: handle
        for row in axes
        for place in row
        for handle, label in zip(*place.get_legend_handles_labels(), strict=True)
    }
    figure.legend(
        list(named.values()),
        list(named),
        loc="upper left",
        bbox_to_anchor=(1 - (_KEY - 0.1) / width, 1 - 0.65 / height),
        frameon=False,
        labelcolor=INK,
        fontsize=9,
    )
    with replacing(path) as file:
        figure.savefig(file, format="png", facecolor="white")
    return path


def _lowest(rows: Sequence[Sequence[Panel]]) -> float:
    panels = [panel for row in rows for panel in row]
    heights = [level.height for panel in panels for level in panel.levels]
    heights += [band.mean for panel in panels for line in panel.lines for band in line.bands]
    return min(height for height in heights if isfinite(height))


def _draw(axes: Axes, panel: Panel, limits: tuple[float, float]) -> None:
    bottom, top = limits
    axes.set_title(panel.title, loc="left", fontsize=10, color=INK)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_ylim(bottom, top)
    for level in panel.levels:
        axes.axhline(
            level.height, color=level.colour, linestyle=level.style, linewidth=1.2, label=level.name
        )
    for line in panel.lines:
        _draw_line(axes, line, limits)
    ticks = _ticks(bottom, top)
    axes.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.set_yticks([], minor=True)
    places = sorted({band.at for line in panel.lines for band in line.bands})
    axes.set_xticks(places, [f"{place:g}" for place in places])
    axes.set_xticks([], minor=True)
    axes.tick_params(colors=INK, length=2, labelsize=9)
    axes.grid(color="#e8ecef", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[:].set_visible(False)


def _draw_line(axes: Axes, line: Line, limits: tuple[float, float]) -> None:
    bottom, top = limits
    at, mean, deviation = np.transpose(line.bands)
    beyond = ~(mean <= top)
    within = np.where(beyond, top, mean)
    spread = np.where(np.isfinite(deviation), deviation, 0.0)
    low, high = np.maximum(within - spread, bottom), np.minimum(within + spread, top)
    axes.fill_between(at, low, high, where=~beyond, color=line.colour, alpha=0.16, linewidth=0)
    own = {"color": line.colour, "clip_on": False}
    axes.plot([], [], line.style, marker=line.marker, markersize=4, label=line.name, **own)  # type: ignore[arg-type]
    for k in range(len(at) - 1):
        if not (beyond[k] and beyond[k + 1]):
            axes.plot(at[k : k + 2], within[k : k + 2], line.style, linewidth=1.6, **own)  # type: ignore[arg-type]
    axes.plot(at[~beyond], within[~beyond], linestyle="", marker=line.marker, markersize=4, **own)  # type: ignore[arg-type]
    axes.plot(at[beyond], within[beyond], "^", markersize=9, zorder=5, **own)  # type: ignore[arg-type]


def _ticks(bottom: float, top: float) -> list[float]:
    """Round numbers of a logarithmic axis, about six of them."""
    if top < 2.5 * bottom:
        step = 10.0 ** np.floor(log10(top)) / (10 if top < 2 * 10.0 ** np.floor(log10(top)) else 2)
        return [round(k * step, 9) for k in range(int(bottom / step) + 1, int(top / step) + 1)]
    decades = range(int(np.floor(log10(bottom))), int(np.ceil(log10(top))) + 1)
    steps = (1, 2, 5) if top / bottom > 12 else (1, 1.5, 2, 3, 5, 7)
    return [step * 10.0**d for d in decades for step in steps if bottom <= step * 10.0**d <= top]
