"""Readable twin of ``kernels/numba/presence.py``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from sfumato.types import Array

if TYPE_CHECKING:
    from sfumato.sites.memory import Site


def neighbour_sums_reference(vectors: Array, site: Site) -> Array:
    """Readable twin of :func:`neighbour_sums`."""
    shape, out = site.tensor.shape, np.zeros_like(vectors)
    levels = site.tensor.coordinates + np.cumsum((0, *shape[:-1]))[:, None]
    everyone = vectors[levels].sum(axis=0)
    for here in levels:
        np.add.at(out, here, everyone - vectors[here])
    return out
