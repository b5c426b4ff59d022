"""Exact noise on whole numbers: our own, or OpenDP's for those who trust what was reviewed longest."""

from __future__ import annotations

from functools import partial
from itertools import pairwise

import numpy as np

from sfumato.kernels.discrete import DiscreteLaw
from sfumato.kernels.grid import MOST_SUM
from sfumato.kernels.numba.discrete_noise import draw
from sfumato.kernels.numba.threads import available_threads, run
from sfumato.privacy.entropy import Entropy
from sfumato.types import Array

SAMPLERS = {
    "sfumato": "sfumato's samplers over AES in counter mode",
    "opendp": "OpenDP's samplers",
}
_OPENDP = {
    "gaussian": ("make_gaussian", "l2_distance", "f64"),
    "geometric": ("make_geometric", "l1_distance", "i64"),
}
_WORTH_THREADS = 1000  # numbers: OpenDP takes about 10 microseconds for each


def with_noise(values: Array, law: DiscreteLaw, entropy: Entropy) -> Array:
    """Whole numbers of at most 2^61, each with noise of its own; the sum is cut off there too.

    Cutting it off is post-processing: noise is drawn up to 2^62 in size, and with more than that the sum
    is beyond in any case.
    """
    if entropy.sampler == "opendp":
        noisy = _by_opendp(values, law)
    else:
        noise = draw(law, values.size, entropy.words(), available_threads())
        noisy = values + noise.reshape(values.shape)
    return np.clip(noisy, -MOST_SUM, MOST_SUM)


def _by_opendp(values: Array, law: DiscreteLaw) -> Array:
    if not values.size:
        return values.copy()
    import opendp.prelude as dp

    dp.enable_features("contrib")
    maker, metric, distance = _OPENDP[law.kind]
    given, noisy = values.ravel(), np.empty(values.size, np.int64)

    def draw_piece(piece: slice) -> None:
        domain = dp.vector_domain(dp.atom_domain(T="i64"), size=given[piece].size)
        measure = getattr(dp.m, maker)(domain, getattr(dp, metric)(T=distance), scale=law.scale)
        noisy[piece] = measure(given[piece].tolist())

    # Noise on each number is drawn by itself: pieces can be drawn side by side.
    threads = available_threads() if values.size >= _WORTH_THREADS else 1
    cuts = np.linspace(0, values.size, threads + 1).astype(int).tolist()
    run([partial(draw_piece, slice(*ends)) for ends in pairwise(cuts)], threads)
    return noisy.reshape(values.shape)
