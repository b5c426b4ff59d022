"""Tensors in shards: the same as read at once, whole or not there, and damaged ones refused."""

import errno
import json
import os
import shutil
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.feather as feather
import pyarrow.parquet as pq
import pytest

import sfumato as sf
from sfumato.data import cutting
from sfumato.data.cutting import cut_levels, dealing_bytes, rows_at_a_time, sorting_bytes
from sfumato.data.io import folders
from sfumato.data.io.spill import Spill
from sfumato.data.prepare import merge_duplicates
from sfumato.data.shards import Shards, make_shards
from sfumato.data.tensor import Mode, SparseTensor
from sfumato.errors import DataError, SettingError, SfumatoError

NAMES = ["user", "item", "day"]
CALL = {"modes": NAMES, "value": "rating", "bins": {"day": "day"}}


@pytest.fixture(autouse=True)
def without_waiting_for_the_disk(monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda _handle: None)


def table(rows=900, seed=0):
    """Labels that are text, whole numbers and dates, in no order; some cells are there twice."""
    rng = np.random.default_rng(seed)
    users = [f"u{user}" for user in np.minimum(rng.geometric(0.05, rows), 60)]
    days = np.datetime64("2020-01-01", "s") + rng.integers(0, 9, rows) * np.timedelta64(36, "h")
    return pa.table(
        {
            "user": users,
            "item": rng.integers(-5, 20, rows) * 7,
            "day": days,
            "rating": rng.integers(1, 6, rows).astype(float),
        }
    )


WRITERS = {
    "parquet": pq.write_table,
    "feather": feather.write_feather,
    "arrow": lambda rows, path: feather.write_feather(
        rows, path, compression="uncompressed", chunksize=50
    ),
    "csv": pacsv.write_csv,
}


def write_parts(rows, folder, kind, parts=3):
    folder.mkdir()
    edges = np.linspace(0, rows.num_rows, parts + 1).astype(int).tolist()
    for number, (begin, end) in enumerate(pairwise(edges)):
        WRITERS[kind](rows.slice(begin, end - begin), str(folder / f"part-{number}.{kind}"))
    return folder


def random_tensor(order, entries, seed, sizes=(23, 9, 5, 8)):
    """Some levels have many entries, some none, and some cells occur twice."""
    rng = np.random.default_rng(seed)
    cells = np.stack([np.minimum(rng.geometric(0.2, entries) - 1, n - 2) for n in sizes[:order]])
    modes = tuple(Mode(f"m{m}", n) for m, n in enumerate(sizes[:order]))
    return SparseTensor(cells, rng.normal(size=entries), modes, bounds=(-9, 9))


def as_batches(tensor, size, seed=0):
    """The entries in another order; those of one cell stay in theirs."""
    shuffled = np.random.default_rng(seed).permutation(tensor.shape[1])[tensor.coordinates[1]]
    order = np.argsort(shuffled, kind="stable")
    for begin in range(0, tensor.n_entries, size):
        here = order[begin : begin + size]
        yield tensor.coordinates[:, here], tensor.values[here]


def assert_same(found, wanted):
    np.testing.assert_array_equal(found.coordinates, wanted.coordinates)
    np.testing.assert_array_equal(found.values, wanted.values)
    assert found.modes == wanted.modes
    assert found.values.dtype == wanted.values.dtype
    assert found.bounds == wanted.bounds


def assert_cut(shards, whole):
    """Each level is in one shard, each part is sorted, and all together are the whole."""
    position = shards.by
    assert [begin for begin, _ in shards.levels] == [0, *(end for _, end in shards.levels[:-1])]
    assert shards.levels[-1][1] == whole.shape[position]
    for part, (begin, end), entries in zip(shards, shards.levels, shards.entries, strict=True):
        inside = (whole.coordinates[position] >= begin) & (whole.coordinates[position] < end)
        assert_same(part, whole.take(inside))
        assert part.n_entries == entries
    assert_same(shards.whole(), whole)
    if position == 0:
        joined = np.concatenate([part.coordinates for part in shards], axis=1)
        np.testing.assert_array_equal(joined, whole.coordinates)


