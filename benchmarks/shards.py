"""Data larger than memory: shards made from a stream, and fits to them beside fits in memory.

Entries are invented batch by batch, so that they need no memory either. Two sweeps of ALS and two rounds
of a private fit, rank 16, three modes; rates are entries a second and sweep or round. The fit in
memory is one of as many entries as it holds with ease. Before each fit of shards the system is told to
let go of their pages, so that it begins at the disk, whose own rate is measured beside it. Peaks are
what the process held beyond what it had before (``RssAnon``: pages of mapped files are the system's
to take back).

``python -m benchmarks.shards --entries 1000000000 --folder /big --times 0`` for as many as a disk holds:
52 bytes an entry (20 for itself, twice 16 for the orders by the second and third mode, which both fits
use), and 40 while shards are made.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Event, Thread
from time import perf_counter, process_time
from typing import Any, NamedTuple

import numpy as np

import sfumato as sf
from benchmarks.report import Figure, say, table
from sfumato.data.io.shard_files import entry_bytes

SIZES = (1_000_000, 100_000, 365)
RANK, SWEEPS = 16, 2
BATCH = 2_000_000
_PLACES = 1 << 45  # a power of two below the number of cells
IN_MEMORY = 20_000_000
BOUNDS = (-4.0, 4.0)
MODES = tuple(sf.Mode(name, size) for name, size in zip(("user", "item", "day"), SIZES, strict=True))
Batch = tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]


def batches(entries: int, seed: int = 0) -> Iterator[Batch]:
    """So many entries at places all over, each once, with values of biases and noise, in batches.

    Places are numbers of up to 45 bits, which are mixed by what can be undone: none comes twice, and
    nothing has to be sorted or remembered.
    """
    biases = [0.5 * np.random.default_rng([seed, m]).normal(size=size) for m, size in enumerate(SIZES)]
    for first in range(0, entries, BATCH):
        numbers = np.arange(first, min(first + BATCH, entries), dtype=np.uint64)
        cells = np.array(np.unravel_index(_mixed(numbers + np.uint64(seed << 40)), SIZES), np.int32)
        values = np.random.default_rng([seed, 7, first]).standard_normal(numbers.size, np.float32) * 0.5
        for bias, at in zip(biases, cells, strict=True):
            values = values + bias[at]
        yield cells, np.clip(values, *BOUNDS)


def _mixed(numbers: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Numbers below 2^45 in another order: multiplied by odd ones, and folded on themselves."""
    for factor in (0x9E3779B97F4B, 0xD1B54A32D193):
        numbers = (numbers * np.uint64(factor)) & np.uint64(_PLACES - 1)
        numbers ^= numbers >> np.uint64(23)
    return numbers.astype(np.int64)


class Peak:
    """The most anonymous memory of this process while it is looked at."""

    def __init__(self) -> None:
        gc.collect()
        ctypes.CDLL(None).malloc_trim(0)  # or memory that is free would not count when it is used again
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


class Timed(NamedTuple):
    """Seconds on the clock and of processors, and the most memory that was taken."""

    seconds: float
    processor: float
    mebibytes: float


def _timed(work: Callable[[], Any]) -> Timed:
    with Peak() as peak:
        begin, before = perf_counter(), process_time()
        work()
        seconds, processor = perf_counter() - begin, process_time() - before
    return Timed(seconds, processor, peak.mebibytes)


# -- the disk -------------------------------------------------------------------------------------


def _files(folder: Path) -> list[Path]:
    return [path for path in sorted(folder.rglob("*.npy")) if path.is_file()]


def forget_pages(folder: Path) -> None:
    """Have the system let go of what it holds of a folder's files, so that the disk is read again."""
    for path in _files(folder):
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def disk_rate(folder: Path, most: int = 4 << 30) -> float:
    """Bytes a second when files are read one after the other, none of them held by the system."""
    forget_pages(folder)
    room, done, begin = bytearray(8 << 20), 0, perf_counter()
    for path in _files(folder):
        with path.open("rb", buffering=0) as file:
            while done < most and (count := file.readinto(room)):
                done += count
    return done / (perf_counter() - begin)


def _swept_bytes(shards: sf.Shards) -> int:
    """What a sweep reads of an entry: its value and its other levels, once for each mode."""
    return shards.order * (4 * (shards.order - 1) + shards.dtype.itemsize)


def _layout_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in _files(folder) if path.parent.name.startswith("by-"))


# -- measuring ------------------------------------------------------------------------------------


