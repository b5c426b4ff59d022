"""The command line: complete, predict, explain, plan, audit, describe, reproduce, demo.

What a command needs is imported when it runs, so that help comes at once.
"""

from __future__ import annotations

import json
import logging
import re
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from sfumato import __version__
from sfumato import cli_privacy as private
from sfumato.errors import SettingError, SfumatoError

if TYPE_CHECKING:
    from rich.console import Console

    from sfumato.data.tensor import Mode, SparseTensor
    from sfumato.estimators import TensorEstimator
    from sfumato.privacy.settings import Privacy
    from sfumato.report import Result
    from sfumato.tuning import PrivateSearch

DEFAULT_RANK, DEFAULT_TUCKER_RANK = 8, 4
INTERRUPTED = 130  # what a shell reports of a program that Ctrl-C has ended

# -- how the command line is read, and how it ends ------------------------------------------------

_TAKE_SEVERAL = (
    "--modes",
    "--ranks",
    "--bin",
    "--public-labels",
    "--shape",
    "--tune-rank",
    "--canary",
    "--sees",
)


def repeat_flags(args: Sequence[str]) -> list[str]:
    """``--modes user item`` as ``--modes user --modes item``, which the parser understands."""
    repeated: list[str] = []
    flag = None
    for arg in args:
        if arg.startswith("--"):
            name = arg.partition("=")[0]
            flag = name if name in _TAKE_SEVERAL else None
        elif flag is not None and repeated[-1] != flag:
            repeated.append(flag)
        repeated.append(arg)
    return repeated


class _Command(TyperCommand):
    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, repeat_flags(args))


class _Group(TyperGroup):
    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            raise  # the reader, such as `head`, has seen enough; typer ends quietly
        except (SfumatoError, OSError) as error:
            typer.echo(f"error: {error}", err=True)
            raise typer.Exit(1) from error
        except KeyboardInterrupt as error:
            typer.echo("interrupted", err=True)
            raise typer.Exit(INTERRUPTED) from error


app = typer.Typer(
    name="sfumato",
    cls=_Group,
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


def main() -> None:
    """Entry point of the ``sfumato`` command."""
    app()


def _example(*lines: str) -> str:
    return "\n".join(["\b", "Example:", *(f"  {line}" for line in lines)])


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"sfumato {__version__}")
        raise typer.Exit


