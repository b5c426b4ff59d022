"""Labels of levels: numbering them as batches of a table come in, and cutting times to bins."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from sfumato.data.io.arrow import filled, from_numpy, to_numpy
from sfumato.data.tensor import TIME_BINS
from sfumato.errors import DataError, SettingError
from sfumato.surface import setting

# Which types have a written form, or times, Arrow alone knows; this is how it says that one has none.
# Both become an error that names the column.
_NO_TEXT = (pa.ArrowNotImplementedError, pa.ArrowInvalid)  # lists, structs, bytes that are no text
_NO_TIMES = (pa.ArrowNotImplementedError, TypeError)  # booleans, lists
_WHOLE_NUMBER = r"^(0|-?[1-9][0-9]*)$"
_EXACT_IN_FLOAT = 2.0**53
_KINDS = {"int64": "whole numbers", "double": "numbers", "large_string": "text"}  # of keys, in words

_BIN_FORMATS = {"hour": "%Y-%m-%dT%H", "day": "%Y-%m-%d", "week": "%G-W%V", "month": "%Y-%m"}
# Labels that are no dates themselves; those of hours and days are read as any other date.
_BIN_LABELS = {"week": r"^\d{4}-W(0[1-9]|[1-4]\d|5[0-3])$", "month": r"^\d{4}-(0[1-9]|1[0-2])$"}
_EPOCH_SECONDS = r"^-?\d+(\.\d*)?$"
_LIKE_A_DATE = re.compile(r"\s*\d{1,4}[./-]\d{1,2}[./-]\d{1,4}\b|\s*\d{1,2}\.? \w+ \d{4}")
_ZONE = r"(Z|[+-]\d\d:?\d\d)$"
# The years 1 to 9999. Milliseconds taken for seconds fall outside and so are noticed.
_FIRST_SECOND, _LAST_SECOND = -62_135_596_800, 253_402_300_799


class LabelEncoder:
    """Numbers the labels of one column over any number of batches.

    Whole numbers become int64 labels, whatever their width; so do floats if all of them are whole.
    Everything else becomes text. With ``numbers_as_text`` (CSV) text becomes int64 too, provided
    that every label is a whole number as one would write it: no sign +, no leading zeros.
    """

    def __init__(self, column: str, *, numbers_as_text: bool = False) -> None:
        self._column = column
        self._numbers_as_text = numbers_as_text
        self._known: Any = None
        self._nulls = 0

    def encode(self, array: Any) -> NDArray[np.int32]:
        """Provisional codes of one Arrow array; -1 for a null, which ``finish`` will refuse."""
        if pa.types.is_uint64(array.type):
            # May exceed int64: going through text keeps every number exact.
            self._numbers_as_text = True
        keys = _as_keys(array, self._column)
        self._check_kind(keys.type)
        self._nulls += keys.null_count
        batch = keys.dictionary_encode()
        distinct = batch.dictionary
        if self._known is None:
            self._known = distinct[:0]
        codes = filled(pc.index_in(distinct, value_set=self._known), -1)
        codes = np.append(to_numpy(codes), np.int32(-1))
        new = np.flatnonzero(codes[:-1] < 0)
        codes[new] = np.arange(len(self._known), len(self._known) + new.size)
        self._known = pa.concat_arrays([self._known, distinct.take(from_numpy(new))])
        # The last code stands for nulls.
        positions = to_numpy(filled(batch.indices, len(distinct)))
        return np.asarray(codes[positions], np.int32)

    def finish(self) -> tuple[NDArray[Any], NDArray[np.int32]]:
        """Sorted labels, and for each provisional code its place among them."""
        self.check_nulls()
        labels = self._final_labels()
        order = pc.array_sort_indices(labels)
        remap = np.empty(len(labels), np.int32)
        remap[to_numpy(order)] = np.arange(len(labels), dtype=np.int32)
        return to_numpy(labels.take(order)), remap

    def check_nulls(self) -> None:
        """Refuse rows without a label."""
        if self._nulls:
            raise DataError(
                f"column {self._column!r} has {self._nulls:,} rows without a label: leave them "
                "out or give them a label"
            )

    def _check_kind(self, kind: Any) -> None:
        """Refuse labels of another kind than those before, as one of several files may have."""
        if self._known is not None and kind != self._known.type:
            before, now = (_KINDS[str(each)] for each in (self._known.type, kind))
            raise DataError(
                f"column {self._column!r} holds {now} here and {before} before: save it with one type "
                "everywhere"
            )

    def _final_labels(self) -> Any:
        known = pa.array([], pa.int64()) if self._known is None else self._known
        if pa.types.is_floating(known.type):
            return _labels_from_floats(known)
        if pa.types.is_large_string(known.type) and self._numbers_as_text:
            return _numbers_if_all_are(known)
        return known


def _as_keys(array: Any, column: str) -> Any:
    """The array as int64, float64 or large_string: the three kinds that are compared."""
    if isinstance(array, pa.DictionaryArray):
        array = array.dictionary_decode()
    kind = array.type
    if pa.types.is_integer(kind) and not pa.types.is_uint64(kind):
        return array.cast(pa.int64())
    if pa.types.is_floating(kind):
        # Adding zero makes one label of 0.0 and -0.0.
        return pc.add(nan_to_null(array.cast(pa.float64())), 0.0)
    if pa.types.is_boolean(kind):
        return pc.if_else(array, "True", "False").cast(pa.large_string())
    if pa.types.is_timestamp(kind):
        return _timestamps_as_text(array)
    try:
        return array.cast(pa.large_string())
    except _NO_TEXT as error:
        raise DataError(f"column {column!r} of type {kind} cannot hold labels: {error}") from error


def nan_to_null(array: Any) -> Any:
    """A float array with null for NaN, which pandas and polars mix up with it."""
    return pc.if_else(pc.is_nan(array), pa.scalar(None, array.type), array)


def _timestamps_as_text(array: Any) -> Any:
    """ISO text without trailing zeros: pandas and polars keep the same time at other precisions."""
    if array.type.tz is not None:
        array = array.cast(pa.timestamp(array.type.unit, "UTC"))
    text = array.cast(pa.large_string())
    return pc.replace_substring_regex(
        text, pattern=r"(:\d\d)(\.\d*[1-9])?\.?0*(Z?)$", replacement=r"\1\2\3"
    )


def _labels_from_floats(labels: Any) -> Any:
    """Whole numbers without their point. Each label's text is its own, whatever others there are."""
    numbers = labels.to_numpy(zero_copy_only=False)
    whole = (np.floor(numbers) == numbers) & (np.abs(numbers) <= _EXACT_IN_FLOAT)
    if whole.all():
        return pa.array(numbers.astype(np.int64))
    pairs = zip(numbers.tolist(), whole.tolist(), strict=True)
    return pa.array([str(int(x) if is_whole else x) for x, is_whole in pairs], pa.large_string())


