"""Components of the power method, as a table, as records and as files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from sfumato.types import Array

if TYPE_CHECKING:
    from rich.table import Table

_NAMED = 3  # levels that a component is described by


@dataclass(frozen=True)
class FoundComponent:
    """A component: its weight, the noise in it, how far a second fit moves it, its largest levels."""

    weight: float
    deviation: float
    moves: float | None
    largest: dict[str, dict[str, float]]

    def named(self) -> str:
        return "; ".join(
            ", ".join(f"{label} {share:+.2f}" for label, share in levels.items())
            for levels in self.largest.values()
        )


def found_components(
    weights: Array,
    deviations: Array,
    factors: Sequence[Array],
    labels: dict[str, Sequence[Any]],
    moves: Array | None,
) -> list[FoundComponent]:
    """Components by weight; ``labels`` are those of the modes whose vectors differ, by name."""
    found = []
    for place in np.argsort(-np.abs(weights), kind="stable").tolist():
        largest = {}
        for (mode, names), factor in zip(labels.items(), factors, strict=False):
            levels = np.argsort(-np.abs(factor[place]), kind="stable")[:_NAMED]
            largest[mode] = {str(names[level]): float(factor[place, level]) for level in levels}
        how_far = None if moves is None else float(moves[place])
        found.append(FoundComponent(float(weights[place]), float(deviations[place]), how_far, largest))
    return found


def components_json(found: Sequence[FoundComponent]) -> list[dict[str, Any]]:
    return [asdict(each) for each in found]


def components_table(found: Sequence[FoundComponent]) -> Table:
    """Components to print; only what was measured has a column."""
    from sfumato.report.text import plain_table

    noisy = any(each.deviation for each in found)
    moved = [f"{each.moves:.2g}" for each in found if each.moves is not None]
    headings = ["weight", *["noise"] * noisy, *["moves by"] * bool(moved), "largest"]
    table = plain_table("", *headings)
    table.columns[-1].justify, table.columns[-1].no_wrap = "left", False
    for number, each in enumerate(found, 1):
        cells = [f"{each.weight:.5g}"]
        cells += [f"{each.deviation:.2g}"] * noisy
        cells += moved[number - 1 : number]
        table.add_row(str(number), *cells, each.named())
    return table
