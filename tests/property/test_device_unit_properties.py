"""What units add on a device to blocks of an alternating fit, and rows that owners solve there.

Run on numba-cuda's simulator, by the same source as on a GPU, beside the processor's kernels. In double
precision on both sides: sums differ by steps that are rounded in another way.
"""

from math import inf, nan

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from simulator import take_turns

import sfumato as sf
from sfumato.data.tensor import Mode, SparseTensor
from sfumato.errors import SettingError
from sfumato.kernels import jax as on_jax
from sfumato.kernels.cuda import arrays
from sfumato.kernels.cuda import own_rows as rows_there
from sfumato.kernels.cuda import units as units_there
from sfumato.kernels.grid import grid
from sfumato.kernels.numba.alternating import CORE, Features, Weighting, padded_metric
from sfumato.models.multilinear import CPModel, TuckerModel
from sfumato.models.own_prior import OwnPrior, Pull, RowNoise
from sfumato.models.shape import Shape
from sfumato.sites import device
from sfumato.sites.device import DeviceSite
from sfumato.sites.memory import Site
from sfumato.solvers.least_squares.own_rows import solve_own

take_turns()
examples = settings(max_examples=3, deadline=None, database=None, derandomize=True)
KINDS = [("cp", 2, 0), ("cp", 2, 1), ("cp", 3, 0), ("cp", 4, 1), ("tucker", 2, 0), ("tucker", 3, 1)]
SIZES = (6, 5, 4, 3)


@pytest.fixture(autouse=True)
def few_threads(monkeypatch):
    """Those of the simulator are as slow as Python's; several groups, several tiles."""
    monkeypatch.setattr(units_there, "THREADS", 16)
    monkeypatch.setattr(rows_there, "THREADS", 4)
    monkeypatch.setattr(rows_there, "TILE", 3)


def tensor_of(rng, order, entries=40, dtype=np.float64):
    """The last level of each mode has no entries; some units have several at one level."""
    cells = np.stack([rng.integers(0, n - 1, entries) for n in SIZES[:order]]).astype(np.int32)
    cells = np.ascontiguousarray(cells[:, np.lexsort(cells[::-1])])
    modes = tuple(Mode(f"m{m}", n) for m, n in enumerate(SIZES[:order]))
    return SparseTensor(cells, rng.normal(size=entries).astype(dtype), modes, _checked=True)


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
    shape = Shape.of(tensor.modes, model.ranks, kind)
    return DeviceSite(tensor, 1, shape, owned=True, blocks=tensor.order)


def blocks_of(model, units):
    modes = [m for m in range(model.order) if m != units]
    return [*modes, CORE] if model.free_core.size else modes


def question(model, block, rng, full=True):
    """As an alternating fit asks: how features are clipped, and how units are weighed."""
    size = model.free_core.size if block == CORE else model.ranks[block]
    levels = 1 if block == CORE else model.shape[block]
    metric = np.eye(size) + 0.2 * rng.normal(size=(size, size)) if full else np.ones((1, size))
    if block == CORE:
        metric = 0.5 + rng.random((1, size))
    features = Features(padded_metric(metric), 1.3, 0.9, 0.0 if block == CORE else 0.7)
    return block, features, Weighting(rng.random(levels) + 0.1, 2.0, 0.6)


@pytest.mark.parametrize("wild", [None, nan, inf])
@pytest.mark.parametrize(("kind", "order", "units"), KINDS)
@examples
@given(
    seed=st.integers(0, 10**6),
    full=st.booleans(),
    dtype=st.sampled_from([np.float32, np.float64]),
)
def test_units_add_what_they_do_on_processors(kind, order, units, seed, full, dtype, wild):
    """Also where values are no numbers, and let nothing through."""
    rng = np.random.default_rng(seed)
    tensor, model = tensor_of(rng, order, dtype=dtype), model_of(kind, order, rng)
    if wild is not None:
        values = tensor.values.copy()
        values[rng.integers(values.shape[0], size=5)] = wild
        tensor = tensor.with_values(values)
    sites = there(tensor, model), Site(tensor, 2)
    for block in blocks_of(model, units):
        asked = question(model, block, rng, full)
        found, wanted = (site.unit_sums(model, *asked, units) for site in sites)
        assert found.dtype == wanted.dtype == np.int64
        assert found.shape == wanted.shape
        assert np.abs(found - wanted).max() <= SIZES[units]
        assert np.abs(wanted).max() > 1000


