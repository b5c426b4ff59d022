"""Speed: SGD passes, ALS sweeps, and other libraries on data that they can take."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

import sfumato as sf
from benchmarks import peers
from benchmarks.machine import compute_actions, compute_scaling, traffic_action
from benchmarks.peers import Peer
from benchmarks.report import Figure, say
from benchmarks.timing import Action, Disturbance, Rounds, best_and_median, interleave, warm_up
from sfumato import CP, SparseTensor

SHAPE = (100_000, 20_000, 365)
MATRIX = (100_000, 20_000)
FOUR = (2_000, 500, 50, 24)
RANK = 16


@dataclass(frozen=True)
class Sizes:
    """How much to measure."""

    entries: int = 10_000_000
    four: int = 2_000_000
    subset: int = 1_000_000
    dense: int = 200
    sparse: int = 1_000_000
    passes: int = 10
    sweeps: int = 6
    repetitions: int = 3


QUICK = Sizes(1_000_000, 500_000, 100_000, 60, 100_000, 8, 5, 2)


def run(quick: bool) -> list[Figure]:
    sizes = QUICK if quick else Sizes()
    disturbance = Disturbance()
    tensors = _tensors(sizes)
    figures = [*_gradient(tensors, sizes), *_least_squares(tensors, sizes)]
    del tensors
    matrix = _planted(MATRIX, sizes.entries)
    figures += _gradient_peers(matrix, sizes)
    figures += _least_squares_peers(matrix, sizes)
    figures += _tensor_peers(sizes)
    share = disturbance.share()
    if share is not None:
        figures.append(Figure("speed run: CPU time taken by others", share, f"{share:.0%}"))
    return figures


def _planted(
    shape: tuple[int, ...], entries: int, zipf: tuple[float, ...] | None = None
) -> SparseTensor:
    made = sf.synthetic.cp(shape, RANK, entries=entries, zipf=zipf, dtype=np.float32)
    return made.tensor


def _tensors(sizes: Sizes) -> dict[str, SparseTensor]:
    say(f"speed: {sizes.entries:,} entries, {' x '.join(f'{n:,}' for n in SHAPE)}, rank {RANK}")
    return {
        "uniform": _planted(SHAPE, sizes.entries),
        "Zipf 1.1": _planted(SHAPE, sizes.entries, (1.1, 1.1, 0.0)),
        "order 4": _planted(FOUR, sizes.four),
    }


def _plain(solver: sf.SGD | sf.ALS, rank: int = RANK, threads: int = 2, dtype: type = np.float32) -> CP:
    return CP(rank, solver=solver, mean=False, biases=False, threads=threads, dtype=dtype)


def _start(estimator: CP, tensor: SparseTensor) -> Rounds:
    """Rounds on a tensor in the estimator's type, the kernels compiled before."""
    if estimator.dtype is not None and tensor.values.dtype != estimator.dtype:
        tensor = tensor.astype(estimator.dtype)
    small = sf.synthetic.cp((20,) * tensor.order, 2, entries=300, dtype=tensor.values.dtype).tensor
    warm_up(estimator, small)
    return Rounds(estimator, tensor)


# -- SGD --------------------------------------------------------------------------------------

# A light penalty: with the default one the factors of such thin data shrink to nothing.
_SGD = sf.SGD(ridge_per_entry=0.001)


def _gradient(tensors: dict[str, SparseTensor], sizes: Sizes) -> list[Figure]:
    uniform = tensors["uniform"]
    cases = {
        "uniform, 1 thread": (_plain(_SGD, threads=1), uniform),
        "uniform, 2 threads": (_plain(_SGD), uniform),
        "Zipf 1.1, 1 thread": (_plain(_SGD, threads=1), tensors["Zipf 1.1"]),
        "Zipf 1.1, 2 threads": (_plain(_SGD), tensors["Zipf 1.1"]),
        "mean and biases, 2 threads": (CP(RANK, solver=_SGD, threads=2, dtype=np.float32), uniform),
        "float64, 2 threads": (_plain(_SGD, dtype=np.float64), uniform),
        "order 4, 2 threads": (_plain(_SGD), tensors["order 4"]),
    }
    # One fit at a time, as a user has it: several in memory slow each other down.
    seconds: dict[str, list[float]] = {}
    entries, layout = {}, []
    with ThreadPoolExecutor(2) as pool:
        references: dict[str, Action] = compute_actions(pool)
        references["traffic"] = traffic_action(SHAPE, uniform.n_entries, pool)
        for _ in range(sizes.repetitions):
            for name, case in cases.items():
                rounds = _start(*case)
                entries[name] = rounds.entries
                if name == "uniform, 2 threads":
                    layout.append(rounds.first)
                measured = interleave({name: rounds}, sizes.passes)[name]
                seconds.setdefault(name, []).extend(measured)
            for name, times in interleave(references, sizes.passes).items():
                seconds.setdefault(name, []).extend(times)
    scaling = compute_scaling(seconds)
    figures = [
        _rate_figure(name, entries[name], seconds[name], 80 if name == "uniform, 2 threads" else None)
        for name in cases
    ]
    best = {name: min(times) for name, times in seconds.items()}
    for data in ("uniform", "Zipf 1.1"):
        gain = best[f"{data}, 1 thread"] / best[f"{data}, 2 threads"]
        bar = 1.7 if data == "uniform" else None
        figures.append(Figure(f"SGD {data}: 2 threads over 1", gain, f"{gain:.2f} x", bar, True))
    traffic = uniform.n_entries / best["traffic"] / 1e6
    share = best["traffic"] / best["uniform, 2 threads"]
    layout_seconds = min(layout) - best["uniform, 2 threads"]
    return [
        *figures,
        Figure("pure computation: 2 threads over 1", scaling, f"{scaling:.2f} x"),
        Figure("random row traffic, 2 threads", traffic, f"{traffic:.1f} M entries/s"),
        Figure("SGD uniform: rate over that of row traffic", share, f"{share:.0%}", 0.4, True, ">= 40%"),
        Figure("SGD uniform: layout, once per fit", layout_seconds, f"{layout_seconds:.2f} s"),
    ]


