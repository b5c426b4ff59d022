"""Plain data: the records that plans, queries, statistics and releases are made of.

A record is a frozen dataclass or a named tuple whose fields are numbers, texts, flags, None, arrays,
tuples and mappings of these, and other records. What is marked by :func:`record` can be sent
(:mod:`sfumato.wire`) and compared.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any, TypeVar

import numpy as np

_T = TypeVar("_T", bound=type)
KINDS: dict[str, type] = {}  # by the name that they are sent under


def record(kind: _T) -> _T:
    """Mark a frozen dataclass or named tuple as plain data, known by its module and name."""
    KINDS[name_of(kind)] = kind
    return kind


def name_of(kind: type) -> str:
    """The name that records of a kind are sent under: where it lives, without the package's own name."""
    return f"{kind.__module__.removeprefix('sfumato.')}.{kind.__qualname__}"


def parts_of(plain: Any) -> dict[str, Any]:
    """The fields of a record by name; those that a dataclass makes up itself are left out."""
    if is_dataclass(plain):
        return {field.name: getattr(plain, field.name) for field in fields(plain) if field.init}
    named: dict[str, Any] = plain._asdict()
    return named


def is_record(plain: Any) -> bool:
    return KINDS.get(name_of(type(plain))) is type(plain)


def alike(first: Any, second: Any, tolerance: float) -> bool:
    """Whether two pieces of plain data are equal but for what other processors round differently.

    Numbers may differ by the tolerance, over the largest of their array; all else has to be equal.
    """
    if type(first) is not type(second):
        return False
    if isinstance(first, np.ndarray):
        if first.dtype != second.dtype or first.shape != second.shape:
            return False
        if first.dtype.kind != "f":
            return bool((first == second).all())
        apart, largest = np.abs(first - second), np.abs(first).max(initial=0.0)
        return bool((apart <= tolerance * largest).all()) or same(first, second)
    if is_record(first):
        return alike(parts_of(first), parts_of(second), tolerance)
    if isinstance(first, Mapping):
        return first.keys() == second.keys() and all(
            alike(first[key], second[key], tolerance) for key in first
        )
    if isinstance(first, tuple | list):
        pairs = zip(first, second, strict=False)
        return len(first) == len(second) and all(alike(*pair, tolerance) for pair in pairs)
    if isinstance(first, float):
        return abs(first - second) <= tolerance * abs(first) or same(first, second)
    return same(first, second)


def same(first: Any, second: Any) -> bool:
    """Whether two pieces of plain data are equal to the last bit; what is not a number equals itself."""
    if first is second:
        return True
    if type(first) is not type(second):
        return False
    if isinstance(first, np.ndarray):
        alike = first.dtype == second.dtype and first.shape == second.shape
        return bool(alike and (first.tobytes() == second.tobytes()))
    if is_record(first):
        return same(parts_of(first), parts_of(second))
    if isinstance(first, Mapping):
        return first.keys() == second.keys() and all(same(first[key], second[key]) for key in first)
    if isinstance(first, tuple | list):
        return len(first) == len(second) and all(map(same, first, second))
    if isinstance(first, np.generic):
        return bool(first.tobytes() == second.tobytes())
    return first.hex() == second.hex() if isinstance(first, float) else bool(first == second)
