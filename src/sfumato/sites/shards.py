"""Sites over shards: orders of entries are kept in files beside the shard instead of in memory.

A fit over many shards asks one site after the other, and releases it: what is held is the shard at
hand, and of that only pages that are being looked at. Orders are made once, in memory, and found
again by the next fit.

What lies in a shard's folder, with bytes for each entry of N modes, and in brackets those of three modes
in single precision:

    coordinates, values   the shard itself                                 4 N + value         (16)
    by-M                  sorted by a mode M, not the first                4 (N - 1) + value   (12)
    by-0                  the shard's own entries                          none
    slots-M               places when sorted by M; for fits with weights   4
    cells-U-M             levels of M at owners of U; for private fits     4 to 8
    grid-B-T              shuffled, B blocks of T tiles; for passes        4 N + value         (16)

An open fit of least squares asks for all of ``by-M``: 16 + 2 x 12 = 40 bytes, one by passes (SGD) for a
grid: 32. Beside that, all but slots and grids have starts of 8 bytes for each *level* of their mode, in
every shard.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import DTypeLike, NDArray

from sfumato.checks import as_path
from sfumato.data.io.files import identity, reading
from sfumato.data.io.folders import writing
from sfumato.data.io.npy import map_npy, write_npy
from sfumato.data.io.shard_files import COORDINATES, VALUES
from sfumato.data.shards import Shards
from sfumato.data.tensor import SparseTensor
from sfumato.errors import DataError
from sfumato.kernels.numba.cells import Cells
from sfumato.kernels.numba.ordering import row_starts
from sfumato.sites.memory import ByMode, Grid, Site, grid_sizes, make_grid

_T = TypeVar("_T")

_STAMP = "layout.json"
_MOST_STAMP = 1 << 16  # bytes
_FORMAT, _VERSION = "sfumato-layout", 1


class ShardSite(Site):
    """One shard as a holder of entries, with the same bits as a site of the same tensor in memory.

    ``layouts`` is a folder for orders of entries where those beside the shard cannot be written; each
    shard of each tensor has its own folder in it.
    """

    def __init__(
        self,
        shards: Shards,
        number: int,
        threads: int,
        layouts: str | os.PathLike[str] | None = None,
    ) -> None:
        self._shards, self._number = shards, number
        place = shards.place(number)
        if layouts is not None:
            apart = as_path("layouts", layouts) / shards.digest[:16] / place.name
        self._files = _Layouts(place if layouts is None else apart, _stamp(shards, place))
        self._tensor: SparseTensor | None = None
        super().__init__(shards.part(number), threads)

    @property
    def tensor(self) -> SparseTensor:
        """The shard's tensor, mapped anew where it was released."""
        if self._tensor is None:
            self._tensor = self._shards.part(self._number)
        return self._tensor

    @tensor.setter
    def tensor(self, tensor: SparseTensor) -> None:
        self._tensor = tensor

    def release(self) -> None:
        """Let go of all maps, and of all that is kept: the next question maps files again.

        Whoever still holds an array of it holds its map.
        """
        self.forget()

    def forget(self) -> None:
        """Let go of what is kept. Files stay."""
        super().forget()
        self.__dict__.pop("counts", None)
        self._tensor = None

    def slots(self, mode: int) -> NDArray[np.int32]:
        """The place of each entry among all, sorted by a mode."""
        return self.kept(("slots", mode), lambda: self._slots(mode))

    def cells(self, own: int, mode: int) -> Cells:
        """The different levels of a mode at which each level of another, an owner, has entries."""
        return self.kept(("cells", own, mode), lambda: self._cells(own, mode))

    def grid(self, blocks: int, row_bytes: int) -> Grid:
        """The entries shuffled and cut into tiles."""
        return self.kept(("grid", blocks, row_bytes), lambda: self._grid(blocks, row_bytes))

    def _sorted_by(self, mode: int) -> ByMode:
        tensor, n, starts = self.tensor, self.tensor.n_entries, self.tensor.shape[mode] + 1
        if mode == 0:  # the shard's own entries
            found = self._files.get(
                "by-0",
                lambda: {"starts": row_starts(tensor.coordinates[0], tensor.shape[0])},
                lambda read: read("starts", np.int64, (starts,)),
                lambda found: _check_starts(found, n),
            )
            return ByMode(tensor.coordinates[1:], tensor.values, found, self.weights)
        sizes = tuple(size for m, size in enumerate(tensor.shape) if m != mode)

        def make() -> dict[str, NDArray[Any]]:
            made = Site(tensor, self.threads).by_mode(mode)
            return {"others": made.others, "values": made.values, "starts": made.starts}

        def load(read: _Read) -> ByMode:
            others = read("others", np.int32, (len(sizes), n), read_only=True)
            values = read("values", tensor.values.dtype, (n,), read_only=True)
            return ByMode(others, values, read("starts", np.int64, (starts,)), self.weights)

        def check(found: ByMode) -> None:
            _check_starts(found.starts, n)
            for levels, size in zip(found.others, sizes, strict=True):
                _check_below(levels, size)

        return self._files.get(f"by-{mode}", make, load, check)

    def _slots(self, mode: int) -> NDArray[np.int32]:
        n = self.tensor.n_entries
        return self._files.get(
            f"slots-{mode}",
            lambda: {"slots": Site(self.tensor, self.threads).slots(mode)},
            lambda read: read("slots", np.int32, (n,)),
            _check_places,
        )

    def _cells(self, own: int, mode: int) -> Cells:
        tensor, n = self.tensor, self.tensor.n_entries

        def load(read: _Read) -> Cells:
            starts = read("starts", np.int64, (tensor.shape[own] + 1,))
            levels = read("levels", np.int32, (int(starts[-1]),), read_only=True)
            return Cells(starts, levels, read("of_entry", np.int32, (n,)))

        def check(found: Cells) -> None:
            _check_starts(found.starts, found.levels.shape[0])
            _check_below(found.levels, tensor.shape[mode])
            _check_below(found.of_entry, found.levels.shape[0])

        return self._files.get(
            f"cells-{own}-{mode}",
            lambda: Site(tensor, self.threads).cells(own, mode)._asdict(),
            load,
            check,
        )

    def _grid(self, asked: int, row_bytes: int) -> Grid:
        tensor, n = self.tensor, self.tensor.n_entries
        blocks, tiles = grid_sizes(tensor, asked, row_bytes)
        edges = (blocks ** (tensor.order - 1), blocks, int(np.prod(tiles)) + 1)

        def make() -> dict[str, NDArray[Any]]:
            made = make_grid(tensor, asked, row_bytes, 0, self.threads)
            return {"coordinates": made.coordinates, "values": made.values, "starts": made.starts}

        def load(read: _Read) -> Grid:
            coordinates = read("coordinates", np.int32, tensor.coordinates.shape)
            values = read("values", tensor.values.dtype, (n,))
            return Grid(coordinates, values, read("starts", np.int64, edges), tuple(tiles))

        def check(found: Grid) -> None:
            inner, ends = found.starts[..., :-1].ravel(), found.starts[..., 1:].ravel()
            _check_starts(np.append(inner, ends[-1]), n)
            if (inner[1:] != ends[:-1]).any():
                raise ValueError("its tiles do not follow on each other")
            for levels, size in zip(found.coordinates, tensor.shape, strict=True):
                _check_below(levels, size)

        return self._files.get(f"grid-{blocks}-{'-'.join(map(str, tiles))}", make, load, check)


