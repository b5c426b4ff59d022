"""What an alternating private fit asks the data, and the clipped answers. Proofs: ``alternating.md``."""

from __future__ import annotations

from math import inf, sqrt
from typing import NamedTuple

import numpy as np

from sfumato.kernels.grid import BELOW_ONE, cut, grid
from sfumato.kernels.numba.alternating import Features, Weighting, entry_sums, unit_sums
from sfumato.models.multilinear import Multilinear
from sfumato.privacy.clipping import Clipped
from sfumato.privacy.units import PrivacyUnit
from sfumato.sites.memory import Site
from sfumato.solvers.least_squares.own_rows import OwnPrior, row_products, solve_own
from sfumato.solvers.private.biases import Known
from sfumato.solvers.private.contributions import arrange
from sfumato.types import Array


class ScatterQuery(NamedTuple):
    """Ask for the squares of what mean and biases leave, each clipped to ``most``."""

    known: Known
    model: Multilinear
    most: float


class Owners(NamedTuple):
    """How units solve their own rows: once for all questions that come with the same ``key``."""

    prior: OwnPrior
    key: object

    def rows(self, model: Multilinear, site: Site) -> Multilinear:
        """The model with own rows solved; at the data, where they stay."""
        mode = self.prior.mode
        solved = site.latest(self.key, lambda: solve_own(model, self.prior, site))
        return model.with_rows(mode, solved.factors[mode], solved.mode_biases[mode])


class OwnQuery(NamedTuple):
    """Ask for the second moment of own rows' coordinates, each shortened to ``length``."""

    model: Multilinear
    owners: Owners
    length: float


class BlockQuery(NamedTuple):
    """Ask for the sums of a block; with owners, after each unit has solved its own rows."""

    unit: PrivacyUnit
    model: Multilinear
    block: int
    features: Features
    weighting: Weighting | None
    owners: Owners | None


def scatter_statistics(query: ScatterQuery, site: Site) -> Clipped:
    """Sum of squared residuals, by entry; by unit, of their means, and of ``most`` for each unit.

    A unit takes its own mean off first, and counts in part where it has few entries.
    """
    known, most = query.known, query.most
    arranged, step = arrange(site, known.unit_mode, known.bounds), grid(query.most)
    rest = arranged.values - query.model.mean
    for biases, levels in zip(query.model.mode_biases, arranged.levels, strict=True):
        rest -= biases[levels]
    if known.unit_mode is None:
        squares = np.minimum(np.square(rest), most)
        return Clipped(np.array([cut(squares, step).sum()]), most, most, single=True)
    counts = np.diff(arranged.starts)
    there = counts > 0
    firsts, counts = arranged.starts[:-1][there], counts[there]
    own = np.add.reduceat(rest, firsts) / (counts + known.ridge)
    squares = np.minimum(np.square(rest - np.repeat(own, counts)), most)
    means, parts = np.add.reduceat(squares, firsts) / counts, counts / (counts + known.ridge)
    pair = [np.minimum(parts * means, most), parts * most]
    return Clipped(np.array([cut(part, step).sum() for part in pair]), inf, sqrt(2) * most)


def own_statistics(query: OwnQuery, site: Site) -> Clipped:
    """Sum of the products x x' of units' own rows, and of the squared ``length`` for each unit.

    The products as the upper triangle of a matrix, off the diagonal times sqrt(2), so that a unit's
    are as long as the square of its row.
    """
    prior, most = query.owners.prior, query.length**2
    mode = prior.mode
    rows = query.owners.rows(query.model, site).factors[mode]
    rows = rows[site.by_mode(mode).counts > 0]
    if prior.turn is not None:
        rows = row_products(rows, np.linalg.inv(prior.turn).T)
    rows = np.where(np.isfinite(rows).all(axis=1, keepdims=True), rows, 0.0)
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    rows = rows * np.minimum(1.0, query.length * BELOW_ONE / np.maximum(lengths, 1e-300))
    first, second = np.triu_indices(rows.shape[1])
    scale, step = np.where(first == second, 1.0, sqrt(2)), grid(most)
    products = cut(rows[:, first] * rows[:, second] * scale, step).sum(axis=0)
    return Clipped(np.append(products, rows.shape[0] * cut(most, step)), inf, sqrt(2) * most)


def symmetric(triangle: Array, size: int) -> Array:
    """The matrices, one for each row, whose upper triangles are given as in :func:`own_statistics`."""
    first, second = np.triu_indices(size)
    matrix = np.zeros((*triangle.shape[:-1], size, size))
    matrix[..., first, second] = triangle * np.where(first == second, 1.0, sqrt(0.5))
    matrix[..., second, first] = matrix[..., first, second]
    return matrix


def block_statistics(query: BlockQuery, site: Site) -> Clipped:
    """Sums of a block for all of its levels."""
    model, block, features = query.model, query.block, query.features
    if query.weighting is None:
        sums = entry_sums(model, block, features, site.by_mode(max(block, 0)), site.threads)
        # One entry more or less adds what it has; a value replaced by another, at most twice that.
        return Clipped(sums, inf, features.bound * (2 if query.unit.replaces else 1))
    assert query.owners is not None
    own = query.owners.prior.mode
    model = query.owners.rows(model, site)
    sums = unit_sums(model, block, features, query.weighting, site.by_mode(own), own, site.threads)
    return Clipped(sums, inf, query.weighting.bound)
