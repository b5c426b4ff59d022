"""One holder of the entries of several relations, for private fits."""

from __future__ import annotations

from collections.abc import Sequence

from sfumato.data.tensor import SparseTensor
from sfumato.errors import DataError
from sfumato.sites.memory import Site


class RelationSites:
    """The entries of several relations, each as those of one tensor.

    Levels of modes of one name are numbered alike in all of them. All relations have what belongs to one
    owner here: who answers for an owner can look at all of its entries at once.
    """

    def __init__(self, tensors: Sequence[SparseTensor], threads: int) -> None:
        self.parts = tuple(Site(tensor, threads) for tensor in tensors)
        self.threads = threads

    def check_sizes(self, sizes: Sequence[tuple[int, ...]]) -> None:
        """Refuse to be used by models of other modes; nothing that is said depends on the entries."""
        if len(sizes) != len(self.parts):
            raise DataError(f"a plan for {len(sizes)} relations does not fit {len(self.parts)} of them")
        for part, each in zip(self.parts, sizes, strict=True):
            part.check_sizes(each)

    def forget(self) -> None:
        """Let go of what is kept for further rounds."""
        for part in self.parts:
            part.forget()
