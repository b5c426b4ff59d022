"""The page: a head that forbids all that is not in the file, a summary, and all sections there are."""

from __future__ import annotations

import base64
import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

from sfumato.checks import as_path
from sfumato.data.io.write import check_file, replacing
from sfumato.errors import SettingError
from sfumato.markup import Markup, joined, tag
from sfumato.privacy.budgets import rounded_up
from sfumato.report.networks import FOR_YOU_ALONE
from sfumato.report.page import exploring, holders_part, promising
from sfumato.report.page.contents import AuditRecord, Held, Shown
from sfumato.surface import either

NOT_FOR_RELEASE = "Not for release"
_OF_A_MODEL = ("model.json", "manifest.json")  # files of every model's folder, as the store names them
_RELEASE = (
    "For release. This page was made from a release alone: it holds what the guarantee covers, and "
    "nothing else."
)
_HOLDER = (
    "Not for release. The second part of this page was computed from the data, and no guarantee covers "
    "it. It is for whoever holds the data; hand out the page that is made from the release alone."
)
_OPEN = (
    "Not private, and not for release. Nothing is protected here: this model can give away single "
    "entries of the data that it was fitted to, and so can this page."
)

_EXPERIMENT = (
    "For experiments. This page was made from a release alone, whose guarantee is claimed but not "
    "proven, or whose noise came from a seed: nothing is promised of it."
)
_AUDIT = (
    "Not for release. An audit depends on the data that were attacked, and no guarantee covers it: it "
    "is for whoever holds them."
)
_ABOUT = ("at", "unmeasured", "remarks", "metric")  # say something of what else is held


@dataclass(frozen=True)
class _Section:
    at: str
    title: str
    body: Markup


class Page(NamedTuple):
    """HTML, and whether the guarantee covers all of it."""

    text: str
    for_release: bool


def page(shown: Shown, held: Held | None = None) -> Page:
    """A whole page; with ``held`` it has a second part that is not for release."""
    if held is not None and _secret(shown):  # which the top of the page says of all of it
        held = replace(held, remarks=tuple(said for said in held.remarks if said != FOR_YOU_ALONE))
    sharers = len(shown.parts) + (0 if held is None else len(held.owners))
    sections, data = _released(shown, sharers)
    mine, more = ([], []) if held is None else _held(held, sharers, shown)
    banner, kind = _banner(shown, bool(mine))
    if _secret(shown):  # all of it is one part
        sections, mine = [*sections, *mine], []
    body = [
        tag("p", banner, class_=f"banner {kind}", role="note"),
        _header(shown),
        *_contents(sections, mine),
        *map(_section, sections),
        *_second_part(mine),
        _footer(),
    ]
    text = _document(shown.title, tag("main", *body, id="top"), [*data, *more])
    return Page(text, kind == "covered")


def _secret(shown: Shown) -> bool:
    """Whether all that there is to say is as secret as the data."""
    return shown.guarantee is None or shown.secret is not None


def _banner(shown: Shown, mine: bool) -> tuple[str, str]:
    if shown.secret is not None:
        return f"Not for release. {shown.secret}", "secret"
    if shown.guarantee is None:
        return _OPEN, "secret"
    if mine:
        return _HOLDER, "secret"
    return (_RELEASE, "covered") if shown.guarantee.releasable else (_EXPERIMENT, "secret")


def audit_page(found: AuditRecord) -> str:
    """What an audit has found, by itself."""
    section = _Section("audit", "What an attack has found", holders_part.audit(found))
    body = [
        tag("p", _AUDIT, class_="banner secret", role="note"),
        tag("header", tag("h1", "Audit of a private fit")),
        _section(section),
        _footer(),
    ]
    return _document("Audit of a private fit", tag("main", *body, id="top"), [])


def check_place(path: str | PathLike[str]) -> Path:
    """Where a page is to be: in no model's folder, which lists its files and may be handed out."""
    target = as_path("path", path)
    place = target.parent.resolve()
    for folder in (place, *place.parents):
        if all((folder / name).is_file() for name in _OF_A_MODEL):
            raise SettingError(
                f"{folder} holds a model and lists all its files: with {target.name} in it the model "
                "would not load, and whoever is handed the folder would get the page as well. Name "
                f"another place{either('', ' with --out')}; a page that belongs to a release is put "
                f"there {either('by the commands that fit', 'by the fit itself, with --report')}"
            )
    check_file(target)
    return target


def write_page(path: str | PathLike[str], text: str, *, private: bool = False) -> Path:
    """A page as a file, whole or not at all, ``private`` for its owner's eyes alone."""
    target = check_place(path)
    with replacing(target) as file:
        if private:
            os.fchmod(file.fileno(), 0o600)
        file.write(text.encode())
    return target


# -- parts ----------------------------------------------------------------------------------------


