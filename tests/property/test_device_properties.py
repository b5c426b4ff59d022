"""Sums on a device: those of the processor's kernels to single precision, and bounded exactly.

Run on whatever JAX finds; here that is the processor, by the same source as on a GPU.
"""

import gc
from dataclasses import replace
from math import inf, nan

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from simulator import take_turns

import sfumato as sf
from sfumato.data.tensor import Mode, SparseTensor
from sfumato.errors import SettingError
from sfumato.estimators import devices
from sfumato.kernels import jax as on_jax
from sfumato.kernels.cuda import alternating as by_hands
from sfumato.kernels.cuda import arrays
from sfumato.kernels.cuda import entrywise as by_hands_entrywise
from sfumato.kernels.cuda import normal as by_hands_normal
from sfumato.kernels.grid import grid
from sfumato.kernels.jax import alternating as by_entry
from sfumato.kernels.jax import entrywise, kept
from sfumato.kernels.jax import normal as by_jax
from sfumato.kernels.numba.alternating import CORE, Features, padded_metric
from sfumato.kernels.numba.normal import Ridge, Uncertainty, solve_rows
from sfumato.models.multilinear import CPModel, TuckerModel
from sfumato.models.shape import Shape
from sfumato.sites import device as device_sites
from sfumato.sites.device import DeviceSite, by_hand, use_gpu
from sfumato.sites.memory import Site
from sfumato.solvers.least_squares.core import core_equations

take_turns()
examples = settings(max_examples=4, deadline=None, database=None, derandomize=True)
KINDS = [("cp", 2), ("cp", 4), ("tucker", 2), ("tucker", 3)]
SIZES = (5, 7, 3, 2)


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch):
    """So that levels go over chunks and runs, and the last chunk is not full."""
    monkeypatch.setattr(device_sites, "by_hand", lambda *_: False)
    monkeypatch.setattr(entrywise, "CHUNK", 32)
    monkeypatch.setattr(entrywise, "RUN", 4)
    monkeypatch.setattr(entrywise, "_FEW_LEVELS", 0.7)  # runs for modes of up to 5 levels


def tensor_of(rng, order, entries=75):
    cells = np.stack([rng.integers(0, n, entries) for n in SIZES[:order]]).astype(np.int32)
    cells = cells[:, np.lexsort(cells[::-1])]
    modes = tuple(Mode(f"m{m}", n) for m, n in enumerate(SIZES[:order]))
    return SparseTensor(cells, rng.normal(size=entries), modes)


def model_of(kind, order, rng, size=1.0):
    sizes = SIZES[:order]
    model = CPModel.zeros(sizes, 3) if kind == "cp" else TuckerModel.zeros(sizes, (2, 3, 2)[:order])
    for factor in model.factors:
        factor[:] = size * rng.normal(size=factor.shape)
    model.free_core[:] = rng.normal(size=model.free_core.shape)
    model.biases[:] = 0.3 * rng.normal(size=model.biases.shape)
    return model.with_mean(0.4)


def there(tensor, model):
    kind = "tucker" if model.free_core.size else "cp"
    return DeviceSite(tensor, 1, Shape.of(tensor.modes, model.ranks, kind))


def features_of(model, block, rng, full):
    size = model.free_core.size if block == CORE else model.ranks[block]
    metric = np.eye(size) + 0.2 * rng.normal(size=(size, size)) if full else np.ones((1, size))
    return Features(padded_metric(metric), 1.3, 0.9, 0.0 if block == CORE else 0.7)


def uncertainty_of(model, rng, present):
    if not present:
        return Uncertainty(np.zeros((0, model.rows.shape[1])), np.zeros(0), np.zeros(0))
    rows = np.zeros(model.rows.shape)
    for mode, rank in enumerate(model.ranks):
        rows[model.span(mode), :rank] = rng.random((model.shape[mode], rank))
    return Uncertainty(rows, rng.random(model.biases.shape), rng.random(model.free_core.shape))


