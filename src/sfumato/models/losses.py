"""What values are, and so what a fit of them is to be close in: numbers, counts, yes or no, or *seen*.

A loss maps values to the scale that is fitted, one by one and by public numbers alone, and what a model
says back to the scale of the data. Fits between the two are those of squared errors, private ones too: a
public map of each value changes nothing in what is proven of them (``proofs/links.md``).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import ClassVar

import numpy as np

from sfumato import metrics
from sfumato.data.tensor import SparseTensor
from sfumato.errors import DataError, SettingError
from sfumato.models.own_prior import Certainty
from sfumato.surface import either
from sfumato.types import Array

Bounds = tuple[float, float] | None


@dataclass(frozen=True)
class Loss:
    """Numbers, fitted as they are: squared errors."""

    name: ClassVar[str] = "squared"
    metric: ClassVar[str] = "rmse"

    def check(self, bounds: Bounds) -> None:
        """Raise a ``SettingError`` for public bounds that values of this kind cannot have."""

    def fitted_bounds(self, bounds: Bounds) -> Bounds:
        """Of what is fitted, from those of the data."""
        return bounds

    def fitted(self, values: Array) -> Array:
        """Values on the scale that is fitted. Says nothing of them: they may be private."""
        return values

    def of(self, tensor: SparseTensor) -> SparseTensor:
        """A tensor on the scale that is fitted."""
        if self.name == "squared":
            return tensor
        self.check(tensor.bounds)
        bounds = self.fitted_bounds(tensor.bounds)
        return tensor.with_values(self.fitted(tensor.values).astype(tensor.values.dtype), bounds)

    def check_values(self, tensor: SparseTensor) -> None:
        """Refuse values of another kind, where they may be looked at: without privacy."""

    def predicted(self, values: Array, bounds: Bounds, excess: float = 0.0) -> Array:  # noqa: ARG002
        """What a model says, on the scale of the data; ``bounds`` are those of what was fitted."""
        return values if bounds is None else np.clip(values, *bounds)

    def excess(self, mean: float, scatter: float, certainty: Certainty) -> float:  # noqa: ARG002
        """How much more values vary than the loss expects of them, from what a fit has released."""
        return 0.0

    def error(self, observed: Array, predicted: Array) -> float:
        """The loss's own metric."""
        return metrics.rmse(observed, predicted)


class Seen(Loss):
    """Entries say what was seen, whatever their values; cells without one count as zeros."""

    name: ClassVar[str] = "seen"
    metric: ClassVar[str] = "ndcg@10"

    def fitted_bounds(self, bounds: Bounds) -> Bounds:  # noqa: ARG002
        return (0.0, 1.0)

    def fitted(self, values: Array) -> Array:
        return np.ones_like(values)

    def predicted(self, values: Array, bounds: Bounds, excess: float = 0.0) -> Array:  # noqa: ARG002
        """Scores, of which only the order means anything."""
        return values


_CLOSEST = 0.005  # that a probability comes to yes or no: a model that is sure is not always right
_CORNER = 0.1  # from where on probabilities come closer to yes or no ever more slowly


class Logistic(Loss):
    """Yes or no, 1 or 0: predictions are probabilities, judged by their logarithm.

    A private step from a constant is the same for the logistic loss as for squared errors: residuals
    are x - p in both. What is fitted are therefore probabilities themselves; where they come close to
    yes or no, or would go beyond, their distance from it falls exponentially instead.
    """

    name: ClassVar[str] = "logistic"
    metric: ClassVar[str] = "log-loss"

    def check(self, bounds: Bounds) -> None:
        if bounds not in (None, (0.0, 1.0)):
            raise SettingError(
                "yes and no are 1 and 0: leave the bounds out, or give "
                + either("bounds=(0, 1)", "--bounds 0 1")
            )

    def fitted_bounds(self, bounds: Bounds) -> Bounds:  # noqa: ARG002
        return (0.0, 1.0)

    def check_values(self, tensor: SparseTensor) -> None:
        if not np.isin(tensor.values, (0, 1)).all():
            raise DataError("the logistic loss is for answers: values are 0 or 1, and nothing else")

    def predicted(self, values: Array, bounds: Bounds, excess: float = 0.0) -> Array:  # noqa: ARG002
        low, high = (
            np.where(p < _CORNER, _CORNER * np.exp(np.minimum(p / _CORNER - 1, 0.0)), p)
            for p in (values, 1 - values)
        )
        return np.clip(np.where(values < 0.5, low, 1 - high), _CLOSEST, 1 - _CLOSEST)

    def error(self, observed: Array, predicted: Array) -> float:
        return metrics.log_loss(observed, predicted)


