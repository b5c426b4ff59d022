"""The folder of a tensor in shards: its files, and checks of all that is read from them.

    shards.json                  format, modes, bounds, type of values, and each shard: see ``Header``
    labels/1.npy                 labels of mode 1 that are whole numbers (int64)
    labels/0.text.npy, .ends.npy labels of mode 0 that are text: bytes in UTF-8, and where each ends
    0000/coordinates.npy         levels of the first shard's entries, (modes x entries) int32
    0000/values.npy              their values, float32 or float64

Files are foreign: nothing in them is trusted, and nothing is ever unpickled. An array is mapped
only if its own header and its size are what ``shards.json`` lets expect.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from sfumato.checks import shown
from sfumato.data.io.arrow import from_numpy, to_numpy
from sfumato.data.io.files import MissingFileError, reading
from sfumato.data.io.npy import map_npy, write_npy
from sfumato.data.tensor import MAX_ENTRIES, MAX_LEVELS, TIME_BINS, Mode, check_levels
from sfumato.errors import DataError
from sfumato.surface import either
from sfumato.typed import made_of, whole_number

FORMAT, VERSION = "sfumato-shards", 1
HEADER, LABELS = "shards.json", "labels"
COORDINATES, VALUES = "coordinates.npy", "values.npy"
_MOST_HEADER = 1 << 26  # bytes: half a million shards
_AT_A_TIME = 1 << 20  # entries that are looked at together
_DIGEST_LETTERS = 64


# -- what is written down -------------------------------------------------------------------------


@dataclass(frozen=True)
class ModeFacts:
    """A mode but for its labels: these lie in files of their own, or are the numbers of the levels."""

    name: str
    size: int
    bin: str | None
    labels: Literal["int64", "text"] | None


@dataclass(frozen=True)
class ShardFacts:
    """One shard: its levels of the mode that the tensor is cut by, from the first to before the last."""

    levels: tuple[int, int]
    entries: int
    digest: str  # of coordinates and values, so that the header stands for all there is


@dataclass(frozen=True)
class Header:
    """What ``shards.json`` says. ``by`` is the position of the mode that the tensor is cut by."""

    format: str
    version: int
    modes: tuple[ModeFacts, ...]
    bounds: tuple[float, float] | None
    dtype: Literal["float32", "float64"]
    entries: int
    by: int
    shards: tuple[ShardFacts, ...]

    @property
    def order(self) -> int:
        return len(self.modes)

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(mode.size for mode in self.modes)


def entry_bytes(order: int, dtype: np.dtype[Any]) -> int:
    """What one entry takes: a level of 32 bits for each mode, and its value."""
    return 4 * order + dtype.itemsize


# -- the header -----------------------------------------------------------------------------------


def write_header(folder: Path, header: Header) -> None:
    """Write the header, last of all files."""
    (folder / HEADER).write_text(json.dumps(asdict(header), indent=1) + "\n", encoding="utf-8")


def read_header(folder: Path) -> tuple[Header, str]:
    """The header of a folder, and a digest of it that tells the folder from others."""
    path = folder / HEADER
    with reading(path):
        if not path.is_file():
            raise MissingFileError(
                f"{folder} is no folder of shards: it has no {HEADER}. "
                f"{either('sfumato.make_shards', '`sfumato shard`')} makes one"
            )
        if path.stat().st_size > _MOST_HEADER:
            raise ValueError(f"it has more than {_MOST_HEADER:,} bytes")
        content = path.read_bytes()
        header = _header_of(json.loads(content.decode("utf-8")))
        _check_header(header)
    return header, blake2b(content, digest_size=32).hexdigest()


def is_shards(folder: Path) -> bool:
    """Whether a folder holds shards, of whatever version."""
    try:
        said = json.loads((folder / HEADER).read_bytes()[:_MOST_HEADER])
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(said, dict) and said.get("format") == FORMAT


def foreign(folder: Path) -> str | None:
    """The name of something in a folder of shards that is no part of it."""
    ours = {HEADER, LABELS}
    for path in sorted(folder.iterdir()):
        if path.name not in ours and not (path.name.isdigit() and path.is_dir()):
            return path.name
    return None


def _header_of(said: Any) -> Header:
    if not isinstance(said, dict) or said.get("format") != FORMAT:
        raise ValueError(f"it does not say that it is of the format {FORMAT}")
    if whole_number(said.get("version"), "version", 1) > VERSION:
        raise ValueError("it is of a later version: read it with a newer sfumato")
    parts: Mapping[str, tuple[Any, str]] = {
        "modes": (ModeFacts, "a mode"),
        "shards": (ShardFacts, "a shard"),
    }
    for name, (kind, what) in parts.items():
        if not isinstance(said.get(name), list):
            raise ValueError(f"it has no list of {name}")  # noqa: TRY004
        said[name] = [made_of(kind, each, what) for each in said[name]]
    return made_of(Header, said, "the header")


def _check_header(header: Header) -> None:
    """Refuse what does not fit together."""
    names = [mode.name for mode in header.modes]
    if len(names) < 2 or len(set(names)) < len(names):
        raise ValueError("it needs two modes or more, of different names")
    for mode in header.modes:
        if whole_number(mode.size, f"the size of mode {mode.name!r}", 1) > MAX_LEVELS:
            raise ValueError(f"mode {mode.name!r} has more than {MAX_LEVELS:,} levels")
        if mode.bin not in (None, *TIME_BINS):
            raise ValueError(f"there is no time bin {shown(mode.bin)}")
    if whole_number(header.by, "by") >= header.order:
        raise ValueError(f"there is no mode {header.by} to be cut by")
    if header.bounds is not None and not -np.inf < header.bounds[0] < header.bounds[1] < np.inf:
        raise ValueError("its bounds are not two finite numbers, the lower one first")
    edges = [0]
    for shard in header.shards:
        begin, end = (whole_number(level, "a level") for level in shard.levels)
        if begin != edges[-1] or end < begin:
            raise ValueError("the levels of its shards do not follow on each other")
        edges.append(end)
        if whole_number(shard.entries, "the entries of a shard") > MAX_ENTRIES:
            raise ValueError(f"a shard has more than {MAX_ENTRIES:,} entries")
        if shard.entries and begin == end:
            raise ValueError("a shard without levels has entries")
        if len(shard.digest) != _DIGEST_LETTERS:
            raise ValueError("the digest of a shard is none")
    if edges[-1] != header.shape[header.by]:
        raise ValueError("its shards do not have all levels of the mode that it is cut by")
    if whole_number(header.entries, "entries", 1) != sum(shard.entries for shard in header.shards):
        raise ValueError("its shards do not have as many entries as it says")


# -- labels ---------------------------------------------------------------------------------------


def label_kind(mode: Mode) -> Literal["int64", "text"] | None:
    """How the labels of a mode are kept."""
    if mode.labels is None:
        return None
    if mode.labels.dtype.kind == "i":
        return "int64"
    if mode.labels.dtype.kind == "U" or all(isinstance(label, str) for label in mode.labels.tolist()):
        return "text"
    raise DataError(
        f"the labels of mode {mode.name!r} must be whole numbers or text to be kept in files"
    )


def write_labels(folder: Path, modes: tuple[Mode, ...]) -> tuple[ModeFacts, ...]:
    """Write the labels of all modes that have some."""
    (folder / LABELS).mkdir()
    facts = []
    for m, mode in enumerate(modes):
        kind = label_kind(mode)
        facts.append(ModeFacts(mode.name, mode.size, mode.bin, kind))
        path = folder / LABELS / str(m)
        if mode.labels is not None and kind == "int64":
            write_npy(path.with_suffix(".npy"), mode.labels.astype(np.int64))
        elif mode.labels is not None:
            text, ends = _as_bytes(mode)
            write_npy(path.with_suffix(".text.npy"), text)
            write_npy(path.with_suffix(".ends.npy"), ends)
    return tuple(facts)


def _as_bytes(mode: Mode) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    labels = [] if mode.labels is None else mode.labels.tolist()
    try:
        text = pa.array(labels, pa.large_string())
    except (pa.ArrowException, UnicodeError) as error:
        raise DataError(f"a label of mode {mode.name!r} cannot be written in UTF-8: {error}") from error
    _, ends, content = text.buffers()
    letters = np.empty(0, np.uint8) if content is None else np.frombuffer(content, np.uint8)
    offsets = np.frombuffer(ends, np.int64, len(text) + 1)
    return letters[: offsets[-1]], offsets[1:]


def read_labels(folder: Path, facts: tuple[ModeFacts, ...]) -> tuple[Mode, ...]:
    """The modes with their labels."""
    modes = []
    for m, mode in enumerate(facts):
        path = folder / LABELS / str(m)
        labels: NDArray[Any] | None = None
        if mode.labels == "int64":
            labels = map_npy(path.with_suffix(".npy"), np.int64, (mode.size,)).copy()
        elif mode.labels == "text":
            labels = _read_text(path, mode.size)
        with reading(folder / HEADER):
            modes.append(Mode(mode.name, mode.size, labels, mode.bin))
    return tuple(modes)


def _read_text(path: Path, size: int) -> NDArray[Any]:
    ends = map_npy(path.with_suffix(".ends.npy"), np.int64, (size,))
    offsets = np.concatenate([np.zeros(1, np.int64), ends])
    if (offsets[1:] < offsets[:-1]).any():
        raise DataError(f"{path.with_suffix('.ends.npy')} is damaged: labels end before they begin")
    place = path.with_suffix(".text.npy")
    content = map_npy(place, np.uint8, (int(offsets[-1]),))
    with reading(place):
        letters = pa.py_buffer(content.tobytes())
        text = pa.Array.from_buffers(
            pa.large_string(), size, [None, from_numpy(offsets).buffers()[1], letters]
        )
        text.validate(full=True)
        return to_numpy(text)


# -- entries --------------------------------------------------------------------------------------


def shard_folder(folder: Path, number: int) -> Path:
    """Where a shard lies."""
    return folder / f"{number:04d}"


def write_shard(folder: Path, number: int, coordinates: NDArray[np.int32], values: NDArray[Any]) -> str:
    """Write the sorted entries of a shard; a digest of them is returned."""
    place, digest = shard_folder(folder, number), blake2b(digest_size=32)
    place.mkdir()
    write_npy(place / COORDINATES, coordinates, digest.update)
    write_npy(place / VALUES, values, digest.update)
    return digest.hexdigest()


def map_shard(folder: Path, header: Header, number: int) -> tuple[NDArray[np.int32], NDArray[Any]]:
    """Coordinates and values of a shard, as they lie on the disk."""
    place, entries = shard_folder(folder, number), header.shards[number].entries
    coordinates = map_npy(place / COORDINATES, np.int32, (header.order, entries))
    return coordinates, map_npy(place / VALUES, header.dtype, (entries,))


def check_shard(
    folder: Path, header: Header, number: int, entries: tuple[NDArray[np.int32], NDArray[Any]]
) -> None:
    """Refuse entries that no shard can have: kernels follow levels wherever they lead.

    All of them are read once, as many at a time as stay in the cache.
    """
    coordinates, values = entries
    begin, end = header.shards[number].levels
    modes = [Mode(mode.name, mode.size) for mode in header.modes]
    for first in range(0, values.shape[0], _AT_A_TIME):
        here = slice(first, first + _AT_A_TIME)
        levels = coordinates[:, max(first - 1, 0) : here.stop]
        try:
            for mode, row in zip(modes, levels, strict=True):
                check_levels(mode, row)
            cut_by = levels[header.by]
            if cut_by.min() < begin or cut_by.max() >= end:
                raise DataError(f"a level of mode {modes[header.by].name!r} belongs to another shard")  # noqa: TRY301
            if not _is_sorted(levels):
                raise DataError("its entries are not sorted")  # noqa: TRY301
            if not np.isfinite(values[here]).all():
                raise DataError("a value is no finite number")  # noqa: TRY301
        except DataError as error:
            place = shard_folder(folder, number)
            raise DataError(f"{place} is damaged: {error}. Cut the tensor anew") from error


def _is_sorted(coordinates: NDArray[np.int32]) -> bool:
    undecided = np.ones(max(coordinates.shape[1] - 1, 0), np.bool_)
    for levels in coordinates:
        if (undecided & (levels[:-1] > levels[1:])).any():
            return False
        undecided &= levels[:-1] == levels[1:]
    return True


def digest_of(coordinates: NDArray[np.int32], values: NDArray[Any]) -> str:
    """The digest of a shard's entries, as ``write_shard`` returns it."""
    digest = blake2b(digest_size=32)
    for array in (coordinates, values):
        if array.size:
            digest.update(array.reshape(-1).view(np.uint8).data)
    return digest.hexdigest()
