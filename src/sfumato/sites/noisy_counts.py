"""Counts of a relation as kernels see them: clean ones, and what channels have released of the others.

The mechanism clips: of a raw count x, c = clip(x, low, high) has passed the channel. So has the model,
in which an output says how likely every x is, P(z | clip x), and all counts from the upper bound on are
told from each other by their rate alone. To condition on low <= x <= high instead would make evidence of
nothing: where noise hides all else, that a count is within the bounds would be what is left to explain,
and rates would be drawn to the middle of them.
"""

from __future__ import annotations

from math import ceil
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sfumato.data.channels import Geometric, Response, probabilities
from sfumato.data.privatised import Passed, Privatised
from sfumato.errors import DataError
from sfumato.kernels.numba.noisy_counts import (
    EXACT,
    GEOMETRIC,
    NO_BOUND,
    TABLE,
    NoisyCounts,
    expected_counts,
)
from sfumato.types import Array

_FEW = 256  # levels of geometric noise that get a table, which is faster
_MOST = 1 << 24  # probabilities of a table
_LEAST_RATE = 1e-3


class _Law(NamedTuple):
    """One law, and the outputs of the entries that have passed it."""

    kind: int
    outputs: NDArray[np.int64]
    low: int = 0
    top: int = 0
    ratio: float = 1.0
    table: Array = np.empty(0)


def exact_counts(values: Array) -> NoisyCounts:
    """Counts that have passed nothing."""
    return _together([(_Law(EXACT, values.astype(np.int64)), np.ones(values.shape[0], bool))])


def noisy_counts(data: Privatised) -> NoisyCounts:
    """Entries behind channels, and clean ones among them."""
    laws = list[tuple[_Law, NDArray[np.bool_]]]()
    for passed, here in data.parts():
        if passed is not None:
            laws.append((_law(passed, data.tensor.values[here].astype(np.float64)), here))
        else:
            laws += _clean(data, here)
    return _together(laws)


def measured_bounds(data: Privatised) -> tuple[float, float] | None:
    """What all values were clipped to; None where they were not, or not to the same.

    Clean values among them count as clipped as well if they all lie within.
    """
    known = {passed.bounds for passed, _ in data.parts() if passed is not None}
    bounds = known.pop() if len(known) == 1 else None
    if bounds is None:
        return None
    clean = [data.tensor.values[here] for passed, here in data.parts() if passed is None]
    inside = all(((values >= bounds[0]) & (values <= bounds[1])).all() for values in clean)
    return bounds if inside else None


def typical_rate(counts: NoisyCounts, cells: int) -> float:
    """The rate that makes all counts most likely if they share it; cells beyond are zeros."""
    of_entries = np.stack([counts.which, counts.outputs])
    (which, outputs), times = np.unique(of_entries, axis=1, return_counts=True)
    if (counts.kinds[which] == EXACT).all():
        return max(float(times @ outputs) / cells, _LEAST_RATE)
    few = counts._replace(outputs=np.ascontiguousarray(outputs), which=np.ascontiguousarray(which))

    def unlikely(logarithm: float) -> float:
        rates = np.full(times.shape[0], np.exp(logarithm))
        return -float(times @ expected_counts(few, rates, 1, with_logs=True)[1])

    most = max(float(outputs.max()), float(counts.top[counts.kinds == TABLE].max(initial=0)), 1.0)
    from scipy.optimize import minimize_scalar  # which takes a while to load

    found = minimize_scalar(unlikely, bounds=(np.log(_LEAST_RATE), np.log(2 * most)), method="bounded")
    return float(np.exp(found.x))


def information(counts: NoisyCounts, rate: float) -> float:
    """What is left of a count's Fisher information about its rate, as a share: one without noise.

    The score of what was released is what the score of the count is expected to be, E[x | z] / rate - 1.
    """
    shares = np.bincount(counts.which, minlength=len(counts.kinds)) / len(counts.which)
    left = [1.0 if kind == EXACT else _left(counts, n, rate) for n, kind in enumerate(counts.kinds)]
    return float(shares @ left)


