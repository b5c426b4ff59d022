"""Normal equations of a mode's rows on a device, their solution, and what a model leaves over.

The same sums as in ``kernels/numba/normal.py``, in single precision. A device adds them in an order of
its own, so that they differ from run to run by roundings.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from sfumato.kernels.jax import double_precision, within_memory
from sfumato.kernels.jax.entrywise import (
    CORE,
    Chunk,
    Chunks,
    Parameters,
    Variances,
    add_by_level,
    bias_sum,
    design_variances,
    designs,
    explained,
    index_of,
    is_there,
    parameters,
)
from sfumato.kernels.jax.kept import remember, there_already
from sfumato.types import Array

if TYPE_CHECKING:
    from sfumato.kernels.numba.normal import NormalEquations, Ridge, Uncertainty
    from sfumato.models.multilinear import Multilinear


def _variances_of(model: Multilinear, uncertainty: Uncertainty) -> Variances | None:
    if not uncertainty.present:
        return None
    rows = [uncertainty.rows[model.span(m), : model.ranks[m]] for m in range(model.order)]
    core = None
    if model.free_core.size:
        core = jax.device_put(uncertainty.core.reshape(model.ranks).astype(np.float32))
    return Variances(tuple(map(there_already, rows)), core)


@partial(jax.jit, static_argnames="mode", donate_argnums=0)
def _add_equations(out: Any, p: Parameters, variances: Any, chunk: Chunk, mode: int) -> tuple[Any, ...]:
    """Sums of products of designs: with themselves, targets and one; of variances, and of targets."""
    index = index_of(chunk, mode)
    design = designs(p, index, mode)
    target = chunk.values - p.mean - bias_sum(p, index) + p.biases[mode][index[mode]]
    weight = jnp.where(is_there(chunk), 1.0 if chunk.weights is None else chunk.weights, 0.0)
    weighted = design * weight[:, None]
    beside = [target[:, None] * weighted, weighted]
    if variances is not None:
        beside.append(design_variances(p, variances, index, mode) * weight[:, None])
    gram, rest, targets = out
    return (
        add_by_level(gram, chunk, design[:, :, None] * weighted[:, None, :]),
        add_by_level(rest, chunk, jnp.stack(beside, 1)),
        add_by_level(targets, chunk, weight * target),
    )


def normal_equations(
    model: Multilinear, uncertainty: Uncertainty, chunks: Chunks, counts: Array
) -> tuple[Any, ...]:
    """Sums for all rows of a mode, in the order of ``NormalEquations``, on the device.

    ``counts`` are the rows' entries, or their weights.
    """
    mode, levels = chunks.mode, model.shape[chunks.mode]
    rank, width = model.ranks[chunks.mode], model.rows.shape[1]
    with double_precision():
        p, variances = parameters(model, solved=True), _variances_of(model, uncertainty)
        sizes = (levels, rank, rank), (levels, 2 if variances is None else 3, rank), (levels,)
        out = tuple(jnp.zeros(size, jnp.float32) for size in sizes)
        for chunk in chunks:
            out = _add_equations(out, p, variances, chunk, mode)
        laid: tuple[Any, ...] = _laid_out(*out, jax.device_put(counts.astype(np.float32)), width)
    return laid


@partial(jax.jit, static_argnames="width")
def _laid_out(gram: Any, rest: Any, targets: Any, counts: Any, width: int) -> tuple[Any, ...]:
    room = width - gram.shape[1]
    gram, rest = (
        jnp.pad(gram, ((0, 0), (0, room), (0, room))),
        jnp.pad(rest, ((0, 0), (0, 0), (0, room))),
    )
    variance = rest[:, 2] if rest.shape[1] > 2 else jnp.zeros_like(rest[:, 0])
    return gram, rest[:, 0], rest[:, 1], targets, variance, counts


@partial(jax.jit, static_argnames=("rank", "biased"))
def _solved(sums: NormalEquations, ridge: Any, rank: int, biased: bool) -> tuple[Any, ...]:
    constant, per_entry, prior, bias_constant, bias_per_entry, noise = ridge
    counts = sums.counts
    precision = constant[:rank] + per_entry * counts[:, None]
    diagonal = precision + noise * sums.variance[:, :rank]
    system = noise * sums.gram[:, :rank, :rank]
    along = jnp.diagonal(system, axis1=1, axis2=2) + diagonal
    # Pivots that are rounding errors of a nearly singular matrix stay above them.
    resolution = 4 * jnp.finfo(system.dtype).eps
    system = system + (diagonal + resolution * along)[:, :, None] * jnp.eye(rank, dtype=system.dtype)
    sides = [noise * sums.rhs[:, :rank] + precision * prior]
    if biased:
        sides.append(noise * sums.design_sum[:, :rank])
    factor = jax.lax.linalg.cholesky(system)
    solution = jax.scipy.linalg.cho_solve((factor, True), jnp.stack(sides, 2))
    rows, bias, below = solution[:, :, 0], jnp.zeros_like(counts), jnp.ones_like(counts)
    if biased:
        # The bias is one more column: eliminate the row, solve for it, put it back.
        below = noise * counts + bias_constant + bias_per_entry * counts
        rest = noise * sums.target_sum - (sides[1] * rows).sum(1)
        bias = rest / (below - (sides[1] * solution[:, :, 1]).sum(1))
        rows = rows - bias[:, None] * solution[:, :, 1]
    return rows, bias, 1 / along, 1 / below


def solve_rows(
    sums: NormalEquations,
    ridge: Ridge,
    rank: int,
    rows: Array,
    biases: Array,
    row_variances: Array,
    bias_variances: Array,
) -> None:
    """Write the penalised solution of each row, as ``kernels/numba/normal.py`` does."""
    biased = bool(np.isfinite(ridge.bias_constant))
    numbers = [np.asarray(ridge.constant, np.float32), *map(np.float32, ridge[1:])]
    wanted = 4 if row_variances.shape[0] else 2
    with within_memory(), double_precision():
        solved = _solved(sums, tuple(numbers), rank, biased)[:wanted]
        found = jax.device_get(solved)
    parts = [rows[:, :rank], biases]
    if row_variances.shape[0]:
        parts += [row_variances[:, :rank], bias_variances] if biased else [row_variances[:, :rank]]
    for part, here, there in zip(parts, found, solved, strict=False):
        part[:] = here
        remember(part, here, there)


@partial(jax.jit, static_argnames="mode")
def _left_over(p: Parameters, variances: Any, chunk: Chunk, mode: int) -> tuple[Any, Any]:
    index, there = index_of(chunk, mode), is_there(chunk)
    design = designs(p, index, mode)
    residual = chunk.values - p.mean - bias_sum(p, index) - explained(p, index, design, mode)
    squares = jnp.where(there, residual**2, 0.0).astype(jnp.float64).sum()
    if variances is None:
        return squares, 0.0
    of_parameters, biases = variances
    spread = sum(each[levels] for each, levels in zip(biases, index, strict=True))
    row, uncertain = p.factors[mode][index[mode]], of_parameters.rows[mode][index[mode]]
    of_design = design_variances(p, of_parameters, index, mode)
    spread = spread + (uncertain * (design**2 + of_design) + row**2 * of_design).sum(1)
    return squares, jnp.where(there, spread, 0.0).astype(jnp.float64).sum()


def residual_sums(model: Multilinear, uncertainty: Uncertainty, chunks: Chunks) -> tuple[float, float]:
    """Sums over all entries: of squared residuals, and of the predictions' variances."""
    with double_precision():
        p, of_parameters = parameters(model, solved=True), _variances_of(model, uncertainty)
        variances = None
        if of_parameters is not None:
            biases = [uncertainty.biases[model.span(m)] for m in range(model.order)]
            variances = of_parameters, tuple(map(there_already, biases))
        parts = [_left_over(p, variances, chunk, chunks.mode) for chunk in chunks]
        sums = np.asarray(jax.device_get(parts), np.float64).reshape(-1, 2).sum(0)
    return float(sums[0]), float(sums[1])


