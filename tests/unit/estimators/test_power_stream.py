"""The online method against Algorithm 1 in loops over explicit moments of the same samples.

Algorithm 2 as printed has three slips. Each would fail ``test_online_agrees_with_algorithm_1``, as
``test_each_misprint_would_be_noticed`` makes sure:

- step 6 adds x_i (of some other sample) where x_l belongs: the sum is then no moment at all, and even
  the first component is wrong;
- step 7 takes what was found off by xi_j = v_j' (accumulator) instead of v_j' u_t: the first component
  comes out right, the second does not;
- the weight is that of the last iterate but one: vectors agree, weights do not (before convergence,
  which is why only three iterations are made).
"""

import tracemalloc
from dataclasses import replace
from itertools import repeat

import numpy as np
import pytest
import scipy.sparse
from power_reference import (
    brought_down,
    empirical_moment,
    orthonormal,
    planted,
    slanted,
    slow_method,
    slow_whitening,
    taken_back,
)

import sfumato as sf
from sfumato.errors import DataError
from sfumato.fit.power import carry_out_power, from_stream
from sfumato.solvers.power import iteration as power
from sfumato.solvers.power.iteration import PowerSettings, Query, components
from sfumato.solvers.power.moments import SampleMoment
from sfumato.solvers.protocol import Run

MAKERS = {"dense": np.asarray, "sparse": scipy.sparse.csr_array}
CLOSE = {np.float64: 1e-8, np.float32: 1e-5}  # products of float32 samples are float32


def mixtures(n, size=5, sources=3, seed=0, noise=0.05, mixing=orthonormal):
    """Mixtures of independent sources with skewed laws, and noise."""
    rng = np.random.default_rng(seed)
    each = (rng.exponential(size=(n, sources)) - 1.0) * np.linspace(1.0, 0.8, sources)
    return each @ mixing(size, sources) + noise * rng.standard_normal((n, size))


def starts_and_result(batches, settings, moment, misprint=None):
    """What the method finds, and the directions that each component (and the whitening) began with."""
    asked, answers = [], from_stream(lambda: batches, moment)

    def answer(query):
        asked.append(query)
        if misprint == "weight" and query.kind == "weights":
            query = Query(query.kind, asked[-2].directions, query.basis)
        return answers(query)

    found = components(carry_out_power(settings, Run(), answer))
    begun = [
        q.directions
        for q, before in zip(asked, [None, *asked], strict=False)
        if before is None or before.kind == "weights" or (q.kind != before.kind == "second moment")
    ]
    return begun, found


def difference(found, weights, vectors):
    return max(np.abs(found.weights / weights - 1).max(), np.abs(found.vectors[0] - vectors).max())


def compared(order, dtype=np.float64, make=np.asarray, misprint=None, moment=SampleMoment):
    samples = mixtures(60).astype(dtype)
    settings = PowerSettings((5,), order, components=3, restarts=4, iterations=3)
    batches = [make(samples[:17]), make(samples[17:18]), make(samples[18:])]
    starts, found = starts_and_result(batches, settings, moment(order), misprint)
    slow = slow_method(repeat(empirical_moment(samples, order)), starts, settings.iterations)
    return difference(found, *slow)


@pytest.mark.parametrize("order", [3, 4])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("kind", ["dense", "sparse"])
def test_online_agrees_with_algorithm_1(order, dtype, kind):
    assert compared(order, dtype, MAKERS[kind]) < CLOSE[dtype]


class OtherSample(SampleMoment):
    """Step 6 as printed: a sample other than the one that was multiplied is added."""

    def summed(self, prepared, query):
        if query.kind != "directions":
            return super().summed(prepared, query)
        return np.roll(prepared, 1, axis=0).T @ (prepared @ query.directions) ** (self.order - 1)


def deflate_by_accumulator(monkeypatch):
    """Step 7 as printed."""
    right = power._power_step

    def wrong(state, step, answer):
        taken_off = power._deflation(replace(state, directions=answer.values))
        moved = replace(answer, values=answer.values - taken_off + power._deflation(state))
        return right(state, step, moved)

    monkeypatch.setattr(power, "_power_step", wrong)


