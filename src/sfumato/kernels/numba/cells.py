"""What owners have at the levels of a mode, two by two: which levels, and what is left of values there.

An owner's *cells* are the different levels of a mode that its entries are at; several entries at one
level, which differ in further modes, are one cell. Each cell has a number: a weight where it is asked
which levels owners have, or the owner's mean residual there. Three kinds of sums over owners:

- *moments* of some levels: products of an owner's numbers, over their length to a power, so that one
  entry, or one owner, changes them by little however many cells the owner has;
- *projections*: an owner's numbers, each times the same few coordinates, which are those of all its
  numbers along given directions;
- residuals of cells, about the owner's own mean: no sums, what the other two are made of.

What is added is first cut to whole steps of a grid (``kernels/grid.py``). Arithmetic is in the order in
which it is written, so that what an owner adds does not depend on the others.
"""

from __future__ import annotations

from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from sfumato.kernels.grid import BELOW_ONE
from sfumato.kernels.numba.compiler import ordered_kernel
from sfumato.kernels.numba.contributions import Entries, Taken, rest_of, steps_of
from sfumato.kernels.numba.threads import balanced_cuts, longest, run, scratch
from sfumato.records import record
from sfumato.types import Array


class Cells(NamedTuple):
    """Owner u has the cells ``starts[u]`` to ``starts[u + 1]``, at ``levels``, in order.

    ``of_entry`` is the cell of each of the entries, sorted by owner.
    """

    starts: Array
    levels: Array
    of_entry: Array

    def cuts(self, threads: int) -> list[int]:
        """Owners at which threads begin."""
        return balanced_cuts(self.starts, 0, self.starts.shape[0] - 1, threads)


class Centring(NamedTuple):
    """How residuals become an owner's numbers.

    Residuals of entries are clipped to ``clip`` and averaged by cell. The owner's own mean, the sum of
    its cells over their number plus ``ridge``, is taken off, and what is left clipped again.
    """

    clip: float
    ridge: float


@record
class Shortening(NamedTuple):
    """How long an owner's numbers are when they are multiplied by its coordinates.

    As they are where ``most`` is infinite; else times (ridge + sum of the squared weights of its
    levels)^(-1/2), and shortened to ``most``.
    """

    ridge: float
    most: float


# -- numbers of cells ------------------------------------------------------------------------------


@ordered_kernel
def _centred(
    entries: Any, taken: Any, cells: Any, how: Any, first: int, last: int, number: Array, out: Array
) -> None:
    begins, cell_starts, of_entry = entries[2], cells[0], cells[2]
    clip, ridge = how
    for owner in range(first, last):
        begin, end = cell_starts[owner], cell_starts[owner + 1]
        for e in range(begins[owner], begins[owner + 1]):
            rest = min(clip, max(-clip, rest_of(entries, taken, e)))
            out[of_entry[e]] += rest
            number[of_entry[e]] += 1
        mean = 0.0
        for c in range(begin, end):
            out[c] /= number[c]
            mean += out[c]
        mean /= end - begin + ridge
        for c in range(begin, end):
            out[c] = min(clip, max(-clip, out[c] - mean))


def centred_rests(entries: Entries, taken: Taken, cells: Cells, how: Centring, threads: int) -> Array:
    """What is left of each cell beside the owner's own mean."""
    out = np.zeros(cells.levels.shape[0])
    number = np.zeros(cells.levels.shape[0], np.int32)
    ends = pairwise(cells.cuts(threads))
    run([partial(_centred, entries, taken, cells, how, *e, number, out) for e in ends], threads)
    return out


@ordered_kernel
def _add_up(cells: Any, numbers: Array, step: float, first: int, last: int, out: Array) -> None:
    starts, levels = cells[0], cells[1]
    for c in range(starts[first], starts[last]):
        out[levels[c]] += steps_of(numbers[c], step)


def sum_of_cells(cells: Cells, numbers: Array, size: int, step: float, threads: int) -> Array:
    """Sum of the numbers at each of ``size`` levels, in whole steps."""
    outs = [np.zeros(size, np.int64) for _ in range(threads)]
    ends = pairwise(cells.cuts(threads))
    run(
        [partial(_add_up, cells, numbers, step, *e, out) for e, out in zip(ends, outs, strict=True)],
        threads,
    )
    total: Array = np.sum(outs, axis=0)
    return total


# -- moments -----------------------------------------------------------------------------------------


