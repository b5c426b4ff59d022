"""What entries and owners add on a device, by kernels by hand: the numbers of the processor's kernels.

Run on numba-cuda's simulator, by the same source as on a GPU. In double precision on both sides, so that
numbers differ by a step where one is rounded across it.
"""

import gc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from simulator import take_turns

import sfumato as sf
from sfumato.data.tensor import Mode, SparseTensor
from sfumato.errors import SettingError
from sfumato.kernels import cuda as by_hand
from sfumato.kernels import jax as on_jax
from sfumato.kernels.cuda import arrays
from sfumato.kernels.cuda import cells as cells_there
from sfumato.kernels.cuda import contributions as there
from sfumato.kernels.grid import grid
from sfumato.kernels.jax import kept
from sfumato.kernels.numba import cells as cells_here
from sfumato.kernels.numba import contributions as here
from sfumato.kernels.numba.cells import Centring, Shortening
from sfumato.kernels.numba.contributions import OWN, Contribution, Taken
from sfumato.models.shape import Shape
from sfumato.sites import device
from sfumato.sites.device import DeviceSite
from sfumato.sites.memory import Site
from sfumato.solvers.private.contributions import owned_entries

take_turns()
examples = settings(max_examples=6, deadline=None, database=None, derandomize=True)
BOUNDS = -2.0, 3.0
SIZES = (6, 5, 4)


@pytest.fixture(autouse=True)
def few_threads(monkeypatch):
    """Those of the simulator are as slow as Python's; several blocks, several numbers for a thread."""
    monkeypatch.setattr(there, "THREADS", 4)
    monkeypatch.setattr(there, "_AT_A_TIME", 3)
    monkeypatch.setattr(cells_there, "THREADS", 4)
    monkeypatch.setattr(cells_there, "OWNERS_THREADS", 2)


def site_of(rng, order, entries=40):
    """Some levels have no entries, values lie beyond the bounds, and some are no numbers."""
    cells = np.stack([rng.integers(0, n - 1, entries) for n in SIZES[:order]]).astype(np.int32)
    cells = cells[:, np.lexsort(cells[::-1])]
    values = rng.normal(0.5, 2.0, entries)
    values[rng.integers(entries)] = np.nan
    modes = tuple(Mode(f"m{m}", n) for m, n in enumerate(SIZES[:order]))
    return Site(SparseTensor(cells, values, modes, _checked=True), 2)


def entries_and_taken(rng, order, own):
    site = site_of(rng, order)
    if own is None:
        entries = here.Entries(
            site.tensor.coordinates, site.tensor.values, np.empty(0, np.int64), *BOUNDS
        )
        sizes = SIZES[:order]
    else:
        entries = owned_entries(site, BOUNDS, own)
        sizes = [n for m, n in enumerate(SIZES[:order]) if m != own]
    biases = rng.normal(size=sum(sizes))
    offsets = np.concatenate([[0], np.cumsum(sizes)[:-1]])
    offsets[rng.integers(len(offsets))] = -1
    own_biases = rng.normal(size=SIZES[own]) if own is not None and rng.random() < 0.5 else np.zeros(0)
    return site, entries, Taken(0.3, biases, offsets, own_biases)


def assert_same(found, wanted, within=1):
    assert found.dtype == wanted.dtype == np.int64
    assert found.shape == wanted.shape
    assert np.abs(found - wanted).max(initial=0) <= within
    assert np.abs(wanted).max(initial=0) > 1000 or not wanted.size


@pytest.mark.parametrize("order", [2, 3])
@examples
@given(seed=st.integers(0, 10**6))
def test_entries_add_what_they_do_on_processors(order, seed):
    rng = np.random.default_rng(seed)
    site, entries, taken = entries_and_taken(rng, order, None)
    number = site.tensor.n_entries
    for row, size in enumerate(SIZES[:order]):
        both = [each.entry_sums(entries, taken, row, 0.7, size, 2) for each in (there, here)]
        assert_same(*both, within=number)
        both = [each.entry_counts(entries, row, size) for each in (there, here)]
        assert (both[0] == both[1]).all()
    for name in ("total_of_entries", "squares_of_entries"):
        both = [getattr(each, name)(entries, taken, 0.9, 2) for each in (there, here)]
        assert_same(*both, within=number)


