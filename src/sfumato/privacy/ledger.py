"""The ledger: the only door to private data. Charge first, then draw.

A fit reserves all its charges before anything is drawn: where the limit would be passed, that is an
error and nothing has been spent. Each charge is then recorded (and, in a file, synced to disk) before
its noise is drawn, and is never taken back: a crash in the middle leaves it standing.

A ledger file is a line of JSON for what it is about, the filter that keeps its limit included
(:mod:`sfumato.privacy.filters`), then one line per charge. A last line that was cut off was never
drawn (the draw waits for the sync), so it does not count; any other damage leaves unknown what was
spent, and the file is refused. Proof: ``proofs/ledger.md``.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import reduce
from math import fsum
from operator import add
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from sfumato.checks import check_kind
from sfumato.errors import BudgetError
from sfumato.privacy.account import Account, Charged
from sfumato.privacy.budgets import ZCDP, Budget, rounded_up
from sfumato.privacy.clipping import Clipped, check_same_question
from sfumato.privacy.entropy import Entropy
from sfumato.privacy.events import Composed, Event
from sfumato.privacy.ledger_file import LedgerFile
from sfumato.privacy.mechanisms import Mechanism, Noisy, NoisyShare
from sfumato.privacy.trust import Trust
from sfumato.privacy.units import AnyUnit
from sfumato.records import record
from sfumato.types import Array

__all__ = ["BudgetError", "Charge", "Draw", "Ledger", "Reservation"]

_T = TypeVar("_T")
_Append = Callable[[dict[str, Any]], None]


@record
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
        self._process = os.getpid()
        self.used = False

    def release(self, clipped: Clipped) -> Noisy:
        """Clipped statistics with the mechanism's noise."""
        if not isinstance(clipped, Clipped):
            raise TypeError(f"only what was clipped can be released, got {type(clipped).__name__}")
        self._use()
        noisy: Noisy = self.mechanism.release(clipped, self._entropy)
        return replace(noisy, public=clipped.public)

    def sampled(self, units: int, clipped: Callable[[Array, np.random.Generator], Clipped]) -> Noisy:
        """What a random batch of units adds up to, with noise; who is in it stays secret.

        So do the random numbers that come with it, for what else an example's part depends on.
        """
        self._use()
        batch: Array = self.mechanism.batch(units, self._entropy)
        sums = clipped(batch, self._entropy.generator())
        noisy: Noisy = self.mechanism.release(sums, self._entropy)
        return noisy

    def shares(self, parts: Sequence[Clipped], trust: Trust) -> NoisyShare:
        """Statistics of some sites added up, each with the noise that a site draws under this trust."""
        if not all(isinstance(part, Clipped) for part in parts):
            raise TypeError("only what was clipped can be released")
        check_same_question(parts)
        self._use()
        drawn: Any = trust.share_of(self.mechanism)
        shares = (replace(drawn.share(part, self._entropy), public=part.public) for part in parts)
        together: NoisyShare = reduce(add, shares)
        return together

    def noise(self, number: int, bound: float, step: float) -> Array:
        """Whole steps of the mechanism's noise, for a kernel that adds them to numbers as it makes them.

        One of these changes between neighbours, by at most ``bound``.
        """
        self._use()
        noise: Array = self.mechanism.noise(number, bound, step, self._entropy)
        return noise

    def stream(self) -> np.random.Generator:
        """The noise stream of a compiled kernel, which draws as its mechanism says."""
        self._use()
        return self._entropy.generator()

    def source(self) -> Entropy:
        """Where a mechanism that is made of draws of its own takes their noise from."""
        self._use()
        return self._entropy

    def _use(self) -> None:
        _check_process(self._process)
        if self.used:
            raise BudgetError(f"{self._label!r} was charged once and cannot be drawn twice")
        self.used = True


