"""``sfumato couple``: fit several tables that share modes, and save the model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from sfumato.cli import options
from sfumato.cli.command import command
from sfumato.cli.common import console, notes_unless, reading
from sfumato.cli.couple_order import (
    CoupledSolver,
    CoupleOrder,
    PrivateOrder,
    TableFlags,
    check_private_fit,
    files_by_name,
)
from sfumato.cli.couple_promise import CoupledPromise
from sfumato.cli.options import bins_by_column
from sfumato.cli.pages import Report, measured, report_in
from sfumato.cli.privacy import Spending
from sfumato.errors import SettingError

DEFAULT_COUPLED_RANK = 5


@command(
    "Fit several tables that share modes.",
    "sfumato couple ratings.csv friends.csv --modes ratings=user,film friends=user,friend \\",
    "    --value ratings=stars friends=known --absent friends=zero --test ratings=0.2 --out model",
    "sfumato predict model cells.csv --relation ratings",
    "sfumato couple ratings.csv tags.csv --modes ratings=user,film tags=film,tag \\",
    "    --value ratings=stars tags=times --bounds ratings=1,5 --public-relation tags \\",
    "    --epsilon 3 --delta 1e-6 --unit user --labels-are-public --public-units 7000 --out private",
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
        "--bounds",
        "--public-relation",
        "--public-entries",
        "--public-spread",
        "--public-step",
    ),
    page="docs/coupled.md#on-the-command-line",
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
        int | None,
        typer.Option(
            help=f"Components; by default {DEFAULT_COUPLED_RANK}, and of a private fit what its plan "
            "chooses."
        ),
    ] = None,
    solver: Annotated[
        CoupledSolver, typer.Option(help="How it is fitted.")
    ] = CoupledSolver.multiplicative,
    starts: Annotated[
        int, typer.Option(min=1, metavar="N", help="Random starts, of which the best is kept.")
    ] = 1,
    rounds: Annotated[
        int | None,
        typer.Option(
            min=1, metavar="N", help="Sweeps; of langevin and gibbs the samples that each chain keeps."
        ),
    ] = None,
    burn_in: Annotated[
        int | None,
        typer.Option(
            min=0, metavar="INT", help="Steps of langevin, sweeps of gibbs, before the first sample."
        ),
    ] = None,
    seed: options.FitSeed = 0,
    threads: options.Threads = None,
    promise: CoupledPromise,
    release: Spending,
    plan_only: Annotated[
        bool,
        typer.Option(
            "--plan-only", help="Say what a private fit would do: nothing is spent or written."
        ),
    ] = False,
    factors: options.Factors = None,
    report: Report = False,
    quiet: options.Quiet = False,
    as_json: options.Json = False,
) -> None:
    """Fit tables that share modes together, so that one fills in what another lacks, and save the model.

    Modes of the same name are the same things: users of one table are users of the other. Settings of a
    table are given by its name, --absent friends=zero; without a name, --absent zero, they are for all
    tables.

    Without --epsilon the result is not private. With it, all tables are fitted within one budget but
    those of --public-relation, which everyone knows. Name first what you most want to predict: it is
    fitted last, and takes in what all others say. The folder then holds `release`, which is safe to hand
    out, and, where rows stay with their owners, `owner`, which is not.

    With --test, errors are measured at held-out cells, beside those of a constant and of the table
    fitted by itself: so you see whether the other tables help. Where absent cells are zeros, a share is
    one of all cells. After a share was held out, the model that is saved is fitted to all entries; a
    private one stays as it is, for a second fit would cost again. At cells of a file errors are measured
    where no fit has seen them. Errors of a private fit are for you alone, and no guarantee covers them.
    """
    tables = by_table.tables(files_by_name(files), solver)
    privacy = promise.settings([table.name for table in tables], release)
    bins, format = bins_by_column(bin), None if factors is None else factors.value
    if privacy is not None:
        from sfumato.cli import couple_private

        check_private_fit(solver, starts, rounds, burn_in)
        by_table.check_private(tables)
        bounds = promise.bounds_of([table.name for table in tables])
        couple_private.carry_out(
            PrivateOrder(tables, bins, bounds, privacy, rank, seed, threads),
            couple_private.Wanted(out, release, format, quiet, as_json, plan_only, report),
        )
        return
    if plan_only:
        raise SettingError("--plan-only is about private fits: give --epsilon")
    order = CoupleOrder(
        tables,
        bins,
        DEFAULT_COUPLED_RANK if rank is None else rank,
        solver,
        starts,
        rounds,
        burn_in,
        seed,
        threads,
    )
    note = f"{order.name}: the usual rank, as none is given" if rank is None else ""
    _fit_openly(order, out, format, note, quiet=quiet, as_json=as_json, report=report)


def _fit_openly(
    order: CoupleOrder,
    out: Path,
    factors: str | None,
    note: str,
    *,
    quiet: bool,
    as_json: bool,
    report: bool,
) -> None:
    """Fit all tables without privacy, and say what came of it."""
    from sfumato.cli import couple_data, couple_fit
    from sfumato.report.text import NOT_PRIVATE
    from sfumato.store import check_destination

    check_destination(out)
    sources = couple_data.find_sources(order)
    notes = notes_unless(quiet)
    if note:
        notes.print(note)
    with reading("tables", notes):
        parts = couple_data.divide(order, sources)
    outcome = couple_fit.fit(order, parts, notes)
    written = couple_fit.save(outcome, out, factors)
    if report:
        results = couple_fit.all_results(outcome)
        written += report_in(out, outcome.model, measured(results))
    if as_json:
        typer.echo(json.dumps(couple_fit.to_json(order, parts, outcome, written)))
    else:
        couple_fit.print_fitted(order, parts, outcome, written, console())
    for line in couple_fit.advice(outcome):
        notes.print(line)
    typer.echo(NOT_PRIVATE, err=True)
