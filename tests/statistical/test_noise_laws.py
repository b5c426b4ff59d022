"""The laws of the noise, each against its distribution function.

Seeded samples are fixed, so that a test that passes goes on passing. Samples without a seed are new
each time: the false-alarm rate is 1e-9 a comparison. Each test also rejects 2/3 and 3/2 of the noise.
"""

from math import exp, inf

import numpy as np
import pytest
from scipy import stats

from sfumato.privacy.clipping import Clipped
from sfumato.privacy.entropy import Entropy
from sfumato.privacy.mechanisms import (
    DiscreteGaussian,
    Gaussian,
    Geometric,
    IdealGaussian,
    Laplace,
    RandomisedResponse,
    VectorLaplace,
)

FALSE_ALARMS = 1e-9
SIZES = {"seeded": 40_000, "unseeded": 4_000}
BOUND = 1.5
MULTIPLIER = 2.0

source = pytest.mark.parametrize("source", SIZES)


def entropy_of(source):
    return Entropy(11 if source == "seeded" else None)


def noise_of(mechanism, source, values):
    clipped = Clipped(values, BOUND, BOUND, single=True)
    return mechanism.release(clipped, entropy_of(source)).values - values


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
    [(Laplace, stats.laplace), (Gaussian, stats.norm), (IdealGaussian, stats.norm)],
    ids=["laplace", "gaussian", "ideal"],
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
    clipped = Clipped(np.ones(shape), inf, BOUND)
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
    answers = values + noise_of(RandomisedResponse(epsilon / factor, categories), source, values)
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
