"""What does not hold in paper W and shows in no figure: ``python -m sfumato.papers.wei_points``.

Each measurement goes with a point of the same number in ``docs/papers/wei.md``.
"""

from __future__ import annotations

from math import log
from typing import NamedTuple

import numpy as np

from sfumato.data.scaling import BiScale
from sfumato.data.tensor import SparseTensor
from sfumato.papers.wei import CLIP, printed_facts
from sfumato.papers.wei_data import Problem, days, invented
from sfumato.privacy.entropy import Entropy
from sfumato.privacy.ledger import Ledger
from sfumato.privacy.units import Value
from sfumato.sites.memory import Site
from sfumato.solvers.as_printed.wei import PaperInput, PaperOutput
from sfumato.solvers.protocol import Run
from sfumato.types import Array

CLAIMED = 0.1  # epsilon of point 1
BEYOND = 1.5  # a value above all others


# -- point 1 --------------------------------------------------------------------------------------


class Ranges(NamedTuple):
    """The range that noise was sized by, as the noise on the other values shows it, in every draw.

    ``low`` where one value is the least of all, ``high`` where it is ``BEYOND`` them.
    """

    low: Array
    high: Array
    threshold: float

    @property
    def mistaken(self) -> int:
        return int((self.low >= self.threshold).sum() + (self.high <= self.threshold).sum())

    @property
    def epsilon(self) -> float:
        """What epsilon is at least, at a confidence of 95%, where none is mistaken (else nothing)."""
        if self.mistaken:
            return 0.0
        error = 1 - 0.025 ** (1 / len(self.low))  # Clopper and Pearson, of either kind
        return log((1 - error) / error)


def ranges_seen(problem: Problem, draws: int = 100) -> Ranges:
    """Input perturbation with the data's own bounds, on data sets that differ in one value."""
    least = float(problem.printed.values.min())
    choice = [_range_seen(problem, value, seed) for value in (least, BEYOND) for seed in range(10)]
    low, high = (
        np.array([_range_seen(problem, value, 100 + seed) for seed in range(draws)])
        for value in (least, BEYOND)
    )
    return Ranges(low, high, float(np.mean(choice)))


def _range_seen(problem: Problem, value: float, seed: int) -> float:
    values, solver = problem.printed.values, PaperInput(noise=1 / CLAIMED)
    one = int(np.argmax(values))
    moved = values.copy()
    moved[one] = value
    data = problem.printed.with_values(moved)
    facts = printed_facts(problem, data)
    query = solver.ask(solver.init(Run(), facts))
    with Ledger(Value()).reserve(solver.charges(facts), Entropy(seed)) as reservation:
        noisy = reservation.ask(lambda draw: draw.release(query.clipped(Site(data, 1)))).values
    return CLAIMED * float(np.delete(np.abs(noisy - values), one).mean())


# -- point 2 --------------------------------------------------------------------------------------


class Spread(NamedTuple):
    """What moving one rating to the other end does to bi-scaled ones: how many move, and by how much."""

    moved: Array
    together: Array
    range: float


def spread_by_scaling(ratings: SparseTensor, tries: int = 20, seed: int = 0) -> Spread:
    """Bi-scale by day, before and after some single ratings are moved, one at a time."""
    scaled = BiScale.fit(ratings, slices="day").transform(ratings).values
    moved, together = [], []
    for entry in np.random.default_rng(seed).choice(ratings.n_entries, tries, replace=False):
        values = ratings.values.copy()
        values[entry] = 5.0 if values[entry] <= 3 else 1.0
        other = ratings.with_values(values, ratings.bounds)
        change = np.abs(BiScale.fit(other, slices="day").transform(other).values - scaled)
        moved.append(int((change > 1e-9).sum()))
        together.append(float(change.sum()))
    return Spread(np.array(moved), np.array(together), float(scaled.max() - scaled.min()))


# -- point 5 --------------------------------------------------------------------------------------


class Norms(NamedTuple):
    """Gradients of the last mode in a descent that clips none: the longest, and those at its end."""

    longest: float
    longer_than_clip: float
    longest_at_end: float


def gradient_norms(problem: Problem) -> Norms:
    """How long the gradients are that the clipping constant is to shorten."""
    models, printed = problem.models, problem.printed
    solver = PaperOutput(models.descent, clip=np.inf)
    query = solver.ask(solver.init(Run(problem.seed), printed_facts(problem)))
    state, longest = query.descended(Site(printed, 1), np.random.default_rng(0))
    model, cells, last = state.model, printed.coordinates, printed.order - 1
    error = printed.values - model.predict(cells)
    pull = models.descent.ridge_per_entry * model.factors[last][cells[last]]
    norms = np.linalg.norm(2 * (pull - error[:, None] * model.design(last, cells)), axis=1)
    return Norms(longest, float((norms > CLIP).mean()), float(norms.max()))


def main() -> None:
    seen = ranges_seen(invented("cp", "minmax", 0.5, 0))
    print(
        f"1. range seen {seen.low.mean():.3f} (sd {seen.low.std():.3f}) or {seen.high.mean():.3f} "
        f"({seen.high.std():.3f}); {seen.mistaken} of {2 * len(seen.low)} mistaken, so that epsilon "
        f"is at least {seen.epsilon:.1f}; claimed {CLAIMED:g}"
    )
    for kind in ("cp", "tucker"):
        norms = [gradient_norms(invented(kind, "minmax", 0.5, r)) for r in range(5)]
        longest, longer, at_end = np.mean(norms, axis=0)
        print(
            f"5. {kind}, means of 5 data sets: longest gradient {longest:.1f}; at the end {at_end:.2f}, "
            f"and {longer:.0%} are longer than {CLIP:g}"
        )
    ratings = days("cp", 0)
    spread = spread_by_scaling(ratings.plain)
    print(
        f"2. one of {len(spread.moved)} ratings moves {spread.moved.mean():.0f} scaled ones (most "
        f"{spread.moved.max()}), together by {spread.together.mean():.1f} (most "
        f"{spread.together.max():.1f}); their range is {spread.range:.2f}"
    )
    zero = ratings.printed_error(np.zeros(ratings.truth.size))
    print(f"Figure 4, split ua: RMSE {zero:.3f} where zero is predicted on the bi-scaled values")


if __name__ == "__main__":
    main()
