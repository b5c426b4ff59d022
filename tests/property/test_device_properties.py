"""Sums on a device: those of the processor's kernels to single precision, and bounded exactly.

Run on whatever JAX finds; here that is the processor, by the same source as on a GPU.
"""

from dataclasses import replace
from math import inf, nan

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import sfumato as sf
from sfumato.data.tensor import Mode, SparseTensor
from sfumato.errors import SettingError
from sfumato.estimators import devices
from sfumato.kernels import jax as on_jax
from sfumato.kernels.cuda import alternating as by_hands
from sfumato.kernels.cuda import entrywise as by_hands_entrywise
from sfumato.kernels.grid import grid
from sfumato.kernels.jax import entrywise
from sfumato.kernels.numba.alternating import CORE, Features, padded_metric
from sfumato.kernels.numba.normal import Ridge, Uncertainty, solve_rows
from sfumato.models.multilinear import CPModel, TuckerModel
from sfumato.sites import device as device_sites
from sfumato.sites.device import DeviceSite, by_hand, use_gpu
from sfumato.sites.memory import Site

examples = settings(max_examples=4, deadline=None, database=None, derandomize=True)
KINDS = [("cp", 2), ("cp", 4), ("tucker", 3)]
SIZES = (5, 7, 3, 2)


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch):
    """So that levels go over chunks and runs, and the last chunk is not full."""
    monkeypatch.setattr(device_sites, "by_hand", lambda _: False)
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
    model = CPModel.zeros(sizes, 3) if kind == "cp" else TuckerModel.zeros(sizes, (2, 3, 2))
    for factor in model.factors:
        factor[:] = size * rng.normal(size=factor.shape)
    model.free_core[:] = rng.normal(size=model.free_core.shape)
    model.biases[:] = 0.3 * rng.normal(size=model.biases.shape)
    return model.with_mean(0.4)


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
    return Uncertainty(rows, rng.random(model.biases.shape), np.zeros(model.free_core.shape))


@pytest.mark.parametrize(("kind", "order"), KINDS)
@examples
@given(seed=st.integers(0, 10**6), full=st.booleans())
def test_clipped_sums_are_those_of_the_processor(kind, order, seed, full):
    rng = np.random.default_rng(seed)
    tensor, model = tensor_of(rng, order), model_of(kind, order, rng)
    for block in [*range(order), *([CORE] if kind == "tucker" else [])]:
        features = features_of(model, block, rng, full)
        there = DeviceSite(tensor, 1).entry_sums(model, block, features)
        here = Site(tensor, 1).entry_sums(model, block, features)
        assert there.shape == here.shape
        assert there.dtype == np.int64
        # An entry's numbers differ by the lower clips (2^-16 twice) and single precision.
        room = tensor.n_entries * features.bound / grid(features.bound) * 2.0**-14
        assert np.abs(there - here).max() <= room


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
            return DeviceSite(tensor.take(np.flatnonzero(keep)), 1).entry_sums(model, block, features)

        alone = sums(np.arange(40) == less)
        assert (sums(np.ones(40, bool)) - sums(np.arange(40) != less) == alone).all()
        assert sum(int(n) ** 2 for n in alone.ravel()) <= int(bound) ** 2


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
    site = DeviceSite(tensor, 1)
    site._resident = resident
    for block in range(3):
        for full, bias in ((True, 0.7), (False, 0.0)):
            features = features_of(model, block, rng, full)._replace(bias=bias)
            there, here = (each.entry_sums(model, block, features) for each in (site, Site(tensor, 1)))
            assert there.shape == here.shape
            assert there.dtype == np.int64
            room = tensor.n_entries * features.bound / grid(features.bound) * 2.0**-14
            assert np.abs(there - here).max() <= room
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
        return DeviceSite(tensor.take(np.flatnonzero(keep)), 1).entry_sums(model, 0, features)

    alone = sums(np.arange(20) == less)
    assert (sums(np.ones(20, bool)) - sums(np.arange(20) != less) == alone).all()
    assert sum(int(n) ** 2 for n in alone.ravel()) <= int(bound) ** 2


