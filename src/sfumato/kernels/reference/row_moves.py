"""Readable twin of ``kernels/numba/row_moves.py``."""

from __future__ import annotations

import numpy as np

from sfumato.kernels.numba.row_moves import Nearer, Pull
from sfumato.types import Array


def move_rows_reference(at: Array, sums: Array, pull: Pull) -> Nearer:
    n, power, rank = pull.counts[:, None], pull.power, at.shape[1]
    ridge = pull.scatter + (pull.noise / pull.counts)[:, None]
    whole = n * power + ridge
    moved = at + pull.step * (power * sums[:, :rank] - ridge * at) / whole
    doubts = ridge * power / whole
    data = pull.scatter * power / (n * power + pull.scatter)
    average = np.asarray(pull.counts @ doubts / pull.counts.sum())
    return Nearer(moved, average, doubts.sum(axis=1), data.sum(axis=1))


def weighted_products_reference(rows: Array, weights: Array) -> Array:
    return np.asarray(rows.T @ (rows * weights[:, None]))
