"""What a model has learnt of its levels: a search, a map, components by their largest levels, top lists.

All numbers are those of the model, in three digits. Of very large modes a part of the levels is shown,
and the page says so.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sfumato.markup import Markup, folded, label, short, table, tag
from sfumato.report.page.charts import Point, map_chart
from sfumato.report.page.contents import Levels, Part
from sfumato.types import Array

_MOST_NUMBERS = 240_000  # that a page holds of all levels
_MOST_LETTERS = 250_000
_DOTS, _NAMED, _FAR = 1_000, 14, 3.0  # of a map
_COMPONENTS, _ENDS, _TOP = 8, 5, 10
_SAME = 1e-9  # of a column's size, up to which its numbers are equal


class _Kept(NamedTuple):
    """Levels that a page has, of all there are."""

    levels: Levels
    places: Array  # of the kept levels, the largest first where not all are
    by: str  # what the largest were chosen by


def kept(part: Sequence[Levels], sharers: int = 1) -> list[_Kept]:
    """Of each mode as many levels as there is room for, shared fairly, with others' too."""
    least, most = 0, max(each.rows.shape[0] for each in part)
    while least < most:  # the largest number of levels of a mode that all have room for
        middle = (least + most + 1) // 2
        if _fits(part, middle, sharers):
            least = middle
        else:
            most = middle - 1
    return [_largest(each, least) for each in part]


def _fits(part: Sequence[Levels], number: int, sharers: int) -> bool:
    """Labels are taken to be of a usual length; longer ones are cut when they are shown."""
    sizes = [min(each.rows.shape[0], number) for each in part]
    numbers = sum(size * (each.rows.shape[1] + 2) for size, each in zip(sizes, part, strict=True))
    letters = sum(size * _letters(each) for size, each in zip(sizes, part, strict=True))
    return bool(sharers * numbers <= _MOST_NUMBERS and sharers * letters <= _MOST_LETTERS)


