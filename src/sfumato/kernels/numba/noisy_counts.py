"""Counts that were clipped and have passed a noisy channel, as kernels see them.

    x ~ Poisson(rate),   c = clip(x, low, high),   z ~ P(z | c)

What is needed of a count x whose z was released is its law given z,

    p(x | z, rate) ~ rate^x / x! P(z | clip x),

its mean, draws of it, and its sum over x, the likelihood of the rate. All three are one walk over x from
where the terms are large, each term from its neighbour by a multiplication: no special functions, and no
rate is too large. A walk ends where what is left is below the precision of doubles.

Noise is geometric, P(z | c) ~ ratio^|z - c|, or in a table. Of geometric noise without bounds the law is
a mixture of two truncated Poissons, of rate / ratio up to z and of rate * ratio above it; with bounds
there are two more pieces, of the rate itself. All of them share one walk, which begins at the mode.
Readable twin: ``kernels/reference/noisy_counts.py``.
"""

from __future__ import annotations

from functools import partial
from itertools import pairwise
from math import inf, lgamma
from typing import Any, NamedTuple

import numpy as np

from sfumato.kernels.numba.compiler import inlined, kernel
from sfumato.kernels.numba.simd import element
from sfumato.kernels.numba.threads import run
from sfumato.types import Array

EXACT, TABLE, GEOMETRIC = 0, 1, 2
NO_BOUND = 1 << 62
LARGE = 500.0  # rate from which the probability of no event is too small to begin with
LEAST_RATE = 1e-100
NEGLIGIBLE = 1e-17
SMALL = 32  # counts of a table whose sums are all kept
_SHARE = 1e-7  # of the mass, above a table: less than that is not found as what is left of one
_RECIPROCALS = np.concatenate([[inf], 1 / np.arange(1.0, 1024.0)])


class NoisyCounts(NamedTuple):
    """Released values of entries, and the laws that they have passed.

    Parameters
    ----------
    outputs : of every entry the count itself, the number of a table's output, or a noisy count.
    which : its law.
    kinds : of every law: exact, a table or geometric.
    low, top : bounds of counts, of a table the largest that is told from larger ones.
    ratio : of geometric laws.
    first : where a table begins in ``tables``, in which each output has its probabilities for counts
        from 0 to ``top``.
    """

    outputs: Array
    which: Array
    kinds: Array
    low: Array
    top: Array
    ratio: Array
    first: Array
    tables: Array


@inlined
def _over(x: int) -> Any:
    """1 / x."""
    return element(_RECIPROCALS, x) if x < 1024 else 1.0 / x


@inlined
def _walk_table(tables: Array, first: int, top: int, rate: float, goal: float) -> Any:
    """Walk until terms add up to more than ``goal``: where that is, their sum, and that of x times them.

    Terms are absolute for rates that are not large, else relative to the one at the rate itself.
    """
    begin, q = 0, np.exp(-rate)
    if rate >= LARGE:
        begin, q = int(rate), 1.0
    total = moment = 0.0
    below = q
    for x in range(begin - 1, -1, -1):
        below *= (x + 1) / rate
        term = below * tables[first + min(x, top)]
        total += term
        moment += term * x
        if total > goal:
            return x, total, moment
        if below == 0.0:
            break
    x, mass, mean = begin, 0.0, 0.0
    while x < top:
        term = q * tables[first + x]
        total += term
        moment += term * x
        if total > goal:
            return x, total, moment
        mass += q
        mean += q * x
        x += 1
        q *= rate * _over(x)
    last = tables[first + top]
    if last > 0.0:
        left = 1.0 - mass
        if goal == inf and begin == 0 and left > _SHARE:
            return x, total + last * left, moment + last * (rate - mean)
        above = 0.0
        while True:
            term = q * last
            total += term
            moment += term * x
            above += q
            if total > goal or (x > rate and q <= NEGLIGIBLE * above):
                break
            x += 1
            q *= rate * _over(x)
    return x, total, moment


@kernel
def _nearest_in_table(tables: Array, first: int, top: int, rate: float) -> Any:
    """The count that a rate comes nearest to among those that are possible: all terms were too small."""
    if rate < top:
        for x in range(top + 1):
            if tables[first + x] > 0.0:
                return x
    for x in range(top, -1, -1):
        if tables[first + x] > 0.0:
            return x
    return 0


@inlined
def geometric_mode(z: int, low: int, high: int, ratio: float, rate: float) -> Any:
    """Where the terms of a geometric law are largest, or nearly so."""
    above, below = rate * ratio, rate / ratio
    if above > z:
        return int(above) if above < high else max(high, int(rate))
    if below < z:
        return int(below) if below > low else min(low, int(rate))
    return z


@inlined
def _walk_geometric(z: int, low: int, high: int, ratio: float, rate: float, goal: float) -> Any:
    """The same for geometric noise, with terms relative to the one where the walk begins.

    Steps are of rate / ratio below z, of rate * ratio above it, and of the rate beyond the bounds, where
    terms may grow once more: up to the rate, if it lies there.
    """
    begin = geometric_mode(z, low, high, ratio, rate)
    below, above = rate / ratio, rate * ratio
    total, moment, q, x = 1.0, float(begin), 1.0, begin
    if total > goal:
        return begin, total, moment
    furthest = int(rate) if high < rate else 0
    while q > NEGLIGIBLE * total or x < furthest:
        step = above if x >= z else below
        step = rate if x < low or x >= high else step
        x += 1
        q *= step * _over(x)
        total += q
        moment += q * x
        if total > goal:
            return x, total, moment
    below, above, inverse = 1.0 / below, 1.0 / above, 1.0 / rate
    furthest = int(rate) if rate < low else NO_BOUND
    q, x = 1.0, begin
    while x > 0 and (q > NEGLIGIBLE * total or x > furthest):
        step = below if x <= z else above
        step = inverse if x <= low or x > high else step
        q *= x * step
        x -= 1
        total += q
        moment += q * x
        if total > goal:
            return x, total, moment
    return begin, total, moment


