"""What it costs that owners do not trust each other: MovieLens 1M over ten sites beside the pooled fit.

Users are split among sites. Pooled, noise is added once; else each site adds all of it, or a share of it
under secure sums. Epsilon is the same in all three columns. Noise is seeded.

``python -m benchmarks.owners`` (a few minutes; ``--quick`` for one split).
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from statistics import mean

import sfumato as sf
from benchmarks.report import Figure, say, table
from sfumato.fit.admit import with_labels_of

SITES = 10
POOLED, EACH, SHARES = (
    sf.Trust(),
    sf.Trust("each site", SITES),
    sf.Trust("secure shares", SITES, tolerate=1),
)


@dataclass(frozen=True)
class Row:
    """Who is protected, at which budget, and how far from the pooled fit each column may be."""

    unit: str
    epsilon: float
    delta: float
    bars: tuple[float | None, float | None]


ROWS = (
    Row("entry", 10.0, 1e-6, (0.02, 0.005)),
    Row("entry", 3.0, 1e-6, (None, 0.005)),
    Row("entry", 1.0, 1e-6, (0.03, 0.005)),
    Row("user", 10.0, 1e-5, (0.04, 0.005)),
    Row("user", 3.0, 1e-5, (None, 0.005)),
    Row("user", 1.0, 1e-5, (None, 0.005)),
)


def run(quick: bool) -> list[Figure]:
    try:
        ratings = sf.datasets.movielens("1m")
    except sf.SfumatoError as error:
        say(f"MovieLens 1M is skipped: {error}")
        return []
    pairs = [ratings.split(0.2, seed=seed) for seed in range(1 if quick else 3)]
    constant = mean(sf.Biases(sweeps=0).fit(train).rmse(test) for train, test in pairs)
    say(f"MovieLens 1M over {SITES} sites; constant without privacy {constant:.4f}")
    figures = []
    for row in ROWS:
        pooled, *apart = (
            mean(_error(row, trust, *pair, seed) for seed, pair in enumerate(pairs))
            for trust in (POOLED, EACH, SHARES)
        )
        say(f"{row.unit}, epsilon {row.epsilon:g}: pooled {pooled:.4f}, " + _beside(pooled, apart))
        for trust, error, bar in zip((EACH, SHARES), apart, row.bars, strict=True):
            name = f"ML-1M over {SITES} sites, {row.unit}, epsilon {row.epsilon:g}, {trust.kind}"
            figures.append(Figure(f"{name}: over pooled", error - pooled, f"{error - pooled:+.4f}", bar))
    return figures


def _beside(pooled: float, apart: list[float]) -> str:
    named = zip((EACH.kind, SHARES.kind), apart, strict=True)
    return ", ".join(f"{kind} {error:.4f} ({error - pooled:+.4f})" for kind, error in named)


def _error(row: Row, trust: sf.Trust, train: sf.SparseTensor, test: sf.SparseTensor, seed: int) -> float:
    privacy = sf.Privacy(
        row.epsilon,
        row.delta,
        unit=row.unit,
        local="user",
        public=with_labels_of(train.modes, sf.Public(entries=train.n_entries, step=1.0)),
        seed=seed + 1000,
        trust=trust,
    )
    return sf.CP(privacy=privacy).fit(train).rmse(test)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    say(table(run(parser.parse_args().quick)))


if __name__ == "__main__":
    main()
