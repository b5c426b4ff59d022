"""How an owner's row is solved from the released model and the owner's own entries: the public part."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any, NamedTuple

import numpy as np

from sfumato.errors import SettingError
from sfumato.records import record
from sfumato.types import Array


@record
class RowNoise(NamedTuple):
    """Variance of a mode's released rows: at row i and column r, ``levels[i] * columns[r]``."""

    levels: Array
    columns: Array


@record
class Pull(NamedTuple):
    """Who has entries where a column is large goes along with it: that moves the mean of its row.

    The prior mean of column r is ``strengths[r]`` times how far the mean of the row's own designs lies
    from ``centre[r]``.
    """

    strengths: Array
    centre: Array


@record
class Certainty(NamedTuple):
    """How far noise may have moved what was released: the model's mean, and the scatter.

    Standard deviations, and as much again where a number is assumed that may be anything.
    """

    mean: float
    scatter: float


@record
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
    pull : what the row's own designs say of its mean, or None.
    bias_precision : prior precision of the row's bias, whose mean is zero; infinity for no bias.
    scatter : variance of what the model leaves of a value.
    doubts : for each mode an array, or None: the variance that the uncertainty of each level adds to
        what is left of its entries. Empty where nothing is in doubt.
    row_noise : for each mode the variances of its rows' columns, or None. Unlike a doubt, which is
        about an entry's value, they lengthen the designs of a row: they act as a ridge that grows with
        the row's entries. Empty where there are none.
    certainty : how far mean and scatter can be trusted, or None where nothing was learnt of them.
    means : what other tables say of the rows: for each of them the means of its columns, or None. They
        add to all other means. Held where the rows are, and never written: they may be made of their
        owners' own entries.
    """

    mode: int
    precisions: Array
    mean: float = 0.0
    turn: Array | None = None
    pull: Pull | None = None
    bias_precision: float = inf
    scatter: float
    doubts: tuple[Array | None, ...] = ()
    row_noise: tuple[RowNoise | None, ...] = ()
    certainty: Certainty | None = None
    means: Array | None = None

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
        if self.pull is not None and not (
            np.shape(self.pull) == (2, ranks[self.mode]) and np.isfinite(self.pull).all()
        ):
            raise SettingError("what pulls own rows must be two finite numbers for each column")
        if self.certainty is not None and not (
            np.isfinite(self.certainty).all() and min(self.certainty) >= 0
        ):
            raise SettingError("errors of mean and scatter must be numbers of zero or more")
        if self.means is not None and not (
            np.shape(self.means) == (sizes[self.mode], ranks[self.mode])
            and np.isfinite(self.means).all()
        ):
            raise SettingError("means of own rows must be finite numbers, a row for each level")
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

    # -- as equations take it -------------------------------------------------------------------

    @property
    def diagonal(self) -> Array:
        """Precisions of a row's columns; none where they are correlated."""
        return self.precisions if self.turn is None else np.zeros_like(self.precisions)

    @property
    def as_entries(self) -> Array | None:
        """Where columns are correlated, the Gram matrix of entries that would say the same of them."""
        if self.turn is None:
            return None
        inverse = np.linalg.inv(self.turn)
        matrix: Array = (inverse.T * self.precisions) @ inverse
        return self.scatter * matrix

    # -- as it is written -----------------------------------------------------------------------

    def to_json(self) -> dict[str, Any]:
        """Its numbers; the arrays are those of :meth:`tensors`."""
        bias_precision = None if np.isinf(self.bias_precision) else float(self.bias_precision)
        return {
            "mode": int(self.mode),
            "mean": float(self.mean),
            "bias_precision": bias_precision,
            "scatter": float(self.scatter),
            "mean_error": None if self.certainty is None else float(self.certainty.mean),
            "scatter_error": None if self.certainty is None else float(self.certainty.scatter),
        }

    def tensors(self) -> dict[str, Array]:
        """Its arrays by name."""
        arrays = {"own_precisions": self.precisions}
        if self.turn is not None:
            arrays["own_turn"] = self.turn
        if self.pull is not None:
            arrays |= {"own_pull": self.pull.strengths, "own_centre": self.pull.centre}
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
        mean_error, scatter_error = numbers.get("mean_error"), numbers.get("scatter_error")
        certainty = None
        if mean_error is not None and scatter_error is not None:  # an earlier version has none
            certainty = Certainty(float(mean_error), float(scatter_error))
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
            pull=Pull(tensors["own_pull"], tensors["own_centre"]) if "own_pull" in tensors else None,
            bias_precision=inf if bias_precision is None else float(bias_precision),
            scatter=float(numbers["scatter"]),
            doubts=doubts if any(doubt is not None for doubt in doubts) else (),
            row_noise=row_noise if any(noise is not None for noise in row_noise) else (),
            certainty=certainty,
        )
