"""Clipped sums of one block by entry, on a device: as ``kernels/numba/alternating.py``, in other words.

Features and residuals are computed in single precision and cut to whole steps of the same grid. The
bound that privacy rests on is then taken from these whole numbers themselves: an entry whose squares
come to more than the bound's, less what their sum may be wrong by, adds nothing. Lengths are clipped a
little lower than on a processor (``_BELOW``), so that this happens to none whose numbers are sound. The
sums are of 64-bit whole numbers, and so the same in whatever order a device adds them.

One program makes the numbers and another checks and adds them: within one, a compiler may make a number
twice, once for the check and once for the sum, and round it in two ways.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from sfumato.kernels.grid import grid
from sfumato.kernels.jax import double_precision
from sfumato.kernels.jax.entrywise import (
    CORE,
    Chunk,
    Chunks,
    Parameters,
    add_by_level,
    bias_sum,
    designs,
    explained,
    folded,
    index_of,
    is_there,
    parameters,
)
from sfumato.types import Array

if TYPE_CHECKING:
    from sfumato.kernels.numba.alternating import Features
    from sfumato.models.multilinear import Multilinear

_BELOW = 1 - 2.0**-16  # of lengths: single precision is wrong by less
# Of squared lengths. Sums are wrong by less: of up to 2^32 squares that are folded, or of 33 in a row.
_FITS = 1 - 2.0**-17


def clips(features: Features) -> tuple[float, float, float, float, float]:
    """What lengths and residuals are clipped to, the bias, the step, and how long an entry may be.

    The last is a squared length, in steps; the proof rests on it.
    """
    bound, step = features.bound, grid(features.bound)
    short = features.length * _BELOW, features.target * _BELOW
    return *short, features.bias, step, (bound / step) ** 2 * _FITS


@partial(jax.jit, static_argnames=("lead", "block"))
def _numbers(p: Parameters, how: Any, chunk: Chunk, lead: int, block: int) -> Any:
    """What entries would add, in whole steps: features, and then the bias."""
    metric, length, most, bias, step = how
    index = index_of(chunk, lead)
    design = designs(p, index, block)
    residual = chunk.values - p.mean - bias_sum(p, index) - explained(p, index, design, block)
    target = jnp.where(jnp.isnan(residual) | ~is_there(chunk), 0.0, jnp.clip(residual, -most, most))
    x = folded(design[:, :, None] * metric[None]) if metric.shape[0] > 1 else design * metric
    norm = jnp.sqrt(folded(x * x))
    sound = jnp.isfinite(norm)
    scale = jnp.where(sound, jnp.minimum(1.0, length / norm), 0.0) * target / step
    steps = jnp.trunc(jnp.where(sound[:, None], x * scale[:, None], 0.0))
    of_bias = jnp.trunc(bias * target / step)
    return jnp.concatenate([steps, of_bias[:, None]], 1)


@partial(jax.jit, static_argnames="block", donate_argnums=0)
def _add_fitting(out: Any, numbers: Any, limit: Any, chunk: Chunk, block: int) -> Any:
    """The sums with these very numbers, of entries that are no longer than the bound."""
    fits = folded(numbers * numbers) <= limit  # not where any is NaN
    whole = jnp.where(fits[:, None], numbers, 0.0).astype(jnp.int64)
    return out + whole.sum(0, keepdims=True) if block == CORE else add_by_level(out, chunk, whole)


def sums_there(p: Parameters, how: Any, chunks: Chunks, block: int, levels: int, size: int) -> Any:
    """The sums, on the device: of parameters and clips that are there."""
    out = jnp.zeros((levels, size + 1), jnp.int64)
    *how, limit = how
    for chunk in chunks:
        out = _add_fitting(out, _numbers(p, how, chunk, chunks.mode, block), limit, chunk, block)
    return out


def put(model: Multilinear, block: int, features: Features) -> tuple[Parameters, Any, int, int]:
    """What :func:`sums_there` needs beside the entries."""
    size = model.free_core.size if block == CORE else model.ranks[block]
    levels = 1 if block == CORE else model.shape[block]
    how = np.asarray(features.metric[:, :size], np.float32), *map(np.float32, clips(features))
    return parameters(model), jax.device_put(how), levels, size


def entry_sums(model: Multilinear, block: int, features: Features, chunks: Chunks) -> Array:
    """Sums by entry for each level, in steps of the bound's grid.

    ``chunks`` are sorted by the block's mode; for the core, by the first.
    """
    with double_precision():
        p, how, levels, size = put(model, block, features)
        sums = np.asarray(sums_there(p, how, chunks, block, levels, size))
    return sums if features.bias else sums[:, :size]
