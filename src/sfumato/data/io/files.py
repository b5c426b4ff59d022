"""Files of data: which kind one is, how its bytes are opened, and what is said of a damaged one."""

from __future__ import annotations

import gzip
import io
import lzma
import os
import struct
import tokenize
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa

from sfumato.errors import DataError, SfumatoError

_SUFFIXES = {
    ".csv": "csv",
    ".tsv": "tsv",
    ".tab": "tsv",
    ".parquet": "parquet",
    ".pq": "parquet",
    ".arrow": "arrow",
    ".feather": "arrow",
    ".xlsx": "xlsx",
    ".tns": "tns",
    ".npz": "npz",
    ".npy": "npy",
    ".mat": "mat",
}
TEXT_KINDS = ("csv", "tsv", "tns")  # which may be compressed
DELIMITED_KINDS = ("csv", "tsv")
STREAMED_KINDS = ("csv", "tsv", "parquet", "arrow")  # tables of any length
TABLE_KINDS = (*STREAMED_KINDS, "xlsx")
_COMPRESSED = (".gz", ".bz2", ".zst", ".lz4", ".zip")

HEAD_BYTES = 1 << 20  # of a file of text, from which its separator is told

# What is unpacked may be this large, or so many times as large as the file: more is no data, but a file
# made to fill the memory.
UNPACKED_BYTES = 1 << 28
UNPACKED_TIMES = 250

# What libraries raise at damaged or foreign input. Whatever else is raised is a defect and shows itself.
_FOREIGN = (
    pa.ArrowException,
    zipfile.BadZipFile,
    zlib.error,
    gzip.BadGzipFile,
    lzma.LZMAError,
    struct.error,
    tokenize.TokenError,
    SyntaxError,
    ArithmeticError,
    EOFError,
    LookupError,
    MemoryError,
    OSError,
    RuntimeError,  # also of kinds of data that a library cannot read, and of nesting too deep
    TypeError,
    ValueError,  # errors of Unicode among them, and those of narwhals
)
_NO_SENTENCE = (LookupError, SyntaxError, tokenize.TokenError)  # what these say, or how, helps nobody


class MissingFileError(DataError, FileNotFoundError):
    """A file that is to be read is not there."""


@contextmanager
def reading(what: object) -> Iterator[None]:
    """The one place where a library's complaint about input becomes an error that names the input."""
    try:
        yield
    except SfumatoError:
        raise
    except _FOREIGN as error:
        raise DataError(f"{what} cannot be read: {_complaint(error)}") from error


def _complaint(error: Exception) -> str:
    if isinstance(error, MemoryError):
        return "it needs more memory than there is. Check that it is whole, and what shape it claims"
    text = str(error)
    if isinstance(error, UnicodeError) or "UTF8" in text:
        return (
            "it is not text in UTF-8. Save it as such ('CSV UTF-8' in Excel), or check that it is whole"
        )
    if text.startswith("CSV parse error: Expected"):
        return f"{text}. A field that holds a separator, such as a decimal comma, needs quotes around it"
    if isinstance(error, _NO_SENTENCE) or not text:
        return f"it is damaged ({type(error).__name__}: {text})"
    return text


# -- which file -----------------------------------------------------------------------------------


def existing_file(source: str | os.PathLike[str]) -> Path:
    """The path of a file that is there."""
    with reading(repr(os.fspath(source))):  # a name may be longer than names can be
        path = Path(source).expanduser()
        if path.is_dir():
            raise DataError(f"{path} is a folder: name a file in it")
        if not path.exists():
            raise MissingFileError(f"there is no file {path} (looked from {Path.cwd()})")
        if not path.is_file():  # to open a pipe would wait for whoever writes to it
            raise DataError(f"{path} is no plain file: write what it gives to one, and name that")
    return path


def identity(path: Path) -> tuple[int, int, int]:
    """What tells a file from one that took its place, or was written to."""
    with reading(path):
        found = path.stat()
    return found.st_ino, found.st_mtime_ns, found.st_size


def lines_of(source: str | os.PathLike[str]) -> list[str]:
    """The lines of a file of text."""
    path = existing_file(source)
    with reading(path):
        return path.read_text(encoding="utf-8").splitlines()


def file_kind(path: Path) -> str:
    """What kind of file this is, by its suffix; of a .zip, what the file in it is."""
    suffix = path.suffix.lower()
    if suffix in _SUFFIXES:
        return _SUFFIXES[suffix]
    if suffix in _COMPRESSED:
        packed = _only_member(path).filename if suffix == ".zip" else path.stem
        kind = _SUFFIXES.get(Path(packed).suffix.lower())
        if kind in TEXT_KINDS:
            return str(kind)
        if suffix == ".zip":
            raise DataError(
                f"{path} holds {packed}: only .csv, .tsv and .tns are read from .zip, unpack it"
            )
    raise DataError(
        f"{path.name}: unknown file format. Known are {', '.join(_SUFFIXES)}; .csv, .tsv and .tns also "
        f"with {', '.join(_COMPRESSED)}"
    )


def _only_member(path: Path) -> zipfile.ZipInfo:
    """The one file of data in a .zip; what systems add by themselves does not count."""
    with reading(path), zipfile.ZipFile(path) as archive:
        members = [
            member
            for member in archive.infolist()
            if not member.is_dir()
            and not Path(member.filename).name.startswith(".")
            and not member.filename.startswith("__MACOSX/")
        ]
        if len(members) != 1:
            names = ", ".join(member.filename for member in members[:5]) or "none"
            raise DataError(f"{path} must hold one file of data to be read from, it has: {names}")
        check_unpacked(path, members)
        return members[0]


def check_unpacked(path: Path, members: Sequence[zipfile.ZipInfo]) -> None:
    """Refuse members of an archive that would unpack to far more than its size lets expect."""
    size = sum(member.file_size for member in members)
    if size > unpacked_limit(path):
        raise DataError(
            f"{path} would unpack to {size / 2**30:,.1f} GiB, over {UNPACKED_TIMES} times its size: if "
            "it is what you expect, unpack it yourself and read what was in it"
        )


def unpacked_limit(path: Path) -> int:
    """How many bytes a file may unpack to."""
    return max(UNPACKED_BYTES, UNPACKED_TIMES * path.stat().st_size)


# -- bytes ----------------------------------------------------------------------------------------


@contextmanager
def open_text(path: Path) -> Iterator[io.BufferedReader]:
    """The bytes of a file of text, unpacked if they are compressed; ``head_of`` looks at the first."""
    with reading(path):
        if path.suffix.lower() == ".zip":
            with zipfile.ZipFile(path) as archive, archive.open(_only_member(path)) as member:
                yield io.BufferedReader(member, HEAD_BYTES)  # type: ignore[arg-type]
        else:
            with pa.input_stream(path, compression="detect") as stream:
                yield io.BufferedReader(stream, HEAD_BYTES)


def head_of(stream: io.BufferedReader) -> bytes:
    """The first bytes of a stream, which stay there to be read."""
    return stream.peek(HEAD_BYTES)[:HEAD_BYTES]
