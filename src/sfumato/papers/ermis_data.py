"""UCLAF as paper E uses it: the links of users, locations and activities, two side tables, and a part of
the links held out: cells, whole users, or entries."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from sfumato.data import datasets
from sfumato.data.relations import Relations, Structure
from sfumato.data.tensor import Mode, SparseTensor

LINKS, TRIPS, PLACES = "links", "trips", "places"
# Side tables by the modes that they have. As printed, the locations of trips are a mode of their own.
AS_PRINTED: dict[str, tuple[str, str]] = {TRIPS: ("user", "place"), PLACES: ("location", "feature")}
TRIPS_ONLY: dict[str, tuple[str, str]] = {TRIPS: ("user", "place")}
SHARED: dict[str, tuple[str, str]] = {TRIPS: ("user", "location"), PLACES: ("location", "feature")}

Scaling = Callable[[NDArray[np.float64]], NDArray[np.float64]]


def _logarithms(counts: NDArray[np.float64]) -> NDArray[np.float64]:
    logs = np.log1p(counts)
    return np.asarray(logs / logs.max())


# All of them keep zeros.
SCALINGS: dict[str, Scaling] = {
    "binary": lambda counts: (counts > 0).astype(np.float64),
    "largest": lambda counts: np.asarray(counts / counts.max()),
    "logarithm": _logarithms,
}


@dataclass(frozen=True)
class Uclaf:
    """The counts of all cells, 164 x 168 x 5, and of the side tables."""

    counts: NDArray[np.float64]
    modes: tuple[Mode, ...]
    tables: Mapping[str, NDArray[np.float64]]

    @property
    def cells(self) -> NDArray[np.int32]:
        """The coordinates of all cells, a column each."""
        return np.indices(self.counts.shape, np.int32).reshape(self.counts.ndim, -1)


@lru_cache(1)
def uclaf() -> Uclaf:
    """UCLAF, read once."""
    data = datasets.uclaf()
    counts = np.zeros(data.tensor.shape)
    counts[tuple(data.tensor.coordinates)] = data.tensor.values
    tables = {TRIPS: data.user_location, PLACES: data.location_feature}
    return Uclaf(
        counts,
        data.tensor.modes,
        {name: np.asarray(table, np.float64) for name, table in tables.items()},
    )


@dataclass(frozen=True)
class Problem:
    """What is observed of the links, what is held out, and the seed of the split and of all starts."""

    train: SparseTensor
    test: SparseTensor
    seed: int

    @property
    def mostly_seen(self) -> bool:
        """Whether zeros are observed, and cells that are not are fewer than those that are."""
        seen, held = self.train.n_entries, self.test.n_entries
        return seen + held == uclaf().counts.size and seen > held

    def relations(
        self,
        structure: Structure,
        divergence: float,
        sides: Mapping[str, tuple[str, str]],
        scaling: str,
        *,
        dispersion: float | Mapping[str, float] | None = 1.0,
        more: float = 0.0,
    ) -> Relations:
        """The links with side tables, of which all cells are observed; all values raised by ``more``."""
        closed = self.mostly_seen and not more
        links = _zeros_left_out(self.train, self.test) if closed else _raised(self.train, more)
        tensors = {LINKS: links}
        for name, modes in sides.items():
            tensors[name] = _table(SCALINGS[scaling](uclaf().tables[name]) + more, modes)
        return Relations(
            tensors,
            structure={LINKS: structure},
            divergence=divergence,
            dispersion=dispersion,
            absent={LINKS: "zero" if closed else "missing"},
        )


def _raised(tensor: SparseTensor, more: float) -> SparseTensor:
    return tensor.with_values(tensor.values + more) if more else tensor


def _zeros_left_out(train: SparseTensor, test: SparseTensor) -> SparseTensor:
    """The same cells for ``absent="zero"``: entries above zero, and NaN at those not observed."""
    there = train.values > 0
    cells = np.concatenate([train.coordinates[:, there], test.coordinates], axis=1)
    values = np.concatenate([train.values[there], np.full(test.n_entries, np.nan)])
    return SparseTensor(cells, values, train.modes)


def _table(values: NDArray[np.float64], names: tuple[str, str]) -> SparseTensor:
    cells = np.indices(values.shape, np.int32).reshape(2, -1)
    modes = tuple(Mode(name, size) for name, size in zip(names, values.shape, strict=True))
    return SparseTensor(cells, values.ravel(), modes)


def _problem(
    values: NDArray[np.float64], seen: NDArray[np.bool_], held: NDArray[np.bool_], seed: int
) -> Problem:
    data, flat = uclaf(), values.ravel()
    train, test = (SparseTensor(data.cells[:, of], flat[of], data.modes) for of in (seen, held))
    return Problem(train, test, seed)


def _links() -> NDArray[np.float64]:
    return (uclaf().counts > 0).astype(np.float64)


def some_cells(missing: float, seed: int) -> Problem:
    """Links, 0 or 1; a random part of all cells is held out, and the others are observed, zeros too."""
    links = _links()
    held = np.zeros(links.size, bool)
    chosen = np.random.default_rng(seed).choice(links.size, round(missing * links.size), replace=False)
    held[chosen] = True
    return _problem(links, ~held, held, seed)


def whole_users(users: float, seed: int) -> Problem:
    """Links, 0 or 1; all cells of so many random users are held out. Some have no link at all."""
    links = _links()
    held = np.zeros(links.shape, bool)
    held[np.random.default_rng(seed).choice(links.shape[0], int(users), replace=False)] = True
    return _problem(links, ~held.ravel(), held.ravel(), seed)


def some_entries(training: float, seed: int) -> Problem:
    """Logarithms of the 1,436 counts above zero, scaled to at most 1; a random part is for training.

    All other cells, those without a count too, are missing.
    """
    counts = uclaf().counts
    there = np.random.default_rng(seed).permutation(np.flatnonzero(counts))
    seen, held = np.zeros(counts.size, bool), np.zeros(counts.size, bool)
    first = round(training * len(there))
    seen[there[:first]], held[there[first:]] = True, True
    return _problem(_logarithms(counts), seen, held, seed)


def by_means(problem: Problem) -> NDArray[np.float64]:
    """The simple predictor: the product of a cell's means by user, location and activity.

    A level without an observed cell takes the mean of all.
    """
    train, overall = problem.train, float(problem.train.values.mean())
    product = np.ones(problem.test.n_entries)
    if not overall:
        return 0 * product
    for mode, levels, wanted in zip(
        train.modes, train.coordinates, problem.test.coordinates, strict=True
    ):
        sums = np.bincount(levels, train.values, minlength=mode.size)
        counts = np.bincount(levels, minlength=mode.size)
        means = np.where(counts > 0, sums / np.maximum(counts, 1), overall)
        product *= means[wanted] / overall
    return product * overall


def by_visits(problem: Problem) -> NDArray[np.float64]:
    """Pairs of user and location that the table of trips has come first; among equals, by means.

    Every link is at such a pair: the table has the answer to where, though not to what.
    """
    users, locations, _ = problem.test.coordinates
    visited = uclaf().tables[TRIPS][users, locations] > 0
    means = by_means(problem)
    return np.where(visited, 1.0 + means.max() + means, means)
