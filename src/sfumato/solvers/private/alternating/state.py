"""Where an alternating private fit is, and what is made of the answers: post-processing, all of it.

First the biases' own state; from their release on a :class:`State`, all of which was released.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from math import sqrt

import numpy as np

from sfumato.kernels.numba.alternating import CORE
from sfumato.models.doubts import Doubts, noise_of
from sfumato.models.multilinear import Multilinear
from sfumato.models.own_prior import OwnPrior
from sfumato.models.told import Told
from sfumato.privacy.facts import Facts
from sfumato.privacy.mechanisms import Noisy
from sfumato.solvers.private.alternating.moves import Block, Move, Moved, weighted_moment
from sfumato.solvers.private.alternating.queries import Owners, symmetric
from sfumato.solvers.private.alternating.settings import Step, free_modes, sloped_mode
from sfumato.solvers.private.bias_state import BiasRelease, BiasState, entry_weight
from sfumato.solvers.private.free_columns import slope_columns
from sfumato.solvers.private.known import Known
from sfumato.solvers.protocol import DivergedError, start_generator
from sfumato.types import Array

_FIRST_POWER, _LEAST_POWER = 0.03, 0.004  # variance that a component explains, over that of the values
_TIME_POWER = 0.1  # of another mode's, of what a time mode's rows differ from one by


@dataclass(frozen=True)
class Beginning:
    """Before the biases are released; ``model`` is the random start of what comes after them."""

    facts: Facts
    steps: tuple[Step, ...]
    biases: BiasState
    model: Multilinear
    done: int = 0


@dataclass(frozen=True)
class Owned:
    """What is known of rows that units solve themselves.

    ``turn`` is a matrix T: rows have the covariance T T'; ``next_turn`` the same from the next round on.
    ``start`` is the model that this round's rows are solved with, and ``moment`` their second moment.
    """

    mode: int
    turn: Array
    next_turn: Array
    start: Multilinear
    moment: Array | None = None


@dataclass(frozen=True)
class State:
    """From the first block on; all of it was released.

    ``homes``: what rows of each mode shrink towards. ``row_moments``: second moments of the model's
    rows, by entry, for each mode.
    """

    facts: Facts
    known: Known
    steps: tuple[Step, ...]
    model: Multilinear
    homes: tuple[float | Array, ...]
    row_moments: tuple[Array, ...]
    start: BiasRelease
    blocks: tuple[Block, ...]  # by mode, then the core's
    owned: Owned | None
    done: int
    told: Told
    scatter: float = 0.0

    @property
    def step(self) -> Step:
        return self.steps[self.done]

    @property
    def ends_round(self) -> bool:
        """Whether the draw at hand is the last one of its round."""
        return self.done + 1 == len(self.steps) or self.steps[self.done + 1].round > self.step.round

    def counts(self, mode: int) -> Array:
        """Entries of each level, as far as is known; weighted where units are clipped as a whole.

        Those of a mode that was not asked about are taken to be equal.
        """
        counts, size = self.start.counts[mode], self.facts.sizes[mode]
        if counts is not None:
            return counts
        return np.full(size, max(float(c.sum()) for c in self.start.counts if c is not None) / size)

    def bias_variances(self, mode: int) -> Array:
        """Variances of a mode's biases given all that was released of them."""
        deviations = self.start.deviations[mode]
        asked = np.where(np.isfinite(deviations), deviations, sqrt(self.known.assumed(mode)))
        variances: Array = np.maximum(asked**2, 1e-12 * self.facts.spread**2)
        return variances

    def with_model(self, model: Multilinear, changed: Collection[int]) -> State:
        """Another model, of which the rows of these modes have changed."""
        moments = list(self.row_moments)
        for mode in changed:
            moments[mode] = weighted_moment(model.factors[mode], self.counts(mode))
        return replace(self, model=model, row_moments=tuple(moments))

    def moments(self) -> list[Array]:
        """Second moment of each mode's rows, by entry; own rows as they were released."""
        moments = list(self.row_moments)
        if self.owned is not None and self.owned.moment is not None:
            moments[self.owned.mode] = self.owned.moment
        return moments

    def own_prior(self, local: int, turn: Array) -> OwnPrior:
        """What rows of the local mode are expected to be."""
        return OwnPrior(
            mode=local,
            precisions=np.ones(self.model.ranks[local]),
            turn=turn,
            bias_precision=1 / self.start.own.variance,
            scatter=self.scatter,
            certainty=self.start.certainty,
        )

    def doubts(self) -> Doubts:
        """What is not known of levels, noise and few entries apart; nothing of those owners solve."""
        whole, data = list[Array | None](), list[Array | None]()
        for m, block in enumerate(self.blocks[:-1]):
            kept = m == self.facts.local
            asked, left = block.level_doubts, block.level_data
            whole.append(None if kept else self.bias_variances(m) if asked is None else asked)
            data.append(None if kept else self.start.data[m] if left is None else left)
        noise = noise_of(whole, data)
        counts = self.start.counts
        return Doubts(scatter=self.scatter, noise=noise, data=tuple(data), counts=counts)

    def all_told(self) -> Told:
        """What an update goes on from: as the first biases told it, beside those that were found."""
        levels = list(self.told.levels)
        for m, each in enumerate(levels):
            if each is not None:
                found = self.model.mode_biases[m] - self.start.biases[m]
                levels[m] = None if m == self.facts.local else each._replace(biases=each.biases + found)
        return replace(self.told, levels=tuple(levels))

    def owners(self, owned: Owned) -> Owners:
        return Owners(self.own_prior(owned.mode, owned.turn), owned.start)