def measured(entries: int, folder: Path, memory: int, in_memory: int, times: int) -> list[Figure]:
    tiny = sf.SparseTensor(*next(batches(10_000)), MODES, BOUNDS)
    for estimator in (_openly(), _privately(10_000)):  # compiles
        estimator.fit(tiny)
    shards, figures = _made(entries, folder / "shards", memory)
    tensor = _in_memory(in_memory) if times else tiny
    for name, make in (("ALS", lambda _: _openly()), ("private rounds", _privately)):
        figures += _fits(name, make, shards, tensor, times)
    return figures


def _in_memory(entries: int) -> sf.SparseTensor:
    parts = [np.concatenate(each, axis=-1) for each in zip(*batches(entries), strict=True)]
    return sf.SparseTensor(*parts, MODES, BOUNDS)


def _made(entries: int, target: Path, memory: int) -> tuple[sf.Shards, list[Figure]]:
    invented = _timed(lambda: sum(1 for _ in batches(min(entries, 10 * BATCH))))
    settings: dict[str, Any] = {"modes": list(MODES), "bounds": BOUNDS, "memory": memory}
    took = _timed(lambda: sf.make_shards(batches(entries), target, **settings))
    shards = sf.Shards(target)
    say(f"{len(shards)} shards of {shards.n_entries:,} entries, memory of {memory / 2**20:,.0f} MiB")
    return shards, [
        _rate("inventing entries", min(entries, 10 * BATCH), invented),
        _rate("inventing entries and making shards", entries, took),
    ]


def _fits(
    name: str, make: Callable[[int], sf.CP], shards: sf.Shards, tensor: sf.SparseTensor, times: int
) -> list[Figure]:
    """Fits of shards beside those in memory, by turns; the best of each counts."""
    entries, kept = shards.n_entries, tensor.n_entries
    first = _timed(lambda: make(entries).fit(shards))  # writes the layouts
    figures = [_rate(f"{name} of shards, with making layouts", SWEEPS * entries, first)]
    size = _layout_bytes(shards.folder) / entries
    itself = entry_bytes(shards.order, shards.dtype)
    say(f"{name}: layouts have {size:.1f} bytes an entry, beside {itself} of its own")
    here, there = list[Timed](), list[Timed]()
    for _ in range(times):
        here.append(_timed(lambda: make(kept).fit(tensor)))
        forget_pages(shards.folder)
        there.append(_timed(lambda: make(entries).fit(shards)))
    disk = disk_rate(shards.folder)
    if not times:
        return figures
    best, other = min(here), min(there)
    figures.append(_rate(f"{name} of shards, from the disk", SWEEPS * entries, other))
    figures.append(_rate(f"{name} in memory, {kept:,} entries", SWEEPS * kept, best))
    in_memory, of_disk = SWEEPS * kept / best.seconds, disk / _swept_bytes(shards)
    rate = SWEEPS * entries / other.seconds
    share, bar = rate / in_memory, min(0.5, 0.8 * of_disk / in_memory)
    work = (best.processor / kept) / (other.processor / entries)
    return [
        *figures,
        Figure(f"{name}: shards over memory, rate", share, f"{share:.2f}", bar, True),
        Figure(f"{name}: memory over shards, processor time", work, f"{work:.2f}"),
        Figure(f"{name}: the disk alone", disk / 1e9, f"{disk / 1e9:.2f} GB a second"),
        Figure(f"{name}: shards over the disk, rate", rate / of_disk, f"{rate / of_disk:.3f}"),
    ]


def _rate(what: str, entries: float, took: Timed) -> Figure:
    rate = entries / took.seconds / 1e6
    more = f"{took.processor / took.seconds:.1f} processors, {took.mebibytes:,.0f} MiB"
    figure = Figure(what, rate, f"{rate:.2f} million entries a second, {more}")
    say(f"{what}: {figure.text}")
    return figure


def run(quick: bool) -> list[Figure]:
    with tempfile.TemporaryDirectory() as folder:
        entries = 1_000_000 if quick else 50_000_000
        memory = 64 << 20 if quick else 1 << 30
        return measured(entries, Path(folder), memory, min(entries, IN_MEMORY), 1 if quick else 2)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.shards", description=__doc__)
    parser.add_argument("--entries", type=int, default=50_000_000)
    parser.add_argument("--folder", type=Path, help="where shards go; by default a temporary folder")
    parser.add_argument("--memory", type=int, default=1 << 30, metavar="BYTES")
    parser.add_argument("--in-memory", type=int, default=IN_MEMORY, help="entries of the fit beside it")
    parser.add_argument(
        "--times",
        type=int,
        default=2,
        help="fits after the first, by turns with fits in memory",
    )
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=given.folder) as folder:
        figures = measured(given.entries, Path(folder), given.memory, given.in_memory, given.times)
    print(table(figures))


if __name__ == "__main__":
    main()
