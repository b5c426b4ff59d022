"""Normal equations of the rows of one mode, and their solution.

For a row a of mode m with entries e, designs d_e and targets y_e (the value less mean and the other
modes' biases), least squares in (a, b) with y_e ~ d_e . a + b needs the sums

    gram = sum d_e d_e',  rhs = sum y_e d_e,  design_sum = sum d_e,  target_sum = sum y_e

and, where the other parameters are uncertain, ``variance``: the sum of the designs' variances,
which adds to the diagonal of the Gram matrix. Where entries have weights, each term of every sum is
multiplied by its entry's weight.
"""

from __future__ import annotations

from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from sfumato.kernels.numba.compiler import inlined, kernel
from sfumato.kernels.numba.entrywise import row_width
from sfumato.kernels.numba.moments import design_moments, moments_workspace
from sfumato.kernels.numba.simd import (
    add,
    aligned_zeros,
    element,
    line_length,
    load,
    multiply,
    spread,
    spread_from,
    store,
)
from sfumato.kernels.numba.threads import balanced_cuts, run, scratch
from sfumato.records import record
from sfumato.types import Array

if TYPE_CHECKING:
    from sfumato.models.multilinear import Multilinear
    from sfumato.sites.memory import ByMode

_TILE = 8  # Gram rows built at a time: as many as leave registers for the operands
_GATHER = 64  # designs gathered at a time: they stay in the first-level cache


@record
class Uncertainty(NamedTuple):
    """Variances of the parameters, laid out like them; empty arrays where they are certain."""

    rows: Array
    biases: Array
    core: Array

    @property
    def present(self) -> bool:
        return bool(self.rows.shape[0])


@record
class NormalEquations(NamedTuple):
    """Sums for some rows of a mode; ``gram`` is filled on and above the diagonal.

    ``counts`` holds the number of entries of each row, or the sum of their weights.
    """

    gram: Array
    rhs: Array
    design_sum: Array
    target_sum: Array
    variance: Array
    counts: Array

    def __add__(self, other: NormalEquations) -> NormalEquations:  # type: ignore[override]
        return NormalEquations(*map(np.add, self, other))

    def part(self, low: int, high: int) -> NormalEquations:
        """Those of some rows alone."""
        return NormalEquations(*(each[low:high] for each in self))


@record
class Ridge(NamedTuple):
    """Penalty of a mode's rows: precision and mean per column, and the same for the bias.

    The precision of a row with n entries is ``constant + per_entry * n``. ``noise`` is the precision
    of an entry's value. A bias precision of infinity leaves the bias out.
    """

    constant: Array
    per_entry: float
    mean: float
    bias_constant: float
    bias_per_entry: float
    noise: float


# -- the sums -----------------------------------------------------------------------------------


@inlined
def _add_gram_tile(x: Array, count: int, width: int, r: int, c: int, gram: Array, at: int) -> None:
    """``gram[r : r + 8, c : c + line] += x[:, r : r + 8]' x[:, c : c + line]``."""
    g0, g1 = load(gram, at + r * width + c), load(gram, at + (r + 1) * width + c)
    g2, g3 = load(gram, at + (r + 2) * width + c), load(gram, at + (r + 3) * width + c)
    g4, g5 = load(gram, at + (r + 4) * width + c), load(gram, at + (r + 5) * width + c)
    g6, g7 = load(gram, at + (r + 6) * width + c), load(gram, at + (r + 7) * width + c)
    for e in range(count):
        here = e * width
        line = load(x, here + c)
        g0 = add(g0, multiply(spread_from(x, here + r), line))
        g1 = add(g1, multiply(spread_from(x, here + r + 1), line))
        g2 = add(g2, multiply(spread_from(x, here + r + 2), line))
        g3 = add(g3, multiply(spread_from(x, here + r + 3), line))
        g4 = add(g4, multiply(spread_from(x, here + r + 4), line))
        g5 = add(g5, multiply(spread_from(x, here + r + 5), line))
        g6 = add(g6, multiply(spread_from(x, here + r + 6), line))
        g7 = add(g7, multiply(spread_from(x, here + r + 7), line))
    store(gram, at + r * width + c, g0)
    store(gram, at + (r + 1) * width + c, g1)
    store(gram, at + (r + 2) * width + c, g2)
    store(gram, at + (r + 3) * width + c, g3)
    store(gram, at + (r + 4) * width + c, g4)
    store(gram, at + (r + 5) * width + c, g5)
    store(gram, at + (r + 6) * width + c, g6)
    store(gram, at + (r + 7) * width + c, g7)


