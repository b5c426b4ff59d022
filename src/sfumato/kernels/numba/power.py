"""T(I, u, ..., u) and T(W, ..., W) of sparse tensors."""

from __future__ import annotations

from functools import partial
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from sfumato.kernels.numba.compiler import kernel, ordered_kernel
from sfumato.kernels.numba.threads import run, scratch
from sfumato.types import Array


def exact_sum(a: Array, b: Array) -> tuple[Array, Array]:
    """The sum, and by how much it was rounded (Knuth's two-sum)."""
    total = a + b
    of_b = total - a
    return total, (a - (total - of_b)) + (b - of_b)


@ordered_kernel
def _contract(
    coordinates: Array,
    values: Array,
    offsets: Array,
    directions: Array,
    start: int,
    stop: int,
    target: int,
    out: Array,
    lost: Array,
) -> None:
    """Add each entry's part of T(I, u, ..., u) for the mode ``target``; modes start at their offset."""
    order, restarts = coordinates.shape[0], directions.shape[1]
    product = scratch(restarts, directions.dtype)
    for e in range(start, stop):
        for r in range(restarts):
            product[r] = values[e]
        for m in range(order):
            if m != target:
                row = offsets[m] + coordinates[m, e]
                for r in range(restarts):
                    product[r] *= directions[row, r]
        row = offsets[target] + coordinates[target, e]
        for r in range(restarts):  # as in exact_sum
            before = out[row, r]
            after = before + product[r]
            added = after - before
            lost[row, r] += (before - (after - added)) + (product[r] - added)
            out[row, r] = after


def sparse_power(
    coordinates: NDArray[np.int32],
    values: Array,
    offsets: Array,
    directions: Array,
    targets: int,
    threads: int,
) -> Array:
    """T(I, u, ..., u) in the first ``targets`` modes, for all directions u.

    Rows of directions, and of the answer, are numbered mode after mode from the offsets.
    """
    out = np.zeros((threads, 2, *directions.shape))  # of each thread the sums, and what they lost
    cuts = np.linspace(0, len(values), threads + 1).astype(np.int64).tolist()

    def piece(start: int, stop: int, own: Array) -> None:
        for target in range(targets):
            _contract(coordinates, values, offsets, directions, start, stop, target, *own)

    pieces = zip(pairwise(cuts), out, strict=True)
    run([partial(piece, start, stop, own) for (start, stop), own in pieces], threads)
    total, lost = out[0]
    for more, also_lost in out[1:]:
        total, error = exact_sum(total, more)
        lost = lost + also_lost + error
    whole: Array = total + lost
    return whole


@kernel
def _compress(coordinates: Array, values: Array, basis: Array, out: Array) -> None:
    order, size = coordinates.shape[0], basis.shape[1]
    product = np.zeros(out.shape[0])
    for e in range(values.shape[0]):
        product[0] = values[e]
        length = 1
        for m in range(order):
            row = coordinates[m, e]
            for a in range(length - 1, -1, -1):  # backwards: what is written lies behind what is read
                given = product[a]
                for r in range(size - 1, -1, -1):
                    product[a * size + r] = given * basis[row, r]
            length *= size
        for a in range(length):
            out[a] += product[a]


def compress_sparse(coordinates: NDArray[np.int32], values: Array, basis: Array, order: int) -> Array:
    """T(basis, ..., basis) of a sparse tensor, as a dense array of as many dimensions as columns."""
    size = basis.shape[1]
    out = np.zeros(size**order)
    _compress(coordinates, np.asarray(values, np.float64), np.ascontiguousarray(basis), out)
    return out.reshape((size,) * order)
