"""Input perturbation: noise once, at the data; everything after it is post-processing.

Paper W's first placement with a guarantee that holds: public bounds instead of the data's own, the
noise sized by the unit of privacy, and a fit that knows what was done to the values. What is released
depends on the unit:

==============  ===================================================================================
``Value``       each value by randomised response on bins, or with Laplace or Gaussian noise
``UnitValues``  each value with Laplace or Gaussian noise, for all values of a level that may change
``Entry``       a noisy mask and a noisy masked value at every cell, observed or not
``Unit``        the same, for at most ``max_entries`` entries of a level
==============  ===================================================================================

Proof: ``proofs/input.md``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod, sqrt
from typing import ClassVar, Literal, NamedTuple, get_args

import numpy as np

from sfumato.checks import as_pair, check_choice, check_count, check_positive, given
from sfumato.data import prepare
from sfumato.data.tensor import SparseTensor
from sfumato.errors import SettingError
from sfumato.models.multilinear import Multilinear
from sfumato.privacy.budgets import Budget
from sfumato.privacy.clipping import Clipped, check_range, clip_values
from sfumato.privacy.ledger import Charge, Draw
from sfumato.privacy.mechanisms import Gaussian, Laplace, Mechanism, RandomisedResponse
from sfumato.privacy.units import PrivacyUnit, Unit, UnitValues, Value
from sfumato.sites.memory import Site
from sfumato.solvers.least_squares import als
from sfumato.solvers.private.input.channel import (
    Additive,
    Evidence,
    Law,
    PresenceEvidence,
    Response,
    Setting,
    TableEvidence,
    best_channel,
)
from sfumato.solvers.private.input.scoring import (
    Constant,
    Fit,
    begin,
    constant_model,
    fit_constant,
    sweep,
)
from sfumato.solvers.protocol import Info, PublicShape
from sfumato.surface import setting
from sfumato.types import Array

NoiseLaw = Literal["auto", "response", "laplace", "gaussian"]
_MOST_CELLS = 1 << 22
_FEW_CELLS = 1 << 17
_UNITS = 2.0**24
_SMALL_MODEL = 4096  # parameters up to which several starts cost little
_CLEARLY = 3.0  # what a model's bound must gain on the constant's: odds of twenty to one
_MASK = 0.5  # size of the mask's one beside the values' largest magnitude, one


class Query(NamedTuple):
    """The public shape, and the seed of the choice where a level has too many entries."""

    shape: PublicShape
    seed: int


class Released(NamedTuple):
    """Numbers that left the data, and the cells that they are about: public, or all there are."""

    cells: SparseTensor
    numbers: Array


class Best(NamedTuple):
    """The best model so far, with its bound on the log-likelihood of what was released."""

    model: Multilinear
    bound: float


@dataclass(frozen=True)
class Work:
    """What the fit has at hand once the data have answered."""

    site: Site
    evidence: Evidence
    constant: Constant
    best: Best
    fit: Fit | None = None
    completed: int = 0


@dataclass(frozen=True)
class State:
    shape: PublicShape
    seed: int
    work: Work | None = None


@dataclass(frozen=True)
class InputPerturbation:
    """Settings of input perturbation.

    Parameters
    ----------
    noise : scale of the noise; calibrated to a budget. For randomised response, one over epsilon.
    noise_law : "auto", "response" (k-ary randomised response on bins; ``Value`` only), "laplace" or
        "gaussian" (needs a delta). Range and number of bins, and the law under "auto", are those of
        the greatest expected information about an entry's mean, found from public numbers alone.
    step : public spacing of the values where they have one, such as 1 for ratings from 1 to 5. Bins
        are then cut half-way between values; otherwise a fit to few bins would be biased.
    clamp : cut the noisy values to this range (paper W's option); not for randomised response.
    sweeps : sweeps of the fit from each start; by default 100 for small problems, 40 for large ones.
    starts : random starts, of which the likelihood of the released data picks one; by default eight
        for small problems, two for large ones.
    """

    noise: float = 1.0
    noise_law: NoiseLaw = "auto"
    step: float | None = None
    clamp: tuple[float, float] | None = None
    sweeps: int | None = None
    starts: int | None = None

    name: ClassVar[str] = "input perturbation"
    proof: ClassVar[str] = "proofs/input.md"
    proven: ClassVar[bool] = True
    exact: ClassVar[bool] = True

    # -- what it promises -----------------------------------------------------------------------

    def check(self, shape: PublicShape) -> None:
        check_positive(noise=self.noise)
        check_count(**given(sweeps=self.sweeps, starts=self.starts))
        check_choice(get_args(NoiseLaw), noise_law=self.noise_law)
        unit, bounds = _public(shape)
        check_range(*bounds)
        if shape.local is not None:
            raise SettingError("this releases every factor: no mode can stay with its owners")
        self._check_options(unit, bounds)
        if self.noise_law == "response" and not isinstance(unit, Value):
            raise SettingError(
                "randomised response protects one value; for this unit use the noise 'laplace', or "
                "'gaussian' with a delta"
            )
        if unit.hides_presence:
            self._check_dense(shape)
        als.ALS().check(shape)

    def _check_options(self, unit: PrivacyUnit, bounds: tuple[float, float]) -> None:
        low, high = bounds
        if self.step is not None:
            check_positive(step=self.step)
            steps = (high - low) / self.step
            if round(steps) < 1 or abs(steps - round(steps)) > 1e-6:
                raise SettingError(f"a step of {self.step:g} does not lead from {low:g} to {high:g}")
        if self.clamp is not None:
            clamp = as_pair("clamp", self.clamp, "two numbers, the lower one first")
            check_range(*clamp)
            if unit.hides_presence or self.noise_law == "response":
                raise SettingError("only values with noise added to them can be clamped")
            if not clamp[0] < (low + high) / 2 < clamp[1]:
                raise SettingError("a clamp has to hold the middle of the bounds")

    def _check_dense(self, shape: PublicShape) -> None:
        cells = prod(shape.sizes)
        if cells > _MOST_CELLS:
            raise SettingError(
                f"hiding which cells are observed takes noise on every cell, and there are {cells:,}; "
                f"input perturbation does that up to {_MOST_CELLS:,}. Use gradient perturbation or "
                "private biases, or protect values only (unit 'value')"
            )
        if isinstance(shape.unit, Unit) and shape.unit.max_entries is None:
            raise SettingError(
                f"input perturbation needs a cap on the entries of one {shape.unit.mode}: "
                f"give {setting('max_entries')}, or use gradient perturbation or private biases"
            )

    def suited(self, shape: PublicShape, budget: Budget) -> InputPerturbation:
        """With "auto" settled where it depends on the budget: Gaussian noise needs a delta.

        Many values change together: Gaussian noise grows with the root of their number, Laplace noise
        with the number. For one value it is never the better one.
        """
        if self.noise_law != "auto" or isinstance(shape.unit, Value) or budget.pure:
            return self
        from sfumato.privacy.accounting import gaussian_multiplier

        l1, l2 = _norms(_public(shape)[0])
        gaussian = gaussian_multiplier(budget) * l2 < sqrt(2) * l1 / budget.epsilon
        return replace(self, noise_law="gaussian" if gaussian else "laplace")

    def charges(self, shape: PublicShape) -> tuple[Charge, ...]:
        unit, _ = _public(shape)
        what = "mask and value of every cell" if unit.hides_presence else "values"
        return (Charge(what, self._mechanism(shape)),)

    def _mechanism(self, shape: PublicShape) -> Mechanism:
        unit, _ = _public(shape)
        if isinstance(unit, Value):
            channel = self.channel(shape)
            if isinstance(channel, Response):
                return RandomisedResponse(1 / self.noise, channel.categories)
        if self._additive_law() == "gaussian":
            return Gaussian(self.noise)
        return Laplace(self.noise, single=isinstance(unit, Value))

    def rounds(self, shape: PublicShape) -> int:
        sweeps, starts = self._length(shape)
        return 1 + starts * sweeps

    def _length(self, shape: PublicShape) -> tuple[int, int]:
        """Sweeps of a start, and starts."""
        model = shape.make_model(shape.sizes, shape.dtype)
        parameters = sum(n * r for n, r in zip(model.shape, model.ranks, strict=True))
        dense = prod(shape.sizes) if _public(shape)[0].hides_presence else 0
        small = parameters <= _SMALL_MODEL and dense <= _FEW_CELLS
        sweeps, starts = (100, 8) if small else (40, 2)
        return _default(self.sweeps, sweeps), _default(self.starts, starts)

    def assumes(self, shape: PublicShape) -> tuple[str, ...]:  # noqa: ARG002
        return () if self.step is None else (f"that values are {self.step:g} apart is public",)

    # -- what is released -----------------------------------------------------------------------

    def _additive_law(self) -> Law:
        """The law of noise on real numbers; "auto" takes the one that needs no delta."""
        return "gaussian" if self.noise_law == "gaussian" else "laplace"

    def channel(self, shape: PublicShape) -> Response | Additive:
        """What each value passes, for units that leave positions public."""
        unit, (low, high) = _public(shape)
        values = unit.max_entries if isinstance(unit, UnitValues) else 1
        setting = Setting(
            (float(low), float(high)), self.noise, shape.spread, self.step, values, self.clamp
        )
        laws: tuple[str, ...] = (self._additive_law(),)
        if self.noise_law == "response":
            laws = ("response",)
        elif self.noise_law == "auto" and isinstance(unit, Value) and self.clamp is None:
            laws = ("response", "laplace")
        return best_channel(setting, laws)

    def init(self, seed: int, shape: PublicShape) -> State:
        self.check(shape)
        return State(shape, seed)

    def ask(self, state: State) -> Query:
        return Query(state.shape, state.seed)

    def answer(self, query: Query, site: Site, draw: Draw) -> Released:
        shape, tensor = query.shape, site.tensor
        unit, bounds = _public(shape)
        if unit.hides_presence:
            return Released(_all_cells(shape), draw.release(dense_sums(tensor, query)).values)
        channel = self.channel(shape)
        if isinstance(channel, Response):
            bins = channel.bins(clip_values(tensor.values, *bounds).values)
            noisy = draw.release(Clipped(bins, 1.0, 1.0, single=True))
            return Released(_without_values(tensor), noisy.values)
        kept = clip_values(tensor.values, channel.low, channel.high)
        l1, l2 = (norm * (channel.high - channel.low) for norm in _norms(unit))
        clipped = Clipped(kept.values, l1, l2, single=isinstance(unit, Value))
        return Released(_without_values(tensor), draw.release(clipped).values)

    def _evidence(self, shape: PublicShape, released: Released) -> Evidence:
        unit, bounds = _public(shape)
        if not unit.hides_presence:
            return TableEvidence(self.channel(shape), released.numbers, bounds)
        (l1, l2), law = _norms(unit), self._additive_law()
        scale = self.noise * (l2 if law == "gaussian" else l1)
        mask, value = released.numbers
        scales = (scale / _MASK, scale)
        return PresenceEvidence(mask / _MASK, value, law, scales, bounds, shape.entries)

    # -- the fit: post-processing ---------------------------------------------------------------

    def update(self, state: State, released: Released | None) -> tuple[State, Info]:
        if released is not None:
            return replace(state, work=self._begun(state.shape, released)), Info(0)
        work = state.work
        if work is None:
            raise SettingError("the first round has to be answered by the data")
        sweeps, _ = self._length(state.shape)
        start, done = divmod(work.completed, sweeps)
        fit = work.fit
        if done == 0 or fit is None:
            # Where rows have few entries the cautious start wins, where components are weak the others.
            eager, seed = start > 0, state.seed + start
            fit = begin(seed, state.shape, work.constant, work.evidence, eager=eager)
        fit = sweep(fit, work.evidence, work.site, sweeps)
        best = work.best
        if done == sweeps - 1 and fit.bound > best.bound:
            best = Best(fit.inner.model, fit.bound)
        completed = work.completed + 1
        info = Info(completed, noise=float(work.evidence.deviations[fit.level]))
        return replace(state, work=replace(work, fit=fit, best=best, completed=completed)), info

    def _begun(self, shape: PublicShape, released: Released) -> Work:
        evidence = self._evidence(shape, released)
        constant = fit_constant(evidence, released.cells.n_entries, shape.fit_mean)
        best = Best(constant_model(shape, constant), constant.bound + _CLEARLY)
        return Work(Site(released.cells, shape.threads), evidence, constant, best)

    def finish(self, state: State) -> Multilinear:
        if state.work is None:
            raise SettingError("there is nothing to finish before the data have answered")
        return state.work.best.model

    def own_prior(self, state: State) -> None:
        """Nothing: every row is released."""


def _public(shape: PublicShape) -> tuple[PrivacyUnit, tuple[float, float]]:
    """Unit and bounds, which a private fit cannot do without."""
    if shape.unit is None:
        raise SettingError("input perturbation needs a unit of privacy")
    if shape.bounds is None:
        raise SettingError("input perturbation needs public bounds of the values: bounds=(low, high)")
    return shape.unit, shape.bounds


def _default(given: int | None, usual: int) -> int:
    return usual if given is None else given


def _norms(unit: PrivacyUnit) -> tuple[float, float]:
    """How far neighbours lie apart, in L1 and L2, where one value's range is one.

    Where presence is hidden, an entry is a mask of size ``_MASK`` and a value of size up to one.
    """
    if isinstance(unit, Value):
        return 1.0, 1.0
    if isinstance(unit, UnitValues):
        return float(unit.max_entries), sqrt(unit.max_entries)
    entries = (unit.max_entries or 1) if isinstance(unit, Unit) else 1
    return entries * (1 + _MASK), sqrt(entries * (1 + _MASK**2))


def dense_sums(tensor: SparseTensor, query: Query) -> Clipped:
    """Mask and value (from the centre, in half-widths) of every cell; entries of a cell add up."""
    unit, bounds = _public(query.shape)
    low, high = bounds
    kept = tensor.with_values(clip_values(tensor.values, low, high).values, bounds)
    if isinstance(unit, Unit) and unit.max_entries is not None:
        # One entry per cell, so that the entries of a level change different numbers.
        merged = prepare.merge_duplicates(kept, "mean")
        kept = prepare.cap(merged, unit.mode, unit.max_entries, query.seed)
    values = np.clip((kept.values - (low + high) / 2) / ((high - low) / 2), -1.0, 1.0)
    values = np.round(values * _UNITS) / _UNITS  # so that the sums of a cell's entries are exact
    cells = np.ravel_multi_index(tuple(kept.coordinates), query.shape.sizes)
    count = prod(query.shape.sizes)
    mask = np.bincount(cells, minlength=count) * _MASK
    return Clipped(np.stack([mask, np.bincount(cells, values, count)]), *_norms(unit))


def _without_values(tensor: SparseTensor) -> SparseTensor:
    """The cells alone: the values stay where they are."""
    return tensor.with_values(np.zeros_like(tensor.values))


def _all_cells(shape: PublicShape) -> SparseTensor:
    cells = np.indices(shape.sizes, np.int32).reshape(len(shape.sizes), -1)
    return SparseTensor(cells, np.zeros(cells.shape[1], shape.dtype), shape.modes, _checked=True)