@app.callback(epilog=_example("sfumato demo"))
def _sfumato(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Complete and factorise sparse multi-way data."""


# -- options that commands share ------------------------------------------------------------------


class ModelName(StrEnum):
    cp = "cp"
    tucker = "tucker"


class SolverName(StrEnum):
    als = "als"
    sgd = "sgd"
    minibatch = "minibatch"
    sequential = "sequential"


class Duplicates(StrEnum):
    error = "error"
    mean = "mean"
    last = "last"
    sum = "sum"


class FactorFormat(StrEnum):
    csv = "csv"
    parquet = "parquet"


class Unseen(StrEnum):
    error = "error"
    bias = "bias"


File = Annotated[
    Path,
    typer.Argument(
        metavar="FILE", help="A .csv, .tsv, .parquet, .tns, .npz, .npy or .mat file; comes first."
    ),
]
Modes = Annotated[
    list[str] | None,
    typer.Option(metavar="COLUMN...", help="Columns with the labels: --modes user item day."),
]
Value = Annotated[str | None, typer.Option(metavar="COLUMN", help="Column with the values.")]
Bounds = Annotated[
    tuple[float, float] | None,
    typer.Option(metavar="LOW HIGH", help="Lowest and highest value possible: --bounds 1 5."),
]
Bins = Annotated[
    list[str] | None,
    typer.Option(
        "--bin",
        metavar="COLUMN=BIN...",
        help="Columns of times, cut to hour, day, week or month: --bin time=day.",
    ),
]
Variable = Annotated[
    str | None, typer.Option(metavar="NAME", help="Which array of a .npz or .mat file.")
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")]


def _read(
    file: Path,
    modes: list[str] | None,
    value: str | None,
    bounds: tuple[float, float] | None,
    bins: list[str] | None,
    variable: str | None,
) -> SparseTensor:
    from sfumato.data.read import read

    pairs = [text.partition("=") for text in bins or []]
    for column, _, name in pairs:
        if not (column and name):
            raise typer.BadParameter("give a column and a bin, as in time=day", param_hint="--bin")
    by_column = {column: name for column, _, name in pairs}
    _require_columns(file, modes, value)
    return read(file, modes or None, value, bounds=bounds, bins=by_column, variable=variable)


def _require_columns(file: Path, modes: list[str] | None, value: str | None) -> None:
    """Ask for the names of columns in the words of the command line, where they are missing."""
    columns = _columns(file)
    if columns and not (modes and value):
        raise SettingError(
            "say with --modes which columns hold labels and with --value which holds the values; "
            f"the columns are {', '.join(columns)}"
        )


def _columns(file: Path) -> list[str]:
    """Names of a table's columns; none for other kinds of files."""
    import pyarrow as pa
    import pyarrow.csv as pacsv
    import pyarrow.parquet as pq

    from sfumato.data import tables

    path = tables.existing_file(file)
    kind = tables.file_kind(path)
    if kind not in tables.TABLE_KINDS:
        return []
    with tables.reading(path):
        if kind == "parquet":
            return list(pq.read_schema(path).names)
        with pa.input_stream(path, compression="detect") as stream:
            return list(pacsv.open_csv(stream, parse_options=tables.csv_format(kind)).schema.names)


def _console(*, stderr: bool = False) -> Console:
    from rich.console import Console

    return Console(stderr=stderr, highlight=False, markup=False, soft_wrap=True)


# -- complete -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Order:
    """What to fit, as asked for on the command line."""

    model: ModelName
    rank: int | None
    ranks: list[int] | None
    solver: SolverName
    rounds: int | None
    duplicates: Duplicates
    seed: int
    threads: int | None
    privacy: Privacy | None = None
    tune_rank: list[int] | None = None

    def __post_init__(self) -> None:
        if self.tune_rank and (self.ranks or self.rank is not None):
            raise typer.BadParameter("give --tune-rank or a rank, not both", param_hint="--tune-rank")
        if self.tune_rank and self.privacy is None:
            raise typer.BadParameter(
                "it pays for the choice from a private fit's budget: give --epsilon",
                param_hint="--tune-rank",
            )
        if self.ranks and self.rank is not None:
            raise typer.BadParameter("give --rank or --ranks, not both", param_hint="--ranks")
        if self.ranks and self.model == ModelName.cp:
            raise typer.BadParameter(
                "a CP model has one rank, --rank; several belong to --model tucker", param_hint="--ranks"
            )

    @property
    def given_ranks(self) -> int | list[int] | None:
        """The rank or ranks asked for; None leaves them to the estimator."""
        return self.ranks or self.rank

    def ranks_in_words(self, shape: Sequence[int]) -> str:
        """The ranks asked for; by default the usual ones, as far as the shape allows."""
        ranks = self.given_ranks
        if ranks is None and self.plans_rank:
            return "planned rank"
        if ranks is None and self.model == ModelName.cp:
            ranks = min(DEFAULT_RANK, *shape)
        elif ranks is None:
            ranks = [min(DEFAULT_TUCKER_RANK, size) for size in shape]
        return f"rank {ranks}" if isinstance(ranks, int) else f"ranks {' '.join(map(str, ranks))}"

    @property
    def plans_rank(self) -> bool:
        """Whether the rank, where none is given, follows from the budget."""
        return self.privacy is not None and self.privacy.method in ("auto", "alternating")

    def estimator(self, *, rounds: int | None, progress: Any) -> TensorEstimator:
        from sfumato.estimators import CP, Tucker
        from sfumato.solvers import SOLVERS

        solver: Any = SOLVERS[self.solver.value]()
        if rounds is not None:
            solver = replace(solver, **{"sweeps" if hasattr(solver, "sweeps") else "passes": rounds})
        settings: dict[str, Any] = {
            "solver": solver if self.privacy is None else "als",
            "privacy": self.privacy,
            "unseen": "error" if self.privacy is None else "bias",  # labels may be left out
            "duplicates": self.duplicates.value,
            "seed": self.seed,
            "threads": self.threads,
            "progress": progress,
        }
        kind: Any = CP if self.model == ModelName.cp else Tucker
        estimator: TensorEstimator = kind(self.given_ranks, **settings)
        return estimator

    def private_estimator(self, progress: Any) -> TensorEstimator | PrivateSearch:
        """One estimator, or a search among several ranks."""
        from sfumato.tuning import PrivateSearch

        if not self.tune_rank:
            return self.estimator(rounds=None, progress=progress)
        assert self.privacy is not None
        orders = [replace(self, rank=rank, tune_rank=None) for rank in self.tune_rank]
        candidates = [order.estimator(rounds=None, progress=progress) for order in orders]
        return PrivateSearch(candidates, self.privacy)

    def name_for(self, shape: Sequence[int]) -> str:
        if self.tune_rank:
            kind = "CP" if self.model == ModelName.cp else "Tucker"
            return f"{kind}, best rank of {' '.join(map(str, self.tune_rank))}"
        how = self.solver.value if self.privacy is None else f"method {self.privacy.method}"
        return f"{'CP' if self.model == ModelName.cp else 'Tucker'}, {self.ranks_in_words(shape)}, {how}"


def _rank(text: str) -> int | None:
    """A whole number; ``auto`` is the same as none."""
    if text == "auto":
        return None
    try:
        return int(text)
    except ValueError:
        raise typer.BadParameter(f"a rank is a whole number, or auto; got {text!r}") from None


@app.command(
    cls=_Command,
    short_help="Fit a model to a file and save it.",
    epilog=_example(
        "sfumato complete ratings.csv --modes user item day --value rating \\",
        "    --bounds 1 5 --bin day=day --rank 8 --test 0.2 --out model",
    ),
)
def complete(
    file: File,
    out: Annotated[Path, typer.Option(help="Folder for the model; an older model is replaced.")],
    modes: Modes = None,
    value: Value = None,
    bounds: Bounds = None,
    bin: Bins = None,
    variable: Variable = None,
    model: Annotated[ModelName, typer.Option(help="Kind of model.")] = ModelName.cp,
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
    solver: Annotated[SolverName, typer.Option(help="How it is fitted.")] = SolverName.als,
    rounds: Annotated[int | None, typer.Option(help="Sweeps (als) or passes (the others).")] = None,
    test: Annotated[
        float | None, typer.Option(help="Share of the entries to hold out and measure errors at.")
    ] = None,
    duplicates: Annotated[
        Duplicates, typer.Option(help="What to make of several entries at one cell.")
    ] = Duplicates.error,
    seed: Annotated[int, typer.Option(help="Of the random start and the held-out entries.")] = 0,
    threads: Annotated[int | None, typer.Option(help="By default all cores.")] = None,
    epsilon: private.Epsilon = None,
    delta: private.Delta = None,
    unit: private.UnitName = None,
    max_entries: private.MaxEntries = None,
    method: private.Method = private.MethodName.auto,
    analysis: private.AnalysisName = private.Analysis.proven,
    noise: private.NoiseLaw = "auto",
    local: private.Local = "auto",
    public_entries: private.PublicEntries = None,
    public_labels: private.PublicLabels = None,
    labels_are_public: private.LabelsArePublic = False,
    public_spread: private.PublicSpread = None,
    public_units: private.PublicUnits = None,
    public_step: private.PublicStep = None,
    ledger: private.LedgerFile = None,
    ledger_limit: private.LedgerLimit = None,
    tune_rank: private.TuneRank = None,
    noise_seed: private.NoiseSeed = None,
    force: private.Force = False,
    factors: Annotated[
        FactorFormat | None, typer.Option(help="Also write the factors, to the folder OUT-factors.")
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress and no notes.")] = False,
    as_json: Json = False,
) -> None:
    """Fit a model to the entries of FILE and save it, to predict any cell.

    Without --epsilon the result is not private. With it, the folder holds `release`, which is safe to
    hand out and says what it promises, and, where rows stay with their owners, `owner`, which is not.

    With --test, errors are measured at held-out entries. Without privacy, the model that is saved is
    then fitted to all entries; a private one stays as it is, for a second fit would cost again. The
    errors are for you alone: no guarantee covers them.
    """
    from sfumato.data import prepare
    from sfumato.demo import NOT_PRIVATE
    from sfumato.store import check_destination

    wanted = private.PrivacyOrder(
        epsilon,
        delta,
        unit,
        max_entries,
        method,
        analysis,
        noise,
        local,
        public_entries,
        public_labels,
        labels_are_public,
        public_spread,
        public_units,
        public_step,
        ledger,
        ledger_limit,
        noise_seed,
        force,
    )
    privacy = wanted.settings(bounds)
    order = _Order(model, rank, ranks, solver, rounds, duplicates, seed, threads, privacy, tune_rank)
    check_destination(out)
    tensor = _read(file, modes, value, bounds, bin, variable)
    notes = _console(stderr=True)
    notes.quiet = quiet
    if quiet:
        logging.getLogger("sfumato").setLevel(logging.ERROR)
    if privacy is None:
        # Merged before the entries are divided, or one cell could lie on both sides.
        prepare.check_values(tensor)
        tensor = prepare.merge_duplicates(tensor, duplicates.value)
        estimator, results = _fit(order, tensor, test, notes)
    else:
        estimator, results = _fit_privately(order, tensor, test, notes)
    written = _save(estimator, out, factors, force)
    if as_json:
        typer.echo(json.dumps(_complete_json(file, order, tensor, test, estimator, results, written)))
    else:
        _print_completed(tensor, estimator, results, written)
    if privacy is None:
        typer.echo(NOT_PRIVATE, err=True)


def _fit(
    order: _Order, tensor: SparseTensor, test: float | None, notes: Console
) -> tuple[TensorEstimator, list[Result]]:
    """The estimator fitted to all entries, and the errors at held-out ones where asked for."""
    from sfumato import report
    from sfumato.estimators import Biases

    parts = None if test is None else tensor.split(test, seed=order.seed)
    name = order.name_for(tensor.shape)
    _say_what_was_chosen(order, tensor.modes, tensor.shape, notes)
    probe = order.estimator(rounds=1, progress=None)
    report.warm_up([Biases(), probe], tensor)
    results = []
    with report.FitProgress(notes) as progress:
        estimator = order.estimator(rounds=order.rounds, progress=progress)
        if parts is not None:
            rivals = {"bias predictor": Biases(progress=progress), name: estimator}
            results = report.compare(rivals, *parts, announce=progress.begin)
        progress.begin(f"{name}: all entries")
        return estimator.fit(tensor), results


def _fit_privately(
    order: _Order, tensor: SparseTensor, test: float | None, notes: Console
) -> tuple[TensorEstimator, list[Result]]:
    """One private fit, to all entries or to those not held out."""
    from sfumato import report
    from sfumato.data import prepare
    from sfumato.estimators import Biases

    shape = private.public_shape(tensor.modes, order.privacy)
    name = f"{order.name_for(shape)}, private"
    _say_what_was_chosen(order, tensor.modes, shape, notes)
    with report.FitProgress(notes) as progress:
        estimator = order.private_estimator(progress)
        if test is None:
            progress.begin(name)
            return _best(estimator.fit(tensor)), []
        whole = prepare.clip(tensor, tensor.bounds or (0, 1))
        rivals = {
            "bias predictor, not private": Biases(duplicates="mean", progress=progress),
            name: estimator,
        }
        parts = prepare.split_by_label(whole, test, seed=order.seed)
        results = report.compare(rivals, *parts, announce=progress.begin)
        return _best(estimator), results


def _best(fitted: TensorEstimator | PrivateSearch) -> TensorEstimator:
    """What a search has chosen; an estimator by itself is the best of one."""
    from sfumato.tuning import PrivateSearch

    return fitted.best_estimator_ if isinstance(fitted, PrivateSearch) else fitted


def _say_what_was_chosen(
    order: _Order, modes: Sequence[Mode], shape: Sequence[int], notes: Console
) -> None:
    if order.given_ranks is None and not order.tune_rank:
        why = "for this shape and budget" if order.plans_rank else "for this shape"
        notes.print(f"{order.name_for(shape)}: chosen {why}, as no rank is given")
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
    from sfumato.data.write import write_factors

    written = [estimator.save(out, force=force)]
    if factors is not None:
        model, folder = estimator.model_, out.with_name(f"{out.absolute().name}-factors")
        shared = [m for m in range(model.order) if m != estimator.local_]
        for stale in [*folder.glob("*.csv"), *folder.glob("*.parquet")]:
            stale.unlink()  # an earlier fit's factors must not be taken for this one's
        written += write_factors(
            folder,
            [model.factors[m] for m in shared],
            [estimator.modes_[m] for m in shared],
            factors.value,
            [model.mode_biases[m] for m in shared],
        )
    return written


def _complete_json(
    file: Path,
    order: _Order,
    tensor: SparseTensor,
    test: float | None,
    estimator: TensorEstimator,
    results: list[Result],
    written: list[Path],
) -> dict[str, Any]:
    guarantee = estimator.guarantee_
    described = {
        "file": str(file),
        "modes": {mode.name: mode.size for mode in tensor.modes},
        "entries": tensor.n_entries,
        "density": tensor.density,
        "bounds": tensor.bounds,
        "model": order.model.value,
        "ranks": list(estimator.model_.ranks),
        "seed": order.seed,
        "test": test,
        "held_out": [asdict(result) for result in results],
        "fit_seconds": estimator.fit_seconds_,
        "private": guarantee is not None,
        "written": [str(path) for path in written],
    }
    if guarantee is None:
        return {**described, "solver": order.solver.value, "training_rmse": estimator.rmse(tensor)}
    return {**described, "guarantee": guarantee.to_json(), "not_covered": _NOT_COVERED}


_NOT_COVERED = "this output is for the holder of the data: the guarantee covers the release folder alone"


def _print_completed(
    tensor: SparseTensor, estimator: TensorEstimator, results: list[Result], written: list[Path]
) -> None:
    from sfumato.report import results_table

    console = _console()
    shape = " x ".join(f"{mode.name} {mode.size:,}" for mode in tensor.modes)
    console.print(f"{shape}: {tensor.n_entries:,} entries, {tensor.density:.3g} of all cells")
    if results:
        console.print()
        console.print(results_table(results))
        console.print()
    if estimator.guarantee_ is None:
        console.print(
            f"fitted to all {tensor.n_entries:,} entries in {estimator.fit_seconds_:.2f} s, "
            f"training RMSE {estimator.rmse(tensor):.4f}"
        )
    else:
        console.print(f"fitted in {estimator.fit_seconds_:.2f} s; {_NOT_COVERED}\n")
        console.print(str(estimator.guarantee_))
        console.print()
    console.print(f"wrote {', '.join(map(str, written))}")


# -- predict --------------------------------------------------------------------------------------


@app.command(
    cls=_Command,
    short_help="Add predictions to a table.",
    epilog=_example(
        "sfumato predict model cells.csv --out predicted.csv --unseen bias",
        "sfumato predict model cells.csv --own my-ratings.csv --own-mode user",
    ),
)
def predict(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of a model.")],
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="Cells to predict: a .csv, .tsv or .parquet table.")
    ],
    out: Annotated[
        Path | None, typer.Option(help="File to write; by default CSV goes to standard output.")
    ] = None,
    unseen: Annotated[
        Unseen, typer.Option(help="Labels that were not in training: refuse, or use known biases.")
    ] = Unseen.error,
    own: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Entries of somebody who may be new: a table of labels and values. Rows are solved "
            "from them for this prediction; nothing is kept.",
        ),
    ] = None,
    own_mode: Annotated[
        str | None,
        typer.Option(
            metavar="MODE",
            help="Whose rows own entries solve; by default the mode whose rows stay with their owners, "
            "or the first.",
        ),
    ] = None,
    own_value: Annotated[
        str | None,
        typer.Option(metavar="COLUMN", help="Column with the own values, where there are others."),
    ] = None,
    column: Annotated[str, typer.Option(help="Name of the new column.")] = "prediction",
) -> None:
    """Add a column of predictions to a table that has a column of labels for each mode.

    With --own, the labels of own entries are predicted by rows that are solved from these entries and
    the model. That needs no more than a release, happens where the command runs, and costs no budget.
    """
    import pyarrow as pa
    import pyarrow.csv as pacsv

    from sfumato.data.read import labels_of, read_table
    from sfumato.data.write import write_table
    from sfumato.estimators import load

    estimator = load(folder)
    # All columns of a CSV file stay as they are written: 007 is not to become 7.
    table = read_table(file, as_text=_columns(file))
    if column in table.column_names:
        raise SettingError(f"{file} has a column {column!r} already: choose another with --column")
    labels = labels_of(table, estimator.modes_)
    predicted = estimator.predict(
        labels, unseen=unseen.value, own=own, own_mode=own_mode, own_value=own_value
    )
    table = table.append_column(column, pa.array(predicted))
    if out is None:
        pacsv.write_csv(table, sys.stdout.buffer)
    else:
        write_table(table, out)


