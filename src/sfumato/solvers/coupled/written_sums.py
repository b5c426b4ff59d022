"""The sums of ``sums.py`` where a relation's cells are written out: products of matrices.

Cells x are a matrix with a row for each level of the largest mode, so that the model's values are
v = A D: that mode's factor A, and its designs D at all cells of the other modes. With weights w of the
cells (x v^-p or v^(1-p)), the sums for the largest mode are w D'. Those for any other block begin with
A' w, which is as long as a row of x for every component; what is left are contractions of that with the
other factors. Cells are taken a tile at a time, so that the weights stay in a core's cache between two
products.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import pairwise, product
from typing import NamedTuple

import numpy as np

from sfumato.kernels.numba.threads import run
from sfumato.models.coupled import CoupledModel
from sfumato.models.divergence import beta_divergence
from sfumato.sites.coupled import WrittenOut
from sfumato.types import Array

_COLUMNS = 512  # of a tile
_CELLS = 1 << 15  # of a tile: a part of a core's cache
# Products of this many multiplications are not worth several threads to OpenBLAS. Its threads and ours
# would wait for each other.
_MULTIPLICATIONS = 1 << 18


class Tile(NamedTuple):
    """Some rows and columns of the cells, with the factor and the designs that belong to them."""

    place: tuple[slice, slice]
    levels: Array
    designs: Array


class Written(NamedTuple):
    """A part of a model beside its cells. A value of the model counts as ``least`` at least."""

    model: CoupledModel
    part: int
    cells: WrittenOut
    p: float
    least: float
    threads: int

    def sums(self, position: int | None, *, numerator: bool, denominator: bool) -> list[Array]:
        """Those that are wanted, for the mode at a position, or for the core where that is None."""
        for_largest = position == self.cells.positions[0]
        rows, columns = self.cells.values.shape
        shape = (rows, self.model.rank) if for_largest else (self.model.rank, columns)

        def add(tile: Tile, totals: Array) -> None:
            for total, weights in zip(totals, self._weights(tile, numerator, denominator), strict=True):
                if for_largest:
                    total[tile.place[0]] += weights @ tile.designs.T
                else:
                    total[:, tile.place[1]] += tile.levels.T @ weights

        found = self._over_tiles(add, (numerator + denominator, *shape))
        return list(found) if for_largest else [self._contracted(total, position) for total in found]

    def divergence(self) -> float:
        """Sum of the divergences of the observed cells."""

        def add(tile: Tile, total: Array) -> None:
            with np.errstate(divide="ignore"):  # of the zeros that stand for unknown cells
                each = beta_divergence(self.cells.values[tile.place], tile.levels @ tile.designs, self.p)
            total += each.sum(where=True if self.cells.known is None else self.cells.known[tile.place])

        return float(self._over_tiles(add, ()))

    def _weights(self, tile: Tile, numerator: bool, denominator: bool) -> list[Array]:
        """x v^-p and v^(1-p) of observed cells, as far as they are wanted."""
        x, p, known, weights = self.cells.values[tile.place], self.p, self.cells.known, list[Array]()
        if (denominator or p != 0) and (numerator or p != 1):  # else they do not depend on v
            values = tile.levels @ tile.designs
            np.maximum(values, self.least, out=values)
        if numerator:
            weights.append(x if p == 0 else x / _power(values, p))
        if denominator:
            below = np.ones_like(x) if p == 1 else values if p == 0 else 1 / _power(values, p - 1)
            weights.append(below if known is None else below * known[tile.place])
        return weights

    def _over_tiles(self, add: Callable[[Tile, Array], None], shape: tuple[int, ...]) -> Array:
        """Totals over all tiles, which each thread adds to an array of its own."""
        levels = self._factor(0)
        designs = self.model.designs(self.part, self.cells.positions)
        n_rows, n_columns = self.cells.values.shape
        width = min(_COLUMNS, n_columns)
        height = max(1, min(_CELLS, _MULTIPLICATIONS // self.model.rank) // width)

        def some(start: int, stop: int, own: Array) -> None:
            for top, left in product(range(start, stop, height), range(0, n_columns, width)):
                rows, columns = slice(top, min(top + height, stop)), slice(left, left + width)
                add(Tile((rows, columns), levels[rows], designs[:, columns]), own)

        totals = np.zeros((self.threads, *shape))
        cuts = np.linspace(0, n_rows, self.threads + 1).astype(int).tolist()
        tasks = [partial(some, *cut, totals[thread, ...]) for thread, cut in enumerate(pairwise(cuts))]
        run(tasks, self.threads)
        return np.asarray(totals.sum(axis=0))

    def _factor(self, place: int) -> Array:
        """The factor of the mode that is written out at a place, the largest at the first."""
        return self.model.factor(self.model.parts[self.part].modes[self.cells.positions[place]])

    def _contracted(self, total: Array, position: int | None) -> Array:
        """Sums for a mode but the largest, or for the core, from those over the largest mode.

        Of a core, all modes are contracted with their factors; for a mode, all others are, and then with
        the core. In CP all components are the same one.
        """
        positions, tucker = self.cells.positions, self.model.parts[self.part].tucker
        factors = [self._factor(place) for place in range(len(positions))]
        found = total.reshape(self.model.rank, *(len(factor) for factor in factors[1:]))
        kept = None if position is None else positions.index(position)
        for place in reversed(range(1, len(positions))):
            if place == kept:
                continue
            if tucker:
                found = np.moveaxis(np.tensordot(found, factors[place], (place, 0)), -1, place)
            else:
                axes = list(range(found.ndim))
                left = [axis for axis in axes if axis != place]
                found = np.einsum(found, axes, factors[place], [place, 0], left)
        if not tucker:
            return found.T
        if kept is None:
            return np.moveaxis(found, range(len(positions)), positions).ravel()
        core = np.moveaxis(self.model.core(self.part), positions, range(len(positions)))
        others = [place for place in range(len(positions)) if place != kept]
        return np.tensordot(found, core, (others, others))


def _power(values: Array, p: float) -> Array:
    """Powers, without a logarithm where there is no need of one."""
    return values if p == 1 else values * values if p == 2 else values**p
