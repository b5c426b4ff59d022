"""Every kernel does what its readable twin does, whatever the shape, the rank and the entries."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sfumato.data.tensor import Mode, SparseTensor
from sfumato.kernels.numba.normal import NormalEquations, Ridge, normal_equations, solve_rows
from sfumato.kernels.numba.residuals import predictions
from sfumato.kernels.numba.sgd import Penalty, run_pass
from sfumato.kernels.numba.simd import aligned_zeros
from sfumato.kernels.reference.minibatch import batches_reference
from sfumato.kernels.reference.normal import normal_equations_reference, solve_rows_reference
from sfumato.kernels.reference.sequential import visit_in_turn_reference
from sfumato.kernels.reference.sgd import visit_reference
from sfumato.models.multilinear import CPModel, TuckerModel
from sfumato.models.shape import Shape
from sfumato.sites import memory as layout
from sfumato.sites.memory import Site, WeightedSite, make_grid
from sfumato.solvers.gradient.minibatch import MinibatchSGD, batch_edges
from sfumato.solvers.gradient.passes import PassQuery
from sfumato.solvers.gradient.sequential import SequentialSGD
from sfumato.solvers.least_squares.als import _uncertainty
from sfumato.solvers.least_squares.core import core_equations
from sfumato.solvers.least_squares.questions import residuals

examples = settings(max_examples=12, deadline=None, database=None, derandomize=True)
# A kernel is compiled anew for each of these, which takes seconds.
KINDS = [("cp", 2, np.float64), ("cp", 3, np.float64), ("cp", 3, np.float32), ("tucker", 3, np.float64)]
SEQUENTIAL = [KINDS[1], KINDS[3]]
NORMAL = [*KINDS, ("cp", 4, np.float64)]
TOLERANCE = {np.float32: 2e-4, np.float64: 1e-10}


@st.composite
def problems(draw, kind, order, dtype, most=60):
    """A model and entries; ranks reach past one line of a float64 row."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    shape = draw(st.lists(st.integers(2, 12), min_size=order, max_size=order))
    highest = min(shape)
    if kind == "cp":
        rank = draw(st.integers(1, min(10, highest)))
        model = CPModel.zeros(shape, rank, dtype)
    else:
        ranks = [draw(st.integers(1, min(4, n))) for n in shape]
        model = TuckerModel.zeros(shape, ranks, dtype)
    for factor in model.factors:
        factor[:] = 0.7 * rng.normal(size=factor.shape)
    model.free_core[:] = 0.7 * rng.normal(size=model.free_core.shape)
    if draw(st.booleans()):
        model.biases[:] = 0.3 * rng.normal(size=model.biases.shape)
    n = draw(st.integers(1, most))
    cells = np.stack([rng.integers(0, size, n) for size in shape])
    modes = tuple(Mode(f"m{i}", size) for i, size in enumerate(shape))
    return model.with_mean(0.4), SparseTensor(cells, rng.normal(size=n).astype(dtype), modes), rng


def over(kinds):
    ids = [f"{kind}-{order}-{np.dtype(dtype)}" for kind, order, dtype in kinds]
    return pytest.mark.parametrize("kind", kinds, ids=ids)


def same(actual, expected, dtype, scale=None):
    expected = np.asarray(expected, np.float64)
    scale = max(1.0, np.abs(expected).max(initial=0)) if scale is None else scale
    np.testing.assert_allclose(actual, expected, rtol=0, atol=TOLERANCE[dtype] * scale)


def same_model(fast, slow, dtype):
    same(fast.rows, slow.rows, dtype)  # the padding too
    same(fast.biases, slow.biases, dtype)
    same(fast.free_core, slow.free_core, dtype)


# -- alternating least squares ------------------------------------------------------------------


def maybe_weighted(data, tensor):
    """The tensor's site, or one with weights: some of them zero."""
    site = Site(tensor, 1)
    if not data.draw(st.booleans()):
        return site
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    values, weights = rng.normal(size=tensor.n_entries), rng.uniform(-0.5, 3, tensor.n_entries)
    dtype = tensor.values.dtype
    return WeightedSite(site, values.astype(dtype), np.maximum(weights, 0).astype(dtype))