# -- the same as read at once ---------------------------------------------------------------------


@pytest.mark.parametrize("kind", WRITERS)
@pytest.mark.parametrize("by", NAMES)
def test_shards_of_files_are_what_reading_all_at_once_gives(tmp_path, kind, by):
    rows = table()
    folder = write_parts(rows, tmp_path / "in", kind)
    WRITERS[kind](rows, str(tmp_path / f"all.{kind}"))
    whole = sf.read(tmp_path / f"all.{kind}", NAMES, "rating", bins=CALL["bins"], bounds=(1, 5))
    shards = make_shards(folder, tmp_path / "out", by=by, shards=4, bounds=(1, 5), **CALL)
    assert (len(shards), shards.by, shards.n_entries) == (4, NAMES.index(by), rows.num_rows)
    assert_cut(shards, whole)
    assert_cut(Shards(tmp_path / "out"), whole)
    shards.verify()


def test_files_may_be_a_list_in_an_order_of_its_own(tmp_path):
    folder = write_parts(table(), tmp_path / "in", "parquet")
    files = sorted(folder.iterdir(), reverse=True)
    rows = pa.concat_tables([pq.read_table(path) for path in files])
    assert_cut(make_shards(files, tmp_path / "out", shards=2, **CALL), sf.read(rows, **CALL))
    one = make_shards(files[0], tmp_path / "one", **CALL)
    assert_cut(one, sf.read(files[0], **CALL))


def test_labels_of_text_that_are_numbers_are_numbers_in_csv_alone(tmp_path):
    rows = pa.table({"a": ["10", "9", "10"], "b": ["x", "ü", "x"], "v": [1.0, 2.0, 3.0]})
    for kind in ("csv", "parquet"):
        folder = write_parts(rows, tmp_path / kind, kind)
        shards = make_shards(folder, tmp_path / f"{kind}-out", modes=["a", "b"], value="v")
        assert_same(shards.whole(), sf.read(rows if kind == "parquet" else _csv(rows), ["a", "b"], "v"))
    assert shards.modes[0].labels.tolist() == ["10", "9"]


def _csv(rows):
    return rows.set_column(0, "a", pa.array([10, 9, 10]))


@pytest.mark.parametrize("order", [2, 3, 4])
@pytest.mark.parametrize("number", [1, 3, 40])
def test_shards_of_tensors_and_of_batches(tmp_path, order, number):
    """Where more shards are asked for than there are levels, some are empty."""
    whole = random_tensor(order, 300, seed=order)
    for m, mode in enumerate(whole.modes):
        cut = make_shards(whole, tmp_path / f"t{m}", by=mode.name, shards=number)
        assert_cut(cut, whole)
        shuffled = as_batches(whole, 37, seed=m)
        dealt = make_shards(
            shuffled, tmp_path / f"b{m}", modes=whole.modes, by=mode.name, shards=number, bounds=(-9, 9)
        )
        assert_cut(dealt, whole)
        assert dealt.header == cut.header
    assert number < 40 or 0 in dealt.entries


@pytest.mark.parametrize("seed", range(12))
def test_any_tensor_with_any_memory(tmp_path, seed):
    rng = np.random.default_rng(seed)
    order, entries = int(rng.integers(2, 5)), int(rng.choice([1, 2, 50, 4000]))
    whole = random_tensor(order, entries, seed, sizes=tuple(rng.integers(3, 2000, order).tolist()))
    labelled = [
        None,
        lambda n: rng.permutation(n) - 5,
        lambda n: np.array([f"ß{i}" for i in rng.permutation(n)], object),
    ]
    modes = []
    for mode in whole.modes:
        make = labelled[rng.integers(3)]
        modes.append(Mode(mode.name, mode.size, None if make is None else make(mode.size)))
    whole = SparseTensor(whole.coordinates, whole.values, tuple(modes))
    by = f"m{rng.integers(order)}"
    shards = make_shards(
        as_batches(whole, 501),
        tmp_path / "out",
        modes=modes,
        by=by,
        memory=int(rng.integers(1 << 17, 1 << 20)),
    )
    assert_cut(shards, whole)


