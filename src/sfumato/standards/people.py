"""What only people know of a release: asked for in a template, read from TOML, and never made up."""

from __future__ import annotations

import os
import textwrap
import tomllib
from collections.abc import Mapping
from datetime import date
from typing import Any, NamedTuple

from sfumato.checks import as_path
from sfumato.errors import SettingError
from sfumato.standards.schema import Schema, field, violations

MISSING = "MISSING"
_MOST_BYTES = 1 << 20
_TEXT: Schema = {"type": "string"}


class Fact(NamedTuple):
    """Something to be asked: its name, where a record of a deployment has it, and the question."""

    name: str
    path: tuple[str, ...] | None  # None for what the registry has no field for
    asks: str

    @property
    def schema(self) -> Schema:
        if self.path is None:
            return _TEXT
        found = field(*self.path)
        return found if "type" in found else {**found, **_TEXT}

    @property
    def text(self) -> bool:
        """Whether any text will do."""
        return self.schema["type"] == "string" and not {"enum", "format"} & set(self.schema)


FACTS = (
    Fact("url_slug", None, "a short name for addresses, in small letters and hyphens"),
    Fact("name", ("basic", "name"), "what the release is called"),
    Fact("data_curators", ("basic", "data_curators"), "who publishes it, and what kind of body that is"),
    Fact("contact", None, "whom to ask about it: a person or an office, and an address"),
    Fact("intended_use", ("basic", "intended_use"), "what it is meant to be used for"),
    Fact(
        "data_product_region",
        ("basic", "data_product_region"),
        "which region it is about, or whose law holds",
    ),
    Fact("data_product_sector", ("basic", "data_product_sector"), "which sector it is about"),
    Fact("publication_date", ("basic", "publication_date"), "when it was, or will be, published first"),
    Fact("registry_authors", ("administrative", "registry_authors"), "who fills in this record"),
    Fact(
        "number_of_privacy_units",
        ("privacy_loss", "number_of_privacy_units"),
        "about how many units there are; a number that everybody may know, never a count of the data",
    ),
    Fact(
        "actors",
        ("deployment_model", "actors"),
        "who may see the data or the release, and why they are trusted or not",
    ),
    Fact(
        "release_plans",
        ("deployment_model", "release_type_details"),
        "what else is planned with the same data, and what it may spend",
    ),
    Fact(
        "data_source_type",
        ("deployment_model", "data_source_type"),
        "whether new data come in over time",
    ),
    Fact(
        "preparation",
        ("implementation", "preprocessing_and_hyperparameter_tuning"),
        "what was done with the data before the fit, by looking at them or not, and who saw the outcome",
    ),
    Fact("security", None, "how the data themselves are kept: who has access, and how it is controlled"),
    Fact("collection", None, "how the data were collected, with whose consent, and who is not in them"),
    Fact(
        "justification",
        ("implementation", "justification"),
        "why this epsilon, delta, unit and method, and who decided so",
    ),
    Fact(
        "utility",
        ("implementation", "utility"),
        "how good the release is, by figures that may be published",
    ),
    Fact(
        "additional_information",
        ("implementation", "additional_information"),
        "whatever else is worth knowing, with links",
    ),
    Fact("evidence_sources", ("administrative", "evidence_sources"), "publications about it"),
)
_BY_NAME = {fact.name: fact for fact in FACTS}
_DEEPEST = 8  # tables within each other: more than the schema has anywhere
People = Mapping[str, Any]


def read_people(path: str | os.PathLike[str]) -> dict[str, Any]:
    """What people say, from a file of TOML; what is empty there counts as missing.

    Raises
    ------
    SettingError
        Where it is no such file, names something unknown, or says it in a way that the registry's schema
        does not take.
    """
    file = as_path("facts", path)
    try:
        with file.open("rb") as opened:
            content = opened.read(_MOST_BYTES + 1)
        if len(content) > _MOST_BYTES:
            raise SettingError(
                f"{file} is larger than {_MOST_BYTES:,} bytes: it should hold a page of facts"
            )
        given = tomllib.loads(content.decode("utf-8"))
    except OSError as error:
        raise SettingError(f"{file} cannot be read: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        if isinstance(error, SettingError):
            raise
        raise SettingError(
            f"{file} is no file of TOML, such as `sfumato record --template FILE` writes: {error}"
        ) from error
    return check_people(given, f"{file}: ")


def check_people(given: Any, where: str = "") -> dict[str, Any]:
    """The facts that are given, each as the schema wants it; whatever else is an error."""
    if not isinstance(given, Mapping):
        raise SettingError(f"{where}facts are a table of names and what is said of them")
    unknown = sorted(str(name) for name in set(given) - set(_BY_NAME))
    if unknown:
        raise SettingError(f"{where}{unknown[0]!r} is not asked for; what is: {', '.join(_BY_NAME)}")
    filled = {name: value for name, value in given.items() if value not in ("", [], {})}
    said = {name: _plain(value, f"{where}{name}") for name, value in filled.items()}
    for name, value in said.items():
        for problem in violations(value, _BY_NAME[name].schema, (name,)):
            raise SettingError(f"{where}{problem}")
        if name == _NUMBER and value < 1:
            raise SettingError(f"{where}{name} is about how many there are, one or more: got {value}")
        if MISSING in str(value):
            raise SettingError(f"{where}{name} says {MISSING}: say it, or leave it empty")
    return said


def _plain(value: Any, where: str, deepest: int = _DEEPEST) -> Any:
    """Dates as text, which is what the registry takes."""
    if isinstance(value, str) and any("\ud800" <= letter <= "\udfff" for letter in value):
        raise SettingError(f"{where} has a letter that cannot be written in UTF-8")
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, list | dict) and not deepest:
        raise SettingError(f"{where} has tables within tables, deeper than any form")
    if isinstance(value, list):
        return [_plain(item, where, deepest - 1) for item in value]
    if isinstance(value, dict):
        return {name: _plain(inner, where, deepest - 1) for name, inner in value.items()}
    return value


def missing(people: People) -> tuple[Fact, ...]:
    """What nobody has said yet. Publications need not be."""
    return tuple(fact for fact in FACTS if fact.name not in people and fact.name != "evidence_sources")


def template() -> str:
    """A file of TOML to fill in."""
    lines = ["# What only people know of a release. Leave empty what is not known.", ""]
    last = []  # tables, which TOML wants at the end
    for fact in FACTS:
        asked = textwrap.wrap(fact.asks, 100, initial_indent="# ", subsequent_indent="# ")
        if "enum" in fact.schema:
            asked.append(f"# one of: {', '.join(fact.schema['enum'])}")
        if fact.name in _TABLES:
            last += [*asked, *_TABLES[fact.name], ""]
        else:
            lines += [*asked, f"{fact.name} = {_EMPTY.get(fact.name, _QUOTES)}", ""]
    return "\n".join([*lines, *last])


_QUOTES = '""'
_NUMBER = "number_of_privacy_units"
_EMPTY = {"registry_authors": "[]", "number_of_privacy_units": '""  # a whole number, without quotes'}
_TABLES = {
    "data_curators": (
        "# [[data_curators]]",
        '# data_curator_name = ""',
        '# data_curator_type = "Government"  # or Industry, or Nonprofit',
    ),
    "evidence_sources": (
        "# [evidence_sources.report]",
        '# evidence_source_type = "Other public source"',
        '# misc = { title = "", url = "" }',
    ),
}
