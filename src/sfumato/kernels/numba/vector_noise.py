"""Clipping and vector noise inside compiled kernels.

The noise has density proportional to exp(-|n| / scale) in R^size: its direction is uniform, its
length Gamma distributed with shape ``size``. Independent Laplace coordinates are something else.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from sfumato.kernels.numba.compiler import inlined
from sfumato.types import Array


@inlined
def clip_norm(vector: Array, size: int, bound: Any) -> Any:
    """Shorten ``vector[:size]`` to ``bound`` in place; the length that it has then."""
    squares = 0.0
    for r in range(size):
        squares += vector[r] * vector[r]
    length = np.sqrt(squares)
    if length > bound:
        for r in range(size):
            vector[r] *= bound / length
        length = bound
    return length


@inlined
def add_vector_noise(vector: Array, size: int, scale: Any, direction: Array, stream: Any) -> None:
    """Add noise with density proportional to exp(-|n| / scale) to ``vector[:size]``.

    ``direction`` is scratch memory of at least that size.
    """
    squares = 0.0
    for r in range(size):
        direction[r] = stream.standard_normal()
        squares += direction[r] * direction[r]
    stretch = stream.gamma(size, scale) / np.sqrt(squares)
    for r in range(size):
        vector[r] += stretch * direction[r]


def rowwise_noise(shape: tuple[int, ...], scale: float, stream: np.random.Generator) -> Array:
    """Independent vector noise for each row of a matrix."""
    rows, size = shape
    direction = stream.standard_normal((rows, size))
    length = stream.gamma(size, scale, rows)
    noise: Array = direction * (length / np.linalg.norm(direction, axis=1))[:, None]
    return noise
