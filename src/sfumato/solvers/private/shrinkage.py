"""Best guesses from noisy statistics whose noise is known: all of it post-processing.

The biases b_j of a mode's levels are taken for normal around a prior mean, with variance tau^2. What
was released of level j is a sum z_j = n_j b_j + normal noise of variance v_j, where v_j is the noise
that was added plus what the n_j residuals scatter by themselves. The larger the noise, the closer a
guess is to the prior mean, and the prior means to zero.

Laplace noise has longer tails than biases have. Of a sum that lies far out, noise is the likelier cause:
however far it lies, the guess goes no further than tau^2 / b, b the scale of the noise. Taken for
normal, one such draw would be believed, and a mode of three levels be ruined by it.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from sfumato.types import Array

_STANDS_OUT = 2.0  # deviations of the noise
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


def without_noise(variances: Array, counts: Array, noise: Array, scatter: Array) -> Array:
    """What posterior variances of biases would be had their sums no noise: by precisions, which add up.

    ``noise`` and ``scatter`` are the variances of sums over ``counts`` entries that noise and data give.
    """
    scatter = np.maximum(scatter, 1e-300)
    told = counts**2 * (1 / scatter - 1 / (scatter + noise))
    left: Array = variances / (1 + told * variances)
    return left


def positive_counts(noisy: Array, deviation: float, average: float, most: float) -> Guess:
    """Counts from counts with normal noise, under the exponential law with the given average.

    Always positive; those given for little noise, and the average for much. Where most levels have next
    to none, some have far more than that law allows: a count that stands out of the noise is believed,
    as far as the ``most`` that all levels have together.
    """
    from scipy.special import erfcx

    # The posterior is a normal, moved by deviation^2 / average and cut off at zero.
    centre = noisy / deviation - deviation / average
    ratio = np.sqrt(2 / np.pi) / erfcx(-centre / np.sqrt(2))  # density over probability
    means = deviation * np.maximum(centre + ratio, 1e-6)
    variances = deviation**2 * np.maximum(1 - ratio * (ratio + centre), 0.0)
    least = np.minimum(noisy - _STANDS_OUT * deviation, most)
    return Guess(np.maximum(means, least), np.where(least > means, deviation**2, variances))


def posterior_biases(
    sums: Array, variances: Array, counts: Array, assumed: float, laplace: Array | None = None
) -> Guess:
    """Biases from noisy sums.

    ``variances`` are those of the sums given the biases, and ``laplace`` what Laplace noise has of them,
    where there is any; ``assumed`` is the variance of biases before anything is known. Prior means by
    popularity and how much biases vary are learnt from all levels.
    """
    means = _means_by_popularity(sums, variances, counts, assumed, laplace)
    return shrunk(sums, variances, counts, means, assumed, laplace)


def _means_by_popularity(
    sums: Array, variances: Array, counts: Array, assumed: float, laplace: Array | None
) -> Array:
    """Popular levels tend to have larger values: a prior mean for each bin of levels with like counts.

    Within a bin by generalised least squares, then shrunk towards zero like a level itself.
    """
    bins = int(np.clip(counts.shape[0] // _LEVELS_PER_BIN, 1, _MOST_BINS))
    ranks = np.argsort(np.argsort(counts, kind="stable"), kind="stable")
    bin_of = ranks * bins // counts.shape[0]
    certainty = counts / (counts**2 * assumed + variances)
    totals = np.bincount(bin_of, certainty * sums, bins)
    weights = np.bincount(bin_of, certainty * counts, bins)
    heavy = None if laplace is None else np.bincount(bin_of, certainty**2 * laplace, bins)
    guess = shrunk(totals, weights, weights, np.zeros(bins), _BETWEEN_BINS * assumed, heavy)
    means: Array = guess.means[bin_of]
    return means


def shrunk(
    sums: Array, variances: Array, counts: Array, means: Array, assumed: float, laplace: Array | None
) -> Guess:
    """Posterior means and variances of biases, whose own variance is one of several.

    Each is as likely as the sums are under it; guesses under all of them are averaged. So biases that
    are not there are shrunk away, as far as noise lets that be seen.
    """
    around, noise, taus = sums / counts - means, variances / counts**2, assumed * _VARIANCES[:, None]
    if laplace is None:
        under = _in_normal_noise(around, noise, taus)
    else:
        heavy = laplace / counts**2
        under = _in_laplace_noise(around, np.maximum(noise - heavy, 0.0), np.sqrt(heavy / 2), taus)
    fit = under.fit.sum(1)
    likely = _LIKELY * np.exp(fit - fit.max())
    likely /= likely.sum()
    average = likely @ under.means
    doubts = likely @ (under.variances + under.means**2) - average**2
    return Guess(means + average, np.maximum(doubts, 0.0))


class _Under(NamedTuple):
    """Logarithms of densities up to a constant, and posterior means and variances, under a prior."""

    fit: Array
    means: Array
    variances: Array


def _in_normal_noise(seen: Array, noise: Array, tau: Array) -> _Under:
    """Of numbers with prior variance tau, seen with normal noise."""
    total = noise + tau
    kept = tau / total
    return _Under(-0.5 * (np.log(total) + seen**2 / total), kept * seen, kept * noise)


def _in_laplace_noise(seen: Array, normal: Array, scale: Array, tau: Array) -> _Under:
    """The same with normal noise and Laplace noise.

    With N of variance s^2 = tau + normal and L of scale b, N + L has the density
    exp(-y^2 / 2 s^2) (erfcx(u-) + erfcx(u+)) / 4b, u-+ = (s/b -+ y/s) / sqrt(2), and its derivatives
    give the mean and variance of N (Tweedie's formula), of which the bias has the share tau / s^2.
    """
    variance = tau + normal
    deviation, b = np.sqrt(variance), np.maximum(scale, 1e-3 * np.sqrt(tau))
    below = _log_erfcx((deviation / b - seen / deviation) / np.sqrt(2))
    above = _log_erfcx((deviation / b + seen / deviation) / np.sqrt(2))
    fit = np.logaddexp(below, above) - seen**2 / (2 * variance) - np.log(b)
    slope = np.tanh((below - above) / 2) / b  # of the logarithm of the density, downwards
    edge = np.sqrt(8 / np.pi) / (deviation * b) * np.exp(-np.logaddexp(below, above))
    spread = variance + variance**2 * (1 / b**2 - edge - slope**2)
    kept = tau / variance
    doubts = kept**2 * np.maximum(spread, 0.0) + kept * normal
    return _Under(fit, kept * variance * slope, doubts)


def _log_erfcx(numbers: Array) -> Array:
    from scipy.special import erfcx

    near = np.maximum(numbers, -5.0)
    logs: Array = np.where(numbers < -5, numbers**2 + np.log(2), np.log(erfcx(near)))
    return logs
