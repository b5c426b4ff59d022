"""Every source gives the same samples, in pieces that do not grow with their number."""

import gc
import tracemalloc
import weakref

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import scipy.sparse

from sfumato.data.io.files import MissingFileError
from sfumato.data.samples import BATCH_NUMBERS, FEWEST_ROWS, MOST_ROWS, open_samples
from sfumato.errors import DataError, SettingError

SIZE = 3
STEP = 4  # the rows of a batch in most of these tests


def numbers(rows, size=SIZE, dtype=np.float64):
    """Small whole numbers, half of them zero, in any type."""
    drawn = np.random.default_rng(rows).integers(-5, 6, (rows, size))
    return np.where(drawn % 2 == 0, drawn, 0).astype(dtype)


def named(array):
    return {f"x{position}": np.ascontiguousarray(column) for position, column in enumerate(array.T)}


def lists(array, kind=None):
    return pa.table({"vector": pa.array(list(array), kind or pa.list_(pa.float64()))})


def cut(array, at=(1, 1, 6)):
    """The array in pieces, one of them without rows and one longer than a batch."""
    return np.split(array, [min(place, len(array)) for place in at])


def npy(array, folder):
    np.save(folder / "samples.npy", array)
    return folder / "samples.npy"


def fortran_npy(array, folder):
    return npy(np.asfortranarray(array), folder)


def memory_map(array, folder):
    return np.load(npy(array, folder), mmap_mode="r")


def parquet(table, folder, name="samples.parquet", row_group_size=5):
    pq.write_table(table, folder / name, row_group_size=row_group_size)
    return folder / name


def parquet_folder(array, folder):
    for name, part in zip(["c.parquet", "d.pq", "a.parquet", "b.PARQUET"], cut(array), strict=True):
        parquet(pa.table(named(part)), folder, name)
    for other in ("readme.txt", "_metadata", ".hidden.parquet"):
        (folder / other).write_text("no samples")
    return folder


SOURCES = {
    "array": lambda array, folder: array,
    "strided array": lambda array, folder: np.repeat(array, 2, axis=0)[::2],
    "transposed array": lambda array, folder: np.asfortranarray(array),
    "memory map": memory_map,
    "npy": npy,
    "npy as text": lambda array, folder: str(npy(array, folder)),
    "npy by columns": fortran_npy,
    "parquet": lambda array, folder: parquet(pa.table(named(array)), folder),
    "parquet of lists": lambda array, folder: parquet(lists(array), folder),
    "parquet of vectors": lambda array, folder: parquet(
        lists(array, pa.list_(pa.float64(), SIZE)), folder
    ),
    "csr": lambda array, folder: scipy.sparse.csr_array(array),
    "csc": lambda array, folder: scipy.sparse.csc_matrix(array),
    "coo": lambda array, folder: scipy.sparse.coo_array(array),
    "pandas": lambda array, folder: pd.DataFrame(named(array)),
    "polars": lambda array, folder: pl.DataFrame(named(array)),
    "polars of vectors": lambda array, folder: pl.DataFrame(
        {"vector": pl.Series(array.tolist(), dtype=pl.Array(pl.Float64, SIZE))}
    ),
    "pandas of lists": lambda array, folder: pd.DataFrame({"vector": list(array)}),
    "arrow": lambda array, folder: pa.table(named(array)),
    "arrow in chunks": lambda array, folder: pa.concat_tables(
        [pa.table(named(part)) for part in cut(array)]
    ),
    "list": lambda array, folder: cut(array),
    "tuple of sparse and dense": lambda array, folder: (
        scipy.sparse.csr_matrix(array[:2]),
        array[2:],
    ),
    "iterator": lambda array, folder: iter(cut(array)),
    "generator of sparse": lambda array, folder: (scipy.sparse.coo_array(part) for part in cut(array)),
    "function": lambda array, folder: lambda: iter(cut(array)),
    "function that returns a list": lambda array, folder: lambda: cut(array),
    "iterable": lambda array, folder: Reopened(array),
}
ONE_SHOT = ("iterator", "generator of sparse")
UNCOUNTED = (*ONE_SHOT, "function", "function that returns a list", "iterable")
IN_BLOCKS = ("list", "tuple of sparse and dense", *UNCOUNTED)


