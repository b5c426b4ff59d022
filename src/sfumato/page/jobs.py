"""Fits in processes of their own, each the command that somebody could type: so that it can be ended."""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sfumato.page.lifeline import PATIENCE, lifeline
from sfumato.report.progress import WATCHED

_COMMAND = "from sfumato.page.lifeline import end_with_input; end_with_input()\n"
_COMMAND += "from sfumato.cli import main; main()"
_TAIL = 64 * 1024  # bytes of the file of progress that are looked at
_FOLDER_MODE = 0o700


@dataclass(frozen=True)
class Step:
    """How far a fit is."""

    what: str
    done: int
    whole: int | None
    seconds_left: float | None


@dataclass
class Job:
    """A command of ``sfumato`` in a process of its own; its words are as typed."""

    words: Sequence[str]
    folder: Path
    id: str = field(default_factory=lambda: secrets.token_urlsafe(12))
    cancelled: bool = False
    _process: subprocess.Popen[bytes] | None = None
    _ending: threading.Lock = field(default_factory=threading.Lock)

    def start(self) -> None:
        """Begin, with what is said in files of the job's folder."""
        self.folder.mkdir(parents=True, exist_ok=True, mode=_FOLDER_MODE)
        environment = {**os.environ, WATCHED: str(self._at("progress.jsonl"))}
        with self._at("said.json").open("wb") as said, self._at("notes.txt").open("wb") as notes:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-c", _COMMAND, *self.words, "--json"],
                stdin=lifeline(),
                stdout=said,
                stderr=notes,
                env=environment,
                start_new_session=True,  # so that it and what it starts can be ended together
            )
        self._began = time.time()

    def _at(self, name: str) -> Path:
        return self.folder / name

    @property
    def state(self) -> str:
        """``running``, ``cancelled``, ``failed`` or ``done``."""
        code = self._process.poll() if self._process is not None else None
        if code is None:
            return "running"
        if code == 0:
            return "done"
        return "cancelled" if self.cancelled else "failed"

    @property
    def seconds(self) -> float:
        return time.time() - self._began

    def cancel(self) -> None:
        """End it for certain: asked first, so that it can say what stands, then killed."""
        with self._ending:
            process = self._process
            if process is None or process.poll() is not None:
                return
            self.cancelled = True
            self._signal(signal.SIGINT)
            with suppress(subprocess.TimeoutExpired):
                process.wait(PATIENCE)
            self._signal(signal.SIGKILL)  # whatever is left of it, and of what it has started
            process.wait()

    def _signal(self, number: int) -> None:
        """Send a signal to the process and all that it has started."""
        with suppress(ProcessLookupError):
            if self._process is not None:
                os.killpg(self._process.pid, number)

    def wait(self, seconds: float) -> str:
        """The state once it has ended, or when the time is over."""
        if self._process is not None:
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(seconds)
        return self.state

    # -- what it says -----------------------------------------------------------------------------

    def step(self) -> Step | None:
        """The latest step; None before the first."""
        lines = self._progress()
        if not lines:
            return None
        last = lines[-1]
        first = next(line for line in lines if line["what"] == last["what"])
        done, whole, left = last["done"], last["whole"], None
        rounds, seconds = done - first["done"], last["at"] - first["at"]
        if whole and rounds > 0:
            left = max(0.0, seconds / rounds * (whole - done))
        return Step(last["what"], done, whole, left)

    def _progress(self) -> list[dict[str, Any]]:
        path = self._at("progress.jsonl")
        if not path.exists():
            return []
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - _TAIL))
            whole = file.read().split(b"\n")[:-1]
        found = []
        for line in whole:
            with suppress(ValueError):  # the first one may be cut
                found.append(json.loads(line))
        return found

    @property
    def result(self) -> dict[str, Any]:
        """What the command has found."""
        found: dict[str, Any] = json.loads(self._at("said.json").read_text("utf-8"))
        return found

    def notes(self, kind: str) -> list[str]:
        """What it said of one kind, ``error`` or ``warning``, line by line."""
        text = self._at("notes.txt").read_text("utf-8", errors="replace")
        said = [line.removeprefix(f"{kind}: ") for line in text.splitlines() if line.startswith(kind)]
        if kind == "error" and not said:  # no sentence of our own: the last line tells most
            said = text.splitlines()[-1:] or ["it ended without a word"]
        return said
