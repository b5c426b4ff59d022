"""What noise on the values themselves can be expected to leave of a fit: public numbers alone.

Whatever follows the noise is free: a fit to noisy values is an open fit to entries that say less.
A channel lets the share J of an entry's information through, and a residual of variance s tells as much
as one of variance s / J would. Biases, and a fixed point for the components, as in the planner.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from math import sqrt
from typing import NamedTuple

import numpy as np

from sfumato.data.profile import Profile
from sfumato.fit.outlook import Outlook
from sfumato.fit.planner import Outcome, expected, multiplier
from sfumato.privacy.budgets import ZCDP, Budget
from sfumato.privacy.facts import Facts
from sfumato.solvers.private.input import solver as perturbation
from sfumato.solvers.protocol import Wish

_START = 0.03  # what a random start has found of a component, in each mode
_SWEEPS, _SETTLED = 300, 1e-6  # towards a fixed point
_SOME = (
    5  # components that are allowed where none is expected: precisions are learnt, it costs time alone
)
_TIE = 1e-3  # expected errors that differ by less count as equal
_CLEARLY = 5e-3  # by how much noisy values have to be better: a wrong guess costs more than it gains
_NO_WORSE = (
    1.003  # at most so much of the others' error where there is little to find; see benchmarks/README.md
)


class Best(NamedTuple):
    """A method, its rank where it has factors, and its error over the spread of the values."""

    method: str
    rank: int | None
    rmse: float


def best_for_values(
    facts: Facts, budget: Budget | ZCDP, most: int | None = None, profile: Profile | None = None
) -> Best:
    """The constant, biases or noisy values, by what each is expected to reach; of rank ``most`` at most.

    Sums over many values need little noise, but tell of biases alone. How strong the rest is, nobody
    knows: noisy values have to win on average between the profile and one of half the biases and no
    interactions at all, and must not lose under the latter.
    """
    shape, profile = facts.shape, profile or Profile()
    weak = replace(profile, biases=profile.biases / 2, interactions=0.0)
    if not shape.fit_biases:  # they are products of factors then
        together = profile.biases + profile.interactions
        profile = replace(profile, biases=0.0, interactions=together)
        weak = replace(profile, interactions=together / 2)
    outlooks = [Outlook(facts, each) for each in (profile, weak)]
    simple = [("constant", shape.fit_mean), ("bias", shape.fit_biases)]
    errors = {
        name: [expected(o, budget, name, 0).error for o in outlooks] for name, fits in simple if fits
    }
    # Values with noise are one holder's: sites of several owners are asked for sums.
    free = facts.local is None and facts.trust.kind == "one owner"
    if free:
        rank, errors["input"] = _noisy_values(outlooks, _passed(facts, budget), most)
    if not errors:
        return Best("bias", None, 1.0)
    rmse = {name: sqrt(each[0]) for name, each in errors.items()}
    named = [name for name in errors if name != "input"]
    best = min(named, key=rmse.__getitem__, default="input")
    if best == "bias" and "constant" in rmse and rmse["bias"] > (1 - _TIE) * rmse["constant"]:
        best = "constant"
    if free and best != "input":
        gains = [
            noisy / min(errors[name][o] for name in named) for o, noisy in enumerate(errors["input"])
        ]
        clearly = (gains[0] * gains[1]) ** 0.25 < 1 - _CLEARLY
        if clearly and gains[1] <= _NO_WORSE**2:
            best = "input"
    return Best(best, rank if best == "input" else None, rmse[best])


@cache
def _passed(facts: Facts, budget: Budget | ZCDP) -> float:
    """Share of an entry's information that input perturbation lets through within a budget."""
    made = perturbation.make(facts, Wish(budget))
    noise = 1 / budget.epsilon if isinstance(budget, Budget) else multiplier(budget)
    return replace(made, noise=noise).passed(facts)


def _noisy_values(outlooks: list[Outlook], passed: float, most: int | None) -> tuple[int, list[float]]:
    """The least rank whose error is as good as the best, or a few more, and the errors with it."""
    first = outlooks[0]
    largest = min(first.profile.components, *(size for size in first.facts.sizes if size))
    ranks = range(1, min(largest, most or largest) + 1)
    errors = [expected_input(first, passed, rank).error for rank in ranks]
    enough = (1 + _TIE) ** 2 * min(errors)
    rank = next(rank for rank, error in zip(ranks, errors, strict=True) if error <= enough)
    rank = max(rank, min(_SOME, ranks[-1]))
    return rank, [expected_input(outlook, passed, rank).error for outlook in outlooks]


def expected_input(outlook: Outlook, passed: float, rank: int) -> Outcome:
    """What to expect of a fit to noisy values, of whose information the share ``passed`` is left."""
    prior, strengths = outlook.bias_variances, outlook.profile.strengths[:rank]
    order, rest = len(outlook.levels), outlook.profile.noise
    found, lost, explained = np.ones((order, strengths.shape[0])), np.zeros(order), 0.0
    found[outlook.timeless] = _START
    for _ in range(_SWEEPS):
        before = found.copy()
        for mode in outlook.timeless:
            signal = strengths * np.delete(found, mode, 0).prod(0)
            found[mode] = outlook.kept(mode, signal, rest / passed, 0.0, locally=True)
        for mode in range(order):
            others = (rest - prior[mode] * lost[mode]) / passed
            lost[mode] = 1 - outlook.kept(mode, prior[mode], others, 0.0, locally=True)
        explained = float(strengths @ found.prod(0))
        rest = 1 - float(prior @ (1 - lost)) - explained
        if np.abs(found - before).max() < _SETTLED:
            break
    return Outcome(rest + rest / (passed * outlook.entries), explained)
