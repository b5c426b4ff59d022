"""A private fit by moments: which levels an owner has, and what is left of its values there.

For rows that stay with their owners, users say. Everything that is released is about the other modes:
*columns* of numbers for their levels, on which each owner then solves its own slopes, without noise.
Proofs: ``proofs/moments.md``. In turn, for each mode that is neither local nor times:

1. private biases, and with them how often levels occur. Two columns follow from these at no cost: the
   biases themselves, and the logarithm of the counts.
2. *presence*: which levels owners have together. Pairs of the popular levels first, which is a matrix
   with large eigenvalues; their eigenvectors are directions in which owners differ, and projections on
   these give columns for all levels.
3. *ratings*: the same with what biases leave of the values, about each owner's own mean: products of
   residuals of popular levels, then projections, once or more.
4. how large own slopes are, by kind of column: what does not help is shrunk away.

There is no random start and nothing that has to converge.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import sqrt
from typing import ClassVar, NamedTuple

import numpy as np

from sfumato.checks import check_count, check_flag, check_number, check_positive, given
from sfumato.errors import SettingError
from sfumato.kernels.grid import MOST_NUMBERS
from sfumato.kernels.numba.cells import Centring
from sfumato.models.multilinear import Multilinear
from sfumato.privacy.budgets import Budget
from sfumato.privacy.facts import Facts
from sfumato.privacy.ledger import Charge
from sfumato.privacy.mechanisms import Gaussian, Noisy
from sfumato.privacy.units import Entry, Unit
from sfumato.records import record
from sfumato.solvers.private.alternating.settings import LEAST_SHARE
from sfumato.solvers.private.biases import PrivateBiases, prefers_laplace
from sfumato.solvers.private.contributions import owners_shift
from sfumato.solvers.private.moments.queries import (
    Levels,
    MomentQuery,
    OwnQuery,
    ProjectionQuery,
    Residuals,
)
from sfumato.solvers.private.moments.settings import (
    CLIP,
    OWN_SHARE,
    RIDGE,
    STEPS,
    UNIT_CLIP,
    UNIT_LENGTH,
    Step,
    asked_modes,
    column_modes,
    label,
    layout,
    level_weights,
    schedule,
    share_of_biases,
)
from sfumato.solvers.private.moments.state import (
    Beginning,
    State,
    begun,
    presence_directions,
    read_own,
    read_presence,
    read_presence_moment,
    read_rating_moment,
    read_ratings,
)
from sfumato.solvers.protocol import Finished, Info, Run, Silent, SumQuery, Wish
from sfumato.surface import setting
from sfumato.types import Array

_MOST_STEPS = 100
_USUAL_REACH = 0.2  # of owners' coordinates, for what is expected alone
_OWN_LENGTH = 0.45  # that an owner's squares are shortened to, over what they are if all are as expected


class Settled(NamedTuple):
    """Variances of the noise in the sums of levels: of presence, and of ratings over their variance."""

    presence: Array
    ratings: Array


@record
@dataclass(frozen=True)
class PrivateMoments(Silent):
    """Settings of private fits by moments. Those that are None follow from public numbers.

    Parameters
    ----------
    noise : float
        Noise multiplier of all draws together, found from the budget.
    pure : bool
        Laplace noise, where biases are all that is asked for; else Gaussian.
    bias_share : float or None
        Of the budget for the biases, where there is more.
    steps : int or None
        Times that ratings are projected.
    own : bool
        Ask how large own rows are. Not where further columns are found beside these: own rows are
        asked about once, along all of them.

    Examples
    --------
    >>> import sfumato as sf
    >>> modes = [sf.Mode("user", 1000), sf.Mode("item", 200)]
    >>> public = sf.Public(labels=True, units=1000, entries=50_000)
    >>> privacy = sf.Privacy(
    ...     3, 1e-6, unit="user", public=public, method=sf.PrivateMoments(steps=2)
    ... )
    >>> plan = sf.CP(rank=2, privacy=privacy).plan(modes, bounds=(1, 5))
    >>> print(plan.explain())
    user 1,000 x item 200: CP of rank 2 with a mean and biases, float64; moments,
        within epsilon 3, delta 1e-06 for all entries of one user, their presence
        included.
      own slopes on biases and counts of item, which cost nothing
      1 x constant: Gaussian, noise multiplier 15.4; 0.01 of the budget
      1 x spread: Gaussian, noise multiplier 34.7; 0.002 of the budget
      1 x entries by item: Gaussian, noise multiplier 4.92; 0.099 of the budget
      6 x residuals by item: Gaussian, noise multiplier 4.02; 0.89 of the budget
      1 x how far owners differ: Gaussian, noise multiplier 28.3; 0.003 of the
          budget
    """

    noise: float = 1.0
    pure: bool = False
    bias_share: float | None = None
    steps: int | None = None
    own: bool = True

    name: ClassVar[str] = "moments"
    always_fits: ClassVar[tuple[str, ...]] = ("mean", "biases")
    proof: ClassVar[str] = "proofs/moments.md"
    proven: ClassVar[bool] = True
    knows_doubts: ClassVar[bool] = True
    exact: ClassVar[bool] = True

    # -- what will be done: never sees data -----------------------------------------------------

    def check(self, facts: Facts) -> None:
        unit, local = facts.unit, facts.local
        if not isinstance(unit, Entry | Unit):
            raise SettingError("a fit by moments protects 'entry' or a mode; use 'bias' or 'input'")
        if local is None:
            raise SettingError(
                f"a fit by moments leaves rows with their owners: name the owners' mode by "
                f"{setting('local')}, or use the method 'alternating'"
            )
        if facts.shape.kind != "cp":
            raise SettingError("a fit by moments is one of a CP model: use 'alternating' for Tucker")
        if not (facts.shape.fit_mean and facts.shape.fit_biases):
            raise SettingError("a fit by moments starts from mean and biases: use method 'gradient'")
        if facts.shape.dtype != "float64":
            raise SettingError("a fit by moments computes in float64: leave the dtype out")
        check_positive(noise=self.noise)
        check_flag(pure=self.pure, own=self.own)
        if self.pure and self.has_columns(facts):
            raise SettingError("columns are asked for with Gaussian noise: leave pure out")
        check_count(1, _MOST_STEPS, **given(steps=self.steps))
        check_number(LEAST_SHARE, 1 - OWN_SHARE, **given(bias_share=self.bias_share))
        if max(facts.sizes) * max(facts.shape.ranks) > MOST_NUMBERS:
            raise SettingError(
                f"more than {MOST_NUMBERS:,} numbers are more than the proof covers: use a smaller rank"
            )
        self.biases(facts).check(facts)

    @property
    def rounds_of_ratings(self) -> int:
        """How often ratings are asked about."""
        return self.steps or STEPS

    def has_columns(self, facts: Facts) -> bool:
        """Whether there are columns beside those that cost nothing: the rank says so."""
        return bool(asked_modes(facts, self.rounds_of_ratings))

    def share_of_biases(self, facts: Facts) -> float:
        """Share of the budget for the biases."""
        if not self.has_columns(facts):
            return 1.0
        return self.bias_share or share_of_biases(facts, self.noise)

    def biases(self, facts: Facts) -> PrivateBiases:
        """The first part of the fit, or all that is asked for."""
        return PrivateBiases(self.noise / sqrt(self.share_of_biases(facts)), self.pure)

    def plan(self, facts: Facts) -> tuple[Step, ...]:
        """The draws in order, their shares adding up to one."""
        biases = [step.share for step in self.biases(facts).steps(facts)]
        shared = self.share_of_biases(facts)
        made = schedule(facts, biases, shared, self.rounds_of_ratings, self.own)
        return tuple(made)

    def charges(self, facts: Facts) -> tuple[Charge, ...]:
        biases = self.biases(facts).charges(facts)
        rest = [
            Charge(label(facts, step), Gaussian(self.noise / sqrt(step.share)))
            for step in self.plan(facts)[len(biases) :]
        ]
        return (*biases, *rest)

    def rounds(self, facts: Facts) -> int:
        return len(self.plan(facts))

    def in_words(self, facts: Facts) -> tuple[str, ...]:
        """The settings, for a person."""
        words = []
        for mode in column_modes(facts):
            made, name = layout(facts, mode, self.rounds_of_ratings), facts.modes[mode].name
            slopes = " and ".join(("biases", "counts")[: made.slopes])
            if slopes:
                words.append(f"own slopes on {slopes} of {name}, which cost nothing")
            if made.presence:
                words.append(
                    f"{made.presence} columns for {name} from who has what, and {made.ratings} from "
                    f"residuals in each of {made.steps} rounds"
                )
        return tuple(words)

    def settled_noise(self, facts: Facts, counts: Sequence[Array]) -> dict[int, Settled]:
        """Variances of the noise in the sums of levels, were these the counts; by mode with columns.

        In coordinates of owners that have variance one. ``counts`` are those of :class:`PrivateBiases`.
        """
        shift, left = owners_shift(Centring(CLIP, RIDGE)), {}
        for mode in column_modes(facts):
            made, weights = layout(facts, mode, self.rounds_of_ratings), np.ones(facts.sizes[mode])
            shares = {
                asked: sum(step.share for step in self.plan(facts) if step[:2] == (asked, mode))
                for asked in ("presence", "ratings")
            }
            if not made.presence:
                continue
            # What neighbours change, over the reach, to which coordinates of all columns are shortened.
            presence, ratings = sqrt(1 + 0.5**2), CLIP * sqrt(1 + (0.5 + shift / _USUAL_REACH) ** 2)
            if facts.whole_units:
                presence, ratings, weights = 1.0, UNIT_LENGTH, level_weights(counts[mode])
            unit = made.presence * (self.noise / weights) ** 2
            left[mode] = Settled(
                presence**2 * unit / shares["presence"], ratings**2 * unit / shares["ratings"]
            )
        return left

    # -- the loop -------------------------------------------------------------------------------

    def init(self, run: Run, facts: Facts) -> Beginning:
        self.check(facts)
        biases = self.biases(facts).init(run, facts)
        return Beginning(facts, self.plan(facts), biases, run.seed, self.rounds_of_ratings)

    def ask(self, state: Beginning | State) -> SumQuery:
        if isinstance(state, Beginning):
            return self.biases(state.facts).ask(state.biases)
        step = state.step
        if step.asks == "own":
            asked = asked_groups(state)
            length = _OWN_LENGTH * sqrt(3 * asked.number)
            return OwnQuery(state.facts, state.model(), state.asked_prior(), asked.of_column, length)
        if step.asks in ("presence moment", "rating moment"):
            return MomentQuery(_levels(state, step), _places(state, step.mode))
        return _projection(state, step)

    def update(self, state: Beginning | State, released: Noisy) -> tuple[Beginning | State, Info]:
        if isinstance(state, Beginning):
            return self._begin(state, released)
        step, weights = state.step, np.ones(0)
        if step.mode >= 0:
            weights = _levels(state, step).weights
        if step.asks == "own":
            state = read_own(state, released)
        elif step.asks == "presence moment":
            state = read_presence_moment(state, step.mode, released, weights)
        elif step.asks == "rating moment":
            state = read_rating_moment(state, step.mode, released, weights)
        else:
            sums = released.values / weights[:, None]
            variances = (released.deviation / weights) ** 2
            read = read_presence if step.asks == "presence" else read_ratings
            state = read(state, step.mode, sums, variances)
        return replace(state, done=state.done + 1), Info(state.done + 1, noise=released.deviation)

    def _begin(self, state: Beginning, released: Noisy) -> tuple[Beginning | State, Info]:
        biases, info = self.biases(state.facts).update(state.biases, released)
        state = replace(state, biases=biases, done=state.done + 1)
        last = state.done == len(state.steps) or state.steps[state.done].asks != "biases"
        return begun(state) if last else state, info

    def finish(self, state: State) -> Finished[Multilinear]:
        model, prior = state.model(), state.own_prior()
        return Finished(model, own_prior=prior, doubts=state.doubts(), told=state.all_told())


# -- how it is asked --------------------------------------------------------------------------------


def _levels(state: State, step: Step) -> Levels:
    """Whose numbers, and which; weights make up for popularity where units are clipped as a whole."""
    facts, start, mode = state.facts, state.start, step.mode
    counts = state.counts(mode)
    weights = np.ones_like(counts)
    if facts.whole_units:
        weights = level_weights(counts)
    residuals = None
    if step.asks in ("rating moment", "ratings"):
        clip = (UNIT_CLIP if facts.whole_units else CLIP) * sqrt(state.scatter)
        ridge = state.known.ridge if facts.whole_units else RIDGE
        residuals = Residuals(start.mean, start.biases, clip, ridge)
    return Levels(facts, facts.local or 0, mode, weights, residuals)


def _places(state: State, mode: int) -> Array:
    places = np.full(state.facts.sizes[mode], -1)
    kept = state.modes[mode].kept
    places[kept] = np.arange(kept.shape[0])
    return places


def _projection(state: State, step: Step) -> ProjectionQuery:
    levels, found = _levels(state, step), state.modes[step.mode]
    length = 1.0
    directions = found.directions if step.asks == "ratings" else None
    if directions is None:
        directions = presence_directions(state, step.mode)
    if step.asks == "ratings":
        length = UNIT_LENGTH * sqrt(state.scatter)
    return ProjectionQuery(levels, directions, found.reach, state.known.ridge, length)


class Groups(NamedTuple):
    """Groups of columns, counted from zero; columns that nothing was asked for are in one more."""

    of_column: Array
    number: int


def asked_groups(state: State) -> Groups:
    """By which own rows are asked about."""
    present, groups = np.unique([group for group, _, _ in state.groups()], return_inverse=True)
    whole = np.full(state.facts.shape.ranks[0], present.shape[0])
    whole[: groups.shape[0]] = groups
    return Groups(whole, present.shape[0])


def make(facts: Facts, wish: Wish) -> PrivateMoments:
    """The solver of the method "moments"."""
    solver, budget = PrivateMoments(), wish.budget
    if not solver.has_columns(facts):
        return replace(solver, pure=isinstance(budget, Budget) and prefers_laplace(facts, budget))
    if budget.pure:
        raise SettingError(
            "a fit by moments gives no pure epsilon: name a delta, such as 1e-6, or use the "
            "method 'bias'"
        )
    return solver
