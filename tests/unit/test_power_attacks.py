"""A private power method says nothing of its data, and spends nothing twice, whatever it is given."""

import copy
import pickle
from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse

import sfumato as sf
from sfumato.data.samples import open_samples
from sfumato.data.tensor import Mode, SparseTensor
from sfumato.errors import DataError, SettingError
from sfumato.privacy.ledger import BudgetError

RNG = np.random.default_rng(0)
SAMPLES = RNG.standard_normal((30, 4))
TENSOR = RNG.standard_normal((4, 4, 4))
STRANGE = (np.nan, np.inf, -np.inf, 1e308, 1e300, 1e160, 5e-324, -0.0)


def privacy(unit, **settings):
    given = {"epsilon": 1.0, "delta": 1e-5, "seed": 1, "public": sf.Public(entries=30)}
    return sf.Privacy(unit=unit, **{**given, **settings})


def blockwise(**settings):
    return sf.PowerMethod(1, 2, 2, samples=10, privacy=privacy(sf.Sample(1.0), **settings))


def sparse_of(array):
    cells = np.argwhere(np.ones_like(array)).T.astype(np.int32)
    modes = tuple(Mode(f"mode {m}", size) for m, size in enumerate(array.shape))
    return SparseTensor(cells, array.ravel(), modes)


def check_components(method):
    assert np.isfinite(method.weights_).all()
    for factor in method.factors_:
        np.testing.assert_allclose(np.linalg.norm(factor, axis=1), 1.0)


# -- tensors --------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", STRANGE)
@pytest.mark.parametrize("symmetric", [True, False])
def test_no_value_of_a_private_tensor_is_an_error(value, symmetric):
    """Values of 1e160 used to end in a direction of zero, and in an error after the budget was spent."""
    everywhere, once = np.full((4, 4, 4), value), TENSOR.copy()
    once[0, 1, 2] = value
    for tensor in (everywhere, once, sparse_of(once)):
        method = sf.PowerMethod(2, 3, 3, symmetric=symmetric, privacy=privacy(sf.TensorEntry()))
        check_components(method.fit(tensor))


@pytest.mark.parametrize("scale", [1e-300, 1e-160, 1.0, 1e160, 1e290])
def test_components_do_not_depend_on_the_scale_of_a_tensor(scale):
    """Squares of 1e160 are infinite and those of 1e-170 zero: components used to be zero or random."""
    axes = np.eye(4)[:2]
    tensor = scale * np.einsum("ni,nj,nk->ijk", axes, axes, axes)
    method = sf.PowerMethod(2, 5, 20).fit(tensor)
    assert sf.match_components(method.components_, axes).errors.max() < 1e-7
    np.testing.assert_allclose(method.weights_ / scale, 1.0)


def test_what_is_masked_is_not_read():
    with pytest.raises(DataError, match="masked"):
        sf.PowerMethod(1).fit(np.ma.masked_greater(TENSOR, 0))


@pytest.mark.parametrize("change", [1e-200, 1e200])
def test_a_change_out_of_range_is_refused(change):
    with pytest.raises(SettingError, match="other units"):
        sf.TensorEntry(change)


def test_whole_numbers_may_be_floats():
    given = sf.PowerMethod(2.0, 3.0, 2.0, privacy=privacy(sf.TensorEntry())).fit(TENSOR)
    same = sf.PowerMethod(2, 3, 2, privacy=privacy(sf.TensorEntry())).fit(TENSOR)
    np.testing.assert_array_equal(given.weights_, same.weights_)


def test_noise_as_printed_that_is_not_enough_is_refused():
    """Theorem 4.1 is false for an epsilon of thousands; the ledger says so before anything is drawn."""
    method = sf.PowerMethod(1, 1, 1, privacy=privacy(sf.TensorEntry(), epsilon=3000.0, analysis="paper"))
    with pytest.raises(BudgetError, match="Nothing was drawn"):
        method.fit(TENSOR)


# -- samples --------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", STRANGE)
@pytest.mark.parametrize("whiten", [True, False])
@pytest.mark.parametrize("as_given", [np.asarray, scipy.sparse.csr_array])
def test_no_sample_is_an_error(value, whiten, as_given):
    samples = SAMPLES.copy()
    samples[3] = value
    method = sf.PowerMethod(2, 3, 2, whiten=whiten, privacy=privacy(sf.Sample(1.0)))
    check_components(method.fit_stream(as_given(samples)))


@pytest.mark.parametrize("value", [*STRANGE, -3.0, 0.5, 2.7, 1e9, 1e100, 1e120])
@pytest.mark.parametrize("whiten", [True, False])
def test_no_document_is_an_error(value, whiten):
    """A count of 1e120 used to be an error that one document more would raise."""
    counts = RNG.poisson(1.0, (30, 4)).astype(float)
    counts[3, 1] = value
    method = sf.PowerMethod(2, 3, 2, moment="documents", whiten=whiten, privacy=privacy(sf.Sample()))
    check_components(method.fit_stream(counts))


