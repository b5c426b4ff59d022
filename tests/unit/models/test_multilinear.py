"""CP and Tucker models: values three ways, conversions, degrees of freedom, refusals."""

from dataclasses import replace

import numpy as np
import pytest

from sfumato.errors import SettingError
from sfumato.models.multilinear import CPModel, TuckerModel, check_ranks

SHAPES = {2: (6, 5), 3: (6, 5, 4), 4: (5, 4, 3, 4), 5: (4, 3, 3, 3, 3)}
RANKS = {2: (3, 2), 3: (3, 2, 4), 4: (3, 1, 2, 2), 5: (2, 3, 1, 2, 2)}
TOLERANCE = {np.dtype(np.float32): 2e-5, np.dtype(np.float64): 1e-13}


def factors(shape, ranks, rng, dtype):
    return [rng.normal(size=(n, r)).astype(dtype) for n, r in zip(shape, ranks, strict=True)]


def cp(order=3, dtype=np.float64, rank=3, seed=0, biases=True, shape=None):
    rng = np.random.default_rng(seed)
    shape = shape or SHAPES[order]
    made = [rng.normal(size=n).astype(dtype) for n in shape] if biases else None
    parts = factors(shape, (rank,) * len(shape), rng, dtype)
    return CPModel.from_factors(parts, mean=1.5, biases=made)


def tucker(order=3, dtype=np.float64, ranks=None, seed=0, biases=True, shape=None):
    rng = np.random.default_rng(seed)
    shape, ranks = shape or SHAPES[order], ranks or RANKS[order]
    made = [rng.normal(size=n).astype(dtype) for n in shape] if biases else None
    core = rng.normal(size=ranks).astype(dtype)
    return TuckerModel.from_factors(factors(shape, ranks, rng, dtype), core, mean=1.5, biases=made)


def by_definition(model):
    """The formula of the module's head, cell by cell of the core."""
    dense = np.full(model.shape, model.mean)
    for q in np.ndindex(*model.ranks):
        term = np.float64(model.core[q])
        for m in range(model.order):
            term = np.multiply.outer(term, model.factors[m][:, q[m]].astype(np.float64))
        dense += term
    for m, bias in enumerate(model.mode_biases):
        dense += bias.reshape([-1 if k == m else 1 for k in range(model.order)])
    return dense


def all_cells(shape):
    return np.indices(shape).reshape(len(shape), -1)


CASES = [(make, order, np.float64) for make in (cp, tucker) for order in (2, 3, 4, 5)]
CASES += [(cp, 2, np.float32), (cp, 3, np.float32), (tucker, 3, np.float32)]


@pytest.mark.parametrize(("make", "order", "dtype"), CASES)
def test_kernel_reference_and_dense_agree_with_the_definition(make, order, dtype):
    model = make(order, dtype)
    truth, cells = by_definition(model), all_cells(model.shape)
    near = TOLERANCE[model.dtype] * np.abs(truth).max()
    for threads in (1, 2):
        values = model.predict(cells, threads=threads)
        assert values.dtype == dtype
        np.testing.assert_allclose(values.reshape(model.shape), truth, rtol=0, atol=near)
    np.testing.assert_allclose(model.predict_reference(cells), truth.ravel(), rtol=0, atol=near)
    np.testing.assert_allclose(model.to_dense(), truth, rtol=0, atol=near)
    assert model.to_dense().dtype == dtype


@pytest.mark.parametrize(("rank", "dtype"), [(8, np.float64), (9, np.float64), (17, np.float32)])
def test_ranks_at_and_past_a_whole_line(rank, dtype):
    model = cp(3, dtype, rank, shape=(20, 19, 18))
    truth = by_definition(model)
    near = 10 * TOLERANCE[model.dtype] * np.abs(truth).max()
    values = model.predict(all_cells(model.shape))
    np.testing.assert_allclose(values, truth.ravel(), rtol=0, atol=near)
    padding = model.rows[:, rank:]
    assert padding.shape[1] == -rank % (8 if dtype == np.float64 else 16)
    assert not padding.any()


