"""Best guesses from noisy statistics whose noise is known: all of it post-processing.

The biases b_j of a mode's levels are taken for normal around a prior mean, with variance tau^2. What
was released of level j is a sum z_j = n_j b_j + normal noise of variance v_j, where v_j is the noise
that was added plus what the n_j residuals scatter by themselves. The larger the noise, the closer a
guess is to the prior mean, and the prior means to zero.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from sfumato.types import Array

_MOST_BINS = 12
_LEVELS_PER_BIN = 20
# How much of the variance of biases lies between bins, before anything is known.
_BETWEEN_BINS = 0.1
# Variances that biases may have, over the one assumed, and how likely each is before anything is known:
# small ones as likely as each other, large ones the less the larger.
_VARIANCES = np.geomspace(2.0**-7, 2.0**4, 23)
_LIKELY = 1 / (1 + _VARIANCES)


class Guess(NamedTuple):
    """Posterior means and variances."""

    means: Array
    variances: Array


def positive_counts(noisy: Array, deviation: float, average: float) -> Guess:
    """Counts from counts with normal noise, under the exponential law with the given average.

    Always positive; those given for little noise, and the average for much.
    """
    from scipy.special import erfcx

    # The posterior is a normal, moved by deviation^2 / average and cut off at zero.
    centre = noisy / deviation - deviation / average
    ratio = np.sqrt(2 / np.pi) / erfcx(-centre / np.sqrt(2))  # density over probability
    means = deviation * np.maximum(centre + ratio, 1e-6)
    return Guess(means, deviation**2 * np.maximum(1 - ratio * (ratio + centre), 0.0))


def posterior_biases(sums: Array, variances: Array, counts: Array, assumed: float) -> Guess:
    """Biases from noisy sums.

    ``variances`` are those of the sums given the biases, ``assumed`` is the variance of biases before
    anything is known; prior means by popularity and how much biases vary are learnt from all levels.
    """
    means = _means_by_popularity(sums, variances, counts, assumed)
    return _shrunk(sums, variances, counts, means, assumed)


def _means_by_popularity(sums: Array, variances: Array, counts: Array, assumed: float) -> Array:
    """Popular levels tend to have larger values: a prior mean for each bin of levels with like counts.

    Within a bin by generalised least squares, then shrunk towards zero like a level itself.
    """
    bins = int(np.clip(counts.shape[0] // _LEVELS_PER_BIN, 1, _MOST_BINS))
    ranks = np.argsort(np.argsort(counts, kind="stable"), kind="stable")
    bin_of = ranks * bins // counts.shape[0]
    certainty = counts / (counts**2 * assumed + variances)
    totals = np.bincount(bin_of, certainty * sums, bins)
    weights = np.bincount(bin_of, certainty * counts, bins)
    zero = np.zeros(bins)
    means: Array = _shrunk(totals, weights, weights, zero, _BETWEEN_BINS * assumed).means[bin_of]
    return means


def _shrunk(sums: Array, variances: Array, counts: Array, means: Array, assumed: float) -> Guess:
    """Posterior means and variances of biases, whose own variance is one of several.

    Each is as likely as the sums are under it; guesses under all of them are averaged. So biases that
    are not there are shrunk away, as far as noise lets that be seen.
    """
    around, noise = sums / counts - means, variances / counts**2
    taus = assumed * _VARIANCES
    total = noise + taus[:, None]
    fit = -0.5 * (np.log(total) + around**2 / total).sum(1)
    likely = _LIKELY * np.exp(fit - fit.max())
    likely /= likely.sum()
    kept = taus[:, None] / total
    average = likely @ kept
    doubts = likely @ (kept * noise + (kept * around) ** 2) - (average * around) ** 2
    return Guess(means + average * around, np.maximum(doubts, 0.0))
