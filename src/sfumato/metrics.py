"""How good predictions are: errors of values, likelihoods of counts, and ranks of links.

Every function takes what was observed first, then what was predicted, and returns a number.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from sfumato.checks import as_numbers, check_count, check_positive
from sfumato.errors import DataError
from sfumato.types import Array


def rmse(observed: ArrayLike, predicted: ArrayLike) -> float:
    """Root mean squared error."""
    x, v = _pair(observed, predicted)
    return float(np.sqrt(np.mean((x - v) ** 2)))


def poisson_log_likelihood(observed: ArrayLike, predicted: ArrayLike) -> float:
    """Mean log probability of counts under Poisson laws with the predicted means.

    A mean of zero makes a count above zero impossible: the result is then minus infinity.
    """
    from scipy.special import gammaln

    x, v = _pair(observed, predicted)
    if x.min() < 0 or v.min() < 0 or not np.isfinite([x.max(), v.max()]).all():
        raise DataError("counts and their means are finite numbers, and none is negative")
    with np.errstate(divide="ignore", invalid="ignore"):
        terms = np.where(x > 0, x * np.log(v), 0.0) - v - gammaln(x + 1)
    return float(terms.mean())


def normal_log_likelihood(observed: ArrayLike, predicted: ArrayLike, deviation: float) -> float:
    """Mean log density under normal laws with the predicted means and one standard deviation."""
    check_positive(deviation=deviation)
    x, v = _pair(observed, predicted)
    squares = ((x - v) / deviation) ** 2
    return float(-0.5 * squares.mean() - np.log(deviation) - 0.5 * np.log(2 * np.pi))


def auc(observed: ArrayLike, predicted: ArrayLike) -> float:
    """Probability that a link is ranked above a cell without one (area under the ROC curve).

    Links are cells whose observed value is above zero. Equal predictions count half.
    """
    from scipy.stats import rankdata

    x, v = _pair(observed, predicted)
    links = x > 0
    positive = int(links.sum())
    if positive in (0, len(links)):
        raise DataError("an AUC needs cells with and cells without a link")
    ranks = rankdata(v)
    above = ranks[links].sum() - positive * (positive + 1) / 2
    return float(above / (positive * (len(links) - positive)))


def precision_at(
    k: int, observed: ArrayLike, predicted: ArrayLike, groups: ArrayLike | None = None
) -> float:
    """Share of links among the k highest predictions; with ``groups`` the mean over groups.

    A group with fewer than k cells is judged by those it has. Of equal predictions the first counts.
    """
    check_count(k=k)
    x, v = _pair(observed, predicted)
    names = np.zeros(len(x)) if groups is None else np.asarray(groups)
    if names.shape != x.shape:
        raise DataError(f"{len(x)} cells need as many groups, got shape {names.shape}")
    order = np.lexsort((-v, names))  # by group, best first; stable
    _, starts = np.unique(names[order], return_index=True)
    place = np.arange(len(x)) - np.repeat(starts, np.diff(np.append(starts, len(x))))
    top = place < k
    hits = np.add.reduceat(np.where(top, x[order] > 0, 0), starts)
    return float(np.mean(hits / np.add.reduceat(top.astype(int), starts)))


def calibration_error(observed: ArrayLike, chances: ArrayLike, bins: int = 15) -> float:
    """How far the likeliest class's probability lies from how often it is right, over equal bins of it.

    ``observed`` are the places of classes, ``chances`` a row of probabilities for each example.
    """
    check_count(bins=bins)
    said, places = as_numbers("probabilities", chances), np.asarray(observed)
    if said.ndim != 2 or places.shape != said.shape[:1] or not places.size:
        raise DataError(f"{places.shape} classes need as many rows of chances, got {said.shape}")
    sure, right = said.max(1), said.argmax(1) == places
    which = np.minimum((sure * bins).astype(int), bins - 1)
    gaps = np.bincount(which, right, bins) - np.bincount(which, sure, bins)
    return float(np.abs(gaps).sum() / len(places))


def _pair(observed: ArrayLike, predicted: ArrayLike) -> tuple[Array, Array]:
    x, v = as_numbers("values", observed), as_numbers("predictions", predicted)
    if x.shape != v.shape or x.ndim != 1 or not x.size:
        raise DataError(
            f"as many predictions as observed values are needed, got {v.shape} and {x.shape}"
        )
    if np.isnan(x).any() or np.isnan(v).any():
        raise DataError("values and predictions must be numbers, got NaN")
    return x, v
