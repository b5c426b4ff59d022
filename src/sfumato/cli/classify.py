"""``sfumato classify``: train a network on a table of examples, and save it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sfumato.cli import options
from sfumato.cli.command import command
from sfumato.cli.common import (
    columns_of,
    console,
    notes_unless,
    reading,
    save_or_rescue,
    say_what_was_written,
)
from sfumato.cli.example_tables import (
    bounds_of,
    categories_of,
    read_examples,
    with_words,
    word,
    words_of,
)
from sfumato.cli.pages import Report, report_in
from sfumato.cli.privacy import Spending, check_releasable, refuse_without_epsilon
from sfumato.errors import DataError, SettingError

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray
    from rich.console import Console

    from sfumato.estimators.network import PrivateClassifier, PrivateRegressor
    from sfumato.fit.request import Privacy
    from sfumato.report.networks import Measured
    from sfumato.report.page.contents import Held

    Either = PrivateClassifier | PrivateRegressor

_EXAMPLE = ("example", "sample")


@dataclass(frozen=True)
class Said:
    """What is learnt from and what of, and what everyone knows of it."""

    label: Annotated[str, typer.Option(metavar="COLUMN", help="Column that is to be predicted.")]
    columns: Annotated[
        list[str] | None,
        typer.Option(
            metavar="COLUMN...",
            help="Columns to learn from; by default those of --bounds and --categories, or all.",
        ),
    ] = None
    bounds: Annotated[
        list[str] | None,
        typer.Option(
            metavar="COLUMN=LOW:HIGH...",
            help="Columns of numbers with public bounds: age=0:120; LOW:HIGH alone is for all others.",
        ),
    ] = None
    categories: Annotated[
        list[str] | None,
        typer.Option(
            metavar="COLUMN=WORD,WORD...", help="Columns of categories, which are public: sex=f,m."
        ),
    ] = None
    classes: Annotated[
        list[str] | None,
        typer.Option(metavar="WORD...", help="All classes that there can be, which are public."),
    ] = None
    regress: Annotated[bool, typer.Option("--regress", help="Predict a number instead of a class.")] = (
        False
    )
    target_bounds: Annotated[
        tuple[float, float] | None,
        typer.Option(metavar="LOW HIGH", help="With --regress: public bounds of that number."),
    ] = None

    def check(self) -> None:
        if self.regress and self.classes:
            raise SettingError("--regress predicts numbers, which have no --classes: leave one out")
        if self.target_bounds is not None and not self.regress:
            raise SettingError("--target-bounds are for --regress: say that too, or leave them out")

    def learnt_from(self, there: Sequence[str], owner: str | None) -> list[str]:
        """Columns to learn from, of those that a file has."""
        bounds, categories = bounds_of(self.bounds), categories_of(self.categories)
        named = [name for name in (*bounds, *categories) if name is not None]
        if twice := [name for name in categories if name in bounds]:
            raise SettingError(f"{', '.join(twice)}: give either --bounds or --categories, not both")
        rest = [name for name in there if name not in (self.label, owner)]
        wanted = self.columns or (rest if None in bounds or not named else named)
        listed = ", ".join(there)
        for flag, name in [("--label", self.label), *(("--unit", each) for each in [owner] if each)]:
            if name not in there:
                raise SettingError(f"{flag}: there is no column {name!r}; the columns are {listed}")
        if missing := [name for name in (*wanted, *named) if name not in there]:
            raise SettingError(f"there is no column {missing[0]!r}; the columns are {listed}")
        if secret := [name for name in (self.label, owner) if name in (*wanted, *named)]:
            raise SettingError(
                f"{secret[0]} is not learnt from: leave it out of --columns, --bounds and --categories"
            )
        if beside := [name for name in named if name not in wanted]:
            raise SettingError(f"{', '.join(beside)} is said to be public, but not in --columns")
        if len(set(wanted)) < len(wanted):
            raise SettingError("a column is named twice in --columns")
        if not wanted:
            raise SettingError(f"there is no column to learn from; the columns are {listed}")
        return list(wanted)

    def public(self, columns: Sequence[str]) -> dict[str, Any] | None:
        """What is said of each column; None where nothing is."""
        bounds, categories = bounds_of(self.bounds), categories_of(self.categories)
        said = {name: bounds.get(name) or categories.get(name) or bounds.get(None) for name in columns}
        return {name: value for name, value in said.items() if value is not None} or None

    def target(self, table: pa.Table) -> Any:
        """What is to be predicted, as words or, where it is a number, as it is."""
        import numpy as np

        if self.regress:
            return np.array(table.column(self.label).to_pylist(), object)
        return np.array(words_of(table, self.label), object)


@dataclass(frozen=True)
class Protection:
    """Within which budget whom to protect, and how many of them there are."""

    epsilon: options.Epsilon = None
    delta: options.Delta = None
    unit: Annotated[
        str | None,
        typer.Option(
            metavar="UNIT",
            help="What is protected: example, or all rows of one owner: the column that says whose a "
            "row is, such as patient, which is not learnt from.",
        ),
    ] = None
    public_entries: Annotated[
        int | None, typer.Option(metavar="N", help="About how many examples there are; it is public.")
    ] = None
    public_units: Annotated[
        int | None, typer.Option(metavar="N", help="About how many owners there are; it is public.")
    ] = None

    @property
    def owner(self) -> str | None:
        """The column that says whose rows are."""
        return None if self.unit in (None, *_EXAMPLE) else self.unit

    def settings(self, spending: Spending) -> Privacy | None:
        """The privacy asked for; whatever is wrong with it is said before the file is read."""
        from sfumato.fit.request import Privacy
        from sfumato.privacy.budgets import Budget
        from sfumato.privacy.units import Public

        if self.epsilon is None:
            refuse_without_epsilon(self._given(spending), private_method=False)
            return None
        if self.unit is None:
            raise SettingError(
                "--epsilon needs --unit: example, or the column that says whose a row is: patient"
            )
        check_releasable(None if spending.noise_seed is None else "seeded", spending)
        delta, limit = self.delta or 0.0, spending.ledger_limit
        return Privacy(
            self.epsilon,
            delta,
            self.unit,
            public=Public(entries=self.public_entries, units=self.public_units),
            ledger=spending.ledger,
            limit=None if limit is None else Budget(limit, delta),
            seed=spending.noise_seed,
            sampler=spending.sampler.value,
        )

    def _given(self, spending: Spending) -> dict[str, object]:
        sampler = spending.sampler
        return {
            "--delta": self.delta,
            "--unit": self.unit,
            "--public-entries": self.public_entries,
            "--public-units": self.public_units,
            "--ledger": spending.ledger,
            "--ledger-limit": spending.ledger_limit,
            "--noise-seed": spending.noise_seed,
            "--sampler": None if sampler == options.SamplerName.sfumato else sampler,
            "--force": spending.force or None,
        }


@command(
    "Train a network on a table, to predict a column.",
    "sfumato classify patients.csv --label ill --classes no yes --bounds age=0:120 weight=0:300 \\",
    "    --categories sex=f,m --epsilon 1 --delta 1e-6 --unit example --public-entries 5000 \\",
    "    --test others.csv --out model",
    take_several=("--columns", "--bounds", "--categories", "--classes", "--hidden"),
    page="docs/networks.md#on-the-command-line",
)
def classify(
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE",
            help="A table, one example in each row: .csv, .tsv, .parquet or .xlsx; comes first.",
        ),
    ],
    *,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            callback=options.folder_for_files,
            help="Folder for the model; an older model is replaced.",
        ),
    ] = None,
    said: Said,
    hidden: Annotated[
        list[int] | None,
        typer.Option(min=1, metavar="INT...", help="Sizes of hidden layers; none by default."),
    ] = None,
    protection: Protection,
    spending: Spending,
    test: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Other examples, to measure errors at; for you alone."),
    ] = None,
    plan_only: Annotated[
        bool, typer.Option("--plan-only", help="Say what would be done, and read no row.")
    ] = False,
    seed: Annotated[int, typer.Option(help="Of the starting point, which is public.")] = 0,
    variable: Annotated[
        str | None, typer.Option(metavar="NAME", help="Which sheet of a .xlsx file.")
    ] = None,
    separator: options.Separator = None,
    report: Report = False,
    quiet: options.Quiet = False,
    as_json: options.Json = False,
) -> None:
    """Train a network on the rows of FILE and save it, to predict a column of other rows.

    Without hidden layers it is logistic (with --regress linear) regression. Without --epsilon the result
    is not private. With it, DIR/release may be handed out: nobody can tell by it whether a row, or all
    rows of one owner (--unit patient), was in FILE. Columns, their bounds and categories, the classes
    and about how many rows there are have to be public, and said: they are never taken from FILE.

    Cells that are no number within the bounds are taken for the nearest one, what is no number at all
    for the middle, and what is none of the categories for none of them. Rows of other classes are left
    out. Nothing is said of any of it, for it would tell of single rows.

    `sfumato predict DIR FILE` adds predictions to a table.
    """
    from sfumato.store import check_destination

    notes = notes_unless(quiet)
    said.check()
    privacy = protection.settings(spending)
    header = columns_of(file, separator, variable)
    columns = said.learnt_from(header, protection.owner)
    estimator = _estimator(said, hidden, privacy, columns, seed)
    if plan_only:
        _say_plan(estimator, protection, columns, as_json)
        return
    if out is None:
        raise SettingError("name a folder for the model with --out, or say --plan-only")
    check_destination(out)
    if privacy is not None:
        estimator.plan(_count(protection), len(columns))  # before minutes of reading
    tables = [_read(each, separator, variable, notes) for each in (file, test) if each is not None]
    for each, table in zip((file, test), tables, strict=False):
        _check_columns(each, table, [*columns, said.label])
    with spending.told():
        _fit(estimator, said, tables[0], columns, protection.owner, notes)
    written = [save_or_rescue(partial(estimator.save, force=spending.force), out)]
    measured = None if test is None else _measured(estimator, said, tables, columns, notes)
    if report:
        written += report_in(out, estimator, None if measured is None else _held(measured))
    _say(file, out, estimator, tables[0].num_rows, measured, written, as_json)


def _estimator(
    said: Said, hidden: list[int] | None, privacy: Privacy | None, columns: Sequence[str], seed: int
) -> Either:
    from sfumato.estimators.network import PrivateClassifier, PrivateRegressor

    public = said.public(columns)
    if privacy is not None and public is not None and len(public) < len(columns):
        unsaid = [name for name in columns if name not in public]
        raise SettingError(
            f"say what is public of {', '.join(unsaid)}: --bounds {unsaid[0]}=LOW:HIGH, or --categories "
            f"{unsaid[0]}=WORD,WORD; or leave it out of --columns"
        )
    shared: dict[str, Any] = {"privacy": privacy, "bounds": public, "seed": seed}
    if said.regress:
        return PrivateRegressor(hidden or (), target_bounds=said.target_bounds, **shared)
    classes = None if said.classes is None else [word(each) for each in said.classes]
    return PrivateClassifier(hidden or (), classes=classes, **shared)


def _count(protection: Protection) -> int:
    """How many units there are said to be; whether that is said is judged by the plan."""
    from sfumato.estimators.examples_in import number_of
    from sfumato.privacy.units import Public, Sample, Unit

    public = Public(entries=protection.public_entries, units=protection.public_units)
    return number_of(public, Sample() if protection.owner is None else Unit(protection.owner))


def _say_plan(
    estimator: Either,
    protection: Protection,
    columns: Sequence[str],
    as_json: bool,
) -> None:
    if estimator.privacy is None:
        raise SettingError("--plan-only says what a private fit would do: give --epsilon and --unit")
    plan = estimator.plan(_count(protection), len(columns))
    if as_json:
        said = {"columns": list(columns), "noise": plan.task.noise, **asdict(plan.task.training)}
        typer.echo(json.dumps(said))
    else:
        typer.echo(plan.explain())


def _read(file: Path, separator: str | None, variable: str | None, notes: Console) -> pa.Table:
    with reading(file.name, notes):
        return read_examples(file, separator, variable)


def _check_columns(file: Path | None, table: pa.Table, wanted: Sequence[str]) -> None:
    if missing := [name for name in wanted if name not in table.column_names]:
        raise DataError(f"{file} has no column {missing[0]!r}; it has {', '.join(table.column_names)}")


def _fit(
    estimator: Either,
    said: Said,
    table: pa.Table,
    columns: Sequence[str],
    owner: str | None,
    notes: Console,
) -> None:
    from sfumato.report.progress import FitProgress

    shown = _shown(said, table, [*columns, *([] if owner is None else [owner])])
    if owner is not None:
        shown = with_words(shown, [owner])
    with FitProgress(notes) as progress:
        progress.begin("private training" if estimator.privacy is not None else "training")
        estimator.set_params(progress=progress)
        estimator.fit(shown, said.target(table), groups=owner)
    estimator.set_params(progress=None)


def _shown(said: Said, table: pa.Table, columns: Sequence[str]) -> pa.Table:
    """The columns that a network is shown, categories as words."""
    listed = categories_of(said.categories)
    return with_words(table.select(list(columns)), [name for name in columns if name in listed])


def _measured(
    estimator: Either,
    said: Said,
    tables: Sequence[pa.Table],
    columns: Sequence[str],
    notes: Console,
) -> Measured | None:
    """Errors at other examples; where none can be told, a note, as what was paid for is on disk."""
    from sfumato.estimators.network import PrivateRegressor
    from sfumato.report.networks import measured_classes, measured_numbers

    before, there = (said.target(table) for table in tables)
    shown = _shown(said, tables[1], columns)
    try:
        if isinstance(estimator, PrivateRegressor):
            return measured_numbers(estimator.predict(shown), there, before)
        classes = estimator.classes_.tolist()
        return measured_classes(estimator.predict_proba(shown), classes, there, before)
    except DataError as error:
        notes.print(f"nothing was measured: {error}")
        return None


def _held(measured: Measured) -> Held:
    from sfumato.report.networks import FOR_YOU_ALONE
    from sfumato.report.page.contents import Held

    both = (("the network", measured.network), ("a constant, not private", measured.constant))
    return Held(measures=both, remarks=(FOR_YOU_ALONE,))


def _say(
    file: Path,
    out: Path,
    estimator: Either,
    rows: int,
    measured: Measured | None,
    written: Sequence[Path],
    as_json: bool,
) -> None:
    from sfumato.report.networks import measured_table
    from sfumato.report.records import NOT_COVERED
    from sfumato.report.text import NOT_PRIVATE

    guarantee = estimator.guarantee_
    if as_json:
        found = {
            "file": str(file),
            "rows": rows,
            "network": str(estimator.network_.architecture),
            "classes": _classes(estimator),
            "fit_seconds": estimator.fit_seconds_,
            "private": guarantee is not None,
            "guarantee": None if guarantee is None else guarantee.told(),
            "test": None if measured is None else measured.to_json(),
            "written": [str(path) for path in written],
        }
        typer.echo(json.dumps(found))
    else:
        screen = console()
        screen.print(f"{rows:,} rows: network {estimator.network_.architecture}")
        screen.print(f"trained in {estimator.fit_seconds_:.2f} s")
        if guarantee is not None:
            screen.print(NOT_COVERED)
        if measured is not None:
            screen.print(measured_table(measured))
        if guarantee is not None:
            screen.print(f"\n{guarantee}\n")
        say_what_was_written(screen, written)
        folder = quote(str(out))
        screen.print(f"predict: sfumato predict {folder} NEW.csv --out predictions.csv", soft_wrap=True)
        if guarantee is not None:
            screen.print(f"hand out: {folder}/release; sfumato explain {folder}", soft_wrap=True)
    if guarantee is None:
        typer.echo(NOT_PRIVATE, err=True)


def _classes(estimator: Either) -> list[str] | None:
    listed: NDArray[Any] | None = getattr(estimator, "classes_", None)
    return None if listed is None else list(listed.tolist())