# -- of a core --------------------------------------------------------------------------------------


@partial(jax.jit, static_argnames="lead", donate_argnums=0)
def _add_core(out: Any, p: Parameters, variances: Any, chunk: Chunk, lead: int) -> tuple[Any, Any]:
    """Sums of products of the core's designs with themselves, and with what is to be explained."""
    index = index_of(chunk, lead)
    design = designs(p, index, CORE)
    target = chunk.values - p.mean - bias_sum(p, index)
    weight = jnp.where(is_there(chunk), 1.0 if chunk.weights is None else chunk.weights, 0.0)
    weighted = design * weight[:, None]
    gram = jnp.matmul(design.T, weighted, precision="highest")
    if variances is not None:
        doubts = (design_variances(p, variances, index, CORE) * weight[:, None]).sum(0)
        gram = gram + jnp.diag(doubts)
    rhs = (weighted * target[:, None]).sum(0)
    return out[0] + gram.astype(jnp.float64), out[1] + rhs.astype(jnp.float64)


def core_sums(model: Multilinear, uncertainty: Uncertainty, chunks: Chunks) -> tuple[Array, Array]:
    """Gram matrix and right-hand side of the free core entries, in their own order."""
    size = model.free_core.size
    with double_precision():
        p, variances = parameters(model, solved=True), _variances_of(model, uncertainty)
        out = jnp.zeros((size, size)), jnp.zeros(size)
        for chunk in chunks:
            out = _add_core(out, p, variances, chunk, chunks.mode)
        gram, rhs = (np.array(part) for part in out)
    return gram, rhs
