"""Choices as the words of ``sfumato complete``, and as what the planner takes."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sfumato.errors import SettingError
from sfumato.estimators.planning import PlanOrder
from sfumato.page.choices import Choices

SETTINGS_FORMAT = 1
_MOST_SETTINGS = 500


@dataclass(frozen=True)
class Places:
    """Where a fit reads and writes; a ledger of its own where none is named."""

    file: Path
    out: Path
    ledger: Path | None = None
    new_ledger: bool = True

    def labels(self, mode: int) -> Path:
        """The file of a mode's public labels."""
        return self.out.parent / f"labels-{mode + 1}.txt"


def words(choices: Choices, epsilon: float, places: Places) -> list[str]:
    """What would be typed after ``sfumato`` for this fit."""
    bins = [f"{mode}={bin}" for mode, bin in choices.bins.items()]
    said = ["complete", str(places.file), *_flag("--modes", *choices.modes)]
    said += [*_flag("--value", choices.value), *_flag("--bin", *bins)]
    if choices.loss != "logistic":
        said += _flag("--bounds", *(repr(bound) for bound in choices.bounds))
    if choices.loss != "squared":
        said += _flag("--loss", choices.loss)
    said += [*_flag("--duplicates", choices.duplicates), *_flag("--epsilon", repr(epsilon))]
    said += [*_one("--delta", choices.delta or None), *_flag("--unit", choices.unit)]
    said += [*_one("--max-entries", choices.max_entries), *_one("--local", choices.local)]
    said += [*_known(choices, places), *_one("--public-entries", choices.entries)]
    said += _one("--public-spread", choices.spread)
    if places.ledger is not None:
        said += _flag("--ledger", str(places.ledger))
        said += _one("--ledger-limit", choices.limit if places.new_ledger else None)
    return [*said, *_one("--test", choices.test), *_flag("--out", str(places.out))]


def _flag(name: str, *values: str) -> list[str]:
    """A flag with its words; one that begins like a flag is tied to its own."""
    if any(value.startswith("-") for value in values) and name != "--bounds":
        return [f"{name}={value}" for value in values]
    return [name, *values] if values else []


def _one(name: str, value: object) -> list[str]:
    if value is None:
        return []
    return _flag(name, repr(value) if isinstance(value, float) else str(value))


def _known(choices: Choices, places: Places) -> list[str]:
    """Who is there, as far as everyone knows."""
    listed = []
    for m, (mode, known) in enumerate(choices.known.items()):
        if known.how == "range":
            listed.append(f"{mode}=1..{known.size}")
        elif known.how == "list":
            listed.append(f"{mode}={places.labels(m)}")
    owners = [known.size for known in choices.known.values() if known.how == "owners"]
    flags = ["--labels-are-public"] if reads_labels(choices) else []
    return [
        *flags,
        *_flag("--public-labels", *listed),
        *_one("--public-units", next(iter(owners), None)),
    ]


def reads_labels(choices: Choices) -> bool:
    """Whether labels in the file are declared to be known to everyone."""
    hidden = choices.unit in (*choices.modes, "entry")
    return hidden and any(known.how == "file" for known in choices.known.values())


def command_line(said: Sequence[str]) -> str:
    """The words as a shell takes them, a line for each flag."""
    lines = [["sfumato"]]
    for word in said:
        if word.startswith("--"):
            lines.append([])
        lines[-1].append(word)
    return " \\\n    ".join(shlex.join(line) for line in lines) + "\n"


def write_labels(choices: Choices, places: Places) -> None:
    """The labels that were listed, in the files that the words name."""
    for m, known in enumerate(choices.known.values()):
        if known.how == "list":
            places.labels(m).write_text("".join(f"{label}\n" for label in known.labels), "utf-8")


def plan_order(choices: Choices) -> PlanOrder:
    """What to plan for, with the epsilon that a target asks for where there is one."""
    epsilon = choices.wanted if choices.goal == "epsilon" else None
    targets = {"error": "rmse", "odds": "odds"}
    target = {} if epsilon is not None else {targets[choices.goal]: choices.wanted}
    return PlanOrder.within(
        target,
        epsilon=epsilon,
        sizes=[known.size for known in choices.known.values()],
        entries=choices.entries,
        delta=choices.delta,
        unit=choices.unit,
        names=choices.modes,
        bins=[f"{mode}={bin}" for mode, bin in choices.bins.items()],
        local=choices.local or "auto",
        max_entries=choices.max_entries,
        bounds=choices.bounds,
        spread=choices.spread,
        loss=choices.loss,
    )


# -- as a file of settings ------------------------------------------------------------------------


@dataclass(frozen=True)
class Settings:
    """The fields of the page, to be opened on it again with the same columns."""

    file: str
    columns: tuple[str, ...]
    fields: Mapping[str, str]

    def text(self) -> str:
        facts = {"file": self.file, "columns": list(self.columns), "fields": dict(self.fields)}
        return json.dumps({"sfumato_page": SETTINGS_FORMAT, **facts}, indent=2) + "\n"

    @classmethod
    def of(cls, text: bytes) -> Settings:
        """What a file of settings says; whatever is none is an error."""
        try:
            found: Any = json.loads(text)
            file, columns, fields = found["file"], found["columns"], found["fields"]
            known = found["sfumato_page"] == SETTINGS_FORMAT and len(fields) <= _MOST_SETTINGS
            words = [file, *columns, *fields, *fields.values()]
            "".join(words).encode()  # no halves of letters, which no page can show
            if not known or not all(isinstance(word, str) for word in words):
                raise SettingError("it is of another version, or holds what is no text")
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise SettingError(f"this is not a file of settings that the page wrote: {error}") from error
        return cls(file, tuple(columns), fields)
