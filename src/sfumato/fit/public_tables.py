"""What a public table says of the levels of its modes, as a few numbers for each: no privacy needed."""

from __future__ import annotations

from math import prod

import numpy as np

from sfumato.data.tensor import SparseTensor
from sfumato.engines.local import Local
from sfumato.fit.completion import carry_out
from sfumato.fit.plan import Plan
from sfumato.models.shape import Shape
from sfumato.sites.memory import Site
from sfumato.solvers.least_squares.als import ALS
from sfumato.solvers.private.sides.columns import white
from sfumato.solvers.private.sides.settings import MOST_FEATURES
from sfumato.solvers.protocol import DivergedError, Run
from sfumato.types import Array

_COMPONENTS = 6


def public_columns(tensor: SparseTensor, run: Run) -> list[Array]:
    """For each mode white columns of its levels: from an open fit, and from where its entries are."""
    rank = min(_COMPONENTS, *(max(1, size) for size in tensor.shape))
    shape = Shape.of(tensor.modes, [rank] * tensor.order, "cp")
    known = tensor.take(np.flatnonzero(np.isfinite(tensor.values))).astype(np.float64)
    if not known.n_entries:
        return [np.zeros((size, 0)) for size in tensor.shape]
    try:
        model = carry_out(Plan(shape, ALS(), run), Local(Site(known, run.threads))).model
        found = [np.column_stack([b, f]) for b, f in zip(model.mode_biases, model.factors, strict=True)]
    except DivergedError:
        found = [np.zeros((size, 1)) for size in tensor.shape]
    columns = []
    for mode, fitted in enumerate(found):
        counts = np.bincount(known.coordinates[mode], minlength=known.shape[mode]).astype(np.float64)
        parts = np.column_stack([np.log1p(counts), fitted, _where(known, mode)])
        columns.append(white(parts, 1 + counts, MOST_FEATURES))
    return columns


def _where(tensor: SparseTensor, mode: int) -> Array:
    """Leading left singular vectors of the table, times their values, absent cells being zeros."""
    from scipy.sparse import csr_array
    from scipy.sparse.linalg import ArpackError, svds

    others = [m for m in range(tensor.order) if m != mode]
    sizes = [tensor.shape[m] for m in others]
    if prod(sizes) >= 2**62:
        return np.zeros((tensor.shape[mode], 0))
    flat = np.ravel_multi_index(tuple(tensor.coordinates[others]), sizes)
    _, cells = np.unique(flat, return_inverse=True)
    matrix = csr_array(
        (tensor.values, (tensor.coordinates[mode], cells)),
        shape=(tensor.shape[mode], int(cells.max()) + 1),
    )
    number = min(_COMPONENTS, min(matrix.shape) - 1)
    if number < 1:
        return np.zeros((tensor.shape[mode], 0))
    try:
        left, lengths, _ = svds(matrix, number, v0=np.ones(min(matrix.shape)))
    except ArpackError:  # numbers that are too large for it
        return np.zeros((tensor.shape[mode], 0))
    found: Array = left[:, ::-1] * lengths[::-1]
    return found if np.isfinite(found).all() else np.zeros((tensor.shape[mode], 0))
