"""The ledger: the only door to private data. Charge first, then draw.

A fit reserves all its charges before anything is drawn: where the limit would be passed, that is an
error and nothing has been spent. Each charge is then recorded (and, in a file, synced to disk) before
its noise is drawn, and is never taken back: a crash in the middle leaves it standing.

A ledger file is a line of JSON for what it is about, then one line per charge.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, TypeVar

import numpy as np

from sfumato.errors import SettingError, SfumatoError
from sfumato.privacy.accounting import covers, epsilon_of
from sfumato.privacy.budget import Budget
from sfumato.privacy.clip import Clipped
from sfumato.privacy.entropy import Entropy
from sfumato.privacy.events import Composed, Event, event_from_json, event_to_json
from sfumato.privacy.mechanisms import Mechanism, Noisy
from sfumato.privacy.unit import PrivacyUnit

_T = TypeVar("_T")
_FORMAT = 1


class BudgetError(SfumatoError):
    """A budget that does not cover what was asked for; nothing was drawn."""


@dataclass(frozen=True)
class Charge:
    """One draw of a plan: what it is for, and the mechanism that makes it."""

    label: str
    mechanism: Mechanism


class Draw:
    """The right to draw once what was charged."""

    def __init__(self, charge: Charge, entropy: Entropy) -> None:
        self.mechanism: Any = charge.mechanism
        self._label, self._entropy = charge.label, entropy
        self.used = False

    def release(self, clipped: Clipped) -> Noisy:
        """Clipped statistics with the mechanism's noise."""
        self._use()
        noisy: Noisy = self.mechanism.release(clipped, self._entropy)
        return noisy

    def stream(self) -> np.random.Generator:
        """The noise stream of a compiled kernel, which draws as its mechanism says."""
        self._use()
        return self._entropy.generator()

    def _use(self) -> None:
        if self.used:
            raise BudgetError(f"{self._label!r} was charged once and cannot be drawn twice")
        self.used = True


class Ledger:
    """Charges against one data set, in memory or in a file that later fits continue."""

    def __init__(
        self,
        unit: PrivacyUnit,
        limit: Budget | None = None,
        path: str | os.PathLike[str] | None = None,
    ) -> None:
        self.unit, self.limit = unit, limit
        self.path = None if path is None else Path(path)
        self.events: list[Event] = []
        self.fits = 0
        if self.path is not None and self.path.exists():
            self._read(self.path)

    # -- what was spent -----------------------------------------------------------------------

    @property
    def spent(self) -> Event:
        return Composed(tuple(self.events))

    def epsilon(self, delta: float) -> float:
        """Epsilon at delta of everything charged so far."""
        return epsilon_of(self.spent, delta)

    # -- charging -----------------------------------------------------------------------------

    @contextmanager
    def reserve(self, charges: Sequence[Charge], entropy: Entropy) -> Iterator[Reservation]:
        """The charges of one fit, checked against the limit as a whole before any is drawn."""
        with self._opened() as file:
            planned = Composed((*self.events, *(charge.mechanism.event for charge in charges)))
            if self.limit is not None and not covers(self.limit, planned):
                raise BudgetError(self._refusal(planned))
            self.fits += 1
            reservation = Reservation(self, charges, entropy, file)
            yield reservation

    def _refusal(self, planned: Event) -> str:
        assert self.limit is not None
        where = f" of {self.path}" if self.path else ""
        return (
            f"the budget{where} is {self.limit}; {self.fits} earlier fits have spent epsilon "
            f"{self.epsilon(self.limit.delta):.4g}, and with this one it would be "
            f"{epsilon_of(planned, self.limit.delta):.4g}. Nothing was drawn: use a smaller epsilon, "
            "or a ledger with a larger limit"
        )

    def record(self, charge: Charge, file: IO[str] | None) -> None:
        """Write a charge down; on disk before this returns."""
        event = charge.mechanism.event
        if file is not None:
            line = {"fit": self.fits, "label": charge.label, "event": event_to_json(event)}
            _write_line(file, line)
        self.events.append(event)

    # -- the file -----------------------------------------------------------------------------

    @contextmanager
    def _opened(self) -> Iterator[IO[str] | None]:
        if self.path is None:
            yield None
            return
        new = not self.path.exists()
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a", encoding="utf-8") as file:
            _lock(file, self.path)
            if not new:
                self._read(self.path)  # another process may have charged since
            elif self.path.stat().st_size == 0:
                limit = None if self.limit is None else [self.limit.epsilon, self.limit.delta]
                _write_line(file, {"sfumato_ledger": _FORMAT, "unit": self.unit.key, "limit": limit})
            yield file

    def _read(self, path: Path) -> None:
        try:
            lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
            header, charges = lines[0], lines[1:]
            if header["sfumato_ledger"] != _FORMAT:
                raise SettingError(f"{path} is a ledger of another version")
            unit, limit = header["unit"], header["limit"]
            self.events = [event_from_json(line["event"]) for line in charges]
            self.fits = max((line["fit"] for line in charges), default=0)
        except (IndexError, KeyError, TypeError, ValueError) as error:
            raise BudgetError(
                f"{path} is not a ledger, or is damaged: {error}. What was spent is unknown, so "
                "nothing more can be charged to it"
            ) from error
        if unit != self.unit.key:
            raise BudgetError(
                f"{path} protects {unit!r}, this fit {self.unit.key!r}: they cannot add up"
            )
        if limit is not None:
            self.limit = Budget(*limit)


class Reservation:
    """The charges of one fit, in the order in which they are to be drawn."""

    def __init__(
        self, ledger: Ledger, charges: Sequence[Charge], entropy: Entropy, file: IO[str] | None
    ) -> None:
        self._ledger, self._entropy, self._file = ledger, entropy, file
        self._left = list(charges)

    def ask(self, question: Callable[[Draw], _T]) -> _T:
        """Charge the next draw, then put the question to the data with the right to draw it."""
        if not self._left:
            raise BudgetError("every charge of the plan has been drawn")
        charge = self._left.pop(0)
        self._ledger.record(charge, self._file)
        return question(Draw(charge, self._entropy))


def _write_line(file: IO[str], line: dict[str, Any]) -> None:
    file.write(json.dumps(line) + "\n")
    file.flush()
    os.fsync(file.fileno())


def _lock(file: IO[str], path: Path) -> None:
    """Keep other processes from charging to the same file at the same time."""
    try:
        import fcntl
    except ImportError:  # no such locks on this system
        return
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        raise BudgetError(f"{path} is in use by another fit; try again when it has ended") from error