def test_single_precision_and_sizes_by_name(tmp_path):
    whole = random_tensor(3, 200, 1)
    batches = [(whole.coordinates, whole.values)]
    sizes = dict(zip(whole.mode_names, whole.shape, strict=True))
    shards = make_shards(
        batches, tmp_path / "out", modes=sizes, dtype=np.float32, shards=3, bounds=(-9, 9)
    )
    assert shards.dtype == np.float32
    assert_same(shards.whole(), whole.astype(np.float32))
    sizes = [
        os.path.getsize(tmp_path / "out" / "0000" / name) for name in ("coordinates.npy", "values.npy")
    ]
    assert sum(sizes) == 256 + 16 * shards.entries[0]


def test_values_of_one_cell_stay_in_order_and_in_one_shard(tmp_path):
    cells = np.zeros((2, 600), np.int64)
    cells[1] = np.arange(600) % 3
    values = np.arange(600.0)
    batches = ((cells[:, i : i + 50], values[i : i + 50]) for i in range(0, 600, 50))
    modes = [Mode("a", 2), Mode("b", 3)]
    shards = make_shards(batches, tmp_path / "out", modes=modes, by="b", shards=3)
    last = [merge_duplicates(part, "last").values.tolist() for part in shards]
    assert last == [[597.0], [598.0], [599.0]]


def test_given_labels_fix_the_levels(tmp_path):
    folder = write_parts(table(), tmp_path / "in", "parquet")
    whole = sf.read(table(), **CALL)
    labels = ["nobody", *reversed(whole.modes[0].labels.tolist())]
    shards = make_shards(folder, tmp_path / "out", labels={"user": labels}, shards=3, **CALL)
    assert shards.modes[0].labels.tolist() == labels
    assert shards.whole().counts("user").tolist() == [0, *reversed(whole.counts("user").tolist())]
    with pytest.raises(
        DataError, match="mode 'user' has the label 'u1', which is not among those given"
    ):
        make_shards(folder, tmp_path / "other", labels={"user": ["u2"]}, **CALL)
    assert not (tmp_path / "other").exists()


def test_parts_are_maps_that_kernels_take_for_arrays_of_tensors(tmp_path):
    whole = random_tensor(3, 300, 0)
    part = make_shards(whole, tmp_path / "out").part(0)
    for mapped, own in ((part.coordinates, whole.coordinates), (part.values, whole.values)):
        assert type(mapped) is np.ndarray
        assert not mapped.flags.owndata
        assert not mapped.flags.writeable
        assert mapped.flags.c_contiguous
        assert mapped.flags.aligned
        assert mapped.dtype == own.dtype
    assert part.counts("m1").tolist() == whole.counts("m1").tolist()
    assert "300 entries in 1 shards by m0" in repr(Shards(tmp_path / "out"))


# -- memory ---------------------------------------------------------------------------------------


def test_less_memory_makes_more_shards(tmp_path):
    rng = np.random.default_rng(3)
    cells = np.stack([rng.integers(0, 500, 30_000), rng.integers(0, 40, 30_000)])
    whole = SparseTensor(cells, rng.normal(size=30_000), (Mode("a", 500), Mode("b", 40)))
    numbers = []
    for power in (20, 19, 18, 17, 16):
        shards = make_shards(whole, tmp_path / str(power), memory=1 << power)
        numbers.append(len(shards))
        assert max(shards.entries) * sorting_bytes(2, np.dtype(np.float64)) <= 1 << power
    assert numbers == sorted(set(numbers))


