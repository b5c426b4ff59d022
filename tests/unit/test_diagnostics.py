"""Effective sample size and R-hat, on chains whose answers are known."""

import numpy as np
import pytest

from sfumato.diagnostics import effective_size, split_rhat
from sfumato.errors import SettingError


def autoregressive(rho, chains, length, seed=0):
    """Stationary chains x' = rho x + noise of variance one."""
    generator = np.random.default_rng(seed)
    noise = np.sqrt(1 - rho**2) * generator.standard_normal((chains, length))
    draws = np.empty((chains, length))
    draws[:, 0] = generator.standard_normal(chains)
    for t in range(1, length):
        draws[:, t] = rho * draws[:, t - 1] + noise[:, t]
    return draws


@pytest.mark.parametrize("rho", [0.0, 0.5, 0.9, -0.4])
@pytest.mark.parametrize("ranks", [False, True])
def test_effective_size_of_autoregressive_chains(rho, ranks):
    draws = autoregressive(rho, 4, 8000)
    exact = draws.size * (1 - rho) / (1 + rho)
    assert effective_size(draws, ranks=ranks) == pytest.approx(exact, rel=0.15)


def test_effective_size_is_what_the_error_of_means_says():
    # The variance of the means of 400 pairs of chains, against what each pair says of itself.
    pairs = autoregressive(0.8, 800, 400, seed=1).reshape(400, 2, 400)
    means = pairs.mean(axis=(1, 2))
    said = np.mean([pair.var() / effective_size(pair) for pair in pairs])
    assert said == pytest.approx(means.var(), rel=0.25)


def test_mixing_chains_have_rhat_one():
    assert split_rhat(autoregressive(0.5, 4, 4000)) < 1.01


@pytest.mark.parametrize(
    "spoil",
    [
        lambda x: x + np.array([0, 0, 0, 1.0])[:, None],  # a chain somewhere else
        lambda x: x + np.linspace(0, 3, x.shape[1]),  # all chains on the same drift
        lambda x: x * np.array([1, 1, 1, 4.0])[:, None],  # a wider chain around the same mean
        lambda x: np.exp(20 * (x + np.array([0, 0, 0, 1.0])[:, None])),  # without useful moments
    ],
)
def test_chains_that_do_not_mix_are_noticed(spoil):
    assert split_rhat(spoil(autoregressive(0.0, 4, 1000))) > 1.05


def test_chains_that_disagree_are_worth_few_draws():
    apart = autoregressive(0.0, 2, 1000) + np.array([[0.0], [10.0]])
    assert effective_size(apart) < 10


def test_rhat_does_not_depend_on_the_scale_of_measurement():
    draws = autoregressive(0.9, 2, 300)
    bulk, same = split_rhat(draws), split_rhat(3 * draws + 5)
    assert bulk == pytest.approx(same)


def test_constant_chains():
    assert split_rhat(np.ones((2, 50))) == 1
    assert effective_size(np.ones((2, 50))) == 100
    assert split_rhat(np.repeat([[1.0], [2.0]], 50, axis=1)) == np.inf


@pytest.mark.parametrize("draws", [np.zeros((2, 7)), np.zeros((2, 3, 50))])
def test_draws_that_say_nothing_are_refused(draws):
    with pytest.raises(SettingError, match="draws"):
        split_rhat(draws)
