"""Readable twin of ``kernels/numba/private_langevin.py``: every unit's contribution dense, by itself."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sfumato.kernels.grid import BELOW_ONE
from sfumato.kernels.numba.private_langevin import (
    HIGH,
    LOW,
    MEAN,
    PRECISION,
    LangevinSums,
    Layout,
    Owned,
    Packed,
    Point,
)
from sfumato.types import Array


def _places(layout: Layout, v: int, levels: Array) -> tuple[Array, Array]:
    """Rows and biases of an entry."""
    order = layout.orders[v]
    return layout.first_rows[v, :order] + levels[:order], layout.first_biases[v, :order] + levels[:order]


def _inside(at: Point, v: int, value: float) -> float:
    return float(np.clip(value, at.scale[v, LOW], at.scale[v, HIGH]))


def gradient_reference(
    layout: Layout, at: Point, v: int, levels: Array, value: float
) -> tuple[Array, Array]:
    """Gradient of the log likelihood of one entry by all rows and all biases."""
    rows, biases = np.zeros_like(at.rows), np.zeros_like(at.biases)
    places, bias_places = _places(layout, v, levels)
    guess = at.scale[v, MEAN] + at.biases[bias_places].sum() + np.prod(at.rows[places], axis=0).sum()
    if at.poisson:
        slope = _inside(at, v, value) / max(guess, 1e-12) - 1
    else:
        slope = (_inside(at, v, value) - guess) * at.scale[v, PRECISION]
    for m, row in enumerate(places):
        rows[row] += slope * np.prod(np.delete(at.rows[places], m, axis=0), axis=0)
    biases[bias_places] += slope
    return rows, biases


def _clipped(layout: Layout, at: Point, rows: Array, biases: Array) -> tuple[Array, Array]:
    """A contribution in the metric, shortened as a whole and cut to whole steps."""
    rows, biases = rows * at.metric[layout.block_of], biases * at.bias_metric
    length = np.sqrt(np.square(rows).sum() + np.square(biases).sum())
    factor = 0.0
    if np.isfinite(length):
        most = at.clip * BELOW_ONE
        factor = most / max(length, most) / at.step
    return np.trunc(factor * rows).astype(np.int64), np.trunc(factor * biases).astype(np.int64)


def _add(sums: LangevinSums, part: tuple[Array, Array]) -> None:
    sums.rows[:] += part[0]
    sums.biases[:] += part[1]


def entry_sums_reference(
    layout: Layout, at: Point, packed: Packed, chosen: Sequence[int] | None = None
) -> LangevinSums:
    """Twin of :func:`entry_sums`."""
    sums = LangevinSums(np.zeros(at.rows.shape, np.int64), np.zeros(at.biases.shape, np.int64))
    for entry in range(packed.values.shape[0]) if chosen is None else chosen:
        v = int(np.searchsorted(packed.starts, entry, side="right")) - 1
        gradient = gradient_reference(layout, at, v, packed.levels[entry], packed.values[entry])
        _add(sums, _clipped(layout, at, *gradient))
    return sums


def own_rows_reference(layout: Layout, at: Point, packed: Packed, own: Owned, unit: int) -> None:
    """Solve a unit's own row and biases from its own entries, and write them to ``at``."""
    relations, rank = len(layout.orders), at.rows.shape[1]
    here = layout.first_rows[0, own.modes[0]] + unit
    own_biases = [layout.first_biases[v, own.modes[v]] + unit for v in range(relations)]
    at.rows[here], at.biases[own_biases] = 0.0, 0.0
    designs, rests, weights = [], [], []
    for v in range(relations):
        for entry in range(packed.starts[unit * relations + v], packed.starts[unit * relations + v + 1]):
            places, bias_places = _places(layout, v, packed.levels[entry])
            design = np.prod(np.delete(at.rows[places], own.modes[v], axis=0), axis=0)
            designs.append([*design, *(np.arange(relations) == v) * (not at.poisson)])
            guess = at.scale[v, MEAN] + at.biases[bias_places].sum()
            rests.append(_inside(at, v, packed.values[entry]) - guess)
            weights.append(at.scale[v, PRECISION])
    x, w = np.array(designs), np.array(weights)
    ridge = np.diag([*[own.ridge] * rank, *own.bias_ridges])
    wanted = ridge @ np.array([*[own.home] * rank, *[0.0] * relations])
    found = np.linalg.solve((x.T * w) @ x + ridge, x.T @ (w * np.array(rests)) + wanted)
    at.rows[here] = np.maximum(found[:rank], 0) if at.poisson else found[:rank]
    at.biases[own_biases] = found[rank:]


def unit_sums_reference(
    layout: Layout, at: Point, packed: Packed, own: Owned, chosen: Sequence[int] | None = None
) -> LangevinSums:
    """Twin of :func:`unit_sums`."""
    relations = len(layout.orders)
    sums = LangevinSums(np.zeros(at.rows.shape, np.int64), np.zeros(at.biases.shape, np.int64))
    for unit in range((packed.starts.size - 1) // relations) if chosen is None else chosen:
        first, beyond = packed.starts[unit * relations], packed.starts[(unit + 1) * relations]
        if first == beyond:
            continue
        if own.block >= 0:
            own_rows_reference(layout, at, packed, own, unit)
        rows, biases = np.zeros_like(at.rows), np.zeros_like(at.biases)
        for v in range(relations):
            s = unit * relations + v
            for entry in range(packed.starts[s], packed.starts[s + 1]):
                parts = gradient_reference(layout, at, v, packed.levels[entry], packed.values[entry])
                for m in range(layout.orders[v]):
                    if layout.blocks[v, m] != own.block:
                        row, bias = (each[m] for each in _places(layout, v, packed.levels[entry]))
                        rows[row] += parts[0][row]
                        biases[bias] += parts[1][bias]
        weight = min(1.0, np.sqrt(own.typical / (beyond - first)))
        _add(sums, _clipped(layout, at, weight * rows, weight * biases))
    return sums
