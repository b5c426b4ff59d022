"""Kernels by hand for a GPU of NVIDIA's, on numba-cuda: the extra ``pip install 'sfumato[gpu]'``.

For CP models of small rank, where JAX makes several passes over what one pass can keep in registers. The
same source runs on numba's simulator, without a device: ``NUMBA_ENABLE_CUDASIM=1``.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import numpy as np

MOST_RANK = 32  # of models: rows and squares of designs fit what threads of a block share
MOST_COLUMNS = 128  # of a core, of which units add up products: a thread of a block has one


@cache
def installed() -> bool:
    """Whether numba-cuda is there and finds a device."""
    if find_spec("numba_cuda") is None:
        return False
    from numba import cuda

    _load_for_newer_numpy()
    return bool(cuda.is_available())


def _load_for_newer_numpy() -> None:
    """Load the part of numba-cuda 0.30 that looks up a name which NumPy 2.5 has no more."""
    if hasattr(np, "row_stack"):
        return
    numpy: Any = np
    numpy.row_stack = _row_stack
    try:
        import_module("numba.cuda.np.arrayobj")
    finally:
        del numpy.row_stack


def _row_stack(rows: Any) -> Any:
    return np.vstack(rows)
