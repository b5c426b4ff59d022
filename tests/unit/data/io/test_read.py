"""Every source gives the same tensor, and every wrong call says what to do."""

import gzip
import subprocess
import sys

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import pytest
import scipy.io
import scipy.sparse

from sfumato.data.io import delimited, tables
from sfumato.data.io.read import labels_of, read, read_table
from sfumato.data.tensor import Mode, find_levels
from sfumato.errors import DataError, SettingError

COLUMNS = {
    "user": [7, 3, 7, 10],
    "item": ["b", "a", "a", "c"],
    "when": [0, 86_400, 90_000, 700_000],
    "rating": [1.0, 2.5, float("nan"), 4.0],
    "comment": ["x", "y\nz", "", 'q"'],
}
CALL = {"modes": ["user", "item", "when"], "value": "rating", "bins": {"when": "day"}}


def same(a, b):
    assert a.modes == b.modes
    np.testing.assert_array_equal(a.coordinates, b.coordinates)
    np.testing.assert_array_equal(a.values, b.values)


@pytest.fixture
def expected():
    return read(pa.table(COLUMNS), **CALL)


def test_a_table_becomes_sorted_labelled_entries(expected):
    user, item, when = expected.modes
    assert user.labels.tolist() == [3, 7, 10]
    assert item.labels.tolist() == ["a", "b", "c"]
    assert when.labels.tolist() == ["1970-01-01", "1970-01-02", "1970-01-09"]
    assert when.bin == "day"
    assert expected.coordinates.tolist() == [[0, 1, 1, 2], [0, 0, 1, 2], [1, 1, 0, 2]]
    np.testing.assert_array_equal(expected.values, [2.5, np.nan, 1.0, 4.0])


@pytest.mark.parametrize("make", [pd.DataFrame, pl.DataFrame, pa.table])
def test_tables_in_memory_agree(make, expected):
    same(read(make(COLUMNS), **CALL), expected)


def test_columns_that_pandas_numbers():
    frame = pd.DataFrame([[1, "x", 2.0], [2, "y", 3.0]])
    assert read(frame, ["0", "1"], "2").values.tolist() == [2, 3]
    with pytest.raises(SettingError, match="value must be text, got 2"):
        read(frame, [0, 1], 2)


def test_categories_and_pandas_integers_with_gaps():
    frame = pd.DataFrame({"a": [1, 2, None], "b": ["x", "y", "x"], "v": [1, 2, 3]})
    frame["b"] = frame["b"].astype("category")
    tensor = read(frame.iloc[:2], ["a", "b"], "v")
    assert tensor.modes[0].labels.tolist() == [1, 2]
    assert tensor.modes[1].labels.tolist() == ["x", "y"]
    with pytest.raises(DataError, match="column 'a' has 1 rows without a label"):
        read(frame, ["a", "b"], "v")


@pytest.mark.parametrize("name", ["t.csv", "t.tsv", "t.tab", "t.csv.gz", "t.tsv.bz2", "T.CSV"])
def test_delimited_files(tmp_path, name, expected, monkeypatch):
    monkeypatch.setattr(delimited, "BLOCK_BYTES", 64)
    separator = "," if "csv" in name.lower() else "\t"
    pd.DataFrame(COLUMNS).to_csv(tmp_path / name, sep=separator, index=False)
    same(read(tmp_path / name, **CALL), expected)
    same(read(str(tmp_path / name), **CALL), expected)


@pytest.mark.parametrize("name", ["t.parquet", "t.pq"])
def test_parquet_in_row_groups(tmp_path, name, expected, monkeypatch):
    pq.write_table(pa.table(COLUMNS), tmp_path / name, row_group_size=1)
    same(read(tmp_path / name, **CALL), expected)
    monkeypatch.setattr(tables, "BATCH_ROWS", 3)
    same(read(tmp_path / name, **CALL), expected)


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [
        (pa.float32(), np.float32),
        (pa.float64(), np.float64),
        (pa.int64(), np.float64),
        (pa.decimal128(21, 2), np.float64),
    ],
)
def test_only_float32_values_stay_narrow(tmp_path, kind, dtype):
    table = pa.table({"a": [0, 1], "b": [0, 1], "v": pa.array([1, None], pa.int64()).cast(kind)})
    pq.write_table(table, tmp_path / "t.parquet")
    tensor = read(tmp_path / "t.parquet", ["a", "b"], "v", bounds=(0, 5))
    assert tensor.values.dtype == dtype
    np.testing.assert_array_equal(tensor.values, [1, np.nan])
    assert tensor.bounds == (0.0, 5.0)


