"""The simple predictors under privacy: a constant, and a sum of biases.

They are the bars that every private fit has to clear, and the start of those that go further. Proofs:
``proofs/biases.md``. For any order and all four units; the units differ in who adds to a sum:

- ``Value``, ``Entry``: each entry by itself. A *local* mode (its rows stay with their owners) is not
  asked about; its biases are solved at the end and never enter what is released.
- ``UnitValues``, ``Unit``: all entries of a level of a mode, a user say, as one vector with one bound.
  Whatever a user does with its own entries is then covered: it takes its own mean off before it
  answers, in every round.

Questions: the constant; how often each level occurs, where that is not public; then, round after
round and mode after mode, the sums of what the biases leave at each level. A round's sums are taken
back to what they would be without biases and averaged over the rounds, so that more rounds do not
mean more noise; biases are guesses from these averages (``shrinkage.py``).

All shares of the budget, rounds and bounds follow from public numbers and from what was released
before. ``noise`` is the noise multiplier of all questions together: a question with share f of the
budget has noise / sqrt(f), or noise / f where ``pure``, so that together they cost what one question
with multiplier ``noise`` costs, however the shares are chosen.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import inf, sqrt
from typing import ClassVar, Literal, NamedTuple

import numpy as np

from sfumato.checks import MOST_ROUNDS, check_count, check_flag, check_positive, given
from sfumato.data.tensor import find_mode
from sfumato.errors import SettingError
from sfumato.kernels.grid import cut, grid
from sfumato.kernels.numba.contributions import (
    Contribution,
    entry_counts,
    entry_sums,
    unit_counts,
    unit_sums,
)
from sfumato.models.multilinear import Multilinear
from sfumato.privacy.accounting import gaussian_multiplier
from sfumato.privacy.budgets import Budget
from sfumato.privacy.clipping import Clipped, check_range
from sfumato.privacy.ledger import Charge, Draw
from sfumato.privacy.mechanisms import Gaussian, Laplace, Noisy
from sfumato.privacy.units import UnitValues
from sfumato.sites.memory import Site
from sfumato.solvers.least_squares.own_rows import OwnPrior
from sfumato.solvers.private.contributions import arrange, unit_totals
from sfumato.solvers.private.shrinkage import Guess, positive_counts, posterior_biases
from sfumato.solvers.protocol import Info, PublicShape
from sfumato.types import Array

# Chosen on planted biases of many shapes, not on ratings that anybody would be scored on. Errors are
# flat around them: half or twice any of them raised no error there by more than 1.4%.
_SCATTER, _ASSUMED = 0.75, 0.2  # variances of residuals and of biases, over that of the values
_ASSUMED_OF_TIMES = 0.025  # values differ less from day to day than from item to item
_COUNTS_SHARE, _PURE_COUNTS_SHARE = 0.1, 0.2  # of the budget, for how often levels occur
_CONSTANT_ERROR = 0.03  # noise that the constant may have, over the spread of the values
_LEAST_CONSTANT, _MOST_CONSTANT = 0.01, 0.9  # its share of the budget
_USUAL_ENTRIES = 10  # of a level, where the number of entries is not public
_COUNT_DOUBT = 0.5  # how much of an error in a level's count stays in its averaged sums


# -- what is public -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Known:
    """The public numbers that all settings are made from."""

    shape: PublicShape
    noise: float
    pure: bool

    @property
    def bounds(self) -> tuple[float, float]:
        assert self.shape.bounds is not None  # checked
        return self.shape.bounds

    @property
    def half(self) -> float:
        return (self.bounds[1] - self.bounds[0]) / 2

    @property
    def middle(self) -> float:
        return (self.bounds[1] + self.bounds[0]) / 2

    @property
    def spread(self) -> float:
        return self.shape.spread or self.half / 2

    @property
    def scatter(self) -> float:
        return _SCATTER * self.spread**2

    def assumed(self, mode: int) -> float:
        """Variance of a mode's biases, before anything is known."""
        timed = self.shape.modes[mode].bin is not None
        return (_ASSUMED_OF_TIMES if timed else _ASSUMED) * self.spread**2

    @property
    def ridge(self) -> float:
        """Entries that a unit's own mean of zero counts as much as."""
        return _SCATTER / _ASSUMED

    @property
    def hidden(self) -> bool:
        assert self.shape.unit is not None  # checked
        return self.shape.unit.hides_presence

    @cached_property
    def unit_mode(self) -> int | None:
        """The mode whose levels are the units; None where entries are."""
        assert self.shape.unit is not None  # checked
        name = self.shape.unit.mode
        return None if name is None else find_mode(self.shape.modes, name)

    @cached_property
    def shared(self) -> list[int]:
        """Modes asked about in rounds: neither local nor the units' own, and worth it."""
        modes = [m for m in range(len(self.shape.modes)) if m not in (self.shape.local, self.unit_mode)]
        return [m for m in modes if self._worth_asking(m, modes)] or modes

    def _worth_asking(self, mode: int, modes: list[int]) -> bool:
        """Whether an average level would keep half of its mean; for times, which differ by little.

        (That times were to be left out like this was seen on MovieLens 100K by day.) Where rows of
        another mode are local and entries the units, nobody's own mean is taken off: a
        day is seen through the few people who are active then, and differs as they do.
        """
        if self.shape.modes[mode].bin is None:
            return True
        sizes, own = self.shape.sizes, self.unit_mode
        entries = self.shape.entries or _USUAL_ENTRIES * max(sizes)
        # A unit's weighted counts add up to about the root of its entries, or to one where pure.
        of_unit = 1.0 if own is None or self.pure else sqrt(max(1.0, entries / sizes[own]))
        number = (entries if own is None else sizes[own] * of_unit) / sizes[mode]
        share = (1 - _COUNTS_SHARE) * sizes[mode] / sum(sizes[m] for m in modes)
        error = (self.mechanism(share).deviation(self.spread) / number) ** 2
        local = self.shape.local
        if own is None and local is not None:
            error += self.assumed(local) * min(1.0, sizes[mode] / sizes[local])
        return error <= self.assumed(mode)

    @property
    def norm(self) -> Literal[1, 2]:
        return 1 if self.pure else 2

    @property
    def full_entries(self) -> float:
        """Entries from which on a unit counts in full for the constant: what they have on average."""
        if self.unit_mode is None or self.shape.entries is None:
            return 1.0
        return max(1.0, self.shape.entries / self.shape.sizes[self.unit_mode])

    def mechanism(self, share: float) -> Gaussian | Laplace:
        return Laplace(self.noise / share) if self.pure else Gaussian(self.noise / sqrt(share))

    def reliability(self, mode: int, counts: Array, unit_deviation: float) -> float:
        """Share of its own mean that an average level of a mode would keep, from 0 to 1."""
        signal = (counts.sum() / self.shape.sizes[mode]) ** 2 * self.assumed(mode)
        return float(signal / (signal + (unit_deviation * self.spread) ** 2))

    def check(self) -> None:
        shape = self.shape
        check_positive(noise=self.noise)
        check_flag(pure=self.pure)
        if shape.unit is None:
            raise SettingError("a private fit needs a unit of privacy")
        if shape.bounds is None:
            raise SettingError("a private fit needs public bounds of the values")
        check_range(*shape.bounds)
        own = self.unit_mode  # an error where there is no such mode
        if shape.local is not None and own not in (None, shape.local):
            raise SettingError(
                f"rows of {shape.modes[shape.local].name!r} cannot stay with their owners: what is "
                f"protected is {shape.unit}"
            )


