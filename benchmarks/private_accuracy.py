"""What privacy costs: every private method over epsilon, beside what is not private.

Noise is seeded, so that a run can be repeated. Settings are the defaults, which come from public
numbers and were chosen on data sets that are not scored here. ``auto`` on MovieLens and on the tensor
with four modes is given no rank: the plan chooses it too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from statistics import mean, stdev
from time import perf_counter
from typing import Any

import numpy as np

import sfumato as sf
from benchmarks.accuracy import TEST_SEEDS, one_blas_thread, root_mean_square
from benchmarks.report import Figure, say
from sfumato.fit.admit import with_labels_of

Pair = tuple[sf.SparseTensor, sf.SparseTensor]
NO_WORSE = 1.03  # than the constant, whatever the budget


def run(quick: bool) -> list[Figure]:
    return [*_paper_w(quick), *_movielens(quick), *_by_day(quick), *_four_modes(quick)]


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
            ("auto", 10.0, 0.845),
            ("auto", 1.0, 0.872),
            ("auto", 0.1, 0.920),
        ),
    ),
    Case(
        "entry, all released",
        "entry",
        1e-6,
        bars=(("auto", 10.0, 0.862), ("auto", 1.0, 0.915)),
    ),
    Case("entry, users local, pure", "entry", 0.0, "user"),
    Case(
        "user, joint",
        "user",
        1e-5,
        "user",
        (
            ("biases", 10.0, 0.945),
            ("biases", 1.0, 1.003),
            ("biases", 0.1, 1.037),
            ("auto", 10.0, 0.870),
            ("auto", 1.0, 0.919),
            ("auto", 0.1, 1.005),
        ),
    ),
    Case("value", "value", 0.0),
)
BUDGETS = (10.0, 3.0, 1.0, 0.3, 0.1)
GRADIENT_BUDGETS = (10.0, 1.0)


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
    methods = (
        ("constant", "biases", "gradient", "auto") if case.delta else ("constant", "biases", "auto")
    )
    rows: dict[str, list[str]] = {name: [] for name in methods}
    bars = {(name, epsilon): bar for name, epsilon, bar in case.bars} if has_bars else {}
    figures = []
    budgets = (10.0, 1.0) if quick else BUDGETS
    for epsilon in budgets:
        constant = 0.0
        for name in methods:
            if name == "gradient" and epsilon not in GRADIENT_BUDGETS:
                rows[name].append("     —")
                continue
            begin = perf_counter()
            error = mean(
                _estimator(name, rank, case, epsilon, train, seed).fit(train).rmse(test)
                for seed, (train, test) in enumerate(pairs)
            )
            seconds = (perf_counter() - begin) / len(pairs)
            rows[name].append(f"{error:.4f}")
            if name == "constant":
                constant, bar = error, None
            else:
                bar = bars.get((name, epsilon), NO_WORSE * constant)
            label = f"{what}: {case.what}, {name}, epsilon {epsilon:g}"
            figures.append(Figure(label, error, f"{error:.4f} ({seconds:.0f} s a fit)", bar))
    say(f"{what}, {case.what}, epsilon {', '.join(f'{e:g}' for e in budgets)}:")
    for name, cells in rows.items():
        say(f"    {name:10}" + "  ".join(cells))
    return figures


def _estimator(
    name: str, rank: int, case: Case, epsilon: float, train: sf.SparseTensor, seed: int
) -> sf.TensorEstimator:
    """A private predictor by name; ``rank`` is that of gradient perturbation."""
    privacy = sf.Privacy(
        epsilon,
        case.delta,
        unit=case.unit,
        local=case.local,
        method="gradient" if name == "gradient" else "auto",
        public=with_labels_of(train.modes, sf.Public(entries=train.n_entries, step=1.0)),
        seed=seed + 1000,
    )
    if name == "constant":
        return sf.Biases(sweeps=0, privacy=privacy)
    if name == "biases":
        return sf.Biases(privacy=privacy)
    return sf.CP(rank if name == "gradient" else None, privacy=privacy)


# -- MovieLens with days --------------------------------------------------------------------------

DAY_CASES = tuple(case for case in CASES if case.what in ("entry, users local", "user, joint"))
DAY_BUDGETS = (10.0, 5.0, 3.0, 1.0, 0.3, 0.1)
BETTER_FROM = 1.0  # epsilon from which on factors have to beat biases
SAME = 0.002  # RMSE: the mean of three draws of noise is no closer than that
NOISE_SEEDS = range(3)


def _by_day(quick: bool) -> list[Figure]:
    """Days are not to hurt: ``auto`` beside private biases, and beside the same ratings without days."""
    try:
        tensor = sf.datasets.movielens_split("100k", "ua", time="day")
        matrix = sf.datasets.movielens_split("100k", "ua")
    except sf.SfumatoError as error:
        say(f"ML-100K ua by day is skipped: {error}")
        return []
    seeds = NOISE_SEEDS[: 2 if quick else 3]
    figures: list[Figure] = []
    for case in DAY_CASES:
        for epsilon in (10.0, 1.0) if quick else DAY_BUDGETS:
            auto, biases, flat = (
                _draws(name, case, epsilon, pair, seeds)
                for name, pair in (("auto", tensor), ("biases", tensor), ("auto", matrix))
            )
            label = f"ML-100K ua by day: {case.what}, epsilon {epsilon:g}, auto"
            errors = f"{mean(auto):.4f}, biases {mean(biases):.4f}, without days {mean(flat):.4f}"
            say(f"{label} {errors}")
            better = epsilon >= BETTER_FROM
            figures += [
                _difference(f"{label} - biases", auto, biases, better=better),
                _difference(f"{label} - auto without days", auto, flat),
            ]
    return figures


def _draws(name: str, case: Case, epsilon: float, pair: Pair, seeds: Sequence[int]) -> list[float]:
    train, test = pair
    return [_estimator(name, 8, case, epsilon, train, seed).fit(train).rmse(test) for seed in seeds]


def _difference(what: str, these: list[float], those: list[float], *, better: bool = False) -> Figure:
    """How much worse these are than those: no more than noise, or less where they are to be better."""
    differences = [one - other for one, other in zip(these, those, strict=True)]
    text = f"{mean(differences):+.4f} (sd {stdev(differences):.4f}, {len(differences)} draws of noise)"
    bar, bar_text = (-1e-6, "< 0") if better else (SAME, None)
    return Figure(what, mean(differences), text, bar, bar_text=bar_text)


# -- four modes -----------------------------------------------------------------------------------

FOUR = (2000, 500, 50, 24)
FOUR_BOUNDS = (-6.0, 6.0)  # three standard deviations, which are about two, around a mean near zero
FOUR_DELTA = 1e-6


def _four_modes(quick: bool) -> list[Figure]:
    """A planted tensor of rank 5 with biases, entry unit, everything released.

    Fits of four modes depend on their start, those that are not private too: hence the errors of each
    data set, two ranks, and what the truth itself leaves.
    """
    seeds, entries = ((0,), 200_000) if quick else ((0, 1, 2), 2_500_000)
    data = [_planted_pair(entries, seed) for seed in seeds]
    pairs = [pair for pair, _ in data]
    open_fits = {f"CP({rank})": _errors(pairs, partial(_without_privacy, rank)) for rank in (5, 10)}
    figures = [_four_mode_figure("the truth", [left for _, left in data])]
    figures += [_four_mode_figure(f"{name}, not private", errors) for name, errors in open_fits.items()]
    for epsilon in (10.0, 1.0):
        biases = _errors(pairs, partial(_all_released, epsilon, "bias", 1))
        figures.append(_four_mode_figure(f"entry, biases, epsilon {epsilon:g}", biases))
        for name, method, rank in FOUR_METHODS:
            errors = _errors(pairs, partial(_all_released, epsilon, method, rank))
            what = f"entry, {name}, epsilon {epsilon:g}"
            if epsilon < 10:
                figures.append(_four_mode_figure(what, errors))
                continue
            for other, best in open_fits.items():
                half_way = (mean(best) + mean(biases)) / 2
                aim = f"{what}; bar half-way from {other} to biases"
                figures.append(_four_mode_figure(aim, errors, half_way))
    for figure in figures:
        say(f"{figure.what}: {figure.text}")
    return figures


FOUR_METHODS: tuple[tuple[str, str, int | None], ...] = (
    ("auto", "auto", None),
    ("alternating of rank 5", "alternating", 5),
    ("alternating of rank 10", "alternating", 10),
)


def _four_mode_figure(what: str, errors: list[float], bar: float | None = None) -> Figure:
    text = f"{mean(errors):.4f} ({', '.join(f'{error:.3f}' for error in errors)})"
    return Figure(f"four modes: {what}", mean(errors), text, bar)


def _planted_pair(entries: int, seed: int) -> tuple[Pair, float]:
    """Planted data within bounds, and the error of the true values at the test cells.

    The variance is that of the low-rank part, as much from biases, and as much as both from noise.
    """
    planted = sf.synthetic.cp(FOUR, 5, entries=entries, snr=1.0, biases=0.5, seed=seed)
    train, test = sf.prepare.clip(planted.tensor, FOUR_BOUNDS).split(0.2, seed=seed)
    truth = np.clip(planted.truth(test.coordinates), *FOUR_BOUNDS)
    return (train, test), root_mean_square(truth - test.values)


def _without_privacy(rank: int, _train: sf.SparseTensor, _seed: int) -> sf.CP:
    return sf.CP(rank)


def _all_released(
    epsilon: float, method: Any, rank: int | None, train: sf.SparseTensor, seed: int
) -> sf.CP:
    privacy = sf.Privacy(
        epsilon,
        FOUR_DELTA,
        unit="entry",
        local=None,
        method=method,
        public=sf.Public(entries=train.n_entries, labels=True),
        seed=seed + 1000,
    )
    return sf.CP(rank, privacy=privacy)


def _errors(
    pairs: Sequence[Pair], make: Callable[[sf.SparseTensor, int], sf.TensorEstimator]
) -> list[float]:
    return [make(train, seed).fit(train).rmse(test) for seed, (train, test) in enumerate(pairs)]
