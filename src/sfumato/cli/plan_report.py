"""What ``sfumato plan`` says: a private fit's settings and what to expect of it, before any data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from math import floor, log10, prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sfumato.data.profile import Profile
from sfumato.data.tensor import Mode
from sfumato.errors import SettingError
from sfumato.estimators.completion import CP
from sfumato.fit.admit import with_labels_of
from sfumato.fit.choose import choose
from sfumato.fit.completion import Completion
from sfumato.fit.outlook import Outlook
from sfumato.fit.plan import PrivatePlan
from sfumato.fit.planner import Expectation, Forecast, forecast, serves_factors
from sfumato.fit.request import Privacy
from sfumato.fit.sharing import Sharing, sharing
from sfumato.privacy.budgets import Budget
from sfumato.privacy.caveats import warn_of
from sfumato.privacy.clipping import check_range
from sfumato.privacy.trust import Trust
from sfumato.privacy.units import Public, Unit

if TYPE_CHECKING:
    from rich.console import Group
    from rich.table import Table

_MOST_DIGITS = 5  # behind the point: with more, a row of budgets is wider than a screen
_EPSILONS = (0.1, 0.3, 1.0, 3.0, 10.0)
_USUAL_NAMES = ("user", "item")
COSTS_NOTHING = "This costs no privacy: it follows from the numbers given, and no data is touched."
_NAMES = {"bias": "biases", "alternating": "factors", "moments": "factors"}


@dataclass(frozen=True)
class PlanOrder:
    """What to plan for, as asked for on the command line."""

    sizes: Sequence[int]
    entries: int
    epsilon: float
    delta: float
    unit: str
    names: Sequence[str] | None = None
    bins: Sequence[str] = ()
    local: str | None = "auto"
    max_entries: int | None = None
    bounds: tuple[float, float] | None = None
    spread: float | None = None
    rank: int | None = None
    signal: tuple[float, float] | None = None
    kind: str = "one owner"
    sites: int | None = None
    tolerate: int | None = None
    site_entries: int | None = None

    @cached_property
    def trust(self) -> Trust:
        """Who is trusted; of secure shares every site knows its own, so that one is tolerated."""
        if self.sites is None and self.kind != "one owner":
            raise SettingError(f"{self.kind!r} is about several sites: say how many with --sites")
        usual = 1 if self.kind == "secure shares" else 0
        tolerate = usual if self.tolerate is None else self.tolerate
        return Trust(self.kind, self.sites or 1, tolerate)  # type: ignore[arg-type]

    @cached_property
    def sharing(self) -> Sharing | None:
        """Whether it pays to share; None where there is nobody to share with."""
        if self.trust.sites == 1:
            if self.site_entries is not None:
                raise SettingError("--site-entries is about one of several sites: say --sites as well")
            return None
        if self.site_entries is not None and not 1 <= self.site_entries <= self.entries:
            raise SettingError(
                f"--site-entries must lie between 1 and --entries, {self.entries:,}, "
                f"got {self.site_entries:,}"
            )
        return sharing(
            self.plan.task.facts,
            self.budget,
            entries_of_site=self.site_entries,
            profile=self.profile,
            most=self.rank,
        )

    @cached_property
    def modes(self) -> tuple[Mode, ...]:
        sizes, count = self.sizes, len(self.sizes)
        if count < 2 or min(sizes) < 2:
            raise SettingError("--shape takes two sizes or more, each from 2 on: --shape 6040 3883")
        names = self.names or [*_USUAL_NAMES, *(f"mode{m + 1}" for m in range(2, count))][:count]
        if len(set(names)) != count or len(names) != count:
            raise SettingError(f"--modes takes {count} different names, one for each size")
        if not 1 <= self.entries <= prod(sizes):
            raise SettingError(
                f"--entries must lie between 1 and the number of cells, {prod(sizes):,}, "
                f"got {self.entries:,}"
            )
        bins = self._bins(names)
        return tuple(Mode(n, size, bin=bins.get(n)) for n, size in zip(names, sizes, strict=True))

    def _bins(self, names: Sequence[str]) -> dict[str, str]:
        pairs = [text.partition("=") for text in self.bins]
        for name, _, resolution in pairs:
            if name not in names or not resolution:
                raise SettingError(
                    f"--bin takes a mode and a bin, as in day=day; the modes are {', '.join(names)}"
                )
        return {name: resolution for name, _, resolution in pairs}

    @cached_property
    def range(self) -> tuple[float, float]:
        """The bounds; where none are given, two spreads to each side."""
        bounds = self.bounds or (-2 * (self.spread or 1.0), 2 * (self.spread or 1.0))
        check_range(*bounds)
        return bounds

    @property
    def scale(self) -> float:
        """Standard deviation of the values, as far as that is known: else one."""
        return self.spread or (self.range[1] - self.range[0]) / 4

    @cached_property
    def profile(self) -> Profile:
        if self.signal is None:
            return Profile()
        return Profile(biases=self.signal[0], interactions=self.signal[1])

    @cached_property
    def budget(self) -> Budget:
        return Budget(self.epsilon, self.delta)

    @cached_property
    def plan(self) -> PrivatePlan[Completion]:
        """What a fit with ``--method auto`` would do."""
        modes = self.modes  # what is wrong with them is said first
        public = Public(entries=self.entries, spread=self.spread, profile=self.profile)
        privacy = Privacy(
            self.epsilon,
            self.delta,
            unit=self.unit,
            max_entries=self.max_entries,
            local=None if self.local == "none" else self.local,
            public=with_labels_of(modes, public),
            trust=self.trust,
        )
        plan = CP(self.rank)._private_plan(privacy, modes, bounds=self.range, entries=self.entries)
        warn_of(plan.caveats)
        return plan


class Row:
    """One budget: what each method is expected to reach, and which one ``auto`` takes."""

    def __init__(self, order: PlanOrder, epsilon: float) -> None:
        facts, budget = order.plan.task.facts, Budget(epsilon, order.delta)
        self.epsilon = epsilon
        self.forecast: Forecast = forecast(facts, budget, profile=order.profile, most=order.rank)
        self.choice = choose(facts, budget, order.rank, order.profile)
        self.method: str = self.choice.method

    @property
    def expected(self) -> Expectation | None:
        """What to expect of the method that is taken; None where there is no formula for it.

        Of pairs it is what is expected of the biases that they come with: at worst.
        """
        if self.method == "pairs":
            return self.forecast.biases
        known = [self.forecast.best, self.forecast.constant, self.forecast.biases, self.forecast.factors]
        return next((each for each in known if each is not None and each.method == self.method), None)

    @property
    def in_a_word(self) -> str:
        """What the plan takes."""
        if self.slopes:
            return "slopes"
        return _NAMES.get(self.method, self.method)

    @property
    def slopes(self) -> bool:
        """Whether it is biases with owners' slopes on them, and no more."""
        return self.method == "moments" and self.choice.rank == self.forecast.slopes

    def to_json(self, scale: float) -> dict[str, Any]:
        factors, expected = self.forecast.factors, self.expected
        return {
            "epsilon": self.epsilon,
            "constant": scale * self.forecast.constant.rmse,
            "biases": scale * self.forecast.biases.rmse,
            "factors": None if factors is None else scale * factors.rmse,
            "factors_rank": None if factors is None else factors.rank,
            "method": self.method,
            "rank": expected.rank or None if expected else None,
            "over_constant": expected.ratio if expected else None,
            "band": expected.band if expected else None,
        }


