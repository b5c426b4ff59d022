"""Private biases, and effects of pairs of levels: for tensors of three modes and more.

Where somebody has been at a place, other entries of the two, which differ in a third mode, tend to be
like it: of pairs of levels there are many, and most have no entry, so that no factors can be found. What
is known of a pair is its own entries. Proofs: ``proofs/pairs.md``. Private biases come first.

- *Rows stay with their owners*: an owner's effect at each level of the other modes is solved from its
  own entries, without noise. All that is asked is how far entries of an owner at one level are alike,
  and from that follows how much effects shrink.
- *Everything is released*, and entries are the units: first, how alike entries of one pair are, for each
  two modes. Where that says that pairs are worth it, the sums of what is left at all pairs of the best
  two modes, and how far they are to be believed. Where it does not, the same draw asks about levels once
  more: but for a small share, biases have the whole budget.

Effects are columns of a CP model: the rows of a mode are those of the identity.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import sqrt
from typing import ClassVar, NamedTuple

import numpy as np

from sfumato.errors import SettingError
from sfumato.models.doubts import Doubts
from sfumato.models.multilinear import Multilinear
from sfumato.models.own_prior import OwnPrior
from sfumato.privacy.accounting import gaussian_multiplier
from sfumato.privacy.budgets import ZCDP, Budget
from sfumato.privacy.facts import Facts
from sfumato.privacy.ledger import Charge
from sfumato.privacy.mechanisms import Noisy
from sfumato.records import record
from sfumato.solvers.private.bias_shares import mode_shares
from sfumato.solvers.private.bias_state import BiasState, with_biases, with_guess
from sfumato.solvers.private.biases import PrivateBiases, prefers_laplace
from sfumato.solvers.private.known import COUNTS_SHARE, PURE_COUNTS_SHARE, Known
from sfumato.solvers.private.pairs.queries import (
    MOST_MORE,
    OWN_NUMBERS,
    AlikeQuery,
    LevelSumsQuery,
    OwnAlikeQuery,
    PairSumsQuery,
    Released,
    WeightQuery,
)
from sfumato.solvers.private.pairs.settings import (
    ALIKE_CLIP,
    BIAS_SHARE,
    SUMS_CLIP,
    WEIGHT_SHARE,
    Step,
    alike_share,
    columns,
    own_modes,
    own_share,
    pairs_of_modes,
    per_pair,
    serves,
    sums_share,
    tells,
)
from sfumato.solvers.private.shrinkage import Guess
from sfumato.solvers.protocol import Finished, Info, PrivateQuery, Run, Silent, Wish
from sfumato.types import Array

_SWEEPS = {True: 1, False: 3}  # of the biases that come first, by whether noise is pure
_ASSUMED = 0.02  # variance of owners' effects over that of what is left, where it is not asked for
_LEAST_EFFECT = 1e-3  # of the values' variance
_DOUBT = 2.0  # squared errors that a variance has to stand out from
_LEAST_SCATTER = 0.05  # of what is left: what effects leave at least
_STANDS_OUT = 3.0  # deviations that pairs have to be alike by
_WORTH = 0.02  # of the values' variance, that pairs have to explain
_LEAST_COUNT = 0.1  # of a level, over what was first released of it
_MOST_WEIGHT = 1.5


@dataclass(frozen=True, eq=False)
class State:
    """Where a fit is: what private biases know, then what is known of pairs."""

    facts: Facts
    steps: tuple[Step, ...]
    biases: BiasState
    done: int = 0
    own: dict[int, float] | None = None  # variances of owners' effects, by mode
    pair: tuple[int, int] | None = None  # whose sums are asked for
    sums: Array | None = None
    noise: float = 0.0  # deviation of that in these sums
    weight: float = 0.0  # that they have

    @property
    def step(self) -> Step:
        return self.steps[self.done]

    @property
    def known(self) -> Known:
        return self.biases.known

    @property
    def released(self) -> Released:
        return Released(self.biases.model.mean, self.biases.model.mode_biases)

    @property
    def entries(self) -> float:
        """How many there are, as far as is known."""
        if self.facts.entries:
            return float(self.facts.entries)
        release = self.biases.release
        return max(1.0, *(float(counts.sum()) for counts in release.counts if counts is not None))


@record
@dataclass(frozen=True)
class PrivatePairs(Silent):
    """Biases, and effects of pairs of levels.

    Parameters
    ----------
    noise : noise multiplier of all draws together, found from the budget.
    pure : Laplace noise; else Gaussian.
    """

    noise: float = 1.0
    pure: bool = False

    name: ClassVar[str] = "private pairs"
    always_fits: ClassVar[tuple[str, ...]] = ("mean", "biases")
    proof: ClassVar[str] = "proofs/pairs.md"
    proven: ClassVar[bool] = True
    knows_doubts: ClassVar[bool] = True
    exact: ClassVar[bool] = True

    # -- what will be done: never sees data -----------------------------------------------------

    def check(self, facts: Facts) -> None:
        known = Known(facts, self.noise, self.pure)
        known.check()
        if not serves(facts):
            raise SettingError(
                "pairs are those of a CP model with mean and biases, of three modes or more that have "
                "few levels, at one site; what is protected is 'entry', or the mode whose rows are "
                "local: use the method 'bias'"
            )
        if facts.shape.ranks[0] < columns(facts):
            raise SettingError(f"pairs of these modes need a rank of {columns(facts)}: leave it out")
        self.biases(facts).check(facts)

    def _scaled(self, share: float) -> float:
        return self.noise / (share if self.pure else sqrt(share))

    def biases(self, facts: Facts) -> PrivateBiases:
        """The first part of the fit."""
        if facts.local is not None:
            own = own_share(Known(facts, self.noise, self.pure))
            return PrivateBiases(self._scaled(1 - own), self.pure)
        return PrivateBiases(self._scaled(BIAS_SHARE), self.pure, _SWEEPS[self.pure])

    def plan(self, facts: Facts) -> tuple[Step, ...]:
        """The draws in order, their shares adding up to one."""
        known = Known(facts, self.noise, self.pure)
        if facts.local is not None:
            share = own_share(known)
            rest = [Step("own alike", share)] if share else []
        else:
            rest = [
                Step("alike", alike_share(known)),
                Step("sums", sums_share(known)),
                Step("weight", WEIGHT_SHARE),
            ]
        first = 1 - sum(step.share for step in rest)
        biases = [Step("biases", first * step.share) for step in self.biases(facts).steps(facts)]
        return (*biases, *rest)

    def charges(self, facts: Facts) -> tuple[Charge, ...]:
        known, biases = Known(facts, self.noise, self.pure), self.biases(facts).charges(facts)
        labels = {
            "own alike": "how alike owners' entries at one level are",
            "alike": "how alike entries of pairs are",
            "sums": "residuals by pair or level",
            "weight": "how far pairs tell entries",
        }
        rest = [
            Charge(labels[step.asks], known.mechanism(step.share))
            for step in self.plan(facts)[len(biases) :]
        ]
        return (*biases, *rest)

    def rounds(self, facts: Facts) -> int:
        return len(self.plan(facts))

    def adds_up(self, facts: Facts) -> bool:
        return facts.local is not None  # entries of a pair may lie with several holders

    def in_words(self, facts: Facts) -> tuple[str, ...]:
        names = [mode.name for mode in facts.modes]
        if facts.local is not None:
            levels = " and ".join(names[m] for m in own_modes(facts))
            return (f"own effects at levels of {levels}, which cost next to nothing",)
        pairs = ", ".join(f"{names[a]} and {names[b]}" for a, b in pairs_of_modes(facts))
        return (f"effects of pairs where they are alike, of one of {pairs}",)

    # -- the loop -------------------------------------------------------------------------------

    def init(self, run: Run, facts: Facts) -> State:
        self.check(facts)
        return State(facts, self.plan(facts), self.biases(facts).init(run, facts))

    def ask(self, state: State) -> PrivateQuery:
        asks, known, released = state.step.asks, state.known, state.released
        if asks == "biases":
            return self.biases(state.facts).ask(state.biases)
        if asks == "own alike":
            return OwnAlikeQuery(known, released)
        if asks == "alike":
            return AlikeQuery(known, released, ALIKE_CLIP * known.facts.spread)
        clip = _sums_clip(known)
        if asks == "sums":
            if state.pair is None:
                return LevelSumsQuery(known, released, *_level_weights(known), clip)
            return PairSumsQuery(known, released, state.pair, clip)
        return _weight_query(state)

    def update(self, state: State, noisy: Noisy) -> tuple[State, Info]:
        asks = state.step.asks
        if asks == "biases":
            biases, _ = self.biases(state.facts).update(state.biases, noisy)
            state = replace(state, biases=biases)
        elif asks == "own alike":
            state = replace(state, own=_own_variances(state, noisy))
        elif asks == "alike":
            state = replace(state, pair=_best_pair(self, state, noisy))
        elif asks == "weight":
            state = replace(state, weight=_weight(state, noisy))
        elif state.pair is None:
            state = replace(state, biases=_refined(state, noisy))
        else:
            state = replace(state, sums=noisy.values, noise=noisy.deviation)
        return replace(state, done=state.done + 1), Info(state.done + 1, noise=noisy.deviation)

    def finish(self, state: State) -> Finished[Multilinear]:
        model = state.biases.model.copy()
        if state.facts.local is None:
            if state.pair is not None:
                _write_pairs(state, model)
            told = None if state.pair is not None else state.biases.told
            return Finished(model, doubts=_doubts(state), told=told)
        at, variances = 0, np.ones(model.ranks[state.facts.local])
        for mode, variance in _effects(state).items():
            here = slice(at, at + state.facts.sizes[mode])
            for m, factor in enumerate(model.factors):
                if m != state.facts.local:
                    factor[:, here] = np.eye(factor.shape[0]) if m == mode else 1.0
            variances[here] = variance
            at = here.stop
        prior, biases = _own_prior(state, variances), state.biases
        doubts, told = biases.release.doubts(prior.scatter), replace(biases.told, free=tuple(range(at)))
        return Finished(model, own_prior=prior, doubts=doubts, told=told)


# -- owners' effects --------------------------------------------------------------------------------


def _own_variances(state: State, noisy: Noisy) -> dict[int, float]:
    """Of owners' effects: what entries at different levels differ by more than those at one."""
    own, found = state.biases.own, {}
    unit, modes = state.known.facts.spread**2, own_modes(state.facts)
    for mode, numbers in zip(modes, noisy.values.reshape(len(modes), OWN_NUMBERS), strict=True):
        more, apart = float(numbers[0]), max(2 * float(numbers[1]), 1e-9)
        guess, error = MOST_MORE * unit * more / apart, MOST_MORE * unit * noisy.deviation / apart
        certain = guess**2 / (guess**2 + _DOUBT * error**2) if guess > 0 else 0.0
        assumed = _ASSUMED * own.scatter
        found[mode] = float(np.clip(certain * guess, min(assumed, _LEAST_EFFECT * unit), unit))
    return found


