"""Paper E's private models of UCLAF made again: table 7.8, and its pictures, figures 7.14 and 7.15.

Users are split among N sites at random. Model 1 shares the locations' factor, so that activities are
each site's own; Model 2 shares both; Model 3 adds a public table of locations' features. Values are the
counts above zero, at most 5; all other cells are missing. Scored are all held-out cells, each by its own
site.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np

from sfumato.data.tensor import Mode, SparseTensor
from sfumato.estimators.completion import CP, Biases
from sfumato.estimators.coupled import Coupled
from sfumato.fit.admit import with_labels_of
from sfumato.fit.request import Privacy
from sfumato.papers import ermis_claimed
from sfumato.papers.ermis_claimed import Site, claim_of, is_claim
from sfumato.papers.ermis_data import LINKS, PLACES, SCALINGS, uclaf
from sfumato.papers.ermis_sharing import EACH, POOLED, number
from sfumato.papers.paper import Experiment
from sfumato.papers.runner import Cell, Done, Headings, Job, Point, Summary, summarise, write_csv
from sfumato.privacy.trust import Trust
from sfumato.privacy.units import Public
from sfumato.types import Array

if TYPE_CHECKING:
    from rich.table import Table

FIRST_SEED, NOISE_SEED = 0, 1000
TEST, MOST = 0.2, 5.0  # of the entries, as printed; of the values
DELTA, RANK = 1e-4, 3
CONSTANT, BIASES, ALONE, TOGETHER = "constant", "alone, biases", "alone, not private", "not private"
ONE = ("Model 1", "Model 2", "Model 3")
SHARED: dict[str, tuple[str, ...]] = {
    "Model 1": ("location",),
    "Model 2": ("location", "activity"),
    "Model 3": ("location", "activity"),
}
CLAIMS = tuple(f"{kind}: zCDP user" for kind in (ermis_claimed.PRINTED, ermis_claimed.RUN))
OPEN_CLAIM = ermis_claimed.OPEN
TABLE_FILE = "table.csv"


# -- data -----------------------------------------------------------------------------------------


@lru_cache(1)
def split(seed: int) -> Site:
    """Counts above zero, cut at 5, users at random places; 80% to fit."""
    data = uclaf()
    cells = np.stack(np.nonzero(data.counts)).astype(np.int32)
    values = np.minimum(data.counts[tuple(cells)], MOST)
    places = np.random.default_rng(seed).permutation(data.counts.shape[0]).astype(np.int32)
    cells[0] = places[cells[0]]
    modes = tuple(Mode(mode.name, mode.size) for mode in data.modes)
    return Site(*SparseTensor(cells, values, modes, (1.0, MOST)).split(TEST, seed=seed))


def site_of(tensor: SparseTensor, sites: int) -> Array:
    """Which site each entry is at."""
    users = tensor.coordinates[0].astype(np.int64)
    return np.asarray(users * sites // tensor.shape[0])


def at_sites(data: Site, sites: int) -> list[Site]:
    """Each site's entries, with the users that it has."""
    users = np.arange(data.train.shape[0]) * sites // data.train.shape[0]
    found = []
    for k in range(sites):
        first, size = int(np.argmax(users == k)), int((users == k).sum())
        shift = np.zeros((data.train.order, 1), np.int32)
        shift[0] = first
        modes = (Mode("user", size), *data.train.modes[1:])
        parts = (part.take(site_of(part, sites) == k) for part in data)
        found.append(
            Site(*(SparseTensor(p.coordinates - shift, p.values, modes, p.bounds) for p in parts))
        )
    return found


def own_activities(tensor: SparseTensor, sites: int) -> SparseTensor:
    """Model 1: every site has activities of its own."""
    cells = np.array(tensor.coordinates)
    kinds = tensor.shape[2]
    cells[2] += (kinds * site_of(tensor, sites)).astype(cells.dtype)
    modes = (*tensor.modes[:2], Mode("activity", kinds * sites))
    return SparseTensor(cells, tensor.values, modes, tensor.bounds)


def places() -> SparseTensor:
    """The public table: logarithms of the features' counts, scaled to at most 1."""
    values = SCALINGS["logarithm"](uclaf().tables[PLACES])
    cells = np.indices(values.shape, np.int32).reshape(2, -1)
    modes = (Mode("location", values.shape[0]), Mode("feature", values.shape[1]))
    return SparseTensor(cells, values.ravel(), modes, (0.0, 1.0))


# -- fits -----------------------------------------------------------------------------------------


def open_errors(series: str, data: Site, model: str, sites: int) -> Array:
    """Held-out values less what is predicted without privacy."""
    if series == CONSTANT:
        return np.asarray(data.test.values - data.train.values.mean())
    if series in (BIASES, ALONE):
        kind = Biases(threads=1) if series == BIASES else CP(RANK, threads=1)
        own = at_sites(data, sites)
        return np.concatenate([s.test.values - kind.fit(s.train).predict(s.test) for s in own])
    if model == "Model 3":
        fit = Coupled(RANK, threads=1).fit({LINKS: data.train, PLACES: places()})
        return np.asarray(data.test.values - fit.predict(LINKS, data.test))
    return _of_model(CP(RANK, threads=1), data, model, sites)


