"""What a page is about, as plain records: what is shown of a model, and what only holders may see."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from sfumato.privacy.account import Account
from sfumato.privacy.guarantee import Guarantee
from sfumato.report.records import Groups, Result
from sfumato.types import Array


@dataclass(frozen=True, eq=False)
class Levels:
    """Levels of a mode that can be looked at: a row of numbers for each, one for each component.

    ``counts`` say how often levels occur, as far as that is known; ``label`` gives a level's label.
    ``empty`` is the number of places that nobody has, of which nothing is shown.
    """

    mode: str
    label: Callable[[int], object]
    rows: Array
    biases: Array | None = None
    counts: Array | None = None
    empty: int = 0


@dataclass(frozen=True, eq=False)
class Part:
    """Levels of one table: of two modes products of rows predict, where ``mean`` is there.

    All modes can be searched; where ``drawn`` names one, the rest is drawn elsewhere on the page.
    """

    name: str
    levels: tuple[Levels, ...]
    mean: float | None = None
    bounds: tuple[float, float] | None = None
    drawn: str | None = None


@dataclass(frozen=True)
class Shown:
    """A model: of a private one what its release holds, and nothing else.

    Parameters
    ----------
    title : what it is, in a few words.
    facts : names and values of what else is to be said of it.
    secret : of a model without a guarantee, why it must not be handed out.
    passed : in words, what privatised values have passed.
    expected : of a private model, what its plan expected of it.
    """

    title: str
    facts: tuple[tuple[str, str], ...]
    guarantee: Guarantee | None
    parts: tuple[Part, ...] = ()
    groups: tuple[Groups, ...] = ()
    secret: str | None = None
    passed: str | None = None
    expected: Expected | None = None


@dataclass(frozen=True)
class Expected:
    """What a plan expected: the error over that of a private constant, and between which it may lie."""

    ratio: float
    low: float
    high: float

    def in_words(self) -> str:
        return (
            f"The plan expected {self.ratio:.3f} of a private constant\u2019s error, between "
            f"{self.low:.3f} and {self.high:.3f}"
        )


@dataclass(frozen=True)
class Round:
    """What one round of a fit has told of itself."""

    completed: int
    training: float | None
    objective: float | None


@dataclass(frozen=True)
class AuditRecord:
    """What an audit has found, with its curve: rates of false and right alarms, and their limits.

    ``curve`` has a row for each threshold: false alarms, the least and the most that they may be, and
    the same of right alarms. ``marked`` is the row that the bound is from.
    """

    verdict: str
    violated: bool
    epsilon: float
    delta: float
    measured: float
    confidence: float
    lines: tuple[str, ...]
    runs: int
    curve: tuple[tuple[float, ...], ...] = ()
    marked: tuple[float, ...] | None = None


@dataclass(frozen=True)
class Held:
    """What only the holder of the data may see beside a model.

    ``measures`` are other measures than errors, by predictor. ``owners`` are rows that stay with them.
    ``at`` says where errors were measured, and ``unmeasured`` how to have some where there are none.
    """

    results: tuple[Result, ...] = ()
    at: str = "held-out entries"
    unmeasured: str = ""
    remarks: tuple[str, ...] = ()
    metric: str | None = None
    measures: tuple[tuple[str, dict[str, float]], ...] = ()
    history: tuple[Round, ...] = ()
    account: Account | None = None
    audit: AuditRecord | None = None
    groups: tuple[Groups, ...] = ()
    owners: tuple[Part, ...] = ()
    facts: tuple[tuple[str, str], ...] = ()