def assumed_scatter(bounds: tuple[float, float]) -> float:
    """Variance of what a model leaves of values within public bounds, where nothing else is known."""
    return _SCATTER * ((bounds[1] - bounds[0]) / 4) ** 2


# -- the constant ---------------------------------------------------------------------------------


class ConstantQuery(NamedTuple):
    known: Known


class Released(NamedTuple):
    """Noisy statistics, and how often each level occurs by mode where that is public."""

    noisy: Noisy
    counts: tuple[Array, ...] = ()


def constant_statistics(known: Known, site: Site) -> Clipped:
    """Sum of values from the middle of the bounds, and the number of values times half the range.

    A unit adds its mean and one; in part where it has few entries. The second number is left out where
    it is public.
    """
    arranged, half, step = arrange(site, known.unit_mode, known.bounds), known.half, grid(known.half)
    # Cut before they are averaged: means of values far from zero would be rounded by what all the
    # others are. Clipped once more, since the middle and the differences are rounded there too.
    centred = cut(np.clip(arranged.values - known.middle, -half, half), step)
    sums, counts = unit_totals(centred, arranged.starts)
    total = cut(sums / np.maximum(counts, known.full_entries), step).sum()
    l1, l2 = _constant_change(known)
    if known.hidden:
        number = cut(_parts(known, counts) * half, step).sum()
        return Clipped(np.array([total, number]), l1, l2)
    return Clipped(np.array([total]), l1, l2, single=True)


