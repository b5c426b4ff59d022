"""Noisy gradient steps as compiled kernels: clipped sums over random batches, and lazy noise.

A step adds to every row, bias and core entry, whether the batch touched it or not:

    row = home + keep (row + pace metric^2 gradient - home) + jitter metric normal

``gradient`` is the sum over the batch's units of their clipped contributions, all taken at the same
parameters. ``metric`` gives each coordinate its own length: in coordinates divided by it a
contribution is at most ``clip`` long and the noise is the same in every direction.

A row that no entry touches only shrinks and shakes. Over s such steps that comes to

    row = home + keep^s (row - home) + jitter sqrt((1 - keep^2s) / (1 - keep^2)) metric normal

in law, so it is made up when the row is next read, and at the end of the call. A step then costs as
much as its batch, not as the model. (LazyDP, Lim et al. 2024, has this idea; proofs/gradient.md.)
Readable twins of the kernels: ``kernels/reference/private_steps.py``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from sfumato.kernels.numba.compiler import inlined, kernel
from sfumato.kernels.numba.entrywise import (
    add_kronecker,
    bias_sum,
    design,
    dot,
    evaluate,
    locate,
    row_width,
    workspace,
)
from sfumato.kernels.numba.private_moves import (
    DECAY,
    JITTER,
    OF_BIAS,
    PACE,
    RENEWAL,
    standardised,
)
from sfumato.kernels.numba.simd import (
    add,
    element,
    line_length,
    load,
    multiply,
    prefetch,
    spread,
    store,
    total,
)
from sfumato.kernels.numba.threads import scratch
from sfumato.types import Array

if TYPE_CHECKING:
    pass

_AHEAD = 8  # entries: far enough for memory to answer, near enough to stay in the cache


# -- what kernels share -------------------------------------------------------------------------


@inlined
def _skip(sampler: Any, hazard: float) -> int:
    """Units passed over before the next that takes part: geometric; zero where all do."""
    return int(sampler.standard_exponential() / hazard)


@inlined
def _shrunk(paces: Array, row: int, of: int, steps: int) -> Any:
    """Share of a row that is left after steps without entries, and the deviation of their noise."""
    decay, renewal = paces[row, of + DECAY], paces[row, of + RENEWAL]
    left = np.exp(-decay * steps)
    times = (1 - left * left) * renewal if renewal > 0 else float(steps)
    return left, paces[row, of + JITTER] * np.sqrt(times)


@inlined
def _make_up(
    p: Any,
    moves: Any,
    metric: Array,
    m: int,
    rank: int,
    row: int,
    steps: int,
    fit_biases: bool,
    noise: Any,
) -> None:
    """Steps of a row since it was last made up: it shrinks towards home, and shakes."""
    rows, biases, home, bias_home = p.rows, p.biases, moves.home, moves.bias_home
    number = rows.dtype.type
    left, deviation = _shrunk(moves.paces, row, 0, steps)
    keep, shake = number(left), number(deviation)
    for r in range(rank):
        to = home[m, r]
        normal = number(noise.standard_normal())
        rows[row, r] = to + keep * (rows[row, r] - to) + shake * metric[m, r] * normal
    if fit_biases:
        left, deviation = _shrunk(moves.paces, row, OF_BIAS, steps)
        normal = number(deviation * np.sqrt(moves.bias_square) * noise.standard_normal())
        biases[row] = bias_home[row] + number(left) * (biases[row] - bias_home[row]) + normal


@inlined
def _touch(
    p: Any,
    moves: Any,
    last: Array,
    metric: Array,
    m: int,
    rank: int,
    row: int,
    now: int,
    fit_biases: bool,
    noise: Any,
    touched: Array,
    count: int,
) -> int:
    """Bring a row that the batch reads up to date; the number of such rows so far.

    Kernels ask before they call whether it is: a call counts the arrays' references, which takes four
    times as long as an entry's arithmetic.
    """
    steps = now - max(last[row], 0)
    touched[count] = row
    last[row] = now
    if now > 0:
        _make_up(p, moves, metric, m, rank, row, steps, fit_biases, noise)
    return count + 1


@inlined
def _move(p: Any, core: Array, moves: Any, memory: Any, touched: Array, count: int, noise: Any) -> None:
    """Add the batch's gradient to the touched rows; their shrinking and shaking are made up later."""
    rows, biases, paces, of_core = p.rows, p.biases, moves.paces, moves.core
    gradient, bias_gradient, core_gradient = memory.gradient, memory.bias_gradient, memory.core_gradient
    number, width = rows.dtype.type, row_width(p)
    nothing = spread(rows, number(0))
    for k in range(count):
        row = touched[k]
        if k + _AHEAD < count:
            prefetch(rows, touched[k + _AHEAD] * width)
            prefetch(gradient, touched[k + _AHEAD] * width)
            prefetch(paces, touched[k + _AHEAD] * 2 * OF_BIAS)
        pace = spread(rows, number(paces[row, PACE]))
        for at in range(row * width, (row + 1) * width, line_length(rows)):
            store(rows, at, add(load(rows, at), multiply(pace, load(gradient, at))))
            store(gradient, at, nothing)
        biases[row] += number(paces[row, OF_BIAS + PACE]) * moves.bias_square * bias_gradient[row]
        bias_gradient[row] = 0
    for q in range(core.shape[0]):
        moved = of_core[0] * (core[q] + of_core[1] * of_core[3] * core_gradient[q])
        core[q] = moved + of_core[2] * np.sqrt(of_core[3]) * noise.standard_normal()
        core_gradient[q] = 0


