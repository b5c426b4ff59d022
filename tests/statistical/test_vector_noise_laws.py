"""Noise that is drawn inside kernels and for rows has the law that its charge says.

Kolmogorov-Smirnov tests on fixed seeds. The right law is accepted above p = 1e-3: a false-alarm rate of
one in a thousand for each test if seeds were drawn anew. Two thirds and three halves of the
scale must be rejected below 1e-6.
"""

import numpy as np
import pytest
from on_grid import on_grid
from scipy import stats

from sfumato.data.tensor import Mode, SparseTensor
from sfumato.engines.local import Local
from sfumato.kernels.reference.private_passes import direction_at
from sfumato.models.shape import Shape
from sfumato.privacy.entropy import Entropy
from sfumato.privacy.facts import Facts
from sfumato.privacy.ledger import Ledger
from sfumato.privacy.mechanisms import RowwiseVectorLaplace
from sfumato.privacy.units import Value
from sfumato.sites.memory import Site
from sfumato.solvers.as_printed.wei import PaperGradient, PaperInput, PaperOutput
from sfumato.solvers.gradient.sequential import SequentialSGD
from sfumato.solvers.private.passes import PrivatePasses
from sfumato.solvers.protocol import Run

N, RANK = 3000, 3
# Entry i has the levels (i, i, i): every row is met once, so that its move shows its noise.
TENSOR = SparseTensor(
    np.tile(np.arange(N), (3, 1)),
    np.random.default_rng(0).uniform(-1, 1, N),
    tuple(Mode(f"m{m}", N) for m in range(3)),
)
SHAPE = Shape(TENSOR.modes, (RANK,) * 3, fit_mean=False, fit_biases=False)
FACTS = Facts(SHAPE, Value(), (-1.0, 1.0), entries=N)


def has_law(sample, law):
    """Whether a sample has a law with a scale, and not that law at 2/3 or 3/2 of it."""
    assert stats.kstest(sample, law.cdf).pvalue > 1e-3
    for wrong in (2 / 3, 3 / 2):
        assert stats.kstest(sample / wrong, law.cdf).pvalue < 1e-6


def is_uniform(directions):
    """No mean direction, and the squared coordinates of a uniform direction in three dimensions."""
    n, size = directions.shape
    assert np.abs(directions.mean(axis=0)).max() < 4 * np.sqrt(1 / size / n)
    has_first = stats.kstest(directions[:, 0] ** 2, stats.beta(0.5, (size - 1) / 2).cdf).pvalue
    assert has_first > 1e-3


def is_vector_noise(noise, scale):
    length = np.linalg.norm(noise, axis=1)
    has_law(length / scale, stats.gamma(noise.shape[1]))
    is_uniform(noise / length[:, None])


def first_answer(solver, entropy_seed):
    query, engine = solver.ask(solver.init(Run(5), FACTS)), Local(Site(TENSOR, 1))
    with Ledger(Value()).reserve(solver.charges(FACTS), Entropy(entropy_seed)) as reservation:
        return reservation.ask(lambda draw: engine.released(query, draw))


def test_paper_s_input():
    noisy = first_answer(PaperInput(noise=0.5), 11)
    has_law((noisy.values + FACTS.middle - TENSOR.values) / (2 * 0.5), stats.laplace)


def test_paper_s_gradient():
    descent = SequentialSGD(passes=1, init_scale=0.5)
    noisy = first_answer(PaperGradient(descent, noise=2.0), 12).model
    exact = first_answer(PaperGradient(descent, noise=1e-20), 12).model
    np.testing.assert_array_equal(noisy.factors[0], exact.factors[0])
    moves = -(noisy.factors[2] - exact.factors[2]) / descent.step
    is_vector_noise(moves, 2 * 0.1 * 2.0)


def test_paper_s_output():
    descent = SequentialSGD(passes=3, init_scale=0.5)
    solver = PaperOutput(descent, noise=2.0, mode="m1")
    noisy = first_answer(solver, 13).model
    query = solver.ask(solver.init(Run(5), FACTS))
    exact, largest = query.descended(Site(TENSOR, 1), np.random.default_rng())
    assert largest == pytest.approx(0.1)
    np.testing.assert_array_equal(noisy.factors[2], exact.model.factors[2])
    is_vector_noise(noisy.factors[1] - exact.model.factors[1], 2 * 3 * largest * 0.005 * 2.0)


@pytest.mark.parametrize("law", ["residual", "vector"])
def test_a_private_pass(law):
    settings = {"passes": 1, "noise_law": law, "ridge": 0.0}
    solver = PrivatePasses(**settings, noise=2.0)
    start = solver.init(Run(5), FACTS).model
    noisy = first_answer(solver, 14)
    step = solver.step_at(FACTS, 0)
    # The same step without noise: as much smaller as its noise would have been.
    quiet = PrivatePasses(**settings, step=step, noise=1e-20)
    assert quiet.step_at(FACTS, 0) == pytest.approx(step)
    moves = np.hstack(
        [a - b for a, b in zip(noisy.factors, first_answer(quiet, 14).factors, strict=True)]
    )
    directions = np.array([direction_at(start, cell, False) for cell in TENSOR.coordinates.T])
    length = np.linalg.norm(directions, axis=1)
    noise = moves * (1 + step * length**2)[:, None] / step
    epsilon = solver.shares(FACTS)[1]
    change = np.minimum(2 * solver.clip, 4.0 * length)  # the range is four of the default spreads
    if law == "vector":
        is_vector_noise(noise / change[:, None], 1 / epsilon)
        return
    along = (noise * directions).sum(axis=1) / length
    np.testing.assert_allclose(noise, along[:, None] * directions / length[:, None], atol=1e-6)
    has_law(along / change * epsilon, stats.laplace)


def test_rowwise_vector_laplace():
    values = np.random.default_rng(1).normal(size=(N, RANK))
    mechanism = RowwiseVectorLaplace(3.0)
    noisy = mechanism.release(on_grid(values, np.inf, 0.5, rowwise=0.5), Entropy(15))
    noise = noisy.values - values
    is_vector_noise(noise, 1.5)
    assert noise.std() == pytest.approx(noisy.deviation, rel=0.03)
