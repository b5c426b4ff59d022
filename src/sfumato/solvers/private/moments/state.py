"""Where a fit by moments is, and what is made of the answers: post-processing, all of it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import sqrt

import numpy as np

from sfumato.models.doubts import Doubts, noise_of
from sfumato.models.multilinear import Multilinear
from sfumato.models.own_prior import OwnPrior, Pull
from sfumato.models.told import Told
from sfumato.privacy.facts import Facts
from sfumato.privacy.mechanisms import Noisy
from sfumato.solvers.private.bias_state import BiasRelease, BiasState
from sfumato.solvers.private.free_columns import slope_columns
from sfumato.solvers.private.known import Known
from sfumato.solvers.private.moments.factoring import (
    Columns,
    Popular,
    columns_from,
    factor_moment,
    factor_presence,
    orthonormal,
    symmetric,
)
from sfumato.solvers.private.moments.settings import (
    REACH,
    Layout,
    Step,
    column_modes,
    layout,
    popular_levels,
)
from sfumato.solvers.private.squares import read_squares
from sfumato.solvers.protocol import start_generator
from sfumato.types import Array

SLOPE, COUNT, PRESENCE, RATING = range(4)  # groups of columns
# Variance of an owner's slope on a column, over that of what is left of a value: before it is asked.
_FIRST_VARIANCES = {SLOPE: 1 / 60, COUNT: 1 / 60, PRESENCE: 1 / 80, RATING: 1 / 80}
_PULL = (
    0.5  # of a prior deviation, where an owner's designs lie one from the centre: what is asked about
)
_WEAKEST = {PRESENCE: 2.0, RATING: 1.0}
_RATING_GAIN = 0.7  # what clipping leaves of residuals


@dataclass(frozen=True, eq=False)
class ModeColumns:
    """What was found of a mode so far."""

    kept: Array  # levels whose moments are asked for, in order
    slopes: Array
    popular: Popular | None = None
    presence: Columns | None = None
    directions: Array | None = None  # of the next projection of ratings
    ratings: tuple[Columns, ...] = ()
    reach: float = 0.0

    def parts(self) -> list[tuple[int, Array]]:
        """Columns by group."""
        made = [(group, self.slopes[:, group : group + 1]) for group in range(self.slopes.shape[1])]
        if self.presence is not None:
            made.append((PRESENCE, self.presence.means))
        return made + [(RATING, each.means) for each in self.ratings]


@dataclass(frozen=True, eq=False)
class State:
    """From the biases on; all of it was released."""

    facts: Facts
    known: Known
    steps: tuple[Step, ...]
    start: BiasRelease
    modes: dict[int, ModeColumns]
    rounds: int  # projections of ratings
    done: int
    seed: int
    scatter: float
    told: Told
    variances: dict[int, float] = field(default_factory=lambda: dict(_FIRST_VARIANCES))
    pulls: dict[int, float] | None = None  # of groups, over what they are asked with

    @property
    def step(self) -> Step:
        return self.steps[self.done]

    def layout(self, mode: int) -> Layout:
        return layout(self.facts, mode, self.rounds)

    def counts(self, mode: int) -> Array:
        """Entries of each level, as far as is known; equal for a mode that was not asked about."""
        counts, size = self.start.counts[mode], self.facts.sizes[mode]
        if counts is not None:
            return counts
        return np.full(size, max(float(c.sum()) for c in self.start.counts if c is not None) / size)

    def generator(self) -> np.random.Generator:
        return start_generator(self.seed)

    def with_mode(self, mode: int, found: ModeColumns) -> State:
        return replace(self, modes={**self.modes, mode: found})

    # -- columns --------------------------------------------------------------------------------

    def groups(self) -> list[tuple[int, int, int]]:
        """Group, mode and position among the mode's columns of that part; of all columns in order."""
        return [
            (group, mode, c)
            for mode, found in self.modes.items()
            for group, part in found.parts()
            for c in range(part.shape[1])
        ]

    def model(self) -> Multilinear:
        """The released model. A mode's columns are components in which all other modes but the
        owners' are one.
        """
        model = self.facts.shape.zeros().with_mean(self.start.mean)
        local, at = self.facts.local, 0
        for m, biases in enumerate(self.start.biases):
            model.mode_biases[m][:] = 0 if m == local else biases
        for mode, found in self.modes.items():
            for _, part in found.parts():
                here = slice(at, at + part.shape[1])
                for m, factor in enumerate(model.factors):
                    if m != local:
                        factor[:, here] = part if m == mode else 1.0
                at = here.stop
        return model

    def own_prior(self) -> OwnPrior:
        facts, local = self.facts, self.facts.local or 0
        model = self.model()
        rank, groups = model.ranks[local], [group for group, _, _ in self.groups()]
        variances = np.full(rank, _FIRST_VARIANCES[PRESENCE])
        variances[: len(groups)] = [self.variances[group] for group in groups]
        variances *= self.scatter
        return OwnPrior(
            mode=local,
            precisions=1 / variances,
            pull=None if self.pulls is None else self._pull(self.pulls),
            bias_precision=1 / self.start.own.variance,
            scatter=self.scatter,
            doubts=tuple(None if m == local else self._doubts(m) for m in range(len(facts.modes))),
            certainty=self.start.certainty,
        )

    def all_told(self) -> Told:
        """What an update goes on from; slopes on biases and counts are made anew then."""
        slopes = [at for at, (group, _, _) in enumerate(self.groups()) if group in (SLOPE, COUNT)]
        return replace(self.told, free=tuple(slopes))

    def asked_prior(self) -> OwnPrior:
        """What own rows are asked about: also how far they go along with where their entries are."""
        return replace(self.own_prior(), pull=self._pull(dict.fromkeys(_FIRST_VARIANCES, 1.0)))

    def _pull(self, pulls: dict[int, float]) -> Pull:
        """In prior deviations before anything was asked; a column's centre is its mean over entries."""
        rank, at = self.facts.shape.ranks[self.facts.local or 0], 0
        strengths, centre = np.zeros(rank), np.zeros(rank)
        for mode, found in self.modes.items():
            counts = self.counts(mode)
            weights = counts / counts.sum()
            for group, part in found.parts():
                here = slice(at, at + part.shape[1])
                centre[here] = weights @ part
                first = sqrt(_FIRST_VARIANCES[group] * self.scatter)
                strengths[here] = pulls.get(group, 0.0) * _PULL * first
                at = here.stop
        return Pull(strengths, centre)

    def doubts(self) -> Doubts:
        """What is not known of levels; what is not known of columns counts as noise."""
        local, start = self.facts.local, self.start
        whole = [None if m == local else self._doubts(m) for m in range(len(self.facts.modes))]
        data = tuple(None if m == local else each for m, each in enumerate(start.data))
        noise = noise_of(whole, data)
        return Doubts(scatter=self.scatter, noise=noise, data=data, counts=start.counts)

    def _doubts(self, mode: int) -> Array:
        """What is not known of a level's bias and columns, as variance of its entries."""
        deviations = self.start.deviations[mode]
        doubts = np.where(np.isfinite(deviations), deviations, sqrt(self.known.assumed(mode))) ** 2
        found = self.modes.get(mode)
        if found is not None:
            if found.presence is not None:
                doubts = doubts + self.scatter * self.variances[PRESENCE] * found.presence.doubts
            for each in found.ratings[-1:]:
                doubts = doubts + self.scatter * self.variances[RATING] * each.doubts
        return doubts


