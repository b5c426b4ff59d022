"""Data of paper A's study: noise of the norm that it is said to have, streams, documents."""

from math import sqrt

import numpy as np
import pytest

from sfumato.data.symmetric import check_symmetric
from sfumato.estimators.power import PowerMethod
from sfumato.papers import wang_data
from sfumato.papers.recovery import gathered
from sfumato.papers.runner import Done, Job, Point
from sfumato.papers.wang_data import NOISES, noisy_tensors, symmetric_gaussian

D, K = 12, 2
SPARSE = [name for name in NOISES if name != "gaussian"]


def noise_alone(name, d=D, k=K, seed=0):
    """The noise of size one: what is left when the components are taken off."""
    (tensor,) = noisy_tensors(name, d, k, (1.0,), seed)
    dense = np.array(tensor) if name == "gaussian" else np.zeros((d, d, d))
    if name != "gaussian":  # a cell may come several times
        np.add.at(dense, tuple(tensor.coordinates), tensor.values)
    dense[range(k), range(k), range(k)] -= 1.0
    return dense


def values_at(tensor, directions):
    return np.einsum("ijk,il,jl,kl->l", tensor, directions, directions, directions)


@pytest.mark.parametrize("name", SPARSE)
def test_sparse_noise_has_operator_norm_one(name):
    """No unit vector has more, and one has it; of a symmetric tensor that is the norm (Banach)."""
    noise = noise_alone(name)
    check_symmetric(noise)
    directions = np.random.default_rng(0).standard_normal((D, 2000))
    directions /= np.linalg.norm(directions, axis=0)
    extreme = np.zeros((D, 1))
    if name == "against":
        extreme[:K] = -1 / sqrt(K)
    else:
        extreme[K] = 1.0
    assert values_at(noise, extreme)[0] == pytest.approx(1.0)
    assert np.abs(values_at(noise, directions)).max() <= 1.0
    assert PowerMethod(1, 20, seed=1).fit(noise).weights_[0] == pytest.approx(1.0)


@pytest.mark.parametrize("name", NOISES)
def test_noise_of_the_third_model_is_not_correlated_with_components(name):
    with_components = np.abs(noise_alone(name)[:K]).max()
    assert (with_components == 0) == (NOISES[name].model == 3)


def test_the_size_of_noise_is_a_factor():
    small, large = noisy_tensors("gaussian", D, K, (0.5, 2.0), 3)
    signal = np.zeros((D, D, D))
    signal[range(K), range(K), range(K)] = 1.0
    np.testing.assert_allclose(4 * (small - signal), large - signal)


def test_a_symmetric_gaussian_tensor_is_standard_normal_in_every_direction():
    """Variances of 3,000 draws; each misses its band by chance with a probability below 1e-6."""
    generator = np.random.default_rng(0)
    drawn = np.stack([symmetric_gaussian(3, generator) for _ in range(3000)])
    check_symmetric(drawn[0])
    band = 5 * sqrt(2 / 3000)
    for direction in np.random.default_rng(1).standard_normal((4, 3)):
        u = direction / np.linalg.norm(direction)
        assert np.einsum("nijk,i,j,k->n", drawn, u, u, u).var() == pytest.approx(1, rel=band)
    for cell, variance in (((0, 1, 2), 1 / 6), ((0, 0, 2), 1 / 3), ((0, 2, 2), 1 / 3), ((1, 1, 1), 1)):
        assert drawn[:, *cell].var() == pytest.approx(variance, rel=band)
    alike = np.stack([symmetric_gaussian(3, generator, alike=True) for _ in range(3000)])
    for cell in ((0, 1, 2), (0, 0, 2), (0, 2, 2), (1, 1, 1)):
        assert alike[:, *cell].var() == pytest.approx(1, rel=band)


def test_gaussian_noise_has_about_the_norm_it_is_given():
    """The largest value that many starts find is a lower bound, and close to it."""
    found = PowerMethod(1, 60, 60, seed=0).fit(noise_alone("gaussian", d=60, seed=5)).weights_[0]
    assert 0.93 < found < 1.05


def test_the_moment_of_the_stream_is_twice_the_components():
    """Means of 200,000 samples; cubes deviate by less than 30 and 4, and bands are five of these."""
    truth = wang_data.orthonormal(2, 5, np.random.default_rng(0))
    stream = wang_data.Stream(truth, 7)
    samples = np.concatenate(list(stream.blocks(200_000))).astype(np.float64)
    assert samples.shape == (200_000, 5)
    along = samples @ truth.T
    assert (along**3).mean(axis=0) == pytest.approx(2, abs=5 * 30 / sqrt(200_000))
    outside = samples - along @ truth
    assert np.abs((outside**3).mean(axis=0)).max() < 5 * 4 / sqrt(200_000)
    first = np.concatenate(list(stream.blocks(12_345)))
    np.testing.assert_array_equal(first, samples[:12_345].astype(np.float32))


def test_documents_are_about_one_topic_each():
    shares = np.stack(list(wang_data.topics().values()))
    assert np.linalg.matrix_rank(shares) == len(wang_data.TOPIC_SHARES) == len(shares)
    assert shares.sum(axis=1) == pytest.approx(1)
    counts = wang_data.documents(500, 0).toarray()
    assert set(counts.sum(axis=1)) == set(range(wang_data.FEWEST_WORDS, wang_data.MOST_WORDS + 1))
    possible = (counts > 0).astype(int) @ (shares == 0).T.astype(int) == 0  # no word outside the topic
    assert possible.any(axis=1).all()


def test_errors_are_gathered_by_run():
    jobs = [Job("a", "", (1.0, 2.0), r, (("d", 5),)) for r in range(3)]
    done = [
        Done(
            job,
            tuple(Point(at, at + c / 10 + job.repetition, str(c)) for at in job.at for c in (1, 2)),
            0,
        )
        for job in jobs
    ]
    runs = gathered(done)["a", (("d", 5),)]
    assert runs.errors.shape == (3, 2, 2)
    np.testing.assert_allclose(runs.worst, [[1.2, 2.2], [2.2, 3.2], [3.2, 4.2]])
