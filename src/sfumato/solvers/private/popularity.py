"""How popular levels are, under privacy: what every list of what to see next has to beat.

Entries are what owners have *seen*; cells without one count as zeros. One draw asks how often each level
of the other mode occurs. Proof: ``proofs/links.md``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from sfumato.errors import SettingError
from sfumato.models.multilinear import Multilinear
from sfumato.models.own_prior import OwnPrior
from sfumato.privacy.facts import Facts
from sfumato.privacy.ledger import Charge
from sfumato.privacy.mechanisms import Noisy
from sfumato.privacy.units import Entry, Unit
from sfumato.records import record
from sfumato.solvers.private.known import Known
from sfumato.solvers.private.level_sums import CountsQuery
from sfumato.solvers.protocol import Finished, Info, Run, Silent, Wish
from sfumato.surface import setting
from sfumato.types import Array

_LEAST = 0.3  # of an average level's count: what counts that noise has made smaller are taken for


@dataclass(frozen=True, eq=False)
class Popularity:
    """What was released of how often levels occur: ``shares`` of owners who have each.

    ``floored`` are counts as they were asked for, without those that noise has made too small.
    """

    shares: Array
    floored: Array

    @classmethod
    def read(cls, known: Known, noisy: Noisy) -> Popularity:
        """Of noisy counts. Where owners are units, each adds a vector of length one: what is scaled
        back by is what the counts themselves add up to.
        """
        counts, owners = noisy.values, known.facts.sizes[known.facts.local or 0]
        total = max(float(counts.sum()), 1.0)
        scale = max(total / owners, 1.0) / owners if known.facts.whole_units else 1 / owners
        floored = np.maximum(counts, _LEAST * max(total / counts.shape[0], noisy.deviation))
        return cls(scale * counts, floored)


def check_seen(what: str, facts: Facts) -> None:
    """What fits of seen cells can be about."""
    if len(facts.modes) != 2:
        raise SettingError(
            f"{what} is about two modes, owners and what they have seen; got {len(facts.modes)}: leave "
            "the others out when the data are read"
        )
    if not isinstance(facts.unit, Entry | Unit):
        raise SettingError(f"{what} hides who has seen what: protect 'entry' or a mode")
    if facts.local is None:
        raise SettingError(
            f"{what} leaves rows with their owners: name the owners' mode by {setting('local')}"
        )
    if facts.shape.kind != "cp" or facts.shape.dtype != "float64":
        raise SettingError(f"{what} is a CP model in float64: leave model and dtype out")
    if not facts.shape.fit_biases:
        raise SettingError(f"{what} starts from how popular levels are: leave biases as they are")


def seen_mode(facts: Facts) -> int:
    """The mode whose levels owners see."""
    return 1 - (facts.local or 0)


@dataclass(frozen=True)
class PopularityState:
    known: Known
    model: Multilinear


@record
@dataclass(frozen=True)
class PrivatePopularity(Silent):
    """How often each level occurs, in one draw: everybody is shown the same list.

    Parameters
    ----------
    noise : float
        Noise multiplier, found from the budget.
    pure : bool
        Laplace noise, for a budget without delta; else Gaussian.

    Examples
    --------
    >>> import sfumato as sf
    >>> modes = [sf.Mode("user", 1000), sf.Mode("item", 200)]
    >>> public = sf.Public(labels=True, units=1000, entries=50_000)
    >>> privacy = sf.Privacy(
    ...     3, 1e-6, unit="user", public=public, method=sf.PrivatePopularity()
    ... )
    >>> plan = sf.CP(loss="seen", privacy=privacy).plan(modes, bounds=(1, 5))
    >>> print(plan.explain())
    user 1,000 x item 200: CP of rank 8 with a mean and biases, float64; private
        popularity, within epsilon 3, delta 1e-06 for all entries of one user,
        their presence included.
      1 x how often each item occurs: Gaussian, noise multiplier 1.54
    """

    noise: float = 1.0
    pure: bool = False

    name: ClassVar[str] = "private popularity"
    always_fits: ClassVar[tuple[str, ...]] = ("biases",)
    proof: ClassVar[str] = "proofs/links.md"
    proven: ClassVar[bool] = True
    exact: ClassVar[bool] = True

    def known(self, facts: Facts) -> Known:
        """How a state is begun and what counts are taken for."""
        return Known(facts, self.noise, self.pure)

    def check(self, facts: Facts) -> None:
        check_seen("popularity", facts)
        self.known(facts).check()

    def charges(self, facts: Facts) -> tuple[Charge, ...]:
        name = facts.modes[seen_mode(facts)].name
        return (Charge(f"how often each {name} occurs", self.known(facts).mechanism(1.0)),)

    def rounds(self, facts: Facts) -> int:  # noqa: ARG002
        return 1

    def init(self, run: Run, facts: Facts) -> PopularityState:  # noqa: ARG002
        self.check(facts)
        return PopularityState(self.known(facts), facts.shape.zeros())

    def ask(self, state: PopularityState) -> CountsQuery:
        return CountsQuery(state.known, seen_mode(state.known.facts))

    def update(self, state: PopularityState, released: Noisy) -> tuple[PopularityState, Info]:
        model = state.model.copy()
        shares = Popularity.read(state.known, released).shares
        model.mode_biases[seen_mode(state.known.facts)][:] = shares
        return replace(state, model=model), Info(1, noise=released.deviation)

    def finish(self, state: PopularityState) -> Finished[Multilinear]:
        return Finished(state.model, own_prior=no_slopes(state.known.facts))


def no_slopes(facts: Facts) -> OwnPrior:
    """That of rows on columns of zeros, which come out as zeros."""
    local = facts.local or 0
    return OwnPrior(mode=local, precisions=np.ones(facts.shape.ranks[local]), scatter=1.0)


def make(facts: Facts, wish: Wish) -> PrivatePopularity:  # noqa: ARG001
    """The solver of the method "popularity"."""
    return PrivatePopularity(pure=wish.budget.pure)
