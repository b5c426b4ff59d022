"""The ALS of ``implicit`` on seen cells, in a process of its own: writes its lists as ``.npy``.

    python benchmarks/implicit_peer.py TRAIN.npz FACTORS REGULARISATION ALPHA K LISTS.npy

``TRAIN.npz`` holds ``owner``, ``item`` and ``shape``. Prints the version.
"""

from __future__ import annotations

import sys
import warnings

import implicit
import numpy as np
import scipy.sparse
from implicit.als import AlternatingLeastSquares


def main() -> None:
    warnings.simplefilter("ignore")
    train, factors, ridge, alpha, k, out = sys.argv[1:]
    with np.load(train) as data:
        cells, shape = (data["owner"], data["item"]), tuple(data["shape"])
    seen = scipy.sparse.csr_matrix((np.ones(len(cells[0]), np.float32), cells), shape)
    model = AlternatingLeastSquares(
        factors=int(factors),
        regularization=float(ridge),
        alpha=float(alpha),
        iterations=15,
        random_state=0,
        num_threads=1,
    )
    model.fit(seen, show_progress=False)
    lists, _ = model.recommend(np.arange(shape[0]), seen, N=int(k), filter_already_liked_items=True)
    np.save(out, lists)
    print(implicit.__version__)


if __name__ == "__main__":
    main()
