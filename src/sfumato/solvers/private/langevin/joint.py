"""Which parameters several relations have: a factor for each mode, biases for each relation."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np

from sfumato.errors import SettingError
from sfumato.kernels.numba.private_langevin import Layout, Packed
from sfumato.privacy.facts import CoupledFacts
from sfumato.records import record
from sfumato.sites.several import RelationSites
from sfumato.types import Array


@record
@dataclass(frozen=True)
class Joint:
    """All modes of some relations, each once, in the order in which relations name them.

    Modes are known by their number among all (``blocks``); biases belong to a mode of a relation.
    """

    facts: CoupledFacts

    def check(self) -> None:
        """Raise a ``SettingError`` where relations do not fit together."""
        sizes, local = dict[str, int](), dict[str, bool]()
        for part in self.facts.parts:
            if part.shape.kind != "cp" or set(part.shape.ranks) != {self.rank}:
                raise SettingError(
                    "private Langevin dynamics fits CP models of one rank to all relations"
                )
            for m, mode in enumerate(part.modes):
                if sizes.setdefault(mode.name, mode.size) != mode.size:
                    raise SettingError(f"the mode {mode.name!r} has other levels in another relation")
                if local.setdefault(mode.name, m == part.local) != (m == part.local):
                    raise SettingError(
                        f"rows of {mode.name!r} stay with their owners in some relations, not in others"
                    )

    @property
    def rank(self) -> int:
        return self.facts.parts[0].shape.ranks[0]

    @cached_property
    def names(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(mode.name for part in self.facts.parts for mode in part.modes))

    @cached_property
    def blocks(self) -> tuple[tuple[int, ...], ...]:
        """For each relation, which of all modes its modes are."""
        return tuple(
            tuple(self.names.index(mode.name) for mode in part.modes) for part in self.facts.parts
        )

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        found = {mode.name: mode.size for part in self.facts.parts for mode in part.modes}
        return tuple(found[name] for name in self.names)

    @cached_property
    def homes(self) -> Array:
        """What rows of each mode shrink towards: one for times that may drop out of all products."""
        homes = np.ones(len(self.names))
        for part, blocks in zip(self.facts.parts, self.blocks, strict=True):
            for mean, block in zip(part.shape.prior_means(None), blocks, strict=True):
                homes[block] = min(homes[block], mean)
        return homes

    @property
    def own(self) -> int | None:
        """The mode whose rows units solve for themselves in every step."""
        own = self.facts.parts[0].own
        return None if own is None else self.blocks[0][own]

    @property
    def unit_block(self) -> int | None:
        mode = self.facts.unit.mode
        return None if mode is None else self.names.index(mode)

    # -- where they lie -------------------------------------------------------------------------

    @cached_property
    def n_rows(self) -> int:
        return sum(self.sizes)

    def span(self, block: int) -> slice:
        """Rows of a mode."""
        first = sum(self.sizes[:block])
        return slice(first, first + self.sizes[block])

    @cached_property
    def bias_spans(self) -> tuple[tuple[slice, ...], ...]:
        """Biases of each relation's modes."""
        spans, first = [], 0
        for part in self.facts.parts:
            ends = np.cumsum([first, *part.sizes]).tolist()
            spans.append(tuple(slice(*each) for each in pairwise(ends)))
            first = ends[-1]
        return tuple(spans)

    @property
    def n_biases(self) -> int:
        return int(self.bias_spans[-1][-1].stop)

    def having(self, block: int) -> Iterator[tuple[int, int]]:
        """Relations that have a mode, and where."""
        return ((v, b.index(block)) for v, b in enumerate(self.blocks) if block in b)

    def released(self) -> list[int]:
        """Modes whose rows everybody sees move."""
        return [block for block in range(len(self.names)) if block != self.own]

    def released_biases(self) -> list[slice]:
        """The same of biases."""
        return [
            span
            for spans, blocks in zip(self.bias_spans, self.blocks, strict=True)
            for span, block in zip(spans, blocks, strict=True)
            if block != self.own
        ]

    @cached_property
    def layout(self) -> Layout:
        """The same as kernels read it."""
        width = max(map(len, self.blocks))
        orders = np.array([len(blocks) for blocks in self.blocks])
        first_rows, first_biases, blocks = (np.zeros((orders.size, width), np.int64) for _ in range(3))
        for v, mine in enumerate(self.blocks):
            for m, block in enumerate(mine):
                first_rows[v, m] = self.span(block).start
                first_biases[v, m] = self.bias_spans[v][m].start
                blocks[v, m] = block
        block_of = np.repeat(np.arange(len(self.sizes)), self.sizes)
        return Layout(orders, first_rows, first_biases, blocks, block_of)

    def packed(self, sites: RelationSites) -> Packed:
        """All entries by relation, or by unit and then by relation; made once."""
        mode = self.facts.unit.mode
        # One relation keeps it for all: relations come and go together.
        return sites.parts[0].kept(("langevin", mode), lambda: _pack(self, sites))


def _pack(joint: Joint, sites: RelationSites) -> Packed:
    tensors, width = [part.tensor for part in sites.parts], max(map(len, joint.blocks))
    counts = [tensor.n_entries for tensor in tensors]
    levels, values = np.zeros((sum(counts), width), np.int32), np.empty(sum(counts))
    ends = np.cumsum([0, *counts])
    for tensor, first, beyond in zip(tensors, ends[:-1], ends[1:], strict=True):
        levels[first:beyond, : tensor.order] = tensor.coordinates.T
        values[first:beyond] = tensor.values
    if joint.unit_block is None:
        return Packed(levels, values, ends.astype(np.int64))
    relation = np.repeat(np.arange(len(tensors)), counts)
    modes = np.array([blocks.index(joint.unit_block) for blocks in joint.blocks])
    unit = levels[np.arange(values.size), modes[relation]].astype(np.int64)
    key = unit * len(tensors) + relation
    order = np.argsort(key, kind="stable")
    segments = joint.sizes[joint.unit_block] * len(tensors)
    starts = np.concatenate([[0], np.cumsum(np.bincount(key, minlength=segments))])
    return Packed(levels[order], values[order], starts.astype(np.int64))