@pytest.mark.parametrize("misprint", ["step 6", "step 7", "weight"])
@pytest.mark.parametrize("order", [3, 4])
def test_each_misprint_would_be_noticed(order, misprint, monkeypatch):
    if misprint == "step 7":
        deflate_by_accumulator(monkeypatch)
    moment = OtherSample if misprint == "step 6" else SampleMoment
    assert compared(order, misprint=misprint, moment=moment) > 1e-3


@pytest.mark.parametrize("order", [3, 4])
@pytest.mark.parametrize("sources", [3, 5])
def test_whitened_online_agrees_too(order, sources):
    samples = mixtures(300, sources=sources, mixing=slanted)
    settings = PowerSettings((5,), order, sources, restarts=8, iterations=4, subspace=6)
    starts, found = starts_and_result([samples[:100], samples[100:]], settings, SampleMoment(order))
    second, tensor = samples.T @ samples / len(samples), empirical_moment(samples, order)
    basis, inverse = slow_whitening(repeat(second), starts[0], 6)
    weights, vectors = slow_method(repeat(brought_down(tensor, basis)), starts[1:], 4)
    assert difference(found, *taken_back(weights, vectors, inverse, order)) < 1e-8


@pytest.mark.parametrize("kind", ["dense", "sparse"])
@pytest.mark.parametrize("order", [3, 4])
def test_stream_and_tensor_fits_agree(kind, order):
    """The estimator's two doors, run until nothing moves any more."""
    samples = mixtures(400, size=4)
    settings = {"restarts": 20, "iterations": 100, "seed": 3}
    stream = sf.PowerMethod(3, order=order, **settings).fit_stream(MAKERS[kind](samples))
    tensor = sf.PowerMethod(3, **settings).fit(empirical_moment(samples, order))
    matching = sf.match_components(stream.components_, tensor.components_)
    np.testing.assert_array_equal(matching.order, range(3))
    assert matching.errors.max() < 1e-8
    np.testing.assert_allclose(stream.weights_, tensor.weights_, rtol=1e-8)


def test_whitened_stream_and_tensor_fits_agree():
    samples = mixtures(400, size=4, sources=4, mixing=slanted)
    stream = sf.PowerMethod(4, iterations=60, whiten=True).fit_stream(samples)
    second = samples.T @ samples / len(samples)
    tensor = sf.PowerMethod(4, iterations=60, whiten=second).fit(empirical_moment(samples, 3))
    matching = sf.match_components(stream.components_, tensor.components_)
    assert matching.errors.max() < 1e-8
    np.testing.assert_allclose(stream.weights_, tensor.weights_[np.argsort(matching.order)], rtol=1e-8)


# -- each question answered by samples of its own ---------------------------------------------------


def slow_blocks(samples, each, settings, starts):
    """Algorithm 1 whose every question is put to the moment of the next ``each`` samples."""
    blocks = iter([samples[i : i + each] for i in range(0, len(samples) - each + 1, each)])
    if not settings.subspace:
        moments = (empirical_moment(block, settings.order) for block in blocks)
        return slow_method(moments, starts, settings.iterations, settings.average)
    seconds = (block.T @ block / len(block) for block in blocks)
    basis, inverse = slow_whitening(seconds, starts[0], settings.subspace)
    moments = (brought_down(empirical_moment(block, settings.order), basis) for block in blocks)
    weights, vectors = slow_method(moments, starts[1:], settings.iterations, settings.average)
    return taken_back(weights, vectors, inverse, settings.order)


def recorded_starts(method, samples, monkeypatch):
    """Directions that each component of a read-once stream begins with."""
    asked, right = [], power.ask

    def recording(state):
        query = right(state)
        if not asked or asked[-1][0] != state.answered:
            asked.append((state.answered, state, query))
        return query

    monkeypatch.setattr("sfumato.fit.power.ask", recording)
    method.fit_stream(samples, reuse=False)
    monkeypatch.undo()
    return asked[0][1].settings, [q.directions for n, state, q in asked if n == 0 or state.step == 0]


