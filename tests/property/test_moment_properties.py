"""Cells of owners: kernels against their twins, neighbours that never move an answer beyond its bound.

Exactly, in whole steps: no tolerance.
"""

from fractions import Fraction
from math import inf

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sfumato.data.tensor import Mode, SparseTensor
from sfumato.kernels.grid import grid
from sfumato.kernels.numba.cells import (
    Centring,
    Shortening,
    centred_rests,
    moment_of_cells,
    project_cells,
    sum_of_cells,
)
from sfumato.kernels.numba.contributions import Taken
from sfumato.kernels.reference.cells import (
    centred_rests_reference,
    moment_of_cells_reference,
    project_cells_reference,
)
from sfumato.models.own_prior import OwnPrior, Pull
from sfumato.models.shape import Shape
from sfumato.privacy.facts import Facts
from sfumato.privacy.units import Entry, Unit
from sfumato.sites.memory import Site
from sfumato.solvers.private.contributions import owned_entries
from sfumato.solvers.private.known import Known
from sfumato.solvers.private.level_sums import CountsQuery, SumsQuery
from sfumato.solvers.private.moments.queries import (
    Levels,
    MomentQuery,
    OwnQuery,
    ProjectionQuery,
    Residuals,
)

examples = settings(max_examples=40, deadline=None, database=None, derandomize=True)
BOUNDS = (1.0, 5.0)
ITEMS = 40


def modes(order):
    return tuple(Mode(name, size) for name, size in (("user", 4), ("item", ITEMS), ("place", 3))[:order])


def tensor(cells, values, order):
    return SparseTensor(np.asarray(cells), np.asarray(values, float), modes(order), bounds=BOUNDS)


@st.composite
def pairs(draw, order=None):
    """Data of a few owners, and the same without one entry, or without one owner."""
    order = order or draw(st.sampled_from([2, 3]))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    sizes = tuple(mode.size for mode in modes(order))
    full = int(draw(st.sampled_from([1, 2, 5, 30, ITEMS])))  # cells of the first owner
    cells = [np.zeros(full, int), rng.permutation(ITEMS)[:full]]
    cells += [rng.integers(0, sizes[2], full)] if order == 3 else []
    others = rng.integers(0, np.array(sizes)[:, None], (order, 30))
    others[0] = np.maximum(others[0], 1)
    if order == 3 and full > 1:  # several entries of one owner at one level
        again = [np.zeros(3, int), np.full(3, cells[1][0]), np.arange(3)]
        cells = [np.concatenate(part) for part in zip(cells, again, strict=True)]
    cells = np.unique(np.concatenate([np.array(cells), others], 1), axis=1)
    if draw(st.booleans()):  # duplicates are entries of their own
        cells = np.concatenate([cells, cells[:, rng.permutation(cells.shape[1])[:20]]], 1)
        cells = cells[:, np.lexsort(cells[::-1])]
    number = cells.shape[1]
    kind = draw(st.sampled_from(["one sign", "two ends", "any"]))
    values = {
        "one sign": np.full(number, 5.0),
        "two ends": rng.choice([1.0, 5.0], number),
        "any": rng.uniform(1, 5, number),
    }[kind]
    mine = np.flatnonzero(cells[0] == 0)
    gone = draw(st.sampled_from(mine.tolist()))
    if kind == "one sign":
        values[gone] = 1.0
    return order, tensor(cells, values, order), gone


def without(data, gone, unit):
    if isinstance(unit, Entry):
        return data.take(np.arange(data.n_entries) != gone)
    return data.take(data.coordinates[0] != 0)


def facts_of(order, unit, rank=4):
    shape = Shape(modes(order), (rank,) * order)
    return Facts(shape, unit, BOUNDS, None, None, 0)


def far_apart(query, data, gone, unit):
    """Squared change between neighbours, and the squared bound, as fractions."""
    one = query.clipped(Site(data, 1))
    other = query.clipped(Site(without(data, gone, unit), 1))
    assert one.bounds == other.bounds
    steps = (one.values - other.values).astype(object)
    return Fraction(one.step) ** 2 * sum(int(s) ** 2 for s in steps.ravel()), Fraction(one.l2) ** 2


def residuals(draw, order, rng):
    biases = tuple(
        rng.normal(size=mode.size) * draw(st.sampled_from([0.0, 0.5])) for mode in modes(order)
    )
    return Residuals(
        3.0, biases, draw(st.sampled_from([0.3, 1.0, 4.0])), draw(st.sampled_from([0.5, 30.0]))
    )


def directions_for(data, draw, rng):
    """Random ones, and one along what the first owner has."""
    made = rng.normal(size=(ITEMS, 3)) * draw(st.sampled_from([0.05, 1.0]))
    if draw(st.booleans()):
        made[:, 0] = 0
        here = data.coordinates[0] == 0
        made[data.coordinates[1][here], 0] = np.sign(data.values[here] - 3) + 0.1
    return np.linalg.qr(made)[0] * draw(st.sampled_from([0.5, 1.0, 3.0]))


UNITS = [Entry(), Unit("user")]


