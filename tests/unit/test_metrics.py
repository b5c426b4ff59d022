"""Metrics against scikit-learn and SciPy, and at their edges."""

import numpy as np
import pytest
from scipy import stats
from sklearn.metrics import mean_poisson_deviance, roc_auc_score, root_mean_squared_error

from sfumato import metrics
from sfumato.errors import DataError, SettingError

GENERATORS = [np.random.default_rng(seed) for seed in range(5)]


def cells(generator, size=200, ties=False):
    links = (generator.random(size) < 0.3).astype(float)
    scores = generator.random(size)
    return links, np.round(scores, 1) if ties else scores


@pytest.mark.parametrize("generator", GENERATORS)
@pytest.mark.parametrize("ties", [False, True])
def test_auc_is_scikit_learns(generator, ties):
    links, scores = cells(generator, ties=ties)
    assert metrics.auc(links, scores) == pytest.approx(roc_auc_score(links, scores), abs=1e-12)


def test_links_are_counts_above_zero():
    assert metrics.auc([3, 0, 1], [0.9, 0.1, 0.5]) == 1.0
    assert metrics.auc([3, 0, 1], [0.5, 0.5, 0.5]) == 0.5


@pytest.mark.parametrize("generator", GENERATORS)
def test_rmse_is_scikit_learns(generator):
    x, v = generator.normal(size=(2, 50))
    assert metrics.rmse(x, v) == pytest.approx(root_mean_squared_error(x, v), rel=1e-12)


@pytest.mark.parametrize("generator", GENERATORS)
def test_poisson_likelihood_is_scipys_and_falls_with_scikit_learns_deviance(generator):
    v = generator.gamma(2.0, size=100)
    x = generator.poisson(v).astype(float)
    expected = stats.poisson.logpmf(x, v).mean()
    assert metrics.poisson_log_likelihood(x, v) == pytest.approx(expected, rel=1e-12)
    other = v * 1.3
    gain = metrics.poisson_log_likelihood(x, v) - metrics.poisson_log_likelihood(x, other)
    deviance = mean_poisson_deviance(x, other) - mean_poisson_deviance(x, v)
    assert 2 * gain == pytest.approx(deviance, rel=1e-9)


def test_an_impossible_count():
    assert metrics.poisson_log_likelihood([1.0, 0.0], [0.0, 0.0]) == -np.inf
    assert metrics.poisson_log_likelihood([0.0], [0.0]) == 0.0


def test_normal_likelihood_is_scipys():
    x, v = np.array([1.0, 2.0, 4.0]), np.array([1.5, 2.0, 3.0])
    expected = stats.norm.logpdf(x, v, 0.7).mean()
    assert metrics.normal_log_likelihood(x, v, 0.7) == pytest.approx(expected, rel=1e-12)


def precision_by_hand(k, links, scores, groups):
    found = []
    for group in np.unique(groups):
        there = np.flatnonzero(groups == group)
        top = there[np.argsort(-scores[there], kind="stable")][:k]
        found.append(np.mean(links[top] > 0))
    return np.mean(found)


@pytest.mark.parametrize("generator", GENERATORS)
@pytest.mark.parametrize("k", [1, 3, 10, 500])
def test_precision_at_k(generator, k):
    links, scores = cells(generator, ties=True)
    groups = generator.integers(0, 12, len(links))
    expected = precision_by_hand(k, links, scores, groups)
    assert metrics.precision_at(k, links, scores, groups) == pytest.approx(expected, abs=1e-12)
    alone = precision_by_hand(k, links, scores, np.zeros(len(links)))
    assert metrics.precision_at(k, links, scores) == pytest.approx(alone, abs=1e-12)


@pytest.mark.parametrize(
    ("call", "error", "says"),
    [
        (lambda: metrics.auc([1, 1], [0.1, 0.2]), DataError, "without a link"),
        (lambda: metrics.auc([0, 0], [0.1, 0.2]), DataError, "without a link"),
        (lambda: metrics.rmse([1, 2], [1]), DataError, "as many predictions"),
        (lambda: metrics.rmse([], []), DataError, "as many predictions"),
        (lambda: metrics.rmse([1, np.nan], [1, 2]), DataError, "NaN"),
        (lambda: metrics.poisson_log_likelihood([-1], [1]), DataError, "negative"),
        (lambda: metrics.normal_log_likelihood([1], [1], 0.0), SettingError, "above zero"),
        (lambda: metrics.rmse(["a"], [1]), DataError, "must be numbers"),
        (lambda: metrics.poisson_log_likelihood([1], [np.inf]), DataError, "finite"),
        (lambda: metrics.normal_log_likelihood([1], [1], "1"), SettingError, "above zero"),
        (lambda: metrics.precision_at(0, [1], [1]), SettingError, "whole number"),
        (lambda: metrics.precision_at(np.nan, [1], [1]), SettingError, "whole number"),
        (lambda: metrics.precision_at("all", [1], [1]), SettingError, "whole number"),
        (lambda: metrics.precision_at(1, [1, 0], [1, 2], [1]), DataError, "groups"),
    ],
)
def test_bad_input_is_said(call, error, says):
    with pytest.raises(error, match=says):
        call()
