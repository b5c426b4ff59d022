"""``sfumato privatise``: noise on one's own values, before they leave."""

from __future__ import annotations

import json
from enum import StrEnum
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sfumato.cli import options
from sfumato.cli.command import command
from sfumato.cli.common import console, notes_unless, reading, say_what_was_written
from sfumato.cli.options import Duplicates
from sfumato.cli.privacy import Spending, check_releasable, labels_by_mode
from sfumato.errors import DataError, SettingError

if TYPE_CHECKING:
    from sfumato.data.privatised import Privatised

_TABLES = (".csv", ".tsv", ".parquet")


class ChannelName(StrEnum):
    auto = "auto"
    response = "response"
    geometric = "geometric"
    gaussian = "gaussian"


def _table(out: Path) -> Path:
    if out.suffix.lower() not in _TABLES:
        raise typer.BadParameter(
            f"{out} is to be a table: name a file that ends in {', '.join(_TABLES)}"
        )
    return out


@command(
    "Put noise on your own values before they leave.",
    "sfumato privatise mine.csv --modes user item --value rating --bounds 1 5 \\",
    "    --epsilon 2 --out noisy.csv",
    take_several=("--grid",),
    page="docs/local.md",
)
def privatise(
    file: options.File,
    out: Annotated[
        Path,
        typer.Option(
            metavar="FILE", callback=_table, help="Where noisy values go: .csv, .tsv or .parquet."
        ),
    ],
    *,
    columns: options.Columns,
    epsilon: Annotated[float, typer.Option(help="What one unit may be told by.")],
    delta: options.Delta = None,
    unit: Annotated[
        str,
        typer.Option(
            metavar="UNIT",
            help="What is protected: value (any other within the bounds), event (a count is one larger "
            "or smaller), or a mode (all values of one user, with --max-entries).",
        ),
    ] = "value",
    max_entries: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Values of one level that leave, at most.")
    ] = None,
    step: Annotated[
        float | None,
        typer.Option(
            metavar="S", help="Distance of values from each other, if they are not whole numbers."
        ),
    ] = None,
    channel: Annotated[
        ChannelName, typer.Option(help="What values pass; auto is what lets most through.")
    ] = ChannelName.auto,
    typical: Annotated[
        tuple[float, float] | None,
        typer.Option(
            metavar="MEAN SPREAD", help="What everyone knows values to be about; for --channel auto."
        ),
    ] = None,
    grid: Annotated[
        list[str] | None,
        typer.Option(
            metavar="MODE=FILE...",
            help="Labels that everyone knows, one per line or a range. Every cell of theirs gets a "
            "noisy value, zero where there is no entry, so that nobody sees which have one.",
        ),
    ] = None,
    duplicates: options.DuplicatePolicy = Duplicates.error,
    key: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Your secret key, made if it is not there: the same file and settings give the same "
            "noise again, and are charged once.",
        ),
    ] = None,
    spending: Spending,
    report: Annotated[
        bool,
        typer.Option("--report", help="Also write OUT.report.html, a page about what is promised."),
    ] = False,
    quiet: options.Quiet = False,
    as_json: options.Json = False,
) -> None:
    """Write the entries of FILE with noisy values, which may leave whoever holds them.

    Nobody else has to be trusted. What leaves is one noisy value for each entry, and which cells have
    one (unless --grid hides it). Bounds have to be public, not those of the data at hand. Whoever
    collects noisy files fits a model that knows the noise: `sfumato complete noisy.csv --out model`.

    The table says what its values have passed: in a file of JSON beside it, or, of a .parquet file,
    inside. Hand out both.
    """
    from sfumato.data.io.privatised_files import write_privatised
    from sfumato.estimators.showing import privatised_page
    from sfumato.fit.privatising import privatise as put_noise
    from sfumato.privacy.budgets import Budget
    from sfumato.report.page.page import write_page

    notes = notes_unless(quiet)
    check_releasable(None if spending.noise_seed is None else "seeded", spending)
    if not out.absolute().parent.is_dir():
        raise SettingError(f"cannot write {out}: there is no folder {out.absolute().parent}")
    if out.absolute() == file.absolute():
        raise SettingError("noisy values would take the place of the clean ones: name another file")
    limit = spending.ledger_limit
    with reading(file.name, notes):
        tensor = columns.read(file)
    with spending.told():
        made = put_noise(
            tensor,
            epsilon,
            delta or 0.0,
            unit=unit,
            step=step,
            max_entries=max_entries,
            channel=channel.value,
            typical=typical,
            grid=labels_by_mode(grid, "--grid") if grid else False,
            duplicates=duplicates.value,
            key=None if key is None else _key(key),
            ledger=spending.ledger,
            limit=None if limit is None else Budget(limit, delta or 0.0),
            seed=spending.noise_seed,
            sampler=spending.sampler.value,
        )
    written = write_privatised(made, out, columns.value or "value")
    if report:
        page = privatised_page(out)
        written.append(write_page(out.with_name(f"{out.name}.report.html"), page.text))
    _say(made, written, as_json)


def _key(path: Path) -> bytes:
    """The key in a file, or a new one that is written there for its owner alone."""
    import os

    from sfumato.fit.privatising import new_noise_key
    from sfumato.privacy.entropy import SECRET

    if not path.exists():
        made = new_noise_key()
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(made)
        return made
    content = path.read_bytes() if path.stat().st_size == SECRET else b""
    if len(content) != SECRET:
        raise DataError(f"{path} is no key: it has to hold {SECRET} bytes, as this command makes it")
    return content


def _say(made: Privatised, written: list[Path], as_json: bool) -> None:
    from sfumato.privacy.guarantee import Guarantee

    (passed,), (promise,) = made.passed, made.promises
    guarantee = Guarantee.from_json(dict(promise))
    if as_json:
        said: dict[str, Any] = {
            "entries": made.n_entries,
            "channel": type(passed.channel).__name__.lower(),
            "guarantee": guarantee.told(),
            "written": [str(path) for path in written],
        }
        typer.echo(json.dumps(said))
        return
    screen = console()
    screen.print(f"{made.n_entries:,} values, each by {passed.in_words}")
    screen.print(str(guarantee))
    say_what_was_written(screen, written)
    screen.print(f"fit it: sfumato complete {quote(str(written[0]))} --out model", soft_wrap=True)
