"""Between Arrow and NumPy, without pandas.

Arrow's own ``pa.array``, ``pa.scalar`` and ``to_numpy`` import pandas, where it is installed, to ask
whether they were given one of its objects: that takes longer than to read a small file.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray


def from_numpy(numbers: NDArray[Any]) -> pa.Array:
    """Numbers as an Arrow array of the same memory."""
    own = np.ascontiguousarray(numbers)
    return pa.Array.from_buffers(pa.from_numpy_dtype(own.dtype), own.size, [None, pa.py_buffer(own)])


def filled(array: pa.Array, number: float) -> pa.Array:
    """The numbers of an array, with this one for null."""
    if not array.null_count:
        return array
    return array.fill_null(from_numpy(np.array([number], array.type.to_pandas_dtype()))[0])


def to_numpy(array: pa.Array) -> NDArray[Any]:
    """Numbers of an array without nulls, in the same memory; anything else as objects."""
    kind = array.type
    if not (pa.types.is_integer(kind) or pa.types.is_floating(kind)):
        objects = np.empty(len(array), object)
        objects[:] = array.to_pylist()
        return objects
    dtype = np.dtype(kind.to_pandas_dtype())
    if not len(array):
        return np.empty(0, dtype)
    return np.frombuffer(array.buffers()[1], dtype, len(array), array.offset * dtype.itemsize)
