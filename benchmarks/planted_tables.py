"""Private biases beside the private constant on invented tables: where their settings come from.

Shapes, where values lie between the bounds, how skewed they are, how much of them biases explain, unit
and budget are all drawn at random; none of it is real data. ``python -m benchmarks.planted_tables 300``
prints the mean of the logarithm of biases over constant, and how often biases are worse by more than 1%.
"""

from __future__ import annotations

import argparse
import warnings
from typing import NamedTuple

import numpy as np

import sfumato as sf
from benchmarks.report import say
from sfumato.fit.admit import with_labels_of

SHAPES = (
    ((80, 19), 1250),
    ((140, 12), 1680),
    ((46, 30), 1375),
    ((49, 23), 1125),
    ((60, 12), 720),
    ((1000, 4), 4000),
    ((300, 1000), 50_000),
    ((12, 3, 10), 350),
    ((45, 16, 12), 7500),
    ((16, 60, 200), 37_500),
)
SPREADS = (0.06, 0.1, 0.15, 0.25, 0.33)  # over the width of the bounds
SHIFTS = (-1.5, 0.0, 1.0)  # of the mean from the middle of the bounds, in spreads
BIASES = (
    (0.0, 0.0, 0.0),
    (0.05, 0.05, 0.05),
    (0.15, 0.15, 0.15),
    (0.6, 0.1, 0.05),
    (0.1, 0.6, 0.1),
    (0.3, 0.0, 0.3),
)  # variance by mode, over that of the values
EPSILONS = (0.5, 1.0, 3.0, 10.0)
SKEWED, PURE = 0.3, 0.2  # how often noise is exponential, and budgets are without delta
DRAWS = 3


class Drawn(NamedTuple):
    unit: str
    biases: float
    constant: float


def table(rng: np.random.Generator) -> sf.SparseTensor:
    """Biases and noise at cells drawn at random, clipped to bounds of zero and one."""
    sizes, entries = SHAPES[rng.integers(len(SHAPES))]
    shares = BIASES[rng.integers(len(BIASES))][: len(sizes)]
    cells = rng.choice(int(np.prod(sizes)), entries, replace=False)
    coordinates = np.stack(np.unravel_index(cells, sizes)).astype(np.int32)
    noise = rng.exponential(size=entries) if rng.random() < SKEWED else rng.standard_normal(entries)
    values = np.sqrt(max(0.1, 1 - sum(shares))) * noise
    for levels, size, share in zip(coordinates, sizes, shares, strict=True):
        values += np.sqrt(share) * rng.standard_normal(size)[levels]
    values = (values - values.mean()) / values.std()
    values = 0.5 + rng.choice(SPREADS) * (values + rng.choice(SHIFTS))
    modes = tuple(sf.Mode(f"m{m}", size) for m, size in enumerate(sizes))
    return sf.prepare.clip(sf.SparseTensor(coordinates, values, modes), (0.0, 1.0))


def drawn(seed: int) -> Drawn:
    """Mean errors of private biases and constant on one table."""
    rng = np.random.default_rng(seed)
    train, test = table(rng).split(0.2, seed=0)
    unit, epsilon = str(rng.choice(("value", "entry", "m0"))), float(rng.choice(EPSILONS))
    delta = 0.0 if rng.random() < PURE else 1e-6
    public = with_labels_of(train.modes, sf.Public(entries=train.n_entries))
    errors = []
    for draw in range(DRAWS):
        privacy = sf.Privacy(epsilon, delta, unit=unit, public=public, seed=100 + draw)
        fits = (sf.Biases(sweeps=n, threads=1, privacy=privacy) for n in (10, 0))
        errors.append([fit.fit(train).rmse(test) for fit in fits])
    return Drawn(unit, *np.mean(errors, 0))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tables", type=int, nargs="?", default=300)
    parser.add_argument("--first", type=int, default=0, help="seed of the first")
    chosen = parser.parse_args()
    warnings.simplefilter("ignore", sf.PrivacyWarning)
    seeds = range(chosen.first, chosen.first + chosen.tables)
    results = [drawn(seed) for seed in seeds]
    for unit in ("value", "entry", "m0"):
        ratios = np.array([r.biases / r.constant for r in results if r.unit == unit])
        worse = f"{np.sum(ratios > 1.01)} of {ratios.size} worse by more than 1%"
        excess = np.maximum(ratios - 1, 0).mean()
        say(f"{unit}: mean log {np.log(ratios).mean():.4f}, {worse}, mean excess {excess:.4f}")


if __name__ == "__main__":
    main()
