"""Paper E's private networks made again: table 8.1 and figures 8.1 and 8.3 to 8.6.

Algorithm 3 in the three ways of ``ermis_digits``, all claimed, beside proven fits at the same nominal
budget, fits without privacy, and the constant. Figure 8.2, how much noise there is, is in
``ermis_recipes``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from sfumato.papers.ermis_digits import (
    AC,
    CLASSES,
    DIGITS,
    KINDS,
    MEANT,
    MNIST,
    RUN,
    SGLD,
    SIZED_FOR,
    THESIS,
    TOGETHER,
    ZCDP,
    Claim,
    Thesis,
    alpha_of,
    changed,
    claim_of,
    fitted,
    is_claim,
    multiplier,
    pictures,
)
from sfumato.papers.ermis_recipes import true_epsilon
from sfumato.papers.paper import Experiment
from sfumato.papers.runner import Cell, Done, Headings, Job, Point, Summary, summarise, write_csv
from sfumato.solvers.as_printed.dropout import PaperDropout, Walked, walk
from sfumato.solvers.as_printed.ermis_noise import Setting

if TYPE_CHECKING:
    from rich.table import Table

FIRST_SEED, NOISE_SEED = 0, 1000
ACCURACY, TRUE, ALPHA = "accuracy", "true epsilon", "alpha"
NETWORK, SCATTERING = "proven, network", "proven, scattering"
OPEN_NETWORK, OPEN_SCATTERING = "not private, network", "not private, scattering"
CONSTANT, OPEN = "constant", "no privacy"
OPEN_CLAIMS = tuple(f"{kind}: {OPEN}" for kind in (MEANT, RUN))
CLAIMS = tuple(str(Claim(kind, method)) for kind in KINDS for method in (AC, ZCDP, SGLD))
_HIDDEN = {OPEN_NETWORK: True, OPEN_SCATTERING: False, NETWORK: True, SCATTERING: False}
TABLE_FILE = "table.csv"


# -- one fit --------------------------------------------------------------------------------------


def claimed(name: str, settings: PaperDropout, repetition: int) -> Iterator[tuple[Walked, float]]:
    """The thesis' network after every pass, and its accuracy."""
    data = pictures(name, FIRST_SEED + repetition)
    held_out = data.rows(held_out=True)
    rows = data.rows(held_out=False)
    for walked in walk(rows, data.labels, CLASSES, settings, NOISE_SEED + repetition):
        yield walked, walked.accuracy(held_out, data.test_labels)


def accuracy(series: str, thesis: Thesis, epsilon: float | None, repetition: int) -> float:
    """Of one row, at the end of its training."""
    if is_claim(series):
        (*_, last) = (
            found for _, found in claimed(thesis.name, _settings(series, thesis, epsilon), repetition)
        )
        return last
    data = pictures(thesis.name, FIRST_SEED + repetition)
    if series == CONSTANT:
        return data.constant
    hidden = thesis.hidden if _HIDDEN[series] else ()
    return fitted(data, hidden, epsilon, thesis.delta, NOISE_SEED + repetition)[1]


def _settings(series: str, thesis: Thesis, epsilon: float | None) -> PaperDropout:
    claim = claim_of(series)
    return claim._replace(method=ZCDP if claim.method == OPEN else claim.method).settings(
        thesis, epsilon
    )


def epsilon_kept(settings: PaperDropout, thesis: Thesis) -> float:
    """What a claim's noise really promises, were its batches Poisson samples."""
    examples = len(pictures(thesis.name, FIRST_SEED).train)
    rate, steps = min(1.0, settings.batch / examples), settings.passes * settings.each_pass
    return true_epsilon(Setting(thesis.name, steps, rate, thesis.delta), multiplier(settings))


