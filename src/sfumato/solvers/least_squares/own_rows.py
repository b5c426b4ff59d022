"""Rows that are solved by their owners: from what was released and their own entries, nothing else.

A user's row a and bias b, given the released parameters of all other modes, are the most likely ones
under

    x_e ~ N(mean + other biases + d_e . a + b, scatter + doubt_e),
    a ~ N(prior means, 1 / precisions),  b ~ N(0, 1 / bias_precision)

where d_e is the design of entry e and doubt_e the variance that uncertain parameters add to it. That
is ridge least squares with the weights scatter / (scatter + doubt_e). It serves the end of a private
fit, where local rows are filled in, and somebody new who comes with entries when predicting.

An ``OwnPrior`` holds all that this needs beside the model. It is made from released and public numbers
alone, so that it can be part of the release.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from typing import NamedTuple, TypeVar

import numpy as np

from sfumato.data.tensor import Mode, SparseTensor
from sfumato.kernels.grid import BELOW_ONE, cut
from sfumato.kernels.numba.normal import (
    NormalEquations,
    Ridge,
    Uncertainty,
    normal_equations,
    solve_rows,
)
from sfumato.kernels.numba.simd import aligned_zeros
from sfumato.models.multilinear import Multilinear
from sfumato.models.own_prior import OwnPrior
from sfumato.sites.memory import Site, WeightedSite
from sfumato.types import Array

AnyModel = TypeVar("AnyModel", bound=Multilinear)  # which comes back as what it was

_BYTES = 1 << 24  # of the normal equations of rows that are solved at a time
_LEAST_ROWS = 64
ASKED_ROWS = 8192  # how many rows tell how large they are: more would hardly say more
OWN_SQUARES = 6  # what they tell of each group of columns
_ENTRIES = 1 << 18  # entries weighed at a time, likewise


def solve_own(model: AnyModel, prior: OwnPrior, site: Site) -> AnyModel:
    """The model with each row and bias of the prior's mode solved from the entries at that row.

    Rows without entries become the prior mean. What the model holds in that mode plays no part.
    """
    solved = _emptied(model, prior)
    site.check_sizes(solved.shape)
    made = site.own_rows(solved, prior)
    if made is not None:
        solved.factors[prior.mode][:], solved.mode_biases[prior.mode][:] = made
        return solved
    for _ in _blocks(solved, prior, site):
        pass
    return solved


def own_squares(
    model: Multilinear, prior: OwnPrior, site: Site, groups: Array, length: float, step: float
) -> Array:
    """How large own rows are beside what their entries tell of them, by group of columns.

    In coordinates of prior variance one, entries move a row from zero by a share of what it truly is: a
    matrix T between zero and one. Of each group the mean square of the rows' coordinates x, and the
    means of the diagonals of T and of T^2. What the row's own designs say of it, m (``prior.pull``),
    would show as t = T m: the means of x t, of its positive and its negative part, and of t^2. Those of
    one row are shortened to ``length`` and cut to whole steps, and added up over rows. Rows without
    entries have none, and of many rows only some are asked, as many however many there are.
    """
    model, prior, site = _some_rows(_emptied(model, prior), prior, site)
    members = [groups == g for g in range(int(groups.max(initial=-1)) + 1)]
    total = np.zeros(OWN_SQUARES * len(members), np.int64)
    roots, rank = np.sqrt(prior.precisions), prior.precisions.shape[0]
    for block in _blocks(model, replace(prior, pull=None, means=None), site):
        asked = block.sums.counts > 0
        rows = block.rows[asked] * roots
        moved = _moved_share(prior, block.sums, asked)
        means = _own_means(prior, block.sums, block.first, rank)[asked]
        told = np.einsum("ijk,ik->ij", moved, means * roots)
        along = rows * told
        spread = np.einsum("ijj->ij", moved), np.einsum("ijk,ijk->ij", moved, moved)
        parts = rows**2, *spread, np.maximum(along, 0), np.maximum(-along, 0), told**2
        made = np.stack([_mean_of(part, those) for part in parts for those in members], 1)
        made = np.where(np.isfinite(made), np.maximum(made, 0.0), 0.0)
        lengths = np.linalg.norm(made, axis=1, keepdims=True)
        made *= np.minimum(1.0, length * BELOW_ONE / np.maximum(lengths, 1e-300))
        total += cut(made, step).sum(axis=0)
    return total


def _some_rows(model: AnyModel, prior: OwnPrior, site: Site) -> tuple[AnyModel, OwnPrior, Site]:
    """Every so-maniest row, so that there are no more than are asked; all where they are few."""
    mode, size = prior.mode, model.shape[prior.mode]
    every = -(-size // ASKED_ROWS)
    if every == 1:
        return model, prior, site
    entries = site.tensor.take(site.tensor.coordinates[mode] % every == 0)
    coordinates, modes = entries.coordinates.copy(), list(entries.modes)
    coordinates[mode] //= every  # which keeps their order
    modes[mode] = Mode(modes[mode].name, -(-size // every))
    tensor = SparseTensor(coordinates, entries.values, tuple(modes), entries.bounds, _checked=True)
    nothing = np.zeros((modes[mode].size, model.ranks[mode])), np.zeros(modes[mode].size)
    doubts = tuple(
        doubt[::every] if m == mode and doubt is not None else doubt
        for m, doubt in enumerate(prior.doubts)
    )
    means = None if prior.means is None else prior.means[::every]
    fewer = replace(prior, doubts=doubts, means=means)
    return model.with_rows(mode, *nothing), fewer, Site(tensor, site.threads)


def _mean_of(part: Array, columns: Array) -> Array:
    """Mean of some columns, one after the other: NumPy's order depends on how many rows there are."""
    total = np.zeros(part.shape[0])
    for column in np.flatnonzero(columns):
        total += part[:, column]
    mean: Array = total / max(int(np.count_nonzero(columns)), 1)
    return mean


