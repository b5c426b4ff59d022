"""What presence says of rows: found where it says something, harmless where it does not."""

import json
import runpy
from pathlib import Path

import numpy as np
import pytest

import sfumato as sf
from sfumato.data.tensor import Mode, SparseTensor
from sfumato.engines.local import Local
from sfumato.errors import SettingError
from sfumato.fit.completion import carry_out
from sfumato.fit.plan import Plan
from sfumato.kernels.numba.normal import NormalEquations, Ridge, solve_rows
from sfumato.kernels.numba.presence import neighbour_sums
from sfumato.kernels.numba.simd import aligned_zeros
from sfumato.kernels.reference.presence import neighbour_sums_reference
from sfumato.models.multilinear import CPModel
from sfumato.models.shape import Shape, usual_rank
from sfumato.sites.memory import Site, WeightedSite
from sfumato.solvers.least_squares import als
from sfumato.solvers.least_squares.presence import (
    SEARCH_ROUNDS,
    Search,
    noise_edge,
    regression,
)
from sfumato.solvers.protocol import Run

FIXTURES = Path(__file__).parents[3] / "fixtures"


def modes(*sizes):
    return tuple(Mode(f"m{m}", size) for m, size in enumerate(sizes))


def at_random(sizes, entries, seed=0):
    """Cells drawn uniformly, values of one component."""
    rng = np.random.default_rng(seed)
    cells = np.array(np.unravel_index(rng.permutation(np.prod(sizes))[:entries], sizes))
    rows = [rng.normal(size=size) for size in sizes]
    values = np.prod([row[levels] for row, levels in zip(rows, cells, strict=True)], axis=0)
    return SparseTensor(cells, values + rng.normal(size=entries), modes(*sizes))


def groups(seed, *, informative):
    """Users of two groups, who see items of their own group more often and like them.

    Few entries for each user: what they are is known from where these are. Where this is not
    informative, groups of liking have nothing to do with those of seeing.
    """
    rng = np.random.default_rng(seed)
    users, items = np.repeat([1, -1], 150), np.tile([1, -1], 40)
    likes = users if informative else rng.permutation(users)
    seen = rng.random((300, 80)) < np.where(np.equal.outer(users, items), 0.12, 0.02)
    cells = np.stack(np.nonzero(seen))
    truth = np.outer(likes, items)[tuple(cells)] + 0.0
    # All of a user's items may be of one group: half of the likes are about something else.
    truth += np.outer(users, rng.normal(size=80))[tuple(cells)]
    tensor = SparseTensor(cells, truth + rng.normal(size=cells.shape[1]), modes(300, 80))
    return tensor.split(0.3, seed=seed)


def error(pair, solver, rank=4, **more):
    train, test = pair
    return sf.CP(rank, solver=solver, **more).fit(train).rmse(test)


# -- statistics and their twins -------------------------------------------------------------------


