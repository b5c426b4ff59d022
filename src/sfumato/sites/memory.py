"""Orders in which kernels walk over a tensor's entries."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from sfumato.data.tensor import SparseTensor
from sfumato.errors import DataError
from sfumato.kernels.numba import cells, contributions
from sfumato.kernels.numba.alternating import Features, Weighting, entry_sums, unit_sums
from sfumato.kernels.numba.cells import Cells
from sfumato.kernels.numba.normal import NormalEquations, Uncertainty, normal_equations
from sfumato.kernels.numba.ordering import row_starts, scatter, slots_by, slots_in_order
from sfumato.kernels.numba.residuals import residual_sums
from sfumato.kernels.numba.threads import run
from sfumato.records import same
from sfumato.types import Array

if TYPE_CHECKING:
    from sfumato.models.multilinear import Multilinear
    from sfumato.models.own_prior import OwnPrior

_T = TypeVar("_T")


@dataclass(frozen=True)
class ByMode:
    """Entries sorted by one mode: level i has the entries ``starts[i]`` to ``starts[i + 1]``.

    ``others`` holds the coordinates of the other modes, in order. ``weights`` is empty where all
    entries count alike.
    """

    others: NDArray[np.int32]
    values: NDArray[Any]
    starts: NDArray[np.int64]
    weights: NDArray[Any]

    @property
    def counts(self) -> NDArray[np.int64]:
        return np.diff(self.starts)

    @cached_property
    def total_weights(self) -> NDArray[Any]:
        """Sum of the weights at each level; without weights the number of entries."""
        if not self.weights.size:
            return self.counts
        sums, there = np.zeros(self.counts.shape[0]), self.counts > 0
        # Level by level: a running sum over all would round by what the other levels have.
        sums[there] = np.add.reduceat(self.weights, self.starts[:-1][there], dtype=np.float64)
        return sums


class Site:
    """One holder of entries: a tensor, and the orders of its entries that solvers have asked for.

    ``contributions`` and ``owned`` are kernels that add up what entries and owners have, in whole
    numbers: those of processors, or functions with their names that another device has.
    """

    contributions: Any = contributions
    owned: Any = cells

    def __init__(self, tensor: SparseTensor, threads: int) -> None:
        self.tensor = tensor
        self.threads = threads
        self.weights = _read_only(np.empty(0, tensor.values.dtype))
        self._kept: dict[Any, Any] = {}
        self._latest: tuple[object, Any] = (object(), None)

    def check_sizes(self, sizes: tuple[int, ...]) -> None:
        """Refuse to be used by a model of other modes: kernels would write beyond its rows.

        What is said does not depend on the entries, since a fit may be private.
        """
        if self.tensor.shape != sizes:
            raise DataError(
                f"the tensor has other modes than the {' x '.join(map(str, sizes))} levels of the model "
                "that was planned: plan with the tensor's own modes, or bring it to those of the plan"
            )

    def kept(self, key: Any, make: Callable[[], _T]) -> _T:
        """A layout that is made once."""
        if key not in self._kept:
            self._kept[key] = make()
        kept: _T = self._kept[key]
        return kept

    def latest(self, key: object, make: Callable[[], _T]) -> _T:
        """What was made last, as long as it is asked for with equal plain data."""
        known, latest = self._latest
        if not same(known, key):
            latest = make()
            self._latest = deepcopy(key), latest  # arrays of the key may be written to later
        return cast(_T, latest)

    def forget(self) -> None:
        """Let go of what is kept, for what comes after a fit's rounds: it is made anew where needed."""
        self._kept.clear()
        self._latest = (object(), None)

    # -- sums that another device may make ----------------------------------------------------------

    def normal_equations(
        self, model: Multilinear, uncertainty: Uncertainty, mode: int, low: int, high: int
    ) -> NormalEquations:
        """Sums for the rows ``low`` to ``high`` of a mode."""
        return normal_equations(model, uncertainty, self.by_mode(mode), mode, low, high, self.threads)

    def residual_sums(self, model: Multilinear, uncertainty: Uncertainty) -> tuple[float, float]:
        """Sums of squared residuals, and of the predictions' variances."""
        return residual_sums(model, uncertainty, self)

    def core_sums(self, model: Multilinear, uncertainty: Uncertainty) -> tuple[Array, Array] | None:  # noqa: ARG002
        """Gram matrix and right-hand side of a core, where another device makes them; else None."""
        return None

    def entry_sums(self, model: Multilinear, block: int, features: Features) -> Array:
        """Clipped sums of a block by entry, in whole steps."""
        return entry_sums(model, block, features, self.by_mode(max(block, 0)), self.threads)

    def unit_sums(
        self, model: Multilinear, block: int, features: Features, weighting: Weighting, units: int
    ) -> Array:
        """The same by unit, of which the levels of the mode ``units`` are one each."""
        how = features, weighting, self.by_mode(units), units, self.threads
        return unit_sums(model, block, *how)

    def own_rows(self, model: Multilinear, prior: OwnPrior) -> tuple[Array, Array] | None:  # noqa: ARG002
        """Rows and biases that their owners solve, where another device does that; else None."""
        return None

    # -- orders of the entries ----------------------------------------------------------------------

    def by_mode(self, mode: int) -> ByMode:
        """The entries sorted by a mode."""
        return self.kept(("mode", mode), lambda: self._sorted_by(mode))

    def slots(self, mode: int) -> NDArray[np.int32]:
        """The place of each entry among all, sorted by a mode."""
        levels, size = self.tensor.coordinates[mode], self.tensor.shape[mode]
        return self.kept(("slots", mode), lambda: slots_by(levels, size, self.threads))

    def cells(self, own: int, mode: int) -> Cells:
        """The different levels of a mode at which each level of another, an owner, has entries."""
        return self.kept(
            ("cells", own, mode), lambda: _cells(self.by_mode(own), own, mode, self.tensor, self.threads)
        )

    def grid(self, blocks: int, row_bytes: int) -> Grid:
        """The entries shuffled and cut into tiles; the shuffle is the same whatever the entries are."""
        key = ("grid", blocks, row_bytes)
        return self.kept(key, lambda: make_grid(self.tensor, blocks, row_bytes, 0, self.threads))

    def _sorted_by(self, mode: int) -> ByMode:
        return _sorted_by(self.tensor, mode, self.weights, self.threads)

    @cached_property
    def counts(self) -> NDArray[np.int64]:
        """Entries at each level, mode after mode."""
        return np.concatenate([self.tensor.counts(name) for name in self.tensor.mode_names])


