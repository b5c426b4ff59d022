"""Alternating private fits: noisy statistics of one block after the other, in their best coordinates.

First come private biases (``biases.py``), with noisy counts of every level, and how far values
lie from them. Then, round after round, each block (the rows of a released mode with their biases, or
the core) is asked for the sums of its clipped gradients, and moves by them:

- designs are taken to coordinates in which they have unit variance in every direction, as far as what
  was released says: there clipping and noise hurt all directions alike;
- noisy counts stand for the Hessian, so that a step of one would replace the block by its least-squares
  solution. The step falls over the rounds: noise averages out instead of each round replacing the last;
- the ridge of a row is that of the best linear guess, from the variance of the residuals, that of the
  noise in the row, and that of the rows themselves, learnt from the rows released before. Where noise
  is large, rows fall back to their prior mean and the fit to the biases;
- where rows of two modes are noised, the first columns of one are its own released biases and the
  logarithm of its counts, on which rows of the other have slopes: they need not be found.

Units: ``Value`` and ``Entry`` by entry, all modes noised, a local mode solved at the end and never fed
back. ``Unit`` where its rows are local: every unit solves its own rows before it answers, and its whole
contribution is clipped. Proofs: ``proofs/alternating.md``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import sqrt
from typing import ClassVar, NamedTuple

import numpy as np

from sfumato.checks import (
    LEAST_SIZE,
    MOST_ROUNDS,
    check_count,
    check_number,
    check_positive,
    wrong,
)
from sfumato.errors import SettingError
from sfumato.kernels.grid import MOST_NUMBERS
from sfumato.kernels.numba.alternating import CORE, Features, Weighting, padded_metric
from sfumato.models.multilinear import Multilinear
from sfumato.privacy.facts import Facts
from sfumato.privacy.ledger import Charge
from sfumato.privacy.mechanisms import Gaussian, Noisy
from sfumato.privacy.units import Unit, UnitValues
from sfumato.records import record
from sfumato.solvers.private.alternating.moves import Coordinates, coordinates_of, weighted_moment
from sfumato.solvers.private.alternating.queries import (
    BlockQuery,
    OwnQuery,
    ScatterQuery,
    UnitBlockQuery,
)
from sfumato.solvers.private.alternating.settings import (
    LEAST_SHARE,
    OWN_SHARE,
    SCATTER_SHARE,
    Settings,
    Step,
    bias_facts,
    block_shares,
    derive,
    label,
    level_weights,
    schedule,
)
from sfumato.solvers.private.alternating.state import (
    Beginning,
    State,
    begun,
    most_scatter,
    move_of,
    moved_core,
    next_round,
    random_signs,
    read_own_moment,
    read_scatter,
    root,
    white_for_core,
)
from sfumato.solvers.private.biases import PrivateBiases
from sfumato.solvers.protocol import (
    MOST_MEAN,
    DivergedError,
    Finished,
    Info,
    Run,
    Silent,
    SumQuery,
    Wish,
)
from sfumato.surface import setting
from sfumato.types import Array


class Settled(NamedTuple):
    """Variances of the noise in the sums of levels: of a row's coordinate, and of the bias."""

    rows: Array
    biases: Array


class Asked(NamedTuple):
    """How a block is asked. ``usual`` is the length of an average contribution, before it is clipped."""

    coordinates: Coordinates | None
    features: Features
    usual: float


