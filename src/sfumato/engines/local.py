"""Answers from data in this process: one holder of entries, or several that add up."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sfumato.engines.answers import (
    answer_of,
    check_shape,
    clipped_of,
    own_rows_of,
    with_own_rows,
)
from sfumato.engines.protocol import Engine
from sfumato.errors import SettingError
from sfumato.models.multilinear import Multilinear
from sfumato.models.own_prior import OwnPrior
from sfumato.privacy.clipping import Clipped
from sfumato.privacy.ledger import Draw
from sfumato.privacy.trust import ONE_OWNER, Trust
from sfumato.solvers.least_squares.own_rows import solve_own
from sfumato.solvers.protocol import NoisyQuery, PrivateQuery, Query, SumQuery


class Local(Engine):
    """Sites that are asked one after the other."""

    def __init__(self, first: Any, *others: Any) -> None:
        self.held: Sequence[Any] = (first, *others)

    @property
    def sites(self) -> tuple[str, ...]:
        return tuple(f"site {number + 1}" for number in range(len(self.held)))

    def check_shape(self, shape: Any) -> None:
        for site in self.held:
            check_shape(shape, site)

    def answer(self, query: Query) -> Any:
        return answer_of(query, self.held)

    def clipped(self, query: SumQuery) -> Clipped:
        return clipped_of(query, self.held)

    def check(self, query: PrivateQuery) -> None:
        if len(self.held) > 1:
            super().check(query)

    def check_trust(self, trust: Trust) -> None:
        """Sites of several owners are played here, each with noise of its own."""
        if trust.kind != "one owner" and trust.sites != len(self.held):
            raise SettingError(
                f"the plan is for {trust.sites:,} sites and the data lie in {len(self.held):,}"
            )

    def released(self, query: PrivateQuery, draw: Draw, trust: Trust = ONE_OWNER) -> Any:
        """As of several sites; one alone also answers what does not add up."""
        self.check(query)
        if trust.kind != "one owner" and isinstance(query, SumQuery):
            return draw.shares([query.clipped(site) for site in self.held], trust).opened()
        if isinstance(query, SumQuery):
            return draw.release(self.clipped(query))
        (site,) = self.held
        if isinstance(query, NoisyQuery):
            return query.noisy(site, draw)
        return draw.release(query.clipped(site))

    def with_own_rows(self, model: Multilinear, prior: OwnPrior) -> Multilinear:
        if len(self.held) == 1:
            return solve_own(model, prior, self.held[0])
        return with_own_rows(model, prior, own_rows_of(model, prior, self.held))

    def forget(self) -> None:
        for site in self.held:
            site.forget()

    def close(self) -> None:
        """There is nothing to end."""
