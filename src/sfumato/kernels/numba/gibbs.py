"""Counts of components, drawn given rates: the part of a Gibbs sweep that visits entries.

Of every entry the count is drawn given what was released of it (``noisy_counts.py``), and shared out
over components in proportion to what they add to the rate: a multinomial law. What rows and cores get
is added up.

Entries are taken in blocks, each with a stream of random words of its own: a key for the whole sweep,
and the block's number as nonce. Sums are of whole numbers. So nothing depends on the number of threads.
Readable twin: ``kernels/reference/gibbs.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import lgamma
from typing import Any, NamedTuple

import numpy as np

from sfumato.kernels.numba.chacha import WORDS, Words, between, next_word
from sfumato.kernels.numba.compiler import inlined, kernel
from sfumato.kernels.numba.entrywise import (
    CPArrays,
    TuckerArrays,
    by_model,
    entry_value,
    locate,
    only_compiled,
    workspace,
)
from sfumato.kernels.numba.noisy_counts import (
    EXACT,
    LEAST_RATE,
    NoisyCounts,
    draw,
    log_probability,
)
from sfumato.kernels.numba.threads import run, scratch
from sfumato.types import Array

BLOCK = 4096  # entries
AHEAD = 64  # of them, whose counts are drawn before they are shared out
ONE_BY_ONE = 48  # events of an entry up to which each is given to a component by itself
AT_ONCE = 4  # events of an entry that are written down at once


# -- components of an entry -------------------------------------------------------------------


def _cp_components(p: CPArrays, index: Array, work: Array, running: Array) -> Any:  # noqa: ARG001
    rate = 0.0
    for k in range(running.shape[0]):
        product = float(p.rows[index[0], k])
        for m in range(1, len(p.offsets)):
            product *= p.rows[index[m], k]
        rate += product
        running[k] = rate
    return rate


def _tucker_components(p: TuckerArrays, index: Array, work: Array, running: Array) -> Any:
    entry_value(p, index, work)  # leaves the Kronecker product of the rows behind the designs
    start, rate = len(p.offsets) * p.rows.shape[1], 0.0
    for q in range(running.shape[0]):
        rate += float(p.core[q] * work[start + q])
        running[q] = rate
    return rate


def _cp_credit(p: CPArrays, index: Array, k: int, events: int, rows: Array, core: Array) -> None:  # noqa: ARG001
    for m in range(len(p.offsets)):
        rows[index[m], k] += events


def _tucker_credit(p: TuckerArrays, index: Array, q: int, events: int, rows: Array, core: Array) -> None:
    core[q] += events
    for m in range(len(p.offsets) - 1, -1, -1):
        rows[index[m], q % p.ranks[m]] += events
        q //= p.ranks[m]


def components(p: Any, index: Array, work: Array, running: Array) -> Any:
    """The rate of an entry; leaves sums of what its components add, up to each of them."""
    return only_compiled(p, index, work, running)


def credit(p: Any, index: Array, k: int, events: int, rows: Array, core: Array) -> None:
    """Add events of a component to the rows of an entry, and to the core."""
    only_compiled(p, index, k, events, rows, core)


by_model(components, _cp_components, _tucker_components)
by_model(credit, _cp_credit, _tucker_credit)


# -- draws ------------------------------------------------------------------------------------


@kernel
def binomial(trials: int, chance: float, u: float) -> Any:
    """A binomial number from a uniform one, by walking both ways from the mode."""
    if chance >= 1.0:
        return trials
    if trials == 0 or chance <= 0.0:
        return 0
    mode = min(int((trials + 1) * chance), trials)
    odds = chance / (1.0 - chance)
    up = np.exp(
        lgamma(trials + 1.0)
        - lgamma(mode + 1.0)
        - lgamma(trials - mode + 1.0)
        + mode * np.log(chance)
        + (trials - mode) * np.log1p(-chance)
    )
    down, high, low = up, mode, mode
    u -= up
    while u > 0.0 and (high < trials or low > 0):
        if high < trials:
            up *= (trials - high) * odds / (high + 1)
            high += 1
            u -= up
            if u <= 0.0:
                return high
        if low > 0:
            down *= low / ((trials - low + 1) * odds)
            low -= 1
            u -= down
            if u <= 0.0:
                return low
        if up == 0.0 and down == 0.0:
            break
    return mode


@inlined
def _list_events(events: Array, some: int, owners: Array) -> Any:
    """Write down whose every event is, of entries with few of them; how many there are.

    ``AT_ONCE`` places are written whether or not there are so many events: the next entry's begin where
    this one's have ended, and there is no branch that nobody could foresee.
    """
    n = 0
    for i in range(some):
        few = events[i] if events[i] <= ONE_BY_ONE else 0
        for j in range(AT_ONCE):
            owners[n + j] = i
        for j in range(AT_ONCE, few):
            owners[n + j] = i
        n += few
    return n


@inlined
def _component(running: Array, word: Any) -> Any:
    """Whose an event is, from a random word."""
    last = running.shape[0] - 1
    r, k = between(word) * running[last], 0
    for j in range(last):  # without a branch, which nobody could foresee
        k += r > running[j]
    return k


@inlined
def _share_out(
    p: Any, index: Array, events: int, running: Array, words: Any, rows: Array, core: Array
) -> None:
    """Give the events of an entry with many of them to components."""
    last = running.shape[0] - 1
    rate, before = running[last], 0.0
    for k in range(last):
        chance = (running[k] - before) / (rate - before) if rate > before else 0.0
        some = binomial(events, chance, between(next_word(words)))
        if some > 0:
            credit(p, index, k, some, rows, core)
        events -= some
        before = running[k]
        if events == 0:
            return
    credit(p, index, last, events, rows, core)


@kernel
def _sample_blocks(
    p: Any,
    coordinates: Array,
    counts: Any,
    key: Array,
    blocks: Array,
    n_components: int,
    exposed: bool,
    with_likelihood: bool,
    rows: Array,
    core: Array,
    likelihood: Array,
) -> None:
    """The entries of some blocks. ``exposed`` says that log-likelihoods of exact counts have their rate.

    Counts of some entries are drawn before any of them is shared out, and their events are gone through
    in one loop: a processor that waits for a count to know how often to go round can do nothing else
    meanwhile.
    """
    index, work = scratch(len(p.offsets), np.int64), workspace(p)
    running = scratch(AHEAD * n_components, np.float64).reshape(AHEAD, n_components)
    events, owners = scratch(AHEAD, np.int64), scratch(AHEAD * ONE_BY_ONE + AT_ONCE, np.int64)
    words = Words(key.copy(), np.empty(WORDS, np.uint64), np.empty(1, np.int64))
    n = coordinates.shape[1]
    for block in blocks:
        words.state[12] = words.state[13] = 0
        words.state[14] = block
        words.used[0] = WORDS
        logs = 0.0
        for begin in range(block * BLOCK, min((block + 1) * BLOCK, n), AHEAD):
            some = min(AHEAD, min((block + 1) * BLOCK, n) - begin)
            for i in range(some):
                e = begin + i
                locate(p, coordinates, e, index)
                rate = max(components(p, index, work, running[i]), LEAST_RATE)
                law, output, total = counts.which[e], counts.outputs[e], 1.0
                events[i] = output
                if counts.kinds[law] != EXACT:
                    events[i], total = draw(counts, law, output, rate, between(next_word(words)))
                if with_likelihood:
                    logs += log_probability(counts, law, output, rate, total)
                    if not exposed:
                        logs += rate
            for j in range(_list_events(events, some, owners)):
                i = owners[j]
                locate(p, coordinates, begin + i, index)
                credit(p, index, _component(running[i], next_word(words)), 1, rows, core)
            for i in range(some):
                if events[i] > ONE_BY_ONE:
                    locate(p, coordinates, begin + i, index)
                    _share_out(p, index, events[i], running[i], words, rows, core)
        likelihood[block] = logs


class Sampled(NamedTuple):
    """Events of every row and component, those of the core, and the log-likelihood of each block."""

    rows: Array
    core: Array
    likelihood: Array


def n_blocks(entries: int) -> int:
    return -(-entries // BLOCK)


def sample_tasks(
    arrays: Any,
    rank: int,
    coordinates: Array,
    counts: NoisyCounts,
    generator: np.random.Generator,
    threads: int,
    *,
    exposed: bool,
    with_likelihood: bool,
) -> tuple[list[Callable[[], None]], list[Sampled]]:
    """What is to be run for one part of a model, and where each task adds its events to."""
    key = Words.keyed(generator).state
    blocks = np.arange(n_blocks(coordinates.shape[1]))
    core = arrays.core.shape[0] if isinstance(arrays, TuckerArrays) else 0
    likelihood = np.zeros(blocks.shape[0])
    made = [
        (Sampled(np.zeros((arrays.rows.shape[0], rank)), np.zeros(core), likelihood), some)
        for some in np.array_split(blocks, min(threads, blocks.shape[0]))
    ]
    tasks: list[Callable[[], None]] = [
        partial(_sample_blocks, arrays, coordinates, counts, key, some, core or rank, exposed,
                with_likelihood, *own)
        for own, some in made
    ]  # fmt: skip
    return tasks, [own for own, _ in made]


def sample_counts(*args: Any, **kwargs: Any) -> Sampled:
    """Draw the counts of one part; see :func:`sample_tasks`."""
    tasks, made = sample_tasks(*args, **kwargs)
    run(tasks, len(tasks))
    first, *others = made
    for other in others:
        first.rows[:] += other.rows
        first.core[:] += other.core
    return first
