"""What ``sfumato couple`` does: fits, beside those they have to beat, and what is printed of them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from sfumato.cli.common import save_or_rescue, say_what_was_written, write_factors_beside
from sfumato.cli.couple_data import Parts, related, with_unknown
from sfumato.cli.couple_order import CoupledSolver, CoupleOrder
from sfumato.data.relations import Relation, Relations
from sfumato.data.tensor import SparseTensor
from sfumato.diagnostics import effective_size, split_rhat
from sfumato.estimators.base import TensorEstimator
from sfumato.estimators.compare import warm_up
from sfumato.estimators.completion import CP, Biases
from sfumato.estimators.coupled import Coupled
from sfumato.kernels.numba.threads import available_threads
from sfumato.metrics import auc, rmse
from sfumato.models.posterior import Posterior
from sfumato.models.several import Several
from sfumato.report import records
from sfumato.report.progress import FitProgress
from sfumato.report.text import plain_table
from sfumato.sites.coupled import CoupledSite
from sfumato.solvers.coupled.gibbs import Gibbs
from sfumato.solvers.coupled.langevin import Langevin
from sfumato.solvers.coupled.multiplicative import Multiplicative
from sfumato.solvers.coupled.shape import CoupledShape
from sfumato.solvers.coupled.sums import divergence
from sfumato.solvers.coupled.variational import Variational
from sfumato.solvers.least_squares.als import ALS
from sfumato.solvers.protocol import Run

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

_FEWEST_DRAWS = 8  # of a chain, for diagnostics


@dataclass(frozen=True)
class Result:
    """How well a predictor did at held-out cells, and how long its fit took.

    ``auc`` is None where the cells are not links and zeros.
    """

    name: str
    rmse: float
    auc: float | None
    seconds: float


@dataclass(frozen=True)
class HeldOut:
    """Errors at the held-out cells of one table.

    ``side_only`` counts cells of which the table itself says nothing about one of the levels.
    """

    cells: int
    side_only: int
    results: tuple[Result, ...]


@dataclass(frozen=True)
class Outcome:
    """The model that is saved, errors by table, and for each table its mean divergence."""

    model: Coupled
    held_out: dict[str, HeldOut]
    divergences: dict[str, float]


# -- fitting --------------------------------------------------------------------------------------


def _solver(order: CoupleOrder) -> Any:
    if order.solver == CoupledSolver.multiplicative:
        return Multiplicative() if order.rounds is None else Multiplicative(order.rounds)
    if order.solver == CoupledSolver.variational:
        return Variational() if order.rounds is None else Variational(order.rounds)
    normal = order.tables[0].divergence == 0
    solver: Any = Langevin("normal" if normal else "poisson")
    if order.solver == CoupledSolver.gibbs:
        solver = Gibbs()
    given: dict[str, Any] = {"samples": order.rounds, "burn_in": order.burn_in}
    return replace(solver, **{name: value for name, value in given.items() if value is not None})


def _estimator(order: CoupleOrder, progress: Any, solver: Any = None) -> Coupled:
    return Coupled(
        order.rank,
        solver or _solver(order),
        starts=order.starts,
        seed=order.seed,
        threads=order.threads,
        progress=progress,
    )


def fit(order: CoupleOrder, parts: Parts, notes: Console) -> Outcome:
    """Fit all tables; where cells are held out, also each of their tables by itself."""
    _warm_up(order, parts.train)
    with FitProgress(notes) as progress:
        progress.begin(f"coupled, {order.name}")
        model = _estimator(order, progress).fit(parts.train)
        held_out = {
            name: _compare(order, parts.train, name, test, model, progress)
            for name, test in parts.tests.items()
        }
        if parts.train is not parts.whole:
            progress.begin(f"coupled, {order.name}: all entries")
            model = _estimator(order, progress).fit(parts.whole)
    return Outcome(model, held_out, _divergences(model, parts.whole))


def _warm_up(order: CoupleOrder, relations: Relations) -> None:
    """One round, so that kernels are compiled before times are taken; what is wrong is said here."""
    solver = _solver(order)
    if isinstance(solver, Langevin | Gibbs):
        shortest: Any = replace(solver, samples=1, burn_in=1, thin=1)
        # Of the asked number of samples, the memory is judged too.
        shape = CoupledShape.of(relations, order.rank)
        solver.init(Run(order.seed), shape)
    else:
        shortest = replace(solver, sweeps=1)
    once = replace(order, starts=1)
    _estimator(once, None, shortest).fit(relations)


def _compare(
    order: CoupleOrder,
    relations: Relations,
    name: str,
    test: SparseTensor,
    coupled: Coupled,
    progress: FitProgress,
) -> HeldOut:
    """The coupled fit beside a constant, and the table fitted by itself: as well as that can be done."""
    relation = relations[name]
    results = [_constant(relation, test)]
    if relation.absent == "missing" and min(relation.tensor.shape) > 1:
        settings: dict[str, Any] = {"threads": order.threads, "progress": progress}
        single: dict[str, TensorEstimator] = {"bias predictor": Biases(**settings)}
        if len(relations) > 1:
            single[f"{_alone(name)}, CP by als"] = CP(seed=order.seed, **settings)
            warm_up([CP(solver=ALS(sweeps=1))], relation.tensor)
        for what, estimator in single.items():
            progress.begin(what)
            estimator.fit(relation.tensor)
            results.append(_result(what, test, estimator.predict(test), estimator.fit_seconds_))
    if len(relations) > 1:
        progress.begin(f"{name} alone, {order.name}")
        own = related(order.tables, {name: with_unknown(relation)})
        alone = _estimator(order, progress).fit(own)
        results.append(_result(_alone(name), test, alone.predict(name, test), alone.fit_seconds_))
    values, reliance = coupled.predict(name, test, reliance=True)
    results.append(_result("coupled", test, values, coupled.fit_seconds_))
    return HeldOut(test.n_entries, int(np.count_nonzero(reliance == 1)), tuple(results))


def _constant(relation: Relation, test: SparseTensor) -> Result:
    """The mean of all observed cells."""
    begin = time.perf_counter()
    mean = float(relation.tensor.values.sum(dtype=np.float64)) / relation.cells
    seconds = time.perf_counter() - begin
    return _result("constant", test, np.full(test.n_entries, mean), seconds)


def _result(name: str, test: SparseTensor, predicted: NDArray[Any], seconds: float) -> Result:
    # A rank of links makes sense where there are links, and all else is zero.
    are_links = test.values.min() == 0 < test.values.max()
    ranked = auc(test.values, predicted) if are_links else None
    return Result(name, rmse(test.values, predicted), ranked, seconds)


def _divergences(model: Coupled, relations: Relations) -> dict[str, float]:
    """Of each table the mean over its observed cells."""
    site = CoupledSite(relations, model.threads or available_threads(), np.dtype(model.dtype))
    fitted = model.model_
    if isinstance(fitted, Several):
        raise TypeError("a private fit says nothing of divergences at the data")
    return {
        name: divergence(fitted, site, v) / relation.cells
        for v, (name, relation) in enumerate(relations.items())
    }


def all_results(outcome: Outcome) -> list[records.Result]:
    """Errors at held-out cells of all tables, as a page shows them."""
    return [
        records.Result(f"{name}: {each.name}", each.rmse, each.seconds)
        for name, held in outcome.held_out.items()
        for each in held.results
    ]


def save(outcome: Outcome, out: Path, factors: str | None) -> list[Path]:
    """Write the model, and the factors where asked for; what was written, the model first."""
    model = outcome.model
    written = [save_or_rescue(model.save, out)]
    if factors is not None:
        tables = [model.factor(mode.name) for mode in model.modes_]
        written += write_factors_beside(out, tables, model.modes_, factors)
    return written


# -- what is said of it -----------------------------------------------------------------------------


def to_json(
    order: CoupleOrder, parts: Parts, outcome: Outcome, written: Sequence[Path]
) -> dict[str, Any]:
    files = {table.name: str(table.file) for table in order.tables}
    tests = {t.name: str(t.test) if isinstance(t.test, Path) else t.test for t in order.tables}
    return {
        "modes": {mode.name: mode.size for mode in parts.whole.modes},
        "relations": {
            name: {
                "file": files[name],
                "modes": list(relation.tensor.mode_names),
                "entries": relation.tensor.n_entries,
                "observed_cells": relation.cells,
                "absent": relation.absent,
                "structure": relation.structure,
                "divergence": relation.divergence,
                "dispersion": relation.dispersion,
                "mean_divergence": _finite(outcome.divergences[name]),
                "test": tests[name],
            }
            for name, relation in parts.whole.items()
        },
        "coupling": parts.whole.coupling.astype(int).tolist(),
        "rank": order.rank,
        "solver": order.solver.value,
        "starts": order.starts,
        "seed": order.seed,
        "held_out": {name: asdict(held) for name, held in outcome.held_out.items()},
        "fit_seconds": outcome.model.fit_seconds_,
        "convergence": _convergence(outcome.model),
        "private": False,
        "written": [str(path) for path in written],
    }


def _finite(number: float) -> float | None:
    return number if isfinite(number) else None


def _convergence(model: Coupled) -> dict[str, float] | None:
    """Whether chains agree on the log density; None where there are none, or they are too short."""
    posterior = model.posterior_
    if not isinstance(posterior, Posterior) or posterior.n_draws < _FEWEST_DRAWS:
        return None
    density = posterior.log_density
    return {"rhat": split_rhat(density), "effective_size": effective_size(density)}


def print_fitted(
    order: CoupleOrder, parts: Parts, outcome: Outcome, written: Sequence[Path], screen: Console
) -> None:
    screen.print(str(parts.whole))
    for name, held in outcome.held_out.items():
        cold = f", {held.side_only:,} of them known from other tables only" if held.side_only else ""
        screen.print(f"\n{name}: {held.cells:,} held-out cells{cold}\n")
        screen.print(_results_table(held.results))
    screen.print()
    screen.print(_divergence_table(parts.whole, outcome.divergences))
    if order.solver.samples:
        screen.print("\nDivergences are those of the last sample.")
        found = _convergence(outcome.model)
        if found is not None:
            screen.print(
                f"R-hat {found['rhat']:.3f} of the log density, worth {found['effective_size']:.0f} "
                "independent samples: above 1.05, or below a hundred, use more --rounds and --burn-in"
            )
    entries = sum(relation.tensor.n_entries for relation in parts.whole.values())
    screen.print(
        f"\nfitted to all {entries:,} entries in {outcome.model.fit_seconds_:.2f} s, {order.name}"
    )
    say_what_was_written(screen, written)


def advice(outcome: Outcome) -> list[str]:
    """What to try where a fit to the table by itself did better, by every measure."""
    said = []
    for name, held in outcome.held_out.items():
        *single, coupled = held.results
        same = any(each.name == _alone(name) and _better(each, coupled) for each in single)
        if same:
            said.append(
                f"{name} is predicted better by itself: the other tables may count too much (give them "
                "a larger --dispersion), or need components of their own (a larger --rank)"
            )
        elif best := [each for each in single[1:] if _better(each, coupled)]:
            least = min(best, key=lambda each: each.rmse)
            said.append(
                f"{name} is predicted better by itself, by a model with biases ({least.name}): see "
                "sfumato complete"
            )
    return said


def _better(alone: Result, coupled: Result) -> bool:
    return alone.rmse < coupled.rmse and (alone.auc or 0) >= (coupled.auc or 0)


def _alone(name: str) -> str:
    return f"{name} alone"


def _results_table(results: Sequence[Result]) -> Table:
    ranked = results[0].auc is not None
    headings = ["", "held-out RMSE", "less than constant", *(["AUC"] if ranked else []), "seconds"]
    table = plain_table(*headings)
    constant = results[0].rmse
    for result in results:
        gain = f"{1 - result.rmse / constant:.1%}" if constant and result is not results[0] else ""
        shown = [] if result.auc is None else [f"{result.auc:.4f}"]
        table.add_row(result.name, f"{result.rmse:.4f}", gain, *shown, f"{result.seconds:.2f}")
    return table


def _divergence_table(relations: Relations, divergences: dict[str, float]) -> Table:
    table = plain_table("", "p", "dispersion", "observed cells", "mean divergence")
    for name, relation in relations.items():
        phi = "estimated" if relation.dispersion is None else f"{relation.dispersion:g}"
        table.add_row(
            name, f"{relation.divergence:g}", phi, f"{relation.cells:,}", f"{divergences[name]:.4g}"
        )
    return table