class Reopened:
    def __init__(self, array):
        self.array = array

    def __iter__(self):
        return iter(cut(self.array))


def dense(batch):
    return batch.toarray() if scipy.sparse.issparse(batch) else batch


def all_rows(batches):
    return np.concatenate([dense(batch) for batch in batches])


# -- the same samples from everywhere -----------------------------------------------------------


@pytest.mark.parametrize("rows", [1, STEP - 1, STEP, STEP + 1, 2 * STEP, 3 * STEP + 1])
@pytest.mark.parametrize("name", SOURCES)
def test_every_source_gives_the_rows_of_the_array(name, rows, tmp_path):
    array = numbers(rows)
    source = SOURCES[name](array, tmp_path)
    samples = open_samples(source, batch_rows=STEP)
    assert samples.size == SIZE
    assert samples.count == (None if name in UNCOUNTED else rows)
    assert samples.rereadable == (name not in ONE_SHOT)
    assert samples.given_blocks == (name in IN_BLOCKS)
    for _ in range(2 if samples.rereadable else 1):
        batches = list(samples.batches())
        assert all(1 <= batch.shape[0] <= STEP for batch in batches)
        assert all(batch.dtype == np.float64 for batch in batches)
        assert all(
            isinstance(batch, scipy.sparse.csr_array) or batch.flags.c_contiguous for batch in batches
        )
        np.testing.assert_array_equal(all_rows(batches), array)


def test_the_files_of_a_folder_are_read_by_name(tmp_path):
    array = numbers(11)
    c, d, a, b = cut(array)
    samples = open_samples(parquet_folder(array, tmp_path))
    assert samples.count == 11
    assert not samples.given_blocks
    np.testing.assert_array_equal(all_rows(samples.batches()), np.concatenate([a, b, c, d]))


