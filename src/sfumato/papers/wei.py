"""Paper W's study made again: its three perturbations as printed, and ours on the same data.

Z. Wei, Z. Li, X. Mao and J. Wang, "Applying differential privacy to tensor completion", section 5.
``docs/papers/wei.md`` says what came of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from sfumato.data.tensor import SparseTensor
from sfumato.engines.local import Local
from sfumato.estimators.base import TensorEstimator
from sfumato.estimators.completion import Biases
from sfumato.fit.choose import choose
from sfumato.fit.completion import Completion, carry_out_private
from sfumato.fit.plan import PrivatePlan
from sfumato.fit.request import Privacy
from sfumato.papers.paper import Experiment, Paper
from sfumato.papers.runner import Cell, Done, Job, Point, Summary, summarise
from sfumato.papers.wei_data import FIRST_SEED, NOISE_SEEDS, SPLITS, Problem, days, invented
from sfumato.privacy.budgets import Budget
from sfumato.privacy.entropy import Entropy
from sfumato.privacy.facts import Facts
from sfumato.privacy.ledger import Ledger
from sfumato.privacy.units import Value
from sfumato.sites.memory import Site
from sfumato.solvers.as_printed.wei import PaperGradient, PaperInput, PaperOutput
from sfumato.solvers.private.output import PrivateOutput
from sfumato.solvers.protocol import DivergedError, Run

if TYPE_CHECKING:
    from rich.table import Table

CLIP = 0.1  # the clipping constant m of the authors' program
DELTA = 1e-6


# -- series ---------------------------------------------------------------------------------------

Fits = Callable[[Problem, Sequence[float]], list[Point]]


def _level(fit: Callable[[Problem], float]) -> Fits:
    """A series that knows no epsilon."""
    return lambda problem, _: [Point(None, fit(problem))]


def _curve(fit: Callable[[Problem, float], float]) -> Fits:
    """A series with a fit for each epsilon; one that diverges has an infinite error."""

    def fits(problem: Problem, epsilons: Sequence[float]) -> list[Point]:
        points = []
        for epsilon in epsilons:
            try:
                points.append(Point(epsilon, fit(problem, epsilon)))
            except DivergedError:
                points.append(Point(epsilon, inf))
        return points

    return fits


def printed_facts(problem: Problem, tensor: SparseTensor | None = None) -> Facts:
    """What the paper's methods take for public: the data's own bounds too, as printed."""
    data = problem.printed if tensor is None else tensor
    shape = problem.models.printed()._open_plan(data.modes, data.values.dtype).shape
    bounds = float(data.values.min()), float(data.values.max())
    return Facts(shape, Value(), bounds, data.n_entries)


def _printed(solver: Any, problem: Problem, epsilon: float) -> float:
    budget = Budget(epsilon)
    task = Completion(solver, printed_facts(problem))
    plan = PrivatePlan(task, budget, Run(problem.seed)).calibrated()
    ledger, entropy = Ledger(Value(), budget), Entropy(problem.noise_seed)
    model = carry_out_private(plan, Local(Site(problem.printed, 1)), ledger, entropy).model
    return problem.printed_error(model.predict(problem.test.coordinates))


def _printed_input(problem: Problem, epsilon: float) -> float:
    return _printed(PaperInput(problem.models.descent), problem, epsilon)


def _printed_gradient(problem: Problem, epsilon: float) -> float:
    models = problem.models
    solver = PaperGradient(models.descent, mode=models.noisy_mode, clip=CLIP)
    return _printed(solver, problem, epsilon)


def _mistaken_gradient(problem: Problem, epsilon: float) -> float:
    """As in the authors' program, which multiplies by m where clipping divides.

    Gradients then reach a norm of 1/m, under noise for m: what a correct run with the clipping constant
    1/m would have at 1/m^2 times the epsilon.
    """
    models = problem.models
    solver = PaperGradient(models.descent, mode=models.noisy_mode, clip=1 / CLIP)
    return _printed(solver, problem, epsilon / CLIP**2)


def _printed_output(problem: Problem, epsilons: Sequence[float]) -> list[Point]:
    """One descent serves every epsilon: the noise comes after it."""
    models, facts = problem.models, printed_facts(problem)
    solver = PaperOutput(models.descent, mode=models.noisy_mode, clip=CLIP)
    stream = np.random.default_rng(problem.noise_seed)
    query = solver.ask(solver.init(Run(problem.seed), facts))
    try:
        state, lipschitz = query.descended(Site(problem.printed, 1), stream)
    except DivergedError:
        return [Point(epsilon, inf) for epsilon in epsilons]
    points = []
    for epsilon in epsilons:
        noisy = state.model.copy()
        replace(query, row_epsilon=epsilon).perturb(noisy, lipschitz, stream)
        predicted = noisy.predict(problem.test.coordinates)
        points.append(Point(epsilon, problem.printed_error(predicted)))
    return points


def _descent(problem: Problem) -> float:
    try:
        fitted = problem.models.printed(solver=problem.models.descent, seed=problem.seed)
        return problem.printed_error(fitted.fit(problem.printed).predict(problem.test))
    except DivergedError:
        return inf


# Ours: public bounds, one value protected.


def _privacy(problem: Problem, epsilon: float, method: Any, delta: float = 0.0) -> Privacy:
    return Privacy(
        epsilon,
        delta,
        unit="value",
        method=method,
        public=problem.public,
        seed=problem.noise_seed,
    )


def _our_error(problem: Problem, estimator: TensorEstimator) -> float:
    return problem.error(estimator.fit(problem.bounded).predict(problem.test))


def _ours(method: Any, problem: Problem, epsilon: float, delta: float = 0.0) -> float:
    privacy = _privacy(problem, epsilon, method, delta)
    return _our_error(problem, problem.models.ours(privacy=privacy, seed=problem.seed))


def _our_input(problem: Problem, epsilon: float) -> float:
    return _ours(problem.models.input, problem, epsilon)


def _our_output(problem: Problem, epsilon: float) -> float:
    """Half of the budget for the other factors, by input perturbation, and half for the last."""
    models = problem.models
    others = models.input
    if others.starts is not None:  # the noise of the last factor hides what more starts would gain
        others = replace(others, starts=-(-others.starts // 2))
    return _ours(PrivateOutput(others=others, mode=models.noisy_mode), problem, epsilon)


def _biases(problem: Problem, epsilon: float) -> float:
    return _our_error(problem, Biases(threads=1, privacy=_privacy(problem, epsilon, "bias")))


def _private_constant(problem: Problem, epsilon: float) -> float:
    estimator = Biases(sweeps=0, threads=1, privacy=_privacy(problem, epsilon, "constant"))
    return _our_error(problem, estimator)


# Not private, from the data as they are.


def _constant(problem: Problem) -> float:
    return problem.error(float(problem.plain.values.mean()))


def _best(problem: Problem) -> float:
    return problem.error(problem.models.best.fit(problem.plain).predict(problem.test))


SERIES: dict[str, Fits] = {
    "printed input": _curve(_printed_input),
    "printed gradient": _curve(_printed_gradient),
    "printed output": _printed_output,
    "authors' gradient": _curve(_mistaken_gradient),
    "SGD": _level(_descent),
    "input": _curve(_our_input),
    "gradient": _curve(partial(_ours, "gradient")),
    "gradient, delta": _curve(partial(_ours, "gradient", delta=DELTA)),
    "output": _curve(_our_output),
    "private biases": _curve(_biases),
    "private constant": _curve(_private_constant),
    "constant": _level(_constant),
    "best fit": _level(_best),
}
KINDS = ("cp", "tucker")
AUTO = "auto"  # not fitted: it is the series that the method "auto" stands for
LEVELS = ("SGD", "constant", "best fit")  # they know no epsilon
ON_LOG_SCALE = ("printed gradient", "authors' gradient", "gradient", "gradient, delta")


# -- figures --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Figure(Experiment):
    """What one of the paper's figures is made of."""

    number: int
    epsilons: tuple[float, ...]
    low_epsilons: tuple[float, ...]
    missing: tuple[float, ...]
    series: tuple[str, ...]
    scaling: str | None = "minmax"  # None: the data are not invented

    @property
    def title(self) -> str:
        return f"figure {self.number}"

    def with_options(self, **options: str) -> Self:
        return self if self.scaling is None else replace(self, scaling=options["scaling"])

    def jobs(self) -> list[Job]:
        return [
            self._job(series, model, data, repetition)
            for repetition in range(self.repetitions)
            for data in self.data()
            for model in KINDS
            for series in self.series
        ]

    def data(self) -> list[tuple[tuple[str, Any], ...]]:
        if self.scaling is None:
            return [(("data", "movielens"),)]
        return [(("scaling", self.scaling), ("missing", ratio)) for ratio in self.missing]

    def _job(self, series: str, model: str, data: tuple[tuple[str, Any], ...], repetition: int) -> Job:
        epsilons = () if series in LEVELS else self.epsilons
        if series in ON_LOG_SCALE:
            epsilons = tuple(sorted({*self.low_epsilons, *self.epsilons}))
        return Job(series, model, epsilons, repetition, data)

    def do_job(self, job: Job) -> list[Point]:
        return do_job(job)

    def complete(self, results: Sequence[Done]) -> list[Done]:
        return with_auto(results)

    def tables(self, results: Sequence[Done]) -> list[Table | str]:
        """Mean errors of every series over epsilon, for each model and kind of data."""
        summaries, lines = summarise(results), list[Any]()
        for data in self.data():
            for model in KINDS:
                about = ", ".join(f"{name} {value}" for name, value in data)
                lines.append(f"{model}; {about}: mean RMSE at epsilon")
                lines += [_table(self, summaries, model, data), ""]
        return lines

    def draw(self, folder: Path, results: Sequence[Done]) -> list[Path]:
        from sfumato.papers import wei_pictures

        return wei_pictures.draw(folder, self, summarise(results))

    def settings(self) -> dict[str, Any]:
        problems = self._problems()
        return {
            **asdict(self),
            **self.shared_settings(),
            "data_seeds": [FIRST_SEED + repetition for repetition in range(self.repetitions)],
            "splits": SPLITS if self.scaling is None else None,  # in turn
            "auto": {
                model: {f"{epsilon:g}": stands_for(problem, epsilon) for epsilon in self.epsilons}
                for model, problem in problems.items()
            },
        }

    def shared_settings(self) -> dict[str, Any]:
        problems = self._problems()
        return {
            "first_seed": FIRST_SEED,
            "noise_seed": f"data seed + {NOISE_SEEDS}",
            "unit": "value",
            "clip": CLIP,
            "delta": {"gradient, delta": DELTA},
            "bounds": problems["cp"].bounded.bounds,
            "models": {model: _models(problem) for model, problem in problems.items()},
        }

    def _problems(self) -> dict[str, Problem]:
        """The first data set, for models of each kind."""
        return {model: make_problem(self._job("SGD", model, self.data()[0], 0)) for model in KINDS}


