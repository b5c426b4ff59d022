"""Alternating private fits: kernels equal their twin, and neighbours never exceed a stated bound.

Bounds are held exactly, in whole numbers: contributions lie on a grid on which sums are exact.
"""

from dataclasses import replace
from fractions import Fraction
from itertools import permutations
from math import sqrt

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sfumato.data.tensor import Mode, SparseTensor
from sfumato.kernels.grid import grid
from sfumato.kernels.numba import alternating as alternating_kernels
from sfumato.kernels.numba import contributions
from sfumato.kernels.numba.alternating import (
    CORE,
    Features,
    Weighting,
    entry_sums,
    padded_metric,
    unit_sums,
)
from sfumato.kernels.reference.alternating import sums_reference
from sfumato.models.multilinear import CPModel, TuckerModel
from sfumato.models.own_prior import OwnPrior
from sfumato.models.shape import Shape
from sfumato.privacy.facts import Facts
from sfumato.privacy.units import Entry, Unit, Value
from sfumato.sites.memory import Site
from sfumato.solvers.least_squares.own_rows import solve_own
from sfumato.solvers.private.alternating import queries as alternating_queries
from sfumato.solvers.private.alternating.queries import (
    BlockQuery,
    Owners,
    OwnQuery,
    ScatterQuery,
    UnitBlockQuery,
)
from sfumato.solvers.private.known import Known

examples = settings(max_examples=12, deadline=None, database=None, derandomize=True)
KINDS = [("cp", 2), ("cp", 3), ("tucker", 3), ("tucker", 4)]
KIND = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: f"{kind[0]}-{kind[1]}")
NAMES = ("user", "item", "day")
SIZES, BOUNDS = (5, 6, 3), (-1.3, 4.1)
MODES = tuple(Mode(name, n) for name, n in zip(NAMES, SIZES, strict=True))


def fill(model, rng, size=1.0):
    for factor in model.factors:
        factor[:] = size * rng.normal(size=factor.shape)
    model.free_core[:] = rng.normal(size=model.free_core.shape)
    model.biases[:] = 0.3 * rng.normal(size=model.biases.shape)
    return model.with_mean(0.4)


def features_of(model, block, rng, *, length=1.0, target=0.7, bias=1.3):
    """Features in random coordinates."""
    if block == CORE:  # a diagonal; no bias
        metric = padded_metric(rng.uniform(0.5, 2.0, (1, model.free_core.size)))
        return Features(metric, length, target, 0.0)
    rank = model.ranks[block]
    return Features(padded_metric(rng.normal(size=(rank, rank))), length, target, bias)


def weighting_of(model, block, rng, bound):
    levels = 1 if block == CORE else model.shape[block]
    return Weighting(rng.uniform(0.3, 2.0, levels), 3.75, bound)


def blocks_of(model, units=None):
    modes = [m for m in range(model.order) if m != units]
    return [*modes, CORE] if model.free_core.size else modes


# -- kernels and their twin -----------------------------------------------------------------------


@st.composite
def problems(draw, kind):
    """A model and entries on few levels, some of them on one; rows past one line of memory too."""
    name, order = kind
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    shape = draw(st.lists(st.integers(2, 9), min_size=order, max_size=order))
    if name == "cp":
        wide = order == 2 and draw(st.booleans())
        shape = [n + 8 for n in shape] if wide else shape
        rank = draw(st.sampled_from([7, 8, 9])) if wide else draw(st.integers(1, min(shape)))
        model = CPModel.zeros(shape, rank)
    else:
        model = TuckerModel.zeros(shape, [draw(st.integers(1, min(3, n))) for n in shape])
    n = draw(st.integers(1, 40))
    cells = np.stack([rng.integers(0, draw(st.sampled_from([1, size])), n) for size in shape])
    modes = tuple(Mode(f"m{i}", size) for i, size in enumerate(shape))
    tensor = SparseTensor(cells, 2 * rng.normal(size=n), modes)
    how = {
        "length": draw(st.sampled_from([0.2, 1.0, 30.0])),
        "target": draw(st.sampled_from([0.3, 9.0])),
    }
    return fill(model, rng), tensor, how, rng


