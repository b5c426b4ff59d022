"""``sfumato complete``: fit a model to a file and save it."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sfumato.cli import options
from sfumato.cli.command import command
from sfumato.cli.common import (
    console,
    notes_unless,
    reading,
    save_or_rescue,
    say_what_was_written,
    write_factors_beside,
)
from sfumato.cli.complete_order import LossName, Order, SolverName
from sfumato.cli.engines import Engines, check_bounds, check_order, shards_in
from sfumato.cli.options import Duplicates, FactorFormat, ModelName
from sfumato.cli.pages import Report, measured, report_in
from sfumato.cli.privacy import Promise, Release
from sfumato.errors import SettingError

if TYPE_CHECKING:
    from rich.console import Console

    from sfumato.data.shards import Shards
    from sfumato.data.tensor import Mode, SparseTensor
    from sfumato.estimators.base import TensorEstimator
    from sfumato.estimators.measuring import Metric
    from sfumato.estimators.search import PrivateSearch
    from sfumato.fit.request import Privacy
    from sfumato.privacy.guarantee import Guarantee
    from sfumato.report.records import Completed, Result


def _rank(text: str) -> int | None:
    """A whole number; ``auto`` is the same as none."""
    if text == "auto":
        return None
    try:
        return int(text)
    except ValueError:
        raise typer.BadParameter(f"a rank is a whole number, or auto; got {text!r}") from None


@command(
    "Fit a model to a file and save it.",
    "sfumato complete ratings.csv --modes user item day --value rating \\",
    "    --bounds 1 5 --bin day=day --rank 8 --test 0.2 --out model",
    take_several=("--others",),
)
def complete(
    file: options.Source,
    out: options.OutFolder,
    *,
    columns: options.Columns,
    model: options.ModelKind = ModelName.cp,
    rank: Annotated[
        int | None,
        typer.Option(
            metavar="INT|auto",
            parser=_rank,
            help="Components of a CP model; a Tucker model's rank in every mode. Of a private fit with "
            "--method auto the most to use; by default the plan chooses.",
        ),
    ] = None,
    ranks: Annotated[
        list[int] | None,
        typer.Option(metavar="INT...", help="A Tucker model's ranks, one per mode: --ranks 5 5 2."),
    ] = None,
    solver: Annotated[
        SolverName, typer.Option(help="How it is fitted, without privacy.")
    ] = SolverName.als,
    rounds: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Sweeps (als) or passes (the others), without privacy."),
    ] = None,
    test: Annotated[
        float | None,
        typer.Option(
            metavar="SHARE", help="Share of the entries to hold out and measure errors at: --test 0.2."
        ),
    ] = None,
    loss: Annotated[
        LossName,
        typer.Option(
            help="What values are: numbers (squared), counts (poisson), yes or no as 1 or 0 (logistic); "
            "or entries say what was seen, whatever their values, and all other cells are zeros (seen)."
        ),
    ] = LossName.squared,
    metric: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="What to measure beside the RMSE with --test: log-loss, deviance, recall@K or ndcg@K "
            "(lists of K levels that were not in training); by default the loss's own.",
        ),
    ] = None,
    others: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE...",
            help="Files of values that others have privatised, to be fitted together with FILE.",
        ),
    ] = None,
    duplicates: options.DuplicatePolicy = Duplicates.error,
    seed: options.FitSeed = 0,
    threads: options.Threads = None,
    device: options.Device = options.DeviceName.cpu,
    engines: Engines,
    promise: Promise,
    release: Release,
    factors: options.Factors = None,
    report: Report = False,
    quiet: options.Quiet = False,
    as_json: options.Json = False,
) -> None:
    """Fit a model to the entries of FILE and save it, to predict any cell.

    FILE may be a folder of shards, which are fitted as they lie on disk (--engine disk) or by workers
    of a Ray cluster; what would change them is an error.

    FILE may hold privatised values (`sfumato privatise`): a fit of these knows what they have passed,
    needs no budget, and promises what they do. With --others, files of several owners are fitted
    together; where FILE holds raw values, the model is as secret as these, and all in `owner`.

    Without --epsilon the result is not private. With it, the folder holds `release`, which is safe to
    hand out and says what it promises, and, where rows stay with their owners, `owner`, which is not.

    With --test, errors are measured at held-out entries. Without privacy, the model that is saved is
    then fitted to all entries; a private one stays as it is, for a second fit would cost again. A
    private constant and private biases are fitted beside it, to see whether it pays: they are in no file
    and no ledger. All errors are for you alone, and no guarantee covers them.
    """
    from sfumato.cli.complete_received import Received
    from sfumato.data.io.privatised_files import is_privatised
    from sfumato.models.losses import LOSSES
    from sfumato.report.text import NOT_PRIVATE, completed_text
    from sfumato.store import check_destination

    notes, tune_rank, bounds = notes_unless(quiet), release.tune_rank, columns.bounds
    metric_of = _metric(metric, loss, test)
    LOSSES[loss.value].check(bounds)
    if loss in (LossName.seen, LossName.logistic) and bounds is None:
        bounds = (0.0, 1.0)  # whatever the data are
    if others or is_privatised(file):
        asked = Received(file, tuple(others or ()), columns, model, rank, ranks, seed, threads)
        asked.refuse(
            solver, rounds, test, engines, {**promise.given(release), "--epsilon": promise.epsilon}
        )
        asked.complete(out, release.force, notes, as_json, report=report)
        return
    with reading(file.name, notes):
        shards = shards_in(file)
    if shards is not None:
        check_order(shards, columns, test=test, duplicates=duplicates, tunes=bool(tune_rank))
        bounds = shards.bounds
        if promise.epsilon is not None:
            check_bounds(shards)
    privacy = release.of_period(promise.settings(bounds, release))
    engine = engines.settings(file, shards, threads)
    order = Order(
        *(model, rank, ranks, solver, rounds, duplicates, seed, threads, privacy, tune_rank, engine),
        loss=loss.value,
        device=device.value,
    )
    check_destination(out)
    entries = _read(file, columns, order, notes) if shards is None else shards
    if privacy is None:
        estimator, results = _fit(order, entries, test, notes, metric_of)
        written, remarks = _save(estimator, out, factors, release.force), list[str]()
    else:
        with release.told():
            estimator, parts = _fit_privately(order, privacy, entries, test, notes)
        written = _save(estimator, out, factors, release.force)
        results, remarks = _compare_private(order, privacy, estimator, parts, notes, as_json, metric_of)
    if report:
        name = None if metric_of is None else metric_of.name
        written += report_in(out, estimator, measured(results, remarks, name))
    found = _found(file, order, entries, test, estimator, results, remarks, written)
    found = replace(found, metric=None if metric_of is None or not results else metric_of.name)
    if as_json:
        typer.echo(json.dumps(found.to_json()))
    else:
        screen = console()
        screen.print(completed_text(found))
        say_what_was_written(screen, written)
    if privacy is None:
        typer.echo(NOT_PRIVATE, err=True)


def _metric(name: str | None, loss: LossName, test: float | None) -> Metric | None:
    """What is measured beside the RMSE: as asked for, or else the loss's own."""
    from sfumato.estimators.measuring import Metric
    from sfumato.models.losses import LOSSES

    if name is None and loss == LossName.squared:
        return None
    metric = Metric.named(name or LOSSES[loss.value].metric)
    if name is not None and test is None:
        raise SettingError(
            f"--metric {name} is measured at entries that are held out: say --test as well"
        )
    if loss == LossName.seen and not metric.length:
        raise SettingError(
            f"--metric {name} is of values, and with --loss seen a model gives scores of which only the "
            "order means anything: use recall@K or ndcg@K"
        )
    return metric


