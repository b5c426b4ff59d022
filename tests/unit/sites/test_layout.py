"""Orders of entries: sorted by a mode, and cut into strata, blocks and tiles."""

from itertools import pairwise

import numpy as np
import pytest

from sfumato.data import synthetic
from sfumato.data.tensor import Mode, SparseTensor
from sfumato.kernels.numba.threads import balanced_cuts
from sfumato.sites import memory as layout
from sfumato.sites.memory import Site, WeightedSite, make_grid

SHAPES = {2: (23, 9), 3: (11, 7, 5), 4: (7, 6, 5, 8)}


def random_tensor(order=3, entries=400, seed=0, shape=None):
    """Some levels have many entries, some none, and some cells occur twice."""
    rng = np.random.default_rng(seed)
    shape = shape or SHAPES[order]
    cells = np.stack([np.minimum(rng.geometric(0.3, entries) - 1, n - 1) for n in shape])
    modes = tuple(Mode(f"m{m}", n) for m, n in enumerate(shape))
    return SparseTensor(cells, rng.normal(size=entries), modes)


@pytest.fixture
def small_blocks(monkeypatch):
    monkeypatch.setattr(layout, "_BLOCK_ENTRIES", 1)


def as_rows(coordinates, values):
    return sorted(zip(*coordinates.tolist(), values.tolist(), strict=True))


@pytest.mark.parametrize("order", [2, 3, 4])
def test_by_mode_is_sorted_and_complete(order):
    tensor = random_tensor(order)
    site = Site(tensor, 1)
    for mode in range(order):
        sorted_by = site.by_mode(mode)
        counts = tensor.counts(f"m{mode}")
        np.testing.assert_array_equal(sorted_by.counts, counts)
        levels = np.repeat(np.arange(tensor.shape[mode]), counts)
        cells = np.insert(sorted_by.others, mode, levels, axis=0)
        assert as_rows(cells, sorted_by.values) == as_rows(tensor.coordinates, tensor.values)
        assert sorted_by is site.by_mode(mode)
        assert not sorted_by.values.flags.writeable  # one compiled kernel for every mode
    np.testing.assert_array_equal(
        site.counts, np.concatenate([site.by_mode(m).counts for m in range(order)])
    )


def check_grid(tensor, grid):
    assert as_rows(grid.coordinates, grid.values) == as_rows(tensor.coordinates, tensor.values)
    # Every position lies in exactly one tile of one block.
    seen = np.zeros(tensor.n_entries, int)
    for stratum in grid.starts:
        for edges in stratum:
            assert (np.diff(edges) >= 0).all()
            for begin, end in pairwise(edges):
                seen[begin:end] += 1
    np.testing.assert_array_equal(seen, 1)
    for stratum in grid.starts:
        for levels in grid.coordinates:
            parts = [set(levels[edges[0] : edges[-1]].tolist()) for edges in stratum]
            assert sum(map(len, parts)) == len(set().union(*parts))


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("blocks", [1, 2, 3, 4])
@pytest.mark.parametrize("order", [2, 3, 4])
def test_blocks_of_a_stratum_share_no_level(order, blocks):
    tensor = random_tensor(order, 600)
    grid = make_grid(tensor, blocks, 64, seed=1)
    assert (grid.blocks, grid.strata) == (blocks, blocks ** (order - 1))
    assert grid.starts.shape[2] == 2  # one tile
    check_grid(tensor, grid)


@pytest.mark.usefixtures("small_blocks")
def test_tiles_bound_the_rows_in_use(monkeypatch):
    monkeypatch.setattr(layout, "_CACHE_BYTES", 12 * 64)
    monkeypatch.setattr(layout, "_TILE_ENTRIES", 4)
    tensor = random_tensor(3, 3000, shape=(40, 30, 5))
    for blocks in (1, 2):
        grid = make_grid(tensor, blocks, 64, seed=1)
        assert grid.starts.shape[2] > 4
        check_grid(tensor, grid)
    # Entries of a tile have levels that lie together.
    edges = make_grid(tensor, 1, 64, seed=1).starts[0, 0]
    grid = make_grid(tensor, 1, 64, seed=1)
    spans = [np.ptp(grid.coordinates[0, a:b]) for a, b in pairwise(edges) if b > a]
    assert max(spans) < 39


@pytest.mark.parametrize(("entries", "blocks"), [(2**3 * 50 - 1, 1), (2**3 * 50, 2), (3**3 * 50, 3)])
def test_blocks_with_too_few_entries_are_not_made(monkeypatch, entries, blocks):
    monkeypatch.setattr(layout, "_BLOCK_ENTRIES", 50)
    tensor = random_tensor(3, entries)
    grid = make_grid(tensor, 4, 64, seed=0)
    assert grid.blocks == blocks
    check_grid(tensor, grid)


@pytest.mark.usefixtures("small_blocks")
def test_more_blocks_than_levels_are_not_made():
    tensor = random_tensor(3, shape=(6, 2, 5))
    grid = make_grid(tensor, 4, 64, seed=0)
    assert grid.blocks == 2
    check_grid(tensor, grid)