def _effects(state: State) -> dict[int, float]:
    """Variances of owners' effects, as asked for, or assumed."""
    return state.own or dict.fromkeys(own_modes(state.facts), _ASSUMED * state.biases.own.scatter)


def _own_prior(state: State, variances: Array) -> OwnPrior:
    own, found = state.biases.own, _effects(state)
    guesses = [level.biases for level in state.biases.levels]
    return OwnPrior(
        mode=state.facts.local or 0,
        precisions=1 / variances,
        bias_precision=1 / own.variance,
        scatter=max(own.scatter - sum(found.values()), _LEAST_SCATTER * own.scatter),
        doubts=tuple(None if guess is None else guess.variances for guess in guesses),
        certainty=state.biases.certainty,
    )


# -- pairs that are released ------------------------------------------------------------------------


def _sums_clip(known: Known) -> float:
    return min(SUMS_CLIP * known.facts.spread, 2 * known.facts.half)


class _Weights(NamedTuple):
    """Of the levels' sums and counts in one question, by mode."""

    sums: tuple[float, ...]
    counts: tuple[float, ...]


def _level_weights(known: Known) -> _Weights:
    """As their shares would be in several questions."""
    shares, _ = mode_shares(known)
    counted = PURE_COUNTS_SHARE if known.pure else COUNTS_SHARE
    power, order = 1.0 if known.pure else 0.5, range(known.facts.shape.order)
    return _Weights(
        *(tuple((part * shares.get(m, 0.0)) ** power for m in order) for part in (1 - counted, counted))
    )


