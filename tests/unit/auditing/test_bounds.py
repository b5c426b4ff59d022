"""Bounds from counts: against SciPy, against what defines them, and against another library."""

from math import exp, inf, log

import numpy as np
import pytest
from scipy import stats

from sfumato.auditing.bounds import (
    Counts,
    epsilon_bound,
    gaussian_bound,
    gaussian_distance,
    lower_rate,
    upper_rate,
)

CASES = [(0, 10), (1, 10), (5, 10), (9, 10), (10, 10), (0, 1), (1, 1), (37, 5000), (4999, 5000)]


@pytest.mark.parametrize(("hits", "runs"), CASES)
@pytest.mark.parametrize("error", [0.2, 0.05, 1e-4])
def test_rates_are_those_of_scipy(hits, runs, error):
    lower = stats.binomtest(hits, runs, alternative="greater").proportion_ci(1 - error, "exact")
    upper = stats.binomtest(hits, runs, alternative="less").proportion_ci(1 - error, "exact")
    assert lower_rate(hits, runs, error) == pytest.approx(lower.low, abs=1e-12)
    assert upper_rate(hits, runs, error) == pytest.approx(upper.high, abs=1e-12)


@pytest.mark.parametrize(("hits", "runs"), [case for case in CASES if case[0] > 0])
def test_at_the_lower_rate_as_many_hits_have_the_probability_of_the_error(hits, runs):
    rate = lower_rate(hits, runs, 0.03)
    assert stats.binom.sf(hits - 1, runs, rate) == pytest.approx(0.03, rel=1e-6)


@pytest.mark.parametrize(("hits", "runs"), [case for case in CASES if case[0] < case[1]])
def test_at_the_upper_rate_as_few_hits_have_the_probability_of_the_error(hits, runs):
    rate = upper_rate(hits, runs, 0.03)
    assert stats.binom.cdf(hits, runs, rate) == pytest.approx(0.03, rel=1e-6)


def test_no_hits_and_nothing_but_hits_leave_open_what_they_leave_open():
    assert (lower_rate(0, 50, 0.05), upper_rate(50, 50, 0.05)) == (0.0, 1.0)
    assert upper_rate(0, 50, 0.05) == pytest.approx(1 - 0.05 ** (1 / 50))
    assert lower_rate(50, 50, 0.05) == pytest.approx(0.05 ** (1 / 50))


# -- epsilon --------------------------------------------------------------------------------------


def test_the_bound_is_the_definition_of_privacy_at_the_two_limits():
    counts, delta, error = Counts(60, 100, 10, 120), 0.01, 0.04
    often, seldom = lower_rate(60, 100, 0.02), upper_rate(10, 120, 0.02)
    assert epsilon_bound(counts, delta, error) == pytest.approx(log((often - delta) / seldom))


def test_the_complement_counts_as_well():
    """Seen always on one side and nearly always on the other: its absence tells."""
    counts = Counts(500, 500, 400, 500)
    often, seldom = lower_rate(500, 500, 0.025), upper_rate(400, 500, 0.025)
    direct = log(often / seldom)
    assert epsilon_bound(counts, 0.0, 0.05) == pytest.approx(log((1 - seldom) / (1 - often)))
    assert epsilon_bound(counts, 0.0, 0.05) > 2 > direct


def test_an_event_and_its_complement_seen_from_the_other_neighbour_say_the_same():
    counts = Counts(60, 100, 10, 120)
    mirrored = Counts(120 - 10, 120, 100 - 60, 100)
    assert epsilon_bound(counts, 0.01, 0.05) == pytest.approx(epsilon_bound(mirrored, 0.01, 0.05))


def test_events_that_are_rarer_where_they_should_be_frequent_say_nothing():
    assert epsilon_bound(Counts(10, 100, 60, 100), 0.0, 0.05) == 0
    assert epsilon_bound(Counts(60, 100, 10, 100).swapped(), 0.0, 0.05) == 0


@pytest.mark.parametrize("counts", [Counts(0, 30, 0, 30), Counts(30, 30, 30, 30), Counts(0, 30, 30, 30)])
def test_useless_events_give_zero(counts):
    assert epsilon_bound(counts, 0.0, 0.05) == 0
    assert epsilon_bound(counts, 0.9, 0.05) == 0