@pytest.mark.parametrize("order", [3, 4])
@pytest.mark.parametrize("average", [True, False])
@pytest.mark.parametrize("whiten", [True, False])
def test_read_once_agrees_with_blocks_one_after_the_other(order, average, whiten, monkeypatch):
    samples, each = mixtures(900), 40
    method = sf.PowerMethod(3, 4, 4, order=order, samples=each, average=average, whiten=whiten)
    settings, starts = recorded_starts(method, samples, monkeypatch)
    weights, vectors = slow_blocks(samples, each, settings, starts)
    np.testing.assert_allclose(method.components_, vectors, atol=1e-10)
    np.testing.assert_allclose(method.weights_, weights, rtol=1e-9)
    assert method.n_samples_seen_ == each * settings.rounds


@pytest.mark.parametrize("kind", ["dense", "sparse"])
@pytest.mark.parametrize("chunks", [1, 7, 40, 1000])
def test_any_chunks_are_the_same_stream(kind, chunks):
    samples = mixtures(700)
    once = sf.PowerMethod(3, 4, 4, samples=40).fit_stream(samples, reuse=False)
    parts = sf.PowerMethod(3, 4, 4, samples=40)
    for start in range(0, len(samples), chunks):
        parts.partial_fit(MAKERS[kind](samples[start : start + chunks]))
    assert parts.finished_
    np.testing.assert_allclose(parts.components_, once.components_, atol=1e-12)
    np.testing.assert_allclose(parts.weights_, once.weights_, rtol=1e-12)
    assert parts.n_samples_seen_ == once.n_samples_seen_ == 600


def test_sources_of_a_stream_are_the_same_stream(tmp_path):
    samples = mixtures(700)
    np.save(tmp_path / "samples.npy", samples)
    wanted = sf.PowerMethod(3, 4, 4).fit_stream(samples)
    sources = {
        "path": tmp_path / "samples.npy",
        "memory map": np.load(tmp_path / "samples.npy", mmap_mode="r"),
        "list": [samples[:100], samples[100:]],
        "function": lambda: iter([samples[:650], samples[650:]]),
        "sparse": scipy.sparse.coo_array(samples),
    }
    for name, source in sources.items():
        found = sf.PowerMethod(3, 4, 4).fit_stream(source)
        np.testing.assert_allclose(found.components_, wanted.components_, atol=1e-10, err_msg=name)


def test_samples_are_shared_out_where_no_number_is_given():
    samples = mixtures(615)
    given = sf.PowerMethod(3, 4, 4, samples=41).fit_stream(samples, reuse=False)  # 15 questions
    shared = sf.PowerMethod(3, 4, 4).fit_stream(samples, reuse=False)
    np.testing.assert_array_equal(shared.components_, given.components_)


def test_components_come_one_after_the_other():
    samples, method = mixtures(600), sf.PowerMethod(3, 4, 4, samples=40)
    numbers = []
    for start in range(0, 600, 100):
        method.partial_fit(samples[start : start + 100])
        numbers.append((len(method.weights_), method.finished_))
    assert numbers == [(0, False), (1, False), (1, False), (2, False), (2, False), (3, True)]
    before = method.components_.copy()
    method.partial_fit(np.full((5, 5), np.nan))  # left unread
    np.testing.assert_array_equal(method.components_, before)


def test_a_batch_that_cannot_be_used_changes_nothing():
    samples = mixtures(700)
    once = sf.PowerMethod(3, 4, 4, samples=40).fit_stream(samples, reuse=False)
    bad = samples[100:120].copy()
    bad[7, 2] = np.inf
    parts = sf.PowerMethod(3, 4, 4, samples=40).partial_fit(samples[:100])
    with pytest.raises(sf.DataError, match=r"sample 107 of the stream .* at feature 2"):
        parts.partial_fit(bad)
    parts.partial_fit(samples[100:])
    np.testing.assert_allclose(parts.components_, once.components_, atol=1e-12)


