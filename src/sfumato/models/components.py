"""Components of a low-rank tensor, and how they are compared with others.

A tensor is a sum of weights times outer products of unit vectors, one vector for each mode; of a
symmetric tensor they are all the same. A decomposition is known up to the order of its components and
to the signs of their vectors: :func:`match_components` takes both out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, prod
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sfumato.checks import as_numbers
from sfumato.errors import DataError
from sfumato.types import Array

_MAX_DENSE_CELLS = 10**9


@dataclass(frozen=True, eq=False)
class Components:
    """Weights, and for each mode a matrix with a unit vector in every row, one row per component.

    Of a symmetric tensor there is one matrix, for all ``order`` modes.
    """

    weights: Array
    vectors: tuple[Array, ...]
    order: int

    @property
    def symmetric(self) -> bool:
        return len(self.vectors) == 1

    @property
    def factors(self) -> tuple[Array, ...]:
        """A matrix for each mode, also where they are all the same."""
        return self.vectors * self.order if self.symmetric else self.vectors

    def to_tensor(self) -> Array:
        """The dense tensor that the components add up to; for small ones."""
        cells = prod(factor.shape[1] for factor in self.factors)
        if cells * len(self.weights) > _MAX_DENSE_CELLS:
            raise DataError(f"a dense tensor of {cells:.3g} cells is too large: use factors and weights")
        product = self.weights
        for factor in self.factors:
            product = product[..., None] * factor.reshape(len(factor), *[1] * (product.ndim - 1), -1)
        dense: Array = product.sum(axis=0)
        return dense


class Matching(NamedTuple):
    """Which found component is which of the reference.

    Parameters
    ----------
    order : array
        Component ``i`` of the reference is the found one ``order[i]``, -1 for none.
    signs : array
        What its vectors are to be multiplied by, for each mode.
    errors : array
        Distance that is then left between the unit vectors, the largest over modes; infinite for none.

    Examples
    --------
    >>> import numpy as np, sfumato as sf
    >>> found = sf.match_components(-np.eye(3)[[2, 0]], np.eye(3))
    >>> found.order, found.errors
    (array([ 1, -1,  0]), array([ 0., inf,  0.]))
    """

    order: NDArray[np.intp]
    signs: Array
    errors: Array


def match_components(found: Array | Sequence[Array], reference: Array | Sequence[Array]) -> Matching:
    """Match components up to their order and signs, so that the angles are as small as can be.

    Each is a matrix with a component in every row, or for an asymmetric tensor one such matrix for each
    mode. Lengths play no part.

    Parameters
    ----------
    found, reference : array or sequence of array
        A matrix, or one for each mode.

    Returns
    -------
    Matching
        An order, signs, and the distances that are left.

    Examples
    --------
    >>> import numpy as np, sfumato as sf
    >>> truth = np.linalg.qr(np.random.default_rng(0).normal(size=(20, 2)))[0].T
    >>> tensor = np.einsum("r,ri,rj,rk->ijk", [2.0, 1.0], truth, truth, truth)
    >>> found = sf.PowerMethod(2).fit(tensor)
    >>> bool((sf.match_components(found.components_, truth).errors < 1e-6).all())
    True
    """
    from scipy.optimize import linear_sum_assignment

    ours, theirs = _unit_rows(found), _unit_rows(reference)
    if len(ours) != len(theirs) or any(
        a.shape[1] != b.shape[1] for a, b in zip(ours, theirs, strict=False)
    ):
        shapes = [[matrix.shape for matrix in matrices] for matrices in (ours, theirs)]
        raise DataError(f"components of different sizes cannot be matched: {shapes[0]} and {shapes[1]}")
    cosines = np.stack([b @ a.T for a, b in zip(ours, theirs, strict=True)])  # mode, reference, found
    rows, columns = linear_sum_assignment(np.abs(cosines).prod(axis=0), maximize=True)
    order = np.full(cosines.shape[1], -1)
    order[rows] = columns
    signs = np.ones((cosines.shape[1], len(ours)))
    signs[rows] = np.where(cosines[:, rows, columns] < 0, -1.0, 1.0).T
    errors = np.full(cosines.shape[1], inf)
    errors[rows] = np.max(
        [
            np.linalg.norm(b[rows] - signs[rows, m, None] * a[columns], axis=1)
            for m, (a, b) in enumerate(zip(ours, theirs, strict=True))
        ],
        axis=0,
    )
    return Matching(order, signs, errors)


def _unit_rows(components: Array | Sequence[Array]) -> list[Array]:
    matrices = components if isinstance(components, list | tuple) else [components]
    unit = []
    for matrix in matrices:
        rows = as_numbers("components", matrix)
        if rows.ndim != 2 or not rows.size:
            raise DataError(f"components are rows of a matrix, got an array of shape {rows.shape}")
        length = np.linalg.norm(rows, axis=1, keepdims=True)
        unit.append(np.divide(rows, length, out=np.zeros_like(rows), where=length > 0))
    return unit
