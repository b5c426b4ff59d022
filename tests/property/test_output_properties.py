"""Output perturbation: kernels and twins agree, and no neighbour moves a row further than its bound."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sfumato.data.tensor import Mode, SparseTensor
from sfumato.kernels.numba.private_output import Equations, RidgePlan, longest_responses, row_equations
from sfumato.kernels.reference.private_output import row_features_reference
from sfumato.models.multilinear import CPModel, TuckerModel
from sfumato.models.shape import Shape
from sfumato.privacy.clipping import clip_values
from sfumato.privacy.facts import Facts
from sfumato.privacy.units import Entry, Unit, UnitValues, Value
from sfumato.sites.memory import Site
from sfumato.solvers.private.output import (
    clipped_rows,
    constrained_ridge,
    gain,
    joint_gain,
    ridge_plan,
    rowwise_gain,
)

examples = settings(max_examples=12, deadline=None, database=None, derandomize=True)
many = settings(max_examples=150, deadline=None, database=None, derandomize=True)
KINDS = ["cp-2", "cp-3", "tucker-3"]


def problem(kind, rng, entries=30):
    name, order = kind.split("-")
    shape = [int(n) for n in rng.integers(3, 7, int(order))]
    if name == "cp":
        model = CPModel.zeros(shape, int(rng.integers(1, 4)))
    else:
        model = TuckerModel.zeros(shape, [int(r) for r in rng.integers(1, 4, int(order))])
    for factor in model.factors:
        factor[:] = rng.normal(size=factor.shape)
    model.free_core[:] = rng.normal(size=model.free_core.shape)
    model.biases[:] = 0.2 * rng.normal(size=model.biases.shape)
    cells = np.stack([rng.integers(0, n, entries) for n in shape])
    modes = tuple(Mode(f"m{i}", n) for i, n in enumerate(shape))
    return model.with_mean(0.3), SparseTensor(cells, rng.uniform(-1, 1, entries), modes)


def rows_of(features, targets, ridge, radius):
    sums = Equations((features.T @ features)[None], (features.T @ targets)[None])
    return constrained_ridge(sums, ridge, radius)[0]


def shorten(features, bound):
    length = np.linalg.norm(features, axis=1, keepdims=True)
    return features * np.minimum(1, bound / np.maximum(length, 1e-300))


# -- kernels ------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@examples
@given(st.integers(0, 2**32))
def test_row_equations_and_longest_responses(kind, seed):
    rng = np.random.default_rng(seed)
    model, tensor = problem(kind, rng)
    mode = int(rng.integers(0, model.order))
    rank = model.ranks[mode]
    plan = RidgePlan(mode, rng.normal(size=(rank, rank)), 0.8, 0.9, 1.0, 0.5, 1.0, 1.0, 1.0)
    entries = Site(tensor, 1).by_mode(mode)
    sums = row_equations(model, plan, entries, entries.values)
    features, targets = row_features_reference(model, plan, tensor.coordinates, tensor.values)
    longest = longest_responses(model, plan, entries, sums.gram)
    for level in range(model.shape[mode]):
        here = tensor.coordinates[mode] == level
        f, t = features[here], targets[here]
        np.testing.assert_allclose(sums.gram[level], f.T @ f, atol=1e-10)
        np.testing.assert_allclose(sums.rhs[level], f.T @ t, atol=1e-10)
        responses = np.linalg.solve(f.T @ f + 0.5 * np.eye(rank), f.T)
        expected = np.linalg.norm(responses, axis=0).max(initial=0.0)
        assert longest[level] == pytest.approx(expected, abs=1e-10)


@many
@given(st.integers(0, 2**32), st.sampled_from([0.01, 0.3, 1.0, np.inf]))
def test_rows_meet_the_conditions_of_the_constrained_minimum(seed, radius):
    """H c - b = -mu c with mu >= 0, and mu = 0 inside the ball."""
    rng = np.random.default_rng(seed)
    size, n = int(rng.integers(1, 5)), int(rng.integers(0, 8))
    ridge = float(10.0 ** rng.uniform(-3, 2))
    f, t = rng.normal(size=(n, size)), 3 * rng.normal(size=n)
    c = rows_of(f, t, ridge, radius)
    slope = (f.T @ f + ridge * np.eye(size)) @ c - f.T @ t
    scale = 1 + np.abs(f.T @ t).max(initial=0.0)
    length = np.linalg.norm(c)
    assert length <= radius * (1 + 1e-12)
    if length < radius * (1 - 1e-9):
        np.testing.assert_allclose(slope, 0, atol=1e-9 * scale)
    else:
        mu = -(slope @ c) / (c @ c)
        assert mu >= -1e-9 * scale
        np.testing.assert_allclose(slope, -mu * c, atol=1e-7 * scale)


# -- sensitivities ------------------------------------------------------------------------------


@st.composite
def neighbours(draw, most=5):
    """Features and targets of some rows, and up to ``most`` entries that come, go or change."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    size, rows = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    bound = draw(st.sampled_from([0.1, 0.7, 1.0, 3.0]))
    ridge = draw(st.sampled_from([0.01, 0.5, 1.0, 20.0]))
    reach, radius = draw(st.sampled_from([0.5, 2.0])), draw(st.sampled_from([0.05, 0.5, 3.0]))
    n, extra = draw(st.integers(0, 6)), draw(st.integers(1, most))

    def entries(count):
        # Spread over few directions and at the ends of the range: neighbours that try to do harm.
        along = rng.normal(size=(count, size)) * 10.0 ** rng.uniform(-1, 1, (count, 1))
        if draw(st.booleans()):
            along[:] = rng.normal(size=size)
        targets = reach * rng.choice([-1.0, 1.0, rng.uniform(-1, 1)], count)
        return shorten(along, bound), targets, rng.integers(0, rows, count)

    return (size, rows, bound, ridge, reach, radius), entries(n), entries(extra)