@ordered_kernel
def _moment(
    cells: Any,
    numbers: Array,
    places: Array,
    power: float,
    step: float,
    first: int,
    last: int,
    out: Array,
) -> None:
    starts, levels = cells[0], cells[1]
    kept = 0
    for level in range(places.shape[0]):
        kept = max(kept, places[level] + 1)
    most = longest(starts, first, last)
    y, at = scratch(most, np.float64), scratch(most, np.int64)
    for owner in range(first, last):
        count, square = 0, 0.0
        for c in range(starts[owner], starts[owner + 1]):
            if places[levels[c]] >= 0:
                y[count], at[count] = numbers[c], places[levels[c]]
                square += numbers[c] * numbers[c]
                count += 1
        if square == 0:
            continue
        factor = square ** (-power / 2)
        for i in range(count):  # levels are in order, and so are their places: only above the diagonal
            row = at[i] * (2 * kept - at[i] - 1) // 2 - at[i] - 1
            mine = factor * y[i]
            for j in range(i + 1, count):
                out[row + at[j]] += steps_of(mine * y[j], step)


def moment_of_cells(
    cells: Cells, numbers: Array, places: Array, power: float, step: float, threads: int
) -> Array:
    """Sum over owners of y y' / |y|^power, above the diagonal, in whole steps.

    y holds an owner's numbers at the levels that have a place, which must be in the order of levels;
    others have the place -1.
    """
    kept = int(places.max(initial=-1)) + 1
    outs = [np.zeros(kept * (kept - 1) // 2, np.int64) for _ in range(threads)]
    ends = pairwise(cells.cuts(threads))
    what = cells, numbers, places, power, step
    run([partial(_moment, *what, *e, out) for e, out in zip(ends, outs, strict=True)], threads)
    total: Array = np.sum(outs, axis=0)
    return total


# -- projections -------------------------------------------------------------------------------------


@ordered_kernel
def _project(
    cells: Any,
    numbers: Array,
    weights: Array,
    directions: Array,
    reach: float,
    how: Any,
    step: float,
    first: int,
    last: int,
    out: Array,
) -> None:
    starts, levels = cells[0], cells[1]
    ridge, most = how
    rank = directions.shape[1]
    s = scratch(rank, np.float64)
    for owner in range(first, last):
        square, weight = 0.0, 0.0
        for k in range(rank):
            s[k] = 0.0
        for c in range(starts[owner], starts[owner + 1]):
            j = levels[c]
            x = weights[j] * numbers[c]
            square += x * x
            weight += weights[j] * weights[j]
            for k in range(rank):
                s[k] += x * directions[j, k]
        if square == 0:
            continue
        size, along = np.sqrt(square), 0.0
        for k in range(rank):
            s[k] /= size
            along += s[k] * s[k]
        along = np.sqrt(along)
        factor = reach * BELOW_ONE / along if along > reach * BELOW_ONE else 1.0
        if most < np.inf:
            scale = 1 / np.sqrt(ridge + weight)
            if size * scale > most * BELOW_ONE:
                scale = most * BELOW_ONE / size
            factor *= scale
        for k in range(rank):
            s[k] *= factor
        for c in range(starts[owner], starts[owner + 1]):
            j = levels[c]
            x = weights[j] * numbers[c]
            for k in range(rank):
                out[j, k] += steps_of(x * s[k], step)


def project_cells(
    cells: Cells,
    numbers: Array,
    weights: Array,
    directions: Array,
    reach: float,
    how: Shortening,
    step: float,
    threads: int,
) -> Array:
    """Sum over owners of x s', in whole steps: a row for each level.

    x holds an owner's numbers, times the weights of their levels and shortened as ``how`` says; s are
    its coordinates V'x / |x| along the directions V, shortened to ``reach``.
    """
    outs = [np.zeros(directions.shape, np.int64) for _ in range(threads)]
    ends = pairwise(cells.cuts(threads))
    what = cells, numbers, weights, np.ascontiguousarray(directions), reach, how, step
    run([partial(_project, *what, *e, out) for e, out in zip(ends, outs, strict=True)], threads)
    for out in outs[1:]:
        outs[0] += out
    return outs[0]


# -- numbers beside coordinates that come from elsewhere ----------------------------------------------


@ordered_kernel
def _cross(
    cells: Any,
    numbers: Array,
    weights: Array,
    coordinates: Array,
    how: Any,
    step: float,
    first: int,
    last: int,
    out: Array,
) -> None:
    starts, levels = cells[0], cells[1]
    ridge, most = how
    rank = coordinates.shape[1]
    for owner in range(first, last):
        square, weight = 0.0, 0.0
        for c in range(starts[owner], starts[owner + 1]):
            x = weights[levels[c]] * numbers[c]
            square += x * x
            weight += weights[levels[c]] * weights[levels[c]]
        if square == 0:
            continue
        size, scale = np.sqrt(square), 1.0
        if ridge < np.inf:
            scale = 1 / np.sqrt(ridge + weight)
        if not size * scale <= most * BELOW_ONE:  # also where it is no number
            scale = most * BELOW_ONE / size
        for c in range(starts[owner], starts[owner + 1]):
            j = levels[c]
            x = scale * weights[j] * numbers[c]
            for k in range(rank):
                out[j, k] += steps_of(x * coordinates[owner, k], step)


def cross_cells(
    cells: Cells,
    numbers: Array,
    weights: Array,
    coordinates: Array,
    how: Shortening,
    step: float,
    threads: int,
) -> Array:
    """Sum over owners of x s', in whole steps: a row for each level.

    x holds an owner's numbers, times the weights of their levels and shortened as ``how`` says (an
    infinite ridge leaves them as they are, but for ``most``); s are the owner's coordinates, as given.
    """
    outs = [np.zeros((weights.shape[0], coordinates.shape[1]), np.int64) for _ in range(threads)]
    ends = pairwise(cells.cuts(threads))
    what = cells, numbers, weights, np.ascontiguousarray(coordinates), how, step
    run([partial(_cross, *what, *e, out) for e, out in zip(ends, outs, strict=True)], threads)
    for out in outs[1:]:
        outs[0] += out
    return outs[0]


class OwnMap(NamedTuple):
    """How owners make a few numbers of their entries.

    An entry has the numbers (r, r q, q), r its residual over ``clip`` and q the product of the rows of
    its other modes, whose first rows in ``rows`` are ``offsets``. They are multiplied by ``turn`` and
    shortened to ``longest``; an owner has their sum over its number of entries plus ``ridge``, shortened
    to ``reach``.
    """

    rows: Array
    offsets: Array
    turn: Array
    clip: float
    longest: float
    ridge: float
    reach: float


@ordered_kernel
def _own_numbers(entries: Any, taken: Any, how: Any, first: int, last: int, out: Array) -> None:
    others, starts = entries[0], entries[2]
    rows, offsets, turn, clip, longest, ridge, reach = how
    columns, rank = rows.shape[1], turn.shape[0]
    q, f = scratch(columns, np.float64), scratch(rank, np.float64)
    for owner in range(first, last):
        for e in range(starts[owner], starts[owner + 1]):
            rest = min(1.0, max(-1.0, rest_of(entries, taken, e) / clip))
            for c in range(columns):
                q[c] = 1.0
                for m in range(others.shape[0]):
                    q[c] *= rows[offsets[m] + others[m, e], c]
            square = 0.0
            for k in range(rank):
                f[k] = turn[k, 0] * rest
                for c in range(columns):
                    f[k] += (turn[k, 1 + c] * rest + turn[k, 1 + columns + c]) * q[c]
                square += f[k] * f[k]
            scale = 1.0
            if not square <= longest * longest:
                scale = longest / np.sqrt(square)
            if not np.isfinite(square):
                scale = 0.0
            for k in range(rank):
                out[owner, k] += scale * f[k] if scale > 0 else 0.0
        square = 0.0
        for k in range(rank):
            out[owner, k] /= starts[owner + 1] - starts[owner] + ridge
            square += out[owner, k] * out[owner, k]
        if square > (reach * BELOW_ONE) ** 2:
            for k in range(rank):
                out[owner, k] *= reach * BELOW_ONE / np.sqrt(square)


def own_numbers(entries: Entries, taken: Taken, how: OwnMap, threads: int) -> Array:
    """Numbers of owners, a row each; ``entries`` are sorted by owner."""
    owners = entries.starts.shape[0] - 1
    out = np.zeros((owners, how.turn.shape[0]))
    ends = pairwise(balanced_cuts(entries.starts, 0, owners, threads))
    run([partial(_own_numbers, entries, taken, how, *e, out) for e in ends], threads)
    return out