def _of_model(estimator: CP, data: Site, model: str, sites: int) -> Array:
    if model == "Model 1":
        data = Site(*(own_activities(part, sites) for part in data))
    return np.asarray(data.test.values - estimator.fit(data.train).predict(data.test))


def proven_errors(series: str, data: Site, model: str, sites: int, epsilon: float, seed: int) -> Array:
    """The same of a private fit: entries are protected, and rows of users stay at their sites."""
    trust = Trust(EACH, sites) if series == EACH else Trust()
    if model == "Model 3":
        return _with_places(data, epsilon, seed)
    modes = own_activities(data.train, sites).modes if model == "Model 1" else data.train.modes
    public = with_labels_of(modes, Public(entries=data.train.n_entries, step=1.0))
    return _of_model(CP(privacy=_privacy(epsilon, public, seed, trust), threads=1), data, model, sites)


def _with_places(data: Site, epsilon: float, seed: int) -> Array:
    """Model 3: the table of features is public, and costs nothing."""
    table = places()
    known = Public(entries=data.train.n_entries, step=1.0)
    public = Public(relations={LINKS: known, PLACES: True})
    public = with_labels_of((*data.train.modes, table.modes[1]), public)
    model = Coupled(privacy=_privacy(epsilon, public, seed, Trust()), threads=1)
    fit = model.fit({LINKS: data.train, PLACES: table})
    return np.asarray(data.test.values - fit.predict(LINKS, data.test))


def _privacy(epsilon: float, public: Public, seed: int, trust: Trust) -> Privacy:
    return Privacy(epsilon, DELTA, unit="entry", local="user", public=public, seed=seed, trust=trust)


def claimed_errors(
    series: str, data: Site, model: str, sites: int, epsilon: float | None, seed: int
) -> Array | None:
    """The same of the thesis' algorithm; None where it grows beyond all bounds."""
    own = at_sites(data, sites)
    settings = claim_of(series).settings(ermis_claimed.UCLAF, epsilon)
    public = (places(),) if model == "Model 3" else ()
    found = ermis_claimed.predictions(own, SHARED[model], settings, seed, public=public)
    if found is None:
        return None
    return np.concatenate([s.test.values - f for s, f in zip(own, found, strict=True)])


def rmse_of(errors: Array | None) -> float:
    if errors is None or not np.isfinite(errors).all():
        return np.inf
    return float(np.sqrt(np.mean(errors**2)))


# -- the table ------------------------------------------------------------------------------------


class Line(NamedTuple):
    """A row: whose, which model, at which epsilon; a value for each number of sites."""

    name: str
    model: str
    epsilon: float | None
    values: tuple[float | None, ...]


