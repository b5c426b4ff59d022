"""``sf.PowerMethod`` as people use it: recovery, topics, privacy, keeping."""

import json
from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse
from model_folders import cut, edit, sealed
from power_reference import (
    FORMS,
    entry_privacy,
    orthonormal,
    planted,
    planted_blocks,
    sample_privacy,
    skewed,
    slanted,
    sparse,
)
from sklearn.base import clone
from sklearn.utils.validation import check_is_fitted

import sfumato as sf
from sfumato.data.tensor import Mode
from sfumato.errors import ModelFileError, NotFittedError, ReleaseError, SettingError


def assert_found(method, weights, vectors, close=1e-8):
    """All components of a symmetric tensor, with their weights, in whatever order."""
    order, signs, errors = sf.match_components(method.components_, vectors)
    assert errors.max() < close
    power = len(method.factors_)
    np.testing.assert_allclose(signs[:, 0] ** power * method.weights_[order], weights, rtol=close)


# -- recovery without noise -------------------------------------------------------------------------


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("order", [3, 4, 5])
def test_orthogonal_components(form, order):
    vectors, weights = orthonormal(6, 4), np.array([4.0, 3.0, 2.0, 1.0])
    tensor = planted(weights, vectors, order)
    method = sf.PowerMethod(4).fit(FORMS[form](tensor))
    assert_found(method, weights, vectors)
    assert [f.shape for f in method.factors_] == [(4, 6)] * order
    np.testing.assert_allclose(np.linalg.norm(method.components_, axis=1), 1.0)
    np.testing.assert_allclose(method.to_tensor(), tensor, atol=1e-8)
    np.testing.assert_array_equal(method.weight_deviations_, 0.0)
    assert method.guarantee_ is None


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("order", [3, 4])
def test_as_many_components_as_dimensions(form, order):
    vectors, weights = orthonormal(5, 5), np.array([5.0, 4.0, 3.0, 2.0, 1.0])
    method = sf.PowerMethod(5, restarts=30).fit(FORMS[form](planted(weights, vectors, order)))
    assert_found(method, weights, vectors)


@pytest.mark.parametrize("order", [3, 4])
def test_equal_weights(order):
    """Singular vectors of equal matrices would be any mixture; the components of a tensor are unique."""
    vectors = orthonormal(5, 3)
    method = sf.PowerMethod(3).fit(planted(np.ones(3), vectors, order))
    assert_found(method, np.ones(3), vectors)


@pytest.mark.parametrize("form", FORMS)
def test_negative_weights(form):
    """At an even order weights have signs; at an odd one the vectors take them."""
    vectors, weights = orthonormal(5, 3), np.array([-3.0, 2.0, -1.0])
    method = sf.PowerMethod(3).fit(FORMS[form](planted(weights, vectors, 4)))
    np.testing.assert_allclose(method.weights_, weights, rtol=1e-8)
    odd = sf.PowerMethod(3).fit(FORMS[form](planted(weights, vectors, 3)))
    np.testing.assert_allclose(odd.weights_, np.abs(weights), rtol=1e-8)
    np.testing.assert_allclose(np.diag(odd.components_ @ vectors.T), np.sign(weights), atol=1e-8)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("shape", [(4, 6, 5), (3, 4, 5, 4)])
def test_asymmetric(form, shape):
    factors, weights = [orthonormal(n, 3, n) for n in shape], np.array([3.0, -2.0, 1.0])
    tensor = planted_blocks(weights, factors)
    method = sf.PowerMethod(3, symmetric=False).fit(FORMS[form](tensor))
    np.testing.assert_allclose(method.weights_, np.abs(weights), rtol=1e-8)
    assert sf.match_components(method.factors_, factors).errors.max() < 1e-8
    np.testing.assert_allclose(method.to_tensor(), tensor, atol=1e-8)
    with pytest.raises(AttributeError, match="components for every mode: see factors_"):
        _ = method.components_


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("order", [3, 4, 5])
@pytest.mark.parametrize("given", [False, True], ids=["found", "given"])
def test_whitening(form, order, given):
    vectors, weights = slanted(6, 4), np.array([4.0, 3.0, 2.0, 1.0])
    tensor = FORMS[form](planted(weights, vectors, order))
    second = np.einsum("z,za,zb->ab", [1.0, 2.0, 0.5, 3.0], vectors, vectors)
    method = sf.PowerMethod(4, whiten=second if given else True).fit(tensor)
    assert_found(method, weights, vectors, close=1e-6)
    plain = sf.PowerMethod(4).fit(tensor)  # without whitening they are not found
    assert sf.match_components(plain.components_, vectors).errors.max() > 1e-2


