"""Entries on a device: a model's parameters there, chunks of sorted entries, designs and residuals.

Entries sorted by a mode are cut into chunks of equal size, and where the mode has few levels these into
*runs*: up to ``RUN`` neighbours that share their level. Sums go to runs first and from there to levels,
so that many threads of a device seldom add to one place. Where chunks do not fit the device together
they stay in the memory of the host, and the next one is copied while one is summed. Computation is in
single precision; what is private is added up in whole numbers.

What is made of an entry while it is worked on grows with squares of ranks and with a core: there are as
many entries in a chunk as leave that within ``SCRATCH``.
"""

from __future__ import annotations

import string
from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from sfumato.kernels.jax.kept import there_already
from sfumato.types import Array

if TYPE_CHECKING:
    from sfumato.models.multilinear import Multilinear
    from sfumato.sites.memory import ByMode

CHUNK = 1 << 21  # entries at a time, at most
SCRATCH = 3 << 30  # bytes of what is made of a chunk
RUN = 256  # entries of one level that are summed before the level is
_FEW_LEVELS = 4  # times the runs of a chunk: with more, sums go to levels straight away
CORE = -1  # the block that is no mode, as in ``kernels/numba/alternating.py``


class Parameters(NamedTuple):
    """A model in single precision; ``core`` is None for CP."""

    factors: tuple[Any, ...]
    biases: tuple[Any, ...]
    core: Any
    mean: Any


class Variances(NamedTuple):
    """Of a model's rows, mode after mode, and of its core; None where there is none."""

    rows: tuple[Any, ...]
    core: Any


class Chunk(NamedTuple):
    """Some entries, sorted by a mode; those after the first ``present`` fill up.

    ``levels`` are those of the mode, ``runs`` numbers the run of each entry, and ``level_of`` has the
    level of each run; both are None where the mode has so many levels that no runs are needed.
    """

    others: Any  # of the other modes, one row for each
    values: Any
    weights: Any  # None where all entries count alike
    levels: Any
    runs: Any
    level_of: Any
    present: Any


