"""``sfumato predict``: add predictions of a model to a table."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sfumato.cli import options
from sfumato.cli.command import command
from sfumato.cli.common import refuse_folder
from sfumato.errors import SettingError

if TYPE_CHECKING:
    from collections.abc import Iterable

    import pyarrow as pa

    from sfumato.estimators.base import TensorEstimator
    from sfumato.estimators.coupled import Coupled
    from sfumato.estimators.learning import PrivateNetwork


class Unseen(StrEnum):
    error = "error"
    bias = "bias"


@dataclass(frozen=True)
class OwnEntries:
    """Options for somebody who brings entries of their own."""

    own: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FILE",
            help="Entries of somebody who may be new: a table of labels and values. Rows are solved "
            "from them for this prediction; nothing is kept. Of a coupled private model NAME=FILE too, "
            "for each table in which they have some.",
        ),
    ] = None
    own_mode: Annotated[
        str | None,
        typer.Option(
            metavar="MODE",
            help="Whose rows own entries solve; by default the mode whose rows stay with their owners, "
            "or the first.",
        ),
    ] = None
    own_value: Annotated[
        list[str] | None,
        typer.Option(
            metavar="COLUMN",
            help="Column with the own values, where there are others; of a coupled model also "
            "NAME=COLUMN.",
        ),
    ] = None

    def predict(
        self,
        estimator: TensorEstimator,
        table: Any,
        unseen: Unseen,
        date_format: str | None,
        interval: float | None,
    ) -> list[Any]:
        from sfumato.data.io.read import labels_of, read_entries

        labels, own = labels_of(table, estimator.modes_), None
        file, value = _only("--own", self.own), _only("--own-value", self.own_value)
        if file is not None:
            own = read_entries(Path(file), estimator.modes_, value, date_format=date_format)
            value = None
        brought: dict[str, Any] = {"own": own, "own_mode": self.own_mode, "own_value": value}
        found = estimator.predict(labels, unseen=unseen.value, interval=interval, **brought)
        return [found] if interval is None else list(found)

    def of_relations(
        self, estimator: Coupled, relation: str, date_format: str | None
    ) -> dict[str, Any] | None:
        """Own entries in each table of a coupled model: files with a name, or that of the relation."""
        from sfumato.cli.couple_order import by_name
        from sfumato.data.io.read import read_entries

        names = list(estimator.relations_)
        if self.own is None:
            if self.own_value is not None:
                raise SettingError("--own-value says how own entries are read: give --own as well")
            return None
        named = [
            each if "=" in each and not Path(each).exists() else f"{relation}={each}"
            for each in self.own
        ]
        nothing: str | None = None
        files = by_name("--own", named, names, nothing, str, one_for_all=False)
        values = by_name("--own-value", self.own_value, names, nothing, str)
        return {
            name: read_entries(
                Path(file),
                estimator.private_relations_[name].modes,
                values[name],
                date_format=date_format,
            )
            for name, file in files.items()
            if file is not None
        }


def _only(flag: str, given: list[str] | None) -> str | None:
    """What a flag was given once."""
    if given is not None and len(given) > 1:
        raise SettingError(f"{flag} is given {len(given)} times: this model is one of a single table")
    return None if given is None else given[0]


@dataclass(frozen=True)
class OfTables:
    """Options of models of several tables."""

    relation: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Of a coupled model: which of its tables the cells are of."),
    ] = None
    reliance: Annotated[
        bool,
        typer.Option(
            "--reliance",
            help="Of a coupled model: also a column that says how much of what is known about a cell's "
            "labels other tables know, from 0 to 1.",
        ),
    ] = False
    interval: Annotated[
        float | None,
        typer.Option(
            metavar="P",
            help="Also columns low and high, between which the value lies with probability P, such as "
            "0.9. Of one table, and of private fits, also the standard deviations noise, which privacy "
            "adds, and scatter, of the data. A private fit needs `--intervals`; several tables without "
            "privacy variational or langevin.",
        ),
    ] = None

    def column_names(self, first: str, apart: bool) -> list[str]:
        """The columns that are added, in the order of what the estimator predicts; ``apart`` is whether
        it tells noise and scatter apart.
        """
        bounds = [] if self.interval is None else ["low", "high"]
        bounds += ["noise", "scatter"] if bounds and apart else []
        return [first, *bounds, *(["reliance"] if self.reliance else [])]

    def predict(self, estimator: Coupled, relation: str, table: Any, **own: Any) -> list[Any]:
        found = estimator.predict(relation, table, reliance=self.reliance, interval=self.interval, **own)
        return list(found) if isinstance(found, tuple) else [found]


@command(
    "Add predictions to a table.",
    "sfumato predict model cells.csv --out predicted.csv --unseen bias",
    "sfumato predict model cells.csv --own my-ratings.csv --own-mode user",
    "sfumato predict model cells.csv --interval 0.9",
    "sfumato predict coupled cells.csv --relation ratings --reliance",
    "sfumato predict network rows.csv --out predicted.csv",
    "sfumato predict private cells.csv --relation ratings --own ratings=my.csv likes=also.csv",
    take_several=("--own", "--own-value"),
    page="docs/cli.md#for-somebody-new",
)
def predict(
    folder: options.ModelFolder,
    file: Annotated[
        Path,
        typer.Argument(metavar="FILE", help="Cells to predict: a .csv, .tsv, .parquet or .xlsx table."),
    ],
    *,
    out: Annotated[
        Path | None,
        typer.Option(help="File to write; by default standard output, as FILE is or else as CSV."),
    ] = None,
    unseen: Annotated[
        Unseen, typer.Option(help="Labels that were not in training: refuse, or use known biases.")
    ] = Unseen.error,
    own_entries: OwnEntries,
    column: Annotated[str, typer.Option(help="Name of the new column.")] = "prediction",
    of_tables: OfTables,
    variable: Annotated[
        str | None, typer.Option(metavar="NAME", help="Which sheet of a .xlsx file.")
    ] = None,
    separator: options.Separator = None,
    date_format: options.DateFormat = None,
    device: options.WhereMade = options.DeviceName.cpu,
) -> None:
    """Add a column of predictions to a table that has a column of labels for each mode.

    Whatever else a .csv or .tsv file holds stays as it is written.

    With --own, the labels of own entries are predicted by rows that are solved from these entries and
    the model. That needs no more than a release, happens where the command runs, and costs no budget.

    A coupled model has several tables: --relation says which of them the cells belong to. A network
    (`sfumato classify`) reads the columns that it has learnt from, and adds the class with the
    probability of each, or the number.
    """
    from sfumato.data.io.read import read_table, with_dates
    from sfumato.data.io.write import write_added
    from sfumato.estimators.coupled import Coupled
    from sfumato.estimators.learning import PrivateNetwork
    from sfumato.estimators.loading import load

    estimator = load(folder)
    if isinstance(estimator, PrivateNetwork):
        of_cells = own_entries != OwnEntries() or of_tables != OfTables() or date_format is not None
        if of_cells or device != options.DeviceName.cpu:
            raise SettingError(
                f"{folder} is a network, which predicts rows of a table by its columns: leave out "
                "--own, --own-mode, --own-value, --relation, --reliance, --interval, --date-format and "
                "--device"
            )
        _predict_examples(estimator, file, out, column, separator, variable)
        return
    _check_options(estimator, folder, own_entries, of_tables, unseen)
    _compute_on(estimator, folder, device)
    refuse_folder(file)
    # All columns of a CSV file stay as they are written: 007 is not to become 7.
    table = read_table(file, as_text=None, separator=separator, variable=variable)
    apart = not isinstance(estimator, Coupled) or estimator.guarantee_ is not None
    names = of_tables.column_names(column, apart)
    _check_new(file, table, names, column)
    cells = with_dates(table, estimator.modes_, date_format)
    if isinstance(estimator, Coupled):
        relation = of_tables.relation or ""
        own = own_entries.of_relations(estimator, relation, date_format)
        found = of_tables.predict(estimator, relation, cells, own=own, unseen=unseen.value)
    else:
        found = own_entries.predict(estimator, cells, unseen, date_format, of_tables.interval)
    added = dict(zip(names, found, strict=True))
    write_added(file, table, added, sys.stdout.buffer if out is None else out, separator)


def _compute_on(estimator: Any, folder: Path, device: options.DeviceName) -> None:
    from sfumato.estimators.coupled import Coupled

    if isinstance(estimator, Coupled):
        if device == options.DeviceName.gpu:
            raise SettingError(
                f"{folder} is a coupled model, for which a GPU has no kernels: leave --device out"
            )
    else:
        estimator.device = options.checked_device(device)


def _check_new(file: Path, table: pa.Table, names: Iterable[str], column: str) -> None:
    """Refuse names of columns that a file has already."""
    for name in names:
        if name in table.column_names:
            how = "choose another with --column" if name == column else "rename it"
            raise SettingError(f"{file} has a column {name!r} already: {how}")


def _predict_examples(
    estimator: PrivateNetwork,
    file: Path,
    out: Path | None,
    column: str,
    separator: str | None,
    variable: str | None,
) -> None:
    """A class with the probability of each, or a number, for every row."""
    from sfumato.cli.example_tables import read_examples, with_categories
    from sfumato.data.io.write import write_added
    from sfumato.estimators.network import PrivateClassifier, PrivateRegressor
    from sfumato.models.features import Columns

    table, features = read_examples(file, separator, variable), estimator.features_
    listed = features.columns if isinstance(features, Columns) else ()
    shown = with_categories(table, {each.name: each.categories for each in listed if each.categories})
    added: dict[str, Any] = {}
    if isinstance(estimator, PrivateClassifier):
        chances = estimator.predict_proba(shown)
        classes = estimator.classes_.tolist()
        added[column] = [classes[place] for place in chances.argmax(1).tolist()]
        added |= {f"probability_{name}": chances[:, place] for place, name in enumerate(classes)}
    elif isinstance(estimator, PrivateRegressor):
        added[column] = estimator.predict(shown)
    _check_new(file, table, added, column)
    write_added(file, table, added, sys.stdout.buffer if out is None else out, separator)


def _check_options(
    estimator: Any, folder: Path, own_entries: OwnEntries, of_tables: OfTables, unseen: Unseen
) -> None:
    """Refuse options that the kind of model has no use for."""
    from sfumato.estimators.base import TensorEstimator
    from sfumato.estimators.coupled import Coupled

    if isinstance(estimator, TensorEstimator):
        if of_tables != OfTables(interval=of_tables.interval):
            raise SettingError(
                f"{folder} is no coupled model, but one of a single table: leave out --relation and "
                "--reliance"
            )
        return
    if not isinstance(estimator, Coupled):
        raise SettingError(f"{folder} holds components of a tensor, which predict no cells")
    names = ", ".join(estimator.relations_)
    if of_tables.relation is None:
        raise SettingError(
            f"{folder} is a coupled model: say with --relation which of its tables the cells are of, "
            f"{names}"
        )
    if of_tables.relation not in estimator.relations_:
        raise SettingError(f"{folder} has no relation {of_tables.relation!r}; its relations are {names}")
    private = estimator.guarantee_ is not None
    if not private and (own_entries != OwnEntries() or unseen == Unseen.bias):
        raise SettingError(
            f"{folder} is a coupled model, which has neither biases nor rows for own entries: leave out "
            "--own, --own-mode, --own-value and --unseen bias"
        )
    if own_entries.own_mode is not None:
        raise SettingError(
            f"{folder} is a coupled model: own entries solve rows that stay with their owners, and no "
            "others. Leave out --own-mode"
        )
    if private and of_tables.reliance:
        raise SettingError(
            f"{folder} is a private fit, which does not tell reliance, which would count entries: leave "
            "out --reliance"
        )
