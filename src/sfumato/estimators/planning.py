"""What to plan for, from public numbers alone, and what to expect of a budget and of others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from math import prod
from typing import Any

from sfumato.data.profile import Profile
from sfumato.data.tensor import Mode
from sfumato.errors import SettingError
from sfumato.estimators.completion import CP
from sfumato.fit.admit import with_labels_of
from sfumato.fit.choose import choose
from sfumato.fit.completion import Completion
from sfumato.fit.plan import PrivatePlan
from sfumato.fit.planner import Expectation, Forecast, forecast
from sfumato.fit.request import Privacy
from sfumato.fit.sharing import Sharing, sharing
from sfumato.fit.targets import Target, epsilon_for, expectation
from sfumato.models.losses import LOSSES
from sfumato.privacy.budgets import Budget
from sfumato.privacy.caveats import warn_of
from sfumato.privacy.clipping import check_range
from sfumato.privacy.trust import Trust
from sfumato.privacy.units import Public

_EPSILONS = (0.1, 0.3, 1.0, 3.0, 10.0)
_ANY_EPSILON = 1.0  # of a plan whose public numbers alone are asked for
_USUAL_NAMES = ("user", "item")
NAMES = {"bias": "biases", "alternating": "factors", "moments": "factors"}


@dataclass(frozen=True)
class PlanOrder:
    """What to plan for, from public numbers."""

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
    target: Target | None = None
    loss: str = "squared"

    @classmethod
    def within(cls, targets: dict[str, float], *, epsilon: float | None, **asked: Any) -> PlanOrder:
        """What was asked for, with the epsilon that a target asks for where there is one."""
        if len(targets) + (epsilon is not None) != 1:
            raise SettingError(
                "say --epsilon, or one target that it follows from: --target-rmse, --target-share or "
                "--target-odds"
            )
        if epsilon is not None:
            return cls(epsilon=epsilon, **asked)
        any_order = cls(epsilon=_ANY_EPSILON, **asked)
        target = epsilon_for(any_order.plan, **targets, profile=any_order.profile, most=any_order.rank)
        if target.epsilon is None:
            raise SettingError(target.in_words())
        return replace(any_order, epsilon=target.epsilon, target=target)

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
        """The bounds of what is fitted; where none are given, two spreads to each side."""
        loss = LOSSES[self.loss]
        if self.loss == "seen":
            raise SettingError(
                "what to expect is told of values, and --loss seen has none: leave it out to plan for "
                "values; whether lists are fitted beyond popularity, sfumato complete --loss seen says"
            )
        if self.loss == "poisson" and self.bounds is None:
            raise SettingError("counts have a public bound: --bounds 0 100, the most that one can be")
        loss.check(self.bounds)
        bounds = loss.fitted_bounds(self.bounds)
        bounds = bounds or (-2 * (self.spread or 1.0), 2 * (self.spread or 1.0))
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
        fitted = CP(self.rank, loss=self.loss)
        plan = fitted._private_plan(privacy, modes, bounds=self.range, entries=self.entries)
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
        """What to expect of the method that is taken; None where there is no formula for it."""
        return expectation(self.choice, self.forecast)

    @property
    def in_a_word(self) -> str:
        """What the plan takes."""
        if self.slopes:
            return "slopes"
        return NAMES.get(self.method, self.method)

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
        "loss": order.loss,
        "bounds": order.bounds,
        "spread": order.scale,
        "assumed": asdict(order.profile),
        "plan": order.plan.explain(),
        "target": None if order.target is None else asdict(order.target),
        "odds": order.plan.odds.to_json(),
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
