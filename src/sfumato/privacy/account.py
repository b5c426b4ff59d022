"""What a ledger holds: the charges of all fits, what they add up to, and what is left."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from hashlib import sha256
from math import floor, fsum, inf, isfinite
from typing import Any

from sfumato.errors import BudgetError, SettingError
from sfumato.markup import snippet
from sfumato.privacy.accounting import covers, epsilon_of
from sfumato.privacy.budgets import ZCDP, Budget, counted, rounded_up
from sfumato.privacy.events import Composed, Event, event_from_json, event_to_json
from sfumato.privacy.filters import Filter
from sfumato.privacy.ledger_file import LedgerFile, damaged

FORMAT = 2  # 1 had no filter: its sums hold for fits that were planned in advance
_USUAL_DELTA = 1e-6  # at which a ledger without a limit is told
ASSUMED = "the fits of this ledger were planned without looking at each other's releases"
ASSUMED_OF_TOTAL = f"as far as their total goes, not the limit: {ASSUMED}"
APART = ("value", "entry")  # units that lie in one period: charges of different periods do not add up


@dataclass(frozen=True)
class Charged:
    """One charge that stands; ``cost`` is what it takes of the filter.

    ``run`` names a fit that can be gone on with after a break, so that no other is taken for it.
    ``period`` names the part of the data that the fit looks at, if not at all of them.
    """

    fit: int
    label: str
    event: Event
    doubtful: bool
    cost: float = 0.0
    run: str = ""
    period: str = ""

    def to_json(self, format: int) -> dict[str, Any]:
        line = {"fit": self.fit, "label": self.label, "event": event_to_json(self.event)}
        line["doubtful"] = self.doubtful
        line |= {name: word for name in ("run", "period") if (word := getattr(self, name))}
        return line if format == 1 else {**line, "cost": _finite_or_none(self.cost)}

    @classmethod
    def from_json(cls, line: Any, format: int) -> Charged:
        fit, label, doubtful = line["fit"], line["label"], line["doubtful"]
        if type(fit) is not int or not 0 < fit < 2**53 or not isinstance(label, str):
            raise SettingError(f"not a charge: fit {fit!r}, label {label!r}")
        if not isinstance(doubtful, bool):
            raise SettingError(f"a charge is doubtful or not, got {doubtful!r}")
        cost = 0.0 if format == 1 else _number_or_inf(line["cost"])
        run, period = line.get("run", ""), line.get("period", "")
        if not isinstance(run, str) or not isinstance(period, str):
            raise SettingError(f"the names of runs and periods are words, got {run!r} and {period!r}")
        return cls(fit, label, event_from_json(line["event"]), doubtful, cost, run, period)


@dataclass(frozen=True)
class Account:
    """A ledger as it stands, of a file or in memory.

    Parameters
    ----------
    unit : key of what all its fits protect.
    limit : what they may spend together; None where there is none.
    filter : how that is kept, fixed by the first fit; None before it, and in files of version 1.
    charges : what was charged, in order.
    """

    unit: str
    limit: Budget | ZCDP | None = None
    filter: Filter | None = None
    format: int = FORMAT
    charges: tuple[Charged, ...] = ()
    name: str | None = field(default=None, compare=False)

    # -- what was spent -----------------------------------------------------------------------

    @cached_property
    def events(self) -> list[Event]:
        return [charge.event for charge in self.charges]

    @cached_property
    def fits(self) -> int:
        return max((charge.fit for charge in self.charges), default=0)

    @cached_property
    def doubtful(self) -> frozenset[int]:
        """Fits that were only claimed to be private, or seeded."""
        return frozenset(charge.fit for charge in self.charges if charge.doubtful)

    @cached_property
    def periods(self) -> tuple[str, ...]:
        """Periods that were charged apart from each other; none where their units add up."""
        named = dict.fromkeys(charge.period for charge in self.charges if charge.period)
        return tuple(named) if self.unit in APART else ()

    @cached_property
    def marks(self) -> tuple[str, ...]:
        """After each charge, what tells a ledger with these charges from another."""
        found, marks = sha256(self.unit.encode()), []
        for charge in self.charges:
            found.update(json.dumps(charge.to_json(1), sort_keys=True).encode())
            marks.append(found.hexdigest()[:16])
        return tuple(marks)

    def of_one_unit(self, fits: Collection[int] | None = None) -> list[Event]:
        """What any one unit was charged by some of the fits, or by all: one event for each period that
        counts apart.
        """
        return [
            _composed([charge for charge in part if fits is None or charge.fit in fits])
            for part in self.parts()
        ]

    def parts(self, period: str = "") -> list[tuple[Charged, ...]]:
        """What any one unit of a period was charged, fits of all data included; without a period, of
        each there is.
        """
        if self.unit not in APART:
            return [self.charges]
        return [
            tuple(charge for charge in self.charges if charge.period in ("", name))
            for name in ((period,) if period else self.periods or ("",))
        ]

    @cached_property
    def spent(self) -> float:
        """Of the filter, by the dearest period; infinite where one fit took all of it."""
        return self.spent_in()

    def spent_in(self, period: str = "") -> float:
        return max(fsum(charge.cost for charge in part) for part in self.parts(period))

    def epsilon(self, delta: float, period: str = "") -> float:
        """Epsilon at delta of everything charged to one unit, if it was planned in advance."""
        return max(epsilon_of(_composed(part), delta) for part in self.parts(period))

    def odometer(self, delta: float) -> float:
        """The same whatever the fits were planned by; infinite where nothing is known of that."""
        pure = self.epsilon(0.0)
        if self.filter is None:
            return pure
        if self.spent == inf:  # one fit, checked against the limit as a whole
            limit = self.limit
            return limit.epsilon if isinstance(limit, Budget) and delta >= limit.delta else pure
        return min(pure, self.filter.odometer(self.spent, delta))

    def telling_odometer(self, delta: float) -> float | None:
        """The odometer, where it says more than the limit does."""
        limit, most = self.limit, inf
        if isinstance(limit, Budget) and self.kept and delta >= limit.delta:
            most = limit.epsilon
        odometer = inf if self.doubtful else self.odometer(delta)
        return odometer if odometer < most else None

    @property
    def left(self) -> float:
        """Share of the limit that is left to fits of all data."""
        return self.left_in()

    def left_in(self, period: str = "") -> float:
        """The same of a period; by the filter, or in files of version 1 by the sum."""
        if self.limit is None:
            return inf
        if self.filter is not None:
            return max(0.0, 1 - self.spent_in(period) / self.filter.total)
        if isinstance(self.limit, ZCDP) or not self.charges:
            return 1.0
        return max(0.0, 1 - self.epsilon(self.limit.delta, period) / self.limit.epsilon)

    @property
    def kept(self) -> bool:
        """Whether all fits stay within the limit, whatever they are planned by."""
        return self.limit is not None and self.format == FORMAT and not self.doubtful

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What has to be true for the sum of the fits to hold."""
        if self.fits < 2:
            return ()
        planned = ASSUMED_OF_TOTAL if self.kept else ASSUMED
        return (planned, _one_period(self.unit)) if len(self.periods) > 1 else (planned,)

    # -- what more may be spent ---------------------------------------------------------------

    def begun(self, events: Sequence[Event]) -> Account:
        """The same with the filter that the first fit fixes."""
        if self.filter is not None or self.format < FORMAT:
            return self
        return replace(self, filter=Filter.within(self.limit, events))

    def admits(self, events: Sequence[Event], period: str = "") -> list[float] | None:
        """What the draws of a next fit cost; None where the limit would be passed."""
        if self.filter is None:
            return [0.0] * len(events) if self.sum_within(self.limit, events, period) else None
        costs = self.filter.costs(events, self.fits + 1)
        if self.filter.allows(self.spent_in(period) + fsum(costs)):
            return costs
        # Before the first draw nothing was released of these units: one fit may take all, and none
        # comes after it.
        if not any(self.parts(period)) and self.sum_within(self.limit, events, period):
            return [inf, *[0.0] * (len(events) - 1)]
        return None

    def standing(self, run: str) -> list[Charged]:
        """What was charged so far for a fit that can be gone on with."""
        return [charge for charge in self.charges if run and charge.run == run]

    def admits_rest(self, events: Sequence[Event], run: str, period: str = "") -> list[float] | None:
        """What the draws of a fit that was broken off cost, those that stand included; None where the
        rest would pass the limit, which others may have charged to since.
        """
        begun = self.standing(run)
        done, fit = len(begun), begun[0].fit
        if self.filter is None:
            within = self.sum_within(self.limit, events[done:], period)
            return [0.0] * len(events) if within else None
        before = replace(self, charges=tuple(c for c in self.charges if c.fit < fit))
        costs = before.admits(events, period)
        rest = 0.0 if costs is None else fsum(costs[done:])
        return costs if rest == 0 or self.filter.allows(self.spent_in(period) + rest) else None

    def planned(self, events: Sequence[Event], delta: float, period: str) -> float:
        """Epsilon at delta of these and all before of the same units, planned in advance."""
        return max(epsilon_of(_composed(part, events), delta) for part in self.parts(period))

    def share_of(self, events: Sequence[Event]) -> float:
        """The part of the limit that a next fit takes, by the filter."""
        kept = self.filter
        return inf if kept is None else fsum(kept.costs(events, self.fits + 1)) / kept.total

    def sum_within(self, limit: Budget | ZCDP | None, events: Sequence[Event], period: str = "") -> bool:
        """Whether these and all before of the same units, planned in advance, stay within a limit."""
        return limit is None or all(
            covers(limit, _composed(part, events)) for part in self.parts(period)
        )

    def charged(self, charge: Charged) -> Account:
        return replace(self, charges=(*self.charges, charge))

    # -- as lines of a file -------------------------------------------------------------------

    def header(self) -> dict[str, Any]:
        """The first line, when the first fit has fixed a filter."""
        kept = self.filter
        about = {} if kept is None else {"kind": kept.kind, "total": _finite_or_none(kept.total)}
        return {
            "sfumato_ledger": self.format,
            "unit": self.unit,
            "limit": _limit_to_json(self.limit),
            "filter": about if kept is None else {**about, "slack": kept.slack},
        }

    @classmethod
    def of(cls, file: LedgerFile) -> Account | None:
        """What a file says; None where nothing has been written to it yet."""
        records = file.records()
        if not records:
            return None
        try:
            header, *lines = records
            version = header["sfumato_ledger"]
            if version not in (1, FORMAT):
                raise BudgetError(
                    f"{file.path} is a ledger of version {version}, and this reads up to {FORMAT}"
                )
            unit, limit = header["unit"], _limit_from_json(header["limit"])
            if not isinstance(unit, str):
                raise SettingError(f"the unit is a word, got {unit!r}")
            kept = None if version == 1 else _filter_from_json(header["filter"])
            charges = tuple(Charged.from_json(line, version) for line in lines)
        except (KeyError, TypeError, ValueError, ArithmeticError, RecursionError) as error:
            raise damaged(file.path, error) from error
        return cls(unit, limit, kept, version, charges, file.path.name)

    # -- in words and JSON --------------------------------------------------------------------

    @property
    def usual_delta(self) -> float:
        """The delta at which to tell what was spent."""
        if isinstance(self.limit, Budget):
            return self.limit.delta
        return _USUAL_DELTA

    def to_json(self, delta: float | None = None) -> dict[str, Any]:
        at = self.usual_delta if delta is None else delta
        fits = [
            {
                "fit": number,
                "draws": len(charges),
                "labels": dict(Counter(charge.label for charge in charges)),
                "epsilon": _finite_or_none(epsilon_of(Composed(tuple(c.event for c in charges)), at)),
                "doubtful": charges[0].doubtful,
                "period": charges[0].period or None,
            }
            for number, charges in self._by_fit().items()
        ]
        kept = self.filter
        return {
            "unit": self.unit,
            "delta": at,
            "fits": fits,
            "apart": list(self.periods),
            "total_epsilon": None if self.doubtful else _finite_or_none(self.epsilon(at)),
            "odometer_epsilon": self.telling_odometer(at),
            "limit": _limit_to_json(self.limit),
            "limit_proven": self.kept,
            "filter": None if kept is None else kept.kind,
            "left": _finite_or_none(self.left),
            "assumptions": list(self.assumptions),
        }

    def __str__(self) -> str:
        return self.in_words()

    def _repr_html_(self) -> str:
        """For notebooks."""
        first, *rest = self.in_words().splitlines()
        return snippet(first, [line.strip().partition(": ")[::2] for line in rest])

    def in_words(self, delta: float | None = None) -> str:
        """What was spent by which fits, and what is left."""
        told = self.to_json(delta)
        at = f"at delta {rounded_up(told['delta'], 3)}" if told["delta"] else "(pure)"
        lines = [f"{self.name or 'ledger'}: {counted(self.fits, 'fit')}, protects {self.unit}"]
        for fit in told["fits"]:
            what = ", ".join(f"{times} x {label}" for label, times in fit["labels"].items())
            doubt = "; only claimed, or seeded" if fit["doubtful"] else ""
            of = f" of {fit['period']}" if fit["period"] else ""
            lines.append(f"  fit {fit['fit']}{of}: epsilon {_told(fit['epsilon'])} {at}; {what}{doubt}")
        if self.doubtful:
            lines.append("together: no total, since some fits are only claimed to be private, or seeded")
        elif self.charges:
            if self.periods:
                place = f"one of {len(self.periods)} periods, and counts there"
                lines.append(f"one {self.unit} lies in {place}:")
            odometer = told["odometer_epsilon"]
            most = f"epsilon {_told(odometer)} {at}"
            if odometer is None and self.kept:
                most = "within the limit"
            lines += [
                f"together, if planned in advance: epsilon {_told(told['total_epsilon'])} {at}",
                f"together, whatever they were planned by: {most}",
            ]
        lines += [*self._limit_in_words(), *(f"assumes: {line}" for line in told["assumptions"])]
        return "\n".join(lines)

    def _limit_in_words(self) -> list[str]:
        if self.limit is None:
            return ["limit: none"]
        holds = "for fits that were planned in advance"
        if self.kept:
            holds = "whatever the fits are planned by"
        elif self.doubtful:
            holds = "but for the fits that are only claimed to be private, or seeded"
        lines = [f"limit: {self.limit}, proven {holds}; {floor(1000 * self.left) / 10:g}% is left"]
        if self.filter is not None and self.left > 0 and isinstance(self.limit, Budget):
            most = self.filter.largest_fit(self.spent, self.fits + 1, self.limit.delta)
            law = "pure noise" if self.filter.kind == "epsilon" else "Gaussian noise"
            lines.append(f"a next fit of {law} may have epsilon {floor(1e4 * most) / 1e4:g}")
        return lines

    def _by_fit(self) -> dict[int, list[Charged]]:
        fits: dict[int, list[Charged]] = {}
        for charge in self.charges:
            fits.setdefault(charge.fit, []).append(charge)
        return fits