def test_words_for_nothing_in_a_csv_value_are_nan_but_labels_are_kept(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("a,b,v\nNA,1,\nnull,2, 3 \nx,1,NA\n")
    tensor = read(path, ["a", "b"], "v")
    assert tensor.modes[0].labels.tolist() == ["NA", "null", "x"]
    np.testing.assert_array_equal(tensor.values, [np.nan, 3, np.nan])
    path.write_text("a,b,v\n,1,2\nx,2,3\n")
    with pytest.raises(DataError, match="column 'a' has 1 rows without a label"):
        read(path, ["a", "b"], "v")


@pytest.mark.parametrize("name", ["t.csv", "t.parquet"])
def test_a_file_is_opened_once(tmp_path, name, monkeypatch):
    frame = pd.DataFrame(COLUMNS)
    frame.to_csv(tmp_path / "t.csv", index=False)
    frame.to_parquet(tmp_path / "t.parquet", row_group_size=2)
    opened = []
    for module, function in [(pa, "input_stream"), (pq, "ParquetFile")]:
        original = getattr(module, function)

        def spy(path, *args, _original=original, **options):
            opened.append(path)
            return _original(path, *args, **options)

        monkeypatch.setattr(module, function, spy)
    read(tmp_path / name, **CALL)
    assert opened == [tmp_path / name]


@pytest.mark.parametrize("suffix", [".tns", ".tns.gz"])
def test_frostt(tmp_path, suffix, monkeypatch):
    monkeypatch.setattr("sfumato.data.io.arrays.TNS_BYTES", 24)
    text = "# from FROSTT\n\n2 1\t1 3.5\n1 4  1 -1 # note\n# end\n# of comments\n2 4 2 0\n"
    path = tmp_path / f"t{suffix}"
    path.write_bytes(gzip.compress(text.encode()) if suffix.endswith("gz") else text.encode())
    tensor = read(path, bounds=(-1, 4))
    assert tensor.mode_names == ("mode1", "mode2", "mode3")
    assert [mode.labels.tolist() for mode in tensor.modes] == [[1, 2], [1, 4], [1, 2]]
    assert tensor.values.tolist() == [-1, 3.5, 0]
    assert read(path, ["a", "b", "c"]).mode_names == ("a", "b", "c")
    with pytest.raises(SettingError, match="3 modes but 2 names"):
        read(path, ["a", "b"])
    with pytest.raises(SettingError, match="an array has no such columns"):
        read(path, ["a", "b", "c"], bins={"a": "day"})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1 1 x\n", "not numeric: it has 'x'"),
        ("1 1\n", "is not a FROSTT tensor"),
        ("1 1 1\n1 1\n", "is not a FROSTT tensor"),
        ("1 1 2\n1 1 2\n1 1 1 1\n", "same number of coordinates"),
        ("0 1 2\n", "whole numbers from 1"),
        ("1.5 1 2\n", "whole numbers from 1"),
        ("# nothing\n", "there are no entries"),
    ],
)
def test_damaged_frostt(tmp_path, text, message, monkeypatch):
    monkeypatch.setattr("sfumato.data.io.arrays.TNS_BYTES", 24)
    (tmp_path / "t.tns").write_text(text)
    with pytest.raises(DataError, match=message):
        read(tmp_path / "t.tns")