def _best_pair(solver: PrivatePairs, state: State, noisy: Noisy) -> tuple[int, int] | None:
    """The two modes whose pairs are expected to explain most; None where that is not worth it."""
    known, unit = state.known, state.known.facts.spread**2
    whole = Known(state.facts, solver.noise, solver.pure)
    noise = whole.mechanism(sums_share(whole)).deviation(_sums_clip(known)) ** 2
    best, most = None, _WORTH * unit
    for pair, alike in zip(pairs_of_modes(state.facts), noisy.values, strict=True):
        each = per_pair(state.facts, pair, state.entries)
        told = (1 + 1 / each) * float(alike) / state.entries
        gain = told**2 / (max(told, 1e-9) + unit / each + noise / each**2)
        if alike > _STANDS_OUT * noisy.deviation and gain > most:
            best, most = pair, gain
    return best


def _refined(state: State, noisy: Noisy) -> BiasState:
    """Biases with sums and counts of another round, each round counting by its noise."""
    known, clip = state.known, _sums_clip(state.known)
    levels, weights = list(state.biases.levels), _level_weights(known)
    asked = [m for m, weight in enumerate(weights.sums) if weight]
    cuts = np.cumsum([known.facts.sizes[m] for m in (*asked, *asked)])[:-1]
    parts = np.split(noisy.values, cuts)
    for mode, left, number in zip(asked, parts, parts[len(asked) :], strict=False):
        level, biases = levels[mode], state.biases.model.mode_biases[mode]
        per_count = clip * weights.counts[mode]
        counts = _nearer(level.counts, number / per_count, (noisy.deviation / per_count) ** 2)
        sums = left / weights.sums[mode] + counts.means * biases
        noise = np.full(sums.shape, (noisy.deviation / weights.sums[mode]) ** 2)
        if level.sums is not None and level.noise is not None:
            keep = noise / (level.noise + noise)
            sums, noise = keep * level.sums + (1 - keep) * sums, keep * level.noise
        levels[mode] = with_guess(known, mode, replace(level, counts=counts, sums=sums, noise=noise))
    return replace(state.biases, model=with_biases(state.biases.model, levels), levels=tuple(levels))


