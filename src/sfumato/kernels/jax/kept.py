"""What a device has of arrays of the host, for as long as these are there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar
from weakref import ref

import jax
import numpy as np

from sfumato.types import Array

_kept: dict[int, tuple[ref[Array], dict[Any, Any]]] = {}
_T = TypeVar("_T")


def kept_for(array: Array, key: object, make: Callable[[], _T]) -> _T:
    """What is made for an array: once, and for as long as the host has it."""
    number = id(array)
    known = _kept.get(number)
    if known is None or known[0]() is not array:
        known = _kept[number] = ref(array, lambda _: _kept.pop(number, None)), {}
    made = known[1]
    if key not in made:
        made[key] = make()
    kept: _T = made[key]
    return kept


def let_go() -> None:
    """Of all that is kept: a fit is over. Another one at the same time makes anew what it needs."""
    _kept.clear()


class _Copy(NamedTuple):
    """The same numbers on the host, where nobody writes to them, and on the device."""

    here: Array
    there: Any


def there_already(part: Array) -> Any:
    """A part of an array on the device, in single precision.

    As it was put or made there last, where it has the same numbers still: to look is less than to copy.
    """
    copies = _copies_of(part)
    if copies is None:
        return jax.device_put(np.asarray(part, np.float32))
    if not copies or not np.array_equal(copies[0].here, part):
        here = np.array(part, np.float32)
        copies[:] = [_Copy(here, jax.device_put(here))]
    return copies[0].there


def remember(part: Array, here: Array, there: Any) -> None:
    """That a part of an array, to which ``here`` was written, is on the device."""
    copies = _copies_of(part)
    if copies is not None:
        copies[:] = [_Copy(here, there)]


def _copies_of(part: Array) -> list[_Copy] | None:
    """Of a part of memory there is one copy at most; None where none is kept."""
    root = root_of(part)
    if root is None:
        return None
    place = part.__array_interface__["data"][0], part.shape, part.strides
    return kept_for(root, place, list[_Copy])


def root_of(part: Array) -> Array | None:
    """The array whose memory this is a part of; None where it is no array's."""
    root = part if part.base is None else part.base
    return root if isinstance(root, np.ndarray) else None