@over(NORMAL)
@examples
@given(st.data())
def test_normal_equations(kind, data):
    dtype = kind[2]
    # More than 64 entries of a level: designs are gathered 64 at a time.
    model, tensor, _ = data.draw(problems(*kind, most=300))
    mode = data.draw(st.integers(0, model.order - 1))
    high = data.draw(st.integers(1, model.shape[mode]))
    low = data.draw(st.integers(0, high - 1))
    entries = maybe_weighted(data, tensor).by_mode(mode)
    certain = _uncertainty(model, False)
    sums = normal_equations(model, certain, entries, mode, low, high, 1)
    slow = normal_equations_reference(model, entries, mode, low, high)
    same(np.triu(sums.gram), np.triu(slow.gram), dtype)
    for name in ("rhs", "design_sum", "target_sum", "variance", "counts"):
        same(getattr(sums, name), getattr(slow, name), dtype)
    for fast, threaded in zip(
        sums, normal_equations(model, certain, entries, mode, low, high, 2), strict=True
    ):
        np.testing.assert_array_equal(fast, threaded)


@over(NORMAL)
@examples
@given(st.data())
def test_a_weight_counts_as_so_many_entries(kind, data):
    """Sums with whole weights are those of entries that are there as many times, variances too."""
    dtype = kind[2]
    model, tensor, rng = data.draw(problems(*kind))
    mode = data.draw(st.integers(0, model.order - 1))
    times = rng.integers(0, 4, tensor.n_entries)
    times[0] = 2
    uncertain = _uncertainty(model, True)
    uncertain.rows[:] = rng.uniform(0, 0.2, uncertain.rows.shape)
    uncertain.core[:] = rng.uniform(0, 0.2, uncertain.core.shape)
    weighted = WeightedSite(Site(tensor, 1), tensor.values.copy(), times.astype(dtype))
    repeated = SparseTensor(
        np.repeat(tensor.coordinates, times, axis=1), np.repeat(tensor.values, times), tensor.modes
    )
    high = model.shape[mode]
    fast, slow = (
        normal_equations(model, uncertain, site.by_mode(mode), mode, 0, high, 1)
        for site in (weighted, Site(repeated, 1))
    )
    for name in NormalEquations._fields:
        same(getattr(fast, name), getattr(slow, name), dtype)
    if model.free_core.size:
        fast, slow = (core_equations(model, uncertain, s) for s in (weighted, Site(repeated, 1)))
        same(fast.gram, slow.gram, dtype)
        same(fast.rhs, slow.rhs, dtype)


@over(KINDS)
@examples
@given(st.data())
def test_predictions_are_what_residuals_sum_up(kind, data):
    dtype = kind[2]
    model, tensor, rng = data.draw(problems(*kind))
    uncertain = _uncertainty(model, True)
    for part in uncertain:
        part[:] = rng.uniform(0, 0.2, part.shape)
    site = Site(tensor, 1)
    means, variances = predictions(model, uncertain, site)
    same(means, model.predict_reference(tensor.coordinates), dtype)
    seen = residuals(model, uncertain, site)
    same(variances.sum(), seen.variances, dtype)
    same(np.square(tensor.values - means).sum(), seen.squares, dtype)
    same(predictions(model, _uncertainty(model, False), site)[1], np.zeros(len(means)), dtype)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@examples
