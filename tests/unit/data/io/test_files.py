"""Formats of files that newcomers bring, and files that are damaged or made to do harm."""

import os
import subprocess
import sys
import zipfile

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import pytest
import scipy.io
import scipy.sparse

from benchmarks.fuzz.xlsx import Day, workbook
from sfumato.data.io import apart, files
from sfumato.data.io.read import columns_of, read, read_entries, read_table, with_dates
from sfumato.data.tensor import Mode
from sfumato.errors import DataError, SettingError

CALL = {"modes": ["user", "item"], "value": "rating"}
LINES = ["user,item,rating", "7,a,1.5", "3,b,2", "10,a,4"]


def same(a, b):
    assert a.modes == b.modes
    np.testing.assert_array_equal(a.coordinates, b.coordinates)
    np.testing.assert_array_equal(a.values, b.values)


@pytest.fixture
def expected(tmp_path):
    (tmp_path / "right.csv").write_text("\n".join(LINES))
    return read(tmp_path / "right.csv", **CALL)


def written(path, text):
    path.write_text(text, newline="")
    return path


def zipped(path, **members):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name.replace("__", "/").replace("_", "."), content)
    return path


def excel(path, **sheets):
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in workbook(sheets).items():
            archive.writestr(name, text)
    return path


# -- separators -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["t.csv", "t.tsv"])
@pytest.mark.parametrize("separator", [",", ";", "\t", "|"])
def test_the_header_shows_the_separator(tmp_path, name, separator, expected):
    path = written(tmp_path / name, "\n".join(LINES).replace(",", separator))
    same(read(path, **CALL), expected)
    assert columns_of(path) == ["user", "item", "rating"]
    assert read_table(path).column_names == ["user", "item", "rating"]
    same(read(path, **CALL, separator="tab" if separator == "\t" else separator), expected)


def test_a_separator_that_is_said_counts(tmp_path, expected):
    path = written(tmp_path / "t.csv", "\n".join(LINES).replace(",", " "))
    with pytest.raises(SettingError, match=r"no column 'user'.* one alone.*say what with separator"):
        read(path, **CALL)
    same(read(path, **CALL, separator=" "), expected)
    # Its own separator in the header wins, whatever else is there; quotes hide both.
    path = written(tmp_path / "t.csv", '"x;y;z","a,b",v;w;u\n1,2,3\n')
    assert columns_of(path) == ["x;y;z", "a,b", "v;w;u"]
    assert columns_of(path, ";") == ['x;y;z,"a,b",v', "w", "u"]


@pytest.mark.parametrize("wrong", ["", "ab", "a", '"', "\n", ".", "é", 7])
def test_separators_that_are_none(tmp_path, wrong):
    path = written(tmp_path / "t.csv", "\n".join(LINES))
    with pytest.raises(SettingError, match="separator is"):
        read(path, **CALL, separator=wrong)


def test_a_separator_is_for_text_alone(tmp_path):
    pq.write_table(pa.table({"a": [1]}), tmp_path / "t.parquet")
    for source in (tmp_path / "t.parquet", pa.table({"a": [1]})):
        with pytest.raises(SettingError, match=r"separator is for \.csv and \.tsv"):
            read(source, **CALL, separator=";")


@pytest.mark.parametrize(
    "header",
    ['a,"b ""c"" d",e', 'a,"b\nc",e', "\ufeffa,b,e", "\n\na,b,e", "a,,e", '"a"x,b,e', "a,b,", '""'],
)
def test_columns_are_named_as_arrow_names_them(tmp_path, header):
    path = written(tmp_path / "t.csv", f"{header}\n1,2,3\n")
    if header == '""':
        path.write_text('""\n1\n')
    options = pacsv.ParseOptions(newlines_in_values=True)
    assert columns_of(path) == pacsv.read_csv(path, parse_options=options).column_names


@pytest.mark.parametrize("name", ["t.csv", "t.csv.gz", "t.csv.zst", "t.zip"])
def test_a_table_may_be_wide_but_not_without_end(tmp_path, name):
    names = [f"a column with a long name {number}" for number in range(25_000)]
    for header, fits in ((names, True), (names * 2, False)):
        text = ",".join(["user", "item", *header, "rating"]) + "\n" + "1," * (len(header) + 2) + "5\n"
        if name == "t.zip":
            zipped(tmp_path / name, t_csv=text)
        else:
            with pa.output_stream(tmp_path / name, compression="detect") as stream:
                stream.write(text.encode())
        if fits:
            assert read(tmp_path / name, **CALL).values.tolist() == [5]
        else:
            with pytest.raises(DataError, match=r"its first line.* is longer than 1,048,576 bytes"):
                read(tmp_path / name, **CALL)