def solve(rows, size, ridge, radius, *groups):
    f, t, levels = (np.concatenate(parts) for parts in zip(*groups, strict=True))
    return np.stack(
        [rows_of(f[levels == k].reshape(-1, size), t[levels == k], ridge, radius) for k in range(rows)]
    )


def keeps_to(moved, entries, rows, span, bound, ridge):
    lengths = np.linalg.norm(moved, axis=1)
    assert np.linalg.norm(lengths) <= span * joint_gain(entries, bound, ridge) * (1 + 1e-9)
    assert lengths.sum() <= span * rowwise_gain(entries, rows, bound, ridge) * (1 + 1e-9)


@many
@given(neighbours())
def test_entries_that_come_or_go(case):
    (size, rows, bound, ridge, reach, radius), base, extra = case
    without = solve(rows, size, ridge, radius, base)
    within = solve(rows, size, ridge, radius, base, extra)
    span = reach + bound * radius
    keeps_to(within - without, len(extra[1]), rows, span, bound, ridge)


@many
@given(neighbours(), st.booleans())
def test_values_that_are_replaced(case, inside):
    (size, rows, bound, ridge, reach, radius), base, extra = case
    radius = np.inf if inside else radius
    replaced = (extra[0], -extra[1], extra[2])
    one = solve(rows, size, ridge, radius, base, extra)
    other = solve(rows, size, ridge, radius, base, replaced)
    keeps_to(other - one, len(extra[1]), rows, 2 * reach, bound, ridge)


@pytest.mark.parametrize(("bound", "ridge"), [(0.5, 1.0), (1.0, 1.0), (3.0, 1.0), (2.0, 0.1)])
@pytest.mark.parametrize("entries", [1, 4])
def test_the_bound_on_replaced_values_is_reached(bound, ridge, entries):
    """Entries of one feature, as long as is worst; without a ball."""
    length = min(bound, np.sqrt(ridge / entries))
    f, t = np.full((entries, 1), length), np.ones(entries)
    moved = rows_of(f, t, ridge, np.inf) - rows_of(f, -t, ridge, np.inf)
    assert np.linalg.norm(moved) == pytest.approx(2 * joint_gain(entries, bound, ridge))


