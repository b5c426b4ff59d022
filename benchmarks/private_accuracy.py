"""What privacy costs: every private method over epsilon, beside what is not private.

Noise is seeded, so that a run can be repeated. Settings are the defaults, which come from public
numbers and were chosen on data sets that are not scored here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from statistics import mean, stdev
from time import perf_counter
from typing import Any

import sfumato as sf
from benchmarks.accuracy import TEST_SEEDS, one_blas_thread, root_mean_square
from benchmarks.report import Figure, say

Pair = tuple[sf.SparseTensor, sf.SparseTensor]
NO_WORSE = 1.03  # than the constant, whatever the budget


def run(quick: bool) -> list[Figure]:
    return [*_paper_w(quick), *_movielens(quick)]


# -- paper W --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Method:
    """A private method on paper W's data, value unit; ``bars`` where it has some of its own."""

    what: str
    method: str
    noise: str = "auto"
    delta: float = 0.0
    kind: str = "cp"
    bars: tuple[tuple[float, float], ...] = ()


METHODS = (
    Method("auto", "auto", bars=((10.0, 0.31), (5.0, 0.36), (2.0, 0.85))),
    Method("input, Laplace", "input", "laplace", bars=((10.0, 0.75),)),
    Method("input, Gaussian", "input", "gaussian", 1e-6),
    Method("gradient, Gaussian", "gradient", delta=1e-6),
    Method("gradient, residual", "gradient", "residual"),
    Method("gradient, vector", "gradient", "vector"),
    Method("output", "output"),
    Method("constant", "constant"),
    Method("auto, Tucker", "auto", kind="tucker"),
)
EPSILONS = (10.0, 5.0, 2.0, 1.0, 0.5, 0.1)


def _paper_w(quick: bool) -> list[Figure]:
    figures = []
    with ProcessPoolExecutor(2, get_context("spawn"), one_blas_thread) as pool:
        for method in METHODS:
            begin = perf_counter()
            seeds = TEST_SEEDS[: 2 if quick else 5 if method.kind == "tucker" else 20]
            epsilons = (10.0, 1.0) if quick else EPSILONS
            rows = [
                list(pool.map(_ratio, [(method, epsilon, seed) for seed in seeds]))
                for epsilon in epsilons
            ]
            say(
                f"paper W, {method.what}, epsilon {', '.join(f'{e:g}' for e in epsilons)}: "
                f"{'  '.join(f'{mean(row):.3f}' for row in rows)}; {perf_counter() - begin:.0f} s"
            )
            for epsilon, row in zip(epsilons, rows, strict=True):
                name = f"paper W value, {method.what}, epsilon {epsilon:g}: error / truth"
                text = f"{mean(row):.4f} (sd {stdev(row):.3f}, {len(seeds)} seeds)"
                figures.append(Figure(name, mean(row), text, dict(method.bars).get(epsilon, NO_WORSE)))
    return figures


def _ratio(job: tuple[Method, float, int]) -> float:
    """RMSE against the true values at the test cells, where predicting zero gives one."""
    method, epsilon, seed = job
    data = sf.synthetic.wei(method.kind, seed=seed)  # type: ignore[arg-type]
    truth = data.truth_at(data.test)
    privacy = sf.Privacy(
        epsilon, method.delta, unit="value", method=method.method, noise=method.noise, seed=seed + 50_000
    )
    kind: Any = sf.CP if method.kind == "cp" else sf.Tucker
    estimator = kind(3, mean=False, biases=False, threads=1, privacy=privacy)
    predicted = estimator.fit(data.train.with_values(data.train.values, (-1, 1))).predict(data.test)
    return root_mean_square(predicted - truth) / root_mean_square(truth)


# -- MovieLens ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """Who is protected, whose rows stay local, and the bars on MovieLens 1M by predictor."""

    what: str
    unit: str
    delta: float
    local: str | None = None
    bars: tuple[tuple[str, float, float], ...] = ()