@pytest.mark.parametrize("blank", [" ", "\t", "   "])
def test_large_coordinates_of_frostt_stay_apart(tmp_path, blank):
    numbers = [str(2**53), str(2**53 + 1), "007", "7.0", "5", str(2**32 + 5)]
    lines = [blank.join([number, "1", "2.5"]) for number in numbers]
    (tmp_path / "t.tns").write_bytes("\r\n".join(lines).encode())
    tensor = read(tmp_path / "t.tns")
    assert tensor.modes[0].labels.tolist() == [5, 7, 2**32 + 5, 2**53, 2**53 + 1]
    (tmp_path / "t.tns").write_text(f"{2**63} 1 2\n")
    with pytest.raises(
        DataError, match=r"t\.tns: coordinates must be whole numbers.*'9223372036854775808'"
    ):
        read(tmp_path / "t.tns")


def test_a_line_of_frostt_that_never_ends(tmp_path, monkeypatch):
    monkeypatch.setattr("sfumato.data.io.arrays.TNS_BYTES", 24)
    (tmp_path / "t.tns").write_text("1 2 3\n" + "1 " * 50)
    with pytest.raises(DataError, match="a line has over 24 bytes"):
        read(tmp_path / "t.tns")


DENSE = np.array([[[1.0, np.nan], [2.0, 0.0]], [[np.nan, np.nan], [3.0, 4.0]]])


def test_dense_arrays(tmp_path):
    np.save(tmp_path / "t.npy", DENSE)
    np.savez(tmp_path / "one.npz", x=DENSE)
    np.savez(tmp_path / "two.npz", x=DENSE, y=np.zeros(3))
    scipy.io.savemat(tmp_path / "t.mat", {"x": DENSE, "scale": 5.0, "note": "text"})
    tensors = [
        read(DENSE),
        read(tmp_path / "t.npy"),
        read(tmp_path / "one.npz"),
        read(tmp_path / "two.npz", variable="x"),
        read(tmp_path / "t.mat"),
        read(tmp_path / "t.mat", variable="x"),
    ]
    for tensor in tensors:
        np.testing.assert_array_equal(tensor.to_dense(), DENSE)
        assert tensor.modes[0] == Mode("mode1", 2)
    assert read(DENSE.astype(np.float32), ["a", "b", "c"]).values.dtype == np.float32
    assert read(np.arange(6).reshape(2, 3)).n_entries == 6


def test_sparse_matrices_keep_stored_zeros(tmp_path):
    matrix = scipy.sparse.csr_array(([1.0, 0.0, 3.0], ([0, 1, 1], [2, 0, 2])), shape=(3, 4))
    scipy.sparse.save_npz(tmp_path / "t.npz", matrix)
    scipy.io.savemat(tmp_path / "t.mat", {"s": scipy.sparse.csc_matrix(matrix)})
    for source in (matrix, scipy.sparse.csc_matrix(matrix), tmp_path / "t.npz"):
        tensor = read(source)
        assert tensor.shape == (3, 4)
        assert tensor.coordinates.tolist() == [[0, 1, 1], [2, 0, 2]]
        assert tensor.values.tolist() == [1, 0, 3]
    assert read(tmp_path / "t.mat", ["a", "b"]).shape == (3, 4)


def test_npz_table(tmp_path, expected):
    path = tmp_path / "t.npz"
    np.savez(path, extra=np.zeros((2, 2)), **{k: np.array(v) for k, v in COLUMNS.items()})
    same(read(path, **CALL), expected)
    with pytest.raises(SettingError, match=r"The columns are extra, user, item, when"):
        read(path)
    with pytest.raises(DataError, match=r"one dimension and the same length, got .*extra \(2, 2\)"):
        read(path, ["user", "item"], "extra")
    with pytest.raises(SettingError, match="there is no array 'z'"):
        read(path, variable="z")


def test_a_tensor_passes_through(expected):
    assert read(expected) is expected
    bounded = read(expected, bounds=(0, 5))
    assert bounded.bounds == (0, 5)
    same(bounded, expected)
    with pytest.raises(SettingError, match="has its modes already"):
        read(expected, ["a", "b"])


