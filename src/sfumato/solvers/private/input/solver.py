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
from typing import ClassVar, Literal, get_args

import numpy as np

from sfumato.checks import as_pair, check_choice, check_count, check_positive, given
from sfumato.data import prepare
from sfumato.data.channels import Additive, Law, Response, which_cuts
from sfumato.data.tensor import SparseTensor
from sfumato.errors import SettingError
from sfumato.kernels.grid import cut, grid
from sfumato.models.multilinear import Multilinear
from sfumato.privacy.accounting import gaussian_multiplier
from sfumato.privacy.budgets import ZCDP, Budget
from sfumato.privacy.clipping import Clipped, check_range, clip_values
from sfumato.privacy.facts import Facts
from sfumato.privacy.ledger import Charge
from sfumato.privacy.mechanisms import Gaussian, Laplace, Mechanism, Noisy, RandomisedResponse
from sfumato.privacy.passing import cut_for
from sfumato.privacy.units import PrivacyUnit, Unit, UnitValues, Value
from sfumato.records import record
from sfumato.sites.memory import Site
from sfumato.solvers.behind.evidence import Evidence, Frame, Located, PresenceEvidence, TableEvidence
from sfumato.solvers.behind.fitting import Length, Work, usual_length
from sfumato.solvers.least_squares import als
from sfumato.solvers.private.input.placing import (
    Setting,
    best_channel,
    efficiency,
    planned_categories,
    planned_efficiency,
)
from sfumato.solvers.private.input.probe import ProbeQuery, located, probe_share
from sfumato.solvers.protocol import Finished, Info, Run, Silent, SumQuery, WholeQuery, Wish
from sfumato.surface import setting

NoiseLaw = Literal["auto", "response", "laplace", "gaussian"]
_MOST_CELLS = 1 << 22
_MASK = 0.5  # size of the mask's one beside the values' largest magnitude, one


@record
@dataclass(frozen=True)
class CellsQuery(SumQuery):
    """Ask for mask and value of every cell; entries of a cell add up.

    Values are taken from the centre, in half-widths. ``seed`` is that of the choice of entries where a
    level has too many.
    """

    facts: Facts
    seed: int

    def clipped(self, site: Site) -> Clipped:
        facts, (low, high) = self.facts, self.facts.bounds
        tensor, unit = site.tensor, facts.unit
        kept = tensor.with_values(clip_values(tensor.values, low, high), facts.bounds)
        if isinstance(unit, Unit) and unit.max_entries is not None:
            # One entry per cell, so that the entries of a level change different numbers.
            merged = prepare.merge_duplicates(kept, "mean")
            kept = prepare.cap(merged, unit.mode, unit.max_entries, self.seed)
        values = np.clip((kept.values - (low + high) / 2) / ((high - low) / 2), -1.0, 1.0)
        cells, step = np.ravel_multi_index(tuple(kept.coordinates), facts.sizes), grid(1.0)
        sums = np.zeros((2, prod(facts.sizes)), np.int64)
        np.add.at(sums[0], cells, cut(_MASK, step))
        np.add.at(sums[1], cells, cut(values, step))
        return Clipped(sums, *_norms(unit), step)


@record
@dataclass(frozen=True)
class ValuesQuery(WholeQuery):
    """Ask for every value, through a channel; where they were observed is public."""

    facts: Facts
    channel: Response | Additive

    def clipped(self, site: Site) -> Clipped:
        tensor, channel, unit = site.tensor, self.channel, self.facts.unit
        cells = np.asarray(tensor.coordinates)
        changing = unit.max_entries if isinstance(unit, UnitValues) else 1
        which = which_cuts(channel, cells)
        kept = cut_for(channel, tensor.values, self.facts.bounds, changing=changing, which=which)
        return replace(kept, public=(cells,))


@dataclass(frozen=True)
class State:
    """Before the data have answered there is no work to go on with."""

    facts: Facts
    run: Run
    known: Located | None = None  # what the probe has found
    work: Work | None = None


