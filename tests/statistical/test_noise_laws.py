"""The laws of the noise, each against its distribution function.

Seeded samples are fixed, so that a test that passes goes on passing. Samples without a seed are new
each time: the false-alarm rate is 1e-9 a comparison. Each test also rejects 2/3 and 3/2 of the noise.
Both come from the same code: a seed sets the keys of the cipher and nothing else.
"""

from math import exp, inf

import numpy as np
import pytest
from on_grid import STEP, on_grid
from scipy import stats

from sfumato.kernels.discrete import MOST_SCALE, DiscreteLaw
from sfumato.kernels.grid import MOST_SUM
from sfumato.kernels.numba.discrete_noise import PIECE, draw
from sfumato.privacy.entropy import Entropy
from sfumato.privacy.mechanisms import (
    DiscreteGaussian,
    Gaussian,
    Geometric,
    Laplace,
    RandomisedResponse,
    VectorLaplace,
)
from sfumato.privacy.sampling import with_noise

FALSE_ALARMS = 1e-9
SIZES = {"seeded": 40_000, "unseeded": 40_000, "opendp": 4_000}
BOUND = 1.5
MULTIPLIER = 2.0

source = pytest.mark.parametrize("source", SIZES)


def entropy_of(source):
    sampler = "opendp" if source == "opendp" else "sfumato"
    return Entropy(11 if source == "seeded" else None, sampler)


def noise_of(mechanism, source, values):
    clipped = on_grid(values, BOUND, BOUND, STEP if values.dtype.kind == "f" else 1.0, single=True)
    return mechanism.release(clipped, entropy_of(source)).values - clipped.numbers


def accepts(sample, law):
    return stats.kstest(sample, law.cdf).pvalue > FALSE_ALARMS


def accepts_whole(sample, law):
    """Chi-square over the whole numbers that are expected at least fifty times, and the rest.

    The rest is put to the rarest of them: rare cells would raise the alarm too often.
    """
    n = np.arange(-200, 201)
    expected = law(n) / law(n).sum() * sample.size
    often = np.flatnonzero(expected >= 50)
    often = often[np.argsort(-expected[often])][:-1]
    observed = [(sample == value).sum() for value in n[often]]
    counts = np.append(observed, sample.size - sum(observed))
    target = np.append(expected[often], sample.size - expected[often].sum())
    return stats.chisquare(counts, target).pvalue > FALSE_ALARMS


@source
@pytest.mark.parametrize("factor", [2 / 3, 1, 3 / 2])
@pytest.mark.parametrize(
    ("kind", "law"),
    [(Laplace, stats.laplace), (Gaussian, stats.norm)],
    ids=["laplace", "gaussian"],
)
def test_noise_on_numbers(kind, law, source, factor):
    values = np.linspace(-1, 1, SIZES[source])
    noise = noise_of(kind(MULTIPLIER * factor), source, values)
    assert accepts(noise, law(scale=MULTIPLIER * BOUND)) == (factor == 1)


@source
@pytest.mark.parametrize("factor", [2 / 3, 1, 3 / 2])
@pytest.mark.parametrize(
    ("kind", "log_law"),
    [(Geometric, lambda n, s: -np.abs(n) / s), (DiscreteGaussian, lambda n, s: -((n / s) ** 2) / 2)],
    ids=["geometric", "discrete gaussian"],
)
@pytest.mark.parametrize("multiplier", [0.4, 2.0])
def test_noise_on_whole_numbers(kind, log_law, multiplier, source, factor):
    values = np.arange(SIZES[source]) % 10
    noise = noise_of(kind(multiplier * factor), source, values)
    scale = multiplier * BOUND
    assert accepts_whole(noise, lambda n: np.exp(log_law(n, scale))) == (factor == 1)


@source
@pytest.mark.parametrize("factor", [2 / 3, 1, 3 / 2])
@pytest.mark.parametrize("shape", [(1,), (3,), (2, 4)])
def test_vector_noise_has_gamma_length_and_any_direction(shape, source, factor):
    entropy, size = entropy_of(source), int(np.prod(shape))
    clipped = on_grid(np.ones(shape), inf, BOUND)
    mechanism = VectorLaplace(MULTIPLIER * factor)
    noise = np.array([mechanism.release(clipped, entropy).values.ravel() - 1 for _ in range(3000)])
    length = np.linalg.norm(noise, axis=1)
    assert accepts(length, stats.gamma(size, scale=MULTIPLIER * BOUND)) == (factor == 1)
    # A uniform direction's coordinate has a squared length of Beta(1/2, (d - 1)/2), and any sign.
    direction = noise / length[:, None]
    for column in direction.T:
        assert stats.binomtest(int((column > 0).sum()), column.size).pvalue > FALSE_ALARMS
        if size > 1:
            assert accepts(column**2, stats.beta(0.5, (size - 1) / 2))
    # Independent Laplace numbers, another mechanism, lean towards the axes.
    if size > 1:
        other = np.random.default_rng(0).laplace(size=(3000, size))
        other /= np.linalg.norm(other, axis=1, keepdims=True)
        assert not accepts(other[:, 0] ** 2, stats.beta(0.5, (size - 1) / 2))


@source
@pytest.mark.parametrize("factor", [2 / 3, 1, 3 / 2])
@pytest.mark.parametrize("categories", [2, 5])
def test_randomised_response(categories, source, factor):
    size, epsilon = 40_000, 1.2
    values = np.arange(size) % categories
    noise = noise_of(RandomisedResponse(epsilon / factor, categories), source, values)
    answers = values + noise.astype(int)
    weights = np.where(np.eye(categories, dtype=bool), exp(epsilon), 1.0)
    expected = weights / (weights.sum() * size**-1)
    observed = np.zeros((categories, categories))
    np.add.at(observed, (values, answers), 1)
    found = stats.chisquare(observed.ravel(), expected.ravel(), ddof=categories - 1).pvalue
    assert (found > FALSE_ALARMS) == (factor == 1)


