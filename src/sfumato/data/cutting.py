"""Cutting entries into shards with little memory: whence they come, where to cut, who goes where.

A source is read once. Its entries go to a file with provisional numbers for their labels, while
labels and entries per level of the cutting mode are counted. Then it is known how levels are
numbered and which shard each belongs to: a second pass, over that file, deals the entries out, and
shards are sorted one by one.

So a source may be a generator, and a file that somebody changes meanwhile does no harm.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sfumato.checks import as_numbers, shown, wrong
from sfumato.data.io.files import (
    DELIMITED_KINDS,
    STREAMED_KINDS,
    existing_file,
    file_kind,
    reading,
)
from sfumato.data.io.shard_files import entry_bytes
from sfumato.data.io.spill import Spill
from sfumato.data.io.tables import BATCH_ROWS, RowEncoder, Selection, stream_file
from sfumato.data.tensor import MAX_ENTRIES, Mode, check_levels
from sfumato.errors import DataError, SettingError
from sfumato.kernels.numba.ordering import scatter, slots_by
from sfumato.surface import setting

Batch = tuple[NDArray[np.int32], NDArray[Any]]  # levels or codes (modes x entries), and values
Tell = Callable[[str, int, int | None], object]

_FOR_ENTRIES = 0.75  # of the memory: the rest is for blocks that are read and written meanwhile
_PARTS = 8  # of the memory, one of which holds a batch: text takes several times what its numbers do
_LEAST_ROWS = 64


# -- memory ---------------------------------------------------------------------------------------


def sorting_bytes(order: int, dtype: np.dtype[Any]) -> int:
    """What an entry takes while its shard is sorted: itself, its place, and counts or a row's copy."""
    return entry_bytes(order, dtype) + 12


def dealing_bytes(order: int, dtype: np.dtype[Any]) -> int:
    """What an entry takes while a batch is dealt out: itself twice, its shard, its place, a level."""
    return 2 * entry_bytes(order, dtype) + 12


def rows_at_a_time(memory: int, order: int, dtype: np.dtype[Any]) -> int:
    """How many entries a batch may have."""
    fitting = memory // (_PARTS * dealing_bytes(order, dtype))
    return max(_LEAST_ROWS, min(BATCH_ROWS, fitting))


# -- where to cut ---------------------------------------------------------------------------------