def test_by_hand_too_sound_entries_are_clipped_and_not_left_out(hands):
    rng = np.random.default_rng(1)
    tensor, model = tensor_of(rng, 3, 1), model_of("cp", 3, rng, 50.0)
    features = features_of(model, 0, rng, full=True)
    sums = DeviceSite(tensor, 1).entry_sums(model, 0, features)
    length = np.linalg.norm(sums.astype(float)) * grid(features.bound)
    assert 0.9999 * features.bound <= length <= features.bound


def test_only_cp_of_small_rank_is_summed_by_hand():
    rng = np.random.default_rng(0)
    assert by_hand(model_of("cp", 3, rng))
    assert not by_hand(model_of("tucker", 3, rng))
    assert not by_hand(CPModel.zeros((3, 4), 33))


# -- larger than the device -----------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "order"), [("cp", 2)])
def test_chunks_that_do_not_fit_the_device_are_streamed(kind, order, monkeypatch):
    rng = np.random.default_rng(1)
    tensor, model = tensor_of(rng, order), model_of(kind, order, rng)
    features = features_of(model, 0, rng, full=True)
    kept = DeviceSite(tensor, 1)
    monkeypatch.setattr(on_jax, "free_memory", lambda: 100)
    streamed = DeviceSite(tensor, 1)
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
    sums = DeviceSite(tensor, 1).entry_sums(model, 0, features)
    length = np.linalg.norm(sums.astype(float)) * grid(features.bound)
    assert 0.9999 * features.bound <= length <= features.bound


@pytest.mark.parametrize(("kind", "order"), KINDS)
@pytest.mark.parametrize("uncertain", [False, True])
@examples
@given(seed=st.integers(0, 10**6), biased=st.booleans())
def test_normal_equations_and_rows_are_those_of_the_processor(kind, order, uncertain, seed, biased):
    rng = np.random.default_rng(seed)
    tensor, model = tensor_of(rng, order), model_of(kind, order, rng)
    uncertainty = uncertainty_of(model, rng, uncertain)
    sites = Site(tensor, 1), DeviceSite(tensor, 1)
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
            elif isinstance(each.gram, np.ndarray):  # what has no kernel there
                assert kind == "tucker"
                solve_rows(each, ridge, rank, *where, 1)
            else:
                from sfumato.kernels.jax.normal import solve_rows as solve_there

                solve_there(each, ridge, rank, *where)
            solved.append(where)
        for mine, theirs in zip(*solved, strict=True):
            np.testing.assert_allclose(mine, theirs, rtol=2e-3, atol=2e-3)


# -- whole fits -----------------------------------------------------------------------------------


@pytest.fixture
def a_gpu(monkeypatch):
    """As if JAX's processor were one."""
    monkeypatch.setattr(on_jax, "accelerated", lambda: True)


PLANTED = sf.synthetic.cp((30, 20, 6), 2, entries=1500, snr=5.0, seed=1).tensor


@pytest.mark.parametrize("ridge", ["learn", 1.0])
def test_open_fits_agree(a_gpu, monkeypatch, ridge):
    solver = sf.ALS(sweeps=4, ridge=ridge)
    monkeypatch.setattr(entrywise, "CHUNK", 512)
    here = sf.CP(2, solver=solver, dtype=np.float32).fit(PLANTED)
    there = sf.CP(2, solver=solver, dtype=np.float32, device="gpu").fit(PLANTED)
    cells = PLANTED.coordinates
    np.testing.assert_allclose(
        there.model_.predict(cells), here.model_.predict(cells), atol=0.02 * PLANTED.values.std()
    )


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
    assert not ledger.exists() or len(ledger.read_text().splitlines()) < 2
    monkeypatch.setattr(device_sites, "find_spec", lambda _: None)
    with pytest.raises(SettingError, match="needs JAX"):
        use_gpu("gpu")
    assert not use_gpu("auto")
    assert devices.placed("auto", sf.ALS(), None) is None


def test_too_little_memory_is_said_with_the_numbers(monkeypatch):
    monkeypatch.setattr(on_jax, "total_memory", lambda: 2**30)
    model = model_of("cp", 3, np.random.default_rng(0))
    site = DeviceSite(tensor_of(np.random.default_rng(0), 3), 1)
    with pytest.raises(SettingError, match=r"GiB on the GPU, which has 1\.0"):
        site.entry_sums(model, 0, features_of(model, 0, np.random.default_rng(0), full=True))
