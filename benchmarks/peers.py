"""Other libraries, each as something that can be timed. One that is not installed is skipped."""

from __future__ import annotations

import contextlib
import io
import logging
import re
import warnings
from collections import OrderedDict, defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from importlib import import_module, metadata
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse

from benchmarks.report import say
from benchmarks.timing import Action, interleave, timed
from sfumato import SparseTensor


@dataclass(frozen=True)
class Peer:
    """``fit(n)`` runs n rounds; the time of one is a difference, so that preparation drops out."""

    name: str
    entries: int
    fit: Callable[[int], Any]
    few: int
    many: int
    note: str = ""
    comparable: bool = True  # whether being faster means anything

    def actions(self) -> dict[str, Action]:
        return {f"{self.name} {n}": partial(self._seconds, n) for n in (self.few, self.many)}

    def _seconds(self, rounds: int) -> float:
        return timed(lambda: quietly(partial(self.fit, rounds)))

    def round_seconds(self, seconds: dict[str, list[float]]) -> float:
        few, many = (min(seconds[f"{self.name} {n}"]) for n in (self.few, self.many))
        return max(many - few, 1e-9) / (self.many - self.few)


def measure(peers: list[Peer], ours: dict[str, Action], repetitions: int) -> dict[str, list[float]]:
    """Seconds of our actions and of the peers' fits, in turn. A peer that fails is left out."""
    working = []
    for peer in list(peers):
        try:
            quietly(partial(peer.fit, 1))
            working.append(peer)
        except Exception as error:
            say(f"{peer.name} is left out: {type(error).__name__}: {error}")
            peers.remove(peer)
    actions = dict(ours)
    for peer in working:
        actions.update(peer.actions())
    return interleave(actions, repetitions)


@cache
def available(distribution: str, module: str) -> Any | None:
    """A peer's module, or nothing, and a line that says so."""
    try:
        found = quietly(lambda: import_module(module))
    except Exception as error:
        say(f"{distribution} is skipped: {type(error).__name__}: {error}")
        return None
    say(f"{distribution} {metadata.version(distribution)}")
    return found


def quietly(function: Callable[[], Any]) -> Any:
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        logging.disable(logging.WARNING)
        try:
            return function()
        finally:
            logging.disable(logging.NOTSET)


# -- gradient descent on a matrix -------------------------------------------------------------


def cornac(matrix: SparseTensor, rank: int) -> Peer | None:
    library = available("cornac", "cornac")
    if library is None:
        return None
    users, items = (OrderedDict((i, i) for i in range(n)) for n in matrix.shape)
    triples = (*matrix.coordinates.astype(np.int64), matrix.values.copy())
    data = library.data.Dataset(*matrix.shape, users, items, triples)

    def fit(rounds: int) -> None:
        model = library.models.MF(
            k=rank, max_iter=rounds, learning_rate=0.01, use_bias=False, num_threads=2
        )
        model.fit(data)

    return Peer("cornac MF", matrix.n_entries, fit, 1, 3, "2 threads that may overwrite each other")


def libmf(matrix: SparseTensor, rank: int) -> Peer | None:
    library = available("libmf", "libmf.mf")
    if library is None:
        return None
    triples = np.stack([*matrix.coordinates, matrix.values], axis=1).astype(np.float32)

    def fit(rounds: int) -> None:
        library.MF(k=rank, nr_threads=2, nr_iters=rounds, eta=0.05, quiet=True).fit(triples)

    vectors = has_vectors(Path(library.compiled_src))
    note = "2 threads, a step per row that adapts" if vectors else "built without SIMD: see README"
    return Peer("libmf", matrix.n_entries, fit, 1, 5, note, vectors)


def has_vectors(compiled: Path) -> bool:
    """Whether libmf was built with USESSE or USEAVX, several times faster than without.

    Only then does its machine code hold the approximate root of a vector (rsqrtps, vrsqrtps).
    """
    legacy, short = rb"\x0f\x52[\xc0-\xff]", rb"\xc5[\xf8\xfc]\x52[\xc0-\xff]"
    long = rb"\xc4[\x01\x21\x41\x61\x81\xa1\xc1\xe1][\x78\x7c]\x52[\xc0-\xff]"
    return re.search(b"|".join((legacy, short, long)), compiled.read_bytes()) is not None