# -- the start, and from biases to blocks ---------------------------------------------------------


def random_signs(facts: Facts, seed: int, means: list[float]) -> Multilinear:
    """Random signs, since products of normal numbers would have long tails, and be clipped.

    Rows of the block that is solved first start at zero; own rows play no part.
    """
    model, generator, own = facts.shape.zeros(), start_generator(seed), facts.own
    free = free_modes(facts, means)
    for m, factor in enumerate(model.factors):
        drawn = generator.standard_normal(factor.shape)
        if m not in free:
            factor[:] = means[m]
        elif m != free[0] or own is not None:
            factor[:] = np.sign(drawn)
    core = model.free_core
    core[:] = generator.standard_normal(core.shape)
    core /= max(float(np.linalg.norm(core)), 1.0)
    return model


def begun(beginning: Beginning, means: list[float]) -> State:
    """Go on from the biases that were released, and from what they say of the values' spread.

    Columns that biases and counts tell start there, and shrink towards that.
    """
    start = beginning.biases.release
    facts = replace(beginning.facts, public_spread=start.spread)
    own = facts.own
    model = beginning.model.with_mean(start.mean)
    free = free_modes(facts, means)
    if own is not None and free:  # own rows are taken to have variance one: others have the scale
        model.rows[model.span(free[0])] *= sqrt(_FIRST_POWER) * facts.spread
    for m, biases in enumerate(start.biases):
        model.mode_biases[m][:] = 0 if m == own else biases
    owned = None
    if own is not None:
        turn = np.eye(model.ranks[own])
        owned = Owned(own, turn, turn, model.copy())
    blocks = (Block(),) * (model.order + 1)
    known, done, told = beginning.biases.known, beginning.done, beginning.biases.told
    none = (np.zeros(0),) * model.order
    homes: list[float | Array] = list(means)
    state = State(facts, known, beginning.steps, model, (), none, start, blocks, owned, done, told)
    sloped = sloped_mode(facts, means)
    if sloped is not None:
        columns = slope_columns(start.biases[sloped], state.counts(sloped), model.ranks[sloped])
        there = np.flatnonzero(columns.any(axis=0))
        home = np.zeros_like(model.factors[sloped])
        home[:, there] = model.factors[sloped][:, there] = columns[:, there]
        homes[sloped] = home
    return replace(state, homes=tuple(homes)).with_model(model, range(model.order))


def most_scatter(facts: Facts) -> float:
    """What squared residuals are clipped to."""
    return (2 * facts.spread) ** 2


def read_scatter(state: State, noisy: Noisy) -> float:
    """Variance of what biases leave, by the counts with the least noise in their sum."""
    return scatter_from(state.facts, noisy, float(state.counts(int(np.argmin(state.facts.sizes))).sum()))


def scatter_from(facts: Facts, noisy: Noisy, entries: float) -> float:
    """Variance of what biases leave: as released, or as assumed where noise drowns it."""
    number = entries
    if facts.unit_mode is not None:
        number = max(1.0, float(noisy.values[1]) / most_scatter(facts))
    error = noisy.deviation / number
    kept = facts.scatter**2 / (facts.scatter**2 + error**2)
    guess = facts.scatter + kept * (float(noisy.values[0]) / number - facts.scatter)
    return float(np.clip(guess, 0.05 * facts.scatter, 3 * facts.scatter))


# -- own rows -------------------------------------------------------------------------------------