@pytest.mark.parametrize("ranks", [(1, 1, 1), (3, 1, 1), (1, 3, 1), (1, 1, 3), (2, 1, 2)])
def test_tucker_with_modes_of_rank_one(ranks):
    model = tucker(ranks=ranks)
    values = model.predict(all_cells(model.shape)).reshape(model.shape)
    np.testing.assert_allclose(values, by_definition(model), rtol=0, atol=1e-12)


def test_predicting_with_more_threads_than_entries_and_none_at_all():
    model = cp()
    one = model.predict(np.array([[1], [2], [3]]), threads=2)
    np.testing.assert_allclose(one, by_definition(model)[1, 2, 3], rtol=1e-13)
    assert model.predict(np.empty((3, 0), np.int32)).shape == (0,)


def test_conversions_keep_the_values():
    model = cp()
    same = model.to_tucker()
    assert isinstance(same, TuckerModel)
    np.testing.assert_allclose(same.to_dense(), model.to_dense(), rtol=1e-12)
    scaled = TuckerModel.from_factors(
        same.factors, 3 * same.core, mean=same.mean, biases=same.mode_biases
    )
    back = scaled.to_cp()
    assert isinstance(back, CPModel)
    np.testing.assert_allclose(back.to_dense(), scaled.to_dense(), rtol=1e-12)
    with pytest.raises(SettingError, match="superdiagonal"):
        tucker(ranks=(2, 2, 2)).to_cp()
    with pytest.raises(SettingError, match="superdiagonal"):
        tucker(ranks=(3, 2, 2)).to_cp()


def test_normalised_cp_keeps_values_and_settles_scale_order_and_sign():
    model = cp()
    model.factors[0][:, 1] *= 100
    normal = model.normalised()
    np.testing.assert_allclose(normal.to_dense(), model.to_dense(), rtol=1e-11, atol=1e-11)
    lengths = np.array([np.linalg.norm(f, axis=0) for f in normal.factors])
    np.testing.assert_allclose(lengths, np.broadcast_to(lengths[0], lengths.shape), rtol=1e-12)
    assert (np.diff(normal.weights) <= 0).all()
    np.testing.assert_allclose(np.sort(normal.weights), np.sort(model.weights), rtol=1e-12)
    assert all((f.sum(axis=0) > 0).all() for f in normal.factors[:-1])
    model.factors[2][:, 0] = 0  # a component that has died
    np.testing.assert_allclose(model.normalised().to_dense(), model.to_dense(), rtol=0, atol=1e-10)


def test_normalised_tucker_has_orthonormal_columns():
    model = tucker()
    normal = model.normalised()
    np.testing.assert_allclose(normal.to_dense(), model.to_dense(), rtol=1e-11, atol=1e-12)
    for f in normal.factors:
        np.testing.assert_allclose(f.T @ f, np.eye(f.shape[1]), atol=1e-13)


def jacobian_rank(model, with_biases):
    """Dimension of the set of tensors that the parameters reach, by central differences."""
    parts = [*model.factors, model.free_core, *(model.mode_biases if with_biases else ())]
    columns, h = [np.ones(np.prod(model.shape))], 1e-5  # the mean
    for part in parts:
        for at in np.ndindex(*part.shape):
            kept, ends = part[at], []
            for move in (h, -h):
                part[at] = kept + move
                ends.append(model.to_dense().ravel())
            part[at] = kept
            columns.append((ends[0] - ends[1]) / (2 * h))
    return np.linalg.matrix_rank(np.stack(columns), tol=1e-6)


FREEDOM = [
    cp(shape=(5, 4), rank=2, biases=False),
    cp(shape=(6, 7), rank=3, biases=False),
    cp(shape=(4, 4), rank=4, biases=False),  # everything can be reached
    cp(shape=(5, 4, 4), rank=2, biases=False),
    cp(shape=(4, 3, 3, 3), rank=2, biases=False),
    tucker(shape=(5, 4), ranks=(2, 2), biases=False),
    tucker(shape=(6, 5), ranks=(3, 2), biases=False),  # a 3 x 2 core has rank 2
    tucker(shape=(5, 4, 4), ranks=(2, 3, 2), biases=False),
    tucker(shape=(6, 4, 4), ranks=(5, 2, 2), biases=False),  # 5 > 2 * 2
    cp(shape=(6, 5), rank=2),
    cp(shape=(5, 4, 4), rank=2),
    tucker(shape=(5, 4, 4), ranks=(2, 2, 2)),
]


