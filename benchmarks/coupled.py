"""Coupled factorisation: beside scikit-learn and TensorLy, on sparse data, and at the size of Digg.

On dense data that the peers can take, all fit the same numbers from the same start. What peers cannot
take (several sparse tensors, zeros that are not written out, missing cells under Kullback-Leibler) is
measured by itself.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from pathlib import Path
from time import perf_counter, process_time
from typing import Any, NamedTuple

import numpy as np
from threadpoolctl import threadpool_limits

import sfumato as sf
from benchmarks import peers
from benchmarks.memory import MIB, Peak, elsewhere
from benchmarks.peers import Peer
from benchmarks.report import Figure, say
from benchmarks.timing import Disturbance, best_and_median
from sfumato.data.synthetic import sample_cells
from sfumato.metrics import rmse
from sfumato.models.coupled import CoupledModel
from sfumato.models.divergence import beta_divergence
from sfumato.sites.coupled import CoupledSite
from sfumato.solvers.coupled.multiplicative import DivergenceQuery
from sfumato.types import Array

SWEEPS = 100  # after which accuracy is compared


@dataclass(frozen=True)
class Sizes:
    """How much to measure."""

    matrix: tuple[int, int] = (500, 400)
    tensor: tuple[int, int, int] = (100, 80, 60)
    side: int = 50  # features of the tensor's first mode, for the coupled case
    sparse: tuple[int, int, int] = (10_000, 5_000, 100)
    entries: int = 1_000_000
    repetitions: int = 5
    votes: tuple[int, int, int] = (9_583, 44_005, 241_800)
    comments: tuple[int, int, int] = (44_005, 13_714, 51)
    n_votes: int = 151_779
    n_comments: int = 1_157_529


QUICK = Sizes(
    (60, 50), (20, 15, 10), 10, (1_000, 500, 20), 20_000, 2, (958, 4_400, 24_180), (4_400, 1_371, 51),
    15_177, 115_752,
)  # fmt: skip


def run(quick: bool) -> list[Figure]:
    sizes, disturbance = QUICK if quick else Sizes(), Disturbance()
    figures = []
    with threadpool_limits(1, "blas"):  # more would wait for each other on a busy machine
        for p in (0.0, 1.0, 2.0):
            figures += _matrix(sizes, p)
        for p in (0.0, 1.0):
            figures += _tensor(sizes, p)
        figures += _coupled(sizes)
        figures += _sparse(sizes)
    figures += _digg(sizes)
    share = disturbance.share()
    if share is not None:
        figures.append(Figure("coupled run: CPU time taken by others", share, f"{share:.0%}"))
    return figures


# -- data -----------------------------------------------------------------------------------------


def _dense(shape: Sequence[int], rank: int, p: float, seed: int = 0) -> Array:
    """Values of planted non-negative factors: counts, for p = 2 numbers above zero of Gamma laws."""
    generator = np.random.default_rng(seed)
    return _observed([generator.gamma(1.0, size=(n, rank)) for n in shape], p, generator)


def _observed(factors: Sequence[Array], p: float, generator: np.random.Generator) -> Array:
    means = np.ones((1, factors[0].shape[1]))
    for factor in factors:
        means = (means[:, None] * factor).reshape(-1, factor.shape[1])
    drawn = (
        generator.gamma(4.0, means.sum(axis=1) / 4) if p == 2 else generator.poisson(means.sum(axis=1))
    )
    return np.asarray(drawn, np.float64).reshape([len(factor) for factor in factors])


def _all_cells(values: Array, *names: str) -> sf.SparseTensor:
    modes = tuple(sf.Mode(name, size) for name, size in zip(names, values.shape, strict=True))
    cells = np.indices(values.shape, np.int32).reshape(values.ndim, -1)
    return sf.SparseTensor(cells, values.ravel(), modes)


# -- ours -----------------------------------------------------------------------------------------


class Sweeps:
    """Our fit, which goes on for as long as it is asked to; each call is a sweep, in seconds.

    A sweep updates all factors and finds the divergence, which peers that do not stop early leave out:
    ``updates`` are the seconds without it. The first sweep, made here, builds the layouts.
    """

    def __init__(self, relations: sf.Relations, rank: int, threads: int = 1) -> None:
        plan = _estimator(rank, threads).plan(relations)
        self._solver: Any = plan.solver
        self._site = CoupledSite(relations, plan.run.threads, np.dtype(plan.shape.dtype))
        self._state = self._solver.init(plan.run, plan.shape)
        self.start: CoupledModel = self._state.model.copy()
        self._completed = 0
        self()

    def __call__(self) -> float:
        begin, before, self.updates = perf_counter(), self._completed, 0.0
        while self._completed == before:
            query, asked = self._solver.ask(self._state), perf_counter()
            answer = query.answer(self._site)
            self._state, info = self._solver.update(self._state, answer)
            self._completed = info.completed
            if not isinstance(query, DivergenceQuery):
                self.updates += perf_counter() - asked
        return perf_counter() - begin

    def mean(self, count: int = 5) -> float:
        """Seconds of one of several sweeps on end, as peers are timed."""
        return sum(self() for _ in range(count)) / count

    def mean_updates(self, count: int = 5) -> float:
        """Without the divergences."""
        return sum(self.updates for _ in range(count) if self()) / count


def _estimator(rank: int, threads: int = 1) -> sf.Coupled:
    return sf.Coupled(rank, sf.Multiplicative(SWEEPS, tolerance=None), threads=threads)


# -- beside others --------------------------------------------------------------------------------


class Fitted(NamedTuple):
    """A peer to be timed, and the values that it predicts for all cells after some sweeps."""

    peer: Peer
    values: Callable[[int], Sequence[Array]]
    same: bool = False  # the same updates from the same start: the same result


def _matrix(sizes: Sizes, p: float) -> list[Figure]:
    rank, data = 10, _dense(sizes.matrix, 10, p)
    relations = sf.Relations({"x": _all_cells(data, "a", "b")}, divergence=p)
    start = [factor.copy() for factor in Sweeps(relations, rank).start.factors]
    found = [_nmf("mu", data, rank, p, start)]
    if p == 0:
        found += [_nmf("cd", data, rank, p, start), *_non_negative(data, rank, start)]
    return _beside(f"matrix {_by(sizes.matrix)}, rank {rank}", relations, rank, p, [data], found, sizes)


def _tensor(sizes: Sizes, p: float) -> list[Figure]:
    rank, data = 5, _dense(sizes.tensor, 5, p)
    relations = sf.Relations({"x": _all_cells(data, "a", "b", "c")}, divergence=p)
    start = [factor.copy() for factor in Sweeps(relations, rank).start.factors]
    found = _non_negative(data, rank, start) if p == 0 else []
    return _beside(f"tensor {_by(sizes.tensor)}, rank {rank}", relations, rank, p, [data], found, sizes)


def _coupled(sizes: Sizes) -> list[Figure]:
    """A tensor and a matrix with a common mode, as TensorLy's coupled factorisation has them."""
    rank, generator = 5, np.random.default_rng(0)
    shared, second, third = (generator.gamma(1.0, size=(n, rank)) for n in sizes.tensor)
    own = generator.gamma(1.0, size=(sizes.side, rank))
    tensor = _observed([shared, second, third], 0.0, generator)
    matrix = _observed([shared, own], 0.0, generator)
    relations = sf.Relations(
        {"x": _all_cells(tensor, "a", "b", "c"), "y": _all_cells(matrix, "a", "d")}, divergence=0.0
    )
    what = f"coupled {_by(sizes.tensor)} and {_by(matrix.shape)}, rank {rank}"
    found = _cmtf(tensor, matrix, rank)
    return _beside(what, relations, rank, 0.0, [tensor, matrix], found, sizes)


