"""Timing on a machine that other work disturbs: interleaved repetitions, of which the best counts."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

from sfumato import SparseTensor, TensorEstimator
from sfumato.sites.memory import Site

Action = Callable[[], float]


class Rounds:
    """A fit that goes on for as long as it is asked to; each call is one sweep or pass, in seconds.

    The first one, made here, builds the layouts: ``first`` is its time. Kernels are expected to be
    compiled by then (see :func:`warm_up`).
    """

    def __init__(self, estimator: TensorEstimator, tensor: SparseTensor) -> None:
        plan = estimator.plan(tensor.modes, tensor.values.dtype)
        self.entries = tensor.n_entries
        self._solver: Any = plan.solver
        self._site = Site(tensor, plan.run.threads)
        self._state = self._solver.init(plan.run, plan.shape)
        self._completed = 0
        self.first = self()

    def __call__(self) -> float:
        begin, before = perf_counter(), self._completed
        while self._completed == before:
            answer = self._solver.ask(self._state).answer(self._site)
            self._state, info = self._solver.update(self._state, answer)
            self._completed = info.completed
        return perf_counter() - begin


def warm_up(estimator: TensorEstimator, tensor: SparseTensor) -> None:
    """Compile (or load from the cache) the kernels that a fit to such a tensor uses."""
    Rounds(estimator, tensor)()


def timed(function: Callable[[], Any]) -> float:
    begin = perf_counter()
    function()
    return perf_counter() - begin


def interleave(actions: Mapping[str, Action], repetitions: int) -> dict[str, list[float]]:
    """Seconds of each action: all of them once, then all again, so that disturbances are shared."""
    seconds: dict[str, list[float]] = {name: [] for name in actions}
    gc.collect()
    for _ in range(repetitions):
        for name, action in actions.items():
            seconds[name].append(action())
    return seconds


class Disturbance:
    """What else ran while we measured: share of all cores' time (Linux only, else None)."""

    def __init__(self) -> None:
        self._before = _cpu_ticks()

    def share(self) -> float | None:
        after = _cpu_ticks()
        if self._before is None or after is None:
            return None
        total, busy, own = (b - a for a, b in zip(self._before, after, strict=True))
        return max(0.0, busy - own) / max(total, 1)


def _cpu_ticks() -> tuple[float, float, float] | None:
    """Ticks of all cores: passed, not idle (stolen ones too), and used by this process."""
    try:
        ticks = [int(field) for field in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    except OSError:
        return None
    times = os.times()
    own = times.user + times.system + times.children_user + times.children_system
    return sum(ticks), sum(ticks) - ticks[3] - ticks[4], own * os.sysconf("SC_CLK_TCK")


def best_and_median(seconds: list[float]) -> tuple[float, float]:
    return min(seconds), median(seconds)
