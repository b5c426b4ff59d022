"""Processor time of the command line before it computes anything: imports, reading, planning."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.report import Figure, say

BAR_HELP, BAR_KERNEL = 0.15, 1.0
PRIVATE = ("--bounds", "1", "5", "--delta", "1e-6", "--unit", "entry", "--labels-are-public")
COMPLETIONS = {
    "open": (),
    "private, pure noise": ("--epsilon", "1", *PRIVATE),
    "private, Gaussian noise": ("--epsilon", "20", *PRIVATE),
}


class Reached(NamedTuple):
    """Processor seconds of a process when it came to its first kernel, and what it had imported."""

    seconds: float
    modules: frozenset[str]


def run(quick: bool) -> list[Figure]:
    times = 2 if quick else 7
    figures = [_figure("sfumato --help", _help_seconds, times, BAR_HELP)]
    with tempfile.TemporaryDirectory() as folder:
        file = small_file(Path(folder))
        for name, options in COMPLETIONS.items():
            arguments = completion(file, options)

            def seconds(arguments: Sequence[str] = arguments) -> float:
                return until_first_kernel(arguments).seconds

            seconds()  # kernels that reading needs may have to be compiled
            figures.append(_figure(f"sfumato complete, {name}", seconds, times, BAR_KERNEL))
    return figures


def _figure(what: str, seconds: Any, times: int, bar: float) -> Figure:
    best = min(seconds() for _ in range(times))
    say(f"{what}: {best:.2f} s of processor time")
    return Figure(f"startup: {what}", best, f"{best:.2f} s", bar)


def small_file(folder: Path) -> Path:
    """Ratings of 60 users and 40 items, labelled by text."""
    lines = [f"u{e % 60},i{e * 7 % 40},{1 + e * e % 5}" for e in range(720)]
    file = folder / "ratings.csv"
    file.write_text("\n".join(["user,item,rating", *dict.fromkeys(lines)]) + "\n")
    return file


def completion(file: Path, options: Sequence[str]) -> list[str]:
    columns = ("--modes", "user", "item", "--value", "rating", "--duplicates", "mean")
    return ["complete", str(file), *columns, "--out", str(file.parent / "model"), *options]


def until_first_kernel(arguments: Sequence[str]) -> Reached:
    """Run the command in a process of its own until a fit's first kernel, or its first draw of noise."""
    command, root = [sys.executable, "-m", "benchmarks.startup", *arguments], Path(__file__).parents[1]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    try:
        seconds, modules = json.loads(done.stdout)
    except ValueError as error:
        raise RuntimeError(f"{' '.join(command)} came to no kernel:\n{done.stderr}") from error
    return Reached(seconds, frozenset(modules))


def _help_seconds() -> float:
    before = os.times()
    command = "from sfumato.cli import main; main()"
    subprocess.run([sys.executable, "-c", command, "--help"], capture_output=True, check=True)
    after = os.times()
    spent = after.children_user + after.children_system - before.children_user - before.children_system
    return float(spent)


def _stop_at_first_kernel(arguments: Sequence[str]) -> None:
    from sfumato.kernels.numba import threads

    def stop(*_: Any) -> None:
        print(json.dumps([time.process_time(), sorted(sys.modules)]), flush=True)
        os._exit(0)

    threads.run = stop  # before anybody takes it from there
    from sfumato.cli import main
    from sfumato.privacy.ledger import Draw

    Draw.release = Draw.stream = stop  # type: ignore[method-assign, assignment]
    sys.argv[1:] = arguments
    main()


if __name__ == "__main__":
    _stop_at_first_kernel(sys.argv[1:])
