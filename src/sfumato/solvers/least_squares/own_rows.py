"""Rows that are solved by their owners: from what was released and their own entries, nothing else.

A user's row a and bias b, given the released parameters of all other modes, are the most likely ones
under

    x_e ~ N(mean + other biases + d_e . a + b, scatter + doubt_e),
    a ~ N(prior mean, 1 / precisions),  b ~ N(0, 1 / bias_precision)

where d_e is the design of entry e and doubt_e the variance that uncertain parameters add to it. That
is ridge least squares with the weights scatter / (scatter + doubt_e). It serves the end of a private
fit, where local rows are filled in, and somebody new who comes with entries when predicting.

An ``OwnPrior`` holds all that this needs beside the model. It is made from released and public numbers
alone, so that it can be part of the release.
"""

from __future__ import annotations

import numpy as np

from sfumato.kernels.numba.normal import Ridge, Uncertainty, normal_equations, solve_rows
from sfumato.kernels.numba.simd import aligned_zeros
from sfumato.models.multilinear import Multilinear
from sfumato.models.own_prior import OwnPrior
from sfumato.sites.memory import Site, WeightedSite
from sfumato.types import Array

_ROWS = 4096  # rows solved at a time: bounds the memory of their normal equations
_ENTRIES = 1 << 18  # entries weighed at a time, likewise


def solve_own(model: Multilinear, prior: OwnPrior, site: Site) -> Multilinear:
    """The model with each row and bias of the prior's mode solved from the entries at that row.

    Rows without entries become the prior mean. What the model holds in that mode plays no part.
    """
    prior.check(model.shape, model.ranks)
    site.check_sizes(model.shape)
    mode, rank, size = prior.mode, model.ranks[prior.mode], model.shape[prior.mode]
    solved = model.with_rows(mode, np.zeros((size, rank)), np.zeros(size))
    noise = _uncertainty(solved, prior)
    constant = prior.precisions if prior.turn is None else np.zeros(rank)
    ridge = Ridge(constant, 0.0, prior.mean, prior.bias_precision, 0.0, 1 / prior.scatter)
    entries = _weighted(prior, site).by_mode(mode)
    none = np.zeros((0, 0), model.dtype)
    for low in range(0, size, _ROWS):
        high = min(low + _ROWS, size)
        sums = normal_equations(solved, noise, entries, mode, low, high, site.threads)
        if prior.turn is not None:  # as if there were entries with this Gram matrix
            sums.gram[:, :rank, :rank] += prior.scatter * _precision(prior.turn, prior.precisions)
        here = slice(solved.offsets[mode] + low, solved.offsets[mode] + high)
        rows, biases = solved.rows[here], solved.biases[here]
        solve_rows(sums, ridge, rank, rows, biases, none, none.ravel(), site.threads)
    return solved


def _precision(turn: Array, precisions: Array) -> Array:
    """Precision matrix of rows T b: that of b between the inverses of T."""
    inverse = np.linalg.inv(turn)
    matrix: Array = (inverse.T * precisions) @ inverse
    return matrix


def _weighted(prior: OwnPrior, site: Site) -> Site:
    """The entries with weights, where some are in doubt."""
    if not any(doubt is not None for doubt in prior.doubts):
        return site
    tensor = site.tensor
    weights = np.empty(tensor.n_entries, tensor.values.dtype)
    for first in range(0, tensor.n_entries, _ENTRIES):
        here = slice(first, first + _ENTRIES)
        variance = np.full(weights[here].shape, prior.scatter)
        for doubt, levels in zip(prior.doubts, tensor.coordinates, strict=True):
            if doubt is not None:
                variance += doubt[levels[here]]
        weights[here] = prior.scatter / variance
    return WeightedSite(site, tensor.values, weights)


def _uncertainty(model: Multilinear, prior: OwnPrior) -> Uncertainty:
    core = np.zeros_like(model.free_core)
    if not any(noise is not None for noise in prior.row_noise):
        return Uncertainty(aligned_zeros((0, model.rows.shape[1]), model.dtype), core[:0], core[:0])
    variances = aligned_zeros(model.rows.shape, model.dtype)
    for m, noise in enumerate(prior.row_noise):
        if noise is not None and m != prior.mode:
            variances[model.span(m), : model.ranks[m]] = np.outer(noise.levels, noise.columns)
    return Uncertainty(variances, core[:0], core)