@pytest.mark.parametrize("sizes", [(12, 9), (7, 6, 5), (5, 4, 3, 4)])
@pytest.mark.parametrize("columns", [1, 11])
def test_sums_over_neighbours_are_those_of_their_twin(sizes, columns):
    tensor = at_random(sizes, 50)
    vectors = aligned_zeros((sum(sizes), -(-columns // 8) * 8), np.float64)
    vectors[:, :columns] = np.random.default_rng(1).normal(size=(sum(sizes), columns))
    found = neighbour_sums(vectors, Site(tensor, 1))
    np.testing.assert_allclose(
        found, neighbour_sums_reference(vectors, Site(tensor, 1)), rtol=1e-12, atol=1e-12
    )
    np.testing.assert_array_equal(found, neighbour_sums(vectors, Site(tensor, 3)))


def searched(tensor, rank, prior_means=None):
    search = Search.of(CPModel.zeros(tensor.shape, rank), prior_means or [0.0] * len(tensor.shape))
    for _ in range(SEARCH_ROUNDS):
        search = search.answered(search.ask().answer(Site(tensor, 1)))
    return search


def test_the_search_finds_singular_vectors_of_normalised_presence():
    train, _ = groups(0, informative=True)
    presence = np.zeros(train.shape)
    presence[tuple(train.coordinates)] = 1
    rows, columns = (np.maximum(presence.sum(axis=axis), 1) for axis in (1, 0))
    _, sizes, right = np.linalg.svd(presence / np.sqrt(np.outer(rows, columns)))
    search = searched(train, 3)
    found = search.coordinates(3, 0.0)[:, 0]
    assert abs(np.corrcoef(found[300:], right[1])[0, 1]) > 0.99
    assert np.abs(np.corrcoef(np.sign(found[300:]), np.tile([1, -1], 40))[0, 1]) > 0.9
    np.testing.assert_array_equal(search.counts()[:300], presence.sum(axis=1))
    np.testing.assert_array_equal(search.counts()[300:], presence.sum(axis=0))
    # Groups stand out of what chance would make, and nothing else does.
    edge = noise_edge(train.n_entries, train.shape)
    assert sizes[1] > edge > sizes[2]
    assert search.coordinates(3, edge).shape[1] == 1


@pytest.mark.parametrize("sizes", [(60, 40), (30, 20, 15), (12, 10, 9, 8)])
def test_entries_at_random_places_give_no_coordinates(sizes):
    tensor = at_random(sizes, 700)
    edge = noise_edge(tensor.n_entries, sizes)
    assert searched(tensor, 4).coordinates(4, edge).shape[1] == 0


def test_times_take_no_part_in_the_search():
    tensor = at_random((20, 15, 6), 400)
    matrix = SparseTensor(tensor.coordinates[:2], tensor.values, tensor.modes[:2])
    with_times, without = searched(tensor, 3, [0.0, 0.0, 1.0]), searched(matrix, 3)
    for mode in range(3):
        counts = with_times.counts()[[0, 20, 35][mode] :][: tensor.shape[mode]]
        np.testing.assert_array_equal(counts, tensor.counts(f"m{mode}"))
    found = with_times.coordinates(3, -1.0)
    assert not found[35:].any()
    values = [np.linalg.eigvalsh(search.vectors.T @ search.image) for search in (with_times, without)]
    np.testing.assert_allclose(values[0][-1], values[1][-1], rtol=1e-3)


def test_the_regression_is_that_of_its_twin():
    rng = np.random.default_rng(0)
    features, targets = rng.normal(size=(50, 4)), rng.normal(size=(50, 3))
    targets[:, 0] += 5 * features[:, 1]
    precisions = np.array([1.0, 4.0, 0.5])
    weights, relevance, doubt = regression(features, targets, precisions, np.ones(4))
    expected, columns = np.ones(4), 3
    for _ in range(3):
        system = sum(np.outer(x, x) for x in features) + np.diag(expected)
        solutions = [np.linalg.solve(system, features.T @ target) for target in targets.T]
        sizes = sum(p * w**2 for p, w in zip(precisions, solutions, strict=True))
        expected = columns / (sizes + columns * np.diag(np.linalg.inv(system)))
    np.testing.assert_allclose(weights, np.transpose(solutions), rtol=1e-10)
    np.testing.assert_allclose(relevance, expected, rtol=1e-10)
    inverse = np.linalg.inv(system)
    np.testing.assert_allclose(doubt, np.mean([x @ inverse @ x for x in features]), rtol=1e-10)
    assert relevance[1] < 0.1 * relevance[[0, 2, 3]].min()


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_rows_drawn_towards_an_expectation_solve_their_normal_equations(dtype):
    rng, rank, n = np.random.default_rng(0), 3, 4
    rows, biases = aligned_zeros((n, 16), dtype), np.zeros(n, dtype)
    gram, rhs, design_sum, variance = (
        aligned_zeros((n, *shape), dtype) for shape in ((16, 16), (16,), (16,), (16,))
    )
    designs, targets = rng.normal(size=(n, 9, rank)), rng.normal(size=(n, 9))
    gram[:, :rank, :rank] = np.einsum("ner,nes->nrs", designs, designs)
    rhs[:, :rank] = np.einsum("ne,ner->nr", targets, designs)
    design_sum[:, :rank] = designs.sum(axis=1)
    sums = NormalEquations(
        gram, rhs, design_sum, targets.sum(axis=1).astype(dtype), variance, np.full(n, 9.0)
    )
    ridge = Ridge(np.full(16, 2.0), 0.0, 0.5, 3.0, 0.0, 4.0)
    expected = rng.normal(size=(n, rank + 1))
    solve_rows(
        als.drawn_towards(sums, ridge, expected), ridge, rank, rows, biases, rows[:0], biases[:0], 1
    )
    for i in range(n):
        x = np.column_stack([designs[i], np.ones(9)])
        prior = np.append(0.5 + expected[i, :rank], expected[i, rank])
        precision = np.diag([2.0, 2.0, 2.0, 3.0])
        solution = np.linalg.solve(4 * x.T @ x + precision, 4 * x.T @ targets[i] + precision @ prior)
        np.testing.assert_allclose(np.append(rows[i, :rank], biases[i]), solution, atol=2e-5)


# -- what it brings -------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_where_presence_carries_the_rows_the_map_is_found(dtype):
    pairs = [groups(seed, informative=True) for seed in range(3)]
    with_map, without = (
        np.mean([error(pair, sf.ALS(presence=on), dtype=dtype) for pair in pairs])
        for on in (True, False)
    )
    assert with_map < 0.93 * without


def test_sums_of_designs_alone_find_it_too(monkeypatch):
    """Without coordinates of levels that occur together."""
    monkeypatch.setattr("sfumato.solvers.least_squares.presence.noise_edge", lambda *_: np.inf)
    pairs = [groups(seed, informative=True) for seed in range(3)]
    with_map, without = (
        np.mean([error(pair, sf.ALS(presence=on)) for pair in pairs]) for on in (True, False)
    )
    assert with_map < 0.97 * without


@pytest.mark.parametrize(
    ("sizes", "entries"), [((60, 40), 800), ((20, 15, 12), 1000), ((9, 8, 7, 8), 1200)]
)
@pytest.mark.parametrize("kind", [sf.CP, sf.Tucker])
def test_where_presence_says_nothing_it_does_no_harm(sizes, entries, kind):
    pairs = [at_random(sizes, entries, seed).split(0.2, seed=seed) for seed in range(5)]
    with_map, without = (
        np.array([kind(2, solver=sf.ALS(presence=on)).fit(a).rmse(b) for a, b in pairs])
        for on in (True, False)
    )
    # With or without, a start may lose a component for good: the median tells.
    assert np.median(with_map / without) < 1.002


def test_a_table_without_gaps_has_nothing_that_rounding_could_blow_up():
    planted = sf.synthetic.cp((20, 15), 2, missing=0.0, snr=2.0, seed=0)
    fits = [
        sf.CP(3, solver=sf.ALS(presence=on), dtype=np.float32)
        .fit(planted.tensor)
        .predict(planted.tensor)
        for on in (True, False)
    ]
    assert np.isfinite(fits[0]).all()
    assert np.sqrt(np.mean((fits[0] - fits[1]) ** 2)) < 0.02 * planted.tensor.values.std()


def fitted(tensor, solver, rank=3):
    """The state after the last sweep."""
    shape = Shape(tensor.modes, (rank,) * tensor.order)
    state, site = solver.init(Run(), shape), Site(tensor, 1)
    for _ in range(solver.rounds(shape)):
        state, _ = solver.update(state, solver.ask(state).answer(site))
    return state


def test_a_level_without_entries_gets_what_the_map_expects():
    train, _ = groups(1, informative=True)
    cold = train.take(~np.isin(train.coordinates[0], [3, 200]))
    state = fitted(cold, sf.ALS(sweeps=12))
    model, here = state.model, slice(3, 4)
    # Expected from the designs of the sweep before, of which a level without entries has none.
    expected = state.presence.expected(model, 0, here)[0]
    twin = state.presence.expected(model, 0, slice(200, 201))[0]
    np.testing.assert_allclose(expected, twin, rtol=1e-9)
    assert np.abs(expected).max() > 1e-3
    before = fitted(cold, sf.ALS(sweeps=11))
    expected = before.presence.expected(before.model, 0, here)[0]
    np.testing.assert_allclose(model.factors[0][3], expected[:-1], rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(model.mode_biases[0][3], expected[-1], rtol=1e-6, atol=1e-9)


def test_weights_of_one_change_nothing():
    train, _ = groups(2, informative=True)
    solver, shape = sf.ALS(sweeps=6), Shape(train.modes, (3, 3))
    plain = Site(train, 1)
    ones = np.ones(train.n_entries)
    models = [
        carry_out(Plan(shape, solver), Local(site)).model
        for site in (plain, WeightedSite(Site(train, 1), train.values.copy(), ones))
    ]
    np.testing.assert_allclose(models[0].rows, models[1].rows, rtol=1e-6, atol=1e-8)


def test_results_do_not_depend_on_the_threads():
    train, _ = groups(3, informative=True)
    for kind in (sf.CP, sf.Tucker):
        one, three = (
            kind(3, solver=sf.ALS(sweeps=6), threads=threads).fit(train).model_ for threads in (1, 3)
        )
        np.testing.assert_array_equal(one.rows, three.rows)
        np.testing.assert_array_equal(one.biases, three.biases)


# -- turned off -----------------------------------------------------------------------------------

make = runpy.run_path(str(FIXTURES / "make.py"))


@pytest.mark.parametrize(
    ("name", "kind", "settings"),
    [
        ("cp-als", sf.CP, {"rank": 2, "unseen": "bias"}),
        ("cp-als-float32", sf.CP, {"rank": 2, "starts": 2, "dtype": np.float32}),
        ("tucker-als", sf.Tucker, {"ranks": (3, 2, 2), "unseen": "bias"}),
    ],
)
def test_without_it_fits_are_what_they_were(name, kind, settings):
    """Before there was such a thing: the numbers were written down then."""
    data = make["measured"]() if "float32" in name else make["ratings"]()
    fit = kind(**settings, solver=sf.ALS(presence=False), threads=2).fit(data)
    expected = json.loads((FIXTURES / "before" / "fits" / name / "expected.json").read_text("utf-8"))
    found = make["some"](make["answers"](fit))
    for what, numbers in expected["fitted"].items():
        np.testing.assert_allclose(found[what], numbers, rtol=1e-6, atol=1e-7, err_msg=what)


def test_it_has_no_part_where_penalties_are_given():
    tensor = at_random((12, 9), 60)
    given = [sf.CP(2, solver=sf.ALS(ridge=1.0, presence=on)).fit(tensor) for on in (True, False)]
    np.testing.assert_array_equal(given[0].model_.rows, given[1].model_.rows)
    with pytest.raises(SettingError, match="presence"):
        sf.CP(2, solver=sf.ALS(presence="yes")).fit(tensor)


@pytest.mark.parametrize(
    ("sizes", "entries", "rank"),
    [
        ((100, 80), None, 8),
        ((100, 80), 100, 8),
        ((100, 80), 8640, 12),
        ((1000, 800), 10**6, 20),
        ((1000, 18), 10**6, 9),
        ((1000, 5), 10**6, 5),
    ],
)
def test_the_usual_rank(sizes, entries, rank):
    assert usual_rank(sizes, entries) == rank
