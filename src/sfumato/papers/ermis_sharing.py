"""Paper E's private factorisation over N sites made again on MovieLens 1M: 7.2, 7.3, 7.6, 7.7.

Users are split among sites at random, movies are shared, and what counts is the error at a site's own
held-out ratings. The rows are those of our methods, beside what is printed, the thesis' algorithms
(``ermis_claimed``; as printed they cannot learn), noise on every value (``ermis_local``), and a site
that stays alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, get_args

import numpy as np

from sfumato.data import datasets
from sfumato.data.tensor import Mode, SparseTensor
from sfumato.estimators.completion import CP, Biases
from sfumato.estimators.refitting import refit
from sfumato.fit.admit import with_labels_of
from sfumato.fit.plan import PrivatePlan
from sfumato.fit.refit import HELD_OUT, site_rank
from sfumato.fit.request import Privacy
from sfumato.fit.sharing import Sharing as Expected
from sfumato.fit.sharing import sharing
from sfumato.papers import ermis_claimed, ermis_local
from sfumato.papers.ermis_claimed import Site, claim_of, is_claim
from sfumato.papers.ermis_local import Asked, is_local
from sfumato.papers.ermis_sharing_printed import OTHER_DATA, PRINTED, Printed
from sfumato.papers.paper import Experiment
from sfumato.papers.runner import Cell, Done, Headings, Job, Point, Summary, summarise, write_csv
from sfumato.privacy.caveats import without_warnings
from sfumato.privacy.trust import Trust, TrustKind
from sfumato.privacy.units import Public
from sfumato.sites.parts import dealt_by
from sfumato.solvers.as_printed.ermis import BEYOND, PaperLangevin

if TYPE_CHECKING:
    from rich.table import Table

FIRST_SEED, NOISE_SEED = 0, 1000  # of splits and of who is at which site; of the noise
TABLE_FILE = "table.csv"
TEST = 0.2  # of the ratings, as printed
POOLED, EACH, SHARES = get_args(TrustKind)
TOLERATED = 1  # of secure shares: sites that may be lost or tell what they know
_LEAST_FOR_SHARES = 3
TOGETHER, ALONE = "all sites, not private", "alone, not private"
ALONE_BIASES, ALONE_CONSTANT = "alone, biases", "alone, constant"
OPEN = (TOGETHER, ALONE, ALONE_BIASES, ALONE_CONSTANT)
REFITTED = ", refitted"  # of a score: with the site's raw data, the release as prior
UNITS = ("entry", "user")
VALUE: Literal["value"] = "value"  # unit of noise on every value; which cells have one is public
_APART = 100  # seeds of noise, from one repetition to the next: each site has its own
_LARGE = 100.0  # errors beyond are shown without decimals

Data = tuple[tuple[str, Any], ...]


# -- data -----------------------------------------------------------------------------------------


def ratings() -> SparseTensor:
    return datasets.movielens("1m")


class Split(NamedTuple):
    """All ratings but those held out, users in random order: the first ones are at site 1."""

    train: SparseTensor
    test: SparseTensor

    def site(self, number: int, sites: int) -> Split:
        """One site's part, with the users that it has."""
        parts = [dealt_by(part, 0, sites)[number - 1] for part in self]
        users = self.train.shape[0]
        levels = np.flatnonzero(np.arange(users) * sites // users == number - 1)
        mode = Mode("user", levels.size, levels)
        first = np.array([[levels[0]], [0]], np.int32)
        return Split(
            *(
                SparseTensor(part.coordinates - first, part.values, (mode, part.modes[1]), part.bounds)
                for part in parts
            )
        )


@lru_cache(1)
def split(seed: int, users: int | None = None) -> Split:
    """Ratings with users at random places, of all or of the first so many, 80% to fit."""
    tensor = ratings()
    places = np.random.default_rng(seed).permutation(tensor.shape[0]).astype(np.int32)
    cells = np.stack([places[tensor.coordinates[0]], tensor.coordinates[1]])
    count = min(tensor.shape[0], users or tensor.shape[0])
    there = cells[0] < count
    modes = (Mode("user", count), Mode("item", tensor.shape[1]))
    kept = SparseTensor(cells[:, there], tensor.values[there], modes, tensor.bounds)
    return Split(*kept.split(TEST, seed=seed))


# -- fits -----------------------------------------------------------------------------------------


def trust_of(series: TrustKind, sites: int) -> Trust:
    return Trust(SHARES, sites, TOLERATED) if series == SHARES else Trust(series, sites)


def private_model(
    train: SparseTensor, unit: str, epsilon: float, delta: float, trust: Trust, seed: int
) -> CP:
    """A fit over all sites, with what the plan takes; rows of users stay at their sites."""
    public = with_labels_of(train.modes, Public(entries=train.n_entries, step=1.0))
    privacy = Privacy(epsilon, delta, unit=unit, local="user", public=public, seed=seed, trust=trust)
    return CP(privacy=privacy, threads=1)


def expected_of(model: CP, train: SparseTensor) -> Expected:
    """What the planner says of a site with an equal part, before any fit."""
    plan = model.plan(train.modes, bounds=train.bounds, entries=train.n_entries)
    assert isinstance(plan, PrivatePlan)
    return sharing(plan.task.facts, plan.budget)


def open_fit(series: str, train: SparseTensor) -> CP | Biases:
    """Of the data of one site, or of all."""
    if series == ALONE_CONSTANT:
        return Biases(sweeps=0, threads=1).fit(train)
    if series == ALONE_BIASES:
        return Biases(threads=1).fit(train)
    return CP(site_rank(train.modes, train.n_entries), threads=1).fit(train)


# -- tables ---------------------------------------------------------------------------------------


class Line(NamedTuple):
    """A row of a table: whose, at which epsilon, what is protected, and a value for each column."""

    name: str
    epsilon: float | None
    unit: str | None
    values: tuple[float | None, ...]
    printed: bool = False


class Gain(NamedTuple):
    """What site 1 gains from the others, as a share of its error alone; None where not expected."""

    series: str
    epsilon: float | None
    unit: str
    sites: int
    measured: float
    expected: float | None

    def in_short(self) -> str:
        beside = "" if self.expected is None else f" ({self.expected:+.1%})"
        return f"{self.measured:+.1%}{beside}"


@dataclass(frozen=True)
class Sharing(Experiment):
    """A table: errors at the first sites of N, by epsilon and unit, beside being alone.

    ``scored`` is how many sites are scored; those that are refit with raw data are the first alone.
    ``passes`` are those of our reading of the thesis' algorithms; as printed they have the thesis' own,
    unless it is to be ``short``.
    ``of`` is the table that a picture is of: its printed values and its rows.
    ``users`` are so many, at random, where it is not all.
    """

    name: str
    sites: tuple[int, ...]
    epsilons: tuple[float, ...]
    delta: float
    scored: int = 1
    passes: int = 20
    short: bool = False
    of: str = ""
    users: int | None = None
    headings: ClassVar[Headings] = Headings("sites", "rmse", "score")

    @property
    def title(self) -> str:
        return self.name

    @property
    def _rows(self) -> Sequence[Printed]:
        return PRINTED.get(self.of or self.name, ())

    @property
    def _algorithm(self) -> PaperLangevin:
        return ermis_claimed.BY_TABLE[self.of or self.name][0]

    @property
    def _claims(self) -> tuple[str, ...]:
        return ermis_claimed.BY_TABLE[self.of or self.name][1]

    @property
    def _local(self) -> bool:
        """Whether there are rows of noise on every value: where some are printed."""
        return any(row.name == ermis_local.ALL for row in self._rows)

    def _split(self, repetition: int) -> Split:
        return split(FIRST_SEED + repetition, self.users)

    def jobs(self) -> list[Job]:
        return [job for repetition in range(self.repetitions) for job in self._jobs(repetition)]

    def _jobs(self, repetition: int) -> Iterator[Job]:
        several = tuple(n for n in self.sites if n > 1)
        yield Job(TOGETHER, "", self.sites, repetition)
        for n in several or self.sites:
            yield from (Job(series, "", (n,), repetition) for series in OPEN[1:])
        for n in self.sites:
            yield Job(ermis_claimed.OPEN, "", (n,), repetition)
            for epsilon in self.epsilons:
                if not self._rows or any(row.epsilon == epsilon for row in self._rows):
                    data: Data = (("epsilon", epsilon),)
                    yield from (Job(row, "", (n,), repetition, data) for row in self._claims)
        for epsilon in self.epsilons:
            for unit in UNITS:
                data = (("epsilon", epsilon), ("unit", unit))
                yield Job(POOLED, "", self.sites, repetition, data)
                for n in several:
                    yield Job(EACH, "", (n,), repetition, data)
                    if n >= _LEAST_FOR_SHARES:
                        yield Job(SHARES, "", (n,), repetition, data)
            if self._local:
                data = (("epsilon", epsilon), ("unit", VALUE))
                for row in ermis_local.EVERYBODY:
                    yield Job(row, "", self.sites, repetition, data)
                for n in several:
                    yield from (Job(row, "", (n,), repetition, data) for row in ermis_local.BESIDE_RAW)

    def do_job(self, job: Job) -> list[Point]:
        data = self._split(job.repetition)
        if is_local(job.series):
            return self._noised(job, data)
        if is_claim(job.series):
            return self._claimed(job, data)
        if job.series in OPEN and job.series != TOGETHER:
            (n,) = job.at
            own = [data.site(k, int(n)) for k in self._scored(n)]
            errors = [open_fit(job.series, site.train).rmse(site.test) for site in own]
            return [Point(n, error, f"X{k}") for k, error in enumerate(errors, 1)]
        if job.series == TOGETHER:
            return self._scores(open_fit(TOGETHER, data.train), data, job.at)
        model = self._private(job.series, int(job.at[-1]), job.data, job.repetition).fit(data.train)
        points = self._scores(model, data, job.at)
        if job.series == EACH:
            (n,) = job.at
            site = data.site(1, int(n))
            points.append(Point(n, refit(model, site.train, threads=1).rmse(site.test), f"X1{REFITTED}"))
        return points

    def _claimed(self, job: Job, data: Split) -> list[Point]:
        """The thesis' algorithm, whose epsilon is claimed."""
        (n,), claim = job.at, claim_of(job.series)
        settings = claim.settings(self._algorithm, job.about.get("epsilon"))
        if self.short or claim.kind == ermis_claimed.RUN:
            settings = replace(settings, passes=self.passes)
        sites = [Site(*data.site(k, int(n))) for k in range(1, int(n) + 1)]
        seed, scored = NOISE_SEED + job.repetition, len(self._scored(n))
        found = ermis_claimed.predictions(sites, ("item",), settings, seed, scored=scored)
        return [
            Point(n, ermis_claimed.rmse(None if found is None else found[k], sites[k].test), f"X{k + 1}")
            for k in range(scored)
        ]

    def _noised(self, job: Job, data: Split) -> list[Point]:
        """Noise on every value: of all of them, or of those that are not at the site that fits."""
        asked = Asked(job.about["epsilon"], VALUE, NOISE_SEED + _APART * job.repetition)
        if job.series in ermis_local.EVERYBODY:
            there = ermis_local.received(job.series, [data.train], 0, asked)
            fitted = ermis_local.fitted(job.series, there)
            tests = {
                (n, k): dealt_by(data.test, 0, int(n))[k - 1] for n in job.at for k in self._scored(n)
            }
            return [
                Point(n, ermis_claimed.rmse(fitted(test), test), f"X{k}")
                for (n, k), test in tests.items()
            ]
        (n,), points = job.at, []
        sites = [data.site(k, int(n)) for k in range(1, int(n) + 1)]
        for own in (k - 1 for k in self._scored(n)):
            there = ermis_local.received(job.series, [site.train for site in sites], own, asked)
            found = ermis_local.fitted(job.series, there)(sites[own].test)
            points.append(Point(n, ermis_claimed.rmse(found, sites[own].test), f"X{own + 1}"))
        return points

    def _private(self, series: Any, sites: int, data: Data, repetition: int) -> CP:
        about, train = dict(data), self._split(repetition).train
        return private_model(
            train,
            about["unit"],
            about["epsilon"],
            self.delta,
            trust_of(series, sites),
            NOISE_SEED + repetition,
        )

    def _scored(self, sites: float) -> range:
        return range(1, min(self.scored, int(sites)) + 1)

    def _scores(self, model: CP | Biases, data: Split, at: Sequence[float]) -> list[Point]:
        """Errors at held-out ratings of the first sites, of a model of all."""
        return [
            Point(n, model.rmse(dealt_by(data.test, 0, int(n))[k - 1]), f"X{k}")
            for n in at
            for k in self._scored(n)
        ]

    def settings(self) -> dict[str, Any]:
        return {
            **asdict(self),
            **self.shared_settings(),
            "seeds": [FIRST_SEED + repetition for repetition in range(self.repetitions)],
        }

    def shared_settings(self) -> dict[str, Any]:
        data = self._split(0)
        return {
            "ratings": data.train.n_entries + data.test.n_entries,
            "users": data.train.shape[0],
            "movies": data.train.shape[1],
            "held_out": TEST,
            "first_seed": FIRST_SEED,
            "noise": f"seeded, from {NOISE_SEED} on: to be made again, and not for release",
            "delta": self.delta,
            "scored": self.scored,
            "tolerated": TOLERATED,
            "held_out_by_a_refit": HELD_OUT,
            "algorithm": ermis_claimed.to_json(self._algorithm),
            "passes_as_run": self.passes,
            "short": self.short,
            **(ermis_local.to_json() if self._local else {}),
        }

    # -- what came of it --------------------------------------------------------------------------

    @property
    def columns(self) -> list[tuple[int, str]]:
        """Numbers of sites, and which of them is scored."""
        return [(n, f"X{k}") for n in self.sites for k in self._scored(n)]

    def lines(self, summaries: Mapping[Cell, Summary]) -> list[Line]:
        """What is printed and what we get, budget by budget; without privacy first."""
        made = self._printed(None)
        made += [self._line(summaries, series) for series in (ermis_claimed.OPEN, *OPEN)]
        for epsilon in self.epsilons:
            made += self._printed(epsilon)
            about: Data = (("epsilon", epsilon),)
            made += [self._line(summaries, row, about) for row in self._claims]
            for unit in UNITS:
                data = (("epsilon", epsilon), ("unit", unit))
                made += [self._line(summaries, series, data) for series in (POOLED, EACH)]
                made += [self._line(summaries, EACH, data, REFITTED)]
                made += [self._line(summaries, SHARES, data)]
            data = (("epsilon", epsilon), ("unit", VALUE))
            noised = (*ermis_local.EVERYBODY, *ermis_local.BESIDE_RAW)
            made += [self._line(summaries, series, data) for series in noised]
        return [line for line in made if any(value is not None for value in line.values)]

    def _printed(self, epsilon: float | None) -> list[Line]:
        return [
            Line(
                f"printed, {row.name}",
                epsilon,
                None,
                tuple(row.values.get(column) for column in self.columns),
                printed=True,
            )
            for row in self._rows
            if row.epsilon == epsilon
        ]

    def _line(
        self, summaries: Mapping[Cell, Summary], series: str, data: Data = (), score: str = ""
    ) -> Line:
        found = [summaries.get(Cell(series, "", data, n, f"{part}{score}")) for n, part in self.columns]
        about = dict(data)
        return Line(
            f"{series}{score}",
            about.get("epsilon"),
            about.get("unit"),
            tuple(None if each is None else each.mean for each in found),
        )

    def gains(self, results: Sequence[Done]) -> list[Gain]:
        """By which share of its error alone site 1 gains from the others: measured, and expected."""
        lines = self.lines(summarise(results))
        alone = next((line.values for line in lines if line.name == ALONE), ())
        made = []
        for line in lines:
            for (n, part), own, value in zip(self.columns, alone, line.values, strict=False):
                if n == 1 or part != "X1":
                    continue
                if own is not None and value is not None and line.unit is not None:
                    told = self._told(line, n)
                    made.append(Gain(line.name, line.epsilon, line.unit, n, 1 - value / own, told))
        return made

    def _told(self, line: Line, sites: int) -> float | None:
        """What the planner expects; of refits and of noise on values it says nothing."""
        if line.name.endswith(REFITTED) or is_local(line.name):
            return None
        data = (("epsilon", line.epsilon), ("unit", line.unit))
        with without_warnings():  # budgets are the paper's
            found = expected_of(self._private(line.name, sites, data, 0), self._split(0).train)
        return 1 - found.together.rmse / found.alone

    def findings(self, results: Sequence[Done]) -> dict[str, Any]:
        """What sharing is worth, and how often the planner foresaw its sign."""
        gains = self.gains(results)
        known = [(gain.measured, gain.expected) for gain in gains if gain.expected is not None]
        right = sum((measured > 0) == (expected > 0) for measured, expected in known)
        return {
            "gained_by_sharing": [gain._asdict() for gain in gains],
            "signs_foreseen": right,
            "signs": len(known),
        }

    def tables(self, results: Sequence[Done]) -> list[Table | str]:
        from sfumato.report.text import plain_table

        table = plain_table(f"{self.name}, RMSE", "epsilon", "unit", *map(self._heading, self.columns))
        for line in self.lines(summarise(results)):
            known = ("" if line.epsilon is None else f"{line.epsilon:g}", line.unit or "")
            table.add_row(line.name, *known, *map(number, line.values))
        notes = [
            f"MovieLens 1M, users split among sites at random, delta {self.delta:g}; noise is seeded. "
            f"Means of {self.repetitions} run{'s' if self.repetitions > 1 else ''}.",
            f"As printed: by the thesis, epsilon claimed; as run: our reading ({self.passes} passes"
            f"{', both' if self.short else ''}).",
        ]
        if self.users is not None:
            notes.append(f"Of {self._split(0).train.shape[0]:,} users at random, not of all.")
        if self._local:
            notes.append(
                "LDP1: all fit noisy values; LDP2: a site fits its raw ones beside them; that never "
                "leaves it."
            )
        notes += [
            f"{other} is not to be had: its rows are printed ones alone."
            for other in OTHER_DATA
            if any(other in row.name for row in self._rows)
        ]
        shown: list[Table | str] = [table, "", *notes]
        if max(self.sites) == 1:
            return shown
        refitted = (
            "Refitted: by site 1 with its raw data, the release as prior; not private, it stays there."
        )
        return [*shown, refitted, "", self._gains_table(results)]

    def _gains_table(self, results: Sequence[Done]) -> Table:
        from sfumato.report.text import plain_table

        several = [n for n in self.sites if n > 1]
        headings = ("gained over alone (expected)", "epsilon", "unit", *(f"N = {n}" for n in several))
        table, gains = plain_table(*headings), self.gains(results)
        cells = {(gain.series, gain.epsilon, gain.unit, gain.sites): gain for gain in gains}
        for series, epsilon, unit in dict.fromkeys(gain[:3] for gain in gains):
            found = (cells.get((series, epsilon, unit, n)) for n in several)
            shown = ("" if gain is None else gain.in_short() for gain in found)
            table.add_row(series, f"{epsilon:g}", unit, *shown)
        return table

    def _heading(self, column: tuple[int, str]) -> str:
        n, part = column
        return part if len(self.sites) == 1 else f"N = {n}"

    def draw(self, folder: Path, results: Sequence[Done]) -> list[Path]:
        from sfumato.papers import ermis_sharing_pictures

        lines = self.lines(summarise(results))
        path = folder / TABLE_FILE
        heading = ("row", "epsilon", "unit", *(f"{part} of {n}" for n, part in self.columns))
        write_csv(path, heading, [(line.name, line.epsilon, line.unit, *line.values) for line in lines])
        return [path, ermis_sharing_pictures.draw(folder / "picture.png", self, lines)]


def number(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:.3f}" if value < _LARGE else f"{value:.0f}" if value < BEYOND else "beyond"


TABLES = {
    "7.2": Sharing("table 7.2", (2,), (10.0, 1.0, 0.1, 0.05), 1e-3, scored=2, repetitions=1),
    "7.3": Sharing("table 7.3", (2, 5, 10), (10.0, 1.0), 1e-3, repetitions=1),
    "7.6": Sharing("table 7.6", (1,), (10.0, 1.0, 0.1), 1e-2, repetitions=1),
    "7.7": Sharing("table 7.7", (1, 2, 5, 10), (10.0, 3.0, 1.0, 0.1), 1e-4, repetitions=1),
}
FIGURES = {
    "figure 7.5": Sharing("figure 7.5", (1,), (0.1,), 1e-2, repetitions=1),
    "figure 7.6": replace(TABLES["7.3"], name="figure 7.6", epsilons=(1.0,), of="table 7.3"),
    "figure 7.11": Sharing("figure 7.11", (2,), (10.0, 1.0, 0.1), 1e-4, of="table 7.7", repetitions=1),
    "figure 7.12": replace(TABLES["7.6"], name="figure 7.12", epsilons=(0.1,), of="table 7.6"),
    "figure 7.13": replace(TABLES["7.7"], name="figure 7.13", epsilons=(1.0, 0.1), of="table 7.7"),
}


_FEW = 600  # users of a quick table with noise on every value, whose fits take long


def _quick(study: Sharing, **changes: Any) -> Sharing:
    """With a few passes of the thesis' algorithms."""
    return replace(study, passes=4, short=True, **changes)


QUICK = {
    "7.2": _quick(TABLES["7.2"], epsilons=(1.0,), users=_FEW),
    "7.3": _quick(TABLES["7.3"], sites=(2, 5), epsilons=(1.0,), users=_FEW),
    "7.6": _quick(TABLES["7.6"], epsilons=(1.0,)),
    "7.7": _quick(TABLES["7.7"], sites=(1, 10), epsilons=(1.0,)),
}
QUICK_FIGURES = {
    "figure 7.5": _quick(FIGURES["figure 7.5"]),
    "figure 7.6": _quick(FIGURES["figure 7.6"], sites=(2, 5), users=_FEW),
    "figure 7.11": _quick(FIGURES["figure 7.11"], epsilons=(1.0,)),
    "figure 7.12": _quick(FIGURES["figure 7.12"]),
    "figure 7.13": _quick(FIGURES["figure 7.13"], sites=(1, 10), epsilons=(1.0,)),
}