def test_whitening_with_negative_weights():
    vectors = slanted(6, 3)
    odd = sf.PowerMethod(3, whiten=True).fit(planted([3.0, -2.0, 1.0], vectors, 3))
    assert_found(odd, [3.0, -2.0, 1.0], vectors, close=1e-6)
    even = sf.PowerMethod(3, whiten=vectors.T @ vectors).fit(planted([3.0, -2.0, 1.0], vectors, 4))
    assert_found(even, [3.0, -2.0, 1.0], vectors, close=1e-6)


def test_dense_and_sparse_are_the_same_method():
    tensor = planted([3.0, 2.0], slanted(5, 2), 3)  # not orthogonal: nothing exact to agree on
    dense, coo = (sf.PowerMethod(2, 3, 2, seed=4).fit(make(tensor)) for make in FORMS.values())
    np.testing.assert_allclose(coo.components_, dense.components_, atol=1e-12)
    np.testing.assert_allclose(coo.weights_, dense.weights_, rtol=1e-12)


def test_entries_at_one_cell_add_up():
    tensor = sparse(planted([2.0], orthonormal(4, 1), 3))
    twice = sf.SparseTensor(
        np.hstack([tensor.coordinates] * 2), np.hstack([tensor.values] * 2), tensor.modes
    )
    np.testing.assert_allclose(sf.PowerMethod(1).fit(twice).weights_, [4.0])


@pytest.mark.parametrize("convert", [np.float32, np.int64, list], ids=["float32", "int", "list"])
def test_numbers_of_any_kind(convert):
    tensor = 8 * planted([1.0, 2.0], np.eye(4)[:2], 3)
    given = tensor.tolist() if convert is list else tensor.astype(convert)
    np.testing.assert_allclose(sf.PowerMethod(2).fit(given).weights_, [16, 8])


def test_the_callers_tensor_is_left_alone():
    tensor = planted([3.0, 2.0], orthonormal(5, 2), 3)
    kept = tensor.copy()
    sf.PowerMethod(2).fit(tensor)
    sf.PowerMethod(2, whiten=True).fit(tensor)
    sf.PowerMethod(2, privacy=entry_privacy()).fit(tensor)
    np.testing.assert_array_equal(tensor, kept)


def test_small_noise_moves_components_a_little():
    vectors, weights = orthonormal(6, 3), np.array([3.0, 2.0, 1.0])
    noise = np.random.default_rng(0).standard_normal((6, 6, 6))
    tensor = planted(weights, vectors, 3) + 0.01 * sf.data.symmetric.symmetrise(noise)
    errors = sf.match_components(sf.PowerMethod(3).fit(tensor).components_, vectors).errors
    assert 1e-4 < errors.max() < 0.05


# -- repeats, progress, scikit-learn ----------------------------------------------------------------


def test_seeds_repeat_and_differ():
    samples = np.random.default_rng(0).exponential(size=(200, 5)) - 1
    one, again, other = (sf.PowerMethod(2, 3, 2, seed=s).fit_stream(samples) for s in (1, 1, 2))
    np.testing.assert_array_equal(one.components_, again.components_)
    assert np.abs(one.components_ - other.components_).max() > 1e-6


def test_planted_data_of_the_same_seed_are_no_start():
    """A start that is the truth would find anything."""
    truth = np.random.default_rng(0).standard_normal((5, 10))
    method = sf.PowerMethod(1, restarts=10, iterations=1, seed=0).fit(
        planted([1.0], truth[:, 0][None], 3)
    )
    from sfumato.solvers.power.iteration import PowerSettings, begin

    start = begin(PowerSettings((5,), 3, 1, 10, 1), 0).directions
    assert np.abs(start - truth / np.linalg.norm(truth, axis=0)).max() > 0.1
    assert method.weights_[0] > 0


