"""Private fits of several relations: planted tables that help or mislead, UCLAF, MovieLens 1M, speed.

``python -m benchmarks coupled_private`` (some ten minutes; ``--quick`` for one split of small data).
Noise is seeded, settings are the plan's.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from statistics import mean, median, stdev
from typing import Any

import numpy as np

import sfumato as sf
from benchmarks.report import Figure, say
from sfumato.fit.admit import with_labels_of
from sfumato.papers.ermis_data import uclaf

SPLITS = 10
UCLAF_BARS = {10.0: 1.48, 1.0: 1.59, 0.1: 1.625}
Errors = defaultdict[str, list[float]]


def run(quick: bool) -> list[Figure]:
    figures = list(_planted(quick))
    figures += _uclaf(1 if quick else SPLITS)
    figures += _movielens(quick)
    return figures + list(_speed(quick))


# -- planted --------------------------------------------------------------------------------------


def planted(seed: int, users: int, helps: bool) -> dict[str, sf.SparseTensor]:
    """Ratings, and 50 counts of every user: from the same factors as the ratings, or from others."""
    g = np.random.default_rng(seed)
    taste, items, tags = (g.standard_normal((n, 3)) for n in (users, 200, 50))
    told = taste if helps else g.standard_normal((users, 3))
    counts = np.minimum(g.poisson(np.exp(0.3 + 0.5 * told @ tags.T)), 20).astype(float)
    values = 3.2 + 0.3 * g.standard_normal((users, 1)) + 0.5 * g.standard_normal(200)
    values = np.clip(values + 0.5 * taste @ items.T + 0.6 * g.standard_normal((users, 200)), 0, 6)
    known = g.random(values.shape) < 0.094
    modes = [sf.Mode(name, n) for name, n in (("user", users), ("item", 200), ("tag", 50))]
    cells = np.stack(np.nonzero(known))
    ratings = sf.SparseTensor(cells, values[known], (modes[0], modes[1]), (0.0, 6.0))
    every = np.indices(counts.shape).reshape(2, -1)
    return {
        "ratings": ratings,
        "tags": sf.SparseTensor(every, counts.ravel(), (modes[0], modes[2]), (0.0, 20.0)),
    }


def _open_coupled(train: sf.SparseTensor, side: sf.SparseTensor) -> Any:
    """Both tables as one matrix of users by items and tags, values standardised: no privacy."""
    spread, centre = float(train.values.std()), float(train.values.mean())
    logs = np.log1p(side.values)
    values = np.concatenate([train.values - centre, (logs - logs.mean()) / logs.std() * spread])
    moved = side.coordinates + np.array([[0], [train.shape[1]]], np.int32)
    modes = (train.modes[0], sf.Mode("either", train.shape[1] + side.shape[1]))
    both = np.concatenate([train.coordinates, moved], 1)
    model = sf.CP(8).fit(sf.SparseTensor(both, values, modes))
    return lambda test: model.model_.predict(test.coordinates) + centre


def _privacy(
    tensors: Mapping[str, sf.SparseTensor], unit: str, epsilon: float, seed: int, **rest: Any
) -> sf.Privacy:
    tables = rest.pop("tables", ())
    labels = {m.name: range(m.size) for t in tensors.values() for m in t.modes}
    said: dict[str, Any] = {n: sf.Public(entries=t.n_entries) for n, t in tensors.items()}
    said |= dict.fromkeys(tables, True)
    public = sf.Public(labels=labels, relations=said if len(tensors) > 1 else {})
    if len(tensors) == 1:
        (only,) = tensors.values()
        public = sf.Public(labels=labels, entries=only.n_entries)
    return sf.Privacy(epsilon, rest.pop("delta", 1e-6), unit=unit, seed=seed, public=public, **rest)


def _planted(quick: bool) -> Iterator[Figure]:
    for unit, users in (("entry", 1000), ("user", 4000)):
        for helps in (True, False):
            errors: Errors = defaultdict(list)
            for seed in range(1 if quick else 3):
                tensors = planted(seed, users, helps)
                train, test = tensors["ratings"].split(0.2, seed=seed)
                both = {**tensors, "ratings": train}
                own = _privacy({"ratings": train}, unit, 3.0, seed, local="user")
                errors["single"].append(sf.CP(privacy=own).fit(train).rmse(test))
                own = _privacy(both, unit, 3.0, seed, local="user")
                errors["coupled"].append(sf.Coupled(privacy=own).fit(both).rmse("ratings", test))
                guess = _open_coupled(train, tensors["tags"])(test)
                errors["open"].append(float(np.sqrt(np.mean((guess - test.values) ** 2))))
                errors["biases"].append(sf.Biases().fit(train).rmse(test))
            at = {name: mean(found) for name, found in errors.items()}
            bar = (at["open"] + at["single"]) / 2 if helps else 1.01 * at["single"]
            what = "that carries the signal" if helps else "that misleads"
            beside = f"single {at['single']:.4f}, open {at['open']:.4f}, open biases {at['biases']:.4f}"
            yield Figure(
                f"planted, a table {what}, {unit} unit, epsilon 3",
                at["coupled"],
                f"{at['coupled']:.4f} ({beside})",
                bar,
            )
            say(f"planted {unit} {what}: {at}")


# -- UCLAF ----------------------------------------------------------------------------------------


def uclaf_links() -> tuple[sf.SparseTensor, dict[str, sf.SparseTensor]]:
    """The non-zero cells, capped at 5, and the two side tables as logarithms of counts."""
    data = uclaf()
    cells = np.stack(np.nonzero(data.counts))
    values = np.minimum(data.counts[tuple(cells)], 5.0)
    modes = tuple(
        sf.Mode(name, size)
        for name, size in zip(("user", "location", "activity"), data.counts.shape, strict=True)
    )
    tables = {}
    for name, shared in (("trips", ("user", "location")), ("places", ("location", "feature"))):
        table = data.tables[name]
        there = np.stack(np.nonzero(table))
        named = tuple(sf.Mode(mode, size) for mode, size in zip(shared, table.shape, strict=True))
        tables[name] = sf.SparseTensor(there, np.log1p(table[tuple(there)]), named)
    return sf.SparseTensor(cells, values, modes, (1.0, 5.0)), tables


def _uclaf(splits: int) -> list[Figure]:
    try:
        links, tables = uclaf_links()
    except sf.SfumatoError as error:
        say(f"UCLAF is skipped: {error}")
        return []
    figures, errors = [], defaultdict[tuple[float, str | None, str], list[float]](list)
    for seed in range(splits):
        train, test = links.split(0.2, seed=seed)
        errors[0.0, None, "constant"].append(float(np.std(test.values - train.values.mean())))
        errors[0.0, None, "open CP"].append(sf.CP(unseen="bias").fit(train).rmse(test))
        for epsilon in UCLAF_BARS:
            for local in (None, "user"):
                kept = {"local": local, "delta": 1e-4}
                own = _privacy({"links": train}, "entry", epsilon, seed, **kept)
                alone = sf.CP(unseen="bias", privacy=own).fit(train).rmse(test)
                errors[epsilon, local, "single"].append(alone)
                own = _privacy(
                    {"links": train, **tables}, "entry", epsilon, seed, tables=tuple(tables), **kept
                )
                model = sf.Coupled(privacy=own).fit({"links": train, **tables})
                errors[epsilon, local, "with tables"].append(model.rmse("links", test))
    for (epsilon, local, name), found in errors.items():
        error = stdev(found) / len(found) ** 0.5 if len(found) > 1 else 0.0
        rows = "" if not epsilon else ", users local" if local else ", all released"
        bar = UCLAF_BARS.get(epsilon) if name == "single" else None
        if name == "with tables" and epsilon >= 1:
            bar = 1.01 * mean(errors[epsilon, local, "single"])
        what = f"UCLAF, {name}{rows}" + (f", epsilon {epsilon:g}" if epsilon else "")
        figures.append(Figure(what, mean(found), f"{mean(found):.4f} ± {error:.4f}", bar))
    return figures


# -- MovieLens ------------------------------------------------------------------------------------


def _movielens(quick: bool) -> list[Figure]:
    try:
        ratings = sf.datasets.movielens("1m")
    except sf.SfumatoError as error:
        say(f"MovieLens 1M is skipped: {error}")
        return []
    figures, errors = [], defaultdict[tuple[float, str], list[float]](list)
    for seed in range(1 if quick else 3):
        train, test = ratings.split(0.2, seed=seed)
        public = with_labels_of(train.modes, sf.Public(entries=train.n_entries))
        for epsilon in (10.0, 3.0, 1.0, 0.1):
            for method in ("langevin", "bias"):
                own = sf.Privacy(
                    epsilon, 1e-6, unit="entry", local="user", method=method, public=public, seed=seed
                )
                model = sf.Coupled(5 if method == "langevin" else None, privacy=own)
                found = model.fit({"ratings": train}).rmse("ratings", test)
                errors[epsilon, method].append(found)
                say(f"MovieLens 1M, {method}, epsilon {epsilon:g}, split {seed}: {found:.4f}")
    for epsilon in (10.0, 3.0, 1.0, 0.1):
        langevin, bias = (mean(errors[epsilon, method]) for method in ("langevin", "bias"))
        bar = min(1.01 * bias, 0.9) if epsilon == 10 else 1.01 * bias
        what = f"MovieLens 1M, langevin, entry, users local, epsilon {epsilon:g}"
        figures.append(Figure(what, langevin, f"{langevin:.4f} (biases {bias:.4f})", bar))
    return figures


# -- speed ----------------------------------------------------------------------------------------


def _speed(quick: bool) -> Iterator[Figure]:
    """A coupled fit beside fits of its relations one by one, by the same method and draws."""
    tensors = planted(0, 2000 if quick else 20000, True)
    times: defaultdict[str, list[float]] = defaultdict(list)
    for _ in range(2 if quick else 5):
        begin = time.perf_counter()
        own = _privacy(tensors, "user", 3.0, 0, method="moments")
        sf.Coupled(privacy=own).fit(tensors)
        times["coupled"].append(time.perf_counter() - begin)
        begin = time.perf_counter()
        for name, tensor in tensors.items():
            single = _privacy({name: tensor}, "user", 3.0, 0, method="moments")
            sf.Coupled(privacy=single).fit({name: tensor})
        times["one by one"].append(time.perf_counter() - begin)
    coupled, apart = median(times["coupled"]), median(times["one by one"])
    entries = sum(tensor.n_entries for tensor in tensors.values())
    yield Figure(
        f"a coupled fit of {entries:,} entries over its relations one by one",
        coupled / apart,
        f"{coupled / apart:.2f} times ({coupled:.2f} s, {apart:.2f} s)",
        1.2,
    )
