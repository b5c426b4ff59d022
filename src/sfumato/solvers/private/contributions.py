"""A site's entries as kernels of private solvers read them."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from sfumato.kernels.numba.contributions import OWN, Entries, Taken
from sfumato.privacy.facts import Facts
from sfumato.sites.memory import Site
from sfumato.types import Array


def entries_of(site: Site, facts: Facts) -> Entries:
    """A site's entries by the levels of the units' mode; as they are where entries are the units."""
    if facts.unit_mode is None:
        tensor = site.tensor
        return Entries(tensor.coordinates, tensor.values, np.empty(0, np.int64), *facts.bounds)
    ordered = site.by_mode(facts.unit_mode)
    return Entries(ordered.others, ordered.values, ordered.starts, *facts.bounds)


def row_of(facts: Facts, mode: int) -> int:
    """The row of these entries' levels that belongs to a mode."""
    own = facts.unit_mode
    if own is None or mode < own:
        return mode
    return OWN if mode == own else mode - 1


# In half widths: larger ones would round what they are taken off by more than the grid.
_MOST_BIAS = 2.0**10


def taken_off(facts: Facts, mean: float, biases: tuple[Array, ...], modes: Collection[int]) -> Taken:
    """A mean, and the biases of some modes, as far as any can be."""
    most = _MOST_BIAS * facts.half
    rows = facts.shape.order - (facts.unit_mode is not None)
    offsets, parts, own, used = np.full(rows, -1), list[Array](), np.zeros(0), 0
    for mode in modes:
        part = np.clip(np.asarray(biases[mode], np.float64), -most, most)
        if row_of(facts, mode) == OWN:
            own = part
            continue
        offsets[row_of(facts, mode)] = used
        parts.append(part)
        used += part.shape[0]
    return Taken(mean, np.concatenate(parts) if parts else np.zeros(0), offsets, own)
