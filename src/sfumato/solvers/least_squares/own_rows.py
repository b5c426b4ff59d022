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

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any, NamedTuple

import numpy as np

from sfumato.errors import SettingError
from sfumato.kernels.numba.normal import Ridge, Uncertainty, normal_equations, solve_rows
from sfumato.kernels.numba.simd import aligned_zeros
from sfumato.models.multilinear import Multilinear
from sfumato.sites.memory import Site, WeightedSite
from sfumato.types import Array

_ROWS = 4096  # rows solved at a time: bounds the memory of their normal equations


class RowNoise(NamedTuple):
    """Variance of a mode's released rows: at row i and column r, ``levels[i] * columns[r]``."""

    levels: Array
    columns: Array


@dataclass(frozen=True, eq=False, kw_only=True)
class OwnPrior:
    """What an own row is expected to be, and how far an entry can be trusted. Public.

    Parameters
    ----------
    mode : whose rows are solved.
    precisions : prior precision of each column of a row.
    mean : prior mean of every column.
    turn : a matrix T, or None: rows are T b, where the precisions are those of the coordinates b, and
        their means zero. Columns of rows can so be correlated.
    bias_precision : prior precision of the row's bias, whose mean is zero; infinity for no bias.
    scatter : variance of what the model leaves of a value.
    doubts : for each mode an array, or None: the variance that the uncertainty of each level adds to
        what is left of its entries. Empty where nothing is in doubt.
    row_noise : for each mode the variances of its rows' columns, or None. Unlike a doubt, which is
        about an entry's value, they lengthen the designs of a row: they act as a ridge that grows with
        the row's entries. Empty where there are none.
    """

    mode: int
    precisions: Array
    mean: float = 0.0
    turn: Array | None = None
    bias_precision: float = inf
    scatter: float
    doubts: tuple[Array | None, ...] = ()
    row_noise: tuple[RowNoise | None, ...] = ()

    def check(self, sizes: Sequence[int], ranks: Sequence[int]) -> None:
        """Raise a ``SettingError`` where the prior does not fit a model's modes."""
        if not 0 <= self.mode < len(sizes) or np.shape(self.precisions) != (ranks[self.mode],):
            raise SettingError("the prior of own rows is one of another model")
        positive = np.array([*self.precisions, self.scatter])
        if not (np.isfinite(positive) & (positive > 0)).all() or not self.bias_precision > 0:
            raise SettingError("precisions and scatter of own rows must be numbers above zero")
        if self.turn is not None and (
            np.shape(self.turn) != (ranks[self.mode],) * 2
            or not np.isfinite(self.turn).all()
            or np.linalg.matrix_rank(self.turn) < ranks[self.mode]
        ):
            raise SettingError("the turn of own rows must be a matrix with an inverse, of a row's size")
        for parts in (self.doubts, self.row_noise):
            if parts and len(parts) != len(sizes):
                raise SettingError(f"a model of {len(sizes)} modes needs as many doubts or None")
        arrays = [(doubt, sizes[m]) for m, doubt in enumerate(self.doubts) if doubt is not None]
        for m, noise in enumerate(self.row_noise):
            if noise is not None:
                arrays += [(noise.levels, sizes[m]), (noise.columns, ranks[m])]
        for array, size in arrays:
            if np.shape(array) != (size,) or not (np.isfinite(array) & (array >= 0)).all():
                raise SettingError("doubts about released rows must be variances, one for each level")

    # -- as it is written -----------------------------------------------------------------------

    def to_json(self) -> dict[str, Any]:
        """Its numbers; the arrays are those of :meth:`tensors`."""
        bias_precision = None if np.isinf(self.bias_precision) else float(self.bias_precision)
        return {
            "mode": int(self.mode),
            "mean": float(self.mean),
            "bias_precision": bias_precision,
            "scatter": float(self.scatter),
        }

    def tensors(self) -> dict[str, Array]:
        """Its arrays by name."""
        arrays = {"own_precisions": self.precisions}
        if self.turn is not None:
            arrays["own_turn"] = self.turn
        arrays |= {f"own_doubts_{m}": d for m, d in enumerate(self.doubts) if d is not None}
        for m, noise in enumerate(self.row_noise):
            if noise is not None:
                arrays[f"own_noise_levels_{m}"] = noise.levels
                arrays[f"own_noise_columns_{m}"] = noise.columns
        return {name: np.ascontiguousarray(array, np.float64) for name, array in arrays.items()}

    @classmethod
    def from_parts(
        cls, numbers: Mapping[str, Any], tensors: Mapping[str, Array], order: int
    ) -> OwnPrior:
        """What :meth:`to_json` and :meth:`tensors` gave, for a model with so many modes."""
        bias_precision = numbers["bias_precision"]
        doubts = tuple(tensors.get(f"own_doubts_{m}") for m in range(order))
        row_noise = tuple(
            RowNoise(tensors[f"own_noise_levels_{m}"], tensors[f"own_noise_columns_{m}"])
            if f"own_noise_levels_{m}" in tensors
            else None
            for m in range(order)
        )
        return cls(
            mode=int(numbers["mode"]),
            precisions=tensors["own_precisions"],
            mean=float(numbers["mean"]),
            turn=tensors.get("own_turn"),
            bias_precision=inf if bias_precision is None else float(bias_precision),
            scatter=float(numbers["scatter"]),
            doubts=doubts if any(doubt is not None for doubt in doubts) else (),
            row_noise=row_noise if any(noise is not None for noise in row_noise) else (),
        )


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
            sums.gram[:, :rank, :rank] += prior.scatter * _precision(prior)
        here = slice(solved.offsets[mode] + low, solved.offsets[mode] + high)
        rows, biases = solved.rows[here], solved.biases[here]
        solve_rows(sums, ridge, rank, rows, biases, none, none.ravel(), site.threads)
    return solved


def row_products(rows: Array, matrix: Array) -> Array:
    """``rows @ matrix``, each row by itself.

    BLAS rounds a row by where it stands and by how many others there are, so that one owner's presence
    would show in the last digits of another's row. Sums over columns in order do not.
    """
    product: Array = rows[:, :1] * matrix[0]
    for r in range(1, rows.shape[1]):
        product += rows[:, r, None] * matrix[r]
    return product


def _precision(prior: OwnPrior) -> Array:
    """Precision matrix of rows T b: that of b between the inverses of T."""
    assert prior.turn is not None
    inverse = np.linalg.inv(prior.turn)
    matrix: Array = (inverse.T * prior.precisions) @ inverse
    return matrix


def _weighted(prior: OwnPrior, site: Site) -> Site:
    """The entries with weights, where some are in doubt."""
    if not any(doubt is not None for doubt in prior.doubts):
        return site
    tensor = site.tensor
    variance = np.full(tensor.n_entries, prior.scatter)
    for doubt, levels in zip(prior.doubts, tensor.coordinates, strict=True):
        if doubt is not None:
            variance += doubt[levels]
    weights = (prior.scatter / variance).astype(tensor.values.dtype)
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