# -- explain --------------------------------------------------------------------------------------


@app.command(
    cls=_Command,
    short_help="Say what a model's privacy is.",
    epilog=_example("sfumato explain model"),
)
def explain(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of a model.")],
    as_json: Json = False,
) -> None:
    """Print the guarantee of a model: what it protects, from whom, and on which grounds."""
    from sfumato.demo import NOT_PRIVATE
    from sfumato.store import load_model

    guarantee = load_model(folder).guarantee
    if as_json:
        typer.echo(json.dumps(None if guarantee is None else guarantee.to_json()))
    else:
        typer.echo(NOT_PRIVATE if guarantee is None else str(guarantee))


# -- plan -----------------------------------------------------------------------------------------


@app.command(
    cls=_Command,
    short_help="Say what a private fit would do, and what to expect.",
    epilog=_example(
        "sfumato plan --shape 6040 3883 --entries 800000 --epsilon 1 --delta 1e-6 --unit user \\",
        "    --bounds 1 5 --out plan.png",
    ),
)
def plan(
    shape: Annotated[
        list[int], typer.Option(metavar="INT...", help="Levels of each mode: --shape 6040 3883.")
    ],
    entries: Annotated[int, typer.Option(help="About how many entries there are.")],
    epsilon: Annotated[float, typer.Option(help="The budget.")],
    delta: private.Delta = None,
    unit: Annotated[
        str, typer.Option(metavar="UNIT", help="What is protected: value, entry, a mode, values:MODE.")
    ] = "entry",
    modes: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME...", help="Names of the modes; user and item by default."),
    ] = None,
    bin: Annotated[
        list[str] | None,
        typer.Option("--bin", metavar="MODE=BIN...", help="Modes that hold times: --bin day=day."),
    ] = None,
    local: private.Local = "auto",
    max_entries: private.MaxEntries = None,
    bounds: Bounds = None,
    spread: Annotated[
        float | None, typer.Option(metavar="S", help="About how far values lie from their mean.")
    ] = None,
    rank: Annotated[int | None, typer.Option(help="The largest rank to consider.")] = None,
    signal: Annotated[
        tuple[float, float] | None,
        typer.Option(
            metavar="BIASES INTERACTIONS",
            help="Shares of the values' variance that these are assumed to make up.",
        ),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="File for a picture, such as plan.png.")] = None,
    as_json: Json = False,
) -> None:
    """Say what a private fit would do and how accurate it is expected to be, from public numbers.

    No data is read, so that it costs no privacy. Accuracy is shown for a row of budgets beside the
    private constant and private biases, under a declared assumption of what data are like.
    """
    from sfumato import cli_plan

    order = cli_plan.PlanOrder(
        shape,
        entries,
        epsilon,
        delta or 0.0,
        unit,
        modes,
        bin or (),
        local,
        max_entries,
        bounds,
        spread,
        rank,
        signal,
    )
    found = cli_plan.rows(order)
    if out is not None:
        cli_plan.draw(order, found, out)
    if as_json:
        typer.echo(json.dumps(cli_plan.to_json(order, found)))
        return
    console = _console()
    console.print(cli_plan.text(order, found))
    if out is not None:
        console.print(f"wrote {out}")


