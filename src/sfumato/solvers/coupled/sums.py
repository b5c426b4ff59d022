"""Sums over the observed cells of coupled relations, from which factors are updated.

For a mode with designs f (the vector whose inner product with a row is the value, as in
``kernels/numba/entrywise.py``):

    numerator    sum over cells of  x v^-p f
    denominator  sum over cells of  v^(1-p) f

with observed values x and the model's values v. Where absent cells are zeros, they are in the
denominator only, which for p = 0 and p = 1 is a closed form in sums over factors. Where most cells would
be visited, they are written out instead (``written_sums.py``).

Of counts that were released through a channel (p = 1), x is what the model expects behind the noisy one,
E[x | z, v]: the E step of an EM algorithm. The divergence is then -log P(z | v).
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import numpy as np

from sfumato.kernels.numba.coupled_sums import Sums, add_core_entries, add_entries
from sfumato.kernels.numba.noisy_counts import expected_counts
from sfumato.models.coupled import CoupledModel
from sfumato.models.divergence import SMALLEST, beta_divergence
from sfumato.records import record
from sfumato.sites.coupled import CoupledSite, RelationSite, WrittenOut
from sfumato.sites.memory import Site
from sfumato.solvers.coupled.shape import Block, values_of
from sfumato.solvers.coupled.written_sums import Written
from sfumato.types import Array


@record
class Models(NamedTuple):
    """Where the model's values come from: variational Bayes has one for either sum.

    ``least`` is what a value of the numerator's model counts as at least.
    """

    numerator: CoupledModel
    denominator: CoupledModel
    least: float = SMALLEST


def block_sums(given: CoupledModel | Models, site: CoupledSite, block: Block, scales: Array) -> Sums:
    """Sums for a block of parameters: the rows of a mode, or the core of a part."""
    if block.mode is not None:
        return mode_sums(given, site, block.mode, scales)
    return core_sums(given, site, block.part, float(scales[block.part]))


def mode_sums(given: CoupledModel | Models, site: CoupledSite, mode: int, scales: Array) -> Sums:
    """Sums for the rows of a mode, over all relations that have it; each counts by its scale."""
    models = _pair(given)
    model = models.numerator
    sums = Sums(*(np.zeros((model.sizes[mode], model.rank)) for _ in range(2)))
    for v, (part, holder) in enumerate(zip(model.parts, site.parts, strict=True)):
        if mode in part.modes:
            _add_part(models, v, holder, mode, float(scales[v]), sums)
    return sums


def _pair(given: CoupledModel | Models) -> Models:
    return given if isinstance(given, Models) else Models(given, given)


def explained(model: CoupledModel, v: int, holder: RelationSite) -> RelationSite:
    """With the counts that a model expects behind noisy ones."""
    if holder.noisy is None:
        return holder
    rates, threads = _values_at(model, v, holder.entries), holder.entries.threads
    return holder.restated(expected_counts(holder.noisy, rates, threads)[0])


def log_probabilities(model: CoupledModel, v: int, holder: RelationSite) -> Array:
    """log P(z | v) of a part's entries."""
    rates, threads = _values_at(model, v, holder.entries), holder.entries.threads
    return expected_counts(holder.counts, rates, threads, with_logs=True)[1]


def _add_part(models: Models, v: int, holder: RelationSite, mode: int, scale: float, sums: Sums) -> None:
    p, (model, other, least) = holder.divergence, models
    holder = explained(model, v, holder)
    position = model.parts[v].modes.index(mode)
    cells = holder.written(tucker=model.parts[v].tucker)
    if cells is not None:
        _add_written(models, v, holder, cells, position, scale, sums)
        return
    walk = partial(_walk, v=v, position=position, p=p)
    nothing = np.empty((0, model.rank))
    if model is other and not holder.closed:
        walk(model, least, site=holder.entries, scale=scale, sums=sums)
        return
    walk(model, least, site=holder.entries, scale=scale, sums=Sums(sums.numerator, nothing))
    _add_below(other, v, holder, position, scale, sums.denominator)


def _add_below(
    model: CoupledModel, v: int, holder: RelationSite, position: int, scale: float, total: Array
) -> None:
    """Add a part's denominator for the mode at a position."""
    walk = partial(_walk, model, SMALLEST, v=v, position=position, p=holder.divergence)
    only_below = Sums(np.empty((0, model.rank)), total)
    if not holder.closed:
        walk(site=holder.entries, scale=scale, sums=only_below)
        return
    total += scale * _over_all_cells(model, v, position, holder.divergence)
    if holder.unknown is not None:
        walk(site=holder.unknown, scale=-scale, sums=only_below)


def _walk(
    model: CoupledModel,
    least: float,
    *,
    v: int,
    site: Site,
    position: int,
    p: float,
    scale: float,
    sums: Sums,
) -> None:
    """Add the entries of a site to sums for the mode at a position of the part; empty sums are not."""
    add_entries(model.arrays(v), position, site.by_mode(position), p, scale, least, sums, site.threads)


def core_sums(given: CoupledModel | Models, site: CoupledSite, v: int, scale: float) -> Sums:
    """Sums for the core of a Tucker part."""
    model, other, least = _pair(given)
    holder, size = explained(model, v, site.parts[v]), model.cores[v].shape[0]
    p, sums, nothing = holder.divergence, Sums(np.zeros(size), np.zeros(size)), np.empty(0)
    cells = holder.written(tucker=True)
    if cells is not None:
        _add_written(_pair(given), v, holder, cells, None, scale, sums)
        return sums
    if model is other and not holder.closed:
        _walk_core(model, least, v, holder.entries, p, scale, sums)
        return sums
    _walk_core(model, least, v, holder.entries, p, scale, Sums(sums.numerator, nothing))
    _add_below_core(other, v, holder, scale, sums.denominator)
    return sums


