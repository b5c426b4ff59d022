"""Paper E's private chapters by name: which tables and figures there are, beside those of chapter 6."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Iterator
from typing import Any

from sfumato.papers import ermis_networks, ermis_planted, ermis_recipes, ermis_sharing, ermis_uclaf


class InOrder(ChainMap[str, Any]):
    """Experiments by name: tables first, each kind in the order of the thesis."""

    def __iter__(self) -> Iterator[str]:
        return iter(sorted({name for some in self.maps for name in some}, key=_place))


def _place(name: str) -> tuple[str, int, int]:
    kind, _, number = name.rpartition(" ")
    chapter, _, within = number.partition(".")
    return kind, int(chapter), int(within)


FULL = (
    ermis_sharing.TABLES,
    ermis_sharing.FIGURES,
    ermis_uclaf.TABLES,
    ermis_uclaf.FIGURES,
    ermis_planted.STUDIES,
    ermis_networks.TABLES,
    ermis_networks.FIGURES,
    ermis_recipes.FIGURES,
)
QUICK = (
    ermis_sharing.QUICK,
    ermis_sharing.QUICK_FIGURES,
    ermis_uclaf.QUICK_TABLES,
    ermis_uclaf.QUICK_FIGURES,
    ermis_planted.QUICK,
    ermis_networks.QUICK_TABLES,
    ermis_networks.QUICK_FIGURES,
    ermis_recipes.FIGURES,
)