# -- audit ----------------------------------------------------------------------------------------


@app.command(
    cls=_Command,
    short_help="Attack what a private fit promises.",
    epilog=_example(
        "sfumato audit --shape 6 5 5 --unit value --epsilon 0.1 --method gradient --analysis paper",
        "sfumato audit ratings.csv --modes user item --value rating --bounds 1 5 --epsilon 1 \\",
        "    --delta 1e-6 --unit entry --labels-are-public --runs 2000 --out audit",
    ),
)
def audit(
    file: Annotated[
        Path | None,
        typer.Argument(metavar="[FILE]", help="Data to attack; without it they are made up."),
    ] = None,
    shape: Annotated[
        list[int] | None,
        typer.Option(metavar="INT...", help="Levels of each mode of made-up data: --shape 30 30."),
    ] = None,
    modes: Modes = None,
    value: Value = None,
    bounds: Bounds = None,
    bin: Bins = None,
    variable: Variable = None,
    model: Annotated[ModelName, typer.Option(help="Kind of model.")] = ModelName.cp,
    rank: Annotated[int | None, typer.Option(help="Its rank, in every mode.")] = None,
    epsilon: private.Epsilon = None,
    delta: private.Delta = None,
    unit: private.UnitName = None,
    max_entries: private.MaxEntries = None,
    method: private.Method = private.MethodName.auto,
    analysis: private.AnalysisName = private.Analysis.proven,
    noise: private.NoiseLaw = "auto",
    local: private.Local = "auto",
    public_entries: private.PublicEntries = None,
    public_labels: private.PublicLabels = None,
    labels_are_public: private.LabelsArePublic = False,
    public_spread: private.PublicSpread = None,
    public_units: private.PublicUnits = None,
    public_step: private.PublicStep = None,
    runs: Annotated[int, typer.Option(help="Fits for each canary, half on either neighbour.")] = 1000,
    canary: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME...", help="What neighbours differ in: least, most, edge, full."),
    ] = None,
    one_run: Annotated[
        int | None,
        typer.Option(metavar="N", help="Instead of many runs, one fit with this many canaries."),
    ] = None,
    at_delta: Annotated[
        float | None,
        typer.Option(metavar="D", help="Measure epsilon at this delta instead of the budget's."),
    ] = None,
    confidence: Annotated[float, typer.Option(help="Of the bound.")] = 0.95,
    sees: Annotated[
        list[str] | None,
        typer.Option(metavar="PART...", help="Parts of the release that are attacked: factor_2."),
    ] = None,
    seed: Annotated[int, typer.Option(help="Of the noise of all runs.")] = 0,
    secret_noise: Annotated[
        bool, typer.Option("--secret-noise", help="Draw noise as real fits do; it takes longer.")
    ] = False,
    whole_fits: Annotated[
        bool, typer.Option("--whole-fits", help="Do not shorten what follows input perturbation.")
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder for runs, audit.json and roc.png; an interrupted audit goes on."),
    ] = None,
    processes: Annotated[int | None, typer.Option(help="By default one for each core.")] = None,
    as_json: Json = False,
) -> None:
    """Attack what a private fit promises, and print a lower bound on the epsilon that it really has.

    The fit is made many times on two data sets that differ in one unit, and attacks on the release try
    to tell which it was. Exits with 1 if the promise is violated. Nothing is released or charged; the
    outcome depends on the data and is for whoever holds them.
    """
    from sfumato import cli_audit

    wanted = private.PrivacyOrder(
        epsilon,
        delta,
        unit,
        max_entries,
        method,
        analysis,
        noise,
        local,
        public_entries,
        public_labels,
        labels_are_public,
        public_spread,
        public_units,
        public_step,
        ledger=None,
        ledger_limit=None,
        seed=None,
        force=True,  # nothing is released
    )
    limits = bounds or (None if file is not None else (-1.0, 1.0))
    privacy = cli_audit.attackable(wanted.settings(limits))
    if file is not None and shape:
        raise SettingError("give a file or --shape, not both")
    order = cli_audit.AuditOrder(
        privacy,
        cli_audit.made_up_modes(shape, modes)
        if file is None
        else _read(file, modes, value, bounds, bin, variable),
        limits or (-1.0, 1.0),
        model == ModelName.tucker,
        rank,
        canary,
        one_run,
        runs,
        at_delta,
        confidence,
        sees,
        None if secret_noise else seed,
        whole_fits,
        out,
        processes,
    )
    outcome, written = cli_audit.run_audit(order, _console(stderr=True))
    if as_json:
        typer.echo(json.dumps(outcome.to_json()))
    else:
        _console().print(str(outcome))
        if written:
            _console().print(f"wrote {', '.join(map(str, written))}")
    if outcome.violated:
        raise typer.Exit(1)


