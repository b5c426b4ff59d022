"""Settings chosen by looking at the data, and paid for: repeat and select over candidate plans.

The entries are divided by their labels into those that are fitted to and those held out. A run fits
one of the candidates, chosen at random, and draws its error at the held-out entries; after a random
number of runs the model with the least noisy error is released. All of it is one charge, sized
before any data is seen. Proof: ``proofs/tuning.md``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import sqrt
from typing import Any, ClassVar, NamedTuple, Self, TypeVar

import numpy as np

from sfumato.data import prepare
from sfumato.data.tensor import SparseTensor
from sfumato.engines.local import Local
from sfumato.errors import SettingError
from sfumato.fit.completion import Drawn, PrivateFit, draw_all
from sfumato.fit.loop import Progress
from sfumato.fit.plan import PrivatePlan, Promise, check_covered
from sfumato.kernels.grid import cut, grid
from sfumato.models.multilinear import Multilinear
from sfumato.privacy.accounting import calibrate, gaussian_multiplier
from sfumato.privacy.budgets import Budget
from sfumato.privacy.clipping import Clipped
from sfumato.privacy.entropy import Entropy
from sfumato.privacy.facts import Facts
from sfumato.privacy.guarantee import Guarantee
from sfumato.privacy.ledger import Charge, Ledger, Reservation
from sfumato.privacy.mechanisms import Gaussian, Laplace
from sfumato.privacy.selection import RunCharges, SelectBest, select_best
from sfumato.records import record
from sfumato.sites.memory import Site
from sfumato.solvers.protocol import DivergedError
from sfumato.surface import either

PROOF = "proofs/tuning.md"
_SCORE_SHARE = 0.1  # of what a fit costs, for its score, where both see the same unit
_USUAL_RATIO = 1.6  # of the search's epsilon to a run's


# -- what a run is judged by ----------------------------------------------------------------------


@dataclass(frozen=True)
class HeldOutError:
    """The error of a model at held-out entries, as one number that a unit can hardly change.

    Squared errors are cut at ``reach`` and counted from -1/2 (none) to 1/2. Where all entries of a
    level of the mode ``group`` may change together, with the unit or through the row that they share,
    they count as their mean, or less where they are fewer than ``full``.
    """

    bounds: tuple[float, float]
    reach: float
    replaces: bool
    group: int | None
    full: float

    @classmethod
    def of(cls, facts: Facts, holdout: float) -> HeldOutError:
        unit, bounds = facts.unit, facts.bounds
        reach = min(facts.width, 2 * facts.spread)
        group = facts.local if facts.unit_mode is None else facts.unit_mode
        # One entry of an owner changes the owner's row, and with it all errors of that row.
        replaces = unit.replaces or (unit.mode is None and group is not None)
        levels = 1 if group is None else facts.sizes[group]
        full = max(1.0, holdout * (facts.entries or 0) / levels)
        return cls(bounds, reach, replaces, group, full)

    @property
    def alone(self) -> bool:
        """Whether what a held-out entry adds depends on no entry but itself."""
        return self.group is None

    def statistic(self, model: Multilinear, held_out: Site) -> Clipped:
        """The sum over entries, or over levels, and how much neighbours change it."""
        tensor = held_out.tensor
        predicted = np.clip(model.predict(tensor.coordinates, threads=held_out.threads), *self.bounds)
        misses = (np.clip(tensor.values, *self.bounds) - predicted) / self.reach
        added = np.minimum(np.square(misses), 1.0) - 0.5
        added[np.isnan(added)] = 0.5
        if self.group is not None:
            levels, size = tensor.coordinates[self.group], tensor.shape[self.group]
            counts = np.bincount(levels, minlength=size)
            added = np.bincount(levels, added, size) / np.maximum(counts, self.full)
        # On a grid, so that the sum is exact: one contribution more changes it by that and no more.
        total = cut(np.clip(added, -0.5, 0.5), grid(0.5)).sum()
        bound = 1.0 if self.replaces else 0.5
        return Clipped(np.array([total]), bound, bound, grid(0.5), single=True)


# -- the plan -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Search(ABC):
    """Which plans are candidates of a search: a task of its own, whose charge covers any number of runs.

    Each plan has a budget of its own for one run, the same for all; ``noise`` is one over its epsilon.
    """

    plans: tuple[PrivatePlan[Any], ...]
    run_budget: Budget
    holdout: float
    repetitions: int

    held_out: ClassVar[str]  # what candidates are compared at

    @property
    @abstractmethod
    def disjoint(self) -> bool:
        """Whether what neighbours differ in is either learnt from or held out, never both."""

    @cached_property
    def mechanism(self) -> SelectBest:
        noise = _score_noise(self.run_budget, 1.0 if self.disjoint else _SCORE_SHARE)
        charge = Charge(f"error at held-out {self.held_out}", noise)
        runs = tuple(RunCharges(plan.charges, charge) for plan in self.plans)
        return SelectBest(runs, self.repetitions, self.disjoint)

    # -- as a task ------------------------------------------------------------------------------

    @property
    def noise(self) -> float:
        return 1 / self.run_budget.epsilon

    def with_noise(self, noise: float) -> Self:
        """Candidates depend on a run's budget in more than their noise: see :func:`make_search`."""
        raise SettingError(f"a search cannot be given noise {noise:g}: plan it anew")

    def check(self) -> None:
        if not 0 < self.holdout < 1:
            raise SettingError(
                f"holdout is a share of the {self.held_out} between 0 and 1, got {self.holdout}"
            )
        _ = self.mechanism  # too few candidates, or an impossible number of runs
        if not self.promise.proven:
            raise SettingError("candidates whose privacy is only claimed cannot be chosen among")

    @property
    def unit(self) -> Any:
        return self.plans[0].task.unit

    @property
    def units(self) -> int | None:
        units: int | None = self.plans[0].task.units
        return units

    @property
    def charges(self) -> tuple[Charge, ...]:
        """One charge, whatever number of runs comes out."""
        return (Charge(f"best of {len(self.plans)} candidates, repeat and select", self.mechanism),)

    @property
    def rounds(self) -> int:
        return 1

    @property
    def in_words(self) -> str:
        return f"The best of runs of {len(self.plans)} candidates, {self._runs()}"

    @property
    def settings_in_words(self) -> tuple[str, ...]:
        return tuple(line for plan in self.plans for line in plan.explain().splitlines())

    @property
    def promise(self) -> Promise:
        """What all candidates have in common; which one is best is not said."""
        promises: list[Promise] = [plan.task.promise for plan in self.plans]
        notes = dict.fromkeys(promise.proof for promise in promises)
        assumed = dict.fromkeys(line for promise in promises for line in promise.assumptions)
        return replace(
            promises[0],
            method=", ".join(dict.fromkeys(promise.method for promise in promises)),
            proven=all(promise.proven for promise in promises),
            proof=", ".join([PROOF, *notes]),
            exact=all(promise.exact for promise in promises),
            assumptions=(*assumed, *_ASSUMED),
            tuning=(
                f"the best of {len(self.plans)} candidates by their errors at {self.holdout:.3g} of the "
                f"{self.held_out}, repeat and select, a random number of runs, {self._runs()}; the "
                "promise includes what this costs"
            ),
        )

    def _runs(self) -> str:
        return f"{self.mechanism.event.mean:.3g} on average"


