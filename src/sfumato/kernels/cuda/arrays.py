"""Arrays of the host as kernels by hand read them, and those that they write to.

All memory of the device is JAX', which has taken it beforehand: to ask the device for some takes longer
than most sums.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any, NamedTuple, TypeVar
from weakref import ref

import jax
import jax.numpy as jnp
import numpy as np
from numba import config, cuda

from sfumato.kernels.jax import double_precision, within_memory
from sfumato.types import Array

SIMULATED = bool(getattr(config, "ENABLE_CUDASIM", False))


def view(array: Any) -> Any:
    """JAX' array for a kernel, without a copy where there is a device."""
    if SIMULATED:
        return cuda.to_device(np.array(array))
    return cuda.as_cuda_array(jax.block_until_ready(array))


def there(*arrays: Array) -> list[Any]:
    """Arrays of the host for a kernel, in their own precision."""
    with within_memory(), double_precision():
        return [view(array) for array in jax.block_until_ready(jax.device_put(arrays))]


_kept: dict[int, tuple[ref[Array], dict[Any, Any]]] = {}
_T = TypeVar("_T")


def kept_for(array: Array, key: object, make: Callable[[], _T]) -> _T:
    """What is made of an array that nobody writes to: once, and for as long as the host has it."""
    number = id(array)
    if number not in _kept or _kept[number][0]() is not array:
        _kept[number] = ref(array, lambda _: _kept.pop(number, None)), {}
    made = _kept[number][1]
    if key not in made:
        made[key] = make()
    kept: _T = made[key]
    return kept


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