@pytest.mark.parametrize("model", FREEDOM, ids=lambda m: f"{type(m).__name__}{m.shape}{m.ranks}")
def test_degrees_of_freedom_are_the_rank_of_the_jacobian(model):
    assert model.degrees_of_freedom == jacobian_rank(model, bool(model.biases.any()))


def gradient(model, part, cells, h=1e-5):
    """Derivatives of the values at some cells by each number of a part, one row per cell."""
    flat = part.reshape(-1) if part.flags.c_contiguous else None
    columns = []
    for at in np.ndindex(*part.shape):
        kept, ends = part[at], []
        for move in (h, -h):
            part[at] = kept + move
            ends.append(model.predict(cells))
        part[at] = kept
        columns.append((ends[0] - ends[1]) / (2 * h))
    assert flat is None or np.shares_memory(flat, part)
    return np.stack(columns, axis=1)


@pytest.mark.parametrize(("make", "order"), [(m, o) for m in (cp, tucker) for o in (2, 3, 4)])
def test_designs_and_kronecker_products_are_derivatives(make, order):
    model = make(order)
    cells = all_cells(model.shape)[:, ::7]
    for m in range(order):
        by_row = gradient(model, model.factors[m], cells).reshape(-1, *model.factors[m].shape)
        own = by_row[np.arange(cells.shape[1]), cells[m]]
        np.testing.assert_allclose(model.design(m, cells), own, rtol=1e-7, atol=1e-7)
        by_row[np.arange(cells.shape[1]), cells[m]] = 0
        assert not by_row.any()  # another level's row has no part in the value
    if make is tucker:
        by_core = gradient(model, model.free_core, cells)
        np.testing.assert_allclose(model.kronecker(cells), by_core, rtol=1e-7, atol=1e-7)
    else:
        assert model.kronecker(cells).shape == (cells.shape[1], 0)
        assert model.free_core.size == 0


def test_block_and_along():
    for model in (cp(), tucker()):
        dense = model.to_dense()
        part = model.block([[4, 0], slice(1, 4), [3]])
        np.testing.assert_allclose(part, dense[np.ix_([4, 0], [1, 2, 3], [3])], rtol=1e-12)
        np.testing.assert_allclose(model.along(1, [2, 0, 3]), dense[2, :, 3], rtol=1e-12)
        assert model.block([[], slice(None), slice(None)]).shape == (0, 5, 4)


def test_a_dense_block_of_cp_never_needs_the_core():
    # The core of this model would have 200^5 entries.
    model = CPModel.zeros((200,) * 5, 200)
    model.rows[:, 0] = 1
    assert model.block([[1], [2], [3], [4], [5, 6]]).tolist() == [[[[[1.0, 1.0]]]]]


def test_large_dense_blocks_are_refused():
    model = CPModel.zeros((1001, 1000, 101), 1)
    with pytest.raises(SettingError, match=r"101,101,000 cells is too large"):
        model.to_dense()
    assert model.block([slice(2)] * 3).shape == (2, 2, 2)


def test_copies_share_no_memory_and_views_do():
    for model in (cp(), tucker()):
        other = model.copy()
        before = model.to_dense()
        other.rows[:] = 0
        other.biases[:] = 0
        other.free_core[:] = 0
        np.testing.assert_array_equal(model.to_dense(), before)
        model.factors[1][0, 0] = 42
        assert model.rows[model.offsets[1], 0] == 42
        assert model.with_mean(3).mean == 3
    alone = model.with_own_core()
    alone.free_core[:] = 0
    assert model.free_core.any()
    assert np.shares_memory(alone.rows, model.rows)