def _released(shown: Shown, sharers: int) -> tuple[list[_Section], list[dict[str, Any]]]:
    sections, data = [], list[dict[str, Any]]()
    promise = shown.guarantee
    if promise is not None:
        sections += [
            _Section("protected", "What is protected, and from whom", promising.protecting(promise)),
            _Section("epsilon", "What epsilon means here", promising.meaning(promise)),
            _Section("spent", "What was spent", promising.spending(promise)),
        ]
    if shown.expected is not None:
        said = f"{shown.expected.in_words()}. That follows from public numbers, and no data were asked."
        sections.append(_Section("expected", "What the plan expected", tag("p", said)))
    if shown.passed is not None:
        sections.append(_Section("passed", "What values have passed", tag("p", f"{shown.passed}.")))
    if shown.parts:
        body, data = exploring.learnt(shown.parts, "released", sharers)
        sections.append(_Section("learnt", "What was learnt", body))
    if shown.groups:
        body = holders_part.groups(shown.groups, measured=False)
        sections.append(_Section("groups", "Errors to expect", body))
    return sections, data


def _held(held: Held, sharers: int, shown: Shown) -> tuple[list[_Section], list[dict[str, Any]]]:
    known = any(value for name, value in vars(held).items() if name not in _ABOUT)
    if not known:
        return [], []
    sections, data, promise = [], list[dict[str, Any]](), shown.guarantee
    if held.facts:
        sections.append(_Section("held", "The data", holders_part.facts(held.facts)))
    if held.results or held.measures or held.unmeasured:
        body = holders_part.errors(held, shown.expected)
        sections.append(_Section("errors", "How well it predicts", body))
    if held.groups:
        body = holders_part.groups(held.groups, measured=True)
        sections.append(_Section("measured-groups", "Errors by popularity, measured", body))
    went = holders_part.learning(held.history)
    if went is not None:
        sections.append(_Section("learning", "How the fit went", went))
    if held.account is not None or (promise is not None and promise.ledger is not None):
        body = holders_part.ledger(held.account, promise)
        sections.append(_Section("ledger", "The whole ledger", body))
    if held.audit is not None:
        sections.append(_Section("audit", "What an attack has found", holders_part.audit(held.audit)))
    if held.owners:
        body, data = exploring.learnt(held.owners, "held", sharers)
        sections.append(_Section("owners", "Owners and their rows", body))
    return sections, data


def _section(section: _Section) -> Markup:
    title = tag("h2", section.title, id=f"{section.at}-title")
    return tag("section", title, section.body, id=section.at, aria_labelledby=f"{section.at}-title")


def _second_part(sections: Sequence[_Section]) -> list[Markup]:
    if not sections:
        return []
    said = f"{NOT_FOR_RELEASE}: what follows was computed from the data."
    banner = tag("p", said, class_="banner secret", role="note")
    return [tag("div", banner, *map(_section, sections), class_="held")]


def _header(shown: Shown) -> Markup:
    promise = shown.guarantee
    tiles = []
    if promise is not None:
        tiles = [("epsilon", rounded_up(promise.epsilon))]
        tiles += [("delta", rounded_up(promise.delta, 3))] if promise.delta else []
        tiles.append(("protects", promise.unit.partition(",")[0]))
        tiles.append(("status", "proven" if promise.proven else "only claimed"))
        if promise.seeded:
            tiles.append(("noise", "seeded: for experiments"))
    tiles += list(shown.facts)
    parts = [tag("div", tag("dt", name), tag("dd", value)) for name, value in tiles]
    return tag("header", tag("h1", shown.title), tag("dl", *parts, class_="tiles"))


def _contents(sections: Sequence[_Section], mine: Sequence[_Section]) -> list[Markup]:
    links = [tag("li", tag("a", each.title, href=f"#{each.at}")) for each in sections]
    links += [
        tag(
            "li",
            tag("a", each.title, href=f"#{each.at}"),
            tag("span", " not for release", class_="secret-note"),
        )
        for each in mine
    ]
    return [tag("nav", tag("ul", *links), aria_label="Sections")] if links else []


def _footer() -> Markup:
    return tag(
        "footer",
        tag(
            "p",
            "This page is one file. It loads nothing, sends nothing, and opens without a network.",
        ),
    )


# -- the document ---------------------------------------------------------------------------------


def _document(title: str, main: Markup, data: Sequence[dict[str, Any]]) -> str:
    style, script = _asset("page.css"), _asset("page.js")
    policy = (
        f"default-src 'none'; style-src {_hash(style)}; script-src {_hash(script)}; "
        "base-uri 'none'; form-action 'none'"
    )
    head = [
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=policy),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("meta", name="referrer", content="no-referrer"),
        tag("title", title),
        tag("style", Markup(style)),
    ]
    skip = tag("a", "Skip to the sections", href="#top", class_="skip")
    block = [exploring.data_block(data)] if data else []
    body = tag("body", skip, main, *block, tag("script", Markup(script)))
    page = tag("html", tag("head", *head), body, lang="en")
    return joined([Markup("<!doctype html>\n"), page, Markup("\n")])


@cache
def _asset(name: str) -> str:
    return files("sfumato.report.page").joinpath(name).read_text("utf-8")


def _hash(text: str) -> Markup:
    """What a policy knows an element's text by: nothing else runs, or is a style."""
    found = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return Markup(f"'sha256-{found}'")
