"""Tensors larger than memory: entries cut into shards on disk, each a tensor of the whole's modes.

Every level of the mode that a tensor is cut by lies in one shard. So do all entries of one cell,
whatever that mode is: duplicates are found and merged shard by shard. Cut by the first mode, shards
one after the other are the sorted whole.

On disk an entry takes 4 bytes for each mode and 4 or 8 for its value: 16 with three modes in single
precision.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from sfumato.checks import (
    as_list,
    as_names,
    as_path,
    as_precision,
    check_count,
    check_flag,
    check_kind,
    check_progress,
    check_text,
    given,
    wrong,
)
from sfumato.data import cutting
from sfumato.data.io import shard_files as files
from sfumato.data.io.delimited import check_separator
from sfumato.data.io.files import identity, reading
from sfumato.data.io.folders import new_folder, writing
from sfumato.data.io.shard_files import Header, ShardFacts
from sfumato.data.io.spill import Spill
from sfumato.data.io.tables import Selection
from sfumato.data.tensor import MAX_ENTRIES, Mode, SparseTensor, check_bounds, find_mode
from sfumato.errors import DataError, SettingError
from sfumato.kernels.numba.ordering import sort_entries
from sfumato.kernels.numba.threads import available_threads
from sfumato.surface import setting

DEFAULT_MEMORY = 2 << 30
_LEAST_MEMORY = 1 << 16

Progress = Callable[[str, int, int | None], object]
"""Told of a step ("read", "cut" or "sort"), how much of it is done, and of how much, if known."""


class Shards:
    """A folder of shards, opened: what the tensor is, and its parts as they lie on the disk.

    Files are checked when they are opened, and the entries of a shard when it is asked for first, or
    after its files have changed. A file that is cut short while it is mapped ends the process.

    Parameters
    ----------
    folder : path
        That :func:`make_shards` or ``sfumato shard`` has made.

    Examples
    --------
    >>> import sfumato as sf
    >>> made = sf.make_shards(
    ...     sf.synthetic.ratings_like(30, 20, 5, 400), "shards", shards=3
    ... )
    >>> shards = sf.Shards("shards")
    >>> shards.levels, shards.part(0).n_entries == shards.entries[0]
    (((0, 10), (10, 20), (20, 30)), True)
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = as_path("folder", folder).expanduser().absolute()
        self.header, self.digest = files.read_header(self.folder)
        self.modes = files.read_labels(self.folder, self.header.modes)
        self._checked: dict[int, object] = {}
        for number in range(len(self)):
            files.map_shard(self.folder, self.header, number)

    @property
    def shape(self) -> tuple[int, ...]:
        """How many levels each mode has."""
        return self.header.shape

    @property
    def order(self) -> int:
        """How many modes there are."""
        return self.header.order

    @property
    def mode_names(self) -> tuple[str, ...]:
        """The modes' names."""
        return tuple(mode.name for mode in self.modes)

    @property
    def n_entries(self) -> int:
        """How many entries all shards have."""
        return self.header.entries

    @property
    def density(self) -> float:
        """Share of all cells that have an entry."""
        return self.n_entries / prod(float(n) for n in self.shape)

    @property
    def bounds(self) -> tuple[float, float] | None:
        """Those of the tensor."""
        return self.header.bounds

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of the values."""
        return np.dtype(self.header.dtype)

    @property
    def by(self) -> int:
        """The position of the mode that the tensor is cut by."""
        return self.header.by

    @property
    def levels(self) -> tuple[tuple[int, int], ...]:
        """Which levels of that mode each shard has: the first, and the one after the last."""
        return tuple(shard.levels for shard in self.header.shards)

    @property
    def entries(self) -> tuple[int, ...]:
        """How many entries each shard has."""
        return tuple(shard.entries for shard in self.header.shards)

    def __len__(self) -> int:
        return len(self.header.shards)

    def __iter__(self) -> Iterator[SparseTensor]:
        """The parts one after the other."""
        return (self.part(number) for number in range(len(self)))

    def __repr__(self) -> str:
        sizes = " x ".join(f"{mode.name} {mode.size:,}" for mode in self.modes)
        return (
            f"Shards({sizes}; {self.n_entries:,} entries in {len(self):,} shards by "
            f"{self.mode_names[self.by]}, {self.dtype}, in {self.folder})"
        )

    def part(self, number: int) -> SparseTensor:
        """One shard as a tensor of all modes and levels; it may have no entries.

        Its arrays are those of the files, read-only and not in memory until they are looked at.

        Parameters
        ----------
        number : int
            From 0 on.

        Returns
        -------
        SparseTensor
            Of the whole tensor's shape.
        """
        number = self._position(number)
        coordinates, values = files.map_shard(self.folder, self.header, number)
        here = [identity(self.place(number) / name) for name in (files.COORDINATES, files.VALUES)]
        if self._checked.get(number) != here:
            files.check_shard(self.folder, self.header, number, (coordinates, values))
            self._checked[number] = here
        return SparseTensor(coordinates, values, self.modes, self.bounds, _checked=True)

    def place(self, number: int) -> Path:
        """The folder of one shard.

        Parameters
        ----------
        number : int
            From 0 on.

        Returns
        -------
        Path
            Its folder.
        """
        return files.shard_folder(self.folder, self._position(number))

    def whole(self) -> SparseTensor:
        """All entries as one tensor in memory, for those that fit."""
        if self.n_entries > MAX_ENTRIES:
            raise DataError(
                f"a tensor in memory has at most {MAX_ENTRIES:,} entries, and these are "
                f"{self.n_entries:,}: "
                "take its parts one by one"
            )
        coordinates = np.empty((self.order, self.n_entries), np.int32)
        values, begin = np.empty(self.n_entries, self.dtype), 0
        for part in self:
            here = slice(begin, begin + part.n_entries)
            coordinates[:, here], values[here] = part.coordinates, part.values
            begin = here.stop
        sort_entries(coordinates, values, self.shape, available_threads())
        return SparseTensor(coordinates, values, self.modes, self.bounds, _checked=True)

    def verify(self) -> None:
        """Read everything and refuse a shard of which a single bit has changed."""
        for number, part in enumerate(self):
            if files.digest_of(part.coordinates, part.values) != self.header.shards[number].digest:
                raise DataError(
                    f"{self.place(number)} is damaged: its entries are not those that were written. "
                    "Cut the tensor anew"
                )

    def _position(self, number: int) -> int:
        check_count(0, **{"the number of a shard": number})
        if number >= len(self):
            raise SettingError(
                f"there is no shard {number}: they are numbered from 0 to {len(self) - 1}"
            )
        return int(number)


# -- making them ----------------------------------------------------------------------------------


def make_shards(
    source: Any,
    out: str | os.PathLike[str],
    *,
    modes: Sequence[str] | Sequence[Mode] | Mapping[str, int] | None = None,
    value: str | None = None,
    bins: Mapping[str, str] | None = None,
    bounds: tuple[float, float] | None = None,
    by: str | None = None,
    shards: int | None = None,
    memory: int = DEFAULT_MEMORY,
    labels: Mapping[str, Sequence[Any] | NDArray[Any]] | None = None,
    dtype: DTypeLike = "float64",
    separator: str | None = None,
    date_format: str | None = None,
    force: bool = False,
    progress: Progress | None = None,
) -> Shards:
    """Cut a tensor that may be larger than memory into shards.

    The disk needs room for twice what comes out. Labels, and numbers for each level, are held in memory.

    Parameters
    ----------
    source
        A folder of .parquet, .arrow, .feather, .csv or .tsv tables, one such file or a list of them:
        levels are numbered as if all rows were read at once. Or a SparseTensor. Or batches, of a
        generator say: pairs of coordinates (modes x entries) and values.
    out : path
        The folder that is made.
    modes : sequence of str, sequence of Mode, mapping or None
        Of tables the columns that are modes; of batches a list of :class:`sfumato.Mode`, or sizes by
        name.
    value, bins, separator, date_format
        Of tables, as of :func:`sfumato.read`.
    bounds : pair of float or None
        The lowest and the highest value possible.
    by : str or None
        The mode that is cut; by default the first.
    shards : int or None
        How many; by default as many as are needed for entries to be sorted in ``memory`` bytes.
    memory : int
        For sorting, in bytes.
    labels : mapping or None
        Of modes, in the order that their levels are to have; rows with others are refused.
    dtype : dtype
        float32 or float64.
    force : bool
        Whether to replace an older folder of shards, at one stroke; anything else is refused.
    progress : callable or None
        Called as ``progress(step, done, whole)`` in the steps "read", "cut" and "sort".

    Returns
    -------
    Shards
        The folder, opened.

    Examples
    --------
    >>> import sfumato as sf
    >>> shards = sf.make_shards(
    ...     sf.synthetic.ratings_like(30, 20, 5, 400), "shards", by="item", shards=2
    ... )
    >>> shards.n_entries, shards.levels
    (400, ((0, 12), (12, 20)))
    >>> model = sf.CP(rank=2).fit("shards")
    """
    precision, target = as_precision(dtype), as_path("out", out).expanduser().absolute()
    check_count(_LEAST_MEMORY, memory=memory)
    check_count(**given(shards=shards))
    check_text(**given(value=value, by=by))
    check_kind(Mapping | None, "bins by the names of columns", bins=bins)
    check_kind(Mapping | None, "labels by the names of modes", labels=labels)
    check_flag(force=force)
    check_progress(progress)
    make = _Maker(target, check_bounds(bounds), by, shards, int(memory), precision, progress)
    _check_destination(target, force)
    if isinstance(source, SparseTensor):
        _refuse("a tensor has them already", modes=modes, value=value, bins=bins, labels=labels)
        _refuse("it is for tables", separator=separator, date_format=date_format)
        return make.from_tensor(source)
    if _is_files(source):
        names = None if modes is None else tuple(as_names("modes", modes))
        selection = Selection(names, value, dict(bins or {}), date_format)
        cut = check_separator(separator)
        return make.from_files(source, selection, cut, _label_arrays(labels, names or ()))
    _refuse("it is for tables", value=value, bins=bins, separator=separator, date_format=date_format)
    return make.from_batches(cutting.as_batches(source), _modes_of_batches(modes, labels))


class _Maker:
    """How shards are made, whatever of."""

    def __init__(
        self,
        target: Path,
        bounds: tuple[float, float] | None,
        by: str | None,
        shards: int | None,
        memory: int,
        dtype: np.dtype[Any],
        progress: Progress | None,
    ) -> None:
        self._target, self._bounds, self._by, self._shards = target, bounds, by, shards
        self._memory, self._dtype, self._progress = memory, dtype, progress

    def from_tensor(self, tensor: SparseTensor) -> Shards:
        """Shards of a tensor in memory: its own entries, none of which is sorted anew."""
        by = self._position(tensor.mode_names)
        edges = self._edges(tensor.counts(tensor.mode_names[by]), tensor.modes[by], tensor.order)
        levels = tensor.coordinates[by]
        # Those of a shard follow on each other where the tensor is cut by what it is sorted by.
        places = np.searchsorted(levels, edges) if by == 0 else None

        def part(number: int) -> tuple[NDArray[np.int32], NDArray[Any]]:
            if places is not None:
                here = slice(int(places[number]), int(places[number + 1]))
                return tensor.coordinates[:, here], tensor.values[here]
            chosen = np.flatnonzero((levels >= edges[number]) & (levels < edges[number + 1]))
            return np.take(tensor.coordinates, chosen, axis=1), np.take(tensor.values, chosen)

        with new_folder(self._target) as (new, _):
            bounds = self._bounds or tensor.bounds
            self._write(new, tensor.modes, bounds, by, edges, part)
        return Shards(self._target)

    def from_files(
        self,
        source: Any,
        selection: Selection,
        separator: str | None,
        labels: Mapping[str, NDArray[Any]],
    ) -> Shards:
        """Shards of the rows of tables."""
        tables = cutting.files_of(source)
        names = selection.modes or ()
        by = self._position(names) if names else 0  # without names an error lists the columns
        rows = cutting.rows_at_a_time(self._memory, max(len(names), 2), self._dtype)

        def gather(spill: Spill) -> cutting.Gathered:
            return cutting.gather_files(
                tables, selection, by, rows, spill, separator=separator, labels=labels, tell=self._tell
            )

        return self._external(gather, max(len(names), 2), by)

    def from_batches(self, batches: Iterable[Any], modes: tuple[Mode, ...]) -> Shards:
        """Shards of entries that come in batches."""
        by = self._position([mode.name for mode in modes])
        rows = cutting.rows_at_a_time(self._memory, len(modes), self._dtype)

        def gather(spill: Spill) -> cutting.Gathered:
            return cutting.gather_batches(batches, modes, by, rows, spill, tell=self._tell)

        return self._external(gather, len(modes), by)

    def _external(self, gather: Callable[[Spill], cutting.Gathered], order: int, by: int) -> Shards:
        with new_folder(self._target) as (new, aside):
            gathered = gather(Spill(aside / "all", order, self._dtype, self._target))
            edges = self._edges(gathered.counts, gathered.modes[by], order)
            self._check_room(gathered.entries.n_entries, order)
            spills = [
                Spill(aside / str(number), order, self._dtype, self._target)
                for number in range(len(edges) - 1)
            ]
            cutting.deal(gathered, edges, by, spills, self._tell)
            gathered.entries.remove()
            shape = tuple(mode.size for mode in gathered.modes)

            def part(number: int) -> tuple[NDArray[np.int32], NDArray[Any]]:
                coordinates, values = spills[number].joined()
                spills[number].remove()
                sort_entries(coordinates, values, shape, available_threads())
                return coordinates, values

            self._write(new, gathered.modes, self._bounds, by, edges, part)
        return Shards(self._target)

    def _write(
        self,
        new: Path,
        modes: tuple[Mode, ...],
        bounds: tuple[float, float] | None,
        by: int,
        edges: NDArray[np.int64],
        part: Callable[[int], tuple[NDArray[np.int32], NDArray[Any]]],
    ) -> None:
        """Write all files of a new folder; ``part`` gives the sorted entries of each shard in turn."""
        with writing(self._target):
            facts = files.write_labels(new, modes)
        number, made = len(edges) - 1, list[ShardFacts]()
        for k in range(number):
            coordinates, values = part(k)
            kept = cutting.as_kept(values, self._dtype)
            with writing(self._target):
                digest = files.write_shard(new, k, coordinates, kept)
            made.append(ShardFacts((int(edges[k]), int(edges[k + 1])), kept.shape[0], digest))
            del coordinates, values, kept  # before the next one is made: memory is for one of them
            self._tell("sort", k + 1, number)
        entries = sum(shard.entries for shard in made)
        kind: Any = self._dtype.name
        with writing(self._target):
            header = Header(files.FORMAT, files.VERSION, facts, bounds, kind, entries, by, tuple(made))
            files.write_header(new, header)

    def _edges(self, counts: NDArray[np.int64], mode: Mode, order: int) -> NDArray[np.int64]:
        most = cutting.most_entries(self._memory, order, self._dtype)
        return cutting.cut_levels(counts, mode, most, self._shards)

    def _check_room(self, entries: int, order: int) -> None:
        """Refuse to begin the second half of the work where the disk will not hold what it makes."""
        needed = entries * files.entry_bytes(order, self._dtype)
        with writing(self._target):
            free = shutil.disk_usage(self._target.parent).free
        if needed > free:
            raise DataError(
                f"{self._target} could not be written: it needs {needed / 2**30:,.1f} GiB more "
                f"on its disk, "
                f"which has {free / 2**30:,.1f} GiB. Make room, or name a folder on a larger disk"
            )

    def _position(self, names: Sequence[str]) -> int:
        if self._by is None:
            return 0
        return find_mode([Mode(name, 0) for name in names], self._by)

    def _tell(self, step: str, done: int, whole: int | None) -> None:
        if self._progress is not None:
            self._progress(step, done, whole)


def _check_destination(target: Path, force: bool) -> None:
    """Only an empty folder may be replaced, and an older folder of shards if that is asked for."""
    with reading(target):
        if not os.path.lexists(target):
            return
        if not target.is_dir() or target.is_symlink():
            raise DataError(f"{target} is a file or a link; name a folder")
        if not any(target.iterdir()):
            return
        if not files.is_shards(target):
            raise DataError(f"{target} is not empty and holds no shards; name another folder")
        other = files.foreign(target)
    if other is not None:
        raise DataError(
            f"{target} holds {other} beside shards, which would be lost: move it, or name another folder"
        )
    if not force:
        raise SettingError(f"{target} holds shards already: replace them with {setting('force')}")


def _is_files(source: Any) -> bool:
    if isinstance(source, list | tuple):
        if not source:
            raise DataError("there are no files: the list is empty")
        return all(isinstance(each, str | os.PathLike) for each in source)
    return isinstance(source, str | os.PathLike)


def _refuse(why: str, **settings: object) -> None:
    for name, value in settings.items():
        if value is not None:
            raise SettingError(f"{setting(name)} cannot be given with this source: {why}")


def _label_arrays(
    labels: Mapping[str, Sequence[Any] | NDArray[Any]] | None, names: Sequence[str]
) -> dict[str, NDArray[Any]]:
    """Labels as modes have them: numbers of 64 bits, or text."""
    arrays = {}
    for name, some in (labels or {}).items():
        find_mode([Mode(each, 0) for each in names], name)
        row = as_list(f"the labels of {name!r}", some, "a list or an array of one dimension")
        plain = [each.item() if isinstance(each, np.generic) else each for each in row]
        if all(isinstance(each, int) and not isinstance(each, bool) for each in plain):
            arrays[name] = np.array(plain, np.int64)
        elif all(isinstance(each, str) for each in plain):
            arrays[name] = np.array(plain, object)
        else:
            raise wrong(f"the labels of {name!r}", "whole numbers or text, not both", some)
    return arrays


def _modes_of_batches(
    modes: Any, labels: Mapping[str, Sequence[Any] | NDArray[Any]] | None
) -> tuple[Mode, ...]:
    wanted = "a list of sfumato.Mode, or sizes by name, where entries come in batches"
    if isinstance(modes, Mapping):
        listed = [Mode(name, size) for name, size in modes.items()]
    else:
        listed = as_list("modes", modes, wanted)
    for mode in listed:
        check_kind(Mode, "a sfumato.Mode", **{"each of modes": mode})
    names = [mode.name for mode in listed]
    if len(listed) < 2 or len(set(names)) < len(names):
        raise SettingError(
            f"a tensor needs two modes or more, of different names, got {', '.join(names)}"
        )
    known = _label_arrays(labels, names)
    return tuple(
        Mode(mode.name, mode.size, known.get(mode.name, mode.labels), mode.bin) for mode in listed
    )
