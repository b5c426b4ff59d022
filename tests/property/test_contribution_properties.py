"""Neighbouring data never move a statistic of the private biases by more than the bound it states.

Exactly: no tolerance, since contributions lie on a grid on which sums are exact.
"""

from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sfumato.data.tensor import Mode, SparseTensor
from sfumato.kernels.grid import cut, grid
from sfumato.kernels.numba.contributions import (
    Contribution,
    Entries,
    Taken,
    entry_sums,
    means_of_units,
    moment_of_rows,
    scales_of_owners,
    squares_of_entries,
    squares_of_units,
    total_of_entries,
    unit_counts,
    unit_sums,
)
from sfumato.kernels.reference.contributions import (
    entry_sums_reference,
    means_of_units_reference,
    moment_of_rows_reference,
    rest_reference,
    scales_of_owners_reference,
    squares_of_units_reference,
    unit_sums_reference,
)
from sfumato.models.shape import Shape
from sfumato.privacy.facts import Facts
from sfumato.privacy.units import Entry, Unit, UnitValues, Value
from sfumato.sites.memory import Site
from sfumato.solvers.private.constant import ConstantQuery
from sfumato.solvers.private.contributions import entries_of, row_of, taken_off
from sfumato.solvers.private.known import Known
from sfumato.solvers.private.level_sums import CountsQuery, SumsQuery
from sfumato.solvers.private.owners import OwnersQuery
from sfumato.solvers.private.spread import SpreadQuery

examples = settings(max_examples=60, deadline=None, database=None, derandomize=True)
NAMES = ("user", "item", "day")
SIZES, BOUNDS = (5, 6, 3), (-1.3, 4.1)
MODES = tuple(Mode(name, n) for name, n in zip(NAMES, SIZES, strict=True))
UNITS = [Value(), Entry(), Unit("user"), Unit("day"), UnitValues("user", 3), UnitValues("item", 50)]
HABITS = ["any", "one day", "one item", "one cell", "every item", "nothing"]


def tensor(cells, values):
    if not len(values):
        return tensor([[0], [0], [0]], [0.0]).take(np.zeros(1, bool))
    return SparseTensor(np.asarray(cells), np.asarray(values, float), MODES)


