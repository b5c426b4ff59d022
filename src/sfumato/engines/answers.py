"""What sites do with a query, and how their answers are put together: the same wherever it runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from operator import add
from typing import Any

import numpy as np

from sfumato.errors import DataError, SettingError
from sfumato.models.multilinear import Multilinear
from sfumato.models.own_prior import OwnPrior
from sfumato.models.shape import Shape
from sfumato.privacy.clipping import Clipped, combine
from sfumato.privacy.facts import CoupledFacts
from sfumato.records import record
from sfumato.sites.coupled import CoupledSite
from sfumato.sites.memory import Site
from sfumato.sites.several import RelationSites
from sfumato.solvers.coupled.shape import CoupledShape
from sfumato.solvers.least_squares.own_rows import solve_own
from sfumato.solvers.protocol import ChainQuery, PartQuery, Query, SumQuery
from sfumato.types import Array


def check_shape(
    shape: Shape | CoupledShape | CoupledFacts, site: Site | CoupledSite | RelationSites
) -> None:
    """Refuse entries of other modes than a fit was planned for, before they are touched or charged."""
    if isinstance(shape, CoupledFacts) and isinstance(site, RelationSites):
        site.check_sizes(shape.sizes)
        return
    if isinstance(shape, Shape) and isinstance(site, Site):
        site.check_sizes(shape.sizes)
    elif (
        isinstance(shape, CoupledShape)
        and isinstance(site, CoupledSite)
        and len(shape.parts) == len(site.parts)
    ):
        for part, holder in zip(shape.parts, site.parts, strict=True):
            sizes = tuple(shape.sizes[mode] for mode in part.modes)
            for entries in (holder.entries, holder.unknown):
                if entries is not None:
                    entries.check_sizes(sizes)
    else:
        raise DataError(
            f"a plan for a {type(shape).__name__} does not fit this {type(site).__name__}: it was made "
            "for other relations, or for a single tensor"
        )


# -- statistics -------------------------------------------------------------------------------------


def answer_of(query: Query, sites: Sequence[Any]) -> Any:
    """The statistics of some sites together."""
    found = part_of_answer(query, sites)
    return query.answer(sites[0]) if found is None else found


def part_of_answer(query: Query, sites: Sequence[Any]) -> Any | None:
    """The statistics of those sites that have something to add; None where there is no such site.

    Each is added when it comes: of a large answer two are held at a time, however many sites there are.
    """
    if isinstance(query, ChainQuery):
        return _chained(query, sites)
    if isinstance(query, PartQuery):
        sites = [site for site in sites if query.concerns(site)]
    total = None
    for site in sites:
        answer = query.answer(site)
        total = answer if total is None else added(query, [total, answer])
    return total


def _chained(query: ChainQuery, sites: Sequence[Any]) -> Any:
    """What one site after the other makes of a question, each going on from the one before."""
    total = None
    for number in query.order(len(sites)):
        answer = query.answer(sites[number])
        total = answer if total is None else query.joined(total, answer)
        query = query.after(answer)
    return total


def added(query: Query, answers: Sequence[Any]) -> Any:
    """The sum of answers; several need statistics that have one."""
    if len(answers) > 1 and not _has_sum(answers[0]):
        raise SettingError(
            f"answers to a {type(query).__name__} do not add up over several sites: use solver 'als', "
            "or put the data together"
        )
    return reduce(add, answers)


def _has_sum(statistics: Any) -> bool:
    """Whether statistics can be added; tuples would be strung together."""
    strung = isinstance(statistics, tuple) and type(statistics).__add__ is tuple.__add__
    return hasattr(statistics, "__add__") and not strung


def clipped_of(query: SumQuery, sites: Sequence[Any]) -> Clipped:
    """The clipped sums of some sites together."""
    return reduce(lambda total, more: combine([total, more]), map(query.clipped, sites))


# -- own rows ---------------------------------------------------------------------------------------


@record
@dataclass(frozen=True, eq=False)
class OwnRows:
    """Rows and biases of the levels that have entries at some sites."""

    levels: Array
    rows: Array
    biases: Array


def own_rows_of(model: Multilinear, prior: OwnPrior, sites: Sequence[Site]) -> list[OwnRows]:
    """What each of some sites makes of the rows whose entries it has."""
    mode, found = prior.mode, []
    for site in sites:
        solved = solve_own(model, prior, site)
        there = np.flatnonzero(site.by_mode(mode).counts)
        found.append(OwnRows(there, solved.factors[mode][there], solved.mode_biases[mode][there]))
    return found


def with_own_rows(model: Multilinear, prior: OwnPrior, parts: Sequence[OwnRows]) -> Multilinear:
    """The model with these rows; those without entries anywhere are the prior mean."""
    size, rank, mode = model.shape[prior.mode], model.ranks[prior.mode], prior.mode
    rows, biases = np.full((size, rank), prior.mean), np.zeros(size)
    if prior.means is not None:
        rows += prior.means
    for part in parts:
        rows[part.levels], biases[part.levels] = part.rows, part.biases
    return model.with_rows(mode, rows, biases)
