"""Readable twin of ``kernels/numba/alternating.py``: one entry, one unit after the other."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

import numpy as np

from sfumato.kernels.grid import BELOW_ONE, cut, grid
from sfumato.kernels.numba.alternating import CORE, Features, Weighting
from sfumato.types import Array

if TYPE_CHECKING:
    from sfumato.models.multilinear import Multilinear


def sums_reference(
    model: Multilinear,
    block: int,
    features: Features,
    coordinates: Array,
    values: Array,
    weighting: Weighting | None = None,
    unit_mode: int = 0,
) -> Array:
    """Slow twin of ``entry_sums``, or with a weighting of ``unit_sums``."""
    units = np.arange(values.shape[0]) if weighting is None else coordinates[unit_mode]
    levels = np.zeros(values.shape[0], int) if block == CORE else coordinates[block]
    size = 1 if block == CORE else model.shape[block]
    each = np.array(
        [
            _one_entry(model, block, features, cell, v)
            for cell, v in zip(coordinates.T, values, strict=True)
        ]
    )
    bound = features.bound if weighting is None else weighting.bound
    out, step = np.zeros((size, each.shape[1]), np.int64), grid(bound)
    for unit in np.unique(units):
        mine = units == unit
        vector, counts = np.zeros(out.shape), np.bincount(levels[mine], minlength=size)
        if weighting is None:
            np.add.at(vector, levels[mine], each[mine])
        else:
            np.add.at(vector, levels[mine], each[mine] * weighting.levels[levels[mine], None])
            vector *= (((weighting.levels * counts) ** 2).sum() + weighting.ridge) ** -0.5
            vector *= min(1.0, bound * BELOW_ONE / max(float(np.linalg.norm(vector)), 1e-300))
        out += cut(vector, step)
    return out


def _one_entry(model: Multilinear, block: int, features: Features, cell: Array, value: float) -> Array:
    here = cell[:, None]
    d = (model.kronecker(here) if block == CORE else model.design(block, here))[0]
    rank, metric = d.shape[0], features.metric
    x = metric[:, :rank].T @ d if metric.shape[0] > 1 else metric[0, :rank] * d
    norm = float(np.linalg.norm(x))
    x = x * min(1.0, features.length * BELOW_ONE / max(norm, 1e-300)) if norm < inf else np.zeros(rank)
    if features.bias:
        x = np.append(x, features.bias)
    residual = value - model.predict_reference(here)[0]
    gradient: Array = np.clip(residual, -features.target, features.target) * x
    return gradient