def told(run):
    seen = []
    run(lambda done, total, info: seen.append((done, total, info.completed)))
    return seen


def test_progress_is_told_after_every_question():
    """Two components, three iterations each and a weight: eight questions, however they are put."""
    tensor, samples = planted([2.0, 1.0], np.eye(4)[:2], 3), np.random.default_rng(0).random((160, 4))
    wanted = [(n, 8, int(n >= 4) + int(n >= 8)) for n in range(1, 9)]
    settings = {"restarts": 2, "iterations": 3}
    private = {"privacy": entry_privacy(), **settings}
    blocks = {"privacy": sample_privacy(entries=None), "samples": 20, **settings}

    def chunks(progress):
        method = sf.PowerMethod(2, **settings, samples=20, progress=progress)
        for start in range(0, 160, 30):  # some answer one question, some two
            method.partial_fit(samples[start : start + 30])

    ways = {
        "tensor": lambda p: sf.PowerMethod(2, **settings, progress=p).fit(tensor),
        "private": lambda p: sf.PowerMethod(2, **private, progress=p).fit(tensor),
        "stream": lambda p: sf.PowerMethod(2, **settings, progress=p).fit_stream(samples),
        "once": lambda p: sf.PowerMethod(2, **settings, progress=p).fit_stream(samples, reuse=False),
        "blocks": lambda p: sf.PowerMethod(2, **blocks, progress=p).fit_stream(
            np.split(samples, 8), reuse=False
        ),
        "parts": chunks,
    }
    for name, way in ways.items():
        assert told(way) == wanted, name


def test_scikit_learn_can_copy_and_change_it():
    method = sf.PowerMethod(3, whiten=np.eye(4), samples=7, privacy=None)
    copy = clone(method)
    assert copy.get_params()["samples"] == 7
    np.testing.assert_array_equal(copy.whiten, np.eye(4))
    copy.set_params(n_components=2, whiten=False)
    assert repr(copy) == "PowerMethod(n_components=2, samples=7)"
    with pytest.raises(
        SettingError, match="PowerMethod has no setting 'rank'; it has n_components, rest"
    ):
        copy.set_params(rank=3)
    tensor = planted([2.0, 1.0], np.eye(4)[:2], 3)
    check_is_fitted(copy.fit(tensor))
    assert not hasattr(clone(copy), "components_")


@pytest.mark.parametrize("name", ["components_", "to_tensor", "save", "release"])
def test_nothing_before_a_fit(name, tmp_path):
    def used():
        what = getattr(sf.PowerMethod(2), name)
        what(*[tmp_path] if name in ("save", "release") else [])

    with pytest.raises(NotFittedError, match="not fitted yet; call fit, fit_stream or partial_fit"):
        used()


# -- topics -----------------------------------------------------------------------------------------


def documents(n=3000, words=12, length=20, seed=0):
    """Single-topic documents, their topics and the shares of these."""
    rng = np.random.default_rng(seed)
    topics = rng.dirichlet(np.full(words, 0.3), 3)
    shares = np.array([0.5, 0.3, 0.2])
    about = rng.choice(3, n, p=shares)
    return np.stack([rng.multinomial(length, topics[t]) for t in about]), topics, shares


def test_planted_topics_are_found():
    counts, topics, shares = documents()
    method = sf.PowerMethod(3, moment="documents", whiten=True)
    method.fit_stream(scipy.sparse.csr_array(counts))
    np.testing.assert_allclose(method.topics_.sum(axis=1), 1.0)
    assert method.topics_.min() >= 0
    np.testing.assert_allclose(method.topic_shares_.sum(), 1.0)
    order = sf.match_components(method.components_, topics).order
    assert np.abs(method.topics_[order] - topics).sum(axis=1).max() < 0.1  # total variation 0.05
    np.testing.assert_allclose(method.topic_shares_[order], shares, atol=0.03)


def test_topics_are_exact_for_the_exact_moment():
    """Every document a word three times over: their moment is that of the words themselves."""
    counts = np.repeat(3 * np.eye(4, dtype=int), [4, 3, 2, 1], axis=0)
    method = sf.PowerMethod(4, moment="documents", whiten=True).fit_stream(counts)
    order = np.argmax(method.topics_, axis=1)
    np.testing.assert_allclose(method.topics_, np.eye(4)[order], atol=1e-8)
    np.testing.assert_allclose(method.topic_shares_, np.array([0.4, 0.3, 0.2, 0.1])[order], rtol=1e-8)


