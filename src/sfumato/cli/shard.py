"""``sfumato shard``: cut tables that are larger than memory into shards."""

from __future__ import annotations

import json
import re
from enum import StrEnum
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sfumato.cli import options
from sfumato.cli.command import command
from sfumato.cli.common import columns_of, console, notes_unless, require_columns
from sfumato.cli.options import bins_by_column, folder_for_files
from sfumato.cli.privacy import labels_by_mode

if TYPE_CHECKING:
    from sfumato.data.shards import Shards

_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_UNITS |= {"KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40}


class Precision(StrEnum):
    float64 = "float64"
    float32 = "float32"


def _memory(text: str) -> int:
    """A number of bytes, as in 2GiB or 500MB."""
    found = re.fullmatch(r"(\d{1,15}(?:\.\d{1,9})?)\s*([KMGT]?I?B|)", text.strip().upper())
    if found is None or found[2] not in _UNITS:
        raise typer.BadParameter(f"an amount of memory is written as 2GiB or 500MB; got {text!r}")
    return int(float(found[1]) * _UNITS[found[2]])


@command(
    "Cut tables larger than memory into shards.",
    "sfumato shard ratings/ --modes user item day --value rating \\",
    "    --bounds 1 5 --bin day=day --memory 2GiB --out big.shards",
    take_several=("--labels",),
    page="docs/engines.md#shards",
)
def shard(
    tables: Annotated[
        list[Path],
        typer.Argument(
            metavar="INPUT...",
            help="A folder of .parquet, .arrow, .feather, .csv or .tsv tables, or such files; comes "
            "first.",
        ),
    ],
    out: Annotated[
        Path, typer.Option(metavar="DIR", callback=folder_for_files, help="Folder for the shards.")
    ],
    *,
    modes: options.Modes = None,
    value: options.Value = None,
    bounds: options.Bounds = None,
    bin: options.Bins = None,
    by: Annotated[
        str | None,
        typer.Option(
            metavar="MODE",
            help="Mode whose levels are kept whole, by default the first; for private fits that protect "
            "users, users.",
        ),
    ] = None,
    shards: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="How many; by default as many as --memory makes needed."),
    ] = None,
    memory: Annotated[
        int | None,
        typer.Option(
            metavar="SIZE",
            parser=_memory,
            help="What entries may take while shards are made, as in 2GiB, the default. Labels come on "
            "top.",
        ),
    ] = None,
    labels: Annotated[
        list[str] | None,
        typer.Option(
            metavar="MODE=FILE...",
            help="All labels that a mode has, one per line or a range: item=items.txt user=1..6040. "
            "Rows with others are refused.",
        ),
    ] = None,
    dtype: Annotated[
        Precision, typer.Option(help="Of the values; private fits take float64.")
    ] = Precision.float64,
    separator: options.Separator = None,
    date_format: options.DateFormat = None,
    force: Annotated[
        bool, typer.Option("--force", help="Replace shards that are in the folder already.")
    ] = False,
    quiet: options.Quiet = False,
    as_json: options.Json = False,
) -> None:
    """Cut the rows of tables into shards: folders that `sfumato complete` fits without loading them.

    Rows are read once, batch by batch, and levels numbered as if all were read at once. All entries of a
    level of the mode that is cut lie in one shard. The disk needs room for twice what comes out. The
    folder appears when it is complete.
    """
    from sfumato.data.cutting import files_of
    from sfumato.data.shards import DEFAULT_MEMORY, make_shards
    from sfumato.report.progress import ShardProgress

    source: Any = tables[0] if len(tables) == 1 else tables
    bins, listed = bins_by_column(bin), labels_by_mode(labels, "--labels")
    if not (modes and value):
        require_columns(columns_of(files_of(source)[0], separator), modes, value)
    with ShardProgress(notes_unless(quiet)) as progress:
        made = make_shards(
            source,
            out,
            modes=modes,
            value=value,
            bins=bins,
            bounds=bounds,
            by=by,
            shards=shards,
            memory=DEFAULT_MEMORY if memory is None else memory,
            labels=listed,
            dtype=dtype.value,
            separator=separator,
            date_format=date_format,
            force=force,
            progress=progress,
        )
    _say(made, out, as_json)


def _say(made: Shards, out: Path, as_json: bool) -> None:
    from sfumato.report.records import Sharded
    from sfumato.report.text import sharded_lines

    found = Sharded(
        folder=str(out),
        modes={mode.name: mode.size for mode in made.modes},
        entries=made.n_entries,
        bounds=made.bounds,
        dtype=made.dtype.name,
        by=made.mode_names[made.by],
        shards=len(made),
        bytes=sum(path.stat().st_size for path in made.folder.rglob("*") if path.is_file()),
    )
    if as_json:
        typer.echo(json.dumps(found.to_json()))
        return
    for line in (*sharded_lines(found), f"fit it: sfumato complete {quote(found.folder)} --out model"):
        console().print(line, soft_wrap=True)