def _beside(
    what: str,
    relations: sf.Relations,
    rank: int,
    p: float,
    data: Sequence[Array],
    found: list[Fitted | None],
    sizes: Sizes,
) -> list[Figure]:
    others = [each for each in found if each is not None]
    sweeps = Sweeps(relations, rank)
    working = [each.peer for each in others]
    own = {"ours": sweeps.mean, "updates": sweeps.mean_updates}
    seconds = peers.measure(working, own, sizes.repetitions)
    ours = _accuracy(_our_values(relations, rank), data, p)
    best, middle = best_and_median(seconds["ours"])
    updates, _ = best_and_median(seconds["updates"])
    what = f"{what}, p {p:g}"
    text = (
        f"{1e3 * best:.2f} ms (median {1e3 * middle:.2f}; {1e3 * updates:.2f} without the divergence); "
        f"after {SWEEPS}: {ours}"
    )
    say(f"{what}: {text}")
    figures = [Figure(f"{what}: a sweep", best, text)]
    for peer, values, same in others:
        if peer not in working:
            continue
        each = peer.round_seconds(seconds)
        theirs = _accuracy(peers.quietly(partial(values, SWEEPS)), data, p)
        gain, loss = each / updates, ours.divergence / theirs.divergence
        say(f"{what}, {peer.name}: {1e3 * each:.2f} ms; after {SWEEPS}: {theirs}; {peer.note}")
        figures += [
            Figure(f"{what}: updates over {peer.name}", gain, f"{gain:.2f} x ({1e3 * each:.2f} ms)"),
            Figure(
                f"{what}: divergence over that of {peer.name}",
                loss,
                f"{loss:.5f} ({theirs})",
                1.001 if same else None,
            ),
        ]
    return figures


