"""Answers from data in this process: one holder of entries, or several that add up."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from operator import add
from typing import Any, Generic, TypeVar

from sfumato.errors import SettingError
from sfumato.privacy.clipping import combine
from sfumato.privacy.ledger import Draw
from sfumato.solvers.protocol import NoisyQuery, PrivateQuery, Query, SumQuery

_Site = TypeVar("_Site")


class Local(Generic[_Site]):
    """The sites of one owner. Whoever has several has to have put all of a unit's entries into one."""

    def __init__(self, first: _Site, *others: _Site) -> None:
        self.sites: Sequence[_Site] = (first, *others)

    def answer(self, query: Query) -> Any:
        """The statistics of all sites together; several sites need statistics that have a sum."""
        answers = [query.answer(site) for site in self.sites]
        if len(answers) > 1 and not _has_sum(answers[0]):
            raise SettingError(
                f"answers to a {type(query).__name__} do not add up over {len(self.sites)} sites: use "
                "solver 'als', or put the data together"
            )
        return reduce(add, answers)

    def check(self, query: PrivateQuery) -> None:
        """Refuse what these sites cannot answer together, before anything is charged for it."""
        if not isinstance(query, SumQuery) and len(self.sites) > 1:
            raise SettingError(
                f"answers to a {type(query).__name__} do not add up over {len(self.sites)} sites: use "
                "a method whose answers do, such as 'alternating', or put the data together"
            )

    def released(self, query: PrivateQuery, draw: Draw) -> Any:
        """What a draw makes of the answer of all sites together."""
        self.check(query)
        if isinstance(query, SumQuery):
            return draw.release(combine([query.clipped(site) for site in self.sites]))
        (site,) = self.sites
        if isinstance(query, NoisyQuery):
            return query.noisy(site, draw)
        return draw.release(query.clipped(site))


def _has_sum(statistics: Any) -> bool:
    """Whether statistics can be added; tuples would be strung together."""
    strung = isinstance(statistics, tuple) and type(statistics).__add__ is tuple.__add__
    return hasattr(statistics, "__add__") and not strung
