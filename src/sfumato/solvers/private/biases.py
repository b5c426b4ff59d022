"""A sum of biases under privacy.

With the constant it is the bar that every private fit has to clear, and the start of those that go
further. Proofs: ``proofs/biases.md``. For any order and all units, which differ in who adds to a sum:

- ``Value``, ``Entry``: each entry by itself. A *local* mode (its rows stay with their owners) is not
  asked about; its biases are solved at the end and never enter what is released.
- ``UnitValues``, ``Unit``: all entries of a level of a mode, a user say, as one vector with one bound.
  Whatever a user does with its own entries is then covered: it takes its own mean off before it
  answers, in every round.

Questions: the constant; how far values lie from it (``spread.py``); how often each level occurs, where
that is not public; then, round after round and mode after mode, the sums of what the biases leave at
each level. A round's sums are taken back to what they would be without biases and averaged over the
rounds, so that more rounds do not mean more noise; biases are guesses from these averages
(``shrinkage.py``). Where rows stay with their owners, at last how far these differ (``owners.py``).

All shares of the budget, rounds and bounds follow from public numbers and from what was released
before. ``noise`` is the noise multiplier of all questions together: a question with share f of the
budget has noise / sqrt(f), or noise / f where ``pure``, so that together they cost what one question
with multiplier ``noise`` costs, however the shares are chosen.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from math import inf, log, sqrt
from typing import ClassVar

import numpy as np

from sfumato.checks import MOST_ROUNDS, check_count, given
from sfumato.errors import SettingError
from sfumato.models.multilinear import Multilinear
from sfumato.models.own_prior import OwnPrior
from sfumato.privacy.accounting import gaussian_multiplier
from sfumato.privacy.budgets import Budget
from sfumato.privacy.facts import Facts
from sfumato.privacy.ledger import Charge
from sfumato.privacy.mechanisms import Noisy
from sfumato.records import record
from sfumato.solvers.private.bias_shares import mode_shares, usual_sweeps
from sfumato.solvers.private.bias_state import (
    BiasState,
    Learnt,
    Step,
    averaged,
    counted,
    public_counts,
    with_biases,
)
from sfumato.solvers.private.constant import COUNTED, ConstantQuery, constant_from, constant_share
from sfumato.solvers.private.contributions import MOST_OWNED
from sfumato.solvers.private.known import COUNTS_SHARE, PURE_COUNTS_SHARE, Known
from sfumato.solvers.private.level_sums import CountsQuery, SumsQuery
from sfumato.solvers.private.owners import OwnersQuery, owners_share, scales_from
from sfumato.solvers.private.spread import SpreadQuery, likely_spread, spread_from, spread_share
from sfumato.solvers.protocol import Finished, Info, Run, Silent, Wish
from sfumato.surface import setting
from sfumato.types import Array

_CLIPPED = 1.8  # by how much noise is worse than its variance says: clipping cuts signal too
_WORTH_CENTRING = 0.7  # of the noise's variance


@record
@dataclass(frozen=True)
class PrivateBiases(Silent):
    """A constant and a bias for each level of the released modes.

    Parameters
    ----------
    noise : float
        Noise multiplier of all draws together, found from the budget.
    pure : bool
        Laplace noise, for a budget without delta; else Gaussian.
    sweeps : int or None
        Times that each mode is asked about; None for a number that suits the unit.

    Examples
    --------
    >>> import sfumato as sf
    >>> modes = [sf.Mode("user", 1000), sf.Mode("item", 200)]
    >>> public = sf.Public(labels=True, entries=50_000)
    >>> method = sf.PrivateBiases(sweeps=1)
    >>> privacy = sf.Privacy(
    ...     3, 1e-6, unit="entry", local=None, public=public, method=method
    ... )
    >>> plan = sf.CP(rank=2, privacy=privacy).plan(modes, bounds=(1, 5))
    >>> print(plan.explain())
    user 1,000 x item 200: CP of rank 2 with a mean and biases, float64; private
        biases, within epsilon 3, delta 1e-06 for one entry, its presence
        included.
      1 x constant: Gaussian, noise multiplier 15.4; 0.01 of the budget
      1 x spread: Gaussian, noise multiplier 34.7; 0.002 of the budget
      1 x entries by user: Gaussian, noise multiplier 5.38; 0.082 of the budget
      1 x entries by item: Gaussian, noise multiplier 12; 0.016 of the budget
      1 x residuals by user: Gaussian, noise multiplier 1.79; 0.74 of the budget
      1 x residuals by item: Gaussian, noise multiplier 4.01; 0.15 of the budget
    """

    noise: float = 1.0
    pure: bool = False
    sweeps: int | None = None

    name: ClassVar[str] = "private biases"
    always_fits: ClassVar[tuple[str, ...]] = ("mean", "biases")
    proof: ClassVar[str] = "proofs/biases.md"
    proven: ClassVar[bool] = True
    knows_doubts: ClassVar[bool] = True
    exact: ClassVar[bool] = True

    def _known(self, facts: Facts) -> Known:
        return Known(facts, self.noise, self.pure)

    def check(self, facts: Facts) -> None:
        known = self._known(facts)
        known.check()
        check_count(1, MOST_ROUNDS, **given(sweeps=self.sweeps))
        if known.owners is not None and max(facts.sizes) > MOST_OWNED:
            raise SettingError(
                f"a mode of more than {MOST_OWNED:,} levels is more than the proof covers where rows "
                f"stay with their owners: leave {setting('local')} out"
            )

    def steps(self, facts: Facts) -> tuple[Step, ...]:
        """The draws in order, their shares adding up to one."""
        known = self._known(facts)
        constant = constant_share(known)
        spread = (1 - constant) * spread_share(known)
        owners = (1 - constant) * owners_share(known)
        counts = PURE_COUNTS_SHARE if known.pure else COUNTS_SHARE
        counts *= facts.unit.hides_presence
        counts *= 1 - constant - spread - owners
        sums = 1 - constant - spread - owners - counts
        shares, own = mode_shares(known)
        sweeps = self.sweeps or usual_sweeps(known)
        steps = [Step("constant", -1, constant)]
        if spread:
            steps.append(Step("spread", -1, spread))
        if counts:
            # The units' own mode has no counts of its own: a unit that is there counts once.
            whole = sum(shares.values())
            steps += [Step("counts", m, counts * share / whole) for m, share in shares.items()]
        for _ in range(sweeps):
            steps += [Step("sums", m, sums * share / sweeps) for m, share in shares.items()]
        if own is not None:
            steps.append(Step("sums", own[0], sums * own[1]))
        if owners:
            steps.append(Step("owners", -1, owners))
        return tuple(steps)

    def charges(self, facts: Facts) -> tuple[Charge, ...]:
        known = self._known(facts)
        return tuple(
            Charge(_label(facts, step), known.mechanism(step.share)) for step in self.steps(facts)
        )

    def rounds(self, facts: Facts) -> int:
        return len(self.steps(facts))

    def _error(self, facts: Facts, modes: Collection[int]) -> float:
        """Noise in the biases of average levels, up to a factor: that of the rounds' averages."""
        known, steps = self._known(facts), self.steps(facts)
        noise = 0.0
        for mode in modes:
            shares = [step.share for step in steps if step.asks == "sums" and step.mode == mode]
            average = known.mechanism(shares[0]).deviation(1.0) ** 2 / len(shares)
            noise += facts.sizes[mode] ** 2 * average
        return noise

    def _expected_error(self, facts: Facts) -> float:
        """Expected square error over the values' variance, all levels of a mode taken for alike."""
        known, error = self._known(facts), 1.0
        for mode in known.shared:
            number, scatter = known.likely_count(mode), facts.scatter
            signal = number**2 * known.assumed(mode)
            noise = self._error(facts, [mode]) / facts.sizes[mode] ** 2 * facts.spread**2
            noise *= 4.0 if facts.unit.replaces else 1.0
            kept = signal / (signal + scatter * number + _CLIPPED * noise)
            error -= kept * known.assumed(mode) / facts.spread**2
        return error

    def settled_noise(self, facts: Facts, counts: Sequence[Array]) -> dict[int, Array]:
        """Variance of the noise that the rounds leave in each level's sums, were these the counts.

        By mode, for those that are asked about. ``counts`` are weighted as this solver counts.
        """
        known, steps = self._known(facts), self.steps(facts)
        hidden = facts.unit.hides_presence
        levels = [Learnt() if hidden else public_counts(numbers) for numbers in counts]
        left = {}
        for step in steps:
            if step.asks == "counts":
                deviation = known.mechanism(step.share).deviation(1.0)
                levels[step.mode] = replace(public_counts(counts[step.mode]), count_deviation=deviation)
            elif step.asks == "sums":
                query = _clipped_query(known, steps, step.mode, levels[step.mode])
                times = sum(other.asks == "sums" and other.mode == step.mode for other in steps)
                weights = query.unclipped() * (1.0 if query.weights is None else query.weights)
                deviation = known.mechanism(step.share).deviation(query.change)
                left[step.mode] = (deviation / weights) ** 2 / times * np.ones(facts.sizes[step.mode])
        return left

    def init(self, run: Run, facts: Facts) -> BiasState:  # noqa: ARG002
        self.check(facts)
        known, steps = self._known(facts), self.steps(facts)
        before, error = facts.before, 0.0
        if facts.public_spread is None and before is not None and before.spread is not None:
            known = known.with_spread(before.spread)
        elif facts.public_spread is None and all(step.asks != "spread" for step in steps):
            known, error = known.with_spread(likely_spread(facts)), inf  # it may be anything
        levels = tuple(Learnt() for _ in facts.modes)
        return BiasState(known, steps, facts.shape.zeros(), levels, spread_error=error)

    def ask(
        self, state: BiasState
    ) -> ConstantQuery | SpreadQuery | CountsQuery | SumsQuery | OwnersQuery:
        if state.step.asks == "constant":
            return ConstantQuery(state.known)
        if state.step.asks == "spread":
            return SpreadQuery(state.known, state.model.mean)
        if state.step.asks == "counts":
            return CountsQuery(state.known, state.step.mode)
        if state.step.asks == "owners":
            return OwnersQuery(state.known, state.model.mean, state.model.mode_biases)
        return _sums_query(state)

    def update(self, state: BiasState, noisy: Noisy) -> tuple[BiasState, Info]:
        known, step, levels = state.known, state.step, list(state.levels)
        if step.asks == "constant":
            found = constant_from(known, noisy)
            levels = [public_counts(counts * COUNTED) for counts in noisy.public[1:]] or levels
            model, known = state.model.with_mean(found.mean), known.moved(found.mean)
            state = replace(state, known=known, constant=found, model=model)
        elif step.asks == "spread":
            spread, error = spread_from(known, noisy, state.constant.number)
            state = replace(state, known=known.with_spread(spread), spread_error=error)
        elif step.asks == "counts":
            levels[step.mode] = counted(known, step.mode, noisy, levels[step.mode])
        elif step.asks == "owners":
            state = replace(state, asked_own=scales_from(known, noisy))
        else:
            levels[step.mode] = averaged(state, noisy, _sums_query(state))
            state = replace(state, model=with_biases(state.model, levels))
        state = replace(state, levels=tuple(levels), done=state.done + 1)
        return state, Info(state.done, noise=noisy.deviation)

    def finish(self, state: BiasState) -> Finished[Multilinear]:
        facts = state.known.facts
        doubts = state.release.doubts(facts.scatter if facts.local is None else state.own.scatter)
        model, prior = state.model.copy(), self._own_prior(state)
        return Finished(model, own_prior=prior, doubts=doubts, told=state.told)

    def _own_prior(self, state: BiasState) -> OwnPrior | None:
        local = state.known.facts.local
        if local is None:
            return None
        guesses = [level.biases for level in state.levels]
        return OwnPrior(
            mode=local,
            precisions=np.ones(state.model.ranks[local]),  # of rows that stay zero: designs are
            bias_precision=1 / state.own.variance,
            scatter=state.own.scatter,
            # Entries whose other biases are uncertain tell less about the owner's.
            doubts=tuple(None if guess is None else guess.variances for guess in guesses),
            certainty=state.certainty,
        )


