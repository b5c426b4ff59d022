"""Local privacy: MovieLens 100K behind channels, sites beside others' noisy values, and speed.

``python -m benchmarks local`` (a quarter of an hour; ``--quick`` for one draw at two budgets). Noise is
seeded, settings are the defaults.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from statistics import mean, median

import numpy as np

import sfumato as sf
from benchmarks.report import Figure, say

BARS = {
    "auto": {10.0: 0.940, 3.0: 0.960, 1.0: 1.035, 0.5: 1.078},
    "geometric": {10.0: 0.950, 3.0: 0.990, 1.0: 1.060, 0.5: 1.105},
}
GAINS = {10.0: -0.020, 3.0: -0.005, 1.0: 0.003}  # of a site beside others, at most
SITES = 3


def run(quick: bool) -> list[Figure]:
    figures = [*_channels(quick), *_sites(quick)]
    return [*figures, _speed(200_000 if quick else 5_000_000)]


def _ua() -> tuple[sf.SparseTensor, sf.SparseTensor]:
    return sf.datasets.movielens_split("100k", "ua")


def _channels(quick: bool) -> Iterator[Figure]:
    train, test = _ua()
    draws = range(1 if quick else 3)
    for epsilon in (3.0, 1.0) if quick else BARS["auto"]:
        for channel, bars in BARS.items():
            noisy = [sf.privatise(train, epsilon, channel=channel, seed=draw) for draw in draws]
            errors = [sf.CP().fit(each).rmse(test) for each in noisy]
            said = f"ML-100K ua, one value, epsilon {epsilon:g}, {channel}"
            yield Figure(said, mean(errors), f"{mean(errors):.4f}", bars[epsilon])
            if channel == "geometric":
                clipped = [each.tensor.with_values(np.clip(each.tensor.values, 1, 5)) for each in noisy]
                naive = mean(sf.CP().fit(each).rmse(test) for each in clipped)
                constant = mean(_off(each.values.mean(), test) for each in clipped)
                say(f"  epsilon {epsilon:g}: taken for clean {naive:.3f}, their mean {constant:.3f}")


def _off(number: float, test: sf.SparseTensor) -> float:
    return float(np.sqrt(np.mean((test.values - number) ** 2)))


def _sites(quick: bool) -> Iterator[Figure]:
    """Users dealt to three sites at random; errors at held-out entries of the first one's users."""
    gains: dict[float, list[float]] = {epsilon: [] for epsilon in GAINS}
    train, test = _ua()
    for split in range(1 if quick else 3):
        place = np.random.default_rng(split).permutation(train.shape[0]) % SITES
        own, *others = (train.take(place[train.coordinates[0]] == site) for site in range(SITES))
        held = test.take(place[test.coordinates[0]] == 0)
        alone, pooled = sf.CP().fit(own).rmse(held), sf.CP().fit(train).rmse(held)
        say(f"  split {split}: alone {alone:.4f}, all raw data pooled {pooled - alone:+.4f}")
        for epsilon, found in gains.items():
            noisy = [sf.privatise(each, epsilon, seed=split) for each in others]
            found.append(sf.CP().fit(sf.together(own, *noisy)).rmse(held) - alone)
    for epsilon, found in gains.items():
        said = f"a site of three beside others' noisy values, epsilon {epsilon:g}, less alone"
        yield Figure(said, mean(found), f"{mean(found):+.4f}", GAINS[epsilon])


def _speed(entries: int) -> Figure:
    """Values that are in memory; of a file, reading and writing come on top."""
    rng = np.random.default_rng(0)
    cells = np.stack([np.arange(entries) // 1000, np.arange(entries) % 1000])
    modes = (sf.Mode("user", entries // 1000), sf.Mode("item", 1000))
    tensor = sf.SparseTensor(cells, rng.integers(1, 6, entries).astype(float), modes, (1, 5))
    sf.privatise(tensor, 2.0)
    times = []
    for _ in range(5):
        begin = time.perf_counter()
        sf.privatise(tensor, 2.0)
        times.append(time.perf_counter() - begin)
    rate = entries / median(times) / 1e6
    return Figure("privatise", rate, f"{rate:.1f} million values/s", 5.0, higher_is_better=True)
