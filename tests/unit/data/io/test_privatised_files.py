"""Files of privatised values: what is written is read again, and what was changed is noticed."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import sfumato as sf
from sfumato.data.io.privatised_files import is_privatised, record_beside
from sfumato.errors import DataError, SettingError, SfumatoError
from sfumato.solvers.behind.received import evidence_of, frame_of

DATA = sf.synthetic.cp((12, 9), 1, entries=60, seed=0).tensor
RATINGS = DATA.with_values(np.clip(np.rint(DATA.values) + 3, 1, 5), (1, 5))


def noisy(channel="response", **settings):
    return sf.privatise(RATINGS, 2.0, channel=channel, seed=0, **settings)


@pytest.mark.parametrize("name", ["noisy.csv", "noisy.tsv", "noisy.parquet"])
@pytest.mark.parametrize("channel", ["response", "geometric"])
def test_what_is_written_is_read_again(name, channel, tmp_path):
    made = noisy(channel)
    written = sf.write_privatised(made, tmp_path / name, "stars")
    assert len(written) == (1 if name.endswith("parquet") else 2)
    assert is_privatised(tmp_path / name)
    found = sf.read_privatised(tmp_path / name)
    np.testing.assert_array_equal(found.tensor.values, made.tensor.values)
    assert found.passed == made.passed
    assert sf.Guarantee.from_json(dict(found.promises[0])) == sf.Guarantee.from_json(
        dict(made.promises[0])
    )


def test_times_keep_their_bins(tmp_path):
    import pandas as pd

    table = pd.DataFrame(
        {
            "user": ["a", "b"] * 3,
            "day": pd.date_range("2020-01-01", periods=6),
            "v": [1.0, 2, 3, 4, 5, 1],
        }
    )
    days = sf.read(table, modes=["user", "day"], value="v", bins={"day": "day"}, bounds=(1, 5))
    sf.write_privatised(sf.privatise(days, 1.0, seed=0), tmp_path / "noisy.csv", "v")
    assert sf.read_privatised(tmp_path / "noisy.csv").modes == days.modes


def test_noisy_values_are_not_taken_for_clean(tmp_path):
    sf.write_privatised(noisy(), tmp_path / "noisy.csv")
    with pytest.raises(DataError, match="not to be taken for clean"):
        sf.read(tmp_path / "noisy.csv", modes=["mode1", "mode2"], value="value")
    assert not is_privatised(tmp_path)
    assert not is_privatised(RATINGS)


def test_a_changed_table_or_record_is_noticed(tmp_path):
    path = tmp_path / "noisy.csv"
    sf.write_privatised(noisy(), path)
    text = path.read_text()
    path.write_text(text.replace("\n0,", "\n1,", 1))
    with pytest.raises(DataError, match="one of the two was changed"):
        sf.read_privatised(path)
    path.write_text(text)
    record_beside(path).unlink()
    with pytest.raises(DataError, match="has to lie beside it"):
        sf.read_privatised(path)


def test_only_what_was_privatised_at_once_is_written(tmp_path):
    with pytest.raises(SettingError, match="each part by itself"):
        sf.write_privatised(sf.together(noisy(), RATINGS), tmp_path / "noisy.csv")
    assert not list(tmp_path.iterdir())


MADE = {channel: noisy(channel) for channel in ("response", "geometric")}
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.data())
def test_damaged_records_are_used_or_refused(tmp_path_factory, data):
    """Any field of a record, or of its channel, replaced by anything."""
    path = tmp_path_factory.mktemp("files") / "noisy.csv"
    sf.write_privatised(MADE[data.draw(st.sampled_from(sorted(MADE)))], path)
    record = json.loads(record_beside(path).read_text())
    inside = data.draw(st.sampled_from(["record", "channel", "guarantee"]))
    damaged = record if inside == "record" else record[inside]
    damaged[data.draw(st.sampled_from(sorted(damaged)))] = data.draw(ANYTHING)
    record_beside(path).write_text(json.dumps(record))
    try:
        read = sf.read_privatised(path)
        evidence = evidence_of(read, frame_of(read))
    except SfumatoError:
        return
    terms = evidence.terms(3, np.full(read.n_entries, evidence.centre))
    assert all(np.isfinite(part).all() for part in terms)


@pytest.mark.parametrize(
    ("field", "number"),
    [("high", 2.0**64), ("scale", 1.8e16), ("scale", 1e-12), ("low", -3.0), ("step", 4e9)],
)
def test_a_channel_that_cannot_be_is_refused(field, number, tmp_path):
    path = tmp_path / "noisy.csv"
    sf.write_privatised(MADE["geometric"], path)
    record = json.loads(record_beside(path).read_text())
    record["channel"][field] = number
    if field == "step":
        record["step"] = number
    record_beside(path).write_text(json.dumps(record))
    with pytest.raises(DataError, match="damaged"):
        sf.read_privatised(path)
