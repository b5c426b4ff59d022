"""What paper A's Algorithm 2 does as printed: ``python -m sfumato.papers.wang_points``.

The measurement goes with point 1 in ``docs/papers/wang.md``.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from sfumato.estimators.power import PowerMethod
from sfumato.models.components import match_components
from sfumato.papers.wang_data import FIRST_SEED, NOISE_SEEDS, Stream, orthonormal
from sfumato.types import Array

DIMENSIONS, RESTARTS, ITERATIONS = 25, 10, 25
SCALES = np.array([1.0, 0.9, 0.8])  # of the components; weights go with the cubes


def printed_online(samples: Array, components: int, scale: float, seed: int) -> Array:
    """Algorithm 2 on samples that are reused, with step 7 as printed: xi_j = v_j' (accumulator).

    In step 6, x_l is read for the x_i that is printed, which stands for nothing. ``scale`` multiplies
    the samples: deflation as printed is not even of the right degree in it.
    """
    generator = np.random.default_rng(seed)
    rows = samples.astype(np.float64) * scale
    weights, found = np.empty(0), np.empty((0, rows.shape[1]))
    for _ in range(components):
        u = generator.standard_normal((rows.shape[1], RESTARTS))
        u /= np.linalg.norm(u, axis=0)
        for _ in range(ITERATIONS):
            inner = rows @ u
            power = rows.T @ inner**2 / len(rows)
            weight = (inner**3).mean(axis=0)
            xi = found @ power
            power -= found.T @ (weights[:, None] * xi**2)
            weight -= weights @ xi**3
            u = power / np.linalg.norm(power, axis=0)
        best = int(np.argmax(weight))
        weights, found = np.append(weights, weight[best]), np.vstack([found, u[:, best]])
    return found


class Deflation(NamedTuple):
    """Errors of all components with step 7 as printed, by the largest weight, and with ours."""

    printed: dict[float, Array]
    ours: Array


def deflation_as_printed(weights: tuple[float, ...] = (0.5, 1.0, 2.0), count: int = 30_000) -> Deflation:
    """On one stream, scaled so that its largest component has each of the weights."""
    truth = orthonormal(len(SCALES), DIMENSIONS, np.random.default_rng(FIRST_SEED))
    stream = Stream(SCALES[:, None] * truth, NOISE_SEEDS + FIRST_SEED)
    samples = np.concatenate(list(stream.blocks(count)))
    printed = {}
    for weight in weights:
        found = printed_online(samples, len(SCALES), (weight / 2) ** (1 / 3), FIRST_SEED)
        printed[weight] = match_components(found, truth).errors
    ours = PowerMethod(len(SCALES), RESTARTS, ITERATIONS, seed=FIRST_SEED).fit_stream(samples)
    return Deflation(printed, match_components(ours.components_, truth).errors)


def main() -> None:
    errors = deflation_as_printed()
    for weight, printed in errors.printed.items():
        print(f"1. as printed, largest weight {weight:g}: errors {_listed(printed)}")
    print(f"1. deflated by the iterate, at any weight: errors {_listed(errors.ours)}")


def _listed(errors: Array) -> str:
    return ", ".join(f"{error:.3f}" for error in errors)


if __name__ == "__main__":
    main()