@inlined
def _add_moments(
    x: Array, y: Array, roots: Array, count: int, width: int, rhs: Array, sums: Array, at: int
) -> None:
    for b in range(0, width, line_length(x)):
        weighted, plain = load(rhs, at + b), load(sums, at + b)
        for e in range(count):
            line = load(x, e * width + b)
            weighted = add(weighted, multiply(spread_from(y, e), line))
            plain = add(plain, multiply(spread_from(roots, e), line))
        store(rhs, at + b, weighted)
        store(sums, at + b, plain)


@kernel
def _accumulate(
    p: Any,
    variances: Array,
    core_variances: Array,
    mean: Any,
    mode: int,
    others: Array,
    values: Array,
    weights: Array,
    starts: Array,
    low: int,
    first: int,
    last: int,
    out: Any,
) -> None:
    order, width = len(p.offsets), row_width(p)
    # Arrays are taken out of their tuples once: inside the loops that would count references.
    biases, target_sum = p.biases, out.target_sum
    gram, rhs, sums, spread_of = out.gram, out.rhs, out.design_sum, out.variance
    work, index = moments_workspace(p, core_variances, mode), scratch(order, np.int64)
    x, y = scratch(_GATHER * width, p.rows.dtype), scratch(_GATHER, p.rows.dtype)
    roots, variance = scratch(_GATHER, p.rows.dtype), scratch(width, p.rows.dtype)
    roots[:] = 1
    weight = p.rows.dtype.type(1)
    for row in range(first, last):
        slot = row - low
        for begin in range(starts[row], starts[row + 1], _GATHER):
            count = min(_GATHER, starts[row + 1] - begin)
            for e in range(count):
                entry = begin + e
                target = element(values, entry) - mean
                for j in range(order - 1):
                    m = j if j < mode else j + 1
                    index[m] = p.offsets[m] + element(others, j * values.shape[0] + entry)
                    target -= element(biases, index[m])
                design_moments(p, variances, core_variances, index, mode, work, x, e * width, variance)
                y[e] = target
                if weights.shape[0] > 0:
                    # Designs and targets times the root: their products have the weight.
                    weight = element(weights, entry)
                    roots[e] = np.sqrt(weight)
                    y[e] *= roots[e]
                    root = spread_from(roots, e)
                    for b in range(0, width, line_length(x)):
                        here = e * width + b
                        store(x, here, multiply(root, load(x, here)))
                target_sum[slot] += weight * target
                if variances.shape[0] > 0:
                    for b in range(0, width, line_length(x)):
                        here = slot * width + b
                        term = multiply(spread(x, weight), load(variance, b))
                        store(spread_of, here, add(load(spread_of, here), term))
            for r in range(0, width, _TILE):
                for c in range(0, width, line_length(x)):
                    if c + line_length(x) > r:
                        _add_gram_tile(x, count, width, r, c, gram, slot * width * width)
            _add_moments(x, y, roots, count, width, rhs, sums, slot * width)


def normal_equations(
    model: Multilinear,
    uncertainty: Uncertainty,
    entries: ByMode,
    mode: int,
    low: int,
    high: int,
    threads: int,
) -> NormalEquations:
    """Sums for the rows ``low`` to ``high`` of a mode. The result does not depend on ``threads``."""
    width, n, dtype = model.rows.shape[1], high - low, model.dtype
    out = NormalEquations(
        aligned_zeros((n, width, width), dtype),
        aligned_zeros((n, width), dtype),
        aligned_zeros((n, width), dtype),
        np.zeros(n, dtype),
        aligned_zeros((n, width), dtype),
        entries.total_weights[low:high].astype(dtype),
    )
    cuts = balanced_cuts(entries.starts, low, high, threads)
    run(
        [
            partial(
                _accumulate,
                model.arrays,
                uncertainty.rows,
                uncertainty.core,
                dtype.type(model.mean),
                mode,
                entries.others,
                entries.values,
                entries.weights,
                entries.starts,
                low,
                first,
                last,
                out,
            )
            for first, last in pairwise(cuts)
        ],
        threads,
    )
    return out


# -- their solution -----------------------------------------------------------------------------


