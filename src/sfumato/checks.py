"""Checks of settings: an error names the setting, what it has to be, and what was given.

Numbers may be Python's or NumPy's. A bool is none, although Python counts with it: ``rank=True`` is a
slip. Sizes lie between 1e-60 and 1e60, so that their squares, and products of a few of them, stay within
the range of double precision.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Collection
from dataclasses import fields, is_dataclass, replace
from math import isfinite
from numbers import Integral, Real
from pathlib import Path
from types import UnionType
from typing import Any, TypeGuard, TypeVar

import numpy as np
from numpy.typing import DTypeLike, NDArray

from sfumato.errors import DataError, SettingError
from sfumato.surface import setting

_Record = TypeVar("_Record", bound=Any)
LEAST_SIZE, MOST_SIZE = 1e-60, 1e60
MOST_COUNT = 2**53  # doubles skip some of the whole numbers beyond
MOST_ROUNDS = 100_000  # of a private fit, which lists all its draws beforehand
_MOST_SEED = 2**128  # what the operating system's entropy fills
_MOST_THREADS = 4096
_MOST_NAME = 255  # bytes of a file's name
_MOST_SHOWN = 80  # letters of a value in an error


def shown(value: object) -> str:
    """A value as it stands in an error: short, whatever it is."""
    try:
        text = repr(value)
    except Exception:  # a foreign object, or a number of too many digits
        return f"a value of type {type(value).__name__}"
    text = " ".join(text.split())
    return text if len(text) <= _MOST_SHOWN else f"{text[: _MOST_SHOWN - 3]}..."


def wrong(name: str, wanted: str, value: object) -> SettingError:
    """The error of a setting that has to be something else."""
    named = setting(name) if name.isidentifier() else name
    return SettingError(f"{named} must be {wanted}, got {shown(value)}")


def given(**settings: Any) -> dict[str, Any]:
    """The settings that are not left open."""
    return {name: value for name, value in settings.items() if value is not None}


# -- numbers --------------------------------------------------------------------------------------


def is_number(value: object) -> TypeGuard[float]:
    """A finite number; a whole one has 64 bits at most, as compiled code has."""
    if isinstance(value, bool) or not isinstance(value, Real) or _is_long(value):
        return False
    return isfinite(value)


def _is_long(value: object) -> bool:
    return isinstance(value, Integral) and not -(2**63) <= int(value) < 2**63


def _no_number(name: str, wanted: str, value: object) -> SettingError:
    bits = ", with 64 bits at most or written as a float" if _is_long(value) else ""
    return wrong(name, f"a number {wanted}{bits}", value)


def is_whole(value: object) -> TypeGuard[int]:
    return isinstance(value, Integral) and not isinstance(value, bool)


def check_count(least: int = 1, most: int = MOST_COUNT, /, **settings: object) -> None:
    """Each setting a whole number from ``least`` on."""
    for name, value in settings.items():
        if not is_whole(value) or value < least:
            raise wrong(name, f"a whole number from {least} on", value)
        if value > most:
            raise wrong(name, f"a whole number of at most {most:,}", value)


def check_threads(threads: object) -> None:
    """A number of threads, or None for all cores."""
    if threads is not None and not (is_whole(threads) and 1 <= threads <= _MOST_THREADS):
        raise wrong(
            "threads", f"a whole number from 1 to {_MOST_THREADS}, or None for all cores", threads
        )


def check_seed(**settings: object) -> None:
    """Each setting a seed: a whole number from zero on."""
    for name, value in settings.items():
        if not is_whole(value) or not 0 <= value < _MOST_SEED:
            raise wrong(name, "a whole number from 0 on (below 2^128)", value)


def check_positive(**settings: object) -> None:
    """Each setting a number above zero, of a size that can be computed with."""
    for name, value in settings.items():
        if not is_number(value) or value <= 0:
            raise _no_number(name, "above zero", value)
        if not LEAST_SIZE <= float(value) <= MOST_SIZE:  # in double precision, whatever the number's own
            raise _no_number(name, f"between {LEAST_SIZE:g} and {MOST_SIZE:g}", value)


def check_number(least: float = -MOST_SIZE, most: float = MOST_SIZE, /, **settings: object) -> None:
    """Each setting a number from ``least`` to ``most``."""
    for name, value in settings.items():
        if not is_number(value) or not least <= float(value) <= most:
            raise _no_number(name, f"from {least:g} to {most:g}", value)


def check_share(none: bool = False, /, **settings: object) -> None:
    """Each setting a share: a number above zero and below one; with ``none`` also zero."""
    for name, value in settings.items():
        if not is_number(value) or not 0 <= value < 1 or (value == 0 and not none):
            raise _no_number(name, "at least 0 and below 1" if none else "between 0 and 1", value)


def as_pair(name: str, value: Any, wanted: str = "two numbers") -> tuple[float, float]:
    """A setting that is two numbers, as such."""
    numbers = as_list(name, value, wanted)
    if len(numbers) != 2 or not all(is_number(number) for number in numbers):
        raise wrong(name, wanted, value)
    return float(numbers[0]), float(numbers[1])


def as_numbers(name: str, value: Any) -> NDArray[np.float64]:
    """Data that are numbers, in double precision."""
    try:
        return np.asarray(value, np.float64)
    except (TypeError, ValueError, OverflowError) as error:
        raise DataError(f"{name} must be numbers, got {shown(value)}") from error


def as_one_column(y: NDArray[Any]) -> NDArray[Any]:
    """Values that are given as the one column of a table, with scikit-learn's warning of it."""
    if y.ndim != 2 or y.shape[1] != 1:
        return y
    from sklearn.exceptions import DataConversionWarning

    message = "A column-vector y was passed when a 1d array was expected: y.ravel() is one"
    warnings.warn(message, DataConversionWarning, stacklevel=2)
    return y[:, 0]


