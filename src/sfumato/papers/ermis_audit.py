"""An audit of paper E's two levels at the unit that it claims to protect: one record.

At *site level* the users' factor U stays at the site, without clipping or noise, and the shared factor V
is released. One record moves U, and U is in the gradients of all other records of that user, in every
later batch, whether or not the record is in it: neither the clipping nor the amplification by sampling
that the noise is sized for holds. At *user level* U is clipped and noised as V is.

The steps are those of our reading (``steps="as run"``): by those of Eq. 4.27 noise alone moves anything.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from sfumato.auditing.bounds import Counts, epsilon_bound
from sfumato.data.tensor import Mode, SparseTensor
from sfumato.solvers.as_printed.ermis import PaperLangevin, released
from sfumato.types import Array

ERROR = 0.05  # probability that a bound is wrong, at most


@dataclass(frozen=True)
class LevelAudit:
    """One user with ``records`` records, all 0 but the first, which is 0 or ``value``.

    Nothing in the algorithm bounds values: it clips gradients. ``runs`` are those of each neighbour,
    half of which choose the threshold.
    """

    level: Literal["site", "user"]
    records: int = 4000
    batch: int = 800
    passes: int = 4
    value: float = 4e4
    first_step: float = 0.2
    epsilon: float = 1.0
    delta: float = 1e-3
    runs: int = 400

    @property
    def settings(self) -> PaperLangevin:
        return PaperLangevin(
            epsilon=self.epsilon,
            delta=self.delta,
            level=self.level,
            steps="as run",
            rank=1,
            passes=self.passes,
            batch=self.batch,
            first_step=self.first_step,
        )

    def neighbour(self, *, second: bool) -> SparseTensor:
        values = np.zeros(self.records)
        values[0] = self.value if second else 0.0
        cells = np.stack([np.zeros(self.records, np.int32), np.arange(self.records, dtype=np.int32)])
        return SparseTensor(cells, values, (Mode("user", 1), Mode("item", self.records)))

    def scores(self, *, second: bool, seed: int) -> Array:
        """How far the released rows of all other items have gone down, run by run."""
        tensor, found = self.neighbour(second=second), np.empty(self.runs)
        for run in range(self.runs):
            own = seed + 2 * run + second
            rows = released([tensor], ("item",), self.settings, own)["item"]
            found[run] = (rows[0, 1:] - rows[-1, 1:]).sum()
        return found

    def bound(self, seed: int = 0) -> float:
        """What epsilon is at least, at the claimed delta, but for a probability of ``ERROR``."""
        first, second = (self.scores(second=which, seed=seed) for which in (False, True))
        half = self.runs // 2
        threshold = _threshold(first[:half], second[:half], self.delta)
        hits = (int((scores[half:] > threshold).sum()) for scores in (second, first))
        often, seldom = hits
        counts = Counts(often, self.runs - half, seldom, self.runs - half)
        return float(epsilon_bound(counts, self.delta, ERROR))


def _threshold(first: Array, second: Array, delta: float) -> float:
    """The one with the greatest bound on runs that are not counted afterwards."""
    places = np.unique(np.concatenate([first, second]))
    hits = ((scores[:, None] > places).sum(axis=0) for scores in (second, first))
    often, seldom = hits
    bounds = epsilon_bound(Counts(often, len(second), seldom, len(first)), delta, ERROR)
    return float(places[int(np.argmax(bounds))])