def _parts(known: Known, counts: Array) -> Array:
    """The part of a whole unit that each counts: all from ``full_entries`` on."""
    return np.minimum(counts / known.full_entries, 1.0)


def _constant_change(known: Known) -> tuple[float, float]:
    """How much neighbours change these statistics, in the L1 and in the L2 norm."""
    if known.hidden:
        return 2 * known.half, sqrt(2) * known.half
    unit = known.shape.unit
    changed = unit.max_entries / known.full_entries if isinstance(unit, UnitValues) else 1.0
    bound = 2 * known.half * min(1.0, changed) + 2 * grid(known.half)  # both are cut to the grid
    return bound, bound


def constant_deviation(known: Known, share: float) -> float:
    """Standard deviation of the noise in the sum that the constant is made of."""
    return known.mechanism(share).deviation(_constant_change(known)[0 if known.pure else 1])


def answer_constant(known: Known, site: Site, draw: Draw) -> Released:
    noisy = draw.release(constant_statistics(known, site))
    if known.hidden:
        return Released(noisy)
    arranged = arrange(site, known.unit_mode, known.bounds)
    number = float(_parts(known, unit_totals(arranged.values, arranged.starts)[1]).sum())
    values = np.array([noisy.values[0], number * known.half])
    counts = tuple(_count(known, m, site) for m in range(len(known.shape.modes)))
    return Released(Noisy(values, noisy.deviation), counts)


def constant_from(known: Known, noisy: Noisy) -> float:
    """The mean: the middle of the bounds where the noise drowns it."""
    total, number = float(noisy.values[0]), max(float(noisy.values[1]) / known.half, 1.0)
    signal = (number * known.half / 2) ** 2
    offset = total / number * signal / (signal + noisy.deviation**2)
    return known.middle + float(np.clip(offset, -known.half, known.half))


def _constant_share(known: Known) -> float:
    """What keeps the constant's noise small beside the values' spread."""
    sizes, entries = known.shape.sizes, known.shape.entries
    units: float = entries or _USUAL_ENTRIES * max(sizes)
    if known.unit_mode is not None:
        units = sizes[known.unit_mode]
    bound = (2 if known.pure else sqrt(2)) * known.half
    error = known.mechanism(1.0).deviation(bound) / (units * _CONSTANT_ERROR * known.spread)
    return float(np.clip(error if known.pure else error**2, _LEAST_CONSTANT, _MOST_CONSTANT))


@dataclass(frozen=True)
class ConstantState:
    known: Known
    model: Multilinear


