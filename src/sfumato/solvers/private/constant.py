"""The best constant under privacy: what every other private fit begins with, and has to beat.

Proof: ``proofs/biases.md``. For any order and all four units.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf, sqrt
from typing import ClassVar, NamedTuple

import numpy as np

from sfumato.kernels.grid import cut, grid
from sfumato.models.doubts import Doubts
from sfumato.models.multilinear import Multilinear
from sfumato.models.told import Told
from sfumato.privacy.clipping import Clipped
from sfumato.privacy.facts import Facts
from sfumato.privacy.ledger import Charge
from sfumato.privacy.mechanisms import Noisy
from sfumato.privacy.units import UnitValues
from sfumato.records import record
from sfumato.sites.memory import Site
from sfumato.solvers.private.contributions import entries_of, row_of, taken_off
from sfumato.solvers.private.known import Known
from sfumato.solvers.protocol import Finished, Info, Run, Silent, SumQuery, Wish
from sfumato.types import Array

COUNTED = grid(1.0)  # what counts are multiples of: noise on whole numbers would be too coarse
_CONSTANT_ERROR = 0.03  # noise that the constant may have, over the spread of the values
_MOST_ERROR = 0.3  # the same where rows of a mode are local: units without entries are left with it
_LEAST_CONSTANT, _MOST_CONSTANT = 0.01, 0.9  # its share of the budget


@record
@dataclass(frozen=True)
class ConstantQuery(SumQuery):
    """Ask for the sum of values from the middle of the bounds, and the number of values.

    A unit adds its mean and one; in part where it has few entries. Where positions are public, so are
    the number and how often each level of each mode occurs.
    """

    known: Known

    def clipped(self, site: Site) -> Clipped:
        known, facts = self.known, self.known.facts
        entries, half, step = entries_of(site, facts), facts.half, grid(facts.half)
        taken = taken_off(facts, facts.middle, (), ())
        if entries.by_unit:
            sums = site.contributions.means_of_units(
                entries, taken, half, known.full_entries, site.threads
            )
        else:
            number = entries.values.shape[0] * cut(half, step)
            sums = np.append(
                site.contributions.total_of_entries(entries, taken, half, site.threads), number
            )
        l1, l2 = change(known)
        if facts.unit.hides_presence:
            return Clipped(sums, l1, l2, step)
        counted = (count(known, mode, site) for mode in range(len(facts.modes)))
        return Clipped(sums[:1], l1, l2, step, single=True, public=(sums[1:], *counted))


def count(known: Known, mode: int, site: Site) -> Array:
    """How often each level of a mode occurs, as units are counted, in steps of ``COUNTED``."""
    facts = known.facts
    entries, row, size = entries_of(site, facts), row_of(facts, mode), facts.sizes[mode]
    if entries.by_unit:
        by_unit = site.contributions.unit_counts
        sums: Array = by_unit(entries, row, size, known.ridge, known.norm, site.threads)
        return sums
    counts: Array = site.contributions.entry_counts(entries, row, size) * cut(1.0, COUNTED)
    return counts


def change(known: Known) -> tuple[float, float]:
    """How much neighbours change the constant's sums, in the L1 and in the L2 norm."""
    unit, half = known.facts.unit, known.facts.half
    if unit.hides_presence:
        return 2 * half, sqrt(2) * half
    changed = unit.max_entries / known.full_entries if isinstance(unit, UnitValues) else 1.0
    bound = 2 * half * min(1.0, changed) + 2 * grid(half)  # both are cut to the grid
    return bound, bound


def constant_deviation(known: Known, share: float) -> float:
    """Standard deviation of the noise in the sum that the constant is made of."""
    return known.mechanism(share).deviation(change(known)[0 if known.pure else 1])


class Constant(NamedTuple):
    """The mean, of how many values or units it is one, and how far noise may have moved it."""

    mean: float
    number: float
    error: float


def constant_from(known: Known, noisy: Noisy) -> Constant:
    """The mean: where the noise drowns it the middle of the bounds, or in an update no change."""
    half, total = known.facts.half, noisy.values[0]
    weight = noisy.public[0][0] * grid(half) if noisy.public else noisy.values[1]
    number = max(float(weight) / half, 1.0)
    # A number that is nothing but noise may be huge: it tells no more than there can be units.
    units = (
        known.facts.entries
        if known.facts.unit_mode is None
        else known.facts.sizes[known.facts.unit_mode]
    )
    signal = (min(number, units or inf) * half / 2) ** 2
    error, before, home = noisy.deviation / number, known.facts.before, known.facts.middle
    kept, offset = signal / (signal + noisy.deviation**2), float(total) / number
    if before is not None:  # the last release was taken off
        kept = before.mean_error**2 / (before.mean_error**2 + error**2)
        home, offset = 0.0, home + offset
    offset = float(np.clip(offset * kept, -half, half))
    return Constant(home + offset, number, sqrt(kept) * error)