def test_a_column_that_is_there_twice(tmp_path):
    path = written(tmp_path / "t.csv", "user,item,user,rating\n1,2,3,4\n")
    table = pa.Table.from_arrays([pa.array([1])] * 4, ["user", "item", "user", "rating"])
    pq.write_table(table, tmp_path / "t.parquet")
    for source in (path, tmp_path / "t.parquet", table, table.to_pandas()):
        with pytest.raises(DataError, match="column 'user' is there twice"):
            read(source, **CALL)


def test_decimal_commas_and_other_encodings_get_a_hint(tmp_path):
    path = written(tmp_path / "t.csv", "user;item;rating\n1;2;3,5\n")
    with pytest.raises(DataError, match=r"it has '3,5'\. Write decimals with a point"):
        read(path, **CALL)
    path = written(tmp_path / "t.csv", "user,item,rating\n1,2,3,5\n")
    with pytest.raises(DataError, match="decimal comma, needs quotes"):
        read(path, **CALL)
    (tmp_path / "t.csv").write_bytes("user,item,rating\né,2,3\n".encode("latin-1"))
    with pytest.raises(DataError, match=r"t\.csv cannot be read: it is not text in UTF-8. Save it"):
        read(tmp_path / "t.csv", **CALL)


# -- archives -------------------------------------------------------------------------------------


def test_a_zip_with_one_file(tmp_path, expected):
    text = "\n".join(LINES)
    same(read(zipped(tmp_path / "t.zip", t_csv=text), **CALL), expected)
    beside = zipped(tmp_path / "t.zip", folder__t_csv=text.replace(",", ";"), __MACOSX__t_csv="x")
    with zipfile.ZipFile(beside, "a") as archive:
        archive.writestr(".hidden", "x")
    with pytest.raises(DataError, match=r"must hold one file.*/MACOSX/t\.csv"):
        read(beside, **CALL)
    path = tmp_path / "mac.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("folder/t.csv", text.replace(",", ";"))
        archive.writestr("__MACOSX/folder/._t.csv", "x")
        archive.writestr(".hidden", "x")
    same(read(path, **CALL), expected)
    assert read(zipped(tmp_path / "t.zip", t_tns="1 2 3.5\n")).values.tolist() == [3.5]
    with pytest.raises(DataError, match=r"holds t\.npy: only .csv, .tsv and .tns"):
        read(zipped(tmp_path / "t.zip", t_npy="x"), **CALL)
    with pytest.raises(DataError, match="must hold one file of data to be read from, it has: none"):
        read(zipped(tmp_path / "t.zip"), **CALL)


@pytest.mark.parametrize("name", ["t.zip", "t.npz", "t.xlsx"])
def test_an_archive_that_would_fill_the_memory_is_refused_unread(tmp_path, name, monkeypatch):
    monkeypatch.setattr(files, "UNPACKED_BYTES", 1 << 16)
    path = tmp_path / name
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("t.csv", bytes(1 << 20))
    with pytest.raises(DataError, match=r"would unpack to .* over 250 times its size"):
        read(path, **CALL)


# -- Excel ----------------------------------------------------------------------------------------


def test_excel(tmp_path, expected):
    rows = [["user", "item", "when", "rating", "note"], [7.0, "a", Day(43831), 1.5, 2.0], []]
    rows += [[3.0, "b", Day(43832), 2.0, "x"], [10.0, "a", Day(43832), 4.0, None]]
    path = excel(tmp_path / "t.xlsx", data=rows)
    same(read(path, **CALL), expected)
    assert columns_of(path) == rows[0]
    binned = read(path, ["user", "when"], "rating", bins={"when": "day"})
    assert binned.modes[1].labels.tolist() == ["2020-01-01", "2020-01-02"]
    assert read_table(path).column("note").to_pylist() == ["2", "x", None]


def test_sheets_of_excel(tmp_path, expected):
    rows = [line.split(",") for line in LINES]
    path = excel(tmp_path / "t.xlsx", one=rows[:2], two=rows, none=[])
    with pytest.raises(SettingError, match=r"several sheets.*variable.*one, two, none"):
        read(path, **CALL)
    assert read(path, **CALL, variable="two").n_entries == 3
    with pytest.raises(SettingError, match=r"no sheet 'three'"):
        read(path, **CALL, variable="three")
    path = excel(tmp_path / "t.xlsx", one=rows, none=[])
    assert read(path, **CALL).n_entries == 3


