"""T(I, u, ..., u) of a tensor that is there, for many directions at once.

Dense tensors are multiplied by all directions in their last mode with one matrix product, in pieces of
bounded size, then by each direction alone in the others; sparse ones go through a kernel over entries. A
readable form of both is ``reference_power``. How often a number is rounded on the way to a sum is stated
beside each: privacy has to know.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from math import fsum, prod
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from sfumato.kernels.numba.parallel import kernel, ordered_kernel, run, scratch
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


def reference_power(tensor: Array, directions: Sequence[Array]) -> list[Array]:
    """T(I, u, ..., u) for every mode, from its definition; ``directions`` has a matrix per mode."""
    letters = "abcdefgh"[: tensor.ndim]
    answers = []
    for mode, letter in enumerate(letters):
        others = [m for m in range(tensor.ndim) if m != mode]
        terms = ",".join([letters, *(f"{letters[m]}z" for m in others)])
        answers.append(np.einsum(f"{terms}->{letter}z", tensor, *(directions[m] for m in others)))
    return answers


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
        given = np.ascontiguousarray(directions, np.float64)
        out = np.zeros((self._threads, 2, *given.shape))  # of each thread the sums, and what they lost
        cuts = np.linspace(0, len(self._values), self._threads + 1).astype(np.int64).tolist()
        tasks = [
            partial(self._piece, start, stop, given, own)
            for (start, stop), own in zip(pairwise(cuts), out, strict=True)
        ]
        run(tasks, self._threads)
        total, lost = out[0]
        for more, also_lost in out[1:]:
            total, error = exact_sum(total, more)
            lost = lost + also_lost + error
        whole: Array = total + lost
        return whole

    def _piece(self, start: int, stop: int, directions: Array, out: Array) -> None:
        targets = 1 if len(self.sizes) == 1 else self.order
        for target in range(targets):
            _contract(
                self._coordinates, self._values, self._offsets, directions, start, stop, target, *out
            )


def sparse_roundings(order: int) -> int:
    """How often a term is rounded, as it were, on its way into an answer of a sparse tensor.

    Once for each factor and once at the end; what sums of up to ``MOST_ENTRIES`` lose is added up on the
    side, and the loss of that is less than eight roundings.
    """
    return order + 10


MOST_ENTRIES = 1 << 28


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


def compress_sparse(coordinates: NDArray[np.int32], values: Array, basis: Array, order: int) -> Array:
    """T(basis, ..., basis) of a sparse tensor, as a dense array of as many dimensions as columns."""
    size = basis.shape[1]
    out = np.zeros(size**order)
    _compress(coordinates, np.asarray(values, np.float64), np.ascontiguousarray(basis), out)
    return out.reshape((size,) * order)


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


def compress_dense(tensor: Array, basis: Array) -> Array:
    """T(basis, ..., basis)."""
    for _ in range(tensor.ndim):  # contracts the first mode and appends the new one
        tensor = np.tensordot(tensor, basis, axes=(0, 0))
    return tensor
