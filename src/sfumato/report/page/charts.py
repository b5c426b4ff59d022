"""Charts as inline SVG: lines over linear or logarithmic axes, points on a map, bars in tables.

Colours are those of the page's style, by class: nothing here has a style of its own, which the page's
policy would refuse. Beside each chart stands a table of its numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import ceil, floor, log10
from unicodedata import combining, east_asian_width

import numpy as np

from sfumato.markup import Markup, escaped, tag
from sfumato.types import Array

_WIDTH, _HEIGHT = 480.0, 320.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 66.0, 16.0, 14.0, 46.0
_LETTER = 10.5  # the height of a map's letters, where the page is narrow
_AWAY, _EDGE = 6.0, 5.0  # of a map's label from its dot, and from the frame at least
_MOST_LETTERS = 26

Pairs = Sequence[tuple[float, float]]


@dataclass(frozen=True)
class Axis:
    """Between which numbers an axis runs, where it has ticks, and what it says."""

    low: float
    high: float
    title: str
    ticks: tuple[float, ...]
    log: bool = False
    percent: bool = False

    def share(self, value: float) -> float:
        if self.log:
            value = max(value, self.low)
            return log10(value / self.low) / log10(self.high / self.low)
        return (value - self.low) / (self.high - self.low)

    def told(self, tick: float) -> str:
        return f"{100 * tick:g}%" if self.percent else f"{tick:g}"


def shares_axis(title: str) -> Axis:
    """From nothing to all."""
    return Axis(0.0, 1.0, title, (0.0, 0.25, 0.5, 0.75, 1.0), percent=True)


def log_axis(title: str, low: float, high: float = 1.0, *, percent: bool = True) -> Axis:
    """Powers of ten as ticks."""
    powers = range(ceil(log10(low) - 1e-9), floor(log10(high) + 1e-9) + 1)
    return Axis(low, high, title, tuple(10.0**power for power in powers), log=True, percent=percent)


def number_axis(title: str, values: Sequence[float], *, count: int = 5) -> Axis:
    """Round numbers that hold all of these."""
    low, high = min(values), max(values)
    span = (high - low) or abs(high) or 1.0
    raw = span / count
    power = 10.0 ** floor(log10(raw))
    step = next(power * each for each in (1.0, 2.0, 5.0, 10.0) if power * each >= raw - 1e-12)
    first, last = floor(low / step + 1e-9), ceil(high / step - 1e-9)
    last = max(last, first + 1)
    ticks = tuple(float(f"{number * step:.12g}") for number in range(first, last + 1))
    return Axis(ticks[0], ticks[-1], title, ticks)


@dataclass(frozen=True)
class Line:
    """One curve; ``kind`` is its class in the style: main, other, faint or limit."""

    points: Pairs
    name: str
    kind: str = "main"
    step: bool = False


@dataclass(frozen=True)
class Band:
    """An area between a lower and an upper curve, or where ``kind`` is limit, what lies beyond one."""

    lower: Pairs
    upper: Pairs
    name: str
    kind: str = "main"


@dataclass(frozen=True)
class Mark:
    """A point, with a text below it to the right or above it to the left, or a name in the legend."""

    x: float
    y: float
    text: str = ""
    kind: str = "main"
    above: bool = False
    name: str = ""


def line_chart(
    name: str,
    x: Axis,
    y: Axis,
    lines: Sequence[Line],
    *,
    bands: Sequence[Band] = (),
    marks: Sequence[Mark] = (),
) -> Markup:
    """A chart with a legend below; ``name`` says to those who cannot see it what it shows."""
    drawn = [
        *_grid(x, y),
        *(_band(x, y, band) for band in bands),
        *(_line(x, y, line) for line in lines),
        *(part for mark in marks for part in _mark(x, y, mark)),
    ]
    picture = tag(
        "svg",
        *drawn,
        viewBox=f"0 0 {_WIDTH:g} {_HEIGHT:g}",
        role="img",
        aria_label=name,
        class_="chart",
    )
    keys = [_key(each.name, f"key-{each.kind}") for each in lines]
    keys += [_key(each.name, f"key-band-{each.kind}") for each in bands]
    keys += [_key(each.name, f"key-dot-{each.kind}") for each in marks if each.name]
    return tag("figure", picture, tag("ul", *keys, class_="legend"))


def _key(name: str, kind: str) -> Markup:
    swatch = tag("span", class_=f"swatch {kind}", aria_hidden="true")
    return tag("li", swatch, name)


def _across(axis: Axis, value: float) -> float:
    return round(_LEFT + axis.share(value) * (_WIDTH - _LEFT - _RIGHT), 1)


def _down(axis: Axis, value: float) -> float:
    return round(_HEIGHT - _BOTTOM - axis.share(value) * (_HEIGHT - _TOP - _BOTTOM), 1)


def _grid(x: Axis, y: Axis) -> list[Markup]:
    left, right, bottom = _LEFT, _WIDTH - _RIGHT, _HEIGHT - _BOTTOM
    parts = []
    for tick in y.ticks:
        at = _down(y, tick)
        parts.append(tag("line", x1=left, x2=right, y1=at, y2=at, class_="grid"))
        parts.append(tag("text", y.told(tick), x=left - 8, y=at + 4, class_="tick end"))
    for tick in x.ticks:
        at = _across(x, tick)
        parts.append(tag("line", x1=at, x2=at, y1=bottom, y2=bottom + 4, class_="axis"))
        parts.append(tag("text", x.told(tick), x=at, y=bottom + 18, class_="tick middle"))
    parts.append(tag("line", x1=left, x2=right, y1=bottom, y2=bottom, class_="axis"))
    middle = (left + right) / 2
    parts.append(tag("text", x.title, x=middle, y=_HEIGHT - 8, class_="title middle"))
    turned = f"rotate(-90 12 {(_TOP + bottom) / 2:g})"
    parts.append(
        tag("text", y.title, x=12, y=(_TOP + bottom) / 2, transform=turned, class_="title middle")
    )
    return parts


def _points(x: Axis, y: Axis, pairs: Pairs) -> list[str]:
    return [f"{_across(x, a):g},{_down(y, b):g}" for a, b in pairs]


def _stepped(pairs: Pairs) -> list[tuple[float, float]]:
    """Corners of steps: across first, then up."""
    corners = list(pairs[:1])
    for (_, before), (x, y) in pairwise(pairs):
        corners += [(x, before), (x, y)]
    return corners


def _line(x: Axis, y: Axis, line: Line) -> Markup:
    pairs = _stepped(line.points) if line.step else line.points
    return tag("polyline", points=" ".join(_points(x, y, pairs)), class_=f"line {line.kind}")


def _band(x: Axis, y: Axis, band: Band) -> Markup:
    edge = [*_points(x, y, band.lower), *_points(x, y, band.upper)[::-1]]
    return tag("polygon", points=" ".join(edge), class_=f"band {band.kind}")


def _mark(x: Axis, y: Axis, mark: Mark) -> list[Markup]:
    across, down = _across(x, mark.x), _down(y, mark.y)
    parts = [tag("circle", cx=across, cy=down, r=4.5, class_=f"mark {mark.kind}")]
    if mark.text:
        place = {"x": across - 5, "y": down - 9} if mark.above else {"x": across + 5, "y": down + 19}
        parts.append(tag("text", mark.text, **place, class_="note end" if mark.above else "note"))
    return parts


# -- maps -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Point:
    """A level on a map: its number, where it lies, how it is coloured (-1, 0 or 1), and its label.

    Of a level that the page has no numbers of, ``level`` is None: it cannot be chosen.
    """

    level: int | None
    x: float
    y: float
    tone: int
    label: str | None = None


def map_chart(name: str, points: Sequence[Point], across: str, up: str) -> Markup:
    """Levels as dots; those that have a label show it."""
    xs, ys = np.array([p.x for p in points]), np.array([p.y for p in points])
    place = _placed(xs, _WIDTH, 18.0), _HEIGHT + 20 - _placed(ys, _HEIGHT + 20, 26.0)
    dots = [
        tag(
            "circle",
            cx=f"{a:.1f}",
            cy=f"{b:.1f}",
            r=3.2,
            class_=("low", "usual", "high")[p.tone + 1],
            data_level=p.level,
        )
        for p, a, b in zip(points, *place, strict=True)
    ]
    texts = _texts(points, *place)
    axes = [
        tag("text", f"{across} \u2192", x=_WIDTH - 4, y=_HEIGHT + 16, class_="title end"),
        tag("text", f"\u2191 {up}", x=4, y=12, class_="title"),
    ]
    return tag(
        "svg",
        tag("g", *dots, class_="dots"),
        tag("g", *texts, class_="names"),
        *axes,
        viewBox=f"0 0 {_WIDTH:g} {_HEIGHT + 20:g}",
        role="img",
        aria_label=name,
        class_="chart map",
    )


def _placed(values: Array, length: float, margin: float) -> Array:
    low, span = values.min(), values.max() - values.min()
    return np.asarray(margin + (values - low) / (span or 1.0) * (length - 2 * margin))


def _texts(points: Sequence[Point], xs: Array, ys: Array) -> list[Markup]:
    """Labels beside their dots and within the frame, but for those that would lie on others."""
    taken: list[tuple[float, float, float]] = []
    texts = []
    for point, x, y in zip(points, xs.tolist(), ys.tolist(), strict=True):
        if point.label is None:
            continue
        rooms = x - _AWAY - _EDGE, _WIDTH - _EDGE - x - _AWAY  # to the left and to the right
        shown = _shortened(point.label, max(rooms))
        width = _width(shown)
        left = width > rooms[1]
        start = x - _AWAY - width if left else x + _AWAY
        if any(abs(y - b) < 11 and start < c and a < start + width for a, b, c in taken):
            continue
        taken.append((start, y, start + width))
        at, kind = (x - _AWAY, "note end") if left else (x + _AWAY, "note")
        texts.append(tag("text", shown, x=f"{at:.1f}", y=f"{y + 3:.1f}", class_=kind))
    return texts


def _shortened(label: str, room: float) -> str:
    """As many letters as there is room for."""
    if len(label) <= _MOST_LETTERS and _width(label) <= room:
        return label
    end = _MOST_LETTERS - 1
    while end and _width(f"{label[:end]}\u2026") > room:
        end -= 1
    return f"{label[:end]}\u2026"


def _width(text: str) -> float:
    """How wide a text may be on a map: fonts differ, so that this is rather too much."""
    return _LETTER * sum(_share(letter) for letter in text)


def _share(letter: str) -> float:
    """A letter's width as a share of its height."""
    if combining(letter):
        return 0.0
    if east_asian_width(letter) in "WF" or letter in "mwMWQ@%\u2026":
        return 1.05
    if letter in " iIjlftr.,:;'|!()[]-":
        return 0.42
    return 0.78 if letter.isupper() else 0.65