@dataclass(frozen=True)
class Beginning:
    """Before the biases are released."""

    facts: Facts
    steps: tuple[Step, ...]
    biases: BiasState
    seed: int
    rounds: int
    done: int = 0


def begun(beginning: Beginning) -> State:
    """Go on from the biases that were released."""
    facts, start = beginning.facts, beginning.biases.release
    known = beginning.biases.known  # with what was learnt of the spread
    state = State(
        facts,
        known,
        beginning.steps,
        start,
        {},
        beginning.rounds,
        beginning.done,
        beginning.seed,
        start.own.scatter,
        beginning.biases.told,
    )
    for mode in column_modes(facts):
        counts = state.counts(mode)
        popular = np.argsort(-counts, kind="stable")[: popular_levels(facts, mode)]
        told = beginning.biases.told_of(mode)
        biases, number = (start.biases[mode], counts) if told is None else (told.biases, told.counts)
        made = slope_columns(biases, number, state.layout(mode).slopes)
        state = state.with_mode(mode, ModeColumns(np.sort(popular), made))
    return state


# -- answers ----------------------------------------------------------------------------------------


def read_presence_moment(state: State, mode: int, noisy: Noisy, weights: Array) -> State:
    """Columns of the popular levels, and how long owners' coordinates along them are."""
    facts, found = state.facts, state.modes[mode]
    kept, number = found.kept, state.layout(mode).presence
    counts = state.counts(mode)[kept] * weights[kept]
    moment = symmetric(noisy.values, kept.shape[0])
    number = min(number, kept.shape[0] - 1)
    popular = factor_presence(moment, noisy.deviation, counts, number, state.generator())
    total = float(np.sum((popular.popularity[:, None] * popular.columns) ** 2))
    owners = facts.sizes[facts.local or 0]
    lengths = owners if facts.whole_units else sqrt(owners * float(state.counts(mode).sum()))
    reach = REACH * min(1.0, max(0.05, sqrt(total / lengths)))
    return state.with_mode(mode, replace(found, popular=popular, reach=reach))


