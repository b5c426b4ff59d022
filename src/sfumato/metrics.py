"""How good predictions are: errors of values, likelihoods of counts, and ranks of links.

Every function takes what was observed first, then what was predicted, and returns a number.

Examples
--------
>>> from sfumato import metrics
>>> metrics.auc([1, 0, 1, 0], [0.9, 0.2, 0.4, 0.4])
0.875
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from sfumato.checks import as_numbers, check_count, check_positive
from sfumato.errors import DataError
from sfumato.types import Array


def rmse(observed: ArrayLike, predicted: ArrayLike) -> float:
    """Root mean squared error.

    Parameters
    ----------
    observed : array_like
        Values as they are.
    predicted : array_like
        Values as they were predicted.

    Returns
    -------
    float
        Root of the mean of squared differences.

    Examples
    --------
    >>> from sfumato import metrics
    >>> metrics.rmse([1, 2, 3], [1, 2, 5]) ** 2
    1.3333333333333333
    """
    x, v = _pair(observed, predicted)
    return float(np.sqrt(np.mean((x - v) ** 2)))


def poisson_log_likelihood(observed: ArrayLike, predicted: ArrayLike) -> float:
    """Mean log probability of counts under Poisson laws with the predicted means.

    A mean of zero makes a count above zero impossible: the result is then minus infinity.

    Parameters
    ----------
    observed : array_like
        Counts.
    predicted : array_like
        Means.

    Returns
    -------
    float
        Mean over the counts; higher is better.

    Examples
    --------
    >>> from sfumato import metrics
    >>> round(metrics.poisson_log_likelihood([0, 1, 3], [0.5, 1, 2]), 3)
    -1.071
    """
    from scipy.special import gammaln

    x, v = _pair(observed, predicted)
    if x.min() < 0 or v.min() < 0 or not np.isfinite([x.max(), v.max()]).all():
        raise DataError("counts and their means are finite numbers, and none is negative")
    with np.errstate(divide="ignore", invalid="ignore"):
        terms = np.where(x > 0, x * np.log(v), 0.0) - v - gammaln(x + 1)
    return float(terms.mean())


def normal_log_likelihood(observed: ArrayLike, predicted: ArrayLike, deviation: float) -> float:
    """Mean log density under normal laws with the predicted means and one standard deviation.

    Parameters
    ----------
    observed : array_like
        Values as they are.
    predicted : array_like
        Means.
    deviation : float
        Standard deviation of all laws.

    Returns
    -------
    float
        Mean over the values; higher is better.

    Examples
    --------
    >>> from sfumato import metrics
    >>> round(metrics.normal_log_likelihood([1, 2], [1, 2.5], deviation=0.5), 3)
    -0.476
    """
    check_positive(deviation=deviation)
    x, v = _pair(observed, predicted)
    squares = ((x - v) / deviation) ** 2
    return float(-0.5 * squares.mean() - np.log(deviation) - 0.5 * np.log(2 * np.pi))


def auc(observed: ArrayLike, predicted: ArrayLike) -> float:
    """Probability that a link is ranked above a cell without one (area under the ROC curve).

    Links are cells whose observed value is above zero. Equal predictions count half.

    Parameters
    ----------
    observed : array_like
        Above zero where there is a link.
    predicted : array_like
        Scores; their order alone counts.

    Returns
    -------
    float
        One where all links are ranked above all others, a half where ranks say nothing.

    Examples
    --------
    >>> from sfumato import metrics
    >>> metrics.auc([1, 0, 1, 0], [0.9, 0.2, 0.4, 0.4])
    0.875
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

    Parameters
    ----------
    k : int
        How many cells are looked at, of each group.
    observed : array_like
        Above zero where there is a link.
    predicted : array_like
        Scores; their order alone counts.
    groups : array_like or None
        What group each cell belongs to, such as its user.

    Returns
    -------
    float
        Between 0 and 1.

    Examples
    --------
    >>> from sfumato import metrics
    >>> metrics.precision_at(2, [1, 0, 1, 0], [0.9, 0.8, 0.7, 0.1])
    0.5
    """
    ranked = _ranked(k, observed, predicted, groups)
    return float(np.mean(ranked.add(ranked.links & ranked.top) / ranked.add(ranked.top)))


def recall_at(
    k: int, observed: ArrayLike, predicted: ArrayLike, groups: ArrayLike | None = None
) -> float:
    """Share of the links that are among the k highest predictions; with ``groups`` the mean over groups.

    Groups without a link do not count. Of equal predictions the first counts.

    Parameters
    ----------
    k : int
        How many cells are looked at, of each group.
    observed : array_like
        Above zero where there is a link.
    predicted : array_like
        Scores; their order alone counts.
    groups : array_like or None
        What group each cell belongs to, such as its user.

    Returns
    -------
    float
        Between 0 and 1.

    Examples
    --------
    >>> from sfumato import metrics
    >>> metrics.recall_at(
    ...     1,
    ...     [1, 0, 1, 1],
    ...     [0.9, 0.1, 0.2, 0.4],
    ...     groups=["ann", "ann", "bob", "bob"],
    ... )
    0.75
    """
    ranked = _ranked(k, observed, predicted, groups)
    links = ranked.linked()
    return float(np.mean(ranked.add(ranked.links & ranked.top)[links] / ranked.add(ranked.links)[links]))


def ndcg_at(k: int, observed: ArrayLike, predicted: ArrayLike, groups: ArrayLike | None = None) -> float:
    """Normalised discounted cumulative gain: how near the top of a list its links are.

    Links among the k highest predictions, each over log2 of one more than its place, over the most that
    there could be; with ``groups`` the mean over groups. Groups without a link do not count. Of equal
    predictions the first counts.

    Parameters
    ----------
    k : int
        How many cells are looked at, of each group.
    observed : array_like
        Above zero where there is a link.
    predicted : array_like
        Scores; their order alone counts.
    groups : array_like or None
        What group each cell belongs to, such as its user.

    Returns
    -------
    float
        Between 0 and 1.

    Examples
    --------
    >>> from sfumato import metrics
    >>> round(metrics.ndcg_at(3, [0, 1, 1], [0.9, 0.8, 0.7]), 3)
    0.693
    """
    ranked = _ranked(k, observed, predicted, groups)
    links = ranked.linked()
    gains = ranked.add(np.where(ranked.links & ranked.top, 1 / np.log2(ranked.place + 2.0), 0.0))
    most = np.cumsum(1 / np.log2(np.arange(len(ranked.place)) + 2.0))
    ideal = most[np.minimum(ranked.add(ranked.links)[links], k) - 1]
    return float(np.mean(gains[links] / ideal))


class _Ranked(NamedTuple):
    """Cells by group, best first: the first of each group, places from zero, and which are links."""

    starts: Array
    place: Array
    links: Array
    top: Array

    def add(self, numbers: Array) -> Array:
        """Sums by group."""
        total: Array = np.add.reduceat(
            numbers, self.starts, dtype=float if numbers.dtype == float else int
        )
        return total

    def linked(self) -> Array:
        """Groups that have a link."""
        links: Array = self.add(self.links) > 0
        if not links.any():
            raise DataError("there has to be a link: no observed value is above zero")
        return links


def _ranked(k: int, observed: ArrayLike, predicted: ArrayLike, groups: ArrayLike | None) -> _Ranked:
    check_count(k=k)
    x, v = _pair(observed, predicted)
    names = np.zeros(len(x)) if groups is None else np.asarray(groups)
    if names.shape != x.shape:
        raise DataError(f"{len(x)} cells need as many groups, got shape {names.shape}")
    order = np.lexsort((-v, names))  # by group, best first; stable
    _, starts = np.unique(names[order], return_index=True)
    place = np.arange(len(x)) - np.repeat(starts, np.diff(np.append(starts, len(x))))
    return _Ranked(starts, place, x[order] > 0, place < k)


def poisson_deviance(observed: ArrayLike, predicted: ArrayLike) -> float:
    """Mean deviance of counts under Poisson laws with the predicted means: zero where these are equal.

    A mean of zero makes a count above zero impossible: the result is then infinite.

    Parameters
    ----------
    observed : array_like
        Counts.
    predicted : array_like
        Means.

    Returns
    -------
    float
        Zero or more; lower is better.

    Examples
    --------
    >>> from sfumato import metrics
    >>> (
    ...     metrics.poisson_deviance([0, 2], [0, 2]),
    ...     round(metrics.poisson_deviance([0, 2], [1, 1]), 3),
    ... )
    (0.0, 1.386)
    """
    x, v = _pair(observed, predicted)
    if x.min() < 0 or v.min() < 0 or not np.isfinite([x.max(), v.max()]).all():
        raise DataError("counts and their means are finite numbers, and none is negative")
    with np.errstate(divide="ignore", invalid="ignore"):
        terms = np.where(x > 0, x * np.log(np.where(x > 0, x, 1.0) / v), 0.0) - x + v
    return float(2 * terms.mean())


def log_loss(observed: ArrayLike, predicted: ArrayLike) -> float:
    """Minus the mean log probability of answers, 0 or 1, under the predicted probabilities of 1.

    A probability of zero makes an answer impossible: if it comes, the result is infinite.

    Parameters
    ----------
    observed : array_like
        Answers, 0 or 1.
    predicted : array_like
        Probabilities of 1.

    Returns
    -------
    float
        Zero or more; lower is better.

    Examples
    --------
    >>> from sfumato import metrics
    >>> round(metrics.log_loss([1, 0], [0.8, 0.4]), 3)
    0.367
    """
    x, v = _pair(observed, predicted)
    if not np.isin(x, (0.0, 1.0)).all() or v.min() < 0 or v.max() > 1:
        raise DataError("answers are 0 or 1, and their probabilities numbers from 0 to 1")
    with np.errstate(divide="ignore"):
        return float(-np.log(np.where(x > 0, v, 1 - v)).mean())


def calibration_error(observed: ArrayLike, chances: ArrayLike, bins: int = 15) -> float:
    """How far the likeliest class's probability lies from how often it is right, over equal bins of it.

    ``observed`` are the places of classes, ``chances`` a row of probabilities for each example.

    Parameters
    ----------
    observed : array_like
        The place of each example's class.
    chances : array_like
        A row of probabilities for each example.
    bins : int
        Into how many equal parts the range of probabilities is cut.

    Returns
    -------
    float
        Mean distance, weighted by how many examples a bin has.

    Examples
    --------
    >>> from sfumato import metrics
    >>> round(
    ...     metrics.calibration_error(
    ...         [0, 1, 1], [[0.9, 0.1], [0.4, 0.6], [0.7, 0.3]]
    ...     ),
    ...     3,
    ... )
    0.4
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
