"""Steps of rows towards their best linear guess, in coordinates in which nothing is correlated.

A row with n entries, sums z of gradients at where it is, noise of variance v in these, and entries that
scatter by s has in a coordinate of power p the ridge r = s + v / n, over p, and moves by

    step * (p z - r b) / (n p + r),  and r p / (n p + r) of it is not known then.

What is known of a whole block follows from these: see ``solvers/private/alternating/moves.py``.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import numpy as np

from sfumato.kernels.numba.compiler import kernel
from sfumato.kernels.numba.threads import available_threads, run
from sfumato.records import record
from sfumato.types import Array

_ROWS = 4096  # that are added up by themselves: sums do not depend on the number of threads


@record
class Pull(NamedTuple):
    """What rows are drawn by: ``counts`` and ``noise`` by row, ``power`` by coordinate."""

    step: float
    counts: Array
    scatter: float
    noise: Array
    power: Array


class Nearer(NamedTuple):
    """Rows after a step, and what is not known then.

    ``doubts``: of each coordinate, averaged over entries. ``level_doubts``: of each row, over all
    coordinates; ``level_data`` is the same had there been no noise.
    """

    rows: Array
    doubts: Array
    level_doubts: Array
    level_data: Array


@kernel
def _move(
    at: Array,
    sums: Array,
    counts: Array,
    noise: Array,
    power: Array,
    step: float,
    scatter: float,
    first: int,
    last: int,
    moved: Array,
    level_doubts: Array,
    level_data: Array,
    doubts: Array,
) -> None:
    for i in range(first, last):
        n, all_doubts, all_data = counts[i], 0.0, 0.0
        ridge = scatter + noise[i] / n
        for c in range(power.shape[0]):
            p = power[c]
            over = 1 / (n * p + ridge)
            moved[i, c] = at[i, c] + step * (p * sums[i, c] - ridge * at[i, c]) * over
            doubt = ridge * p * over
            doubts[c] += n * doubt
            all_doubts += doubt
            all_data += scatter * p / (n * p + scatter)
        level_doubts[i], level_data[i] = all_doubts, all_data


@kernel
def _add_products(rows: Array, weights: Array, first: int, last: int, out: Array) -> None:
    rank = rows.shape[1]
    for i in range(first, last):
        for a in range(rank):
            x = weights[i] * rows[i, a]
            for b in range(rank):
                out[a, b] += x * rows[i, b]


def weighted_products(rows: Array, weights: Array) -> Array:
    """Sum of weighted products x x' of rows.

    As fast as a library of linear algebra where cores are quiet, and 20 times as fast where others use
    them as well: its threads wait for each other at every piece of a product that is so narrow.
    """
    levels, rank = rows.shape
    firsts = range(0, levels, _ROWS)
    given = np.ascontiguousarray(rows, np.float64), np.ascontiguousarray(weights, np.float64)
    sums = np.zeros((len(firsts), rank, rank))
    tasks = [
        partial(_add_products, *given, first, min(first + _ROWS, levels), out)
        for first, out in zip(firsts, sums, strict=True)
    ]
    run(tasks, available_threads())
    total: Array = sums.sum(axis=0)
    return total


def move_rows(at: Array, sums: Array, pull: Pull) -> Nearer:
    """Move rows, by sums that may have more columns than they."""
    levels, rank = at.shape
    firsts = range(0, levels, _ROWS)
    at, sums = np.ascontiguousarray(at, np.float64), np.ascontiguousarray(sums, np.float64)
    columns = [np.array(np.broadcast_to(x, levels), np.float64) for x in (pull.counts, pull.noise)]
    moved, by_level = np.empty((levels, rank)), np.empty((2, levels))
    doubts = np.zeros((len(firsts), max(rank, 8)))  # a line of memory for each
    given = (at, sums, *columns, pull.power.astype(np.float64), float(pull.step), float(pull.scatter))
    tasks = [
        partial(_move, *given, first, min(first + _ROWS, levels), moved, *by_level, doubts[k])
        for k, first in enumerate(firsts)
    ]
    run(tasks, available_threads())
    return Nearer(moved, doubts[:, :rank].sum(axis=0) / columns[0].sum(), *by_level)