@st.composite
def data(draw):
    """Entries of users with habits that are hard on bounds; values beyond the bounds, NaN too."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    everybody = rng.integers(SIZES[1])
    cells = []
    for user in range(SIZES[0]):
        habit, n = draw(st.sampled_from(HABITS)), draw(st.integers(1, 25))
        day, item = rng.integers(SIZES[2]), rng.integers(SIZES[1])
        items = {"one item": [item] * n, "one cell": [item] * n, "every item": np.arange(SIZES[1])}
        mine = np.array(items.get(habit, rng.integers(SIZES[1], size=n)))
        days = rng.integers(SIZES[2], size=mine.size)
        if habit in ("one day", "one cell"):
            days[:] = day
        if habit != "nothing":
            here = np.stack([np.full(mine.size, user), mine, days])
            cells += [here, [[user], [everybody], [day]]]
    cells = np.concatenate(cells, axis=1) if cells else np.empty((3, 0), int)
    wild = draw(st.booleans())
    values = rng.choice([BOUNDS[0], BOUNDS[1], 0.1], cells.shape[1])
    values += rng.normal(scale=3.0 if wild else 0.0, size=cells.shape[1])
    if wild and values.size:
        values[rng.integers(values.size)] = rng.choice([np.nan, np.inf, -np.inf])
    return cells, values, rng


def neighbour(unit, cells, values, rng):
    """The data with one unit changed as the definition of the unit says."""
    if not values.size:
        return cells, values
    one = rng.integers(values.size)
    if isinstance(unit, Entry):
        return np.delete(cells, one, axis=1), np.delete(values, one)
    if isinstance(unit, Unit):
        mode = NAMES.index(unit.mode)
        kept = cells[mode] != cells[mode, one]
        return cells[:, kept], values[kept]
    changed = values.copy()
    if isinstance(unit, Value):
        changed[one] = rng.choice([*BOUNDS, rng.uniform(*BOUNDS)])
    else:
        mode = NAMES.index(unit.mode)
        mine = rng.permutation(np.flatnonzero(cells[mode] == cells[mode, one]))[: unit.max_entries]
        changed[mine] = rng.choice([*BOUNDS, rng.uniform(*BOUNDS)], mine.size)
    return cells, changed


def facts_of(unit, bounds=BOUNDS, **settings):
    return Facts(Shape(MODES, (1, 1, 1)), unit, bounds, **settings)


def random_query(known, mode, rng):
    mean, biases = rng.normal(), rng.normal(size=sum(SIZES)) * rng.choice([0.0, 0.5, 3.0])
    biases = tuple(np.split(biases, np.cumsum(SIZES)[:-1]))
    weights = None if known.facts.unit_mode is None else rng.exponential(size=SIZES[mode]) + 0.01
    clip = float(rng.uniform(0.3, 6.0))
    bound = clip if known.facts.unit_mode is None else float(rng.uniform(0.05, 2.0))
    return SumsQuery(known, mode, mean, biases, clip, bound, weights)


def assert_within(first, second):
    assert (first.l1, first.l2) == (second.l1, second.l2)  # the bound is not data
    change = [int(number) * Fraction(first.step) for number in np.ravel(first.values - second.values)]
    if first.l1 < np.inf:
        assert sum(map(abs, change)) <= Fraction(first.l1)
    assert sum(number**2 for number in change) <= Fraction(first.l2) ** 2 * (1 + Fraction(1, 2**50))
    if first.single:
        assert np.count_nonzero(change) <= 1


FAR = [(1e15, 1e15 + 2), (2.0**60, 2.0**60 + 4096), (-1e30, -1e30 + 2.0**60), (0.0, 1e-50)]


@pytest.mark.parametrize("unit", [UnitValues("user", 1), UnitValues("user", 7), Value()], ids=str)
@pytest.mark.parametrize("bounds", FAR, ids=str)
@examples
@given(st.integers(0, 2**32), st.sampled_from([3, 1000]), st.sampled_from([None, 20]))
def test_a_constant_keeps_its_bound_however_far_from_zero_values_lie(unit, bounds, seed, each, entries):
    """Rounding of a unit's mean depends on its other values: it must not add to the change."""
    rng = np.random.default_rng(seed)
    cells = np.stack(
        [np.repeat([0, 1], each), rng.integers(SIZES[1], size=2 * each), np.zeros(2 * each)]
    )
    values = rng.choice([*bounds, bounds[0] + (bounds[1] - bounds[0]) / 3], 2 * each)
    changed = values.copy()
    changed[: min(unit.max_entries or 1, each)] = rng.choice(bounds)
    known = Known(facts_of(unit, bounds, entries=entries), 1.0, pure=False)
    sites = [Site(tensor(cells.astype(int), v), 1) for v in (values, changed)]
    assert_within(*(ConstantQuery(known).clipped(site) for site in sites))
    mean = float(rng.choice([*bounds, bounds[0] / 2 + bounds[1] / 2]))
    assert_within(*(SpreadQuery(known, mean).clipped(site) for site in sites))


@pytest.mark.parametrize("size", [0.0, 3.0, 2.0**20, 2.0**32, 2.0**60])
def test_a_replaced_value_keeps_its_bound_whatever_is_taken_off(size):
    """Large biases would round residuals by more than the bound has room for."""
    rng, (low, high) = np.random.default_rng(7), (1.0, 4.7)
    known = Known(facts_of(Value(), (low, high), public_spread=high - low), 1.0, pure=True)
    half = (high - low) / 2
    for _ in range(300):
        clip = float(rng.uniform(1.0, 2.0)) * half
        biases = [rng.normal(size=n) for n in SIZES]
        biases[0][:], biases[1][:] = size * rng.uniform(1, 2), 0.0
        biases[1][:] = -biases[0][0] + rng.normal()
        query = SumsQuery(known, 2, float(rng.uniform(low, high)), tuple(biases), clip, clip, None)
        one, two = (query.clipped(Site(tensor([[0], [0], [0]], [v]), 1)) for v in (low, high))
        assert_within(one, two)