@given(st.data())
def test_solve_rows(dtype, data):
    rank, n = data.draw(st.integers(1, 20)), data.draw(st.integers(1, 6))
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    rows = aligned_zeros((n, -(-rank // 16) * 16), dtype)
    width = rows.shape[1]
    counts = rng.integers(0, 40, n)
    sums = NormalEquations(
        aligned_zeros((n, width, width), dtype),
        aligned_zeros((n, width), dtype),
        aligned_zeros((n, width), dtype),
        np.zeros(n, dtype),
        aligned_zeros((n, width), dtype),
        counts,
    )
    for i, count in enumerate(counts):
        x, y = rng.normal(size=(count, rank)), rng.normal(size=count)
        sums.gram[i, :rank, :rank] = np.triu(x.T @ x)
        sums.rhs[i, :rank] = x.T @ y
        sums.design_sum[i, :rank] = x.sum(axis=0)
        sums.target_sum[i] = y.sum()
        sums.variance[i, :rank] = rng.uniform(0, 2, rank)
    ridge = Ridge(
        np.append(10.0 ** rng.uniform(0, 8, rank), np.ones(width - rank)),
        data.draw(st.sampled_from([0.0, 0.5])),
        data.draw(st.sampled_from([0.0, 1.0])),
        data.draw(st.sampled_from([3.0, np.inf])),
        data.draw(st.sampled_from([0.0, 0.1])),
        data.draw(st.sampled_from([1.0, 7.0])),
    )
    expected_rows, expected_biases = solve_rows_reference(sums, ridge, rank)
    for threads in (1, 2):
        biases = np.ones(n, dtype)
        spreads, bias_spreads = aligned_zeros(rows.shape, dtype), np.zeros(n, dtype)
        solve_rows(sums, ridge, rank, rows, biases, spreads, bias_spreads, threads)
        same(rows[:, :rank], expected_rows, dtype)
        same(biases, expected_biases, dtype)
        diagonal = np.diagonal(sums.gram, axis1=1, axis2=2)[:, :rank] + sums.variance[:, :rank]
        precision = ridge.constant[:rank] + ridge.per_entry * counts[:, None]
        same(spreads[:, :rank], 1 / (ridge.noise * diagonal + precision), dtype)
        assert not rows[:, rank:].any()


@over(KINDS)
@examples
@given(st.data())
def test_residuals(kind, data):
    model, tensor, rng = data.draw(problems(*kind))
    certain = _uncertainty(model, False)
    misses = tensor.values.astype(np.float64) - model.predict_reference(tensor.coordinates)
    seen = residuals(model, certain, Site(tensor, 1))
    same(seen.squares, (misses**2).sum(), kind[2])
    assert (seen.variances, seen.entries) == (0, tensor.n_entries)
    # Variances of the biases alone add up; the rows' own add their designs' squares.
    uncertain = _uncertainty(model, True)
    uncertain.biases[:] = rng.uniform(0, 1, uncertain.biases.shape)
    here = uncertain.rows[model.span(0), : model.ranks[0]]
    here[:] = rng.uniform(0, 1, here.shape)
    levels = tensor.coordinates
    expected = (here[levels[0]] * model.design(0, levels) ** 2).sum()
    expected += sum(uncertain.biases[model.span(m)][levels[m]].sum() for m in range(model.order))
    same(residuals(model, uncertain, Site(tensor, 1)).variances, expected, kind[2])


@over([KINDS[3]])
@examples
@given(st.data())
def test_core_equations_are_the_squares_of_the_residuals(kind, data):
    """gram and rhs as second and first derivatives of the sum of squares by the core."""
    model, tensor, _ = data.draw(problems(*kind))
    site, certain = Site(tensor, 1), _uncertainty(model, False)
    sums = core_equations(model, certain, site)
    rest = sums.rhs - sums.gram @ model.free_core
    h = 1e-4
    for q in range(model.free_core.size):
        kept, squares = model.free_core[q], []
        for move in (h, -h):
            model.free_core[q] = kept + move
            squares.append(residuals(model, certain, site).squares)
        model.free_core[q] = kept
        same(rest[q], -(squares[0] - squares[1]) / (4 * h), np.float64, scale=1e4)


# -- gradient descent ---------------------------------------------------------------------------


def draw_penalty(data, model, rng):
    means = aligned_zeros((model.order, model.rows.shape[1]), model.dtype)
    if data.draw(st.booleans()):
        for m, rank in enumerate(model.ranks):
            means[m, :rank] = rng.normal()
    by_row = rng.uniform(0, 0.3, len(model.rows)) if data.draw(st.booleans()) else np.empty(0)
    number = model.dtype.type
    return Penalty(
        rng.uniform(0, 0.3, model.order).astype(model.dtype),
        by_row.astype(model.dtype),
        means,
        number(0.07),
        number(0.02),
    )


def shape_of(model, tensor, kind):
    name, _, dtype = kind
    fit_biases = bool(model.biases.any())
    return Shape(tensor.modes, model.ranks, name, np.dtype(dtype).name, fit_biases=fit_biases)


def standardised(model, tensor, mean, spread):
    """The model with no mean of its own, and the values that it is to explain."""
    return model.with_mean(0.0), (tensor.values.astype(np.float64) - mean) / spread


@over(KINDS)
@examples
@given(st.data())
def test_a_pass_of_sgd(kind, data):
    dtype = kind[2]
    model, tensor, rng = data.draw(problems(*kind))
    penalty, fit_biases = draw_penalty(data, model, rng), bool(model.biases.any())
    fast, _ = standardised(model, tensor, 0.4, 1.7)
    slow, _ = standardised(model.copy(), tensor, 0.4, 1.7)
    grid = make_grid(tensor, 1, 64, seed=1)
    targets = (grid.values.astype(np.float64) - 0.4) / 1.7
    squares = visit_reference(slow, grid.coordinates, targets, 0.05, penalty, fit_biases)
    same(run_pass(fast, grid, 0.4, 1.7, 0.05, 3, penalty, fit_biases, 1), squares, dtype)
    same_model(fast, slow, dtype)


@over([KINDS[1], KINDS[3]])
@pytest.mark.usefixtures("tiny_blocks")
@examples
@given(st.data())
def test_a_pass_of_sgd_over_blocks_does_not_depend_on_the_threads(kind, data):
    model, tensor, rng = data.draw(problems(*kind, most=200))
    penalty, other = draw_penalty(data, model, rng), model.copy()
    grid = make_grid(tensor, 2, 64, seed=1)
    results = [
        run_pass(m, grid, 0.4, 1.0, 0.05, 3, penalty, True, threads)
        for m, threads in ((model, 1), (other, 2))
    ]
    assert results[0] == results[1]
    np.testing.assert_array_equal(model.rows, other.rows)
    np.testing.assert_array_equal(model.free_core, other.free_core)
    assert np.isfinite(model.rows).all()


@pytest.fixture(scope="module")
def tiny_blocks():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(layout, "_BLOCK_ENTRIES", 1)
        yield


@over(KINDS)
@examples
@given(st.data())
def test_passes_of_minibatch_descent(kind, data):
    dtype = kind[2]
    model, tensor, _ = data.draw(problems(*kind))
    n, order = tensor.n_entries, tensor.order
    size = data.draw(st.integers(1, n))
    ridge = data.draw(st.sampled_from([0.0, 0.4]))
    prior = {"m0": 1.0} if data.draw(st.booleans()) else None
    fit_biases = bool(model.biases.any())
    solver = MinibatchSGD(
        batch=size, momentum=data.draw(st.sampled_from([0.0, 0.8])), ridge=ridge, prior_mean=prior
    )
    shape = shape_of(model, tensor, kind)
    site = Site(tensor, 1)
    slow = model.copy().with_mean(0.0)
    speeds = tuple(np.zeros_like(a) for a in (slow.rows, slow.biases, slow.free_core))
    grid, memory = make_grid(tensor, 1, 0, seed=0), None
    targets = (grid.values.astype(np.float64) - 0.4) / 1.7
    expected = np.maximum(1, site.counts * (size / n))
    for seed, step in ((5, 0.1), (6, 0.05)):  # the velocity is carried over
        query = PassQuery(solver, shape, model.with_mean(0.0), 0.4, 1.7, step, seed, memory)
        made = query.answer(site)
        model, memory = made.model, made.memory
        penalty = solver.penalty(query, site)
        batches_reference(
            slow,
            speeds,
            grid.coordinates,
            targets,
            *batch_edges(n, size, seed),
            expected,
            step,
            solver.momentum,
            penalty,
            fit_biases,
        )
        same_model(model, slow, dtype)
        same(memory.rows, speeds[0], dtype)
        same(memory.biases, speeds[1], dtype)
    assert penalty.by_row.size == (len(model.rows) if ridge else 0)
    assert penalty.means.shape[0] == order


@examples
@given(st.integers(1, 300), st.integers(1, 300), st.integers(0, 2**32))
def test_batches_hold_every_entry_once(entries, size, seed):
    begins, ends = batch_edges(entries, min(size, entries), seed)
    visited = np.concatenate([np.arange(a, b) for a, b in zip(begins, ends, strict=True)])
    assert sorted(visited.tolist()) == list(range(entries))
    assert (ends - begins).max() <= size
    assert (ends - begins).min() >= 1


@over(SEQUENTIAL)
@examples
@given(st.data())
def test_a_pass_of_the_paper(kind, data):
    dtype = kind[2]
    model, tensor, _ = data.draw(problems(*kind))
    fit_biases = bool(model.biases.any())
    prior = {"m1": 1.0} if data.draw(st.booleans()) else None
    solver = SequentialSGD(ridge_per_entry={"m0": 0.1, "m1": 0.2}, prior_mean=prior)
    shape = shape_of(model, tensor, kind)
    site, slow = Site(tensor, 1), model.copy().with_mean(0.4)
    query = PassQuery(solver, shape, model.with_mean(0.0), 0.4, 1.0, 0.02, 8, None)
    sequence = np.random.default_rng(8).permutation(tensor.n_entries)
    visit_in_turn_reference(
        slow,
        tensor.coordinates[:, sequence],
        tensor.values[sequence],
        0.02,
        solver.penalty(query, site),
        fit_biases,
    )
    before = model.copy()
    same_model(query.answer(site).model, slow, dtype)
    np.testing.assert_array_equal(query.model.rows, before.rows)  # a query is never written to
