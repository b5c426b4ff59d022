"""Readable twin of ``kernels/numba/noisy_counts.py``: all counts that an entry may have, as arrays."""

from __future__ import annotations

import numpy as np
from scipy.special import gammaln

from sfumato.kernels.numba.noisy_counts import EXACT, LARGE, LEAST_RATE, TABLE, NoisyCounts
from sfumato.types import Array


def joint_reference(counts: NoisyCounts, entry: int, rate: float) -> Array:
    """Logarithms of P(x, z) for x = 0, 1, ..., as far as they matter."""
    law, output = int(counts.which[entry]), int(counts.outputs[entry])
    low, top = int(counts.low[law]), int(counts.top[law])
    rate = max(rate, LEAST_RATE)
    reach = max(rate, low, top if counts.kinds[law] == TABLE else abs(output) + 40)
    x = np.arange(int(reach + 12 * np.sqrt(reach) + 60))
    poisson = x * np.log(rate) - rate - gammaln(x + 1.0)
    if counts.kinds[law] == EXACT:
        return np.where(x == output, poisson, -np.inf)
    if counts.kinds[law] == TABLE:
        begin = counts.first[law] + output * (top + 1)
        with np.errstate(divide="ignore"):
            return np.asarray(
                poisson + np.log(counts.tables[begin : begin + top + 1])[np.minimum(x, top)]
            )
    z, ratio = np.clip(output, low, top), float(counts.ratio[law])
    mass = 1.0 if z in (low, top) else 1 - ratio
    distance = np.abs(z - np.clip(x, low, top))
    return np.asarray(poisson + distance * np.log(ratio) + np.log(mass / (1 + ratio)))


def expected_reference(counts: NoisyCounts, rates: Array) -> tuple[Array, Array]:
    """E[x | z, rate] of every entry, and log P(z | rate)."""
    means, logs = np.empty(len(rates)), np.empty(len(rates))
    for entry, rate in enumerate(rates):
        joint = joint_reference(counts, entry, float(rate))
        terms = np.exp(joint - joint.max())
        means[entry] = terms @ np.arange(len(terms)) / terms.sum()
        logs[entry] = joint.max() + np.log(terms.sum())
    return means, logs


def draw_reference(counts: NoisyCounts, entry: int, rate: float, u: float) -> int:
    """A count given its output, by inversion, in the order in which the kernel walks."""
    joint, rate = joint_reference(counts, entry, rate), max(rate, LEAST_RATE)
    terms, x = np.exp(joint - joint.max()), np.arange(len(joint))
    law = int(counts.which[entry])
    if counts.kinds[law] == TABLE:
        begin = int(rate) if rate >= LARGE else 0
        order = np.concatenate([x[:begin][::-1], x[begin:]])
    else:
        begin = _begin(counts, entry, rate)
        order = np.concatenate([x[begin:], x[:begin][::-1]])
    return int(order[np.searchsorted(np.cumsum(terms[order]), u * terms.sum())])


def _begin(counts: NoisyCounts, entry: int, rate: float) -> int:
    """Where a walk over a geometric law begins: its mode, but for roundings."""
    law = int(counts.which[entry])
    low, high, ratio = int(counts.low[law]), int(counts.top[law]), float(counts.ratio[law])
    z = min(max(int(counts.outputs[entry]), low), high)
    if rate * ratio > z:
        return int(rate * ratio) if rate * ratio < high else max(high, int(rate))
    if rate / ratio < z:
        return int(rate / ratio) if rate / ratio > low else min(low, int(rate))
    return z