@pytest.mark.parametrize("pure", [False, True], ids=["gaussian", "pure"])
@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.key)
@examples
@given(data(), st.sampled_from([None, 8, 60]))
def test_neighbours_stay_within_the_bound(unit, pure, drawn, entries):
    cells, values, rng = drawn
    known = Known(facts_of(unit, entries=entries), 1.0, pure)
    sites = [Site(tensor(c, v), 1) for c, v in [(cells, values), neighbour(unit, cells, values, rng)]]
    assert_within(*(ConstantQuery(known).clipped(site) for site in sites))
    mean = float(rng.choice([*BOUNDS, 1.4, rng.uniform(*BOUNDS)]))
    assert_within(*(SpreadQuery(known, mean).clipped(site) for site in sites))
    for mode in range(3):
        if unit.hides_presence:
            assert_within(*(CountsQuery(known, mode).clipped(site) for site in sites))
        query = random_query(known, mode, rng)
        assert_within(*(query.clipped(site) for site in sites))


@pytest.mark.parametrize("pure", [False, True], ids=["gaussian", "pure"])
@pytest.mark.parametrize("unit", [Value(), Entry(), Unit("user"), UnitValues("user", 3)], ids=str)
@examples
@given(data(), st.sampled_from([0.05, 1.0, 5.0]))
def test_what_owners_tell_of_themselves_stays_within_the_bound(unit, pure, drawn, spread):
    cells, values, rng = drawn
    known = Known(facts_of(unit, public_spread=spread, local=0), 1.0, pure)
    sites = [Site(tensor(c, v), 1) for c, v in [(cells, values), neighbour(unit, cells, values, rng)]]
    biases = tuple(rng.normal(size=n) * rng.choice([0.0, 1.0, 1e6]) for n in SIZES)
    query = OwnersQuery(known, float(rng.normal()), biases)
    assert_within(*(query.clipped(site) for site in sites))


@pytest.mark.parametrize("unit", [Value(), Unit("user")], ids=str)
@pytest.mark.parametrize("pure", [False, True])
def test_the_bound_of_what_owners_tell_is_nearly_reached(unit, pure):
    """Two entries as far apart as they can be, or both at one bound: a vector takes another's place."""
    known = Known(facts_of(unit, public_spread=0.1, local=0), 1.0, pure)
    query = OwnersQuery(known, BOUNDS[0], tuple(np.zeros(n) for n in SIZES))
    here = [[0, 0], [0, 1], [0, 0]]
    one = query.clipped(Site(tensor(here, [BOUNDS[0], BOUNDS[0]]), 1))
    if isinstance(unit, Unit):
        one = query.clipped(Site(tensor([], []), 1))
    two = query.clipped(Site(tensor(here, [BOUNDS[0], BOUNDS[1]]), 1))
    change = (two.values - one.values) * one.step
    reached = np.abs(change).sum() / one.l1 if pure else np.linalg.norm(change) / one.l2
    assert 0.7 < reached <= 1


@pytest.mark.parametrize("norm", [1, 2])
@pytest.mark.parametrize("centred", [False, True])
@examples
@given(data())
def test_the_kernel_does_what_its_twin_does(norm, centred, drawn):
    cells, values, rng = drawn
    facts, site = facts_of(Unit("user")), Site(tensor(cells, values), 1)
    entries, one_each = entries_of(site, facts), entries_of(site, facts_of(Entry()))
    made = Contribution(1.5, float(rng.uniform(0.05, 2.0)), 3.0, centred, norm)
    biases = tuple(rng.normal(size=n) for n in SIZES)
    allowed = values.size  # numbers that rounding moves across a line of the grid are cut to the next

    def same(fast, slow):
        np.testing.assert_allclose(fast, slow, rtol=0, atol=allowed)

    for threads in (1, 2):
        for mode in range(3):
            weights, row = rng.exponential(size=SIZES[mode]), row_of(facts, mode)
            taken = taken_off(facts, 0.3, biases, (0, 1, 2) if mode == 0 else (1, 2))
            same(
                unit_sums(entries, taken, row, weights, made, threads),
                unit_sums_reference(entries, taken, row, weights, made),
            )
            ones, plain = np.ones(SIZES[mode]), Contribution(1.0, 1.0, 3.0, False, norm)
            same(
                unit_counts(entries, row, SIZES[mode], 3.0, norm, threads),
                unit_sums_reference(entries, taken, row, ones, plain, counted=True),
            )
            off = taken_off(facts_of(Entry()), 0.3, biases, (0, 1, 2))
            same(
                entry_sums(one_each, off, mode, 0.9, SIZES[mode], threads),
                entry_sums_reference(one_each, off, mode, 0.9, SIZES[mode]),
            )


