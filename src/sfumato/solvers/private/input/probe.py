"""A small private question that comes first: where values lie within their bounds, and how far apart.

Bounds are what is possible; values may lie at one end of them, close together. Cuts and ranges of a
channel that are placed for the middle of the bounds would then tell next to nothing. Sums of u and u^2
over all entries, u a value from the middle of the bounds in half-widths, are enough to place them: they
change by little when one value is replaced, and there are many values. Proof: ``proofs/input.md``.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import hypot, sqrt

import numpy as np

from sfumato.kernels.grid import cut, grid
from sfumato.privacy.clipping import Clipped, clip_values
from sfumato.privacy.facts import Facts
from sfumato.privacy.mechanisms import Noisy
from sfumato.privacy.units import Value
from sfumato.records import record
from sfumato.sites.memory import Site
from sfumato.solvers.behind.evidence import Located
from sfumato.solvers.protocol import SumQuery

# By how much a replaced value changes (u, u^2) at most: |u - v| (1 + |u + v|) in L1, largest at 1 and
# -1/2; in L2, at 1 and -1. Both numbers are cut to the grid, which moves either by a step at most.
_STEP = grid(1.0)
CHANGE_L1 = 2.25 + 4 * _STEP
CHANGE_L2 = 2.0 + 4 * _STEP

_AIM = 0.01  # error of the means of u and u^2 that a share of the budget is chosen for
_LEAST_SHARE, _MOST_SHARE = 0.005, 0.1
_USELESS = 0.05  # error from which on the middle of the bounds is as good a guess
_MODELLED = 0.02  # relative error of a variance that a normal law may have by itself


@record
@dataclass(frozen=True)
class ProbeQuery(SumQuery):
    """Ask for the sums of u and of u^2."""

    facts: Facts

    def clipped(self, site: Site) -> Clipped:
        facts = self.facts
        values = clip_values(site.tensor.values, *facts.bounds)
        u = np.clip((values - facts.middle) / facts.half, -1.0, 1.0)
        sums = np.array([cut(u, _STEP).sum(), cut(u * u, _STEP).sum()], np.int64)
        return Clipped(sums, CHANGE_L1, CHANGE_L2, _STEP)


def probe_share(facts: Facts, noise: float, *, gaussian: bool) -> float:
    """Share of the budget that a probe takes, by public numbers; zero where it would be noise."""
    if not isinstance(facts.unit, Value) or not facts.entries:
        return 0.0
    if gaussian:
        share = (CHANGE_L2 * noise / (_AIM * facts.entries)) ** 2
        error = _AIM * sqrt(share / min(share, _MOST_SHARE))
    else:
        share = sqrt(2) * CHANGE_L1 * noise / (_AIM * facts.entries)
        error = _AIM * share / min(share, _MOST_SHARE)
    return float(np.clip(share, _LEAST_SHARE, _MOST_SHARE)) if error <= _USELESS else 0.0


def located(facts: Facts, noisy: Noisy) -> Located:
    """Mean and spread; where noise hides the spread, no less than the noise could hide."""
    number = facts.entries or 1
    first, second = (float(np.clip(total / number, -1.0, 1.0)) for total in noisy.values)
    error = noisy.deviation / number
    doubt = error * hypot(1.0, 2 * first)
    square = max(second - first**2, doubt, _STEP)
    return Located(
        mean=facts.middle + facts.half * first,
        spread=facts.half * sqrt(square),
        mean_error=facts.half * hypot(error, sqrt(square / number)),
        square_error=hypot(doubt / square, sqrt(2 / number), _MODELLED),
    )
