"""Pairs of data sets that a guarantee says nobody can tell apart, chosen to be told apart easily.

What differs is a *canary*. Where values are protected it is one value at either bound; where presence
is, an entry, or all entries of one level, that is there or not, with values at the bound further away
from all others. Which cells it takes decides how much of it shows:

=========  =========================================================================================
``least``  the entry (level) with the least company: few others share its levels
``most``   the one with the most
``edge``   an entry with the least company in the first mode and the most in the others
``full``   a level with as many entries as the unit's cap allows
=========  =========================================================================================
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from sfumato.checks import as_pair, wrong
from sfumato.data.tensor import Mode, SparseTensor
from sfumato.errors import DataError, SettingError
from sfumato.privacy.units import PrivacyUnit, Unit, UnitValues
from sfumato.types import Array

CANARIES = ("least", "most", "edge", "full")
_MOST_BUILT = 4096  # entries of data that are made up
_MOST_FULL = 1000  # entries of a canary whose unit has no cap


@dataclass(frozen=True, eq=False)
class Neighbours:
    """Two data sets that differ in one unit, and the cells at which they do."""

    canary: str
    first: SparseTensor
    second: SparseTensor
    cells: Array

    @property
    def sides(self) -> tuple[SparseTensor, SparseTensor]:
        return self.first, self.second


def usual_canaries(unit: PrivacyUnit) -> tuple[str, ...]:
    """The canaries that are tried where none are named."""
    if isinstance(unit, UnitValues):  # positions are public: the fullest level is the one there is
        return ("least", "most")
    return ("least", "most", "full") if isinstance(unit, Unit) else ("least", "edge")


def neighbours(tensor: SparseTensor, unit: PrivacyUnit, canary: str) -> Neighbours:
    """Neighbours made from a data set with bounds; which cells change depends on positions alone."""
    if tensor.bounds is None:
        raise SettingError("neighbours need the public bounds of the values")
    if canary not in CANARIES:
        raise SettingError(f"there is no canary {canary!r}; there are {', '.join(CANARIES)}")
    if tensor.n_entries < 2:
        raise DataError("an audit needs data with two entries or more")
    if isinstance(unit, Unit | UnitValues):
        chosen = _level_canary(tensor, unit, canary)
    elif canary == "full":
        raise SettingError("a full canary is a level's: it needs a unit that is a mode")
    else:
        chosen = tensor.coordinates[:, [_entry(tensor, canary)]]
    return _apart(tensor, unit, canary, chosen)


def _apart(tensor: SparseTensor, unit: PrivacyUnit, canary: str, cells: Array) -> Neighbours:
    """The data set with the canary's cells at one bound, and at the other or not there at all."""
    low, high = bounds_of(tensor)
    rest = _without(tensor, unit, cells)
    if not unit.hides_presence:
        return Neighbours(canary, _with(rest, cells, low), _with(rest, cells, high), cells)
    middle = float(rest.values.mean()) if rest.n_entries else (low + high) / 2
    value = low if middle - low > high - middle else high
    return Neighbours(canary, rest, _with(rest, cells, value), cells)


def _without(tensor: SparseTensor, unit: PrivacyUnit, cells: Array) -> SparseTensor:
    """All entries but the canary's cells; of a unit whose presence is protected, no entry is left."""
    if isinstance(unit, Unit):
        mode = tensor.mode_index(unit.mode)
        kept = tensor.coordinates[mode] != cells[mode, 0]
    else:
        kept = np.ones(tensor.n_entries, np.bool_)
        for cell in cells.T:
            kept &= (tensor.coordinates != cell[:, None]).any(axis=0)
    return tensor.take(np.flatnonzero(kept))


def _with(rest: SparseTensor, cells: Array, value: float) -> SparseTensor:
    coordinates = np.concatenate([rest.coordinates, cells], axis=1)
    values = np.concatenate([rest.values, np.full(cells.shape[1], value, rest.values.dtype)])
    return SparseTensor(coordinates, values, rest.modes, rest.bounds)


def bounds_of(tensor: SparseTensor) -> tuple[float, float]:
    """Public bounds, which an audit cannot do without."""
    if tensor.bounds is None:
        raise SettingError("an audit needs public bounds of the values: read(..., bounds=(1, 5))")
    return tensor.bounds


# -- which cells ----------------------------------------------------------------------------------