@dataclass(frozen=True)
class PrivateConstant:
    """The best constant, in one draw.

    Parameters
    ----------
    noise : noise multiplier, found from the budget.
    pure : Laplace noise, for a budget without delta; else Gaussian.
    """

    noise: float = 1.0
    pure: bool = False

    name: ClassVar[str] = "private constant"
    proof: ClassVar[str] = "proofs/biases.md"
    proven: ClassVar[bool] = True
    exact: ClassVar[bool] = True

    def _known(self, shape: PublicShape) -> Known:
        return Known(shape, self.noise, self.pure)

    def check(self, shape: PublicShape) -> None:
        self._known(shape).check()

    def charges(self, shape: PublicShape) -> tuple[Charge, ...]:
        return (Charge("constant", self._known(shape).mechanism(1.0)),)

    def rounds(self, shape: PublicShape) -> int:  # noqa: ARG002
        return 1

    def assumes(self, shape: PublicShape) -> tuple[str, ...]:  # noqa: ARG002
        return ()

    def init(self, seed: int, shape: PublicShape) -> ConstantState:  # noqa: ARG002
        self.check(shape)
        return ConstantState(self._known(shape), shape.make_model(shape.sizes, shape.dtype))

    def ask(self, state: ConstantState) -> ConstantQuery:
        return ConstantQuery(state.known)

    def answer(self, query: ConstantQuery, site: Site, draw: Draw) -> Released:
        return answer_constant(query.known, site, draw)

    def update(self, state: ConstantState, released: Released) -> tuple[ConstantState, Info]:
        mean = constant_from(state.known, released.noisy)
        return replace(state, model=state.model.with_mean(mean)), Info(1, noise=released.noisy.deviation)

    def finish(self, state: ConstantState) -> Multilinear:
        return state.model

    def own_prior(self, state: ConstantState) -> None:
        """Nothing: owners are predicted the constant too."""


# -- the biases -----------------------------------------------------------------------------------


class Step(NamedTuple):
    """One draw: a question and its share of the budget."""

    asks: Literal["constant", "counts", "sums"]
    mode: int
    share: float


class CountsQuery(NamedTuple):
    known: Known
    mode: int


class SumsQuery(NamedTuple):
    """Ask for what a model's mean and biases leave, at each level of a mode.

    Residuals are clipped to ``clip``. Where units are levels of a mode, each one's contribution is
    then shortened to ``bound``, the levels weighted: where there are few entries, noise hurts most.
    """

    known: Known
    mode: int
    model: Multilinear | None  # None where only the noise is asked for
    clip: float
    bound: float
    weights: Array | None

    @property
    def change(self) -> float:
        """How much neighbours change the sums, by entry or by unit."""
        known = self.known
        if known.hidden:
            return self.bound
        if self.weights is not None:
            return 2 * self.bound
        return 2 * (min(self.clip, known.half) + grid(self.clip))


@dataclass(frozen=True)
class Learnt:
    """What is known of a mode's levels: how often they occur, averaged sums, and biases.

    ``sums`` and ``noise`` (a variance) are those of the residuals that biases of zero would leave.
    """

    counts: Guess | None = None
    count_deviation: float = 0.0
    sums: Array | None = None
    noise: Array | None = None
    rounds: int = 0
    biases: Guess | None = None


@dataclass(frozen=True)
class BiasRelease:
    """What private biases released, for methods that start from them. All of it is private already.

    ``biases`` and ``deviations`` (posterior standard deviations of the biases) have one array for
    each mode; zeros and infinity for a local mode and for modes that were not asked about.
    ``counts`` are positive guesses of how many entries each level has, and ``count_deviations`` the
    standard deviation of the noise that was added to them, zero where counts are public; None for
    modes that were not asked about. Where units are the levels of a mode, counts are weighted: an
    entry counts as much as its unit's contribution lets it, see ``contributions.py``.
    """

    mean: float
    biases: tuple[Array, ...]
    deviations: tuple[Array, ...]
    counts: tuple[Array | None, ...]
    count_deviations: tuple[float, ...]


