"""Coverage and widths of intervals under privacy, and errors of rare levels beside popular ones."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from itertools import product
from typing import Any, NamedTuple

import numpy as np

import sfumato as sf
from benchmarks.report import Figure, aligned, say
from sfumato.data.tensor import Mode
from sfumato.estimators.by_popularity import groups_of
from sfumato.estimators.groups import groups_text, told_of

LEVEL, LEAST, MOST = 0.9, 0.87, 0.93
Pair = tuple[sf.SparseTensor, sf.SparseTensor]


class Case(NamedTuple):
    """A private fit that is to be measured."""

    unit: str
    local: str | None
    kind: Callable[..., Any]
    method: str = "auto"

    @property
    def said(self) -> str:
        return f"{self.unit}, {'all released' if self.local is None else 'own rows'}"


_CASES = (
    Case("entry", None, sf.CP),
    Case("entry", None, sf.Tucker, "alternating"),
    Case("entry", "user", sf.CP),
    Case("user", "auto", sf.CP),
)


def run(quick: bool) -> list[Figure]:
    """Nominally nine of ten held-out values lie inside."""
    figures: list[Figure] = []
    _groups(quick)
    for name, pair, epsilons in _data(quick):
        rows = [_measured(name, "open", sf.CP(), pair, figures)]
        for epsilon, case in product(epsilons, _CASES):
            if pair[0].order > 2 and case.kind is sf.Tucker:
                continue
            model = case.kind(privacy=_privacy(case, epsilon, pair[0].modes))
            said = f"{case.kind.__name__}, {case.said}, epsilon {epsilon:g}"
            rows.append(_measured(name, said, model, pair, figures))
        say(name)
        say(aligned([("fit", "method", "inside", "width", "noise", "scatter", "RMSE"), *rows]))
    _coupled(quick, figures)
    _hidden(quick)
    _seeds(quick)
    _cost(quick)
    inside = [figure.measured for figure in figures if not figure.what.endswith(", open")]
    within = sum(LEAST <= share <= MOST for share in inside)
    say(f"{within} of {len(inside)} private fits have between {LEAST} and {MOST} of values inside")
    return figures


def _privacy(case: Case, epsilon: float, modes: Sequence[Mode], **more: Any) -> sf.Privacy:
    public = sf.Public(labels={m.name: list(m.labels_at(np.arange(m.size))) for m in modes})
    settings = {"seed": 1, "intervals": True, "method": case.method, **more}
    return sf.Privacy(
        epsilon=epsilon, delta=1e-6, unit=case.unit, local=case.local, public=public, **settings
    )


def _fitted(model: Any, data: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return model.fit(data)


def _measured(name: str, said: str, model: Any, pair: Pair, figures: list[Figure]) -> list[str]:
    train, test = pair
    found = _fitted(model, train).predict(test, interval=LEVEL, unseen="bias")
    return [said, model.method_, *_told(name, said, found, test, figures)]


def _told(
    name: str, said: str, found: sf.Interval, test: sf.SparseTensor, figures: list[Figure]
) -> list[str]:
    inside = float(np.mean((test.values >= found.low) & (test.values <= found.high)))
    width = float(np.mean(found.high - found.low))
    error = float(np.sqrt(np.mean((test.values - found.prediction) ** 2)))
    figures.append(Figure(f"inside: {name}, {said}", inside, f"{inside:.3f}"))
    parts = (width, float(np.mean(found.noise)), float(np.mean(found.scatter)), error)
    return [f"{inside:.3f}", *(f"{part:.3f}" for part in parts)]


def _coupled(quick: bool, figures: list[Figure]) -> None:
    """Two tables that share their users, fitted one beside the other."""
    pairs = {name: table.split(0.2, seed=1) for name, table in planted_tables().items()}
    train = {name: pair[0] for name, pair in pairs.items()}
    modes = {mode.name: mode for table in train.values() for mode in table.modes}.values()
    rows = []
    for epsilon, case in product((3,) if quick else (0.5, 1, 3, 10), (*_CASES[:1], *_CASES[2:])):
        model = _fitted(sf.Coupled(privacy=_privacy(case, epsilon, list(modes))), train)
        for name, (_, test) in pairs.items():
            said = f"{name}, {case.said}, epsilon {epsilon:g}"
            found = model.predict(name, test, interval=LEVEL, unseen="bias")
            rows.append([said, *_told("coupled", said, found, test, figures)])
    say("planted, two tables that share users, fitted together")
    say(aligned([("table and fit", "inside", "width", "noise", "scatter", "RMSE"), *rows]))


def _seeds(quick: bool) -> None:
    """How much coverage differs from one noise to the next, where rows stay with owners."""
    pair = planted("normal").split(0.2, seed=1) if quick else sf.datasets.movielens_split("100k", "ua")
    rows = []
    for epsilon, case in product((3,) if quick else (0.5, 1, 3), _CASES[2:]):
        inside = []
        for seed in range(1, 3 if quick else 9):
            model = case.kind(privacy=_privacy(case, epsilon, pair[0].modes, seed=seed))
            found = _fitted(model, pair[0]).predict(pair[1], interval=LEVEL, unseen="bias")
            here = (pair[1].values >= found.low) & (pair[1].values <= found.high)
            inside.append(float(np.mean(here)))
        within = sum(LEAST <= share <= MOST for share in inside)
        parts = (np.mean(inside), np.std(inside), min(inside), max(inside))
        said = f"{case.kind.__name__}, {case.said}, epsilon {epsilon:g}"
        rows.append([said, *(f"{part:.3f}" for part in parts), f"{within} of {len(inside)}"])
    say("inside, over seeds of the noise")
    say(aligned([("fit", "mean", "deviation", "least", "most", "0.87 to 0.93"), *rows]))


def _hidden(quick: bool) -> None:
    """Small budgets and small tables: where noise hides how far values lie from anything, bounds are to
    be too wide rather than too narrow. Over seeds of data, splits and noise.
    """
    rows = []
    for name, drawn, case, epsilons in _SMALL[5:6] if quick else _SMALL:
        for epsilon in epsilons:
            inside, widths, told = [], [], ""
            for seed in range(1, 3 if quick else 9):
                train, test = drawn(seed).split(0.2, seed=seed)
                model = _fitted(sf.CP(privacy=_privacy(case, epsilon, train.modes, seed=seed)), train)
                found = model.predict(test, interval=LEVEL, unseen="bias")
                inside.append(float(np.mean((test.values >= found.low) & (test.values <= found.high))))
                widths.append(float(np.mean(found.high - found.low)))
                asked = any(label == "spread" for label, *_ in model.guarantee_.draws)
                told = "asked" if asked else "guessed"
            parts = (np.mean(inside), np.std(inside), min(inside), max(inside), np.mean(widths))
            enough = sum(share >= LEAST for share in inside)
            said = f"{name}, {case.said}, epsilon {epsilon:g}"
            rows.append([said, told, *(f"{part:.3f}" for part in parts), f"{enough} of {len(inside)}"])
    say("inside at small budgets and of small tables, over seeds of data, splits and noise")
    say(
        aligned(
            [("data and fit", "spread", "mean", "deviation", "least", "most", "width", ">= 0.87"), *rows]
        )
    )


def _cost(quick: bool) -> None:
    """What asking for intervals costs: RMSE with and without, means over seeds of the noise."""
    pair = planted("normal").split(0.2, seed=1) if quick else sf.datasets.movielens_split("100k", "ua")
    rows = []
    for epsilon, case in product((3,) if quick else (0.5, 1, 3, 10), _CASES):
        errors = [
            [
                _fitted(case.kind(privacy=_privacy(case, epsilon, pair[0].modes, **how)), pair[0]).rmse(
                    pair[1]
                )
                for how in ({"seed": seed, "intervals": asked} for seed in range(1, 3 if quick else 6))
            ]
            for asked in (False, True)
        ]
        without, asked = (float(np.mean(each)) for each in errors)
        said = f"{case.kind.__name__}, {case.said}, epsilon {epsilon:g}"
        rows.append([said, f"{without:.4f}", f"{asked:.4f}"])
    say("RMSE without intervals and with them, means over seeds of the noise")
    say(aligned([("fit", "without", "with"), *rows]))


def _data(quick: bool) -> Iterator[tuple[str, Pair, tuple[float, ...]]]:
    epsilons = (3,) if quick else (0.5, 1, 3, 10)
    if not quick:
        yield "MovieLens 100K, ua", sf.datasets.movielens_split("100k", "ua"), epsilons
    for law in ("normal",) if quick else ("normal", "t3", "counts", "ratings"):
        yield f"planted, {law}", planted(law).split(0.2, seed=1), epsilons
    yield "planted, three modes", planted_cube().split(0.2, seed=1), epsilons
    if not quick:
        yield "MovieLens 1M", sf.datasets.movielens("1m").split(0.1, seed=1), (1,)


def planted(law: str, seed: int = 0) -> sf.SparseTensor:
    """Biases and two components, items of Zipf popularity, and residuals of several laws."""
    generator, (users, items), entries = np.random.default_rng(seed), (1500, 300), 90_000
    likely = (np.arange(items) + 3.0) ** -0.7
    cells = np.unique(
        generator.integers(0, users, 2 * entries) * items
        + generator.choice(items, 2 * entries, p=likely / likely.sum())
    )
    cells = generator.permutation(cells)[:entries]
    u, i = np.divmod(cells, items)
    parts = [generator.standard_normal((size, 3)) for size in (users, items)]
    signal = 0.35 * parts[0][u, 0] + 0.45 * parts[1][i, 0]
    signal += 0.3 * (parts[0][u, 1:] * parts[1][i, 1:]).sum(axis=1)
    if law == "counts":
        counts = generator.poisson(np.exp(1 + 0.7 * signal))
        values, bounds = np.minimum(counts, 30).astype(float), (0, 30)
    else:
        heavy, size = law == "t3", cells.size
        noise = generator.standard_t(3, size) if heavy else generator.standard_normal(size)
        values, bounds = 3.4 + signal + 0.8 * noise, (-2, 9)
        if law == "ratings":
            values, bounds = np.rint(values), (1, 5)
        values = np.clip(values, *bounds)
    modes = Mode("user", users, np.arange(users)), Mode("item", items, np.arange(items))
    where = np.array([u, i], np.int32)
    return sf.SparseTensor(where, values, modes, (float(bounds[0]), float(bounds[1])))


def planted_cube(seed: int = 0) -> sf.SparseTensor:
    """Users, items and weeks: biases of all, one component of three modes, normal residuals."""
    generator, sizes, entries = np.random.default_rng(seed), (800, 150, 20), 60_000
    cells = generator.choice(int(np.prod(sizes)), entries, replace=False)
    where = np.array(np.unravel_index(cells, sizes), np.int32)
    parts = [generator.standard_normal((size, 2))[at] for size, at in zip(sizes, where, strict=True)]
    signal = 0.4 * parts[0][:, 0] + 0.4 * parts[1][:, 0] + 0.2 * parts[2][:, 0]
    signal += 0.3 * np.prod([part[:, 1] for part in parts], axis=0)
    values = np.clip(3 + signal + 0.7 * generator.standard_normal(entries), -2, 8)
    names = ("user", "item", "week")
    modes = tuple(Mode(name, n, np.arange(n)) for name, n in zip(names, sizes, strict=True))
    return sf.SparseTensor(where, values, modes, (-2.0, 8.0))


def planted_biases(sizes: tuple[int, ...], entries: int, seed: int) -> sf.SparseTensor:
    """Biases of two modes, normal residuals, cells at random, cut to 1 to 5."""
    generator = np.random.default_rng(seed)
    where = np.unique(np.stack([generator.integers(0, size, entries) for size in sizes]), axis=1)
    likely = [
        0.5 * generator.standard_normal(size)[at] for size, at in zip(sizes[:2], where, strict=False)
    ]
    values = np.clip(3 + sum(likely) + 0.7 * generator.standard_normal(where.shape[1]), 1, 5)
    modes = [Mode(name, size) for name, size in zip(("user", "item", "day"), sizes, strict=False)]
    return sf.SparseTensor(where.astype(np.int32), values, tuple(modes), (1.0, 5.0))


def planted_answers(seed: int) -> sf.SparseTensor:
    """Yes or no, about as often: nothing lies further from its mean than this within its bounds."""
    tensor = planted_biases((300, 200), 20_000, seed)
    return tensor.with_values((tensor.values > 3).astype(float), (0.0, 1.0))


def _small(sizes: tuple[int, ...], entries: int) -> Callable[[int], sf.SparseTensor]:
    return lambda seed: planted_biases(sizes, entries, seed)


def _movielens(_: int) -> sf.SparseTensor:
    return sf.datasets.movielens("100k")


_ENTRY, _OWN, _USER = _CASES[0], _CASES[2], _CASES[3]
_SMALL: tuple[tuple[str, Callable[[int], sf.SparseTensor], Case, tuple[float, ...]], ...] = (
    ("MovieLens 100K", _movielens, _ENTRY, (0.1,)),
    ("MovieLens 100K", _movielens, _OWN, (0.1,)),
    ("MovieLens 100K", _movielens, _USER, (0.1, 0.25, 0.5)),
    ("1,500 x 400, 90,000", _small((1500, 400), 90_000), _USER, (0.1, 0.25, 0.5)),
    ("300 x 200, 20,000", _small((300, 200), 20_000), _ENTRY, (0.1, 0.5)),
    ("300 x 200, 20,000", _small((300, 200), 20_000), _USER, (0.1, 0.5, 1, 3)),
    ("the same, yes or no", planted_answers, _USER, (0.1, 0.5, 1, 3)),
    ("300 x 200 x 20, 20,000", _small((300, 200, 20), 20_000), _USER, (0.1, 0.5, 1, 3)),
    ("400 x 4, 1,400", _small((400, 4), 1_400), _USER, (1, 3, 10)),
)


def planted_tables(seed: int = 0) -> dict[str, sf.SparseTensor]:
    """Ratings and visits of the same users, by the same two components and with biases."""
    generator, users = np.random.default_rng(seed), 1200
    rows, tables = generator.standard_normal((users, 3)), {}
    for name, other, size, entries in (
        ("ratings", "item", 250, 60_000),
        ("visits", "place", 120, 30_000),
    ):
        likely, columns = (np.arange(size) + 3.0) ** -0.7, generator.standard_normal((size, 3))
        there = generator.choice(size, 2 * entries, p=likely / likely.sum())
        cells = np.unique(generator.integers(0, users, 2 * entries) * size + there)
        u, i = np.divmod(generator.permutation(cells)[:entries], size)
        signal = 0.35 * rows[u, 0] + 0.45 * columns[i, 0]
        signal += 0.3 * (rows[u, 1:] * columns[i, 1:]).sum(axis=1)
        values = np.clip(3.4 + signal + 0.8 * generator.standard_normal(u.size), -2, 9)
        modes = Mode("user", users, np.arange(users)), Mode(other, size, np.arange(size))
        tables[name] = sf.SparseTensor(np.array([u, i], np.int32), values, modes, (-2.0, 9.0))
    return tables


def _groups(quick: bool) -> None:
    pairs = {"planted": planted("normal").split(0.2, seed=1)}
    if not quick:
        pairs["MovieLens 100K, ua"] = sf.datasets.movielens_split("100k", "ua")
        pairs["MovieLens 100K, a tenth at random"] = sf.datasets.movielens("100k").split(0.1, seed=1)
    for name, (train, test) in pairs.items():
        model = _fitted(sf.CP(privacy=_privacy(_CASES[0], 1, train.modes)), train)
        say(f"groups of {name}, everything released, an entry protected, epsilon 1")
        say(groups_text(groups_of(told_of(model), "item")))
        say(groups_text(groups_of(told_of(model), "item", test)))