class Poisson(Loss):
    """Counts: predictions are their means, judged by the Poisson deviance.

    Roots of counts vary by the same amount whatever their mean, and a public bound on counts is far
    smaller among roots: what is fitted are roots, and the mean is the one whose root is expected there.
    Where roots vary by more than those of Poisson counts, means are larger in proportion.
    """

    name: ClassVar[str] = "poisson"
    metric: ClassVar[str] = "deviance"

    def check(self, bounds: Bounds) -> None:
        if bounds is not None and bounds[0] < 0:
            raise SettingError(
                f"counts are not negative: the lower bound is {bounds[0]:g}, and has to be 0 or more"
            )

    def fitted_bounds(self, bounds: Bounds) -> Bounds:
        return None if bounds is None else (float(np.sqrt(bounds[0])), float(np.sqrt(bounds[1])))

    def fitted(self, values: Array) -> Array:
        with np.errstate(invalid="ignore"):
            root: Array = np.sqrt(np.maximum(values, 0))
        return root  # NaN stays what it is: whoever admits values clips it

    def check_values(self, tensor: SparseTensor) -> None:
        if not (np.isfinite(tensor.values) & (tensor.values >= 0)).all():
            raise DataError("the Poisson loss is for counts: values are finite, and none is negative")

    def predicted(self, values: Array, bounds: Bounds, excess: float = 0.0) -> Array:
        low, high = bounds or (0.0, np.inf)
        means = (1 + excess) * mean_of_root(np.clip(values, low, high))
        return means if bounds is None else np.minimum(means, max(high**2, _LEAST_MEAN))

    def excess(self, mean: float, scatter: float, certainty: Certainty) -> float:
        """Of the variance of roots over that of Poisson counts of this mean root, over its square.

        As little of it as noise leaves likely: means that are taken too large cost more than those that
        are taken too small, and most counts vary by little more than Poisson's law.
        """
        roots = np.maximum([mean, mean + certainty.mean], _LEAST_ROOT)
        expected = float(np.max(mean_of_root(roots) - roots**2))
        least = max(0.0, scatter - certainty.scatter - expected) / float(roots[1]) ** 2
        return min(_MOST_EXCESS, least)

    def error(self, observed: Array, predicted: Array) -> float:
        return metrics.poisson_deviance(observed, predicted)


_LEAST_ROOT = 0.3  # that counts are taken to have on average: noise may have made it smaller
_MOST_EXCESS = 0.5  # the same: what is more is taken for noise
_LEAST_MEAN = 0.01  # of counts: a mean of zero would make every other count impossible


@cache
def _table() -> tuple[Array, Array]:
    """Means of Poisson laws up to some size, and of the roots of what is drawn from these."""
    from scipy.stats import poisson

    means = np.concatenate([[0.0], np.geomspace(1e-3, 60.0, 400)])
    counts = np.arange(160)
    roots = poisson.pmf(counts, means[:, None]) @ np.sqrt(counts)
    return means, roots


def mean_of_root(roots: Array) -> Array:
    """The mean of the Poisson law whose roots have these means."""
    means, table = _table()
    beyond = roots**2 + 0.25  # of large means, to within 1 / (64 mean)
    found = np.where(roots < table[-1], np.interp(roots, table, means), beyond)
    least: Array = np.maximum(found, _LEAST_MEAN)
    return least


LOSSES: dict[str, Loss] = {loss.name: loss for loss in (Loss(), Seen(), Logistic(), Poisson())}
