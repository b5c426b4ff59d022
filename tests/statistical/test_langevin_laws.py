"""Chains visit the posterior: against quadrature, and against Metropolis on coupled relations.

Fixed seeds. Means have to agree within five Monte Carlo standard errors (a false-alarm rate below one in
a million for each number) and a twentieth of the posterior's standard deviation, which is left to the
length of the steps; standard deviations within 15%, more than five of their errors. Noise of half the
variance is well outside: the tests reject it.
"""

import numpy as np
import pytest
from scipy import stats

from sfumato.data.relations import Relations
from sfumato.data.tensor import Mode, SparseTensor
from sfumato.sites.coupled import CoupledSite
from sfumato.solvers.coupled.langevin import Langevin
from sfumato.solvers.coupled.shape import CoupledShape
from sfumato.solvers.protocol import Run


def dense(values, names):
    values = np.asarray(values, float)
    cells = np.stack(np.nonzero(np.ones(values.shape)))
    modes = tuple(Mode(name, size) for name, size in zip(names, values.shape, strict=True))
    return SparseTensor(cells, values.ravel(), modes)


def sample(solver, relations, rank):
    shape = CoupledShape.of(relations, rank)
    site = CoupledSite(relations, 1, np.dtype(np.float64))
    state = solver.init(Run(0), shape)
    for _ in range(solver.rounds(shape)):
        state, _ = solver.update(state, solver.ask(state).answer(site))
    return solver.finish(state).posterior


def agree(kept, part, cells, mean, deviation, other_error=0.0):
    draws = kept.draws(part, cells)
    error = np.hypot(kept.standard_error(part, cells), other_error)
    assert (np.abs(draws.mean(axis=(0, 1)) - mean) < 5 * error + 0.05 * deviation).all()
    assert np.allclose(draws.std(axis=(0, 1)), deviation, rtol=0.15)
    assert (error < 0.1 * deviation).all()  # or the test would not say much


# -- one component, one column: the posterior by quadrature over the column's parameter -------------

COUNTS = np.array([1.0, 3.0, 7.0, 20.0])
NUMBERS = np.array([-1.0, 0.3, 2.0, 0.8])


def poisson_posterior(shape, rate):
    """x_i ~ Poisson(a_i b): given b every a_i has a Gamma law, and x_i a negative binomial one."""
    b = np.linspace(1e-3, 40, 100_001)
    logs = stats.gamma.logpdf(b, shape, scale=1 / rate)
    for x in COUNTS:
        logs = logs + x * np.log(b) - (shape + x) * np.log(rate + b)
    weight = np.exp(logs - logs.max())
    weight /= weight.sum()
    mean = np.array([weight @ (b * (shape + x) / (rate + b)) for x in COUNTS])
    second = np.array(
        [weight @ (b**2 * (shape + x) * (shape + x + 1) / (rate + b) ** 2) for x in COUNTS]
    )
    return mean, np.sqrt(second - mean**2)


def normal_posterior(precision):
    """x_i ~ N(a_i b, 1): given b every a_i is normal."""
    b = np.linspace(-12, 12, 100_001)
    logs = -precision * b**2 / 2
    for x in NUMBERS:
        logs = logs - np.log(1 + b**2 / precision) / 2 - x**2 / (1 + b**2 / precision) / 2
    weight = np.exp(logs - logs.max())
    weight /= weight.sum()
    given = [b**2 * x / (precision + b**2) for x in NUMBERS]
    mean = np.array([weight @ each for each in given])
    second = np.array([weight @ (each**2 + b**2 / (precision + b**2)) for each in given])
    return mean, np.sqrt(second - mean**2)


@pytest.mark.parametrize(
    ("preconditioner", "step", "batch"),
    [("curvature", 0.15, "all"), ("curvature", 0.15, 2), ("none", 0.015, "all")],
)
def test_gamma_poisson(preconditioner, step, batch):
    solver = Langevin(
        "poisson",
        samples=500,
        burn_in=500,
        thin=8,
        step=step,
        decay=0.0,
        batch=batch,
        preconditioner=preconditioner,
        prior_shape=3.0,
        prior_mean=2.0,
    )
    relations = Relations({"x": dense(COUNTS[:, None], ("i", "j"))})
    kept = sample(solver, relations, 1)
    mean, deviation = poisson_posterior(3.0, 1.5)
    agree(kept, 0, np.stack([np.arange(4), np.zeros(4, int)]), mean, deviation)


@pytest.mark.parametrize(
    ("preconditioner", "step"), [("curvature", 0.1), ("none", 0.03), ("rmsprop", 0.05)]
)
def test_normal_normal(preconditioner, step):
    solver = Langevin(
        samples=500,
        burn_in=500,
        thin=8,
        step=step,
        decay=0.0,
        batch="all",
        preconditioner=preconditioner,
        prior_precision=0.7,
    )
    relations = Relations({"x": dense(NUMBERS[:, None], ("i", "j"))}, divergence=0.0)
    kept = sample(solver, relations, 1)
    mean, deviation = normal_posterior(0.7)
    agree(kept, 0, np.stack([np.arange(4), np.zeros(4, int)]), mean, deviation)