@pytest.mark.parametrize(("order", "own"), [(2, 0), (2, 1), (3, 0), (3, 1)])
@examples
@given(seed=st.integers(0, 10**6), norm=st.sampled_from([1, 2]), centred=st.booleans())
def test_units_add_what_they_do_on_processors(order, own, seed, norm, centred):
    rng = np.random.default_rng(seed)
    _, entries, taken = entries_and_taken(rng, order, own)
    others = [n for m, n in enumerate(SIZES[:order]) if m != own]
    for row, size in [*enumerate(others), (OWN, SIZES[own])]:
        made = Contribution(1.2, 0.8, 2.0, centred, norm)
        weights = rng.random(size) + 0.1
        both = [each.unit_sums(entries, taken, row, weights, made, 2) for each in (there, here)]
        assert_same(*both, within=SIZES[own])
        both = [each.unit_counts(entries, row, size, 1.5, norm, 2) for each in (there, here)]
        assert_same(*both, within=SIZES[own])
    for name, how in (
        ("means_of_units", (0.9, 3.0)),
        ("squares_of_units", (0.9, 2.0)),
        ("scales_of_owners", (0.5, 1.1, norm)),
    ):
        both = [getattr(each, name)(entries, taken, *how, 2) for each in (there, here)]
        assert_same(*both, within=2 * SIZES[own])


@pytest.mark.parametrize(("order", "own", "mode"), [(2, 0, 1), (2, 1, 0), (3, 0, 2), (3, 1, 0)])
@examples
@given(seed=st.integers(0, 10**6), power=st.sampled_from([1.0, 2.0]), whole=st.booleans())
def test_owners_cells_add_what_they_do_on_processors(order, own, mode, seed, power, whole):
    rng = np.random.default_rng(seed)
    site, entries, taken = entries_and_taken(rng, order, own)
    cells, size = site.cells(own, mode), SIZES[mode]
    how, step = Centring(0.8, 2.0), grid(0.8)
    rests = [each.centred_rests(entries, taken, cells, how, 2) for each in (cells_there, cells_here)]
    np.testing.assert_allclose(rests[0], rests[1], rtol=1e-13, atol=1e-15)
    numbers = rests[1]
    both = [each.sum_of_cells(cells, numbers, size, step, 2) for each in (cells_there, cells_here)]
    assert (both[0] == both[1]).all()
    places = np.full(size, -1)
    places[1:] = np.arange(size - 1)
    what = cells, numbers, places, power, step, 2
    both = [each.moment_of_cells(*what) for each in (cells_there, cells_here)]
    assert_same(*both, within=SIZES[own])
    shortened = Shortening(2.0, 0.6 if whole else np.inf)
    weights, directions = rng.random(size) + 0.1, rng.normal(size=(size, 3))
    what = cells, numbers, weights, directions, 0.4, shortened, step, 2
    both = [each.project_cells(*what) for each in (cells_there, cells_here)]
    assert_same(*both, within=SIZES[own])


@pytest.mark.filterwarnings("ignore:.*encountered.*:RuntimeWarning")  # of numbers in the simulator
def test_a_unit_more_adds_what_it_has_and_no_more_than_the_bound():
    rng = np.random.default_rng(4)
    site, _, taken = entries_and_taken(rng, 2, 0)
    made, weights = Contribution(1.2, 0.5, 0.1, True, 2), np.ones(SIZES[1])
    taken = taken._replace(own=np.zeros(0), offsets=np.array([-1]))

    def sums(keep):
        kept = site.tensor.take(np.flatnonzero(keep))
        entries = owned_entries(Site(kept, 1), BOUNDS, 0)
        return there.unit_sums(entries, taken, 0, weights, made, 1)

    units = site.tensor.coordinates[0]
    for unit in np.unique(units):
        alone = sums(units == unit)
        assert (sums(units >= 0) - sums(units != unit) == alone).all()
        assert np.linalg.norm(alone.astype(float)) * grid(made.bound) <= made.bound


