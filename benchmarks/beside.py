"""MovieLens 100K, split ua: held-out errors and processor seconds of other libraries beside ours.

``python -m benchmarks.beside``. Others run with their own defaults; for TensorLy, which has no mean
and no penalty here, values are centred, and several ranks are tried. Peers that are not installed are
skipped.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import numpy as np
import pandas as pd
from numpy.typing import NDArray

import sfumato as sf
from benchmarks import peers
from benchmarks.report import aligned, say

Row = tuple[str, str, str]
RANKS = (1, 2, 5, 8)
ROUNDS = 50


def _row(name: str, test: sf.SparseTensor, fit: Callable[[], Callable[[], NDArray[np.float64]]]) -> Row:
    begin = time.process_time()
    predict = fit()
    seconds = time.process_time() - begin
    error = np.sqrt(np.mean((predict() - test.values) ** 2))
    return name, f"{error:.3f}", f"{seconds:.2f}"


def _ours(train: sf.SparseTensor, test: sf.SparseTensor) -> Iterator[Row]:
    fits = {
        "constant": sf.Biases(sweeps=0),
        "biases": sf.Biases(),
        "CP()": sf.CP(),
        "CP(rank=20)": sf.CP(rank=20),
    }
    for name, estimator in fits.items():
        estimator.fit(train)  # compiles

        def fit(estimator: sf.TensorEstimator = estimator) -> Callable[[], NDArray[np.float64]]:
            fitted = estimator.fit(train)
            return lambda: fitted.predict(test)

        yield _row(f"sfumato {name}", test, fit)


def _surprise(train: sf.SparseTensor, test: sf.SparseTensor) -> Iterator[Row]:
    library = peers.available("scikit-surprise", "surprise")
    if library is None:
        return
    frame = pd.DataFrame([*train.coordinates, train.values]).T
    data = library.Dataset.load_from_df(frame, library.Reader(rating_scale=(1, 5)))
    learnt = data.build_full_trainset()
    cells = list(zip(*map(np.ndarray.tolist, test.coordinates), strict=True))
    for name in ("BaselineOnly", "KNNBaseline", "SVD", "SVDpp"):

        def fit(name: str = name) -> Callable[[], NDArray[np.float64]]:
            model = peers.quietly(lambda: getattr(library, name)().fit(learnt))
            return lambda: np.array([model.predict(user, item).est for user, item in cells])

        yield _row(f"surprise {name}", test, fit)


def _tensorly(train: sf.SparseTensor, test: sf.SparseTensor) -> Iterator[Row]:
    library = peers.available("tensorly", "tensorly.decomposition")
    if library is None:
        return
    from tensorly.cp_tensor import cp_to_tensor

    mean = train.values.mean()
    dense, mask = np.zeros(train.shape), np.zeros(train.shape)
    dense[tuple(train.coordinates)], mask[tuple(train.coordinates)] = train.values - mean, 1.0
    for rank in RANKS:

        def fit(rank: int = rank) -> Callable[[], NDArray[np.float64]]:
            found = library.parafac(
                dense, rank, n_iter_max=ROUNDS, init="random", random_state=0, mask=mask
            )
            return lambda: np.clip(mean + cp_to_tensor(found)[tuple(test.coordinates)], 1.0, 5.0)

        yield _row(f"TensorLy parafac with a mask, rank {rank}", test, fit)


def main() -> None:
    train, test = sf.datasets.movielens_split("100k", "ua")
    rows = [("", "held-out RMSE", "processor seconds")]
    for measured in (_ours, _surprise, _tensorly):
        rows += measured(train, test)
    say(aligned(rows))


if __name__ == "__main__":
    main()
