"""Rows that normal equations have for solutions, on a GPU: as ``kernels/numba/normal.py`` solves them.

The sums are JAX', made by ``kernels/jax/normal.py``. One block of threads solves one row, in memory that
its threads share: a library that goes through all matrices in steps moves each of them many times.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from numba import cuda

from sfumato.kernels.cuda.arrays import Memory, view
from sfumato.kernels.cuda.systems import solver
from sfumato.kernels.jax.kept import kept_for, remember, root_of
from sfumato.types import Array

if TYPE_CHECKING:
    from sfumato.kernels.numba.normal import NormalEquations, Ridge

THREADS = 64
_RESOLUTION, _ONE = np.float32(4 * np.finfo(np.float32).eps), np.float32(1)


@cache
def _kernel(rank: int, threads: int) -> Any:
    solve, system, of_target, of_one = solver(rank, 2, threads), (rank, rank + 3), rank, rank + 1

    @cuda.jit
    def kernel(  # type: ignore[no-untyped-def]
        gram, rhs, design_sum, target_sum, variance, counts, constant, how, biased, rows, biases, along,
        below,
    ):  # fmt: skip
        thread, i = cuda.threadIdx.x, cuda.blockIdx.x
        a = cuda.shared.array(system, np.float32)
        smallest = cuda.shared.array(rank, np.float32)
        per_entry, prior, bias_constant, bias_per_entry, noise = how[0], how[1], how[2], how[3], how[4]
        count = counts[i]
        for k in range(thread, rank * rank, threads):
            a[k // rank, k % rank] = noise * gram[i, k // rank, k % rank]
        cuda.syncthreads()
        for r in range(thread, rank, threads):
            precision = constant[r] + per_entry * count
            a[r, r] += precision + noise * variance[i, r]
            smallest[r] = _RESOLUTION * a[r, r]
            along[i, r] = _ONE / a[r, r]
            a[r, of_target] = noise * rhs[i, r] + precision * prior
            a[r, of_one] = noise * design_sum[i, r]
        solve(a, smallest, thread)
        # The bias is one more column: eliminate the row, solve for it, put it back.
        bias = np.float32(0)
        diagonal = _ONE
        if biased:
            diagonal = noise * count + bias_constant + bias_per_entry * count
            rest, schur = noise * target_sum[i], diagonal
            for r in range(rank):
                rest -= noise * design_sum[i, r] * a[r, of_target]
                schur -= noise * design_sum[i, r] * a[r, of_one]
            bias = rest / schur
        if thread == 0:
            biases[i], below[i] = bias, _ONE / diagonal
        for r in range(thread, rank, threads):
            rows[i, r] = a[r, of_target] - bias * a[r, of_one]

    return kernel


def solve_rows(
    sums: NormalEquations,
    ridge: Ridge,
    rank: int,
    rows: Array,
    biases: Array,
    row_variances: Array,
    bias_variances: Array,
) -> None:
    """Write the penalised solution of each row, and keep it on the device for the next sums."""
    levels, biased = rows.shape[0], bool(np.isfinite(ridge.bias_constant))
    root = root_of(rows)
    held = (Memory() if root is None else kept_for(root, "memory", Memory)).held
    shapes = {"rows": (levels, rank), "biases": (levels,), "along": (levels, rank), "below": (levels,)}
    solved = {name: held(f"solved {name}", shape, np.float32) for name, shape in shapes.items()}
    constant = held("constant", (rank,), np.float32).put(ridge.constant[:rank])
    numbers = np.array([*ridge[1:3], ridge.bias_constant if biased else 0.0, *ridge[4:]])
    how = held("how", numbers.shape, np.float32).put(numbers)
    _kernel(rank, THREADS)[levels, THREADS](
        *map(view, map(jax.device_put, sums)),
        constant,
        how,
        biased,
        *(each.seen for each in solved.values()),
    )
    parts = {"rows": rows[:, :rank], "biases": biases}
    if row_variances.shape[0]:
        parts["along"] = row_variances[:, :rank]
        if biased:
            parts["below"] = bias_variances
    for name, part in parts.items():
        found = solved[name].fetched()
        part[:] = found
        remember(part, found, solved[name].of_jax())
