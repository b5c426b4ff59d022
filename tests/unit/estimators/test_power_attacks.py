"""A private power method says nothing of its data, and spends nothing twice, whatever it is given."""

import copy
import pickle
from dataclasses import replace
from itertools import permutations

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import scipy.sparse

import sfumato as sf
from sfumato.data.samples import open_samples
from sfumato.data.tensor import Mode, SparseTensor
from sfumato.errors import DataError, SettingError
from sfumato.fit.power import Decomposition, Online
from sfumato.privacy.ledger import BudgetError
from sfumato.privacy.mechanisms import Noisy
from sfumato.solvers.power.iteration import PowerSettings
from sfumato.solvers.power.moments import SampleMoment
from sfumato.solvers.protocol import Run

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
    with pytest.raises(SettingError, match="change must be a number between 1e-60 and 1e"):
        sf.TensorEntry(change)


def test_whole_numbers_may_be_of_numpy_but_are_no_floats():
    counts = np.int8(2), np.uint16(3), np.int64(2)
    given = sf.PowerMethod(*counts, privacy=privacy(sf.TensorEntry())).fit(TENSOR)
    same = sf.PowerMethod(2, 3, 2, privacy=privacy(sf.TensorEntry())).fit(TENSOR)
    np.testing.assert_array_equal(given.weights_, same.weights_)
    with pytest.raises(SettingError, match=r"n_components must be a whole number from 1 on, got 2\.0"):
        sf.PowerMethod(2.0).fit(TENSOR)


def test_noise_as_printed_that_is_not_enough_is_refused():
    """Theorem 4.1 is false for an epsilon of thousands; the ledger says so before anything is drawn."""
    method = sf.PowerMethod(1, 1, 1, privacy=privacy(sf.TensorEntry(), epsilon=3000.0, analysis="paper"))
    with pytest.raises(BudgetError, match="Nothing was drawn"):
        method.fit(TENSOR)


@pytest.fixture
def asked(monkeypatch):
    """All questions of private fits, with the answer before noise, and the noise."""
    seen = []
    released = Decomposition.released

    def recorded(task, query, values, release):
        noisy = released(task, query, values, release)
        seen.append((task, query, np.array(values), noisy))
        return noisy

    monkeypatch.setattr(Decomposition, "released", recorded)
    return seen


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("large", [2.0**21, 2.0**53, 2.0**80, 1e100, 1e308])
def test_no_entry_is_so_large_that_noise_vanishes_beside_it(large, symmetric, asked):
    """At 2^80 every answer used to come out without its noise: neighbours were told with certainty."""
    spiked = TENSOR.copy()
    spiked[0, 0, 0] = large
    unit = sf.TensorEntry(0.1)
    for tensor in (np.full((4, 4, 4), large), spiked):
        for given in (tensor, sparse_of(tensor)):
            method = sf.PowerMethod(2, 3, 3, symmetric=symmetric, privacy=privacy(unit))
            check_components(method.fit(given))
    assert len(asked) == 4 * 8
    for _, _, exact, noisy in asked:
        assert np.abs(exact).max() <= 4**1.5 * unit.most * unit.change * (1 + 1e-9)
        assert np.spacing(np.abs(exact).max()) < 2.0**-20 * noisy.deviation
        assert (noisy.values != exact).all()


@pytest.mark.parametrize("printed", [False, True])
@pytest.mark.parametrize("symmetric", [True, False])
def test_no_neighbour_of_a_tensor_of_any_size_moves_an_answer_further(symmetric, printed, asked):
    """From outside: fits on neighbours with the same seed are asked the same first question."""
    rng = np.random.default_rng(1)
    unit = sf.TensorEntry(0.7, printed=printed)
    for scale in (0.0, 1.0, 2.0**19, 2.0**20, 2.0**21, 2.0**80):
        tensor = scale * rng.choice([-0.7, 0.7], (3, 3, 3))
        cells = [(0, 1, 2), (0, 0, 1), (1, 1, 1), (2, 1, 0)]
        for cell, as_given in ((cell, kind) for cell in cells for kind in (np.asarray, sparse_of)):
            places = list(permutations(cell)) if symmetric or printed else [cell]
            for permuted in set(places) if symmetric else ():
                tensor[permuted] = tensor[cell]
            after = tensor.copy()
            for permuted in places if printed else set(places):
                after[permuted] += 0.7
            asked.clear()
            for given in (tensor, after):
                method = sf.PowerMethod(1, 2, 1, symmetric=symmetric, privacy=privacy(unit))
                method.fit(as_given(given))
            (task, query, before, _), (_, again, moved, _) = asked[0], asked[2]
            np.testing.assert_array_equal(query.directions, again.directions)
            assert np.linalg.norm(moved - before) <= task.sensitivity(query)


