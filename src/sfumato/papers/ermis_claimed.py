"""Paper E's private algorithms on its data sets, with its settings: rows whose epsilon is claimed.

*As printed* follows the algorithms; *as run* is our reading of what may have been run (see
``solvers/as_printed/ermis.py``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from math import inf
from typing import Any, Literal, NamedTuple

import numpy as np

from sfumato.data.tensor import SparseTensor
from sfumato.solvers.as_printed.ermis import PHASE, PaperLangevin, samples
from sfumato.types import Array

# Settings of section 7, by data set.
RATINGS = PaperLangevin(delta=1e-4, passes=120, batch=80, clip=3.0, first_step=0.1)
RATINGS_CMF = PaperLangevin(
    algorithm=1, delta=1e-3, passes=100, batch=100, clip=2.0, first_step=0.1, prior=(0.1, 0.01)
)
UCLAF = PaperLangevin(delta=1e-4, rank=3, passes=300, batch=4, clip=3.0, first_step=0.3, decay=0.9)
PLANTED = PaperLangevin(delta=1e-3, passes=6, batch=100, clip=2.0, first_step=1.0)
PLANTED_CMF = PaperLangevin(
    algorithm=1, delta=1e-3, passes=150, batch=1, clip=2.0, first_step=0.1, prior=(0.1, 0.01)
)

PRINTED, RUN = "as printed", "as run"
OPEN = f"{RUN}: no privacy"
Kind = Literal["as printed", "as run"]
_COMPOSITIONS: dict[str, Literal["ac", "zcdp"]] = {"AC": "ac", "zCDP": "zcdp", "CDP": "zcdp"}


def _rows(*methods: str, kinds: Sequence[str] = (PRINTED, RUN)) -> tuple[str, ...]:
    return tuple(f"{kind}: {method}" for kind in kinds for method in methods)


# Of MovieLens: which settings, and rows beside those of the tables.
BY_TABLE: dict[str, tuple[PaperLangevin, tuple[str, ...]]] = {
    "table 7.2": (RATINGS_CMF, _rows("CDP user", "CDP site")),
    "table 7.3": (RATINGS_CMF, _rows("CDP site")),
    # B = 1, as the text has it, would be 96 million steps; the printed row is that of table 7.7, B = 80.
    "table 7.6": (replace(RATINGS, delta=1e-2), _rows("zCDP user")),
    "figure 7.5": (replace(RATINGS_CMF, delta=1e-2), _rows("CDP user")),
    "table 7.7": (
        RATINGS,
        (
            *_rows("AC user", "zCDP user", "zCDP site", kinds=(PRINTED,)),
            *_rows("zCDP user", "zCDP site", kinds=(RUN,)),
        ),
    ),
}


class Claim(NamedTuple):
    """A row: as printed or as run, and which of the thesis' methods, such as ``zCDP user``."""

    kind: Kind
    method: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.method}"

    def settings(self, base: PaperLangevin, epsilon: float | None) -> PaperLangevin:
        """The data set's settings under this method; without an epsilon nothing is hidden."""
        steps: Any = "as run" if self.kind == RUN else base.steps
        if epsilon is None:
            return replace(base, steps=steps, level="open")
        composition, _, level = self.method.partition(" ")
        found: Any = level
        return replace(
            base, epsilon=epsilon, level=found, composition=_COMPOSITIONS[composition], steps=steps
        )


def claim_of(row: str) -> Claim:
    """The claim that a row of this name is."""
    kind, _, method = row.partition(": ")
    named: Any = kind
    return Claim(named, method)


def is_claim(row: str) -> bool:
    return row.startswith((f"{PRINTED}:", f"{RUN}:"))


class Site(NamedTuple):
    """A site's records, and those held out."""

    train: SparseTensor
    test: SparseTensor


def predictions(
    sites: Sequence[Site],
    shared: Sequence[str],
    settings: PaperLangevin,
    seed: int,
    *,
    scored: int | None = None,
    public: Sequence[SparseTensor] = (),
) -> list[Array] | None:
    """Of the first sites' held-out records: means over the passes after the share alpha of all.

    None where the factors have grown beyond all bounds.
    """
    tested = [site.test for site in sites[:scored]]
    sums, count, last = [np.zeros(test.n_entries) for test in tested], 0, 0
    names = [mode.name for mode in sites[0].train.modes]
    for sample in samples([site.train for site in sites], shared, settings, seed, public):
        last = sample.passes
        if last == settings.passes or last > PHASE * settings.passes:
            count += 1
            for number, test in enumerate(tested):
                sums[number] += sample.predict(number, names, test.coordinates)
    return [total / count for total in sums] if last == settings.passes else None


def rmse(predicted: Array | None, test: SparseTensor) -> float:
    """Infinite where there is nothing to predict with."""
    if predicted is None:
        return inf
    found = float(np.sqrt(np.mean((predicted - test.values) ** 2)))
    return found if np.isfinite(found) else inf


def to_json(settings: PaperLangevin) -> dict[str, Any]:
    return asdict(settings)
