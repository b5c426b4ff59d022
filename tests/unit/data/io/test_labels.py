"""Numbering of labels over batches, and time bins against Python's own calendar."""

from datetime import UTC, date, datetime, timedelta
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sfumato.data.io.labels import LabelEncoder, bin_times
from sfumato.errors import DataError, SettingError


def encode(batches, **options):
    encoder = LabelEncoder("user", **options)
    codes = [encoder.encode(batch) for batch in batches]
    labels, remap = encoder.finish()
    return labels, remap[np.concatenate(codes)]


def cut(array, cuts):
    edges = [0, *sorted(min(c, len(array)) for c in cuts), len(array)]
    return [array[a:b] for a, b in pairwise(edges)]


cuts = st.lists(st.integers(0, 40), max_size=4)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=40), cuts)
def test_integers_are_numbered_as_by_unique_however_they_are_cut(values, where):
    labels, levels = encode(cut(pa.array(values, pa.int64()), where))
    expected, inverse = np.unique(np.array(values, np.int64), return_inverse=True)
    assert labels.dtype == np.int64
    np.testing.assert_array_equal(labels, expected)
    np.testing.assert_array_equal(levels, inverse)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.text(max_size=3), min_size=1, max_size=40), cuts)
def test_text_is_numbered_as_by_sorting_however_it_is_cut(values, where):
    labels, levels = encode(cut(pa.array(values, pa.string()), where))
    assert labels.tolist() == sorted(set(values))
    assert labels[levels].tolist() == values


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (["10", "9", "-3", "0"], [-3, 0, 9, 10]),
        (["10", "09"], ["09", "10"]),
        (["+1", "2"], ["+1", "2"]),
        (["-0", "1"], ["-0", "1"]),
        (["1.0", "2"], ["1.0", "2"]),
        (["99999999999999999999", "1"], ["1", "99999999999999999999"]),
    ],
)
def test_text_becomes_numbers_only_if_every_label_is_a_plain_number(values, expected):
    labels, _ = encode([pa.array(values)], numbers_as_text=True)
    assert labels.tolist() == expected
    assert encode([pa.array(values)])[0].tolist() == sorted(values)


@pytest.mark.parametrize(
    ("array", "expected"),
    [
        (pa.array([2, 1], pa.int8()), [1, 2]),
        (pa.array([2.0, 1.0]), [1, 2]),
        (pa.array([0.0, -0.0]), [0]),
        (pa.array([2.0, 1.5]), ["1.5", "2"]),
        (pa.array([2**63 + 1, 7], pa.uint64()), ["7", str(2**63 + 1)]),
        (pa.array([8, 7], pa.uint64()), [7, 8]),
        (pa.array([True, False]), ["False", "True"]),
        (pa.array([date(1998, 4, 2)]), ["1998-04-02"]),
        (pa.array([datetime(1998, 4, 2, 13, 5)], pa.timestamp("ns")), ["1998-04-02 13:05:00"]),
        (
            pa.array([datetime(1998, 4, 2, 13, 5, 0, 500_000)], pa.timestamp("us", "UTC")),
            ["1998-04-02 13:05:00.5Z"],
        ),
        (pa.array(["b", "a", "b"]).dictionary_encode(), ["a", "b"]),
    ],
)
def test_labels_of_each_type(array, expected):
    assert encode([array])[0].tolist() == expected


def test_nulls_are_counted_over_all_batches():
    encoder = LabelEncoder("user")
    assert encoder.encode(pa.array([3.0, None, float("nan")])).tolist() == [0, -1, -1]
    encoder.encode(pa.array([None, 3.0]))
    with pytest.raises(DataError, match="'user' has 3 rows without a label"):
        encoder.finish()


def test_a_column_of_lists_holds_no_labels():
    with pytest.raises(DataError, match=r"'user' of type .* cannot hold labels"):
        LabelEncoder("user").encode(pa.array([{"a": 1}]))


def expected_bin(moment, bin):
    year, week, _ = moment.isocalendar()
    return {
        "hour": f"{moment:%Y-%m-%dT%H}",
        "day": f"{moment:%Y-%m-%d}",
        "week": f"{year}-W{week:02d}",
        "month": f"{moment:%Y-%m}",
    }[bin]


@pytest.mark.parametrize("bin", ["hour", "day", "week", "month"])
@settings(max_examples=40, deadline=None)
@given(seconds=st.lists(st.integers(-20_000_000_000, 20_000_000_000), min_size=1, max_size=5))
def test_bins_agree_with_the_calendar_in_every_notation(bin, seconds):
    moments = [datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=s) for s in seconds]
    expected = [expected_bin(moment, bin) for moment in moments]
    naive = [moment.replace(tzinfo=None) for moment in moments]
    notations = [
        pa.array(seconds),
        pa.array([s + 0.75 for s in seconds]),
        pa.array([str(s) for s in seconds]),
        pa.array(naive, pa.timestamp("us")),
        pa.array(moments, pa.timestamp("ms", "Europe/Rome")),
        pa.array([moment.isoformat(" ") for moment in naive]),
        pa.array([moment.isoformat("T") + "Z" for moment in naive]),
        pa.array([moment.isoformat("T") + ".999Z" for moment in naive]),
    ]
    for times in notations:
        assert bin_times(times, bin).to_pylist() == expected
    assert bin_times(bin_times(notations[0], bin), bin).to_pylist() == expected


def test_dates_zones_and_mixed_notations():
    assert bin_times(pa.array([date(1998, 4, 2)]), "hour").to_pylist() == ["1998-04-02T00"]
    mixed = pa.array(["1998-04-02", "0", "1998-04-02T23:30:00-01:00", None, "1998-04-02 13:05"])
    days = ["1998-04-02", "1970-01-01", "1998-04-03", None, "1998-04-02"]
    assert bin_times(mixed, "day").to_pylist() == days
    assert bin_times(mixed.dictionary_encode(), "day").to_pylist() == days


@pytest.mark.parametrize(
    ("times", "shown"),
    [
        (pa.array(["1998-04-02", "soon", "later"]), "'soon'"),
        (pa.array(["1998-13-02"]), "'1998-13-02'"),
        (pa.array([0, 891_717_742_000]), "891717742000 is not a time.*not milliseconds"),
        (pa.array([0.0, float("inf")]), "inf is not a time"),
        (pa.array(["", "1998-04-02"]), "'' is not a time"),
        (pa.array([True]), "of type bool does not hold times"),
    ],
)
def test_what_is_no_time_is_shown(times, shown):
    with pytest.raises(DataError, match=f"column 'when'.*{shown}"):
        bin_times(times, "day", column="when")


def test_unknown_bin():
    with pytest.raises(SettingError, match="'year': use one of hour, day, week, month"):
        bin_times(pa.array([0]), "year")
