"""What a Gibbs sampler asks the data: counts of components, and what rows were exposed to."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sfumato.data.relations import Relation
from sfumato.kernels.numba.gibbs import Sampled, sample_tasks
from sfumato.kernels.numba.threads import run
from sfumato.models.coupled import CoupledModel
from sfumato.records import record
from sfumato.sites.coupled import CoupledSite, RelationSite
from sfumato.sites.memory import Site
from sfumato.sites.noisy_counts import information, typical_rate
from sfumato.solvers.coupled.shape import Block, check_counts, check_poisson, coupled_site
from sfumato.solvers.coupled.sums import exposures, gains
from sfumato.types import Array

WHAT = "Gibbs sampling"


@record
@dataclass(frozen=True, eq=False)
class Events:
    """Of each chain: events of every row and component, those of the cores, and the log-likelihood."""

    rows: Array
    cores: tuple[Array, ...]
    log_likelihood: Array

    def of(self, model: CoupledModel, block: Block, chain: int) -> Array:
        """Those of a block of parameters."""
        if block.mode is None:
            return np.asarray(self.cores[block.part][chain])
        return np.asarray(self.rows[chain, model.span(block.mode)])


@record
@dataclass(frozen=True, eq=False)
class Rates:
    """Of every relation its rate, and what noise leaves of what a count tells of it.

    Those of several holders do not add up.
    """

    values: Array
    information: Array


@record
@dataclass(frozen=True)
class ScaleQuery:
    """Ask for the rate of every relation, if all of its cells had the same one."""

    def answer(self, site: Site | CoupledSite) -> Rates:
        entries = coupled_site(site, 1.0, check_relation)
        rates = [typical_rate(part.counts, part.cells) for part in entries.parts]
        left = [information(part.counts, r) for part, r in zip(entries.parts, rates, strict=True)]
        return Rates(np.array(rates), np.array(left))


@record
@dataclass(frozen=True)
class EventsQuery:
    """Ask for counts that are drawn and shared out given each chain's parameters."""

    models: tuple[CoupledModel, ...]
    seed: tuple[int, int]
    with_likelihood: bool

    def answer(self, site: Site | CoupledSite) -> Events:
        entries = coupled_site(site, 1.0, check_relation)
        first = self.models[0]
        found = Events(
            np.zeros((len(self.models), first.rows.shape[0], first.rank)),
            tuple(np.zeros((len(self.models), core.size)) for core in first.cores),
            np.zeros(len(self.models)),
        )
        tasks, made = [], list[tuple[int, int, list[Sampled]]]()
        for chain, model in enumerate(self.models):
            for v, holder in enumerate(entries.parts):
                generator = np.random.default_rng([*self.seed, chain, v])
                some, room = sample_tasks(
                    model.arrays(v),
                    model.rank,
                    holder.entries.tensor.coordinates,
                    holder.counts,
                    generator,
                    site.threads,
                    exposed=not holder.closed,
                    with_likelihood=self.with_likelihood,
                )
                tasks += some
                made.append((chain, v, room))
        run(tasks, site.threads)
        for chain, v, room in made:
            for each in room:
                found.rows[chain] += each.rows
                found.cores[v][chain] += each.core
            if self.with_likelihood:
                model, holder = self.models[chain], entries.parts[v]
                found.log_likelihood[chain] += room[0].likelihood.sum() - _elsewhere(model, v, holder)
        return found


@record
@dataclass(frozen=True)
class ExposureQuery:
    """Ask each chain what the parameters of a block were exposed to: the sum of their designs."""

    models: tuple[CoupledModel, ...]
    block: Block

    def answer(self, site: Site | CoupledSite) -> Array:
        entries = coupled_site(site, 1.0, check_relation)
        return np.stack([exposures(model, entries, self.block) for model in self.models])


@record
@dataclass(frozen=True)
class MoveQuery:
    """Ask each chain what other values of a block would add to the log-likelihood, row by row."""

    models: tuple[CoupledModel, ...]
    moved: tuple[CoupledModel, ...]
    block: Block

    def answer(self, site: Site | CoupledSite) -> Array:
        entries = coupled_site(site, 1.0, check_relation)
        pairs = zip(self.models, self.moved, strict=True)
        return np.stack([gains(model, moved, entries, self.block) for model, moved in pairs])


def check_relation(relation: Relation) -> None:
    """Refuse what is no Poisson law of counts."""
    check_poisson(relation.name, relation.divergence, relation.dispersion, WHAT)
    check_counts(relation)


def _elsewhere(model: CoupledModel, v: int, holder: RelationSite) -> float:
    """Sum of the rates of all observed cells, where those without an entry are zeros."""
    if not holder.closed:
        return 0.0
    total = model.total(v)
    if holder.unknown is not None:
        cells = holder.unknown.tensor.coordinates[: model.parts[v].order]
        total -= float(model.predict(v, cells, threads=holder.unknown.threads).sum())
    return total
