"""What the planner expects beside what fits then reach.

    python -m benchmarks planner [--quick]
    python -m benchmarks.planner --fit [--quick]     # the planner's constants, from invented data alone

Noise is seeded. MovieLens, where it is found, is only scored: no constant is fitted to it.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from math import sqrt
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np

import sfumato as sf
from benchmarks.report import Figure, say
from sfumato.fit import planner
from sfumato.fit.admit import with_labels_of
from sfumato.fit.outlook import Outlook
from sfumato.fit.plan import PrivatePlan
from sfumato.privacy.facts import Facts
from sfumato.solvers.private.moments.settings import usual_rank
from sfumato.types import Array

Pair = tuple[sf.SparseTensor, sf.SparseTensor]
CLOSE = 0.1  # of the measured ratio to the private constant
DELTAS = {"entry": 1e-6, "user": 1e-5}


@dataclass(frozen=True)
class Shape:
    """A size of invented data; a mode named day holds times."""

    what: str
    sizes: tuple[int, ...]
    entries: int
    names: tuple[str, ...] = ("user", "item")

    def data(self, seed: int) -> Pair:
        modes = [
            sf.Mode(name, size, bin="day" if name == "day" else None)
            for name, size in zip(self.names, self.sizes, strict=True)
        ]
        return sf.synthetic.typical(modes, self.entries, seed=seed).tensor.split(0.2, seed=seed)


QUICK = Shape("small", (600, 400), 40_000)
SHAPES = (
    QUICK,
    Shape("wide", (1000, 1700), 100_000),
    Shape("tall", (4000, 800), 300_000),
    Shape("by day", (800, 1000, 60), 100_000, ("user", "item", "day")),
    Shape("three modes", (600, 300, 40), 200_000, ("user", "item", "place")),
)
LARGE = Shape("large", (6000, 3700), 1_000_000)


@dataclass(frozen=True)
class Case:
    """Data, what is protected, and the budget."""

    what: str
    pair: Pair
    unit: str
    local: str | None
    epsilon: float
    seed: int

    def privacy(self, method: Any) -> sf.Privacy:
        train = self.pair[0]
        return sf.Privacy(
            self.epsilon,
            DELTAS[self.unit],
            unit=self.unit,
            local=self.local,
            method=method,
            public=with_labels_of(train.modes, sf.Public(entries=train.n_entries)),
            seed=self.seed + 1000,
        )

    @cached_property
    def facts(self) -> Facts:
        train, _ = self.pair
        plan = sf.CP(1, privacy=self.privacy("constant")).plan(train.modes, bounds=train.bounds)
        assert isinstance(plan, PrivatePlan)
        return plan.task.facts

    @cached_property
    def outlook(self) -> Outlook:
        return Outlook(self.facts)

    @property
    def budget(self) -> sf.Budget:
        return sf.Budget(self.epsilon, DELTAS[self.unit])

    @cached_property
    def constant(self) -> float:
        """RMSE of the private constant."""
        return self.rmse("constant", 1)

    def rmse(self, method: Any, rank: int) -> float:
        train, test = self.pair
        return sf.CP(rank, privacy=self.privacy(method)).fit(train).rmse(test)


def cases(data: Sequence[tuple[str, Pair]], epsilons: Sequence[float], seed: int) -> Iterator[Case]:
    for what, pair in data:
        for unit, local in (("entry", "user"), ("entry", None), ("user", "user")):
            for epsilon in epsilons:
                whom = f"{unit}{', all released' if local is None else ''}"
                yield Case(f"{what}, {whom}, epsilon {epsilon:g}", pair, unit, local, epsilon, seed)


# -- what is expected of the plan's own choice ----------------------------------------------------

EPSILONS = (10.0, 3.0, 1.0, 0.3, 0.1)
TEST_SEED = 100  # constants were fitted to others


def run(quick: bool) -> list[Figure]:
    shapes = (QUICK,) if quick else (*SHAPES, LARGE)
    figures = []
    for shape in shapes:
        figures += _beside((shape.what, shape.data(TEST_SEED)), quick)
    for what, load in () if quick else _MOVIELENS:
        try:
            figures += _beside((what, load()), quick)
        except sf.SfumatoError as error:
            say(f"{what} is skipped: {error}")
    return figures


_MOVIELENS: tuple[tuple[str, Callable[[], Pair]], ...] = (
    ("ML-100K ua", lambda: sf.datasets.movielens_split("100k", "ua")),
    ("ML-100K ua by day", lambda: sf.datasets.movielens_split("100k", "ua", time="day")),
    ("ML-1M random 80/20", lambda: sf.datasets.movielens("1m").split(0.2, seed=0)),
)


def _beside(data: tuple[str, Pair], quick: bool) -> list[Figure]:
    """Expected and measured ratios to the private constant, of biases and of the plan's choice."""
    figures = []
    for case in cases([data], (10.0, 1.0) if quick else EPSILONS, TEST_SEED):
        begin = perf_counter()
        forecast = planner.forecast(case.facts, case.budget)
        best = forecast.best
        chosen = f"rank {best.rank}" if best.rank else best.method
        wanted = {"biases": forecast.biases, f"plan ({chosen})": best}
        for name, expectation in wanted.items():
            measured = case.rmse(expectation.method, expectation.rank or 1) / case.constant
            off = abs(expectation.ratio / measured - 1)
            low, high = expectation.band
            text = f"{expectation.ratio:.3f} expected ({low:.3f} to {high:.3f}), {measured:.3f} measured"
            figures.append(Figure(f"{case.what}, {name}: off by", off, text, CLOSE))
        say(f"{case.what}: {figures[-1].text}, {chosen}; {perf_counter() - begin:.0f} s")
    return figures