def read_ledger(path: str | os.PathLike[str]) -> Account:
    """What the file of a ledger says: which fits spent what, and what is left of its limit.

    Parameters
    ----------
    path : path
        That fits were given as ``ledger``.

    Returns
    -------
    Account
        What was charged; printed, it says so in words.

    Examples
    --------
    >>> import sfumato as sf
    >>> public = sf.Public(labels=True, entries=400)
    >>> spent = dict(ledger="ratings.ledger", limit=sf.Budget(2.0))
    >>> privacy = sf.Privacy(
    ...     0.5, unit="entry", method="bias", local=None, public=public, **spent
    ... )
    >>> model = sf.Biases(privacy=privacy).fit(
    ...     sf.synthetic.ratings_like(30, 20, 5, 400)
    ... )
    >>> print(sf.read_ledger("ratings.ledger"))
    ratings.ledger: 1 fit, protects entry
      fit 1: epsilon 0.5 (pure); 1 x constant, 1 x spread, 1 x entries by user, 1
          x entries by item, 2 x residuals by user, 2 x residuals by item
    together, if planned in advance: epsilon 0.5 (pure)
    together, whatever they were planned by: epsilon 0.5 (pure)
    limit: epsilon 2, proven whatever the fits are planned by; 75% is left
    a next fit of pure noise may have epsilon 1.5
    """
    file = LedgerFile(path)
    account = Account.of(file)
    if account is None:
        raise BudgetError(f"there is no ledger {os.fspath(path)!r}, or nothing was charged to it yet")
    return account