_EVERY = tuple(SERIES)
_NO_EXTRAS = tuple(name for name in SERIES if name != "authors' gradient")
FIGURES = {
    2: Figure(
        2,
        (0.1, 0.5, 1.0, 2.0, 5.0, 10.0),
        (1e-5, 1e-4, 1e-3, 1e-2, 0.1, 1.0),
        (0.5,),
        _EVERY,
        repetitions=50,
    ),
    3: Figure(3, (0.1, 1.0, 3.0, 10.0), (), (0.1, 0.3, 0.5, 0.7, 0.9), _NO_EXTRAS, repetitions=10),
    4: Figure(4, (0.1, 1.0, 3.0, 10.0), (), (), _NO_EXTRAS, scaling=None, repetitions=10),
}
QUICK = {
    2: replace(FIGURES[2], epsilons=(0.1, 1.0, 10.0), low_epsilons=(1e-5, 1e-3, 0.1), repetitions=2),
    3: replace(FIGURES[3], epsilons=(1.0, 10.0), missing=(0.1, 0.5, 0.9), repetitions=2),
    4: replace(FIGURES[4], epsilons=(1.0, 10.0), repetitions=1),
}
PAPER = Paper(
    "wei",
    "figure",
    full={str(number): figure for number, figure in FIGURES.items()},
    quick={str(number): figure for number, figure in QUICK.items()},
    options={"scaling": ("minmax", "magnitude")},
)


