"""Readable twin of ``kernels/numba/cells.py``: one owner after the other."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from sfumato.kernels.grid import BELOW_ONE, cut
from sfumato.kernels.numba.cells import Cells, Centring, OwnMap, Shortening
from sfumato.kernels.numba.contributions import Entries, Taken
from sfumato.kernels.reference.contributions import rest_reference
from sfumato.types import Array


def _owners(cells: Cells) -> Iterator[slice]:
    for first, last in zip(cells.starts, cells.starts[1:], strict=False):
        if first < last:
            yield slice(first, last)


def centred_rests_reference(entries: Entries, taken: Taken, cells: Cells, how: Centring) -> Array:
    """Slow twin of ``centred_rests``."""
    number = cells.levels.shape[0]
    rest = np.clip(rest_reference(entries, taken), -how.clip, how.clip)
    out = np.bincount(cells.of_entry, rest, number) / np.bincount(cells.of_entry, minlength=number)
    for mine in _owners(cells):
        mean = out[mine].sum() / (mine.stop - mine.start + how.ridge)
        out[mine] = np.clip(out[mine] - mean, -how.clip, how.clip)
    return out


def moment_of_cells_reference(
    cells: Cells, numbers: Array, places: Array, power: float, step: float
) -> Array:
    """Slow twin of ``moment_of_cells``."""
    kept = int(places.max(initial=-1)) + 1
    total = np.zeros((kept, kept), np.int64)
    for mine in _owners(cells):
        here = places[cells.levels[mine]]
        y = np.zeros(kept)
        y[here[here >= 0]] = numbers[mine][here >= 0]
        length = np.linalg.norm(y)
        if length > 0:
            total += cut(np.outer(y, y) / length**power, step)
    triangle: Array = total[np.triu_indices(kept, 1)]
    return triangle


def project_cells_reference(
    cells: Cells,
    numbers: Array,
    weights: Array,
    directions: Array,
    reach: float,
    how: Shortening,
    step: float,
) -> Array:
    """Slow twin of ``project_cells``."""
    out = np.zeros(directions.shape, np.int64)
    for mine in _owners(cells):
        x = np.zeros(directions.shape[0])
        x[cells.levels[mine]] = weights[cells.levels[mine]] * numbers[mine]
        size = np.linalg.norm(x)
        if size == 0:
            continue
        s = directions.T @ x / size
        s *= min(1.0, reach * BELOW_ONE / max(float(np.linalg.norm(s)), 1e-300))
        if how.most < np.inf:
            scale = (how.ridge + (weights[cells.levels[mine]] ** 2).sum()) ** -0.5
            x *= min(scale, how.most * BELOW_ONE / size)
        out += cut(np.outer(x, s), step)
    return out


def cross_cells_reference(
    cells: Cells, numbers: Array, weights: Array, coordinates: Array, how: Shortening, step: float
) -> Array:
    """Slow twin of ``cross_cells``."""
    out = np.zeros((weights.shape[0], coordinates.shape[1]), np.int64)
    for owner, (first, last) in enumerate(zip(cells.starts, cells.starts[1:], strict=False)):
        mine = slice(first, last)
        x = weights[cells.levels[mine]] * numbers[mine]
        size = np.linalg.norm(x)
        if size == 0:
            continue
        scale = 1.0
        if how.ridge < np.inf:
            scale = float(how.ridge + (weights[cells.levels[mine]] ** 2).sum()) ** -0.5
        scale = min(scale, how.most * BELOW_ONE / float(size))
        out[cells.levels[mine]] += cut(np.outer(scale * x, coordinates[owner]), step)
    return out


def own_numbers_reference(entries: Entries, taken: Taken, how: OwnMap) -> Array:
    """Slow twin of ``own_numbers``."""
    rests = np.clip(rest_reference(entries, taken) / how.clip, -1, 1)
    q = np.prod(how.rows[how.offsets[:, None] + entries.levels], axis=0)
    f = np.hstack([rests[:, None], rests[:, None] * q, q]) @ how.turn.T
    lengths = np.linalg.norm(f, axis=1, keepdims=True)
    f *= np.minimum(1.0, how.longest / np.maximum(lengths, 1e-300))
    out = np.zeros((entries.starts.shape[0] - 1, f.shape[1]))
    for owner, (first, last) in enumerate(zip(entries.starts, entries.starts[1:], strict=False)):
        mean = f[first:last].sum(axis=0) / (last - first + how.ridge)
        out[owner] = mean * min(1.0, how.reach * BELOW_ONE / max(float(np.linalg.norm(mean)), 1e-300))
    return out
