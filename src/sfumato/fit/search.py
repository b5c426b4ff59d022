"""Settings chosen by looking at the data, and paid for: repeat and select over candidate plans.

The entries are divided by their labels into those that are fitted to and those held out. A run fits
one of the candidates, chosen at random, and draws its error at the held-out entries; after a random
number of runs the model with the least noisy error is released. All of it is one charge, sized
before any data is seen. Proof: ``proofs/tuning.md``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import sqrt
from typing import NamedTuple

import numpy as np

from sfumato.data import prepare
from sfumato.data.tensor import SparseTensor, find_mode
from sfumato.errors import SettingError
from sfumato.fit.plan import Progress, check_site
from sfumato.fit.private import (
    Drawn,
    PrivateFit,
    PrivatePlan,
    caveats_within,
    check_covered,
    draw_all,
)
from sfumato.kernels.grid import cut, grid
from sfumato.models.multilinear import Multilinear
from sfumato.privacy.accounting import calibrate, epsilon_of, gaussian_multiplier
from sfumato.privacy.budgets import Budget
from sfumato.privacy.clipping import Clipped
from sfumato.privacy.entropy import Entropy
from sfumato.privacy.guarantee import Guarantee
from sfumato.privacy.ledger import Charge, Ledger, Reservation
from sfumato.privacy.mechanisms import Gaussian, Laplace
from sfumato.privacy.selection import Run, SelectBest, select_best
from sfumato.sites.memory import Site
from sfumato.solvers.protocol import DivergedError, PublicShape
from sfumato.surface import either

PROOF = "proofs/tuning.md"
_SCORE_SHARE = 0.1  # of what a fit costs, for its score, where both see the same unit
_USUAL_RATIO = 1.6  # of the search's epsilon to a run's
_USUAL_SPREAD = 0.25  # of the bounds' width, as private biases take it


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
    def of(cls, shape: PublicShape, holdout: float) -> HeldOutError:
        unit, bounds = shape.unit, shape.bounds
        assert unit is not None
        assert bounds is not None
        width = bounds[1] - bounds[0]
        reach = min(width, 2 * (shape.spread or _USUAL_SPREAD * width))
        group = shape.local if unit.mode is None else find_mode(shape.modes, unit.mode)
        # One entry of an owner changes the owner's row, and with it all errors of that row.
        replaces = unit.replaces or (unit.mode is None and group is not None)
        levels = 1 if group is None else shape.sizes[group]
        full = max(1.0, holdout * (shape.entries or 0) / levels)
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
        return Clipped(np.array([total]), bound, bound, single=True)


# -- the plan -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SearchPlan:
    """Which plans are candidates, and what the whole search costs: everything but the data.

    Each plan has a budget of its own for one run, the same for all; ``budget`` is the search's.
    """

    plans: tuple[PrivatePlan, ...]
    budget: Budget
    holdout: float
    repetitions: int

    @property
    def shape(self) -> PublicShape:
        return self.plans[0].shape

    @cached_property
    def score(self) -> HeldOutError:
        return HeldOutError.of(self.shape, self.holdout)

    @cached_property
    def mechanism(self) -> SelectBest:
        # An entry by itself is either fitted to or held out; a unit's entries are on both sides.
        disjoint = self.score.alone
        run = self.plans[0].budget
        assert isinstance(run, Budget)
        charge = Charge(
            "error at held-out entries", _score_noise(run, 1.0 if disjoint else _SCORE_SHARE)
        )
        return SelectBest(
            tuple(Run(plan.charges, charge) for plan in self.plans), self.repetitions, disjoint
        )

    @property
    def charges(self) -> tuple[Charge, ...]:
        """One charge, whatever number of runs comes out."""
        return (Charge(f"best of {len(self.plans)} candidates, repeat and select", self.mechanism),)

    @property
    def proven(self) -> bool:
        return all(plan.solver.proven for plan in self.plans)

    def explain(self) -> str:
        """The plan in words."""
        head = f"The best of runs of {len(self.plans)} candidates, {self._runs()}, within {self.budget}:"
        return "\n".join([head, *(plan.explain() for plan in self.plans)])

    @property
    def caveats(self) -> tuple[str, ...]:
        """What to warn of before the search, from public numbers alone."""
        return caveats_within(self.budget, self.shape)

    def _runs(self) -> str:
        return f"{self.mechanism.event.mean:.3g} on average"

    def guarantee(self, best: int, ledger: Ledger, *, seeded: bool) -> Guarantee:
        """What the release of the best run promises; the search is paid for in it."""
        promised = self.plans[best].guarantee(ledger, seeded=seeded)
        notes = dict.fromkeys(plan.solver.proof for plan in self.plans)
        assumed = dict.fromkeys(line for plan in self.plans for line in plan.assumptions())
        return replace(
            promised,
            epsilon=epsilon_of(self.mechanism.event, self.budget.delta),
            delta=self.budget.delta,
            proven=self.proven,
            proof=", ".join([PROOF, *notes]),
            exact=all(plan.solver.exact for plan in self.plans),
            assumptions=(*assumed, *_ASSUMED, *ledger.account.assumptions),
            warnings=self.caveats,
            tuning=(
                f"the best of {len(self.plans)} candidates by their errors at {self.holdout:.3g} of the "
                f"entries, repeat and select, a random number of runs, {self._runs()}; the promise "
                "includes what this costs"
            ),
        )


_ASSUMED = ("how many runs were made, and how each of them scored, stays with the holder of the data",)


def _score_noise(run: Budget, share: float) -> Gaussian | Laplace:
    if run.pure:
        return Laplace(1 / (share * run.epsilon), single=True)
    return Gaussian(gaussian_multiplier(run) / sqrt(share))


def make_search(
    plans_within: Callable[[Budget], Sequence[PrivatePlan]],
    budget: Budget,
    holdout: float,
    repetitions: int,
) -> SearchPlan:
    """The search whose runs may cost as much as the budget allows; never sees data.

    ``plans_within`` gives the candidates' calibrated plans for one run within a budget.
    """

    def at(noise: float) -> SearchPlan:
        epsilon = min(1 / noise, budget.epsilon)  # more is never within the budget
        return SearchPlan(
            tuple(plans_within(Budget(epsilon, budget.delta))), budget, holdout, repetitions
        )

    start = _USUAL_RATIO / budget.epsilon
    _check(at(start))
    search = at(calibrate(lambda noise: at(noise).mechanism.event, budget, start))
    check_covered(budget, search.mechanism.event)
    return search


def _check(search: SearchPlan) -> None:
    if not 0 < search.holdout < 1:
        raise SettingError(f"holdout is a share of the entries between 0 and 1, got {search.holdout}")
    _ = search.mechanism  # too few candidates, or an impossible number of runs
    if not search.proven:
        raise SettingError("candidates whose privacy is only claimed cannot be chosen among")
    if len({plan.shape.local for plan in search.plans}) > 1:
        raise SettingError(
            "candidates differ in whose rows stay with their owners: give all of them methods that can "
            f"leave rows there, or {either('local=None', '--local none')}"
        )


# -- carrying it out ------------------------------------------------------------------------------


class Found(NamedTuple):
    """The best candidate's number and its fit."""

    best: int
    fit: PrivateFit


