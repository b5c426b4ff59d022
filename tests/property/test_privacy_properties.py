"""Neighbours, composition and calibration, on data and events drawn by hypothesis."""

from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sfumato.privacy.accounting import calibrate, covers, epsilon_of, rho_of
from sfumato.privacy.budgets import ZCDP, Budget, rounded_up
from sfumato.privacy.clipping import clip_from_middle, clip_values
from sfumato.privacy.events import (
    ApproximateEvent,
    Composed,
    GaussianEvent,
    LaplaceEvent,
    PureEvent,
    RepeatAndSelect,
    Repeated,
    SampledGaussianEvent,
    ZCDPEvent,
    event_from_json,
    event_to_json,
)

any_number = st.floats(width=64)  # NaN and infinities too
multipliers = st.floats(0.5, 50)
epsilons = st.floats(1e-3, 2)

cheap_events = st.one_of(
    st.builds(GaussianEvent, multipliers),
    st.builds(LaplaceEvent, multipliers),
    st.builds(PureEvent, epsilons),
    st.builds(ApproximateEvent, epsilons, st.floats(0, 1e-7)),
    st.builds(ZCDPEvent, st.floats(1e-4, 1)),
)
sampled_events = st.builds(
    SampledGaussianEvent, st.floats(0.8, 20), st.sampled_from([0.01, 0.1, 1.0]), st.booleans()
)
simple_events = st.one_of(cheap_events, sampled_events)
compositions = st.recursive(
    simple_events,
    lambda inner: st.one_of(
        st.builds(Repeated, inner, st.integers(0, 5)),
        st.builds(Composed, st.lists(inner, max_size=3).map(tuple)),
    ),
    max_leaves=4,
)
runs = st.one_of(st.builds(GaussianEvent, multipliers), st.builds(LaplaceEvent, multipliers))
selections = st.builds(
    RepeatAndSelect, st.lists(runs, min_size=1, max_size=2).map(tuple), st.floats(0.5, 20)
)


# -- clipping -------------------------------------------------------------------------------------


@given(
    st.sampled_from([np.float32, np.float64]),
    st.lists(any_number, min_size=1, max_size=8),
    any_number,
    st.tuples(st.floats(-1e6, 1e6), st.floats(-1e6, 1e6)).filter(lambda pair: pair[1] - pair[0] > 1e-9),
)
def test_a_value_never_moves_beyond_its_bounds(dtype, values, other, bounds):
    with np.errstate(over="ignore"):
        before = np.array(values).astype(dtype)
        after = before.copy()
        after[0] = other
    left, right = clip_from_middle(before, *bounds), clip_from_middle(after, *bounds)
    assert left.values[1:].tolist() == right.values[1:].tolist()
    moved = abs(int(left.values[0]) - int(right.values[0])) * Fraction(left.step)
    assert moved <= Fraction(left.l1)
    assert left.l1 == pytest.approx(bounds[1] - bounds[0])
    kept = clip_values(before, *bounds)
    assert bounds[0] <= kept.min() <= kept.max() <= bounds[1]


# -- composition ----------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(simple_events, st.integers(1, 60), st.integers(1, 60))
def test_more_rounds_never_lower_epsilon(event, fewer, extra):
    few = epsilon_of(Repeated(event, fewer), 1e-5)
    assert few <= epsilon_of(Repeated(event, fewer + extra), 1e-5)
    assert rho_of(Repeated(event, fewer)) <= rho_of(Repeated(event, fewer + extra))


@settings(max_examples=60, deadline=None)
@given(st.one_of(cheap_events, selections), st.one_of(cheap_events, selections), st.integers(1, 30))
def test_a_further_event_never_lowers_epsilon(first, second, times):
    # Between curves of different kinds or fineness: to within a part in 500.
    alone = epsilon_of(Repeated(first, times), 1e-5)
    assert alone <= epsilon_of(Composed((Repeated(first, times), second)), 1e-5) * 1.002


@settings(max_examples=60, deadline=None)
@given(st.lists(simple_events, min_size=1, max_size=4), st.randoms())
def test_order_and_nesting_do_not_matter(events, random):
    shuffled = random.sample(events, len(events))
    nested = Composed((Composed(tuple(shuffled[:1])), *shuffled[1:]))
    found = epsilon_of(Composed(tuple(events)), 1e-6)
    assert epsilon_of(nested, 1e-6) == pytest.approx(found, rel=1e-9)
    assert rho_of(nested) == pytest.approx(rho_of(Composed(tuple(events))))


@settings(max_examples=50, deadline=None)
@given(st.one_of(compositions, selections))
def test_events_survive_json(event):
    assert event_from_json(event_to_json(event)) == event


# -- budgets --------------------------------------------------------------------------------------


@settings(max_examples=40, deadline=None)
@given(
    st.floats(0.05, 10),
    st.sampled_from([1e-8, 1e-6, 1e-4]),
    st.integers(1, 300),
    st.sampled_from(
        [
            GaussianEvent,
            LaplaceEvent,
            lambda x: PureEvent(1 / x),
            lambda x: ZCDPEvent(1 / x**2),
            lambda x: SampledGaussianEvent(x, 0.05, False),
            lambda x: SampledGaussianEvent(x, 0.05, True),
            lambda x: Composed((GaussianEvent(3 * x), LaplaceEvent(5 * x))),
        ]
    ),
)
def test_calibrated_noise_is_within_the_budget(epsilon, delta, times, event_of):
    budget = Budget(epsilon, delta)
    noise = calibrate(lambda x: Repeated(event_of(x), times), budget)
    spent = epsilon_of(Repeated(event_of(noise), times), delta)
    assert 0.998 * epsilon < spent <= epsilon
    assert covers(budget, Repeated(event_of(noise), times))


@given(st.floats(1e-3, 100), st.floats(0, 0.5), st.lists(st.floats(0.01, 100), min_size=1, max_size=8))
def test_splits_add_up(epsilon, delta, shares):
    parts = Budget(epsilon, delta).split(*shares)
    assert sum(part.epsilon for part in parts) == pytest.approx(epsilon)
    assert sum(part.delta for part in parts) == pytest.approx(delta)
    assert covers(Budget(epsilon), Composed(tuple(PureEvent(part.epsilon) for part in parts)))
    rhos = ZCDP(epsilon).split(*shares)
    assert covers(ZCDP(epsilon), Composed(tuple(ZCDPEvent(part.rho) for part in rhos)))


@settings(deadline=None)
@given(st.floats(1e-300, 1e300), st.integers(1, 9))
def test_a_number_is_never_printed_as_less(number, digits):
    """And never by more than one in the last digit that is printed."""
    printed = rounded_up(number, digits)
    assert float(printed) >= number
    assert Decimal(printed) <= Decimal(number) * (1 + 10 * Decimal(10) ** -digits)
    assert len(Decimal(printed).normalize().as_tuple().digits) <= digits
    assert rounded_up(float(printed), digits) == printed