@pytest.mark.parametrize("bound", [0.5, 1.0])
def test_the_bound_on_an_entry_is_reached_in_the_limit(bound):
    """Many faint entries hold the row at -R and add nothing to its Gram matrix; the new one, as long
    as it may be, pulls the other way."""
    ridge, reach, radius, n = 1.0, 1.0, 0.8, 100_000
    faint = np.full((n, 1), ridge * radius / (n * reach))
    held = rows_of(faint, np.full(n, -reach), ridge, radius)
    assert held[0] == pytest.approx(-radius, rel=1e-4)
    more = np.vstack([faint, [[bound]]]), np.append(np.full(n, -reach), reach)
    moved = np.linalg.norm(rows_of(*more, ridge, radius) - held)
    most = (reach + bound * radius) * gain(bound, ridge)
    assert 0.999 * most <= moved <= most


def test_the_exact_bound_for_values_fails_on_the_ball():
    """Why rows of the unit Value are not constrained: on the sphere a row can move by more than
    W max_e |H^-1 f_e|, though never by more than W g(B)."""
    tilt, n, extra, change = 0.01, 10, 1e-3, 1e-4
    f = np.array([[tilt if i % 2 else -tilt, 1.0] for i in range(n)])
    ridge = n * tilt - n * tilt**2
    h = f.T @ f + ridge * np.eye(2)
    sine = np.sqrt(h[0, 0] / h[1, 1])
    c = np.array([-sine, np.sqrt(1 - sine**2)])
    t = np.linalg.lstsq(f.T, (h + extra * np.eye(2)) @ c, rcond=None)[0]
    other = t.copy()
    other[0] += change
    exact = np.linalg.norm(np.linalg.solve(h, f.T), axis=0).max()

    def moved(radius):
        return np.linalg.norm(rows_of(f, other, ridge, radius) - rows_of(f, t, ridge, radius)) / change

    assert moved(1.0) > 3 * exact
    assert moved(1.0) <= gain(np.linalg.norm(f[0]), ridge)
    assert moved(np.inf) <= exact * (1 + 1e-6)


def test_without_the_ball_an_entry_has_no_bound():
    """A row can be as long as its data like: the residual of a new entry has no bound then."""
    moves = []
    for scale in (1.0, 10.0, 100.0):
        f, t = np.full((1000, 1), 1 / scale), np.ones(1000)
        more = np.vstack([f, [[1.0]]]), np.append(t, -1.0)
        moves.append(np.linalg.norm(rows_of(*more, 1e-6, np.inf) - rows_of(f, t, 1e-6, np.inf)))
    assert moves == sorted(moves)
    assert moves[-1] > 50 * moves[0]


@pytest.mark.parametrize("ridge", [0.3, 5.0])
def test_spreading_entries_over_rows_is_worst_for_the_sum_over_rows(ridge):
    """rowwise_gain is the largest of sum_k h(N_k) over all ways to spread N entries."""
    for entries, rows in ((1, 4), (3, 4), (6, 4), (9, 2)):
        ways = np.array(np.meshgrid(*[np.arange(entries + 1)] * rows)).reshape(rows, -1).T
        ways = ways[ways.sum(axis=1) == entries]
        sums = [sum(joint_gain(n, 0.7, ridge) for n in way if n) for way in ways]
        assert max(sums) <= rowwise_gain(entries, rows, 0.7, ridge) * (1 + 1e-12)