@pytest.mark.parametrize("norm", [1e-60, 1e60, 1e150])
def test_a_norm_out_of_range_is_refused_before_anything_is_spent(norm, tmp_path):
    ledger = tmp_path / "ledger"
    method = sf.PowerMethod(1, 1, 1, privacy=privacy(sf.Sample(norm), ledger=ledger))
    with pytest.raises(SettingError, match="other units"):
        method.fit_stream(SAMPLES)
    assert not ledger.exists()


def test_that_there_is_no_sample_does_not_show():
    """The neighbour of a single sample is none at all."""
    for samples in (SAMPLES[:0], SAMPLES[:1], scipy.sparse.csr_array((0, 4))):
        method = sf.PowerMethod(1, 1, 2, privacy=privacy(sf.Sample(1.0)))
        check_components(method.fit_stream(samples))
    check_components(blockwise().fit_stream([SAMPLES[:0]] * 3, reuse=False))
    check_components(blockwise().fit_stream(iter([SAMPLES[:0]] * 3), reuse=False))
    stepwise = blockwise()
    for _ in range(3):
        stepwise.partial_fit(SAMPLES[:0])
    assert stepwise.finished_
    with pytest.raises(DataError, match="no samples"):
        open_samples(SAMPLES[:0])


# -- blocks ---------------------------------------------------------------------------------------


def broken_after(array):
    yield array
    raise OSError("the disk went away")


def test_a_block_that_failed_does_not_count_when_it_is_given_again():
    """Its sum used to stay behind: every sample then counted twice under noise for once."""
    blocks = [SAMPLES[i : i + 10] for i in (0, 10, 20)]
    once, again = blockwise(), blockwise()
    for block in blocks:
        once.partial_fit(block)
        with pytest.raises(OSError, match="disk"):
            again.partial_fit(broken_after(block))
        again.partial_fit(block)
    assert once.finished_
    assert again.finished_
    np.testing.assert_array_equal(again.weights_, once.weights_)
    np.testing.assert_array_equal(again.components_, once.components_)


def test_no_sum_without_noise_is_left_in_what_was_fitted():
    """The last one used to be, and went into every pickle."""
    method = blockwise()
    for i in (0, 10, 20):
        method.partial_fit(SAMPLES[i : i + 10])
    written = pickle.dumps(method)
    assert method.fitted_components_.vectors[0].tobytes() in written
    online = method.online_.machine
    directions = online.state.directions  # those that the last question was about
    short = SAMPLES[20:] / np.maximum(1.0, np.linalg.norm(SAMPLES[20:], axis=1, keepdims=True))
    exact = ((short @ directions) ** 3).sum(axis=0)
    held = [
        value
        for part in (online, online._running)
        for value in vars(part).values()
        if isinstance(value, np.ndarray | float)
    ]
    assert not any(np.shape(value) == exact.shape and np.allclose(value, exact) for value in held)


def test_a_private_stream_is_not_copied_between_blocks():
    """Two copies that read one block would draw noise for it twice."""
    method = blockwise()
    for i in (0, 10, 20):
        method.partial_fit(SAMPLES[i : i + 10])
        if not method.finished_:
            with pytest.raises(SettingError, match="cannot be copied"):
                copy.deepcopy(method)
    np.testing.assert_array_equal(copy.deepcopy(method).weights_, method.weights_)


def test_how_many_samples_there_were_does_not_show():
    with pytest.raises(DataError, match="after 2 of 3 questions") as short:
        blockwise().fit_stream([SAMPLES[:17], SAMPLES[:6]], reuse=False)
    assert not {"17", "6", "23"} & set(str(short.value).replace(":", " ").split())
    assert not hasattr(blockwise().partial_fit(SAMPLES[:17]), "n_samples_seen_")


def test_blocks_are_charged_once_and_a_second_fit_again(tmp_path):
    ledger, limit = tmp_path / "ledger", sf.Budget(1.2, 1e-5)
    method = blockwise(ledger=ledger, limit=limit, seed=None)
    for _ in range(4):  # the fourth is left unread
        method.partial_fit(SAMPLES[:10])
    assert len(ledger.read_text().splitlines()) == 2  # what it is about, and one charge
    with pytest.raises(BudgetError, match="Nothing was drawn"):
        blockwise(ledger=ledger, limit=limit, seed=None).partial_fit(SAMPLES[:10])
    assert len(ledger.read_text().splitlines()) == 2


def test_a_copy_of_the_settings_starts_anew(tmp_path):
    sklearn = pytest.importorskip("sklearn.base")
    method = blockwise(ledger=tmp_path / "ledger").partial_fit(SAMPLES[:10])
    fresh = sklearn.clone(method)
    assert not hasattr(fresh, "online_")
    fresh.partial_fit(SAMPLES[10:20])
    assert fresh.guarantee_.fits == 2
    assumed = fresh.guarantee_.assumptions
    assert replace(fresh.guarantee_, fits=1, assumptions=assumed[:-1]) == method.guarantee_