def _inverses(matrices: Array) -> Array:
    """Inverses of matrices; where one has none, nothing but NaN: whose data it is must not show."""
    try:
        found: Array = np.linalg.inv(matrices)
    except np.linalg.LinAlgError:
        found = np.full_like(matrices, np.nan)
        for matrix, out in zip(matrices, found, strict=True):
            with suppress(np.linalg.LinAlgError):
                out[:] = np.linalg.inv(matrix)
    return found


def _emptied(model: AnyModel, prior: OwnPrior) -> AnyModel:
    """The model with zeros where rows are to be solved."""
    prior.check(model.shape, model.ranks)
    size, rank = model.shape[prior.mode], model.ranks[prior.mode]
    return model.with_rows(prior.mode, np.zeros((size, rank)), np.zeros(size))


def _moved_share(prior: OwnPrior, sums: NormalEquations, asked: Array) -> Array:
    """The matrices T of some rows, whose own biases are solved along with them."""
    rank, noise = prior.precisions.shape[0], 1 / prior.scatter
    gram = np.triu(sums.gram[asked, :rank, :rank])
    gram = noise * (gram + np.triu(gram, 1).transpose(0, 2, 1))
    diagonal = np.arange(rank)
    gram[:, diagonal, diagonal] += noise * sums.variance[asked, :rank]
    if prior.bias_precision < np.inf:
        along = noise * sums.design_sum[asked, :rank]
        own = noise * sums.counts[asked] + prior.bias_precision
        gram -= along[:, :, None] * along[:, None, :] / own[:, None, None]
    deviations = prior.precisions**-0.5
    gram *= deviations[:, None] * deviations
    gram[:, diagonal, diagonal] += 1
    left: Array = np.eye(rank) - _inverses(gram)
    return left


class _Block(NamedTuple):
    """Some rows that were solved, from the first on, and their equations."""

    first: int
    rows: Array
    sums: NormalEquations


def _blocks(solved: Multilinear, prior: OwnPrior, site: Site) -> Iterator[_Block]:
    """Write the solution to a model's rows, some at a time."""
    site.check_sizes(solved.shape)
    mode, rank, size = prior.mode, solved.ranks[prior.mode], solved.shape[prior.mode]
    noise = _uncertainty(solved, prior)
    shift = prior.as_entries
    ridge = Ridge(prior.diagonal, 0.0, prior.mean, prior.bias_precision, 0.0, 1 / prior.scatter)
    entries = _weighted(prior, site).by_mode(mode)
    width, none = solved.rows.shape[1], np.zeros((0, 0), solved.dtype)
    at_once = max(_LEAST_ROWS, _BYTES // (width * width * 8))
    for low in range(0, size, at_once):
        high = min(low + at_once, size)
        sums = normal_equations(solved, noise, entries, mode, low, high, site.threads)
        if shift is not None:
            sums.gram[:, :rank, :rank] += shift
        means = _taken_off(prior, sums, low, rank)
        here = slice(solved.offsets[mode] + low, solved.offsets[mode] + high)
        rows, biases = solved.rows[here], solved.biases[here]
        solve_rows(sums, ridge, rank, rows, biases, none, none.ravel(), site.threads)
        rows[:, :rank] += means
        yield _Block(low, rows[:, :rank], sums)


def _own_means(prior: OwnPrior, sums: NormalEquations, first: int, rank: int) -> Array:
    """Prior means of rows from the first on: what their own designs say, and what other tables do."""
    means = np.zeros((sums.counts.shape[0], rank))
    if prior.pull is not None:
        designs, there = sums.design_sum[:, :rank], sums.counts > 0
        average = designs / np.maximum(sums.counts, 1e-300)[:, None]
        means += np.where(there[:, None], prior.pull.strengths * (average - prior.pull.centre), 0.0)
    if prior.means is not None:
        means += prior.means[first : first + means.shape[0]]
    return means


def _taken_off(prior: OwnPrior, sums: NormalEquations, first: int, rank: int) -> Array:
    """Such means; the equations become those of the rest."""
    means, designs = _own_means(prior, sums, first, rank), sums.design_sum[:, :rank]
    if prior.pull is None and prior.means is None:
        return means
    above = np.triu(sums.gram[:, :rank, :rank], 1)
    diagonal = np.einsum("ijj->ij", sums.gram[:, :rank, :rank]) + sums.variance[:, :rank]
    rest = np.einsum("ijk,ik->ij", above, means) + np.einsum("ikj,ik->ij", above, means)
    sums.rhs[:, :rank] -= rest + diagonal * means
    sums.target_sum[:] -= (designs * means).sum(axis=1)
    return means


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