@pytest.mark.parametrize("from_files", [False, True])
def test_no_more_entries_are_held_than_memory_is_given_for(tmp_path, monkeypatch, from_files):
    memory, dtype = 1 << 18, np.dtype(np.float64)
    written, joined = [], []
    append, join = Spill.append, Spill.joined

    def watched_append(self, coordinates, values):
        written.append(values.shape[0])
        append(self, coordinates, values)

    def watched_join(self):
        joined.append(self.n_entries)
        return join(self)

    monkeypatch.setattr(Spill, "append", watched_append)
    monkeypatch.setattr(Spill, "joined", watched_join)
    if from_files:
        source, call = write_parts(table(20_000), tmp_path / "in", "parquet"), {**CALL, "by": "day"}
    else:
        whole = random_tensor(3, 20_000, 0, sizes=(400, 300, 20))
        source, call = [(whole.coordinates, whole.values)], {"modes": whole.modes}
    shards = make_shards(source, tmp_path / "out", memory=memory, **call)
    assert len(shards) > 1
    assert sum(joined) == 20_000
    assert max(written) <= rows_at_a_time(memory, 3, dtype)
    assert max(written) * dealing_bytes(3, dtype) <= memory
    assert max(joined) * sorting_bytes(3, dtype) <= memory


def test_a_level_that_is_too_large_for_memory(tmp_path):
    whole = SparseTensor(
        np.stack([np.zeros(9000, int), np.arange(9000)]), np.ones(9000), (Mode("a", 2), Mode("b", 9000))
    )
    with pytest.raises(
        SettingError, match="level 0 of mode 'a' has 9,000 entries, and memory is enough for"
    ):
        make_shards(whole, tmp_path / "out", memory=1 << 17)
    assert len(make_shards(whole, tmp_path / "out", memory=1 << 17, by="b")) == 3
    with pytest.raises(
        SettingError, match=r"with 1 shards one would have 9,000 .* ask for 3 shards or more"
    ):
        make_shards(whole, tmp_path / "one", memory=1 << 17, by="b", shards=1)


@pytest.mark.parametrize("seed", range(20))
def test_cuts_are_as_few_and_as_even_as_can_be(seed):
    rng = np.random.default_rng(seed)
    counts = rng.integers(0, 30, int(rng.integers(1, 40))) * rng.integers(0, 2)
    counts[0] += 1
    most = int(counts.max() + rng.integers(0, 60))
    edges = cut_levels(counts, Mode("m", len(counts)), most)
    sizes = np.add.reduceat(counts, edges[:-1])
    assert (edges[0], edges[-1]) == (0, len(counts))
    assert sizes.sum() == counts.sum()
    assert sizes.max() <= most
    # One shard more for each that is filled up as far as it goes.
    least, room = 1, most
    for count in counts.tolist():
        if count > room:
            least, room = least + 1, most
        room -= count
    assert len(edges) - 1 == least


# -- whole or not at all --------------------------------------------------------------------------


class Stopped(Exception):
    pass


@pytest.mark.parametrize("step", ["read", "cut", "sort"])
@pytest.mark.parametrize("older", [False, True])
def test_what_is_stopped_leaves_nothing(tmp_path, step, older):
    folder = write_parts(table(), tmp_path / "in", "csv")
    if older:
        make_shards(random_tensor(2, 50, 0), tmp_path / "out")
    before = sorted(os.listdir(tmp_path))

    def stop(now, done, whole):
        if now == step:
            raise Stopped

    with pytest.raises(Stopped):
        make_shards(folder, tmp_path / "out", shards=3, force=True, progress=stop, **CALL)
    assert sorted(os.listdir(tmp_path)) == before
    if older:
        assert Shards(tmp_path / "out").n_entries == 50


def test_progress_is_told_of_each_step(tmp_path):
    told = []
    folder = write_parts(table(), tmp_path / "in", "parquet")
    make_shards(folder, tmp_path / "out", shards=2, progress=lambda *step: told.append(step), **CALL)
    assert told[:3] == [("read", 300, None), ("read", 600, None), ("read", 900, None)]
    assert told[-3:] == [("cut", 900, 900), ("sort", 1, 2), ("sort", 2, 2)]


