"""Errors of recovered components: as points of an experiment, and gathered by run."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from sfumato.models.components import match_components
from sfumato.papers.picture import Band
from sfumato.papers.runner import Done, Point
from sfumato.types import Array

Data = tuple[tuple[str, Any], ...]
RECOVERED = 0.5  # distance of unit vectors (29 degrees) below which a component counts as recovered


def component_points(at: float | None, found: Array, truth: Array) -> list[Point]:
    """The distance of every true component from the found one that is matched with it."""
    errors = match_components(found, truth).errors
    return [Point(at, float(error), str(number)) for number, error in enumerate(errors, 1)]


class Runs(NamedTuple):
    """All runs of one series on one kind of data; ``errors`` by repetition, place and component."""

    at: tuple[float, ...]  # empty for a series that knows no axis
    errors: Array

    @property
    def worst(self) -> Array:
        """The largest error over components, by repetition and place."""
        largest: Array = self.errors.max(axis=2)
        return largest


def bands(at: Sequence[float], errors: Array) -> tuple[Band, ...]:
    """The median of runs (the first axis), between their quartiles."""
    low, median, high = np.quantile(errors, (0.25, 0.5, 0.75), axis=0)
    widths = zip(at, median, median - low, high - median, strict=True)
    return tuple(Band(*each) for each in widths)


def gathered(results: Sequence[Done]) -> dict[tuple[str, Data], Runs]:
    """Runs by series and data."""
    found = defaultdict[tuple[str, Data], list[Array]](list)
    places = {}
    for job, points, _ in results:
        key = (job.series, job.data)
        places[key] = job.at
        errors = np.array([point.error for point in points])
        found[key].append(errors.reshape(max(1, len(job.at)), -1))
    return {key: Runs(places[key], np.stack(runs)) for key, runs in found.items()}
