"""Readable twin of ``kernels/numba/contributions.py``: one unit after the other."""

from __future__ import annotations

import numpy as np

from sfumato.kernels.grid import BELOW_ONE, grid
from sfumato.kernels.numba.contributions import Contribution
from sfumato.types import Array


def unit_sums_reference(
    levels: Array, starts: Array, residuals: Array, weights: Array, made: Contribution
) -> Array:
    """Slow twin of ``unit_sums``."""
    step, out = grid(made.bound), np.zeros(weights.shape[0])
    for unit in range(starts.shape[0] - 1):
        mine = slice(starts[unit], starts[unit + 1])
        rest = residuals[mine]
        if made.centred:
            rest = rest - rest.sum() / (rest.shape[0] + made.ridge)
        here, size = levels[mine], weights.shape[0]
        number = weights * np.bincount(here, minlength=size)
        total = weights * np.bincount(here, np.clip(rest, -made.clip, made.clip), size)
        total *= ((number**made.norm).sum() + made.ridge) ** (-1 / made.norm)
        length, most = np.linalg.norm(total, made.norm), made.bound * BELOW_ONE
        out += np.trunc(total * (most / length if length > most else 1.0) / step) * step
    return out
