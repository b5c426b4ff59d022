"""Pictures of experiments: panels of errors against epsilon, or whatever else, with bands over runs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import isfinite, log10
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from sfumato.data.io.write import replacing
from sfumato.report.colours import COLOURS, FAINT, INK, MARKERS

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["COLOURS", "FAINT", "INK"]  # what lines are drawn with
_DPI = 110
_LANE = 0.055  # of a panel's height, for the triangles of each line above it
_LANE_POINTS = 9.0  # the same, for titles
_KEY = 2.2  # inches for the key
_CROSS = 5.5  # how large marks without a line are, which have a white edge: they may lie on lines

Style = str | tuple[float, tuple[float, ...]]  # as matplotlib has them: a name, or offset and dashes


class Band(NamedTuple):
    """Mean and standard deviation at one place of the axis; both infinite where a fit diverged.

    Where a band is not as wide above as below, ``above`` is its width there.
    """

    at: float
    mean: float
    deviation: float
    above: float | None = None


@dataclass(frozen=True)
class Line:
    """A curve over the axis."""

    name: str
    bands: tuple[Band, ...]
    colour: str
    style: Style = "-"
    marker: str | None = None  # of the colour, where none is named
    size: float = 4.0  # of markers: where two lines coincide, those of the first may look out

    @property
    def shape(self) -> str:
        return MARKERS.get(self.colour, "o") if self.marker is None else self.marker

    @property
    def loose(self) -> bool:
        """Marks alone, without a line between them."""
        return self.style == " "


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
    levels: tuple[Level, ...] = ()


@dataclass(frozen=True)
class Scale:
    """An upward axis: what it shows, and its two ends. Logarithmic unless it is ``linear``."""

    label: str
    bottom: float
    top: float
    linear: bool = False


@dataclass(frozen=True)
class Row:
    """Panels beside each other, with one upward scale; ``axis`` names what runs across.

    What runs across does so logarithmically, unless ``even``.
    """

    panels: tuple[Panel, ...]
    scale: Scale
    axis: str = "epsilon"
    even: bool = False


def scale_to(top: float, panels: Iterable[Panel], label: str) -> Scale:
    """From a little below the lowest line or level of the panels up to ``top``."""
    panels = list(panels)
    heights = [level.height for panel in panels for level in panel.levels]
    heights += [band.mean for panel in panels for line in panel.lines for band in line.bands]
    lowest = min(height for height in heights if isfinite(height))
    return Scale(label, lowest * (0.8 if top > 3 * lowest else 0.95), top)


def draw_panels(
    path: Path, rows: Sequence[Row], *, title: str, note: str, key: Sequence[str] = ()
) -> Path:
    """Rows of panels, with one key for all of them; names in ``key`` come first in it.

    What lies beyond the top of a scale is a triangle above the panel, where each line has a lane; the
    note then says so.
    """
    from matplotlib.figure import Figure

    wide = max(len(row.panels) for row in rows)
    mixed = len({row.axis for row in rows}) > 1  # every row then has its own label below it
    width = 0.75 + 2.9 * wide + _KEY  # inches
    lanes = max(len(_beyond(panel, row.scale)) for row in rows for panel in row.panels)
    above = lanes * _LANE_POINTS / 72
    height = 1.15 + (2.75 + above) * len(rows) + (0.3 * (len(rows) - 1) if mixed else 0.0)
    figure = Figure(figsize=(width, height), dpi=_DPI)
    figure.subplots_adjust(
        left=0.7 / width,
        right=1 - _KEY / width,
        bottom=0.8 / height,
        top=1 - (0.75 + above) / height,
        wspace=0.08,
        hspace=(0.45 if mixed else 0.32) + above / 2.1,
    )
    axes = figure.subplots(len(rows), wide, squeeze=False, sharey="row")
    for number, (row, places) in enumerate(zip(rows, axes, strict=True)):
        _draw_row(row, places, labelled=mixed or number == len(rows) - 1)
    at_left = {"x": 0.12 / width, "ha": "left"}
    figure.text(y=1 - 0.3 / height, s=title, color=INK, fontsize=12, fontweight="bold", **at_left)  # type: ignore[arg-type]
    figure.text(y=0.14 / height, s=note + _about_triangles(rows), color=FAINT, fontsize=9, **at_left)  # type: ignore[arg-type]
    named = {
        label: handle
        for row in axes
        for place in row
        for handle, label in zip(*place.get_legend_handles_labels(), strict=True)
    }
    ordered = [*(name for name in key if name in named), *(name for name in named if name not in key)]
    figure.legend(
        [named[name] for name in ordered],
        ordered,
        loc="upper left",
        bbox_to_anchor=(1 - (_KEY - 0.1) / width, 1 - (0.65 + above) / height),
        frameon=False,
        labelcolor=INK,
        fontsize=9,
    )
    with replacing(path) as file:
        figure.savefig(file, format="png", facecolor="white")
    return path


def _draw_row(row: Row, places: Sequence[Axes], *, labelled: bool) -> None:
    lanes = max(len(_beyond(panel, row.scale)) for panel in row.panels)
    for panel, place in zip(row.panels, places, strict=False):
        _draw(place, panel, row.scale, lanes, even=row.even)
        if labelled:
            place.set_xlabel(row.axis, color=INK)
    places[0].set_ylabel(row.scale.label, color=INK)
    for place in places[1:]:
        place.tick_params(labelleft=False)
    for place in places[len(row.panels) :]:
        place.set_axis_off()


def _beyond(panel: Panel, scale: Scale) -> list[Line]:
    """The lines that leave a panel at its top."""
    return [line for line in panel.lines if any(not band.mean <= scale.top for band in line.bands)]


def _about_triangles(rows: Sequence[Row]) -> str:
    """What the triangles are, where there are any."""
    beyond = [line for row in rows for panel in row.panels for line in _beyond(panel, row.scale)]
    if not beyond:
        return ""
    diverged = any(not isfinite(band.mean) for line in beyond for band in line.bands)
    return f"; triangles, in a lane of each line: beyond the top{', or diverged' if diverged else ''}"


def _draw(axes: Axes, panel: Panel, scale: Scale, lanes: int, *, even: bool = False) -> None:
    beyond = _beyond(panel, scale)
    axes.set_title(panel.title, loc="left", fontsize=10, color=INK, pad=lanes * _LANE_POINTS + 6)
    axes.set_xscale("linear" if even else "log")
    axes.set_yscale("linear" if scale.linear else "log")
    axes.set_ylim(scale.bottom, scale.top)
    for level in panel.levels:
        axes.axhline(
            level.height, color=level.colour, linestyle=level.style, linewidth=1.2, label=level.name
        )
    for line in panel.lines:
        lane = 1 + _LANE * (beyond.index(line) + 0.7) if line in beyond else 1.0
        _draw_line(axes, line, (scale.bottom, scale.top), lane)
    if not scale.linear:
        ticks = _ticks(scale.bottom, scale.top)
        axes.set_yticks(ticks, [short_name(tick) for tick in ticks])
        axes.set_yticks([], minor=True)
    marked = [line for line in panel.lines if line.shape] or panel.lines
    places = _few(sorted({band.at for line in marked for band in line.bands}), even=even)
    axes.set_xticks(places, [short_name(place) for place in places])
    axes.set_xticks([], minor=True)
    axes.tick_params(colors=INK, length=2, labelsize=9)
    axes.grid(color="#e8ecef", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[:].set_visible(False)


_MOST_PLACES = 7  # that there is room for below a panel


def short_name(number: float) -> str:
    """A number, short enough to stand below an axis."""
    if number >= 1e6:
        return f"{number / 1e6:g}M"
    return f"{number / 1e3:g}k" if number >= 1e4 else f"{number:g}"


def _few(places: list[float], *, even: bool) -> list[float]:
    """All places of an axis where there is room to name them, else some or round numbers between."""
    if even:
        apart = (places[-1] - places[0]) / _MOST_PLACES
        named = places[:1]
        for place in places[1:]:
            if place - named[-1] >= apart:
                named.append(place)
        return named
    if len(places) <= _MOST_PLACES:
        return places
    low, high = places[0], places[-1]
    steps = (1,) if high > 500 * low else (1, 3) if high > 30 * low else (1, 2, 5)
    decades = range(int(np.floor(log10(low))), int(np.ceil(log10(high))) + 1)
    round_ones = [step * 10.0**d for d in decades for step in steps]
    return [place for place in round_ones if 0.99 * low <= place <= 1.01 * high]


def _draw_line(axes: Axes, line: Line, limits: tuple[float, float], lane: float) -> None:
    bottom, top = limits
    at, mean, below, above = np.transpose(
        [(b.at, b.mean, b.deviation, b.deviation if b.above is None else b.above) for b in line.bands]
    )
    beyond = ~(mean <= top)
    within = np.where(beyond, top, mean)
    below, above = (np.where(np.isfinite(width), width, 0.0) for width in (below, above))
    low, high = np.maximum(within - below, bottom), np.minimum(within + above, top)
    axes.fill_between(at, low, high, where=~beyond, color=line.colour, alpha=0.16, linewidth=0)
    own = {"color": line.colour, "clip_on": False}
    marks = {"marker": line.shape, **own, **(_edged() if line.loose else {"markersize": line.size})}
    axes.plot([], [], linestyle=line.style, label=line.name, **marks)  # type: ignore[arg-type]
    for k in range(0 if line.loose else len(at) - 1):
        if not (beyond[k] and beyond[k + 1]):
            axes.plot(at[k : k + 2], within[k : k + 2], linestyle=line.style, linewidth=1.6, **own)  # type: ignore[arg-type]
    axes.plot(at[~beyond], within[~beyond], linestyle="", **marks)  # type: ignore[arg-type]
    above_it = {"transform": axes.get_xaxis_transform(), "zorder": 5}
    axes.plot(at[beyond], np.full(beyond.sum(), lane), "^", markersize=7, **own, **above_it)  # type: ignore[arg-type]


def _edged() -> dict[str, object]:
    """Marks that stand out where they lie on a line of their own colour."""
    from matplotlib.patheffects import withStroke

    edge = withStroke(linewidth=2.8, foreground="white")
    return {"markersize": _CROSS, "markeredgewidth": 1.4, "zorder": 4, "path_effects": [edge]}


def _ticks(bottom: float, top: float) -> list[float]:
    """Round numbers of a logarithmic axis, about six of them."""
    if top < 2.5 * bottom:
        step = 10.0 ** np.floor(log10(top)) / (10 if top < 2 * 10.0 ** np.floor(log10(top)) else 2)
        return [round(k * step, 9) for k in range(int(bottom / step) + 1, int(top / step) + 1)]
    decades = range(int(np.floor(log10(bottom))), int(np.ceil(log10(top))) + 1)
    steps = (1, 2, 5) if top / bottom > 12 else (1, 1.5, 2, 3, 5, 7)
    return [step * 10.0**d for d in decades for step in steps if bottom <= step * 10.0**d <= top]
