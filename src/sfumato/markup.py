"""HTML from text that anybody may have written: what is not marked as HTML is escaped."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable

# What no text needs, or what would turn the text around it: control characters, lone surrogates, and
# marks of direction.
_UNSEEN = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)
_VOID = frozenset({"input", "meta", "br"})
_LONGEST = 120  # characters of a label that are shown


class Markup(str):
    """Text that is HTML already."""

    __slots__ = ()


Child = str | Iterable["Markup"]


def plain(text: object) -> str:
    """Text that can be seen as it is."""
    return _UNSEEN.sub("\ufffd", str(text))


def short(text: object) -> str:
    """A label, cut where it is too long to be shown."""
    label = plain(text)
    return label if len(label) <= _LONGEST else f"{label[: _LONGEST - 1]}\u2026"


def escaped(text: object) -> Markup:
    return text if isinstance(text, Markup) else Markup(html.escape(plain(text)))


def joined(parts: Iterable[object]) -> Markup:
    return Markup("".join(escaped(part) for part in parts))


def tag(name: str, /, *children: object, **attributes: object) -> Markup:
    """An element. Attributes that are None are left out, ``True`` has no value; ``class_`` is class."""
    said = "".join(
        f" {key.rstrip('_').replace('_', '-')}" + ("" if value is True else f'="{escaped(value)}"')
        for key, value in attributes.items()
        if value is not None and value is not False
    )
    if name in _VOID:
        return Markup(f"<{name}{said}>")
    return Markup(f"<{name}{said}>{joined(children)}</{name}>")


def label(text: object) -> Markup:
    """A label of the data, whose direction of writing is its own."""
    return tag("bdi", short(text))


def table(
    headings: Iterable[object], rows: Iterable[Iterable[object]], caption: str, *, words: int = 1
) -> Markup:
    """A table: the first column has heads of rows, all but the first ``words`` columns have numbers."""
    heads = [
        tag("th", each, scope="col", class_=None if n < words else "number")
        for n, each in enumerate(headings)
    ]
    body = [
        tag(
            "tr",
            *(
                tag(
                    "td" if n else "th",
                    each,
                    scope=None if n else "row",
                    class_=None if n < words else "number",
                )
                for n, each in enumerate(row)
            ),
        )
        for row in rows
    ]
    whole = tag("table", tag("caption", caption), tag("thead", tag("tr", *heads)), tag("tbody", *body))
    # Focusable, so that a wide one can be scrolled with keys.
    return tag("div", whole, class_="scroll", tabindex="0", role="region", aria_label=caption)


def folded(summary: str, *content: object) -> Markup:
    return tag("details", tag("summary", summary), *content)


# -- in notebooks -----------------------------------------------------------------------------------


def snippet(title: str, rows: Iterable[tuple[object, object]]) -> str:
    """A few names and values, as a notebook shows an object; in the notebook's own colours."""
    body = [
        tag(
            "tr",
            tag("th", name, scope="row", style="text-align:left;vertical-align:top"),
            tag("td", value, style="text-align:left"),
        )
        for name, value in rows
    ]
    caption = tag("caption", tag("strong", title), style="text-align:left")
    return tag("table", caption, tag("tbody", *body))