@KIND
@examples
@given(data=st.data())
def test_sums_by_entry_are_those_of_the_twin(kind, data):
    model, tensor, how, rng = data.draw(problems(kind))
    for block in blocks_of(model):
        bias = data.draw(st.sampled_from([0.0, 1.3]))
        features = features_of(model, block, rng, bias=bias, **how)
        one, two = (
            entry_sums(model, block, features, Site(tensor, 1).by_mode(max(block, 0)), threads)
            for threads in (1, 2)
        )
        np.testing.assert_array_equal(one, two)
        slow = sums_reference(model, block, features, tensor.coordinates, tensor.values)
        # Numbers that rounding moves across a line of the grid are cut to the next one.
        np.testing.assert_allclose(one, slow, rtol=0, atol=tensor.n_entries)
        assert (one != 0).any() == (slow != 0).any()


@KIND
@examples
@given(data=st.data())
def test_sums_by_unit_are_those_of_the_twin(kind, data):
    model, tensor, how, rng = data.draw(problems(kind))
    units = data.draw(st.integers(0, model.order - 1))
    for block in blocks_of(model, units):
        features = features_of(model, block, rng, **how)
        # Bounds at which hardly any unit is clipped, some are, and all are.
        weighting = weighting_of(model, block, rng, data.draw(st.sampled_from([0.05, 1.0, 8.0])))
        one, two = (
            unit_sums(model, block, features, weighting, Site(tensor, 1).by_mode(units), units, threads)
            for threads in (1, 2)
        )
        np.testing.assert_array_equal(one, two)
        cells, values = tensor.coordinates, tensor.values
        slow = sums_reference(model, block, features, cells, values, weighting, units)
        np.testing.assert_allclose(one, slow, rtol=0, atol=tensor.n_entries)


def test_levels_without_entries_have_sums_of_zero():
    rng = np.random.default_rng(0)
    model, some = fill(TuckerModel.zeros(SIZES, (2, 2, 2)), rng), random_entries(rng, 20)
    few = tensor_of(some[0] % 2, some[1])
    for block in blocks_of(model):
        features = features_of(model, block, rng)
        entries = Site(few, 2).by_mode(max(block, 0))
        sums = entry_sums(model, block, features, entries, 2)
        assert sums[:2].any(axis=1).all()
        assert not sums[2:].any()
        nothing = Site(tensor_of(*NOTHING), 2).by_mode(max(block, 0))
        assert not entry_sums(model, block, features, nothing, 2).any()


@KIND
@examples
@given(data=st.data())
def test_unclipped_sums_are_the_gradient_of_half_the_squared_error(kind, data):
    model, tensor, _, rng = data.draw(problems(kind))
    for factor in model.factors:
        factor[:] = 0.5 * np.sign(factor)  # designs short enough for a fine grid
    for block in blocks_of(model):
        features = features_of(model, block, rng, length=1e3, target=20.0)
        features = features._replace(metric=padded_metric(np.eye(model.ranks[block])))
        if block == CORE:
            features = features._replace(metric=padded_metric(np.ones((1, model.free_core.size))))
        sums = entry_sums(model, block, features, Site(tensor, 1).by_mode(max(block, 0)), 1)
        sums = sums * grid(features.bound)

        def squares(parameters, step, block=block, sums=sums):
            shifted = model.copy()
            if block == CORE:
                shifted.free_core[:] += step * parameters[0]
            else:
                shifted.factors[block][:] += step * parameters[:, :-1]
                shifted.mode_biases[block][:] += step * 1.3 * parameters[:, -1]
            rest = tensor.values - shifted.predict_reference(tensor.coordinates)
            return 0.5 * float(rest @ rest)

        direction, small = rng.normal(size=sums.shape), 1e-5
        slope = (squares(direction, -small) - squares(direction, small)) / (2 * small)
        cut = grid(features.bound) * tensor.n_entries * np.abs(direction).max() * sums.shape[1]
        assert slope == pytest.approx(float((sums * direction).sum()), rel=1e-6, abs=cut + 1e-5)


