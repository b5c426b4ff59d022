"""What only the holder of the data may see: held-out errors, how a fit went, a ledger, an audit."""

from __future__ import annotations

from collections.abc import Sequence
from math import exp
from typing import Any

import numpy as np

from sfumato.markup import Markup, folded, label, table, tag
from sfumato.privacy.account import Account
from sfumato.privacy.budgets import rounded_up
from sfumato.privacy.guarantee import Guarantee
from sfumato.report.page.charts import (
    Band,
    Line,
    Mark,
    bars_table,
    line_chart,
    log_axis,
    number_axis,
)
from sfumato.report.page.contents import AuditRecord, Expected, Held, Round
from sfumato.report.records import Groups, Result

_LEAST_RATE = 1e-4
_REFUTED = "The promise is broken: an attack found more than it allows."
_NOT_REFUTED = (
    "No attack found more than the promise allows. That is no proof, as other attacks may find more. "
    "The number measured is the least epsilon with which attacks could find what these have found."
)
_HOW_TO_READ = (
    "The promise is refuted where the lower right edge of the band lies above the dashed red line, at "
    "the one threshold that was chosen beforehand, on other runs: the orange point. Where only the "
    "curve itself, or the upper edge, crosses the line, that is what few runs look like by chance. The "
    "band holds for each point by itself, not for all together."
)


# -- errors ---------------------------------------------------------------------------------------


def errors(held: Held, expected: Expected | None) -> Markup:
    """Errors at held-out entries, and what was expected beside what came."""
    parts: list[Markup] = []
    if held.results:
        parts.append(_results(held))
    if held.measures:
        parts.append(_measures(held.measures))
    if held.results and expected is not None:
        parts.append(_expected(expected, held.results))
    if held.unmeasured and not (held.results or held.measures):
        parts.append(tag("p", held.unmeasured, class_="aside"))
    parts += [tag("p", remark, class_="aside") for remark in held.remarks]
    return tag("div", *parts)


def _measures(measures: Sequence[tuple[str, dict[str, float]]]) -> Markup:
    """A column for each predictor."""
    named = [measure for measure, _ in measures[0][1].items()]
    rows = [(name, *(f"{theirs[name]:.4f}" for _, theirs in measures)) for name in named]
    return table(["Measure", *(who for who, _ in measures)], rows, "Measured at other examples")


def _results(held: Held) -> Markup:
    results, metric = held.results, held.metric
    most = max(result.rmse for result in results) or 1.0
    headings = ["Predictor", "RMSE", "Less than the first", *([] if metric is None else [metric])]
    rows = []
    for result in results:
        gain = 1 - result.rmse / results[0].rmse if results[0].rmse else 0.0
        numbers = [f"{result.rmse:.4f}", "" if result is results[0] else f"{100 * gain:.1f}%"]
        if metric is not None:
            numbers.append("" if result.measured is None else f"{result.measured:.4f}")
        kind = "main" if result is results[-1] else "faint"
        rows.append((result.name, result.rmse / most, numbers, kind))
    return bars_table(f"Errors at {held.at}: shorter is better", headings, rows)


def _expected(expected: Expected, results: Sequence[Result]) -> Markup:
    said = f"{expected.in_words()}."
    private = [each for each in results if each.name.startswith("private constant")]
    beside = [*private, *(each for each in results if each.name.startswith("constant"))]
    if beside and beside[0].rmse:
        ratio = results[-1].rmse / beside[0].rmse
        said += f" What came is {ratio:.3f} of the error of \u201c{beside[0].name}\u201d."
    return tag("p", said)


def groups(found: Sequence[Groups], *, measured: bool) -> Markup:
    """Errors to expect of rare and popular levels; measured ones are the holder's."""
    said = (
        "How far values lie from predictions, for fifths of the levels from the rarest to the most "
        "popular, as released numbers let expect. Noise is what privacy adds; scatter is in the data."
    )
    return tag("div", tag("p", said), *(_group_table(each, measured) for each in found))


def _group_table(found: Groups, measured: bool) -> Markup:
    most = max(group.expected for group in found.groups) or 1.0
    headings = ["Levels", "Counted each", "By noise", "By scatter", "Expected error"]
    rows = []
    for n, group in enumerate(found.groups):
        numbers = [
            f"{group.counted:.1f}",
            f"{group.noise:.3f}",
            f"{group.scatter:.3f}",
            f"{group.expected:.3f}",
        ]
        if measured:
            numbers.append("\u2013" if group.measured is None else f"{group.measured:.3f}")
        name = f"{group.levels:,}" + (", the rarest" if n == 0 else "")
        rows.append((name, group.expected / most, numbers, "main"))
    headings += ["Measured"] if measured else []
    return bars_table(f"Errors by popularity of {found.mode}", headings, rows)


# -- how the fit went -----------------------------------------------------------------------------