def rows(order: PlanOrder) -> list[Row]:
    """The asked budget among a row of others."""
    return [Row(order, epsilon) for epsilon in sorted({*_EPSILONS, order.epsilon})]


def to_json(order: PlanOrder, found: Sequence[Row]) -> dict[str, Any]:
    asked = next(row for row in found if row.epsilon == order.epsilon)
    return {
        "modes": {mode.name: mode.size for mode in order.modes},
        "entries": order.entries,
        "unit": order.unit,
        "delta": order.delta,
        "bounds": order.bounds,
        "spread": order.scale,
        "assumed": asdict(order.profile),
        "plan": order.plan.explain(),
        "max_entries": order.max_entries,
        "trust": asdict(order.trust),
        **({} if order.sharing is None else {"sharing": _sharing_json(order.sharing, order.scale)}),
        "chosen": asked.to_json(order.scale),
        "budgets": [row.to_json(order.scale) for row in found],
    }


def _sharing_json(found: Sharing, scale: float) -> dict[str, Any]:
    return {
        "pays": found.pays,
        "clear": found.clear,
        "together": scale * found.together.rmse,
        "alone": scale * found.alone,
        "site_entries": found.entries,
        "site_levels": found.people,
    }


def text(order: PlanOrder, found: Sequence[Row]) -> Group:
    """A plan to print."""
    from rich.console import Group

    asked = next(row for row in found if row.epsilon == order.epsilon)
    return Group(
        _chosen_line(asked),
        order.plan.explain(),
        *_expectation_lines(order, asked),
        *_sharing_lines(order),
        "",
        f"Expected RMSE at held-out entries {_units(order)}, and the plan's ratio to the constant:",
        "",
        _table(order, found),
        "",
        *_notes(order),
        COSTS_NOTHING,
    )


