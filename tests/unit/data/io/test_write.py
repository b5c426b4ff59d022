"""What is written can be read back, and a failed write leaves nothing behind."""

import gzip
import io

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sfumato.data.io.read import read, read_table
from sfumato.data.io.write import (
    replacing,
    write_added,
    write_completed,
    write_factors,
    write_table,
)
from sfumato.data.tensor import Mode
from sfumato.errors import DataError, SettingError

MODES = (
    Mode("user", 3, np.array([5, 7, 9])),
    Mode("item", 2, np.array(["b,\tc", 'say "a"'], object)),
    Mode("slot", 4),
)
COORDINATES = np.array([[0, 1, 2, 2], [0, 0, 1, 1], [3, 0, 1, 2]], np.int32)
VALUES = np.array([0.1, 1 / 3, np.nan, 1e300])


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".parquet"])
def test_completed_cells_can_be_read_back(tmp_path, suffix):
    path = tmp_path / f"out{suffix}"
    write_completed(path, COORDINATES, VALUES, MODES)
    tensor = read(path, ["user", "item", "slot"], "prediction")
    np.testing.assert_array_equal(tensor.coordinates, COORDINATES)
    np.testing.assert_array_equal(tensor.values, VALUES)
    for back, mode in zip(tensor.modes[:2], MODES, strict=False):
        np.testing.assert_array_equal(back.labels, mode.labels)
    assert [file.name for file in tmp_path.iterdir()] == [path.name]


def test_the_value_column_has_a_name_of_its_own(tmp_path):
    write_completed(tmp_path / "a.csv", COORDINATES, VALUES, MODES, "score")
    assert read_table(tmp_path / "a.csv").column_names == ["user", "item", "slot", "score"]
    with pytest.raises(SettingError, match="'user' is the name of a mode"):
        write_completed(tmp_path / "a.csv", COORDINATES, VALUES, MODES, "user")


@pytest.mark.parametrize("format", ["csv", "parquet"])
def test_factors_with_and_without_biases(tmp_path, format):
    rng = np.random.default_rng(0)
    factors = [rng.normal(size=(mode.size, 2)) for mode in MODES]
    biases = [np.arange(3.0), None, np.arange(4.0)]
    paths = write_factors(tmp_path / "deep" / "out", factors, MODES, format, biases)
    assert [path.name for path in paths] == [f"{mode.name}.{format}" for mode in MODES]
    user, item, slot = (read_table(path) for path in paths)
    assert user.column_names == ["user", "f1", "f2", "bias"]
    assert item.column_names == ["item", "f1", "f2"]
    assert slot.column("slot").to_pylist() == [0, 1, 2, 3]
    np.testing.assert_array_equal(user.column("f2").to_numpy(), factors[0][:, 1])
    assert item.column("item").to_pylist() == MODES[1].labels.tolist()


def test_factors_that_cannot_be_written(tmp_path):
    ones = np.ones((3, 1))
    user = MODES[0]
    with pytest.raises(SettingError, match="format must be one of csv, parquet, got 'xls'"):
        write_factors(tmp_path, [ones], [user], "xls")
    with pytest.raises(DataError, match=r"3 levels but factors of shape \(2, 1\)"):
        write_factors(tmp_path, [np.ones((2, 1))], [user])
    with pytest.raises(SettingError, match="one file"):
        write_factors(tmp_path, [ones, ones], [Mode("a/b", 3), Mode("a b", 3)])
    with pytest.raises(SettingError, match="'f1' is also a column"):
        write_factors(tmp_path, [ones], [Mode("f1", 3)])
    assert list(tmp_path.iterdir()) == []
    (path,) = write_factors(tmp_path, [ones], [Mode("../up", 3)])
    assert path.parent == tmp_path
    assert path.exists()