@pytest.mark.parametrize(("kind", "order", "units"), KINDS)
@examples
@given(
    seed=st.integers(0, 10**6),
    size=st.sampled_from([1.0, 1e-12, 1e150, 1e300]),
    wild=st.sampled_from([None, inf, nan]),
)
def test_a_unit_more_adds_what_it_has_and_no_more_than_the_bound(kind, order, units, seed, size, wild):
    """In whole numbers, whatever the parameters are."""
    rng = np.random.default_rng(seed)
    tensor, model = tensor_of(rng, order), model_of(kind, order, rng, size)
    if wild is not None:
        model.rows[rng.integers(model.rows.shape[0]), 0] = wild
    of_entry = tensor.coordinates[units]
    unit = rng.choice(of_entry)
    for block in blocks_of(model, units):
        asked = question(model, block, rng)

        def sums(keep, asked=asked):
            return there(tensor.take(np.flatnonzero(keep)), model).unit_sums(model, *asked, units)

        alone = sums(of_entry == unit)
        assert (sums(of_entry >= 0) - sums(of_entry != unit) == alone).all()
        bound = asked[2].bound / grid(asked[2].bound)
        assert sum(int(n) ** 2 for n in alone.ravel()) <= int(bound) ** 2


def test_a_vector_that_overflows_on_the_way_adds_nothing():
    """Each entry's features are finite, and shortened; what a unit has of them at one level is not."""
    sizes, entries = (1, 2, 4), 8
    cells = np.array([[0] * entries, [0] * 4 + [1] * 4, [0, 1, 2, 3] * 2], np.int32)
    modes = tuple(Mode(f"m{m}", n) for m, n in enumerate(sizes))
    tensor = SparseTensor(cells, np.full(entries, 5.0), modes, _checked=True)
    model = CPModel.zeros(sizes, 2)
    model.factors[0][:], model.factors[2][:] = [1.0, 1.0], [1e308, 1.0]
    metric = padded_metric(np.diag([1e-308, 1.0]))
    asked = 1, Features(metric, 1e3, 4.0, 50.0), Weighting(np.array([1e-3, 1.0]), 1e-6, 0.6)
    assert not there(tensor, model).unit_sums(model, *asked, 0).any()
    assert (
        there(tensor, model.with_mean(0.0))
        .unit_sums(model.with_rows(2, np.ones((4, 2)), np.zeros(4)), *asked, 0)
        .any()
    )


@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("at", [0, 1, 2])
def test_parameters_that_are_no_numbers_let_through_what_they_do_on_processors(at, full):
    """Features of no finite length add nothing, and the biases beside them what they are."""
    rng = np.random.default_rng(at)
    tensor, model = tensor_of(rng, 3), model_of("cp", 3, rng)
    model.factors[at][1, 0] = inf
    for block in (1, 2):
        asked = question(model, block, rng, full)
        found, wanted = (s.unit_sums(model, *asked, 0) for s in (there(tensor, model), Site(tensor, 2)))
        assert np.abs(found - wanted).max() <= SIZES[0]
        assert np.abs(wanted).max() > 1000


def test_a_unit_reaches_its_bound():
    rng = np.random.default_rng(0)
    tensor, model = tensor_of(rng, 3), model_of("cp", 3, rng, 50.0)
    tensor = tensor.take(np.flatnonzero(tensor.coordinates[0] == tensor.coordinates[0, 0]))
    block, features, weighting = question(model, 1, rng)
    weighting = weighting._replace(bound=1e-3)
    sums = there(tensor, model).unit_sums(model, block, features, weighting, 0)
    length = np.linalg.norm(sums.astype(float)) * grid(weighting.bound)
    assert 0.9999 * weighting.bound <= length <= weighting.bound


# -- rows that owners solve -----------------------------------------------------------------------


