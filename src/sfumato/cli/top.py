"""``sfumato top``: for every level of a mode the best levels of another, as a table."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from sfumato.cli import options
from sfumato.cli.command import command
from sfumato.cli.common import refuse_folder
from sfumato.errors import SettingError

MODE_OF_LISTS = "--for"
_NOT_COVERED = (
    "NOT FOR RELEASE: what a list leaves out tells what was seen, and rows of owners are theirs alone. "
    "Show a list to nobody but whom it is for."
)


@command(
    "List the best levels of a mode for all levels of another.",
    "sfumato top model --mode item --k 10 --seen ratings.csv --out lists.csv",
    "sfumato top model --mode item --for user --at day=2020-01-01",
    "sfumato top model --mode item --at user=17",
    "sfumato top model/release --mode item --own my-ratings.csv",
    take_several=("--at",),
    page="docs/counts-and-lists.md#lists-for-everybody",
)
def top(
    folder: options.ModelFolder,
    *,
    mode: Annotated[str, typer.Option(metavar="MODE", help="Mode whose levels are listed.")],
    k: Annotated[int, typer.Option("--k", min=1, metavar="N", help="How many, at most.")] = 10,
    of: Annotated[
        str | None,
        typer.Option(
            MODE_OF_LISTS,
            metavar="MODE",
            help="Mode that has a list for each of its levels; by default the one that is left.",
        ),
    ] = None,
    at: Annotated[
        list[str] | None,
        typer.Option(metavar="MODE=LABEL...", help="Labels of the other modes: --at day=2020-01-01."),
    ] = None,
    seen: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Entries that were seen, whose cells are in no list: a table of labels."
        ),
    ] = None,
    own: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Entries of those who may be new: lists are for them, without what they have.",
        ),
    ] = None,
    own_value: Annotated[
        str | None,
        typer.Option(metavar="COLUMN", help="Column with the own values, where there are others."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="A .csv, .tsv or .parquet file to write; by default standard output, as CSV."),
    ] = None,
    device: options.WhereMade = options.DeviceName.cpu,
) -> None:
    """Print the levels of a mode with the highest predictions, for every level of another mode.

    A row for each: whose list it is, its rank, the label, the prediction. A release without the rows of
    owners has lists for those alone who bring entries, with --own.
    """
    import pyarrow.csv as pacsv

    from sfumato.data.io.read import labels_of, read_table
    from sfumato.data.io.write import write_table
    from sfumato.estimators.base import TensorEstimator
    from sfumato.estimators.loading import load

    estimator = load(folder)
    if not isinstance(estimator, TensorEstimator):
        raise SettingError(f"{folder} is no model of one table: lists are of its levels")
    estimator.device = options.checked_device(device)
    was_seen: dict[str, Any] | None = None
    if seen is not None:
        refuse_folder(seen)
        was_seen = labels_of(read_table(seen, as_text=None), estimator.modes_)
    labels = _labels(at)
    left = [each.name for each in estimator.modes_ if each.name not in (mode, *labels)]
    if not left and own is None and of is None:
        table = _one_list(estimator, mode, k, was_seen, labels)
    else:
        table = estimator.top_all(mode, k, of=of, seen=was_seen, own=own, own_value=own_value, **labels)
    if out is None:
        pacsv.write_csv(table, sys.stdout.buffer)
    else:
        write_table(table, out)
    with_rows = estimator.local_ is not None and estimator.modes_[estimator.local_].size
    if estimator.guarantee_ is not None and (seen is not None or own is not None or with_rows):
        typer.echo(_NOT_COVERED, err=True)


def _labels(given: list[str] | None) -> dict[str, str]:
    pairs = [text.partition("=") for text in given or []]
    for mode, _, label in pairs:
        if not (mode and label):
            raise typer.BadParameter("give a mode and a label, as in user=17", param_hint="--at")
    return {mode: label for mode, _, label in pairs}


def _one_list(estimator: Any, mode: str, k: int, seen: Any, labels: dict[str, str]) -> Any:
    import numpy as np
    import pyarrow as pa

    from sfumato.data.tensor import find_mode
    from sfumato.estimators.lists import empty_places

    which = estimator.modes_[find_mode(estimator.modes_, mode)]
    nobody = set(which.labels_at(np.flatnonzero(empty_places(which))).tolist())
    found = estimator.top(mode, k + len(nobody), seen=seen, **labels)
    found = [(label, value) for label, value in found if label not in nobody][:k]
    names, values = [label for label, _ in found], [value for _, value in found]
    return pa.table({"rank": range(1, len(found) + 1), mode: names, "prediction": values})