@record
@dataclass(frozen=True)
class PrivateAlternating(Silent):
    """Settings of alternating private fits. Those that are None follow from public numbers.

    Parameters
    ----------
    noise : float
        Noise multiplier of all draws together, found from the budget.
    sweeps : int or None
        Times that each block is asked about.
    held_sweeps, last_step
        The step is one in the first sweeps, then falls in a line to the last.
    residual_clip : float or None
        Of residuals, in their standard deviations.
    feature_clip : float or None
        Of a design's length, over its root mean square.
    unit_clip : float or None
        Of a unit's whole contribution, over the length of an average one.
    bias_weight : float or None
        Of a bias among the coordinates of a row.
    bias_share : float or None
        Of the budget for the biases before the first sweep.
    growth : float or None
        Share of the last sweep over that of the first, less one.
    prior_mean : mapping or None
        What factors shrink towards, by mode; by default 1 for a time mode, else 0.

    Examples
    --------
    >>> import sfumato as sf
    >>> modes = [sf.Mode("user", 1000), sf.Mode("item", 200)]
    >>> public = sf.Public(labels=True, units=1000, entries=50_000)
    >>> privacy = sf.Privacy(
    ...     3,
    ...     1e-6,
    ...     unit="user",
    ...     public=public,
    ...     method=sf.PrivateAlternating(sweeps=2),
    ... )
    >>> plan = sf.CP(rank=2, privacy=privacy).plan(modes, bounds=(1, 5))
    >>> print(plan.explain())
    user 1,000 x item 200: CP of rank 2 with a mean and biases, float64;
        alternating, within epsilon 3, delta 1e-06 for all entries of one user,
        their presence included.
      2 rounds, steps falling from 1 to 0.15; what one user adds clipped at 0.6 of
          its usual length
      1 x constant: Gaussian, noise multiplier 26.3; 0.0034 of the budget
      1 x spread: Gaussian, noise multiplier 50.3; 0.00094 of the budget
      1 x entries by item: Gaussian, noise multiplier 8.39; 0.034 of the budget
      6 x residuals by item: Gaussian, noise multiplier 6.85; 0.3 of the budget
      1 x how far owners differ: Gaussian, noise multiplier 48.3; 0.001 of the
          budget
      1 x squared residuals: Gaussian, noise multiplier 21.8; 0.005 of the budget
      2 x second moment of own rows: Gaussian, noise multiplier 15.4; 0.02 of the
          budget
      2 x sums by item: Gaussian, noise multiplier 3.89 to 2.24; 0.63 of the budget
    """

    noise: float = 1.0
    sweeps: int | None = None
    held_sweeps: int | None = None
    last_step: float | None = None
    residual_clip: float | None = None
    feature_clip: float | None = None
    unit_clip: float | None = None
    bias_weight: float | None = None
    bias_share: float | None = None
    growth: float | None = None
    prior_mean: Mapping[str, float] | None = None

    name: ClassVar[str] = "alternating"
    proof: ClassVar[str] = "proofs/alternating.md"
    proven: ClassVar[bool] = True
    knows_doubts: ClassVar[bool] = True
    exact: ClassVar[bool] = True

    # -- what will be done: never sees data -----------------------------------------------------

    def settings(self, facts: Facts) -> Settings:
        """The settings of a fit: those given, and the others as derived."""
        derived = derive(facts, self.noise)
        given = {name: getattr(self, name) for name in derived.__dataclass_fields__}
        return replace(derived, **{name: value for name, value in given.items() if value is not None})

    def check(self, facts: Facts) -> None:
        shape, unit = facts.shape, facts.unit
        if isinstance(unit, UnitValues):
            raise SettingError("an alternating fit protects 'value', 'entry' or a mode; use 'bias'")
        if isinstance(unit, Unit) and facts.local is None:
            raise SettingError(
                f"an alternating fit that protects {unit} leaves rows of {unit.mode} with "
                f"their owners: leave {setting('local')} at 'auto', or use the method 'gradient'"
            )
        if not (shape.fit_mean and shape.fit_biases):
            raise SettingError("an alternating fit starts from mean and biases: use method 'gradient'")
        if shape.dtype != "float64":
            raise SettingError("an alternating fit computes in float64: leave the dtype out")
        check_positive(noise=self.noise)
        s = self.settings(facts)
        check_count(1, MOST_ROUNDS, sweeps=s.sweeps)
        check_count(0, held_sweeps=s.held_sweeps)
        check_positive(residual_clip=s.residual_clip, feature_clip=s.feature_clip)
        check_positive(unit_clip=s.unit_clip, bias_weight=s.bias_weight)
        check_number(LEAST_SIZE, 1, last_step=s.last_step)
        check_number(growth=s.growth)
        if s.growth <= -1:
            raise wrong("growth", "a number above -1", s.growth)
        check_number(LEAST_SHARE, 1 - 2 * (SCATTER_SHARE + OWN_SHARE), bias_share=s.bias_share)
        shape.prior_means(self.prior_mean, MOST_MEAN)
        if max(shape.sizes) * (max(shape.ranks) + 1) > MOST_NUMBERS:
            raise SettingError(
                f"a block of more than {MOST_NUMBERS:,} numbers is more than the proof covers: use a "
                "smaller rank"
            )
        self.biases(facts).check(facts)

    def biases(self, facts: Facts) -> PrivateBiases:
        """The first part of the fit."""
        return PrivateBiases(self.noise / sqrt(self.settings(facts).bias_share))

    def bias_facts(self, facts: Facts) -> Facts:
        """As the biases see it."""
        return bias_facts(facts)

    def steps(self, facts: Facts) -> tuple[Step, ...]:
        """The draws in order, their shares adding up to one."""
        biases = [step.share for step in self.biases(facts).steps(bias_facts(facts))]
        return tuple(schedule(facts, self.settings(facts), biases, self._means(facts)))

    def _means(self, facts: Facts) -> list[float]:
        return facts.shape.prior_means(self.prior_mean)

    def charges(self, facts: Facts) -> tuple[Charge, ...]:
        steps, biases = self.steps(facts), self.biases(facts).charges(bias_facts(facts))
        rest = [
            Charge(label(facts, step), Gaussian(self.noise / sqrt(step.share)))
            for step in steps[len(biases) :]
        ]
        return (*biases, *rest)

    def rounds(self, facts: Facts) -> int:
        return len(self.steps(facts))

    def in_words(self, facts: Facts) -> tuple[str, ...]:
        """The settings, for a person."""
        s = self.settings(facts)
        clipped = f"residuals clipped at {s.residual_clip:.2g} of their spread"
        if facts.whole_units:
            clipped = f"what one {facts.unit.mode} adds clipped at {s.unit_clip:.2g} of its usual length"
        return (f"{s.sweeps} rounds, steps falling from 1 to {s.last_step:.2g}; {clipped}",)

    def settled_noise(self, facts: Facts, counts: Sequence[Array], rank: int) -> dict[int, Settled]:
        """Variances of the noise that the rounds leave in each level's sums, were these the counts.

        By mode that is asked about, over the variance of the residuals. ``counts`` are weighted as
        those of :class:`PrivateBiases`, and their noise is what these leave in them.
        """
        s, whole = self.settings(facts), facts.whole_units
        change = s.residual_clip * sqrt(s.feature_clip**2 * rank + s.bias_weight**2)
        if whole:
            change = s.unit_clip * sqrt(rank + s.bias_weight**2)
        elif facts.unit.replaces:
            change *= 2
        asked = {
            step.mode: self.noise / sqrt(step.share * s.bias_share)
            for step in self.biases(facts).steps(bias_facts(facts))
            if step.asks == "counts"
        }
        variances = dict.fromkeys([b for b in block_shares(facts, self._means(facts)) if b != CORE], 0.0)
        for step in self.steps(facts):
            if step.asks == "block" and step.block in variances:
                length = s.step_length(step.round)
                noise = (length * self.noise * change) ** 2 / step.share
                variances[step.block] = (1 - length) ** 2 * variances[step.block] + noise
        left = {}
        for mode, variance in variances.items():
            weights = (
                level_weights(counts[mode], asked.get(mode, 0.0))
                if whole
                else np.ones(facts.sizes[mode])
            )
            left[mode] = Settled(variance / weights**2, variance / (weights * s.bias_weight) ** 2)
        return left

    # -- the loop -------------------------------------------------------------------------------

    def init(self, run: Run, facts: Facts) -> Beginning:
        self.check(facts)
        biases = self.biases(facts).init(run, bias_facts(facts))
        start = random_signs(facts, run.seed, self._means(facts))
        return Beginning(facts, self.steps(facts), biases, start)

    def ask(self, state: Beginning | State) -> SumQuery:
        if isinstance(state, Beginning):
            return self.biases(state.facts).ask(state.biases)
        step, model, owned = state.step, state.model, state.owned
        if step.asks == "scatter":
            return ScatterQuery(state.known, model.mean, model.mode_biases, most_scatter(state.facts))
        if owned is None:
            return BlockQuery(
                state.facts.unit, model, step.block, self._asked(state, step.block).features
            )
        if step.asks == "own":
            return OwnQuery(state.owners(owned), sqrt(model.ranks[owned.mode]))
        asked = self._asked(state, step.block)
        weighting = self._weighting(state, step.block, asked)
        return UnitBlockQuery(model, step.block, asked.features, weighting, state.owners(owned))

    def update(self, state: Beginning | State, released: Noisy) -> tuple[Beginning | State, Info]:
        if isinstance(state, Beginning):
            return self._begin(state, released)
        step = state.step
        if step.asks == "scatter":
            state = replace(state, scatter=read_scatter(state, released))
        elif step.asks == "own" and state.owned is not None:
            state = read_own_moment(state, state.owned, released)
        else:
            state = self._moved(state, step, released)
        finished = step.round + state.ends_round
        info = Info(finished if step.asks == "block" else step.round, noise=released.deviation)
        return replace(state, done=state.done + 1), info

    def _begin(self, state: Beginning, released: Noisy) -> tuple[Beginning | State, Info]:
        biases, info = self.biases(state.facts).update(state.biases, released)
        state = replace(state, biases=biases, done=state.done + 1)
        last = state.steps[state.done].asks != "biases"
        begins = begun(state, self._means(state.facts)) if last else state
        return begins, replace(info, completed=0)

    def finish(self, state: State) -> Finished[Multilinear]:
        model, local = state.model.copy(), state.facts.local
        if local is None:
            return Finished(model, doubts=state.doubts(), told=state.all_told())
        model.rows[model.span(local)] = 0
        model.biases[model.span(local)] = 0
        doubts = [block.level_doubts for block in state.blocks[:-1]]
        doubts[local] = None
        turn = root(state.moments()[local]) if state.owned is None else state.owned.turn
        prior = replace(state.own_prior(local, turn), doubts=tuple(doubts))
        return Finished(model, own_prior=prior, doubts=state.doubts(), told=state.all_told())

    # -- blocks ---------------------------------------------------------------------------------

    def _asked(self, state: State, block: int) -> Asked:
        """How a block is asked: in which coordinates, and clipped how."""
        s, model = self.settings(state.facts), state.model
        if block == CORE:  # rows are white when it is asked, and so is their product
            coordinates, size = None, model.free_core.size
            metric, bias = np.ones((1, size)), 0.0
        else:
            moments, size = state.moments(), model.ranks[block]
            home, rows = state.homes[block], state.row_moments[block]
            if np.any(home):
                rows = weighted_moment(model.factors[block] - home, state.counts(block))
            coordinates = coordinates_of(model.design_moment(block, moments), rows)
            metric, bias = coordinates.designs, s.bias_weight
        target = s.residual_clip * sqrt(state.scatter)
        features = Features(padded_metric(metric), s.feature_clip * sqrt(size), target, bias)
        return Asked(coordinates, features, sqrt(size + bias**2) * sqrt(state.scatter))

    def _weighting(self, state: State, block: int, asked: Asked) -> Weighting:
        """How much a unit's entries count by level, and what its whole contribution is shortened to."""
        levels = np.ones(1)
        if block != CORE:
            levels = level_weights(state.counts(block), state.start.count_deviations[block])
        bound = self.settings(state.facts).unit_clip * asked.usual
        return Weighting(levels, state.known.ridge, bound)

    def _moved(self, state: State, step: Step, noisy: Noisy) -> State:
        """The state with a block moved by its noisy sums."""
        asked, sums = self._asked(state, step.block), noisy.values
        noise = np.full(sums.shape[0], noisy.deviation**2)
        if state.owned is not None:
            weights = self._weighting(state, step.block, asked).levels
            sums, noise = sums / weights[:, None], noise / weights**2
        length = self.settings(state.facts).step_length(step.round)
        blocks, coordinates = list(state.blocks), asked.coordinates
        model = state.model.copy()  # what was asked with the old one stays as it was
        if coordinates is None:
            moved = moved_core(state, length, sums, noise)
            found = moved.rows
            model.free_core[:] = found[0]
        else:
            mode, home = step.block, state.homes[step.block]
            factor, moves = model.factors[mode], bool(np.any(home))
            rows = (factor - home if moves else factor) @ coordinates.rows
            timed = self._means(state.facts)[mode] != 0
            move = move_of(
                state, mode, length, coordinates.powers, noise, asked.features.bias, timed=timed
            )
            moved = move.by_gradients(rows, model.mode_biases[mode], sums, blocks[mode])
            found = moved.rows @ coordinates.designs.T
            factor[:] = home + found if moves else found
            model.mode_biases[mode][:] = moved.biases
        if not (np.isfinite(found).all() and np.isfinite(moved.biases).all()):
            raise DivergedError("the private fit left the range of floating-point numbers")
        blocks[step.block] = moved.block
        changed = () if step.block == CORE else (step.block,)
        state = white_for_core(replace(state, blocks=tuple(blocks)).with_model(model, changed))
        return next_round(state) if state.ends_round else state


def make(facts: Facts, wish: Wish) -> PrivateAlternating:  # noqa: ARG001
    """The solver of the method "alternating"."""
    if wish.budget.pure:
        raise SettingError(
            "an alternating fit gives no pure epsilon: name a delta, such as 1e-6, or use "
            "the method 'bias'"
        )
    return PrivateAlternating()
