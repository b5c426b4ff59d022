"""Relations: labels brought together, the coupling matrix, and what is refused."""

import numpy as np
import pytest

import sfumato as sf
from sfumato.errors import DataError, SettingError
from sfumato.sites.coupled import CoupledSite


def numbered(names, shape, cells=None, values=None):
    """A tensor whose levels are numbers."""
    coordinates = np.stack(np.nonzero(np.ones(shape))) if cells is None else np.array(cells).T
    values = np.ones(coordinates.shape[1]) if values is None else np.array(values, float)
    modes = tuple(sf.Mode(name, size) for name, size in zip(names, shape, strict=True))
    return sf.SparseTensor(coordinates, values, modes)


def labelled(columns, values):
    """A tensor from columns of labels by mode name."""
    import pyarrow as pa

    return sf.read(pa.table({**columns, "value": values}), list(columns), "value")


VISITS = numbered(("user", "place", "hour"), (3, 4, 2))
TRIPS = numbered(("user", "place"), (3, 4))
FEATURES = numbered(("place", "feature"), (4, 5))


def test_the_coupling_matrix_is_derived():
    relations = sf.Relations({"visits": VISITS, "trips": TRIPS, "features": FEATURES})
    assert [mode.name for mode in relations.modes] == ["user", "place", "hour", "feature"]
    np.testing.assert_array_equal(relations.coupling, [[1, 1, 1, 0], [1, 1, 0, 0], [0, 1, 0, 1]])
    shown = repr(relations).splitlines()
    assert shown[0].split() == ["user", "place", "hour", "feature"]
    assert shown[2].split()[:5] == ["trips", "x", "x", ".", "."]
    assert shown[-1].split() == ["3", "4", "2", "5", "levels"]


def test_large_numbers_of_levels_stand_below_their_mode():
    wide = numbered(("i", "feature"), (1_000_000, 5), [[0, 0]])
    *rows, levels = repr(sf.Relations({"wide": wide})).splitlines()
    assert len({row.index(mark) for row, mark in zip(rows, ("i", "x"), strict=True)}) == 1
    assert rows[0].index("feature") > levels.index("1,000,000") + len("1,000,000")


def test_a_relation_without_a_mode_of_its_own_has_weights():
    relations = sf.Relations({"visits": VISITS, "trips": TRIPS, "features": FEATURES})
    assert [relation.weighted for relation in relations.values()] == [False, True, False]
    assert not sf.Relations({"trips": TRIPS})["trips"].weighted


def test_labels_are_aligned_where_each_knows_only_some():
    ratings = labelled({"user": ["c", "a"], "item": ["x", "y"]}, [1.0, 2.0])
    friends = labelled({"user": ["b", "c"], "club": ["p", "q"]}, [3.0, 4.0])
    relations = sf.Relations({"ratings": ratings, "friends": friends})
    users = relations.modes[0]
    assert users.labels.tolist() == ["a", "b", "c"]
    found = {
        (users.label(level), value)
        for level, value in zip(
            relations["friends"].tensor.coordinates[0], relations["friends"].tensor.values, strict=True
        )
    }
    assert found == {("b", 3.0), ("c", 4.0)}
    assert relations["ratings"].observed_counts(0).tolist() == [1, 0, 1]


def test_a_relation_may_be_reached_through_others():
    """In whatever order: the second shares no mode with the first, but one with the third."""
    shops = numbered(("feature", "shop"), (5, 2))
    relations = sf.Relations({"trips": TRIPS, "shops": shops, "features": FEATURES})
    np.testing.assert_array_equal(relations.coupling, [[1, 1, 0, 0], [0, 0, 1, 1], [0, 1, 1, 0]])


def timed(days, bin, other):
    """A tensor with a mode of times."""
    import pyarrow as pa

    table = pa.table({"day": days, other: ["x", "y"], "value": [1.0, 2.0]})
    return sf.read(table, ["day", other], "value", bins={"day": bin}, bounds=(0.0, 5.0))


def test_times_are_aligned_by_their_bin():
    one = timed(["2024-01-01 10:00", "2024-01-03 11:00"], "day", "item")
    other = timed(["2024-01-03 23:00", "2024-01-02 12:00"], "day", "club")
    relations = sf.Relations({"a": one, "b": other})
    days = relations.modes[0]
    assert (days.bin, days.size) == ("day", 3)
    tensor = relations["b"].tensor
    assert set(zip(tensor.coordinates[0].tolist(), tensor.values.tolist(), strict=True)) == {
        (2, 1.0),
        (1, 2.0),
    }
    assert relations["b"].tensor.bounds == (0.0, 5.0)


def test_numbers_and_text_mean_the_same_labels():
    numbers = labelled({"user": [10, 20], "item": [1, 2]}, [1.0, 2.0])
    text = labelled({"user": ["20", "x"], "club": ["p", "q"]}, [3.0, 4.0])
    users = sf.Relations({"a": numbers, "b": text}).modes[0]
    assert users.labels.tolist() == ["10", "20", "x"]