@dataclass(frozen=True)
class _Networks(Experiment):
    """What all experiments of chapter 8 share."""

    name: str
    thesis: tuple[Thesis, ...] = field(default=tuple(THESIS.values()), kw_only=True)

    @property
    def title(self) -> str:
        return self.name

    def of(self, name: str) -> Thesis:
        return next(each for each in self.thesis if each.name == name)

    def settings(self) -> dict[str, Any]:
        return {**asdict(self), **self.shared_settings()}

    def shared_settings(self) -> dict[str, Any]:
        names = [each.name for each in self.thesis]
        return {
            "pictures": {name: len(pictures(name, FIRST_SEED).train) for name in names},
            "thesis": [asdict(each) for each in self.thesis],
            "as_run_noise_for": SIZED_FOR,
            "first_seed": FIRST_SEED,
            "noise": f"seeded, from {NOISE_SEED} on: to be made again, and not for release",
        }

    @property
    def runs(self) -> str:
        return f"{self.repetitions} run{'s' if self.repetitions > 1 else ''}"


_ABOUT = (
    "As printed: Algorithm 3, its epsilon claimed; as meant: examples clipped one by one; as run: our",
    "guess, with steps that stay as they are and noise for a fiftieth of them. Proven noise is seeded.",
)


# -- table 8.1 ------------------------------------------------------------------------------------


class Line(NamedTuple):
    """A row of a data set: a value for each epsilon, and the epsilon that it really has."""

    name: str
    data: str
    values: tuple[float | None, ...]
    kept: tuple[float | None, ...]


