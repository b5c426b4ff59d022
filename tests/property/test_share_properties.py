"""What proofs/shares.md says of sums of discrete Gaussians, against convolutions that are computed.

All terms are positive, so that doubles keep each probability to one part in 1e13.
"""

from functools import reduce
from math import exp, log, pi, sqrt

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sfumato.privacy import mechanisms
from sfumato.privacy.clipping import Clipped
from sfumato.privacy.curves import gaussian_delta
from sfumato.privacy.entropy import Entropy
from sfumato.privacy.mechanisms import GaussianShare

ROUNDING = 1e-11
REACH = 400  # whole numbers on each side


def weights(scale):
    n = np.arange(-REACH, REACH + 1)
    law = np.exp(-((n / scale) ** 2) / 2)
    return law / law.sum()


def log_ratios(scales):
    """Of the sum of discrete Gaussians over one of the same variance, where doubles have digits."""
    convolved = reduce(lambda a, b: np.convolve(a, b, "same"), map(weights, scales))
    single = weights(sqrt(sum(scale**2 for scale in scales)))
    seen = single > 1e-200
    return np.log(convolved[seen] / single[seen])


def tau(scales, constant=7.0):
    return constant * (len(scales) - 1) * exp(-(pi**2) * min(scales) ** 2)


shares = st.lists(st.floats(1.0, 3.0), min_size=2, max_size=8)


@given(shares)
@settings(max_examples=60, deadline=None)
def test_sums_are_as_near_to_one_gaussian_as_is_proven(scales):
    assert np.abs(log_ratios(scales)).max() <= tau(scales) + ROUNDING


@given(st.floats(1.0, 2.0), st.integers(2, 8))
@settings(max_examples=60, deadline=None)
def test_equal_shares_are_nearer_still(scale, number):
    terms = [exp(-2 * pi**2 * scale**2 * j / (j + 1)) for j in range(1, number)]
    assert np.abs(log_ratios([scale] * number)).max() <= 7 * sum(terms) + ROUNDING


@given(st.floats(0.75, 2.0), st.floats(0.75, 2.0))
@settings(max_examples=60, deadline=None)
def test_two_of_them_by_the_lemma(a, b):
    q = 3 * exp(-2 * pi**2 * a**2 * b**2 / (a**2 + b**2))
    assert np.abs(log_ratios([a, b])).max() <= log((1 + q) / (1 - q)) + ROUNDING


@pytest.mark.parametrize("scale", [1.0, 1.2])
def test_the_bound_is_not_idle(scale):
    """With one in place of seven it would be false: what is compared can tell."""
    assert np.abs(log_ratios([scale] * 2)).max() > tau([scale] * 2, 1.0) + ROUNDING


@pytest.mark.parametrize(
    ("bound", "multiplier", "of"), [(1, 14.0, 3), (3, 5.5, 4), (20, 1.0, 5), (11, 3, 1)]
)
def test_summed_shares_cost_what_is_charged(bound, multiplier, of, monkeypatch):
    """The whole curve of delta, of the scales that are really drawn: on the coarsest grid there can be.

    Without the four steps more that the sum has, the grid shows beside the Gaussian.
    """
    laws = []
    monkeypatch.setattr(mechanisms, "noise", lambda law, *_: laws.append(law) or np.zeros(1, np.int64))
    share = GaussianShare(multiplier, of)
    share.share(Clipped(np.zeros(1, np.int64), bound, bound), Entropy(0))
    (law,) = laws
    assert law.scale >= mechanisms._LEAST_SHARE
    assert most_beyond(law.scale, of, bound, share.event.noise_multiplier) <= 1e-13
    assert most_beyond(multiplier * bound / sqrt(of), of, bound, multiplier) > 1e-6


def most_beyond(scale, of, bound, multiplier):
    """How far delta of the sum, whose neighbours differ by so many steps, is above the Gaussian's."""
    law = reduce(lambda a, b: np.convolve(a, b, "same"), [weights(scale)] * of)
    here, there = law[bound:], law[:-bound]
    return max(
        np.maximum(here - exp(epsilon) * there, 0).sum() - gaussian_delta(multiplier, epsilon)
        for epsilon in np.linspace(0, 2.0, 401)
    )
