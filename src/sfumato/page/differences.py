"""What a file holds other than was said of it: for the holder alone, before anything is spent.

Nothing of it reaches a plan, a fit, its settings or a ledger: those know what was typed.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np

from sfumato.data.io.files import identity
from sfumato.data.io.read import read
from sfumato.data.tensor import SparseTensor
from sfumato.errors import SfumatoError
from sfumato.page.choices import Choices, Known

_ROUND = 1.5  # times: a number that was rounded is not told of
_ROUND_OWNERS = 2.0  # who are there at most


class _Said(NamedTuple):
    """All that the file is held against."""

    modes: tuple[str, ...]
    value: str
    bins: tuple[tuple[str, str], ...]
    bounds: tuple[float, float]
    known: tuple[Known, ...]
    entries: int


def differences(file: Path, choices: Choices) -> tuple[str, ...]:
    """What is told of a file; nothing where all is as it was said."""
    known = tuple(choices.known[mode] for mode in choices.modes)
    bins = tuple(choices.bins.items())
    said = _Said(choices.modes, choices.value, bins, choices.bounds, known, choices.entries)
    return _told(file, identity(file), said)


@lru_cache(maxsize=32)
def _told(file: Path, _: tuple[int, int, int], said: _Said) -> tuple[str, ...]:
    try:
        entries = read(file, said.modes, said.value, bins=dict(said.bins))
    except SfumatoError as error:
        return (f"the file cannot be read like this: {error}",)
    return (*_labels(entries, said), *_sizes(entries, said), *_values(entries, said.bounds))


def _labels(entries: SparseTensor, said: _Said) -> Iterator[str]:
    """Entries that a fit leaves out, as their labels are not public."""
    for m, (mode, known) in enumerate(zip(entries.modes, said.known, strict=True)):
        if known.how not in ("range", "list"):
            continue
        is_list = known.how == "list"
        public = set(known.labels) if is_list else set(map(str, range(1, known.size + 1)))
        there = np.array([str(mode.label(level)) in public for level in range(mode.size)])
        kept = int(there[entries.coordinates[m]].sum())
        if kept < entries.n_entries:
            of = "of your list" if is_list else f"from 1 to {known.size:,}"
            have = f"{kept:,} of {entries.n_entries:,} entries have labels of {mode.name} {of}"
            yield f"{have}: the fit leaves {'all others' if kept else 'all entries'} out"


def _sizes(entries: SparseTensor, said: _Said) -> Iterator[str]:
    """Numbers that the plan is made for."""
    for mode, known in zip(entries.modes, said.known, strict=True):
        if known.how == "owners" and mode.size > known.size:
            more = f"more than the {known.size:,} that you said there are at most"
            yield f"the file has {mode.size:,} levels of {mode.name}, {more}: the fit would refuse it"
        elif known.how in ("file", "owners"):
            far = _ROUND_OWNERS if known.how == "owners" else _ROUND
            if _differ(mode.size, known.size, far):
                has = f"the file has {mode.size:,} levels of {mode.name}"
                yield f"{has}, you said {known.size:,}: the plan is for another table"
    if _differ(entries.n_entries, said.entries, _ROUND):
        has = f"the file has {entries.n_entries:,} entries"
        yield f"{has}, you said about {said.entries:,}: the plan is for another table"


def _differ(there: int, said: int, far: float) -> bool:
    return max(there, said) > far * min(there, said)


def _values(entries: SparseTensor, bounds: tuple[float, float]) -> Iterator[str]:
    """Values that are not fitted as they are."""
    (low, high), values = bounds, entries.values
    outside, none = int(((values < low) | (values > high)).sum()), int(np.isnan(values).sum())
    whole = f"of {entries.n_entries:,} values"
    if outside:
        yield (
            f"{outside:,} {whole} lie outside {low:g} to {high:g}: they are cut off there, and errors "
            "at held-out entries are measured against what is left of them"
        )
    if none:
        yield f"{none:,} {whole} are missing or no numbers: each counts as {(low + high) / 2:g}"
