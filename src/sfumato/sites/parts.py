"""A tensor in parts, for holders that do not share memory."""

from __future__ import annotations

import numpy as np

from sfumato.data.tensor import SparseTensor
from sfumato.kernels.numba.ordering import level_counts


def dealt_by(tensor: SparseTensor, mode: int, number: int) -> list[SparseTensor]:
    """Just so many tensors of the same modes, with as many levels of one of them each, or nearly."""
    holder = tensor.coordinates[mode].astype(np.int64) * number // max(tensor.shape[mode], 1)
    return [tensor.take(holder == part) for part in range(number)]


def cut_by(tensor: SparseTensor, mode: int, number: int) -> list[SparseTensor]:
    """At most so many tensors of the same modes, with about as many entries each.

    All entries of a level of the mode are in one of them, in the order that they had.
    """
    levels = tensor.coordinates[mode]
    before = np.cumsum(level_counts(levels, tensor.shape[mode]))
    wanted = tensor.n_entries * np.arange(1, number) / number
    holder = np.searchsorted(np.unique(np.searchsorted(before, wanted)), levels, side="left")
    parts = [tensor.take(holder == part) for part in range(number)]
    return [part for part in parts if part.n_entries] or [tensor]