@pytest.mark.parametrize("suffix", [".csv", ".parquet", None])
@pytest.mark.parametrize(
    ("call", "message"),
    [
        ({}, r"say which columns .*modes=\['user', 'item', ...\].*columns are user, item, when"),
        ({"modes": ["user", "item"]}, "say which columns"),
        ({"modes": ["user", "itme"], "value": "rating"}, "no column 'itme'.*did you mean 'item'"),
        ({"modes": ["user", "zzz"], "value": "rating"}, "no column 'zzz'; the columns are user, "),
        ({"modes": ["user", "user"], "value": "rating"}, "'user' is named twice"),
        ({"modes": ["user", "item"], "value": "item"}, "'item' is named twice"),
        ({"modes": ["user"], "value": "rating"}, "two modes or more, got user"),
        ({"modes": "user", "value": "rating"}, "modes must be a list of names"),
        ({**CALL, "bins": {"when": "year"}}, "unknown time bin 'year'"),
        ({**CALL, "bins": {"rating": "day"}}, "'rating', which is not one of the modes"),
        ({**CALL, "bounds": (5, 1)}, "bounds must be finite"),
    ],
)
def test_impossible_calls(tmp_path, suffix, call, message):
    source = pa.table(COLUMNS)
    if suffix is not None:
        path = tmp_path / f"t{suffix}"
        (pacsv.write_csv if suffix == ".csv" else pq.write_table)(source, path)
        source = path
    with pytest.raises(SettingError, match=message):
        read(source, **call)


@pytest.mark.parametrize("suffix", [".csv", ".parquet", None])
def test_values_that_are_no_numbers_and_empty_tables(tmp_path, suffix):
    def source(table):
        path = tmp_path / f"t{suffix}"
        if suffix is None:
            return table
        (pacsv.write_csv if suffix == ".csv" else pq.write_table)(table, path)
        return path

    table = pa.table({"a": [1, 2, 3], "b": [1, 2, 3], "v": ["3", "good", "bad"]})
    with pytest.raises(DataError, match=r"'v' is to hold the values but is not numeric.*'good'"):
        read(source(table), ["a", "b"], "v")
    with pytest.raises(DataError, match="the table is empty"):
        read(source(table.slice(0, 0)), ["a", "b"], "v")
    if suffix != ".csv":
        table = table.set_column(2, "v", pa.array([True, False, True]))
        with pytest.raises(DataError, match="it has type bool, for example True"):
            read(source(table), ["a", "b"], "v")


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(DataError, match="there is no file") as caught:
        read(tmp_path / "none.csv")
    assert isinstance(caught.value, FileNotFoundError)
    with pytest.raises(DataError, match="is a folder"):
        read(tmp_path)
    for name in ("t.doc", "t.parquet.gz", "t"):
        (tmp_path / name).write_text("")
        with pytest.raises(DataError, match=r"unknown file format. Known are .csv, .tsv"):
            read(tmp_path / name)
    for name in ("t.csv", "t.csv.gz", "t.parquet", "t.npz", "t.npy", "t.mat"):
        (tmp_path / name).write_bytes(b"PK\x03\x04\x93" if name == "t.npz" else b"\x93")
        with pytest.raises(DataError, match="cannot be read"):
            read(tmp_path / name, ["a", "b"], "v")
    (tmp_path / "t.csv").write_text("a,b,v\n1,2,3\n1,2\n")
    with pytest.raises(DataError, match=r"t.csv cannot be read: .*Expected 3 columns"):
        read(tmp_path / "t.csv", ["a", "b"], "v")
    with pytest.raises(SettingError, match="variable chooses an array"):
        read(tmp_path / "t.csv", ["a", "b"], "v", variable="x")


def test_matlab_files_that_need_a_choice(tmp_path):
    path = tmp_path / "t.mat"
    scipy.io.savemat(path, {"x": np.ones((2, 3)), "y": np.ones((4, 5)), "name": "text"})
    with pytest.raises(SettingError, match=r"variable.*x \(2, 3\), y \(4, 5\)"):
        read(path)
    for name in ("z", "name"):
        with pytest.raises(SettingError, match="no numeric array"):
            read(path, variable=name)
    path.write_bytes(b"MATLAB 7.3 MAT-file".ljust(124) + b"\x00\x02IM" + bytes(400))
    with pytest.raises(DataError, match=r"save\(..., '-v7'\)"):
        read(path)


