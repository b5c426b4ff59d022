"""What an audit has written, as a page shows it. Whatever is wrong with it is an error."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sfumato.errors import DataError
from sfumato.report.page.contents import AuditRecord
from sfumato.typed import finite_number, fits, whole_number

_MOST_POINTS = 1_000
_WIDTH = 6  # numbers of a point of the curve


def audited(data: Any) -> AuditRecord:
    """The record of an audit from its JSON; earlier ones have no curve."""
    try:
        return _record(data)
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(f"not the record of an audit: {error}") from error


def _record(data: Mapping[str, Any]) -> AuditRecord:
    promise = data["promise"]
    words = [data["verdict"], promise["unit"], promise["neighbours"], promise["method"]]
    if not all(isinstance(word, str) for word in words) or not isinstance(data["violated"], bool):
        raise TypeError("it does not say what was found in words")
    runs, lines = _how(data)
    curve = data.get("curve")
    points, marked = ((), None) if curve is None else (_points(curve["points"]), _point(curve["bound"]))
    confidence = data["confidence"] if curve is None else curve["confidence"]
    return AuditRecord(
        verdict=words[0],
        violated=data["violated"],
        epsilon=finite_number(promise["epsilon"], "the epsilon that was promised"),
        delta=finite_number(promise["delta"], "the delta that was promised"),
        measured=finite_number(data["measured"], "what was measured"),
        confidence=finite_number(confidence, "the confidence"),
        lines=(f"Attacked: {words[3].rstrip('.')}. It protects {words[1]}; {words[2]}.", *lines),
        runs=runs,
        curve=points,
        marked=marked,
    )


def _how(data: Mapping[str, Any]) -> tuple[int, tuple[str, ...]]:
    """How many runs there were, and a line about them."""
    seeded = ("Noise came from a seed: the law of real noise, drawn by the same code.",)
    lines = seeded if data["seeded"] is True else ()
    if "canaries" in data:
        canaries = whole_number(data["canaries"], "the number of canaries", 1)
        return canaries, (f"One run with {canaries:,} canaries.", *lines)
    runs = whole_number(data["runs"], "the number of runs", 1)
    return runs, (f"{runs:,} runs for each canary; half of them chose attack and threshold.", *lines)


def _points(points: Any) -> tuple[tuple[float, ...], ...]:
    if not isinstance(points, list) or not 1 <= len(points) <= _MOST_POINTS:
        raise ValueError("its curve has no points, or too many")
    return tuple(_point(point) for point in points)


def _point(point: Any) -> tuple[float, ...]:
    if not fits(point, list[float]) or len(point) != _WIDTH or not all(0 <= rate <= 1 for rate in point):
        raise ValueError("a point of its curve is not made of rates")
    return tuple(map(float, point))
