"""What is protected and from whom, what epsilon means, what was spent: sections about a guarantee."""

from __future__ import annotations

from decimal import ROUND_CEILING, Decimal
from math import inf
from typing import NamedTuple

import numpy as np

from sfumato.fit.privatising import NOBODY
from sfumato.markup import Markup, folded, table, tag
from sfumato.privacy.budgets import rounded_up
from sfumato.privacy.guarantee import Guarantee
from sfumato.privacy.odds import ALARMS, Odds
from sfumato.report.page.charts import (
    Line,
    Mark,
    bars_table,
    line_chart,
    log_axis,
    shares_axis,
)

_PRIORS = (0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9)
_FALSE = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3)
_LEAST_ALARMS = 1e-3
_TOLD_ELSEWHERE = ("odds", "ledger", "warning")  # titles of a guarantee that have a place of their own


# -- who sees what --------------------------------------------------------------------------------


class _Card(NamedTuple):
    """Somebody on the way of the data."""

    who: str
    sees: str
    badge: str
    kind: str  # trusted, covered or own


def protecting(guarantee: Guarantee) -> Markup:
    """Who sees what, as a picture that is a list, and the promise in words."""
    said = [(title, text) for title, text in guarantee.said() if title not in _TOLD_ELSEWHERE]
    terms = [part for title, text in said for part in (tag("dt", title.capitalize()), tag("dd", text))]
    warnings = [
        tag("p", tag("strong", "Warning: "), text, class_="warning") for text in guarantee.warnings
    ]
    return tag(
        "div",
        tag("p", _in_a_sentence(guarantee), class_="lead"),
        _picture(guarantee),
        *warnings,
        folded("The whole promise, word for word", tag("dl", *terms)),
    )


def _in_a_sentence(guarantee: Guarantee) -> str:
    """What is limited; by how much depends on epsilon, so that nothing is said of it here."""
    thing = guarantee.unit.partition(",")[0]
    asked = f"whether the data hold {thing}"
    if guarantee.odds().replaced:
        asked = f"which of two possibilities for {thing} is true"
    sees = "the release"
    if guarantee.joint:
        sees += ", everyone else\u2019s rows and predictions included,"
    return (
        f"There is a limit to what those who see {sees} can find out about {asked}. The next section "
        f"says how much that is. Precisely: where {guarantee.neighbours}, no release becomes more "
        "likely than epsilon and delta allow."
    )


def _picture(guarantee: Guarantee) -> Markup:
    cards = [
        tag(
            "li",
            tag("h3", card.who),
            tag("p", card.sees),
            tag("p", card.badge, class_="badge"),
            class_=f"card {card.kind}",
        )
        for card in _cards(guarantee)
    ]
    return tag("ol", *cards, class_="flow", aria_label="Who sees what, from the data to the world")


def _cards(guarantee: Guarantee) -> list[_Card]:
    released = _Card(
        "The release",
        ", ".join(guarantee.released).capitalize() + ".",
        "The promise is about this",
        "covered",
    )
    world = _Card(
        "Everyone",
        "The release, whatever they make of it, and anything they know besides.",
        "The promise holds against them",
        "covered",
    )
    return [_owners(guarantee), _curator(guarantee), released, world]


def _owners(guarantee: Guarantee) -> _Card:
    owner = guarantee.owner
    if guarantee.trust == NOBODY:
        return _Card(
            "Owners of the data",
            "Their own values. They add noise before anything leaves them.",
            "Noise is added here",
            "own",
        )
    if guarantee.joint and owner is not None:
        return _Card(
            f"Each {owner}",
            f"Their own data, and their own {', '.join(guarantee.kept)}, which nobody else is shown.",
            "Keeps what is theirs",
            "own",
        )
    return _Card("Owners of the data", "Their own data, which they hand over.", "Are protected", "own")


def _curator(guarantee: Guarantee) -> _Card:
    trust = guarantee.trust
    if trust == NOBODY:
        return _Card(
            "Whoever collects",
            "Noisy values alone, and fits a model that knows the noise.",
            "Need not be trusted",
            "covered",
        )
    if trust.startswith("each site"):
        shares = "share of the noise" in trust
        return _Card(
            "The sites",
            "Each its own data, and nobody else\u2019s. "
            + (
                "They add shares of noise; sums alone are opened."
                if shares
                else "Each adds all of the noise."
            ),
            "Trusted with their own data" + (", and some with each other" if shares else ""),
            "trusted",
        )
    return _Card(
        "The holder of the data",
        "All of the data. They run the fit and add the noise.",
        "Is trusted: not protected from",
        "trusted",
    )


