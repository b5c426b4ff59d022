"""Gradients of log likelihoods from random entries of coupled relations.

With values v of the model, observations x and designs f (B. Ermis, Appendix A, times -1):

    Normal of precision tau     tau (x - v) f
    Poisson                     (x / v - 1) f

summed over the observed cells. Batches are drawn with replacement and count by entries over batch, which
has the right mean. Where absent cells are zeros, the second term is the same for all cells or linear in
the row, and its sum over all cells has a closed form: only entries, and cells taken off that sum, are
drawn.

Along with it go the sums that steps are scaled by (``Slopes.scales``): of tau f^2 for Normal, the
diagonal of the Hessian, and of f for Poisson, each times 1 plus entries over batch, since the variance
of a drawn gradient is about that many times the Hessian.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from sfumato.kernels.numba.entrywise import add_kronecker, evaluate, locate, workspace
from sfumato.kernels.numba.parallel import kernel, scratch
from sfumato.models.coupled import CoupledModel
from sfumato.models.divergence import SMALLEST
from sfumato.sites.coupled import CoupledSite, RelationSite
from sfumato.sites.memory import Site
from sfumato.types import Array


class Slopes(NamedTuple):
    """Gradient of the log likelihood, and what to scale steps by, laid out as rows and then cores."""

    gradients: tuple[Array, ...]
    scales: tuple[Array, ...]  # empty where nobody asked


def slopes(
    model: CoupledModel,
    site: CoupledSite,
    precisions: Array,
    batch: int | None,
    generator: np.random.Generator,
    with_scales: bool,
) -> Slopes:
    """From ``batch`` random entries of each relation; None, or one with no more entries, for all."""
    shapes = [(model.rows.shape[0], model.rank), *(core.shape for core in model.cores)]
    found = Slopes(
        tuple(np.zeros(shape) for shape in shapes),
        tuple(np.zeros(shape if with_scales else (0,) * len(shape)) for shape in shapes),
    )
    for v, holder in enumerate(site.parts):
        precision = float(precisions[v])
        _add_entries(model, v, holder, precision, batch, generator, found)
        if holder.closed:
            _add_all_cells(model, v, holder.divergence, precision, _ratio(holder.entries, batch), found)
    return found


def _ratio(site: Site, batch: int | None) -> float:
    """By how much a drawn entry counts."""
    return 1.0 if batch is None else max(1.0, site.tensor.n_entries / batch)


def _inflation(ratio: float) -> float:
    """A sum itself, and the variance that drawing adds: none where all entries are used."""
    return 1.0 if ratio == 1 else 1 + ratio


def _add_entries(
    model: CoupledModel,
    v: int,
    holder: RelationSite,
    precision: float,
    batch: int | None,
    generator: np.random.Generator,
    found: Slopes,
) -> None:
    nothing = np.zeros((0, 0)), np.zeros(0)
    scales = nothing
    if found.scales[0].size and not holder.closed:
        scales = found.scales[0], found.scales[1 + v]
    # The first term of entries; the second where no closed form has it, and to be taken off that form.
    _walk(model, v, holder.entries, holder.divergence, precision, (1.0, float(not holder.closed)), batch,
          generator, (found.gradients[0], found.gradients[1 + v], *scales))  # fmt: skip
    if holder.unknown is not None:
        _walk(model, v, holder.unknown, holder.divergence, precision, (0.0, -1.0), batch,
              generator, (found.gradients[0], found.gradients[1 + v], *nothing))  # fmt: skip


def _walk(
    model: CoupledModel,
    v: int,
    site: Site,
    p: float,
    precision: float,
    terms: tuple[float, float],
    batch: int | None,
    generator: np.random.Generator,
    sums: tuple[Array, Array, Array, Array],
) -> None:
    n, ratio = site.tensor.n_entries, _ratio(site, batch)
    picks = site.kept(("all",), lambda: np.arange(n)) if ratio == 1 else generator.integers(0, n, batch)
    _add_picks(
        model.arrays(v),
        site.tensor.coordinates,
        site.tensor.values,
        picks,
        p,
        ratio * precision * terms[0],
        ratio * precision * terms[1],
        ratio * _inflation(ratio) * precision,
        *sums,
    )


def _add_all_cells(
    model: CoupledModel, v: int, p: float, precision: float, ratio: float, found: Slopes
) -> None:
    """Second terms of all cells, in closed form."""
    part, poisson, scaled = model.parts[v], p == 1, found.scales[0].size > 0
    for mode in part.modes:
        at = model.span(mode)
        if poisson:
            sums = model.design_sum(v, mode)
            found.gradients[0][at] -= precision * sums
        else:
            moment = model.design_moment(v, mode)
            found.gradients[0][at] -= precision * (model.factor(mode) @ moment)
            sums = np.diagonal(moment)
        if scaled:
            found.scales[0][at] += _inflation(ratio) * precision * sums
    if part.tucker:
        whole = model.core_sum(v) if poisson else model.core_moment(v)
        found.gradients[1 + v][:] -= precision * whole
        if scaled:
            squares = whole if poisson else _kronecker_squares(model, v)
            found.scales[1 + v][:] += _inflation(ratio) * precision * squares


def _kronecker_squares(model: CoupledModel, v: int) -> Array:
    """Sum of the squared Kronecker products of rows over all cells, flat."""
    product = np.ones(1)
    for mode in model.parts[v].modes:
        product = np.outer(product, np.square(model.factor(mode), dtype=np.float64).sum(axis=0)).ravel()
    return product


@kernel
def _add_picks(
    arrays: Any,
    coordinates: Array,
    values: Array,
    picks: Array,
    p: float,
    first: float,
    second: float,
    weight: float,
    row_gradient: Array,
    core_gradient: Array,
    row_scale: Array,
    core_scale: Array,
) -> None:
    """Add (first x v^-p - second v^(1-p)) f of some entries; to scales where there is room."""
    order, width, rank = len(arrays.offsets), arrays.rows.shape[1], row_gradient.shape[1]
    index, work = scratch(order, np.int64), workspace(arrays)
    kronecker = scratch(core_scale.shape[0], np.float64)
    scaled, poisson = row_scale.shape[0] > 0, p == 1.0
    for pick in range(picks.shape[0]):
        entry = picks[pick]
        locate(arrays, coordinates, entry, index)
        value = float(evaluate(arrays, index, work))
        if poisson:
            slope = first * values[entry] / max(value, SMALLEST) - second
        else:
            slope = first * values[entry] - second * value
        for m in range(order):
            row = index[m]
            for r in range(rank):
                row_gradient[row, r] += slope * work[m * width + r]
        add_kronecker(arrays, work, slope, core_gradient)
        if scaled:
            for m in range(order):
                row = index[m]
                for r in range(rank):
                    design = work[m * width + r]
                    row_scale[row, r] += weight * (design if poisson else design * design)
            for q in range(core_scale.shape[0]):
                kronecker[q] = 0.0
            add_kronecker(arrays, work, 1.0, kronecker)
            for q in range(core_scale.shape[0]):
                product = kronecker[q]
                core_scale[q] += weight * (product if poisson else product * product)


def slopes_reference(
    model: CoupledModel, v: int, coordinates: Array, values: Array, p: float, precision: float
) -> tuple[Array, Array]:
    """Readable twin: the gradient of all cells of one relation with respect to rows and core."""
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