class WeightedSite(Site):
    """The entries of another site with values and weights of their own.

    Cells and their orders are shared with that site: values can be restated at every sweep without
    sorting anew. Without weights all entries count alike.
    """

    def __init__(self, origin: Site, values: NDArray[Any], weights: NDArray[Any]) -> None:
        super().__init__(origin.tensor.with_values(values), origin.threads)
        self.weights = _read_only(weights)
        self._origin = origin

    def _sorted_by(self, mode: int) -> ByMode:
        base = self._origin.by_mode(mode)
        if mode == 0:
            return ByMode(base.others, self.tensor.values, base.starts, self.weights)
        slots = self._origin.slots(mode)
        values = scatter(self.tensor.values, slots, threads=self.threads)
        weights = self.weights
        if weights.size:
            weights = _read_only(scatter(weights, slots, threads=self.threads))
        return ByMode(base.others, _read_only(values), base.starts, weights)


def _read_only(array: NDArray[Any]) -> NDArray[Any]:
    """As a tensor's own arrays are, or kernels would be compiled a second time."""
    array.flags.writeable = False
    return array


def _sorted_by(tensor: SparseTensor, mode: int, weights: NDArray[Any], threads: int) -> ByMode:
    levels, size = tensor.coordinates[mode], tensor.shape[mode]
    starts = row_starts(levels, size)
    if mode == 0:  # a tensor's entries are sorted by the first mode: no copy
        return ByMode(tensor.coordinates[1:], tensor.values, starts, weights)
    slots = slots_by(levels, size, threads)
    others = np.empty((tensor.order - 1, tensor.n_entries), np.int32)
    for row, m in enumerate(m for m in range(tensor.order) if m != mode):
        scatter(tensor.coordinates[m], slots, others[row], threads=threads)
    values = scatter(tensor.values, slots, threads=threads)
    return ByMode(_read_only(others), _read_only(values), starts, weights)


def _cells(entries: ByMode, own: int, mode: int, tensor: SparseTensor, threads: int) -> Cells:
    levels, size = entries.others[mode - (mode > own)], tensor.shape[mode]
    owners = np.repeat(np.arange(tensor.shape[own], dtype=np.int32), entries.counts)
    later = owners[1:] > owners[:-1]
    if (later | (levels[1:] > levels[:-1])).all():  # as where there are two modes
        return Cells(entries.starts, levels, np.arange(levels.shape[0], dtype=np.int32))
    # Sorted by level, and then by owner: entries of a cell are neighbours.
    by_level = slots_by(levels, size, threads)
    by_owner = slots_by(scatter(owners, by_level, threads=threads), tensor.shape[own], threads)
    levels = scatter(scatter(levels, by_level, threads=threads), by_owner, threads=threads)
    begins = np.concatenate([[True], later | (levels[1:] != levels[:-1])])
    numbers = np.cumsum(begins, dtype=np.int32) - np.int32(1)
    starts = row_starts(owners[begins], tensor.shape[own])
    return Cells(starts, _read_only(levels[begins]), numbers[by_owner[by_level]])