# -- neighbours -----------------------------------------------------------------------------------

NOTHING = (np.empty((3, 0), int), np.empty(0))
MODELS = ["cp", "tucker", "cp, rows of a million", "tucker, rows of zero"]
HABITS = ["any", "one day", "one item", "one cell", "every item", "at the cap", "nothing"]
CAP = 40  # entries of a user, as max_entries leaves them


def tensor_of(cells, values, modes=MODES):
    if not len(values):
        one = SparseTensor(np.zeros((len(modes), 1), int), np.zeros(1), modes, BOUNDS)
        return one.take(np.zeros(1, bool))
    return SparseTensor(np.asarray(cells), np.asarray(values, float), modes, BOUNDS)


def random_entries(rng, n):
    return np.stack([rng.integers(size, size=n) for size in SIZES]), 3 * rng.normal(size=n)


def model_of(kind, rng):
    size = 1e6 if "million" in kind else 0.0 if "zero" in kind else 1.0
    if kind.startswith("cp"):
        return fill(CPModel.zeros(SIZES, 2), rng, size)
    return fill(TuckerModel.zeros(SIZES, (2, 3, 2)), rng, size)


@st.composite
def crowds(draw):
    """Entries of users with habits that are hard on bounds, one item rated by everybody."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    everybody, cells = rng.integers(SIZES[1]), []
    for user in range(SIZES[0]):
        habit, n = draw(st.sampled_from(HABITS)), draw(st.integers(1, 25))
        n = CAP - 1 if habit == "at the cap" else n
        day, item = rng.integers(SIZES[2]), rng.integers(SIZES[1])
        items = {"one item": [item] * n, "one cell": [item] * n, "every item": np.arange(SIZES[1])}
        mine = np.array(items.get(habit, rng.integers(SIZES[1], size=n)))
        days = rng.integers(SIZES[2], size=mine.size)
        if habit in ("one day", "one cell", "at the cap"):
            days[:] = day
        if habit != "nothing":
            cells += [np.stack([np.full(mine.size, user), mine, days]), [[user], [everybody], [day]]]
    cells = np.concatenate(cells, axis=1) if cells else NOTHING[0]
    values = rng.choice([BOUNDS[0], BOUNDS[1], 0.1, -1e6, 1e6], cells.shape[1])
    return cells, values, rng


def neighbour(unit, cells, values, rng):
    """The data with one unit changed as the definition of the unit says."""
    if not values.size:
        return cells, values
    one = rng.integers(values.size)
    if isinstance(unit, Value):
        changed = values.copy()
        changed[one] = rng.choice([*BOUNDS, rng.uniform(*BOUNDS), -values[one]])
        return cells, changed
    kept = np.arange(values.size) != one
    if isinstance(unit, Unit):
        kept = cells[0] != cells[0, one]
    return cells[:, kept], values[kept]


def facts_of(unit):
    return Facts(Shape(MODES, (2, 2, 2)), unit, BOUNDS)


def prior_of(model, rng):
    rank = model.ranks[0]
    turn = rng.normal(size=(rank, rank)) + 2 * np.eye(rank)
    return OwnPrior(mode=0, precisions=np.ones(rank), turn=turn, bias_precision=2.0, scatter=0.8)


def questions(unit, model, rng):
    """All that an alternating fit asks where this is the unit, by what it is."""
    known = Known(facts_of(unit), 1.0, pure=False)
    own = 0 if isinstance(unit, Unit) else None
    if own is not None:
        model.mode_biases[0][:] = 0  # as a fit has them: they are each unit's own
    most = float(rng.uniform(0.5, 9))
    asked = {"scatter": ScatterQuery(known, model.mean, tuple(model.mode_biases), most)}
    owners = None if own is None else Owners(prior_of(model, rng), model)
    if owners is not None:
        asked["own moment"] = OwnQuery(owners, float(rng.uniform(0.3, 2)))
    for block in blocks_of(model, own):
        how = {"length": float(rng.uniform(0.1, 3)), "target": float(rng.uniform(0.1, 3))}
        features = features_of(model, block, rng, **how)
        bound = float(rng.uniform(0.05, 3))
        if owners is None:
            asked[f"block {block}"] = BlockQuery(unit, model, block, features)
        else:
            weighting = weighting_of(model, block, rng, bound)
            asked[f"block {block}"] = UnitBlockQuery(model, block, features, weighting, owners)
    return asked


def moved(first, second):
    """By how much numbers differ, exactly."""
    steps = np.ravel(first.values - second.values).tolist()
    return [number * Fraction(first.step) for number in steps]


def squared(numbers):
    """The square of a vector's length."""
    return sum(number**2 for number in numbers)