def _letters(levels: Levels) -> float:
    size = levels.rows.shape[0]
    some = range(0, size, max(1, size // 200))
    return float(np.mean([len(short(levels.label(n))) for n in some])) if size else 0.0


def _largest(levels: Levels, number: int) -> _Kept:
    size = levels.rows.shape[0]
    if size <= number:
        return _Kept(levels, np.arange(size), "")
    if levels.counts is not None:
        weight, by = np.asarray(levels.counts, np.float64), "that occur most"
    else:
        weight, by = np.square(levels.rows).sum(1), "with the largest rows"
        if levels.biases is not None:
            weight = weight + np.square(levels.biases)
    return _Kept(levels, np.sort(np.argsort(-weight, kind="stable")[:number]), by)


# -- sections -------------------------------------------------------------------------------------


def learnt(parts: Sequence[Part], prefix: str, sharers: int) -> tuple[Markup, list[dict[str, Any]]]:
    """The section, and the data that its search works with; so many tables share the room of a page."""
    blocks, data = [], []
    several = len(parts) > 1
    for number, part in enumerate(parts):
        known = kept(part.levels, sharers)
        at = f"{prefix}-{number}"
        if several:
            blocks.append(tag("h3", "Table ", label(part.name)))
        blocks.append(_search(part, known, at))
        heading = "h4" if several else "h3"
        blocks += [
            _mode(each, f"{at}-{m}", heading)
            for m, each in enumerate(known)
            if part.drawn in (None, each.levels.mode)
        ]
        data.append({"id": at, **_data(part, known)})
    return tag("div", *blocks), data


def _search(part: Part, known: Sequence[_Kept], at: str) -> Markup:
    modes = [tag("option", short(each.levels.mode), value=n) for n, each in enumerate(known)]
    asked = [
        tag("label", "Mode", tag("select", *modes, id=f"{at}-mode"), for_=f"{at}-mode"),
        tag(
            "label",
            "Search",
            tag("input", type="search", id=f"{at}-word", autocomplete="off", spellcheck="false"),
            for_=f"{at}-word",
        ),
    ]
    return tag(
        "div",
        tag("noscript", tag("p", "Searching needs JavaScript; all else on this page does without.")),
        tag(
            "div",
            tag("div", *asked, class_="fields", role="search", aria_label=f"Levels of {part.name}"),
            tag("ul", class_="hits", aria_label="Levels found"),
            tag("div", class_="found", role="status"),
            class_="explorer",
            data_explorer=at,
            hidden=True,
        ),
    )


def _mode(known: _Kept, at: str, heading: str) -> Markup:
    levels, size = known.levels, known.levels.rows.shape[0]
    parts: list[Markup] = [tag(heading, label(levels.mode)), tag("p", _sizes(known))]
    columns = np.flatnonzero(np.any(levels.rows != 0, axis=0)) if size else np.zeros(0, np.int64)
    if not columns.size:
        parts.append(tag("p", "No factors: what is known of a level is its bias alone.", class_="aside"))
    alike = _alike(levels.rows[:, columns])
    drawn = _map(known, at, columns[~alike])
    if drawn is not None:
        parts.append(drawn)
    if not alike.all():
        parts.append(_components(levels, columns[~alike]))
    if alike.any():
        parts.append(_same(levels, columns[alike]))
    if levels.biases is not None and np.any(levels.biases):
        parts.append(_extremes(levels))
    return tag("section", *parts, class_="mode")


def _sizes(known: _Kept) -> str:
    """How many levels there are, how many of them are here, and how many places nobody has."""
    size, empty = known.levels.rows.shape[0], known.levels.empty
    here = "."
    if len(known.places) < size:
        here = f", of which the {len(known.places):,} {known.by} can be searched here."
    if empty:
        here += f" {empty:,} places are empty: {size + empty:,} is the number that is public."
    return f"{size:,} {'level' if size == 1 else 'levels'}{here}"


def _alike(rows: Array) -> NDArray[np.bool_]:
    """Which columns say the same of all levels, where there are several."""
    if len(rows) < 2:
        return np.zeros(rows.shape[1], np.bool_)
    same: NDArray[np.bool_] = np.ptp(rows, axis=0) <= _SAME * np.abs(rows).max(axis=0)
    return same


def _map(known: _Kept, at: str, columns: Array) -> Markup | None:
    """Levels in the plane in which their rows vary most; None where they do not span one."""
    levels, places = known.levels, known.places
    if len(places) < 3 or not columns.size:
        return None
    flat, share = _plane(levels, columns)
    if flat is None:
        return None
    far = np.square((flat - flat.mean(0)) / (flat.std(0) + 1e-300)).sum(1)
    size, searched = levels.rows.shape[0], set(places.tolist())
    named, tones = set(_named(flat, places, far)), _tones(levels)
    points = [
        Point(
            n if n in searched else None,
            float(flat[n, 0]),
            float(flat[n, 1]),
            tone=int(tones[n]),
            label=short(levels.label(n)) if n in named else None,
        )
        for n in sorted(named | _even(size))
    ]
    name = f"Map of {len(points):,} levels of {short(levels.mode)}: what lies close is alike"
    rows = [
        (label(levels.label(n)), *(f"{x:.3g}" for x in flat[n]))
        for n in sorted(named, key=lambda n: -far[n])
    ]
    told = f"Levels that lie close are alike to the model.{share}{_few(len(points), size)}"
    if levels.biases is not None and np.any(levels.biases):
        told += " Blue: predicted higher than usual; orange: lower; grey: about the mean."
    return tag(
        "figure",
        map_chart(name, points, "first direction", "second direction"),
        tag("figcaption", told),
        folded("Named levels as a table", table(["Level", "First", "Second"], rows, name)),
        class_="map",
        data_map=at,
    )


def _even(size: int) -> set[int]:
    """Levels at equal steps, so that a map that has no room for all shows where most of them lie."""
    return set(np.linspace(0, size - 1, min(size, _DOTS)).round().astype(int).tolist())


def _few(drawn: int, size: int) -> str:
    if drawn == size:
        return ""
    return (
        f" {drawn:,} of the {size:,} levels are drawn: an even sample, {_DOTS:,} at equal steps of the "
        "list, and those that are named."
    )


def _plane(levels: Levels, columns: Array) -> tuple[Array | None, str]:
    """Coordinates in two directions, and which share of what rows vary these have, in words."""
    rows = np.asarray(levels.rows[:, columns], np.float64)
    rows = rows - rows.mean(0)
    if columns.size == 1:
        if levels.biases is None or not np.ptp(levels.biases):
            return None, ""
        return np.stack(
            [rows[:, 0], levels.biases], axis=1
        ), " The one component across, the bias upwards."
    squares, turned = np.linalg.eigh(rows.T @ rows)
    if not squares[-1] > 0:
        return None, ""
    turned = turned.T[:-3:-1]
    turned = turned * np.sign(turned[np.arange(2), np.abs(turned).argmax(1)])[:, None]
    share = float(squares[-2:].sum() / squares.sum())
    return rows @ turned.T, f" The two directions have {100 * share:.0f}% of what rows vary."


def _named(flat: Array, places: Array, far: Array) -> Iterator[int]:
    """Levels whose names stand on the map: those furthest out, from all sides."""
    angles = np.arctan2(*(flat[places] - flat.mean(0)).T)
    sides = np.digitize(angles, np.linspace(-np.pi, np.pi, _NAMED + 1))
    for side in np.unique(sides):
        there = places[sides == side]
        furthest = int(there[far[there].argmax()])
        if far[furthest] > _FAR:
            yield furthest


def _tones(levels: Levels) -> NDArray[np.int64]:
    """Whether levels are predicted lower (-1) or higher (1) than usual, or about the mean."""
    if levels.biases is None:
        return np.zeros(levels.rows.shape[0], np.int64)
    away = np.asarray(levels.biases) - np.mean(levels.biases)
    return np.where(np.abs(away) > away.std() / 2, np.sign(away), 0).astype(np.int64)


def _components(levels: Levels, columns: Array) -> Markup:
    """Each component by the levels at its two ends, or where nothing is negative, at its only one."""
    signed = bool((levels.rows[:, columns] < 0).any())
    strength = np.square(levels.rows[:, columns]).sum(0)
    order = columns[np.argsort(-strength, kind="stable")][:_COMPONENTS]
    rows = []
    for place in order.tolist():
        column = levels.rows[:, place]
        by = np.argsort(-column, kind="stable")
        ends = [_names(levels, by, column, 1)]
        ends += [_names(levels, by[::-1], column, -1)] if signed else []
        rows.append((f"{place + 1}", *ends))
    more = "" if len(order) == columns.size else f"; the strongest {len(order)} of {columns.size}"
    caption = f"Components of {short(levels.mode)} by their largest levels{more}"
    if not signed:
        return table(["Component", "Largest levels"], rows, caption, words=2)
    aside = tag(
        "p",
        "The sign of a component means nothing: what counts is who stands at which end.",
        class_="aside",
    )
    return tag("div", table(["Component", "One end", "Other end"], rows, caption, words=3), aside)


def _same(levels: Levels, columns: Array) -> Markup:
    """Of components that do not tell the levels of this mode apart."""
    some, used = len(columns), int(np.any(levels.rows != 0, axis=0).sum())
    which = "All components" if some == used else f"{some} of {used} components"
    said = f"{which} are the same for all {len(levels.rows):,} levels of "
    return tag("p", said, label(levels.mode), ".", class_="aside")


def _names(levels: Levels, by: Array, column: Array, sign: int) -> Markup:
    there = [int(n) for n in by[:_ENDS] if sign * column[n] > 0]
    parts: list[object] = []
    for n in there:
        parts += [", " if parts else "", label(levels.label(n))]
    return tag("span", *parts) if parts else tag("span", "\u2013")


def _extremes(levels: Levels) -> Markup:
    """The levels with the largest and the smallest biases."""
    biases = np.asarray(levels.biases)
    order = np.argsort(-biases, kind="stable")
    number = min(_TOP, max(1, biases.size // 2))
    ends = [("Highest", order[:number]), ("Lowest", order[::-1][:number])]
    tables = [
        table(
            ["Level", "Against the mean"],
            [(label(levels.label(int(n))), f"{biases[n]:+.3g}") for n in there],
            f"{name} biases of {short(levels.mode)}",
        )
        for name, there in ends
    ]
    return tag("div", *tables, class_="pair")


# -- data -----------------------------------------------------------------------------------------


def _data(part: Part, known: Sequence[_Kept]) -> dict[str, Any]:
    predicts = part.mean is not None and len(known) == 2
    return {
        "mean": _number(part.mean) if predicts and part.mean is not None else None,
        "bounds": [_number(end) for end in part.bounds] if predicts and part.bounds else None,
        "modes": [_mode_data(each) for each in known],
    }


def _mode_data(known: _Kept) -> dict[str, Any]:
    levels, places = known.levels, known.places
    columns = np.flatnonzero(np.any(levels.rows != 0, axis=0))
    told: dict[str, Any] = {
        "name": short(levels.mode),
        "levels": places.tolist() if len(places) < levels.rows.shape[0] else None,
        "labels": [short(levels.label(int(n))) for n in places],
        "width": len(columns),
        "components": [int(place) + 1 for place in columns],
        "rows": [_number(x) for x in levels.rows[np.ix_(places, columns)].ravel().tolist()],
        "bias": None,
        "count": None,
    }
    if levels.biases is not None:
        told["bias"] = [_number(x) for x in np.asarray(levels.biases)[places].tolist()]
    if levels.counts is not None:
        told["count"] = [_number(x) for x in np.asarray(levels.counts)[places].tolist()]
    return told


def _number(value: float) -> float | int:
    """Three digits, and no more letters than these need."""
    short_one = float(f"{value:.3g}")
    return int(short_one) if short_one == int(short_one) else short_one


def data_block(data: Sequence[dict[str, Any]]) -> Markup:
    """Data for the page's script, which no label can end."""
    text = json.dumps(list(data), ensure_ascii=True, separators=(",", ":"), allow_nan=False)
    for letter in "<>&":
        text = text.replace(letter, f"\\u{ord(letter):04x}")
    return tag("script", Markup(text), type="application/json", id="levels")