def test_without_what_reads_excel_the_extra_is_named(tmp_path, monkeypatch):
    path = excel(tmp_path / "t.xlsx", one=[["a"]])
    monkeypatch.setattr(apart.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(DataError, match=r'pip install "sfumato\[excel\]"'):
        read(path, **CALL)


def test_a_cell_that_asks_for_all_memory(tmp_path):
    content = workbook({"one": [["user", "item", "rating"], [1.0, 2.0, 3.0]]})
    sheet = "xl/worksheets/sheet1.xml"
    content[sheet] = content[sheet].replace('r="C2"', 'r="XFD1048576"')
    with zipfile.ZipFile(tmp_path / "t.xlsx", "w") as archive:
        for name, text in content.items():
            archive.writestr(name, text)
    with pytest.raises(DataError, match=r"t\.xlsx cannot be read: it is damaged"):
        read(tmp_path / "t.xlsx", **CALL)


# -- dates ----------------------------------------------------------------------------------------

DATED = {"modes": ["user", "when"], "value": "rating", "bins": {"when": "day"}}


@pytest.mark.parametrize(
    ("format", "days"),
    [
        ("%d/%m/%Y", ["2020-02-01", "2020-03-12"]),
        ("%m/%d/%Y", ["2020-01-02", "2020-12-03"]),
    ],
)
def test_dates_are_read_as_they_are_said_to_be_written(tmp_path, format, days):
    path = written(tmp_path / "t.csv", "user,when,rating\n1,01/02/2020,1\n2,12/3/2020,2\n")
    tensor = read(path, **DATED, date_format=format)
    assert tensor.modes[1].labels.tolist() == days
    assert tensor.modes[1].bin == "day"
    with pytest.raises(DataError, match=r"'01/02/2020' is not a time.*written with date_format"):
        read(path, **DATED)


@pytest.mark.parametrize(
    "wrong", ["31/02/2020", "2020-02-01", "13/13/2020", "01/02/2020 x", "1580515200"]
)
def test_dates_that_are_none_are_not_guessed(tmp_path, wrong):
    path = written(tmp_path / "t.csv", f"user,when,rating\n1,01/02/2020,1\n2,{wrong},2\n")
    with pytest.raises(DataError, match=f"'{wrong}' is no date written as %d/%m/%Y"):
        read(path, **DATED, date_format="%d/%m/%Y")


def test_formats_of_dates_that_make_no_sense(tmp_path):
    path = written(tmp_path / "t.csv", "\n".join(LINES))
    with pytest.raises(SettingError, match="say with bins which columns hold times"):
        read(path, **CALL, date_format="%d/%m/%Y")
    with pytest.raises(SettingError, match=r"date_format says how dates are written"):
        read(path, **DATED, date_format="day first")


def test_dates_of_cells_and_of_own_entries(tmp_path):
    path = written(tmp_path / "t.csv", "user,when,rating\n1,01/02/2020,1\n")
    modes = (Mode("user", 1), Mode("when", 1, np.array(["2020-02-01"], object), "day"))
    table = with_dates(read_table(path, as_text=None), modes, "%d/%m/%Y")
    assert table.column("when").to_pylist()[0].isoformat() == "2020-02-01T00:00:00"
    own = read_entries(path, modes, date_format="%d/%m/%Y")
    assert own.modes[1].labels.tolist() == ["2020-02-01"]
    with pytest.raises(SettingError, match="none of the columns holds them"):
        with_dates(table, modes[:1], "%d/%m/%Y")


# -- damaged files --------------------------------------------------------------------------------


def header_of(path, array, old, new):
    """A .npy file whose header was changed."""
    np.save(path, array, allow_pickle=True)
    data = path.read_bytes()
    header = data[10:128].decode().replace(old, new)
    path.write_bytes(data[:8] + len(header).to_bytes(2, "little") + header.encode() + data[128:])
    return path


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("(3, 4)", "(3, 4000000000000)", r"claims the shape \(3, 4000000000000\)"),
        ("(3, 4)", "(-3, 4)", r"claims the shape"),
        ("(3, 4)", f"({2**62}, {2**62})", r"claims the shape"),
        ("<f8", "|O", "holds Python objects"),
        ("{", "[" * 50, "damaged"),
        ("(3, 4)", "'x'", "shape is not valid"),
    ],
)
def test_headers_of_arrays_are_held_against_the_file(tmp_path, old, new, message):
    path = header_of(tmp_path / "t.npy", np.ones((3, 4)), old, new)
    with pytest.raises(DataError, match=rf"t\.npy cannot be read: .*{message}"):
        read(path)
    with zipfile.ZipFile(tmp_path / "t.npz", "w") as archive:
        archive.write(path, "x.npy")
    with pytest.raises(DataError, match=rf"t\.npz cannot be read: .*{message}"):
        read(tmp_path / "t.npz")


