"""What an alternating private fit asks the data, and the clipped answers. Proofs: ``alternating.md``."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, sqrt

import numpy as np

from sfumato.kernels.grid import grid
from sfumato.kernels.numba.alternating import Features, Weighting
from sfumato.kernels.numba.contributions import moment_of_rows
from sfumato.models.multilinear import Multilinear
from sfumato.models.own_prior import OwnPrior
from sfumato.privacy.clipping import Clipped
from sfumato.privacy.units import PrivacyUnit
from sfumato.records import record
from sfumato.sites.memory import Site
from sfumato.solvers.least_squares.own_rows import solve_own
from sfumato.solvers.private.contributions import entries_of, taken_off
from sfumato.solvers.private.known import Known
from sfumato.solvers.protocol import SumQuery
from sfumato.types import Array


@record
@dataclass(frozen=True)
class ScatterQuery(SumQuery):
    """Ask for the squares of what mean and biases leave, each clipped to ``most``.

    By entry their sum; by unit the sum of their means, and of ``most`` for each unit. A unit takes its
    own mean off first, and counts in part where it has few entries.
    """

    known: Known
    mean: float
    biases: tuple[Array, ...]  # by mode
    most: float

    def clipped(self, site: Site) -> Clipped:
        known, facts, most, step = self.known, self.known.facts, self.most, grid(self.most)
        entries = entries_of(site, facts)
        # Own biases are zero where there are any: a unit's own mean stands for its bias.
        used = [m for m in range(facts.shape.order) if m != facts.unit_mode]
        taken = taken_off(facts, self.mean, self.biases, used)
        if entries.by_unit:
            sums = site.contributions.squares_of_units(entries, taken, most, known.ridge, site.threads)
            return Clipped(sums, inf, sqrt(2) * most, step)
        sums = site.contributions.squares_of_entries(entries, taken, most, site.threads)
        return Clipped(sums, most, most, step, single=True)


@record
@dataclass(frozen=True)
class Owners:
    """How units solve their own rows: from the model as it was when the round began, and a prior.

    A round has several questions. Rows are solved for the first of them, and kept where the data are
    for as long as questions come with equal owners.
    """

    prior: OwnPrior
    start: Multilinear

    def rows(self, site: Site) -> Multilinear:
        """A model with own rows as solved from the round's beginning; at the data, where they stay."""
        return site.latest(self, lambda: solve_own(self.start, self.prior, site).with_own_core())

    def joined(self, model: Multilinear, site: Site) -> Multilinear:
        """Another model with these own rows, until it is asked for with the next one.

        Own rows may be many: the others are written to the model that these are kept in.
        """
        own, kept = self.prior.mode, self.rows(site)
        for mode in range(model.order):
            if mode != own:
                kept.rows[kept.span(mode)] = model.rows[model.span(mode)]
                kept.biases[kept.span(mode)] = model.biases[model.span(mode)]
        kept.free_core[:] = model.free_core
        return kept.with_mean(model.mean)


@record
@dataclass(frozen=True)
class OwnQuery(SumQuery):
    """Ask for the second moment of own rows' coordinates, each shortened to ``length``.

    Sum of the products x x' of units' own rows, and of the squared ``length`` of each unit. Products are
    the upper triangle of a matrix, off the diagonal times sqrt(2), so that a unit's are as long as the
    square of its row.
    """

    owners: Owners
    length: float

    def clipped(self, site: Site) -> Clipped:
        prior, most = self.owners.prior, self.length**2
        rows, counts = self.owners.rows(site).factors[prior.mode], site.by_mode(prior.mode).counts
        turn = np.eye(rows.shape[1]) if prior.turn is None else np.linalg.inv(prior.turn).T
        sums = moment_of_rows(rows, counts, np.ascontiguousarray(turn), self.length, site.threads)
        return Clipped(sums, inf, sqrt(2) * most, grid(most))


@record
@dataclass(frozen=True)
class BlockQuery(SumQuery):
    """Ask for the sums of a block by entry, for all of its levels."""

    unit: PrivacyUnit
    model: Multilinear
    block: int
    features: Features

    def clipped(self, site: Site) -> Clipped:
        model, block, features = self.model, self.block, self.features
        sums = site.entry_sums(model, block, features)
        # One entry more or less adds what it has; a value replaced by another, at most twice that.
        bound = features.bound * (2 if self.unit.replaces else 1)
        return Clipped(sums, inf, bound, grid(features.bound))


@record
@dataclass(frozen=True)
class UnitBlockQuery(SumQuery):
    """Ask for the sums of a block by unit, after each unit has solved its own rows."""

    model: Multilinear
    block: int
    features: Features
    weighting: Weighting
    owners: Owners

    def clipped(self, site: Site) -> Clipped:
        own, model = self.owners.prior.mode, self.owners.joined(self.model, site)
        sums = site.unit_sums(model, self.block, self.features, self.weighting, own)
        return Clipped(sums, inf, self.weighting.bound, grid(self.weighting.bound))


def symmetric(triangle: Array, size: int) -> Array:
    """The matrices, one for each row, whose upper triangles are given as in :class:`OwnQuery`."""
    first, second = np.triu_indices(size)
    matrix = np.zeros((*triangle.shape[:-1], size, size))
    matrix[..., first, second] = triangle * np.where(first == second, 1.0, sqrt(0.5))
    matrix[..., second, first] = matrix[..., first, second]
    return matrix
