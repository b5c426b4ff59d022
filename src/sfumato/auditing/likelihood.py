"""Likelihood ratios, where a release shows a number whose law is known on either neighbour.

A single pass with noise on each step (``PrivatePasses``) moves the rows of a canary that is alone in all
of them once, from their public start, by a known direction times one noisy number: whoever knows the
start can read that number off the rows.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

import numpy as np

from sfumato.auditing.neighbours import Neighbours
from sfumato.auditing.trials import Runs
from sfumato.fit.completion import Completion
from sfumato.fit.plan import PrivatePlan
from sfumato.kernels.reference.private_passes import direction_at
from sfumato.models.multilinear import Multilinear
from sfumato.privacy.facts import Facts
from sfumato.solvers.private.passes import PrivatePasses
from sfumato.types import Array


def known_ratio(
    plan: PrivatePlan[Completion],
    neighbours: Neighbours,
    start: Multilinear | None,
    seen: Collection[str],
) -> Callable[[Runs], Array] | None:
    """The log-likelihood ratio of a run, second neighbour over first; None where it is not known.

    ``seen`` names what the runs show: the rows of all modes but the first are needed.
    """
    solver, tensor = plan.task.solver, neighbours.first
    if not isinstance(solver, PrivatePasses) or solver.passes != 1 or solver.noise_law != "residual":
        return None
    cell = neighbours.cells[:, 0]
    company = [tensor.counts(mode.name)[level] for mode, level in zip(tensor.modes, cell, strict=True)]
    if start is None or start.free_core.size or max(company) > 1:
        return None
    if not {f"factor_{m}" for m in range(1, start.order)} <= set(seen):
        return None
    return _PassRatio(solver, plan.task.facts, neighbours, start)


class _PassRatio:
    """The noisy residual that a canary's only step was made with, and its two Laplace laws."""

    def __init__(
        self, solver: PrivatePasses, facts: Facts, neighbours: Neighbours, start: Multilinear
    ) -> None:
        cell, (low, high) = neighbours.cells[:, 0], facts.bounds
        j = direction_at(start, cell, facts.shape.fit_biases)
        squares, spread = float(j @ j), facts.spread
        reach = solver.clip / np.sqrt(squares)
        step = solver.step_at(facts, 0)
        self._start, self._cell, self._spread = start, cell, spread
        self._step, self._gain = step * solver.ridge, step / (1 + step * squares)
        self._home = facts.shape.prior_means(solver.prior_mean)
        self._reach = reach
        self._value = float(start.with_mean(0.0).predict_reference(cell[:, None])[0])
        self._targets = low, high
        self._scale = min(2 * reach, (high - low) / spread) / solver.shares(facts)[1]

    def __call__(self, runs: Runs) -> Array:
        noisy = self._residual(runs)
        first, second = (self._error(target, runs) for target in self._targets)
        return np.asarray((np.abs(noisy - first) - np.abs(noisy - second)) / self._scale)

    def _error(self, target: float, runs: Runs) -> Array:
        mean = runs["mean"][:, 0] if "mean" in runs else 0.0
        return np.clip((target - mean) / self._spread - self._value, -self._reach, self._reach)

    def _residual(self, runs: Runs) -> Array:
        """What the rows of all modes but the first, which the end of a fit rescales, were moved by."""
        along, length = np.zeros(runs["side"].shape[0]), 0.0
        for m in range(1, self._start.order):
            row, design = (
                self._start.factors[m][self._cell[m]],
                self._start.design(m, self._cell[:, None])[0],
            )
            pulled = row + self._step * (self._home[m] - row)
            along += (runs[f"factor_{m}"][:, 0] - pulled) @ design
            length += float(design @ design)
        return along / (self._gain * length)
