"""A site's entries as kernels of private solvers read them."""

from __future__ import annotations

from collections.abc import Collection
from math import sqrt

import numpy as np

from sfumato.kernels.numba.cells import Centring
from sfumato.kernels.numba.contributions import OWN, Entries, Taken
from sfumato.privacy.facts import Facts
from sfumato.sites.memory import Site
from sfumato.types import Array


def entries_of(site: Site, facts: Facts) -> Entries:
    """A site's entries by the levels of the units' mode; as they are where entries are the units."""
    if facts.unit_mode is None:
        tensor = site.tensor
        return Entries(tensor.coordinates, tensor.values, np.empty(0, np.int64), *facts.bounds)
    return owned_entries(site, facts.bounds, facts.unit_mode)


def owned_entries(site: Site, bounds: tuple[float, float], own: int) -> Entries:
    """A site's entries by the levels of a mode, the owners of entries."""
    ordered = site.by_mode(own)
    return Entries(ordered.others, ordered.values, ordered.starts, *bounds)


def row_of(facts: Facts, mode: int) -> int:
    """The row of these entries' levels that belongs to a mode."""
    return _row(mode, facts.unit_mode)


def _row(mode: int, own: int | None) -> int:
    if own is None or mode < own:
        return mode
    return OWN if mode == own else mode - 1


# In half widths: larger ones would round what they are taken off by more than the grid.
_MOST_BIAS = 2.0**10


def taken_off(facts: Facts, mean: float, biases: tuple[Array, ...], modes: Collection[int]) -> Taken:
    """A mean, and the biases of some modes, as far as any can be."""
    return _taken(facts.half, facts.shape.order, facts.unit_mode, mean, biases, modes)


def taken_off_owned(
    bounds: tuple[float, float], own: int, mean: float, biases: tuple[Array, ...]
) -> Taken:
    """The same off entries by the levels of a mode, the owners of entries: all biases but theirs."""
    (low, high), order = bounds, len(biases)
    return _taken((high - low) / 2, order, own, mean, biases, [m for m in range(order) if m != own])


def _taken(
    half: float,
    order: int,
    own: int | None,
    mean: float,
    biases: tuple[Array, ...],
    modes: Collection[int],
) -> Taken:
    most = _MOST_BIAS * half
    rows = order - (own is not None)
    offsets, parts, owned, used = np.full(rows, -1), list[Array](), np.zeros(0), 0
    for mode in modes:
        part = np.clip(np.asarray(biases[mode], np.float64), -most, most)
        row = _row(mode, own)
        if row == OWN:
            owned = part
            continue
        offsets[row] = used
        parts.append(part)
        used += part.shape[0]
    return Taken(mean, np.concatenate(parts) if parts else np.zeros(0), offsets, owned)


# -- owners' cells ---------------------------------------------------------------------------------

MOST_OWNED = 2**22  # levels of a mode, where owners' means are taken off: more would round sums too far

# An entry moves its owner's mean of n cells, clipped to c, by at most c (2n + k) / ((n + k)(n + k + 1)),
# k the ridge: a vector over the other n cells that is shorter than this number times c / sqrt(k).
_LONGEST_SHIFT = 0.788


def owners_shift(how: Centring) -> float:
    """Length of what one entry changes at its owner's other cells."""
    return _LONGEST_SHIFT * how.clip / sqrt(how.ridge)


def owners_change(how: Centring) -> float:
    """Length of what one entry changes at all of its owner's cells."""
    return sqrt(how.clip**2 + owners_shift(how) ** 2)


def owners_rests(
    site: Site, facts: Facts, own: int, mode: int, mean: float, biases: tuple[Array, ...], how: Centring
) -> Array:
    """What mean and biases leave at owners' cells of a mode, beside the owners' own means."""
    taken = taken_off_owned(facts.bounds, own, mean, biases)
    entries, cells = owned_entries(site, facts.bounds, own), site.cells(own, mode)
    rests: Array = site.owned.centred_rests(entries, taken, cells, how, site.threads)
    return rests
