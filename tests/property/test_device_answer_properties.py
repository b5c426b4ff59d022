"""What a device answers beside sums of fits: predictions, lists, and tensors times directions.

Run on whatever JAX finds; here that is the processor, by the same source as on a GPU.
"""

from math import prod

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import sfumato as sf
from sfumato.data.tensor import Mode, SparseTensor
from sfumato.errors import SettingError
from sfumato.kernels import jax as on_jax
from sfumato.kernels.jax import entrywise, predictions
from sfumato.kernels.jax import power as power_there
from sfumato.kernels.numba import lists as lists_here
from sfumato.kernels.numba.lists import NOBODY, Held
from sfumato.models.multilinear import CPModel, TuckerModel
from sfumato.sites import device
from sfumato.solvers.power.on_device import DenseOnDevice, SparseOnDevice
from sfumato.solvers.power.tensors import DenseBlocks, DenseSymmetric, Sparse, dense_roundings

examples = settings(max_examples=6, deadline=None, database=None, derandomize=True)


@pytest.fixture
def a_gpu(monkeypatch):
    """As if JAX's processor were one, and few numbers worth to be copied there."""
    monkeypatch.setattr(on_jax, "accelerated", lambda: True)
    monkeypatch.setattr(device, "_WORTH_COPYING", 1)


# -- predictions and lists --------------------------------------------------------------------------


@pytest.mark.parametrize("order", [2, 3, 4])
@pytest.mark.parametrize("kind", ["cp", "tucker"])
@examples
@given(seed=st.integers(0, 10**6), number=st.sampled_from([0, 1, 7, 33]))
def test_values_are_those_of_the_processor(kind, order, seed, number):
    rng, sizes = np.random.default_rng(seed), (6, 5, 4, 3)[:order]
    model = CPModel.zeros(sizes, 3) if kind == "cp" else TuckerModel.zeros(sizes, (2, 3, 2, 1)[:order])
    for factor in model.factors:
        factor[:] = rng.normal(size=factor.shape)
    model.free_core[:] = rng.normal(size=model.free_core.shape)
    model.biases[:] = rng.normal(size=model.biases.shape)
    model = model.with_mean(0.4)
    cells = np.stack([rng.integers(0, n, number) for n in sizes]).astype(np.int32)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(entrywise, "CHUNK", 16)
        found = predictions.predict_cells(model, cells)
    assert found.dtype == model.dtype
    np.testing.assert_allclose(found, model.predict(cells), rtol=1e-4, atol=1e-4)


@examples
@given(seed=st.integers(0, 10**6), k=st.sampled_from([1, 3, 9]))
def test_lists_are_those_of_the_processor(seed, k):
    """Also with ties, with owners who hold everything, and with fewer levels than are asked for."""
    rng, owners, levels = np.random.default_rng(seed), 11, 7
    rows = rng.integers(-1, 2, (owners, 2)), rng.integers(-1, 2, (levels, 2))
    held = [np.flatnonzero(rng.random(levels) < share) for share in rng.random(owners)]
    held[0] = np.arange(levels)
    starts = np.concatenate([[0], np.cumsum([len(each) for each in held])]).astype(np.int64)
    given_both = *(part.astype(float) for part in rows), rng.integers(0, 2, levels).astype(float)
    given_both += Held(starts, np.concatenate(held).astype(np.int64)), k, 2
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(predictions, "_SCORES", 4 * levels)  # some owners at a time
        found = predictions.best_levels(*given_both)
    assert (found == lists_here.best_levels(*given_both)).all()
    assert (found[0] == NOBODY).all()
    part = Held(starts[4:], np.concatenate(held).astype(np.int64))  # of owners from the fifth on
    later = given_both[0][4:], *given_both[1:3], part, k, 2
    assert (predictions.best_levels(*later) == found[4:]).all()


RATINGS = sf.prepare.clip(sf.synthetic.cp((25, 12), 2, entries=220, snr=5.0, seed=1).tensor, (-3.0, 3.0))


def test_a_fit_predicts_and_lists_there_what_it_does_here(a_gpu, monkeypatch):
    model = sf.CP(2, solver=sf.ALS(sweeps=3)).fit(RATINGS)
    cells = {"mode0": [0, 3, 24], "mode1": [1, 2, 11]}
    here = model.predict(cells), model.predict(mode0=[1, 99], mode1=[2, 3], unseen="bias")
    lists = model.lists(3).levels, model.top("mode1", 4, mode0=3), model.top_all("mode1", 2)
    model.device = "gpu"
    made = []
    for name in ("predict_cells", "best_levels"):
        kernel = getattr(predictions, name)
        monkeypatch.setattr(
            predictions, name, lambda *a, kernel=kernel, name=name: made.append(name) or kernel(*a)
        )
    np.testing.assert_allclose(model.predict(cells), here[0], atol=1e-5)
    again = model.predict(mode0=[1, 99], mode1=[2, 3], unseen="bias")
    np.testing.assert_allclose(again, here[1], atol=1e-5)
    assert (model.lists(3).levels == lists[0]).all()
    top = model.top("mode1", 4, mode0=3)
    assert [label for label, _ in top] == [label for label, _ in lists[1]]
    table = model.top_all("mode1", 2)
    assert table.drop_columns("prediction") == lists[2].drop_columns("prediction")
    assert set(made) == {"predict_cells", "best_levels"}


