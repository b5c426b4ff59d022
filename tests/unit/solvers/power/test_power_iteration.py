"""The method itself, asked and answered by hand: deflation, signs, averages, whitening, noise."""

import numpy as np
import pytest

from sfumato.privacy.mechanisms import Noisy
from sfumato.solvers.power.iteration import (
    PowerSettings,
    RankError,
    ask,
    begin,
    components,
    update,
    usual_iterations,
    usual_restarts,
    weight_deviations,
)
from sfumato.solvers.power.tensors import DenseBlocks, DenseSymmetric, answered


def orthonormal(size, rank, seed=0):
    return np.linalg.qr(np.random.default_rng(seed).standard_normal((size, rank))).Q.T


def tensor_of(weights, *factors):
    letters = "abcde"[: len(factors)]
    return np.einsum(f"z,{','.join(f'z{a}' for a in letters)}->{letters}", weights, *factors)


def carried_out(settings, answer, seed=0):
    """All states from the first to the last."""
    states = [begin(settings, seed)]
    while not states[-1].done:
        states.append(update(states[-1], answer(ask(states[-1]))))
    return states


def exactly(tensor, deviation=0.0):
    source = (DenseSymmetric if len(set(tensor.shape)) == 1 else DenseBlocks)(tensor)
    return lambda query: Noisy(answered(source, query), deviation)


# -- what is asked --------------------------------------------------------------------------------


def test_questions_come_in_their_order():
    settings = PowerSettings((4,), 3, components=2, restarts=3, iterations=2, subspace=2)
    kinds, bases = [], []

    def answer(query):
        kinds.append(query.kind)
        bases.append(query.basis is not None)
        shape = {"weights": (3,), "directions": (2, 3), "second moment": (4, 2)}[query.kind]
        if query.kind == "second moment":
            return Noisy(np.diag([4.0, 3.0, 2.0, 1.0]) @ query.directions, 0.0)
        return Noisy(np.random.default_rng(len(kinds)).random(shape), 0.0)

    states = carried_out(settings, answer)
    each = ["directions", "directions", "weights"]
    assert kinds == ["second moment"] * 2 + each * 2
    assert bases == [False] * 2 + [True] * 6
    assert settings.rounds == len(kinds) == states[-1].answered
    assert [state.step for state in states[:-1]] == [-2, -1, 0, 1, 2, 0, 1, 2]


def test_directions_have_unit_length_and_depend_on_the_seed_alone():
    settings = PowerSettings((6,), 3, components=1, restarts=5, iterations=2)
    first, again, other = (ask(begin(settings, seed)).directions for seed in (0, 0, 1))
    np.testing.assert_array_equal(first, again)
    assert np.abs(first - other).max() > 0.1
    np.testing.assert_allclose(np.linalg.norm(first, axis=0), 1.0)


def test_blocks_of_an_asymmetric_tensor_have_unit_length_each():
    settings = PowerSettings((3, 4, 5), 3, components=1, restarts=5, iterations=2)
    tensor = np.random.default_rng(0).standard_normal((3, 4, 5))
    for state in carried_out(settings, exactly(tensor))[:-1]:
        for block in settings.blocks:
            np.testing.assert_allclose(np.linalg.norm(state.directions[block], axis=0), 1.0)


# -- recovery and deflation -------------------------------------------------------------------------


@pytest.mark.parametrize("order", [3, 4, 5])
def test_each_component_is_taken_off_exactly(order):
    """The second found is the tensor's second, and what is left after all is nothing."""
    weights, vectors = np.array([3.0, 2.0, 1.0]), orthonormal(5, 3)
    tensor = tensor_of(weights, *[vectors] * order)
    settings = PowerSettings((5,), order, components=4, restarts=20, iterations=25)
    states = carried_out(settings, exactly(tensor))
    found = components(states[-1])
    np.testing.assert_allclose(found.weights[:3], weights, rtol=1e-10)
    np.testing.assert_allclose(np.abs(found.vectors[0][:3] @ vectors.T), np.eye(3), atol=1e-9)
    assert abs(found.weights[3]) < 1e-12  # there is no fourth
    after_one = next(state for state in states if len(state.weights) == 1)
    left = tensor - tensor_of(after_one.weights, *[after_one.found] * order)
    np.testing.assert_allclose(left, tensor_of(weights[1:], *[vectors[1:]] * order), atol=1e-9)