@dataclass(frozen=True)
class Accuracies(_Networks):
    """Accuracies by method and epsilon."""

    epsilons: tuple[float, ...] = (10.0, 1.0, 0.5)
    headings: ClassVar[Headings] = Headings("epsilon", "value", "measure")

    def jobs(self) -> list[Job]:
        """What takes longest, the claims of MNIST, last in each repetition."""
        short = (CONSTANT, SCATTERING, NETWORK, OPEN_SCATTERING, OPEN_NETWORK)
        claims = (
            *(str(Claim(kind, method)) for method in (ZCDP, AC, SGLD) for kind in KINDS),
            *OPEN_CLAIMS,
        )
        order = [(rows, each.name) for rows in (short, claims) for each in reversed(self.thesis)]
        return [
            Job(series, data, at, repetition)
            for repetition in range(self.repetitions)
            for rows, data in order
            for series in rows
            for at in self._places(series)
        ]

    def _places(self, series: str) -> list[tuple[float, ...]]:
        if series in (CONSTANT, OPEN_SCATTERING, OPEN_NETWORK, *OPEN_CLAIMS):
            return [()]
        return [(epsilon,) for epsilon in sorted(self.epsilons)]

    def do_job(self, job: Job) -> list[Point]:
        thesis, epsilon = self.of(job.model), (job.at[0] if job.at else None)
        found = [Point(epsilon, accuracy(job.series, thesis, epsilon, job.repetition), ACCURACY)]
        if is_claim(job.series) and epsilon is not None:
            kept = epsilon_kept(_settings(job.series, thesis, epsilon), thesis)
            found.append(Point(epsilon, kept, TRUE))
        return found

    # -- what came of it --------------------------------------------------------------------------

    def lines(self, summaries: Mapping[Cell, Summary]) -> list[Line]:
        """What is printed and what we get, data set by data set."""
        made = []
        for each in self.thesis:
            made += [self._printed(row, each.name) for row in PRINTED_TABLE[each.name]]
            rows = (*CLAIMS, NETWORK, SCATTERING, *OPEN_CLAIMS, OPEN_NETWORK, OPEN_SCATTERING, CONSTANT)
            made += [self._line(summaries, row, each.name) for row in rows]
        return made

    def _printed(self, row: str, data: str) -> Line:
        known = PRINTED_TABLE[data][row]
        values = tuple(known.get(at, known.get(None)) for at in self.epsilons)
        return Line(f"printed: {row}", data, values, (None,) * len(values))

    def _line(self, summaries: Mapping[Cell, Summary], series: str, data: str) -> Line:
        places = self.epsilons if (self._places(series) != [()]) else (None,) * len(self.epsilons)

        def means(part: str) -> tuple[float | None, ...]:
            found = [summaries.get(Cell(series, data, (), at, part)) for at in places]
            return tuple(None if each is None else each.mean for each in found)

        return Line(series, data, means(ACCURACY), means(TRUE))

    def findings(self, results: Sequence[Done]) -> dict[str, Any]:
        """What the noise of the text really promises."""
        found: dict[str, Any] = {
            f"{line.data}, {line.name}": {
                f"{at:g}": round(kept, 3)
                for at, kept in zip(self.epsilons, line.kept, strict=True)
                if kept is not None
            }
            for line in self.lines(summarise(results))
            if any(line.kept)
        }
        setting = THESIS[MNIST].setting
        in_text = {
            f"sigma {sigma:g}": {
                "a batch's gradient clipped": round(true_epsilon(setting, sigma), 3),
                "each example's clipped": round(true_epsilon(setting, 2 * sigma), 3),
            }
            for sigma in SIGMAS_IN_TEXT
        }
        return {"epsilon_kept": found, "of_mnist_at_0.5_in_the_text": in_text}

    def tables(self, results: Sequence[Done]) -> list[Table | str]:
        from sfumato.report.text import plain_table

        made, lines = list[Any](), self.lines(summarise(results))
        for each in self.thesis:
            table = plain_table(f"{self.name}, {each.name}", *(f"{at:g}" for at in self.epsilons))
            for line in lines:
                if line.data == each.name:
                    table.add_row(line.name, *map(_accuracy, line.values, line.kept))
            made += [table, ""]
        return [
            *made,
            f"Accuracy by claimed epsilon, delta {self.thesis[0].delta:g}; in brackets the epsilon that",
            f"the noise has. Means of {self.runs}.",
            *_ABOUT,
        ]

    def draw(self, folder: Path, results: Sequence[Done]) -> list[Path]:
        from sfumato.papers import ermis_networks_pictures as pictures_of

        lines, path = self.lines(summarise(results)), folder / TABLE_FILE
        places = [f"{at:g}" for at in self.epsilons]
        heading = ("row", "data", *places, *(f"epsilon kept at {at}" for at in places))
        write_csv(path, heading, [(line.name, line.data, *line.values, *line.kept) for line in lines])
        return [path, pictures_of.draw_table(folder / "picture.png", self, lines)]


def _accuracy(value: float | None, kept: float | None) -> str:
    if value is None:
        return ""
    return f"{value:.3f}" + ("" if kept is None else f" ({kept:.2g})")


SIGMAS_IN_TEXT = (10.88, 3.23)  # by AC and zCDP, at epsilon 0.5
# None is without privacy.
PRINTED_TABLE: dict[str, dict[str, dict[float | None, float]]] = {
    MNIST: {
        AC: {10.0: 0.9526, 1.0: 0.9187, 0.5: 0.8658},
        ZCDP: {10.0: 0.9718, 1.0: 0.9470, 0.5: 0.9205},
        SGLD: {10.0: 0.9581, 1.0: 0.9216, 0.5: 0.8952},
        "Abadi et al.": {10.0: 0.9720, 1.0: 0.9305, 0.5: 0.8965},
        OPEN: {None: 0.9820},
    },
    DIGITS: {
        AC: {10.0: 0.9341, 1.0: 0.9089, 0.5: 0.8521},
        ZCDP: {10.0: 0.9518, 1.0: 0.9367, 0.5: 0.9125},
        SGLD: {10.0: 0.9403, 1.0: 0.9187, 0.5: 0.8821},
        "Abadi et al.": {10.0: 0.9480, 1.0: 0.9265, 0.5: 0.9003},
        OPEN: {None: 0.9550},
    },
}


