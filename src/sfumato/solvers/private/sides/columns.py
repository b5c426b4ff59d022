"""Columns of levels from what others say of them: post-processing of what was released, or public."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from sfumato.models.multilinear import CPModel, Multilinear
from sfumato.models.own_prior import OwnPrior, Pull, RowNoise
from sfumato.solvers.private.shrinkage import shrunk
from sfumato.types import Array

_LEAST = 1e-9  # of a variance, over the largest one: below it there is no direction


class Learnt(NamedTuple):
    """Posterior means of columns, and the variance that is left of each level's, summed over columns."""

    means: Array
    doubts: Array


def learnt_columns(
    sums: Array, variances: Array, counts: Array, scatter: float, assumed: float, told: Sequence[Array]
) -> Learnt:
    """Columns g from noisy sums_j = counts_j g_j + noise, features being white.

    ``variances`` are those of the noise in a level's sums, to which ``scatter * counts`` adds what
    residuals scatter by themselves. Each column's g_j are normal around a mean that follows from what is
    ``told`` of the levels of their own mode, kind by kind, and a constant, with a variance around the
    ``assumed`` one: where there is nothing but noise, nothing comes out.
    """
    whole = variances + scatter * counts
    kinds = [np.ones((sums.shape[0], 1)), *told]
    design = np.hstack([kind / np.sqrt(max(1, kind.shape[1])) for kind in kinds])
    means, left = np.zeros_like(sums), np.zeros_like(sums)
    for c in range(sums.shape[1]):
        expected = _expected(design, sums[:, c] / counts, whole / counts**2, assumed)
        guess = shrunk(sums[:, c], whole, counts, expected, assumed, None)
        means[:, c], left[:, c] = guess.means, guess.variances
    return Learnt(means, left.sum(axis=1))


def _expected(design: Array, seen: Array, noise: Array, assumed: float) -> Array:
    """What a linear map of the design expects, coefficients being normal: what those of one kind explain
    together has half the variance that is assumed.
    """
    precision = 1 / (noise + assumed)
    gram = (design.T * precision) @ design
    gram[np.diag_indices_from(gram)] += 2 / assumed
    expected: Array = design @ np.linalg.solve(gram, design.T @ (precision * seen))
    return expected


def white(columns: Array, weights: Array, most: int) -> Array:
    """Uncorrelated columns of mean zero and variance one: the first principal components.

    Directions that hardly occur are left out.
    """
    weights = weights / weights.sum()
    centred = columns - weights @ columns
    deviations = np.sqrt(weights @ centred**2)
    there = deviations > 1e-9 * max(float(deviations.max(initial=0.0)), 1e-300)
    centred = centred[:, there] / deviations[there]
    variances, axes = np.linalg.eigh((centred.T * weights) @ centred)
    kept = np.flatnonzero(variances > 1e-6)[::-1][:most]
    whitened: Array = (centred @ axes[:, kept]) / np.sqrt(variances[kept])
    return whitened


def leading(columns: Array, weights: Array, most: int) -> Array:
    """The first principal components, of mean zero and variance one: columns count by their size."""
    roots = np.sqrt(weights / weights.sum())[:, None]
    left, sizes, _ = np.linalg.svd(roots * (columns - (roots**2).T @ columns), full_matrices=False)
    there = np.flatnonzero(sizes > 1e-3 * max(float(sizes.max(initial=0.0)), 1e-300))[:most]
    components: Array = left[:, there] / roots
    return components


def scaled(columns: Array, weights: Array) -> Array:
    """Columns of mean zero with a mean square of one over all of them: each counts by its size."""
    weights = weights / weights.sum()
    centred: Array = columns - weights @ columns
    size = float(np.sqrt(np.mean(weights @ centred**2)))
    return centred / max(size, 1e-300)


def spreads_of(model: Multilinear, prior: OwnPrior | None, mode: int) -> Array:
    """How far the values of a CP model differ along each column of a mode, all others given; as far as
    is expected of own rows.
    """
    spreads = np.ones(model.ranks[mode])
    for m, factor in enumerate(model.factors):
        if prior is not None and m == prior.mode:
            turn = np.eye(prior.precisions.shape[0]) if prior.turn is None else prior.turn
            spreads = spreads * np.sqrt((turn**2) @ (1 / prior.precisions))
        elif m != mode:
            spreads = spreads * np.sqrt(np.mean(factor**2, axis=0))
    return spreads


def whitening(moment: Array, error: float, most: int) -> Array:
    """A matrix W with W M W' = 1 for a noisy second moment M, as far as it stands out of its noise.

    ``error`` is the deviation of the noise in each number of M, whose eigenvalues it moves by up to
    twice that times the root of their number: smaller ones are nothing but noise.
    """
    variances, axes = np.linalg.eigh((moment + moment.T) / 2)
    edge = 2 * error * np.sqrt(moment.shape[0]) + _LEAST * max(float(variances[-1]), 0.0)
    kept = np.flatnonzero(variances > max(edge, 1e-300))[::-1][:most]
    turn: Array = (axes[:, kept] / np.sqrt(variances[kept])).T
    return turn


# -- a model and its prior, with further columns ------------------------------------------------------


def extended(model: Multilinear, blocks: Sequence[Sequence[Array]]) -> Multilinear:
    """The CP model with further components: each block has an array of columns for every mode."""
    factors = [
        np.hstack([factor, *(block[m] for block in blocks)]) for m, factor in enumerate(model.factors)
    ]
    return CPModel.from_factors(factors, mean=model.mean, biases=model.mode_biases)


def extended_prior(
    prior: OwnPrior, precisions: Array, doubts: Sequence[Array | None], order: int
) -> OwnPrior:
    """The prior of own rows with further columns, and what is in doubt of levels besides."""
    more = precisions.shape[0]
    turn = prior.turn
    if turn is not None:
        whole = np.eye(turn.shape[0] + more)
        whole[: turn.shape[0], : turn.shape[0]] = turn
        turn = whole
    pull = prior.pull
    if pull is not None:
        pull = Pull(*(np.append(each, np.zeros(more)) for each in pull))
    row_noise = tuple(
        None if noise is None else RowNoise(noise.levels, np.append(noise.columns, np.zeros(more)))
        for noise in prior.row_noise
    )
    before = prior.doubts or (None,) * order
    summed = tuple(
        known if new is None else new if known is None else known + new
        for known, new in zip(before, doubts, strict=True)
    )
    return replace(
        prior,
        precisions=np.append(prior.precisions, precisions),
        turn=turn,
        pull=pull,
        row_noise=row_noise,
        doubts=summed,
    )
