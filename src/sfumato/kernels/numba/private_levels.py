"""Counts and sums of levels, each unit's part clipped as a whole: what private steps start from."""

from __future__ import annotations

from typing import Any

import numpy as np

from sfumato.kernels.grid import BELOW_ONE
from sfumato.kernels.numba.compiler import kernel
from sfumato.kernels.numba.private_moves import standardised
from sfumato.types import Array


@kernel
def level_sums(
    offsets: Array,
    others: Array,
    values: Array,
    starts: Array,
    scale: Any,
    typical: float,
    centre: bool,
    clip: float,
    step: float,
    counts: Array,
    sums: Array,
    totals: Array,
) -> None:
    """Per level of the other modes: entries and their values, each unit's part clipped as a whole.

    Values lie within one unit of the middle. A unit with more than ``typical`` entries weighs them by
    sqrt(typical / entries). ``centre``: it first takes off a ridge mean of its own values. Its part of
    ``counts`` and ``sums`` is at most ``clip`` long; ``totals`` sums count, values and squares, of
    which a unit has at most sqrt(typical) each. All of it is in whole numbers of ``step``, to which what
    a unit adds is cut towards zero: sums are exact, in any order.
    """
    low, high, middle, unit = scale
    own_count, own_sum = np.zeros(counts.shape[0]), np.zeros(counts.shape[0])
    for level in range(starts.shape[0] - 1):
        first, beyond = starts[level], starts[level + 1]
        n = beyond - first
        if n == 0:
            continue
        whole, squares = 0.0, 0.0
        for entry in range(first, beyond):
            value = max(-1.0, min(1.0, standardised(values[entry], low, high, middle, unit)))
            whole += value
            squares += value * value
        base = whole / (n + 1) if centre else 0.0
        weight = min(1.0, np.sqrt(typical / n))
        share = BELOW_ONE * min(1.0, typical / n) / np.sqrt(typical) / step
        totals[0] += np.int64(share * n)
        totals[1] += np.int64(share * whole)
        totals[2] += np.int64(share * squares)
        length = 0.0
        for entry in range(first, beyond):
            value = max(-1.0, min(1.0, standardised(values[entry], low, high, middle, unit)))
            value = weight * (value - base)
            for j in range(others.shape[0]):
                row = offsets[j] + others[j, entry]
                # By how much the squared length grows: entries that share a level add up in it.
                length += weight * (2 * own_count[row] + weight) + value * (2 * own_sum[row] + value)
                own_count[row] += weight
                own_sum[row] += value
        factor = BELOW_ONE * clip / max(np.sqrt(length), clip) / step
        for entry in range(first, beyond):
            for j in range(others.shape[0]):
                row = offsets[j] + others[j, entry]
                counts[row] += np.int64(factor * own_count[row])
                sums[row] += np.int64(factor * own_sum[row])
                own_count[row], own_sum[row] = 0.0, 0.0
