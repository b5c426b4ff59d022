"""A few points of paper A's experiments, at fixed seeds: a change that moves them is seen.

Data, starts and noise come from seeds, so that only rounding can differ between machines, by less than
the tolerance even where samples are in single precision. Other draws of noise or starts move every point
by a tenth of itself or more.
"""

from typing import NamedTuple

import pytest

from sfumato.papers import wang
from sfumato.papers.runner import Job

TOLERANCE = 1e-3


class Golden(NamedTuple):
    """Errors of the components in the first repetition (seed 100), at one place of the axis or none."""

    experiment: str
    series: str
    data: tuple[tuple[str, int], ...]
    at: float | None
    errors: tuple[float, ...]


POINTS = [
    Golden("noise", "aside", (("d", 100), ("k", 2)), 0.1, (0.0333565, 0.0333565)),
    Golden("noise", "gaussian", (("d", 30), ("k", 2)), 0.4, (0.123375, 0.112383)),
    Golden("stream", "reused", (("d", 25), ("k", 3)), 3000, (0.127043, 0.182186, 0.182407)),
    Golden("stream", "fresh", (("d", 25), ("k", 3)), 100_000, (0.115902, 0.0821965, 0.0965581)),
    Golden("private", "private", (("d", 25),), 3.0, (0.067052, 0.0472333, 0.0468868)),
    Golden("private", "paper", (("d", 25),), 100.0, (0.0442481, 0.0878666, 0.174861)),
    Golden("private", "input", (("d", 25),), 1.0, (0.0497786, 0.104863, 0.125058)),
    Golden("private", "random", (("d", 25),), None, (1.19564, 1.16104, 1.24978)),
    Golden(
        "topics",
        "not private",
        (("documents", 3000),),
        None,
        (0.0327181, 0.0403952, 0.0435895, 0.0329815, 0.0537074, 0.0493566),
    ),
    Golden(
        "topics",
        "private",
        (("documents", 20_000),),
        10.0,
        (0.027687, 0.0278512, 0.0448908, 0.0359658, 0.0641212, 0.0420022),
    ),
]


def errors(experiment, series, data, at, repetition=0):
    job = Job(series, "", () if at is None else (at,), repetition, data)
    return [point.error for point in wang.PAPER.quick[experiment].do_job(job)]


@pytest.mark.parametrize("golden", POINTS, ids=lambda golden: f"{golden.experiment}-{golden.series}")
def test_points(golden):
    found = errors(golden.experiment, golden.series, golden.data, golden.at)
    assert found == pytest.approx(golden.errors, rel=TOLERANCE)


def recovered(noise, size, d, runs=6):
    found = [errors("noise", noise, (("d", d), ("k", 2)), size, r) for r in range(runs)]
    return sum(max(each) < 0.5 for each in found)


def test_noise_that_touches_no_component_stops_the_method_in_high_dimensions():
    """Against theorem 2.2, by which the size that is borne would not depend on the dimension."""
    assert recovered("uncorrelated aside", 0.15, 25) == 6
    assert recovered("uncorrelated aside", 0.15, 6400) == 0
    assert recovered("spurious", 0.15, 6400) >= 5
