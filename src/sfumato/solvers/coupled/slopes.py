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

from dataclasses import dataclass

import numpy as np

from sfumato.kernels.numba.langevin import add_picks
from sfumato.models.coupled import CoupledModel
from sfumato.models.divergence import SMALLEST
from sfumato.records import record
from sfumato.sites.coupled import CoupledSite, RelationSite
from sfumato.sites.memory import Site
from sfumato.types import Array


@record
@dataclass(frozen=True, eq=False)
class Slopes:
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
    add_picks(
        model.arrays(v),
        site.tensor.coordinates,
        site.tensor.values,
        picks,
        p,
        ratio * precision * terms[0],
        ratio * precision * terms[1],
        ratio * _inflation(ratio) * precision,
        SMALLEST,
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