@inlined
def _factorise(a: Array, rank: int, width: int, smallest: Array) -> None:
    """Cholesky factor U (a = U'U) over the upper triangle of ``a``, in place.

    A pivot below its ``smallest`` is rounding error of a nearly singular matrix and is raised to it.
    """
    for j in range(rank):
        pivot = max(a[j * width + j], smallest[j])
        a[j * width + j] = pivot
        scale = spread(a, 1 / np.sqrt(pivot))
        first_line = j - j % line_length(a)
        for b in range(first_line, width, line_length(a)):
            store(a, j * width + b, multiply(scale, load(a, j * width + b)))
        for k in range(j + 1, rank):
            factor = spread(a, -a[j * width + k])
            for b in range(k - k % line_length(a), width, line_length(a)):
                update = multiply(factor, load(a, j * width + b))
                store(a, k * width + b, add(load(a, k * width + b), update))


@inlined
def _substitute(u: Array, rank: int, width: int, h: Array, out: Array) -> None:
    """``out = (U'U)^-1 h``; destroys ``h``. Both are padded rows.

    Whole lines of U are read: what lies left of its diagonal is left over from the factorisation and
    reaches only those elements of ``h`` that are no longer needed.
    """
    for j in range(rank):
        out[j] = h[j] / u[j * width + j]
        factor = spread(u, -out[j])
        for b in range(j - j % line_length(u), width, line_length(u)):
            store(h, b, add(load(h, b), multiply(factor, load(u, j * width + b))))
    for j in range(rank - 1, -1, -1):
        rest = out[j]
        for k in range(j + 1, rank):
            rest -= u[j * width + k] * out[k]
        out[j] = rest / u[j * width + j]


@kernel
def _solve(
    sums: Any,
    constant: Array,
    per_entry: Any,
    prior: Any,
    bias_constant: Any,
    bias_per_entry: Any,
    noise: Any,
    rank: int,
    first: int,
    last: int,
    rows: Array,
    biases: Array,
    row_variances: Array,
    bias_variances: Array,
) -> None:
    width = rows.shape[1]
    resolution = 4 * np.finfo(rows.dtype).eps
    gram, rhs, variance, counts = sums.gram, sums.rhs, sums.variance, sums.counts
    design_sum, target_sum = sums.design_sum, sums.target_sum
    a = scratch(width * width, rows.dtype)
    h, s = scratch(width, rows.dtype), scratch(width, rows.dtype)
    solution, along_bias = scratch(width, rows.dtype), scratch(width, rows.dtype)
    smallest = scratch(width, rows.dtype)
    uncertain = row_variances.shape[0] > 0
    for i in range(first, last):
        n = rows.dtype.type(counts[i])
        for r in range(rank):
            for c in range(width):
                a[r * width + c] = noise * gram[i, r, c]
            precision = constant[r] + per_entry * n
            a[r * width + r] += noise * variance[i, r] + precision
            smallest[r] = resolution * a[r * width + r]
            h[r] = noise * rhs[i, r] + precision * prior
            s[r] = noise * design_sum[i, r]
            if uncertain:
                row_variances[i, r] = 1 / a[r * width + r]
        _factorise(a, rank, width, smallest)
        _substitute(a, rank, width, h, solution)
        bias = rows.dtype.type(0)
        bias_precision = bias_constant + bias_per_entry * n
        if bias_precision < np.inf:
            # The bias is one more column: eliminate the row, solve for it, put it back.
            for r in range(rank):
                h[r] = s[r]
            _substitute(a, rank, width, h, along_bias)
            diagonal = noise * n + bias_precision
            rest, schur = noise * target_sum[i], diagonal
            for r in range(rank):
                rest -= noise * design_sum[i, r] * solution[r]
                schur -= noise * design_sum[i, r] * along_bias[r]
            bias = rest / schur
            if uncertain:
                bias_variances[i] = 1 / diagonal
        biases[i] = bias
        for r in range(rank):
            rows[i, r] = solution[r] - bias * along_bias[r]


def solve_rows(
    sums: NormalEquations,
    ridge: Ridge,
    rank: int,
    rows: Array,
    biases: Array,
    row_variances: Array,
    bias_variances: Array,
    threads: int,
) -> None:
    """Write the penalised solution of each row.

    The variances are those of independent coordinates (mean-field): one over the diagonal.
    """
    number = rows.dtype.type
    cuts = np.linspace(0, rows.shape[0], threads + 1).astype(np.int64).tolist()
    run(
        [
            partial(
                _solve,
                sums,
                ridge.constant.astype(rows.dtype),
                number(ridge.per_entry),
                number(ridge.mean),
                number(ridge.bias_constant),
                number(ridge.bias_per_entry),
                number(ridge.noise),
                rank,
                first,
                last,
                rows,
                biases,
                row_variances,
                bias_variances,
            )
            for first, last in pairwise(cuts)
        ],
        threads,
    )