def cut_levels(
    counts: NDArray[np.int64], mode: Mode, most: int, shards: int | None = None
) -> NDArray[np.int64]:
    """Levels at which shards begin, and the end: as few shards as may be, and as even ones as can be.

    A shard has ``most`` entries at most. Where their number is given, some may stay empty.
    """
    ends = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])
    largest = int(counts.max())
    if largest > most:
        raise SettingError(
            f"level {shown(mode.label(int(counts.argmax())))} of mode {mode.name!r} has "
            f"{largest:,} entries, "
            f"and memory is enough for {most:,}: a level lies in one shard. Give more "
            f"{setting('memory')}, "
            f"or cut by a mode of more levels with {setting('by')}"
        )
    number = len(_filled(ends, most)) if shards is None else shards
    least, enough = max(largest, -(-int(ends[-1]) // number), 1), max(int(ends[-1]), 1)
    while least < enough:  # the smallest largest shard with which that many will do
        middle = (least + enough) // 2
        if len(_filled(ends, middle)) <= number:
            enough = middle
        else:
            least = middle + 1
    if enough > most:
        raise SettingError(
            f"with {number} shards one would have {enough:,} entries, and memory is enough for "
            f"{most:,}: "
            f"ask for {len(_filled(ends, most))} {setting('shards')} or more, or give more "
            f"{setting('memory')}"
        )
    begins = _filled(ends, enough)
    return np.array([*begins, *[len(counts)] * (number + 1 - len(begins))], np.int64)


def _filled(ends: NDArray[np.int64], most: int) -> list[int]:
    """Where shards begin if each takes levels as long as they fit, which each level alone does."""
    begins, last = [0], len(ends) - 1
    while (end := int(np.searchsorted(ends, ends[begins[-1]] + most, "right")) - 1) < last:
        begins.append(end)
    return begins


# -- the first pass -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Gathered:
    """All entries of a source, on disk, and what is known of them.

    ``levels[m]`` has the level of each provisional code of mode m; None where codes are levels.
    ``counts`` are entries at each level of the mode that is cut by.
    """

    modes: tuple[Mode, ...]
    entries: Spill
    counts: NDArray[np.int64]
    levels: tuple[NDArray[np.int32], ...] | None


def gather_files(
    files: Sequence[Path],
    selection: Selection,
    by: int,
    rows: int,
    spill: Spill,
    *,
    separator: str | None,
    labels: Mapping[str, NDArray[Any]],
    tell: Tell,
) -> Gathered:
    """The rows of tables, numbered as if they were read as one."""
    kinds = [_streamed(path) for path in files]
    is_csv = all(kind in DELIMITED_KINDS for kind in kinds)
    encoder: RowEncoder | None = None
    counts = np.zeros(0, np.int64)
    for path, kind in zip(files, kinds, strict=True):
        for batch in _batches(path, kind, selection, separator, rows):
            *names, value = selection.columns(batch.schema.names)
            if encoder is None:
                bins, dates = selection.bins, selection.date_format
                encoder = RowEncoder(names, value, bins, date_format=dates, is_csv=is_csv)
            with _naming(path):
                labels_here = [batch.column(name) for name in names]
                codes, values = encoder.encode(labels_here, batch.column(value))
                encoder.check_nulls()
                values = as_kept(values, spill.dtype)
            counts = _counted(counts, codes[by])
            spill.append(np.stack(codes), values)
            tell("read", spill.n_entries, None)
    if encoder is None or not spill.n_entries:
        raise DataError("there are no entries: the tables are empty")
    found = [_known(mode, levels, labels.get(mode.name)) for mode, levels in encoder.finish()]
    modes, levels = zip(*found, strict=True)
    by_level = np.zeros(modes[by].size, np.int64)
    np.add.at(by_level, levels[by][: counts.size], counts)
    return Gathered(modes, spill, by_level, levels)


def gather_batches(
    batches: Iterable[Any], modes: tuple[Mode, ...], by: int, rows: int, spill: Spill, *, tell: Tell
) -> Gathered:
    """Entries of known levels: pairs of coordinates and values, as a generator makes them."""
    counts = np.zeros(modes[by].size, np.int64)
    for number, batch in enumerate(batches):
        coordinates, values = _as_batch(batch, modes, number)
        for first in range(0, values.shape[0], rows):
            here = slice(first, first + rows)
            levels = coordinates[:, here].astype(np.int32)
            np.add.at(counts, levels[by], 1)  # however many levels there are
            spill.append(levels, as_kept(values[here], spill.dtype))
            tell("read", spill.n_entries, None)
    if not spill.n_entries:
        raise DataError("there are no entries: no batch has one")
    return Gathered(modes, spill, counts, None)


def _as_batch(batch: Any, modes: tuple[Mode, ...], number: int) -> tuple[NDArray[Any], NDArray[Any]]:
    if not isinstance(batch, tuple | list) or len(batch) != 2:
        raise DataError(f"batch {number} must be a pair (coordinates, values), got {shown(batch)}")
    coordinates, values = np.asarray(batch[0]), np.asarray(batch[1])
    if values.dtype not in (np.float32, np.float64):
        values = as_numbers(f"the values of batch {number}", values)
    if values.ndim != 1 or coordinates.shape != (len(modes), values.shape[0]):
        raise DataError(
            f"coordinates of batch {number} must have shape ({len(modes)}, entries) and values "
            f"(entries,), "
            f"got {coordinates.shape} and {values.shape}"
        )
    for mode, levels in zip(modes, coordinates, strict=True):
        check_levels(mode, levels)
    return coordinates, values


def as_kept(values: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Values in the precision that they are kept in, all of them finite."""
    with np.errstate(over="ignore"):
        kept = values.astype(dtype, copy=False)
    refused = ~np.isfinite(kept)
    if refused.any():
        first = values[int(np.argmax(refused))]
        raise DataError(
            f"{np.count_nonzero(refused):,} values are missing or no finite numbers in {dtype}; "
            f"the first is "
            f"{first:g}. Leave such rows out"
        )
    return kept


def _counted(counts: NDArray[np.int64], codes: NDArray[np.int32]) -> NDArray[np.int64]:
    """Entries at each code, of which there may be more now than before."""
    more = np.bincount(codes, minlength=counts.size)
    more[: counts.size] += counts
    return more


def _known(
    mode: Mode, levels: NDArray[np.int32], labels: NDArray[Any] | None
) -> tuple[Mode, NDArray[np.int32]]:
    """The mode, or the one that its given labels make, and the level of each code in it."""
    if labels is None:
        return mode, levels
    wanted = Mode(mode.name, len(labels), labels, mode.bin)
    found = wanted.find(mode.labels_at(np.arange(mode.size)))
    if (found < 0).any():
        unknown = shown(mode.label(int(np.argmax(found < 0))))
        raise DataError(
            f"mode {mode.name!r} has the label {unknown}, which is not among those given with "
            f"{setting('labels')}: leave such rows out, or add it there"
        )
    return wanted, found[levels]


# -- files ----------------------------------------------------------------------------------------


def files_of(source: Any) -> list[Path]:
    """The tables that a path, a folder or a list of paths stands for, those of a folder by name."""
    if not isinstance(source, str | os.PathLike):
        return [existing_file(path) for path in source]
    with reading(repr(os.fspath(source))):
        path = Path(source).expanduser()
        if not path.is_dir():
            return [existing_file(path)]
        # What begins so is left by systems and other programs beside their files.
        inside = sorted(each for each in path.iterdir() if not each.name.startswith((".", "_")))
    if not inside:
        raise DataError(f"there are no files in the folder {path}")
    folders = [each.name for each in inside if each.is_dir()]
    if folders:
        raise DataError(f"{path} has a folder in it, {folders[0]}: give a list of the files to read")
    return inside


def _streamed(path: Path) -> str:
    kind = file_kind(path)
    if kind not in STREAMED_KINDS:
        raise DataError(
            f"{path.name} is no table that can be read in parts: use .parquet, .arrow, .feather, "
            f".csv or "
            ".tsv, or name the files to read in a list"
        )
    return kind


def _batches(
    path: Path, kind: str, selection: Selection, separator: str | None, rows: int
) -> Iterator[Any]:
    """Batches of at most so many rows, none empty; what is wrong with the file is said with its name."""
    with reading(path), _naming(path):
        for batch in stream_file(path, kind, selection, separator, None, rows):
            for first in range(0, batch.num_rows, rows):
                yield batch.slice(first, rows)


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Errors about columns say in which of many files."""
    try:
        yield
    except (DataError, SettingError) as error:
        if type(error) not in (DataError, SettingError) or path.name in str(error):
            raise
        raise type(error)(f"{path.name}: {error}") from error


# -- the second pass ------------------------------------------------------------------------------


def deal(
    gathered: Gathered, edges: NDArray[np.int64], by: int, shards: Sequence[Spill], tell: Tell
) -> None:
    """Send every entry to its shard, in the order in which they came."""
    number = len(shards)
    shard_of = np.repeat(np.arange(number, dtype=np.int32), np.diff(edges))
    whole, done = gathered.entries.n_entries, 0
    for coordinates, values in gathered.entries.blocks():
        if gathered.levels is not None:
            for row, levels in zip(coordinates, gathered.levels, strict=True):
                row[:] = levels[row]
        goes_to = shard_of[coordinates[by]]
        slots = slots_by(goes_to, number)
        ends = np.cumsum(np.bincount(goes_to, minlength=number))
        dealt = np.empty_like(coordinates)
        for row, moved in zip(coordinates, dealt, strict=True):
            scatter(row, slots, moved)
        numbers = scatter(values, slots)
        begin = 0
        for shard, end in zip(shards, ends.tolist(), strict=True):
            if end > begin:
                shard.append(dealt[:, begin:end], numbers[begin:end])
            begin = end
        done += values.shape[0]
        tell("cut", done, whole)


def most_entries(memory: int, order: int, dtype: np.dtype[Any]) -> int:
    """How many entries a shard may have to be sorted in so much memory."""
    return min(MAX_ENTRIES, int(_FOR_ENTRIES * memory) // sorting_bytes(order, dtype))


def as_batches(source: Any) -> Iterable[Any]:
    """A source that is none of the others has to be batches."""
    if isinstance(source, Mapping | np.ndarray | bytes) or not isinstance(source, Iterable):
        raise wrong(
            "source",
            "a folder or file of tables, a list of them, a SparseTensor, or batches "
            "(coordinates, values); "
            "other tables and arrays are read with sfumato.read",
            source,
        )
    return source
