"""Rows solved when predicting: somebody brings entries, and a row for them is solved on the spot.

The model stays as it is. Of a private fit this uses the release and the bringer's own entries, and
what comes out is theirs: it costs no budget, and nobody else's prediction changes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf

import numpy as np
from numpy.typing import DTypeLike, NDArray

from sfumato.data.tensor import Mode, SparseTensor, find_levels, locate
from sfumato.errors import SettingError, UnknownLabelError
from sfumato.models.multilinear import Multilinear
from sfumato.models.own_prior import OwnPrior
from sfumato.sites.memory import Site
from sfumato.solvers.least_squares.own_rows import AnyModel, solve_own
from sfumato.types import Array

_FLATTEST = 1e-12  # least prior variance of a column, over that of the widest: keeps its inverse finite
_LEAST_SCATTER = 1e-30


@dataclass(frozen=True, eq=False)
class OwnRows:
    """A model whose rows of one mode are those of the owners alone, with the modes to find them by."""

    mode: int
    modes: tuple[Mode, ...]
    model: Multilinear


def derived_prior(model: Multilinear, mode: int, scatter: float) -> OwnPrior:
    """A prior of one more row of a mode, from the mode's rows: their mean, and how far they spread.

    ``scatter`` is the variance of what the model leaves of a value. Nothing is said about how certain
    the other rows are. Rows of a fit are pulled to their mean already, so that this pulls a little more
    than the fit did; with more than a few entries that hardly shows.
    """
    rows, biases = (part[mode].astype(np.float64) for part in (model.factors, model.mode_biases))
    if not rows.any() and not biases.any():
        raise SettingError(
            "this model predicts the same for everyone, whatever their entries: predict without own ones"
        )
    mean, bias_power = float(rows.mean()), float(np.mean(biases**2))
    power = np.mean((rows - mean) ** 2, axis=0)
    return OwnPrior(
        mode=mode,
        precisions=1 / np.maximum(power, _FLATTEST * max(float(power.max()), 1.0)),
        mean=mean,
        bias_precision=1 / bias_power if bias_power else inf,
        scatter=max(scatter, _LEAST_SCATTER),
    )


def solve_for_owners(
    model: Multilinear,
    modes: Sequence[Mode],
    prior: OwnPrior,
    own: SparseTensor,
    *,
    skip_unknown: bool,
    threads: int,
) -> OwnRows:
    """Rows of the owners of some entries, found in the model's other modes by their labels.

    An entry with a label that the model does not know is an error, or left out.
    """
    tensor = among_levels(modes, prior.mode, own, model.dtype, skip_unknown=skip_unknown)
    return OwnRows(prior.mode, tensor.modes, with_own_rows(model, prior, tensor, threads))


def among_levels(
    modes: Sequence[Mode], mode: int, own: SparseTensor, dtype: DTypeLike, *, skip_unknown: bool = False
) -> SparseTensor:
    """Own entries at a model's levels, found by their labels; of one mode the owners are all there are.

    An entry with a label that the model does not know is an error, or left out.
    """
    taken, owners = np.unique(own.coordinates[mode], return_inverse=True)
    mine = replace(modes[mode], size=taken.size, labels=own.modes[mode].labels_at(taken))
    known_modes = [other for m, other in enumerate(modes) if m != mode]
    cells = {
        there.name: there.labels_at(levels)
        for m, (there, levels) in enumerate(zip(own.modes, own.coordinates, strict=True))
        if m != mode
    }
    others = find_levels(known_modes, cells) if skip_unknown else _located(known_modes, cells)
    known = (others >= 0).all(axis=0)
    if not known.any():
        raise UnknownLabelError("none of the own entries has labels that the model knows")
    return SparseTensor(
        np.insert(others, mode, owners, axis=0)[:, known],
        own.values[known].astype(dtype),
        tuple(mine if m == mode else other for m, other in enumerate(modes)),
    )


def with_own_rows(model: AnyModel, prior: OwnPrior, tensor: SparseTensor, threads: int) -> AnyModel:
    """The model with rows of the owners of a tensor's entries, as many as it has levels for."""
    size = tensor.shape[prior.mode]
    nobody = np.zeros((size, model.ranks[prior.mode])), np.zeros(size)
    return solve_own(model.with_rows(prior.mode, *nobody), prior, Site(tensor, threads))


def _located(modes: Sequence[Mode], cells: Mapping[str, Array]) -> NDArray[np.int32]:
    try:
        return locate(modes, cells)
    except UnknownLabelError as error:
        raise UnknownLabelError(
            f"among the own entries: {error}; own entries with such labels are then left out"
        ) from error
