"""Many canaries in one data set, each a privacy unit of its own, and each decided by a coin of its own.

===============  ==================================================================================
unit             a canary, and what its coin decides
===============  ==================================================================================
``Value``        an entry of the data: its value is at the lower or at the upper bound
``UnitValues``   a level, up to the unit's cap of its entries: values at the bounds by a random
                 pattern, or by the opposite one
``Entry``        a cell that is not observed: an entry there, at the bound further from all
                 others, or none
``Unit``         a level that is added to the mode: entries at random cells, at the bounds by a
                 random pattern, or none
===============  ==================================================================================

Flipping one coin gives a neighbour. Nothing public depends on coins: neither the modes with their sizes
and labels nor, where positions are public, the positions. Cells are chosen so that canaries show well
and get little in each other's way: levels with little company, as few canaries at each as can be.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import prod

import numpy as np

from sfumato.auditing.neighbours import bounds_of
from sfumato.data.tensor import Mode, SparseTensor
from sfumato.errors import SettingError
from sfumato.privacy.units import Entry, PrivacyUnit, Unit, UnitValues
from sfumato.types import Array

_LIST_CELLS = 1 << 18  # cells of a table up to which those that are empty are listed
_CANDIDATES = 20  # cells drawn for each canary in a larger one
_OF_LEVEL = 8  # cells of each level that are candidates, where that is enough
_LEAST_ENTRIES = 16  # of a level that is a canary


@dataclass(frozen=True, eq=False)
class Canaries:
    """All canaries of a data set.

    ``tensor`` has the modes of every data set that coins give, and entries; those that no coin decides
    are ``kept``. Cell ``e`` of ``cells`` belongs to canary ``owner[e]``; its value is ``heads[e]`` where
    that canary's coin shows heads, and ``tails[e]`` otherwise, or there is no entry then where ``tails``
    is None.
    """

    unit: PrivacyUnit
    tensor: SparseTensor
    kept: Array
    number: int
    owner: Array
    cells: Array
    heads: Array
    tails: Array | None

    def data(self, coins: Array) -> SparseTensor:
        """The data set that some coins give."""
        mine = np.asarray(coins, np.bool_)[self.owner]
        there = np.ones_like(mine) if self.tails is not None else mine
        values = self.heads if self.tails is None else np.where(mine, self.heads, self.tails)
        return SparseTensor(
            np.concatenate([self.tensor.coordinates[:, self.kept], self.cells[:, there]], axis=1),
            np.concatenate(
                [self.tensor.values[self.kept], values[there].astype(self.tensor.values.dtype)]
            ),
            self.tensor.modes,
            self.tensor.bounds,
        )

    @property
    def signs(self) -> Array:
        """Which way a canary's entries pull the values at their cells where its coin shows heads."""
        other = sum(bounds_of(self.tensor)) / 2 if self.tails is None else self.tails
        return np.sign(self.heads - other)

    @cached_property
    def undecided(self) -> SparseTensor | None:
        """The entries that no coin decides, if there are any."""
        return self.tensor.take(self.kept) if self.kept.any() else None

    def summed(self, numbers: Array) -> Array:
        """For each canary the sum over its cells."""
        return np.bincount(self.owner, numbers, self.number)

    @property
    def expected_entries(self) -> int:
        """Entries that fair coins add to the rest on average."""
        return int(self.owner.size) // (1 if self.tails is not None else 2)


def place_canaries(tensor: SparseTensor, unit: PrivacyUnit, number: int, seed: int | None) -> Canaries:
    """So many canaries in a data set with bounds; the choice of cells depends on positions alone."""
    if tensor.bounds is None:
        raise SettingError("canaries need the public bounds of the values")
    generator = np.random.default_rng(seed)
    if isinstance(unit, Unit):
        return _new_levels(tensor, unit, number, generator)
    if isinstance(unit, UnitValues):
        return _level_values(tensor, unit, number, generator)
    if isinstance(unit, Entry):
        return _new_entries(tensor, unit, number, generator)
    chosen = _spread_out(tensor, tensor.coordinates, number, generator, "entries")
    low, high = tensor.bounds
    return Canaries(
        unit,
        tensor,
        _all_but(tensor, chosen),
        number,
        np.arange(number),
        tensor.coordinates[:, chosen],
        np.full(number, high),
        np.full(number, low),
    )