def constant_share(known: Known) -> float:
    """Of the budget: what keeps the constant's noise small beside the values' spread.

    Owners of local rows make up for it, as far as their own entries outweigh the prior.
    """
    facts = known.facts
    bound = (2 if known.pure else sqrt(2)) * facts.half
    allowed = _CONSTANT_ERROR
    if facts.local is not None:
        own = facts.least_entries / facts.sizes[facts.local]
        allowed = min(allowed * (1 + own / known.ridge), _MOST_ERROR)
    error = known.mechanism(1.0).deviation(bound) / (facts.least_units * allowed * facts.spread)
    share = float(np.clip(error if known.pure else error**2, _LEAST_CONSTANT, _MOST_CONSTANT))
    if facts.before is None:
        return share
    # Periods before have told it: by how many there were, not by what they said, which is no plan's.
    return max(share / (1 + facts.before.periods) ** 2, _LEAST_CONSTANT)


@dataclass(frozen=True)
class ConstantState:
    known: Known
    model: Multilinear
    error: float = inf

    @property
    def told(self) -> Told:
        """What was told before, but for the mean: levels make up for what that has changed."""
        before = self.known.moved(self.model.mean).facts.before
        if before is None:
            return Told(mean_error=self.error, levels=(None,) * self.model.order)
        return replace(before, mean_error=self.error, periods=before.periods + 1)


@record
@dataclass(frozen=True)
class PrivateConstant(Silent):
    """The best constant, in one draw.

    Parameters
    ----------
    noise : float
        Noise multiplier, found from the budget.
    pure : bool
        Laplace noise, for a budget without delta; else Gaussian.

    Examples
    --------
    >>> import sfumato as sf
    >>> modes = [sf.Mode("user", 1000), sf.Mode("item", 200)]
    >>> public = sf.Public(labels=True, entries=50_000)
    >>> method = sf.PrivateConstant()
    >>> privacy = sf.Privacy(
    ...     3, 1e-6, unit="entry", local=None, public=public, method=method
    ... )
    >>> plan = sf.CP(privacy=privacy).plan(modes, bounds=(1, 5))
    >>> print(plan.explain())
    user 1,000 x item 200: CP of rank 8 with a mean and biases, float64; private
        constant, within epsilon 3, delta 1e-06 for one entry, its presence
        included.
      1 x constant: Gaussian, noise multiplier 1.54
    """

    noise: float = 1.0
    pure: bool = False

    name: ClassVar[str] = "private constant"
    always_fits: ClassVar[tuple[str, ...]] = ("mean",)
    proof: ClassVar[str] = "proofs/biases.md"
    proven: ClassVar[bool] = True
    knows_doubts: ClassVar[bool] = True
    exact: ClassVar[bool] = True

    def _known(self, facts: Facts) -> Known:
        return Known(facts, self.noise, self.pure)

    def check(self, facts: Facts) -> None:
        self._known(facts).check()

    def charges(self, facts: Facts) -> tuple[Charge, ...]:
        return (Charge("constant", self._known(facts).mechanism(1.0)),)

    def rounds(self, facts: Facts) -> int:  # noqa: ARG002
        return 1

    def init(self, run: Run, facts: Facts) -> ConstantState:  # noqa: ARG002
        self.check(facts)
        return ConstantState(self._known(facts), facts.shape.zeros())

    def ask(self, state: ConstantState) -> ConstantQuery:
        return ConstantQuery(state.known)

    def update(self, state: ConstantState, released: Noisy) -> tuple[ConstantState, Info]:
        found = constant_from(state.known, released)
        state = replace(state, model=state.model.with_mean(found.mean), error=found.error)
        return state, Info(1, noise=released.deviation)

    def finish(self, state: ConstantState) -> Finished[Multilinear]:
        """Owners are predicted the constant too: they have nothing to solve."""
        none = (None,) * state.model.order
        known = Doubts(scatter=state.known.facts.spread**2, noise=none, data=none, counts=none)
        return Finished(state.model, doubts=known, told=state.told)


def make(facts: Facts, wish: Wish) -> PrivateConstant:  # noqa: ARG001
    """The solver of the method "constant"."""
    return PrivateConstant(pure=wish.budget.pure)