class Ledger:
    """Charges against one data set, in memory or in a file that later fits continue.

    A ledger that is begun with a limit keeps it whatever its fits are planned by. A file keeps the limit
    that it was begun with; one without a limit takes the one given here, for fits that were planned in
    advance.

    Parameters
    ----------
    unit : unit
        What is protected.
    limit : Budget, ZCDP or None
        What the spending may reach.
    path : path or None
        Of the file; None keeps it in memory.

    Examples
    --------
    >>> import sfumato as sf
    >>> public = sf.Public(labels=True, entries=400)
    >>> privacy = sf.Privacy(
    ...     0.5, unit="entry", local=None, public=public, ledger="ratings.ledger"
    ... )
    >>> model = sf.Biases(privacy=privacy).fit(
    ...     sf.synthetic.ratings_like(30, 20, 5, 400)
    ... )
    >>> ledger = sf.Ledger(sf.Entry(), path="ratings.ledger")
    >>> ledger.fits, round(ledger.epsilon(0.0), 3)
    (1, 0.5)
    """

    def __init__(
        self,
        unit: AnyUnit,
        limit: Budget | ZCDP | None = None,
        path: str | os.PathLike[str] | None = None,
    ) -> None:
        check_kind(AnyUnit, "a unit such as sfumato.Entry()", unit=unit)
        check_kind(Budget | ZCDP | None, "a Budget or ZCDP", limit=limit)
        self.unit, self.limit = unit, limit
        self._file = None if path is None else LedgerFile(path)
        self._reserved = False
        self.account = Account(unit.key, limit)
        self._read()

    def _repr_html_(self) -> str:
        """For notebooks."""
        return self.account._repr_html_()

    @property
    def path(self) -> Path | None:
        """The file, where there is one."""
        return None if self._file is None else self._file.path

    # -- what was spent -----------------------------------------------------------------------

    @property
    def events(self) -> list[Event]:
        """Everything charged so far, in order."""
        return self.account.events

    @property
    def fits(self) -> int:
        """How many fits have charged something."""
        return self.account.fits

    @property
    def doubtful(self) -> frozenset[int]:
        """Fits that were only claimed to be private, or seeded."""
        return self.account.doubtful

    @property
    def spent(self) -> Event:
        """Everything charged so far, as one event."""
        return Composed(tuple(self.events))

    def epsilon(self, delta: float) -> float:
        """Epsilon at delta of everything charged so far, if it was planned in advance.

        Parameters
        ----------
        delta : float
            At which epsilon is asked for.

        Returns
        -------
        float
            The tightest bound that is known.
        """
        return self.account.epsilon(delta)

    def odometer(self, delta: float) -> float:
        """Epsilon at delta of everything charged so far, whatever it was planned by.

        Parameters
        ----------
        delta : float
            At which epsilon is asked for.

        Returns
        -------
        float
            Never less than :meth:`epsilon`.
        """
        return self.account.odometer(delta)

    # -- charging -----------------------------------------------------------------------------

    @contextmanager
    def reserve(
        self,
        charges: Sequence[Charge],
        entropy: Entropy,
        *,
        proven: bool = True,
        run: str = "",
        period: str = "",
    ) -> Iterator[Reservation]:
        """The charges of one fit, checked against the limit as a whole before any is drawn.

        Charges that are only claimed (``proven=False``) or whose noise is seeded are recorded as
        doubtful: a sum that they are part of promises nothing. ``run`` names a fit that can be broken
        off: reserved again under the same name, its charges that stand are not recorded again.
        ``period`` names the part of the data that this fit looks at, and nothing else of them. Where a
        unit lies in one period alone, charges of other periods do not concern it.
        """
        if self._reserved:
            raise BudgetError("another fit is charging to this ledger; try again when it has ended")
        self._reserved = True
        try:
            with self._opened() as append:
                events = [charge.mechanism.event for charge in charges]
                begun = self._standing(events, run)
                costs = self._admitted(events, append, run if begun else "", period)
                number = begun[0].fit if begun else self.fits + 1
                doubtful = not proven or entropy.seeded
                planned = [
                    Charged(number, charge.label, charge.mechanism.event, doubtful, cost, run, period)
                    for charge, cost in zip(charges, costs, strict=True)
                ]
                recorder = self._recorder(planned, append)
                reservation = Reservation(charges, entropy, recorder, len(begun))
                try:
                    yield reservation
                finally:
                    reservation.close()
        finally:
            self._reserved = False

    def _standing(self, events: list[Event], run: str) -> list[Charged]:
        """The charges of a fit that was broken off, which have to be the first of these."""
        standing = self.account.standing(run)
        if [charge.event for charge in standing] != events[: len(standing)]:
            raise BudgetError(
                f"this fit was charged to {self.path or 'this ledger'} for other draws: it cannot be "
                "gone on with. Begin anew"
            )
        return standing

    def _admitted(
        self, events: list[Event], append: _Append | None, run: str = "", period: str = ""
    ) -> list[float]:
        """What each draw costs, if all of them stay within the limit; a new file then has its header."""
        begun = self.account.begun(events)
        costs = begun.admits_rest(events, run, period) if run else begun.admits(events, period)
        new = events[len(begun.standing(run)) :]
        # A limit that this file was not begun with is kept for fits that were planned in advance.
        if costs is None or (begun.limit is None and not begun.sum_within(self.limit, new, period)):
            raise BudgetError(self._refusal(new, begun, period))
        if begun is not self.account:
            if append is not None and self._file is not None:
                append(begun.header())
                self._file.sync_folder()
            self.account = begun
        return costs

    def _refusal(self, events: list[Event], begun: Account, period: str) -> str:
        where, limit = f" of {self.path}" if self.path else "", self.limit
        delta = limit.delta if isinstance(limit, Budget) else begun.usual_delta
        planned = begun.planned(events, delta, period)
        filtered = ""
        if begun.limit is not None and begun.filter is not None:
            takes, left = begun.share_of(events), begun.left_in(period)
            filtered = f" ({left:.3g} of the limit is left, and it takes {takes:.3g})"
        spent = rounded_up(begun.epsilon(delta, period))
        return (
            f"the budget{where} is {limit}; {self.fits} earlier fits have spent epsilon "
            f"{spent}, and with this one it would be {rounded_up(planned)}"
            f"{filtered}. Nothing was drawn: use a smaller epsilon, or a ledger with a larger limit"
        )

    def _recorder(self, planned: list[Charged], append: _Append | None) -> Callable[[int, int], None]:
        """Records a planned charge by its place; what ``skipped`` ones before it cost is paid with it.

        The first draw of a fit may pay for all of them: passed over, its price is not saved.
        """

        def record(place: int, skipped: int) -> None:
            cost = fsum(each.cost for each in planned[place - skipped : place + 1])
            charged = replace(planned[place], cost=cost)
            if append is not None:
                append(charged.to_json(self.account.format))
            self.account = self.account.charged(charged)

        return record

    # -- the file -----------------------------------------------------------------------------

    @contextmanager
    def _opened(self) -> Iterator[_Append | None]:
        """Hands out what appends a record, which is on disk before it returns; None without a file."""
        if self._file is None:
            yield None
            return
        with self._file.locked():
            self._read()  # again: another process may have charged since
            yield self._file.append

    def _read(self) -> None:
        """Take over what the file says, if anything has been written to it yet."""
        account = None if self._file is None else Account.of(self._file)
        if account is None:
            return
        if account.unit != self.unit.key:
            raise BudgetError(
                f"{self.path} protects {account.unit!r}, this fit {self.unit.key!r}: they cannot add up"
            )
        if account.limit is not None and self.limit not in (None, account.limit):
            raise BudgetError(
                f"the limit of {self.path} is {account.limit}; it cannot become {self.limit}"
            )
        self.limit, self.account = account.limit or self.limit, account