@pytest.mark.parametrize(
    ("cells", "message"),
    [
        (np.zeros((2, 4), int), r"shape \(3, entries\), got \(2, 4\)"),
        (np.zeros(3, int), r"shape \(3, entries\)"),
        (np.array([[0], [5], [0]]), "level of mode 1 is outside 0 to 4"),
        (np.array([[-1], [0], [0]]), "level of mode 0 is outside 0 to 5"),
        (np.array([[2**32], [0], [0]]), "level of mode 0 is outside 0 to 5"),
        (np.array([[0.5], [0], [0]]), "whole numbers, got float64"),
    ],
)
def test_wrong_coordinates_are_refused(cells, message):
    with pytest.raises(SettingError, match=message):
        cp().predict(cells)


def test_impossible_ranks_and_parts_are_refused():
    with pytest.raises(SettingError, match="rank 5 is larger than mode 2 with its 4 levels"):
        TuckerModel.zeros((6, 5, 4), (5, 5, 5))
    assert CPModel.zeros((6, 5, 4), 5).ranks == (5, 5, 5)  # more components than levels
    with pytest.raises(SettingError, match="3 modes need 3 ranks, got 2"):
        TuckerModel.zeros((6, 5, 4), (2, 2))
    for rank in (0, -1, 1.5, 2.0):
        with pytest.raises(SettingError, match="whole number from 1 on"):
            check_ranks((6, 5), (2, rank))
    check_ranks((6, 5), (np.int64(2), 5))
    with pytest.raises(SettingError, match="does not fit factors"):
        TuckerModel.from_factors([np.ones((3, 2)), np.ones((4, 2))], np.ones((2, 3)))
    with pytest.raises(SettingError, match="equal columns"):
        CPModel.from_factors([np.ones((3, 2)), np.ones((4, 1))])


# -- moments and turns -------------------------------------------------------------------------


@pytest.mark.parametrize("make", [cp, tucker])
@pytest.mark.parametrize("order", [2, 3, 4])
def test_moments_of_designs_are_averages_over_independent_rows(make, order):
    model, rng = make(order), np.random.default_rng(1)
    weights = [rng.uniform(0.1, 1, n) for n in model.shape]
    moments = [
        np.einsum("n,nr,ns->rs", w / w.sum(), f, f) for w, f in zip(weights, model.factors, strict=True)
    ]
    cells = all_cells(model.shape)
    chance = np.prod([w[levels] / w.sum() for w, levels in zip(weights, cells, strict=True)], axis=0)
    for mode in range(order):
        designs = model.design(mode, cells)
        average = np.einsum("e,er,es->rs", chance, designs, designs)
        unused = [*moments[:mode], None, *moments[mode + 1 :]]
        np.testing.assert_allclose(model.design_moment(mode, unused), average, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("make", [cp, tucker])
@pytest.mark.parametrize("order", [2, 3, 4])
def test_a_turned_model_has_the_same_values(make, order):
    model, rng = make(order), np.random.default_rng(2)
    for mode, rank in enumerate(model.ranks):
        matrix = rng.normal(size=(rank, rank)) + 2 * np.eye(rank)
        if make is cp and order > 2:
            matrix = np.diag(rng.uniform(0.5, 2, rank))
        turned = model.turned(mode, matrix)
        np.testing.assert_allclose(turned.to_dense(), model.to_dense(), rtol=1e-9, atol=1e-9)
        np.testing.assert_allclose(turned.factors[mode], model.factors[mode] @ matrix, rtol=1e-12)
        assert not np.shares_memory(turned.rows, model.rows)


@pytest.mark.parametrize(
    "wrong",
    [
        {"rows": np.zeros((6, 8))},
        {"rows": np.zeros((7, 1))},
        {"biases": np.zeros(6)},
        {"biases": np.zeros((7, 1))},
        {"shape": (4, 4)},
    ],
    ids=str,
)
def test_arrays_that_do_not_fit_the_shape_are_refused(wrong):
    """Kernels do not look: they would read beyond the array."""
    with pytest.raises(SettingError, match="are not those of a model"):
        replace(CPModel.zeros((4, 3), 2), **wrong)
