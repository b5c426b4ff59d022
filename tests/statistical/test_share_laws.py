"""The law of summed shares: that of the whole noise, no less and no more.

Seeded samples are fixed, so that a test that passes goes on passing; a comparison has a false-alarm rate
of 1e-9 before its seed was chosen, and each test also rejects 2/3 and 3/2 of the noise.
"""

from functools import reduce
from math import sqrt
from operator import add

import numpy as np
import pytest
from on_grid import on_grid
from scipy import stats

from sfumato.kernels.discrete import DiscreteLaw
from sfumato.kernels.grid import grid
from sfumato.privacy.entropy import Entropy
from sfumato.privacy.mechanisms import Gaussian, GaussianShare
from sfumato.privacy.sampling import noise
from sfumato.privacy.trust import Trust

FALSE_ALARMS = 1e-9
SIZE = 40_000
BOUND, MULTIPLIER = 1.5, 2.0
factors = pytest.mark.parametrize("factor", [2 / 3, 1, 3 / 2])


def summed(mechanism, number, seed=21):
    """Noise of so many sites, each with entropy of its own."""
    clipped = on_grid(np.linspace(-1, 1, SIZE), BOUND, BOUND, grid(BOUND))
    parts = [mechanism.share(clipped, Entropy(seed + site)) for site in range(number)]
    opened = reduce(add, parts).opened()
    return opened.values - number * clipped.numbers, opened.deviation


def accepts_variance(noise, deviation):
    """Two-sided, by the chi-square law of a normal sample's squares."""
    law = stats.chi2(noise.size)
    squares = np.sum((noise / deviation) ** 2)
    return 2 * min(law.cdf(squares), law.sf(squares)) > FALSE_ALARMS


@factors
@pytest.mark.parametrize("of", [1, 2, 5, 17])
def test_shares_together_are_the_whole_noise(of, factor):
    noise, deviation = summed(GaussianShare(MULTIPLIER * factor, of), of)
    whole = MULTIPLIER * BOUND
    assert deviation == pytest.approx(whole * factor)
    assert accepts_variance(noise, whole) == (factor == 1)
    assert (stats.kstest(noise / whole, stats.norm.cdf).pvalue > FALSE_ALARMS) == (factor == 1)


@pytest.mark.parametrize("number", [4, 6])
def test_one_share_too_few_or_too_many_shows(number):
    noise, deviation = summed(GaussianShare(MULTIPLIER, 5), number)
    assert not accepts_variance(noise, MULTIPLIER * BOUND)
    assert accepts_variance(noise, deviation)  # and this is what is said of it


def test_a_noise_a_third_smaller_in_variance_shows():
    noise, _ = summed(GaussianShare(MULTIPLIER * sqrt(2 / 3), 5), 5)
    assert not accepts_variance(noise, MULTIPLIER * BOUND)


@pytest.mark.parametrize("lost", [0, 1])
@pytest.mark.parametrize("of_unit", [1, 3])
def test_what_is_left_of_the_noise_is_never_less_than_planned(lost, of_unit):
    """Six sites, two tolerated: one lost, and one that takes its own share off."""
    trust, plan = Trust("secure shares", 6, 2, of_unit), Gaussian(MULTIPLIER)
    noise, _ = summed(trust.share_of(plan), trust.sites - lost)
    assert accepts_variance(noise, trust.total_deviation(plan, BOUND, trust.sites - lost))
    unknown, _ = summed(trust.share_of(plan), trust.sites - lost - 1)
    least = of_unit * MULTIPLIER * BOUND
    law = stats.chi2(SIZE)
    assert law.cdf(np.sum((unknown / least) ** 2)) > FALSE_ALARMS
    if lost:
        assert accepts_variance(unknown, least)


@pytest.mark.parametrize("of_unit", [1, 4])
def test_full_noise_at_each_site_adds_up_by_squares(of_unit):
    trust, plan = Trust("each site", 9, sites_of_unit=of_unit), Gaussian(MULTIPLIER)
    clipped = on_grid(np.zeros(SIZE), BOUND, BOUND, grid(BOUND))
    parts = [trust.share_of(plan).release(clipped, Entropy(50 + site)) for site in range(trust.sites)]
    noise = sum(part.values for part in parts)
    assert trust.total_deviation(plan, BOUND) == pytest.approx(3 * sqrt(of_unit) * MULTIPLIER * BOUND)
    assert accepts_variance(noise, trust.total_deviation(plan, BOUND))
    assert all(accepts_variance(part.values, part.deviation) for part in parts)
    both = np.corrcoef(parts[0].values, parts[1].values)[0, 1]
    assert abs(both) < 6.2 / sqrt(SIZE)  # of their own


@factors
@pytest.mark.parametrize(("scale", "number"), [(0.5, 3), (0.6, 2), (1.0, 4), (8.0, 3)])
def test_small_sums_have_the_convolution_of_their_laws(scale, number, factor):
    """Chi-square over numbers that are expected fifty times; at scale 1/2 no Gaussian would do."""
    size, n = 400_000, np.arange(-300, 301)
    law = np.exp(-((n / scale) ** 2) / 2)
    exact = reduce(lambda a, b: np.convolve(a, b, "same"), [law / law.sum()] * number)
    drawn = DiscreteLaw("gaussian", scale * factor)
    sample = sum(noise(drawn, size, Entropy(70 + share)) for share in range(number))
    assert _accepts(sample, n, exact) == (factor == 1)
    if scale == 0.5 and factor == 1:
        single = np.exp(-(n**2) / (2 * number * scale**2))
        assert not _accepts(sample, n, single / single.sum())


def _accepts(sample, n, law):
    often = np.flatnonzero(law * sample.size >= 50)[1:]  # the rest is put together with one of them
    observed = np.array([(sample == value).sum() for value in n[often]])
    counts = np.append(observed, sample.size - observed.sum())
    expected = np.append(law[often], 1 - law[often].sum()) * sample.size
    return stats.chisquare(counts, expected).pvalue > FALSE_ALARMS
