"""Means of counts that are clipped when they are measured: pure mathematics, no data."""

from __future__ import annotations

from math import ceil

import numpy as np

from sfumato.types import Array


def clipped_mean(rates: Array, bounds: tuple[float, float] | None) -> Array:
    """E[clip(X, low, high)] of X ~ Poisson(rate); without bounds the rate. It grows with the rate."""
    if bounds is None:
        return rates
    from scipy.special import pdtr

    low, high = bounds
    first, last = (
        max(ceil(low), 0),
        ceil(high),
    )  # counts from the first to before the last are not clipped

    def up_to(count: int) -> Array:
        return np.asarray(pdtr(count, rates)) if count >= 0 else np.zeros_like(rates)

    inside = rates * (up_to(last - 2) - up_to(first - 2))
    return np.asarray(low * up_to(first - 1) + inside + high * (1 - up_to(last - 1)))