@inlined
def _make_up_all(
    p: Any,
    moves: Any,
    last: Array,
    metric: Array,
    ranks: Array,
    leave: int,
    steps: int,
    fit_biases: bool,
    noise: Any,
) -> None:
    """Bring every row up to date, but those of the mode ``leave``."""
    order = len(p.offsets)
    for m in range(order):
        beyond = p.offsets[m + 1] if m + 1 < order else p.rows.shape[0]
        for row in range(p.offsets[m], beyond):
            if m != leave:
                behind = steps - max(last[row], 0)
                _make_up(p, moves, metric, m, ranks[m], row, behind, fit_biases, noise)
            last[row] = -1


@inlined
def _measured(vector: Array, at: int, square: Array, square_at: int, width: int) -> Any:
    """Squared length of a padded row in the metric."""
    line = load(vector, at)
    result = multiply(multiply(line, line), load(square, square_at))
    for b in range(line_length(vector), width, line_length(vector)):
        line = load(vector, at + b)
        result = add(result, multiply(multiply(line, line), load(square, square_at + b)))
    return total(result)


@inlined
def _add_measured(
    vector: Array, at: int, square: Array, square_at: int, factor: Any, width: int, out: Array, to: int
) -> None:
    """``out += factor metric^2 vector``, all of them padded rows."""
    along = spread(vector, factor)
    for b in range(0, width, line_length(vector)):
        change = multiply(along, multiply(load(vector, at + b), load(square, square_at + b)))
        store(out, to + b, add(load(out, to + b), change))


@inlined
def _clipping(size: Any, clip: Any) -> Any:
    """Factor that makes a contribution of squared length ``size`` at most ``clip`` long.

    Zero where the length is no finite number: nothing unbounded gets through.
    """
    length = np.sqrt(size)
    if not length < np.inf:
        return clip * 0
    return clip / max(length, clip)


# -- one entry is a unit ------------------------------------------------------------------------


@kernel
def entry_steps(
    p: Any,
    core: Array,
    moves: Any,
    memory: Any,
    scale: Any,
    coordinates: Array,
    values: Array,
    ranks: Array,
    rate: float,
    steps: int,
    clip: Any,
    fit_biases: bool,
    sampler: Any,
    noise: Any,
) -> None:
    """Steps in which every entry takes part independently with probability ``rate``."""
    order, width = len(p.offsets), row_width(p)
    number = p.rows.dtype.type
    rows, paces, square, bias_square = p.rows, moves.paces, moves.square, moves.bias_square
    gradient, bias_gradient = memory.gradient, memory.bias_gradient
    core_gradient, last = memory.core_gradient, memory.last
    low, high, middle, unit = scale
    metric, core_square = np.sqrt(square), number(moves.core[3])
    index, work = scratch(order, np.int64), workspace(p)
    hazard, entries = -np.log1p(-rate), values.shape[0]
    batch = np.empty(min(entries, int(1.1 * rate * entries) + 1000), np.int32)
    touched = np.empty(rows.shape[0], np.int64)
    for now in range(steps):
        size, entry = 0, _skip(sampler, hazard)
        while entry < entries:
            if size == batch.shape[0]:
                batch = np.concatenate((batch, np.empty_like(batch)))
            batch[size] = entry
            size += 1
            entry += 1 + _skip(sampler, hazard)
        count = 0
        for k in range(size):
            if k + 2 * _AHEAD < size:
                for m in range(order):
                    prefetch(coordinates, m * entries + batch[k + 2 * _AHEAD])
            if k + _AHEAD < size:
                locate(p, coordinates, batch[k + _AHEAD], index)
                for m in range(order):
                    prefetch(rows, index[m] * width)
                    prefetch(paces, index[m] * 2 * OF_BIAS)
                    prefetch(last, index[m])
            locate(p, coordinates, batch[k], index)
            for m in range(order):
                row = index[m]
                if last[row] != now:
                    count = _touch(
                        p, moves, last, metric, m, ranks[m], row, now, fit_biases, noise, touched, count
                    )
        for k in range(size):
            if k + _AHEAD < size:
                prefetch(values, batch[k + _AHEAD])
                locate(p, coordinates, batch[k + _AHEAD], index)
                for m in range(order):
                    prefetch(gradient, index[m] * width)
            locate(p, coordinates, batch[k], index)
            error = standardised(element(values, batch[k]), low, high, middle, unit)
            error -= evaluate(p, index, work)
            length = number(0)
            if fit_biases:
                error -= bias_sum(p, index)
                length += order * bias_square
            for m in range(order):
                length += _measured(work, m * width, square, m * width, width)
            if core.shape[0] > 0:  # the Kronecker product is as long as the rows' product
                kronecker = core_square
                for m in range(order):
                    kronecker *= dot(rows, index[m] * width, rows, index[m] * width, width)
                length += kronecker
            factor = _clipping(error * error * length, clip)
            if factor == 0:
                continue
            error *= factor
            for m in range(order):
                at = index[m] * width
                _add_measured(work, m * width, square, m * width, error, width, gradient, at)
                if fit_biases:
                    bias_gradient[index[m]] += error
            add_kronecker(p, work, error, core_gradient)
        _move(p, core, moves, memory, touched, count, noise)
    _make_up_all(p, moves, last, metric, ranks, -1, steps, fit_biases, noise)


