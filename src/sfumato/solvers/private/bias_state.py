"""What private biases know after each draw, and what is made of the answers: post-processing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf, isinf, sqrt
from typing import Literal, NamedTuple

import numpy as np

from sfumato.models.doubts import Doubts
from sfumato.models.multilinear import Multilinear
from sfumato.models.own_prior import Certainty
from sfumato.models.told import LevelsTold, OwnScales, Told
from sfumato.privacy.mechanisms import Noisy
from sfumato.solvers.private.constant import Constant
from sfumato.solvers.private.known import Known
from sfumato.solvers.private.level_sums import SumsQuery
from sfumato.solvers.private.owners import assumed_scales
from sfumato.solvers.private.shrinkage import Guess, positive_counts, posterior_biases, without_noise
from sfumato.types import Array

_FAR = 0.3  # of the clip, left at a level on average: then rounds before are forgotten
_COUNT_DOUBT = 0.5  # how much of an error in a level's count stays in its averaged sums
_NO_CONSTANT = Constant(0.0, 1.0, inf)


class Step(NamedTuple):
    """One draw: a question and its share of the budget."""

    asks: Literal["constant", "spread", "counts", "sums", "owners"]
    mode: int
    share: float


class Evidence(NamedTuple):
    """What sums say of each level's bias by itself, in this period and those before: see ``Told``."""

    told: Array
    precisions: Array
    counts: Array


@dataclass(frozen=True)
class Learnt:
    """What is known of a mode's levels: how often they occur, averaged sums, and biases.

    ``sums`` and ``noise`` (a variance) are those of the residuals that biases of zero would leave.
    """

    counts: Guess | None = None
    count_deviation: float = 0.0
    sums: Array | None = None
    noise: Array | None = None
    rounds: Array | float = 0.0  # that are averaged, by level
    evidence: Evidence | None = None
    biases: Guess | None = None


@dataclass(frozen=True)
class BiasRelease:
    """What private biases released, for methods that start from them. All of it is private already.

    ``biases`` and ``deviations`` (posterior standard deviations of the biases) have one array for
    each mode; zeros and infinity for a local mode and for modes that were not asked about.
    ``counts`` are positive guesses of how many entries each level has, and ``count_deviations`` the
    standard deviation of the noise that was added to them, zero where counts are public; None for
    modes that were not asked about. Where units are the levels of a mode, counts are weighted: an
    entry counts as much as its unit's contribution lets it, see ``contributions.py``. ``spread`` is how
    far values lie from their mean, as asked for, or as public or assumed where that was not; and so is
    ``own``, how far owners differ and what is left of their entries; ``certainty`` says how far noise
    may have moved the mean and what is left.
    """

    mean: float
    biases: tuple[Array, ...]
    deviations: tuple[Array, ...]
    counts: tuple[Array | None, ...]
    count_deviations: tuple[float, ...]
    spread: float
    own: OwnScales
    certainty: Certainty
    data: tuple[Array | None, ...]  # variances of the biases that entries alone would leave

    def doubts(self, scatter: float) -> Doubts:
        """What is not known of levels, noise and few entries apart."""
        return Doubts.of_biases(scatter, self.deviations, self.data, self.counts)


@dataclass(frozen=True)
class BiasState:
    known: Known
    steps: tuple[Step, ...]
    model: Multilinear
    levels: tuple[Learnt, ...]
    done: int = 0
    constant: Constant = _NO_CONSTANT
    spread_error: float = 0.0
    asked_own: OwnScales | None = None

    @property
    def step(self) -> Step:
        return self.steps[self.done]

    @property
    def own(self) -> OwnScales:
        error = min(self.spread_error, self.known.facts.spread)
        return self.asked_own or assumed_scales(self.known, error)

    @property
    def certainty(self) -> Certainty:
        return Certainty(self.constant.error, self.own.error)

    @property
    def release(self) -> BiasRelease:
        """All that is known after the last step."""
        guesses = [level.biases for level in self.levels]
        return BiasRelease(
            self.model.mean,
            tuple(biases.copy() for biases in self.model.mode_biases),
            tuple(
                np.full(size, inf) if guess is None else np.sqrt(guess.variances)
                for guess, size in zip(guesses, self.known.facts.sizes, strict=True)
            ),
            tuple(None if level.counts is None else level.counts.means for level in self.levels),
            tuple(level.count_deviation for level in self.levels),
            self.known.facts.spread,
            self.own,
            self.certainty,
            tuple(self._data(level) for level in self.levels),
        )

    @property
    def told(self) -> Told:
        """What the next period goes on from: what was told before, and by this fit."""
        before = self.known.facts.before
        return Told(
            periods=1 if before is None else before.periods + 1,
            mean_error=self.constant.error,
            spread=None if isinf(self.spread_error) else self.known.facts.public_spread,
            own=None if self.known.facts.local is None else self._own_told,
            levels=tuple(map(self.told_of, range(len(self.levels)))),
        )

    @property
    def _own_told(self) -> OwnScales | None:
        before = self.known.facts.before
        return self.asked_own or (None if before is None else before.own)

    def told_of(self, mode: int) -> LevelsTold | None:
        """The same of one mode."""
        level, before = self.levels[mode], self.known.told(mode)
        if level.evidence is None or level.biases is None:
            return before
        biases = level.biases.means + (0.0 if before is None else before.biases)
        return LevelsTold(biases, *level.evidence)

    def _data(self, level: Learnt) -> Array | None:
        """Variances of a mode's biases that entries alone would leave."""
        if level.biases is None or level.counts is None or level.noise is None:
            return None
        counts, known = level.counts.means, self.known
        scatter = known.facts.scatter * entry_weight(known, counts) * counts
        return without_noise(level.biases.variances, counts, level.noise, scatter)


