"""Settings of private pairs, and the draws that they lead to: from public numbers alone."""

from __future__ import annotations

from itertools import combinations
from math import sqrt
from typing import Literal, NamedTuple

import numpy as np

from sfumato.privacy.facts import Facts
from sfumato.privacy.units import Entry, Unit
from sfumato.solvers.private.known import Known

# Chosen on invented data with and without pairs that are alike (benchmarks/pairs.py), UCLAF in view.
BIAS_SHARE = 0.36  # of the budget, for the biases that come first where all is released
WEIGHT_SHARE = 0.02  # of the same, for how far pairs are believed
_LEAST_ALIKE, _MOST_ALIKE = 0.01, 0.08  # of the same, for how alike pairs are
_ALIKE_ERROR = 0.02  # that this may have, over the entries
ALIKE_CLIP, SUMS_CLIP = 1.0, 1.3  # of residuals, over the spread of the values
_OWN_ERROR = 0.025  # that what owners tell may have, on average
_LEAST, _MOST = 0.003, 0.1  # of the budget
_BEAR = 3.0  # times that error, with the most: where it would be larger it is not asked for
_BEAR_ALIKE = 2.0  # the same where everything is released
_MOST_NOISE = 4.0  # variance of that in a pair's mean, over that of the values: it would hide all pairs
MOST_RANK = 256  # columns
_MOST_WORK = 2.0**34  # owners times the cube of columns
_MOST_CELLS = 2**20  # of a pair of modes

Asks = Literal["biases", "own alike", "alike", "sums", "weight"]


class Step(NamedTuple):
    """One draw: a question and its share of the budget."""

    asks: Asks
    share: float


def own_modes(facts: Facts) -> list[int]:
    """Modes at whose levels owners have effects of their own; the smallest first, as far as they fit."""
    chosen, columns = [], 0
    for mode in sorted(range(facts.shape.order), key=lambda m: facts.sizes[m]):
        size = facts.sizes[mode]
        if mode == facts.local or size < 2:
            continue
        if columns + size > MOST_RANK:
            break
        chosen.append(mode)
        columns += size
    return sorted(chosen)


def pairs_of_modes(facts: Facts) -> list[tuple[int, int]]:
    """Two modes whose pairs of levels may be alike; the one with fewer levels first."""
    sizes = facts.sizes
    ordered = [
        sorted(pair, key=lambda m: (sizes[m], m)) for pair in combinations(range(facts.shape.order), 2)
    ]
    return [
        (small, large)
        for small, large in ordered
        if 1 < sizes[small] <= MOST_RANK and sizes[small] * sizes[large] <= _MOST_CELLS
    ]


def columns(facts: Facts) -> int:
    """The rank that the pairs need."""
    if facts.local is not None:
        return sum(facts.sizes[m] for m in own_modes(facts))
    return max((facts.sizes[small] for small, _ in pairs_of_modes(facts)), default=0)


def owners_change(known: Known) -> float:
    """How much neighbours change what owners tell of how alike their pairs are, two numbers a mode.

    One lies within half of one of zero, the other between zero and half of one: together they change by
    1 and 1/2 at most, and by 1/2 each where an owner comes or goes.
    """
    number, whole = len(own_modes(known.facts)), known.facts.whole_units
    if known.pure:
        return number * (1.0 if whole else 1.5)
    return sqrt(number * (0.5 if whole else 1.25))


def own_share(known: Known) -> float:
    """Of the budget: what tells how alike owners' pairs are, or nothing where that would be much."""
    error = known.mechanism(1.0).deviation(owners_change(known))
    error /= known.facts.sizes[known.facts.local or 0] * _OWN_ERROR
    share = error if known.pure else error**2
    if share > _MOST * (_BEAR if known.pure else _BEAR**2):
        return 0.0
    return float(np.clip(share, _LEAST, _MOST))


def alike_change(known: Known, clip: float) -> float:
    """How much an entry changes how alike pairs are, one number for each two modes: each by 3 clip^2."""
    number = len(pairs_of_modes(known.facts))
    return 3 * clip**2 * (number if known.pure else sqrt(number))


def alike_share(known: Known) -> float:
    """Of the budget, for how alike pairs are where everything is released."""
    return float(np.clip(_wanted_alike(known), _LEAST_ALIKE, _MOST_ALIKE))


def _wanted_alike(known: Known) -> float:
    error = known.mechanism(1.0).deviation(alike_change(known, ALIKE_CLIP))
    error /= _ALIKE_ERROR * known.facts.least_entries
    return float(error if known.pure else error**2)


def sums_share(known: Known) -> float:
    """Of the budget, for sums of pairs or of levels."""
    return 1 - BIAS_SHARE - WEIGHT_SHARE - alike_share(known)


def per_pair(facts: Facts, pair: tuple[int, int], entries: float) -> float:
    """Entries of an average pair, at least one."""
    small, large = pair
    return max(1.0, entries / (facts.sizes[small] * facts.sizes[large]))


def serves(facts: Facts) -> bool:
    """Whether there can be effects of pairs: they need a third mode, which entries of one differ in."""
    shape, local, unit = facts.shape, facts.local, facts.unit
    if shape.order < 3 or shape.kind != "cp" or not (shape.fit_mean and shape.fit_biases):
        return False
    if not isinstance(unit, Entry | Unit) or facts.unit_mode not in (None, local):
        return False
    if local is not None:
        work = facts.sizes[local] * float(columns(facts)) ** 3
        return bool(own_modes(facts)) and work <= _MOST_WORK
    return (facts.trust.kind, facts.trust.sites) == ("one owner", 1) and bool(pairs_of_modes(facts))


def tells(known: Known) -> bool:
    """Whether noise leaves pairs visible, where everything is released: how alike they are, and the sums
    of some.
    """
    facts = known.facts
    if facts.local is not None:
        return True
    if _wanted_alike(known) > _MOST_ALIKE * (_BEAR_ALIKE if known.pure else _BEAR_ALIKE**2):
        return False
    noise = known.mechanism(sums_share(known)).deviation(SUMS_CLIP) ** 2
    each = max(per_pair(facts, pair, facts.least_entries) for pair in pairs_of_modes(facts))
    return noise <= _MOST_NOISE * each**2