def _chosen_line(asked: Row) -> str:
    expected = asked.expected
    if expected is None:
        return f"Chosen: the method {asked.method!r}."
    if asked.method == "pairs":
        return "Chosen: private biases, and effects of pairs of levels as far as they are alike."
    if asked.slopes:
        return "Chosen: private biases, and owners' own slopes on them, which cost nothing."
    if expected.rank:
        fit = "moments" if expected.method == "moments" else "an alternating fit"
        return f"Chosen: factors of rank {expected.rank}, by {fit}."
    return f"Chosen: private {_NAMES.get(expected.method, expected.method)}, without factors."


def _expectation_lines(order: PlanOrder, asked: Row) -> list[str]:
    expected = asked.expected
    if expected is None:
        return [f"What to expect of {asked.method!r} is not known; of simpler methods see below."]
    low, high = expected.band
    return [
        f"Expected: {expected.ratio:.3f} of the private constant's RMSE, between {low:.3f} and "
        f"{high:.3f}; that is {_number(expected, order)} {_units(order)}."
    ]


def _sharing_lines(order: PlanOrder) -> list[str]:
    if order.sharing is None:
        return []
    people = order.modes[Outlook(order.plan.task.facts).people].name
    return [order.sharing.in_words(order.scale, f"levels of {people}")]


def _table(order: PlanOrder, found: Sequence[Row]) -> Table:
    from sfumato.report.text import plain_table

    table = plain_table("epsilon", "constant", "biases", "factors", "rank", "plan", "ratio", "between")
    for row in found:
        factors, expected = row.forecast.factors, row.expected
        numbers = [row.forecast.constant, row.forecast.biases]
        table.add_row(
            f"{row.epsilon:g}{' *' if row.epsilon == order.epsilon else ''}",
            *(_number(each, order) for each in numbers),
            _number(factors, order) if factors else "",
            str(factors.rank) if factors else "",
            row.in_a_word,
            f"{expected.ratio:.3f}" if expected else "",
            f"{expected.band[0]:.2f} to {expected.band[1]:.2f}" if expected else "",
        )
    return table


def _notes(order: PlanOrder) -> list[str]:
    facts, profile = order.plan.task.facts, order.profile
    notes = [
        f"Assumed of the values' variance: {profile.biases:.0%} biases, {profile.interactions:.0%} "
        f"interactions, {profile.noise:.0%} noise (--signal BIASES INTERACTIONS). The band is for data "
        "that are so."
    ]
    if order.spread is None:
        whence = "a quarter of the range of the bounds" if order.bounds else "one"
        notes.append(f"Values are taken to spread by {whence} (--spread).")
    if isinstance(facts.unit, Unit) and order.max_entries is None:
        notes.append(
            f"No cap on the entries of one {facts.unit.mode} is needed: the more entries, the less each "
            "one weighs."
        )
    if order.delta == 0:
        notes.append("Without a delta there are no factors: try --delta 1e-6.")
    elif not serves_factors(facts, order.budget):
        notes.append("Factors of this unit are fitted where its rows stay with their owners.")
    return notes


def draw(order: PlanOrder, found: Sequence[Row], path: Path) -> Path:
    """The trade-off as a picture."""
    from sfumato.report.figures import trade_off
    from sfumato.report.records import Curve
    from sfumato.report.text import sizes_in_words

    scale = order.scale
    forecasts = [row.forecast for row in found]
    known = [row.expected or row.forecast.biases for row in found]
    curves = [
        Curve("private constant", tuple(scale * f.constant.rmse for f in forecasts)),
        Curve("private biases", tuple(scale * f.biases.rmse for f in forecasts)),
        Curve(
            "plan",
            tuple(scale * each.rmse for each in known),
            tuple(
                (scale * f.constant.rmse * each.band[0], scale * f.constant.rmse * each.band[1])
                for f, each in zip(forecasts, known, strict=True)
            ),
        ),
    ]
    shape = sizes_in_words({mode.name: mode.size for mode in order.modes})
    return trade_off(
        path,
        [row.epsilon for row in found],
        curves,
        [],
        title="What privacy is expected to cost",
        note=f"{shape}, {order.entries:,} entries; {order.plan.task.unit}",
        errors=f"expected RMSE {_units(order)}",
    )


def _units(order: PlanOrder) -> str:
    given = order.bounds is not None or order.spread is not None
    return "in the values' units" if given else "over the values' spread"


def _number(expected: Expectation, order: PlanOrder) -> str:
    """An error with as many digits as tell budgets apart."""
    digits = max(0, 3 - floor(log10(order.scale)))
    if digits > _MOST_DIGITS:
        return f"{order.scale * expected.rmse:.2e}"
    return f"{order.scale * expected.rmse:.{digits}f}"