@record
@dataclass(frozen=True)
class InputPerturbation(Silent):
    """Settings of input perturbation.

    Parameters
    ----------
    noise : float
        Scale of the noise; calibrated to a budget. For randomised response, one over epsilon.
    noise_law : str
        "auto", "response" (k-ary randomised response on bins; ``Value`` only), "laplace" or
        "gaussian" (needs a delta). Range and number of bins, and the law under "auto", are those of
        the greatest expected information about an entry's mean, found from public numbers alone.
    step : float or None
        Public spacing of the values where they have one, such as 1 for ratings from 1 to 5. Bins are
        then cut half-way between values; otherwise a fit to few bins would be biased.
    clamp : pair of float or None
        Cut the noisy values to this range (paper W's option); not for randomised response.
    sweeps : int or None
        Sweeps of the fit from each start; by default 100 for small problems, 40 for large ones.
    starts : int or None
        Random starts, of which the likelihood of the released data picks one; by default eight for
        small problems, two for large ones.

    Examples
    --------
    >>> import sfumato as sf
    >>> modes = [sf.Mode("user", 1000), sf.Mode("item", 200)]
    >>> privacy = sf.Privacy(3, unit="value", method=sf.InputPerturbation(step=1.0))
    >>> plan = sf.CP(rank=2, privacy=privacy).plan(
    ...     modes, bounds=(1, 5), entries=50_000
    ... )
    >>> print(plan.explain())
    user 1,000 x item 200: CP of rank 2 with a mean and biases, float64; input
        perturbation, within epsilon 3 for one observed value.
      each value by randomised response on 4 bins, placed by a probe of mean and
          spread, for 0.005 of the budget: 0.48 of its information is left
      1 x mean and spread: Laplace, noise multiplier 66.7; 0.005 of the budget
      1 x values: Randomised Response, epsilon 2.98, categories 4, values 1; 0.99
          of the budget
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

    def check(self, facts: Facts) -> None:
        check_positive(noise=self.noise)
        check_count(**given(sweeps=self.sweeps, starts=self.starts))
        check_choice(get_args(NoiseLaw), noise_law=self.noise_law)
        unit = facts.unit
        if facts.local is not None:
            raise SettingError("this releases every factor: no mode can stay with its owners")
        self._check_options(unit, facts.bounds)
        if self.noise_law == "response" and not isinstance(unit, Value):
            raise SettingError(
                "randomised response protects one value; for this unit use the noise 'laplace', or "
                "'gaussian' with a delta"
            )
        if unit.hides_presence:
            self._check_dense(facts)
        als.ALS().check(facts.shape)

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

    def _check_dense(self, facts: Facts) -> None:
        cells = prod(facts.sizes)
        if cells > _MOST_CELLS:
            raise SettingError(
                f"hiding which cells are observed takes noise on every cell, and there are {cells:,}; "
                f"input perturbation does that up to {_MOST_CELLS:,}. Use gradient perturbation or "
                "private biases, or protect values only (unit 'value')"
            )
        if isinstance(facts.unit, Unit) and facts.unit.max_entries is None:
            raise SettingError(
                f"input perturbation needs a cap on the entries of one {facts.unit.mode}: "
                f"give {setting('max_entries')}, or use gradient perturbation or private biases"
            )

    def suited(self, facts: Facts, budget: Budget) -> InputPerturbation:
        """With "auto" settled where it depends on the budget: Gaussian noise needs a delta.

        Many values change together: Gaussian noise grows with the root of their number, Laplace noise
        with the number. For one value it is never the better one.
        """
        if self.noise_law != "auto" or isinstance(facts.unit, Value) or budget.pure:
            return self
        l1, l2 = _norms(facts.unit)
        gaussian = gaussian_multiplier(budget) * l2 < sqrt(2) * l1 / budget.epsilon
        return replace(self, noise_law="gaussian" if gaussian else "laplace")

    def charges(self, facts: Facts) -> tuple[Charge, ...]:
        what = "mask and value of every cell" if facts.unit.hides_presence else "values"
        values, share = Charge(what, self._mechanism(facts)), self._probe_share(facts)
        if share == 0:
            return (values,)
        noise = self._noise_of(share)
        mechanism = Gaussian(noise) if self._additive_law() == "gaussian" else Laplace(noise)
        return Charge("mean and spread", mechanism), values

    def _probe_share(self, facts: Facts) -> float:
        """Of the budget; zero where the values are all that is asked for."""
        if self.clamp is not None:  # which is about the middle of the bounds
            return 0.0
        return probe_share(facts, self.noise, gaussian=self._additive_law() == "gaussian")

    def _noise_of(self, share: float) -> float:
        """Of a question that has this share: together they cost what one of ``noise`` does."""
        return self.noise / (sqrt(share) if self._additive_law() == "gaussian" else share)

    def _mechanism(self, facts: Facts) -> Mechanism:
        """That of the values."""
        unit, noise = facts.unit, self._noise_of(1 - self._probe_share(facts))
        if isinstance(unit, Value) and "response" in self._laws(facts):
            setting = self._setting(facts)
            if setting.categories is not None:
                return RandomisedResponse(1 / noise, setting.categories)
            channel = self.channel(facts)
            if isinstance(channel, Response):
                return RandomisedResponse(1 / noise, channel.categories)
        if self._additive_law() == "gaussian":
            return Gaussian(noise)
        return Laplace(noise, single=isinstance(unit, Value))

    def rounds(self, facts: Facts) -> int:
        return len(self.charges(facts)) + self._length(facts).rounds

    def _length(self, facts: Facts) -> Length:
        dense = facts.unit.hides_presence
        cells = prod(facts.sizes) if dense else facts.entries or 0
        usual = usual_length(facts.shape, cells, dense=dense)
        return Length(_default(self.sweeps, usual.sweeps), _default(self.starts, usual.starts))

    def adds_up(self, facts: Facts) -> bool:
        return facts.unit.hides_presence  # noisy values belong to cells, which several sites share

    def assumes(self, facts: Facts) -> tuple[str, ...]:  # noqa: ARG002
        return () if self.step is None else (f"that values are {self.step:g} apart is public",)

    def in_words(self, facts: Facts) -> tuple[str, ...]:
        """What each value passes, and what is asked before, for units that leave positions public."""
        if facts.unit.hides_presence:
            return ()
        share, mechanism = self._probe_share(facts), self._mechanism(facts)
        law = {Gaussian: "Gaussian noise", Laplace: "Laplace noise"}.get(type(mechanism), "")
        if isinstance(mechanism, RandomisedResponse):
            law = f"randomised response on {mechanism.categories} bins"
        placed = "placed for the middle of the bounds"
        if share:
            placed = f"placed by a probe of mean and spread, for {share:.2g} of the budget"
        return (f"each value by {law}, {placed}: {self.passed(facts):.2g} of its information is left",)

    # -- what is released -----------------------------------------------------------------------

    def _additive_law(self) -> Law:
        """The law of noise on real numbers; "auto" takes the one that needs no delta."""
        return "gaussian" if self.noise_law == "gaussian" else "laplace"

    def _laws(self, facts: Facts) -> tuple[str, ...]:
        """Among which the channel is chosen. Where values are known to lie, responses always win."""
        if self.noise_law == "response":
            return ("response",)
        if self.noise_law == "auto" and isinstance(facts.unit, Value) and self.clamp is None:
            return ("response",) if self._probe_share(facts) else ("response", "laplace")
        return (self._additive_law(),)

    def _setting(self, facts: Facts, known: Located | None = None) -> Setting:
        unit, (low, high), share = facts.unit, facts.bounds, self._probe_share(facts)
        values = unit.max_entries if isinstance(unit, UnitValues) else 1
        setting = Setting(
            bounds=(float(low), float(high)),
            noise=self._noise_of(1 - share),
            spread=facts.public_spread,
            step=self.step,
            values=values,
            clamp=self.clamp,
            known=known,
        )
        return setting._replace(categories=planned_categories(setting)) if share else setting

    def channel(self, facts: Facts, known: Located | None = None) -> Response | Additive:
        """What each value passes, for units that leave positions public; ``known`` from the probe."""
        return best_channel(self._setting(facts, known), self._laws(facts))

    def passed(self, facts: Facts) -> float:
        """Share of the values' information that is expected to pass, where positions are public."""
        setting, laws = self._setting(facts), self._laws(facts)
        if self._probe_share(facts):
            return planned_efficiency(setting.noise, laws)
        return efficiency(best_channel(setting, laws), setting)

    def init(self, run: Run, facts: Facts) -> State:
        self.check(facts)
        return State(facts, run)

    def ask(self, state: State) -> ProbeQuery | CellsQuery | ValuesQuery:
        facts = state.facts
        if facts.unit.hides_presence:
            return CellsQuery(facts, state.run.seed)
        if self._probe_share(facts) and state.known is None:
            return ProbeQuery(facts)
        return ValuesQuery(facts, self.channel(facts, state.known))

    def _evidence(self, state: State, released: Noisy) -> Evidence:
        facts, known = state.facts, state.known
        unit, bounds = facts.unit, facts.bounds
        if not unit.hides_presence:
            channel = self.channel(facts, known)
            which = which_cuts(channel, released.public[0])
            frame = Frame.within(bounds, self.step, known, channel.resolution)
            return TableEvidence(channel, released.values, frame, which)
        (l1, l2), law = _norms(unit), self._additive_law()
        scale = self.noise * (l2 if law == "gaussian" else l1)
        mask, value = released.values
        scales = (scale / _MASK, scale)
        return PresenceEvidence(mask / _MASK, value, law, scales, bounds, facts.entries)

    # -- the fit: post-processing ---------------------------------------------------------------

    def update(self, state: State, released: Noisy | None) -> tuple[State, Info]:
        if released is not None and self._probe_share(state.facts) and state.known is None:
            return replace(state, known=located(state.facts, released)), Info(0)
        if released is not None:
            return replace(state, work=self._begun(state, released)), Info(0)
        work, info = _answered(state).swept()
        return replace(state, work=work), info

    def _begun(self, state: State, released: Noisy) -> Work:
        facts, run = state.facts, state.run
        site = Site(_cells(facts, released), run.threads)
        evidence = self._evidence(state, released)
        return Work.begun(facts.shape, run, self._length(facts), site, evidence)

    def finish(self, state: State) -> Finished[Multilinear]:
        """Every row is released."""
        return Finished(_answered(state).best.model)


def _answered(state: State) -> Work:
    if state.work is None:
        raise SettingError("the first round has to be answered by the data")
    return state.work


def _cells(facts: Facts, released: Noisy) -> SparseTensor:
    """The cells that released numbers are about: those observed, where that is public, or all."""
    if released.public:
        (cells,) = released.public
    else:
        cells = np.indices(facts.sizes, np.int32).reshape(len(facts.sizes), -1)
    zeros = np.zeros(cells.shape[1], facts.shape.dtype)
    return SparseTensor(cells, zeros, facts.modes, _checked=True)


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


def make(facts: Facts, wish: Wish) -> InputPerturbation:
    """The solver of the method "input"."""
    law, budget = wish.law, wish.budget
    if law == "gaussian" and wish.budget.pure:
        raise SettingError("Gaussian noise gives no pure epsilon: name a delta, such as 1e-6")
    if law == "auto" and isinstance(budget, ZCDP):
        law = "gaussian"
    solver = InputPerturbation(noise_law=law, step=wish.step)  # type: ignore[arg-type]
    solver.check(facts)
    return solver.suited(facts, budget) if isinstance(budget, Budget) else solver