class Accuracy(NamedTuple):
    """Of all cells: the divergence, how much of it a constant leaves that is explained, the error."""

    divergence: float
    explained: float
    rmse: float

    def __str__(self) -> str:
        return f"divergence {self.divergence:.6g}, explains {self.explained:.2%}, RMSE {self.rmse:.4f}"


def _accuracy(values: Sequence[Array], data: Sequence[Array], p: float) -> Accuracy:
    def total(found: Sequence[Array]) -> float:
        return sum(float(beta_divergence(x, v, p).sum()) for x, v in zip(data, found, strict=True))

    divergence = total(values)
    constant = total([np.full_like(x, x.mean()) for x in data])
    flat = (np.concatenate([each.ravel() for each in given]) for given in (data, values))
    return Accuracy(divergence, 1 - divergence / constant, rmse(*flat))


def _our_values(relations: sf.Relations, rank: int) -> list[Array]:
    model = _estimator(rank).fit(relations)
    return [
        model.predict(name, relation.tensor).reshape(relation.tensor.shape)
        for name, relation in relations.items()
    ]


def _by(shape: Sequence[int]) -> str:
    return " x ".join(f"{n:,}" for n in shape)


# -- peers ----------------------------------------------------------------------------------------


def _nmf(solver: str, data: Array, rank: int, p: float, start: Sequence[Array]) -> Fitted | None:
    library = peers.available("scikit-learn", "sklearn.decomposition")
    if library is None:
        return None
    names = {0.0: "frobenius", 1.0: "kullback-leibler", 2.0: "itakura-saito"}

    def fit(sweeps: int) -> Sequence[Array]:
        method = library.NMF(
            rank, init="custom", solver=solver, beta_loss=names[p], tol=0.0, max_iter=sweeps
        )
        left = method.fit_transform(data, W=start[0].copy(), H=np.ascontiguousarray(start[1].T))
        return [left @ method.components_]

    # For p = 2 it takes square roots of the ratios, and falls more slowly.
    note = {"mu": "multiplicative updates", "cd": "coordinate descent (HALS)"}[solver]
    peer = Peer(f"scikit-learn NMF ({solver})", data.size, fit, 5, 105, note)
    return Fitted(peer, fit, solver == "mu" and p != 2)


def _non_negative(data: Array, rank: int, start: Sequence[Array]) -> list[Fitted | None]:
    library = peers.available("tensorly", "tensorly.decomposition")
    if library is None:
        return []
    names = {"MU": "non_negative_parafac", "HALS": "non_negative_parafac_hals"}
    return [_one_non_negative(library, kind, name, data, rank, start) for kind, name in names.items()]


def _one_non_negative(
    library: Any, kind: str, name: str, data: Array, rank: int, start: Sequence[Array]
) -> Fitted:
    def fit(sweeps: int) -> Sequence[Array]:
        init = (np.ones(rank), [factor.copy() for factor in start])
        found = getattr(library, name)(data, rank, n_iter_max=sweeps, init=init, tol=0)
        return [found.to_tensor()]

    note = "dense, Euclidean only"
    return Fitted(Peer(f"TensorLy {kind}", data.size, fit, 5, 55, note), fit, kind == "MU")


def _cmtf(tensor: Array, matrix: Array, rank: int) -> list[Fitted | None]:
    library = peers.available("tensorly", "tensorly.decomposition")
    if library is None:
        return []

    def fit(sweeps: int) -> Sequence[Array]:
        found = library.coupled_matrix_tensor_3d_factorization(
            tensor, matrix, rank, n_iter_max=sweeps, tol=-1.0
        )
        return [part.to_tensor() for part in found[:2]]

    note = "dense, Euclidean, least squares without signs, from singular vectors"
    return [Fitted(Peer("TensorLy CMTF", tensor.size + matrix.size, fit, 2, 12, note), fit)]


# -- sparse: what no peer takes -------------------------------------------------------------------