def test_deflation_is_of_the_iterate_that_went_in():
    """T(I, u, u) of what was found, whatever the answer was."""
    vectors = orthonormal(4, 2)
    settings = PowerSettings((4,), 3, components=2, restarts=1, iterations=1)
    state = begin(settings, 0)
    state = update(state, Noisy(3 * vectors[:1].T, 0.0))
    state = update(state, Noisy(np.array([7.0]), 0.0))
    np.testing.assert_allclose(components(state).weights, [7.0])
    u = ask(state).directions
    answer = np.array([[1.0], [2.0], [3.0], [4.0]])
    after = update(state, Noisy(answer, 0.0)).directions
    wanted = answer - 7.0 * (vectors[:1] @ u) ** 2 * vectors[:1].T
    np.testing.assert_allclose(after, wanted / np.linalg.norm(wanted))


def test_weights_are_deflated_too():
    """A direction along what was found has nothing left."""
    vector = np.array([[1.0, 0.0]])
    settings = PowerSettings((2,), 3, components=2, restarts=2, iterations=1)
    state = begin(settings, 0)
    both = np.hstack([vector.T, vector.T])
    state = update(update(state, Noisy(both, 0.0)), Noisy(np.array([5.0, 4.0]), 0.0))
    u = ask(state).directions
    state = update(state, Noisy(5.0 * vector.T * (vector @ u) ** 2 + np.eye(2), 0.0))
    np.testing.assert_allclose(ask(state).directions, np.eye(2))
    state = update(state, Noisy(np.array([5.5, 0.6]), 0.0))  # 0.5 is left of the first
    np.testing.assert_allclose(components(state).weights, [5.0, 0.6])


def test_signs_at_odd_and_even_orders():
    """Odd: the vector takes the sign of a negative weight. Even: the weight keeps it."""
    vectors = orthonormal(4, 2)
    for order, wanted in [(3, [3.0, 2.0]), (4, [-3.0, 2.0]), (5, [3.0, 2.0])]:
        tensor = tensor_of(np.array([-3.0, 2.0]), *[vectors] * order)
        settings = PowerSettings((4,), order, components=2, restarts=20, iterations=20)
        found = components(carried_out(settings, exactly(tensor))[-1])
        np.testing.assert_allclose(found.weights, wanted, rtol=1e-10)
        np.testing.assert_allclose(found.to_tensor(), tensor, atol=1e-9)


@pytest.mark.parametrize("shape", [(4, 5, 6), (3, 4, 3, 5)])
def test_vectors_of_every_mode(shape):
    factors = [orthonormal(size, 3, size) for size in shape]
    weights = np.array([3.0, -2.0, 1.0])
    tensor = tensor_of(weights, *factors)
    settings = PowerSettings(shape, len(shape), components=3, restarts=20, iterations=20)
    found = components(carried_out(settings, exactly(tensor))[-1])
    np.testing.assert_allclose(found.weights, [3.0, 2.0, 1.0], rtol=1e-10)  # signs are in the vectors
    np.testing.assert_allclose(found.to_tensor(), tensor, atol=1e-9)


def test_a_direction_that_vanishes_stays_what_it_was():
    settings = PowerSettings((3,), 3, components=1, restarts=2, iterations=1)
    state = begin(settings, 0)
    before = ask(state).directions
    after = update(state, Noisy(np.array([[0.0, 1.0], [0.0, 2.0], [0.0, 2.0]]), 0.0)).directions
    np.testing.assert_array_equal(after[:, 0], before[:, 0])
    np.testing.assert_allclose(after[:, 1], [1 / 3, 2 / 3, 2 / 3])


# -- whitening inside -------------------------------------------------------------------------------


def test_space_and_whitening_of_a_second_moment():
    moment = np.diag([9.0, 4.0, 1e-9, 0.0])
    settings = PowerSettings((4,), 3, components=2, restarts=2, iterations=1, subspace=4)
    state = begin(settings, 0)
    for _ in range(4):
        query = ask(state)
        np.testing.assert_allclose(query.directions.T @ query.directions, np.eye(2), atol=1e-12)
        state = update(state, Noisy(moment @ query.directions, 0.0))
    basis, inverse = state.whitening.basis, state.whitening.inverse
    np.testing.assert_allclose(basis.T @ moment @ basis, np.eye(2), atol=1e-9)
    np.testing.assert_allclose(inverse @ inverse.T, np.diag([9.0, 4.0, 0.0, 0.0]), atol=1e-8)


