"""How close the plan's choice comes to the best settings that a search finds.

The plan knows public numbers alone. The search looks at the data: it takes what does best on a tenth of
the training entries, of random settings and ranks of the alternating fit, of each rank with the derived
settings, and of private biases and constant. That is then scored on the test entries. It is not private
and is no method: it says what the plan leaves on the table. "Best on test" chooses by the test entries
themselves, one draw of noise each, and so promises too much.

Invented data also show which settings matter: mean errors by setting, over the plan's. That is where
the solver's own come from. MovieLens and UCLAF, where they are found, are only scored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import lru_cache, partial
from multiprocessing import get_context
from statistics import mean, stdev
from time import perf_counter
from typing import Any, Literal, NamedTuple

import numpy as np

import sfumato as sf
from benchmarks.accuracy import one_blas_thread
from benchmarks.report import Figure, say
from sfumato.fit.admit import with_labels_of

Pair = tuple[sf.SparseTensor, sf.SparseTensor]
Part = Literal["test", "validation"]
CLOSE = 1.02  # plan's error over that of the search
DATA_SEED = 200  # of invented data; planner's constants were fitted to others
NOISE_SEEDS = (1000, 1001, 1002)

# What the search draws from. Each setting is left to the solver in half of the draws, so that its effect
# shows among settings that are not all bad.
CHOICES: dict[str, tuple[float, ...]] = {
    "sweeps": (8, 15, 30, 45),
    "held_sweeps": (0, 3, 10, 20),
    "last_step": (0.05, 0.1, 0.2, 0.4),
    "residual_clip": (0.5, 1.0, 1.5, 2.5),
    "feature_clip": (0.6, 0.85, 1.2, 1.7),
    "unit_clip": (0.3, 0.5, 0.8, 1.2),
    "bias_weight": (0.7, 1.0, 1.4, 2.0),
    "bias_share": (0.03, 0.1, 0.25, 0.5),
    "growth": (0.0, 1.0, 3.0, 6.0),
}
RANKS = (1, 2, 4, 8, 12)


# -- problems -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Problem:
    """Train and test entries, how many random settings the search may try, and what to bear in mind."""

    what: str
    load: Callable[[], Pair]
    tries: int = 24
    invented: bool = False
    remark: str = ""


def _invented(sizes: tuple[int, int], entries: int) -> Pair:
    modes = [sf.Mode(name, size) for name, size in zip(("user", "item"), sizes, strict=True)]
    return sf.synthetic.typical(modes, entries, seed=DATA_SEED).tensor.split(0.2, seed=DATA_SEED)


def _uclaf() -> Pair:
    """Counts up to 10, which nearly nine in ten are; they reach 249, and bounds size the noise."""
    return sf.prepare.clip(sf.datasets.uclaf().tensor, (1.0, 10.0)).split(0.2, seed=0)


QUICK = Problem("600 x 400, 40 k entries", partial(_invented, (600, 400), 40_000), 3, invented=True)
PROBLEMS = (
    Problem("1000 x 1700, 100 k entries", partial(_invented, (1000, 1700), 100_000), invented=True),
    Problem("3000 x 800, 300 k entries", partial(_invented, (3000, 800), 300_000), invented=True),
    Problem("6000 x 3700, 1 M entries", partial(_invented, (6000, 3700), 1_000_000), 10, invented=True),
    Problem("ML-100K ua", partial(sf.datasets.movielens_split, "100k", "ua")),
    Problem("ML-1M random 80/20", lambda: sf.datasets.movielens("1m").split(0.2, seed=0), 10),
    Problem(
        "UCLAF, 1.4 k entries",
        _uclaf,
        remark="tiny, and counts of visits, not ratings: single draws of noise differ by some per cent "
        "(sd), so that a search of one draw each finds luck too",
    ),
)
_BY_NAME = {problem.what: problem for problem in (QUICK, *PROBLEMS)}


@lru_cache(2)
def _data(what: str, part: Part) -> Pair:
    """Entries to fit and to score: of the test, or of a choice within the training entries."""
    if part == "test":
        return _BY_NAME[what].load()
    return _data(what, "test")[0].split(0.1, seed=0)


# -- fits -----------------------------------------------------------------------------------------


class Case(NamedTuple):
    """What is protected, and the budget. Users keep their rows."""

    unit: str
    delta: float
    epsilon: float

    def __str__(self) -> str:
        return f"{self.unit}, epsilon {self.epsilon:g}"


CASES = tuple(
    Case(unit, delta, epsilon)
    for unit, delta in (("entry", 1e-6), ("user", 1e-5))
    for epsilon in (10.0, 1.0)
)


class Candidate(NamedTuple):
    """A method, its rank (none: the plan's), and the settings that are not left to the solver."""

    method: str
    rank: int | None = None
    settings: tuple[tuple[str, float], ...] = ()

    def __str__(self) -> str:
        if self.rank is None or self.method != "alternating":
            return self.method
        given = ", ".join(f"{name} {value:g}" for name, value in self.settings)
        return f"rank {self.rank}{', ' + given if given else ''}"

    def chosen(self, setting: str) -> float | None:
        return self.rank if setting == "rank" else dict(self.settings).get(setting)

    def fit(self, case: Case, train: sf.SparseTensor, noise_seed: int) -> sf.CP:
        settings: dict[str, Any] = dict(self.settings)
        method: Any = sf.PrivateAlternating(**settings) if self.settings else self.method
        privacy = sf.Privacy(
            case.epsilon,
            case.delta,
            unit=case.unit,
            local="user",
            method=method,
            public=with_labels_of(train.modes, sf.Public(entries=train.n_entries)),
            seed=noise_seed,
        )
        return sf.CP(self.rank, threads=1, privacy=privacy).fit(train)


PLAN = Candidate("auto")


class Job(NamedTuple):
    """One fit and its score."""

    what: str
    case: Case
    candidate: Candidate
    part: Part = "test"
    noise_seed: int = NOISE_SEEDS[0]


class Score(NamedTuple):
    """RMSE, infinite where a fit failed, and what was fitted."""

    rmse: float
    fitted: str = ""


def _score(job: Job) -> Score:
    train, held_out = _data(job.what, job.part)
    try:
        estimator = job.candidate.fit(job.case, train, job.noise_seed)
    except (np.linalg.LinAlgError, ArithmeticError):
        return Score(np.inf)
    assert estimator.guarantee_ is not None
    method, rank = estimator.guarantee_.method, estimator.model_.ranks[0]
    return Score(estimator.rmse(held_out), f"rank {rank}" if method == "alternating" else method)


def _candidates(tries: int, largest: int, seed: tuple[int, ...]) -> list[Candidate]:
    """Constant, biases, the derived settings with every rank, and random settings."""
    generator = np.random.default_rng(seed)
    ranks = [rank for rank in RANKS if rank <= largest]
    found = [
        Candidate("constant", 1),
        Candidate("bias", 1),
        *(Candidate("alternating", rank) for rank in ranks),
    ]
    for _ in range(tries):
        rank = int(generator.choice(ranks))
        drawn = {name: float(generator.choice(values)) for name, values in CHOICES.items()}
        kept = [name for name in CHOICES if generator.random() < 0.5] or ["sweeps"]
        whole = ("sweeps", "held_sweeps")
        settings = [(name, int(drawn[name]) if name in whole else drawn[name]) for name in kept]
        found.append(Candidate("alternating", rank, tuple(settings)))
    return found


# -- plan beside search ---------------------------------------------------------------------------


class Repeated(NamedTuple):
    """One candidate on the test entries, over draws of noise, and what was fitted."""

    rmses: list[float]
    fitted: str

    @property
    def rmse(self) -> float:
        return mean(self.rmses)

    def __str__(self) -> str:
        spread = f" (sd {stdev(self.rmses):.4f})" if len(self.rmses) > 1 else ""
        return f"{self.rmse:.4f}{spread}"


class Outcome(NamedTuple):
    """The plan, what the search chose, and the RMSE on the test entries of all that it tried."""

    problem: Problem
    case: Case
    plan: Repeated
    search: Repeated
    chosen: Candidate
    tried: list[tuple[Candidate, float]]

    @property
    def ratio(self) -> float:
        return self.plan.rmse / self.search.rmse


def run(quick: bool) -> list[Figure]:
    outcomes: list[Outcome] = []
    with ProcessPoolExecutor(2, get_context("spawn"), one_blas_thread) as pool:
        for problem in (QUICK,) if quick else PROBLEMS:
            begin = perf_counter()
            try:
                outcomes += _searched(problem, pool, NOISE_SEEDS[: 1 if quick else 3])
            except sf.DataError as error:
                say(f"{problem.what} is skipped: {error}")
                continue
            remark = f"; {problem.remark}" if problem.remark else ""
            say(f"{problem.what}: {perf_counter() - begin:.0f} s{remark}")
    say_effects([outcome for outcome in outcomes if outcome.problem.invented])
    return [_figure(outcome) for outcome in outcomes]


def _searched(problem: Problem, pool: ProcessPoolExecutor, seeds: Sequence[int]) -> Iterator[Outcome]:
    largest = min(problem.load()[0].shape)
    for number, case in enumerate(CASES):
        candidates = _candidates(problem.tries, largest, seed=(problem.tries, largest, number))
        job = partial(Job, problem.what, case)
        again = partial(_repeated, pool, job, seeds)
        held_out = _scores(pool, [job(candidate, "validation") for candidate in candidates])
        tried = _scores(pool, [job(candidate) for candidate in candidates])
        chosen, pairs = candidates[int(np.argmin(held_out))], list(zip(candidates, tried, strict=True))
        outcome = Outcome(problem, case, again(PLAN), again(chosen), chosen, pairs)
        _say(outcome)
        yield outcome


def _scores(pool: ProcessPoolExecutor, jobs: Sequence[Job]) -> list[float]:
    return [score.rmse for score in pool.map(_score, jobs)]


def _repeated(
    pool: ProcessPoolExecutor, job: Callable[..., Job], seeds: Sequence[int], candidate: Candidate
) -> Repeated:
    scores = list(pool.map(_score, [job(candidate, noise_seed=seed) for seed in seeds]))
    return Repeated([score.rmse for score in scores], scores[0].fitted)


def _say(outcome: Outcome) -> None:
    best, least = min(outcome.tried, key=lambda pair: pair[1])
    say(
        f"{outcome.problem.what}, {outcome.case}: plan {outcome.plan}, {outcome.plan.fitted}; "
        f"search {outcome.search}, {outcome.chosen}; ratio {outcome.ratio:.3f}; "
        f"best on test {least:.4f}, {best}"
    )


def _figure(outcome: Outcome) -> Figure:
    least = min(rmse for _, rmse in outcome.tried)
    text = (
        f"{outcome.ratio:.3f} ({outcome.plan} over {outcome.search}; "
        f"{outcome.plan.rmse / least:.3f} over the best on test)"
    )
    what = f"{outcome.problem.what}, {outcome.case}: plan over search"
    return Figure(what, outcome.ratio, text, CLOSE)


# -- what settings do -----------------------------------------------------------------------------


def say_effects(outcomes: Sequence[Outcome]) -> None:
    """Mean error over the plan's by value of each setting, others at random: invented data alone."""
    for case in CASES:
        those = [outcome for outcome in outcomes if outcome.case == case]
        if not those:
            continue
        tried = [
            (candidate, rmse / outcome.plan.rmse)
            for outcome in those
            for candidate, rmse in outcome.tried
            if candidate.settings
        ]
        failed = sum(not np.isfinite(ratio) for _, ratio in tried)
        say(f"invented data, {case}: mean error over the plan's; {len(tried)} fits, {failed} failed")
        for setting, values in (("rank", RANKS), *CHOICES.items()):
            if setting != "unit_clip" or case.unit != "entry":
                say(f"    {setting:14}{_effects(tried, setting, values)}")


def _effects(tried: Sequence[tuple[Candidate, float]], setting: str, values: Sequence[float]) -> str:
    cells = []
    for value in (None, *values) if setting in CHOICES else values:
        ratios = [r for c, r in tried if c.chosen(setting) == value and np.isfinite(r)]
        if ratios:
            cells.append(f"{'derived' if value is None else f'{value:g}'}: {mean(ratios):.3f}")
    return "   ".join(cells)