def with_biases(model: Multilinear, levels: Sequence[Learnt]) -> Multilinear:
    """A copy with the biases that were guessed: what was asked with the old one stays as it was."""
    model = model.copy()
    for biases, level in zip(model.mode_biases, levels, strict=True):
        if level.biases is not None:
            biases[:] = level.biases.means
    return model


# -- what is made of the answers ------------------------------------------------------------------


def public_counts(counts: Array) -> Learnt:
    """A level's counts where they are public; never zero, since they are divided by."""
    return Learnt(Guess(np.maximum(counts, 1e-9), np.zeros(counts.shape[0])))


def counted(known: Known, mode: int, noisy: Noisy, level: Learnt) -> Learnt:
    least, most = _average_count(known, mode)
    average = float(np.clip(noisy.values.mean(), least, most))
    guess = positive_counts(noisy.values, noisy.deviation, average, most * noisy.values.shape[0])
    return replace(level, counts=guess, count_deviation=noisy.deviation)


def _average_count(known: Known, mode: int) -> tuple[float, float]:
    """Between which numbers the average count of a mode's levels lies, as far as that is public.

    A unit's counts k over the levels of a mode add up to sum(k) / |k|, which lies between one and the
    root of its entries (and is one in the norm that is clipped for pure privacy).
    """
    size, entries = known.facts.sizes[mode], known.facts.entries
    if known.facts.unit_mode is None:
        if not entries:
            return 1.0, inf
        several = known.owners is not None and known.facts.shape.order > 2  # entries count once
        return entries / size / (10 if several else 1), entries / size
    units = known.facts.sizes[known.facts.unit_mode]
    if known.pure:
        return 0.5 * units / size, units / size
    return 0.5 * units / size, sqrt(units * entries) / size if entries else inf


def averaged(state: BiasState, noisy: Noisy, query: SumsQuery) -> Learnt:
    """The level's averages with this round's sums, and the biases that they make likely."""
    known, mode = state.known, state.step.mode
    level, size = state.levels[mode], known.facts.sizes[mode]
    counts = level.counts or Guess(np.ones(size), np.zeros(size))
    weights = np.ones(size) if query.weights is None else query.weights
    biases = state.model.mode_biases[mode].astype(np.float64)
    weights = weights * query.unclipped()
    left, noise = noisy.values / weights, (noisy.deviation / weights) ** 2
    sums, rounds = left + counts.means * biases, np.ones(size)
    if level.sums is not None and level.noise is not None:
        # A level that is still far from its bias was clipped in this round, and before even more.
        far = np.abs(left) - 5 * np.sqrt(noise) > _FAR * query.clip * counts.means
        rounds = np.where(far, 1.0, level.rounds + 1)
        keep, step = (rounds - 1) / rounds, 1 / rounds
        sums = keep * level.sums + step * sums
        noise = keep**2 * level.noise + step**2 * noise
    level = replace(level, counts=counts, sums=sums, noise=noise, rounds=rounds)
    return with_guess(known, mode, level)


def with_guess(known: Known, mode: int, level: Learnt) -> Learnt:
    """A level's biases that averaged sums make likely, with what earlier periods have told of it.

    Biases are those beside the last release, where there is one.
    """
    counts, noise = level.counts, level.noise
    assert counts is not None
    assert noise is not None
    assert level.sums is not None
    doubt = known.assumed(mode) if level.biases is None else level.biases.variances
    variances = noise + known.facts.scatter * entry_weight(known, counts.means) * counts.means
    variances += _COUNT_DOUBT * counts.variances * doubt
    laplace, before, assumed = noise if known.pure else None, known.told(mode), known.assumed(mode)
    found = Evidence(level.sums / counts.means, counts.means**2 / variances, counts.means)
    if before is None:
        guess = posterior_biases(level.sums, variances, counts.means, assumed, laplace)
        return replace(level, biases=guess, evidence=found)
    found, share = _joined(found, before)
    whole = found.counts
    if laplace is not None:
        laplace = laplace * (share * whole / counts.means) ** 2
    guess = posterior_biases(found.told * whole, whole**2 / found.precisions, whole, assumed, laplace)
    return replace(level, biases=guess._replace(means=guess.means - before.biases), evidence=found)


def _joined(found: Evidence, before: LevelsTold) -> tuple[Evidence, Array]:
    """What two periods tell together, each by its precision; and the share of the new one in it."""
    precisions = found.precisions + before.precisions
    share = found.precisions / precisions
    told = share * (found.told + before.biases) + (1 - share) * before.told
    return Evidence(told, precisions, found.counts + before.counts), share


def entry_weight(known: Known, counts: Array) -> float:
    """What an entry counts on average: weighted counts over entries, or from the number of units."""
    if known.facts.unit_mode is None:
        return 1.0
    total, entries = float(counts.sum()), known.facts.entries
    return min(1.0, total / entries if entries else known.facts.sizes[known.facts.unit_mode] / total)
