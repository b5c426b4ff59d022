"""Own rows: what is solved, from what, and how the prior is kept."""

import json
from dataclasses import replace

import numpy as np
import pytest

from sfumato.data.tensor import Mode, SparseTensor
from sfumato.errors import SettingError
from sfumato.models.multilinear import CPModel, TuckerModel
from sfumato.models.own_prior import OwnPrior, Pull, RowNoise
from sfumato.sites.memory import Site
from sfumato.solvers.least_squares import own_rows
from sfumato.solvers.least_squares.own_rows import solve_own

SIZES = (9, 7, 5)
MODELS = ["cp", "tucker"]


def model_of(kind, sizes=SIZES, seed=0, dtype=np.float64):
    rng = np.random.default_rng(seed)
    ranks = (2,) * len(sizes) if kind == "cp" else (2, 3, 2)
    factors = [rng.normal(size=(n, r)).astype(dtype) for n, r in zip(sizes, ranks, strict=True)]
    rest = {"mean": 0.7, "biases": [rng.normal(size=n).astype(dtype) for n in sizes]}
    if kind == "cp":
        return CPModel.from_factors(factors, **rest)
    return TuckerModel.from_factors(factors, rng.normal(size=ranks).astype(dtype), **rest)


def site_of(sizes=SIZES, mode=0, entries=60, seed=1, dtype=np.float64):
    """Entries of all but the last level of the mode."""
    rng = np.random.default_rng(seed)
    cells = np.stack([rng.integers(n - (m == mode), size=entries) for m, n in enumerate(sizes)])
    modes = tuple(Mode(f"m{m}", n) for m, n in enumerate(sizes))
    return Site(SparseTensor(cells, rng.normal(size=entries).astype(dtype), modes), 2)


def prior_of(model, mode, seed=2, **changes):
    rng = np.random.default_rng(seed)
    settings = {
        "mode": mode,
        "precisions": rng.uniform(0.5, 3, model.ranks[mode]),
        "mean": 0.4,
        "bias_precision": 2.0,
        "scatter": 0.6,
        "doubts": tuple(None if m == mode else rng.uniform(0, 2, n) for m, n in enumerate(model.shape)),
    }
    return OwnPrior(**{**settings, **changes})


def dense_solution(model, prior, tensor, row, design_variances=0.0):
    """Row and bias by generalised least squares, written out."""
    here = tensor.coordinates[prior.mode] == row
    cells, mode = tensor.coordinates[:, here], prior.mode
    blank = model.with_rows(mode, 0 * model.factors[mode], 0 * model.mode_biases[mode])
    x = np.column_stack([model.design(mode, cells), np.ones(here.sum())])
    y = tensor.values[here] - blank.predict_reference(cells)
    variance = np.full(here.sum(), prior.scatter)
    for m, doubt in enumerate(prior.doubts):
        variance += 0 if doubt is None else doubt[cells[m]]
    penalty = np.diag([*(prior.precisions + design_variances), prior.bias_precision])
    pull = np.append(prior.precisions * prior.mean, 0)
    if prior.turn is not None:  # rows T b: their precision is that of b, turned back
        back = np.linalg.inv(prior.turn)
        penalty[:-1, :-1] = back.T @ np.diag(prior.precisions) @ back
        pull[:-1] = back.T @ (prior.precisions * prior.mean)
    if np.isinf(prior.bias_precision):
        x, penalty, pull = x[:, :-1], penalty[:-1, :-1], pull[:-1]
    solution = np.linalg.solve((x.T / variance) @ x + penalty, (x.T / variance) @ y + pull)
    return solution if np.isfinite(prior.bias_precision) else np.append(solution, 0)


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("mode", [0, 1, 2])
@pytest.mark.parametrize("changes", [{}, {"doubts": ()}, {"bias_precision": np.inf}], ids=str)
def test_rows_are_those_of_weighted_ridge_regression(kind, mode, changes):
    model, site = model_of(kind), site_of(mode=mode)
    prior = prior_of(model, mode, **changes)
    solved = solve_own(model, prior, site)
    for row in range(model.shape[mode]):
        found = np.append(solved.factors[mode][row], solved.mode_biases[mode][row])
        expected = dense_solution(model, prior, site.tensor, row)
        np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-12)
    assert solved.factors[mode][-1] == pytest.approx(prior.mean)  # no entries
    assert solved.mode_biases[mode][-1] == 0


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("mode", [0, 1, 2])
@pytest.mark.parametrize("changes", [{}, {"doubts": ()}, {"bias_precision": np.inf}], ids=str)
def test_turned_rows_are_those_of_a_ridge_with_correlated_columns(kind, mode, changes):
    model, site = model_of(kind), site_of(mode=mode)
    rank = model.ranks[mode]
    turn = np.random.default_rng(6).normal(size=(rank, rank)) + 2 * np.eye(rank)
    prior = prior_of(model, mode, turn=turn, mean=0.0, **changes)
    solved = solve_own(model, prior, site)
    for row in range(model.shape[mode]):
        found = np.append(solved.factors[mode][row], solved.mode_biases[mode][row])
        expected = dense_solution(model, prior, site.tensor, row)
        np.testing.assert_allclose(found, expected, rtol=1e-8, atol=1e-11)
    plain = solve_own(model, prior_of(model, mode, turn=np.eye(rank), mean=0.0, **changes), site)
    without = solve_own(model, prior_of(model, mode, mean=0.0, **changes), site)
    np.testing.assert_allclose(plain.rows, without.rows, rtol=1e-12, atol=1e-14)


