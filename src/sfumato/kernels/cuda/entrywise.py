"""Entries and models as kernels by hand see them: rows of all modes lie one below the other.

A block of threads works on tiles of neighbouring entries in steps, between which it waits for all of its
threads. Neighbouring threads gather neighbouring columns of designs, so that rows are read whole, and
put them where all of the block see them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numba import cuda

from sfumato.kernels.cuda.arrays import Memory, view
from sfumato.kernels.jax.entrywise import Chunks, bytes_there

if TYPE_CHECKING:
    from sfumato.kernels.jax.entrywise import Chunk
    from sfumato.models.multilinear import Multilinear
    from sfumato.sites.memory import ByMode

TILE = 128  # entries
TILES = 4  # that a block works on one after the other
CHUNK = 1 << 24  # entries at a time: nothing is made of them that would take memory
_AT_ONCE = 3  # chunks on the device: one is summed, the next is there, and one more is on its way


def width_of(rank: int) -> int:
    """A rank filled up to a power of two: threads then share out rows evenly."""
    return max(4, 1 << (rank - 1).bit_length())


class Seen(NamedTuple):
    """A chunk's arrays for a kernel."""

    others: Any
    values: Any
    levels: Any
    present: int

    @property
    def blocks(self) -> int:
        return -(-self.present // (TILE * TILES))


class Entries:
    """Entries sorted by a mode, as kernels see them: looked at once where they stay on the device.

    Chunks are no larger than the entries: kernels are the same for any size, and what an entry adds is
    made by one thread of it. ``memory`` is that of sums by any mode.
    """

    def __init__(self, entries: ByMode, mode: int, resident: bool, memory: Memory) -> None:
        self.memory = memory
        size = max(1, min(CHUNK, entries.values.shape[0]))
        self._chunks = Chunks(entries, mode, resident, size, in_runs=False)
        self._kept = list(map(_seen, self._chunks, self._chunks.presents)) if resident else []

    def __iter__(self) -> Iterator[Seen]:
        if self._chunks.resident:
            yield from self._kept
            return
        for chunk, present in zip(self._chunks, self._chunks.presents, strict=True):
            cuda.synchronize()  # those who read what was seen before; the next copy has begun by now
            seen = _seen(chunk, present)
            yield seen
        cuda.synchronize()


def _seen(chunk: Chunk, present: int) -> Seen:
    others, values, levels = map(view, (chunk.others, chunk.values, chunk.levels))
    return Seen(others, values, levels, present)


def bytes_streamed(order: int) -> int:
    """That chunks take on the device, where they come one after the other."""
    return _AT_ONCE * bytes_there(CHUNK, order)


class Parameters(NamedTuple):
    """A CP model; ``firsts``: first rows of all modes but one, and then of that one."""

    rows: Any
    biases: Any
    mean: np.float32
    firsts: Any


def parameters(model: Multilinear, mode: int, entries: Entries) -> Parameters:
    """The model for sums by a mode, in single precision, its rows filled up to :func:`width_of`."""
    rank, held = model.ranks[mode], entries.memory.held
    rows = held("rows", (model.rows.shape[0], width_of(rank)), np.float32)
    biases = held("biases", model.biases.shape, np.float32)
    firsts = [first for m, first in enumerate(model.offsets) if m != mode] + [model.offsets[mode]]
    begins = held("firsts", (len(firsts),), np.int32).put(np.array(firsts, np.int32))
    put = rows.put(model.rows[:, :rank]), biases.put(model.biases), np.float32(model.mean)
    return Parameters(*put, begins)
