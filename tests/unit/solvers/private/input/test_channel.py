"""Channels: their privacy as tables, their likelihood, and how one is chosen."""

from math import exp, pi, sqrt

import numpy as np
import pytest
from scipy.special import ndtr

from sfumato.solvers.private.input.channel import (
    Additive,
    PresenceEvidence,
    Response,
    Setting,
    TableEvidence,
    best_channel,
    efficiency,
    law_of,
)

BOUNDS = (-1.0, 1.0)
ROUNDING = 1e-6  # tails are differences of distribution functions
CHANNELS = [
    Response((-0.1, 0.1), 2.0),
    Response(tuple(np.linspace(-0.8, 0.8, 11).tolist()), 5.0),
    Additive(-0.3, 0.3, "laplace", 0.3),
    Additive(-1.0, 1.0, "laplace", 0.05),
    Additive(-0.3, 0.3, "gaussian", 0.4),
    Additive(-0.3, 0.3, "laplace", 0.3, clamp=(-0.5, 0.6)),
]


def largest_ratio(channel):
    matrix = channel.matrix
    return (matrix.max(axis=0) / matrix.min(axis=0)).max()


@pytest.mark.parametrize("channel", CHANNELS)
def test_each_clean_value_has_a_law(channel):
    np.testing.assert_allclose(channel.matrix.sum(axis=1), 1, rtol=1e-12)
    assert channel.matrix.shape[0] == channel.edges.size + 1
    assert channel.matrix.min() >= 0


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 4.0, 10.0])
@pytest.mark.parametrize("law", ["response", "laplace"])
def test_replacing_a_value_changes_no_probability_by_more_than_the_factor(law, epsilon):
    channel = best_channel(Setting(BOUNDS, 1 / epsilon), (law,))
    assert largest_ratio(channel) <= exp(epsilon) * (1 + ROUNDING)
    assert largest_ratio(channel) >= exp(0.95 * epsilon)  # and the budget is used
    for factor in (2 / 3, 3 / 2):
        other = best_channel(Setting(BOUNDS, factor / epsilon), (law,))
        within = largest_ratio(other) <= exp(epsilon) * (1 + ROUNDING)
        assert within == (factor > 1)


def test_all_values_of_a_unit_together_stay_within_the_factor():
    channel = best_channel(Setting(BOUNDS, 1 / 2.0, values=4), ("laplace",))
    assert largest_ratio(channel) ** 4 <= exp(2.0) * (1 + ROUNDING)


@pytest.mark.parametrize("channel", CHANNELS)
@pytest.mark.parametrize("deviation", [0.05, 0.4])
def test_derivatives_are_those_of_the_probabilities(channel, deviation):
    means, h = np.linspace(-1.1, 1.1, 7), 1e-5
    law = law_of(channel, means, deviation)
    by_mean = [law_of(channel, means + move, deviation).probability for move in (h, -h)]
    np.testing.assert_allclose(law.by_mean, (by_mean[0] - by_mean[1]) / (2 * h), atol=1e-6)
    by_level = [law_of(channel, means, deviation * exp(move)).probability for move in (h, -h)]
    np.testing.assert_allclose(law.by_log_deviation, (by_level[0] - by_level[1]) / (2 * h), atol=1e-6)


def information(channel, mean, deviation):
    law = law_of(channel, np.array([mean]), deviation)
    return float((law.by_mean**2 / np.maximum(law.probability, 1e-30)).sum())


def test_information_of_one_bit_and_of_normal_noise():
    bit = Response((0.0,), 3.0)
    truth, s = exp(3) / (1 + exp(3)), 0.2
    expected = ((2 * truth - 1) / (s * sqrt(2 * pi))) ** 2 / 0.25
    assert information(bit, 0.0, s) == pytest.approx(expected, rel=1e-12)
    wide = Additive(-4.0, 4.0, "gaussian", 0.3)
    assert information(wide, 0.1, 0.4) == pytest.approx(1 / (0.3**2 + 0.4**2), rel=5e-3)


def test_information_is_the_expected_squared_score():
    """Mean of 200,000 squared scores of a simulated channel, within 5 of its standard errors."""
    channel, mean, s = CHANNELS[1], 0.13, 0.2
    rng = np.random.default_rng(0)
    bins = channel.bins(rng.normal(mean, s, 200_000))
    lie = rng.random(bins.size) > channel.matrix[0, 0]
    released = np.where(lie, (bins + rng.integers(1, channel.categories, bins.size)) % 12, bins)
    evidence = TableEvidence(channel, released, BOUNDS)
    level = int(np.abs(evidence.deviations - s).argmin())
    s = float(evidence.deviations[level])
    terms = evidence.terms(level, np.full(bins.size, mean))
    assert terms.information[0] == pytest.approx(information(channel, mean, s), rel=1e-3)
    squares = terms.score**2
    # The nearest level is within a tenth of the truth, which moves the expectation by less than 0.2.
    assert squares.mean() == pytest.approx(terms.information[0], rel=0.2)