def test_objects_that_are_no_tables():
    with pytest.raises(DataError, match=r"cannot read a LazyFrame.*collected first"):
        read(pl.LazyFrame(COLUMNS), **CALL)
    with pytest.raises(DataError, match="cannot read a int"):
        read(3)
    with pytest.raises(DataError, match="an array of numbers is needed"):
        read(np.array([["a"]]))
    with pytest.raises(DataError, match="mixes types"):
        read(pd.DataFrame({"a": [1, "x"], "b": [1, 2], "v": [1, 2]}), ["a", "b"], "v")
    with pytest.raises(DataError, match="two modes or more"):
        read(np.ones(3))
    with pytest.raises(DataError, match="the array is masked"):
        read(np.ma.masked_invalid(np.ones((2, 2))))
    for wrong in (object(), 2**70, "\ud800", [1], 1 + 2j):
        frame = pd.DataFrame({"a": pd.Series([1, wrong], dtype=object), "b": [1, 2], "v": [1, 2]})
        with pytest.raises(DataError, match=r"mixes types|cannot be read|cannot hold labels"):
            read(frame, ["a", "b"], "v")
    with pytest.raises(DataError, match="no columns"):
        read(pd.DataFrame(), ["a", "b"], "v")


def test_whole_tables_for_prediction(tmp_path, expected):
    path = tmp_path / "t.csv"
    pacsv.write_csv(pa.table(COLUMNS), path)
    table = read_table(path, as_text=["user"])
    assert table.column_names == list(COLUMNS)
    assert table.column("user").to_pylist() == ["7", "3", "7", "10"]
    assert table.column("when").type == pa.int64()
    pq.write_table(pa.table(COLUMNS), tmp_path / "t.parquet")
    for source in (tmp_path / "t.parquet", pd.DataFrame(COLUMNS), pl.DataFrame(COLUMNS)):
        assert read_table(source, ["item", "user"]).to_pydict() == {
            "item": COLUMNS["item"],
            "user": COLUMNS["user"],
        }
    with pytest.raises(SettingError, match=r"no column 'users'.*'user'"):
        read_table(path, ["users"])
    np.save(tmp_path / "t.npy", DENSE)
    with pytest.raises(DataError, match=r"t\.npy is not a table"):
        read_table(tmp_path / "t.npy")


def test_labels_for_prediction_match_in_every_notation(tmp_path, expected):
    path = tmp_path / "t.csv"
    pacsv.write_csv(pa.table(COLUMNS), path)
    labelled = pa.table({**COLUMNS, "when": ["1970-01-01", "1970-01-02", "1970-01-02", "700000"]})
    levels = find_levels(expected.modes, labels_of(pa.table(COLUMNS), expected.modes))
    assert levels.tolist() == [[1, 0, 1, 2], [1, 0, 0, 2], [0, 1, 1, 2]]
    for table in (read_table(path, as_text=["user", "when"]), read_table(path), labelled):
        found = find_levels(expected.modes, labels_of(table, expected.modes))
        np.testing.assert_array_equal(found, levels)
    unknown = pa.table({"user": [8], "item": ["z"], "when": ["1999-01-01"]})
    assert np.all(find_levels(expected.modes, labels_of(unknown, expected.modes)) == -1)
    with pytest.raises(SettingError, match="no column 'when'"):
        labels_of(unknown.drop_columns(["when"]), expected.modes)
    with pytest.raises(DataError, match="'user' has 1 rows without a label"):
        labels_of(unknown.set_column(0, "user", pa.array([None], pa.int64())), expected.modes)


def test_reading_imports_no_table_library():
    check = "import sys, sfumato.data.io.read; sys.exit(bool({'pandas', 'polars'} & {*sys.modules}))"
    assert subprocess.run([sys.executable, "-c", check], check=False).returncode == 0
