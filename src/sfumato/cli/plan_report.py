"""What ``sfumato plan`` says: a private fit's settings and what to expect of it, before any data."""

from __future__ import annotations

from collections.abc import Sequence
from math import floor, log10
from pathlib import Path
from typing import TYPE_CHECKING

from sfumato.estimators.planning import NAMES, PlanOrder, Row
from sfumato.fit.outlook import Outlook
from sfumato.fit.planner import Expectation, serves_factors
from sfumato.privacy.units import Unit

if TYPE_CHECKING:
    from rich.console import Group
    from rich.table import Table

_MOST_DIGITS = 5  # behind the point: with more, a row of budgets is wider than a screen
COSTS_NOTHING = "This costs no privacy: it follows from the numbers given, and no data is touched."


def text(order: PlanOrder, found: Sequence[Row]) -> Group:
    """A plan to print."""
    from rich.console import Group

    asked = next(row for row in found if row.epsilon == order.epsilon)
    return Group(
        *([] if order.target is None else [f"Target: {order.target.in_words()}."]),
        _chosen_line(asked),
        order.plan.explain(),
        *_expectation_lines(order, asked),
        *_sharing_lines(order),
        *(f"Odds: {sentence}." for sentence in order.plan.odds.sentences()),
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
    return f"Chosen: private {NAMES.get(expected.method, expected.method)}, without factors."


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
        ranged = order.bounds or order.loss == "logistic"
        whence = "a quarter of the range of the bounds" if ranged else "one"
        what = "Roots of counts" if order.loss == "poisson" else "Values"
        notes.append(f"{what} are taken to spread by {whence} (--spread).")
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
    if order.loss == "poisson":
        return "in roots of counts, which are fitted"
    given = order.bounds is not None or order.spread is not None or order.loss == "logistic"
    return "in the values' units" if given else "over the values' spread"


def _number(expected: Expectation, order: PlanOrder) -> str:
    """An error with as many digits as tell budgets apart."""
    digits = max(0, 3 - floor(log10(order.scale)))
    if digits > _MOST_DIGITS:
        return f"{order.scale * expected.rmse:.2e}"
    return f"{order.scale * expected.rmse:.{digits}f}"
