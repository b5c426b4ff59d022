"""Columns of a mode from noisy moments and projections: post-processing of what was released.

A *column* is a number for each level of a mode. Owners differ in how much they go along with it: an
owner's row holds its slopes on the columns. Which levels an owner has, and what is left of its values
there, are both taken to be such products plus noise:

    number at level j  ~  a_j (owner's slopes . q_j) + noise

so that the second moment over owners is Z Z' off the diagonal, with rows z_j = a_j q_j, and a
projection on directions that owners differ in is a multiple of q_j.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from sfumato.types import Array

_DENSE = 400  # levels up to which all eigenvectors are found at once
_PASSES, _BETWEEN = 8, 3  # of the power method towards the largest ones, and products in each
_ROUNDS = 15  # of empirical Bayes
_POPULARITY_DOUBT = 0.3  # how far a level's popularity may lie from what its count says


def symmetric(triangle: Array, size: int) -> Array:
    """The matrix with this upper triangle, and zeros on its diagonal."""
    matrix = np.zeros((size, size))
    matrix[np.triu_indices(size, 1)] = triangle
    whole: Array = matrix + matrix.T
    return whole


def largest_eigenvectors(
    matrix: Array, number: int, generator: np.random.Generator
) -> tuple[Array, Array]:
    """The largest eigenvalues of a symmetric matrix, falling, and their vectors."""
    size = matrix.shape[0]
    if size <= _DENSE:
        values, vectors = np.linalg.eigh(matrix)
        return values[::-1][:number], vectors[:, ::-1][:, :number]
    # Shifted, so that the largest are those of largest size; a few more vectors make it fast.
    scale = float(np.abs(matrix).max()) or 1.0
    matrix = matrix / scale
    shift = max(float(np.sqrt(np.square(matrix).sum() / size)), 1e-3)
    vectors = generator.standard_normal((size, min(size, number + 10)))
    for _ in range(_PASSES):
        for _ in range(_BETWEEN):
            vectors = matrix @ vectors + shift * vectors
        # By the Gram matrix: as good as QR for vectors that are this far apart, and small.
        vectors = np.linalg.solve(np.linalg.cholesky(vectors.T @ vectors), vectors.T).T
    vectors = np.linalg.qr(vectors)[0]
    values, turn = np.linalg.eigh(vectors.T @ matrix @ vectors)
    return scale * values[::-1][:number], (vectors @ turn[:, ::-1])[:, :number]


class Popular(NamedTuple):
    """What a moment says of levels beside their columns: a, with moment ~ a a' off the diagonal."""

    popularity: Array
    columns: Array


def factor_presence(
    moment: Array, deviation: float, counts: Array, number: int, generator: np.random.Generator
) -> Popular:
    """Popularity, which is of rank one, taken off; the rest factored."""
    values, vectors = largest_eigenvectors(moment, 1, generator)
    along = vectors[:, 0] * np.sign(vectors[:, 0].sum()) * np.sqrt(max(float(values[0]), 1e-12))
    likely = (along @ counts) / (counts @ counts) * counts
    likely = np.maximum(likely, 1e-6 * max(float(np.abs(along).max()), 1e-9))
    noise, doubt = deviation**2 / max(float(values[0]), 1e-12), (_POPULARITY_DOUBT * likely) ** 2
    popularity = (along / noise + likely / doubt) / (1 / noise + 1 / doubt)
    popularity = np.maximum(popularity, 0.05 * likely.mean())
    rest = moment - np.outer(popularity, popularity)
    np.fill_diagonal(rest, 0)
    return Popular(popularity, factor_moment(rest, deviation, popularity, number, generator))


def factor_moment(
    moment: Array, deviation: float, popularity: Array, number: int, generator: np.random.Generator
) -> Array:
    """Columns q of a moment Z Z' off the diagonal, z_j = popularity_j q_j; normal, of learnt variance.

    Eigenvectors first, of levels weighted so that popular ones do not drown the others; then rounds in
    which the diagonal is filled in, and each column shrunk by the noise that it has.
    """
    weights = np.sqrt(popularity / popularity.mean())
    values, vectors = largest_eigenvectors(weights[:, None] * moment * weights, number, generator)
    edge = 2 * deviation * np.sqrt(np.sum(weights**4))  # of the eigenvalues of noise alone
    values = (values + np.sqrt(np.maximum(values**2 - edge**2, 0))) / 2
    rows = vectors * np.sqrt(np.maximum(values, 0.3 * edge)) / weights[:, None]
    variances, cubes = np.zeros(0), float(np.sum(popularity**3))
    for _ in range(_ROUNDS):
        lengths, turn = np.linalg.eigh(rows.T @ rows)
        rows, lengths = rows @ turn[:, ::-1], np.maximum(lengths[::-1], 1e-9)
        raw = (moment @ rows + np.sum(rows * rows, 1)[:, None] * rows) / lengths
        noise = deviation**2 / lengths
        if not variances.size:
            variances = np.maximum((popularity @ (raw**2 - noise)) / cubes, 1e-6)
        known = 1 / (1 / noise + 1 / (popularity[:, None] ** 2 * variances))
        rows = raw * known / noise
        variances = np.maximum((popularity @ (rows**2 + known)) / cubes, 1e-8)
    columns: Array = rows / popularity[:, None]
    return columns


@dataclass(frozen=True, eq=False)
class Columns:
    """Posterior means of columns of variance one, and what is not known of them, by level.

    ``doubts`` is the sum over columns of the posterior variances.
    """

    means: Array
    doubts: Array

    @classmethod
    def none(cls, size: int) -> Columns:
        return cls(np.zeros((size, 0)), np.zeros(size))


def columns_from(sums: Array, variances: Array, counts: Array, number: int, weakest: float) -> Columns:
    """Uncorrelated columns from noisy projections, sums_j = counts_j q_j + noise of these variances.

    Each coordinate is shrunk by its noise, the variance of the q learnt from all levels. The first
    ``number`` principal components are kept. Those whose deviation is under 1 / ``weakest`` of the
    first one's are made smaller: owners differ less along them. They are scaled by what the *true*
    columns vary, so that columns of noise alone come out as nothing.
    """
    weights = counts / counts.sum()
    raw, noise = sums / counts[:, None], (variances / counts**2)[:, None]
    centre = weights @ raw
    signal = np.maximum(weights @ ((raw - centre) ** 2 - noise), 1e-9 * (weights @ raw**2) + 1e-300)
    for _ in range(_ROUNDS):
        kept = signal / (signal + noise)
        centre = (weights @ (kept * raw)) / (weights @ kept)
        means = kept * (raw - centre)
        signal = np.maximum(weights @ (means**2 + signal * (1 - kept)), 1e-300)
    doubts = signal * (1 - signal / (signal + noise))
    means -= weights @ means
    whole, turn = np.linalg.eigh((means.T * weights) @ means + np.diag(weights @ doubts))
    whole, turn = np.maximum(whole[::-1][:number], 1e-300), turn[:, ::-1][:, :number]
    scale = np.minimum(1.0, weakest * np.sqrt(whole / whole[0])) / np.sqrt(whole)
    return Columns((means @ turn) * scale, doubts @ (turn * scale) ** 2 @ np.ones(whole.shape[0]))


def orthonormal(columns: Array) -> Array:
    """An orthonormal basis; directions that hardly occur are made up."""
    basis: Array = np.linalg.svd(columns, full_matrices=False)[0]
    return basis
