"""Sites over shards: the same bits as sites in memory, from files that are made once."""

import json
import os
from functools import reduce
from operator import add

import numpy as np
import pytest

import sfumato as sf
from sfumato.data.shards import Shards, make_shards
from sfumato.data.tensor import Mode, SparseTensor
from sfumato.engines.local import Local
from sfumato.errors import DataError
from sfumato.fit.completion import carry_out
from sfumato.fit.plan import Plan
from sfumato.kernels.numba import compiler
from sfumato.kernels.numba.ordering import row_starts
from sfumato.models.shape import Shape
from sfumato.records import same
from sfumato.sites import memory as memory_sites
from sfumato.sites import shards as shard_sites
from sfumato.sites.memory import Site, WeightedSite
from sfumato.sites.shards import ShardSite
from sfumato.solvers.protocol import Run

SIZES = (23, 9, 5, 8)


@pytest.fixture(autouse=True)
def without_waiting_for_the_disk(monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda _handle: None)


def random_tensor(order=3, entries=400, seed=0, dtype=np.float64):
    """Some levels have many entries, some none, and some cells occur twice."""
    rng = np.random.default_rng(seed)
    cells = np.stack([np.minimum(rng.geometric(0.3, entries) - 1, n - 2) for n in SIZES[:order]])
    modes = tuple(Mode(f"m{m}", n) for m, n in enumerate(SIZES[:order]))
    return SparseTensor(cells, rng.normal(size=entries).astype(dtype), modes)


def assert_alike(found, wanted):
    """Equal numbers, of a kind that kernels are compiled for once."""
    np.testing.assert_array_equal(found, wanted)
    assert type(found) is np.ndarray
    assert (found.dtype, found.ndim) == (wanted.dtype, wanted.ndim)
    assert found.flags.writeable == wanted.flags.writeable
    assert found.flags.c_contiguous == wanted.flags.c_contiguous


def assert_same_layouts(site, tensor):
    other = Site(tensor, 1)
    np.testing.assert_array_equal(site.counts, other.counts)
    for mode in range(tensor.order):
        found, wanted = site.by_mode(mode), other.by_mode(mode)
        for name in ("others", "values", "starts", "weights"):
            assert_alike(getattr(found, name), getattr(wanted, name))
        assert len(found.starts) == tensor.shape[mode] + 1
        assert_alike(site.slots(mode), other.slots(mode))
        for own in range(tensor.order):
            if own != mode:
                for one, two in zip(site.cells(own, mode), other.cells(own, mode), strict=True):
                    assert_alike(one, two)
    if tensor.n_entries:
        found, wanted = site.grid(1, 64), other.grid(1, 64)
        for name in ("coordinates", "values", "starts"):
            assert_alike(getattr(found, name), getattr(wanted, name))
        assert found.tiles == wanted.tiles


