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

    ``paces`` holds a line per row: decay (-log keep), renewal (1 / (1 - keep^2), zero where keep is
    one), pace and jitter of the row, then the same of its bias. ``square`` (of the metric) and
    ``home`` hold a padded row per mode; ``core`` holds keep, pace, jitter and square of the core.
    """

    paces: Array
    square: Array
    home: Array
    bias_home: Array
    bias_square: Any
    core: Array


DECAY, RENEWAL, PACE, JITTER, OF_BIAS = 0, 1, 2, 3, 4


class Memory(NamedTuple):
    """Scratch memory of a call, laid out like the parameters. ``own`` is one unit's gradient."""

    gradient: Array
    bias_gradient: Array
    core_gradient: Array
    own: Array
    own_bias: Array
    own_core: Array
    last: Array  # step up to which a row is made up, and at which it was touched; -1: at the start
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
        np.full(shape[0], -1, np.int64),
        np.zeros(own[0], np.int8),
    )


def make_paces(row: Array, bias: Array) -> Array:
    """The lines of :class:`Moves` from keep (above 0, at most 1), pace and jitter of rows and biases."""
    paces = aligned_zeros((row.shape[1], 2 * OF_BIAS), np.float64)
    for at, (keep, pace, jitter) in ((0, row), (OF_BIAS, bias)):
        decay = -np.log(keep)
        paces[:, at + DECAY], paces[:, at + PACE], paces[:, at + JITTER] = decay, pace, jitter
        shrinks = decay > 0
        paces[shrinks, at + RENEWAL] = -1 / np.expm1(-2 * decay[shrinks])
    return paces


def noise_after(paces: Array, steps: int, before: Array) -> Array:
    """Variance, in the metric, of the noise in rows after some steps, from that before them."""
    left = np.exp(-2 * paces[:, DECAY] * steps)
    added = np.where(paces[:, RENEWAL] > 0, (1 - left) * paces[:, RENEWAL], steps)
    variance: Array = left * before + paces[:, JITTER] ** 2 * added
    return variance


@inlined
def standardised(value: Any, low: Any, high: Any, middle: Any, unit: Any) -> Any:
    """A value clipped to its bounds (NaN to the lower one), as the model explains it."""
    inside = min(value, high) if value > low else low
    return (inside - middle) * unit
