"""What kernels compute at one entry, against NumPy."""

import numpy as np
import pytest

from sfumato.kernels.numba.compiler import kernel
from sfumato.kernels.numba.entrywise import (
    add_kronecker,
    design,
    evaluate,
    locate,
    row_width,
    step_core,
    workspace,
)
from sfumato.kernels.numba.moments import design_moments, moments_workspace
from sfumato.kernels.numba.simd import aligned_zeros
from sfumato.models.multilinear import CPModel, TuckerModel

SHAPE, CELL = (4, 3, 5), np.array([[2], [1], [4]], np.int32)


@kernel
def at_entry(p, variances, core_variances, cells, one, all_at_once, spreads, total, out):
    index, work = np.empty(len(p.offsets), np.int64), workspace(p)
    locate(p, cells, 0, index)
    width = row_width(p)
    for m in range(len(p.offsets)):
        design(p, index, m, work, one, m * width)
        again, spread = np.empty(width), np.zeros(width)
        room = moments_workspace(p, core_variances, m)
        design_moments(p, variances, core_variances, index, m, room, again, 0, spread)
        spreads[m * width : (m + 1) * width] = spread
    out[0] = evaluate(p, index, work)
    for k in range(all_at_once.shape[0]):
        all_at_once[k] = work[k]
    add_kronecker(p, work, 2.0, total)
    step_core(p, work, 0.5, 3.0)


def models(rng):
    cp = CPModel.from_factors([rng.normal(size=(n, 3)) for n in SHAPE])
    ranks = (3, 1, 4)
    tucker = TuckerModel.from_factors(
        [rng.normal(size=(n, r)) for n, r in zip(SHAPE, ranks, strict=True)], rng.normal(size=ranks)
    )
    return {"cp": cp, "tucker": tucker}


def computed(model, variances, core_variances):
    size, core = 3 * model.rows.shape[1], model.free_core.size
    one, both, spreads = np.full(size, 7.0), np.zeros(size), np.full(size, 7.0)
    total, out = np.ones(core), np.zeros(1)
    at_entry(model.arrays, variances, core_variances, CELL, one, both, spreads, total, out)
    rows = [
        slice(m * model.rows.shape[1], m * model.rows.shape[1] + r) for m, r in enumerate(model.ranks)
    ]
    designs = [(one[here], both[here], spreads[here]) for here in rows]
    return designs, both, total, out[0]


def variances_of(model, rng, scale=1.0):
    variances = aligned_zeros(model.rows.shape, model.dtype)
    for m in range(model.order):
        here = variances[model.span(m), : model.ranks[m]]
        here[:] = scale * rng.uniform(0.1, 2, here.shape)
    return variances, scale * rng.uniform(0.1, 2, model.free_core.shape)


@pytest.mark.parametrize("kind", ["cp", "tucker"])
def test_designs_value_and_core_step(kind):
    rng = np.random.default_rng(3)
    model = models(rng)[kind]
    before, core = model.to_dense(), model.free_core.copy()
    kronecker = model.kronecker(CELL)[0]
    expected = [model.design(m, CELL)[0] for m in range(3)]
    designs, work, total, value = computed(model, *variances_of(model, rng))
    for m, (one, both, _) in enumerate(designs):
        np.testing.assert_allclose(one, expected[m], rtol=1e-13)
        np.testing.assert_allclose(both, expected[m], rtol=1e-13)
        # SGD adds whole lines of this to rows: what lies past the rank has to be zero.
        width = model.rows.shape[1]
        assert not work[m * width + model.ranks[m] : (m + 1) * width].any()
    np.testing.assert_allclose(value, before[tuple(CELL[:, 0])], rtol=1e-13)
    np.testing.assert_allclose(total, 1 + 2 * kronecker, rtol=1e-13)
    np.testing.assert_allclose(model.free_core, 0.5 * core + 3 * kronecker, rtol=1e-13)


def test_variance_of_a_cp_design_is_exact():
    rng = np.random.default_rng(4)
    model = models(rng)["cp"]
    variances, none = variances_of(model, rng)
    designs = computed(model, variances, none)[0]
    rows = model.offsets + CELL[:, 0]
    means, spreads = model.rows[rows, :3], variances[rows, :3]
    for m, (_, _, variance) in enumerate(designs):
        a, b = (k for k in range(3) if k != m)
        # Var(xy) = Var x Var y + Var x (E y)^2 + Var y (E x)^2 for independent x and y.
        exact = spreads[a] * spreads[b] + spreads[a] * means[b] ** 2 + spreads[b] * means[a] ** 2
        np.testing.assert_allclose(variance, exact, rtol=1e-11)


def test_variance_of_a_tucker_design_is_that_of_its_linearisation():
    rng = np.random.default_rng(5)
    model = models(rng)["tucker"]
    variances, core_variances = variances_of(model, rng)
    reference = model.copy()
    designs = computed(model, variances, core_variances)[0]
    for m, (_, _, variance) in enumerate(designs):
        expected = np.zeros(reference.ranks[m])
        parts = [
            (reference.factors[k][CELL[k, 0]], variances[reference.offsets[k] + CELL[k, 0]])
            for k in range(3)
        ]
        for part, spread in [*parts, (reference.free_core, core_variances)]:
            for r in range(part.shape[0]):
                kept, ends = part[r], []
                for move in (1e-5, -1e-5):
                    part[r] = kept + move
                    ends.append(reference.design(m, CELL)[0])
                part[r] = kept
                expected += ((ends[0] - ends[1]) / 2e-5) ** 2 * spread[r]
        np.testing.assert_allclose(variance, expected, rtol=1e-7)


def test_they_say_so_outside_of_kernels():
    with pytest.raises(TypeError, match="compiled kernels only"):
        workspace(None)
