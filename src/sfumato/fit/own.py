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
from sfumato.models.several import Several
from sfumato.sites.memory import Site
from sfumato.sites.several import RelationSites
from sfumato.solvers.least_squares.own_rows import AnyModel, solve_own
from sfumato.solvers.private.sides.queries import prior_with_means
from sfumato.types import Array

_FLATTEST = 1e-12  # least prior variance of a column, over that of the widest: keeps its inverse finite
_LEAST_SCATTER = 1e-30


@dataclass(frozen=True, eq=False)
class OwnRows:
    """A model whose rows of one mode are those of the owners alone, with the modes to find them by."""

    mode: int
    modes: tuple[Mode, ...]
    model: Multilinear
    entries: Array  # how many each owner brings


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
    solved = with_own_rows(model, prior, tensor, threads)
    return OwnRows(prior.mode, tensor.modes, solved, _brought(tensor, prior.mode))


def _brought(tensor: SparseTensor, mode: int) -> Array:
    return np.bincount(tensor.coordinates[mode], minlength=tensor.shape[mode])


@dataclass(frozen=True, eq=False)
class OwnRelation:
    """One of several relations as somebody sees it who brings entries: its modes, and those entries."""

    modes: tuple[Mode, ...]
    local: int | None
    own: SparseTensor | None

    @property
    def owners(self) -> list[str]:
        """Labels of those who bring entries here."""
        if self.own is None or self.local is None:
            return []
        taken = np.unique(self.own.coordinates[self.local])
        return [str(label) for label in self.own.modes[self.local].labels_at(taken)]


def solve_for_owners_of_several(
    several: Several,
    relations: Sequence[OwnRelation],
    part: int,
    *,
    skip_unknown: bool,
    threads: int,
) -> OwnRows:
    """Rows in one of several relations, solved from entries there and in those that tell about them."""
    model, prior = several.models[part], several.own_priors[part]
    means, mode = several.means_of(part), relations[part].local
    if mode is None or prior is None:
        raise SettingError("own entries solve rows that stay with their owners: there are none here")
    told = () if means is None or means.own is None else means.own.sources
    needed = [part, *(source.part for source in told)]
    labels = list(dict.fromkeys(label for p in needed for label in relations[p].owners))
    if not labels:
        raise SettingError("none of the own entries is of a relation that tells about this one")
    brought = [each if p in needed else replace(each, own=None) for p, each in enumerate(relations)]
    site = RelationSites(
        [_of_owners(each, labels, model.dtype, skip_unknown=skip_unknown) for each in brought], threads
    )
    nobody = np.zeros((len(labels), model.ranks[mode])), np.zeros(len(labels))
    empty = model.with_rows(mode, *nobody)
    if means is not None and told:
        prior = prior_with_means(means, prior, empty, site)
    held = site.parts[part]
    solved = solve_own(empty, prior, held)
    return OwnRows(mode, held.tensor.modes, solved, _brought(held.tensor, mode))


def _of_owners(
    relation: OwnRelation, labels: Sequence[str], dtype: DTypeLike, *, skip_unknown: bool
) -> SparseTensor:
    """Own entries of a relation, perhaps none, its owners being these."""
    modes, mode = relation.modes, relation.local or 0
    owners = replace(modes[mode], size=len(labels), labels=np.array(labels, object))
    if relation.own is not None:
        return among_levels(modes, mode, relation.own, dtype, owners, skip_unknown=skip_unknown)
    named = tuple(owners if m == mode else other for m, other in enumerate(modes))
    nowhere = np.zeros((len(modes), 0), np.int32)
    return SparseTensor(nowhere, np.zeros(0, dtype), named, _checked=True)


def among_levels(
    modes: Sequence[Mode],
    mode: int,
    own: SparseTensor,
    dtype: DTypeLike,
    mine: Mode | None = None,
    *,
    skip_unknown: bool = False,
) -> SparseTensor:
    """Own entries at a model's levels, found by their labels; of one mode the owners are all there are,
    or those named.

    An entry with a label that the model does not know is an error, or left out.
    """
    taken, owners = np.unique(own.coordinates[mode], return_inverse=True)
    if mine is None:
        mine = replace(modes[mode], size=taken.size, labels=own.modes[mode].labels_at(taken))
    else:
        owners = mine.find(own.modes[mode].labels_at(taken)).astype(np.int64)[owners]
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