# -- a level of a mode is a unit ----------------------------------------------------------------


@inlined
def _locate_own(p: Any, mode: int, others: Array, entry: int, own: int, index: Array) -> None:
    """Row numbers of an entry of a unit whose own row is ``own``."""
    j = 0
    for m in range(len(p.offsets)):
        if m == mode:
            index[m] = own
        else:
            index[m] = p.offsets[m] + element(others, j * others.shape[1] + entry)
            j += 1


@inlined
def _solve(a: Array, h: Array, size: int) -> None:
    """Solve a x = h by Cholesky: of ``a``, flat, the lower half is read; x replaces ``h``."""
    for j in range(size):
        pivot = np.sqrt(a[j * size + j])
        for i in range(j, size):
            a[i * size + j] /= pivot
        for k in range(j + 1, size):
            for i in range(k, size):
                a[i * size + k] -= a[i * size + j] * a[k * size + j]
    for j in range(size):
        for k in range(j):
            h[j] -= a[j * size + k] * h[k]
        h[j] /= a[j * size + j]
    for j in range(size - 1, -1, -1):
        for k in range(j + 1, size):
            h[j] -= a[k * size + j] * h[k]
        h[j] /= a[j * size + j]


@inlined
def _fit_own(
    p: Any,
    scale: Any,
    mode: int,
    others: Array,
    values: Array,
    first: int,
    beyond: int,
    own: int,
    rank: int,
    home: Array,
    ridge: Any,
    fit_biases: bool,
    index: Array,
    work: Array,
    x: Array,
    gram: Array,
    rhs: Array,
) -> None:
    """Ridge regression of a unit's own row (and bias) on its own entries, in float64."""
    rows, biases = p.rows, p.biases
    low, high, middle, unit = scale
    free = rhs.shape[0]
    gram[:] = 0
    for i in range(free):
        gram[i * free + i] = ridge[0] if i < rank else ridge[1]
        rhs[i] = ridge[0] * home[mode, i] if i < rank else 0.0
    biases[own] = 0
    for entry in range(first, beyond):
        _locate_own(p, mode, others, entry, own, index)
        design(p, index, mode, work, x, 0)
        target = standardised(element(values, entry), low, high, middle, unit)
        if fit_biases:
            x[rank] = 1
            target -= bias_sum(p, index)
        for i in range(free):
            rhs[i] += target * x[i]
            for j in range(i + 1):
                gram[i * free + j] += x[i] * x[j]
    _solve(gram, rhs, free)
    for r in range(rank):
        rows[own, r] = rhs[r]
    if fit_biases:
        biases[own] = rhs[rank]