def test_guarantees_of_tensors_say_what_changes_and_where_values_are_cut():
    for symmetric, printed in ((True, False), (False, False), (True, True), (False, True)):
        unit = sf.TensorEntry(0.5, printed=printed)
        method = sf.PowerMethod(1, 1, 1, symmetric=symmetric, privacy=privacy(unit)).fit(TENSOR)
        said = replace(unit, symmetric=symmetric)
        assert method.guarantee_.unit == str(said)
        assert method.guarantee_.neighbours == said.neighbours
        assert "cut at 524288 either way" in method.guarantee_.method
    with pytest.raises(SettingError, match="permutations of an index"):
        sf.PowerMethod(1, 1, 1, symmetric=False, privacy=privacy(unit)).fit(TENSOR[:, :, :3])


def test_entries_and_cells_do_not_add_up_in_a_ledger(tmp_path):
    ledger = tmp_path / "ledger"
    given = privacy(sf.TensorEntry(), ledger=ledger)
    sf.PowerMethod(1, 1, 1, privacy=given).fit(TENSOR)
    with pytest.raises(BudgetError, match="cannot add up"):
        sf.PowerMethod(1, 1, 1, symmetric=False, privacy=given).fit(TENSOR)


def test_sparse_tensors_beyond_what_is_proven_are_refused(monkeypatch, tmp_path):
    """Before anything is charged."""
    monkeypatch.setattr("sfumato.estimators.power_tensors.MOST_ENTRIES", 63)
    ledger = tmp_path / "ledger"
    for symmetric in (True, False):
        method = sf.PowerMethod(
            1, 1, 1, symmetric=symmetric, privacy=privacy(sf.TensorEntry(), ledger=ledger)
        )
        with pytest.raises(DataError, match="up to 63 entries"):
            method.fit(sparse_of(TENSOR))
    assert not ledger.exists()


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


@pytest.mark.parametrize("norm", [1e-60, 1e60])
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


EMPTY = {
    "list": list,
    "iterator": lambda: iter(()),
    "function": lambda: lambda: iter(()),
    "table of lists": lambda: pa.table({"vector": pa.array([], pa.list_(pa.float64()))}),
}


@pytest.mark.parametrize("source", EMPTY)
def test_a_stream_without_a_single_array_is_one_without_samples(source, tmp_path):
    """The proof says that it raises no error, and it did. How wide samples are has to be said, then."""
    ledger = tmp_path / "ledger"
    given = privacy(sf.Sample(1.0), ledger=ledger)
    if source != "iterator":  # which is read once
        with pytest.raises(DataError, match="features="):
            sf.PowerMethod(1, 1, 2, privacy=given).fit_stream(EMPTY[source]())
        assert not ledger.exists()
        method = sf.PowerMethod(1, 1, 2, features=4, privacy=given)
        check_components(method.fit_stream(EMPTY[source]()))
        same = sf.PowerMethod(1, 1, 2, privacy=given).fit_stream(SAMPLES[:0])
        np.testing.assert_array_equal(method.weights_, same.weights_)
    stepwise = sf.PowerMethod(1, 2, 2, samples=10, features=4, privacy=given)
    for _ in range(3):
        stepwise.partial_fit(EMPTY[source]())
    assert stepwise.finished_
    with pytest.raises(DataError, match="no samples"):
        sf.PowerMethod(1, samples=10, features=4).fit_stream(EMPTY[source](), reuse=False)


def test_empty_parquet_of_lists_is_a_stream_without_samples(tmp_path):
    pq.write_table(EMPTY["table of lists"](), tmp_path / "none.parquet")
    method = sf.PowerMethod(1, 1, 2, features=4, privacy=privacy(sf.Sample(1.0)))
    check_components(method.fit_stream(tmp_path / "none.parquet"))


def test_blocks_of_no_sample_or_of_one_are_blocks():
    """An empty list too, once it is known how wide samples are."""
    for blocks in ([SAMPLES[:1], [], SAMPLES[:0]], [SAMPLES[:0], SAMPLES[:1], []]):
        method = blockwise()
        for block in blocks:
            method.partial_fit(block)
        assert method.finished_
        check_components(method)
    check_components(blockwise().fit_stream([SAMPLES[:1], SAMPLES[:0], SAMPLES[:1]], reuse=False))