CASES = (
    Case(
        "entry, users local",
        "entry",
        1e-6,
        "user",
        (
            ("biases", 10.0, 0.911),
            ("biases", 1.0, 0.920),
            ("biases", 0.1, 0.967),
            ("gradient", 10.0, 0.905),
        ),
    ),
    Case("entry, all released", "entry", 1e-6),
    Case("entry, users local, pure", "entry", 0.0, "user"),
    Case(
        "user, joint",
        "user",
        1e-5,
        "user",
        (("biases", 10.0, 0.945), ("biases", 1.0, 1.003), ("biases", 0.1, 1.037)),
    ),
    Case("value", "value", 0.0),
)
BUDGETS = (10.0, 3.0, 1.0, 0.3, 0.1)


def _movielens(quick: bool) -> list[Figure]:
    problems: list[tuple[str, Callable[[], list[Pair]], int]] = [
        ("ML-100K ua", lambda: [sf.datasets.movielens_split("100k", "ua")], 8),
        ("ML-100K ua by day", lambda: [sf.datasets.movielens_split("100k", "ua", time="day")], 8),
        ("ML-1M random 80/20", _million, 10),
    ]
    figures: list[Figure] = []
    for what, load, rank in problems[:1] if quick else problems:
        try:
            pairs = load()
        except sf.SfumatoError as error:
            say(f"{what} is skipped: {error}")
            continue
        figures += _table(what, pairs, rank, has_bars="1M" in what, quick=quick)
    return figures


def _million() -> list[Pair]:
    ratings = sf.datasets.movielens("1m")
    return [ratings.split(0.2, seed=seed) for seed in range(3)]


def _table(what: str, pairs: list[Pair], rank: int, *, has_bars: bool, quick: bool) -> list[Figure]:
    figures = []
    for name, estimator in (
        ("constant", sf.Biases(sweeps=0)),
        ("biases", sf.Biases()),
        (f"CP({rank})", sf.CP(rank)),
    ):
        error = mean(estimator.fit(train).rmse(test) for train, test in pairs)
        figures.append(Figure(f"{what}: {name}, not private", error, f"{error:.4f}"))
    for case in CASES:
        figures += _case(what, case, pairs, rank, has_bars=has_bars, quick=quick)
    return figures


def _case(
    what: str, case: Case, pairs: Sequence[Pair], rank: int, *, has_bars: bool, quick: bool
) -> list[Figure]:
    methods = ("constant", "biases", "auto")
    if case.delta:
        methods = ("constant", "biases", "gradient", "auto")
    rows: dict[str, list[float]] = {name: [] for name in methods}
    figures = []
    budgets = (10.0, 1.0) if quick else BUDGETS
    for epsilon in budgets:
        for name in methods:
            begin = perf_counter()
            errors = [
                _estimator(name, rank, case, epsilon, train, seed).fit(train).rmse(test)
                for seed, (train, test) in enumerate(pairs)
            ]
            seconds = (perf_counter() - begin) / len(pairs)
            rows[name].append(mean(errors))
            bars = {(method, e): bar for method, e, bar in case.bars} if has_bars else {}
            bar = bars.get((name, epsilon))
            if name == "constant":
                bar = None
            elif bar is None:
                bar = NO_WORSE * rows["constant"][-1]
            label = f"{what}: {case.what}, {name}, epsilon {epsilon:g}"
            figures.append(
                Figure(label, mean(errors), f"{mean(errors):.4f} ({seconds:.0f} s a fit)", bar)
            )
    say(f"{what}, {case.what}, epsilon {', '.join(f'{e:g}' for e in budgets)}:")
    for name, errors in rows.items():
        say(f"    {name:10}" + "  ".join(f"{error:.4f}" for error in errors))
    return figures


def _estimator(
    name: str, rank: int, case: Case, epsilon: float, train: sf.SparseTensor, seed: int
) -> sf.TensorEstimator:
    privacy = sf.Privacy(
        epsilon,
        case.delta,
        unit=case.unit,
        local=case.local,
        method="gradient" if name == "gradient" else "auto",
        public=sf.Public(entries=train.n_entries, labels=True, step=1.0),
        seed=seed + 1000,
    )
    if name == "constant":
        return sf.Biases(sweeps=0, privacy=privacy)
    if name == "biases":
        return sf.Biases(privacy=privacy)
    return sf.CP(rank, privacy=privacy)
