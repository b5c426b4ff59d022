"""What all periods of a private model have told of its levels: so that the next one can be added to it.

A release says what is likely of each level. To go on from it one has to know how likely: what entries
and noise of all periods so far make of a level by itself, and with which variance. Of two periods these
add up by their precisions, and what is likely of the level follows from both together, as if they had
been one. All of it is a function of what was released.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from sfumato.errors import SettingError
from sfumato.records import record
from sfumato.types import Array


@record
class LevelsTold(NamedTuple):
    """Of the levels of a mode: released biases, and what entries and noise make of each by itself.

    ``precisions`` are one over the variances of ``told``, zero for a level of which nothing is known.
    """

    biases: Array
    told: Array
    precisions: Array
    counts: Array

    def grown(self, size: int) -> LevelsTold:
        """The same with levels that are new."""
        more = np.zeros(size - self.biases.shape[0])
        return LevelsTold(*(np.concatenate([part, more]) for part in self))


@record
class OwnScales(NamedTuple):
    """Variances of what is left of an owner's entries about their mean, and of owners' means.

    ``error`` and ``doubt`` are how far the one and the other may be from the truth.
    """

    scatter: float
    variance: float
    error: float
    doubt: float


@record
@dataclass(frozen=True, eq=False, kw_only=True)
class Told:
    """What a private fit of biases, and what rests on them, has told.

    Parameters
    ----------
    periods : how many fits it comes from.
    mean_error : how far noise may have moved the mean.
    spread : how far values lie from their mean, None where that was not learnt.
    own : how far owners differ, or None.
    levels : for each mode what is known of its levels, or None.
    free : components that follow from biases and counts, and are made anew when these change.
    """

    periods: int = 1
    mean_error: float
    spread: float | None = None
    own: OwnScales | None = None
    levels: tuple[LevelsTold | None, ...]
    free: tuple[int, ...] = ()

    def grown(self, sizes: Sequence[int]) -> Told:
        """The same for a model with levels that are new."""
        pairs = zip(self.levels, sizes, strict=True)
        return replace(self, levels=tuple(None if each is None else each.grown(n) for each, n in pairs))

    def moved(self, mode: int, mean: float) -> Told:
        """The same beside another mean: what levels of a mode have beyond it is less by as much."""
        levels, here = list(self.levels), self.levels[mode]
        if here is not None:
            levels[mode] = here._replace(told=here.told - mean)
        return replace(self, levels=tuple(levels))

    def check(self, sizes: Sequence[int], ranks: Sequence[int], local: int | None) -> None:
        """Raise a ``SettingError`` where this is not of a model."""
        numbers = [self.mean_error, self.spread or 1.0, *(self.own or ())]
        if not np.isfinite(numbers).all() or min(numbers) < 0 or self.periods < 1:
            raise SettingError("what periods have told must be finite numbers of zero or more")
        if len(self.levels) != len(sizes):
            raise SettingError(f"a model of {len(sizes)} modes needs as many arrays or None")
        for m, (each, size) in enumerate(zip(self.levels, sizes, strict=True)):
            if each is None:
                continue
            if m == local or any(np.shape(part) != (size,) for part in each):
                raise SettingError("what is told of levels must be one number for each")
            if not np.isfinite(each).all() or min(np.min(each.precisions), np.min(each.counts)) < 0:
                raise SettingError("precisions and counts of levels must be numbers of zero or more")
        if any(not 0 <= column < min(ranks) for column in self.free):
            raise SettingError("there are no such components")

    # -- as it is written -----------------------------------------------------------------------

    def to_json(self) -> dict[str, Any]:
        """Its numbers; the arrays are those of :meth:`tensors`."""
        own = None if self.own is None else [float(each) for each in self.own]
        return {
            "periods": int(self.periods),
            "mean_error": float(self.mean_error),
            "spread": None if self.spread is None else float(self.spread),
            "own": own,
            "free": [int(column) for column in self.free],
        }

    def tensors(self) -> dict[str, Array]:
        """Its arrays by name."""
        return {
            f"told_{name}_{m}": np.ascontiguousarray(part, np.float64)
            for m, each in enumerate(self.levels)
            if each is not None
            for name, part in each._asdict().items()
        }

    @classmethod
    def from_parts(cls, numbers: Mapping[str, Any], tensors: Mapping[str, Array], order: int) -> Told:
        """What :meth:`to_json` and :meth:`tensors` gave, for a model with so many modes."""
        levels = tuple(
            LevelsTold(*(tensors[f"told_{name}_{m}"] for name in LevelsTold._fields))
            if f"told_biases_{m}" in tensors
            else None
            for m in range(order)
        )
        own, spread = numbers["own"], numbers["spread"]
        return cls(
            periods=int(numbers["periods"]),
            mean_error=float(numbers["mean_error"]),
            spread=None if spread is None else float(spread),
            own=None if own is None else OwnScales(*map(float, own)),
            levels=levels,
            free=tuple(map(int, numbers["free"])),
        )
