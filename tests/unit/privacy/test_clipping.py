"""Clipped numbers: what they state has to be possible, and adds up only with its like."""

from fractions import Fraction
from math import inf

import numpy as np
import pytest

from sfumato.errors import SettingError
from sfumato.kernels.grid import MOST_SUM, cut, grid
from sfumato.privacy.clipping import (
    Clipped,
    NotFiniteError,
    clip_from_middle,
    clip_values,
    combine,
    rounded,
)


def sums(values=(1, 2), **stated):
    return Clipped(np.array(values), 1.0, 1.0, **{"step": 0.5, **stated})


@pytest.mark.parametrize("kind", [np.float64, np.float32, np.int32, np.uint64, bool])
def test_numbers_are_in_whole_steps(kind):
    with pytest.raises(SettingError, match="whole steps"):
        Clipped(np.ones(2, kind), 1.0, 1.0)
    assert sums((3, -1)).numbers.tolist() == [1.5, -0.5]


def test_sums_that_are_too_large_are_refused_before_they_overflow():
    for values in ([MOST_SUM, 1], [-MOST_SUM, 5]):
        assert sums(values).values.tolist() == values
    for values in ([MOST_SUM + 1], [0, -MOST_SUM - 1], [2**63 - 1], [-(2**63)]):
        with pytest.raises(SettingError, match="2\\^31 entries"):
            sums(values)
    half = sums([MOST_SUM // 2 + 1])
    with pytest.raises(SettingError, match="2\\^31 entries"):
        combine([half, half])
    with pytest.raises(SettingError, match="2\\^31 entries"):
        combine([sums([MOST_SUM])] * 9)


@pytest.mark.parametrize("step", [0.3, 3.0, -0.5, 0.0, inf, np.nan])
def test_the_step_of_a_grid_is_a_power_of_two(step):
    with pytest.raises(SettingError, match="power of two"):
        sums(step=step)


@pytest.mark.parametrize(
    "other",
    [
        sums((1, 2, 3)),
        sums(step=0.25),
        sums(single=True),
        sums(public=(np.ones(2),)),
        Clipped(np.ones(2, np.int64), 1.0, 2.0, step=0.5),
    ],
    ids=["size", "grid", "single", "public", "bound"],
)
def test_answers_to_different_questions_do_not_add_up(other):
    with pytest.raises(SettingError, match="do not add up"):
        combine([sums(), other])


def test_public_parts_of_different_sizes_are_not_broadcast():
    with pytest.raises(SettingError, match="do not add up"):
        combine([sums(public=(np.ones(1),)), sums(public=(np.ones(3),))])
    whole = combine([sums(public=(np.ones(3),)), sums(public=(np.arange(3.0),))])
    assert whole.public[0].tolist() == [1.0, 2.0, 3.0]
    assert whole.values.tolist() == [2, 4]


# -- values within bounds ----------------------------------------------------------------------------


def test_clipping_values_by_the_table():
    values = np.array([2.0, 7.0, -3.0, np.inf, -np.inf, np.nan])
    assert clip_values(values, 1, 5).tolist() == [2, 5, 1, 5, 1, 3]
    assert np.isnan(values[-1])  # the data are left as they were
    assert clip_values(np.array(7), 1, 5) == 5
    clipped = clip_from_middle(values, 1, 5)
    assert clipped.numbers.tolist() == [-1, 2, -2, 2, -2, 0]
    assert clipped.single
    assert clipped.l1 == clipped.l2 == 4


def test_single_precision_does_not_widen_the_bounds():
    clipped = clip_values(np.array([-9, 9], np.float32), -0.1, 0.7)
    assert clipped.dtype == np.float64
    assert clipped.tolist() == [-0.1, 0.7]


@pytest.mark.parametrize(("low", "high"), [(1, 1), (2, 1), (0, inf), (-inf, 0), (np.nan, 1)])
def test_values_need_bounds(low, high):
    with pytest.raises(SettingError, match="bounds"):
        clip_values(np.ones(2), low, high)


# -- numbers that are not on a grid ------------------------------------------------------------------


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_numbers_that_are_not_finite_are_never_released(value):
    for values in (np.array([value]), np.array([[0.0, 1.0], [value, 2.0]])):
        with pytest.raises(NotFiniteError, match="nothing was drawn"):
            rounded(values, 1.0)
    assert cut(np.array([value, 1.0]), 0.5).tolist() == [0, 2]
    assert np.isfinite(clip_values(np.array([value, 1.0]), -2.0, 3.0)).all()


@pytest.mark.parametrize("bound", [1e-30, 0.37, 1.0, 5e20])
@pytest.mark.parametrize("most", [0.0, 1e6, 1e13])
@pytest.mark.parametrize("shape", [(1,), (40,), (7, 5)])
def test_bounds_have_room_for_rounding_to_a_grid(bound, most, shape):
    """In fractions: rounding moves two neighbours apart by no more than the bounds have grown by."""
    rng = np.random.default_rng(3)
    values = rng.uniform(-1, 1, size=shape) * bound * max(most, 10)
    change = rng.normal(size=shape)
    change *= 0.99 * bound / np.linalg.norm(change)
    change = (values + change) - values  # what is left of it between numbers of this size
    one, two = (rounded(v, bound, rowwise=bound, most=most * bound) for v in (values, values + change))
    step = Fraction(one.step)
    for each, exactly in ((one, values), (two, values + change)):
        pairs = zip(each.values.flat, exactly.flat, strict=True)
        assert max(abs(int(whole) * step - Fraction(number)) for whole, number in pairs) <= step / 2
    moved = one.values - two.values
    assert np.linalg.norm(moved * one.step) <= np.linalg.norm(change) + (one.l2 - bound) * (1 + 1e-9)
    rows = np.linalg.norm(moved.reshape(-1, shape[-1]) * one.step, axis=1)
    grown = (one.rowwise - bound) * (1 + 1e-9)
    assert rows.sum() <= np.linalg.norm(change, axis=-1).sum() + grown
    assert bound < one.l2 <= bound * (1 + 2.0**-25 * max(1.0, most / 2**26))
    assert np.abs(one.values).max() < MOST_SUM
    assert one.l1 == inf


def test_numbers_beyond_what_a_sum_holds_are_cut_off():
    assert np.abs(rounded(np.array([1e300, -1e300, 1.0]), 1.0).values[:2]).tolist() == [MOST_SUM] * 2


def test_a_grid_is_as_fine_as_2_31_contributions_allow():
    for bound in (1e-9, 0.5, 0.999, 1.0, 3.7, 1e12):
        assert 2**29 <= bound / grid(bound) < 2**30
