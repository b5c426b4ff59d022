"""What a fit is expected to come to and what would spend: no data are touched."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import floor
from pathlib import Path

from sfumato.errors import BudgetError, SfumatoError
from sfumato.estimators.planning import PlanOrder, Row
from sfumato.page.choices import Choices
from sfumato.page.wording import plan_order
from sfumato.privacy.account import Account, read_ledger
from sfumato.privacy.budgets import Budget
from sfumato.privacy.units import AnyUnit

_PAYS = 0.99  # of the constant's error, below which a fit is worth its budget
_BESIDE = (0.3, 1.0, 3.0)  # times the epsilon that is asked for


@dataclass(frozen=True)
class Line:
    """What is expected of one budget, in the values' units."""

    epsilon: float
    asked: bool
    biases: float
    expected: float | None
    share: float  # of the constant's error, for a bar


@dataclass(frozen=True)
class Expected:
    """What the planner says of one fit."""

    epsilon: float
    method: str
    error: float | None
    band: tuple[float, float] | None
    constant: float
    lines: tuple[Line, ...]
    protects: str
    odds: tuple[str, ...]
    target: str | None
    assumed: str
    in_full: str
    pays: bool
    caveats: tuple[str, ...]


def expected(choices: Choices) -> Expected:
    """What to expect; what is wrong with public numbers is an error that says so."""
    order = _planned(_Frozen(choices))
    rows = _rows(order, order.epsilon)
    asked = next(row for row in rows if row.epsilon == order.epsilon)
    scale, found = order.scale, asked.expected
    constant = scale * asked.forecast.constant.rmse
    band = None if found is None else (constant * found.band[0], constant * found.band[1])
    return Expected(
        epsilon=order.epsilon,
        method=_in_words(asked),
        error=None if found is None else scale * found.rmse,
        band=band,
        constant=constant,
        lines=tuple(_line(row, row is asked, scale) for row in rows),
        protects=str(order.plan.task.unit),
        odds=order.plan.odds.sentences(),
        target=None if order.target is None else order.target.in_words(),
        assumed=_assumed(order),
        in_full=order.plan.explain(),
        pays=found is not None and found.ratio < _PAYS,
        caveats=order.plan.caveats,
    )


class _Frozen:
    """Choices that are found again by what they say of public numbers."""

    def __init__(self, choices: Choices) -> None:
        self.choices = choices
        self._key = repr((choices, sorted(choices.known.items())))

    def __hash__(self) -> int:
        return hash(self._key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Frozen) and self._key == other._key


@lru_cache(maxsize=32)
def _planned(choices: _Frozen) -> PlanOrder:
    order = plan_order(choices.choices)
    _ = order.plan.task.facts  # what is wrong with it is said here
    return order


def _rows(order: PlanOrder, epsilon: float) -> list[Row]:
    return [Row(order, float(f"{epsilon * times:.3g}") if times != 1 else epsilon) for times in _BESIDE]


def _line(row: Row, asked: bool, scale: float) -> Line:
    found, constant = row.expected, row.forecast.constant.rmse
    known = found or row.forecast.biases
    return Line(
        row.epsilon,
        asked,
        scale * row.forecast.biases.rmse,
        None if found is None else scale * found.rmse,
        min(1.0, known.rmse / constant),
    )


def _in_words(row: Row) -> str:
    """What is fitted, without the names of methods."""
    found = row.expected
    if row.method == "pairs":
        return "an average for each level, and what pairs of levels have in common"
    if row.slopes:
        return "an average for each level, and how each owner departs from these, which costs nothing"
    if found is not None and found.rank:
        return f"an average for each level, and {found.rank} factors of what levels have in common"
    if row.method == "constant":
        return "one average of all values"
    return "an average for each level"


def _assumed(order: PlanOrder) -> str:
    profile = order.profile
    return (
        f"of the values' variance {profile.biases:.0%} lies between levels, {profile.interactions:.0%} "
        f"in what levels have in common, and {profile.noise:.0%} nobody can predict"
    )


# -- the ledger -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Spending:
    """What a ledger says before a fit, and what it would say after it."""

    path: Path
    before: float | None  # epsilon; None where nothing was charged yet
    after: float | None
    delta: float
    fits: int
    limit: str | None
    refused: str | None
    charges: int
    room: float | None = None  # epsilon that one more fit may have, about; None without a limit

    @property
    def new(self) -> bool:
        return self.before is None


def account_of(path: Path) -> Account | None:
    """What a ledger holds; None where nothing was charged yet."""
    if not path.exists() or not path.stat().st_size:
        return None
    return read_ledger(path)


def room_in(account: Account) -> float | None:
    """Epsilon that one more fit may have within the limit, rounded down; None where there is none.

    It is that of a fit with the noise that costs the least: another may have to do with less.
    """
    kept, limit = account.filter, account.limit
    if kept is None or not isinstance(limit, Budget):
        return None
    most = kept.largest_fit(account.spent, account.fits + 1, limit.delta)
    return floor(100 * most) / 100


def spending(choices: Choices, path: Path) -> Spending:
    """What this fit would be charged, beside what was; nothing is written."""
    plan = _planned(_Frozen(choices)).plan
    unit, events = plan.task.unit, [charge.mechanism.event for charge in plan.charges]
    account, limit = (
        account_of(path),
        None if choices.limit is None else Budget(choices.limit, choices.delta),
    )
    refused = None if account is None else _other_promise(account, unit, limit)
    fresh = account or Account(unit.key, limit)
    delta = fresh.usual_delta if account is not None else choices.delta
    if refused is None and fresh.begun(events).admits(events) is None:
        refused = "this fit would pass the limit of the ledger"
    room = None if account is None else room_in(account)
    return Spending(
        path=path,
        before=None if account is None else account.epsilon(delta),
        after=None if fresh.unit != unit.key else fresh.planned(events, delta, ""),
        delta=delta,
        fits=fresh.fits,
        limit=None if fresh.limit is None else str(fresh.limit),
        refused=refused,
        charges=len(fresh.charges),
        room=room,
    )


def _other_promise(account: Account, unit: AnyUnit, limit: Budget | None) -> str | None:
    if account.unit != unit.key:
        return (
            f"this ledger is about {account.unit}, and the fit protects {unit.key}: what they spend "
            "cannot be added up. Protect the same again"
        )
    if limit not in (None, account.limit):
        has = "was begun without a limit" if account.limit is None else f"has the limit {account.limit}"
        return f"this ledger {has}, which cannot be changed: leave the field in step 5 empty"
    return None


def spending_or_refusal(choices: Choices, path: Path) -> Spending:
    """The same; a ledger that cannot be read is a refusal."""
    try:
        return spending(choices, path)
    except (BudgetError, OSError, SfumatoError) as error:
        return Spending(path, None, None, choices.delta, 0, None, str(error), 0)