def _rate_figure(name: str, entries: int, seconds: list[float], bar: float | None) -> Figure:
    best, middle = (entries / s / 1e6 for s in best_and_median(seconds))
    text = f"{best:.1f} M updates/s (median {middle:.1f})"
    return Figure(f"SGD {name}", best, text, bar, True)


def _gradient_peers(matrix: SparseTensor, sizes: Sizes) -> list[Figure]:
    say(f"SGD beside other libraries: {matrix.n_entries:,} entries, rank {RANK}")
    ours = _start(_plain(_SGD), matrix)
    others = _present(
        peers.cornac(matrix, RANK),
        peers.libmf(matrix, RANK),
        peers.surprise(matrix, RANK, sizes.subset),
    )
    seconds = peers.measure(others, {"ours": lambda: _mean_of(ours, 4)}, sizes.repetitions)
    figures = [_rate_figure("matrix, 2 threads, mean of 4 passes", ours.entries, seconds["ours"], None)]
    for peer in others:
        rate = peer.entries / peer.round_seconds(seconds) / 1e6
        gain = figures[0].measured / rate
        text = f"{gain:.2f} x ({peer.name}: {rate:.1f} M updates/s; {peer.note})"
        bar = 1 if peer.comparable else None
        figures.append(Figure(f"SGD matrix: ours over {peer.name}", gain, text, bar, True, "> 1"))
    return figures


def _mean_of(rounds: Rounds, count: int) -> float:
    """Seconds of one of several rounds on end: peers are timed over several, so ours are too."""
    return sum(rounds() for _ in range(count)) / count


def _present(*found: Peer | None) -> list[Peer]:
    return [peer for peer in found if peer is not None]


# -- ALS --------------------------------------------------------------------------------------


def _least_squares(tensors: dict[str, SparseTensor], sizes: Sizes) -> list[Figure]:
    uniform = tensors["uniform"]
    cases = {
        "rank 16": (_plain(sf.ALS(ridge=1.0)), uniform),
        "rank 8": (_plain(sf.ALS(ridge=1.0), rank=8), uniform),
        "rank 16, 1 thread": (_plain(sf.ALS(ridge=1.0), threads=1), uniform),
        "rank 16, Zipf 1.1": (_plain(sf.ALS(ridge=1.0)), tensors["Zipf 1.1"]),
        "rank 16, Bayesian with mean and biases": (CP(RANK, threads=2, dtype=np.float32), uniform),
        "rank 16, order 4": (_plain(sf.ALS(ridge=1.0)), tensors["order 4"]),
    }
    rounds = {name: _start(*case) for name, case in cases.items()}
    seconds = interleave(rounds, sizes.sweeps)
    best = {name: min(times) for name, times in seconds.items()}
    bars = {"rank 16": 0.75, "rank 8": best["rank 16"]}
    figures = [_sweep_figure(name, seconds[name], bars.get(name)) for name in rounds]
    layout = rounds["rank 16"].first - best["rank 16"]
    return [*figures, Figure("ALS rank 16: layouts, once per fit", layout, f"{layout:.2f} s")]


def _sweep_figure(name: str, seconds: list[float], bar: float | None = None) -> Figure:
    best, middle = best_and_median(seconds)
    return Figure(f"ALS sweep, {name}", best, f"{best:.3f} s (median {middle:.3f})", bar)


def _least_squares_peers(matrix: SparseTensor, sizes: Sizes) -> list[Figure]:
    say(f"ALS beside implicit: {matrix.n_entries:,} entries, rank {RANK}")
    others = _present(peers.implicit(matrix, RANK, False), peers.implicit(matrix, RANK, True))
    return _beside("matrix", matrix, others, sizes)


def _tensor_peers(sizes: Sizes) -> list[Figure]:
    n = sizes.dense
    say(f"ALS beside tensor libraries: {n}^3 with 90% missing, and a sparse one")
    cube = sf.synthetic.cp((n, n, n), RANK, missing=0.9, dtype=np.float32).tensor
    sparse = _planted((1_000, 500, 100), sizes.sparse)
    dense_peers = _present(peers.tensorly(cube, RANK), peers.pyttb_masked(cube, RANK))
    sparse_peers = _present(peers.pyttb_als(sparse, RANK))
    return [
        *_beside(f"{n}^3, 90% missing", cube, dense_peers, sizes),
        *_beside(f"1000 x 500 x 100, {sizes.sparse:,} entries", sparse, sparse_peers, sizes),
    ]


def _beside(data: str, tensor: SparseTensor, others: list[Peer], sizes: Sizes) -> list[Figure]:
    ours = _start(_plain(sf.ALS(ridge=1.0)), tensor)
    seconds = peers.measure(others, {"ours": lambda: _mean_of(ours, 2)}, sizes.repetitions)
    figures = [_sweep_figure(f"{data}, mean of 2", seconds["ours"])]
    for peer in others:
        each = peer.round_seconds(seconds)
        gain = each / figures[0].measured
        text = f"{gain:.2f} x ({peer.name}: {each:.3f} s; {peer.note})"
        figures.append(Figure(f"ALS {data}: ours over {peer.name}", gain, text, 1, True, "> 1"))
    return figures
