"""A site's entries as private solvers read them: by unit, their values within the bounds."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from sfumato.privacy.clipping import clip_values
from sfumato.sites.memory import Site
from sfumato.types import Array


class Arranged(NamedTuple):
    """Entries in the order of the units: unit u has the entries ``starts[u]`` to ``starts[u + 1]``."""

    levels: tuple[Array, ...]  # by mode
    values: Array  # within the bounds
    starts: Array


def arrange(site: Site, unit_mode: int | None, bounds: tuple[float, float]) -> Arranged:
    """A site's entries by the levels of the units' mode; as they are where entries are the units."""
    return site.kept(("private", unit_mode, bounds), lambda: _arranged(site, unit_mode, bounds))


def _arranged(site: Site, unit_mode: int | None, bounds: tuple[float, float]) -> Arranged:
    tensor = site.tensor
    if unit_mode is None:
        values = clip_values(tensor.values.astype(np.float64), *bounds).values
        return Arranged(tuple(tensor.coordinates), values, np.empty(0, np.int64))
    ordered = site.by_mode(unit_mode)
    own = np.repeat(np.arange(tensor.shape[unit_mode], dtype=np.int32), ordered.counts)
    own.flags.writeable = False  # like the other modes' levels, or kernels would be compiled twice
    levels = list(ordered.others)
    levels.insert(unit_mode, own)
    values = clip_values(ordered.values.astype(np.float64), *bounds).values
    return Arranged(tuple(levels), values, ordered.starts)


def unit_totals(numbers: Array, starts: Array) -> tuple[Array, Array]:
    """The sum of each unit's numbers and how many it has, of the units that have some.

    Where entries are the units, the numbers themselves and ones.
    """
    if not starts.size:
        return numbers, np.ones(numbers.shape[0])
    counts = np.diff(starts)
    there = counts > 0
    # Sums between starts; a unit without entries would be given its successor's.
    return np.add.reduceat(numbers, starts[:-1][there]), counts[there]
