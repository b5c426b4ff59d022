"""What Langevin dynamics ask the data: gradients of random entries, and divergences of all."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Literal

import numpy as np

from sfumato.data.relations import Relation
from sfumato.errors import DataError, SettingError
from sfumato.kernels.numba.threads import run
from sfumato.models.coupled import CoupledModel
from sfumato.models.posterior import Family
from sfumato.records import record
from sfumato.sites.coupled import CoupledSite
from sfumato.sites.memory import Site
from sfumato.solvers.coupled.shape import coupled_site
from sfumato.solvers.coupled.slopes import Slopes, slopes
from sfumato.solvers.coupled.sums import divergence
from sfumato.surface import either
from sfumato.types import Array

Batch = int | Literal["all"] | None
DIVERGENCE: dict[Family, float] = {"normal": 0.0, "poisson": 1.0}
_WORTH_A_THREAD = 10_000  # entries of a batch: waking a thread takes as long as some thousand of them


@record
@dataclass(frozen=True, eq=False)
class Losses:
    """Divergences of each chain (row) and relation, and how many observed cells relations have."""

    sums: Array
    cells: Array

    def __add__(self, other: Losses) -> Losses:
        return Losses(self.sums + other.sums, self.cells + other.cells)


@record
@dataclass(frozen=True)
class SlopeQuery:
    """Ask for gradients at each chain's parameters, each from a batch of its own."""

    models: tuple[CoupledModel, ...]
    family: Family
    precisions: tuple[Array, ...]
    seed: tuple[int, int]
    batch: Batch
    with_scales: bool

    def answer(self, site: Site | CoupledSite) -> tuple[Slopes, ...]:
        entries = coupled_site(site, DIVERGENCE[self.family], partial(check_values, self.family))
        found: dict[int, Slopes] = {}
        tasks = [partial(self._add, entries, number, found) for number in range(len(self.models))]
        if site.threads > 1 and self._entries(entries) >= _WORTH_A_THREAD:
            run(tasks, site.threads)
        else:
            for task in tasks:
                task()
        return tuple(found[number] for number in range(len(self.models)))

    def _add(self, site: CoupledSite, number: int, found: dict[int, Slopes]) -> None:
        generator = np.random.default_rng([*self.seed, number])
        model, noise = self.models[number], self.precisions[number]
        found[number] = slopes(model, site, noise, self._entries(site), generator, self.with_scales)

    def _entries(self, site: CoupledSite) -> int:
        """Entries drawn from each relation; one that has no more is used as a whole."""
        if self.batch is not None and self.batch != "all":
            return self.batch
        sites = [
            each for part in site.parts for each in (part.entries, part.unknown) if each is not None
        ]
        most = max(each.tensor.n_entries for each in sites)
        return most if self.batch == "all" else max(1000, most // 4)


@record
@dataclass(frozen=True)
class LossQuery:
    """Ask for the divergence of every relation at each chain's parameters."""

    models: tuple[CoupledModel, ...]
    family: Family

    def answer(self, site: Site | CoupledSite) -> Losses:
        entries = coupled_site(site, DIVERGENCE[self.family], partial(check_values, self.family))
        parts = range(len(entries.parts))
        sums = [[divergence(model, entries, v) for v in parts] for model in self.models]
        return Losses(np.array(sums), np.array([part.cells for part in entries.parts]))


def check_values(family: Family, relation: Relation) -> None:
    """Refuse values that the model cannot have."""
    values, name = relation.tensor.values, relation.name
    if relation.privatised is not None:
        raise SettingError(
            f"{name!r} holds values behind a noisy channel, unknown to Langevin dynamics: use "
            + either("solver='gibbs'", "--solver gibbs")
        )
    if not np.isfinite(values).all():
        raise DataError(f"{name!r} holds infinite values: leave them out")
    if family == "poisson" and values.min() < 0:
        raise DataError(
            f"{name!r} has negative values, which the Poisson model cannot have: use "
            + either('model="normal"', "--divergence 0")
        )
