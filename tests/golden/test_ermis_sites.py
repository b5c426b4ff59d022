"""A few points of paper E's tables over sites, on MovieLens 1M at fixed seeds: a change is seen.

Splits, sites, starts and noise come from seeds, so that only rounding can differ between machines. Other
splits and draws move these by 0.001 and more. The tolerance, 1e-4, lies between.
"""

import os
from pathlib import Path
from typing import NamedTuple

import pytest

from sfumato.papers.ermis_sharing import ALONE, ALONE_BIASES, EACH, POOLED, REFITTED, TABLES
from sfumato.papers.runner import Job
from sfumato.privacy.caveats import without_warnings

TOLERANCE = 1e-4

pytestmark = pytest.mark.skipif(
    not (Path(os.environ.get("SFUMATO_DATA", "")) / "ml-1m").is_dir(),
    reason="MovieLens 1M is not in the folder SFUMATO_DATA",
)


class Golden(NamedTuple):
    """Errors of a series at N sites, by score, on the first split (seed 0)."""

    table: str
    series: str
    data: tuple[tuple[str, object], ...]
    sites: int
    scores: dict[str, float]


USER = (("epsilon", 1.0), ("unit", "user"))
POINTS = [
    Golden("7.7", ALONE, (), 10, {"X1": 0.859445}),
    Golden("7.7", ALONE_BIASES, (), 10, {"X1": 0.913519}),
    Golden("7.3", POOLED, USER, 10, {"X1": 0.904454}),
    Golden("7.3", EACH, USER, 10, {"X1": 0.946944, f"X1{REFITTED}": 0.859546}),
    Golden("7.7", POOLED, USER, 1, {"X1": 0.910826}),
]


@pytest.mark.parametrize("golden", POINTS, ids=lambda g: f"{g.table}-{g.series}".replace(" ", "-"))
def test_points(golden):
    job = Job(golden.series, "", (golden.sites,), 0, golden.data)
    with without_warnings():
        found = {point.part: point.error for point in TABLES[golden.table].do_job(job)}
    assert found == pytest.approx(golden.scores, abs=TOLERANCE)


def test_what_the_points_say():
    """For 600 users at epsilon 1, each of them protected, sharing loses, and a refit takes it back."""
    by = {(g.table, g.series): g.scores for g in POINTS}
    alone, each = by["7.7", ALONE]["X1"], by["7.3", EACH]
    assert alone < by["7.3", POOLED]["X1"] < each["X1"]
    assert each[f"X1{REFITTED}"] < 1.005 * alone
