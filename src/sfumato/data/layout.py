"""Orders in which kernels walk over a tensor's entries."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from sfumato.data.ordering import order_by, row_starts
from sfumato.data.tensor import SparseTensor

_T = TypeVar("_T")


@dataclass(frozen=True)
class ByMode:
    """Entries sorted by one mode: level i has the entries ``starts[i]`` to ``starts[i + 1]``.

    ``others`` holds the coordinates of the other modes, in order.
    """

    others: NDArray[np.int32]
    values: NDArray[Any]
    starts: NDArray[np.int64]

    @property
    def counts(self) -> NDArray[np.int64]:
        return np.diff(self.starts)


class Site:
    """One holder of entries: a tensor, and the orders of its entries that solvers have asked for."""

    def __init__(self, tensor: SparseTensor, threads: int) -> None:
        self.tensor = tensor
        self.threads = threads
        self._kept: dict[Any, Any] = {}

    def kept(self, key: Any, make: Callable[[], _T]) -> _T:
        """A layout that is made once."""
        if key not in self._kept:
            self._kept[key] = make()
        kept: _T = self._kept[key]
        return kept

    def by_mode(self, mode: int) -> ByMode:
        """The entries sorted by a mode."""
        return self.kept(("mode", mode), lambda: _sorted_by(self.tensor, mode))

    @cached_property
    def counts(self) -> NDArray[np.int64]:
        """Entries at each level, mode after mode."""
        return np.concatenate([self.tensor.counts(name) for name in self.tensor.mode_names])


def _sorted_by(tensor: SparseTensor, mode: int) -> ByMode:
    levels, size = tensor.coordinates[mode], tensor.shape[mode]
    starts = row_starts(levels, size)
    if mode == 0:  # a tensor's entries are sorted by the first mode: no copy
        return ByMode(tensor.coordinates[1:], tensor.values, starts)
    order = order_by(levels, size)
    others = np.empty((tensor.order - 1, tensor.n_entries), np.int32)
    for row, m in enumerate(m for m in range(tensor.order) if m != mode):
        np.take(tensor.coordinates[m], order, out=others[row])
    return ByMode(others, tensor.values[order], starts)


def balanced_cuts(starts: NDArray[np.int64], low: int, high: int, parts: int) -> list[int]:
    """Cut the levels ``low`` to ``high`` into parts with about the same number of entries."""
    goals = np.linspace(starts[low], starts[high], parts + 1)[1:-1]
    inner = np.searchsorted(starts[low : high + 1], goals) + low
    return [low, *np.clip(inner, low, high).tolist(), high]