def _numbers_if_all_are(labels: Any) -> Any:
    if not pc.all(pc.match_substring_regex(labels, pattern=_WHOLE_NUMBER)).as_py():
        return labels
    try:
        return labels.cast(pa.int64())
    except pa.ArrowInvalid:  # more digits than 64 bits hold
        return labels


def check_bin(name: str) -> str:
    """The name of a time bin, or an error that lists them."""
    if name not in TIME_BINS:
        raise SettingError(f"unknown time bin {name!r}: use one of {', '.join(TIME_BINS)}")
    return name


def check_date_format(format: str) -> str:
    """How dates are written, as ``datetime.strptime`` has it, or an error that says how to say it."""
    if not isinstance(format, str) or not re.search(r"%[a-zA-Z]", format):
        raise SettingError(
            f"{setting('date_format')} says how dates are written: %d/%m/%Y for 31/12/2020, %m/%d/%Y "
            f"for 12/31/2020, got {format!r}"
        )
    return format


def bin_times(array: Any, bin: str, *, column: str = "time", date_format: str | None = None) -> Any:
    """Labels of the hour, day, ISO week or month (UTC) of each time in an Arrow array.

    Numbers are seconds since 1970; text is such a number or an ISO date, with or without a time, or is
    written in ``date_format``. Labels that are bins already stay as they are.
    """
    check_bin(bin)
    if isinstance(array, pa.DictionaryArray):
        array = array.dictionary_decode()
    if date_format is not None and is_text(array.type):
        array = dates_from_text(array, date_format, column)
    try:
        return _bin_times(array, bin)
    except pa.ArrowInvalid as error:
        example = first_refused(array, lambda part: _bin_times(part, bin))
        raise DataError(
            f"column {column!r}: {example!r} is not a time. {_times_hint(example)}"
        ) from error
    except _NO_TIMES as error:
        raise DataError(f"column {column!r} of type {array.type} does not hold times") from error


def _times_hint(example: Any) -> str:
    if _LIKE_A_DATE.match(str(example)):
        return (
            f"If it is a date, say how it is written with {setting('date_format')}: %d/%m/%Y has the "
            "day first, %m/%d/%Y the month"
        )
    return (
        "Use seconds (not milliseconds) since 1970-01-01 UTC, or ISO dates and times such as 1998-04-02 "
        "or 1998-04-02T13:05:00"
    )