def test_only_documents_have_topics():
    method = sf.PowerMethod(2).fit(planted([2.0, 1.0], np.eye(4)[:2], 3))
    for name in ("topics_", "topic_shares_"):
        with pytest.raises(AttributeError, match='only moment="documents" has topics'):
            getattr(method, name)


# -- privately --------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("symmetric", [True, False])
def test_a_private_tensor_with_room_to_spare(form, symmetric):
    """A large tensor of which one entry changes little: noise is small, and about as large as it says.

    Over 240 fits errors were up to 0.04, and weights off by 3.5 deviations.
    """
    vectors = orthonormal(20, 2)
    tensor = FORMS[form](planted([60.0, 40.0], vectors, 3))
    method = sf.PowerMethod(2, symmetric=symmetric, privacy=entry_privacy()).fit(tensor)
    assert sf.match_components(method.factors_, [vectors] * 3).errors.max() < 0.1
    assert (np.abs(method.weights_ - [60, 40]) < 8 * method.weight_deviations_).all()
    guarantee = method.guarantee_
    assert guarantee.proven
    assert not guarantee.seeded
    assert 0.95 < guarantee.epsilon <= 1.0
    assert guarantee.unit.startswith(
        "one entry of the symmetric" if symmetric else "one entry of the tensor"
    )
    assert guarantee.released == ("components", "weights")
    assert "trusts         whoever holds the data and runs the fit" in str(guarantee)


def test_as_printed_is_claimed():
    method = sf.PowerMethod(1, 4, 3, privacy=entry_privacy(analysis="paper"))
    method.fit(planted([60.0], orthonormal(20, 1), 3))
    assert not method.guarantee_.proven
    assert method.guarantee_.epsilon == 1.0
    assert "Theorem 4.1" in method.guarantee_.proof


def test_private_streams_name_their_unit():
    whole = sf.PowerMethod(1, 3, 2, privacy=sample_privacy()).fit_stream(skewed())
    assert whole.guarantee_.method.endswith("of 3 rounds on samples shortened to length 2")
    assert whole.guarantee_.unit == "one sample of the stream, its presence included"
    assert "that there are about 200 samples is public" in whole.guarantee_.assumptions
    assert "there are at most 3,200 samples" in whole.guarantee_.assumptions
    blocks = sf.PowerMethod(1, 3, 2, samples=100, privacy=sample_privacy(entries=None))
    blocks.fit_stream(np.split(skewed(), 3), reuse=False)
    assert any("a sample is in one block only" in a for a in blocks.guarantee_.assumptions)
    words = sf.PowerMethod(1, 3, 2, moment="documents", privacy=sample_privacy(norm=None))
    words.fit_stream(documents(50)[0])
    assert words.guarantee_.unit == "one document of the stream, its presence included"
    assert not hasattr(whole, "n_samples_seen_")


def test_blocks_and_parts_are_the_same_private_stream():
    blocks = np.split(skewed(), 3)
    settings = {"restarts": 3, "iterations": 2, "samples": 100}
    one, other = (
        sf.PowerMethod(1, **settings, privacy=sample_privacy(entries=None, seed=5)) for _ in range(2)
    )
    one.fit_stream(iter(blocks), reuse=False)
    for block in blocks:
        other.partial_fit(block)
    np.testing.assert_allclose(one.components_, other.components_, atol=1e-12)
    assert other.finished_
    assert not hasattr(other, "n_samples_seen_")  # how many samples there are is private


def test_a_block_that_broke_off_counts_once():
    """A reader that fails in the middle of a block, which is then given again."""
    blocks = np.split(skewed(), 3)
    privacy = sample_privacy(epsilon=1e6, entries=None, seed=5)
    settings = {"restarts": 3, "iterations": 2, "samples": 100, "privacy": privacy}
    smooth, broken = sf.PowerMethod(1, **settings), sf.PowerMethod(1, **settings)
    smooth.partial_fit(blocks[0])

    def failing():
        yield blocks[0][:30]
        raise OSError("the disk is gone")

    with pytest.raises(OSError, match="the disk is gone"):
        broken.partial_fit(failing())
    broken.partial_fit(blocks[0])
    for block in blocks[1:]:
        smooth.partial_fit(block)
        broken.partial_fit(block)
    np.testing.assert_allclose(broken.components_, smooth.components_, atol=1e-12)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("symmetric", [True, False])