@pytest.mark.parametrize(("kind", "order"), KINDS)
@examples
@given(seed=st.integers(0, 10**6), full=st.booleans())
def test_clipped_sums_are_those_of_the_processor(kind, order, seed, full):
    rng = np.random.default_rng(seed)
    tensor, model = tensor_of(rng, order), model_of(kind, order, rng)
    for block in [*range(order), *([CORE] if kind == "tucker" else [])]:
        features = features_of(model, block, rng, full)
        sums = there(tensor, model).entry_sums(model, block, features)
        here = Site(tensor, 1).entry_sums(model, block, features)
        assert sums.shape == here.shape
        assert sums.dtype == np.int64
        # An entry's numbers differ by the lower clips (2^-16 twice) and single precision.
        room = tensor.n_entries * features.bound / grid(features.bound) * 2.0**-14
        assert np.abs(sums - here).max() <= room


@pytest.mark.parametrize(("kind", "order"), KINDS)
@examples
@given(
    seed=st.integers(0, 10**6),
    size=st.sampled_from([1.0, 1e-12, 1e9, 1e19, 1e30]),
    wild=st.sampled_from([None, inf, -inf, nan]),
)
def test_one_entry_more_changes_sums_by_what_it_adds_and_no_more_than_the_bound(
    kind, order, seed, size, wild
):
    """In whole numbers, whatever the parameters are: also where single precision overflows."""
    rng = np.random.default_rng(seed)
    tensor, model = tensor_of(rng, order, 40), model_of(kind, order, rng, size)
    if wild is not None:
        model.rows[rng.integers(model.rows.shape[0]), 0] = wild
    less = rng.integers(40)
    for block in [*range(order), *([CORE] if kind == "tucker" else [])]:
        features = features_of(model, block, rng, full=True)
        bound = features.bound / grid(features.bound)

        def sums(keep, block=block, features=features):
            return there(tensor.take(np.flatnonzero(keep)), model).entry_sums(model, block, features)

        alone = sums(np.arange(40) == less)
        assert (sums(np.ones(40, bool)) - sums(np.arange(40) != less) == alone).all()
        assert sum(int(n) ** 2 for n in alone.ravel()) <= int(bound) ** 2


def nearly_singular(rng, size):
    """A model, a metric, and a tensor whose entries have a level of the first mode each.

    Features are small differences of large numbers: they come out in another way wherever they are
    rounded in another way.
    """
    levels, rank = 64, 16
    model = CPModel.zeros((levels, levels, 3), rank)
    model.factors[0][:] = rng.normal(size=(levels, rank))
    rows = rng.normal(size=(levels, rank))
    model.factors[1][:] = size * (rows - rows.mean(1, keepdims=True))
    model.factors[2][:] = 1.0
    metric = np.ones((rank, rank)) + 1e-6 * rng.normal(size=(rank, rank))
    cells = np.stack([np.arange(levels), rng.permutation(levels), rng.integers(0, 3, levels)])
    modes = tuple(Mode(f"m{m}", n) for m, n in enumerate(model.shape))
    tensor = SparseTensor(cells.astype(np.int32), 9 * rng.normal(size=levels), modes)
    return model, Features(padded_metric(metric), 1.3, 0.9, 0.7), tensor


def lengths_of(sums):
    """Squared, by level, in whole numbers."""
    return [sum(int(number) ** 2 for number in level) for level in sums]


@examples
@given(seed=st.integers(0, 10**6), size=st.sampled_from([1e7, 1e10, 1e15]))
def test_what_cancels_is_bounded_too_and_near_the_bound_not_left_out(seed, size):
    model, features, tensor = nearly_singular(np.random.default_rng(seed), size)
    bound = int(features.bound / grid(features.bound)) ** 2
    lengths = lengths_of(there(tensor, model).entry_sums(model, 0, features))
    assert max(lengths) <= bound
    assert sum(length >= 0.9998 * bound for length in lengths) > 50


@examples
@given(seed=st.integers(0, 10**6), numbers=st.sampled_from([2, 5, 17, 65]))
def test_numbers_are_added_as_they_are_or_not_at_all(seed, numbers):
    """Lengths lie around the bound, by less than single precision can tell."""
    rng, levels, bound = np.random.default_rng(seed), 200, 2**30
    given = rng.normal(size=(levels, numbers))
    given *= (
        bound * rng.uniform(1 - 2e-5, 1 + 1e-6, (levels, 1)) / np.linalg.norm(given, axis=1)[:, None]
    )
    given = np.trunc(given).astype(np.float32)
    at = np.arange(levels, dtype=np.int32)
    chunk = entrywise.Chunk(None, np.zeros(levels), None, at, None, None, np.int32(levels))
    limit = np.float32(float(bound) ** 2 * by_entry._FITS)
    with on_jax.double_precision():
        out = np.zeros((levels, numbers), np.int64)
        sums = np.asarray(by_entry._add_fitting(out, given, limit, chunk, 0))
    added = sums.any(1)
    assert (sums[added] == given[added].astype(np.int64)).all()
    assert max(lengths_of(sums)) <= bound**2
    assert 20 < added.sum() < 180