def test_nan_is_a_cell_that_was_not_observed():
    tensor = numbered(("a", "b"), (2, 2), [(0, 0), (0, 1), (1, 1)], [1.0, np.nan, 2.0])
    missing = sf.Relations({"x": tensor})["x"]
    assert missing.tensor.values.tolist() == [1.0, 2.0]
    assert missing.cells == 2
    zero = sf.Relations({"x": tensor}, absent="zero")["x"]
    assert zero.unknown.T.tolist() == [[0, 1]]
    assert zero.cells == 3
    assert zero.observed_counts(0).tolist() == [1, 2]
    assert zero.observed_counts(1).tolist() == [2, 1]


@pytest.mark.parametrize("p", [0.5, 1.0])
def test_zeros_are_written_out_only_where_nothing_shorter_exists(p):
    tensor = numbered(("a", "b"), (2, 2), [(0, 0), (0, 1)], [1.0, np.nan])
    site = CoupledSite(sf.Relations({"x": tensor}, absent="zero", divergence=p), 1, np.dtype(float))
    part = site.parts[0]
    assert part.closed == (p == 1.0)
    assert part.entries.tensor.n_entries == (1 if p == 1.0 else 3)
    assert part.cells == 3


def test_settings_are_for_all_or_by_name():
    relations = sf.Relations(
        {"visits": VISITS, "features": FEATURES},
        structure={"visits": "tucker"},
        divergence={"features": 0},
        dispersion={"visits": None},
        absent="zero",
    )
    visits, features = relations["visits"], relations["features"]
    assert (visits.structure, features.structure) == ("tucker", "cp")
    assert (visits.divergence, features.divergence) == (1.0, 0.0)
    assert (visits.dispersion, features.dispersion) == (None, 1.0)
    assert (visits.absent, features.absent) == ("zero", "zero")


BAD = [
    (lambda: sf.Relations({}), SettingError, "by name"),
    (lambda: sf.Relations({"a": np.ones((2, 2))}), DataError, "SparseTensor"),
    (lambda: sf.Relations({1: TRIPS}), SettingError, "names of relations are text, got 1"),
    (
        lambda: sf.Relations(
            {
                "a": timed(["2024-01-01", "2024-01-03"], "day", "item"),
                "b": timed(["2024-01-01", "2024-01-03"], "month", "club"),
            }
        ),
        DataError,
        "mode 'day' has times by day in 'a' and by month in 'b'",
    ),
    (
        lambda: sf.Relations({"a": numbered("abcdef", (10_000,) * 6, [(0,) * 6])}, absent="zero"),
        DataError,
        "1.0e.24 cells, too many to count",
    ),
    (
        lambda: sf.Relations({"a": TRIPS, "b": numbered(("user", "club"), (9, 2))}),
        DataError,
        "3 levels in 'a', 9 in 'b', and no labels",
    ),
    (
        lambda: sf.Relations({"a": TRIPS, "b": numbered(("x", "y"), (2, 2))}),
        DataError,
        "'b' shares no mode with 'a'",
    ),
    (
        lambda: sf.Relations({"a": TRIPS, "b": labelled({"user": ["u"], "c": ["v"]}, [1.0])}),
        DataError,
        "labels in one of",
    ),
    (
        lambda: sf.Relations(
            {
                "a": labelled({"user": ["u1", "u2"], "item": ["x", "y"]}, [1.0, 2.0]),
                "b": labelled({"user": ["U1"], "club": ["v"]}, [1.0]),
            }
        ),
        DataError,
        "no label of mode 'user' is in more than one of 'a' .such as 'u1'., 'b' .such as 'U1'.",
    ),
    (
        lambda: sf.Relations({"a": numbered(("a", "b"), (1, 1), [(0, 0)], [np.nan])}),
        DataError,
        "no value that was observed",
    ),
    (
        lambda: sf.Relations({"a": numbered(("a", "b"), (1, 1), [(0, 0), (0, 0)], [1, 2])}),
        DataError,
        "given more than once",
    ),
    (lambda: sf.Relations({"a": TRIPS}, divergence=3.5), SettingError, "between 0 and 3"),
    (lambda: sf.Relations({"a": TRIPS}, divergence=np.nan), SettingError, "between 0 and 3"),
    (lambda: sf.Relations({"a": TRIPS}, divergence="kl"), SettingError, "1 Kullback-Leibler"),
    (lambda: sf.Relations({"a": TRIPS}, dispersion=0.0), SettingError, "above zero"),
    (
        lambda: sf.Relations({"a": TRIPS}, dispersion="auto"),
        SettingError,
        "or None",
    ),
    (lambda: sf.Relations({"a": TRIPS}, absent="none"), SettingError, "one of missing, zero"),
    (lambda: sf.Relations({"a": TRIPS}, structure="svd"), SettingError, "one of cp, tucker"),
    (lambda: sf.Relations({"a": TRIPS}, divergence={"b": 1.0}), SettingError, "relations are a"),
    (lambda: sf.Relations({"a": TRIPS})["b"], SettingError, "no relation 'b'"),
]


@pytest.mark.parametrize(("call", "error", "says"), BAD)
def test_bad_input_is_said(call, error, says):
    with pytest.raises(error, match=says):
        call()


def test_too_many_cells_to_write_out():
    huge = numbered(("a", "b"), (10_000, 10_000), [(0, 0)])
    relations = sf.Relations({"x": huge}, absent="zero", divergence=0.5)
    with pytest.raises(SettingError, match="every cell has to be visited"):
        CoupledSite(relations, 1, np.dtype(float))