def test_a_second_moment_without_enough_directions():
    settings = PowerSettings((4,), 3, components=3, restarts=2, iterations=1, subspace=1)
    state = begin(settings, 0)
    with pytest.raises(RankError, match="the second moment has rank 2, below the 3 components"):
        update(state, Noisy(np.diag([1.0, 1.0, 0.0, 0.0]) @ state.directions, 0.0))


# -- noise ------------------------------------------------------------------------------------------


def noisy(tensor, deviation, seed):
    rng, exact = np.random.default_rng(seed), exactly(tensor)

    def answer(query):
        values = exact(query).values
        return Noisy(values + deviation * rng.standard_normal(values.shape), deviation)

    return answer


@pytest.mark.parametrize("order", [3, 4])
def test_averages_are_nearer_than_last_iterates(order):
    """Mean squared error over 20 draws, of the average of five answers and of the restarts.

    The ratio is about 0.045, and over seeds its logarithm spreads by 0.2: one above 0.5 by chance is
    beyond ten deviations. Of the largest weight of six, about 0.1 is noise.
    """
    vectors = orthonormal(6, 1)
    tensor = tensor_of(np.array([-2.0 if order == 4 else 2.0]), *[vectors] * order)
    squares = {}
    for average in (True, False):
        settings = PowerSettings((6,), order, 1, restarts=6, iterations=10, average=average)
        ends = [carried_out(settings, noisy(tensor, 0.1, seed))[-1] for seed in range(20)]
        cosines = [abs(float(components(end).vectors[0][0] @ vectors[0])) for end in ends]
        squares[average] = np.mean([2 - 2 * cosine for cosine in cosines])
        weights = np.array([components(end).weights[0] for end in ends])
        assert abs(weights.mean() - (-2.0 if order == 4 else 2.0)) < 0.2
    assert squares[True] < squares[False] / 2


def test_deviations_of_weights():
    """With averaging a weight is the mean of restarts that ended alike: its noise is so much smaller."""
    tensor = tensor_of(np.array([2.0]), *[orthonormal(3, 1)] * 3)
    for average, wanted in [(False, 0.1), (True, 0.1 / np.sqrt(4))]:
        settings = PowerSettings((3,), 3, 1, restarts=4, iterations=10, average=average)
        state = carried_out(settings, exactly(tensor, deviation=0.1))[-1]
        np.testing.assert_allclose(weight_deviations(state), [wanted])


@pytest.mark.parametrize(("deviation", "weight"), [(0.01, 1.0), (0.1, 0.85), (0.0, 0.85)])
def test_a_restart_that_is_still_on_its_way_is_left_out(deviation, weight):
    """Two restarts at an angle, and weights of 1 and 0.7: more than small noise can explain."""
    settings = PowerSettings((2,), 3, 1, restarts=2, iterations=1, average=True)
    late = np.array([0.9, np.sqrt(1 - 0.81)])
    state = update(begin(settings, 0), Noisy(np.column_stack([[1.0, 0.0], late]), deviation))
    state = update(state, Noisy(np.array([1.0, 0.7]), deviation))
    found = components(state)
    np.testing.assert_allclose(found.weights, [weight])
    towards = np.array([1.0, 0.0]) if weight == 1.0 else late + np.array([1.0, 0.0])
    np.testing.assert_allclose(found.vectors[0][0], towards / np.linalg.norm(towards))
    np.testing.assert_allclose(
        weight_deviations(state), [deviation / np.sqrt(1 if weight == 1.0 else 2)]
    )


def test_deviations_are_taken_back_from_whitening():
    settings = PowerSettings((2,), 3, 1, restarts=1, iterations=1, subspace=1)
    state = begin(settings, 0)
    state = update(state, Noisy(4.0 * state.directions, 0.0))  # lengths double on the way back
    state = update(state, Noisy(np.ones((1, 1)), 0.1))
    state = update(state, Noisy(np.ones(1), 0.1))
    np.testing.assert_allclose(components(state).weights, [8.0])
    np.testing.assert_allclose(weight_deviations(state), [0.8])


def test_usual_numbers_grow_slowly():
    assert [usual_restarts(k) for k in (1, 5, 50)] == [10, 13, 284]
    assert [usual_iterations((d,)) for d in (2, 1000)] == [16, 25]