def test_the_shuffle_is_that_of_the_seed():
    tensor = random_tensor(3)
    first, same, other = (make_grid(tensor, 2, 64, seed) for seed in (5, 5, 6))
    np.testing.assert_array_equal(first.coordinates, same.coordinates)
    np.testing.assert_array_equal(first.values, same.values)
    assert (first.values != other.values).any()
    listed = make_grid(tensor, 1, 64, 5).coordinates.T.tolist()
    assert listed != sorted(listed)


@pytest.mark.parametrize("parts", [1, 2, 3, 7, 40])
def test_balanced_cuts_cover_the_levels(parts):
    counts = np.random.default_rng(0).integers(0, 50, 30)
    counts[[3, 17]] = [0, 900]
    starts = np.concatenate([[0], np.cumsum(counts)])
    for low, high in ((0, 30), (5, 29), (12, 13), (3, 4)):
        cuts = balanced_cuts(starts, low, high, parts)
        assert (cuts[0], cuts[-1], len(cuts)) == (low, high, parts + 1)
        assert all(a <= b for a, b in pairwise(cuts))
        share = (starts[high] - starts[low]) / parts
        sizes = np.diff(starts[cuts])
        assert sizes.max() <= share + counts[low:high].max()


@pytest.mark.parametrize("mode", [0, 1, 2])
def test_the_weight_of_a_level_is_that_of_its_own_entries_to_the_last_bit(mode):
    tensor, rng = random_tensor(3), np.random.default_rng(1)
    weights = rng.uniform(0.1, 1, tensor.n_entries) * rng.choice([1.0, 1e9], tensor.n_entries)
    totals = WeightedSite(Site(tensor, 1), tensor.values, weights).by_mode(mode).total_weights
    for level in range(tensor.shape[mode]):
        here = tensor.coordinates[mode] == level
        alone = WeightedSite(Site(tensor.take(here), 1), tensor.values[here], weights[here])
        assert totals[level] == alone.by_mode(mode).total_weights[level]
        assert totals[level] == pytest.approx(weights[here].sum(), rel=1e-12)
    assert (totals == 0).sum() == (tensor.counts(f"m{mode}") == 0).sum()


def test_the_latest_is_kept_as_long_as_it_is_asked_for_with_equal_data():
    """Equal, not the same: a question that came over a wire is as good as the one that was sent."""
    site = Site(synthetic.cp((4, 3), 1, entries=6).tensor, 1)
    made = []
    first, second = (1, np.arange(3.0)), (2, np.arange(3.0))
    for key in (first, (1, np.arange(3.0)), second, first):
        site.latest(key, lambda key=key: made.append(key[0]))
    assert made == [1, 2, 1]


def test_writing_to_what_was_asked_with_does_not_change_what_is_kept():
    site, asked = Site(synthetic.cp((4, 3), 1, entries=6).tensor, 1), np.zeros(2)
    assert site.latest((asked,), lambda: "zeros") == "zeros"
    asked[:] = 1
    assert site.latest((np.ones(2),), lambda: "ones") == "ones"
    assert site.latest((asked,), lambda: "ones again") == "ones"


def test_what_is_let_go_of_is_made_anew():
    site = Site(synthetic.ratings_like(20, 15, 4, 300), 1)
    before = site.by_mode(1)
    latest = site.latest("rows", object)
    assert site.by_mode(1) is before
    site.forget()
    after = site.by_mode(1)
    assert after is not before
    assert (after.others == before.others).all()
    assert site.latest("rows", object) is not latest


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(("own", "mode"), [(0, 1), (1, 2), (2, 0)])
@pytest.mark.parametrize("entries", [0, 1, 300])
def test_cells_are_the_different_levels_of_each_owner_in_order(own, mode, entries, threads):
    """Some owners have several entries at one level, and some none."""
    rng, sizes = np.random.default_rng(entries), (9, 5, 4)
    places = np.stack([rng.integers(0, n - 1, entries) for n in sizes]).astype(np.int32)
    places = np.ascontiguousarray(places[:, np.lexsort(places[::-1])])
    modes = tuple(Mode(f"m{m}", n) for m, n in enumerate(sizes))
    site = Site(SparseTensor(places, np.zeros(entries), modes, _checked=True), threads)
    cells, sorted_by = site.cells(own, mode), site.by_mode(own)
    levels = sorted_by.others[mode - (mode > own)]
    for owner in range(sizes[own]):
        here = slice(*sorted_by.starts[owner : owner + 2])
        first, last = cells.starts[owner : owner + 2]
        assert cells.levels[first:last].tolist() == sorted(set(levels[here].tolist()))
        assert (cells.levels[cells.of_entry[here]] == levels[here]).all()
        assert ((cells.of_entry[here] >= first) & (cells.of_entry[here] < last)).all()
    assert cells.starts[-1] == cells.levels.shape[0]
    assert cells.of_entry.dtype == cells.levels.dtype == np.int32
