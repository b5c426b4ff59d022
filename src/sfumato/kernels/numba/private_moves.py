"""How parameters move in private steps: records that kernels read, made from what was released."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from sfumato.kernels.numba.compiler import inlined
from sfumato.kernels.numba.simd import aligned_zeros
from sfumato.records import record
from sfumato.types import Array

if TYPE_CHECKING:
    from sfumato.models.multilinear import Multilinear


@record
class Scale(NamedTuple):
    """How values become numbers that a model explains: clipped, less ``middle``, times ``unit``."""

    low: Any
    high: Any
    middle: Any
    unit: Any


@record
class Moves(NamedTuple):
    """How parameters move in every step of a call; see ``private_steps.py``. All of it is public.

    ``paces`` holds a line per row: keep, pace and jitter of the row, then the same of its bias.
    ``square`` (of the metric) and ``home`` hold a padded row per mode; ``core`` holds keep, pace, jitter
    and square of the core.
    """

    paces: Array
    square: Array
    home: Array
    bias_home: Array
    bias_square: Any
    core: Array


KEEP, PACE, JITTER, OF_BIAS = 0, 1, 2, 4


class Memory(NamedTuple):
    """Scratch memory of a call, laid out like the parameters. ``own`` is one unit's gradient."""

    gradient: Array
    bias_gradient: Array
    core_gradient: Array
    own: Array
    own_bias: Array
    own_core: Array
    mark: Array  # where a row stands in the sum over one unit's entries


def make_memory(model: Multilinear, units: bool) -> Memory:
    """``units``: whether contributions are those of units with several entries."""
    shape, dtype = model.rows.shape, model.dtype
    own = shape if units else (0, shape[1])
    core = model.free_core.shape[0]
    return Memory(
        aligned_zeros(shape, dtype),
        np.zeros(shape[0], dtype),
        np.zeros(core, dtype),
        aligned_zeros(own, dtype),
        np.zeros(own[0], dtype),
        np.zeros(core, dtype),
        np.zeros(own[0], np.int8),
    )


def make_paces(row: Array, bias: Array) -> Array:
    """The lines of :class:`Moves` from keep (above 0, at most 1), pace and jitter of rows and biases."""
    paces = aligned_zeros((row.shape[1], 2 * OF_BIAS), np.float64)
    for at, line in ((0, row), (OF_BIAS, bias)):
        paces[:, at : at + 3] = line.T
    return paces


def noise_after(paces: Array, steps: int, before: Array) -> Array:
    """Variance, in the metric, of the noise in rows after some steps, from that before them."""
    left, times = left_after(paces[:, KEEP], steps)
    variance: Array = left**2 * before + paces[:, JITTER] ** 2 * times
    return variance


def left_after(keep: Any, steps: int) -> Any:
    """keep^s and 1 + keep^2 + .. + keep^2(s-1), by doubling: what s steps leave, and their noise."""
    left, times, bit = 0 * keep + 1.0, 0 * keep, 1
    while bit <= steps // 2:
        bit *= 2
    while bit > 0:
        times = times * (1 + left * left)
        left = left * left
        if steps & bit:
            times = times * (keep * keep) + 1
            left = left * keep
        bit //= 2
    return left, times


after_steps = inlined(left_after)  # inside kernels, of one row


@inlined
def standardised(value: Any, low: Any, high: Any, middle: Any, unit: Any) -> Any:
    """A value clipped to its bounds (NaN to the lower one), as the model explains it."""
    inside = min(value, high) if value > low else low
    return (inside - middle) * unit