def assert_within(first, second):
    assert (first.l1, first.l2, first.single) == (second.l1, second.l2, second.single)  # no data in it
    change = moved(first, second)
    assert squared(change) <= Fraction(first.l2) ** 2
    if first.l1 < np.inf:
        assert sum(map(abs, change)) <= Fraction(first.l1)
    if first.single:
        assert np.count_nonzero(change) <= 1


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("unit", [Value(), Entry(), Unit("user")], ids=lambda unit: unit.key)
@examples
@given(drawn=crowds(), threads=st.sampled_from([1, 2]))
def test_neighbours_stay_within_the_bound_exactly(unit, kind, drawn, threads):
    cells, values, rng = drawn
    model, other = model_of(kind, rng), neighbour(unit, cells, values, rng)
    sites = [Site(tensor_of(*given), threads) for given in ((cells, values), other)]
    for query in questions(unit, model, rng).values():
        assert_within(*(query.clipped(site) for site in sites))


@pytest.mark.parametrize("kind", ["cp", "tucker"])
@pytest.mark.parametrize("value", [np.nan, np.inf, 1e300])
@pytest.mark.parametrize("unit", [Entry(), Unit("user")], ids=lambda unit: unit.key)
def test_parameters_beyond_all_numbers_let_nothing_through(unit, kind, value):
    # They would show where entries are and where none is.
    rng = np.random.default_rng(4)
    model = model_of(kind, rng)
    for factor in model.factors:
        factor[:] = value
    cells, values = random_entries(rng, 30)
    full, less = (Site(tensor_of(*given), 1) for given in [(cells, values), (cells[:, 1:], values[1:])])
    if isinstance(unit, Unit):
        less = Site(tensor_of(cells[:, cells[0] != 1], values[cells[0] != 1]), 1)
    for query in questions(unit, model, rng).values():
        with np.errstate(all="ignore"):
            assert_within(query.clipped(full), query.clipped(less))


# -- the bounds are reached, so that none that is stated too small can pass ------------------------

UNIT = Unit("user")
FAR = 1e6  # from what any model here predicts


def reached(query, first, second):
    one, two = (query.clipped(Site(tensor_of(*given), 1)) for given in (first, second))
    ratio = float(squared(moved(one, two))) / one.l2**2
    assert ratio <= 1
    return sqrt(ratio)


def habit(name, n=4000):
    """One user's entries."""
    rng = np.random.default_rng(1)
    cells = np.stack([np.zeros(n, int), rng.integers(SIZES[1], size=n), rng.integers(SIZES[2], size=n)])
    if name == "one day":
        cells[2] = 1
    if name in ("one item", "one cell"):
        cells[1] = 2
    return cells, rng.choice([-FAR, FAR], n, p=[0.2, 0.8])