def _read(file: Path, columns: options.Columns, order: Order, notes: Console) -> SparseTensor:
    """The entries of a file, as a fit takes them."""
    from sfumato.data import prepare

    with reading(file.name, notes):
        tensor = columns.read(file)
    if order.privacy is not None:
        return tensor
    # Merged before the entries are divided, or one cell could lie on both sides.
    prepare.check_values(tensor)
    return prepare.merge_duplicates(tensor, order.duplicates.value)


def _fit(
    order: Order,
    tensor: SparseTensor | Shards,
    test: float | None,
    notes: Console,
    metric: Metric | None,
) -> tuple[TensorEstimator, list[Result]]:
    """The estimator fitted to all entries, and the errors at held-out ones where asked for."""
    from sfumato.data.shards import Shards
    from sfumato.estimators.compare import compare, warm_up
    from sfumato.estimators.completion import Biases
    from sfumato.report.progress import FitProgress

    parts = None
    given, order = order, order.settled(tensor)
    name = order.name_for(tensor.shape)
    _say_what_was_chosen(given, tensor.modes, name, notes)
    if not isinstance(tensor, Shards):  # of which nothing is held out, and no few are at hand
        parts = None if test is None else tensor.split(test, seed=order.seed)
        probe = replace(order, engine=None).estimator(rounds=1, progress=None)
        warm_up([Biases(), probe], tensor)
    results = []
    with FitProgress(notes) as progress:
        estimator = order.estimator(rounds=order.rounds, progress=progress)
        if parts is not None:
            baseline = "popularity" if order.loss == "seen" else "bias predictor"
            rivals = {baseline: Biases(loss=order.loss, progress=progress), name: estimator}
            results = compare(rivals, *parts, announce=progress.begin, metric=metric)
        progress.begin(f"{name}: all entries")
        return estimator.fit(tensor), results


_Parts = tuple["SparseTensor", "SparseTensor"]