# -- sums by hand, on a simulator -----------------------------------------------------------------


@pytest.fixture
def hands(monkeypatch):
    """Sums by hand, with few threads: those of the simulator are as slow as Python's."""
    monkeypatch.setattr(device_sites, "by_hand", by_hand)
    for module in (by_hands, by_hands_entrywise):
        monkeypatch.setattr(module, "TILE", 16)
        monkeypatch.setattr(module, "TILES", 2)
    monkeypatch.setattr(by_hands_entrywise, "CHUNK", 48)
    by_hands._kernel.cache_clear()
    yield
    by_hands._kernel.cache_clear()


@pytest.mark.parametrize("rank", [1, 3, 6])
@pytest.mark.parametrize("resident", [True, False])
def test_sums_by_hand_are_those_of_the_processor(hands, rank, resident):
    rng = np.random.default_rng(rank)
    tensor, model = tensor_of(rng, 3), CPModel.zeros(SIZES[:3], rank)
    for factor in model.factors:
        factor[:] = rng.normal(size=factor.shape)
    model.biases[:] = 0.3 * rng.normal(size=model.biases.shape)
    site = there(tensor, model)
    site._resident = resident
    for block in range(3):
        for full, bias in ((True, 0.7), (False, 0.0)):
            features = features_of(model, block, rng, full)._replace(bias=bias)
            sums, here = (each.entry_sums(model, block, features) for each in (site, Site(tensor, 1)))
            assert sums.shape == here.shape
            assert sums.dtype == np.int64
            room = tensor.n_entries * features.bound / grid(features.bound) * 2.0**-14
            assert np.abs(sums - here).max() <= room
    assert ("entries", 0) in site._kept


@pytest.mark.filterwarnings("ignore:.*encountered.*:RuntimeWarning")  # of numbers in the simulator
@pytest.mark.parametrize("size", [1.0, 1e-12, 1e9, 1e19, 1e30])
@pytest.mark.parametrize("wild", [None, inf, nan])
def test_by_hand_too_one_entry_more_adds_what_it_has_and_no_more_than_the_bound(hands, size, wild):
    rng = np.random.default_rng(7)
    tensor, model = tensor_of(rng, 2, 20), model_of("cp", 2, rng, size)
    if wild is not None:
        model.rows[rng.integers(model.rows.shape[0]), 0] = wild
    features = features_of(model, 0, rng, full=True)
    bound = features.bound / grid(features.bound)
    less = rng.integers(20)

    def sums(keep):
        return there(tensor.take(np.flatnonzero(keep)), model).entry_sums(model, 0, features)

    alone = sums(np.arange(20) == less)
    assert (sums(np.ones(20, bool)) - sums(np.arange(20) != less) == alone).all()
    assert sum(int(n) ** 2 for n in alone.ravel()) <= int(bound) ** 2


def test_by_hand_too_sound_entries_are_clipped_and_not_left_out(hands):
    rng = np.random.default_rng(1)
    tensor, model = tensor_of(rng, 3, 1), model_of("cp", 3, rng, 50.0)
    features = features_of(model, 0, rng, full=True)
    sums = there(tensor, model).entry_sums(model, 0, features)
    length = np.linalg.norm(sums.astype(float)) * grid(features.bound)
    assert 0.9999 * features.bound <= length <= features.bound


def test_by_hand_too_what_cancels_is_bounded_and_near_the_bound_not_left_out(hands):
    model, features, tensor = nearly_singular(np.random.default_rng(5), 1e7)
    bound = int(features.bound / grid(features.bound)) ** 2
    lengths = lengths_of(there(tensor, model).entry_sums(model, 0, features))
    assert max(lengths) <= bound
    assert sum(length >= 0.9998 * bound for length in lengths) > 50