def test_the_bound_for_units_is_no_larger_than_the_simpler_one():
    for entries in (1, 3, 50):
        for bound in (0.1, 1.0, 5.0):
            simple = min(entries * bound / 2.0, np.sqrt(entries / 2.0) / 2)
            assert joint_gain(entries, bound, 2.0) <= simple * (1 + 1e-12)


# -- from the data to what is released ------------------------------------------------------------


@pytest.mark.parametrize("kind", ["cp-3", "tucker-3"])
@pytest.mark.parametrize("unit", [Value(), UnitValues("m0", 3), Entry(), Unit("m0", 3), Unit("m2", 3)])
@examples
@given(st.integers(0, 2**32))
def test_neighbouring_tensors_keep_to_what_the_release_says(kind, unit, seed):
    rng = np.random.default_rng(seed)
    model, tensor = problem(kind, rng, entries=40)
    shape = Shape(tensor.modes, model.ranks, kind.split("-")[0])
    facts = Facts(shape, unit, (-1.0, 1.0), entries=40)
    plan = ridge_plan(facts, model, model.order - 1)
    if isinstance(unit, Unit | UnitValues):
        column = tensor.coordinates[int(unit.mode[1])]
        touched = np.flatnonzero(column == column[0])[:3]
    else:
        touched = np.array([int(rng.integers(0, 40))])
    if unit.replaces:
        values = tensor.values.copy()
        values[touched] = -np.sign(values[touched])
        other = tensor.with_values(values)
    else:
        other = tensor.take(np.setdiff1d(np.arange(40), touched))
    released = []
    for data in (tensor, other):
        entries = Site(data, 1).by_mode(plan.mode)
        values = clip_values(entries.values, -1.0, 1.0)
        released.append(clipped_rows(facts, plan, model, entries, values))
    one, two = released
    assert len(one.public) == (0 if unit.hides_presence else 2)
    for public, same in zip(one.public, two.public, strict=True):  # scales and Gram matrices
        np.testing.assert_array_equal(public, same)
    assert (one.l2, one.rowwise) == (two.l2, two.rowwise)
    lengths = np.linalg.norm(one.numbers - two.numbers, axis=1)
    assert np.linalg.norm(lengths) <= one.l2 * (1 + 1e-9)
    assert lengths.sum() <= one.rowwise * (1 + 1e-9)


@pytest.mark.parametrize(
    ("unit", "entries", "rows", "hidden"),
    [
        (UnitValues("m0", 3), 3, 5, False),
        (Entry(), 1, 5, True),
        (Unit("m0", 3), 3, 5, True),
        (Unit("m2", 3), 3, 1, True),  # a level of the noisy mode has one row
    ],
)
def test_the_release_states_the_proven_bounds(unit, entries, rows, hidden):
    rng = np.random.default_rng(3)
    model = CPModel.from_factors([rng.normal(size=(n, 2)) for n in (4, 6, 5)])
    cells = np.stack([rng.integers(0, n, 30) for n in model.shape])
    modes = tuple(Mode(f"m{i}", n) for i, n in enumerate(model.shape))
    tensor = SparseTensor(cells, rng.uniform(-1, 1, 30), modes)
    facts = Facts(Shape(modes, (2, 2, 2)), unit, (-1.0, 1.0), entries=30)
    plan = ridge_plan(facts, model, 2)
    by_mode = Site(tensor, 1).by_mode(2)
    clipped = clipped_rows(facts, plan, model, by_mode, by_mode.values)
    span = plan.reach + plan.bound * plan.radius if hidden else min(2.0, 2 * plan.reach)
    assert np.isfinite(plan.radius)
    assert clipped.l2 == pytest.approx(span * joint_gain(entries, plan.bound, plan.ridge))
    assert clipped.rowwise == pytest.approx(span * rowwise_gain(entries, rows, plan.bound, plan.ridge))
    # Rows are not scaled; where positions are hidden, so are the Gram matrices.
    assert len(clipped.public) == (0 if hidden else 2)
    assert hidden or (clipped.public[0] == 1).all()
