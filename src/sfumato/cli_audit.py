"""What ``sfumato audit`` does: from options to an audit, and what is printed and written of it."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from sfumato.data.tensor import Mode, SparseTensor
from sfumato.data.write import replacing
from sfumato.errors import SettingError
from sfumato.estimators import CP, TensorEstimator, Tucker
from sfumato.privacy.settings import Privacy
from sfumato.solvers.base import Info

if TYPE_CHECKING:
    from rich.console import Console

_USUAL_SHAPE = (30, 30)
_USUAL_NAMES = ("user", "item")
_JSON, _PICTURE, _RUNS = "audit.json", "roc.png", "runs"


class Outcome(Protocol):
    """What an audit of either kind says."""

    @property
    def violated(self) -> bool: ...

    def to_json(self) -> dict[str, Any]: ...

    def picture(self, path: Path) -> Path: ...


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

    def estimator(self) -> TensorEstimator:
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


def made_up_modes(shape: Sequence[int] | None, names: Sequence[str] | None) -> tuple[Mode, ...]:
    """Modes of data that are made up: user and item, unless other names are given."""
    sizes = tuple(shape or _USUAL_SHAPE)
    chosen = list(
        names or [*_USUAL_NAMES, *(f"mode{m + 1}" for m in range(2, len(sizes)))][: len(sizes)]
    )
    if len(chosen) != len(sizes):
        raise SettingError(f"--modes takes {len(sizes)} names, one for each size")
    return tuple(Mode(name, size) for name, size in zip(chosen, sizes, strict=True))


def attackable(privacy: Privacy | None) -> Privacy:
    """A promise to attack; an audit neither releases nor charges anything."""
    if privacy is None:
        raise SettingError("say what is promised: --epsilon E (with --delta D) and --unit UNIT")
    return replace(privacy, ledger=None, limit=None)


def run_audit(order: AuditOrder, notes: Console) -> tuple[Outcome, list[Path]]:
    """Carry an audit out, and write what it found where a folder is named."""
    from sfumato.report import FitProgress

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
    return outcome, [] if order.out is None else _write(outcome, order.out)


def _check_folder(out: Path) -> None:
    """A folder for an audit: new, empty, or an earlier one's, which is gone on with."""
    if out.exists() and not out.is_dir():
        raise SettingError(f"{out} is a file; name a folder")
    known = {_JSON, _PICTURE, _RUNS}
    if out.is_dir() and any(path.name not in known for path in out.iterdir()):
        raise SettingError(f"{out} holds something else than an audit; name another folder")
    out.mkdir(parents=True, exist_ok=True)


def _write(outcome: Outcome, out: Path) -> list[Path]:
    with replacing(out / _JSON) as file:
        file.write(f"{json.dumps(outcome.to_json(), indent=1)}\n".encode())
    return [out / _JSON, outcome.picture(out / _PICTURE)]