def prefers_laplace(facts: Facts, budget: Budget) -> bool:
    """Whether pure biases have less noise than those that use delta too; from public numbers.

    Where entries are the units an entry changes one number of each answer, which suits Laplace noise:
    for few questions and small epsilons it is less than the Gaussian noise that delta allows.
    """
    if budget.pure or facts.trust.kind == "secure shares":  # of which there are Gaussian ones alone
        return budget.pure
    pure = PrivateBiases(1 / budget.epsilon, pure=True)
    gaussian = PrivateBiases(gaussian_multiplier(budget))
    known = pure._known(facts)
    if known.facts.unit_mode is not None:
        return False  # clipped in another norm: not to be compared
    both = set(known.shared) & set(gaussian._known(facts).shared)  # one may leave out times
    # Where noise is Gaussian owners' means are taken off, which is worth some noise.
    less = _WORTH_CENTRING if gaussian._known(facts).owners is not None else 1.0
    return pure._error(facts, both) < less * gaussian._error(facts, both)


# What is lost by nested biases that have a part of the budget, over what is lost with all of it; settled
# with flights by destination (benchmarks/public.py) and MovieLens 100K in view.
_NO_WORSE, _SHARES = 1.006, np.arange(0.05, 0.81, 0.05)


def enough_for_biases(facts: Facts, noise: float) -> float:
    """The least share of a budget with which biases are expected to be about as good as with all of it.

    The same modes have to be asked about, and their error has to be nearly as small; by levels with an
    average number of entries, from public numbers alone.
    """
    whole = PrivateBiases(noise)
    shared, best = whole._known(facts).shared, whole._expected_error(facts)
    for share in _SHARES:
        part = PrivateBiases(noise / sqrt(share))
        if part._known(facts).shared == shared and part._expected_error(facts) <= _NO_WORSE**2 * best:
            return float(share)
    return float(_SHARES[-1])