def test_memory_that_is_held_carries_nothing_from_one_sum_to_the_next(hands):
    rng = np.random.default_rng(0)
    tensor = tensor_of(rng, 3)
    model, narrow = model_of("cp", 3, rng), CPModel.zeros(SIZES[:3], 2)
    narrow.rows[:, :2] = model.rows[:, :2]
    site, asked = there(tensor, model), [(0, model), (1, model), (0, narrow), (0, model), (1, model)]
    for mode, each in asked:
        features = features_of(each, mode, np.random.default_rng(mode), full=True)
        found = site.entry_sums(each, mode, features)
        assert (found == there(tensor, each).entry_sums(each, mode, features)).all()
    assert site.entry_sums(model, 0, features) is not site.entry_sums(model, 0, features)


def test_an_array_is_put_and_fetched_in_its_precision_with_zeros_where_it_ends():
    memory = arrays.Held((3, 4), np.float32)
    assert (memory.fetched() == 0).all()
    first, second = np.full((3, 4), 2 / 3), np.arange(6.0).reshape(3, 2)
    memory.put(first)
    assert (memory.fetched() == first.astype(np.float32)).all()
    found = memory.put(second).copy_to_host()
    assert (found[:, :2] == second).all()
    assert not found[:, 2:].any()
    found = memory.put(second[:2]).copy_to_host()
    assert (found[:2, :2] == second[:2]).all()
    assert not found[2:].any()
    assert memory.fetched().dtype == np.float32
    memory.cleared()
    assert not memory.fetched().any()


def test_where_no_memory_can_be_locked_copies_are_made_without(monkeypatch):
    def refused(*_):
        raise MemoryError

    monkeypatch.setattr(arrays.cuda, "pinned_array", refused)
    memory = arrays.Held((5,), np.int64)
    memory.put(np.arange(5))
    assert (memory.fetched() == np.arange(5)).all()


def test_only_cp_of_small_rank_is_summed_by_hand():
    assert by_hand((3, 3, 3), 0)
    assert not by_hand((2, 3, 2), 12)
    assert not by_hand((33, 33), 0)
    assert not by_hand((3,), 0)


# -- larger than the device -----------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "order"), [("cp", 2)])
def test_chunks_that_do_not_fit_the_device_are_streamed(kind, order, monkeypatch):
    rng = np.random.default_rng(1)
    tensor, model = tensor_of(rng, order), model_of(kind, order, rng)
    features = features_of(model, 0, rng, full=True)
    kept = there(tensor, model)
    monkeypatch.setattr(on_jax, "free_memory", lambda: 100)
    streamed = there(tensor, model)
    assert [kept._resident, streamed._resident] == [True, False]
    sums = [site.entry_sums(model, 0, features) for site in (kept, streamed)]
    assert (sums[0] == sums[1]).all()
    assert not streamed.chunks(0)._kept


@examples
@given(seed=st.integers(0, 10**6))
def test_sound_entries_are_clipped_and_not_left_out(seed):
    """Those whose numbers reach the bound have nearly all of it."""
    rng = np.random.default_rng(seed)
    tensor, model = tensor_of(rng, 3, 1), model_of("cp", 3, rng, 50.0)
    features = features_of(model, 0, rng, full=True)
    sums = there(tensor, model).entry_sums(model, 0, features)
    length = np.linalg.norm(sums.astype(float)) * grid(features.bound)
    assert 0.9999 * features.bound <= length <= features.bound


@pytest.mark.parametrize(("kind", "order"), KINDS)
@pytest.mark.parametrize("uncertain", [False, True])
@examples
@given(seed=st.integers(0, 10**6), biased=st.booleans(), by=st.sampled_from(["JAX", "hand"]))
def test_normal_equations_and_rows_are_those_of_the_processor(kind, order, uncertain, seed, biased, by):
    rng = np.random.default_rng(seed)
    tensor, model = tensor_of(rng, order), model_of(kind, order, rng)
    uncertainty = uncertainty_of(model, rng, uncertain)
    sites = Site(tensor, 1), there(tensor, model)
    left = [site.residual_sums(model, uncertainty) for site in sites]
    np.testing.assert_allclose(left[0], left[1], rtol=1e-5)
    for mode in range(order):
        rank, here = model.ranks[mode], model.span(mode)
        low, high = (0, model.shape[mode]) if biased else (1, model.shape[mode])
        sums = [site.normal_equations(model, uncertainty, mode, low, high) for site in sites]
        upper = np.triu(np.ones((model.rows.shape[1],) * 2))
        for name, mine, theirs in zip(sums[0]._fields, *sums, strict=True):
            factor = upper if name == "gram" else 1
            np.testing.assert_allclose(mine * factor, np.asarray(theirs) * factor, rtol=1e-4, atol=1e-3)
        ridge = Ridge(np.full(model.rows.shape[1], 2.0), 0.1, 0.5, 3.0 if biased else inf, 0.1, 1.5)
        outs = [replace(model, rows=model.rows.copy(), biases=model.biases.copy()) for _ in sites]
        solved = []
        for each, out in zip(sums, outs, strict=True):
            spread = Uncertainty(*(part.copy() for part in uncertainty))
            rows = slice(here.start + low, here.start + high)
            where = out.rows[rows], out.biases[rows], spread.rows[rows], spread.biases[rows]
            if each is sums[0]:
                solve_rows(each, ridge, rank, *where, 1)
            else:
                solves = {"JAX": by_jax.solve_rows, "hand": by_hands_normal.solve_rows}
                solves[by](each, ridge, rank, *where)
            solved.append(where)
        for mine, theirs in zip(*solved, strict=True):
            np.testing.assert_allclose(mine, theirs, rtol=2e-3, atol=2e-3)