@pytest.mark.parametrize("factor", [2 / 3, 1, 3 / 2])
def test_kernel_streams_are_standard_normal(factor):
    sample = Entropy().generator().standard_normal(20_000) * factor
    assert accepts(sample, stats.norm) == (factor == 1)


# -- the sampler itself ------------------------------------------------------------------------------

MANY = 400_000  # numbers of a seeded sample
LAWS = {
    "gaussian": (stats.norm, lambda n, s: np.exp(-((n / s) ** 2) / 2)),
    "geometric": (stats.laplace, lambda n, s: np.exp(-np.abs(n) / s)),
}
kinds = pytest.mark.parametrize("kind", LAWS)


def numbers(kind, scale, size=MANY, seed=3):
    return draw(DiscreteLaw(kind, scale), size, Entropy(seed).words(), 2)


@kinds
@pytest.mark.parametrize("factor", [2 / 3, 1, 3 / 2])
@pytest.mark.parametrize("scale", [0.3, 0.5, 1.0, 3.0, 7.9, 8.1, 20.0])
def test_small_scales_have_the_table_of_probabilities(kind, scale, factor):
    """From one number a strip to two, zeros and signs included."""
    sample = numbers(kind, scale * factor)
    assert accepts_whole(sample, lambda n: LAWS[kind][1](n, scale)) == (factor == 1)


@kinds
@pytest.mark.parametrize("factor", [2 / 3, 1, 3 / 2])
@pytest.mark.parametrize("scale", [2.0**12 * 1.1, 2.0**31 * 1.9, 2.0**45, 2.0**57])
def test_large_scales_have_the_continuous_law(kind, scale, factor):
    """Of 10^3 steps and more: a sample of this size cannot tell the grid."""
    sample = numbers(kind, scale * factor) / scale
    assert accepts(sample, LAWS[kind][0]) == (factor == 1)


@kinds
@pytest.mark.parametrize("scale", [100.3, 2.0**30 * 1.3, 2.0**45 * 1.01])
def test_last_digits_are_uniform(kind, scale):
    """What would show a place that is not uniform, or seams of strips."""
    sample = numbers(kind, scale)
    for modulus in (2, 3, 7, 16, 251) if scale > 1e6 else (2, 3, 7):
        counts = np.bincount(sample % modulus, minlength=modulus)
        assert stats.chisquare(counts).pvalue > FALSE_ALARMS


@kinds
def test_strips_do_not_show(kind):
    """Numbers by their place in a strip of the table: inside a strip weights fall as the law says."""
    law = DiscreteLaw(kind, 40.0)
    width = 1 << law.place_bits
    sample = np.abs(numbers(kind, 40.0))
    n = np.arange(2000)
    weights = LAWS[kind][1](n, 40.0) * np.where(n == 0, 1, 2)
    expected = np.bincount(n % width, weights, width) / weights.sum() * sample.size
    assert stats.chisquare(np.bincount(sample % width, minlength=width), expected).pvalue > FALSE_ALARMS


@kinds
@pytest.mark.parametrize("factor", [2 / 3, 1, 3 / 2])
def test_tails_are_as_heavy_as_they_should_be(kind, factor):
    """How many of four million numbers lie far out, where tens to thousands are expected."""
    law, size = LAWS[kind][0], 4_000_000
    sample = np.abs(numbers(kind, 2.0**30 * factor, size)) / 2.0**30
    reach = {"gaussian": (3.0, 4.0, 4.5), "geometric": (5.0, 8.0, 11.0)}[kind]
    for r in reach:
        beyond = stats.binomtest(int((sample > r).sum()), size, 2 * law.sf(r))
        assert (beyond.pvalue > FALSE_ALARMS) == (factor == 1)


@kinds
def test_signs_are_fair_and_neighbouring_numbers_independent(kind):
    sample = numbers(kind, 1e9).astype(float)
    assert stats.binomtest(int((sample > 0).sum()), sample.size).pvalue > FALSE_ALARMS
    for lag in (1, 2, PIECE):
        assert abs(np.corrcoef(sample[:-lag], sample[lag:])[0, 1]) < 6.2 / np.sqrt(sample.size)


@kinds
@pytest.mark.parametrize("scale", [0.7, 5.0, 12.0, 1000.5])
def test_opendp_draws_the_same_law(kind, scale):
    """An independent second opinion: two samples, in bins with at least fifty numbers of each."""
    law, size = DiscreteLaw(kind, scale), 20_000
    theirs = with_noise(np.zeros(size, np.int64), law, Entropy(sampler="opendp"))
    ours = with_noise(np.zeros(10 * size, np.int64), law, Entropy(8))
    edges = np.unique(np.quantile(ours, np.linspace(0, 1, 30)[1:-1]))
    counts = [
        np.bincount(np.searchsorted(edges, s, "right"), minlength=edges.size + 1) for s in (ours, theirs)
    ]
    often = np.min(counts, axis=0) >= 50
    counts = [np.append(c[often], c[~often].sum() + 1) for c in counts]
    assert stats.chi2_contingency(np.array(counts)).pvalue > FALSE_ALARMS


def test_sums_are_cut_off_where_whole_numbers_end():
    law, largest = DiscreteLaw("geometric", MOST_SCALE), np.full(2000, MOST_SUM)
    for sign in (1, -1):
        noisy = with_noise(sign * largest, law, Entropy(4))
        assert np.abs(noisy).max() == MOST_SUM
        assert (noisy == sign * MOST_SUM).mean() > 0.45  # noise that goes on outwards
        assert np.unique(noisy).size > 100