@examples
@given(data())
def test_sums_over_everything_are_those_of_the_twin(drawn):
    cells, values, rng = drawn
    facts, site = facts_of(Unit("user")), Site(tensor(cells, values), 1)
    entries, one_each = entries_of(site, facts), entries_of(site, facts_of(Entry()))
    biases, most = tuple(rng.normal(size=n) for n in SIZES), float(rng.uniform(0.1, 4.0))
    taken, off = taken_off(facts, 0.3, biases, (1, 2)), taken_off(facts_of(Entry()), 0.3, biases, (0, 2))
    full, ridge, allowed = float(rng.uniform(1.0, 9.0)), 2.5, 2 * values.size
    rest = rest_reference(one_each, off)
    for threads in (1, 2):
        for fast, slow in (
            (
                means_of_units(entries, taken, most, full, threads),
                means_of_units_reference(entries, taken, most, full),
            ),
            (
                squares_of_units(entries, taken, most, ridge, threads),
                squares_of_units_reference(entries, taken, most, ridge),
            ),
            (
                scales_of_owners(entries, taken, full, most, 2, threads),
                scales_of_owners_reference(entries, taken, full, most, 2),
            ),
            (
                scales_of_owners(entries, taken, full, most, 1, threads),
                scales_of_owners_reference(entries, taken, full, most, 1),
            ),
            (
                total_of_entries(one_each, off, most, threads),
                [cut(np.clip(rest, -most, most), grid(most)).sum()],
            ),
            (
                squares_of_entries(one_each, off, most, threads),
                [cut(np.minimum(rest**2, most), grid(most)).sum()],
            ),
        ):
            np.testing.assert_allclose(fast, slow, rtol=0, atol=allowed)


@examples
@given(st.integers(0, 2**32), st.integers(1, 6), st.sampled_from([0.2, 1.0, 30.0]))
def test_moments_of_rows_are_those_of_the_twin(seed, rank, length):
    rng = np.random.default_rng(seed)
    rows, counts = rng.normal(size=(40, rank + 2))[:, :rank], rng.integers(0, 3, 40)
    rows[rng.integers(40), rng.integers(rank)] = rng.choice([np.nan, np.inf, 1e200])
    turn = rng.normal(size=(rank, rank))
    with np.errstate(all="ignore"):
        slow = moment_of_rows_reference(rows, counts, turn, length)
    for threads in (1, 3):
        fast = moment_of_rows(rows, counts, turn, length, threads)
        np.testing.assert_allclose(fast, slow, rtol=0, atol=40)


WORST = {
    "entry, a value at the bound": (Entry(), [[0], [1], [2]], [4.1], 1),
    "user, all entries on one day": (Unit("user"), [[0] * 9, range(9), [1] * 9], [4.1] * 9, 2),
    "user, everything in one cell": (Unit("user"), [[0] * 9, [3] * 9, [1] * 9], [4.1] * 9, 1),
    "user, a few items": (Unit("user"), [[0] * 4, range(4), [1] * 4], [4.1, -1.3] * 2, 1),
}


@pytest.mark.parametrize("case", WORST)
@pytest.mark.parametrize("pure", [False, True])
def test_the_bounds_are_reached(case, pure):
    # So that a bound that is stated too small cannot pass.
    unit, cells, values, mode = WORST[case]
    cells = np.array([list(row) for row in cells]) % np.array(SIZES)[:, None]
    known = Known(facts_of(unit), 1.0, pure)
    weights = None if known.facts.unit_mode is None else np.ones(SIZES[mode])
    mean, biases = 1.4 if len(values) == 4 else -1.0, tuple(np.zeros(n) for n in SIZES)
    query = SumsQuery(known, mode, mean, biases, 0.4, 0.4 if weights is None else 0.05, weights)
    one, none = (
        query.clipped(Site(tensor(*given), 1))
        for given in [(cells, values), (np.empty((3, 0), int), [])]
    )
    length = np.linalg.norm(one.numbers - none.numbers, known.norm)
    assert 0.999 * one.l2 <= length <= one.l2


