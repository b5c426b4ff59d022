"""How much one entry of a tensor moves T(I, u, ..., u), and Algorithm 3's noise as printed.

Directions are functions of what was released before, so that bounds may be made from them.
Proofs: proofs/power.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from math import factorial, log, prod, sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sfumato.privacy.budget import Budget
from sfumato.privacy.unit import TensorEntry
from sfumato.solvers.power import Query

Array = NDArray[Any]
_PAIRED = 4096  # levels up to which all pairs of them are looked at


@dataclass(frozen=True)
class EntrySensitivity:
    """Bounds for a tensor of which one entry changes; of a symmetric one with all its permutations."""

    unit: TensorEntry
    order: int
    sizes: tuple[int, ...]

    def __call__(self, query: Query) -> float:
        """The most by which the answers for all directions together change, in the L2 norm."""
        magnitudes = np.abs(query.directions)
        bound = self._blocks if len(self.sizes) > 1 else self._symmetric
        return self.unit.change * bound(magnitudes, query.kind == "weights")

    def _symmetric(self, magnitudes: Array, weights: bool) -> float:
        """The less of two bounds: each direction at its worst entry, and Hoelder's over directions.

        Hoelder's takes every monomial at its worst: one of a single level, or of two or more.
        """
        degree = 2 * (self.order - (not weights))
        kinds = _index_kinds(self.order, self.unit.printed, weights)
        largest = -np.sort(-magnitudes, axis=0)[: self.order]
        each = [
            max(
                float(sum(c * np.prod(u[: len(powers)] ** np.array(powers)) for c, powers in terms))
                for terms in kinds
                if len(terms[0][1]) <= len(u)
            )
            for u in largest.T
        ]
        alone = float((magnitudes**degree).sum(axis=1).max())
        paired = _largest_pair(magnitudes, degree) if len(magnitudes) <= _PAIRED else alone
        together = max(
            sum(c * (alone if sum(map(bool, powers)) == 1 else paired) for c, powers in terms)
            for terms in kinds
        )
        return sqrt(min(sum(each), together))

    def _blocks(self, magnitudes: Array, weights: bool) -> float:
        cuts = np.cumsum([0, *self.sizes]).tolist()
        blocks = [magnitudes[a:b] for a, b in pairwise(cuts)]
        degree = 2 * (self.order - (not weights))
        each = np.stack([block.max(axis=0) ** 2 for block in blocks])
        # Hoelder's inequality: the sum over directions of a product is at most the product of these.
        together = np.array([float((block**degree).sum(axis=1).max()) for block in blocks])
        together = together[:, None] ** (2 / degree)
        if weights:
            return sqrt(min(each.prod(axis=0).sum(), together.prod()))
        return sqrt(min(_all_but_one(each).sum(), _all_but_one(together).sum()))


def _largest_pair(magnitudes: Array, degree: int) -> float:
    """The largest sum over directions of u_i^(degree-2) u_j^2 for two levels."""
    pairs = magnitudes ** (degree - 2) @ (magnitudes**2).T
    np.fill_diagonal(pairs, 0.0)
    return float(pairs.max())


def _all_but_one(factors: Array) -> Array:
    """For each row the product of the others."""
    return np.stack([np.delete(factors, row, axis=0).prod(axis=0) for row in range(len(factors))])


Terms = tuple[tuple[float, tuple[int, ...]], ...]  # coefficients, and powers of the magnitudes


@cache
def _index_kinds(order: int, printed: bool, weights: bool) -> tuple[Terms, ...]:
    """For each kind of index the squared change, as a sum of monomials of magnitudes.

    A kind says how often the level with the largest magnitude of u occurs in the index, then that with
    the second largest, and so on. With multiplicities m the entry has p! / prod m! cells, and

        T(I, u, ..., u)_i  changes by  (p-1)! m_i / prod m! * prod u^m / u_i,

    where each cell changes by one; as printed in the paper all p! permutations are added, so that a cell
    changes by prod m!.
    """
    kinds = list[Terms]()
    for multiplicity in _compositions(order):
        cells = 1 if printed else prod(factorial(m) for m in multiplicity)
        if weights:
            powers = tuple(2 * m for m in multiplicity)
            kinds.append((((factorial(order) / cells) ** 2, powers),))
            continue
        terms = []
        for i, m in enumerate(multiplicity):
            powers = tuple(2 * (other - (j == i)) for j, other in enumerate(multiplicity))
            terms.append(((factorial(order - 1) * m / cells) ** 2, powers))
        kinds.append(tuple(terms))
    return tuple(kinds)


def _compositions(total: int) -> Iterator[tuple[int, ...]]:
    """Ways to write a number as an ordered sum of positive ones."""
    if not total:
        yield ()
    for first in range(1, total + 1):
        for rest in _compositions(total - first):
            yield (first, *rest)


# -- as printed -----------------------------------------------------------------------------------


def printed_multiplier(budget: Budget, queries: int) -> float:
    """Noise over sensitivity of Algorithm 3, line 2: nu / 6.

    ``queries`` is the paper's K = k L (R + 1).
    """
    delta = budget.delta / (2 * queries)
    epsilon = budget.epsilon / sqrt(queries * (4 + log(2 / budget.delta)))
    return sqrt(2 * log(1.25 / delta)) / epsilon


def printed_sensitivity(directions: Array, kind: str, order: int) -> Array:
    """6 |u|_inf^2 and 6 |u|_inf^3, for every direction; p! instead of 6 for another order."""
    largest = np.abs(directions).max(axis=0)
    bound: Array = factorial(order) * largest ** (order - (kind == "directions"))
    return bound
