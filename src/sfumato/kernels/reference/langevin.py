"""Readable twin of ``kernels/numba/langevin.py``, over all cells of a relation."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from sfumato.types import Array

if TYPE_CHECKING:
    from sfumato.models.coupled import CoupledModel


def slopes_reference(
    model: CoupledModel, v: int, coordinates: Array, values: Array, p: float, precision: float
) -> tuple[Array, Array]:
    """The gradient of all cells of one relation with respect to rows and core."""
    part, core = model.parts[v], model.core(v)
    cells = model.cells(v, coordinates)
    taken = [model.factor(mode)[levels] for mode, levels in zip(part.modes, cells, strict=True)]
    value = model.predict(v, coordinates)
    slope = precision * (values / value - 1 if p == 1 else values - value)
    rows = np.zeros((model.rows.shape[0], model.rank))
    for position, mode in enumerate(part.modes):
        others = [taken[m] for m in range(len(taken)) if m != position]
        flat = np.moveaxis(core, position, 0).reshape(model.rank, -1)
        designs = _row_products(others) @ flat.T
        np.add.at(rows, cells[position] + model.offsets[mode], slope[:, None] * designs)
    whole = slope @ _row_products(taken) if part.tucker else np.zeros(0)
    return rows, whole


def _row_products(factors: list[Array]) -> Array:
    """Kronecker products, row by row."""
    product = np.ones((factors[0].shape[0], 1))
    for factor in factors:
        product = (product[:, :, None] * factor[:, None, :]).reshape(len(product), -1)
    return product