def test_features_that_are_not_there_are_refused():
    for wrong in (3, 5):
        with pytest.raises(DataError, match=f"4 features here, but {wrong} are expected"):
            sf.PowerMethod(1, features=wrong).fit_stream(SAMPLES)
    with pytest.raises(SettingError, match="features"):
        sf.PowerMethod(1, features=0).fit_stream(SAMPLES)


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


class Stumbling:
    """A callback that raises an error the first time that it is told of each question."""

    def __init__(self, error):
        self._error, self._told = error, set()

    def __call__(self, done, _rounds, _info):
        if done not in self._told:
            self._told.add(done)
            raise self._error


@pytest.mark.parametrize(
    "error", [ValueError("told"), KeyboardInterrupt(), StopIteration(), SystemExit()]
)
def test_a_block_answers_one_question_whatever_progress_raises(error, asked):
    """It used to count as used, and given again to answer the next question too: two for one charge."""
    method = blockwise().set_params(progress=Stumbling(error))
    for i in (0, 10, 20):
        answered = len(asked)
        with pytest.raises(type(error)):
            method.partial_fit(SAMPLES[i : i + 10])
        method.partial_fit(SAMPLES[i : i + 10])
        (_, first, sums, _), (_, second, same, _) = asked[answered:]
        np.testing.assert_array_equal(first.directions, second.directions)  # the same question
        assert first.kind == second.kind
        np.testing.assert_array_equal(sums, same)
    assert method.finished_
    check_components(method)


def test_the_machine_itself_counts_a_block_once_its_callback_has_returned():
    """Whoever drives it: the block that is given again answers the question that it was given for."""
    settings = PowerSettings((4,), 3, 1, 2, 2)
    machine = Online(settings, Run(), SampleMoment(3, 1.0), None, Stumbling(ValueError("told")))
    questions = []

    def release(query, total):
        questions.append(query)
        return Noisy(total, 1.0)

    for number in range(settings.rounds):
        with pytest.raises(ValueError, match="told"):
            machine.add_block([SAMPLES[:10]], release)
        assert machine.state.answered == number
        machine.add_block([SAMPLES[:10]], release)
        assert machine.state.answered == number + 1
        first, second = questions[-2:]
        np.testing.assert_array_equal(first.directions, second.directions)
    assert machine.done


def test_an_interruption_after_the_answer_does_not_use_a_block_up(monkeypatch, asked):
    method = blockwise().partial_fit(SAMPLES[:10])
    with monkeypatch.context() as patched:
        patched.setattr(sf.PowerMethod, "_keep", raising(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            method.partial_fit(SAMPLES[10:20])
    method.partial_fit(SAMPLES[10:20])
    (_, first, _, _), (_, second, _, _) = asked[1:]
    np.testing.assert_array_equal(first.directions, second.directions)


def raising(error):
    def raise_it(*_):
        raise error

    return raise_it


@pytest.mark.parametrize("failing", ["progress", "iterator", "too few"])
def test_a_stream_that_failed_is_not_gone_on_with(failing, tmp_path):
    """Its first blocks used to stay answered: given to partial_fit, they answered once more."""
    ledger = tmp_path / "ledger"
    blocks = [SAMPLES[:10], SAMPLES[10:20], SAMPLES[20:]]
    given = {"progress": blocks, "iterator": broken_after(blocks[0]), "too few": blocks[:2]}[failing]
    method = blockwise(ledger=ledger)
    if failing == "progress":
        told = iter([False, True])
        method.set_params(progress=lambda *_: next(told) and raising(OSError("told"))())
    with pytest.raises((OSError, DataError)):
        method.fit_stream(given, reuse=False)
    method.set_params(progress=None).partial_fit(blocks[0])
    assert len(ledger.read_text().splitlines()) == 3  # charged anew
    assert method.guarantee_.fits == 2


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
            for again in (copy.deepcopy, pickle.dumps, lambda method: copy.copy(method.online_)):
                with pytest.raises(SettingError, match="cannot be copied"):
                    again(method)
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
    promised, before = fresh.guarantee_, method.guarantee_
    assert promised.ledger_mark != before.ledger_mark  # one charge more
    others = {"fits": 1, "assumptions": promised.assumptions[:-1], "ledger_mark": before.ledger_mark}
    assert replace(promised, **others) == before