@pytest.mark.parametrize("channel", CHANNELS)
def test_the_table_is_the_law(channel):
    rng = np.random.default_rng(1)
    if isinstance(channel, Response):
        released = rng.integers(0, channel.categories, 200)
        outputs = released
    else:
        released = rng.normal(0, 1, 200)
        outputs = channel.outputs(released)
    evidence = TableEvidence(channel, released, BOUNDS)
    means = rng.uniform(-1, 1, 200)
    level = 14
    law = law_of(channel, means, float(evidence.deviations[level]))
    terms, rows = evidence.terms(level, means), np.arange(200)
    expected = law.probability[rows, outputs]
    np.testing.assert_allclose(terms.log, np.log(expected), atol=2e-3)
    np.testing.assert_allclose(terms.score, law.by_mean[rows, outputs] / expected, atol=5e-2)
    far = evidence.terms(level, np.full(200, 50.0))
    assert all(np.isfinite(part).all() for part in far)
    assert far.information.min() > 0


def test_clamped_values_are_outputs_of_their_own():
    channel = CHANNELS[5]
    outputs = channel.outputs(np.array([-9.0, -0.5, -0.49, 0.59, 0.6, 7.0]))
    last = channel.matrix.shape[1] - 1
    assert outputs[:2].tolist() == [0, 0]
    assert outputs[-2:].tolist() == [last, last]
    assert 0 < outputs[2] < outputs[3] < last
    below = 0.5 * exp(-(0.5 - 0.3) / 0.3)  # of a clean value at the lower end
    assert channel.matrix[0, 0] == pytest.approx(below)


def test_bins_of_clean_values():
    assert CHANNELS[0].bins(np.array([-2.0, -0.1, 0.0, 0.1, 2.0])).tolist() == [0, 1, 1, 2, 2]


# -- choosing ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("law", ["response", "laplace", "gaussian"])
@pytest.mark.parametrize("noise", [0.1, 1.0, 10.0])
def test_the_choice_lies_within_the_bounds_and_is_repeatable(law, noise):
    setting = Setting((1.0, 5.0), noise)
    channel = best_channel(setting, (law,))
    assert channel == best_channel(Setting((1.0, 5.0), noise), (law,))
    assert channel.edges.min() >= 1
    assert channel.edges.max() <= 5
    assert 0 < efficiency(channel, setting) < 1


def test_more_budget_more_bins_and_more_information():
    settings = [Setting(BOUNDS, 1 / epsilon) for epsilon in (0.5, 2.0, 5.0, 10.0)]
    chosen = [best_channel(setting, ("response", "laplace")) for setting in settings]
    bins = [channel.categories for channel in chosen]
    assert bins == sorted(bins)
    assert bins[0] == 3
    assert bins[-1] > 20
    worth = [efficiency(*each) for each in zip(chosen, settings, strict=True)]
    assert worth == sorted(worth)


def test_a_public_spread_moves_the_range():
    narrow, wide = (best_channel(Setting(BOUNDS, 0.2, spread), ("laplace",)) for spread in (0.05, 0.4))
    assert narrow.high < 0.5 * wide.high


def test_cuts_lie_half_way_between_values_with_a_spacing():
    for epsilon in (0.5, 3.0, 10.0):
        channel = best_channel(Setting((1.0, 5.0), 1 / epsilon, step=1.0), ("response",))
        assert set(channel.cuts) <= {1.5, 2.5, 3.5, 4.5}
    assert best_channel(Setting((0.0, 1.0), 1.0, step=1.0), ("response",)).cuts == (0.5,)


def test_hugely_different_scales_do_not_overflow():
    for noise in (1e-4, 1e4):
        setting = Setting((-1e6, 1e6), noise)
        assert np.isfinite(efficiency(best_channel(setting, ("response", "laplace")), setting))


# -- hidden positions -------------------------------------------------------------------------------


def test_presence_is_what_the_masks_say():
    mask, value = np.array([0.0, 1.0, 0.0, 1.0]), np.array([0.0, 0.4, 0.0, -0.2])
    sharp = PresenceEvidence(mask, value, "laplace", (0.02, 0.01), BOUNDS, None)
    terms = sharp.terms(10, np.zeros(4))
    s = float(sharp.deviations[10])
    expected = 1 / (s**2 + 2 * 0.01**2)
    np.testing.assert_allclose(terms.information, [0, expected, 0, expected], atol=1e-6 * expected)
    np.testing.assert_allclose(terms.score, value * expected, rtol=1e-6, atol=1e-6)


def test_presence_falls_back_to_the_density():
    mask = np.random.default_rng(0).normal(0.25, 100.0, 1000)
    blunt = PresenceEvidence(mask, np.zeros(1000), "gaussian", (100.0, 50.0), BOUNDS, 250)
    terms = blunt.terms(10, np.zeros(1000))
    np.testing.assert_allclose(terms.information, 0.25**2 / 50.0**2, rtol=0.1)


def test_normal_tail_of_the_outer_cells():
    law = law_of(CHANNELS[0], np.array([0.3]), 0.2)
    inside = np.array([ndtr(-2.0), ndtr(-1.0) - ndtr(-2.0), 1 - ndtr(-1.0)])
    np.testing.assert_allclose(law.probability[0], inside @ CHANNELS[0].matrix, rtol=1e-12)
