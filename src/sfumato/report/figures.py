"""Records as pictures."""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from sfumato.data.io.write import replacing
from sfumato.report.colours import ACCENT, FAINT, INK
from sfumato.report.records import Curve, Result

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def trade_off(
    path: str | PathLike[str],
    epsilons: Sequence[float],
    curves: Sequence[Curve],
    levels: Sequence[Result],
    *,
    title: str = "",
    note: str = "",
    errors: str = "RMSE at held-out entries",
) -> Path:
    """Draw error against epsilon: curves of private predictors, and levels of those that are not.

    The last curve is the one to look at.
    """
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    layout = ConstrainedLayoutEngine(w_pad=0.15, h_pad=0.12)
    figure = Figure(figsize=(10, 4.6), dpi=150, layout=layout)
    axes = figure.subplots()
    if title:
        figure.suptitle(title, x=0.015, ha="left", color=INK, fontsize=13, fontweight="bold")
    axes.set_title(note, loc="left", fontsize=11, color=INK, pad=14)
    axes.set_xscale("log")
    labels = [
        *(_draw_level(axes, epsilons, level) for level in levels),
        *(_draw_curve(axes, epsilons, curve, marked=curve is curves[-1]) for curve in curves),
    ]
    right = max(epsilons)
    heights = [label.height for label in labels] + [rmse for curve in curves for rmse in curve.rmse]
    for place, label in _spread_out(labels, gap=0.055 * (max(heights) - min(heights))):
        axes.text(right * 1.12, place, label.text, va="center", color=label.colour, fontsize=10)
    axes.set_xlim(min(epsilons) / 1.15, right * 5)
    axes.set_xticks(list(epsilons), [f"{epsilon:g}" for epsilon in epsilons])
    axes.set_xticks([], minor=True)
    axes.set_xlabel("epsilon: the smaller, the more private", color=INK)
    axes.set_ylabel(errors, color=INK)
    axes.tick_params(colors=INK, length=0)
    axes.spines[:].set_visible(False)
    target = Path(path)
    with replacing(target) as file:
        figure.savefig(file, format=target.suffix.lstrip(".") or "png", facecolor="white")
    return target


class _Label(NamedTuple):
    """What stands at the right end of a line, and how high that end is."""

    height: float
    text: str
    colour: str


def _draw_level(axes: Axes, epsilons: Sequence[float], level: Result) -> _Label:
    ends = [min(epsilons), max(epsilons)]
    axes.plot(ends, [level.rmse] * 2, color=FAINT, linewidth=1, linestyle=(0, (4, 3)))
    return _Label(level.rmse, f"{level.name}  {level.rmse:.3f}", FAINT)


def _draw_curve(axes: Axes, epsilons: Sequence[float], curve: Curve, *, marked: bool) -> _Label:
    colour = ACCENT if marked else INK
    if curve.band:
        low, high = np.transpose(curve.band)
        axes.fill_between(epsilons, low, high, color=colour, alpha=0.15, linewidth=0)
    axes.plot(epsilons, curve.rmse, "o-", color=colour, linewidth=2, markersize=5)
    return _Label(curve.rmse[-1], f"{curve.name}  {curve.rmse[-1]:.3f}", colour)


def _spread_out(labels: Sequence[_Label], gap: float) -> list[tuple[float, _Label]]:
    """Heights for labels: near their own, at least ``gap`` apart."""
    placed: list[tuple[float, _Label]] = []
    for label in sorted(labels):
        lowest = placed[-1][0] + gap if placed else -np.inf
        placed.append((max(label.height, lowest), label))
    return placed