@record
@dataclass(frozen=True)
class BestOf(Search):
    """The best of several completions."""

    held_out: ClassVar[str] = "entries"

    @property
    def facts(self) -> Facts:
        facts: Facts = self.plans[0].task.facts
        return facts

    @cached_property
    def score(self) -> HeldOutError:
        return HeldOutError.of(self.facts, self.holdout)

    @property
    def disjoint(self) -> bool:
        """An entry by itself is either fitted to or held out; a unit's entries are on both sides."""
        return self.score.alone

    def check(self) -> None:
        super().check()
        if len({plan.task.facts.local for plan in self.plans}) > 1:
            raise SettingError(
                "candidates differ in whose rows stay with their owners: give all of them methods that "
                f"can leave rows there, or {either('local=None', '--local none')}"
            )


def guarantee_of(search: PrivatePlan[Any], best: int, ledger: Ledger, entropy: Entropy) -> Guarantee:
    """What the release of the best run promises; the search is paid for in it."""
    chosen, whole = search.task.plans[best].task.promise, search.guarantee(ledger, entropy)
    return replace(
        whole,
        method=chosen.method,
        released=chosen.released,
        kept=chosen.kept,
        owner=chosen.owner,
        cap=chosen.cap,
    )


_Search = TypeVar("_Search", bound=Search)
_ASSUMED = ("how many runs were made, and how each of them scored, stays with the holder of the data",)


def _score_noise(run: Budget, share: float) -> Gaussian | Laplace:
    if run.pure:
        return Laplace(1 / (share * run.epsilon), single=True)
    return Gaussian(gaussian_multiplier(run) / sqrt(share))


def make_search(
    kind: type[_Search],
    plans_within: Callable[[Budget], Sequence[PrivatePlan[Any]]],
    budget: Budget,
    holdout: float,
    repetitions: int,
) -> PrivatePlan[_Search]:
    """The search whose runs may cost as much as the budget allows; never sees data.

    ``plans_within`` gives the candidates' calibrated plans for one run within a budget.
    """

    def at(noise: float) -> PrivatePlan[_Search]:
        run = Budget(min(1 / noise, budget.epsilon), budget.delta)  # more is never within the budget
        return PrivatePlan(kind(tuple(plans_within(run)), run, holdout, repetitions), budget)

    start = _USUAL_RATIO / budget.epsilon
    at(start).task.check()
    search = at(calibrate(lambda noise: at(noise).task.mechanism.event, budget, start))
    check_covered(budget, search.event)
    return search


# -- carrying it out ------------------------------------------------------------------------------


class Found(NamedTuple):
    """The best candidate's number and its fit."""

    best: int
    fit: PrivateFit


def carry_out_search(
    plan: PrivatePlan[BestOf],
    tensor: SparseTensor,
    threads: int,
    ledger: Ledger,
    entropy: Entropy,
    progress: Sequence[Progress | None],
) -> Found:
    """Charge the whole search, then run it. Each candidate's progress is told of its rounds."""
    search = plan.task
    # By label: one entry more or less moves no other entry to the other side.
    parts = prepare.split_by_label(tensor, search.holdout, seed=entropy.public_seed())
    train, held_out = Local(Site(parts[0], threads)), Site(parts[1], threads)
    train.check_shape(search.facts.shape)

    def run(number: int, reservation: Reservation) -> tuple[Drawn | None, float]:
        try:
            drawn = draw_all(search.plans[number], train, reservation, progress[number])
        except DivergedError:
            return None, np.inf
        model = drawn.made.model if search.score.alone else drawn.localised(train)
        noisy = reservation.ask(lambda draw: draw.release(search.score.statistic(model, held_out)))
        return drawn, float(noisy.values[0])

    with ledger.reserve(plan.charges, entropy, proven=plan.proven) as reservation:
        best, drawn = reservation.ask(lambda draw: select_best(draw, run))
    if drawn is None:
        raise DivergedError("the private fits left the range of floating-point numbers")
    # Own rows are solved from all entries of their owner: they are not part of the release.
    return Found(best, drawn.filled(Local(Site(tensor, threads)), search.facts.local))