# -- one value or one entry each ------------------------------------------------------------------


def _new_entries(
    tensor: SparseTensor, unit: Entry, number: int, generator: np.random.Generator
) -> Canaries:
    candidates = _empty_cells(tensor, number, generator)
    chosen = _spread_out(tensor, candidates, number, generator, "cells that are not observed")
    low, high = bounds_of(tensor)
    middle = float(tensor.values.mean())
    return Canaries(
        unit,
        tensor,
        np.ones(tensor.n_entries, np.bool_),
        number,
        np.arange(number),
        candidates[:, chosen],
        np.full(number, low if middle - low > high - middle else high),
        None,
    )


def _empty_cells(tensor: SparseTensor, number: int, generator: np.random.Generator) -> Array:
    """Cells without an entry: all of them, or of a large table many whose levels have little company."""
    size = prod(tensor.shape)
    observed = np.ravel_multi_index(tuple(tensor.coordinates), tensor.shape)
    if size <= _LIST_CELLS:
        empty = np.setdiff1d(np.arange(size), observed)
        return np.stack(np.unravel_index(empty, tensor.shape)).astype(np.int32)
    drawn = []
    for mode in tensor.modes:
        lonely = np.argsort(tensor.counts(mode.name), kind="stable")[: max(2 * number, 16)]
        drawn.append(generator.choice(lonely, _CANDIDATES * number))
    empty = np.setdiff1d(np.ravel_multi_index(tuple(drawn), tensor.shape), observed)
    return np.stack(np.unravel_index(empty, tensor.shape)).astype(np.int32)


def _spread_out(
    tensor: SparseTensor, cells: Array, number: int, generator: np.random.Generator, what: str
) -> Array:
    """Which of the cells become canaries: few at each level, of levels with little company."""
    if cells.shape[1] < number:
        raise SettingError(
            f"{number:,} canaries need as many {what}, and there are {cells.shape[1]:,}: ask for fewer"
        )
    company = np.sum(
        [
            np.log1p(tensor.counts(mode.name)[levels])
            for mode, levels in zip(tensor.modes, cells, strict=True)
        ],
        axis=0,
    )
    waiting = generator.permutation(cells.shape[1])
    few = waiting[np.logical_or.reduce([_occurrence(at[waiting]) < _OF_LEVEL for at in cells])]
    if few.size >= 4 * number:  # enough to choose from, and of large data much less to go through
        waiting = few
    waiting = waiting[np.argsort(company[waiting], kind="stable")]
    chosen: list[Array] = []
    while sum(map(len, chosen)) < number:
        lonely = _apart(cells, waiting, tensor.shape)
        chosen.append(lonely)
        waiting = waiting[~np.isin(waiting, lonely)]
    return np.sort(np.concatenate(chosen)[:number])


def _apart(cells: Array, waiting: Array, shape: tuple[int, ...]) -> Array:
    """Some of the waiting cells, no two of which share a level; the first ones, until none fits."""
    taken: list[Array] = []
    free = waiting
    while free.size:
        # Cells that are the first at all of their levels cannot share one.
        first = np.logical_and.reduce([_occurrence(levels[free]) == 0 for levels in cells])
        taken.append(free[first])
        fits = np.ones(free.size, np.bool_)
        for levels, size in zip(cells, shape, strict=True):
            used = np.zeros(size, np.bool_)
            used[levels[taken[-1]]] = True
            fits &= ~used[levels[free]]
        free = free[fits]
    return np.concatenate(taken)


def _occurrence(levels: Array) -> Array:
    """How often each level has come before."""
    by_level = np.argsort(levels, kind="stable")
    counts = np.bincount(levels)
    starts = np.repeat(np.cumsum(counts) - counts, counts)
    occurrence = np.empty(levels.size, np.int64)
    occurrence[by_level] = np.arange(levels.size) - starts
    return occurrence