def clipped_to(query, bound):
    return replace(query, weighting=query.weighting._replace(bound=bound))


@pytest.mark.parametrize("kind", ["cp", "tucker"])
def test_an_entry_reaches_the_bounds_of_all_questions(kind):
    rng = np.random.default_rng(2)
    model = model_of(f"{kind}, rows of a million", rng)
    entry = (np.array([[1], [2], [0]]), np.array([FAR**4]))
    for name, query in questions(Entry(), model, rng).items():
        assert reached(query, entry, NOTHING) > 0.999, name


@pytest.mark.parametrize("kind", ["cp", "tucker"])
def test_a_replaced_value_reaches_the_bounds(kind):
    rng = np.random.default_rng(3)
    model = model_of(f"{kind}, rows of a million", rng)
    cell = np.array([[1], [2], [0]])
    for name, query in questions(Value(), model, rng).items():
        value = FAR**4
        if name == "scatter":  # its least is a residual of zero
            additive = model.mean + model.bias_sum(cell)[0]
            assert reached(query, (cell, [additive]), (cell, [BOUNDS[1] + 99])) > 0.999
            continue
        assert reached(query, (cell, [value]), (cell, [-value])) > 0.999, name


@pytest.mark.parametrize("kind", ["cp", "tucker"])
@pytest.mark.parametrize("name", ["any", "one day", "one item"])
def test_a_unit_reaches_the_bounds_of_its_sums(kind, name):
    rng = np.random.default_rng(4)
    for question, query in questions(UNIT, model_of(kind, rng), rng).items():
        if question.startswith("block"):
            assert reached(clipped_to(query, 0.01), habit(name), NOTHING) > 0.999, question


def test_a_unit_reaches_the_bounds_of_scatter_and_own_moment():
    rng = np.random.default_rng(5)
    model = model_of("cp", rng)
    asked, (cells, values) = questions(UNIT, model, rng), habit("any")
    assert reached(asked["own moment"], (cells, values), NOTHING) > 0.999
    spread = np.where(np.arange(values.size) % 2, *BOUNDS)
    assert reached(replace(asked["scatter"], most=1.0), (cells, spread), NOTHING) > 0.998


def test_a_unit_with_many_entries_adds_about_as_much_as_one_with_few():
    # By its weight alone, the bound being far away: all at one level or one at each.
    rng = np.random.default_rng(6)
    model = model_of("cp", rng)
    query = questions(UNIT, model, rng)["block 1"]
    query, most = clipped_to(query, 1e3), query.features.bound
    for name in ("any", "one item"):
        for n in (1, 30, 3000):
            sums = query.clipped(Site(tensor_of(*habit(name, n)), 1)).numbers
            assert 0 < np.linalg.norm(sums) < most * 1.001


# -- contributions add up, and are everybody's own -------------------------------------------------


def of_unit(cells, values, user, level):
    """One user's entries alone, the user being another level."""
    mine = cells[0] == user
    return np.stack([np.full(mine.sum(), level), *cells[1:, mine]]), values[mine]


@pytest.fixture
def fine_grid(monkeypatch):
    """Contributions cut so finely that a last digit shows; sums of a few of them are still exact."""
    for module in (alternating_kernels, alternating_queries, contributions):
        monkeypatch.setattr(module, "grid", lambda bound: grid(bound) * 2.0**-20)


@pytest.mark.usefixtures("fine_grid")
@pytest.mark.parametrize("kind", ["cp", "tucker"])
@pytest.mark.parametrize("seed", range(4))
def test_a_unit_adds_the_same_whoever_else_is_there(kind, seed):
    rng = np.random.default_rng(seed)
    cells, values = random_entries(rng, 60)
    cells[0] = rng.choice([0, 1, 3, 4], 60)  # nobody is 2
    for query in questions(UNIT, model_of(kind, rng), rng).values():
        together = query.clipped(Site(tensor_of(cells, values), 2)).values
        alone = [
            query.clipped(Site(tensor_of(*of_unit(cells, values, user, rng.integers(5))), 1)).values
            for user in (0, 1, 3, 4)
        ]
        for order in permutations(alone):
            np.testing.assert_array_equal(sum(order), together)


