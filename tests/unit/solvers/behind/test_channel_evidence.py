"""Channels: their privacy as tables, their likelihood, and how one is chosen."""

from math import exp, pi, sqrt

import numpy as np
import pytest
from scipy.special import ndtr

from sfumato.data.channels import Additive, Response, law_of, which_cuts
from sfumato.solvers.behind.evidence import Frame, Located, PresenceEvidence, Range, TableEvidence
from sfumato.solvers.private.input.placing import (
    Setting,
    best_channel,
    efficiency,
    planned_categories,
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


def framed(channel, step=None, known=None):
    return Frame.within(BOUNDS, step, known, channel.resolution)


def largest_ratio(channel):
    matrix = channel.matrix
    return (matrix.max(axis=0) / matrix.min(axis=0)).max()


@pytest.mark.parametrize("channel", CHANNELS)
def test_each_clean_value_has_a_law(channel):
    np.testing.assert_allclose(channel.matrix.sum(axis=1), 1, rtol=1e-12)
    assert channel.matrix.shape[0] == channel.edges[0].size + 1
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
    bins = channel.bins(rng.normal(mean, s, 200_000), np.zeros(200_000))
    lie = rng.random(bins.size) > channel.matrix[0, 0]
    released = np.where(lie, (bins + rng.integers(1, channel.categories, bins.size)) % 12, bins)
    evidence = TableEvidence(channel, released, framed(channel))
    level = int(np.abs(evidence.deviations - s).argmin())
    s = float(evidence.deviations[level])
    terms = evidence.terms(level, np.full(bins.size, mean))
    assert terms.information[0] == pytest.approx(information(channel, mean, s), rel=1e-3)
    squares = terms.score**2
    # The nearest level is within a tenth of the truth, which moves the expectation by less than 0.2.
    assert squares.mean() == pytest.approx(terms.information[0], rel=0.2)


@pytest.mark.parametrize("channel", [*CHANNELS, Response((0.1,), 1.0, ((-0.3,), (0.4,)))])
@pytest.mark.parametrize("step", [None, 0.25])
def test_the_table_is_the_law_by_the_mean_of_clipped_values(channel, step):
    rng = np.random.default_rng(1)
    which = rng.integers(0, len(channel.edges), 200)
    if isinstance(channel, Response):
        released = outputs = rng.integers(0, channel.categories, 200)
    else:
        released = rng.normal(0, 1, 200)
        outputs = channel.outputs(released)
    evidence, level = TableEvidence(channel, released, framed(channel, step), which), 14
    deviation, latent = float(evidence.deviations[level]), rng.uniform(-1, 1, 200)
    means, slope, _ = Range.of(BOUNDS, step, None).moments(latent, deviation)
    terms, rows = evidence.terms(level, means), np.arange(200)
    laws = [law_of(channel, latent, deviation, number) for number in range(len(channel.edges))]
    probability = np.stack([law.probability for law in laws])[which, rows, outputs]
    by_mean = np.stack([law.by_mean for law in laws])[which, rows, outputs] / slope
    np.testing.assert_allclose(terms.log, np.log(probability), rtol=2e-4, atol=2e-3)
    np.testing.assert_allclose(terms.score, by_mean / probability, rtol=2e-3, atol=5e-2)
    far = evidence.terms(level, np.full(200, 50.0))
    assert all(np.isfinite(part).all() for part in far)
    assert far.information.min() > 0


@pytest.mark.parametrize(("step", "deviation"), [(None, 0.3), (None, 1.5), (0.5, 0.3), (2.0, 0.7)])
def test_moments_of_clipped_values_are_those_of_a_million_draws(step, deviation):
    """Within 5 standard errors: false alarms below one in a million for each of eight."""
    latent = np.array([-0.7, 1.2])
    mean, slope, variance = Range.of(BOUNDS, step, None).moments(latent, deviation)
    noise = deviation * np.random.default_rng(0).standard_normal(1_000_000)
    for at, expected, spread in zip(latent, mean, variance, strict=True):
        draws = np.clip(at + noise, *BOUNDS)
        if step is not None:
            draws = -1 + step * np.round((draws + 1) / step)
        assert abs(draws.mean() - expected) < 5 * sqrt(spread / draws.size)
        assert draws.var() == pytest.approx(spread, rel=0.02)
    ahead, behind = (
        Range.of(BOUNDS, step, None).moments(latent + h, deviation)[0] for h in (1e-5, -1e-5)
    )
    np.testing.assert_allclose(slope, (ahead - behind) / 2e-5, rtol=1e-6)


def test_a_spread_that_was_asked_for_settles_the_noise_level_of_two_bins():
    """A bit says nothing of a deviation: it has to make up what the means leave of the spread."""
    known, bit = Located(0.1, 0.3, 0.01, 0.02), Response((0.1,), 1.0)
    evidence = TableEvidence(bit, np.zeros(50, np.int64), framed(bit, None, known))
    means = 0.1 + 0.18 * np.array([-1.0, 1.0]).repeat(25)
    likely = [
        evidence.about_spread(level, means, np.zeros(50)) for level in range(len(evidence.deviations))
    ]
    best = float(evidence.deviations[int(np.argmax(likely))])
    assert best == pytest.approx(sqrt(0.3**2 - 0.18**2), rel=0.1)
    plain = TableEvidence(bit, np.zeros(50, np.int64), framed(bit))
    assert plain.about_spread(3, means, np.zeros(50)) == 0


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
    assert CHANNELS[0].bins(np.array([-2.0, -0.1, 0.0, 0.1, 2.0]), np.zeros(5)).tolist() == [
        0,
        1,
        1,
        2,
        2,
    ]


# -- choosing ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("law", ["response", "laplace", "gaussian"])
@pytest.mark.parametrize("noise", [0.1, 1.0, 10.0])
def test_the_choice_lies_within_the_bounds_and_is_repeatable(law, noise):
    setting = Setting((1.0, 5.0), noise)
    channel = best_channel(setting, (law,))
    assert channel == best_channel(Setting((1.0, 5.0), noise), (law,))
    assert channel.edges[0].min() >= 1
    assert channel.edges[0].max() <= 5
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


KNOWN = Located(0.4, 0.1, 0.001, 0.02)


@pytest.mark.parametrize(
    ("epsilon", "least", "most"), [(0.5, 2, 2), (1.0, 2, 2), (3.0, 3, 6), (10.0, 20, 128)]
)
def test_bins_are_planned_by_epsilon_alone(epsilon, least, most):
    planned = {planned_categories(Setting(bounds, 1 / epsilon)) for bounds in (BOUNDS, (0.0, 1e6))}
    assert len(planned) == 1
    assert least <= planned.pop() <= most
    assert planned_categories(Setting((1.0, 5.0), 1 / epsilon, step=1.0)) <= 5


@pytest.mark.parametrize("epsilon", [0.5, 2.0, 5.0])
def test_a_probe_moves_cuts_to_where_values_are(epsilon):
    setting = Setting(BOUNDS, 1 / epsilon, known=KNOWN)
    setting = setting._replace(categories=planned_categories(setting))
    channel = best_channel(setting, ("response",))
    assert channel.categories == setting.categories
    assert all(len(cuts) == setting.categories - 1 for cuts in channel.others)
    assert abs(np.mean([edges.mean() for edges in channel.edges]) - 0.4) < 0.05
    assert largest_ratio(channel) <= exp(epsilon) * (1 + ROUNDING)
    # Placed for the middle of the bounds they would tell a part of it.
    blind = best_channel(Setting(BOUNDS, 1 / epsilon), ("response", "laplace"))
    assert efficiency(channel, setting) > 1.1 * efficiency(blind, setting)


def test_the_choice_is_that_of_the_most_information():
    """Against every number of bins and both laws of noise on numbers, at the same epsilon."""
    for epsilon in (0.5, 1.0, 3.0, 10.0):
        setting = Setting(BOUNDS, 1 / epsilon, known=KNOWN)
        chosen = efficiency(best_channel(setting, ("response",)), setting)
        others = [setting._replace(categories=k) for k in (2, 3, 5, 16, 64)]
        others = [efficiency(best_channel(other, ("response",)), setting) for other in others]
        assert chosen > 0.99 * max(others)
        assert chosen >= 0.99 * efficiency(best_channel(setting, ("laplace",)), setting)


def test_planned_bins_of_spaced_values_are_all_there():
    for epsilon in (0.5, 3.0, 4.0, 10.0):
        setting = Setting((1.0, 5.0), 1 / epsilon, step=1.0, known=Located(4.7, 0.4, 0.01, 0.02))
        setting = setting._replace(categories=planned_categories(setting))
        channel = best_channel(setting, ("response",))
        for cuts in (channel.cuts, *channel.others):
            assert len(set(cuts)) == setting.categories - 1
            assert set(cuts) <= {1.5, 2.5, 3.5, 4.5}


def test_sets_of_cuts_are_spread_evenly_over_every_row():
    """Of 400 entries of a row, each of eight sets has an eighth, up to a fifth of that."""
    channel = Response((0.0,), 1.0, ((0.1,),) * 7)
    across = np.stack([np.full(400, 17), np.arange(400), np.full(400, 3)])
    for row in (across, across[::-1], across[[1, 0, 2]]):
        counts = np.bincount(which_cuts(channel, row), minlength=8)
        assert np.abs(counts - 50).max() <= 10
    assert not which_cuts(Response((0.0,), 1.0), across).any()


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
