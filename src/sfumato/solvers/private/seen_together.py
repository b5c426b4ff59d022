"""What owners have seen together, privately: lists of what each would see next.

Entries are what owners have seen, whatever their values; cells without one count as zeros. Two draws,
both sums over owners of what the fit by moments asks too (``proofs/links.md``):

1. how often each level occurs: its popularity;
2. which of the popular levels owners have together: a matrix whose eigenvectors above the noise become
   columns, shrunk by what noise is in them.

An owner's score of a level is its popularity plus the owner's slopes on the columns. Slopes are solved
by their owners, from what they have seen and from all zeros:

    sum over all levels of (p_j + q_j a)^2 + sum over seen levels of (1 - p_j - q_j a)^2 + ridge |a|^2

The sum over all levels knows released numbers alone: it is a prior of a, whose mean goes into the
biases. Where noise would drown all columns but popularity, which public numbers say, nothing else is
asked for.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import floor, sqrt
from typing import ClassVar

import numpy as np

from sfumato.checks import check_count, check_positive, given
from sfumato.models.multilinear import Multilinear
from sfumato.privacy.facts import Facts
from sfumato.privacy.ledger import Charge
from sfumato.privacy.mechanisms import Gaussian, Noisy
from sfumato.records import record
from sfumato.solvers.least_squares.seen import prior_with_zeros, zeros_of
from sfumato.solvers.private.moments.factoring import largest_eigenvectors, symmetric
from sfumato.solvers.private.moments.queries import Levels, MomentQuery
from sfumato.solvers.private.moments.settings import level_weights, popular_levels
from sfumato.solvers.private.popularity import (
    Popularity,
    PrivatePopularity,
    check_seen,
    no_slopes,
    seen_mode,
)
from sfumato.solvers.protocol import Finished, Info, Run, Silent, SumQuery, Wish, start_generator
from sfumato.types import Array

# Chosen on MovieLens 100K and on invented data; errors are flat around them.
COLUMNS = 32  # beside popularity
# Largest eigenvalue of noise alone, over what owners add: so many levels are asked about that are clear
# of it, or of the second where those are fewer than this, or than all there are.
_CLEAR, _FEWEST = 0.015, 100
_LESS_CLEAR, _FEWEST_OF_THESE = 0.03, 60
_COUNT_ERROR = 0.08  # noise that counts may have, over that of an average level
_LEAST_COUNTS, _MOST_COUNTS = 0.05, 0.5  # their share of the budget
_RIDGE = 0.3
_ROUNDS = 8  # in which the diagonal, which is not asked for, is filled in


@dataclass(frozen=True, eq=False)
class SeenState:
    """What was released so far."""

    facts: Facts
    seed: int
    popularity: Popularity | None = None
    kept: Array | None = None  # levels that are asked about together, in order
    columns: Array | None = None

    def found(self) -> Popularity:
        if self.popularity is None:
            raise AssertionError("popularity is asked for first")
        return self.popularity


@record
@dataclass(frozen=True)
class PrivateSeen(Silent):
    """Settings of private fits to what was seen. Those that are None follow from public numbers.

    Parameters
    ----------
    noise : float
        Noise multiplier of both draws together, found from the budget.
    pure : bool
        Laplace noise, for a budget without delta: popularity alone.
    levels : int or None
        How many popular levels are asked about together; 0 for popularity alone.

    Examples
    --------
    >>> import sfumato as sf
    >>> modes = [sf.Mode("user", 1000), sf.Mode("item", 200)]
    >>> public = sf.Public(labels=True, units=1000, entries=50_000)
    >>> privacy = sf.Privacy(
    ...     3, 1e-6, unit="user", public=public, method=sf.PrivateSeen(levels=50)
    ... )
    >>> plan = sf.CP(rank=2, loss="seen", privacy=privacy).plan(
    ...     modes, bounds=(1, 5)
    ... )
    >>> print(plan.explain())
    user 1,000 x item 200: CP of rank 2 with a mean and biases, float64; seen
        together, within epsilon 3, delta 1e-06 for all entries of one user, their
        presence included.
      popularity, and up to 1 columns from which of the 50 most popular levels of
          item owners have together
      1 x how often each item occurs: Gaussian, noise multiplier 6.9; 0.05 of the
          budget
      1 x pairs of item at one owner: Gaussian, noise multiplier 1.58; 0.95 of the
          budget
    """

    noise: float = 1.0
    pure: bool = False
    levels: int | None = None

    name: ClassVar[str] = "seen together"
    always_fits: ClassVar[tuple[str, ...]] = ("biases",)
    proof: ClassVar[str] = "proofs/links.md"
    proven: ClassVar[bool] = True
    exact: ClassVar[bool] = True

    # -- what will be done: never sees data -----------------------------------------------------

    def check(self, facts: Facts) -> None:
        check_seen("a fit to what was seen", facts)
        check_positive(noise=self.noise)
        check_count(0, **given(levels=self.levels))
        self.popularity(facts).check(facts)

    def share(self, facts: Facts) -> float:
        """Of the budget, for counts: what keeps their noise small."""
        if not self.asked_levels(facts):
            return 1.0
        return min(_MOST_COUNTS, max(_LEAST_COUNTS, self._needed_share(facts)))

    def _needed_share(self, facts: Facts) -> float:
        """Of the budget, for counts that tell levels of usual popularity apart."""
        average = facts.least_entries / facts.sizes[seen_mode(facts)]
        return (self.noise / (_COUNT_ERROR * average)) ** 2

    def popularity(self, facts: Facts) -> PrivatePopularity:
        """The first part of the fit, or all of it."""
        return PrivatePopularity(self.noise / sqrt(self.share(facts)), self.pure)

    def asked_levels(self, facts: Facts) -> int:
        """How many levels are asked about together; zero where noise would drown what they have."""
        mode, columns = seen_mode(facts), facts.shape.ranks[0] - 1
        most = popular_levels(facts, mode)
        if self.pure or columns < 1 or most < 3:
            return 0
        if self.levels is not None:
            return min(self.levels, most) if self.levels >= 3 else 0
        # The largest eigenvalue of noise is twice its deviation times the root of the levels.
        noise = 2 * self.noise * self._change(facts) / self._total(facts)
        clear, less_clear = (min(most, floor((each / noise) ** 2)) for each in (_CLEAR, _LESS_CLEAR))
        if clear >= min(_FEWEST, most):
            return clear
        worth = less_clear >= min(_FEWEST_OF_THESE, most) and self._needed_share(facts) <= _MOST_COUNTS
        return less_clear if worth else 0

    def _change(self, facts: Facts) -> float:
        return sqrt(0.5) if facts.whole_units else 1.0

    def _total(self, facts: Facts) -> float:
        """What owners add to the diagonal: the sum of all eigenvalues."""
        owners = facts.sizes[facts.local or 0]
        return owners if facts.whole_units else sqrt(owners * facts.least_entries)

    def charges(self, facts: Facts) -> tuple[Charge, ...]:
        counts = self.popularity(facts).charges(facts)
        if not self.asked_levels(facts):
            return counts
        name = facts.modes[seen_mode(facts)].name
        together = Gaussian(self.noise / sqrt(1 - self.share(facts)))
        return (*counts, Charge(f"pairs of {name} at one owner", together))

    def rounds(self, facts: Facts) -> int:
        return len(self.charges(facts))

    def in_words(self, facts: Facts) -> tuple[str, ...]:
        levels, name = self.asked_levels(facts), facts.modes[seen_mode(facts)].name
        if not levels:
            return ("popularity alone: noise would drown what else there is",)
        return (
            f"popularity, and up to {facts.shape.ranks[0] - 1} columns from which of the {levels} most "
            f"popular levels of {name} owners have together",
        )

    # -- the loop -------------------------------------------------------------------------------

    def init(self, run: Run, facts: Facts) -> SeenState:
        self.check(facts)
        return SeenState(facts, run.seed)

    def ask(self, state: SeenState) -> SumQuery:
        facts = state.facts
        if state.popularity is None:
            counts = self.popularity(facts)
            return counts.ask(counts.init(Run(), facts))
        return MomentQuery(self._levels(state), self._places(state))

    def update(self, state: SeenState, released: Noisy) -> tuple[SeenState, Info]:
        facts = state.facts
        if state.popularity is None:
            found = Popularity.read(self.popularity(facts).known(facts), released)
            best = np.argsort(-found.floored, kind="stable")[: self.asked_levels(facts)]
            return replace(state, popularity=found, kept=np.sort(best)), Info(
                1, noise=released.deviation
            )
        return replace(state, columns=self._columns(state, released)), Info(2, noise=released.deviation)

    def finish(self, state: SeenState) -> Finished[Multilinear]:
        facts, found, mode = state.facts, state.found(), seen_mode(state.facts)
        model = facts.shape.zeros()
        if state.columns is None:
            model.mode_biases[mode][:] = found.shares
            return Finished(model, own_prior=no_slopes(facts))
        model.factors[mode][:] = state.columns
        # All levels seen as zeros: a prior of own rows, whose mean goes into the biases.
        zeros = zeros_of(model, facts.local or 0)
        pull = state.columns.T @ found.shares
        mean = -np.linalg.solve(zeros + _RIDGE * np.eye(zeros.shape[0]), pull)
        model.mode_biases[mode][:] = found.shares + state.columns @ mean
        return Finished(model, own_prior=prior_with_zeros(facts.local or 0, zeros, _RIDGE, 1.0))

    # -- what is asked, and what is made of it ---------------------------------------------------

    def _levels(self, state: SeenState) -> Levels:
        facts, counts = state.facts, state.found().floored
        weights = level_weights(counts) if facts.whole_units else np.ones_like(counts)
        return Levels(facts, facts.local or 0, seen_mode(facts), weights, None)

    def _places(self, state: SeenState) -> Array:
        kept = np.zeros(0, np.int64) if state.kept is None else state.kept
        places = np.full(state.facts.sizes[seen_mode(state.facts)], -1)
        places[kept] = np.arange(kept.shape[0])
        return places

    def _columns(self, state: SeenState, noisy: Noisy) -> Array:
        """Popularity, and the eigenvectors that stand out of the noise; as large as owners differ."""
        facts, kept = state.facts, state.kept
        if kept is None:
            raise AssertionError("levels are chosen before they are asked about")
        columns = np.zeros((facts.sizes[seen_mode(facts)], facts.shape.ranks[0]))
        columns[:, 0] = np.maximum(state.found().shares, 0)
        moment = symmetric(noisy.values, kept.shape[0])
        rows = above_noise(moment, noisy.deviation, columns.shape[1] - 1, start_generator(state.seed))
        # Owners add y y' / |y|^2, or y y' / |y|: back to cells of ones.
        owners = facts.sizes[facts.local or 0]
        entries = max(float(columns[:, 0].sum()), 1.0)  # of an average owner
        scale = sqrt(entries / owners) if facts.whole_units else sqrt(sqrt(entries) / owners)
        weights = self._levels(state).weights[kept]
        columns[kept, 1 : 1 + rows.shape[1]] = scale * rows / weights[:, None]
        return columns


def above_noise(moment: Array, deviation: float, number: int, generator: np.random.Generator) -> Array:
    """Rows Z with Z Z' the part of a noisy matrix, without a diagonal, that stands out of the noise.

    Noise alone has eigenvalues up to an edge; one above it that is seen as w is w' + (edge / 2)^2 / w'
    without, and its vector is known by 1 - (edge / 2 w')^2.
    """
    size = moment.shape[0]
    edge, diagonal = 2 * deviation * sqrt(size), np.zeros(size)
    rows = np.zeros((size, min(number, size - 1)))
    for _ in range(_ROUNDS):
        filled = moment + np.diag(diagonal)
        values, vectors = largest_eigenvectors(filled, rows.shape[1], generator)
        clear = np.maximum(values, edge)
        true = (clear + np.sqrt(clear**2 - edge**2)) / 2
        true = np.where(values > edge, true - (edge / 2) ** 2 / true, 0.0)
        rows = vectors * np.sqrt(true)
        diagonal = np.sum(rows**2, axis=1)
    return rows


def usual_rank(facts: Facts) -> int:
    """Popularity, and as many columns as are looked for."""
    return 1 + min(COLUMNS, facts.sizes[seen_mode(facts)] - 1)


def make(facts: Facts, wish: Wish) -> PrivateSeen:  # noqa: ARG001
    """The solver of the method "seen"."""
    return PrivateSeen(pure=wish.budget.pure)
