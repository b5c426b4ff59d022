"""Values of many cells, and lists of the best levels, on a device: as the processor's, in other words.

Values are made in single precision, scores of lists in double precision: near ties decide who is listed.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from sfumato.kernels.jax import double_precision, within_memory
from sfumato.kernels.jax.entrywise import (
    Parameters,
    bias_sum,
    chunk_size,
    designs,
    explained,
    parameters,
)
from sfumato.types import Array

if TYPE_CHECKING:
    from sfumato.kernels.numba.lists import Held
    from sfumato.models.multilinear import Multilinear

NOBODY = -1  # in place of a level, as in ``kernels/numba/lists.py``
_SCORES = 1 << 25  # of lists that are held at a time


@jax.jit
def _values(p: Parameters, cells: Any) -> Any:
    index = list(cells)
    return p.mean + bias_sum(p, index) + explained(p, index, designs(p, index, 0), 0)


def predict_cells(model: Multilinear, coordinates: Array) -> Array:
    """Values at the cells ``coordinates[:, e]``, whose levels the model has."""
    number, size = coordinates.shape[1], chunk_size(model.ranks, model.free_core.size)
    size = min(size, 1 << max(0, number - 1).bit_length())
    out = np.empty(number, model.dtype)
    with within_memory():
        p = parameters(model)
        for first in range(0, number, size):
            some = coordinates[:, first : first + size]
            cells = np.zeros((model.order, size), np.int32)
            cells[:, : some.shape[1]] = some
            out[first : first + size] = np.asarray(_values(p, cells))[: some.shape[1]]
    return out


@partial(jax.jit, static_argnames="k")
def _best(owners: Any, levels: Any, biases: Any, rows: Any, taken: Any, k: int) -> Any:
    scores = owners @ levels.T + biases
    scores = scores.at[rows, taken].set(-jnp.inf, mode="drop")
    best, found = jax.lax.top_k(scores, k)  # of equal ones the first comes first
    return jnp.where(best > -jnp.inf, found, NOBODY)


def best_levels(owners: Array, levels: Array, biases: Array, held: Held, k: int, threads: int) -> Array:  # noqa: ARG001
    """For each owner the k levels with the highest ``bias + owner . level`` that it does not hold.

    As on processors; but a level whose bias is minus infinity is in no list.
    """
    number, choice = owners.shape[0], levels.shape[0]
    out = np.full((number, k), NOBODY, np.int64)
    at_once = max(1, min(number, _SCORES // max(choice, 1)))
    whose = np.repeat(np.arange(number), np.diff(held.starts))
    with within_memory(), double_precision():
        there = jax.device_put((np.asarray(levels, np.float64), np.asarray(biases, np.float64)))
        for first in range(0, number if choice else 0, at_once):
            some = np.zeros((at_once, owners.shape[1]))
            here = owners[first : first + at_once]
            some[: len(here)] = here
            begin, end = held.starts[first], held.starts[first + len(here)]
            mine = whose[begin - held.starts[0] : end - held.starts[0]]
            rows, taken = _filled(mine - first, at_once), _filled(held.levels[begin:end], choice)
            best = np.asarray(_best(some, *there, rows, taken, min(k, choice)))
            out[first : first + at_once, : min(k, choice)] = best[: len(here)]
    return out


def _filled(numbers: Array, beyond: int) -> Array:
    """As many as a power of two, so that few programs are compiled; those that are none lie beyond."""
    filled = np.full(1 << max(0, len(numbers) - 1).bit_length(), beyond, np.int64)
    filled[: len(numbers)] = numbers
    return filled