def chunk_size(ranks: Sequence[int], core_size: int) -> int:
    """Entries in a chunk, of public numbers alone: a power of two."""
    fitting = max(1, SCRATCH // entry_bytes(ranks, core_size))
    return min(CHUNK, 1 << (fitting.bit_length() - 1))


def entry_bytes(ranks: Sequence[int], core_size: int) -> int:
    """About what is made of one entry: products with a metric, or with each other, and with a core."""
    rank = max(ranks)
    wide = 1 << (rank - 1).bit_length()  # folding fills up to a power of two, in an array of its own
    products = 5 * rank * wide // 4 + (rank * rank if wide > rank else 0)
    return 4 * (products + 5 * core_size + 16)


def parameters(model: Multilinear, solved: bool = False) -> Parameters:
    """A model's parameters on the device; where rows are ``solved`` there, some are there already."""
    single = partial(np.asarray, dtype=np.float32)
    put = there_already if solved else lambda part: jax.device_put(single(part))
    core = jax.device_put(single(model.core)) if model.free_core.size else None
    factors, biases = map(put, model.factors), map(put, model.mode_biases)
    return Parameters(tuple(factors), tuple(biases), core, jax.device_put(np.float32(model.mean)))


class Chunks:
    """Entries sorted by a mode, in chunks: on the device, or in the host's memory.

    The ``size`` of a chunk is a public number, whatever the entries: one program computes what each of
    them adds. ``presents`` are the entries in each chunk.
    """

    def __init__(
        self, entries: ByMode, mode: int, resident: bool, size: int, in_runs: bool = True
    ) -> None:
        self.mode, self._entries, self.resident, self._size = mode, entries, resident, size
        levels, runs, n = entries.starts.shape[0] - 1, size // RUN, entries.values.shape[0]
        self._most_runs = levels + runs + 2 if in_runs and levels < _FEW_LEVELS * runs else 0
        self._firsts = range(0, n, size)
        self.presents = [min(size, n - first) for first in self._firsts]
        self._starts = jax.device_put(entries.starts)
        self._kept = [self._chunk(first) for first in self._firsts] if resident else []

    def __iter__(self) -> Iterator[Chunk]:
        """Chunk after chunk. A copy is under way while the chunk before is worked on."""
        if self.resident:
            yield from self._kept
            return
        ahead = None
        for first in self._firsts:
            behind, ahead = ahead, self._chunk(first)
            if behind is not None:
                yield behind
        if ahead is not None:
            yield ahead

    def _chunk(self, first: int) -> Chunk:
        entries, here = self._entries, slice(first, first + self._size)
        others = self._put(entries.others[:, here])
        weights = self._put(entries.weights[here], np.float32) if entries.weights.size else None
        values = self._put(entries.values[here], np.float32)
        present = self.presents[first // self._size]
        levels, runs, level_of = _runs(
            self._starts, first, present, size=self._size, most=self._most_runs
        )
        there = jax.device_put(np.int32(present))
        return Chunk(others, values, weights, levels, runs, level_of, there)

    def _put(self, array: Array, dtype: Any = np.int32) -> Any:
        if array.shape[-1] == self._size:
            return jax.device_put(np.ascontiguousarray(array, dtype))
        filled = np.zeros((*array.shape[:-1], self._size), dtype)
        filled[..., : array.shape[-1]] = array
        return jax.device_put(filled)


@partial(jax.jit, static_argnames=("size", "most"))
def _runs(starts: Any, first: Any, present: Any, *, size: int, most: int) -> tuple[Any, Any, Any]:
    """Each entry's level and the number of its run, and the level of each run."""
    here = jnp.minimum(jnp.arange(size), present - 1)
    level = (jnp.searchsorted(starts, here + first, side="right") - 1).astype(jnp.int32)
    if not most:
        return level, None, None
    begins = jnp.concatenate([jnp.ones(1, bool), level[1:] != level[:-1]])
    begins = begins | ((here + first - starts[level]) % RUN == 0)
    runs = jnp.cumsum(begins & (jnp.arange(size) < present), dtype=jnp.int32) - 1
    return level, runs, jnp.zeros(most, jnp.int32).at[runs].set(level)


def bytes_there(entries: int, order: int, weighted: bool = False) -> int:
    """That entries sorted by a mode take on the device."""
    return entries * 4 * (order + 2 + weighted)


# -- one chunk, under a jit -----------------------------------------------------------------------


def index_of(chunk: Chunk, lead: int) -> list[Any]:
    """Levels of the entries, mode after mode; they are sorted by the mode ``lead``."""
    index = list(chunk.others)
    index.insert(lead, chunk.levels)
    return index


def is_there(chunk: Chunk) -> Any:
    return jnp.arange(chunk.values.shape[0]) < chunk.present


def folded(terms: Any) -> Any:
    """Sums over the second axis, the second half added to the first until one is left.

    An entry's sum then is the same wherever in a chunk it is, which a reduction or a product of matrices
    does not promise: they may go through edges of a chunk in another order. So one entry more or less
    changes what no other adds.
    """
    width = 1 << (terms.shape[1] - 1).bit_length()
    if width > terms.shape[1]:
        filled = [(0, 0)] * terms.ndim
        filled[1] = (0, width - terms.shape[1])
        terms = jnp.pad(terms, filled)
    while width > 1:
        width //= 2
        terms = terms[:, :width] + terms[:, width:]
    return terms[:, 0]


def designs(p: Parameters, index: list[Any], block: int) -> Any:
    """Per entry what is multiplied by the block's row: of a mode, or for the core by all its entries."""
    rows = [p.factors[m][levels] for m, levels in enumerate(index) if m != block]
    # A wish that they are made once, and not anew from the rows wherever they are used: a compiler may
    # do otherwise, and nothing but time depends on it.
    return jax.lax.optimization_barrier(_contracted(p, rows, block))


def _contracted(p: Parameters, rows: list[Any], block: int) -> Any:
    if p.core is None:
        product = rows[0]
        for each in rows[1:]:
            product = product * each
        return product
    spread = rows[0]
    for each in rows[1:]:
        spread = (spread[:, :, None] * each[:, None, :]).reshape(each.shape[0], -1)
    if block == CORE:
        return spread
    core = jnp.moveaxis(p.core, block, -1).reshape(-1, p.core.shape[block])
    return folded(spread[:, :, None] * core[None])


def design_variances(p: Parameters, variances: Variances, index: list[Any], block: int) -> Any:
    """Variances of a mode's designs, or of the core's: exact but for those of a mode beside a core.

    These are of the first order: each row's coordinate, and each entry of the core, by itself.
    """
    if p.core is not None and block != CORE:
        return _by_derivatives(p, variances, index, block)
    first, second = [], []
    for m, levels in enumerate(index):
        if m != block:
            first.append(p.factors[m][levels] ** 2)
            second.append(first[-1] + variances.rows[m][levels])
    return _contracted(p, second, block) - _contracted(p, first, block)


def _by_derivatives(p: Parameters, variances: Variances, index: list[Any], block: int) -> Any:
    rows = {m: p.factors[m][levels] for m, levels in enumerate(index) if m != block}
    total = _with_core(variances.core, {m: each**2 for m, each in rows.items()}, (block,))
    for m in rows:
        others = {n: each for n, each in rows.items() if n != m}
        derivative = _with_core(p.core, others, (block, m))
        total = total + folded((derivative**2 * variances.rows[m][index[m]][:, None]).swapaxes(1, 2))
    return total


def _with_core(core: Any, rows: dict[int, Any], left: tuple[int, ...]) -> Any:
    """The core times the rows of some modes, entry by entry; the other modes are left, in order.

    Without rows it is the same for all entries, and there once.
    """
    if not rows:
        return jnp.transpose(core, left)[None]
    modes = string.ascii_letters[: core.ndim]
    terms = [modes, *(f"Z{modes[m]}" for m in rows)]
    out = "Z" + "".join(modes[m] for m in left)
    return jnp.einsum(f"{','.join(terms)}->{out}", core, *rows.values(), precision="highest")


def explained(p: Parameters, index: list[Any], design: Any, block: int) -> Any:
    """Values without mean and biases."""
    row = p.core.reshape(1, -1) if block == CORE else p.factors[block][index[block]]
    return folded(design * row)


def bias_sum(p: Parameters, index: list[Any]) -> Any:
    return sum(each[levels] for each, levels in zip(p.biases, index, strict=True))


def add_by_level(out: Any, chunk: Chunk, terms: Any) -> Any:
    """``out`` and the sums of the entries' terms by level, where there are runs through these."""
    if chunk.runs is None:
        return out.at[chunk.levels].add(terms, indices_are_sorted=True)
    shape = (chunk.level_of.shape[0], *terms.shape[1:])
    by_run = jnp.zeros(shape, terms.dtype).at[chunk.runs].add(terms, indices_are_sorted=True)
    return out.at[chunk.level_of].add(by_run)