@pytest.mark.parametrize("exchanged", [True, False])
def test_an_older_folder_is_replaced_if_that_is_asked_for(tmp_path, monkeypatch, exchanged):
    if not exchanged:
        monkeypatch.setattr(folders, "exchanged", lambda *_: False)
    out = tmp_path / "out"
    old = make_shards(random_tensor(2, 50, 0), out)
    part = old.part(0)
    with pytest.raises(SettingError, match="holds shards already: replace them with force"):
        make_shards(random_tensor(2, 60, 1), out)
    new = make_shards(random_tensor(2, 60, 1), out, force=True)
    assert (new.n_entries, part.n_entries, os.listdir(tmp_path)) == (60, 50, ["out"])
    assert part.coordinates.max() < 23  # the old files live as long as their maps
    with pytest.raises(DataError):
        old.part(0)


def test_other_folders_are_not_replaced(tmp_path):
    whole = random_tensor(2, 50, 0)
    (tmp_path / "file").write_text("mine")
    (tmp_path / "empty").mkdir()
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine").write_text("mine")
    make_shards(whole, tmp_path / "empty", force=True)
    (tmp_path / "empty" / "mine").write_text("mine")
    for name, words in (
        ("file", "is a file or a link"),
        ("full", "is not empty and holds no shards"),
        ("empty", "holds mine beside shards, which would be lost"),
    ):
        with pytest.raises(DataError, match=words):
            make_shards(whole, tmp_path / name, force=True)
    assert (tmp_path / "full" / "mine").read_text() == "mine"


def test_what_a_killed_process_left_is_removed(tmp_path):
    left = tmp_path / ".out.cutting-abcd1234"
    left.mkdir()
    (left / "all").write_bytes(b"0" * 100)
    make_shards(random_tensor(2, 50, 0), tmp_path / "out")
    assert os.listdir(tmp_path) == ["out"]


def test_a_full_disk(tmp_path, monkeypatch):
    folder = write_parts(table(), tmp_path / "in", "parquet")
    usage = shutil.disk_usage(tmp_path)._replace(free=1000)
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "disk_usage", lambda _: usage)
        with pytest.raises(
            DataError, match=r"out could not be written: it needs .* GiB more on its disk"
        ):
            make_shards(folder, tmp_path / "out", **CALL)

    def full(_handle):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(DataError, match=r"out could not be written: No space left .* make room"):
        make_shards(folder, tmp_path / "out", **CALL)
    assert os.listdir(tmp_path) == ["in"]


# -- what cannot be cut ---------------------------------------------------------------------------


def test_sources_that_are_none(tmp_path):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "_SUCCESS").touch()
    out, whole = tmp_path / "out", random_tensor(2, 50, 0)
    for source, words in (
        (tmp_path / "in", "there are no files in the folder"),
        ([], "there are no files"),
        (tmp_path / "no", "there is no file"),
        (whole.to_dense(), "source must be a folder"),
        (7, "source must be a folder"),
    ):
        with pytest.raises(SfumatoError, match=words):
            make_shards(source, out, **(CALL if isinstance(source, Path) else {}))
    with pytest.raises(SettingError, match="modes cannot be given with this source: a tensor has them"):
        make_shards(whole, out, modes=["a", "b"])
    with pytest.raises(SettingError, match="there is no mode 'x'; the modes are m0, m1"):
        make_shards(whole, out, by="x")
    with pytest.raises(SettingError, match="memory must be a whole number from 65536 on"):
        make_shards(whole, out, memory=1000)
    assert os.listdir(tmp_path) == ["in"]


