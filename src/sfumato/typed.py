"""Values from outside, held against the types that a signature names.

JSON has numbers where a field wants a word, and lists where it wants a tuple. What a file says is
checked here once, so that no later line has to expect anything.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import cache
from itertools import repeat
from math import isfinite
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import numpy as np

from sfumato.checks import shown

_T = TypeVar("_T")
_Tuples = tuple[type[list[Any] | tuple[Any, ...]], ...]


def fits(value: Any, hint: Any) -> bool:
    """Whether a value from JSON is of a type; of types that JSON cannot hold, nothing is known."""
    return _of_type(value, hint, _fits_word, (list, tuple))


def holds(value: Any, hint: Any) -> bool:
    """Whether a value in memory is of a type; ``Any``, protocols and type variables say nothing."""
    return _of_type(value, hint, _holds_word, (tuple,))


def _of_type(
    value: Any,
    hint: Any,
    word: Callable[[Any, Any], bool],
    tuples: tuple[type[list[Any] | tuple[Any, ...]], ...],
) -> bool:
    """Types made of others; ``word`` judges the rest, ``tuples`` are what may stand for a tuple."""
    origin, inner = get_origin(hint), get_args(hint)

    def each(values: Any, hints: Any) -> bool:
        return all(_of_type(one, of, word, tuples) for one, of in zip(values, hints, strict=False))

    if origin in (Union, UnionType):
        return any(_of_type(value, one, word, tuples) for one in inner)
    if origin is Literal:
        return any(type(value) is type(one) and value == one for one in inner)
    if origin is tuple and inner[-1] is not Ellipsis:
        return isinstance(value, tuples) and len(value) == len(inner) and each(value, inner)
    if origin in (tuple, list, Sequence):
        return isinstance(value, list | tuple) and each(value, repeat(inner[0]))
    if origin in (dict, Mapping):
        return isinstance(value, Mapping) and all(each(item, inner) for item in value.items())
    return word(value, hint)


def _fits_word(value: Any, hint: Any) -> bool:
    if hint in (bool, str, NoneType):
        return isinstance(value, hint)
    if hint in (int, float):  # a whole float will do for a count
        return _is_number(value) and (hint is float or value == value // 1)
    return True


def _holds_word(value: Any, hint: Any) -> bool:
    if get_origin(hint) is np.ndarray:
        return isinstance(value, np.ndarray)
    if hint in (int, float):
        return _is_number(value) and (hint is float or isinstance(value, int))
    says_nothing = hint is Any or not isinstance(hint, type) or getattr(hint, "_is_protocol", False)
    return says_nothing or isinstance(value, hint)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def check_fields(data: Any, hints: Mapping[str, Any], what: str) -> dict[str, Any]:
    """The fields of a JSON object, each known and of its type; lists become tuples where due."""
    if not isinstance(data, dict):
        raise TypeError(f"{shown(data)} has no fields")
    for name, value in data.items():
        if name not in hints:
            raise ValueError(f"{what} has a field {name!r} that this version does not know")
        if not fits(value, hints[name]):
            raise ValueError(f"{name} of {what} cannot be {shown(value)}")
    return {name: _with_tuples(value, hints[name]) for name, value in data.items()}


def made_of(make: Callable[..., _T], data: Any, what: str) -> _T:
    """A record, or an object by its constructor, from a JSON object with the same names and types."""
    try:
        return make(**check_fields(data, hints_of(make), what))
    except TypeError as error:
        raise ValueError(f"fields of {what} are missing: {error}") from error


def whole_number(value: Any, what: str, least: int = 0) -> int:
    if not fits(value, int) or isinstance(value, float) or value < least:
        raise ValueError(f"{what} must be a whole number from {least} on, not {shown(value)}")
    return int(value)


def finite_number(value: Any, what: str) -> float:
    if not fits(value, float) or not isfinite(value):
        raise ValueError(f"{what} must be a finite number, not {shown(value)}")
    return float(value)


@cache
def hints_of(make: Callable[..., Any]) -> Mapping[str, Any]:
    """The types that a record's fields, or a constructor's arguments, are said to have."""
    if is_dataclass(make):
        known = get_type_hints(make)
        return {field.name: known[field.name] for field in fields(make) if field.init}
    known = get_type_hints(vars(make).get("__init__", make))
    return {name: hint for name, hint in known.items() if name != "return"}


def _with_tuples(value: Any, hint: Any) -> Any:
    """Lists as tuples where the hint, or one of its alternatives, says so; tuples of tuples too."""
    for each in (hint, *get_args(hint)):
        if get_origin(each) is tuple and isinstance(value, list):
            return tuple(_with_tuples(one, get_args(each)[0]) for one in value)
    return value