@inlined
def _draw_small(tables: Array, first: int, top: int, rate: float, u: float) -> Any:
    """A count from a table of few, for a rate that is not large, and the sum of all terms.

    Without branches that nobody could foresee. Too small a rest of the mass, above the table, is no
    difference from one: it is added up. A sum of zero says that all terms were too small.
    """
    none = np.exp(-rate)
    q, total, mass = none, 0.0, 0.0
    for x in range(top):
        total += q * element(tables, first + x)
        mass += q
        q *= rate * element(_RECIPROCALS, x + 1)
    left = 1.0 - mass
    if left < _SHARE:
        left, some, x = q, q, top
        while some > NEGLIGIBLE * left and left * element(tables, first + top) > NEGLIGIBLE * total:
            x += 1
            some *= rate * _over(x)
            left += some
    total += left * element(tables, first + top)
    goal, count, term, running = u * total, 0, none, 0.0
    for x in range(top):
        running += term * element(tables, first + x)
        term *= rate * element(_RECIPROCALS, x + 1)
        count += goal > running
    if count == top:
        above = left * (total - goal) / (total - running)
        while above < left - q and (q > NEGLIGIBLE or count < rate):
            left -= q
            count += 1
            q *= rate * _over(count)
    return count, total


@inlined
def _cut(counts: Any, law: int, output: int) -> Any:
    """A noisy count within the bounds: beyond them it says no more."""
    return min(max(output, counts.low[law]), counts.top[law])


@inlined
def walk(counts: Any, law: int, output: int, rate: float, goal: float) -> Any:
    """Walk over the counts that an entry may have; see the module."""
    if counts.kinds[law] == TABLE:
        first = counts.first[law] + output * (counts.top[law] + 1)
        found = _walk_table(counts.tables, first, counts.top[law], rate, goal)
        if found[1] > 0.0:
            return found
        x = _nearest_in_table(counts.tables, first, counts.top[law], rate)
        return x, 1e-300, 1e-300 * x
    z, low, top = _cut(counts, law, output), counts.low[law], counts.top[law]
    return _walk_geometric(z, low, top, counts.ratio[law], rate, goal)


@kernel
def _draw(counts: Any, law: int, output: int, rate: float, u: float) -> Any:
    total = walk(counts, law, output, rate, inf)[1]
    return walk(counts, law, output, rate, u * total)[0], total


@inlined
def draw(counts: Any, law: int, output: int, rate: float, u: float) -> Any:
    """A count given its output, from a uniform number, and the sum of all terms."""
    top = counts.top[law]
    if counts.kinds[law] == TABLE and top <= SMALL and rate < LARGE:
        first = counts.first[law] + output * (top + 1)
        count, total = _draw_small(counts.tables, first, top, rate, u)
        if total > 0.0:
            return count, total
    return _draw(counts, law, output, rate, u)


@kernel
def log_probability(counts: Any, law: int, output: int, rate: float, total: float) -> Any:
    """Logarithm of the probability of an output, from the sum of a walk.

    Of a noisy count beyond the bounds, that it is beyond them.
    """
    if counts.kinds[law] == EXACT:
        return output * np.log(rate) - rate - lgamma(output + 1.0)
    if counts.kinds[law] == TABLE:
        begin = int(rate) if rate >= LARGE else 0
        scale = begin * np.log(rate) - rate - lgamma(begin + 1.0) if begin > 0 else 0.0
        return np.log(total) + scale
    z, low, high, ratio = _cut(counts, law, output), counts.low[law], counts.top[law], counts.ratio[law]
    begin = geometric_mode(z, low, high, ratio, rate)
    beyond = z in (low, high)
    scale = begin * np.log(rate) - rate - lgamma(begin + 1.0)
    distance = abs(z - min(max(begin, low), high))
    return (
        np.log(total)
        + scale
        + distance * np.log(ratio)
        + np.log((1.0 if beyond else 1.0 - ratio) / (1.0 + ratio))
    )


@kernel
def _expected(counts: Any, rates: Array, begin: int, end: int, means: Array, logs: Array) -> None:
    for e in range(begin, end):
        law, output, rate = counts.which[e], counts.outputs[e], max(float(rates[e]), LEAST_RATE)
        mean, total = float(output), 1.0
        if counts.kinds[law] != EXACT:
            _, total, moment = walk(counts, law, output, rate, inf)
            mean = moment / total
        means[e] = mean
        if logs.shape[0] > 0:
            logs[e] = log_probability(counts, law, output, rate, total)


def expected_counts(
    counts: NoisyCounts, rates: Array, threads: int, *, with_logs: bool = False
) -> tuple[Array, Array]:
    """E[x | z, rate] of every entry, and where wanted log P(z | rate)."""
    means, logs = np.empty(rates.shape[0]), np.empty(rates.shape[0] if with_logs else 0)
    cuts = np.linspace(0, rates.shape[0], threads + 1).astype(np.int64).tolist()
    tasks = [partial(_expected, counts, rates, *cut, means, logs) for cut in pairwise(cuts)]
    run(tasks, threads)
    return means, logs
