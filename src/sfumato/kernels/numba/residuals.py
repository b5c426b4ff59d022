"""Predictions of a model with uncertain parameters, and what they leave of the values."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from sfumato.kernels.numba.compiler import inlined, kernel
from sfumato.kernels.numba.entrywise import bias_sum, dot, locate, row_width
from sfumato.kernels.numba.moments import design_moments, moments_workspace
from sfumato.kernels.numba.normal import Uncertainty
from sfumato.kernels.numba.threads import run, scratch
from sfumato.types import Array

if TYPE_CHECKING:
    from sfumato.models.multilinear import Multilinear
    from sfumato.sites.memory import Site

_PIECE = 1 << 18  # entries summed at a time: fixed, so that sums do not depend on the threads


@inlined
def _moments_at(
    p: Any,
    row_variances: Array,
    bias_variances: Array,
    core_variances: Array,
    index: Array,
    work: Array,
    d: Array,
    v: Array,
) -> Any:
    """Value of an entry without the mean, and its variance where the parameters are uncertain."""
    order, width = len(p.offsets), row_width(p)
    design_moments(p, row_variances, core_variances, index, 0, work, d, 0, v)
    value = bias_sum(p, index) + dot(p.rows, index[0] * width, d, 0, width)
    variance = 0.0
    if row_variances.shape[0] > 0:
        for r in range(width):
            a, c = p.rows[index[0], r], row_variances[index[0], r]
            variance += c * (d[r] * d[r] + v[r]) + a * a * v[r]
        for m in range(order):
            variance += bias_variances[index[m]]
    return value, variance


@kernel
def _residual_piece(
    p: Any,
    row_variances: Array,
    bias_variances: Array,
    core_variances: Array,
    mean: Any,
    coordinates: Array,
    values: Array,
    start: int,
    stop: int,
    out: Array,
) -> None:
    index, work = scratch(len(p.offsets), np.int64), moments_workspace(p, core_variances, 0)
    d, v = scratch(row_width(p), p.rows.dtype), scratch(row_width(p), p.rows.dtype)
    squares, variances = 0.0, 0.0
    for entry in range(start, stop):
        locate(p, coordinates, entry, index)
        value, variance = _moments_at(
            p, row_variances, bias_variances, core_variances, index, work, d, v
        )
        residual = values[entry] - mean - value
        squares += residual * residual
        variances += variance
    out[0], out[1] = squares, variances


@kernel
def _prediction_piece(
    p: Any,
    row_variances: Array,
    bias_variances: Array,
    core_variances: Array,
    mean: Any,
    coordinates: Array,
    start: int,
    stop: int,
    values: Array,
    variances: Array,
) -> None:
    index, work = scratch(len(p.offsets), np.int64), moments_workspace(p, core_variances, 0)
    d, v = scratch(row_width(p), p.rows.dtype), scratch(row_width(p), p.rows.dtype)
    for entry in range(start, stop):
        locate(p, coordinates, entry, index)
        value, variance = _moments_at(
            p, row_variances, bias_variances, core_variances, index, work, d, v
        )
        values[entry] = mean + value
        variances[entry] = variance


def predictions(model: Multilinear, uncertainty: Uncertainty, site: Site) -> tuple[Array, Array]:
    """Mean and variance of the predicted value of each of a site's entries."""
    tensor = site.tensor
    values, variances = np.empty(tensor.n_entries), np.empty(tensor.n_entries)
    run(
        [
            partial(
                _prediction_piece,
                model.arrays,
                *uncertainty,
                model.dtype.type(model.mean),
                tensor.coordinates,
                start,
                min(start + _PIECE, tensor.n_entries),
                values,
                variances,
            )
            for start in range(0, tensor.n_entries, _PIECE)
        ],
        site.threads,
    )
    return values, variances


def residual_sums(model: Multilinear, uncertainty: Uncertainty, site: Site) -> tuple[float, float]:
    """Sums over a site's entries: of squared residuals, and of the predictions' variances."""
    tensor = site.tensor
    starts = range(0, tensor.n_entries, _PIECE)
    sums = np.zeros((len(starts), 2))
    run(
        [
            partial(
                _residual_piece,
                model.arrays,
                *uncertainty,
                model.dtype.type(model.mean),
                tensor.coordinates,
                tensor.values,
                start,
                min(start + _PIECE, tensor.n_entries),
                sums[piece],
            )
            for piece, start in enumerate(starts)
        ],
        site.threads,
    )
    squares, variances = sums.sum(axis=0)
    return float(squares), float(variances)
