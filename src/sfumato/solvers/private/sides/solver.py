"""A private fit of one relation beside others: what these say of its levels becomes columns.

First the relation is fitted by itself, by any method that starts from private biases. What other
relations say of the levels of a mode then adds components to it (proofs: ``proofs/sides.md``):

- of the owners' mode, what owners make of their own entries elsewhere (or public numbers): residuals at
  each level of another mode, times the owners' numbers, give a column of that mode for each of them. Own
  rows are expected to be those numbers along these columns, and differ from that as far as their entries
  say so. Somebody without entries here is predicted by what is expected.
- of another mode, where rows stay with their owners: the features are columns themselves, on which
  owners have slopes. They cost nothing but the question how large slopes are.
- where everything is released: residuals at the levels of each other mode, times the features.

What does not help is shrunk away: columns are posterior means, whose variance is learnt from all levels
and the known noise; how far own rows go along with what is expected of them is asked.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from math import inf, sqrt
from typing import Any, ClassVar, NamedTuple

import numpy as np

from sfumato.errors import SettingError
from sfumato.models.multilinear import Multilinear
from sfumato.models.own_means import OwnMeans, OwnNumbers, OwnSource
from sfumato.models.own_prior import OwnPrior
from sfumato.privacy.facts import Facts
from sfumato.privacy.ledger import Charge
from sfumato.privacy.mechanisms import Gaussian, Noisy
from sfumato.records import record
from sfumato.solvers.private.alternating.state import State as AlternatingState
from sfumato.solvers.private.bias_state import BiasRelease, BiasState, entry_weight
from sfumato.solvers.private.constant import PrivateConstant
from sfumato.solvers.private.known import Known
from sfumato.solvers.private.moments.settings import level_weights
from sfumato.solvers.private.moments.solver import Groups, asked_groups
from sfumato.solvers.private.moments.state import State as MomentsState
from sfumato.solvers.private.moments.state import read_own
from sfumato.solvers.private.pairs.solver import State as PairsState
from sfumato.solvers.private.sides.columns import (
    extended,
    extended_prior,
    learnt_columns,
    scaled,
    spreads_of,
    whitening,
)
from sfumato.solvers.private.sides.queries import (
    CrossQuery,
    OwnMomentQuery,
    OwnSideQuery,
    shortened,
)
from sfumato.solvers.private.sides.settings import (
    CLIP,
    EXPECTED,
    GAIN,
    GROUPS,
    LEAST_FEATURES,
    LENGTH,
    LONGEST,
    MOST_FEATURES,
    MOST_STRENGTH,
    OWN_GAIN,
    OWN_LENGTH,
    OWN_VARIANCE,
    POWER,
    RAW_REACH,
    REACH,
    RIDGE,
    SLOPE_VARIANCE,
    SLOPES,
    TELLING,
    UNIT_CLIP,
    UNIT_GAIN,
    UNIT_LENGTH,
    UNIT_RIDGE,
    WORTH,
    Step,
    asks_own,
    label,
    side_share,
    side_steps,
)
from sfumato.solvers.private.squares import of_groups, read_scatter, read_squares
from sfumato.solvers.protocol import Finished, Info, PrivateQuery, PrivateSolver, Run
from sfumato.types import Array


@record
@dataclass(frozen=True, eq=False)
class LevelFeatures:
    """Numbers of the levels of a mode, white: public, or released before."""

    mode: int
    columns: Array


class Block(NamedTuple):
    """Components that were found: columns of one mode beside features of another."""

    by: int
    mode: int
    features: Array | None  # None where owners have them
    columns: Array
    doubts: Array


@dataclass(frozen=True, eq=False)
class State:
    """Where it is: in the relation's own fit while ``inner`` is not finished."""

    facts: Facts
    inner: Any
    first: int  # of the questions beside others: how many draws come before
    done: int = 0
    made: Finished[Multilinear] | None = None
    start: BiasRelease | None = None
    scatter: float = 0.0
    numbers: OwnNumbers | None = None  # of owners, once they are white
    blocks: tuple[Block, ...] = ()
    variances: tuple[float, float] = (1.0, 1.0)  # of own rows about expected ones, and of slopes
    strength: float = 1.0
    left: float = 1.0  # what all columns leave of the scatter

    def column_doubts(self, order: int) -> tuple[Array | None, ...]:
        """What is not known of columns that others' relations have led to, for each mode."""
        doubts: list[Array | None] = [None] * order
        for block in self.blocks:
            before = doubts[block.mode]
            doubts[block.mode] = block.doubts if before is None else before + block.doubts
        return tuple(doubts)


