"""Arrays of the host as kernels by hand read them, and those that they write to.

All memory of the device is JAX', which has taken it beforehand: to ask the device for some takes longer
than most sums. What one sum after the other needs is held, with a page-locked twin on the host: to make
new memory, and to copy from what is not locked, takes longer than most sums too.
"""

from __future__ import annotations

from functools import cached_property
from math import prod
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numba import config, cuda
from numba.cuda.cudadrv.driver import CudaAPIError

from sfumato.kernels.jax import double_precision, within_memory
from sfumato.kernels.jax.kept import kept_for
from sfumato.kernels.numba.threads import share
from sfumato.types import Array

SIMULATED = bool(getattr(config, "ENABLE_CUDASIM", False))
LINED_UP = None if SIMULATED else 16  # bytes: of arrays that are read four numbers at a time
_THREADS, _CLEARING = 128, 1024  # of a block, and blocks that clear memory


def view(array: Any) -> Any:
    """JAX' array for a kernel, without a copy where there is a device."""
    if SIMULATED:
        return cuda.to_device(np.array(array))
    return cuda.as_cuda_array(jax.block_until_ready(array))


def there(*arrays: Array) -> list[Any]:
    """Arrays of the host for a kernel, in their own precision."""
    with within_memory(), double_precision():
        return [view(array) for array in jax.block_until_ready(jax.device_put(arrays))]


def there_once(array: Array) -> Any:
    """Such an array for a kernel."""
    return kept_for(array, "itself", lambda: there(array)[0])


class Written(NamedTuple):
    """Zeros that a kernel adds to: as it sees them, and as JAX does.

    JAX does not know that kernels still read what they were given (``reads``), and would use its memory
    again: that is held until they have ended.
    """

    seen: Any
    kept: Any
    reads: Any

    def done(self) -> Any:
        """JAX' array, once all kernels have ended."""
        cuda.synchronize()
        if SIMULATED:
            with double_precision():
                return jax.device_put(self.seen.copy_to_host())
        return self.kept

    def on_host(self, shape: tuple[int, ...]) -> Array:
        """The same as an array of the host."""
        return np.array(self.done())[: prod(shape)].reshape(shape)


def zeros(shape: tuple[int, ...], dtype: Any, reads: Any = ()) -> Written:
    """JAX knows nothing of what is written: these are fresh, nobody else's, and read once all is."""
    with within_memory(), double_precision():
        made = jnp.zeros(shape, dtype)
    return Written(view(made), made, reads)


# -- memory that is held ------------------------------------------------------------------------------


@cuda.jit
def _clear(flat):  # type: ignore[no-untyped-def]
    for k in range(cuda.grid(1), flat.shape[0], cuda.gridsize(1)):
        flat[k] = 0


class Held:
    """An array on the device, and its twin on the host that it is copied from and to.

    One use after the other: what is put there, or fetched, has been copied when the call is over.
    """

    def __init__(self, shape: tuple[int, ...], dtype: Any) -> None:
        self._shape, self._dtype = shape, np.dtype(dtype)
        with within_memory(), double_precision():
            self._made = jnp.zeros(prod(shape), dtype)
            self._flat = view(self._made)
        self.seen = self._flat.reshape(shape)

    @cached_property
    def _twin(self) -> Array:
        try:
            made: Array = cuda.pinned_array(self._shape, self._dtype)
        except (MemoryError, CudaAPIError):  # as much cannot be locked: copies are slower then
            made = np.empty(self._shape, self._dtype)
        made[:] = 0
        return made

    def put(self, array: Array) -> Any:
        """A copy on the device, in its precision; what the array does not have of it is zero."""
        here = self._twin[tuple(slice(size) for size in array.shape)]
        if array.shape != self._shape:
            self._twin[array.shape[0] :] = 0
            self._twin[:, array.shape[1] :] = 0
        _copy(array, here)
        self._flat.copy_to_device(self._twin.reshape(-1))
        return self.seen

    def cleared(self) -> Any:
        """Zeros on the device, once kernels before this have ended."""
        blocks = -(-prod(self._shape) // _THREADS)
        _clear[max(1, min(_CLEARING, blocks)), _THREADS](self._flat)
        return self.seen

    def fetched(self) -> Array:
        """What is there once all kernels have ended."""
        self._flat.copy_to_host(self._twin.reshape(-1))
        found = np.empty(self._shape, self._dtype)
        _copy(self._twin, found)
        return found

    def of_jax(self) -> Any:
        """A copy that is JAX', which takes it for granted that nobody writes to what it has."""
        with double_precision():
            made = jax.device_put(self._flat.copy_to_host()) if SIMULATED else jnp.copy(self._made)
            return jax.block_until_ready(made.reshape(self._shape))


class Memory:
    """What is held for the sums of one site, by name: of one sum at a time, and so by one thread.

    Kernels read parameters more than once, and rest on nobody writing to them meanwhile.
    """

    def __init__(self) -> None:
        self._held: dict[Any, Held] = {}

    def held(self, name: str, shape: tuple[int, ...], dtype: Any) -> Held:
        """Memory of this name, shape and kind: the same at every call, with what was left there."""
        key = name, shape, np.dtype(dtype)
        if key not in self._held:
            self._held[key] = Held(shape, dtype)
        return self._held[key]


def _copy(source: Array, target: Array) -> None:
    def some(first: int, last: int) -> None:
        np.copyto(target[first:last], source[first:last], casting="same_kind")

    share(source.shape[0], source.size, some)
