"""Paper E's study of coupled factorisation made again on UCLAF, beside the printed figures.

B. Ermis, "Bayesian approaches for privacy preserving data sharing", chapter 6. ``docs/papers/ermis.md``
says what came of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from time import process_time
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from sfumato.data.relations import Structure
from sfumato.estimators.coupled import Coupled
from sfumato.metrics import auc, rmse
from sfumato.papers import ermis_private
from sfumato.papers.ermis_data import (
    AS_PRINTED,
    LINKS,
    PLACES,
    SHARED,
    TRIPS_ONLY,
    Problem,
    by_means,
    by_visits,
    some_cells,
    some_entries,
    uclaf,
    whole_users,
)
from sfumato.papers.paper import Experiment, Paper
from sfumato.papers.runner import Cell, Done, Headings, Job, Point, Summary, summarise, write_csv
from sfumato.solvers.coupled.multiplicative import Multiplicative
from sfumato.solvers.coupled.variational import Variational

if TYPE_CHECKING:
    from rich.table import Table

FIRST_SEED = 0  # scored; settings were chosen on 1000 and on
BESIDE_FILE = "beside-printed.csv"
_MOST_COLUMNS = 3  # of a table: with more it is cut into several, or turned
WORSE = 0.02  # by more than this, the difference from what is printed has to be explained


# -- series ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Recipe:
    """How a series is fitted.

    ``dispersion`` is one for all relations, or of those named, one for the others. ``prior`` is the
    shape A and the mean B of all priors, held fast; None for no prior, or with variational Bayes to
    begin with ``FIRST_PRIOR`` and learn it.
    """

    solver: str = "ml"
    divergence: float = 1.0
    dispersion: float | Mapping[str, float] = 1.0
    sides: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    scaling: str = "binary"
    rank: int = 2
    prior: tuple[float, float] | None = None
    more: float = 0.0


FIRST_PRIOR = (0.5, 10.0)
MEANS, VISITED = "means", "visited, then means"
SIMPLE = {MEANS: by_means, VISITED: by_visits}  # no model
FEATURES_APART = {PLACES: 100.0}  # chosen for squared errors: with 1 the features take over
_EUCLIDEAN = Recipe(divergence=0.0)
_COUPLED = Recipe(sides=AS_PRINTED)
_VARIATIONAL = Recipe("vb")
_COUPLED_VB = Recipe("vb", sides=AS_PRINTED, scaling="logarithm")

RECIPES: dict[str, Recipe] = {
    "EUC": _EUCLIDEAN,
    "KL": Recipe(),
    "coupled EUC": replace(_EUCLIDEAN, sides=AS_PRINTED, dispersion=FEATURES_APART),
    "coupled EUC, equal phi": replace(_EUCLIDEAN, sides=AS_PRINTED),
    "coupled KL": _COUPLED,
    "coupled KL, trips only": replace(_COUPLED, sides=TRIPS_ONLY),
    "coupled KL, shared": replace(_COUPLED, sides=SHARED),
    "KL, MAP": Recipe(prior=(2.0, 0.5)),
    "coupled KL, MAP": replace(_COUPLED, prior=(2.0, 0.5)),
    "coupled beta": _COUPLED,  # the axis says which divergence
    "coupled beta, +0.01": replace(_COUPLED, more=0.01),
    "TF-ML": Recipe(),
    "TF-VB": _VARIATIONAL,
    "CTF-ML": _COUPLED,
    "CTF-VB": _COUPLED_VB,
    "CTF-VB, trips only": replace(_COUPLED_VB, sides=TRIPS_ONLY),
    "CTF-VB, shared": replace(_COUPLED_VB, sides=SHARED),
    **{
        f"{name}, A {a:g}, B {b:g}": replace(recipe, prior=(a, b))
        for name, recipe in (("TF-VB", _VARIATIONAL), ("CTF-VB", _COUPLED_VB))
        for a, b in ((0.5, 10.0), (10.0, 10.0), (100.0, 1.0))
    },
    **{
        f"{name}, K {rank}": replace(recipe, rank=rank)
        for name, recipe in (
            ("TF-ML", Recipe()),
            ("TF-VB", _VARIATIONAL),
            ("CTF-ML", _COUPLED),
            ("CTF-VB", _COUPLED_VB),
        )
        for rank in (2, 20)
    },
}


def fitted(problem: Problem, recipe: Recipe, structure: Structure, sweeps: int) -> Coupled:
    """A recipe's model of a problem's links."""
    relations = problem.relations(
        structure,
        recipe.divergence,
        recipe.sides,
        recipe.scaling,
        dispersion=recipe.dispersion,
        more=recipe.more,
    )
    return Coupled(recipe.rank, _solver(recipe, sweeps), seed=problem.seed, threads=1).fit(relations)


def _solver(recipe: Recipe, sweeps: int) -> Multiplicative | Variational:
    if recipe.solver == "vb":
        shape, mean = recipe.prior or FIRST_PRIOR
        learnt = recipe.prior is None
        return Variational(sweeps, prior_shape=shape, prior_mean=mean, learn_prior=learnt)
    if recipe.prior is None:
        return Multiplicative(sweeps)
    shape, mean = recipe.prior
    return Multiplicative(sweeps, prior_shape=shape, prior_mean=mean)


# -- studies --------------------------------------------------------------------------------------


FIGURE_5_MISSING = 0.9  # of the cells, as in the thesis
Data = Callable[[float, int], Problem]
AXES: dict[str, Data] = {
    "missing": some_cells,
    "training": some_entries,
    "users": whole_users,
    "p": lambda _, seed: some_cells(FIGURE_5_MISSING, seed),
}
_HEADINGS: dict[str, Callable[[float], str]] = {
    "missing": "{:.0%}".format,
    "training": "{:.0%}".format,
    "users": "{:.0f}".format,
    "p": "{:g}".format,
}


@dataclass(frozen=True)
class Study(Experiment):
    """A table or figure: series of models, over an axis.

    ``rows`` are series and models in the order of the table. ``shown`` are the measures in it.
    """

    name: str
    axis: str
    places: tuple[float, ...]
    rows: tuple[tuple[str, str], ...]
    shown: tuple[str, ...] = ("auc",)
    sweeps: int = 300
    headings: ClassVar[Headings] = Headings("at", "value", "measure")

    @property
    def title(self) -> str:
        return self.name

    @property
    def data(self) -> tuple[tuple[str, Any], ...]:
        return (("axis", self.axis),)

    def jobs(self) -> list[Job]:
        return [
            Job(series, model, (at,), repetition, self.data)
            for repetition in range(self.repetitions)
            for at in self.places
            for series, model in self.rows
            if not _left_out(series, at)
        ]

    def do_job(self, job: Job) -> list[Point]:
        (at,) = job.at
        problem = AXES[self.axis](at, FIRST_SEED + job.repetition)
        if job.series in SIMPLE:
            return self._judged(at, problem, SIMPLE[job.series](problem))
        recipe = RECIPES[job.series]
        if self.axis == "p":
            recipe = replace(recipe, divergence=at)
        structure: Structure = "tucker" if job.model == "tucker" else "cp"
        fitted(problem, recipe, structure, 1)  # kernels are loaded before the clock runs
        begin = process_time()
        model = fitted(problem, recipe, structure, self.sweeps)
        seconds = process_time() - begin
        points = self._judged(at, problem, model.predict(LINKS, problem.test))
        return [*points, Point(at, seconds, "seconds")]

    def _judged(self, at: float, problem: Problem, predicted: Any) -> list[Point]:
        measured = (rmse if self.axis == "training" else auc)(problem.test.values, predicted)
        return [Point(at, measured, self.shown[0])]

    def settings(self) -> dict[str, Any]:
        return {
            **asdict(self),
            **self.shared_settings(),
            "seeds": [FIRST_SEED + repetition for repetition in range(self.repetitions)],
            "seeds_for_choices": "1000 and on",
        }

    def shared_settings(self) -> dict[str, Any]:
        used = {series for series, _ in self.rows if series not in SIMPLE}
        return {
            "cells": int(uclaf().counts.size),
            "links": int((uclaf().counts > 0).sum()),
            "first_seed": FIRST_SEED,
            "sweeps": self.sweeps,
            "first_prior": FIRST_PRIOR,
            "recipes": {name: asdict(recipe) for name, recipe in RECIPES.items() if name in used},
        }

    # -- what came of it --------------------------------------------------------------------------

    def found(
        self, summaries: Mapping[Cell, Summary], row: tuple[str, str], at: float, measure: str
    ) -> Summary | None:
        return summaries.get(Cell(*row, self.data, at, measure))

    def beside(self, results: Sequence[Done]) -> list[Beside]:
        """What we get and what is printed, wherever something is printed."""
        summaries = summarise(results)
        places = [(row, at, m) for row in self.rows for at in self.places for m in self.shown]
        lines = []
        for row, at, measure in places:
            theirs, ours = self.printed(row, at, measure), self.found(summaries, row, at, measure)
            if theirs is not None and ours is not None:
                lines.append(Beside(*row, at, measure, ours.mean, ours.deviation, theirs))
        return lines

    def printed(self, row: tuple[str, str], at: float, measure: str) -> float | None:
        return PRINTED.get(self.name, {}).get((*row, measure), {}).get(at)

    def findings(self, results: Sequence[Done]) -> dict[str, Any]:
        """Where ours is worse than printed by more than 0.02, and each series less the simple one."""
        summaries, measure = summarise(results), self.shown[0]
        sign = -1 if measure == "rmse" else 1
        worse = [
            line._asdict()
            for line in self.beside(results)
            if line.measure == measure and sign * (line.ours - line.printed) < -WORSE
        ]
        gains = dict[str, dict[str, float]]()
        for row in self.rows:
            for at in self.places:
                ours = self.found(summaries, row, at, measure)
                simple = self.found(summaries, (MEANS, ""), at, measure)
                if ours is not None and simple is not None and row[0] not in SIMPLE:
                    gain = sign * (ours.mean - simple.mean)
                    gains.setdefault(" ".join(row), {})[f"{at:g}"] = round(gain, 4)
        return {"worse_than_printed": worse, "better_than_means_by": gains}

    def tables(self, results: Sequence[Done]) -> list[Table | str]:
        from sfumato.report.text import plain_table

        summaries, lines = summarise(results), list[Any]()
        turned = len(self.places) > 2 * _MOST_COLUMNS
        width = len(self.places) if turned or len(self.places) <= _MOST_COLUMNS + 1 else _MOST_COLUMNS
        for measure in self.shown:
            lines.append(f"{self.name}, {measure} by {self.axis}: ours, and (printed)")
            for first in range(0, len(self.places), width):
                grid = self._grid(summaries, self.places[first : first + width], measure)
                if turned:
                    grid = [list(column) for column in zip(*grid, strict=True)]
                table = plain_table(*grid[0])
                for line in grid[1:]:
                    table.add_row(*line)
                lines += [table, ""]
        return lines

    def _grid(
        self, summaries: Mapping[Cell, Summary], places: Sequence[float], measure: str
    ) -> list[list[str]]:
        """A heading, and a line for every row that has a value."""
        grid = [["", *(_HEADINGS[self.axis](at) for at in places)]]
        for row in self.rows:
            numbers = [
                _number(self.found(summaries, row, at, measure), self.printed(row, at, measure))
                for at in places
            ]
            if any(numbers):
                grid.append([_label(row), *numbers])
        return grid

    def draw(self, folder: Path, results: Sequence[Done]) -> list[Path]:
        from sfumato.papers import ermis_pictures

        path = folder / BESIDE_FILE
        lines = self.beside(results)
        write_csv(path, (*Beside._fields, "difference"), [(*b, b.ours - b.printed) for b in lines])
        return [path, ermis_pictures.draw(folder / "picture.png", self, summarise(results))]


class Beside(NamedTuple):
    """A mean of ours and the printed figure."""

    series: str
    model: str
    at: float
    measure: str
    ours: float
    deviation: float
    printed: float


def _left_out(series: str, at: float) -> bool:
    """At p = 2 a zero is infinitely far from every model: only raised values can be fitted."""
    return series == "coupled beta" and at >= 2


def _label(row: tuple[str, str]) -> str:
    series, model = row
    return series if not model else f"{NAMES[model]}, {series}"


def _number(ours: Summary | None, theirs: float | None) -> str:
    beside = "" if theirs is None else f" ({theirs:.3g})"
    return "" if ours is None else f"{ours.mean:.3f}{beside}"


NAMES = {"cp": "CP", "tucker": "Tucker"}
MODELS = tuple(NAMES)


def _both(*series: str) -> tuple[tuple[str, str], ...]:
    return tuple((each, model) for each in series for model in MODELS)


def _cp(*series: str) -> tuple[tuple[str, str], ...]:
    return tuple((each, "cp") for each in series)


_MEANS = ((MEANS, ""),)
_SIMPLE = (*_MEANS, (VISITED, ""))
_LOSSES = ("EUC", "KL", "coupled EUC", "coupled KL")
_PRIORS = ("A 0.5, B 10", "A 10, B 10", "A 100, B 1")
STUDIES = {
    "6.1": Study(
        "table 6.1",
        "training",
        (0.3, 0.5),
        (
            *_both("EUC", "KL", "coupled EUC, equal phi", "coupled KL", "KL, MAP", "coupled KL, MAP"),
            *_MEANS,
        ),
        ("rmse",),
        sweeps=30,
        repetitions=10,
    ),
    "6.2": Study(
        "table 6.2",
        "missing",
        (0.4, 0.6, 0.8, 0.9, 0.95),
        (
            *_both(*_LOSSES),
            *_cp("coupled EUC, equal phi", "coupled KL, trips only", "coupled KL, shared"),
            *_SIMPLE,
        ),
        repetitions=10,
    ),
    "6.5": Study(
        "table 6.5",
        "missing",
        (0.6, 0.8, 0.9),
        (*_cp("TF-ML", "TF-VB", "CTF-ML", "CTF-VB", "CTF-VB, trips only", "CTF-VB, shared"), *_SIMPLE),
        ("auc", "seconds"),
        repetitions=10,
    ),
    "figure 6.3": Study(
        "figure 6.3",
        "users",
        (10, 50),
        (*_both("coupled KL", "KL"), *_cp("coupled KL, trips only", "coupled KL, shared"), *_SIMPLE),
        repetitions=10,
    ),
    "figure 6.5": Study(
        "figure 6.5",
        "p",
        (0.0, 0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 1.75, 1.9, 2.0),
        (*_cp("coupled beta", "coupled beta, +0.01"), *_MEANS),
        sweeps=200,
        repetitions=10,
    ),
    "figure 6.6": Study(
        "figure 6.6",
        "missing",
        (0.4, 0.6, 0.8, 0.9),
        (
            *_cp("TF-VB", *(f"TF-VB, {prior}" for prior in _PRIORS)),
            *_cp("CTF-VB", *(f"CTF-VB, {prior}" for prior in _PRIORS)),
            *_MEANS,
        ),
        repetitions=10,
    ),
    "figure 6.7": Study(
        "figure 6.7",
        "missing",
        (0.4, 0.6, 0.8),
        (
            *_cp(
                *(f"{name}, K {k}" for name in ("CTF-ML", "CTF-VB", "TF-ML", "TF-VB") for k in (2, 20))
            ),
            *_MEANS,
        ),
        sweeps=200,
        repetitions=10,
    ),
}
QUICK = {
    key: replace(study, repetitions=2, sweeps=min(100, study.sweeps)) for key, study in STUDIES.items()
}
QUICK["6.2"] = replace(QUICK["6.2"], places=(0.8, 0.9), repetitions=1)
QUICK["figure 6.5"] = replace(QUICK["figure 6.5"], places=(0.0, 0.5, 1.0, 1.5, 2.0))
QUICK["figure 6.7"] = replace(QUICK["figure 6.7"], places=(0.6, 0.8), sweeps=60, repetitions=1)
PAPER = Paper(
    "ermis",
    "table",
    full=ermis_private.InOrder(STUDIES, *ermis_private.FULL),
    quick=ermis_private.InOrder(QUICK, *ermis_private.QUICK),
)

# -- what is printed ------------------------------------------------------------------------------

Place = tuple[str, str, str]  # series, model, measure


def _printed_6_1() -> dict[Place, dict[float, float]]:
    rows = {
        ("EUC", "cp"): (0.27, 0.28),
        ("KL", "cp"): (0.24, 0.23),
        ("EUC", "tucker"): (0.26, 0.26),
        ("KL", "tucker"): (0.22, 0.22),
        ("coupled EUC, equal phi", "cp"): (0.24, 0.23),
        ("coupled KL", "cp"): (0.19, 0.18),
        ("coupled EUC, equal phi", "tucker"): (0.22, 0.22),
        ("coupled KL", "tucker"): (0.18, 0.18),
    }
    return {(*row, "rmse"): dict(zip((0.3, 0.5), values, strict=True)) for row, values in rows.items()}


def _printed_6_2() -> dict[Place, dict[float, float]]:
    rows: dict[tuple[str, str], tuple[float, ...]] = {
        ("EUC", "cp"): (0.920, 0.808),
        ("KL", "cp"): (0.946, 0.867),
        ("EUC", "tucker"): (0.943, 0.896),
        ("KL", "tucker"): (0.960, 0.917),
        ("coupled EUC", "cp"): (0.951, 0.915, 0.813),
        ("coupled KL", "cp"): (0.968, 0.937, 0.869),
        ("coupled EUC", "tucker"): (0.965, 0.934, 0.871),
        ("coupled KL", "tucker"): (0.983, 0.948, 0.908),
    }
    return {(*row, "auc"): dict(zip((0.4, 0.8, 0.9), values)) for row, values in rows.items()}  # noqa: B905 - single models have none at 90%


def _printed_6_5() -> dict[Place, dict[float, float]]:
    scores = {
        "TF-ML": (0.940, 0.867, 0.844),
        "TF-VB": (0.973, 0.959, 0.917),
        "CTF-ML": (0.917, 0.892, 0.869),
        "CTF-VB": (0.981, 0.962, 0.939),
    }
    seconds = {
        "TF-ML": (1.69, 1.57, 1.43),
        "TF-VB": (2.12, 2.04, 1.93),
        "CTF-ML": (5.14, 5.08, 4.98),
        "CTF-VB": (6.19, 6.16, 6.01),
    }
    return {
        (series, "cp", measure): dict(zip((0.6, 0.8, 0.9), values, strict=True))
        for measure, rows in (("auc", scores), ("seconds", seconds))
        for series, values in rows.items()
    }


# Of the figures there are only pictures, from which no number was read.
PRINTED: dict[str, dict[Place, dict[float, float]]] = {
    "table 6.1": _printed_6_1(),
    "table 6.2": _printed_6_2(),
    "table 6.5": _printed_6_5(),
}