@pytest.mark.parametrize(
    ("batch", "words"),
    [
        (7, "batch 0 must be a pair"),
        (([[0], [0], [0]], [1.0]), r"must have shape \(2, entries\)"),
        (([[0], [3]], [1.0]), r"level 3 is outside mode 'b' \(0 to 2\)"),
        (([[0], [-1]], [1.0]), "level -1 is outside mode 'b'"),
        (([[2**32], [0]], [1.0]), "level 4294967296 is outside mode 'a'"),
        (([[0.5], [0]], [1.0]), "coordinates must be whole numbers"),
        (([[0], [0]], ["x"]), "values of batch 0 must be numbers"),
        (([[0], [0]], [np.nan]), "1 values are missing or no finite numbers"),
        (([[0], [0]], [1e300]), "no finite numbers in float32; the first is 1e[+]300"),
        (([[], []], []), "coordinates must be whole numbers"),
    ],
)
def test_batches_that_are_none(tmp_path, batch, words):
    with pytest.raises(DataError, match=words):
        make_shards([batch], tmp_path / "out", modes={"a": 2, "b": 3}, dtype="float32")
    assert not os.listdir(tmp_path)


def test_a_mode_without_levels_has_no_entries(tmp_path):
    modes = (Mode("a", 0), Mode("b", 1))
    for make in (SparseTensor, lambda *entry: make_shards([entry[:2]], tmp_path / "out", modes=modes)):
        with pytest.raises(DataError, match="level 0 is outside mode 'a'"):
            make([[0], [0]], [1.0], modes)


def test_batches_without_entries(tmp_path):
    with pytest.raises(DataError, match="there are no entries"):
        make_shards(iter([]), tmp_path / "out", modes={"a": 2, "b": 3})
    with pytest.raises(SettingError, match=r"modes must be a list of sfumato\.Mode, or sizes by name"):
        make_shards(iter([]), tmp_path / "out")


def change(rows, name, column):
    return rows.set_column(rows.column_names.index(name), name, column)


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda rows: rows.drop_columns("item"), "part-1.parquet: there is no column 'item'"),
        (
            lambda rows: change(rows, "item", pa.array([str(i) for i in range(300)])),
            "part-1.parquet: column 'item' holds text here and whole numbers before",
        ),
        (
            lambda rows: change(rows, "rating", pa.array([1.0] * 299 + [None])),
            "part-1.parquet: 1 values are missing or no finite numbers",
        ),
        (
            lambda rows: change(rows, "user", pa.array(["u"] * 299 + [None])),
            "part-1.parquet: column 'user' has 1 rows without a label",
        ),
        (
            lambda rows: change(rows, "rating", pa.array(["x"] * 300)),
            "part-1.parquet: column 'rating' is to hold the values but is not numeric",
        ),
    ],
)
def test_one_wrong_file_is_named(tmp_path, spoil, words):
    folder = write_parts(table(), tmp_path / "in", "parquet")
    path = folder / "part-1.parquet"
    rows = spoil(pq.read_table(path))
    pq.write_table(rows, path)
    with pytest.raises(SfumatoError, match=words):
        make_shards(folder, tmp_path / "out", **CALL)
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(DataError, match=r"part-1\.parquet cannot be read"):
        make_shards(folder, tmp_path / "out", **CALL)
    path.rename(folder / "part-1.txt")
    with pytest.raises(DataError, match=r"part-1\.txt: unknown file format"):
        make_shards(folder, tmp_path / "out", **CALL)
    assert os.listdir(tmp_path) == ["in"]


def test_columns_that_are_not_named(tmp_path):
    folder = write_parts(table(), tmp_path / "in", "parquet")
    with pytest.raises(SettingError, match="say which columns are the modes"):
        make_shards(folder, tmp_path / "out")


def test_damaged_arrow_files_are_refused(tmp_path):
    rng, refused = np.random.default_rng(0), 0
    feather.write_feather(table(200), str(tmp_path / "t.feather"), compression="uncompressed")
    content = (tmp_path / "t.feather").read_bytes()
    for number in range(60):
        damaged = bytearray(content)
        damaged[rng.integers(8, len(content))] ^= 1 << rng.integers(8)
        path = tmp_path / f"d{number}.feather"
        path.write_bytes(damaged if number % 3 else content[: rng.integers(len(content))])
        try:
            sf.read(path, **CALL)
        except SfumatoError:
            refused += 1
    assert refused > 20


