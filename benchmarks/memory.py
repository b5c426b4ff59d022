"""Peak memory of a fit, each in a process of its own.

The peak is the high-water mark that the kernel keeps for the process (VmHWM). It is not
``ru_maxrss``, which on Linux a child takes over from the process that started it. It is reset
after importing and after compiling on tiny data, and what is resident then is taken off. The
tensor is made from arrays in files, so that drawing it does not count; the arrays as they are read
and the tensor's copy of them do, since a user's process holds both for a moment.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from threading import Event, Thread
from time import perf_counter
from typing import Any

import numpy as np

from benchmarks.report import Figure, say

SHAPE = (100_000, 20_000, 365)
RANK = 16
NAMES = ("user", "item", "day")
GROUP_ROWS = 1_000_000
MIB, GIB = 2**20, 2**30
SOLVERS = ("als", "plain als", "sgd", "minibatch")
PRIVATE = {"private, entry": "entry", "private, user": "user"}  # with their units
BOUNDS = (-4.0, 4.0)


def run(quick: bool) -> list[Figure]:
    if not Path("/proc/self/clear_refs").exists():
        say("memory is skipped: it needs Linux's /proc")
        return []
    with tempfile.TemporaryDirectory() as folder:
        return [*_arrays(folder, 1_000_000 if quick else 10_000_000), *_parquet(folder, quick)]


def _arrays(folder: str, entries: int) -> list[Figure]:
    elsewhere(__name__, "draw", folder, entries)
    figures = []
    for solver in (*SOLVERS, *PRIVATE):
        number = 8 if solver in PRIVATE else 4  # a private fit computes in float64
        coo, parameters = entries * (4 * len(SHAPE) + number), sum(SHAPE) * (RANK + 1) * number
        seen = elsewhere(__name__, "fit", folder, solver)
        ratio = seen["peak"] / (coo + parameters)
        say(f"memory {solver}: entries {coo / MIB:.0f} MiB, parameters {parameters / MIB:.0f} MiB")
        text = (
            f"{ratio:.2f} x ({seen['peak'] / MIB:.0f} MiB; the tensor alone {seen['tensor'] / MIB:.0f})"
        )
        bar = 4.0 if solver in PRIVATE else 3.0 if solver != "minibatch" else None
        figures.append(Figure(f"memory {solver}: peak / (entries + parameters)", ratio, text, bar))
    return figures


def _parquet(folder: str, quick: bool) -> list[Figure]:
    rows = 5_000_000 if quick else 100_000_000
    elsewhere(__name__, "write", folder, rows)
    seen = elsewhere(__name__, "read", folder)
    what = f"Parquet, {rows / 1e6:.0f} M entries, read and fitted"
    peak = seen["whole"] / GIB
    seconds = f"read {seen['read_seconds']:.0f} s, 2 passes with layout {seen['fit_seconds']:.0f} s"
    after_read = f"after reading {seen['read'] / GIB:.2f}"
    return [Figure(what, peak, f"{peak:.2f} GiB ({after_read}; {seconds})", 8.0, bar_text="<= 8 GiB")]


def elsewhere(module: str, job: str, *arguments: object) -> Any:
    """What a job of a module reports, run in a new process."""
    command = [sys.executable, "-m", module, job, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stderr}")
    return json.loads(done.stdout)


# -- jobs -------------------------------------------------------------------------------------


def status(field: str) -> int:
    """A field of this process's status, in bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"no {field} in /proc/self/status")


class Peak:
    """The most anonymous memory while it is open, beyond what there was before; looked at every ms."""

    def __enter__(self) -> Peak:
        self._before = status("RssAnon")
        self.bytes, self._closed = 0, Event()
        self._thread = Thread(target=self._watch)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closed.set()
        self._thread.join()

    def _watch(self) -> None:
        closed = False
        while not closed:
            closed = self._closed.wait(0.001)
            self.bytes = max(self.bytes, status("RssAnon") - self._before)


def _reset_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")


def _estimator(solver: str) -> Any:
    import sfumato as sf

    if solver in PRIVATE:
        return _private_estimator(PRIVATE[solver])
    solvers: dict[str, Any] = {
        "als": sf.ALS(sweeps=2),
        "plain als": sf.ALS(sweeps=2, ridge=1.0),
        "sgd": sf.SGD(passes=2),
        "minibatch": sf.MinibatchSGD(passes=2),
    }
    return sf.CP(RANK, solver=solvers[solver], dtype=np.float32, threads=2)