@dataclass(frozen=True)
class BiasState:
    known: Known
    steps: tuple[Step, ...]
    model: Multilinear
    levels: tuple[Learnt, ...]
    done: int = 0

    @property
    def step(self) -> Step:
        return self.steps[self.done]

    @property
    def release(self) -> BiasRelease:
        """All that is known after the last step."""
        guesses = [level.biases for level in self.levels]
        return BiasRelease(
            self.model.mean,
            tuple(biases.copy() for biases in self.model.mode_biases),
            tuple(
                np.full(size, inf) if guess is None else np.sqrt(guess.variances)
                for guess, size in zip(guesses, self.known.shape.sizes, strict=True)
            ),
            tuple(None if level.counts is None else level.counts.means for level in self.levels),
            tuple(level.count_deviation for level in self.levels),
        )


@dataclass(frozen=True)
class PrivateBiases:
    """A constant and a bias for each level of the released modes.

    Parameters
    ----------
    noise : noise multiplier of all draws together, found from the budget.
    pure : Laplace noise, for a budget without delta; else Gaussian.
    sweeps : times that each mode is asked about; None for a number that suits the unit.
    """

    noise: float = 1.0
    pure: bool = False
    sweeps: int | None = None

    name: ClassVar[str] = "private biases"
    proof: ClassVar[str] = "proofs/biases.md"
    proven: ClassVar[bool] = True
    exact: ClassVar[bool] = True

    def _known(self, shape: PublicShape) -> Known:
        return Known(shape, self.noise, self.pure)

    def check(self, shape: PublicShape) -> None:
        self._known(shape).check()
        check_count(1, MOST_ROUNDS, **given(sweeps=self.sweeps))

    def steps(self, shape: PublicShape) -> tuple[Step, ...]:
        """The draws in order, their shares adding up to one."""
        known = self._known(shape)
        constant = _constant_share(known)
        counts = (_PURE_COUNTS_SHARE if known.pure else _COUNTS_SHARE) if known.hidden else 0.0
        counts *= 1 - constant
        sums = 1 - constant - counts
        shares, own = _mode_shares(known)
        sweeps = self.sweeps or _sweeps(known)
        steps = [Step("constant", -1, constant)]
        if counts:
            # The units' own mode has no counts of its own: a unit that is there counts once.
            whole = sum(shares.values())
            steps += [Step("counts", m, counts * share / whole) for m, share in shares.items()]
        for _ in range(sweeps):
            steps += [Step("sums", m, sums * share / sweeps) for m, share in shares.items()]
        if own is not None:
            steps.append(Step("sums", own[0], sums * own[1]))
        return tuple(steps)

    def charges(self, shape: PublicShape) -> tuple[Charge, ...]:
        known = self._known(shape)
        return tuple(
            Charge(_label(shape, step), known.mechanism(step.share)) for step in self.steps(shape)
        )

    def rounds(self, shape: PublicShape) -> int:
        return len(self.steps(shape))

    def _error(self, shape: PublicShape, modes: Collection[int]) -> float:
        """Noise in the biases of average levels, up to a factor: that of the rounds' averages."""
        known, steps = self._known(shape), self.steps(shape)
        noise = 0.0
        for mode in modes:
            shares = [step.share for step in steps if step.asks == "sums" and step.mode == mode]
            average = known.mechanism(shares[0]).deviation(1.0) ** 2 / len(shares)
            noise += shape.sizes[mode] ** 2 * average
        return noise

    def settled_noise(self, shape: PublicShape, counts: Sequence[Array]) -> dict[int, Array]:
        """Variance of the noise that the rounds leave in each level's sums, were these the counts.

        By mode, for those that are asked about. ``counts`` are weighted as this solver counts.
        """
        known, steps = self._known(shape), self.steps(shape)
        levels = [Learnt() if known.hidden else _public(numbers) for numbers in counts]
        left = {}
        for step in steps:
            if step.asks == "counts":
                deviation = known.mechanism(step.share).deviation(1.0)
                levels[step.mode] = replace(_public(counts[step.mode]), count_deviation=deviation)
            elif step.asks == "sums":
                query = _clipped_query(known, steps, step.mode, levels[step.mode], None)
                times = sum(other.asks == "sums" and other.mode == step.mode for other in steps)
                weights = 1.0 if query.weights is None else query.weights
                deviation = known.mechanism(step.share).deviation(query.change)
                left[step.mode] = (deviation / weights) ** 2 / times * np.ones(shape.sizes[step.mode])
        return left

    def assumes(self, shape: PublicShape) -> tuple[str, ...]:  # noqa: ARG002
        return ()

    def init(self, seed: int, shape: PublicShape) -> BiasState:  # noqa: ARG002
        self.check(shape)
        model = shape.make_model(shape.sizes, shape.dtype)
        levels = tuple(Learnt() for _ in shape.modes)
        return BiasState(self._known(shape), self.steps(shape), model, levels)

    def ask(self, state: BiasState) -> ConstantQuery | CountsQuery | SumsQuery:
        if state.step.asks == "constant":
            return ConstantQuery(state.known)
        if state.step.asks == "counts":
            return CountsQuery(state.known, state.step.mode)
        return _sums_query(state)

    def answer(self, query: ConstantQuery | CountsQuery | SumsQuery, site: Site, draw: Draw) -> Released:
        if isinstance(query, ConstantQuery):
            return answer_constant(query.known, site, draw)
        if isinstance(query, CountsQuery):
            return Released(draw.release(count_statistics(query, site)))
        return Released(draw.release(sum_statistics(query, site)))

    def update(self, state: BiasState, released: Released) -> tuple[BiasState, Info]:
        known, step, noisy = state.known, state.step, released.noisy
        model, levels = state.model, list(state.levels)
        if step.asks == "constant":
            model = model.with_mean(constant_from(known, noisy))
            levels = [_public(counts) for counts in released.counts] or levels
        elif step.asks == "counts":
            levels[step.mode] = _counted(known, step.mode, noisy, levels[step.mode])
        else:
            level = _averaged(state, noisy)
            assert level.biases is not None
            model.mode_biases[step.mode][:] = level.biases.means
            levels[step.mode] = level
        done = state.done + 1
        state = replace(state, model=model, levels=tuple(levels), done=done)
        return state, Info(done, noise=noisy.deviation)

    def finish(self, state: BiasState) -> Multilinear:
        return state.model.copy()

    def own_prior(self, state: BiasState) -> OwnPrior | None:
        known, local = state.known, state.known.shape.local
        if local is None:
            return None
        guesses = [level.biases for level in state.levels]
        return OwnPrior(
            mode=local,
            precisions=np.ones(state.model.ranks[local]),  # of rows that stay zero: designs are
            bias_precision=known.ridge / known.scatter,
            scatter=known.scatter,
            # Entries whose other biases are uncertain tell less about the owner's.
            doubts=tuple(None if guess is None else guess.variances for guess in guesses),
        )


