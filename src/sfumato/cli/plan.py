"""``sfumato plan``: say what a private fit would do, from public numbers alone."""

from __future__ import annotations

import json
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from sfumato.cli import options
from sfumato.cli.command import command
from sfumato.cli.common import console, say_what_was_written
from sfumato.cli.complete_order import LossName
from sfumato.errors import SettingError


class TrustName(StrEnum):
    """Who is trusted with what, as flags spell it."""

    one_owner = "one-owner"
    each_site = "each-site"
    secure_shares = "secure-shares"


@command(
    "Say what a private fit would do, and what to expect.",
    "sfumato plan --shape 6040 3883 --entries 800000 --epsilon 1 --delta 1e-6 --unit user \\",
    "    --bounds 1 5 --out plan.png",
    "sfumato plan --shape 6040 3883 --entries 800000 --target-rmse 0.93 --delta 1e-6 --unit user \\",
    "    --bounds 1 5 --spread 1.12",
    page="docs/planner.md",
)
def plan(
    shape: Annotated[
        list[int], typer.Option(metavar="INT...", help="Levels of each mode: --shape 6040 3883.")
    ],
    entries: Annotated[int, typer.Option(help="About how many entries there are.")],
    epsilon: Annotated[
        float | None, typer.Option(help="The budget; or name a target.", show_default=False)
    ] = None,
    target_rmse: Annotated[
        float | None,
        typer.Option(metavar="E", help="Instead of --epsilon: the least that is expected to reach it."),
    ] = None,
    target_share: Annotated[
        float | None,
        typer.Option(
            metavar="S",
            help="Instead: to go this share of the way from biases to a full fit without privacy.",
        ),
    ] = None,
    target_odds: Annotated[
        float | None,
        typer.Option(
            metavar="K", help="Instead: the largest with which odds of a suspicion grow K-fold at most."
        ),
    ] = None,
    delta: options.Delta = None,
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
    local: options.Local = "auto",
    max_entries: options.MaxEntries = None,
    bounds: options.Bounds = None,
    spread: Annotated[
        float | None, typer.Option(metavar="S", help="About how far values lie from their mean.")
    ] = None,
    loss: Annotated[
        LossName,
        typer.Option(
            help="What values are: numbers (squared), counts (poisson), yes or no (logistic). Errors of "
            "counts, --target-rmse and --spread are those of their roots, which are fitted."
        ),
    ] = LossName.squared,
    rank: Annotated[int | None, typer.Option(help="The largest rank to consider.")] = None,
    signal: Annotated[
        tuple[float, float] | None,
        typer.Option(
            metavar="BIASES INTERACTIONS",
            help="Shares of the values' variance that these are assumed to make up.",
        ),
    ] = None,
    trust: Annotated[
        TrustName,
        typer.Option(
            help="Where data lie with several sites: who adds noise. one-owner adds it once to the sum, "
            "each-site all of it at every site, secure-shares a share at each."
        ),
    ] = TrustName.one_owner,
    sites: Annotated[
        int | None,
        typer.Option(metavar="N", help="How many sites; the plan then says whether sharing pays."),
    ] = None,
    tolerate: Annotated[
        int | None,
        typer.Option(metavar="T", help="Of secure shares: sites that may be lost or collude; 1."),
    ] = None,
    site_entries: Annotated[
        int | None,
        typer.Option(metavar="M", help="Entries of the site that asks; an equal part by default."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            callback=options.file_for_picture,
            help="File for a picture: plan.png, or .pdf or .svg.",
        ),
    ] = None,
    as_json: options.Json = False,
) -> None:
    """Say what a private fit would do and how accurate it is expected to be, from public numbers.

    No data is read, so that it costs no privacy. Accuracy is shown for a row of budgets beside the
    private constant and private biases, under a declared assumption of what data are like.
    """
    from sfumato.cli import plan_report
    from sfumato.estimators import planning

    if spread is not None and not spread > 0:
        raise SettingError(f"--spread is how far values lie from their mean, above zero: got {spread:g}")
    targets = {"rmse": target_rmse, "share": target_share, "odds": target_odds}
    order = planning.PlanOrder.within(
        {name: wanted for name, wanted in targets.items() if wanted is not None},
        epsilon=epsilon,
        sizes=shape,
        entries=entries,
        delta=delta or 0.0,
        unit=unit,
        names=modes,
        bins=bin or (),
        local=local,
        max_entries=max_entries,
        bounds=bounds,
        spread=spread,
        loss=loss.value,
        rank=rank,
        signal=signal,
        kind=trust.value.replace("-", " "),
        sites=sites,
        tolerate=tolerate,
        site_entries=site_entries,
    )
    found = planning.rows(order)
    if out is not None:
        plan_report.draw(order, found, out)
    if as_json:
        typer.echo(json.dumps(planning.to_json(order, found)))
        return
    screen = console()
    screen.print(plan_report.text(order, found))
    if out is not None:
        say_what_was_written(screen, [out])
