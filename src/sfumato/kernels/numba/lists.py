"""Lists of the best levels for each owner, without those that it has already; and how good they are.

Scores of all cells are never held at a time: an owner's are made, and the best of them kept.
"""

from __future__ import annotations

from functools import partial
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from sfumato.kernels.numba.compiler import ordered_kernel
from sfumato.kernels.numba.threads import run, scratch
from sfumato.types import Array

NOBODY = -1  # in place of a level, where an owner has fewer to choose from than are asked for


class Held(NamedTuple):
    """Owner u holds ``levels[starts[u]:starts[u + 1]]``, in order and each once."""

    starts: Array
    levels: Array


@ordered_kernel
def _best(
    owners: Array,
    levels: Array,
    biases: Array,
    starts: Array,
    held: Array,
    first: int,
    last: int,
    out: Array,
) -> None:
    k, rank = out.shape[1], levels.shape[1]
    scores = scratch(k, np.float64)
    for owner in range(first, last):
        place, end, found = starts[owner], starts[owner + 1], 0
        for level in range(levels.shape[0]):
            if place < end and held[place] == level:
                place += 1
                continue
            score = biases[level]
            for r in range(rank):
                score += owners[owner, r] * levels[level, r]
            if found == k and not score > scores[k - 1]:
                continue
            at = min(found, k - 1)
            while at > 0 and score > scores[at - 1]:  # of equal ones the first level stays ahead
                scores[at], out[owner, at] = scores[at - 1], out[owner, at - 1]
                at -= 1
            scores[at], out[owner, at] = score, level
            found = min(found + 1, k)


def best_levels(owners: Array, levels: Array, biases: Array, held: Held, k: int, threads: int) -> Array:
    """For each owner the k levels with the highest ``bias + owner . level`` that it does not hold.

    Best first; of equal scores the lower level comes first; ``NOBODY`` where there are fewer than k.
    """
    out = np.full((owners.shape[0], k), NOBODY, np.int64)
    what = tuple(np.ascontiguousarray(part, np.float64) for part in (owners, levels, biases))
    cuts = np.linspace(0, owners.shape[0], threads + 1).astype(np.int64)
    run(
        [partial(_best, *what, *held, low, high, out) for low, high in pairwise(cuts)],
        threads,
    )
    return out


@ordered_kernel
def _gains(lists: Array, starts: Array, wanted: Array, out: Array) -> None:
    for owner in range(lists.shape[0]):
        begin, end = starts[owner], starts[owner + 1]
        hits, gain, ideal = 0, 0.0, 0.0
        for place in range(lists.shape[1]):
            discount = 1 / np.log2(place + 2.0)
            if place < end - begin:
                ideal += discount
            level, low, high = lists[owner, place], begin, end
            while low < high:  # levels are in order
                middle = (low + high) // 2
                if wanted[middle] < level:
                    low = middle + 1
                else:
                    high = middle
            if low < end and wanted[low] == level:
                hits += 1
                gain += discount
        if end > begin:
            out[owner, 0] = hits / (end - begin)
            out[owner, 1] = gain / ideal


def list_gains(lists: Array, wanted: Held) -> Array:
    """Recall and NDCG of each owner's list, a row each; zeros where an owner wants nothing."""
    out = np.zeros((lists.shape[0], 2))
    _gains(np.ascontiguousarray(lists, np.int64), *wanted, out)
    return out
