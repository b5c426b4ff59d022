"""``sfumato couple``: fit several tables that share modes, and save the model."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from sfumato.cli import options
from sfumato.cli.command import command
from sfumato.cli.common import console, notes_unless, reading
from sfumato.cli.couple_order import CoupledSolver, CoupleOrder, TableFlags, files_by_name
from sfumato.cli.options import bins_by_column

DEFAULT_COUPLED_RANK = 5


@command(
    "Fit several tables that share modes.",
    "sfumato couple ratings.csv friends.csv --modes ratings=user,film friends=user,friend \\",
    "    --value ratings=stars friends=known --absent friends=zero --test ratings=0.2 --out model",
    "sfumato predict model cells.csv --relation ratings",
    take_several=(
        "--value",
        "--variable",
        "--separator",
        "--date-format",
        "--absent",
        "--structure",
        "--divergence",
        "--dispersion",
        "--duplicates",
        "--test",
    ),
)
def couple(
    files: Annotated[
        list[str],
        typer.Argument(
            metavar="NAME=FILE",
            help="Tables by name, files as for complete; come first. FILE alone is named as it is.",
        ),
    ],
    out: options.OutFolder,
    *,
    by_table: TableFlags,
    bin: options.Bins = None,
    rank: Annotated[
        int | None, typer.Option(help=f"Components; by default {DEFAULT_COUPLED_RANK}.")
    ] = None,
    solver: Annotated[
        CoupledSolver, typer.Option(help="How it is fitted.")
    ] = CoupledSolver.multiplicative,
    starts: Annotated[
        int, typer.Option(min=1, metavar="N", help="Random starts, of which the best is kept.")
    ] = 1,
    rounds: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Sweeps; of langevin the samples that each chain keeps."),
    ] = None,
    burn_in: Annotated[
        int | None, typer.Option(min=0, metavar="INT", help="Steps of langevin before the first sample.")
    ] = None,
    seed: options.FitSeed = 0,
    threads: options.Threads = None,
    factors: options.Factors = None,
    quiet: options.Quiet = False,
    as_json: options.Json = False,
) -> None:
    """Fit tables that share modes together, so that one fills in what another lacks, and save the model.

    Modes of the same name are the same things: users of one table are users of the other. Settings of a
    table are given by its name, --absent friends=zero; without a name, --absent zero, they are for all
    tables. Nothing here is private.

    With --test, errors are measured at held-out cells, beside those of a constant and of the table
    fitted by itself: so you see whether the other tables help. Where absent cells are zeros, a share is
    one of all cells. After a share was held out, the model that is saved is fitted to all entries; cells
    of a file are never part of a fit.
    """
    from sfumato.cli import couple_data, couple_fit
    from sfumato.report.text import NOT_PRIVATE
    from sfumato.store import check_destination

    order = CoupleOrder(
        by_table.tables(files_by_name(files), solver),
        bins_by_column(bin),
        DEFAULT_COUPLED_RANK if rank is None else rank,
        solver,
        starts,
        rounds,
        burn_in,
        seed,
        threads,
    )
    check_destination(out)
    sources = couple_data.find_sources(order)
    notes = notes_unless(quiet)
    if rank is None:
        notes.print(f"{order.name}: the usual rank, as none is given")
    with reading("tables", notes):
        parts = couple_data.divide(order, sources)
    outcome = couple_fit.fit(order, parts, notes)
    written = couple_fit.save(outcome, out, None if factors is None else factors.value)
    if as_json:
        typer.echo(json.dumps(couple_fit.to_json(order, parts, outcome, written)))
    else:
        couple_fit.print_fitted(order, parts, outcome, written, console())
    for line in couple_fit.advice(outcome):
        notes.print(line)
    typer.echo(NOT_PRIVATE, err=True)
