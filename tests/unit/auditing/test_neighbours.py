"""Neighbours: two data sets that differ in one unit and in nothing else."""

from collections import Counter

import numpy as np
import pytest

from sfumato.auditing.neighbours import CANARIES, built, neighbours, usual_canaries
from sfumato.data.tensor import Mode, SparseTensor
from sfumato.errors import DataError, SettingError
from sfumato.privacy.units import Entry, Unit, UnitValues, Value

BOUNDS = (1.0, 5.0)
MODES = (Mode("user", 6), Mode("item", 5), Mode("week", 3))
# Users 0 to 4 have 1, 2, 3, 4 and 5 entries, user 5 none; item 0 is the popular one, item 4 seen once.
CELLS = np.array(
    [
        [0, 1, 1, 2, 2, 2, 3, 3, 3, 3, 4, 4, 4, 4, 4],
        [4, 0, 1, 0, 1, 2, 0, 1, 2, 3, 0, 1, 2, 3, 0],
        [2, 0, 1, 0, 1, 0, 0, 1, 0, 0, 0, 1, 0, 0, 1],
    ]
)
VALUES = np.array([2.0, 3, 2, 2, 3, 2, 1, 3, 2, 4, 2, 3, 2, 4, 2])
TENSOR = SparseTensor(CELLS, VALUES, MODES, BOUNDS)
UNITS = [Value(), Entry(), Unit("user"), Unit("item", 3), UnitValues("user", 2), UnitValues("item", 9)]
PAIRS = [
    (unit, canary)
    for unit in UNITS
    for canary in CANARIES
    if (canary != "edge" if unit.mode else canary != "full")
]


def entries_of(tensor):
    """The entries as a multiset of cell and value."""
    return Counter(zip(*tensor.coordinates.tolist(), tensor.values.tolist(), strict=True))


def difference(pair):
    first, second = entries_of(pair.first), entries_of(pair.second)
    return list((first - second).elements()), list((second - first).elements())


@pytest.mark.parametrize(("unit", "canary"), PAIRS)
def test_neighbours_differ_in_one_unit(unit, canary):
    pair = neighbours(TENSOR, unit, canary)
    gone, new = difference(pair)
    if unit.hides_presence:
        assert gone == []
    else:
        assert sorted(cell for *cell, _ in gone) == sorted(cell for *cell, _ in new)
    assert new
    assert len(new) <= (unit.max_entries or (1 if unit.mode is None else 10**6))
    if unit.mode is not None:
        mode = TENSOR.mode_index(unit.mode)
        assert len({entry[mode] for entry in new}) == 1
        if unit.hides_presence:  # all entries of the level are gone, not some
            assert not (pair.first.coordinates[mode] == new[0][mode]).any()


@pytest.mark.parametrize(("unit", "canary"), PAIRS)
def test_all_else_is_the_data_as_it_was(unit, canary):
    pair = neighbours(TENSOR, unit, canary)
    for side in pair.sides:
        assert side.modes == TENSOR.modes
        assert side.bounds == BOUNDS
        assert side.values.dtype == TENSOR.values.dtype
        assert (side.values >= BOUNDS[0]).all()
        assert (side.values <= BOUNDS[1]).all()
    common = entries_of(pair.first) & entries_of(pair.second)
    assert not common - entries_of(TENSOR)


@pytest.mark.parametrize(("unit", "canary"), PAIRS)
def test_the_cells_are_where_they_differ_and_the_values_are_at_the_bounds(unit, canary):
    pair = neighbours(TENSOR, unit, canary)
    gone, new = difference(pair)
    assert {tuple(cell) for cell in pair.cells.T} == {tuple(cell) for *cell, _ in new}
    if not unit.hides_presence:
        assert {value for *_, value in gone} == {BOUNDS[0]}
        assert {value for *_, value in new} == {BOUNDS[1]}
    else:
        assert {value for *_, value in new} == {BOUNDS[1]}  # further from the mean, which is below 3


def test_a_present_canary_takes_the_bound_further_away():
    high = TENSOR.with_values(np.full(15, 4.5), BOUNDS)
    assert neighbours(high, Entry(), "least").second.values.min() == BOUNDS[0]