class Reservation:
    """The charges of one fit, in the order in which they are to be drawn, by this process alone."""

    def __init__(
        self,
        charges: Sequence[Charge],
        entropy: Entropy,
        record: Callable[[int, int], None],
        standing: int = 0,
    ) -> None:
        self._entropy, self._record = entropy, record
        self._skipped = 0  # places passed over since the last charge
        self._standing = standing  # charges that were recorded before this reservation
        self._charges, self._place = tuple(charges), 0
        self._closed = False
        self._process = os.getpid()

    def ask(self, question: Callable[[Draw], _T], entropy: Entropy | None = None) -> _T:
        """Charge the next draw, then put the question to the data with the right to draw it.

        ``entropy`` is where its noise comes from, if not where that of the others does.
        """
        self.check_open()
        if self._place == len(self._charges):
            raise BudgetError("every charge of the plan has been drawn")
        place, self._place = self._place, self._place + 1
        try:
            if place >= self._standing:
                self._record(place, self._skipped)
                self._skipped = 0
        except BaseException:
            self.close()  # half a line may have been written, which only the next opening removes
            raise
        return question(Draw(self._charges[place], entropy or self._entropy))

    def skip(self) -> None:
        """Pass over the next draw, which is not made; what it would have paid is paid with the next."""
        if self._place >= self._standing:
            self._skipped += 1
        self._place += 1

    def check_open(self) -> None:
        """Refuse what could not be charged any more."""
        _check_process(self._process)
        if self._closed:
            raise BudgetError("this reservation has ended")

    def close(self) -> None:
        self._closed = True


def _check_process(reserved_by: int) -> None:
    """What was reserved once is drawn once: not again by a process that was forked in between."""
    if os.getpid() != reserved_by:
        raise BudgetError("this draw was reserved by another process, which alone can make it")