def _entry(tensor: SparseTensor, canary: str) -> int:
    """The entry with the least or the most company, by how many share its levels."""
    company = np.stack(
        [
            np.log(tensor.counts(mode.name)[levels])
            for mode, levels in zip(tensor.modes, tensor.coordinates, strict=True)
        ]
    )
    if canary == "most":
        return int(company.sum(axis=0).argmax())
    if canary == "least":
        return int(company.sum(axis=0).argmin())
    return int((company[1:].sum(axis=0) - tensor.order * company[0]).argmax())


def _level_canary(tensor: SparseTensor, unit: Unit | UnitValues, canary: str) -> Array:
    """Cells of one level: its own, or as many as the cap allows."""
    mode = tensor.mode_index(unit.mode)
    counts = tensor.counts(unit.mode)
    there = np.flatnonzero(counts)
    if canary == "edge":
        raise SettingError("an edge canary is one entry: it needs the unit 'value' or 'entry'")
    full = canary == "full" and isinstance(unit, Unit)
    level = there[counts[there].argmin() if full or canary == "least" else counts[there].argmax()]
    if full:
        return _full_cells(tensor, mode, int(level), unit.max_entries)
    cells = tensor.coordinates[:, tensor.coordinates[mode] == level]
    return cells[:, : unit.max_entries]  # None: all


def _full_cells(tensor: SparseTensor, mode: int, level: int, cap: int | None) -> Array:
    """Cells of a level, at those of the other modes with the most company."""
    others = [m for m in range(tensor.order) if m != mode]
    sizes = [tensor.shape[m] for m in others]
    wanted = min(cap or max(_MOST_FULL, tensor.n_entries // tensor.shape[mode]), prod(sizes))
    # The most popular levels of each mode, as many as it takes for enough cells.
    ranked = [np.argsort(-tensor.counts(tensor.modes[m].name), kind="stable") for m in others]
    side = 1
    while prod(min(side, size) for size in sizes) < wanted:
        side += 1
    grid = np.meshgrid(*(levels[:side] for levels in ranked), indexing="ij")
    cells = np.empty((tensor.order, wanted), np.int32)
    cells[mode] = level
    cells[others] = np.stack([axis.ravel()[:wanted] for axis in grid])
    return cells


# -- data made for an audit -----------------------------------------------------------------------


def built(
    shape: Sequence[int | Mode], bounds: tuple[float, float] = (-1.0, 1.0), seed: int = 0
) -> SparseTensor:
    """Made-up data of a public shape on which canaries show well.

    A clear pattern (levels of the first mode that lie high or low, and a product of signs) at up to
    4,096 cells of the first levels, and two entries aside: one at the last level of every mode, which
    shares none with any other, and one that is alone in its row of the first mode only.
    """
    if not isinstance(shape, list | tuple):
        raise wrong("data", "a SparseTensor with bounds, or a shape such as (20, 20, 20)", shape)
    modes = tuple(m if isinstance(m, Mode) else Mode(f"mode{k}", m) for k, m in enumerate(shape))
    sizes = [mode.size for mode in modes]
    if len(sizes) < 2 or min(sizes) < 3:
        raise SettingError(f"data for an audit need two modes or more, of 3 levels or more; got {sizes}")
    generator = np.random.default_rng(seed)
    inner = [sizes[0] - 2, *(size - 1 for size in sizes[1:])]
    cells = prod(inner)
    few = generator.choice(cells, min(cells, _MOST_BUILT), replace=False)
    pattern = np.stack(np.unravel_index(few, inner)).astype(np.int32)
    signs = [generator.choice([-1.0, 1.0], size) for size in inner]
    product = np.prod([s[levels] for s, levels in zip(signs, pattern, strict=True)], axis=0)
    low, high = as_pair("bounds", bounds, "two numbers, the lower one first")
    middle, half = (low + high) / 2, (high - low) / 4
    alone = np.array([size - 1 for size in sizes])
    edge = np.array([sizes[0] - 2, *(int(np.bincount(levels).argmax()) for levels in pattern[1:])])
    coordinates = np.concatenate([pattern, alone[:, None], edge[:, None]], axis=1)
    values = np.concatenate([middle + half * (signs[0][pattern[0]] + product), [middle, middle]])
    return SparseTensor(coordinates, values, modes, bounds)