def _fit_privately(
    order: Order, privacy: Privacy, tensor: SparseTensor | Shards, test: float | None, notes: Console
) -> tuple[TensorEstimator, _Parts | None]:
    """One private fit, to all entries or to the first of two parts; and these, where there are some."""
    from sfumato.data import prepare
    from sfumato.data.tensor import SparseTensor
    from sfumato.fit.admit import Protected, public_modes
    from sfumato.report.progress import FitProgress

    modes = public_modes(tensor.modes, Protected.by(privacy, tensor.modes))
    shape, parts = [mode.size for mode in modes], None
    _say_what_was_chosen(order, tensor.modes, order.name_for(shape), notes)
    if test is not None and isinstance(tensor, SparseTensor):
        whole = prepare.clip(tensor, tensor.bounds or (0, 1))
        parts = prepare.split_by_label(whole, test, seed=order.seed)
    with FitProgress(notes) as progress:
        progress.begin(f"{order.name_for(shape)}, private")
        fitted = order.private_estimator(privacy, progress).fit(tensor if parts is None else parts[0])
    return _best(fitted), parts


def _compare_private(
    order: Order,
    privacy: Privacy,
    estimator: TensorEstimator,
    parts: _Parts | None,
    notes: Console,
    as_json: bool,
    metric: Metric | None,
) -> tuple[list[Result], list[str]]:
    """Errors at held-out entries, and what there is to say of them; JSON has no private baselines."""
    from sfumato.cli import beside
    from sfumato.report.progress import FitProgress

    guarantee = estimator.guarantee_
    if parts is None or guarantee is None:
        return [], []
    name = _fitted_in_words(order, estimator, guarantee)
    try:
        with FitProgress(notes) as progress:
            found = beside.compare(
                estimator, name, privacy, parts, progress, with_private=not as_json, metric=metric
            )
    except (Exception, KeyboardInterrupt) as error:  # what was paid for is on disk: the command goes on
        notes.print(f"the fit was not compared with others: {error or 'interrupted'}")
        return [], []
    return ([], []) if found is None else (found.results, found.lines)


def _fitted_in_words(order: Order, estimator: TensorEstimator, guarantee: Guarantee) -> str:
    """The model with the method and the ranks that a private fit came to have."""
    from sfumato.solvers.registry import has_factors

    method, ranks = guarantee.method, dict.fromkeys(estimator.model_.ranks)
    if not has_factors(method):
        what = method
    else:
        kind = "CP" if order.model == ModelName.cp else "Tucker"
        what = f"private {kind}, rank {' x '.join(map(str, ranks))}, {method}"
    tried = order.tune_rank
    return f"{what}, best rank of {' '.join(map(str, tried))}" if tried else what


def _best(fitted: TensorEstimator | PrivateSearch) -> TensorEstimator:
    """What a search has chosen; an estimator by itself is the best of one."""
    from sfumato.estimators.search import PrivateSearch

    return fitted.best_estimator_ if isinstance(fitted, PrivateSearch) else fitted


def _say_what_was_chosen(order: Order, modes: Sequence[Mode], name: str, notes: Console) -> None:
    if order.given_ranks is None and not order.tune_rank:
        if order.plans_rank:
            notes.print("the rank follows from public numbers, as none is given")
        else:
            notes.print(f"{name}: chosen for this shape, as no rank is given")
    for mode in modes:
        if mode.bin is None and _are_dates(mode):
            notes.print(f"{mode.name} holds dates: to have it fitted as time, use --bin {mode.name}=day")


def _are_dates(mode: Mode) -> bool:
    """Whether all labels begin as ISO dates do."""
    labels = [] if mode.labels is None else mode.labels.tolist()
    return bool(labels) and all(re.match(r"\d{4}-\d\d-\d\d", str(label)) for label in labels)


def _save(
    estimator: TensorEstimator, out: Path, factors: FactorFormat | None, force: bool
) -> list[Path]:
    """Write the model, and the factors where asked for; what was written, the model first."""
    written = [save_or_rescue(partial(estimator.save, force=force), out)]
    if factors is not None:
        model = estimator.model_
        shared = [m for m in range(model.order) if m != estimator.local_]
        written += write_factors_beside(
            out,
            [model.factors[m] for m in shared],
            [estimator.modes_[m] for m in shared],
            factors.value,
            [model.mode_biases[m] for m in shared],
        )
    return written


def _found(
    file: Path,
    order: Order,
    tensor: SparseTensor | Shards,
    test: float | None,
    estimator: TensorEstimator,
    results: Sequence[Result],
    remarks: Sequence[str],
    written: Sequence[Path],
) -> Completed:
    """All there is to say, as text or as JSON."""
    from sfumato.report.records import Completed, OpenFit, PrivateFit

    guarantee = estimator.guarantee_
    how: OpenFit | PrivateFit
    if guarantee is None:
        how = OpenFit(order.solver.value, estimator.rmse(tensor))
    else:
        how = PrivateFit(_fitted_in_words(order, estimator, guarantee), order.leaves_open, guarantee)
    return Completed(
        file=str(file),
        modes={mode.name: mode.size for mode in tensor.modes},
        entries=tensor.n_entries,
        fitted_entries=estimator.n_entries_,
        density=tensor.density,
        bounds=tensor.bounds,
        model=order.model.value,
        ranks=estimator.model_.ranks,
        seed=order.seed,
        test=test,
        held_out=tuple(results),
        fit_seconds=estimator.fit_seconds_,
        private=guarantee is not None,
        written=tuple(map(str, written)),
        how=how,
        remarks=tuple(remarks),
    )
