"""Langevin steps of coupled CP models as paper E prints them: several holders, minibatches, noise.

All rows of all factors lie in one matrix, so that a relation of any order is a table of row numbers.
Rows that no batch touches only gather noise. The sum of normal numbers is normal, so that they are given
theirs when they are read next: the law of all that is read is that of noise at every step.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from sfumato.kernels.numba.compiler import inlined, kernel
from sfumato.types import Array

SHARED = 0  # the kind of rows that all holders read; kind v + 1 are those of holder v alone
_LEAST = 1e-9  # a mean of counts is no smaller


class Holdings(NamedTuple):
    """Entries of all holders one after the other: row numbers (a line for each mode), and values.

    ``starts`` are where each holder's begin, ``orders`` the modes that it has. Those of a ``public``
    one are neither clipped nor hidden.
    """

    cells: Array
    values: Array
    starts: Array
    orders: Array
    public: Array


class Law(NamedTuple):
    """What is stepped along. ``counts`` are Poisson with Gamma priors; others normal.

    ``prior`` is shape and rate of all rows where there are counts, else unused: ``precisions`` has a row
    for each row of factors. ``entrywise``: each record's gradient is clipped, else that of a batch.
    ``own_clipped``: rows of one holder are clipped as well. ``repeated``: the prior counts once for
    every record of a batch, and as often as the batch stands for.
    """

    counts: bool
    precision: float
    shape: float
    rate: float
    precisions: Array
    clip: float
    entrywise: bool
    own_clipped: bool
    repeated: bool


class Walk(NamedTuple):
    """Rows as they are now, of which kind, and which sum of variances they have in noise.

    ``variances`` are sums of the noise's variance by kind and step. ``steps`` are lengths of steps by
    holder and step: along shared rows, and along its own.
    """

    rows: Array
    kinds: Array
    given: Array
    variances: Array
    shared_steps: Array
    own_steps: Array


@inlined
def _bring(walk: Any, row: Any, step: Any, counts: Any, stream: Any) -> None:
    """Give a row the noise of all steps up to this one."""
    kind = walk.kinds[row]
    due = walk.variances[kind, step] - walk.given[row]
    if due > 0:
        walk.given[row] = walk.variances[kind, step]
        deviation = np.sqrt(due)
        for k in range(walk.rows.shape[1]):
            walk.rows[row, k] += deviation * stream.standard_normal()
            if counts:
                walk.rows[row, k] = abs(walk.rows[row, k])


@kernel
def bring_all(walk: Walk, step: int, counts: bool, stream: Any) -> None:
    """Give all rows their noise."""
    for row in range(walk.rows.shape[0]):
        _bring(walk, row, step, counts, stream)


@inlined
def _pull(law: Any, rows: Any, row: Any, k: Any) -> Any:
    """The prior's gradient."""
    if law.counts:
        return (law.shape - 1) / max(rows[row, k], _LEAST) - law.rate
    return -law.precisions[row, k] * rows[row, k]


class Scratch(NamedTuple):
    """Memory for the steps: sums of gradients, what is to be added to shared rows, and who was seen."""

    gradient: Array
    pending: Array
    along: Array
    bounded: Array
    seen: Array
    about: Array
    waiting: Array
    touched: Array
    counts: Array
    queue: Array

    @classmethod
    def of(cls, holdings: Holdings, walk: Walk, batch: int) -> Scratch:
        rows, most = walk.rows.shape[0], holdings.cells.shape[0]
        seen, about, waiting = (np.full(size, -1) for size in (holdings.values.size, rows, rows))
        return cls(
            np.zeros_like(walk.rows),
            np.zeros_like(walk.rows),
            np.zeros(walk.rows.shape[1]),
            np.zeros(most, np.bool_),
            seen,
            about,
            waiting,
            np.zeros((most, batch), np.int64),
            np.zeros(most, np.int64),
            np.zeros(rows, np.int64),
        )


@inlined
def _error(law: Any, rows: Any, cells: Any, entry: Any, order: Any, value: Any) -> Any:
    """The likelihood's gradient by the mean of one record."""
    mean = 0.0
    for k in range(rows.shape[1]):
        product = 1.0
        for m in range(order):
            product *= rows[cells[m, entry], k]
        mean += product
    return value / max(mean, _LEAST) - 1.0 if law.counts else (value - mean) * law.precision


