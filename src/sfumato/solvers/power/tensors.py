"""T(I, u, ..., u) of a tensor that is there, for many directions at once.

Dense tensors are multiplied by all directions in their last mode with one matrix product, in pieces of
bounded size, then by each direction alone in the others; sparse ones go through a kernel over entries. A
readable form of both is in ``kernels/reference/power.py``. How often a number is rounded on the way to a
sum is stated beside each: privacy has to know.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import fsum, prod
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from sfumato.kernels.numba.power import sparse_power
from sfumato.solvers.power.iteration import Query
from sfumato.types import Array

_PIECE = 1 << 18  # numbers of a product that are held at a time: what caches hold


class TensorSource(Protocol):
    """A tensor that answers. ``power`` has a block of rows for each mode where they differ."""

    sizes: tuple[int, ...]
    order: int

    def power(self, directions: Array) -> Array: ...


def answered(source: TensorSource, query: Query) -> Array:
    """The answer of a tensor to a question, without noise."""
    power = source.power(query.directions)
    if query.kind == "directions":
        return power
    first = slice(0, source.sizes[0])
    products = (query.directions[first] * power[first]).T
    return np.array([fsum(column) for column in products.tolist()])


WEIGHT_ROUNDINGS = 2  # more than of directions: of the products, and of their sum


# -- dense ----------------------------------------------------------------------------------------


def dense_roundings(shape: Sequence[int]) -> int:
    """How often a term is rounded, at most, on its way into an answer of a dense tensor.

    Once for each number that its product or sum is added to: over the last mode first, then over those
    that are left.
    """
    *others, last = shape
    return last + prod(others) // min(others) + shape[0] + 2 * len(shape)


class DenseSymmetric:
    """A symmetric array; it is not copied."""

    def __init__(self, tensor: Array) -> None:
        self.sizes, self.order = tensor.shape[:1], tensor.ndim
        self._tensor = tensor

    def power(self, directions: Array) -> Array:
        size, restarts = directions.shape
        # A direction in every row, so that what belongs to it lies together.
        vectors = np.ascontiguousarray(directions.T)
        out = np.empty((restarts, size))
        step = max(1, _PIECE // (size ** (self.order - 2) * restarts))
        for start in range(0, size, step):
            piece = slice(start, start + step)
            without_last = vectors @ self._tensor[piece].reshape(-1, size).T
            others = [vectors[:, piece], *[vectors] * (self.order - 2)]
            out[:, piece] = _contracted(without_last, others, 0)
        return out.T


class DenseBlocks:
    """An array of any shape, as the symmetric tensor that holds it in its blocks."""

    def __init__(self, tensor: Array) -> None:
        self.sizes, self.order = tensor.shape, tensor.ndim
        self._tensor = tensor

    def power(self, directions: Array) -> Array:
        restarts = directions.shape[1]
        *others, last = (np.ascontiguousarray(block.T) for block in split(directions, self.sizes))
        parts = [np.zeros((restarts, size)) for size in self.sizes]
        step = max(1, _PIECE // (prod(self.sizes[1:-1]) * restarts))
        for start in range(0, self.sizes[0], step):
            piece = slice(start, start + step)
            rows = self._tensor[piece].reshape(-1, self.sizes[-1])
            vectors = [others[0][:, piece], *others[1:]]
            slices = _outer(others[1:]) @ rows.reshape(-1, prod(self.sizes[1:-1]), self.sizes[-1])
            parts[-1] += np.einsum("rp,prl->rl", vectors[0], slices)
            without_last = last @ rows.T  # all modes but the last need it
            parts[0][:, piece] = _contracted(without_last, vectors, 0)
            for mode in range(1, self.order - 1):
                parts[mode] += _contracted(without_last, vectors, mode)
        return np.concatenate([part.T for part in parts])


def _contracted(arrays: Array, vectors: Sequence[Array], mode: int) -> Array:
    """Arrays, one in every row, each multiplied by its own vectors in all modes but one."""
    count, size = len(arrays), vectors[mode].shape[1]
    if mode + 1 < len(vectors):
        after = _outer(vectors[mode + 1 :])
        arrays = arrays.reshape(count, -1, after.shape[1]) @ after[:, :, None]
    if mode:
        arrays = _outer(vectors[:mode])[:, None, :] @ arrays.reshape(count, -1, size)
    return arrays.reshape(count, size)


def _outer(matrices: Sequence[Array]) -> Array:
    """Row by row the outer product of all matrices, as one row."""
    product = matrices[0]
    for matrix in matrices[1:]:
        product = (product[:, :, None] * matrix[:, None, :]).reshape(len(matrix), -1)
    return product


def split(directions: Array, sizes: Sequence[int]) -> list[Array]:
    """The rows of each mode."""
    return [directions[a:b] for a, b in pairwise(np.cumsum([0, *sizes]).tolist())]


# -- sparse ---------------------------------------------------------------------------------------


class Sparse:
    """Entries of a tensor whose other cells are zero; of a symmetric one all permutations are there."""

    def __init__(
        self,
        coordinates: NDArray[np.int32],
        values: Array,
        shape: Sequence[int],
        *,
        symmetric: bool,
        threads: int = 1,
    ) -> None:
        self.order = len(shape)
        self.sizes = tuple(shape[:1]) if symmetric else tuple(shape)
        self._offsets = np.zeros(self.order, np.int64)
        if not symmetric:
            self._offsets[1:] = np.cumsum(shape[:-1])
        self._coordinates, self._values = coordinates, np.asarray(values, np.float64)
        self._threads = max(1, min(threads, len(values) // 10_000))

    def power(self, directions: Array) -> Array:
        targets = 1 if len(self.sizes) == 1 else self.order
        given = np.ascontiguousarray(directions, np.float64)
        return sparse_power(
            self._coordinates, self._values, self._offsets, given, targets, self._threads
        )


def sparse_roundings(order: int) -> int:
    """How often a term is rounded, as it were, on its way into an answer of a sparse tensor.

    Once for each factor and once at the end; what sums of up to ``MOST_ENTRIES`` lose is added up on the
    side, and the loss of that is less than eight roundings.
    """
    return order + 10


MOST_ENTRIES = 1 << 28


def compress_dense(tensor: Array, basis: Array) -> Array:
    """T(basis, ..., basis)."""
    for _ in range(tensor.ndim):  # contracts the first mode and appends the new one
        tensor = np.tensordot(tensor, basis, axes=(0, 0))
    return tensor