def make_problem(job: Job) -> Problem:
    """The data of a job."""
    about = job.about
    if about.get("data") == "movielens":
        return days(job.model, job.repetition)
    return invented(job.model, about["scaling"], about["missing"], job.repetition)


def do_job(job: Job) -> list[Point]:
    """All fits of a job."""
    return SERIES[job.series](make_problem(job), job.at)


def _models(problem: Problem) -> dict[str, Any]:
    models = problem.models
    return {
        "as printed": {"rank": models.rank, **asdict(models.descent), "mode": models.noisy_mode},
        "ours": {"rank": models.own_rank, **models.settings},
        "input": asdict(models.input),
        "best fit": repr(models.best),
    }


def stands_for(problem: Problem, epsilon: float) -> str:
    """The series that the method "auto" is: ``input``, or a private baseline; from public numbers."""
    privacy = _privacy(problem, epsilon, "auto")
    tensor = problem.bounded
    estimator = problem.models.ours(privacy=privacy)
    plan = estimator._private_plan(privacy, tensor.modes, bounds=tensor.bounds, entries=tensor.n_entries)
    chosen = choose(plan.task.facts, Budget(epsilon), problem.models.own_rank).method
    return {"bias": "private biases", "constant": "private constant"}.get(chosen, str(chosen))


def with_auto(results: Sequence[Done]) -> list[Done]:
    """The same, with the series ``auto``: at each epsilon the one that the method stands for."""
    found = {(d.job.model, d.job.data, d.job.repetition, d.job.series): d for d in results}
    return [*results, *_autos(found)]


def _autos(found: dict[tuple[Any, ...], Done]) -> Iterable[Done]:
    for (model, data, repetition, series), done in found.items():
        if series != "input":
            continue
        problem, points = make_problem(done.job), []
        for point in done.points:
            if point.at is None:  # not a point of a curve
                continue
            same = found[model, data, repetition, stands_for(problem, point.at)]
            points.append(next(p for p in same.points if p.at == point.at))
        yield Done(replace(done.job, series=AUTO), tuple(points), 0.0)


# -- tables ---------------------------------------------------------------------------------------


def _table(
    figure: Figure, summaries: dict[Cell, Summary], model: str, data: tuple[tuple[str, Any], ...]
) -> Table:
    from sfumato.report.text import plain_table

    epsilons = figure.epsilons
    table = plain_table("", *(f"{epsilon:g}" for epsilon in epsilons), "none")
    for series in (*figure.series, AUTO):
        found = [summaries.get(Cell(series, model, data, epsilon)) for epsilon in epsilons]
        level = summaries.get(Cell(series, model, data, None))
        table.add_row(series, *(_number(each) for each in found), _number(level))
    return table


def _number(found: Summary | None) -> str:
    if found is None:
        return ""
    return f"{found.mean:.4f}" if found.mean < 10 else f"{found.mean:.3g}"
