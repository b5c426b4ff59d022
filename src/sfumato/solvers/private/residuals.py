"""What counts of residuals tell of their law, and of how much more values of rare levels scatter.

Post-processing, all of it. Residuals, each over the deviation that is expected of it, are counted in
public bins. Cells of which some level is among its mode's rarest are counted apart, by which of their
levels are, and in two bins alone: within one deviation or not. What comes of the counts is the best
linear guess around laws that residuals usually have, so that under much noise the usual law stands, and
under little the data's own.
"""

from __future__ import annotations

from functools import cache
from math import log, sqrt

import numpy as np

from sfumato.models.doubts import EDGES
from sfumato.privacy.mechanisms import Noisy
from sfumato.types import Array

# Ends of the bins that are asked for: few, since each has noise of its own.
ENDS = np.array([-3.2, -2.1, -1.5, -1.0, -0.5, 0.0, 0.5, 1.0, 1.5, 2.1, 3.2])
BINS = ENDS.shape[0] + 1
_WITHIN = 1.0  # deviations, that residuals of rare levels lie in or not
# Mean and deviation of the logarithm of residuals over what is expected: where the spread of the values
# is known, and where all that is expected rests on a guess of it. Values can fill their bounds, which is
# twice what is guessed: where noise hides which, bounds are to be too wide rather than too narrow.
KNOWN, GUESSED = (-0.1, 0.45), (0.0, 0.6)
_SHIFT = 0.2  # of their middle
_UNUSUAL = 1e-5  # variance of a share over itself, that no usual law explains
_MORE = 0.3  # variance that rarest levels add to their values, over all: its usual size
_UNLIKE = 0.07  # by which the share within may differ where levels are rare
_INSIDE = np.append(0.0, ((ENDS >= -_WITHIN) & (ENDS < _WITHIN)).astype(float))  # bins that lie within
_LEAST_SLOPE = 0.1  # of the share within, by the logarithm of the scale


def numbers_asked(modes: int) -> int:
    """How many numbers are asked for where so many modes' levels are known to be rare or not."""
    return int(BINS + 2 * (2**modes - 1))


def number_of(residuals: Array, rarity: Array) -> Array:
    """Which of the numbers each residual counts in; ``rarity`` is zero where no level is rare."""
    popular = np.searchsorted(ENDS, residuals, side="right")
    rare = BINS + 2 * (rarity - 1) + (np.abs(residuals) >= _WITHIN)
    found: Array = np.where(rarity == 0, popular, rare)
    return found


@cache
def usual_shapes(scales: tuple[float, float]) -> tuple[Array, Array]:
    """Mean and covariance of shares, over laws and scales that residuals may have: of the bins that are
    told, then of those that are asked for. What is expected of residuals is rather too much.
    """
    from scipy import stats

    skewed = stats.expon(loc=-1.0), stats.lognorm(0.7, loc=-1.28, scale=1.0)
    laws = [stats.norm(), stats.norm(), stats.laplace(scale=sqrt(0.5)), stats.t(3, scale=0.6)]
    laws += [stats.uniform(-sqrt(3), 2 * sqrt(3)), *skewed]
    shares, (mean, deviation) = [], scales
    for law in laws:
        for scale in np.exp(mean + deviation * stats.norm.ppf((np.arange(9) + 0.5) / 9)):
            for shift in (-_SHIFT, 0.0, _SHIFT):
                told, asked = (
                    np.diff(law.cdf((ends - shift) / scale), prepend=0.0, append=1.0)
                    for ends in (EDGES, ENDS)
                )
                shares += [np.append(told, asked), np.append(told[::-1], asked[::-1])]
    drawn = np.array(shares)
    return drawn.mean(axis=0), np.cov(drawn.T)


def usual_shape(scales: tuple[float, float] = KNOWN) -> Array:
    """Shares of the bins that are told, before anything was asked."""
    return usual_shapes(scales)[0][:-BINS]


def shape_from(noisy: Noisy, scales: tuple[float, float] = KNOWN) -> Array:
    """Shares of the bins that are told: the best linear guess around what is usual.

    Counts are divided by their sum, whose noise is in all shares. How many of rare levels' residuals lie
    within a deviation tells of the others' scale too, as far as all scatter alike.
    """
    (usual, covariance), told = usual_shapes(scales), slice(0, -BINS)
    asked, values = usual[-BINS:], noisy.values[:BINS]
    number = max(float(values.sum()), 1.0)
    apart = np.eye(BINS) - asked[:, None]
    error = (noisy.deviation / number) ** 2 * (apart @ apart.T)
    error[np.diag_indices(BINS)] += asked / number + _UNUSUAL * asked
    seen, looks = values / number, np.eye(BINS)
    if noisy.values.shape[0] > BINS:
        share, doubt = _rare_within(noisy, float(_INSIDE @ asked))
        seen, looks = np.append(seen, share), np.vstack([looks, _INSIDE])
        error = np.pad(error, (0, 1))
        error[-1, -1] = doubt
    cross = covariance[:, -BINS:] @ looks.T
    kept = np.linalg.solve(looks @ cross[-BINS:] + error, seen - looks @ asked)
    found = np.maximum(usual[told] + cross[told] @ kept, 0.0)
    shares: Array = found / found.sum()
    return shares


def _rare_within(noisy: Noisy, usual: float) -> tuple[float, float]:
    """Of rare levels' residuals, the share within a deviation, and what it is off by, as variance."""
    pairs = noisy.values[BINS:].reshape(-1, 2)
    near, far = pairs.sum(axis=0)
    number = max(float(near + far), 1.0)
    noise = (noisy.deviation / number) ** 2 * pairs.shape[0] * (usual**2 + (1 - usual) ** 2)
    return float(near / number), noise + 0.25 / number + _UNLIKE**2


def rare_variances(noisy: Noisy, shape: Array, modes: int) -> Array:
    """What the rarest levels of each mode add to the variance of their values, over that of all others.

    How many lie within a deviation tells the scale of each kind of cell; what modes add to it adds up,
    and is the best linear guess around nothing.
    """
    reaches = EDGES[EDGES > 0]
    within = _mass(np.cumsum(shape)[:-1], reaches)
    gram, seen = np.eye(modes) / _MORE**2, np.zeros(modes)
    for kind, (near, far) in enumerate(noisy.values[BINS:].reshape(-1, 2), start=1):
        number = max(near + far, 1.0)
        share = float(np.clip(near / number, within[0], within[-1]))
        reach = float(np.interp(share, within, reaches))
        slope = max(_slope(within, reach), _LEAST_SLOPE)
        error = (noisy.deviation / number) ** 2 * (share**2 + (1 - share) ** 2) + 0.25 / number
        scale = (_WITHIN / reach) ** 2
        precision = 1 / (4 * scale**2 * error / slope**2)
        has = np.array([kind >> m & 1 for m in range(modes)], float)
        gram += precision * np.outer(has, has)
        seen += precision * (scale - 1) * has
    more: Array = np.linalg.solve(gram, seen)
    return more


def _mass(inside: Array, reaches: Array) -> Array:
    """Share of residuals within each reach, growing; ``inside`` has those below the edges."""
    upper, lower = (np.interp(sign * reaches, EDGES, inside) for sign in (1, -1))
    grown: Array = upper - lower + 1e-9 * reaches
    return grown


def _slope(within: Array, reach: float) -> float:
    """By how much the share within a reach grows with its logarithm."""
    reaches = EDGES[EDGES > 0]
    high, low = (float(np.interp(reach * by, reaches, within)) for by in (1.15, 1 / 1.15))
    return (high - low) / (2 * log(1.15))
