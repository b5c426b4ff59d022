"""Paper A, section 3: how many samples of a stream the online power method needs, by dimension.

*Reused*, the whole stream answers every question; *fresh*, as printed, each question is answered by
samples of its own, and the stream is read once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from math import inf, sqrt
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np

from sfumato.estimators.power import PowerMethod
from sfumato.papers.growth import Slope, bootstrapped, crossing, slope_of
from sfumato.papers.paper import Experiment
from sfumato.papers.picture import (
    COLOURS,
    INK,
    Band,
    Line,
    Panel,
    Row,
    Scale,
    draw_panels,
    short_name,
)
from sfumato.papers.recovery import Runs, bands, component_points, gathered
from sfumato.papers.runner import Done, Headings, Job, Point
from sfumato.papers.wang_data import FIRST_SEED, NOISE_SEEDS, Stream, orthonormal
from sfumato.types import Array

if TYPE_CHECKING:
    from rich.table import Table

SERIES = ("reused", "fresh")
RESTARTS = 10
ITERATIONS = {"reused": 25, "fresh": 10}  # fewer where each has samples of its own
# Errors to reach: a constant, and that of corollary 3.1, for which it names d^2 samples.
TARGETS: dict[str, Callable[[int], float]] = {"0.5": lambda _: 0.5, "1/√d": lambda d: 1 / sqrt(d)}


@dataclass(frozen=True)
class StreamExperiment(Experiment):
    dimensions: tuple[int, ...]
    samples: tuple[int, ...]
    fresh_samples: tuple[int, ...]
    components: int = 3
    headings: ClassVar[Headings] = Headings("samples", "error", "component")

    @property
    def title(self) -> str:
        return "stream"

    def jobs(self) -> list[Job]:
        counts = {"reused": self.samples, "fresh": self.fresh_samples}
        return [
            Job(series, "", counts[series], repetition, (("d", d), ("k", self.components)))
            for repetition in range(self.repetitions)
            for d in self.dimensions
            for series in SERIES
        ]

    def do_job(self, job: Job) -> list[Point]:
        d, k = job.about["d"], job.about["k"]
        seed = FIRST_SEED + job.repetition
        truth = orthonormal(k, d, np.random.default_rng(seed))
        stream = Stream(truth, NOISE_SEEDS + seed)
        fit = _fit_reused if job.series == "reused" else _fit_fresh
        points = []
        for count in job.at:
            points += component_points(count, fit(k, stream, int(count), seed), truth)
        return points

    def settings(self) -> dict[str, Any]:
        return {**asdict(self), **self.shared_settings()}

    def shared_settings(self) -> dict[str, Any]:
        return {
            "first_seed": FIRST_SEED,
            "stream_seed": f"data seed + {NOISE_SEEDS}",
            "restarts": RESTARTS,
            "iterations": ITERATIONS,
        }

    def findings(self, results: Sequence[Done]) -> dict[str, Any]:
        """Samples that reach an error, how they grow with d, and how errors fall with samples."""
        found: dict[str, Any] = {
            f"samples for an error of {each.target}, {each.series}": {
                "d": list(each.dimensions),
                "samples": [None if n == inf else n for n in each.needed],
                "slope": each.slope._asdict(),
            }
            for each in _needed(results)
        }
        for (series, data), of in gathered(results).items():
            found[f"error by samples, {series}, d = {dict(data)['d']}"] = _error_slope(of)
        return found

    def tables(self, results: Sequence[Done]) -> list[Table | str]:
        from sfumato.report.text import plain_table

        lines: list[Table | str] = []
        for series in SERIES:
            own = {dict(k[1])["d"]: of for k, of in gathered(results).items() if k[0] == series}
            counts = next(iter(own.values())).at
            table = plain_table(f"{series}: samples", *(short_name(count) for count in counts))
            for d, of in own.items():
                table.add_row(f"d = {d}", *(f"{e:.3f}" for e in np.median(of.worst, axis=0)))
            lines += ["median over runs of the largest error over components", table, ""]
        table = plain_table("samples for an error of", *(f"d = {d}" for d in self.dimensions), "slope")
        for each in _needed(results):
            counted = ["" if n == inf else f"{n:,.0f}" for n in each.needed]
            table.add_row(f"{each.target}, {each.series}", *counted, f"{each.slope.slope:.2f}")
        return [*lines, table]

    def draw(self, folder: Path, results: Sequence[Done]) -> list[Path]:
        return [_draw(folder / "stream.png", results, self.repetitions)]


def _fit_reused(k: int, stream: Stream, count: int, seed: int) -> Array:
    samples = np.concatenate(list(stream.blocks(count)))
    method = PowerMethod(k, RESTARTS, ITERATIONS["reused"], seed=seed, threads=1)
    return method.fit_stream(samples).components_


def _fit_fresh(k: int, stream: Stream, count: int, seed: int) -> Array:
    iterations = ITERATIONS["fresh"]
    each = count // (k * (iterations + 1))
    method = PowerMethod(k, RESTARTS, iterations, samples=each, seed=seed, threads=1)
    return method.fit_stream(stream.blocks(count), reuse=False).components_


# -- what came of it ------------------------------------------------------------------------------


class Needed(NamedTuple):
    """Samples that half of the runs need to reach an error."""

    series: str
    target: str
    dimensions: tuple[int, ...]
    needed: list[float]
    slope: Slope


def _needed(results: Sequence[Done]) -> list[Needed]:
    runs = gathered(results)
    found = []
    for series in SERIES:
        own = {dict(key[1])["d"]: of for key, of in runs.items() if key[0] == series}
        at = next(iter(own.values())).at
        for target, error in TARGETS.items():
            # Errors over their target: the level is then one for every dimension.
            worst = [of.worst / error(d) for d, of in own.items()]

            def threshold(errors: Array, at: tuple[float, ...] = at) -> float:
                return crossing(at, np.log(np.median(errors, axis=0)).tolist(), 0.0)

            needed = bootstrapped(tuple(own), worst, threshold)
            found.append(Needed(series, target, tuple(own), *needed))
    return found


def _error_slope(runs: Runs) -> float | None:
    """The power of the number of samples with which the median error falls, where it is below a half."""
    median = np.median(runs.worst, axis=0)
    low = median < 0.5
    if low.sum() < 2:
        return None
    return slope_of(np.array(runs.at)[low].tolist(), median[low].tolist())


# -- pictures -------------------------------------------------------------------------------------


def _draw(path: Path, results: Sequence[Done], repetitions: int) -> Path:
    runs, needed = gathered(results), _needed(results)
    dimensions = sorted({dict(data)["d"] for _, data in runs})
    upper = tuple(_error_panel(series, runs, dimensions) for series in SERIES)
    lower = tuple(_needed_panel(series, needed) for series in SERIES)
    counts = [n for each in needed for n in each.needed if n < inf]
    least = min(band.mean for panel in upper for line in panel.lines for band in line.bands)
    return draw_panels(
        path,
        [
            Row(upper, Scale("largest error", 0.8 * least, 1.6), "samples in all"),
            Row(lower, Scale("samples needed", 0.5 * min(counts), 2 * max(counts)), "dimension d"),
        ],
        title="Paper A: samples of a stream that the online power method needs",
        note=f"median of {repetitions} runs, between quartiles; largest error over "
        "components; fresh: every question has samples of its own",
    )


def _error_panel(series: str, runs: dict[Any, Runs], dimensions: list[int]) -> Panel:
    lines = []
    for (name, data), of in runs.items():
        if name == series:
            d = dict(data)["d"]
            colour = COLOURS[dimensions.index(d) % len(COLOURS)]
            lines.append(Line(f"d = {d}", bands(of.at, of.worst), colour))
    at = next(of.at for (name, _), of in runs.items() if name == series)
    begin = lines[0].bands[-1].mean * sqrt(at[-1] / at[0])
    falling = (Band(at[0], begin, 0.0), Band(at[-1], lines[0].bands[-1].mean, 0.0))
    lines.append(Line("power -1/2", falling, "#8a97a3", "--", ""))
    return Panel(series, tuple(lines))


def _needed_panel(series: str, needed: list[Needed]) -> Panel:
    lines = []
    for each, colour in zip((e for e in needed if e.series == series), (INK, COLOURS[4]), strict=True):
        known = [(d, n) for d, n in zip(each.dimensions, each.needed, strict=True) if n < inf]
        if known:
            name = f"error {each.target}"
            lines.append(Line(name, tuple(Band(d, n, 0.0) for d, n in known), colour))
    slopes = ", ".join(f"{e.slope.slope:.1f}" for e in needed if e.series == series)
    return Panel(f"{series}: slopes {slopes}", tuple(lines))
