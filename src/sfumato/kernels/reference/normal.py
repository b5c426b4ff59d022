"""Readable twins of ``kernels/numba/normal.py``: NumPy, row by row."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from sfumato.kernels.numba.normal import NormalEquations, Ridge
from sfumato.types import Array

if TYPE_CHECKING:
    from sfumato.models.multilinear import Multilinear
    from sfumato.sites.memory import ByMode


def normal_equations_reference(
    model: Multilinear, entries: ByMode, mode: int, low: int, high: int
) -> NormalEquations:
    """Readable twin of :func:`normal_equations` for certain parameters."""
    width, n = model.rows.shape[1], high - low
    rank = model.ranks[mode]
    gram = np.zeros((n, width, width), model.dtype)
    rhs, design_sum = np.zeros((n, width), model.dtype), np.zeros((n, width), model.dtype)
    target_sum = np.zeros(n, model.dtype)
    for row in range(low, high):
        here = slice(entries.starts[row], entries.starts[row + 1])
        cells = np.insert(entries.others[:, here], mode, row, axis=0)
        x = model.design(mode, cells)
        others = model.bias_sum(cells) - model.mode_biases[mode][row]
        y = entries.values[here] - model.mean - others
        w = entries.weights[here] if entries.weights.size else np.ones_like(y)
        gram[row - low, :rank, :rank] = (w * x.T) @ x
        rhs[row - low, :rank] = x.T @ (w * y)
        design_sum[row - low, :rank] = w @ x
        target_sum[row - low] = w @ y
    counts = entries.total_weights[low:high]
    return NormalEquations(gram, rhs, design_sum, target_sum, np.zeros((n, width)), counts)


def solve_rows_reference(sums: NormalEquations, ridge: Ridge, rank: int) -> tuple[Array, Array]:
    """Readable twin of :func:`solve_rows`: rows and biases."""
    rows, biases = [], []
    for i, n in enumerate(sums.counts):
        upper = np.triu(sums.gram[i][:rank, :rank])
        gram = upper + np.triu(upper, 1).T + np.diag(sums.variance[i][:rank])
        system = np.zeros((rank + 1, rank + 1))
        system[:rank, :rank] = ridge.noise * gram
        system[:rank, rank] = system[rank, :rank] = ridge.noise * sums.design_sum[i][:rank]
        system[rank, rank] = ridge.noise * n
        precision = ridge.constant[:rank] + ridge.per_entry * n
        bias_precision = ridge.bias_constant + ridge.bias_per_entry * n
        right = ridge.noise * np.append(sums.rhs[i][:rank], sums.target_sum[i])
        right[:rank] += precision * ridge.mean
        system[np.arange(rank), np.arange(rank)] += precision
        if np.isinf(bias_precision):
            rows.append(np.linalg.solve(system[:rank, :rank], right[:rank]))
            biases.append(0.0)
        else:
            system[rank, rank] += bias_precision
            solution = np.linalg.solve(system, right)
            rows.append(solution[:rank])
            biases.append(solution[rank])
    return np.array(rows), np.array(biases)