# -- records --------------------------------------------------------------------------------------


def plain(record: _Record) -> _Record:
    """A record with Python's numbers in place of NumPy's, whose small ones overflow when summed."""
    changes = _plain_numbers(record)
    return replace(record, **changes) if changes else record


def make_plain(record: Any) -> None:
    """The same of a frozen record while it is made."""
    for name, number in _plain_numbers(record).items():
        object.__setattr__(record, name, number)


def _plain_numbers(record: Any) -> dict[str, Any]:
    if not is_dataclass(record):
        return {}
    values = {field.name: getattr(record, field.name) for field in fields(record)}
    return {name: value.item() for name, value in values.items() if isinstance(value, np.generic)}


# -- lists and paths ------------------------------------------------------------------------------


def as_list(name: str, value: Any, wanted: str) -> list[Any]:
    """A setting that is a list, a tuple, a range or an array of one dimension, as a list."""
    several = isinstance(value, list | tuple | range)
    if not several and not (isinstance(value, np.ndarray) and value.ndim == 1):
        raise wrong(name, wanted, value)
    return list(value)


def as_names(name: str, value: Any) -> list[str]:
    """A setting that is a list of names."""
    names = as_list(name, value, "a list of names")
    if not all(isinstance(each, str) for each in names):
        raise wrong(name, "a list of names", value)
    return names


def as_path(name: str, value: Any) -> Path:
    """A setting that is the path of a file or folder."""
    if not isinstance(value, str | os.PathLike) or "\x00" in str(value):
        raise wrong(name, "the path of a file or folder", value)
    if any(len(os.fsencode(part)) > _MOST_NAME for part in Path(value).parts):
        raise wrong(name, f"a path with names of at most {_MOST_NAME} bytes", value)
    return Path(value)


# -- other settings -------------------------------------------------------------------------------


def check_flag(**settings: object) -> None:
    """Each setting true or false."""
    for name, value in settings.items():
        if not isinstance(value, bool | np.bool_):
            raise wrong(name, "True or False", value)


def check_choice(choices: Collection[str], /, **settings: object) -> None:
    """Each setting one of the names."""
    for name, value in settings.items():
        if not isinstance(value, str) or value not in choices:
            raise wrong(name, f"one of {', '.join(choices)}", value)


def check_text(**settings: object) -> None:
    """Each setting a name."""
    for name, value in settings.items():
        if not isinstance(value, str):
            raise wrong(name, "text", value)


def check_kind(kind: type | UnionType, wanted: str, /, **settings: object) -> None:
    """Each setting an object of some kind, called ``wanted`` in words."""
    for name, value in settings.items():
        if not isinstance(value, kind):
            raise wrong(name, wanted, value)


def check_progress(progress: object) -> None:
    """What is told of progress: a function, or None; True for a bar."""
    if progress is not None and not callable(progress) and not isinstance(progress, bool):
        raise wrong("progress", "a function of what is done, True for a bar, or None", progress)


def as_precision(dtype: DTypeLike) -> np.dtype[Any]:
    """Single or double precision."""
    try:
        found = np.dtype(dtype)
    except Exception as error:  # NumPy has several for what is no type
        raise wrong("dtype", "float32 or float64", dtype) from error
    if found not in (np.float32, np.float64):
        raise wrong("dtype", "float32 or float64", dtype)
    return found
