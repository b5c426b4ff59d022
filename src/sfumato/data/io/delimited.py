"""Tables of text with commas or other separators: told apart by the header, read, and added to."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv
from numpy.typing import NDArray

from sfumato.data.io.files import HEAD_BYTES, head_of, open_text
from sfumato.errors import DataError, SettingError

BLOCK_BYTES = 1 << 25

_USUAL = {"csv": ",", "tsv": "\t"}
_SNIFFED = (",", ";", "\t", "|")
_IN_WORDS = {"tab": "\t", "\\t": "\t"}
_NO_SEPARATOR = "\"'.+-_\r\n\0"  # which stand inside fields, or end a line
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_QUOTED = rb'"(?:[^"]|"")*+"'
_FIRST_LINE = re.compile(rb"[\r\n]*+((?:" + _QUOTED + rb'|[^"\r\n]|")*+)')


# -- separators -----------------------------------------------------------------------------------


def check_separator(given: str | None) -> str | None:
    """A separator as the character that it is."""
    if given is None:
        return None
    if not isinstance(given, str):
        raise SettingError(f'separator is text such as ";" or "tab", got {given!r}')
    character = _IN_WORDS.get(given, given)
    usable = len(character) == 1 and character.isascii() and not character.isalnum()
    if not usable or character in _NO_SEPARATOR:
        raise SettingError(
            f'separator is one character between fields, such as ";", or "tab" in words, got {given!r}'
        )
    return character


def _separator(head: bytes, kind: str, given: str | None) -> str:
    """The separator that was given, else the kind's own, or where its header has none another."""
    usual = _USUAL[kind]
    if given is not None:
        return given
    line = _FIRST_LINE.match(head)
    bare = b"" if line is None else re.sub(_QUOTED, b"", line[1])
    if usual.encode() in bare:
        return usual
    best = max(_SNIFFED, key=lambda each: bare.count(each.encode()))
    return best if best.encode() in bare else usual


# -- records --------------------------------------------------------------------------------------


@cache
def _grammar(separator: str) -> tuple[re.Pattern[bytes], re.Pattern[bytes]]:
    """What a field is and what a record is, just as Arrow cuts them: quotes count at a field's start."""
    between = re.escape(separator.encode())
    field = rb"(?:" + _QUOTED + rb")?+[^" + between + rb"\r\n]*+"
    record = rb"((?:" + field + between + rb")*+" + field + rb")(\r\n|\r|\n|\Z)"
    return re.compile(rb"(" + field + rb")(" + between + rb"|\Z)"), re.compile(record)


def _records(text: bytes, separator: str) -> Iterator[tuple[bytes, bytes]]:
    """Each record and the end of its line; lines without a character are records without one."""
    _, record = _grammar(separator)
    place = 0
    while place < len(text):
        found = record.match(text, place)
        if found is None:  # cannot be: a record may be empty
            raise ValueError("its lines cannot be told apart")
        place = found.end()
        yield found[1], found[2]


def _header(head: bytes, separator: str) -> list[str]:
    """The names in the first line that is not empty."""
    whole = head.removeprefix(_BYTE_ORDER_MARK)
    line, end = next((each for each in _records(whole, separator) if each[0]), (b"", b""))
    if not line:
        return []
    if not end and len(head) >= HEAD_BYTES:
        raise ValueError(f"its first line, which names the columns, is longer than {HEAD_BYTES:,} bytes")
    field, _ = _grammar(separator)
    names, found = list[str](), field.match(line)
    while found is not None:
        names.append(_unquoted(found[1]).decode())
        found = field.match(line, found.end()) if found[2] else None  # nothing follows the last
    return names


def _unquoted(field: bytes) -> bytes:
    quoted = re.match(_QUOTED, field)
    if quoted is None:
        return field
    return quoted[0][1:-1].replace(b'""', b'"') + field[quoted.end() :]


# -- reading --------------------------------------------------------------------------------------


def column_names(path: Path, kind: str, separator: str | None) -> list[str]:
    """The columns of a file, by its header."""
    with open_text(path) as stream:
        head = head_of(stream)
        return _header(head, _separator(head, kind, separator))


def stream(
    path: Path, kind: str, separator: str | None, choose: Callable[[Sequence[str]], list[str]]
) -> Iterator[pa.RecordBatch]:
    """Batches of the columns that are chosen among those there are, as text. A file is opened once."""
    with open_text(path) as source:
        head = head_of(source)
        cut = _separator(head, kind, separator)
        names = choose(_header(head, cut))
        options = pacsv.ConvertOptions(
            include_columns=names,
            # Values too are read as text, so that a wrong one can be shown.
            column_types=dict.fromkeys(names, pa.string()),
            null_values=[""],
            strings_can_be_null=True,
        )
        yield from pacsv.open_csv(
            source, pacsv.ReadOptions(block_size=BLOCK_BYTES), _parse(cut), options
        )


def read_whole(path: Path, kind: str, separator: str | None, as_text: Sequence[str] | None) -> pa.Table:
    """A whole file; types of columns are inferred, but those in ``as_text``, or all, stay as written."""
    with open_text(path) as source:
        head = head_of(source)
        cut = _separator(head, kind, separator)
        written = _header(head, cut) if as_text is None else as_text
        options = pacsv.ConvertOptions(column_types=dict.fromkeys(written, pa.string()))
        return pacsv.read_csv(source, parse_options=_parse(cut), convert_options=options)


def _parse(separator: str) -> Any:
    """How fields are cut; text in quotes may run over several lines."""
    return pacsv.ParseOptions(delimiter=separator, newlines_in_values=True)


# -- adding to a file -----------------------------------------------------------------------------


def with_columns(
    path: Path, kind: str, separator: str | None, added: Mapping[str, NDArray[Any] | list[Any]]
) -> Iterator[bytes]:
    """The text of a file with columns of numbers or words at its end, otherwise as it is."""
    with open_text(path) as source:
        text = source.read()
    cut = _separator(text[:HEAD_BYTES], kind, separator)
    cells = _cells(added, cut)
    if text.startswith(_BYTE_ORDER_MARK):
        yield _BYTE_ORDER_MARK
    for line, end in _records(text.removeprefix(_BYTE_ORDER_MARK), cut):
        more = next(cells, None) if line else b""  # a line without a character is no row
        if more is None:
            raise DataError(f"{path} has changed while it was read")
        yield line + more + end
    if next(cells, None) is not None:
        raise DataError(f"{path} has changed while it was read")


def _cells(added: Mapping[str, NDArray[Any] | list[Any]], separator: str) -> Iterator[bytes]:
    """What is added to each line: first the names, then the numbers of one row after the other."""
    yield "".join(f"{separator}{_quoted(name, separator)}" for name in added).encode()
    columns = [_texts(pa.array(values), separator) for values in added.values()]
    for row in pc.binary_join_element_wise("", *columns, separator).to_pylist():
        yield row.encode()


def _texts(values: pa.Array, separator: str) -> pa.Array:
    """Numbers as they are, words in quotes where they need some."""
    if not pa.types.is_string(values.type):
        return values.cast(pa.string())
    words = values.dictionary_encode()
    quoted = pa.array([_quoted(word, separator) for word in words.dictionary.to_pylist()], pa.string())
    return quoted.take(words.indices)


def _quoted(name: str, separator: str) -> str:
    if any(character in name for character in (separator, '"', "\r", "\n")):
        doubled = name.replace('"', '""')
        return f'"{doubled}"'
    return name
