"""Plain data as YAML: block style, so that people read and compare it; no tags, anchors or folding.

A package for it would be a dependency for forty lines; what is written is read back by one in the tests.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from math import inf, isnan
from typing import Any

_HIDDEN = re.compile(
    r"[\x7f-\x9f\u2028\u2029\ud800-\udfff\ufeff\ufffe\uffff]"
)  # which JSON leaves as they are
_SHOWN_LINE = re.compile(r"[^\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff\ufeff\ufffe\uffff]+(?<!\s)")
_WORD = re.compile(r"(?!(y|n|yes|no|on|off|true|false|null)$)[a-z_][a-z0-9_]*")  # those are no words


def to_yaml(data: Mapping[str, Any]) -> str:
    """A document of nested mappings, lists and scalars."""
    return "\n".join(_mapping(data, "")) + "\n"


def _mapping(data: Mapping[str, Any], indent: str) -> Iterator[str]:
    for name, value in data.items():
        key = name if _WORD.fullmatch(name) else _quoted(name)
        if isinstance(value, Mapping) and value:
            yield f"{indent}{key}:"
            yield from _mapping(value, f"{indent}  ")
        elif isinstance(value, list) and value:
            yield f"{indent}{key}:"
            for item in value:
                yield from _item(item, f"{indent}  ")
        else:
            first, *more = _scalar(value, f"{indent}  ")
            yield f"{indent}{key}: {first}"
            yield from more


def _item(item: Any, indent: str) -> Iterator[str]:
    inner = f"{indent}  "
    if isinstance(item, Mapping) and item:
        first, *more = _mapping(item, inner)
        yield f"{indent}- {first.removeprefix(inner)}"
    else:
        first, *more = _scalar(item, inner)
        yield f"{indent}- {first}"
    yield from more


def _scalar(value: Any, indent: str) -> list[str]:
    """A value that has no parts: text of several lines as a block that keeps them."""
    if isinstance(value, float):
        if abs(value) == inf or isnan(value):
            return [".nan" if isnan(value) else ".inf" if value > 0 else "-.inf"]
        digits = repr(value)  # 1e-06 has no point, and a reader of YAML 1.1 would take it for text
        return [digits if "." in digits or "e" not in digits else digits.replace("e", ".0e")]
    if isinstance(value, str):
        lines = value.split("\n")
        shown = all(not line or _SHOWN_LINE.fullmatch(line) for line in lines)
        if len(lines) > 1 and shown and lines[-1] and not value.lstrip("\n").startswith(" "):
            return ["|-", *(f"{indent}{line}" if line else "" for line in lines)]
        return [_quoted(value)]
    return [json.dumps(value)]  # a whole number, true, null, or an empty mapping or list


def _quoted(text: str) -> str:
    return _HIDDEN.sub(lambda found: f"\\u{ord(found[0]):04x}", json.dumps(text, ensure_ascii=False))
