"""Sums by products of matrices are those that visit every cell."""

import numpy as np
import pytest
from made import tensor

import sfumato as sf
from sfumato.sites import coupled as coupled_layout
from sfumato.sites.coupled import CoupledSite, write_out
from sfumato.solvers.coupled import written_sums
from sfumato.solvers.coupled.shape import CoupledShape, positive_start
from sfumato.solvers.coupled.sums import Models, core_sums, divergence, mode_sums

RANK = 3
SCALES = np.array([0.7, 1.3])


def relations_of(p, cells, structure, shape=(7, 9, 5)):
    """A tensor and a matrix whose modes are all shared, so that it has weights too."""
    generator = np.random.default_rng(4)
    values, matrix = 1.0 + generator.poisson(1.0, shape), 1.0 + generator.poisson(1.0, shape[::2])
    kept = np.ones(shape, bool) if cells == "complete" else generator.random(shape) < 0.6
    absent = "missing"
    if cells == "zero":
        values[~kept], values[1], absent = np.nan, 0.0, "zero"
        kept = values != 0
    x, y = tensor("abc", values, kept), tensor("ac", matrix, matrix > 0)
    return sf.Relations({"x": x, "y": y}, structure={"x": structure}, divergence=p, absent=absent)


def all_sums(relations, dtype=np.float64, threads=2):
    shape = CoupledShape.of(relations, RANK, dtype)
    model, other = positive_start(shape, 1), positive_start(shape, 2)
    site, found = CoupledSite(relations, threads, np.dtype(dtype)), []
    bayesian = relations["x"].divergence == 1
    for given in [model, Models(model, other, 1e-300)] if bayesian else [model]:
        for mode in range(len(shape.modes)):
            found += mode_sums(given, site, mode, SCALES)
        if relations["x"].structure == "tucker":
            found += core_sums(given, site, 0, 0.7)
    return [*found, *(np.array(divergence(model, site, v)) for v in range(2))]


def write_everything(monkeypatch, part=0.0):
    monkeypatch.setattr(coupled_layout, "_WORTH_WRITING", 0)
    monkeypatch.setattr(coupled_layout, "_PART_WRITING_CP", part)
    monkeypatch.setattr(coupled_layout, "_PART_WRITING_TUCKER", part)


@pytest.mark.parametrize("structure", ["cp", "tucker"])
@pytest.mark.parametrize("cells", ["complete", "missing", "zero"])
@pytest.mark.parametrize("p", [0.0, 0.5, 1.0, 1.5, 2.0, 2.5])
def test_written_out_or_visited(p, cells, structure, monkeypatch):
    if cells == "zero" and p >= 2:
        pytest.skip("zeros have no divergence there")
    relations = relations_of(p, cells, structure)
    visited = all_sums(relations)
    write_everything(monkeypatch)
    monkeypatch.setattr(written_sums, "_COLUMNS", 8)  # tiles that do not divide the cells
    monkeypatch.setattr(written_sums, "_CELLS", 24)
    for threads in (1, 2, 20):  # more threads than rows, too
        for mine, theirs in zip(all_sums(relations, threads=threads), visited, strict=True):
            np.testing.assert_allclose(mine, theirs, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("p", [0.0, 1.0, 1.5])
def test_single_precision(p, monkeypatch):
    relations = relations_of(p, "missing", "cp", (40, 9, 30))
    exact = all_sums(relations)
    write_everything(monkeypatch)
    for mine, theirs in zip(all_sums(relations, np.float32), exact, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-5)


@pytest.mark.parametrize("solver", ["multiplicative", "variational"])
@pytest.mark.parametrize("structure", ["cp", "tucker"])
def test_fits_are_the_same(solver, structure, monkeypatch):
    relations = relations_of(1.0, "zero", structure)
    visited = sf.Coupled(RANK, solver).fit(relations)
    write_everything(monkeypatch)
    written = sf.Coupled(RANK, solver).fit(relations)
    np.testing.assert_allclose(
        [info.objective for info in written.history_], [info.objective for info in visited.history_]
    )
    cells = relations["x"].tensor
    np.testing.assert_allclose(written.predict("x", cells), visited.predict("x", cells), rtol=1e-6)


def test_cells_stand_where_they_belong():
    values = np.arange(1.0, 31.0).reshape(2, 5, 3)
    kept = values != 8
    relations = sf.Relations({"x": tensor("abc", values, kept)})
    written = write_out(CoupledSite(relations, 1, np.dtype(float)).parts[0])
    assert written.positions == (1, 2, 0)
    expected = np.where(kept, values, 0.0).transpose(1, 2, 0).reshape(5, 6)
    np.testing.assert_array_equal(written.values, expected)
    np.testing.assert_array_equal(written.known, kept.transpose(1, 2, 0).reshape(5, 6))


@pytest.mark.parametrize(
    ("shape", "part", "cp", "tucker"),
    [
        ((30, 30, 20), 1.0, True, True),
        ((30, 30, 20), 0.7, False, True),
        ((60, 60, 40), 0.1, False, False),
        ((9, 9, 9), 1.0, False, False),  # too few to be worth it
    ],
)
def test_cells_are_written_out_where_that_is_faster(shape, part, cp, tucker):
    kept = np.random.default_rng(0).random(shape) < part
    relations = sf.Relations({"x": tensor("abc", np.ones(shape), kept)})
    holder = CoupledSite(relations, 1, np.dtype(float)).parts[0]
    assert (holder.written(tucker=False) is not None) == cp
    assert (holder.written(tucker=True) is not None) == tucker
    assert holder.written(tucker=True) is holder.written(tucker=True)


def test_unknown_cells_among_zeros_count_as_visits():
    """Each would have to be taken off the sums over all cells."""
    values = np.zeros((30, 30, 20))
    values[0, 0, 0] = 1
    unknown = np.random.default_rng(0).random(values.shape) < 0.6
    values[unknown] = np.nan
    few = sf.Relations({"x": tensor("abc", values, values != 0)}, absent="zero")
    assert CoupledSite(few, 1, np.dtype(float)).parts[0].written(tucker=True) is not None
    none = sf.Relations({"x": tensor("abc", values, values == 1)}, absent="zero")
    assert CoupledSite(none, 1, np.dtype(float)).parts[0].written(tucker=True) is None