def _one_period(unit: str) -> str:
    return f"each {unit} was given to the fits of one period alone"


def _composed(charges: Sequence[Charged], events: Sequence[Event] = ()) -> Event:
    return Composed((*(charge.event for charge in charges), *events))


def _told(epsilon: float | None) -> str:
    """An epsilon in words; none stands for one without a bound."""
    return "without bound" if epsilon is None else rounded_up(epsilon)


def _finite_or_none(number: float) -> float | None:
    return number if isfinite(number) else None


def _number_or_inf(value: Any) -> float:
    """A number that is not negative; null stands for an infinite one."""
    if value is None:
        return inf
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= float(value) < inf:
        raise SettingError(f"not a number from zero on: {value!r}")
    return float(value)


def _limit_to_json(limit: Budget | ZCDP | None) -> list[float] | None:
    if limit is None:
        return None
    return [limit.rho] if isinstance(limit, ZCDP) else [limit.epsilon, limit.delta]


def _limit_from_json(limit: Any) -> Budget | ZCDP | None:
    """Epsilon and delta, or rho alone."""
    if limit is None:
        return None
    numbers = [_number_or_inf(number) for number in limit]
    return ZCDP(*numbers) if len(numbers) == 1 else Budget(*numbers)


def _filter_from_json(data: Any) -> Filter:
    return Filter(data["kind"], _number_or_inf(data["total"]), _number_or_inf(data["slack"]))
