"""Paper W's figures from the results of ``wei``: each as printed, and with our methods."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sfumato.papers.picture import (
    COLOURS,
    FAINT,
    INK,
    Band,
    Level,
    Line,
    Panel,
    Row,
    draw_panels,
    scale_to,
)
from sfumato.papers.runner import Cell, Summary
from sfumato.papers.wei import AUTO, DELTA, Figure

Data = tuple[tuple[str, Any], ...]
Summaries = Mapping[Cell, Summary]
PRINTED, OURS = "as-printed", "ours"
_MODELS = {"cp": "CP", "tucker": "Tucker"}
_DRAWN = {
    PRINTED: ("printed input", "printed gradient", "printed output", "private biases"),
    OURS: ("input", "gradient", "gradient, delta", "output", "private biases", AUTO),  # dots on top
}
_NAMES = {
    "printed input": "input",
    "printed gradient": "gradient",
    "printed output": "output",
    "authors' gradient": "gradient, authors' code",
    "gradient": "gradient, pure epsilon",
    "gradient, delta": f"gradient, delta {DELTA:g}",
    "best fit": "best fit, not private",
    "SGD": "SGD, not private",
    "constant": "constant",
}
_COLOURS = {
    "input": COLOURS[0],
    "gradient": COLOURS[1],
    "output": COLOURS[2],
    "gradient, delta": COLOURS[5],
    "authors' gradient": COLOURS[3],
    AUTO: INK,
    "private biases": COLOURS[4],
}
_LEVELS = {"constant": (FAINT, "--"), "best fit": (INK, "-"), "SGD": (COLOURS[3], "-.")}
_TITLES = {
    PRINTED: "as printed, epsilons claimed",
    OURS: "proven methods, one value protected",
}
# How far pictures reach, in the constant's error: what lies beyond is of no use to anybody.
_TOPS = {PRINTED: {2: 12.0, 3: 12.0, 4: 1.6}, OURS: {2: 2.0, 3: 2.0, 4: 1.05}}


def draw(folder: Path, figure: Figure, summaries: Summaries) -> list[Path]:
    """Both pictures of a figure."""
    return [_picture(folder / f"{version}.png", figure, summaries, version) for version in _DRAWN]


def _picture(path: Path, figure: Figure, summaries: Summaries, version: str) -> Path:
    panels = {2: _over_epsilon, 3: _by_missing_ratio, 4: _over_epsilon}[figure.number]
    constant = [found.mean for cell, found in summaries.items() if cell.series == "constant"]
    repetitions = max(found.repetitions for found in summaries.values())
    about = {2: "invented data", 3: "invented data by missing ratio", 4: "MovieLens 100K by day"}
    spread = f"mean and standard deviation of {repetitions} repetitions"
    rows = panels(figure, summaries, version)
    scale = scale_to(
        _TOPS[version][figure.number] * float(np.mean(constant)),
        (panel for row in rows for panel in row),
        "RMSE of ratings" if figure.number == 4 else "RMSE against the truth",
    )
    return draw_panels(
        path,
        [Row(tuple(row), scale) for row in rows],
        title=f"Paper W, figure {figure.number}, {about[figure.number]}; {_TITLES[version]}",
        note=spread,
    )


def _line(
    summaries: Summaries, series: str, model: str, data: Data, epsilons: Sequence[float]
) -> Line | None:
    """A series' curve; None where it was not run."""
    bands = []
    for epsilon in epsilons:
        found = summaries.get(Cell(series, model, data, epsilon))
        if found is not None:
            deviation = 0.0 if series == AUTO else found.deviation  # another series' band, drawn once
            bands.append(Band(epsilon, found.mean, deviation))
    if not bands:
        return None
    colour = _COLOURS[series.removeprefix("printed ")]
    style = ":" if series == AUTO else "--" if series == "private biases" else "-"
    marker = "" if series == AUTO else None
    return Line(_NAMES.get(series, series), tuple(bands), colour, style, marker)


def _levels(summaries: Summaries, model: str, data: Data, names: Sequence[str]) -> tuple[Level, ...]:
    return tuple(
        Level(_NAMES[name], summaries[Cell(name, model, data, None)].mean, *_LEVELS[name])
        for name in names
    )


# -- figures 2 and 4 ------------------------------------------------------------------------------


def _over_epsilon(figure: Figure, summaries: Summaries, version: str) -> list[list[Panel]]:
    upper = [_panel(figure, summaries, version, model) for model in _MODELS]
    if not figure.low_epsilons:
        return [upper]
    return [upper, [_low_panel(figure, summaries, version, model) for model in _MODELS]]


def _panel(figure: Figure, summaries: Summaries, version: str, model: str) -> Panel:
    data = figure.data()[0]
    lines = [_line(summaries, name, model, data, figure.epsilons) for name in _DRAWN[version]]
    levels = ("constant", "best fit", "SGD") if version == PRINTED else ("constant", "best fit")
    letter = {"cp": "a", "tucker": "b"}[model]
    return Panel(
        f"({letter}) {_MODELS[model]}",
        tuple(line for line in lines if line is not None),
        _levels(summaries, model, data, levels),
    )


def _low_panel(figure: Figure, summaries: Summaries, version: str, model: str) -> Panel:
    data = figure.data()[0]
    names = {
        PRINTED: ("printed gradient", "authors' gradient"),
        OURS: ("gradient", "gradient, delta"),
    }[version]
    lines = [_line(summaries, name, model, data, figure.low_epsilons) for name in names]
    letter = {"cp": "c", "tucker": "d"}[model]
    return Panel(
        f"({letter}) {_MODELS[model]}, gradient perturbation",
        tuple(line for line in lines if line is not None),
        _levels(summaries, model, data, ("constant", "best fit")),
    )


# -- figure 3 -------------------------------------------------------------------------------------


def _by_missing_ratio(figure: Figure, summaries: Summaries, version: str) -> list[list[Panel]]:
    names = {
        PRINTED: ("printed input", "printed gradient", "printed output", "private biases"),
        OURS: ("input", "gradient, delta", "output", "private biases"),
    }[version]
    return [[_ratio_panel(figure, summaries, name, model) for name in names] for model in _MODELS]


def _ratio_panel(figure: Figure, summaries: Summaries, series: str, model: str) -> Panel:
    lines, levels = [], []
    every = figure.data()
    for number, data in enumerate(every):
        colour, ratio = _shade(number, len(every)), dict(data)["missing"]
        line = _line(summaries, series, model, data, figure.epsilons)
        if line is not None:
            lines.append(Line(f"missing {ratio:g}", line.bands, colour))
        best = summaries[Cell("best fit", model, data, None)].mean
        levels.append(Level(f"best fit, missing {ratio:g}", best, colour, ":"))
    constants = [summaries[Cell("constant", model, data, None)].mean for data in every]
    levels.append(Level("constant, mean of ratios", float(np.mean(constants))))
    return Panel(f"{_MODELS[model]}, {_NAMES.get(series, series)}", tuple(lines), tuple(levels))


def _shade(number: int, count: int) -> str:
    """From dark to bright: the more is missing, the brighter."""
    from matplotlib import colormaps
    from matplotlib.colors import to_hex

    return to_hex(colormaps["viridis"](0.88 * number / max(1, count - 1)))
