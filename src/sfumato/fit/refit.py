"""A model of a site's own raw data, with a release as prior: it stays with the site.

A site that took part in a private fit, or has been handed its release, has raw data of its own. It may
fit *all* parameters to these, rows of items too, with the released ones as features of what they are
expected to be (:mod:`~sfumato.solvers.least_squares.informed`). How far that is to be trusted is learnt.
Some of the site's entries are held out to choose between that, a fit without the release, and how much
of the release as it is to mix in. All this looks at raw data: what comes out is as secret as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np

from sfumato.data import prepare
from sfumato.data.tensor import Mode, SparseTensor
from sfumato.engines.local import Local
from sfumato.fit.completion import carry_out
from sfumato.fit.own import with_own_rows
from sfumato.fit.plan import Plan
from sfumato.metrics import rmse
from sfumato.models.multilinear import CPModel
from sfumato.models.own_prior import OwnPrior
from sfumato.models.shape import Shape, usual_rank
from sfumato.sites.memory import Site
from sfumato.solvers.least_squares.als import ALS
from sfumato.solvers.least_squares.informed import InformedALS, features_of
from sfumato.solvers.protocol import Run
from sfumato.types import Array

HELD_OUT = 0.1  # of the site's entries
_ENOUGH = 100  # entries, for what is held out to say anything
_RANK = 16  # of a site's own model where it has levels for it: what is too much is shrunk away
_HAIR = 1e-3  # by which share of the error a simpler choice may be worse

Bounds = tuple[float, float] | None


@dataclass(frozen=True)
class Chosen:
    """What a site's model was made of, by the errors at entries that were held out.

    ``weight`` is that of the release as it is; the rest is a fit to the site's data, ``informed`` by the
    release or without it. ``errors`` are RMSEs; there are none where entries were too few to hold some
    out, and the release is taken as it is.
    """

    weight: float
    informed: bool
    errors: dict[str, float]


class Refit(NamedTuple):
    """A site's model, and how it was chosen."""

    model: CPModel
    chosen: Chosen


@dataclass(frozen=True, eq=False)
class Given:
    """What a site starts from: a release, how its own rows are solved, and its own entries.

    Entries are at the release's levels but for the mode ``mode``, which has the site's own. ``prior`` is
    None for a release that predicts the same for everyone.
    """

    release: CPModel
    prior: OwnPrior | None
    mode: int
    tensor: SparseTensor
    bounds: Bounds
    run: Run

    def as_released(self, tensor: SparseTensor) -> CPModel:
        """The release with rows of the site's own levels, solved from a tensor's entries."""
        if self.prior is None:
            size = tensor.shape[self.mode]
            nobody = np.zeros((size, self.release.rank)), np.zeros(size)
            return self.release.with_rows(self.mode, *nobody)
        return with_own_rows(self.release, self.prior, tensor, self.run.threads)

    def fitted(self, informed: bool, tensor: SparseTensor) -> CPModel:
        """A fit to a tensor's entries, with the release as prior or without it."""
        rank = site_rank(tensor.modes, tensor.n_entries)
        shape = Shape.of(tensor.modes, (rank,) * tensor.order, "cp", dtype=tensor.values.dtype.name)
        solver = InformedALS(features=self.features()) if informed else ALS()
        plan = Plan(shape, solver, self.run)
        model: CPModel = carry_out(plan, Local(Site(tensor, self.run.threads))).model
        return model

    def features(self) -> Array:
        """What the release says of shared modes.

        Rows of the site's own levels, where they are released too, were made of the same few entries:
        they would know what is held out.
        """
        return features_of(self.release, self.tensor.shape, without=self.mode)

    def predicted(self, model: CPModel, cells: SparseTensor) -> Array:
        return model.predict(cells.coordinates, threads=self.run.threads)

    def error(self, cells: SparseTensor, values: Array) -> float:
        return rmse(cells.values, values if self.bounds is None else np.clip(values, *self.bounds))


def site_rank(modes: Sequence[Mode], entries: int) -> int:
    """The rank of a site's own fit, with a release as prior or without."""
    sizes = [mode.size for mode in modes]
    return max(usual_rank(sizes, entries), min(_RANK, min(sizes) // 2))


def refit(given: Given) -> Refit:
    """The model that is best at held-out entries of the site's own, fitted to all of them."""
    whole = given.tensor
    if whole.n_entries < _ENOUGH:
        return Refit(given.as_released(whole), Chosen(1.0, informed=False, errors={}))
    chosen = _choose(given, *prepare.split(whole, HELD_OUT, seed=given.run.seed))
    if chosen.weight == 1:
        return Refit(given.as_released(whole), chosen)
    own = given.fitted(chosen.informed, whole)
    if chosen.weight == 0:
        return Refit(own, chosen)
    return Refit(blended(given.as_released(whole), own, chosen.weight, given.mode), chosen)


def _choose(given: Given, train: SparseTensor, held: SparseTensor) -> Chosen:
    ways: dict[str, Callable[[SparseTensor], CPModel]] = {
        "release": given.as_released,
        "refit": partial(given.fitted, True),
        "alone": partial(given.fitted, False),
    }
    values = {name: given.predicted(way(train), held) for name, way in ways.items()}
    errors = {name: given.error(held, found) for name, found in values.items()}
    informed = errors["refit"] <= errors["alone"]
    own = "refit" if informed else "alone"
    weight = _best_weight(values["release"], values[own], held.values)
    mixed = given.error(held, weight * values["release"] + (1 - weight) * values[own])
    if mixed > (1 - _HAIR) * min(errors["release"], errors[own]):
        weight = float(errors["release"] < errors[own])
        mixed = errors["release"] if weight else errors[own]
    return Chosen(weight, informed, {**errors, "chosen": mixed})


def _best_weight(first: Array, second: Array, values: Array) -> float:
    """The share of the first in the mixture with the least square error."""
    apart = first - second
    size = float(apart @ apart)
    return float(np.clip(apart @ (values - second) / size, 0.0, 1.0)) if size else 0.0


def blended(first: CPModel, second: CPModel, weight: float, mode: int) -> CPModel:
    """The model that predicts so much of one and the rest of the other: components of both."""
    factors = [np.hstack(pair) for pair in zip(first.factors, second.factors, strict=True)]
    factors[mode] = np.hstack([weight * first.factors[mode], (1 - weight) * second.factors[mode]])
    biases = [
        weight * one + (1 - weight) * other
        for one, other in zip(first.mode_biases, second.mode_biases, strict=True)
    ]
    mean = weight * first.mean + (1 - weight) * second.mean
    return CPModel.from_factors(factors, mean=mean, biases=biases)