def prefers_laplace(shape: PublicShape, budget: Budget) -> bool:
    """Whether pure biases have less noise than those that use delta too; from public numbers.

    Where entries are the units an entry changes one number of each answer, which suits Laplace noise:
    for few questions and small epsilons it is less than the Gaussian noise that delta allows.
    """
    if budget.pure:
        return True
    pure = PrivateBiases(1 / budget.epsilon, pure=True)
    gaussian = PrivateBiases(gaussian_multiplier(budget))
    known = pure._known(shape)
    if known.unit_mode is not None:
        return False  # clipped in another norm: not to be compared
    both = set(known.shared) & set(gaussian._known(shape).shared)  # one may leave out times
    return pure._error(shape, both) < gaussian._error(shape, both)


# -- what is asked --------------------------------------------------------------------------------


def _label(shape: PublicShape, step: Step) -> str:
    if step.asks == "constant":
        return "constant"
    what = {"counts": "entries", "sums": "residuals"}[step.asks]
    return f"{what} by {shape.modes[step.mode].name}"


def _sweeps(known: Known) -> int:
    """Enough for the modes, and for units' own means, to settle.

    Under pure privacy the noise of T rounds averages out to sqrt(T) times that of one: fewer rounds,
    unless noise hardly matters.
    """
    if known.unit_mode is not None:
        return 3 if known.pure else 6
    if len(known.shared) == 1:
        return 2
    return 4 if not known.pure or _noise_is_small(known) else 2


