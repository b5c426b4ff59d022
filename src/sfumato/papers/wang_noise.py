"""Paper A, section 2: how much noise the robust power method bears, for three models of noise.

The size of noise is its operator norm, in units of the least weight. The threshold is the size at which
half of the runs miss a component.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from math import ceil, inf, log
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np

from sfumato.estimators.power import PowerMethod
from sfumato.papers.growth import Slope, bootstrapped, crossing
from sfumato.papers.paper import Experiment
from sfumato.papers.picture import COLOURS, FAINT, Band, Line, Panel, Row, Scale, draw_panels
from sfumato.papers.recovery import RECOVERED, Runs, component_points, gathered
from sfumato.papers.runner import Done, Headings, Job, Point
from sfumato.papers.wang_data import FIRST_SEED, NOISES, noisy_tensors
from sfumato.types import Array

if TYPE_CHECKING:
    from rich.table import Table


ITERATIONS = 30


class Scan(NamedTuple):
    """One kind of noise at some dimensions and numbers of components."""

    noise: str
    dimensions: tuple[int, ...]
    components: tuple[int, ...]
    sizes: tuple[float, ...]


def restarts(k: int) -> int:
    """Of the order of k log k, as theorem 2.2 asks for.

    Fewer than the estimator's default, since every start is a ticket in the same lottery: with many of
    them thresholds begin to fall with d only at sizes that no memory holds.
    """
    return max(1, ceil(2 * k * log(k)))


@dataclass(frozen=True)
class NoiseExperiment(Experiment):
    scans: tuple[Scan, ...]
    headings: ClassVar[Headings] = Headings("noise", "error", "component")

    @property
    def title(self) -> str:
        return "noise"

    def jobs(self) -> list[Job]:
        return [
            Job(scan.noise, "", scan.sizes, repetition, (("d", d), ("k", k)))
            for repetition in range(self.repetitions)
            for scan in self.scans
            for d in scan.dimensions
            for k in scan.components
        ]

    def do_job(self, job: Job) -> list[Point]:
        d, k = job.about["d"], job.about["k"]
        seed = FIRST_SEED + job.repetition
        points = []
        for size, tensor in zip(job.at, noisy_tensors(job.series, d, k, job.at, seed), strict=True):
            method = PowerMethod(k, restarts(k), ITERATIONS, seed=seed, threads=1).fit(tensor)
            points += component_points(size, method.components_, np.eye(k, d))
        return points

    def settings(self) -> dict[str, Any]:
        return {**asdict(self), **self.shared_settings()}

    def shared_settings(self) -> dict[str, Any]:
        return {
            "first_seed": FIRST_SEED,
            "restarts": "2 k ln k",
            "iterations": ITERATIONS,
            "weights": 1.0,
        }

    def findings(self, results: Sequence[Done]) -> dict[str, Any]:
        """Thresholds, and with which power of d or k they fall."""
        return {
            f"{noise}, by {axis}": {
                "model": NOISES[noise].model,
                axis: list(sizes),
                "threshold": [None if t == inf else t for t in thresholds],
                "slope": slope._asdict(),
                "guaranteed": guaranteed,
            }
            for noise, axis, sizes, thresholds, slope, guaranteed in _slopes(results)
        }

    def tables(self, results: Sequence[Done]) -> list[Table | str]:
        from sfumato.report.text import plain_table

        table = plain_table("noise", "by", "from, to", "slope", "5% to 95%", "paper")
        for noise, axis, _, thresholds, slope, guaranteed in _slopes(results):
            ends = ", ".join("none" if t == inf else f"{t:.3f}" for t in (thresholds[0], thresholds[-1]))
            spread = f"{slope.low:.2f} to {slope.high:.2f}"
            name = f"({NOISES[noise].model}) {noise}"
            table.add_row(name, axis, ends, f"{slope.slope:.2f}", spread, f"{guaranteed:g}")
        return [
            "noise at which half of the runs miss a component, over the least weight:",
            table,
        ]

    def draw(self, folder: Path, results: Sequence[Done]) -> list[Path]:
        return [_draw(folder / "noise.png", results, self.repetitions)]


# -- what came of it ------------------------------------------------------------------------------


class Found(NamedTuple):
    """Thresholds of one noise by d or k."""

    noise: str
    axis: str
    sizes: tuple[int, ...]
    thresholds: list[float]
    slope: Slope
    guaranteed: float


def _slopes(results: Sequence[Done]) -> list[Found]:
    runs = gathered(results)
    found = []
    for noise in NOISES:
        own = {key[1]: of for key, of in runs.items() if key[0] == noise}
        for axis, other in (("d", "k"), ("k", "d")):
            groups: dict[int, dict[int, Runs]] = {}
            for data, of in own.items():
                groups.setdefault(dict(data)[other], {})[dict(data)[axis]] = of
            scan = max(groups.values(), key=len, default={})
            if len(scan) > 1:
                found.append(_found(noise, axis, dict(sorted(scan.items()))))
    return found


def _found(noise: str, axis: str, runs: dict[int, Runs]) -> Found:
    at = next(iter(runs.values())).at

    def threshold(worst: Array) -> float:
        return crossing(at, (worst < RECOVERED).mean(axis=0).tolist(), 0.5)

    worst = [of.worst for of in runs.values()]
    guaranteed = NOISES[noise].guaranteed if axis == "d" else -0.5
    return Found(noise, axis, tuple(runs), *bootstrapped(tuple(runs), worst, threshold), guaranteed)


# -- pictures -------------------------------------------------------------------------------------


_MODELS = {1: "structureless", 2: "round", 3: "uncorrelated"}


def _draw(path: Path, results: Sequence[Done], repetitions: int) -> Path:
    """Thresholds by dimension for each model of noise, and by the number of components."""
    found = _slopes(results)
    thresholds = [t for each in found for t in each.thresholds if t < inf]
    scale = Scale("threshold / least weight", 0.7 * min(thresholds), 1.4 * max(thresholds))
    axes = {"d": "dimension d", "k": "number of components k"}
    rows = [
        Row(
            tuple(
                _threshold_panel(f"({model}) {name}", own, scale)
                for model, name in _MODELS.items()
                if (own := [e for e in found if e.axis == axis and NOISES[e.noise].model == model])
            ),
            scale,
            label,
        )
        for axis, label in axes.items()
    ]
    return draw_panels(
        path,
        [row for row in rows if row.panels],
        title="Paper A: noise that the robust power method bears, by the paper's three models",
        note=f"{repetitions} runs at each point; noise by its operator norm; threshold: half of "
        f"the runs find all components within {RECOVERED:g}",
        key=list(NOISES),
    )


def _threshold_panel(title: str, found: Sequence[Found], scale: Scale) -> Panel:
    """What was measured, and from each first point on the power that the paper says."""
    lines = [line for each in found for line in _threshold_lines(each, scale)]
    slopes = ", ".join(f"{each.slope.slope:.2f}" for each in found)
    return Panel(f"{title}: {slopes}; paper {found[0].guaranteed:g}", tuple(lines))


def _threshold_lines(found: Found, scale: Scale) -> tuple[Line, Line]:
    known = [(s, t) for s, t in zip(found.sizes, found.thresholds, strict=True) if t < inf]
    colour = COLOURS[list(NOISES).index(found.noise)]
    measured = Line(found.noise, tuple(Band(s, t, 0.0) for s, t in known), colour)
    # The guarantee has an unknown constant. Through the first point, it should stay below the others.
    first, height = known[0]
    last = float(known[-1][0])
    if found.guaranteed < 0:  # as far as the scale goes
        last = min(last, first * (scale.bottom / height) ** (1 / found.guaranteed))
    promised = tuple(Band(s, height * (s / first) ** found.guaranteed, 0.0) for s in (first, last))
    return Line("power in the paper", promised, FAINT, "--", ""), measured