@pytest.mark.parametrize("unit", [Value(), Entry(), Unit("user"), UnitValues("user", 3)], ids=str)
def test_the_bound_of_the_spread_is_reached(unit):
    # One value at the bound, and one at the mean or none at all; a unit has three of them.
    each = 1 if unit.mode is None else 3
    known, cells = Known(facts_of(unit, entries=each), 1.0, pure=False), np.zeros((3, each), int)
    far, near = (np.full(each, value) for value in (BOUNDS[1], 1.4))
    other = tensor(np.empty((3, 0), int), []) if unit.hides_presence else tensor(cells, near)
    query = SpreadQuery(known, 1.4)
    one, two = (query.clipped(Site(given, 1)) for given in (tensor(cells, far), other))
    change = float(np.abs(one.numbers - two.numbers).sum())
    assert 0.999 * one.l2 <= change <= one.l2


@examples
@given(data())
def test_the_spread_is_that_of_units_or_entries(drawn):
    cells, values, rng = drawn
    mean, half = float(rng.uniform(*BOUNDS)), (BOUNDS[1] - BOUNDS[0]) / 2
    values = np.nan_to_num(values, nan=mean + half / 2)  # as one that is no number counts
    away = np.minimum(np.abs(np.clip(values, *BOUNDS) - mean), half)
    by_entry = SpreadQuery(Known(facts_of(Entry()), 1.0, pure=False), mean)
    by_user = SpreadQuery(Known(facts_of(Unit("user"), entries=20), 1.0, pure=False), mean)
    site, users = Site(tensor(cells, values), 2), [away[cells[0] == u] for u in range(SIZES[0])]
    inside = (mean + half / 2 <= BOUNDS[1]) or not np.isnan(drawn[1]).any()
    if inside:
        assert by_entry.clipped(site).numbers[0] == pytest.approx(away.sum(), abs=1e-6)
        means = sum(mine.sum() / max(mine.size, 4) for mine in users)
        assert by_user.clipped(site).numbers[0] == pytest.approx(means, abs=1e-6)


@pytest.mark.parametrize("norm", [1, 2])
def test_units_add_up_exactly(norm):
    # Adding a unit changes the sums by its contribution to the last bit, whatever else is there.
    rng = np.random.default_rng(3)
    cells = np.stack([rng.integers(n, size=300) for n in SIZES])
    facts = facts_of(Unit("user"))
    entries = entries_of(Site(tensor(cells, rng.uniform(*BOUNDS, 300)), 1), facts)
    made, weights = Contribution(1.5, 0.7, 3.0, True, norm), rng.exponential(size=SIZES[1])
    taken = taken_off(facts, 0.1, tuple(rng.normal(size=n) for n in SIZES), (1, 2))
    total = 0
    for first, last in pairwise(entries.starts):
        starts = np.array([0, last - first])
        one = Entries(entries.levels[:, first:last], entries.values[first:last], starts, *BOUNDS)
        total = total + unit_sums(one, taken, 0, weights, made, 1)
    for threads in (1, 2, 3):
        together = unit_sums(entries, taken, 0, weights, made, threads)
        np.testing.assert_array_equal(total, together)


def test_entries_add_up_exactly():
    rng = np.random.default_rng(3)
    levels, values = rng.integers(4, size=(1, 10_000)).astype(np.int32), rng.normal(size=10_000)

    def sums(which, threads=1):
        entries = Entries(levels[:, which], values[which], np.zeros(0, np.int64), -2.0, 2.0)
        taken = Taken(0.01, np.array([0.1, -0.2, 0.3, 0.4]), np.array([0]), np.zeros(0))
        return entry_sums(entries, taken, 0, 0.9, 4, threads)

    together = sums(slice(None))
    np.testing.assert_array_equal(sums(slice(1, None)) + sums(slice(1)), together)
    np.testing.assert_array_equal(sums(slice(None, None, -1)), together)
    np.testing.assert_array_equal(sums(slice(None), 3), together)