def _noise_is_small(known: Known) -> bool:
    """Whether average levels of the largest mode would keep nearly all of their means."""
    mode = max(known.shared, key=lambda m: known.shape.sizes[m])
    size = known.shape.sizes[mode]
    entries = known.shape.entries or _USUAL_ENTRIES * size
    share = 1 / (4 * len(known.shared))
    kept = known.reliability(mode, np.array([entries]), known.mechanism(share).deviation(1.0))
    return kept > 0.99


def _mode_shares(known: Known) -> tuple[dict[int, float], tuple[int, float] | None]:
    """Shares of the modes asked about in rounds, and that of the units' own mode if it is released.

    A level of a mode with L levels has about N / L entries. Noise of variance 1/f (1/f^2 where pure)
    in its sum is an error of L^2 / f (L^2 / f^2): the sum over the modes is least for shares
    proportional to L (L^(2/3)). A unit's own row is about the unit alone and drowns in the noise
    that hides it, unless the budget is large: its share is cut by what could be kept of it.
    """
    own = known.unit_mode
    wanted = [n ** (2 / 3 if known.pure else 1.0) for n in known.shape.sizes]
    whole = sum(wanted[m] for m in known.shared)
    if own is None or own == known.shape.local:
        return {m: wanted[m] / whole for m in known.shared}, None
    ones = np.ones(known.shape.sizes[own])
    wanted[own] *= known.reliability(own, ones, known.mechanism(1.0).deviation(1.0))
    whole += wanted[own]
    return {m: wanted[m] / whole for m in known.shared}, (own, wanted[own] / whole)


def _sums_query(state: BiasState) -> SumsQuery:
    mode = state.step.mode
    return _clipped_query(state.known, state.steps, mode, state.levels[mode], state.model)


def _clipped_query(
    known: Known, steps: Sequence[Step], mode: int, level: Learnt, model: Multilinear | None
) -> SumsQuery:
    """Clipping falls where noise is large: it costs less there than noise in proportion to it."""
    counts = np.ones(known.shape.sizes[mode]) if level.counts is None else level.counts.means
    share = sum(step.share for step in steps if step.asks == "sums" and step.mode == mode)
    kept = known.reliability(mode, counts, known.mechanism(share).deviation(1.0))
    if known.unit_mode is None:
        clip = min((1 + kept) * known.spread, 2 * known.half)
        return SumsQuery(known, mode, model, clip, clip, None)
    bound = (0.7 + 0.2 * kept) * known.spread
    # With weights w, the error sum_j n_j / (w_j n_j)^2 is least for w = n^(-2 / (2 + norm)), given the
    # length of an average unit's contribution; not below what noise leaves visible of a count.
    weights = np.maximum(counts, level.count_deviation) ** (-2 / (2 + known.norm))
    weights /= ((counts @ weights**known.norm) / counts.sum()) ** (1 / known.norm)
    return SumsQuery(known, mode, model, 2 * known.spread, bound, weights)


# -- at the data ----------------------------------------------------------------------------------


def _count(known: Known, mode: int, site: Site) -> Array:
    arranged, size = arrange(site, known.unit_mode, known.bounds), known.shape.sizes[mode]
    if known.unit_mode is None:
        return entry_counts(arranged.levels[mode], size)
    return unit_counts(arranged.levels[mode], arranged.starts, size, known.ridge, known.norm)


def count_statistics(query: CountsQuery, site: Site) -> Clipped:
    """How often each level occurs: an entry changes one by one, a unit all by a vector of length one."""
    counts = _count(query.known, query.mode, site)
    if query.known.unit_mode is None:
        return Clipped(counts, 1.0, 1.0, single=True)
    return Clipped(counts, 1.0 if query.known.pure else inf, 1.0)


