"""T(I, u, ..., u) on a device, for many directions at once, in double precision.

A dense tensor is multiplied by the directions of one mode after the other, so that a term is rounded no
more often than on processors (``solvers/power/tensors.py``): in whatever order a device adds up the
products of one mode, there are no more of them than levels.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from sfumato.kernels.jax import double_precision, within_memory
from sfumato.types import Array

PRODUCTS = 1 << 28  # numbers that are made on the way, at most
_ENTRIES = 1 << 22  # entries times directions at a time


@partial(jax.jit, static_argnames="target")
def _contracted(tensor: Any, directions: tuple[Any, ...], target: int) -> Any:
    """The tensor times the directions of all modes but the target's; a column for each direction."""
    last = tensor.ndim - 1
    first = last if target != last else 0
    found = jnp.tensordot(tensor, directions[first], axes=(first, 0), precision="highest")
    left = [mode for mode in range(tensor.ndim) if mode != first]
    while len(left) > 1:
        place = max(i for i, mode in enumerate(left) if mode != target)
        along = [1] * found.ndim
        along[place], along[-1] = found.shape[place], found.shape[-1]
        found = (found * directions[left[place]].reshape(along)).sum(place)
        del left[place]
    return found


def put(*arrays: Array) -> Any:
    """Arrays on the device, in their own precision."""
    with within_memory(), double_precision():
        return jax.block_until_ready(jax.device_put(arrays))


def dense_power(tensor: Any, directions: Sequence[Array], targets: Sequence[int]) -> list[Array]:
    """The answers of some modes; ``directions`` has a matrix for each mode, a column for each."""
    restarts, shape = directions[0].shape[1], tensor.shape
    at_once = max(1, PRODUCTS // max(1, prod(shape) // min(shape)))
    answers = [np.empty((shape[target], restarts)) for target in targets]
    with within_memory(), double_precision():
        for begin in range(0, restarts, at_once):
            some = slice(begin, begin + at_once)
            given = tuple(np.ascontiguousarray(each[:, some], np.float64) for each in directions)
            for target, answer in zip(targets, answers, strict=True):
                answer[:, some] = np.asarray(_contracted(tensor, given, target))
    return answers


@partial(jax.jit, static_argnames="targets", donate_argnums=0)
def _added(
    outs: tuple[Any, ...], cells: Any, values: Any, directions: tuple[Any, ...], targets: tuple[int, ...]
) -> tuple[Any, ...]:
    added = []
    for out, target in zip(outs, targets, strict=True):
        product = values[:, None]
        for mode, each in enumerate(directions):
            if mode != target:
                product = product * each[cells[mode]]
        added.append(out.at[cells[target]].add(product))
    return tuple(added)


def sparse_power(
    cells: Any, values: Any, directions: Sequence[Array], targets: tuple[int, ...]
) -> list[Array]:
    """The same of entries, whose other cells are zero; sums of a level are rounded at every entry."""
    restarts, entries = directions[0].shape[1], values.shape[0]
    at_once = max(1, _ENTRIES // restarts)
    with within_memory(), double_precision():
        given = tuple(jax.device_put(np.ascontiguousarray(each, np.float64)) for each in directions)
        outs = tuple(jnp.zeros((directions[target].shape[0], restarts)) for target in targets)
        for begin in range(0, entries, at_once):
            some = slice(begin, begin + at_once)
            outs = _added(outs, cells[:, some], values[some], given, targets)
        return [np.asarray(out) for out in outs]