def test_perfect_guesses_give_what_the_number_of_runs_allows_and_never_infinity():
    for runs in (1, 20, 10_000):
        perfect = epsilon_bound(Counts(runs, runs, 0, runs), 0.0, 0.05)
        rate = 0.025 ** (1 / runs)
        assert perfect == pytest.approx(max(0.0, log(rate / (1 - rate))))
        assert np.isfinite(perfect)


def test_delta_only_takes_away():
    counts = Counts(60, 100, 10, 100)
    bounds = [float(epsilon_bound(counts, delta, 0.05)) for delta in (0.0, 1e-6, 0.1, 0.4, 0.6, 1.0)]
    assert bounds == sorted(bounds, reverse=True)
    assert bounds[0] > 0
    assert bounds[-1] == 0


def test_several_events_at_once_are_each_as_by_itself():
    firsts, seconds = np.array([50, 0, 100]), np.array([10, 0, 100])
    together = epsilon_bound(Counts(firsts, 100, seconds, 100), 0.01, 0.05)
    alone = [
        epsilon_bound(Counts(int(a), 100, int(b), 100), 0.01, 0.05)
        for a, b in zip(firsts, seconds, strict=True)
    ]
    assert together.tolist() == [float(bound) for bound in alone]


def test_more_confidence_takes_away():
    counts = Counts(60, 100, 10, 100)
    assert epsilon_bound(counts, 0.0, 0.001) < epsilon_bound(counts, 0.0, 0.05)


# -- Gaussian -------------------------------------------------------------------------------------


def test_the_gaussian_distance_is_that_of_two_normal_laws():
    many = 10**8
    counts = Counts(int(many * stats.norm.sf(1.0 - 1.5)), many, int(many * stats.norm.sf(1.0)), many)
    assert gaussian_distance(counts, 0.05) == pytest.approx(1.5, abs=2e-3)
    assert gaussian_distance(counts, 0.05) < 1.5


def test_the_gaussian_bound_is_the_epsilon_of_that_distance():
    counts, delta = Counts(400, 500, 100, 500), 1e-5
    mu, epsilon = float(gaussian_distance(counts, 0.05)), gaussian_bound(counts, delta, 0.05)
    spent = stats.norm.cdf(mu / 2 - epsilon / mu) - exp(epsilon) * stats.norm.cdf(-mu / 2 - epsilon / mu)
    assert spent == pytest.approx(delta, rel=1e-4)


@pytest.mark.parametrize("counts", [Counts(0, 30, 0, 30), Counts(30, 30, 30, 30), Counts(0, 30, 30, 30)])
def test_useless_events_have_no_gaussian_bound(counts):
    assert gaussian_distance(counts, 0.05) < 0
    assert gaussian_bound(counts, 1e-6, 0.05) == 0


def test_without_delta_a_gaussian_has_no_epsilon():
    assert gaussian_bound(Counts(29, 30, 1, 30), 0.0, 0.05) == inf


# -- another library ------------------------------------------------------------------------------


@pytest.mark.parametrize("delta", [0.0, 1e-5, 0.05])
@pytest.mark.parametrize("shift", [0.0, 0.7, 3.0])
def test_jax_privacy_computes_the_same(delta, shift):
    """Its auditor takes scores; both kinds of error count there where it is not one-sided."""
    auditing = pytest.importorskip("jax_privacy.auditing")
    generator = np.random.default_rng(5)
    there, absent = generator.laplace(shift, 1.0, 700), generator.laplace(0.0, 1.0, 900)
    auditor = auditing.CanaryScoreAuditor(there, absent)
    for threshold in (-1.0, 0.3, 2.0):
        counts = Counts((there >= threshold).sum(), 700, (absent >= threshold).sum(), 900)
        theirs = auditor.epsilon_clopper_pearson(
            0.03, delta, one_sided=False, threshold_strategy=auditing.Explicit(threshold)
        )
        assert epsilon_bound(counts, delta, 0.03) == pytest.approx(theirs, abs=1e-9)