def test_what_the_host_keeps_is_copied_once_and_let_go_with_it():
    array = np.arange(5.0)
    first = arrays.there_once(array)
    assert arrays.there_once(array) is first
    number = id(array)
    assert number in kept._kept
    del array
    gc.collect()
    assert number not in kept._kept


def test_which_kernels_sum_by_owner_follows_from_public_numbers(monkeypatch):
    """They round in other ways: one entry more is not to change which ones are used for all."""
    site = site_of(np.random.default_rng(0), 2)
    shape = Shape.of(site.tensor.modes, (2, 2), "cp")
    assert DeviceSite(site.tensor, 1, shape, owned=True).contributions is there
    assert DeviceSite(site.tensor, 1, shape, owned=False).owned is cells_here
    assert DeviceSite(site.tensor.take(np.arange(0)), 1, shape, owned=True).contributions is here
    monkeypatch.setattr(on_jax, "free_memory", lambda: 100)
    assert DeviceSite(site.tensor, 1, shape, owned=True).contributions is there
    needed = int(device.owned_bytes(shape, 1e6) / 0.9)
    for total, fits in ((None, True), (needed + 2, True), (needed - 2, False)):
        monkeypatch.setattr(on_jax, "total_memory", lambda total=total: total)
        assert device.owned_there(shape, 1e6) == fits


# -- whole fits -----------------------------------------------------------------------------------


@pytest.fixture
def a_gpu(monkeypatch):
    """As if JAX's processor were one."""
    monkeypatch.setattr(on_jax, "accelerated", lambda: True)


RATINGS = sf.prepare.clip(sf.synthetic.cp((25, 12), 2, entries=220, snr=5.0, seed=1).tensor, (-3.0, 3.0))


def fitted(device, method, unit, **settings):
    privacy = sf.Privacy(
        20.0,
        1e-6,
        unit=unit,
        method=method,
        public=sf.Public(labels=True, units=25, entries=220),
        seed=3,
        local="mode0",
    )
    return sf.CP(6, privacy=privacy, device=device, **settings).fit(RATINGS)


@pytest.mark.parametrize("unit", ["entry", "mode0"])
@pytest.mark.parametrize(
    "method", ["constant", "bias", sf.PrivateMoments(bias_share=0.3, steps=1)], ids=str
)
def test_private_fits_agree_and_promise_the_same(a_gpu, method, unit):
    """Noise is drawn here for both, from one seed: only the sums beneath it are made elsewhere."""
    ours, theirs = (fitted(device, method, unit) for device in ("cpu", "gpu"))
    assert theirs.guarantee_ == ours.guarantee_
    np.testing.assert_allclose(theirs.model_.rows, ours.model_.rows, atol=1e-6)
    np.testing.assert_allclose(theirs.model_.biases, ours.model_.biases, atol=1e-6)


def test_too_little_memory_for_the_public_number_of_entries_is_said_before_a_charge(a_gpu, monkeypatch):
    monkeypatch.setattr(on_jax, "total_memory", lambda: 1000)
    with pytest.raises(SettingError, match=r"for sums of 220 entries of 25 x 12 levels at rank"):
        fitted("gpu", "bias", "entry")
    assert fitted("auto", "bias", "entry").method_ == "bias"


def test_without_numba_cuda_it_is_said_before_a_charge(a_gpu, monkeypatch):
    monkeypatch.setattr(by_hand, "installed", lambda: False)
    with pytest.raises(SettingError, match="need numba-cuda"):
        fitted("gpu", "bias", "entry")
    assert fitted("auto", "bias", "entry").method_ == "bias"
