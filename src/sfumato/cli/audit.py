"""``sfumato audit``: attack what a private fit promises."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Protocol

import typer

from sfumato.cli import options
from sfumato.cli.command import command
from sfumato.cli.common import console, say_what_was_written
from sfumato.cli.options import ModelName
from sfumato.cli.privacy import Promise, Release
from sfumato.errors import SettingError

if TYPE_CHECKING:
    from rich.console import Console

    from sfumato.data.tensor import Mode, SparseTensor
    from sfumato.estimators.base import TensorEstimator
    from sfumato.fit.request import Privacy

_USUAL_SHAPE = (30, 30)
_USUAL_NAMES = ("user", "item")
_JSON, _PICTURE, _RUNS, _PAGE = "audit.json", "roc.png", "runs", "report.html"


class Outcome(Protocol):
    """What an audit of either kind says."""

    @property
    def violated(self) -> bool: ...

    def to_json(self) -> dict[str, Any]: ...

    def picture(self, path: Path) -> Path: ...

    def report(self, path: Path) -> Path: ...


@dataclass(frozen=True)
class AuditOrder:
    """An audit as asked for on the command line."""

    privacy: Privacy
    data: SparseTensor | tuple[Mode, ...]
    bounds: tuple[float, float]
    tucker: bool
    rank: int | None
    canaries: Sequence[str] | None
    one_run: int | None
    runs: int
    at_delta: float | None
    confidence: float
    sees: Sequence[str] | None
    seed: int | None
    whole_fits: bool
    out: Path | None
    processes: int | None
    report: bool = False

    def estimator(self) -> TensorEstimator:
        from sfumato.estimators.completion import CP, Tucker

        kind: Any = Tucker if self.tucker else CP
        made: TensorEstimator = kind(self.rank, privacy=self.privacy)
        return made

    def carry_out(self, tell: Callable[[str, int, int], None]) -> Outcome:
        from sfumato.auditing import audit, audit_one_run

        shared: dict[str, Any] = {
            "delta": self.at_delta,
            "confidence": self.confidence,
            "bounds": self.bounds,
            "seed": self.seed,
            "whole_fits": self.whole_fits,
            "processes": self.processes,
            "tell": tell,
        }
        if self.one_run is not None:
            if self.canaries or self.sees:
                raise SettingError("--canary and --sees are for audits of many runs, not for --one-run")
            return audit_one_run(self.estimator(), self.data, canaries=self.one_run, **shared)
        return audit(
            self.estimator(),
            self.data,
            runs=self.runs,
            canaries=self.canaries,
            sees=self.sees,
            out=None if self.out is None else self.out / _RUNS,
            **shared,
        )


def _made_up_modes(shape: Sequence[int] | None, names: Sequence[str] | None) -> tuple[Mode, ...]:
    """Modes of data that are made up: user and item, unless other names are given."""
    from sfumato.data.tensor import Mode

    sizes = tuple(shape or _USUAL_SHAPE)
    chosen = list(
        names or [*_USUAL_NAMES, *(f"mode{m + 1}" for m in range(2, len(sizes)))][: len(sizes)]
    )
    if len(chosen) != len(sizes):
        raise SettingError(f"--modes takes {len(sizes)} names, one for each size")
    return tuple(Mode(name, size) for name, size in zip(chosen, sizes, strict=True))


def _attackable(promise: Promise, bounds: tuple[float, float] | None) -> Privacy:
    """A promise to attack; an audit neither releases nor charges anything."""
    # What is only claimed may be attacked too.
    privacy = None if promise.epsilon is None else promise.settings(bounds, Release(force=True))
    if privacy is None:
        raise SettingError("say what is promised: --epsilon E (with --delta D) and --unit UNIT")
    return privacy


def _run_audit(order: AuditOrder, notes: Console) -> tuple[Outcome, list[Path]]:
    """Carry an audit out, and write what it found where a folder is named."""
    from sfumato.report.progress import FitProgress
    from sfumato.solvers.protocol import Info

    if order.out is not None:
        _check_folder(order.out)
    with FitProgress(notes) as progress:
        current = ""

        def tell(what: str, done: int, of: int) -> None:
            nonlocal current
            if what != current:
                current = what
                progress.begin(what)
            progress(done, of, Info(0))

        outcome = order.carry_out(tell)
    return outcome, [] if order.out is None else _write(outcome, order.out, report=order.report)


def _check_folder(out: Path) -> None:
    """A folder for an audit: new, empty, or an earlier one's, which is gone on with."""
    if out.exists() and not out.is_dir():
        raise SettingError(f"{out} is a file; name a folder")
    known = {_JSON, _PICTURE, _RUNS, _PAGE}
    if out.is_dir() and any(path.name not in known for path in out.iterdir()):
        raise SettingError(f"{out} holds something else than an audit; name another folder")
    out.mkdir(parents=True, exist_ok=True)


def _write(outcome: Outcome, out: Path, *, report: bool) -> list[Path]:
    from sfumato.data.io.write import replacing

    with replacing(out / _JSON) as file:
        file.write(f"{json.dumps(outcome.to_json(), indent=1)}\n".encode())
    pages = [outcome.report(out / _PAGE)] if report else []
    return [out / _JSON, outcome.picture(out / _PICTURE), *pages]


@command(
    "Attack what a private fit promises.",
    "sfumato audit --shape 6 5 5 --unit value --epsilon 0.1 --method gradient --analysis paper",
    "sfumato audit ratings.csv --modes user item --value rating --bounds 1 5 --epsilon 1 \\",
    "    --delta 1e-6 --unit entry --labels-are-public --runs 2000 --out audit",
    page="docs/audit.md",
)
def audit(
    file: Annotated[
        Path | None,
        typer.Argument(metavar="[FILE]", help="Data to attack; without it they are made up."),
    ] = None,
    *,
    shape: Annotated[
        list[int] | None,
        typer.Option(metavar="INT...", help="Levels of each mode of made-up data: --shape 30 30."),
    ] = None,
    columns: options.Columns,
    model: options.ModelKind = ModelName.cp,
    rank: Annotated[int | None, typer.Option(help="Its rank, in every mode.")] = None,
    promise: Promise,
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
        typer.Option(
            metavar="DIR",
            callback=options.folder_for_files,
            help="Folder for runs, audit.json and roc.png; an interrupted audit goes on.",
        ),
    ] = None,
    processes: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="By default one for each core.")
    ] = None,
    report: Annotated[
        bool, typer.Option("--report", help="Also write DIR/report.html, a page for you alone.")
    ] = False,
    as_json: options.Json = False,
) -> None:
    """Attack what a private fit promises, and print a lower bound on the epsilon that it really has.

    The fit is made many times on two data sets that differ in one unit, and attacks on the release try
    to tell which it was. Exits with 1 if the promise is violated. Nothing is released or charged; the
    outcome depends on the data and is for whoever holds them.
    """
    limits = columns.bounds or (None if file is not None else (-1.0, 1.0))
    privacy = _attackable(promise, limits)
    if file is not None and shape:
        raise SettingError("give a file or --shape, not both")
    if report and out is None:
        raise SettingError("--report writes a page into a folder: name it with --out")
    order = AuditOrder(
        privacy,
        _made_up_modes(shape, columns.modes) if file is None else columns.read(file),
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
        report,
    )
    outcome, written = _run_audit(order, console(stderr=True))
    if as_json:
        typer.echo(json.dumps(outcome.to_json()))
    else:
        screen = console()
        screen.print(str(outcome))
        if written:
            say_what_was_written(screen, written)
    if outcome.violated:
        raise typer.Exit(1)