# -- folders from elsewhere -----------------------------------------------------------------------


@pytest.fixture
def shards(tmp_path):
    folder = write_parts(table(300), tmp_path / "in", "parquet")
    return make_shards(folder, tmp_path / "out", shards=2, bounds=(1, 5), **CALL)


def test_folders_that_hold_no_shards(tmp_path):
    with pytest.raises(DataError, match=r"is no folder of shards: it has no shards\.json"):
        Shards(tmp_path)
    with pytest.raises(DataError, match="is no folder of shards"):
        Shards(tmp_path / "no")


@pytest.mark.parametrize(
    "name", ["shards.json", "labels/0.text.npy", "labels/0.ends.npy", "labels/1.npy"]
)
def test_missing_and_short_files(shards, name):
    path = shards.folder / name
    content = path.read_bytes()
    for length in (0, 5, 100, len(content) - 2):
        path.write_bytes(content[:length])
        with pytest.raises(DataError):
            Shards(shards.folder)
    path.write_bytes(content + b"0")
    with pytest.raises(DataError):
        Shards(shards.folder)
    path.unlink()
    with pytest.raises(DataError, match=path.name):
        Shards(shards.folder)


@pytest.mark.parametrize("name", ["0001/coordinates.npy", "0001/values.npy"])
def test_arrays_that_do_not_fit_the_header(shards, name):
    path = shards.folder / name
    array, content = np.load(path), path.read_bytes()
    others = [
        array[..., :-1],
        array.astype(">i4"),
        array.astype(np.int64),
        array[None],
        array.astype(object),
    ]
    for other in (*others, np.asfortranarray(array) if array.ndim == 2 else array[::-1][:3]):
        np.save(path, other)
        with pytest.raises(DataError, match=f"{path.name} cannot be read"):
            Shards(shards.folder)
    path.write_bytes(content[:-1])
    with pytest.raises(DataError, match="it is damaged"):
        Shards(shards.folder)
    path.write_bytes(content + b"0")
    with pytest.raises(DataError, match="bytes follow its header"):
        Shards(shards.folder)
    path.unlink()
    os.mkfifo(path)  # which would never end
    with pytest.raises(DataError, match="there is no file"):
        Shards(shards.folder)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"format": "other"}, "does not say that it is of the format"),
        ({"version": 2}, "it is of a later version"),
        ({"version": True}, "version must be a whole number"),
        ({"modes": []}, "two modes or more"),
        ({"modes": None}, "no list of modes"),
        ({"bounds": [5, 1]}, "bounds are not two finite numbers"),
        ({"bounds": [1, float("inf")]}, "bounds are not two finite numbers"),
        ({"dtype": "object"}, "dtype of the header cannot be 'object'"),
        ({"entries": 301}, "do not have as many entries as it says"),
        ({"entries": "many"}, "entries of the header cannot be 'many'"),
        ({"by": 3}, "no mode 3 to be cut by"),
        ({"by": -1}, "by must be a whole number"),
        ({"shards": []}, "do not have all levels"),
        ({"extra": 1}, "has a field 'extra' that this version does not know"),
    ],
)
def test_headers_that_do_not_fit_together(shards, change, words):
    path = shards.folder / "shards.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(DataError, match=words):
        Shards(shards.folder)


@pytest.mark.parametrize(
    ("kind", "change"),
    [
        ("shards", {"levels": [1, 2]}),
        ("shards", {"levels": [0, 10**9]}),
        ("shards", {"levels": [0]}),
        ("shards", {"entries": -1}),
        ("shards", {"entries": 2**40}),
        ("shards", {"digest": ""}),
        ("modes", {"size": 2**40}),
        ("modes", {"size": 0}),
        ("modes", {"bin": "century"}),
        ("modes", {"labels": "pickle"}),
        ("modes", {"labels": "int64"}),
        ("modes", {"name": "item"}),
    ],
)
def test_facts_of_modes_and_shards_that_cannot_be(shards, kind, change):
    path = shards.folder / "shards.json"
    said = json.loads(path.read_text())
    said[kind][0] |= change
    path.write_text(json.dumps(said))
    with pytest.raises(SfumatoError):
        Shards(shards.folder)