def _sparse(sizes: Sizes) -> list[Figure]:
    """Entries in a grid too large to be written out, in every way in which cells may be absent."""
    rank, generator = 5, np.random.default_rng(0)
    coordinates = sample_cells(sizes.sparse, sizes.entries, generator)
    modes = tuple(sf.Mode(name, size) for name, size in zip("abc", sizes.sparse, strict=True))
    tensor = sf.SparseTensor(coordinates, 1.0 + generator.poisson(1.0, sizes.entries), modes)
    figures = []
    ways: list[tuple[float, Any, Any]] = [
        (p, absent, "cp") for p in (0.0, 1.0) for absent in ("missing", "zero")
    ]
    ways += [(1.5, "missing", "cp"), (1.0, "zero", "tucker")]
    for p, absent, structure in ways:
        relations = sf.Relations({"x": tensor}, divergence=p, absent=absent, structure=structure)
        sweeps = Sweeps(relations, rank, threads=2)
        best, middle = best_and_median([sweeps() for _ in range(sizes.repetitions)])
        what = (
            f"sparse {_by(sizes.sparse)}, {sizes.entries:,} entries, rank {rank}, {structure}, p {p:g}"
        )
        rate = 1e9 * best / sizes.entries / 3
        text = f"{best:.3f} s (median {middle:.3f}; {rate:.0f} ns an entry and mode)"
        figures.append(Figure(f"{what}, absent {absent}: a sweep", best, text))
        say(f"{figures[-1].what}: {text}")
    return figures


# -- the size of Digg -----------------------------------------------------------------------------

# Seconds of 100 sweeps of maximum likelihood and of variational Bayes in B. Ermis' thesis.
PRINTED = {"multiplicative": 1_019.0, "variational": 1_251.0}
MODES = {"votes": ("user", "story", "item"), "comments": ("story", "keyword", "topic")}


def _digg(sizes: Sizes) -> list[Figure]:
    figures = []
    shapes = {"votes": sizes.votes, "comments": sizes.comments}
    counts = {"votes": sizes.n_votes, "comments": sizes.n_comments}
    entries, cells = sum(counts.values()), sum(map(prod, shapes.values()))
    say(f"Digg's size: {entries:,} entries among {cells:.3g} cells that count as zeros")
    with tempfile.TemporaryDirectory() as folder:
        for times in (1, 4):
            _draw(Path(folder) / str(times), shapes, {name: times * n for name, n in counts.items()})
        for solver, printed in PRINTED.items():
            seen = {
                times: elsewhere(__name__, "fit", Path(folder) / str(times), solver, sweeps)
                for times, sweeps in ((1, SWEEPS), (4, 2))
            }
            whole, more = seen[1], seen[4]
            seconds, used = whole["seconds"], whole["used"]
            text = f"{seconds:.1f} s ({used:.1f} s of CPU; thesis {printed:,.0f} s)"
            what = f"Digg's size, {solver}, rank 2, {SWEEPS} sweeps"
            figures.append(Figure(what, seconds, text, printed, bar_text=f"<= {printed:,.0f} s"))
            say(f"{what}: {text}")
            each = (more["peak"] - whole["peak"]) / (3 * entries)
            text = f"{whole['peak'] / MIB:.0f} MiB at the peak, {each:.0f} bytes for each more entry"
            figures.append(Figure(f"{what}: memory", whole["peak"], text))
            say(f"{what}: {text}")
    return figures


def _draw(folder: Path, shapes: Mapping[str, Sequence[int]], counts: Mapping[str, int]) -> None:
    """Cells anywhere: no order in them that a cache could use."""
    folder.mkdir()
    (folder / "shapes.json").write_text(json.dumps(shapes))
    generator = np.random.default_rng(0)
    for name, shape in shapes.items():
        np.save(folder / f"{name}.npy", sample_cells(shape, counts[name], generator))
        values = np.ones(counts[name])
        if name == "comments":
            values += generator.poisson(0.5, counts[name])
        np.save(folder / f"{name} values.npy", values)


def fit(folder: str, solver: str, sweeps: str) -> dict[str, float]:
    """Seconds from tensors to a model, and anonymous memory at the peak, the tensors included."""
    solvers = {"multiplicative": sf.Multiplicative, "variational": sf.Variational}
    method = solvers[solver](int(sweeps), tolerance=None)
    small = {name: _all_cells(np.ones((2, 2, 2)), *names) for name, names in MODES.items()}
    sf.Coupled(2, method, threads=2).fit(sf.Relations(small, absent="zero"))  # compiles
    shapes = json.loads((Path(folder) / "shapes.json").read_text())
    with Peak() as peak:
        tensors = {
            name: sf.SparseTensor(
                np.load(Path(folder) / f"{name}.npy"),
                np.load(Path(folder) / f"{name} values.npy"),
                tuple(sf.Mode(mode, size) for mode, size in zip(names, shapes[name], strict=True)),
            )
            for name, names in MODES.items()
        }
        begin, used = perf_counter(), process_time()
        sf.Coupled(2, method, threads=2).fit(sf.Relations(tensors, absent="zero"))
        seconds, used = perf_counter() - begin, process_time() - used
    return {"seconds": seconds, "used": used, "peak": peak.bytes}


JOBS: dict[str, Callable[..., dict[str, float]]] = {"fit": fit}

if __name__ == "__main__":
    print(json.dumps(JOBS[sys.argv[1]](*sys.argv[2:])))
