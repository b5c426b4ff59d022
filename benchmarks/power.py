"""The power method: beside TensorLy's, beside bare matrix products, and the memory of a stream.

TensorLy 0.10 is the only peer with a power method for tensors; pyttb and scikit-tensor have none.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import permutations
from math import factorial, sqrt
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse
from threadpoolctl import threadpool_limits

import sfumato as sf
from benchmarks import peers
from benchmarks.memory import MIB, Peak, elsewhere
from benchmarks.report import Figure, say
from benchmarks.timing import Disturbance, interleave, timed
from sfumato.data.samples import Samples, open_samples
from sfumato.fit.power import from_stream
from sfumato.kernels.numba.threads import available_threads
from sfumato.models.components import Components
from sfumato.solvers.power.iteration import Query
from sfumato.solvers.power.moments import DocumentMoment, Moment, SampleMoment
from sfumato.solvers.power.tensors import DenseBlocks, DenseSymmetric, Sparse
from sfumato.types import Array

LEAST_SHARE = 0.6  # of the rate of matrix products, that a pass over a stream has to reach


@dataclass(frozen=True)
class Sizes:
    """How much to measure."""

    cubes: Sequence[int] = (20, 50, 100)
    four: int = 30
    block: tuple[int, ...] = (60, 80, 100)
    data_sets: int = 3
    widths: Sequence[int] = (100, 1_000, 5_000)
    restarts: Sequence[int] = (10, 30, 100)
    numbers: int = 10_000_000  # of a stream whose speed is measured
    documents: int = 50_000
    repetitions: int = 8
    samples: Sequence[int] = (10_000, 100_000, 1_000_000)
    dense: Sequence[tuple[int, int]] = ((20, 3), (50, 3), (100, 3), (200, 3), (50, 4))
    entries: Sequence[int] = (1_000_000, 10_000_000)


QUICK = Sizes(
    (10, 20),
    10,
    (10, 12, 15),
    1,
    (100, 1_000),
    (10, 30),
    1_000_000,
    5_000,
    3,
    (1_000, 10_000),
    ((20, 3), (50, 3)),
    (100_000,),
)


def run(quick: bool) -> list[Figure]:
    sizes, disturbance = QUICK if quick else Sizes(), Disturbance()
    figures = [*_beside_tensorly(sizes), *_stream_rates(sizes), *_document_rates(sizes)]
    figures += _stream_memory(sizes)
    figures += [*_dense_kernels(sizes), *_sparse_kernels(sizes)]
    share = disturbance.share()
    if share is not None:
        figures.append(Figure("power run: CPU time taken by others", share, f"{share:.0%}"))
    return figures


def _best(actions: dict[str, Callable[[], Any]], repetitions: int) -> dict[str, float]:
    """Least seconds of each action; the first round of all of them does not count."""
    measured = interleave(
        {name: partial(timed, action) for name, action in actions.items()}, repetitions + 1
    )
    return {name: min(seconds[1:]) for name, seconds in measured.items()}


# -- beside TensorLy ----------------------------------------------------------------------------

RESTARTS = 20
ROUNDS = 10  # of TensorLy, each as many power steps as the tensor has modes
# Noise in units of 1/sqrt(d), where the least weight is one. A little more, and components are lost.
NOISE = {3: 0.2, 4: 0.1}


class Planted(NamedTuple):
    """A tensor with orthogonal components and noise, and the components."""

    tensor: Array
    truth: Components


class Found(NamedTuple):
    """How far the worst component and the worst weight are off."""

    error: float
    weight: float


def _beside_tensorly(sizes: Sizes) -> list[Figure]:
    library = peers.available("tensorly", "tensorly.decomposition")
    if library is None:
        return []
    cases: list[tuple[tuple[int, ...], int]] = [((d,) * 3, k) for d in sizes.cubes for k in (5, 10)]
    cases += [((sizes.four,) * 4, 5), (sizes.block, 5)]
    figures = []
    with threadpool_limits(1, "blas"):
        for shape, k in cases:
            for noisy in (False, True):
                figures += _one_tensor(library, shape, k, noisy, sizes.data_sets)
    return figures


def _one_tensor(
    library: Any, shape: tuple[int, ...], k: int, noisy: bool, data_sets: int
) -> list[Figure]:
    """Both methods on the same tensors, in turn: the least seconds, and the worst errors."""
    order = len(shape)
    noise = NOISE[order] / sqrt(max(shape)) if noisy else 0.0
    fits = {"ours": _ours, "TensorLy": partial(_theirs, library)}
    seconds: dict[str, list[float]] = {name: [] for name in fits}
    found: dict[str, list[Found]] = {name: [] for name in fits}
    for seed in range(data_sets):
        planted = _planted(shape, k, noise, seed)
        for name, fit in fits.items():
            begin = perf_counter()
            answer = fit(planted.tensor, k)
            seconds[name].append(perf_counter() - begin)
            found[name].append(_compared(answer, planted.truth))
    best = {name: min(times) for name, times in seconds.items()}
    worst = {name: Found(*np.max(each, axis=0)) for name, each in found.items()}
    ours, theirs = worst["ours"], worst["TensorLy"]
    with_noise = f"noise {noise:.3g}" if noisy else "no noise"
    what = f"power {' x '.join(map(str, shape))}, k = {k}, {with_noise}"
    gain = best["TensorLy"] / best["ours"]
    text = f"{gain:.1f} x ({best['ours']:.3f} s, TensorLy {best['TensorLy']:.3f} s)"
    errors = f"{ours.error:.2g} (TensorLy {theirs.error:.2g}; weights {ours.weight:.2g}, "
    errors += f"{theirs.weight:.2g})"
    say(f"{what}: {text}; error {errors}")
    bar = 1.01 * theirs.error + 1e-6
    return [
        Figure(f"{what}: ours over TensorLy", gain, text, 1, True, "> 1"),
        Figure(f"{what}: worst component", ours.error, errors, bar, bar_text="TensorLy's"),
    ]


def _planted(shape: tuple[int, ...], k: int, noise: float, seed: int) -> Planted:
    generator = np.random.default_rng(seed)
    symmetric = len(set(shape)) == 1
    vectors = [
        np.linalg.qr(generator.standard_normal((size, k))).Q.T
        for size in (shape[:1] if symmetric else shape)
    ]
    truth = Components(np.linspace(2.0, 1.0, k), tuple(vectors), len(shape))
    drawn = generator.standard_normal(shape)
    if symmetric:
        turns = list(permutations(range(len(shape))))
        drawn = sum(np.transpose(drawn, turn) for turn in turns) / sqrt(factorial(len(shape)))
    return Planted(np.ascontiguousarray(truth.to_tensor() + noise * drawn), truth)


def _ours(tensor: Array, k: int) -> Components:
    """As many power steps from as many starts; TensorLy adds some for the best of them."""
    symmetric = len(set(tensor.shape)) == 1
    steps = ROUNDS * tensor.ndim if symmetric else ROUNDS
    return sf.PowerMethod(k, RESTARTS, steps, symmetric=symmetric).fit(tensor).fitted_components_


def _theirs(library: Any, tensor: Array, k: int) -> Components:
    np.random.seed(0)  # noqa: NPY002  # it draws from NumPy's global generator
    if len(set(tensor.shape)) == 1:
        weights, factor = library.symmetric_parafac_power_iteration(tensor, k, RESTARTS, ROUNDS)
        return Components(weights, (factor.T,), tensor.ndim)
    weights, factors = library.parafac_power_iteration(tensor, k, RESTARTS, ROUNDS)
    return Components(weights, tuple(factor.T for factor in factors), tensor.ndim)


def _compared(found: Components, truth: Components) -> Found:
    matching = sf.match_components(list(found.vectors), list(truth.vectors))
    weights = np.abs(found.weights[matching.order])
    return Found(float(matching.errors.max()), float(np.abs(weights - truth.weights).max()))


# -- passes over a stream -----------------------------------------------------------------------


def _stream_rates(sizes: Sizes) -> list[Figure]:
    """One power step over a memory map, beside its two matrix products on the same batches."""
    figures = []
    with tempfile.TemporaryDirectory() as folder:
        for size in sizes.widths:
            for dtype in (np.float32, np.float64):
                path = Path(folder) / "samples.npy"
                shape = (sizes.numbers // size, size)
                np.save(path, np.random.default_rng(0).standard_normal(shape, dtype))
                name = f"power step, d = {size:,}, {np.dtype(dtype).name}"
                figures += _dense_rates(name, open_samples(path), np.load(path), sizes)
    return figures


def _dense_rates(name: str, samples: Samples, whole: Array, sizes: Sizes) -> list[Figure]:
    figures = []
    for restarts in sizes.restarts:
        for threads in sorted({1, available_threads()}):
            with threadpool_limits(threads, "blas"):
                what = f"{name}, L = {restarts}, {threads} thread{'s' * (threads > 1)}"
                flops = 4 * whole.size * restarts
                figures.append(_rate(what, samples, SampleMoment(), whole, restarts, flops, sizes))
    return figures


def _rate(
    what: str,
    samples: Samples,
    moment: Moment,
    whole: Any,
    restarts: int,
    flops: int,
    sizes: Sizes,
    products: int = 1,
) -> Figure:
    """Rate of a power step as a share of that of its products; ``products`` is how many of each."""
    query = Query("directions", _directions(samples.size, restarts))
    answer = from_stream(samples.batches, moment)
    directions = query.directions.astype(whole.dtype)
    batches = list(samples.batches())
    actions = {
        "ours": partial(answer, query),
        "batches": partial(_products, batches, directions, products),
        "whole": partial(_products, [whole], directions, products),
    }
    rate = {name: flops / s / 1e9 for name, s in _best(actions, sizes.repetitions).items()}
    share = rate["ours"] / rate["batches"]
    text = f"{share:.0%} ({rate['ours']:.1f} of {rate['batches']:.1f} GFLOP/s; "
    text += f"without batches {rate['whole']:.1f})"
    say(f"{what}: {text}")
    bar = f">= {LEAST_SHARE:.0%}"
    return Figure(f"{what}: rate over that of the products", share, text, LEAST_SHARE, True, bar)


def _directions(size: int, restarts: int) -> Array:
    drawn = np.random.default_rng(1).standard_normal((size, restarts))
    return drawn / np.linalg.norm(drawn, axis=0)


def _products(batches: Sequence[Any], directions: Array, count: int) -> None:
    for batch in batches:
        for _ in range(count):
            inner = batch @ directions
            batch.T @ inner


def _document_rates(sizes: Sizes) -> list[Figure]:
    """Sparse rows, as samples and as documents, beside SciPy's products.

    The corrections of documents take as many products again.
    """
    documents = _documents(sizes.documents, 5_000, 100)
    say(f"{documents.shape[0]:,} documents of 100 words, {documents.nnz:,} counts stored")
    samples, figures = open_samples(documents), []
    for restarts in sizes.restarts:
        for moment, products in ((SampleMoment(), 1), (DocumentMoment(), 2)):
            what = f"power step, sparse {moment.unit()}s, L = {restarts}"
            flops = 4 * documents.nnz * restarts * products
            figures.append(_rate(what, samples, moment, documents, restarts, flops, sizes, products))
    return figures


def _documents(count: int, vocabulary: int, words: int) -> Any:
    """Rows of counts of words that are as frequent as words are."""
    generator = np.random.default_rng(0)
    shares = 1 / np.arange(1, vocabulary + 1)
    columns = generator.choice(vocabulary, count * words, p=shares / shares.sum())
    rows = np.repeat(np.arange(count), words)
    made = scipy.sparse.csr_array((np.ones(rows.size), (rows, columns)), shape=(count, vocabulary))
    made.sum_duplicates()
    return made


# -- memory of a stream -------------------------------------------------------------------------

WIDTH, COMPONENTS, DIRECTIONS, ITERATIONS = 1_000, 5, 20, 2
PIECE_ROWS = 1_000


def _stream_memory(sizes: Sizes) -> list[Figure]:
    """Anonymous memory at the peak; pages of the mapped file are the system's to take back."""
    if not Path("/proc/self/status").exists():
        say("memory of a stream is skipped: it needs Linux's /proc")
        return []
    peaks, bare = {}, 0.0
    with tempfile.TemporaryDirectory() as folder:
        for count in sizes.samples:
            path = Path(folder) / "samples.npy"
            _write_samples(path, count)
            peaks[count] = elsewhere(__name__, "fit_stream", path)["peak"]
            bare = bare or elsewhere(__name__, "multiply", path)["peak"]
            say(f"stream of {count:,} samples: {peaks[count] / MIB:.1f} MiB at the peak")
    state = 8 * WIDTH * (COMPONENTS + DIRECTIONS)
    beside = f"8 d (k + L) is {state / MIB:.2f}; the bare products {bare / MIB:.1f}"
    figures = [
        Figure(
            f"stream of {count:,} samples, d = {WIDTH:,}, float32: anonymous memory",
            peak,
            f"{peak / MIB:.1f} MiB ({beside})",
        )
        for count, peak in peaks.items()
    ]
    growth = peaks[max(peaks)] / max(peaks[min(peaks)], 1)
    what = f"stream: memory at {max(peaks):,} samples over that at {min(peaks):,}"
    return [*figures, Figure(what, growth, f"{growth:.2f} x", 1.25)]


