"""Readable twins of ``kernels/numba/lists.py``."""

from __future__ import annotations

import numpy as np

from sfumato.types import Array


def best_levels_reference(
    owners: Array, levels: Array, biases: Array, held: list[set[int]], k: int
) -> list[list[int]]:
    """Readable twin of :func:`best_levels`: shorter lists instead of ``NOBODY``."""
    lists = []
    for owner, mine in zip(owners, held, strict=True):
        scores = [
            biases[j] + sum(a * b for a, b in zip(owner, levels[j], strict=True))
            for j in range(len(levels))
        ]
        left = [j for j in range(len(levels)) if j not in mine]
        lists.append(sorted(left, key=lambda j: (-scores[j], j))[:k])
    return lists


def list_gains_reference(lists: list[list[int]], wanted: list[set[int]], k: int) -> Array:
    """Readable twin of :func:`list_gains`."""
    out = np.zeros((len(lists), 2))
    for owner, (found, mine) in enumerate(zip(lists, wanted, strict=True)):
        if mine:
            gain = sum(1 / np.log2(place + 2) for place, level in enumerate(found) if level in mine)
            ideal = sum(1 / np.log2(place + 2) for place in range(min(k, len(mine))))
            out[owner] = len(mine & set(found)) / len(mine), gain / ideal
    return out