def test_noise_in_released_rows_is_a_ridge_that_grows_with_entries():
    model, site = model_of("cp"), site_of()
    rng = np.random.default_rng(5)
    noise = [RowNoise(rng.uniform(0, 2, n), rng.uniform(0.2, 1, 2)) for n in SIZES[1:]]
    prior = prior_of(model, 0, doubts=(), row_noise=(None, *noise))
    solved, tensor = solve_own(model, prior, site), site.tensor
    for row in range(SIZES[0]):
        cells = tensor.coordinates[:, tensor.coordinates[0] == row]
        first = second = 1.0
        for m, (levels, columns) in enumerate(noise, 1):
            squares = model.factors[m][cells[m]] ** 2
            first = first * squares
            second = second * (squares + np.outer(levels[cells[m]], columns))
        extra = np.sum(second - first, axis=0) / prior.scatter
        expected = dense_solution(model, prior, tensor, row, design_variances=extra)
        found = np.append(solved.factors[0][row], solved.mode_biases[0][row])
        np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-12)


def test_a_level_in_great_doubt_is_as_good_as_absent():
    model, site = model_of("cp"), site_of()
    doubt = np.zeros(SIZES[1])
    doubt[3] = 1e12
    doubted = solve_own(model, prior_of(model, 0, doubts=(None, doubt, None)), site)
    left = site.tensor.take(site.tensor.coordinates[1] != 3)
    without = solve_own(model, prior_of(model, 0, doubts=()), Site(left, 1))
    np.testing.assert_allclose(doubted.rows, without.rows, atol=1e-9)
    np.testing.assert_allclose(doubted.biases, without.biases, atol=1e-9)


@pytest.mark.parametrize("kind", MODELS)
def test_the_model_stays_and_its_own_rows_play_no_part(kind):
    model, site = model_of(kind), site_of(mode=1)
    before = model.rows.copy(), model.biases.copy()
    prior = prior_of(model, 1)
    solved = solve_own(model, prior, site)
    np.testing.assert_array_equal(model.rows, before[0])
    np.testing.assert_array_equal(model.biases, before[1])
    for m in (0, 2):
        np.testing.assert_array_equal(solved.factors[m], model.factors[m])
        np.testing.assert_array_equal(solved.mode_biases[m], model.mode_biases[m])
    other = model.with_rows(1, 5 + model.factors[1], model.mode_biases[1] - 3)
    np.testing.assert_array_equal(solve_own(other, prior, site).rows, solved.rows)


def test_blocks_of_rows_change_nothing(monkeypatch):
    model, site = model_of("cp"), site_of()
    prior = prior_of(model, 0)
    whole = solve_own(model, prior, site)
    monkeypatch.setattr(own_rows, "_BYTES", 0)
    monkeypatch.setattr(own_rows, "_LEAST_ROWS", 2)
    np.testing.assert_array_equal(solve_own(model, prior, site).rows, whole.rows)


