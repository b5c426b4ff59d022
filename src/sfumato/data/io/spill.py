"""Entries set aside on disk, block after block, by who has more of them than fit in memory.

These files live in a work folder for as long as one call does, and are read by nobody else.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sfumato.data.io.folders import writing

Block = tuple[NDArray[np.int32], NDArray[Any]]  # coordinates (modes x entries), and values


class Spill:
    """Blocks of entries in one file, in the order in which they were added.

    The file is open only while a block is written or all are read: there may be thousands of them.
    """

    def __init__(self, path: Path, order: int, dtype: np.dtype[Any], target: Path) -> None:
        """``target`` is what the entries are for, which errors name."""
        self._path, self._order, self.dtype, self._target = path, order, dtype, target
        self._lengths: list[int] = []
        self.n_entries = 0

    def append(self, coordinates: NDArray[np.int32], values: NDArray[Any]) -> None:
        """Add a block at the end."""
        with writing(self._target), self._path.open("ab") as file:
            for levels in coordinates:
                file.write(np.ascontiguousarray(levels, np.int32).data)
            file.write(np.ascontiguousarray(values, self.dtype).data)
        self._lengths.append(values.shape[0])
        self.n_entries += values.shape[0]

    def blocks(self) -> Iterator[Block]:
        """All blocks, one in memory at a time."""
        if not self._lengths:
            return
        with self._path.open("rb") as file:
            for n in self._lengths:
                coordinates = np.fromfile(file, np.int32, self._order * n).reshape(self._order, n)
                yield coordinates, np.fromfile(file, self.dtype, n)

    def joined(self) -> Block:
        """All entries as one block; no more is held than that and the block that is read."""
        coordinates = np.empty((self._order, self.n_entries), np.int32)
        values = np.empty(self.n_entries, self.dtype)
        begin = 0
        for block, numbers in self.blocks():
            here = slice(begin, begin + numbers.shape[0])
            coordinates[:, here], values[here] = block, numbers
            begin = here.stop
        return coordinates, values

    def remove(self) -> None:
        """Give the room on the disk back."""
        self._path.unlink(missing_ok=True)
        self._lengths.clear()
        self.n_entries = 0