# -- describe and demo ----------------------------------------------------------------------------


@app.command(
    cls=_Command,
    short_help="Show what a file holds.",
    epilog=_example("sfumato describe ratings.csv --modes user item --value rating --bounds 1 5"),
)
def describe(
    file: File,
    modes: Modes = None,
    value: Value = None,
    bounds: Bounds = None,
    bin: Bins = None,
    variable: Variable = None,
    rank: Annotated[int, typer.Option(help="For the estimate of memory.")] = DEFAULT_RANK,
    as_json: Json = False,
) -> None:
    """Show shape, values, duplicates and how entries spread, and the memory a fit needs."""
    from sfumato import report

    described = report.describe(_read(file, modes, value, bounds, bin, variable), rank)
    if as_json:
        typer.echo(json.dumps(asdict(described)))
    else:
        _console().print(report.description_text(described))


@app.command(
    cls=_Command,
    short_help="Make a paper's figures and tables again.",
    epilog=_example("sfumato reproduce wei --figure 2 --quick --out wei-figure-2"),
)
def reproduce(
    paper: Annotated[str, typer.Argument(help="Which paper: wei, wang or ermis.")],
    figure: Annotated[
        str | None,
        typer.Option(
            metavar="N", help="Which of its figures: 2, 3, 4 for wei; 6.3, 6.5, 6.6, 6.7 for ermis."
        ),
    ] = None,
    table: Annotated[
        str | None,
        typer.Option(metavar="N", help="Which of its tables: 6.1, 6.2, 6.5 for ermis."),
    ] = None,
    experiment: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Of wang: noise, stream, private or topics."),
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Few repetitions and budgets: within two minutes.")
    ] = False,
    out: Annotated[
        Path | None, typer.Option(help="Folder for pictures and tables; wei-figure-2 for example.")
    ] = None,
    processes: Annotated[
        int | None, typer.Option(metavar="N", help="Fits side by side; as many as cores by default.")
    ] = None,
    repetitions: Annotated[
        int | None, typer.Option(metavar="N", help="By default the paper's, such as 10.")
    ] = None,
    scaling: Annotated[
        str | None,
        typer.Option(help="Of wei's invented truth: minmax, to [0, 1], as by default, or magnitude."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Make a paper's figures, tables or experiments again: as printed, and beside them what we get.

    Fits that are done are kept in the folder: a run that was interrupted goes on where it ended.
    """
    from sfumato import cli_reproduce

    options = {"figure": figure, "table": table, "experiment": experiment, "scaling": scaling}
    given = {name: value for name, value in options.items() if value is not None}
    order = cli_reproduce.Order(paper, given, quick, out, repetitions, processes)
    outcome = cli_reproduce.carry_out(order, _console(stderr=True))
    if as_json:
        typer.echo(json.dumps(cli_reproduce.to_json(outcome)))
        return
    console = _console()
    for part in cli_reproduce.tables(outcome):
        console.print(part)
    for file in outcome.files:
        console.print(f"wrote {file}")


@app.command(
    cls=_Command,
    short_help="Complete invented ratings.",
    epilog=_example("sfumato demo --out sfumato-demo"),
)
def demo(
    out: Annotated[Path, typer.Option(help="Folder for the picture and the model.")] = Path(
        "sfumato-demo"
    ),
) -> None:
    """Complete ratings that come with the package; takes well under two minutes."""
    from sfumato.demo import run_demo

    run_demo(out, _console())