def sum_statistics(query: SumsQuery, site: Site) -> Clipped:
    """Sums of residuals, with the bound on how much neighbours change them."""
    known, mode, model = query.known, query.mode, query.model
    assert model is not None
    arranged, own = arrange(site, known.unit_mode, known.bounds), known.unit_mode
    # A unit that takes its own mean off does not need its own bias.
    used = [m for m in range(model.order) if m != own or mode == own]
    rest = _residuals(arranged.values, arranged.levels, model, used)
    if query.weights is None:
        sums = entry_sums(arranged.levels[mode], rest, query.clip, known.shape.sizes[mode])
        return Clipped(sums, query.change, query.change, single=True)
    made = Contribution(query.clip, query.bound, known.ridge, mode != own, known.norm)
    sums = unit_sums(arranged.levels[mode], arranged.starts, rest, query.weights, made)
    return Clipped(sums, query.change if known.pure else inf, query.change)


def _residuals(values: Array, levels: Sequence[Array], model: Multilinear, modes: list[int]) -> Array:
    rest = values - model.mean
    for m in modes:
        rest -= model.mode_biases[m][levels[m]]
    return rest


# -- what is made of the answers ------------------------------------------------------------------


def _public(counts: Array) -> Learnt:
    """A level's counts where they are public; never zero, since they are divided by."""
    return Learnt(Guess(np.maximum(counts, 1e-9), np.zeros(counts.shape[0])))


def _counted(known: Known, mode: int, noisy: Noisy, level: Learnt) -> Learnt:
    least, most = _average_count(known, mode)
    average = float(np.clip(noisy.values.mean(), least, most))
    guess = positive_counts(noisy.values, noisy.deviation, average)
    return replace(level, counts=guess, count_deviation=noisy.deviation)


def _average_count(known: Known, mode: int) -> tuple[float, float]:
    """Between which numbers the average count of a mode's levels lies, as far as that is public.

    A unit's counts k over the levels of a mode add up to sum(k) / |k|, which lies between one and the
    root of its entries (and is one in the norm that is clipped for pure privacy).
    """
    size, entries = known.shape.sizes[mode], known.shape.entries
    if known.unit_mode is None:
        return (entries / size, entries / size) if entries else (1.0, inf)
    units = known.shape.sizes[known.unit_mode]
    if known.pure:
        return 0.5 * units / size, units / size
    return 0.5 * units / size, sqrt(units * entries) / size if entries else inf


def _averaged(state: BiasState, noisy: Noisy) -> Learnt:
    """The level's averages with this round's sums, and the biases that they make likely."""
    known, mode, query = state.known, state.step.mode, _sums_query(state)
    level, size = state.levels[mode], known.shape.sizes[mode]
    counts = level.counts or Guess(np.ones(size), np.zeros(size))
    weights = np.ones(size) if query.weights is None else query.weights
    biases = state.model.mode_biases[mode].astype(np.float64)
    sums = noisy.values / weights + counts.means * biases
    noise = (noisy.deviation / weights) ** 2
    rounds = level.rounds + 1
    if level.sums is not None and level.noise is not None:
        keep, step = (rounds - 1) / rounds, 1 / rounds
        sums = keep * level.sums + step * sums
        noise = keep**2 * level.noise + step**2 * noise
    doubt = known.assumed(mode) if level.biases is None else level.biases.variances
    variances = noise + known.scatter * entry_weight(known, counts.means) * counts.means
    variances += _COUNT_DOUBT * counts.variances * doubt
    guess = posterior_biases(sums, variances, counts.means, known.assumed(mode))
    return replace(level, sums=sums, noise=noise, rounds=rounds, biases=guess)


def entry_weight(known: Known, counts: Array) -> float:
    """What an entry counts on average: weighted counts over entries, or from the number of units."""
    if known.unit_mode is None:
        return 1.0
    total, entries = float(counts.sum()), known.shape.entries
    return min(1.0, total / entries if entries else known.shape.sizes[known.unit_mode] / total)