def test_private_tensors_say_nothing_of_bad_values(bad, symmetric):
    tensor = planted([60.0], orthonormal(6, 1), 3)
    tensor[1, 2, 3] = bad
    tensor[3, 2, 1] = -7.0  # nor of asymmetry
    for form in FORMS.values():
        method = sf.PowerMethod(1, 3, 2, symmetric=symmetric, privacy=entry_privacy()).fit(form(tensor))
        assert np.isfinite(method.weights_).all()


def test_private_tensors_may_be_zero():
    zeros = np.zeros((4, 4, 4))
    modes = tuple(Mode(name, 4) for name in "abc")
    for tensor in (zeros, sf.SparseTensor(np.zeros((3, 1), np.int32), np.zeros(1), modes)):
        method = sf.PowerMethod(1, 3, 2, privacy=entry_privacy()).fit(tensor)
        assert np.isfinite(method.components_).all()


@pytest.mark.parametrize("bad", [np.nan, np.inf, 1e308])
@pytest.mark.parametrize("whiten", [True, False])
@pytest.mark.parametrize("make", [np.asarray, scipy.sparse.csr_array], ids=["dense", "sparse"])
def test_private_streams_say_nothing_of_bad_values(bad, whiten, make):
    samples = skewed()
    samples[17, 1] = bad
    method = sf.PowerMethod(2, 3, 2, whiten=whiten, privacy=sample_privacy())
    assert np.isfinite(method.fit_stream(make(samples)).weights_).all()


@pytest.mark.parametrize("bad", [np.nan, np.inf, -3.0, 0.5, 1e200])
def test_private_documents_say_nothing_of_bad_counts(bad):
    counts = documents(60)[0].astype(float)
    counts[5, 3] = bad
    method = sf.PowerMethod(2, 3, 2, moment="documents", whiten=True, privacy=sample_privacy(norm=None))
    assert np.isfinite(method.fit_stream(counts).weights_).all()


def test_a_ledger_adds_up_and_refuses(tmp_path):
    tensor, path = planted([60.0], orthonormal(6, 1), 3), tmp_path / "ledger.jsonl"
    privacy = entry_privacy(ledger=path, limit=sf.Budget(1.7, 1e-6))
    fits = [sf.PowerMethod(1, 3, 2, privacy=privacy).fit(tensor).guarantee_ for _ in range(2)]
    assert [fit.fits for fit in fits] == [1, 2]
    assert fits[0].total_epsilon <= 1.0 < fits[1].total_epsilon <= 1.7
    written = path.read_bytes()
    with pytest.raises(sf.BudgetError, match="epsilon"):
        sf.PowerMethod(1, 3, 2, privacy=privacy).fit(tensor)
    assert path.read_bytes() == written


@pytest.mark.parametrize("call", ["fit", "fit_stream"])
def test_bad_settings_are_refused_before_budget_is_spent(call, tmp_path):
    path = tmp_path / "ledger.jsonl"
    privacy = (entry_privacy if call == "fit" else sample_privacy)(ledger=path)
    data = np.zeros((4, 4, 4)) if call == "fit" else skewed()
    with pytest.raises(SettingError):
        getattr(sf.PowerMethod(9, privacy=privacy), call)(data)
    assert not path.exists()


# -- keeping ----------------------------------------------------------------------------------------


def assert_same(found, kept):
    np.testing.assert_array_equal(found.weights_, kept.weights_)
    for ours, theirs in zip(found.factors_, kept.factors_, strict=True):
        np.testing.assert_array_equal(ours, theirs)
    np.testing.assert_array_equal(found.weight_deviations_, kept.weight_deviations_)
    assert found.guarantee_ == kept.guarantee_


