"""Topics that are pictures, from documents that are about one topic each: openly and privately.

Words are the pixels of a picture; a document is a handful of pixels of one of them. Paper A names topic
models as the example of a stream; the moment of documents is that of Anandkumar et al. (2014).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from sfumato.data.io.write import replacing
from sfumato.estimators.power import PowerMethod
from sfumato.fit.request import Privacy
from sfumato.models.components import match_components
from sfumato.papers.paper import Experiment
from sfumato.papers.picture import FAINT, INK
from sfumato.papers.runner import Cell, Done, Headings, Job, Point, summarise
from sfumato.papers.wang_data import (
    FEWEST_WORDS,
    FIRST_SEED,
    MOST_WORDS,
    NOISE_SEEDS,
    SIDE,
    TOPIC_SHARES,
    documents,
    topics,
)
from sfumato.privacy.units import Public, Sample
from sfumato.types import Array

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from rich.table import Table

DELTA = 1e-6
PRIVATE_COUNTS = (8, 10)  # restarts and iterations
OPEN_COUNTS = (10, 25)
OPEN, PRIVATE = "not private", "private"


@dataclass(frozen=True)
class TopicsExperiment(Experiment):
    """``documents`` are of the fits that are not private."""

    documents: tuple[int, ...]
    epsilons: tuple[float, ...]
    private_documents: int
    headings: ClassVar[Headings] = Headings("epsilon", "total variation", "topic")

    @property
    def title(self) -> str:
        return "topics"

    def jobs(self) -> list[Job]:
        plan: list[tuple[str, tuple[float, ...], int]] = [(OPEN, (), n) for n in self.documents]
        plan.append((PRIVATE, self.epsilons, self.private_documents))
        return [
            Job(series, "", epsilons, repetition, (("documents", count),))
            for repetition in range(self.repetitions)
            for series, epsilons, count in plan
        ]

    def do_job(self, job: Job) -> list[Point]:
        count, seed = job.about["documents"], FIRST_SEED + job.repetition
        return [
            Point(epsilon, error, name)
            for epsilon in (job.at or (None,))
            for name, error in _errors(recover(count, epsilon, seed)).items()
        ]

    def settings(self) -> dict[str, Any]:
        return {**asdict(self), **self.shared_settings()}

    def shared_settings(self) -> dict[str, Any]:
        return {
            "first_seed": FIRST_SEED,
            "noise_seed": f"data seed + {NOISE_SEEDS}",
            "topics": list(topics()),
            "shares": TOPIC_SHARES,
            "words": (FEWEST_WORDS, MOST_WORDS),
            "restarts, iterations": {PRIVATE: PRIVATE_COUNTS, OPEN: OPEN_COUNTS},
            "unit": repr(Sample()),
            "delta": DELTA,
        }

    def tables(self, results: Sequence[Done]) -> list[Table | str]:
        from sfumato.report.text import plain_table

        summaries = summarise(results)
        table = plain_table("documents", "epsilon", *topics())
        for series, count, epsilon in self._columns():
            cells = [Cell(series, "", (("documents", count),), epsilon, name) for name in topics()]
            means = [f"{summaries[cell].mean:.3f}" for cell in cells]
            table.add_row(f"{count:,}", "none" if epsilon is None else f"{epsilon:g}", *means)
        return ["mean total variation distance of every topic", table]

    def _columns(self) -> list[tuple[str, int, float | None]]:
        openly = [(OPEN, count, None) for count in self.documents]
        return [*openly, *((PRIVATE, self.private_documents, epsilon) for epsilon in self.epsilons)]

    def draw(self, folder: Path, results: Sequence[Done]) -> list[Path]:
        """The first data set's topics; they are fitted again, since results hold errors only."""
        summaries = summarise(results)
        columns = [("planted", "", np.stack(list(topics().values())))]
        for series, count, epsilon in self._columns():
            cells = [Cell(series, "", (("documents", count),), epsilon, name) for name in topics()]
            error = np.mean([summaries[cell].mean for cell in cells])
            how = "" if epsilon is None else f"\nepsilon {epsilon:g}"
            shown = recover(count, epsilon, FIRST_SEED)
            columns.append((f"{count:,} documents{how}", f"{error:.3f}", shown))
        return [_draw(folder / "topics.png", columns, self.repetitions)]


@lru_cache(1)
def _documents(count: int, seed: int) -> Any:
    return documents(count, seed)


def recover(count: int, epsilon: float | None, seed: int) -> Array:
    """Shares of words of every topic, in the order of the planted ones."""
    privacy = None
    if epsilon is not None:
        public, unit = Public(entries=count), Sample()
        privacy = Privacy(epsilon, DELTA, unit=unit, public=public, seed=NOISE_SEEDS + seed)
    method = PowerMethod(
        len(TOPIC_SHARES),
        *(OPEN_COUNTS if privacy is None else PRIVATE_COUNTS),
        whiten=True,
        moment="documents",
        privacy=privacy,
        seed=seed,
        threads=1,
    )
    method.fit_stream(_documents(count, seed))
    order = match_components(method.components_, np.stack(list(topics().values()))).order
    return method.topics_[order]


def _errors(found: Array) -> dict[str, float]:
    """Total variation distance of every topic: the share of its words that lie wrong."""
    planted = topics()
    return {
        name: float(np.abs(shares - own).sum() / 2)
        for (name, shares), own in zip(planted.items(), found, strict=True)
    }


# -- the picture ----------------------------------------------------------------------------------


def _draw(path: Path, columns: Sequence[tuple[str, str, Array]], repetitions: int) -> Path:
    from matplotlib.figure import Figure

    names = list(topics())
    width, height = 1.1 + 1.42 * len(columns), 1.55 + 1.3 * len(names)
    figure = Figure(figsize=(width, height), dpi=110)
    figure.subplots_adjust(
        left=0.95 / width,
        right=1 - 0.1 / width,
        bottom=0.5 / height,
        top=1 - 1.15 / height,
        hspace=0.08,
        wspace=0.08,
    )
    axes = figure.subplots(len(names), len(columns), squeeze=False)
    for column, (title, error, shares) in enumerate(columns):
        for row, name in enumerate(names):
            _draw_topic(axes[row, column], shares[row], column == 0 and name)
        below = f"\nerror {error}" if error else ""
        axes[0, column].set_title(f"{title}{below}", fontsize=9, color=INK)
    at_left: dict[str, Any] = {"x": 0.12 / width, "ha": "left"}
    title = "Topics from documents, one topic each: planted and recovered"
    figure.text(y=1 - 0.3 / height, s=title, color=INK, fontsize=12, fontweight="bold", **at_left)
    note = (
        f"words are pixels, {FEWEST_WORDS} to {MOST_WORDS} to a document; privately one document is "
        f"protected, delta {DELTA:g}; error: mean total variation distance, {repetitions} runs"
    )
    figure.text(y=0.14 / height, s=note, color=FAINT, fontsize=9, **at_left)
    with replacing(path) as file:
        figure.savefig(file, format="png", facecolor="white")
    return path


def _draw_topic(axes: Axes, shares: Array, name: str | bool) -> None:
    axes.imshow(shares.reshape(SIDE, SIDE), cmap="bone_r", vmin=0.0, vmax=1 / 14)
    axes.set_xticks([])
    axes.set_yticks([])
    axes.spines[:].set_color("#d5dbe0")
    if name:
        axes.set_ylabel(str(name), fontsize=9, color=INK, rotation=0, ha="right", va="center")