@inlined
def _add_record(
    law: Any, walk: Any, scratch: Any, cells: Any, entry: Any, order: Any, value: Any, weight: Any
) -> None:
    """Add one record's gradient, ``weight`` times, to the rows that it is about."""
    error = _error(law, walk.rows, cells, entry, order, value)
    rank = walk.rows.shape[1]
    for m in range(order):
        row, squares = cells[m, entry], 0.0
        for k in range(rank):
            product = error
            for n in range(order):
                if n != m:
                    product *= walk.rows[cells[n, entry], k]
            if law.repeated and walk.kinds[row] == SHARED:
                product += _pull(law, walk.rows, row, k)
            scratch.along[k] = product
            squares += product * product
        factor = weight
        if law.entrywise and scratch.bounded[m] and squares > law.clip * law.clip:
            factor = weight * law.clip / np.sqrt(squares)
        for k in range(rank):
            scratch.gradient[row, k] += factor * scratch.along[k]


@inlined
def _gather(
    holdings: Any, law: Any, walk: Any, scratch: Any, part: Any, batch: Any, t: Any, stream: Any
) -> None:
    """Sum the gradients of a random batch of one holder's records, all of them different."""
    start, end, order = holdings.starts[part], holdings.starts[part + 1], holdings.orders[part]
    size, stamp = min(batch, end - start), t * holdings.orders.size + part
    for m in range(order):
        own = walk.kinds[holdings.cells[m, start]] != SHARED
        scratch.bounded[m] = not holdings.public[part] and (law.own_clipped or not own)
        scratch.counts[m] = 0
    drawn = 0
    while drawn < size:
        entry = stream.integers(start, end)
        if scratch.seen[entry] == stamp:
            continue
        scratch.seen[entry] = stamp
        drawn += 1
        for m in range(order):
            row = holdings.cells[m, entry]
            _bring(walk, row, t, law.counts, stream)
            if scratch.about[row] != stamp:
                scratch.about[row] = stamp
                scratch.touched[m, scratch.counts[m]] = row
                scratch.counts[m] += 1
        value, weight = holdings.values[entry], (end - start) / size
        _add_record(law, walk, scratch, holdings.cells, entry, order, value, weight)


@inlined
def _shrink(law: Any, walk: Any, scratch: Any, m: Any) -> Any:
    """Add the prior's gradient where it counts once; by how much the whole is to be shortened."""
    squares = 0.0
    for n in range(scratch.counts[m]):
        row = scratch.touched[m, n]
        for k in range(walk.rows.shape[1]):
            if not (law.repeated and walk.kinds[row] == SHARED):
                scratch.gradient[row, k] += _pull(law, walk.rows, row, k)
            squares += scratch.gradient[row, k] * scratch.gradient[row, k]
    whole = scratch.bounded[m] and not law.entrywise
    return law.clip / np.sqrt(squares) if whole and squares > law.clip * law.clip else 1.0


@inlined
def _step(law: Any, walk: Any, scratch: Any, part: Any, order: Any, t: Any, queued: Any) -> Any:
    """Move the holder's own rows, and put down where shared ones are to go; how many rows wait."""
    for m in range(order):
        shrink = _shrink(law, walk, scratch, m)
        for n in range(scratch.counts[m]):
            row = scratch.touched[m, n]
            shared = walk.kinds[row] == SHARED
            if shared and scratch.waiting[row] != t:
                scratch.waiting[row] = t
                scratch.queue[queued] = row
                queued += 1
            for k in range(walk.rows.shape[1]):
                move = shrink * scratch.gradient[row, k]
                if shared:
                    scratch.pending[row, k] += walk.shared_steps[part, t] * move
                else:
                    _add(walk.rows, row, k, walk.own_steps[part, t] * move, law.counts)
                scratch.gradient[row, k] = 0.0
    return queued


@inlined
def _add(rows: Any, row: Any, k: Any, move: Any, counts: Any) -> None:
    moved = rows[row, k] + move
    rows[row, k] = abs(moved) if counts else moved


@kernel
def walk_on(
    holdings: Holdings,
    law: Law,
    walk: Walk,
    scratch: Scratch,
    batch: int,
    first: int,
    last: int,
    stream: Any,
) -> None:
    """Steps ``first`` to before ``last``, of all holders together; shared rows move after all."""
    for t in range(first, last):
        queued = 0
        for part in range(holdings.orders.size):
            _gather(holdings, law, walk, scratch, part, batch, t, stream)
            queued = _step(law, walk, scratch, part, holdings.orders[part], t, queued)
        for n in range(queued):
            row = scratch.queue[n]
            for k in range(walk.rows.shape[1]):
                _add(walk.rows, row, k, scratch.pending[row, k], law.counts)
                scratch.pending[row, k] = 0.0