def read_own_moment(state: State, owned: Owned, noisy: Noisy) -> State:
    """Take over the second moment of own rows, and what it says about the rows themselves.

    A ridge solution is smaller than the row that it is a guess of, by what is not known of it. That is
    made up for, or rows would shrink from round to round: given its n entries, coordinates with prior
    variance one have the posterior variance (1 + n S / scatter)^-1.

    It comes into force with the next round: a round's blocks have the rows whose moment was asked for,
    and they are solved once.
    """
    turn, rank = owned.turn, owned.turn.shape[0]
    number = max(1.0, float(noisy.values[-1]) / rank)
    variances, axes = np.linalg.eigh(symmetric(noisy.values[:-1], rank) / number)
    # Of coordinates with variance one, known in part: beyond these limits it is noise.
    solved = (axes * np.clip(variances, 0.02, 2.0)) @ axes.T
    state = replace(state, owned=replace(owned, moment=turn @ solved @ turn.T))
    design = turn.T @ state.model.design_moment(owned.mode, state.moments()) @ turn
    unknown = np.linalg.inv(np.eye(rank) + _entries_of_unit(state, owned) * design / state.scatter)
    after = _limited(turn @ root(solved + unknown))
    return replace(state, owned=replace(owned, moment=turn @ solved @ turn.T, next_turn=after))


def next_round(state: State) -> State:
    """Own rows are solved anew, with the model as it is now."""
    if state.owned is None:
        return state
    owned = replace(state.owned, turn=state.owned.next_turn, start=state.model.copy())
    return replace(state, owned=owned)


def _limited(turn: Array) -> Array:
    """Within limits that no data reach: under much noise it would drift to where it has no inverse."""
    if not np.isfinite(turn).all():
        raise DivergedError("the private fit left the range of floating-point numbers")
    left, sizes, right = np.linalg.svd(turn)
    limited: Array = (left * np.clip(sizes, 1e-3, 1e3)) @ right
    return limited


def root(moment: Array) -> Array:
    """A matrix T with T T' = moment, directions that hardly occur made up for."""
    variances, axes = np.linalg.eigh(moment)
    made_up: Array = axes * np.sqrt(np.maximum(variances, 1e-3 * variances[-1] + 1e-300))
    return made_up


def _entries_of_unit(state: State, owned: Owned) -> float:
    """Entries of an average unit: public, or from its weighted counts, which add up to their root."""
    units, entries = state.facts.sizes[owned.mode], state.facts.entries
    if entries is not None:
        return entries / units
    return float(max(state.counts(m).sum() for m in state.known.shared) / units) ** 2


# -- blocks ---------------------------------------------------------------------------------------


def move_of(
    state: State,
    mode: int,
    length: float,
    powers: Array,
    noise: Array,
    bias_weight: float,
    *,
    timed: bool,
) -> Move:
    """A step of a mode's rows. How much they explain is learnt from them: ``powers`` by coordinate.

    What is not known of them counts as well, or rows would shrink from round to round; but a time
    mode's are taken for one unless they stand out.
    """
    counts, block, unit = state.counts(mode), state.blocks[mode], state.facts.spread**2
    scale = unit * (_TIME_POWER if timed else 1.0)
    power = np.full(powers.shape, _FIRST_POWER * scale)
    if block.doubts is not None:
        seen = powers + (0.0 if timed else block.doubts)
        power = np.maximum(seen, _LEAST_POWER * scale)
    return Move(
        step=length,
        counts=counts,
        scatter=state.scatter * entry_weight(state.known, counts),
        power=power,
        noise=noise,
        bias_weight=bias_weight,
        bias_means=state.start.biases[mode],
        bias_variances=state.bias_variances(mode),
    )


def moved_core(state: State, length: float, sums: Array, noise: Array) -> Moved:
    """A core moves like the one row of a mode whose only level has all entries."""
    core, mode = state.model.free_core[None, :], int(np.argmin(state.facts.sizes))
    total = state.counts(mode).sum(keepdims=True)
    if state.owned is not None:  # each unit counts about once
        total = np.array([float(state.facts.sizes[state.owned.mode])])
    least = _LEAST_POWER * state.facts.spread**2
    power = np.full(core.shape[1], max(float(np.mean(core**2)), least))
    none = np.zeros(1)
    move = Move(length, total, state.scatter, power, noise, 0.0, none, none)
    return move.by_gradients(core, none, sums, state.blocks[CORE])


def white_for_core(state: State) -> State:
    """Before the core is asked about, rows of all modes are made white: then so is their product."""
    after, model = state.done + 1, state.model
    if after >= len(state.steps) or (state.steps[after].asks, state.steps[after].block) != (
        "block",
        CORE,
    ):
        return state
    for mode, moment in enumerate(state.moments()):
        if state.owned is None or mode != state.owned.mode:
            model = model.turned(mode, np.linalg.inv(root(moment)).T)
    return state.with_model(model, range(model.order))
