"""How much code a fit passes through: functions, files, frames at once; and how long a start takes."""

from __future__ import annotations

import csv
import os
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable
from itertools import count
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NamedTuple

import sfumato as sf
from benchmarks.report import Figure, say

_PACKAGE = f"{Path(sf.__file__).parent}{os.sep}"
_BOUNDS = (-3.0, 3.0)
_UNITS = 1000
_STARTS = {
    "import sfumato": ["-c", "import sfumato"],
    "sfumato.CP": ["-c", "import sfumato; sfumato.CP"],
    "sfumato --help": ["-c", "from sfumato.cli import main; main()", "--help"],
}


class Walk(NamedTuple):
    """What was passed through."""

    functions: int
    files: int
    depth: int


class _Watch:
    """A profile function that keeps the package's functions as they are called.

    Comprehensions and lambdas have no name and count as part of what they stand in. Methods that
    dataclasses generate belong to no file, and compiled kernels and other threads do not show.
    """

    def __init__(self) -> None:
        self.called: set[CodeType] = set()
        self.depth = self.deepest = 0

    def __call__(self, frame: FrameType, event: str, _argument: Any) -> None:
        code = frame.f_code
        if not code.co_filename.startswith(_PACKAGE) or code.co_name.startswith("<"):
            return
        if event == "call":
            self.called.add(code)
            self.depth += 1
            self.deepest = max(self.deepest, self.depth)
        elif event == "return":
            self.depth -= 1

    def walk(self) -> Walk:
        return Walk(len(self.called), len({code.co_filename for code in self.called}), self.deepest)


def walked(action: Callable[[], Any]) -> Walk:
    """What an action passes through the second time, when modules are loaded and kernels compiled."""
    action()
    watch = _Watch()
    sys.setprofile(watch)
    try:
        action()
    finally:
        sys.setprofile(None)
    return watch.walk()


def run(quick: bool) -> list[Figure]:
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore", sf.PrivacyWarning)
        walks = {name: walked(action) for name, action in _actions(Path(folder)).items()}
    figures = [
        Figure(f"{name}: {what}", number, str(number))
        for name, walk in walks.items()
        for what, number in walk._asdict().items()
    ]
    return figures + [_start(name, arguments, 1 if quick else 5) for name, arguments in _STARTS.items()]


def _actions(folder: Path) -> dict[str, Callable[[], Any]]:
    tensor = _tensor()
    privacy = sf.Privacy(1.0, 1e-6, unit="user", public=sf.Public(labels=True, units=_UNITS))
    return {
        "private fit": lambda: sf.CP(privacy=privacy).fit(tensor),
        "private fit by command": _command(tensor, folder),
        "open fit": lambda: sf.CP().fit(tensor),
    }


def _tensor() -> sf.SparseTensor:
    planted = sf.synthetic.cp((20, 15, 10), 2, entries=500, modes=["user", "item", "day"])
    return sf.prepare.clip(planted.tensor, _BOUNDS)


def _command(tensor: sf.SparseTensor, folder: Path) -> Callable[[], Any]:
    """``sfumato complete`` in this process, each time to a new folder."""
    from typer.testing import CliRunner

    from sfumato.cli import app

    file, numbers = folder / "entries.csv", count()
    with file.open("w", newline="") as opened:
        rows = csv.writer(opened)
        rows.writerow((*tensor.mode_names, "rating"))
        rows.writerows(zip(*tensor.coordinates.tolist(), tensor.values.tolist(), strict=True))
    given = ("--modes", *tensor.mode_names, "--value", "rating", "--bounds", *map(str, _BOUNDS))
    promise = ("--epsilon", "1", "--delta", "1e-6", "--unit", "user")
    public = ("--labels-are-public", "--public-units", str(_UNITS))
    asked = ["complete", str(file), *given, *promise, *public, "--out"]

    def complete() -> None:
        done = CliRunner().invoke(app, [*asked, str(folder / f"model{next(numbers)}")])
        if done.exit_code:
            raise RuntimeError(f"sfumato complete failed: {done.output}")

    return complete


def _start(name: str, arguments: list[str], repetitions: int) -> Figure:
    """Seconds of a process from its start to its end, and of a processor; the best of several count."""
    runs = [_seconds([sys.executable, *arguments]) for _ in range(repetitions)]
    wall, busy = (min(seconds) for seconds in zip(*runs, strict=True))
    say(f"{name}: {wall:.2f} s")
    return Figure(f"start: {name}", wall, f"{wall:.2f} s ({busy:.2f} s of a processor)")


def _seconds(command: list[str]) -> tuple[float, float]:
    before = os.times()
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
    spent = [after - earlier for after, earlier in zip(os.times(), before, strict=True)]
    _user, _system, children_user, children_system, elapsed = spent
    return elapsed, children_user + children_system
