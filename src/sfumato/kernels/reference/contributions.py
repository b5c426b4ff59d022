"""Readable twin of ``kernels/numba/contributions.py``: one unit after the other."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from sfumato.kernels.grid import BELOW_ONE, cut, grid
from sfumato.kernels.numba.contributions import Contribution, Entries, Taken
from sfumato.types import Array


def rest_reference(entries: Entries, taken: Taken) -> Array:
    """What is left of every value."""
    values = entries.values.astype(np.float64)
    middle = entries.low / 2 + entries.high / 2
    rest = np.where(np.isnan(values), middle, np.clip(values, entries.low, entries.high)) - taken.mean
    for levels, offset in zip(entries.levels, taken.offsets, strict=True):
        if offset >= 0:
            rest -= taken.biases[offset + levels]
    if taken.own.size:
        rest -= np.repeat(taken.own, np.diff(entries.starts))
    return rest


def _units(entries: Entries) -> Iterator[tuple[int, slice]]:
    for unit, (first, last) in enumerate(zip(entries.starts, entries.starts[1:], strict=False)):
        if first < last:
            yield unit, slice(first, last)


def entry_sums_reference(entries: Entries, taken: Taken, row: int, clip: float, size: int) -> Array:
    """Slow twin of ``entry_sums``."""
    out, rest = np.zeros(size, np.int64), np.clip(rest_reference(entries, taken), -clip, clip)
    np.add.at(out, entries.levels[row], cut(rest, grid(clip)))
    return out


def unit_sums_reference(
    entries: Entries,
    taken: Taken,
    row: int,
    weights: Array,
    made: Contribution,
    counted: bool = False,
) -> Array:
    """Slow twin of ``unit_sums``; of ``unit_counts`` where entries are counted."""
    out, size = np.zeros(weights.shape[0], np.int64), weights.shape[0]
    everything = np.ones(entries.values.shape[0]) if counted else rest_reference(entries, taken)
    for unit, mine in _units(entries):
        rest = everything[mine]
        if made.centred:
            rest = rest - rest.sum() / (rest.shape[0] + made.ridge)
        here = np.full(rest.shape[0], unit) if row < 0 else entries.levels[row, mine]
        number = weights * np.bincount(here, minlength=size)
        total = weights * np.bincount(here, np.clip(rest, -made.clip, made.clip), size)
        total *= ((number**made.norm).sum() + made.ridge) ** (-1 / made.norm)
        length, most = np.linalg.norm(total, made.norm), made.bound * BELOW_ONE
        out += cut(total * (most / length if length > most else 1.0), grid(made.bound))
    return out


def means_of_units_reference(entries: Entries, taken: Taken, most: float, full: float) -> Array:
    """Slow twin of ``means_of_units``; with one entry a unit and ``full=1``, of ``total_of_entries``."""
    step, out = grid(most), np.zeros(2, np.int64)
    whole = cut(np.clip(rest_reference(entries, taken), -most, most), step)
    for _, mine in _units(entries):
        count = whole[mine].shape[0]
        mean = np.clip(whole[mine].sum() * step / max(count, full), -most, most)
        out += cut(np.array([mean, min(count / full, 1.0) * most]), step)
    return out


def squares_of_units_reference(entries: Entries, taken: Taken, most: float, ridge: float) -> Array:
    """Slow twin of ``squares_of_units``."""
    step, out, everything = grid(most), np.zeros(2, np.int64), rest_reference(entries, taken)
    for _, mine in _units(entries):
        rest = everything[mine]
        squares = np.minimum((rest - rest.sum() / (rest.shape[0] + ridge)) ** 2, most)
        part = rest.shape[0] / (rest.shape[0] + ridge)
        out += cut(np.array([min(part * squares.mean(), most), part * most]), step)
    return out


def scales_of_owners_reference(
    entries: Entries, taken: Taken, unit: float, length: float, norm: int
) -> Array:
    """Slow twin of ``scales_of_owners``."""
    out, everything = np.zeros(5, np.int64), rest_reference(entries, taken)
    for _, mine in _units(entries):
        rest = everything[mine]
        number, several = rest.shape[0], rest.shape[0] > 1
        within = rest.var(ddof=1) if several else 0.0
        made = np.array([several / 2, 0.5, 0.5 / number, within / unit, rest.mean() ** 2 / unit])
        size = float(np.linalg.norm(made, norm))
        made *= min(1.0, length * BELOW_ONE / size) if size < np.inf else 0.0
        out += cut(made, grid(length))
    return out


def moment_of_rows_reference(rows: Array, counts: Array, turn: Array, length: float) -> Array:
    """Slow twin of ``moment_of_rows``."""
    step, (first, second) = grid(length**2), np.triu_indices(turn.shape[0])
    out = np.zeros(first.shape[0] + 1, np.int64)
    for row in rows[counts > 0]:
        x = row @ turn
        norm = float(np.linalg.norm(x))
        x = x * min(1.0, length * BELOW_ONE / max(norm, 1e-300)) if norm < np.inf else np.zeros_like(x)
        products = x[first] * x[second] * np.where(first == second, 1.0, np.sqrt(2.0))
        out += cut(np.append(products, length**2), step)
    return out
