"""CP and Tucker models of any order, with a mean and biases: pure mathematics, no data.

    value(i_0, .., i_{N-1}) = mean + sum_m bias_m[i_m] + sum_q core[q] prod_m factor_m[i_m, q_m]

A CP model is a Tucker model whose core is superdiagonal with ones. Methods that work on single
entries never form the dense tensor.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from math import prod
from typing import Any, Self, TypeVar

import numpy as np
from numpy.typing import DTypeLike

from sfumato.checks import check_count
from sfumato.errors import SettingError
from sfumato.kernels.numba.entrywise import CPArrays, TuckerArrays, predict_entries
from sfumato.kernels.numba.simd import aligned_zeros, lanes, padded_width
from sfumato.kernels.numba.threads import run
from sfumato.records import record
from sfumato.types import Array

_MAX_DENSE_CELLS = 10**8
_CHUNK = 1 << 16


@dataclass(frozen=True, eq=False)
class Multilinear(ABC):
    """What CP and Tucker share.

    ``rows`` holds the factors of all modes one below the other, padded with zero columns to whole
    cache lines; ``factors`` and ``mode_biases`` are views of its parts.
    """

    shape: tuple[int, ...]
    ranks: tuple[int, ...]
    mean: float
    rows: Array
    biases: Array

    def __post_init__(self) -> None:
        """Arrays that fit the shape: kernels do not look."""
        n, (rows, width) = sum(self.shape), self.rows.shape
        if (rows, *self.biases.shape) != (n, n) or not max(self.ranks, default=0) <= width:
            raise SettingError(
                f"rows of shape {self.rows.shape} and biases of shape {self.biases.shape} are not those "
                f"of a model of {' x '.join(map(str, self.shape))} levels"
            )

    # -- parts ----------------------------------------------------------------------------------

    @property
    def order(self) -> int:
        """Number of modes."""
        return len(self.shape)

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of all parameters."""
        return self.rows.dtype

    @property
    def offsets(self) -> tuple[int, ...]:
        """First row of each mode."""
        return tuple(int(o) for o in np.cumsum((0, *self.shape[:-1])))

    def span(self, mode: int) -> slice:
        """Rows of a mode."""
        return slice(self.offsets[mode], self.offsets[mode] + self.shape[mode])

    @property
    def factors(self) -> tuple[Array, ...]:
        """The factor of each mode, a row for each level."""
        return tuple(self.rows[self.span(m), : self.ranks[m]] for m in range(self.order))

    @property
    def mode_biases(self) -> tuple[Array, ...]:
        """The biases of each mode."""
        return tuple(self.biases[self.span(m)] for m in range(self.order))

    @property
    @abstractmethod
    def core(self) -> Array:
        """The core tensor, of shape ``ranks``."""

    @property
    @abstractmethod
    def free_core(self) -> Array:
        """The core entries that a solver may change, flat (a view): none for CP."""

    @property
    @abstractmethod
    def arrays(self) -> CPArrays | TuckerArrays:
        """The parameters as compiled kernels see them (views, not copies)."""

    @property
    @abstractmethod
    def degrees_of_freedom(self) -> int:
        """Parameters less the directions that leave every value unchanged."""

    def _freedom(self, interaction: int, rank: int) -> int:
        """With mean and biases; in a matrix of some rank biases also repeat what the rank can do."""
        biases = sum(n - 1 for n in self.shape) if self.biases.any() else 0
        if biases and self.order == 2:
            biases = max(0, biases - 2 * rank)
        return min(interaction + 1 + biases, prod(self.shape))

    @property
    def parameters(self) -> tuple[Array, ...]:
        """All arrays of numbers that a fit changes."""
        return (self.rows, self.biases, self.free_core)

    def with_mean(self, mean: float) -> Self:
        """The same with another mean."""
        return replace(self, mean=float(mean))

    def with_rows(self, mode: int, rows: Array, biases: Array) -> Self:
        """A model that has other rows and biases in one mode, as many as are given.

        A free core is shared with this model, all else is copied.
        """
        factors, mode_biases = list(self.factors), list(self.mode_biases)
        factors[mode], mode_biases[mode] = rows, biases
        shape = tuple(factor.shape[0] for factor in factors)
        empty = aligned_zeros((sum(shape), self.rows.shape[1]), self.dtype)
        model = replace(self, shape=shape, rows=empty, biases=np.zeros(sum(shape), self.dtype))
        return _filled(model, factors, mode_biases)

    def with_own_core(self) -> Self:
        """A model that shares all but the free core entries with this one."""
        return self

    def copy(self) -> Self:
        """A model that shares no memory with this one."""
        rows = aligned_zeros(self.rows.shape, self.dtype)
        rows[:] = self.rows
        return replace(self, rows=rows, biases=self.biases.copy()).with_own_core()

    # -- reference: readable, in NumPy ----------------------------------------------------------

    def entry_rows(self, coordinates: Array) -> list[Array]:
        """Each mode's factor rows at the given entries."""
        return [f[levels] for f, levels in zip(self.factors, coordinates, strict=True)]

    @abstractmethod
    def design(self, mode: int, coordinates: Array) -> Array:
        """Per entry the vector whose inner product with the mode's row is the value."""

    @abstractmethod
    def design_moment(self, mode: int, moments: Sequence[Array]) -> Array:
        """Second moment of the mode's designs, where rows of the other modes have the given ones.

        Exact where rows of different modes are independent; ``moments[mode]`` is not used.
        """

    @abstractmethod
    def turned(self, mode: int, matrix: Array) -> Self:
        """The same values, the mode's rows multiplied by a matrix and the rest by what undoes it.

        In a CP model of order three or more only the columns' lengths can change: the matrix has to be
        diagonal there.
        """

    @abstractmethod
    def kronecker(self, coordinates: Array) -> Array:
        """Per entry the vector whose inner product with the free core entries is the value."""

    @abstractmethod
    def _product(self, factors: Sequence[Array]) -> Array:
        """Dense values, without mean and biases, of some rows of each mode."""

    def bias_sum(self, coordinates: Array) -> Array:
        """Mean and biases at the given entries."""
        total: Array = sum(b[levels] for b, levels in zip(self.mode_biases, coordinates, strict=True))
        return total

    def predict_reference(self, coordinates: Array) -> Array:
        """Slow twin of :meth:`predict`."""
        interaction = np.einsum("er,er->e", self.design(0, coordinates), self.factors[0][coordinates[0]])
        result: Array = self.mean + self.bias_sum(coordinates) + interaction
        return result

    # -- values ---------------------------------------------------------------------------------

    def predict(self, coordinates: Array, *, threads: int = 1) -> Array:
        """Values at the entries ``coordinates[:, e]``.

        Parameters
        ----------
        coordinates : array
            A row for each mode, a column for each cell.
        threads : int
            How many.

        Returns
        -------
        array
            One for each cell.
        """
        given = np.asarray(coordinates)
        if given.ndim != 2 or given.shape[0] != self.order:
            raise SettingError(f"coordinates need shape ({self.order}, entries), got {given.shape}")
        if given.size and given.dtype.kind not in "iu":
            raise SettingError(f"coordinates must be whole numbers, got {given.dtype}")
        for m, (levels, size) in enumerate(zip(given, self.shape, strict=True)):
            if levels.size and (levels.min() < 0 or levels.max() >= size):
                raise SettingError(f"a level of mode {m} is outside 0 to {size - 1}")
        # Read-only like a tensor's coordinates, or the kernel would be compiled for both.
        cells = np.ascontiguousarray(given, dtype=np.int32).view()
        cells.flags.writeable = False
        out = np.empty(cells.shape[1], self.dtype)
        arrays, mean = self.arrays, self.dtype.type(self.mean)
        cuts = np.linspace(0, cells.shape[1], threads + 1).astype(np.int64).tolist()
        run(
            [
                partial(predict_entries, arrays, mean, cells, start, stop, out)
                for start, stop in pairwise(cuts)
            ],
            threads,
        )
        return out

    def block(self, levels: Sequence[Array | Sequence[int] | slice]) -> Array:
        """Dense values on a grid: some levels of each mode (a list of them, or a slice).

        Parameters
        ----------
        levels : sequence of array, sequence of int or slice
            Of each mode.

        Returns
        -------
        array
            Of as many dimensions as there are modes.
        """
        chosen = [np.arange(n)[part] for n, part in zip(self.shape, levels, strict=True)]
        cells = int(np.prod([len(c) for c in chosen], dtype=np.int64))
        if cells > _MAX_DENSE_CELLS:
            raise SettingError(
                f"a dense block of {cells:,} cells is too large; ask for fewer levels at a time"
            )
        result = self._product([f[c] for f, c in zip(self.factors, chosen, strict=True)])
        for m, c in enumerate(chosen):
            along = [1] * self.order
            along[m] = -1
            result = result + self.mode_biases[m][c].reshape(along)
        dense: Array = result + self.dtype.type(self.mean)
        return dense

    def to_dense(self) -> Array:
        """The whole tensor; for small ones."""
        return self.block([slice(None)] * self.order)

    def along(self, mode: int, fixed: Sequence[int]) -> Array:
        """Values of every level of a mode, the other modes' levels fixed (``fixed[mode]`` unused).

        Parameters
        ----------
        mode : int
            Its position.
        fixed : sequence of int
            A level of each mode.

        Returns
        -------
        array
            One value for each level.
        """
        cells = np.repeat(np.asarray(fixed, np.int32)[:, None], self.shape[mode], axis=1)
        cells[mode] = np.arange(self.shape[mode])
        return self.predict(cells)