def carry_out_search(
    plan: SearchPlan,
    tensor: SparseTensor,
    ledger: Ledger,
    entropy: Entropy,
    progress: Sequence[Progress | None],
) -> Found:
    """Charge the whole search, then run it. Each candidate's progress is told of its rounds."""
    threads = plan.shape.threads
    if tensor.values.dtype != plan.shape.dtype:
        tensor = tensor.astype(plan.shape.dtype)
    # By label: one entry more or less moves no other entry to the other side.
    parts = prepare.split_by_label(tensor, plan.holdout, seed=entropy.public_seed())
    train, held_out = (Site(part, threads) for part in parts)
    check_site(plan.shape, train)

    def run(number: int, reservation: Reservation) -> tuple[Drawn | None, float]:
        try:
            drawn = draw_all(plan.plans[number], train, reservation, progress[number])
        except DivergedError:
            return None, np.inf
        model = drawn.released if plan.score.alone else drawn.localised(train)
        noisy = reservation.ask(lambda draw: draw.release(plan.score.statistic(model, held_out)))
        return drawn, float(noisy.values[0])

    with ledger.reserve(plan.charges, entropy, proven=plan.proven) as reservation:
        best, drawn = reservation.ask(lambda draw: select_best(draw, run))
    if drawn is None:
        raise DivergedError("the private fits left the range of floating-point numbers")
    # Own rows are solved from all entries of their owner: they are not part of the release.
    own = drawn.localised(Site(tensor, threads))
    return Found(best, PrivateFit(own, drawn.history, drawn.own_prior))
