"""Small systems of equations, each solved by one block of threads in memory that they share."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

from numba import cuda


@cache
def solver(rank: int, sides: int, threads: int) -> Any:
    """Solves a positive definite system of so many rows, with right-hand sides in the columns after it.

    Of the matrix what is on and above the diagonal is read; solutions take the place of their sides. A
    pivot below its ``smallest`` is rounding error of a nearly singular matrix and is raised to it. To
    be called by all threads of a block, in any precision.
    """
    width = rank + sides

    @cuda.jit(device=True)
    def solve(a, smallest, thread):  # type: ignore[no-untyped-def]
        for j in range(rank):
            cuda.syncthreads()
            pivot = max(a[j, j], smallest[j])
            cuda.syncthreads()  # all have read it
            for c in range(j + thread, width, threads):
                a[j, c] = (pivot if c == j else a[j, c]) / math.sqrt(pivot)
            cuda.syncthreads()
            for k in range(thread, (rank - 1 - j) * width, threads):
                i, c = j + 1 + k // width, k % width
                if c >= i:
                    a[i, c] -= a[j, i] * a[j, c]
        cuda.syncthreads()
        for side in range(rank + thread, width, threads):
            for k in range(rank):
                j = rank - 1 - k
                rest = a[j, side]
                for c in range(j + 1, rank):
                    rest -= a[j, c] * a[c, side]
                a[j, side] = rest / a[j, j]
        cuda.syncthreads()

    return solve
