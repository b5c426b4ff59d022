"""How often an audit's bound is wrong, on mechanisms whose epsilon is known.

Each test simulates many audits, at an error of 5%. The bound may pass the true epsilon in as many of
them as that, and four standard errors of the simulation: a false-alarm rate of 3e-5 for a bound that
is exactly as wrong as it may be. Seeds are fixed.
"""

from math import exp, log, sqrt

import numpy as np
import pytest
from scipy import stats

from sfumato.auditing.bounds import Counts, epsilon_bound, gaussian_bound
from sfumato.privacy.curves import gaussian_epsilon

AUDITS, ERROR = 2000, 0.05
MOST_WRONG = ERROR + 4 * sqrt(ERROR * (1 - ERROR) / AUDITS)


def simulated(first_rate, second_rate, runs, seed):
    generator = np.random.default_rng(seed)
    hits = generator.binomial(runs, [[first_rate], [second_rate]], (2, AUDITS))
    return Counts(hits[0], runs, hits[1], runs)


def share_above(bounds, epsilon):
    return float((np.asarray(bounds) > epsilon).mean())


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 4.0])
@pytest.mark.parametrize("runs", [20, 250, 5000])
def test_randomised_response(epsilon, runs):
    """The event that tells the most: a truthful answer. Both of its inequalities are equalities."""
    truth = exp(epsilon) / (1 + exp(epsilon))
    bounds = epsilon_bound(simulated(truth, 1 - truth, runs, 1), 0.0, ERROR)
    assert share_above(bounds, epsilon) <= MOST_WRONG


def test_the_error_is_used():
    """Its own inequality alone rests on both limits; wrong in at least a thousandth, not never."""
    truth = exp(1.0) / (1 + exp(1.0))
    assert share_above(epsilon_bound(simulated(truth, 1 - truth, 250, 2), 0.0, ERROR), 1.0) > 1e-3
    wide = epsilon_bound(simulated(truth, 1 - truth, 250, 2), 0.0, 0.9)
    assert share_above(wide, 1.0) > MOST_WRONG  # so that a bound without its error would be seen


@pytest.mark.parametrize("epsilon", [0.5, 2.0])
@pytest.mark.parametrize("threshold", [-0.5, 0.0, 0.5, 1.0, 2.0])
def test_laplace_noise_at_any_threshold(epsilon, threshold):
    law = stats.laplace(scale=1 / epsilon)
    rates = law.sf(threshold - 1.0), law.sf(threshold)
    assert share_above(epsilon_bound(simulated(*rates, 250, 3), 0.0, ERROR), epsilon) <= MOST_WRONG


def test_an_event_whose_whole_surplus_is_delta():
    """Seen with probability delta on one neighbour and never on the other: epsilon is zero there."""
    delta = 0.1
    counts = simulated(delta, 0.0, 400, 4)
    assert share_above(epsilon_bound(counts, delta, ERROR), 0.0) <= MOST_WRONG
    assert share_above(epsilon_bound(counts, 0.0, ERROR), 1.0) > 0.9  # without delta it would refute


def test_epsilon_with_delta():
    epsilon, delta = 1.0, 0.05
    other = 0.1
    rates = exp(epsilon) * other + delta, other
    assert share_above(epsilon_bound(simulated(*rates, 1000, 5), delta, ERROR), epsilon) <= MOST_WRONG
    assert share_above(epsilon_bound(simulated(*rates, 1000, 5), 0.0, ERROR), epsilon) > MOST_WRONG


@pytest.mark.parametrize("epsilon", [1.0, 4.0])
def test_with_enough_runs_the_bound_comes_near(epsilon):
    """A mechanism that tells as much as it may: nearly every audit reaches more than half of epsilon."""
    truth = exp(epsilon) / (1 + exp(epsilon))
    bounds = epsilon_bound(simulated(truth, 1 - truth, 1250, 6), 0.0, ERROR)
    assert share_above(bounds, epsilon / 2) > 0.999
    assert np.median(bounds) > 0.8 * epsilon


@pytest.mark.parametrize("mu", [0.3, 1.0, 3.0])
def test_gaussian_bounds(mu):
    delta, threshold = 1e-5, mu / 2
    counts = simulated(stats.norm.sf(threshold - mu), stats.norm.sf(threshold), 2500, 7)
    audits = zip(counts.first[:400], counts.second[:400], strict=True)
    bounds = np.array([gaussian_bound(Counts(a, 2500, b, 2500), delta, ERROR) for a, b in audits])
    epsilon = gaussian_epsilon(1 / mu, delta)
    assert share_above(bounds, epsilon) <= ERROR + 4 * sqrt(ERROR * (1 - ERROR) / 400)
    assert np.median(bounds) > 0.6 * epsilon


def test_gaussian_bounds_are_tighter_than_those_of_any_mechanism():
    mu, runs = 1.0, 1000
    counts = simulated(stats.norm.sf(-mu / 2), stats.norm.sf(mu / 2), runs, 8)
    one = Counts(int(np.median(counts.first)), runs, int(np.median(counts.second)), runs)
    assert gaussian_bound(one, 1e-5, ERROR) > 2 * epsilon_bound(one, 1e-5, ERROR) > log(1.5)