# -- two relations that share a mode, two components: beside Metropolis ------------------------------

RATINGS = np.array([[5, 0, 1, 2], [4, 1, 0, 0], [0, 3, 2, 6.0]])
FEATURES = np.array([[2, 0], [0, 1], [1, 1], [3, 0.0]])
SIZES = (3, 4, 2)
RANK = 2


def metropolis(log_density, start, steps, scale, generator):
    """Many random walks at a time; the second half of each, one place in ten."""
    place, kept = start, []
    here = log_density(place)
    for t in range(steps):
        there = place + scale * generator.standard_normal(place.shape)
        density = log_density(there)
        taken = np.log(generator.random(len(place))) < density - here
        place, here = np.where(taken[:, None], there, place), np.where(taken, density, here)
        if t >= steps // 2 and t % 10 == 0:
            kept.append(place)
    return np.stack(kept, axis=1)


def factors_of(vectors):
    edges = np.cumsum([0, *SIZES]) * RANK
    lead = vectors.shape[:-1]
    return [vectors[..., edges[d] : edges[d + 1]].reshape(*lead, SIZES[d], RANK) for d in range(3)]


def products(user, item, feature):
    return np.einsum("...ir,...jr->...ij", user, item), np.einsum("...jr,...kr->...jk", item, feature)


def compare(kept, walks, names):
    for part, (values, cells) in enumerate(zip(walks, names, strict=True)):
        flat = values.reshape(*values.shape[:2], -1)
        error = flat.mean(axis=1).std(axis=0) / np.sqrt(len(flat))
        agree(kept, part, cells, flat.mean(axis=(0, 1)), flat.std(axis=(0, 1)), error)


def all_cells(*sizes):
    return np.stack(np.nonzero(np.ones(sizes)))


def test_coupled_counts_agree_with_metropolis():
    shape, rate = 2.0, 2.0

    def log_density(logs):
        values = [np.exp(each) for each in factors_of(logs)]
        first, second = products(*values)
        density = shape * logs.sum(axis=1) - rate * np.exp(logs).sum(axis=1)
        density += (RATINGS * np.log(first) - first).sum(axis=(1, 2))
        return density + (FEATURES * np.log(second) - second).sum(axis=(1, 2))

    generator = np.random.default_rng(0)
    start = np.log(generator.gamma(shape, 1 / rate, (150, sum(SIZES) * RANK)))
    walks = np.exp(metropolis(log_density, start, 3000, 0.25, generator))
    tensors = {"x": dense(RATINGS, ("i", "j")), "f": dense(FEATURES, ("j", "k"))}
    entries = {name: tensor.take(tensor.values > 0) for name, tensor in tensors.items()}
    relations = Relations({"x": entries["x"], "f": tensors["f"]}, absent={"x": "zero"})
    solver = Langevin("poisson", samples=600, burn_in=400, thin=6, step=0.2, decay=0.0, batch="all",
                      prior_shape=shape, prior_mean=shape / rate)  # fmt: skip
    kept = sample(solver, relations, RANK)
    compare(kept, products(*factors_of(walks)), (all_cells(3, 4), all_cells(4, 2)))


def test_coupled_numbers_agree_with_metropolis():
    (a, b), (c, d) = (4.0, 2.0), (3.0, 1.0)
    x, f = (RATINGS - 2) / 2, FEATURES - 1
    n = sum(SIZES) * RANK
    rows = np.repeat(np.arange(3), np.array(SIZES) * RANK)

    def log_density(vectors):
        theta, logs = vectors[:, :n], vectors[:, n:]
        precision, noise = np.exp(logs[:, :3]), np.exp(logs[:, 3:])
        first, second = products(*factors_of(theta))
        density = (logs[:, rows] - precision[:, rows] * theta**2).sum(axis=1) / 2
        density += (a * logs[:, :3] - b * precision).sum(axis=1)
        density += (c * logs[:, 3:] - d * noise).sum(axis=1)
        for v, (data, value) in enumerate(((x, first), (f, second))):
            squares = ((data - value) ** 2).sum(axis=(1, 2))
            density += data.size / 2 * logs[:, 3 + v] - noise[:, v] * squares / 2
        return density

    generator = np.random.default_rng(0)
    start = 0.5 * generator.standard_normal((150, n + 5))
    walks = metropolis(log_density, start, 5000, 0.2, generator)
    relations = Relations(
        {"x": dense(x, ("i", "j")), "f": dense(f, ("j", "k"))}, divergence=0.0, dispersion=None
    )
    solver = Langevin(samples=700, burn_in=400, thin=7, step=0.15, decay=0.0, batch="all",
                      precision_prior=(a, b), noise_prior=(c, d), by_component=False)  # fmt: skip
    kept = sample(solver, relations, RANK)
    compare(kept, products(*factors_of(walks[..., :n])), (all_cells(3, 4), all_cells(4, 2)))
    noise = np.exp(walks[..., n + 3 :])
    assert np.allclose(kept.noise.mean(axis=(0, 1)), noise.mean(axis=(0, 1)), rtol=0.1)
