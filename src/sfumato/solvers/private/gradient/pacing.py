"""How parameters move in a private step: lengths of steps, ridges and noise, from what was released."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sfumato.models.multilinear import Multilinear
from sfumato.solvers.private.gradient.levels import Start
from sfumato.types import Array

LEAST_POWER = 0.01  # variance of a component, in residual variances, that shrinking starts from


@dataclass(frozen=True)
class Pacing:
    """Share of a Newton step, probability of taking part, and noise in a step's gradient."""

    step: float
    rate: float
    noise: float

    def paces(self, counts: Array, curvature: float, power: float) -> tuple[Array, Array, Array]:
        """Keep, pace and jitter of rows with the given counts, in the metric's coordinates.

        An entry adds ``curvature`` to a coordinate's Hessian; ``power`` is the variance that it
        explains, in residual variances. The ridge is the best linear one for what is known: the
        residuals' variance, and that of the noise in an iterate under steps of this length.
        """
        shaking = self.step / (2 - self.step) * (self.noise / self.rate) ** 2
        ridge = curvature / power + shaking / (counts * power)
        whole = counts * curvature + ridge
        keep = 1 - self.step * ridge / whole
        length = self.step / (self.rate * whole)
        return keep, length / keep, length * self.noise


def core_moves(
    model: Multilinear, cells: Array, start: Start, pacing: Pacing, block_share: float
) -> Array:
    """Keep, pace, jitter and square of a free core."""
    size = model.free_core.size
    if size == 0:
        return np.array([1.0, 0.0, 0.0, 0.0])
    curvature = float(np.mean(model.kronecker(cells).astype(np.float64) ** 2)) + 1e-12
    power = max(LEAST_POWER, float(np.mean(model.free_core**2)) * curvature)
    entries = start.counts[model.span(0)].sum(keepdims=True)
    paces = pacing.paces(entries, block_share / size, power)
    return np.array([*(pace[0] for pace in paces), block_share / size / curvature])