def test_a_fit_begins_anew():
    samples, method = mixtures(700), sf.PowerMethod(3, 4, 4, samples=40)
    method.partial_fit(samples[:90]).fit_stream(samples)
    assert not hasattr(method, "online_")
    method.partial_fit(samples)
    fresh = sf.PowerMethod(3, 4, 4, samples=40).partial_fit(samples)
    np.testing.assert_array_equal(method.components_, fresh.components_)


def test_float32_sums_do_not_lose_what_many_batches_add():
    """The first of 2,001 batches is much larger than the others, which would vanish in float32."""
    first, other = np.array([[1000.0, 1000.0]], np.float32), np.array([[5.0, 0.0]], np.float32)
    batches = [first, *[other] * 2000]
    stream = sf.PowerMethod(1, 2, 5).fit_stream(batches)
    tensor = sf.PowerMethod(1, 2, 5).fit(empirical_moment(np.vstack(batches), 3))
    np.testing.assert_allclose(stream.components_, tensor.components_, atol=1e-6)
    assert stream.components_[0, 0] - stream.components_[0, 1] > 1e-5  # what the others add


def test_memory_does_not_grow_with_the_stream():
    """Peaks of what is held, from four and from forty batches of 400 KB each."""

    def peak(batches):
        one = mixtures(1000, size=50)
        stream = lambda: (one.copy() for _ in range(batches))  # noqa: E731
        tracemalloc.start()
        sf.PowerMethod(3, 4, 2, whiten=True).fit_stream(stream)
        highest = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return highest

    peak(4)  # what is loaded once
    assert peak(40) < peak(4) + 100_000


def test_recovery_improves_with_samples():
    """Planted mixtures: the error falls about as one over the root of the number of samples."""
    truth = slanted(5, 3)
    errors = [
        sf.match_components(
            sf.PowerMethod(3, whiten=True).fit_stream(mixtures(n, seed=n, mixing=slanted)).components_,
            truth,
        ).errors.max()
        for n in (1_000, 64_000)
    ]
    assert errors[1] < errors[0] / 3
    assert errors[1] < 0.05


def test_planted_tensor_of_samples_is_found_exactly():
    """Samples that are the components themselves: their moment is a tensor of low rank."""
    vectors = np.linalg.qr(np.random.default_rng(0).standard_normal((6, 4))).Q.T
    lengths = np.array([2.0, 1.5, 1.2, 1.0])
    method = sf.PowerMethod(4).fit_stream(lengths[:, None] * vectors)
    np.testing.assert_allclose(np.sort(method.weights_)[::-1], lengths**3 / 4, rtol=1e-9)
    assert sf.match_components(method.components_, vectors).errors.max() < 1e-9
    np.testing.assert_allclose(method.to_tensor(), planted(lengths**3 / 4, vectors, 3), atol=1e-9)


@pytest.mark.parametrize("error", [ValueError("told"), KeyboardInterrupt()])
def test_what_failed_on_the_way_leaves_no_samples_behind(error):
    """A callback, an iterator or a sample that is an error: given again, samples count once."""
    samples = np.random.default_rng(0).exponential(size=(90, 4))
    spoilt = samples.copy()
    spoilt[75] = np.nan
    told = []

    def stumbling(done, _rounds, _info):
        if done not in told:
            told.append(done)
            raise error

    def broken(rows):
        yield rows
        raise error

    undisturbed = sf.PowerMethod(1, 2, 2, samples=30)
    disturbed = sf.PowerMethod(1, 2, 2, samples=30, progress=stumbling)
    for rows, questions in ((slice(0, 40), 1), (slice(40, 90), 2)):
        undisturbed.partial_fit(samples[rows])
        for _ in range(questions):  # at each of them the callback stumbles once
            with pytest.raises(type(error)):
                disturbed.partial_fit(samples[rows])
        if questions == 1:  # after the last one nothing more is read
            with pytest.raises(type(error)):
                disturbed.partial_fit(broken(samples[rows]))
        else:
            with pytest.raises(DataError, match="sample 75"):
                disturbed.partial_fit(spoilt[rows])
        disturbed.partial_fit(samples[rows])
        assert disturbed.n_samples_seen_ == undisturbed.n_samples_seen_
    np.testing.assert_array_equal(disturbed.components_, undisturbed.components_)
