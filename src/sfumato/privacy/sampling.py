"""Exact noise on whole numbers: our own, or OpenDP's for those who trust what was reviewed longest."""

from __future__ import annotations

from functools import partial
from itertools import pairwise

import numpy as np

from sfumato.kernels.discrete import MOST_NUMBER, DiscreteLaw
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
    noisy = noise(law, values.size, entropy).reshape(values.shape)
    noisy += values  # in place: it is new, and may be large
    return np.asarray(np.clip(noisy, -MOST_SUM, MOST_SUM, out=noisy))


def noise(law: DiscreteLaw, number: int, entropy: Entropy) -> Array:
    """So many independent whole numbers of a law; those beyond 2^62 in size are that."""
    if entropy.sampler == "opendp":
        return np.clip(_by_opendp(law, number), -MOST_NUMBER, MOST_NUMBER)
    return draw(law, number, entropy.words(), available_threads())


def _by_opendp(law: DiscreteLaw, number: int) -> Array:
    """OpenDP's noise on zeros; it stops at the ends of 64 bits."""
    if not number:
        return np.zeros(0, np.int64)
    import opendp.prelude as dp

    dp.enable_features("contrib")
    maker, metric, distance = _OPENDP[law.kind]
    zeros, noisy = np.zeros(number, np.int64), np.empty(number, np.int64)

    def draw_piece(piece: slice) -> None:
        domain = dp.vector_domain(dp.atom_domain(T="i64"), size=zeros[piece].size)
        measure = getattr(dp.m, maker)(domain, getattr(dp, metric)(T=distance), scale=law.scale)
        noisy[piece] = measure(zeros[piece].tolist())

    # Noise on each number is drawn by itself: pieces can be drawn side by side.
    threads = available_threads() if number >= _WORTH_THREADS else 1
    cuts = np.linspace(0, number, threads + 1).astype(int).tolist()
    run([partial(draw_piece, slice(*ends)) for ends in pairwise(cuts)], threads)
    return noisy