def test_flipped_bits_of_the_header_are_refused_or_harmless(shards):
    path = shards.folder / "shards.json"
    content, rng = path.read_bytes(), np.random.default_rng(0)
    for _ in range(300):
        damaged = bytearray(content)
        damaged[rng.integers(len(content))] ^= 1 << rng.integers(8)
        path.write_bytes(damaged)
        try:
            opened = Shards(shards.folder)
            for part in opened:
                assert (part.coordinates.max(axis=1) < opened.shape).all()
        except SfumatoError:
            continue


def write_entry(path, place, number):
    array = np.load(path)
    array[place] = number
    np.save(path, array)


@pytest.mark.parametrize(
    ("name", "place", "number", "words"),
    [
        ("coordinates", (1, 3), 1000, "level 1000 is outside mode 'item'"),
        ("coordinates", (2, -1), -1, "level -1 is outside mode 'day'"),
        ("coordinates", (0, 0), 59, "0001 is damaged"),
        ("coordinates", (0, 0), 0, "a level of mode 'user' belongs to another shard"),
        ("values", 3, np.nan, "a value is no finite number"),
    ],
)
def test_entries_that_would_lead_kernels_astray(shards, name, place, number, words):
    write_entry(shards.folder / "0001" / f"{name}.npy", place, number)
    opened = Shards(shards.folder)
    opened.part(0)
    with pytest.raises(DataError, match=words):
        opened.part(1)
    with pytest.raises(DataError, match=words):
        shards.part(1)  # which was opened before


def test_a_single_changed_value_is_found_where_it_is_looked_for(shards):
    path = shards.folder / "0001" / "values.npy"
    write_entry(path, 3, 6 - np.load(path)[3] + 0.5)
    opened = Shards(shards.folder)
    opened.part(1)
    with pytest.raises(DataError, match="0001 is damaged: its entries are not those that were written"):
        opened.verify()


@pytest.mark.parametrize(("name", "number"), [("labels/0.ends.npy", -1), ("labels/0.text.npy", 255)])
def test_text_that_is_none(shards, name, number):
    write_entry(shards.folder / name, 1, number)
    with pytest.raises(DataError, match=name.split("/")[1]):
        Shards(shards.folder)


def test_labels_that_are_there_twice(shards):
    path = shards.folder / "labels" / "1.npy"
    write_entry(path, 1, np.load(path)[0])
    with pytest.raises(DataError, match="mode 'item' has the same label twice"):
        Shards(shards.folder)


def test_a_shard_that_is_not_there(shards):
    for number in (2, -1, 1.5, "0"):
        with pytest.raises(SettingError):
            shards.part(number)


def test_labels_that_no_file_can_hold(tmp_path):
    for labels in (np.array([1.5, 2.5]), np.array(["a", 1], object), np.array(["\ud800", "b"], object)):
        whole = SparseTensor([[0, 1], [0, 1]], [1.0, 2.0], (Mode("a", 2, labels), Mode("b", 2)))
        with pytest.raises(DataError, match="mode 'a'"):
            make_shards(whole, tmp_path / "out")
    assert not os.listdir(tmp_path)


def test_rows_at_a_time_are_few_enough():
    for memory in (1 << 16, 1 << 20, 1 << 31):
        for order in (2, 3, 7):
            rows = rows_at_a_time(memory, order, np.dtype(np.float64))
            assert 0 < rows * dealing_bytes(order, np.dtype(np.float64)) <= memory
            assert rows <= cutting.BATCH_ROWS