@dataclass(frozen=True)
class Models(Experiment):
    """Errors of the three models over sites and epsilons."""

    name: str
    sites: tuple[int, ...] = (1, 2, 5, 10)
    epsilons: tuple[float, ...] = (10.0, 1.0, 0.1)
    models: tuple[str, ...] = ONE
    headings: ClassVar[Headings] = Headings("sites", "rmse")

    @property
    def title(self) -> str:
        return self.name

    def jobs(self) -> list[Job]:
        return [job for repetition in range(self.repetitions) for job in self._jobs(repetition)]

    def _jobs(self, repetition: int) -> Iterator[Job]:
        for n in self.sites:
            yield from (Job(series, "", (n,), repetition) for series in (CONSTANT, BIASES, ALONE))
            for model in self.models:
                yield from (Job(each, model, (n,), repetition) for each in (TOGETHER, OPEN_CLAIM))
                for epsilon in self.epsilons:
                    data = (("epsilon", epsilon),)
                    proven = (POOLED, EACH) if n > 1 and model != "Model 3" else (POOLED,)
                    rows = (*CLAIMS, *proven)
                    yield from (Job(row, model, (n,), repetition, data) for row in rows)

    def do_job(self, job: Job) -> list[Point]:
        (n,), data, seed = job.at, split(FIRST_SEED + job.repetition), NOISE_SEED + job.repetition
        epsilon, sites = job.about.get("epsilon"), int(n)
        if is_claim(job.series):
            errors = claimed_errors(job.series, data, job.model, sites, epsilon, seed)
        elif epsilon is None:
            errors = open_errors(job.series, data, job.model, sites)
        else:
            errors = proven_errors(job.series, data, job.model, sites, epsilon, seed)
        return [Point(n, rmse_of(errors))]

    def settings(self) -> dict[str, Any]:
        return {**asdict(self), **self.shared_settings()}

    def shared_settings(self) -> dict[str, Any]:
        data = split(FIRST_SEED)
        return {
            "entries": data.train.n_entries + data.test.n_entries,
            "held_out": TEST,
            "values_at_most": MOST,
            "unit": "entry",
            "delta": DELTA,
            "rank": RANK,
            "first_seed": FIRST_SEED,
            "noise": f"seeded, from {NOISE_SEED} on: to be made again, and not for release",
            "algorithm": ermis_claimed.to_json(ermis_claimed.UCLAF),
        }

    # -- what came of it --------------------------------------------------------------------------

    def lines(self, summaries: Mapping[Cell, Summary]) -> list[Line]:
        """What is printed and what we get, model by model; without privacy first."""
        made = [self._line(summaries, series, "", None) for series in (CONSTANT, BIASES, ALONE)]
        for epsilon in (None, *self.epsilons):
            rows = (OPEN_CLAIM, TOGETHER) if epsilon is None else (*CLAIMS, POOLED, EACH)
            for model in self.models:
                made.append(self._printed(model, epsilon))
                made += [self._line(summaries, row, model, epsilon) for row in rows]
        return [line for line in made if any(value is not None for value in line.values)]

    def _printed(self, model: str, epsilon: float | None) -> Line:
        known = dict(zip((1, 2, 5, 10), PRINTED[epsilon][model], strict=True))
        return Line("printed", model, epsilon, tuple(known.get(n) for n in self.sites))

    def _line(
        self, summaries: Mapping[Cell, Summary], series: str, model: str, epsilon: float | None
    ) -> Line:
        data = () if epsilon is None else (("epsilon", epsilon),)
        found = [summaries.get(Cell(series, model, data, n)) for n in self.sites]
        values = tuple(None if each is None else each.mean for each in found)
        return Line(series, model, epsilon, values)

    def tables(self, results: Sequence[Done]) -> list[Table | str]:
        from sfumato.report.text import plain_table

        table = plain_table(f"{self.name}, RMSE", "model", "epsilon", *(f"N = {n}" for n in self.sites))
        for line in self.lines(summarise(results)):
            about = (line.model.removeprefix("Model "), _short(line.epsilon))
            table.add_row(line.name, *about, *map(number, line.values))
        runs = f"{self.repetitions} run{'s' if self.repetitions > 1 else ''}"
        return [
            table,
            "",
            f"UCLAF, counts above zero, at most {MOST:g}; users at random sites. Means of {runs}.",
            f"{POOLED}, {EACH}: proven, entries protected, delta {DELTA:g}; noise is seeded.",
            "As printed: the thesis' algorithm, its epsilon claimed; as run: our reading.",
            "Flickr is not to be had.",
        ]

    def draw(self, folder: Path, results: Sequence[Done]) -> list[Path]:
        from sfumato.papers import ermis_uclaf_pictures

        lines, path = self.lines(summarise(results)), folder / TABLE_FILE
        heading = ("row", "model", "epsilon", *(f"{n} sites" for n in self.sites))
        write_csv(path, heading, [(*line[:3], *line.values) for line in lines])
        return [path, ermis_uclaf_pictures.draw(folder / "picture.png", self, lines)]


def _short(epsilon: float | None) -> str:
    return "" if epsilon is None else f"{epsilon:g}"


# N = 1, 2, 5, 10; None is without privacy.
PRINTED: dict[float | None, dict[str, tuple[float, ...]]] = {
    None: {
        "Model 1": (0.77, 0.65, 0.55, 0.47),
        "Model 2": (0.77, 0.62, 0.51, 0.43),
        "Model 3": (0.68, 0.54, 0.44, 0.37),
    },
    10.0: {
        "Model 1": (0.89, 0.77, 0.66, 0.57),
        "Model 2": (0.89, 0.72, 0.60, 0.51),
        "Model 3": (0.80, 0.64, 0.53, 0.46),
    },
    1.0: {
        "Model 1": (1.04, 0.94, 0.84, 0.75),
        "Model 2": (1.04, 0.89, 0.81, 0.73),
        "Model 3": (0.97, 0.83, 0.76, 0.70),
    },
    0.1: {
        "Model 1": (1.83, 1.66, 1.52, 1.40),
        "Model 2": (1.83, 1.74, 1.68, 1.64),
        "Model 3": (1.64, 1.60, 1.57, 1.57),
    },
}
TABLES = {"7.8": Models("table 7.8", repetitions=10)}
FIGURES = {
    "figure 7.14": Models("figure 7.14", epsilons=(1.0,), repetitions=10),
    "figure 7.15": Models("figure 7.15", sites=(10,), repetitions=10),
}
QUICK_TABLES = {"7.8": replace(TABLES["7.8"], sites=(1, 10), epsilons=(1.0,), repetitions=1)}
QUICK_FIGURES = {key: replace(figure, repetitions=1) for key, figure in FIGURES.items()}
