"""How far Markov chains can be trusted: split R-hat and effective sample size.

A. Vehtari, A. Gelman, D. Simpson, B. Carpenter and P.-C. Burkner, "Rank-normalization, folding, and
localization: an improved R-hat for assessing convergence of MCMC", Bayesian Analysis 16 (2021). Draws of
a number come as ``draws[chain, draw]``.

Examples
--------
>>> import numpy as np
>>> from sfumato import diagnostics
>>> draws = np.random.default_rng(0).normal(size=(4, 500))
>>> diagnostics.split_rhat(draws) < 1.01 < diagnostics.split_rhat(
...     draws + [[0], [0], [0], [1]]
... )
True
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from sfumato.checks import as_numbers, check_flag
from sfumato.errors import SettingError
from sfumato.types import Array

_FEWEST = 8  # draws of a chain: its halves need a variance, and an autocovariance at some lags


def split_rhat(draws: ArrayLike) -> float:
    """How much wider all chains together spread than each half of a chain by itself: 1 where they mix.

    The larger of two: on normal scores of ranks, which sees chains at different places (also for laws
    without variance), and on the same of distances from the median, which sees different widths.

    Parameters
    ----------
    draws : array_like
        A row for each chain.

    Returns
    -------
    float
        One, or more; above 1.01 chains should not be trusted.

    Examples
    --------
    >>> import numpy as np
    >>> from sfumato import diagnostics
    >>> draws = np.random.default_rng(0).normal(size=(4, 500))
    >>> diagnostics.split_rhat(draws) < 1.01
    True
    >>> draws[0] += 1  # a chain that is somewhere else
    >>> diagnostics.split_rhat(draws) > 1.1
    True
    """
    halves = _halves(draws)
    if _constant(halves):
        return 1.0
    folded = np.abs(halves - np.median(halves))
    return max(_rhat(_normal_scores(halves)), _rhat(_normal_scores(folded)))


def effective_size(draws: ArrayLike, *, ranks: bool = False) -> float:
    """How many independent draws would give the mean as precisely as these.

    By Geyer's initial monotone sequence on the autocorrelations of split chains; chains that do not
    agree lower it. With ``ranks`` of the normal scores of ranks, for laws that may have no variance.

    Parameters
    ----------
    draws : array_like
        A row for each chain.
    ranks : bool
        Whether to look at ranks instead of the numbers.

    Returns
    -------
    float
        At most a few times as many as there are draws.

    Examples
    --------
    A walk that forgets slowly:

    >>> import numpy as np
    >>> from sfumato import diagnostics
    >>> steps = np.random.default_rng(0).normal(size=(4, 500))
    >>> walk = np.zeros((4, 500))
    >>> for i in range(1, 500):
    ...     walk[:, i] = 0.9 * walk[:, i - 1] + steps[:, i]
    >>> diagnostics.effective_size(walk) < 300 < diagnostics.effective_size(steps)
    True
    """
    check_flag(ranks=ranks)
    halves = _halves(draws)
    if _constant(halves):
        return float(halves.size)
    if ranks:
        halves = _normal_scores(halves)
    chains, length = halves.shape
    within, whole = _variances(halves)
    if whole == 0:
        return float(halves.size)
    covariances = _autocovariances(halves).mean(axis=0)
    correlations = 1 - (within - covariances * length / (length - 1)) / whole
    correlations[0] = 1.0
    size = chains * length
    # More than all draws is possible for alternating chains, up to a factor that keeps it believable.
    return float(size / max(_correlation_time(correlations), 1 / np.log10(size)))


def _correlation_time(correlations: Array) -> float:
    """1 + 2 sum of correlations, of as many lags as their pairs stay positive, and never growing."""
    pairs = correlations[: correlations.shape[0] // 2 * 2].reshape(-1, 2).sum(axis=1)
    negative = np.flatnonzero(pairs <= 0)
    kept = pairs[: negative[0]] if negative.size else pairs
    return float(2 * np.minimum.accumulate(kept).sum() - 1)


def _halves(draws: ArrayLike) -> Array:
    """Each chain as two: a drift within a chain shows like a difference between chains."""
    given = np.atleast_2d(as_numbers("draws", draws))
    if given.ndim != 2 or given.shape[1] < _FEWEST:
        raise SettingError(
            f"diagnostics need at least {_FEWEST} draws of each chain: draws[chain, draw]"
        )
    half = given.shape[1] // 2
    return np.concatenate([given[:, :half], given[:, -half:]])


def _constant(halves: Array) -> bool:
    return bool((halves == halves[0, 0]).all())


def _normal_scores(draws: Array) -> Array:
    from scipy.special import ndtri
    from scipy.stats import rankdata

    ranks = rankdata(draws).reshape(draws.shape)
    scores: Array = ndtri((ranks - 0.375) / (draws.size + 0.25))
    return scores


def _variances(halves: Array) -> tuple[float, float]:
    """Mean variance within chains, and the variance that all chains together speak for."""
    length = halves.shape[1]
    within = float(halves.var(axis=1, ddof=1).mean())
    between = float(halves.mean(axis=1).var(ddof=1))
    return within, within * (length - 1) / length + between


def _rhat(halves: Array) -> float:
    within, whole = _variances(halves)
    if within == 0:
        return 1.0 if whole == 0 else float("inf")
    return float(np.sqrt(whole / within))


def _autocovariances(halves: Array) -> Array:
    """Of every chain at every lag, by fast Fourier transforms."""
    length = halves.shape[1]
    centred = halves - halves.mean(axis=1, keepdims=True)
    waves = np.fft.rfft(centred, 2 * length, axis=1)
    products: Array = np.fft.irfft(np.abs(waves) ** 2, 2 * length, axis=1)[:, :length]
    return np.asarray(products / length)