def test_a_failed_write_leaves_the_old_file_and_no_other(tmp_path, monkeypatch):
    path = tmp_path / "t.parquet"
    table = pa.table({"a": [1, 2]})
    write_table(table, path)

    def fail(table, file):
        file.write(b"half of it")
        raise OSError("disk full")

    monkeypatch.setattr(pq, "write_table", fail)
    with pytest.raises(OSError, match="disk full"):
        write_table(pa.table({"a": [3]}), path)
    assert [file.name for file in tmp_path.iterdir()] == ["t.parquet"]
    assert read_table(path).equals(table)


def test_where_nothing_can_be_written(tmp_path):
    with pytest.raises(SettingError, match=r"cannot write t.xlsx: use .csv, .tsv or .parquet"):
        write_table(pa.table({"a": [1]}), tmp_path / "t.xlsx")
    with pytest.raises(DataError, match="there is no folder"):
        write_table(pa.table({"a": [1]}), tmp_path / "none" / "t.csv")


# -- columns added to a file ------------------------------------------------------------------------

AWKWARD = [
    "a,b\n1.50,007\n",
    "a,b\r\n1.50,007\r\n",
    "a,b\n1,2",  # no end of the last line
    "\n\na,b\n\n1,2\n\n\n",  # empty lines
    '\ufeff"a",b\n"1","x, y"\n2,"say ""so"""\n',
    'a,b\n"two\r\nlines",2\n5" disk,3\n',
    "a;b\n1,5;é\n",
    "a\tb\n 1 ,\t2\n",
]


@pytest.mark.parametrize("text", AWKWARD)
@pytest.mark.parametrize("to_stream", [True, False])
def test_what_a_file_holds_stays_byte_for_byte(tmp_path, text, to_stream):
    source, out = tmp_path / "in.csv", io.BytesIO() if to_stream else tmp_path / "out.csv"
    source.write_bytes(text.encode())
    table = read_table(source, as_text=None)
    numbers = np.arange(table.num_rows) + 0.5
    write_added(source, table, {"p": numbers}, out)
    found = out.getvalue() if to_stream else out.read_bytes()
    cut = b"\t" if "\t" in text else b";" if ";" in text else b","
    for number in ("p", *numbers):
        assert found.count(cut + str(number).encode()) == 1
        found = found.replace(cut + str(number).encode(), b"")
    assert found == text.encode()


def test_added_columns_can_be_read_and_their_names_are_quoted(tmp_path):
    source, out = tmp_path / "in.tsv.gz", tmp_path / "out.tsv"
    source.write_bytes(gzip.compress(b"a\tb\n1\t2\n3\t4\n"))
    added = {"p\tq": np.array([0.1, 1e300]), "n": np.array([np.nan, -1], np.float32)}
    write_added(source, read_table(source, as_text=None), added, out)
    assert out.read_bytes() == b'a\tb\t"p\tq"\tn\n1\t2\t0.1\tnan\n3\t4\t1e+300\t-1\n'
    assert read_table(out).column_names == ["a", "b", "p\tq", "n"]


def test_another_format_is_written_anew(tmp_path):
    source = tmp_path / "in.csv"
    source.write_text("a;b\n007;x\n")
    table = read_table(source, as_text=None)
    for name in ("out.tsv", "out.parquet"):
        write_added(source, table, {"p": np.array([1.5])}, tmp_path / name)
        assert read_table(tmp_path / name, as_text=["a"]).to_pydict() == {
            "a": ["007"],
            "b": ["x"],
            "p": [1.5],
        }
    with pytest.raises(SettingError, match=r"use \.csv, \.tsv or \.parquet"):
        write_added(source, table, {"p": np.array([1.5])}, tmp_path / "out.xlsx")
    source.write_text("a;b\n")
    with pytest.raises(DataError, match="has changed while it was read"):
        write_added(source, table, {"p": np.array([1.5])}, tmp_path / "out.csv")
    assert not (tmp_path / "out.csv").exists()


@pytest.mark.parametrize("path", [".", "", "here"])
def test_a_folder_is_no_file_to_write(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here").mkdir()
    with pytest.raises(DataError, match="is a folder, so name a file in it"), replacing(path):
        raise AssertionError("nothing is to be written")
    assert [each.name for each in tmp_path.iterdir()] == ["here"]