def _left(counts: NoisyCounts, law: int, rate: float) -> float:
    """Of one law, over all that it may release."""
    low, top = int(counts.low[law]), int(counts.top[law])
    if counts.kinds[law] == TABLE:
        ends = [*counts.first[counts.first > counts.first[law]], counts.tables.shape[0]]
        outputs = np.arange((min(ends) - counts.first[law]) // (top + 1))
    else:  # what is further away than this is as good as impossible
        far = rate + 12 * np.sqrt(rate) + 40 / -np.log(counts.ratio[law])
        outputs = np.arange(low, min(top, low + ceil(far)) + 1)
    all_outputs = counts._replace(outputs=outputs, which=np.full(outputs.shape[0], law))
    rates = np.full(outputs.shape[0], rate)
    means, logs = expected_counts(all_outputs, rates, 1, with_logs=True)
    return float(np.exp(logs) @ (means - rate) ** 2 / rate)


def _law(passed: Passed, values: Array) -> _Law:
    channel, bounds = passed.channel, passed.bounds
    if isinstance(channel, Response) and channel.others:
        raise DataError(
            "counts behind a response whose cuts differ from entry to entry cannot be fitted"
        )
    released = passed.released(values)
    if isinstance(channel, Geometric):
        if channel.step != 1:
            raise DataError(
                f"counts are one apart, but geometric noise was added in steps of {channel.step:g}"
            )
        low, high = max(channel.low, 0.0), channel.high
        if high is None or high - low >= _FEW:
            top = NO_BOUND if high is None else ceil(high)
            noisy = np.rint(released).astype(np.int64)
            return _Law(GEOMETRIC, noisy, ceil(low), top, channel.ratio)
        bounds = (low, high)
    if bounds is None:
        raise DataError("only counts with geometric noise have no bounds")
    top, n_outputs = max(ceil(bounds[1]), 1), channel.matrix.shape[1]
    if (top + 1) * n_outputs > _MOST:
        raise DataError(
            f"counts up to {top:,} with {n_outputs} outputs need too large a table: clip lower"
        )
    table = probabilities(channel, np.clip(np.arange(top + 1.0), *bounds))
    return _Law(TABLE, channel.outputs(released).astype(np.int64), 0, top, 1.0, table.T)


def _clean(data: Privatised, here: NDArray[np.bool_]) -> list[tuple[_Law, NDArray[np.bool_]]]:
    """Clean counts; one at a bound that the others were clipped to may have been beyond it."""
    values, bounds = data.tensor.values, measured_bounds(data)
    if bounds is None:
        return [(_Law(EXACT, values[here].astype(np.int64)), here)]
    low, high = int(bounds[0]), ceil(bounds[1])
    at_end = here & ((values >= high) | ((values <= low) & (low > 0)))
    inside, x = here & ~at_end, np.arange(high + 1)
    ends = np.stack([x <= low, x >= high]).astype(np.float64)
    found = [
        (_Law(EXACT, values[inside].astype(np.int64)), inside),
        (_Law(TABLE, (values[at_end] >= high).astype(np.int64), 0, high, 1.0, ends), at_end),
    ]
    return [(law, mask) for law, mask in found if mask.any()]


def _together(laws: list[tuple[_Law, NDArray[np.bool_]]]) -> NoisyCounts:
    n = laws[0][1].shape[0]
    outputs, which = np.zeros(n, np.int64), np.zeros(n, np.int64)
    for number, (law, here) in enumerate(laws):
        outputs[here], which[here] = law.outputs, number
    given = [law for law, _ in laws]
    sizes = [law.table.size for law in given]
    return NoisyCounts(
        outputs,
        which,
        np.array([law.kind for law in given]),
        np.array([law.low for law in given]),
        np.array([law.top for law in given]),
        np.array([law.ratio for law in given]),
        np.cumsum([0, *sizes[:-1]]),
        np.concatenate([np.ascontiguousarray(law.table).ravel() for law in given]),
    )