def _nearer(before: Guess | None, counts: Array, variance: float) -> Guess:
    """Counts that were asked for twice."""
    if before is None:
        return Guess(np.maximum(counts, 1.0), np.full(counts.shape, variance))
    kept = variance / (before.variances + variance)
    means = kept * before.means + (1 - kept) * counts
    return Guess(np.maximum(means, _LEAST_COUNT * before.means), kept * before.variances)


def _weight_query(state: State) -> WeightQuery:
    """Where no pairs were asked for it is about none: the draw was charged for."""
    known, clip = state.known, _sums_clip(state.known)
    pair = state.pair or pairs_of_modes(state.facts)[0]
    small, large = pair
    size = state.facts.sizes[small] * state.facts.sizes[large]
    sums = np.zeros(size) if state.sums is None else state.sums
    scales = np.full(size, per_pair(state.facts, pair, state.entries))
    limits = np.sqrt(clip**2 + (state.noise / scales) ** 2)
    return WeightQuery(known, state.released, pair, clip, sums, scales, limits, float(limits.max()))


def _weight(state: State, noisy: Noisy) -> float:
    """How far sums of pairs tell an entry: by least squares, less where noise may have done it."""
    query = _weight_query(state)
    along, squares = float(noisy.values[0]), float(noisy.values[1])
    certain = along**2 / (along**2 + noisy.deviation**2)
    squares = max(squares, 2 * noisy.deviation)
    weight = query.clip * certain * along / (query.most * squares)
    return float(np.clip(weight, 0.0, _MOST_WEIGHT))


def _write_pairs(state: State, model: Multilinear) -> None:
    query, (small, large) = _weight_query(state), state.pair or (0, 1)
    size = state.facts.sizes[small]
    effects = state.weight * np.clip(query.sums / query.scales, -query.limits, query.limits)
    for m, factor in enumerate(model.factors):
        factor[:, :size] = 1.0
        if m == small:
            factor[:, :size] = np.eye(size)
        elif m == large:
            factor[:, :size] = effects.reshape(size, -1).T


def _doubts(state: State) -> Doubts:
    """Those of biases, and the noise in sums of pairs."""
    known = state.biases.release.doubts(state.known.facts.scatter)
    if state.pair is None:
        return known
    small, each = state.pair[0], per_pair(state.facts, state.pair, state.entries)
    noise, before = list(known.noise), known.noise[small]
    added = np.full(state.facts.sizes[small], (state.weight * state.noise / each) ** 2)
    noise[small] = added if before is None else before + added
    return replace(known, noise=tuple(noise))


def make(facts: Facts, wish: Wish) -> PrivatePairs:
    """The solver of the method "pairs"."""
    budget = wish.budget
    return PrivatePairs(pure=isinstance(budget, Budget) and prefers_laplace(facts, budget))


def serves_pairs(facts: Facts, budget: Budget | ZCDP, most: int | None) -> bool:
    """Whether pairs are to be had within a rank, and a budget that does not hide them."""
    if not serves(facts) or (most is not None and most < columns(facts)):
        return False
    if isinstance(budget, ZCDP):
        return tells(Known(facts, float((2 * budget.rho) ** -0.5), pure=False))
    pure = prefers_laplace(facts, budget)
    return tells(Known(facts, 1 / budget.epsilon if pure else gaussian_multiplier(budget), pure))