@pytest.mark.parametrize("size", [1, 128, 129, 4096, 5000])
def test_batches_hold_a_bounded_number_of_numbers(size):
    rows = MOST_ROWS + 1
    array = np.broadcast_to(np.float32(1), (rows, size))  # takes no memory of its own
    batches = (batch.shape for batch in open_samples(array).batches())
    heights = [height for height, width in batches if width == size]
    assert sum(heights) == rows
    most = min(max(BATCH_NUMBERS // size, FEWEST_ROWS), MOST_ROWS)
    assert set(heights[:-1]) == {most}
    assert most * size <= max(BATCH_NUMBERS, FEWEST_ROWS * size)


@pytest.mark.parametrize(("stored", "most"), [(0, MOST_ROWS), (256, 4096), (5000, FEWEST_ROWS)])
def test_batches_of_sparse_rows_hold_as_many_numbers_as_dense_ones(stored, most):
    rows, size = 2 * most, 5000
    columns, starts = np.tile(np.arange(stored), rows), stored * np.arange(rows + 1)
    values = np.ones(columns.size, np.float32)
    matrix = scipy.sparse.csr_array((values, columns, starts), shape=(rows, size))
    assert [batch.shape[0] for batch in open_samples(matrix).batches()] == [most, most]


@pytest.mark.parametrize("name", IN_BLOCKS)
def test_blocks_are_the_arrays_as_given(name, tmp_path):
    array = numbers(11)
    given = cut(array, (2,)) if name == "tuple of sparse and dense" else cut(array)
    samples = open_samples(SOURCES[name](array, tmp_path), batch_rows=STEP)
    found = [list(block) for block in samples.blocks()]
    assert len(found) == len(given)
    for batches, part in zip(found, given, strict=True):
        assert [batch.shape[0] for batch in batches] == [
            min(STEP, part.shape[0] - start) for start in range(0, part.shape[0], STEP)
        ]
        if batches:
            np.testing.assert_array_equal(all_rows(batches), part)


def test_one_array_has_no_blocks():
    samples = open_samples(numbers(2))
    assert not samples.given_blocks
    with pytest.raises(SettingError, match="no blocks"):
        samples.blocks()


# -- reading again ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ONE_SHOT)
def test_a_one_shot_stream_is_read_once(name, tmp_path):
    samples = open_samples(SOURCES[name](numbers(9), tmp_path))
    next(samples.batches())
    for read in (samples.batches, samples.blocks):
        with pytest.raises(DataError, match=r"one-shot.*array, a file, a list.*function"):
            read()


def test_opening_a_stream_takes_only_its_first_array():
    taken = []

    def stream():
        for number in range(3):
            taken.append(number)
            yield np.full((2, SIZE), float(number))

    samples = open_samples(stream())
    assert taken == [0]
    np.testing.assert_array_equal(all_rows(samples.batches())[:, 0], [0, 0, 1, 1, 2, 2])


def test_the_first_array_of_a_stream_is_let_go():
    made = []

    def new():
        array = numbers(5)
        made.append(weakref.ref(array))
        return array

    batches = open_samples(new() for _ in range(9)).batches()
    assert made[0]() is not None
    for _ in range(3):
        next(batches)
    gc.collect()
    assert made[0]() is None


def test_a_function_must_make_a_new_iterator():
    iterator = iter([numbers(2)])
    samples = open_samples(lambda: iterator)
    assert all_rows(samples.batches()).shape == (2, SIZE)
    with pytest.raises(DataError, match="same iterator"):
        samples.batches()
    for returned in (numbers(2), scipy.sparse.csr_array(numbers(2)), None):
        with pytest.raises(DataError, match="return an iterator of arrays"):
            open_samples(lambda returned=returned: returned)


# -- types --------------------------------------------------------------------------------------

KEPT = [
    (np.float32, np.float32),
    (">f4", np.float32),
    (np.float64, np.float64),
    (">f8", np.float64),
    (np.float16, np.float64),
    (np.int8, np.float64),
    (np.uint64, np.float64),
    (np.bool_, np.float64),
]


@pytest.mark.parametrize(("dtype", "expected"), KEPT)
def test_single_and_double_precision_stay_and_others_become_double(dtype, expected, tmp_path):
    array = np.abs(numbers(7)).astype(dtype)
    sources = [array, npy(array, tmp_path), [array], iter([array])]
    if np.dtype(dtype).isnative:
        sources.append(pa.table(named(array)))
        sources.append(parquet(pa.table(named(array)), tmp_path))
        if dtype != np.float16:  # SciPy has no such matrices
            sources.append(scipy.sparse.csc_array(array))
    for source in sources:
        (batch,) = open_samples(source).batches()
        assert batch.dtype == np.dtype(expected)
        np.testing.assert_array_equal(dense(batch), array.astype(expected))


def test_a_table_is_single_only_if_all_of_it_is():
    mixed = {"a": np.ones(2, np.float32), "b": np.ones(2, np.int32)}
    assert next(open_samples(pa.table(mixed)).batches()).dtype == np.float64
    single = lists(np.ones((2, SIZE)), pa.list_(pa.float32()))
    assert next(open_samples(single).batches()).dtype == np.float32


def test_rows_of_a_memory_map_are_views_of_it(tmp_path):
    mapped = memory_map(numbers(9, dtype=np.float32), tmp_path)
    for batch in open_samples(mapped, batch_rows=STEP).batches():
        assert np.shares_memory(batch, mapped)
        assert type(batch) is np.ndarray


def test_nulls_are_nan_and_nothing_else_is_judged(tmp_path):
    table = pa.table(
        {
            "whole": pa.array([1, None, 3]),
            "flag": [True, False, None],
            "decimal": pa.array([1, 2, None], pa.int8()).cast(pa.decimal128(5, 1)),
            "missing": pa.nulls(3),
            "real": [float("inf"), float("nan"), None],
        }
    )
    nan, inf = np.nan, np.inf
    expected = [[1, 1, 1, nan, inf], [nan, 0, 2, nan, nan], [3, nan, nan, nan, nan]]
    for source in (table, parquet(table, tmp_path)):
        np.testing.assert_array_equal(all_rows(open_samples(source).batches()), expected)
    array = np.array([[nan, inf]])
    np.testing.assert_array_equal(all_rows(open_samples(array).batches()), array)


@pytest.mark.parametrize("kind", [pa.list_(pa.float32()), pa.list_(pa.float32(), 2)])
def test_nulls_in_lists_are_nan(kind, tmp_path):
    column = pa.array([None, [1, 2], None, [3, None]], kind)
    expected = np.float32([[np.nan] * 2, [1, 2], [np.nan] * 2, [3, np.nan]])
    table = pa.table({"vector": column})
    for source in (table, parquet(table, tmp_path)):
        for batch_rows in (1, 3, None):
            samples = open_samples(source, batch_rows=batch_rows)
            np.testing.assert_array_equal(all_rows(samples.batches()), expected)


def test_duplicate_entries_of_a_sparse_matrix_are_summed():
    matrix = scipy.sparse.csr_array(([1.0, 2.0, 4.0], [1, 1, 0], [0, 3, 3]), (2, SIZE))
    (batch,) = open_samples(matrix).batches()
    assert batch.has_canonical_format
    np.testing.assert_array_equal(batch.toarray(), [[4, 3, 0], [0, 0, 0]])
    assert matrix.nnz == 3  # the caller's is left alone


# -- columns ------------------------------------------------------------------------------------


def test_columns_choose_the_features_and_their_order(tmp_path):
    table = pa.table({"a.b": [1, 2], "name": ["x", "y"], "a": [3, 4], "vector": [[5, 6], [7, 8]]})
    for source in (table, parquet(table, tmp_path), table.to_pandas(), pl.from_arrow(table)):
        chosen = open_samples(source, ["a", "a.b"])
        np.testing.assert_array_equal(all_rows(chosen.batches()), [[3, 1], [4, 2]])
        chosen = open_samples(source, ["vector"])
        np.testing.assert_array_equal(all_rows(chosen.batches()), [[5, 6], [7, 8]])
        with pytest.raises(SettingError, match=r"no column 'nam'.*did you mean 'name'"):
            open_samples(source, ["a", "nam"])
        with pytest.raises(DataError, match=r"'name' must hold numbers.*string"):
            open_samples(source, ["a", "name"])
        with pytest.raises(DataError, match=r"'vector', must be the only.*columns=\['vector'\]"):
            open_samples(source, ["a", "vector"])
    for wrong, words in [("a", "list of column names"), ([], "empty"), (["a", "a"], "twice")]:
        with pytest.raises(SettingError, match=words):
            open_samples(table, wrong)
    for source in (numbers(2), [numbers(2)], npy(numbers(2), tmp_path)):
        with pytest.raises(SettingError, match="chooses from a table"):
            open_samples(source, ["a"])


def test_text_among_the_columns_is_refused_with_a_choice():
    table = pa.table({"id": ["x"], "a": [1], "b": [2], "c": [3], "d": [4]})
    with pytest.raises(DataError, match=r"'id'.*columns=\['a', 'b', 'c', \.\.\.\]"):
        open_samples(table)


def test_an_index_of_pandas_is_no_feature(tmp_path):
    frame = pd.DataFrame({"a": [1.0, 2.0], "b": [3.0, 4.0]}, index=[7, 9])
    frame.to_parquet(tmp_path / "frame.parquet")
    for source in (frame, tmp_path / "frame.parquet"):
        np.testing.assert_array_equal(all_rows(open_samples(source).batches()), [[1, 3], [2, 4]])


def test_columns_of_pandas_may_be_numbers_in_any_order():
    array = numbers(5)
    for names in ([0, 1, 2], [2, 0, 1], [10, 20, 30]):
        frame = pd.DataFrame(array, columns=names)
        np.testing.assert_array_equal(all_rows(open_samples(frame).batches()), array)


def test_columns_of_files_may_be_in_any_order(tmp_path):
    parquet(pa.table({"x": [1], "y": [2]}), tmp_path, "1.parquet")
    parquet(pa.table({"y": [4.0], "x": [3.0]}), tmp_path, "2.parquet")
    parquet(pa.table({"y": [6, 8], "z": [0, 0], "x": [5, 7]}), tmp_path, "3.parquet")
    with pytest.raises(DataError, match=r"3\.parquet and 1\.parquet have different columns, 'z'"):
        open_samples(tmp_path)
    samples = open_samples(tmp_path, ["x", "y"])
    np.testing.assert_array_equal(all_rows(samples.batches()), [[1, 2], [3, 4], [5, 6], [7, 8]])
    with pytest.raises(SettingError, match=r"1\.parquet.*no column 'z'"):
        open_samples(tmp_path, ["x", "z"])


# -- what is refused ----------------------------------------------------------------------------

WRONG = [
    (np.ones(3), r"1 dimensions .*reshape\(1, -1\)"),
    (np.ones((2, 2, 2)), "3 dimensions"),
    (scipy.sparse.coo_array(np.ones(3)), "1 dimensions"),
    ([np.ones((2, 3)), np.ones(3)], r"array 2 of the list .*reshape\(1, -1\)"),
    (iter([np.ones(3)]), r"array 1 of the stream .*reshape\(1, -1\)"),
    (np.ones((2, 0)), "no columns"),
    (scipy.sparse.csr_array((2, 0)), "no columns"),
    (pa.table({}), "no columns"),
    (pd.DataFrame(index=[1, 2]), "no columns"),
    (np.ones((0, 3)), "no samples"),
    (scipy.sparse.csr_array((0, 3)), "no samples"),
    (pa.table({"a": pa.array([], pa.float64())}), "no samples"),
    (pa.table({"a": pa.array([], pa.list_(pa.float64()))}), "no samples"),
    ([], "no samples"),
    ([np.ones((0, 3))], "no samples"),
    (iter([]), "no samples"),
    (lambda: iter([]), "no samples"),
    (np.ones((2, 2), complex), "type is complex128"),
    (np.full((2, 2), None), "type is object"),
    (np.full((2, 2), "1"), "type is <U1"),
    (np.zeros((2, 2), "M8[D]"), "type is datetime64"),
    (scipy.sparse.csr_array(np.ones((2, 2), complex)), "type is complex128"),
    (np.ma.masked_equal(np.ones((2, 2)), 1), r"masked.*filled\(\)"),
    ([[1.0, 2.0]], "array 1 of the list is a list"),
    (iter("ab"), "array 1 of the stream is a str"),
    (iter([np.ones((1, 2)).tolist()]), "array 1 of the stream is a list"),
    ([np.ones((2, 3)), np.ones((2, 4))], "array 2 has 4 columns but array 1 has 3"),
    (pa.table({"a": [[1.0], [1.0, 2.0]]}), "'a' has a list of 2 numbers, but the first has 1"),
    (pa.table({"a": [[], []]}), "'a' must hold one number or more"),
    (pa.table({"a": [["x"]]}), "'a' must hold numbers.* list"),
    (pa.table([[1], [2]], names=["a", "a"]), "twice"),
    (pd.DataFrame([[1, 2]], columns=["a", "a"]), "twice"),
    (pd.DataFrame({"a": [1, "x"]}), "mixes types.*column a"),
    (pd.DataFrame({"a": [1j]}), "column a"),
    (pl.DataFrame({"a": [1]}).lazy(), "LazyFrame"),
    (None, "NoneType"),
    (3.5, "float"),
]


@pytest.mark.parametrize(("source", "words"), WRONG, ids=[str(at) for at in range(len(WRONG))])
def test_what_cannot_be_samples_says_why(source, words):
    with pytest.raises(DataError, match=words):
        list(open_samples(source).batches())


@pytest.mark.parametrize(
    ("second", "words"),
    [
        (np.ones((2, 4)), "array 3 has 4 columns but array 1 has 3"),
        (np.ones(3), r"array 3 of the stream .*reshape\(1, -1\)"),
        (np.ones((2, 3), complex), "array 3 of the stream .*complex128"),
    ],
)
def test_a_stream_is_checked_as_it_goes(second, words):
    good = np.ones((2, 3))
    batches = open_samples(iter([good, good, second])).batches()
    assert [len(next(batches)), len(next(batches))] == [2, 2]
    with pytest.raises(DataError, match=words):
        next(batches)


@pytest.mark.parametrize("read", ["batches", "blocks"])
def test_a_stream_of_arrays_without_rows_has_no_samples(read):
    samples = open_samples(iter([np.ones((0, 3)), np.ones((0, 3))]))
    with pytest.raises(DataError, match="no samples"):
        list(getattr(samples, read)())


@pytest.mark.parametrize("rows", [0, -1, 2.5, "9"])
def test_batch_rows_is_a_whole_number(rows):
    with pytest.raises(SettingError, match="batch_rows"):
        open_samples(numbers(3), batch_rows=rows)


def test_files_that_cannot_be_read_are_named(tmp_path):
    with pytest.raises(MissingFileError, match=r"no file .*nowhere\.npy"):
        open_samples(tmp_path / "nowhere.npy")
    with pytest.raises(DataError, match="no Parquet files"):
        open_samples(tmp_path)
    for name, words in [
        ("text.parquet", r"text\.parquet cannot be read"),
        ("text.npy", r"text\.npy cannot be read"),
        ("text.csv", "only"),
        ("text.odd", "unknown file format"),
    ]:
        (tmp_path / name).write_text("not what the name says, but long enough to have a header")
        with pytest.raises(DataError, match=words):
            open_samples(tmp_path / name)
    np.save(tmp_path / "objects.npy", np.array([[None]]), allow_pickle=True)
    with pytest.raises(DataError, match=r"objects\.npy cannot be read"):
        open_samples(tmp_path / "objects.npy")
    for wrong, words in [
        (np.ones(3), r"reshape\(1, -1\)"),
        (np.ones((0, 3)), r"no samples|cannot be read"),
    ]:
        with pytest.raises(DataError, match=words):
            open_samples(npy(wrong, tmp_path))
    with pytest.raises(DataError, match="no samples"):
        open_samples(parquet(pa.table({"a": pa.array([], pa.float64())}), tmp_path, "empty.parquet"))


def test_files_of_different_widths_are_refused(tmp_path):
    parquet(lists(np.ones((2, 3)), pa.list_(pa.float64(), 3)), tmp_path, "1.parquet")
    parquet(lists(np.ones((2, 4)), pa.list_(pa.float64(), 4)), tmp_path, "2.parquet")
    with pytest.raises(DataError, match=r"2\.parquet has 4 features"):
        open_samples(tmp_path)


# -- memory -------------------------------------------------------------------------------------


def peak(source):
    """The most that NumPy and Arrow together had taken at any time while the samples were read.

    Arrow is looked at whenever a batch comes, when it still holds what it has read ahead.
    """
    arrow = 0
    base = pa.total_allocated_bytes()
    tracemalloc.start()
    try:
        for _ in open_samples(source, batch_rows=500).batches():
            arrow = max(arrow, pa.total_allocated_bytes() - base)
        return tracemalloc.get_traced_memory()[1] + arrow
    finally:
        tracemalloc.stop()


def one_row_group(table, folder, name):
    # Small pages: a page is held whole, and few rows do not fill one of the usual size.
    pq.write_table(
        table, folder / name, row_group_size=len(table), data_page_size=1 << 12, use_dictionary=False
    )
    assert pq.ParquetFile(folder / name).num_row_groups == 1
    return folder / name


@pytest.mark.parametrize(
    "write",
    [
        lambda array, folder, name: npy(array.astype(np.int64), folder),
        lambda array, folder, name: npy(array, folder),
        lambda array, folder, name: one_row_group(pa.table(named(array)), folder, name),
        lambda array, folder, name: one_row_group(
            pa.table({"v": pa.FixedSizeListArray.from_arrays(array.ravel(), 8)}), folder, name
        ),
        lambda array, folder, name: lambda: (array[:300] * 2 for _ in range(len(array) // 300)),
    ],
    ids=["whole numbers", "memory map", "parquet", "parquet of vectors", "function"],
)
def test_memory_does_not_grow_with_the_number_of_samples(write, tmp_path):
    rng = np.random.default_rng(0)
    few, many = (rng.normal(size=(rows, 8)) for rows in (6_000, 60_000))
    peak(write(few, tmp_path, "warm-up.parquet"))
    small = peak(write(few, tmp_path, "few.parquet"))
    large = peak(write(many, tmp_path, "many.parquet"))
    assert large < 1.25 * small + 50_000 < many.nbytes / 2