@pytest.mark.parametrize("symmetric", [True, False])
def test_kept_without_privacy(symmetric, tmp_path):
    tensor = planted([2.0, 1.0], orthonormal(4, 2), 4)
    method = sf.PowerMethod(np.int64(2), restarts=7, symmetric=symmetric, seed=3).fit(tensor)
    again = sf.load(method.save(tmp_path / "deep" / "model"))
    assert isinstance(again, sf.PowerMethod)
    assert_same(again, method)
    assert (again.n_components, again.restarts, again.seed, again.symmetric) == (2, 7, 3, symmetric)
    np.testing.assert_array_equal(again.to_tensor(), method.to_tensor())
    with pytest.raises(ReleaseError, match=r"not private: fit it with privacy=... to release it"):
        method.release(tmp_path / "release")
    assert not (tmp_path / "release").exists()


def test_kept_with_privacy(tmp_path):
    method = sf.PowerMethod(1, 3, 2, privacy=entry_privacy())
    method.fit(planted([60.0], orthonormal(6, 1), 3))
    for folder in (method.save(tmp_path / "saved"), method.release(tmp_path / "released")):
        again = sf.load(folder)
        assert_same(again, method)
        assert again.privacy is None
        text = (folder / "model.json").read_text()
        assert "ledger" not in json.loads(text)["settings"]
        assert "one entry of the symmetric tensor" in (folder / "guarantee.json").read_text()


@pytest.mark.parametrize(
    ("change", "message", "word"),
    [
        ({"seed": 1}, "noise of this fit came from a seed", "seeded"),
        ({"analysis": "paper"}, "claimed by a paper and not proven", "CLAIMED"),
    ],
)
def test_doubtful_guarantees_need_force(change, message, word, tmp_path):
    privacy = replace(entry_privacy(), **change)
    method = sf.PowerMethod(1, 3, 2, privacy=privacy).fit(planted([60.0], orthonormal(6, 1), 3))
    for keep in (method.save, method.release):
        with pytest.raises(ReleaseError, match=message):
            keep(tmp_path / "model")
    again = sf.load(method.release(tmp_path / "model", force=True))
    assert_same(again, method)
    assert word in str(again.guarantee_)


def test_topics_survive(tmp_path):
    method = sf.PowerMethod(3, moment="documents", whiten=True).fit_stream(documents(500)[0])
    again = sf.load(method.save(tmp_path / "model"))
    np.testing.assert_array_equal(again.topics_, method.topics_)
    assert repr(again) == "PowerMethod(n_components=3, whiten=True, moment='documents')"


DAMAGE = {
    "tensors cut off": (lambda f: cut(f, "model.safetensors"), "was cut off or edited"),
    "tensors gone": (lambda f: (f / "model.safetensors").unlink(), "model.safetensors is missing"),
    "json cut off": (lambda f: cut(f, "model.json"), "damaged or cut off"),
    "guarantee cut off": (lambda f: sealed(cut(f, "guarantee.json")), "damaged or cut off"),
    "no such whitening": (lambda f: edit(f, settings={"n_components": 1, "whiten": [1]}), "whiten"),
    "a word for a number": (lambda f: edit(f, settings={"n_components": "1"}), "n_components"),
    "too many deviations": (
        lambda f: edit(f, settings={"n_components": 1, "weight_deviations": [1.0, 2.0]}),
        "do not fit each other",
    ),
    "unknown setting": (lambda f: edit(f, settings={"n_components": 1, "colour": "red"}), "colour"),
    "no settings": (lambda f: edit(f, settings={}), "n_components"),
    "settings of another kind": (lambda f: edit(f, settings=3), "damaged"),
    "wrong order": (lambda f: edit(f, order="three"), "damaged"),
    "another kind": (lambda f: edit(f, kind="Forest"), "damaged"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damaged_folders(damage, tmp_path):
    method = sf.PowerMethod(1, 3, 2, privacy=entry_privacy())
    folder = method.fit(planted([60.0], orthonormal(6, 1), 3)).release(tmp_path / "model")
    do, message = DAMAGE[damage]
    do(folder)
    with pytest.raises(ModelFileError, match=message):
        sf.load(folder)


def test_a_folder_of_another_kind(tmp_path):
    folder = sf.Biases().fit(sf.synthetic.cp((5, 4), 1, entries=15, seed=0).tensor).save(tmp_path / "m")
    with pytest.raises(ModelFileError, match=r"holds a model, not components: use sfumato.load"):
        sf.PowerMethod.load(folder)