def _all_but(tensor: SparseTensor, chosen: Array) -> Array:
    kept = np.ones(tensor.n_entries, np.bool_)
    kept[chosen] = False
    return kept


# -- a level each ---------------------------------------------------------------------------------


def _level_values(
    tensor: SparseTensor, unit: UnitValues, number: int, generator: np.random.Generator
) -> Canaries:
    counts = tensor.counts(unit.mode)
    there = np.flatnonzero(counts)
    if there.size < number:
        raise SettingError(
            f"{number:,} canaries need as many levels of {unit.mode} with entries, and there are "
            f"{there.size:,}: ask for fewer"
        )
    # The more values, up to the cap, the more of a canary shows.
    shown = np.minimum(counts[there], unit.max_entries)
    levels = there[np.lexsort((generator.random(there.size), -shown))[:number]]
    shuffled = generator.permutation(tensor.n_entries)
    turn = _occurrence(tensor.coordinates[tensor.mode_index(unit.mode)][shuffled])
    candidates = np.sort(shuffled[turn < unit.max_entries])
    owner_of = np.full(counts.size, -1)
    owner_of[levels] = np.arange(number)
    owners = owner_of[tensor.coordinates[tensor.mode_index(unit.mode)][candidates]]
    chosen, owner = candidates[owners >= 0], owners[owners >= 0]
    heads, tails = _patterns(owner, bounds_of(tensor), generator)
    cells = tensor.coordinates[:, chosen]
    return Canaries(unit, tensor, _all_but(tensor, chosen), number, owner, cells, heads, tails)


def _new_levels(
    tensor: SparseTensor, unit: Unit, number: int, generator: np.random.Generator
) -> Canaries:
    mode = tensor.mode_index(unit.mode)
    others = [m for m in range(tensor.order) if m != mode]
    sizes = [tensor.shape[m] for m in others]
    usual = round(tensor.n_entries / int(np.count_nonzero(tensor.counts(unit.mode))))
    each = min(unit.max_entries or prod(sizes), max(usual, _LEAST_ENTRIES), prod(sizes))
    cells = np.empty((tensor.order, number * each), np.int32)
    owner = np.repeat(np.arange(number), each)
    cells[mode] = tensor.shape[mode] + owner
    for canary in range(number):
        drawn = generator.choice(prod(sizes), each, replace=False)
        cells[others, canary * each : (canary + 1) * each] = np.stack(np.unravel_index(drawn, sizes))
    heads, _ = _patterns(owner, bounds_of(tensor), generator)
    modes = list(tensor.modes)
    modes[mode] = _with_levels(tensor.modes[mode], number)
    wider = SparseTensor(tensor.coordinates, tensor.values, tuple(modes), tensor.bounds)
    return Canaries(unit, wider, np.ones(tensor.n_entries, np.bool_), number, owner, cells, heads, None)


def _patterns(
    owner: Array, bounds: tuple[float, float], generator: np.random.Generator
) -> tuple[Array, Array]:
    """Values at the bounds, half of each canary's at either, and the opposite ones.

    Many methods let a level take its own mean off first: what all its values share would not show.
    """
    shuffled = generator.permutation(owner.size)
    up = np.empty(owner.size, np.bool_)
    up[shuffled] = _occurrence(owner[shuffled]) % 2 == 0
    return np.where(up, bounds[1], bounds[0]), np.where(up, bounds[0], bounds[1])


def _with_levels(mode: Mode, number: int) -> Mode:
    if mode.labels is None:
        return Mode(mode.name, mode.size + number, None, mode.bin)
    if mode.labels.dtype.kind == "i":
        first = int(mode.labels.max(initial=0)) + 1
        labels: Array = np.arange(first, first + number)
    else:
        name = "canary"
        while any(str(label).startswith(name) for label in mode.labels.tolist()):
            name = f"another {name}"
        labels = np.array([f"{name} {k + 1}" for k in range(number)], object)
    return Mode(mode.name, mode.size + number, np.concatenate([mode.labels, labels]), mode.bin)
