"""A private fit that also tells how far values lie from its predictions: one more draw at the end.

Any method that knows its own doubts is fitted with most of the budget. Then residuals, each over the
deviation that is expected of it, are counted in public bins (proof: ``proofs/intervals.md``); what
comes of the counts is in ``residuals.py``.

Where units are the levels of a mode, residuals are those of predictions with own rows. Where they are
entries, one entry would move its owner's row and with it all of that owner's residuals. So entries count
by themselves, about what the release alone predicts: that tells what own rows and scatter make together,
with far less noise, and how much own rows leave of it is known.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import sqrt
from typing import Any, ClassVar

import numpy as np

from sfumato.errors import SettingError
from sfumato.kernels.grid import BELOW_ONE, cut, grid
from sfumato.models.doubts import EDGES, Doubts, Errors, OwnDoubts
from sfumato.models.multilinear import Multilinear
from sfumato.models.own_means import OwnMeans
from sfumato.models.own_prior import OwnPrior
from sfumato.privacy.clipping import Clipped, clip_values
from sfumato.privacy.facts import Facts
from sfumato.privacy.ledger import Charge
from sfumato.privacy.mechanisms import Gaussian, Laplace, Noisy
from sfumato.records import record
from sfumato.sites.memory import Site
from sfumato.solvers.least_squares.own_rows import solve_own
from sfumato.solvers.private.residuals import (
    GUESSED,
    KNOWN,
    number_of,
    numbers_asked,
    rare_variances,
    shape_from,
    usual_shape,
)
from sfumato.solvers.private.sides.queries import holder_of, prior_with_means
from sfumato.solvers.private.spread import knows_spread
from sfumato.solvers.protocol import Finished, Info, PrivateQuery, PrivateSolver, Run, SumQuery
from sfumato.surface import setting
from sfumato.types import Array

LABEL = "how far values lie from predictions"
_LENGTH = 0.4  # of the shares of one level: residuals of most lie in many bins
_FULL = 0.25  # of an average level's entries, from which on a level counts in full
_ERROR = 0.004  # that the share of a bin may have
_LEAST, _MOST = 0.003, 0.12  # of the budget
_MOST_LEVERAGE = 0.8  # of what an entry tells of its own prediction
_SAMPLE = 512  # designs that tell how long own rows' designs are
_LEAST_SCATTER = 0.05  # of what was expected
# Prior variances of own rows, over those that rows are solved with: under noise these are rather too
# large, since rows that shrink to nothing cost more than those that hardly shrink.
_OWN = 0.75
_NUMBERS = 0.3  # variance of what owners make of entries elsewhere, white but for being shortened


# -- what is asked ------------------------------------------------------------------------------------


@record
@dataclass(frozen=True)
class ResidualsQuery(SumQuery):
    """Ask in which bins residuals lie, over the deviations that are expected of them.

    An entry adds one to a bin. Where units are the levels of a mode, the shares of one level's residuals
    are added, less where it has few, and shortened: its numbers add up to one at most.
    """

    facts: Facts
    part: int | None
    model: Multilinear
    errors: Errors
    prior: OwnPrior | None
    means: OwnMeans | None

    def clipped(self, site: Any) -> Clipped:
        held, group = holder_of(site, self.part), self.facts.unit_mode
        numbers, number = self._numbers(site, held), numbers_asked(len(self.errors.doubts.told))
        bound = change(self.facts)
        if group is None:
            step = grid(1.0)
            sums = np.bincount(numbers, minlength=number) * cut(1.0, step)
            return Clipped(sums, *bound, step, single=self.facts.unit.hides_presence)
        levels, size = held.tensor.coordinates[group], self.facts.sizes[group]
        counts = np.bincount(levels * np.int64(number) + numbers, minlength=size * number)
        counts = counts.reshape(size, number)
        shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), full_entries(self.facts, group))
        lengths = np.linalg.norm(shares, axis=1, keepdims=True)
        shares *= np.minimum(1.0, _LENGTH * BELOW_ONE / np.maximum(lengths, 1e-300))
        step = grid(_LENGTH)
        rounding = 0.0 if self.facts.whole_units else 2 * step * number  # both are cut
        l1, l2 = (each + rounding for each in bound)
        return Clipped(cut(shares, step).sum(axis=0), l1, l2, step)

    def _numbers(self, site: Any, held: Site) -> Array:
        """Which number each entry adds to. The model has seen it: what it leaves of others is larger."""
        tensor, model, entries = held.tensor, self.model, None
        if self.prior is not None and self.facts.unit_mode is not None:
            prior, own = self.prior, self.prior.mode
            if self.means is not None:
                prior = prior_with_means(self.means, prior, model, site)
            model = solve_own(model, prior, held)
            entries = np.bincount(tensor.coordinates[own], minlength=model.shape[own])
        values = model.predict(tensor.coordinates, threads=held.threads)
        left = clip_values(tensor.values, *self.facts.bounds) - np.clip(values, *self.facts.bounds)
        noise, scatter = self.errors.variances(tensor.coordinates, entries)
        told = self.errors.leverages(tensor.coordinates, entries)
        left = left / (1 - np.minimum(told, _MOST_LEVERAGE))
        return number_of(left / np.sqrt(noise + scatter), self.errors.doubts.rarity(tensor.coordinates))


def full_entries(facts: Facts, group: int) -> float:
    """Entries from which on a level counts in full."""
    return max(1.0, _FULL * facts.expected_entries / facts.sizes[group])


def change(facts: Facts) -> tuple[float, float]:
    """How much neighbours change the numbers, in the L1 and in the L2 norm."""
    l1, l2 = (1.0, 1.0) if facts.unit_mode is None else (1.0, _LENGTH)
    return (l1, l2) if facts.unit.hides_presence else (2 * l1, sqrt(2) * l2)


# -- what is made of the answer -----------------------------------------------------------------------


def own_doubts(model: Multilinear, prior: OwnPrior, doubts: Doubts) -> OwnDoubts:
    """What is not known of own rows by their number of entries, from a sample of their designs."""
    designs = model.design(prior.mode, _likely_cells(model, prior.mode, doubts))
    turn = np.eye(designs.shape[1]) if prior.turn is None else prior.turn
    roots = turn * prior.precisions**-0.5
    seen = np.hstack([designs @ roots, np.full((_SAMPLE, 1), prior.bias_precision**-0.5)])
    spectrum = _OWN * np.maximum(np.linalg.eigvalsh(seen.T @ seen / _SAMPLE), 0.0)
    return OwnDoubts(mode=prior.mode, spectrum=spectrum, precision=1 / doubts.scatter)


def _likely_cells(model: Multilinear, own: int, doubts: Doubts) -> Array:
    """A sample of cells of an owner: levels of other modes come as often as was released, or evenly;
    which is settled once and for all.
    """
    generator = np.random.default_rng(0x5F0A71)
    cells = np.zeros((model.order, _SAMPLE), np.int64)
    for m, size in enumerate(model.shape):
        if m != own:
            counts = doubts.counts[m]
            likely = np.ones(size) if counts is None else np.maximum(counts, 0.0) + 1e-9
            cells[m] = generator.choice(size, _SAMPLE, p=likely / likely.sum())
    return cells


def said_elsewhere(made: Finished[Multilinear], facts: Facts) -> float:
    """Variance that what other relations say of own rows explains, where rows are not solved for the
    question.
    """
    means, prior, doubts = made.own_means, made.own_prior, made.doubts
    if means is None or prior is None or doubts is None or facts.unit_mode is not None:
        return 0.0
    numbers = np.full(means.size, _NUMBERS)
    if means.columns is not None:
        numbers = np.mean(means.columns**2, axis=0)
    designs = made.model.design(prior.mode, _likely_cells(made.model, prior.mode, doubts))
    told = designs[:, means.at : means.at + means.times * means.size]
    return float(means.strength**2 * np.mean(told**2 @ np.tile(numbers, means.times)))


def errors_from(
    before: Errors,
    noisy: Noisy,
    facts: Facts,
    elsewhere: float = 0.0,
    scales: tuple[float, float] = KNOWN,
) -> Errors:
    """Errors with the scatter that the residuals' own spread tells, in deviations that are theirs, and
    with what values of rare levels scatter more.
    """
    doubts, shape = before.doubts, shape_from(noisy, scales)
    apart = _apart(before, facts) + elsewhere
    low, high = replace(before, shape=shape).bounds(0.68)
    whole = ((high - low) / 2) ** 2 * (doubts.scatter + apart)
    scatter = max(whole - apart, _LEAST_SCATTER * doubts.scatter)
    ratio = sqrt((doubts.scatter + apart) / (scatter + apart))
    more = rare_variances(noisy, shape, len(doubts.told)) * (scatter + apart)
    doubts = replace(doubts, scatter=scatter).with_rare(dict(zip(doubts.told, more, strict=True)))
    return replace(before, doubts=doubts, shape=stretched(shape, ratio))


def stretched(shape: Array, ratio: float) -> Array:
    """Shares of residuals that are so many times as large, in the same bins."""
    below = np.minimum(np.cumsum(shape)[:-1], 1.0)  # rounding can carry a sum of shares past one
    inside = np.interp(EDGES, EDGES * ratio, below, left=0.0, right=1.0)
    moved = np.diff(np.concatenate([[0.0], inside, [1.0]]))
    return np.asarray(moved / moved.sum())


def _apart(errors: Errors, facts: Facts) -> float:
    """Variance beside the scatter, of a typical cell."""
    noise, _ = errors.variances(np.full((len(facts.sizes), 1), -1))
    apart = float(noise[0])
    for part in errors.doubts.data:
        apart += 0.0 if part is None else float(part.mean())
    if errors.own is not None:
        solved = 0.0 if facts.unit_mode is None else full_entries(facts, errors.own.mode) / _FULL
        apart += float(errors.own.after(np.array([solved]))[0])
    return apart


# -- the solver -----------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class State:
    """Where it is: in the fit itself while nothing is made."""

    facts: Facts
    inner: Any
    last: int  # draws of the fit itself
    done: int = 0
    made: Finished[Multilinear] | None = None
    errors: Errors | None = None


@record
@dataclass(frozen=True)
class WithIntervals:
    """A private fit, and how far values lie from its predictions.

    Parameters
    ----------
    inner : the method that fits; its noise is a share of this one's.
    noise : noise multiplier of all draws together, found from the budget.
    """

    inner: Any
    noise: float = 1.0

    proof_note: ClassVar[str] = "proofs/intervals.md"

    @property
    def name(self) -> str:
        return str(self.inner.name)

    @property
    def always_fits(self) -> tuple[str, ...]:
        return (*self.inner.always_fits, "errors")

    @property
    def proof(self) -> str:
        return f"{self.inner.proof}, {self.proof_note}"

    @property
    def proven(self) -> bool:
        return bool(self.inner.proven)

    @property
    def exact(self) -> bool:
        return bool(self.inner.exact)

    @property
    def pure(self) -> bool:
        """Whether all noise is Laplace's."""
        return bool(getattr(self.inner, "pure", False))

    # -- what will be done: never sees data -------------------------------------------------------

    def check(self, facts: Facts) -> None:
        if not getattr(self.inner, "knows_doubts", False):
            raise SettingError(
                f"the method {self.inner.name!r} does not tell how much noise its rows have, which "
                f"intervals need: use {setting('method', 'alternating', 'moments', 'pairs', 'bias')}"
            )
        self._own(facts).check(facts)

    def share(self, facts: Facts) -> float:
        """Of the budget: what tells the shares of bins well enough, a little where that is much."""
        law, (l1, l2), group = self._law(1.0), change(facts), facts.unit_mode
        units = facts.least_entries if group is None else facts.sizes[group]
        error = law.deviation(l1 if self.pure else l2) / (_ERROR * units)
        return float(np.clip(error if self.pure else error**2, _LEAST, _MOST))

    def _law(self, share: float) -> Gaussian | Laplace:
        return Laplace(self.noise / share) if self.pure else Gaussian(self.noise / sqrt(share))

    def _own(self, facts: Facts) -> PrivateSolver[Any]:
        """The fit itself, with its share of the budget."""
        rest = 1 - self.share(facts)
        noise = self.noise / (rest if self.pure else sqrt(rest))
        made: PrivateSolver[Any] = replace(self.inner, noise=noise)
        return made

    def charges(self, facts: Facts) -> tuple[Charge, ...]:
        return (*self._own(facts).charges(facts), Charge(LABEL, self._law(self.share(facts))))

    def rounds(self, facts: Facts) -> int:
        return len(self.charges(facts))

    def assumes(self, facts: Facts) -> tuple[str, ...]:
        return self._own(facts).assumes(facts)

    def in_words(self, facts: Facts) -> tuple[str, ...]:
        return self._own(facts).in_words(facts)

    def adds_up(self, facts: Facts) -> bool:
        return self._own(facts).adds_up(facts)

    # -- the loop -----------------------------------------------------------------------------------

    def init(self, run: Run, facts: Facts) -> State:
        self.check(facts)
        own = self._own(facts)
        return State(facts, own.init(run, facts), len(own.charges(facts)))

    def ask(self, state: State) -> PrivateQuery:
        if state.made is None or state.errors is None:
            return self._own(state.facts).ask(state.inner)
        doubts = state.errors.doubts
        asked = replace(doubts, scatter=doubts.scatter + said_elsewhere(state.made, state.facts))
        return ResidualsQuery(
            state.facts,
            getattr(self.inner, "part", None),
            state.made.model,
            replace(state.errors, doubts=asked),
            state.made.own_prior,
            state.made.own_means,
        )

    def update(self, state: State, released: Any) -> tuple[State, Info]:
        done = state.done + 1
        if state.made is not None and state.errors is not None:
            elsewhere = said_elsewhere(state.made, state.facts)
            scales = self._scales(state.facts)
            errors = errors_from(state.errors, released, state.facts, elsewhere, scales)
            return replace(state, done=done, errors=errors), Info(done, noise=released.deviation)
        own = self._own(state.facts)
        inner, info = own.update(state.inner, released)
        state = replace(state, inner=inner, done=done)
        if done == state.last:
            made = own.finish(inner)
            errors = _expected(made, state.facts, self._scales(state.facts))
            state = replace(state, made=made, errors=errors)
        return state, info

    def _scales(self, facts: Facts) -> tuple[float, float]:
        """How far residuals may be from what is expected of them."""
        return KNOWN if knows_spread(facts, self._own(facts).charges(facts)) else GUESSED

    def finish(self, state: State) -> Finished[Multilinear]:
        if state.made is None:
            raise RuntimeError("a fit that is not done has no model")
        return replace(state.made, errors=state.errors)


def _expected(made: Finished[Multilinear], facts: Facts, scales: tuple[float, float] = KNOWN) -> Errors:
    """Errors before residuals are asked about: of the usual law.

    Where the spread of the values is not known, a fit goes by less than the usual one, which suits
    biases that shrink and not bounds: all its errors are taken in proportion to the usual spread.
    """
    if made.doubts is None:
        raise RuntimeError("a method that knows its doubts tells them")
    doubts, prior, times = made.doubts, made.own_prior, 1.0
    own = None if prior is None else own_doubts(made.model, prior, doubts)
    if own is None and facts.local is not None:  # owners are predicted what everyone is
        own = OwnDoubts(mode=facts.local, spectrum=np.zeros(0), precision=0.0)
    if scales == GUESSED:
        times = max(1.0, facts.scatter / doubts.scatter)
    if own is not None:
        own = replace(own, spectrum=times * own.spectrum, precision=own.precision / times)
    return Errors(doubts=doubts.scaled(times), shape=usual_shape(scales), own=own)
