"""The ledger: the only door to private data. Charge first, then draw.

A fit reserves all its charges before anything is drawn: where the limit would be passed, that is an
error and nothing has been spent. Each charge is then recorded (and, in a file, synced to disk) before
its noise is drawn, and is never taken back: a crash in the middle leaves it standing.

A ledger file is a line of JSON for what it is about, then one line per charge. A last line that was
cut off was never drawn (the draw waits for the sync), so it does not count; any other damage leaves
unknown what was spent, and the file is refused. Proof: ``proofs/ledger.md``.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from sfumato.checks import as_path, check_kind
from sfumato.errors import SfumatoError
from sfumato.privacy.accounting import covers, epsilon_of
from sfumato.privacy.budget import Budget
from sfumato.privacy.clip import Clipped
from sfumato.privacy.entropy import Entropy
from sfumato.privacy.events import Composed, Event, event_from_json, event_to_json
from sfumato.privacy.mechanisms import Mechanism, Noisy
from sfumato.privacy.unit import AnyUnit

_T = TypeVar("_T")
_FORMAT = 1
_MAGIC = b'{"sfumato_ledger"'  # how every ledger file begins


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
        if not isinstance(clipped, Clipped):
            raise TypeError(f"only what was clipped can be released, got {type(clipped).__name__}")
        self._use()
        noisy: Noisy = self.mechanism.release(clipped, self._entropy)
        return noisy

    def stream(self) -> np.random.Generator:
        """The noise stream of a compiled kernel, which draws as its mechanism says."""
        self._use()
        return self._entropy.generator()

    def source(self) -> Entropy:
        """Where a mechanism that is made of draws of its own takes their noise from."""
        self._use()
        return self._entropy

    def _use(self) -> None:
        if self.used:
            raise BudgetError(f"{self._label!r} was charged once and cannot be drawn twice")
        self.used = True


class Ledger:
    """Charges against one data set, in memory or in a file that later fits continue.

    A file keeps the limit that it was begun with; one without a limit takes the one given here.
    """

    def __init__(
        self,
        unit: AnyUnit,
        limit: Budget | None = None,
        path: str | os.PathLike[str] | None = None,
    ) -> None:
        check_kind(AnyUnit, "a unit such as sfumato.Entry()", unit=unit)
        check_kind(Budget | None, "a Budget", limit=limit)
        self.unit, self.limit = unit, limit
        self.events: list[Event] = []
        self.fits = 0
        self.doubtful: set[int] = set()  # fits that were only claimed to be private, or seeded
        self._file = None if path is None else _File(as_path("path", path))
        self._reserved = False
        if self._file is not None and self._file.path.exists():
            self._read(self._file)

    @property
    def path(self) -> Path | None:
        return None if self._file is None else self._file.path

    # -- what was spent -----------------------------------------------------------------------

    @property
    def spent(self) -> Event:
        return Composed(tuple(self.events))

    def epsilon(self, delta: float) -> float:
        """Epsilon at delta of everything charged so far."""
        return epsilon_of(self.spent, delta)

    # -- charging -----------------------------------------------------------------------------

    @contextmanager
    def reserve(
        self, charges: Sequence[Charge], entropy: Entropy, *, proven: bool = True
    ) -> Iterator[Reservation]:
        """The charges of one fit, checked against the limit as a whole before any is drawn.

        Charges that are only claimed (``proven=False``) or whose noise is seeded are recorded as
        doubtful: a sum that they are part of promises nothing.
        """
        if self._reserved:
            raise BudgetError("another fit is charging to this ledger; try again when it has ended")
        self._reserved = True
        try:
            with self._opened() as append:
                planned = Composed((*self.events, *(charge.mechanism.event for charge in charges)))
                if self.limit is not None and not covers(self.limit, planned):
                    raise BudgetError(self._refusal(self.limit, planned))
                self.fits += 1
                if not (proven and entropy.exact):
                    self.doubtful.add(self.fits)
                reservation = Reservation(charges, entropy, self._recorder(append))
                try:
                    yield reservation
                finally:
                    reservation.close()
        finally:
            self._reserved = False

    def _refusal(self, limit: Budget, planned: Event) -> str:
        where = f" of {self.path}" if self.path else ""
        return (
            f"the budget{where} is {limit}; {self.fits} earlier fits have spent epsilon "
            f"{self.epsilon(limit.delta):.4g}, and with this one it would be "
            f"{epsilon_of(planned, limit.delta):.4g}. Nothing was drawn: use a smaller epsilon, "
            "or a ledger with a larger limit"
        )

    def _recorder(self, append: Callable[[dict[str, Any]], None]) -> Callable[[Charge], None]:
        def record(charge: Charge) -> None:
            event = charge.mechanism.event
            line = {"fit": self.fits, "label": charge.label, "event": event_to_json(event)}
            append({**line, "doubtful": self.fits in self.doubtful})
            self.events.append(event)

        return record

    # -- the file -----------------------------------------------------------------------------

    @contextmanager
    def _opened(self) -> Iterator[Callable[[dict[str, Any]], None]]:
        """Hands out what appends a record: on disk before it returns, or nowhere without a file."""
        if self._file is None:
            yield lambda _record: None
            return
        with self._file.locked():
            if not self._read(self._file):  # again: another process may have charged since
                limit = None if self.limit is None else [self.limit.epsilon, self.limit.delta]
                self._file.append({"sfumato_ledger": _FORMAT, "unit": self.unit.key, "limit": limit})
                self._file.sync_folder()
            yield self._file.append

    def _read(self, file: _File) -> bool:
        """Take over what the file says; False where nothing has been written to it yet."""
        try:
            records = file.records()
            if not records:
                return False
            header, *charges = records
            version, unit, limit = header["sfumato_ledger"], header["unit"], header["limit"]
            kept = None if limit is None else Budget(*limit)
            events = [event_from_json(charge["event"]) for charge in charges]
            fits = max((int(charge["fit"]) for charge in charges), default=0)
            doubtful = {int(charge["fit"]) for charge in charges if charge["doubtful"]}
        except (KeyError, TypeError, ValueError) as error:
            raise BudgetError(
                f"{file.path} is not a ledger, or is damaged: {error}. What was spent is unknown, so "
                "nothing more can be charged to it"
            ) from error
        if version != _FORMAT:
            raise BudgetError(f"{file.path} is a ledger of version {version}, this is {_FORMAT}")
        if unit != self.unit.key:
            raise BudgetError(
                f"{file.path} protects {unit!r}, this fit {self.unit.key!r}: they cannot add up"
            )
        if kept is not None and self.limit not in (None, kept):
            raise BudgetError(f"the limit of {file.path} is {kept}; it cannot become {self.limit}")
        self.limit, self.events, self.fits = kept or self.limit, events, fits
        self.doubtful = doubtful
        return True


class Reservation:
    """The charges of one fit, in the order in which they are to be drawn."""

    def __init__(
        self, charges: Sequence[Charge], entropy: Entropy, record: Callable[[Charge], None]
    ) -> None:
        self._entropy, self._record = entropy, record
        self._left = list(reversed(charges))
        self._closed = False

    def ask(self, question: Callable[[Draw], _T]) -> _T:
        """Charge the next draw, then put the question to the data with the right to draw it."""
        if self._closed:
            raise BudgetError("this reservation has ended")
        if not self._left:
            raise BudgetError("every charge of the plan has been drawn")
        charge = self._left.pop()
        try:
            self._record(charge)
        except BaseException:
            self.close()  # half a line may have been written, which only the next opening removes
            raise
        return question(Draw(charge, self._entropy))

    def close(self) -> None:
        self._closed = True


class _File:
    """Lines of JSON that are only ever appended to."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor = -1

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Open for appending, to this process alone; a cut-off last line is removed."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | getattr(os, "O_BINARY", 0)
        self._descriptor = os.open(self.path, flags, 0o666)
        try:
            _lock(self._descriptor, self.path)
            lines, cut_off = self._content()
            if cut_off:
                os.ftruncate(self._descriptor, len(lines))
            elif lines and not lines.endswith(b"\n"):
                os.write(self._descriptor, b"\n")
            yield
        finally:
            os.close(self._descriptor)

    def records(self) -> list[Any]:
        """The header and the charges; nothing if the header does not stand yet."""
        return [json.loads(line) for line in self._content()[0].decode("utf-8").splitlines()]

    def append(self, record: dict[str, Any]) -> None:
        line = json.dumps(record, default=lambda number: number.item()).encode("utf-8") + b"\n"
        if os.write(self._descriptor, line) != len(line):
            raise OSError(f"{self.path} could not be written; is the disk full?")
        os.fsync(self._descriptor)

    def sync_folder(self) -> None:
        """Make a new file's name as lasting as its content."""
        if os.name == "posix":
            folder = os.open(self.path.parent, os.O_RDONLY)
            os.fsync(folder)
            os.close(folder)

    def _content(self) -> tuple[bytes, bytes]:
        """Whole lines, and what is left of a last one that was cut off."""
        content = self.path.read_bytes()
        if content[: len(_MAGIC)] != _MAGIC[: len(content)]:
            raise BudgetError(f"{self.path} is not a ledger; it was left as it is")
        end = content.rfind(b"\n") + 1
        lines, last = content[:end], content[end:]
        try:
            json.loads(last)
        except ValueError:
            return lines, last
        return content, b""  # a whole record that lost its line end: it may have been drawn


def _lock(descriptor: int, path: Path) -> None:
    """Keep other processes from charging to the same file at the same time."""
    try:
        import fcntl
    except ImportError:  # no such locks on this system
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        raise BudgetError(f"{path} is in use by another fit; try again when it has ended") from error