# -- what epsilon means ---------------------------------------------------------------------------


def percent(share: float) -> str:
    """Rounded up, as bounds have to be."""
    return f"{float((Decimal(repr(100 * share))).quantize(Decimal('0.1'), ROUND_CEILING)):g}%"


def meaning(guarantee: Guarantee) -> Markup:
    """Two charts and their tables: what a suspicion can become, and what an attack can find."""
    odds = guarantee.odds()
    said = tag("ul", *(tag("li", f"{text[0].upper()}{text[1:]}.") for text in odds.sentences()))
    return tag(
        "div",
        said,
        tag("div", _belief(odds), _attack(odds), class_="pair"),
        tag(
            "p",
            "Both are bounds, for whoever suspects something of one unit and knows everything else: "
            "real attackers do worse. An epsilon of zero would be the dotted line.",
            class_="aside",
        ),
    )


def _belief(odds: Odds) -> Markup:
    priors = np.linspace(0.002, 0.998, 120).tolist()
    curve = [(0.0, 0.0), *((p, odds.posterior(p)) for p in priors), (1.0, 1.0)]
    if odds.factor == inf:
        curve[0] = (0.0, 1.0)
    chart = line_chart(
        "Belief after seeing the release, at most, by belief before; the dotted diagonal is no learning",
        shares_axis("belief before"),
        shares_axis("belief after, at most"),
        [Line(curve, "with this release"), Line([(0, 0), (1, 1)], "nothing learnt", "faint")],
        marks=[Mark(p, odds.posterior(p), percent(odds.posterior(p))) for p in (0.1, 0.5)],
    )
    but = f" But for a chance of {rounded_up(odds.chance, 2)}." if odds.chance else ""
    rows = [(percent(p), percent(odds.posterior(p))) for p in _PRIORS]
    numbers = table(
        ["Belief before", "After, at most"], rows, f"What a suspicion can become.{but}", words=0
    )
    return tag("div", tag("h3", "What a suspicion can become"), chart, folded("As a table", numbers))


def _attack(odds: Odds) -> Markup:
    false = np.geomspace(_LEAST_ALARMS, 1.0, 120).tolist()[:-1]
    chart = line_chart(
        "Share of cases that an attack can find, at most, by its share of false alarms",
        log_axis("false alarms", _LEAST_ALARMS),
        shares_axis("cases found, at most"),
        [
            Line(
                [*((f, odds.true_positives(f)) for f in false), (1.0, 1.0)], "any attack on this release"
            ),
            Line([(f, f) for f in false], "guessing", "faint"),
        ],
        marks=[Mark(ALARMS, odds.true_positives(), percent(odds.true_positives()), above=True)],
    )
    rows = [(percent(f), percent(odds.true_positives(f))) for f in _FALSE]
    numbers = table(["False alarms", "Found, at most"], rows, "What an attack can find.", words=0)
    return tag("div", tag("h3", "What an attack can find"), chart, folded("As a table", numbers))


# -- what was spent -------------------------------------------------------------------------------


def spending(guarantee: Guarantee) -> Markup:
    """The draws of this fit with their shares of the budget, and what they add up to."""
    amount = f"epsilon {rounded_up(guarantee.epsilon)}"
    amount += f", delta {rounded_up(guarantee.delta, 3)}" if guarantee.delta else " (pure)"
    who = (
        "This fit" if guarantee.periods is None else f"The fits of {guarantee.periods} periods together"
    )
    parts = [
        tag(
            "p",
            f"{who} spent {amount}. Draws were planned from public numbers alone. "
            "What other fits of the same data spend adds to it.",
        )
    ]
    if guarantee.draws:
        most = max(share for _, _, share in guarantee.draws) or 1.0
        rows = [
            (name, share / most, (f"{times:,}", f"{100 * share:.3g}%" if share else "\u2013"), "main")
            for name, times, share in guarantee.draws
        ]
        title = "What the budget was spent on" + (", last period" if guarantee.periods else "")
        parts.append(bars_table(title, ["Drawn", "Times", "Of the budget"], rows))
    return tag("div", *parts)
