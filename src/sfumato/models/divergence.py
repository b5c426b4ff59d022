"""Beta divergences (B. Ermis, Eq. 2.4): how far a model's values are from observed ones."""

from __future__ import annotations

import numpy as np

from sfumato.types import Array

SMALLEST = 1e-12  # a model's value counts as at least this much: powers of zero are infinite


def beta_divergence(x: Array, v: Array, p: float) -> Array:
    """The divergence of the model's values v from observed values x, cell by cell.

    For p above 0 neither is negative.

    ====  ==========================  =================
    p     divergence                  of
    ====  ==========================  =================
    0     (x - v)^2 / 2               Gaussian
    1     x log(x / v) - x + v        Poisson
    2     x / v - log(x / v) - 1      Gamma
    ====  ==========================  =================
    """
    x, v = np.asarray(x, np.float64), np.asarray(v, np.float64)
    if p == 0:  # here both may be negative
        return np.asarray((x - v) ** 2 / 2)
    v = np.maximum(v, SMALLEST)
    if p == 1:  # the logarithm of no zero, so that zeros times it are zeros
        return np.asarray(x * np.log(np.maximum(x / v, np.finfo(np.float64).tiny)) - x + v)
    if p == 2:
        return np.asarray(x / v - np.log(x / v) - 1)
    constant = np.where(x > 0, np.where(x > 0, x, 1.0) ** (2 - p), 0.0) / ((1 - p) * (2 - p))
    return np.asarray(constant - x * v ** (1 - p) / (1 - p) + v ** (2 - p) / (2 - p))
