"""Noisy gradient steps as compiled kernels: clipped sums over random batches, and lazy noise.

A step adds to every row, bias and core entry, whether the batch touched it or not:

    row = home + keep (row + pace metric^2 gradient - home) + jitter metric normal

``gradient`` is the sum over the batch's units of their clipped contributions, all taken at the same
parameters. ``metric`` gives each coordinate its own length: in coordinates divided by it a
contribution is at most ``clip`` long and the noise is the same in every direction.

A row that no entry touches only shrinks and shakes. Over s such steps that comes to

    row = home + keep^s (row - home) + jitter sqrt(1 + keep^2 + .. + keep^2(s-1)) metric normal

in law, so it is made up when the row is next read, and at the end of the call, and the gradient of the
step at which it was last read with it. A step then costs as much as its batch, not as the model.
(LazyDP, Lim et al. 2024, has this idea; proofs/gradient.md.)

Who takes part, which rows are read and how much noise they are behind with does not depend on the
parameters. So while steps are carried out by one thread, others draw the noise of the next ones and
choose those after: the numbers are the same as with one thread.
Readable twins of the kernels: ``kernels/reference/private_steps.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from sfumato.kernels.numba.chacha import WORDS, Words
from sfumato.kernels.numba.compiler import inlined, kernel
from sfumato.kernels.numba.entrywise import (
    add_kronecker,
    bias_sum,
    evaluate,
    row_width,
    workspace,
)
from sfumato.kernels.numba.normals import fill_normals, make_normals
from sfumato.kernels.numba.private_choice import (
    Batches,
    Touched,
    batches_of,
    chosen,
    touched_by_entries,
    touched_by_units,
)
from sfumato.kernels.numba.private_gradients import (
    add_measured,
    clipping,
    fit_own,
    kronecker_size,
    locate_own,
    measured,
    unit_gradient,
)
from sfumato.kernels.numba.private_moves import (
    JITTER,
    KEEP,
    OF_BIAS,
    PACE,
    Moves,
    Scale,
    after_steps,
    make_memory,
)
from sfumato.kernels.numba.simd import (
    add,
    aligned_zeros,
    line_length,
    load,
    multiply,
    prefetch,
    spread,
    store,
)
from sfumato.kernels.numba.threads import run, scratch
from sfumato.types import Array

if TYPE_CHECKING:
    from sfumato.models.multilinear import Multilinear
    from sfumato.sites.memory import ByMode

_AHEAD = 8  # entries: far enough for memory to answer, near enough to stay in the cache
_AT_A_TIME = 65_536  # entries, about, of the steps that are chosen at a time


# -- what kernels share -------------------------------------------------------------------------


@inlined
def _make_up(
    p: Any,
    moves: Any,
    memory: Any,
    metric: Array,
    ranks: Array,
    touched: Any,
    step: int,
    numbers: Array,
    at: int,
    fit_biases: bool,
) -> Any:
    """Bring the rows that a step reads up to date; where the next normal numbers lie.

    They move by the gradient of when they were last read, then shrink and shake for all steps since.
    """
    rows, biases, paces, home, bias_home = p.rows, p.biases, moves.paces, moves.home, moves.bias_home
    gradient, bias_gradient = memory.gradient, memory.bias_gradient
    ends, found, behind = touched
    number, width, order = rows.dtype.type, row_width(p), len(p.offsets)
    bias_metric, nothing = np.sqrt(moves.bias_square), spread(rows, number(0))
    for m in range(order):
        beyond = ends[step * order + m + 1]
        for k in range(ends[step * order + m], beyond):
            if k + _AHEAD < beyond:
                coming = found[k + _AHEAD]
                prefetch(rows, coming * width)
                prefetch(gradient, coming * width)
                prefetch(paces, coming * 2 * OF_BIAS)
            row, steps = found[k], behind[k]
            if steps == 0:
                continue
            left, times = after_steps(paces[row, KEEP], steps)
            keep, home_share = spread(rows, number(left)), spread(rows, number(1 - left))
            pace = spread(rows, number(paces[row, PACE]))
            shake = spread(rows, number(paces[row, JITTER] * np.sqrt(times)))
            for b in range(0, width, line_length(rows)):
                here = row * width + b
                moved = multiply(keep, add(load(rows, here), multiply(pace, load(gradient, here))))
                moved = add(moved, multiply(home_share, load(home, m * width + b)))
                normal = multiply(load(metric, m * width + b), load(numbers, at + b))
                store(rows, here, add(moved, multiply(shake, normal)))
                store(gradient, here, nothing)
            at += ranks[m]
            if fit_biases:
                left, times = after_steps(paces[row, OF_BIAS + KEEP], steps)
                pulled = paces[row, OF_BIAS + PACE] * moves.bias_square * bias_gradient[row]
                shaken = paces[row, OF_BIAS + JITTER] * np.sqrt(times) * bias_metric * numbers[at]
                to = bias_home[row]
                biases[row] = to + left * (biases[row] + pulled - to) + shaken
                bias_gradient[row] = 0
                at += 1
    return at


@inlined
def _move_core(core: Array, of_core: Array, gradient: Array, numbers: Array, at: int) -> Any:
    """A step of the core, which every entry touches; where the next normal numbers lie."""
    for q in range(core.shape[0]):
        moved = of_core[0] * (core[q] + of_core[1] * of_core[3] * gradient[q])
        core[q] = moved + of_core[2] * np.sqrt(of_core[3]) * numbers[at + q]
        gradient[q] = 0
    return at + core.shape[0]


@kernel
def _make_up_all(
    p: Any, moves: Any, memory: Any, ranks: Array, fit_biases: bool, touched: Any, numbers: Array
) -> None:
    metric = np.sqrt(moves.square)
    _make_up(p, moves, memory, metric, ranks, touched, 0, numbers, 0, fit_biases)


# -- one entry is a unit ------------------------------------------------------------------------


@kernel
def _entry_steps(
    p: Any,
    core: Array,
    moves: Any,
    memory: Any,
    ranks: Array,
    clip: Any,
    fit_biases: bool,
    batches: Any,
    touched: Any,
    numbers: Array,
) -> None:
    order, width = len(p.offsets), row_width(p)
    rows, square, bias_square = p.rows, moves.square, moves.bias_square
    gradient, bias_gradient, core_gradient = memory.gradient, memory.bias_gradient, memory.core_gradient
    number = rows.dtype.type
    metric, core_square, bias_size = np.sqrt(square), number(moves.core[3]), number(order * bias_square)
    index, work = scratch(order, np.int64), workspace(p)
    ends, places, targets = batches
    at = 0
    for step in range(ends.shape[0] - 1):
        at = _make_up(p, moves, memory, metric, ranks, touched, step, numbers, at, fit_biases)
        for k in range(ends[step], ends[step + 1]):
            for m in range(order):
                index[m] = places[k, m]
                if k + _AHEAD < ends[step + 1]:
                    prefetch(rows, places[k + _AHEAD, m] * width)
                    prefetch(gradient, places[k + _AHEAD, m] * width)
            # Not in a function: one with branches counts the references to its arrays, at each entry.
            error = targets[k] - evaluate(p, index, work)
            size = measured(work, square, order * width)
            if fit_biases:
                error -= bias_sum(p, index)
                size += bias_size
            if core.shape[0] > 0:
                size += core_square * kronecker_size(p, index)
            factor = clipping(abs(error) * np.sqrt(size), clip)
            if factor == 0:
                continue
            error *= factor
            for m in range(order):
                add_measured(
                    work, m * width, square, m * width, error, width, gradient, index[m] * width
                )
                if fit_biases:
                    bias_gradient[index[m]] += error
            add_kronecker(p, work, error, core_gradient)
        at = _move_core(core, moves.core, core_gradient, numbers, at)


# -- a level of a mode is a unit ----------------------------------------------------------------


@kernel
def _unit_steps(
    p: Any,
    core: Array,
    moves: Any,
    memory: Any,
    ranks: Array,
    clip: Any,
    fit_biases: bool,
    scale: Any,
    others: Array,
    values: Array,
    starts: Array,
    mode: int,
    typical: float,
    local: bool,
    ridge: Any,
    ends: Array,
    levels: Array,
    touched: Any,
    numbers: Array,
) -> None:
    order, width = len(p.offsets), row_width(p)
    rows, square = p.rows, moves.square
    gradient, bias_gradient, core_gradient = memory.gradient, memory.bias_gradient, memory.core_gradient
    own, own_bias, own_core, mark = memory.own, memory.own_bias, memory.own_core, memory.mark
    metric, core_square = np.sqrt(square), rows.dtype.type(moves.core[3])
    index, work = scratch(order, np.int64), workspace(p)
    rank = ranks[mode]
    free = rank + 1 if fit_biases else rank
    gram, rhs, x = np.empty(free * free), np.empty(free), scratch(width + 1, rows.dtype)
    at = 0
    for step in range(ends.shape[0] - 1):
        at = _make_up(p, moves, memory, metric, ranks, touched, step, numbers, at, fit_biases)
        for k in range(ends[step], ends[step + 1]):
            first, beyond = starts[levels[k]], starts[levels[k] + 1]
            here = p.offsets[mode] + levels[k]
            if first == beyond:
                continue
            if local:
                fit_own(
                    *(p, scale, mode, others, values, first, beyond, here, rank, moves.home, ridge),
                    *(fit_biases, index, work, x, gram, rhs),
                )
            length = unit_gradient(
                *(p, memory, scale, mode, others, values, first, beyond, here, typical, local),
                *(square, moves.bias_square, core_square, fit_biases, index, work),
            )
            factor = clipping(length, clip)
            for entry in range(first, beyond):
                locate_own(p, mode, others, entry, here, index)
                for m in range(order):
                    row = index[m]
                    if mark[row] == 2:
                        mark[row] = 0
                        if factor > 0:
                            add_measured(
                                *(own, row * width, square, m * width, factor, width),
                                *(gradient, row * width),
                            )
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
                p.biases[here] = 0
        at = _move_core(core, moves.core, core_gradient, numbers, at)


# -- chosen, noise drawn and carried out, by several threads --------------------------------------

_Task = Callable[[], None]


class _Chosen(NamedTuple):
    """Steps that were chosen: how their noise is drawn, in two parts, and how they are carried out."""

    draws: Sequence[_Task]
    carry_out: _Task


class _Call:
    """What all kernels of a call are given, and where their noise comes from."""

    def __init__(
        self,
        model: Multilinear,
        moves: Moves,
        units: bool,
        fit_biases: bool,
        noise: np.random.Generator,
    ) -> None:
        self.arrays, self.core = model.arrays, model.free_core
        self.moves, self.memory = moves, make_memory(model, units)
        self.ranks, self.fit_biases = np.array(model.ranks), fit_biases
        self.last = np.full(model.rows.shape[0], -1, np.int32)  # step at which a row was last read
        self._order = model.order
        self._halves = [make_normals(noise) for _ in range(2)]
        # While the noise of some steps is read that of the next is drawn, and the next chosen.
        self._rooms = [np.empty(0, model.dtype)] * 3

    @property
    def parameters(self) -> tuple[Any, ...]:
        return self.arrays, self.core, self.moves, self.memory, self.ranks

    def chosen(self, steps: Callable[..., None], touched: Touched, cores: int) -> _Chosen:
        """Steps that take the rows which they touch, and normal numbers for these and for the core."""
        rows = np.diff(touched.ends).reshape(-1, self._order).sum(axis=0)
        needed = int(rows @ (self.ranks + self.fit_biases)) + cores * self.core.size
        half = -(-(needed + self.arrays.rows.shape[1]) // (2 * WORDS)) * WORDS
        room = self._rooms.pop(0)
        if room.size < 2 * half:
            room = aligned_zeros((2 * half + half // 4,), room.dtype)
        self._rooms.append(room)
        parts = room[:half], room[half : 2 * half]
        draws = [
            partial(fill_normals, *noise, part) for noise, part in zip(self._halves, parts, strict=True)
        ]
        return _Chosen(draws, partial(steps, touched, room[: 2 * half]))

    def made_up(self, steps: int, leave: int | None) -> _Chosen:
        """Every row brought up to date, but those of the mode ``leave``."""
        offsets = [*self.arrays.offsets, self.last.size]
        modes = [np.arange(*ends) for ends in pairwise(offsets)]
        rows = [span[:0] if m == leave else span for m, span in enumerate(modes)]
        ends = np.cumsum([0, *(part.size for part in rows)])
        row = np.concatenate(rows).astype(np.int32)
        touched = Touched(ends, row, steps - np.maximum(self.last[row], 0))
        arrays, _, *parameters = self.parameters
        return self.chosen(partial(_make_up_all, arrays, *parameters, self.fit_biases), touched, 0)


def _carry_out(
    choose: Callable[[int, int], _Chosen],
    end: Callable[[], _Chosen],
    steps: int,
    size: float,
    threads: int,
) -> None:
    """Choose some steps after the other, draw their noise, and carry them out: three things at a time.

    ``size`` is the expected number of entries of a step.
    """
    at_a_time = max(1, int(min(steps, _AT_A_TIME / max(size, 1.0))))
    pieces = [
        partial(choose, first, min(at_a_time, steps - first)) for first in range(0, steps, at_a_time)
    ]
    chosen: list[_Chosen] = []
    drawn: list[_Chosen] = []

    def make(piece: Callable[[], _Chosen], made: list[_Chosen]) -> None:
        made.append(piece())

    for piece in (*pieces, end, None, None):
        made: list[_Chosen] = []
        coming = [] if piece is None else [partial(make, piece, made)]
        ready = [each.carry_out for each in drawn]
        run([*ready, *coming, *(draw for each in chosen for draw in each.draws)], threads)
        chosen, drawn = made, chosen


def entry_steps(
    model: Multilinear,
    moves: Moves,
    scale: Scale,
    coordinates: Array,
    values: Array,
    rate: float,
    steps: int,
    clip: float,
    fit_biases: bool,
    sampler: np.random.Generator,
    noise: np.random.Generator,
    threads: int = 1,
) -> None:
    """Steps in which every entry takes part independently with probability ``rate``."""
    call = _Call(model, moves, False, fit_biases, noise)
    words, most = Words.keyed(sampler), model.dtype.type(clip)

    def choose(first: int, count: int) -> _Chosen:
        ends, batch = chosen(values.size, rate, count, words)
        batches = Batches(ends, *batches_of(model.arrays, coordinates, values, scale, batch))
        touched = Touched(*touched_by_entries(model.order, ends, batches.places, first, call.last))
        steps_of = partial(_entry_steps, *call.parameters, most, fit_biases, batches)
        return call.chosen(steps_of, touched, count)

    _carry_out(choose, partial(call.made_up, steps, None), steps, rate * values.size, threads)


def unit_steps(
    model: Multilinear,
    moves: Moves,
    scale: Scale,
    entries: ByMode,
    mode: int,
    typical: float,
    local: bool,
    ridge: tuple[float, float],
    rate: float,
    steps: int,
    clip: float,
    fit_biases: bool,
    sampler: np.random.Generator,
    noise: np.random.Generator,
    threads: int = 1,
) -> None:
    """Steps in which every level of ``mode`` takes part independently with probability ``rate``.

    A unit with more than ``typical`` entries weighs them by sqrt(typical / entries). ``local``: its
    own row and bias are solved from its own entries at the shared parameters of the step, take no
    gradient, and are zero afterwards; ``ridge`` is their penalty.
    """
    call = _Call(model, moves, True, fit_biases, noise)
    words, most = Words.keyed(sampler), model.dtype.type(clip)
    data = entries.others, entries.values, entries.starts

    def choose(first: int, count: int) -> _Chosen:
        ends, levels = chosen(entries.starts.size - 1, rate, count, words)
        read = model.arrays, entries.others, entries.starts, mode, local
        touched = Touched(*touched_by_units(*read, ends, levels, first, call.last))
        how = most, fit_biases, scale, *data, mode, typical, local, ridge
        steps_of = partial(_unit_steps, *call.parameters, *how, ends, levels)
        return call.chosen(steps_of, touched, count)

    end = partial(call.made_up, steps, mode if local else None)
    _carry_out(choose, end, steps, rate * entries.values.size, threads)
