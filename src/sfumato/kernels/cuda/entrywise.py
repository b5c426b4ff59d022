"""Entries and models as kernels by hand see them: rows of all modes lie one below the other.

A block of threads works on tiles of neighbouring entries in steps, between which it waits for all of its
threads. Neighbouring threads gather neighbouring columns of designs, so that rows are read whole, and
put them where all of the block see them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numba import config, cuda

from sfumato.kernels.jax import double_precision
from sfumato.kernels.jax.entrywise import Chunks
from sfumato.types import Array

if TYPE_CHECKING:
    from sfumato.kernels.jax.entrywise import Chunk
    from sfumato.models.multilinear import Multilinear
    from sfumato.sites.memory import ByMode

_SIMULATED = bool(getattr(config, "ENABLE_CUDASIM", False))
TILE = 128  # entries
TILES = 4  # that a block works on one after the other
CHUNK = 1 << 24  # entries at a time: nothing is made of them that would take memory


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
    """Entries sorted by a mode, as kernels see them: looked at once where they stay on the device."""

    def __init__(self, entries: ByMode, mode: int, resident: bool) -> None:
        size = max(1, min(CHUNK, entries.values.shape[0]))
        self._chunks = Chunks(entries, mode, resident, size)
        self._kept = [_seen(chunk) for chunk in self._chunks] if resident else []

    def __iter__(self) -> Iterator[Seen]:
        if self._chunks.resident:
            yield from self._kept
            return
        for chunk in self._chunks:
            yield _seen(chunk)
            cuda.synchronize()  # its memory is used again


def _seen(chunk: Chunk) -> Seen:
    others, values, levels = map(view, (chunk.others, chunk.values, chunk.levels))
    return Seen(others, values, levels, int(chunk.present))


def view(array: Any) -> Any:
    """JAX' array for a kernel, without a copy where there is a device."""
    if _SIMULATED:
        return cuda.to_device(np.array(array))
    return cuda.as_cuda_array(jax.block_until_ready(array))


def there(array: Array) -> Any:
    """An array of the host for a kernel.

    All memory of the device is JAX', which has taken it beforehand: to ask the device for some takes
    longer than most sums.
    """
    return view(jax.device_put(array))


class Written(NamedTuple):
    """Zeros that a kernel adds to: as it sees them, and as JAX does."""

    seen: Any
    kept: Any

    def done(self) -> Any:
        """JAX' array, once all kernels have ended."""
        cuda.synchronize()
        if _SIMULATED:
            with double_precision():
                return jax.device_put(self.seen.copy_to_host())
        return self.kept


def zeros(shape: tuple[int, ...], dtype: Any) -> Written:
    """JAX knows nothing of what is written: these are fresh, nobody else's, and read once all is."""
    with double_precision():
        made = jnp.zeros(shape, dtype)
    return Written(view(made), made)


class Parameters(NamedTuple):
    """A CP model on the device; ``firsts``: first rows of all modes but one, and then of that one."""

    rows: Any
    biases: Any
    mean: np.float32
    firsts: Any


def parameters(model: Multilinear, mode: int) -> Parameters:
    """The model for sums by a mode, in single precision, its rows filled up to :func:`width_of`."""
    rank, width = model.ranks[mode], width_of(model.ranks[mode])
    rows: Array = model.rows[:, :width]
    if rows.shape[1] < width or rank < width or rows.dtype != np.float32:
        rows = np.zeros((model.rows.shape[0], width), np.float32)
        rows[:, :rank] = model.rows[:, :rank]
    firsts = [first for m, first in enumerate(model.offsets) if m != mode] + [model.offsets[mode]]
    biases = there(model.biases.astype(np.float32))
    first_rows = there(np.array(firsts, np.int32))
    return Parameters(there(np.ascontiguousarray(rows)), biases, np.float32(model.mean), first_rows)