def test_rows_of_nearly_singular_equations_are_finite_by_hand_too():
    """Pivots that are rounding errors are raised, as on processors."""
    rng = np.random.default_rng(2)
    tensor, model = tensor_of(rng, 2), replace(model_of("cp", 2, rng), mean=0.0)
    model.factors[1][:] = model.factors[1][:, :1]
    sums = there(tensor, model).normal_equations(model, uncertainty_of(model, rng, False), 0, 0, 5)
    ridge, none = Ridge(np.full(8, 1e-9), 0.0, 0.0, inf, 0.0, 1.0), np.zeros((0, 8))
    rows, biases = np.zeros((5, 8), np.float32), np.zeros(5, np.float32)
    by_hands_normal.solve_rows(sums, ridge, 3, rows, biases, none, none[:, 0])
    explained = np.asarray(sums.gram)[:, 0, 0] * rows[:, :3].sum(1)
    np.testing.assert_allclose(explained, np.asarray(sums.rhs)[:, 0], rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("by", ["JAX", "hand"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_rows_that_were_solved_there_are_not_copied_there_again(by, dtype, monkeypatch):
    """Unless somebody has written to them since."""
    monkeypatch.setattr(device_sites, "installed", lambda: by == "hand")
    rng = np.random.default_rng(3)
    tensor, model = tensor_of(rng, 2), CPModel.zeros(SIZES[:2], 3, dtype)
    model.rows[:, :3] = rng.normal(size=(model.rows.shape[0], 3)).astype(np.float32)
    site, none = there(tensor, model), uncertainty_of(model, rng, False)
    ridge = Ridge(np.full(model.rows.shape[1], 2.0), 0.0, 0.0, 3.0, 0.0, 1.0)
    put, looked_at = [], jax.device_put
    for mode in (0, 1, 0, 1):
        here = model.span(mode)
        sums = site.normal_equations(model, none, mode, 0, model.shape[mode])
        where = model.rows[here], model.biases[here], none.rows[:0], none.biases[:0]
        device_sites.solve_rows(sums, ridge, 3, *where)
        monkeypatch.setattr(kept.jax, "device_put", lambda x: put.append(x) or looked_at(x))
        found = entrywise.parameters(model, solved=True)
        monkeypatch.setattr(kept.jax, "device_put", looked_at)
        for m in range(2):
            assert (np.asarray(found.factors[m]) == model.factors[m]).all()
            assert (np.asarray(found.biases[m]) == model.mode_biases[m]).all()
    assert not [each for each in put if isinstance(each, np.ndarray)]
    model.factors[1][2, 0] = 0.5
    assert (np.asarray(entrywise.parameters(model, solved=True).factors[1]) == model.factors[1]).all()
    other = model.copy()
    other.factors[0][:] = 0
    assert not np.asarray(entrywise.parameters(other, solved=True).factors[0]).any()


def test_a_device_has_nothing_left_of_a_fit_that_is_over(a_gpu):
    fitted = sf.CP(2, solver=sf.ALS(sweeps=2), dtype=np.float32, device="gpu").fit(PLANTED)
    gc.collect()
    assert fitted.model_.rows.size
    assert not kept._kept


@pytest.mark.parametrize("uncertain", [False, True])
@pytest.mark.parametrize("order", [2, 3, 4])
@examples
@given(seed=st.integers(0, 10**6))
def test_equations_of_a_core_are_those_of_the_processor(order, uncertain, seed):
    rng = np.random.default_rng(seed)
    tensor, sizes = tensor_of(rng, order), SIZES[:order]
    model = TuckerModel.zeros(sizes, (2, 3, 2, 1)[:order])
    for factor in model.factors:
        factor[:] = rng.normal(size=factor.shape)
    model.free_core[:] = rng.normal(size=model.free_core.shape)
    uncertainty = uncertainty_of(model, rng, uncertain)
    here, found = (
        core_equations(model, uncertainty, s) for s in (Site(tensor, 1), there(tensor, model))
    )
    np.testing.assert_allclose(found.gram, here.gram, rtol=1e-4, atol=1e-3)
    np.testing.assert_allclose(found.rhs, here.rhs, rtol=1e-4, atol=1e-3)


# -- whole fits -----------------------------------------------------------------------------------


@pytest.fixture
def a_gpu(monkeypatch):
    """As if JAX's processor were one."""
    monkeypatch.setattr(on_jax, "accelerated", lambda: True)


PLANTED = sf.synthetic.cp((30, 20, 6), 2, entries=1500, snr=5.0, seed=1).tensor


@pytest.mark.parametrize("ridge", ["learn", 1.0])
@pytest.mark.parametrize("kind", [sf.CP, sf.Tucker])
def test_open_fits_agree(a_gpu, monkeypatch, kind, ridge):
    solver = sf.ALS(sweeps=4, ridge=ridge)
    monkeypatch.setattr(entrywise, "CHUNK", 512)
    here = kind(2, solver=solver, dtype=np.float32).fit(PLANTED)
    there = kind(2, solver=solver, dtype=np.float32, device="gpu").fit(PLANTED)
    cells = PLANTED.coordinates
    np.testing.assert_allclose(
        there.model_.predict(cells), here.model_.predict(cells), atol=0.02 * PLANTED.values.std()
    )


@pytest.mark.parametrize("by", ["JAX", "hand"])
def test_entries_stay_where_a_fit_leaves_room_for_them(by, monkeypatch):
    """Their own size beside what the fit works with, to a chunk."""
    monkeypatch.setattr(device_sites, "by_hand", lambda *_: by == "hand")
    tensor, model = tensor_of(np.random.default_rng(1), 3), model_of("cp", 3, np.random.default_rng(1))
    works = device_sites.working_bytes(Shape.of(tensor.modes, model.ranks, "cp"), private=False)
    for chunks, stays in ((3, False), (12, True)):
        room = works + chunks * 3 * entrywise.bytes_there(entrywise.CHUNK, 3)
        monkeypatch.setattr(on_jax, "free_memory", lambda room=room: room)
        assert there(tensor, model)._resident == stays


@pytest.mark.parametrize("ranks", [(1, 1), (16,) * 3, (33,) * 3, (64,) * 4, (2048, 2048)])
@pytest.mark.parametrize("tucker", [False, True])
def test_what_is_made_of_a_chunk_stays_within_its_share(ranks, tucker, monkeypatch):
    monkeypatch.undo()
    core = int(np.prod(ranks)) if tucker else 0
    entries, each = entrywise.chunk_size(ranks, core), entrywise.entry_bytes(ranks, core)
    assert entries == 1 << (entries.bit_length() - 1) <= entrywise.CHUNK
    assert entries == 1 or entries * each <= entrywise.SCRATCH
    assert entries == entrywise.CHUNK or 2 * entries * each > entrywise.SCRATCH


def private(device, **settings):
    privacy = sf.Privacy(
        epsilon=5.0,
        delta=1e-6,
        unit="entry",
        method="alternating",
        public=sf.Public(labels=True),
        seed=3,
        **settings,
    )
    return sf.CP(2, privacy=privacy, device=device)


def test_private_fits_agree_and_promise_the_same(a_gpu, monkeypatch):
    """Noise is drawn here for both, from one seed: only the sums beneath it are rounded otherwise."""
    monkeypatch.setattr(entrywise, "CHUNK", 512)
    tensor = sf.prepare.clip(PLANTED, (-9.0, 9.0))
    here, there = private("cpu").fit(tensor), private("gpu").fit(tensor)
    assert there.guarantee_ == here.guarantee_
    np.testing.assert_allclose(there.model_.rows, here.model_.rows, atol=1e-3)
    again = private("gpu").fit(tensor)
    assert (again.model_.rows == there.model_.rows).all()  # whole numbers: from run to run the same


def test_auto_takes_the_processor_where_there_is_no_gpu():
    fitted = sf.CP(2, solver=sf.ALS(sweeps=2), device="auto").fit(PLANTED)
    assert (fitted.model_.rows == sf.CP(2, solver=sf.ALS(sweeps=2)).fit(PLANTED).model_.rows).all()


def test_what_cannot_be_done_is_said_before_a_charge(tmp_path, a_gpu, monkeypatch):
    with pytest.raises(SettingError, match="device"):
        sf.CP(2, device="tpu").fit(PLANTED)
    with pytest.raises(SettingError, match="has kernels for"):
        sf.CP(2, solver="sgd", device="gpu").fit(PLANTED)
    ledger = tmp_path / "data.ledger"
    monkeypatch.setattr(on_jax, "accelerated", lambda: False)
    with pytest.raises(SettingError, match="finds no GPU"):
        private("gpu", ledger=ledger).fit(sf.prepare.clip(PLANTED, (-9.0, 9.0)))
    assert not ledger.exists()
    monkeypatch.setattr(device_sites, "find_spec", lambda _: None)
    with pytest.raises(SettingError, match="needs JAX"):
        use_gpu("gpu")
    assert not use_gpu("auto")
    assert devices.placed("auto", sf.ALS(), None, None) is None


def test_a_device_that_jax_is_told_to_take_and_does_not_find_is_none(monkeypatch):
    def missing():
        raise RuntimeError("Unable to initialize backend 'cuda'")

    monkeypatch.setattr(jax, "devices", missing)
    on_jax.accelerated.cache_clear()
    try:
        assert not use_gpu("auto")
        with pytest.raises(SettingError, match="JAX has nothing"):
            use_gpu("gpu")
    finally:
        on_jax.accelerated.cache_clear()


def test_too_little_memory_is_said_before_a_charge_and_with_the_numbers(tmp_path, a_gpu, monkeypatch):
    monkeypatch.setattr(on_jax, "total_memory", lambda: 1000)
    ledger, tensor = tmp_path / "data.ledger", sf.prepare.clip(PLANTED, (-9.0, 9.0))
    with pytest.raises(SettingError, match="for sums of 30 x 20 x 6 levels at rank 2, and JAX's share"):
        private("gpu", ledger=ledger).fit(tensor)
    assert not ledger.exists()
    with pytest.raises(SettingError, match=r"JAX's share of the card is 0\.0 GiB"):
        sf.CP(2, device="gpu").fit(PLANTED)
    left = private("auto").fit(tensor)  # to the processors
    assert (left.model_.rows == private("cpu").fit(tensor).model_.rows).all()


def test_what_is_needed_grows_with_what_is_planned():
    def needed(levels, ranks, kind="cp", private=True):
        modes = [Mode("user", levels), Mode("item", 50), Mode("day", 30)]
        return device_sites.working_bytes(Shape.of(modes, ranks, kind), private)

    assert needed(10**6, (4,) * 3) - needed(10, (4,) * 3) >= 10**6 * 8 * 5
    gram = needed(10**6, (4,) * 3, private=False) - needed(10, (4,) * 3, private=False)
    assert gram >= 10**6 * 4 * 4 * 4 * 4
    assert needed(10, (4,) * 3, "tucker") > needed(10, (4,) * 3)


def test_memory_that_gives_out_in_a_fit_is_said_alike_whatever_the_data(a_gpu, monkeypatch):
    def full(*_):
        raise jax.errors.JaxRuntimeError(f"RESOURCE_EXHAUSTED: {next(sizes)} bytes")

    sizes = iter(range(2))
    monkeypatch.setattr("sfumato.kernels.jax.alternating.put", full)
    said = []
    for tensor in (PLANTED, PLANTED.take(np.arange(700))):
        with pytest.raises(SettingError, match="does not suffice") as raised:
            private("gpu").fit(sf.prepare.clip(tensor, (-9.0, 9.0)))
        said.append(str(raised.value))
    assert said[0] == said[1]


def test_other_errors_of_jax_are_told_as_they_are():
    with pytest.raises(jax.errors.JaxRuntimeError, match="INTERNAL"), on_jax.within_memory():
        raise jax.errors.JaxRuntimeError("INTERNAL: something else")