# -- bars in tables -------------------------------------------------------------------------------


def bar(share: float, kind: str = "main", band: tuple[float, float] | None = None) -> Markup:
    """A bar of some share of a cell's width, with an interval on it where there is one."""
    width = max(0.0, min(1.0, share))
    parts = [tag("rect", x=0, y=2, width=f"{100 * width:.1f}", height=8, class_=f"bar {kind}")]
    if band is not None:
        low, high = (100 * max(0.0, min(1.0, end)) for end in band)
        parts.append(
            tag("rect", x=f"{low:.1f}", y=5, width=f"{high - low:.1f}", height=2, class_="whisker")
        )
    return tag(
        "svg",
        *parts,
        viewBox="0 0 100 12",
        preserveAspectRatio="none",
        class_="bars",
        aria_hidden="true",
        focusable="false",
    )


def bars_table(
    caption: str,
    headings: Sequence[str],
    rows: Sequence[tuple[object, float, Sequence[str], str]],
    *,
    words: bool = False,
) -> Markup:
    """A table that is its own chart: a name, a bar, and numbers, or ``words`` in the last column.

    Rows have a share and a kind of bar.
    """
    last = len(headings) - 1 if words else len(headings)
    kinds = ["number" if n < last else None for n in range(1, len(headings))]
    heads = [
        tag("th", headings[0], scope="col"),
        tag("td", class_="track"),
        *(tag("th", each, scope="col", class_=k) for each, k in zip(headings[1:], kinds, strict=True)),
    ]
    body = [
        tag(
            "tr",
            tag("th", escaped(name), scope="row"),
            tag("td", bar(share, kind), class_="track"),
            *(tag("td", each, class_=k) for each, k in zip(numbers, kinds, strict=True)),
        )
        for name, share, numbers, kind in rows
    ]
    whole = tag(
        "table",
        tag("caption", caption),
        tag("thead", tag("tr", *heads)),
        tag("tbody", *body),
        class_="chart-table",
    )
    return tag("div", whole, class_="scroll", tabindex="0", role="region", aria_label=caption)