def test_one_owner_may_have_fewer_rows_than_the_rank():
    model, single = model_of("cp", dtype=np.float32), site_of((1, 7, 5), mode=1, dtype=np.float32)
    alone = model.with_rows(0, np.zeros((1, 2)), np.zeros(1))
    solved = solve_own(alone, prior_of(alone, 0), single)
    assert solved.shape == (1, 7, 5)
    assert solved.dtype == np.float32
    expected = dense_solution(alone, prior_of(alone, 0), single.tensor, 0)
    np.testing.assert_allclose(solved.factors[0][0], expected[:-1], rtol=1e-4)


@pytest.mark.parametrize("turn", [None, np.array([[1.0, 0.3], [-0.2, 2.0]])], ids=["plain", "turned"])
@pytest.mark.parametrize("bias_precision", [3.0, np.inf])
def test_a_prior_survives_being_written(bias_precision, turn):
    model, site = model_of("cp"), site_of()
    noise = (None, None, RowNoise(np.linspace(0, 1, SIZES[2]), np.array([0.5, 2.0])))
    prior = prior_of(model, 0, bias_precision=bias_precision, row_noise=noise, turn=turn)
    text = json.dumps(prior.to_json(), allow_nan=False)
    again = OwnPrior.from_parts(json.loads(text), prior.tensors(), model.order)
    assert again.to_json() == prior.to_json()
    assert (again.turn is None) == (turn is None)
    np.testing.assert_array_equal(solve_own(model, again, site).rows, solve_own(model, prior, site).rows)


@pytest.mark.parametrize(
    "wrong",
    [
        {"mode": 3},
        {"precisions": np.ones(3)},
        {"precisions": np.array([1.0, 0.0])},
        {"precisions": np.array([1.0, np.nan])},
        {"scatter": 0.0},
        {"scatter": np.inf},
        {"bias_precision": np.nan},
        {"doubts": (None, None)},
        {"doubts": (None, np.ones(6), None)},
        {"doubts": (None, -np.ones(7), None)},
        {"row_noise": (None, RowNoise(np.ones(7), np.ones(3)), None)},
        {"turn": np.eye(3)},
        {"turn": np.ones(2)},
        {"turn": np.diag([1.0, np.nan])},
    ],
    ids=str,
)
def test_a_prior_that_does_not_fit_is_refused(wrong):
    model = model_of("cp")
    settings = {"mode": 0, "precisions": np.ones(2), "scatter": 1.0}
    with pytest.raises(SettingError):
        solve_own(model, OwnPrior(**{**settings, **wrong}), site_of())


def test_a_turn_without_an_inverse_is_refused():
    prior = OwnPrior(mode=0, precisions=np.ones(3), turn=np.ones((3, 3)), scatter=1.0)
    with pytest.raises(SettingError, match="with an inverse"):
        prior.check((4, 5), (3, 3))


@pytest.mark.parametrize("most", [3, 5, 50])
def test_of_many_rows_some_are_asked_as_if_they_were_all(most, monkeypatch):
    """Rows at every so-maniest place have the bits that they have among all."""
    g = np.random.default_rng(0)
    cells = np.stack(np.unravel_index(g.choice(13 * 7, 60, False), (13, 7)))
    tensor = SparseTensor(cells, g.normal(size=60), (Mode("user", 13), Mode("item", 7)))
    model = CPModel.from_factors([np.zeros((13, 2)), g.normal(size=(7, 2))], mean=0.3)
    prior = OwnPrior(
        mode=0,
        precisions=np.array([1.0, 2.0]),
        scatter=0.5,
        bias_precision=3.0,
        pull=Pull(np.array([0.5, 0.2]), np.zeros(2)),
        doubts=(None, g.uniform(0, 1, 7)),
        means=g.normal(size=(13, 2)),
    )
    groups = np.array([0, 1])
    every = -(-13 // most)
    kept = tensor.take(tensor.coordinates[0] % every == 0)
    wanted = own_rows.own_squares(model, prior, Site(kept, 1), groups, 2.0, 2.0**-20)
    monkeypatch.setattr(own_rows, "ASKED_ROWS", most)
    found = own_rows.own_squares(model, prior, Site(tensor, 1), groups, 2.0, 2.0**-20)
    assert np.array_equal(found, wanted)
    other = own_rows.own_squares(
        model, replace(prior, means=None), Site(tensor, 1), groups, 2.0, 2.0**-20
    )
    assert not np.array_equal(found, other)
