"""The entries of several relations, as solvers walk over them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sfumato.data.relations import Relation, Relations
from sfumato.data.tensor import Mode, SparseTensor
from sfumato.errors import SettingError
from sfumato.kernels.numba.noisy_counts import NoisyCounts
from sfumato.sites.memory import Site, WeightedSite
from sfumato.sites.noisy_counts import exact_counts, noisy_counts
from sfumato.surface import either

_MOST_CELLS = 50_000_000  # that are written out where no closed form sums over them
# Where at least this many cells, and this part of all, would be visited one by one, matrix products over
# all cells are faster: visits are slow for Tucker, and those of CP about as fast as a product.
_WORTH_WRITING = 10_000
_PART_WRITING_TUCKER = 0.2
_PART_WRITING_CP = 0.9


class WrittenOut(NamedTuple):
    """All cells of a relation as a matrix: a row for each level of its largest mode.

    ``positions`` are those of the tensor's modes, the largest first; along a row the last of them runs
    fastest. ``known`` says which cells are observed, None where all are; the others have the value zero.
    """

    positions: tuple[int, ...]
    values: NDArray[Any]
    known: NDArray[np.bool_] | None


@dataclass(frozen=True, eq=False)
class RelationSite:
    """The entries of one relation.

    ``unknown`` are cells to be taken off sums over all cells; None where there are none, or where absent
    cells are missing (``closed`` is then False). ``noisy`` is what channels have released of the values,
    which then are none of the entries' own.
    """

    name: str
    entries: Site
    unknown: Site | None
    closed: bool
    divergence: float
    cells: int
    noisy: NoisyCounts | None = None

    @property
    def counts(self) -> NoisyCounts:
        """The values as counts, noisy or exact."""
        exact = self.entries.tensor.values
        return self.noisy or self.entries.kept("counts", lambda: exact_counts(exact))

    def restated(self, values: NDArray[Any]) -> RelationSite:
        """The same cells with values that a model expects behind noisy ones."""
        none = np.empty(0, self.entries.tensor.values.dtype)
        entries = WeightedSite(self.entries, values.astype(none.dtype), none)
        return replace(self, entries=entries)

    def written(self, *, tucker: bool) -> WrittenOut | None:
        """All cells, where that is faster for a model with or without a core than visiting them."""
        if self.noisy is not None:  # values change at every step
            return None
        visited = sum(each.tensor.n_entries for each in (self.entries, self.unknown) if each is not None)
        part = _PART_WRITING_TUCKER if tucker else _PART_WRITING_CP
        if visited < max(_WORTH_WRITING, part * prod(self.entries.tensor.shape)):
            return None
        return self.entries.kept("written out", lambda: write_out(self))


def write_out(holder: RelationSite) -> WrittenOut:
    """All cells of a relation, whether or not that is worth it."""
    tensor = holder.entries.tensor
    positions = tuple(sorted(range(tensor.order), key=lambda position: -tensor.shape[position]))
    shape = tuple(tensor.shape[position] for position in positions)
    values = np.zeros(shape, tensor.values.dtype)
    values[tuple(tensor.coordinates[list(positions)])] = tensor.values
    as_matrix = (shape[0], -1)
    if holder.cells == values.size:
        return WrittenOut(positions, values.reshape(as_matrix), None)
    known = np.full(shape, holder.closed)
    listed = (holder.unknown or holder.entries) if holder.closed else holder.entries
    known[tuple(listed.tensor.coordinates[list(positions)])] = not holder.closed
    return WrittenOut(positions, values.reshape(as_matrix), known.reshape(as_matrix))


class CoupledSite:
    """One holder of all relations."""

    def __init__(self, relations: Relations, threads: int, dtype: np.dtype) -> None:
        self.threads = threads
        self.parts = tuple(_site(relation, threads, dtype) for relation in relations.values())

    @classmethod
    def of(cls, site: Site, divergence: float) -> CoupledSite:
        """A single tensor, whose absent cells are missing."""
        made = cls.__new__(cls)
        made.threads = site.threads
        made.parts = (RelationSite("", site, None, False, divergence, site.tensor.n_entries),)
        return made


def _site(relation: Relation, threads: int, dtype: np.dtype) -> RelationSite:
    tensor, unknown = relation.tensor, relation.unknown
    closed = relation.absent == "zero" and relation.divergence in (0.0, 1.0)
    if relation.absent == "zero" and not closed:
        tensor, unknown = _written_out(relation), unknown[:, :0]
    if tensor.values.dtype != dtype:
        tensor = tensor.astype(dtype)
    cut = closed and unknown.shape[1] > 0
    missing = SparseTensor(unknown, np.zeros(unknown.shape[1], dtype), tensor.modes) if cut else None

    def site(of: SparseTensor) -> Site:
        return Site(_with_weights(of) if relation.weighted else of, threads)

    entries, lacking = site(tensor), None if missing is None else site(missing)
    noisy = None if relation.privatised is None else noisy_counts(relation.privatised)
    return RelationSite(
        relation.name, entries, lacking, closed, relation.divergence, relation.cells, noisy
    )


def _written_out(relation: Relation) -> SparseTensor:
    """All observed cells, zeros included."""
    shape = relation.tensor.shape
    if prod(shape) > _MOST_CELLS:
        raise SettingError(
            f"relation {relation.name!r} has {prod(shape):,} cells that count as zeros. For p = 0 and 1 "
            "their sums have a closed form; for others every cell has to be visited, and these are too "
            "many: use one of these, or "
            + either("absent='missing'", f"--absent {relation.name}=missing")
        )
    dense = np.zeros(shape)
    dense[tuple(relation.tensor.coordinates)] = relation.tensor.values
    known = np.ones(shape, bool)
    known[tuple(relation.unknown)] = False
    return SparseTensor(np.stack(np.nonzero(known)), dense[known], relation.tensor.modes)


def _with_weights(tensor: SparseTensor) -> SparseTensor:
    """The same entries with one more mode, of one level, for the weights of its components."""
    zeros: NDArray[np.int32] = np.zeros((1, tensor.n_entries), np.int32)
    names = [mode.name for mode in tensor.modes]
    extra = Mode("".join(names) + " weights", 1)
    return SparseTensor(
        np.vstack([tensor.coordinates, zeros]), tensor.values, (*tensor.modes, extra), tensor.bounds
    )
