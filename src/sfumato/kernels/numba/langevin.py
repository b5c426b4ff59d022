"""Gradients of log likelihoods at drawn entries of a relation; see ``solvers/coupled/slopes.py``."""

from __future__ import annotations

from typing import Any

import numpy as np

from sfumato.kernels.numba.compiler import kernel
from sfumato.kernels.numba.entrywise import add_kronecker, evaluate, locate, workspace
from sfumato.kernels.numba.threads import scratch
from sfumato.types import Array


@kernel
def add_picks(
    arrays: Any,
    coordinates: Array,
    values: Array,
    picks: Array,
    p: float,
    first: float,
    second: float,
    weight: float,
    least: float,
    row_gradient: Array,
    core_gradient: Array,
    row_scale: Array,
    core_scale: Array,
) -> None:
    """Add (first x v^-p - second v^(1-p)) f of some entries; to scales where there is room.

    ``least`` is what a value of the model counts as at least.
    """
    order, width, rank = len(arrays.offsets), arrays.rows.shape[1], row_gradient.shape[1]
    index, work = scratch(order, np.int64), workspace(arrays)
    kronecker = scratch(core_scale.shape[0], np.float64)
    scaled, poisson = row_scale.shape[0] > 0, p == 1.0
    for pick in range(picks.shape[0]):
        entry = picks[pick]
        locate(arrays, coordinates, entry, index)
        value = float(evaluate(arrays, index, work))
        if poisson:
            slope = first * values[entry] / max(value, least) - second
        else:
            slope = first * values[entry] - second * value
        for m in range(order):
            row = index[m]
            for r in range(rank):
                row_gradient[row, r] += slope * work[m * width + r]
        add_kronecker(arrays, work, slope, core_gradient)
        if scaled:
            for m in range(order):
                row = index[m]
                for r in range(rank):
                    design = work[m * width + r]
                    row_scale[row, r] += weight * (design if poisson else design * design)
            for q in range(core_scale.shape[0]):
                kronecker[q] = 0.0
            add_kronecker(arrays, work, 1.0, kronecker)
            for q in range(core_scale.shape[0]):
                product = kronecker[q]
                core_scale[q] += weight * (product if poisson else product * product)
