"""``sfumato complete`` of values that were privatised, alone or beside raw ones of a site's own."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from sfumato.cli import options
from sfumato.cli.common import console, reading, save_or_rescue, say_what_was_written
from sfumato.cli.complete_order import SolverName
from sfumato.cli.engines import Engines
from sfumato.cli.options import ModelName
from sfumato.cli.pages import report_in
from sfumato.errors import SettingError

if TYPE_CHECKING:
    from rich.console import Console

    from sfumato.data.privatised import Privatised
    from sfumato.estimators.base import TensorEstimator


@dataclass(frozen=True)
class Received:
    """What to fit, as asked for on the command line."""

    file: Path
    others: tuple[Path, ...]
    columns: options.Columns
    model: ModelName
    rank: int | None
    ranks: list[int] | None
    seed: int
    threads: int | None

    def refuse(
        self,
        solver: SolverName,
        rounds: int | None,
        test: float | None,
        engines: Engines,
        private: Mapping[str, object],
    ) -> None:
        """Refuse what makes no sense here, before anything is read."""
        named = [flag for flag, value in private.items() if value is not None and flag != "--force"]
        if named:
            raise SettingError(
                f"values that were privatised need no budget: leave {', '.join(named)} out"
            )
        if solver != SolverName.als or rounds is not None:
            raise SettingError(
                "values that were privatised are fitted by als: leave --solver and --rounds out"
            )
        if test is not None:
            raise SettingError(
                "--test would measure errors at noisy values: leave it out, and compare predictions "
                "with clean values where there are some"
            )
        if engines != Engines():
            raise SettingError(
                "values that were privatised are fitted in this process: leave --engine out"
            )

    def complete(self, out: Path, force: bool, notes: Console, as_json: bool, *, report: bool) -> None:
        from sfumato.report.progress import FitProgress
        from sfumato.store import check_destination

        check_destination(out)
        entries = self._read(notes)
        with FitProgress(notes) as progress:
            progress.begin("fit behind the noise")
            fitted = self._estimator(progress).fit(entries)
        written = [save_or_rescue(lambda folder: fitted.save(folder, force=force), out)]
        if report:
            written += report_in(out, fitted)
        self._say(entries, fitted, written, as_json)

    def _read(self, notes: Console) -> Privatised:
        from sfumato.data.io.privatised_files import is_privatised, read_privatised
        from sfumato.data.privatised import together

        parts: list[Any] = []
        for number, file in enumerate((self.file, *self.others)):
            with reading(file.name, notes):
                if is_privatised(file):
                    parts.append(read_privatised(file))
                elif number == 0:
                    parts.append(self.columns.read(file))
                else:
                    raise SettingError(
                        f"{file} holds no privatised values: --others are files that sfumato "
                        "privatise wrote"
                    )
        return parts[0] if len(parts) == 1 else together(*parts)

    def _estimator(self, progress: Any) -> TensorEstimator:
        from sfumato.estimators.completion import CP, Tucker

        settings: dict[str, Any] = {"seed": self.seed, "threads": self.threads, "progress": progress}
        if self.model == ModelName.cp:
            return CP(self.rank, **settings)
        return Tucker(self.ranks or self.rank, **settings)

    def _say(
        self, entries: Privatised, fitted: TensorEstimator, written: list[Path], as_json: bool
    ) -> None:
        guarantee = fitted.guarantee_
        clean = int((entries.numbers < 0).sum())
        if as_json:
            said = {
                "files": [str(file) for file in (self.file, *self.others)],
                "modes": {mode.name: mode.size for mode in entries.modes},
                "entries": entries.n_entries,
                "clean": clean,
                "ranks": list(fitted.model_.ranks),
                "private": guarantee is not None,
                "guarantee": None if guarantee is None else guarantee.told(),
                "written": [str(path) for path in written],
            }
            typer.echo(json.dumps(said))
            return
        screen = console()
        sizes = " x ".join(f"{mode.name} {mode.size:,}" for mode in entries.modes)
        noisy = entries.n_entries - clean
        screen.print(f"{sizes}: {noisy:,} noisy values" + (f", {clean:,} clean ones" if clean else ""))
        for passed, here in entries.parts():
            if passed is not None:
                screen.print(f"  {int(here.sum()):,} by {passed.in_words}")
        if guarantee is not None:
            screen.print(str(guarantee))
        else:
            screen.print(
                "NOT PRIVATE: raw values were fitted as well. The model and its predictions stay with "
                "whoever holds these; there is no release"
            )
        say_what_was_written(screen, written)
