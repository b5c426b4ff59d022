"""The page that lies in every release: what is protected and what is not, for people who hold it."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence

from sfumato.privacy.guarantee import Guarantee

_WIDTH = 100
_SECTIONS = (
    ("What is promised", ("promise", "odds", "warning")),
    ("What is protected", ("protects", "neighbours", "cap")),
    ("Who has to be trusted", ("trusts",)),
    ("What is handed out", ("released", "kept")),
    ("On which grounds", ("status", "method", "tuning", "arithmetic", "assumes")),
    ("Other fits on the same data", ("ledger",)),
)


def label(guarantee: Guarantee, contact: str | None = None) -> str:
    """The guarantee on a page, in Markdown; all that it says is on it, and what it does not say."""
    said: dict[str, list[str]] = {}
    for title, text in guarantee.said():
        said.setdefault(title, []).append(text)
    lines = ["# Privacy label", ""]
    for heading, titles in _SECTIONS:
        lines += _section(heading, [f"{t}: {text}" for t in titles for text in said.get(t, [])])
    lines += _section("What is not protected", list(_limits(guarantee)))
    lines += _section("Whom to ask", [contact or "nobody is named: ask who has given you this"])
    return "\n".join(lines)


def _section(heading: str, items: Sequence[str]) -> Iterator[str]:
    yield f"## {heading}"
    for item in items:
        yield from textwrap.wrap(
            item, _WIDTH, initial_indent="- ", subsequent_indent="  ", break_on_hyphens=False
        )
    yield ""


def _limits(guarantee: Guarantee) -> Iterator[str]:
    """Where the promise ends, as far as its unit and relation tell."""
    yield (
        "what the data say of people in general, and so of you as of everybody: it can be learnt "
        "whether or not you are in them"
    )
    yield (
        f"more than {guarantee.unit.partition(',')[0]} at once: what several units have in common is "
        "protected less, the more of them there are"
    )
    if "added or removed" not in guarantee.neighbours:
        yield "what neighbours have in common: that there is something to be known at all may be seen"
    if guarantee.kept:
        yield f"whatever one {guarantee.owner} is shown of its own: who else sees it learns of its data"
    yield "anything outside of these files: errors, messages and times that whoever ran the fit has seen"
