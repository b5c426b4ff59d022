"""Sums over which levels occur together, the values left aside."""

from __future__ import annotations

from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from sfumato.kernels.numba.compiler import kernel
from sfumato.kernels.numba.simd import add, aligned_zeros, element, line_length, load, store
from sfumato.kernels.numba.threads import balanced_cuts, run
from sfumato.types import Array

if TYPE_CHECKING:
    from sfumato.sites.memory import Site


@kernel
def _add_neighbours(
    vectors: Array,
    offsets: Array,
    mode: int,
    others: Array,
    starts: Array,
    first: int,
    last: int,
    out: Array,
) -> None:
    width, entries, here = vectors.shape[1], others.shape[1], offsets[mode]
    for row in range(first, last):
        for entry in range(starts[row], starts[row + 1]):
            for j in range(others.shape[0]):
                level = offsets[j if j < mode else j + 1] + element(others, j * entries + entry)
                for b in range(0, width, line_length(vectors)):
                    place = (here + row) * width + b
                    store(out, place, add(load(out, place), load(vectors, level * width + b)))


def neighbour_sums(vectors: Array, site: Site) -> Array:
    """At each level, the sum over its entries of the vectors of the other modes' levels.

    Levels are counted mode after mode; vectors are padded rows. The result does not depend on how many
    threads the site has.
    """
    shape = site.tensor.shape
    offsets, out = np.cumsum((0, *shape[:-1])), aligned_zeros(vectors.shape, vectors.dtype)
    for mode, size in enumerate(shape):
        entries = site.by_mode(mode)
        cuts = balanced_cuts(entries.starts, 0, size, site.threads)
        run(
            [
                partial(
                    _add_neighbours,
                    vectors,
                    offsets,
                    mode,
                    entries.others,
                    entries.starts,
                    first,
                    last,
                    out,
                )
                for first, last in pairwise(cuts)
            ],
            site.threads,
        )
    return out