def surprise(matrix: SparseTensor, rank: int, entries: int) -> Peer | None:
    library = available("scikit-surprise", "surprise")
    if library is None:
        return None
    chosen = np.random.default_rng(0).permutation(matrix.n_entries)[:entries]
    by_user: dict[int, list[tuple[int, float]]] = defaultdict(list)
    by_item: dict[int, list[tuple[int, float]]] = defaultdict(list)
    for user, item, value in zip(*(c[chosen].tolist() for c in _columns(matrix)), strict=True):
        by_user[user].append((item, value))
        by_item[item].append((user, value))
    maps = [{i: i for i in range(n)} for n in matrix.shape]
    data = library.Trainset(by_user, by_item, *matrix.shape, len(chosen), (-9, 9), *maps)

    def fit(rounds: int) -> None:
        library.SVD(n_factors=rank, n_epochs=rounds, biased=False).fit(data)

    return Peer("surprise SVD", len(chosen), fit, 1, 3, "1 thread, float64, a subset of the entries")


def _columns(matrix: SparseTensor) -> list[Any]:
    return [*matrix.coordinates, matrix.values]


# -- alternating least squares ----------------------------------------------------------------


def implicit(matrix: SparseTensor, rank: int, conjugate: bool) -> Peer | None:
    library = available("implicit", "implicit.cpu.als")
    if library is None:
        return None
    from threadpoolctl import threadpool_limits

    confidences = scipy.sparse.csr_matrix(
        (np.abs(matrix.values), tuple(matrix.coordinates)), shape=(matrix.shape[0], matrix.shape[1])
    )

    def fit(rounds: int) -> None:
        solver = library.AlternatingLeastSquares(
            rank, use_cg=conjugate, iterations=rounds, num_threads=2, random_state=0
        )
        with threadpool_limits(1, "blas"):  # its own advice: threads of its own, none of BLAS
            solver.fit(confidences, show_progress=False)

    how = "3 conjugate gradient steps" if conjugate else "Cholesky"
    name = f"implicit ALS ({how})"
    return Peer(name, matrix.n_entries, fit, 1, 3, "implicit feedback: unobserved cells count as zeros")


def tensorly(tensor: SparseTensor, rank: int) -> Peer | None:
    library = available("tensorly", "tensorly.decomposition")
    if library is None:
        return None
    dense = tensor.to_dense()
    mask = np.isfinite(dense).astype(dense.dtype)
    filled = np.nan_to_num(dense)

    def fit(rounds: int) -> None:
        library.parafac(filled, rank, n_iter_max=rounds, init="random", tol=0, mask=mask, random_state=0)

    return Peer("TensorLy masked parafac", tensor.n_entries, fit, 1, 3, "dense; missing cells filled in")


def pyttb_als(tensor: SparseTensor, rank: int) -> Peer | None:
    library = available("pyttb", "pyttb")
    if library is None:
        return None
    values = tensor.values.astype(np.float64)[:, None]
    sparse = library.sptensor(tensor.coordinates.T.astype(np.int64), values, tensor.shape)

    def fit(rounds: int) -> None:
        library.cp_als(sparse, rank, stoptol=-1.0, maxiters=rounds, printitn=0)

    return Peer("pyttb cp_als", tensor.n_entries, fit, 1, 3, "missing cells are taken for zeros")


def pyttb_masked(tensor: SparseTensor, rank: int) -> Peer | None:
    library = available("pyttb", "pyttb")
    if library is None:
        return None
    from pyttb.gcp.handles import Objectives
    from pyttb.gcp.optimizers import LBFGSB

    dense = tensor.to_dense().astype(np.float64)
    mask = np.isfinite(dense)
    data = library.tensor(np.nan_to_num(dense))

    def fit(rounds: int) -> None:
        optimiser = LBFGSB(maxiter=rounds, iprint=-1)
        library.gcp_opt(
            data, rank, Objectives.GAUSSIAN, optimiser, mask=mask.astype(np.float64), printitn=0
        )

    return Peer("pyttb gcp_opt, masked", tensor.n_entries, fit, 2, 6, "dense; one L-BFGS iteration")
