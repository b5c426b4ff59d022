"""Readable twin of ``kernels/numba/gibbs.py``: the same counts from the same words, one at a time."""

from __future__ import annotations

from collections.abc import Iterator
from math import exp, lgamma, log, log1p
from typing import TYPE_CHECKING

import numpy as np

from sfumato.kernels.numba.chacha import Words
from sfumato.kernels.numba.gibbs import AHEAD, BLOCK, ONE_BY_ONE
from sfumato.kernels.numba.noisy_counts import EXACT, NoisyCounts
from sfumato.kernels.reference.noisy_counts import draw_reference
from sfumato.kernels.reference.normals import between_reference, words_reference
from sfumato.types import Array

if TYPE_CHECKING:
    from sfumato.models.coupled import CoupledModel


def sample_reference(
    model: CoupledModel,
    part: int,
    coordinates: Array,
    counts: NoisyCounts,
    generator: np.random.Generator,
) -> tuple[Array, Array]:
    """Events of every row and component, and of a Tucker core."""
    rows, core = np.zeros((model.rows.shape[0], model.rank)), np.zeros(model.cores[part].shape)
    modes, stream = model.parts[part].modes, Words.keyed(generator)
    cells = model.cells(part, coordinates)
    for first in range(0, cells.shape[1], BLOCK):
        stream.state[14] = first // BLOCK
        words = words_reference(stream)
        end = min(first + BLOCK, cells.shape[1])
        for begin in range(first, end, AHEAD):
            entries = range(begin, min(begin + AHEAD, end))
            adds = [_adds(model, part, cells[:, e]) for e in entries]
            events = [
                _events(counts, e, float(own.sum()), words) for e, own in zip(entries, adds, strict=True)
            ]
            # Entries with few events come before those with many.
            for i in np.argsort(np.array(events) > ONE_BY_ONE, kind="stable"):
                e, own = entries[i], adds[i]
                for place, given in enumerate(_shared_out(events[i], own.ravel(), words)):
                    for mode, level, k in zip(
                        modes, cells[:, e], np.unravel_index(place, own.shape) * len(modes), strict=False
                    ):
                        rows[model.offsets[mode] + level, k] += given
                    if core.size:
                        core[place] += given
    return rows, core


def _adds(model: CoupledModel, part: int, cell: Array) -> Array:
    """What components add to the rate of a cell: of CP a vector, of Tucker as the core."""
    taken = [
        model.factor(mode)[level] for mode, level in zip(model.parts[part].modes, cell, strict=True)
    ]
    if not model.parts[part].tucker:
        return np.asarray(np.prod(taken, axis=0))
    product = model.core(part)
    for axis, row in enumerate(taken):
        product = product * np.expand_dims(row, [a for a in range(product.ndim) if a != axis])
    return np.asarray(product)


def _events(counts: NoisyCounts, entry: int, rate: float, words: Iterator[int]) -> int:
    if counts.kinds[counts.which[entry]] == EXACT:
        return int(counts.outputs[entry])
    return draw_reference(counts, entry, rate, between_reference(next(words)))


def _shared_out(events: int, adds: Array, words: Iterator[int]) -> Array:
    running, given = np.cumsum(adds), np.zeros(len(adds), np.int64)
    if events <= ONE_BY_ONE:
        for _ in range(events):
            given[np.searchsorted(running[:-1], between_reference(next(words)) * running[-1])] += 1
        return given
    for k, before in enumerate([0.0, *running[:-2]]):
        if events:
            chance = (running[k] - before) / (running[-1] - before)
            given[k] = _binomial(events, chance, between_reference(next(words)))
            events -= given[k]
    given[-1] += events
    return given


def _binomial(trials: int, chance: float, u: float) -> int:
    """By inversion over places in the order of their distance from the mode, upper ones first."""
    if chance >= 1 or chance <= 0:
        return trials if chance >= 1 else 0
    mode = min(int((trials + 1) * chance), trials)
    places = sorted(range(trials + 1), key=lambda place: (abs(place - mode), place < mode))
    for place in places:
        ways = lgamma(trials + 1) - lgamma(place + 1) - lgamma(trials - place + 1)
        u -= exp(ways + place * log(chance) + (trials - place) * log1p(-chance))
        if u <= 0:
            return place
    return mode
