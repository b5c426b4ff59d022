"""What is public of a private fit: what is refused, and what follows where something is not said."""

from dataclasses import replace
from math import inf, nan

import pytest

from sfumato.data.tensor import Mode
from sfumato.errors import SettingError
from sfumato.models.shape import Shape
from sfumato.privacy.facts import Facts, assumed_scatter
from sfumato.privacy.units import Entry, Unit, UnitValues, Value

SHAPE = Shape((Mode("user", 30), Mode("item", 20), Mode("day", 10)), (2, 2, 2))
BOUNDS = (1.0, 5.0)
UNITS = [Value(), Entry(), UnitValues("user", 5), Unit("user"), Unit("user", 60)]
EACH_UNIT = pytest.mark.parametrize("unit", UNITS, ids=str)


def facts(unit=None, **rest):
    return Facts(SHAPE, Entry() if unit is None else unit, **{"bounds": BOUNDS, **rest})


# -- what is refused ------------------------------------------------------------------------------


@EACH_UNIT
@pytest.mark.parametrize(
    "bounds",
    [
        (2.0, 2.0),
        (5.0, 1.0),
        (nan, 2.0),
        (1.0, inf),
        (1.0, None),
        ("1", "5"),
        (1e300, 1.1e300),
        5,
        (1, 2, 3),
        None,
    ],
    ids=str,
)
def test_bounds_that_cannot_be_are_refused(unit, bounds):
    with pytest.raises(SettingError, match="bounds"):
        facts(unit, bounds=bounds)


def test_bounds_in_the_wrong_order_are_said_to_be():
    with pytest.raises(SettingError, match="lower one first"):
        facts(bounds=(5.0, 1.0))


@pytest.mark.parametrize("unit", [Unit("user"), Unit("user", 60), UnitValues("user", 5)], ids=str)
@pytest.mark.parametrize("local", [1, 2])
def test_rows_of_another_mode_than_the_units_cannot_stay_with_their_owners(unit, local):
    name = SHAPE.names[local]
    with pytest.raises(SettingError, match=f"rows of '{name}' cannot stay with their owners"):
        facts(unit, local=local)
    assert facts(unit, local=0).local == 0


@pytest.mark.parametrize("unit", [Entry(), Value()], ids=str)
@pytest.mark.parametrize("local", [0, 1, 2])
def test_where_entries_are_protected_rows_of_any_mode_can(unit, local):
    assert facts(unit, local=local).local == local


@pytest.mark.parametrize("unit", [Unit("shop"), UnitValues("shop", 5)], ids=str)
@pytest.mark.parametrize("local", [None, 0])
def test_a_unit_of_a_mode_that_there_is_not_is_refused(unit, local):
    with pytest.raises(SettingError, match="no mode 'shop'"):
        facts(unit, local=local)


def test_what_is_changed_is_checked_again():
    with pytest.raises(SettingError, match="bounds"):
        replace(facts(), bounds=(2.0, 2.0))
    known = facts(Unit("item"))
    assert known.unit_mode == 1
    assert replace(known, unit=Unit("day")).unit_mode == 2


# -- the unit ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("unit", "mode", "whole"),
    [
        (Value(), None, False),
        (Entry(), None, False),
        (UnitValues("item", 5), 1, False),
        (Unit("item"), 1, True),
        (Unit("day", 60), 2, True),
    ],
    ids=str,
)
def test_the_mode_of_the_units_and_whether_they_come_and_go_as_a_whole(unit, mode, whole):
    assert facts(unit).unit_mode == mode
    assert facts(unit).whole_units == whole


@EACH_UNIT
def test_owners_solve_their_rows_in_every_round_only_where_they_are_the_units(unit):
    assert facts(unit).own is None
    assert facts(unit, local=0).own == (0 if isinstance(unit, Unit) else None)


# -- how much there is ------------------------------------------------------------------------------


def test_the_number_of_entries_is_public_or_a_hundred_for_each_level_of_an_average_mode():
    assert facts(entries=400).expected_entries == 400
    assert facts().expected_entries == 100 * (30 + 20 + 10) / 3


def test_the_number_of_units_is_that_of_the_levels_or_of_the_entries():
    for unit in (Value(), Entry()):
        assert facts(unit, entries=400).expected_units == 400
        assert facts(unit).expected_units == 2000
    for unit in (Unit("item"), UnitValues("item", 5)):
        assert facts(unit, entries=400).expected_units == facts(unit).expected_units == 20


# -- the values -------------------------------------------------------------------------------------


def test_width_and_middle_of_the_bounds():
    known = facts(bounds=(-1.0, 5.0))
    assert (known.width, known.half, known.middle) == (6.0, 3.0, 2.0)


def test_the_spread_is_public_or_a_quarter_of_the_width_and_never_more_than_the_width():
    assert facts().spread == 1.0
    assert facts(bounds=(-1.0, 1.0)).spread == 0.5
    assert facts(bounds=(-1.0, 1.0), public_spread=0.2).spread == 0.2
    assert facts(public_spread=4.0).spread == 4.0
    assert facts(public_spread=7.0).spread == 4.0


def test_biases_are_taken_to_leave_three_quarters_of_the_variance():
    assert facts().scatter == 0.75
    assert facts(public_spread=0.4).scatter == pytest.approx(0.75 * 0.16)
    assert assumed_scatter(BOUNDS) == 0.75
    assert assumed_scatter((0.0, 8.0)) == 3.0


# -- noise beside data ------------------------------------------------------------------------------


def test_thinness_is_noise_over_the_entries_of_an_average_row():
    # Rows have 400 / 20 entries, or a hundred where the number of entries is not public.
    for unit in (Value(), Entry(), UnitValues("user", 5)):
        assert facts(unit, entries=400).thinness(3.0) == pytest.approx(3 / 20)
        assert facts(unit).thinness(3.0) == pytest.approx(3 / 100)
    for unit in (Unit("user"), Unit("item", 60)):  # three times as thin
        assert facts(unit, entries=400).thinness(3.0) == pytest.approx(9 / 20)
        assert facts(unit).thinness(3.0) == pytest.approx(9 / 100)


@pytest.mark.parametrize(("noise", "calm"), [(0.0, 1.0), (1.0, 2 / 3), (2.0, 1 / 2), (18.0, 1 / 10)])
def test_calm_falls_from_one_to_zero_and_is_half_at_two_hundredths(noise, calm):
    assert facts().calm(noise) == pytest.approx(calm)
    assert facts(Unit("user")).calm(noise / 3) == pytest.approx(calm)


def test_it_is_calm_up_to_half_way():
    assert facts().calm(1.999) >= 0.5
    assert facts().calm(2.001) < 0.5
    assert facts(Unit("user")).calm(0.666) >= 0.5
    assert facts(Unit("user")).calm(0.667) < 0.5


@pytest.mark.parametrize("local", [-1, 3, 7])
def test_a_local_mode_that_is_not_there(local):
    with pytest.raises(SettingError, match="there is no mode"):
        facts(local=local)


def test_both_guesses_of_the_number_of_entries_give_way_to_the_public_one():
    """Usual: 100 of an average level; least: 10 of a level of the largest mode."""
    sizes = facts().sizes
    unknown = replace(facts(), entries=None)
    assert unknown.expected_entries == 100 * sum(sizes) / len(sizes)
    assert unknown.least_entries == 10 * max(sizes)
    assert unknown.least_units == 10 * max(sizes)
    known = replace(facts(), entries=77)
    assert known.expected_entries == known.least_entries == known.least_units == 77
    assert replace(facts(Unit("user")), entries=None).least_units == sizes[0]
