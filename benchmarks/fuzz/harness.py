"""Runs damaged cases in a child process and counts how each of them ended.

A *subject* is something that takes input from outside: the readers, model folders, settings. It has
kinds of input, and makes and uses one case of a kind from a seed. A case ends well where it is used or
refused with an error of sfumato's; any other exception is a raw traceback, the end of the child a crash,
and no answer within the limit a hang.
"""

from __future__ import annotations

import resource
import tempfile
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import chdir
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NamedTuple

from sfumato.errors import SfumatoError

SECONDS = 20.0  # a case that takes longer hangs
MEMORY = 6 << 30  # bytes of address space beyond which a case is refused more
GOOD = ("used", "refused")
BAD = ("traceback", "crash", "hang")


@dataclass(frozen=True)
class Subject:
    """What is attacked. ``attempt(kind, seed, folder)`` makes a case in an empty folder and uses it.

    It is a function of a module, since a child process calls it.
    """

    name: str
    kinds: tuple[str, ...]
    attempt: Callable[[str, int, Path], None]


class Case(NamedTuple):
    kind: str
    seed: int


class Finding(NamedTuple):
    """How a case ended, and the last lines of what it said."""

    case: Case
    ending: str
    words: str = ""


def cases_of(subject: Subject, number: int, seed: int = 0) -> list[Case]:
    """Cases spread evenly over the kinds; the same ones for the same seed."""
    kinds = subject.kinds
    return [Case(kinds[i % len(kinds)], seed * 1_000_003 + i // len(kinds)) for i in range(number)]


def attack(
    subject: Subject, cases: Sequence[Case], *, seconds: float = SECONDS, memory: int = MEMORY
) -> Iterator[Finding]:
    """How each case ends, in order. A child that crashed or hung is replaced."""
    context, left = get_context("spawn"), list(cases)
    while left:
        ours, theirs = context.Pipe()
        child = context.Process(target=_child, args=(theirs, subject, left, memory), daemon=True)
        child.start()
        theirs.close()
        try:
            assert ours.recv() == "ready"
            while left:
                if not ours.poll(seconds):
                    yield Finding(left.pop(0), "hang", f"no answer within {seconds:g} s")
                    break
                ending, words = ours.recv()
                yield Finding(left.pop(0), ending, words)
        except EOFError:
            child.join()
            yield Finding(left.pop(0), "crash", f"the process ended with {child.exitcode}")
        finally:
            child.kill()
            child.join()


def _child(pipe: Connection, subject: Subject, cases: Sequence[Case], memory: int) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    warnings.simplefilter("ignore")
    pipe.send("ready")
    for case in cases:
        # Whatever a case writes without being told where ends in its own folder.
        with tempfile.TemporaryDirectory(prefix="fuzz-") as folder, chdir(folder):
            pipe.send(_ending(subject, case, Path(folder)))


def _ending(subject: Subject, case: Case, folder: Path) -> tuple[str, str]:
    try:
        subject.attempt(case.kind, case.seed, folder)
    except SfumatoError as error:
        return "refused", f"{type(error).__name__}: {error}"
    except Exception:  # whatever it is: that is what is looked for
        return "traceback", traceback.format_exc(limit=-3)
    return "used", ""


def table(findings: Sequence[Finding]) -> str:
    """How often each kind of input ended in which way."""
    counts = Counter((finding.case.kind, finding.ending) for finding in findings)
    kinds = list(dict.fromkeys(finding.case.kind for finding in findings))
    width = max(len(kind) for kind in (*kinds, "all"))
    lines = [f"{'':{width}}  " + "".join(f"{ending:>11}" for ending in (*GOOD, *BAD))]
    for kind in kinds:
        cells = "".join(f"{counts[kind, ending]:>11,}" for ending in (*GOOD, *BAD))
        lines.append(f"{kind:{width}}  {cells}")
    sums = [sum(counts[kind, ending] for kind in kinds) for ending in (*GOOD, *BAD)]
    lines.append(f"{'all':{width}}  " + "".join(f"{total:>11,}" for total in sums))
    return "\n".join(lines)
