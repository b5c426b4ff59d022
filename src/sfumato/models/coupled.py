"""Several CP and Tucker models that share the factors of their modes: pure mathematics, no data.

    value_v(i) = sum_k w_v[k] prod_{d in S_v} factor_d[i_d, k]                   CP
    value_v(i) = sum_q core_v[q] prod_{d in S_v} factor_d[i_d, q_d]              Tucker

Factors of all modes lie in one matrix, as in a single model. A weight w_v is the only row of a mode
that the relation has for itself, so that kernels know of modes alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import pairwise
from typing import Any, Self

import numpy as np
from numpy.typing import DTypeLike

from sfumato.kernels.numba.entrywise import CPArrays, TuckerArrays, predict_entries
from sfumato.kernels.numba.simd import aligned_zeros, lanes, padded_width
from sfumato.kernels.numba.threads import run
from sfumato.models.multilinear import Multilinear, TuckerModel
from sfumato.records import record
from sfumato.types import Array


@record
@dataclass(frozen=True)
class Part:
    """One relation of a coupled model: the modes that it has, and whether it has a core.

    ``weighted`` says that the last of its modes is not one of its tensor's, but holds its weights.
    """

    name: str
    modes: tuple[int, ...]
    tucker: bool = False
    weighted: bool = False

    @property
    def order(self) -> int:
        """Modes of its tensor."""
        return len(self.modes) - self.weighted


@record
@dataclass(frozen=True, eq=False)
class CoupledModel:
    """Factors of all modes, and a core for each Tucker part (empty for a CP one)."""

    sizes: tuple[int, ...]
    rank: int
    parts: tuple[Part, ...]
    rows: Array
    cores: tuple[Array, ...]

    @classmethod
    def zeros(
        cls, sizes: Sequence[int], rank: int, parts: Sequence[Part], dtype: DTypeLike = np.float64
    ) -> Self:
        """All parameters zero. ``sizes`` are those of the modes, weights included."""
        rows = aligned_zeros((sum(sizes), padded_width(rank, dtype)), dtype)
        cores = tuple(np.zeros(rank**part.order if part.tucker else 0, dtype) for part in parts)
        return cls(tuple(sizes), rank, tuple(parts), rows, cores)

    @classmethod
    def of(cls, model: Multilinear) -> CoupledModel:
        """A single model as one with one part; they share their parameters."""
        tucker = isinstance(model, TuckerModel)
        part = Part("", tuple(range(model.order)), tucker)
        core = model.free_core
        return cls(model.shape, model.ranks[0], (part,), model.rows, (core,))

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.rows.dtype

    @cached_property
    def offsets(self) -> tuple[int, ...]:
        """First row of each mode."""
        return tuple(int(o) for o in np.cumsum((0, *self.sizes[:-1])))

    def span(self, mode: int) -> slice:
        """Rows of a mode."""
        return slice(self.offsets[mode], self.offsets[mode] + self.sizes[mode])

    @property
    def parameters(self) -> tuple[Array, ...]:
        """All arrays of numbers that a fit changes."""
        return (self.rows, *self.cores)

    def factor(self, mode: int) -> Array:
        """The factor of a mode (a view)."""
        return self.rows[self.span(mode), : self.rank]

    @property
    def factors(self) -> tuple[Array, ...]:
        return tuple(self.factor(mode) for mode in range(len(self.sizes)))

    def copy(self) -> CoupledModel:
        """A model that shares no memory with this one."""
        rows = aligned_zeros(self.rows.shape, self.dtype)
        rows[:] = self.rows
        cores = tuple(core.copy() for core in self.cores)
        return CoupledModel(self.sizes, self.rank, self.parts, rows, cores)

    def core(self, part: int) -> Array:
        """The core of a part; of CP the superdiagonal one."""
        found, order = self.parts[part], len(self.parts[part].modes)
        if found.tucker:
            return self.cores[part].reshape((self.rank,) * order)
        core = np.zeros((self.rank,) * order, self.dtype)
        core[(np.arange(self.rank),) * order] = 1
        return core

    def arrays(self, part: int) -> CPArrays | TuckerArrays:
        """A part as compiled kernels see it (views, not copies)."""
        found = self.parts[part]
        offsets = tuple(self.offsets[mode] for mode in found.modes)
        biases = np.empty(0, self.dtype)
        if found.tucker:
            ranks = (self.rank,) * len(found.modes)
            return TuckerArrays(self.rows, biases, offsets, ranks, self.cores[part])
        lines = (0,) * (self.rows.shape[1] // lanes(self.dtype))
        return CPArrays(self.rows, biases, offsets, lines)

    def cells(self, part: int, coordinates: Array) -> Array:
        """Coordinates in all modes of a part: of a weighted one with the only level of its weights."""
        given = np.ascontiguousarray(coordinates, np.int32)
        if self.parts[part].weighted:
            given = np.vstack([given, np.zeros((1, given.shape[1]), np.int32)])
        given = given.view()
        given.flags.writeable = False  # like a tensor's, or kernels would be compiled for both
        return given

    def predict(self, part: int, coordinates: Array, *, threads: int = 1) -> Array:
        """Values of a part at the entries ``coordinates[:, e]``."""
        cells = self.cells(part, coordinates)
        out = np.empty(cells.shape[1], self.dtype)
        arrays = self.arrays(part)._replace(biases=np.zeros(len(self.rows), self.dtype))
        zero = self.dtype.type(0)
        cuts = np.linspace(0, cells.shape[1], threads + 1).astype(np.int64).tolist()
        run(
            [
                partial(predict_entries, arrays, zero, cells, start, stop, out)
                for start, stop in pairwise(cuts)
            ],
            threads,
        )
        return out

    def designs(self, part: int, positions: Sequence[int]) -> Array:
        """Designs of a part's mode at all cells of its others, a column for each.

        ``positions`` are those of all its modes: first the one whose designs these are, then the others,
        of which the last runs fastest along the columns.
        """
        first, *others = (self.factor(self.parts[part].modes[position]) for position in positions)
        if self.parts[part].tucker:
            columns = np.moveaxis(self.core(part), positions, range(len(positions)))
            columns = np.moveaxis(columns, 0, -1)
            for factor in others:  # takes the first axis away and appends the levels
                columns = np.tensordot(columns, factor, (0, 1))
            return np.ascontiguousarray(columns.reshape(self.rank, -1))
        columns = np.ones((first.shape[1], 1), self.dtype)
        for factor in others:
            columns = (columns[:, :, None] * factor.T[:, None, :]).reshape(self.rank, -1)
        return columns

    # -- sums over all cells, without visiting them -----------------------------------------------

    def design_sum(self, part: int, mode: int) -> Array:
        """Sum of a mode's designs over all cells of the other modes."""
        modes = self.parts[part].modes
        sums = {other: _column_sums(self.factor(other)) for other in modes if other != mode}
        if not self.parts[part].tucker:
            product: Array = np.prod(list(sums.values()), axis=0)
            return product
        contracted = self.core(part)
        for position in reversed(range(len(modes))):
            if modes[position] != mode:
                contracted = np.tensordot(contracted, sums[modes[position]], (position, 0))
        return contracted

    def design_moment(self, part: int, mode: int) -> Array:
        """Sum of the outer products of a mode's designs over all cells of the other modes."""
        modes = self.parts[part].modes
        grams = {other: _gram(self.factor(other)) for other in modes if other != mode}
        if not self.parts[part].tucker:
            product: Array = np.prod(list(grams.values()), axis=0)
            return product
        core, spread = self.core(part), self.core(part)
        for position, other in enumerate(modes):
            if other != mode:
                spread = np.moveaxis(np.tensordot(grams[other], spread, (1, position)), 0, position)
        others = [position for position, other in enumerate(modes) if other != mode]
        moment: Array = np.tensordot(spread, core, (others, others))
        return moment

    def core_sum(self, part: int) -> Array:
        """Sum of the Kronecker products of rows over all cells, flat."""
        product = np.ones(1)
        for mode in self.parts[part].modes:
            product = np.outer(product, _column_sums(self.factor(mode))).ravel()
        return product

    def core_moment(self, part: int) -> Array:
        """Sum over all cells of the Kronecker product of rows times the value, flat."""
        spread = self.core(part)
        for position, mode in enumerate(self.parts[part].modes):
            gram = _gram(self.factor(mode))
            spread = np.moveaxis(np.tensordot(gram, spread, (1, position)), 0, position)
        return spread.ravel()

    def total(self, part: int) -> float:
        """Sum of the values of all cells."""
        first = self.parts[part].modes[0]
        return float(_column_sums(self.factor(first)) @ self.design_sum(part, first))

    def total_square(self, part: int) -> float:
        """Sum of the squared values of all cells."""
        first = self.parts[part].modes[0]
        return float((_gram(self.factor(first)) * self.design_moment(part, first)).sum())


def _column_sums(factor: Array) -> Array:
    # Column by column: across long rows of few numbers NumPy takes ten times as long.
    return np.array([column.sum(dtype=np.float64) for column in factor.T])


def _gram(factor: Array) -> Array:
    wide = factor.astype(np.float64)
    gram: Array = wide.T @ wide
    return gram
