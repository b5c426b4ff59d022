"""What other relations say of own rows: how owners find it from their entries there. The public part."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

import numpy as np

from sfumato.kernels.grid import BELOW_ONE
from sfumato.models.multilinear import Multilinear
from sfumato.records import record
from sfumato.typed import finite_number, whole_number
from sfumato.types import Array


@record
@dataclass(frozen=True, eq=False)
class OwnSource:
    """What owners make of their entries in another relation, that was fitted before.

    ``mean`` and ``biases`` are the other relation's, and ``own`` is the owners' mode there; ``rows``
    hold a few columns of its modes but the owners', one mode below the other, as they were released.
    """

    part: int
    own: int
    bounds: tuple[float, float]
    mean: float
    biases: tuple[Array, ...]
    rows: Array
    offsets: Array
    clip: float

    @property
    def size(self) -> int:
        """Numbers of an entry: its residual, and that and one times each column."""
        return 1 + 2 * int(self.rows.shape[1])


@record
@dataclass(frozen=True, eq=False)
class OwnNumbers:
    """Numbers that owners have of one source or several, in coordinates ``turn``.

    Those of one entry are shortened to ``longest`` together, so that an entry moves its owner's by at
    most ``longest / (1 + ridge)`` (``shift``); an owner's of each source are shortened to ``reach`` over
    the root of their number.
    """

    sources: tuple[OwnSource, ...]
    turns: tuple[Array, ...]
    longest: float
    ridge: float
    reach: float

    @property
    def size(self) -> int:
        """How many an owner has."""
        return sum(int(turn.shape[0]) for turn in self.turns)

    @property
    def shift(self) -> float:
        """How far one entry moves an owner's numbers, with room for rounding.

        With n entries the mean of their numbers, over n + ridge, moves by at most
        ``longest (2n + ridge) / ((n + ridge)(n + 1 + ridge))``, which is largest for n = 0 and 1.
        """
        return self.longest / (1 + self.ridge) / BELOW_ONE


@record
@dataclass(frozen=True, eq=False)
class OwnMeans:
    """What other relations say of own rows: means of some of their columns, from ``at`` on.

    The same numbers ``times`` times, once for each mode that has columns for them, times ``strength``:
    public ``columns``, or what owners make of their own entries elsewhere.
    """

    at: int
    times: int
    strength: float
    columns: Array | None
    own: OwnNumbers | None

    @property
    def size(self) -> int:
        """Numbers of one owner."""
        if self.own is not None:
            return self.own.size
        return 0 if self.columns is None else int(self.columns.shape[1])

    # -- as it is written -----------------------------------------------------------------------

    def to_json(self) -> dict[str, Any] | None:
        """Its numbers; the arrays are those of :meth:`tensors`. None where owners make none: levels that
        public columns are of are not written.
        """
        own = self.own
        if own is None:
            return None
        return {
            "at": int(self.at),
            "times": int(self.times),
            "strength": float(self.strength),
            "longest": None if own.longest == inf else float(own.longest),
            "ridge": float(own.ridge),
            "reach": float(own.reach),
            "sources": [{"relation": int(s.part), "clip": float(s.clip)} for s in own.sources],
        }

    def tensors(self) -> dict[str, Array]:
        """Its arrays by name. Means, biases and bounds of sources are those of their relations."""
        arrays: dict[str, Array] = {}
        if self.own is not None:
            for number, (source, turn) in enumerate(zip(self.own.sources, self.own.turns, strict=True)):
                arrays |= {f"means_rows_{number}": source.rows, f"means_turn_{number}": turn}
        return arrays

    @classmethod
    def from_parts(
        cls,
        numbers: Mapping[str, Any],
        tensors: Mapping[str, Array],
        relations: Sequence[ReleasedRelation],
        part: int,
    ) -> OwnMeans:
        """What :meth:`to_json` and :meth:`tensors` gave, of one of several relations.

        Kernels do not look where they read: whatever does not fit the relations is a ``ValueError``.
        """
        sources, turns = [], []
        for number, each in enumerate(numbers["sources"]):
            at = whole_number(each["relation"], "a relation")
            if at == part or at >= len(relations):
                raise ValueError("own means are made from another relation of the fit")
            rows, turn = tensors[f"means_rows_{number}"], tensors[f"means_turn_{number}"]
            source = relations[at].source(at, rows, _positive(each["clip"], "a clip"))
            if turn.ndim != 2 or turn.shape[1] != source.size or turn.dtype != rows.dtype:
                raise ValueError("own means have other numbers than their relation gives")
            sources.append(source)
            turns.append(turn)
        longest = numbers["longest"]
        own = OwnNumbers(
            tuple(sources),
            tuple(turns),
            inf if longest is None else _positive(longest, "a length"),
            _positive(numbers["ridge"], "a ridge"),
            _positive(numbers["reach"], "a reach"),
        )
        first, times = whole_number(numbers["at"], "a column"), whole_number(numbers["times"], "times")
        made = cls(first, times, finite_number(numbers["strength"], "a strength"), None, own)
        made._check(relations[part])
        return made

    def _check(self, mine: ReleasedRelation) -> None:
        if mine.local is None or self.own is None or not self.own.sources:
            raise ValueError("own means are those of rows that stay with their owners")
        width = self.times * self.own.size
        if (
            not 0 < self.times < mine.model.order
            or not 0 <= self.at <= self.at + width <= mine.model.ranks[mine.local]
        ):
            raise ValueError("own means do not fit own rows")


@dataclass(frozen=True, eq=False)
class ReleasedRelation:
    """Of a relation, what was released and owners of others look at."""

    model: Multilinear
    bounds: tuple[float, float] | None
    local: int | None

    def source(self, part: int, rows: Array, clip: float) -> OwnSource:
        """What owners make of it, with columns of its modes but theirs one below the other."""
        if self.local is None or self.bounds is None:
            raise ValueError("own means are made from relations whose rows stay with owners")
        sizes = [size for m, size in enumerate(self.model.shape) if m != self.local]
        if rows.ndim != 2 or rows.shape[0] != sum(sizes) or rows.dtype != self.model.dtype:
            raise ValueError("columns of own means do not fit their relation")
        biases, bounds = tuple(self.model.mode_biases), self.bounds
        offsets = offsets_of(sizes)
        return OwnSource(part, self.local, bounds, self.model.mean, biases, rows, offsets, clip)


def offsets_of(sizes: Sequence[int]) -> Array:
    """Where the rows of each mode begin, one mode below the other."""
    return np.cumsum([0, *sizes[:-1]])


def _positive(number: Any, what: str) -> float:
    found = finite_number(number, what)
    if found <= 0:
        raise ValueError(f"{what} has to be above zero")
    return found
