"""The schema of OpenDP's registry of deployments, pinned, and what is wrong with a record by it.

``deployments-schema.json`` says where its facts come from. The keywords that it uses are understood
here, and no others; a test holds the answers equal to those of the package ``jsonschema``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from datetime import date
from functools import cache
from importlib.resources import files
from typing import Any, NamedTuple

Schema = Mapping[str, Any]
_KINDS: dict[str, type | tuple[type, ...]] = {
    "array": list,
    "integer": int,
    "number": (int, float),
    "object": dict,
    "string": str,
}


class Problem(NamedTuple):
    """Where a record is not as the schema wants it, and what it wants."""

    path: tuple[str, ...]
    said: str

    def __str__(self) -> str:
        return f"{'.'.join(self.path)}: {self.said}"


@cache
def deployments_schema() -> Schema:
    """The pinned schema."""
    text = (files("sfumato.standards") / "deployments-schema.json").read_text("utf-8")
    schema: Schema = json.loads(text)
    return schema


def problems(record: Any) -> tuple[Problem, ...]:
    """All that is wrong with a record of a deployment; nothing where it is valid."""
    return tuple(violations(record, deployments_schema(), ()))


def field(*path: str) -> Schema:
    """What the schema says of a field of a deployment, such as ``field("basic", "name")``."""
    node = deployments_schema()["properties"]["deployment"]
    for name in path:
        node = node["properties"][name]
    found: Schema = node
    return found


def violations(value: Any, schema: Schema, path: tuple[str, ...]) -> Iterator[Problem]:
    """What is wrong with a value by a part of the schema."""
    if "$ref" in schema:
        yield from violations(value, _referred(schema["$ref"]), path)
        return
    for word in ("anyOf", "oneOf"):
        if word in schema:
            fitting = sum(not any(violations(value, each, path)) for each in schema[word])
            if not fitting or (word == "oneOf" and fitting > 1):
                yield Problem(path, "is not of exactly one of the kinds that are known")
    if "type" in schema and not _is_of(value, schema["type"]):
        yield Problem(path, f"has to be {_in_words(schema['type'])}")
        return
    if "enum" in schema and value not in schema["enum"]:
        yield Problem(path, f"has to be one of {', '.join(map(str, schema['enum']))}")
    if schema.get("format") == "date" and not _is_date(value):
        yield Problem(path, "has to be a date such as 2026-03-31")
    if isinstance(value, dict):
        yield from _of_object(value, schema, path)
    if isinstance(value, list):
        if len(value) < schema.get("minItems", 0):
            yield Problem(path, "has to have at least one item")
        for number, item in enumerate(value):
            yield from violations(item, schema.get("items", {}), (*path, str(number)))


def _of_object(value: dict[str, Any], schema: Schema, path: tuple[str, ...]) -> Iterator[Problem]:
    properties = schema.get("properties", {})
    for name in schema.get("required", ()):
        if name not in value:
            yield Problem((*path, name), "is missing")
    for name, inner in value.items():
        by_pattern = [
            each
            for pattern, each in schema.get("patternProperties", {}).items()
            if re.search(pattern, name)
        ]
        for known in (*([properties[name]] if name in properties else []), *by_pattern):
            yield from violations(inner, known, (*path, name))
        if name not in properties and not by_pattern and schema.get("additionalProperties") is False:
            yield Problem((*path, name), "is not known")


def _referred(name: str) -> Schema:
    found: Schema = deployments_schema()["$defs"][name.removeprefix("#/$defs/")]
    return found


def _is_of(value: Any, kinds: str | list[str]) -> bool:
    wanted = [kinds] if isinstance(kinds, str) else kinds
    if isinstance(value, bool):  # which Python takes for a number
        return False
    whole = isinstance(value, float) and value.is_integer() and "integer" in wanted
    return whole or any(isinstance(value, _KINDS[kind]) for kind in wanted)


def _in_words(kinds: str | list[str]) -> str:
    words = {"array": "a list", "integer": "a whole number", "number": "a number", "object": "a table"}
    return " or ".join(words.get(k, "text") for k in ([kinds] if isinstance(kinds, str) else kinds))


def _is_date(value: Any) -> bool:
    try:
        return bool(re.fullmatch(r"\d{4}-\d{2}-\d{2}", value, re.ASCII) and date.fromisoformat(value))
    except ValueError:
        return False
