"""How much noise paper E's private chapters add, as printed, and what that noise really promises.

Both recipes size Gaussian noise for T steps, each on a share nu of the data: one composes by advanced
composition (AC), one by what it calls zCDP. Amplification by sampling does not hold for zCDP the way it
is used, and the text of appendix E has a root in the wrong place; figures 7.7 and 8.2 draw sigma over
epsilon. Beside them stand the least noise that is proven, and the epsilon that each sigma really has, by
its privacy loss distribution.

B. Ermis, "Bayesian approaches for privacy preserving data sharing", 7.2.1, 8.1.1 and appendix E.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from sfumato.papers.paper import Experiment
from sfumato.papers.picture import COLOURS, Band, Line, Panel, Row, draw_panels, scale_to
from sfumato.papers.runner import Cell, Done, Headings, Job, Point, summarise
from sfumato.privacy.accounting import calibrate, epsilon_of
from sfumato.privacy.budgets import Budget
from sfumato.privacy.events import Event, Repeated, SampledGaussianEvent
from sfumato.solvers.as_printed.ermis_noise import (
    Setting,
    advanced_composition,
    concentrated,
    concentrated_as_printed,
)

if TYPE_CHECKING:
    from rich.table import Table

EPSILONS = (0.1, 0.5, 1.0, 2.0, 5.0, 10.0)
SIGMA, TRUE = "sigma", "true epsilon"


# -- recipes --------------------------------------------------------------------------------------


def proven(setting: Setting, epsilon: float) -> float:
    """The least sigma that keeps the budget: of Poisson samples, by the privacy loss distribution."""

    def event_at(noise: float) -> Event:
        return _event(setting, noise)

    return calibrate(event_at, Budget(epsilon, setting.delta))


def true_epsilon(setting: Setting, sigma: float) -> float:
    """What so much noise really promises, where a record is added or removed and clipped by itself."""
    return epsilon_of(_event(setting, sigma), setting.delta)


def _event(setting: Setting, noise: float) -> Event:
    return Repeated(SampledGaussianEvent(noise, setting.rate, False), setting.steps)


RECIPES = {
    "AC": advanced_composition,
    "zCDP, as meant": concentrated,
    "zCDP, as printed": concentrated_as_printed,
    "proven (PLD)": proven,
}

# -- figures --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Noise(Experiment):
    """Sigma over epsilon, by recipe, for some settings; ``printed`` are numbers in the text."""

    name: str
    settings_of: tuple[Setting, ...]
    epsilons: tuple[float, ...] = EPSILONS
    printed: tuple[tuple[str, str, float, float], ...] = ()  # setting, recipe, epsilon, sigma
    headings: ClassVar[Headings] = Headings("epsilon", "value", "measure")

    @property
    def title(self) -> str:
        return self.name

    def jobs(self) -> list[Job]:
        return [Job(recipe, s.name, self.epsilons, 0) for s in self.settings_of for recipe in RECIPES]

    def do_job(self, job: Job) -> list[Point]:
        setting = next(each for each in self.settings_of if each.name == job.model)
        points = []
        for epsilon in job.at:
            sigma = RECIPES[job.series](setting, epsilon)
            points += [Point(epsilon, sigma, SIGMA), Point(epsilon, true_epsilon(setting, sigma), TRUE)]
        return points

    def settings(self) -> dict[str, Any]:
        return asdict(self)

    def shared_settings(self) -> dict[str, Any]:
        return {"settings": [each._asdict() for each in self.settings_of]}

    def findings(self, results: Sequence[Done]) -> dict[str, Any]:
        """Where a recipe promises more than it keeps, and what is printed beside what it gives."""
        found = summarise(results)
        broken = {
            f"{cell.model}, {cell.series}, epsilon {cell.at:g}": round(each.mean, 3)
            for cell, each in found.items()
            if cell.part == TRUE and cell.at is not None and each.mean > cell.at * (1 + 1e-3)
        }
        beside = {
            f"{setting}, {recipe}, epsilon {epsilon:g}": [round(found[cell].mean, 3), sigma]
            for setting, recipe, epsilon, sigma in self.printed
            if (cell := Cell(recipe, setting, (), epsilon, SIGMA)) in found
        }
        return {"true_epsilon_where_more_than_promised": broken, "sigma_and_printed": beside}

    def tables(self, results: Sequence[Done]) -> list[Table | str]:
        from sfumato.report.text import plain_table

        found, lines = summarise(results), list[Any]()
        for setting in self.settings_of:
            lines.append(
                f"{setting.name}: {setting.steps:,} steps on {setting.rate:g} of the data, delta "
                f"{setting.delta:g}; sigma, and (the epsilon that it has)"
            )
            table = plain_table("promised", *(f"{epsilon:g}" for epsilon in self.epsilons))
            for recipe in RECIPES:
                cells = [
                    [found[Cell(recipe, setting.name, (), at, part)].mean for part in (SIGMA, TRUE)]
                    for at in self.epsilons
                ]
                table.add_row(recipe, *(f"{sigma:.3g} ({true:.2g})" for sigma, true in cells))
            lines += [table, ""]
        return lines

    def draw(self, folder: Path, results: Sequence[Done]) -> list[Path]:
        found = summarise(results)
        panels = tuple(
            Panel(
                setting.name,
                tuple(
                    Line(recipe, self._bands(found, recipe, setting.name), COLOURS[n])
                    for n, recipe in enumerate(RECIPES)
                ),
                (),
            )
            for setting in self.settings_of
        )
        top = max(band.mean for panel in panels for line in panel.lines for band in line.bands)
        path = draw_panels(
            folder / "picture.png",
            [Row(panels, scale_to(top, panels, "sigma"), "epsilon")],
            title=f"Paper E, {self.name}",
            note="noise by the printed recipes, and the least that is proven",
        )
        return [path]

    def _bands(self, found: Any, recipe: str, setting: str) -> tuple[Band, ...]:
        cells = [(at, Cell(recipe, setting, (), at, SIGMA)) for at in self.epsilons]
        return tuple(Band(at, found[cell].mean, 0.0) for at, cell in cells)


_SYNTHETIC = Setting("CTF, synthetic", 300, 0.02, 1e-3)
_MNIST = Setting("MNIST", 20_000, 0.01, 1e-4)
_DIGITS = Setting("DIGITS", 2_000, 0.05, 1e-4)
FIGURES = {
    "figure 7.7": Noise(
        "figure 7.7",
        (_SYNTHETIC,),
        printed=(
            (_SYNTHETIC.name, "AC", 1.0, 8.14),
            (_SYNTHETIC.name, "zCDP, as meant", 1.0, 2.87),
        ),
        repetitions=1,
    ),
    "figure 8.2": Noise(
        "figure 8.2",
        (_MNIST, _DIGITS),
        printed=((_MNIST.name, "AC", 0.5, 10.88), (_MNIST.name, "zCDP, as meant", 0.5, 3.23)),
        repetitions=1,
    ),
}
