"""What somebody has chosen on the page, read field by field, with what is wrong beside each field."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import isfinite, prod

from sfumato.data.tensor import TIME_BINS

STEPS = ("columns", "protect", "public", "budget")
_FIELDS = {  # of each step; those of columns have the column's number behind a dash
    "columns": ("role", "bin"),
    "protect": ("unit", "local", "most"),
    "public": ("loss", "low", "high", "size", "known", "labels", "entries", "spread", "duplicates"),
    "budget": ("goal", "epsilon", "error", "odds", "delta", "test", "limit"),
}
LOSSES = {
    "squared": "numbers, such as marks or measurements",
    "poisson": "counts: 0, 1, 2 and so on",
    "logistic": "yes or no, written 1 or 0",
}
DUPLICATES = {
    "mean": "take their mean",
    "sum": "add them up",
    "last": "take the last one",
    "error": "stop, and say so",
}
KNOWN = {
    "range": "they are numbered 1, 2, 3 and so on",
    "file": "those in the file, which everyone knows",
    "list": "I list them",
}
_LARGEST = 10**12
_MOST_LEVELS = 10_000_000
_MOST_LETTERS = 4_000_000  # of labels that are listed
_SHOWN = 40


class Wrong(Exception):
    """What is wrong with one field, in words for whoever filled it in."""


@dataclass(frozen=True)
class Known:
    """How many levels of a mode there are, as everyone knows, and which."""

    size: int
    how: str  # "range", "file", "list", or "owners": as many at most
    labels: tuple[str, ...] = ()


@dataclass(frozen=True)
class Choices:
    """All that a fit is asked for."""

    modes: tuple[str, ...]
    value: str
    bins: Mapping[str, str]
    unit: str
    max_entries: int | None
    local: str | None
    loss: str
    bounds: tuple[float, float]
    duplicates: str
    known: Mapping[str, Known]
    entries: int
    spread: float | None
    goal: str
    wanted: float
    delta: float
    limit: float | None
    test: float | None


@dataclass
class Form:
    """The fields of the page as they were sent, and what is wrong with them."""

    file: str
    columns: Sequence[str]
    raw: Mapping[str, str]
    errors: dict[str, str] = field(default_factory=dict)

    @contextmanager
    def telling(self, name: str) -> Iterator[None]:
        try:
            yield
        except Wrong as error:
            self.errors.setdefault(name, str(error))

    def text(self, name: str, usual: str = "") -> str:
        return self.raw.get(name, usual).strip()

    # -- what fields hold -------------------------------------------------------------------------

    def choice(self, name: str, known: Collection[str], usual: str = "") -> str:
        said = self.text(name, usual)
        if said in known:
            return said
        self.errors.setdefault(name, "choose one of these")
        return next(iter(known), "")

    def number(self, name: str, low: float, high: float, *, open_low: bool = False) -> float:
        """A number within bounds; where it is none, the field is marked and any number is given back."""
        with self.telling(name):
            number = _number(self.text(name))
            if not low <= number <= high or (open_low and number == low):
                least = f"above {low:g}" if open_low else f"{low:g} or more"
                most = f", {high:g} at most" if high < _LARGEST else ""
                raise Wrong(f"this must be {least}{most}")
            return number
        return 1.0

    def count(self, name: str, low: int, high: int = _LARGEST) -> int:
        with self.telling(name):
            said = self.text(name).replace(",", "").replace(" ", "")
            if not said:
                raise Wrong("type a whole number, which everyone may know")
            if not (said.isascii() and said.isdigit() and len(said) <= 15):
                raise Wrong(f"this must be a whole number, got {_cut(said)}")
            if not low <= int(said) <= high:
                raise Wrong(f"this must be a whole number from {low:,} to {high:,}")
            return int(said)
        return low

    def optional(self, name: str, low: float, high: float) -> float | None:
        return self.number(name, low, high, open_low=True) if self.text(name) else None

    # -- step by step -----------------------------------------------------------------------------

    def later(self, reached: int) -> dict[str, str]:
        """Fields of steps that are not shown yet, which are kept."""
        names = {name for step in STEPS[reached + 1 :] for name in _FIELDS[step]}
        return {name: said for name, said in self.raw.items() if name.partition("-")[0] in names}

    @property
    def places(self) -> dict[str, int]:
        """The modes, with the numbers of their columns."""
        return {c: m for m, c in enumerate(self.columns) if self.text(f"role-{m}") == "mode"}

    @property
    def modes(self) -> list[str]:
        return list(self.places)

    @property
    def values(self) -> list[str]:
        return [c for m, c in enumerate(self.columns) if self.text(f"role-{m}") == "value"]

    @property
    def bins(self) -> dict[str, str]:
        chosen = {c: self.text(f"bin-{m}") for m, c in enumerate(self.columns) if c in self.modes}
        return {column: bin for column, bin in chosen.items() if bin}

    def units(self) -> dict[str, str]:
        """What can be protected, in the words of the data."""
        modes, what = self.modes, (self.values or ["value"])[0]
        said = {
            f"mode:{m}": f"Everything about one {mode}: all entries, and whether it is there at all"
            for mode, m in self.places.items()
            if mode not in self.bins
        }
        where = " and ".join(modes)
        said["entry"] = f"One entry: one {what} of a {where}, and whether it is there at all"
        said["value"] = f"One {what}: how large it is, while everyone may know that it is there"
        said |= {
            f"values:{m}": f"Some {what} values of one {mode}: how large they are, not where they are"
            for mode, m in self.places.items()
            if mode not in self.bins
        }
        return said

    def unit(self) -> str:
        """The unit as a fit is asked for it."""
        chosen = self.text("unit")
        kind, _, place = chosen.partition(":")
        if chosen not in self.units():
            return ""
        if not place:
            return chosen
        name = self.columns[int(place)]
        return name if kind == "mode" else f"values:{name}"

    @property
    def owners(self) -> str | None:
        """The mode of people whose rows stay with them."""
        unit = self.unit()
        if unit in self.modes:
            return unit
        local = self.text("local")
        return local if unit == "entry" and local in self.modes else None

    @property
    def hides_presence(self) -> bool:
        """Whether it is protected who is there, so that labels have to be public."""
        return self.unit() in (*self.modes, "entry")

    def check_columns(self) -> None:
        modes, values = self.modes, self.values
        for m, column in enumerate(self.columns):
            self.choice(f"role-{m}", ("", "mode", "value"))
            self.choice(f"bin-{m}", ("", *TIME_BINS))
            if column in (*modes, *values) and not (column.strip() and column.isprintable()):
                self.errors[f"role-{m}"] = "this name is empty or cannot be printed: rename the column"
            if column in modes and "=" in column:
                self.errors[f"role-{m}"] = "a mode's name may not hold '=': rename the column"
            if column in modes and (column in ("value", "entry") or column.startswith("values:")):
                self.errors[f"role-{m}"] = f"{column!r} has a meaning of its own here: rename the column"
        if len(modes) < 2:
            self.errors["columns"] = "mark two columns or more that say what an entry is about"
        elif len(values) != 1:
            self.errors["columns"] = "mark the one column that holds the value"

    def check_protect(self) -> None:
        unit = self.choice("unit", self.units())
        if "unit" in self.errors:
            self.errors["unit"] = "say what is to be protected"
        if unit.startswith("values:"):
            self.count("most", 1)
        if unit == "entry":
            self.choice("local", ("", *self.modes))

    def check_public(self) -> None:
        self._bounds()
        known = self._known()
        cells = prod(levels.size for levels in known.values())
        entries = self.count("entries", 1)
        if not self.errors and entries > cells:
            self.errors["entries"] = f"there are only {cells:,} cells: this cannot be more"
        self.optional("spread", 0, _LARGEST)
        self.choice("duplicates", DUPLICATES, "mean")

    def _bounds(self) -> tuple[float, float]:
        loss = self.choice("loss", LOSSES, "squared")
        if loss == "logistic":
            return 0.0, 1.0
        low = 0.0 if loss == "poisson" else self.number("low", -_LARGEST, _LARGEST)
        high = self.number("high", -_LARGEST, _LARGEST)
        if "low" not in self.errors and "high" not in self.errors and low >= high:
            self.errors["high"] = "the highest value must be above the lowest"
        return low, high

    def _known(self) -> dict[str, Known]:
        return {mode: self._known_of(m, mode) for mode, m in self.places.items()}

    def _known_of(self, m: int, mode: str) -> Known:
        if mode == self.owners:
            return Known(self.count(f"size-{m}", 2, _MOST_LEVELS), "owners")
        asked = self.hides_presence and mode not in self.bins
        how = self.choice(f"known-{m}", KNOWN) if asked else "file"
        if how != "list":
            return Known(self.count(f"size-{m}", 2, _MOST_LEVELS), how)
        labels = tuple(line.strip() for line in self.text(f"labels-{m}").splitlines() if line.strip())
        with self.telling(f"labels-{m}"):
            if len(set(labels)) < 2:
                raise Wrong("list two labels or more, one in each line")
            if len(set(labels)) < len(labels):
                twice = next(label for label in labels if labels.count(label) > 1)
                raise Wrong(f"{_cut(twice)} is listed twice")
        return Known(max(2, len(labels)), "list", labels)

    def check_budget(self) -> None:
        goal = self.choice("goal", ("epsilon", "error", "odds"), "epsilon")
        low = {"epsilon": 0.0, "error": 0.0, "odds": 1.0}[goal]
        self.number(goal, low, {"epsilon": 1e4, "error": _LARGEST, "odds": 1e9}[goal], open_low=True)
        self.number("delta", 0, 0.01)
        self.optional("limit", 0, 1e6)
        if self.optional("test", 0, 0.9) is not None and self.number("test", 0, 0.9) < 0.001:
            self.errors.setdefault("test", "hold out 0.001 or more")

    def checked(self, upto: str) -> str | None:
        """The first step up to one that something is wrong with; None where all is well."""
        for step in STEPS[: STEPS.index(upto) + 1]:
            getattr(self, f"check_{step}")()
            if self.errors:
                return step
        return None

    def choices(self) -> Choices:
        """All of it, of a form that was checked."""
        unit, goal = self.unit(), self.text("goal", "epsilon")
        return Choices(
            modes=tuple(self.modes),
            value=self.values[0],
            bins=self.bins,
            unit=unit,
            max_entries=self.count("most", 1) if unit.startswith("values:") else None,
            local=self.owners if unit == "entry" else None,
            loss=self.text("loss", "squared"),
            bounds=self._bounds(),
            duplicates=self.text("duplicates", "mean"),
            known=self._known(),
            entries=self.count("entries", 1),
            spread=self.optional("spread", 0, _LARGEST),
            goal=goal,
            wanted=self.number(goal, 0, _LARGEST),
            delta=self.number("delta", 0, 1),
            limit=self.optional("limit", 0, 1e6),
            test=self.optional("test", 0, 1),
        )


def _number(said: str) -> float:
    if not said:
        raise Wrong("type a number")
    try:
        number = float(said)
    except ValueError:
        raise Wrong(f"this must be a number, got {_cut(said)}") from None
    if not isfinite(number):
        raise Wrong("this must be a finite number")
    return number


def _cut(said: str) -> str:
    return repr(said if len(said) <= _SHOWN else said[: _SHOWN - 1] + "…")
