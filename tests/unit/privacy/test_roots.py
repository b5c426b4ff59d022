"""Brent's method, held against SciPy's to the last bit."""

from math import atan, exp

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import brentq

from sfumato.privacy.roots import crossing

FUNCTIONS = (
    lambda x: x,
    lambda x: x**3,
    lambda x: exp(min(x, 700.0)) - 1,
    lambda x: atan(50 * x) + 0.1 * x,
    lambda x: 1.0 if x > 0 else -1.0,
    lambda x: 0.0 if abs(x) < 1e-4 else x,  # flat where it is near enough
    lambda x: 1e-200 * x,
    lambda x: -x - x**5,
)


def evaluated(solve, function, *where):
    """The root, or that none was found, and the places that were looked at."""
    places = []

    def noted(x):
        places.append(x)
        return function(x)

    try:
        return solve(noted, *where), places
    except (RuntimeError, ArithmeticError):
        return None, places


@given(
    st.sampled_from(FUNCTIONS),
    st.floats(-100, 100),
    st.floats(1e-3, 10),
    st.floats(1e-3, 10),
    st.booleans(),
    st.sampled_from([1e-3, 1e-9, 1e-12]),
)
def test_roots_are_those_of_scipy(function, centre, left, right, turned, tolerance):
    ends = (centre - left, centre + right)[:: -1 if turned else 1]

    def moved(x):
        return function(x - centre)

    ours = evaluated(crossing, moved, *ends, tolerance)
    assert ours == evaluated(lambda f, a, b: brentq(f, a, b, xtol=tolerance), moved, *ends)


def test_equal_signs_are_refused():
    with pytest.raises(ValueError, match="same sign"):
        crossing(lambda x: x * x + 1, -1.0, 1.0, 1e-9)


def test_ends_may_be_roots():
    assert crossing(lambda x: x, 0.0, 1.0, 1e-9) == 0.0
    assert crossing(lambda x: x - 1, 0.0, 1.0, 1e-9) == 1.0