def _write_samples(path: Path, count: int) -> None:
    """Samples in pieces, all pieces the same: drawing as many numbers would take longest."""
    piece = np.random.default_rng(0).standard_normal((PIECE_ROWS, WIDTH), np.float32)
    file = np.lib.format.open_memmap(path, "w+", np.float32, (count, WIDTH))
    for start in range(0, count, PIECE_ROWS):
        file[start : start + PIECE_ROWS] = piece[: count - start]
    file.flush()


def fit_stream(path: str) -> dict[str, float]:
    method = sf.PowerMethod(COMPONENTS, DIRECTIONS, ITERATIONS)
    sf.PowerMethod(2, 2, 1).fit_stream(np.eye(5))
    with Peak() as peak:
        method.fit_stream(path)
    return {"peak": peak.bytes}


def multiply(path: str) -> dict[str, float]:
    """Only the products of the first batch: BLAS has buffers of its own."""
    batch = next(open_samples(path).batches())
    directions = _directions(WIDTH, DIRECTIONS).astype(np.float32)
    _products([np.eye(5)], np.eye(5), 1)
    with Peak() as peak:
        _products([batch] * 10, directions, 1)
    return {"peak": peak.bytes}


# -- tensors ------------------------------------------------------------------------------------


def _dense_kernels(sizes: Sizes) -> list[Figure]:
    """T(I, u, ..., u) for all directions beside one matrix product of as many operations."""
    figures = []
    for size, order in sizes.dense:
        tensor = np.random.default_rng(0).standard_normal((size,) * order)
        for restarts in sizes.restarts[:2]:
            one = _directions(size, restarts)
            rows, flops = tensor.reshape(-1, size), 2 * tensor.size * restarts
            actions = {
                "symmetric": partial(DenseSymmetric(tensor).power, one),
                "blocks": partial(DenseBlocks(tensor).power, np.vstack([one] * order)),
                "product": partial(np.matmul, rows, one),
            }
            repetitions = max(sizes.repetitions, min(200, 10**8 // flops))
            with threadpool_limits(1, "blas"):
                seconds = _best(actions, repetitions)
            what = f"T(I, u, ..., u), {size}^{order}, L = {restarts}"
            for kind, modes in (("symmetric", 1), ("blocks", order)):
                share = modes * seconds["product"] / seconds[kind]
                rate, product = (modes * flops / seconds[kind] / 1e9, flops / seconds["product"] / 1e9)
                text = f"{share:.0%} ({rate:.1f} of {product:.1f} GFLOP/s)"
                say(f"{what}, {kind}: {text}")
                figures.append(Figure(f"{what}, {kind}: over one product for each mode", share, text))
    return figures


def _sparse_kernels(sizes: Sizes) -> list[Figure]:
    """Entries per second, beside gathering, multiplying and adding up with NumPy and SciPy."""
    size, restarts, figures = 1_000, 10, []
    directions = _directions(size, restarts)
    for entries in sizes.entries:
        coordinates, values = _random_entries(entries, size)
        actions: dict[str, Callable[[], Any]] = {
            f"{n}": partial(
                Sparse(coordinates, values, (size,) * 3, symmetric=True, threads=n).power, directions
            )
            for n in (1, 2)
        }
        actions["scipy"] = partial(_with_scipy, coordinates, values, directions)
        rate = {name: entries / s / 1e6 for name, s in _best(actions, 3).items()}
        what = f"sparse T(I, u, u), {entries / 1e6:g} M entries, d = {size:,}, L = {restarts}"
        for n in (1, 2):
            name, text = f"{what}, {n} thread{'s' * (n > 1)}", f"{rate[str(n)]:.1f} M entries/s"
            figures.append(Figure(name, rate[str(n)], text))
        gain = rate["1"] / rate["scipy"]
        text = f"{gain:.1f} x (NumPy and SciPy {rate['scipy']:.1f} M entries/s)"
        figures.append(Figure(f"{what}: 1 thread over NumPy and SciPy", gain, text, 1, True, "> 1"))
    return figures


def _random_entries(count: int, size: int) -> tuple[Any, Array]:
    """Coordinates in order, as those of a sparse tensor are."""
    generator = np.random.default_rng(0)
    cells = np.sort(generator.integers(0, size**3, count))
    coordinates = np.stack(np.unravel_index(cells, (size,) * 3)).astype(np.int32)
    return coordinates, generator.standard_normal(count)


def _with_scipy(coordinates: Any, values: Array, directions: Array, piece: int = 1 << 17) -> Array:
    total = np.zeros_like(directions)
    for start in range(0, len(values), piece):
        first, second, third = coordinates[:, start : start + piece]
        part = values[start : start + piece]
        onto: Any = scipy.sparse.csc_array(
            (part, first, np.arange(len(part) + 1)), shape=(len(directions), len(part))
        )
        total += onto @ (directions[second] * directions[third])
    return total


JOBS: dict[str, Callable[[str], dict[str, float]]] = {
    job.__name__: job for job in (fit_stream, multiply)
}

if __name__ == "__main__":
    print(json.dumps(JOBS[sys.argv[1]](sys.argv[2])))