@pytest.mark.parametrize("unit", UNITS, ids=str)
@examples
@given(data=st.data())
def test_no_neighbour_moves_an_answer_further_than_it_states(unit, data):
    order, whole, gone = data.draw(pairs())
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    facts, weights = facts_of(order, unit), np.exp(rng.normal(size=ITEMS))
    seen = data.draw(st.sampled_from([None, residuals(data.draw, order, rng)]))
    levels = Levels(facts, 0, 1, weights, seen)
    kept = np.sort(rng.permutation(ITEMS)[: data.draw(st.sampled_from([2, 10, ITEMS]))])
    places = np.full(ITEMS, -1)
    places[kept] = np.arange(kept.shape[0])
    reach = data.draw(st.sampled_from([0.05, 0.4, 1.0]))
    for query in (
        MomentQuery(levels, places),
        ProjectionQuery(levels, directions_for(whole, data.draw, rng), reach, 3.0, 0.6),
    ):
        moved, bound = far_apart(query, whole, gone, unit)
        assert moved <= bound


@examples
@given(data=st.data())
def test_no_entry_moves_sums_about_owners_means_further_than_they_state(data):
    order, whole, gone = data.draw(pairs())
    known = Known(facts_of(order, Entry()), 1.0, pure=False)
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    biases = tuple(0.5 * rng.normal(size=mode.size) for mode in modes(order))
    clip = data.draw(st.sampled_from([0.3, 1.0, 4.0]))
    for mode in range(1, order):
        for query in (SumsQuery(known, mode, 3.0, biases, clip, clip, None), CountsQuery(known, mode)):
            moved, bound = far_apart(query, whole, gone, Entry())
            assert moved <= bound


@pytest.mark.parametrize("unit", UNITS, ids=str)
@examples
@given(data=st.data())
def test_no_neighbour_moves_squares_of_own_rows_further_than_they_state(unit, data):
    order, whole, gone = data.draw(pairs())
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    facts = facts_of(order, unit)
    model = facts.shape.zeros().with_mean(3.0)
    for factor in model.factors[1:]:
        factor[:] = rng.normal(size=factor.shape) * data.draw(st.sampled_from([0.1, 3.0]))
    prior = OwnPrior(
        mode=0,
        precisions=np.array([0.1, 1.0, 1.0, 30.0]),
        pull=Pull(rng.normal(size=4), rng.normal(size=4)),
        bias_precision=2.0,
        scatter=0.7,
    )
    query = OwnQuery(facts, model, prior, np.array([0, 0, 1, 2]), data.draw(st.sampled_from([0.5, 3.0])))
    moved, bound = far_apart(query, whole, gone, unit)
    assert moved <= bound


def test_bounds_are_reached_nearly():
    """A bound that nothing comes close to would be noise for nothing."""
    facts = facts_of(2, Entry())
    whole = tensor([np.zeros(ITEMS, int), np.arange(ITEMS)], np.full(ITEMS, 4.0), 2)
    levels = Levels(facts, 0, 1, np.ones(ITEMS), None)
    moved, bound = far_apart(MomentQuery(levels, np.arange(ITEMS)), whole, 0, Entry())
    assert moved > 0.9 * bound
    ones = np.ones((ITEMS, 1)) / np.sqrt(ITEMS)
    moved, bound = far_apart(ProjectionQuery(levels, ones, 0.5, 1.0, 1.0), whole, 0, Entry())
    assert moved > 0.5 * bound


# -- kernels and their twins ----------------------------------------------------------------------


@examples
@given(data=st.data())
def test_kernels_are_their_twins(data):
    order, whole, _ = data.draw(pairs())
    facts, rng = facts_of(order, Entry()), np.random.default_rng(data.draw(st.integers(0, 99)))
    for threads in (1, 2):
        site = Site(whole, threads)
        entries, cells = owned_entries(site, facts.bounds, 0), site.cells(0, 1)
        how = Centring(data.draw(st.sampled_from([0.3, 1.0])), 5.0)
        taken = Taken.only(3.0, order - 1)
        rests = centred_rests(entries, taken, cells, how, threads)
        np.testing.assert_allclose(
            rests, centred_rests_reference(entries, taken, cells, how), atol=1e-12
        )
        places, step = np.where(rng.random(ITEMS) < 0.7, 0, -1), grid(0.5)
        places[places == 0] = np.arange(np.count_nonzero(places == 0))
        for power in (1.0, 2.0):
            made = moment_of_cells(cells, rests, places, power, step, threads)
            twin = moment_of_cells_reference(cells, rests, places, power, step)
            assert np.abs(made - twin).max(initial=0) <= 4
        weights, directions = np.exp(rng.normal(size=ITEMS)), rng.normal(size=(ITEMS, 3))
        for how in (Shortening(3.0, inf), Shortening(3.0, 0.6)):
            made = project_cells(cells, rests, weights, directions, 0.3, how, step, threads)
            twin = project_cells_reference(cells, rests, weights, directions, 0.3, how, step)
            assert np.abs(made - twin).max() <= 4
        by_level = np.zeros(ITEMS, np.int64)
        np.add.at(by_level, cells.levels, np.trunc(rests / step).astype(np.int64))
        np.testing.assert_array_equal(sum_of_cells(cells, rests, ITEMS, step, threads), by_level)


def test_cells_are_the_different_levels_of_an_owner():
    whole = tensor([[0, 0, 0, 1, 2], [3, 3, 1, 0, 7], [0, 1, 2, 2, 0]], [1, 2, 3, 4, 5], 3)
    cells = Site(whole, 1).cells(0, 1)
    assert cells.starts.tolist() == [0, 2, 3, 4, 4]
    assert cells.levels.tolist() == [1, 3, 0, 7]
    order = np.lexsort(whole.coordinates[::-1])
    assert cells.levels[cells.of_entry].tolist() == whole.coordinates[1][order].tolist()