def test_arrays_of_the_other_order_of_bytes_and_of_columns(tmp_path):
    array = np.arange(12, dtype=">f8").reshape(3, 4)
    for saved in (array, np.asfortranarray(array), array.astype(">i4")):
        np.save(tmp_path / "t.npy", saved)
        np.testing.assert_array_equal(read(tmp_path / "t.npy").to_dense(), array)


@pytest.mark.parametrize("format", ["csr", "csc", "coo", "bsr", "dia"])
def test_every_format_that_scipy_saves(tmp_path, format):
    matrix = scipy.sparse.random_array((6, 8), density=0.4, rng=1, format=format)
    scipy.sparse.save_npz(tmp_path / "t.npz", matrix)
    found = np.nan_to_num(read(tmp_path / "t.npz").to_dense())
    np.testing.assert_array_equal(found, matrix.toarray())


def test_pointers_that_point_nowhere_on_file(tmp_path):
    matrix = scipy.sparse.csr_array(np.eye(4))
    parts = {"data": matrix.data, "indices": matrix.indices, "shape": (4, 4), "format": b"csr"}
    np.savez(tmp_path / "t.npz", indptr=np.array([0, 2**30, 1, 3, 4]), **parts)
    with pytest.raises(DataError, match="indptr"):
        read(tmp_path / "t.npz")
    scipy.io.savemat(tmp_path / "t.mat", {"s": scipy.sparse.csc_array(np.eye(4))})
    data = (tmp_path / "t.mat").read_bytes()
    right = np.arange(5, dtype=np.int32).tobytes()
    assert data.count(right) == 1
    wrong = np.array([0, 2**30, 2, 3, 4], np.int32).tobytes()
    (tmp_path / "t.mat").write_bytes(data.replace(right, wrong))
    with pytest.raises(DataError, match="indptr"):
        read(tmp_path / "t.mat")


def test_a_reader_that_breaks_down_or_never_ends_harms_nobody(tmp_path, monkeypatch):
    scipy.io.savemat(tmp_path / "t.mat", {"x": np.ones((2, 3))})
    script = tmp_path / "child.py"
    monkeypatch.setattr(apart.apart_child, "__file__", str(script))
    script.write_text("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)")
    with pytest.raises(DataError, match=r"t\.mat cannot be read: it is damaged"):
        read(tmp_path / "t.mat")
    script.write_text("import time; time.sleep(60)")
    monkeypatch.setattr(apart, "SECONDS", 0.1)
    with pytest.raises(DataError, match=r"t\.mat cannot be read: its reader did not end"):
        read(tmp_path / "t.mat")


def test_a_file_may_not_ask_for_more_memory_than_its_size_lets_expect(tmp_path, monkeypatch):
    scipy.io.savemat(tmp_path / "t.mat", {"x": np.zeros((1 << 13, 1 << 12))}, do_compression=True)
    monkeypatch.setattr(apart, "unpacked_limit", lambda path: 1 << 20)
    monkeypatch.setattr(apart, "_CHILD_BYTES", 1 << 29)
    with pytest.raises(DataError, match=r"t\.mat cannot be read: it asks for more memory"):
        read(tmp_path / "t.mat")


def test_the_child_imports_nothing_of_ours():
    check = (
        f"import runpy, sys; runpy.run_path({apart.apart_child.__file__!r}); "
        "sys.exit(any(name.partition('.')[0] in ('sfumato', 'numpy', 'scipy') for name in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", check], check=False).returncode == 0


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("t.tns", b"\xff\xfe\x00 1 2\n"),
        ("t.csv", b'user,item,rating\n"1,2,3\n'),
        ("t.csv.gz", b"\x1f\x8b\x08\x00"),
        ("t.zip", b"PK\x05\x06" + bytes(18)),
        ("t.parquet", b"PAR1" + bytes(30) + b"PAR1"),
        ("t.mat", b"\0" * 200),
        ("t.npy", b"\x93NUMPY\x09\x00"),
        ("t.npz", b"PK\x03\x04"),
        ("t.xlsx", b"PK\x03\x04"),
    ],
)
def test_what_libraries_raise_becomes_an_error_that_names_the_file(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=name.replace(".", r"\.")):
        read(tmp_path / name, **({} if name == "t.tns" else CALL))


def test_a_pipe_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "t.csv")
    with pytest.raises(DataError, match="is no plain file"):
        read(tmp_path / "t.csv", **CALL)


def test_names_that_no_file_can_have():
    with pytest.raises(DataError, match="cannot be read"):
        read("a" * 5000 + ".csv", **CALL)
    with pytest.raises(DataError, match="there is no file"):
        read("a\0b.csv", **CALL)