def test_few_predictions_are_made_here(monkeypatch):
    monkeypatch.setattr(on_jax, "accelerated", lambda: True)
    assert not device.predicted_there("gpu", 10)
    assert device.predicted_there("gpu", 10**6)
    assert not device.predicted_there("cpu", 10**6)
    monkeypatch.setattr(on_jax, "accelerated", lambda: False)
    assert not device.predicted_there("auto", 10**6)
    with pytest.raises(SettingError, match="finds no GPU"):
        device.predicted_there("gpu", 10)


# -- tensors times directions -------------------------------------------------------------------------


@pytest.mark.parametrize("order", [3, 4])
@examples
@given(seed=st.integers(0, 10**6), restarts=st.sampled_from([1, 5]))
def test_a_symmetric_tensor_answers_as_on_the_processor(order, seed, restarts):
    rng, size = np.random.default_rng(seed), 4
    vectors = rng.normal(size=(3, size))
    letters = "abcd"[:order]
    tensor = np.einsum(",".join(f"z{each}" for each in letters) + f"->{letters}", *[vectors] * order)
    directions = rng.normal(size=(size, restarts))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(power_there, "PRODUCTS", 2 * size ** (order - 1))  # two directions at a time
        dense = DenseOnDevice(tensor, symmetric=True).power(directions)
    np.testing.assert_allclose(dense, DenseSymmetric(tensor).power(directions), rtol=1e-10, atol=1e-10)
    cells = np.stack(np.nonzero(tensor)).astype(np.int32)
    given_both = cells, tensor[tuple(cells)], tensor.shape
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(power_there, "_ENTRIES", 20 * restarts)
        sparse = SparseOnDevice(*given_both, symmetric=True).power(directions)
    wanted = Sparse(*given_both, symmetric=True).power(directions)
    np.testing.assert_allclose(sparse, wanted, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("shape", [(3, 5, 4), (4, 2, 3, 5)])
@examples
@given(seed=st.integers(0, 10**6))
def test_a_tensor_of_any_shape_answers_as_on_the_processor(shape, seed):
    rng = np.random.default_rng(seed)
    tensor = rng.normal(size=shape) * (rng.random(shape) < 0.6)
    directions = rng.normal(size=(sum(shape), 4))
    dense = DenseOnDevice(tensor, symmetric=False).power(directions)
    np.testing.assert_allclose(dense, DenseBlocks(tensor).power(directions), rtol=1e-10, atol=1e-10)
    cells = np.stack(np.nonzero(tensor)).astype(np.int32)
    sparse = SparseOnDevice(cells, tensor[tuple(cells)], shape, symmetric=False).power(directions)
    np.testing.assert_allclose(sparse, dense, rtol=1e-10, atol=1e-10)


@examples
@given(st.lists(st.integers(1, 60), min_size=3, max_size=6))
def test_terms_are_rounded_no_more_often_there_than_is_allowed_for(shape):
    """Once for each level of the modes that are summed over, and for each multiplication."""
    for target in range(len(shape)):
        others = [size for mode, size in enumerate(shape) if mode != target]
        sums = sum(size - 1 for size in others)
        assert sums + len(others) <= dense_roundings(shape)


def decomposed(tensor, device, **how):
    return sf.PowerMethod(2, restarts=4, iterations=8, device=device, **how).fit(tensor)


def test_components_are_the_same_wherever_they_are_found(a_gpu):
    truth = np.linalg.qr(np.random.default_rng(0).normal(size=(12, 2)))[0].T
    tensor = np.einsum("r,ri,rj,rk->ijk", [2.0, 1.0], truth, truth, truth)
    kept = np.stack(np.nonzero(abs(tensor) > 0.02))
    modes = tuple(Mode(name, 12) for name in "abc")
    sparse = SparseTensor(kept.astype(np.int32), tensor[tuple(kept)], modes)
    for what in (tensor, sparse):
        here, there = (decomposed(what, device) for device in ("cpu", "gpu"))
        np.testing.assert_allclose(there.weights_, here.weights_, rtol=1e-8)
        np.testing.assert_allclose(there.components_, here.components_, atol=1e-8)
    unit = sf.TensorEntry(0.1)
    for what in (tensor, sparse):
        private = {"privacy": sf.Privacy(5.0, 1e-6, unit=unit, seed=1)}
        here, there = (decomposed(what, device, **private) for device in ("cpu", "gpu"))
        np.testing.assert_allclose(there.weights_, here.weights_, atol=1e-6)
        assert there.guarantee_ == here.guarantee_


def test_where_there_is_no_gpu_it_is_said_before_a_charge(tmp_path, monkeypatch):
    monkeypatch.setattr(on_jax, "accelerated", lambda: False)
    ledger, tensor = tmp_path / "data.ledger", np.ones((3, 3, 3))
    privacy = sf.Privacy(5.0, 1e-6, unit=sf.TensorEntry(0.1), ledger=ledger)
    with pytest.raises(SettingError, match="finds no GPU"):
        decomposed(tensor, "gpu", privacy=privacy)
    assert not ledger.exists()
    with pytest.raises(SettingError, match="device"):
        decomposed(tensor, "tpu")
    assert prod(decomposed(tensor, "auto").weights_.shape) == 2