@kernel
def unit_steps(
    p: Any,
    core: Array,
    moves: Any,
    memory: Any,
    scale: Any,
    others: Array,
    values: Array,
    starts: Array,
    mode: int,
    typical: float,
    local: bool,
    ridge: Any,
    ranks: Array,
    rate: float,
    steps: int,
    clip: Any,
    fit_biases: bool,
    sampler: Any,
    noise: Any,
) -> None:
    """Steps in which every level of ``mode`` takes part independently with probability ``rate``.

    A unit with more than ``typical`` entries weighs them by sqrt(typical / entries). ``local``: its
    own row and bias are solved from its own entries at the shared parameters of the step, take no
    gradient, and are zero afterwards; ``ridge`` is their penalty.
    """
    order, width = len(p.offsets), row_width(p)
    number = p.rows.dtype.type
    rows, biases, square, bias_square = p.rows, p.biases, moves.square, moves.bias_square
    gradient, bias_gradient = memory.gradient, memory.bias_gradient
    own, own_bias, own_core = memory.own, memory.own_bias, memory.own_core
    core_gradient, last, mark = memory.core_gradient, memory.last, memory.mark
    low, high, middle, unit = scale
    metric, core_square = np.sqrt(square), number(moves.core[3])
    index, work = scratch(order, np.int64), workspace(p)
    rank, home = ranks[mode], moves.home
    free = rank + 1 if fit_biases else rank
    gram, rhs, x = np.empty(free * free), np.empty(free), scratch(width + 1, rows.dtype)
    hazard, units = -np.log1p(-rate), starts.shape[0] - 1
    chosen, touched = np.empty(units, np.int64), np.empty(rows.shape[0], np.int64)
    for now in range(steps):
        size, level = 0, _skip(sampler, hazard)
        while level < units:
            chosen[size] = level
            size += 1
            level += 1 + _skip(sampler, hazard)
        count = 0
        for k in range(size):
            level = chosen[k]
            for entry in range(starts[level], starts[level + 1]):
                _locate_own(p, mode, others, entry, p.offsets[mode] + level, index)
                for m in range(order):
                    if not (local and m == mode) and last[index[m]] != now:
                        count = _touch(
                            p,
                            moves,
                            last,
                            metric,
                            m,
                            ranks[m],
                            index[m],
                            now,
                            fit_biases,
                            noise,
                            touched,
                            count,
                        )
        for k in range(size):
            level = chosen[k]
            first, beyond, here = starts[level], starts[level + 1], p.offsets[mode] + level
            if first == beyond:
                continue
            if local:
                _fit_own(
                    p,
                    scale,
                    mode,
                    others,
                    values,
                    first,
                    beyond,
                    here,
                    rank,
                    home,
                    ridge,
                    fit_biases,
                    index,
                    work,
                    x,
                    gram,
                    rhs,
                )
            weight = number(min(1.0, np.sqrt(typical / (beyond - first))))
            for entry in range(first, beyond):
                _locate_own(p, mode, others, entry, here, index)
                error = standardised(element(values, entry), low, high, middle, unit)
                error -= evaluate(p, index, work)
                if fit_biases:
                    error -= bias_sum(p, index)
                error *= weight
                along = spread(rows, error)
                for m in range(order):
                    row = index[m]
                    if local and m == mode:
                        continue
                    mark[row] = 1
                    for b in range(0, width, line_length(rows)):
                        at = row * width + b
                        change = multiply(along, load(work, m * width + b))
                        store(own, at, add(load(own, at), change))
                    if fit_biases:
                        own_bias[row] += error
                add_kronecker(p, work, error, own_core)
            # The length of the whole: entries that share a row add up in it, so rows count once.
            length = number(0)
            for q in range(core.shape[0]):
                length += core_square * own_core[q] * own_core[q]
            for entry in range(first, beyond):
                _locate_own(p, mode, others, entry, here, index)
                for m in range(order):
                    row = index[m]
                    if mark[row] == 1:
                        mark[row] = 2
                        length += _measured(own, row * width, square, m * width, width)
                        length += bias_square * own_bias[row] * own_bias[row]
            factor = _clipping(length, clip)
            for entry in range(first, beyond):
                _locate_own(p, mode, others, entry, here, index)
                for m in range(order):
                    row = index[m]
                    if mark[row] == 2:
                        mark[row] = 0
                        at = row * width
                        if factor > 0:
                            _add_measured(own, at, square, m * width, factor, width, gradient, at)
                            bias_gradient[row] += factor * own_bias[row]
                        for r in range(width):
                            own[row, r] = 0
                        own_bias[row] = 0
            for q in range(core.shape[0]):
                if factor > 0:
                    core_gradient[q] += factor * own_core[q]
                own_core[q] = 0
            if local:
                for r in range(rank):
                    rows[here, r] = 0
                biases[here] = 0
        _move(p, core, moves, memory, touched, count, noise)
    leave = mode if local else -1
    _make_up_all(p, moves, last, metric, ranks, leave, steps, fit_biases, noise)