def _add_below_core(
    model: CoupledModel, v: int, holder: RelationSite, scale: float, total: Array
) -> None:
    p, only_below = holder.divergence, Sums(np.empty(0), total)
    if not holder.closed:
        _walk_core(model, SMALLEST, v, holder.entries, p, scale, only_below)
        return
    total += scale * _over_all_cells(model, v, None, p)
    if holder.unknown is not None:
        _walk_core(model, SMALLEST, v, holder.unknown, p, -scale, only_below)


def exposures(model: CoupledModel, site: CoupledSite, block: Block) -> Array:
    """The denominator alone, of a block: for p = 1 the sum of designs over observed cells."""
    if block.mode is None:
        total = np.zeros(model.cores[block.part].shape)
        _add_below_core(model, block.part, site.parts[block.part], 1.0, total)
        return total
    total = np.zeros((model.sizes[block.mode], model.rank))
    for v, (part, holder) in enumerate(zip(model.parts, site.parts, strict=True)):
        if block.mode in part.modes:
            _add_below(model, v, holder, part.modes.index(block.mode), 1.0, total)
    return total


def gains(model: CoupledModel, moved: CoupledModel, site: CoupledSite, block: Block) -> Array:
    """What a model with other values of a block gains in log-likelihood (p = 1), for each of its rows.

    Entries count without their rates: these are in what rows are exposed to, like those of empty cells.
    """
    apart = values_of(moved, block) - values_of(model, block)
    found: Array = -(exposures(model, site, block) * apart).reshape(_rows(model, block), -1).sum(axis=1)
    for v, (part, holder) in enumerate(zip(model.parts, site.parts, strict=True)):
        if block.part == v or block.mode in part.modes:
            after, before = (_without_rates(each, v, holder) for each in (moved, model))
            at = 0 if block.mode is None else part.modes.index(block.mode)
            cells = holder.entries.tensor.coordinates[at]
            rows = np.zeros_like(cells) if block.mode is None else cells
            found += np.bincount(rows, after - before, found.shape[0])
    return found


def _rows(model: CoupledModel, block: Block) -> int:
    """Rows of a block; a core is one."""
    return 1 if block.mode is None else model.sizes[block.mode]


def _without_rates(model: CoupledModel, v: int, holder: RelationSite) -> Array:
    """log P(z | v) + v of a part's entries."""
    rates, threads = _values_at(model, v, holder.entries), holder.entries.threads
    logs: Array = expected_counts(holder.counts, rates, threads, with_logs=True)[1] + rates
    return logs


def _walk_core(
    model: CoupledModel, least: float, v: int, site: Site, p: float, scale: float, sums: Sums
) -> None:
    cells, values = site.tensor.coordinates, site.tensor.values
    add_core_entries(model.arrays(v), cells, values, p, scale, least, sums, site.threads)


# -- relations that are written out ---------------------------------------------------------------


def _add_written(
    models: Models,
    v: int,
    holder: RelationSite,
    cells: WrittenOut,
    position: int | None,
    scale: float,
    sums: Sums,
) -> None:
    """Add the sums for the mode at a position, or those for the core."""
    p, (model, other, least) = holder.divergence, models
    of_all = cells.known is None and p in (0.0, 1.0)
    together = model is other and not of_all
    above = Written(model, v, cells, p, least, holder.entries.threads)
    found = above.sums(position, numerator=True, denominator=together)
    sums.numerator[:] += scale * found[0]
    if of_all:
        found = [_over_all_cells(other, v, position, p)]
    elif not together:
        below = above._replace(model=other, least=SMALLEST)
        found = below.sums(position, numerator=False, denominator=True)
    sums.denominator[:] += scale * found[-1]


def _over_all_cells(model: CoupledModel, v: int, position: int | None, p: float) -> Array:
    """The denominator where every cell is observed, for p = 0 and 1."""
    if position is None:
        return model.core_sum(v) if p == 1 else model.core_moment(v)
    mode = model.parts[v].modes[position]
    if p == 1:
        return model.design_sum(v, mode)
    whole: Array = model.factor(mode) @ model.design_moment(v, mode)
    return whole


# -- the divergence -------------------------------------------------------------------------------


def divergence(model: CoupledModel, site: CoupledSite, v: int) -> float:
    """Sum of the beta divergences of a part's observed cells (Eq. 2.4), or of -log P(z | v)."""
    holder, p = site.parts[v], site.parts[v].divergence
    if holder.noisy is not None:
        return -float(log_probabilities(model, v, holder).sum())
    cells = holder.written(tucker=model.parts[v].tucker)
    if cells is not None:
        return Written(model, v, cells, p, SMALLEST, holder.entries.threads).divergence()
    values = _values_at(model, v, holder.entries)
    found = float(beta_divergence(holder.entries.tensor.values, values, p).sum())
    if not holder.closed:
        return found
    # All cells as zeros, less those that are none.
    found += (model.total(v) if p == 1 else model.total_square(v) / 2) - _of_zeros(values, p)
    if holder.unknown is not None:
        found -= _of_zeros(_values_at(model, v, holder.unknown), p)
    return found


def _values_at(model: CoupledModel, v: int, site: Site) -> Array:
    return model.predict(v, site.tensor.coordinates[: model.parts[v].order], threads=site.threads)


def _of_zeros(values: Array, p: float) -> float:
    """Sum of the divergences of values from zeros, for p = 0 and 1."""
    wide = values.astype(np.float64, copy=False)
    return float(wide.sum() if p == 1 else wide @ wide / 2)
