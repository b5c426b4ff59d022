"""Rows that their owners solve, on a GPU: as ``solvers/least_squares/own_rows.py`` has them solved here.

One block of threads has one owner: it adds up products of the owner's designs, targets and ones, two by
two, each of them by one thread in the order of the entries, and solves the row and its bias. All in
double precision, and a function of this owner's entries alone.
"""

from __future__ import annotations

import math
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numba import cuda

from sfumato.kernels.cuda.arrays import Memory, there_once
from sfumato.kernels.cuda.designs import design, kind_of, parameters, placed
from sfumato.kernels.cuda.indices import ONE, ZERO, unsigned
from sfumato.kernels.cuda.systems import solver
from sfumato.types import Array

if TYPE_CHECKING:
    from sfumato.models.multilinear import Multilinear
    from sfumato.sites.memory import ByMode

THREADS, TILE = 128, 32  # of a block, and entries that it looks at together
_RESOLUTION = 4 * float(np.finfo(np.float64).eps)


class Expected(NamedTuple):
    """What rows are expected to be: see :class:`sfumato.models.own_prior.OwnPrior`.

    ``constant`` is added to the diagonal of the system, with ``mean`` as prior mean, and ``shift`` is a
    matrix as if of entries. ``doubts`` are of all levels, mode after mode. What is None is not there.
    """

    constant: Array
    shift: Array
    mean: float
    pull: Array | None
    means: Array | None
    doubts: Array | None
    scatter: float
    bias_precision: float


@cache
def _kernel(order: int, ranks: tuple[int, ...], lead: int, rank: int, threads: int, tile: int) -> Any:
    column_of, place, solve = design(order, ranks, lead), placed(order, lead), solver(rank, 2, threads)
    size = rank + 2  # a target and a one beside the design
    products = size * (size + 1) // 2
    share = -(-products // threads)
    tiled, squared, system = (tile, size + 1), (size, size), (rank, size + 1)
    columns, of_target, of_one = unsigned(rank), unsigned(rank), unsigned(rank + 1)
    all_threads, at_once, modes_there, own = map(unsigned, (threads, tile, order, lead))

    @cuda.jit
    def kernel(  # type: ignore[no-untyped-def]
        rows, biases, core, mean, modes, others, values, starts, constant, shift, prior, pulled, pull,
        meant, means, doubted, doubts, scatter, bias_precision, out, out_biases,
    ):  # fmt: skip
        thread, owner = unsigned(cuda.threadIdx.x), unsigned(cuda.blockIdx.x)
        lines = cuda.shared.array(tiled, np.float64)
        weights = cuda.shared.array(tile, np.float64)
        sums = cuda.shared.array(squared, np.float64)
        a = cuda.shared.array(system, np.float64)
        expected = cuda.shared.array(rank, np.float64)
        smallest = cuda.shared.array(rank, np.float64)
        index = cuda.local.array(order, np.uint64)
        left = cuda.local.array(share, np.uint64)
        right = cuda.local.array(share, np.uint64)
        total = cuda.local.array(share, np.float64)
        begin, end = unsigned(starts[owner]), unsigned(starts[owner + ONE])
        row = unsigned(modes[own]) + owner
        for k in range(share):  # which products this thread adds up
            i, rest = 0, min(cuda.threadIdx.x + k * threads, products - 1)
            while rest >= size - i:
                rest -= size - i
                i += 1
            left[k], right[k], total[k] = unsigned(i), unsigned(i + rest), 0.0
        for first in range(begin, end, at_once):
            number = min(at_once, end - first)
            cuda.syncthreads()  # what was there has been added up
            for k in range(thread, number * columns, all_threads):
                line, column = k // columns, k % columns
                place(modes, others, first + line, row, index)
                lines[line, column] = column_of(rows, core, index, column)
            for e in range(thread, number, all_threads):
                place(modes, others, first + e, row, index)
                target = np.float64(values[first + e]) - mean
                doubt = 0.0
                for m in range(modes_there):
                    if m != own:
                        target -= biases[index[m]]
                    if doubted:
                        doubt += doubts[index[m]]
                lines[e, of_target], lines[e, of_one] = target, 1.0
                weights[e] = scatter / (scatter + doubt)
            cuda.syncthreads()
            for k in range(share):
                for e in range(number):
                    total[k] += weights[e] * lines[e, left[k]] * lines[e, right[k]]
        for k in range(share):
            sums[left[k], right[k]] = total[k]
            sums[right[k], left[k]] = total[k]
        cuda.syncthreads()
        # Means of the row, and the system of the rest: what the entries say, and their designs.
        noise, counts = 1 / scatter, sums[of_one, of_one]
        for r in range(thread, columns, all_threads):
            expected[r] = means[owner, r] if meant else 0.0
            if pulled and counts > 0:
                expected[r] += pull[ZERO, r] * (sums[r, of_one] / counts - pull[ONE, r])
        cuda.syncthreads()
        for r in range(thread, columns, all_threads):
            known = 0.0
            for c in range(columns):
                a[r, c] = noise * (sums[r, c] + shift[r, c])
                known += (sums[r, c] + shift[r, c]) * expected[c]
            a[r, r] += constant[r]
            smallest[r] = _RESOLUTION * a[r, r]
            a[r, of_target] = noise * (sums[r, of_target] - known) + constant[r] * prior
            a[r, of_one] = noise * sums[r, of_one]
        solve(a, smallest, cuda.threadIdx.x)
        # The bias is one more column: eliminate the row, solve for it, put it back.
        bias = 0.0
        if bias_precision < math.inf:
            rest, schur = noise * sums[of_target, of_one], noise * counts + bias_precision
            for r in range(columns):
                along = noise * sums[r, of_one]
                rest -= along * (expected[r] + a[r, of_target])
                schur -= along * a[r, of_one]
            bias = rest / schur
        if thread == ZERO:
            out_biases[owner] = bias
        for r in range(thread, columns, all_threads):
            out[owner, r] = a[r, of_target] - bias * a[r, of_one] + expected[r]

    return kernel


def solve_own(
    model: Multilinear, expected: Expected, entries: ByMode, lead: int, memory: Memory
) -> tuple[Array, Array]:
    """Rows and biases of the mode ``lead``, which entries are sorted by."""
    rank, owners, held = model.ranks[lead], model.shape[lead], memory.held
    given = parameters(model, memory)
    laid = [there_once(part) for part in (entries.others, entries.values, entries.starts)]
    constant = held("constant", (rank,), np.float64).put(expected.constant)
    shift = held("shift", (rank, rank), np.float64).put(expected.shift)
    pull = _flagged(memory, "pull", expected.pull, 2)
    means = _flagged(memory, "means", expected.means, 2)
    doubts = _flagged(memory, "doubts", expected.doubts, 1)
    out = held("rows found", (owners, rank), np.float64)
    biases = held("biases found", (owners,), np.float64)
    kernel = _kernel(model.order, kind_of(model), lead, rank, THREADS, TILE)
    kernel[owners, THREADS](
        *given, *laid, constant, shift, expected.mean, *pull, *means, *doubts, expected.scatter,
        expected.bias_precision, out.seen, biases.seen,
    )  # fmt: skip
    return out.fetched(), biases.fetched()


def _flagged(memory: Memory, name: str, part: Array | None, dimensions: int) -> tuple[bool, Any]:
    """Whether it is there, and an array that kernels compile for in any case."""
    there = np.zeros((1,) * dimensions) if part is None else part
    return part is not None, memory.held(name, there.shape, np.float64).put(there)