@pytest.mark.usefixtures("fine_grid")
@pytest.mark.parametrize("kind", ["cp", "tucker"])
@pytest.mark.parametrize("unit", [Entry(), Value()], ids=lambda unit: unit.key)
def test_an_entry_adds_the_same_whatever_else_its_owner_has(kind, unit):
    # Own rows, or anything else that hangs on several entries, would carry one into another's part.
    rng = np.random.default_rng(7)
    cells, values = random_entries(rng, 30)
    for query in questions(unit, model_of(kind, rng), rng).values():
        assert not hasattr(query, "owners")
        together = query.clipped(Site(tensor_of(cells, values), 2)).values
        alone = [query.clipped(Site(tensor_of(cells[:, [e]], values[[e]]), 1)).values for e in range(30)]
        np.testing.assert_array_equal(sum(alone), together)


@pytest.mark.parametrize("rank", [3, 8, 20])
def test_own_moments_add_up_whoever_else_is_there(rank, monkeypatch):
    # On a grid of 51 bits.
    for module in (alternating_queries, contributions):
        monkeypatch.setattr(module, "grid", lambda bound: grid(bound) * 2.0**-22)
    rng = np.random.default_rng(rank)
    users, items = 4 + rank, 40  # all but four of them are nobody
    model = fill(CPModel.zeros((users, items), rank), rng)
    query = OwnQuery(Owners(prior_of(model, rng), model), sqrt(rank))
    cells = np.stack([rng.integers(4, size=90), rng.integers(items, size=90)])
    values, modes = rng.normal(size=90), (Mode("user", users), Mode("item", items))
    together = query.clipped(Site(tensor_of(cells, values, modes), 2)).values
    alone = [
        query.clipped(Site(tensor_of(*of_unit(cells, values, user, place), modes), 1)).values
        for user, place in enumerate((0, users - 1, 2, 1))
    ]
    np.testing.assert_array_equal(sum(alone), together)


@pytest.mark.parametrize("rank", [1, 2, 3, 5, 8, 13, 20, 32])
def test_own_rows_are_the_same_to_the_last_bit_whoever_else_is_there(rank):
    # BLAS rounds a row by its place: matrix products would tell of others.
    rng = np.random.default_rng(rank)
    units, items = 35, 40
    model = fill(CPModel.zeros((units, items), rank), rng)
    prior = prior_of(model, rng)
    cells = np.stack([rng.integers(units, size=600), rng.integers(items, size=600)])
    values = rng.normal(size=600)
    modes = (Mode("user", units), Mode("item", items))
    whole = solve_own(model, prior, Site(tensor_of(cells, values, modes), 2))
    for user in range(0, units, 6):
        one = of_unit(cells, values, user, 0)
        nobody = model.with_rows(0, np.zeros((1, rank)), np.zeros(1))
        single = tensor_of(*one, (Mode("user", 1), modes[1]))
        row = solve_own(nobody, prior, Site(single, 1))
        np.testing.assert_array_equal(row.factors[0][0], whole.factors[0][user])
        assert row.mode_biases[0][0] == whole.mode_biases[0][user]


def test_the_triangle_keeps_lengths():
    rng = np.random.default_rng(9)
    size = 4
    rows = rng.normal(size=(3, size))
    products = [np.outer(row, row) for row in rows]
    first, second = np.triu_indices(size)
    flat = np.array([p[first, second] * np.where(first == second, 1, sqrt(2)) for p in products])
    np.testing.assert_allclose(np.linalg.norm(flat, axis=1), np.sum(rows**2, axis=1), rtol=1e-14)
    np.testing.assert_allclose(alternating_queries.symmetric(flat, size), products, rtol=1e-14)