def _private_estimator(unit: str) -> Any:
    """An alternating fit of two sweeps with exact noise, whose numbers pass through lists."""
    import sfumato as sf

    privacy = sf.Privacy(
        10.0,
        1e-5,
        unit=unit,
        local="user",
        method=sf.PrivateAlternating(sweeps=2),
        public=sf.Public(labels=True, units=SHAPE[0]),
    )
    return sf.CP(RANK, threads=2, privacy=privacy)


def _warmed(solver: str) -> int:
    """Compile on tiny data; bytes resident afterwards."""
    import sfumato as sf

    made = sf.synthetic.cp((20, 19, 18), 2, entries=400, dtype=np.float32, modes=NAMES).tensor
    _estimator(solver).fit(sf.prepare.clip(made, BOUNDS) if solver in PRIVATE else made)
    _reset_peak()
    return status("VmRSS")


def draw(folder: str, entries: str) -> dict[str, float]:
    """Write the coordinates and values of a random tensor, sorted."""
    import sfumato as sf

    tensor = sf.synthetic.cp(SHAPE, RANK, entries=int(entries), dtype=np.float32).tensor
    np.save(Path(folder) / "coordinates.npy", tensor.coordinates)
    np.save(Path(folder) / "values.npy", tensor.values)
    return {}


def fit(folder: str, solver: str) -> dict[str, float]:
    """Bytes at the peak above those before there was a tensor."""
    import sfumato as sf

    before = _warmed(solver)
    modes = tuple(sf.Mode(name, size) for name, size in zip(NAMES, SHAPE, strict=True))
    coordinates, values = (np.load(Path(folder) / f"{name}.npy") for name in ("coordinates", "values"))
    if solver in PRIVATE:
        tensor = sf.SparseTensor(coordinates, np.clip(values, *BOUNDS), modes, BOUNDS)
    else:
        tensor = sf.SparseTensor(coordinates, values, modes)
    del coordinates, values
    held = status("VmRSS") - before
    _estimator(solver).fit(tensor)
    return {"peak": status("VmHWM") - before, "tensor": held}


def write(folder: str, rows: str) -> dict[str, float]:
    """A Parquet file of distinct random cells in random order.

    Cell k lies in the k-th of as many equal pieces of the grid as there are rows; a row group takes
    every so-manieth piece, shuffled.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    total, generator = int(rows), np.random.default_rng(0)
    groups, piece = -(-total // GROUP_ROWS), int(np.prod(SHAPE, dtype=np.int64)) // total
    types = [(name, pa.int32()) for name in NAMES]
    schema = pa.schema([*types, ("value", pa.float32())])
    with pq.ParquetWriter(Path(folder) / "entries.parquet", schema) as file:
        for group in range(groups):
            k = generator.permutation(np.arange(group, total, groups, dtype=np.int64))
            cells = np.unravel_index(k * piece + generator.integers(0, piece, k.size), SHAPE)
            columns = [levels.astype(np.int32) for levels in cells]
            values = generator.standard_normal(k.size, dtype=np.float32)
            file.write_table(pa.table([*columns, values], schema=schema), row_group_size=GROUP_ROWS)
    return {}


def read(folder: str) -> dict[str, float]:
    """Bytes of the whole process at its peak, and seconds."""
    import sfumato as sf

    _warmed("sgd")
    begin = perf_counter()
    tensor = sf.read(Path(folder) / "entries.parquet", list(NAMES), "value")
    read_done, after_read = perf_counter(), status("VmHWM")
    _estimator("sgd").fit(tensor)
    return {
        "whole": status("VmHWM"),
        "read": after_read,
        "read_seconds": read_done - begin,
        "fit_seconds": perf_counter() - read_done,
    }


JOBS: dict[str, Callable[..., dict[str, float]]] = {
    job.__name__: job for job in (draw, fit, write, read)
}

if __name__ == "__main__":
    print(json.dumps(JOBS[sys.argv[1]](*sys.argv[2:])))