def learning(history: Sequence[Round]) -> Markup | None:
    """The error at the training entries after each round, or else what the fit lowers."""
    by = "training RMSE" if any(each.training is not None for each in history) else "objective"
    told = [
        (each.completed, each.training if by == "training RMSE" else each.objective) for each in history
    ]
    points = [
        (float(done), float(value)) for done, value in told if value is not None and np.isfinite(value)
    ]
    if len(points) < 2:
        return None
    chart = line_chart(
        f"{by} after each round",
        number_axis("rounds", [0.0, *(x for x, _ in points)]),
        number_axis(by, [y for _, y in points]),
        [Line(points, by)],
    )
    rows = [(f"{x:g}", f"{y:.5g}") for x, y in points]
    return tag("div", chart, folded("As a table", table(["Rounds", by], rows, by, words=0)))


def ledger(account: Account | None, promise: Guarantee | None) -> Markup:
    """What the fit was told of its ledger, and all that is charged to it by now."""
    parts = [] if account is None else [_charged(account)]
    if promise is not None:
        said = next(text for title, text in promise.said() if title == "ledger")
        parts.append(tag("p", tag("strong", "With this fit: "), f"{said}."))
    return tag("div", *parts)


def _charged(account: Account) -> Markup:
    told = account.to_json()
    known = [fit["epsilon"] for fit in told["fits"] if fit["epsilon"] is not None]
    most = max(known, default=1.0) or 1.0
    rows = []
    for fit in told["fits"]:
        what = ", ".join(f"{times} \u00d7 {name}" for name, times in fit["labels"].items())
        epsilon = fit["epsilon"]
        amount = "without bound" if epsilon is None else rounded_up(epsilon)
        name = f"{fit['fit']}" + (f", {fit['period']}" if fit["period"] else "")
        kind = "other" if fit["doubtful"] else "main"
        rows.append((name, 1.0 if epsilon is None else epsilon / most, (amount, what), kind))
    at = rounded_up(told["delta"], 3)
    headings = ["Fit", "Epsilon", "Drawn"]
    chart = bars_table(f"Fits of this ledger, epsilon at delta {at}", headings, rows, words=True)
    return tag("div", chart, folded("In words", tag("pre", account.in_words())))


# -- audits ---------------------------------------------------------------------------------------


def audit(found: AuditRecord) -> Markup:
    """The verdict, and the curve of the strongest attack with what it may be off by."""
    said = _REFUTED if found.violated else _NOT_REFUTED
    parts: list[Markup] = [
        tag("p", said, class_="warning" if found.violated else "lead"),
        tag("p", found.verdict),
        *(tag("p", line) for line in found.lines),
    ]
    if found.curve:
        parts += [
            _curve(found),
            tag("p", _HOW_TO_READ, class_="aside"),
            folded("As a table", _curve_table(found)),
        ]
    return tag("div", *parts)


def _curve(found: AuditRecord) -> Markup:
    least = max(_LEAST_RATE, 0.5 / found.runs)
    x = log_axis("false alarms", least)
    y = log_axis("right alarms", least)
    false = np.geomspace(least, 1.0, 160)
    grow = exp(min(found.epsilon, 700.0))
    most = np.minimum(grow * false + found.delta, 1 - (1 - found.delta - false) / grow)
    allowed = [(a, b) for a, b in zip(false.tolist(), np.clip(most, least, 1.0).tolist(), strict=True)]
    rows = sorted(found.curve)
    middle = [(max(row[0], least), max(row[3], least)) for row in rows]
    # To the lower right the curve is weaker, to the upper left stronger than it was seen to be.
    begin, end = (least, least), (1.0, 1.0)
    weak = [begin, *((max(row[2], least), max(row[4], least)) for row in rows), end]
    strong = [begin, *((max(row[1], least), max(row[5], least)) for row in rows), end]
    marks = []
    if found.marked is not None:
        marks = [
            Mark(
                max(found.marked[2], least),
                max(found.marked[4], least),
                kind="other",
                name="what is certain of the threshold that decides",
            )
        ]
    return line_chart(
        "Right by false alarms of the strongest attack, with its band, and what the promise allows",
        x,
        y,
        [
            Line(allowed, "the most that the promise allows", "limit"),
            Line(middle, "the strongest attack, as counted", step=True),
            Line([(least, least), (1, 1)], "guessing", "faint"),
        ],
        bands=[
            Band(weak, strong, f"where it may really lie, each point at {100 * found.confidence:g}%")
        ],
        marks=marks,
    )


def _curve_table(found: AuditRecord) -> Markup:
    places = np.unique(np.linspace(0, len(found.curve) - 1, 20).astype(int)).tolist()
    rows = []
    for n in places:
        row = found.curve[n]
        rows.append([f"{100 * row[k]:.2f}%" for k in (0, 1, 2, 3, 4, 5)])
    headings = ["False alarms", "at least", "at most", "Right alarms", "at least", "at most"]
    return table(
        headings,
        rows,
        f"Rates of the attack, each with its limits; {len(rows)} of its thresholds",
        words=0,
    )


def facts(found: Sequence[tuple[str, Any]]) -> Markup:
    """Names and values."""
    parts = [part for name, value in found for part in (tag("dt", name), tag("dd", label(value)))]
    return tag("dl", *parts, class_="facts")
