"""How much one entry of a tensor moves T(I, u, ..., u), and Algorithm 3's noise as printed.

Directions are functions of what was released before, so that bounds may be made from them.
Proofs: proofs/power.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from math import factorial, log, prod, sqrt

import numpy as np

from sfumato.errors import SettingError
from sfumato.privacy.budgets import Budget
from sfumato.privacy.units import TensorEntry
from sfumato.records import record
from sfumato.solvers.power.iteration import Query
from sfumato.solvers.power.tensors import (
    MOST_ENTRIES,
    WEIGHT_ROUNDINGS,
    dense_roundings,
    sparse_roundings,
    split,
)
from sfumato.types import Array

_PAIRED = 4096  # levels up to which all pairs of them are looked at
STEPS = 1 << 13  # of which a change is made up


@record
@dataclass(frozen=True)
class EntrySensitivity:
    """Bounds for a tensor of which one entry changes; of a symmetric one with all its permutations.

    In real numbers; see :class:`InDoubles`. ``sizes`` are of all modes, or of a symmetric tensor of one.
    """

    unit: TensorEntry
    order: int
    sizes: tuple[int, ...]

    def __post_init__(self) -> None:
        if self.unit.symmetric != (len(self.sizes) == 1):
            raise SettingError("the unit and the tensor have to agree on whether it is symmetric")
        if self.unit.printed and len(set(self.sizes)) > 1:
            raise SettingError(
                "neighbours as printed differ in all permutations of an index, and a tensor whose modes "
                "have different sizes has none: leave printed out, which protects one entry"
            )

    def __call__(self, query: Query) -> float:
        """The most by which the answers for all directions together change, in the L2 norm."""
        magnitudes = np.abs(query.directions)
        bound = self._symmetric if self.unit.symmetric else self._blocks
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
        """As printed, one change for each of the permutations: they may all fall on one cell."""
        changes = factorial(self.order) if self.unit.printed else 1
        return changes * self._cell(magnitudes, weights)

    def _cell(self, magnitudes: Array, weights: bool) -> float:
        blocks = split(magnitudes, self.sizes)
        degree = 2 * (self.order - (not weights))
        each = np.stack([block.max(axis=0) ** 2 for block in blocks])
        # Hoelder's inequality: the sum over directions of a product is at most the product of these.
        together = np.array([float((block**degree).sum(axis=1).max()) for block in blocks])
        together = together[:, None] ** (2 / degree)
        if weights:
            return sqrt(min(each.prod(axis=0).sum(), together.prod()))
        return sqrt(min(_all_but_one(each).sum(), _all_but_one(together).sum()))


@record
@dataclass(frozen=True)
class InDoubles:
    """A bound with room for what floating-point arithmetic adds to the difference of two answers.

    Values are whole numbers of steps and cut at ``unit.most`` changes, so that the sums that they enter
    have a largest magnitude, and with it a largest rounding error. ``roundings`` says how often a term
    of a sum is rounded, ``cells`` how many cells at most are not zero.
    """

    exact: EntrySensitivity
    roundings: int
    cells: int

    @classmethod
    def of(cls, unit: TensorEntry, shape: Sequence[int], *, sparse: bool) -> InDoubles:
        sizes = tuple(shape[:1]) if unit.symmetric else tuple(shape)
        exact = EntrySensitivity(unit, len(shape), sizes)
        if sparse:
            return cls(exact, sparse_roundings(len(shape)), min(MOST_ENTRIES, prod(shape)))
        return cls(exact, dense_roundings(shape), prod(shape))

    def __call__(self, query: Query) -> float:
        return self.exact(query) * (1 + 1 / STEPS) + self._rounding(query)

    def _rounding(self, query: Query) -> float:
        """Of the answers of both neighbours; of a sum, it is that part of the sum of all magnitudes."""
        roundings = self.roundings + (WEIGHT_ROUNDINGS if query.kind == "weights" else 0)
        return 2 * roundings * 2.0**-53 * self.most(query)

    def most(self, query: Query) -> float:
        """What no answer is longer than."""
        unit, weights = self.exact.unit, query.kind == "weights"
        return unit.most * unit.change * self._magnitudes(np.abs(query.directions), weights)

    def _magnitudes(self, directions: Array, weights: bool) -> float:
        """The most that an answer's sums of magnitudes come to, in the L2 norm, for entries of one."""
        unit, order = self.exact.unit, self.exact.order
        blocks = [directions] * order if unit.symmetric else split(directions, self.exact.sizes)
        sums, tops = (np.stack([f(block, axis=0) for block in blocks]) for f in (np.sum, np.max))
        if weights:
            return float(np.linalg.norm(np.minimum(sums.prod(axis=0), self.cells * tops.prod(axis=0))))
        roots = np.sqrt([[len(block)] for block in blocks])
        each = np.minimum(roots * _all_but_one(sums), self.cells * _all_but_one(tops))
        return float(np.linalg.norm(each[: len(self.exact.sizes)]))


def step_of(unit: TensorEntry) -> float:
    """What values of a private tensor are multiples of."""
    return unit.change / STEPS


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
