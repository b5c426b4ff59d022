"""Paper A, section 4: the error of every component against epsilon, privately and by input perturbation.

One symmetric entry of the tensor is protected, which changes by at most one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from math import inf, sqrt
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np

from sfumato.estimators.power import PowerMethod
from sfumato.fit.request import Analysis, Privacy
from sfumato.papers.growth import Slope, bootstrapped, crossing
from sfumato.papers.paper import Experiment
from sfumato.papers.picture import (
    COLOURS,
    Band,
    Level,
    Line,
    Panel,
    Row,
    Scale,
    draw_panels,
    scale_to,
)
from sfumato.papers.recovery import RECOVERED, Runs, bands, component_points, gathered
from sfumato.papers.runner import Done, Headings, Job, Point
from sfumato.papers.wang_data import (
    FIRST_SEED,
    NOISE_SEEDS,
    low_rank,
    orthonormal,
    symmetric_gaussian,
)
from sfumato.privacy.accounting import gaussian_multiplier
from sfumato.privacy.budgets import Budget
from sfumato.privacy.units import TensorEntry
from sfumato.solvers.power.sensitivity import printed_multiplier
from sfumato.types import Array

if TYPE_CHECKING:
    from rich.table import Table

WEIGHTS = (400.0, 300.0, 200.0)
DELTA = 1e-6
PRIVATE_COUNTS = (8, 10)  # restarts and iterations: each takes its share of the budget
OPEN_COUNTS = (10, 25)
CURVES = ("private", "paper", "input")
LEVELS = ("not private", "random")
_NAMES = {
    "private": "private, proven",
    "paper": "private, noise as printed",
    "input": "input perturbation",
    "not private": "not private",
    "random": "random directions",
}
_COLOURS = {"private": COLOURS[1], "paper": COLOURS[0], "input": COLOURS[2]}


@dataclass(frozen=True)
class PrivateExperiment(Experiment):
    dimensions: tuple[int, ...]
    epsilons: tuple[float, ...]
    headings: ClassVar[Headings] = Headings("epsilon", "error", "component")

    @property
    def title(self) -> str:
        return "private"

    def jobs(self) -> list[Job]:
        return [
            Job(series, "", self.epsilons if series in CURVES else (), repetition, (("d", d),))
            for repetition in range(self.repetitions)
            for d in self.dimensions
            for series in (*CURVES, *LEVELS)
        ]

    def do_job(self, job: Job) -> list[Point]:
        problem = Problem.drawn(job.about["d"], FIRST_SEED + job.repetition)
        if job.series in LEVELS:
            return component_points(None, _LEVEL_FITS[job.series](problem), problem.truth)
        fit = _FITS[job.series]
        return [
            point
            for epsilon in job.at
            for point in component_points(epsilon, fit(problem, epsilon), problem.truth)
        ]

    def settings(self) -> dict[str, Any]:
        return {**asdict(self), **self.shared_settings()}

    def shared_settings(self) -> dict[str, Any]:
        return {
            "first_seed": FIRST_SEED,
            "noise_seed": f"data seed + {NOISE_SEEDS}",
            "weights": WEIGHTS,
            "delta": DELTA,
            "unit": repr(TensorEntry(1.0)),
            "restarts, iterations": {"private": PRIVATE_COUNTS, "not private": OPEN_COUNTS},
        }

    def findings(self, results: Sequence[Done]) -> dict[str, Any]:
        """The epsilon at which half of the runs recover all, with which power of d it grows, and by how
        much the printed noise exceeds what as many questions of the same sensitivity need."""
        needed = {
            each.series: {
                "d": list(each.dimensions),
                "epsilon": [None if e == inf else e for e in each.needed],
                "slope": each.slope._asdict(),
            }
            for each in _needed(results)
        }
        return {**needed, "printed over needed noise": _noise_ratios(self.epsilons)}

    def tables(self, results: Sequence[Done]) -> list[Table | str]:
        from sfumato.report.text import plain_table

        lines: list[Table | str] = ["median error of every component at epsilon"]
        runs = gathered(results)
        for d in self.dimensions:
            table = plain_table(f"d = {d}", *(f"{epsilon:g}" for epsilon in self.epsilons))
            for series in CURVES:
                median = np.median(runs[series, (("d", d),)].errors, axis=0)  # by place and component
                for number, row in enumerate(median.T.tolist(), 1):
                    table.add_row(f"{series} {number}", *(f"{error:.2f}" for error in row))
            beside = [f"{np.median(runs[name, (('d', d),)].worst):.2g}, {name}" for name in LEVELS]
            lines += [table, f"largest error: {'; '.join(beside)}", ""]
        table = plain_table("epsilon needed", *(f"d = {d}" for d in self.dimensions), "slope")
        for each in _needed(results):
            cells = ["" if e == inf else f"{e:.2f}" for e in each.needed]
            table.add_row(each.series, *cells, f"{each.slope.slope:.2f}")
        return [*lines, table]

    def draw(self, folder: Path, results: Sequence[Done]) -> list[Path]:
        return [
            _draw_errors(folder / "private.png", self, results),
            _draw_needed(folder / "private-by-dimension.png", self, results),
        ]


# -- fits -----------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Problem:
    """A low-rank tensor with dense random components."""

    tensor: Array
    truth: Array
    seed: int

    @classmethod
    def drawn(cls, d: int, seed: int) -> Problem:
        truth = orthonormal(len(WEIGHTS), d, np.random.default_rng(seed))
        return cls(low_rank(np.array(WEIGHTS), truth), truth, seed)

    @property
    def noise(self) -> np.random.Generator:
        return np.random.default_rng(NOISE_SEEDS + self.seed)

    def method(self, privacy: Privacy | None = None) -> PowerMethod:
        counts = OPEN_COUNTS if privacy is None else PRIVATE_COUNTS
        return PowerMethod(len(WEIGHTS), *counts, privacy=privacy, seed=self.seed, threads=1)


def _private(analysis: Analysis, problem: Problem, epsilon: float) -> Array:
    privacy = Privacy(
        epsilon,
        DELTA,
        unit=TensorEntry(1.0),
        analysis=analysis,
        seed=NOISE_SEEDS + problem.seed,
    )
    return problem.method(privacy).fit(problem.tensor).components_


def _input(problem: Problem, epsilon: float) -> Array:
    """Noise on every different entry, of which one changes by one; then the method without privacy."""
    deviation = gaussian_multiplier(Budget(epsilon, DELTA))
    noise = symmetric_gaussian(len(problem.tensor), problem.noise, alike=True)
    return problem.method().fit(problem.tensor + deviation * noise).components_


def _open(problem: Problem) -> Array:
    return problem.method().fit(problem.tensor).components_


def _random(problem: Problem) -> Array:
    return problem.noise.standard_normal(problem.truth.shape)


_FITS: dict[str, Callable[[Problem, float], Array]] = {
    "private": partial(_private, "proven"),
    "paper": partial(_private, "paper"),
    "input": _input,
}
_LEVEL_FITS: dict[str, Callable[[Problem], Array]] = {"not private": _open, "random": _random}


# -- what came of it ------------------------------------------------------------------------------


class Needed(NamedTuple):
    """The least epsilon from which half of the runs recover all components."""

    series: str
    dimensions: tuple[int, ...]
    needed: list[float]
    slope: Slope


def _needed(results: Sequence[Done]) -> list[Needed]:
    runs = gathered(results)
    found = []
    for series in CURVES:
        own = {dict(key[1])["d"]: of for key, of in runs.items() if key[0] == series}
        at = next(iter(own.values())).at

        def threshold(worst: Array, at: tuple[float, ...] = at) -> float:
            """From the largest epsilon down to where half of the runs fail."""
            median = np.median(worst, axis=0)[::-1]
            return crossing(at[::-1], np.log(median / RECOVERED).tolist(), 0.0)

        worst = [of.worst for of in own.values()]
        found.append(Needed(series, tuple(own), *bootstrapped(tuple(own), worst, threshold)))
    return found


def _noise_ratios(epsilons: Sequence[float]) -> dict[str, float]:
    restarts, iterations = PRIVATE_COUNTS
    questions = len(WEIGHTS) * restarts * (iterations + 1)
    budgets = {f"{epsilon:g}": Budget(epsilon, DELTA) for epsilon in epsilons}
    return {
        epsilon: printed_multiplier(budget, questions) / (gaussian_multiplier(budget) * sqrt(questions))
        for epsilon, budget in budgets.items()
    }


# -- pictures -------------------------------------------------------------------------------------


def _draw_errors(path: Path, experiment: PrivateExperiment, results: Sequence[Done]) -> Path:
    runs = gathered(results)
    rows = []
    for component in range(len(WEIGHTS)):
        panels = tuple(_panel(runs, d, component) for d in experiment.dimensions)
        rows.append(Row(panels, scale_to(1.6, panels, f"error of component {component + 1}")))
    return draw_panels(
        path,
        rows,
        title="Paper A: error of every component against epsilon, one entry protected",
        note=f"median of {experiment.repetitions} runs, between quartiles; weights "
        f"{', '.join(f'{weight:g}' for weight in WEIGHTS)}; an entry changes by at most 1; "
        f"delta {DELTA:g}; the noise as printed is for a wider notion of neighbours",
    )


def _panel(runs: dict[Any, Runs], d: int, component: int) -> Panel:
    data = (("d", d),)
    lines = []
    for series in CURVES:
        of = runs[series, data]
        median = bands(of.at, of.errors[:, :, component])
        lines.append(Line(_NAMES[series], median, _COLOURS[series]))
    height = float(np.median(runs["random", data].errors[:, 0, component]))
    return Panel(f"d = {d}", tuple(lines), (Level(_NAMES["random"], height),))


def _draw_needed(path: Path, experiment: PrivateExperiment, results: Sequence[Done]) -> Path:
    needed = _needed(results)
    lines = []
    for each in needed:
        known = [(d, e) for d, e in zip(each.dimensions, each.needed, strict=True) if e < inf]
        if known:
            curve = tuple(Band(d, e, 0.0) for d, e in known)
            lines.append(Line(_NAMES[each.series], curve, _COLOURS[each.series]))
    heights = [band.mean for line in lines for band in line.bands]
    scale = Scale("epsilon needed", 0.7 * min(heights), 1.4 * max(heights))
    return draw_panels(
        path,
        [Row((Panel("", tuple(lines)),), scale, "dimension d")],
        title="Paper A: epsilon from which all components are recovered",
        note=f"half of {experiment.repetitions} runs have all errors below {RECOVERED:g}; slopes: "
        + ", ".join(f"{each.series} {each.slope.slope:.2f}" for each in needed),
    )