@record
@dataclass(frozen=True)
class BesideOthers:
    """A relation's own private fit, and what others add to it.

    Parameters
    ----------
    inner : the method that fits the relation by itself; its noise is a share of this one's.
    features : of levels, public or released before.
    sources : relations fitted before in which owners have entries.
    part : which of several relations it is, where they lie together.
    noise : noise multiplier of all draws together.
    share : of the budget for what others add; None for what the relation's own fit can spare.
    """

    inner: Any
    features: tuple[LevelFeatures, ...] = ()
    sources: tuple[OwnSource, ...] = ()
    part: int | None = None
    noise: float = 1.0
    share: float | None = None

    proven: ClassVar[bool] = True
    always_fits: ClassVar[tuple[str, ...]] = ("mean", "biases")

    @property
    def name(self) -> str:
        return f"{self.inner.name}, beside public tables"

    @property
    def proof(self) -> str:
        return f"{self.inner.proof}, proofs/sides.md"

    @property
    def exact(self) -> bool:
        return bool(self.inner.exact)

    @property
    def pure(self) -> bool:
        """Whether all noise is Laplace's: nothing is asked beside the relation's own fit then."""
        return bool(getattr(self.inner, "pure", False))

    @property
    def knows_doubts(self) -> bool:
        return bool(getattr(self.inner, "knows_doubts", False))

    # -- what will be done: never sees data -------------------------------------------------------

    def check(self, facts: Facts) -> None:
        if facts.shape.dtype != "float64":
            raise SettingError("a private fit of several relations computes in float64")
        self._own(facts).check(facts)

    def _own(self, facts: Facts) -> PrivateSolver[Any]:
        """The relation's own method, with its share of the budget."""
        rest = 1 - sum(step.share for step in self.steps(facts))
        less = {"own": False} if self._asks_for_both(facts) else {}
        made: PrivateSolver[Any] = replace(self.inner, noise=self.noise / sqrt(rest), **less)
        return made

    def _asks_for_both(self, facts: Facts) -> bool:
        """Whether the question about own rows is also the relation's own fit's."""
        asked = any(step.asks == "own" for step in self.steps(facts))
        return asked and asks_own(self.inner, facts)

    def steps(self, facts: Facts) -> tuple[Step, ...]:
        """What is asked after the relation's own fit."""
        # Laplace noise does not suit sums over many levels; and where a constant is all that noise
        # leaves, nothing else is to be had.
        if self.pure or isinstance(self.inner, PrivateConstant):
            return ()
        share = side_share(self.inner, facts, self.noise) if self.share is None else self.share
        return side_steps(facts, [each.mode for each in self.features], bool(self.sources), share)

    def charges(self, facts: Facts) -> tuple[Charge, ...]:
        rest = (
            Charge(label(facts, step), Gaussian(self.noise / sqrt(step.share)))
            for step in self.steps(facts)
        )
        return (*self._own(facts).charges(facts), *rest)

    def rounds(self, facts: Facts) -> int:
        return len(self.charges(facts))

    def assumes(self, facts: Facts) -> tuple[str, ...]:
        return self._own(facts).assumes(facts)

    def in_words(self, facts: Facts) -> tuple[str, ...]:
        lines = (f"by itself: {self.inner.name}", *self._own(facts).in_words(facts))
        if self.features and facts.local is None and not self.steps(facts):
            lines += ("what tables say is not asked about: noise takes more than they would add",)
        return lines

    def adds_up(self, facts: Facts) -> bool:
        return self._own(facts).adds_up(facts)

    # -- the loop ---------------------------------------------------------------------------------

    def init(self, run: Run, facts: Facts) -> State:
        self.check(facts)
        own = self._own(facts)
        return State(facts, own.init(run, facts), len(own.charges(facts)))

    def ask(self, state: State) -> PrivateQuery:
        if state.made is None:
            return self._own(state.facts).ask(state.inner)
        step = self._step(state)
        if step.asks == "moment":
            return OwnMomentQuery(self._raw_numbers(state), state.facts.whole_units)
        if step.asks == "own":
            return self._own_query(state)
        return self._cross_query(state, step)

    def _step(self, state: State) -> Step:
        return self.steps(state.facts)[state.done - state.first]

    def update(self, state: State, released: Any) -> tuple[State, Info]:
        if state.made is None:
            inner, info = self._own(state.facts).update(state.inner, released)
            return self._after_own(replace(state, inner=inner, done=state.done + 1)), info
        step = self._step(state)
        if step.asks == "moment":
            state = replace(state, numbers=self._white_numbers(state, released))
        elif step.asks == "cross":
            state = replace(state, blocks=(*state.blocks, self._block(state, step, released)))
        else:
            state = self._with_scales(state, released)
        return replace(state, done=state.done + 1), Info(state.done + 1, noise=released.deviation)

    def _after_own(self, state: State) -> State:
        """The state once the relation's own fit is done, if it is."""
        if state.done < state.first:
            return state
        made = self._own(state.facts).finish(state.inner)
        if isinstance(self.inner, PrivateConstant):
            return replace(state, made=made)
        start, scatter = _beginning(state.inner)
        return replace(state, made=made, start=start, scatter=scatter)

    def finish(self, state: State) -> Finished[Multilinear]:
        if state.made is None:
            raise RuntimeError("a fit that is not done has no model")
        model, prior = self.joined(state)
        means, doubts = self.own_means(state), state.made.doubts
        if doubts is not None:
            doubts = replace(doubts, scatter=state.left * doubts.scatter)
            doubts = doubts.with_noise(state.column_doubts(model.order))
        return Finished(model, own_prior=prior, own_means=means, doubts=doubts)

    # -- own numbers ------------------------------------------------------------------------------

    def _raw_numbers(self, state: State) -> OwnNumbers:
        """As they are made of entries, before they are white: of size one, or less where rare."""
        turns, size = [], sum(source.size for source in self.sources)
        for source in self.sources:
            turn = np.zeros((source.size, source.size))
            np.fill_diagonal(turn, 1.0)
            turns.append(turn)
        longest = LONGEST * max(_usual_length(turn) for turn in turns)
        ridge = UNIT_RIDGE if state.facts.whole_units else RIDGE
        return OwnNumbers(self.sources, tuple(turns), longest, ridge, RAW_REACH * sqrt(size))

    def _white_numbers(self, state: State, noisy: Noisy) -> OwnNumbers:
        """Own numbers in coordinates in which they are white, as far as the released moment tells."""
        raw, facts = self._raw_numbers(state), state.facts
        sizes = [source.size for source in self.sources]
        whole, owners = sum(sizes), facts.sizes[facts.local or 0]
        first, second = np.triu_indices(whole)
        moment = np.zeros((whole, whole))
        moment[first, second] = noisy.values * np.where(first == second, 1.0, sqrt(0.5)) / owners
        moment += np.triu(moment, 1).T
        turns, ends = [], np.cumsum((0, *sizes))
        error, most = noisy.deviation / owners, self._most_features(facts) // len(sizes)
        for begin, end in pairwise(ends):
            turns.append(whitening(moment[begin:end, begin:end], error, max(1, most)))
        number = max(1, sum(turn.shape[0] for turn in turns))
        reach, longest = REACH * sqrt(number), inf
        if not facts.whole_units:  # an entry there then moves sums here by no more than one here does
            longest = CLIP * reach * (1 + raw.ridge) / (LENGTH * sqrt(_each(facts, facts.local or 0)))
        return OwnNumbers(self.sources, tuple(turns), longest, raw.ridge, reach)

    # -- columns ----------------------------------------------------------------------------------

    def _cross_query(self, state: State, step: Step) -> CrossQuery:
        facts, own = state.facts, self._features_of(state, step.by) is None
        counts, clip = _counts(state, step.mode), CLIP * sqrt(state.scatter)
        weights, ridge, length = np.ones(facts.sizes[step.mode]), inf, inf
        if facts.whole_units:
            weights, ridge = level_weights(counts), _own_ridge(state)
            clip, length = UNIT_CLIP * sqrt(state.scatter), UNIT_LENGTH * sqrt(state.scatter)
        elif own:
            length = LENGTH * sqrt(state.scatter * _each(facts, step.by))
        features = self._features_of(state, step.by)
        width = self._width(state, features)
        return CrossQuery(
            facts,
            self.part,
            self.joined(state)[0],
            step.by,
            step.mode,
            clip,
            ridge,
            length,
            REACH * sqrt(width),
            weights,
            features,
            state.numbers if own else None,
        )

    def _features_of(self, state: State, mode: int) -> Array | None:
        """Those of a mode that are known here; None where owners keep them."""
        if mode == state.facts.local and self.sources:
            return None
        parts = [each.columns for each in self.features if each.mode == mode]
        most = max(1, self._most_features(state.facts) // len(parts))
        return np.hstack([part[:, :most] for part in parts])

    def _most_features(self, facts: Facts) -> int:
        """How many features are worth asking about: the more there are, the more noise each has."""
        noise, known = 0.0, Known(facts, self.noise, False)
        for step in self.steps(facts):
            if step.asks == "cross":
                length = UNIT_LENGTH if facts.whole_units else CLIP
                deviation = (
                    self.noise / sqrt(step.share) * length / (GAIN * known.likely_count(step.mode))
                )
                noise = max(noise, deviation)
        return int(np.clip(round(WORTH / max(noise, 1e-9)), LEAST_FEATURES, MOST_FEATURES))

    def _width(self, state: State, features: Array | None) -> int:
        if features is not None:
            return max(1, int(features.shape[1]))
        turns = () if state.numbers is None else state.numbers.turns
        return max(1, sum(int(turn.shape[0]) for turn in turns))

    def _block(self, state: State, step: Step, noisy: Noisy) -> Block:
        facts, query = state.facts, self._cross_query(state, step)
        gain = UNIT_GAIN if facts.whole_units else GAIN if query.own is None else OWN_GAIN
        counts = _counts(state, step.mode) * gain * _left_of_features(noisy.values.shape[1])
        sums = noisy.values / query.weights[:, None]
        noise = (noisy.deviation / query.weights) ** 2
        told = self._told(state, step.mode)
        scatter = state.scatter * entry_weight(state.inner.known, _counts(state, step.mode))
        assumed = POWER * state.scatter / max(1, sums.shape[1])
        learnt = learnt_columns(sums, noise, np.maximum(counts, 1e-6), scatter, assumed, told)
        return Block(step.by, step.mode, query.columns, learnt.means, learnt.doubts)

    def _told(self, state: State, mode: int) -> list[Array]:
        """What is known of the levels of a mode before they are asked about: what others say of them,
        and the columns of the relation's own fit. Owners who differ along these may well be those
        whose numbers differ elsewhere.
        """
        if state.made is None:
            raise RuntimeError("a fit that is not done has no columns")
        others = [each.columns for each in self.features if each.mode == mode]
        if isinstance(state.inner, PairsState):  # its columns are levels, one by one
            return others
        model, prior = state.made.model, state.made.own_prior
        columns = model.factors[mode] * spreads_of(model, prior, mode)
        return [*others, scaled(columns, np.maximum(_counts(state, mode), 1e-6))]

    # -- the model with its further columns ---------------------------------------------------------

    def joined(self, state: State) -> tuple[Multilinear, OwnPrior | None]:
        """The relation's own model and prior with all columns that were found so far."""
        if state.made is None:
            raise RuntimeError("a fit that is not done has no model")
        facts, local = state.facts, state.facts.local
        model, prior = state.made.model, state.made.own_prior
        blocks = list(state.blocks)
        if local is not None and facts.shape.kind == "cp":
            slopes = [each for each in self.features if each.mode != local and each.columns.size]
            blocks += [
                Block(local, each.mode, None, each.columns, np.zeros(each.columns.shape[0]))
                for each in slopes
            ]
        if not blocks or (local is not None and prior is None):
            return model, prior
        joined = extended(model, [self._as_factors(facts, block) for block in blocks])
        if prior is None:
            return joined, None
        precisions = [
            np.full(block.columns.shape[1], self._precision(state, number < len(state.blocks)))
            for number, block in enumerate(blocks)
        ]
        doubts = state.column_doubts(joined.order)
        prior = replace(prior, scatter=state.left * prior.scatter)
        return joined, extended_prior(prior, np.concatenate(precisions), doubts, joined.order)

    def _precision(self, state: State, expected: bool) -> float:
        if expected:
            return 1 / (OWN_VARIANCE * state.variances[0])
        return 1 / (SLOPE_VARIANCE * state.scatter * state.variances[1])

    def _as_factors(self, facts: Facts, block: Block) -> list[Array]:
        number, factors = block.columns.shape[1], []
        for mode, size in enumerate(facts.sizes):
            if mode == block.mode:
                factors.append(block.columns)
            elif mode == block.by and block.features is not None and mode != facts.local:
                factors.append(block.features)
            else:  # own rows are not known here
                factors.append(np.full((size, number), 0.0 if mode == facts.local else 1.0))
        return factors

    # -- own rows -----------------------------------------------------------------------------------

    def own_means(self, state: State) -> OwnMeans | None:
        """What other relations say of own rows, as far as columns were found for it."""
        if state.made is None or state.facts.local is None or not state.blocks:
            return None
        at, times = state.made.model.ranks[state.facts.local], len(state.blocks)
        features = self._features_of(state, state.facts.local)
        if features is not None:
            features = shortened(features, REACH * sqrt(self._width(state, features)))
        return OwnMeans(at, times, state.strength, features, state.numbers)

    def _own_query(self, state: State) -> OwnSideQuery:
        if state.made is None:
            raise RuntimeError("there are no own rows to be asked about")
        if self._asks_for_both(state.facts):
            made = replace(state.made, own_prior=state.inner.asked_prior())
            state = replace(state, made=made)
        model, prior = self.joined(state)
        if prior is None:
            raise RuntimeError("there are no own rows to be asked about")
        groups, number = self._groups(state, prior.precisions.shape[0])
        length, means = _usual_squares(state.facts, number), self.own_means(state)
        return OwnSideQuery(state.facts, self.part, model, prior, means, groups, length)

    def _groups(self, state: State, columns: int) -> Groups:
        """Of all columns: those of others first, then those of the relation's own fit."""
        expected = sum(block.columns.shape[1] for block in state.blocks)
        number, first = GROUPS, 0 if state.made is None else state.made.model.ranks[0]
        groups = np.full(columns, number)
        if self._asks_for_both(state.facts):
            own = asked_groups(state.inner)
            groups[:first], number = GROUPS + own.of_column, GROUPS + own.number
        groups[first : first + expected] = EXPECTED
        groups[first + expected :] = SLOPES
        return Groups(groups, number)

    def _with_scales(self, state: State, noisy: Noisy) -> State:
        owners = state.facts.sizes[state.facts.local or 0]
        scatter = read_scatter(noisy, owners)
        found = read_squares(of_groups(noisy, 0, GROUPS), owners, 1.0, scatter)
        strength = float(np.clip(found.pulls[EXPECTED], 0.0, MOST_STRENGTH))
        first, second = (float(each) for each in found.variances)
        state = replace(state, variances=(first, second), strength=strength, left=scatter)
        if self._asks_for_both(state.facts):
            inner = read_own(state.inner, of_groups(noisy, GROUPS), scatter)
            state = replace(state, inner=inner, made=self._own(state.facts).finish(inner))
        return state


def _left_of_features(number: int) -> float:
    """Variance that white normal features have once they are shortened to the root of their number."""
    from scipy.special import gammainc

    below = float(gammainc(number / 2 + 1, number / 2))
    return below + 1 - float(gammainc(number / 2, number / 2)) if number else 1.0


def _each(facts: Facts, mode: int) -> float:
    """Entries of an average level."""
    return max(1.0, facts.expected_entries / facts.sizes[mode])


def _usual_squares(facts: Facts, groups: int) -> float:
    """What an owner's squares are shortened to: by what an average owner's entries tell of a row."""
    entries = _each(facts, facts.local or 0)
    told = min(1.0, TELLING * entries / (entries + 1 / SLOPE_VARIANCE))
    return OWN_LENGTH * told * sqrt((2 + told**2) * groups)


def _usual_length(turn: Array) -> float:
    """Length of an average entry's numbers: columns vary by one, and residuals by half of their clip."""
    columns = (turn.shape[1] - 1) // 2
    sizes = np.append(np.full(1 + columns, 0.5), np.ones(columns))
    return float(np.linalg.norm(turn * sizes))


def _beginning(inner: Any) -> tuple[BiasRelease, float]:
    """What the relation's own fit has released of biases and counts, and what it leaves of values."""
    if isinstance(inner, BiasState):
        release = inner.release
        scatter = (
            release.own.scatter if inner.known.facts.local is not None else inner.known.facts.scatter
        )
        return release, scatter
    if isinstance(inner, PairsState):  # own effects are zero where residuals are asked about
        return _beginning(inner.biases)
    if isinstance(inner, MomentsState | AlternatingState):
        return inner.start, inner.scatter
    raise SettingError(
        "relations beside others are fitted by 'bias', 'pairs', 'moments' or 'alternating'"
    )


def _counts(state: State, mode: int) -> Array:
    """Entries of each level, as far as is known; equal for a mode that was not asked about."""
    if state.start is None:
        raise RuntimeError("counts are known once the relation's own fit is done")
    counts, size = state.start.counts[mode], state.facts.sizes[mode]
    if counts is not None:
        return counts
    known = [float(each.sum()) for each in state.start.counts if each is not None]
    return np.full(size, max(known, default=state.facts.expected_entries) / size)


def _own_ridge(state: State) -> float:
    return float(state.inner.known.ridge)