# -- how often, of which modes, and how clipped ----------------------------------------------------


def _label(facts: Facts, step: Step) -> str:
    if step.asks in ("constant", "spread"):
        return step.asks
    if step.asks == "owners":
        return "how far owners differ"
    what = {"counts": "entries", "sums": "residuals"}[step.asks]
    return f"{what} by {facts.modes[step.mode].name}"


def _sums_query(state: BiasState) -> SumsQuery:
    mode = state.step.mode
    query = _clipped_query(state.known, state.steps, mode, state.levels[mode])
    return replace(query, mean=state.model.mean, biases=state.model.mode_biases)


def _clipped_query(known: Known, steps: Sequence[Step], mode: int, level: Learnt) -> SumsQuery:
    """Clipping falls where noise is large: it costs less there than noise in proportion to it."""
    counts = np.ones(known.facts.sizes[mode]) if level.counts is None else level.counts.means
    share = sum(step.share for step in steps if step.asks == "sums" and step.mode == mode)
    kept = known.reliability(mode, counts, known.mechanism(share).deviation(1.0))
    if known.owners is not None:  # what own means leave scatters less
        clip = (0.7 + 0.3 * kept) * known.facts.spread
        return SumsQuery(known, mode, 0.0, (), clip, clip, None)
    if known.facts.unit_mode is None:
        lost = max(1 - kept, 1e-6)  # (that little noise allows more was seen on births by state)
        factor = max(0.7 - 0.18 * log(lost), 0.07 / sqrt(lost))  # the second where noise hardly matters
        clip = min(factor * known.facts.spread, 2 * known.facts.half)
        return SumsQuery(known, mode, 0.0, (), clip, clip, None)
    # Shortened as a whole, what a unit adds keeps its direction: under much noise that costs little.
    bound = (0.4 + 0.4 * kept) * known.facts.spread
    # With weights w, the error sum_j n_j / (w_j n_j)^2 is least for w = n^(-2 / (2 + norm)), given the
    # length of an average unit's contribution; not below what noise leaves visible of a count.
    weights = np.maximum(counts, level.count_deviation) ** (-2 / (2 + known.norm))
    weights /= ((counts @ weights**known.norm) / counts.sum()) ** (1 / known.norm)
    return SumsQuery(known, mode, 0.0, (), 2 * known.facts.spread, bound, weights)


def make(facts: Facts, wish: Wish) -> PrivateBiases:
    """The solver of the method "bias"."""
    budget = wish.budget
    return PrivateBiases(pure=isinstance(budget, Budget) and prefers_laplace(facts, budget))