@pytest.mark.parametrize("order", [2, 3, 4])
@pytest.mark.parametrize("number", [1, 3, 30])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_layouts_are_those_of_a_site_in_memory(tmp_path, order, number, dtype):
    whole = random_tensor(order, dtype=dtype)
    for by in ("m0", f"m{order - 1}"):
        shards = make_shards(whole, tmp_path / by, by=by, shards=number, dtype=dtype)
        for k in {0, number // 2, number - 1}:
            begin, end = shards.levels[k]
            levels = whole.coordinates[shards.by]
            part = whole.take((levels >= begin) & (levels < end))
            site = ShardSite(shards, k, 1)
            assert_same_layouts(site, part)  # made
            assert_same_layouts(ShardSite(shards, k, 1), part)  # found
            site.release()
            assert_same_layouts(site, part)


@pytest.fixture
def shards(tmp_path):
    return make_shards(random_tensor(), tmp_path / "out", shards=2)


def forbid_making(monkeypatch):
    def made(*_):
        raise AssertionError("a layout was made")

    monkeypatch.setattr(shard_sites._Layouts, "_write", made)


def ask_everything(site):
    for mode in range(3):
        site.by_mode(mode)
        site.slots(mode)
    site.cells(0, 1)
    site.grid(1, 64)


def test_layouts_are_made_once(shards, monkeypatch):
    site = ShardSite(shards, 0, 1)
    ask_everything(site)
    assert site.by_mode(1) is site.by_mode(1)
    forbid_making(monkeypatch)
    site.release()
    ask_everything(site)
    ask_everything(ShardSite(Shards(shards.folder), 0, 1))
    names = {"by-0", "by-1", "by-2", "slots-0", "slots-1", "slots-2", "cells-0-1", "grid-1-1-1-1"}
    assert set(os.listdir(shards.place(0))) == names | {"coordinates.npy", "values.npy"}
    assert set(os.listdir(shards.place(1))) == {"coordinates.npy", "values.npy"}


def test_what_is_released_is_held_no_more(shards):
    site = ShardSite(shards, 0, 1)
    ask_everything(site)
    counts, tensor = site.counts, site.tensor
    site.latest("rows", object)
    before = open_files()
    site.release()
    del tensor
    assert open_files() < before
    assert not site._kept
    assert site._tensor is None
    assert "counts" not in vars(site)
    np.testing.assert_array_equal(site.counts, counts)


def open_files():
    return sum("/out/" in os.readlink(f"/proc/self/fd/{fd}") for fd in list_open())


def list_open():
    return [fd for fd in os.listdir("/proc/self/fd") if os.path.islink(f"/proc/self/fd/{fd}")]


def test_bytes_on_disk_are_those_that_are_documented(tmp_path):
    shards = make_shards(random_tensor(dtype=np.float32), tmp_path / "out", dtype="float32")
    site, header = ShardSite(shards, 0, 1), 128
    ask_everything(site)
    place, n = shards.place(0), 400

    def size(name):
        return sum(path.stat().st_size - header for path in (place / name).glob("*.npy"))

    assert size(".") == 16 * n
    assert size("by-0") == 8 * (SIZES[0] + 1)
    assert size("by-1") == 12 * n + 8 * (SIZES[1] + 1)
    assert size("slots-1") == 4 * n
    assert size("cells-0-1") <= 8 * n + 8 * (SIZES[0] + 1)
    assert size("grid-1-1-1-1") == 16 * n + 8 * 2


def test_what_is_written_to_an_array_stays_in_memory(shards):
    site = ShardSite(shards, 0, 1)
    site.slots(1)[:] = 0
    site.by_mode(1).starts[:] = 0
    site.release()
    assert_same_layouts(site, shards.part(0))


def test_weights_lie_on_the_orders_of_the_shard(shards):
    rng = np.random.default_rng(1)
    part = shards.part(0)
    values, weights = rng.normal(size=(2, part.n_entries))
    found = WeightedSite(ShardSite(shards, 0, 1), values, weights)
    wanted = WeightedSite(Site(part, 1), values, weights)
    for mode in range(3):
        for name in ("others", "values", "starts", "weights"):
            assert_alike(getattr(found.by_mode(mode), name), getattr(wanted.by_mode(mode), name))


# -- files that are not those of the entries ------------------------------------------------------


def test_other_entries_make_other_layouts(tmp_path):
    out = tmp_path / "out"
    site = ShardSite(make_shards(random_tensor(seed=0), out), 0, 1)
    ask_everything(site)
    other = random_tensor(seed=1)
    kept = {path.name: path for path in (tmp_path / "out" / "0000").glob("*-*")}
    copied = tmp_path / "copied"
    os.mkdir(copied)
    for name, path in kept.items():
        os.rename(path, copied / name)
    shards = make_shards(other, out, force=True)
    for name in kept:  # as a careless copy would
        os.rename(copied / name, out / "0000" / name)
    assert_same_layouts(ShardSite(shards, 0, 1), other)


def test_layouts_without_a_stamp_or_with_a_wrong_one(shards):
    part, place = shards.part(0), shards.place(0)
    ask_everything(ShardSite(shards, 0, 1))
    stamp = place / "by-1" / "layout.json"
    said = json.loads(stamp.read_text())
    for text in (
        "",
        "[" * 100_000,
        json.dumps(said | {"of": "other"}),
        json.dumps(said | {"sizes": {}}),
        None,
    ):
        np.save(place / "by-1" / "values.npy", np.zeros(part.n_entries))
        if text is None:
            stamp.unlink()
        else:
            stamp.write_text(text)
        assert_same_layouts(ShardSite(shards, 0, 1), part)


@pytest.mark.parametrize(
    ("name", "place", "number"),
    [
        ("by-0/starts", 3, 10**6),
        ("by-0/starts", 0, 1),
        ("by-1/others", (0, 0), 10**6),
        ("by-1/others", (1, -1), -1),
        ("by-2/starts", -1, 0),
        ("slots-1/slots", 0, -1),
        ("slots-1/slots", 0, 10**6),
        ("slots-1/slots", slice(0, 2), 0),
        ("cells-0-1/levels", 0, 99),
        ("cells-0-1/of_entry", 0, 10**6),
        ("cells-0-1/starts", -1, -5),
        ("grid-1-1-1-1/coordinates", (0, 0), 99),
        ("grid-1-1-1-1/starts", (0, 0, 1), 10**6),
        ("grid-1-1-1-1/starts", (0, 0, 0), -1),
    ],
)
def test_damaged_layouts_are_made_anew(shards, name, place, number):
    """Kernels would follow such numbers beyond their arrays."""
    site = ShardSite(shards, 0, 1)
    ask_everything(site)
    site.release()
    path = shards.place(0) / f"{name}.npy"
    array = np.load(path)
    array[place] = number
    np.save(path, array)
    assert_same_layouts(site, shards.part(0))


@pytest.mark.parametrize("name", ["others", "values", "starts"])
def test_missing_and_short_layout_files_are_made_anew(shards, name):
    path, part = shards.place(0) / "by-1" / f"{name}.npy", shards.part(0)
    ask_everything(ShardSite(shards, 0, 1))
    content = path.read_bytes()
    for damaged in (b"", content[:50], content[:-1], content + b"0", None):
        path.unlink()
        if damaged is not None:
            path.write_bytes(damaged)
        assert_same_layouts(ShardSite(shards, 0, 1), part)
    assert path.read_bytes() == content


def test_a_layout_that_cannot_be_written_leaves_nothing(shards, monkeypatch, tmp_path):
    def full(_handle):
        raise OSError(28, "No space left on device")

    site = ShardSite(shards, 0, 1)
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(DataError, match=r"by-1 could not be written: No space left"):
            site.by_mode(1)
    assert set(os.listdir(shards.place(0))) == {"coordinates.npy", "values.npy"}
    elsewhere = ShardSite(shards, 0, 1, layouts=tmp_path / "layouts")
    assert_same_layouts(elsewhere, shards.part(0))
    assert set(os.listdir(shards.place(0))) == {"coordinates.npy", "values.npy"}


def test_two_sites_may_make_one_layout_at_a_time(shards, monkeypatch):
    """The second finds the first's in its place and takes it."""
    first, second = ShardSite(shards, 0, 1), ShardSite(shards, 0, 1)
    rename, held = os.rename, []

    def overtaken(source, target):
        if not held and str(source).endswith("new"):
            held.append(source)
            first.by_mode(1)
        rename(source, target)

    monkeypatch.setattr(os, "rename", overtaken)
    found = second.by_mode(1)
    assert held
    np.testing.assert_array_equal(found.starts, row_starts(shards.part(0).coordinates[1], SIZES[1]))
    assert_same_layouts(second, shards.part(0))


# -- fits -----------------------------------------------------------------------------------------


def compiled():
    return sum(len(kernel.signatures) for kernel in compiler._made)


def test_a_fit_has_the_same_bits_and_compiles_nothing_more(tmp_path):
    whole = random_tensor(entries=600)
    plan = Plan(Shape(whole.modes, (2, 2, 2)), sf.ALS(sweeps=3))
    wanted = carry_out(plan, Local(Site(whole, 1))).model.parameters
    before = compiled()
    site = ShardSite(make_shards(whole, tmp_path / "out"), 0, 1)
    for found, parameter in zip(carry_out(plan, Local(site)).model.parameters, wanted, strict=True):
        np.testing.assert_array_equal(found, parameter)
    assert compiled() == before


@pytest.mark.parametrize("blocks", [1, 2])
def test_a_grid_of_several_blocks_and_tiles_is_that_of_a_site_in_memory(tmp_path, monkeypatch, blocks):
    for name, few in (("_BLOCK_ENTRIES", 4), ("_TILE_ENTRIES", 8), ("_CACHE_BYTES", 64)):
        monkeypatch.setattr(memory_sites, name, few)
    shards = make_shards(random_tensor(), tmp_path / "out")
    sites = ShardSite(shards, 0, 1), Site(shards.part(0), 1)
    found, wanted = (site.grid(blocks, 64) for site in sites)
    assert (wanted.blocks, len(set(wanted.tiles)) > 1) == (blocks, True)
    assert_alike(found.starts, wanted.starts)
    assert_alike(found.coordinates, wanted.coordinates)
    path = next(shards.place(0).glob("grid-*/starts.npy"))
    edges = np.load(path)
    edges[0, 0, 1] = edges[0, 0, 2] + 1
    np.save(path, edges)
    assert_alike(ShardSite(shards, 0, 1).grid(blocks, 64).starts, wanted.starts)


def test_sites_that_are_released_after_each_answer_add_up_to_the_same(tmp_path):
    """As a fit over shards asks them, one held at a time."""
    whole = random_tensor(entries=600)
    shards = make_shards(whole, tmp_path / "out", shards=4)
    solver, shape = sf.ALS(sweeps=2), Shape(whole.modes, (2, 2, 2))
    sites = [ShardSite(shards, number, 1) for number in range(4)]
    parts = [Site(part, 1) for part in shards]

    def from_files(query):
        answers = []
        for site in sites:
            answers.append(query.answer(site))
            site.release()
        return reduce(add, answers)

    def in_memory(query):
        return Local(*parts).answer(query)

    states = [solver.init(Run(), shape) for _ in range(2)]
    for _ in range(8):
        queries = [solver.ask(state) for state in states]
        answers = [from_files(queries[0]), in_memory(queries[1])]
        assert same(*answers)
        states = [solver.update(state, answer)[0] for state, answer in zip(states, answers, strict=True)]
