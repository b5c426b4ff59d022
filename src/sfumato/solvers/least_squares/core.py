"""Normal equations of a Tucker core."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
from threadpoolctl import ThreadpoolController

from sfumato.kernels.numba.normal import Uncertainty
from sfumato.models.multilinear import Multilinear
from sfumato.records import record
from sfumato.sites.memory import ByMode, Site
from sfumato.types import Array


@record
@dataclass(frozen=True, eq=False)
class CoreEquations:
    """Gram matrix and right-hand side."""

    gram: Array
    rhs: Array

    def __add__(self, other: CoreEquations) -> CoreEquations:
        return CoreEquations(self.gram + other.gram, self.rhs + other.rhs)


def core_equations(model: Multilinear, uncertainty: Uncertainty, site: Site) -> CoreEquations:
    """Gram matrix and right-hand side of the free core entries.

    The designs of the core are Kronecker products of rows a x z, z those of all modes but one. All
    entries of a level of that one share a: with G their sum of z z', they add (a a') x G.
    """
    there = site.core_sums(model, uncertainty)
    if there is not None:
        return CoreEquations(*there)
    shared = int(np.argmin(model.shape))
    entries, rank = site.by_mode(shared), model.ranks[shared]
    rest = model.free_core.size // rank
    sums = _CoreSums(model, shared, rest)
    with one_blas_thread():
        for low, high in _runs(entries.starts, max(256, (1 << 22) // rest)):
            sums.add(uncertainty, entries, low, high)
    # Coordinates of the shared mode were first; they go where the mode is.
    place = np.arange(model.free_core.size).reshape(
        rank, *(r for m, r in enumerate(model.ranks) if m != shared)
    )
    order = np.moveaxis(place, 0, shared).ravel()
    gram = sums.gram.transpose(0, 2, 1, 3).reshape(2 * (rank * rest,))
    gram[np.diag_indices_from(gram)] += sums.variance.ravel()
    return CoreEquations(gram[np.ix_(order, order)], sums.rhs.ravel()[order])


def _runs(starts: Array, most: int) -> Iterator[tuple[int, int]]:
    """Cut the levels into runs of at most so many entries, or of one level."""
    low, last = 0, len(starts) - 1
    while low < last:
        high = int(np.searchsorted(starts, starts[low] + most, "right")) - 1
        high = min(max(high, low + 1), last)
        yield low, high
        low = high


class _CoreSums:
    """Sums over entries, the coordinates of the shared mode apart from the rest."""

    def __init__(self, model: Multilinear, shared: int, rest: int) -> None:
        rank = model.ranks[shared]
        self.model, self.shared = model, shared
        self.others = [mode for mode in range(model.order) if mode != shared]
        self.gram = np.zeros((rank, rank, rest, rest))
        self.rhs, self.variance = np.zeros((rank, rest)), np.zeros((rank, rest))

    def add(self, uncertainty: Uncertainty, entries: ByMode, low: int, high: int) -> None:
        """The entries of some levels of the shared mode."""
        model, starts = self.model, entries.starts
        here = slice(starts[low], starts[high])
        parts = [slice(s - here.start, e - here.start) for s, e in pairwise(starts[low : high + 1])]
        cells = entries.others[:, here]
        rows = [model.factors[m][levels] for m, levels in zip(self.others, cells, strict=True)]
        y = entries.values[here] - model.mean
        for m, levels in zip(self.others, cells, strict=True):
            y = y - model.mode_biases[m][levels]
        y -= np.repeat(model.mode_biases[self.shared][low:high], np.diff(starts[low : high + 1]))
        weights = entries.weights[here, None] if entries.weights.size else np.ones((1, 1), y.dtype)
        z = np.sqrt(weights) * _row_products(rows)
        a = model.factors[self.shared][low:high].astype(np.float64)
        # One matrix with itself: half the work of any other product.
        grams = np.array([z[part].T @ z[part] for part in parts])
        self.gram += np.einsum("ip,iq,iab->pqab", a, a, grams, optimize=True)
        self.rhs += a.T @ _sums([weights * y[:, None] * rows[0], *rows[1:]], parts)
        if uncertainty.present:  # weighted sum of E[z^2] - E[z]^2, for independent rows
            variances = [
                uncertainty.rows[model.span(m), : model.ranks[m]] for m in (*self.others, self.shared)
            ]
            first = [row**2 for row in rows]
            second = [
                square + variance[levels]
                for square, variance, levels in zip(first, variances[:-1], cells, strict=True)
            ]
            first[0], second[0] = weights * first[0], weights * second[0]
            self.variance += (a**2 + variances[-1][low:high]).T @ _sums(second, parts)
            self.variance -= (a**2).T @ _sums(first, parts)


def _sums(rows: list[Array], parts: list[slice]) -> Array:
    """Kronecker products of entries' rows, summed over each part."""
    if len(rows) == 1:
        return np.array([rows[0][part].sum(axis=0) for part in parts])
    before, last = _row_products(rows[:-1]), rows[-1]
    return np.array([(before[part].T @ last[part]).ravel() for part in parts])


def _row_products(rows: list[Array]) -> Array:
    """Kronecker product of the rows of each entry."""
    product = rows[0]
    for each in rows[1:]:
        product = (product[:, :, None] * each[:, None, :]).reshape(each.shape[0], -1)
    return product


@cache
def _libraries() -> ThreadpoolController:
    return ThreadpoolController()


def one_blas_thread() -> AbstractContextManager[Any]:
    """Products as small as these are slower on several threads, by far where cores are shared."""
    limited: AbstractContextManager[Any] = _libraries().limit(limits=1)
    return limited