def test_which_cells_change_depends_on_positions_alone():
    other = TENSOR.with_values(np.full(15, 5.0), BOUNDS)
    for unit, canary in PAIRS:
        np.testing.assert_array_equal(
            neighbours(TENSOR, unit, canary).cells, neighbours(other, unit, canary).cells
        )


# -- which cells ----------------------------------------------------------------------------------


def company_of(cell):
    return [int((CELLS[m] == level).sum()) for m, level in enumerate(cell)]


def test_the_least_and_the_most_connected_entries():
    companies = [np.log(company_of(cell)).sum() for cell in CELLS.T]
    least = neighbours(TENSOR, Value(), "least").cells[:, 0]
    most = neighbours(TENSOR, Entry(), "most").cells[:, 0]
    assert company_of(least) == [1, 1, 1]
    assert np.log(company_of(most)).sum() == max(companies)


def test_an_edge_is_alone_in_the_first_mode_and_popular_in_the_others():
    tensor = built((6, 5, 4))
    cell = neighbours(tensor, Value(), "edge").cells[:, 0]
    counts = [tensor.counts(mode.name) for mode in tensor.modes]
    assert counts[0][cell[0]] == 1
    assert counts[1][cell[1]] == counts[1].max()
    assert counts[2][cell[2]] == counts[2].max()


def test_the_least_and_the_most_connected_levels():
    assert neighbours(TENSOR, Unit("user"), "least").cells[0].tolist() == [0]
    assert neighbours(TENSOR, Unit("user"), "most").cells[0].tolist() == [4] * 5
    assert neighbours(TENSOR, UnitValues("user", 2), "most").cells[0].tolist() == [4] * 2


def test_a_full_level_has_as_many_entries_as_its_cap_or_as_there_are_cells():
    capped = neighbours(TENSOR, Unit("user", 7), "full")
    assert capped.cells.shape == (3, 7)
    assert capped.second.n_entries == capped.first.n_entries + 7
    popular = neighbours(TENSOR, Unit("user", 1), "full").cells[:, 0]
    assert popular.tolist()[1:] == [0, 0]
    whole = neighbours(TENSOR, Unit("user"), "full").cells
    assert whole.shape == (3, 5 * 3)
    assert np.unique(whole, axis=1).shape == whole.shape


def test_the_usual_canaries_are_those_that_the_unit_has():
    for unit in UNITS:
        chosen = [tuple(neighbours(TENSOR, unit, c).cells.ravel()) for c in usual_canaries(unit)]
        assert len(set(chosen)) == len(chosen) > 1


# -- data made for an audit -----------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(3, 3), (6, 5, 4), (40, 30, 30)])
def test_built_data_hold_a_canary_that_is_alone_in_all_its_rows(shape):
    tensor = built(shape, (1.0, 5.0))
    assert tensor.shape == shape
    assert (tensor.values >= 1).all()
    assert (tensor.values <= 5).all()
    assert entries_of(tensor).most_common(1)[0][1] == 1
    alone = neighbours(tensor, Value(), "least").cells[:, 0]
    assert [tensor.counts(m.name)[level] for m, level in zip(tensor.modes, alone, strict=True)] == [
        1
    ] * len(shape)


def test_built_data_do_not_change():
    assert entries_of(built((6, 5, 4))) == entries_of(built((6, 5, 4)))
    named = built((Mode("user", 6), 5))
    assert named.mode_names == ("user", "mode1")


# -- errors ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tensor", "unit", "canary", "error", "message"),
    [
        (SparseTensor(CELLS, VALUES, MODES), Value(), "least", SettingError, "public bounds"),
        (TENSOR, Value(), "loudest", SettingError, "no canary 'loudest'; there are least, most"),
        (TENSOR, Entry(), "full", SettingError, "needs a unit that is a mode"),
        (TENSOR, Unit("user"), "edge", SettingError, "needs the unit 'value' or 'entry'"),
        (TENSOR.take(np.array([0])), Value(), "least", DataError, "two entries or more"),
    ],
)
def test_what_cannot_be_done_says_why(tensor, unit, canary, error, message):
    with pytest.raises(error, match=message):
        neighbours(tensor, unit, canary)


@pytest.mark.parametrize("shape", [(5,), (5, 2), ()])
def test_shapes_too_small_for_canaries_are_refused(shape):
    with pytest.raises(SettingError, match="3 levels or more"):
        built(shape)
