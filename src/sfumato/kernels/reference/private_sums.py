"""Readable twin of ``kernels/numba/private_sums.py``: every unit's contribution dense, by itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from sfumato.kernels.grid import BELOW_ONE, grid
from sfumato.kernels.numba.private_moves import Moves, Scale
from sfumato.kernels.numba.private_sums import Sums
from sfumato.kernels.reference.private_steps import (
    contribution_reference,
    targets_reference,
    unit_contribution_reference,
)
from sfumato.types import Array

if TYPE_CHECKING:
    from sfumato.models.multilinear import Multilinear


def _whole(contributions: list[tuple[Array, Array, Array]], step: float, model: Multilinear) -> Sums:
    """The sum of contributions, each cut towards zero to whole numbers of a step."""
    like = model.rows, model.biases, model.free_core
    sums = [np.zeros(array.shape, np.int64) for array in like]
    for contribution in contributions:
        for k, part in enumerate(contribution):
            sums[k] += np.trunc(part / step).astype(np.int64)
    return Sums(*sums)


def entry_gradients_reference(
    model: Multilinear,
    moves: Moves,
    scale: Scale,
    coordinates: Array,
    values: Array,
    clip: float,
    fit_biases: bool,
) -> Sums:
    """Twin of :func:`entry_gradients`."""
    targets, most = targets_reference(values, scale), clip * BELOW_ONE
    contributions = [
        contribution_reference(
            model, moves, coordinates[:, [e]], targets[[e]], 1.0, most, fit_biases, None
        )
        for e in range(len(values))
    ]
    return _whole(contributions, grid(clip), model)


def unit_gradients_reference(
    model: Multilinear,
    moves: Moves,
    scale: Scale,
    coordinates: Array,
    values: Array,
    mode: int,
    typical: float,
    local: bool,
    ridge: tuple[float, float],
    clip: float,
    fit_biases: bool,
) -> Sums:
    """Twin of :func:`unit_gradients`."""
    targets, most = targets_reference(values, scale), clip * BELOW_ONE
    how = mode, typical, local, ridge, most, fit_biases
    contributions = [
        unit_contribution_reference(model, moves, coordinates[:, mine], targets[mine], *how)
        for mine in (coordinates[mode] == level for level in range(model.shape[mode]))
        if mine.any()
    ]
    return _whole(contributions, grid(clip), model)
