"""The pure-epsilon pass: kernel and twin agree, and no neighbour moves a step further than its bound."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sfumato.data.tensor import Mode, SparseTensor
from sfumato.kernels.numba.private_passes import GRID, Settings, noisy_pass
from sfumato.kernels.numba.sequential import Perturbation
from sfumato.kernels.reference.private_passes import direction_at, noisy_gradient, noisy_pass_reference
from sfumato.kernels.reference.sequential import visit_in_turn_reference
from sfumato.models.multilinear import CPModel, TuckerModel
from sfumato.models.shape import Shape
from sfumato.sites.memory import Site
from sfumato.solvers.gradient.passes import PassQuery
from sfumato.solvers.gradient.sequential import SequentialSGD

examples = settings(max_examples=12, deadline=None, database=None, derandomize=True)
many = settings(max_examples=150, deadline=None, database=None, derandomize=True)
KINDS = ["cp-2", "cp-3", "tucker-3"]


def problem(kind, rng, entries=25):
    name, order = kind.split("-")
    shape = [int(n) for n in rng.integers(3, 8, int(order))]
    if name == "cp":
        model = CPModel.zeros(shape, int(rng.integers(1, 4)))
    else:
        model = TuckerModel.zeros(shape, [int(r) for r in rng.integers(1, 4, int(order))])
    for factor in model.factors:
        factor[:] = 0.6 * rng.normal(size=factor.shape)
    model.free_core[:] = 0.6 * rng.normal(size=model.free_core.shape)
    cells = np.stack([rng.integers(0, n, entries) for n in shape])
    modes = tuple(Mode(f"m{i}", n) for i, n in enumerate(shape))
    return model, SparseTensor(cells, rng.normal(size=entries), modes)


@pytest.mark.parametrize("kind", KINDS)
@examples
@given(st.integers(0, 2**32), st.booleans(), st.booleans())
def test_kernel_and_twin(kind, seed, vector, fit_biases):
    rng = np.random.default_rng(seed)
    model, tensor = problem(kind, rng)
    if fit_biases:
        model.biases[:] = 0.2 * rng.normal(size=model.biases.shape)
    slow, means = model.copy(), rng.normal(size=model.order)
    order = rng.permutation(tensor.n_entries)
    chosen = Settings(0.7, 4.0, 3.0, vector, 0.1, 0.05, fit_biases)
    streams = [np.random.default_rng(seed) for _ in range(2)]
    noise = np.rint(streams[0].laplace(size=tensor.n_entries) / GRID).astype(np.int64)
    streams = [np.random.default_rng(seed) for _ in range(2)]
    noisy_pass(model, means, tensor.coordinates, tensor.values, order, chosen, noise, streams[0])
    noisy_pass_reference(
        slow, means, tensor.coordinates[:, order], tensor.values[order], chosen, noise, streams[1]
    )
    for fast, twin in ((model.rows, slow.rows), (model.biases, slow.biases)):
        np.testing.assert_allclose(fast, twin, atol=1e-9)
    np.testing.assert_allclose(model.free_core, slow.free_core, atol=1e-9)


@pytest.mark.parametrize("kind", ["cp-3", "tucker-3"])
@examples
@given(st.integers(0, 2**32))
def test_paper_s_noisy_pass_and_twin(kind, seed):
    rng = np.random.default_rng(seed)
    model, tensor = problem(kind, rng)
    slow, mode = model.copy(), int(rng.integers(0, 3))
    solver = SequentialSGD(ridge_per_entry=0.1)
    perturbation = Perturbation(mode, model.ranks[mode], 0.3, 0.2)
    shape = Shape(tensor.modes, model.ranks, kind.split("-")[0], fit_biases=False)
    query = PassQuery(solver, shape, model, 0.0, 1.0, 0.02, 8, None)
    sequence = np.random.default_rng(8).permutation(tensor.n_entries)
    site = Site(tensor, 1)
    visit_in_turn_reference(
        slow,
        tensor.coordinates[:, sequence],
        tensor.values[sequence],
        0.02,
        solver.penalty(query, site),
        False,
        perturbation,
        np.random.default_rng(seed),
    )
    made, largest = solver.perturbed_pass(query, site, perturbation, np.random.default_rng(seed))
    np.testing.assert_allclose(made.model.rows, slow.rows, atol=1e-10)
    np.testing.assert_allclose(made.model.free_core, slow.free_core, atol=1e-10)
    assert 0 < largest <= 0.3


@pytest.mark.parametrize("kind", KINDS)
@many
@given(
    st.integers(0, 2**32),
    st.booleans(),
    st.floats(-2, 2),
    st.floats(-2, 2),
    st.sampled_from([0.01, 0.3, 1.0, 30.0]),
)
def test_a_replaced_value_moves_a_step_by_no_more_than_its_bound(kind, seed, vector, one, other, clip):
    rng = np.random.default_rng(seed)
    model, tensor = problem(kind, rng, entries=1)
    cell, width = tensor.coordinates[:, 0], 4.0
    chosen = Settings(clip, width, np.inf, vector, 0.1, 0.0, False)  # no noise
    a, b = (noisy_gradient(model, cell, t, chosen, 0, rng) for t in (one, other))
    length = np.linalg.norm(direction_at(model, cell, False))
    bound = min(2 * clip, width * length)
    assert np.linalg.norm(a - b) <= bound * (1 + (1e-12 if vector else 2 * GRID))
    assert max(np.linalg.norm(a), np.linalg.norm(b)) <= clip * (1 + 1e-12)


@pytest.mark.parametrize("size", [1.0, 1e4, 1e7, 1e12])
@many
@given(st.integers(0, 2**32), st.sampled_from([0.3, 30.0, 1e9]))
def test_a_replaced_value_moves_a_residual_by_two_steps_more_at_most(size, seed, clip):
    """However large the fitted value is: in whole steps, over the most that it can change."""
    rng = np.random.default_rng(seed)
    model, tensor = problem("cp-3", rng, entries=1)
    model.rows[:] *= size ** (1 / 3)
    cell, j = tensor.coordinates[:, 0], direction_at(model, tensor.coordinates[:, 0], False)
    chosen = Settings(clip, 4.0, np.inf, False, 0.1, 0.0, False)
    a, b = (noisy_gradient(model, cell, t, chosen, 0, rng) for t in (-2.0, 2.0))
    steps = (b - a) @ j / (j @ j) / min(2 * clip / np.linalg.norm(j), 4.0) / GRID
    assert abs(steps) <= 1 / GRID + 2 + 1e-3  # of the test's own arithmetic


@pytest.mark.parametrize("far", [0.0, 2.0**30, 2.0**49])
def test_values_far_from_zero_move_a_residual_by_no_more(far):
    """Without a mean, targets lie as far out as the bounds do."""
    model = CPModel.from_factors([np.full((2, 1), 1e-3)] * 3)
    cell, j = np.zeros(3, np.int32), direction_at(model, np.zeros(3, np.int32), False)
    chosen = Settings(1e12, 1.0, np.inf, False, 0.1, 0.0, False)
    rng = np.random.default_rng(0)
    a, b = (noisy_gradient(model, cell, t, chosen, 0, rng) for t in (far - 1.0, far))
    assert abs((b - a) @ j / (j @ j)) / GRID <= 1 / GRID + 2


@pytest.mark.parametrize("noise", [2**62, -(2**62), 2**61 + 2**31])
def test_noise_beyond_all_sums_hides_the_residual(noise):
    """The sum of residual and noise is cut off, not the noise."""
    model, tensor = problem("cp-3", np.random.default_rng(1), entries=1)
    chosen = Settings(0.7, 4.0, 3.0, False, 0.1, 0.0, False)
    after = []
    for value in (-2.0, 2.0):
        moved = model.copy()
        rest = np.zeros(3), tensor.coordinates, np.array([value]), np.zeros(1, np.int64), chosen
        noisy_pass(moved, *rest, np.array([noise]), np.random.default_rng(0))
        after.append(moved.rows)
    np.testing.assert_array_equal(*after)


@pytest.mark.parametrize(("clip", "expected"), [(0.01, "clip"), (1e6, "range")])
def test_the_bounds_are_reached(clip, expected):
    model, rng = CPModel.from_factors([np.full((2, 1), 0.5)] * 3), np.random.default_rng(0)
    cell = np.zeros(3, np.int32)
    chosen = Settings(clip, 4.0, np.inf, False, 0.1, 0.0, False)
    a, b = (noisy_gradient(model, cell, t, chosen, 0, rng) for t in (-2.0, 2.0))
    length = np.linalg.norm(direction_at(model, cell, False))
    bound = {"clip": 2 * clip, "range": 4.0 * length}[expected]
    assert np.linalg.norm(a - b) == pytest.approx(bound)


@pytest.mark.parametrize("kind", KINDS)
def test_the_direction_is_the_gradient_of_the_value(kind):
    rng = np.random.default_rng(4)
    model, tensor = problem(kind, rng, entries=1)
    cell, h = tensor.coordinates[:, 0], 1e-6
    places = []
    for m, level in enumerate(cell):
        places += [(model.factors[m], (level, r)) for r in range(model.ranks[m])]
        places.append((model.mode_biases[m], level))
    places += [(model.free_core, q) for q in range(model.free_core.size)]
    slopes = []
    for array, at in places:
        kept, values = array[at], []
        for move in (h, -h):
            array[at] = kept + move
            values.append(float(model.predict_reference(cell[:, None])[0]))
        array[at] = kept
        slopes.append((values[0] - values[1]) / (2 * h))
    np.testing.assert_allclose(direction_at(model, cell, True), slopes, atol=1e-8)
