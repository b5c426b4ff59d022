"""One entry, or one owner, never moves what private pairs ask for by more than is stated."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sfumato.data.tensor import Mode, SparseTensor
from sfumato.models.shape import Shape
from sfumato.privacy.facts import Facts
from sfumato.privacy.units import Entry, Unit
from sfumato.sites.memory import Site
from sfumato.solvers.private.known import Known
from sfumato.solvers.private.pairs.queries import (
    AlikeQuery,
    LevelSumsQuery,
    OwnAlikeQuery,
    PairSumsQuery,
    Released,
    WeightQuery,
)
from sfumato.solvers.private.pairs.solver import _level_weights

examples = settings(max_examples=60, deadline=None, database=None, derandomize=True)
SIZES, BOUNDS = (4, 5, 6), (-1.0, 3.0)
MODES = tuple(Mode(name, n) for name, n in zip(("user", "item", "tag"), SIZES, strict=True))
HABITS = ("any", "one pair", "one pair, one sign", "one pair, the last one apart", "one owner")


def entries(habit, seed, number):
    g = np.random.default_rng(seed)
    cells = np.stack([g.integers(0, n, number) for n in SIZES])
    values = g.uniform(-2.0, 4.0, number)
    if habit.startswith("one pair"):
        cells[:2] = 0
    if habit == "one owner":
        cells[0] = 0
        values = np.where(cells[1] % 2, 3.0, -1.0)
    if habit == "one pair, one sign":
        values[:] = 3.0
    if habit == "one pair, the last one apart":
        values[:], values[-1] = 3.0, -1.0
    return cells.astype(np.int32), values


def site(cells, values):
    order = np.lexsort(cells[::-1])
    cells, values = cells[:, order], values[order]
    return Site(SparseTensor(cells, values, MODES, BOUNDS, _checked=True), 1)


def known_of(unit, local, pure):
    shape = Shape(MODES, (20, 20, 20))
    return Known(Facts(shape, unit, BOUNDS, 40, 1.0, local), 1.0, pure)


def released(seed):
    g = np.random.default_rng(seed)
    return Released(1.0, tuple(0.1 * g.standard_normal(n) for n in SIZES))


def questions(known, seed):
    if known.facts.local is not None:
        return [OwnAlikeQuery(known, replace(released(seed), mean=1.0))]
    g, made = np.random.default_rng(seed), released(seed)
    sums = 3 * g.standard_normal(20)
    return [
        AlikeQuery(known, made, 1.3),
        PairSumsQuery(known, made, (0, 1), 1.3),
        LevelSumsQuery(known, made, *_level_weights(known), 1.3),
        WeightQuery(known, made, (0, 1), 1.3, sums, np.ones(20), np.full(20, 2.0), 2.0),
    ]


def moved(query, first, second):
    one, other = query.clipped(first), query.clipped(second)
    assert one.bounds == other.bounds
    return np.abs(one.values - other.values).astype(object), one


def check(query, first, second):
    """In whole numbers: without rounding."""
    steps, clipped = moved(query, first, second)
    l1, l2 = clipped.l1 / clipped.step, clipped.l2 / clipped.step
    assert sum(steps) <= l1
    assert sum(step**2 for step in steps) <= l2**2
    assert not clipped.single or np.count_nonzero(steps) <= 1


@pytest.mark.parametrize("pure", [False, True])
@pytest.mark.parametrize("local", [None, 0])
@examples
@given(st.sampled_from(HABITS), st.integers(0, 10_000), st.integers(1, 25))
def test_neighbours_stay_within_the_bound(local, pure, habit, seed, number):
    cells, values = entries(habit, seed, number)
    known = known_of(Entry(), local, pure)
    for query in questions(known, seed):
        check(query, site(cells, values), site(cells[:, :-1], values[:-1]))
    if local is not None:
        known, gone = known_of(Unit("user"), 0, pure), cells[0] != cells[0, -1]
        for query in questions(known, seed):
            check(query, site(cells, values), site(cells[:, gone], values[gone]))


def test_the_bounds_are_nearly_reached():
    """How alike a pair is, by an entry that is not like forty others; and all that an owner tells."""
    cells, values = entries("one pair, the last one apart", 0, 41)
    query = AlikeQuery(
        known_of(Entry(), None, False), replace(released(0), biases=(np.zeros(6),) * 3), 1.0
    )
    steps, clipped = moved(query, site(cells, values), site(cells[:, :-1], values[:-1]))
    assert max(steps) * clipped.step > 0.9 * 3
    cells = np.array([[0] * 4, [0, 0, 1, 1], [0, 1, 2, 3]], np.int32)
    query = OwnAlikeQuery(known_of(Entry(), 0, False), replace(released(0), biases=(np.zeros(6),) * 3))
    both = site(cells, np.array([3.0, 3.0, -1.0, -1.0])), site(cells, np.array([3.0, -1.0, 3.0, -1.0]))
    steps, clipped = moved(query, *both)
    assert steps[0] * clipped.step > 0.75
