"""Kernels of noisy counts and of Gibbs sweeps against their readable twins."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from sfumato.kernels.numba.gibbs import BLOCK, sample_counts
from sfumato.kernels.numba.noisy_counts import (
    EXACT,
    GEOMETRIC,
    NO_BOUND,
    TABLE,
    NoisyCounts,
    expected_counts,
)
from sfumato.kernels.reference.gibbs import sample_reference
from sfumato.kernels.reference.noisy_counts import expected_reference, joint_reference
from sfumato.models.coupled import CoupledModel, Part


def laws(n, generator, far=20):
    """Of all kinds: exact, a table, a sure one (clean, clipped), geometric with and without bounds."""
    tables = [generator.dirichlet(np.ones(3), 6).T, np.array([[1.0, 1, 0, 0], [0, 0, 0, 1]])]
    which = generator.integers(0, 5, n)
    outputs = np.select(
        [which == 0, which == 1, which == 2],
        [generator.integers(0, far, n), generator.integers(0, 3, n), generator.integers(0, 2, n)],
        generator.integers(-far, 2 * far, n),
    )
    return NoisyCounts(
        outputs,
        which,
        np.array([EXACT, TABLE, TABLE, GEOMETRIC, GEOMETRIC]),
        np.array([0, 0, 0, 0, 3]),
        np.array([0, 5, 3, NO_BOUND, 15]),
        np.array([1.0, 1.0, 1.0, generator.uniform(0.05, 0.98), generator.uniform(0.05, 0.98)]),
        np.array([0, 0, tables[0].size, 0, 0]),
        np.concatenate([table.ravel() for table in tables]),
    )


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from([1.0, 30.0, 3000.0]))
def test_means_and_likelihoods(seed, scale):
    generator = np.random.default_rng(seed)
    rates = scale * generator.gamma(0.5, size=40)
    counts = laws(40, generator, far=max(20, int(2 * scale)))
    means, logs = expected_counts(counts, rates, 1, with_logs=True)
    wanted, likely = expected_reference(counts, rates)
    possible = likely > -500  # the rest are so unlikely that the nearest count stands for all
    np.testing.assert_allclose(means[possible], wanted[possible], rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(logs[possible], likely[possible], rtol=1e-9, atol=1e-9)


@settings(max_examples=12, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from([1.0, 4.0, 100.0]), st.booleans(), st.integers(2, 3))
def test_counts_come_from_the_same_words(seed, scale, tucker, order):
    generator = np.random.default_rng(seed)
    sizes, rank = (5, 4, 3)[:order], 2
    model = CoupledModel.zeros(sizes, rank, (Part("", tuple(range(order)), tucker),))
    for factor in model.factors:
        factor[:] = generator.gamma(1.0, size=factor.shape)
    model.factor(0)[:] *= scale
    model.cores[0][:] = generator.gamma(1.0, size=model.cores[0].shape)
    n = 30
    cells = np.stack([generator.integers(0, size, n) for size in sizes]).astype(np.int32)
    cells.flags.writeable = False
    counts = laws(n, generator)
    sure = counts.which == 2  # of rates far away, clipped clean counts are decided by rounding
    counts = counts._replace(
        which=np.where(sure, 0, counts.which), outputs=np.maximum(counts.outputs, -5)
    )
    settings_ = {"exposed": True, "with_likelihood": True}
    found = sample_counts(
        model.arrays(0), rank, cells, counts, np.random.default_rng(seed), 1, **settings_
    )
    rows, core = sample_reference(model, 0, cells, counts, np.random.default_rng(seed))
    np.testing.assert_array_equal(found.rows, rows)
    np.testing.assert_array_equal(found.core, core)
    _, logs = expected_counts(counts, model.predict(0, cells), 1, with_logs=True)
    np.testing.assert_allclose(found.likelihood.sum(), logs.sum(), rtol=1e-9)


def test_threads_change_nothing():
    generator = np.random.default_rng(0)
    model = CoupledModel.zeros((50, 40), 3, (Part("", (0, 1)),))
    for factor in model.factors:
        factor[:] = generator.gamma(1.0, size=factor.shape)
    n = 3 * BLOCK + 17
    cells = np.stack([generator.integers(0, size, n) for size in (50, 40)]).astype(np.int32)
    counts = laws(n, generator)
    one, *others = (
        sample_counts(
            model.arrays(0), 3, cells, counts, np.random.default_rng(1), threads,
            exposed=True, with_likelihood=True,
        )
        for threads in (1, 2, 3, 9)
    )  # fmt: skip
    for other in others:
        np.testing.assert_array_equal(one.rows, other.rows)
        np.testing.assert_array_equal(one.likelihood, other.likelihood)


@pytest.mark.parametrize("z", [-7, 0, 3, 12])
@pytest.mark.parametrize("rate", [0.4, 4.0, 25.0])
def test_geometric_noise_leaves_a_mixture_of_two_truncated_poissons(z, rate):
    """Weights r^z e^(rate/r) F(z; rate/r) and r^-z e^(rate r) (1 - F(z; rate r)); one law for z < 0."""
    r = 0.7
    counts = NoisyCounts(
        np.array([z]), np.array([0]), np.array([GEOMETRIC]), np.array([0]), np.array([NO_BOUND]),
        np.array([r]), np.array([0]), np.empty(0),
    )  # fmt: skip
    low, high = stats.poisson(rate / r), stats.poisson(rate * r)
    x = np.arange(200)
    if z < 0:
        wanted = high.pmf(x)
    else:
        weights = r**z * np.exp(rate / r), r**-z * np.exp(rate * r)
        wanted = np.where(x <= z, weights[0] * low.pmf(x), weights[1] * high.pmf(x))
        total = weights[0] * low.cdf(z) + weights[1] * high.sf(z)
        np.testing.assert_allclose(wanted.sum(), total)
        likelihood = total * np.exp(-rate) * (1 - r) / (1 + r)
        found = expected_counts(counts, np.array([rate]), 1, with_logs=True)[1][0]
        if z > 0:  # zero stands for all that lies below as well
            np.testing.assert_allclose(found, np.log(likelihood), rtol=1e-12)
    wanted /= wanted.sum()
    joint = joint_reference(counts, 0, rate)
    terms = np.exp(joint - joint.max())
    np.testing.assert_allclose((terms / terms.sum())[:60], wanted[:60], rtol=1e-10, atol=1e-15)
    means, _ = expected_counts(counts, np.array([rate]), 1)
    np.testing.assert_allclose(means, wanted @ x)