def prior_of(model, own, rng, kind):
    """What solvers expect of own rows: each in its way."""
    rank, doubts = model.ranks[own], [rng.random(n) for n in model.shape]
    doubts[own] = None
    how = {
        "plain": {"mean": 0.3, "bias_precision": inf},
        "turned": {"turn": np.eye(rank) + 0.3 * rng.normal(size=(rank, rank)), "bias_precision": 2.0},
        "pulled": {"pull": Pull(rng.random(rank), rng.normal(size=rank)), "bias_precision": 2.0},
        "told": {"means": rng.normal(size=(model.shape[own], rank)), "doubts": tuple(doubts)},
    }[kind]
    return OwnPrior(mode=own, precisions=0.5 + rng.random(rank), scatter=0.8, **how)


@pytest.mark.parametrize(("kind", "order", "own"), KINDS)
@pytest.mark.parametrize("prior", ["plain", "turned", "pulled", "told"])
@examples
@given(seed=st.integers(0, 10**6))
def test_own_rows_are_those_of_the_processor(kind, order, own, prior, seed):
    rng = np.random.default_rng(seed)
    tensor, model = tensor_of(rng, order), model_of(kind, order, rng)
    expected = prior_of(model, own, rng, prior)
    made = there(tensor, model).own_rows(model, expected)
    solved = solve_own(model, expected, Site(tensor, 1))
    np.testing.assert_allclose(made[0], solved.factors[own], rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(made[1], solved.mode_biases[own], rtol=1e-9, atol=1e-12)
    whole = solve_own(model, expected, there(tensor, model))
    assert (whole.factors[own] == made[0]).all()
    assert all((whole.factors[m] == model.factors[m]).all() for m in range(order) if m != own)


@pytest.mark.parametrize("prior", ["turned", "told"])
def test_own_rows_are_the_same_to_the_last_bit_whoever_else_is_there(prior):
    rng = np.random.default_rng(3)
    tensor, model = tensor_of(rng, 3), model_of("cp", 3, rng)
    expected = prior_of(model, 0, rng, prior)
    all_rows, _ = there(tensor, model).own_rows(model, expected)
    for owner in np.unique(tensor.coordinates[0]):
        alone = tensor.take(np.flatnonzero(tensor.coordinates[0] == owner))
        assert (there(alone, model).own_rows(model, expected)[0][owner] == all_rows[owner]).all()


def test_designs_that_repeat_each_other_are_solved_as_on_processors():
    """Without a prior to speak of: the second pivot is zero, and raised."""
    cells = np.array([[0, 0, 0, 0], [0, 1, 2, 3]], np.int32)
    tensor = SparseTensor(cells, np.array([1.0, 2.0, 3.0, 6.0]), (Mode("m0", 1), Mode("m1", 4)))
    model = CPModel.zeros((1, 4), 2)
    model.factors[1][:] = 1.0
    expected = OwnPrior(mode=0, precisions=np.full(2, 1e-30), scatter=1.0)
    rows, _ = there(tensor, model).own_rows(model, expected)
    solved = solve_own(model, expected, Site(tensor, 1))
    np.testing.assert_allclose(rows, solved.factors[0], rtol=1e-6)
    np.testing.assert_allclose(rows.sum(), 3.0)


def test_what_kernels_do_not_know_is_left_to_processors():
    rng = np.random.default_rng(5)
    tensor, model = tensor_of(rng, 2), model_of("cp", 2, rng)
    site, plain = there(tensor, model), prior_of(model, 0, rng, "plain")
    noise = None, RowNoise(np.ones(SIZES[1]), np.ones(3))
    noisy = OwnPrior(mode=0, precisions=np.ones(3), scatter=1.0, row_noise=noise)
    assert site.own_rows(model, plain) is not None
    assert site.own_rows(model, noisy) is None
    assert Site(tensor, 1).own_rows(model, plain) is None
    wide = CPModel.zeros(SIZES[:2], 33)
    assert site.own_rows(wide, OwnPrior(mode=0, precisions=np.ones(33), scatter=1.0)) is None


# -- whole fits -----------------------------------------------------------------------------------


@pytest.fixture
def a_gpu(monkeypatch):
    """As if JAX's processor were one."""
    monkeypatch.setattr(on_jax, "accelerated", lambda: True)


PLANTED = sf.prepare.clip(
    sf.synthetic.cp((12, 8, 3), 2, entries=120, snr=5.0, seed=1).tensor, (-3.0, 3.0)
)


def fitted(kind, device, ranks=2, tensor=PLANTED, units=12, **settings):
    privacy = sf.Privacy(
        20.0,
        1e-6,
        unit="mode0",
        method=sf.PrivateAlternating(sweeps=2),
        public=sf.Public(labels=True, units=units, entries=120),
        seed=3,
        **settings,
    )
    return kind(ranks, privacy=privacy, device=device).fit(tensor)


@pytest.mark.parametrize("kind", [sf.CP, sf.Tucker])
def test_private_fits_agree_and_promise_the_same(a_gpu, kind):
    """Noise is drawn here for both, from one seed: only the sums beneath it are made elsewhere."""
    ours, theirs = (fitted(kind, device) for device in ("cpu", "gpu"))
    assert theirs.guarantee_ == ours.guarantee_
    np.testing.assert_allclose(theirs.model_.rows, ours.model_.rows, atol=1e-5)
    np.testing.assert_allclose(theirs.model_.biases, ours.model_.biases, atol=1e-5)


def test_what_is_too_large_is_said_before_a_charge(tmp_path, a_gpu, monkeypatch):
    ledger = tmp_path / "data.ledger"
    with pytest.raises(SettingError, match="what units add to cores of up to 128 numbers"):
        fitted(sf.Tucker, "gpu", (7, 7, 3), ledger=ledger)
    wide = sf.prepare.clip(sf.synthetic.cp((40, 40), 2, entries=120, seed=1).tensor, (-3.0, 3.0))
    with pytest.raises(SettingError, match="what units add to rows of up to 32 numbers"):
        fitted(sf.CP, "gpu", 33, wide, 40, ledger=ledger)
    monkeypatch.setattr(on_jax, "total_memory", lambda: 1000)
    with pytest.raises(SettingError, match="for sums of 120 entries of 12 x 8 x 3 levels"):
        fitted(sf.CP, "gpu", ledger=ledger)
    assert not ledger.exists()
    left = fitted(sf.CP, "auto")  # to the processors
    assert (left.model_.rows == fitted(sf.CP, "cpu").model_.rows).all()


@pytest.mark.parametrize("sizes", [(300, 5), (200, 9, 7), (60, 50, 6, 3)])
@pytest.mark.parametrize(("kind", "rank"), [("cp", 1), ("cp", 5), ("tucker", 2)])
def test_what_is_held_is_what_was_reckoned_before(sizes, kind, rank, monkeypatch):
    """All that lies on the device after a round, but for the room that chunks of entries have."""
    rng, taken = np.random.default_rng(0), []
    cells = np.stack([rng.integers(0, n, 400) for n in sizes]).astype(np.int32)
    cells = np.ascontiguousarray(cells[:, np.lexsort(cells[::-1])])
    modes = tuple(Mode(f"m{m}", n) for m, n in enumerate(sizes))
    tensor = SparseTensor(cells, rng.normal(size=400), modes, _checked=True)
    ranks = (rank,) * len(sizes)
    model = CPModel.zeros(sizes, rank) if kind == "cp" else TuckerModel.zeros(sizes, ranks)
    shape, looked_at = Shape.of(modes, ranks, kind), arrays.view
    monkeypatch.setattr(units_there, "_kernel", lambda *_: _NothingDone())
    monkeypatch.setattr(rows_there, "_kernel", lambda *_: _NothingDone())
    monkeypatch.setattr(arrays, "view", lambda made: taken.append(made.nbytes) or looked_at(made))
    site = DeviceSite(tensor, 1, shape, owned=True, blocks=len(sizes) - 1 + bool(shape.core_size))
    site.own_rows(model, OwnPrior(mode=0, precisions=np.ones(rank), scatter=1.0))
    for block in blocks_of(model, 0):
        levels = 1 if block == CORE else sizes[block]
        size = model.free_core.size if block == CORE else rank
        metric = padded_metric(np.ones((1, size)) if block == CORE else np.eye(size))
        site.unit_sums(
            model, block, Features(metric, 1.0, 1.0, 0.0), Weighting(np.ones(levels), 1.0, 1.0), 0
        )
    blocks = len(blocks_of(model, 0))
    entries = device.owned_bytes(shape, 400, blocks) - device._chunk_bytes(shape, private=True)
    assert sum(taken) <= entries + 2048 + 16 * blocks * max(sizes)  # and where each unit begins
    assert sum(taken) > entries / 4


class _NothingDone:
    def __getitem__(self, _):
        return lambda *_: None