def dates_from_text(array: Any, format: str, column: str) -> Any:
    """Text as timestamps. Nothing is guessed: what is not written in the format is an error."""
    given = array.cast(pa.string()).dictionary_encode()
    try:
        dates = _dates(given.dictionary, check_date_format(format))
    except pa.ArrowInvalid as error:
        example = first_refused(given.dictionary, lambda part: _dates(part, format))
        raise DataError(
            f"column {column!r}: {example!r} is no date written as {format}. Say how dates are written "
            f"with {setting('date_format')}: %d/%m/%Y has the day first, %m/%d/%Y the month"
        ) from error
    return dates.take(given.indices)


def _dates(text: Any, format: str) -> Any:
    tidy = pc.utf8_trim_whitespace(text)
    dates = pc.strptime(tidy, format=format, unit="s")
    # Arrow takes 31 February for 2 March: written again, a date has to be what it was.
    again = pc.strftime(dates, format=format)
    if not pc.all(pc.equal(_plain(again), _plain(tidy)), min_count=0).as_py():
        raise pa.ArrowInvalid("there is no such day")
    return dates


def _plain(text: Any) -> Any:
    """Without zeros before numbers, and in small letters."""
    return pc.utf8_lower(pc.replace_substring_regex(text, pattern=r"\b0+(\d)", replacement=r"\1"))


def _bin_times(array: Any, bin: str) -> Any:
    if not is_text(array.type):
        return _bin_labels(_instants(array), bin)
    text = array.cast(pa.string())
    if bin not in _BIN_LABELS:
        return _bin_labels(_instants_from_text(text), bin)
    ready = pc.match_substring_regex(text, pattern=_BIN_LABELS[bin])
    raw = pc.if_else(ready, pa.scalar(None, pa.string()), text)
    return pc.if_else(ready, text, _bin_labels(_instants_from_text(raw), bin))


def is_text(kind: Any) -> bool:
    """Whether an Arrow type is one of its kinds of text."""
    return bool(
        pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)
    )


def _bin_labels(instants: Any, bin: str) -> Any:
    # Formatting is slow and every bin is made of whole hours: each hour is formatted once.
    hours = pc.floor_temporal(instants, unit="hour").dictionary_encode()
    labels = pc.strftime(hours.dictionary, format=_BIN_FORMATS[bin])
    return labels.take(hours.indices)


def _instants(array: Any) -> Any:
    """Numbers, dates or timestamps as Arrow timestamps in seconds, UTC, without a zone."""
    kind = array.type
    if pa.types.is_null(kind):
        return array.cast(pa.timestamp("s"))
    if pa.types.is_floating(kind):
        array = pc.floor(nan_to_null(array.cast(pa.float64()))).cast(pa.int64())
    elif pa.types.is_integer(kind):
        array = array.cast(pa.int64())
    elif pa.types.is_timestamp(kind):
        if kind.tz is not None:
            array = array.cast(pa.timestamp(kind.unit, "UTC")).cast(pa.timestamp(kind.unit))
        return pc.floor_temporal(array, unit="second").cast(pa.timestamp("s"))
    elif pa.types.is_date(kind):
        return array.cast(pa.timestamp("s"))
    else:
        raise TypeError(f"{kind} is not a time")
    span = pc.min_max(array).as_py()
    if span["min"] is not None and (span["min"] < _FIRST_SECOND or span["max"] > _LAST_SECOND):
        raise pa.ArrowInvalid("outside the years 1 to 9999")
    return array.cast(pa.timestamp("s"))


def _instants_from_text(text: Any) -> Any:
    is_number = pc.match_substring_regex(text, pattern=_EPOCH_SECONDS)
    nothing = pa.scalar(None, pa.string())
    from_numbers = _instants(pc.if_else(is_number, text, nothing).cast(pa.float64()))
    return pc.coalesce(from_numbers, _instants_from_iso(pc.if_else(is_number, nothing, text)))


def _instants_from_iso(text: Any) -> Any:
    # Arrow wants a time of day with a zone, and no fraction for whole seconds.
    text = pc.replace_substring_regex(text, pattern=r"^(\d{4}-\d\d-\d\d)$", replacement=r"\1T00")
    text = pc.replace_substring_regex(text, pattern=r"(:\d\d)\.\d+", replacement=r"\1")
    zoned = pc.match_substring_regex(text, pattern=_ZONE)
    text = pc.if_else(zoned, text, pc.binary_join_element_wise(text, "Z", ""))
    return text.cast(pa.timestamp("s", "UTC")).cast(pa.timestamp("s"))


def first_refused(array: Any, convert: Callable[[Any], Any]) -> Any:
    """The first value on which a conversion fails, found by halving; one must fail."""
    while len(array) > 1:
        half = array[: len(array) // 2]
        try:
            convert(half)
        except pa.ArrowInvalid:
            array = half
        else:
            array = array[len(half) :]
    return array[0].as_py()
