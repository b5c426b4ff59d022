"""Data larger than memory: shards made from a stream, and fits to them beside fits in memory.

Entries are invented batch by batch, so that they need no memory either. Two sweeps of ALS and two rounds
of a private fit, rank 16, three modes; rates are entries a second and sweep or round. The fit in
memory is one of as many entries as it holds with ease. Peaks are what the process held beyond what it
had after imports and compiling (``RssAnon``: pages of mapped files are the system's to take back).

``python -m benchmarks.shards --entries 1000000000 --folder /big`` for as many as a disk holds: about 45
bytes an entry, twice 16 more while shards are made.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator
from pathlib import Path
from threading import Event, Thread
from time import perf_counter
from typing import Any

import numpy as np

import sfumato as sf
from benchmarks.report import Figure, say

SIZES = (1_000_000, 100_000, 365)
RANK, SWEEPS = 16, 2
BATCH = 5_000_000
IN_MEMORY = 20_000_000
BOUNDS = (-4.0, 4.0)
MODES = tuple(sf.Mode(name, size) for name, size in zip(("user", "item", "day"), SIZES, strict=True))
Batch = tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]


def batches(entries: int, seed: int = 0) -> Iterator[Batch]:
    """About so many entries at random places, each once, with values of biases and noise, in batches.

    A batch has users of its own, all over their range: so no cell comes twice, and shards are mixed.
    """
    biases = [0.5 * np.random.default_rng([seed, m]).normal(size=size) for m, size in enumerate(SIZES)]
    number = -(-entries // BATCH)
    for batch in range(number):
        rng, n = np.random.default_rng([seed, 7, batch]), min(BATCH, entries - batch * BATCH)
        users = batch + number * rng.integers(0, SIZES[0] // number, n)
        places = np.unique(users * (SIZES[1] * SIZES[2]) + rng.integers(0, SIZES[1] * SIZES[2], n))
        cells = np.array(np.unravel_index(rng.permutation(places), SIZES), np.int32)
        values = sum(bias[at] for bias, at in zip(biases, cells, strict=True))
        yield cells, np.clip(values + 0.5 * rng.normal(size=cells.shape[1]), *BOUNDS)


class Peak:
    """The most anonymous memory of this process while it is looked at."""

    def __init__(self) -> None:
        self.least = self.most = _anonymous()
        self._done = Event()
        self._thread = Thread(target=self._look, daemon=True)

    def _look(self) -> None:
        while not self._done.wait(0.02):
            self.most = max(self.most, _anonymous())

    def __enter__(self) -> Peak:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    @property
    def mebibytes(self) -> float:
        return (self.most - self.least) / 2**20


def _anonymous() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon"):
            return 1024 * int(line.split()[1])
    return 0


def _openly() -> sf.CP:
    return sf.CP(RANK, solver=sf.ALS(sweeps=SWEEPS, ridge=1.0, presence=False))


def _privately(entries: int) -> sf.CP:
    labels = {mode.name: range(mode.size) for mode in MODES}
    public = sf.Public(entries=entries, labels=labels)
    method = sf.PrivateAlternating(sweeps=SWEEPS)
    return sf.CP(RANK, privacy=sf.Privacy(5, 1e-6, unit="entry", method=method, public=public))


def _timed(estimator: sf.CP, data: Any) -> tuple[float, float]:
    """Seconds of a fit, and the most memory that it took."""
    with Peak() as peak:
        begin = perf_counter()
        estimator.fit(data)
        seconds = perf_counter() - begin
    return seconds, peak.mebibytes


def measured(entries: int, folder: Path, memory: int, in_memory: int) -> list[Figure]:
    few = next(batches(10_000))
    tiny = sf.SparseTensor(*few, MODES, BOUNDS)
    for estimator in (_openly(), _privately(10_000)):  # compiles
        estimator.fit(tiny)
    with Peak() as peak:
        begin = perf_counter()
        shards = sf.make_shards(
            batches(entries), folder / "shards", modes=list(MODES), bounds=BOUNDS, memory=memory
        )
        seconds = perf_counter() - begin
    entries = shards.n_entries
    figures = [_rate("making shards", entries, seconds, peak.mebibytes)]
    say(f"{len(shards)} shards of {entries:,} entries")
    parts = [np.concatenate(each, axis=-1) for each in zip(*batches(in_memory), strict=True)]
    tensor = sf.SparseTensor(*parts, MODES, BOUNDS)
    kept = tensor.n_entries
    del parts
    for name, make in (("ALS", lambda _: _openly()), ("private rounds", _privately)):
        here = SWEEPS * kept / _timed(make(kept), tensor)[0]
        first, _ = _timed(make(entries), shards)  # writes the layouts
        seconds, peak_of_fit = _timed(make(entries), shards)
        figures.append(_rate(f"{name} of shards, with making layouts", SWEEPS * entries, first, 0.0))
        figures.append(_rate(f"{name} of shards", SWEEPS * entries, seconds, peak_of_fit))
        figures.append(_rate(f"{name} in memory, {kept:,} entries", here, 1.0, 0.0))
        share = SWEEPS * entries / seconds / here
        figures.append(Figure(f"{name}: shards over memory, rate", share, f"{share:.2f}", 0.5, True))
    for figure in figures:
        say(f"{figure.what}: {figure.text}")
    return figures


def _rate(what: str, entries: float, seconds: float, peak: float) -> Figure:
    rate = entries / seconds / 1e6
    memory = f", {peak:,.0f} MiB" if peak else ""
    return Figure(what, rate, f"{rate:.1f} million entries a second{memory}")


def run(quick: bool) -> list[Figure]:
    with tempfile.TemporaryDirectory() as folder:
        entries = 1_000_000 if quick else 100_000_000
        memory = 64 << 20 if quick else 1 << 30
        return measured(entries, Path(folder), memory, min(entries, IN_MEMORY))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.shards", description=__doc__)
    parser.add_argument("--entries", type=int, default=100_000_000)
    parser.add_argument("--folder", type=Path, help="where shards go; by default a temporary folder")
    parser.add_argument("--memory", type=int, default=1 << 30, metavar="BYTES")
    parser.add_argument("--in-memory", type=int, default=IN_MEMORY, help="entries of the fit beside it")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=given.folder) as folder:
        measured(given.entries, Path(folder), given.memory, given.in_memory)


if __name__ == "__main__":
    main()
