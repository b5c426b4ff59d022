"""Readable twins of ``kernels/numba/vector_noise.py``."""

from __future__ import annotations

import numpy as np

from sfumato.types import Array


def clipped_reference(vector: Array, bound: float) -> Array:
    """Readable twin of ``clip_norm``: v / max(1, |v| / bound)."""
    shortened: Array = vector / max(1.0, float(np.linalg.norm(vector)) / bound)
    return shortened


def vector_noise_reference(size: int, scale: float, stream: np.random.Generator) -> Array:
    """Readable twin of ``add_vector_noise``, drawing the same numbers in the same order."""
    direction = stream.standard_normal(size)
    noise: Array = direction * (stream.gamma(size, scale) / np.linalg.norm(direction))
    return noise
