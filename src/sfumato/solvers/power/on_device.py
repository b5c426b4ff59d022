"""The same answers as ``tensors.py``, of a tensor that lies on a GPU."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from sfumato.solvers.power.tensors import split
from sfumato.types import Array


class _OnDevice:
    """What dense and sparse tensors have in common: blocks of directions, and of answers."""

    def __init__(self, shape: Sequence[int], symmetric: bool) -> None:
        self.order, self.symmetric = len(shape), symmetric
        self.sizes = tuple(shape[:1]) if symmetric else tuple(shape)
        self._targets = (0,) if symmetric else tuple(range(self.order))

    def _directions(self, directions: Array) -> list[Array]:
        """A matrix for each mode."""
        if self.symmetric:
            return [directions] * self.order
        return split(directions, self.sizes)


class DenseOnDevice(_OnDevice):
    """An array: a symmetric one, or one of any shape in the blocks of the one that holds it."""

    def __init__(self, tensor: Array, *, symmetric: bool) -> None:
        super().__init__(tensor.shape, symmetric)
        from sfumato.kernels.jax.power import put

        (self._tensor,) = put(np.asarray(tensor, np.float64))

    def power(self, directions: Array) -> Array:
        from sfumato.kernels.jax.power import dense_power

        return np.concatenate(dense_power(self._tensor, self._directions(directions), self._targets))


class SparseOnDevice(_OnDevice):
    """Entries of a tensor whose other cells are zero; for fits without privacy.

    What sums lose by rounding is not added up on the side there, as the proof of private ones needs it.
    """

    def __init__(
        self, coordinates: NDArray[np.int32], values: Array, shape: Sequence[int], *, symmetric: bool
    ) -> None:
        super().__init__(shape, symmetric)
        from sfumato.kernels.jax.power import put

        self._cells, self._values = put(coordinates, np.asarray(values, np.float64))

    def power(self, directions: Array) -> Array:
        from sfumato.kernels.jax.power import sparse_power

        given = self._directions(directions)
        return np.concatenate(sparse_power(self._cells, self._values, given, self._targets))