def presence_directions(state: State, mode: int) -> Array:
    """Along which owners' levels are projected: those of the popular levels' moment."""
    found, size = state.modes[mode], state.facts.sizes[mode]
    directions = np.zeros((size, state.layout(mode).presence))
    if found.popular is not None:
        popularity, columns = found.popular
        centred = columns - (popularity @ columns) / popularity.sum()
        directions[found.kept, : columns.shape[1]] = orthonormal(centred * popularity[:, None])
    return directions


def read_presence(state: State, mode: int, sums: Array, variances: Array) -> State:
    found, made = state.modes[mode], state.layout(mode)
    counts = state.counts(mode)
    columns = columns_from(sums, variances, counts, made.presence, _WEAKEST[PRESENCE])
    return state.with_mode(mode, replace(found, presence=columns))


def read_rating_moment(state: State, mode: int, noisy: Noisy, weights: Array) -> State:
    """Directions of the ratings' projection: slopes, presence, and what the moment has found."""
    found, facts = state.modes[mode], state.facts
    kept, counts = found.kept, state.counts(mode)
    number = min(state.layout(mode).ratings, kept.shape[0] - 1)
    # As large as the moment's rows would be if columns had variance one.
    scale = counts[kept] * weights[kept]
    scale = scale * sqrt(facts.sizes[facts.local or 0] / float(scale @ scale))
    if not facts.whole_units and found.popular is not None:
        scale = found.popular.popularity * sqrt(state.scatter)
    moment = symmetric(noisy.values, kept.shape[0])
    columns = np.zeros((counts.shape[0], number))
    columns[kept] = factor_moment(moment, noisy.deviation, scale, number, state.generator())
    parts = [found.slopes, *([] if found.presence is None else [found.presence.means]), columns]
    directions = orthonormal(np.hstack(parts) * counts[:, None])
    return state.with_mode(mode, replace(found, directions=directions))


def read_ratings(state: State, mode: int, sums: Array, variances: Array) -> State:
    found, made = state.modes[mode], state.layout(mode)
    counts = state.counts(mode) * _RATING_GAIN
    columns = columns_from(sums, variances, counts, made.ratings, _WEAKEST[RATING])
    directions = orthonormal(np.hstack([found.slopes, columns.means]) * counts[:, None])
    ratings = (*found.ratings, columns)
    return state.with_mode(mode, replace(found, ratings=ratings, directions=directions))


def read_own(state: State, noisy: Noisy, scatter: float = 1.0) -> State:
    """How much owners differ along each group of columns, over what was taken for granted, and how far
    they go along with where their entries are; ``scatter`` is that of values over the one expected.
    """
    present = sorted({group for group, _, _ in state.groups()})
    found = read_squares(noisy, state.facts.sizes[state.facts.local or 0], 0.0, scatter)
    variances = dict(state.variances)
    for group, factor in zip(present, found.variances, strict=False):
        variances[group] *= float(factor)
    pulls = dict(zip(present, map(float, found.pulls), strict=False))
    return replace(state, variances=variances, pulls=pulls)
