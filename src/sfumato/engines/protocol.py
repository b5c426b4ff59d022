"""Who answers queries: the holders of a fit's data, wherever these are.

An engine knows sites and no solver: it hands a query to every site and adds up what comes back. The
answers to private queries are whole numbers on a public grid, so that their sum has the same bits
whatever sites there are, in whatever order they answer. Noise is drawn where the trust is: by whoever
asks the engine, once, where all sites belong to one owner; else by every site.

What a site does with a query is written once, in ``answers.py``; engines differ in where that runs.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from sfumato.errors import SettingError
from sfumato.models.multilinear import Multilinear
from sfumato.models.own_prior import OwnPrior
from sfumato.privacy.clipping import Clipped
from sfumato.privacy.facts import Facts
from sfumato.privacy.ledger import Draw
from sfumato.privacy.trust import ONE_OWNER, Trust
from sfumato.solvers.protocol import PrivateQuery, PrivateSolver, Query, SumQuery


class Engine(ABC):
    """The sites of one owner. All entries of a unit, and of an owner's row, lie at one of them."""

    @property
    @abstractmethod
    def sites(self) -> tuple[str, ...]:
        """Who is there, by name."""

    @abstractmethod
    def check_shape(self, shape: Any) -> None:
        """Refuse entries of other modes than a fit was planned for, before they are touched."""

    @abstractmethod
    def answer(self, query: Query) -> Any:
        """The statistics of all sites together, of an open fit."""

    @abstractmethod
    def clipped(self, query: SumQuery) -> Clipped:
        """The clipped sums of all sites together."""

    @abstractmethod
    def with_own_rows(self, model: Multilinear, prior: OwnPrior) -> Multilinear:
        """The model with each row of the prior's mode solved where its entries are."""

    @abstractmethod
    def forget(self) -> None:
        """Let sites go of what they keep for further rounds."""

    @abstractmethod
    def close(self) -> None:
        """End what was started for this engine; it answers nothing afterwards."""

    def check_adds_up(self, solver: PrivateSolver[Any], facts: Facts) -> None:
        """Refuse a method that asks for more than sums where there are several sites, before the fit."""
        if len(self.sites) > 1 and not solver.adds_up(facts):
            raise SettingError(
                f"answers to {solver.name!r} do not add up over {len(self.sites)} sites: use a method "
                "whose answers do, such as 'alternating', or put the data together"
            )

    def check(self, query: PrivateQuery) -> None:
        """Refuse what these sites cannot answer together, before it is charged for."""
        if not isinstance(query, SumQuery):
            raise SettingError(
                f"answers to a {type(query).__name__} do not add up over {len(self.sites)} sites: use "
                "a method whose answers do, such as 'alternating', or put the data together"
            )

    def check_trust(self, trust: Trust) -> None:
        """Refuse a trust that these sites cannot be under, before the fit."""
        if trust.kind != "one owner":
            raise SettingError(
                f"{trust.kind!r} is for sites of several owners, and a {type(self).__name__} has one"
            )

    def released(self, query: PrivateQuery, draw: Draw, trust: Trust = ONE_OWNER) -> Any:  # noqa: ARG002
        """What is released of the answer of all sites together."""
        self.check(query)
        if not isinstance(query, SumQuery):
            raise SettingError(f"{type(self).__name__} answers no {type(query).__name__}")
        return draw.release(self.clipped(query))

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
