"""Channels as tables, and entries with what their values have passed."""

from math import exp

import numpy as np
import pytest

import sfumato as sf
from sfumato.data.channels import Additive, Geometric, Response, probabilities
from sfumato.data.privatised import CLEAN, Passed, Privatised, together
from sfumato.errors import DataError, SettingError


@pytest.mark.parametrize(("high", "step", "scale"), [(5.0, 1.0, 2.0), (3.0, 0.5, 0.7), (40.0, 1.0, 9.0)])
def test_geometric_noise_is_a_table_whose_ends_hold_all_that_lies_beyond(high, step, scale):
    channel = Geometric(1.0, high, step, scale)
    np.testing.assert_allclose(channel.matrix.sum(axis=1), 1, rtol=1e-12)
    levels, n = np.arange(1.0, high + step / 2, step), np.arange(-4000, 4001)
    law = channel.ratio ** np.abs(n) * (1 - channel.ratio) / (1 + channel.ratio)
    for row, level in zip(channel.matrix, levels, strict=True):
        noisy = np.clip(level + step * n, 1.0, high)
        expected = [law[np.abs(noisy - z) < step / 3].sum() for z in levels]
        np.testing.assert_allclose(row, expected, rtol=1e-9, atol=1e-15)


def test_values_beyond_the_range_have_the_odds_of_its_ends():
    """Cutting noisy values to the range loses nothing."""
    channel = Geometric(0.0, 4.0, 1.0, 1.5)
    far = channel.outputs(np.array([-7.0, 0.0, 4.0, 30.0]))
    assert far.tolist() == [0, 0, 4, 4]


def test_counts_without_an_upper_bound_get_room_for_what_was_released():
    channel = Geometric(0.0, None, 1.0, 3.0).within(np.array([-5.0, 12.0]))
    assert channel.high is not None
    assert channel.high >= 12 + 20
    bounded = Geometric(0.0, 9.0, 1.0, 3.0)
    assert bounded.within(np.array([50.0])) is bounded


def test_probabilities_are_those_of_clipped_values():
    channel = Response((1.5, 2.5), 1.0)
    table = probabilities(channel, np.array([-3.0, 1.0, 2.0, 9.0]))
    np.testing.assert_array_equal(table[0], table[1])
    np.testing.assert_array_equal(table[3], channel.matrix[2])


def of(labels, values, passed=None):
    users, items = (np.array([pair[mode] for pair in labels], object) for mode in (0, 1))
    table = {"user": users, "item": items, "value": np.array(values, float)}
    import pandas as pd

    tensor = sf.read(pd.DataFrame(table), modes=["user", "item"], value="value")
    return tensor if passed is None else Privatised(tensor, (passed,))


FIRST = Passed(Response((1.5, 2.5), 1.0), (1.0, 3.0), 1.0, (1.0, 2.0, 3.0))
SECOND = Passed(Geometric(1.0, 3.0, 1.0, 2.0), (1.0, 3.0), 1.0)


def test_entries_of_several_owners_keep_their_values_and_channels():
    """Users of one owner are not those of the other, and lie between them in the new order."""
    one = of([("b", "x"), ("d", "y")], [1, 3], FIRST)
    other = of([("a", "y"), ("c", "x"), ("c", "z")], [7, -2, 1], SECOND)
    raw = of([("e", "x"), ("a", "x")], [2, 3])
    whole = together(one, other, raw)
    users, items = (mode.labels for mode in whole.modes)
    found = {
        (users[u], items[i]): (value, which)
        for u, i, value, which in zip(
            *whole.tensor.coordinates, whole.tensor.values, whole.numbers, strict=True
        )
    }
    assert found == {
        ("b", "x"): (1, 0),
        ("d", "y"): (3, 0),
        ("a", "y"): (7, 1),
        ("c", "x"): (-2, 1),
        ("c", "z"): (1, 1),
        ("e", "x"): (2, CLEAN),
        ("a", "x"): (3, CLEAN),
    }
    assert whole.has_clean
    assert whole.tensor.coordinates.flags.c_contiguous
    order = np.lexsort(whole.tensor.coordinates[::-1])
    np.testing.assert_array_equal(order, np.arange(7))
    kept = whole.take(whole.numbers == 1)
    assert kept.n_entries == 3
    assert {passed for passed, _ in kept.parts()} == {SECOND}


def test_bounds_and_step_are_those_of_all_parts():
    one = of([("b", "x"), ("d", "y")], [1, 3], FIRST)
    raw = of([("e", "x"), ("a", "x")], [0, 9])
    assert one.bounds == (1.0, 3.0)
    assert together(one, raw).bounds == (0.0, 9.0)
    assert together(one, raw).step == 1.0


def test_what_does_not_go_together_is_refused():
    one = of([("b", "x"), ("d", "y")], [1, 3], FIRST)
    raw = of([("e", "x"), ("a", "x")], [2, 3])
    with pytest.raises(SettingError, match="none of these is privatised"):
        together(raw, raw)
    with pytest.raises(SettingError, match="give tensors"):
        together(one, "noisy.csv")
    other = sf.SparseTensor(np.zeros((2, 1), int), np.ones(1), (sf.Mode("a", 2), sf.Mode("b", 2)))
    with pytest.raises(DataError, match="same modes"):
        together(one, other)
    with pytest.raises(DataError, match="as many channels"):
        Privatised(one.tensor, one.passed, np.zeros(9, np.int16))


def test_a_number_that_is_no_answer_is_found():
    with pytest.raises(DataError, match=r"2\.4 is none of the answers"):
        FIRST.released(np.array([1.0, 2.4]))
    np.testing.assert_array_equal(FIRST.written(FIRST.released(np.array([3.0, 1.0]))), [3.0, 1.0])
    noise = Passed(Additive(1.0, 3.0, "gaussian", 2.0), (1.0, 3.0), 1.0)
    np.testing.assert_allclose(noise.written(noise.released(np.array([3.7, -1.0]))), [3.7, -1.0])


def test_channels_say_what_they_do():
    assert "truth with probability" in FIRST.in_words
    assert f"{np.sqrt(2 * exp(-0.5)) / (1 - exp(-0.5)):.3g}" in SECOND.in_words