@dataclass(frozen=True)
class Grid:
    """Entries cut into tiles, for passes that write to the rows of every entry that they visit.

    Each mode's levels are cut into ``blocks`` groups. A stratum is a set of blocks of entries, one
    per group of the first mode, no two of which share a level of any mode: threads that work on
    different blocks of one stratum never touch the same row. Within a block, tiles bound the number
    of different rows that are in use at a time, so that they stay in a core's cache; entries of a
    tile are in random order.

    ``starts[s, b]`` holds the tile boundaries of block b in stratum s; a block's tiles are counted
    along the modes, ``tiles[m]`` of them in mode m, the last mode fastest.
    """

    coordinates: NDArray[np.int32]
    values: NDArray[Any]
    starts: NDArray[np.int64]
    tiles: tuple[int, ...]

    @property
    def strata(self) -> int:
        return int(self.starts.shape[0])

    @property
    def blocks(self) -> int:
        return int(self.starts.shape[1])

    def random_strata(self, generator: np.random.Generator) -> NDArray[np.int64]:
        """All strata in a random order in which neighbours have groups of levels in common."""
        return _nested_order([self.blocks] * (len(self.tiles) - 1), generator)

    def random_tiles(self, generator: np.random.Generator) -> NDArray[np.int64]:
        """A block's tiles in a random order in which neighbours have levels in common."""
        return _nested_order(self.tiles, generator)


def _nested_order(sizes: Sequence[int], generator: np.random.Generator) -> NDArray[np.int64]:
    """Cells of a grid, the last side running fastest, the places along each side shuffled.

    Cells that follow each other differ in few sides, so that most rows in use are in the cache.
    """
    order = np.zeros(1, np.int64)
    for size in sizes:
        order = np.add.outer(order * size, generator.permutation(size)).ravel()
    return order


def make_grid(tensor: SparseTensor, blocks: int, row_bytes: int, seed: int, threads: int = 1) -> Grid:
    """Shuffle the entries and cut them into strata, blocks and tiles.

    There are fewer blocks than asked for where they would hold too few entries to be worth a thread.
    """
    order, n = tensor.order, tensor.n_entries
    blocks, tiles = grid_sizes(tensor, blocks, row_bytes)
    per_block = int(np.prod(tiles))
    key, entries = np.empty(n, np.int32), np.arange(n, dtype=np.int32)
    shuffle = partial(np.random.default_rng(seed).shuffle, entries)
    run([shuffle, partial(_tile_keys, tensor, blocks, tiles, key)], min(threads, 2))
    starts = row_starts(key, blocks**order * per_block)
    slots = slots_in_order(entries, key, starts, out=key)
    del entries
    coordinates = np.empty_like(tensor.coordinates)
    for m in range(order):
        scatter(tensor.coordinates[m], slots, coordinates[m], threads=threads)
    edges = np.empty((blocks ** (order - 1), blocks, per_block + 1), np.int64)
    edges[..., :-1] = starts[:-1].reshape(edges[..., :-1].shape)
    edges[..., -1] = starts[per_block::per_block].reshape(edges.shape[:2])
    values = scatter(tensor.values, slots, threads=threads)
    return Grid(coordinates, values, edges, tuple(tiles))


def grid_sizes(tensor: SparseTensor, blocks: int, row_bytes: int) -> tuple[int, list[int]]:
    """How many blocks a grid has along each mode, and how many tiles a block."""
    blocks = min(blocks, *tensor.shape)
    while blocks > 1 and blocks**tensor.order * _BLOCK_ENTRIES > tensor.n_entries:
        blocks -= 1
    return blocks, _tiles_per_block(tensor, blocks, row_bytes)


def _tile_keys(tensor: SparseTensor, blocks: int, tiles: list[int], key: NDArray[np.int32]) -> None:
    """Number of each entry's tile, counted by stratum, then block, then tile, written to ``key``."""
    key[:] = 0
    within = np.zeros(tensor.n_entries, np.int32)
    first = np.zeros(0, np.int32)
    for m, (levels, name) in enumerate(zip(tensor.coordinates, tensor.mode_names, strict=True)):
        # Cut the mode where the entries, not the levels, come to equal parts.
        middles = np.cumsum(tensor.counts(name)) - tensor.counts(name) / 2
        tile_of_level = middles * (blocks * tiles[m]) // tensor.n_entries
        tile = tile_of_level.astype(np.int32)[levels]
        within *= tiles[m]
        within += tile % tiles[m]
        tile //= tiles[m]  # now the group
        if m == 0:
            first = tile
        else:  # a stratum is a shift of every mode's groups against the first mode's
            key *= blocks
            tile -= first
            tile %= blocks
            key += tile
    key *= blocks
    key += first
    key *= int(np.prod(tiles))
    key += within


_BLOCK_ENTRIES = 1 << 12  # smaller blocks would cost more in starting them than they save
_CACHE_BYTES = 1 << 18  # rows in use at a time: a part of the second-level cache, which cores may share
_TILE_ENTRIES = 1 << 14  # smaller tiles would cost more in loops than they save in cache misses


def _tiles_per_block(tensor: SparseTensor, blocks: int, row_bytes: int) -> list[int]:
    """Halve the largest mode until a tile's rows fit the cache, or its entries become few."""
    tiles = [1] * tensor.order
    while True:
        in_use = [n * row_bytes / (blocks * t) for n, t in zip(tensor.shape, tiles, strict=True)]
        entries = tensor.n_entries / (blocks**tensor.order * float(np.prod(tiles)))
        if sum(in_use) <= _CACHE_BYTES or entries < 2 * _TILE_ENTRIES:
            return tiles
        tiles[int(np.argmax(in_use))] *= 2