# -- figures 8.1 and 8.3 --------------------------------------------------------------------------


@dataclass(frozen=True)
class ByPass(_Networks):
    """Accuracy after some of the passes; open claims have no epsilon."""

    epsilons: tuple[float, ...] = (10.0, 1.0, 0.5)
    shown: tuple[int, ...] = (1, 2, 5, 10, 20, 50, 100, 200)
    rows: tuple[str, ...] = tuple(row for row in CLAIMS if SGLD not in row)
    headings: ClassVar[Headings] = Headings("pass", "accuracy")

    def jobs(self) -> list[Job]:
        series = [(row, (("epsilon", at),)) for row in self.rows for at in self.epsilons]
        found = [*((row, ()) for row in OPEN_CLAIMS), *series]
        return [
            Job(row, each.name, tuple(self._shown(each)), repetition, data)
            for repetition in range(self.repetitions)
            for each in reversed(self.thesis)
            for row, data in found
        ]

    def _shown(self, thesis: Thesis) -> list[float]:
        return [each for each in self.shown if each <= thesis.passes]

    def do_job(self, job: Job) -> list[Point]:
        settings = _settings(job.series, self.of(job.model), job.about.get("epsilon"))
        after = claimed(job.model, settings, job.repetition)
        return [Point(walked.passes, found) for walked, found in after if walked.passes in job.at]

    def tables(self, results: Sequence[Done]) -> list[Table | str]:
        from sfumato.report.text import plain_table

        found, made = summarise(results), list[Any]()
        for each in self.thesis:
            shown = self._shown(each)
            table = plain_table(f"{self.name}, {each.name}", "epsilon", *(f"{at:g}" for at in shown))
            for row, data in dict.fromkeys((cell.series, cell.data) for cell in found):
                values = [found.get(Cell(row, each.name, data, at)) for at in shown]
                if any(values):
                    epsilon = f"{dict(data)['epsilon']:g}" if data else ""
                    table.add_row(row, epsilon, *("" if v is None else f"{v.mean:.3f}" for v in values))
            made += [table, ""]
        return [*made, f"Accuracy after so many passes. Means of {self.runs}.", *_ABOUT]

    def draw(self, folder: Path, results: Sequence[Done]) -> list[Path]:
        from sfumato.papers import ermis_networks_pictures as pictures_of

        return [pictures_of.draw_passes(folder / "picture.png", self, summarise(results))]


# -- figures 8.4 to 8.6 ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Effect(_Networks):
    """What settings do to accuracy, one at a time at one epsilon; or epsilon to alpha."""

    axes: tuple[tuple[str, tuple[float, ...]], ...]
    rows: tuple[str, ...]
    epsilon: float = 1.0
    measure: str = ACCURACY
    headings: ClassVar[Headings] = Headings("at", "value")

    def jobs(self) -> list[Job]:
        return [
            Job(row, each.name, (at,), repetition, (("axis", axis),))
            for repetition in range(self.repetitions)
            for each in self.thesis
            for axis, places in self.axes
            for row in self.rows
            for at in places
            if is_claim(row) or axis not in _NOT_PROVEN
        ]

    def do_job(self, job: Job) -> list[Point]:
        (at,), axis = job.at, job.about["axis"]
        thesis = changed(self.of(job.model), axis, at)
        epsilon = at if axis == "epsilon" else self.epsilon
        found = (self._alpha if self.measure == ALPHA else accuracy)(
            job.series, thesis, epsilon, job.repetition
        )
        return [Point(at, found)]

    @staticmethod
    def _alpha(series: str, thesis: Thesis, epsilon: float, repetition: int) -> float:
        """Of the last step."""
        if is_claim(series):
            settings = _settings(series, thesis, epsilon)
            (*_, (last, _)) = claimed(thesis.name, settings, repetition)
            noise = settings.noise_of_step(settings.passes * settings.each_pass - 1)
            return alpha_of(noise, [layer[:-1] for layer in last.weights])
        data = pictures(thesis.name, FIRST_SEED + repetition)
        model, _ = fitted(data, thesis.hidden, epsilon, thesis.delta, NOISE_SEED + repetition)
        return alpha_of(1.0, [each**-0.5 for each in model.dropout_])

    def tables(self, results: Sequence[Done]) -> list[Table | str]:
        from sfumato.report.text import plain_table

        found, made = summarise(results), list[Any]()
        for each in self.thesis:
            for axis, places in self.axes:
                heading = f"{self.name}, {each.name}, {self.measure} by {axis}"
                table = plain_table(heading, *(f"{at:g}" for at in places))
                for row in self.rows:
                    cells = [found.get(Cell(row, each.name, (("axis", axis),), at)) for at in places]
                    if any(cells):
                        table.add_row(row, *("" if c is None else f"{c.mean:.3g}" for c in cells))
                made += [table, ""]
        at = "" if self.measure == ALPHA else f" at epsilon {self.epsilon:g}"
        return [*made, f"Means of {self.runs}{at}.", *_ABOUT]

    def draw(self, folder: Path, results: Sequence[Done]) -> list[Path]:
        from sfumato.papers import ermis_networks_pictures as pictures_of

        return [pictures_of.draw_effect(folder / "picture.png", self, summarise(results))]


