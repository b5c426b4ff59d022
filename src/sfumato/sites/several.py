"""One holder of the entries of several relations, for private fits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from sfumato.data.tensor import SparseTensor
from sfumato.errors import DataError
from sfumato.records import same
from sfumato.sites.memory import Site
from sfumato.types import Array


class RelationSites:
    """The entries of several relations, each as those of one tensor.

    Levels of modes of one name are numbered alike in all of them. All relations have what belongs to one
    owner here: who answers for an owner can look at all of its entries at once.
    """

    def __init__(self, tensors: Sequence[SparseTensor], threads: int) -> None:
        self.parts = tuple(Site(tensor, threads) for tensor in tensors)
        self.threads = threads
        self._kept: tuple[Any, Array] | None = None

    def check_sizes(self, sizes: Sequence[tuple[int, ...]]) -> None:
        """Refuse to be used by models of other modes; nothing that is said depends on the entries."""
        if len(sizes) != len(self.parts):
            raise DataError(f"a plan for {len(sizes)} relations does not fit {len(self.parts)} of them")
        for part, each in zip(self.parts, sizes, strict=True):
            part.check_sizes(each)

    def kept(self, asked: Any, make: Callable[[], Array]) -> Array:
        """What owners make of their entries, made once for as long as they are asked alike."""
        if self._kept is None or not same(self._kept[0], asked):
            self._kept = asked, make()
        return self._kept[1]

    def forget(self) -> None:
        """Let go of what is kept for further rounds."""
        for part in self.parts:
            part.forget()
