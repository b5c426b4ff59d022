"""Effects of pairs beside private biases on invented tensors: where their settings come from.

``python -m benchmarks.pairs`` prints the error of the plan's choice over that of biases. Entries lie
alone or, as where people come back to places, several to a pair of levels; entries of a pair are alike
or not; values are normal or counts that were capped. None of it is real data.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Iterator
from statistics import mean, stdev
from typing import NamedTuple

import numpy as np

import sfumato as sf
from benchmarks.report import Figure, aligned, say
from sfumato.fit.admit import with_labels_of

EPSILONS = (10.0, 3.0, 1.0, 0.3)
ROWS = ["local", "released"]
NO_WORSE = 1.005  # times biases, where pairs are not alike


class Kind(NamedTuple):
    """An invented tensor: sizes, entries, and of how many other entries of its pair each has.

    ``alike`` is the share of the variance that effects of pairs make up, ``biases`` that of biases.
    """

    name: str
    sizes: tuple[int, ...]
    entries: int
    together: float
    alike: float
    biases: float
    law: str = "normal"


KINDS = (
    Kind("noise alone", (150, 120, 6), 1500, 1.0, 0.0, 0.0),
    Kind("alone, biases", (150, 120, 6), 1500, 0.0, 0.0, 0.3),
    Kind("together, not alike", (150, 120, 6), 1500, 1.0, 0.0, 0.3),
    Kind("together, not alike, counts", (300, 80, 8), 4000, 2.0, 0.0, 0.2, "counts"),
    Kind("alone, alike", (150, 120, 6), 1500, 0.0, 0.4, 0.2),
    Kind("together, a little alike", (200, 100, 10), 3000, 1.5, 0.15, 0.2),
    Kind("together, alike", (120, 200, 6), 1200, 1.0, 0.6, 0.1),
    Kind("together, alike, counts", (200, 200, 8), 2000, 1.0, 0.6, 0.1, "counts"),
    Kind("dense, not alike", (45, 16, 12), 4000, 0.0, 0.0, 0.3),
    Kind("dense, alike", (45, 16, 12), 4000, 0.0, 0.3, 0.3),
    Kind("four modes, together, alike", (80, 60, 6, 5), 2500, 1.5, 0.5, 0.2),
    Kind("larger, not alike", (400, 250, 12), 10_000, 1.0, 0.0, 0.25),
    Kind("larger, alike", (400, 250, 12), 10_000, 1.0, 0.4, 0.2),
)


def invented(kind: Kind, seed: int) -> sf.SparseTensor:
    """Pairs of the first two modes at popular places, each with some entries; values of variance one."""
    g = np.random.default_rng(seed)
    popular = [np.arange(1, n + 1) ** -0.6 for n in kind.sizes]
    drawn = round(3 * kind.entries)
    cells = np.stack([g.choice(p.size, drawn, p=p / p.sum()) for p in popular])
    times = 1 + g.poisson(kind.together, drawn)
    cells = np.repeat(cells, times, 1)
    for mode in range(2, len(kind.sizes)):
        cells[mode] = g.integers(0, kind.sizes[mode], cells.shape[1])
    _, first = np.unique(np.ravel_multi_index(tuple(cells), kind.sizes), return_index=True)
    cells = cells[:, np.sort(first)[: kind.entries]]
    whole = np.zeros(cells.shape[1])
    for levels, size in zip(cells, kind.sizes, strict=True):
        whole += np.sqrt(kind.biases / len(kind.sizes)) * g.standard_normal(size)[levels]
    effects = g.standard_normal(kind.sizes[:2])
    whole += np.sqrt(kind.alike) * effects[cells[0], cells[1]]
    whole += np.sqrt(1 - kind.alike - kind.biases) * g.standard_normal(cells.shape[1])
    modes = tuple(sf.Mode(f"m{m}", size) for m, size in enumerate(kind.sizes))
    if kind.law == "counts":
        values = np.minimum(np.floor(np.exp(0.9 * whole + 0.7)) + 1, 5.0)
    else:
        values = np.clip(3 + whole, 1, 5)
    return sf.SparseTensor(cells, values, modes, (1.0, 5.0))


class Cell(NamedTuple):
    kind: Kind
    local: bool
    epsilon: float
    pairs: list[float]
    biases: list[float]

    @property
    def ratio(self) -> float:
        return mean(self.pairs) / mean(self.biases)

    @property
    def error(self) -> float:
        """Twice the standard error of the ratio."""
        apart = [one / other for one, other in zip(self.pairs, self.biases, strict=True)]
        return 2 * stdev(apart) / len(apart) ** 0.5 if len(apart) > 1 else 0.0

    def figure(self) -> Figure:
        rows = "rows local" if self.local else "all released"
        bar = NO_WORSE + self.error
        text = f"{self.ratio:.4f} ± {self.error:.4f}"
        return Figure(
            f"{self.kind.name}, {rows}, epsilon {self.epsilon:g}: over biases", self.ratio, text, bar
        )


def _error(method: str, train: sf.SparseTensor, test: sf.SparseTensor, **asked: object) -> float:
    public = with_labels_of(train.modes, sf.Public(entries=train.n_entries))
    privacy = sf.Privacy(delta=1e-5, public=public, method=method, **asked)  # type: ignore[arg-type]
    return sf.CP(threads=1, privacy=privacy).fit(train).rmse(test)


def measured(
    seeds: range, unit: str, epsilons: tuple[float, ...], rows: list[str], names: list[str]
) -> Iterator[Cell]:
    for kind in KINDS:
        if names and kind.name not in names:
            continue
        splits = [invented(kind, seed).split(0.2, seed=seed) for seed in seeds]
        for local in [name == "local" for name in rows]:
            for epsilon in epsilons:
                asked = {"epsilon": epsilon, "unit": unit, "local": "m0" if local else None}
                found: dict[str, list[float]] = {"auto": [], "bias": []}
                for seed, (train, test) in zip(seeds, splits, strict=True):
                    for method, errors in found.items():
                        errors.append(_error(method, train, test, seed=seed, **asked))
                cell = Cell(kind, local, epsilon, found["auto"], found["bias"])
                yield cell


def run(quick: bool) -> list[Figure]:
    warnings.simplefilter("ignore", sf.PrivacyWarning)
    cells = measured(range(2 if quick else 10), "entry", EPSILONS[:1] if quick else EPSILONS, ROWS, [])
    return [cell.figure() for cell in cells]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.pairs", description=__doc__)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--draws", type=int, default=10)
    parser.add_argument("--first", type=int, default=0, help="seed of the first")
    parser.add_argument("--unit", default="entry")
    parser.add_argument("--epsilons", type=float, nargs="+", default=EPSILONS)
    parser.add_argument("--rows", nargs="+", default=ROWS, choices=ROWS)
    asked = parser.parse_args()
    warnings.simplefilter("ignore", sf.PrivacyWarning)
    rows: dict[tuple[str, bool], list[str]] = {}
    seeds = range(asked.first, asked.first + asked.draws)
    for cell in measured(seeds, asked.unit, asked.epsilons, asked.rows, asked.names):
        row = rows.setdefault((cell.kind.name, cell.local), [])
        row.append(f"{cell.ratio:.4f} ± {cell.error:.4f}")
    header = ("kind", "rows", *(f"epsilon {epsilon:g}" for epsilon in asked.epsilons))
    made = [(name, "local" if local else "released", *cells) for (name, local), cells in rows.items()]
    say(aligned([header, *made]))


if __name__ == "__main__":
    main()
