"""Equations of a mode's rows from clipped features, as ``solvers/private/output.py`` solves them."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from sfumato.kernels.numba.compiler import inlined, kernel
from sfumato.kernels.numba.entrywise import bias_sum, design, row_width, workspace
from sfumato.kernels.numba.threads import run
from sfumato.records import record
from sfumato.types import Array

if TYPE_CHECKING:
    from sfumato.models.multilinear import Multilinear
    from sfumato.sites.memory import ByMode


@record
class RidgePlan(NamedTuple):
    """What decides the rows' problems, all of it public."""

    mode: int
    whiten: Array
    bound: float  # B, of whitened features
    reach: float  # Y, of targets
    radius: float  # R, of rows
    ridge: float  # lambda
    prior: float  # largest variance that a coordinate of a row is thought to have
    spread: float  # of targets
    expected: float  # entries of a row


class Equations(NamedTuple):
    gram: Array
    rhs: Array


@inlined
def _feature(
    p: Any,
    index: Array,
    mode: int,
    rank: int,
    whiten: Array,
    bound: Any,
    work: Array,
    d: Array,
    out: Array,
) -> None:
    """The whitened design at an entry, clipped to ``bound``."""
    design(p, index, mode, work, d, 0)
    squares = 0.0
    for r in range(rank):
        out[r] = 0.0
        for s in range(rank):
            out[r] += whiten[r, s] * d[s]
        squares += out[r] * out[r]
    length = np.sqrt(squares)
    if length > bound:
        for r in range(rank):
            out[r] *= bound / length


@inlined
def _locate(p: Any, others: Array, entry: int, mode: int, level: int, index: Array) -> None:
    for m in range(len(p.offsets)):
        at = level if m == mode else others[m if m < mode else m - 1, entry]
        index[m] = p.offsets[m] + at


@kernel
def _row_equations(
    p: Any,
    mean: Any,
    others: Array,
    values: Array,
    starts: Array,
    mode: int,
    whiten: Array,
    bound: float,
    reach: float,
    gram: Array,
    rhs: Array,
) -> None:
    rank, rows = whiten.shape[0], p.rows
    index, work = np.empty(len(p.offsets), np.int64), workspace(p)
    d, f = np.zeros(row_width(p), rows.dtype), np.zeros(rank)
    for level in range(starts.shape[0] - 1):
        for entry in range(starts[level], starts[level + 1]):
            _locate(p, others, entry, mode, level, index)
            _feature(p, index, mode, rank, whiten, bound, work, d, f)
            target = values[entry] - mean - bias_sum(p, index)
            for r in range(rank):
                target -= d[r] * rows[index[mode], r]
            target = min(max(target, -reach), reach)
            for r in range(rank):
                rhs[level, r] += target * f[r]
                for s in range(rank):
                    gram[level, r, s] += f[r] * f[s]


@kernel
def _longest(
    p: Any,
    others: Array,
    starts: Array,
    mode: int,
    whiten: Array,
    bound: float,
    inverse: Array,
    out: Array,
) -> None:
    rank = whiten.shape[0]
    index, work = np.empty(len(p.offsets), np.int64), workspace(p)
    d, f = np.zeros(row_width(p), p.rows.dtype), np.zeros(rank)
    for level in range(starts.shape[0] - 1):
        for entry in range(starts[level], starts[level + 1]):
            _locate(p, others, entry, mode, level, index)
            _feature(p, index, mode, rank, whiten, bound, work, d, f)
            squares = 0.0
            for r in range(rank):
                part = 0.0
                for s in range(rank):
                    part += inverse[level, r, s] * f[s]
                squares += part * part
            out[level] = max(out[level], np.sqrt(squares))


def row_equations(model: Multilinear, plan: RidgePlan, entries: ByMode, values: Array) -> Equations:
    """Gram matrix and right-hand side of each row; ``values`` are within the public bounds."""
    rows, rank = model.shape[plan.mode], model.ranks[plan.mode]
    sums = Equations(np.zeros((rows, rank, rank)), np.zeros((rows, rank)))
    task = partial(
        _row_equations,
        model.arrays,
        model.dtype.type(model.mean),
        entries.others,
        values,
        entries.starts,
        plan.mode,
        plan.whiten,
        plan.bound,
        plan.reach,
        *sums,
    )
    run([task], 1)
    return sums


def longest_responses(model: Multilinear, plan: RidgePlan, entries: ByMode, gram: Array) -> Array:
    """max_e |H^-1 f_e| of each row; zero where a row has no entries."""
    inverse = np.linalg.inv(gram + plan.ridge * np.eye(gram.shape[1]))
    out = np.zeros(gram.shape[0])
    task = partial(
        _longest,
        model.arrays,
        entries.others,
        entries.starts,
        plan.mode,
        plan.whiten,
        plan.bound,
        inverse,
        out,
    )
    run([task], 1)
    return out