# -- the planner's constants ----------------------------------------------------------------------


RANKS = (0, 1, 2, 4, 8)  # none: biases


class Measured(NamedTuple):
    """One fit, relative to the private constant."""

    case: Case
    method: str
    rank: int
    ratio: float


def measure(shapes: Sequence[Shape], epsilons: Sequence[float], seeds: Sequence[int]) -> list[Measured]:
    found, failed = [], 0
    for shape, seed in product(shapes, seeds):
        for case in cases([(shape.what, shape.data(seed))], epsilons, seed):
            ratios, methods = [], [("alternating" if rank else "bias", rank) for rank in RANKS]
            if planner.serves_moments(case.facts, case.budget) and len(case.outlook.timeless) == 2:
                methods.append(("moments", usual_rank(case.facts)))
            for method, rank in methods:
                try:
                    ratios.append(case.rmse(method, rank or 1) / case.constant)
                except (np.linalg.LinAlgError, sf.SfumatoError) as error:
                    say(f"{case.what}, rank {rank}, seed {seed} failed and is left out: {error}")
                    failed += 1
                    continue
                found.append(Measured(case, method, rank, ratios[-1]))
            say(f"{case.what}, seed {seed}: {'  '.join(f'{ratio:.3f}' for ratio in ratios)}")
    say(f"{len(found)} fits, {failed} failed")
    return found


def misses(found: Sequence[Measured], efficiency: planner.Efficiency) -> Array:
    """Logarithms of expected over measured ratios."""
    return np.log([_expected(m, m.method, m.rank, efficiency) / m.ratio for m in found])


def _expected(m: Measured, method: str, rank: int, efficiency: planner.Efficiency) -> float:
    outlook, budget = m.case.outlook, m.case.budget
    error = planner.expected(outlook, budget, method, rank, efficiency).error
    return sqrt(error / planner.expected(outlook, budget, "constant", 0).error)


def fit_constants(found: Sequence[Measured]) -> planner.Efficiency:
    """The factors whose mean miss is least, to two digits: first of biases, then of the rest."""
    efficiency = planner.Efficiency(1.0, 1.0, 1.0, 1.0)
    for name, those in (
        ("biases", [m for m in found if m.method == "bias"]),
        ("entries", [m for m in found if m.method == "alternating" and m.case.unit == "entry"]),
        ("units", [m for m in found if m.method == "alternating" and m.case.unit == "user"]),
        ("moments", [m for m in found if m.method == "moments"]),
    ):
        factors = np.geomspace(1, 10, 13)
        sizes = [np.abs(misses(those, efficiency._replace(**{name: f}))).mean() for f in factors]
        best = float(f"{factors[int(np.argmin(sizes))]:.2g}")
        efficiency = efficiency._replace(**{name: best})
        say(f"{name}: factor {best:g}; {_in_words(misses(those, efficiency))}")
    return efficiency


def say_bands(found: Sequence[Measured], efficiency: planner.Efficiency) -> None:
    """Misses of biases, and of factors where they are expected to be as good as biases."""
    chosen = [
        m
        for m in found
        if m.rank and _expected(m, m.method, m.rank, efficiency) <= _expected(m, "bias", 0, efficiency)
    ]
    for what, those in (
        ("biases", [m for m in found if not m.rank]),
        ("factors", [m for m in chosen if len(m.case.outlook.timeless) < 3]),
        ("factors of three modes", [m for m in chosen if len(m.case.outlook.timeless) >= 3]),
    ):
        if those:
            off = misses(those, efficiency)
            say(f"band of {what}: {2 * np.sqrt(np.mean(off**2)):.3f}; {_in_words(off)}")


def _in_words(off: Array) -> str:
    within = np.mean(np.abs(off) <= CLOSE)
    return (
        f"{off.size} fits, misses {off.mean():+.3f} on average, root mean square "
        f"{np.sqrt(np.mean(off**2)):.3f}, worst {np.abs(off).max():.3f}, {within:.0%} within {CLOSE:.0%}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.planner", description=__doc__)
    parser.add_argument("--fit", action="store_true", required=True, help="fit the constants")
    parser.add_argument("--quick", action="store_true", help="one small shape: proves that it runs")
    quick = parser.parse_args().quick
    shapes, seeds = ((QUICK,), (0,)) if quick else (SHAPES, (0, 1, 2))
    found = measure(shapes, (10.0, 1.0) if quick else EPSILONS, seeds)
    efficiency = fit_constants(found)
    say_bands(found, efficiency)
    say(str(efficiency))


if __name__ == "__main__":
    main()