_NOT_PROVEN = ("passes", "G", "batch")  # settings that proven fits choose by themselves
_ZCDP = tuple(str(Claim(kind, ZCDP)) for kind in KINDS)
TABLES = {"8.1": Accuracies("table 8.1", repetitions=1)}
_PASSES = {
    "figure 8.1": ByPass("figure 8.1", repetitions=1),
    "figure 8.3": ByPass("figure 8.3", epsilons=(0.5,), repetitions=1),
}
_EFFECTS = {
    "figure 8.4": Effect(
        "figure 8.4",
        (
            ("hidden units", (100, 500, 1000, 2000)),
            ("passes", (50, 100, 200, 400)),
            ("G", (1, 2, 3, 4, 6)),
            ("batch", (150, 300, 600, 1200)),
        ),
        (*_ZCDP[1:], NETWORK),
        thesis=(THESIS[MNIST],),
        repetitions=1,
    ),
    "figure 8.5": Effect(
        "figure 8.5",
        (("hidden layers", (1, 2, 3)),),
        (_ZCDP[2], str(Claim(RUN, TOGETHER)), NETWORK),
        thesis=(THESIS[MNIST],),
        repetitions=1,
    ),
    "figure 8.6": Effect(
        "figure 8.6",
        (("epsilon", (0.1, 0.5, 1.0, 2.0, 5.0, 10.0)),),
        (*_ZCDP, NETWORK),
        thesis=(THESIS[MNIST],),
        measure=ALPHA,
        repetitions=1,
    ),
}
FIGURES = {**_PASSES, **_EFFECTS}
_SMALL = (THESIS[DIGITS],)
QUICK_TABLES = {"8.1": replace(TABLES["8.1"], thesis=_SMALL, epsilons=(10.0, 0.5))}
QUICK_FIGURES = {
    **{key: replace(figure, thesis=_SMALL) for key, figure in _PASSES.items()},
    **{key: replace(figure, thesis=_SMALL) for key, figure in _EFFECTS.items()},
    "figure 8.4": replace(
        _EFFECTS["figure 8.4"],
        thesis=_SMALL,
        axes=(
            ("hidden units", (100, 500, 1000)),
            ("passes", (25, 50, 100)),
            ("G", (1, 2, 4)),
            ("batch", (50, 100, 200)),
        ),
    ),
    "figure 8.5": replace(_EFFECTS["figure 8.5"], thesis=_SMALL, axes=(("hidden layers", (1, 2)),)),
}
