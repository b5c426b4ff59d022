"""Effective sample size and R-hat, on chains whose answers are known."""

import numpy as np
import pytest
from scipy import stats

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


def in_halves(draws):
    half = draws.shape[1] // 2
    return [chain for given in draws for chain in (given[:half], given[-half:])]


def scores(chains):
    """Normal scores of ranks (Vehtari and others, Eq. 14)."""
    pooled = np.concatenate(chains)
    ranks = [stats.rankdata(pooled)[n * len(chains[0]) :][: len(chains[0])] for n in range(len(chains))]
    return [stats.norm.ppf((rank - 3 / 8) / (len(pooled) + 1 / 4)) for rank in ranks]


def variances(chains):
    """Within chains, and of all together (their Eq. 1 to 3)."""
    n = len(chains[0])
    within = np.mean([chain.var(ddof=1) for chain in chains])
    between = n * np.var([chain.mean() for chain in chains], ddof=1)
    return within, (n - 1) / n * within + between / n


def written_out_rhat(draws):
    """Their Eq. 4, of ranks and of folded ranks."""
    chains = in_halves(draws)
    folded = [np.abs(chain - np.median(np.concatenate(chains))) for chain in chains]
    found = [variances(scores(each)) for each in (chains, folded)]
    return max(np.sqrt(whole / within) for within, whole in found)


def written_out_size(draws):
    """Their Eq. 10 and 11, with Geyer's sequence of pairs, as long as it is positive and monotone."""
    chains = in_halves(draws)
    n, (within, whole) = len(chains[0]), variances(chains)
    rho = [1.0]
    for lag in range(1, n):
        parts = [(c[lag:] - c.mean()) @ (c[: n - lag] - c.mean()) / (n - 1) for c in chains]
        rho.append(1 - (within - np.mean(parts)) / whole)
    time, least = -1.0, np.inf
    for even, odd in zip(rho[::2], rho[1::2], strict=False):
        if even + odd <= 0:
            break
        least = min(least, even + odd)
        time += 2 * least
    size = n * len(chains)
    return size / max(time, 1 / np.log10(size))


@pytest.mark.parametrize("rho", [-0.97, -0.4, 0.0, 0.6, 0.95])
@pytest.mark.parametrize("length", [21, 200])
def test_both_are_their_formulas_written_out(rho, length):
    draws = autoregressive(rho, 3, length, seed=2) ** 3
    assert split_rhat(draws) == pytest.approx(written_out_rhat(draws), rel=1e-10)
    assert effective_size(draws) == pytest.approx(written_out_size(draws), rel=1e-8)


def test_constant_chains():
    assert split_rhat(np.ones((2, 50))) == 1
    assert effective_size(np.ones((2, 50))) == 100
    assert split_rhat(np.repeat([[1.0], [2.0]], 50, axis=1)) == np.inf


@pytest.mark.parametrize("draws", [np.zeros((2, 7)), np.zeros((2, 3, 50))])
def test_draws_that_say_nothing_are_refused(draws):
    with pytest.raises(SettingError, match="draws"):
        split_rhat(draws)