@record
@dataclass(frozen=True, eq=False)
class CPModel(Multilinear):
    """CANDECOMP/PARAFAC: ``value = sum_r prod_m factor_m[i_m, r]``.

    Parameters
    ----------
    shape, ranks : tuple of int
        Levels of each mode, and columns of its factor.
    mean, rows, biases : float or array
        Arrays as fits keep them: see :meth:`from_factors`.

    Examples
    --------
    >>> import numpy as np, sfumato as sf
    >>> factors = [np.array([[1.0], [2.0]]), np.array([[3.0], [4.0], [5.0]])]
    >>> sf.CPModel.from_factors(factors, mean=1.0).to_dense()
    array([[ 4.,  5.,  6.],
           [ 7.,  9., 11.]])
    """

    @classmethod
    def zeros(cls, shape: Sequence[int], rank: int, dtype: DTypeLike = np.float64) -> CPModel:
        """All parameters zero. There may be more components than a mode has levels."""
        check_count(rank=rank)
        rows = aligned_zeros((sum(shape), padded_width(rank, dtype)), dtype)
        return cls(tuple(shape), (rank,) * len(shape), 0.0, rows, np.zeros(sum(shape), dtype))

    @classmethod
    def from_factors(
        cls, factors: Sequence[Array], *, mean: float = 0.0, biases: Sequence[Array] | None = None
    ) -> CPModel:
        """A model that copies the given factors (n_m x rank each).

        Parameters
        ----------
        factors : sequence of array
            One for each mode.
        mean : float
            Added to all values.
        biases : sequence of array or None
            A vector for each mode.

        Returns
        -------
        CPModel
            With copies of these.
        """
        columns = tuple(f.shape[1] for f in factors)
        if len(set(columns)) > 1:
            raise SettingError(f"the factors of a CP model have equal columns, got {columns}")
        shape = tuple(f.shape[0] for f in factors)
        model = cls.zeros(shape, factors[0].shape[1], np.result_type(*factors)).with_mean(mean)
        return _filled(model, factors, biases)

    @property
    def rank(self) -> int:
        """Number of components."""
        return self.ranks[0]

    @property
    def arrays(self) -> CPArrays:
        lines = (0,) * (self.rows.shape[1] // lanes(self.dtype))
        return CPArrays(self.rows, self.biases, self.offsets, lines)

    @property
    def core(self) -> Array:
        core = np.zeros(self.ranks, self.dtype)
        core[(np.arange(self.rank),) * self.order] = 1
        return core

    @property
    def free_core(self) -> Array:
        return np.empty(0, self.dtype)

    @property
    def degrees_of_freedom(self) -> int:
        # Columns can trade their lengths; those of a matrix can be mixed as well.
        alike = self.rank if self.order == 2 else self.order - 1
        return self._freedom(self.rank * (sum(self.shape) - alike), self.rank)

    @property
    def weights(self) -> Array:
        """Size of each component: the product of its columns' lengths."""
        lengths: Array = np.prod([np.linalg.norm(f, axis=0) for f in self.factors], axis=0)
        return lengths

    def design(self, mode: int, coordinates: Array) -> Array:
        rows = self.entry_rows(coordinates)
        others = [rows[m] for m in range(self.order) if m != mode]
        product: Array = np.prod(others, axis=0)
        return product

    def design_moment(self, mode: int, moments: Sequence[Array]) -> Array:
        product: Array = np.prod([moment for m, moment in enumerate(moments) if m != mode], axis=0)
        return product

    def turned(self, mode: int, matrix: Array) -> CPModel:
        factors, other = list(self.factors), (mode + 1) % self.order
        factors[mode] = factors[mode] @ matrix
        factors[other] = factors[other] @ np.linalg.inv(matrix).T
        return CPModel.from_factors(factors, mean=self.mean, biases=self.mode_biases)

    def kronecker(self, coordinates: Array) -> Array:
        return np.empty((coordinates.shape[1], 0), self.dtype)  # the core is fixed

    def _product(self, factors: Sequence[Array]) -> Array:
        # Without the core, which has rank^order entries.
        columns = factors[0]
        for factor in factors[1:-1]:
            columns = (columns[:, None, :] * factor[None, :, :]).reshape(-1, self.rank)
        dense: Array = (columns @ factors[-1].T).reshape([len(f) for f in factors])
        return dense

    def normalised(self) -> CPModel:
        """The same values: components sorted by size, each one's columns of equal length.

        Every column but the last mode's has a positive sum, so that the signs are settled too.
        """
        lengths = np.array([np.linalg.norm(f, axis=0) for f in self.factors])
        weights = lengths.prod(axis=0)
        keep = np.argsort(-weights, kind="stable")
        even = weights ** (1 / self.order)
        factors, signs = [], np.ones(self.rank, self.dtype)
        for m, (f, length) in enumerate(zip(self.factors, lengths, strict=True)):
            scaled = f * np.where(length > 0, even / np.where(length > 0, length, 1), 0)
            if m < self.order - 1:
                sign = np.where(scaled.sum(axis=0) < 0, -1, 1).astype(self.dtype)
                signs *= sign
            else:
                sign = signs
            factors.append((scaled * sign)[:, keep].astype(self.dtype))
        return CPModel.from_factors(factors, mean=self.mean, biases=self.mode_biases)

    def to_tucker(self) -> TuckerModel:
        """The Tucker model with the same values, of a superdiagonal core."""
        return TuckerModel.from_factors(self.factors, self.core, mean=self.mean, biases=self.mode_biases)


@record
@dataclass(frozen=True, eq=False)
class TuckerModel(Multilinear):
    """Tucker: a small core tensor, multiplied along each mode by a factor.

    Parameters
    ----------
    shape, ranks : tuple of int
        Levels of each mode, and columns of its factor.
    mean, rows, biases, flat_core : float or array
        Arrays as fits keep them: see :meth:`from_factors`.

    Examples
    --------
    >>> import numpy as np, sfumato as sf
    >>> factors = [np.array([[1.0], [2.0]]), np.array([[3.0], [4.0], [5.0]])]
    >>> sf.TuckerModel.from_factors(factors, core=np.array([[10.0]])).to_dense()
    array([[ 30.,  40.,  50.],
           [ 60.,  80., 100.]])
    """

    flat_core: Array

    @classmethod
    def zeros(
        cls, shape: Sequence[int], ranks: Sequence[int], dtype: DTypeLike = np.float64
    ) -> TuckerModel:
        """All parameters zero."""
        check_ranks(shape, ranks)
        rows = aligned_zeros((sum(shape), padded_width(max(ranks), dtype)), dtype)
        core = np.zeros(int(np.prod(ranks)), dtype)
        return cls(tuple(shape), tuple(ranks), 0.0, rows, np.zeros(sum(shape), dtype), core)

    @classmethod
    def from_factors(
        cls,
        factors: Sequence[Array],
        core: Array,
        *,
        mean: float = 0.0,
        biases: Sequence[Array] | None = None,
    ) -> TuckerModel:
        """A model that copies the given factors (n_m x rank_m) and core (rank_0 x rank_1 x ..).

        Parameters
        ----------
        factors : sequence of array
            One for each mode.
        core : array
            As many dimensions as modes.
        mean : float
            Added to all values.
        biases : sequence of array or None
            A vector for each mode.

        Returns
        -------
        TuckerModel
            With copies of these.
        """
        if core.shape != tuple(f.shape[1] for f in factors):
            raise SettingError(
                f"a core of shape {core.shape} does not fit factors of "
                f"{tuple(f.shape[1] for f in factors)} columns"
            )
        shape = tuple(f.shape[0] for f in factors)
        model = cls.zeros(shape, core.shape, np.result_type(core, *factors)).with_mean(mean)
        model.flat_core[:] = core.ravel()
        return _filled(model, factors, biases)

    @property
    def arrays(self) -> TuckerArrays:
        return TuckerArrays(self.rows, self.biases, self.offsets, self.ranks, self.flat_core)

    @property
    def core(self) -> Array:
        return self.flat_core.reshape(self.ranks)

    @property
    def free_core(self) -> Array:
        return self.flat_core

    @property
    def degrees_of_freedom(self) -> int:
        ranks = list(self.ranks)
        for m in range(self.order):  # a core has no more independent slices than a slice has entries
            ranks[m] = min(ranks[m], prod(ranks[:m] + ranks[m + 1 :]))
        free = sum(n * r - r * r for n, r in zip(self.shape, ranks, strict=True))
        return self._freedom(free + prod(ranks), min(ranks))

    def with_own_core(self) -> TuckerModel:
        return replace(self, flat_core=self.flat_core.copy())

    def design(self, mode: int, coordinates: Array) -> Array:
        rows = self.entry_rows(coordinates)
        letters = "abcdefgh"[: self.order]
        others = [m for m in range(self.order) if m != mode]
        terms = ",".join([f"z{letters[m]}" for m in others])
        result: Array = np.einsum(
            f"{terms},{letters}->z{letters[mode]}",
            *(rows[m] for m in others),
            self.core,
            optimize=True,
        )
        return result

    def design_moment(self, mode: int, moments: Sequence[Array]) -> Array:
        spread = self.core
        for m, moment in enumerate(moments):
            if m != mode:
                spread = np.moveaxis(np.tensordot(moment, spread, (1, m)), 0, m)
        others = [m for m in range(self.order) if m != mode]
        result: Array = np.tensordot(spread, self.core, (others, others))
        return result

    def turned(self, mode: int, matrix: Array) -> TuckerModel:
        factors = list(self.factors)
        factors[mode] = factors[mode] @ matrix
        core = np.moveaxis(np.tensordot(np.linalg.inv(matrix), self.core, (1, mode)), 0, mode)
        return TuckerModel.from_factors(factors, core, mean=self.mean, biases=self.mode_biases)

    def kronecker(self, coordinates: Array) -> Array:
        product = np.ones((coordinates.shape[1], 1), self.dtype)
        for rows in self.entry_rows(coordinates):
            product = (product[:, :, None] * rows[:, None, :]).reshape(rows.shape[0], -1)
        return product

    def _product(self, factors: Sequence[Array]) -> Array:
        dense = self.core
        for m, factor in enumerate(factors):
            dense = np.moveaxis(np.tensordot(factor, dense, (1, m)), 0, m)
        return dense

    def normalised(self) -> TuckerModel:
        """The same values with orthonormal factor columns, the core absorbing the rest."""
        factors, core = [], self.core
        for m, factor in enumerate(self.factors):
            q, r = np.linalg.qr(factor)
            factors.append(q)
            core = np.moveaxis(np.tensordot(r, core, (1, m)), 0, m)
        return TuckerModel.from_factors(factors, core, mean=self.mean, biases=self.mode_biases)

    def to_cp(self) -> CPModel:
        """The CP model with the same values, where the core is superdiagonal."""
        rank = self.ranks[0]
        diagonal = (np.arange(rank),) * self.order
        rest = self.core.copy()
        if len(set(self.ranks)) == 1:
            rest[diagonal] = 0
        if len(set(self.ranks)) > 1 or rest.any():
            raise SettingError(
                "only a Tucker model with a superdiagonal core is a CP model; "
                "fit a CP model to the data instead"
            )
        first = self.factors[0] * self.core[diagonal]
        return CPModel.from_factors([first, *self.factors[1:]], mean=self.mean, biases=self.mode_biases)


def check_ranks(shape: Sequence[int], ranks: Sequence[int], names: Sequence[str] | None = None) -> None:
    """Ranks that a model of this shape can have; ``names`` of the modes make the errors clearer."""
    if len(ranks) != len(shape):
        raise SettingError(f"{len(shape)} modes need {len(shape)} ranks, got {len(ranks)}")
    for m, (n, r) in enumerate(zip(shape, ranks, strict=True)):
        check_count(**{"a rank": r})
        if r > n > 0:  # a mode without levels: its rows are kept elsewhere
            raise SettingError(
                f"rank {r} is larger than mode {repr(names[m]) if names else m} with its {n} levels; "
                f"use a rank of at most {min(shape)}, or leave the small mode out"
            )


_Model = TypeVar("_Model", bound=Multilinear)


def _filled(model: _Model, factors: Sequence[Array], biases: Sequence[Array] | None) -> _Model:
    for mine, given in zip(model.factors, factors, strict=True):
        mine[:] = given
    if biases is not None:
        for mine, given in zip(model.mode_biases, biases, strict=True):
            mine[:] = given
    return model
