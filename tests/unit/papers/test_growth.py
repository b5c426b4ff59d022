"""Where curves pass a level, and slopes between logarithms."""

from math import inf, isnan, log, sqrt

import numpy as np
import pytest

from sfumato.papers.growth import bootstrapped, crossing, slope_of


def test_a_crossing_lies_between_places_by_their_logarithms():
    assert crossing((1.0, 100.0), (1.0, 0.0), 0.5) == pytest.approx(10.0)
    assert crossing((1.0, 10.0, 100.0), (1.0, 0.9, 0.1), 0.5) == pytest.approx(10 * sqrt(10))
    assert crossing((1.0, 10.0, 100.0, 1000.0), (1.0, 0.25, 0.75, 0.0), 0.5) < 10  # the first one
    assert crossing((100.0, 1.0), (0.0, 1.0), 0.5) == pytest.approx(10.0)  # from the other end


def test_a_curve_that_stays_on_its_side_has_none():
    assert crossing((1.0, 10.0), (0.9, 0.8), 0.5) == inf
    assert crossing((1.0, 10.0), (0.1, 0.2), 0.5) == inf


def test_slopes_are_powers_and_leave_out_what_is_not_there():
    assert slope_of((1, 10, 100), (3.0, 0.3, 0.03)) == pytest.approx(-1.0)
    assert slope_of((1, 10, 100), (3.0, inf, 0.03)) == pytest.approx(-1.0)
    assert isnan(slope_of((1, 10), (3.0, inf)))


def test_drawing_repetitions_anew_covers_the_slope():
    """y = x with 10% of noise on 40 runs: the spread of the slope follows from that."""
    generator = np.random.default_rng(0)
    x = (1, 10, 100)
    runs = [size * (1 + 0.1 * generator.standard_normal(40)) for size in x]
    thresholds, (slope, low, high) = bootstrapped(x, runs, lambda of: float(np.mean(of)))
    assert thresholds == [of.mean() for of in runs]
    deviation = 0.1 / sqrt(40) * sqrt(2) / log(100)  # of the slope between the two ends
    assert low < slope < high
    assert low < 1 < high
    assert high - low == pytest.approx(2 * 1.645 * deviation, rel=0.3)