# -- files ----------------------------------------------------------------------------------------


class _Read(Protocol):
    """How an array of a layout is mapped.

    It is read-only where that of a site in memory is, or kernels would be compiled a second time; what
    is written to another stays in memory.
    """

    def __call__(
        self, name: str, dtype: DTypeLike, shape: tuple[int, ...], *, read_only: bool = False
    ) -> NDArray[Any]: ...


class _Layouts:
    """Folders of arrays, each made once, written whole, and mapped.

    ``stamp`` says what they were made of. One with another stamp is of other entries, and made anew; so
    is one that is damaged.
    """

    def __init__(self, folder: Path, stamp: dict[str, Any]) -> None:
        self._folder, self._stamp = folder, stamp
        self._checked: dict[str, object] = {}

    def get(
        self,
        name: str,
        make: Callable[[], Mapping[str, NDArray[Any]]],
        load: Callable[[_Read], _T],
        check: Callable[[_T], None],
    ) -> _T:
        """A layout by its name. What is read for the first time is checked all through."""
        if self._is_current(self._folder / name):
            with suppress(DataError):
                return self._loaded(name, load, check)
        self._write(self._folder / name, make())
        return self._loaded(name, load, check)

    def _loaded(self, name: str, load: Callable[[_Read], _T], check: Callable[[_T], None]) -> _T:
        place, seen = self._folder / name, list[object]()

        def read(
            name: str, dtype: DTypeLike, shape: tuple[int, ...], *, read_only: bool = False
        ) -> NDArray[Any]:
            seen.append(identity(place / f"{name}.npy"))
            return map_npy(place / f"{name}.npy", dtype, shape, writeable=not read_only)

        layout = load(read)
        if self._checked.get(name) != seen:
            with reading(place):
                check(layout)
            self._checked[name] = seen
        return layout

    def _is_current(self, place: Path) -> bool:
        path = place / _STAMP
        try:
            if path.stat().st_size > _MOST_STAMP:
                return False
            return bool(json.loads(path.read_bytes()) == self._stamp)
        except (OSError, ValueError, RecursionError):
            return False

    def _write(self, place: Path, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Written beside its place and moved there: whoever looks meanwhile sees nothing, or all."""
        draft = self._folder / f".{place.name}.{secrets.token_hex(4)}"
        try:
            with writing(place):
                (draft / "new").mkdir(parents=True)
                for name, numbers in arrays.items():
                    write_npy(draft / "new" / f"{name}.npy", numbers)
                (draft / "new" / _STAMP).write_text(json.dumps(self._stamp), encoding="utf-8")
                self._put(draft, place)
        finally:
            shutil.rmtree(draft, ignore_errors=True)

    def _put(self, draft: Path, place: Path) -> None:
        try:
            if os.path.lexists(place):
                os.rename(place, draft / "old")
            os.rename(draft / "new", place)
        except OSError:
            if not self._is_current(place):  # else another site of the shard was first, with the same
                raise


def _check_starts(starts: NDArray[Any], end: int) -> None:
    if starts[0] != 0 or starts[-1] != end or (starts[1:] < starts[:-1]).any():
        raise ValueError("its starts are not those of the entries")


def _check_below(numbers: NDArray[Any], limit: int) -> None:
    """Refuse numbers that would lead kernels beyond their arrays."""
    if numbers.size and (numbers.min() < 0 or numbers.max() >= limit):
        raise ValueError("it leads beyond the entries")


def _check_places(slots: NDArray[Any]) -> None:
    """Refuse places that are not one for each entry."""
    _check_below(slots, slots.shape[0])
    taken = np.zeros(slots.shape[0], np.bool_)
    taken[slots] = True
    if not taken.all():
        raise ValueError("two entries have one place")


def _stamp(shards: Shards, place: Path) -> dict[str, Any]:
    """What a layout is of: the header, which has digests of all entries, and the sizes of files."""
    sizes = {name: identity(place / name)[2] for name in (COORDINATES, VALUES)}
    return {"format": _FORMAT, "version": _VERSION, "of": shards.digest, "sizes": sizes}
